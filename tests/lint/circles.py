#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the symbols of a build's object files and fails where source files use each other in a circle, within the
library or within a program, and where a layer of the library uses a symbol of a layer that it does not see.

    tests/lint/circles.py [BUILD_FOLDER]      default: build
"""

import subprocess
import sys
from pathlib import Path


def read_symbols(objects):
    """{object: (defined, used)} by nm; weak and local symbols are no dependency."""
    symbols = {path: (set(), set()) for path in objects}
    for line in subprocess.run(["nm", "-A", "-P", *objects], check=True, capture_output=True,
                               text=True).stdout.splitlines():
        path, rest = line.split(": ", 1)
        name, kind = rest.split()[:2]
        defined, used = symbols[Path(path)]
        if kind == "U":
            used.add(name)
        elif kind in "TDBRC":
            defined.add(name)
    return symbols


def arrows(symbols):
    """{object: {other object that it uses: one symbol}}"""
    owner = {name: path for path, (defined, _) in symbols.items() for name in defined}
    return {
        path: {owner[name]: name for name in sorted(used) if owner.get(name, path) != path}
        for path, (_, used) in symbols.items()
    }


def find_circles(graph):
    """Sets of nodes that reach each other."""

    def reach(start):
        found, todo = set(), [start]
        while todo:
            for other in graph[todo.pop()]:
                if other not in found:
                    found.add(other)
                    todo.append(other)
        return found

    reached = {node: reach(node) for node in graph}
    return {frozenset(o for o in reached[node] if node in reached[o]) for node in graph if node in reached[node]}


def source(path):
    """src/CMakeFiles/clmgk_device.dir/device/facts.c.o: device/facts.c; generated files lie in their layer's folder."""
    target, file = str(path).split("/CMakeFiles/clmgk", 1)[1].split(".dir/", 1)
    return (file if "/" in file else target[1:] + "/" + file).removesuffix(".o")


def check_circles(name, graph):
    circles = find_circles(graph)
    for circle in circles:
        print(f"{name}: a circle of files:")
        for path in sorted(circle):
            for other, symbol in graph[path].items():
                if other in circle:
                    print(f"    {source(path)} uses {symbol} of {source(other)}")
    return len(circles)


def check_layers(build, graph):
    """cmake/layers.cmake links the folders that each layer sees into src/seen/LAYER."""
    failures = 0
    layers = build / "src/seen"
    seen = {layer.name: tuple(f"{link.relative_to(layer)}/" for link in layer.rglob("*") if link.is_symlink())
            for layer in layers.iterdir()}
    for path, uses in graph.items():
        target = path.relative_to(build / "src/CMakeFiles").parts[0]
        for other, symbol in uses.items():
            if not source(other).startswith(seen[target.removeprefix("clmgk_").removesuffix(".dir")]):
                print(f"src: {source(path)} uses {symbol} of {source(other)}, which its layer does not see")
                failures += 1
    return failures


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    targets = {}
    for part in ("src", "tools", "benchmarks"):
        for path in sorted(build.glob(f"{part}/**/CMakeFiles/*.dir/**/*.o")):
            folder, target = str(path.relative_to(build)).split(".dir/")[0].split("/CMakeFiles/")
            targets.setdefault(folder if folder == "src" else target, []).append(path)
    if "src" not in targets:
        sys.exit(f"{build}: no object files of the library")
    failures = 0
    for name, objects in targets.items():
        graph = arrows(read_symbols(objects))
        failures += check_circles(name, graph)
        if name == "src":
            failures += check_layers(build, graph)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
