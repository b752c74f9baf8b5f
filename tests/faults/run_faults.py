#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clmgk-run with every OpenCL call, allocation and file operation made to fail, one after another.

    run_faults.py PROGRAM FAULT_LAYER

PROGRAM is clmgk-run linked with host_faults.c. Each time: it ends by itself, either with the right outputs or with
exit status 2, 3 or 4, one line that says why, outputs as they were, no other file left or open, every OpenCL object
released.
A run without a fault counts the points, so their number is known. CLMGK_TEST_FULL=1: also with all later points failing.
CLMGK_FAULT_STEP=n: every n-th point.
"""
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

KINDS = {"FAULT_OPENCL": "OpenCL calls", "FAULT_MEMORY": "allocations", "FAULT_FILES": "file operations"}
OLD = b"what was there before"
# A file whose removal is what fails stays.
MAY_LEAVE_FILES = {"unlink", "unlinkat"}


def write_npy(path, shape):
    count = 1
    for axis in shape:
        count *= axis
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    values = [((i * 37 + len(shape)) % 41 - 20) / 10 for i in range(count)]
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
                     + struct.pack(f"<{count}f", *values))


class Run:
    def __init__(self, program, layer, folder):
        self.folder = folder
        self.outputs = [folder / "out/o.npy", folder / "out/l.npy"]
        (folder / "out").mkdir()
        write_npy(folder / "q.npy", (1, 2, 5, 8))
        write_npy(folder / "k.npy", (1, 2, 2, 7, 8))
        write_npy(folder / "v.npy", (1, 2, 7, 8))
        self.command = [program, "--variant", "mgk", "--q", folder / "q.npy", "--k", folder / "k.npy", "--v",
                        folder / "v.npy", "--prior", "0.25,0.75", "--out", self.outputs[0], "--lse", self.outputs[1]]
        tests = pathlib.Path(program).parent.parent / "tests"
        flags = (tests / "unoptimised").read_text()
        drivers = {"OCL_ICD_VENDORS": str(tests / "drivers")} if (tests / "drivers").is_dir() else {}
        self.environment = {**os.environ, **drivers, "OPENCL_LAYERS": str(layer), "CLMGK_CACHE_DIR": str(folder / "cache"),
                            # the library's own cache in force, and quick to fill again
                            "POCL_KERNEL_CACHE": "0", "POCL_EXTRA_BUILD_FLAGS": flags}

    def __call__(self, variable=None, point=""):
        """Exit status, reasons, and a report per kind, after a run over fresh outputs. The layer comes with the first
        OpenCL call; its report is None where it came and never reported."""
        for name in self.outputs:
            name.write_bytes(OLD)
        environment = dict(self.environment)
        if variable is not None:
            environment[variable] = point
        done = subprocess.run(self.command, env=environment, capture_output=True, text=True, timeout=120)
        reports = {kind: (int(calls), int(live), failed) for kind, calls, live, failed in
                   re.findall(r"^([\w ]+): calls=(\d+) live=(-?\d+) failed=(\w+)$", done.stderr, re.M)}
        if "fault layer: active" in done.stderr.splitlines():
            reports.setdefault("OpenCL calls", None)
        reasons = [line for line in done.stderr.splitlines() if line.startswith("clmgk-run: ")]
        return done.returncode, reasons, reports

    def files(self):
        return sorted(path.name for path in (self.folder / "out").iterdir())


def complaint(run, right, variable, point, status, reasons, reports):
    """What is wrong after a run with a fault; None if nothing."""
    if reports.get(KINDS[variable]) is None or reports.get("OpenCL calls", ()) is None:
        return f"no report: the program died (exit status {status})"
    failed = reports[KINDS[variable]][2]
    if failed == "none":
        return "the fault was not reached"
    # A program leaves its context to the process's end.
    live, contexts = (reports.get(kind, (0, 0))[1] for kind in ("OpenCL calls", "OpenCL contexts"))
    if live != contexts:
        return f"{live - contexts} OpenCL objects were not released"
    left = reports.get(KINDS["FAULT_FILES"], (0, 0))[1]
    if left:
        return f"{left} arrays are still open"
    if run.files() != ["l.npy", "o.npy"] and failed not in MAY_LEAVE_FILES and not point.endswith("+"):
        return f"files left: {run.files()}"
    contents = [name.read_bytes() for name in run.outputs]
    if status == 0:
        return None if contents == right else "exit status 0, wrong outputs"
    if status not in (2, 3, 4):
        return f"exit status {status}"
    # Two files cannot be renamed at once: where the second rename fails, the first output stands, complete; and
    # standard output is flushed after both.
    if failed in ("rename", "fflush") and all(now in (OLD, new) for now, new in zip(contents, right)):
        return None
    if contents != [OLD, OLD]:
        return f"exit status {status}, but outputs were changed"
    return None if len(reasons) == 1 else f"{len(reasons)} reasons, expected 1"


def main():
    program, layer = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    modes = ["", "+"] if os.environ.get("CLMGK_TEST_FULL") == "1" else [""]
    step = int(os.environ.get("CLMGK_FAULT_STEP", "1"))
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        run = Run(program, layer, pathlib.Path(folder))
        status, reasons, _ = run()
        if status != 0:
            print("without a fault:", *reasons, sep="\n")
            return 1
        right = [name.read_bytes() for name in run.outputs]
        for variable, kind in KINDS.items():
            _, _, reports = run(variable, "0")
            count = reports[kind][0]
            first = min(1 + count % step, count)  # the last point, if there are fewer than a step
            points = [f"{point}{mode}" for mode in modes for point in range(first, count + 1, step)]
            print(f"{kind}: {count}", flush=True)
            if not points or reports.get("OpenCL calls") is None:
                print("nothing to fail, or no layer")
                bad += 1
            for point in points:
                status, reasons, reports = run(variable, point)
                wrong = complaint(run, right, variable, point, status, reasons, reports)
                if wrong is not None:
                    bad += 1
                    print(f"{variable}={point} {(reports.get(kind) or ('', '', '?'))[2]}: {wrong}", *reasons, sep="\n    ")
                for name in set(run.files()) - {"l.npy", "o.npy"}:
                    (run.folder / "out" / name).unlink()
    print(f"{bad} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
