# SPDX-License-Identifier: Apache-2.0
"""Trains a small model on sequences that are split over processes, and gets the losses of one process.

    sequence_parallel.py [--processes 2] [--schedule ring] [--steps 12]

Each token's class is that of the token half a sequence before it, so a process needs keys of the others. The model runs under
DistributedDataParallel, which averages the processes' gradients; each loss is scaled such that this is the gradient of the mean over
all tokens. Tokens are in zig-zag order: each process has the first and the last of its pieces.
"""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import clmgk.torch
from clmgk.torch.distributed import attention

TOKENS, CLASSES, WIDTH, HEADS, BATCH = 48, 8, 32, 2, 4


class Model(nn.Module):
    """An embedding, attention and a layer of each token, with residuals."""

    def __init__(self, schedule: str | None) -> None:
        super().__init__()
        self.schedule = schedule
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.place = nn.Embedding(TOKENS, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, CLASSES))

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.place(positions)
        q, k, v = self.project(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.schedule is None:
            o = clmgk.torch.attention(q, k, v, positions=positions.int(), positions_k=positions.int(), causal=True)
        else:
            o = attention(q, k, v, schedule=self.schedule, positions=positions, causal=True)
        return self.out(x + o.transpose(1, 2).flatten(2))


def sequences(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of tokens, and what to predict: -100 where it is unknown."""
    tokens = torch.randint(CLASSES, (BATCH, TOKENS), generator=torch.Generator().manual_seed(step))
    targets = tokens.roll(TOKENS // 2, 1)
    targets[:, :TOKENS // 2] = -100
    return tokens, targets


def share(rank: int, processes: int) -> torch.Tensor:
    """The tokens of a process."""
    pieces = torch.arange(TOKENS).tensor_split(2 * processes)
    return torch.cat([pieces[rank], pieces[2 * processes - 1 - rank]])


def train(model: nn.Module, own: torch.Tensor, processes: int, steps: int) -> list[float]:
    """The losses of the steps, of all tokens."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    positions = own.expand(BATCH, -1)
    losses = []
    for step in range(steps):
        tokens, targets = sequences(step)
        known = int((targets >= 0).sum())
        logits = model(tokens[:, own], positions)
        loss = cross_entropy(logits.flatten(0, 1), targets[:, own].flatten(), reduction="sum") / known
        optimiser.zero_grad()
        (loss * processes).backward()
        optimiser.step()
        total = loss.detach().clone()
        if processes > 1:
            dist.all_reduce(total)
        losses.append(float(total))
    return losses


def run(rank: int, folder: str, options: argparse.Namespace) -> None:
    """A process."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.processes)
    torch.manual_seed(1)
    model = DistributedDataParallel(Model(options.schedule))
    losses = train(model, share(rank, options.processes), options.processes, options.steps)
    if rank == 0:
        torch.save(losses, f"{folder}/losses.pt")
    dist.destroy_process_group()


def main() -> None:
    """Trains over processes, then in one, and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--schedule", default="ring")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (folder, options), options.processes)
        several = torch.load(f"{folder}/losses.pt")
    torch.manual_seed(1)
    one = train(Model(None), torch.arange(TOKENS), 1, options.steps)
    for step, (a, b) in enumerate(zip(several, one)):
        print(f"step {step:3}: loss {a:.5f} over {options.processes} processes, {b:.5f} in one")
    largest = max(abs(a - b) for a, b in zip(several, one))
    print(f"largest difference: {largest:.1e}")
    if largest > 1e-3 or several[-1] >= several[0]:
        raise SystemExit("the losses differ, or do not fall")


if __name__ == "__main__":
    main()
