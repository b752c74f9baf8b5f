#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time that the Python package adds to a call of the C library, and PyTorch's own attention beside this one.

usage: benchmarks/python.py [--torch] [--repeat N]

NumPy: clmgk.attention and Plan.forward beside the C call that they make (binding_run: buffers over the arrays, the pass, the
wait), on a problem of one small head. PyTorch (--torch): clmgk.torch.attention beside this C call and an empty custom operator,
and forward and backward passes of softmax attention beside torch's. Each figure is the least of N calls, in microseconds or
milliseconds; the calls alternate. Use an idle machine.
"""
import argparse
import time

import numpy as np

import clmgk
from clmgk._library import ffi, lib


def least(functions, repeat):
    """The least time of each function in seconds, in turns."""
    times = [float("inf")] * len(functions)
    for _ in range(repeat):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            times[i] = min(times[i], time.perf_counter() - start)
    return times


def c_call(plan, arrays):
    """The C call of a forward pass, its arguments prepared."""
    pass_, handle = plan._pass("forward"), plan._handle
    pointers = ffi.new("void *[]", [ffi.from_buffer(arrays[slot.name]) if slot.name in arrays else ffi.NULL
                                    for slot in pass_.slots])
    workspace, error, pending = handle.take()

    def call():
        status = lib.binding_run(handle.opened.native, handle.pointer, pass_.native, pointers, 0, 0, workspace, -1, pending, error)
        assert status == lib.CLMGK_OK

    return call


def numpy_overhead(repeat):
    q = np.random.default_rng(1).standard_normal((1, 1, 4, 16), dtype=np.float32)
    o, lse = np.empty_like(q), np.empty((1, 1, 4), np.float32)
    plan = clmgk.Plan(length=4, head_size=16)
    below, function, planned = least([c_call(plan, dict(q=q, k=q, v=q, o=o, lse=lse)), lambda: clmgk.attention(q, q, q),
                                      lambda: plan.forward(q=q, k=q, v=q)], repeat)
    print(f"NumPy: C call {1e6 * below:.1f} us, clmgk.attention +{1e6 * (function - below):.1f} us, "
          f"Plan.forward +{1e6 * (planned - below):.1f} us")


def torch_overhead(repeat):
    import torch

    import clmgk.torch

    @torch.library.custom_op("clmgk_benchmark::nothing", mutates_args=())
    def nothing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(q)

    q = torch.randn(1, 1, 4, 16)
    parameter = torch.nn.Parameter(q)
    plan = clmgk.Plan(length=4, head_size=16)
    arrays = {name: q.numpy() for name in "qkv"} | {"o": np.empty(q.shape, np.float32), "lse": np.empty((1, 1, 4), np.float32)}
    below, empty, ours, tracked = least([c_call(plan, arrays), lambda: nothing(q, q, q), lambda: clmgk.torch.attention(q, q, q),
                                         lambda: clmgk.torch.attention(parameter, q, q)], repeat)
    print(f"PyTorch: empty custom operator {1e6 * empty:.1f} us, clmgk.torch.attention above it and the C call "
          f"+{1e6 * (ours - below - empty):.1f} us, where a gradient is wanted +{1e6 * (tracked - below - empty):.1f} us")


def torch_attention(repeat):
    import torch

    import clmgk.torch
    for name, shape in (("bert-512", (8, 12, 512, 64)), ("N = 4096, D = 32", (1, 8, 4096, 32))):
        inputs = [torch.randn(*shape, requires_grad=True) for _ in range(3)]
        weight = torch.randn(*shape)
        functions = []
        for attention in (clmgk.torch.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention):
            functions.append(lambda attention=attention: attention(*inputs))
            functions.append(lambda attention=attention: torch.autograd.grad(attention(*inputs), inputs, weight))
        for function in functions:
            function()
        times = [1e3 * t for t in least(functions, max(2, repeat // 100))]
        print(f"softmax, {name}: forward {times[0]:.1f} ms (torch {times[2]:.1f}), forward and backward {times[1]:.1f} ms "
              f"(torch {times[3]:.1f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="store_true", help="also PyTorch")
    parser.add_argument("--repeat", type=int, default=1000)
    options = parser.parse_args()
    numpy_overhead(options.repeat)
    if options.torch:
        torch_overhead(options.repeat)
        torch_attention(options.repeat)


if __name__ == "__main__":
    main()
