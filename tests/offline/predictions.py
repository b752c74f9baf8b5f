# SPDX-License-Identifier: Apache-2.0
"""Launches of kernels on an H200: how many tiles their work-groups have, what model.py makes of these, and what was
measured. launches.txt has those of the present plans, measured.txt those that were measured."""
import json
import pathlib
import re
import typing

import model
import compile as offline

HERE = pathlib.Path(__file__).resolve().parent
LAUNCHES, MEASURED_LAUNCHES = HERE / "launches.txt", HERE / "measured.txt"
MEASURED = HERE.parent.parent / "benchmarks/results/h200-kernels.json"
COUNTS = ["tile", "resident", "registers", "spilled", "slots", "FMA", "banks", "of loads", "bytes", "barriers", "waits"]
LAUNCH_COLUMNS = ["shape, kernel", "groups", *COUNTS, "predicted ms", "measured", "off by"]
SPLIT = "-DSPLIT_KEYS=1"
# Of the matrix engine's kernels, and of prototypes: counts of a tile; at this length with so many heads.
MATRIX_COUNTS = ["tile", "resident", "slots", "products", "MUFU", "banks", "bytes", "barriers", "waits"]
MATRIX_COLUMNS = ["configuration, kernel", *MATRIX_COUNTS, "registers", "others for each product", "ms", "causal"]
PROTOTYPE_COLUMNS = ["prototype", *MATRIX_COUNTS, "predicted TFLOP/s", "measured", "off by"]
# The same where four warps multiply together.
WGMMA_COUNTS = [*MATRIX_COUNTS, "copied"]
WGMMA_COLUMNS = ["wgmma configuration, kernel", *WGMMA_COUNTS, *MATRIX_COLUMNS[-4:]]
WGMMA_PROTOTYPE_COLUMNS = ["wgmma prototype", *WGMMA_COUNTS, *PROTOTYPE_COLUMNS[-3:]]
MATRIX_HEADS, MATRIX_LENGTH = 16, 8192
# Of a step along K of a product of matrices, and of the whole product of this size.
PRODUCT_COLUMNS = ["product", "groups", "resident", "registers", "slots", "products", "banks", "barriers", "waits", "copied",
                   "ms", "TFLOP/s"]
PRODUCT_SIZE = 4096


def program_of(source, options):
    """What decides a tile's counts: ranges of keys change the end of a work-group only."""
    return source, tuple(x for x in options if x != SPLIT)


class Launch(typing.NamedTuple):
    shape: str
    heads: int
    queries: int
    keys: int
    mask: str
    source: str
    kernel: str
    groups: int
    options: list

    @property
    def program(self):
        return program_of(self.source, self.options)

    @property
    def linear(self):
        return "linear/" in self.source

    @property
    def problems(self):
        """Heads, or groups of heads where a work-group has several."""
        heads = self.heads
        return -(-heads // offline.tunable(self.options, "HEADS", heads)) if "admixture" in self.source else heads


def read_launches(path):
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            shape, heads, queries, keys, mask, source, kernel, groups, *options = line.split()
            yield Launch(shape, int(heads), int(queries), int(keys), mask, source, kernel, int(groups), options)


def lengths_of(launch, figures):
    """Tiles of each work-group, in their order (cl/attention/view.clh): the longest first, of all heads or of each. Of
    the linear family: chunks of a range."""
    if launch.linear:
        chunks, splits = -(-launch.queries // figures["rows"]), launch.groups // launch.heads
        return [-(-chunks // splits)] * launch.groups
    blocks, tiles = -(-launch.queries // figures["rows"]), -(-launch.keys // figures["keys"])
    if launch.mask == "full":
        return [launch.problems * blocks * tiles / launch.groups] * launch.groups
    splits = launch.groups // (launch.problems * blocks)
    of_block = [-(-(i + 1) * figures["rows"] // figures["keys"]) for i in reversed(range(blocks))]
    lengths = [-(-count // splits) for count in of_block] * (launch.problems * splits)
    return lengths if launch.mask == "causal-by-head" else sorted(lengths, reverse=True)


def predict(launch, figures):
    """Milliseconds, with the combination of ranges of keys."""
    ms = model.kernel_ms(figures["tile"], figures["resident"], lengths_of(launch, figures))
    if SPLIT not in launch.options:
        return ms
    splits = launch.groups // (launch.problems * -(-launch.queries // figures["rows"]))
    return ms + model.combine_ms(launch.heads * launch.queries, offline.tunable(launch.options, "VALUE_SIZE", 64), splits)


# Products of a token with the state's F x E numbers that no linear pass can do without: forward the state and O;
# backward the state again, and the gradients of the state, of both features and of V. Arrays of [N][D] that it reads and
# writes: Q, K, V, O; backward dO, dQ, dK, dV too.
LINEAR_PRODUCTS, LINEAR_ARRAYS = {"forward": 2, "backward": 5}, {"forward": 4, "backward": 8}
LINEAR_COLUMNS = ["shape", "products ms", "other kernels", "ms", "bytes ms", "operations ms", "ms / aim"]


def linear_row(shape, launches, found):
    """A table's cells for a call of the linear family: the launches of a shape, and the figures of programs."""
    one = launches[0]
    size = offline.tunable(one.options, "HEAD_SIZE", 64)
    state, kind = 4 * one.heads * size * (size + 1), "backward" if shape.startswith("backward") else "forward"
    splits = max(launch.groups for launch in launches if "prefix" not in launch.kernel) // one.heads
    products = sum(predict(launch, figures) for launch in launches for figures in found.get(launch.program, [])
                   if figures["kernel"] == launch.kernel)
    tokens = 4 * one.heads * one.queries * size * LINEAR_ARRAYS[kind]
    states = 2 * state if "step" in shape else 0
    others = [model.moving_ms(tokens + states if "steps" in launch.kernel else 2 * splits * state)
              for launch in launches if re.search("prefix|steps", launch.kernel)]
    operations = 2 * LINEAR_PRODUCTS[kind] * one.heads * one.queries * size * size
    moved, computed = (tokens + states) / model.COPY_RATE * 1e3, operations / (0.6 * model.PEAK) * 1e3
    ms = products + sum(others)
    return [shape, f"{products:.3f}", f"{sum(others):.3f}", f"{ms:.3f}", f"{moved:.3f}", f"{computed:.3f}",
            f"{ms / (1.5 * max(moved, computed)):.1f}"]


def matrix_ms(tile, rows, keys, resident, causal=False):
    """Milliseconds of a kernel whose work-groups have blocks of rows, and tiles of keys (or the reverse)."""
    blocks = MATRIX_LENGTH // rows
    lengths = [MATRIX_LENGTH // keys] * (MATRIX_HEADS * blocks)
    if causal:
        lengths = sorted((-(-(i + 1) * rows // keys) for i in range(blocks) for _ in range(MATRIX_HEADS)), reverse=True)
    return model.kernel_ms(tile, resident, lengths)


def product_ms(tile, resident, groups, depth):
    """Milliseconds of a product whose work-groups take steps of `depth` numbers of K."""
    return model.kernel_ms(tile, resident, [PRODUCT_SIZE // depth] * groups)


def product_tflops(ms):
    return 2e-9 * PRODUCT_SIZE ** 3 / ms


def matrix_tflops(size, ms, causal=False):
    """Of a forward pass."""
    return (2 if causal else 4) * MATRIX_HEADS * MATRIX_LENGTH ** 2 * size / ms * 1e-9


def measured():
    """{(shape, kernel): milliseconds}."""
    return {(case["shape"], case["kernel"]): case["ms"] for case in json.loads(MEASURED.read_text())["cases"]}
