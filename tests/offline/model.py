# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a kernel with products on an NVIDIA H200, from what a tile of a work-group takes (bounds.py counts
it). docs/gpu-bounds.md explains the terms; their constants were fitted to the kernels measured there."""
import dataclasses
import heapq
import math

MULTIPROCESSORS = 132
HERTZ = 1.98e9
# Cycles: register ports, for each cycle of multiply-adds; a barrier; a wait, for each cycle by warps.py, which knows the
# latencies of idle memory; a work-group's beginning and end.
PORTS, BARRIER, WAIT, GROUP = 0.16, 200, 1.7, 40000
OVERHEAD = 1.03
# Of kernels with matrix products: cycles of a multiprocessor for an instruction of a warp of 16 x 8 x 16 products, from
# the 646 TFLOP/s of mma.sync alone; a barrier; the exponent with which the banks of local memory join; a work-group's
# beginning and end.
HMMA = 2 * 16 * 8 * 16 * MULTIPROCESSORS * HERTZ / 646e12
MATRIX_BARRIER, MATRIX_EXPONENT, MATRIX_GROUP = 150, 6, 10000
LINE = 128  # bytes that the first-level cache delivers in a cycle
COMBINE_RATE = 0.85e12  # bytes a second that attention_combine reads and writes, as measured


@dataclasses.dataclass
class Tile:
    """Cycles of a multiprocessor, bytes loaded from global memory, barriers, and cycles in which warps wait for loads
    or for slower warps."""
    slots: float
    fma: float
    banks: float
    load_bytes: float
    barriers: float
    waits: float
    hmma: float = 0  # instructions


def constants(tile):
    """The exponent, and cycles of a barrier and of a work-group's beginning and end."""
    return (MATRIX_EXPONENT, MATRIX_BARRIER, MATRIX_GROUP) if tile.hmma else (4, BARRIER, GROUP)


def tile_cycles(tile, resident):
    """Cycles from tile to tile of a multiprocessor, with so many resident work-groups.

    They queue for the units, each waits by itself at barriers and for loads: mean-value analysis of a closed queue.
    """
    # warps that wait for products issue nothing: their cycles and the other instructions' add up
    units = tile.slots + PORTS * tile.fma + HMMA * tile.hmma
    memory = tile.banks + tile.load_bytes / LINE
    exponent, barrier, _ = constants(tile)
    busy = (units ** exponent + memory ** exponent) ** (1 / exponent)
    alone = barrier * tile.barriers + WAIT * tile.waits
    queue = between = 0.0
    for count in range(1, resident + 1):
        response = busy * (1 + queue)
        between = (response + alone) / count
        queue = response / between
    return between


def waves_cycles(tile, resident, groups, tiles):
    """Of equal work-groups: the last wave may have fewer on a multiprocessor."""
    cycles = 0.0
    while groups > 0:
        most = min(resident, math.ceil(groups / MULTIPROCESSORS))
        cycles += most * (tiles * tile_cycles(tile, most) + constants(tile)[2])
        groups -= most * MULTIPROCESSORS
    return cycles


def ordered_cycles(tile, resident, lengths):
    """Of work-groups with these numbers of tiles, each of which begins where the first one ends."""
    places = [0.0] * (MULTIPROCESSORS * resident)
    step = tile_cycles(tile, resident)
    for tiles in lengths:
        heapq.heapreplace(places, places[0] + resident * (tiles * step + constants(tile)[2]))
    return max(places)


def kernel_ms(tile, resident, lengths):
    """`resident` work-groups fit a multiprocessor; `lengths`: tiles of each work-group, in the order of its number."""
    if min(lengths) == max(lengths):
        cycles = waves_cycles(tile, resident, len(lengths), lengths[0])
    else:
        cycles = ordered_cycles(tile, resident, lengths)
    return OVERHEAD * cycles / HERTZ * 1e3


def combine_ms(rows, size, splits):
    """attention_combine: a row of f32 for each range of keys, and the result."""
    return rows * size * 4 * (splits + 1) / COMBINE_RATE * 1e3
