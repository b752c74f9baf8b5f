# SPDX-License-Identifier: Apache-2.0
"""FlexAttention's interface: scores and masks as Python callables."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from ._attention import attention, check_tensor, mask_blocks, take_scale
from ._operators import is_transformed
from ._trace import Expr, Texts, trace

_LEAST_CLASSIFIED = 4 * 64  # positions: with fewer blocks, classes are not worth their call
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class BlockMask:
    """A mask of `create_block_mask`. It keeps the classes of its blocks for all layers and steps."""

    def __init__(self, mask_mod: Mask, shape: tuple[Optional[int], Optional[int], int, int]) -> None:
        self.mask_mod, self.shape = mask_mod, shape
        self._traced: dict[Any, Expr] = {}
        self._classes: dict[Any, tuple[Any, Tensor]] = {}

    def _trace(self, sizes: tuple[int, int, int, int], device: torch.device) -> Expr:
        if (sizes, device) not in self._traced:
            self._traced[sizes, device] = trace("mask_mod", self.mask_mod, dict(zip("bhij", sizes)), device)
        return self._traced[sizes, device]

    def _classified(self, tensors: list[Tensor], q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Optional[Tensor]:
        """The classes of the blocks, by options of a call; made anew when one of the tensors that the mask reads has changed.
        None: the call classifies by itself, as it does where positions alone decide, and within transforms."""
        sizes = (*q.shape[:3], k.shape[2])
        if not any(tensor.ndim for tensor in tensors) or min(sizes[2:]) < _LEAST_CLASSIFIED or type(q) is not Tensor \
                or q.is_meta or is_transformed() or any(tensor.is_inference() for tensor in tensors):
            return None
        versions = tuple([tensor._version for tensor in tensors])
        found = self._classes.get((sizes, q.device))
        if found is None or found[0] != versions:
            names = self._trace(sizes, q.device).names
            classes = mask_blocks(q, k, v, per_batch="b" in names, per_head="h" in names, **options)
            found = self._classes[sizes, q.device] = versions, classes
        return found[1]


def create_block_mask(mask_mod: Mask, B: Optional[int], H: Optional[int], Q_LEN: int, KV_LEN: int, device: Any = None,
                      BLOCK_SIZE: Any = None, _compile: bool = False) -> BlockMask:
    """Makes a mask for `flex_attention`, as ``torch.nn.attention.flex_attention.create_block_mask``.

    Parameters
    ----------
    mask_mod : callable
        mask_mod(b, h, q_idx, kv_idx): whether a query sees a key. It runs when the mask is made, and for other numbers of
        batches or heads when they come: a change of what it reads needs a new mask. The classes of its blocks (hidden, whole
        or mixed) are made in the first call with the mask, and kept for all layers and steps.
    B, H : int or None
        Batches and query heads; None or 1: any.
    Q_LEN, KV_LEN : int
        Queries and keys.
    device : optional
        Of the tensors that mask_mod reads. Default: the CPU.
    BLOCK_SIZE, _compile
        Without effect: blocks are the library's.

    Raises
    ------
    NotImplementedError
        An operation that texts do not have, by its name.
    TypeError, ValueError
        A result that is no condition without axes.
    """
    mask = BlockMask(mask_mod, (B, H, Q_LEN, KV_LEN))
    mask._trace((B or 1, H or 1, Q_LEN, KV_LEN), torch.device(device or "cpu"))
    return mask


def _from_blocks(mask: Any) -> BlockMask:
    """A mask of PyTorch's, whose lists of blocks hide keys, too: a block of none, or one that is full, has no mask_mod."""
    batch, heads, rows = mask.kv_num_blocks.shape
    tall, wide = mask.BLOCK_SIZE
    columns = max(mask.kv_indices.shape[-1], -(-mask.seq_lengths[1] // wide))
    states = mask.kv_num_blocks.new_zeros((batch, heads, rows, columns + 1))
    for state, count, indices in (1, mask.kv_num_blocks, mask.kv_indices), (2, mask.full_kv_num_blocks, mask.full_kv_indices):
        if count is not None:
            listed = torch.arange(indices.shape[-1], device=count.device) < count[..., None]
            states.scatter_(-1, torch.where(listed, indices, columns).long(), state)

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        state = states[b.clamp(max=batch - 1), h.clamp(max=heads - 1), i // tall, j // wide]
        seen: Tensor = (state == 2) | ((state == 1) & mask.mask_mod(b, h, i, j))
        return seen
    return BlockMask(mask_mod, (*mask.shape[:2], *mask.seq_lengths))


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[Score] = None, block_mask: Any = None,
                   scale: Optional[float] = None, enable_gqa: bool = False, return_lse: bool = False) -> Any:
    """Computes what ``torch.nn.attention.flex_attention.flex_attention`` computes, from the same arguments, on CPUs too, with
    gradients.

    Parameters
    ----------
    query, key, value : Tensor
        [B,H,L,E], [B or 1,G,S,E] and [B or 1,G,S,Ev].
    score_mod : callable, optional
        score_mod(score, b, h, q_idx, kv_idx): the score in the place of ``score``. It runs once a call, on tensors that
        record what is done to them. Tensors that it reads have gradients.
    block_mask : optional
        Of `create_block_mask`, or of PyTorch's, whose lists of blocks count.
    scale : float, optional
        Factor of the scores. Default: 1/√E.
    enable_gqa : bool
        key and value may have fewer heads than query.
    return_lse : bool
        Also returns the log-sum-exp [B,H,L].

    Returns
    -------
    o : Tensor [B,H,L,Ev]
        0 in rows without visible keys.
    lse : Tensor
        With return_lse.

    Raises
    ------
    NotImplementedError
        An operation that texts do not have, by its name; more than 8 captured tensors, or 16 without axes.
    ValueError, TypeError, RuntimeError
        As in `attention`.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
        if tensor.ndim != 4:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}: expected [B,H,L,E]")
    batch, heads, length = query.shape[:3]
    if key.shape[1] != heads and not enable_gqa:
        raise ValueError(f"key: {key.shape[1]} heads: expected query's, {heads}, or enable_gqa=True")
    if key.shape[0] == value.shape[0] == 1 != batch:
        key, value = (tensor.expand(batch, -1, -1, -1).contiguous() for tensor in (key, value))
    sizes = (batch, heads, length, key.shape[2])
    texts = Texts()
    query, options = take_scale(query, scale)
    if score_mod is not None:
        options["score_mod"] = texts.write(trace("score_mod", score_mod, dict(zip("sbhij", (1, *sizes))), query.device), True)
    if block_mask is not None:
        mask = _from_blocks(block_mask) if hasattr(block_mask, "kv_num_blocks") else block_mask
        if mask.shape[2:] != sizes[2:] or any(own not in (None, 1, size) for own, size in zip(mask.shape, sizes)):
            raise ValueError(f"block_mask: of {mask.shape}: expected one of {sizes}, the batches, query heads, queries and keys")
        expr = mask._trace(sizes, query.device)
        options["mask_mod"] = texts.write(expr, False)
    options.update(captures=texts.captures, numbers=texts.numbers)
    if block_mask is not None and block_mask is mask:
        options["mask_blocks"] = mask._classified(expr.tensors, query, key, value, options)
    return attention(query, key, value, return_lse=return_lse, **options)
