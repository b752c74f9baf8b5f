#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads NVIDIA's machine code of the SIMT engine's kernels, without a card: what the loops of their products execute.

    sass.py --configurations softmax-64,backward-softmax-64 [--architectures sm_80,sm_90] [--kernels FOLDER]

Compiles configurations of offline_plans by nvcc (compile.py's target cuda_*) and prints, for each kernel, registers,
stack, local memory and the work-items that fit a multiprocessor, the instructions that spill registers or load them again
inside loops with products (FFMA) and outside, and for each such loop the instructions of one iteration, without those of
loops inside it. An instruction of a warp takes one issue slot.
Fails on spills inside a loop with products. Needs a CUDA toolkit (PATH or CUDA_HOME); nvdisasm is taken from there, or from
PyPI into a cache. Without them it says so and ends with status 77.
"""
import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import compile as offline

PRODUCTS = 8  # FFMA of an iteration, from which on a loop is listed
CLASSES = {
    "FFMA": r"FFMA\b", "HMMA": r"HMMA", "MUFU": r"MUFU", "FADD/FMUL": r"FADD|FMUL|FMNMX|FSETP|FSEL|FSET",
    "LDS.128": r"LDS\.128", "LDS.64": r"LDS\.64", "LDS.32": r"LDS", "STS.128": r"STS\.128", "STS.64": r"STS\.64",
    "STS.32": r"STS", "LDG.128": r"LDG?\.E\.128", "LDG.64": r"LDG?\.E\.64", "LDG.32": r"LDG?\.E(?!\.[US]\d)",
    "LDG.16": r"LDG?\.E", "STG": r"STG?\.E", "stack": r"LDL|STL", "SHFL": r"SHFL", "BAR": r"BAR",
}


def find_tools():
    """nvdisasm, where nvcc is there too; else says what is missing."""
    missing = offline.Cuda("sm_90").missing()
    nvdisasm = None if missing else offline.fetch_cuda("nvdisasm")
    if nvdisasm is None:
        print(f"skipped: {missing or 'nvdisasm (of a CUDA toolkit, or nvidia-cuda-nvdisasm from PyPI)'} is not there")
    return nvdisasm


@dataclasses.dataclass
class Instruction:
    address: int
    guard: str  # @P0, @!UP1 or nothing
    name: str
    operands: str

    @property
    def kind(self):
        return next((kind for kind, pattern in CLASSES.items() if re.match(pattern, self.name)), "other")


@dataclasses.dataclass
class Kernel:
    name: str
    instructions: list
    labels: dict

    def loops(self):
        """(first, last) addresses of loops, by branches back; those with the same first instruction are one."""
        last = {}
        for one in self.instructions:
            target = re.search(r"`\((\.L\w+)\)", one.operands)
            if one.name.startswith("BRA") and target and self.labels.get(target[1], one.address + 1) <= one.address:
                first = self.labels[target[1]]
                last[first] = max(last.get(first, 0), one.address)
        return sorted((first, end) for first, end in last.items() if first != end)  # the padding branches to itself

    def own(self, loop):
        """Its instructions, without those of loops inside it."""
        inner = [x for x in self.loops() if loop[0] <= x[0] and x[1] <= loop[1] and x != loop]
        return [one for one in self.instructions
                if loop[0] <= one.address <= loop[1] and not any(a <= one.address <= b for a, b in inner)]


def read_kernels(listing):
    """The kernels in nvdisasm's text."""
    kernels = []
    for line in listing.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        label = re.match(r"(\.L\w+|\$[\w$]+):", line)
        code = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;", line)
        if section:
            kernels.append(Kernel(section[1], [], {}))
        elif kernels and label:
            kernels[-1].labels[label[1]] = kernels[-1].instructions[-1].address + 16 if kernels[-1].instructions else 0
        elif kernels and code:
            kernels[-1].instructions.append(Instruction(int(code[1], 16), code[2] or "", code[3], code[4]))
    return kernels


def section_of(cubin, name):
    """The bytes of an ELF file's section; none if it is not there."""
    data = pathlib.Path(cubin).read_bytes()
    table, size, count, names = *struct.unpack_from("<Q", data, 0x28), *struct.unpack_from("<HHH", data, 0x3a)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        if data[start:data.index(b"\0", start)].decode() == name:
            return data[header[4]:header[4] + header[5]]
    return b""


def describe(job):
    """The lines of a configuration's table, and whether it keeps the rules."""
    architecture, name, source, options, nvdisasm, work = job
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    title = f"{architecture} {name} {source}"
    try:
        report = offline.Cuda(architecture).build(offline.KERNELS / source, options, folder)
        listing = offline.run([nvdisasm, "-c", folder / "k.cubin"], folder)
    except (offline.Failure, subprocess.TimeoutExpired) as failure:
        return [f"{title} FAILED", str(failure)], False
    threads = offline.tunable(options, "THREADS_ROW", 8) * offline.tunable(options, "THREADS_KEY", 16)
    lines, good = [], True
    for kernel in read_kernels(listing):
        products = [loop for loop in kernel.loops()
                    if sum(one.kind == "FFMA" for one in kernel.own(loop)) >= PRODUCTS]
        figures = offline.ptxas_figures(report, kernel.name)
        stack = [one.address for one in kernel.instructions if one.kind == "stack"]
        inside = sum(any(first <= address <= last for first, last in products) for address in stack)
        good &= inside == 0
        if not stack and not products:
            continue
        lines.append(f"{title} {kernel.name}: " + ", ".join(f"{value} {label}" for label, value in figures.items()) +
                     f", {offline.residents(architecture, figures['registers'], figures['B local'], threads)} work-items of "
                     f"{threads} a multiprocessor, {inside} spills inside loops with products, "
                     f"{len(stack) - inside} outside" +
                     ("  FAILED" if inside else ""))
        for loop in products:
            own = kernel.own(loop)
            counts = {kind: sum(one.kind == kind for one in own) for kind in [*CLASSES, "other"]}
            part = counts["FFMA"] / len(own)
            lines.append(f"    {loop[0]:04x}-{loop[1]:04x} {len(own):5d} slots, {part:4.0%} FFMA: " +
                         ", ".join(f"{count} {kind}" for kind, count in counts.items() if count))
    return lines, good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--configurations", default="softmax-64,softmax-128,mgk2-64,smgk2-64,hard-fish2-64",
                        help="names separated by commas, `all`, or a regular expression of a whole name")
    parser.add_argument("--architectures", default="sm_80,sm_90")
    parser.add_argument("--kernels", type=pathlib.Path, default=offline.KERNELS, help="another folder of kernels")
    parser.add_argument("--plans", type=pathlib.Path, default=offline.PLANS, help="the program offline_plans")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    offline.KERNELS = arguments.kernels.resolve()
    nvdisasm = find_tools()
    if nvdisasm is None:
        return 77

    names = [re.compile(".*" if name == "all" else name) for name in arguments.configurations.split(",")]
    chosen = [one[1:] for one in offline.read_configurations(arguments.plans)
              if one[0] == "simt-nvidia" and any(name.fullmatch(one[1]) for name in names)]
    failed = 0
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [(architecture, *one, nvdisasm, work)
                for one in chosen for architecture in arguments.architectures.split(",")]
        for lines, good in pool.map(describe, jobs):
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
            failed += not good
    print(f"{len(jobs)} compiled, {failed} failed")
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
