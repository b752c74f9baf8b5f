# SPDX-License-Identifier: Apache-2.0
"""FlexAttention's callables, those of attn-gym among them: values and gradients against PyTorch's own evaluation of the same
callables in double precision."""
import functools

import pytest

torch = pytest.importorskip("torch")
gym = pytest.importorskip("attn_gym")

from attn_gym import masks, mods  # noqa: E402
from attn_gym.masks import vsa  # noqa: E402
from attn_gym.masks.document_mask import length_to_offsets  # noqa: E402
from attn_gym.mods.softcapping import _tanh_approx  # noqa: E402
from torch.nn.attention import flex_attention as flex  # noqa: E402

import clmgk.torch as ct  # noqa: E402
from clmgk.torch import _flex  # noqa: E402
from tensors import close, normal  # noqa: E402

F = torch.nn.functional
BATCH, HEADS, LENGTH, SIZE = SHAPE = (2, 4, 32, 16)
SLOTS = BATCH * HEADS


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def tensors():
    return [normal(*SHAPE) for _ in "qkv"]


def grid():
    return [torch.arange(size) for size in (BATCH, HEADS, LENGTH, LENGTH)]


def dense(q, k, v, score_mod=None, mask_mod=None, scale=None):
    """FlexAttention by PyTorch's own means: its callables by vmap over all pairs."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    k, v = (t.repeat_interleave(HEADS // t.shape[1], 1) for t in (k, v))
    s = q @ k.mT * (SIZE ** -0.5 if scale is None else scale)
    if score_mod is not None:
        with TransformGetItemToIndex():
            s = flex._vmap_for_bhqkv(score_mod, prefix=(0,))(s, *grid())
    if mask_mod is not None:
        s = s.masked_fill(~flex.create_mask(mask_mod, BATCH, HEADS, LENGTH, LENGTH, device="cpu"), -torch.inf)
    hidden = (s == -torch.inf).all(-1, keepdim=True)
    return torch.where(hidden, 0, s.masked_fill(hidden, 0).softmax(-1)) @ v, s.logsumexp(-1)


def check(inputs, make_score=None, mask_mod=None, gradients=True, **options):
    """`make_score`: of tensors, of which it captures those after q, k and v, a score's callable."""
    mask = None if mask_mod is None else ct.create_block_mask(mask_mod, None, None, LENGTH, LENGTH)
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    score, exact_score = (make_score(*parts[3:]) if make_score else None for parts in (inputs, exact))
    expected = dense(*exact[:3], exact_score, mask_mod, **options)
    with torch.set_grad_enabled(gradients):
        o, lse = ct.flex_attention(*inputs[:3], score, mask, return_lse=True, enable_gqa=True, **options)
    close(o, expected[0])
    finite = expected[1].isfinite()
    assert torch.equal(lse.isfinite(), finite)
    close(lse[finite], expected[1][finite])
    if not gradients:
        return
    weights = torch.randn_like(o)
    found = torch.autograd.grad(o, [t for t in inputs if t.requires_grad], weights)
    for own, other in zip(found, torch.autograd.grad(expected[0], [t for t in exact if t.requires_grad], weights.double())):
        close(own, other)


def by_slot(chosen, default):
    """One callable for each batch and head, so that few programs are compiled."""
    assert len(chosen) <= SLOTS

    def choose(*args):
        slot = args[-4] * HEADS + args[-3]
        found = default(*args)
        for n, function in enumerate(chosen):
            found = torch.where(slot == n, function(*args), found)
        return found
    return choose


def masks_by_slot(chosen):
    choose = by_slot(chosen, lambda b, h, i, j: i == j)
    return lambda b, h, i, j: choose(b, h, i, j)


# ---- attn-gym


def graph():
    edges = torch.rand(BATCH, LENGTH, LENGTH) < 0.1
    return edges | edges.mT


def approximate_softcap(score, b, h, q_idx, kv_idx):  # generate_tanh_softcap(approx=True) needs a compiler of CUDA
    return 5 * _tanh_approx(score / 5)


def test_gym_scores():
    chosen = [mods.generate_alibi_bias(HEADS), mods.generate_tanh_softcap(2), approximate_softcap,
              mods.generate_activation_score_mod(), mods.generate_activation_score_mod(F.relu),
              mods.generate_activation_score_mod(torch.sigmoid), mods.generate_sandwich_bias(HEADS, LENGTH, SIZE)]
    check(tensors(), lambda: by_slot(chosen, lambda score, *_: score), masks.causal_mask)


def test_gym_graphormer():
    edges = graph()
    distances = mods.shortest_path_distances(edges, 4)
    check([*tensors(), normal(HEADS, 6)], lambda bias: mods.generate_graphormer_spatial_bias(bias, distances))
    kinds, lengths = mods.shortest_path_edge_types(edges, torch.randint(0, 3, edges.shape), 2)
    for hops, gradients in (1, True), (2, False):
        make = functools.partial(mods.generate_graphormer_edge_bias, path_edge_types=kinds[..., :hops], path_lengths=lengths)
        check([*tensors(), normal(HEADS, hops, 3)], make, gradients=gradients)


def gym_masks():
    offsets = length_to_offsets([5, 7, 20], "cpu")
    ancestors = masks.build_tree_ancestor_matrix([0, *[n // 2 for n in range(LENGTH - 1)]], "cpu")
    chosen = torch.stack([torch.randperm(8)[:3] for _ in range(SLOTS * 8)]).reshape(BATCH, HEADS, 8, 3)
    return [
        masks.causal_mask, masks.batchify_mask_mod(masks.causal_mask, 6), masks.generate_block_diffusion_mask(16, 4),
        masks.generate_dilated_sliding_window(6, 2), masks.generate_doc_mask_mod(masks.causal_mask, offsets),
        masks.generate_packed_causal_doc_mask_mod(offsets),
        masks.generate_vision_cross_attention_mask_mod(torch.tensor([[0, 7], [7, 15], [15, 24], [0, 32]]), 8),
        masks.generate_global_sliding_window(3, torch.arange(LENGTH) % 7 == 0), masks.generate_jetspec_training_mask_mod(5, 3),
        masks.generate_jetspec_tree_causal_mask_mod(3, ancestors), masks.generate_natten(8, 4, 3, 3),
        masks.generate_tiled_natten(8, 4, 3, 3, 4, 2), masks.generate_morton_natten(8, 4, 3, 3), masks.generate_prefix_lm_mask(5),
        masks.generate_shared_prefix_mask_mod(offsets, torch.tensor([0, 0, 1])), masks.generate_sliding_window(4),
        masks.generate_sta_mask_mod_2d((4, 4), (2, 2), (2, 2), 16),
        masks.generate_sta_mask_mod_3d((2, 2, 4), (2, 2, 2), (1, 1, 2), 16),
        masks.generate_spatial_head_mask_mod(4, 4, 7, 1, False, 2), masks.generate_temporal_head_mask_mod(4, 4, 7, 2),
        masks.generate_vsa_mask_mod(chosen, 4), vsa.generate_vsa_padding_mask_mod(torch.tensor([4, 3, 4, 4, 2, 4, 1, 4]), 4),
        flex.and_masks(masks.causal_mask, lambda b, h, i, j: i - j < 9),
        flex.or_masks(masks.causal_mask, lambda b, h, i, j: j < 3)]


@pytest.mark.parametrize("group", range(4))
def test_gym_masks(group):
    """Six masks at a time, each in a batch and head of its own; gradients of one group."""
    check(tensors(), mask_mod=masks_by_slot(gym_masks()[group::4]), gradients=group == 3)


def test_gym_blocks():
    """Lists of blocks that no mask_mod repeats."""
    chosen = torch.stack([torch.randperm(8)[:3] for _ in range(SLOTS * 8)]).reshape(BATCH, HEADS, 8, 3)
    sizes = torch.tensor([4, 3, 4, 4, 2, 4, 1, 4])
    q, k, v = tensors()
    found = ct.flex_attention(q, k, v, block_mask=masks.create_vsa_block_mask(chosen, 4, 8, sizes))
    close(found, dense(q.double(), k.double(), v.double(), mask_mod=masks.generate_vsa_mask_mod(chosen, 4, sizes))[0])


def test_latent_attention_is_refused():
    mod = mods.generate_mla_rope_score_mod(torch.randn(*SHAPE), torch.randn(BATCH, 1, LENGTH, SIZE), HEADS)
    with pytest.raises(NotImplementedError, match="score_mod: torch.dot: "):
        ct.flex_attention(*tensors(), mod)


# ---- what researchers write


def test_learned():
    """Tables, forget gates and numbers, with gradients; hidden pairs as scores; negative indices; grouped heads."""
    inputs = [normal(*SHAPE), *[normal(BATCH, 2, LENGTH, SIZE) for _ in "kv"],
              normal(HEADS, 9), normal(BATCH, HEADS, LENGTH), normal(), normal(HEADS)]

    def make(table, gate, number, cap):
        def score_mod(score, b, h, q_idx, kv_idx):
            bucket = torch.clamp(q_idx - kv_idx, -4, 4)
            score = score + table[h, bucket] + gate[b, h, q_idx] - gate[b, h, kv_idx]
            score = score * torch.sigmoid(number) + F.softplus(score)
            score += cap[h] * torch.tanh(score / 2)
            return torch.where(q_idx >= kv_idx, score, -float("inf"))
        return score_mod
    check(inputs, make, scale=-0.3)


def operations(score, b, h, i, j):
    """Operations whose meaning differs between PyTorch and C, or which have no counterpart."""
    x = (i - j) // 3 + (j - i) % 5 + (i - 7) // (j - 40) + (i - j) % (h - 4) + abs(-j)
    x = x + (j & 5) + (i << 1) // 4 + b.new_full((), 3)
    y = torch.remainder(score, 0.75) + score // 0.5 + (i / 4) + 2 ** (i * 0.1) + score ** 2 + torch.pow(score.abs() + 1, 0.3)
    z = torch.where((i > j) ^ (h == 2), score.exp2(), torch.erf(score)) + F.silu(score) + F.gelu(score, approximate="tanh")
    rows = torch.arange(6).reshape(3, 2)[i % 3]
    total = rows.sum() + rows[..., 0] + rows.amax(-1)
    w = torch.ceil(score) + torch.trunc(score) + score.sign() + score.reciprocal().clamp(-1, 1)
    return 0.05 * (x + y + z + w + total.float() + score.masked_fill(i == j, 2.0))


def test_operations():
    check(tensors(), lambda: operations, gradients=False)


def test_values_are_read_at_each_call():
    """Tensors that change in place, and a callable's variables that change."""
    q, k, v = tensors()
    documents, shift = torch.zeros(LENGTH, dtype=torch.int64), [1.0]

    def score_mod(score, b, h, i, j):
        return score + torch.where(documents[i] == documents[j], shift[0], torch.tensor(0.0))
    for _ in range(2):
        close(ct.flex_attention(q, k, v, score_mod), dense(q.double(), k.double(), v.double(), score_mod)[0])
        documents[:9] = -2
        shift[0] = -1.5


# ---- misuse


@pytest.mark.parametrize("error, words, mod", [
    (NotImplementedError, "score_mod: torch.Tensor.cumsum: texts of scores and masks have no such operation",
     lambda s, b, h, i, j: s.cumsum(0)),
    (NotImplementedError, r"score_mod: torch.Tensor.__bool__", lambda s, b, h, i, j: s if i > j else 0 * s),
    (NotImplementedError, "score_mod: torch.Tensor.detach", lambda s, b, h, i, j: s.detach()),
    (NotImplementedError, "score_mod: softplus|score_mod: torch.nn.functional.softplus", lambda s, b, h, i, j: F.softplus(s, 2.0)),
    (NotImplementedError, "score_mod: torch.Tensor.max", lambda s, b, h, i, j: s.max()),
    (NotImplementedError, "more than 8 captured tensors with axes",
     lambda s, b, h, i, j: sum(torch.ones(2)[h] for _ in range(9)) + s),
    (NotImplementedError, "score_mod: torch.Tensor.add: a row of 5000 elements",
     lambda s, b, h, i, j: (s + torch.ones(2, 5000)[h]).sum()),
    (NotImplementedError, "__getitem__: an index that is no integer: expected one",
     lambda s, b, h, i, j: s + torch.ones(2)[i > j]),
    (ValueError, r"score_mod: returns a tensor of the shape \(3,\)", lambda s, b, h, i, j: s + torch.ones(3)),
    (TypeError, "score_mod: returns NoneType", lambda s, b, h, i, j: None)])
def test_misuse(error, words, mod):
    with pytest.raises(error, match=words):
        ct.flex_attention(*tensors(), mod)


def test_misuse_of_masks():
    with pytest.raises(TypeError, match="mask_mod: returns a float"):
        ct.create_block_mask(lambda b, h, i, j: i * 0.5, 1, 1, 8, 8)
    with pytest.raises(NotImplementedError, match="mask_mod: torch.Tensor.item"):
        ct.create_block_mask(lambda b, h, i, j: (i - j).item() > 0, 1, 1, 8, 8)
    with pytest.raises(ValueError, match=r"block_mask: of \(1, 1, 8, 8\): expected one of \(2, 4, 32, 32\)"):
        ct.flex_attention(*tensors(), block_mask=ct.create_block_mask(masks.causal_mask, 1, 1, 8, 8))
    q, k, v = tensors()
    with pytest.raises(ValueError, match="key: 2 heads: expected query's, 4, or enable_gqa=True"):
        ct.flex_attention(q, k[:, :2], v[:, :2])


# ---- classes of blocks


def test_classes_of_blocks_are_kept(monkeypatch):
    """They are made once for all layers and steps, and again when a tensor of the mask has changed; without gradients first."""
    made = []
    monkeypatch.setattr(_flex, "mask_blocks", lambda *args, **options: made.append(ct.mask_blocks(*args, **options)) or made[-1])
    q, k, v = (normal(1, 2, 256, SIZE) for _ in "qkv")
    documents = torch.arange(256) // 64
    mask = ct.create_block_mask(lambda b, h, i, j: documents[i] == documents[j], None, None, 256, 256)
    visible = (documents[:, None] == documents).clone()
    with torch.inference_mode():
        close(ct.flex_attention(q, k, v, block_mask=mask), F.scaled_dot_product_attention(q, k, v, visible))
    o = ct.flex_attention(q, k, v, block_mask=mask)
    for own, other in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v))
                            for x in (o, F.scaled_dot_product_attention(q, k, v, visible)))):
        close(own, other)
    assert len(made) == 1 and made[0].shape == (1, 1, 4, 4) and torch.equal(made[0][0, 0], 2 * torch.eye(4, dtype=torch.int32))
    documents[:] = 0
    close(ct.flex_attention(q, k, v, block_mask=mask), F.scaled_dot_product_attention(q, k, v))
    assert len(made) == 2 and (made[1] == 2).all()
