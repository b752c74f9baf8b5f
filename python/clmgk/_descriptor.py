# SPDX-License-Identifier: Apache-2.0
"""The description of an attention problem."""
from __future__ import annotations

import weakref
from typing import Any, Iterable, Mapping, NamedTuple, Sequence, TypedDict

from ._library import GRADIENTS, STATISTICS, bits, c_string, call, ffi, from_name, initialised, lib, set_number


class Layout(NamedTuple):
    """Strides of an array, in elements, as ``clmgk_layout`` (include/clmgk/attention.h)."""

    batch: int = 0
    head: int = 0
    token: int = 0
    component: int = 0


class Capture(NamedTuple):
    """A dense array that a text reads, as ``clmgk_capture``: its elements are the call's array capture_0, capture_1, ..."""

    name: str
    dtype: str  #: "f32", "f16", "bf16" or "i32"
    shape: tuple[int, ...]


class Descriptor(TypedDict, total=False):
    """The fields of ``clmgk_attention_desc`` (include/clmgk/attention.h), which describes each.

    A field that is not given is 0, its default. Values of enumerations are names ("mgk", "bottom-right"), sets of
    gradients and statistics are lists of names (["q", "k"]), layouts are of class `Layout`, None for a dense array;
    captures are a list of `Capture`, numbers a list of names.
    """

    variant: str
    dtype: str
    score: str
    estep: str
    batch: int
    heads: int
    kv_heads: int
    components: int
    length: int
    length_k: int
    head_size: int
    value_size: int
    q: Layout | None
    k: Layout | None
    v: Layout | None
    o: Layout | None
    lse: Layout | None
    prior_shape: str
    variance_shape: str
    variance: float
    causal: bool
    alignment: str
    use_lengths: bool
    use_lengths_q: bool
    use_window: bool
    window_left: int
    window_right: int
    sequences: int
    use_offsets_k: bool
    use_bias: bool
    bias_batch: int
    bias_heads: int
    bias_length: int
    bias_length_k: int
    use_alibi: bool
    use_sinks: bool
    softcap: float
    dropout: float
    gradients: Iterable[str]
    statistics: Iterable[str]
    combine: bool
    grad_o: Layout | None
    grad_q: Layout | None
    grad_k: Layout | None
    grad_v: Layout | None
    use_mix_weight: bool
    use_mix_offset: bool
    shared_noise: bool
    guard: float
    feature_epsilon: float
    features: int
    feature: str
    feature_order: int
    use_state: bool
    use_new_state: bool
    use_lse_low: bool
    dtype_k: str
    dtype_v: str
    dtype_o: str
    precision: str
    mix_hidden: int
    use_mix_hidden_offset: bool
    score_mod: str | None
    mask_mod: str | None
    captures: Sequence[Capture]
    numbers: Sequence[str]
    mix_after_heads: int
    dtype_grad_q: str
    dtype_grad_k: str
    dtype_grad_v: str
    use_positions: bool
    first_batch: int
    first_head: int
    all_heads: int
    page_size: int
    pages: int
    table_pages: int
    use_page_offsets: bool
    partial_keys: bool
    use_mask_blocks: bool
    mask_block_q: int
    mask_block_k: int
    mask_blocks_batch: int
    mask_blocks_heads: int
    use_scale_k: bool
    use_scale_v: bool
    scale_k: Layout | None
    scale_v: Layout | None
    append: int
    append_k: Layout | None
    append_v: Layout | None
    append_rotary: str
    append_rotary_size: int
    append_rotary_base: float
    prefix_pages: int
    unnormalised: bool
    state_pool: int


# Enumerations of C without a table of names.
_SHAPES = {
    "prior_shape": {"uniform": lib.CLMGK_PRIOR_UNIFORM, "m": lib.CLMGK_PRIOR_M, "hm": lib.CLMGK_PRIOR_HM,
                    "hms": lib.CLMGK_PRIOR_HMS},
    "variance_shape": {"number": lib.CLMGK_VARIANCE_NUMBER, "m": lib.CLMGK_VARIANCE_M, "hm": lib.CLMGK_VARIANCE_HM},
}
_FIELDS = {name: field.type for name, field in ffi.typeof("clmgk_attention_desc").fields
           if name not in ("struct_size", "resolved")}
_TEXTS = ("score_mod", "mask_mod")
_CAPTURE_TYPES = {"f32": lib.CLMGK_CAPTURE_F32, "f16": lib.CLMGK_CAPTURE_F16, "bf16": lib.CLMGK_CAPTURE_BF16,
                  "i32": lib.CLMGK_CAPTURE_I32}
_SETS = {"gradients": GRADIENTS, "statistics": STATISTICS}


def _from_shape(field: str, value: str) -> int:
    if not isinstance(value, str):
        raise TypeError(f"{field}: {value!r}: expected a name")
    if value not in _SHAPES[field]:
        raise ValueError(f"{field}: {value!r}: expected {', '.join(_SHAPES[field])}")
    return int(_SHAPES[field][value])


def _set_layout(name: str, target: Any, value: Layout | None) -> None:
    if value is not None:
        if not isinstance(value, Layout):
            raise TypeError(f"{name}: {type(value).__name__}: expected a clmgk.Layout, or None for a dense array")
        target.strided = 1
        for axis, stride in value._asdict().items():
            setattr(target, axis, stride)


# The strings of descriptors, which only point to them.
_strings: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def _string(desc: Any, name: str, value: Any) -> Any:
    """A string that lives as long as the descriptor."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: {type(value).__name__}: expected a text")
    text = ffi.new("char[]", c_string(name, value))
    _strings.setdefault(desc, []).append(text)
    return text


def _set_captures(desc: Any, captures: Sequence[Capture]) -> None:
    if len(captures) > len(desc.captures):
        raise ValueError(f"captures: {len(captures)} arrays: expected at most {len(desc.captures)}")
    for target, (name, dtype, shape) in zip(desc.captures, captures):
        if dtype not in _CAPTURE_TYPES:
            raise ValueError(f"captures: {name!r}: type {dtype!r}: expected {', '.join(_CAPTURE_TYPES)}")
        if not 1 <= len(shape) <= len(target.shape):
            raise ValueError(f"captures: {name!r}: shape {tuple(shape)}: expected 1 to {len(target.shape)} axes")
        target.name, target.type, target.axes = _string(desc, "captures", name), _CAPTURE_TYPES[dtype], len(shape)
        for axis, size in enumerate(shape):
            target.shape[axis] = size


def _set_numbers(desc: Any, names: Sequence[str]) -> None:
    if len(names) > len(desc.numbers):
        raise ValueError(f"numbers: {len(names)} names: expected at most {len(desc.numbers)}")
    for place, name in enumerate(names):
        desc.numbers[place] = _string(desc, "numbers", name)


def _field_value(name: str, value: Any) -> Any:
    if name in _SETS:
        return bits(name, value, _SETS[name])
    if name in _SHAPES:
        return _from_shape(name, value)
    type_name = _FIELDS[name].cname.removeprefix("enum ")
    if type_name == "clmgk_storage":
        return 1 + from_name("dtype", value)
    if _FIELDS[name].kind == "enum":
        return from_name(type_name.removeprefix("clmgk_"), value)
    return value


def validate(fields: Mapping[str, Any]) -> Any:
    """The resolved descriptor; raises for one that is not legal."""
    resolved, desc = initialised("clmgk_attention_desc"), describe(fields)
    call(lib.clmgk_attention_validate, desc, resolved)
    _strings[resolved] = _strings.get(desc, [])
    return resolved


def describe(fields: Mapping[str, Any]) -> Any:
    desc = initialised("clmgk_attention_desc")
    for name, value in fields.items():
        if name not in _FIELDS:
            raise TypeError(f"Plan: unexpected field {name!r}: expected fields of clmgk_attention_desc")
        if name in _TEXTS:
            if value is not None:
                setattr(desc, name, _string(desc, name, value))
            continue
        if name == "captures":
            _set_captures(desc, value)
            continue
        if name == "numbers":
            _set_numbers(desc, value)
            continue
        if _FIELDS[name].kind == "struct":
            _set_layout(name, getattr(desc, name), value)
            continue
        set_number(desc, name, _field_value(name, value))
    return desc
