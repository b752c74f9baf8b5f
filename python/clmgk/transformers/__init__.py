# SPDX-License-Identifier: Apache-2.0
"""Attention for models of the package transformers.

>>> import clmgk.transformers
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="clmgk")

The import registers the implementation "clmgk" with its masks: padding, causal masks, sliding windows, sinks, soft-cap,
grouped heads, relative biases. `replace` swaps the attention of a model for a variant.
"""
from transformers import AttentionInterface, AttentionMaskInterface

from ._attention import NAME, attention_forward, attention_mask
from ._replace import replace

AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, attention_mask)

__all__ = ["attention_forward", "attention_mask", "replace"]
