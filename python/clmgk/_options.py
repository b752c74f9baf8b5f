# SPDX-License-Identifier: Apache-2.0
"""Arguments of the functions without a plan, and the problem that they describe."""
from __future__ import annotations

import numbers
from typing import Any, Iterable, Mapping, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from ._context import Context, Device, context_of
from ._descriptor import Capture, Layout, validate
from ._library import call, ffi, from_name, initialised, integer, lib
from ._plan import Plan, Prepared, signature
from ._slots import BLOCKS, Array, Pass, cache_dtype_name, check_array, check_range, dtype_name


class Options(TypedDict, total=False):
    """Arguments of `attention` and of its backward pass and statistics: a description is at `attention`."""

    variant: str
    score: str
    estep: str
    prior: ArrayLike | None
    variance: ArrayLike | None
    scale: float | None
    shift: ArrayLike | None
    causal: bool
    alignment: str
    window_left: int | None
    window_right: int | None
    lengths: ArrayLike | None
    lengths_q: ArrayLike | None
    offsets: ArrayLike | None
    offsets_k: ArrayLike | None
    positions: ArrayLike | None
    positions_k: ArrayLike | None
    page_table: ArrayLike | None
    page_offsets: ArrayLike | None
    last_page: ArrayLike | None
    dtype_k: str | None
    dtype_v: str | None
    scale_k: ArrayLike | None
    scale_v: ArrayLike | None
    bias: ArrayLike | None
    slopes: ArrayLike | None
    sinks: ArrayLike | None
    softcap: float
    dropout: float
    seed: int
    heads: int
    mix: ArrayLike | None
    mix_weight: ArrayLike | None
    mix_offset: ArrayLike | None
    mix_hidden: int
    mix_hidden_offset: ArrayLike | None
    mix_after: ArrayLike | None
    noise: ArrayLike | None
    shared_noise: bool
    precision: str
    score_mod: str | None
    mask_mod: str | None
    captures: Mapping[str, ArrayLike] | None
    numbers: Mapping[str, float] | None
    mask_blocks: ArrayLike | None
    mask_block: tuple[int, int] | None
    engine: str
    device: str | Device | Context | None


class LinearOptions(TypedDict, total=False):
    """Arguments of `linear_attention` and its backward pass: a description is at `linear_attention`."""

    variant: str
    feature: str
    feature_order: int
    projection: ArrayLike | None
    guard: float
    feature_epsilon: float
    unnormalised: bool
    prior: ArrayLike | None
    shift: ArrayLike | None
    causal: bool
    alignment: str
    lengths: ArrayLike | None
    lengths_q: ArrayLike | None
    offsets: ArrayLike | None
    offsets_k: ArrayLike | None
    seed: int
    heads: int
    mix: ArrayLike | None
    mix_weight: ArrayLike | None
    noise: ArrayLike | None
    shared_noise: bool
    precision: str
    engine: str
    device: str | Device | Context | None


MOST_CAPTURES: int = len(ffi.new("clmgk_attention_desc *").captures)

OPTIONS = frozenset(Options.__annotations__)
LINEAR_OPTIONS = frozenset(LinearOptions.__annotations__)

# ---- arguments


def head_source(options: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """The array whose first axis is H where heads are mixed: the last one that mixes them."""
    if arrays.get("mix_after") is not None:
        return "mix_after"
    return "mix_weight" if options.get("mix_hidden") else "mix"


# Options that are arrays of numbers: f32, but these.
_INTEGERS = frozenset(("lengths", "lengths_q", "offsets", "offsets_k", "positions", "positions_k",
                       "page_table", "page_offsets", "last_page", "mask_blocks"))
_PARAMETERS = frozenset(("prior", "variance", "shift", "lengths", "lengths_q", "offsets", "offsets_k", "positions",
                         "positions_k", "bias", "slopes", "sinks", "mix", "mix_weight", "mix_offset", "mix_hidden_offset", "mix_after", "noise",
                         "projection", "page_table", "page_offsets", "last_page", "mask_blocks"))
# Fields of the descriptor that arrays switch on.
_SWITCHES = {"lengths": "use_lengths", "lengths_q": "use_lengths_q", "offsets_k": "use_offsets_k", "positions": "use_positions",
             "positions_k": "use_positions", "bias": "use_bias",
             "slopes": "use_alibi", "sinks": "use_sinks", "mix_weight": "use_mix_weight", "mix_offset": "use_mix_offset",
             "mix_hidden_offset": "use_mix_hidden_offset", "state_c": "use_state",
             "page_offsets": "use_page_offsets", "mask_blocks": "use_mask_blocks", "scale_k": "use_scale_k", "scale_v": "use_scale_v"}


# Arrays of parameters whose shapes may broadcast to those that the plan expects.
_BROADCAST = frozenset(("prior", "variance", "shift", "lengths", "lengths_q", "slopes", "sinks", "mix_weight", "mix_offset",
                        "mix_hidden_offset", "noise"))


def parameter(name: str, value: ArrayLike) -> Array:
    """An array of parameters as C takes it: dense, f32 or int32. Copies only if it is something else."""
    target = np.int32 if name in _INTEGERS else np.float32
    array = _as_array(name, value)
    if array.dtype != target:
        array = _converted(name, array, np.dtype(target))
    return np.ascontiguousarray(array) if not array.flags.c_contiguous else array


def _as_array(name: str, value: ArrayLike) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        check_array(name, value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _converted(name: str, array: Array, target: np.dtype[Any]) -> Array:
    if array.dtype == bool and name == "bias":
        return np.where(array, np.float32(0), np.float32(-np.inf))
    if array.dtype == bool:
        raise TypeError(f"{name}: elements of type bool: expected {target}")
    if not array.size:
        return array.astype(target)
    if not np.can_cast(array.dtype, target, "same_kind"):
        raise TypeError(f"{name}: elements of type {array.dtype}: expected {target}")
    if target == np.int32:
        check_range(name, array, -2**31, 2**31 - 1, "numbers that int32 can hold")
    return array.astype(target)


def captured(name: str, value: ArrayLike) -> Array:
    """An array that a text reads, as C takes it: dense, of f32, f16, bf16 or int32."""
    array = _as_array(name, value)
    if array.dtype.name not in ("float32", "float16", "bfloat16", "int32") or not array.dtype.isnative:
        if array.dtype == bool:
            array = array.astype(np.int32)
        else:
            array = _converted(name, array, np.dtype(np.int32 if array.dtype.kind in "iu" else np.float32))
    if not 1 <= array.ndim <= 4 or not array.size:
        raise ValueError(f"{name}: shape {array.shape}: expected 1 to 4 axes, of size 1 or more")
    return np.ascontiguousarray(array)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Arrays or numbers by the names that a text gives them."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name}: {type(value).__name__}: expected a dict whose keys are names")
    return dict(value)


def scalar(name: str, value: Any) -> Any:
    """The value of an option that is no array: a number, a name or a flag."""
    if type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        value = value.item()
    elif isinstance(value, numbers.Integral):
        value = int(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name}: {type(value).__name__}: expected a number, a name, or True or False")


def _real(name: str, value: Any) -> float:
    number = scalar(name, value)
    if isinstance(number, str):
        raise TypeError(f"{name}: {number!r}: expected a number")
    return float(number)


def block_size(value: Any) -> tuple[int, int]:
    """The option `mask_block`: queries and keys of a block."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"mask_block: {value!r}: expected two numbers, of queries and of keys")
    return integer("mask_block", value[0]), integer("mask_block", value[1])


def _layout(name: str, array: Array, has_components: bool) -> Layout | None:
    """The layout of an array [B,H,(M,)N,D] or without B; None if it is dense."""
    if array.flags.c_contiguous:
        return None
    strides = [0 if size <= 1 else stride for size, stride in zip(array.shape, array.strides)]
    if strides[-1] not in (0, array.itemsize) or (strides[-1] == 0 and array.shape[-1] > 1):
        raise ValueError(f"{name}: the innermost axis has a stride of {array.strides[-1]} bytes: expected contiguous "
                         f"elements, as in numpy.ascontiguousarray({name})")
    if any(stride < 0 or stride % array.itemsize for stride in strides):
        raise ValueError(f"{name}: strides of {array.strides} bytes: expected multiples of the {array.itemsize} bytes of "
                         f"an element, not negative")
    elements = [stride // array.itemsize for stride in strides[:-1]]
    token = elements.pop()
    component = elements.pop() if has_components else 0
    head = elements.pop()
    return Layout(elements.pop() if elements else 0, head, token, component)


def _capture_type(array: Array) -> str:
    return "i32" if array.dtype == np.int32 else dtype_name("captures", array)


def traits_of(variant: str) -> int:
    return int(lib.clmgk_variant_traits(from_name("variant", variant)))


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(own in (1, full) for own, full in zip(reversed(shape), reversed(to)))


def _own_shape(array: Array) -> tuple[int, ...]:
    """A single number broadcasts to any shape."""
    return () if array.size == 1 else array.shape


def _in_shapes(arrays: Mapping[str, Array], shapes: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, Array]:
    """Arrays, of which some are broadcast to these shapes."""
    return {**arrays, **{name: np.broadcast_to(arrays[name].reshape(_own_shape(arrays[name])), shape).copy()
                         for name, shape in shapes}}


def _sum_to(array: Array, gradient: Array) -> Array:
    """The gradient of an array, from that of the array that it was broadcast to."""
    shape = _own_shape(array)
    own = (1,) * (gradient.ndim - len(shape)) + shape
    axes = tuple([axis for axis, size in enumerate(own) if size != gradient.shape[axis]])
    summed: Array = gradient.sum(axes)
    return summed.reshape(array.shape)


class Call:
    """A call of a function without a plan: its arrays, and its options that are none.

    Parameters
    ----------
    storage : mapping
        Arrays in the layouts and element types of the caller.
    options : mapping
        The caller's, with `variant` if it is linear.
    linear : bool
        Whether the function belongs to the linear family.
    others : mapping, optional
        Further arrays, as `parameter` makes them.
    """

    def __init__(self, storage: Mapping[str, Array], options: Mapping[str, Any], linear: bool,
                 others: Mapping[str, Array] | None = None) -> None:
        self.storage, self.linear = storage, linear
        self.arrays = {**storage, **others} if others else dict(storage)
        self.scalars: dict[str, Any] = {}
        self.seed, self.device = 0, None
        self.has_mask = False  # the bias was given as bool, which has no gradient
        self._bias_shape: tuple[int, ...] = ()
        self._key: list[Any] = [linear]
        self.captures: tuple[str, ...] = ()  # names of capture_0, ...
        self.numbers: tuple[str, ...] = ()
        self.types: dict[str, str] = {}  # of k and v, where they are of a cache
        if not linear:
            self._take_types(options)
        for name, value in options.items():
            self._add(name, value)

    def _take_types(self, options: Mapping[str, Any]) -> None:
        """Types of caches: C takes codes of floats as bytes."""
        for name in ("k", "v"):
            array, given = self.storage.get(name), options.get(f"dtype_{name}")
            if type(array) is not np.ndarray or (given is None and array.dtype.char in "fe"):  # f32, f16
                continue
            self.types[name] = found = cache_dtype_name(name, array, given)
            self._key += (name, found)
            if found in ("e4m3", "e5m2"):
                self.storage = {**self.storage, name: array.view(np.uint8)}
                self.arrays[name] = self.storage[name]

    def _add(self, name: str, value: Any) -> None:
        """Adds an option."""
        allowed = LINEAR_OPTIONS if self.linear else OPTIONS
        if name not in allowed:
            raise TypeError(f"unexpected argument {name!r}: expected one of {', '.join(sorted(allowed))}")
        if name in ("seed", "device"):
            setattr(self, name, value)
        elif value is None or name in ("dtype_k", "dtype_v"):
            return
        elif name in ("scale_k", "scale_v"):
            self.arrays[name] = self._scales(name, value)
        elif name in ("captures", "numbers"):
            self._add_named(name, mapping(name, value))
        elif name in _PARAMETERS and not (name == "variance" and np.ndim(value) == 0):
            self.arrays[name] = self._bias(value) if name == "bias" else parameter(name, value)
        else:
            self.scalars[name] = value = block_size(value) if name == "mask_block" else scalar(name, value)
            self._key += (name, type(value), value)

    def _add_named(self, name: str, values: Mapping[str, Any]) -> None:
        """Adds arrays, or numbers, that a text reads."""
        if name == "captures":
            if len(values) > MOST_CAPTURES:
                raise ValueError(f"captures: {len(values)} arrays: expected at most {MOST_CAPTURES}")
            self.captures = tuple(values)
            for place, (own, value) in enumerate(values.items()):
                self.arrays[f"capture_{place}"] = captured(f"captures[{own!r}]", value)
        elif values:
            self.numbers = tuple(values)
            self.arrays["numbers"] = np.array([_real(f"numbers[{own!r}]", value) for own, value in values.items()], np.float32)
        self._key += (name, tuple(values))

    def _scales(self, name: str, value: ArrayLike) -> Array:
        """Scales of rows, of the shape of k or v without the last axis; strides of 0 where they repeat."""
        array, rows = parameter(name, value), np.shape(self.storage[name[-1]])[:-1]
        try:
            return np.broadcast_to(array, rows)
        except ValueError:
            raise ValueError(f"{name}: shape {array.shape}: expected {rows}, or axes of size 1, or none, in their place") from None

    def _bias(self, value: ArrayLike) -> Array:
        """A bias [B,H,N,S], with axes of size 1 in the place of those that it repeats by strides of 0."""
        array = _as_array("bias", value)
        if array.ndim > 4:
            raise ValueError(f"bias: shape {array.shape}: expected [B,H,N,S], with any axis 1 or missing")
        array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        self.has_mask, self._bias_shape = array.dtype == bool, array.shape
        return parameter("bias", array[tuple([slice(None) if stride else slice(1) for stride in array.strides])])

    def _settle_bias(self, has_gradient: bool) -> None:
        """Gives the bias the shape that the pass takes."""
        bias = self.arrays["bias"]
        if has_gradient:  # each element has its own
            bias = np.ascontiguousarray(np.broadcast_to(bias, self._bias_shape))
        for axis, name in ((2, "q"), (3, "k")):  # C has no axes of size 0
            if bias.shape[axis] == 0 and np.shape(self.storage[name])[-2:-1] == (0,):
                bias = bias.sum(axis, keepdims=True)
        self.arrays["bias"] = bias

    def _broadcast(self, pass_: Pass) -> list[tuple[str, tuple[int, ...]]]:
        """The parameters that the pass expects in another shape, to which they broadcast, and this shape."""
        found = []
        for slot in pass_.slots:
            array = self.arrays.get(slot.name)
            if slot.name in _BROADCAST and array is not None and array.shape != slot.shape \
                    and _broadcasts(_own_shape(array), slot.shape):
                found.append((slot.name, slot.shape))
        return found

    def run(self, pass_name: str, fields: tuple[tuple[str, Any], ...] = (), unwanted: str = "") -> dict[str, Array]:
        """Runs a pass of the plan of the call, with these fields besides; does not make the output `unwanted`."""
        context = context_of(self.device)
        if self._bias_shape:
            self._settle_bias("bias" in dict(fields).get("gradients", ()))
        key = (pass_name, fields, unwanted, *self._key, *signature(self.arrays))
        found: tuple[Plan, Prepared, Any] | None = context._kept.find(key)
        arrays = self.arrays
        if found is None:
            plan = self.plan(context, dict(fields))
            pass_ = plan._pass(pass_name)
            broadcast = self._broadcast(pass_)
            arrays = _in_shapes(self.arrays, broadcast)
            found = context._kept.keep(key, (plan, Prepared(plan, pass_, arrays, (unwanted,)), broadcast))
        plan, prepared, broadcast = found
        if broadcast:
            arrays = _in_shapes(self.arrays, broadcast)
        outputs = prepared.run(plan, arrays, self.seed)
        for name, _ in broadcast:
            if f"grad_{name}" in outputs:
                outputs[f"grad_{name}"] = _sum_to(self.arrays[name], outputs[f"grad_{name}"])
        if "grad_bias" in outputs and 0 in self._bias_shape:
            outputs["grad_bias"] = np.zeros(self._bias_shape, np.float32)
        return outputs

    def reads_outside(self) -> int:
        """The reads of captured arrays outside of them, of the texts of the call."""
        if self._bias_shape:
            self._settle_bias(False)
        resolved, args, count = validate(self.fields()), initialised("clmgk_host_args"), ffi.new("int64_t *")
        pass_ = Pass(resolved, "forward", self.storage["q"].ndim == 4, 0, ffi.NULL)
        arrays = _in_shapes(self.arrays, self._broadcast(pass_))
        for slot in pass_.slots:
            if slot.name in _INTEGERS or slot.name.startswith(("capture_", "numbers")):
                array = arrays.get(slot.name)
                if array is None:
                    raise ValueError(f"{slot.name}: missing")
                slot.check(array)
                if slot.check_values is not None:
                    slot.check_values(array)
                setattr(args, slot.name, ffi.cast("void *", array.ctypes.data))
        call(lib.clmgk_count_reads_outside, resolved, args, count)
        return int(count[0])

    def plan(self, context: Context, fields: Mapping[str, Any]) -> Plan:
        """A new plan for the call, with these fields besides."""
        return Plan._of(context, self.scalars.get("engine", "auto"), {**self.fields(), **fields}, self.storage["q"].ndim == 4,
                        shared=True)

    def fields(self) -> dict[str, Any]:
        """The fields of the descriptor that the arrays and options determine."""
        for name, array in self.storage.items():
            check_array(name, array)
        variant = self.scalars.get("variant", "softmax")
        traits = traits_of(variant)
        if bool(traits & lib.CLMGK_TRAIT_LINEAR) != self.linear:
            raise ValueError(f"variant: {variant!r} belongs to clmgk.{'attention' if self.linear else 'linear_attention'}")
        mixed = bool(traits & lib.CLMGK_TRAIT_ADMIXTURE)
        q, k = self.storage["q"], self.storage["k"]
        v = self.storage.get("v")
        batched = self._batched(traits)
        fields: dict[str, Any] = {name: value for name, value in self.scalars.items()
                                  if name not in ("window_left", "window_right", "variance", "scale", "engine", "mask_block")}
        head = 1 if batched else 0
        fields.update(variant=variant, dtype=dtype_name("q", q), dtype_k=self._type("k"), length=q.shape[-2],
                      length_k=k.shape[-2] or lib.CLMGK_NO_KEYS, head_size=q.shape[-1],
                      batch=q.shape[0] if batched else 1)
        if "page_table" in self.arrays:  # k and v are pools of pages
            table = self.arrays["page_table"]
            if table.ndim not in (1, 2) or table.shape[-1] == 0:
                raise ValueError(f"page_table: shape {table.shape}: expected [B,C], or with page_offsets [C]")
            fields.update(length_k=0, page_size=k.shape[-2], pages=k.shape[0], table_pages=table.shape[-1])
        if v is not None:
            fields.update(dtype_v=self._type("v"), value_size=v.shape[-1] * BLOCKS.get(self._type("v"), 1))
        if "o" in self.storage:
            fields["dtype_o"] = dtype_name("o", self.storage["o"])
        if mixed:
            fields.update(self._mixed_heads(traits, q.shape[head], v.shape[head] if v is not None else 0))
        else:
            fields.update(heads=self._heads(q.shape[head], "q"), kv_heads=k.shape[head])
        if traits & lib.CLMGK_TRAIT_KEYS:
            fields["components"] = k.shape[-3]
        if "shift" in self.arrays and self.arrays["shift"].ndim >= 2:
            fields["components"] = self.arrays["shift"].shape[-2]
        for name, array in self.storage.items():
            if name in ("q", "k", "v", "grad_o"):
                has_components = name == "k" and bool(traits & lib.CLMGK_TRAIT_KEYS)
                fields[name] = _layout(name, array, has_components)
            elif name == "o" or name.startswith("grad_"):
                fields[name] = _layout(name, array, name == "grad_k" and bool(traits & lib.CLMGK_TRAIT_KEYS))
        for name in ("scale_k", "scale_v"):
            if name in self.arrays:
                has_components = name == "scale_k" and bool(traits & lib.CLMGK_TRAIT_KEYS)
                fields[name] = _layout(name, self.arrays[name][..., np.newaxis], has_components)
        self._parameters(fields)
        if self.captures:
            fields["captures"] = [Capture(name, _capture_type(array), array.shape) for name, array in
                                  zip(self.captures, (self.arrays[f"capture_{i}"] for i in range(len(self.captures))))]
        if self.numbers:
            fields["numbers"] = self.numbers
        return fields

    def _type(self, name: str) -> str:
        """The C name of the element type of k or v."""
        return self.types.get(name) or dtype_name(name, self.storage[name])

    def _batched(self, traits: int) -> bool:
        """Checks the numbers of axes."""
        batched = self.storage["q"].ndim == 4
        for name, array in self.storage.items():
            if name in ("q", "k", "v"):
                axes = 3 + batched + (name == "k" and bool(traits & lib.CLMGK_TRAIT_KEYS))
                if array.ndim != axes:
                    what = "[B,G,M,S,D]" if axes == 4 + batched else {"q": "[B,H,N,D]", "k": "[B,G,S,D]"}.get(
                        name, "[B,G,S,E]")
                    raise ValueError(f"{name}: shape {array.shape}: expected {what}, or all arrays without B")
                if 0 in (array.shape[-1], array.shape[0], array.shape[batched]):
                    raise ValueError(f"{name}: shape {array.shape}: expected at least one batch and one head, of size 1 or more")
        return batched

    def _heads(self, heads: int, source: str) -> int:
        """H of an array, which the option `heads` may repeat."""
        if self.scalars.get("heads", heads) != heads:
            raise ValueError(f"heads: {self.scalars['heads']}: expected {heads}, as in {source}")
        return heads

    def _mixed_heads(self, traits: int, components: int, value_heads: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"components": components}
        source = head_source(self.scalars, self.arrays)
        mix = self.arrays.get(source)
        if mix is not None and mix.ndim == 2:
            fields["heads"] = self._heads(mix.shape[0], source)
            if source == "mix_after":
                fields["mix_after_heads"] = mix.shape[1]
        elif source == "mix_after" and mix is not None:
            raise ValueError(f"mix_after: shape {mix.shape}: expected [H,A]")
        elif "heads" not in self.scalars:
            fields["heads"] = value_heads
        if value_heads:
            fields["kv_heads"] = value_heads
        return fields

    def _parameters(self, fields: dict[str, Any]) -> None:
        """Fields that follow from the arrays of parameters."""
        for name, switch in _SWITCHES.items():
            if name in self.arrays:
                fields[switch] = True
        variance = self.scalars.get("variance")
        if variance is not None:
            try:
                fields["variance"] = float(variance)
            except ValueError:
                raise TypeError(f"variance: {variance!r}: expected a number") from None
            if not fields["variance"] > 0:
                raise ValueError(f"variance: {variance}: expected a positive number")
        if "scale" in self.scalars:
            self._scale(fields, self.scalars["scale"])
        for name, ranks in (("prior", (None, "m", "hm", "hms")), ("variance", (None, "m", "hm"))):
            if name in self.arrays:
                rank = max(1, self.arrays[name].ndim)
                if rank >= len(ranks):
                    raise ValueError(f"{name}: shape {self.arrays[name].shape}: expected [M] or [H,M]"
                                     + (" or [H,M,S]" if name == "prior" else ""))
                fields[f"{name}_shape"] = ranks[rank]
        if "projection" in self.arrays:
            if self.arrays["projection"].ndim != 2:
                raise ValueError(f"projection: shape {self.arrays['projection'].shape}: expected [R,D]")
            fields["features"] = self.arrays["projection"].shape[0]
        if "bias" in self.arrays:
            axes = ("bias_batch", "bias_heads", "bias_length", "bias_length_k")
            fields.update(zip(axes, self.arrays["bias"].shape, strict=True))
        if "mask_blocks" in self.arrays:
            classes = self.arrays["mask_blocks"]
            if classes.ndim != 4 or 0 in classes.shape[:2]:
                raise ValueError(f"mask_blocks: shape {classes.shape}: expected [B or 1,H or 1,blocks of queries,blocks of keys]")
            fields.update(mask_blocks_batch=classes.shape[0], mask_blocks_heads=classes.shape[1])
        if "mask_block" in self.scalars:
            fields.update(zip(("mask_block_q", "mask_block_k"), self.scalars["mask_block"]))
        if "offsets" in self.arrays:
            offsets = self.arrays["offsets"]
            if offsets.ndim != 1 or offsets.size < 2:
                raise ValueError(f"offsets: shape {offsets.shape}: expected [T+1] with T sequences, one or more")
            fields["sequences"] = offsets.size - 1
        if "window_left" in self.scalars or "window_right" in self.scalars:
            fields.update(use_window=True, window_left=self.scalars.get("window_left", -1),
                          window_right=self.scalars.get("window_right", -1))

    def _scale(self, fields: dict[str, Any], scale: Any) -> None:
        """The factor of scores as the field `variance`."""
        if "variance" in self.scalars or "variance" in self.arrays:
            raise ValueError("scale: given beside variance: expected one of them")
        if isinstance(scale, str):
            raise TypeError(f"scale: {scale!r}: expected a number")
        if not 1e-38 <= scale <= 1e38:
            raise ValueError(f"scale: {scale}: expected a number from 1e-38 to 1e38")
        if traits_of(fields["variant"]) & lib.CLMGK_TRAIT_ADMIXTURE:
            usual = fields["head_size"] ** -0.5
            if abs(scale / usual - 1) > 1e-6:
                raise ValueError(f"scale: {scale}: expected {usual:.9g} or None with variant {fields['variant']} (to change the "
                                 f"scale, multiply the mixing)")
        else:
            fields["variance"] = 1 / scale
