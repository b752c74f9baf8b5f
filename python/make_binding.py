# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of clmgk._native from the library's headers.

usage: make_binding.py PREPROCESSED OUTPUT

PREPROCESSED is native/binding.h after the preprocessor, with line markers. Its declarations from the library's headers
and from binding.h become cffi's; OpenCL's types are pointers without contents. A new function, field or array of the
library needs no line here.
"""
import pathlib
import re
import sys

import cffi

OPENCL = "\n".join(f"typedef struct _{name} *{name};" for name in (
    "cl_platform_id", "cl_device_id", "cl_context", "cl_command_queue", "cl_mem", "cl_event")) + """
typedef uint32_t cl_uint;
typedef int32_t cl_int;
#define CLMGK_NO_KEYS ...
"""
# Functions that Python defines (clmgk/torch/_transport.py).
CALLBACKS = """
extern "Python" clmgk_status binding_begin(void *state, const clmgk_dist_exchange *exchange, void **request, clmgk_error *error);
extern "Python" clmgk_status binding_end(void *state, void *request, double seconds, clmgk_error *error);
extern "Python" void binding_cancel(void *state);
"""


def declarations(preprocessed: str) -> str:
    kept, own = [], False
    for line in preprocessed.splitlines():
        marker = re.match(r'#\s*(?:line\s+)?\d+\s+"([^"]*)"', line)
        if marker:
            own = bool(re.search(r"clmgk/[a-z_]+\.h$|binding\.h$", marker[1]))
        elif own:
            kept.append(line)
    return re.sub(r'__attribute__\s*\(\(visibility\("default"\)\)\)', "", "\n".join(kept))


def main() -> None:
    source, output = map(pathlib.Path, sys.argv[1:])
    binding = cffi.FFI()
    binding.cdef(OPENCL + declarations(source.read_text()) + CALLBACKS)
    binding.set_source("clmgk._native", '#include "binding.h"', py_limited_api=True)
    binding.emit_c_code(str(output))


if __name__ == "__main__":
    main()
