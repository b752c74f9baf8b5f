# SPDX-License-Identifier: Apache-2.0
"""benchmarks/papers.py: curves against the papers' formulas, numbers that the papers print, files, lengths of crossings."""
import csv
import importlib.util
import pathlib
import subprocess
import sys

import pytest

import clmgk

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "papers.py"
SPEC = importlib.util.spec_from_file_location("papers", PROGRAM)
papers = sys.modules["papers"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(papers)

MODELS = {model.name: model for model in (papers.WIKITEXT, papers.RETRIEVAL, papers.LISTOPS, papers.REVIEWS, papers.LAYER,
                                          papers.LRA_LAYER)}
WIDTHS = (256, 512, 1024, 2048, 4096)


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


@pytest.fixture(scope="module")
def rows():
    return list(papers.points())


def curve(rows, figure, panel, label):
    found = [row for row in rows if (row["figure"], row["panel"], row["curve"]) == (figure, panel, label)]
    assert found, (figure, panel, label)
    return found


def test_papers_formulas(rows):
    checked = set()
    for row in rows:
        model, n, x = MODELS[row["model"]], row["length"], row["width"]
        network = 0 if model.hidden == 0 else n * model.hidden * (2 * x - 1) + n * x * (2 * model.hidden - 1)
        for variant, heads, value in ((row["variant"], row["heads"], row["value"]),
                                      (row["baseline_variant"], row["baseline_heads"], row["baseline_value"])):
            if variant not in FORMULAS:
                continue
            operations, parameters = FORMULAS[variant](n, heads, row["components"], row["head_size"], x)
            if variant == "mgk" and "soft or hard" in row["curve"]:
                parameters -= heads * row["components"]  # the prior
            whole = model.layers * (parameters + 2 * x * model.hidden)
            expected = {"inference_operations": row["batch"] * model.layers * (operations + network), "parameters": whole,
                        "all_parameters": whole + model.vocabulary * x}.get(row["quantity"])
            if expected is not None and not (variant == "linear" and row["batch"] > 1):
                assert value == expected, row
                checked.add((variant, row["figure"], row["quantity"]))
    for variant, figure in (("mgk", "mgk-3"), ("mgk", "mgk-4"), ("mgk", "mixture"), ("fish", "fish-6"),
                            ("softmax", "fish-3"), ("linear", "mgk-10"), ("linear", "linear")):
        assert (variant, figure, "inference_operations") in checked


def test_feed_forward_in_training(rows):
    """Two products and four for their gradients, of which each sums T terms into R numbers: 2 T - R operations."""
    for width in WIDTHS:
        label = f"D {width}"
        for whole, layer in zip(curve(rows, "mgk-3", "A: training, model", label),
                                curve(rows, "mgk-3", "training, attention layer", label)):
            n, hidden = whole["length"], 2048
            network = 12 * n * width * hidden - 2 * n * (width + hidden) - 2 * width * hidden
            assert whole["value"] == 16 * (layer["value"] + network)


def test_every_variant(rows):
    assert len({row["variant"] for row in rows} | {row["baseline_variant"] for row in rows}) == 20
    for figure in ("mixture", "linear", "admixture", "linear-admixture"):
        found = {(row["axis"], row["quantity"]) for row in rows if row["figure"] == figure}
        assert found == {(axis, quantity) for axis in ("length", "width", "heads", "components") for quantity in
                         ("inference_operations", "training_operations", "parameters", "inference_memory")}


def test_what_the_papers_say(rows):
    """The ratio falls as D and N grow; fewer global heads cost less; kinds of FiSH cost about the same."""
    for figure, panels in (("mgk-3", "AB"), ("mgk-10", "A"), ("fish-3", "AB")):
        for panel in {row["panel"] for row in rows if row["figure"] == figure and row["panel"][0] in panels}:
            curves = [[row["ratio"] for row in curve(rows, figure, panel, f"D {width}")] for width in WIDTHS]
            for narrow, wide in zip(curves, curves[1:]):
                assert all(a > b for a, b in zip(narrow, wide)), (figure, panel)
            if figure != "mgk-10":
                for one in curves[:3]:
                    assert one == sorted(one, reverse=True)
    for figure in ("mgk-3", "mgk-10", "fish-3"):
        for label in ("total", "without embedding"):
            ratios = [row["ratio"] for row in curve(rows, figure, "C: parameters, model", label)]
            assert ratios == sorted(ratios, reverse=True)
    for few, many in (("2", "4"), ("4", "6")):
        for panel in ("training, D 1024", "inference, D 1024"):
            pairs = zip(*(curve(rows, "fish-7", panel, heads + " global heads") for heads in (few, many)))
            assert all(a["value"] < b["value"] for a, b in pairs)
    for kinds in zip(*(curve(rows, "fish-6", "inference, D 1024", label)
                       for label in ("FiSH", "hard FiSH", "GFiSH", "hard GFiSH"))):
        assert max(row["value"] for row in kinds) < 1.05 * min(row["value"] for row in kinds)
    for soft, learned, shifted in zip(*(curve(rows, "mgk-8", "retrieval, parameters", label)
                                        for label in ("MGK soft or hard E", "MGK", "sMGK"))):
        assert shifted["value"] < soft["value"] < learned["value"]


def test_printed_numbers(rows):
    tolerance = {90: 0.5, 0.24: 0.01, 2.1: 0.1}  # as many digits as are printed, of both numbers of a difference
    claims = papers.claims(rows)
    assert len(claims) == 4
    for _, _, _, printed, at_least, counted in claims:
        assert counted > printed if at_least else abs(counted - printed) <= tolerance[printed]


def test_memory(rows):
    """Half of the heads: the arrays of a layer X, Y, Q, K, V, O, with two keys per position and half as many values."""
    for row in curve(rows, "mgk-3", "memory, attention layer, D 512", "inference"):
        n = row["length"]
        assert row["baseline_value"] == 4 * (4 * 512 * 512 + n * (2 + 4) * 512)
        assert row["value"] == 4 * (4 * 2 + 5 * 4 * 512 * 64 + n * (2 * 512 + 5 * 4 * 64))


def test_files(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(papers, "FIGURES", papers.FIGURES[5:6])
    monkeypatch.setattr(papers, "claims", lambda rows: [("a paper", "a number", "%", 30, True, 33.3)])
    monkeypatch.setattr(sys, "argv", ["papers.py", "counts", "--output", str(tmp_path / "of it")])
    papers.main()
    assert sorted(path.name for path in (tmp_path / "of it").iterdir()) == ["counts.csv", "mgk-16.svg"]
    with open(tmp_path / "of it" / "counts.csv", encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [{key: str(value) for key, value in row.items()} for row in papers.points()] == written
    picture = (tmp_path / "of it" / "mgk-16.svg").read_text()
    assert all(row["panel"] in picture and row["curve"] in picture for row in written)
    text = capsys.readouterr().out
    assert "mgk-16: Ways" in text and "a number: more than 30, counted 33.3 %" in text


@pytest.mark.parametrize("true, expected", [(300, (292, 304)), (100, (96, 100)), (257, (256, 268)), (3, (0, 16)),
                                            (20000, (16384, 0))])
def test_search_of_crossings(true, expected):
    measured = []

    def faster(length):
        measured.append(length)
        return length >= true

    below, above = papers.find_crossing(faster)
    assert (below, above) == expected
    assert len(measured) == len(set(measured)) and all(16 <= length <= 16384 for length in measured)


def test_crossing(tmp_path):
    """A program that answers as clmgk-bench does."""
    bench = tmp_path / "bench"
    bench.write_text(f"""#!{sys.executable}
import json, sys
length = int(sys.argv[sys.argv.index("--length") + 1])
print(json.dumps({{"cases": [{{"time_ms": {{"median": value}}}} for value in (length * length / 100, length)]}}))
""")
    bench.chmod(0o755)
    command = [sys.executable, str(PROGRAM), "crossing", "--bench", str(bench), "--head-sizes", "16", "--pass", "both"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[1:]
    assert [line.split()[:4] for line in lines] == [["linear:8", which, "16", kind] for which in ("forward", "backward")
                                                    for kind in ("full", "causal")]
    assert {line.split()[4] for line in lines} == {"104"}
    bench.write_text("#!/bin/sh\necho no device >&2\nexit 3\n")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "no device" in done.stderr


def test_counts_refuse():
    with pytest.raises(ValueError, match="components"):
        clmgk.count_attention(variant="softmax", heads=2, length=8, head_size=8, components=3)
    with pytest.raises(ValueError, match="width"):
        clmgk.count_attention(width=-1, heads=2, length=8, head_size=8)
    with pytest.raises(TypeError, match="width"):
        clmgk.count_attention(width="8", heads=2, length=8, head_size=8)
    found = clmgk.count_attention(width=16, width_out=16, heads=2, length=8, head_size=8)
    assert set(found.parameters) == {"query_key", "value", "scores", "values", "output", "norm"}
    assert found.parameters["query_key"] == 512 and found.forward["scores"] == (2 * 64 * 8, 2 * 64 * 7)
