# SPDX-License-Identifier: Apache-2.0
"""Caching of compiled programs by PoCL, by this library, or not at all; nothing is compiled twice."""
import collections
import json
import os
import subprocess
import unittest

from program_test import BIN, QUICK, RunTest

NOBODY = 65534


class CacheTest(RunTest):
    def setUp(self):
        super().setUp()
        self.drivers, self.own = self.folder / "driver", self.folder / "own"
        self.drivers.mkdir()
        self.save("grad", self.normal(2, 4, 5, 6))
        if int(self.info()["driver"].split(".")[0]) < 3:
            self.skipTest("a PoCL whose cache is not known")

    def environment(self, **changes):
        kept = {name: value for name, value in QUICK.items() if not name.startswith("POCL_KERNEL")}
        return {**kept, "CLMGK_DEVICE": "portable computing", "POCL_CACHE_DIR": str(self.drivers),
                "CLMGK_CACHE_DIR": str(self.own), **changes}

    def info(self, **changes):
        done = subprocess.run([BIN / "clmgk-info", "--json", "--device", "portable computing"],
                              env=self.environment(**changes), capture_output=True, text=True, check=False)
        if done.returncode == 3:
            self.skipTest("no PoCL")
        return json.loads(done.stdout)["devices"][0]

    def keeper(self, **changes):
        return self.info(**changes)["programs_kept_by"]

    def run_both(self, **changes):
        """A run of both passes: where its programs came from, what it wrote, and why a program is not kept."""
        return self.run_passes({"out": "o.npy", "dq": "dq.npy", "dk": "dk.npy"}, "grad.npy", **changes)

    def run_forward(self, **changes):
        return self.run_passes({"out": "o.npy"}, None, **changes)

    def run_passes(self, outputs, gradient, **changes):
        command = self.arguments(grad_out=gradient, json=True, **outputs)
        done = self.accept(*command, env=self.environment(**changes))
        result = json.loads(done.stdout)
        written = [(self.folder / name).read_bytes() for name in outputs.values()]
        return result["program"], written, result["cache_note"]

    def compiled(self):
        """What PoCL has compiled, with times: a file for each kernel and local size, and one for each program."""
        return {path.relative_to(self.drivers): path.stat().st_mtime_ns
                for path in self.drivers.rglob("*") if path.suffix == ".so" or path.name == "program.bc"}


class KeptByTheDriver(CacheTest):
    def test_each_kernel_is_compiled_once(self):
        """The second process compiles nothing, and the library writes no file."""
        self.assertEqual(self.keeper(), "driver")
        first = self.run_both()
        before = self.compiled()
        kernels = collections.Counter(path.name for path in before if path.suffix == ".so")
        self.assertLessEqual({"mixture_forward.so", "mixture_backward.so"}, set(kernels))
        self.assertEqual(set(kernels.values()), {1}, kernels)
        second = self.run_both()
        self.assertEqual((first[0], second[0]), ("built", "built"))
        self.assertEqual(first[1:], second[1:])
        self.assertEqual(first[2], "")
        self.assertEqual(self.compiled(), before)
        self.assertFalse(self.own.exists())
        self.assertEqual(self.keeper(CLMGK_CACHE_DIR=""), "driver")

    def test_where_its_folder_lies(self):
        for changes in ({"XDG_CACHE_HOME": str(self.folder / "xdg")},
                        {"XDG_CACHE_HOME": "", "HOME": str(self.folder / "home")}):
            environment = self.environment(**changes)
            del environment["POCL_CACHE_DIR"]
            done = subprocess.run([BIN / "clmgk-info", "--json", "--device", "portable computing"], env=environment,
                                  capture_output=True, text=True, check=True)
            self.assertEqual(json.loads(done.stdout)["devices"][0]["programs_kept_by"], "driver", changes)


class KeptByTheLibrary(CacheTest):
    def test_driver_keeps_nothing(self):
        off = {"POCL_KERNEL_CACHE": "0"}
        self.assertEqual(self.keeper(**off), "library")
        first, second = self.run_both(**off), self.run_both(**off)
        self.assertEqual((first[0], second[0]), ("built", "disk"))
        self.assertEqual(first[1:], second[1:])
        self.assertEqual(first[2], "")
        self.assertGreater(len(list((self.own / "programs").glob("*.bin"))), 0)
        self.assertEqual(first[1], self.run_both()[1])

    def test_nobody_keeps_anything(self):
        nothing = {"POCL_KERNEL_CACHE": "0", "CLMGK_CACHE_DIR": ""}
        self.assertEqual(self.keeper(**nothing), "nobody")
        first = self.run_forward(**nothing)
        self.assertIn("no files are used", first[2])
        self.assertFalse(self.own.exists())
        # a cache that cannot be written: the same, and the reason
        second = self.run_forward(**nothing | {"CLMGK_CACHE_DIR": "/dev/null"})
        self.assertEqual((first[0], second[0]), ("built", "built"))
        self.assertEqual(first[1], second[1])
        self.assertEqual(second[2], "/dev/null/programs: Not a directory")


class FolderThatCannotBeWritten(CacheTest):
    """PoCL compiles nothing without its folder, so the library can only report that."""

    def as_nobody(self, *command):
        # Permissions do not stop root.
        other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self.folder.chmod(0o755)
        try:
            # The leak checker of a sanitizer's build can't look into a process of another user.
            environment = self.environment(HOME=str(self.folder),
                                           ASAN_OPTIONS="detect_leaks=0:intercept_tls_get_addr=0")
            return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False,
                                  **other)
        except PermissionError:
            return self.skipTest("programs that others can't reach")

    def test_it_is_told(self):
        self.drivers.chmod(0o555)
        done = self.as_nobody(BIN / "clmgk-info", "--json", "--device", "portable computing")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["devices"][0]["programs_kept_by"], "library")

        q, k, v = (self.folder / name for name in ("q.npy", "km.npy", "v.npy"))
        out = self.folder / "out"
        out.mkdir()
        out.chmod(0o777)
        done = self.as_nobody(BIN / "clmgk-run", "--variant", "mgk", "--q", q, "--k", k, "--v", v,
                              "--out", out / "o.npy")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("POCL_CACHE_DIR", done.stderr)
        self.assertEqual(list(out.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
