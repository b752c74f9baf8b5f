#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails where a function in cl/ is longer, or has more parameters, than the limits below.

    tests/lint/functions.py
"""

import re
import sys
from pathlib import Path

from units import code_of

MOST_LINES, MOST_PARAMETERS = 60, 8
# A definition as clang-format leaves it: no blank line in its head, and braces at the beginning of their lines.
DEFINITION = re.compile(r"^(?=\w)(?:[^;{}#\n]|\n(?!\n))*\b(?P<name>\w+)\((?P<parameters>(?:[^;{}#\n]|\n(?!\n))*)\)\n\{\n.*?^\}$",
                        re.MULTILINE | re.DOTALL)


def main():
    cl = Path(__file__).resolve().parents[2] / "cl"
    found, wrong = 0, []
    for path in sorted(cl.rglob("*.cl*")):
        text = "\n".join(code_of(path))
        for function in DEFINITION.finditer(text):
            found += 1
            lines, parameters = function[0].count("\n") + 1, function["parameters"].count(",") + 1
            where = f"{path.relative_to(cl.parent)}:{text.count(chr(10), 0, function.start()) + 1}: {function['name']}"
            if lines > MOST_LINES:
                wrong.append(f"{where}: {lines} lines, expected at most {MOST_LINES}")
            if parameters > MOST_PARAMETERS:
                wrong.append(f"{where}: {parameters} parameters, expected at most {MOST_PARAMETERS}")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
