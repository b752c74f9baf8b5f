# SPDX-License-Identifier: Apache-2.0
"""``python -m clmgk`` prints what the program clmgk-info prints: devices, tuning and caches."""
from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from . import __version__
from ._context import device_infos
from ._library import NULL, Error, call, ffi, initialised, lib, name_of, text

_KEEPERS = {"driver": "the driver's own cache", "library": "the program cache below",
            "nobody": "nobody: each process compiles them"}


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _default_device() -> Any:
    chosen = initialised("clmgk_device_info")
    status = lib.clmgk_select_device(NULL, chosen, NULL)
    return chosen.device_id if status == lib.CLMGK_OK else NULL


def _tuning(device: Any) -> str:
    count = ffi.new("size_t *")
    call(lib.clmgk_tuning_list, NULL, device, NULL, 0, count)
    entries = ffi.new("clmgk_tuning_entry[]", max(1, count[0]))
    entries[0].struct_size = ffi.sizeof("clmgk_tuning_entry")
    call(lib.clmgk_tuning_list, NULL, device, entries, count[0], count)
    allowed = [entry for entry in entries[0:count[0]] if entry.allowed]
    shipped = sum(bool(entry.shipped) for entry in allowed)
    stale = sum(not entry.shipped and entry.source == lib.CLMGK_TUNING_ARCHITECTURE for entry in allowed)
    words = "not tuned (default parameters)"
    if allowed:
        words = (f"tuned (measured here {len(allowed) - shipped - stale}, with another driver or on its kind {stale}, "
                 f"by the library's makers {shipped})")
    passed_over = count[0] - len(allowed)
    if passed_over:
        words += f"; {_plural(passed_over, 'entry', 'entries')} passed over: clmgk-tune --show says why"
    return words


def _products(device: Any) -> list[str]:
    lines, index = [], 0
    while lib.clmgk_gemm_provider(index) != NULL:
        provider = initialised("clmgk_gemm_provider_info")
        call(lib.clmgk_gemm_provider_state, device, index, provider)
        names = [name_of("dtype", bit) for bit in range(32) if provider.dtypes >> bit & 1]
        reason = text(provider.reason)
        lines.append(f"    products by {text(provider.name)}: {' '.join(names) or 'none'}" + (f" ({reason})" if reason else ""))
        index += 1
    return lines


def _keeper(device: Any) -> str:
    keeper = ffi.new("clmgk_program_keeper *")
    call(lib.clmgk_cache_get_keeper, NULL, device, keeper)
    return _KEEPERS[name_of("program_keeper", keeper[0])]


def _print_device(info: Any, default: Any) -> None:
    mark = "*" if info.device_id == default else " "
    print(f"{mark} {info.platform_index}:{info.device_index} {text(info.name)}")
    print(f"    platform {text(info.platform)}, vendor {text(info.vendor)}, driver {text(info.driver)}")
    print(f"    {name_of('device_class', info.device_class)}, {info.compute_units} compute units at {info.clock_mhz} MHz, "
          f"vectors of {info.native_float_lanes} floats")
    print(f"    architecture {text(info.architecture)}")
    print(f"    memory {1e-6 * info.global_memory_bytes:.0f} MB, buffers up to {1e-6 * info.max_allocation_bytes:.0f} MB, "
          f"local memory {1e-3 * info.local_memory_bytes:.0f} KB, work-groups up to {info.max_work_group}")
    units = text(info.matrix_unit) if info.matrix_units else "not used"
    print(f"    engine {name_of('engine', info.engine)}, matrix units {units}, {_tuning(info.device_id)}")
    print(f"    this engine because {text(info.engine_reason)}")
    print("\n".join(_products(info.device_id)))
    print(f"    compiled programs are kept by {_keeper(info.device_id)}")


def _print_folder(name: str, function: Any) -> None:
    cache = initialised("clmgk_cache_info")
    try:
        call(function, NULL, cache)
    except Error as error:
        print(f"{name}: not used: {error}")
        return
    if text(cache.path):
        print(f"{name}: {text(cache.path)}, {_plural(cache.entries, 'program', 'programs')}, {1e-6 * cache.bytes:.1f} MB")
    elif function == lib.clmgk_cache_get_info:
        print(f"{name}: no files are used")
    if text(cache.note):
        print(f"    nothing can be written there: {text(cache.note)}")


def _print_tuning_cache() -> None:
    cache = initialised("clmgk_tuning_info")
    try:
        call(lib.clmgk_tuning_get_info, NULL, cache)
    except Error as error:
        print(f"tuning cache: not used: {error}")
        return
    if text(cache.path):
        print(f"tuning cache: {text(cache.path)}, {_plural(cache.entries, 'entry', 'entries')}, {1e-3 * cache.bytes:.1f} KB")
    else:
        print("tuning cache: no files are used")
    if cache.damaged:
        print(f"    {_plural(cache.damaged, 'damaged line is', 'damaged lines are')} passed over: {text(cache.message)}")
    elif text(cache.message):
        print(f"    it is passed over: {text(cache.message)}")


def main() -> int:
    argparse.ArgumentParser(prog="python -m clmgk", description="Lists OpenCL devices, and the engine, tuning and caches "
                            "that the library would use on each.").parse_args()
    print(f"libclmgk {__version__}")
    infos = device_infos()
    default = _default_device()
    if not infos:
        try:
            call(lib.clmgk_select_device, NULL, initialised("clmgk_device_info"))
        except Error as error:  # says why there is none
            print(f"{error}\nA CPU can compute with the package pocl-binary-distribution: pip install 'clmgk[cpu]'")
    for info in infos:
        _print_device(info, default)
    _print_folder("program cache", lib.clmgk_cache_get_info)
    _print_folder("programs made ahead", lib.clmgk_program_dir_get_info)
    _print_tuning_cache()
    return 0 if infos else 3


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader needs no more; the interpreter's end must not fail by writing the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
