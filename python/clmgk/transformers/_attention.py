# SPDX-License-Identifier: Apache-2.0
"""The functions that transformers calls for attention, and for its masks."""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from ..torch import attention
from ..torch._attention import as_numbers, check_mask

NAME = "clmgk"  # of the implementation, and of a module's parameters of a variant


class Mask(Tensor):
    """A mask [B,1,N,S] that is written out only if an operation reads it: as transformers' eager attention adds it.

    Parameters
    ----------
    options : mapping
        Of `clmgk.torch.attention`, in the place of the mask.
    write : callable
        Makes the tensor.
    shape, dtype, device
        Of the tensor.
    """

    @staticmethod
    def __new__(cls, options: dict[str, Any], write: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype,
                device: torch.device | str) -> Mask:
        made: Mask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=torch.device(device))
        made._options, made._write, made._written = options, write, None
        return made

    _options: dict[str, Any]
    _write: Callable[[], Tensor]
    _written: Tensor | None

    def written(self) -> Tensor:
        """The tensor. It stands for the options from now on, because it may be changed in place."""
        if self._written is None:
            self._written = self._write()
        return self._written

    def as_options(self) -> dict[str, Any]:
        return dict(self._options) if self._written is None else {"bias": self._written}

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = tree_map_only(Mask, Mask.written, (args, kwargs or {}))
        return function(*args, **kwargs)


def _window(function: Any) -> tuple[int | None, int | None] | None:
    """The numbers of keys before and after a query's own that one of transformers' mask functions shows (None: all); None
    for functions that show something else."""
    if function is masking_utils.causal_mask_function:
        return None, 0
    if function is masking_utils.bidirectional_mask_function:
        return None, None
    code = getattr(function, "__code__", None)
    if code is None or function.__module__ != masking_utils.__name__:
        return None
    captured = dict(zip(code.co_freevars, [cell.cell_contents for cell in function.__closure__ or ()]))
    maker, size = function.__qualname__.partition(".")[0], captured.get("sliding_window")
    if maker == "and_masks":
        parts = [_window(part) for part in captured["mask_functions"]]
        known = [part for part in parts if part is not None]
        sides = [[side for side in of_all if side is not None] for of_all in zip(*known)]
        return (min(sides[0], default=None), min(sides[1], default=None)) if len(known) == len(parts) > 0 else None
    if not isinstance(size, int) or size < 1:
        return None
    return {"sliding_window_overlay": (size - 1, None), "sliding_window_bidirectional_overlay": (size, size)}.get(maker)


def _options(window: tuple[int | None, int | None], padding: Tensor | None, lengths: tuple[int, int],
             shift: int) -> dict[str, Any]:
    """The options for a window and a padding mask [B,S], where query i is at the place of key i + shift."""
    options: dict[str, Any] = {"alignment": "bottom-right" if shift == lengths[1] - lengths[0] else "top-left"}
    left, right = window
    if left is not None and left < lengths[1] - 1:
        options["window_left"] = left
    if right == 0:
        options["causal"] = shift < lengths[1] - 1  # else all keys are before the first query
    elif right is not None:
        options["window_right"] = right
    if padding is not None and not bool(padding.all()):
        options["bias"] = as_numbers(padding)[:, None, None]
    return options


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
                   mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
                   attention_mask: Tensor | None = None, dtype: torch.dtype = torch.float32,
                   device: torch.device | str = "cpu", use_vmap: bool = False, **kwargs: Any) -> Tensor:
    """Makes a mask for `attention_forward`, from the arguments of transformers' mask functions.

    Causal masks and windows, with or without padding, take memory in proportion to S; others are a tensor [B,1,N,S]. In both
    forms models may add the mask to their scores.
    """
    def write() -> Tensor:
        mask: Tensor = masking_utils.eager_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, dtype=dtype, device=device, use_vmap=use_vmap)
        return mask

    window = None if use_vmap else _window(mask_function)
    if window is None or is_tracing():
        return write()
    shift = int(q_offset) - kv_offset
    if shift not in (0, kv_length - q_length):
        return write()
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset:kv_offset + kv_length].bool()
    options = _options(window, padding, (q_length, kv_length), shift)
    return Mask(options, write, (batch_size, 1, q_length, kv_length), dtype, device)


def _own_mask(module: nn.Module, mask: Tensor | None, lengths: tuple[int, int], is_causal: bool | None,
              sliding_window: int | None) -> dict[str, Any]:
    """The options for a mask that is not of `attention_mask`, or for none: then the module says whether it is causal."""
    if mask is not None:
        return {"bias": check_mask("attention_mask", mask, (*mask.shape[:-2], *lengths))}
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal) or lengths[0] == 1:
        return {}
    window = (None if sliding_window is None else sliding_window - 1, 0)
    return _options(window, None, lengths, shift=0)  # more keys than queries: places of a cache that are still empty


def attention_forward(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                      dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
                      sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
                      position_bias: Tensor | None = None, **kwargs: Any) -> tuple[Tensor, None]:
    """Computes a module's attention, from the arguments of transformers' attention functions.

    Parameters
    ----------
    module : Module
        The attention; `clmgk.transformers.replace` gave it a variant, or else it is softmax.
    query, key, value : Tensor
        [B,H,N,D], [B,G,S,D] and [B,G,S,E].
    attention_mask : Tensor, optional
        Of `attention_mask`, or a mask that broadcasts to [B,H,N,S]: True takes part (bool), or is added (float).
    dropout, scaling, is_causal, sliding_window, softcap, s_aux (sinks), position_bias
        As for the models' eager attention.

    Returns
    -------
    tuple of Tensor and None
        [B,N,H,E], 0 in rows without visible keys; weights are not stored.

    Raises
    ------
    NotImplementedError
        Weights are asked for; packed sequences without a mask.
    ValueError, TypeError, RuntimeError
        As in `clmgk.torch.attention`.
    """
    if kwargs.get("output_attentions"):
        raise NotImplementedError('output_attentions: the weights are not stored: expected attn_implementation="eager"')
    if attention_mask is None and kwargs.get("cu_seq_lens_q") is not None:
        raise NotImplementedError("cu_seq_lens_q: packed sequences without a mask: expected position_ids, from which the model "
                                  "makes the mask")
    lengths = (query.shape[2], key.shape[2])
    options = attention_mask.as_options() if isinstance(attention_mask, Mask) \
        else _own_mask(module, attention_mask, lengths, is_causal, sliding_window)
    if position_bias is not None:
        options["bias"] = position_bias + as_numbers(options["bias"]) if "bias" in options else position_bias
    options.update(scale=scaling, softcap=softcap or 0.0, sinks=None if s_aux is None else s_aux.reshape(-1), dropout=dropout)
    swapped = module._modules.get(NAME)
    if swapped is not None:
        query, key, options = swapped(query, key, options)
    return attention(query, key, value, **options).transpose(1, 2).contiguous(), None
