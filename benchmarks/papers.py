#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The papers' figures: operations, parameters and memory; from which length on linear attention is faster than softmax.

usage: benchmarks/papers.py counts [--output FOLDER] [--format svg|png|pdf]
       benchmarks/papers.py crossing [--head-sizes D,...] [--variants A:H,...] [--pass forward|backward|both] [--dtype T]
                                     [--feature NAME] [--device SEL] [--seconds S] [--output FILE]

`counts` needs the Python package, and no device: it prints the ends of every curve, and numbers that the papers print beside
ours; to a folder it writes counts.csv with all points, and a picture of each figure. `crossing` times softmax attention with
8 heads beside others by build/bin/clmgk-bench, at lengths N = S from 256 on, doubled or halved until the order changes, then
by bisection; it prints the shortest length at which the other was faster, and draws the times. Use an idle machine. Pictures
need Matplotlib.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
from dataclasses import dataclass
from typing import NamedTuple

BENCH = pathlib.Path(__file__).resolve().parents[1] / "build" / "bin" / "clmgk-bench"

# ---- what is counted ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """Layers of attention with their projections, each with a feed-forward network of two products, and an embedding.
    Matrices alone, without biases and normalisation."""

    name: str
    layers: int
    width: int
    heads: int
    head_size: int  # 0: the width by the heads
    length: int
    sequences: int = 1  # of an example
    hidden: int = 0
    vocabulary: int = 0


# MGK paper, A.1.1 and A.1.2: of the Long Range Arena heads of 32; of WikiText-103 as many tokens as its paper counts.
WIKITEXT = Model("wikitext-103", 16, 1024, 8, 0, 1024, hidden=2048, vocabulary=267735)
MEDIUM = Model("wikitext-103 medium", 16, 256, 8, 0, 384, hidden=2048, vocabulary=267735)
RETRIEVAL = Model("lra-retrieval", 2, 64, 8, 32, 4096, sequences=2, hidden=128)  # of two documents
LISTOPS = Model("lra-listops", 2, 64, 8, 32, 2048, hidden=128)
REVIEWS = Model("lra-text", 2, 64, 8, 32, 4096, hidden=128)
# The attention layer alone.
LAYER = Model("layer", 1, 512, 8, 0, 1024)
LRA_LAYER = Model("lra-layer", 1, 64, 8, 32, 4096)
# Stages of Swin-T that FiSH mixes, with their global heads and their windows of 49 tokens.
SWIN = ((Model("swin-t, third stage", 6, 384, 12, 32, 49), 6, 4), (Model("swin-t, fourth stage", 2, 768, 24, 32, 49), 12, 1))


class Curve(NamedTuple):
    label: str
    variant: str
    share: int = 1  # it has 1 / share of the heads that it is compared with
    components: int = 2
    width: int = 0  # 0: the axis', or the model's
    quantity: str = ""  # "": the panel's
    given_prior: bool = False  # not a parameter


class Panel(NamedTuple):
    title: str
    quantity: str
    axis: str
    model: Model
    at: tuple[int, ...]
    curves: tuple[Curve, ...]
    baseline: str = "softmax"  # with all heads
    ratio: bool = True  # to the baseline
    batch: int = 1


class Figure(NamedTuple):
    name: str
    title: str
    panels: list[Panel]


class Setting(NamedTuple):
    """One attention of a model."""

    variant: str
    heads: int
    components: int
    width: int
    head_size: int
    length: int
    sequences: int
    given_prior: bool = False


FORWARD, TRAINING, PARAMETERS = "inference_operations", "training_operations", "parameters"
ALL_PARAMETERS, MEMORY, TRAINING_MEMORY = "all_parameters", "inference_memory", "training_memory"
UNITS = {FORWARD: ("operations / $10^9$", 1e-9), TRAINING: ("operations / $10^9$", 1e-9), MEMORY: ("MB", 1e-6),
         PARAMETERS: ("parameters / $10^6$", 1e-6), ALL_PARAMETERS: ("parameters / $10^6$", 1e-6)}  # of panels
AXES = {"length": "sequence length N", "width": "model width D", "heads": "heads", "components": "keys or global heads M"}
LENGTHS, WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192), (256, 512, 1024, 2048, 4096)

# ---- the figures -------------------------------------------------------------------------------------------------------


def over_widths(variant, share):
    return tuple(Curve(f"D {width}", variant, share, width=width) for width in WIDTHS)


def parameters_of(variant, share):
    return (Curve("total", variant, share, quantity=ALL_PARAMETERS), Curve("without embedding", variant, share))


def halves(variant, baseline):
    """Half the heads, in the paper's model and in its attention layer."""
    widths = over_widths(variant, 2)
    memory = (Curve("inference", variant, 2), Curve("training", variant, 2, quantity=TRAINING_MEMORY))
    return [Panel("A: training, model", TRAINING, "length", WIKITEXT, LENGTHS, widths, baseline),
            Panel("B: inference, model", FORWARD, "length", WIKITEXT, LENGTHS, widths, baseline),
            Panel("C: parameters, model", PARAMETERS, "width", WIKITEXT, WIDTHS, parameters_of(variant, 2), baseline),
            Panel("training, attention layer", TRAINING, "length", LAYER, LENGTHS, widths, baseline),
            Panel("inference, attention layer", FORWARD, "length", LAYER, LENGTHS, widths, baseline),
            Panel("memory, attention layer, D 512", MEMORY, "length", LAYER, LENGTHS, memory, baseline)]


def over_heads(title, quantity, model, curves, baseline="softmax", batch=1, at=(2, 4, 8, 12)):
    return Panel(title, quantity, "heads", model, at, curves, baseline, False, batch)


def of_tasks(quantity, what, batch=1):
    return [over_heads(f"{title}, {what}", quantity, model, LEARNING, batch=batch, at=(1, 2, 4, 8))
            for title, model in (("retrieval", RETRIEVAL), ("listops", LISTOPS), ("text", REVIEWS))]


def of_fish(title, quantity, axis, curves, ratio=True, model=WIKITEXT):
    return Panel(title, quantity, axis, model, LENGTHS if axis == "length" else WIDTHS, curves, ratio=ratio)


def of_family(variants, baseline):
    """Every variant of a family, in the layer of width 512 and N = 1024 but for the axis."""
    places = {"length": LENGTHS, "width": WIDTHS, "heads": (2, 4, 8, 16, 32), "components": tuple(range(1, 9))}
    curves = []
    for variant in variants:
        curves.append(Curve(variant, variant, components=1 if variant == "gaussian" else 2))
        if variant in ("mgk", "smgk", "mlk", "smlk"):
            curves.append(Curve(f"{variant}, half the heads", variant, 2))
    return [Panel(f"{name} over {letter}", quantity, axis, LAYER, places[axis], tuple(curves), baseline)
            for name, quantity in zip(("forward", "training", "parameters", "memory"),
                                      (FORWARD, TRAINING, PARAMETERS, MEMORY))
            for axis, letter in zip(places, "NDHM")]


MGK = (Curve("softmax", "softmax", components=0), Curve("MGK, half the heads", "mgk", 2))
MLK = (Curve("linear", "linear", components=0), Curve("MLK, half the heads", "mlk", 2))
# How the prior is found: by gradients, by the M-step.
LEARNING = (Curve("sMGK", "smgk"), Curve("MGK", "mgk"), Curve("MGK soft or hard E", "mgk", given_prior=True))
KINDS = (Curve("FiSH", "fish"), Curve("hard FiSH", "hard-fish"), Curve("GFiSH", "gfish"), Curve("hard GFiSH", "hard-gfish"))
GLOBALS = tuple(Curve(f"{heads} global heads", "gfish", components=heads) for heads in (2, 4, 6))
GFISH = over_widths("gfish", 1)
MIXED = ("fish", "hard-fish", "mish", "hard-mish", "gfish", "hard-gfish")
WHERE = "layer of width 512, 8 heads, M = 2, N = 1024"
FIGURES = (
    Figure("mgk-3", "MGK with 4 heads / softmax with 8 (MGK paper, Fig. 3)", halves("mgk", "softmax")),
    Figure("mgk-4", "Cost of MGK and MLK over the number of heads (MGK paper, Fig. 4)", [
        panel for name, curves, baseline in (("softmax and MGK", MGK, "softmax"), ("linear and MLK", MLK, "linear"))
        for panel in (over_heads(f"operations, {name}", FORWARD, RETRIEVAL, curves, baseline),
                      over_heads(f"parameters, {name}", PARAMETERS, RETRIEVAL, curves, baseline),
                      over_heads(f"one layer of one sequence, {name}", FORWARD, LRA_LAYER, curves, baseline))]),
    Figure("mgk-8", "Ways of learning MGK, inference (MGK paper, Fig. 8)", [
        *of_tasks(PARAMETERS, "parameters"), *of_tasks(FORWARD, "operations")]),
    Figure("mgk-10", "MLK with 4 heads / linear with 8 (MGK paper, Fig. 10)", halves("mlk", "linear")),
    Figure("mgk-15", "Training over the number of heads (MGK paper, Fig. 15)", [
        panel for name, curves, baseline in (("softmax and MGK", MGK, "softmax"), ("linear and MLK", MLK, "linear"))
        for panel in (over_heads(f"{name}, batch 32", TRAINING, RETRIEVAL, curves, baseline, 32),
                      over_heads(f"one layer of one sequence, {name}", TRAINING, LRA_LAYER, curves, baseline))]),
    Figure("mgk-16", "Ways of learning MGK, training (MGK paper, Fig. 16)", of_tasks(TRAINING, "batch 32", 32)),
    Figure("fish-3", "GFiSH with 2 global heads / softmax with 8 (FiSH paper, Fig. 3)", [
        of_fish("A: training, model", TRAINING, "length", GFISH),
        of_fish("B: inference, model", FORWARD, "length", GFISH),
        of_fish("C: parameters, model", PARAMETERS, "width", parameters_of("gfish", 1)),
        of_fish("training, attention layer", TRAINING, "length", GFISH, model=LAYER),
        of_fish("inference, attention layer", FORWARD, "length", GFISH, model=LAYER),
        of_fish("D: memory at inference, model", MEMORY, "length", GFISH)]),
    Figure("fish-6", "Kinds of FiSH, 2 global heads (FiSH paper, Fig. 6)", [
        of_fish("training, D 1024", TRAINING, "length", KINDS, False),
        of_fish("inference, D 1024", FORWARD, "length", KINDS, False),
        of_fish("parameters with embedding", ALL_PARAMETERS, "width", KINDS, False),
        of_fish("memory at inference, N 1024", MEMORY, "width", KINDS, False)]),
    Figure("fish-7", "GFiSH / softmax with 8 heads, operations (FiSH paper, Fig. 7)", [
        of_fish("training, D 1024", TRAINING, "length", GLOBALS), of_fish("inference, D 1024", FORWARD, "length", GLOBALS)]),
    Figure("fish-8", "GFiSH / softmax with 8 heads, parameters and memory (FiSH paper, Fig. 8)", [
        of_fish("parameters with embedding", ALL_PARAMETERS, "width", GLOBALS),
        of_fish("parameters without embedding", PARAMETERS, "width", GLOBALS),
        of_fish("memory at inference, N 1024", MEMORY, "width", GLOBALS)]),
    Figure("mixture", f"Mixtures of keys / softmax: {WHERE}", of_family(("gaussian", "mgk", "smgk"), "softmax")),
    Figure("linear", f"Linear mixtures of keys / linear: {WHERE}", of_family(("mlk", "smlk"), "linear")),
    Figure("admixture", f"Mixed heads / softmax: {WHERE}", of_family((*MIXED, "talking-heads"), "softmax")),
    Figure("linear-admixture", f"Linear forms of mixed heads / linear: {WHERE}",
           of_family([f"l{name}" for name in MIXED], "linear")),
)

# ---- values ------------------------------------------------------------------------------------------------------------


def is_mixed(variant):
    return variant.endswith("ish") or variant == "talking-heads"


def attention_of(setting):
    """The counts of a setting's attention; its noise is shared, as the FiSH paper counts it."""
    import clmgk
    variant = setting.variant
    has_components = variant in ("mgk", "smgk", "mlk", "smlk")
    general = variant.endswith("gfish")
    return clmgk.count_attention(
        width=setting.width, width_out=setting.width, variant=variant, batch=setting.sequences, heads=setting.heads,
        components=setting.components if has_components or is_mixed(variant) else 0, length=setting.length,
        head_size=setting.head_size, prior_shape="hm" if has_components and not setting.given_prior else "uniform",
        shared_noise=is_mixed(variant) and "hard-" not in variant and variant != "talking-heads", use_mix_weight=general,
        use_mix_offset=general and not variant.startswith("l"))


def operations(passes):
    return sum(one.multiplications + one.additions for one in passes.values())


def count(model, setting, quantity):
    counts, rows = attention_of(setting), setting.sequences * setting.length
    forward, backward = operations(counts.forward), operations(counts.backward)
    if model.hidden:  # two products; four for the gradients of weights, X and hidden units
        terms, results = 2 * rows * setting.width * model.hidden, rows * (setting.width + model.hidden)
        forward += 2 * terms - results
        backward += 4 * terms - results - 2 * setting.width * model.hidden
    parameters = model.layers * (sum(counts.parameters.values()) + 2 * setting.width * model.hidden)
    everything = parameters + setting.width * model.vocabulary
    # X, Y, the hidden units, Q, K, V and O of a layer.
    keys = setting.heads * (setting.components if setting.variant in ("mgk", "mlk") else 1)
    vectors = 2 * (setting.components + setting.heads) if is_mixed(setting.variant) else keys + 3 * setting.heads
    elements = rows * (2 * setting.width + model.hidden + vectors * setting.head_size)
    return {FORWARD: model.layers * forward, TRAINING: model.layers * (forward + backward), PARAMETERS: parameters,
            ALL_PARAMETERS: everything, MEMORY: 4 * (everything + elements),
            TRAINING_MEMORY: 4 * (2 * everything + (model.layers + 1) * elements)}[quantity]


def setting_of(panel, curve, variant, share, at):
    """The variant with its share of the heads, at a place of the panel's axis."""
    model = panel.model
    given = {"length": model.length, "width": curve.width or model.width, "heads": model.heads,
             "components": curve.components, panel.axis: at}
    heads = max(given["heads"] // share, 1)
    return Setting(variant, heads, heads if variant == "talking-heads" else given["components"], given["width"],
                   model.head_size or given["width"] // model.heads, given["length"], panel.batch * model.sequences,
                   curve.given_prior)


def points():
    """Every point of every curve as a dictionary: the row of counts.csv."""
    for figure in FIGURES:
        for panel in figure.panels:
            for curve in panel.curves:
                quantity = curve.quantity or panel.quantity
                for at in panel.at:
                    own = setting_of(panel, curve, curve.variant, curve.share, at)
                    baseline = setting_of(panel, curve, panel.baseline, 1, at)
                    value, base = (count(panel.model, setting, quantity) for setting in (own, baseline))
                    yield {"figure": figure.name, "panel": panel.title, "curve": curve.label, "model": panel.model.name,
                           "quantity": quantity, "axis": panel.axis, "at": at, "variant": own.variant, "heads": own.heads,
                           "components": own.components, "width": own.width, "head_size": own.head_size,
                           "length": own.length, "batch": own.sequences, "value": value, "baseline_variant": panel.baseline,
                           "baseline_heads": baseline.heads, "baseline_value": base, "ratio": value / base}


def claims(rows):
    """Numbers that the papers print: where, what, unit, printed, whether "more than" that, counted."""
    medium = count(MEDIUM, Setting("softmax", 8, 0, 256, 32, 384, 1), ALL_PARAMETERS)
    saved = 1 - min(row["ratio"] for row in rows if row["figure"] == "fish-3" and row["panel"][:2] in ("A:", "B:"))
    multiplications = parameters = 0
    for model, components, windows in SWIN:
        for variant, sign in (("softmax", model.layers), ("hard-gfish", -model.layers)):
            counts = attention_of(Setting(variant, model.heads, components, model.width, model.head_size, model.length,
                                          windows))
            multiplications += sign * sum(one.multiplications for one in counts.forward.values())
            parameters += sign * sum(counts.parameters.values())
    table = "FiSH paper, Table 4"
    return [("MGK paper, section 3.2", "parameters of the medium softmax model of WikiText-103", "10^6", 90, False,
             1e-6 * medium),
            ("FiSH paper, Appendix C, Fig. 3", "operations that GFiSH with 2 of 8 heads saves, at most", "%", 30, True,
             100 * saved),
            (table, "operations that hard GFiSH 6/12 saves in Swin-T: 4.51 - 4.27", "10^9 multiply-adds", 0.24, False,
             1e-9 * multiplications),
            (table, "parameters that it saves: 28.3 - 26.2", "10^6", 2.1, False, 1e-6 * parameters)]


def print_counts(rows):
    print("Operations, parameters and memory, counted as the papers count them (clmgk/counts.h).")
    shown = iter(rows)
    for figure in FIGURES:
        print(f"\n{figure.name}: {figure.title}")
        for panel in figure.panels:
            parts = f"; parts of {panel.baseline}" if panel.ratio else ""
            axis = f"{panel.axis} {panel.at[0]} .. {panel.at[-1]}"
            print(f"  {panel.title} ({panel.model.name}, {panel.quantity}): {axis}{parts}")
            for curve in panel.curves:
                drawn = [row["ratio" if panel.ratio else "value"] for _, row in zip(panel.at, shown)]
                print(f"    {curve.label:24s} {drawn[0]:11.4g} .. {drawn[-1]:<.4g}")
    print("\nNumbers that the papers print")
    for where, what, unit, printed, at_least, counted in claims(rows):
        print(f"  {where}: {what}: {'more than ' if at_least else ''}{printed}, counted {counted:.4g} {unit}")


# ---- pictures ----------------------------------------------------------------------------------------------------------


def pyplot():
    import matplotlib
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "clmgk"
    from matplotlib import pyplot as plt
    return plt


def draw_figure(figure, rows, path):
    plt = pyplot()
    columns = next(n for n in (4, 3, 2) if len(figure.panels) % n == 0)
    lines = len(figure.panels) // columns
    size = (4 * columns, 3.6 * lines + 0.5)
    picture, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for panel, ax in zip(figure.panels, axes.flat):
        label, scale = UNITS[panel.quantity]
        for number, curve in enumerate(panel.curves):
            place = (figure.name, panel.title, curve.label)
            drawn = [row["ratio"] if panel.ratio else scale * row["value"] for row in rows
                     if (row["figure"], row["panel"], row["curve"]) == place]
            ax.plot(panel.at, drawn, label=curve.label, linestyle=("-", "--", ":", "-.")[number % 4])
        ax.set(title=panel.title, xlabel=AXES[panel.axis], ylabel=f"part of {panel.baseline}" if panel.ratio else label)
        if panel.axis != "components":
            ax.set_xscale("log", base=2)
        ax.set_xticks(panel.at, panel.at)
        ax.minorticks_off()
        if not panel.ratio:
            ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    picture.suptitle(figure.title)
    picture.savefig(path)
    plt.close(picture)


def count_figures(given):
    rows = list(points())
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
        with open(given.output / "counts.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        for figure in FIGURES:
            draw_figure(figure, rows, given.output / f"{figure.name}.{given.format}")
    print_counts(rows)


# ---- crossing ----------------------------------------------------------------------------------------------------------

FIRST, LEAST, MOST, CLOSE = 256, 16, 16384, 1.06  # lengths; the ratio of the lengths on both sides of a crossing


def times_at(given, variant, size, causal, which, length):
    """Milliseconds of softmax and of the variant."""
    command = [given.bench, "--json", "--keep-caches", "--variants", f"softmax:8,{variant}", "--heads", 8, "--length",
               length, "--head-size", size, "--pass", which, "--dtype", given.dtype, "--seconds", given.seconds]
    command += ["--causal"] * causal
    for name in ("device", "feature"):
        command += [f"--{name}", getattr(given, name)] if getattr(given, name) else []
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    if len(found.get("cases", ())) != 2:
        reasons = [one.get("refused") or one.get("wrong") for one in found.get("failures", ())] or [done.stderr.strip()]
        sys.exit(f"{' '.join(map(str, command))}: {'; '.join(reasons)}")
    return [case["time_ms"]["median"] for case in found["cases"]]


def find_crossing(measure):
    """The longest length at which softmax was as fast, and the shortest at which the other was faster; 0: none in the
    limits. `measure` tells whether the other is faster."""
    below = above = 0
    length = FIRST
    while LEAST <= length <= MOST and not (below and above):
        if measure(length):
            above, length = length, length // 2
        else:
            below, length = length, length * 2
    while below and above > max(CLOSE * below, below + 4):
        middle = round((below * above) ** 0.5 / 4) * 4
        if not below < middle < above:
            break
        below, above = (below, middle) if measure(middle) else (middle, above)
    return below, above


def find_crossings(given):
    plt = pyplot() if given.output else None
    print(f"{'faster than softmax 8 from N on':42s} {'D':>4s} {'':6s} {'N':>8s} {'ms there':>10s} {'softmax':>10s}")
    passes = ("forward", "backward") if given.pass_ == "both" else (given.pass_,)
    curves = {}
    for which, variant, size, causal in ((p, v, d, c) for p in passes for v in given.variants for d in given.head_sizes
                                         for c in (False, True)):
        times = {}

        def measure(length):
            times[length] = times_at(given, variant, size, causal, which, length)
            return times[length][1] < times[length][0]

        below, above = find_crossing(measure)
        text = f"{variant:32s} {which:9s} {size:4d} {'causal' if causal else 'full':6s} "
        place = f"{'' if below else '<= '}{above}"
        found = f"{place:>8s} {times[above][1]:10.3f} {times[above][0]:10.3f}" if above else f"not up to {MOST}"
        print(text + found, flush=True)
        curves[" ".join(text.split())] = times
    if plt:
        picture, ax = plt.subplots(figsize=(8, 6), layout="constrained")
        for label, times in curves.items():
            lengths = sorted(times)
            ax.plot(lengths, [times[n][1] / times[n][0] for n in lengths], marker=".", label=label)
        ax.axhline(1, color="black", linewidth=0.8)
        ax.set(xscale="log", yscale="log", xlabel="N = S", ylabel="time / time of softmax, 8 heads")
        ax.legend()
        picture.savefig(given.output)


# ---- the command -------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="counts|crossing")
    counts = commands.add_parser("counts", help="operations, parameters and memory, without a device")
    counts.add_argument("--output", type=pathlib.Path, help="folder of counts.csv and the pictures")
    counts.add_argument("--format", choices=("svg", "png", "pdf"), default="svg", help="of pictures (default: svg)")
    counts.set_defaults(run=count_figures)
    crossing = commands.add_parser("crossing", help="the length from which on linear attention is faster than softmax")
    crossing.add_argument("--head-sizes", type=lambda text: [int(word) for word in text.split(",")], default=[32, 64, 128])
    crossing.add_argument("--variants", type=lambda text: text.split(","), default=["linear:8"])
    crossing.add_argument("--pass", dest="pass_", choices=("forward", "backward", "both"), default="forward")
    crossing.add_argument("--dtype", default="f32")
    for name in ("--feature", "--device"):
        crossing.add_argument(name, help="as of clmgk-bench")
    crossing.add_argument("--seconds", type=float, default=0.2, help="of a length (default: 0.2)")
    crossing.add_argument("--output", help="a picture of the times")
    crossing.add_argument("--bench", default=BENCH, help="the program clmgk-bench (default: of build/)")
    crossing.set_defaults(run=find_crossings)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
