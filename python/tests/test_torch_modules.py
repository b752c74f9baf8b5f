# SPDX-License-Identifier: Apache-2.0
"""The module MultiheadAttention: PyTorch's results, parameters, masks and manners, and the variants."""
import copy
import itertools
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import clmgk  # noqa: E402
import clmgk.torch as ct  # noqa: E402
import formulas  # noqa: E402
from tensors import close, normal  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


# ---- beside PyTorch's module


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bias": False}, {"kdim": 24, "vdim": 20},
                                     {"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}])
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
    of_heads = dict(need_weights=True, average_attn_weights=False, **given)
    close(*(m(x, key, value, **of_heads)[1] for m in (ours, theirs)))
    actual.sum().backward()
    expected.sum().backward()
    for (name, a), e in zip(ours.named_parameters(), theirs.parameters()):
        close(a.grad, e.grad, 2e-4)


def test_padding_by_a_huge_number():
    """A sequence that is padding alone gets the gradients of PyTorch's formula."""
    theirs, ours = (m(32, 4, batch_first=True) for m in (torch.nn.MultiheadAttention, ct.MultiheadAttention))
    ours.load_state_dict(theirs.state_dict())
    x, padding = normal(2, 16, 32), torch.zeros(2, 16)
    padding[1] = -1e9
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        outputs = [m(x, x, x, key_padding_mask=padding)[0] for m in (ours, theirs)]
    for a, e in zip(*(torch.autograd.grad(o.square().sum(), list(m.parameters())) for o, m in zip(outputs, (ours, theirs)))):
        close(a, e, 2e-4)


@pytest.mark.parametrize("variant", ["mgk", "smgk", "hard-fish"])
def test_added_keys_of_variants(variant):
    """As if the keys were inputs whose projections are these keys; none is hidden by is_causal."""
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant=variant, components=2, add_bias_kv=True, add_zero_attn=True)
    x = normal(2, 5, 32)
    q, k, v = module._project((x, x, x))
    of_keys = module.bias_k.unflatten(-1, (-1, 8)).transpose(1, 2)
    of_keys = of_keys.unsqueeze(2) if variant == "mgk" else of_keys
    keys = torch.cat((k, of_keys.expand(*k.shape[:-2], 1, 8), torch.zeros_like(k[..., :1, :])), -2)
    values = torch.cat((v, module.bias_v.unflatten(-1, (4, 8)).transpose(1, 2).expand(2, 4, 1, 8), torch.zeros_like(v[..., :1, :])), -2)
    visible = torch.cat((torch.ones(5, 5).tril(), torch.ones(5, 2)), -1) > 0
    expected = ct.attention(q, keys, values, bias=visible, **module._parameters_of_call())
    close(module(x, x, x, is_causal=True)[0], module.out_proj(expected.transpose(1, 2).flatten(2)))
    if variant != "hard-fish":
        module.update_prior(x, x, is_causal=True)
        close(module.prior.sum(-1), torch.ones(4))


def test_module_without_a_batch():
    theirs, ours = torch.nn.MultiheadAttention(32, 4), ct.MultiheadAttention(32, 4)
    ours.load_state_dict(theirs.state_dict())
    x = normal(7, 32)
    for masks in ({}, {"key_padding_mask": torch.arange(7) > 4}, {"attn_mask": torch.randn(7, 7)},
                  {"attn_mask": torch.randn(4, 7, 7)}):
        (actual, of_ours), (expected, weights) = (m(x, x, x, need_weights=True, **masks) for m in (ours, theirs))
        close(actual, expected)
        close(of_ours, weights)


@pytest.mark.parametrize("causal", [False, True])
def test_weights_of_rows_without_keys(causal):
    """They are 0, and gradients of other rows' weights stay finite."""
    module = ct.MultiheadAttention(32, 4, batch_first=True)
    x, hidden = normal(2, 7, 32), torch.zeros(8, 7, 7, dtype=torch.bool)
    hidden[4:, 3] = True
    padding = torch.tensor([[0], [1]]).expand(2, 7) > 0 if causal else None
    mask = {"is_causal": True, "key_padding_mask": padding} if causal else {"attn_mask": hidden}
    y, weights = module(x, x, x, need_weights=True, **mask)
    rows = slice(0, 7) if causal else slice(3, 4)
    assert (weights[1, rows] == 0).all() and weights.isfinite().all()
    (y.square().sum() + weights[0].square().sum()).backward()
    assert x.grad.isfinite().all() and module.in_proj_weight.grad.isfinite().all()


def test_weights_lack_dropout():
    """In training the output has dropout, the weights have none."""
    module, x = ct.MultiheadAttention(32, 4, dropout=0.5), normal(7, 2, 32)
    (dropped, weights), (whole, expected) = (m(x, x, x, need_weights=True) for m in (module.train(), copy.deepcopy(module).eval()))
    assert torch.equal(weights, expected) and not torch.allclose(dropped, whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_module_of_16_bits(dtype):
    theirs, ours = torch.nn.MultiheadAttention(32, 4, dtype=dtype), ct.MultiheadAttention(32, 4, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    x = normal(7, 2, 32).to(dtype)
    for actual, expected in zip(*(m(x, x, x, need_weights=True) for m in (ours, theirs))):
        assert actual.dtype == dtype
        close(actual, expected, 2e-2)


def call(change=None, **options):
    x = {name: torch.ones(7, 2, 32) for name in ("query", "key", "value")} | (change or {})
    module = ct.MultiheadAttention(32, 4, **{name: options.pop(name) for name in ("variant",) if name in options})
    return module(**x, **options)


def first(change, **options):
    """A call with batch_first."""
    x = {name: torch.ones(2, 7, 32) for name in ("query", "key", "value")} | change
    return make(batch_first=True)(**x, **options)


def nested(*lengths, **options):
    return torch.nested.nested_tensor([torch.randn(n, 32) for n in lengths], **options)


def make(**options):
    return ct.MultiheadAttention(32, 4, **options)


@pytest.mark.parametrize("exception, words, function", [
    (ValueError, "query: shape (7, 2, 31): expected [L,N,32]", lambda: call({"query": torch.ones(7, 2, 31)})),
    (ValueError, "key: shape (7, 32): expected [L,N,32]", lambda: call({"key": torch.ones(7, 32)})),
    (ValueError, "key: shape (7, 3, 32): expected the query's batch, 2",
     lambda: call({n: torch.ones(7, 3, 32) for n in ("key", "value")})),
    (ValueError, "value: shape (8, 2, 32): expected (7, 2)", lambda: call({"value": torch.ones(8, 2, 32)})),
    (TypeError, "query: ndarray", lambda: call({"query": np.ones((7, 2, 32))})),
    (TypeError, "key: a nested tensor", lambda: call({"key": nested(3, 4)})),
    (ValueError, "query: a nested tensor: expected batch_first", lambda: call({"query": nested(3, 4)})),
    (TypeError, "key: beside a nested query", lambda: first({"query": nested(3, 4)})),
    (TypeError, "query: beside a nested query: expected nested tensors of layout torch.strided",
     lambda: first(dict.fromkeys(("query", "key", "value"), nested(3, 4, layout=torch.jagged)))),
    (ValueError, "no key_padding_mask", lambda: first(dict.fromkeys(("query", "key", "value"), nested(3, 4)),
                                                     key_padding_mask=torch.ones(2, 4) > 0)),
    (ValueError, "value: lengths [4, 3]: expected [3, 4]", lambda: first({"query": nested(3, 4), "key": nested(3, 4),
                                                                          "value": nested(4, 3)})),
    (ValueError, "key_padding_mask: shape (7,): expected (2, 7)", lambda: call(key_padding_mask=torch.ones(7) > 0)),
    (ValueError, "key_padding_mask: shape (1, 7)", lambda: call(key_padding_mask=torch.ones(1, 7) > 0)),
    (ValueError, "attn_mask: shape (2, 7, 7): expected (7, 7) or (8, 7, 7)", lambda: call(attn_mask=torch.ones(2, 7, 7))),
    (TypeError, "attn_mask: a tensor of torch.int64", lambda: call(attn_mask=torch.ones(7, 7).long())),
    (TypeError, "attn_mask: list", lambda: call(attn_mask=[[0.0] * 7] * 7)),
    (NotImplementedError, "need_weights", lambda: call(variant="mgk", need_weights=True)),
    (NotImplementedError, "need_weights", lambda: call(variant="mlk", need_weights=True)),
    (ValueError, "attn_mask: given, but variant 'mlk' takes is_causal", lambda: call(variant="mlk", attn_mask=torch.ones(7, 7))),
    (ValueError, "hides a key before",
     lambda: call(variant="mlk", key_padding_mask=torch.tensor([[1, 0, 0, 0, 0, 0, 0]] * 2) > 0)),
    (ValueError, "0 and -inf alone", lambda: call(variant="mlk", key_padding_mask=torch.ones(2, 7))),
    (ValueError, "embed_dim", lambda: ct.MultiheadAttention(15, 2)),
    (ValueError, "embed_dim", lambda: ct.MultiheadAttention(16, -2)),
    (NotImplementedError, "add_zero_attn are not offered with variant 'linear'", lambda: make(add_bias_kv=True, variant="linear")),
    (NotImplementedError, "add_zero_attn are not offered with variant 'mlk'", lambda: make(add_zero_attn=True, variant="mlk")),
    (ValueError, "dropout: 1.5", lambda: make(dropout=1.5)),
    (ValueError, "dropout: 0.1: expected 0 with variant 'linear'", lambda: make(variant="linear", dropout=0.1)),
    (ValueError, "variant", lambda: make(variant="none")),
    (ValueError, "components: 0", lambda: make(variant="mgk", components=0)),
    (ValueError, "components: 3: expected 1 with variant softmax", lambda: make(components=3)),
    (ValueError, "score", lambda: make(score="gaussian")),
    (ValueError, "softcap", lambda: make(variant="mgk", softcap=2.0)),
    (ValueError, "softcap", lambda: make(variant="mlk", softcap=2.0)),
    (ValueError, "estep", lambda: make(variant="mlk", estep="hard")),
    (ValueError, "feature", lambda: make(feature="exp")),
    (ValueError, "feature_order", lambda: make(variant="mlk", feature="dpfp", feature_order=9)),
    (ValueError, "head_size: 600", lambda: ct.MultiheadAttention(600, 1)),
    (RuntimeError, "no prior", lambda: make().update_prior(torch.ones(7, 2, 32), torch.ones(7, 2, 32))),
    (NotImplementedError, "no EM update", lambda: make(variant="mlk").update_prior(torch.ones(7, 2, 32), torch.ones(7, 2, 32))),
])
def test_misuse(exception, words, function):
    with pytest.raises(exception) as caught:
        function()
    assert words in str(caught.value)


# ---- linear variants


def features(x, feature):
    return x.exp() if feature == "exp" else torch.relu(x) if feature == "relu" else torch.where(x > 0, x + 1, x.exp())


def linear_formula(module, x, feature, causal, padding):
    """The module's output, weights and all, from its own projections."""
    q, k, v = module._project((x, x, x))
    keys = k if module.variant == "mlk" else k[:, :, None]
    if module.shift is not None:
        keys = keys + module.shift[None, :, :, None]
    prior = torch.ones(4, 1) if module.prior is None else module.prior
    mixed = (features(keys, feature) * prior[None, :, :, None, None]).sum(2)
    weights = (features(q, feature) @ mixed.transpose(-1, -2)).masked_fill(padding[:, None, None], 0)
    weights = weights.tril() if causal else weights
    o = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) @ v
    return module.out_proj(o.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("variant, feature", [("linear", None), ("mlk", "exp"), ("smlk", "relu")])
def test_linear_modules(variant, feature):
    """Masks, gradients of all parameters, and the state of PyTorch's module."""
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant=variant, feature=feature)
    module.load_state_dict(torch.nn.MultiheadAttention(32, 4).state_dict())
    x, padding = normal(2, 9, 32), torch.arange(9) >= torch.tensor([[9], [6]])
    for causal, given in itertools.product((False, True), (padding, torch.zeros(2, 9).masked_fill(padding, -torch.inf), None)):
        actual, weights = module(x, x, x, key_padding_mask=given, is_causal=causal)
        expected = linear_formula(module, x, feature, causal, padding & (given is not None))
        assert weights is None
        close(actual, expected, 2e-4)
    inputs = [x, *module.parameters()]
    for a, e in zip(*(torch.autograd.grad(o.square().sum(), inputs) for o in (actual, expected))):
        close(a, e, 1e-3)


def test_favor():
    """The projection is a buffer: it comes with the state, and is drawn anew with the initial values."""
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant="mlk", feature="favor", features=12)
    x = normal(2, 9, 32)
    assert module(x, x, x)[0].isfinite().all() and module.projection.shape == (12, 8)
    again = ct.MultiheadAttention(32, 4, batch_first=True, variant="mlk", feature="favor", features=12)
    assert not torch.equal(again.projection, module.projection)
    again.load_state_dict(module.state_dict())
    close(again(x, x, x)[0], module(x, x, x)[0], 0)
    with torch.device("meta"):
        empty = ct.MultiheadAttention(32, 4, batch_first=True, variant="mlk", feature="favor", features=12)
    assert empty.projection.is_meta and not empty.to_empty(device="cpu").projection.is_meta
    empty.reset_parameters()
    assert empty(x, x, x)[0].isfinite().all()


# ---- variants




def test_mixing_after_the_softmax():
    """Every parameter gets a gradient; masks of heads have those before the mixing."""
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant="hard-fish", components=2, mix_after=3)
    assert "mix_after=3" in repr(module) and (module.mix.shape, module.mix_after.shape) == ((3, 2), (4, 3))
    x = normal(2, 7, 32)
    module(x, x, x, attn_mask=normal(6, 7, 7))[0].square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in module.parameters())
    q, k, v = module._project((x, x, x))
    o = formulas.attention(q, k, v, variant="hard-fish", mix=module.mix, mix_after=module.mix_after)[0]
    close(module(x, x, x)[0], module.out_proj(o.transpose(1, 2).flatten(2)))
    with pytest.raises(ValueError, match="mix_after_heads: 3: expected 0 with variant softmax"):
        ct.MultiheadAttention(32, 4, mix_after=3)


@pytest.mark.parametrize("variant", ["gaussian", "mgk", "smgk", "fish", "hard-mish", "hard-gfish", "talking-heads", "lgfish"])
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
    for other in (again, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.manual_seed(1)
        expected = module(x, x, x)[0]
        torch.manual_seed(1)
        close(other(x, x, x)[0], expected, 0)


def test_a_hidden_layer():
    """Every parameter gets a gradient; heads begin differently; copies have the layer, too."""
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant="hard-gfish", components=2, mix_hidden=6)
    assert "mix_hidden=6" in repr(module)
    assert (module.mix.shape, module.mix_weight.shape, module.mix_hidden_offset.shape) == ((6, 2), (4, 6), (6,))
    assert module.mix_weight.std() > 0.1 and (module.mix_hidden_offset == 0).all()
    x = normal(2, 7, 32)
    out = module(x, x, x, is_causal=True)[0]
    out.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert name == "mix_offset" or parameter.grad.abs().max() > 0, name
    close(copy.deepcopy(module)(x, x, x, is_causal=True)[0], out, 0)
    with pytest.raises(ValueError, match="mix_hidden: 6: expected 0 with variant lgfish"):
        ct.MultiheadAttention(32, 4, variant="lgfish", mix_hidden=6)


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
    for variant, shape in (("lhard-fish", (8, 4)), ("lgfish", (8, 4)), ("lmish", (4,))):
        mix = parameters(variant)["mix"]
        assert mix.shape == shape and (mix > 0).all() and mix.std() > 0.03
        close(mix.sum(-1), torch.ones(shape[:-1]))


def test_repr():
    """Sizes, the variant, and options that are not the default."""
    for options, words in (({}, "variant='softmax'"),
                           ({"variant": "mgk", "dropout": 0.1, "batch_first": True, "score": "dot"},
                            "variant='mgk', score='dot', components=2, dropout=0.1, batch_first=True"),
                           ({"add_bias_kv": True}, "variant='softmax', add_bias_kv=True"),
                           ({"variant": "mlk", "feature": "exp"}, "variant='mlk', feature='exp', components=2"),
                           ({"variant": "linear", "unnormalised": True}, "variant='linear', unnormalised=True")):
        assert str(make(**options)).splitlines()[1] == f"  32, 4, {words}"


@pytest.mark.parametrize("variant", ["lfish", "lhard-fish", "lmish", "lhard-mish", "lgfish", "lhard-gfish"])
def test_linear_modules_begin_far_from_zeros(variant):
    """Heads are means of values, whatever the seed: no denominator is near 0."""
    for number in range(10):
        torch.manual_seed(number)
        module = ct.MultiheadAttention(32, 4, batch_first=True, variant=variant)
        x = normal(4, 50, 32)
        values = module._project((x, x, x))[2]
        module.out_proj = torch.nn.Identity()
        heads = module(x, x, x, is_causal=True)[0]
        assert heads.abs().max() < 2 * values.abs().max()
        heads.square().mean().backward()
        assert module.in_proj_weight.grad.norm() < 1


def test_modules_without_denominators():
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant="linear", feature="relu", unnormalised=True)
    x = normal(2, 7, 32)
    q, k, v = (torch.relu(t) if n < 2 else t for n, t in enumerate(module._project((x, x, x))))
    heads = (q @ k.transpose(-1, -2)).tril() @ v
    expected = module.out_proj(heads.transpose(1, 2).flatten(2))
    given = module(x, x, x, is_causal=True)[0]
    close(given, expected, 1e-4)
    for a, e in zip(*(torch.autograd.grad(o.square().sum(), [x, *module.parameters()]) for o in (given, expected))):
        close(a, e, 1e-3)
    with pytest.raises(ValueError, match="unnormalised"):
        ct.MultiheadAttention(32, 4, unnormalised=True)


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


def test_compiled_modules():
    """One graph serves all lengths."""
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant="mgk")
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (5, 7):
        x = normal(2, n, 32)
        close(compiled(x, x, x, is_causal=True)[0], module(x, x, x, is_causal=True)[0], 1e-6)


class OfOneInput(torch.nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, x, x, is_causal=True)[0]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
def test_traced_modules(tmp_path):
    """A graph of torch.jit.trace serves all lengths, also from a file."""
    module = OfOneInput(ct.MultiheadAttention(32, 4, batch_first=True, variant="mgk"))
    with torch.no_grad():
        torch.jit.trace(module, normal(1, 5, 32)).save(tmp_path / "graph.pt")
        x = normal(2, 7, 32)
        close(torch.jit.load(tmp_path / "graph.pt")(x), module(x), 1e-6)
    with pytest.raises(RuntimeError, match="torch.no_grad"):
        torch.jit.trace(module, normal(1, 5, 32))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("trace", [torch.jit.trace, torch.export.export])
def test_export_to_onnx(monkeypatch, trace):
    """Both exporters of torch.onnx, which begin with a graph, name another way."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(NotImplementedError, match="torch.onnx.export: .* torch.nn.MultiheadAttention"):
        trace(OfOneInput(ct.MultiheadAttention(32, 4, batch_first=True)), (normal(1, 5, 32),))


def test_export_from_pytorchs_module():
    """Weights of softmax go back to PyTorch's module, which exporters know."""
    ours, theirs = ct.MultiheadAttention(32, 4, batch_first=True), torch.nn.MultiheadAttention(32, 4, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x = normal(2, 7, 32)
    close(theirs(x, x, x, need_weights=False)[0], ours(x, x, x)[0])


def test_autocast_and_frozen_parameters():
    module = ct.MultiheadAttention(32, 4, batch_first=True, variant="mgk")
    module.prior.requires_grad_(False)
    x = normal(2, 7, 32)
    expected = module(x, x, x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        actual = module(x, x, x)[0]
    assert actual.dtype == torch.bfloat16
    close(actual, expected, 5e-2)
    actual.float().sum().backward()
    assert module.prior.grad is None and module.in_proj_weight.grad.dtype == torch.float32


@pytest.mark.parametrize("variant", ["mgk", "linear"])
def test_in_encoders_and_decoders(variant):
    """PyTorch's layers give padding as 0 and -inf, and a mask beside is_causal; a linear variant takes both."""
    x, causal = normal(2, 7, 32), torch.nn.Transformer.generate_square_subsequent_mask(7)
    padding = torch.arange(7) >= torch.tensor([[7], [5]])
    encoder = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder.self_attn = ct.MultiheadAttention(32, 4, batch_first=True, variant=variant)
    stack = torch.nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
    decoder = torch.nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    decoder.self_attn, decoder.multihead_attn = (ct.MultiheadAttention(32, 4, batch_first=True, variant=variant)
                                                 for _ in range(2))
    memory = stack(x, mask=causal, is_causal=True, src_key_padding_mask=padding)
    assert decoder(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding).isfinite().all()
    with torch.no_grad():
        close(stack.eval()(x, mask=causal, is_causal=True, src_key_padding_mask=padding), memory)


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


@pytest.mark.parametrize("variant", ["softmax", "linear"])
def test_in_an_encoder_that_nests(variant):
    """Where the module is put into an encoder, PyTorch still makes nested tensors of padded input in eval mode."""
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2)
    for layer in encoder.layers:
        layer.self_attn = ct.MultiheadAttention(32, 4, batch_first=True, variant=variant)
    x, padding = normal(2, 7, 32, grad=False), torch.arange(7) >= torch.tensor([[7], [4]])
    expected = encoder.train()(x, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)
    with torch.no_grad():
        close(encoder.eval()(x, src_key_padding_mask=padding), expected)


def test_nested_queries_and_keys():
    """Each sequence alone gives the same output and gradients; queries may have other lengths than keys."""
    module = make(batch_first=True)
    x, y = nested(3, 7, requires_grad=True), nested(5, 2)
    o, weights = module(x, y, y, need_weights=True)
    for i, (rows, a, b) in enumerate(zip(o.unbind(), x.unbind(), y.unbind())):
        expected, own = module(a, b, b, need_weights=True)
        close(rows, expected)
        close(weights[i, :len(a), :len(b)], own)
    gradients = [torch.autograd.grad(sum(part.square().sum() for part in parts), module.in_proj_weight)[0]
                 for parts in (module(x, y, y)[0].unbind(), [module(a, b, b)[0] for a, b in zip(x.unbind(), y.unbind())])]
    close(*gradients, 2e-4)


def test_is_an_instance_of_pytorchs_class():
    """Code that looks for PyTorch's modules finds it, with all their attributes and its own parameters."""
    theirs, ours = torch.nn.MultiheadAttention(32, 4), make(variant="mgk")
    assert isinstance(ours, torch.nn.MultiheadAttention) and set(vars(theirs)) <= set(vars(ours))
    assert set(dict(theirs.named_parameters())) <= set(dict(ours.named_parameters()))
    assert not copy.deepcopy(ours)._qkv_same_embed_dim
    before = ours.shift, ours.key_weight.clone()
    ours._reset_parameters()
    assert not torch.equal(before[1], ours.key_weight)


# ---- scores and masks as text


def test_module_with_texts():
    """A learned relative bias and a learned number as parameters, documents as an argument of the call; against the formula."""
    table, number, length = torch.nn.Parameter(torch.randn(4, 9)), torch.nn.Parameter(torch.tensor(1.5)), 7
    ours = ct.MultiheadAttention(32, 4, batch_first=True, score_mod="c * s + t[h, clamp(i - j, -4, 4) + 4]",
                                 mask_mod="doc[b, i] == doc[b, j]", captures={"t": table}, numbers={"c": number})
    assert {"capture_t", "number_c"} < dict(ours.named_parameters()).keys() and "score_mod='c * s" in repr(ours)
    ours = pickle.loads(pickle.dumps(copy.deepcopy(ours)))
    x, documents = normal(2, length, 32), torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1]])
    q, k, v = ours._project((x, x, x))
    i, j = torch.arange(length)[:, None], torch.arange(length)
    bias = ours.capture_t[:, torch.clamp(i - j, -4, 4) + 4]
    scores = (ours.number_c * (q @ k.mT) * 8 ** -0.5 + bias).masked_fill((documents[:, :, None] != documents[:, None])[:, None], -torch.inf)
    expected = ours.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    actual, _ = ours(x, x, x, captures={"doc": documents})
    close(actual, expected)
    inputs = [x, *ours.parameters()]
    for own, other in zip(*(torch.autograd.grad(y.square().sum(), inputs) for y in (actual, expected))):
        close(own, other, 2e-4)
    # PyTorch's state_dict loads, and what it lacks keeps its value
    ours.load_state_dict(torch.nn.MultiheadAttention(32, 4).state_dict())
    assert torch.equal(ours.capture_t, table) and ours.number_c == 1.5
    changed = ours(x, x, x, captures={"doc": 0 * documents}, numbers={"c": 0.0})[0]
    assert not torch.allclose(changed, ours(x, x, x, captures={"doc": documents})[0])


def test_module_with_constant_texts():
    """Buffers and numbers; a prior learns by EM from what the mask shows."""
    ours = ct.MultiheadAttention(32, 4, batch_first=True, variant="mgk", mask_mod="doc[j] >= least",
                                 captures={"doc": torch.tensor([0, 0, 0, 1, 1])}, numbers={"least": 1})
    assert "capture_doc" in ours.state_dict() and not ours.capture_doc.is_floating_point()
    plain = ct.MultiheadAttention(32, 4, batch_first=True, variant="mgk")
    plain.load_state_dict({name: value for name, value in ours.state_dict().items() if name != "capture_doc"})
    x, padding = normal(2, 5, 32), (torch.arange(5) < 3).expand(2, 5)
    close(ours(x, x, x)[0], plain(x, x, x, key_padding_mask=padding)[0])
    ours.update_prior(x, x)
    plain.update_prior(x, x, key_padding_mask=padding)
    close(ours.prior, plain.prior)


@pytest.mark.parametrize("error, words, options", [
    (ValueError, "mask_mod: given, but variant 'linear' has no scores", {"variant": "linear", "mask_mod": "j < 3"}),
    (NotImplementedError, "not offered with score_mod", {"score_mod": "s", "add_zero_attn": True}),
    (TypeError, "score_mod: int: expected a text", {"score_mod": 1}),
    (TypeError, r"captures\['t'\]: list: expected a tensor", {"score_mod": "s", "captures": {"t": [1.0]}}),
    (TypeError, "numbers: list: expected a dict", {"score_mod": "s", "numbers": ["c"]})])
def test_misuse_of_texts(error, words, options):
    with pytest.raises(error, match=words):
        ct.MultiheadAttention(32, 4, **options)


def test_misuse_of_texts_in_a_call():
    module, x = ct.MultiheadAttention(32, 4, score_mod="s + t[h]"), normal(5, 2, 32)
    with pytest.raises(ValueError, match="score_mod: line 1, column 5: unknown"):
        module(x, x, x)
    with pytest.raises(NotImplementedError, match="need_weights: the weights of score_mod"):
        module(x, x, x, need_weights=True)
    with pytest.raises(ValueError, match="captures: expected none, or score_mod"):
        ct.MultiheadAttention(32, 4)(x, x, x, captures={"t": torch.ones(4)})
