# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-bundle.sh: a bundle of this build runs from another folder, on PoCL, and its results are a table's; a second run
goes on, a failed case and wrong usage have their exit status."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from program_test import BIN

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        done = cls.call(ROOT / "tools/gpu-bundle.sh", "pack", "--build", BIN.parent, "--output", cls.folder / "packed")
        assert done.returncode == 0, done.stderr
        subprocess.run(["tar", "-C", cls.folder, "-xzf", cls.folder / "packed.tar.gz", "--transform=s/^packed/bundle/"], check=True)
        cls.script = cls.folder / "bundle/gpu-bundle.sh"

    @staticmethod
    def call(*words, **environment):
        return subprocess.run(["bash", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                              check=False, env={**os.environ, "TMPDIR": tempfile.gettempdir(), **environment})

    def run_bundle(self, *words):
        return self.call(self.script, "run", "--rehearse", "--device", "cpu", "--output", self.folder / "results", *words)

    def read(self):
        return json.loads((self.folder / "results/results.json").read_text(encoding="utf-8"))

    def test_run(self):
        done = self.run_bundle("facts", "units", "golden", "numbers", "tensors", "profiles", "bench")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self.read()
        self.assertTrue(found["facts"]["devices"])
        self.assertEqual({case["status"] for case in found["golden"] + found["numbers"]}, {0})
        self.assertGreater(len(found["golden"]), 1)
        self.assertTrue(all(case["engine"] and case["engine_reason"] for case in found["golden"]))
        self.assertIn("matrix_unit_found", found["facts"]["devices"][0])
        self.assertEqual([len(found[name]["cases"]) for name in ("units", "without-units")], [1, 1])
        self.assertEqual([case["case"] for case in found["numbers"]], ["test_combine"])
        table = subprocess.run([sys.executable, "-B", ROOT / "benchmarks/table.py", "--cases", self.folder / "results/results.json"],
                               check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
        self.assertRegex(table, r"\| softmax 2, 64, D = 32, f32, forward \| lane \| [0-9.]+ \| [0-9]+ \| \| \|")
        # what has a result stays, and what has failed fails the next run too
        lines = self.folder / "results/numbers.jsonl"
        lines.write_text(lines.read_text().replace('"status":0', '"status":1'))
        self.assertEqual(self.run_bundle("numbers").returncode, 1)
        self.assertEqual(self.read()["numbers"][0]["status"], 1)
        self.assertEqual(len(self.read()["golden"]), len(found["golden"]))

    def test_a_failing_case(self):
        """A program that is wrong: its status is recorded, and its output kept."""
        program = self.folder / "bundle/bin/test_combine"
        kept = program.read_bytes()
        self.addCleanup(program.write_bytes, kept)
        program.write_text("#!/bin/sh\necho wrong numbers\nexit 3\n")
        results = self.folder / "failing"
        done = self.call(self.script, "run", "--rehearse", "--device", "cpu", "--output", results, "numbers")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("test_combine: FAILED, status 3", done.stderr)
        self.assertIn("wrong numbers", (results / "numbers.log").read_text(encoding="utf-8"))
        self.assertEqual(json.loads((results / "results.json").read_text())["numbers"][0]["status"], 3)

    def test_usage(self):
        for status, words in ((2, []), (2, ["fly"]), (2, ["run", "fly"]), (2, ["run", "--output"]), (0, ["--help"]), (2, ["pack", "--short"]),
                              (2, ["pack", "--build", self.folder]), (3, ["run", "--device", "nobody's", "facts"])):
            with self.subTest(words=words):
                done = self.call(self.script, *words, *(["--output", self.folder / "other"] if status == 3 else []))
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertTrue(done.stderr or status == 0)


if __name__ == "__main__":
    unittest.main()
