# SPDX-License-Identifier: Apache-2.0
"""Replaces nn.MultiheadAttention in a small model and trains both: softmax with 4 heads, MGK with 2.

usage: replace_attention.py [STEPS]

The task is recall: a sequence has pairs of a key and a value, then a key; the model tells the value that came with it.
"""
import sys

import torch
from torch import Tensor, nn

import clmgk.torch

KEYS, VALUES, PAIRS, WIDTH, BATCH = 8, 8, 4, 32, 64


class Model(nn.Module):
    """Two encoder layers over the tokens; the last one answers."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.tokens = nn.Embedding(KEYS + VALUES, WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(2 * PAIRS + 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        layer.self_attn = attention  # the only line that differs from PyTorch's model
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.answer = nn.Linear(WIDTH, VALUES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.answer(self.encoder(self.tokens(x) + self.places)[:, -1])
        return y


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    keys = torch.rand(BATCH, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(VALUES, (BATCH, PAIRS), generator=generator)
    asked = torch.randint(PAIRS, (BATCH, 1), generator=generator)
    pairs = torch.stack((keys, KEYS + values), 2).flatten(1)
    return torch.cat((pairs, keys.gather(1, asked)), 1), values.gather(1, asked)[:, 0]


def train(attention: nn.Module, steps: int) -> float:
    """The mean loss of the last tenth of the steps."""
    model, generator = Model(attention), torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        x, y = draw(generator)
        loss = nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 10):]
    return sum(last) / len(last)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    for name, attention in (
            ("torch.nn.MultiheadAttention, 4 heads", lambda: nn.MultiheadAttention(WIDTH, 4, batch_first=True)),
            ("softmax, 4 heads", lambda: clmgk.torch.MultiheadAttention(WIDTH, 4, batch_first=True)),
            ("MGK, 2 heads", lambda: clmgk.torch.MultiheadAttention(WIDTH, 2, batch_first=True, variant="mgk"))):
        torch.manual_seed(2)
        print(f"{name:38s} loss {train(attention(), steps):.3f} after {steps} steps")


if __name__ == "__main__":
    main()
