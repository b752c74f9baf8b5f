# SPDX-License-Identifier: Apache-2.0
"""Scores and masks as text."""
import numpy as np
import pytest

import clmgk

RANDOM = np.random.default_rng(74)
B, H, N, S, D = 2, 2, 5, 7, 8
Q, K, V = (RANDOM.standard_normal((B, H, n, D), dtype=np.float32) for n in (N, S, S))
TABLE = RANDOM.standard_normal((H, 7), dtype=np.float32)
DOCUMENTS = np.repeat(np.arange(4), 2)[None, :S].repeat(B, 0)
SCORE = "c * tanh(s / c) + t[h, clamp(i - j, -3, 3) + 3]"
MASK = "doc[b, i] == doc[b, j] || j == 0"


def expected(c=3.0, documents=True):
    """O, by the formula."""
    i, j = np.arange(N)[:, None], np.arange(S)[None, :]
    s = Q.astype(float) @ K.astype(float).swapaxes(-1, -2) / np.sqrt(D)
    s = c * np.tanh(s / c) + TABLE[:, np.clip(i - j, -3, 3) + 3]
    if documents:
        visible = (DOCUMENTS[:, :N, None] == DOCUMENTS[:, None, :]) | (j == 0)
        s = np.where(visible[:, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ V


def attend(**options):
    given = dict(score_mod=SCORE, mask_mod=MASK, captures={"t": TABLE, "doc": DOCUMENTS}, numbers={"c": 3.0})
    return clmgk.attention(Q, K, V, **{**given, **options})


def test_results():
    np.testing.assert_allclose(attend(), expected(), atol=1e-5)
    np.testing.assert_allclose(attend(numbers={"c": np.float64(0.5)}), expected(0.5), atol=1e-5)
    np.testing.assert_allclose(attend(mask_mod=None, captures={"t": TABLE[:, ::-1][:, ::-1].astype(np.float64)}),
                               expected(documents=False), atol=1e-5)
    np.testing.assert_allclose(attend(score_mod=None, mask_mod="j <= i + S - N", captures=None, numbers=None),
                               clmgk.attention(Q, K, V, causal=True), atol=1e-6)
    # a score of -inf hides its pair
    np.testing.assert_allclose(attend(score_mod="j <= i + S - N ? s : -(1 / 0.0)", mask_mod=None, captures=None, numbers=None),
                               clmgk.attention(Q, K, V, causal=True), atol=1e-6)
    half = attend(captures={"t": TABLE.astype(np.float16), "doc": DOCUMENTS == 1}, mask_mod="!doc[b, j]")
    assert np.isfinite(half).all()


def test_reads_outside():
    given = dict(score_mod=SCORE, mask_mod=MASK, captures={"t": TABLE, "doc": DOCUMENTS}, numbers={"c": 3.0})
    assert clmgk.reads_outside(Q, K, V, **given) == 0
    assert clmgk.reads_outside(Q, K, V, causal=True) == 0
    far = {**given, "score_mod": "s + t[h, i - j + int(c)]", "mask_mod": None}  # outside: i + 3 < j, and i = 4, j = 0
    far["captures"] = {"t": TABLE}
    assert clmgk.reads_outside(Q, K, V, **far) == B * H * (3 + 2 + 1 + 1)
    assert clmgk.reads_outside(Q, K, V, **far, causal=True, alignment="top-left") == B * H
    assert clmgk.reads_outside(Q, K, V, **far, lengths=[6]) == B * H * (2 + 1 + 1)
    assert clmgk.reads_outside(Q[0], K[0], V[0], **far, lengths=6) == H * (2 + 1 + 1)
    with pytest.raises(ValueError, match="unknown name 'u'"):
        clmgk.reads_outside(Q, K, V, score_mod="s + u")
    with pytest.raises(ValueError, match="lengths"):
        clmgk.reads_outside(Q, K, V, **far, lengths=[8])


def test_gradients():
    options = dict(score_mod=SCORE, mask_mod=MASK, captures={"t": TABLE, "doc": DOCUMENTS}, numbers={"c": 3.0})
    o, lse = clmgk.attention(Q, K, V, return_lse=True, **options)
    gradients = clmgk.attention_backward(np.ones_like(o), Q, K, V, o, lse, **options)
    assert set(gradients) == {"q", "k", "v"}
    named = clmgk.attention_backward(np.ones_like(o), Q, K, V, o, lse, gradients=("q", "captures", "numbers"), **options)
    assert set(named) == {"q", "captures", "numbers"} and set(named["captures"]) == {"t"} and set(named["numbers"]) == {"c"}
    assert named["captures"]["t"].shape == TABLE.shape
    above, below = (expected(3 + sign * 1e-4).sum() for sign in (1, -1))
    np.testing.assert_allclose(named["numbers"]["c"], (above - below) / 2e-4, atol=1e-4)
    step = np.zeros_like(Q)
    step[0, 1, 2, 3] = 1e-2
    above, below = (clmgk.attention(Q + sign * step, K, V, **options).sum(dtype=np.float64) for sign in (1, -1))
    np.testing.assert_allclose(gradients["q"][0, 1, 2, 3], (above - below) / 2e-2, atol=2e-3)


def test_plan():
    plan = clmgk.Plan(batch=B, heads=H, length=N, length_k=S, head_size=D, score_mod=SCORE, numbers=["c"],
                      captures=[clmgk.Capture("t", "f32", (H, 7))])
    found = plan.forward(q=Q, k=K, v=V, capture_0=TABLE, numbers=np.array([3], np.float32))["o"]
    np.testing.assert_allclose(found, expected(documents=False), atol=1e-5)


@pytest.mark.parametrize("error, words, options", [
    (ValueError, "score_mod: line 1, column 5: unknown name 'u'", {"score_mod": "s + u"}),
    (ValueError, "mask_mod: line 1, column 1: a mask has no 's'", {"mask_mod": "s > 0"}),
    (ValueError, "captures: the name 'exp' is built in", {"captures": {"exp": TABLE}}),
    (ValueError, "captures: expected none, or score_mod", {"score_mod": None, "mask_mod": None}),
    (ValueError, "captures: 9 arrays: expected at most 8", {"captures": {f"a{n}": TABLE for n in range(9)}}),
    (ValueError, r"captures\['t'\]: shape \(\): expected 1 to 4 axes", {"captures": {"t": 1.0}}),
    (TypeError, r"captures\['t'\]: elements of type complex", {"captures": {"t": TABLE * 1j}}),
    (TypeError, "captures: list: expected a dict", {"captures": [TABLE]}),
    (TypeError, r"numbers\['c'\]: 'x': expected a number", {"numbers": {"c": "x"}}),
    (TypeError, "score_mod: int: expected a text", {"score_mod": 1}),
    (ValueError, "numbers: 17: expected at most 16|numbers: 17 names", {"numbers": {f"n{n}": 0 for n in range(17)}}),
])
def test_misuse(error, words, options):
    with pytest.raises(error, match=words):
        attend(**options)


def test_linear_attention_has_no_scores():
    with pytest.raises(TypeError, match="unexpected argument 'score_mod'"):
        clmgk.linear_attention(Q, K, V, score_mod="s")


# ---- classes of blocks

ROWS, TOKENS = 40, np.repeat(np.arange(4), 32)  # rows of 40 queries, 128 keys in documents of 32
BLOCKED = dict(mask_mod="doc[j] == d", captures={"doc": TOKENS}, numbers={"d": 2.0}, mask_block=(16, 32))


def blocked():
    return [RANDOM.standard_normal((B, H, n, D), dtype=np.float32) for n in (ROWS, 128, 128)]


def test_classes_of_blocks():
    """Made once, they give what the mask gives, and alone as a list of blocks do the same; gradients too."""
    q, k, v = blocked()
    classes = clmgk.mask_blocks(q, k, v, per_batch=False, per_head=False, **BLOCKED)
    np.testing.assert_array_equal(classes, np.broadcast_to([0, 0, 2, 0], (1, 1, 3, 4)))
    assert clmgk.mask_blocks(q, k, v, **BLOCKED).shape == (B, H, 3, 4)
    o, lse = clmgk.attention(q, k, v, return_lse=True, **BLOCKED)
    for options in BLOCKED, {"mask_block": (16, 32)}:
        found, found_lse = clmgk.attention(q, k, v, return_lse=True, mask_blocks=classes.tolist(), **options)
        np.testing.assert_allclose(found, o, atol=1e-6)
        gradients = clmgk.attention_backward(np.ones_like(o), q, k, v, found, found_lse, mask_blocks=classes, **options)
        assert (gradients["v"][:, :, :64] == 0).all() and (gradients["v"][:, :, 64:96] != 0).all()
    np.testing.assert_allclose(found_lse, lse, atol=1e-6)
    # a list hides what the mask shows
    classes[0, 0, 0] = 0
    assert (clmgk.attention(q, k, v, mask_blocks=classes, mask_block=(16, 32))[:, :, :16] == 0).all()


def test_classes_of_a_plan():
    q, k, v = blocked()
    plan = clmgk.Plan(batch=B, heads=H, length=ROWS, length_k=128, head_size=D, mask_mod="doc[j] == d", numbers=["d"],
                      captures=[clmgk.Capture("doc", "i32", (128,))], use_mask_blocks=True, mask_block_q=16, mask_block_k=32,
                      mask_blocks_batch=1, mask_blocks_heads=1)
    texts = dict(capture_0=TOKENS.astype(np.int32), numbers=np.array([2], np.float32))
    classes = plan.mask(**texts)["mask_blocks"]
    assert classes.shape == (1, 1, 3, 4)
    found = plan.forward(q=q, k=k, v=v, mask_blocks=classes, **texts)["o"]
    np.testing.assert_allclose(found, clmgk.attention(q, k, v, **BLOCKED), atol=1e-6)
    with pytest.raises(ValueError, match="mask: the plan was made without use_mask_blocks and mask_mod"):
        clmgk.Plan(length=5, head_size=D).mask()


@pytest.mark.parametrize("error, words, options", [
    (ValueError, r"mask_blocks: shape \(3, 4\): expected \[B or 1,H or 1,", {"mask_blocks": np.zeros((3, 4), int)}),
    (ValueError, r"mask_blocks: shape \(1, 1, 2, 4\): expected \(1, 1, 3, 4\)", {"mask_blocks": np.zeros((1, 1, 2, 4), int)}),
    (ValueError, "mask_blocks_heads: 3", {"mask_blocks": np.zeros((1, 3, 3, 4), int)}),
    (TypeError, "mask_blocks: elements of type bool: expected int32", {"mask_blocks": np.zeros((1, 1, 3, 4), bool)}),
    (TypeError, "mask_block: 64: expected two numbers", {"mask_block": 64}),
    (ValueError, "mask_block_q: 48", {"mask_block": (48, 32)}),
])
def test_misuse_of_classes(error, words, options):
    with pytest.raises(error, match=words):
        clmgk.attention(*blocked(), **{**BLOCKED, **options})


def test_misuse_of_mask_blocks():
    with pytest.raises(ValueError, match="mask_mod: missing: mask_blocks classifies"):
        clmgk.mask_blocks(Q, K, V)
    with pytest.raises(TypeError, match="unexpected argument 'mask_blocks'"):
        clmgk.mask_blocks(Q, K, V, mask_mod="j < 3", mask_blocks=np.zeros((1, 1, 1, 1), int))


def test_classes_in_pytorch():
    """Also of tensors without a batch, with classes of each head, and under autograd."""
    torch = pytest.importorskip("torch")
    import clmgk.torch
    q, k, v = (torch.from_numpy(array[0]).requires_grad_() for array in blocked())
    least = torch.tensor([0, 64], dtype=torch.int64)
    options = dict(mask_mod="j >= least[h]", captures={"least": least}, mask_block=(16, 32))
    classes = clmgk.torch.mask_blocks(q, k, v, per_batch=False, **options)
    assert classes.dtype == torch.int32 and not classes.requires_grad
    assert classes[0, 0].unique().tolist() == [2] and classes[0, 1].tolist() == [[0, 0, 2, 2]] * 3
    visible = torch.arange(128) >= least[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, visible.expand(H, ROWS, 128))
    for given in options, {"mask_block": [16, 32]}:
        o = clmgk.torch.attention(q, k, v, mask_blocks=classes, **given)
        torch.testing.assert_close(o, expected, atol=2e-5, rtol=1e-4)
        found, exact = (torch.autograd.grad(x.square().sum(), (q, k, v), retain_graph=True) for x in (o, expected))
        torch.testing.assert_close(found, exact, atol=2e-5, rtol=1e-4)
    with pytest.raises(TypeError, match="mask_blocks: a tensor of torch.float32: expected integers"):
        clmgk.torch.attention(q, k, v, mask_blocks=classes.float(), **options)
    with pytest.raises(ValueError, match="mask_mod: missing"):
        clmgk.torch.mask_blocks(q, k, v)


def test_reads_outside_in_pytorch():
    torch = pytest.importorskip("torch")
    import clmgk.torch
    q, k, v, table = (torch.from_numpy(array) for array in (Q, K, V, TABLE))
    options = dict(score_mod="s + t[h, i - j + int(c)]", captures={"t": table.requires_grad_()}, numbers={"c": torch.tensor(3.0)})
    assert clmgk.torch.reads_outside(q, k, v, **options) == B * H * 7
    assert clmgk.torch.reads_outside(q[0], k[0], v[0], **options, lengths=torch.tensor([6])) == H * 4
    options["captures"] = {"t": torch.zeros(H, 12, dtype=torch.bfloat16)}
    assert clmgk.torch.reads_outside(q, k, v, **options) == B * H * 6
