# SPDX-License-Identifier: Apache-2.0
"""Attention on arrays, queues and events of PyOpenCL.

>>> context = clmgk.opencl.adopt(queue.context)
>>> plan = clmgk.Plan(device=context, heads=4, length=1000, head_size=32)
>>> event = clmgk.opencl.forward(plan, queue, q=q, k=k, v=v, o=o)      # arrays on the device; nothing is copied

A call enqueues its pass and returns; it neither waits for the device nor compiles.
"""
from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import pyopencl
import pyopencl.array

from ._context import Context
from ._library import (ARRAYS, GRADIENTS, NULL, begin_call, bits, call, check, check_seed, end_call, ffi, initialised, lib,
                       new_error)
from ._plan import Plan
from ._slots import Slot

__all__ = ["adopt", "append", "backward", "combine", "forward", "mask", "statistics"]


def adopt(context: pyopencl.Context, device: pyopencl.Device | None = None) -> Context:
    """The library's side of an OpenCL context, for the argument `device` of `clmgk.Plan`.

    Parameters
    ----------
    context : pyopencl.Context
        It is retained.
    device : pyopencl.Device, optional
        One of its devices. Default: the first.

    Raises
    ------
    TypeError
        An argument is no object of PyOpenCL.
    ValueError
        The device is not in the context.
    RuntimeError
        The device has no compiler, or its platform is not listed.
    """
    _check_type("context", context, pyopencl.Context)
    if device is not None:
        _check_type("device", device, pyopencl.Device)
    chosen = context.devices[0] if device is None else device
    return Context._adopt(context.int_ptr, chosen.int_ptr)


def _check_type(name: str, value: Any, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{name}: {type(value).__name__}: expected a {expected.__module__.split('.')[0]}.{expected.__name__}")


def _buffer(slot: Slot, array: Any) -> tuple[int, int]:
    """The cl_mem of an array and its offset in elements."""
    if isinstance(array, pyopencl.array.Array):
        if array.dtype != slot.dtype:
            raise TypeError(f"{slot.name}: elements of type {array.dtype}: expected {slot.dtype}")
        slot.check_shape(array.shape)
        if not slot.has_strides(array.strides):
            raise ValueError(f"{slot.name}: strides of {array.strides} bytes: the plan expects {slot.strides}")
        if array.base_data is None:
            return 0, 0
        memory: Any = array.base_data
        return memory.int_ptr, array.offset // slot.dtype.itemsize
    if isinstance(array, pyopencl.MemoryObject):
        return array.int_ptr, 0
    raise TypeError(f"{slot.name}: {type(array).__name__}: expected a pyopencl Array or Buffer")


def _native_events(wait_for: Sequence[pyopencl.Event] | None) -> Any:
    """A C array of events."""
    try:
        events = [] if wait_for is None else list(wait_for)
    except TypeError:
        raise TypeError(f"wait_for: {type(wait_for).__name__}: expected a sequence of pyopencl.Event") from None
    for event in events:
        _check_type("wait_for", event, pyopencl.Event)
    return ffi.new("cl_event[]", [ffi.cast("cl_event", event.int_ptr) for event in events])


def _enqueue(plan: Plan, pass_name: str, queue: pyopencl.CommandQueue, arrays: Mapping[str, Any],
             wait_for: Sequence[pyopencl.Event] | None, seed: int, accumulate: int = 0, parts: int = 0) -> pyopencl.Event:
    _check_type("plan", plan, Plan)
    _check_type("queue", queue, pyopencl.CommandQueue)
    waits = _native_events(wait_for)
    pass_ = plan._pass(pass_name, parts)
    handle = plan._use()
    args = initialised("clmgk_attention_args")
    args.seed, args.accumulate, args.parts = check_seed(seed), accumulate, pass_.parts
    for name, array in arrays.items():
        if name not in ARRAYS or name == "workspace":
            raise TypeError(f"{name}: no such array: expected one of {', '.join(pass_.by_name)}")
        if name not in pass_.by_name:
            raise ValueError(f"{name}: given, but the pass {pass_.name} of this plan does not use it")
        memory, offset = _buffer(pass_.by_name[name], array)
        field = getattr(args, name)
        field.memory, field.offset = ffi.cast("cl_mem", memory), offset
    event, error = ffi.new("cl_event *"), new_error()
    workspace = ffi.new("cl_mem *")
    token = begin_call()
    try:
        if handle.workspace_bytes > 0:
            call(lib.binding_create_buffer, handle.opened.native, handle.workspace_bytes, workspace)
            args.workspace.memory = workspace[0]
        enqueue = getattr(lib, f"clmgk_enqueue_{pass_.name}")
        status = enqueue(handle.pointer, ffi.cast("cl_command_queue", queue.int_ptr), args, len(waits),
                         waits if len(waits) else NULL, event, error)
        if workspace[0] != NULL:  # OpenCL keeps it until the commands that use it have finished
            lib.binding_release_buffer(workspace[0])
    finally:
        end_call(token)
    check(status, error)
    return pyopencl.Event.from_int_ptr(int(ffi.cast("uintptr_t", event[0])), retain=False)


def forward(plan: Plan, queue: pyopencl.CommandQueue, *, wait_for: Sequence[pyopencl.Event] | None = None, seed: int = 0,
            **arrays: Any) -> pyopencl.Event:
    """Enqueues the forward pass.

    Parameters
    ----------
    plan : clmgk.Plan
        Made on `adopt` of the queue's context.
    queue : pyopencl.CommandQueue
        In order or out of order.
    wait_for : sequence of pyopencl.Event, optional
        The pass begins after these.
    seed : int
        Of dropout and noise.
    **arrays : pyopencl.array.Array or pyopencl.Buffer
        Inputs and outputs by their names in C (``clmgk_attention_args``); outputs are not made. An Array's shape, strides
        and element type are checked; a Buffer's size is.

    Returns
    -------
    pyopencl.Event
        Completes with the pass.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        As in `clmgk.Plan.forward`. After ValueError and TypeError nothing was enqueued.
    """
    return _enqueue(plan, "forward", queue, arrays, wait_for, seed)


def backward(plan: Plan, queue: pyopencl.CommandQueue, *, wait_for: Sequence[pyopencl.Event] | None = None,
             seed: int = 0, accumulate: Iterable[str] = (), **arrays: Any) -> pyopencl.Event:
    """Enqueues the backward pass; `accumulate` as in `clmgk.Plan.backward`, else as `forward`."""
    return _enqueue(plan, "backward", queue, arrays, wait_for, seed, bits("accumulate", accumulate, GRADIENTS))


def statistics(plan: Plan, queue: pyopencl.CommandQueue, *, wait_for: Sequence[pyopencl.Event] | None = None,
               seed: int = 0, **arrays: Any) -> pyopencl.Event:
    """Enqueues the statistics, as `forward`."""
    return _enqueue(plan, "statistics", queue, arrays, wait_for, seed)


def mask(plan: Plan, queue: pyopencl.CommandQueue, *, wait_for: Sequence[pyopencl.Event] | None = None,
         **arrays: Any) -> pyopencl.Event:
    """Enqueues the classification of a mask's blocks (`clmgk.Plan.mask`), as `forward`."""
    return _enqueue(plan, "mask", queue, arrays, wait_for, 0)


def append(plan: Plan, queue: pyopencl.CommandQueue, *, wait_for: Sequence[pyopencl.Event] | None = None,
           **arrays: Any) -> pyopencl.Event:
    """Enqueues the writes of new keys and values (`clmgk.Plan.append`), as `forward`."""
    return _enqueue(plan, "append", queue, arrays, wait_for, 0)


def combine(plan: Plan, queue: pyopencl.CommandQueue, *, parts: int,
            wait_for: Sequence[pyopencl.Event] | None = None, **arrays: Any) -> pyopencl.Event:
    """Enqueues the combination of `parts` partial results, as `forward`."""
    return _enqueue(plan, "combine", queue, arrays, wait_for, 0, parts=parts)
