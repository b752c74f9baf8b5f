#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention on a GPU, each of its back ends, at the sizes of `clmgk-bench --suite gpu`: a line of JSON each. Beside it MGK
as PyTorch compiles its formula, products of matrices, and a layer.

--table: the shapes of tools/gpu-bundle.sh's table in bf16, also by the library itself on CUDA's memory (back end CLMGK), where the
package is there; --own: by the library alone, forward. --profile: runs of the library alone, for a profiler.

A back end that refuses a case is told in the case's "error"; those that always do are left out, and so is the one that
writes all scores, from 8,192 tokens on. So are cases that the file has already.
"""
import argparse
import contextlib
import functools
import importlib.util
import json
import os
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {  # batch, heads, N, S, D, whether it is causal
    "gpu-4096": (1, 8, 4096, 4096, 64, False),
    "gpu-64": (1, 8, 8192, 8192, 64, False),
    "gpu-64-causal": (1, 8, 8192, 8192, 64, True),
    "gpu-128": (1, 8, 8192, 8192, 128, False),
    "gpu-128-causal": (1, 8, 8192, 8192, 128, True),
    "decode-64k": (1, 8, 1, 65536, 64, False),
}
TABLE = {f"table-{size}{'-causal' if causal else ''}": (1, 16, 8192, 8192, size, causal) for size in (64, 128) for causal in (False, True)}
SMALL = {"small": (1, 2, 64, 64, 32, False)}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
BACK_ENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
OF_16_BITS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")
OWN = "CLMGK"
MOST_OF_MATH = 4096  # rows or keys, whose scores are a matrix in memory


def synchronise(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call, device, seconds):
    """Milliseconds of runs of `call`, after two that are not counted."""
    times = []
    for _ in range(2):
        call()
    synchronise(device)
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        synchronise(device)
        times.append(1e3 * (time.perf_counter() - start))
    return times


def own_attention(q, k, v, is_causal):
    import clmgk.torch
    return clmgk.torch.attention(q, k, v, causal=is_causal)


def measure(shape, dtype, back_end, backward, device, seconds):
    batch, heads, rows, keys, size, causal = shape
    q, k, v = (torch.randn(batch, heads, n, size, device=device, dtype=dtype, requires_grad=backward)
               for n in (rows, keys, keys))
    own = back_end == OWN
    attend = functools.partial(own_attention if own else torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
    with contextlib.nullcontext() if own else sdpa_kernel(getattr(SDPBackend, back_end)):
        if not backward:
            with torch.no_grad():
                return timed(lambda: attend(q, k, v), device, seconds)
        out = attend(q, k, v)
        grad = torch.randn_like(out)
        return timed(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), device, seconds)


def mgk(q, k, v):
    """q [batch, head, row, size], k with components before keys: components share values, and |q|^2 cancels out."""
    scores = torch.einsum("bhnd,bhmsd->bhnms", q, k) - (k * k).sum(-1)[:, :, None] / 2
    weights = torch.softmax((scores * q.shape[-1] ** -0.5).flatten(-2), -1).unflatten(-1, k.shape[2:4])
    return weights.sum(-2) @ v


def mgk_forward(dtype, device, length=4096):
    """Four heads of two components."""
    q, v = (torch.randn(1, 4, length, 64, device=device, dtype=dtype) for _ in range(2))
    k = torch.randn(1, 4, 2, length, 64, device=device, dtype=dtype)
    formula = torch.compile(mgk) if device == "cuda" else mgk
    return functools.partial(formula, q, k, v), flops((1, 4, length, length, 96, False), False)


def product(dtype, device, size=4096):
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    torch.backends.cuda.matmul.allow_tf32 = False
    return functools.partial(torch.matmul, a, b), 2.0 * size ** 3


def layer(dtype, device, length=1024):
    """Self-attention of four sequences, and the normalisation of the sum with its inputs."""
    x = torch.randn(4, length, 512, device=device, dtype=dtype)
    attention = torch.nn.MultiheadAttention(512, 8, batch_first=True, device=device, dtype=dtype)
    norm = torch.nn.LayerNorm(512, device=device, dtype=dtype)
    return lambda: norm(x + attention(x, x, x, need_weights=False)[0]), 32.0 * length * 512 ** 2 + 16.0 * length ** 2 * 512


PROFILES = ("mgk-forward", "hard-fish-backward")
# Function, and the name of what computes it.
OTHERS = {"product-4096": (product, "CUBLAS"), "layer": (layer, "MODULE"), "mgk-4096": (mgk_forward, "COMPILED")}


def measure_other(function, dtype, device, seconds, small):
    call, operations = function(dtype, device, *([64] if small else []))
    with torch.no_grad():
        return timed(call, device, seconds), operations


def flops(shape, backward):
    batch, heads, rows, keys, size, causal = shape
    return 4.0 * batch * heads * rows * keys * size * (2.5 if backward else 1) * (0.5 if causal else 1)


def may_compute(back_end, shape, dtype):
    """Not those that PyTorch refuses for this case, and not MATH where it takes twenty times as long as the others."""
    if back_end == "MATH":
        return max(shape[2:4]) <= MOST_OF_MATH
    return hasattr(SDPBackend, back_end) and (dtype != "f32" or back_end not in OF_16_BITS)


def profile(name, device, small):
    """Two runs, of which a profiler sees the kernels."""
    import clmgk.torch
    length, size = (64, 32) if small else (8192, 128)
    variant, _, direction = name.rpartition("-")
    keys = 8 if variant == "hard-fish" else 4
    shared = {"mix": torch.randn(8, 2, device=device)} if variant == "hard-fish" else {}
    heads = 2 if variant == "hard-fish" else 4
    q = torch.randn(1, heads, length, size, device=device, dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(1, heads, *((2,) if variant == "mgk" else ()), length, size, device=device, dtype=torch.bfloat16, requires_grad=True)
    v = torch.randn(1, keys, length, size, device=device, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(2):
        out = clmgk.torch.attention(q, k, v, variant=variant, **shared)
        if direction == "backward":
            out.backward(torch.randn_like(out))
    synchronise(device)


def cases(shapes, dtypes, back_ends=BACK_ENDS):
    for name, shape in shapes.items():
        for dtype in dtypes:
            for direction in ("forward", "backward") if shape[2] > 1 else ("forward",):
                for back_end in back_ends:
                    if back_end == OWN or may_compute(back_end, shape, dtype):
                        yield name, shape, dtype, direction, back_end


def properties(shape, dtype, direction, back_end):
    """As clmgk-bench names them."""
    names = ("batch", "heads", "length", "length_k", "head_size", "causal")
    return {"variant": "softmax", **dict(zip(names, shape)), "dtype": dtype, "pass": direction, "back_end": back_end}


def measure_attention(shape, dtype, back_end, backward, device, seconds):
    return measure(shape, dtype, back_end, backward, device, seconds), flops(shape, backward)


def other_cases(names, dtypes):
    """(Name, function, type)"""
    return [(f"{name} forward {dtype} {OTHERS[name][1]}", OTHERS[name][0], dtype) for name in names if name in OTHERS
            for dtype in dtypes]


def result(name, device, run, own):
    """`run` returns milliseconds of runs, and the operations of one."""
    answer = {"case": name, **own, "torch": torch.__version__,
              "device": torch.cuda.get_device_name() if device == "cuda" else device}
    try:
        times, operations = run()
    except RuntimeError as refusal:
        return {**answer, "error": str(refusal).splitlines()[0]}
    median = statistics.median(times)
    return {**answer, "ms": median, "min_ms": min(times), "gflops": operations / (median * 1e6)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", help="append the results here")
    parser.add_argument("--table", action="store_true", help="the shapes of the bundle's table")
    parser.add_argument("--own", action="store_true", help="with --table: forward by the library alone")
    parser.add_argument("--profile", choices=PROFILES, help="runs for a profiler, in place of cases")
    parser.add_argument("--shapes", help="some of " + ",".join([*SHAPES, *OTHERS]))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    parser.add_argument("--rehearse", action="store_true", help="a small case, on the CPU where there is no GPU")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not arguments.rehearse:
        print("gpu.py: torch sees no GPU", file=sys.stderr)
        return 3
    if arguments.profile:
        profile(arguments.profile, device, arguments.rehearse)
        return 0
    if not arguments.output:
        parser.error("--output: expected a file")
    known_shapes = TABLE if arguments.table else SHAPES
    names = arguments.shapes.split(",") if arguments.shapes else [*known_shapes, *([] if arguments.own else ["mgk-4096"] if arguments.table else OTHERS)]
    shapes = SMALL if arguments.rehearse else {name: known_shapes[name] for name in names if name in known_shapes}
    dtypes, seconds = arguments.dtypes.split(","), 0.01 if arguments.rehearse else arguments.seconds
    own = (OWN,) if arguments.table and importlib.util.find_spec("clmgk") else ()
    back_ends = own if arguments.own else (*OF_16_BITS, *own) if arguments.table else BACK_ENDS
    runs = [(f"{name} {direction} {dtype} {back_end}", measure_attention,
             (shape, DTYPES[dtype], back_end, direction == "backward", device, seconds),
             properties(shape, dtype, direction, back_end))
            for name, shape, dtype, direction, back_end in cases(shapes, ["bf16"] if arguments.table else dtypes, back_ends)
            if direction == "forward" or not arguments.own]
    runs += [(name, measure_other, (function, DTYPES[dtype], device, seconds, arguments.rehearse), {})
             for name, function, dtype in other_cases(names, dtypes)]
    with open(arguments.output, "a+", encoding="utf-8") as file:
        file.seek(0)
        known = {json.loads(line)["case"] for line in file}
        for name, function, given, own in runs:
            if name not in known:
                answer = result(name, device, functools.partial(function, *given), own)
                rate = "" if "error" in answer else f"{answer['ms']:.3f} ms {answer['gflops']:.0f} GFLOP/s"
                print(f"{answer['case']:48s} {rate or answer['error']}")
                file.write(json.dumps(answer) + "\n")
                file.flush()
                os.fsync(file.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
