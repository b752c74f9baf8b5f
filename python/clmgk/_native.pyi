# SPDX-License-Identifier: Apache-2.0
"""The C interface, by cffi (make_binding.py)."""
from typing import Any

lib: Any
ffi: Any
