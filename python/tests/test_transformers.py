# SPDX-License-Identifier: Apache-2.0
"""Models of the package transformers, with random weights, against their eager attention in double precision."""
import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers as hf  # noqa: E402

from transformers import masking_utils  # noqa: E402
from transformers.masking_utils import eager_mask  # noqa: E402

import clmgk.torch as ct  # noqa: E402
import clmgk.transformers as ch  # noqa: E402
import formulas  # noqa: E402
from tensors import close  # noqa: E402

hf.logging.set_verbosity_error()
TEXT = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
IMAGE = {"image_size": 16, "patch_size": 4, "num_channels": 2}
# Each: the class, its configuration, and what it takes.
MODELS = {
    "bert": (hf.BertForMaskedLM, hf.BertConfig(**TEXT), "text"),
    "distilbert": (hf.DistilBertForMaskedLM,
                   hf.DistilBertConfig(vocab_size=60, dim=32, n_layers=2, n_heads=4, hidden_dim=48, pad_token_id=0), "text"),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, eos_token_id=None, pad_token_id=0),
             "causal"),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**GROUPED), "causal"),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**GROUPED, sliding_window=4), "causal"),
    "t5": (hf.T5ForConditionalGeneration,
           hf.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
                       eos_token_id=None, pad_token_id=0), "pair"),
    "swin": (hf.SwinForImageClassification,
             hf.SwinConfig(**IMAGE, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=2), "image"),
    "vit": (hf.ViTForImageClassification,
            hf.ViTConfig(**IMAGE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48), "image"),
    "gemma2": (hf.Gemma2ForCausalLM,
               hf.Gemma2Config(**GROUPED, sliding_window=4, attn_logit_softcapping=2.0, query_pre_attn_scalar=16), "causal"),
    "gpt_oss": (hf.GptOssForCausalLM,
                hf.GptOssConfig(**GROUPED, sliding_window=4, num_local_experts=2, num_experts_per_tok=1), "causal"),
    "bloom": (hf.BloomForCausalLM, hf.BloomConfig(vocab_size=60, hidden_size=32, n_layer=2, n_head=4, eos_token_id=None,
                                                  pad_token_id=0), "causal"),
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


@pytest.fixture(autouse=True)
def finite_masks(monkeypatch):
    """Models compute softmax in float32, where float64's least number in a row of padding would be -inf."""
    def mask(*args, **options):
        return eager_mask(*args, **{**options, "dtype": torch.float32})

    monkeypatch.setitem(hf.AttentionMaskInterface._global_mapping, "eager", mask)


def new(name):
    """A model whose attention is far from uniform."""
    cls, config, _ = MODELS[name]
    config = copy.deepcopy(config)
    config._attn_implementation = config._experts_implementation = "eager"
    model = cls(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(std=0.3).add_(1.0 if "norm" in parameter_name and parameter.ndim == 1 else 0.0)
    return model


def with_clmgk(model):
    """A copy that computes attention by this package."""
    ours = copy.deepcopy(model)
    if isinstance(model, hf.BloomForCausalLM):
        return ch.replace(ours)
    ours.set_attn_implementation("clmgk")
    return ours


def inputs(name):
    """Inputs, of which one text is shorter, and the rows of logits that count."""
    kind = MODELS[name][2]
    if kind == "image":
        return {"pixel_values": torch.randn(2, 2, 16, 16)}, ...
    ids = torch.randint(1, 60, (2, 9))
    mask = torch.ones_like(ids)
    if kind == "causal":  # padding before the text, as `generate` wants it
        mask[1, :3] = 0
        return {"input_ids": ids, "attention_mask": mask}, mask.bool()
    mask[1, 6:] = 0
    if kind == "text":
        return {"input_ids": ids, "attention_mask": mask}, mask.bool()
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.randint(1, 60, (2, 5))}, ...


def run(model, given, rows=...):
    """Logits, and the gradients of parameters that have one, in one vector per parameter."""
    dtype = next(model.parameters()).dtype
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}
    logits = model(**given).logits[rows]
    logits.square().mean().backward()
    return {"logits": logits.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


def check(ours, plain, exact):
    """The errors are at most three times those of eager attention in single precision."""
    assert set(ours) == set(exact)
    floor = {"logits": 1e-7 * exact["logits"].norm()}
    largest = max(x.norm() for name, x in exact.items() if name != "logits")
    for name, expected in exact.items():
        error, usual = ((found[name].double() - expected.double()).norm() for found in (ours, plain))
        assert error <= 3 * usual + floor.get(name, 1e-7 * largest), (name, error, usual, expected.norm())


@pytest.fixture
def calls(monkeypatch):
    """The calls of `clmgk.torch.attention` by models."""
    made = []

    def attention(q, k, v, **options):
        made.append(options)
        return ct.attention(q, k, v, **options)

    monkeypatch.setattr(ch._attention, "attention", attention)
    return made


LAYERS = {"t5": 6, "swin": 3}


@pytest.mark.parametrize("name", MODELS)
def test_models(name, calls):
    """Logits and gradients, and in `generate` the same tokens."""
    model = new(name)
    given, rows = inputs(name)
    ours = with_clmgk(model)
    results = [run(m, given, rows) for m in (ours, copy.deepcopy(model), copy.deepcopy(model).double())]
    check(*results)
    assert len(calls) == LAYERS.get(name, 2)
    if MODELS[name][2] in ("causal", "pair"):
        given.pop("decoder_input_ids", None)
        tokens = [m.generate(**given, max_new_tokens=6, do_sample=False) for m in (ours, model)]
        assert torch.equal(*tokens) and tokens[0].shape[1] >= 7
        assert len(calls) > 8


@pytest.mark.parametrize("variant, options", [("mgk", {"score": "dot", "components": 2}), ("hard-fish", {})])
@pytest.mark.parametrize("name", MODELS)
def test_variants_that_begin_as_the_model(name, variant, options, monkeypatch, calls):
    """Copies of keys without noise, and mixing by one head each, are softmax attention."""
    if name == "gemma2" and variant == "mgk":
        pytest.skip("the soft-cap is of one component")
    monkeypatch.setattr(ch._replace, "_NOISE", 0.0)
    model = new(name)
    given, rows = inputs(name)
    ours = ch.replace(copy.deepcopy(model), variant, **options)
    with torch.no_grad():
        found, exact = (m(**given).logits[rows] for m in (ours, model))
    assert len(calls) == LAYERS.get(name, 2) and all(call["variant"] == variant for call in calls)
    close(found, exact)
    again = ch.replace(new(name), variant, **options)
    again.load_state_dict(ours.state_dict())
    with torch.no_grad():
        close(again(**given).logits[rows], found, 1e-6)


def test_values_of_a_variant(monkeypatch):
    """MGK in a model with grouped heads and a cache: the formula, all gradients, and tokens."""
    def formula(module, query, key, value, mask, scaling, **_):
        query, key, options = module.clmgk(query, key, {"scale": scaling})
        options["variance"] = 1 / options.pop("scale")
        o, _ = formulas.attention(query, key, value, bias=mask, **options)
        return o.transpose(1, 2), None

    monkeypatch.setitem(hf.AttentionInterface._global_mapping, "formula", formula)
    monkeypatch.setitem(hf.AttentionMaskInterface._global_mapping, "formula", eager_mask)
    ours = ch.replace(new("mistral"), "mgk", components=3)
    with torch.no_grad():
        for layer in ours.model.layers:
            layer.self_attn.clmgk.prior.uniform_(0.1, 0.9)
    plain = copy.deepcopy(ours)
    plain.config._attn_implementation = "formula"
    given, rows = inputs("mistral")
    results = [run(m, given, rows) for m in (ours, plain, copy.deepcopy(plain).double())]
    assert results[0]["model.layers.0.self_attn.k_proj.weight"].shape == (2 * 3 * 8, 32)
    assert results[0]["model.layers.1.self_attn.clmgk.prior"].norm() > 0
    check(*results)
    assert torch.equal(*[m.generate(**given, max_new_tokens=4, do_sample=False) for m in (ours, plain)])


@pytest.mark.parametrize("variant, options, parameters", [
    ("gaussian", {}, set()), ("smgk", {"components": 2}, {"prior", "shift"}), ("fish", {"components": 2}, {"mix", "noise"}),
    ("hard-gfish", {"components": 2, "mix_hidden": 6}, {"mix", "mix_weight", "mix_offset", "mix_hidden_offset"})])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom"])
def test_other_variants(name, variant, options, parameters):
    """They have their parameters, and learn: in training, with dropout."""
    model = ch.replace(new(name), variant, **options).train()
    given, rows = inputs(name)
    found = run(model, given, rows)
    ending = {key.rpartition("clmgk.")[2] for key in found if ".clmgk." in key}
    assert ending == parameters
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert all(gradient.norm() > 0 for key, gradient in found.items() if "mix_offset" not in key and "bias" not in key)


# ---- masks


def visible_by(mask, length, length_k):
    """[B,N,S] of the options that stand for a mask."""
    options = mask.as_options()
    bias = options.pop("bias", torch.zeros(1, 1, 1, length_k))
    return formulas.visible(length, length_k, mask.shape[0], **options) & (bias[:, 0] == 0)


@pytest.mark.parametrize("length, length_k, offset, offset_k", [
    (7, 7, 0, 0), (1, 7, 6, 0), (3, 7, 4, 0), (3, 7, 0, 0), (3, 7, 2, 0), (3, 5, 6, 4), (1, 1, 0, 0)])
@pytest.mark.parametrize("window", ["causal", "all", "before", "around"])
def test_masks(window, length, length_k, offset, offset_k):
    """The options of a mask show what the mask shows, and do not write it."""
    function = {"causal": masking_utils.causal_mask_function, "all": masking_utils.bidirectional_mask_function,
                "before": masking_utils.sliding_window_causal_mask_function(3),
                "around": masking_utils.sliding_window_bidirectional_mask_function(2)}[window]
    padding = torch.ones(2, length_k + offset_k, dtype=torch.bool)
    padding[1, :offset_k + 2] = length_k < 4
    for given in (None, padding, padding[:, :-1]):
        options = {"batch_size": 2, "q_length": length, "kv_length": length_k, "q_offset": offset, "kv_offset": offset_k,
                   "mask_function": function, "attention_mask": given}
        expected = eager_mask(**options)
        found = ch.attention_mask(**options)
        if offset - offset_k not in (0, length_k - length):
            assert type(found) is torch.Tensor
        else:
            assert torch.equal(visible_by(found, length, length_k), (expected == 0)[:, 0])
        assert found.shape == expected.shape and torch.equal(found + 0, expected)


def test_masks_of_other_kinds():
    """Functions that are not known are written out; so is a mask that an operation changes."""
    sizes = {"batch_size": 1, "q_length": 4, "kv_length": 4}
    for function in (masking_utils.and_masks(masking_utils.causal_mask_function, lambda b, h, i, j: j != 1),
                     masking_utils.chunked_causal_mask_function(2, torch.zeros(1, dtype=torch.int64)),
                     masking_utils.sliding_window_causal_mask_function(0)):
        found = ch.attention_mask(mask_function=function, **sizes)
        assert type(found) is torch.Tensor and torch.equal(found, eager_mask(mask_function=function, **sizes))
    mask = ch.attention_mask(**sizes)
    assert mask.as_options()["causal"]
    mask[..., 3, 0] = -1.0
    assert set(mask.as_options()) == {"bias"} and mask.as_options()["bias"][0, 0, 3, 0] == -1


def test_masks_of_models_are_not_written(monkeypatch):
    for name in ("bert", "mistral"):
        ours = with_clmgk(new(name))
        monkeypatch.setattr(masking_utils, "eager_mask", None)
        ours(**inputs(name)[0])
        monkeypatch.undo()


def test_other_masks_of_models(calls):
    """Packed sequences by positions, masks [B,1,N,S] of one's own, and models that call no attention function."""
    model = new("llama")
    ids = torch.randint(1, 60, (1, 8))
    triangle = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    triangle[..., 5:, 2] = False
    for given in ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])},
                  {"attention_mask": torch.where(triangle, 0.0, -torch.inf)}):
        with torch.no_grad():
            close(with_clmgk(model)(input_ids=ids, **given).logits, model(input_ids=ids, **given).logits)
    assert len(calls) == 4
    bloom = new("bloom")
    ours = copy.deepcopy(bloom)
    ours.config._attn_implementation = "clmgk"
    given, rows = inputs("bloom")
    with torch.no_grad():
        close(ours(**given).logits[rows], bloom(**given).logits[rows])
    assert len(calls) == 4


# ---- misuse


def attend(**options):
    q = torch.ones(1, 2, 3, 4)
    return ch.attention_forward(torch.nn.Identity(), q, q, q, None, **options)


def swapped_twice():
    return ch.replace(ch.replace(new("llama"), "mgk"), "mgk")


def quantised():
    model = new("llama")
    model.model.layers[1].self_attn.k_proj = torch.nn.Identity()
    try:
        ch.replace(model, "mgk")
    finally:
        assert "clmgk" not in model.model.layers[0].self_attn._modules


def fixed_heads():
    config = hf.OPTConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, ffn_dim=48,
                          word_embed_proj_dim=32)
    ch.replace(hf.OPTForCausalLM(config), "mgk")(torch.ones(1, 3, dtype=torch.int64))


@pytest.mark.parametrize("exception, words, function", [
    (NotImplementedError, "expected (4, 8): the model's module has a fixed number of heads", fixed_heads),
    (NotImplementedError, "Olmo2Attention: q_norm normalises all heads together",
     lambda: ch.replace(hf.Olmo2ForCausalLM(hf.Olmo2Config(**TEXT)), "mgk")),
    (NotImplementedError, "output_attentions: the weights are not stored", lambda: attend(output_attentions=True)),
    (NotImplementedError, "cu_seq_lens_q: packed sequences without a mask", lambda: attend(cu_seq_lens_q=torch.tensor([0, 3]))),
    (TypeError, "unexpected argument 'feature'", lambda: ch.replace(new("llama"), "mgk", feature="exp")),
    (ValueError, "variant", lambda: ch.replace(new("llama"), "none")),
    (NotImplementedError, "'mlk': expected one that is not linear", lambda: ch.replace(new("llama"), "mlk")),
    (NotImplementedError, "Linear: no module calls transformers' AttentionInterface",
     lambda: ch.replace(torch.nn.Linear(2, 2), "mgk")),
    (ValueError, "components: 0", lambda: ch.replace(new("llama"), "mgk", components=0)),
    (ValueError, "components: 2: expected 1 with variant softmax", lambda: ch.replace(new("llama"), components=2)),
    (ValueError, "score", lambda: ch.replace(new("llama"), score="gaussian")),
    (ValueError, "its attention was swapped before", swapped_twice),
    (NotImplementedError, "LlamaAttention: expected layers nn.Linear", quantised),
])
def test_misuse(exception, words, function):
    with pytest.raises(exception) as caught:
        function()
    assert words in str(caught.value)
