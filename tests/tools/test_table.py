# SPDX-License-Identifier: Apache-2.0
"""benchmarks/table.py: the README's tables are those of the results behind them."""
import pathlib
import subprocess
import sys
import unittest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
README = (BENCHMARKS / "README.md").read_text(encoding="utf-8").splitlines()


def table(results, *arguments):
    command = [sys.executable, "-B", BENCHMARKS / "table.py", results, *arguments]
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


if __name__ == "__main__":
    unittest.main()
