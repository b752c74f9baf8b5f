#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that an engine's device code is its folder of cl/engine: under another name, without the folders of the other
engines, it compiles with every kernel that uses it; and no shared file has a condition on the engine. Exit status 77:
clang is not installed."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from compile import CLANG, KERNELS, PLANS, read_configurations

NEW_NAME = "renamed"
CONDITION = re.compile(r"^\s*#\s*(?:el)?if\b.*\bENGINE\b", re.MULTILINE)


def engine_folders():
    return sorted(path.parent for path in KERNELS.glob("engine/*/traits.clh"))


def conditions_on_engine():
    own = engine_folders()
    shared = [path for path in KERNELS.rglob("*.cl*") if not any(folder in path.parents for folder in own)]
    return [str(path.relative_to(KERNELS)) for path in shared if CONDITION.search(path.read_text())]


def rename(folder, copy):
    """A copy of the kernels with this engine alone."""
    shutil.copytree(KERNELS, copy)
    for other in engine_folders():
        if other != folder:
            shutil.rmtree(copy / other.relative_to(KERNELS))
    (copy / folder.relative_to(KERNELS)).rename(copy / "engine" / NEW_NAME)


def compile_one(job):
    engine, copy, source, options = job
    own = [option.replace(f"-DENGINE={engine}", f"-DENGINE={NEW_NAME}") for option in options]
    done = subprocess.run([CLANG, "-x", "cl", "-target", "spir64", "-Xclang", "-finclude-default-header", "-Werror",
                           "-fsyntax-only", f"-I{copy}", *own, copy / source],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{engine} as {NEW_NAME}: {source}", done.returncode, done.stdout


def main():
    wrong = conditions_on_engine()
    for name in wrong:
        print(f"{name}: has a condition on ENGINE; families ask for the engine's traits")
    if not shutil.which(CLANG):
        print(f"skipped: {CLANG} is not installed")
        return 1 if wrong else 77
    with tempfile.TemporaryDirectory() as work:
        jobs = []
        for folder in engine_folders():
            engine, copy = folder.name, pathlib.Path(work) / folder.name
            rename(folder, copy)
            first = {}
            for _, _, source, options in read_configurations(sys.argv[1] if len(sys.argv) > 1 else PLANS):
                # an engine with units also has emulated configurations, which compile for any device
                if f"-DENGINE={engine}" in options and not any(x.startswith("-DMATRIX_UNIT=") for x in options):
                    first.setdefault(source, options)
            jobs += [(engine, copy, source, options) for source, options in first.items()]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for title, code, text in pool.map(compile_one, jobs):
                print(title if code == 0 else f"{title}: FAILED\n{text}")
                wrong += [title] if code != 0 else []
    print(f"{len(jobs)} compiled, {len(wrong)} wrong")
    return 1 if wrong or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
