# SPDX-License-Identifier: Apache-2.0
"""Attention over the processes of a torch.distributed group, with autograd: import it by name, as torch.distributed is optional in
PyTorch.

Each process has its own queries, with their outputs, and its own keys and values; all queries see the keys of all processes.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._attention import attention as _local_attention

__all__ = ["attention"]

SCHEDULES = ("all-gather", "ring", "all-to-all")
# What depends on where a token stands in the whole.
_PLACED = ("causal", "window_left", "window_right", "slopes", "dropout", "noise", "score_mod", "mask_mod")
# What tells keys by their indices, which here are a process's own.
_INDEXED = ("lengths", "offsets", "offsets_k", "bias", "alignment")
# Arrays with a row for each head, which all-to-all takes apart.
_BY_HEAD = ("slopes", "sinks", "shift", "prior", "variance")


def _lengths(tokens: int, group: Any) -> list[int]:
    """Each process's number of tokens."""
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, torch.tensor([tokens]), group=group)
    return [int(length) for length in found]


def _gathered(tensor: Tensor, axis: int, lengths: list[int], group: Any) -> Tensor:
    """The processes' tensors, one after the other along an axis. They travel with the longest one's length."""
    most = max(lengths)
    own = tensor.new_zeros((*tensor.shape[:axis], most, *tensor.shape[axis + 1:]))
    own.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    found = [torch.empty_like(own) for _ in lengths]
    dist.all_gather(found, own, group=group)
    return torch.cat([part.narrow(axis, 0, length) for part, length in zip(found, lengths)], axis)


class _Gather(torch.autograd.Function):
    """All keys or values, in float32 where they have a gradient: those of all processes then are added up in float32."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, lengths: list[int], group: Any) -> Tensor:
        ctx.lengths, ctx.group, ctx.dtype = lengths, group, tensor.dtype
        whole = _gathered(tensor, tensor.ndim - 2, lengths, group)
        return whole.float() if ctx.needs_input_grad[0] else whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rank = dist.get_rank(ctx.group)
        grad = grads[0]
        axis, most = grad.ndim - 2, max(ctx.lengths)
        sent = []
        for part in grad.float().split(ctx.lengths, axis):
            padded = part.new_zeros((*part.shape[:axis], most, *part.shape[axis + 1:]))
            padded.narrow(axis, 0, part.shape[axis]).copy_(part)
            sent.append(padded)
        total = None  # in the processes' order, so that all runs have the same bits
        for owner, part in enumerate(sent):
            found = [torch.empty_like(part) for _ in sent] if owner == rank else None
            dist.gather(part, found, dist.get_global_rank(ctx.group, owner) if ctx.group is not None else owner, group=ctx.group)
            if found is not None:
                total = found[0]
                for other in found[1:]:
                    total = total + other
        assert total is not None
        return total.narrow(axis, 0, ctx.lengths[rank]).to(ctx.dtype), None, None


def _global(rank: int, group: Any) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


def _begin(sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], group: Any) -> list[Any]:
    """Begins to send tensors to processes, and to receive from them. Tensors without elements stay where they are."""
    operations = [dist.P2POp(dist.isend, tensor, _global(to, group), group) for to, tensor in sends if tensor.numel()]
    operations += [dist.P2POp(dist.irecv, tensor, _global(source, group), group) for source, tensor in receives if tensor.numel()]
    return dist.batch_isend_irecv(operations) if operations else []


def _finish(works: list[Any]) -> None:
    for work in works:
        work.wait()
    works.clear()


class _Turn(torch.autograd.Function):
    """Keys and values go to the next process, and those of the one before come, of ``tokens`` tokens, in the types ``wire``: they are
    there when the caller has waited for ``works``. Their gradients go back, in float32."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, tokens: int, wire: tuple[torch.dtype, ...], works: list[Any],
                group: Any) -> tuple[Tensor, ...]:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        ctx.shapes, ctx.group = (k.shape, v.shape), group
        sent = [tensor.to(dtype).contiguous() for tensor, dtype in zip((k, v), wire)]
        coming = tuple(tensor.new_empty((*tensor.shape[:-2], tokens, tensor.shape[-1])) for tensor in sent)
        works += _begin([((rank + 1) % ranks, tensor) for tensor in sent], [((rank - 1) % ranks, tensor) for tensor in coming], group)
        works += [_Kept(sent)]
        return coming

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rank, ranks = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        own = [grads[0].new_empty(shape, dtype=torch.float32) for shape in ctx.shapes]
        sent = [grad.float().contiguous() for grad in grads]
        _finish(_begin([((rank - 1) % ranks, tensor) for tensor in sent], [((rank + 1) % ranks, tensor) for tensor in own], ctx.group))
        return (*own, None, None, None, None)


class _Kept:
    """Keeps tensors until they are sent."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors

    def wait(self) -> None:
        self.tensors = ()


def _merged(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The attention over all keys, of those over parts of them; rows without keys are 0 and -inf."""
    lse = torch.stack([part[1] for part in parts])
    top = lse.detach().amax(0)
    top = torch.where(top.isinf(), torch.zeros_like(top), top)
    weights = (lse - top).exp()
    total = weights.sum(0)
    some = total > 0
    total = torch.where(some, total, torch.ones_like(total))
    o = torch.stack([weight[..., None] * part[0] for weight, part in zip(weights, parts)]).sum(0) / total[..., None]
    return o, torch.where(some, top + total.log(), torch.full_like(top, -torch.inf))


def _ring(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], group: Any, seed: int | None,
          options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Keys and values go around, and are computed while the next ones come; all results are float32."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    wire = (k.dtype, v.dtype)
    whole, sinks = options.pop("positions_k", None), options.pop("sinks", None)
    positions = None if whole is None else whole.split(lengths, -1)
    parts: list[tuple[Tensor, Tensor]] = []
    works: list[Any] = []
    now = (k.float(), v.float())
    for step in range(ranks):
        owner = (rank - step) % ranks
        coming = None
        if step + 1 < ranks:
            coming = _Turn.apply(*now, lengths[(owner - 1) % ranks], wire, works, group)
        own = dict(options)
        if positions is not None:
            own["positions_k"] = positions[owner].contiguous()
        if lengths[owner] and sinks is not None:  # they count once
            own["sinks"], sinks = sinks, None
        parts.append(_local_attention(q.float(), now[0].float(), now[1].float(), return_lse=True, seed=seed, **own))
        _finish(works)
        now = coming if coming is not None else now
    o, lse = _merged(parts)
    return o.to(q.dtype), lse


def _shares(heads: int, ranks: int) -> list[int]:
    return [heads * (r + 1) // ranks - heads * r // ranks for r in range(ranks)]


def _exchanged(tensor: Tensor, cut: tuple[int, list[int]], join: tuple[int, list[int]], group: Any) -> Tensor:
    """Sends each process its part along the axis of ``cut``, and joins what comes along that of ``join``."""
    rank = dist.get_rank(group)
    sent = [part.contiguous() for part in tensor.split(cut[1], cut[0])]
    shape = list(tensor.shape)
    shape[cut[0]] = cut[1][rank]
    coming = []
    for size in join[1]:
        shape[join[0]] = size
        coming.append(tensor.new_empty(shape))
    coming[rank] = sent[rank]
    others = [r for r in range(len(sent)) if r != rank]
    _finish(_begin([(r, sent[r]) for r in others], [(r, coming[r]) for r in others], group))
    return torch.cat(coming, join[0])


class _Exchange(torch.autograd.Function):
    """``_exchanged``; gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, cut: tuple[int, list[int]], join: tuple[int, list[int]], group: Any) -> Tensor:
        ctx.cut, ctx.join, ctx.group = cut, join, group
        return _exchanged(tensor, cut, join, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _exchanged(grads[0], ctx.join, ctx.cut, ctx.group), None, None, None


def _all_to_all(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], lengths_q: list[int], group: Any, seed: int | None,
                options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Each process computes some of the heads, of all tokens."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    groups, ratio = _shares(v.shape[1], ranks), q.shape[1] // v.shape[1]
    heads = [count * ratio for count in groups]
    first = sum(heads[:rank])
    own = {name: value[first:first + heads[rank]] if name in _BY_HEAD and isinstance(value, Tensor) and value.shape[:1] == q.shape[1:2]
           else value for name, value in options.items()}
    whole = [_Exchange.apply(tensor, (1, parts), (tensor.ndim - 2, tokens), group)
             for tensor, parts, tokens in ((q, heads, lengths_q), (k, groups, lengths), (v, groups, lengths))]
    o, lse = _local_attention(*whole, return_lse=True, seed=seed, **own)
    return _Exchange.apply(o, (2, lengths_q), (1, heads), group), _Exchange.apply(lse, (2, lengths_q), (1, heads), group)


def _check_heads(q: Tensor, k: Tensor, v: Tensor, group: Any, options: dict[str, Any]) -> None:
    if q.ndim != 4:
        raise ValueError(f"q: {q.ndim} axes: expected [B,H,N,D] with the schedule all-to-all")
    if k.shape[1] != v.shape[1] or options.get("mix") is not None:
        raise NotImplementedError("variant: its heads are mixed: not with the schedule all-to-all")
    if v.shape[1] < dist.get_world_size(group):
        raise ValueError(f"v: {v.shape[1]} heads: expected one for each process with the schedule all-to-all")
    if options.get("dropout"):
        raise NotImplementedError("dropout: not with the schedule all-to-all: its random numbers are of a call's own heads")
    for name in ("score_mod", "mask_mod"):
        if re.search(r"\bh\b", options.get(name) or ""):
            raise NotImplementedError(f"{name}: it reads h: not with the schedule all-to-all")


def _same_seed(seed: int | None, group: Any) -> int:
    """The seed of all processes: drawn by the first one."""
    drawn = torch.randint(2**62, (1,)) if seed is None else torch.tensor([seed])
    dist.broadcast(drawn, dist.get_global_rank(group, 0) if group is not None else 0, group=group)
    return int(drawn)


def attention(q: Tensor, k: Tensor, v: Tensor, group: Any = None, schedule: str = "all-gather",
              positions: Tensor | None = None, positions_k: Tensor | None = None, *, return_lse: bool = False,
              seed: int | None = None, **options: Any) -> Any:
    """Computes attention over the processes of a group; differentiable as ``clmgk.torch.attention``.

    All processes of the group call it at once, with tensors that differ in their numbers of tokens alone. The result is
    that of one process which has all tokens.

    Parameters
    ----------
    q, k, v : Tensor
        The tokens of this process: [B,H,N,D], [B,G,S,D] (MGK: [B,G,M,S,D]) and [B,G,S,E], on the CPU.
    group : ProcessGroup, optional
        A group of the backend gloo. Default: that of all processes.
    schedule : {"all-gather", "ring", "all-to-all"}
        all-gather: each process gets all keys and values. ring: they go from process to process, and the next ones come
        while the last ones are computed, in float32. all-to-all: each process computes some of the heads of all tokens;
        not for mixed heads and dropout, and with at least one head of v for each process. Gradients of keys and values
        are added up in float32.
    positions, positions_k : Tensor [B,N] and [B,S] of int
        Where the tokens stand in the whole, in any order: required with causal masks, windows, slopes, dropout, noise,
        score_mod and mask_mod. Default of positions_k: positions, for N = S.
    return_lse, seed, **options
        As in ``clmgk.torch.attention``, the same in all processes. Without a seed the first process draws it. Arrays and
        modes that tell keys by their indices (lengths, offsets, bias, alignment) are refused.

    Returns
    -------
    o : Tensor [B,H,N,E]
    lse : Tensor [B,H,N]
        With return_lse.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in ``clmgk.torch.attention``; RuntimeError also where a process does not take part within the group's timeout.
        Gradients of other tensors than q, k and v are of this process's queries alone: DDP, or the caller, adds them up.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: {schedule!r}: expected {', '.join(SCHEDULES)}")
    for name in _INDEXED:
        if options.get(name) is not None:
            raise NotImplementedError(f"{name}: not over several processes: it tells keys by their indices")
    if positions is None and any(options.get(name) for name in _PLACED if not isinstance(options.get(name), Tensor)):
        raise ValueError(f"positions: None: expected those of the tokens with {', '.join(_PLACED)}")
    if positions is None and any(isinstance(options.get(name), Tensor) for name in _PLACED):
        raise ValueError("positions: None: expected those of the tokens with slopes and noise")
    if schedule == "all-to-all":
        _check_heads(q, k, v, group, options)
    if schedule == "ring" and options.get("mix_after") is not None:
        raise NotImplementedError("mix_after: not with the schedule ring: its heads have no log-sum-exp of their own")
    lengths, lengths_q = _lengths(k.shape[-2], group), _lengths(q.shape[-2], group)
    if options.get("dropout") or options.get("noise") is not None:
        seed = _same_seed(seed, group)
    if positions is not None:
        own = positions if positions_k is None else positions_k
        options.update(positions=positions.int(), positions_k=_gathered(own.int(), own.ndim - 1, lengths, group))
    if schedule == "ring":
        o, lse = _ring(q, k, v, lengths, group, seed, options)
    elif schedule == "all-to-all":
        if positions is not None:
            options["positions"] = _gathered(positions.int(), positions.ndim - 1, lengths_q, group)
        o, lse = _all_to_all(q, k, v, lengths, lengths_q, group, seed, options)
    else:
        whole_k, whole_v = (_Gather.apply(tensor, lengths, group) for tensor in (k, v))
        return _local_attention(q, whole_k, whole_v, return_lse=return_lse, seed=seed, **options)
    return (o, lse) if return_lse else o
