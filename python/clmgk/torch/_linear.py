# SPDX-License-Identifier: Apache-2.0
"""Linear attention on PyTorch's tensors."""
from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor

from .. import _functions
from .._library import lib
from .._options import LINEAR_OPTIONS, Call
from .._slots import Array
from ._attention import check_tensors, split
from ._operators import Family, Inputs, draw_seed, prepare


class State(NamedTuple):
    """The state of linear attention, as ``clmgk.State``."""

    c: Tensor
    z: Tensor
    m: Tensor | None = None


_STATE = ("state_c", "state_z", "state_m")
_RETURN_STATE = "return_state"  # among the operators' options


def _features(x: Inputs) -> Any:
    """F (include/clmgk/variants.h, CLMGK_FEATURE_LIST)."""
    feature, size = x.options.get("feature"), x.q.shape[-1]
    if feature == "favor" and "projection" in x.extras:
        return x.extras["projection"].shape[0]
    return 2 * size * x.options.get("feature_order", 1) if feature == "dpfp" else size


def _outputs(x: Inputs) -> dict[str, Tensor]:
    batch, heads, features, size = x.q.shape[0], x.heads, _features(x), x.v.shape[-1]
    sums: Sequence[Sequence[Any]] = ((0,), (0,), (0,))
    if x.options.get(_RETURN_STATE) and x.traits & lib.CLMGK_TRAIT_ADMIXTURE:
        count = x.q.shape[1]
        sums = ((batch, heads, count, features, size), (batch, count, features), (batch,))
    elif x.options.get(_RETURN_STATE):
        sums = ((batch, heads, features, size), (batch, heads, features), (batch, heads))
    if x.options.get("feature") not in ("exp", "favor"):
        sums = (*sums[:2], (0,))
    return {"o": x.new_o(), "denominator": x.new(batch, heads, x.q.shape[2], 2),
            **{f"new_{name}": x.new(*shape) for name, shape in zip(_STATE, sums)}}


def _call(storage: dict[str, Array], extras: dict[str, Array], options: dict[str, Any],
          _gradients: str) -> tuple[Call, dict[str, Any]]:
    given = [extras.pop(name, None) for name in _STATE]
    fields = {"use_new_state": True} if options.pop(_RETURN_STATE, False) else {}
    state = None if given[0] is None or given[1] is None else _functions.State(given[0], given[1], given[2])
    return _functions.linear_call(storage, {**options, **extras}, _functions._states(state)), fields


_FAMILY = Family(
    "linear_attention", variant="linear", saved=("o", "denominator"),
    upstream={"o": "grad_o", "denominator": None, "new_state_c": "grad_new_state_c", "new_state_z": "grad_new_state_z",
              "new_state_m": None},
    extras=("prior", "shift", "lengths", "lengths_q", "offsets", "offsets_k", "mix", "mix_weight", "noise", "projection",
            *_STATE),
    outputs=_outputs, call=_call)


def _each(state: State, change: Callable[[Tensor], Tensor]) -> State:
    return State(change(state.c), change(state.z), None if state.m is None else change(state.m))


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, state: State | None = None, return_state: bool = False,
                     seed: int | None = None, **options: Any) -> Any:
    """Computes linear attention; differentiable in q, k, v, the state's c and z, prior, shift, mix, mix_weight and noise.

    Parameters
    ----------
    q, k, v : Tensor
        As in `clmgk.torch.attention`; k of "mlk" is [B,G,M,S,D].
    state : State, optional
        The state after earlier keys, which every query sees.
    return_state : bool
        Also returns the state after all keys. Gradients flow through its c and z; its log scale m counts as constant.
    seed : int, optional
        Of noise. Default: drawn from PyTorch's generator (``torch.manual_seed``).
    **options
        As in ``clmgk.linear_attention``, with tensors in the place of arrays.

    Returns
    -------
    o : Tensor [B,H,N,E]
        Of q's element type.
    state : State
        With return_state.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in `clmgk.torch.attention`.
    """
    check_tensors(q, k, v)
    if state is not None:
        if not isinstance(state, tuple) or not 2 <= len(state) <= 3:
            raise TypeError(f"state: {type(state).__name__}: expected a clmgk.torch.State")
        state = State(*state)
    if q.ndim == 3:
        whole = None if state is None else _each(state, lambda tensor: tensor[None])
        found = linear_attention(q[None], k[None], v[None], state=whole, return_state=return_state, seed=seed, **options)
        return (found[0][0], _each(found[1], lambda tensor: tensor[0])) if return_state else found[0]
    q, k, v = prepare(q, k, v)
    sums = {} if state is None else dict(zip(_STATE, state))
    extras, scalars = split({**options, **sums}, _FAMILY, LINEAR_OPTIONS)
    if return_state:
        scalars[_RETURN_STATE] = True
    drawn = draw_seed(seed, "noise" in extras)
    o, _, *new = _FAMILY(q, k, v, scalars, extras, drawn)
    return (o, State(new[0], new[1], new[2] if new[2].numel() else None)) if return_state else o
