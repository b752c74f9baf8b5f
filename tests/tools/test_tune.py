# SPDX-License-Identifier: Apache-2.0
"""clmgk-tune: measurements, stored results, refusals; candidates that fail, hang, crash or compute wrong results."""
import fcntl
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import numpy as np

from program_test import BIN, FULL, LIMIT_S, QUICK, ProgramTest, run, wait_until_empty

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "cl"
LENGTH = 24  # so few queries that the other engine, whose programs take long to compile, is not looked at
SIZES = ["--heads", 2, "--length", LENGTH, "--head-size", 16]
SMALL = [*SIZES, "--variants", "softmax", "--pass", "forward"]
MACROS = {"lanes": "LANES", "vectors": "ROW_VECTORS", "panels": "PANELS", "tile": "TILE_KEYS", "block": "BLOCK_KEYS",
          "unroll": "UNROLL_PRODUCT"}


def words(text):
    """{name: value} of "name=value,..."."""
    return dict(word.split("=") for word in text.split(",") if word)


class TuneTest(ProgramTest):
    """Each test has its own caches."""

    program = "clmgk-tune"

    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"
        self.file = self.cache / "tuning/tuning.txt"
        self.environment = {**QUICK, "CLMGK_CACHE_DIR": str(self.cache)}

    def run_program(self, *args, **options):
        options.setdefault("env", self.environment)
        return super().run_program(*args, **options)

    def json(self, *args, **options):
        return json.loads(self.accept(*args, "--json", **options).stdout)

    def tune(self, *args, **options):
        return self.json(*args, **options)["devices"][0]

    def tune_until(self, enough, *args, budgets=(1, 4, 12, 36, 108), **options):
        for budget in budgets:  # as few as are enough: a machine may be busy, or a build slow
            found = self.tune(*args, "--budget", budget, "--resume", **options)
            if enough(found):
                break
        return found

    def tune_all(self, *args):
        """However slow the machine: each run goes on where the last one ended, and at least one case has its turn."""
        found = self.tune(*args, "--budget", 2)
        for _ in found["cases"]:
            if any(one["outcome"] == "unmeasured" for one in found["cases"]):
                found = self.tune(*args, "--budget", 1, "--resume")
        self.assertLessEqual({one["outcome"] for one in found["cases"]}, {"default", "faster"})
        return found

    def history(self):
        lines = next((self.cache / "tuning").glob("history-*")).read_text().splitlines()
        return [line for line in map(json.loads, lines) if line.get("parameters") and "outcome" not in line]

    def own_entries(self):
        return [entry for entry in self.json("--show")["entries"] if not entry["shipped"]]

    def plan(self, **environment):
        """What clmgk-run's plan takes for the shape of SMALL."""
        for name in ("q", "k", "v"):
            array = self.random.standard_normal((1, 2, LENGTH, 16), dtype=np.float32)
            np.save(self.folder / f"{name}.npy", array)
        done = run("clmgk-run", "--variant", "softmax", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out",
                   "o.npy", "--check", "--json", cwd=self.folder, env={**self.environment, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


class Measuring(TuneTest):
    def test_results(self):
        found = self.tune_all(*SIZES, "--variants", "softmax,mgk:1" if FULL else "softmax")
        cases = found["cases"]
        # forward before backward, and what costs less first: one head before two
        expected = [("mgk", "forward", 1), ("softmax", "forward", 2), ("mgk", "backward", 1), ("softmax", "backward", 2)]
        self.assertEqual([(one["variant"], one["pass"], one["heads"]) for one in cases], expected if FULL else expected[1::2])
        for one in cases:
            self.assertGreater(one["default_ms"], 0)
            self.assertTrue(one["ratio"] <= 0.97 if one["outcome"] == "faster" else one["ratio"] == 1, one)
        self.assertEqual(len(self.own_entries()), len(cases))
        for entry in self.own_entries():  # what gains less is not kept: the defaults are
            self.assertEqual(entry["defaults"], entry["time_ms"] == entry["default_ms"])
            self.assertTrue(not entry["defaults"] or entry["parameters"] == "")
        self.assertGreater(found["candidates"]["tried"], 0)
        self.assertEqual(found["candidates"]["wrong"], 0)
        self.assertEqual(self.plan()["tuning"], "bucket")
        shown = self.accept(*SMALL, "--budget", 0.01, "--resume")
        self.assertRegex(shown.stdout, "^clmgk-tune: 1 of 1: given softmax 2: .*\n.*geometric mean of the gain")

    def test_each_candidate_is_new_and_changes_one_parameter(self):
        self.tune_until(lambda found: found["candidates"]["tried"] > 4, *SMALL)
        lines = self.history()[:1] + [line for line in self.history() if line["best"] > 0 and not line["cached"]]  # 0: a proof
        seen = [words(line["parameters"]) for line in lines]
        self.assertGreater(len(seen), 3)
        for i, line in enumerate(lines[1:], 1):
            self.assertNotIn(seen[i], seen[1:i])
            self.assertLessEqual(words(line["change"]).items(), seen[i].items())
            self.assertTrue(any(sum(seen[i][name] != other[name] for name in other) == 1 for other in seen[:i]))

    @unittest.skipUnless(FULL, "in the full tier")
    def test_families_with_tables_of_their_own(self):
        found = self.tune_all("--length", LENGTH, "--head-size", 16, "--variants", "linear:2,softmax:1,hard-fish:2x3")
        self.assertEqual((len(found["cases"]), len(self.own_entries())), (6, 6))
        for line in self.history():
            names, variant = set(words(line["parameters"])), line["case"]["variant"]
            self.assertEqual({"chunk", "feature-block"} <= names, variant == "linear", line)
            self.assertEqual("heads" in names, variant == "hard-fish", line)
            self.assertFalse(variant == "linear" and line.get("change", "").split("=")[0] in ("tile", "block", "unroll"), line)


class Products(TuneTest):
    def test_providers(self):
        """In the full tier a stand-in for NVIDIA's driver emulates matrix units, whose parameters are searched, too."""
        # Attention that no device holds: all of the budget is for products. Making CLBlast's programs takes the most of it.
        args = ["--heads", 8, "--length", 64, "--length-k", 500000000, "--head-size", 16, "--variants", "softmax",
                "--pass", "forward", "--products", "33x65x17", "--candidate-limit", 300 if FULL else 60]
        if FULL:
            self.environment["OPENCL_LAYERS"] = str(BIN.parent / "lib/nvidia_layer.so")
        found = self.tune_until(lambda found: all(one["provider"] for one in found["products"]), *args,
                                budgets=(500,) if FULL else (5, 10, 20, 60))
        self.assertEqual([case["outcome"] for case in found["cases"]], ["refused"])
        entries = [entry for entry in self.own_entries() if entry["operation"] == "gemm"]
        layouts = {(one["transpose_a"], one["transpose_b"]): one for one in found["products"]}
        self.assertEqual(set(layouts), {(False, False), (False, True), (True, False)})
        for (a, b), one in layouts.items():
            self.assertEqual((one["m"], one["n"], one["k"]), (33, 65, 17))
            self.assertGreater(one["ms"][one["provider"]], 0)
            self.assertTrue(one["ms"]["matrix"] if FULL else "matrix" not in one["ms"])
            self.assertLessEqual(one["ratio"], 1)
            self.assertNotIn("unit=0", one["parameters"])
            kept = [entry for entry in entries if f"a={'nt'[a]} b={'nt'[b]} m=5 n=6 k=4" in entry["bucket"]]
            self.assertEqual([(entry["choice"], entry["parameters"]) for entry in kept], [(one["provider"], one["parameters"])])


class ChangedKernels(TuneTest):
    """Kernels in which the default parameters, or all others, behave otherwise."""

    def change(self, text):
        """The forward kernel begins with `text`, where DEFAULTS tells whether its parameters are those."""
        parameters = words(self.plan()["parameters"])
        same = " && ".join(f"{macro} == {parameters[name]}" for name, macro in MACROS.items())
        kernels = self.folder / "kernels"
        shutil.copytree(KERNELS, kernels)
        source = (kernels / "mixture/forward.cl").read_text()
        start = "    if (a.length == 0)\n        return;\n"
        self.assertEqual(source.count(start), 1)
        text = f"#define DEFAULTS ({same})\n#if !BLOCK_REGISTERS\n{text}\n#endif\n"
        (kernels / "mixture/forward.cl").write_text(source.replace(start, text + start))
        return {**self.environment, "CLMGK_KERNEL_DIR": str(kernels)}

    @unittest.skipUnless(FULL, "in the full tier")
    def test_winner_is_kept(self):
        """Two changes gain, one after the other. The proof goes through a plan that finds the entry by itself."""
        environment = self.change("    for (volatile int spin = 0; spin < 400000 * ((ROW_VECTORS != 1) + (PANELS != 2)); "
                                  "++spin)\n        ;")
        wanted = {"vectors": "1", "panels": "2"}.items()
        found = self.tune_until(lambda found: wanted <= words(found["cases"][0]["parameters"] or "").items(), *SMALL,
                                budgets=(4, 16, 64, 128), env=environment)
        case = found["cases"][0]
        self.assertEqual(case["outcome"], "faster")
        self.assertLessEqual(wanted, words(case["parameters"]).items())
        entry = self.own_entries()[0]
        self.assertEqual((entry["defaults"], entry["source"]), (False, "bucket"))
        self.assertAlmostEqual(entry["time_ms"] / entry["default_ms"], case["ratio"], places=4)
        plan = self.plan(CLMGK_KERNEL_DIR=environment["CLMGK_KERNEL_DIR"])
        self.assertLessEqual(words(case["parameters"]).items(), words(plan["parameters"]).items())

    def check(self, wanted, text, *args, budgets=(1, 4, 12, 36, 108)):
        """Candidates that begin with `text` end as wanted."""
        environment = self.change(f"#if !DEFAULTS\n{text}\n#endif")
        found = self.tune_until(lambda found: found["candidates"][wanted] > 0, *SMALL, *args, budgets=budgets, env=environment)
        counts = found["candidates"]
        self.assertGreater(counts[wanted], 0, counts)
        for name in {"hung", "crashed", "wrong"} - {wanted}:  # some fail that are not for this device
            self.assertEqual(counts[name], 0, counts)
        for chosen in (found["cases"][0], *self.own_entries()):  # others may be faster than the defaults
            self.assertTrue(MACROS.keys().isdisjoint(words(chosen["parameters"])), chosen)

    def test_does_not_compile(self):
        self.check("failed", "#error this candidate does not compile")

    def test_hangs(self):
        start = time.monotonic()
        self.plan()
        limit = max(1.5, 5 * (time.monotonic() - start))  # on a busy machine a candidate takes longer, too
        self.check("hung", "    for (volatile int forever = 1; forever;)\n        ;", "--candidate-limit", limit,
                   budgets=[3 * limit, 9 * limit, 27 * limit])

    def test_crashes(self):
        self.check("crashed", "    *(volatile __global int *)8 = 1;")

    def test_computes_nothing_and_is_fast(self):
        self.check("wrong", "    return;")


class Resuming(TuneTest):
    # So many that time is left after the first, however slow a machine is: each has its part of the budget.
    VARIANTS = [f"{name}:{heads}" for heads in range(1, 6) for name in ("softmax", "gaussian", "mgk")]
    CASES = ["--length", LENGTH, "--head-size", 16, "--variants", ",".join(VARIANTS), "--dtype", "f32,f16"]
    COUNT = 4 * len(VARIANTS)  # both passes

    def stop(self, number):
        """Ends a run after its first case; what it says then."""
        command = [str(word) for word in (BIN / self.program, *self.CASES, "--budget", 2 * self.COUNT)]
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as process:
            self.assertIn(f"{self.COUNT} cases, budget", process.stderr.readline())  # before anything takes time
            self.assertTrue(any(f"1 of {self.COUNT}: " in line and "no result" not in line for line in process.stderr))
            process.send_signal(number)
            rest = process.stderr.read()
            self.assertEqual(process.wait(LIMIT_S), -number)
            return rest

    def test_interrupt(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        self.environment["TMPDIR"] = str(scratch)
        self.assertIn("--resume", self.stop(signal.SIGINT))
        self.assertTrue(wait_until_empty(scratch))  # nothing is left behind
        self.assertTrue(self.own_entries())

    def test_killed_damaged_and_resumed(self):
        """The first case is known from the start; the others have their turn before it is looked at any closer."""
        self.stop(signal.SIGKILL)
        before, history = self.own_entries(), next((self.cache / "tuning").glob("history-*"))
        whole = history.read_bytes()
        history.write_bytes(whole + b'{"case": "half a li')
        done = self.accept(*self.CASES, "--budget", 1, "--resume", "--json")
        self.assertTrue(history.read_bytes().startswith(whole))
        first = next(line for line in done.stderr.splitlines() if f" of {self.COUNT}: " in line)
        self.assertRegex(first, f"1 of {self.COUNT}: .*; 0 tried")
        case = json.loads(done.stdout)["devices"][0]["cases"][0]
        self.assertIn(case["outcome"], ("default", "faster"))
        self.assertGreater(case["default_ms"], 0)
        self.assertLessEqual({entry["bucket"] for entry in before}, {entry["bucket"] for entry in self.own_entries()})


class Cache(TuneTest):
    """What is done with a cache. One run of clmgk-tune makes it; each test has a copy."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.tuned = pathlib.Path(folder.name) / "cache"
        run(cls.program, *SMALL, "--budget", 1, env={**QUICK, "CLMGK_CACHE_DIR": str(cls.tuned)})

    def setUp(self):
        super().setUp()
        shutil.copytree(self.tuned, self.cache)

    @staticmethod
    def changed(text, parameters, share):
        text = re.sub('parameters="[^"]*"', f'parameters="{parameters}"', text)
        return re.sub(r"time_ns=\d+ default_ns=\d+", f"time_ns={round(1000000 * share)} default_ns=1000000", text)

    def measure_as(self, parameters, share):
        self.file.write_text(self.changed(self.file.read_text(), parameters, share))

    def test_export_import_reset(self):
        before = self.own_entries()
        self.assertEqual(len(before), 1)
        self.accept("--export", "all.txt", "--all-devices")
        self.accept("--reset")
        self.assertEqual(self.own_entries(), [])
        self.assertEqual(self.json("--import", "all.txt")["taken"], 1)
        self.assertEqual(self.own_entries(), before)
        good = (self.folder / "all.txt").read_text()
        text = self.changed(good, "unroll=8", 0.9)
        (self.folder / "all.txt").write_text(text.replace("date=20", "date=21"))
        self.accept("--import", "all.txt")
        plan = self.plan()
        self.assertEqual((plan["tuning"], words(plan["parameters"])["unroll"]), ("bucket", "8"))
        # each kind of wrong line: tests/tuning
        for bad in ("", "not a cache\n", good[: len(good) - 30], good.replace('vendor="', 'vendor="\udcff'),
                    text.replace("unroll=8", "unroll=3")):
            (self.folder / "bad.txt").write_bytes(os.fsencode(bad))
            self.refuse(2, "--import", "bad.txt", words=["bad.txt"])

    def test_edited_values(self):
        defaults = self.plan(CLMGK_CACHE_DIR="")["parameters"]
        for share in (0.98, 1.2):  # small gains and losses are the defaults
            self.measure_as("unroll=8", share)
            self.assertIn("GAINS LESS THAN 3 %: the defaults are used", self.accept("--show").stdout)
            plan = self.plan()
            self.assertEqual((plan["tuning"], plan["parameters"]), ("bucket", defaults))
        self.measure_as("tile=3", 0.5)
        self.assertRegex(self.accept("--show").stdout, "PASSED OVER.*tile")
        self.assertEqual(self.plan()["tuning"], "class")
        self.tune(*SMALL, "--budget", 1)  # measures again and replaces it
        self.assertNotIn("PASSED OVER", self.accept("--show").stdout)

    def test_no_files_and_unwritable(self):
        environment = {**self.environment, "CLMGK_CACHE_DIR": ""}
        for args in (["--budget", 1], ["--reset"], ["--import", "x"]):
            self.refuse(2, *args, env=environment, words=["CLMGK_CACHE_DIR"])
        self.assertIn("no files", self.accept("--show", env=environment).stdout)
        (self.folder / "file").write_text("in the way")
        for path in (self.folder / "file", pathlib.Path("/proc/clmgk")):
            self.refuse(4, *SMALL, "--budget", 1, env={**self.environment, "CLMGK_CACHE_DIR": str(path)}, words=[str(path)])

    def test_two_at_once(self):
        with next((self.cache / "tuning").glob("history-*")).open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            done = self.run_program(*SMALL, "--budget", 1)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("another clmgk-tune", done.stderr)

    def test_full_disk_keeps_what_was_measured(self):
        before = self.own_entries()
        size = 40 + max(path.stat().st_size for path in (self.cache / "tuning").iterdir())
        # A small limit stops the programs' cache of drivers, too: their files are left alone by --resume of a done case.
        done = self.run_program("--heads", 1, "--length", LENGTH, "--head-size", 16, "--variants", "softmax,gaussian",
                                "--pass", "forward", "--budget", 4, "--resume",
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertEqual(done.stderr.splitlines()[-1].count("clmgk-tune: "), 1, done.stderr)
        for entry in before:
            self.assertIn(entry, self.own_entries())


class Files(TuneTest):
    """Files of all kinds, without measuring."""

    def setUp(self):
        super().setUp()
        (self.folder / "in.txt").write_text("clmgk-tuning 1\n")
        self.accept("--import", "in.txt")

    def test_imports_that_are_no_files(self):
        os.mkfifo(self.folder / "fifo")  # nobody writes into it: it is not waited for
        (self.folder / "large.txt").touch()
        os.truncate(self.folder / "large.txt", (16 << 20) + 1)
        for name, word in (("absent.txt", "No such file"), ("fifo", "not a regular file"),
                           ("large.txt", "expected at most 16777216")):
            self.refuse(2, "--import", name, words=[f"--import {name}: ", word])

    def test_caches_that_cannot_be_read(self):
        """Their entries are not known, which is not the same as none. Of a damaged file the other lines are."""
        for text, mode, reason in (("1\n", 0o666, "tuning.txt: expected a regular file that belongs to the user"),
                                   ("2\n", 0o600, "a format other than 1"), ("1\nentry cut\n", 0o600, "line 2: ")):
            self.file.write_text("clmgk-tuning " + text)
            self.file.chmod(mode)
            found = self.json("--show")
            damaged = "cut" in text
            self.assertEqual((found["damaged"], self.own_entries()), (int(damaged), []))
            self.assertIn(reason, found["message"])
            if damaged:
                self.accept("--export", "out.txt")
            else:
                self.refuse(4, "--export", "out.txt", words=["the tuning cache can't be read: ", reason])
            for shown in (self.accept("--show").stdout, run("clmgk-info", env=self.environment).stdout):
                self.assertRegex(shown, f"    {'1 damaged line' if damaged else 'it'} is passed over: .*{reason}")
                self.assertNotIn("\nno entries", shown)

    def test_an_export_does_not_replace_the_cache_or_follow_links_of_others(self):
        (self.folder / "soft.txt").symlink_to(self.file)
        for name in (self.file, self.file.parent / "../tuning/tuning.txt", "soft.txt"):
            self.refuse(2, "--export", name, words=[f"--export {name}: is the tuning cache's own file"])
        self.accept("--export", "other.txt")
        self.refuse(4, "--export", self.foreign_link("x.txt", "../other.txt"), words=["is a link of user 12346"])


class Usage(TuneTest):
    def test_usage(self):
        self.assertIn("--candidate-limit", self.accept("--help").stdout)
        self.assertIn("clmgk-tune", self.accept("--version").stdout)
        for line in ("--budget 0", "--budget soon", "--candidate-limit -1", "--shapes round", "--variants hardmax",
                     "--suite quick --shapes long", "--products 3x4", "--products 3x4x0", "--show --budget 3", "--show --reset",
                     "--show --products 8x8x8", "--import x --device pocl", "--device pocl --all-devices", "--reset --heads 2"):
            with self.subTest(line):
                self.refuse(2, *line.split(), words=re.findall("--[a-z-]+", line))
        self.refuse(2, "--heads", 3, words=["--length"])
        self.refuse(3, *SMALL, env={**self.environment, "OCL_ICD_VENDORS": str(self.folder)})
        self.refuse(3, "--device", "nothing of the kind", *SMALL)


if __name__ == "__main__":
    unittest.main()
