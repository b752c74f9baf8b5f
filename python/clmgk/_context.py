# SPDX-License-Identifier: Apache-2.0
"""Devices and contexts."""
from __future__ import annotations

import importlib.util
import os
import pathlib
import threading
import weakref
from typing import Any, Iterator, NamedTuple

from ._library import (NULL, c_string, call, drain_at_exit, ffi, initialised, is_usable, lib, name_of, set_number, text,
                       use_opencl)

_MOST_PLANS = 256  # that a context keeps for the functions without a plan


class Kept:
    """The last things that were made, each for a key. Threads may share it. A call that uses a thing holds it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[Any, list[Any]] = {}  # [thing, whether it was found since it was made or spared]
        self._lock = threading.Lock()

    def find(self, key: Any) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry[1] = True
        return entry[0]

    def keep(self, key: Any, thing: Any) -> Any:
        """Keeps a thing, and returns it. Beyond the largest number it drops the oldest that was not found, and spares the
        others once."""
        with self._lock:
            self._entries[key] = [thing, False]
            while len(self._entries) > self._most:
                oldest = next(iter(self._entries))
                entry = self._entries.pop(oldest)
                if entry[1]:
                    self._entries[oldest] = [entry[0], False]
        return thing

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def __iter__(self) -> Iterator[Any]:
        return iter([thing for thing, _ in self._entries.values()])


class Device(NamedTuple):
    """A device, as ``clmgk.devices()`` lists it."""

    selector: str  #: "PLATFORM:DEVICE"
    name: str
    platform: str
    vendor: str
    driver: str
    device_class: str  #: "cpu", "gpu" or "other"
    engine: str  #: the default engine of plans
    architecture: str
    compute_units: int
    global_memory_bytes: int
    max_allocation_bytes: int
    clock_mhz: int
    native_float_lanes: int  #: floats of a SIMD register
    local_memory_bytes: int
    max_work_group: int
    engine_reason: str  #: why `engine` is the default
    matrix_unit: str  #: the matrix unit that the device should have; "": none. `Context.matrix_unit` tests it


def _device(info: Any) -> Device:
    return Device(f"{info.platform_index}:{info.device_index}", text(info.name), text(info.platform), text(info.vendor),
                  text(info.driver), name_of("device_class", info.device_class), name_of("engine", info.engine),
                  text(info.architecture), info.compute_units, info.global_memory_bytes, info.max_allocation_bytes,
                  info.clock_mhz, info.native_float_lanes, info.local_memory_bytes, info.max_work_group,
                  text(info.engine_reason), text(info.matrix_unit) if info.matrix_units else "")


class MatrixUnit(NamedTuple):
    """The matrix unit that plans with arrays of 16 bits use."""

    name: str  #: "wgmma", "mma.sync", "mfma", "wmma", "wmma-gfx12", "dpas", "dpas-8", "amx", "amx-fp16", "avx512-bf16"; "": none
    reason: str  #: why units that the device should have are not used, or not for a type; "": they are


def find_runtime() -> None:
    """Where no platform has a device, loads the CPU runtime of the package's extra [cpu], if it is installed."""
    use_opencl()
    if lib.binding_has_device():
        return
    spec = importlib.util.find_spec("pocl_binary_distribution")
    if spec is None or spec.origin is None:
        return
    packages = pathlib.Path(spec.origin).parent.parent
    for path in sorted(packages.glob("pyopencl/.libs/libpocl*.so*")):
        call(lib.binding_use_runtime, str(path).encode())
        return


def device_infos() -> list[Any]:
    """The C structures of all devices."""
    find_runtime()
    count = ffi.new("size_t *")
    call(lib.clmgk_list_devices, NULL, 0, count)
    infos = ffi.new("clmgk_device_info[]", max(1, count[0]))
    infos[0].struct_size = ffi.sizeof("clmgk_device_info")
    call(lib.clmgk_list_devices, infos, count[0], count)
    return [infos[i] for i in range(count[0])]


def devices() -> list[Device]:
    """Lists the usable OpenCL devices.

    Returns
    -------
    list of Device
        In the order of the platforms. Empty on a machine without OpenCL.
    """
    return [_device(info) for info in device_infos()]


def _close(native: Any) -> None:
    if is_usable():
        lib.binding_close(native)


class Opened:
    """An open device. It is closed when the context and all plans on it are gone."""

    __slots__ = ("native", "__weakref__")

    def __init__(self, native: Any) -> None:
        self.native = native
        # Not at the interpreter's end: PoCL takes 0.1 s to free its compiler's memory piece by piece.
        weakref.finalize(self, _close, native).atexit = False
        drain_at_exit()


class Context:
    """A device with the plans and the compiled programs on it.

    The functions of this package make one for each device they are asked for, and keep it; a program needs its own only
    for other options, or for an OpenCL context of its own (``clmgk.opencl``).

    Parameters
    ----------
    device : str or Device, optional
        One of `clmgk.devices`, or "PLATFORM:DEVICE" (two indices), "cpu", "gpu", or a part of a device's or a platform's
        name. Default: the environment variable ``CLMGK_DEVICE``, else the first GPU, else the first CPU, else the first
        device.
    cache_dir : str or path, optional
        The folder of compiled programs. Default: the environment variable ``CLMGK_CACHE_DIR``, else ~/.cache/clmgk. "": no
        files.
    cache_max_bytes : int
        The cache's largest size. 0: 256 MiB.
    kernel_dir : str or path, optional
        Kernel sources in place of the package's.
    tuning_dir : str or path, optional
        The folder of tuned parameters. "": no file.
    untuned : bool
        Ignores tuned parameters.
    program_dir : str or path, optional
        Programs compiled ahead, by `save_programs` or ``clmgk-bench --programs``.
    no_amx : bool
        Does not use AMX, the matrix unit of x86 CPUs. Plans with bfloat16 arrays, or with precision="bf16", use it, on CPUs
        with AMX-FP16 also plans with float16 arrays. They ask Linux for its registers once per process. ``CLMGK_AMX=0`` in
        the environment has the same effect.

    Raises
    ------
    RuntimeError
        No device, or none matches; the process was forked after it used OpenCL.
    ValueError
        `device` matches several devices.
    """

    def __init__(self, device: str | Device | None = None, *, cache_dir: str | os.PathLike[str] | None = None,
                 cache_max_bytes: int = 0, kernel_dir: str | os.PathLike[str] | None = None,
                 tuning_dir: str | os.PathLike[str] | None = None, untuned: bool = False,
                 program_dir: str | os.PathLike[str] | None = None, no_amx: bool = False) -> None:
        selector = _selector(device)
        find_runtime()
        options = initialised("clmgk_context_options")
        for name, number in (("cache_max_bytes", cache_max_bytes), ("untuned", untuned), ("no_amx", no_amx)):
            set_number(options, name, number)
        kept = []  # the strings, until the library has copied them
        for name, folder in (("cache_dir", cache_dir), ("kernel_dir", kernel_dir), ("tuning_dir", tuning_dir),
                             ("program_dir", program_dir)):
            if folder is not None:
                kept.append(ffi.new("char[]", c_string(name, folder)))
                setattr(options, name, kept[-1])
        native = ffi.new("binding_device *")
        try:
            call(lib.binding_open, NULL if selector is None else c_string("device", selector), options, native)
        except BaseException:
            lib.binding_close(native)
            raise
        self._own(native)

    def _own(self, native: Any) -> None:
        self._opened = Opened(native)
        self._kept = Kept(_MOST_PLANS)
        self._kinds = Kept(_MOST_PLANS)  # C plans, for calls of any size

    @classmethod
    def _adopt(cls, context: int, device: int) -> Context:
        """On the caller's cl_context and cl_device_id."""
        use_opencl()
        native = ffi.new("binding_device *")
        try:
            call(lib.binding_adopt, ffi.cast("cl_context", context), ffi.cast("cl_device_id", device), NULL, native)
        except BaseException:
            lib.binding_close(native)
            raise
        self = cls.__new__(cls)
        self._own(native)
        return self

    @property
    def device(self) -> Device:
        """The facts of the context's device."""
        info = initialised("clmgk_device_info")
        call(lib.clmgk_get_device_info, self._opened.native.id, info)
        return _device(info)

    @property
    def matrix_unit(self) -> MatrixUnit:
        """The matrix unit that plans with arrays of 16 bits use. The first call, like the first such plan, tests it."""
        use_opencl()
        info = initialised("clmgk_matrix_unit_info")
        call(lib.clmgk_context_get_matrix_unit, self._opened.native.clmgk, info)
        return MatrixUnit(text(info.name), text(info.reason))

    @property
    def first_use(self) -> str:
        """The verdicts of the first use of a device that nobody has tried, "mixture: simt right; ..."; "": it has been tried."""
        info = initialised("clmgk_first_use_info")
        call(lib.clmgk_context_get_first_use, self._opened.native.clmgk, info)
        return text(info.verdicts)

    def save_programs(self, folder: str | os.PathLike[str]) -> int:
        """Writes the compiled programs of all plans on this context to a folder, for the argument `program_dir`.

        Returns
        -------
        int
            The number of files.

        Raises
        ------
        OSError
            The folder cannot be written, or belongs to somebody else.
        NotImplementedError
            The driver gives no compiled programs.
        """
        use_opencl()
        count = ffi.new("size_t *")
        call(lib.clmgk_context_save_programs, self._opened.native.clmgk, c_string("folder", folder), count)
        return int(count[0])

    def __copy__(self) -> Context:
        return self

    def __deepcopy__(self, memo: Any) -> Context:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a Context cannot be pickled, because it belongs to this process: make another from the same arguments")

    def clear(self) -> None:
        """Drops the plans that functions without a plan made on this context, with their compiled programs."""
        self._kept.clear()
        self._kinds.clear()

    def __repr__(self) -> str:
        return f"<clmgk.Context on {self.device.name}>"


_contexts: dict[str | None, Context] = {}
_contexts_lock = threading.Lock()


def context_of(device: str | Device | Context | None) -> Context:
    """The context of the argument `device` of a function."""
    if isinstance(device, Context):
        return device
    selector = _selector(device)
    found = _contexts.get(selector)
    if found is None:
        with _contexts_lock:
            found = _contexts.get(selector)
            if found is None:
                found = _contexts[selector] = Context(selector)
    return found


def _selector(device: str | Device | None) -> str | None:
    if isinstance(device, Device):
        return device.selector
    if not (device is None or isinstance(device, str)):
        raise TypeError(f"device: {type(device).__name__}: expected a selector, a Device or a Context")
    return device
