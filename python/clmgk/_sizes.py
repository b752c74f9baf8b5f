# SPDX-License-Identifier: Apache-2.0
"""One C plan for each kind of call: the functions without a plan give each call's sizes to it (sizes_at_call)."""
from __future__ import annotations

from typing import Any, Mapping

from ._library import initialised, lib

_LAYOUTS = ("q", "k", "v", "o", "lse", "grad_o", "grad_q", "grad_k", "grad_v", "append_k", "append_v", "scale_k", "scale_v")
_SIZES = ("batch", "length", "length_k", "sequences", "table_pages", "bias_batch", "bias_length", "bias_length_k",
          "mask_blocks_batch")
_FEW = 4  # queries that have a form of their own
_LEAST = {"length": 2048, "length_k": 4096, "sequences": 16, "table_pages": 64, "batch": 1}  # limits to begin with
_MOST = 2**30


def _limit(name: str, size: int) -> int:
    """A power of two."""
    return min(max(_LEAST[name], 1 << max(size - 1, 0).bit_length()), _MOST)


class Kind:
    """A kind of call: all fields of its descriptor but the sizes, and the sizes' limits."""

    def __init__(self, fields: Mapping[str, Any], resolved: Any) -> None:
        d = resolved
        sequences = d.sequences
        rows = -(-d.length // max(sequences, 1))
        few = rows <= _FEW and d.gradients == 0 and d.statistics == 0
        self.rows = 0 if not few else 1 if rows <= 1 else 2 if rows == 2 else _FEW  # 0: more
        self.sizes = {name: getattr(d, name) for name in ("batch", "length", "length_k", "sequences", "table_pages")}
        self._fields = {name: value for name, value in fields.items() if name not in _LAYOUTS and name not in _SIZES}
        self._axes: dict[str, bool] = {}  # of the bias and of classes of blocks: whether they are whole
        if d.use_bias:
            self._axes.update(bias_batch=d.bias_batch == d.batch, bias_length=d.bias_length == d.length,
                              bias_length_k=d.bias_length_k == d.length_k)
        if d.use_mask_blocks:
            self._axes["mask_blocks_batch"] = d.mask_blocks_batch == d.batch
        self._of_pages = d.page_size > 0
        self._one_length = sequences > 0 and not d.use_offsets_k and not d.use_lengths and not self._of_pages
        # an axis of a part of the batch has no limit of its own
        self.is_usual = not d.use_bias or d.bias_batch in (1, d.batch)
        self.key = repr((self.rows, sequences > 0, sorted(self._axes.items()), sorted(self._fields.items())))

    def limits(self, least: Mapping[str, int]) -> dict[str, int]:
        """Limits that suffice for the sizes, none below `least`."""
        found = {name: max(_limit(name, size), least.get(name, 0)) for name, size in self.sizes.items()}
        if self.sizes["sequences"] == 0:
            found["sequences"] = 0
        if self.rows > 0:
            found["length"] = self.rows * max(found["sequences"], 1)
        if self._one_length:
            found["length_k"] = found["length"] = max(found["length"], self.sizes["length"])
        if not self._of_pages:
            found["table_pages"] = 0
        return found

    def fits(self, limits: Mapping[str, int]) -> bool:
        return all(size <= limits[name] for name, size in self.sizes.items())

    def fields(self, limits: Mapping[str, int]) -> dict[str, Any]:
        """The descriptor with these limits."""
        axes = {"bias_batch": "batch", "bias_length": "length", "bias_length_k": "length_k", "mask_blocks_batch": "batch"}
        found = {**self._fields, **limits, "sizes_at_call": True}
        if self._of_pages:
            found["length_k"] = 0  # all keys of a table
        found.update({name: limits[axes[name]] if whole else 1 for name, whole in self._axes.items()})
        return found


def sizes_of(resolved: Any) -> Any:
    """C's sizes of a call with a resolved descriptor."""
    sizes = initialised("clmgk_call_sizes")
    for name in ("batch", "length", "sequences", "table_pages", *_LAYOUTS):
        setattr(sizes, name, getattr(resolved, name))
    sizes.length_k = resolved.length_k or lib.CLMGK_NO_KEYS
    return sizes
