# SPDX-License-Identifier: Apache-2.0
"""Golden vectors: every case of tests/golden, on every engine that the device has.

Programs of the SIMT engine take CPU drivers seconds to compile: without CLMGK_TEST_FULL it runs one case of each kind.
"""
import json
import os
import pathlib
import tempfile
import unittest

import numpy as np

from program_test import run

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.json"))
EACH_KIND = ("softmax-plain", "softmax-half", "softmax-causal-tall", "softmax-lengths-q", "softmax-no-keys",
             "softmax-no-queries", "softmax-tokens-first", "gaussian-far", "mgk-masked-grouped", "mgk-hard-prior",
             "mgk-prior-zero", "mgk-variance-head", "smgk-soft", "smgk-huge")
FULL = os.environ.get("CLMGK_TEST_FULL", "") not in ("", "0")


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

    def run_case(self, case, engine):
        description = json.loads((case / "case.json").read_text())
        targets = {option: self.folder / name for option, name in description["outputs"].items()}
        words = [word for option, target in targets.items() for word in (option, target)]
        done = run("clmgk-run", *description["args"], *words, "--engine", engine, "--check", "--json", cwd=case)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(result["engine"], engine)
        self.assertTrue(result["check"]["ok"])
        for option, name in description["outputs"].items():
            bound = description["tolerance"][name]["bound"]
            self.compare(np.load(targets[option]), np.load(case / name), bound)

    def run_engine(self, engine, cases):
        probe = run("clmgk-run", *json.loads((CASES[0] / "case.json").read_text())["args"], "--repeat", 1, "--json",
                    "--engine", engine, cwd=CASES[0])
        if probe.returncode == 2:
            self.skipTest(probe.stderr)
        for case in cases:
            with self.subTest(case=case.name, engine=engine):
                self.run_case(case, engine)

    def test_there_are_cases(self):
        self.assertGreater(len(CASES), 50)

    def test_default_engine_is_tested(self):
        done = run("clmgk-run", *json.loads((CASES[0] / "case.json").read_text())["args"], "--repeat", 1, "--json",
                   cwd=CASES[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(json.loads(done.stdout)["engine"], ("lane", "simt"))

    def test_lane_engine(self):
        self.run_engine("lane", CASES)

    def test_simt_engine(self):
        self.run_engine("simt", CASES if FULL else [GOLDEN / name for name in EACH_KIND])


if __name__ == "__main__":
    unittest.main()
