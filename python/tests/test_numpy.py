# SPDX-License-Identifier: Apache-2.0
"""Functions and plans on NumPy arrays: formulas in double precision, types, layouts, outputs."""
import tracemalloc

import numpy as np
import pytest

import clmgk
from conftest import FULL, normal

TOLERANCE = dict(rtol=2e-5, atol=2e-5)


def softmax(w):
    p = np.exp(w - w.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def mgk_weights(q, k, prior, variance):
    """w [B,H,N,S] of MGK; prior and variance [H,M]."""
    q, k = q.astype(float), k.astype(float)
    distance = ((q[:, :, None, :, None] - k[:, :, :, None]) ** 2).sum(-1)  # [B,H,M,N,S]
    score = np.log(prior)[None, :, :, None, None] - distance / (2 * variance[None, :, :, None, None])
    return np.logaddexp.reduce(score, axis=2)


def hidden(n, s, causal=True, alignment="bottom-right", left=None, right=None):
    i, j = np.arange(n)[:, None], np.arange(s)
    diagonal = i + (s - n if alignment == "bottom-right" else 0)
    hide = (j > diagonal) & causal
    hide |= (diagonal - j > left) if left is not None else False
    return hide | ((j - diagonal > right) if right is not None else False)


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"causal": True, "alignment": "top-left"},
                                  {"causal": True, "window_left": 3}, {"window_left": 4, "window_right": 2}])
def test_softmax(rng, mask):
    q, k, v = normal(rng, 2, 3, 9, 16), normal(rng, 2, 3, 13, 16), normal(rng, 2, 3, 13, 16)
    o, lse = clmgk.attention(q, k, v, return_lse=True, **mask)
    w = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / 4
    hide = hidden(9, 13, mask.get("causal", False), mask.get("alignment", "bottom-right"), mask.get("window_left"),
                  mask.get("window_right"))
    w = np.where(hide, -np.inf, w)
    np.testing.assert_allclose(o, softmax(w) @ v, **TOLERANCE)
    np.testing.assert_allclose(lse, np.logaddexp.reduce(w, axis=-1), **TOLERANCE)


@pytest.mark.parametrize("shapes", [((2, 2), (2, 2)), ((1, 2), (2, 1)), ((2, 1), (1, 1))])
def test_mgk_and_its_gradients(rng, shapes):
    """The gradient along a random direction is the derivative of a random projection of O and L; parameters broadcast."""
    q, k, v = normal(rng, 1, 2, 11, 16), normal(rng, 1, 2, 2, 11, 16), normal(rng, 1, 2, 11, 16)
    prior, variance = rng.uniform(0.2, 1, shapes[0]), rng.uniform(2, 8, shapes[1])
    options = dict(variant="mgk", prior=prior, variance=variance)
    o, lse = clmgk.attention(q, k, v, return_lse=True, **options)
    grad_o, grad_lse = normal(rng, *o.shape), normal(rng, *lse.shape)
    gradients = clmgk.attention_backward(grad_o, q, k, v, o, lse, grad_lse=grad_lse, **options)
    assert list(gradients) == ["q", "k", "v", "prior", "variance"]

    def formula(q, k, v, prior, variance):
        w = mgk_weights(q, k, prior, variance)
        return softmax(w) @ v, np.logaddexp.reduce(w, axis=-1)

    inputs = dict(q=q.astype(float), k=k.astype(float), v=v.astype(float), prior=prior, variance=variance)
    for actual, expected in zip((o, lse), formula(**inputs)):
        np.testing.assert_allclose(actual, expected, **TOLERANCE)
    for name in inputs:
        direction = rng.standard_normal(inputs[name].shape)
        ends = []
        for step in (1e-6, -1e-6):
            values = formula(**{**inputs, name: inputs[name] + step * direction})
            ends.append((values[0] * grad_o).sum() + (values[1] * grad_lse).sum())
        expected = (ends[0] - ends[1]) / 2e-6
        assert gradients[name].shape == inputs[name].shape
        np.testing.assert_allclose((gradients[name] * direction).sum(), expected, rtol=1e-3, atol=1e-3)


def test_linear(rng):
    q, k, v = (normal(rng, 1, 2, 10, 16) for _ in range(3))
    phi = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))  # noqa: E731
    w = np.tril(phi(q.astype(float)) @ phi(k.astype(float)).swapaxes(-1, -2))
    expected = w @ v / w.sum(-1, keepdims=True)
    np.testing.assert_allclose(clmgk.linear_attention(q, k, v, causal=True), expected, **TOLERANCE)
    # The second half continues from the first one's state.
    first = [a[:, :, :5] for a in (q, k, v)]
    second = [a[:, :, 5:] for a in (q, k, v)]
    _, state = clmgk.linear_attention(*first, causal=True, return_state=True)
    o, _ = clmgk.linear_attention(*second, causal=True, state=state, return_state=True)
    np.testing.assert_allclose(o, expected[:, :, 5:], **TOLERANCE)


def test_statistics(rng):
    q, k = normal(rng, 1, 2, 8, 16), normal(rng, 1, 2, 2, 8, 16)
    found = clmgk.statistics(q, k, variant="mgk", prior=[0.3, 0.7])
    assert list(found) == ["responsibilities", "new_prior", "nll"]
    np.testing.assert_allclose(found["responsibilities"].sum(2), 1, rtol=1e-5)
    counts = found["responsibilities"].astype(float).sum((0, 1, 3, 4))
    np.testing.assert_allclose(found["new_prior"], counts / counts.sum(), rtol=1e-4)
    assert found["nll"].shape == (1, 2)


def test_statistics_of_each_score(rng):
    """Without names, those that the score has."""
    q, k = normal(rng, 1, 2, 8, 16), normal(rng, 1, 2, 2, 8, 16)
    for options, has_nll in (({"score": "dot"}, False), ({"score": "gaussian"}, True), ({"score": "default"}, True)):
        assert ("nll" in clmgk.statistics(q, k, variant="mgk", **options)) == has_nll
    assert list(clmgk.statistics(q, q)) == ["responsibilities", "new_prior"]


def test_combine(rng):
    q, k, v = (normal(rng, 1, 3, 9, 16) for _ in range(3))
    whole, lse = clmgk.attention(q, k, v, return_lse=True)
    parts = [clmgk.attention(q, k[:, :, part], v[:, :, part], return_lse=True) for part in (slice(4), slice(4, 9))]
    o, combined = clmgk.combine(*(np.stack(arrays) for arrays in zip(*parts)))
    np.testing.assert_allclose(o, whole, **TOLERANCE)
    np.testing.assert_allclose(combined, lse, **TOLERANCE)


@pytest.mark.parametrize("name, tolerance", [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_types_of_16_bits(rng, name, tolerance):
    dtype = np.dtype(name if name == "float16" else pytest.importorskip("ml_dtypes").bfloat16)
    q, k, v = (normal(rng, 1, 2, 9, 16).astype(dtype) for _ in range(3))
    o = clmgk.attention(q, k, v)
    assert o.dtype == dtype
    expected = clmgk.attention(*(a.astype(np.float32) for a in (q, k, v)))
    np.testing.assert_allclose(o.astype(float), expected, rtol=tolerance, atol=tolerance)


def test_noise_of_global_heads(rng):
    """As docs/admixture.md has it: FiSH whose noise is a global head's, by a hidden layer whose relu passes everything."""
    q, k, v = (rng.standard_normal((1, heads, 9, 16)).astype(np.float32) for heads in (2, 2, 4))
    mix, noise = rng.standard_normal((4, 2)), np.array([0.5, 1.0])
    o = clmgk.attention(q, k, v, variant="gfish", mix=np.eye(2), mix_weight=mix, mix_hidden=2, mix_hidden_offset=np.full(2, 64),
                        noise=noise, seed=5)
    drawn = np.stack([clmgk.noise_tile(seed=5, heads=4, b=0, h=h, rows=range(9), keys=range(9)) for h in range(2)])
    scores = np.einsum("hm,mij->hij", mix, (q @ k.swapaxes(-1, -2))[0] + noise[:, None, None] * drawn) / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(o[0], weights / weights.sum(-1, keepdims=True) @ v[0], atol=1e-4)


def test_mixed_types(rng):
    """float32 queries over a float16 cache, into a float16 result."""
    q, k, v = normal(rng, 1, 2, 3, 16), normal(rng, 1, 2, 9, 16, dtype=np.float16), normal(rng, 1, 2, 9, 16, dtype=np.float16)
    out = np.empty(q.shape, np.float16)
    assert clmgk.attention(q, k, v, out=out) is out
    expected = clmgk.attention(q, k.astype(np.float32), v.astype(np.float32))
    np.testing.assert_allclose(out.astype(float), expected, rtol=2e-3, atol=2e-3)


# ---- layouts


def test_layouts(rng):
    """Tokens first, packed, with gaps and broadcast: the bits of dense arrays, read where they lie."""
    packed = normal(rng, 2, 9, 3, 4, 16)  # [B,N,(q,k,v),H,D]
    q, k, v = (packed[:, :, i].swapaxes(1, 2) for i in range(3))
    dense = clmgk.attention(*(np.ascontiguousarray(a) for a in (q, k, v)), causal=True)
    np.testing.assert_array_equal(clmgk.attention(q, k, v, causal=True), dense)
    out = np.full((2, 9, 4, 20), 7, np.float32)
    clmgk.attention(q, k, v, causal=True, out=out[..., :16].swapaxes(1, 2))
    np.testing.assert_array_equal(out[..., :16].swapaxes(1, 2), dense)
    assert (out[..., 16:] == 7).all()
    one = k[:, :1]
    np.testing.assert_array_equal(clmgk.attention(q, np.broadcast_to(one, k.shape), v),
                                  clmgk.attention(q, np.repeat(one, 4, axis=1), v))


def test_without_a_batch(rng):
    q, k, v = (normal(rng, 3, 9, 16) for _ in range(3))
    o, lse = clmgk.attention(q, k, v, return_lse=True)
    expected, expected_lse = clmgk.attention(q[None], k[None], v[None], return_lse=True)
    np.testing.assert_array_equal(o, expected[0])
    np.testing.assert_array_equal(lse, expected_lse[0])
    gradients = clmgk.attention_backward(o, q, k, v, o, lse)
    assert {name: a.shape for name, a in gradients.items()} == {name: q.shape for name in "qkv"}


def test_sizes_without_elements(rng):
    q, k, v = normal(rng, 1, 2, 5, 16), normal(rng, 1, 2, 0, 16), normal(rng, 1, 2, 0, 16)
    o, lse = clmgk.attention(q, k, v, return_lse=True)
    assert (o == 0).all() and np.isneginf(lse).all()
    assert clmgk.attention(q[:, :, :0], q, q).shape == (1, 2, 0, 16)
    bias = np.zeros((5, 0))
    np.testing.assert_array_equal(clmgk.attention(q, k, v, bias=bias), o)
    assert clmgk.attention_backward(o, q, k, v, o, lse, bias=bias)["bias"].shape == (1, 1, 5, 0)
    with pytest.raises(ValueError, match="bias"):
        clmgk.attention(q, q, q, bias=bias)


def test_bias_broadcasts(rng):
    q, k, v = (normal(rng, 2, 3, 9, 16) for _ in range(3))
    bias = normal(rng, 9, 9)
    full = np.broadcast_to(bias, (2, 3, 9, 9)).copy()
    np.testing.assert_array_equal(clmgk.attention(q, k, v, bias=bias), clmgk.attention(q, k, v, bias=full))
    np.testing.assert_array_equal(clmgk.attention(q, k, v, bias=full.astype(np.float64)),
                                  clmgk.attention(q, k, v, bias=full))


def test_masks_of_bool(rng):
    """True takes part; such a mask has no gradient of its own."""
    q, k, v = (normal(rng, 2, 3, 9, 16) for _ in range(3))
    visible = rng.random((9, 9)) > 0.3
    numbers = np.where(visible, 0.0, -np.inf)
    o, lse = clmgk.attention(q, k, v, bias=visible.tolist(), return_lse=True)
    np.testing.assert_array_equal(o, clmgk.attention(q, k, v, bias=numbers))
    gradients = clmgk.attention_backward(o, q, k, v, o, lse, bias=visible)
    assert list(gradients) == ["q", "k", "v"]
    expected = clmgk.attention_backward(o, q, k, v, o, lse, bias=numbers)
    np.testing.assert_array_equal(gradients["q"], expected["q"])


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_repeated_masks(rng, kind):
    """Axes that a mask repeats by strides of 0 count as axes of size 1, but where each element has a gradient of its own."""
    q = normal(rng, 2, 3, 65, 4)
    one = rng.random((65, 65)) > 0.3 if kind == "bool" else normal(rng, 65, 65)
    full = np.broadcast_to(one, (2, 3, 65, 65))
    o, lse = clmgk.attention(q, q, q, bias=one, return_lse=True)
    tracemalloc.start()
    try:
        np.testing.assert_array_equal(clmgk.attention(q, q, q, bias=full), o)
        assert tracemalloc.get_traced_memory()[1] < full.size * 4
    finally:
        tracemalloc.stop()
    options = dict(gradients=["bias"])
    own = clmgk.attention_backward(o, q, q, q, o, lse, bias=full, **options)["bias"]
    copied = clmgk.attention_backward(o, q, q, q, o, lse, bias=full.copy(), **options)["bias"]
    np.testing.assert_array_equal(own, copied)
    summed = clmgk.attention_backward(o, q, q, q, o, lse, bias=one, **options)["bias"]
    np.testing.assert_allclose(own.sum((0, 1)), summed[0, 0], **TOLERANCE)


def test_scale(rng):
    """It is 1/σ²; mixed heads take their own."""
    q, k, v = (normal(rng, 1, 2, 9, 16) for _ in range(3))
    w = q.astype(float) @ k.swapaxes(-1, -2) * 0.3
    np.testing.assert_allclose(clmgk.attention(q, k, v, scale=0.3), softmax(w) @ v, **TOLERANCE)
    for options in (dict(variant="gaussian"), dict(variant="softmax")):
        np.testing.assert_array_equal(clmgk.attention(q, k, v, scale=0.5, **options),
                                      clmgk.attention(q, k, v, variance=2.0, **options))
    mixed = dict(variant="hard-fish", mix=rng.standard_normal((2, 2)))
    np.testing.assert_array_equal(clmgk.attention(q, k, v, scale=16**-0.5, **mixed), clmgk.attention(q, k, v, **mixed))


def test_parameters_broadcast(rng):
    q = normal(rng, 2, 3, 9, 16)
    for lengths in (5, [5], [[5]]):
        np.testing.assert_array_equal(clmgk.attention(q, q, q, lengths=lengths), clmgk.attention(q, q, q, lengths=[5, 5]))
    np.testing.assert_array_equal(clmgk.attention(q[0], q[0], q[0], lengths=[5]), clmgk.attention(q, q, q, lengths=[5, 9])[0])


@pytest.mark.skipif(not FULL, reason="a program of its own: in --full only")
def test_shifts_broadcast(rng):
    q, shift = normal(rng, 1, 3, 9, 16), normal(rng, 2, 16)
    one, all_ = (clmgk.attention(q, q, q, variant="smgk", shift=s, prior=p)
                 for s, p in ((shift, 0.5), (np.stack([shift] * 3), [0.5, 0.5])))
    np.testing.assert_array_equal(one, all_)


def test_copied_to_the_device(rng):
    """A device that does not share the host's memory gets copies: the same bits."""
    context = clmgk.Context()
    q, k, v = (normal(rng, 1, 2, 9, 16) for _ in range(3))
    o = normal(rng, 1, 2, 9, 20)[..., :16]  # with gaps
    expected = clmgk.attention(q, k, v)
    assert context._opened.native.in_place == 1
    context._opened.native.in_place = 0
    np.testing.assert_array_equal(clmgk.attention(q, k, v, device=context, out=o), expected)


# ---- plans


def test_plan(rng):
    q, k, v = (normal(rng, 1, 2, 9, 16) for _ in range(3))
    with clmgk.Plan(heads=2, length=9, head_size=16, gradients=["q", "k", "v"]) as plan:
        forward = plan.forward(q=q, k=k, v=v)
        assert set(forward) == {"o", "lse"}
        np.testing.assert_array_equal(forward["o"], clmgk.attention(q, k, v))
        first = plan.backward(q=q, k=k, v=v, **forward, grad_o=v)
        total = {name: array.copy() for name, array in first.items()}
        plan.backward(q=q, k=k, v=v, **forward, grad_o=v, accumulate=["q", "k", "v"], **total)
        for name in first:
            np.testing.assert_allclose(total[name], 2 * first[name], rtol=1e-5, atol=1e-6)
        assert plan.info.engine in plan.info.engine_reason or plan.info.engine_reason
    with pytest.raises(RuntimeError, match="released"):
        plan.forward(q=q, k=k, v=v)


def test_plan_with_layouts(rng):
    """An output that the plan makes has the plan's layout."""
    q = normal(rng, 1, 9, 2, 16).swapaxes(1, 2)
    tokens_first = clmgk.Layout(batch=288, head=16, token=32)
    plan = clmgk.Plan(heads=2, length=9, head_size=16, q=tokens_first, k=tokens_first, v=tokens_first, o=tokens_first)
    o = plan.forward(q=q, k=q, v=q)["o"]
    assert o.swapaxes(1, 2).flags.c_contiguous
    np.testing.assert_array_equal(o, clmgk.attention(q, q, q))


def test_devices():
    devices = clmgk.devices()
    assert devices and clmgk.Context(devices[0].selector).device == devices[0]
    q = np.ones((1, 1, 9, 16), np.float32)
    assert (clmgk.attention(q, q, q, device=devices[0]) == 1).all()


def test_random_numbers(rng):
    q, k, v = (normal(rng, 1, 2, 9, 16) for _ in range(3))
    options = dict(dropout=0.5, seed=7)
    mask = np.stack([clmgk.dropout_mask(0.5, seed=7, heads=2, b=0, h=h, rows=range(9), keys=range(9)) for h in range(2)])
    p = softmax(q.astype(float) @ k.swapaxes(-1, -2) / 4) * mask * 2
    np.testing.assert_allclose(clmgk.attention(q, k, v, **options), p @ v, **TOLERANCE)
    assert clmgk.draw_projection(24, 16, seed=3).shape == (24, 16)


def paged(rng, heads=2, pages=7, page=4, size=16):
    """Pools of keys and values, and the rows of a table's first keys."""
    k, v = normal(rng, pages, heads, page, size), normal(rng, pages, heads, page, size)

    def rows(pool, table, length):
        return np.concatenate([pool[p] for p in table], axis=1)[:, :length] if length else pool[0][:, :0]

    return k, v, rows


def test_pages_and_caches(rng):
    """Batches, packed sequences and compressed tables give what their gathered keys give; pools may have their tokens first."""
    k, v, rows = paged(rng)
    table, lengths = np.array([[6, 0, 6], [3, 1, 99]]), [11, 5]
    q = normal(rng, 2, 2, 3, 16)
    expected = [clmgk.attention(q[b], rows(k, table[b, :n // 4 + 1], n), rows(v, table[b, :n // 4 + 1], n), causal=True)
                for b, n in enumerate(lengths)]
    options = {"causal": True, "alignment": "lengths"}
    o = clmgk.attention(q, k, v, page_table=table, lengths=lengths, **options)
    np.testing.assert_allclose(o, expected, **TOLERANCE)
    tokens_first = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (k, v)]
    np.testing.assert_array_equal(o, clmgk.attention(q, *tokens_first, page_table=table, lengths=lengths, **options))
    compressed = {"page_table": [6, 0, 6, 3, 1], "page_offsets": [0, 3, 5], "last_page": [3, 1]}
    np.testing.assert_allclose(clmgk.attention(q, k, v, **compressed, **options), expected, **TOLERANCE)
    packed = q.transpose(1, 0, 2, 3).reshape(1, 2, 6, 16)
    o = clmgk.attention(packed, k, v, offsets=[0, 3, 6], page_table=table, lengths=lengths, causal=True)
    np.testing.assert_allclose(o[0].reshape(2, 2, 3, 16).swapaxes(0, 1), expected, **TOLERANCE)
    caches = [np.full((2, 2, 12, 16), np.nan, np.float32) for _ in (k, v)]
    for cache, pool in zip(caches, (k, v)):
        for b, n in enumerate(lengths):
            cache[b, :, :n] = rows(pool, table[b, :n // 4 + 1], n)
    o = clmgk.attention(packed, *caches, offsets=[0, 3, 6], lengths=lengths, causal=True)
    np.testing.assert_allclose(o[0].reshape(2, 2, 3, 16).swapaxes(0, 1), expected, **TOLERANCE)


def test_append(rng):
    """Tokens go to their slots; keys are rotated; the other elements of the pools stay."""
    k, v, _ = paged(rng)
    new_k, new_v = normal(rng, 3, 2, 16), normal(rng, 3, 2, 16)
    slots, positions = np.array([9, -1, 4], np.int32), np.array([3, 1, 0], np.int32)
    plan = clmgk.Plan(heads=2, head_size=16, page_size=4, pages=7, table_pages=2, append=3, append_rotary="halves")
    expected_k, expected_v = k.copy(), v.copy()
    for token, (slot, position) in enumerate(zip(slots, positions)):
        if slot >= 0:
            angle = position * 10000.0 ** (-np.arange(8) / 8)
            x, y = new_k[token, :, :8], new_k[token, :, 8:]
            expected_k[slot // 4, :, slot % 4] = np.concatenate(
                [x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], axis=1)
            expected_v[slot // 4, :, slot % 4] = new_v[token]
    arrays = {"append_k": new_k, "append_v": new_v, "append_slots": slots, "append_positions": positions}
    out = plan.append(k=k, v=v, **arrays)
    assert out["k"] is k and out["v"] is v
    np.testing.assert_allclose(k, expected_k, **TOLERANCE)
    np.testing.assert_array_equal(v, expected_v)
    with pytest.raises(ValueError, match="append: the plan was made without it"):
        clmgk.Plan(length=3, head_size=16).append(k=k, v=v, **arrays)
    with pytest.raises(ValueError, match="append_positions"):
        plan.append(k=k, v=v, **{**arrays, "append_positions": None})


def test_states_in_a_pool(rng):
    """Packed sequences go on with states of a pool, in place; what no sequence names stays."""
    rows, begin, read, written = [3, 1, 0, 2], [0, 3, 4, 4, 6], [2, -1, 0, 1], [2, 4, 3, -1]
    q, k, v = normal(rng, 1, 2, 6, 16), normal(rng, 1, 2, 6, 16), normal(rng, 1, 2, 6, 16)
    pool = [normal(rng, 5, 2, 16, 16), np.abs(normal(rng, 5, 2, 16)) + 1]
    before = [array.copy() for array in pool]
    plan = clmgk.Plan(variant="linear", sequences=4, heads=2, length=6, head_size=16, causal=True, state_pool=5, use_state=True,
                      use_new_state=True)
    arrays = {"q": q, "k": k, "v": v, "offsets": np.array(begin, np.int32), "state_slots": np.array(read, np.int32),
              "new_state_slots": np.array(written, np.int32), "state_c": pool[0], "state_z": pool[1], "new_state_c": pool[0],
              "new_state_z": pool[1]}
    out = plan.forward(**arrays)
    assert out["new_state_c"] is pool[0]
    expected = [array.copy() for array in before]
    for t, (first, count) in enumerate(zip(begin, rows)):
        state = clmgk.State(*[array[read[t]:read[t] + 1] for array in before]) if read[t] >= 0 else None
        if count:
            part = [array[:, :, first:first + count] for array in (q, k, v)]
            o, new = clmgk.linear_attention(*part, causal=True, state=state, return_state=True)
            np.testing.assert_allclose(out["o"][:, :, first:first + count], o, **TOLERANCE)
        else:
            new = state
        for array, own in zip(expected, new[:2]):
            if written[t] >= 0:
                array[written[t]] = own[0]
    for array, own in zip(pool, expected):
        np.testing.assert_allclose(array, own, **TOLERANCE)
    with pytest.raises(ValueError, match=r"state_slots\[1\]: 5: expected -1 to 4"):
        plan.forward(**{**arrays, "state_slots": np.array([2, 5, 0, 1], np.int32)})
    with pytest.raises(ValueError, match=r"state_slots\[0\]: 4: expected a place that number 1 does not write"):
        plan.forward(**{**arrays, "state_slots": np.array([4, -1, 0, 1], np.int32)})
    with pytest.raises(ValueError, match="new_state_c: shares memory with state_c"):
        plan.forward(**{**arrays, "new_state_c": pool[0][:]})


def test_pages_are_checked(rng):
    k, v, _ = paged(rng)
    q = normal(rng, 2, 2, 3, 16)
    with pytest.raises(ValueError, match=r"page_table\[4\]: 7: expected 0 to 6"):
        clmgk.attention(q, k, v, page_table=[[0, 1, 9], [2, 7, 9]], lengths=[8, 5])
    with pytest.raises(ValueError, match="page_table: shape"):
        clmgk.attention(q, k, v, page_table=3, lengths=[8, 5])
    with pytest.raises(NotImplementedError, match="gradients"):
        clmgk.attention_backward(q, q, k, v, q, q[..., 0], page_table=[[0, 1], [2, 3]], lengths=[8, 5])
