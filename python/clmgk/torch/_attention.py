# SPDX-License-Identifier: Apache-2.0
"""Attention on PyTorch's tensors."""
from __future__ import annotations

import math
from typing import Any, Container, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from .._functions import check_mask_call, class_fields
from .._options import MOST_CAPTURES, OPTIONS, Call, block_size, mapping, scalar
from .._slots import Array
from ._operators import INTEGERS, Family, Inputs, cache_types, check_devices, check_dtype, draw_seed, like, prepare


def _keeps_low(gradients: str, extras: Container[str]) -> bool:
    """Whether a call keeps lse_low for its gradients: a bias that masks by a huge number makes |L| so large that they need
    the part that L's float leaves out."""
    return bool(gradients) and "bias" in extras


def _outputs(x: Inputs) -> dict[str, Tensor]:
    after = x.extras.get("mix_after")
    heads = x.heads if after is None or after.ndim != 2 else after.shape[1]
    rows = (x.q.shape[0], heads, x.q.shape[2])
    return {"o": x.new_o(), "lse": x.new(*rows), "lse_low": x.new(*rows) if _keeps_low(x.gradients, x.extras) else x.new(0)}


def _call(storage: dict[str, Array], extras: dict[str, Array], options: dict[str, Any],
          gradients: str) -> tuple[Call, dict[str, Any]]:
    fields = {"use_lse_low": True} if _keeps_low(gradients, extras) else {}
    captures, numbers = options.pop("captures", ()), options.pop("numbers", ())
    named = {"captures": {name: extras.pop(f"capture_{place}") for place, name in enumerate(captures)},
             "numbers": dict.fromkeys(numbers, 0.0)}
    extras.pop("numbers", None)
    return Call(storage, {**options, **extras, **named}, linear=False), fields


_FAMILY = Family(
    "attention", variant="softmax", saved=("o", "lse", "lse_low"),
    upstream={"o": "grad_o", "lse": "grad_lse", "lse_low": None},
    extras=("prior", "variance", "shift", "lengths", "lengths_q", "offsets", "offsets_k", "positions", "positions_k",
            "page_table", "page_offsets", "last_page", "scale_k", "scale_v", "bias", "slopes", "sinks", "mix", "mix_weight",
            "mix_offset", "mix_hidden_offset", "mix_after", "noise", *[f"capture_{place}" for place in range(MOST_CAPTURES)],
            "numbers", "mask_blocks"),
    outputs=_outputs, call=_call)
_STRIDED = torch.strided


def check_tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: {type(tensor).__name__}: expected a tensor")
    if not tensor.is_cpu and tensor.device.type not in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"{name}: a tensor on {tensor.device}: clmgk.torch computes on CPU and CUDA tensors: copy it by "
                           f"{name}.cpu()")
    if tensor.layout is not _STRIDED or tensor.is_nested:
        raise TypeError(f"{name}: a {'nested' if tensor.is_nested else 'sparse'} tensor: expected a dense one")
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        raise NotImplementedError(f"{name}: clmgk.torch has no derivatives in forward mode: expected a tensor without a tangent")


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    check_tensor("q", q)
    check_tensor("k", k)
    check_tensor("v", v)
    if q.ndim != 4 or v.ndim != 4:
        for name, tensor in (("q", q), ("v", v)):
            if not 3 <= tensor.ndim <= 4:
                raise ValueError(f"{name}: shape {tuple(tensor.shape)}: expected [B,H,N,D], or all tensors without B")


def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, seed: int | None = None,
              **options: Any) -> Any:
    """Computes attention of any variant but the linear ones; differentiable in every tensor of floating-point numbers.

    Parameters
    ----------
    q, k, v : Tensor
        As in ``clmgk.attention``: [B,H,N,D], [B,G,S,D] (MGK: [B,G,M,S,D]) and [B,G,S,E], or all without B; float32,
        float16 or bfloat16, k and v for inference also float8_e4m3fn, float8_e5m2 or int8 (scale_k, scale_v); on the CPU, or
        all tensors of the call on one CUDA device, an NVIDIA GPU, where the call enqueues its work on torch's current
        stream. Under autocast they are converted to its type.
    return_lse : bool
        Also returns the log-sum-exp [B,H,N], which has a gradient too.
    seed : int, optional
        Of dropout and noise. Default: drawn from PyTorch's generator (``torch.manual_seed``).
    **options
        As in ``clmgk.attention``, with tensors in the place of arrays (variance: a number or a tensor). Tensors that are
        no int32 or float32 are converted.

    Returns
    -------
    o : Tensor [B,H,N,E]
        Of q's element type.
    lse : Tensor
        With return_lse.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in ``clmgk.attention``. RuntimeError also for tensors on several or other devices, and for a gradient of a
        gradient; RuntimeError or NotImplementedError for CUDA tensors on a machine without NVIDIA's OpenCL driver.
    """
    check_tensors(q, k, v)
    if q.ndim == 3:
        results = attention(q[None], k[None], v[None], return_lse=True, seed=seed, **options)
        return (results[0][0], results[1][0]) if return_lse else results[0][0]
    q, k, v = prepare(q, k, v)
    extras, scalars = _split(q, options) if options else ({}, {})
    scalars.update(cache_types(k, v))
    for name, tensor in (("scale_k", k), ("scale_v", v)):
        if name in extras:
            extras[name] = _repeated(name, extras[name], tensor.shape[:-1])
    for axis, size in ((2, q.shape[2]), (3, k.shape[-2])) if "bias" in extras else ():  # C has no axes of size 0
        if size == 0 and extras["bias"].shape[axis:axis + 1] == (0,):
            extras["bias"] = extras["bias"].sum(axis, keepdim=True)
    drawn = draw_seed(seed, bool(scalars.get("dropout")) or "noise" in extras)
    o, lse, _ = _FAMILY(q, k, v, scalars, extras, drawn)
    return (o, lse) if return_lse else o


def mask_blocks(q: Tensor, k: Tensor, v: Tensor, *, per_batch: bool = True, per_head: bool = True, **options: Any) -> Tensor:
    """Classifies the blocks of a mask_mod, as ``clmgk.mask_blocks``: a tensor for the argument `mask_blocks` of `attention`, once
    for all layers and steps with the same mask, captures and numbers. torch.compile's graphs do not contain it."""
    check_tensors(q, k, v)
    if q.ndim == 3:
        q, k, v = q[None], k[None], v[None]
    q, k, v = prepare(q, k, v)
    extras, scalars = _split(q, options)
    check_mask_call(scalars, extras)
    return _FAMILY.classify(q, k, v, scalars, extras, dict(class_fields(per_batch, per_head)))


def reads_outside(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> int:
    """Counts the reads of score_mod and mask_mod outside of their arrays, as ``clmgk.reads_outside``: on the host, and slowly."""
    check_tensors(q, k, v)
    if q.ndim == 3:
        q, k, v = q[None], k[None], v[None]
    q, k, v = prepare(q, k, v)
    extras, scalars = _split(q, options)
    arrays = {name: (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().numpy()
              for name, tensor in extras.items()}
    storage = {name: like(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v))}
    made, _ = _call(storage, dict(arrays), dict(scalars), "")
    if "numbers" in arrays:
        made.arrays["numbers"] = arrays["numbers"]
    return made.reads_outside()


def _split(q: Tensor, options: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and other options of attention, with those that a text reads."""
    captures, numbers, block = (options.pop(name, None) for name in ("captures", "numbers", "mask_block"))
    extras, scalars = split(options, _FAMILY, OPTIONS)
    if captures:
        extras.update(_captured(captures))
        scalars["captures"] = tuple(captures)
    if numbers:
        extras["numbers"] = _numbers(numbers, q)
        scalars["numbers"] = tuple(numbers)
    if block is not None:
        scalars["mask_block"] = block_size(block)
    return extras, scalars


def split(options: Mapping[str, Any], family: Family, allowed: frozenset[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors as the library takes them, and the other options."""
    extras, scalars = {}, {}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, Tensor) and name in family.extras and (value.ndim > 0 or name != "variance"):
            extras[name] = _extra(name, value)
        elif name in family.extras and name != "variance":
            raise TypeError(f"{name}: {type(value).__name__}: expected a tensor")
        elif name in allowed and name not in ("seed", "device"):
            scalars[name] = value if type(value) in (bool, int, str) else _number(name, value)
        else:
            raise TypeError(f"unexpected argument {name!r}: expected one of {', '.join(sorted(allowed - {'device'}))}")
    return extras, scalars


def _extra(name: str, tensor: Tensor) -> Tensor:
    """A tensor of parameters as the library takes it: dense, f32 or int32."""
    check_tensor(name, tensor)
    if name in INTEGERS:
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            raise TypeError(f"{name}: a tensor of {tensor.dtype}: expected integers")
        if tensor.dtype == torch.int64:  # numbers beyond int32 must not wrap around: kernels take them as beyond the axis
            tensor = tensor.clamp(-2**31, 2**31 - 1)
        return tensor.to(torch.int32).contiguous()
    if not tensor.is_floating_point() and not (name == "bias" and tensor.dtype == torch.bool):
        raise TypeError(f"{name}: a tensor of {tensor.dtype}: expected floating-point numbers")
    if name == "bias":
        tensor = as_numbers(once(tensor))
        tensor = tensor.reshape((1,) * (4 - tensor.ndim) + tuple(tensor.shape))
    return tensor.float().contiguous()


def _repeated(name: str, scales: Tensor, rows: torch.Size) -> Tensor:
    """Scales of all rows, with strides of 0 where they repeat."""
    try:
        return scales.expand(rows)
    except RuntimeError:
        raise ValueError(f"{name}: shape {tuple(scales.shape)}: expected {tuple(rows)}, or axes of size 1, or none, in their "
                         "place") from None


def _captured(captures: Any) -> dict[str, Tensor]:
    """The tensors that a text reads, as the library takes them: dense; of floats, or int32. Those with a gradient are f32, as
    it is."""
    given = mapping("captures", captures)
    if len(given) > MOST_CAPTURES:
        raise ValueError(f"captures: {len(given)} tensors: expected at most {MOST_CAPTURES}")
    extras = {}
    for place, (own, tensor) in enumerate(given.items()):
        name = f"captures[{own!r}]"
        check_tensor(name, tensor)
        if tensor.is_complex():
            raise TypeError(f"{name}: a tensor of {tensor.dtype}: expected numbers")
        if not 1 <= tensor.ndim <= 4 or not tensor.numel():
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}: expected 1 to 4 axes, of size 1 or more")
        if not tensor.is_floating_point():
            tensor = tensor.clamp(-2**31, 2**31 - 1) if tensor.dtype == torch.int64 else tensor
            tensor = tensor.to(torch.int32)
        elif tensor.requires_grad or tensor.dtype not in (torch.float16, torch.bfloat16):
            tensor = tensor.float()
        extras[f"capture_{place}"] = tensor.contiguous()
    return extras


def _numbers(numbers: Any, q: Tensor) -> Tensor:
    """The numbers in a text, of which tensors without axes may have gradients, as one tensor beside q."""
    found = []
    for own, value in mapping("numbers", numbers).items():
        name = f"numbers[{own!r}]"
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.is_complex():
                raise ValueError(f"{name}: a tensor of shape {tuple(value.shape)}: expected one number")
            found.append(value.reshape(()).to(q.device, torch.float32))
        else:
            found.append(torch.tensor(_real(name, value), dtype=torch.float32, device=q.device))
    return torch.stack(found)


def _number(name: str, value: Any) -> Any:
    """An option that is no tensor, as a number whose text can be read again."""
    if isinstance(value, Tensor) and value.ndim == 0:
        if value.requires_grad:
            raise ValueError(f"{name}: a tensor without axes that requires a gradient: expected one of the shape [M] or [H,M]")
        value = value.item()
    number = scalar(name, value)
    if isinstance(number, float) and not -math.inf < number < math.inf:
        raise ValueError(f"{name}: {number}: expected a finite number")
    return number


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """Computes what ``torch.nn.functional.scaled_dot_product_attention`` computes, from the same arguments.

    Parameters
    ----------
    query, key, value : Tensor
        [...,L,E], [...,S,E] and [...,S,Ev]; the leading axes broadcast.
    attn_mask : Tensor, optional
        Broadcasts to [...,L,S]: True takes part (bool), or is added to the scores (float; differentiable).
    dropout_p : float
        Probability of dropping a weight. The random numbers are this library's, seeded by PyTorch's generator.
    is_causal : bool
        Query i sees keys up to i.
    scale : float, optional
        Factor of the scores. Default: 1/√E.
    enable_gqa : bool
        key and value may have fewer heads than query.

    Returns
    -------
    Tensor [...,L,Ev]
        0 in rows without visible keys.

    Raises
    ------
    RuntimeError
        attn_mask together with is_causal; tensors on several devices, or neither on the CPU nor in CUDA.
    ValueError, TypeError, NotImplementedError
        As in `attention`.
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError("attn_mask: expected None with is_causal=True")
    _check_shapes({"query": query, "key": key, "value": value}, attn_mask, enable_gqa)
    options: dict[str, Any] = {"causal": is_causal, "alignment": "top-left", "dropout": _real("dropout_p", dropout_p)}
    if not 0 <= options["dropout"] < 1:
        raise ValueError(f"dropout_p: {options['dropout']}: expected 0 to below 1")
    value_size = value.shape[-1]
    if value_size == 0:
        value = nn.functional.pad(value, (0, 1))
    if query.shape[-1] == 0:  # all scores are 0, with any scale
        query, key, scale = nn.functional.pad(query, (0, 1)), nn.functional.pad(key, (0, 1)), 1.0
    lead, (q, k, v) = _heads_first((query, key, value), enable_gqa)
    q, scaled = take_scale(q, scale)
    options.update(scaled)
    if attn_mask is not None:
        options["bias"] = as_bias(check_mask("attn_mask", attn_mask, (*lead, query.shape[-2], key.shape[-2])), lead)
    o: Tensor = attention(q, k, v, **options)
    return o.reshape(*lead, *o.shape[-2:])[..., :value_size]


def take_scale(q: Tensor, scale: float | None) -> tuple[Tensor, dict[str, Any]]:
    """The queries and options for a factor of the scores, which may be 0 or negative."""
    if scale is None:
        return q, {}
    scale = _real("scale", scale)
    return (q if scale > 0 else -q if scale < 0 else q * 0), {"scale": abs(scale) or 1.0}  # exact in every type


def _real(name: str, value: Any) -> float:
    number = _number(name, value)
    if isinstance(number, str):
        raise TypeError(f"{name}: {number!r}: expected a number")
    return float(number)


def _check_shapes(tensors: dict[str, Tensor], mask: Tensor | None, grouped: bool) -> None:
    """Raises for tensors that do not fit together."""
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
        check_dtype(name, tensor)
        if tensor.ndim < 2 + grouped:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}: expected {'[...,H,L,E]' if grouped else '[...,L,E]'}")
    check_devices({**tensors, "attn_mask": mask if isinstance(mask, Tensor) else None}, "query")
    query, key, value = (tuple(tensor.shape) for tensor in tensors.values())
    if key[-1] != query[-1]:
        raise ValueError(f"key: shape {key}: expected {query[-1]} on the last axis, as in query")
    if value[-2] != key[-2]:
        raise ValueError(f"value: shape {value}: expected {key[-2]} on the last axis but one, as in key")
    for name, shape in (("key", key), ("value", value)) if grouped else ():
        if query[-3] % shape[-3] if shape[-3] else query[-3]:
            raise ValueError(f"{name}: shape {shape}: expected heads that divide query's, {query[-3]}")
    last = -3 if grouped else -2
    try:
        torch.broadcast_shapes(query[:last], key[:last], value[:last])
    except RuntimeError:
        raise ValueError(f"query, key, value: shapes {query}, {key}, {value}: expected leading axes that broadcast") from None


def _heads_first(tensors: Sequence[Tensor], grouped: bool) -> tuple[tuple[int, ...], list[Tensor]]:
    """The leading axes of the result, and the tensors as [B,H,N,D]; without heads or batches [0,1,N,D]."""
    if grouped and tensors[1].shape[-3] != tensors[2].shape[-3]:  # the library has one number of heads for both
        heads = tensors[0].shape[-3]
        tensors = (tensors[0], *[t.repeat_interleave(heads // max(1, t.shape[-3]), -3) for t in tensors[1:]])
    leads = [tuple(t.shape[:-2]) for t in tensors]
    if grouped:
        batch = torch.broadcast_shapes(*(lead[:-1] for lead in leads))
        full = [(*batch, lead[-1]) for lead in leads]
    else:
        full = [tuple(torch.broadcast_shapes(*leads))] * len(tensors)
    four = []
    for tensor, lead in zip(tensors, full):
        whole = tensor.expand(*lead, *tensor.shape[-2:])
        if 0 in full[0]:
            whole = whole.flatten(0, -3)[:0].unsqueeze(1)
        elif whole.ndim != 4:
            whole = whole.reshape(math.prod(lead[:-1]), lead[-1] if lead else 1, *tensor.shape[-2:])
        four.append(whole)
    return full[0], four


def check_mask(name: str, mask: Any, shape: Sequence[int]) -> Tensor:
    """A mask that broadcasts to a shape, of bool or floating-point numbers."""
    check_tensor(name, mask)
    found: Tensor = mask
    if found.dtype != torch.bool and not found.is_floating_point():
        raise TypeError(f"{name}: a tensor of {found.dtype}: expected torch.bool or floating-point numbers")
    fits = found.ndim <= len(shape) and all(own in (1, full) for own, full in zip(reversed(found.shape), reversed(shape)))
    if not fits:
        raise ValueError(f"{name}: shape {tuple(found.shape)}: expected {tuple(shape)}, or one that broadcasts to it")
    return found


def as_bias(mask: Tensor, lead: Sequence[int]) -> Tensor:
    """A mask as a bias [B or 1,H or 1,N or 1,S or 1]; True takes part."""
    mask = as_numbers(once(mask))
    mask = mask.reshape((1,) * (max(4, len(lead) + 2) - mask.ndim) + tuple(mask.shape))
    if mask.ndim > 4:
        batch = lead[:-1] if any(size != 1 for size in mask.shape[:-3]) else mask.shape[:-3]
        mask = mask.expand(*batch, *mask.shape[-3:]).flatten(0, -4)
    return mask


def once(mask: Tensor) -> Tensor:
    """A mask with axes of size 1 in the place of expanded ones (strides of 0), unless each element has a gradient."""
    if mask.requires_grad and torch.is_grad_enabled():
        return mask
    for axis, (size, stride) in enumerate(zip(mask.shape, mask.stride())):
        if stride == 0 and size > 1:
            mask = mask.narrow(axis, 0, 1)
    return mask


def as_numbers(mask: Tensor) -> Tensor:
    """What a mask adds to scores; True takes part."""
    return torch.where(mask, 0.0, -torch.inf).float() if mask.dtype == torch.bool else mask
