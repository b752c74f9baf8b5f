#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bounds of the SIMT engine's rates on NVIDIA's sm_90, without a card.

    bounds.py [--configurations softmax-64,backward-softmax-64] [--markdown]

Compiles configurations of configurations.txt as sass.py does, executes a work-group of each kernel with products by its
machine code (warps.py; N = S, no masks), for two lengths, and counts what a further tile takes. Its time is that of the
busiest part of a multiprocessor, were the others never waited for; the bound is the multiply-adds' share of it. O of
softmax is compared with numpy's. Fails on wrong results, on spills or a stack, where softmax loads rows by less than 16
bytes, and where a kernel keeps the banks of local memory busier than stated below. Needs what sass.py needs.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

import compile as offline
import sass
import warps

ARCHITECTURE = "sm_90"
NAMES = ["softmax-64", "softmax-128", "mgk2-64", "mgk2-128", "mgk4-64", "smgk2-64", "smgk2-128", "hard-fish2-64",
         "hard-fish2-128", "backward-softmax-64", "backward-mgk2-64", "backward-smgk2-64", "backward-hard-fish2-64",
         "backward-hard-fish2-128"]
# What a multiprocessor does in a cycle, in instructions of a warp (passes: of the banks of local memory).
RATES = {"slots": 4, "fma": 4, "passes": 1, "mufu": 0.5}
MOST_PASSES = {"forward": 1.25, "backward": 3.5}  # cycles of the banks, to those of the multiply-adds
ARGUMENTS = """
#include "attention/args.clh"
#include <stdio.h>
int main(void)
{
    mgk_backward_args a = {0}; /* begins as those of the forward pass */
    const mgk_place rows = {0, N * D, D}, values = {0, N * D, D};
    const mgk_component_place keys = {0, N * D, N * D, D};
    a.q = a.o = a.grad_o = a.grad_q = rows, a.v = a.grad_v = values, a.k = a.grad_k = keys;
    a.lse.head = N, a.lse.token = 1;
    a.mix_head = M, a.batch = a.chunks = 1, a.splits = SPLITS, a.heads = a.kv_heads = H;
    a.length = a.length_k = N, a.head_size = a.value_size = D, a.left = a.right = -1;
    a.keep_scale = 1.0f, a.scale = SCALE;
    for (int i = 0; i < MGK_REGIONS; ++i)
        a.region[i] = i << 18;
    fwrite(&a, 1, sizeof(ARGS), stdout);
}
"""
LOG2_E = 1.44269504
SPACE = 1 << 20  # bytes of an array; of the workspace, which is the last, what is left
MEMORY = 1 << 25


class Call:
    """A kernel's arguments and arrays, for N queries and keys."""

    def __init__(self, kind, names, options, length, block, threads, folder):
        self.length, self.size = length, sass.tunable(options, "HEAD_SIZE", 64)
        components = sass.tunable(options, "COMPONENTS", 1)
        values = {"N": length, "D": self.size, "M": components, "H": 8 if "MIX" in "".join(options) else 1,
                  "SCALE": LOG2_E / self.size ** 0.5, "ARGS": kind,
                  "SPLITS": length // block if kind == "mgk_backward_args" else 1}  # of blocks of keys: one each
        (folder / "args.c").write_text(ARGUMENTS)
        offline.run(["cc", f"-I{offline.KERNELS}", *[f"-D{name}={value}" for name, value in values.items()], "args.c",
                     "-o", "args"], folder)
        arguments = subprocess.run([folder / "args"], check=True, stdout=subprocess.PIPE).stdout
        self.memory = np.zeros(MEMORY, np.uint8)
        random = np.random.default_rng(1)
        self.place = {name: i * SPACE for i, name in enumerate(names)}
        for name, at in self.place.items():
            if name in ("q", "k", "v", "o", "grad_o", "mix"):
                self.memory[at:at + SPACE].view(np.float32)[:] = random.standard_normal(SPACE // 4)
        bank = bytearray(1 << 12)
        bank[0x28:0x2c] = warps.STACK.to_bytes(4, "little")
        bank[0:4] = threads.to_bytes(4, "little")
        pointers = b"".join((warps.GLOBAL + at).to_bytes(8, "little") for at in self.place.values())
        bank[warps.PARAMETERS:warps.PARAMETERS + len(arguments) + len(pointers)] = arguments + pointers
        self.bank = bytes(bank)

    def array(self, name):
        at = self.place[name]
        return self.memory[at:at + 4 * self.length * self.size].view(np.float32).reshape(self.length, self.size)

    def error(self, rows):
        """Of O, softmax, in the block of rows that the work-group has."""
        score = self.array("q") @ self.array("k").T / self.size ** 0.5
        weight = np.exp(score - score.max(1, keepdims=True))
        error = abs(self.array("o") - weight @ self.array("v") / weight.sum(1, keepdims=True))
        return min(error[first:first + rows].max() for first in range(0, self.length, rows))


def measure(job):
    """A configuration's kernels: (figures or None, faults)."""
    name, source, options, nvdisasm, work = job
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    report = offline.Cuda(ARCHITECTURE).build(offline.KERNELS / source, options, folder)
    text = (folder / "k.cu").read_text()
    threads_row, threads_key = (sass.tunable(options, x, 1) for x in ("THREADS_ROW", "THREADS_KEY"))
    threads = threads_row * threads_key
    rows = threads_row * sass.tunable(options, "ROWS_PER_THREAD", 1)
    keys = threads_key * sass.tunable(options, "KEYS_PER_THREAD", 1)
    lines = []  # of figures, or None, and faults
    for kernel in sass.read_kernels(offline.run([nvdisasm, "-c", folder / "k.cubin"], folder)):
        figures = offline.ptxas_figures(report, kernel.name)
        signature = re.search(rf"__global__\s+void {kernel.name}\((.*?)\)", text, re.DOTALL)[1]
        names = re.findall(r"(\w+)\s*(?:,|$)", signature)[1:]
        kind = "mgk_backward_args" if "backward" in source else "mgk_forward_args"
        if not any(one.kind == "FFMA" for one in kernel.instructions):
            continue
        counts, faults = [], []
        try:
            for tiles in (2, 3):
                call = Call(kind, names, options, tiles * max(rows, keys), rows, threads, folder)
                counts.append(warps.Group(kernel, threads, call.bank, call.memory).run())
        except (NotImplementedError, AttributeError, IndexError) as error:  # generic addresses of a stack, for one
            lines.append((None, [f"{name}, {kernel.name} was not executed: {error}"]))
            continue
        if "softmax" in name and "forward" in kernel.name and call.error(rows) > 1e-5:
            faults.append(f"O is wrong by {call.error(rows):.1e}")
        further = {key: (counts[1][key] - counts[0][key]) / (max(rows, keys) // keys) for key in counts[1]}
        cycles = {part: further.get(part, 0) / rate for part, rate in RATES.items()}
        if cycles["fma"] == 0:
            continue
        if figures["B spilled"] or figures["B stack"]:
            faults.append("spills or stack")
        if "softmax" in name and further.get("narrow loads", 0) > 0 and "forward" in kernel.name:
            faults.append("loads of less than 16 bytes")
        if cycles["passes"] > MOST_PASSES["backward" if "backward" in name else "forward"] * cycles["fma"]:
            faults.append("banks of local memory")
        faults = [f"{name}, {kernel.name}: {fault}" for fault in faults]
        figures |= {"name": name, "kernel": kernel.name, "tile": f"{rows} x {keys}", "threads": threads,
                    "resident": sass.residents(ARCHITECTURE, figures["registers"], figures["B local"], threads),
                    "barriers": further["barriers"] * 32 / threads, "sectors": further["sectors"], **cycles}
        lines.append((figures, faults))
    return lines


COLUMNS = ["configuration, kernel", "tile", "work-items", "resident", "registers", "slots", "FMA", "banks", "MUFU",
           "barriers", "32-byte sectors", "bound"]


def row_of(x):
    return [f"{x['name']}, {x['kernel']}", x["tile"], x["threads"], x["resident"], x["registers"],
            *(f"{x[part]:.0f}" for part in ("slots", "fma", "passes", "mufu", "barriers", "sectors")),
            f"{x['fma'] / max(x[part] for part in RATES):.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--configurations", default=",".join(NAMES), help="names separated by commas")
    parser.add_argument("--kernels", type=pathlib.Path, default=offline.KERNELS, help="another folder of kernels")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/gpu-bounds.md")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    offline.KERNELS = arguments.kernels.resolve()
    nvdisasm = sass.find_tools()
    if nvdisasm is None:
        return 77
    names = arguments.configurations.split(",")
    chosen = [one[1:] for one in offline.read_configurations() if one[0] == "simt-nvidia" and one[1] in names and
              re.search(r"(mixture|admixture)/(forward|backward|backward_queries)\.cl", one[2])]
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS) if arguments.markdown else ", ".join(COLUMNS))
    failed = 0
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ProcessPoolExecutor(arguments.jobs) as pool:
        for lines in pool.map(measure, [(*one, nvdisasm, work) for one in chosen]):
            for figures, faults in lines:
                if figures is not None:
                    cells = [str(cell) for cell in row_of(figures)]
                    print("| " + " | ".join(cells) + " |" if arguments.markdown else "  ".join(cells), flush=True)
                failed += bool(faults)
                if faults:
                    print(f"FAILED: {', '.join(faults)}", file=sys.stderr, flush=True)
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
