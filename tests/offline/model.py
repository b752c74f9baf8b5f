# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a kernel with products on an NVIDIA H200, from what a tile of a work-group takes (bounds.py counts
it). docs/gpu-bounds.md explains the terms; their constants were fitted to the kernels measured there."""
import dataclasses
import heapq
import itertools

MULTIPROCESSORS = 132
HERTZ = 1.98e9
# Cycles: register ports, for each cycle of multiply-adds; a barrier; a wait, for each cycle by warps.py, which knows the
# latencies of idle memory; a work-group's beginning and end.
PORTS, BARRIER, WAIT, GROUP = 0.16, 200, 1.7, 40000
LINEAR_GROUP = 10000  # of the linear family's, which have no block of rows to load: as MATRIX_GROUP, not fitted
OVERHEAD = 1.03
# Of kernels with matrix products: cycles of a multiprocessor for an instruction of a warp of 16 x 8 x 16 products, from
# the 646 TFLOP/s of mma.sync alone; a barrier; the exponent with which the banks of local memory join; a work-group's
# beginning and end.
HMMA = 2 * 16 * 8 * 16 * MULTIPROCESSORS * HERTZ / 646e12
MATRIX_BARRIER, MATRIX_EXPONENT, MATRIX_GROUP = 150, 6, 10000
# Of kernels with products of four warps: cycles for the same product, from the 970 TFLOP/s of wgmma alone; of an exponential's
# instruction; bytes that the second-level cache delivers to a multiprocessor in a cycle.
HGMMA = 2 * 16 * 8 * 16 * MULTIPROCESSORS * HERTZ / 970e12
EXPONENTIAL, SECOND_LEVEL = 0.9, 44
LINE = 128  # bytes that the first-level cache delivers in a cycle
COMBINE_RATE = 0.85e12  # bytes a second that attention_combine reads and writes, as measured
COPY_RATE, PEAK = 4.28e12, 65.3e12  # bytes, and f32 operations of multiply-adds, a second, as measured
MEMORY_KERNEL = 8000  # cycles of a kernel that only moves numbers, beside those of its bytes


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
    hmma: float = 0    # instructions
    hgmma: float = 0   # the same products by wgmma
    mufu: float = 0    # instructions
    copied: float = 0  # bytes copied to local memory
    ends: float = GROUP  # of a work-group without matrix products


def constants(tile):
    """The exponent, and cycles of a barrier and of a work-group's beginning and end."""
    return (MATRIX_EXPONENT, MATRIX_BARRIER, MATRIX_GROUP) if tile.hmma or tile.hgmma else (4, BARRIER, tile.ends)


def tile_cycles(tile, resident):
    """Cycles from tile to tile of a multiprocessor, with so many resident work-groups.

    They queue for the units, each waits by itself at barriers and for loads: mean-value analysis of a closed queue.
    """
    # warps that wait for products issue nothing: their cycles and the other instructions' add up
    units = tile.slots + PORTS * tile.fma + HMMA * tile.hmma
    memory = tile.banks + tile.load_bytes / LINE
    exponent, barrier, _ = constants(tile)
    alone = barrier * tile.barriers + WAIT * tile.waits
    if not tile.hgmma:
        return between_tiles([joined(exponent, units, memory)], alone, resident)
    # work-groups whose products are under way leave the other instructions' units to the others
    busy = [units + EXPONENTIAL * tile.mufu, HGMMA * tile.hgmma]
    return joined(exponent, between_tiles(busy, alone, resident), memory, tile.copied / SECOND_LEVEL)


def joined(exponent, *cycles):
    """Of units that work at the same time: a little more than the busiest one's."""
    return sum(x ** exponent for x in cycles) ** (1 / exponent)


def between_tiles(busy, alone, resident):
    """Of `busy` cycles of each unit in turn, and cycles `alone`, for which nobody queues."""
    queues, between = [0.0] * len(busy), 0.0
    for count in range(1, resident + 1):
        responses = [cycles * (1 + queue) for cycles, queue in zip(busy, queues)]
        between = (sum(responses) + alone) / count
        queues = [response / between for response in responses]
    return between


@dataclasses.dataclass
class Multiprocessor:
    """`steps`: cycles from tile to tile, by the number of its work-groups; `groups`: what they still have to do, cycles
    of their beginnings and ends, and tiles."""
    steps: list
    now: float = 0.0
    groups: list = dataclasses.field(default_factory=list)

    def first_end(self):
        step, count = self.steps[len(self.groups)], len(self.groups)
        return self.now + count * min(ends + step * tiles for ends, tiles in self.groups)

    def advance(self, to):
        """Work-groups end that have less left than a cycle's rounding."""
        count = len(self.groups)
        own, left = (to - self.now) / count, []
        for ends, tiles in self.groups:
            begun = min(ends, own)
            ends, tiles = ends - begun, tiles - (own - begun) / self.steps[count]
            if ends + tiles * self.steps[count] > 1e-6 * to:
                left.append((ends, tiles))
        self.now, self.groups = to, left


def launch_cycles(tile, resident, lengths):
    """Of work-groups with these numbers of tiles. Each begins where one before it ends; where several end at a time, on
    the multiprocessor that has the fewest then."""
    steps = [0.0] + [tile_cycles(tile, count) for count in range(1, resident + 1)]
    units = [Multiprocessor(steps) for _ in range(MULTIPROCESSORS)]
    work = [(constants(tile)[2], tiles) for tiles in lengths]
    for i, group in enumerate(work[:MULTIPROCESSORS * resident]):
        units[i % MULTIPROCESSORS].groups.append(group)
    waiting = iter(work[MULTIPROCESSORS * resident:])
    ends = [(unit.first_end(), i) for i, unit in enumerate(units) if unit.groups]
    heapq.heapify(ends)
    now = 0.0
    while ends:
        now, first = heapq.heappop(ends)
        at_once = [first]
        while ends and ends[0][0] <= now * (1 + 1e-9):
            at_once.append(heapq.heappop(ends)[1])
        for i in at_once:
            units[i].advance(now)
        for count in range(resident):
            for i in at_once:
                if len(units[i].groups) == count:
                    units[i].groups.extend(itertools.islice(waiting, 1))
        for i in at_once:
            if units[i].groups:
                heapq.heappush(ends, (units[i].first_end(), i))
    return now


def kernel_ms(tile, resident, lengths):
    """`resident` work-groups fit a multiprocessor; `lengths`: tiles of each work-group, in the order of its number."""
    return OVERHEAD * launch_cycles(tile, resident, lengths) / HERTZ * 1e3


def combine_ms(rows, size, splits):
    """attention_combine: a row of f32 for each range of keys, and the result."""
    return rows * size * 4 * (splits + 1) / COMBINE_RATE * 1e3


def moving_ms(count):
    """A kernel that moves so many bytes."""
    return count / COPY_RATE * 1e3 + MEMORY_KERNEL / HERTZ * 1e3
