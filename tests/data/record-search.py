#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the landscape that test_search replays: the time of each of a list of kernel parameters, in several cases.

    record-search.py BIN [EARLIER] > search-pocl.txt

BIN: folder of clmgk-run. Takes a quarter of an hour, most of which is compiling. The least of ROUNDS runs counts, each
run the least of REPEAT repetitions; the rounds lie a minute apart, so that what else the machine does is not mistaken
for a parameter's effect. EARLIER: another recording, whose times count as well.
"""
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy as np

GRID = {"vectors": (1, 2, 4), "panels": (1, 2, 4, 8), "tile": (16, 32, 64, 128), "block": (4, 8, 16),
        "unroll": (1, 2, 4, 8)}
SAMPLE = 70  # drawn beside the defaults and what differs from one of them in one value
ROUNDS, REPEAT = 4, 30
HEAD = 64
CASES = {  # name: variant, heads, length, further options
    "softmax-512": ("softmax", 2, 512, []),
    "softmax-128": ("softmax", 32, 128, []),
    "mgk-512": ("mgk", 2, 512, []),
    "mgk-causal-768": ("mgk", 1, 768, ["--causal"]),
}


def arrays(folder, name, variant, heads, length):
    """Files of Q, K and V."""
    draw = np.random.default_rng(1)
    keys = (1, heads, 2, length, HEAD) if variant == "mgk" else (1, heads, length, HEAD)
    options = []
    for array, shape in (("q", (1, heads, length, HEAD)), ("k", keys), ("v", (1, heads, length, HEAD))):
        path = os.path.join(folder, f"{name}-{array}.npy")
        np.save(path, draw.standard_normal(shape).astype(np.float32))
        options += [f"--{array}", path]
    return options


def run(command, parameters):
    """The report of a run, or None where the parameters are not for this case."""
    if parameters is not None:
        text = ",".join(f"{name}={value}" for name, value in zip(GRID, parameters))
        command = command + ["--parameters", f"lanes=16,splits=1,{text}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def default_of(report):
    values = dict(item.split("=") for item in report["parameters"].split(","))
    return tuple(int(values[name]) for name in GRID)


def configurations(defaults):
    chosen = list(dict.fromkeys(defaults))
    for default in defaults:
        for place, values in enumerate(GRID.values()):
            chosen += [default[:place] + (value,) + default[place + 1:] for value in values]
    chosen = list(dict.fromkeys(chosen))
    rest = [point for point in itertools.product(*GRID.values()) if point not in chosen]
    return chosen + random.Random(1).sample(rest, SAMPLE)


def earlier_times(path):
    """{(case, point): time} of a recording."""
    with open(path, encoding="utf-8") as file:
        items = [line.split() for line in file if line.startswith("time ")]
    return {(item[1], tuple(map(int, item[2:-1]))): float(item[-1]) for item in items}


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program = os.path.join(sys.argv[1], "clmgk-run")
    with tempfile.TemporaryDirectory() as folder:
        commands = {}
        for name, (variant, heads, length, options) in CASES.items():
            commands[name] = [program, "--variant", variant, "--json", "--repeat", str(REPEAT), *options,
                              *arrays(folder, name, variant, heads, length)]
        defaults = {name: default_of(run(command, None)) for name, command in commands.items()}
        points = configurations(list(defaults.values()))
        best = earlier_times(sys.argv[2]) if len(sys.argv) == 3 else {}
        for number in range(ROUNDS):
            print(f"round {number + 1} of {ROUNDS}: {len(points)} points, {len(CASES)} cases", file=sys.stderr)
            for point, (name, command) in itertools.product(points, commands.items()):
                report = run(command, point)
                if report is not None:
                    time = report["time_ms"]["min"]
                    best[name, point] = min(best.get((name, point), time), time)
        device = run(next(iter(commands.values())), None)["device"]
    print("# Made by record-search.py; least times of a forward pass in milliseconds.")
    print(f"# {device['platform']} {device['driver']}, {device['name']}, engine lane, lanes=16, splits=1, f32, "
          f"head size {HEAD}")
    for name, (variant, heads, length, options) in CASES.items():
        print(f"# {name}: {' '.join([variant, f'{heads} heads, {length} queries and keys', *options])}")
    print("parameters", *GRID)
    for name, default in defaults.items():
        print("default", name, *default)
    for (name, point), time in best.items():
        print("time", name, *point, f"{time:.4f}")


if __name__ == "__main__":
    main()
