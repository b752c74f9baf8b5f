# SPDX-License-Identifier: Apache-2.0
"""Passes on CUDA tensors: on their memory, and on torch's current stream."""
from __future__ import annotations

import functools
from typing import Sequence

import torch

from .._context import Context, context_of
from .._library import begin_call, call, check, end_call, ffi, initialised, lib, new_error, use_opencl
from .._plan import Plan
from .._slots import Pass


@functools.lru_cache(maxsize=None)
def context_of_number(number: int) -> Context:
    """The OpenCL device that is CUDA's device `number`."""
    use_opencl()
    info = initialised("clmgk_device_info")
    call(lib.clmgk_get_cuda_device_info, number, info)
    return context_of(f"{info.platform_index}:{info.device_index}")


def prepare(plan: Plan) -> None:
    """Loads the plan's programs in CUDA."""
    token = begin_call()
    try:
        call(lib.clmgk_plan_prepare_cuda, plan._use().pointer)
    finally:
        end_call(token)


def run(plan: Plan, pass_: Pass, device: torch.device, addresses: Sequence[int], seed: int) -> None:
    """Enqueues a pass on memory at these addresses, in the order of ``pass_.slots``; 0: no array."""
    handle = plan._use()
    args = initialised("clmgk_cuda_args")
    args.seed, args.sizes = seed, pass_.sizes
    for slot, address in zip(pass_.slots, addresses):
        setattr(args, slot.name, address)
    # torch uses the memory again for work of this stream alone, which is behind the pass.
    workspace = torch.empty(handle.workspace_bytes, dtype=torch.uint8, device=device)
    args.workspace = workspace.data_ptr()
    stream = ffi.cast("clmgk_cuda_stream", torch.cuda.current_stream(device).cuda_stream)
    error = new_error()
    token = begin_call()
    try:
        status = getattr(lib, f"clmgk_enqueue_{pass_.name}_cuda")(handle.pointer, stream, args, error)
    finally:
        end_call(token)
    check(status, error)
