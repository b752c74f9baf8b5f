# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention as a module."""
from __future__ import annotations

from typing import Any, Mapping

import torch
from torch import Tensor, nn

from .._descriptor import validate
from .._functions import draw_projection, statistics
from .._library import lib
from .._options import mapping, traits_of
from ._attention import as_bias, attention, check_mask, check_tensor, once
from ._linear import linear_attention
from ._operators import cpu_context

# Parameters and buffers that PyTorch's module does not have.
_EXTRAS = ("key_weight", "key_bias", "prior", "shift", "mix", "mix_weight", "mix_offset", "mix_hidden_offset", "mix_after",
           "noise", "projection")
# Values that ``repr`` leaves out.
_DEFAULTS = {"score_mod": None, "mask_mod": None, "score": "default", "estep": "soft", "softcap": 0.0, "guard": 0.0, "feature_epsilon": 0.0, "unnormalised": False, "mix_hidden": 0, "mix_after": 0,
             "components": 1, "dropout": 0.0, "add_bias_kv": False, "add_zero_attn": False, "batch_first": False}


def parameter_shapes(traits: int, heads: int, count: int, size: int, hidden: int, after: int = 0) -> dict[str, tuple[int, ...]]:
    """Shapes of a variant's parameters, by name, for H heads of D numbers, M components, U hidden units, and A heads that are
    mixed after the softmax."""
    shapes: dict[str, tuple[int, ...]] = {"mix_after": (heads, after)} if after else {}
    heads = after or heads
    if traits & (lib.CLMGK_TRAIT_KEYS | lib.CLMGK_TRAIT_SHIFT):
        shapes["prior"] = (heads, count)
    if traits & lib.CLMGK_TRAIT_SHIFT:
        shapes["shift"] = (heads, count, size)
    if traits & lib.CLMGK_TRAIT_ADMIXTURE:
        shapes["mix"] = (count,) if traits & lib.CLMGK_TRAIT_SHARED_MIX else (heads, count)
    if traits & lib.CLMGK_TRAIT_GENERALISED:
        shapes["mix_weight"] = (heads, hidden or count)
        if not traits & lib.CLMGK_TRAIT_LINEAR:
            shapes["mix_offset"] = (heads,)
    if hidden:
        shapes["mix"], shapes["mix_hidden_offset"] = (hidden, count), (hidden,)
    if traits & lib.CLMGK_TRAIT_NOISE:
        shapes["noise"] = (count,)
    return shapes


def initialise(module: nn.Module, is_linear: bool) -> None:
    """Draws initial values of a variant's parameters, which the module has under their names."""
    found: dict[str, Tensor | None] = {name: getattr(module, name, None) for name in _EXTRAS[2:-1]}
    prior, shift, mix, weight, offset, hidden_offset, after, noise = found.values()
    for zero in (offset, hidden_offset):
        if zero is not None:
            nn.init.zeros_(zero)
    if prior is not None:
        nn.init.constant_(prior, 1 / prior.shape[-1])
    if noise is not None:
        nn.init.constant_(noise, 0.1)
    if weight is not None and hidden_offset is not None:  # equal heads would learn alike
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    elif weight is not None:
        nn.init.ones_(weight)
    if shift is not None:
        nn.init.normal_(shift)
    if mix is not None and is_linear:  # with signs, denominators would pass through 0
        with torch.no_grad():
            mix.copy_(torch.softmax(nn.init.normal_(mix), -1))
    elif mix is not None:
        nn.init.normal_(mix, std=mix.shape[-1] ** -0.5)
    if after is not None:
        nn.init.normal_(after, std=after.shape[-1] ** -0.5)


def usable_parameters(given: Mapping[str, Tensor | None]) -> dict[str, Any]:
    """A variant's parameters as options of a call."""
    options = {name: value for name, value in given.items() if value is not None}
    for name in ("prior", "noise"):  # an optimiser may have stepped below 0
        if name in options:
            options[name] = options[name].clamp_min(0)
    return options


class MultiheadAttention(nn.MultiheadAttention):
    """Multi-head attention of any variant, as a replacement of ``torch.nn.MultiheadAttention``.

    Its parameters have the names and shapes of PyTorch's module, whose state_dict it loads; parameters of a variant that
    the state_dict lacks keep their initial values. These are: prior π = 1/M; "smgk" shifts b and "hard-fish" mixing p
    normal, of standard deviation 1 and 1/√M; mixing of linear variants the softmax of normal numbers, because a positive p
    keeps denominators away from 0; w = 1, with a hidden layer normal, of standard deviation 1/√U; b = c = 0, noise σ = 0.1;
    further keys of "mgk" as the first one's.

    It is a subclass, for code that looks for PyTorch's module by ``isinstance``, and computes everything itself.

    Differences from PyTorch's module: `need_weights` is False by default, because attention's weights are never stored, and
    is offered for softmax alone; the weights it returns are those before dropout, in training too; rows without visible
    keys give 0 before the output projection, not NaN; `is_causal` needs no `attn_mask`; add_bias_kv and add_zero_attn are
    not offered; `dropout` is below 1; there is no float64.

    The linear variants ("linear", "mlk", "smlk", "lfish", ...) need time and memory in proportion to the number of
    positions. They take `is_causal` in the place of an `attn_mask`, a `key_padding_mask` that hides the ends of sequences
    alone, no dropout of weights, and neither add_bias_kv nor add_zero_attn.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As in ``torch.nn.MultiheadAttention``. Variants with mixed heads: num_heads counts the heads of values. "mgk": the
        keys that add_bias_kv and add_zero_attn add are the same in all components.
    variant : str
        As in ``clmgk.attention``.
    components : int, optional
        M: keys per position ("mgk", "smgk"; default 2), global heads of the variants with mixed heads (default
        num_heads, or mix_after).
    score, estep, softcap, mix_hidden
        As in ``clmgk.attention``.
    mix_after : int
        A > 0: variants with mixed heads mix the weights of A heads after their softmax (``clmgk.attention``), by a parameter
        of this name, [num_heads,A]; an attn_mask of heads then has A of them. 0: no mixing after the softmax.
    feature, feature_order, guard, feature_epsilon, unnormalised
        Of the linear variants, as in ``clmgk.linear_attention``.
    features : int, optional
        Rows of the projection of the feature "favor", which is drawn anew with the other initial values. Default: the head
        size.

    score_mod, mask_mod : str, optional
        As in ``clmgk.attention``: i and j count the queries and keys of a call, h the heads of the softmax. Not of the linear
        variants, and not with add_bias_kv and add_zero_attn. There are no `need_weights` then.
    captures : dict of Tensor, optional
        Tensors that these texts read, by name: Parameters become parameters of the module, others buffers, named
        "capture_NAME". Those of each batch, such as documents, are an argument of the call.
    numbers : dict of float or Tensor, optional
        Numbers in these texts: Parameters of one element become parameters of the module, other tensors buffers, named
        "number_NAME".

    Raises
    ------
    ValueError
        embed_dim is not a multiple of num_heads; a value is not legal, or does not suit the variant.
    NotImplementedError
        add_bias_kv or add_zero_attn with a linear variant, or with score_mod or mask_mod.
    """

    key_weight: nn.Parameter | None
    key_bias: nn.Parameter | None
    prior: nn.Parameter | None
    shift: nn.Parameter | None
    mix: nn.Parameter | None
    mix_weight: nn.Parameter | None
    mix_offset: nn.Parameter | None
    mix_hidden_offset: nn.Parameter | None
    mix_after: nn.Parameter | None
    noise: nn.Parameter | None
    projection: Tensor | None

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
                 add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 device: Any = None, dtype: Any = None, *, variant: str = "softmax", components: int | None = None,
                 score: str = "default", estep: str = "soft", softcap: float = 0.0, mix_hidden: int = 0, mix_after: int = 0,
                 feature: str | None = None, feature_order: int | None = None, features: int | None = None, guard: float = 0.0,
                 feature_epsilon: float = 0.0, unnormalised: bool = False, score_mod: str | None = None, mask_mod: str | None = None,
                 captures: Mapping[str, Tensor] | None = None, numbers: Mapping[str, float | Tensor] | None = None) -> None:
        nn.Module.__init__(self)  # the class in between would make its own parameters
        # TransformerEncoderLayer then calls forward() instead of PyTorch's own kernel for softmax.
        self._qkv_same_embed_dim = False
        self.add_zero_attn = add_zero_attn
        traits = traits_of(variant)
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"embed_dim: {embed_dim}: expected a positive multiple of num_heads, {num_heads}")
        if (add_bias_kv or add_zero_attn) and traits & lib.CLMGK_TRAIT_LINEAR:
            raise NotImplementedError(f"add_bias_kv and add_zero_attn are not offered with variant {variant!r}: expected False")
        if (add_bias_kv or add_zero_attn) and (score_mod is not None or mask_mod is not None):
            raise NotImplementedError("add_bias_kv and add_zero_attn are not offered with score_mod and mask_mod: expected False")
        mixed = bool(traits & lib.CLMGK_TRAIT_ADMIXTURE)
        has_components = bool(traits & (lib.CLMGK_TRAIT_KEYS | lib.CLMGK_TRAIT_SHIFT))
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self._softmax_heads = mix_after or num_heads
        self.components = components if components is not None else self._softmax_heads if mixed else 2 if has_components else 1
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.dropout, self.batch_first, self.variant = dropout, batch_first, variant
        self._is_linear, self._has_keys = bool(traits & lib.CLMGK_TRAIT_LINEAR), bool(traits & lib.CLMGK_TRAIT_KEYS)
        given = {"variant": variant, "score": score, "estep": estep, "softcap": softcap, "mix_hidden": mix_hidden,
                 "feature": feature, "feature_order": feature_order, "guard": guard,
                 "feature_epsilon": feature_epsilon, "unnormalised": unnormalised, "score_mod": score_mod, "mask_mod": mask_mod}
        self._add_named(captures, numbers)
        if feature == "favor" and features is None:
            features = self.head_dim
        self._check({**given, "mix_after_heads": mix_after}, features)
        names = ("variant", "feature", "feature_order", "guard", "feature_epsilon", "unnormalised") if self._is_linear \
            else ("variant", "score", "estep", "softcap", "mix_hidden", "score_mod", "mask_mod")
        self._options: dict[str, Any] = {name: given[name] for name in names if given[name] is not None}
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
        self.register_parameter("in_proj_bias", new(sum(self._widths)) if bias else None)
        self.out_proj = nn.modules.linear.NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, **made)
        self.bias_k, self.bias_v = (new(1, 1, width), new(1, 1, embed_dim)) if add_bias_kv else (None, None)
        self._added_keys = int(add_bias_kv) + int(add_zero_attn)
        self._add_extras(traits, bias, mix_after, new)
        rows = features if self._is_linear and feature == "favor" else None
        self.register_buffer("projection", None if rows is None else torch.empty(rows, self.head_dim, device=device))
        self.reset_parameters()

    def _check(self, given: dict[str, Any], features: int | None) -> None:
        """Raises as a call would, for options that do not suit the variant."""
        if self.components < 1:
            raise ValueError(f"components: {self.components}: expected 1 or more")
        if self._is_linear and self.dropout:
            raise ValueError(f"dropout: {self.dropout}: expected 0 with variant {self.variant!r}, which has no weights to drop")
        for name in ("score_mod", "mask_mod"):
            text = given.pop(name)
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name}: {type(text).__name__}: expected a text")
            if text is not None and self._is_linear:
                raise ValueError(f"{name}: given, but variant {self.variant!r} has no scores")
        options = {**given, "features": features, "dropout": self.dropout, "heads": self.num_heads,
                   "components": self.components, "head_size": self.head_dim, "length": 1}
        validate({name: value for name, value in options.items() if value is not None})

    def _add_extras(self, traits: int, bias: bool, mix_after: int, new: Any) -> None:
        """The parameters of the variant."""
        shapes = parameter_shapes(traits, self.num_heads, self.components, self.head_dim, self._options.get("mix_hidden", 0),
                                  mix_after)
        if traits & lib.CLMGK_TRAIT_KEYS and self.components > 1:
            shapes["key_weight"] = ((self.components - 1) * self.embed_dim, self.kdim)
            if bias:
                shapes["key_bias"] = shapes["key_weight"][:1]
        for name in _EXTRAS[:-1]:
            self.register_parameter(name, new(*shapes[name]) if name in shapes else None)

    def _add_named(self, captures: Any, numbers: Any) -> None:
        """The tensors and numbers that texts read."""
        given = {"capture": mapping("captures", captures or {}), "number": mapping("numbers", numbers or {})}
        self._named = {kind: tuple(values) for kind, values in given.items()}
        for kind, values in given.items():
            for name, value in values.items():
                if isinstance(value, nn.Parameter):
                    self.register_parameter(f"{kind}_{name}", value)
                elif isinstance(value, Tensor):
                    self.register_buffer(f"{kind}_{name}", value)
                elif kind == "capture":
                    raise TypeError(f"captures[{name!r}]: {type(value).__name__}: expected a tensor")
                else:
                    setattr(self, f"{kind}_{name}", value)

    def _texts(self, captures: Any, numbers: Any) -> dict[str, Any]:
        """What texts read in a call, to which these are added, or whose values they replace."""
        found = {}
        for option, kind, given in ("captures", "capture", captures), ("numbers", "number", numbers):
            values = {name: getattr(self, f"{kind}_{name}") for name in self._named[kind]}
            values.update(mapping(option, given or {}))
            if values:
                found[option] = values
        return found

    def reset_parameters(self) -> None:
        """Draws the initial values anew."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight, self.key_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias, self.key_bias):
            if bias is not None:
                nn.init.zeros_(bias)
        for added in (self.bias_k, self.bias_v):
            if added is not None:
                nn.init.xavier_normal_(added)
        initialise(self, self._is_linear)
        if self.projection is not None:
            seed = int(torch.randint(2**63 - 1, (), device="cpu").item())
            self.projection.copy_(torch.from_numpy(draw_projection(*self.projection.shape, seed=seed)))

    _reset_parameters = reset_parameters

    @property
    def _has_texts(self) -> bool:
        return self._options.get("score_mod") is not None or self._options.get("mask_mod") is not None

    def extra_repr(self) -> str:
        """The part of ``repr`` in parentheses: sizes, the variant, and options with another value than the default."""
        after = 0 if self.mix_after is None else self.mix_after.shape[1]
        given = {**self._options, "mix_after": after, "components": self.components, "dropout": self.dropout,
                 "add_bias_kv": self.bias_k is not None, "add_zero_attn": self.add_zero_attn, "batch_first": self.batch_first}
        shown = [f"{name}={value!r}" for name, value in given.items() if value != _DEFAULTS.get(name)]
        return ", ".join([str(self.embed_dim), str(self.num_heads), *shown])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        named = [f"{kind}_{name}" for kind, names in self._named.items() for name in names]
        for name in (*_EXTRAS, *named):
            parameter = getattr(self, name)
            if isinstance(parameter, Tensor):
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
        if self._has_keys:
            k = k.unsqueeze(2)
            if self.key_weight is not None:
                more = nn.functional.linear(inputs[1], self.key_weight, self.key_bias)
                more = more.unflatten(-1, (self.components - 1, self.num_heads, self.head_dim)).permute(0, 3, 2, 1, 4)
                k = torch.cat((k, more), 2)
        return [q, k, v]

    def _add_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with those of add_bias_kv and add_zero_attn before the first."""
        added = []
        for x, bias in ((k, self.bias_k), (v, self.bias_v)) if self._added_keys else ():
            parts = [] if bias is None else [bias.reshape(-1, *[1] * (x.ndim - 3), self.head_dim).expand(*x.shape[:-2], 1, -1)]
            if self.add_zero_attn:
                parts.append(x.new_zeros(*x.shape[:-2], 1, x.shape[-1]))
            added.append(torch.cat((*parts, x), -2))
        return (added[0], added[1]) if added else (k, v)

    def _parameters_of_call(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in _EXTRAS[2:]}
        return {**self._options, **usable_parameters(given)}

    def _masks(self, key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool,
               sizes: tuple[int, int, int], batched: bool) -> dict[str, Any]:
        """The masks as options of a call, for B, N and S."""
        batch, length, length_k = sizes
        masks: dict[str, Any] = {"causal": is_causal, "alignment": "top-left"}
        biases = []
        if key_padding_mask is not None:
            mask = _exact("key_padding_mask", key_padding_mask, ((batch, length_k) if batched else (length_k,),))
            if self._is_linear:
                masks["lengths"] = _lengths(mask).reshape(batch)
            else:
                biases.append(as_bias(_visible(mask), ()).transpose(0, 2))
        if attn_mask is not None and not is_causal:
            if self._is_linear:
                raise ValueError(f"attn_mask: given, but variant {self.variant!r} takes is_causal=True in its place, or none")
            mask = _exact("attn_mask", attn_mask, ((length, length_k), (batch * self._softmax_heads, length, length_k)))
            bias = as_bias(_visible(mask), ())
            biases.append(bias.unflatten(1, (batch, self._softmax_heads)).squeeze(0) if bias.shape[1] != 1 else bias)
        if biases:
            masks["bias"] = sum(biases[1:], biases[0])
        added = self._added_keys
        if added and is_causal:  # query i sees key i behind the added ones
            masks.update(causal=False, window_right=added)
        if added and biases:
            bias = masks["bias"]
            masks["bias"] = nn.functional.pad(bias.expand(*bias.shape[:-1], length_k), (added, 0))
        return masks

    def _check_inputs(self, inputs: dict[str, Tensor]) -> None:
        """Raises for inputs that do not fit together. Each is [L,N,W], [N,L,W] with batch_first, or [L,W]."""
        query, key = inputs["query"], inputs["key"]
        widths = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        for name, x in inputs.items():
            check_tensor(name, x)
            if not 2 <= x.ndim <= 3 or x.ndim != query.ndim or x.shape[-1] != widths[name]:
                axes = "[L," if query.ndim == 2 else "[N,L," if self.batch_first else "[L,N,"
                raise ValueError(f"{name}: shape {tuple(x.shape)}: expected {axes}{widths[name]}]")
        batch = 0 if self.batch_first else 1
        if query.ndim == 3 and key.shape[batch] != query.shape[batch]:
            raise ValueError(f"key: shape {tuple(key.shape)}: expected the query's batch, {query.shape[batch]}")
        if "value" in inputs and inputs["value"].shape[:-1] != key.shape[:-1]:
            raise ValueError(f"value: shape {tuple(inputs['value'].shape)}: expected {tuple(key.shape[:-1])} before the last "
                             f"axis, as in key")

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = False, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False, captures: Mapping[str, Tensor] | None = None,
                numbers: Mapping[str, float | Tensor] | None = None) -> tuple[Tensor, Tensor | None]:
        """As ``torch.nn.MultiheadAttention.forward``; is_causal needs no attn_mask. `captures` and `numbers` are further ones of
        score_mod and mask_mod, or take the place of the module's for this call.

        Query, key and value may be nested tensors of layout ``torch.strided``, as ``nn.TransformerEncoder`` makes them in
        eval mode, with batch_first and without a key_padding_mask. The output is nested then; the weights are padded.

        Returns
        -------
        tuple of Tensor and (Tensor or None)
            The output, and the weights if asked for.

        Raises
        ------
        NotImplementedError
            need_weights with a variant other than softmax, or with score_mod or mask_mod.
        ValueError
            Shapes do not fit; a mask that a linear variant cannot take.
        TypeError, RuntimeError
            As in `clmgk.torch.attention`.
        """
        if need_weights and self.variant != "softmax":
            raise NotImplementedError(f"need_weights: the weights of variant {self.variant!r} are not stored")
        if need_weights and self._has_texts:
            raise NotImplementedError("need_weights: the weights of score_mod and mask_mod are not stored")
        if isinstance(query, Tensor) and query.is_nested:
            return self._forward_nested({"query": query, "key": key, "value": value}, key_padding_mask, need_weights, attn_mask,
                                        average_attn_weights, is_causal, captures, numbers)
        self._check_inputs({"query": query, "key": key, "value": value})
        batched = query.ndim == 3
        inputs = [x if batched else x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value)]
        if not self.batch_first:
            same = query is key is value
            inputs = [x.transpose(0, 1) for x in inputs]
            inputs = [inputs[0]] * 3 if same else inputs
        q, k, v = self._project((inputs[0], inputs[1], inputs[2]))
        sizes = (q.shape[0], q.shape[2], v.shape[2])
        k, v = self._add_keys(k, v)
        options = {**self._parameters_of_call(), **self._masks(key_padding_mask, attn_mask, is_causal, sizes, batched),
                   **self._texts(captures, numbers)}
        if self._is_linear:
            o = linear_attention(q, k, v, **options)
        else:
            o = attention(q, k, v, dropout=self.dropout if self.training else 0.0, **options)
        result = self.out_proj(o.transpose(1, 2).flatten(2))
        if not self.batch_first:
            result = result.transpose(0, 1)
        weights = self._weights(q, k, options, average_attn_weights) if need_weights else None
        if not batched:
            result = result.squeeze(0 if self.batch_first else 1)
            weights = weights if weights is None else weights.squeeze(0)
        return result, weights

    def _forward_nested(self, inputs: dict[str, Tensor], key_padding_mask: Tensor | None,
                        *options: Any) -> tuple[Tensor, Tensor | None]:
        """The sequences padded, and the output nested again."""
        if not self.batch_first or key_padding_mask is not None:
            raise ValueError("query: a nested tensor: expected batch_first=True, and no key_padding_mask")
        for name, x in inputs.items():
            if not isinstance(x, Tensor) or not x.is_nested or x.layout is not torch.strided:
                raise TypeError(f"{name}: beside a nested query: expected nested tensors of layout torch.strided")
        lengths = {name: [part.shape[0] for part in x.unbind()] for name, x in inputs.items()}
        if lengths["value"] != lengths["key"]:
            raise ValueError(f"value: lengths {lengths['value']}: expected {lengths['key']}, as in key")
        padded = {x: x.to_padded_tensor(0.0) for x in inputs.values()}
        query, key, value = (padded[x] for x in inputs.values())
        positions, ends = torch.arange(key.shape[1], device=key.device), torch.tensor(lengths["key"], device=key.device)
        result, weights = self.forward(query, key, value, positions >= ends[:, None], *options)
        return torch.nested.as_nested_tensor([row[:n] for row, n in zip(result, lengths["query"])]), weights

    def _weights(self, q: Tensor, k: Tensor, options: dict[str, Any], average: bool) -> Tensor:
        scores = q.float() @ k.float().transpose(-1, -2) * self.head_dim ** -0.5
        if options["softcap"]:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        if "bias" in options:
            scores = scores + options["bias"]
        if options["causal"] or "window_right" in options:
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(self._added_keys)
            scores = scores.masked_fill(~visible, -torch.inf)
        hidden = (scores == -torch.inf).all(-1, keepdim=True)  # rows without keys: 0, and no NaN on the way back
        weights = torch.softmax(scores.masked_fill(hidden, 0), -1).masked_fill(hidden, 0).to(q.dtype)
        weights = weights.roll(-self._added_keys, -1)  # PyTorch has added keys behind the others
        return weights.mean(1) if average else weights

    @torch.no_grad()
    def update_prior(self, query: Tensor, key: Tensor, key_padding_mask: Tensor | None = None,
                     attn_mask: Tensor | None = None, is_causal: bool = False, captures: Mapping[str, Tensor] | None = None,
                     numbers: Mapping[str, float | Tensor] | None = None) -> None:
        """Sets π to its maximum of the likelihood of these inputs (EM; MGK paper, Eq. 8). Only for "mgk" and "smgk"."""
        if self.prior is None:
            raise RuntimeError(f"variant {self.variant!r} has no prior")
        if self._is_linear:
            raise NotImplementedError(f"variant {self.variant!r}: the linear variants have no EM update of the prior")
        self._check_inputs({"query": query, "key": key})
        same, batched = query is key, query.ndim == 3
        inputs = [x if x.ndim == 3 else x.unsqueeze(0 if self.batch_first else 1) for x in (query, key)]
        query, key = (x if self.batch_first else x.transpose(0, 1) for x in inputs)
        value = key.new_zeros(*key.shape[:-1], self.vdim)
        q, k, v = self._project((query, query if same else key, value))
        sizes = (q.shape[0], q.shape[2], k.shape[-2])
        k, _ = self._add_keys(k, v)
        options = {**self._parameters_of_call(), **self._masks(key_padding_mask, attn_mask, is_causal, sizes, batched)}
        options.pop("softcap")
        arrays: dict[str, Any] = {name: _as_array(value) for name, value in options.items()}
        for name, values in self._texts(captures, numbers).items():
            arrays[name] = {own: _as_array(value) for own, value in values.items()}
        found = statistics(q.float().cpu().contiguous().numpy(), k.float().cpu().contiguous().numpy(),
                           statistics=["new_prior"], device=cpu_context(), **arrays)
        self.prior.copy_(torch.from_numpy(found["new_prior"]))


def _as_array(value: Any) -> Any:
    """A tensor as an array of floats, or of its ints; another value as it is."""
    if not isinstance(value, Tensor):
        return value
    return (value.float() if value.is_floating_point() else value).detach().cpu().numpy()


# ---- masks of PyTorch's module: True hides


def _exact(name: str, mask: Any, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """A mask of one of these shapes."""
    for shape in shapes:
        if isinstance(mask, Tensor) and tuple(mask.shape) == shape:
            return check_mask(name, mask, shape)
    check_tensor(name, mask)
    raise ValueError(f"{name}: shape {tuple(mask.shape)}: expected {' or '.join(map(str, shapes))}")


def _visible(mask: Tensor) -> Tensor:
    """A mask whose True takes part; numbers are added to the scores as they are."""
    mask = once(mask)
    return ~mask if mask.dtype == torch.bool else mask


def _lengths(mask: Tensor) -> Tensor:
    """The lengths of sequences whose ends a key_padding_mask hides."""
    hidden = mask if mask.dtype == torch.bool else mask == -torch.inf
    if mask.dtype != torch.bool and not bool((hidden | (mask == 0)).all()):
        raise ValueError("key_padding_mask: expected bool, or 0 and -inf alone, with a linear variant")
    if bool((hidden[..., :-1] & ~hidden[..., 1:]).any()):
        raise ValueError("key_padding_mask: hides a key before a visible one: expected padding at the ends of sequences with a "
                         "linear variant")
    return (~hidden).sum(-1)
