# SPDX-License-Identifier: Apache-2.0
"""Attention on NumPy arrays, without a plan: the problem is read off the arrays, and its plan is made once and kept."""
from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, Sequence, Unpack

import numpy as np

from ._context import Context, Device, context_of
from ._library import GRADIENTS, call, check_seed, ffi, integer, lib, name_set
from ._options import Call, LinearOptions, Options, parameter, traits_of
from ._plan import Plan
from ._slots import Array, check_array, dtype_name


class State(NamedTuple):
    """The state of linear attention: sums over all keys so far (include/clmgk/attention.h)."""

    c: Array  #: [B,H,F,E]; variants with mixed heads [B,H,M,F,E]
    z: Array  #: [B,H,F]; variants with mixed heads [B,M,F]
    m: Array | None = None  #: log scale [B,H] ([B]) of the features exp and favor


def _storage(q: Array, k: Array, v: Array, o: Array | None) -> dict[str, Array]:
    return {"q": q, "k": k, "v": v} if o is None else {"q": q, "k": k, "v": v, "o": o}


def _f32(name: str, array: Array | None) -> dict[str, Array]:
    return {} if array is None else {name: parameter(name, array)}


# ---- attention


def attention(q: Array, k: Array, v: Array, *, return_lse: bool = False, out: Array | None = None,
              **options: Unpack[Options]) -> Any:
    """Computes attention of any variant but the linear ones.

    With the score s_ijr of query i, key j and component r (`variant` and `score`; include/clmgk/variants.h has all
    formulas), the prior π and the values v::

        w_ij = log Σ_r exp(s_ijr)          s_ijr = log π_r(j) - |q_i - k_jr|² / (2 σ_r²)   (MGK)
        o_i  = Σ_j softmax_j(w_ij) v_j                w_ij = q_i·k_j / √D                  (softmax)

    Axes: B batch, H query heads, G key/value heads (a divisor of H), N queries, S keys, D and E head sizes, M components
    of a key. All arrays may lack B. Arrays may have any strides, 0 or more, with a contiguous innermost axis; none
    is copied.

    Parameters
    ----------
    q : array [B,H,N,D] of float32, float16 or bfloat16 (ml_dtypes)
        Queries. Variants with mixed heads: [B,M,N,D].
    k : array [B,G,S,D]
        Keys. MGK: [B,G,M,S,D]; variants with mixed heads: [B,M,S,D].
    v : array [B,G,S,E]
        Values. q, k and v may have different element types, and k and v those of a cache (for inference): 8-bit floats
        (ml_dtypes.float8_e4m3fn, float8_e5m2, or uint8 with dtype_k, dtype_v), int8, and blocks of ggml's q8_0 and q4_0
        ("V34" and "V18", [B,G,S,D/32]).
    return_lse : bool
        Also returns the log-sum-exp of each row's weights, which `attention_backward` needs.
    out : array [B,H,N,E], optional
        Receives the result; it may have another element type than q.
    variant : str
        "softmax" (default), "gaussian", "mgk", "smgk", "fish", "hard-fish", "mish", "hard-mish", "gfish", "hard-gfish" or
        "talking-heads".
    score : {"default", "dot", "gaussian"}
        Of "mgk" and "smgk"; "default" is "gaussian" there.
    estep : {"soft", "hard"}
        Sums over a key's components, or takes the largest.
    prior : array [M], [H,M] or [H,M,S], optional
        π ≥ 0. Default: 1/M.
    variance : float, or array [M] or [H,M], optional
        σ² > 0. Default: √D.
    scale : float, optional
        1/σ², in the place of `variance`: the factor of q·k. The variants with mixed heads have 1/√D alone.
    shift : array [H,M,D]
        b of "smgk", whose keys are k_jr = k_j + b_r.
    causal : bool
        Hides keys beyond the query's diagonal.
    alignment : {"bottom-right", "top-left", "lengths"}
        Of the diagonal: the last query sees the last key (default); query i sees keys up to i (PyTorch); the last query
        sees the last key of `lengths`.
    window_left, window_right : int, optional
        The largest distance of a key that a query sees to the left and right of its diagonal. Default: no limit.
    lengths, lengths_q : array [B] of int, optional
        Numbers of keys and queries of each batch; the others are padding.
    offsets, offsets_k : array [T+1] of int, optional
        Packed sequences: where each begins along N (and S), and the end. The batch is 1. With `lengths` [T], k and v are
        caches [T,G,S,D] and [T,G,S,E] of one sequence each, of which so many keys are in use.
    page_table : array [B,C] of int, optional
        Keys and values in pages: k and v are pools [P,G,K,D] and [P,G,K,E] of P pages with K keys each (pools [P,K,G,D]:
        ``k.swapaxes(1, 2)``, which copies nothing), and the keys of a batch, or packed sequence, are in the pages of its
        row, of which `lengths` says how many are in use. Not for gradients.
    page_offsets, last_page : array [B+1] and [B] of int, optional
        The compressed form: page_table [C] has the pages of all, those of b from page_offsets[b] on, and last_page[b] keys
        of its last page are in use.
    dtype_k, dtype_v : {"e4m3", "e5m2"}
        What arrays of uint8 are.
    scale_k, scale_v : array [B,G,S], optional
        Scales of k's and v's rows (without the last axis), where they are 8-bit floats or int8. Axes of size 1, or none,
        stand for one scale of a head, or of all.
    positions, positions_k : array [B,N] and [B,S] of int, optional
        Positions of the queries and of the keys, 0 or more, in any order: they take the place of indices in causal masks,
        windows, slopes, score_mod, mask_mod, dropout and noise, so a sequence may be permuted. Both or none.
    bias : array [B,H,N,S], or any axis 1 or missing, optional
        Is added to the scores; -inf hides a key. An array of bool is a mask: True takes part. Axes that are repeated by
        strides of 0 (``numpy.broadcast_to``) count as axes of size 1.
    slopes : array [H], optional
        ALiBi: adds -slope |j - i|.
    sinks : array [H], optional
        A logit of each head without a key.
    softcap : float
        c > 0: a score s becomes c tanh(s/c). 0: none.
    dropout : float
        Probability of dropping a weight.
    seed : int
        Of dropout and noise.
    heads : int, optional
        H where the mixing does not have it ("mish", "hard-mish"). Default: the number of v's heads.
    mix : array [H,M]; "mish" and "hard-mish" [M]
        The mixing p of the variants with mixed heads.
    mix_weight, mix_offset : array [H,M] and [H], optional
        w and c of "gfish" and "hard-gfish". Default: 1 and 0.
    mix_hidden : int
        U > 0: "gfish" and "hard-gfish" mix by a hidden layer of U units (docs/admixture.md), with mix [U,M] and mix_weight
        [H,U], which determines H (without it `heads`, or v). 0: no hidden layer.
    mix_hidden_offset : array [U], optional
        b of the hidden layer. Default: 0.
    mix_after : array [H,A], optional
        m: mixing after the softmax. The M global heads are mixed into A heads, each with a softmax, and the weights of these
        into those of H heads (docs/admixture.md). mix, mix_weight, mix_offset, slopes, sinks, the bias and lse then have A heads.
    noise : array [M]
        The noise σ ≥ 0 of "fish", "mish" and "gfish".
    shared_noise : bool
        All heads use the same random numbers.
    precision : {"exact", "tf32", "bf16"}
        The least precision of products of float32 or float16 arrays that the library may use; it does so only where a unit of
        the device is faster with it. Results are then less exact (include/clmgk/attention.h); `Plan.info` says what is used.
    score_mod : str, optional
        An expression that replaces the scaled score s, such as ``"s + table[h, clamp(i - j, -64, 64) + 64]"``, in the language
        of docs/scores.md.
    mask_mod : str, optional
        A condition that hides a pair where it is false, such as ``"doc[b, i] == doc[b, j] && j <= i"``.
    captures : dict of arrays, optional
        The arrays that these texts read, by name: 1 to 4 axes, of float32, float16, bfloat16 or integers; up to 8. Arrays that
        are not dense are copied.
    numbers : dict of float, optional
        The numbers in these texts, by name; up to 16. New numbers compile nothing.
    mask_blocks : array [B,H,X,Y] of int, optional
        Classes of blocks of queries and keys: a block of class 0 is hidden, one of 2 whole; of others mask_mod decides, if there
        is one. `mask_blocks` makes them for a mask_mod, for many calls; without a mask_mod they are a list of visible blocks.
        B and H may be 1.
    mask_block : tuple of two int, optional
        Queries and keys of a block, powers of two from 16. Default: 64 and 64.
    engine : {"auto", "lane", "simt", "matrix"}
        The kernel engine.
    device : str, Device or Context, optional
        As in `clmgk.Context`.

    Returns
    -------
    o : array [B,H,N,E]
        Of q's element type, unless `out` is given; 0 in rows without visible keys.
    lse : array [B,H,N] of float32, with mix_after [B,A,N]
        With return_lse. -inf in rows without visible keys.

    Raises
    ------
    ValueError
        Shapes, strides or values do not fit; the message names the array, its value and the expected value.
    TypeError
        An array has elements of another type, or is no array; an argument is unknown.
    NotImplementedError
        The combination is legal, but not offered.
    RuntimeError
        No OpenCL device, or OpenCL failed; the process was forked after it used OpenCL.

    Notes
    -----
    Axes of size 1 of prior, variance, shift, lengths, lengths_q, slopes, sinks, mix_weight, mix_offset,
    mix_hidden_offset and noise broadcast, as in NumPy. The gradient of such an array has the array's own shape.

    The first call of a kind compiles kernels, which takes seconds; compiled programs are kept on disk. `Plan` makes
    that choice of time explicit.
    """
    outputs = Call(_storage(q, k, v, out), options, linear=False).run("forward", unwanted="" if return_lse else "lse")
    return (outputs["o"], outputs["lse"]) if return_lse else outputs["o"]


def mask_blocks(q: Array, k: Array, v: Array, *, per_batch: bool = True, per_head: bool = True,
                **options: Unpack[Options]) -> Array:
    """Classifies the blocks of a mask_mod: once for all calls with the same mask, captures and numbers.

    Parameters
    ----------
    q, k, v : array
        As in `attention`. Only their shapes count.
    per_batch, per_head : bool
        False: one class for all batches or heads, which is right for each.
    **options
        As in the calls of `attention`: mask_mod, captures, numbers, mask_block, ...

    Returns
    -------
    array [B or 1,H or 1,X,Y] of int32
        For the argument `mask_blocks` of `attention` and its backward pass. A class other than 1 is proved
        (docs/scores.md#blocks-of-a-mask).

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in `attention`. ValueError also without a mask_mod.
    """
    made = Call(_storage(q, k, v, None), options, linear=False)
    check_mask_call(made.scalars, made.arrays)
    return made.run("mask", class_fields(per_batch, per_head))["mask_blocks"]


def reads_outside(q: Array, k: Array, v: Array, **options: Unpack[Options]) -> int:
    """Counts the reads of score_mod and mask_mod that lie outside of their arrays, and so take the nearest element.

    A wrong index gives wrong results, but no error: this finds it. It is for tests and debugging, and computes every pair on
    the host, much slower than `attention`.

    Parameters
    ----------
    q, k, v : array
        As in `attention`. Only their shapes count.
    **options
        As in the call of `attention`.

    Returns
    -------
    int
        0 if all reads are inside. Counted are the pairs of a query and a key that lengths, offsets, causal and windows leave,
        and for score_mod also mask_mod, for each head and component; in ``c ? a : b`` the branch that is taken. The score s
        counts as 0, and the bias is not looked at.

    Raises
    ------
    ValueError, TypeError
        As in `attention`.
    """
    return Call(_storage(q, k, v, None), options, linear=False).reads_outside()


def check_mask_call(scalars: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Raises for options of `mask_blocks` that do not have what it reads, or have what it makes."""
    if "mask_mod" not in scalars:
        raise ValueError("mask_mod: missing: mask_blocks classifies its blocks")
    if "mask_blocks" in arrays:
        raise TypeError("unexpected argument 'mask_blocks': it is the result")


def class_fields(per_batch: bool, per_head: bool) -> tuple[tuple[str, Any], ...]:
    """Fields of a plan that classifies blocks."""
    return (("use_mask_blocks", True), ("mask_blocks_batch", int(not per_batch)), ("mask_blocks_heads", int(not per_head)))


def _wanted(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """One name or more."""
    found = name_set(field, names)
    if not all(isinstance(name, str) for name in found):
        raise TypeError(f"{field}: {found!r}: expected names")
    if not found:
        raise ValueError(f"{field}: expected at least one name")
    return found


def _backward(made: Call, gradients: Iterable[str] | None, *fields: tuple[str, Any]) -> dict[str, Array]:
    given = [name for name in GRADIENTS if name in made.arrays and not (name == "bias" and made.has_mask)
             and not name.startswith(("capture_", "numbers"))]
    names = tuple(given) if gradients is None else _wanted("gradients", gradients)
    places = [place for place in range(len(made.captures)) if made.arrays[f"capture_{place}"].dtype != np.int32]
    if "captures" in names:
        names = (*[name for name in names if name != "captures"], *[f"capture_{place}" for place in places])
    outputs = made.run("backward", (("gradients", names), *fields))
    found: dict[str, Any] = {name.removeprefix("grad_"): array for name, array in outputs.items()}
    if gradients is not None and "captures" in name_set("gradients", gradients):
        found["captures"] = {made.captures[place]: found.pop(f"capture_{place}") for place in places}
    if "numbers" in found:
        found["numbers"] = dict(zip(made.numbers, found["numbers"]))
    return found


def attention_backward(grad_o: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *,
                       grad_lse: Array | None = None, gradients: Iterable[str] | None = None,
                       **options: Unpack[Options]) -> dict[str, Array]:
    """Computes gradients of `attention`.

    No array of the size N·S is made: the weights P_ij = exp(w_ij - lse_i) are recomputed, and with
    dP_ij = dO_i·v_j and δ_i = dO_i·O_i::

        dw_ij = P_ij (dP_ij - δ_i + dlse_i)          dv_j = Σ_i P_ij dO_i

    from which the chain rule gives the other gradients (include/clmgk/attention.h).

    Parameters
    ----------
    grad_o : array [B,H,N,E], type of o
        The gradient of o.
    q, k, v : array
        As in `attention`.
    o, lse : array
        The results of `attention` with return_lse.
    grad_lse : array [B,H,N] of float32, optional
        The gradient of lse.
    gradients : iterable of str, optional
        Names among "q", "k", "v", "prior", "variance", "shift", "bias", "sinks", "mix", "mix_weight", "mix_offset",
        "mix_hidden_offset", "mix_after", "noise". Default: those of all arrays that are given, without a bias of bool. Also
        "captures" and "numbers", of the texts' arrays of floats and of their numbers.
    **options
        As in the call of `attention`, including the seed.

    Returns
    -------
    dict
        The gradients by these names, each of its array's shape. Without an array of priors [M], without one of variances
        [1]. "captures" and "numbers" are dicts.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in `attention`.
    """
    others = {**_f32("lse", lse), **_f32("grad_lse", grad_lse)}
    return _backward(Call({**_storage(q, k, v, o), "grad_o": grad_o}, options, False, others), gradients)


def _has_gaussian_scores(options: Mapping[str, Any]) -> bool:
    score = options.get("score") or "default"
    has_prior = bool(traits_of(options.get("variant") or "softmax") & lib.CLMGK_TRAIT_PRIOR)
    return score == "gaussian" or (score == "default" and has_prior)


def statistics(q: Array, k: Array, *, statistics: Iterable[str] | None = None,
               **options: Unpack[Options]) -> dict[str, Array]:
    """Computes the statistics of expectation and maximisation (MGK paper, section 2.3).

    ::

        γ_ijr    = exp(s_ijr - w_ij)
        N_r(j)   = Σ γ_ijr over batches and queries (and keys for a prior [H,M], and heads for [M])
        new π_r  = N_r / Σ_r' N_r'
        nll      = -(1/N) Σ_i log( (1/S) Σ_jr π_r(j) N(q_i; k_jr, σ_r² I) )

    Parameters
    ----------
    q, k : array
        As in `attention`.
    statistics : iterable of str, optional
        Among "responsibilities" (γ, [B,H,M,N,S]), "counts" (N), "new_prior" and "nll" ([B,H], Gaussian scores only).
        Default: "responsibilities", "new_prior" and, with Gaussian scores, "nll".
    **options
        As in `attention`.

    Returns
    -------
    dict
        The statistics by name, float32.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in `attention`.
    """
    made = Call({"q": q, "k": k}, options, linear=False)
    if statistics is None:
        statistics = ("responsibilities", "new_prior", *(("nll",) if _has_gaussian_scores(options) else ()))
    return made.run("statistics", (("statistics", _wanted("statistics", statistics)),))


def combine(parts_o: Array, parts_lse: Array, *, device: str | Device | Context | None = None) -> tuple[Array, Array]:
    """Combines attentions over disjoint ranges of keys into the attention over all keys.

    ::

        lse_i = log Σ_p exp(lse_i^p)          o_i = Σ_p exp(lse_i^p - lse_i) o_i^p

    Parameters
    ----------
    parts_o : array [parts,B,H,N,E] of float32, float16 or bfloat16, dense
    parts_lse : array [parts,B,H,N] of float32, dense
    device : str, Device or Context, optional
        As in `clmgk.Context`.

    Returns
    -------
    o, lse : array
        [B,H,N,E] and [B,H,N].

    Raises
    ------
    ValueError, TypeError, RuntimeError
        As in `attention`.
    """
    check_array("parts_o", parts_o)
    if parts_o.ndim != 5:
        raise ValueError(f"parts_o: shape {parts_o.shape}: expected [parts,B,H,N,E]")
    context = context_of(device)
    key = ("combine", parts_o.shape[1:], parts_o.dtype)
    plan = context._kept.find(key)
    if plan is None:
        _, batch, heads, length, size = parts_o.shape
        plan = context._kept.keep(key, Plan(device=context, dtype=dtype_name("parts_o", parts_o), batch=batch, heads=heads,
                                            length=length, length_k=1, head_size=size, combine=True))
    outputs = plan.combine(parts_o=parts_o, parts_lse=parameter("parts_lse", parts_lse))
    return outputs["o"], outputs["lse"]


# ---- linear attention


def _states(state: State | None, letter: str = "state") -> dict[str, Array]:
    if state is None:
        return {}
    if not isinstance(state, tuple):
        raise TypeError(f"{letter}: {type(state).__name__}: expected a clmgk.State")
    return {f"{letter}_{name}": parameter(f"{letter}_{name}", array)
            for name, array in zip(State._fields, state) if array is not None}


def linear_call(storage: Mapping[str, Array], options: Mapping[str, Any], others: Mapping[str, Array] | None = None) -> Call:
    return Call(storage, {"variant": "linear", **options}, True, others)


def linear_attention(q: Array, k: Array, v: Array, *, state: State | None = None, return_state: bool = False,
                     return_denominator: bool = False, out: Array | None = None,
                     **options: Unpack[LinearOptions]) -> Any:
    """Computes linear attention, in time and memory that grow as N + S.

    With the feature map φ, the components' prior π, and sums over the keys that query i sees::

        C_i = Σ_j Σ_r π_r(j) φ(k_jr) v_j^T          z_i = Σ_j Σ_r π_r(j) φ(k_jr)
        o_i = C_i^T φ(q_i) / (z_i·φ(q_i) + guard)

    Parameters
    ----------
    q, k, v : array
        As in `attention`; k of "mlk" is [B,G,M,S,D].
    state : State, optional
        The state after earlier keys, which every query sees.
    return_state : bool
        Also returns the state after all keys, from which decoding continues.
    return_denominator : bool
        Also returns the denominators, which `linear_attention_backward` needs.
    out : array [B,H,N,E], optional
        Receives the result.
    variant : str
        "linear" (default), "mlk", "smlk", "lfish", "lhard-fish", "lmish", "lhard-mish", "lgfish" or "lhard-gfish".
    feature : {"elu1", "relu", "exp", "dpfp", "favor"}
        φ (include/clmgk/variants.h).
    feature_order : int
        ν of "dpfp", 1 to 3.
    projection : array [R,D]
        Of "favor"; see `draw_projection`.
    guard : float
        Is added to every denominator.
    feature_epsilon : float
        Is added to every feature of "relu".
    unnormalised : bool
        o_i = C_i^T φ(q_i), without a denominator.
    prior, shift, causal, alignment, lengths, lengths_q, offsets, offsets_k, seed, heads, mix, mix_weight, noise, \
    shared_noise, precision, engine, device
        As in `attention`.

    Returns
    -------
    o : array [B,H,N,E]
        Then, if asked for, the state and the denominators [B,H,N,2] of float32, in a tuple.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in `attention`.
    """
    made = linear_call(_storage(q, k, v, out), options, _states(state))
    outputs = made.run("forward", (("use_new_state", True),) if return_state else (),
                       unwanted="" if return_denominator else "denominator")
    results: list[Any] = [outputs["o"]]
    if return_state:
        results.append(State(outputs["new_state_c"], outputs["new_state_z"], outputs.get("new_state_m")))
    if return_denominator:
        results.append(outputs["denominator"])
    return results[0] if len(results) == 1 else tuple(results)


def linear_attention_backward(grad_o: Array, q: Array, k: Array, v: Array, o: Array, denominator: Array, *,
                              state: State | None = None, grad_new_state: State | None = None,
                              gradients: Iterable[str] | None = None,
                              **options: Unpack[LinearOptions]) -> dict[str, Array]:
    """Computes gradients of `linear_attention`.

    Parameters
    ----------
    grad_o : array [B,H,N,E]
        The gradient of o.
    q, k, v, state
        As in `linear_attention`.
    o, denominator : array
        The results of `linear_attention` with return_denominator.
    grad_new_state : State, optional
        The gradients of the returned state's c and z.
    gradients : iterable of str, optional
        Names among "q", "k", "v", "prior", "shift", "mix", "mix_weight", "noise", "state_c", "state_z". Default: those of
        all arrays that are given.
    **options
        As in the call of `linear_attention`.

    Returns
    -------
    dict
        The gradients by these names.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, RuntimeError
        As in `attention`.
    """
    others = {**_states(state), **_f32("denominator", denominator), **_states(grad_new_state, "grad_new_state")}
    made = linear_call({**_storage(q, k, v, o), "grad_o": grad_o}, options, others)
    return _backward(made, gradients, *[("use_new_state", True)] if grad_new_state is not None else [])


# ---- random numbers


def draw_projection(features: int, head_size: int, *, seed: int = 0) -> Array:
    """Draws the projection [features, head_size] of the feature map "favor": orthogonal blocks, lengths as of normal
    vectors. Raises ValueError for sizes that the library does not offer."""
    rows, size = integer("features", features), integer("head_size", head_size)
    projection = np.empty((max(0, rows), max(0, size)), np.float32)
    call(lib.clmgk_draw_projection, check_seed(seed), rows, size, ffi.cast("float *", projection.ctypes.data))
    return projection


def dropout_mask(dropout: float, *, seed: int, heads: int, b: int, h: int, rows: Sequence[int] | range,
                 keys: Sequence[int] | range) -> Array:
    """The dropout mask of batch b and head h that the kernels draw: 1 for a kept, 0 for a dropped weight.

    Parameters
    ----------
    dropout, seed, heads
        As in the call of `attention`.
    b, h : int
        Batch (or packed sequence) and head.
    rows, keys : range
        The rows and keys, ranges of step 1.

    Returns
    -------
    array [len(rows), len(keys)] of uint8
    """
    if not isinstance(dropout, (int, float, np.number)):
        raise TypeError(f"dropout: {dropout!r}: expected a number")
    return _drawn(lib.clmgk_dropout_mask, "uint8_t", np.uint8, rows, keys, float(dropout), check_seed(seed),
                  integer("heads", heads), integer("b", b), integer("h", h))


def noise_tile(*, seed: int, heads: int, b: int, h: int, rows: Sequence[int] | range,
               keys: Sequence[int] | range) -> Array:
    """The noise ε of batch b and head h that the kernels draw for "fish", "mish" and "gfish": standard normal numbers.

    Parameters
    ----------
    seed, heads
        As in the call of `attention`.
    b, h : int
        Batch (or packed sequence) and head; head 0 with shared_noise.
    rows, keys : range
        The rows and keys, ranges of step 1.

    Returns
    -------
    array [len(rows), len(keys)] of float32
    """
    return _drawn(lib.clmgk_noise_tile, "float", np.float32, rows, keys, check_seed(seed), integer("heads", heads),
                  integer("b", b), integer("h", h))


def _first(name: str, numbers: Sequence[int] | range) -> int:
    """The first of consecutive numbers; 0 if there are none."""
    if not isinstance(numbers, Sequence):
        raise TypeError(f"{name}: {type(numbers).__name__}: expected a range")
    if len(numbers) and list(numbers) != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ValueError(f"{name}: {numbers}: expected consecutive numbers, as in range(3, 9)")
    return numbers[0] if len(numbers) else 0


def _drawn(draw: Any, element: str, dtype: Any, rows: Sequence[int] | range, keys: Sequence[int] | range, *numbers: Any) -> Array:
    """Numbers of rows and keys that a function of the library draws."""
    first_row, first_key = _first("rows", rows), _first("keys", keys)
    drawn = np.empty((len(rows), len(keys)), dtype)
    call(draw, *numbers, first_row, len(rows), first_key, len(keys), ffi.cast(f"{element} *", drawn.ctypes.data))
    return drawn
