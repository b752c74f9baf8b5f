# SPDX-License-Identifier: Apache-2.0
"""Generated errors: one operator, bound, condition or call of a C or OpenCL file is changed."""
import pathlib
import random
import re

# A pattern that matches in code, and what takes its place. clang-format puts spaces around binary operators.
CHANGES = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
    (r" && ", " || "), (r" \|\| ", " && "), (r"(?<=[\w)\]]) \+ (?=[\w(])", " - "), (r"(?<=[\w)\]]) - (?=[\w(])", " + "),
    (r" \+ 1\b(?!\.)", ""), (r" - 1\b(?!\.)", ""), (r" \+= ", " = "), (r"\bmin\(", "max("), (r"\bmax\(", "min("),
    (r"(?<=^#if )(.+)$", r"!(\1)"), (r"^( +)\w+\([^;=]*\);$", r"\1;"), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
]
COMPILED = [(re.compile(pattern), new) for pattern, new in CHANGES]
# Preprocessor lines (but conditions), comments, and text in quotes are no code.
NO_CODE = re.compile(r"^\s*(#(?!if ).*|\*.*|//.*)$")
QUOTED = re.compile(r"/\*.*?\*/|//.*|\"(?:[^\"\\]|\\.)*\"")


def errors_of(path, name):
    """All errors of a file, as entries like those of mutants.toml with a line in the place of `old`."""
    inside = False  # a comment of several lines
    for number, line in enumerate(path.read_text().split("\n"), 1):
        begins = line.rfind("/*") > line.rfind("*/")
        if not inside and not begins and not NO_CODE.match(line):
            quoted = [match.span() for match in QUOTED.finditer(line)]
            for pattern, new in COMPILED:
                for match in pattern.finditer(line):
                    if not any(first <= match.start() < last for first, last in quoted):
                        changed = line[:match.start()] + match.expand(new) + line[match.end():]
                        yield {"name": f"{name}:{number}:{match.start() + 1}", "file": name, "line": number,
                               "what": f"{line.strip()}  ->  {changed.strip()}", "new": changed}
        inside = begins or (inside and "*/" not in line)


def sample(root, areas, count, seed):
    """`count` errors, spread over the areas: a file is drawn first, then one of its errors."""
    draw = random.Random(seed)
    errors = []
    folders = {area["folder"]: area["tests"] for area in areas}
    names = sorted(str(path.relative_to(root)) for folder in folders for path in (root / folder).iterdir()
                   if path.suffix in (".c", ".h", ".cl", ".clh"))
    while names and len(errors) < count:
        name = draw.choice(names)
        taken = {error["name"] for error in errors}
        left = [error for error in errors_of(root / name, name) if error["name"] not in taken]
        if not left:
            names.remove(name)
            continue
        errors.append({**draw.choice(left), "tests": folders[str(pathlib.PurePath(name).parent)]})
    return errors
