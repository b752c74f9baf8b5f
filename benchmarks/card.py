#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/gpu.md about what a card measured (results/h200-matrix.json): the matrix engine's cases of
the first and of the last version that ran, beside PyTorch's of the same day, and the forms that were tried."""
import argparse
import json

PEERS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")
PROPERTIES = ("variant", "heads", "N", "D", "dtype", "pass", "causal", "precision")


def properties(case):
    return tuple(case.get(name) for name in PROPERTIES)


def text(case):
    notes = [case["dtype"], case["pass"]] + ["causal"] * bool(case.get("causal"))
    notes += [f"`precision` {case['precision']}"] if case.get("precision") else []
    length = case["N"] if case["N"] == case["S"] else f"{case['N']} x {case['S']}"
    return f"{case['variant']} {case['heads']}, {length}, D = {case['D']}, {', '.join(notes)}"


def peers_of(case, peers):
    """Milliseconds of PyTorch's kernels for the same problem; the cases of both have the same names."""
    names = [f"{case['case']} {case['pass']} {case['dtype']} {peer}" for peer in PEERS]
    found = [next((peer["ms"] for peer in peers if peer["case"] == name), None) for name in names]
    return ["" if ms is None else f"{ms:.3f}" for ms in found]


def measured(results):
    print("| case | unit | first run, ms | last run, ms | TFLOP/s | FlashAttention-2, ms | cuDNN, ms |")
    print("|---|---|---|---|---|---|---|")
    problems = {}
    for case in results["cases"]:
        whole = not case["case"].startswith(("variant", "cold"))
        if whole and (case["dtype"] == "f32" or "precision" not in case):
            problems.setdefault(properties(case), []).append(case)
    for cases in sorted(problems.values(), key=lambda cases: (cases[0]["dtype"], cases[0]["pass"] != "forward")):
        times = {case["run"] != "first": f"{case['ms']:.3f}" for case in cases}
        cells = [text(cases[0]), cases[-1]["unit"], times.get(False, ""), times.get(True, ""), f"{cases[-1]['tflops']:.0f}"]
        print("| " + " | ".join(cells + peers_of(cases[0], results["peers"])) + " |")


def forms(results):
    print("| case | form | unit | parameters | ms | TFLOP/s |")
    print("|---|---|---|---|---|---|")
    cases = [case for case in results["cases"] if case["case"].startswith("variant ")]

    def order(case):
        return case["pass"] != "forward", case["variant"] != "softmax", case["variant"], case["D"]

    for case in sorted(cases, key=order):
        form = results["forms"][case["case"].removeprefix("variant ").split(".")[0]]
        cells = [text(case), form, case["unit"], case["parameters"], f"{case['ms']:.3f}", f"{case['tflops']:.0f}"]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results")
    parser.add_argument("--forms", action="store_true", help="the forms that were tried")
    arguments = parser.parse_args()
    with open(arguments.results, encoding="utf-8") as file:
        results = json.load(file)
    (forms if arguments.forms else measured)(results)


if __name__ == "__main__":
    main()
