#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times of the SIMT engine's kernels on an NVIDIA H200, predicted without a card.

    bounds.py [--markdown]                                          what the plans launch: launches.txt
    bounds.py --linear [--markdown]                                 of these, calls of the linear family
    bounds.py --measured [--markdown]                               what was measured: measured.txt
    bounds.py --configurations softmax-64,linear-64 [--markdown]    what a tile takes: configurations.txt

Compiles as sass.py does, executes a work-group of each kernel with products by its machine code (warps.py; N = S, or
few queries; no masks but causality), for two lengths, and counts what a further tile takes. Outputs and gradients are
compared with numpy's, where calls.py has them. model.py makes milliseconds of the counts, beside the measured ones.
Fails on wrong results, on registers that spill in the loop over tiles, where softmax loads rows by less than 16 bytes,
and where a configuration's kernel keeps the banks of local memory busier, or has fewer multiply-adds for its busiest
unit, than stated below. Needs what sass.py needs, and numpy.
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
import model
import predictions
import sass

ARCHITECTURE = "sm_90"
WITH_TILES = r"/(forward|backward(_queries|_rows|_keys)?)\.cl"
# What a multiprocessor does in a cycle, in instructions of a warp (passes: of the banks of local memory).
RATES = {"slots": 4, "fma": 4, "passes": 1, "load passes": 1, "mufu": 0.5}
# Cycles of the banks, to those of the multiply-adds. A few rows' kernel reads its keys once and has few products.
MOST_PASSES = {"forward": 1.25, "backward": 3.5, "linear": 2.0}
# Kernels that spill so many bytes and use them in the loop over tiles, to keep one more work-group on a multiprocessor.
SPILLS = {"backward-softmax-64, mixture_backward": 24, "backward-smgk2-64, mixture_backward": 32,
          "linear-causal-64, linear_apply": 28, "backward-linear-causal-64, linear_apply": 24,
          "linear-16k-causal, linear_apply": 28, "backward-linear-16k-causal, linear_apply": 24,
          "backward-linear-16k, linear_backward_rows": 8, "backward-linear-16k, linear_backward_keys": 16}
# Least share of multiply-adds in the cycles of the busiest unit, and the banks' most cycles for loads to those of the
# multiply-adds, by a kernel's title. The products of the backward pass have 1; the terms of keys come on top.
LIMITS = {r"(softmax|mgk2)-\d+, mixture_forward": (0.80, 0.80), r"smgk2-\d+, mixture_forward": (0.67, 1.10),
          r"backward-[\w-]+-\d+, (ad)?mixture_backward(_queries)?": (0.65, 1.10),
          r".*, linear_\w+": (0.50, 1.00)}


def measure(job):
    """A program's kernels: (figures or None, faults); `held`: to the limits above."""
    name, source, options, nvdisasm, work, held = job
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    report = offline.Cuda(ARCHITECTURE).build(offline.KERNELS / source, options, folder)
    text = (folder / "k.cu").read_text()
    problem = calls.Problem(source, options)
    kernels = [kernel for kernel in sass.read_kernels(offline.run([nvdisasm, "-c", folder / "k.cubin"], folder))
               if any(one.kind in ("FFMA", "HMMA") for one in kernel.instructions)]
    # in the order of the text, in which they are run
    places = {kernel.name: re.search(rf"__global__[^;{{]*void {kernel.name}\((.*?)\)", text, re.DOTALL)
              for kernel in kernels}
    kernels.sort(key=lambda kernel: places[kernel.name].start())
    if not kernels:
        return []
    names = re.findall(r"(\w+)\s*(?:,|$)", places[kernels[0].name][1])[2:]
    runs = [calls.Call(problem, names, tiles, folder) for tiles in (2, 3)]
    lines = []
    for kernel in kernels:
        title = f"{name}, {kernel.name}"
        figures = offline.ptxas_figures(report, kernel.name)
        figures["resident"] = offline.residents(ARCHITECTURE, figures["registers"], figures["B local"],
                                             problem.threads) // problem.threads
        try:
            counts = [warps.Group(kernel, problem.threads, call.bank(), call.memory).run() for call in runs]
        except (NotImplementedError, AttributeError, IndexError) as error:  # generic addresses of a stack, for one
            lines.append((None, [f"{title} was not executed: {error}"]))
            continue
        faults = [fault for call in runs for fault in call.wrong()] if kernel is kernels[-1] else []
        lines.append(judge(title, kernel, problem, counts, figures, held, faults))
    return [line for line in lines if line is not None]


def judge(title, kernel, problem, counts, figures, held, faults):
    """A kernel's (figures, faults); None where a further tile has no products."""
    steps = problem.lengths(3)[1] - problem.lengths(2)[1]
    further = {key: (counts[1][key] - counts[0][key]) * problem.keys / steps for key in counts[1]}
    cycles = {part: further.get(part, 0) / rate for part, rate in RATES.items()}
    if cycles["fma"] + further.get("hmma", 0) == 0:
        return None
    if further.get("stack", 0) > 0 and figures["B spilled"] > SPILLS.get(title, 0):
        faults.append("registers spill in the loop over tiles")
    if "softmax" in title and further.get("narrow loads", 0) > 0 and "forward" in kernel.name:
        faults.append("loads of less than 16 bytes")
    if held:
        faults += over_limits(title, problem, cycles)
    tile = model.Tile(cycles["slots"], cycles["fma"], cycles["passes"], further["load bytes"],
                      further["barriers"] * 32 / problem.threads, further["waits"], hmma=further.get("hmma", 0),
                      ends=model.LINEAR_GROUP if problem.linear else model.GROUP)
    figures |= {"name": title, "kernel": kernel.name, "tile": tile, "rows": problem.rows, "keys": problem.keys,
                **cycles}
    return figures, [f"{title}: {fault}" for fault in faults]


def over_limits(title, problem, cycles):
    faults = []
    most = MOST_PASSES["backward" if problem.backward else problem.kind]
    if not problem.few and cycles["passes"] > most * cycles["fma"]:
        faults.append("banks of local memory")
    share = cycles["fma"] / max(cycles.values())
    least, most_loads = next((limit for pattern, limit in LIMITS.items() if re.fullmatch(pattern, title)), (0, None))
    if share < least:
        faults.append(f"a share of multiply-adds below {least:.2f}")
    if most_loads is not None and cycles["load passes"] > most_loads * cycles["fma"]:
        faults.append("loads of local memory")
    return faults


def counts_of(x):
    """A table's cells, under predictions.COUNTS."""
    tile = x["tile"]
    return [f"{x['rows']} x {x['keys']}", x["resident"], x["registers"], x["B spilled"],
            *(f"{number:.0f}" for number in (tile.slots, tile.fma, tile.banks, x["load passes"], tile.load_bytes,
                                             tile.barriers, tile.waits))]


def rows_of_launches(launches, times, found):
    """The table's rows, of the figures of programs."""
    for launch in launches:
        for figures in found.get(launch.program, []):
            if figures["kernel"] == launch.kernel:
                ms, real = predictions.predict(launch, figures), times.get((launch.shape, launch.kernel))
                yield [f"{launch.shape}, {launch.kernel}", launch.groups, *counts_of(figures), f"{ms:.3f}",
                       *((f"{real:.3f}", f"{100 * (ms / real - 1):+.0f} %") if real else ("", ""))]


def print_row(cells, markdown):
    cells = [str(cell) for cell in cells]
    print("| " + " | ".join(cells) + " |" if markdown else "  ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--configurations", help="names separated by commas, in place of the launches")
    parser.add_argument("--measured", action="store_true", help="the launches that were measured")
    parser.add_argument("--linear", action="store_true", help="calls of the linear family, beside their bound")
    parser.add_argument("--kernels", type=pathlib.Path, default=offline.KERNELS, help="another folder of kernels")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/gpu-bounds.md")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    offline.KERNELS = arguments.kernels.resolve()
    nvdisasm = sass.find_tools()
    if nvdisasm is None:
        return 77
    if arguments.configurations:
        names = arguments.configurations.split(",")
        chosen = [one[1:] for one in offline.read_configurations()
                  if one[0] == "simt-nvidia" and one[1] in names and re.search(WITH_TILES, one[2])]
    else:
        launches = list(predictions.read_launches(predictions.MEASURED_LAUNCHES if arguments.measured
                                                  else predictions.LAUNCHES))
        launches = [launch for launch in launches if launch.linear == arguments.linear]
        programs = {launch.program: launch.shape for launch in reversed(launches)
                    if re.search(WITH_TILES, launch.source)}
        chosen = [(name, source, list(options)) for (source, options), name in programs.items()]
    columns = predictions.LAUNCH_COLUMNS if arguments.measured else predictions.LAUNCH_COLUMNS[:-2]
    if arguments.linear:
        columns = predictions.LINEAR_COLUMNS
    if arguments.configurations:
        columns = ["configuration, kernel", *predictions.COUNTS]
    print_row(columns, arguments.markdown)
    if arguments.markdown:
        print("|" + "---|" * len(columns))
    failed, found, held = 0, {}, bool(arguments.configurations)
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ProcessPoolExecutor(arguments.jobs) as pool:
        for one, lines in zip(chosen, pool.map(measure, [(*one, nvdisasm, work, held) for one in chosen])):
            found[predictions.program_of(one[1], one[2])] = [figures for figures, _ in lines if figures is not None]
            for figures, faults in lines:
                if arguments.configurations and figures is not None:
                    print_row([figures["name"], *counts_of(figures)], arguments.markdown)
                failed += bool(faults)
                if faults:
                    print(f"FAILED: {', '.join(faults)}", file=sys.stderr, flush=True)
    if arguments.linear:
        for shape in dict.fromkeys(launch.shape for launch in launches):
            own = [launch for launch in launches if launch.shape == shape]
            print_row(predictions.linear_row(shape, own, found), arguments.markdown)
    elif not arguments.configurations:
        times = predictions.measured() if arguments.measured else {}
        for row in rows_of_launches(launches, times, found):
            print_row(row[:len(columns)], arguments.markdown)
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
