#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executes the matrix engine's machine code for NVIDIA's sm_90, without a card, and compares results with numpy's.

    matrix.py [--plans PROGRAM] [--only WORDS] [--full] [--ptxas PROGRAM]

Each case is a pass of a problem, which the library plans (offline_plans steps); clang makes PTX of its kernels
(compile.py), ptxas makes machine code, and warps.py executes all of their work-groups: fragments, their loads from local
memory, asynchronous copies, exchanges. Fails on wrong numbers, accesses outside the arrays, copies that are read before
they have arrived, unordered accesses to local memory, spills and a stack. --full: also all matrix configurations of
configurations.txt, with their own blocks. Needs clang, libclc and numpy, ptxas and nvdisasm (of a CUDA toolkit, or from
PyPI into a cache); without them it says so and ends with status 77.
"""
import argparse
import concurrent.futures
import os
import pathlib
import sys
import tempfile
import traceback

try:
    import numpy  # noqa: F401
    import passes
    import warps
except ModuleNotFoundError as missing:
    print(f"skipped: {missing.name} is not there")
    sys.exit(77)
import compile as offline

ARCHITECTURE = "sm_90"
PLANS = offline.HERE.parent.parent / "build/bin/offline_plans"
ONE = {"batch": 1, "heads": 1}
SMALL = "splits=1,warps=2,key-tiles=4"  # smaller blocks, so that short problems have several


def case(name, configuration, options=None, parameters=SMALL, **fields):
    return name, configuration, {**ONE, **fields, "parameters": parameters}, options or {}


# Name, configuration, the problem's fields, and options of passes.Pass.
CASES = [
    case("softmax-64", "softmax-bf16-64", length=70, length_k=100),
    case("softmax-128-as-planned", "softmax-bf16-128", parameters="splits=1", length=64, length_k=150),
    case("softmax-causal-128", "softmax-f16-128", length=64, length_k=64, causal=1),
    case("softmax-unaligned-20-33", "softmax-f16-64", length=40, length_k=37, head_size=20, value_size=33),
    case("softmax-narrow-5", "softmax-bf16-64", length=33, length_k=50, head_size=5, value_size=7, causal=1),
    case("mgk3-64", "mgk4-bf16-64", length=40, length_k=70, value_size=32, components=3),
    case("backward-64-causal", "backward-softmax-f16-64", length=40, length_k=70, causal=1),
    case("backward-unaligned-20-33", "backward-softmax-f16-64", length=40, length_k=37, head_size=20, value_size=33),
    case("backward-narrow-5", "backward-softmax-bf16-64", length=33, length_k=50, head_size=5, value_size=7, causal=1),
    case("backward-mgk2-32", "backward-mgk4-bf16-64", length=40, length_k=70, head_size=32, value_size=16, components=2),
    case("backward-smgk3-32", "backward-smgk4-bf16-64", length=40, length_k=70, head_size=32, value_size=16,
         components=3),
]


def run_case(one, programs, plans):
    name, configuration, fields, options = one
    plan = passes.Plan(plans, configuration, fields)
    run = passes.Pass(plan, **options)
    faults = []
    try:
        counts = run.run(programs)
        faults += run.faults()
    except warps.Fault as fault:
        return f"{name:28s} FAILED: {fault}", False
    lines = []
    for step, program, count in counts:
        if program.figures["B spilled"] or program.figures["B stack"]:
            faults.append(f"{step.source}: spills or a stack")
        if count["hmma"]:
            lines.append(f"{step.kernel.removeprefix('mixture_')}: {program.figures['registers']} registers, "
                         f"{count['hmma']} products, {count['slots']} slots, {count['barriers']} barriers")
    text = f"{name:28s} {'; '.join(lines)} in the last group"
    return f"{text}  {'FAILED: ' + '; '.join(faults) if faults else 'right'}", not faults


def share(job):
    """Lines of a share of the cases, and whether they are right."""
    cases, tools, plans = job
    results = []
    with tempfile.TemporaryDirectory() as work:
        programs = passes.Programs(ARCHITECTURE, *tools, work)
        for one in cases:
            try:
                results.append(run_case(one, programs, plans))
            except (NotImplementedError, offline.Failure, KeyError, AttributeError, IndexError):
                results.append((f"{one[0]} FAILED\n{traceback.format_exc()}", False))
    return results


def find_tools(ptxas):
    """What is missing, and ptxas and nvdisasm."""
    missing = offline.Nvidia(ARCHITECTURE).missing()
    tools = [None, None] if missing else [ptxas or offline.fetch_cuda("ptxas"), offline.fetch_cuda("nvdisasm")]
    names = [name for name, tool in zip(("ptxas", "nvdisasm"), tools) if tool is None]
    return missing or (names[0] if names else None), tools


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--plans", type=pathlib.Path, default=PLANS)
    parser.add_argument("--only", default="")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--ptxas", help="in place of the toolkit's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    missing, tools = find_tools(arguments.ptxas)
    if missing:
        print(f"skipped: {missing} is not there")
        return 77
    chosen = [one for one in CASES if arguments.only in one[0]]
    jobs = [(chosen[i::arguments.jobs], tools, arguments.plans) for i in range(arguments.jobs)]
    failed = 0
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs) as pool:
        for results in pool.map(share, jobs):
            for line, good in results:
                print(line, flush=True)
                failed += not good
    print(f"{len(chosen)} executed, {failed} failed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
