# SPDX-License-Identifier: Apache-2.0
"""Attention over the processes of a torch.distributed group, with autograd: import it by name, as torch.distributed is optional in
PyTorch.

Each process has its own queries, with their outputs, and its own keys and values; all queries see the keys of all processes.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._attention import attention as _local_attention

__all__ = ["attention"]

SCHEDULES = ("all-gather",)
# What depends on where a token stands in the whole.
_PLACED = ("causal", "window_left", "window_right", "slopes", "dropout", "noise", "score_mod", "mask_mod")
# What tells keys by their indices, which here are a process's own.
_INDEXED = ("lengths", "offsets", "offsets_k", "bias", "alignment")


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
    schedule : {"all-gather"}
        Each process gets all keys and values. Gradients of keys and values are added up in float32.
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
    lengths = _lengths(k.shape[-2], group)
    whole_k, whole_v = (_Gather.apply(tensor, lengths, group) for tensor in (k, v))
    if positions is not None:
        own = positions if positions_k is None else positions_k
        options.update(positions=positions.int(), positions_k=_gathered(own.int(), own.ndim - 1, lengths, group))
    if options.get("dropout") or options.get("noise") is not None:
        seed = _same_seed(seed, group)
    return _local_attention(q, whole_k, whole_v, return_lse=return_lse, seed=seed, **options)
