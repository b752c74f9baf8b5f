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
from tensors import close, normal  # noqa: E402

F = torch.nn.functional


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
    "hidden": lambda: (normal(1, 2, 7, 16), normal(1, 2, 9, 16), normal(1, 4, 9, 16),
                       dict(mix=normal(5, 2), mix_weight=normal(4, 5), mix_offset=normal(4), mix_hidden_offset=normal(5))),
    "after": lambda: (normal(1, 2, 7, 16), normal(1, 2, 9, 16), normal(1, 2, 9, 16),
                      dict(mix=normal(3, 2), mix_after=normal(4, 3), sinks=normal(3), bias=normal(1, 3, 7, 9))),
}
FORMS = {"grouped": dict(variant="softmax"), "hidden": dict(variant="hard-gfish", mix_hidden=5),
         "after": dict(variant="hard-fish")}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients(name, causal):
    q, k, v, extras = PROBLEMS[name]()
    form = FORMS.get(name, {"variant": name})
    o, lse = ct.attention(q, k, v, causal=causal, return_lse=True, **form, **extras)
    inputs = {"q": q, "k": k, "v": v, **extras}
    exact = {n: t.detach().double().requires_grad_() for n, t in inputs.items()}
    expected = formulas.attention(**exact, **form, causal=causal)
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


HUGE = [-1e9, torch.finfo(torch.float32).min]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("attention", [ct.scaled_dot_product_attention, lambda q, k, v, mask: ct.attention(q, k, v, bias=mask)])
def test_rows_that_a_huge_number_masks(attention, value):
    """Gradients of the second sequence, which is padding: L alone does not determine its weights."""
    q, k, v = (normal(2, 2, 16, 8) for _ in range(3))
    mask = torch.zeros(2, 1, 1, 16)
    mask[1] = value
    mask.requires_grad_()
    actual = attention(q, k, v, mask)
    expected = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5 + mask, -1) @ v
    close(actual, expected)
    for a, e in zip(*(torch.autograd.grad(o.square().sum(), (q, k, v, mask)) for o in (actual, expected))):
        close(a[1], e[1])
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    close(*(torch.autograd.grad(f(q, k, v, mask).square().sum(), v)[0] for f in (compiled, attention)), 0)


@pytest.mark.parametrize("name", [*PROBLEMS, "talking-heads"])
def test_variants_of_rows_that_a_huge_number_masks(name):
    """The keys of such a row have equal weights."""
    if name == "talking-heads":
        q, k, v, extras = normal(1, 4, 7, 16), normal(1, 4, 9, 16), normal(1, 4, 9, 16), dict(mix=normal(4, 4))
    else:
        q, k, v, extras = PROBLEMS[name]()
    extras = {n: t for n, t in extras.items() if n != "sinks"} | {"bias": torch.full((1, 1, 7, 9), HUGE[1])}
    o = ct.attention(q, k, v, **FORMS.get(name, {"variant": name}), **extras)
    grad_o = torch.randn_like(o)
    weight = extras["mix_after"].sum(1)[:, None, None] if "mix_after" in extras else 1.0  # of all heads before the mixing
    of_heads = ((grad_o * weight).sum(2, keepdim=True) / 9).unflatten(1, (v.shape[1], -1)).sum(2)
    close(torch.autograd.grad(o, v, grad_o)[0], of_heads.expand_as(v))


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
    torch.library.opcheck(torch.ops.clmgk.attention.default, (q, k, v, "'causal': True", "q,k,v"))
    torch.library.opcheck(torch.ops.clmgk.attention_inference.default, [t.detach() for t in (q, k, v)] + ["'causal': True", ""])
    torch.library.opcheck(torch.ops.clmgk.linear_attention.default,
                          (q, k, v, "'causal': True, 'feature': 'exp', 'return_state': True", "q,k,v"))


@pytest.mark.parametrize("attention", [ct.attention, ct.linear_attention])
def test_compile(attention):
    q, k, v = (normal(1, 2, 7, 16) for _ in range(3))
    function = lambda q, k, v: attention(q * 2, k, v, causal=True).sin()  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    close(compiled(q, k, v), function(q, k, v), 0)
    for a, e in zip(*(torch.autograd.grad(f(q, k, v).sum(), (q, k, v)) for f in (compiled, function))):
        close(a, e, 1e-6)


@pytest.mark.parametrize("attention", [ct.attention, ct.scaled_dot_product_attention])
def test_compile_with_dynamic_shapes(attention):
    """One graph serves all lengths."""
    function = lambda q, k: attention(q * 2, k, k).sin()  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (7, 9):
        q, k = normal(1, 2, n, 16), normal(1, 2, n + 1, 16)
        close(compiled(q, k), function(q, k), 1e-6)
        for a, e in zip(*(torch.autograd.grad(f(q, k).sum(), (q, k)) for f in (compiled, function))):
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
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="float64"):  # autocast leaves it as it is
        ct.attention(*[q.double()] * 3)


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


def test_seed_on_another_default_device():
    """The seed is a number of the CPU: on "meta" it would be none."""
    q = normal(1, 2, 7, 16, grad=False)
    for call in (lambda: ct.attention(q, q, q, dropout=0.5, seed=3), lambda: ct.scaled_dot_product_attention(q, q, q, None, 0.5)):
        torch.manual_seed(1)
        expected = call()
        torch.manual_seed(1)
        with torch.device("meta"):
            assert torch.equal(call(), expected)


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
    (TypeError, "q: a tensor of torch.float64", lambda q: ct.attention(q.double(), q.double(), q.double())),
    (TypeError, "q: ndarray", lambda q: ct.attention(q.detach().numpy(), q, q)),
    (TypeError, "casual", lambda q: ct.attention(q, q, q, casual=True)),
    (TypeError, "prior: list", lambda q: ct.attention(q, q, q, prior=[1.0])),
    (ValueError, "v: shape", lambda q: ct.attention(q, q, q[:, :, :3])),
    (ValueError, "v: shape", lambda q: ct.attention(q, q, q[0, 0])),
    (ValueError, "k: shape", lambda q: ct.attention(q, q[0], q)),
    (ValueError, "q: shape", lambda q: ct.linear_attention(q[0, 0], q, q)),
    (ValueError, "mix: missing", lambda q: ct.attention(q, q, q, variant="hard-fish")),
    (TypeError, "q: a sparse tensor", lambda q: ct.attention(q.detach().to_sparse(), q, q)),
    (TypeError, "sinks: a tensor of torch.bool", lambda q: ct.attention(q, q, q, sinks=torch.ones(2, dtype=torch.bool))),
    (TypeError, "q: a tensor of torch.complex64: expected torch.float32, float16 or bfloat16$",
     lambda q: ct.attention(*[q.to(torch.complex64)] * 3)),
    (ValueError, "scale: given beside variance", lambda q: ct.attention(q, q, q, scale=0.5, variance=2.0)),
    (TypeError, "lengths: a tensor of torch.float32", lambda q: ct.attention(q, q, q, lengths=torch.tensor([3.7]))),
    (TypeError, "seed: 'now'", lambda q: ct.attention(q, q, q, dropout=0.5, seed="now")),
    (ValueError, "seed: -1", lambda q: ct.attention(q, q, q, dropout=0.5, seed=-1)),
    (ValueError, "seed: 18446744073709551616", lambda q: ct.attention(q, q, q, dropout=0.5, seed=2**64)),
    (ValueError, "softcap: nan", lambda q: ct.attention(q, q, q, softcap=float("nan"))),
    (TypeError, "dropout: list", lambda q: ct.attention(q, q, q, dropout=[0.5])),
    (ValueError, "variant: ", lambda q: ct.attention(q, q, q, variant="a;b=c'")),
    (ValueError, "variance: a tensor without axes",
     lambda q: ct.attention(q, q, q, variance=torch.tensor(1.0, requires_grad=True))),
    (TypeError, "state: int", lambda q: ct.linear_attention(q, q, q, state=3)),
    (ValueError, "clmgk.attention", lambda q: ct.linear_attention(q, q, q, variant="mgk")),
    (ValueError, "clmgk.linear_attention", lambda q: ct.attention(q, q, q, variant="linear")),
    (TypeError, "casual", lambda q: ct.linear_attention(q, q, q, casual=True)),
    (ValueError, "projection", lambda q: ct.linear_attention(q, q, q, feature="favor")),
    (ValueError, "state_c: shape", lambda q: ct.linear_attention(q, q, q, state=ct.State(q, q))),
    (TypeError, "state_z: ndarray", lambda q: ct.linear_attention(q, q, q, state=ct.State(q, q.detach().numpy()))),
    (ValueError, "slopes", lambda q: ct.attention(q, q, q, slopes=torch.ones(2, requires_grad=True))),
    (RuntimeError, "attn_mask", lambda q: ct.scaled_dot_product_attention(q, q, q, q[..., :7], is_causal=True)),
    (ValueError, "attn_mask: shape (7, 8)", lambda q: ct.scaled_dot_product_attention(q, q, q, torch.zeros(7, 8))),
    (ValueError, "attn_mask: shape (3, 1, 1, 7, 7)",
     lambda q: ct.scaled_dot_product_attention(q, q, q, torch.zeros(3, 1, 1, 7, 7))),
    (TypeError, "attn_mask: a tensor of torch.int64",
     lambda q: ct.scaled_dot_product_attention(q, q, q, torch.ones(7, 7).long())),
    (TypeError, "attn_mask: list", lambda q: ct.scaled_dot_product_attention(q, q, q, [[1.0]])),
    (TypeError, "query: list", lambda q: ct.scaled_dot_product_attention([1.0], q, q)),
    (TypeError, "value: a tensor of torch.float64", lambda q: ct.scaled_dot_product_attention(q, q, q.double())),
    (ValueError, "key: shape (1, 2, 7, 8): expected 16 on the last axis",
     lambda q: ct.scaled_dot_product_attention(q, q[..., :8], q)),
    (ValueError, "value: shape (1, 2, 5, 16): expected 7 on the last axis but one",
     lambda q: ct.scaled_dot_product_attention(q, q, q[:, :, :5])),
    (ValueError, "value: shape (1, 3, 7, 16): expected heads that divide query's, 2",
     lambda q: ct.scaled_dot_product_attention(q, q, normal(1, 3, 7, 16), enable_gqa=True)),
    (ValueError, "key: shape (1, 0, 7, 16): expected heads",
     lambda q: ct.scaled_dot_product_attention(q, q[:, :0], q[:, :0], enable_gqa=True)),
    (ValueError, "query, key, value: shapes", lambda q: ct.scaled_dot_product_attention(q, normal(1, 3, 7, 16), q)),
    (RuntimeError, "value: a tensor on meta", lambda q: ct.scaled_dot_product_attention(q, q, q.to("meta"))),
    (ValueError, "dropout_p: 1.0: expected 0 to below 1", lambda q: ct.scaled_dot_product_attention(q, q, q, None, 1.0)),
    (ValueError, "dropout_p: nan", lambda q: ct.scaled_dot_product_attention(q, q, q, None, float("nan"))),
    (TypeError, "dropout_p: list", lambda q: ct.scaled_dot_product_attention(q, q, q, None, [0.5])),
    (ValueError, "scale: 1e-40: expected a number", lambda q: ct.scaled_dot_product_attention(q, q, q, scale=1e-40)),
    (ValueError, "scale: inf: expected a finite", lambda q: ct.scaled_dot_product_attention(q, q, q, scale=float("inf"))),
    (TypeError, "scale: 'much'", lambda q: ct.scaled_dot_product_attention(q, q, q, scale="much")),
    (ValueError, "key: shape (7,)", lambda q: ct.scaled_dot_product_attention(q, q[0, 0, :, 0], q)),
    (ValueError, "query: shape (7, 16)", lambda q: ct.scaled_dot_product_attention(*[q[0, 0]] * 3, enable_gqa=True)),
])
def test_misuse(exception, words, call):
    with pytest.raises(exception) as caught:
        call(normal(1, 2, 7, 16))
    assert words in str(caught.value) + "$"  # "$": the message's end


def test_devices_other_than_the_cpu():
    class Elsewhere(torch.Tensor):
        device = torch.device("mps:0")
        is_cpu = False

    q = torch.ones(1, 2, 7, 16)
    with pytest.raises(RuntimeError, match=r"q: a tensor on mps:0.*\.cpu\(\)"):
        ct.attention(q.as_subclass(Elsewhere), q, q)


def test_tensors_on_several_devices():
    """Also after a call of the same shapes, and in the backward pass."""
    q = normal(1, 2, 7, 16)
    o, lse = ct.attention(q, q, q, return_lse=True)
    elsewhere = q.detach().to("meta")
    for name, call in (("k", lambda: ct.attention(q.detach(), elsewhere, q)), ("k", lambda: ct.attention(elsewhere, q, q)),
                       ("lengths", lambda: ct.attention(q, q, q, lengths=torch.ones(1, dtype=torch.int32, device="meta"))),
                       ("grad_o", lambda: torch.ops.clmgk.attention_backward(elsewhere, None, o, lse, None, q, q, q, "", "q"))):
        with pytest.raises(RuntimeError, match=f"{name}: a tensor on .*: expected all tensors of a call on one device"):
            call()


@pytest.mark.parametrize("attention", [ct.attention, ct.linear_attention])
def test_gradients_that_a_graph_lacks(attention):
    """An exported graph computes the gradients of the tensors that required one, and refuses others that do."""
    class Model(torch.nn.Module):
        def __init__(self, grad):
            super().__init__()
            self.k = torch.nn.Parameter(normal(1, 2, 7, 16), requires_grad=grad)

        def forward(self, q):
            return attention(q, self.k, self.k)

    q = normal(1, 2, 7, 16)
    for grad in (False, True):
        model = Model(grad)
        traced = torch.export.export(model, (q.detach(),)).module()
        with torch.no_grad():
            close(traced(q), model(q), 0)
        with pytest.raises(RuntimeError, match="q: requires a gradient"):
            traced(q)
    traced(q.detach()).square().sum().backward()
    model(q.detach()).square().sum().backward()
    close(traced.k.grad, model.k.grad, 0)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("attention", [ct.attention, ct.linear_attention, ct.scaled_dot_product_attention])
def test_vmap(attention):
    """It computes, and gives gradients of tensors outside it; others would be lost without a word, and are refused."""
    x, k = normal(3, 1, 2, 7, 16), normal(1, 2, 7, 16)
    function = lambda q: attention(q, k, k)  # noqa: E731
    for a, e in zip(*(torch.autograd.grad(f(x.detach()).square().sum(), k) for f in (
            torch.vmap(function), lambda x: torch.stack([function(q) for q in x])))):
        close(a, e)
    for f in (function, lambda q: attention(q, k.detach(), k.detach())):
        close(torch.no_grad()(torch.vmap(f))(x), torch.stack([f(q) for q in x]), 0)
        for refused in (torch.vmap(f), torch.compile(torch.vmap(f), backend="aot_eager")):
            with pytest.raises(RuntimeError, match="q: requires a gradient"):
                refused(x)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("attention", [ct.attention, ct.linear_attention])
def test_derivatives_of_torch_func_are_refused(attention):
    """Also where vmap hides the tensor that requires one. Other tensors of such a function compute."""
    x = normal(3, 1, 2, 7, 16, grad=False)
    one, all_ = (lambda q: attention(q, x[0], x[0]).sum()), (lambda y: torch.vmap(one)(y).sum())  # noqa: E731
    for function in (lambda: torch.func.grad(one)(x[0]), lambda: torch.func.jacrev(one)(x[0]),
                     lambda: torch.vmap(torch.func.grad(one))(x), lambda: torch.func.grad(all_)(x),
                     lambda: torch.func.vjp(all_, x)):
        with pytest.raises(RuntimeError, match="derivatives of torch.func|requires a gradient"):
            function()
    close(torch.func.grad(lambda factor: one(x[0]) * factor)(torch.tensor(1.0)), one(x[0]), 0)


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


@pytest.mark.parametrize("heads_k, heads_v", [(2, 2), (1, 1), (2, 4), (4, 2)])
def test_grouped_queries(heads_k, heads_v):
    q, k, v = normal(2, 4, 7, 16), normal(2, heads_k, 9, 16), normal(2, heads_v, 9, 16)
    actual, expected = (f(q, k, v, enable_gqa=True) for f in (ct.scaled_dot_product_attention, F.scaled_dot_product_attention))
    close(actual, expected)
    for a, e in zip(*(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (actual, expected))):
        close(a, e, 2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_of_16_bits(dtype):
    """Both signs of a scale give the same bits for keys of both signs: it is not rounded in the type of the queries."""
    q, k, v = (normal(1, 2, 9, 16, grad=False).to(dtype) for _ in range(3))
    q[0, 0, 0, 0] = 60000.0
    actual, expected = (ct.scaled_dot_product_attention(q, keys, v, scale=scale) for keys, scale in ((k, -1.3), (-k, 1.3)))
    close(actual, expected, 0)
    mean = v.float().mean(-2, keepdim=True).expand(v.shape)
    close(ct.scaled_dot_product_attention(q, k, v, scale=0).float(), mean, 1e-2)


@pytest.mark.parametrize("shape", [(), (9,), (7, 1), (1, 9), (4, 1, 9), (2, 1, 7, 9), (1, 4, 7, 1), (2, 4, 7, 9)])
def test_masks_broadcast(shape):
    q, k, v = normal(2, 4, 7, 16), normal(2, 4, 9, 16), normal(2, 4, 9, 16)
    visible, mask = torch.rand(shape) > 0.3, normal(*shape)
    full = visible.expand(2, 4, 7, 9)
    expected = F.scaled_dot_product_attention(q, k, v, full).masked_fill(~full.any(-1, keepdim=True), 0)
    close(ct.scaled_dot_product_attention(q, k, v, visible), expected)
    actual, expected = (f(q, k, v, m) for f, m in ((ct.scaled_dot_product_attention, mask),
                                                   (F.scaled_dot_product_attention, mask.expand(2, 4, 7, 9))))
    close(actual, expected)
    close(*(torch.autograd.grad(o.square().sum(), mask)[0] for o in (actual, expected)), 2e-4)


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most bytes of memory behind a tensor that an operation returns."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, (tuple, list)) else [results]:
            if isinstance(result, torch.Tensor):
                self.bytes = max(self.bytes, result.untyped_storage().nbytes())
        return results


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_expanded_masks(kind):
    """Axes that a mask repeats by strides of 0 count as axes of size 1: nothing is written out."""
    n, module = 65, ct.MultiheadAttention(16, 4, batch_first=True)
    q, five, x = normal(2, 4, n, 4, grad=False), normal(1, 2, 4, n, 4, grad=False), normal(2, n, 16, grad=False)
    one = torch.rand(n, n) > 0.3 if kind == "bool" else torch.randn(n, n)
    keys, full, all_ = one[0].expand(n, n), one.expand(2, 4, n, n), one.expand(1, 2, 4, n, n)
    as_numbers = torch.zeros(n, n).masked_fill(~one, -torch.inf) if kind == "bool" else one
    with torch.no_grad(), Largest() as largest:
        results = [(ct.scaled_dot_product_attention(q, q, q, full), ct.scaled_dot_product_attention(q, q, q, one)),
                   (ct.scaled_dot_product_attention(five, five, five, all_), ct.scaled_dot_product_attention(five, five, five, one)),
                   (ct.attention(q, q, q, bias=as_numbers.expand(2, 4, n, n)), ct.attention(q, q, q, bias=as_numbers)),
                   (module(x, x, x, attn_mask=one.expand(8, n, n))[0], module(x, x, x, attn_mask=one)[0]),
                   (module(x, x, x, key_padding_mask=one[0].expand(2, n))[0], module(x, x, x, attn_mask=keys)[0])]
    for actual, expected in results:
        close(actual, expected, 0)
    assert largest.bytes < 2 * 4 * n * n * 4


def test_gradients_of_expanded_masks():
    """Every element of a mask that repeats rows by strides of 0 has a gradient of its own."""
    q = normal(2, 4, 7, 4, grad=False)
    one = normal(7, 7)
    whole = one.expand(2, 4, 7, 7)
    whole.retain_grad()
    ct.scaled_dot_product_attention(q, q, q, whole).square().sum().backward()
    copied = one.detach().expand(2, 4, 7, 7).clone().requires_grad_()
    ct.scaled_dot_product_attention(q, q, q, copied).square().sum().backward()
    close(whole.grad, copied.grad, 0)
    close(one.grad, copied.grad.sum((0, 1)))


def test_numbers_of_other_types():
    """Options may be numbers of NumPy's and tensors without axes, as PyTorch's scale."""
    q = normal(1, 2, 7, 16)
    expected = ct.attention(q, q, q, variance=4.0, window_left=2)
    close(ct.attention(q, q, q, variance=torch.tensor(4.0), window_left=np.int64(2)), expected, 0)
    close(ct.scaled_dot_product_attention(q, q, q, scale=torch.tensor(0.25)), ct.attention(q, q, q, variance=4.0), 0)


def test_scales_and_masks_of_bool():
    q, visible = normal(1, 2, 7, 16), torch.rand(7, 7) > 0.3
    close(ct.attention(q, q, q, scale=0.5, bias=visible), F.scaled_dot_product_attention(q, q, q, visible, scale=0.5))
    mixed = dict(variant="hard-fish", mix=normal(2, 2))
    close(ct.attention(q, q, q, scale=16**-0.5, **mixed), ct.attention(q, q, q, **mixed), 0)


EMPTY = [((2, 3, 5, 0), (2, 3, 7, 0), 4, False), ((2, 3, 5, 4), (2, 3, 7, 4), 0, False), ((3, 5, 0), (3, 7, 0), 0, False),
         ((2, 0, 5, 4), (2, 0, 7, 4), 4, False), ((0, 5, 4), (0, 7, 4), 4, False), ((2, 0, 5, 4), (2, 1, 7, 4), 4, False),
         ((2, 0, 5, 4), (2, 0, 7, 4), 4, True), ((2, 0, 5, 4), (2, 3, 7, 4), 4, True), ((2, 3, 0, 4), (2, 3, 7, 4), 4, False),
         ((3, 0, 4), (3, 7, 4), 4, False), ((2, 3, 5, 4), (2, 3, 0, 4), 4, False), ((2, 3, 5, 0), (2, 3, 0, 0), 0, False)]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.5}, {"attn_mask": True}])
@pytest.mark.parametrize("queries, keys, size, grouped", EMPTY)
def test_empty_axes(queries, keys, size, grouped, options):
    """Heads, rows, keys and head sizes of 0 give PyTorch's results and gradients."""
    q, k, v = normal(*queries), normal(*keys), normal(*keys[:-1], size)
    if "attn_mask" in options:
        options = {"attn_mask": normal(queries[-2], keys[-2])}
    actual = ct.scaled_dot_product_attention(q, k, v, enable_gqa=grouped, **options)
    if 0 in queries[:-2]:  # of its grouped heads PyTorch accepts not all that are empty
        expected = torch.zeros(*queries[:-1], size)
    else:
        expected = F.scaled_dot_product_attention(q, k, v, **options)
        close(*(torch.autograd.grad(o.square().sum(), v, retain_graph=True)[0] for o in (actual, expected)))
    close(actual, expected)
    actual.sum().backward()
    assert options.get("attn_mask") is None or options["attn_mask"].grad.shape == (queries[-2], keys[-2])
    assert all(t.grad.shape == t.shape for t in (q, k, v))


@pytest.mark.parametrize("attention", [ct.attention, ct.linear_attention, ct.scaled_dot_product_attention])
def test_empty_batches(attention):
    """As PyTorch's functions: empty outputs and gradients."""
    q, k, v = normal(0, 2, 7, 16), normal(0, 2, 9, 16), normal(0, 2, 9, 8)
    o = attention(q, k, v)
    assert o.shape == (0, 2, 7, 8)
    o.sum().backward()
    assert q.grad.shape == q.shape and v.grad.shape == v.shape
    prior = torch.ones(2, 2, requires_grad=True)
    ct.attention(q, normal(0, 2, 2, 9, 16), v, variant="mgk", prior=prior).sum().backward()
    assert torch.equal(prior.grad, torch.zeros(2, 2))


@pytest.mark.parametrize("attention", [ct.attention, ct.linear_attention])
def test_rows_outside_packed_sequences(attention):
    """Outputs and gradients are 0 there, L is -inf, whatever memory they get."""
    q, k, v = (normal(1, 2, 9, 16) for _ in range(3))
    offsets, rows = torch.tensor([2, 4, 7]), slice(2, 7)
    freed = [torch.full((n,), torch.nan) for n in (18, 36, 288, 576) for _ in range(20)]
    del freed
    options = {"return_lse": True} if attention is ct.attention else {}
    results = attention(q, k, v, offsets=offsets, causal=True, **options)
    o = results[0] if options else results
    inside = [t[:, :, rows].detach().requires_grad_() for t in (q, k, v)]
    expected = attention(*inside, offsets=offsets - 2, causal=True)
    outside = torch.ones(9, dtype=torch.bool)
    outside[rows] = False
    assert (o[:, :, outside] == 0).all()
    close(o[:, :, rows], expected, 0)
    assert not options or torch.equal(results[1].isneginf(), outside.expand(1, 2, 9))
    for a, e in zip(*(torch.autograd.grad(t.square().sum(), inputs) for t, inputs in ((o, (q, k, v)), (expected, inside)))):
        assert (a[:, :, outside] == 0).all()
        close(a[:, :, rows], e, 1e-6)


def test_derivatives_in_forward_mode_are_refused():
    """torch.library would return 0 for them."""
    q = normal(1, 2, 7, 16, grad=False)
    for attention in (ct.attention, ct.linear_attention, ct.scaled_dot_product_attention):
        with pytest.raises(NotImplementedError, match="forward mode"):
            torch.func.jvp(lambda q: attention(q, q, q), (q,), (q,))


def test_lengths_of_64_bits():
    """Lengths beyond int32 count as beyond the axis, and do not wrap around."""
    q = normal(1, 2, 7, 16)
    close(ct.attention(q, q, q, lengths=torch.tensor([2**40])), ct.attention(q, q, q), 0)


# ---- caches


def test_types_of_caches():
    """Keys and values of 8 bits are numbers times their scales; scales repeat over axes of size 1."""
    q, k, v = (torch.randn(2, heads, length, 32) for heads, length in ((4, 3), (2, 40), (2, 40)))
    scale_k, scale_v = k.abs().amax(-1) / 127, torch.tensor([0.5, 2.0]).reshape(1, 2, 1)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        close(ct.attention(q, k.to(dtype), v.to(dtype)), ct.attention(q, k.to(dtype).float(), v.to(dtype).float()), 1e-5)
    integers, halves = (k / scale_k[..., None]).round().to(torch.int8), v.to(torch.float8_e5m2)
    close(ct.attention(q, integers, halves, scale_k=scale_k, scale_v=scale_v),
          ct.attention(q, integers * scale_k[..., None], halves.float() * scale_v[..., None]), 1e-5)
    with pytest.raises(NotImplementedError, match="dtype_k: int8: expected f32, f16 or bf16 with gradients"):
        ct.attention(normal(2, 4, 3, 32), integers, v)
    with pytest.raises(ValueError, match=r"scale_k: shape \(3,\): expected \(2, 2, 40\)"):
        ct.attention(q, integers, v, scale_k=torch.ones(3))


def test_pages():
    """Tables of pages name the rows of a pool."""
    q, pool = torch.randn(2, 4, 3, 16), torch.randn(7, 2, 8, 16)
    table, lengths = torch.tensor([[6, 0, 6], [3, 1, 5]]), torch.tensor([20, 11])
    rows = [torch.cat(pool[pages].unbind(), 1)[None, :, :length] for pages, length in zip(table, lengths.tolist())]
    expected = torch.cat([ct.attention(q[b:b + 1], rows[b], rows[b]) for b in range(2)])
    close(ct.attention(q, pool, pool, page_table=table, lengths=lengths), expected, 1e-6)


# ---- scores and masks as text


def texts(**changes):
    table = torch.randn(2, 7)
    documents = torch.arange(4).repeat_interleave(2)[None, :7].repeat(2, 1)
    given = dict(score_mod="c * tanh(s / c) + t[h, clamp(i - j, -3, 3) + 3]", mask_mod="doc[b, i] == doc[b, j] || j == 0",
                 captures={"t": table, "doc": documents}, numbers={"c": 3.0})
    return {**given, **changes}


def text_formula(q, k, v, options):
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    s = q @ k.mT / q.shape[-1] ** 0.5
    c, documents = options["numbers"]["c"], options["captures"]["doc"]
    s = c * torch.tanh(s / c) + options["captures"]["t"].to(q.dtype)[:, (i - j).clamp(-3, 3) + 3]
    visible = (documents[:, :q.shape[2], None] == documents[:, None, :]) | (j == 0)
    return torch.softmax(torch.where(visible[:, None], s, -torch.inf), -1) @ v


def test_texts():
    q, k, v = (torch.randn(2, 2, n, 8, requires_grad=True) for n in (5, 7, 7))
    for changes in ({}, {"numbers": {"c": torch.tensor(0.5)}}):
        options = texts(**changes)
        o = ct.attention(q, k, v, **options)
        expected = text_formula(*[x.detach().double() for x in (q, k, v)], options)
        torch.testing.assert_close(o.double(), expected, atol=1e-5, rtol=0)
    options = texts()  # without an axis B, b is 0
    torch.testing.assert_close(ct.attention(q[0], k[0], v[0], **options), ct.attention(q, k, v, **options)[0])
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    options = texts()
    grad = torch.randn(2, 2, 5, 8)
    found = torch.autograd.grad(ct.attention(q, k, v, **options), (q, k, v), grad)
    for own, right in zip(found, torch.autograd.grad(text_formula(*exact, options), exact, grad.double())):
        torch.testing.assert_close(own.double(), right, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_of_texts(dtype):
    q, k, v = (torch.randn(2, 2, n, 8) for n in (5, 7, 7))
    options = texts()
    table = options["captures"]["t"].to(dtype).requires_grad_()
    c = torch.tensor(2.5, requires_grad=True)
    options.update(captures={**options["captures"], "t": table}, numbers={"c": c})
    grad = torch.randn(2, 2, 5, 8)
    found = torch.autograd.grad(ct.attention(q, k, v, **options), (table, c), grad)
    assert found[0].dtype == dtype and found[1].shape == ()
    exact = (table.detach().double().requires_grad_(), c.detach().double().requires_grad_())
    options.update(captures={**options["captures"], "t": exact[0]}, numbers={"c": exact[1]})
    expected = torch.autograd.grad(text_formula(q.double(), k.double(), v.double(), options), exact, grad.double())
    for own, right in zip(found, expected):
        torch.testing.assert_close(own.double(), right, atol=1e-4 if dtype == torch.float32 else 5e-3, rtol=0)


@pytest.mark.parametrize("error, words, changes", [
    (TypeError, r"captures\['t'\]: float: expected a tensor", {"captures": {"t": 1.0}}),
    (TypeError, "captures: list: expected a dict", {"captures": [1]}),
    (ValueError, r"captures\['t'\]: shape \(\): expected 1 to 4 axes", {"captures": {"t": torch.tensor(1.0)}}),
    (TypeError, r"captures\['t'\]: a tensor of torch.complex64", {"captures": {"t": torch.zeros(2, dtype=torch.complex64)}}),
    (ValueError, r"numbers\['c'\]: a tensor of shape \(2,\)", {"numbers": {"c": torch.zeros(2)}}),
    (TypeError, r"numbers\['c'\]: 'x': expected a number", {"numbers": {"c": "x"}}),
    (ValueError, "score_mod: line 1, column 3: expected an operator", {"score_mod": "s s"}),
])
def test_texts_misuse(error, words, changes):
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(error, match=words):
        ct.attention(q, q, q, **texts(**changes))
