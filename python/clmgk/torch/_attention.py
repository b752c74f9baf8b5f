# SPDX-License-Identifier: Apache-2.0
"""The operators and functions on PyTorch's tensors."""
from __future__ import annotations

import ast
import functools
import os
from typing import Any, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from .._context import Context, context_of, devices
from .._library import lib, name_of
from .._options import OPTIONS, Call, traits_of
from .._plan import Plan
from .._slots import numpy_dtype

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_STORAGE = ("q", "k", "v")
_EXTRAS = ("prior", "variance", "shift", "lengths", "lengths_q", "offsets", "offsets_k", "bias", "slopes", "sinks", "mix",
           "mix_weight", "mix_offset", "noise")
_NO_EXTRAS = (None,) * len(_EXTRAS)
_INTEGERS = ("lengths", "lengths_q", "offsets", "offsets_k")
_TEXTS = frozenset(OPTIONS) - frozenset(_EXTRAS) - {"seed", "device"} | {"variance"}


# ---- plans


@functools.lru_cache(maxsize=None)
def cpu_context() -> Context:
    """The device for CPU tensors: CLMGK_DEVICE, else a CPU, which uses them in place, else any."""
    if not os.environ.get("CLMGK_DEVICE"):
        for device in devices():
            if device.device_class == "cpu":
                return context_of(device.selector)
    return context_of(None)


@functools.lru_cache(maxsize=1024)
def _mixes_heads(options: str) -> bool:
    return bool(traits_of(_parse(options).get("variant", "softmax")) & lib.CLMGK_TRAIT_ADMIXTURE)


@functools.lru_cache(maxsize=1024)
def _parse(options: str) -> dict[str, Any]:
    return {name: ast.literal_eval(value) for name, value in (option.split("=", 1) for option in options.split(";") if option)}


def _like(tensor: Tensor) -> np.ndarray[Any, Any]:
    """An array of a tensor's shape, strides and type, without its memory."""
    if tensor.dtype not in _DTYPES and tensor.dtype != torch.int32:
        raise TypeError(f"a tensor of {tensor.dtype}: expected torch.float32, float16 or bfloat16")
    dtype = numpy_dtype(_DTYPES.get(tensor.dtype, "int32"))
    strides = [stride * dtype.itemsize for stride in tensor.stride()]
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), tuple(tensor.shape), strides)


class _Prepared:
    """A pass of a plan for tensors of certain shapes and layouts, which were checked."""

    def __init__(self, options: str, gradients: str, pass_name: str, tensors: Mapping[str, Tensor]) -> None:
        storage = {name: _like(t) for name, t in tensors.items() if name not in _EXTRAS and not _has_no_layout(name)}
        extras = {name: np.zeros(tuple(t.shape), np.int32 if name in _INTEGERS else np.float32)
                  for name, t in tensors.items() if name in _EXTRAS}
        made = Call(storage, {**_parse(options), **extras}, OPTIONS)
        fields = {**made.fields(), **({"gradients": gradients.split(",")} if gradients else {})}
        self.plan = Plan._of(cpu_context(), made.engine, fields, True)
        self.pass_ = self.plan._pass(pass_name)
        for slot in self.pass_.slots:
            if slot.name in tensors:
                slot.check_shape(tuple(tensors[slot.name].shape))
            elif slot.required and slot.bytes > 0:
                raise ValueError(f"{slot.name}: missing: variant {name_of('variant', self.plan._resolved.variant)} needs it")
        unused = [name for name in tensors if name not in self.pass_.by_name]
        if unused:
            raise ValueError(f"{unused[0]}: given, but the problem does not use it")
        self.places = [(i, slot.name) for i, slot in enumerate(self.pass_.slots) if slot.name in tensors]

    def run(self, tensors: Mapping[str, Tensor], seed: Optional[Tensor]) -> None:
        pointers = self.pass_.empty.copy()
        for i, name in self.places:
            pointers[i] = tensors[name].data_ptr()
        self.plan.run(self.pass_, pointers, seed=0 if seed is None else int(seed.item()) % 2**64)


def _has_no_layout(name: str) -> bool:
    """Whether an array is always dense, so that the problem follows from the others."""
    return name in ("lse", "grad_lse") or (name.startswith("grad_") and name[5:] in _EXTRAS)


def _run(options: str, gradients: str, pass_name: str, tensors: dict[str, Tensor], seed: Optional[Tensor]) -> None:
    """Runs a pass on tensors; the first time for their shapes and layouts, makes its plan."""
    context = cpu_context()
    key = (options, gradients, pass_name, *[(name, t.shape, t.stride(), t.dtype) for name, t in tensors.items()])
    prepared = context._find(key)
    if prepared is None:
        prepared = context._keep(key, _Prepared(options, gradients, pass_name, tensors))
    prepared.run(tensors, seed)


def _given(values: Sequence[Optional[Tensor]]) -> dict[str, Tensor]:
    return {name: value for name, value in zip(_EXTRAS, values) if value is not None}


# ---- operators


def _new_output(q: Tensor, k: Tensor, v: Tensor, mix: Optional[Tensor], options: str) -> tuple[Tensor, Tensor]:
    """O and L. O has the order of q's axes in memory."""
    heads = q.shape[1]
    if _mixes_heads(options):
        heads = mix.shape[0] if mix is not None and mix.ndim == 2 else _parse(options).get("heads", v.shape[1])
    batch, length, size = q.shape[0], q.shape[2], v.shape[-1]
    if q.stride(1) < q.stride(2):
        o = q.new_empty((batch, length, heads, size)).transpose(1, 2)
    else:
        o = q.new_empty((batch, heads, length, size))
    return o, q.new_empty((batch, heads, length), dtype=torch.float32)


@torch.library.custom_op("clmgk::attention", mutates_args=(), device_types="cpu")
def _attention(q: Tensor, k: Tensor, v: Tensor, prior: Optional[Tensor], variance: Optional[Tensor],
               shift: Optional[Tensor], lengths: Optional[Tensor], lengths_q: Optional[Tensor], offsets: Optional[Tensor],
               offsets_k: Optional[Tensor], bias: Optional[Tensor], slopes: Optional[Tensor], sinks: Optional[Tensor],
               mix: Optional[Tensor], mix_weight: Optional[Tensor], mix_offset: Optional[Tensor],
               noise: Optional[Tensor], seed: Optional[Tensor], options: str, gradients: str) -> tuple[Tensor, Tensor]:
    extras = _given((prior, variance, shift, lengths, lengths_q, offsets, offsets_k, bias, slopes, sinks, mix, mix_weight,
                     mix_offset, noise))
    o, lse = _new_output(q, k, v, mix, options)
    _run(options, gradients, "forward", {"q": q, "k": k, "v": v, "o": o, "lse": lse, **extras}, seed)
    return o, lse


@_attention.register_fake
def _(q, k, v, prior, variance, shift, lengths, lengths_q, offsets, offsets_k, bias, slopes, sinks, mix,  # type: ignore
      mix_weight, mix_offset, noise, seed, options, gradients):
    return _new_output(q, k, v, mix, options)


def _new_gradients(names: Sequence[str], tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [torch.empty_like(tensors[name]) for name in names]


@torch.library.custom_op("clmgk::attention_backward", mutates_args=(), device_types="cpu")
def _attention_backward(grad_o: Tensor, grad_lse: Optional[Tensor], o: Tensor, lse: Tensor, q: Tensor, k: Tensor,
                        v: Tensor, prior: Optional[Tensor], variance: Optional[Tensor], shift: Optional[Tensor],
                        lengths: Optional[Tensor], lengths_q: Optional[Tensor], offsets: Optional[Tensor],
                        offsets_k: Optional[Tensor], bias: Optional[Tensor], slopes: Optional[Tensor],
                        sinks: Optional[Tensor], mix: Optional[Tensor], mix_weight: Optional[Tensor],
                        mix_offset: Optional[Tensor], noise: Optional[Tensor], seed: Optional[Tensor], options: str,
                        gradients: str) -> list[Tensor]:
    extras = _given((prior, variance, shift, lengths, lengths_q, offsets, offsets_k, bias, slopes, sinks, mix, mix_weight,
                     mix_offset, noise))
    names = gradients.split(",")
    tensors = {"q": q, "k": k, "v": v, **extras}
    found = _new_gradients(names, tensors)
    outputs = {f"grad_{name}": gradient for name, gradient in zip(names, found)}
    given = {} if grad_lse is None else {"grad_lse": grad_lse}
    _run(options, gradients, "backward", {**tensors, "o": o, "lse": lse, "grad_o": grad_o, **given, **outputs}, seed)
    return found


@_attention_backward.register_fake
def _(grad_o, grad_lse, o, lse, q, k, v, prior, variance, shift, lengths, lengths_q, offsets, offsets_k,  # type: ignore
      bias, slopes, sinks, mix, mix_weight, mix_offset, noise, seed, options, gradients):
    extras = _given((prior, variance, shift, lengths, lengths_q, offsets, offsets_k, bias, slopes, sinks, mix, mix_weight,
                     mix_offset, noise))
    return _new_gradients(gradients.split(","), {"q": q, "k": k, "v": v, **extras})


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:-2], *output)
    ctx.options, ctx.gradients = inputs[-2:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad_o: Optional[Tensor], grad_lse: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    *inputs, o, lse = ctx.saved_tensors
    grad_o = torch.zeros_like(o) if grad_o is None else _usable(grad_o)
    found = _attention_backward(grad_o, None if grad_lse is None else grad_lse.contiguous(), o, lse, *inputs, ctx.options,
                                ctx.gradients)
    by_name = dict(zip(ctx.gradients.split(","), found))
    return (*[by_name.get(name) for name in (*_STORAGE, *_EXTRAS)], None, None, None)


def _refuse_second(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError("clmgk.torch.attention: a gradient of a gradient is not offered (create_graph=True)")


_attention.register_autograd(_differentiate, setup_context=_save)
_attention_backward.register_autograd(_refuse_second)


# ---- functions


def _usable(tensor: Tensor) -> Tensor:
    """A tensor in a layout that the library takes: the innermost axis is contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _check_device(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: {type(tensor).__name__}: expected a tensor")
    if not tensor.is_cpu and tensor.device.type not in ("cpu", "meta"):
        raise RuntimeError(f"{name}: a tensor on {tensor.device}: clmgk.torch computes on CPU tensors as yet: copy it by "
                           f"{name}.cpu()")


def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, seed: int | None = None,
              **options: Any) -> Any:
    """Computes attention of any variant but the linear ones; differentiable in every tensor of floating-point numbers.

    Parameters
    ----------
    q, k, v : Tensor
        As in ``clmgk.attention``: [B,H,N,D], [B,G,S,D] (MGK: [B,G,M,S,D]) and [B,G,S,E], or all without B; float32,
        float16 or bfloat16, on the CPU. Under autocast they are converted to its type.
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
        As in ``clmgk.attention``. RuntimeError also for a tensor that is not on the CPU, and for a gradient of a gradient.
    """
    _check_device("q", q)
    _check_device("k", k)
    _check_device("v", v)
    if q.ndim == 3:
        results = attention(q[None], k[None], v[None], return_lse=True, seed=seed, **options)
        return (results[0][0], results[1][0]) if return_lse else results[0][0]
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (t.to(torch.get_autocast_dtype("cpu")) for t in (q, k, v))
    q, k, v = _usable(q), _usable(k), _usable(v)
    extras, scalars = _split(options) if options else ({}, {})
    gradients = ""
    if torch.is_grad_enabled():
        gradients = ",".join([name for name, tensor in (("q", q), ("k", k), ("v", v), *extras.items())
                              if tensor.requires_grad])
    drawn = None
    if seed is not None:
        drawn = torch.tensor(seed if seed < 2**63 else seed - 2**64)
    elif scalars.get("dropout") or "noise" in extras:
        drawn = torch.randint(2**63 - 1, ())
    given = [extras.get(name) for name in _EXTRAS] if extras else _NO_EXTRAS
    o, lse = _attention(q, k, v, *given, drawn, ";".join(f"{name}={scalars[name]!r}" for name in sorted(scalars)),
                        gradients)
    return (o, lse) if return_lse else o


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors as the library takes them, and the other options."""
    extras, scalars = {}, {}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, Tensor) and name in _EXTRAS:
            _check_device(name, value)
            extras[name] = value.to(torch.int32 if name in _INTEGERS else torch.float32).contiguous()
            if name == "bias" and value.ndim < 4:
                extras[name] = extras[name].reshape((1,) * (4 - value.ndim) + tuple(value.shape))
        elif name in _TEXTS:
            scalars[name] = value
        elif name in _EXTRAS:
            raise TypeError(f"{name}: {type(value).__name__}: expected a tensor")
        else:
            raise TypeError(f"unexpected argument {name!r}: expected one of {', '.join(sorted(OPTIONS - {'device'}))}")
    return extras, scalars


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
        attn_mask together with is_causal; tensors that are not on the CPU.
    ValueError, TypeError, NotImplementedError
        As in `attention`.
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError("attn_mask must be None if is_causal is True")
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ValueError("query, key and value: expected at least 2 axes")
    lead, (q, k, v) = _heads_first((query, key, value), enable_gqa)
    options: dict[str, Any] = {"causal": is_causal, "alignment": "top-left", "dropout": dropout_p}
    if scale is not None and scale > 0:
        options["variance"] = 1.0 / scale
    elif scale is not None:
        q, options["variance"] = q * scale, 1.0
    if attn_mask is not None:
        options["bias"] = as_bias(attn_mask, q, lead, key.shape[-2])
    o: Tensor = attention(q, k, v, **options)
    return o.reshape(*lead, *o.shape[-2:])


def _heads_first(tensors: Sequence[Tensor], grouped: bool) -> tuple[tuple[int, ...], list[Tensor]]:
    """The leading axes of the result, and the tensors as [B,H,N,D]."""
    leads = [tuple(t.shape[:-2]) for t in tensors]
    if grouped:
        batch = torch.broadcast_shapes(*(lead[:-1] for lead in leads))
        full = [(*batch, lead[-1]) for lead in leads]
    else:
        full = [tuple(torch.broadcast_shapes(*leads))] * len(tensors)
    four = []
    for tensor, lead in zip(tensors, full):
        whole = tensor.expand(*lead, *tensor.shape[-2:])
        heads = lead[-1] if lead else 1
        four.append(whole.reshape(-1, heads, *tensor.shape[-2:]) if whole.ndim != 4 else whole)
    return full[0], four


def as_bias(mask: Tensor, q: Tensor, lead: Sequence[int], keys: int) -> Tensor:
    """A mask as a bias [B or 1,H or 1,N or 1,S or 1]."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float32).masked_fill(~mask, -torch.inf)
    if mask.ndim < 2:
        mask = mask.reshape((1,) * (2 - mask.ndim) + tuple(mask.shape))
    if mask.ndim <= 4 and len(lead) <= 2:
        axes = (1,) * (4 - mask.ndim) + tuple(mask.shape)
        return mask.reshape(axes)
    return mask.expand(*lead, *mask.shape[-2:]).reshape(q.shape[0], q.shape[1], *mask.shape[-2:])
