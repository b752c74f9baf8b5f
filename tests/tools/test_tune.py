# SPDX-License-Identifier: Apache-2.0
"""clmgk-tune: measurements, stored results, refusals; candidates that fail, hang, crash or compute wrong results."""
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

from program_test import BIN, FULL, LIMIT_S, QUICK, ProgramTest, run, small_buffers, wait_until_empty

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "cl"
LENGTH = 24  # so few queries that the other engine, whose programs take long to compile, is not looked at
SIZES = ["--heads", 2, "--length", LENGTH, "--head-size", 16]
SMALL = [*SIZES, "--variants", "softmax", "--pass", "forward"]
MACROS = {"lanes": "LANES", "vectors": "ROW_VECTORS", "panels": "PANELS", "tile": "TILE_KEYS", "block": "BLOCK_KEYS",
          "unroll": "UNROLL_PRODUCT"}


class TuneTest(ProgramTest):
    """Each test has its own caches."""

    program = "clmgk-tune"

    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"
        self.environment = {**QUICK, "CLMGK_CACHE_DIR": str(self.cache)}

    @property
    def file(self):
        return self.cache / "tuning" / "tuning.txt"

    def run_program(self, *args, **options):
        options.setdefault("env", self.environment)
        return super().run_program(*args, **options)

    def tune(self, *args, **options):
        return json.loads(self.accept(*args, "--json", **options).stdout)["devices"][0]

    def tune_until(self, enough, *args, budgets=(1, 4, 12, 36), **options):
        """With the smallest budget of a few that is enough: a machine may be busy, or a build slow. Any budget does for one
        case, and a few candidates."""
        for budget in budgets:
            found = self.tune(*args, "--budget", budget, **options)
            if enough(found):
                break
        return found

    def tune_all(self, *args, budget=2):
        """However slow the machine: each run goes on where the last one ended, and at least one case has its turn. A run
        that has time for all cases makes its worker's programs once."""
        found = self.tune(*args, "--budget", budget)
        for _ in found["cases"]:
            self.assertEqual(found["candidates"]["wrong"], 0, found["candidates"])
            if all(one["outcome"] != "unmeasured" for one in found["cases"]):
                break
            found = self.tune(*args, "--budget", 1, "--resume")
        return found

    def bench(self, *args, **environment):
        """The cases of a moment of clmgk-bench."""
        done = run("clmgk-bench", *args, "--seconds", 0.01, "--json",
                   env={**self.environment, **small_buffers(1 << 25), **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["cases"]

    def entries(self):
        return json.loads(self.accept("--show", "--json").stdout)["entries"]

    def own_entries(self):
        return [entry for entry in self.entries() if not entry["shipped"]]

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
            self.assertIn(one["outcome"], ("default", "faster"))
            self.assertGreater(one["default_ms"], 0)
            self.assertLessEqual(one["ratio"], 1)
            self.assertEqual(one["outcome"] == "faster", one["ratio"] <= 0.97)
            self.assertTrue(one["outcome"] == "faster" or one["ratio"] == 1)
            self.assertIn(one["engine"], ("lane", "simt"))
        self.assertEqual(len(self.own_entries()), len(cases))
        for entry in self.own_entries():  # what gains less is not kept: the defaults are
            self.assertEqual(entry["defaults"], entry["time_ms"] == entry["default_ms"])
            self.assertTrue(not entry["defaults"] or entry["parameters"] == "")
        self.assertGreater(found["candidates"]["tried"], 0)
        self.assertGreaterEqual(found["geometric_mean_speedup"], 1)
        self.assertEqual(self.plan()["tuning"], "bucket")

    def test_text_and_nothing_else_is_left_behind(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        done = self.accept(*SMALL, "--budget", 1, env={**self.environment, "TMPDIR": str(scratch)})
        self.assertEqual(list(scratch.iterdir()), [])
        for word in ("  given softmax 2: ", "geometric mean", "cases of attention: ", "candidates: "):
            self.assertIn(word, done.stdout)
        self.assertIn("1 of 1: given softmax 2", done.stderr)
        self.assertIn("variant=softmax", self.accept("--show").stdout)


class Families(TuneTest):
    """Kernels with tables of tunables of their own."""

    def history(self):
        """The candidates: pairs of a case and its parameters' names."""
        lines = next((self.cache / "tuning").glob("history-*")).read_text().splitlines()
        return [(record["case"], {word.split("=")[0] for word in record["parameters"].split(",")})
                for record in map(json.loads, lines) if "done" not in record]

    @unittest.skipUnless(FULL, "in the full tier")
    def test_admixture(self):
        sizes = ["--length", LENGTH, "--head-size", 16]
        variants = ["--variants", "softmax:1,hard-fish:2x3"]
        found = self.tune_all(*sizes, *variants)
        self.assertEqual([(one["variant"], one["components"], one["heads"]) for one in found["cases"]],
                         2 * [("softmax", 1, 1), ("hard-fish", 2, 3)])
        for one in found["cases"]:
            self.assertIn(one["outcome"], ("default", "faster"))
        for case, names in self.history():
            self.assertEqual("heads" in names, case["variant"] == "hard-fish", (case, names))
        cases = self.bench(*sizes, *variants, "--keep-caches")
        self.assertEqual({case["tuning"] for case in cases}, {"bucket"})

    def test_linear(self):
        """Its table leaves out the parameters of softmax's blocks."""
        passes = ["forward", "backward"] if FULL else ["forward"]
        sizes = ["--length", LENGTH, "--head-size", 16, "--variants", "linear:2"]
        found = self.tune_all(*sizes, "--pass", "both" if FULL else "forward")
        self.assertEqual([one["pass"] for one in found["cases"]], passes)
        for one in found["cases"]:
            self.assertIn(one["outcome"], ("default", "faster"))
            self.assertEqual((one["feature"], one["features"], one["state"]), ("elu1", 16, None))
        self.assertTrue(self.history())
        for case, names in self.history():
            self.assertLessEqual({"splits", "chunk", "feature-block"}, names)
            self.assertTrue(names.isdisjoint({"tile", "block", "unroll", "keys", "values"}), case)
        self.assertEqual([case["tuning"] for case in self.bench(*sizes, "--keep-caches")], ["bucket"])


class Products(TuneTest):
    # Attention that no device holds: all of the budget is for products.
    ALONE = ["--heads", 8, "--length", 64, "--length-k", 500000000, "--head-size", 16, "--variants", "softmax",
             "--pass", "forward", "--products", "33x65x17"]

    def test_providers(self):
        found = self.tune_until(lambda found: all(one["provider"] for one in found["products"]), *self.ALONE,
                                budgets=(5, 10, 20, 60))  # making CLBlast's programs takes the most of it
        self.assertEqual([case["outcome"] for case in found["cases"]], ["refused"])
        entries = [entry for entry in self.own_entries() if entry["operation"] == "gemm"]
        layouts = {(one["transpose_a"], one["transpose_b"]): one for one in found["products"]}
        self.assertEqual(set(layouts), {(False, False), (False, True), (True, False)})
        for (a, b), one in layouts.items():
            self.assertEqual((one["m"], one["n"], one["k"]), (33, 65, 17))
            self.assertGreater(one["ms"][one["provider"]], 0)
            self.assertLessEqual(one["ratio"], 1)
            bucket = f"a={'nt'[a]} b={'nt'[b]} m=5 n=6 k=4"
            self.assertEqual([entry["choice"] for entry in entries if bucket in entry["bucket"]], [one["provider"]])

    @unittest.skipUnless(FULL, "in the full tier")
    def test_matrix_units(self):
        """A stand-in for NVIDIA's driver emulates matrix units: their parameters are searched for each product."""
        self.environment["OPENCL_LAYERS"] = str(BIN.parent / "lib/nvidia_layer.so")
        found = self.tune(*self.ALONE, "--budget", 500, "--candidate-limit", 300)
        tried = [one for one in found["products"] if one["tried"]]
        self.assertTrue(tried)
        for one in tried:
            self.assertGreater(one["ms"]["matrix"], 0)
            self.assertTrue(one["parameters"] == "" or "unit=0" not in one["parameters"])
        chosen = {one["parameters"] for one in tried if one["provider"] == "matrix"}
        kept = {entry["parameters"] for entry in self.own_entries() if entry["choice"] == "matrix"}
        self.assertTrue(chosen <= kept, (chosen, kept))


class ChangedKernels(TuneTest):
    """Kernels in which the default parameters, or all others, behave otherwise."""

    def change(self, text, defaults):
        """The forward kernel begins with `text` where its parameters are the defaults, or where they are not."""
        parameters = dict(word.split("=") for word in self.plan()["parameters"].split(","))
        same = " && ".join(f"{macro} == {parameters[name]}" for name, macro in MACROS.items())
        kernels = self.folder / "kernels"
        shutil.copytree(KERNELS, kernels)
        source = (kernels / "mixture/forward.cl").read_text()
        start = "    if (a.length == 0)\n        return;\n"
        self.assertEqual(source.count(start), 1)
        condition = f"#if !BLOCK_REGISTERS && {'' if defaults else '!'}({same})\n{text}\n#endif\n"
        (kernels / "mixture/forward.cl").write_text(source.replace(start, condition + start))
        return {**self.environment, "CLMGK_KERNEL_DIR": str(kernels)}

    @unittest.skipUnless(FULL, "in the full tier")
    def test_winner_is_kept(self):
        """The proof goes through a plan that finds the entry by itself."""
        environment = self.change("    for (volatile int spin = 0; spin < 1000000; ++spin)\n        ;", defaults=True)
        found = self.tune_until(lambda found: found["cases"][0]["outcome"] == "faster", *SMALL, env=environment)
        case = found["cases"][0]
        self.assertEqual(case["outcome"], "faster", found)
        self.assertLess(case["ratio"], 0.97)
        entries = self.own_entries()
        self.assertEqual([(entry["defaults"], entry["source"]) for entry in entries], [(False, "bucket")])
        self.assertAlmostEqual(entries[0]["time_ms"] / entries[0]["default_ms"], case["ratio"], places=4)
        plan = self.plan(CLMGK_KERNEL_DIR=environment["CLMGK_KERNEL_DIR"])
        self.assertEqual(plan["tuning"], "bucket")
        self.assertLessEqual(set(filter(None, case["parameters"].split(","))), set(plan["parameters"].split(",")))

    def check(self, wanted, text, *args, budgets=(1, 4, 12, 36)):
        """Candidates that begin with `text` end as wanted."""
        environment = self.change(text, defaults=False)
        found = self.tune_until(lambda found: found["candidates"][wanted] > 0, *SMALL, *args, budgets=budgets, env=environment)
        self.assertEqual(found["cases"][0]["outcome"], "default")
        self.assertEqual([entry["parameters"] for entry in self.own_entries()], [""])
        counts = found["candidates"]
        self.assertGreater(counts[wanted], 0, counts)
        for name in {"hung", "crashed", "wrong"} - {wanted}:  # some fail that are not for this device
            self.assertEqual(counts[name], 0, counts)

    @unittest.skipUnless(FULL, "in the full tier")
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

    def start(self, *args, **options):
        return subprocess.Popen([str(BIN / self.program), *map(str, args)], cwd=self.folder, env=self.environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)

    @staticmethod
    def wait_for(stream, word):
        for line in stream:
            if word in line:
                return
        raise AssertionError(f"no '{word}'")

    def check_resumed(self):
        """The first case is known from the start; the others have their turn before it is looked at any closer."""
        done = self.accept(*self.CASES, "--budget", 1, "--resume", "--json")
        first = next(line for line in done.stderr.splitlines() if f" of {self.COUNT}: " in line)
        self.assertIn(f"1 of {self.COUNT}", first)
        self.assertIn("; 0 tried", first)
        case = json.loads(done.stdout)["devices"][0]["cases"][0]
        self.assertIn(case["outcome"], ("default", "faster"))
        self.assertGreater(case["default_ms"], 0)

    def test_interrupt_and_resume(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        self.environment["TMPDIR"] = str(scratch)
        with self.start(*self.CASES, "--budget", 2 * self.COUNT) as process:
            self.assertIn(f"{self.COUNT} cases, budget", process.stderr.readline())  # before anything takes time
            self.wait_for(process.stderr, f"1 of {self.COUNT}: ")
            process.send_signal(signal.SIGINT)
            self.assertIn("--resume", process.stderr.read())
            self.assertEqual(process.wait(LIMIT_S), -signal.SIGINT)
        self.assertTrue(wait_until_empty(scratch))
        before = self.own_entries()
        self.assertTrue(before)
        if FULL:  # else the next test's
            self.check_resumed()
        self.assertLessEqual({entry["bucket"] for entry in before}, {entry["bucket"] for entry in self.own_entries()})

    def test_killed_and_damaged(self):
        with self.start(*self.CASES, "--budget", 2 * self.COUNT) as process:
            self.wait_for(process.stderr, f"1 of {self.COUNT}: ")
            process.kill()
            process.stderr.read()
        history = next((self.cache / "tuning").glob("history-*"))
        whole = history.read_bytes()
        history.write_bytes(whole + b'{"case": "half a li')
        self.check_resumed()
        self.assertTrue(history.read_bytes().startswith(whole))

    def test_two_at_once(self):
        with self.start(*self.CASES, "--budget", 600) as process:
            while process.poll() is None and not list((self.cache / "tuning").glob("history-*")):
                time.sleep(0.02)
            done = self.run_program(*SMALL, "--budget", 1)
            process.kill()
            process.stderr.read()
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("another clmgk-tune", done.stderr)
        self.tune(*SMALL, "--budget", 1)  # the lock went with its process


class Cache(TuneTest):
    """What is done with a cache. One run of clmgk-tune makes it; each test has a copy."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.tuned = pathlib.Path(folder.name) / "cache"
        done = run(cls.program, *SMALL, "--budget", 1, env={**QUICK, "CLMGK_CACHE_DIR": str(cls.tuned)})
        if done.returncode != 0:
            raise AssertionError(done.stderr)

    def setUp(self):
        super().setUp()
        shutil.copytree(self.tuned, self.cache)

    @staticmethod
    def changed(text, parameters, share):
        """An entry's text with other parameters, which take that share of the defaults' time."""
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
        taken = json.loads(self.accept("--import", "all.txt", "--json").stdout)
        self.assertEqual(taken["taken"], 1)
        self.assertEqual(self.own_entries(), before)
        text = self.changed((self.folder / "all.txt").read_text(), "unroll=8", 0.9)
        (self.folder / "all.txt").write_text(text.replace("date=20", "date=21"))
        self.accept("--import", "all.txt")
        plan = self.plan()
        self.assertEqual(plan["tuning"], "bucket")
        self.assertIn("unroll=8", plan["parameters"].split(","))

    def origin_with(self, folder):
        return self.bench(*SMALL, "--keep-caches", CLMGK_PROGRAM_DIR=str(folder))[0]["program"]

    def test_programs_made_ahead(self):
        """Those of a machine that was tuned so, and of others."""
        folder = self.folder / "shipped"
        self.measure_as("unroll=8", 0.9)
        done = self.accept(*SMALL, "--programs", folder)
        self.assertIn("2 programs of 2 plans", done.stdout)
        self.assertIn("1 of 1: given softmax 2", done.stderr)
        files = list(folder.iterdir())
        self.assertEqual([path.suffix for path in files], [".bin", ".bin"])
        self.assertFalse((self.cache / "programs").exists())
        self.assertEqual(self.origin_with(folder), "shipped")
        self.file.unlink()
        self.assertEqual(self.origin_with(folder), "shipped")
        found = json.loads(self.accept(*SMALL, "--programs", folder, "--json").stdout)
        self.assertEqual(found["folder"], str(folder))
        self.assertEqual([found["devices"][0][key] for key in ("plans", "refused", "programs")], [1, 0, 1])
        for path in files:
            path.write_bytes(b"damaged")
        self.assertEqual(self.origin_with(folder), "built")
        self.refuse(4, *SMALL, "--programs", "/dev/null/x", words=["/dev/null/x"])

    def test_bad_imports_change_nothing(self):
        """Each kind of wrong line: tests/tuning."""
        self.accept("--export", "good.txt")
        good = (self.folder / "good.txt").read_text()
        bad = {"empty": "", "text": "not a cache\n", "cut": good[: len(good) - 30], "bytes": good.replace('vendor="', 'vendor="\udcff')}
        for name, text in bad.items():
            with self.subTest(name):
                (self.folder / "bad.txt").write_bytes(os.fsencode(text))
                self.refuse(2, "--import", "bad.txt", words=["bad.txt"])

    def test_edited_value_is_passed_over(self):
        self.measure_as("tile=3", 0.5)
        shown = self.accept("--show").stdout
        self.assertIn("PASSED OVER", shown)
        self.assertIn("tile", shown)
        self.assertEqual(self.plan()["tuning"], "class")
        self.tune(*SMALL, "--budget", 1)  # measures again and replaces it
        self.assertNotIn("PASSED OVER", self.accept("--show").stdout)

    def test_small_gains_and_losses_are_the_defaults(self):
        defaults = self.plan(CLMGK_CACHE_DIR="")["parameters"]
        for share in (0.98, 1.2):
            self.measure_as("unroll=8", share)
            self.assertIn("unroll=8: ", self.accept("--show").stdout)
            self.assertIn("GAINS LESS THAN 3 %: the defaults are used", self.accept("--show").stdout)
            self.assertEqual([entry["defaults"] for entry in self.own_entries()], [True])
            plan = self.plan()
            self.assertEqual((plan["tuning"], plan["parameters"]), ("bucket", defaults))

    def test_no_files(self):
        environment = {**self.environment, "CLMGK_CACHE_DIR": ""}
        for words in (["--budget", 1], ["--reset"], ["--import", "x"]):
            done = self.run_program(*words, env=environment)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("CLMGK_CACHE_DIR", done.stderr)
        self.assertIn("no files", self.accept("--show", env=environment).stdout)

    def test_unwritable(self):
        (self.folder / "file").write_text("in the way")
        for path in (self.folder / "file", pathlib.Path("/proc/clmgk")):
            done = self.run_program(*SMALL, "--budget", 1, env={**self.environment, "CLMGK_CACHE_DIR": str(path)})
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn(str(path), done.stderr)

    def test_full_disk_keeps_what_was_measured(self):
        before = self.own_entries()
        size = max(path.stat().st_size for path in (self.cache / "tuning").iterdir())

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, size + 40))

        # A small limit stops the programs' cache of drivers, too: their files are left alone by --resume of a done case.
        done = self.run_program("--heads", 1, "--length", LENGTH, "--head-size", 16, "--variants", "softmax,gaussian",
                                "--pass", "forward", "--budget", 4, "--resume", preexec_fn=limit)
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertEqual(done.stderr.splitlines()[-1].count("clmgk-tune: "), 1, done.stderr)
        for entry in before:
            self.assertIn(entry, self.own_entries())

    def test_bench_marks_tuned_cases(self):
        def bench(*args):
            return self.bench(*SIZES, "--variants", "softmax", *args)[0]

        for options in ([], ["--keep-caches"]):
            case = bench(*options)
            self.assertEqual((case["tuned"], case["tuning"]), (True, "bucket"))
        untuned = bench("--keep-caches", "--untuned")
        self.accept("--reset")
        for case in (untuned, bench("--keep-caches")):
            self.assertEqual((case["tuned"], case["tuning"]), (False, "class"))


class Files(TuneTest):
    """Files of all kinds, without measuring."""

    def test_imports_that_are_no_files(self):
        os.mkfifo(self.folder / "fifo")  # nobody writes into it: it is not waited for
        (self.folder / "large.txt").touch()
        os.truncate(self.folder / "large.txt", (16 << 20) + 1)
        for name, word in (("absent.txt", "No such file"), ("fifo", "not a regular file"),
                           ("large.txt", "expected at most 16777216")):
            with self.subTest(name=name):
                self.refuse(2, "--import", name, words=[f"--import {name}: ", word])

    def test_caches_that_cannot_be_read(self):
        """Their entries are not known, which is not the same as none."""
        file_reason = "tuning.txt: expected a regular file that belongs to the user and that nobody else may write"
        for way, reason in (("fifo", file_reason), ("shared", file_reason), ("version", "a format other than 1")):
            with self.subTest(way=way):
                shutil.rmtree(self.cache, ignore_errors=True)
                self.file.parent.mkdir(mode=0o700, parents=True)
                if way == "fifo":
                    os.mkfifo(self.file)
                else:
                    self.file.write_text("clmgk-tuning 1\n" if way == "shared" else "clmgk-tuning 2\n")
                    self.file.chmod(0o666 if way == "shared" else 0o600)
                found = json.loads(self.accept("--show", "--json").stdout)
                self.assertEqual((found["damaged"], [entry for entry in found["entries"] if not entry["shipped"]]), (0, []))
                self.assertIn(reason, found["message"])
                self.refuse(4, "--export", "out.txt", words=["the tuning cache can't be read: ", reason])
                for shown in (self.accept("--show").stdout, run("clmgk-info", env=self.environment).stdout):
                    self.assertIn("    it is passed over: ", shown)
                    self.assertIn(reason, shown)
                    self.assertNotIn("\nno entries", shown)

    def test_damaged_lines_are_shown(self):
        self.accept("--import", self.written("clmgk-tuning 1\n"))
        self.file.write_text("clmgk-tuning 1\nentry cut\n")
        shown = self.accept("--show").stdout
        self.assertIn("    1 damaged line is passed over: line 2: ", shown)
        self.assertIn("line 2: ", json.loads(self.accept("--show", "--json").stdout)["message"])
        self.accept("--export", "out.txt")  # of the other lines
        self.file.unlink()
        entries = json.loads(self.accept("--show", "--json").stdout)["entries"]  # the library has some for some CPUs
        self.assertEqual([entry for entry in entries if not entry["shipped"]], [])
        shown = self.accept("--show").stdout
        self.assertNotIn("passed over", shown)
        self.assertEqual("\nno entries" in shown, not entries)

    def test_an_export_does_not_replace_the_cache(self):
        self.accept("--import", self.written("clmgk-tuning 1\n"))
        (self.folder / "soft.txt").symlink_to(self.file)
        for name in (self.file, self.file.parent / "../tuning/tuning.txt", "soft.txt"):
            with self.subTest(name=name):
                self.refuse(2, "--export", name, words=[f"--export {name}: is the tuning cache's own file"])
        self.accept("--export", "other.txt")

    def written(self, text):
        (self.folder / "in.txt").write_text(text)
        return "in.txt"

    def test_links_of_other_users(self):
        (self.folder / "x.txt").write_text("old")
        self.refuse(4, "--export", self.foreign_link("x.txt", "../x.txt"), words=["is a link of user 12346"])
        (self.folder / "mine").mkdir()
        link = self.foreign_link("programs", "../mine")
        self.refuse(4, *SMALL, "--programs", link, words=["--programs", "is a link of user 12346"])
        self.refuse(4, *SMALL, "--programs", link / "new" / "folder", words=["is a link of user 12346"])


class Usage(TuneTest):
    def test_help_and_version(self):
        text = self.accept("--help").stdout
        for option in ("--budget", "--resume", "--show", "--reset", "--export", "--import", "--programs", "--variants", "--shapes",
                       "--all-devices", "--device"):
            self.assertIn(option, text)
        self.assertIn("clmgk-tune", self.accept("--version").stdout)

    def test_bad_usage(self):
        for words, args in (
                (["--budget"], ["--budget", "0"]),
                (["--budget"], ["--budget", "soon"]),
                (["--candidate-limit"], ["--candidate-limit", "-1"]),
                (["--shapes"], ["--shapes", "round"]),
                (["--variants"], ["--variants", "hardmax"]),
                (["--suite", "--shapes"], ["--suite", "quick", "--shapes", "long"]),
                (["--preset 'fast'", "quick"], ["--preset", "fast"]),
                (["--preset", "no --suite"], ["--preset", "quick", "--suite", "full"]),
                (["--preset", "no --shapes"], ["--preset", "quick", "--shapes", "long"]),
                (["--preset", "no --length"], ["--preset", "quick", "--length", "64"]),
                (["--show", "--preset"], ["--show", "--preset", "quick"]),
                (["--length"], ["--heads", "3"]),
                (["--products"], ["--products", "3x4"]),
                (["--products"], ["--products", "3x4x0"]),
                (["--show", "--budget"], ["--show", "--budget", "3"]),
                (["--show", "--products"], ["--show", "--products", "8x8x8"]),
                (["--show", "--reset"], ["--show", "--reset"]),
                (["--show", "--programs"], ["--show", "--programs", "x"]),
                (["--programs", "--budget"], ["--programs", "x", "--budget", "3"]),
                (["--programs", "--products"], ["--programs", "x", "--products", "8x8x8"]),
                (["--programs"], ["--programs", ""]),
                (["--import", "--device"], ["--import", "x", "--device", "pocl"]),
                (["--device", "--all-devices"], ["--device", "pocl", "--all-devices"]),
                (["--reset", "--heads"], ["--reset", "--heads", "2"])):
            with self.subTest(args):
                self.refuse(2, *args, words=words)

    def test_no_device(self):
        empty = self.folder / "empty"
        empty.mkdir()
        environment = {**self.environment, "OCL_ICD_VENDORS": str(empty)}
        self.refuse(3, *SMALL, env=environment)
        self.refuse(3, "--device", "nothing of the kind", *SMALL)


if __name__ == "__main__":
    unittest.main()
