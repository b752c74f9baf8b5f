# SPDX-License-Identifier: Apache-2.0
"""Golden vectors: every case of tests/golden, on every engine that the device has.

Compilers take most of the time. Without CLMGK_TEST_FULL the lane engine runs every case and the SIMT engine one of each
kind, both in programs that PoCL has not optimised, and one of each kind runs in programs as they are built for users.
"""
import concurrent.futures
import json
import os
import pathlib
import tempfile
import unittest

import numpy as np

from program_test import FULL, QUICK, run

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.json"))
WITH_GRADIENTS = ("softmax-plain", "softmax-no-keys", "softmax-no-queries", "softmax-packed", "mgk-masked-grouped",
                  "smgk-soft", "fish-noise-packed", "gfish-noise", "hard-mish", "talking-heads-masked")
OPTIMISED = ("softmax-plain", "softmax-huge", "softmax-bias", "softmax-half", "mgk-huge", "mgk-hard-prior", "smgk-huge",
             "smgk-variance-prior-causal", "hard-fish", "fish-noise")
FORWARD_ONLY = ("softmax-half", "softmax-causal-tall", "softmax-lengths-q", "softmax-tokens-first", "gaussian-far",
                "mgk-hard-prior", "mgk-prior-zero", "mgk-variance-head", "smgk-huge", "fish-noise-shared",
                "hard-fish-softcap", "hard-gfish")


class Case:
    """One folder of tests/golden; `gradients` = False: O and L alone."""

    def __init__(self, folder, gradients=True):
        self.folder = folder
        description = json.loads((folder / "case.json").read_text())
        self.args, self.outputs = description["args"], description["outputs"]
        self.bounds = {name: tolerance["bound"] for name, tolerance in description["tolerance"].items()}
        if not gradients:
            self.outputs = {option: self.outputs[option] for option in ("--out", "--lse") if option in self.outputs}
            for option in ("--grad-out", "--grad-lse"):
                if option in self.args:
                    at = self.args.index(option)
                    self.args = self.args[:at] + self.args[at + 2:]

    def run(self, engine, target, environment):
        """Runs it; the outputs go to the folder `target`."""
        words = [word for option, name in self.outputs.items() for word in (option, target / name)]
        return run("clmgk-run", *self.args, *words, "--engine", engine, "--check", "--json", cwd=self.folder,
                   env=environment)


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
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(result["engine"], engine)
        self.assertTrue(result["check"]["ok"])
        for option, name in case.outputs.items():
            with self.subTest(output=option):
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
        for case, target, done in zip(cases, targets, runs):
            with self.subTest(case=case.folder.name, engine=engine):
                self.judge(case, engine, target, done.result())

    def test_there_are_cases(self):
        self.assertGreater(len(CASES), 80)

    def default_engine(self):
        done = run("clmgk-run", *Case(CASES[0], False).args, "--repeat", 1, "--json", cwd=CASES[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["engine"]

    def test_default_engine_is_tested(self):
        self.assertIn(self.default_engine(), ("lane", "simt"))

    @unittest.skipIf(FULL, "every case runs so")
    def test_programs_as_users_have_them(self):
        self.run_engine(self.default_engine(), [Case(GOLDEN / name) for name in OPTIMISED], dict(os.environ))

    def test_lane_engine(self):
        self.run_engine("lane", [Case(folder) for folder in CASES])

    def test_simt_engine(self):
        cases = [Case(folder) for folder in CASES]
        if not FULL:
            cases = [Case(GOLDEN / name) for name in WITH_GRADIENTS]
            cases += [Case(GOLDEN / name, gradients=False) for name in FORWARD_ONLY]
        self.run_engine("simt", cases)


if __name__ == "__main__":
    unittest.main()
