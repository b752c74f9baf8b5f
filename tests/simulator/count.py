#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what a tile of the matrix engine's kernels, or a product's step along K, takes on an NVIDIA GPU.

    count.py NAME,... [--plans PROGRAM] [--ptxas PROGRAM] [--nvcc] [--score TEXT] [--mask TEXT] [--softcap C] [--causal]

NAME: of a configuration that offline_plans prints for `matrix-nvidia`, with a score and a mask as text, which read no
arrays, or with a soft-cap and a causal mask. Executes two problems that differ by a tile. Prints two
tables, of attention and of products of matrices. Needs what run.py needs.
"""
import argparse
import pathlib
import struct
import sys
import tempfile

try:
    import passes
    import products
except ModuleNotFoundError as missing_module:
    print(f"skipped: {missing_module.name} is not there")
    sys.exit(77)
import machine
from machine import offline

TILE_KEYS, FRAGMENT_ROWS = 8, 16
# Of a tile: instructions of all warps, products of 16 x 8 x 16, exponentials and reciprocals, passes through the banks of local
# memory, bytes copied there and bytes loaded to registers, barriers of all warps, and accesses of spilled registers.
COUNTED = ["slots", "products", "MUFU", "passes", "copied bytes", "load bytes", "BAR", "stack"]
COLUMNS = ["configuration, kernel", "tile", "resident", "registers", "spilled", "instructions", *COUNTED[1:4], "copied", "loaded",
           "barriers", "stack"]
TURNS = "unit=2,warps=8"  # parameters of configurations with two groups of warps
EDGE = 8  # rows, or keys, of a block or tile that is not whole


class Tile:
    """The counts of a further tile of a kernel's work-group."""

    def __init__(self, name, step, program, counts, tiles):
        self.name, self.step, self.figures = name, step, program.figures
        more, fewer = counts
        self.counts = {key: (more[key] - fewer[key]) / tiles for key in more}
        self.rows = FRAGMENT_ROWS * get(step, "WARPS") * get(step, "ROW_TILES")
        self.keys = TILE_KEYS * get(step, "KEY_TILES")

    @property
    def kernel(self):
        return self.step.kernel.removeprefix("mixture_")

    def row(self):
        """A table's cells, under COLUMNS."""
        c, figures = self.counts, self.figures
        return [f"{self.name}, {self.kernel}", f"{self.rows} x {self.keys}", figures["groups"], figures["registers"],
                figures["B spilled"], *(f"{c.get(name, 0):.0f}" for name in COUNTED)]


def get(step, name):
    return offline.tunable(step.options, name, 0)


def heads_of(name):
    """Mixed heads: as many as a block holds."""
    return 4 if "fish" in name or "mish" in name else 1


def fields_of(arguments):
    """Of the problems, by the options."""
    texts = {"score_mod": arguments.score, "mask_mod": arguments.mask}
    fields = {name: text for name, text in texts.items() if text is not None}
    if arguments.causal:
        fields["causal"] = 1
    if arguments.softcap:
        fields["softcap"] = struct.unpack("q", struct.pack("d", arguments.softcap))[0]
    return fields


def lengths_of(name, parameters, plans):
    """N and S of two problems, which differ by whole tiles or blocks. Each has a block of few rows and a tile of few keys,
    too."""
    plan = passes.Plan(plans, name, {"batch": 1, "heads": heads_of(name), "parameters": parameters})
    main = next(step for step in plan.steps if get(step, "KEY_TILES"))
    rows, keys = FRAGMENT_ROWS * get(main, "WARPS") * get(main, "ROW_TILES"), TILE_KEYS * get(main, "KEY_TILES")
    if "backward" not in name:
        return [(rows + EDGE, count * keys + EDGE) for count in (2, 4)]
    block = max(rows, keys)
    return [(count * block + EDGE, count * block + EDGE) for count in (1, 2)]


def programs_of(name, plans):
    """(File, options) of a configuration's lines; of a program with several lines, the first one has it."""
    return [key for key, own in passes.configurations(plans).items() if own == name]


def own_parameters(name, plans):
    """Those with which short problems have the blocks of a configuration."""
    tiles = [offline.tunable(options, "ROW_TILES", 0) for _, options in programs_of(name, plans)]
    return f"splits=1,row-tiles={max(tiles)}" + (f",{TURNS}" if name.endswith("-turns") else "")


def measure(name, programs, plans, parameters=None, **fields):
    """(Tiles of a configuration's kernels, faults of the results of the smaller problem). `fields`: more of the problems."""
    parameters = parameters or own_parameters(name, plans)
    lengths = lengths_of(name, parameters, plans)
    short, long = (passes.Pass(passes.Plan(plans, name, {"batch": 1, "heads": heads_of(name), "length": n, "length_k": s,
                                                          "parameters": parameters, **fields})) for n, s in lengths)
    few = short.run(programs)
    known, executed = passes.configurations(plans), {(step.source, tuple(step.options)) for step in short.plan.steps}
    faults = short.faults()
    faults += [f"{source} is no configuration of the engine" for source, options in executed
               if (source, options) not in known]
    faults += [f"{source} is a configuration and was not executed" for source, options in programs_of(name, plans)
               if (source, options) not in executed and source != "attention/reduce.cl"]  # its form depends on lengths
    # the first or the last work-group has the block of few rows, and stores less than the other
    whole = [0 if first["STG"] >= last["STG"] else -1 for _, _, first, last in few]
    tiles = []
    for place, (_, _, *fewer), (step, program, more, _) in zip(whole, few, long.run(programs, only=whole)):
        if more["products"]:
            further = (lengths[1][1] - lengths[0][1]) / (TILE_KEYS * get(step, "KEY_TILES"))
            tiles.append(Tile(name, step, program, (more, fewer[place]), further))
    return tiles, faults


def print_rows(columns, rows):
    """A table, where it has rows."""
    if rows:
        for cells in (columns, ["---"] * len(columns), *rows):
            print("| " + " | ".join(map(str, cells)) + " |")
        print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("names", help="names of configurations, with commas")
    parser.add_argument("--plans", type=pathlib.Path, default=offline.PLANS, help="the program offline_plans")
    parser.add_argument("--score", help="a score as text, in place of the scaled score s")
    parser.add_argument("--mask", help="a mask as text")
    parser.add_argument("--softcap", type=float, help="soft-cap of scores")
    parser.add_argument("--causal", action="store_true", help="causal mask, whose diagonal ends at the last key")
    arguments, tools = machine.parse(parser)
    if tools is None:
        return 77
    names = arguments.names.split(",")
    known = passes.configurations(arguments.plans).values()
    for name in names:
        if name not in known:
            parser.error(f"'{name}': expected a configuration of matrix-nvidia, as offline_plans prints it")
    with tempfile.TemporaryDirectory() as work:
        programs = passes.Programs(machine.ARCHITECTURE, *tools, work, arguments.nvcc)
        print_rows(COLUMNS, [tile.row() for name in names if not name.startswith("product-")
                             for tile in measure(name, programs, arguments.plans, **fields_of(arguments))[0]])
        print_rows(products.COLUMNS, [products.Step(name, programs, arguments.plans).row() for name in names
                                      if name.startswith("product-")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
