#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where warps of the matrix engine's kernels wait on an NVIDIA GPU, without a card.

    clocks.py --configurations softmax-bf16-64-wgmma,mgk2-bf16-128-wgmma,product-bf16-nn-wgmma [--hot 20]

warps.py executes a work-group of each kernel, compiled by nvcc for sm_90. Its warps' instructions are then replayed on a model
of one multiprocessor, by the schedule that the assembler writes into each instruction: how long the warp stalls behind it, and
which counters of results and of read operands it sets and waits for. Loops over tiles are lengthened before. Prints, for each kernel:

    groups        work-groups that fit the multiprocessor
    instructions  of a warp and tile; stalls: the sum of their stall counts, the least cycles that a warp takes alone
    tile          cycles from tile to tile of the multiprocessor, with all groups; alone: with one. Of a product: a step along K
    begin, end    cycles before a group's first tile, and behind its last one

--hot N: also the N instructions at which the first warp of a lone group waits longest, with cycles for each tile.

Latencies and rates below are published or usual numbers of the hardware, not fitted. The replay has no instruction cache and
no conflicts of register banks, so times are too short, those of short loops least; it is for comparing forms of a kernel.
Needs nvcc, nvdisasm and numpy; without them it says so and ends with status 77.
"""
import argparse
import collections
import heapq
import pathlib
import random
import re
import sys
import tempfile

import compile as offline
try:
    import matrix
    import passes
    import products
    import rates
    import warps
except ModuleNotFoundError as missing_module:
    print(f"skipped: {missing_module.name} is not there")
    sys.exit(77)

SCHEDULERS, GROUP_WARPS = 4, 4  # of a multiprocessor; of a product of several warps
TILES, REPEATED = 16, 4         # that are executed; how often those in the middle are replayed
SEEDS = (1, 2, 3)               # of when work-groups begin, within so many cycles:
SPREAD = 2000
FOREVER = 1 << 60
# Cycles for which an instruction keeps a scheduler's unit, and until its result is there, by kinds of instructions.
RATES = {"multiply": 1, "other": 2, "exponential": 8, "memory": 2, "copy": 4, "uniform": 2, "product": 6.6}
LATENCIES = {"other": 12, "exponential": 20, "exchange": 24, "special": 28, "constant": 40, "local": 28, "fence": 24, "product": 33}
GLOBAL, GLOBAL_AGAIN = 600, 40  # loads of lines of 128 bytes, and of those that were loaded before
COPY, COPY_BYTES = 600, 48      # an asynchronous copy's latency, and bytes a cycle that the second-level cache delivers
BARRIER, ARRIVE, JUMP = 22, 6, 8
UNIT_LATENCY, UNIT_LEAST = 34, 16  # of a product of four warps, beside half a cycle for each column
OPERANDS_READ = 6                  # until registers may be written again; of stores and copies more
KINDS = {"multiply": ("FFMA", "FADD", "FMUL", "HFMA2", "IMAD"), "exponential": ("MUFU", "I2F", "F2I", "F2F"),
         "local": ("LDS", "STS", "LDSM", "LDL", "STL"), "global": ("LDG", "STG", "LD", "ST"), "copy": ("LDGSTS",),
         "copies end": ("LDGDEPBAR",), "copies wait": ("DEPBAR",), "exchange": ("SHFL",), "constant": ("LDC",),
         "special": ("S2R", "S2UR", "B2R", "R2UR", "VOTEU"), "fence": ("MEMBAR", "FENCE"), "barrier": ("BAR",),
         "product": ("HMMA",), "unit": ("HGMMA",),
         "branch": ("BRA", "EXIT", "CALL", "RET", "BSYNC", "BSSY", "WARPSYNC", "NOP", "YIELD", "BREAK")}
KIND_OF = {base: kind for kind, bases in KINDS.items() for base in bases}
PORTS = {"local": "memory", "global": "memory", "copy": "memory", "exchange": "memory", "special": "memory", "constant": "memory",
         "multiply": "multiply", "other": "other", "exponential": "exponential", "uniform": "uniform", "product": "product"}


class Scheduled:
    """An instruction with its schedule: cycles to stall, the counters (7: none) of its result and of its operands, and those
    that it waits for, as bits."""

    def __init__(self, one, control):
        self.one, self.address = one, one.address
        self.stall, self.result, self.operands, self.waits = control & 15, control >> 5 & 7, control >> 8 & 7, control >> 11 & 63
        if one.base == "WARPGROUP":
            self.kind = "arrive" if "ARRIVE" in one.name else "unit wait"
        else:
            self.kind = KIND_OF.get(one.base, "uniform" if one.base[0] == "U" else "other")
        self.port = PORTS.get(self.kind)


def controls_of(nvdisasm, cubin):
    """{kernel: {address: bits of the schedule}}."""
    found, own, address = {}, None, None
    for line in offline.run([nvdisasm, "-c", "-hex", cubin], cubin.parent).splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        first = re.match(r"\s*/\*([0-9a-f]{4,})\*/.*;\s*/\* 0x[0-9a-f]{16} \*/", line)
        second = re.match(r"\s*/\* 0x([0-9a-f]{16}) \*/", line)
        if section:
            own, address = found.setdefault(section[1], {}), None
        elif first:
            address = int(first[1], 16)
        elif second and address is not None and own is not None:
            own[address], address = int(second[1], 16) >> 41, None
    return found


class Traced(warps.Group):
    """A work-group that notes what each warp executes: (instruction, passes through the banks, copied bytes, or whether its
    lines were loaded before)."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.trace, self.lines = [[] for _ in range(self.warps.count)], set()

    def count(self, one, own, mask):
        passed, copied = self.counts["passes"], self.counts["copied bytes"]
        super().count(one, own, mask)
        cost = 0
        if one.base in ("LDS", "LDSM", "STS"):
            cost = (self.counts["passes"] - passed) / len(own.now)
        elif one.base == "LDGSTS":
            cost = (self.counts["copied bytes"] - copied) / len(own.now)
        elif one.base in ("LDG", "LD") and mask.any():
            lines = set((own.global_place(one.parts[1])[mask] // warps.LINE).tolist())
            cost = int(lines <= self.lines)
            self.lines |= lines
        for number in own.now:
            self.trace[number].append((one, cost))


class Warp:
    def __init__(self, group, number, trace, begin):
        self.group, self.number, self.trace, self.next = group, number, trace, begin
        self.scheduler = number % SCHEDULERS
        self.place = self.issued = 0
        self.counters, self.copies, self.arrival = [0] * 8, [], 0
        self.blocked = False
        self.unit_free = self.unit_done = 0  # when its next product may begin, and the last one ends
        self.marks, self.waited = [], collections.Counter()

    @property
    def done(self):
        return self.place == len(self.trace)


class Resident:
    """A work-group on the multiprocessor."""

    def __init__(self, traces, begin):
        self.warps = [Warp(self, number, trace, begin) for number, trace in enumerate(traces)]
        self.waiting = collections.Counter()  # warps at a barrier, and four warps' at their products

    def meet(self, what, own, count):
        """Whether the warp is the last of `count`."""
        self.waiting[what, own] += 1
        if self.waiting[what, own] < count:
            return False
        self.waiting[what, own] = 0
        return True


class Multiprocessor:
    def __init__(self, groups, mark):
        self.mark = mark
        self.own = [[warp for group in groups for warp in group.warps if warp.scheduler == i] for i in range(SCHEDULERS)]
        self.ports = [dict.fromkeys(set(PORTS.values()), 0) for _ in range(SCHEDULERS)]
        self.unit = self.banks = self.cache = 0
        self.events, self.seen, self.latest = [(0, i) for i in range(SCHEDULERS)], [-1] * SCHEDULERS, [None] * SCHEDULERS

    def run(self):
        while self.events:
            now, i = heapq.heappop(self.events)
            if now <= self.seen[i]:
                continue
            self.seen[i] = now
            times = [(self.earliest(warp), warp) for warp in self.own[i] if not warp.done and not warp.blocked]
            ready = [warp for time, warp in times if time <= now]
            if ready:  # the one that issued last goes on, else the one that waits longest
                chosen = self.latest[i] if self.latest[i] in ready else min(ready, key=lambda warp: warp.issued)
                self.latest[i] = chosen
                self.issue(chosen, now)
                heapq.heappush(self.events, (now + 1, i))
            elif times and min(times, key=lambda x: x[0])[0] < FOREVER:
                heapq.heappush(self.events, (min(time for time, _ in times), i))

    def wake(self, warp, time):
        heapq.heappush(self.events, (max(time, self.seen[warp.scheduler] + 1), warp.scheduler))

    def earliest(self, warp):
        one = warp.trace[warp.place][0]
        time = max([warp.next] + [warp.counters[i] for i in range(6) if one.waits >> i & 1])
        if one.port:
            time = max(time, self.ports[warp.scheduler][one.port])
        elif one.kind == "unit":
            time = max(time, warp.unit_free)
        elif one.kind == "unit wait":
            time = max(time, warp.unit_done)
        elif one.kind == "copies wait":
            ended = len(warp.copies) - int(one.one.parts[1], 0)
            time = max([time] + warp.copies[:max(ended, 0)])
        return time

    def issue(self, warp, now):
        one, cost = warp.trace[warp.place]
        warp.place += 1
        warp.waited[one.address] += now - warp.issued
        warp.issued = now
        if one.address == self.mark:
            warp.marks.append(now)
        stall, latency, read = max(one.stall, 1), LATENCIES.get(one.kind, 0), OPERANDS_READ
        if one.port:
            rate = RATES["copy"] if one.kind == "copy" else 2 if one.one.base == "IMAD" else RATES[one.port]
            self.ports[warp.scheduler][one.port] = now + rate
        if one.kind == "local":
            self.banks = max(self.banks, now) + max(cost, 1)
            latency, read = latency + self.banks - now, self.banks - now + 8
        elif one.kind == "global":
            latency, read = GLOBAL_AGAIN if cost else GLOBAL, 20
        elif one.kind == "copy":
            self.banks = max(self.banks, now) + 4
            self.cache = max(self.cache, now) + cost / COPY_BYTES
            warp.arrival, read = max(warp.arrival, int(self.cache) + COPY), self.banks - now + 12
        elif one.kind == "copies end":
            warp.copies.append(max(warp.arrival, now))
            warp.arrival = 0
        elif one.kind == "branch" and not warp.done and warp.trace[warp.place][0].address != one.address + 16:
            stall += JUMP
        warp.next = now + stall
        if one.kind == "barrier":
            self.together(warp, now, "barrier", 0, warp.group.warps, BARRIER)
        elif one.kind == "arrive":
            self.together(warp, now, "arrive", warp.number // GROUP_WARPS, self.four(warp), ARRIVE)
        elif one.kind == "unit":
            self.multiply(warp, now, one.one.form)
        if one.result != 7:
            warp.counters[one.result] = max(warp.counters[one.result], now + max(latency, 4) + 1)
        if one.operands != 7:
            warp.counters[one.operands] = max(warp.counters[one.operands], now + read)

    @staticmethod
    def four(warp):
        first = warp.number // GROUP_WARPS * GROUP_WARPS
        return warp.group.warps[first:first + GROUP_WARPS]

    def together(self, warp, now, what, own, others, cycles):
        """Warps go on when all are there."""
        warp.blocked = True
        if warp.group.meet(what, own, len(others)):
            for other in others:
                other.blocked, other.next = False, now + cycles
                self.wake(other, other.next)

    def multiply(self, warp, now, form):
        """A product begins when all four warps have issued it and the unit is free; then they may issue the next one."""
        warp.unit_free = FOREVER
        if not warp.group.meet("unit", warp.number // GROUP_WARPS, GROUP_WARPS):
            return
        begin = max(now, self.unit)
        self.unit = begin + max(form.columns / 2, UNIT_LEAST, form.local_bytes / warps.BANK_BYTES)
        for other in self.four(warp):
            other.unit_free, other.unit_done = int(begin), int(self.unit) + UNIT_LATENCY
            self.wake(other, max(now + 1, other.unit_free))
            self.wake(other, other.unit_done)


def lengthened(trace, mark):
    """With the tiles in the middle several times. `mark`: the address that begins a tile."""
    at = [i for i, (one, _) in enumerate(trace) if one.address == mark]
    return trace[:at[4]] + trace[at[4]:at[-4]] * REPEATED + trace[at[-4]:]


def replay(traces, mark, count, seed=1):
    """(Cycles from tile to tile with `count` work-groups, one of them)."""
    random.seed(seed)
    groups = [Resident(traces, int(random.random() * SPREAD) if count > 1 else 0) for _ in range(count)]
    Multiprocessor(groups, mark).run()
    marks = [group.warps[0].marks for group in groups]
    first, last = max(own[3] for own in marks), min(own[-2] for own in marks)
    return (last - first) / sum(first <= time < last for own in marks for time in own), groups[0]


def scheduled(group, program, kernel, programs):
    """The traces of a work-group's warps, with the schedule of each instruction."""
    controls = controls_of(programs.nvdisasm, program.cubin)[kernel]
    known = {one.address: Scheduled(one, controls[one.address]) for trace in group.trace for one, _ in trace}
    return [[(known[one.address], cost) for one, cost in trace] for trace in group.trace]


def product_traces(name, programs, plans):
    product = products.short_product(name, products.step_of(name, plans), TILES, plans)
    program, kernel = programs.get(product.step.source, product.step.options), product.step.kernel
    group = Traced(program.kernels[kernel], product.step.threads, product.bank(product.step), product.memory.bytes, 0,
                   program.tables, product.memory.access)
    group.run()
    yield product.step, program.figures, scheduled(group, program, kernel, programs)


def traces_of(name, programs, plans):
    """(Step, figures, traces of the first work-group's warps) of a configuration's kernels with products."""
    if name.startswith("product-"):
        yield from product_traces(name, programs, plans)
        return
    parameters, heads = rates.own_parameters(name), rates.heads_of(name)
    fields = {"batch": 1, "heads": heads, "parameters": parameters}
    main = next(step for step in passes.Plan(plans, name, fields).steps if rates.get(step, "KEY_TILES"))
    rows = rates.FRAGMENT_ROWS * rates.get(main, "WARPS") * rates.get(main, "ROW_TILES")
    keys = TILES * rates.TILE_KEYS * rates.get(main, "KEY_TILES")
    lengths = {"length": keys, "length_k": keys} if "backward" in name else {"length": 2 * rows, "length_k": keys}
    run = passes.Pass(passes.Plan(plans, name, {**fields, **lengths}))
    for step in run.plan.steps:
        program, bank = programs.get(step.source, step.options), run.bank(step)
        kind = Traced if program.has_products(step.kernel) else warps.Group
        groups = range(-(-step.items // step.threads)) if kind is warps.Group else [0]
        for number in groups:
            group = kind(program.kernels[step.kernel], step.threads, bank, run.memory.bytes, number, program.tables,
                         run.memory.access)
            group.run()
        if kind is Traced:
            yield step, program.figures, scheduled(group, program, step.kernel, programs)


def beginning(trace):
    """The address of the first product of a loop's tile."""
    counts = collections.Counter(one.address for one, _ in trace)
    return next(one.address for one, _ in trace
                if one.kind in ("unit", "product") and TILES - 2 <= counts[one.address] <= 2 * TILES + 2)


def describe(name, programs, plans, hot):
    for step, figures, traces in traces_of(name, programs, plans):
        mark = beginning(traces[0])
        long = [lengthened(trace, mark) for trace in traces]
        groups = figures["groups"]
        tile = sum(replay(long, mark, groups, seed)[0] for seed in SEEDS) / len(SEEDS)
        alone, group = replay(long, mark, 1)
        own, warp = [one for one, _ in long[0]], group.warps[0]
        at = [i for i, one in enumerate(own) if one.address == mark]
        middle, tiles = own[at[4]:at[-4]], len(at) - 8
        stalls = sum(max(one.stall, 1) for one in middle) / tiles
        behind = max(other.issued for other in group.warps) - warp.marks[-1] - alone
        print(f"{name + ', ' + step.kernel.removeprefix('mixture_'):56s} {groups} groups {len(middle) / tiles:6.0f} instructions "
              f"{stalls:6.0f} stalls {tile:6.0f} tile {alone:6.0f} alone {warp.marks[0]:6.0f} begin {behind:6.0f} end", flush=True)
        texts = {one.address: one.one for one in own}
        for address, cycles in warp.waited.most_common(hot):
            print(f"    {cycles / len(at):7.1f}  {address:05x}  {texts[address].name} {texts[address].operands}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--configurations", required=True, help="names of configurations.txt, with commas")
    parser.add_argument("--hot", type=int, default=0, metavar="N")
    parser.add_argument("--plans", type=pathlib.Path, default=matrix.PLANS)
    arguments = parser.parse_args()
    missing, tools = matrix.find_tools(None)
    missing = missing or offline.Cuda(matrix.ARCHITECTURE).missing()
    if missing:
        print(f"skipped: {missing} is not there")
        return 77
    with tempfile.TemporaryDirectory() as work:
        programs = passes.Programs(matrix.ARCHITECTURE, *tools, work, None, True)
        for name in arguments.configurations.split(","):
            describe(name, programs, arguments.plans, arguments.hot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
