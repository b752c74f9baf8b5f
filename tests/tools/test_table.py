# SPDX-License-Identifier: Apache-2.0
"""benchmarks/table.py: the README's tables are those of the results behind them, and benchmarks/card.py: those of
docs/gpu-bounds.md. benchmarks/bound.py: its counts are
those of the compiled kernels. benchmarks/compact.py: every file of results has been shortened."""
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
        text = (BENCHMARKS.parent / "docs/gpu-bounds.md").read_text(encoding="utf-8")
        for option in ((), ("--forms",)):
            with self.subTest(option=option):
                found = printed("card.py", *option, RESULTS / "h200-matrix.json")
                self.assertGreater(found.count("\n"), 12)
                self.assertIn("\n\n" + found + "\n", text)


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


# Multiplications and multiply-adds of vectors by products, exponentials and terms of a head of the compiled kernels,
# from single steps: variant, pass, N, D, causal, vectors of rows in a panel.
EXECUTED = {
    ("softmax", "forward", 64, 64, False, 2): 34368,
    ("softmax", "forward", 49, 32, False, 2): 11168,
    ("softmax", "forward", 49, 32, True, 2): 7328,
    ("softmax", "forward", 256, 32, True, 2): 151296,
    ("softmax", "forward", 256, 16, True, 2): 83712,
    ("softmax", "forward", 128, 16, True, 1): 22016,
    ("softmax", "forward", 96, 8, False, 1): 12804,
    ("softmax", "backward", 64, 64, False, 2): 84236,
    ("softmax", "backward", 49, 32, False, 2): 29018,
    ("softmax", "backward", 49, 32, True, 2): 18522,
    ("softmax", "backward", 48, 32, False, 2): 24649,
    ("softmax", "backward", 256, 32, True, 2): 363312,
    ("softmax", "backward", 256, 16, True, 2): 190768,
    ("mgk", "forward", 64, 64, False, 2): 53292,
    ("mgk", "backward", 64, 64, False, 2): 136728,
    ("smgk", "forward", 64, 64, False, 2): 36792,
    ("smgk", "backward", 64, 64, False, 2): 90004,
}


# All vector instructions of a head but loads, stores and moves, likewise: N = D = 64, full.
EXECUTED_OF_ALL = {
    ("softmax", "forward"): 37132, ("mgk", "forward"): 57256, ("smgk", "forward"): 40292,
    ("softmax", "backward"): 92464, ("mgk", "backward"): 149956, ("smgk", "backward"): 100116,
}


class Bound(unittest.TestCase):
    def setUp(self):
        self.bound = load("bound")

    def case(self, variant, name, length, head_size, causal, vectors=2):
        panels = 2 if length <= 64 else 8
        return {
            "variant": variant, "pass": name, "length": length, "length_k": length, "causal": causal, "heads": 1,
            "head_size": head_size, "value_size": head_size, "components": 2, "batch": 1, "bytes": 0,
            "flops": 4e4, "parameters": f"lanes=16,vectors={vectors},panels={panels},tile=64,block=8,unroll=2,splits=1",
            "options": "-DONE_SPACE=1" + (" -DSHORT_PANEL=1" if length in (48, 49) else "")
            + (" -DANY_ORDER=1" if length in (48, 49) and name == "forward" else ""),
        }

    def test_counts_are_those_of_the_kernels(self):
        for key, executed in EXECUTED.items():
            work = self.bound.count(self.case(*key))
            found = work["products"] + work["exponentials"] + work.get("terms", 0)
            self.assertAlmostEqual(found / executed, 1, delta=0.03, msg=str(key))

    def test_shared_units_execute_all_vector_instructions(self):
        for key, executed in EXECUTED_OF_ALL.items():
            work = self.bound.count(self.case(*key, 64, 64, False), shared_units=True)
            self.assertAlmostEqual(sum(work.values()) / executed, 1, delta=0.03, msg=str(key))

    def test_shared_biases_are_transposed_once(self):
        case = self.case("softmax", "forward", 49, 32, False)
        plain = self.bound.count(case)
        shared = self.bound.count({**case, "bias": [1, 1, 49, 49], "options": case["options"] + " -DHAS_BIAS=1 -DBIAS_TRANSPOSED=1"})
        own = self.bound.count({**case, "bias": [1, 1, 49, 49], "options": case["options"] + " -DHAS_BIAS=1"})
        self.assertEqual(shared, plain)
        # 3 vectors with several rows, whose 48 keys are transposed by squares of 16; 4 vectors of 49 keys are copied
        self.assertEqual(own["transposes"] - plain["transposes"], 3 * 3 * 64)
        self.assertEqual(own["copies"] - plain["copies"], 2 * 4 * 49)

    def test_memory_is_hidden_at_best(self):
        case = self.case("softmax", "forward", 64, 64, False)
        device = {"peak_fma_gflops": 200.0, "peak_copy_gbps": 40.0}
        found = self.bound.bound(case, device)
        slots = sum(self.bound.count(case).values())
        self.assertAlmostEqual(found["bound"], case["flops"] / 32 / slots)
        case["bytes"] = slots * 32 / 5  # as long as the work
        found = self.bound.bound(case, device)
        self.assertAlmostEqual(found["with_memory"], found["bound"] / 2)


if __name__ == "__main__":
    unittest.main()
