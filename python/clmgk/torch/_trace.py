# SPDX-License-Identifier: Apache-2.0
"""FlexAttention's callables as texts of scores and masks: each runs once, on tensors that record what is done to them."""
from __future__ import annotations

import functools
import math
from typing import Any, Callable, Optional, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

BOOL, INT, FLOAT = range(3)
_SCALARS = [torch.empty((), dtype=dtype, device="meta") for dtype in (torch.bool, torch.int32, torch.float32)]
_MAX_INT, _MAX_FLOAT, _MAX_AXES = 2**31 - 1, torch.finfo(torch.float32).max, 4
_MAX_ROW, _MAX_DEPTH = 1024, 12  # elements of a row; operations in one another, beyond which a text has a name for one
_UNKNOWN = (-math.inf, math.inf)
_MISSING = "texts of scores and masks have no such operation"


# ---- expressions


class Expr:
    """A number of each pair of a query and a key. `form` is its text around those of `args`; the forms "[]" and "number" are
    an element of a tensor, and a tensor without axes."""

    __slots__ = ("kind", "form", "args", "tensor", "value", "names", "_bounds")

    def __init__(self, kind: int, form: str, args: Sequence[Expr] = (), tensor: Tensor | None = None, value: Any = None) -> None:
        self.kind, self.form, self.args, self.tensor, self.value = kind, form, args, tensor, value
        self.names: frozenset[str] = frozenset().union(*[arg.names for arg in args])
        self._bounds = (value, value) if value is not None else None

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value of an int, as far as known."""
        if self._bounds is None:
            self._bounds = _bounds_of(self)
        return self._bounds

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors in it."""
        found, seen, stack = [], set[int](), [self]
        while stack:
            expr = stack.pop()
            if id(expr) not in seen:
                seen.add(id(expr))
                stack += expr.args
                found += [] if expr.tensor is None else [expr.tensor]
        return found


def _kind_of(dtype: torch.dtype) -> int:
    return FLOAT if dtype.is_floating_point else BOOL if dtype == torch.bool else INT


def _bounds_of(expr: Expr) -> tuple[float, float]:
    if expr.form == "[]" and expr.tensor is not None:
        return _bounds_in(expr.tensor) if expr.kind == INT else _UNKNOWN
    if expr.kind != INT or not expr.args or any(arg.kind == FLOAT for arg in expr.args):
        return (0, 1) if expr.kind == BOOL else _UNKNOWN
    (a, b), (c, d) = expr.args[-2 if len(expr.args) > 1 else 0].bounds, expr.args[-1].bounds
    bounds = {
        "({} + {})": (a + c, b + d),
        "({} - {})": (a - d, b - c),
        "({} * {})": (a * c, b * d) if min(a, c) >= 0 and max(b, d) < math.inf else _UNKNOWN,
        "({} / {})": (0, b) if a >= 0 and c >= 0 else _UNKNOWN,
        "({} % {})": (0, d) if a >= 0 and c >= 0 else _UNKNOWN,
        "({} ? {} : {})": (min(a, c), max(b, d)),
        "min({}, {})": (min(a, c), min(b, d)),
        "max({}, {})": (max(a, c), max(b, d)),
        "abs({})": (0, max(-a, b)),
        "int({})": (a, b),
    }.get(expr.form, _UNKNOWN)
    return bounds if max(-bounds[0], bounds[1]) <= _MAX_INT else _UNKNOWN  # what is larger may wrap around


def _literal(value: Any) -> Expr:
    if isinstance(value, bool):
        return Expr(BOOL, "true" if value else "false", value=value)
    if isinstance(value, int):
        if abs(value) > _MAX_INT:
            raise NotImplementedError(f"{value}: expected an integer of 32 bits")
        return Expr(INT, str(value) if value >= 0 else f"({value})", value=value)
    if not abs(value) <= _MAX_FLOAT:
        return Expr(FLOAT, "(1 / 0.0)" if value > 0 else "(-1 / 0.0)" if value < 0 else "(0 / 0.0)")
    return Expr(FLOAT, f"({value!r})", value=value)


class _Ints:
    """A tensor of ints or bools as int32, and its bounds."""

    _known = WeakTensorKeyDictionary()

    def __init__(self, tensor: Tensor) -> None:
        self.version = None if tensor.is_inference() else tensor._version
        # Numbers beyond int32 must not wrap around. None: the tensor itself, which is the key and must not be kept alive.
        with torch.inference_mode(False):  # a later call may have gradients
            whole = tensor.clamp(-_MAX_INT, _MAX_INT) if tensor.dtype == torch.int64 else tensor
            self.converted = None if tensor.dtype == torch.int32 else whole.to(torch.int32)
        self.bounds: tuple[float, float] | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> _Ints:
        found: _Ints | None = cls._known.get(tensor)
        if found is None or found.version is None or found.version != tensor._version:
            found = cls._known[tensor] = cls(tensor)
        return found


def _bounds_in(tensor: Tensor) -> tuple[float, float]:
    ints = _Ints.of(tensor)
    if ints.bounds is None:
        least, largest = tensor.aminmax() if tensor.numel() else (0, 0)
        ints.bounds = int(least), int(largest)
    return ints.bounds


# ---- operations


def _op(form: str, kind: int | None = None) -> Callable[..., Expr]:
    """The operation of this text; of the widest type of its arguments, unless `kind` is given."""
    count = form.count("{}") or 1 + ("{1}" in form)

    def make(*args: Expr) -> Expr:
        if len(args) != count:
            raise NotImplementedError(_MISSING)
        return Expr(max([INT, *[arg.kind for arg in args]]) if kind is None else kind, form, args)
    return make


_sum, _subtract, _multiply, _divide, _rest = (_op(f"({{}} {sign} {{}})") for sign in "+-*/%")
_less, _equal, _and, _or = (_op(f"({{}} {sign} {{}})", BOOL) for sign in ("<", "==", "&&", "||"))
_not, _floor, _min, _max = _op("(!{})", BOOL), _op("floor({})", FLOAT), _op("min({}, {})"), _op("max({}, {})")


def _add(a: Expr, b: Expr) -> Expr:
    return (_or if a.kind == b.kind == BOOL else _sum)(a, b)


def _cast(x: Expr, kind: int) -> Expr:
    return x if x.kind == kind else Expr(kind, f"{('bool', 'int', 'float')[kind]}({{}})", (x,))


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return Expr(max(a.kind, b.kind), "({} ? {} : {})", (condition, a, b))


def _scaled(operation: Callable[..., Expr]) -> Callable[..., Expr]:
    return lambda a, b, alpha=None: operation(a, b if alpha is None else _multiply(b, alpha))


def _true_divide(a: Expr, b: Expr, rounding_mode: str | None = None) -> Expr:
    if rounding_mode == "trunc":
        raise NotImplementedError(_MISSING)
    return _floor_divide(a, b) if rounding_mode else _divide(_cast(a, FLOAT), b)


def _floor_divide(a: Expr, b: Expr) -> Expr:
    if FLOAT in (a.kind, b.kind):
        return _floor(_divide(a, b))
    return _divide(a if min(a.bounds[0], b.bounds[0]) >= 0 else _subtract(a, _remainder(a, b)), b)


def _remainder(a: Expr, b: Expr) -> Expr:
    """Of the divisor's sign; the language has C's."""
    if FLOAT in (a.kind, b.kind):
        return _subtract(a, _multiply(b, _floor(_divide(a, b))))
    rest, zero = _rest(a, b), _literal(0)
    if min(a.bounds[0], b.bounds[0]) >= 0:
        return rest
    if b.bounds[0] > 0:
        return _rest(_add(rest, b), b)
    other = _not(_equal(_less(rest, zero), _less(b, zero)))
    return _where(_and(_not(_equal(rest, zero)), other), _add(rest, b), rest)


def _power(a: Expr, b: Expr) -> Expr:
    if b.value in (1, 2, 3):
        return functools.reduce(_multiply, [_cast(a, max(a.kind, b.kind))] * int(b.value))
    if FLOAT not in (a.kind, b.kind):
        raise NotImplementedError(_MISSING)
    return _op("pow({}, {})", FLOAT)(a, b)


def _clamp(x: Expr, min: Expr | None = None, max: Expr | None = None) -> Expr:
    x = x if min is None else _max(x, min)
    return x if max is None else _min(x, max)


def _gelu(x: Expr, approximate: str = "none") -> Expr:
    cubic = "(0.5 * {0} * (1 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0}))))"
    return Expr(FLOAT, "gelu({})" if approximate == "none" else cubic, (x,))


def _bitwise(of_bools: Callable[..., Expr]) -> Callable[..., Expr]:
    def apply(*args: Expr) -> Expr:
        if any(arg.kind != BOOL for arg in args):
            raise NotImplementedError(_MISSING)
        return of_bools(*args)
    return apply


def _keep_ints(of_floats: Callable[..., Expr]) -> Callable[..., Expr]:
    return lambda x: of_floats(x) if x.kind == FLOAT else x


_OPERATIONS: dict[str, Callable[..., Expr]] = {
    **{name: _op(f"{name}({{}})", FLOAT)
       for name in ("exp", "log", "log1p", "sqrt", "rsqrt", "tanh", "sin", "cos", "erf", "sigmoid")},
    **{name: _op(form, FLOAT) for name, form in {
        "exp2": "exp(0.6931471805599453 * {0})", "log2": "(1.4426950408889634 * log({0}))", "silu": "({0} * sigmoid({0}))",
        "log10": "(0.4342944819032518 * log({0}))", "tan": "(sin({0}) / cos({0}))", "reciprocal": "(1.0 / {0})",
        "softplus": "(max({0}, 0) + log1p(exp(-abs({0}))))"}.items()},
    **{name: _op(form, BOOL) for name, form in {
        "lt": "({} < {})", "gt": "({1} < {0})", "le": "({} <= {})", "ge": "({} >= {})", "eq": "({} == {})", "ne": "({} != {})",
        "logical_and": "({} && {})", "logical_or": "({} || {})", "logical_not": "(!{})",
        "logical_xor": "(bool({}) != bool({}))"}.items()},
    **{name: functools.partial(_cast, kind=kind) for name, kind in {
        "bool": BOOL, "int": INT, "long": INT, "float": FLOAT, "double": FLOAT, "half": FLOAT, "bfloat16": FLOAT}.items()},
    "add": _scaled(_add), "sub": _scaled(_subtract), "rsub": lambda a, b: _subtract(b, a), "mul": _multiply, "div": _true_divide,
    "floordiv": _floor_divide, "remainder": _remainder, "pow": _power, "square": lambda x: _multiply(x, x),
    "neg": _op("(-{})"), "abs": _op("abs({})"), "relu": _op("relu({})"), "gelu": _gelu, "clone": lambda x: x,
    "sign": lambda x: _cast(_subtract(_less(_literal(0), x), _less(x, _literal(0))), x.kind), "floor": _keep_ints(_floor),
    "ceil": _keep_ints(_op("(-floor(-{0}))", FLOAT)), "trunc": _keep_ints(_op("({0} < 0 ? -floor(-{0}) : floor({0}))", FLOAT)),
    "minimum": _min, "maximum": _max, "clamp": _clamp, "clamp_min": _clamp, "clamp_max": lambda x, max: _min(x, max),
    "where": _where, "masked_fill": lambda x, mask, value: _where(mask, _cast(value, x.kind), x), "bitwise_and": _bitwise(_and),
    "bitwise_or": _bitwise(_or), "bitwise_not": _bitwise(_not), "bitwise_xor": _bitwise(_op("({} != {})", BOOL))}


# ---- traced tensors


class _Value:
    """What a traced tensor holds: an expression or an array of them, or a row of a tensor of which no element was read so far
    (`row`: the tensor, and for each axis an index, or None for all of it); `call` made it: a function and its arguments."""

    __slots__ = ("whole", "row", "call", "table")

    def __init__(self, whole: Any, call: Any = None, row: tuple[Tensor, list[_Value | None]] | None = None) -> None:
        self.whole, self.call, self.row = whole, call, row
        self.table: Tensor | None = None  # its values at all positions of the one name that it depends on

    @property
    def exprs(self) -> Any:
        if self.whole is None and self.row:
            self.whole = _read_row(*self.row)
        return self.whole

    @property
    def names(self) -> frozenset[str]:
        if self.row:
            return frozenset().union(*[pick.names for pick in self.row[1] if pick is not None])
        return frozenset().union(*[expr.names for expr in np.ravel(self.exprs)])


class _Traced(Tensor):
    """A tensor that records what is done to it, while a `_Tracer` is active."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    value: _Value


def _traced(value: _Value) -> _Traced:
    if value.whole is None and value.row:
        shape = tuple([size for size, pick in zip(value.row[0].shape, value.row[1]) if pick is None])
        kind = _kind_of(value.row[0].dtype)
    else:
        shape = np.shape(value.exprs)
        kind = value.exprs.flat[0].kind if shape else value.exprs.kind
    found: _Traced = torch.Tensor._make_subclass(_Traced, _SCALARS[kind].new_empty(shape) if shape else _SCALARS[kind])
    found.value = value
    return found


def _name(name: str, size: int) -> Expr:
    expr = Expr(FLOAT if name == "s" else INT, name)
    expr.names = frozenset(name)
    expr._bounds = (0, max(0, size - 1))
    return expr


def _element(tensor: Tensor, indices: Sequence[Expr]) -> Expr:
    if tensor.dtype.is_complex or len(indices) > _MAX_AXES:
        raise NotImplementedError(f"{tensor.ndim} axes of {tensor.dtype}: expected at most {_MAX_AXES}, of real numbers")
    places = []
    for index, size in zip(indices, tensor.shape):
        if index.kind != INT:
            raise NotImplementedError("an index that is no integer: expected one for each axis")
        if index.value is not None:
            index = _literal(index.value + size if index.value < 0 else index.value)
        elif index.bounds[0] < 0:  # counts from the end
            index = _where(_less(index, _literal(0)), _add(index, _literal(size)), index)
        places.append(index)
    if tensor.is_floating_point():
        return Expr(FLOAT, "[]", places, tensor)
    number = Expr(INT, "[]", places, tensor)
    return Expr(BOOL, "({} != 0)", (number,)) if tensor.dtype == torch.bool else number


def _read_row(tensor: Tensor, picks: Sequence[_Value | None]) -> Any:
    shape = tuple([size for size, pick in zip(tensor.shape, picks) if pick is None])
    if math.prod(shape) > _MAX_ROW:
        raise NotImplementedError(f"a row of {math.prod(shape)} elements of a tensor: expected {_MAX_ROW} at most")
    if not shape:
        exprs = [pick.exprs for pick in picks if pick is not None]
        return np.frompyfunc(lambda *indices: _element(tensor, indices), len(exprs), 1)(*exprs)
    found = np.empty(shape, object)
    for place in np.ndindex(shape):
        rest = iter(place)
        found[place] = _element(tensor, [_literal(next(rest)) if pick is None else pick.exprs for pick in picks])
    return found


def _lift(x: Any) -> Any:
    """An argument of an operation as expressions; what is no number or tensor as it is."""
    if isinstance(x, _Traced):
        return x.value.exprs
    if isinstance(x, Tensor):
        if x.ndim:
            return _read_row(x, [None] * x.ndim)
        return Expr(FLOAT, "number", tensor=x) if x.is_floating_point() else _element(x, [])
    return _literal(x) if isinstance(x, (bool, int, float)) else x


def _gather(tensor: Tensor, *picks: Any) -> Tensor:
    """tensor[picks], which torch.vmap can map."""
    found: Tensor = torch.ops.aten.index.Tensor(tensor, [None if pick is None else pick.to(tensor.device) for pick in picks])
    return found


def _unwrapped(x: Any) -> Any:
    return x.value if isinstance(x, _Traced) else x


_REVERSED = {"__rsub__": "sub", "__rdiv__": "div", "__rtruediv__": "div", "__rfloordiv__": "floordiv", "__rpow__": "pow",
             "__rmod__": "remainder"}
_NAMES = {  # other names of the same
    **_REVERSED, **{f"__{name}__": name for name in ("lt", "gt", "le", "ge", "eq", "ne", "pow")},
    **{f"__{prefix}{name}__": f"bitwise_{name}" for name in ("and", "or", "xor") for prefix in ("", "r", "i")},
    "__invert__": "bitwise_not", "__floordiv__": "floordiv", "floor_divide": "floordiv", "__mod__": "remainder",
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "negative": "neg", "absolute": "abs", "clip": "clamp", "less": "lt",
    "greater": "gt", "less_equal": "le", "greater_equal": "ge", "not_equal": "ne", "max": "maximum", "min": "minimum",
    "special_erf": "erf", "special_expit": "sigmoid", "contiguous": "clone"}
_REDUCTIONS = {"any": _or, "all": _and, "sum": _sum, "amax": _max, "amin": _min}
_CONSTANTS = ("new_ones", "new_zeros", "new_full", "new_tensor", "ones_like", "zeros_like", "full_like")
_FACTS = ("shape", "dtype", "ndim", "requires_grad", "dim", "size", "numel", "is_floating_point", "__len__")


def _elementwise(operation: Callable[..., Expr], args: Any, kwargs: Any, call: Any) -> _Traced:
    names = [name for name in kwargs if name != "inplace"]
    lifted = [_lift(x) for x in (*args, *[kwargs[name] for name in names])]
    count = len(args)

    def apply(*parts: Any) -> Expr:
        return operation(*parts[:count], **dict(zip(names, parts[count:])))
    if not any(isinstance(part, np.ndarray) for part in lifted):
        return _traced(_Value(apply(*lifted), call))
    return _traced(_Value(np.frompyfunc(apply, len(lifted), 1)(*lifted), call))


def _reduce(operation: Callable[..., Expr], call: Any, x: _Traced, dim: int | None = None, keepdim: bool = False) -> Tensor:
    exprs = np.atleast_1d(x.value.exprs) if dim is not None else np.ravel(x.value.exprs)
    found = functools.reduce(np.frompyfunc(operation, 2, 1), np.moveaxis(exprs, dim or 0, 0))
    return _traced(_Value(np.expand_dims(found, dim) if keepdim and dim is not None else found, call))


def _index(call: Any, base: Tensor, index: Any) -> Tensor:
    """An element or row of a tensor, or of a row or array of a traced one."""
    index = list(index) if isinstance(index, tuple) else [index]
    tensor, picks = base, list[Optional[_Value]]([None] * base.ndim)
    if isinstance(base, _Traced):
        if base.value.row is None or None not in base.value.row[1]:
            return _traced(_Value(base.value.exprs[tuple(index)], call))
        tensor, picks = base.value.row[0], list(base.value.row[1])
    left = [axis for axis, pick in enumerate(picks) if pick is None]
    for n, part in enumerate(index):
        if part is Ellipsis:
            index[n:n + 1] = [slice(None)] * (len(left) - len(index) + 1)
            break
    for axis, part in zip(left, index):
        if isinstance(part, (int, Tensor)) and not isinstance(part, bool):
            picks[axis] = part.value if isinstance(part, _Traced) else _Value(_lift(part))
        elif not isinstance(part, slice) or part != slice(None):
            raise NotImplementedError(f"an index {part}: expected an integer, ':' or '...'")
    if len(index) > len(left):
        raise IndexError(f"too many indices for a tensor of {len(left)} axes")
    whole = None if None in picks else _read_row(tensor, picks)
    return _traced(_Value(whole, (_gather, (tensor, *picks), {}), (tensor, picks)))


def _holds(x: Any) -> bool:
    return isinstance(x, _Traced) or isinstance(x, (tuple, list)) and any(map(_holds, x))


class _Tracer(TorchFunctionMode):
    """Records what a callable does to traced tensors."""

    def __init__(self, field: str, sizes: dict[str, int], device: torch.device) -> None:
        super().__init__()
        self.field, self.sizes, self.device = field, sizes, device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _holds(args) and not _holds(tuple(kwargs.values())):
            return func(*args, **kwargs)
        try:
            return self._record(func, func.__name__, args, kwargs)
        except (NotImplementedError, TypeError) as error:
            return self._tabulate(func, args, kwargs, error if isinstance(error, NotImplementedError) else _MISSING)

    def _record(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            overload = func.default if isinstance(func, torch._ops.OpOverloadPacket) else func
            name = overload._opname
            if overload.namespace != "aten":  # what its function for tensors without memory does
                with self:
                    return overload.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.Meta), *args, **kwargs)
        if name == "__get__":
            name = func.__self__.__name__
        if name == "device":
            return self.device
        if name in _FACTS:
            return func(*args, **kwargs)
        if name in _CONSTANTS:
            made = func(torch.empty((), dtype=args[0].dtype, device=self.device), *args[1:], **kwargs)
            return made if made.ndim else _traced(_Value(_literal(made.item())))
        call = pytree.tree_map(_unwrapped, (func, args, kwargs))
        if name == "__getitem__":
            return _index(call, *args)
        if name in ("to", "type", "type_as"):
            dtype = next(x if isinstance(x, torch.dtype) else x.dtype for x in (*args[1:], *kwargs.values(), args[0])
                         if isinstance(x, (torch.dtype, Tensor)))
            return _elementwise(functools.partial(_cast, kind=_kind_of(dtype)), args[:1], {}, call)
        if name in _REDUCTIONS:
            return _reduce(_REDUCTIONS[name], call, *args, **kwargs)
        if name == "unsqueeze":
            return _traced(_Value(np.expand_dims(np.asarray(args[0].value.exprs, object), *args[1:], **{
                "axis": axis for axis in kwargs.values()}), call))
        in_place = name.endswith("_") and not name.endswith("__")
        args = args[::-1] if name in _REVERSED else args
        operation = _OPERATIONS.get(_NAMES.get(name, name[:-1] if in_place else name))
        if operation is None:
            raise NotImplementedError(_MISSING)
        found = _elementwise(operation, args, kwargs, call)
        if in_place:
            args[0].value = found.value
        return args[0] if in_place else found

    def _tabulate(self, func: Any, args: Any, kwargs: Any, why: Any) -> Tensor:
        """What the language does not have, of one name but the score, as a tensor of its values at all positions."""
        value = _Value(None, pytree.tree_map(_unwrapped, (func, args, kwargs)))
        names = frozenset().union(*[part.names for part in pytree.tree_leaves(value.call) if isinstance(part, _Value)])
        name = next(iter(names), "s")
        what = f"{self.field}: {resolve_name(func) or func}"
        if len(names) != 1 or name == "s":
            raise NotImplementedError(f"{what}: {why}")
        try:
            table = self._table(value, name)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise NotImplementedError(f"{what}: {why}, nor has torch.vmap: {error}") from None
        value.row = table, [_Value(_name(name, self.sizes[name])), *[None] * (table.ndim - 1)]
        return _traced(value)

    def _table(self, value: _Value, name: str) -> Tensor:
        if value.table is None and value.call is None:
            value.table = torch.arange(self.sizes[name], dtype=torch.int32) if value.names else torch.tensor(value.exprs.value)
            value.table = value.table.to(self.device)
        elif value.table is None:
            leaves, spec = pytree.tree_flatten(value.call)
            places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, _Value)]
            tables = [self._table(leaves[n], name) for n in places]

            def run(*parts: Tensor) -> Tensor:
                for n, part in zip(places, parts):
                    leaves[n] = part
                func, args, kwargs = pytree.tree_unflatten(leaves, spec)
                found: Tensor = func(*args, **kwargs)
                return found
            value.table = torch.vmap(run, in_dims=tuple([0 if leaves[n].names else None for n in places]))(*tables)
        return value.table


# ---- texts


class Texts:
    """Expressions as texts, with the tensors that they read."""

    def __init__(self) -> None:
        self.captures: dict[str, Tensor] = {}
        self.numbers: dict[str, Tensor] = {}
        self._named: dict[int, tuple[str, Tensor]] = {}  # by the id of a tensor, which lives as long as this

    def _name(self, expr: Expr, gradients: bool) -> str:
        tensor = expr.tensor
        assert tensor is not None
        if id(tensor) not in self._named:
            number = expr.form == "number"
            into, letter, limit = (self.numbers, "n", 16) if number else (self.captures, "c", 8)
            name = f"{letter}{len(into)}"
            if len(into) == limit:
                raise NotImplementedError(f"more than {limit} captured tensors {'without' if number else 'with'} axes")
            self._named[id(tensor)] = name, tensor
            if not tensor.is_floating_point():
                converted = _Ints.of(tensor).converted
                tensor = (tensor if converted is None else converted).reshape(tensor.shape or (1,))
            into[name] = tensor if gradients else tensor.detach()
        return self._named[id(expr.tensor)][0]

    def write(self, root: Expr, gradients: bool) -> str:
        """The text. What occurs more than once in it has a name."""
        uses: dict[int, int] = {}
        ordered: list[Expr] = []
        stack = [(root, False)]
        while stack:
            expr, done = stack.pop()
            if done:
                ordered.append(expr)
                continue
            uses[id(expr)] = uses.get(id(expr), 0) + 1
            if uses[id(expr)] == 1:
                stack.append((expr, True))
                stack += [(arg, False) for arg in reversed(expr.args)]
        lets: list[str] = []
        texts: dict[int, tuple[str, int]] = {}
        for expr in ordered:
            parts = [texts[id(arg)] for arg in expr.args]
            depth = 1 + max([part[1] for part in parts], default=-1)
            if expr.tensor is not None:
                text = self._name(expr, gradients)
                text += f"[{', '.join([part[0] for part in parts] or ['0'])}]" if expr.form == "[]" else ""
            else:
                text = expr.form.format(*[part[0] for part in parts]) if parts else expr.form
            if expr.args and expr is not root and (uses[id(expr)] > 1 or depth >= _MAX_DEPTH):
                lets.append(f"let v{len(lets)} = {text}; ")
                text, depth = f"v{len(lets) - 1}", 0
            texts[id(expr)] = text, depth
        return "".join(lets) + texts[id(root)][0]


def trace(field: str, function: Callable[..., Any], sizes: dict[str, int], device: torch.device) -> Expr:
    """The value of a function of names, each in the range of its size; "s" is the score."""
    arguments = [_traced(_Value(_name(name, size))) for name, size in sizes.items()]
    with _Tracer(field, sizes, device):
        result = function(*arguments)
    if not isinstance(result, (Tensor, bool, int, float)):
        raise TypeError(f"{field}: returns {type(result).__name__}: expected a tensor without axes")
    if isinstance(result, Tensor) and result.ndim:
        raise ValueError(f"{field}: returns a tensor of the shape {tuple(result.shape)}: expected one without axes")
    found: Expr = _lift(result)
    if found.kind == FLOAT and "s" not in sizes:
        raise TypeError(f"{field}: returns a float: expected a condition")
    return found
