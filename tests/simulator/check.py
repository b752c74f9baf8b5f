#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that warps.py executes products of four warps (wgmma) and barriers of some warps rightly, and finds programs that use
them wrongly.

Each kernel below, in OpenCL C with marked instructions, copies an image of its operands to local memory, multiplies twice,
and stores its accumulators. clang and ptxas make machine code of them, which is executed as it is, and with an instruction
replaced. The images follow PTX's description of matrices in local memory; of these layouts, pieces of 128 bytes have run on a card.
Needs clang, libclc, ptxas, nvdisasm and numpy; without them it says so and ends with status 77.
"""
import copy
import dataclasses
import pathlib
import re
import sys
import tempfile
import unittest

try:
    import numpy as np
    import machine
    import passes
    import warpgroup
    import warps
except ModuleNotFoundError as missing_module:
    print(f"skipped: {missing_module.name} is not there")
    sys.exit(77)
from machine import offline

ROWS, THREADS = 64, 128
TILE = 1 << 14   # bytes of an operand in local memory
STORED = {"f16": passes.F16, "bf16": passes.BF16, "tf32": passes.F32}
MODES = {16: 0, 128: 1, 64: 2, 32: 3}  # of bytes of a piece's row


@dataclasses.dataclass(frozen=True)
class Operand:
    """A matrix in local memory: pieces of 8 rows of `swizzle` bytes. `transposed`: neighbours in a row are of different
    rows (A) or columns (B), else of different places of the sum."""
    swizzle: int
    transposed: bool = False

    def below(self):
        """Bytes to the next piece down."""
        return 8 * self.swizzle

    def beside(self, count, places):
        """Bytes to the next piece along the rows."""
        return self.below() * -(-(places if self.transposed else count) // 8)

    def image(self, numbers):
        """Numbers [count][places] as bytes."""
        memory, size = np.zeros(TILE, np.uint8), numbers.itemsize
        source = np.ascontiguousarray(numbers)[..., None].view(np.uint8)
        pieces = self.swizzle // 16  # of 16 bytes, which change places within a row, by its number
        for i, k in np.ndindex(numbers.shape):
            along, row = (i, k) if self.transposed else (k, i)
            block, within = divmod(along * size, self.swizzle)
            number = within // 16 ^ row % 8 // (8 // pieces)
            at = block * self.beside(*numbers.shape) + row // 8 * self.below() + row % 8 * self.swizzle
            at += number * 16 + within % 16
            memory[at:at + size] = source[i, k]
        return memory

    def descriptor(self, count, places, size, first):
        """Of the places of the sum from `first` on; local memory's address is missing."""
        beside, below = self.beside(count, places), self.below()
        block, within = divmod(first * size, self.swizzle)
        start = first // 8 * below if self.transposed else block * beside + within
        leading, stride = (below, beside) if self.transposed and self.swizzle == 16 else (beside, below)
        return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | MODES[self.swizzle] << 62


@dataclasses.dataclass(frozen=True)
class Case:
    """`left`: A in local memory, or None: in registers. `sign`: of the product. `first`: place of the sum where the first
    product begins; the second follows."""
    name: str
    columns: int
    kind: str
    right: Operand
    left: Operand = None
    sign: int = 1
    first: int = 0

    @property
    def size(self):
        return 4 if self.kind == "tf32" else 2

    @property
    def depth(self):
        return 32 // self.size

    @property
    def places(self):
        """Of the sum, that are stored."""
        return self.first + 2 * self.depth

    def text(self):
        """The kernel."""
        count = self.columns // 2
        sums = ", ".join(f"%{i}" for i in range(count))
        left = f"%{count + 3}" if self.left else "{" + ", ".join(f"%{count + 3 + i}" for i in range(4)) + "}"
        transposed = "" if self.kind == "tf32" else f", {int(self.right.transposed)}"
        if self.left and self.kind != "tf32":
            transposed = f", {int(self.left.transposed)}{transposed}"
        name = f"wgmma.mma_async.sync.aligned.m64n{self.columns}k{self.depth}.f32.{self.kind}.{self.kind}"
        lines = ["{ .reg .pred p;", f"setp.ne.b32 p, %{count + 2}, 0;",
                 f"{name} {{{sums}}}, {left}, %{count}, p, {self.sign}, 1{transposed};", "}"]
        product = '"' + "\\n".join(offline.MARK + line for line in lines) + '"'
        outputs = ", ".join(f'"+f"(c[{i}])' for i in range(count))
        inputs = '"l"(left)' if self.left else ", ".join(f'"r"(a[{i}])' for i in range(4))
        return TEXT.format(name=self.name, count=count, next_left=self.next(self.left, ROWS),
                           next_right=self.next(self.right, self.columns), product=product, outputs=outputs,
                           inputs=inputs)

    def next(self, operand, count):
        """How far the second product's descriptor is from the first one's."""
        if operand is None:
            return 0
        begin, end = (operand.descriptor(count, self.places, self.size, self.first + i) for i in (0, self.depth))
        return end - begin


HEADER = """
#define UNROLL _Pragma("unroll")
#define ASM __asm__ volatile
inline void copy_piece(__local uint4 *to, __global const uint4 *from)
{
    ASM("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((uint)(size_t)to), "l"(from) : "memory");
}
"""
TEXT = """
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void {name}(__global const uint4 *image, __global const uint *registers, __global float *sums, ulong right, ulong left, int add,
            int skew)
{{
    __local uint4 tile[2048] __attribute__((aligned(1024)));
    const int lane = get_local_id(0);
    uint a[8];
    for (int i = 0; i < 1024; i += 128) tile[i + lane] = image[i + lane];
    for (int i = 1024; i < 2048; i += 128) copy_piece(tile + i + lane, image + i + lane);
    ASM("cp.async.commit_group;" ::: "memory");
    UNROLL for (int i = 0; i < 8; i++) a[i] = registers[128 * i + lane];
    float c[{count}];
    UNROLL for (int i = 0; i < {count}; i++) {{
        c[i] = sums[128 * i + lane] + 1;
        ASM("" : "+f"(c[i]));
    }}
    ASM("cp.async.wait_group 0;" ::: "memory");
    ASM("fence.proxy.async.shared::cta;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong base = (uint)(size_t)tile >> 4;
    right += base + (lane >> 5) * skew;
    left += base + 1024;
    ASM("//@wgmma.fence.sync.aligned;" ::: "memory");
    ASM({product} : {outputs} : "l"(right), "n"(0), "r"(add), {inputs});
    right += {next_right};
    left += {next_left};
    UNROLL for (int i = 0; i < 4; i++) a[i] = a[4 + i];
    ASM({product} : {outputs} : "l"(right), "n"(0), "r"(1), {inputs});
    ASM("//@wgmma.commit_group.sync.aligned;" ::: "memory");
    ASM("//@wgmma.wait_group.sync.aligned 0;" ::: "memory");
    UNROLL for (int i = 0; i < {count}; i++) ASM("" : "+f"(c[i]) :: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    tile[lane] = (uint4)(lane);
    UNROLL for (int i = 0; i < {count}; i++) sums[128 * i + lane] = c[i];
}}
"""
# Two groups of four warps: the first one hands words to the second one, which hands them back.
TURNS = """
#define VOTE(number, condition)                                                                                           \\
    ASM("{ .reg .pred own, all; setp.ne.s32 own, %1, 0; bar.red.or.pred all, " number ", 128, own; selp.s32 %0, 1, 0, all; }" \\
        : "=r"(any) : "r"(condition) : "memory")
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void turns(__global int *out)
{
    __local int words[128];
    const int item = get_local_id(0), own = item & 127;
    int any, x = 7;
    if (item < 128) {
        words[own] = item;
        ASM("bar.arrive 1, 256;" ::: "memory");
        VOTE("3", item == 5);
        ASM("bar.sync 2, 256;" ::: "memory");
        words[own] = x;
    } else {
        ASM("bar.sync 1, 256;" ::: "memory");
        x = words[127 - own];
        ASM("bar.arrive 2, 256;" ::: "memory");
        VOTE("4", item == 5);
    }
    out[item] = x + 1000 * any;
}
"""
CASES = [
    Case("keys", 64, "bf16", Operand(128), first=32),
    Case("values", 128, "bf16", Operand(128, True), first=16),
    Case("narrow", 8, "f16", Operand(32), sign=-1),
    Case("wide", 256, "f16", Operand(64), Operand(128, True)),
    Case("plain", 24, "bf16", Operand(16), Operand(16)),
    Case("plain_values", 40, "f16", Operand(16, True), Operand(64)),
    Case("half_values", 96, "bf16", Operand(64, True), Operand(32, True), first=32),
    Case("quarter_values", 48, "bf16", Operand(32, True), Operand(16, True), sign=-1),
    Case("singles", 16, "tf32", Operand(128)),
    Case("local_singles", 32, "tf32", Operand(64), Operand(128)),
]


class Run:
    """A kernel's arguments and arrays: numbers are small integers, so that sums are exact."""

    def __init__(self, case, add=1, skew=0):
        self.case, self.add = case, add
        random = np.random.default_rng(1)
        self.left, self.right = (random.integers(-4, 5, (count, case.places)) for count in (ROWS, case.columns))
        self.sums = random.integers(-9, 10, (ROWS, case.columns))
        images = [operand.image(passes.stored(numbers, STORED[case.kind])[0]) if operand else np.zeros(TILE, np.uint8)
                  for operand, numbers in ((case.right, self.right), (case.left, self.left))]
        words = np.concatenate([self.fragments(case.first + i * case.depth) for i in range(2)])
        parts = [np.concatenate(images), words.reshape(-1).view(np.uint8), self.accumulators().view(np.uint8)]
        self.places = np.cumsum([0, *(part.size for part in parts)])
        self.memory = np.concatenate(parts)
        descriptors = [operand.descriptor(count, case.places, case.size, case.first) if operand else 0
                       for operand, count in ((case.right, case.columns), (case.left, ROWS))]
        data = [warps.GLOBAL + place for place in self.places[:3]] + descriptors
        data = b"".join(int(x).to_bytes(8, "little") for x in data) + add.to_bytes(4, "little") + skew.to_bytes(4, "little")
        bank = bytearray(1 << 12)
        bank[warps.PARAMETERS:warps.PARAMETERS + len(data)] = data
        self.bank = bytes(bank)

    def fragments(self, first):
        """A's registers [4][work-item], from a place of the sum on."""
        case = self.case
        numbers = passes.stored(self.left[:, first:first + case.depth], STORED[case.kind])[0]
        words = np.ascontiguousarray(numbers).view(np.uint32)  # pairs of 16-bit numbers
        item = np.arange(THREADS)
        row, word = item // 32 * 16 + item % 32 // 4, item % 4
        return np.stack([words[row + i % 2 * 8, word + i // 2 * 4] for i in range(4)])

    def accumulators(self):
        """[register][work-item]"""
        item, register = np.arange(THREADS), np.arange(self.case.columns // 2)[:, None]
        row = item // 32 * 16 + item % 32 // 4 + register // 2 % 2 * 8
        column = register // 4 * 8 + item % 4 * 2 + register % 2
        self.row, self.column = row, column
        return self.sums[row, column].astype(np.float32).reshape(-1)

    def execute(self, kernel):
        """Whether the sums are right."""
        warps.Group(kernel, THREADS, self.bank, self.memory).run()
        own = slice(self.case.first, self.case.first + 2 * self.case.depth)
        product = self.left[:, own] @ self.right[:, own].T
        if self.case.sign < 0:
            product = -product
        expected = product + (self.sums + 1 if self.add else 0)
        given = self.memory[self.places[2]:].view(np.float32).reshape(self.row.shape)
        return bool((given == expected[self.row, self.column]).all())


def edited(kernel, name, replacement=("NOP", "")):
    """The kernel without its first instruction of this name."""
    one = next(one for one in kernel.instructions if one.name.startswith(name))
    new = machine.Instruction(one.address, "", *replacement)
    return machine.Kernel(kernel.name, [new if x is one else copy.copy(x) for x in kernel.instructions], kernel.labels)


class Machine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work)
            (folder / "k.cl").write_text(HEADER + "".join(case.text() for case in CASES) + TURNS)
            target = offline.Nvidia(machine.ARCHITECTURE, tools[0])
            target.compile(folder / "k.cl", ["-cl-std=CL1.2"], folder)
            listing = offline.run([tools[1], "-c", folder / "k.cubin"], folder)
        cls.kernels = {kernel.name: kernel for kernel in machine.read_kernels(listing)}

    def check_fault(self, words, case, kernel, **arguments):
        with self.assertRaisesRegex(warpgroup.Fault, words):
            Run(case, **arguments).execute(kernel)

    def test_products(self):
        for number, case in enumerate(CASES):
            with self.subTest(case=case.name):
                self.assertTrue(Run(case, add=number % 2).execute(self.kernels[case.name]))

    def test_faults(self):
        """Of a kernel without an instruction, or with another in its place."""
        case = CASES[0]
        kernel = self.kernels[case.name]
        first = next(one for one in kernel.instructions if one.name.startswith("HGMMA"))
        sums, left = first.operands.split(", ")[:2]
        for words, name, *new in (
                ("written without a fence", "FENCE"),
                ("which another warp wrote", "BAR"),
                ("written after WARPGROUP.ARRIVE", "WARPGROUP.ARRIVE"),
                ("which a product that has not ended reads", "WARPGROUP.DEPBAR"),
                (f"reads {sums}, to which a product", "WARPGROUP.DEPBAR", ("FADD", f"R0, {sums}, RZ")),
                (f"writes {left}, which a product", "WARPGROUP.DEPBAR", ("MOV", f"{left}, RZ")),
                ("of another form", "HGMMA", (first.name.replace("64x64", "64x32"), first.operands)),
                ("adds to registers from which", "HGMMA", (first.name, first.operands.replace(left, sums))),
        ):
            with self.subTest(words=words):
                self.check_fault(words, case, edited(kernel, name, *new))
        copied = next(case for case in CASES if case.left)
        self.check_fault("whose copy is under way", copied, edited(self.kernels[copied.name], "DEPBAR"))

    def run_turns(self, kernel):
        memory, bank = np.zeros(1024, np.uint8), bytearray(1 << 12)
        bank[warps.PARAMETERS:warps.PARAMETERS + 8] = warps.GLOBAL.to_bytes(8, "little")
        warps.Group(kernel, 256, bytes(bank), memory).run()
        return memory.view(np.int32)

    def test_turns(self):
        """Barriers of 256 work-items at which half of them do not wait, and votes of 128."""
        kernel = self.kernels["turns"]
        expected = np.concatenate([np.full(128, 1007), 127 - np.arange(128)])
        self.assertTrue((self.run_turns(kernel) == expected).all())
        for words, name in (("wait for ever", "BAR.ARV"), ("another warp (wrote|read) since", "BAR.SYNC")):
            with self.subTest(words=words), self.assertRaisesRegex(warpgroup.Fault, words):
                self.run_turns(edited(kernel, name))

    def test_groups(self):
        """A group's products end together, when no more than so many groups behind it are left."""
        products, nothing = warpgroup.Products(), np.zeros(0, int)
        products.arrive()
        for register, closes in ((24, ""), (40, ", gsb0"), (56, ", gsb0")):
            one = machine.Instruction(0, "", "HGMMA.64x32x16.F32.BF16", f"R{register}, gdesc[UR4], RZ, !UPT{closes}")
            one.parts = one.operands.split(", ")
            products.begin(warpgroup.form_of(one), nothing)
            if register == 40:
                self.assertEqual(products.wait(1), [])
        self.assertEqual(len(products.wait(1)), 2)
        products.check_read(24)
        products.check_read(55)
        with self.assertRaises(warpgroup.Fault):
            products.check_read(56)

    def test_four_warps(self):
        case = CASES[0]
        self.check_fault("different instructions, descriptors", case, self.kernels[case.name], skew=64)


if __name__ == "__main__":
    absent, tools = machine.find_tools()
    if absent:
        print(f"skipped: {absent} is not there")
        sys.exit(77)
    unittest.main()
