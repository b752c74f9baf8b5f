# SPDX-License-Identifier: Apache-2.0
"""MGK attention beside its formula in plain PyTorch: time and memory of a forward and backward pass.

usage: beside_eager.py [LENGTH...]

The formula makes arrays of N·N numbers and keeps them for the backward pass; the library makes none. The time is the least
of three calls, the memory the growth of the process's peak in the first of them.
"""
import sys
import time
from typing import Callable

import torch

import clmgk.torch

HEADS, SIZE, COMPONENTS = 4, 32, 2


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """MGK paper, Eq. 7, with σ² = √D: q [B,H,N,D], k [B,H,M,N,D], prior [H,M]."""
    distance = ((q * q).sum(-1)[:, :, None, :, None] + (k * k).sum(-1)[:, :, :, None]
                - 2 * q[:, :, None] @ k.transpose(-1, -2))
    score = prior.log()[None, :, :, None, None] - distance / (2 * SIZE ** 0.5)
    return torch.softmax(torch.logsumexp(score, 2), -1) @ v


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    o: torch.Tensor = clmgk.torch.attention(q, k, v, variant="mgk", prior=prior)
    return o


def status(field: str) -> int:
    """Bytes, from the process's status."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def measure(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> tuple[float, float, torch.Tensor]:
    """Milliseconds, MB, and the gradient of q."""
    times = []
    memory = 0
    for call in range(3):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak begins anew
        before, start = status("VmRSS"), time.perf_counter()
        gradients = torch.autograd.grad(function(*inputs).square().sum(), inputs)
        times.append(time.perf_counter() - start)
        memory = max(memory, status("VmHWM") - before)
    return 1e3 * min(times), 1e-6 * memory, gradients[0]


def main() -> None:
    lengths = [int(word) for word in sys.argv[1:]] or [256, 1024, 2048]
    torch.manual_seed(1)
    print(f"forward and backward, {HEADS} heads of {SIZE}, {COMPONENTS} keys per position")
    print("length   formula            library")
    for length in lengths:
        q, v = (torch.randn(1, HEADS, length, SIZE, requires_grad=True) for _ in range(2))
        k = torch.randn(1, HEADS, COMPONENTS, length, SIZE, requires_grad=True)
        prior = (torch.rand(HEADS, COMPONENTS) + 0.5).requires_grad_()
        inputs = [q, k, v, prior]
        fused(*inputs)  # compiles
        (time_e, memory_e, exact), (time_f, memory_f, ours) = measure(eager, inputs), measure(fused, inputs)
        difference = (ours - exact).abs().max() / exact.abs().max()
        assert difference < 1e-3, difference
        print(f"{length:6d}  {time_e:8.1f} ms {memory_e:6.0f} MB {time_f:8.1f} ms {memory_f:6.0f} MB")


if __name__ == "__main__":
    main()
