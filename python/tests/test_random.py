# SPDX-License-Identifier: Apache-2.0
"""Random problems of all families through PyTorch: values and all gradients against autograd in double precision."""
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import clmgk  # noqa: E402
import clmgk.torch as ct  # noqa: E402
import formulas  # noqa: E402
from conftest import FULL  # noqa: E402

COUNT = 25 if FULL else 4  # of each family
TOLERANCE, GRADIENT_TOLERANCE = 5e-5, 3e-4


class Draw(random.Random):
    """Draws sizes, options and tensors; `inputs` are the tensors whose gradients are compared."""

    def __init__(self, seed):
        super().__init__(seed)
        torch.manual_seed(seed)
        self.inputs, self.options, self.exact_options = {}, {}, {}
        self.batch, self.n, self.s = self.randint(1, 2), self.randint(1, 20), self.randint(1, 20)
        self.size, self.value_size = self.choice((4, 8, 16, 24)), self.choice((4, 8, 16))
        self.heads = self.choice((1, 2, 4))
        self.value_heads = self.choice([g for g in (1, 2, 4) if self.heads % g == 0])

    def maybe(self, chance=0.35):
        return self.random() < chance

    def tensor(self, name, *shape, positive=False, differentiable=True):
        tensor = torch.rand(*shape) + 0.3 if positive else torch.randn(*shape)
        if len(shape) >= 4 and self.maybe():  # the axis of tokens before the one of heads, or a gap after each row
            if self.maybe(0.5):
                tensor = tensor.transpose(1, -2).contiguous().transpose(1, -2)
            else:
                tensor = torch.cat((tensor, tensor), -1)[..., :shape[-1]]
        tensor = tensor.requires_grad_(differentiable)
        self.inputs[name] = tensor
        return tensor

    def option(self, name, value):
        self.options[name] = self.exact_options[name] = value

    def mask(self, with_window):
        if self.maybe(0.5):
            self.option("causal", True)
        alignments = ["bottom-right", "top-left"]
        if self.maybe():
            self.option("lengths", torch.tensor([self.randint(0, self.s) for _ in range(self.batch)]))
            alignments.append("lengths")
        if self.maybe():
            self.option("lengths_q", torch.tensor([self.randint(0, self.n) for _ in range(self.batch)]))
        if with_window and self.maybe():
            self.option(self.choice(("window_left", "window_right")), self.randint(0, 8))
        if "causal" in self.options or "window_left" in self.options or "window_right" in self.options:
            self.option("alignment", self.choice(alignments))

    def modifiers(self):
        if self.maybe():
            shape = [self.choice((1, full)) for full in (self.batch, self.heads, self.n, self.s)]
            self.tensor("bias", *shape)
        if self.maybe():
            self.tensor("sinks", self.heads)
        if self.maybe(0.2):
            self.option("slopes", torch.rand(self.heads))
            self.options.setdefault("alignment", self.exact_options.setdefault("alignment", "bottom-right"))
        if self.maybe(0.25):
            self.option("dropout", 0.3)
            self.options["seed"] = self.randrange(2**64)
            self.exact_options["kept"] = torch.tensor(np.stack([[clmgk.dropout_mask(
                0.3, seed=self.options["seed"], heads=self.heads, b=b, h=h, rows=range(self.n), keys=range(self.s))
                for h in range(self.heads)] for b in range(self.batch)]))

    def mixed_heads(self, variant, count, positive):
        shared = "mish" in variant
        self.tensor("q", self.batch, count, self.n, self.size)
        self.tensor("k", self.batch, count, self.s, self.size)
        self.tensor("v", self.batch, self.value_heads, self.s, self.value_size)
        self.tensor("mix", *((count,) if shared else (self.heads, count)), positive=positive)
        if shared:
            self.option("heads", self.heads)
        if variant == "hard-gfish" and self.maybe(0.4):
            self.hidden_layer(count)
        elif "gfish" in variant and self.maybe(0.6):
            self.tensor("mix_weight", self.heads, count, positive=positive)

    def hidden_layer(self, count):
        units = self.randint(1, 10)
        self.option("mix_hidden", units)
        self.tensor("mix", units, count)
        if self.maybe():
            self.tensor("mix_weight", self.heads, units)
        else:
            self.option("heads", self.heads)
        if self.maybe():
            self.tensor("mix_hidden_offset", units)

    def usual_heads(self, components, keys_axis):
        self.tensor("q", self.batch, self.heads, self.n, self.size)
        self.tensor("k", self.batch, self.value_heads, *((components,) if keys_axis else ()), self.s, self.size)
        self.tensor("v", self.batch, self.value_heads, self.s, self.value_size)

    def prior(self, components):
        shapes = [(components,), (self.heads, components), (self.heads, components, self.s)]
        if self.maybe(0.7):
            self.tensor("prior", *self.choice(shapes), positive=True)


def mixture(draw):
    variant = draw.choice(("softmax", "gaussian", "mgk", "smgk"))
    components = draw.randint(1, 3) if variant in ("mgk", "smgk") else 1
    draw.option("variant", variant)
    draw.usual_heads(components, variant == "mgk")
    if variant == "smgk":
        draw.tensor("shift", draw.heads, components, draw.size)
    if variant in ("mgk", "smgk"):
        draw.option("score", draw.choice(("default", "dot")))
        draw.option("estep", draw.choice(("soft", "soft", "hard")))
    if variant != "softmax":
        draw.prior(components)
    if draw.maybe(0.3):
        draw.option("variance", 3.0)
    elif draw.maybe(0.5):
        draw.tensor("variance", *draw.choice([(components,), (draw.heads, components)]), positive=True)
    if variant == "softmax" and draw.maybe():
        draw.option("softcap", 2.0)
    draw.mask(with_window=True)
    draw.modifiers()


def admixture(draw):
    variant = draw.choice(("hard-fish", "hard-mish", "hard-gfish", "talking-heads"))
    draw.option("variant", variant)
    draw.mixed_heads(variant, draw.heads if variant == "talking-heads" else draw.randint(1, 3), positive=False)
    if variant == "hard-gfish" and draw.maybe(0.6):
        draw.tensor("mix_offset", draw.heads)
    if draw.maybe():
        draw.option("softcap", 2.0)
    draw.mask(with_window=True)
    draw.modifiers()


def linear(draw):
    variant = draw.choice(("linear", "mlk", "smlk", "lhard-fish", "lhard-mish", "lhard-gfish"))
    draw.option("variant", variant)
    draw.option("feature", draw.choice(("elu1", "relu", "exp", "dpfp", "favor")))
    if draw.options["feature"] == "dpfp":
        draw.option("feature_order", draw.randint(1, 2))
    if draw.options["feature"] == "favor":
        draw.option("projection", torch.from_numpy(clmgk.draw_projection(draw.choice((8, 20)), draw.size)))
    if draw.maybe(0.3):
        draw.option("unnormalised", True)
    elif draw.maybe():
        draw.option("guard", 0.5)
    if "fish" in variant or "mish" in variant:
        draw.mixed_heads(variant, draw.randint(1, 3), positive=True)  # denominators away from 0
    else:
        components = 1 if variant == "linear" else draw.randint(1, 3)
        draw.usual_heads(components, variant == "mlk")
        if variant == "smlk":
            draw.tensor("shift", draw.heads, components, draw.size)
        if variant != "linear":
            draw.prior(components)
    draw.mask(with_window=False)


def double(value):
    return value.detach().double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def close(name, actual, expected, tolerance):
    actual, expected = actual.detach().double(), expected.detach()
    assert actual.shape == expected.shape, name
    finite = expected.isfinite()
    assert torch.equal(actual[~finite], expected[~finite]), name
    difference = (actual[finite] - expected[finite]).abs().max().item() if finite.any() else 0.0
    scale = max(1.0, expected[finite].abs().max().item()) if finite.any() else 1.0
    assert difference <= tolerance * scale, f"{name}: {difference} of {scale}"


def compare(draw, actual, expected, names):
    """Outputs, and the gradients of random projections of those that are finite."""
    for name, a, e in zip(names, actual, expected):
        close(name, a, e, TOLERANCE)
    weights = [torch.randn(a.shape) * e.isfinite() for a, e in zip(actual, expected)]
    wanted = [name for name, tensor in draw.inputs.items() if tensor.requires_grad]
    exact = [draw.exact[name] for name in wanted]
    e = torch.autograd.grad(expected, exact, [w.double() for w in weights], allow_unused=True)
    a = torch.autograd.grad(actual, [draw.inputs[name] for name in wanted], weights)
    for name, actual_gradient, gradient, tensor in zip(wanted, a, e, exact):
        close(f"gradient of {name}", actual_gradient, torch.zeros_like(tensor) if gradient is None else gradient,
              GRADIENT_TOLERANCE)


def problem(draw_family, seed):
    draw = Draw(seed)
    draw_family(draw)
    draw.exact = {name: double(tensor).requires_grad_(tensor.requires_grad) for name, tensor in draw.inputs.items()}
    draw.exact_options = {name: double(value) for name, value in draw.exact_options.items()}
    return draw


@pytest.mark.parametrize("family", [mixture, admixture])
@pytest.mark.parametrize("seed", range(COUNT))
def test_attention(family, seed):
    draw = problem(family, seed)
    actual = ct.attention(**draw.inputs, **draw.options, return_lse=True)
    compare(draw, actual, formulas.attention(**draw.exact, **draw.exact_options), ("o", "lse"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_linear_attention(seed):
    draw = problem(linear, seed)
    with_state = draw.maybe(0.6)
    state, exact_state = None, None
    if with_state:  # of earlier keys, so that it is one that a call can give
        k, v = (torch.randn(*draw.inputs[name].shape) for name in "kv")
        names = ("variant", "feature", "feature_order", "projection", "heads")
        fixed = {n: draw.inputs[n].detach() for n in ("prior", "shift", "mix", "mix_weight") if n in draw.inputs}
        _, state = ct.linear_attention(draw.inputs["q"].detach(), k, v, return_state=True, **fixed,
                                       **{n: draw.options[n] for n in names if n in draw.options})
        state = state._replace(c=state.c.requires_grad_(), z=state.z.requires_grad_())
        draw.inputs.update(state_c=state.c, state_z=state.z)
        draw.exact.update(state_c=double(state.c).requires_grad_(), state_z=double(state.z).requires_grad_())
    inputs = {name: tensor for name, tensor in draw.inputs.items() if not name.startswith("state")}
    exact = {name: tensor for name, tensor in draw.exact.items() if not name.startswith("state")}
    mixed = "mix" in inputs

    def true(sums, m):
        """The sums that stored numbers stand for."""
        if m is None:
            return sums
        scale = torch.exp(m.detach().double())
        return tuple(t * scale.reshape(*scale.shape, *[1] * (t.ndim - scale.ndim)) for t in sums)

    if with_state:
        exact_state = true((draw.exact["state_c"] if mixed else draw.exact["state_c"][:, :, None],
                            draw.exact["state_z"] if mixed else draw.exact["state_z"][:, :, None]), state.m)
    o, new = ct.linear_attention(**inputs, **draw.options, state=state, return_state=True)
    exact_o, c, z = formulas.linear_attention(**exact, **draw.exact_options, state=exact_state)
    c, z = (c, z) if mixed else (c[:, :, 0], z[:, :, 0])
    scaled = (c, z) if new.m is None else true((c, z), -new.m)
    compare(draw, (o, new.c, new.z), (exact_o, *scaled), ("o", "c", "z"))
