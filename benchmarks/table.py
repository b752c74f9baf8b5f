#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of README.md from `clmgk-bench --json` (also of --suite layer) and, for the rows of PyTorch, from
peers/run.sh --json; with --cases the table of docs/gpu.md, also from the results of tools/gpu-bundle.sh."""
import argparse
import json

HEAD_SIZES = (32, 64, 128)
LENGTH = 4096
PASSES = ("forward", "backward")
SOFTMAX = {"variant": "softmax", "heads": 8}
LINEAR = {"variant": "linear", "heads": 8}
MIXED = (("hard-fish", 2), ("hard-fish", 4), ("hard-mish", 2), ("talking-heads", 8), ("fish", 2))  # global heads of 8


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def find(cases, head_size, **wanted):
    """The case of these properties, by default forward of the table's size (batch 1, N = S = 4096, D = E, f32, no
    mask); None: not measured."""
    properties = {
        "pass": "forward",
        "batch": 1,
        "length": LENGTH,
        "length_k": LENGTH,
        "head_size": head_size,
        "value_size": head_size,
        "dtype": "f32",
        "dtype_k": None,
        "dtype_v": None,
        "dtype_o": None,
        "causal": False,
        "window": None,
        "sequences": None,
        "bias": None,
        "dropout": None,
    }
    properties.update(wanted)
    return next((case for case in cases if all(case.get(key) == value for key, value in properties.items())), None)


def median(case):
    return case["time_ms"]["median"]


def ratio(value):
    """value(one, base) of a case and of softmax with 8 heads in f32, of the same pass."""

    def of(cases, head_size, **wanted):
        one = find(cases, head_size, **{**SOFTMAX, **wanted})
        base = find(cases, head_size, **SOFTMAX, **{"pass": wanted["pass"]})
        return value(one, base) if one and base else None

    return of


time_ratio = ratio(lambda one, base: median(one) / median(base))
rate_ratio = ratio(lambda one, base: one["gflops"] / base["gflops"])
part_of_peak = ratio(lambda one, base: one["fraction_of_peak"])


def peers_ratio(peers, head_size, heads, name):
    """How many times the rate of PyTorch's fused attention."""
    for size in peers["sizes"] if peers else ():
        if size["head_size"] == head_size and size["heads"] == heads:
            return size[name]["rate_ratio"]
    return None


def rows(cases, peers, name):
    """Rows of one pass."""

    def each(value, **wanted):
        return [value(cases, head_size, **{"pass": name}, **wanted) for head_size in HEAD_SIZES]

    paper = {"mgk": " (paper: 0.78)", "smgk": " (paper: 0.64)"} if name == "forward" else {"mgk": "", "smgk": ""}
    yield f"{name}: softmax 8 heads, part of the FMA peak of the same run", each(part_of_peak)
    for heads in (8, 1):
        ratios = [peers_ratio(peers, size, heads, name) for size in HEAD_SIZES]
        yield f"{name}: rate against PyTorch's fused CPU attention, H = {heads}", ratios
    yield f"{name}: MGK 4 heads / softmax 8 heads, time{paper['mgk']}", each(time_ratio, variant="mgk", heads=4)
    yield f"{name}: sMGK 4 heads / softmax 8 heads, time{paper['smgk']}", each(time_ratio, variant="smgk", heads=4)
    yield f"{name}: causal / full, time", each(time_ratio, causal=True)
    yield f"{name}: f16 / f32, rate", each(rate_ratio, dtype="f16")
    yield f"{name}: bf16 / f32, rate", each(rate_ratio, dtype="bf16")


def softmax_cases(cases, shape, name, cache=None):
    """In f32; `cache`: the type of keys and values, if it is another."""
    wanted = {"shape": shape, "pass": name, "dtype": "f32", "dtype_k": cache, "dtype_v": cache, "variant": "softmax"}
    return [case for case in cases if all(case.get(key) == value for key, value in wanted.items())]


def window_ratio(cases, name):
    """Softmax with the window / without it."""
    found = {case.get("window") is not None: case for case in softmax_cases(cases, "window-16k", name)}
    return median(found[True]) / median(found[False]) if len(found) == 2 else None


def reading_ratio(cases, shape):
    """Time of a decoding softmax / the least time, reading K and V once at the measured rate of reading."""
    found = softmax_cases(cases, shape, "forward")
    return 1 / found[0]["kv_fraction_of_read"] if found else None


def cache_ratio(cases, shape):
    """Time of a decoding softmax over keys and values in f16 / over those in f32; queries are f32."""
    found = [softmax_cases(cases, shape, "forward", cache) for cache in ("f16", None)]
    return median(found[0][0]) / median(found[1][0]) if all(found) else None


def other_rows(cases, peers):
    """Figures that are not of the square sizes."""
    for name in PASSES:
        yield f"{name}: window of 256 keys to each side / full, N = 16,384, D = 64, time", window_ratio(cases, name)
    for shape, queries in (("decode-64k", 1), ("decode-64k-16", 16)):
        text = f"decoding, N = {queries}, S = 65,536: time / reading K and V once at the measured rate of reading"
        yield text, reading_ratio(cases, shape)
        text = f"decoding, N = {queries}, S = 65,536, queries in f32: keys and values in f16 / in f32, time"
        yield text, cache_ratio(cases, shape)
    for name in PASSES:
        found = peers.get("swin") if peers else None
        text = f"{name}: Swin's windows (4,096 of 49, 3 heads of 32, bias), rate against PyTorch's fused attention"
        yield text, found and found[name]["rate_ratio"]


def mixed_rows(cases, name):
    """Heads mixed, of one pass (suite `admixture`)."""

    def each(value, variant, components):
        wanted = {"variant": variant, "components": components, "heads": 8, "pass": name}
        return [value(cases, head_size, **wanted) for head_size in HEAD_SIZES]

    for variant, components in MIXED:
        case = f"{variant} {components} → 8"
        yield f"{name}: {case} / softmax 8 heads, time", each(time_ratio, variant, components)
        if name == "forward":
            yield f"the same, operations by the FiSH paper's Appendix D: {case}", each(paper_ratio, variant, components)
    noise = [
        noisy / hard if noisy and hard else None
        for noisy, hard in zip(each(time_ratio, "fish", 2), each(time_ratio, "hard-fish", 2))
    ]
    yield f"{name}: with noise / without, fish and hard-fish 2 → 8, time", noise


def linear_rows(cases, name):
    """The linear family, of one pass (suite `linear`)."""

    def each(value, **wanted):
        return [value(cases, head_size, name, **wanted) for head_size in HEAD_SIZES]

    def of_linear(key):
        return lambda cases, size, name, **wanted: (find(cases, size, **{"pass": name}, **wanted) or {}).get(key)

    def causal_ratio(cases, size, name):
        both = [find(cases, size, **{"pass": name}, **LINEAR, causal=causal) for causal in (True, False)]
        return median(both[0]) / median(both[1]) if all(both) else None

    paper = {"mlk": " (paper: 0.78)", "smlk": " (paper: 0.76)"} if name == "forward" else {"mlk": "", "smlk": ""}
    yield f"{name}: linear 8 heads, part of the FMA peak of the same run", each(of_linear("fraction_of_peak"), **LINEAR)
    for variant, text in (("mlk", "MLK"), ("smlk", "sMLK")):
        ratios = each(of_linear("ratio_to_linear"), variant=variant, heads=4)
        yield f"{name}: {text} 4 heads / linear 8 heads, time{paper[variant]}", ratios
    yield f"{name}: linear, causal / full, time", each(causal_ratio)


def linear_peer_rows(cases, peers):
    """README's table of one head size: values of both passes."""
    found = next((one for one in peers["linear"] if one["head_size"] == 64), None) if peers else None
    theirs = {name: found[name]["linear"] for name in PASSES} if found else {}

    def each(value, **wanted):
        both = [find(cases, 64, **{"pass": name}, **wanted) for name in PASSES]
        return [one and value(one) for one in both]

    def milliseconds(one):
        return f"{median(one):.1f}"

    def memory(one):
        ours, whole = (1e-6 * one[f"{key}_bytes"] for key in ("clmgk_workspace", "eager_extra"))
        return f"{ours:.1f} / {whole:.0f}"

    def by_linear(one):
        return one["ratio_to_linear"]

    yield "linear 8 heads, ms", each(milliseconds, **LINEAR)
    if theirs:
        times = [theirs[name]["time_ratio"] for name in PASSES]
        yield "PyTorch's eager formula / linear 8 heads, time", [f"{value:.1f}" for value in times]
        yield "memory beside inputs and results: libclmgk / PyTorch, MB", [memory(theirs[name]) for name in PASSES]
    yield "MLK 4 heads / linear 8 heads, time (paper, forward: 0.78)", each(by_linear, variant="mlk", heads=4)
    yield "sMLK 4 heads / linear 8 heads, time (paper, forward: 0.76)", each(by_linear, variant="smlk", heads=4)
    yield "linear, causal, ms", each(milliseconds, **LINEAR, causal=True)
    for variant, text in (("mlk", "MLK"), ("smlk", "sMLK")):
        values = each(by_linear, variant=variant, heads=4, causal=True)
        yield f"causal: {text} 4 heads / linear 8 heads, time", values


# ---- the layer

HEADS_NAMES = {"softmax": "softmax", "mgk": "MGK", "smgk": "sMGK", "linear": "linear", "mlk": "MLK", "smlk": "sMLK"}


def layer_name(variant):
    name, heads = variant.split(":")
    return f"{HEADS_NAMES.get(name, name)} {heads} heads"


def layer_peer_rows(layer):
    """Columns forward, forward and backward, megabytes kept in between; first PyTorch and softmax, then ratios."""
    steps = [layer["steps"][step] for step in ("forward", "training")]
    base = f"softmax:{layer['heads']}"
    kept = {variant: f"{1e-6 * one['activation_bytes']:.1f}" for variant, one in steps[1]["clmgk"].items()}
    ms = {variant: [step["clmgk"][variant]["ms"] for step in steps] for variant in steps[0]["clmgk"]}
    yield ("PyTorch (`nn.MultiheadAttention`, `LayerNorm`), ms", *(f"{step['pytorch_ms']:.0f}" for step in steps),
           f"{1e-6 * layer['pytorch_kept_bytes']:.1f}")
    yield f"libclmgk, {layer_name(base)}, ms", *(f"{value:.0f}" for value in ms[base]), kept[base]
    ratios = (step["clmgk"][base]["rate_ratio"] for step in steps)
    yield f"PyTorch / {layer_name(base)}, time", *(f"{value:.2f}" for value in ratios), ""
    for variant in ms:
        if variant != base:
            ratios = (one / other for one, other in zip(ms[variant], ms[base]))
            text = f"{layer_name(variant)} / {layer_name(base)}, time"
            yield text, *(f"{value:.2f}" for value in ratios), kept[variant]


def layer_rows(layers):
    """Of each variant: times, host time of a call (and our own part of it), a decoding step / reading."""
    found = {}
    for one in layers:
        if "time_ms" in one:
            found.setdefault(f"{one['variant']}:{one['heads']}", {})[one["step"]] = one

    def call(one, name):
        total, own = one[f"enqueue{name}_us"], one.get(f"enqueue{name}_own_us")
        return f"{total:.0f}" + ("" if own is None else f" ({own:.0f})")

    for variant, steps in found.items():
        forward, training, decoding = (steps.get(step) for step in ("forward", "training", "decoding"))
        yield (layer_name(variant), f"{median(forward):.1f}" if forward else "",
               f"{median(training):.1f}" if training else "", call(forward, "") if forward else "",
               call(training, "") if training else "", call(training, "_backward") if training else "",
               cell(decoding["ratio_to_reading"]) if decoding else "")


# ---- cases of a GPU

UNITS = {"unit=1": "mma.sync", "unit=2": "wgmma"}
BACK_ENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")
OF_PEERS = ("variant", "batch", "heads", "length", "length_k", "head_size", "causal", "dtype", "pass")


def case_text(case):
    length = case["length"] if case["length"] == case["length_k"] else f"{case['length']} x {case['length_k']}"
    notes = [case["dtype"], case["pass"]] + ["causal"] * bool(case.get("causal"))
    notes += [f"`precision` {case['precision']}"] if case.get("precision") else []
    return f"{case['variant']} {case['heads']}, {length}, D = {case['head_size']}, {', '.join(notes)}"


def case_rows(cases, peers):
    """A case a row, 16-bit types first, beside PyTorch's kernels."""
    theirs = {(*(one.get(key) for key in OF_PEERS), one["back_end"]): one.get("ms") for one in peers if "back_end" in one}
    for case in sorted(cases, key=lambda case: (case["dtype"], case["pass"] != "forward")):
        unit = next((unit for key, unit in UNITS.items() if key in case.get("parameters", "").split(",")), None)
        unit = unit if case["engine"] == "matrix" and unit else case["engine"]
        exact = not case.get("precision")
        found = [theirs.get((*(case.get(key) for key in OF_PEERS), name)) if exact else None for name in BACK_ENDS]
        yield (case_text(case), unit, f"{median(case):.3f}", f"{1e-3 * case['gflops']:.0f}",
               *("" if ms is None else f"{ms:.3f}" for ms in found))


def print_table(head, lines):
    def row(cells):
        return "|" + "|".join(f" {one} " if one else " " for one in cells) + "|"

    print(row(head) + "\n|" + "---|" * len(head))
    for line in lines:
        print(row(line))
    print()


def shape_case(cases, shape, name):
    wanted = {"shape": shape, "pass": name, "dtype": "f32", "variant": "linear"}
    return next((case for case in cases if all(case.get(key) == value for key, value in wanted.items())), None)


def linear_other_rows(cases):
    """The family's figures that are not of the square sizes."""
    for name in PASSES:
        for form in ("", "-causal"):
            both = [shape_case(cases, f"linear-{length}{form}", name) for length in ("256k", "1k")]
            ratio_of_tokens = median(both[0]) / 256 / median(both[1]) if all(both) else None
            text = f"{name}: linear{form.replace('-', ', ')}, D = 64, time per token, N = 262,144 / N = 1,024"
            yield text, ratio_of_tokens
    for shape, text in (("linear-step", "one sequence"), ("linear-steps", "64 sequences")):
        found = shape_case(cases, shape, "forward")
        part = found and found.get("state_fraction_of_copy")
        yield f"decoding, {text}: time / states read and written once at the measured rate of copying", part and 1 / part


def paper_ratio(cases, head_size, **wanted):
    one = find(cases, head_size, **wanted)
    return one["paper_operations"]["matrices"] if one and one.get("paper_operations") else None


def eager_rows(mixed, name):
    """Heads mixed beside the eager formula, of one pass."""
    sizes = {size["head_size"]: size[name] for size in mixed["mixed"]}
    for variant in ("hard-fish", "talking-heads"):
        for key, text in (("time_ratio", "time, eager formula in PyTorch / libclmgk"),
                          ("memory_ratio", "memory beside inputs and results, libclmgk / eager formula")):
            found = [sizes[size][variant][key] if size in sizes else None for size in HEAD_SIZES]
            yield f"{name}: {variant}, {text}", found


def print_sizes(title, rows_of):
    """A table with a column for each head size, unless nothing was measured."""
    lines = [(text, values) for name in PASSES for text, values in rows_of(name)]
    if all(value is None for _, values in lines for value in values):
        return
    print(f"| {title} | " + " | ".join(f"D = {size}" for size in HEAD_SIZES) + " |")
    print("|---|" + "---|" * len(HEAD_SIZES))
    for text, values in lines:
        print(f"| {text} | " + " | ".join(cell(value) for value in values) + " |")
    print()


def cell(value):
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:.2f}" if value >= 0.02 or value == 0 else f"{value:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", help="object of clmgk-bench --suite full --pass both --json (or --shapes square-32,...)")
    parser.add_argument("--peers", help="object of peers/run.sh --json")
    parser.add_argument("--mixed", help="object of peers/run.sh --mixed --json")
    parser.add_argument("--linear", help="object of peers/run.sh --linear --json")
    parser.add_argument("--layer", help="object of peers/run.sh --layer --json")
    parser.add_argument("--cases", action="store_true", help="only a table of all cases, beside PyTorch's kernels")
    parser.add_argument("--device", type=int, default=0, help="place in the object's list of devices")
    arguments = parser.parse_args()
    results = load(arguments.results)
    if arguments.cases:
        # gpu-bundle.sh keeps the objects of clmgk-bench beside others
        measured = [own for name, own in results.items() if name == "bench" or name.startswith("table-")] or [results]
        head = ("case", "unit", "ms", "TFLOP/s", "FlashAttention-2, ms", "cuDNN, ms")
        print_table(head, case_rows([case for own in measured for case in own["cases"]], results.get("peers", [])))
        return
    cases = [case for case in results["cases"] if case["device"] == arguments.device]
    device = results["devices"][arguments.device]
    print(f"{device['name']}, {device['platform']} {device['driver']}, {device['compute_units']} compute units", end="")
    peaks = (("FMA {:.0f} GFLOP/s", "peak_fma_gflops"), ("copy {:.1f} GB/s", "peak_copy_gbps"))
    print("".join(", " + text.format(device[key]) for text, key in peaks if device.get(key)) + "\n")
    peers = load(arguments.peers) if arguments.peers else None
    print_sizes("N = S = 4096, f32; H = 8 where not said", lambda name: rows(cases, peers, name))
    print_sizes("N = S = 4096, f32, heads mixed", lambda name: mixed_rows(cases, name))
    print_sizes("N = S = 4096, f32, linear family, elu1", lambda name: linear_rows(cases, name))
    if arguments.mixed:
        mixed = load(arguments.mixed)
        print_sizes("N = S = 4096, f32, heads mixed", lambda name: eager_rows(mixed, name))
    lines = list(linear_peer_rows(cases, load(arguments.linear) if arguments.linear else None))
    if any(value is not None for _, values in lines for value in values):
        head = ("N = S = 4096, D = 64, f32, elu1", *PASSES)
        print_table(head, [(text, *map(cell, values)) for text, values in lines])
    if arguments.layer:
        head = ("", "forward", "forward and backward", "kept for backward, MB")
        print_table(head, layer_peer_rows(load(arguments.layer)["layer"]))
    layers = [one for one in results.get("layers", []) if one["device"] == arguments.device]
    if layers:
        head = ("", "forward, ms", "forward and backward, ms", "call forward, µs (own)", "call in training, µs (own)",
                "call backward, µs (own)", "decoding / reading once")
        print_table(head, layer_rows(layers))
    notes = {case["peak_note"] for case in cases if case.get("peak_note")}
    if notes:
        print(f"Parts of the peak above 1: {', '.join(notes)}.\n")
    others = [(text, cell(value)) for text, value in [*other_rows(cases, peers), *linear_other_rows(cases)] if value is not None]
    if others:
        print_table(("", ""), others)


if __name__ == "__main__":
    main()
