#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails where code outside a matrix unit's own file names the unit (docs/architecture.md, a unit of the matrix engine):
families, layers and plans no unit at all, the engine's other files no direct one (cl/engine/units.clh). Comments may.

    tests/lint/units.py
"""

import re
import sys
from pathlib import Path

MOST_LINES = 300
# Folders without any unit's name, and the files that list units.
FAMILIES = ("cl/mixture", "cl/admixture", "cl/linear", "cl/attention", "cl/layer", "cl/base", "src/attention", "src/layer",
            "src/operation", "src/context", "src/tuning", "src/api")
LISTS = ("cl/engine/units.clh", "cl/engine/matrix/tunables.h", "cl/engine/matrix/unit.clh")


def code_of(path):
    """A file's lines without comments."""
    return re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), path.read_text(), flags=re.DOTALL).splitlines()


def read_units(root):
    """The macros and names of the direct units, and of all."""
    text = (root / "cl/engine/units.clh").read_text()
    units = re.findall(r'X\((MATRIX_\w+), "([\w.-]+)", (\w+)', text)
    direct = {word for unit, name, maker in units if maker != "NVIDIA" for word in (unit, name)}
    return direct, direct | {word for unit, name, _ in units for word in (unit, name)}


def main():
    root = Path(__file__).resolve().parents[2]
    direct, every = read_units(root)
    wrong = []
    for path in sorted(path for folder in ("cl", "src") for path in (root / folder).rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        if name.startswith("cl/engine/matrix/units/"):
            lines = len(path.read_text().splitlines())
            if lines > MOST_LINES:
                wrong.append(f"{name}: {lines} lines, expected at most {MOST_LINES}")
        elif name not in LISTS and path.suffix in (".c", ".h", ".cl", ".clh"):
            words = every if name.startswith(FAMILIES) else direct
            named = re.compile(r"(?<![\w.-])(" + "|".join(map(re.escape, sorted(words))) + r")(?![\w-])")
            wrong += [f"{name}:{number}: names {found[0]}" for number, line in enumerate(code_of(path), 1)
                      for found in [named.search(line)] if found]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong or not direct else 0


if __name__ == "__main__":
    sys.exit(main())
