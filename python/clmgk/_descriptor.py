# SPDX-License-Identifier: Apache-2.0
"""The description of an attention problem."""
from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, TypedDict

from ._library import GRADIENTS, STATISTICS, bits, call, ffi, from_name, initialised, lib, set_number


class Layout(NamedTuple):
    """Strides of an array, in elements, as ``clmgk_layout`` (include/clmgk/attention.h)."""

    batch: int = 0
    head: int = 0
    token: int = 0
    component: int = 0


class Descriptor(TypedDict, total=False):
    """The fields of ``clmgk_attention_desc`` (include/clmgk/attention.h), which describes each.

    A field that is not given is 0, its default. Values of enumerations are names ("mgk", "bottom-right"), sets of
    gradients and statistics are lists of names (["q", "k"]), layouts are of class `Layout`, None for a dense array.
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


# Enumerations of C without a table of names.
_SHAPES = {
    "prior_shape": {"uniform": lib.CLMGK_PRIOR_UNIFORM, "m": lib.CLMGK_PRIOR_M, "hm": lib.CLMGK_PRIOR_HM,
                    "hms": lib.CLMGK_PRIOR_HMS},
    "variance_shape": {"number": lib.CLMGK_VARIANCE_NUMBER, "m": lib.CLMGK_VARIANCE_M, "hm": lib.CLMGK_VARIANCE_HM},
}
_FIELDS = {name: field.type for name, field in ffi.typeof("clmgk_attention_desc").fields
           if name not in ("struct_size", "resolved")}
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
    resolved = initialised("clmgk_attention_desc")
    call(lib.clmgk_attention_validate, describe(fields), resolved)
    return resolved


def describe(fields: Mapping[str, Any]) -> Any:
    desc = initialised("clmgk_attention_desc")
    for name, value in fields.items():
        if name not in _FIELDS:
            raise TypeError(f"Plan: unexpected field {name!r}: expected fields of clmgk_attention_desc")
        if _FIELDS[name].kind == "struct":
            _set_layout(name, getattr(desc, name), value)
            continue
        set_number(desc, name, _field_value(name, value))
    return desc
