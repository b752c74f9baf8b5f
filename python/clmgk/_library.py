# SPDX-License-Identifier: Apache-2.0
"""The C library: loading, errors as exceptions, names of its enumerations."""
from __future__ import annotations

import atexit
import ctypes
import functools
import operator
import os
import pathlib
import time
from typing import Any, Callable, Iterable


def _load_opencl() -> None:
    """Loads the OpenCL loader before _native, which needs it: the system's, or the package's own copy."""
    own = pathlib.Path(__file__).parent / "lib" / "libOpenCL.so.1"
    for name in ("libOpenCL.so.1", str(own)):
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return
        except OSError:
            continue


_load_opencl()

from ._native import ffi as ffi, lib as lib  # noqa: E402

NULL = ffi.NULL


class Error(Exception):
    """An error that the C library reported.

    Every exception from the library is of a subclass that is also one of Python's own: ``ValueError`` (values, shapes,
    arrays), ``NotImplementedError`` (legal, but not offered), ``MemoryError``, ``OSError`` or ``RuntimeError``.

    Attributes
    ----------
    status : str
        The C library's status, such as ``"ERROR_INVALID_SHAPE"``.
    opencl_code : int
        The code of the OpenCL call that failed, or 0.
    """

    status: str = ""
    opencl_code: int = 0


class InvalidValueError(Error, ValueError):
    """A value, a shape or an array that a call does not accept."""


class UnsupportedError(Error, NotImplementedError):
    """Legal, but not offered on this device or in this version."""


class OutOfMemoryError(Error, MemoryError):
    """The host or the device ran out of memory."""


class FileError(Error, OSError):
    """A file could not be read or written."""


class DeviceError(Error, RuntimeError):
    """No device, or a failure of OpenCL or its compiler."""


_CLASSES: dict[int, type[Error]] = {
    lib.CLMGK_ERROR_INVALID_VALUE: InvalidValueError,
    lib.CLMGK_ERROR_INVALID_SHAPE: InvalidValueError,
    lib.CLMGK_ERROR_INVALID_BUFFER: InvalidValueError,
    lib.CLMGK_ERROR_OVERFLOW: InvalidValueError,
    lib.CLMGK_ERROR_UNSUPPORTED: UnsupportedError,
    lib.CLMGK_ERROR_OUT_OF_HOST_MEMORY: OutOfMemoryError,
    lib.CLMGK_ERROR_OUT_OF_DEVICE_MEMORY: OutOfMemoryError,
    lib.CLMGK_ERROR_IO: FileError,
}


def text(pointer: Any) -> str:
    """A C string; "" for NULL."""
    return "" if pointer == NULL else ffi.string(pointer).decode("utf-8", "replace")


_ERROR = ffi.typeof("clmgk_error *")


def new_error() -> Any:
    return ffi.new(_ERROR)


# LLVM's words, in an OpenCL runtime that is older than the CPU, as PyPI's may be; and the way out.
_OLD_RUNTIME = "unknown target CPU"
_NEWER_RUNTIME = "This OpenCL runtime does not know this CPU: install the distribution's (Debian: apt install pocl-opencl-icd)."


def check(status: int, error: Any) -> None:
    """Raises the exception of a call that did not return CLMGK_OK."""
    if status == lib.CLMGK_OK:
        return
    message = text(error.message)
    if status == lib.CLMGK_ERROR_COMPILE and _OLD_RUNTIME in message:
        message = f"{message.rstrip()}\n{_NEWER_RUNTIME}"
    failure = _CLASSES.get(status, DeviceError)(message)
    failure.status = text(lib.clmgk_status_name(status))
    failure.opencl_code = error.opencl_code
    raise failure


def call(function: Callable[..., int], *args: Any) -> None:
    """Calls a function of the library whose last argument is an error record."""
    error = new_error()
    check(function(*args, error), error)


def initialised(type_name: str) -> Any:
    """A zeroed structure with its struct_size set."""
    return ffi.new(f"{type_name} *", {"struct_size": ffi.sizeof(type_name)})


def set_number(structure: Any, name: str, value: Any) -> None:
    """Sets a field of a structure; an exception names it."""
    try:
        setattr(structure, name, value)
    except OverflowError as error:
        raise ValueError(f"{name}: {value!r}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{name}: {value!r}: {error}") from None


# ---- enumerations


def c_string(argument: str, value: Any) -> bytes:
    """A name or a path as C takes it."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{argument}: {type(value).__name__}: expected a string")
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise ValueError(f"{argument}: {value!r}: expected no character NUL")
    return encoded


@functools.lru_cache(maxsize=None)
def _from_name(enumeration: str, name: str) -> int:
    value = ffi.new(f"clmgk_{enumeration} *")
    call(getattr(lib, f"clmgk_{enumeration}_from_name"), c_string(enumeration, name), value)
    return int(value[0])


def from_name(enumeration: str, name: str) -> int:
    """The value of a name of ``clmgk_<enumeration>``."""
    if not isinstance(name, str):
        raise TypeError(f"{enumeration}: {name!r}: expected a name")
    return _from_name(enumeration, name)


def name_of(enumeration: str, value: int) -> str:
    return text(getattr(lib, f"clmgk_{enumeration}_name")(value))


ARRAYS: dict[str, int] = {text(lib.clmgk_array_name(i)): i for i in range(lib.CLMGK_ARRAYS)}
PASSES: dict[str, int] = {text(lib.clmgk_pass_name(i)): i for i in range(lib.CLMGK_PASSES)}
_INFOS = {name: lib.clmgk_array_get_info(i) for name, i in ARRAYS.items()}
GRADIENTS: dict[str, int] = {name.removeprefix("grad_"): info.gradient for name, info in _INFOS.items() if info.gradient}
STATISTICS: dict[str, int] = {name: info.statistic for name, info in _INFOS.items() if info.statistic}


def name_set(field: str, names: Iterable[str] | str) -> tuple[str, ...]:
    """The names of an argument that is one name or several."""
    if isinstance(names, str):
        return (names,)
    try:
        return tuple(names)
    except TypeError:
        raise TypeError(f"{field}: {type(names).__name__}: expected names") from None


def bits(field: str, names: Iterable[str] | str, table: dict[str, int]) -> int:
    """A set of names as the C library's bits."""
    chosen = name_set(field, names)
    for name in chosen:
        if not isinstance(name, str) or name not in table:
            raise ValueError(f"{field}: {name!r}: expected names among {', '.join(table)}")
    return functools.reduce(lambda result, name: result | table[name], chosen, 0)


def integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {value!r}: expected an int") from None


def check_seed(seed: int) -> int:
    """A seed as an int of 64 bits."""
    number = integer("seed", seed)
    if not 0 <= number < 2**64:
        raise ValueError(f"seed: {seed}: expected 0 to 2^64 - 1")
    return number


# ---- processes

_opened = False
_forked = False


def use_opencl() -> None:
    """Raises in a child of a process that used OpenCL before the fork: its threads and devices are the parent's."""
    global _opened
    if _forked:
        raise RuntimeError("this process was forked after clmgk used OpenCL, which does not survive a fork: start "
                           "processes by multiprocessing's method \"spawn\", or fork before the first call")
    _opened = True


def is_usable() -> bool:
    """Whether objects of the C library may be released in this process."""
    return not _forked


def _after_fork() -> None:
    global _forked
    _forked = _opened
    _calls.clear()


# ---- the interpreter's end

_calls: set[object] = set()  # a token for each call in progress
_ending = False
_drains = False


def begin_call() -> object:
    """To be called before a call that uses OpenCL; end_call follows in any case."""
    token = object()
    _calls.add(token)
    if _ending:
        _calls.discard(token)
        raise RuntimeError("the interpreter is ending")
    return token


end_call = _calls.discard


def drain_at_exit() -> None:
    """At the interpreter's end, calls of other threads must be over before weakref's finalizers release plans and devices
    (and drivers their own objects). This runs before the finalizers that exist by now."""
    global _drains
    if not _drains:
        _drains = True
        atexit.register(_drain)


def _drain() -> None:
    global _ending
    _ending = True
    while _calls:
        time.sleep(0.001)


os.register_at_fork(after_in_child=_after_fork)
