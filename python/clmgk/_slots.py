# SPDX-License-Identifier: Apache-2.0
"""The arrays of a pass: what a plan expects, and checks of what it gets."""
from __future__ import annotations

import functools
import math
from typing import Any, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ._library import ARRAYS, NULL, PASSES, ffi, lib, name_of, text

Array = NDArray[Any]

def check_array(name: str, array: Any) -> None:
    """Raises for what is no array, or has a mask."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: {type(array).__name__}: expected a NumPy array")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array: expected one without a mask (lengths and bias hide keys)")


# Element types of arrays, by their names in C.
_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
# Of K and V alone: codes of floats, and blocks of bytes.
_CACHE_NAMES = {"e4m3": "uint8", "e5m2": "uint8", "q8_0": "V34", "q4_0": "V18"}
# Those of K and V alone by NumPy's names, of float8 types of the package ml_dtypes.
_CACHE_TYPES = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "int8", "void272": "q8_0", "void144": "q4_0"}
BLOCKS = {"q8_0": 32, "q4_0": 32}  # elements of a block


@functools.lru_cache(maxsize=None)
def numpy_dtype(name: Any) -> np.dtype[Any]:
    """NumPy's element type of one of C's."""
    if name == "bf16":
        try:
            import ml_dtypes
        except ImportError:
            raise RuntimeError("bfloat16 arrays need the package ml_dtypes") from None
        name = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype((_NAMES | _CACHE_NAMES).get(name, name))
    return found


def dtype_name(argument: str, array: Array) -> str:
    """The C name of an array's element type."""
    for name, known in _NAMES.items():
        if array.dtype.name == known and array.dtype.isnative:
            return name
    advice = "" if array.dtype.kind == "c" else f": convert it by {argument}.astype(numpy.float32)"
    raise TypeError(f"{argument}: elements of type {array.dtype}: expected float32, float16 or bfloat16 (ml_dtypes){advice}")


def cache_dtype_name(argument: str, array: Array, given: str | None) -> str:
    """The C name of the element type of K or V; `given`: the option that names it."""
    if array.dtype.name == "uint8":
        if given not in ("e4m3", "e5m2"):
            raise TypeError(f"{argument}: elements of type uint8: expected dtype_{argument} 'e4m3' or 'e5m2', which says what "
                            "they are")
        return given
    found = _CACHE_TYPES.get(array.dtype.name) or dtype_name(argument, array)
    if given not in (None, found):
        raise ValueError(f"dtype_{argument}: {given!r}: expected {found!r}, the type of {argument}'s elements")
    return found


def check_range(name: str, array: Array, low: float, high: float, words: str) -> None:
    """Raises for the first element that is not in the range, which `words` describe."""
    inside = (array >= low) & (array <= high)
    if not inside.all():
        index = tuple(int(i) for i in np.unravel_index(np.argmin(inside), array.shape))
        place = f"[{', '.join(map(str, index))}]" if index else ""
        raise ValueError(f"{name}{place}: {array[index]}: expected {words}")


def _check_ascending(name: str, array: Array, end: int) -> None:
    if array[0] != 0 or array[-1] != end or bool((np.diff(array) < 0).any()):
        raise ValueError(f"{name}: {array}: expected offsets that ascend from 0 to {end}")


_LARGEST = float(np.finfo(np.float32).max)
_LEAST = float(np.finfo(np.float32).smallest_subnormal)
# The least and the largest legal value, and the words for them.
_RANGES = {
    lib.CLMGK_VALUES_FINITE: (-_LARGEST, _LARGEST, "finite numbers"),
    lib.CLMGK_VALUES_NOT_NEGATIVE: (0.0, _LARGEST, "finite numbers, 0 or more"),
    lib.CLMGK_VALUES_POSITIVE: (_LEAST, _LARGEST, "positive finite numbers"),
    lib.CLMGK_VALUES_NOT_RAISED: (-np.inf, _LARGEST, "numbers or -inf"),
}


def _value_check(name: str, values: int, end: int) -> Callable[[Array], None] | None:
    """The check of an input's values, as the C calls on host arrays make it; None if all are legal."""
    if values in (lib.CLMGK_VALUES_ANY, lib.CLMGK_VALUES_PAGES, lib.CLMGK_VALUES_SLOTS):  # pages and slots: by C, together
        return None
    if values == lib.CLMGK_VALUES_OFFSETS:
        return lambda array: _check_ascending(name, array, end)
    if values == lib.CLMGK_VALUES_POSITIONS:
        end = 2**30 - 1
    whole = values in (lib.CLMGK_VALUES_LENGTHS, lib.CLMGK_VALUES_POSITIONS)
    low, high, words = (0, end, f"0 to {end}") if whole else _RANGES[values]
    return lambda array: check_range(name, array, low, high, words)


class Slot:
    """An array of a pass: what the plan expects."""

    def __init__(self, desc: Any, pass_: int, name: str, batched: bool, parts: int) -> None:
        index = ARRAYS[name]
        info = lib.clmgk_array_get_info(index)
        shape = lib.clmgk_array_shape(desc, index)
        letters = text(shape.axes)
        axes = list(range(shape.rank))
        if not batched and letters.startswith("B"):
            axes = axes[1:]
        self.name, self.index = name, index
        self.letters = "".join(letters[i] for i in axes)
        self.required = lib.clmgk_array_presence(desc, pass_, index) == lib.CLMGK_REQUIRED
        self.is_output = bool(lib.clmgk_array_is_output(desc, pass_, index))
        captured = index - lib.CLMGK_ARRAY_CAPTURE_0 if info.element == lib.CLMGK_ELEMENT_CAPTURE else -1
        is_int = info.element == lib.CLMGK_ELEMENT_I32 or (
            captured >= 0 and desc.captures[captured].type == lib.CLMGK_CAPTURE_I32)
        self.dtype = numpy_dtype("int32" if is_int else name_of("dtype", lib.clmgk_array_dtype(desc, index)))
        self.shape = tuple(shape.size[i] for i in axes)
        self.strides = tuple(shape.stride[i] * self.dtype.itemsize for i in axes)
        self.bytes = lib.clmgk_array_bytes(desc, index)
        if name.startswith("parts_"):  # C describes one part
            self.letters, self.shape = "P" + self.letters, (parts, *self.shape)
            self.strides = (self.bytes, *self.strides)
            self.bytes *= parts
        self.is_dense = self.has_strides([self.dtype.itemsize * math.prod(self.shape[axis + 1:])
                                          for axis in range(len(self.shape))])
        # What picks the first element, as an array.
        self.first_row = (0,) * (len(self.shape) - 1) + (slice(0, 1),)
        end = desc.length_k if name in ("lengths", "offsets_k") else desc.length
        self.check_values = None if self.is_output else _value_check(name, info.values, end)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if shape != self.shape:
            axes = ", ".join(f"{letter}={size}" for letter, size in zip(self.letters, self.shape))
            raise ValueError(f"{self.name}: shape {shape}: expected {self.shape} ({axes})")

    def has_strides(self, strides: Sequence[int]) -> bool:
        """Whether strides in bytes are the plan's, where they matter."""
        return self.bytes == 0 or all(size <= 1 or actual == expected
                                      for size, actual, expected in zip(self.shape, strides, self.strides))

    def check(self, array: Array) -> None:
        """Raises unless the pass can use arrays of this shape, these strides and this element type as they are."""
        name = self.name
        if array.dtype != self.dtype:
            raise TypeError(f"{name}: elements of type {array.dtype}: expected {self.dtype}")
        if array.shape != self.shape:
            self.check_shape(array.shape)
        if not self.has_strides(array.strides):
            raise ValueError(f"{name}: strides of {array.strides} bytes: the plan expects {self.strides}")

    def new(self) -> Array:
        """A new array in the plan's layout."""
        if self.is_dense:
            return np.empty(self.shape, self.dtype)
        memory = np.empty(self.bytes // self.dtype.itemsize, self.dtype)
        return np.lib.stride_tricks.as_strided(memory, self.shape, self.strides)


class Pass:
    """A pass of a plan: its arrays."""

    def __init__(self, desc: Any, name: str, batched: bool, parts: int, sizes: Any) -> None:
        self.name, self.number, self.parts, self.sizes = name, PASSES[name], parts, sizes
        self.slots = [Slot(desc, self.number, array, batched, parts) for array, index in ARRAYS.items()
                      if array != "workspace" and lib.clmgk_array_presence(desc, self.number, index) != lib.CLMGK_ABSENT]
        self.by_name = {slot.name: slot for slot in self.slots}
        self._native_slots = ffi.new("binding_slot[]", [(slot.index, slot.is_output, slot.dtype.itemsize, slot.bytes)
                                                        for slot in self.slots])
        self.native = ffi.new("binding_pass *", (self.number, parts, sizes, len(self.slots), self._native_slots))
        self.nothing = [NULL] * len(self.slots)
