# SPDX-License-Identifier: Apache-2.0
"""clmgk-bench --suite counts: curves against the papers' formulas, numbers that the papers print, files."""
import csv
import json
import unittest
import xml.etree.ElementTree

from program_test import ProgramTest

FIGURES = ["mgk-3", "mgk-4", "mgk-8", "mgk-10", "mgk-15", "mgk-16", "fish-3", "fish-6", "fish-7", "fish-8", "mixture",
           "linear", "admixture", "linear-admixture"]
COUNTS = ("at", "heads", "components", "width", "head_size", "length", "batch", "value", "baseline_heads",
          "baseline_value")
MODELS = {"wikitext-103": (16, 2048, 267735), "lra-retrieval": (2, 128, 0), "lra-listops": (2, 128, 0),
          "lra-text": (2, 128, 0), "layer": (1, 0, 0), "lra-layer": (1, 0, 0)}  # layers, feed-forward, vocabulary


def of_softmax(n, h, _, d, x):
    """MGK paper, Appendix B: operations of a forward pass, and parameters, with an output of width x."""
    return n * n * h * (4 * d - 1) + 3 * n * h * d * (2 * x - 1) + n * x * (2 * h * d - 1) - n * h * d, 4 * h * d * x


def of_mgk(n, h, m, d, x):
    """The same of h heads of m keys each."""
    whole = n * n * ((2 * m + 2) * d - 1) + n * d * ((m + 2) * (2 * x - 1) - 1)
    return h * whole + n * x * (2 * h * d - 1), (m + 3) * h * d * x + h * m


def of_fish(n, h, m, d, x):
    """FiSH paper, Appendix D, and values with their two projections."""
    matrices = (2 * (d + h) * m - h) * n * n + 2 * n * m * d * (2 * x - 1)
    values = n * h * d * (2 * x - 1) + (2 * n - 1) * n * h * d + n * x * (2 * h * d - 1)
    return matrices + values, 2 * m * d * x + h * m + m + 2 * h * d * x


def of_linear(n, h, _, d, x):
    """States C and z, numerators, denominators and their ratios."""
    state = h * (n * d * d + (n - 1) * d * d + (n - 1) * d)
    rows = n * h * (d * (2 * d - 1) + 2 * d - 1 + d)
    return state + rows + 3 * n * h * d * (2 * x - 1) + n * x * (2 * h * d - 1), 4 * h * d * x


FORMULAS = {"softmax": of_softmax, "mgk": of_mgk, "fish": of_fish, "linear": of_linear}


class Counts(ProgramTest):
    program = "clmgk-bench"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = None

    def setUp(self):
        super().setUp()
        if Counts.rows is None:
            Counts.done = self.accept("--suite", "counts", "--output", self.folder, "--json")
            with open(self.folder / "counts.csv", encoding="utf-8", newline="") as file:
                Counts.rows = list(csv.DictReader(file))
            for row in Counts.rows:
                row.update({key: int(row[key]) for key in COUNTS})
            Counts.files = {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def curve(self, figure, panel, label):
        found = [row for row in self.rows if (row["figure"], row["panel"], row["curve"]) == (figure, panel, label)]
        self.assertTrue(found, (figure, panel, label))
        return found

    def test_files(self):
        self.assertEqual(sorted(self.files), sorted([name + ".svg" for name in FIGURES] + ["counts.csv"]))
        for name in FIGURES:
            text = "".join(xml.etree.ElementTree.fromstring(self.files[name + ".svg"]).itertext())
            for row in self.rows:
                if row["figure"] == name:
                    for word in (row["panel"], row["curve"]):
                        self.assertIn(word, text)
        self.assertEqual([row["measured"] for row in self.rows], [""] * len(self.rows))

    def test_papers_formulas(self):
        checked = set()
        for row in self.rows:
            layers, hidden, vocabulary = MODELS[row["model"]]
            n, x = row["length"], row["width"]
            network = 0 if hidden == 0 else n * hidden * (2 * x - 1) + n * x * (2 * hidden - 1)
            for variant, heads, value in ((row["variant"], row["heads"], row["value"]),
                                          (row["baseline_variant"], row["baseline_heads"], row["baseline_value"])):
                if variant not in FORMULAS:
                    continue
                operations, parameters = FORMULAS[variant](n, heads, row["components"], row["head_size"], x)
                if variant == "mgk" and "soft or hard" in row["curve"]:
                    parameters -= heads * row["components"]  # the prior
                whole = layers * (parameters + 2 * x * hidden)
                expected = {"inference_operations": row["batch"] * layers * (operations + network),
                            "parameters": whole, "all_parameters": whole + vocabulary * x}.get(row["quantity"])
                if expected is not None and not (variant == "linear" and row["batch"] > 1):
                    self.assertEqual(value, expected, row)
                    checked.add((variant, row["figure"], row["quantity"]))
        for variant, figure in (("mgk", "mgk-3"), ("mgk", "mgk-4"), ("mgk", "mixture"), ("fish", "fish-6"),
                                ("softmax", "fish-3"), ("linear", "mgk-10"), ("linear", "linear")):
            self.assertIn((variant, figure, "inference_operations"), checked)

    def test_feed_forward_in_training(self):
        """Two products and four for their gradients, of which each sums T terms into R numbers: 2 T - R operations."""
        for width in (256, 512, 1024, 2048, 4096):
            label = f"D {width}"
            for whole, layer in zip(self.curve("mgk-3", "A: training, model", label),
                                    self.curve("mgk-3", "training, attention layer", label)):
                n, hidden = whole["length"], 2048
                network = 12 * n * width * hidden - 2 * n * (width + hidden) - 2 * width * hidden
                self.assertEqual(whole["value"], 16 * (layer["value"] + network))

    def test_every_variant(self):
        variants = {row["variant"] for row in self.rows} | {row["baseline_variant"] for row in self.rows}
        self.assertEqual(len(variants), 20)
        for figure in FIGURES[10:]:
            rows = [row for row in self.rows if row["figure"] == figure]
            self.assertEqual({(row["axis"], row["quantity"]) for row in rows},
                             {(axis, quantity) for axis in ("length", "width", "heads", "components") for quantity in
                              ("inference_operations", "training_operations", "parameters", "inference_memory")})
        for row in self.rows:
            self.assertAlmostEqual(float(row["ratio"]), row["value"] / row["baseline_value"], places=7)

    def test_what_the_papers_say(self):
        """The ratio falls as D and N grow; fewer global heads cost less; kinds of FiSH cost about the same."""
        for figure, panels in (("mgk-3", "AB"), ("mgk-10", "A"), ("fish-3", "AB")):
            for panel in {row["panel"] for row in self.rows if row["figure"] == figure and row["panel"][0] in panels}:
                curves = [[float(row["ratio"]) for row in self.curve(figure, panel, f"D {width}")]
                          for width in (256, 512, 1024, 2048, 4096)]
                for narrow, wide in zip(curves, curves[1:]):
                    self.assertTrue(all(a > b for a, b in zip(narrow, wide)), (figure, panel))
                if figure != "mgk-10":
                    for curve in curves[:3]:
                        self.assertEqual(curve, sorted(curve, reverse=True))
        for figure in ("mgk-3", "mgk-10", "fish-3"):
            for label in ("total", "without embedding"):
                ratios = [float(row["ratio"]) for row in self.curve(figure, "C: parameters, model", label)]
                self.assertEqual(ratios, sorted(ratios, reverse=True))
        for few, many in (("2", "4"), ("4", "6")):
            for panel in ("training, D 1024", "inference, D 1024"):
                pairs = zip(*(self.curve("fish-7", panel, heads + " global heads") for heads in (few, many)))
                self.assertTrue(all(a["value"] < b["value"] for a, b in pairs))
        for kinds in zip(*(self.curve("fish-6", "inference, D 1024", label)
                           for label in ("FiSH", "hard FiSH", "GFiSH", "hard GFiSH"))):
            self.assertLess(max(row["value"] for row in kinds), 1.05 * min(row["value"] for row in kinds))
        for soft, learned, shifted in zip(*(self.curve("mgk-8", "retrieval", label)
                                            for label in ("MGK soft or hard E", "MGK", "sMGK"))):
            self.assertLessEqual(soft["value"], learned["value"])
            self.assertLess(shifted["value"], learned["value"])

    def test_printed_numbers(self):
        claims = json.loads(self.done.stdout)["claims"]
        self.assertEqual(len(claims), 4)
        tolerance = {90: 0.5, 0.24: 0.01, 2.1: 0.1}  # as many digits as are printed, of both numbers of a difference
        for claim in claims:
            if claim["at_least"]:
                self.assertGreater(claim["counted"], claim["printed"])
            else:
                self.assertAlmostEqual(claim["counted"], claim["printed"], delta=tolerance[claim["printed"]])

    def test_object(self):
        found = json.loads(self.done.stdout)
        self.assertEqual(list(found), ["clmgk", "devices", "cases", "failures", "figures", "claims"])
        self.assertEqual([one["figure"] for one in found["figures"]], FIGURES)
        rows = iter(self.rows)
        for one in found["figures"]:
            for panel in one["panels"]:
                for curve in panel["curves"]:
                    for point in curve["points"]:
                        row = next(rows)
                        self.assertEqual((row["panel"], row["curve"]), (panel["panel"], curve["curve"]))
                        self.assertEqual(row["at"], point["at"])
                        self.assertAlmostEqual(point["value"] / row["value"], 1, places=7)
                        self.assertIsNone(point["measured"])
        self.assertIsNone(next(rows, None))

    def test_text(self):
        text = self.accept("--suite", "counts").stdout
        for word in ("mgk-3: ", "D 4096", "parts of softmax", "more than 30, counted"):
            self.assertIn(word, text)

    def test_refusals(self):
        self.refuse(2, "--suite", "counts", "--dtype", "f16", words=["--dtype is given", "--suite counts"])
        self.refuse(2, "--suite", "counts", "--seconds", 1, words=["--seconds is given", "--measure"])
        self.refuse(2, "--suite", "quick", "--output", ".", words=["--output is given", "--suite counts"])
        self.refuse(4, "--suite", "counts", "--output", "absent", words=["--output absent/counts.csv"])
        self.refuse(4, "--suite", "counts", "--output", self.folder, env={"PATH": "/nonexistent"}, words=["gnuplot"])


if __name__ == "__main__":
    unittest.main()
