# SPDX-License-Identifier: Apache-2.0
"""Models whose attention is another variant."""
from __future__ import annotations

import inspect
from typing import Any, Sequence, TypeVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from .._descriptor import validate
from .._library import lib
from .._options import traits_of
from ..torch._module import initialise, parameter_shapes, usable_parameters
from ._attention import NAME

_Model = TypeVar("_Model", bound=nn.Module)
_SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim")
_QUERIES, _KEYS = ("q_proj", "query", "q", "q_lin"), ("k_proj", "key", "k", "k_lin")
_BLOOM = ("transformers.models.bloom.modeling_bloom", "BloomAttention")
_NOISE = 0.1  # of copied heads, in standard deviations of their weights: equal ones would learn alike


class Swapped(nn.Module):
    """A variant in the place of a module's softmax: its parameters, and the changes of a call."""

    def __init__(self, variant: str, heads: int, size: int, components: int, options: dict[str, Any], like: Tensor,
                 taken: tuple[int, int]) -> None:
        super().__init__()
        self._taken = taken  # heads of queries and keys
        self.components, self._options, traits = components, {"variant": variant, **options}, traits_of(variant)
        self._has_keys, self._is_mixed = bool(traits & lib.CLMGK_TRAIT_KEYS), bool(traits & lib.CLMGK_TRAIT_ADMIXTURE)
        shapes = parameter_shapes(traits, heads, components, size, options.get("mix_hidden", 0))
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=like.dtype, device=like.device)))
        initialise(self, is_linear=False)
        if shapes.get("mix") == (heads, components) and not options.get("mix_hidden"):  # a head begins as one of the model's
            with torch.no_grad():
                self.get_parameter("mix").copy_(nn.functional.one_hot(_spread(components, heads), components))

    def forward(self, query: Tensor, key: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Query, key and options of a call of `clmgk.torch.attention`, from those of softmax."""
        if (query.shape[1], key.shape[1]) != self._taken:
            raise NotImplementedError(f"{query.shape[1]} heads of queries and {key.shape[1]} of keys: expected {self._taken}: "
                                      f"the model's module has a fixed number of heads, and replace does not serve it")
        options = {**options, **self._options, **usable_parameters(dict(self.named_parameters()))}
        scale = options.pop("scale") if self._is_mixed else None  # a score of the mixture is divided by √D
        if scale is not None:
            query = query * (scale * query.shape[-1] ** 0.5)
        return query, key.unflatten(1, (-1, self.components)) if self._has_keys else key, options


def _spread(count: int, places: int) -> Tensor:
    """Numbers below `count` for a number of places, in order."""
    return torch.arange(places) * count // places


def _taken(weight: Tensor, size: int, heads: Tensor) -> nn.Parameter:
    """The rows of some heads; noise tells copies from their originals."""
    found = weight.detach().unflatten(0, (-1, size))[heads.to(weight.device)]
    copies = [i for i, head in enumerate(heads.tolist()) if head in heads[:i]]
    if copies and weight.numel() > 1:
        found[copies] += _NOISE * weight.detach().std() * torch.randn_like(found[copies])
    return nn.Parameter(found.flatten(0, 1), requires_grad=weight.requires_grad)


def _child(module: nn.Module, names: Sequence[str]) -> nn.Linear | None:
    """The projection of one of these names."""
    for name in names:
        child = module._modules.get(name)
        if isinstance(child, nn.Linear) and type(child) is nn.Linear:
            return child
    return None


class _Separate:
    """Projections of queries and keys that are linear layers of their own."""

    def __init__(self, module: nn.Module, query: nn.Linear, key: nn.Linear) -> None:
        self.size: int = next(getattr(module, name) for name in _SIZES if hasattr(module, name))
        self.heads, self.groups = query.out_features // self.size, key.out_features // self.size
        self._query, self._key, self.weight = query, key, key.weight

    def take(self, queries: Tensor, keys: Tensor) -> None:
        for linear, heads in ((self._query, queries), (self._key, keys)):
            linear.weight = _taken(linear.weight, self.size, heads)
            linear.out_features = len(heads) * self.size
            if linear.bias is not None:
                linear.bias = _taken(linear.bias, self.size, heads)


class _Fused:
    """GPT-2's: one layer for queries, keys and values, which the module splits into parts of `split_size`."""

    def __init__(self, module: Any) -> None:
        self._module, self.size, self.weight = module, module.head_dim, module.c_attn.weight
        self.heads = self.groups = module.num_heads

    def take(self, queries: Tensor, keys: Tensor) -> None:
        layer = self._module.c_attn
        heads = (queries, keys, torch.arange(self.heads))

        def taken(whole: Tensor) -> nn.Parameter:
            return nn.Parameter(torch.cat([_taken(part, self.size, of) for part, of in zip(whole.chunk(3), heads)]),
                                requires_grad=whole.requires_grad)

        weight = taken(layer.weight.T)
        weight.data = weight.data.T.contiguous()
        layer.weight, layer.bias = weight, taken(layer.bias)
        self._module.split_size = [len(of) * self.size for of in heads]
        layer.nf = sum(self._module.split_size)


class _Bloom:
    """Bloom's: one layer, whose outputs are the query, the key and the value of each head."""

    def __init__(self, module: Any) -> None:
        self._module, self.size, self.weight = module, module.head_dim, module.query_key_value.weight
        self.heads = self.groups = module.num_heads

    def take(self, queries: Tensor, keys: Tensor) -> None:
        layer, heads = self._module.query_key_value, (queries, keys, torch.arange(self.heads))

        def taken(whole: Tensor) -> nn.Parameter:
            parts = whole.unflatten(0, (self.heads, 3, self.size)).unbind(1)
            return nn.Parameter(torch.cat([_taken(part.flatten(0, 1), self.size, of) for part, of in zip(parts, heads)]),
                                requires_grad=whole.requires_grad)

        layer.weight, layer.bias = taken(layer.weight), taken(layer.bias)
        self._module.parts = [len(of) * self.size for of in heads]
        layer.out_features = sum(self._module.parts)


def _projections(module: nn.Module) -> _Separate | _Fused | _Bloom:
    if _is_bloom(module):
        return _Bloom(module)
    query, key = _child(module, _QUERIES), _child(module, _KEYS)
    if query is not None and key is not None and any(hasattr(module, name) for name in _SIZES):
        return _Separate(module, query, key)
    if isinstance(module._modules.get("c_attn"), Conv1D) and isinstance(getattr(module, "split_size", None), int) \
            and "q_attn" not in module._modules:
        return _Fused(module)
    raise NotImplementedError(f"{type(module).__name__}: expected layers nn.Linear {_QUERIES} and {_KEYS} in it, or GPT-2's")


def _is_bloom(module: nn.Module) -> bool:
    return any((cls.__module__, cls.__name__) == _BLOOM for cls in type(module).__mro__)


def _uses_interface(module: nn.Module) -> bool:
    """Whether a module calls the attention function that its configuration names."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def replace(model: _Model, variant: str = "softmax", components: int | None = None, **options: Any) -> _Model:
    """Swaps the attention of a model for a variant, in place, and keeps what weights fit.

    Every attention of the model changes. Projections of queries and keys get the variant's number of heads, from the heads
    that they have: "mgk" keeps each key as the first of M, and begins the others as copies with noise. Each head of a
    variant with mixed heads begins as one of the model's, so that "hard-fish" with as many components as heads begins as
    the model itself. Other parameters begin as in `clmgk.torch.MultiheadAttention`. With ``score="dot"``, MGK begins close to the
    model; its default is the Gaussian score.

    The model's state_dict has the new shapes: call `replace` on a new model before it loads such a state. Masks, caches and
    ``generate`` work as before.

    Parameters
    ----------
    model : Module
        Of transformers. Its configuration names "clmgk" as the implementation afterwards.
    variant : str
        As in `clmgk.torch.attention`: any but the linear ones. "softmax" changes no weight.
    components : int, optional
        M: keys per position ("mgk", "smgk"; default 2), global heads of the variants with mixed heads (default: the heads).
    score, estep, mix_hidden
        As in `clmgk.torch.attention`.

    Returns
    -------
    Module
        The model.

    Raises
    ------
    NotImplementedError
        A linear variant; a model whose attention neither calls transformers' AttentionInterface nor is Bloom's; a module
        whose projections are in another form. The model is not changed. Also raised by a call of the model, if a module of it
        splits queries or keys into a fixed number of heads.
    ValueError, TypeError
        A value is not legal, or does not suit the variant; the model was swapped before.
    """
    unknown = set(options) - {"score", "estep", "mix_hidden"}
    if unknown:
        raise TypeError(f"unexpected argument {min(unknown)!r}: expected score, estep or mix_hidden")
    traits = traits_of(variant)
    if traits & lib.CLMGK_TRAIT_LINEAR:
        raise NotImplementedError(f"variant: {variant!r}: expected one that is not linear: caches of models keep keys, and no "
                                  f"states")
    found = [module for module in model.modules() if _is_bloom(module) or _uses_interface(module)]
    if not found:
        raise NotImplementedError(f"{type(model).__name__}: no module calls transformers' AttentionInterface")
    if any(NAME in module._modules for module in found):
        raise ValueError(f"{type(model).__name__}: its attention was swapped before: expected a new model")
    if variant != "softmax" or components not in (None, 1) or options:
        for module, made in [(module, _prepared(module, variant, components, options)) for module in found]:
            module.add_module(NAME, made())
    for module in found:
        if _is_bloom(module):
            from ._bloom import Attention  # not before, as it loads Bloom
            module.__class__ = Attention
    _set_implementation(model)
    return model


def _prepared(module: nn.Module, variant: str, components: int | None, options: dict[str, Any]) -> Any:
    """A function that changes a module's projections and makes its variant; raises for what cannot be."""
    of, traits = _projections(module), traits_of(variant)
    mixed = bool(traits & lib.CLMGK_TRAIT_ADMIXTURE)
    has_components = bool(traits & (lib.CLMGK_TRAIT_KEYS | lib.CLMGK_TRAIT_SHIFT))
    count = components if components is not None else of.heads if mixed else 2 if has_components else 1
    if count < 1:
        raise ValueError(f"components: {count}: expected 1 or more")
    validate({"variant": variant, "heads": of.heads, "components": count, "head_size": of.size, "length": 1, **options})
    queries, keys = torch.arange(of.heads), torch.arange(of.groups)
    if mixed:
        queries = _spread(of.heads, count)
        keys = queries * of.groups // of.heads
    elif traits & lib.CLMGK_TRAIT_KEYS:
        keys = keys.repeat_interleave(count)
    changes = len(queries) != of.heads or len(keys) != of.groups
    for name, child in module.named_children() if changes else ():
        weight = getattr(child, "weight", None)
        if isinstance(weight, Tensor) and weight.shape != (of.size,) \
                and weight.shape in ((of.heads * of.size,), (of.groups * of.size,)):
            raise NotImplementedError(f"{type(module).__name__}: {name} normalises all heads together: their number is fixed")

    def make() -> Swapped:
        if changes:
            of.take(queries, keys)
        swapped = Swapped(variant, of.heads, of.size, count, options, of.weight, (len(queries), len(keys)))
        return swapped.train(module.training)

    return make


def _set_implementation(model: nn.Module) -> None:
    """Names "clmgk" in the configurations of a model and its parts."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = NAME
