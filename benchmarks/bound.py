#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The least times of softmax attention, MGK and sMGK by the lane engine, counted from a plan's tiles, beside measured ones.

Times are counted in vector multiply-adds (slots), of which a core with vectors of 512 bits makes one in a cycle:

- products: whole register blocks, with the rows, keys and features that the plan's tiles add;
- exponentials: multiplications and multiply-adds of a vector of scores beside the products; additions, comparisons and
  conversions use other units at the same time;
- terms of queries and keys (MGK, sMGK): norms, and products with the shifts;
- transposes of LANES x LANES numbers, log2(LANES) shuffles a vector; copies of vectors to tiles and from accumulators,
  two slots for a store.

The rest (loads, addresses, loops) uses units of its own. Memory: all arrays once at the measured rate of copying, in
the shadow of the work at best ("bound"), beside it at worst ("with memory"). docs/short-sequences.md has the details.

--shared-units: two units make multiply-adds, and all other vector instructions as well (Intel's CPUs). Then additions and
conversions of the exponentials count too, and a copy is its multiplication: stores have a unit of their own. Products
whose multiply-adds each load a factor wait for the two loads of a cycle.
"""
import argparse
import collections
import json
import math
import pathlib
import subprocess

# Multiplications and multiply-adds of a vector of scores, counted in the compiled kernels: of a pair, of a component.
EXPONENTIALS = {
    ("softmax", "forward"): (0, 6), ("mgk", "forward"): (0, 6), ("smgk", "forward"): (8, 2),
    ("softmax", "backward"): (1, 7), ("mgk", "backward"): (1, 7), ("smgk", "backward"): (14, 5),
}
# Their additions, subtractions and conversions.
OTHERS = {
    ("softmax", "forward"): (0, 3), ("mgk", "forward"): (0, 3), ("smgk", "forward"): (4, 0),
    ("softmax", "backward"): (0, 4), ("mgk", "backward"): (1, 4), ("smgk", "backward"): (6, 0),
}
COPY = 2
# Slots of a multiply-add that loads its factor, beside one more load for eight or sixteen of them: measured.
LOADED = {8: 1.21, 16: 1.12}
# Shuffles for an entry's sum over the lanes of the features of a short panel's last row.
SINGLE_SHUFFLES = 3
FEW = 2  # so many keys of a last sub-tile, backward queries, have a register block of their own


def ceiling(count, unit):
    return -(-count // unit) * unit


class Plan:
    """Tiles of a case's plan, and its sizes rounded as the kernels round them."""

    def __init__(self, case):
        parameters = dict(item.split("=") for item in case["parameters"].split(","))
        for name in ("lanes", "vectors", "panels", "tile", "block", "unroll"):
            setattr(self, name, int(parameters[name]))
        self.step = min(self.unroll, self.block)
        self.rows = self.vectors * self.lanes
        self.group = self.panels * self.rows
        self.n, self.s, self.causal = case["length"], case["length_k"], case["causal"]
        # a bias that several heads share is transposed once for all: it is only loaded
        options = case.get("options", "")
        self.bias = bool(case.get("bias")) and self.n > 1 and "BIAS_TRANSPOSED" not in options
        self.products = case["components"] if case["variant"] == "mgk" else 1
        self.d, self.e = (self.width(case[key]) for key in ("head_size", "value_size"))
        # benchmarks have no gaps between rows
        self.in_place = "ONE_SPACE" in options and (self.d, self.e) == (case["head_size"], case["value_size"])
        # on a diagonal the other half of a panel may see nothing
        self.half = ceiling(self.vectors, 2) // 2
        self.short = "SHORT_PANEL" in options
        self.any_order = "ANY_ORDER" in options  # the scores of a single row are summed by lanes
        # accumulators of heads of up to a vector have lane = row
        self.columns = self.e < self.lanes or (self.e == self.lanes and self.vectors > 1)

    def width(self, size):
        return self.lanes // 2 if size <= self.lanes // 2 else ceiling(size, self.lanes)

    def transpose(self, size, vectors):
        """Vectors of rows of `size` features."""
        return vectors * size * math.log2(self.lanes)

    def is_short(self, rows):
        """Whether a panel of `rows` rows has the form for half of them and one."""
        return self.short and rows <= self.half * self.lanes + 1

    def waits(self, vectors, factors):
        """Slots more for a multiply-add if each of the block's `factors` is loaded for as many `vectors`."""
        return LOADED[factors] - 1 if vectors == 1 and factors in LOADED else 0

    def entries(self, count):
        """Keys, backward queries, of the products of scores and dP."""
        rest = count % self.block
        return count - rest + (FEW if 0 < rest <= FEW else ceiling(rest, self.block))

    def short_part(self, rows, entries, single):
        """The same of a panel of `rows` rows, in vectors, if it is short: half of the panel; the rest, with the last
        row's sums, lane = feature; the shuffles of these sums. None if it is not, or if it has the last row and no such
        form for a `single` row."""
        if not self.is_short(rows) or (rows > self.half * self.lanes and not single):
            return None
        few = entries % self.block if entries % self.block <= FEW else 0
        whole = ceiling(entries - few, self.block)
        of_row = whole if rows > self.half * self.lanes else 0
        return whole * self.half, of_row / self.lanes + (FEW * self.vectors if few else 0), SINGLE_SHUFFLES * of_row

    def last_key(self, row):
        """The number of keys that rows up to `row` see."""
        return min(max(row + 1 + self.s - self.n, 0), self.s) if self.causal else self.s

    def first_row(self, key):
        return max(key - (self.s - self.n), 0) if self.causal else 0


def forward(x):
    """Slots of a head's products, transposes and copies, and its vectors of scores."""
    work = collections.Counter()
    stripe = 2 if x.e % (2 * x.lanes) == 0 else 1
    block = min(max(x.block * x.vectors, x.lanes) // stripe, x.rows)
    for first in range(0, x.n, x.rows):
        rows = min(x.n - first, x.rows)
        keys = x.last_key(first + rows - 1)
        all_see = min(x.last_key(first + x.half * x.lanes - 1), keys)  # some rows of both halves do
        whole = min(ceiling(all_see, x.block), keys)
        work["scores"] += ceiling(keys, x.block) * x.vectors
        short = x.short_part(rows, keys, x.any_order)
        if short:
            of_half, rest, shuffles = short
            scores = of_half + rest
            work["transposes"] += shuffles * x.products
            work["loads"] += of_half * x.d * x.products * x.waits(x.half, x.block)
        else:
            scores = x.entries(whole) * x.vectors + ceiling(keys - whole, x.block) * (x.vectors - x.half)
            work["loads"] += scores * x.d * x.products * x.waits(x.vectors, x.block)
        scores *= x.d * x.products
        work["products"] += scores
        if x.columns:
            last = ceiling(keys, x.block)
            whole = min(ceiling(all_see, x.step), last) if all_see < keys else last
            values = (whole * x.vectors + (last - whole) * (x.vectors - x.half)) * x.e
            work["loads"] += values * x.waits(x.vectors, x.block)
            work["transposes"] += x.vectors * x.e * math.log2(x.e)
        else:
            counts = {i: 1 if i + 1 == rows else block for i in range(0, rows, block)}
            values = sum(x.last_key(first + i + n - 1) * n for i, n in counts.items()) * x.e / x.lanes
            work["loads"] += values * x.waits(stripe, block)
        work["products"] += values
        work["transposes"] += x.transpose(x.d, x.half if x.is_short(rows) else x.vectors)
        if x.bias:
            # vectors with more than one row transpose theirs; a key's biases are stored as a vector
            several = ceiling(rows - 1, x.lanes) // x.lanes
            work["transposes"] += several * (keys // x.lanes) * x.lanes * math.log2(x.lanes)
            work["copies"] += COPY * x.vectors * keys
    for first in range(0, x.n, x.group):
        keys = x.last_key(min(first + x.group, x.n) - 1)
        values = (keys % x.tile if x.columns else 0) if x.in_place else keys
        copied = keys % x.block if x.in_place else keys
        work["copies"] += COPY * (ceiling(copied, 16) * x.products * x.d + ceiling(values, 16) * x.e) / x.lanes
    work["copies"] += COPY * x.n * (x.d + x.e) / x.lanes  # Q, O
    return work


def gradient_keys(x, key, query, entries):
    """Keys of a panel that meet queries in dQ's register blocks, times queries."""
    wide = 1 if x.d % (2 * x.lanes) == 0 else 2  # sub-tiles of a register block
    products, at = 0, 0
    while at < entries:
        count = (wide if entries - at > x.block else 1) * x.block
        seen = x.last_key(query + at + count - 1) - key
        products += count * ceiling(min(seen, x.s - key, x.rows), x.step)
        at += count
    return products


def backward(x):
    work = collections.Counter()
    for key in range(0, x.s, x.rows):
        # keys and values, and their gradients
        loaded = x.half if x.is_short(x.s - key) else x.vectors
        stored = min(ceiling(x.s - key, x.lanes) // x.lanes, x.vectors)
        work["transposes"] += x.transpose(x.d * x.products + x.e, loaded + stored)
        rows = 0 if x.in_place and x.s - key >= x.rows else 1
        work["copies"] += COPY * x.rows * ((1 + rows) * x.d * x.products + x.e) / x.lanes
        for query in range(0, x.n, x.tile):
            begin = max(x.first_row(key) - query, 0) // x.block * x.block
            entries = min(x.n - query, x.tile) - begin
            if entries <= 0:
                continue
            # the first entries see nothing of half of the panel, or there are no keys
            few = entries if x.s - key <= x.half * x.lanes else x.first_row(key + x.half * x.lanes) - query - begin
            few = min(max(few, 0), entries)
            blocks, steps = few // x.block * x.block, few // x.step * x.step
            work["scores"] += ceiling(entries, x.block) * x.vectors
            scores = values = x.entries(entries - blocks) * x.vectors + blocks * x.half  # of S, of dP
            gradients = ceiling(entries - steps, x.step) * x.vectors + steps * x.half  # of dK, of dV
            short = x.short_part(x.s - key, entries, True)
            if short:
                of_half, rest, shuffles = short
                values = of_half + rest
                gradients = ceiling(entries, x.step) * (x.half + (x.s - key > x.half * x.lanes) / x.lanes)
                work["transposes"] += shuffles
                halves = of_half * x.e + ceiling(entries, x.step) * x.half * (x.products * x.d + x.e)
                if x.short_part(x.s - key, entries, x.any_order):
                    scores = values
                    work["transposes"] += shuffles * x.products
                    halves += of_half * x.products * x.d
                work["loads"] += halves * x.waits(x.half, x.block)
            work["products"] += scores * x.products * x.d + values * x.e + gradients * (x.products * x.d + x.e)
            queries = gradient_keys(x, key, query + begin, entries) * x.products * x.d / x.lanes  # dQ
            work["products"] += queries
            work["loads"] += queries * x.waits(2 if x.d % (2 * x.lanes) == 0 else 1, x.block)
    for key in range(0, x.s, x.group):
        for query in range(x.first_row(key) // x.tile * x.tile, x.n, x.tile):
            if not (x.in_place and x.n - query >= x.tile):
                work["copies"] += COPY * x.tile * (x.d + x.e) / x.lanes
            if key == 0 or x.causal and x.first_row(key) >= query + x.tile:
                continue
            work["copies"] += 2 * COPY * x.tile * x.d / x.lanes  # dQ between blocks of keys
    tiles = ceiling(x.n, x.tile)
    work["transposes"] += 2 * tiles * x.e * math.log2(x.lanes) / x.lanes  # O and dO
    work["copies"] += COPY * (tiles + x.n) * x.d / x.lanes  # dQ
    return work


def terms(x, shifts, gradients):
    """Norms of queries and keys, and their products with the shifts; backward also their parts of dQ and dK."""
    queries, keys = 1 + shifts, x.products + shifts
    passes = 2 if gradients else 1
    return (x.n * queries + x.s * keys) * passes * x.d / x.lanes


def count(case, shared_units=False):
    """Slots of all heads, by kind; products that a case needs are in its `flops`."""
    plan = Plan(case)
    work = forward(plan) if case["pass"] == "forward" else backward(plan)
    pair, component = EXPONENTIALS[case["variant"], case["pass"]]
    if shared_units:
        others = OTHERS[case["variant"], case["pass"]]
        pair, component = pair + others[0], component + others[1]
        work["copies"] /= COPY
    else:
        del work["loads"]
    components = case["components"] if case["variant"] != "softmax" else 1
    work["exponentials"] = work.pop("scores") * (pair + component * components)
    if case["variant"] != "softmax":
        work["terms"] = terms(plan, components if case["variant"] == "smgk" else 0, case["pass"] == "backward")
    heads = case["batch"] * case["heads"]
    return {kind: slots * heads for kind, slots in work.items()}


def bound(case, device, shared_units=False):
    """Parts of the peak: of all counted work, and with memory beside it; and the kinds' parts of the work."""
    lanes = Plan(case).lanes
    work = count(case, shared_units)
    total = sum(work.values())
    needed = case["flops"] / (2 * lanes)
    slots_of_memory = case["bytes"] / (1e9 * device["peak_copy_gbps"]) * 1e9 * device["peak_fma_gflops"] / (2 * lanes)
    return {
        "bound": needed / max(total, slots_of_memory),
        "with_memory": needed / (total + slots_of_memory),
        "padding": work["products"] / needed,
        "memory": slots_of_memory / total,
        **{kind: slots / total for kind, slots in work.items()},
    }


# ---- results -----------------------------------------------------------------------------------------------------


def load(path, shared_units):
    """Cases of the lane engine by shape, pass and variant, each with its bound."""
    results = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    found = {}
    for case in results["cases"]:
        plain = case["dtype"] == "f32" and not any(case.get(f"dtype_{array}") for array in "kvo")
        if case["engine"] == "lane" and (case["variant"], case["pass"]) in EXPONENTIALS and plain:
            best = case["fraction_of_peak"] * case["time_ms"]["median"] / case["time_ms"]["min"]
            case = {**case, "best": best, **bound(case, results["devices"][case["device"]], shared_units)}
            found[case["shape"], case["pass"], case["variant"]] = case
    return found


COLUMNS = ("products", "loads", "exponentials", "terms", "transposes", "copies", "memory", "bound", "with_memory",
           "fraction_of_peak", "best")
TITLES = ("padding", "products", "loads", "exponentials", "terms", "transposes", "copies", "memory", "bound", "with memory",
          "median", "best")


def print_table(cases, before):
    titles = (*TITLES, "before") if before else TITLES
    print("| | " + " | ".join(titles) + " |\n|---|" + "---|" * len(titles))
    for (shape, name, variant), case in cases.items():
        cells = [f"{case.get(key, 0):.2f}" for key in ("padding", *COLUMNS)]
        if before:
            old = before.get((shape, name, variant))
            cells.append(f"{old['fraction_of_peak']:.2f}" if old else "")
        print(f"| {shape}, {name}, {variant} {case['heads']} | " + " | ".join(cells) + " |")


def plot(cases, before, path):
    """Parts of the peak, of softmax: before and now as bars, the bounds as points."""
    script = [f"set terminal svg size 1000,700 dynamic font 'sans-serif,13' background rgb 'white'\nset output '{path}'",
              "set multiplot layout 2,1\nset style data histograms\nset style fill solid 0.9 noborder\nset border 3",
              "set grid ytics lc rgb '#dddddd'\nset xtics nomirror rotate by -20 scale 0\nset ytics nomirror",
              "set datafile missing '-'\nset key outside top center horizontal\nset yrange [0:1]\nset ylabel 'part of the FMA peak'"]
    for name in ("forward", "backward"):
        lines = []
        for (shape, of, variant), case in cases.items():
            if (of, variant) == (name, "softmax"):
                old = before.get((shape, of, variant))
                first = f"{old['fraction_of_peak']:.3f}" if old else "-"
                lines.append(f"{shape} {first} {case['fraction_of_peak']:.3f} {case['bound']:.3f} {case['with_memory']:.3f}")
        bars = [f"${name} using 2:xtic(1) lc rgb '#bbbbbb' title 'before'", f"${name} using 3 lc rgb '#0072B2' title 'now'"]
        points = [f"${name} using 0:{column} with points pt 2 ps 1.2 lw 2 lc rgb '{colour}' title '{title}'"
                  for column, colour, title in ((4, "#D55E00", "bound"), (5, "#009E73", "bound with memory beside it"))]
        script += [f"${name} << END", *lines, "END", f"set title 'softmax, {name}'", "plot " + ", ".join(bars + points)]
    subprocess.run(["gnuplot"], input="\n".join(script), check=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="object of clmgk-bench --json")
    parser.add_argument("--before", help="object of an older version")
    parser.add_argument("--shared-units", action="store_true", help="the CPU has no units beside those of multiply-adds")
    parser.add_argument("--plot", help="picture of softmax's parts of the peak (SVG, by gnuplot)")
    arguments = parser.parse_args()
    cases = load(arguments.results, arguments.shared_units)
    before = load(arguments.before, arguments.shared_units) if arguments.before else {}
    print_table(cases, before)
    if arguments.plot:
        plot(cases, before, arguments.plot)


if __name__ == "__main__":
    main()
