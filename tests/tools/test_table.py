# SPDX-License-Identifier: Apache-2.0
"""benchmarks/table.py: the README's tables, and that of docs/gpu.md, are those of the results behind them.
benchmarks/compact.py: every file of results has been shortened."""
import importlib.util
import json
import pathlib
import subprocess
import sys
import unittest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
README = (BENCHMARKS / "README.md").read_text(encoding="utf-8").splitlines()


def load(name):
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(results, *arguments):
    return printed("table.py", results, *arguments)


def printed(script, *arguments):
    command = [sys.executable, "-B", BENCHMARKS / script, *arguments]
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def rows(text, title):
    """Lines of the table with this first line, without its rule."""
    lines = text.split(title + "\n", 1)[1].splitlines()[1:]
    return lines[: lines.index("")]


class Table(unittest.TestCase):
    def check(self, found, count):
        self.assertEqual(len(found), count)
        for line in found:
            self.assertIn(line, README)

    def test_softmax(self):
        text = table(RESULTS / "epyc-zen4-pocl.json", "--peers", RESULTS / "epyc-zen4-pytorch.json")
        self.check(rows(text, "| N = S = 4096, f32; H = 8 where not said | D = 32 | D = 64 | D = 128 |"), 16)
        self.assertEqual(text.count("linear"), 0)

    def test_layer(self):
        text = table(RESULTS / "xeon-cascade-lake-layer.json", "--layer", RESULTS / "xeon-cascade-lake-pytorch-layer.json")
        self.check(rows(text, "| | forward | forward and backward | kept for backward, MB |"), 5)
        calls = [line for line in text.splitlines() if line.startswith("| softmax 8 heads |")]
        self.assertEqual(calls, ["| softmax 8 heads | 173.4 | 608.4 | 66 | 108 | 141 | 2.41 |"])

    def test_linear(self):
        title = "| N = S = 4096, D = 64, f32, elu1 | forward | backward |"
        text = table(RESULTS / "epyc-zen4-linear.json", "--linear", RESULTS / "epyc-zen4-pytorch-linear.json")
        self.check(rows(text, title), 8)
        self.check(rows(table(RESULTS / "epyc-zen4-linear.json"), title), 6)


class Card(unittest.TestCase):
    def test_documents_have_what_was_measured(self):
        text = (BENCHMARKS.parent / "docs/gpu.md").read_text(encoding="utf-8")
        found = printed("table.py", "--cases", RESULTS / "h200-matrix.json")
        self.assertGreater(found.count("\n"), 12)
        self.assertIn("\n\n" + found, text)


class Compact(unittest.TestCase):
    def test_results_are_short(self):
        compact = load("compact").compact
        for path in RESULTS.glob("*.json"):
            found = path.read_text(encoding="utf-8")
            self.assertEqual(compact(json.loads(found)), found, path.name)

    def test_a_case_keeps_its_times_and_conditions(self):
        case = {"device": 0, "variant": "mgk", "bias": None, "causal": False, "compile_ms": 31.5, "flops": 1.71798692e10,
                "time_ms": {"median": 1.23456789, "min": 1.0}, "parameters": "lanes=16",
                "options": "-cl-std=CL1.2 -DENGINE=1 -DLANES=16 -DHAS_BIAS=1 -DHEAD_SIZE=1 -DFEW_ROWS=0"}
        results = {"clmgk": "0.1.0", "devices": [], "cases": [case]}
        self.assertEqual(load("compact").compact(results).splitlines(), [
            "{", ' "clmgk": "0.1.0",', ' "devices": [],', ' "cases": [',
            '  {"device": 0, "variant": "mgk", "causal": false, "flops": 17179869200, "time_ms": {"median": 1.234568, "min": 1}, '
            '"parameters": "lanes=16", "options": "-DHAS_BIAS=1"}', " ]", "}"])


if __name__ == "__main__":
    unittest.main()
