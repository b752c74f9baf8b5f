# SPDX-License-Identifier: Apache-2.0
"""Trains a small encoder on ListOps (Nangia and Bowman 2018; [MAX 2 9 [MIN 4 7 ] 0 ] = 9) with several variants of attention.

Expressions of 10 to 60 tokens are packed: they lie one after another in the same rows, and offsets separate them. Heads have
16 columns. Losses are of the last tenth of the steps; accuracies, of 1,000 other expressions (± deviation over the seeds).
"""
import argparse
import pathlib
import random

import numpy as np
import torch
from torch import Tensor, nn

import clmgk.torch

WIDTH, SIZE, HIDDEN, LAYERS, BATCH = 128, 16, 256, 2, 80
OPERATIONS, END = (10, 11, 12, 13), 14  # tokens behind the ten digits: MIN, MAX, MED, SM; the bracket
OWN = {"softmax": (), "mgk": ("prior",), "smgk": ("prior", "shift"), "hard-fish": ("mix",), "linear": (), "mlk": ("prior",)}


def write(rng: random.Random, depth: int = 1) -> tuple[list[int], int]:
    """The tokens of an expression, and its value."""
    tokens, values = [rng.choice(OPERATIONS)], []
    for _ in range(rng.randint(2, 5)):
        digit = rng.randrange(10)
        part, value = write(rng, depth + 1) if depth < 3 and rng.random() < 0.4 else ([digit], digit)
        tokens += part
        values.append(value)
    results = (min(values), max(values), int(np.median(values)), sum(values) % 10)
    return [*tokens, END], results[tokens[0] - OPERATIONS[0]]


def draw(rng: random.Random, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Expressions one after another: tokens, places, offsets; their values."""
    found = []
    while len(found) < count:
        expression = write(rng)
        if 10 <= len(expression[0]) <= 60:
            found.append(expression)
    tokens = [torch.tensor(tokens) for tokens, _ in found]
    places = torch.cat([torch.arange(len(one)) for one in tokens])
    offsets = torch.tensor(np.cumsum([0, *map(len, tokens)]), dtype=torch.int32)
    return torch.cat(tokens), places, offsets, torch.tensor([value for _, value in found])


class Layer(nn.Module):
    """Attention, with the variant's OWN as parameters, and two feed-forward products."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.variant, _, numbers = text.partition(":")
        components, heads = map(int, numbers.split("x") if "x" in numbers else (2, numbers))
        self.function = clmgk.torch.linear_attention if self.variant in ("linear", "mlk") else clmgk.torch.attention
        self.keys = components if self.variant in ("mgk", "mlk") else 1
        queries = components if self.variant == "hard-fish" else heads
        self.widths = [SIZE * n for n in (queries, queries * self.keys, heads)]
        self.project = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, sum(self.widths)))
        self.output = nn.Linear(SIZE * heads, WIDTH)
        self.hidden = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        extras = {"prior": torch.full((heads, components), 1 / components), "shift": torch.randn(heads, components, SIZE),
                  "mix": torch.randn(heads, components) / components ** 0.5}
        self.extras = nn.ParameterDict({name: extras[name] for name in OWN[self.variant]})

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, SIZE)).transpose(0, 1) for part in self.project(x).split(self.widths, -1))
        self.heads = [q, k.unflatten(0, (-1, self.keys)) if self.keys > 1 else k, v]
        extras = {name: value.clamp_min(1e-4) if name == "prior" else value for name, value in self.extras.items()}
        o = self.function(*self.heads, variant=self.variant, offsets=offsets, **extras)
        x = x + self.output(o.transpose(0, 1).flatten(1))
        return x + self.hidden(x)


class Network(nn.Module):
    """An encoder that classifies a sequence by its first token's row."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(END + 1, WIDTH), nn.Embedding(60, WIDTH)
        self.layers = nn.ModuleList(Layer(variant) for _ in range(LAYERS))
        self.classes = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))

    def forward(self, tokens: Tensor, places: Tensor, offsets: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(places)
        for layer in self.layers:
            x = layer(x, offsets)
        return self.classes(x[offsets[:-1].long()])


def train(network: Network, rng: random.Random, steps: int) -> list[float]:
    """The loss of each step."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        *batch, answers = draw(rng, BATCH)
        loss = nn.functional.cross_entropy(network(*batch), answers)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def export(folder: pathlib.Path, network: Network, lengths: list[int]) -> None:
    """The heads of the first 8 sequences, padded to the longest, and the variant's parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "lengths.npy", lengths[:8])
    for number, layer in enumerate(network.layers, 1):
        for name, rows in zip("qkv", layer.heads):
            parts = rows.movedim(-2, 0).split(lengths)[:8]
            np.save(folder / f"{name}.{number}.npy", nn.utils.rnn.pad_sequence(parts, batch_first=True).movedim(1, -2))
        for name, values in layer.extras.items():
            np.save(folder / f"{name}.{number}.npy", values.detach())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="softmax:8,mgk:4", help="NAME:HEADS or NAME:MxHEADS,... (%(default)s)")
    parser.add_argument("--steps", type=int, default=500, help="of training (%(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="networks of a variant (%(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="draws the losses (PNG, SVG or PDF; needs Matplotlib)")
    parser.add_argument("--export", metavar="DIR", type=pathlib.Path, help="writes heads as .npy files for clmgk-analyze")
    given = parser.parse_args()
    *others, answers = draw(random.Random("other"), 1000)
    curves = {}
    for variant in given.variants.split(","):
        curves[variant], found = [], []
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            network = Network(variant)
            curves[variant].append(train(network, random.Random(seed), given.steps))
            with torch.no_grad():
                found.append((network(*others).argmax(1) == answers).float().mean())
        if given.export:
            export(given.export / variant, network, others[-1].diff().tolist())
        count = sum(values.numel() for values in network.parameters())
        loss = np.mean([losses[-max(1, given.steps // 10):] for losses in curves[variant]])
        print(f"{variant:14s} {count:7d} parameters  loss {loss:.3f}  accuracy {np.mean(found):.3f} ± {np.std(found):.3f}")
    if given.plot:
        import matplotlib.pyplot as plt
        for variant, losses in curves.items():
            plt.plot(np.convolve(np.mean(losses, 0), np.full(20, 1 / 20), "valid"), label=variant)
        plt.gca().set(xlabel="step", ylabel="loss, mean of 20 steps")
        plt.legend()
        plt.savefig(given.plot)


if __name__ == "__main__":
    main()
