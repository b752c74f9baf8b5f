# SPDX-License-Identifier: Apache-2.0
"""Executes a work-group of NVIDIA's machine code (as nvdisasm prints it, sm_90), for run.py: results, and
how much of what it executes. As much of the instruction set as the kernels use; an unknown one is an error. Asynchronous
copies to local memory arrive when the warp waits for them, and not before. Products of four warps (HGMMA) are
warpgroup.py's.

Faults of a program are errors (Fault): accesses to global memory that the caller has not allowed; accesses to words of
local memory for which a copy is under way; words of local memory that one warp writes, and another reads or writes, with
no barrier between, unless the value stays as it was. Local and private memory hold NaN at first.

Warps at the same address execute an instruction in one step, for the time that a step takes is Python's: numpy does the
work of a whole work-group as fast as that of a warp. Lanes of a warp that are at the lowest address go first; those that
diverged wait for each other where the compiler says (BSSY, BSYNC).

The cost of a load or store of local memory is the number of passes through its 32 banks of 4 bytes: a pass serves one word
of each bank, to any number of lanes. Accesses of 8 and 16 bytes are served by half-warps and quarter-warps; two of these go
together where, in all of them, lanes n and n ^ 1, or n and n ^ 2, have the same address.
"""
import collections
import contextlib
import functools
import re

import numpy as np

import warpgroup
from warpgroup import Fault

PARAMETERS = 0x210  # of kernels in the constant bank
LOCAL = 0x400       # first address of local memory in its window
GLOBAL = 1 << 32    # first address of global memory here
STACK = 1 << 15     # bytes of a work-item's
WINDOW = 0x7f       # upper half of the addresses of local memory for instructions that take any
PIECE = 16          # bytes of a lane's largest copy
BANK_BYTES = 128    # of a pass through the banks of local memory
np.seterr(all="ignore")


@functools.lru_cache(None)
def passes(address, size):
    """Passes of an access of active lanes' addresses (-1: inactive), as bytes, through the banks."""
    lanes = [None if x < 0 else int(x) for x in np.frombuffer(address, np.int64)]
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


def bits_of_e4m3(code):
    """Of the same number in f16."""
    exponent, fraction = code >> 3 & 15, code & 7
    number = np.ldexp(fraction / 8 + (exponent > 0), max(exponent, 1) - 7)
    return code >> 7 << 15 | (0x7fff if code & 127 == 127 else int(np.float16(number).view(np.uint16)))


FULL = np.uint64(0xffffffff)
FAR = np.iinfo(np.int64).max  # behind each program
# The commonest functions of LOP3, by their tables: what they make of these three numbers.
LOGIC = {function(0xf0, 0xcc, 0xaa) & 0xff: function for function in (
    lambda a, b, c: a & b, lambda a, b, c: a | b, lambda a, b, c: a ^ b, lambda a, b, c: a & ~b, lambda a, b, c: a | b & c,
    lambda a, b, c: a & b | c, lambda a, b, c: a | b | c, lambda a, b, c: a & b & c, lambda a, b, c: a ^ b ^ c,
    lambda a, b, c: a & b | ~a & c, lambda a, b, c: ~c, lambda a, b, c: ~b)}
E4M3 = np.array([bits_of_e4m3(code) for code in range(256)], np.uint64)
READ, WRITE = 1, 2  # bits of Group's `access`


@functools.lru_cache(None)
def register_of(name):
    """Whether it is uniform, and its number; -1: zero."""
    number = name.lstrip("UR")
    return name[0] == "U", -1 if number == "Z" else int(number)


@functools.lru_cache(None)
def operand_of(text, real, lanes):
    """Its kind, and its register's name, place in the constant bank, or so many equal numbers."""
    text = re.sub(r"\.(reuse|64|H0_H0|H1_H1)", "", text)
    constant = re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", text)
    if re.fullmatch(r"U?R(\d+|Z)", text):
        return "register", text
    if constant:
        return "constant", int(constant[1], 16)
    if text == "SRZ":
        return "number", np.zeros(lanes, np.uint64)
    if re.fullmatch(r"-?0x[0-9a-f]+|-?\d+", text) and not real:
        return "number", np.full(lanes, int(text, 0) & 0xffffffff, np.uint64)
    special = {"+INF": np.inf, "-INF": -np.inf, "+QNAN": np.nan, "-QNAN": np.nan}
    return "number", np.full(lanes, bits(special[text] if text in special else float(text)), np.uint64)


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


@functools.lru_cache(None)
def predicate_of(text):
    """Whether it is inverted, and uniform, and its number."""
    name = text.lstrip("!")
    return text.startswith("!"), name.startswith("U"), 7 if name[-1] == "T" else int(name[-1])


@functools.lru_cache(None)
def carries_of(parts):
    """Splits the destination predicates off: (destination, predicates written, the rest)."""
    rest, written = list(parts), []
    if re.fullmatch(r"U?P[\dT]", rest[0]):
        written.append(rest.pop(0))
    to = rest.pop(0)
    while rest and re.fullmatch(r"U?P[\dT]", rest[0]):
        written.append(rest.pop(0))
    return to, written, rest


class Warps:
    """The warps of a work-group: those at the same address execute an instruction together. Arrays have an element for each
    lane of each warp. Of the instruction that is executed, `now` are the numbers of its warps, and `here` all their lanes."""

    def __init__(self, group, count):
        self.group, self.count, self.lanes = group, count, 32 * count
        self.thread = np.arange(self.lanes)
        self.warp, self.lane = self.thread // 32, self.thread % 32
        self.r, self.ur = np.zeros((257, self.lanes), np.uint64), np.zeros((65, self.lanes), np.uint64)
        self.p, self.up = np.zeros((8, self.lanes), bool), np.zeros((8, self.lanes), bool)
        # what was never written may hold anything, in each lane something else; the kernel gets its stack's address in R1
        anything = np.random.default_rng(group.index)
        self.r[2:255] = anything.integers(0, 1 << 32, (253, self.lanes), np.uint64)
        self.p[:7] = anything.integers(0, 2, (7, self.lanes)).astype(bool)
        self.p[7] = self.up[7] = True
        self.everyone = np.ones(self.lanes, bool)
        # never changed in place: it is `everyone` until a lane leaves
        self.live = self.everyone
        self.waits = np.zeros(count, bool)  # warps at a barrier
        # lanes that wait at a BSYNC, and of each barrier of a warp, for each lane, the lanes that it waits for
        self.stopped, self.joins = np.zeros(self.lanes, bool), {}
        # addresses of lanes; of those that are going, `place`, until it is where others of these warps are (None: others are
        # to be chosen)
        self.pc = np.zeros(self.lanes, np.int64)
        self.going, self.now, self.here, self.place, self.until = self.everyone, np.arange(count), self.everyone, 0, FAR
        # instructions of each warp since the last barrier, and those that the warps of `now` have executed since
        self.issued, self.late = np.zeros(count, int), 0
        # of each warp (addresses in local memory, their bytes) of copies that have not arrived: groups, the last one is open
        self.copies = [[[]] for _ in range(count)]
        self.products = [warpgroup.Products() for _ in range(count)] if group.agreement else None
        self.used, self.summed = set(), set()  # registers of any warp's products that have not ended; those of sums

    def by_warp(self, values):
        return values.reshape(self.count, 32)

    def spread(self, values):
        """A value of each warp, for each of its lanes."""
        return np.repeat(values, 32)

    # ---- operands ----

    def register(self, name):
        """The array and row of a register; RZ and URZ are the last rows, which nothing else reads."""
        uniform, row = register_of(name)
        return (self.ur, 64 if row < 0 else row) if uniform else (self.r, 256 if row < 0 else row)

    def check_read(self, row):
        if row in self.summed:
            for number in self.now:
                self.products[number].check_read(row)

    def check_write(self, row):
        for number in self.now:
            if row in self.used:
                self.products[number].check_write(row)
            self.products[number].fresh.add(row)

    def source(self, name, count=1):
        """The same, of so many registers that are read."""
        array, row = self.register(name)
        if self.summed and array is self.r:
            for i in range(count):
                self.check_read(row + i)
        return array, row

    def read(self, text, real=False):
        """Bits of an operand, as unsigned numbers, which the caller does not change."""
        kind, value = operand_of(text, real, self.lanes)
        if kind == "register":
            array, row = self.source(value)
            return array[row]
        return self.group.constant(value) if kind == "constant" else value

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
        kind, value = operand_of(text, False, self.lanes)
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
        invert, uniform, number = predicate_of(text)
        value = (self.up if uniform else self.p)[number]
        return ~value if invert else value.copy()

    def write(self, text, value, mask):
        array, row = self.register(text)
        if row != len(array) - 1:
            if self.products and array is self.r:
                self.check_write(row)
            self.put_row(array, row, np.asarray(value).astype(np.uint64) & FULL, mask)

    def put_row(self, array, row, value, mask):
        """Uniform registers and predicates are the same in all lanes of a warp."""
        if array is self.ur or array is self.up:
            mask = self.here
        if mask is self.everyone:
            array[row] = value
        else:
            np.copyto(array[row], value, where=mask)

    def write_wide(self, text, value, mask):
        array, row = self.register(text.replace(".64", ""))
        if row != len(array) - 1:
            prefix = "UR" if array is self.ur else "R"
            self.write(f"{prefix}{row}", value & FULL, mask)
            self.write(f"{prefix}{row + 1}", value >> np.uint64(32), mask)

    def write_predicate(self, text, value, mask):
        _, uniform, number = predicate_of(text)
        if number != 7:
            self.put_row(self.up if uniform else self.p, number, np.asarray(value, bool), mask)

    def address(self, text):
        """Of [R1.64+UR2+0x10] and such. Sums of 32-bit registers, which local memory's addresses are, wrap."""
        total, wide = np.zeros(self.lanes, np.int64), False
        for sign, name, pair in terms_of(text):
            total += sign * (self.wide(name) if pair else self.integer(name)).astype(np.int64)
            wide |= pair
        return total if wide else total & 0xffffffff

    # ---- steps ----

    def step(self):
        """Executes an instruction of the lanes that are going."""
        if self.place == self.until:
            self.part()
        if self.place is None and not self.choose():
            return
        mask, place = self.going, self.place
        one = self.group.code[place]
        taken = mask & self.predicate(one.guard) if one.guard else mask
        self.late += 1
        self.group.count(one, self, taken)
        self.place = place + 16
        if not one.guard or taken.any():
            try:
                one.action(self, one, one.modifiers, one.parts, taken)
            except Fault as fault:
                raise Fault(f"{fault} at {place:#x}: {one.name} {one.operands}") from None

    def choose(self):
        """Which lanes go next: of a warp those at the lowest address, of the warps the one furthest behind, and those that are
        at the same address. False: none do, but warps have met at a barrier, or lanes at a BSYNC."""
        ready = self.live & ~self.stopped & ~self.spread(self.waits)
        places = self.by_warp(np.where(ready, self.pc, FAR)).min(1)
        some, alive = places != FAR, self.by_warp(self.live).any(1)
        stuck = alive & ~self.waits & ~some
        if stuck.any():  # those for which they wait have left
            self.join(self.spread(stuck))
            return False
        if not some.any():
            self.group.meet()
            return False
        self.place = int(places[np.where(some, self.issued, FAR).argmin()])
        chosen = places == self.place
        self.now, self.here = chosen.nonzero()[0], self.everyone if chosen.all() else self.spread(chosen)
        self.going = ready & self.here & (self.pc == self.place)
        if (self.going == self.live).all():
            self.going = self.live
        others = ready & self.here & ~self.going
        self.until = self.pc[others].min() if others.any() else FAR
        return True

    def part(self):
        """The next step chooses again."""
        self.issued[self.now] += self.late
        self.late = 0
        self.pc[self.going] = self.place
        self.place = None

    def jump(self, places, mask):
        """`places`: an address, or one of each lane."""
        target = places[mask] if isinstance(places, np.ndarray) else np.array([places])
        if self.going is self.live and (mask is self.live or (mask == self.live).all()) and (target == target[0]).all():
            self.place = int(target[0])
            return
        self.part()
        self.pc[mask] = target

    def nothing(self, one, modifiers, x, mask):
        pass

    WARPSYNC = NOP = MEMBAR = YIELD = nothing

    def BSSY(self, one, modifiers, x, mask):
        joins = self.joins.setdefault(x[0], np.zeros((self.lanes, 32), bool))
        joins[mask] = np.repeat(self.by_warp(mask), 32, axis=0)[mask]

    def BREAK(self, one, modifiers, x, mask):
        self.joins[x[-1]] &= ~np.repeat(self.by_warp(mask), 32, axis=0)

    def BSYNC(self, one, modifiers, x, mask):
        """The lanes go on when all lanes that they wait for are here, or gone."""
        if mask is self.live:
            return
        if self.place is not None:
            self.part()
        self.stopped |= mask
        here = self.stopped & (self.pc == one.address + 16)
        missing = np.repeat(self.by_warp(self.live & ~here), 32, axis=0)
        self.stopped[here & ~(self.joins[x[0]] & missing).any(1)] = False

    def join(self, lanes):
        before = self.stopped.copy()
        for place in np.unique(self.pc[self.live & lanes]):
            one = self.group.code[int(place) - 16]
            if one.base == "BSYNC":
                self.BSYNC(one, [], one.parts, self.live & lanes & (self.pc == place))
        if (before == self.stopped).all():
            raise Fault("lanes wait for each other for ever")

    def EXIT(self, one, modifiers, x, mask):
        self.part()
        self.live = self.live & ~mask

    def BRA(self, one, modifiers, x, mask):
        if "DIV" in modifiers:  # where not all lanes of a mask are here
            ballot = (self.by_warp(mask).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1)
            if (ballot == self.by_warp(self.read(x[0].strip("~")))[:, 0])[self.now].all():
                return
            raise NotImplementedError(one)
        if len(x) > 1:  # a predicate beside the guard
            mask = mask & self.predicate(x[0])
        if mask.any():
            self.jump(self.group.labels[x[-1]], mask)

    def CALL(self, one, modifiers, x, mask):
        self.jump(self.group.labels[x[-1]], mask)

    def RET(self, one, modifiers, x, mask):
        self.jump(self.integer(x[0].split()[0]).astype(np.int64), mask)

    def BAR(self, one, modifiers, x, mask):
        """BAR.SYNC number, work-items; BAR.ARV the same; BAR.RED.OR number, work-items, predicate. Without a number of work-items
        those of the whole work-group."""
        kind, *more = modifiers
        x = list(x)
        vote = self.by_warp(self.predicate(x.pop()) & mask).any(1) if kind == "RED" else None
        if kind not in ("SYNC", "ARV", "RED") or kind == "RED" and more[0] != "OR":
            raise NotImplementedError(one)
        numbers = self.by_warp(np.broadcast_to(self.integer(x[0]), self.lanes))[:, 0]
        count = int(x[1], 0) // 32 if len(x) > 1 else None
        arrived = self.by_warp(mask).any(1).nonzero()[0]
        self.waits[arrived] = kind != "ARV"
        self.part()
        for warp in arrived:
            self.group.arrive(int(numbers[warp]), count, warp, kind, None if vote is None else bool(vote[warp]))

    def B2R(self, one, modifiers, x, mask):
        """The result of the last barrier with a vote."""
        self.write_predicate(x[1], self.spread(self.group.voted), mask)

    # integers

    def IADD3(self, one, modifiers, x, mask):
        to, written, rest = carries_of(x)
        if "64" in modifiers:
            self.write_wide(to, self.wide(rest[0]) + self.wide(rest[1]) + self.wide(rest[2]), mask)
            return
        total = np.zeros(self.lanes, np.int64)
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
        to, written, rest = carries_of(x)
        if "WIDE" in modifiers:
            left, right = self.integer(rest[0]), self.integer(rest[1])
            if "U32" not in modifiers:
                left, right = signed(left).astype(np.uint64), signed(right).astype(np.uint64)
            added = self.wide(rest[2])
            total = left * right + added
            if "X" in modifiers:
                total = total + self.predicate(rest[3]).astype(np.uint64)
            for name in written:
                self.write_predicate(name, total < added, mask)
            self.write_wide(to, total, mask)
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
        to, written, rest = carries_of(x)
        carry = 0
        if "X" in modifiers:
            carry, rest = self.predicate(rest[-1]).astype(np.uint64), rest[:-1]
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
        to, written, rest = carries_of(x)
        a, b, c = (self.integer(operand) for operand in rest[:3])
        table = int(rest[3], 0)
        if table in LOGIC:
            out = LOGIC[table](a, b, c) & FULL
        else:
            out = np.zeros(self.lanes, np.uint64)
            for i in range(8):
                if table >> i & 1:
                    out |= (a if i & 4 else ~a & FULL) & (b if i & 2 else ~b & FULL) & (c if i & 1 else ~c & FULL)
        before = self.predicate(rest[4]) if len(rest) > 4 else np.zeros(self.lanes, bool)
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
        bits, sign = int(x[2], 0), 0 if "U32" in modifiers else 1 << int(x[2], 0) - 1
        kept = self.integer(x[1]).astype(np.uint64) & np.uint64((1 << bits) - 1)
        extended = (kept ^ np.uint64(sign)) + np.uint64(2 ** 32 - sign)
        self.write(x[0], (extended & np.uint64(2 ** 32 - 1)).astype(np.uint32), mask)

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
        pair = (a | b << np.uint64(32)).view(np.uint8).reshape(-1, 8)
        nibble = (choice[:, None] >> np.arange(0, 16, 4, dtype=np.uint64)).astype(np.int64) & 15
        byte = np.take_along_axis(pair, nibble & 7, 1)
        if (nibble & 8).any():
            byte = np.where(nibble & 8, (byte >> 7) * np.uint8(255), byte)
        self.write(x[0], np.ascontiguousarray(byte).view(np.uint32)[:, 0], mask)

    def MOV(self, one, modifiers, x, mask):
        self.write(x[0], self.integer(x[1]), mask)

    def R2UR(self, one, modifiers, x, mask):
        """Of the first lane that is here."""
        first = self.by_warp(mask).argmax(1)
        self.write(x[0], self.spread(self.by_warp(self.integer(x[1]))[np.arange(self.count), first]), mask)

    def CS2R(self, one, modifiers, x, mask):
        self.write(x[0], np.zeros(self.lanes), mask)
        if "32" not in modifiers:
            self.write(f"R{int(x[0][1:]) + 1}", np.zeros(self.lanes), mask)

    def S2R(self, one, modifiers, x, mask):
        value = {"SR_CTAID.X": self.group.index, "SR_CTAID.Y": 0, "SR_CgaCtaId": 0, "SR_SWINHI": WINDOW}
        self.write(x[0], self.thread if x[1] == "SR_TID.X" else np.full(self.lanes, value[x[1]]), mask)

    S2UR = S2R

    def LDC(self, one, modifiers, x, mask):
        bank, place = re.search(r"c\[(0x[03])\](\[.*\])", x[1]).groups()
        bank = np.frombuffer(self.group.tables if bank == "0x3" else self.group.bank, np.uint8)
        at, size = self.address(place), {"64": 8, "U8": 1, "U16": 2}.get(modifiers[0] if modifiers else "", 4)
        at = np.where(mask, at, at[mask][0])
        value = np.zeros(self.lanes, np.uint64)
        for byte in range(size):
            value |= bank[at + byte].astype(np.uint64) << np.uint64(8 * byte)
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
        held, asked = self.by_warp(self.predicate(x[-1]) & mask), self.by_warp(mask)
        vote = self.spread(held.any(1) if "ANY" in modifiers else (held == asked).all(1))
        ballot = self.spread((held.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1))
        for to in x[:-1]:
            if re.fullmatch(r"U?P[\dT]", to):
                self.write_predicate(to, vote, mask)
            else:
                self.write(to, ballot, mask)

    VOTEU = VOTE

    def PLOP3(self, one, modifiers, x, mask):
        a, b, c = (self.predicate(operand) for operand in x[2:5])
        for to, table in zip(x[:2], (int(x[5], 0), int(x[6], 0))):
            out = np.zeros(self.lanes, bool)
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
        if one.plain is not None and mask is self.everyone:
            to, rows, signs = one.plain
            if self.products:
                for row in rows:
                    self.check_read(row)
                self.check_write(to)
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
        self.write(x[0], np.full(self.lanes, halves[0] | halves[1] << np.uint64(16)), mask)

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
        self.write_predicate(x[0], np.zeros(self.lanes, bool), mask)

    def I2F(self, one, modifiers, x, mask):
        wide, byte = "U64" in modifiers, re.fullmatch(r"(\w+)\.B(\d)", x[1])
        a = self.wide(x[1]) if wide else self.integer(byte[1] if byte else x[1])
        narrow = next((int(name[1:]) for name in modifiers if name in ("S8", "U8", "S16", "U16")), 0)
        if narrow:
            a = a >> np.uint64(8 * int(byte[2] if byte else 0)) & np.uint64((1 << narrow) - 1)
            least = np.uint64(1 << narrow - 1 if modifiers[0].startswith("S") else 0)
            a = (a ^ least) - least & FULL
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
        """Of all lanes; a butterfly within the warp, or a number in each segment of it."""
        to, step, clamp = x[1], self.integer(x[3]).astype(np.int64), self.integer(x[4]).astype(np.int64)
        segment = clamp >> 8 & 0x1f  # bits of a lane's number
        if x[0] != "PT" or (clamp & ~0x1f00 != 0x1f).any() or not self.is_whole(mask):
            raise NotImplementedError(one)
        if modifiers == ["BFLY"] and not segment.any():
            lanes = self.thread ^ step
        elif modifiers == ["IDX"]:
            lanes = self.thread & ~0x1f | self.thread & segment | step & 0x1f & ~segment
        else:
            raise NotImplementedError(one)
        self.write(to, self.read(x[2])[lanes], mask)

    def is_whole(self, mask):
        """Whether all lanes of the warps execute the instruction."""
        return mask is self.everyone or (mask == self.here).all()

    # memory

    def width(self, modifiers):
        sizes = {"64": 8, "128": 16, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
        return next((sizes[m] for m in modifiers if m in sizes), 4)

    def load(self, memory, at, modifiers, x, mask):
        size = self.width(modifiers)
        chosen = at[mask]
        self.group.check_read(self.warp[mask], memory, chosen, size)
        to = int(x[0][1:])
        for i in range(0, max(size, 4), 4):
            value = np.zeros(self.lanes, np.uint64)
            if size >= 4:
                value[mask] = memory.view(np.uint32)[chosen + i >> 2]
            else:
                for byte in range(size):
                    value[mask] |= memory[chosen + byte].astype(np.uint64) << np.uint64(8 * byte)
                if modifiers[-1].startswith("S"):
                    least = np.uint64(1 << 8 * size - 1)
                    value = (value ^ least) - least & FULL
            self.write(f"R{to + i // 4}", value, mask)

    def store(self, memory, at, modifiers, source, mask):
        size = self.width(modifiers)
        for lanes in self.turns(memory, at, size, mask):
            with self.group.checked_write(self.warp[lanes], memory, at[lanes], size):
                self.put(memory, at, size, source, lanes)

    def turns(self, memory, at, size, mask):
        """The lanes, warp after warp where warps write the same words of local memory."""
        if memory is self.group.local and self.group.collide(self.warp[mask], at[mask], size):
            return [mask & (self.warp == number) for number in self.now if (mask & (self.warp == number)).any()]
        return [mask]

    def put(self, memory, at, size, source, mask):
        for i in range(0, max(size, 4), 4):
            array, row = self.source(source, max(size // 4, 1))
            value = np.zeros(self.lanes, np.uint64) if row == len(array) - 1 else array[row + i // 4]
            if size >= 4:
                memory.view(np.uint32)[at[mask] + i >> 2] = value[mask]
                continue
            for byte in range(size):
                memory[at[mask] + byte] = value[mask] >> np.uint64(8 * byte) & np.uint64(255)

    # matrix units

    def matrix(self, text, count):
        """32-bit words [count][warp][8][4] of successive registers; zeros of RZ."""
        array, row = self.source(text, count)
        words = np.zeros((count, self.lanes)) if row == len(array) - 1 else array[row:row + count]
        return words.astype(np.uint32).reshape(count, self.count, 8, 4)

    def numbers(self, words, modifiers):
        """Those of each word, [1 or 2][...]."""
        if "TF32" in modifiers:
            return (words & np.uint32(0xffffe000)).view(np.float32)[None]
        if "BF16" in modifiers:
            return np.stack([words << np.uint32(16), words & np.uint32(0xffff0000)]).view(np.float32)
        return np.moveaxis(words.view(np.float16).reshape(*words.shape, 2), -1, 0)

    def HMMA(self, one, modifiers, x, mask):
        """C += A B of a warp, 16 x 8 x 16, or of tf32 16 x 8 x 8; work-items hold rows lane / 4 (+ 8) and pairs of columns
        2 (lane % 4), or single columns lane % 4 (+ 4)."""
        singles = modifiers == ["1688", "F32", "TF32"]
        if not (singles or modifiers[:2] == ["16816", "F32"]) or not self.is_whole(mask):
            raise NotImplementedError(one)
        depth = 8 if singles else 16
        a, b = (self.numbers(self.matrix(text.replace(".reuse", ""), count), modifiers).astype(np.float64)
                for text, count in ((x[1], 4), (x[2], 2)))
        c = self.matrix(x[3], 4).view(np.float32).astype(np.float64)
        # [half][word / 2, word % 2][warp][lane / 4][lane % 4]
        left = a.reshape(-1, 2, 2, self.count, 8, 4).transpose(3, 2, 4, 1, 5, 0).reshape(self.count, 16, depth)
        right = b.transpose(2, 1, 4, 0, 3).reshape(self.count, depth, 8)
        sums = c.reshape(2, 2, self.count, 8, 4).transpose(2, 0, 3, 4, 1).reshape(self.count, 16, 8)
        sums = (sums + left @ right).astype(np.float32)
        words = sums.view(np.uint32).reshape(self.count, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3).reshape(4, self.lanes)
        to = register_of(x[0])[1]
        for number in range(4):
            self.write(f"R{to + number}", words[number], mask)

    def HGMMA(self, one, modifiers, x, mask):
        """D = A B + C of four warps, each of which has 16 of the 64 rows."""
        if not self.is_whole(mask):
            raise Fault("not all lanes of a warp execute a product")
        form, local, size = one.form, self.group.local, warpgroup.BYTES[one.form.kind]
        for number in self.now:
            lanes = slice(32 * number, 32 * number + 32)
            left, right = (int(self.ur[form.descriptors + i][lanes.start]) |
                           int(self.ur[form.descriptors + i + 1][lanes.start]) << 32 for i in (0, 2))
            add = form.use is None or bool(self.predicate(form.use)[lanes.start])
            self.group.agreement.check(number, self.products[number],
                                       (one.address, right, left if form.left is None else 0, add))
            at, words = warpgroup.places(right, form.transposed_right, form.columns, form.depth, size)
            if form.left is None:
                rows, more = warpgroup.places(left, form.transposed_left, 64, form.depth, size)
                words = np.union1d(words, more)
                a = warpgroup.from_local(local, rows.reshape(4, 16, -1)[number % 4], form.kind)
            else:
                a = warpgroup.from_registers(self.r[list(form.operands), lanes], form.kind)
            self.group.product_begins(number, words)
            self.products[number].begin(form, words)
            sums = (-a if form.negated else a) @ warpgroup.from_local(local, at, form.kind).T
            if add and form.sums != "RZ":
                first = int(form.sums[1:])
                sums += warpgroup.from_accumulators(floats(self.r[first:first + form.columns // 2, lanes])).astype(np.float64)
            self.r[list(form.accumulators), lanes] = bits(warpgroup.to_registers(sums))
        self.note_products()

    def note_products(self):
        self.summed = set().union(*(products.results for products in self.products))
        self.used = self.summed.union(*(products.operands for products in self.products))

    def WARPGROUP(self, one, modifiers, x, mask):
        if modifiers == ["ARRIVE"]:
            for number in self.now:
                self.products[number].arrive()
        elif modifiers == ["DEPBAR", "LE"] and x[0] == "gsb0":
            for number in self.now:
                for _, words in self.products[number].wait(int(x[1], 0)):
                    self.group.product_ends(number, words)
            self.note_products()
        else:
            raise NotImplementedError(one)

    def FENCE(self, one, modifiers, x, mask):
        if modifiers[:2] != ["VIEW", "ASYNC"]:
            raise NotImplementedError(one)
        self.group.fence(self.now)

    def LDSM(self, one, modifiers, x, mask):
        """Matrices of 8 rows of 16 bytes: lanes 8 i .. 8 i + 7 have the addresses of matrix i; MT88 transposes them."""
        count = int(modifiers[2])
        at, to, local = self.address(x[1]), register_of(x[0])[1], self.group.local.view(np.uint16)
        asked = self.here & (self.lane < 8 * count)
        self.group.check_read(self.warp[asked], self.group.local, at[asked], 16)
        starts = self.by_warp(np.where(asked, at, 0)) >> 1
        for i in range(count):
            rows = local[starts[:, 8 * i:8 * i + 8, None] + np.arange(8)]
            rows = np.ascontiguousarray(rows.transpose(0, 2, 1) if modifiers[1] == "MT88" else rows)
            self.write(f"R{to + i}", rows.view(np.uint32).reshape(self.lanes), mask)

    def LDGSTS(self, one, modifiers, x, mask):
        """Copies 16 or 4 bytes, or zeros where the predicate is false."""
        size = self.width(modifiers)
        if size not in (4, PIECE):
            raise NotImplementedError(one)
        to, source = self.address(x[0]), self.global_place(x[1])
        full = self.predicate(x[2]) if len(x) > 2 else self.everyone
        read = mask & full
        self.group.check_read(self.warp[read], self.group.memory, source[read], size)
        for lanes in self.turns(self.group.local, to, size, mask):
            self.group.copy_begins(self.warp[lanes], to[lanes], size)
        data = np.zeros((self.lanes, size), np.uint8)
        data[read] = self.group.memory[source[read][:, None] + np.arange(size)]
        for number in self.now:
            lanes = slice(32 * number, 32 * number + 32)
            own = mask[lanes]
            if own.any():
                self.copies[number][-1].append((to[lanes][own], data[lanes][own]))

    def LDGDEPBAR(self, one, modifiers, x, mask):
        for number in self.now:
            self.copies[number].append([])

    def DEPBAR(self, one, modifiers, x, mask):
        """Waits until no more than so many closed groups are left."""
        if x[0] != "SB0":
            raise NotImplementedError(one)
        for number in self.now:
            while len(self.copies[number]) - 1 > int(x[1], 0):
                for to, data in self.copies[number].pop(0):
                    self.group.local[to[:, None] + np.arange(data.shape[1])] = data
                    self.group.copy_ends(number, to, data.shape[1])

    def F2FP(self, one, modifiers, x, mask):
        """Two floats as 16-bit numbers, rounded to nearest even; the second is the lower half. Or two e4m3 of a word."""
        if modifiers == ["F16", "E4M3", "UNPACK_B"]:
            word = self.read(x[1].replace(".H1", "")) >> np.uint64(16 if x[1].endswith(".H1") else 0)
            low, high = (E4M3[(word >> np.uint64(8 * n) & np.uint64(0xff)).astype(np.int64)] for n in (0, 1))
            self.write(x[0], low | high << np.uint64(16), mask)
            return
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

    def halves(self, one, x, mask, apply):
        """Both halves of a word, with two constants: the upper one's first."""
        if len(x) != 4 or "H" in "".join(x[1:]):
            raise NotImplementedError(one)
        words = np.ascontiguousarray(self.read(x[1]).astype(np.uint32)).view(np.float16).reshape(-1, 2)
        with np.errstate(invalid="ignore", over="ignore"):
            out = apply(words, np.array([float(x[3]), float(x[2])], np.float16))
        self.write(x[0], np.ascontiguousarray(out).view(np.uint32)[:, 0], mask)

    def HMUL2(self, one, modifiers, x, mask):
        self.halves(one, x, mask, np.multiply)

    def HADD2(self, one, modifiers, x, mask):
        """HADD2.F32 R, -RZ, R.H0_H0: a half of a word as a float."""
        if not modifiers:
            self.halves(one, x, mask, np.add)
            return
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
        self.load(self.group.private, self.address(x[1]) + self.thread * STACK, modifiers, x, mask)

    def STL(self, one, modifiers, x, mask):
        self.store(self.group.private, self.address(x[0]) + self.thread * STACK, modifiers, x[1], mask)


def plain_product(one):
    """(result's register, operands' registers, their signs) where all are vectors' registers, else None; for speed."""
    operands = [re.fullmatch(r"(-?)R(\d+)(\.reuse)?", part) for part in one.parts]
    if len(operands) != 4 or None in operands:
        return None
    return int(operands[0][2]), [int(x[2]) for x in operands[1:]], [bool(x[1]) for x in operands[1:]]


def tally_of(one):
    """What each execution by a warp adds to the counts."""
    tally = {"slots": 1, one.base: 1}
    if one.base == "HMMA":
        tally["products"] = 1
    elif one.base == "HGMMA":
        tally["products"] = one.form.columns // 8  # as many as HMMA would take
        tally["passes"] = one.form.local_bytes / warpgroup.WARPS / BANK_BYTES
    elif one.base in ("LDL", "STL"):
        tally["stack"] = 1
    return tally


def action_of(one):
    """The method that executes it; uniform instructions have an own one, or that of all lanes."""
    base = "P2R" if one.base == "UP2UR" else one.base
    action = getattr(Warps, base, None) or getattr(Warps, base[1:], None)
    if action is None:
        def action(*_):
            raise NotImplementedError(one)
    return action


def parsed(kernel):
    """Its instructions by their addresses, with their operands taken apart, and its labels."""
    if not hasattr(kernel, "code"):
        kernel.code = {one.address: one for one in kernel.instructions}
        for one in kernel.instructions:
            one.base, *modifiers = one.name.split(".")
            one.modifiers = modifiers
            text = re.sub(r"\(\*.*?\*\)", "", one.operands)
            target = re.search(r"`\(([^)]*)\)", text)
            one.parts = tuple(part.strip() for part in re.sub(r"`\([^)]*\)", target[1] if target else "", text).split(","))
            one.form = warpgroup.form_of(one) if one.base == "HGMMA" else None
            one.plain = plain_product(one) if one.name == "FFMA" else None
            one.tally, one.action = tally_of(one), action_of(one)
            one.cost = next((cost for names, cost in COSTS if one.name.startswith(names)), None)
    return kernel.code, kernel.labels


class Group:
    """A work-group: `bank` is the constant bank of arguments, `tables` that of the program's constants, `memory` global
    memory as bytes, `index` the group's number, `access` the READ and WRITE of each byte of global memory, `local_bytes` the
    size of local memory."""

    def __init__(self, kernel, threads, bank, memory, index=0, tables=b"", access=None, local_bytes=None):
        self.index, self.tables = index, tables
        self.code, self.labels = parsed(kernel)
        self.bank, self.memory, self.local = bank, memory, np.full(1 << 18, 0xff, np.uint8)
        self.private = np.full(threads * STACK, 0xff, np.uint8)
        self.access = access  # None: everything is allowed
        self.end = len(self.local) if local_bytes is None else LOCAL + local_bytes
        # Each warp counts the barriers at which it has arrived: its time. Of the words of local memory: copies under way; the last
        # writer, and when by its time; when each warp has read. known[x, y]: the time of y of which x knows, by barriers. What
        # y did until then was before all that x does.
        count = threads // 32
        self.pending = np.zeros(len(self.local) // 4, bool)
        self.writer, self.written = np.full((2, len(self.pending)), -1, np.int32)
        self.read = np.full((count, len(self.pending)), -1, np.int32)
        self.known = np.eye(count, dtype=np.int32) - 1
        # of barriers that have begun, by number: [(warp, kind, vote, what it knew)], and how many warps; the last votes
        self.barriers, self.voted = {}, np.zeros(count, bool)
        self.writing = np.zeros(len(self.pending), np.int32)  # warps whose writes are compared
        # of the words of local memory: products that read them, and those written since a fence before products
        self.reading, self.unfenced = np.zeros(len(self.pending), np.int32), np.zeros(len(self.pending), bool)
        self.agreement = warpgroup.Agreement() if any(one.base == "HGMMA" for one in self.code.values()) else None
        if self.agreement and threads % (32 * warpgroup.WARPS):
            raise Fault(f"products of four warps in a work-group of {threads // 32}")
        self.constants = {}
        self.warps = Warps(self, threads // 32)
        self.counts = collections.Counter()
        self.times = collections.Counter()  # executions by warps of instructions, by their addresses

    def constant(self, at):
        if at not in self.constants:
            self.constants[at] = np.full(self.warps.lanes, int.from_bytes(self.bank[at:at + 4], "little"), np.uint64)
        return self.constants[at]

    # ---- what a program must not do ----

    def words(self, warp, at, size):
        """Words of local memory of accesses by warps, and their warps; some may be there several times."""
        count = max(size // 4, 1)
        if len(at) and (at.min() < LOCAL or at.max() + size > self.end):
            raise Fault(f"accesses local memory at {at.min() - LOCAL:#x} .. {at.max() + size - LOCAL:#x}, of "
                        f"{self.end - LOCAL:#x} bytes")
        return np.repeat(warp, count), ((at >> 2)[:, None] + np.arange(count)).reshape(-1)

    def check_allowed(self, at, size, kind):
        if self.access is None or not len(at):
            return
        if (at % size).any():
            raise Fault(f"accesses {size} bytes of global memory at {at[at % size != 0][0]:#x}, which they are not aligned to")
        if at.min() < 0 or at.max() + size > len(self.access):
            raise Fault(f"accesses global memory at {at.min():#x} .. {at.max():#x}, where nothing is")
        wrong = self.access[at[:, None] + np.arange(size)] & kind == 0
        if wrong.any():
            lane, byte = np.argwhere(wrong)[0]
            raise Fault(f"{'reads' if kind == READ else 'writes'} global memory at {at[lane] + byte:#x}")

    def check_shared(self, warp, words, changed, what):
        """Of words of local memory that warps access: other warps have not written, nor read those that changed."""
        if self.pending[words].any():
            raise Fault(f"{what} a word of local memory whose copy is under way")
        wrong = changed & (self.written[words] > self.known[warp, self.writer[words]])
        if wrong.any():
            raise Fault(f"{what} local memory at {4 * words[wrong][0]:#x}, which another warp wrote since the barrier")

    def check_read(self, warp, memory, at, size):
        if memory is self.memory:
            self.check_allowed(at, size, READ)
        elif memory is self.local and len(at):
            self.local_read(*self.words(warp, at, size), "reads")

    def local_read(self, warp, words, what):
        self.check_shared(warp, words, True, what)
        self.read[warp, words] = self.known[warp, warp]

    def collide(self, warp, at, size):
        """Whether several warps write a word of local memory at once."""
        warp, words = self.words(warp, at, size)
        self.writing[words] = warp
        return (self.writing[words] != warp).any()

    @contextlib.contextmanager
    def checked_write(self, warp, memory, at, size):
        if memory is self.memory:
            self.check_allowed(at, size, WRITE)
        if memory is not self.local or not len(at):
            yield
            return
        warp, words = self.words(warp, at, size)
        before = self.local.view(np.uint32)[words]
        yield
        self.local_written(warp, words, before != self.local.view(np.uint32)[words], "writes")

    def local_written(self, warp, words, changed, what):
        self.check_shared(warp, words, changed, what)
        wrong = changed & (self.read[:, words].T > self.known[warp]).any(1)
        if wrong.any():
            raise Fault(f"{what} local memory at {4 * words[wrong][0]:#x}, which another warp read since the barrier")
        wrong = changed & (self.reading[words] > 0)
        if wrong.any():
            raise Fault(f"{what} local memory at {4 * words[wrong][0]:#x}, which a product that has not ended reads")
        self.writer[words], self.written[words] = warp, self.known[warp, warp]
        self.unfenced[words[changed]] = True

    def copy_begins(self, warp, at, size):
        warp, words = self.words(warp, at, size)
        self.local_written(warp, words, np.ones(len(words), bool), "begins to copy to")
        self.pending[words] = True

    def copy_ends(self, number, at, size):
        _, words = self.words(at, at, size)
        self.pending[words] = False
        self.writer[words], self.written[words] = number, self.known[number, number]

    def fence(self, numbers):
        """What the warps wrote, and copied where the copies have arrived, is there for products."""
        self.unfenced &= ~np.isin(self.writer, numbers) | self.pending

    def product_begins(self, number, words):
        self.local_read(number, words, "multiplies")
        if self.unfenced[words].any():
            raise Fault(f"multiplies local memory at {4 * words[self.unfenced[words]][0]:#x}, written without a fence "
                        "(fence.proxy.async)")
        self.reading[words] += 1

    def product_ends(self, number, words):
        self.reading[words] -= 1
        self.read[number, words] = self.known[number, number]  # until now

    # ---- barriers ----

    def arrive(self, number, count, warp, kind, vote):
        """A warp at barrier `number`, of `count` warps (None: of all that have not left)."""
        arrived, known_count = self.barriers.setdefault(number, ([], count))
        if known_count != count or any(other == warp for other, *_ in arrived):
            raise Fault(f"barrier {number} has another number of work-items, or a warp twice")
        arrived.append((warp, kind, vote, self.known[warp].copy()))
        self.known[warp, warp] += 1
        if len(arrived) == count:
            self.complete(number)

    def complete(self, number):
        """All warps of a barrier are there: those that wait go on, and know what all knew."""
        arrived, _ = self.barriers.pop(number)
        kinds, votes = {kind for _, kind, _, _ in arrived}, [vote for _, _, vote, _ in arrived]
        if "RED" in kinds and len(kinds) > 1:
            raise Fault("warps meet at a barrier with a vote and at one without")
        known = np.max([known for *_, known in arrived], 0)
        for warp, kind, vote, _ in arrived:
            if kind != "ARV":
                self.known[warp] = np.maximum(self.known[warp], known)
                self.warps.waits[warp] = False
            if kind == "RED":
                self.voted[warp] = any(votes)
        if len(arrived) == self.warps.count:
            self.warps.issued[:] = 0

    def meet(self):
        """No warp goes on: a barrier of all, or the end."""
        for number, (arrived, count) in list(self.barriers.items()):
            if count is None and all(one in [warp for warp, *_ in arrived] for one in self.warps.by_warp(self.warps.live).any(1).nonzero()[0]):
                self.complete(number)
                return
        if self.barriers:
            raise Fault(f"warps wait for ever, or are left at barriers {sorted(self.barriers)}")

    # ---- costs ----

    def count(self, one, warps, mask):
        """Adds the cost of an instruction of the warps; its mnemonic is counted, too."""
        self.times[one.address] += len(warps.now)
        if one.cost:
            one.cost(self, one, warps, mask)

    def count_passes(self, warps, at, lanes, size):
        """Through the banks of local memory."""
        at = warps.by_warp(np.where(lanes, at, FAR))
        base = at.min(1, keepdims=True) & ~(BANK_BYTES - 1)
        relative = np.where(at == FAR, -1, at - base)
        count = sum(passes(relative[number].tobytes(), size) for number in warps.now)
        self.counts["passes"] += count

    def count_matrices(self, one, warps, mask):
        at = warps.address(one.parts[1])
        for i in range(int(one.modifiers[-1])):
            self.count_passes(warps, at, warps.here & (warps.lane // 8 == i), 16)

    def count_copy(self, one, warps, mask):
        if mask.any():
            size = warps.width(one.modifiers)
            self.count_passes(warps, warps.address(one.parts[0]), mask, size)
            self.counts["copied bytes"] += size * int(mask.sum())

    def count_local(self, one, warps, mask):
        if mask.any():
            place = one.parts[1 if one.name.startswith("LDS") else 0]
            self.count_passes(warps, warps.address(place), mask, warps.width(one.modifiers))

    def count_load(self, one, warps, mask):
        self.counts["load bytes"] += warps.width(one.modifiers) * int(mask.sum())

    def run(self):
        """Counts; the warp that has executed least since the last barrier is next."""
        while self.warps.live.any():
            self.warps.step()
        self.meet()
        if self.agreement:
            self.agreement.finish(self.warps.products)
        for address, times in self.times.items():
            for name, amount in self.code[address].tally.items():
                self.counts[name] += amount * times
        return self.counts


# Of instructions, by how their names begin, what counts their cost.
COSTS = [("LDSM", Group.count_matrices), ("LDGSTS", Group.count_copy), (("LDS", "STS"), Group.count_local),
         ("LDG.", Group.count_load)]
