# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention as a module."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._functions import statistics
from .._library import lib
from .._options import traits_of
from ._attention import as_bias, attention
from ._operators import cpu_context

_EXTRAS = ("key_weight", "key_bias", "prior", "shift", "mix", "mix_weight", "mix_offset", "noise")


class MultiheadAttention(nn.Module):
    """Multi-head attention of any variant but the linear ones, as a replacement of ``torch.nn.MultiheadAttention``.

    Its parameters have the names and shapes of PyTorch's module, whose state_dict it loads; parameters of a variant that
    the state_dict lacks keep their initial values. These are: prior π = 1/M; "smgk" shifts b and "hard-fish" mixing p
    normal, of standard deviation 1 and 1/√M; w = 1, c = 0, noise σ = 0.1; further keys of "mgk" as the first one's.

    Differences from PyTorch's module: `need_weights` is False by default, because attention's weights are never stored, and
    is offered for softmax alone; rows without visible keys give 0 before the output projection, not NaN; add_bias_kv and
    add_zero_attn are not offered.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, kdim, vdim, batch_first, device, dtype
        As in ``torch.nn.MultiheadAttention``. Variants with mixed heads: num_heads counts the heads of values.
    variant : str
        As in ``clmgk.attention``.
    components : int, optional
        M: keys per position ("mgk", "smgk"; default 2), global heads of the variants with mixed heads (default
        num_heads).
    score, estep, softcap
        As in ``clmgk.attention``.

    Raises
    ------
    ValueError
        embed_dim is not a multiple of num_heads; an unknown or linear variant.
    """

    # TransformerEncoderLayer then calls forward() instead of PyTorch's own kernel for softmax.
    _qkv_same_embed_dim = False

    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    key_weight: nn.Parameter | None
    key_bias: nn.Parameter | None
    prior: nn.Parameter | None
    shift: nn.Parameter | None
    mix: nn.Parameter | None
    mix_weight: nn.Parameter | None
    mix_offset: nn.Parameter | None
    noise: nn.Parameter | None

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
                 add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 device: Any = None, dtype: Any = None, *, variant: str = "softmax", components: int | None = None,
                 score: str = "default", estep: str = "soft", softcap: float = 0.0) -> None:
        super().__init__()
        traits = traits_of(variant)
        if traits & lib.CLMGK_TRAIT_LINEAR:
            raise ValueError(f"variant: {variant!r}: expected one that is not linear")
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"embed_dim: {embed_dim}: expected a multiple of num_heads, {num_heads}")
        if add_bias_kv or add_zero_attn:
            raise NotImplementedError("add_bias_kv and add_zero_attn are not offered")
        mixed = bool(traits & lib.CLMGK_TRAIT_ADMIXTURE)
        has_components = bool(traits & (lib.CLMGK_TRAIT_KEYS | lib.CLMGK_TRAIT_SHIFT))
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.components = components or (num_heads if mixed else 2 if has_components else 1)
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.dropout, self.batch_first, self.variant = dropout, batch_first, variant
        self._options: dict[str, Any] = {"variant": variant, "score": score, "estep": estep, "softcap": softcap}
        self._key_heads = self.components if mixed else num_heads
        width = self._key_heads * self.head_dim
        self._widths = (width, width, embed_dim)
        made = {"device": device, "dtype": dtype}

        def new(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, **made))

        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = new(sum(self._widths), embed_dim)
            for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                self.register_parameter(name, None)
        else:
            self.q_proj_weight = new(width, embed_dim)
            self.k_proj_weight = new(width, self.kdim)
            self.v_proj_weight = new(embed_dim, self.vdim)
            self.register_parameter("in_proj_weight", None)
        self.in_proj_bias = new(sum(self._widths)) if bias else None
        self.out_proj = nn.modules.linear.NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, **made)
        self._add_extras(traits, bias, new)
        self.reset_parameters()

    def _add_extras(self, traits: int, bias: bool, new: Any) -> None:
        """The parameters of the variant."""
        heads, count, size = self.num_heads, self.components, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {}
        if traits & lib.CLMGK_TRAIT_KEYS and count > 1:
            shapes["key_weight"] = ((count - 1) * heads * size, self.kdim)
            if bias:
                shapes["key_bias"] = ((count - 1) * heads * size,)
        if traits & (lib.CLMGK_TRAIT_KEYS | lib.CLMGK_TRAIT_SHIFT):
            shapes["prior"] = (heads, count)
        if traits & lib.CLMGK_TRAIT_SHIFT:
            shapes["shift"] = (heads, count, size)
        if traits & lib.CLMGK_TRAIT_ADMIXTURE:
            shapes["mix"] = (count,) if traits & lib.CLMGK_TRAIT_SHARED_MIX else (heads, count)
        if traits & lib.CLMGK_TRAIT_GENERALISED:
            shapes.update(mix_weight=(heads, count), mix_offset=(heads,))
        if traits & lib.CLMGK_TRAIT_NOISE:
            shapes["noise"] = (count,)
        for name in _EXTRAS:
            self.register_parameter(name, new(*shapes[name]) if name in shapes else None)

    def reset_parameters(self) -> None:
        """Draws the initial values anew."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight, self.key_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias, self.key_bias, self.mix_offset):
            if bias is not None:
                nn.init.zeros_(bias)
        for parameter, value in ((self.prior, 1 / self.components), (self.mix_weight, 1.0), (self.noise, 0.1)):
            if parameter is not None:
                nn.init.constant_(parameter, value)
        for parameter, deviation in ((self.shift, 1.0), (self.mix, self.components ** -0.5)):
            if parameter is not None:
                nn.init.normal_(parameter, std=deviation)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in _EXTRAS:
            parameter = getattr(self, name)
            if parameter is not None:
                state_dict.setdefault(prefix + name, parameter.detach().clone())
        super()._load_from_state_dict(state_dict, prefix, *args)

    # ---- forward

    def _project(self, inputs: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        """q, k and v as [B,H,N,D] (k of MGK [B,H,M,S,D]) from inputs [B,N,W]."""
        weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if self.in_proj_weight is None \
            else self.in_proj_weight.split(self._widths)
        biases: Any = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split(self._widths)
        if self.in_proj_weight is not None and inputs[0] is inputs[1] is inputs[2]:
            projected = list(nn.functional.linear(inputs[0], self.in_proj_weight, self.in_proj_bias).split(self._widths, -1))
        else:
            projected = [nn.functional.linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases)]
        heads = (self._key_heads, self._key_heads, self.num_heads)
        q, k, v = (x.unflatten(-1, (n, self.head_dim)).transpose(1, 2) for x, n in zip(projected, heads))
        if traits_of(self.variant) & lib.CLMGK_TRAIT_KEYS:
            k = k.unsqueeze(2)
            if self.key_weight is not None:
                more = nn.functional.linear(inputs[1], self.key_weight, self.key_bias)
                more = more.unflatten(-1, (self.components - 1, self.num_heads, self.head_dim)).permute(0, 3, 2, 1, 4)
                k = torch.cat((k, more), 2)
        return [q, k, v]

    def _parameters_of_call(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in _EXTRAS[2:]}
        options = {**self._options, **{name: value for name, value in given.items() if value is not None}}
        for name in ("prior", "noise"):  # an optimiser may have stepped below 0
            if name in options:
                options[name] = options[name].clamp_min(0)
        return options

    def _masks(self, key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool) -> dict[str, Any]:
        if is_causal:
            attn_mask = None
        biases = []
        for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
            if mask is None:
                continue
            bias = as_bias(~mask if mask.dtype == torch.bool else mask, mask, (), 0)
            if name == "key_padding_mask":
                bias = bias.reshape(-1, 1, 1, mask.shape[-1])
            elif mask.ndim == 3:
                bias = bias.reshape(-1, self.num_heads, *mask.shape[-2:])
            biases.append(bias)
        masks: dict[str, Any] = {"causal": is_causal, "alignment": "top-left"}
        return {**masks, "bias": sum(biases[1:], biases[0])} if biases else masks

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = False, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """As ``torch.nn.MultiheadAttention.forward``; is_causal needs no attn_mask.

        Returns
        -------
        tuple of Tensor and (Tensor or None)
            The output, and the weights if asked for.

        Raises
        ------
        NotImplementedError
            need_weights with a variant other than softmax.
        ValueError, TypeError, RuntimeError
            As in `clmgk.torch.attention`.
        """
        if need_weights and self.variant != "softmax":
            raise NotImplementedError(f"need_weights: the weights of variant {self.variant!r} are not stored")
        batched = query.ndim == 3
        inputs = [x if batched else x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value)]
        if not self.batch_first:
            same = query is key is value
            inputs = [x.transpose(0, 1) for x in inputs]
            inputs = [inputs[0]] * 3 if same else inputs
        q, k, v = self._project((inputs[0], inputs[1], inputs[2]))
        options = {**self._parameters_of_call(), **self._masks(key_padding_mask, attn_mask, is_causal)}
        o, lse = attention(q, k, v, dropout=self.dropout if self.training else 0.0, return_lse=True, **options)
        result = self.out_proj(o.transpose(1, 2).flatten(2))
        if not self.batch_first:
            result = result.transpose(0, 1)
        weights = self._weights(q, k, lse, options, average_attn_weights) if need_weights else None
        if not batched:
            result = result.squeeze(0 if self.batch_first else 1)
            weights = weights if weights is None else weights.squeeze(0)
        return result, weights

    def _weights(self, q: Tensor, k: Tensor, lse: Tensor, options: dict[str, Any], average: bool) -> Tensor:
        scores = q.float() @ k.float().transpose(-1, -2) * self.head_dim ** -0.5
        if options["softcap"]:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        if "bias" in options:
            scores = scores + options["bias"]
        if options["causal"]:
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~visible, -torch.inf)
        weights = torch.softmax(scores, -1)
        return weights.mean(1) if average else weights

    @torch.no_grad()
    def update_prior(self, query: Tensor, key: Tensor, key_padding_mask: Tensor | None = None,
                     attn_mask: Tensor | None = None, is_causal: bool = False) -> None:
        """Sets π to its maximum of the likelihood of these inputs (EM; MGK paper, Eq. 8). Only with a prior."""
        if self.prior is None:
            raise RuntimeError(f"variant {self.variant!r} has no prior")
        same = query is key
        inputs = [x if x.ndim == 3 else x.unsqueeze(0 if self.batch_first else 1) for x in (query, key)]
        query, key = (x if self.batch_first else x.transpose(0, 1) for x in inputs)
        value = key.new_zeros(*key.shape[:-1], self.vdim)
        q, k, _ = self._project((query, query if same else key, value))
        options = {**self._parameters_of_call(), **self._masks(key_padding_mask, attn_mask, is_causal)}
        options.pop("softcap")
        arrays: dict[str, Any] = {name: value.detach().float().cpu().numpy() if isinstance(value, Tensor) else value
                                  for name, value in options.items()}
        found = statistics(q.float().cpu().contiguous().numpy(), k.float().cpu().contiguous().numpy(),
                           statistics=["new_prior"], device=cpu_context(), **arrays)
        self.prior.copy_(torch.from_numpy(found["new_prior"]))
