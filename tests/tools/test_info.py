# SPDX-License-Identifier: Apache-2.0
"""clmgk-info: listing, self-test, program cache."""
import json
import os
import pty
import re
import subprocess
import unittest

import numpy as np

from program_test import BIN, FULL, QUICK, ProgramTest, run, small_buffers

DEVICE_KEYS = {
    "selector": str,
    "default": bool,
    "platform": str,
    "name": str,
    "vendor": str,
    "driver": str,
    "class": str,
    "engine": str,
    "matrix_units": (bool, type(None)),  # of some CPUs
    "matrix_unit": (str, type(None)),
    "matrix_unit_found": (str, type(None)),
    "matrix_unit_reason": (str, type(None)),
    "first_use": (str, type(None)),
    "programs_kept_by": str,
    "tuned": bool,
    "tuning": dict,
    "compute_units": int,
    "clock_mhz": int,
    "native_float_lanes": int,
    "global_memory_bytes": int,
    "local_memory_bytes": int,
    "max_allocation_bytes": int,
    "max_work_group": int,
    "architecture": str,
    "products": list,
    "message": type(None),
    "engine_reason": str,
}

VARIANTS = ("softmax", "gaussian", "mgk", "smgk", "fish", "hard-fish", "mish", "hard-mish", "gfish", "hard-gfish",
            "talking-heads", "linear", "mlk", "smlk", "lfish", "lhard-fish", "lmish", "lhard-mish", "lgfish", "lhard-gfish")


class InfoTest(ProgramTest):
    program = "clmgk-info"

    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"

    def environment(self, **changes):
        return {**QUICK, "CLMGK_CACHE_DIR": str(self.cache), **changes}

    def info(self, *args, **changes):
        return json.loads(self.accept("--json", *args, env=self.environment(**changes)).stdout)

    def softmax(self, device, **changes):
        """The JSON object of clmgk-run for a small problem: two heads, 96 queries and keys, D 16."""
        for name in ("q", "k", "v"):
            np.save(self.folder / f"{name}.npy", self.random.standard_normal((1, 2, 96, 16), dtype=np.float32))
        done = run("clmgk-run", "--device", device, "--variant", "softmax", "--q", "q.npy", "--k", "k.npy", "--v",
                   "v.npy", "--out", "o.npy", "--json", cwd=self.folder, env=self.environment(**changes))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


class Listing(InfoTest):
    def test_json(self):
        found = self.info()
        self.assertEqual(list(found), ["clmgk", "devices", "message", "cache", "tuning_cache", "program_dir"])
        self.assertIsNone(found["message"])
        self.assertGreater(len(found["devices"]), 0)
        for device in found["devices"]:
            self.assertEqual(set(device), set(DEVICE_KEYS))
            for key, kind in DEVICE_KEYS.items():
                self.assertIsInstance(device[key], kind, key)
            self.assertGreater(len(device["products"]), 0)
            for provider in device["products"]:
                self.assertEqual(list(provider), ["provider", "dtypes", "reason"])
                self.assertLessEqual(set(provider["dtypes"]), {"f32", "f16", "bf16"})
                self.assertTrue(provider["dtypes"] or provider["reason"], provider)
            self.assertIn(device["programs_kept_by"], ("nobody", "library", "driver"))
            self.assertEqual(list(device["tuning"]), ["current", "stale", "shipped", "passed_over"])
            self.assertEqual([device["tuning"][key] for key in ("current", "stale", "passed_over")], [0, 0, 0])
            self.assertEqual(device["tuned"], device["tuning"]["shipped"] > 0)
        self.assertEqual(sum(device["default"] for device in found["devices"]), 1)
        self.assertEqual(found["cache"], {"path": str(self.cache / "programs"), "entries": 0, "bytes": 0,
                                          "message": None})
        self.assertEqual(found["tuning_cache"], {"path": str(self.cache / "tuning"), "entries": 0, "bytes": 0,
                                                 "damaged": 0, "message": None})

    def test_text(self):
        device = self.info()["devices"][0]
        text = self.accept(env=self.environment()).stdout
        for word in (device["selector"], device["name"], device["driver"], f"engine {device['engine']}", "program cache", "tuning cache",
                     f"    this engine because {device['engine_reason']}", "    products by ", "    compiled programs are kept by "):
            self.assertIn(word, text)

    def test_product_libraries(self):
        """If a library of products is missing or has another version, the output gives the reason; nothing else changes."""
        device = self.info()["devices"][0]
        hidden = self.folder / "hidden"
        hidden.mkdir()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            another = next(line.split()[-1] for line in maps if "/libc.so" in line)
        libraries = {"clblast": "libclblast.so.1", "onednn": "libdnnl.so.2", "openblas": "libopenblas.so.0"}
        for content, reason in (("no library", "could not be loaded"), (None, "is another version: it has no ")):
            for soname in libraries.values():
                file = hidden / soname
                file.unlink(missing_ok=True)
                if content:
                    file.write_text(content)
                else:
                    file.symlink_to(another)
            found = self.info(LD_LIBRARY_PATH=str(hidden))["devices"][0]
            for provider in found.pop("products"):
                if provider["provider"] == "clmgk":  # the library's own kernels
                    self.assertEqual(provider["dtypes"], ["f32", "f16", "bf16"])
                    continue
                self.assertEqual(provider["dtypes"], [], provider)
                if provider["provider"] == "matrix":  # a device without the units that its kernels use
                    self.assertIn("matrix unit", provider["reason"])
                elif "this build has no" not in provider["reason"]:
                    self.assertIn(f"{libraries[provider['provider']]} {reason}", provider["reason"])
            self.assertEqual(found, {key: value for key, value in device.items() if key != "products"})

    def test_one_device(self):
        device = self.info()["devices"][-1]
        for selector in (device["selector"], device["name"].upper()):
            found = self.info("--device", selector)
            self.assertEqual([one["selector"] for one in found["devices"]], [device["selector"]])

    def test_devices_by_class(self):
        devices = self.info()["devices"]
        for word in ("cpu", "gpu", "CPU"):
            first = next((one["selector"] for one in devices if one["class"] == word.lower()), None)
            with self.subTest(word=word, first=first):
                if first is None:
                    words = [f'"{word}" matches none']
                    self.refuse(3, "--device", word, words=words, env=self.environment())
                    listed = self.refuse(3, "--json", words=words, env=self.environment(CLMGK_DEVICE=word))
                    found = json.loads(listed.stdout)
                    self.assertEqual(found["devices"], [{**one, "default": False} for one in devices])
                    self.assertEqual(f"clmgk-info: {found['message']}\n", listed.stderr)
                    self.info("--device", devices[0]["selector"], CLMGK_DEVICE=word)
                    continue
                self.assertEqual([one["selector"] for one in self.info("--device", word)["devices"]], [first])
                found = self.info(CLMGK_DEVICE=word)["devices"]
                self.assertEqual([one["selector"] for one in found if one["default"]], [first])

    def test_no_files(self):
        self.assertEqual(self.info(CLMGK_CACHE_DIR="")["cache"],
                         {"path": None, "entries": 0, "bytes": 0, "message": None})
        self.assertIsNone(self.info(CLMGK_CACHE_DIR="")["tuning_cache"]["path"])
        text = self.accept(env=self.environment(CLMGK_CACHE_DIR="")).stdout
        self.assertIn("program cache: no files are used", text)
        self.assertIn("tuning cache: no files are used", text)

    def test_caches_that_fail(self):
        """The devices are listed, with the reason beside the cache."""
        whole = self.info()
        reason = "/dev/null/programs: Not a directory"
        broken = self.environment(CLMGK_CACHE_DIR="/dev/null")
        found = json.loads(self.refuse(4, "--json", env=broken, words=[reason]).stdout)
        self.assertEqual(found["devices"], whole["devices"])
        self.assertEqual(found["cache"], {"path": None, "entries": 0, "bytes": 0, "message": reason})
        self.assertEqual(found["tuning_cache"]["message"], "/dev/null/tuning: Not a directory")
        text = self.refuse(4, env=broken, words=[reason]).stdout
        for word in (whole["devices"][0]["name"], f"program cache: not used: {reason}",
                     "it is passed over: /dev/null/tuning: Not a directory"):
            self.assertIn(word, text)

    def test_programs_made_ahead(self):
        nothing = {"path": None, "entries": 0, "bytes": 0, "message": None}
        self.assertEqual(self.info()["program_dir"], nothing)
        folder = self.folder / "shipped"
        self.assertEqual(self.info(CLMGK_PROGRAM_DIR=str(folder))["program_dir"], {**nothing, "path": str(folder)})
        folder.mkdir()
        folder.chmod(0o777)
        reason = f"{folder}: has mode 0777, expected 0755"
        unusable = self.environment(CLMGK_PROGRAM_DIR=str(folder))
        self.assertIn(f"programs made ahead: not read: {reason}", self.refuse(4, env=unusable, words=[reason]).stdout)
        found = json.loads(self.refuse(4, "--json", env=unusable, words=[reason]).stdout)["program_dir"]
        self.assertIn(reason, found["message"])

    def test_no_device(self):
        self.refuse(3, env=self.environment(OCL_ICD_VENDORS=str(self.folder)), words=["no OpenCL device", "no platform"])
        # PoCL offers no device where it can't write
        homeless = self.environment(HOME="/dev/null")
        for name in ("POCL_CACHE_DIR", "XDG_CACHE_HOME"):
            homeless.pop(name, None)
        words = ("no OpenCL device", '"Portable Computing Language" is there without a device', "/dev/null/.cache/pocl",
                 "Not a directory", "POCL_CACHE_DIR", "HOME")
        listed = self.refuse(3, "--json", env=homeless, words=words)
        found = json.loads(listed.stdout)
        self.assertEqual((found["devices"], f"clmgk-info: {found['message']}\n"), ([], listed.stderr))
        self.assertEqual(found["cache"]["path"], str(self.cache / "programs"))
        self.refuse(3, "--device", "no such device", words=["no such device"])

    def test_bad_usage(self):
        self.refuse(2, "--cache-clear", "--selftest", words=["--cache-clear", "--selftest"])
        self.refuse(2, "--cache-clear", "--device", "0:0", words=["--cache-clear", "--device"])
        self.refuse(2, "--tunables", "--device", "0:0", words=["--tunables", "--device"])
        self.refuse(2, "--tunables", "--cache-clear", words=["--tunables", "--cache-clear"])
        self.refuse(2, "--engine", "lane", words=["--engine", "--selftest"])
        self.refuse(2, "--selftest", "--engine", "tensor", words=["--engine", "lane", "simt"])
        self.refuse(2, "--nothing", words=["--nothing"])
        self.refuse(2, "word", words=["word"])


class Tuning(InfoTest):
    BUCKET = ("variant=softmax dtype=f32 score=dot estep=soft components=1 head=16 value=16 causal=0 window=0 packed=0 "
              "modified=0 few=0")

    def write(self, damage="", time=1, **changes):
        """A cache with one entry for the first device, which takes that part of half the defaults' time."""
        device = {**self.info()["devices"][0], **changes}
        text = {key: device[key].replace("\\", "\\\\").replace('"', '\\"')
                for key in ("name", "platform", "vendor", "driver", "architecture")}
        folder = self.cache / "tuning"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "tuning.txt").write_text(
            "clmgk-tuning 1\n"
            f'device id=1 name="{text["name"]}" platform="{text["platform"]}" driver="{text["driver"]}" '
            f'vendor="{text["vendor"]}" class={device["class"]} units={device["compute_units"]} '
            f'architecture="{text["architecture"]}"\n'
            f'entry device=1 date=2026-01-31T23:59:59Z operation="forward" choice="{device["engine"]}" '
            f'parameters="{"unroll=4" if device["engine"] == "lane" else "features=8"}" time_ns={time}000000 '
            f'default_ns=2000000 bucket="{self.BUCKET}" near="rows=7 keys=7 tasks=1"\n{damage}')

    def plan(self):
        """The parameters of a plan for the entry's shape on the first device, and the output of clmgk-bench."""
        device = self.info()["devices"][0]["selector"]
        plan = self.softmax(device)
        done = run("clmgk-bench", "--device", device, "--heads", 2, "--length", 96, "--head-size", 16, "--variants",
                   "softmax", "--seconds", 0.01, "--json", "--keep-caches",
                   env=self.environment(**small_buffers(1 << 25)))
        self.assertEqual(done.returncode, 0, done.stderr)
        case = json.loads(done.stdout)["cases"][0]
        self.assertEqual((case["tuning"], case["tuned"]), (plan["tuning"], plan["tuning"] != "class"))
        return plan

    def test_says_what_plans_do(self):
        """clmgk-info, clmgk-tune --show, clmgk-bench and plans agree on whose values serve."""
        defaults = self.plan()
        self.assertEqual(defaults["tuning"], "class")
        for changes, source, count, other_values in (
                ({}, "bucket", "current", True),
                ({"driver": "another"}, "architecture", "stale", True),
                ({"name": "another of its kind"}, "architecture", "stale", True),
                ({"architecture": "x86-64 avx512"}, "class", "passed_over", False),
                ({"time": 2}, "bucket", "current", False)):
            with self.subTest(changes):
                self.write(**changes)
                plan, device = self.plan(), self.info()["devices"][0]
                self.assertEqual(plan["tuning"], source)
                self.assertEqual(plan["parameters"] != defaults["parameters"], other_values)
                self.assertEqual(device["tuning"], {**device["tuning"], "current": 0, "stale": 0, "passed_over": 0,
                                                    count: 1})
                tuned = source != "class" or device["tuning"]["shipped"] > 0
                self.assertEqual(device["tuned"], tuned)
                text = self.accept("--device", device["selector"], env=self.environment()).stdout
                self.assertEqual(", tuned (" in text, tuned)
                self.assertEqual("not tuned (default parameters)" in text, not tuned)
                self.assertEqual("; 1 entry passed over: clmgk-tune --show says why" in text, source == "class")
                done = run("clmgk-tune", "--show", "--json", "--device", device["selector"], env=self.environment())
                shown = [entry for entry in json.loads(done.stdout)["entries"] if not entry["shipped"]]
                self.assertEqual([(entry["source"], entry["allowed"], entry["defaults"]) for entry in shown],
                                 [(source, source != "class", changes.get("time") == 2)])

    def test_current(self):
        self.write()
        found = self.info()
        self.assertTrue(found["devices"][0]["tuned"])
        self.assertEqual(found["devices"][0]["tuning"]["current"], 1)
        self.assertEqual(found["tuning_cache"]["entries"], 1)
        self.assertGreater(found["tuning_cache"]["bytes"], 0)
        self.assertIn(", tuned (measured here 1,", self.accept(env=self.environment()).stdout)

    def test_stale_and_damaged(self):
        self.write(driver="another", damage="nonsense\n")
        found = self.info()
        self.assertEqual(found["devices"][0]["tuning"]["stale"], 1)
        self.assertTrue(found["devices"][0]["tuned"])
        self.assertEqual(found["tuning_cache"]["damaged"], 1)
        self.assertIn("line 4", found["tuning_cache"]["message"])
        self.assertIn("1 damaged line is passed over: line 4", self.accept(env=self.environment()).stdout)

    def test_tunables(self):
        tables = {table["name"]: table for table in self.info("--tunables")["tables"]}
        self.assertLessEqual({"lane", "simt"}, set(tables))
        for table in tables.values():
            for tunable in table["tunables"]:
                self.assertEqual(list(tunable), ["name", "values", "cpu_default", "gpu_default", "meaning"])
                self.assertEqual(tunable["values"], sorted(set(tunable["values"])))
        self.assertEqual(tables["lane"]["constraints"],
                         ["tile % lanes == 0", "unit == 0 || (lanes == 16 && tile % 32 == 0 && vectors <= 2)"])
        text = self.accept("--tunables", env=self.environment()).stdout
        self.assertRegex(text, r"(?m)^    tile +16 32 64 128 256; default 64: keys of a tile$")
        self.assertRegex(text, r"(?m)^    splits +1 .*; default by device and shape: ")
        self.assertIn("    constraint: tile % lanes == 0\n", text)


class SelfTestAndCache(InfoTest):
    def check_lines(self, device, engine):
        """Each variant's line is printed at once; a terminal on standard error shows the variant under test."""
        read, write = pty.openpty()
        with subprocess.Popen([BIN / "clmgk-info", "--selftest", "--device", device], stdout=subprocess.PIPE, stderr=write,
                              env=self.environment(), text=True) as program:
            os.close(write)
            shown = b""
            for line in program.stdout:
                if not line.startswith("    softmax "):
                    continue
                self.assertIsNone(program.poll())
                shown += os.read(read, 4096)
                break
            lines = line + program.stdout.read()
        os.close(read)
        self.assertEqual(program.returncode, 0)
        self.assertIn(f"self-test: softmax, engine {engine} ...".encode(), shown)
        self.assertEqual(re.findall(rf"(?m)^    (\S+) +{engine} +right: error ", lines), list(VARIANTS))

    def test_selftest(self):
        device = self.info()["devices"][0]
        self.check_lines(device["selector"], device["engine"])
        # the SIMT engine's programs of all variants take PoCL minutes
        other = {"lane": "simt", "simt": "lane"}[device["engine"]]
        named = other if FULL else device["engine"]
        found = self.info("--selftest", "--engine", named, "--device", device["selector"])
        results = found["devices"][0]["selftest"]
        self.assertEqual([(result["variant"], result["engine"]) for result in results],
                         [(name, named) for name in VARIANTS])
        for result in results:
            self.assertTrue(result["ok"], result)
            self.assertLessEqual(result["error"], result["bound"])

    def test_clear(self):
        own = {"POCL_KERNEL_CACHE": "0"}  # the library's cache: PoCL would keep programs itself
        self.softmax(self.info()["devices"][0]["selector"], **own)
        found = self.info()
        self.assertGreater(found["cache"]["entries"], 0)
        self.assertGreater(found["cache"]["bytes"], 0)

        (self.cache / "tuning").mkdir()
        (self.cache / "tuning" / "kept").write_text("kept")
        removed = self.info("--cache-clear")["removed"]
        self.assertEqual({**removed, "message": None}, found["cache"])
        self.assertEqual(self.info()["cache"]["entries"], 0)
        self.assertEqual((self.cache / "tuning" / "kept").read_text(), "kept")
        self.assertIn("removed 0 programs", self.accept("--cache-clear", env=self.environment()).stdout)


if __name__ == "__main__":
    unittest.main()
