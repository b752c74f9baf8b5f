# SPDX-License-Identifier: Apache-2.0
"""Attention with richer heads, as fused OpenCL kernels.

>>> import clmgk, numpy as np
>>> q, k, v = (np.random.randn(1, 4, 1000, 32).astype(np.float32) for _ in range(3))
>>> o = clmgk.attention(q, k, v, causal=True)

`attention` and `linear_attention` compute every variant of the library on NumPy arrays, `attention_backward` and
`linear_attention_backward` their gradients, `statistics` what expectation and maximisation need. A `Plan` is one problem,
compiled once; `mask_blocks` classifies the blocks of a mask for many calls; `reads_outside` checks the indices of a text; `warm_up` makes plans in the background, and
`unsupported` tells why there is none. ``clmgk.torch`` has the same for PyTorch with autograd, ``clmgk.transformers`` for models of
that package, ``clmgk.opencl`` for OpenCL arrays.
"""
from ._context import Context, Device, MatrixUnit, devices
from ._counts import Counts, Operations, count_attention
from ._descriptor import Capture, Descriptor, Layout
from ._functions import (State, attention, attention_backward, combine, draw_projection, dropout_mask, linear_attention,
                         linear_attention_backward, mask_blocks, noise_tile, reads_outside, statistics)
from ._library import (DeviceError, Error, FileError, InvalidValueError, OutOfMemoryError, UnsupportedError, lib as _lib,
                       text as _text)
from ._options import LinearOptions, Options
from ._plan import Plan, PlanInfo, unsupported, warm_up

__version__ = _text(_lib.clmgk_version())

__all__ = ["Capture", "Context", "Counts", "Descriptor", "Device", "DeviceError", "Error", "FileError", "InvalidValueError", "Layout",
           "LinearOptions", "MatrixUnit", "Operations", "Options", "OutOfMemoryError", "Plan", "PlanInfo", "State",
           "UnsupportedError", "attention", "attention_backward", "combine", "count_attention", "devices",
           "draw_projection", "dropout_mask", "linear_attention", "linear_attention_backward", "mask_blocks", "noise_tile",
           "reads_outside", "statistics", "unsupported", "warm_up"]
