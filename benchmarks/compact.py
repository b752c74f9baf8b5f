#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites JSON results for results/: still the same object, which table.py and `clmgk-bench --compare` read,
but one line per case, with medians, spread and conditions.

Left out: nulls and empty texts (an absent key means null); times of compiling and of first calls, and sizes of memory, of
attention and layer; the error of the check (a case that fails it is not timed); counts, which follow from the case;
compiler options other than flags that are set, because `parameters` and the case's sizes repeat them; cases that clmgk-tune
did not measure. Fractions are rounded to seven digits."""
import argparse
import json
import pathlib
import re

LEFT_OUT = {
    "cache_note", "compile_ms", "counts", "enqueue_backward_opencl_calls", "enqueue_opencl_calls", "error",
    "first_call_cold_ms", "first_call_warm_ms", "memory_bytes", "private_bytes", "process_peak_bytes", "program",
    "ratio_to_baseline", "workspace_bytes",
}
FLAG = re.compile(r"-D(?!COMPONENTS|ENGINE|HEAD_|LANES|PANELS|ROW_|.*_SIZE)[A-Z0-9_]+=1")


def shortened(key, value, left_out):
    if isinstance(value, dict):
        items = {name: shortened(name, one, left_out) for name, one in value.items() if name not in left_out}
        return {name: one for name, one in items.items() if one not in (None, "")}
    if isinstance(value, list):
        ones = [shortened(key, one, left_out) for one in value]
        return [one for one in ones if not (isinstance(one, dict) and one.get("outcome") == "unmeasured")]
    if isinstance(value, float):
        rounded = float(f"{value:.7g}")
        return round(value) if rounded.is_integer() else rounded
    if key == "options":
        return " ".join(option for option in value.split() if FLAG.fullmatch(option))
    return value


def has_objects(value):
    """Whether a list of objects is anywhere in it."""
    if isinstance(value, dict):
        return any(map(has_objects, value.values()))
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


def text(value, indent=""):
    """JSON with a line for each object of a list and for each value beside such lists."""
    if not has_objects(value):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    if isinstance(value, dict):
        parts = (f"{json.dumps(key)}: {text(one, inner)}" for key, one in value.items())
    else:
        parts = (text(one, inner) for one in value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(inner + part for part in parts) + "\n" + indent + closing


def compact(results):
    """The short form of an object, as text."""
    of_peers = "pytorch" in results  # their sizes of memory are results
    return text(shortened("", results, () if of_peers else LEFT_OUT)) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="JSON objects, each replaced by its short form")
    for path in parser.parse_args().files:
        path.write_text(compact(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
