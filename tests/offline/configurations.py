#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares configurations.txt with the plans: its lines show what a change of the library changes in plans.

    configurations.py PROGRAM [--update]        PROGRAM: offline_plans, which prints all configurations

The file is a selection: each option that plans give to kernels of an engine is in one of its lines, and so are a
work-item's rows and keys in each kernel of the engine SIMT; SIMT is one engine on all vendors' devices, a matrix unit one
of its own. Fails where plans no longer make a line, and where an option is missing. --update rewrites the file: lines that
plans still make stay, while there are few enough."""
import argparse
import pathlib
import subprocess
import sys

FILE = pathlib.Path(__file__).resolve().parent / "configurations.txt"
TITLE = "# A selection of what tests/offline/plans.c prints; configurations.py --update makes it. Engine, name, file, options."
MOST = 149  # and the title


def options_of(line):
    engine, _, file, *options = line.split()
    engine = "simt" if engine.startswith("simt-") else engine
    shares = " ".join(option for option in options if option.startswith(("-DROWS_PER_THREAD=", "-DKEYS_PER_THREAD=")))
    return {(engine, option) for option in options} | ({(pathlib.PurePath(file).name, shares)} if shares else set())


def selection(made, kept):
    """The lines of `kept`, and as few others as have the options that these lack, in the order of `made`."""
    chosen, missing = set(kept), set().union(*map(options_of, made)) - set().union(*map(options_of, kept))
    while missing:
        best = max(made, key=lambda line: len(options_of(line) & missing))
        chosen.add(best)
        missing -= options_of(best)
    return [line for line in dict.fromkeys(made) if line in chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="offline_plans")
    parser.add_argument("--update", action="store_true", help="rewrite the file")
    arguments = parser.parse_args()
    text = subprocess.run([arguments.program], check=True, stdout=subprocess.PIPE, text=True).stdout
    made = text.splitlines()
    found = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    kept = [line for line in found if line in set(made)]
    if arguments.update:
        lines = selection(made, kept)
        lines = lines if len(lines) <= MOST else selection(made, [])
        FILE.write_text("\n".join([TITLE, *lines]) + "\n")
        kept = found = lines
    faults = [f"plans no longer make: {line}" for line in found if line not in set(kept)]
    missing = set().union(*map(options_of, made)) - set().union(*map(options_of, kept))
    faults += [f"missing: {engine} {option}" for engine, option in sorted(missing)]
    if len(found) > MOST:
        faults.append(f"{len(found)} lines, at most {MOST}")
    print("\n".join(faults) or f"{len(found)} lines of {len(made)} are as plans make them")
    return 1 if faults or not found else 0


if __name__ == "__main__":
    sys.exit(main())
