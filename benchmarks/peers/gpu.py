#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention on a GPU, each of its back ends, at the sizes of tools/gpu-check.sh bench: a line of JSON each.

A back end that refuses a case is told in the case's "error". Cases that the file has already are left out.
"""
import argparse
import functools
import json
import os
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {  # batch, heads, N, S, D, whether it is causal, and the number of heads of keys where they are fewer
    "square-64": (1, 8, 4096, 4096, 64, False),
    "square-32": (1, 8, 4096, 4096, 32, False),
    "square-128": (1, 8, 4096, 4096, 128, False),
    "long": (1, 8, 16384, 16384, 64, False),
    "decode-64k": (1, 8, 1, 65536, 64, False),
    "matrix-64": (1, 16, 8192, 8192, 64, False),
    "matrix-64-causal": (1, 16, 8192, 8192, 64, True),
    "matrix-128": (1, 16, 8192, 8192, 128, False),
    "matrix-128-causal": (1, 16, 8192, 8192, 128, True),
    "decode-64k-128": (4, 64, 1, 65536, 128, False, 8),
}
SMALL = {"small": (1, 2, 64, 64, 32, False)}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
BACK_ENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")


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


def measure(shape, dtype, back_end, backward, device, seconds):
    batch, heads, rows, keys, size, causal, *shared = shape
    key_heads = shared[0] if shared else heads
    q, k, v = (torch.randn(batch, h, n, size, device=device, dtype=dtype, requires_grad=backward)
               for h, n in ((heads, rows), (key_heads, keys), (key_heads, keys)))
    grouped = {"enable_gqa": True} if shared else {}
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal, **grouped)
    with sdpa_kernel(getattr(SDPBackend, back_end)):
        if not backward:
            with torch.no_grad():
                return timed(lambda: attend(q, k, v), device, seconds)
        out = attend(q, k, v)
        grad = torch.randn_like(out)
        return timed(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), device, seconds)


def flops(shape, backward):
    batch, heads, rows, keys, size, causal = shape[:6]
    return 4.0 * batch * heads * rows * keys * size * (2.5 if backward else 1) * (0.5 if causal else 1)


def cases(shapes, dtypes):
    for name, shape in shapes.items():
        for dtype in dtypes:
            for direction in ("forward", "backward") if shape[2] > 1 else ("forward",):
                for back_end in BACK_ENDS:
                    if hasattr(SDPBackend, back_end):
                        case = f"{name} {direction} {dtype} {back_end}"
                        yield case, shape, dtype, direction == "backward", back_end


def result(name, shape, dtype, backward, back_end, device, seconds):
    answer = {"case": name, "torch": torch.__version__,
              "device": torch.cuda.get_device_name() if device == "cuda" else device}
    try:
        times = measure(shape, DTYPES[dtype], back_end, backward, device, seconds)
    except RuntimeError as refusal:
        return {**answer, "error": str(refusal).splitlines()[0]}
    median = statistics.median(times)
    return {**answer, "ms": median, "min_ms": min(times), "gflops": flops(shape, backward) / (median * 1e6)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", required=True, help="append the results here")
    parser.add_argument("--shapes", help="some of " + ",".join(SHAPES))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    parser.add_argument("--rehearse", action="store_true", help="a small case, on the CPU where there is no GPU")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not arguments.rehearse:
        print("gpu.py: torch sees no GPU", file=sys.stderr)
        return 3
    names = arguments.shapes.split(",") if arguments.shapes else SHAPES
    shapes = SMALL if arguments.rehearse else {name: SHAPES[name] for name in names}
    with open(arguments.output, "a+", encoding="utf-8") as file:
        file.seek(0)
        known = {json.loads(line)["case"] for line in file}
        for case in cases(shapes, arguments.dtypes.split(",")):
            if case[0] not in known:
                answer = result(*case, device, 0.01 if arguments.rehearse else arguments.seconds)
                rate = "" if "error" in answer else f"{answer['ms']:.3f} ms {answer['gflops']:.0f} GFLOP/s"
                print(f"{answer['case']:48s} {rate or answer['error']}")
                file.write(json.dumps(answer) + "\n")
                file.flush()
                os.fsync(file.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
