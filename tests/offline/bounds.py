#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bounds of the SIMT engine's rates on NVIDIA's sm_90, without a card.

    bounds.py [--configurations softmax-64,backward-softmax-64] [--markdown]

Compiles configurations of configurations.txt as sass.py does, executes a work-group of each kernel with products by its
machine code (warps.py; N = S, or few queries; no masks but causality), for two lengths, and counts what a further tile
takes. Its time is that of the busiest part of a multiprocessor, were the others never waited for; the bound is the
multiply-adds' share of it. Outputs and gradients are compared with numpy's, where calls.py has them. Fails on wrong
results, on spills, on a stack beyond compile.py's limit, where softmax loads rows by less than 16 bytes, and where a
kernel keeps the banks of local memory busier, or has a lower bound, than stated below. Needs what sass.py needs, and
numpy.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import sys
import tempfile

try:
    import calls
    import warps
except ModuleNotFoundError as missing:
    print(f"skipped: {missing.name} is not there")
    sys.exit(77)
import compile as offline
import sass

ARCHITECTURE = "sm_90"
NAMES = ["softmax-64", "softmax-128", "mgk2-64", "mgk2-128", "mgk4-64", "smgk2-64", "smgk2-128", "hard-fish2-64",
         "hard-fish2-128", "fish2-64", "talking-heads8-64", "backward-softmax-64", "backward-mgk2-64",
         "backward-smgk2-64", "backward-hard-fish2-64", "backward-hard-fish2-128", "softmax-few-64",
         "gaussian-few-192-128", "hard-fish2-few-64", "linear-64", "linear-causal-64", "mlk2-64", "lfish2-exp-64",
         "backward-linear-causal-64"]
# What a multiprocessor does in a cycle, in instructions of a warp (passes: of the banks of local memory).
RATES = {"slots": 4, "fma": 4, "passes": 1, "load passes": 1, "mufu": 0.5}
# Cycles of the banks, to those of the multiply-adds. A few rows' kernel reads its keys once and has few products.
MOST_PASSES = {"forward": 1.25, "backward": 3.5, "linear": 2.0}
# Least bounds, and the banks' most cycles for loads to those of the multiply-adds, by a kernel's title. The products
# of the backward pass have 1; the terms of keys come on top.
LIMITS = {r"(softmax|mgk2)-\d+, mixture_forward": (0.80, 0.80), r"smgk2-\d+, mixture_forward": (0.70, 1.10),
          r"backward-[\w-]+-\d+, (ad)?mixture_backward(_queries)?": (0.65, 1.10),
          r".*, linear_\w+": (0.50, 1.00)}


def measure(job):
    """A configuration's kernels: (figures or None, faults)."""
    name, source, options, nvdisasm, work = job
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    report = offline.Cuda(ARCHITECTURE).build(offline.KERNELS / source, options, folder)
    text = (folder / "k.cu").read_text()
    problem = calls.Problem(source, options)
    kernels = [kernel for kernel in sass.read_kernels(offline.run([nvdisasm, "-c", folder / "k.cubin"], folder))
               if any(one.kind == "FFMA" for one in kernel.instructions)]
    # in the order of the text, in which they are run
    places = {kernel.name: re.search(rf"__global__\s+void {kernel.name}\((.*?)\)", text, re.DOTALL)
              for kernel in kernels}
    kernels.sort(key=lambda kernel: places[kernel.name].start())
    if not kernels:
        return []
    names = re.findall(r"(\w+)\s*(?:,|$)", places[kernels[0].name][1])[2:]
    runs = [calls.Call(problem, names, tiles, folder) for tiles in (2, 3)]
    lines = []
    for kernel in kernels:
        title = f"{name}, {kernel.name}"
        try:
            counts = [warps.Group(kernel, problem.threads, call.bank(), call.memory).run() for call in runs]
        except (NotImplementedError, AttributeError, IndexError) as error:  # generic addresses of a stack, for one
            lines.append((None, [f"{title} was not executed: {error}"]))
            continue
        faults = [fault for call in runs for fault in call.wrong()] if kernel is kernels[-1] else []
        lines.append(judge(title, kernel, problem, counts, offline.ptxas_figures(report, kernel.name), faults))
    return [line for line in lines if line is not None]


def judge(title, kernel, problem, counts, figures, faults):
    """A kernel's (figures, faults); None where a further tile has no products."""
    steps = problem.lengths(3)[1] - problem.lengths(2)[1]
    further = {key: (counts[1][key] - counts[0][key]) * problem.keys / steps for key in counts[1]}
    cycles = {part: further.get(part, 0) / rate for part, rate in RATES.items()}
    if cycles["fma"] == 0:
        return None
    if figures["B spilled"] or figures["B stack"]:
        faults.append("spills or stack")
    if "softmax" in title and further.get("narrow loads", 0) > 0 and "forward" in kernel.name:
        faults.append("loads of less than 16 bytes")
    most = MOST_PASSES["backward" if problem.backward else problem.kind]
    if not problem.few and cycles["passes"] > most * cycles["fma"]:
        faults.append("banks of local memory")
    bound = cycles["fma"] / max(cycles.values())
    least, most_loads = next((limit for pattern, limit in LIMITS.items() if re.fullmatch(pattern, title)), (0, None))
    if bound < least:
        faults.append(f"a bound below {least:.2f}")
    if most_loads is not None and cycles["load passes"] > most_loads * cycles["fma"]:
        faults.append("loads of local memory")
    resident = sass.residents(ARCHITECTURE, figures["registers"], figures["B local"], problem.threads)
    figures |= {"name": title, "tile": f"{problem.rows} x {problem.keys}", "threads": problem.threads,
                "resident": resident, "barriers": further["barriers"] * 32 / problem.threads,
                "sectors": further["sectors"], "bound": bound, **cycles}
    return figures, [f"{title}: {fault}" for fault in faults]


COLUMNS = ["configuration, kernel", "tile", "work-items", "resident", "registers", "slots", "FMA", "banks", "of loads",
           "MUFU", "barriers", "32-byte sectors", "bound"]


def row_of(x):
    return [x["name"], x["tile"], x["threads"], x["resident"], x["registers"],
            *(f"{x[part]:.0f}" for part in ("slots", "fma", "passes", "load passes", "mufu", "barriers", "sectors")),
            f"{x['bound']:.2f}"]


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
              re.search(r"/(forward|backward(_queries|_rows|_keys)?)\.cl", one[2])]
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
