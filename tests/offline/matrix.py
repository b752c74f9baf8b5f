#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executes the matrix engine's machine code for NVIDIA's sm_90, without a card, and compares results with numpy's.

    matrix.py [--only WORDS]

Compiles each case below to PTX by clang (compile.py), to machine code by ptxas, and executes work-groups of it (warps.py):
fragments, their loads from local memory, asynchronous copies, exchanges. Fails on wrong numbers, spills and a stack.
Needs clang, libclc, ptxas, nvdisasm (sass.py) and numpy; without them it says so and ends with status 77.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import warps
except ModuleNotFoundError as missing:
    print(f"skipped: {missing.name} is not there")
    sys.exit(77)
import compile as offline
import sass

ARCHITECTURE = "sm_90"
SPACE = 1 << 20
LOG2_E = 1.4426950408889634
TYPES = {"f16": 1, "bf16": 2}
ARGUMENTS = """
#include "mixture/buffers.clh"
#include <stdio.h>
int main(void)
{
    mgk_forward_args a = {0};
    const mgk_place q = {0, N * D, D}, o = {0, N * E, E}, v = {0, S * E, E};
    const mgk_component_place k = {0, M * S * D, S * D, D};
    a.q = q, a.o = o, a.v = v, a.k = k;
    a.lse.head = N, a.lse.token = 1;
    a.bound.given = ~0u;
    a.batch = 1, a.splits = 1, a.heads = a.kv_heads = 1;
    a.length = N, a.length_k = S, a.head_size = D, a.value_size = E, a.left = -1, a.right = CAUSAL ? 0 : -1;
    a.keep_scale = 1.0f, a.scale = SCALE;
    fwrite(&a, 1, sizeof(a), stdout);
}
"""


class Case:
    def __init__(self, name, dtype, n, s, d, e, components=1, gaussian=False, causal=False, warps_of_group=2, key_tiles=4):
        self.name, self.dtype, self.n, self.s, self.d, self.e = name, dtype, n, s, d, e
        self.components, self.gaussian, self.causal = components, gaussian, causal
        self.warps, self.key_tiles = warps_of_group, key_tiles

    def size_class(self, size):
        return 8 if size <= 8 else -(-size // 16) * 16

    def options(self):
        """As a plan's; most cases have smaller blocks, so that short problems have several."""
        flags = {f"TYPE_{array}": TYPES[self.dtype] for array in "QKVO"}
        flags |= {"HEAD_SIZE": self.size_class(self.d), "VALUE_SIZE": self.size_class(self.e),
                  "COMPONENTS": self.components, "SCORE_GAUSSIAN": int(self.gaussian), "MATRIX_UNIT": 1,
                  "EXP2_BUILTIN": 1, "EXP2_NATIVE": 1, "WARPS": self.warps, "KEY_TILES": self.key_tiles}
        return ["-cl-std=CL1.2", "-DENGINE=matrix", *[f"-D{key}={value}" for key, value in flags.items()]]


CASES = [Case("softmax-64", "bf16", 70, 100, 64, 64),
         Case("softmax-128-as-planned", "bf16", 64, 150, 128, 128, warps_of_group=4, key_tiles=8),
         Case("softmax-causal-128", "f16", 64, 64, 128, 128, causal=True),
         Case("softmax-unaligned-20-33", "f16", 40, 37, 20, 33),
         Case("softmax-narrow-5", "bf16", 33, 50, 5, 7, causal=True),
         Case("mgk3-64", "bf16", 40, 70, 64, 32, components=3, gaussian=True)]


def stored(values, dtype):
    """Values and their 16-bit patterns."""
    if dtype == "f16":
        half = values.astype(np.float16)
        return half.astype(np.float64), half.view(np.uint16)
    raw = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    pattern = ((raw + 0x7fff + (raw >> 16 & 1)) >> 16).astype(np.uint16)
    return loaded(pattern, dtype), pattern


def loaded(pattern, dtype):
    if dtype == "f16":
        return pattern.view(np.float16).astype(np.float64)
    return (pattern.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class Run:
    def __init__(self, case, kernel, names, folder):
        self.case, self.kernel, self.names = case, kernel, names
        values = {"N": case.n, "S": case.s, "D": case.d, "E": case.e, "M": case.components, "CAUSAL": int(case.causal),
                  "SCALE": LOG2_E / case.d ** 0.5}
        (folder / "args.c").write_text(ARGUMENTS)
        offline.run(["cc", f"-I{offline.KERNELS}", *[f"-D{key}={value}" for key, value in values.items()], "args.c", "-o",
                     "args"], folder)
        self.arguments = subprocess.run([folder / "args"], check=True, stdout=subprocess.PIPE).stdout
        self.memory = np.full(SPACE * (len(names) + 1), 0xff, np.uint8)  # NaN wherever nothing is
        self.place = {name: SPACE * i for i, name in enumerate(names)}
        random = np.random.default_rng(1)
        self.values = {}
        for name, shape in (("q", (case.n, case.d)), ("k", (case.components, case.s, case.d)), ("v", (case.s, case.e))):
            self.values[name], pattern = stored(random.standard_normal(shape), case.dtype)
            self.memory[self.place[name]:self.place[name] + 2 * pattern.size] = pattern.reshape(-1).view(np.uint8)

    def bank(self):
        bank = bytearray(1 << 12)
        bank[0x28:0x2c] = warps.STACK.to_bytes(4, "little")
        pointers = b"".join((warps.GLOBAL + at).to_bytes(8, "little") for at in self.place.values())
        data = self.arguments + bytes(8 * len(self.names)) + pointers
        bank[warps.PARAMETERS:warps.PARAMETERS + len(data)] = data
        return bytes(bank)

    def expected(self):
        """O and L."""
        q, k, v = (self.values[name] for name in "qkv")
        score = q @ k.transpose(0, 2, 1)
        if self.case.gaussian:
            score = score - ((k ** 2).sum(2)[:, None] + (q ** 2).sum(1)[None, :, None]) / 2
        score = score / self.case.d ** 0.5
        if self.case.causal:
            row, key = np.arange(self.case.n)[:, None], np.arange(self.case.s)[None]
            score = np.where(key <= row + self.case.s - self.case.n, score, -np.inf)
        top = score.max((0, 2), keepdims=True)
        weight = np.exp(np.where(np.isfinite(top), score - top, -np.inf)).sum(0)
        total = weight.sum(1, keepdims=True)
        o = np.divide(weight @ v, total, out=np.zeros((self.case.n, self.case.e)), where=total > 0)
        with np.errstate(divide="ignore"):
            return o, np.where(total[:, 0] > 0, top[0, :, 0] + np.log(total[:, 0]), -np.inf)

    def execute(self, groups, threads):
        counts = {}
        for number in range(groups):
            counts = warps.Group(self.kernel, threads, self.bank(), self.memory, number, self.tables).run()
        return counts

    def faults(self):
        o, log = self.expected()
        at = self.place["o"]
        given = loaded(self.memory[at:at + 2 * o.size].view(np.uint16), self.case.dtype).reshape(o.shape)
        at = self.place["lse"]
        lse = self.memory[at:at + 4 * log.size].view(np.float32)
        limit = 3 * 2.0 ** (-8 if self.case.dtype == "bf16" else -11) * abs(o).max()
        faults = []
        if not abs(given - o).max() < limit:
            faults.append(f"O is wrong by {abs(given - o).max():.2e}, at most {limit:.2e}")
        seen = np.isfinite(log)
        if not (abs(lse - log)[seen] < 1e-4 * (1 + abs(log[seen]))).all() or not (lse[~seen] == -np.inf).all():
            faults.append("L is wrong")
        return faults


def check(case, nvdisasm, work):
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    figures = offline.Nvidia(ARCHITECTURE).compile(offline.KERNELS / "mixture/forward.cl", case.options(), folder)
    if "registers" not in figures:
        return None
    kernels = sass.read_kernels(offline.run([nvdisasm, "-c", folder / "k.cubin"], folder))
    kernel = next(one for one in kernels if one.name == "mixture_forward")
    names = parameters(case, folder)
    run = Run(case, kernel, names, folder)
    run.tables = sass.section_of(folder / "k.cubin", ".nv.constant3")
    counts = run.execute(-(-case.n // (16 * case.warps)), 32 * case.warps)
    faults = run.faults()
    if figures["B spilled"] or figures["B stack"]:
        faults.append("spills or a stack")
    print(f"{case.name:26s} {case.dtype:5s} {figures['registers']:4d} registers, {counts['hmma']:5d} products of fragments, "
          f"{counts['slots']:6d} slots, {counts['barriers']:4d} barriers in the last group  {'; '.join(faults) or 'right'}",
          flush=True)
    return not faults


def parameters(case, folder):
    """The names of the kernel's arrays, in order."""
    text = offline.run(["cc", "-E", "-P", "-undef", "-x", "c", "-D__OPENCL_C_VERSION__=120", f"-I{offline.KERNELS}",
                        *[x for x in case.options() if x.startswith("-D")], "-DSHUFFLE=3", "-DSUB_GROUP_SIZE=32",
                        offline.KERNELS / "mixture/forward.cl"], folder)
    declared = text[text.index("void mixture_forward("):].split("{")[0]
    return [part.split()[-1].lstrip("*") for part in declared.split("(", 1)[1].rsplit(")", 1)[0].split(",")][2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    missing = offline.Nvidia(ARCHITECTURE).missing() or (None if offline.find_cuda("ptxas") else "ptxas")
    nvdisasm = None if missing else sass.fetch_nvdisasm()
    missing = missing or (None if nvdisasm else "nvdisasm")
    if missing:
        print(f"skipped: {missing} is not there")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as work:
        results = [check(case, nvdisasm, work) for case in CASES if only in case.name]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
