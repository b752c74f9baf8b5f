#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What compiling costs: whole processes of clmgk-run on a small problem, with empty caches, again with full ones, and
with empty caches and a folder of programs made ahead. First an empty kernel of the default platform, which shows what
no library can avoid.

    compile.py [--bin DIR] [--runs N] [--json FILE]

Processor seconds (user and system) and wall seconds, of N cold runs with a warm and a shipped one after each. --empty: only the
empty kernel, once, here. Needs NumPy.
"""
import argparse
import ctypes
import ctypes.util
import json
import os
import pathlib
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
LENGTH = 256
HEADS = 4
COMPONENTS = 2
# variant, head size
CASES = [("mgk", 64), ("softmax", 64), ("hard-fish", 64)]
PASSES = ("forward", "both")
STATES = ("cold", "warm", "shipped")
CACHES = ("CLMGK_CACHE_DIR", "POCL_CACHE_DIR", "CUDA_CACHE_PATH")


def save(folder, name, *shape):
    path = folder / f"{name}.npy"
    np.save(path, np.random.default_rng(len(name)).standard_normal(shape, dtype=np.float32))
    return path


def command_of(program, variant, size, passes, folder):
    """The command for a variant's problem, its arrays made on the way."""
    mixed = variant == "hard-fish"
    heads = COMPONENTS if mixed else HEADS
    keys = (1, heads, COMPONENTS, LENGTH, size) if variant == "mgk" else (1, heads, LENGTH, size)
    words = [program, "--variant", variant, "--q", save(folder, "q", 1, heads, LENGTH, size),
             "--k", save(folder, "k", *keys), "--v", save(folder, "v", 1, HEADS, LENGTH, size),
             "--out", folder / "o.npy", "--json"]
    if mixed:
        words += ["--mix", save(folder, "mix", HEADS, COMPONENTS)]
    if passes == "both":
        words += ["--grad-out", save(folder, "grad", 1, HEADS, LENGTH, size)]
        gradients = ("dq", "dk", "dv", "dmix") if mixed else ("dq", "dk", "dv")
        words += [word for name in gradients for word in (f"--{name}", folder / f"{name}.npy")]
    return words


def processor_seconds():
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF,
                                                                                     resource.RUSAGE_CHILDREN)))


def run_empty():
    """Compiles and runs an empty kernel on the first device of the first platform that has one. Prints the processor
    seconds of its parts."""
    cl = ctypes.CDLL(ctypes.util.find_library("OpenCL"))
    create = {name: getattr(cl, name) for name in ("clCreateContext", "clCreateCommandQueue", "clCreateKernel",
                                                   "clCreateProgramWithSource")}
    for function in create.values():
        function.restype = ctypes.c_void_p
    pointer, code, everything = ctypes.c_void_p, ctypes.c_int(), ctypes.c_uint64(0xFFFFFFFF)
    start = processor_seconds()
    count, device = ctypes.c_uint(), pointer()
    cl.clGetPlatformIDs(0, None, ctypes.byref(count))
    platforms = (pointer * count.value)()
    cl.clGetPlatformIDs(count, platforms, None)
    next(p for p in platforms if cl.clGetDeviceIDs(pointer(p), everything, 1, ctypes.byref(device), None) == 0)
    context = pointer(create["clCreateContext"](None, 1, ctypes.byref(device), None, None, ctypes.byref(code)))
    queue = pointer(create["clCreateCommandQueue"](context, device, ctypes.c_uint64(0), ctypes.byref(code)))
    opened = processor_seconds()
    text = ctypes.c_char_p(b"__kernel void empty(void) {}")
    program = pointer(create["clCreateProgramWithSource"](context, 1, ctypes.byref(text), None, ctypes.byref(code)))
    failed = cl.clBuildProgram(program, 1, ctypes.byref(device), b"-cl-std=CL1.2", None, None)
    built = processor_seconds()
    kernel = pointer(create["clCreateKernel"](program, b"empty", ctypes.byref(code)))
    one = ctypes.c_size_t(1)
    failed |= cl.clEnqueueNDRangeKernel(queue, kernel, 1, None, ctypes.byref(one), ctypes.byref(one), 0, None, None)
    failed |= cl.clFinish(queue)
    if failed:
        sys.exit("compile.py: the empty kernel failed")
    print(json.dumps({"drivers_s": opened - start, "build_s": built - opened,
                      "first_run_s": processor_seconds() - built}))


def empty_kernel(runs):
    """The parts of an empty kernel's processor seconds in processes with empty caches."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            done = subprocess.run([sys.executable, __file__, "--empty"], capture_output=True, text=True, check=True,
                                  env=with_caches(pathlib.Path(name) / "caches"))
        found.append(json.loads(done.stdout))
    parts = {part: spread([run[part] for run in found]) for part in found[0]}
    print("empty kernel" + "".join(f"   {part[:-2].replace('_', ' ')} {of['median']:.2f} s" for part, of in parts.items()),
          flush=True)
    return parts


def timed(command, environment):
    """Processor and wall seconds of a process of clmgk-run, and where its programs came from."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"{command[0]}: {errors.read().decode()}")
        wall = time.monotonic() - start
        output.seek(0)
        return usage.ru_utime + usage.ru_stime, wall, json.load(output)["program"]


def with_caches(folder):
    """An environment with empty caches."""
    folder.mkdir()
    return {**os.environ, **{variable: str(folder) for variable in CACHES}}


def ship(command, folder):
    """A folder with the programs of a command: what the library keeps where the driver keeps nothing."""
    timed(command, {**with_caches(folder), "POCL_KERNEL_CACHE": "0"})
    return str(folder / "programs")


def in_all_states(build, variant, size, passes):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = command_of(build / "clmgk-run", variant, size, passes, folder)
        environment = with_caches(folder / "caches")
        cold, warm = timed(command, environment), timed(command, environment)
        programs = {"CLMGK_PROGRAM_DIR": ship(command, folder / "shipping")}
        shipped = timed(command, {**with_caches(folder / "empty"), **programs})
        if shipped[2] != "shipped":
            sys.exit(f"compile.py: {variant}, {passes}: the programs made ahead were not used, but {shipped[2]}")
        return dict(zip(STATES, (cold, warm, shipped)))


def spread(values):
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def figures(runs):
    return {state: {unit: spread([run[state][i] for run in runs]) for i, unit in enumerate(("processor_s", "wall_s"))}
            for state in STATES}


def measure(build, count):
    for variant, size in CASES:
        for passes in PASSES:
            found = figures([in_all_states(build, variant, size, passes) for _ in range(count)])
            line = "".join(f" {state} {found[state]['processor_s']['median']:6.2f} s" for state in STATES)
            print(f"{variant:10} D {size:3} {passes:8}{line}", flush=True)
            yield {"variant": variant, "head_size": size, "passes": passes, **found}


def cpu_name():
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return found.group(1) if found else platform.processor()


def device_of(folder):
    """The device that programs take by themselves."""
    done = subprocess.run([folder / "clmgk-info", "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    chosen = next(device for device in found["devices"] if device["default"])
    keys = ("name", "platform", "driver", "compute_units", "programs_kept_by")
    return found["clmgk"], {key: chosen[key] for key in keys}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent / "build/bin")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--empty", action="store_true")
    options = parser.parse_args()
    if options.empty:
        return run_empty()
    version, device = device_of(options.bin)
    found = {"clmgk": version, "cpu": cpu_name(), "device": device, "runs": options.runs,
             "problem": {"batch": 1, "heads": HEADS, "components": COMPONENTS, "length": LENGTH},
             "empty_kernel": empty_kernel(options.runs), "cases": list(measure(options.bin, options.runs))}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
