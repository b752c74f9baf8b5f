# SPDX-License-Identifier: Apache-2.0
"""Attention over the processes of a torch.distributed group, with autograd: import it by name, as torch.distributed is optional in
PyTorch.

Each process has its own queries, with their outputs, and its own keys and values; all queries see the keys of all processes. The
schedules are libclmgk-dist's, whose bytes the group carries.
"""
from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .._context import Context, Kept
from .._descriptor import describe, validate
from .._library import NULL, begin_call, check, end_call, ffi, from_name, initialised, is_usable, lib, new_error, use_opencl
from .._slots import Pass
from ._attention import _FAMILY, _call, _split, check_tensor, check_tensors
from ._operators import _placeholder, _wanted, context_for, draw_seed, like, prepare, to_string
from ._transport import Transport

__all__ = ["attention"]

# The precision of weights that a result of such a type needs, also where it is float32 until the ring's end.
_WEIGHTS = {torch.bfloat16: "bf16", torch.float16: "tf32"}
SCHEDULES = {"all-gather": lib.CLMGK_DIST_ALL_GATHER, "ring": lib.CLMGK_DIST_RING, "all-to-all": lib.CLMGK_DIST_ALL_TO_ALL}
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int32": torch.int32}
_LAYOUTS = ("q", "k", "v", "o", "grad_o", "grad_q", "grad_k", "grad_v")
_MOST_PLANS = 32  # of a group


def _release(pointer: Any, context: Context) -> None:
    if is_usable():
        lib.clmgk_dist_plan_release(pointer)


class _Plan:
    """A process's plan for tensors of certain shapes, and those of the other processes."""

    def __init__(self, context: Context, transport: Transport, fields: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        use_opencl()
        self._context, self._transport = context, transport
        resolved, desc = validate(fields), describe(fields)
        self._lengths = ffi.new("int64_t[]", options["lengths_k"])
        given = initialised("clmgk_dist_desc")
        given.attention, given.lengths_k = desc, self._lengths
        given.schedule, given.timeout = options["schedule"], options["timeout"]
        choices = initialised("clmgk_plan_options")
        choices.engine = lib.CLMGK_ENGINE_AUTO if options["engine"] == "auto" else from_name("engine", options["engine"])
        out = ffi.new("clmgk_dist_plan **")
        native = context._opened.native
        self._lock = threading.Lock()
        self._call(lib.clmgk_dist_plan_create, native.clmgk, native.queue, given, transport.native, choices, out)
        self._pointer = out[0]
        weakref.finalize(self, _release, self._pointer, context).atexit = False
        self.passes = {name: Pass(resolved, name, True, 0, NULL) for name in ("forward", *(["backward"] if resolved.gradients else []))}

    def _call(self, function: Any, *arguments: Any) -> None:
        error, token = new_error(), begin_call()
        self._transport.failure = None
        try:
            status = function(*arguments, error)
        finally:
            end_call(token)
        failure = self._transport.failure
        if failure is not None and not isinstance(failure, Exception):  # Ctrl-C
            raise failure
        try:
            check(status, error)
        except RuntimeError as exception:
            raise exception from failure

    def run(self, name: str, tensors: Mapping[str, Tensor | None], seed: int) -> dict[str, Tensor]:
        """Runs a pass; its outputs."""
        pass_ = self.passes[name]
        used, outputs = [], {}
        for slot in pass_.slots:
            dtype = _DTYPES[slot.dtype.name]
            tensor = tensors.get(slot.name)
            if slot.is_output:
                tensor = outputs[slot.name] = torch.empty(slot.shape, dtype=dtype)
            elif tensor is not None:
                slot.check_shape(tuple(tensor.shape))
                tensor = tensor.to(dtype).contiguous()
            elif slot.required and slot.bytes > 0:
                raise ValueError(f"{slot.name}: missing: expected it with these options")
            used.append(tensor)
        unused = [given for given, tensor in tensors.items() if tensor is not None and given not in pass_.by_name]
        if name == "forward" and unused:
            raise ValueError(f"{unused[0]}: given, but the problem does not use it")
        addresses = [NULL if tensor is None else ffi.cast("void *", tensor.data_ptr()) for tensor in used]
        with self._lock:
            self._call(lib.binding_run_ranks, self._context._opened.native, self._pointer, pass_.native, addresses, seed)
        return outputs


class _Group(NamedTuple):
    """What is kept for a group."""

    transport: Transport
    plans: Kept


_groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()


def _kept_for(group: Any) -> _Group:
    found = _groups.get(group)
    if found is None:
        found = _groups[group] = _Group(Transport(group), Kept(_MOST_PLANS))
    return found


def _plan_of(group: _Group, context: Context, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any], gradients: str,
             options: Mapping[str, Any]) -> _Plan:
    """The plan for such a call. All processes make the same calls, so they all have it, or none has."""
    shapes = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]
    key = (to_string(scalars), gradients, tuple(options.items()), *shapes)
    found: _Plan | None = group.plans.find(key)
    if found is None:
        storage = {name: like(name, tensors[name]) for name in ("q", "k", "v")}
        extras = {name: _placeholder(name, tensor) for name, tensor in tensors.items() if name not in storage}
        made, fields = _call(storage, extras, dict(scalars), gradients)
        fields = {**made.fields(), **fields}
        for name in _LAYOUTS:  # all dense
            fields.pop(name, None)
        if gradients:
            fields.update(gradients=gradients.split(","), dtype_grad_k="f32", dtype_grad_v="f32")
        if options["schedule"] == lib.CLMGK_DIST_RING:
            fields["dtype_o"] = "f32"
            if {tensors[name].dtype for name in ("q", "k", "v")} == {tensors["q"].dtype} and fields.get("precision", "exact") == "exact":
                fields["precision"] = _WEIGHTS.get(tensors["q"].dtype, "exact")
            fields.update({"dtype_grad_q": "f32"} if gradients else {})
        found = group.plans.keep(key, _Plan(context, group.transport, fields, {**options, "engine": scalars.get("engine", "auto")}))
    return found


class _Attention(torch.autograd.Function):
    """Both passes of a plan, on tensors by these names."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, names: Sequence[str], seed: int, gradients: str, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(names, tensors))
        outputs = plan.run("forward", given, seed)
        ctx.plan, ctx.names, ctx.seed, ctx.gradients = plan, names, seed, gradients.split(",")
        if gradients:
            ctx.save_for_backward(outputs["o"], outputs["lse"], *tensors)
        ctx.set_materialize_grads(False)
        return outputs["o"].to(given["q"].dtype), outputs["lse"].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        o, lse, *tensors = ctx.saved_tensors
        given = dict(zip(ctx.names, tensors))
        grad_o = torch.zeros_like(o) if grads[0] is None else grads[0]
        found = ctx.plan.run("backward", {**given, "o": o, "lse": lse, "grad_o": grad_o, "grad_lse": grads[1]}, ctx.seed)
        ranks = ctx.plan._transport.native.ranks
        gradients = []
        for name in ctx.names:
            gradient = found.get(f"grad_{name}") if name in ctx.gradients else None
            if gradient is not None and name not in ("q", "k", "v"):  # a sum over all processes, which add their shares up
                gradient = gradient / ranks
            gradients.append(None if gradient is None else gradient.to(given[name].dtype))
        return None, None, None, None, *gradients


def attention(q: Tensor, k: Tensor, v: Tensor, group: Any = None, schedule: str = "all-gather",
              positions: Tensor | None = None, positions_k: Tensor | None = None, *, return_lse: bool = False,
              seed: int | None = None, timeout: float = 1800.0, **options: Any) -> Any:
    """Computes attention over the processes of a group; differentiable as ``clmgk.torch.attention``.

    All processes of the group call it at once, with tensors that differ in their numbers of tokens alone. The result is
    that of one process which has all tokens.

    Parameters
    ----------
    q, k, v : Tensor
        The tokens of this process: [B,H,N,D], [B,G,S,D] (MGK: [B,G,M,S,D]) and [B,G,S,E], on the CPU.
    group : ProcessGroup, optional
        A group that sends CPU tensors between two processes, as gloo does. Default: that of all processes.
    schedule : {"all-gather", "ring", "all-to-all"}
        As in ``clmgk/dist.h``. all-gather: each process gets all keys and values. ring: they go from process to process, and
        the next ones come while the last ones are computed. all-to-all: each process computes some of the heads of all
        tokens; not for mixed heads, and with at least one head of v for each process. Gradients of keys and values are added
        up in float32.
    positions, positions_k : Tensor [B,N] and [B,S] of int
        Where the tokens stand in the whole, in any order: required with causal masks, windows, slopes, dropout, noise,
        score_mod and mask_mod. Default of positions_k: positions, for N = S. With packed sequences (offsets, this process's)
        within their sequence.
    return_lse, seed, **options
        As in ``clmgk.torch.attention``, the same in all processes. Without a seed the first process draws it. Arrays that
        tell keys by their indices (lengths, bias, mask_blocks, a prior of keys) are refused.
    timeout : float
        Seconds that the wait for another process may take.

    Returns
    -------
    o : Tensor [B,H,N,E]
    lse : Tensor [B,H,N]
        With return_lse.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in ``clmgk.torch.attention``; RuntimeError also where a process does not take part in time.

    Notes
    -----
    Gradients of other tensors than q, k and v are equal shares of those of the whole: DDP, or the caller, adds them up.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: {schedule!r}: expected {', '.join(SCHEDULES)}")
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise ValueError("group: None: expected torch.distributed.init_process_group before")
    check_tensors(q, k, v)
    if q.ndim == 3:
        results = attention(q[None], k[None], v[None], group, schedule, positions, positions_k, return_lse=True, seed=seed,
                            timeout=timeout, **options)
        return (results[0][0], results[1][0]) if return_lse else results[0][0]
    if positions is not None:
        options.update(positions=positions, positions_k=positions if positions_k is None else positions_k)
    q, k, v = prepare(q, k, v)
    extras, scalars = _split(q, options)
    tensors = {"q": q, "k": k, "v": v, **extras}
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
        if not tensor.is_cpu:
            raise RuntimeError(f"{name}: a tensor on {tensor.device}: expected one on the CPU")
    if not 0 < timeout < 1e9:
        raise ValueError(f"timeout: {timeout}: expected seconds, above 0 and below 1e9")
    own = _kept_for(group)
    drawn = draw_seed(seed, bool(scalars.get("dropout")) or "noise" in extras)
    lengths_q, lengths_k, seeds = zip(*own.transport.share([q.shape[2], k.shape[-2], 0 if drawn is None else int(drawn)], timeout))
    gradients = _wanted(q, k, v, extras)
    plan = _plan_of(own, context_for(q), tensors, scalars, gradients,
                    {"schedule": SCHEDULES[schedule], "timeout": float(timeout), "lengths_q": lengths_q, "lengths_k": lengths_k})
    o, lse = _Attention.apply(plan, tuple(tensors), seeds[0] % 2**64, gradients, *tensors.values())
    return (o, lse) if return_lse else o
