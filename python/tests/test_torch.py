# SPDX-License-Identifier: Apache-2.0
"""PyTorch: values and gradients against autograd in double precision, PyTorch's own functions and modules, and manners."""
import gc
import threading
import tracemalloc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import clmgk  # noqa: E402
import clmgk.torch as ct  # noqa: E402
import formulas  # noqa: E402

F = torch.nn.functional


def normal(*shape, grad=True):
    return torch.randn(*shape, requires_grad=grad)


def close(actual, expected, tolerance=5e-5):
    scale = max(1.0, expected.detach().abs().max().item())
    assert actual.shape == expected.shape
    assert (actual.detach().double() - expected.detach().double()).abs().max().item() <= tolerance * scale


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


# ---- variants, in double precision


def positive(*shape):
    return (torch.rand(*shape) + 0.3).requires_grad_()


PROBLEMS = {
    "softmax": lambda: (normal(2, 4, 7, 16), normal(2, 4, 9, 16), normal(2, 4, 9, 8), {}),
    "grouped": lambda: (normal(2, 4, 7, 16), normal(2, 2, 9, 16), normal(2, 2, 9, 16),
                        dict(bias=normal(1, 4, 7, 9), sinks=normal(4))),
    "mgk": lambda: (normal(1, 2, 7, 16), normal(1, 2, 2, 9, 16), normal(1, 2, 9, 16),
                    dict(prior=positive(2, 2), variance=positive(2, 2))),
    "smgk": lambda: (normal(1, 2, 7, 16), normal(1, 2, 9, 16), normal(1, 2, 9, 16),
                     dict(prior=positive(2, 2), variance=positive(2, 2), shift=normal(2, 2, 16))),
    "hard-fish": lambda: (normal(1, 2, 7, 16), normal(1, 2, 9, 16), normal(1, 4, 9, 16), dict(mix=normal(4, 2))),
    "hard-gfish": lambda: (normal(1, 2, 7, 16), normal(1, 2, 9, 16), normal(1, 4, 9, 16),
                           dict(mix=normal(4, 2), mix_weight=normal(4, 2), mix_offset=normal(4))),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients(name, causal):
    q, k, v, extras = PROBLEMS[name]()
    variant = "softmax" if name == "grouped" else name
    o, lse = ct.attention(q, k, v, variant=variant, causal=causal, return_lse=True, **extras)
    inputs = {"q": q, "k": k, "v": v, **extras}
    exact = {n: t.detach().double().requires_grad_() for n, t in inputs.items()}
    expected = formulas.attention(**exact, variant=variant, causal=causal)
    close(o, expected[0])
    close(lse, expected[1])
    grad_o, grad_lse = torch.randn_like(o), torch.randn_like(lse)
    actual = torch.autograd.grad((o, lse), list(inputs.values()), (grad_o, grad_lse))
    wanted = torch.autograd.grad(expected, list(exact.values()), (grad_o.double(), grad_lse.double()))
    for a, e in zip(actual, wanted):
        close(a, e, 2e-4)


def test_unused_inputs_get_no_gradient():
    q, k, v = normal(1, 2, 7, 16), normal(1, 2, 7, 16, grad=False), normal(1, 2, 7, 16)
    ct.attention(q, k, v).sum().backward()  # a gradient with strides of 0
    assert q.grad is not None and k.grad is None and v.grad is not None


def test_gradients_of_one_output():
    """Of O or L alone, also gradients with strides of 0."""
    q, k, v = normal(1, 2, 7, 16), normal(1, 2, 9, 16), normal(1, 2, 9, 16)
    w = q @ k.transpose(-1, -2) / 4
    expected = (torch.softmax(w, -1) @ v, torch.logsumexp(w, -1))
    for actual, exact in zip(ct.attention(q, k, v, return_lse=True), expected):
        a, e = (torch.autograd.grad(t.sum(), (q, k, v), allow_unused=True, retain_graph=True) for t in (actual, exact))
        for one, other in zip(a, e):
            close(one, torch.zeros_like(one) if other is None else other, 2e-4)


def test_layouts_are_read_in_place():
    """Tokens first, as projections give them; O and the gradients are tokens-first too."""
    x = normal(2, 9, 3 * 4 * 16)
    q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in x.split(64, -1))
    o = ct.attention(q, k, v)
    assert o.transpose(1, 2).is_contiguous()
    close(o, ct.attention(*(t.contiguous() for t in (q, k, v))), 0)
    o.transpose(1, 2).flatten(2).square().sum().backward()
    assert x.grad.isfinite().all()


# ---- PyTorch's manners


def test_operators():
    q, k, v = normal(1, 2, 7, 16), normal(1, 2, 7, 16), normal(1, 2, 7, 16)
    torch.library.opcheck(torch.ops.clmgk.attention.default, (q, k, v, "causal=True", "q,k,v"))
    torch.library.opcheck(torch.ops.clmgk.linear_attention.default,
                          (q, k, v, "causal=True;feature='exp';return_state=True", "q,k,v"))


@pytest.mark.parametrize("attention", [ct.attention, ct.linear_attention])
def test_compile(attention):
    q, k, v = (normal(1, 2, 7, 16) for _ in range(3))
    function = lambda q, k, v: attention(q * 2, k, v, causal=True).sin()  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    close(compiled(q, k, v), function(q, k, v), 0)
    for a, e in zip(*(torch.autograd.grad(f(q, k, v).sum(), (q, k, v)) for f in (compiled, function))):
        close(a, e, 1e-6)


@pytest.mark.parametrize("function", [ct.attention, ct.linear_attention])
def test_second_gradient_is_refused(function):
    q = normal(1, 2, 7, 16)
    gradient, = torch.autograd.grad(function(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        gradient.sum().backward()


def test_compile_with_state():
    """A compiled step of decoding: the state comes in and goes out."""
    q, k, v = (normal(1, 2, 1, 16, grad=False) for _ in range(3))
    step = lambda q, k, v, state: ct.linear_attention(q, k, v, state=state, return_state=True, feature="exp")  # noqa: E731
    _, state = ct.linear_attention(q, k, v, return_state=True, feature="exp")
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(*((o, *new) for o, new in (f(q, k, v, state) for f in (compiled, step)))):
        close(actual, expected, 0)


def test_shapes_of_fake_tensors():
    """Shapes and strides of every output, for a variant of each kind, are those that the operator returns."""
    from torch._subclasses import FakeTensorMode

    q, k, v = normal(2, 3, 7, 16, grad=False), normal(2, 3, 9, 16, grad=False), normal(2, 4, 9, 8, grad=False)
    q_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    calls = [lambda q, k, v: ct.attention(q, k, v[:, :3], return_lse=True),
             lambda q, k, v: ct.attention(q, k, v, variant="hard-fish", mix=v.new_ones(4, 3), return_lse=True),
             lambda q, k, v: ct.attention(q, k, v, variant="hard-mish", mix=v.new_ones(3), heads=4, return_lse=True)]
    for variant in ("linear", "lhard-fish"):
        for feature in ({"feature": "elu1"}, {"feature": "dpfp", "feature_order": 2}, {"feature": "exp"}, {"feature": "favor"}):
            def linear(q, k, v, options=dict(variant=variant, **feature)):
                given = {"mix": v.new_ones(4, 3)} if options["variant"] == "lhard-fish" else {}
                if options["feature"] == "favor":
                    given["projection"] = v.new_ones(20, 16)
                o, state = ct.linear_attention(q, k, v if given.get("mix") is not None else v[:, :3], return_state=True,
                                               **given, **options)
                return (o, *[t for t in state if t is not None])
            calls.append(linear)
    for call in calls:
        for queries in (q, q_first):
            real = call(queries, k, v)
            with FakeTensorMode() as mode:
                fake = call(*(mode.from_tensor(t) for t in (queries, k, v)))
            assert [(t.shape, t.stride(), t.dtype) for t in fake] == [(t.shape, t.stride(), t.dtype) for t in real]


def test_linear_attention_over_parts():
    """Gradients flow through the state: two halves give the whole's outputs and gradients."""
    inputs = [normal(1, 2, 10, 16) for _ in range(3)]
    for feature in ("elu1", "exp"):
        whole = ct.linear_attention(*inputs, causal=True, feature=feature)
        first, state = ct.linear_attention(*(t[:, :, :5] for t in inputs), causal=True, feature=feature, return_state=True)
        second = ct.linear_attention(*(t[:, :, 5:] for t in inputs), causal=True, feature=feature, state=state)
        parts = torch.cat((first, second), 2)
        close(parts, whole)
        weight = torch.randn_like(whole)
        for a, e in zip(*(torch.autograd.grad(o, inputs, weight) for o in (parts, whole))):
            close(a, e, 2e-4)


def test_linear_attention_without_a_batch():
    q, k, v = (normal(2, 7, 16, grad=False) for _ in range(3))
    o, state = ct.linear_attention(q, k, v, return_state=True)
    whole, whole_state = ct.linear_attention(q[None], k[None], v[None], return_state=True)
    close(o, whole[0], 0)
    close(state.c, whole_state.c[0], 0)
    close(ct.linear_attention(q, k, v, state=state), ct.linear_attention(q[None], k[None], v[None], state=whole_state)[0], 0)


def test_autocast():
    q = normal(1, 2, 7, 16)
    with torch.autocast("cpu", torch.bfloat16):
        o = ct.attention(q, q, q)
    assert o.dtype == torch.bfloat16
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32
    close(o.float(), F.scaled_dot_product_attention(q, q, q), 2e-2)
    with torch.autocast("cpu", torch.bfloat16):
        o, state = ct.linear_attention(q, q, q, return_state=True)
    assert (o.dtype, state.c.dtype) == (torch.bfloat16, torch.float32)
    close(o.float(), ct.linear_attention(q, q, q), 2e-2)


def test_checkpoint_and_dropout():
    """A recomputed forward pass draws the same mask; another call draws another."""
    q, k, v = (normal(1, 2, 7, 16) for _ in range(3))
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(5)
        call = lambda q: ct.attention(q, k, v, dropout=0.5)  # noqa: E731
        o = torch.utils.checkpoint.checkpoint(call, q, use_reentrant=False) if recompute else call(q)
        gradients.append(torch.autograd.grad(o.square().sum(), q)[0])
    close(*gradients, 0)
    assert not torch.equal(ct.attention(q, k, v, dropout=0.5), ct.attention(q, k, v, dropout=0.5))
    assert torch.equal(ct.attention(q, k, v, dropout=0.5, seed=2**63 + 1), ct.attention(q, k, v, dropout=0.5, seed=2**63 + 1))


def test_no_growth():
    """1,000 steps of training keep nothing in Python: less than an object a step, without what Python has freed and keeps."""
    q = normal(1, 2, 9, 16)

    def steps(count):
        for _ in range(count):
            ct.attention(q, q, q, causal=True).sum().backward()
            ct.linear_attention(q, q, q, causal=True).sum().backward()
            q.grad = None

    steps(50)
    tracemalloc.start()
    try:
        steps(20)
        gc.collect()
        before = tracemalloc.take_snapshot()
        steps(1000)
        gc.collect()
        growth = sum(line.size_diff for line in tracemalloc.take_snapshot().compare_to(before, "filename")
                     if "tracemalloc" not in line.traceback[0].filename)
    finally:
        tracemalloc.stop()
    assert growth < 40_000


def test_threads():
    q = normal(1, 2, 7, 16, grad=False)
    expected, wrong = ct.attention(q, q, q), []

    def work():
        for _ in range(20):
            if not torch.equal(ct.attention(q, q, q), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("exception, words, call", [
    (TypeError, "torch.float64", lambda q: ct.attention(q.double(), q.double(), q.double())),
    (TypeError, "q: ndarray", lambda q: ct.attention(q.detach().numpy(), q, q)),
    (TypeError, "casual", lambda q: ct.attention(q, q, q, casual=True)),
    (TypeError, "prior: list", lambda q: ct.attention(q, q, q, prior=[1.0])),
    (ValueError, "v: shape", lambda q: ct.attention(q, q, q[:, :, :3])),
    (ValueError, "v: shape", lambda q: ct.attention(q, q, q[0, 0])),
    (ValueError, "k: shape", lambda q: ct.attention(q, q[0], q)),
    (ValueError, "q: shape", lambda q: ct.linear_attention(q[0, 0], q, q)),
    (ValueError, "mix: missing", lambda q: ct.attention(q, q, q, variant="hard-fish")),
    (ValueError, "linear", lambda q: ct.MultiheadAttention(16, 2, variant="linear")),
    (ValueError, "clmgk.attention", lambda q: ct.linear_attention(q, q, q, variant="mgk")),
    (ValueError, "clmgk.linear_attention", lambda q: ct.attention(q, q, q, variant="linear")),
    (TypeError, "casual", lambda q: ct.linear_attention(q, q, q, casual=True)),
    (ValueError, "projection", lambda q: ct.linear_attention(q, q, q, feature="favor")),
    (ValueError, "state_c: shape", lambda q: ct.linear_attention(q, q, q, state=ct.State(q, q))),
    (TypeError, "state_z: ndarray", lambda q: ct.linear_attention(q, q, q, state=ct.State(q, q.detach().numpy()))),
    (ValueError, "slopes", lambda q: ct.attention(q, q, q, slopes=torch.ones(2, requires_grad=True))),
    (ValueError, "embed_dim", lambda q: ct.MultiheadAttention(15, 2)),
    (RuntimeError, "attn_mask", lambda q: ct.scaled_dot_product_attention(q, q, q, q[..., :7], is_causal=True)),
])
def test_misuse(exception, words, call):
    with pytest.raises(exception) as caught:
        call(normal(1, 2, 7, 16))
    assert words in str(caught.value)


def test_devices_other_than_the_cpu():
    class Elsewhere(torch.Tensor):
        device = torch.device("cuda:0")
        is_cpu = False

    q = torch.ones(1, 2, 7, 16)
    with pytest.raises(RuntimeError, match=r"q: a tensor on cuda:0.*\.cpu\(\)"):
        ct.attention(q.as_subclass(Elsewhere), q, q)


# ---- scaled_dot_product_attention


SHAPES = [((2, 4, 7, 16), (2, 4, 9, 16)), ((3, 7, 16), (3, 9, 16)), ((7, 16), (9, 16)), ((2, 3, 4, 7, 16), (2, 3, 4, 9, 16)),
          ((2, 4, 7, 16), (1, 1, 9, 16))]


@pytest.mark.parametrize("queries, keys", SHAPES)
@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "float", "scale", "negative"])
def test_scaled_dot_product_attention(queries, keys, kind):
    q, k, v = normal(*queries), normal(*keys), normal(*keys)
    mask = normal(7, 9)
    options = {"plain": {}, "causal": {"is_causal": True}, "bool": {"attn_mask": torch.rand(7, 9) > 0.3},
               "float": {"attn_mask": mask}, "scale": {"scale": 0.3}, "negative": {"scale": -0.3}}[kind]
    inputs = [q, k, v] + ([mask] if kind == "float" else [])
    actual, expected = (f(q, k, v, **options) for f in (ct.scaled_dot_product_attention, F.scaled_dot_product_attention))
    close(actual, expected)
    weight = torch.randn_like(expected)
    for a, e in zip(*(torch.autograd.grad(o, inputs, weight) for o in (actual, expected))):
        close(a, e, 2e-4)


def test_grouped_queries():
    q, k, v = normal(2, 4, 7, 16), normal(2, 2, 9, 16), normal(2, 2, 9, 16)
    close(*(f(q, k, v, enable_gqa=True) for f in (ct.scaled_dot_product_attention, F.scaled_dot_product_attention)))


# ---- MultiheadAttention


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bias": False}, {"kdim": 24, "vdim": 20}])
@pytest.mark.parametrize("masks", ["none", "padding", "attention", "heads", "both", "causal"])
def test_module_is_a_replacement(options, masks):
    theirs = torch.nn.MultiheadAttention(32, 4, **options)
    ours = ct.MultiheadAttention(32, 4, **options)
    ours.load_state_dict(theirs.state_dict())
    shape = (2, 7) if options.get("batch_first") else (7, 2)
    x = normal(*shape, 32)
    key, value = (normal(*shape, options["kdim"]), normal(*shape, options["vdim"])) if "kdim" in options else (x, x)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
    given = {"none": {}, "padding": {"key_padding_mask": padding}, "attention": {"attn_mask": causal},
             "heads": {"attn_mask": torch.randn(8, 7, 7)}, "causal": {"attn_mask": causal, "is_causal": True},
             "both": {"key_padding_mask": padding, "attn_mask": causal}}[masks]
    (actual, no_weights), (expected, weights) = (m(x, key, value, **given) for m in (ours, theirs))
    close(actual, expected)
    assert no_weights is None
    close(ours(x, key, value, need_weights=True, **given)[1], weights)
    actual.sum().backward()
    expected.sum().backward()
    for (name, a), e in zip(ours.named_parameters(), theirs.parameters()):
        close(a.grad, e.grad, 2e-4)


def test_module_without_a_batch():
    theirs, ours = torch.nn.MultiheadAttention(32, 4), ct.MultiheadAttention(32, 4)
    ours.load_state_dict(theirs.state_dict())
    x = normal(7, 32)
    close(ours(x, x, x)[0], theirs(x, x, x)[0])


@pytest.mark.parametrize("variant", ["gaussian", "mgk", "smgk", "fish", "hard-mish", "hard-gfish", "talking-heads"])
def test_modules_of_variants(variant):
    """Every parameter gets a gradient; a state_dict of PyTorch's module loads where its shapes fit."""
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant=variant)
    module.load_state_dict(torch.nn.MultiheadAttention(32, 4).state_dict())
    x = normal(2, 7, 32)
    module(x, x, x, is_causal=True)[0].square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        # c is the same for all keys of a row; of a key's bias only a part changes softmax's weights
        assert name == "mix_offset" or parameter.grad.abs().max() > 0, name
    again = ct.MultiheadAttention(32, 4, batch_first=True, variant=variant)
    again.load_state_dict(module.state_dict())
    if variant != "fish":
        close(again(x, x, x)[0], module(x, x, x)[0], 0)


def test_initial_values():
    """As in the papers: priors 1/M, shifts and mixing normal; a w of 1 and a c of 0 leave the mixing as it is."""
    def parameters(variant):
        return dict(ct.MultiheadAttention(256, 8, variant=variant, components=4).named_parameters())

    for variant in ("mgk", "smgk"):
        assert torch.equal(parameters(variant)["prior"], torch.full((8, 4), 0.25))
    shift = parameters("smgk")["shift"]
    assert shift.shape == (8, 4, 32) and abs(shift.mean()) < 0.15 and abs(shift.std() - 1) < 0.1
    found = parameters("gfish")
    assert (found["mix_weight"] == 1).all() and (found["mix_offset"] == 0).all() and (found["noise"] > 0).all()
    assert found["mix"].shape == (8, 4) and 0.2 < found["mix"].std() < 0.8
    assert parameters("mish")["mix"].shape == (4,)


def test_prior_below_zero():
    """An optimiser's step below 0 counts as 0."""
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant="mgk")
    x, results = normal(2, 7, 32, grad=False), []
    for value in (-0.1, 0.0):
        with torch.no_grad():
            module.prior[:, 0] = value
        results.append(module(x, x, x)[0])
    assert results[0].isfinite().all()
    close(*results, 0)


def test_update_of_the_prior():
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant="mgk")
    x = normal(2, 7, 32, grad=False)

    def nll():
        q, k, _ = module._project((x, x, x))
        found = clmgk.statistics(q.detach().contiguous().numpy(), k.detach().numpy(), variant="mgk",
                                 prior=module.prior.detach().numpy(), statistics=["nll"])
        return float(found["nll"].mean())

    before = nll()
    module.update_prior(x, x)
    np.testing.assert_allclose(module.prior.detach().sum(-1), 1, rtol=1e-5)
    assert nll() < before
    with pytest.raises(RuntimeError, match="prior"):
        ct.MultiheadAttention(32, 4).update_prior(x, x)


def test_in_an_encoder_layer():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = normal(2, 7, 32, grad=False)
    expected = layer.train()(x)
    ours = ct.MultiheadAttention(32, 4, batch_first=True)
    ours.load_state_dict(layer.self_attn.state_dict())
    layer.self_attn = ours
    close(layer.train()(x), expected)
    with torch.no_grad():
        close(layer.eval()(x), expected)
