# SPDX-License-Identifier: Apache-2.0
"""Attention on PyTorch tensors, with autograd.

`attention` computes every variant but the linear ones, which `linear_attention` computes; both are differentiable in every
tensor. `scaled_dot_product_attention` takes PyTorch's arguments, `MultiheadAttention` is a module like
``torch.nn.MultiheadAttention`` with any variant, and `flex_attention` takes FlexAttention's scores and masks. `mask_blocks`
classifies the blocks of a mask for many calls, `reads_outside` checks the indices of a text. Tensors on the CPU and on NVIDIA GPUs (CUDA) are used in place. Tensors on other devices are refused: copy them by ``.cpu()``.
"""
from ._attention import attention, mask_blocks, reads_outside, scaled_dot_product_attention
from ._flex import BlockMask, create_block_mask, flex_attention
from ._linear import State, linear_attention
from ._module import MultiheadAttention

__all__ = ["BlockMask", "MultiheadAttention", "State", "attention", "create_block_mask", "flex_attention", "linear_attention", "mask_blocks",
           "reads_outside", "scaled_dot_product_attention"]
