# SPDX-License-Identifier: Apache-2.0
"""Bloom's attention, which calls no attention function by itself."""
from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.models.bloom.modeling_bloom import BloomAttention, dropout_add

from ._attention import attention_forward


class Attention(BloomAttention):
    """`BloomAttention`, with `attention_forward` in the place of its formula."""

    parts: list[int] | None = None  # widths of queries, keys and values, if a head has not one of each

    def _reshape(self, fused_qkv: Tensor) -> tuple[Tensor, ...]:
        if self.parts is None:
            return tuple(super()._reshape(fused_qkv))
        return tuple(x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in fused_qkv.split(self.parts, -1))

    def forward(self, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Tensor | None,
                layer_past: Any = None, use_cache: bool = False, output_attentions: bool = False,
                **kwargs: Any) -> tuple[Tensor, None]:
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        output, _ = attention_forward(
            self, query, key, value, attention_mask, scaling=self.inv_norm_factor, output_attentions=output_attentions,
            dropout=self.attention_dropout.p if self.training else 0.0, position_bias=alibi.unflatten(0, (-1, self.num_heads)))
        return dropout_add(self.dense(output.flatten(2)), residual, self.hidden_dropout, self.training), None
