# SPDX-License-Identifier: Apache-2.0
"""Every misuse is an exception whose message names the argument."""
import functools

import numpy as np
import pytest

import clmgk

F32 = np.float32


def arrays(h=2, n=9, d=16):
    return [np.ones((1, h, n, d), F32) for _ in range(3)]


def attend(change=None, **options):
    q, k, v = arrays()
    if change is not None:
        q, k, v = change(q, k, v)
    return clmgk.attention(q, k, v, **options)


def read_only():
    out = np.ones((1, 2, 9, 16), F32)
    out.flags.writeable = False
    return out


def unaligned(shape=(1, 2, 9, 16)):
    memory = np.zeros(4 * int(np.prod(shape)) + 1, np.uint8)
    return memory[1:].view(F32).reshape(shape)


MISUSES = [
    # arrays
    (TypeError, "q: list", lambda: attend(lambda q, k, v: (q.tolist(), k, v))),
    (TypeError, "q: elements of type float64", lambda: attend(lambda q, k, v: (q.astype(float), k, v))),
    (TypeError, "q: elements of type complex64: expected float32, float16 or bfloat16 (ml_dtypes)$",
     lambda: attend(lambda q, k, v: (q.astype(np.complex64), k, v))),
    (TypeError, "k: elements of type int32", lambda: attend(lambda q, k, v: (q, k.astype(int).astype(np.int32), v))),
    (TypeError, "v: elements of type >f4", lambda: attend(lambda q, k, v: (q, k, v.astype(">f4")))),
    (ValueError, "q: shape", lambda: attend(lambda q, k, v: (q[0, 0], k, v))),
    (ValueError, "k: shape", lambda: attend(lambda q, k, v: (q, k[0], v))),
    (ValueError, "v: shape", lambda: attend(lambda q, k, v: (q, k, v[:, :, :5]))),
    (ValueError, "k: shape", lambda: attend(lambda q, k, v: (q, k[..., :8], v))),
    (ValueError, "v: shape", lambda: attend(lambda q, k, v: (q, k, v[:, :1]))),
    (ValueError, "kv_heads", lambda: attend(lambda q, k, v: (q, np.ones((1, 3, 9, 16), F32), v))),
    (ValueError, "k: shape", lambda: attend(lambda q, k, v: (q, np.ones((2, 2, 9, 16), F32), v))),
    (ValueError, "at least one batch and one head", lambda: attend(lambda q, k, v: (q[..., :0], k, v))),
    (ValueError, "at least one batch and one head", lambda: attend(lambda q, k, v: (q[:0], k[:0], v[:0]))),
    (ValueError, "head_size", lambda: attend(lambda q, k, v: [np.ones((1, 1, 2, 577), F32)] * 3)),
    (ValueError, "q: the innermost axis", lambda: attend(lambda q, k, v: (q[..., ::2], k[..., :8], v))),
    (ValueError, "q: the innermost axis", lambda: attend(lambda q, k, v: (q[..., ::-1], k, v))),
    (ValueError, "q: strides", lambda: attend(lambda q, k, v: (q[:, :, ::-1], k, v))),
    (ValueError, "q: its elements are not aligned", lambda: attend(lambda q, k, v: (unaligned(), k, v))),
    (ValueError, "k: shape", lambda: attend(variant="mgk")),
    # outputs
    (ValueError, "o: read-only", lambda: attend(out=read_only())),
    (ValueError, "o: shape", lambda: attend(out=np.ones((1, 2, 8, 16), F32))),
    (TypeError, "o: elements of type float64", lambda: attend(out=np.ones((1, 2, 9, 16)))),
    (ValueError, "o: ", lambda: attend(out=np.broadcast_to(np.ones(16, F32), (1, 2, 9, 16)))),
    (ValueError, "o: shares memory with q", lambda: attend(lambda q, k, v: (out_of(q), k, v), out=SHARED)),
    # options
    (TypeError, "casual", lambda: attend(casual=True)),
    (ValueError, "variant", lambda: attend(variant="sofmax")),
    (ValueError, "linear_attention", lambda: attend(variant="linear")),
    (ValueError, "attention", lambda: clmgk.linear_attention(*arrays(), variant="mgk")),
    (TypeError, "variant", lambda: attend(variant=3)),
    (ValueError, "alignment", lambda: attend(alignment="left")),
    (ValueError, "dropout", lambda: attend(dropout=1.0)),
    (TypeError, "dropout", lambda: attend(dropout="much")),
    (ValueError, "seed", lambda: attend(dropout=0.5, seed=-1)),
    (TypeError, "seed: 'now'", lambda: attend(dropout=0.5, seed="now")),
    (TypeError, "seed: 1.5", lambda: attend(dropout=0.5, seed=1.5)),
    (TypeError, "seed: None", lambda: attend(dropout=0.5, seed=None)),
    (TypeError, "dropout: ndarray", lambda: attend(dropout=np.array([0.5]))),
    (TypeError, "variant: list", lambda: attend(variant=["mgk"])),
    (ValueError, "variant: 'mgk\\x00'", lambda: attend(variant="mgk\0")),
    (ValueError, "heads: 4: expected 2, as in q", lambda: attend(heads=4)),
    (ValueError, "scale: -0.5: expected a number from 1e-38", lambda: attend(scale=-0.5)),
    (ValueError, "scale: inf", lambda: attend(scale=np.inf)),
    (TypeError, "scale: 'much'", lambda: attend(scale="much")),
    (ValueError, "scale: given beside variance", lambda: attend(scale=0.5, variance=2.0)),
    (ValueError, "scale: 0.5: expected 0.25 or None with variant hard-fish (to change the scale, multiply the mixing)",
     lambda: attend(scale=0.5, variant="hard-fish", mix=np.ones((2, 2)))),
    (TypeError, "scale", lambda: clmgk.linear_attention(*arrays(), scale=0.5)),
    (TypeError, "variance: 'much'", lambda: attend(variance="much")),
    (TypeError, "slopes: elements of type bool", lambda: attend(slopes=[True, False])),
    (ValueError, "bias: shape", lambda: attend(bias=np.ones((1, 1, 1, 9, 9)))),
    (ValueError, r"lengths[0]: 1099511627776: expected", lambda: attend(lengths=[2**40])),
    (ValueError, "prior: ", lambda: attend(variant="mgk", prior=[[1], [1, 2]])),
    (ValueError, "offsets: shape", lambda: attend(offsets=[])),
    (ValueError, "offsets: shape", lambda: attend(offsets=9)),
    (ValueError, "projection: shape", lambda: clmgk.linear_attention(*arrays(), feature="favor", projection=3.0)),
    (TypeError, "state: int", lambda: clmgk.linear_attention(*arrays(), state=3)),
    (ValueError, "gradients: expected", lambda: clmgk.attention_backward(*arrays()[:1], *arrays(), *arrays()[:1],
                                                                        np.ones((1, 2, 9), F32), gradients=[])),
    (TypeError, "gradients: int", lambda: clmgk.attention_backward(*arrays()[:1], *arrays(), *arrays()[:1],
                                                                  np.ones((1, 2, 9), F32), gradients=3)),
    (ValueError, "statistics: expected", lambda: clmgk.statistics(*arrays()[:2], statistics=[])),
    (ValueError, "rows: range(0, 6, 2)", lambda: clmgk.dropout_mask(0.5, seed=1, heads=1, b=0, h=0, rows=range(0, 6, 2),
                                                                   keys=range(2))),
    (TypeError, "keys: int", lambda: clmgk.noise_tile(seed=1, heads=1, b=0, h=0, rows=range(2), keys=2)),
    (ValueError, "seed: -1", lambda: clmgk.draw_projection(4, 16, seed=-1)),
    (TypeError, "features: 4.5", lambda: clmgk.draw_projection(4.5, 16)),
    (ValueError, "head_size", lambda: clmgk.draw_projection(4, -1)),
    (TypeError, "b: 'first'", lambda: clmgk.dropout_mask(0.5, seed=1, heads=1, b="first", h=0, rows=range(2), keys=range(2))),
    (TypeError, "dropout: 'half'", lambda: clmgk.dropout_mask("half", seed=1, heads=1, b=0, h=0, rows=range(2), keys=range(2))),
    (ValueError, "softcap", lambda: attend(softcap=-1.0)),
    (ValueError, "variance", lambda: attend(variance=0.0)),
    (ValueError, "variance[0]: -1.0: expected", lambda: attend(variant="gaussian", variance=[-1.0])),
    (ValueError, "prior", lambda: attend(prior=[0.5])),
    (ValueError, "prior: shape", lambda: attend(lambda q, k, v: (q, k[:, :, None], v), variant="mgk", prior=[0.5, 0.5])),
    (ValueError, "prior[0]: -0.5: expected", lambda: attend(lambda q, k, v: (q, k[:, :, None], v), variant="mgk", prior=[-0.5])),
    (ValueError, "lengths[0]: 10: expected 0 to 9", lambda: attend(lengths=[10])),
    (ValueError, "lengths: shape", lambda: attend(lengths=[9, 9])),
    (TypeError, "lengths: elements", lambda: attend(lengths=[1.5])),
    (ValueError, "offsets", lambda: attend(offsets=[0, 5, 4, 9])),
    (ValueError, "bias", lambda: attend(bias=np.ones((2, 3), F32))),
    (ValueError, "bias[0, 0, 1, 2]: nan", lambda: attend(bias=np.where(np.arange(81).reshape(9, 9) == 11, np.nan, 0))),
    (ValueError, "slopes: shape", lambda: attend(slopes=[1.0, 2.0, 3.0])),
    (TypeError, "prior: a masked array", lambda: attend(lambda q, k, v: (q, k[:, :, None], v), variant="mgk",
                                                        prior=np.ma.masked_array([0.5]))),
    (ValueError, "mix: missing", lambda: attend(variant="hard-fish")),
    (ValueError, "mix_hidden: 3: expected 0 with variant hard-fish",
     lambda: attend(variant="hard-fish", mix=np.ones((2, 2)), mix_hidden=3)),
    (ValueError, "mix: shape (2, 2): expected (3, 2)",
     lambda: attend(variant="hard-fish", mix=np.ones((2, 2)), mix_after=np.ones((2, 3)))),
    (ValueError, "mix_after: shape (2,): expected [H,A]",
     lambda: attend(variant="hard-fish", mix=np.ones((2, 2)), mix_after=np.ones(2))),
    (ValueError, "mix: shape (2, 2): expected (3, 2)", lambda: attend(variant="hard-gfish", mix=np.ones((2, 2)), mix_hidden=3)),
    (ValueError, "expected 0, or mix_hidden > 0",
     lambda: attend(variant="hard-gfish", mix=np.ones((2, 2)), mix_hidden_offset=np.ones(2))),
    (ValueError, "shift: missing", lambda: attend(variant="smgk")),
    (ValueError, "mix", lambda: attend(mix=[[1.0]])),
    (ValueError, "engine", lambda: attend(engine="warp")),
    (RuntimeError, "matches", lambda: attend(device="no such device")),
    (TypeError, "device: int", lambda: attend(device=3)),
    (ValueError, "gradients", lambda: clmgk.attention_backward(*arrays()[:1], *arrays(), *arrays()[:1],
                                                              np.ones((1, 2, 9), F32), gradients=["w"])),
    (ValueError, "statistics", lambda: clmgk.statistics(*arrays()[:2], statistics=["mean"])),
    (ValueError, "parts_o", lambda: clmgk.combine(arrays()[0], arrays()[0])),
    # contexts and plans
    (TypeError, "device: int", lambda: clmgk.Context(3)),
    (TypeError, "cache_dir: int", lambda: clmgk.Context(cache_dir=3)),
    (ValueError, "cache_max_bytes: -1", lambda: clmgk.Context(cache_max_bytes=-1)),
    (ValueError, "no_amx: 5", lambda: clmgk.Context(no_amx=5)),
    (TypeError, "q: tuple: expected a clmgk.Layout", lambda: clmgk.Plan(length=9, head_size=16, q=(0, 0, 16, 0))),
    (TypeError, "parameters: int", lambda: clmgk.Plan(length=9, head_size=16, parameters=3)),
    (TypeError, "prior_shape: 3", lambda: clmgk.Plan(length=9, head_size=16, prior_shape=3)),
    (TypeError, "accumulate: int", lambda: clmgk.Plan(length=9, head_size=16, gradients="q").backward(accumulate=3)),
    (TypeError, "hed_size", lambda: clmgk.Plan(length=9, hed_size=16)),
    (ValueError, "head_size", lambda: clmgk.Plan(length=9)),
    (ValueError, "length", lambda: clmgk.Plan(length=2**70, head_size=16)),
    (TypeError, "length", lambda: clmgk.Plan(length="long", head_size=16)),
    (ValueError, "prior_shape", lambda: clmgk.Plan(length=9, head_size=16, prior_shape="hmsx")),
    (ValueError, "nonsense", lambda: clmgk.Plan(length=9, head_size=16, parameters="nonsense=1")),
    (ValueError, "v: missing", lambda: plan().forward(q=one(), k=one())),
    (TypeError, "no such array", lambda: plan().forward(q=one(), k=one(), v=one(), w=one())),
    (ValueError, "bias: given", lambda: plan().forward(q=one(), k=one(), v=one(), bias=one())),
    (ValueError, "gradients", lambda: plan().backward(q=one(), k=one(), v=one())),
    (ValueError, "statistics", lambda: plan().statistics(q=one(), k=one())),
    (ValueError, "combine", lambda: plan().combine(parts_o=one(), parts_lse=one())),
    (ValueError, "q: strides", lambda: plan().forward(q=np.ones((1, 9, 1, 20), F32)[..., :16].swapaxes(1, 2), k=one(), v=one())),
]
SHARED = np.ones((1, 2, 9, 16), F32)


def out_of(_):
    return SHARED


def one():
    return np.ones((1, 1, 9, 16), F32)


@functools.cache
def plan():
    return clmgk.Plan(length=9, head_size=16)


@pytest.mark.parametrize("exception, words, call", MISUSES, ids=[f"{i}-{m[1]}" for i, m in enumerate(MISUSES)])
def test_misuse(exception, words, call):
    with pytest.raises(exception) as caught:
        call()
    assert words in str(caught.value) + "$"  # "$": the message's end
    # The next call works.
    assert np.isfinite(attend()).all()


def backward(lse):
    return clmgk.attention_backward(*arrays()[:1], *arrays(), *arrays()[:1], lse)


OUT = np.ones((1, 2, 9, 16), F32)
PLAN_ARRAYS = {name: np.ones((1, 1, 9, 16), F32) for name in "qkv"}
# A call, and one whose arguments look alike and are wrong.
AFTER_OTHERS = [
    (ValueError, "o: read-only", lambda: attend(out=OUT), lambda: attend(out=read_only())),
    (ValueError, "o: shares memory with q", lambda: attend(out=OUT), lambda: attend(lambda q, k, v: (OUT, k, v), out=OUT)),
    (ValueError, "q: its elements are not aligned", attend, lambda: attend(lambda q, k, v: (unaligned(), k, v))),
    (TypeError, "k: a masked array", attend, lambda: attend(lambda q, k, v: (q, np.ma.masked_less(k, 0), v))),
    (TypeError, "v: elements of type >f4", attend, lambda: attend(lambda q, k, v: (q, k, v.astype(">f4")))),
    (TypeError, "window_left", lambda: attend(window_left=2), lambda: attend(window_left=2.0)),
    (ValueError, "variant", lambda: clmgk.linear_attention(*arrays()), lambda: attend(variant="linear")),
    (ValueError, "lengths[0]: 10", lambda: attend(lengths=[9]), lambda: attend(lengths=[10])),
    (ValueError, "seed: -1", lambda: attend(dropout=0.5, seed=1), lambda: attend(dropout=0.5, seed=-1)),
    (ValueError, "engine", lambda: attend(engine="auto"), lambda: attend(engine="warp")),
    (ValueError, "lse: shape", lambda: backward(np.ones((1, 2, 9), F32)), lambda: backward(np.ones((1, 2, 8), F32))),
    (ValueError, "q: strides", lambda: plan().forward(**PLAN_ARRAYS),
     lambda: plan().forward(**PLAN_ARRAYS | {"q": np.ones((1, 1, 9, 20), F32)[..., :16]})),
    (ValueError, "v: missing", lambda: plan().forward(**PLAN_ARRAYS), lambda: plan().forward(**PLAN_ARRAYS | {"v": None})),
    (TypeError, "bias: list", lambda: plan().forward(**PLAN_ARRAYS, bias=None), lambda: plan().forward(**PLAN_ARRAYS, bias=[0.0])),
]


@pytest.mark.parametrize("exception, words, right, wrong", AFTER_OTHERS, ids=[m[1] for m in AFTER_OTHERS])
def test_checks_after_a_call_that_looks_alike(exception, words, right, wrong):
    """What a call checks once for arguments that look alike hides nothing that it must check each time."""
    right()
    with pytest.raises(exception) as caught:
        wrong()
    assert words in str(caught.value)


def test_error_of_the_library():
    with pytest.raises(clmgk.Error) as caught:
        attend(dropout=1.0)
    assert caught.value.status == "ERROR_INVALID_VALUE" and caught.value.opencl_code == 0


def test_unsupported():
    with pytest.raises(NotImplementedError, match="at most 128 numbers"):
        attend(lambda q, k, v: (q, k, np.tile(v, 10)), engine="matrix")
