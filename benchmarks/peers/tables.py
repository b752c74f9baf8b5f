# SPDX-License-Identifier: Apache-2.0
"""What peers.py found, as text."""

PASSES = ("forward", "backward")
STEPS = ("forward", "training")


def show_paper(found):
    title = "{shape}: batch {batch}, {heads} heads of {head_size}, N {length}".format(**found)
    show_fused(title + (", causal" if found["causal"] else ""), found)
    parts = (found[name]["clmgk"]["softmax"]["fraction_of_peak"] for name in PASSES)
    row("softmax, part of the peak", *(f"{part:.2f}" for part in parts))
    for variant in [one for one in ("mgk", "smgk") if one in found["forward"]["clmgk"]]:
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
    if "f32" in ones[0]:
        row("softmax, rate / in f32", *(f"{one['f32']['ms'] / one['softmax']['ms']:.2f}" for one in ones))
        row("the same of the best times", *(f"{one['f32']['best_ms'] / one['softmax']['best_ms']:.2f}" for one in ones))


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


def show_listops(found):
    print(f"a step of training, {sum(found['lengths'])} tokens in {len(found['lengths'])} sequences")
    row("", *found["networks"])
    for key, text in (
        ("pytorch_padded_ms", "PyTorch, padded, ms"),
        ("pytorch_equal_ms", "PyTorch, one length, ms"),
        ("clmgk_ms", "clmgk, ms"),
        ("padded_ratio", "PyTorch, padded / clmgk"),
        ("equal_ratio", "PyTorch, one length / clmgk"),
    ):
        row(text, *(f"{one[key]:.2f}" for one in found["networks"].values()))
