# SPDX-License-Identifier: Apache-2.0
"""Executes a work-group of NVIDIA's machine code (as nvdisasm prints it, sm_90), for bounds.py and matrix.py: results, and
what each instruction costs. As much of the instruction set as the kernels use; an unknown one is an error. Asynchronous
copies to local memory arrive when the warp waits for them, and not before. Products of four warps (HGMMA) are
warpgroup.py's.

Faults of a program are errors (Fault): accesses to global memory that the caller has not allowed; accesses to words of
local memory for which a copy is under way; words of local memory that one warp writes, and another reads or writes, with
no barrier between, unless the value stays as it was. Local and private memory hold NaN at first.

Lanes of a warp that are at the lowest address go first; those that diverged wait for each other where the compiler says
(BSSY, BSYNC). The cost of
a load or store of local memory is the number of passes through its 32 banks of 4 bytes: a pass serves one word of each
bank, to any number of lanes. Accesses of 8 and 16 bytes are served by half-warps and quarter-warps; two of these go
together where, in all of them, lanes n and n ^ 1, or n and n ^ 2, have the same address.
"""
import collections
import contextlib
import functools
import heapq
import re

import numpy as np

import warpgroup
from warpgroup import Fault

LANES = np.arange(32)
PARAMETERS = 0x210  # of kernels in the constant bank
LOCAL = 0x400       # first address of local memory in its window
GLOBAL = 1 << 32    # first address of global memory here
STACK = 1 << 15     # bytes of a work-item's
WINDOW = 0x7f       # upper half of the addresses of local memory for instructions that take any
LATENCY = 300       # cycles from a load of global memory to its first use; of bytes that were loaded before:
LATENCY_AGAIN = 100
LINE, LINES = 128, 8  # bytes of a line of the first-level cache. Loads of more lines stand in line there:
LINE_CYCLES = 1       # cycles for each further line
PIECE = 16            # bytes of a lane's largest load
BANK_BYTES = 128      # of a pass through the banks of local memory
SCHEDULERS = 4      # each issues an instruction of one of its warps in a cycle
np.seterr(all="ignore")


def passes(address, size):
    """Passes of an access of active lanes' addresses (None: inactive) through the banks."""
    lanes = [None if x < 0 else int(x) for x in address]
    groups = [range(32)]
    if size > 4:
        groups = [range(16 * i, 16 * i + 16) for i in range(2)]
        for step in (1, 2):
            if all(lanes[n] == lanes[n ^ step] or None in (lanes[n], lanes[n ^ step]) for n in range(32)):
                if size == 8:
                    groups = [range(32)]
                break
        else:
            if size == 16:
                groups = [range(8 * i, 8 * i + 8) for i in range(4)]
    count = 0
    for group in groups:
        banks = collections.defaultdict(set)
        for n in group:
            if lanes[n] is not None:
                for word in range(lanes[n] // 4, (lanes[n] + size) // 4):
                    banks[word % 32].add(word)
        count += max((len(words) for words in banks.values()), default=0)
    return count


def signed(x):
    return x.astype(np.uint32).view(np.int32).astype(np.int64)


def floats(x):
    return x.astype(np.uint32).view(np.float32)


def bits(x):
    return np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)


FULL = np.uint64(0xffffffff)
READ, WRITE = 1, 2  # bits of Group's `access`


@functools.lru_cache(None)
def register_of(name):
    """Whether it is uniform, and its number; -1: zero."""
    number = name.lstrip("UR")
    return name[0] == "U", -1 if number == "Z" else int(number)


@functools.lru_cache(None)
def operand_of(text, real):
    """Its kind, and its register's name, place in the constant bank, or 32 numbers."""
    text = re.sub(r"\.(reuse|64|H0_H0|H1_H1)", "", text)
    constant = re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", text)
    if re.fullmatch(r"U?R(\d+|Z)", text):
        return "register", text
    if constant:
        return "constant", int(constant[1], 16)
    if text == "SRZ":
        return "number", np.zeros(32, np.uint64)
    if re.fullmatch(r"-?0x[0-9a-f]+|-?\d+", text) and not real:
        return "number", np.full(32, int(text, 0) & 0xffffffff, np.uint64)
    special = {"+INF": np.inf, "-INF": -np.inf, "+QNAN": np.nan, "-QNAN": np.nan}
    return "number", np.full(32, bits(special[text] if text in special else float(text)), np.uint64)


@functools.lru_cache(None)
def sign_of(text):
    """An integer's sign (-, ~ or | where it has one), and what follows."""
    if text[0] in "~|" or text[0] == "-" and not re.match(r"-\d", text):
        return text[0], text.strip("-~|")
    return "", text


@functools.lru_cache(None)
def float_sign_of(text):
    """Whether a number is negated, and made positive before, and what follows."""
    sign = text.startswith("-") and not re.match(r"-(\d|INF|QNAN)", text)
    text = text.replace(".reuse", "")[sign:]
    return sign, text.startswith("|"), text.strip("|")


@functools.lru_cache(None)
def terms_of(text):
    """(sign, operand, whether it is a pair) of [R1.64+UR2+0x10] and such."""
    parts = [re.fullmatch(r"([+-]?)(.*?)(\.X\d+)?", part).groups()
             for part in re.findall(r"[+-]?[^+-]+", text.strip("[]"))]
    return [(-1 if sign == "-" else 1, name, name.endswith(".64")) for sign, name, _ in parts]


class Warp:
    def __init__(self, group, number):
        self.group, self.number = group, number
        self.r, self.ur = np.zeros((257, 32), np.uint64), np.zeros((65, 32), np.uint64)
        self.p, self.up = np.zeros((8, 32), bool), np.zeros((8, 32), bool)
        self.p[7] = self.up[7] = True
        self.pc, self.live, self.waits, self.vote = np.zeros(32, np.int64), np.ones(32, bool), False, None
        # lanes that wait at a BSYNC, and of each barrier of a warp, for each lane, the lanes that it waits for
        self.stopped, self.joins = np.zeros(32, bool), {}
        # by a clock on which all warps issue in turn, since the last barrier: now, and when loaded registers arrive
        self.clock, self.arrival, self.issued = 0.0, {}, 0
        # (lane's address in local memory, its 16 bytes) of copies that have not arrived: groups, the last one is open
        self.copies = [[]]
        self.products = warpgroup.Products() if group.agreement else None

    # ---- operands ----

    def register(self, name):
        """The array and row of a register; RZ and URZ are the last rows, which nothing else reads."""
        uniform, row = register_of(name)
        return (self.ur, 64 if row < 0 else row) if uniform else (self.r, 256 if row < 0 else row)

    def source(self, name, count=1):
        """The same, of so many registers that are read."""
        array, row = self.register(name)
        if self.products and array is self.r:
            for i in range(count):
                self.products.check_read(row + i)
        return array, row

    def read(self, text, real=False):
        """Bits of an operand, as 32 unsigned numbers."""
        kind, value = operand_of(text, real)
        if kind == "register":
            array, row = self.source(value)
            return array[row].copy()
        return self.group.constant(value) if kind == "constant" else value.copy()

    def integer(self, text):
        sign, text = sign_of(text)
        if sign == "-":
            return (-self.read(text).astype(np.int64)).astype(np.uint64) & FULL
        if sign == "~":
            return ~self.read(text) & FULL
        return np.abs(signed(self.read(text))).astype(np.uint64) if sign == "|" else self.read(text)

    def wide(self, text):
        """64 bits of a pair of registers (or a constant's), negated where it has a sign."""
        sign, text = sign_of(text)
        if sign == "-":
            return np.uint64(0) - self.wide(text)
        kind, value = operand_of(text, False)
        low = self.read(text)
        if kind == "constant":
            return low | self.group.constant(value + 4) << np.uint64(32)
        if kind == "register":
            array, row = self.source(value, 2)
            return low if row == len(array) - 1 else low | array[row + 1] << np.uint64(32)
        return low

    def float(self, text):
        sign, absolute, text = float_sign_of(text)
        value = floats(self.read(text, True))
        value = np.abs(value) if absolute else value
        return -value if sign else value

    def predicate(self, text):
        text, invert = text.lstrip("!"), text.startswith("!")
        array, name = (self.up, text[2:]) if text.startswith("UP") else (self.p, text[1:])
        value = array[7 if name == "T" else int(name)]
        return ~value if invert else value.copy()

    def write(self, text, value, mask):
        array, row = self.register(text)
        if row != len(array) - 1:
            if self.products and array is self.r:
                self.products.check_write(row)
            mask = np.ones(32, bool) if array is self.ur else mask
            array[row][mask] = (np.asarray(value).astype(np.uint64) & np.uint64(0xffffffff))[mask]

    def write_wide(self, text, value, mask):
        array, row = self.register(text.replace(".64", ""))
        if row != len(array) - 1:
            prefix = "UR" if array is self.ur else "R"
            self.write(f"{prefix}{row}", value & np.uint64(0xffffffff), mask)
            self.write(f"{prefix}{row + 1}", value >> np.uint64(32), mask)

    def write_predicate(self, text, value, mask):
        array = self.up if text.startswith("UP") else self.p
        if text[-1] != "T":
            mask = np.ones(32, bool) if array is self.up else mask
            array[int(text[-1])][mask] = np.asarray(value, bool)[mask]

    def address(self, text):
        """Of [R1.64+UR2+0x10] and such."""
        total = np.zeros(32, np.int64)
        for sign, name, pair in terms_of(text):
            total += sign * (self.wide(name) if pair else self.integer(name)).astype(np.int64)
        return total

    # ---- steps ----

    def step(self):
        """Executes the instruction at the lowest address of the live lanes that do not wait."""
        ready = self.live & ~self.stopped
        if not ready.any():  # those for which they wait have left
            self.join()
            return
        pc = int(self.pc[ready].min())
        one = self.group.code[pc]
        mask = ready & (self.pc == pc)
        if one.guard:
            guard = self.predicate(one.guard)
            taken = mask & guard
        else:
            taken = mask
        self.group.count(one, self, taken)
        self.pc[mask] = pc + 16
        if taken.any():
            base, *modifiers = one.name.split(".")
            base = "P2R" if base == "UP2UR" else base
            action = getattr(self, base, None) or getattr(self, base[1:])
            try:
                action(one, modifiers, one.parts, taken)
            except Fault as fault:
                raise Fault(f"{fault} at {pc:#x}: {one.name} {one.operands}") from None

    def nothing(self, one, modifiers, x, mask):
        pass

    WARPSYNC = NOP = MEMBAR = YIELD = nothing

    def BSSY(self, one, modifiers, x, mask):
        self.joins.setdefault(x[0], np.zeros((32, 32), bool))[mask] = mask

    def BREAK(self, one, modifiers, x, mask):
        self.joins[x[-1]][:, mask] = False

    def BSYNC(self, one, modifiers, x, mask):
        """The lanes go on when all lanes that they wait for are here, or gone."""
        self.stopped |= mask
        here = self.stopped & (self.pc == one.address + 16)
        for lane in np.flatnonzero(here):
            if not (self.joins[x[0]][lane] & self.live & ~here).any():
                self.stopped[lane] = False

    def join(self):
        before = self.stopped.copy()
        for pc in np.unique(self.pc[self.live]):
            one = self.group.code[int(pc) - 16]
            if one.base == "BSYNC":
                self.BSYNC(one, [], one.parts, self.live & (self.pc == pc))
        if (before == self.stopped).all():
            raise Fault("lanes wait for each other for ever")

    def EXIT(self, one, modifiers, x, mask):
        self.live &= ~mask

    def BRA(self, one, modifiers, x, mask):
        if "DIV" in modifiers:  # where not all lanes of a mask are here
            if int((mask.astype(np.uint64) << LANES.astype(np.uint64)).sum()) == int(self.read(x[0].strip("~"))[0]):
                return
            raise NotImplementedError(one)
        if len(x) > 1:  # a predicate beside the guard
            mask = mask & self.predicate(x[0])
        self.pc[mask] = self.group.labels[x[-1]]

    def CALL(self, one, modifiers, x, mask):
        self.pc[mask] = self.group.labels[x[-1]]

    def RET(self, one, modifiers, x, mask):
        self.pc[mask] = self.integer(x[0].split()[0])[mask].astype(np.int64)

    def BAR(self, one, modifiers, x, mask):
        self.waits = True
        self.vote = (self.predicate(x[1]) & mask).any() if "RED" in modifiers else None

    def B2R(self, one, modifiers, x, mask):
        """The result of the last barrier with a vote."""
        self.write_predicate(x[1], np.full(32, self.group.voted), mask)

    # integers

    def carries(self, x):
        """Splits the destination predicates off: (destination, predicates written, the rest)."""
        rest = list(x)
        written = []
        if re.fullmatch(r"U?P[\dT]", rest[0]):
            written.append(rest.pop(0))
        to = rest.pop(0)
        while rest and re.fullmatch(r"U?P[\dT]", rest[0]):
            written.append(rest.pop(0))
        return to, written, rest

    def IADD3(self, one, modifiers, x, mask):
        to, written, rest = self.carries(x)
        if "64" in modifiers:
            self.write_wide(to, self.wide(rest[0]) + self.wide(rest[1]) + self.wide(rest[2]), mask)
            return
        total = np.zeros(32, np.int64)
        for operand in rest[:3]:
            total += self.integer(operand).astype(np.int64)
            if written and sign_of(operand)[0] == "-":  # ~x + 1, which carries where x is 0
                total += (self.integer(operand) == 0).astype(np.int64) << 32
        if "X" in modifiers:
            for operand in rest[3:]:
                total += self.predicate(operand)
        for i, name in enumerate(written):
            self.write_predicate(name, (total >> (32 + i)) != 0 if i == 0 else total >= (2 << 32), mask)
        self.write(to, total.astype(np.uint64), mask)

    UIADD3 = IADD3

    def VIADD(self, one, modifiers, x, mask):
        self.write(x[0], self.integer(x[1]) + self.integer(x[2]), mask)

    def IMAD(self, one, modifiers, x, mask):
        to, written, rest = self.carries(x)
        if "WIDE" in modifiers:
            left, right = self.integer(rest[0]), self.integer(rest[1])
            if "U32" not in modifiers:
                left, right = signed(left).astype(np.uint64), signed(right).astype(np.uint64)
            total = left * right + self.wide(rest[2])
            self.write_wide(to, total, mask)
            for name in written:
                self.write_predicate(name, total < self.wide(rest[2]), mask)
            return
        if "HI" in modifiers:
            left, right = self.integer(rest[0]), self.integer(rest[1])
            if "U32" not in modifiers:
                left, right = signed(left).astype(np.uint64), signed(right).astype(np.uint64)
            total = left * right + self.wide(rest[2])
            self.write(to, total >> np.uint64(32), mask)
            return
        total = self.integer(rest[0]) * self.integer(rest[1]) + self.integer(rest[2])
        if "X" in modifiers:
            total = total + self.predicate(rest[3]).astype(np.uint64)
        for name in written:
            self.write_predicate(name, (total >> np.uint64(32)) != 0, mask)
        self.write(to, total, mask)

    def LEA(self, one, modifiers, x, mask):
        to, written, rest = self.carries(x)
        carry = 0
        if "X" in modifiers:
            carry = self.predicate(rest.pop()).astype(np.uint64)
        if "HI" in modifiers:
            shift = np.uint64(int(rest[-1], 0))
            low = self.integer(rest[0])
            if "SX32" in modifiers:
                pair = signed(low).astype(np.uint64)
            else:
                pair = low | self.integer(rest[2]) << np.uint64(32)
            part = ((pair << shift) >> np.uint64(32)) & np.uint64(0xffffffff)
            total = part + self.integer(rest[1]) + carry
        else:
            shift = np.uint64(int(rest[2], 0))
            total = ((self.integer(rest[0]) << shift) & np.uint64(0xffffffff)) + self.integer(rest[1]) + carry
        for name in written:
            self.write_predicate(name, (total >> np.uint64(32)) != 0, mask)
        self.write(to, total, mask)

    def LOP3(self, one, modifiers, x, mask):
        to, written, rest = self.carries(x)
        a, b, c = (self.integer(operand) for operand in rest[:3])
        table, out = int(rest[3], 0), np.zeros(32, np.uint64)
        full = np.uint64(0xffffffff)
        for i in range(8):
            if table >> i & 1:
                out |= (a if i & 4 else ~a & full) & (b if i & 2 else ~b & full) & (c if i & 1 else ~c & full)
        before = self.predicate(rest[4]) if len(rest) > 4 else np.zeros(32, bool)
        for name in written:  # of 64 bits: the lower half's vote joins
            self.write_predicate(name, (out != 0) | before, mask)
        self.write(to, out, mask)

    def SHF(self, one, modifiers, x, mask):
        low, shift, high = self.integer(x[1]), self.integer(x[2]), self.integer(x[3])
        pair = low | high << np.uint64(32)
        if "L" in modifiers:
            out = (pair << shift) >> np.uint64(32) if "HI" in modifiers else low << shift
        elif "HI" in modifiers:
            out = signed(high) >> shift.astype(np.int64) if "S32" in modifiers else high >> shift
        else:
            out = pair.view(np.int64) >> shift.astype(np.int64) if "S64" in modifiers else pair >> shift
        self.write(x[0], out.astype(np.uint64), mask)

    def compare(self, kind, a, b):
        return {"EQ": a == b, "NE": a != b, "LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b,
                "NEU": ~(a == b), "GEU": ~(a < b), "GTU": ~(a <= b), "LTU": ~(a >= b), "LEU": ~(a > b),
                "EQU": ~((a < b) | (a > b)), "NAN": (a != a) | (b != b), "NUM": (a == a) & (b == b)}[kind]

    def ISETP(self, one, modifiers, x, mask):
        a, b = self.integer(x[2]), self.integer(x[3])
        if "EX" in modifiers:
            equal, below = a == b, self.predicate(x[5])
            high = (a, b) if "U32" in modifiers else (signed(a), signed(b))
            strict = {"GE": "GT", "LE": "LT"}.get(modifiers[0], modifiers[0])
            out = {"EQ": equal & below, "NE": ~equal | below}.get(
                modifiers[0], self.compare(strict, *high) | equal & below)
        else:
            if "U32" not in modifiers:
                a, b = signed(a), signed(b)
            out = self.compare(modifiers[0], a, b)
        self.combine(one, modifiers, x, out, self.predicate(x[4]), mask)

    def combine(self, one, modifiers, x, out, other, mask):
        joined = (lambda p, q: p | q) if "OR" in modifiers else (lambda p, q: p & q)
        self.write_predicate(x[0], joined(out, other), mask)
        self.write_predicate(x[1], joined(~out, other), mask)

    def SGXT(self, one, modifiers, x, mask):
        kept = np.uint64((1 << int(x[2], 0)) - 1)
        if "U32" not in modifiers:
            raise NotImplementedError(one)
        self.write(x[0], self.integer(x[1]) & kept, mask)

    def SEL(self, one, modifiers, x, mask):
        self.write(x[0], np.where(self.predicate(x[3]), self.integer(x[1]), self.integer(x[2])), mask)

    def IABS(self, one, modifiers, x, mask):
        self.write(x[0], np.abs(signed(self.integer(x[1]))).astype(np.uint64), mask)

    def VIMNMX(self, one, modifiers, x, mask):
        a, b = self.integer(x[1]), self.integer(x[2])
        if "U32" not in modifiers:
            a, b = signed(a), signed(b)
        self.write(x[0], np.where(self.predicate(x[3]), np.minimum(a, b), np.maximum(a, b)).astype(np.uint64), mask)

    def IMNMX3(self, one, modifiers, x, mask):
        a, b, c = (signed(self.integer(operand)) for operand in x[1:4])
        least, most = np.minimum(np.minimum(a, b), c), np.maximum(np.maximum(a, b), c)
        self.write(x[0], np.where(self.predicate(x[4]), least, most).astype(np.uint64) & FULL, mask)

    def VIADDMNMX(self, one, modifiers, x, mask):
        total = signed(self.integer(x[1]) + self.integer(x[2]) & np.uint64(0xffffffff))
        other = signed(self.integer(x[3]))
        least, most = np.minimum(total, other), np.maximum(total, other)
        self.write(x[0], np.where(self.predicate(x[4]), least, most).astype(np.uint64), mask)

    def PRMT(self, one, modifiers, x, mask):
        a, choice, b = (self.integer(operand) for operand in x[1:4])
        pair, out = a | b << np.uint64(32), np.zeros(32, np.uint64)
        for i in range(4):
            nibble = choice >> np.uint64(4 * i) & np.uint64(15)
            byte = pair >> ((nibble & np.uint64(7)) * np.uint64(8)) & np.uint64(255)
            sign = (byte >> np.uint64(7)) * np.uint64(255)
            out |= np.where(nibble & np.uint64(8), sign, byte) << np.uint64(8 * i)
        self.write(x[0], out, mask)

    def MOV(self, one, modifiers, x, mask):
        self.write(x[0], self.integer(x[1]), mask)

    def R2UR(self, one, modifiers, x, mask):
        """Of the first lane that is here."""
        self.write(x[0], np.full(32, self.integer(x[1])[np.flatnonzero(mask)[0]]), mask)

    def CS2R(self, one, modifiers, x, mask):
        self.write(x[0], np.zeros(32), mask)
        if "32" not in modifiers:
            self.write(f"R{int(x[0][1:]) + 1}", np.zeros(32), mask)

    def S2R(self, one, modifiers, x, mask):
        self.write(x[0], {"SR_TID.X": 32 * self.number + LANES, "SR_CTAID.X": np.full(32, self.group.index),
                          "SR_CTAID.Y": np.zeros(32), "SR_CgaCtaId": np.zeros(32), "SR_SWINHI": np.full(32, WINDOW)}[x[1]], mask)

    S2UR = S2R

    def LDC(self, one, modifiers, x, mask):
        bank, place = re.search(r"c\[(0x[03])\](\[.*\])", x[1]).groups()
        bank, at = self.group.tables if bank == "0x3" else self.group.bank, self.address(place).astype(np.int64)
        size = {"64": 8, "U8": 1, "U16": 2}.get(modifiers[0] if modifiers else "", 4)
        value = np.array([int.from_bytes(bank[i:i + size], "little") for i in at], np.uint64)
        (self.write_wide if size == 8 else self.write)(x[0], value, mask)

    ULDC = LDC

    def P2R(self, one, modifiers, x, mask):
        prefix = "UP" if x[1].startswith("U") else "P"
        value = sum(self.predicate(f"{prefix}{i}").astype(np.uint64) << np.uint64(i) for i in range(7))
        self.write(x[0], value & self.integer(x[-1]) | self.integer(x[2]) & ~self.integer(x[-1]), mask)

    def R2P(self, one, modifiers, x, mask):
        shift = 8 * int(modifiers[0][1]) if modifiers else 0
        chosen, value = int(x[2], 0), self.integer(x[1]) >> np.uint64(shift)
        for i in range(7):
            if chosen >> i & 1:
                self.write_predicate(f"P{i}", value >> np.uint64(i) & np.uint64(1), mask)

    def VOTE(self, one, modifiers, x, mask):
        held = self.predicate(x[-1]) & mask
        vote = held.any() if "ANY" in modifiers else (held == mask).all()
        ballot = np.full(32, (held.astype(np.uint64) << LANES.astype(np.uint64)).sum(), np.uint64)
        for to in x[:-1]:
            if re.fullmatch(r"U?P[\dT]", to):
                self.write_predicate(to, np.full(32, vote), mask)
            else:
                self.write(to, ballot, mask)

    VOTEU = VOTE

    def PLOP3(self, one, modifiers, x, mask):
        a, b, c = (self.predicate(operand) for operand in x[2:5])
        for to, table in zip(x[:2], (int(x[5], 0), int(x[6], 0))):
            out = np.zeros(32, bool)
            for i in range(8):
                if table >> i & 1:
                    out |= (a == bool(i & 4)) & (b == bool(i & 2)) & (c == bool(i & 1))
            self.write_predicate(to, out, mask)

    # floats

    def FADD(self, one, modifiers, x, mask):
        self.write(x[0], bits(self.float(x[1]) + self.float(x[2])), mask)

    def FMUL(self, one, modifiers, x, mask):
        self.write(x[0], bits(self.float(x[1]) * self.float(x[2])), mask)

    def FFMA(self, one, modifiers, x, mask):
        if one.plain is not None and mask.all():
            to, rows, signs = one.plain
            if self.products:
                for row in rows:
                    self.products.check_read(row)
                self.products.check_write(to)
            a, b, c = self.r[rows].astype(np.uint32).view(np.float32).astype(np.float64)
            out = (a * b if signs[0] == signs[1] else -(a * b)) + (-c if signs[2] else c)
            self.r[to] = out.astype(np.float32).view(np.uint32)
            return
        a, b, c = (self.float(operand).astype(np.float64) for operand in x[1:4])
        out = (a * b + c).astype(np.float32)
        self.write(x[0], bits(np.clip(out, 0, 1) if "SAT" in modifiers else out), mask)

    def HFMA2(self, one, modifiers, x, mask):  # a constant: two halves
        halves = np.array([float(x[-1]), float(x[-2])], np.float16).view(np.uint16).astype(np.uint64)
        if [y.strip("-") for y in x[1:3]] != ["RZ", "RZ"]:
            raise NotImplementedError(one)
        self.write(x[0], np.full(32, halves[0] | halves[1] << np.uint64(16)), mask)

    def FSEL(self, one, modifiers, x, mask):
        self.write(x[0], bits(np.where(self.predicate(x[3]), self.float(x[1]), self.float(x[2]))), mask)

    def FMNMX(self, one, modifiers, x, mask):
        a, b = self.float(x[1]), self.float(x[2])
        self.write(x[0], bits(np.where(self.predicate(x[3]), np.fmin(a, b), np.fmax(a, b))), mask)

    def FSETP(self, one, modifiers, x, mask):
        out = self.compare(modifiers[0], self.float(x[2]), self.float(x[3]))
        self.combine(one, modifiers, x, out, self.predicate(x[4]), mask)

    def FSET(self, one, modifiers, x, mask):
        out = self.compare(modifiers[1], self.float(x[1]), self.float(x[2])) & self.predicate(x[3])
        self.write(x[0], bits(out.astype(np.float32)), mask)

    def MUFU(self, one, modifiers, x, mask):
        a = self.float(x[1])
        self.write(x[0], bits({"EX2": np.exp2, "RCP": lambda y: 1 / y, "RSQ": lambda y: 1 / np.sqrt(y),
                               "LG2": np.log2}[modifiers[0]](a)), mask)

    def FCHK(self, one, modifiers, x, mask):
        self.write_predicate(x[0], np.zeros(32, bool), mask)

    def I2F(self, one, modifiers, x, mask):
        wide = "U64" in modifiers
        a = self.wide(x[1]) if wide else self.integer(x[1])
        exact = a if wide else (a if "U32" in modifiers else signed(a)).astype(np.float64)
        out = exact.astype(np.float32)
        if "RP" in modifiers:
            out = np.where(out < exact, np.nextafter(out, np.float32(np.inf)), out)
        self.write(x[0], bits(out), mask)

    I2FP = I2F

    def F2I(self, one, modifiers, x, mask):
        if "TRUNC" not in modifiers or "U64" in modifiers:
            raise NotImplementedError(one)
        value = np.nan_to_num(np.trunc(self.float(x[1]).astype(np.float64)))
        least, most = (0, 2**32 - 1) if "U32" in modifiers else (-2**31, 2**31 - 1)
        self.write(x[0], np.clip(value, least, most).astype(np.int64).astype(np.uint64), mask)

    def SHFL(self, one, modifiers, x, mask):
        """Of all lanes; a butterfly within the warp."""
        to, step, clamp = x[1], self.integer(x[3]).astype(np.int64), self.integer(x[4])
        if modifiers != ["BFLY"] or x[0] != "PT" or (clamp != 0x1f).any() or not mask.all():
            raise NotImplementedError(one)
        self.write(to, self.read(x[2])[LANES ^ step], mask)

    # memory

    def width(self, modifiers):
        sizes = {"64": 8, "128": 16, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
        return next((sizes[m] for m in modifiers if m in sizes), 4)

    def load(self, memory, at, modifiers, x, mask):
        size = self.width(modifiers)
        self.group.check_read(self, memory, at[mask], size)
        to = int(x[0][1:])
        for i in range(0, max(size, 4), 4):
            count = min(size, 4)
            value = np.zeros(32, np.uint64)
            if count == 4:
                value[mask] = memory.view(np.uint32)[at[mask] + i >> 2]
            else:
                for byte in range(count):
                    value[mask] |= memory[at[mask] + byte].astype(np.uint64) << np.uint64(8 * byte)
            self.write(f"R{to + i // 4}", value, mask)

    def store(self, memory, at, modifiers, source, mask):
        size = self.width(modifiers)
        with self.group.checked_write(self, memory, at[mask], size):
            self.put(memory, at, size, source, mask)

    def put(self, memory, at, size, source, mask):
        for i in range(0, max(size, 4), 4):
            array, row = self.source(source, max(size // 4, 1))
            value = np.zeros(32, np.uint64) if row == len(array) - 1 else array[row + i // 4]
            if size >= 4:
                memory.view(np.uint32)[at[mask] + i >> 2] = value[mask]
                continue
            for byte in range(size):
                memory[at[mask] + byte] = value[mask] >> np.uint64(8 * byte) & np.uint64(255)

    # matrix units

    def matrix(self, text, count):
        """32-bit words [count][32] of successive registers; zeros of RZ."""
        array, row = self.source(text, count)
        return np.zeros((count, 32), np.uint64) if row == len(array) - 1 else array[row:row + count].copy()

    def halves(self, words, modifiers):
        """The two 16-bit numbers of each word, [2][count][32]."""
        parts = [words & np.uint64(0xffff), words >> np.uint64(16)]
        if "BF16" in modifiers:
            return np.stack([floats(part << np.uint64(16)) for part in parts]).astype(np.float64)
        return np.stack([part.astype(np.uint16).view(np.float16) for part in parts]).astype(np.float64)

    def HMMA(self, one, modifiers, x, mask):
        """C += A B of a warp, 16 x 8 x 16, or of tf32 16 x 8 x 8; work-items hold rows lane / 4 (+ 8) and pairs of columns
        2 (lane % 4), or single columns lane % 4 (+ 4)."""
        singles = modifiers == ["1688", "F32", "TF32"]
        if not (singles or modifiers[:2] == ["16816", "F32"]) or not mask.all():
            raise NotImplementedError(one)
        group, pair = LANES // 4, LANES % 4 * 2
        depth = 8 if singles else 16
        left, right, sums = np.zeros((16, depth)), np.zeros((depth, 8)), np.zeros((16, 8))
        a, b = (self.matrix(text.replace(".reuse", ""), count) for text, count in ((x[1], 4), (x[2], 2)))
        c = floats(self.matrix(x[3], 4)).astype(np.float64)
        if singles:
            a, b = (floats(words & np.uint64(0xffffe000)).astype(np.float64) for words in (a, b))
            for word in range(4):
                left[group + word % 2 * 8, LANES % 4 + word // 2 * 4] = a[word]
            for word in range(2):
                right[LANES % 4 + word * 4, group] = b[word]
        else:
            a, b = self.halves(a, modifiers), self.halves(b, modifiers)
        for half in range(0 if singles else 2):
            for word in range(4):
                left[group + word % 2 * 8, pair + half + word // 2 * 8] = a[half, word]
            for word in range(2):
                right[pair + half + word * 8, group] = b[half, word]
        for number in range(4):
            sums[group + number // 2 * 8, pair + number % 2] = c[number]
        sums = (sums + left @ right).astype(np.float32)
        to = register_of(x[0])[1]
        for number in range(4):
            self.write(f"R{to + number}", bits(sums[group + number // 2 * 8, pair + number % 2]), mask)

    def HGMMA(self, one, modifiers, x, mask):
        """D = A B + C of four warps, each of which has 16 of the 64 rows."""
        if not mask.all():
            raise Fault("not all lanes of a warp execute a product")
        form, local, size = one.form, self.group.local, warpgroup.BYTES[one.form.kind]
        left, right = (int(self.ur[form.descriptors + i][0]) | int(self.ur[form.descriptors + i + 1][0]) << 32
                       for i in (0, 2))
        add = form.use is None or bool(self.predicate(form.use)[0])
        self.group.agreement.check(self, (one.address, right, left if form.left is None else 0, add))
        at, words = warpgroup.places(right, form.transposed_right, form.columns, form.depth, size)
        if form.left is None:
            rows, more = warpgroup.places(left, form.transposed_left, 64, form.depth, size)
            words = np.union1d(words, more)
            a = warpgroup.from_local(local, rows.reshape(4, 16, -1)[self.number % 4], form.kind)
        else:
            a = warpgroup.from_registers(self.r[list(form.operands)], form.kind)
        self.group.product_begins(self, words)
        self.products.begin(form, words)
        sums = (-a if form.negated else a) @ warpgroup.from_local(local, at, form.kind).T
        if add and form.sums != "RZ":
            first = int(form.sums[1:])
            sums += warpgroup.from_accumulators(floats(self.r[first:first + form.columns // 2])).astype(np.float64)
        self.r[list(form.accumulators)] = bits(warpgroup.to_registers(sums))

    def WARPGROUP(self, one, modifiers, x, mask):
        if modifiers == ["ARRIVE"]:
            self.products.arrive()
        elif modifiers == ["DEPBAR", "LE"] and x[0] == "gsb0":
            for _, words in self.products.wait(int(x[1], 0)):
                self.group.reading[words] -= 1
        else:
            raise NotImplementedError(one)

    def FENCE(self, one, modifiers, x, mask):
        if modifiers[:2] != ["VIEW", "ASYNC"]:
            raise NotImplementedError(one)
        self.group.fence(self)

    def LDSM(self, one, modifiers, x, mask):
        """Matrices of 8 rows of 16 bytes: lanes 8 i .. 8 i + 7 have the addresses of matrix i; MT88 transposes them."""
        count = int(modifiers[2])
        at = self.address(x[1]).astype(np.int64)
        to = register_of(x[0])[1]
        local = self.group.local.view(np.uint16)
        self.group.check_read(self, self.group.local, at[:8 * count], 16)
        for i in range(count):
            rows = np.stack([local[(int(start) >> 1):(int(start) >> 1) + 8] for start in at[8 * i:8 * i + 8]])
            rows = rows.T if modifiers[1] == "MT88" else rows
            low, high = (rows[LANES // 4, LANES % 4 * 2 + half].astype(np.uint64) for half in range(2))
            self.write(f"R{to + i}", low | high << np.uint64(16), mask)

    def LDGSTS(self, one, modifiers, x, mask):
        """Copies 16 or 4 bytes, or zeros where the predicate is false."""
        size = self.width(modifiers)
        if size not in (4, PIECE):
            raise NotImplementedError(one)
        to, source = self.address(x[0]).astype(np.int64), self.global_place(x[1]).astype(np.int64)
        full = self.predicate(x[2]) if len(x) > 2 else np.ones(32, bool)
        self.group.check_read(self, self.group.memory, source[mask & full], size)
        self.group.copy_begins(self, to[mask], size)
        for lane in np.flatnonzero(mask):
            data = self.group.memory[source[lane]:source[lane] + size].copy() if full[lane] else np.zeros(size, np.uint8)
            self.copies[-1].append((int(to[lane]), data))

    def LDGDEPBAR(self, one, modifiers, x, mask):
        self.copies.append([])

    def DEPBAR(self, one, modifiers, x, mask):
        """Waits until no more than so many closed groups are left."""
        if x[0] != "SB0":
            raise NotImplementedError(one)
        while len(self.copies) - 1 > int(x[1], 0):
            for to, data in self.copies.pop(0):
                self.group.local[to:to + len(data)] = data
                self.group.copy_ends(self, to, len(data))

    def F2FP(self, one, modifiers, x, mask):
        """Two floats as 16-bit numbers, rounded to nearest even; the second is the lower half."""
        words = []
        for operand in x[1:3]:
            value = self.float(operand)
            if "BF16" in modifiers:
                raw = bits(value)
                raw = np.where(np.isnan(value), raw | np.uint64(0x400000),
                               raw + np.uint64(0x7fff) + (raw >> np.uint64(16) & np.uint64(1)))
                words.append(raw >> np.uint64(16) & np.uint64(0xffff))
            else:
                words.append(value.astype(np.float16).view(np.uint16).astype(np.uint64))
        self.write(x[0], words[0] << np.uint64(16) | words[1], mask)

    def HADD2(self, one, modifiers, x, mask):
        """A half of a word as a float: HADD2.F32 R, -RZ, R.H0_H0."""
        if modifiers != ["F32"] or x[1] != "-RZ":
            raise NotImplementedError(one)
        word = self.read(re.sub(r"\.H[01]_H[01]", "", x[2]))
        half = word >> np.uint64(16) if ".H1_H1" in x[2] else word
        self.write(x[0], bits((half & np.uint64(0xffff)).astype(np.uint16).view(np.float16).astype(np.float32)), mask)

    def global_place(self, text):
        return self.address(re.sub(r"^desc\[UR\d+\]", "", text)) - GLOBAL

    def LDG(self, one, modifiers, x, mask):
        self.load(self.group.memory, self.global_place(x[1]), modifiers, x, mask)

    def STG(self, one, modifiers, x, mask):
        self.store(self.group.memory, self.global_place(x[0]), modifiers, x[1], mask)

    def LDS(self, one, modifiers, x, mask):
        self.load(self.group.local, self.address(x[1]), modifiers, x, mask)

    def STS(self, one, modifiers, x, mask):
        self.store(self.group.local, self.address(x[0]), modifiers, x[1], mask)

    def any_place(self, text, mask):
        """Memory and address of a load or store of any space; lanes agree about it."""
        at = self.global_place(text) + GLOBAL
        if (at[mask] >> 32 == WINDOW).all():
            return self.group.local, at & 0xffffffff
        return self.group.memory, at - GLOBAL

    def LD(self, one, modifiers, x, mask):
        self.load(*self.any_place(x[1], mask), modifiers, x, mask)

    def ST(self, one, modifiers, x, mask):
        self.store(*self.any_place(x[0], mask), modifiers, x[1], mask)

    def LDL(self, one, modifiers, x, mask):
        self.load(self.group.private[self.number], self.address(x[1]) + LANES * STACK, modifiers, x, mask)

    def STL(self, one, modifiers, x, mask):
        self.store(self.group.private[self.number], self.address(x[0]) + LANES * STACK, modifiers, x[1], mask)


def registers_of(one):
    """Numbers of the registers that an instruction reads or writes."""
    rows = set()
    if one.base == "HGMMA":
        return {*one.form.operands, *one.form.accumulators}
    width = max({"64": 2, "128": 4, "WIDE": 2}.get(part, 1) for part in one.name.split("."))
    for part in one.parts:
        for row, pair in re.findall(r"\bR(\d+)(\.64)?", part):
            count = 2 if pair else 1 if "[" in part else width
            rows |= set(range(int(row), int(row) + count))
    return rows


def plain_product(one):
    """(result's register, operands' registers, their signs) where all are vectors' registers, else None; for speed."""
    operands = [re.fullmatch(r"(-?)R(\d+)(\.reuse)?", part) for part in one.parts]
    if len(operands) != 4 or None in operands:
        return None
    return int(operands[0][2]), [int(x[2]) for x in operands[1:]], [bool(x[1]) for x in operands[1:]]


def parsed(kernel):
    """Its instructions by their addresses, with their operands taken apart, and its labels."""
    if not hasattr(kernel, "code"):
        kernel.code = {one.address: one for one in kernel.instructions}
        for one in kernel.instructions:
            one.base = one.name.split(".")[0]
            text = re.sub(r"\(\*.*?\*\)", "", one.operands)
            target = re.search(r"`\(([^)]*)\)", text)
            one.parts = [part.strip() for part in re.sub(r"`\([^)]*\)", target[1] if target else "", text).split(",")]
            one.form = warpgroup.form_of(one) if one.base == "HGMMA" else None
            one.registers = registers_of(one)
            one.plain = plain_product(one) if one.name == "FFMA" else None
    return kernel.code, kernel.labels


class Group:
    """A work-group: `bank` is the constant bank of arguments, `tables` that of the program's constants, `memory` global
    memory as bytes, `index` the group's number, `access` the READ and WRITE of each byte of global memory."""

    def __init__(self, kernel, threads, bank, memory, index=0, tables=b"", access=None):
        self.index, self.tables = index, tables
        self.code, self.labels = parsed(kernel)
        self.bank, self.memory, self.local = bank, memory, np.full(1 << 18, 0xff, np.uint8)
        self.private = np.full((threads // 32, 32 * STACK), 0xff, np.uint8)
        self.access = access  # None: everything is allowed
        # of the words of local memory: copies under way; the last writer and reader (-1: several), and since how many
        # barriers
        self.pending = np.zeros(len(self.local) // 4, bool)
        self.writer, self.reader, self.written, self.read = np.full((4, len(self.pending)), -1, np.int32)
        self.barriers = 0
        # of the words of local memory: products that read them, and those written since a fence before products
        self.reading, self.unfenced = np.zeros(len(self.pending), np.int32), np.zeros(len(self.pending), bool)
        self.agreement = warpgroup.Agreement() if any(one.base == "HGMMA" for one in self.code.values()) else None
        if self.agreement and threads % (32 * warpgroup.WARPS):
            raise Fault(f"products of four warps in a work-group of {threads // 32}")
        self.warps = [Warp(self, number) for number in range(threads // 32)]
        self.counts = collections.Counter()
        self.known = {}
        self.loaded = set()  # pieces of global memory
        self.free = 0.0      # when the first-level cache is

    @functools.lru_cache(None)
    def constant(self, at):
        return np.full(32, int.from_bytes(self.bank[at:at + 4], "little"), np.uint64)

    # ---- what a program must not do ----

    def words(self, at, size):
        return np.unique(np.add.outer(at.astype(np.int64) >> 2, np.arange(max(size // 4, 1))))

    def check_allowed(self, at, size, kind):
        if self.access is None or not len(at):
            return
        at = at.astype(np.int64)
        if at.min() < 0 or at.max() + size > len(self.access):
            raise Fault(f"accesses global memory at {at.min():#x} .. {at.max():#x}, where nothing is")
        for byte in range(size):
            wrong = self.access[at + byte] & kind == 0
            if wrong.any():
                raise Fault(f"{'reads' if kind == READ else 'writes'} global memory at {at[wrong][0] + byte:#x}")

    def check_shared(self, warp, words, changed, what):
        """Of words of local memory that the warp accesses: other warps have not written, nor read those that changed."""
        if self.pending[words].any():
            raise Fault(f"{what} a word of local memory whose copy is under way")
        wrong = changed & (self.written[words] == self.barriers) & (self.writer[words] != warp.number)
        if wrong.any():
            raise Fault(f"{what} local memory at {4 * words[wrong][0]:#x}, which another warp wrote since the barrier")

    def check_read(self, warp, memory, at, size):
        if memory is self.memory:
            self.check_allowed(at, size, READ)
        elif memory is self.local and len(at):
            self.local_read(warp, self.words(at, size), "reads")

    def local_read(self, warp, words, what):
        self.check_shared(warp, words, np.ones(len(words), bool), what)
        others = (self.read[words] == self.barriers) & (self.reader[words] != warp.number)
        self.reader[words] = np.where(others, -1, warp.number)
        self.read[words] = self.barriers

    @contextlib.contextmanager
    def checked_write(self, warp, memory, at, size):
        if memory is self.memory:
            self.check_allowed(at, size, WRITE)
        if memory is not self.local or not len(at):
            yield
            return
        words = self.words(at, size)
        before = self.local.view(np.uint32)[words]
        yield
        self.local_written(warp, words, before != self.local.view(np.uint32)[words], "writes")

    def local_written(self, warp, words, changed, what):
        self.check_shared(warp, words, changed, what)
        wrong = changed & (self.read[words] == self.barriers) & (self.reader[words] != warp.number)
        if wrong.any():
            raise Fault(f"{what} local memory at {4 * words[wrong][0]:#x}, which another warp read since the barrier")
        wrong = changed & (self.reading[words] > 0)
        if wrong.any():
            raise Fault(f"{what} local memory at {4 * words[wrong][0]:#x}, which a product that has not ended reads")
        self.writer[words], self.written[words] = warp.number, self.barriers
        self.unfenced[words[changed]] = True

    def copy_begins(self, warp, at, size):
        words = self.words(at, size)
        self.local_written(warp, words, np.ones(len(words), bool), "begins to copy to")
        self.pending[words] = True

    def copy_ends(self, warp, at, size):
        words = np.arange(at // 4, (at + size) // 4)
        self.pending[words] = False
        self.writer[words], self.written[words] = warp.number, self.barriers

    def fence(self, warp):
        """What the warp wrote, and copied where the copies have arrived, is there for products."""
        self.unfenced &= (self.writer != warp.number) | self.pending

    def product_begins(self, warp, words):
        self.local_read(warp, words, "multiplies")
        if self.unfenced[words].any():
            raise Fault(f"multiplies local memory at {4 * words[self.unfenced[words]][0]:#x}, written without a fence "
                        "(fence.proxy.async)")
        self.reading[words] += 1

    # ---- costs ----

    def wait(self, one, warp):
        """Moves the warp's clock to where the instruction can issue: its registers have arrived."""
        warp.issued += 1
        warp.clock += len(self.warps) / SCHEDULERS
        if warp.arrival:
            warp.clock = max(warp.clock, *(warp.arrival.pop(row, 0) for row in one.registers), 0)

    def meet(self):
        """A barrier, or the end: the last warp decides, whose time is more than the issue slots of all."""
        last = max(warp.clock for warp in self.warps)
        self.counts["waits"] += last - sum(warp.issued for warp in self.warps) / SCHEDULERS
        self.free = max(self.free - last, 0)
        self.barriers += 1
        votes = [warp.vote for warp in self.warps if warp.waits]
        if any(vote is not None for vote in votes):
            if any(vote is None for vote in votes):
                raise Fault("warps meet at a barrier with a vote and at one without")
            self.voted = any(votes)
        for warp in self.warps:
            warp.arrival = {row: time - last for row, time in warp.arrival.items() if time > last}
            warp.waits, warp.clock, warp.issued = False, 0.0, 0

    def passes(self, at, size):
        key = size, at.tobytes()
        if key not in self.known:
            self.known[key] = passes(at, size)
        return self.known[key]

    def count(self, one, warp, mask):
        """Adds the cost of an instruction of a warp; its mnemonic is counted, too."""
        self.wait(one, warp)
        self.counts["slots"] += 1
        self.counts[one.base] += 1
        if one.name.startswith(("FFMA", "FADD", "FMUL")):
            self.counts["fma" if one.name.startswith("FFMA") else "float"] += 1
        elif one.name.startswith("MUFU"):
            self.counts["mufu"] += 1
        elif one.name.startswith("HMMA"):
            self.counts["hmma"] += 1
        elif one.name.startswith("HGMMA"):
            self.counts["hgmma"] += one.form.columns // 8  # as many as HMMA would take
            self.counts["passes"] += one.form.local_bytes / warpgroup.WARPS / BANK_BYTES
        elif one.name.startswith("LDSM"):
            at = warp.address(one.parts[1])
            for i in range(int(one.name.split(".")[-1])):
                self.counts["passes"] += self.passes(np.where(LANES // 8 == i, at, -1), 16)
        elif one.name.startswith("LDGSTS") and mask.any():
            self.counts["passes"] += self.passes(np.where(mask, warp.address(one.parts[0]), -1), 16)
            self.counts["copies"] += 1
            self.counts["copied bytes"] += PIECE * int(mask.sum())
        elif one.name.startswith("BAR"):
            self.counts["barriers"] += 1
        elif one.name.startswith(("LDL", "STL")):
            self.counts["stack"] += 1
        elif one.name.startswith(("LDS", "STS")) and mask.any():
            size = warp.width(one.name.split("."))
            at = warp.address(one.parts[1 if one.name.startswith("LDS") else 0])
            count = self.passes(np.where(mask, at, -1), size)
            self.counts["passes"] += count
            if one.name.startswith("LDS"):
                self.counts["load passes"] += count
        elif one.name.startswith(("LDG.", "STG.")) and mask.any():
            size = warp.width(one.name.split("."))
            at = warp.global_place(one.parts[1 if one.name.startswith("LDG") else 0])[mask]
            sectors = {int(a) // 32 for a in at} | {(int(a) + size - 1) // 32 for a in at}
            self.counts["sectors"] += len(sectors)
            if one.name.startswith("LDG"):
                self.counts["load bytes"] += size * int(mask.sum())
                self.counts["narrow loads"] += size < 16
                lines = len({sector // (LINE // 32) for sector in sectors})
                self.free = max(self.free, warp.clock) + LINE_CYCLES * max(lines - LINES, 0)
                pieces = {int(a) // PIECE for a in at}
                time = self.free + (LATENCY_AGAIN if pieces <= self.loaded else LATENCY)
                self.loaded |= pieces
                first = register_of(one.parts[0])[1]
                warp.arrival |= {row: time for row in range(first, first + max(1, size // 4))}

    def run(self):
        """Counts; the warps' clocks decide which is next."""
        while any(warp.live.any() for warp in self.warps):
            ready = [(0.0, warp.number) for warp in self.warps if warp.live.any()]
            while ready:
                _, number = heapq.heappop(ready)
                warp = self.warps[number]
                warp.step()
                if warp.live.any() and not warp.waits:
                    heapq.heappush(ready, (warp.clock, number))
            self.meet()
        if self.agreement:
            self.agreement.finish(self.warps)
        return self.counts
