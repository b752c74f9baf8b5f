# SPDX-License-Identifier: Apache-2.0
"""Numbers of operations and parameters, as the papers count them."""
from __future__ import annotations

from typing import Any, NamedTuple

from ._descriptor import describe
from ._library import call, ffi, initialised, integer, lib


class Operations(NamedTuple):
    """Multiplications and additions."""

    multiplications: float
    additions: float


class Counts(NamedTuple):
    """Of each part of a layer: "query_key", "value", "scores", "values", "output", "norm"."""

    forward: dict[str, Operations]
    backward: dict[str, Operations]
    parameters: dict[str, float]


_PARTS = {number: name.removeprefix("CLMGK_PART_").lower() for number, name in ffi.typeof("clmgk_part").elements.items()
          if number < lib.CLMGK_PARTS}


def count_attention(*, width: int = 0, width_k: int = 0, width_out: int = 0, **fields: Any) -> Counts:
    """Counts the operations and parameters of attention with projections (``include/clmgk/counts.h`` has the rule).

    Parameters
    ----------
    width : int
        Width of the input that is projected to Q, K and V; 0: no projections.
    width_k : int
        Width of a second input, of K and V; 0: none.
    width_out : int
        Width of the output projection's result; 0: none.
    **fields
        The problem, as of a `Plan`.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        The problem is not legal; a width is negative.
    """
    found = initialised("clmgk_counts")
    call(lib.clmgk_count_attention, describe(fields), integer("width", width), integer("width_k", width_k),
         integer("width_out", width_out), found)
    forward, backward = ({name: Operations(one[part].multiplications, one[part].additions) for part, name in _PARTS.items()}
                         for one in (found.forward, found.backward))
    return Counts(forward, backward, {name: found.parameters[part] for part, name in _PARTS.items()})
