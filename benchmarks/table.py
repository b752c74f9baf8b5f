#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the table of README.md from `clmgk-bench --json` and, for the row of PyTorch, from peers/run.sh --json."""
import argparse
import json

HEAD_SIZES = (32, 64, 128)
LENGTH = 4096
SOFTMAX = {"variant": "softmax", "heads": 8}


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def find(cases, head_size, **wanted):
    """The case of the table's size (batch 1, N = S = 4096, D = E) with these properties; None: not measured."""
    size = {
        "batch": 1,
        "length": LENGTH,
        "length_k": LENGTH,
        "head_size": head_size,
        "value_size": head_size,
        "dtype": "f32",
        "causal": False,
    }
    size.update(wanted)
    return next((case for case in cases if all(case[key] == value for key, value in size.items())), None)


def median(case):
    return case["time_ms"]["median"]


def ratio(value):
    """value(one, base) of a case and of softmax with 8 heads in f32."""

    def of(cases, head_size, **wanted):
        one = find(cases, head_size, **{**SOFTMAX, **wanted})
        base = find(cases, head_size, **SOFTMAX)
        return value(one, base) if one and base else None

    return of


time_ratio = ratio(lambda one, base: median(one) / median(base))
rate_ratio = ratio(lambda one, base: one["gflops"] / base["gflops"])
part_of_peak = ratio(lambda one, base: one["fraction_of_peak"])


def peers_ratio(peers, head_size):
    """How many times the rate of PyTorch's fused attention."""
    for size in peers["sizes"] if peers else ():
        if size["head_size"] == head_size:
            return size["rate_ratio"]
    return None


def rows(cases, peers):
    def each(value, **wanted):
        return [value(cases, head_size, **wanted) for head_size in HEAD_SIZES]

    yield "softmax 8 heads, part of the FMA peak of the same run", each(part_of_peak)
    yield "rate against PyTorch's fused CPU attention", [peers_ratio(peers, size) for size in HEAD_SIZES]
    yield "MGK 4 heads / softmax 8 heads, time (paper: 0.78)", each(time_ratio, variant="mgk", heads=4)
    yield "sMGK 4 heads / softmax 8 heads, time (paper: 0.64)", each(time_ratio, variant="smgk", heads=4)
    yield "causal / full, time", each(time_ratio, causal=True)
    yield "f16 / f32, rate", each(rate_ratio, dtype="f16")
    yield "bf16 / f32, rate", each(rate_ratio, dtype="bf16")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", help="object of clmgk-bench --suite full --json (or --shapes square-32,...)")
    parser.add_argument("--peers", help="object of peers/run.sh --json")
    parser.add_argument("--device", type=int, default=0, help="place in the object's list of devices")
    arguments = parser.parse_args()
    results = load(arguments.results)
    cases = [case for case in results["cases"] if case["device"] == arguments.device]
    device = results["devices"][arguments.device]
    print(f"{device['name']}, {device['platform']} {device['driver']}, {device['compute_units']} compute units, ", end="")
    print(f"FMA {device['peak_fma_gflops']:.0f} GFLOP/s, copy {device['peak_copy_gbps']:.1f} GB/s\n")
    print("| H = 8, N = S = 4096, f32 | " + " | ".join(f"D = {size}" for size in HEAD_SIZES) + " |")
    print("|---|" + "---|" * len(HEAD_SIZES))
    for name, values in rows(cases, load(arguments.peers) if arguments.peers else None):
        print(f"| {name} | " + " | ".join("" if value is None else f"{value:.2f}" for value in values) + " |")


if __name__ == "__main__":
    main()
