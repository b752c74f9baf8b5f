# SPDX-License-Identifier: Apache-2.0
"""Products of four warps on NVIDIA's sm_90a (wgmma; HGMMA in machine code), for warps.py: their operands, where descriptors
place these in local memory, and what must not happen before a warp has waited for its products (Fault).

A product has begun when its instruction has been executed, and ends when the warp waits for its group. Until then nothing but
a product of the same form may touch its accumulators, nothing may write its operands' registers or local memory. Registers
that other instructions wrote count as operands only after WARPGROUP.ARRIVE (wgmma.fence). Local memory that stores or
copies wrote counts only after FENCE.VIEW.ASYNC (fence.proxy.async) of the warp that wrote it, for copies after their
arrival. PTX also accepts a fence of the warp that reads, after the barrier; here it is an error.
"""
import dataclasses
import functools
import re

import numpy as np

WARPS, ROWS = 4, 16  # of a product, and of each of its warps
LANES = np.arange(32)
# Of a descriptor's bits 62 and 63: how many bits of an address change, from bit 4 on, by those from bit 7 on.
SWIZZLED_BITS = {0: 0, 1: 3, 2: 2, 3: 1}
BYTES = {"F16": 2, "BF16": 2, "TF32": 4}  # of the kinds of operands


class Fault(Exception):
    """What a program must not do."""


@dataclasses.dataclass(frozen=True)
class Form:
    """HGMMA's operands. `left`: A's first register, or None where A is in local memory, too; `descriptors`: the first of the
    uniform registers that hold A's and B's; `use`: the predicate that says whether C is added, or None."""
    columns: int
    depth: int
    kind: str
    to: str
    left: str
    descriptors: int
    transposed_left: bool
    transposed_right: bool
    negated: bool
    sums: str
    use: str
    closes: bool

    @property
    def accumulators(self):
        first = int(self.to[1:])
        return range(first, first + self.columns // 2)

    @property
    def local_bytes(self):
        """That the product reads."""
        return (self.columns + (0 if self.left else WARPS * ROWS)) * self.depth * BYTES[self.kind]

    @property
    def operands(self):
        """Registers of A."""
        first = int(self.left[1:]) if self.left else 0
        return range(first, first + 4 if self.left else first)


def form_of(one):
    """HGMMA.64x64x16.F32.BF16 R24, R100, gdesc[UR20].tnspB, R24, UP0, gsb0"""
    shape, sums, *kinds = one.name.split(".")[1:]
    kind = kinds[0] if kinds else "F16"
    rows, columns, depth = map(int, shape.split("x"))
    operands = [part.replace(".reuse", "") for part in one.parts]
    to, *rest = operands
    left = rest.pop(0) if rest[0].strip("-").startswith("R") else None
    negated = [part for part in (left or "") if part == "-"]
    described, *options = re.sub(r"[\[\]]", " ", rest.pop(0)).replace(".", " ").split()[1:]
    added, *rest = rest
    closes = "gsb0" in rest
    use = [part for part in rest if part != "gsb0"]
    if (rows, sums, len(kinds) > 1) != (64, "F32", False) or kind not in BYTES or len(use) > 1 or \
            not set(options) <= {"tnspA", "tnspB", "negA", "negB"}:
        raise NotImplementedError(one)
    negated += [part for part in options if part.startswith("neg")]
    return Form(columns, depth, kind, to, left and left.strip("-"), int(described.lstrip("UR")), "tnspA" in options,
                "tnspB" in options, len(negated) == 1, added, use[0] if use else None, closes)


@functools.lru_cache(4096)
def places(descriptor, transposed, count, depth, size):
    """Addresses [count][depth] in local memory of an operand's numbers of `size` bytes, and the words that have them.
    `transposed`: neighbours differ in the row of A or column of B, else in the place of the sum."""
    start, leading, stride = ((descriptor >> bit & 0x3fff) << 4 for bit in (0, 16, 32))
    bits = SWIZZLED_BITS[descriptor >> 62]
    if descriptor >> 49 & 7 or transposed and size != 2:
        raise NotImplementedError(f"descriptor {descriptor:#x}")
    span = 16 << bits  # bytes of a row of a piece of 8 rows
    outer, inner = np.mgrid[:count, :depth]
    along, row = (outer * size, inner) if transposed else (inner * size, outer)
    beside, below = (stride, leading) if transposed and not bits else (leading, stride)
    at = start + along % span + along // span * beside + row % 8 * span + row // 8 * below
    at ^= at >> 3 & ((1 << bits) - 1) << 4
    return at, np.unique(at >> 2)


def numbers(words, kind):
    """What 16 or 32 bits mean."""
    if kind == "F16":
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    shifted = words.astype(np.uint32) << np.uint32(16) if kind == "BF16" else words.astype(np.uint32) & np.uint32(0xffffe000)
    return shifted.view(np.float32).astype(np.float64)


def from_registers(words, kind):
    """A warp's rows of A, [16][depth], of four registers [4][32]."""
    group, place = LANES // 4, LANES % 4
    halves = [words] if BYTES[kind] == 4 else [words & np.uint64(0xffff), words >> np.uint64(16)]
    matrix = np.zeros((ROWS, 8 * len(halves)))
    for word in range(4):
        for half, part in enumerate(halves):
            column = place * len(halves) + half + word // 2 * 4 * len(halves)
            matrix[group + word % 2 * 8, column] = numbers(part[word], kind)
    return matrix


def from_local(local, at, kind):
    size = BYTES[kind]
    return numbers(local.view({2: np.uint16, 4: np.uint32}[size])[at // size], kind)


def to_registers(matrix):
    """[16][columns] as registers [columns / 2][32]: rows lane / 4 (+ 8), columns 8 j + 2 (lane % 4) (+ 1)."""
    return matrix.reshape(2, 8, -1, 4, 2).transpose(2, 0, 4, 1, 3).reshape(-1, 32)


def from_accumulators(words):
    """The reverse."""
    return words.reshape(-1, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(ROWS, -1)


class Products:
    """A warp's: groups of those that it has begun, (form, words of local memory); the last group is open."""

    def __init__(self):
        self.groups, self.count = [[]], 0
        self.results, self.operands = set(), set()  # registers of products that have not ended
        self.fresh = set(range(256))                # written since WARPGROUP.ARRIVE

    def arrive(self):
        self.fresh.clear()

    def check_read(self, row):
        if row in self.results:
            raise Fault(f"reads R{row}, to which a product that has not ended adds")

    def check_write(self, row):
        if row in self.results or row in self.operands:
            raise Fault(f"writes R{row}, which a product that has not ended uses")
        self.fresh.add(row)

    def begin(self, form, words):
        """Of registers: those of `form` are free, or hold sums of the same form."""
        for row in form.operands:
            self.check_read(row)
        mine = set(form.accumulators)
        others = [one for group in self.groups for one, _ in group if mine & set(one.accumulators)]
        if any((one.accumulators, one.columns) != (form.accumulators, form.columns) for one in others):
            raise Fault("adds to some of the registers of a product of another form that has not ended")
        if mine & (self.operands | set(form.operands)):
            raise Fault("adds to registers from which a product reads")
        late = self.fresh & (mine | set(form.operands))
        if late:
            raise Fault(f"uses R{min(late)}, written after WARPGROUP.ARRIVE")
        self.groups[-1].append((form, words))
        self.results |= mine
        self.operands |= set(form.operands)
        if form.closes:
            self.groups.append([])

    def wait(self, most):
        """Until no more than so many closed groups are left; returns what has ended."""
        ended = []
        while len(self.groups) - 1 > most:
            ended += self.groups.pop(0)
        left = [form for group in self.groups for form, _ in group]
        self.results = {row for form in left for row in form.accumulators}
        self.operands = {row for form in left for row in form.operands}
        return ended


class Agreement:
    """What the four warps of each product execute, which must be the same."""

    def __init__(self):
        self.known = {}

    def check(self, number, products, product):
        """`product`: what the next of a warp's products is."""
        mine = self.known.setdefault(number // WARPS, [])
        place = products.count
        products.count += 1
        if place == len(mine):
            mine.append(product)
        elif mine[place] != product:
            raise Fault("the four warps of a product have different instructions, descriptors or predicates")

    def finish(self, products):
        """At the end all four have executed all products."""
        for number, own in enumerate(products):
            if own.count != len(self.known.get(number // WARPS, [])):
                raise Fault(f"warp {number} leaves out products of its four warps")
