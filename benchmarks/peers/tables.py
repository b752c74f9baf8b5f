#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What peers.py found, as text. As a program: a table in Markdown of its JSON files, made with --dtype bf16."""
import argparse
import json

PASSES = ("forward", "backward")
STEPS = ("forward", "training")


def show_paper(found):
    title = "{shape}: batch {batch}, {heads} heads of {head_size}, N {length}".format(**found)
    show_fused(title + (", causal" if found["causal"] else ""), found)
    parts = (found[name]["clmgk"]["softmax"]["fraction_of_peak"] for name in PASSES)
    row("softmax, part of the peak", *(f"{part:.2f}" for part in parts))
    for variant in ("mgk", "smgk"):
        ones = (found[name]["clmgk"] for name in PASSES)
        row(f"{variant} / softmax, time", *(f"{one[variant]['ms'] / one['softmax']['ms']:.2f}" for one in ones))


def row(*cells):
    print(f"  {cells[0]:<30}" + "".join(f"{cell:>22}" for cell in cells[1:]))


def show_fused(title, found):
    print(title)
    row("", *PASSES)
    row("PyTorch fused", *(f"{found[name]['pytorch_fused_ms']:.1f} ms" for name in PASSES))
    for variant in found["forward"]["clmgk"]:
        row(f"clmgk, {variant}", *(f"{found[name]['clmgk'][variant]['ms']:.1f} ms" for name in PASSES))
    ones = [found[name]["clmgk"] for name in PASSES]
    row("softmax, rate / PyTorch fused", *(f"{found[name]['rate_ratio']:.2f}" for name in PASSES))
    best = (found[name]["pytorch_fused_best_ms"] / one["softmax"]["best_ms"] for name, one in zip(PASSES, ones))
    row("the same of the best times", *(f"{ratio:.2f}" for ratio in best))
    if "softmax f32" in ones[0]:
        for key, text in (("ms", "softmax, rate / in f32"), ("best_ms", "the same of the best times")):
            row(text, *(f"{one['softmax f32'][key] / one['softmax'][key]:.2f}" for one in ones))


def time_and_memory(found, key):
    return f"{found['ms']:.1f} ms {1e-6 * found[key]:.0f} MB"


def show_eager(found, square, formulas):
    for variant, (_, _, case) in formulas.items():
        cells = (time_and_memory(found[name][variant], "peak_bytes") for name in PASSES)
        row(f"eager formula, {case}", *cells)
        cells = (time_and_memory(square[name]["clmgk"][variant], "memory_bytes") for name in PASSES)
        row(f"clmgk, {case}", *cells)
        ratios = (found[name][variant]["ms"] / square[name]["clmgk"][variant]["ms"] for name in PASSES)
        row(f"eager / clmgk, {variant}, time", *(f"{ratio:.2f}" for ratio in ratios))


def show_whole(found, length, formulas):
    print(f"N = S = {length}, D = {found['head_size']}: time, and memory beside inputs and results")
    row("", *PASSES)
    for variant, (_, _, case) in formulas.items():
        ones = [found[name][variant] for name in PASSES]
        row(f"eager, {case}", *(f"{one['eager_ms']:.1f} ms {1e-6 * one['eager_extra_bytes']:.0f} MB" for one in ones))
        ours = (f"{one['clmgk_ms']:.1f} ms {1e-6 * one['clmgk_workspace_bytes']:.1f} MB" for one in ones)
        row(f"clmgk, {case}", *ours)
        row("time, eager / clmgk", *(f"{one['time_ratio']:.2f}" for one in ones))
        ratios = (one["memory_ratio"] for one in ones)
        row("memory, clmgk / eager", *("-" if ratio is None else f"{ratio:.4f}" for ratio in ratios))


def show_layer(found):
    print("layer: batch {batch}, N {length}, width {width}, {heads} heads".format(**found))
    row("", *STEPS)
    steps = found["steps"]
    row("PyTorch", *(f"{steps[step]['pytorch_ms']:.1f} ms" for step in STEPS))
    for variant in steps["forward"]["clmgk"]:
        ones = [steps[step]["clmgk"][variant] for step in STEPS]
        row(f"clmgk, {variant}", *(f"{one['ms']:.1f} ms" for one in ones))
        row("rate / PyTorch", *(f"{one['rate_ratio']:.2f}" for one in ones))
    row("kept for backward, PyTorch", "", f"{1e-6 * found['pytorch_kept_bytes']:.1f} MB")
    for variant, one in steps["training"]["clmgk"].items():
        row(f"clmgk, {variant}", "", f"{1e-6 * one['activation_bytes']:.1f} MB")
    for variant, ratio in found["decoding"].items():
        row(f"decoding / reading, {variant}", f"{ratio:.2f}")


def show_scores(found):
    print("{shape}, N = S = {length}".format(**found))
    flex, full = found["flex_ms"], found["flex_full_ms"]
    row("FlexAttention, compiled", f"{flex:.1f} ms", f"{flex / full:.3f} of full")
    row("the same, full attention", f"{full:.1f} ms")
    for text, ms in found["clmgk_ms"].items():
        row(f"clmgk, {text}", f"{ms:.2f} ms", "" if text in ("built in", "classes") else f"{flex / ms:.2f} times as fast")
    if found["flex_classes_ms"]:
        row("create_block_mask, compiled", f"{found['flex_classes_ms']:.2f} ms", f"{found['flex_classes_ms'] / full:.4f} of full")


# ---- the table of bf16 ------------------------------------------------------------------------------------------


def ratios(found, above, below, key):
    """Time / time of two variants, or of PyTorch, for both passes."""

    def time_of(one, variant):
        return one[f"pytorch_fused_{key}"] if variant == "pytorch" else one["clmgk"].get(variant, {}).get(key)

    pairs = [(time_of(found[name], above), time_of(found[name], below)) for name in PASSES]
    return ", ".join(f"{one / other:.2f}" if one and other else "-" for one, other in pairs)


def with_best(found, above, below):
    return f"{ratios(found, above, below, 'ms')} ({ratios(found, above, below, 'best_ms')})"


def sizes_of(result):
    for one in result["sizes"]:
        yield f"N = {result['length']}, {one['heads']} heads, D = {one['head_size']}", one
    for one in result["paper"]:
        yield one["shape"], one


def print_table(results):
    print("| forward, backward: medians (best times) | rate against PyTorch | rate against f32 |", end="")
    print(" MGK, half the heads / softmax, time | sMGK / softmax, time |\n" + "|---" * 5 + "|")
    for result in results:
        for title, found in sizes_of(result):
            pairs = (("pytorch", "softmax"), ("softmax f32", "softmax"), ("mgk", "softmax"), ("smgk", "softmax"))
            print("| " + " | ".join([title, *(with_best(found, *pair) for pair in pairs)]) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="objects of peers/run.sh --dtype bf16 --json")
    results = []
    for path in parser.parse_args().files:
        with open(path, encoding="utf-8") as file:
            results.append(json.load(file))
    print_table(results)


if __name__ == "__main__":
    main()
