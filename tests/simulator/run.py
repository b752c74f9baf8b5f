#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executes the matrix engine's machine code for NVIDIA's sm_90, without a card, and compares results with numpy's.

    run.py [--plans PROGRAM] [--only WORDS] [--full] [--ptxas PROGRAM] [--nvcc]

Each case is a pass of a problem, which the library plans (offline_plans steps); clang makes PTX of its kernels
(compile.py), ptxas makes machine code, and warps.py executes all of their work-groups: fragments, their loads from
local memory, asynchronous copies, exchanges. Fails on wrong numbers, accesses outside the arrays, copies that are
read before they have arrived, unordered accesses to local memory, spills and a stack. --full: also all matrix
configurations that offline_plans prints, with their own blocks. --nvcc: PTX by CUDA's compiler, whose optimizer is
that of the OpenCL driver. Needs clang, libclc and numpy, ptxas and nvdisasm (of a CUDA toolkit, or from PyPI into a
cache); without them it says so and ends with status 77.
"""
import argparse
import concurrent.futures
import os
import pathlib
import struct
import sys
import tempfile
import traceback

try:
    import count
    import linear
    import numpy
    import passes
    import products
    import warps
except ModuleNotFoundError as missing_module:
    print(f"skipped: {missing_module.name} is not there")
    sys.exit(77)
import machine
from machine import offline

ONE = {"batch": 1, "heads": 1}
SMALL = "splits=1,warps=2,key-tiles=4"  # smaller blocks, so that short problems have several
SHORT = "splits=1,warps=2,key-tiles=2"  # for which f32 arrays have local memory
SPILLS = {"may_spill": True}


def case(name, configuration, options=None, parameters=SMALL, **fields):
    return name, configuration, {**ONE, **fields, "parameters": parameters}, options or {}


def strides(names, size, rows, heads):
    """Tokens first, heads within them, and a gap of 24 elements behind each token."""
    token = heads * size + 24
    return {f"{name}.{axis}": value for name in names
            for axis, value in (("batch", rows * token), ("head", size), ("component", size), ("token", token))}


def edge(name, configuration, options=None, **fields):
    """Narrow, so that all have the same few programs."""
    return case(name, configuration, options, **{"head_size": 16, "value_size": 16, **fields})


def linear_case(name, configuration, parameters, options=None, **fields):
    return case(name, configuration, options, parameters, **fields)


def group(name, configuration, options=None, parameters="splits=1", **fields):
    return case(name, configuration, options, parameters, **fields)


def turns(name, configuration, options=None, more=",splits=1", **fields):
    """Two groups of warps."""
    return group(name, f"{configuration}-wgmma-cuda-turns", options, count.TURNS + more, **fields)


# The units' probes: kernel, work-items, types, size of the matrices, and whether each product is A B^T.
PROBES = {"unit-probe": ("unit_probe", 32, 3, 16, (True, False)),
          "group-probe": ("group_probe", 128, 2, 64, (True, True, False, False, True, True))}
FORWARD, BACKWARD = "softmax-bf16-64", "backward-softmax-bf16-64"
LENGTHS = {"batch": 3, "use_lengths": 1, "length": 33, "length_k": 70}
GAPS = {"heads": 2, "kv_heads": 1, "length": 33, "length_k": 50, **strides(("q", "o"), 16, 33, 2),
        **strides(("k", "v"), 16, 50, 1)}
GRAD_GAPS = {**GAPS, **strides(("grad_o", "grad_q"), 16, 33, 2), **strides(("grad_k", "grad_v"), 16, 50, 1)}
WINDOW = {"length": 70, "length_k": 150, "use_window": 1, "window_left": 20, "window_right": 3}
PACKED = {"sequences": 3, "length": 120, "length_k": 120, "causal": 1}
PARTS = {"packed": [37, 45, 38]}
F16 = passes.F16
DROPOUT = {"dropout": int.from_bytes(struct.pack("<d", 0.25), "little")}  # the bits of a number


def masks(name):
    """(Name, options, fields) of a problem for each kind of mask."""
    return [(f"{name}-window", {}, WINDOW), (f"{name}-lengths", {"lengths": [5, 0, 70]}, LENGTHS),
            (f"{name}-packed", PARTS, PACKED)]


GRADIENTS_PRIOR, GRADIENTS_MGK, GRADIENTS_SMGK = 15, 31, 63  # all that the variants have: CLMGK_GRADIENT_Q and so on
# Name, configuration, the problem's fields, and options: of passes.Pass, and may_spill, for sizes that no configuration
# has. The quick tier has those before FULL.
CASES = [
    case("softmax-unaligned-20-33", "softmax-f16-64", length=40, length_k=37, head_size=20, value_size=33),
    case("singles-32", "softmax-f32-64", length=40, length_k=70, head_size=32, value_size=32),
    linear_case("linear-causal-32", "linear-causal-tf32-64", "splits=2", length=70, length_k=90, head_size=32, value_size=16),
    # a tile's keys are copied, and none of the block's rows sees them; the last tile has one key
    edge("tiles-hidden-by-a-window", FORWARD, **WINDOW),
    edge("last-tile-of-one-key", FORWARD, length=33, length_k=65),
    edge("lengths-and-padding", FORWARD, {"lengths": [5, 0, 70]}, **LENGTHS),
    edge("rows-without-keys", FORWARD, length=70, length_k=20, causal=1),
    edge("gaps-between-rows", FORWARD, **GAPS),
    edge("packed-neighbours", FORWARD, PARTS, **PACKED),
    edge("backward-last-tile", BACKWARD, length=33, length_k=65),
    edge("backward-lengths", BACKWARD, {"lengths": [5, 0, 70]}, **LENGTHS),
    edge("backward-rows-without-keys", BACKWARD, length=70, length_k=20, causal=1),
    edge("backward-gaps", BACKWARD, **GRAD_GAPS),
    group("wgmma-unaligned-20-33", "softmax-f16-64-wgmma", length=70, length_k=75, head_size=20, value_size=33),
    group("wgmma-mgk5-32-one-after-the-other", "mgk4-bf16-64-wgmma", SPILLS, length=40, length_k=200, head_size=32,
          value_size=16, components=5),
    group("wgmma-pages-of-7-e4m3", "softmax-f16-pages-e4m3-64-wgmma", {"lengths": [5, 0, 70]}, head_size=32, value_size=16, page_size=7,
          pages=50, table_pages=11, **LENGTHS),
    group("wgmma-hard-mish2-32-ring", "hard-mish2-f16-64-wgmma", heads=4, kv_heads=4, length=40, length_k=200, head_size=32,
          value_size=16, causal=1),
    group("wgmma-backward-mgk2-32", "backward-mgk2-bf16-64-wgmma", length=40, length_k=200, head_size=32, value_size=16,
          components=2),
    turns("wgmma-turns-window-16", "softmax-bf16-64", head_size=16, value_size=16, **{**WINDOW, "length": 200, "length_k": 330}),
]
FULL = [
    group("wgmma-pages-64", "softmax-bf16-pages-64-wgmma", length=70, length_k=200),
    group("wgmma-pages-of-one-64", "softmax-bf16-pages-64-wgmma", length=40, length_k=150, page_size=1),
    group("wgmma-pages-unaligned-20-33", "softmax-bf16-pages-64-wgmma", length=40, length_k=75, head_size=20, value_size=33),
    group("wgmma-e4m3-64", "softmax-f16-e4m3-64-wgmma", length=70, length_k=200),
    group("wgmma-int8-and-e5m2-64", "softmax-f16-pages-e4m3-64-wgmma", length=70, length_k=200, dtype_k=6, dtype_v=5),
    group("wgmma-int8-bf16-64", "softmax-f16-pages-e4m3-64-wgmma", length=70, length_k=200, dtype="bf16", dtype_k=6, dtype_v=6),
    group("wgmma-f32-over-f16-and-bf16-64", "softmax-f32-64-wgmma", length=40, length_k=150, dtype_k=2, dtype_v=3),
    group("wgmma-bf16-over-f32-and-f16-64", "softmax-bf16-64-wgmma", length=40, length_k=150, dtype_k=1, dtype_v=2),
    group("wgmma-mgk2-int8-64", "mgk2-bf16-64-wgmma", SPILLS, length=40, length_k=150, dtype_k=6, dtype_v=6, use_scale_k=1,
          use_scale_v=1),
    group("wgmma-hard-fish2-pages-64", "hard-fish2-f16-pages-int8-64-wgmma", heads=4, kv_heads=4, length=40, length_k=150),
    case("pages-64", "softmax-bf16-pages-64", length=40, length_k=100, causal=1),
    case("pages-e4m3-64", "softmax-f16-pages-e4m3-64", SPILLS, length=40, length_k=100, causal=1),
    case("int8-and-e5m2-64", "softmax-f16-e4m3-64", SPILLS, length=40, length_k=100, dtype_k=6, dtype_v=5),
    case("backward-mgk2-f16-32", "backward-mgk2-bf16-64", length=40, length_k=70, head_size=32, value_size=16, components=2,
         dtype=F16, causal=1),
    linear_case("backward-linear-causal-32", "backward-linear-causal-tf32-64", "splits=2", length=40, length_k=50, head_size=32,
                value_size=16),
    edge("backward-dropout", BACKWARD, length=33, length_k=65, **DROPOUT),
    edge("backward-window", BACKWARD, **WINDOW),
    group("wgmma-mgk3-32", "mgk4-bf16-64-wgmma", length=40, length_k=70, head_size=32, value_size=16, components=3),
    group("wgmma-mgk3-32-components-apart", "mgk4-bf16-64-wgmma", length=40, length_k=70, head_size=32, value_size=16,
          components=3, **{"k.batch": 6736, "k.head": 6736, "k.component": 2245, "k.token": 32}),  # not in whole pieces
    group("wgmma-window", "softmax-bf16-64-wgmma", head_size=16, value_size=16, **WINDOW),
    group("wgmma-singles-backward-32-causal", "backward-softmax-f32-64-wgmma", length=70, length_k=100, head_size=32,
          value_size=32, causal=1),
    case("mgk3-64", "mgk4-bf16-64", length=40, length_k=70, value_size=32, components=3),
    case("backward-64-causal", "backward-softmax-f16-64", length=40, length_k=70, causal=1),
    case("singles-64", "softmax-f32-64", length=40, length_k=70),
    linear_case("linear-causal-64", "linear-causal-tf32-64", "splits=2", length=70, length_k=90),
    linear_case("backward-linear-causal-64", "backward-linear-causal-tf32-64", "splits=2", length=40, length_k=50),
    edge("dropout", FORWARD, length=33, length_k=65, **DROPOUT),
    group("wgmma-cuda-mgk3-32", "mgk4-bf16-64-wgmma-cuda", length=40, length_k=150, head_size=32, value_size=16, components=3),
    group("wgmma-cuda-mgk2-128", "mgk2-bf16-128-wgmma-cuda", length=70, length_k=200),
    turns("wgmma-turns-64", "softmax-bf16-64", SPILLS, length=140, length_k=500),
    turns("wgmma-turns-64-causal", "softmax-bf16-64", SPILLS, length=300, length_k=400, causal=1),
    turns("wgmma-turns-128-causal", "softmax-bf16-128", SPILLS, length=300, length_k=600, causal=1),
    turns("wgmma-turns-f16-80-72-many-keys", "softmax-bf16-128", SPILLS, length=33, length_k=4300, head_size=80, value_size=72,
          dtype=F16),
    turns("wgmma-turns-mgk2-128", "mgk2-bf16-128", SPILLS, length=200, length_k=400),
    turns("wgmma-turns-mgk3-32-causal", "mgk2-bf16-128", SPILLS, length=200, length_k=300, head_size=32, value_size=16, components=3,
          causal=1),
    turns("wgmma-turns-lengths", "softmax-bf16-64", {"lengths": [5, 0, 70]}, head_size=16, value_size=16, **LENGTHS),
    turns("wgmma-turns-packed", "softmax-bf16-64", PARTS, head_size=16, value_size=16, **PACKED),
    turns("wgmma-turns-gaps", "softmax-bf16-64", head_size=16, value_size=16, **GAPS),
    turns("wgmma-turns-rows-without-keys", "softmax-bf16-64", head_size=16, value_size=16, length=200, length_k=20, causal=1),
    turns("wgmma-turns-skipped-tiles", "softmax-bf16-64", {"hidden": slice(60, 210)}, head_size=16, value_size=16, length=200, length_k=330,
          mask_mod="j < 60 || j >= 210"),
    turns("wgmma-turns-skipped-last-tiles", "softmax-bf16-64", {"hidden": slice(130, 330)}, head_size=16, value_size=16, length=140,
          length_k=330, mask_mod="j < 130"),
    turns("wgmma-turns-one-key", "softmax-bf16-64", head_size=16, value_size=16, length=130, length_k=65),
    turns("wgmma-turns-unaligned-20-33", "softmax-bf16-64", {**SPILLS, "offsets": {"q": 1, "k": 3, "v": 5, "o": 7}}, length=33,
          length_k=300, head_size=20, value_size=33),
    turns("wgmma-turns-ranges-of-keys", "softmax-bf16-64", SPILLS, ",splits=4", length=40, length_k=600, causal=1),
    turns("wgmma-turns-sinks-dropout", "softmax-bf16-64", SPILLS, length=70, length_k=150, use_sinks=1, **DROPOUT),
    group("wgmma-mgk3-64", "mgk4-bf16-64-wgmma", length=40, length_k=70, value_size=32, components=3),
    group("wgmma-singles-backward-64-causal", "backward-softmax-f32-64-wgmma", length=70, length_k=100, causal=1),
    group("wgmma-backward-64-causal", "backward-softmax-f16-64-wgmma", length=70, length_k=100, causal=1),
    group("wgmma-backward-hard-fish2-32", "backward-hard-fish2-bf16-64-wgmma", heads=3, kv_heads=3, length=40,
          length_k=70, head_size=32, value_size=16),
    case("softmax-64", "softmax-bf16-64", length=70, length_k=100),
    linear_case("linear-64", "linear-tf32-64", "splits=2", length=70, length_k=90),
    linear_case("backward-linear-64", "backward-linear-tf32-64", "splits=2", length=40, length_k=50),
    group("wgmma-64", "softmax-bf16-64-wgmma", length=70, length_k=200),
    group("wgmma-singles-64", "softmax-f32-64-wgmma", length=70, length_k=200),
    group("wgmma-statistics-mgk2-64", "statistics-mgk2-bf16-64-wgmma", length=70, length_k=150),
    group("wgmma-dropout", "softmax-bf16-64-wgmma", head_size=16, value_size=16, length=70, length_k=75, heads=2, kv_heads=1,
          **DROPOUT),
    case("softmax-causal-128", "softmax-f16-128", length=64, length_k=64, causal=1),
    case("softmax-narrow-5", "softmax-bf16-64", length=33, length_k=50, head_size=5, value_size=7, causal=1),
    case("softmax-two-fragments", "softmax-bf16-64", parameters=SMALL + ",row-tiles=2", length=100, length_k=70),
    case("ranges-of-keys", "softmax-bf16-64", parameters="splits=4,warps=2,key-tiles=2", length=40, length_k=150,
         causal=1),
    case("smgk3-32", "smgk2-bf16-64", length=40, length_k=70, head_size=32, value_size=16, components=3),
    case("backward-unaligned-20-33", "backward-softmax-f16-64", length=40, length_k=37, head_size=20, value_size=33),
    case("backward-narrow-5", "backward-softmax-bf16-64", length=33, length_k=50, head_size=5, value_size=7, causal=1),
    case("backward-smgk3-32", "backward-smgk2-bf16-64", length=40, length_k=70, head_size=32, value_size=16,
         components=3),
    linear_case("mlk2-unaligned-20-33", "linear-causal-tf32-64", "splits=4", variant=12, components=2, heads=2, kv_heads=1,
                length=100, length_k=77, head_size=20, value_size=33),
    linear_case("backward-mlk2-unaligned-20-33", "backward-linear-causal-tf32-64", "splits=2", variant=12, components=2,
                heads=2, kv_heads=1, length=40, length_k=57, head_size=20, value_size=33),
    linear_case("linear-lengths", "linear-tf32-64", "splits=2", {"lengths": [5, 0, 70]}, head_size=16, value_size=16, **LENGTHS),
    linear_case("backward-linear-gaps", "backward-linear-tf32-64", "splits=2", head_size=16, value_size=16, **GRAD_GAPS),
    linear_case("backward-linear-packed", "backward-linear-causal-tf32-64", "splits=2", PARTS, head_size=16, value_size=16,
                **PACKED),
    linear_case("linear-long-sums", "linear-tf32-64", "splits=1", length=33, length_k=4160, head_size=16, value_size=16),
    edge("backward-packed-neighbours", BACKWARD, PARTS, **PACKED),
    edge("backward-long-sums-of-queries", BACKWARD, length=4160, length_k=16),
    edge("backward-long-sums-of-keys", BACKWARD, length=16, length_k=4160),
    edge("unaligned-arrays", FORWARD, {"offsets": {"q": 1, "k": 3, "v": 5, "o": 7}}, length=33, length_k=50),
    edge("unaligned-arrays-backward", BACKWARD, {"offsets": {"k": 3, "v": 5, "grad_o": 1, "grad_k": 1}}, length=33,
         length_k=50),
    case("hard-fish2-64-as-planned", "hard-fish2-bf16-64", parameters="splits=1", heads=6, kv_heads=3, length=70,
         length_k=70),
    case("hard-fish3-narrow-20", "hard-fish2-bf16-64", heads=3, components=3, length=40, length_k=50, head_size=20,
         value_size=7, causal=1),
    case("singles-mgk3-unaligned-20-33", "mgk4-f32-64", length=20, length_k=37, head_size=20, value_size=33, components=3),
    case("singles-smgk3-32", "smgk2-f32-64", length=40, length_k=70, head_size=32, value_size=16, components=3),
    case("singles-rounded", "softmax-tf32-64", length=40, length_k=70),
    group("wgmma-singles-rounded", "softmax-tf32-64-wgmma", length=70, length_k=100),
    group("wgmma-singles-unaligned-20-33", "softmax-f32-64-wgmma", length=70, length_k=75, head_size=20, value_size=33),
    group("wgmma-singles-mgk3-32", "mgk4-f32-64-wgmma", length=40, length_k=70, head_size=32, value_size=16, components=3),
    group("wgmma-singles-lengths", "softmax-f32-64-wgmma", {"lengths": [5, 0, 70]}, head_size=16, value_size=16, **LENGTHS),
    edge("singles-unaligned-arrays", "softmax-f32-64", {"offsets": {"q": 1, "k": 3, "v": 5, "o": 7}}, length=33,
         length_k=50),
    edge("singles-lengths", "softmax-f32-64", {"lengths": [5, 0, 70]}, **LENGTHS),
    case("singles-backward-64-causal", "backward-softmax-f32-64", parameters=SHORT, length=40, length_k=70, causal=1),
    case("singles-backward-rounded", "backward-softmax-tf32-64", length=40, length_k=70),
    case("singles-backward-unaligned-20-33", "backward-softmax-f32-64", parameters=SHORT, length=40, length_k=37,
         head_size=20, value_size=33),
    case("singles-backward-narrow-5", "backward-softmax-f32-64", length=33, length_k=50, head_size=5, value_size=7,
         causal=1),
    case("singles-backward-128", "backward-softmax-f32-128", parameters="splits=1", length=40, length_k=37, causal=1),
    case("singles-backward-mgk2-parameters", "backward-mgk2-f32-64", SPILLS, parameters=SHORT, length=40, length_k=70,
         head_size=32, value_size=16, gradients=GRADIENTS_MGK),
    case("singles-backward-smgk3-32", "backward-smgk2-f32-64", SPILLS, parameters=SHORT, length=40, length_k=70,
         head_size=32, value_size=16, components=3),
    case("singles-statistics-mgk3-64", "statistics-mgk4-f32-64", SPILLS, parameters=SHORT, length=40, length_k=70,
         components=3),
    group("wgmma-singles-backward-rounded", "backward-softmax-tf32-64-wgmma", length=70, length_k=100),
    group("wgmma-singles-backward-unaligned-20-33", "backward-softmax-f32-64-wgmma", SPILLS, length=70, length_k=40, head_size=20,
          value_size=33),
    group("wgmma-singles-backward-128", "backward-softmax-f32-128-wgmma", length=70, length_k=75, causal=1),
    group("wgmma-singles-backward-mgk2-parameters", "backward-mgk2-f32-64-wgmma", SPILLS, length=70, length_k=100,
          head_size=32, value_size=16, gradients=GRADIENTS_MGK),
    group("wgmma-singles-backward-smgk3-32", "backward-smgk2-f32-64-wgmma", SPILLS, length=70, length_k=100, head_size=32,
          value_size=16, components=3),
    group("wgmma-singles-statistics-mgk2-64", "statistics-mgk4-f32-64-wgmma", SPILLS, length=70, length_k=100,
          components=2),
    group("wgmma-singles-backward-lengths", "backward-softmax-f32-64-wgmma", {"lengths": [5, 0, 70]}, head_size=16,
          value_size=16, **LENGTHS),
    edge("singles-backward-lengths", "backward-softmax-f32-64", {"lengths": [5, 0, 70]}, **LENGTHS),
    edge("singles-backward-unaligned-arrays", "backward-softmax-f32-64",
         {"offsets": {"k": 3, "v": 5, "grad_o": 1, "grad_k": 1}}, length=33, length_k=50),
    case("hard-mish2-64", "hard-mish2-f16-64", heads=3, length=40, length_k=70),
    case("backward-hard-fish2-64-as-planned", "backward-hard-fish2-bf16-64", parameters="splits=1", heads=4, kv_heads=2,
         length=70, length_k=75, causal=1),
    case("backward-hard-fish2-unaligned-20-33", "backward-hard-fish2-f16-64", heads=3, kv_heads=3, length=40,
         length_k=37, head_size=20, value_size=33),
    case("statistics-mgk3-64", "statistics-mgk2-bf16-64", length=40, length_k=70, components=3),
    case("statistics-smgk2-narrow-20", "statistics-smgk2-bf16-64", length=33, length_k=50, head_size=20, dtype=F16,
         causal=1),
    edge("statistics-hard-lengths", "statistics-mgk2-bf16-64", {"lengths": [5, 0, 70]}, estep=1, **LENGTHS),
    case("backward-mgk2-parameters", "backward-mgk2-bf16-64", length=40, length_k=70, head_size=32, value_size=16,
         gradients=GRADIENTS_MGK),
    case("backward-256", "backward-softmax-bf16-128", {"may_spill": True}, parameters="splits=1", length=70,
         length_k=75, head_size=256, value_size=256, causal=1),
    group("wgmma-many-keys", "softmax-bf16-64-wgmma", length=33, length_k=8300, head_size=16, value_size=16),
    group("wgmma-wide-80-176", "softmax-bf16-128-wgmma", length=70, length_k=75, head_size=80, value_size=176),
    group("wgmma-256", "softmax-bf16-128-wgmma", SPILLS, length=70, length_k=40, head_size=256, value_size=256),
    group("wgmma-last-tile-of-one-key", "softmax-bf16-64-wgmma", length=33, length_k=65, head_size=16, value_size=16),
    group("wgmma-lengths", "softmax-bf16-64-wgmma", {"lengths": [5, 0, 70]}, head_size=16, value_size=16, **LENGTHS),
    group("wgmma-rows-without-keys", "softmax-bf16-64-wgmma", length=70, length_k=20, causal=1),
    group("wgmma-gaps", "softmax-bf16-64-wgmma", head_size=16, value_size=16, **GAPS),
    group("wgmma-packed", "softmax-bf16-64-wgmma", PARTS, head_size=16, value_size=16, **PACKED),
    group("wgmma-unaligned-arrays", "softmax-bf16-64-wgmma", {"offsets": {"q": 1, "k": 3, "v": 5, "o": 7}}, length=33,
          length_k=150),
    group("wgmma-ranges-of-keys", "softmax-bf16-64-wgmma", parameters="splits=4", length=40, length_k=600, causal=1),
    group("wgmma-ranges-of-the-last-blocks", "softmax-bf16-64-wgmma", parameters="splits=2,split-from=1", length=150,
          length_k=330),
    group("wgmma-cuda-128", "softmax-bf16-128-wgmma-cuda", SPILLS, length=70, length_k=300, causal=1),
    group("wgmma-cuda-80-many-keys", "softmax-bf16-128-wgmma-cuda", SPILLS, length=33, length_k=4300, head_size=80,
          value_size=72),
    group("wgmma-sinks-many-keys", "softmax-bf16-64-wgmma", length=33, length_k=4200, head_size=16, value_size=16,
          use_sinks=1),
    group("wgmma-hard-mish2-sinks", "hard-mish2-f16-64-wgmma", heads=3, kv_heads=3, length=33, length_k=70, head_size=16,
          value_size=16, use_sinks=1),
    group("wgmma-smgk3-f16-32", "smgk2-bf16-64-wgmma", SPILLS, length=40, length_k=70, head_size=32, value_size=16,
          components=3, dtype=1),
    group("wgmma-hard-fish3-narrow-20", "hard-fish2-bf16-64-wgmma", heads=3, components=3, length=40, length_k=50,
          head_size=20, value_size=7, causal=1),
    group("wgmma-hard-fish2-many-keys", "hard-fish2-bf16-64-wgmma", heads=3, kv_heads=3, length=33, length_k=8300,
          head_size=16, value_size=16),
    group("wgmma-hard-fish2-wide-100-120", "hard-fish2-bf16-128-wgmma", SPILLS, heads=3, length=70, length_k=75,
          head_size=100, value_size=120, causal=1),
    group("wgmma-hard-fish2-ring", "hard-fish2-bf16-64-wgmma", heads=4, kv_heads=4, length=70, length_k=200, causal=1),
    group("wgmma-hard-fish2-ring-window", "hard-fish2-bf16-64-wgmma", heads=2, kv_heads=2, head_size=16, value_size=16,
          **{**WINDOW, "length": 300, "length_k": 400}),
    group("wgmma-hard-fish2-ring-lengths", "hard-fish2-bf16-64-wgmma", {"lengths": [5, 0, 70]}, heads=2, kv_heads=2,
          head_size=16, value_size=16, **LENGTHS),
    group("wgmma-hard-fish2-ring-packed", "hard-fish2-bf16-64-wgmma", PARTS, heads=2, kv_heads=2, head_size=16, value_size=16,
          **PACKED),
    group("wgmma-hard-fish2-ring-unaligned", "hard-fish2-bf16-64-wgmma", {"offsets": {"q": 1, "k": 3, "v": 5, "o": 7}},
          heads=2, kv_heads=2, length=33, length_k=150, head_size=20, value_size=33),
    group("wgmma-hard-fish2-ring-many-keys", "hard-fish2-bf16-64-wgmma", heads=2, kv_heads=2, length=33, length_k=8300,
          head_size=16, value_size=16),
    group("wgmma-hard-mish2-ring-one-head", "hard-mish2-f16-64-wgmma", heads=1, kv_heads=1, length=40, length_k=150),
    group("wgmma-hard-mish2-ring-128", "hard-mish2-bf16-128-wgmma", SPILLS, heads=2, kv_heads=2, length=70, length_k=200,
          causal=1),
    group("wgmma-hard-mish2-ring-wide-100-120", "hard-mish2-bf16-128-wgmma", SPILLS, heads=4, kv_heads=4, length=70,
          length_k=330, head_size=100, value_size=120),
    group("wgmma-hard-mish2-wide-128", "hard-mish2-f16-64-wgmma", SPILLS, heads=3, kv_heads=3, length=70, length_k=75,
          head_size=128, value_size=128),
    group("wgmma-backward-128", "backward-softmax-bf16-128-wgmma", length=70, length_k=75),
    group("wgmma-cuda-backward-128", "backward-softmax-bf16-128-wgmma-cuda", length=70, length_k=150, heads=2, kv_heads=1),
    group("wgmma-cuda-backward-f16-80-window", "backward-softmax-f16-128-wgmma-cuda", SPILLS, head_size=80, value_size=70,
          **WINDOW),
    group("wgmma-cuda-backward-64", "backward-softmax-f16-64-wgmma-cuda", length=70, length_k=150, causal=1),
    group("wgmma-cuda-backward-mgk2-128-in-turns", "backward-mgk2-bf16-128-wgmma-cuda", SPILLS, length=70, length_k=150),
    group("wgmma-cuda-backward-long-sums", "backward-softmax-bf16-128-wgmma-cuda", length=4200, length_k=70, head_size=70,
          value_size=90),
    group("wgmma-backward-mgk2-128-in-turns", "backward-mgk2-bf16-128-wgmma", length=70, length_k=75),
    group("wgmma-singles-backward-mgk2-128-in-turns", "backward-mgk2-f32-64-wgmma", SPILLS, length=70, length_k=75,
          head_size=128, value_size=100),
    group("wgmma-backward-mgk5-f16-in-turns", "backward-mgk2-bf16-64-wgmma", SPILLS, length=40, length_k=70, head_size=48,
          value_size=20, components=5, dtype=F16, causal=1, prior_shape=passes.PRIOR_HM, gradients=GRADIENTS_PRIOR),
    group("wgmma-backward-long-sums-in-turns", "backward-mgk2-bf16-64-wgmma", length=4160, length_k=33, head_size=16,
          value_size=16, components=16),
    group("wgmma-backward-hard-fish2-128", "backward-hard-fish2-bf16-128-wgmma", heads=3, kv_heads=3, length=70,
          length_k=75),
    group("wgmma-backward-hard-fish3-f16-narrow-20", "backward-hard-fish2-f16-64-wgmma", heads=4, kv_heads=2,
          components=3, length=70, length_k=50, head_size=20, value_size=7, causal=1),
    group("wgmma-backward-hard-mish2-wide-100-120", "backward-hard-mish2-bf16-128-wgmma", heads=3, kv_heads=3, length=40,
          length_k=75, head_size=100, value_size=120, causal=1),
    group("wgmma-backward-hard-fish2-long-sums", "backward-hard-fish2-f16-64-wgmma", heads=2, kv_heads=2, length=4160,
          length_k=33, head_size=16, value_size=16),
    group("wgmma-backward-unaligned-20-33", "backward-softmax-f16-64-wgmma", SPILLS, length=70, length_k=40, head_size=20,
          value_size=33),
    group("wgmma-backward-smgk3-32", "backward-smgk2-bf16-64-wgmma", length=40, length_k=70, head_size=32, value_size=16,
          components=3),
    group("wgmma-backward-window", "backward-softmax-bf16-64-wgmma", head_size=16, value_size=16, **WINDOW),
    group("wgmma-backward-mgk2-80", "backward-mgk2-bf16-64-wgmma", length=70, length_k=150, head_size=80, value_size=70),
    group("wgmma-backward-mgk2-window", "backward-mgk2-bf16-64-wgmma", **{**WINDOW, "length": 70, "length_k": 270}),
    group("wgmma-backward-last-tile", "backward-softmax-bf16-64-wgmma", length=33, length_k=65, head_size=16,
          value_size=16),
    group("wgmma-backward-lengths", "backward-softmax-bf16-64-wgmma", {"lengths": [5, 0, 70]}, head_size=16,
          value_size=16, **LENGTHS),
    group("wgmma-backward-rows-without-keys", "backward-softmax-bf16-64-wgmma", length=140, length_k=40, head_size=16,
          value_size=16, causal=1),
    group("wgmma-backward-gaps", "backward-softmax-bf16-64-wgmma", head_size=16, value_size=16, **GRAD_GAPS),
    group("wgmma-backward-packed", "backward-softmax-bf16-64-wgmma", PARTS, head_size=16, value_size=16, **PACKED),
    group("wgmma-backward-long-sums-of-queries", "backward-softmax-bf16-64-wgmma", length=4160, length_k=33,
          head_size=16, value_size=16),
    group("wgmma-backward-long-sums-of-keys", "backward-softmax-bf16-64-wgmma", length=33, length_k=4160, head_size=16,
          value_size=16),
    case("dropout-hard-fish2", "hard-fish2-bf16-64", SPILLS, heads=3, kv_heads=3, length=40, length_k=50, head_size=32,
         value_size=16, **DROPOUT),
    case("backward-dropout-hard-fish2", "backward-hard-fish2-bf16-64", SPILLS, heads=3, kv_heads=3, length=40, length_k=50,
         head_size=32, value_size=16, **DROPOUT),
    group("wgmma-dropout-mgk2-128", "mgk2-bf16-128-wgmma", SPILLS, length=70, length_k=75, **DROPOUT),
    group("wgmma-backward-dropout-64", "backward-softmax-bf16-64-wgmma", SPILLS, length=70, length_k=75, **DROPOUT),
    group("wgmma-backward-dropout-mgk2-64", "backward-mgk2-bf16-64-wgmma", SPILLS, length=70, length_k=75, **DROPOUT),
    case("dropout-singles", "softmax-f32-64", SPILLS, length=40, length_k=70, **DROPOUT),
    group("wgmma-backward-mgk2-f16-64", "backward-mgk2-bf16-64-wgmma", SPILLS, length=70, length_k=100, dtype=F16),
    group("wgmma-smgk2-f16-128", "smgk2-bf16-128-wgmma", SPILLS, length=70, length_k=100, dtype=F16),
    group("wgmma-statistics-smgk3-f16-32", "statistics-smgk2-bf16-64-wgmma", length=70, length_k=100, head_size=32,
          components=3, dtype=F16, prior_shape=passes.PRIOR_HM),
    group("wgmma-statistics-hard-lengths", "statistics-mgk2-bf16-64-wgmma", {"lengths": [5, 0, 70]}, head_size=16,
          estep=1, **LENGTHS),
    group("wgmma-backward-smgk2-parameters", "backward-smgk2-bf16-64-wgmma", SPILLS, length=70, length_k=100, head_size=32,
          value_size=16, gradients=GRADIENTS_SMGK, prior_shape=passes.PRIOR_HM),
    *(group(f"wgmma-{name}", f"{words}smgk2-bf16-64-wgmma", options, head_size=16, value_size=16, **fields)
      for words in ("", "backward-") for name, options, fields in masks(f"{words}smgk2")),
    *(case(name, f"{words}hard-fish2-bf16-64", {**options, "may_spill": True}, dtype=F16, head_size=16, value_size=16,
           **{**fields, "heads": 3, "kv_heads": 3})
      for words in ("", "backward-") for name, options, fields in masks(f"{words}hard-fish2-f16")),
    group("wgmma-backward-unaligned-arrays", "backward-softmax-bf16-64-wgmma",
          {"offsets": {"k": 3, "v": 5, "grad_o": 1, "grad_k": 1}}, length=33, length_k=70),
]


def run_case(one, programs, plans):
    name, configuration, fields, given = one
    options = dict(given)
    may_spill = options.pop("may_spill", False)
    plan = passes.Plan(plans, configuration, fields)
    run = (linear.Linear if linear.is_linear(plan) else passes.Pass)(plan, **options)
    counts, lines = run.run(programs), []
    faults = run.faults()
    for step, program, _, last in counts:
        most = offline.limits(machine.ARCHITECTURE, programs.target.kind, configuration, step.source, step.options)
        if "-wgmma" in configuration and "-DMATRIX_UNIT=1" in step.options:
            faults.append(f"{step.source}: planned for another unit")
        if not may_spill and any(program.figures[figure] > most[figure] for figure in ("B spilled", "B stack")):
            faults.append(f"{step.source}: spills or a stack")
        if last["products"]:
            lines.append(f"{step.kernel.removeprefix('mixture_')}: {program.figures['registers']} registers, "
                         f"{last['products']} products, {last['slots']} slots, {last['BAR']} barriers of warps")
    text = f"{name:28s} {'; '.join(lines)} in the last group"
    return f"{text}  {'FAILED: ' + '; '.join(faults) if faults else 'right'}", not faults


def run_probe(name, programs, plans):
    """The probe of a unit, whose numbers are those of src/device/matrix_unit.c."""
    kernel, items, types, size, forms = PROBES[name]
    source, options = next(key for key, own in passes.configurations(plans).items() if own == name)
    program = programs.get(source, options)
    memory = numpy.full(types * len(forms) * size * size * 4, 0xff, numpy.uint8)
    bank = bytearray(1 << 12)
    bank[warps.PARAMETERS:warps.PARAMETERS + 8] = warps.GLOBAL.to_bytes(8, "little")
    warps.Group(program.kernels[kernel], items, bytes(bank), memory, 0, program.tables).run()
    row, column = numpy.mgrid[:size, :size]
    left, right = (7 * row + 3 * column) % 13 - 6, (5 * row + 11 * column) % 17 - 8
    products = memory.view(numpy.float32).reshape(types, len(forms), size, size)
    good = (products == numpy.stack([left @ (right.T if form else right) for form in forms])[None]).all()
    return f"{name:28s} {'right' if good else 'FAILED: wrong products'}", bool(good)


def run_configuration(name, programs, plans):
    own, faults = count.measure(name, programs, plans)
    lines = [", ".join(f"{label} {cell}".strip() for label, cell in zip(["", *count.COLUMNS[1:]], tile.row())) for tile in own]
    return "\n".join(lines) + f"  {'FAILED: ' + '; '.join(faults) if faults else 'right'}", not faults


def share(job):
    """Lines of a share of the cases and configurations, and whether they are right."""
    jobs, tools, plans = job
    results = []
    with tempfile.TemporaryDirectory() as work:
        programs = passes.Programs(machine.ARCHITECTURE, tools[0], tools[1], work, *tools[2:])
        for one in jobs:
            try:
                results.append(runner_of(one)(one, programs, plans))
            except warps.Fault as fault:
                results.append((f"{name_of(one):28s} FAILED: {fault}", False))
            except (NotImplementedError, offline.Failure, KeyError, AttributeError, IndexError, ValueError):
                results.append((f"{name_of(one):28s} FAILED\n{traceback.format_exc()}", False))
    return results


def runner_of(one):
    if name_of(one) in PROBES:
        return run_probe
    if name_of(one).startswith("product-"):
        return products.run_configuration if isinstance(one, str) else products.run_case
    return run_configuration if isinstance(one, str) else run_case


def name_of(one):
    return one if isinstance(one, str) else one.name if isinstance(one, products.Case) else one[0]


def configurations(plans):
    """Names of the engine's configurations, but for the linear family's, whose kernels have no tiles, and for blocks of numbers,
    which passes.py does not make."""
    own = passes.configurations(plans)
    others = {*PROBES, *(name for name in own.values() if "q8_0" in name), *(name for (source, _), name in own.items() if source.startswith("linear/"))}
    return [name for name in dict.fromkeys(own.values()) if name not in others]


def in_parallel(chosen, jobs, tools, plans):
    """Results as they come; neighbours, which share programs, in one process."""
    size = -(-len(chosen) // jobs)
    parts = [(chosen[i:i + size], tools, plans) for i in range(0, len(chosen), size)] if chosen else []
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(share, parts):
            yield from results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--plans", type=pathlib.Path, default=offline.PLANS)
    parser.add_argument("--only", default="")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments, tools = machine.parse(parser)
    if tools is None:
        return 77
    chosen = [*PROBES] + CASES + products.CASES
    if arguments.full or arguments.only:
        chosen += FULL + products.FULL + configurations(arguments.plans)
    chosen = [one for one in chosen if arguments.only in name_of(one)]
    failed = 0
    for line, good in in_parallel(chosen, arguments.jobs, [*tools, arguments.nvcc], arguments.plans):
        print(line, flush=True)
        failed += not good
    print(f"{len(chosen)} executed, {failed} failed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
