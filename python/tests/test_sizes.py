# SPDX-License-Identifier: Apache-2.0
"""Calls of many sizes share one C plan a kind: a model of any length soon makes no plans, which alone compile."""
import numpy as np
import pytest

import clmgk
from clmgk import _plan

H, D = 4, 16


@pytest.fixture
def made(monkeypatch):
    """The C plans that are made; nothing else compiles."""
    plans = []
    create = _plan._create

    def count(*arguments):
        plans.append(create(*arguments))
        return plans[-1]

    monkeypatch.setattr(_plan, "_create", count)
    return plans


@pytest.fixture
def shared(monkeypatch):
    """From the first size on."""
    monkeypatch.setattr(_plan, "_MOST_OWN", 0)


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def exact(q, k, v, bias=0.0):
    """Attention by whole matrices."""
    s = np.einsum("bhnd,bhsd->bhns", q, k, dtype=np.float64) / np.sqrt(q.shape[-1]) + bias
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def test_generation(made, shared):
    rng = np.random.default_rng(1)
    context = clmgk.Context()
    k, v = draw(rng, 1, H, 300, D), draw(rng, 1, H, 300, D)
    for length in range(1, 301):
        q = draw(rng, 1, H, 1, D)
        keys, values = k[:, :, :length], v[:, :, :length]
        o = clmgk.attention(q, keys, values, device=context)
        if length % 37 == 1:
            np.testing.assert_allclose(o, exact(q, keys, values), atol=1e-5, rtol=1e-5)
    assert len(made) == 1


def test_training(made, shared):
    rng = np.random.default_rng(2)
    context = clmgk.Context()
    results = []
    for length in (37, 5, 300, 64, 129):
        arrays = dict(zip(("q", "k", "v", "grad_o"), (draw(rng, 2, H, length, D) for _ in range(4))))
        q, k, v, grad_o = arrays.values()
        o, lse = clmgk.attention(q, k, v, return_lse=True, causal=True, device=context)
        results.append((arrays, clmgk.attention_backward(grad_o, q, k, v, o, lse, causal=True, device=context)))
    assert len(made) == 2  # forward, backward
    for arrays, gradients in results[::2]:
        grad_o = arrays.pop("grad_o")
        length = grad_o.shape[2]
        with clmgk.Plan(device=context, batch=2, heads=H, length=length, head_size=D, causal=True,
                        gradients=["q", "k", "v"]) as plan:
            wanted = plan.backward(**arrays, **plan.forward(**arrays), grad_o=grad_o)
        for name in "qkv":
            np.testing.assert_allclose(gradients[name], wanted[f"grad_{name}"], atol=1e-5, rtol=1e-4)


def test_limits_grow(made, shared):
    """Larger sizes make another plan, which serves the smaller ones, too; of the same programs."""
    rng = np.random.default_rng(3)
    context = clmgk.Context()
    for batch in (1, 3, 2, 4, 1):
        q = draw(rng, batch, H, 7, D)
        np.testing.assert_allclose(clmgk.attention(q, q, q, device=context), exact(q, q, q), atol=1e-5, rtol=1e-5)
    assert len(made) == 2
    assert _plan._plan_info(made[1].pointer).origin == "memory"


def test_bias_of_one_row(made, shared):
    """An axis that a call has once, and one that the bias repeats, are different kinds."""
    rng = np.random.default_rng(4)
    context = clmgk.Context()
    for rows, keys in ((6, 9), (8, 5), (6, 1)):
        q, k = draw(rng, 2, H, rows, D), draw(rng, 2, H, keys, D)
        for shape in ((2, H, rows, keys), (1, 1, 1, keys)):
            bias = draw(rng, *shape)
            np.testing.assert_allclose(clmgk.attention(q, k, k, bias=bias, device=context),
                                       exact(q, k, k, bias), atol=1e-5, rtol=1e-5)


def test_few_sizes(made):
    """The first sizes have plans of their own, and keep them."""
    rng = np.random.default_rng(5)
    context = clmgk.Context()
    q = draw(rng, 1, H, 1, D)
    for times in range(2):
        for length in (3, 50, 7, 20, 9, 31, 4, 60):
            k = draw(rng, 1, H, length, D)
            np.testing.assert_allclose(clmgk.attention(q, k, k, device=context), exact(q, k, k), atol=1e-5, rtol=1e-5)
        assert len(made) == _plan._MOST_OWN + 1


def test_caches_with_scales(made, shared):
    """A cache of 8-bit integers grows: the scales' layouts are those of the call."""
    rng = np.random.default_rng(6)
    context = clmgk.Context()
    codes, v = rng.integers(-127, 128, (1, H, 40, D), dtype=np.int8), draw(rng, 1, H, 40, D)
    scales = (rng.random((1, H, 40)) / 64).astype(np.float32)
    for length in (1, 7, 33, 40):
        q, k = draw(rng, 1, H, 1, D), codes[:, :, :length]
        o = clmgk.attention(q, k, v[:, :, :length], scale_k=scales[:, :, :length], device=context)
        np.testing.assert_allclose(o, exact(q, k * scales[:, :, :length, None], v[:, :, :length]), atol=1e-5, rtol=1e-5)
    assert len(made) == 1
