# SPDX-License-Identifier: Apache-2.0
"""Golden vectors: the reference is compared with every case of tests/golden; the programs run them on every engine.

Compilers take most of the time. Without CLMGK_TEST_FULL the engines run some cases of each kind, in programs that PoCL
has not optimised, and a few in programs as they are built for users.
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import tempfile
import unittest

import numpy as np

from program_test import FULL, LINEARS, QUICK, run

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
REFERENCE = pathlib.Path(os.environ["CLMGK_GOLDEN_VALUES"])
# For runs by hand (tools/arm64.sh): these cases alone, with these parameters of the kernels.
ONLY = os.environ.get("CLMGK_GOLDEN_ONLY", "").split()
PARAMETERS = os.environ.get("CLMGK_GOLDEN_PARAMETERS")
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.json") if not ONLY or path.parent.name in ONLY)
EVERY = int(os.environ.get("CLMGK_GOLDEN_EVERY", 1))  # of a pretended device, which takes long: every so many of the cases
# What other tests hold against the reference, the programs take here as they find it: of each kind some, on one engine;
# and the authors' values, which have no L.
LANE = ("softmax-dropout", "mgk-tokens-first", "mgk-nll", "fish-noise-packed", "gfish-mixed-after-dropout",
        "linear-causal-state", "mgk-mixed-types") + tuple(
    folder.name for folder in CASES if folder.name.startswith("authors-"))
LANE_FORWARD = ("softmax-no-keys", "talking-heads-masked", "linear-favor-large")
SIMT_FORWARD = ("softmax-f16-cache", "softmax-packed", "mgk-hard-prior", "gfish-noise", "lfish-noise")
OPTIMISED = ("softmax-half", "fish-noise")
MATRIX_FORWARD = ("talking-heads-masked",)  # its units are emulated, and compile slowly
LAYER = "OPENCL_LAYERS" in os.environ  # a pretended device (tests/layers), which may refuse a case, with the reason
MOST_REFUSED = 4


class Case:
    """One folder of tests/golden; `gradients` = False: O, L and the state alone."""

    def __init__(self, folder, gradients=True):
        self.folder = folder
        description = json.loads((folder / "case.json").read_text())
        self.args, self.outputs = description["args"], description["outputs"]
        self.bounds = {name: tolerance["bound"] for name, tolerance in description["tolerance"].items()}
        if not gradients:
            self.outputs = {option: self.outputs[option] for option in ("--out", "--lse", "--state-out")
                            if option in self.outputs}
            for option in ("--grad-out", "--grad-lse"):
                if option in self.args:
                    at = self.args.index(option)
                    self.args = self.args[:at] + self.args[at + 2:]

        if PARAMETERS:
            self.args = [*self.args, "--parameters", PARAMETERS]
            if "--grad-out" in self.args:
                self.args += ["--backward-parameters", PARAMETERS]

    def is_linear(self):
        return self.args[self.args.index("--variant") + 1] in LINEARS

    def run(self, engine, target, environment, *more):
        """Runs it; the outputs go to the folder `target`."""
        return run("clmgk-run", *self.args, *self.outputs_in(target), "--engine", engine, "--check", "--json", *more,
                   cwd=self.folder, env=environment)

    def reference(self, target):
        """Compares the reference with the expected values."""
        return run(REFERENCE, *self.args, *self.outputs_in(target), "--check", cwd=self.folder,
                   env={**os.environ, "GOLDEN_FOLDER": str(self.folder)})

    def files(self):
        """Names of the outputs; a state counts as two."""
        return [name + ending for option, name in self.outputs.items()
                for ending in ((".c.npy", ".z.npy") if option == "--state-out" else ("",))]

    def outputs_in(self, target):
        return [word for option, name in self.outputs.items() for word in (option, target / name)]


class Golden(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def compare(self, actual, expected, bound):
        self.assertEqual(actual.dtype.str, "<f4")
        self.assertTrue(actual.flags.c_contiguous)
        self.assertEqual(actual.shape, expected.shape)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(actual[~finite], expected[~finite])
        error = np.abs(actual[finite] - expected[finite]).max(initial=0.0)
        self.assertLessEqual(error, bound)

    def judge(self, case, engine, target, done):
        self.assertEqual(" layer: active" in done.stderr, LAYER, done.stderr)
        if LAYER and done.returncode == 2 and f"engine {engine}: " in done.stderr:
            self.refused.append(case.folder.name)
            return
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(result["engine"], engine)
        self.assertTrue(result["check"]["ok"])
        for name in case.files():
            with self.subTest(output=name):
                self.compare(np.load(target / name), np.load(case.folder / name), case.bounds[name])

    def run_engine(self, engine, cases, environment=QUICK):
        probe = run("clmgk-run", *Case(CASES[0], False).args, "--repeat", 1, "--json", "--engine", engine,
                    cwd=CASES[0])
        if probe.returncode == 2:
            self.skipTest(probe.stderr)
        targets = [self.folder / case.folder.name for case in cases]
        for target in targets:
            target.mkdir()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # compilers take one thread each
            runs = [pool.submit(case.run, engine, target, environment) for case, target in zip(cases, targets)]
        self.refused = []
        for case, target, done in zip(cases, targets, runs):
            with self.subTest(case=case.folder.name, engine=engine):
                self.judge(case, engine, target, done.result())
        self.assertLessEqual(len(self.refused), MOST_REFUSED, self.refused)

    def test_there_are_cases(self):
        self.assertGreater(len(CASES), 100)

    def test_reference(self):
        cases = [case for case in map(Case, CASES) if "--lse" in case.outputs or case.is_linear()]
        self.assertGreater(len(cases), 90)
        for case in cases:
            with self.subTest(case=case.folder.name):
                done = case.reference(self.folder)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_reference_notices(self):
        """A wrong expected value is noticed."""
        case = Case(GOLDEN / "mgk-default")
        wrong = self.folder / "wrong"
        shutil.copytree(case.folder, wrong)
        values = np.load(wrong / "dk.npy")
        values.flat[-1] += 1e-3
        np.save(wrong / "dk.npy", values)
        done = Case(wrong).reference(self.folder)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("dk", done.stderr)

    def default_engine(self):
        done = run("clmgk-run", *Case(CASES[0], False).args, "--repeat", 1, "--json", cwd=CASES[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertNotIn(result["engine_reason"], ("", "named by the options"))
        return result["engine"]

    def test_default_engine_is_tested(self):
        self.assertIn(self.default_engine(), ("lane", "simt"))

    @unittest.skipIf(FULL, "every case runs so")
    def test_programs_as_users_have_them(self):
        self.run_engine(self.default_engine(), [Case(GOLDEN / name, gradients=False) for name in OPTIMISED],
                        dict(os.environ))

    def test_lane_engine(self):
        cases = [Case(folder) for folder in CASES[::EVERY] if FULL or folder.name in LANE]
        cases += [Case(GOLDEN / name, gradients=False) for name in LANE_FORWARD if not FULL]
        self.run_engine("lane", cases)

    def test_simt_engine(self):
        cases = [Case(folder) for folder in CASES[::EVERY]]
        if not FULL:
            cases = [Case(GOLDEN / name, gradients=False) for name in SIMT_FORWARD]
        self.run_engine("simt", cases)

    @unittest.skipIf(LAYER, "the emulation's work-groups are larger than the pretended devices'")
    def test_matrix_engine(self):
        """In 16 bits, half of the cases in each type, against the reference: the expected values are of f32 arrays."""
        cases = [Case(folder) for folder in CASES]
        cases = [case for case in cases if not case.is_linear() and not {"--layer", "--dtype"}.intersection(case.args)]
        self.assertGreater(len(cases), 60)
        if not FULL:
            cases = [Case(GOLDEN / name, gradients=False) for name in MATRIX_FORWARD]
        refused = 0
        for n, case in enumerate(cases):
            dtype = ("f16", "bf16")[n % 2]
            with self.subTest(case=case.folder.name, dtype=dtype):
                done = case.run("matrix", self.folder, QUICK, "--dtype", dtype)
                if done.returncode == 2 and "engine matrix: it has no kernels" in done.stderr:
                    refused += 1
                    continue
                self.assertEqual(done.returncode, 0, done.stderr)
                result = json.loads(done.stdout)
                self.assertEqual((result["engine"], result["dtype"], result["check"]["ok"]), ("matrix", dtype, True))
        self.assertLess(refused, len(cases) / 6)

    def test_priors_of_rounded_outputs(self):
        """Two numbers sum all rows' errors of delta. The plain formula's nearly cancel, by chance, so the bound is small."""
        case = Case(GOLDEN / "mgk-variance-component")
        for engine in ("lane", "simt"):
            with self.subTest(engine=engine):
                done = case.run(engine, self.folder, QUICK, "--dtype", "f16")
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
