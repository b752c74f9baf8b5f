# SPDX-License-Identifier: Apache-2.0
"""Attention over two processes of torch.distributed (gloo), against one process that has all tokens."""
import os

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

import clmgk.torch  # noqa: E402

TOKENS, RANKS = 41, 2
# Which tokens each process has: uneven numbers, in zig-zag.
CUTS = [torch.cat([torch.arange(0, 10), torch.arange(30, TOKENS)]), torch.arange(10, 30)]


def options_of(schedule):
    return {"causal": True, "seed": 5} if schedule == "all-to-all" else {"causal": True, "dropout": 0.25, "seed": 5}


def whole(dtype):
    torch.manual_seed(1)
    made = [torch.randn(1, 2, TOKENS, 16).to(dtype) for _ in range(4)]
    return [tensor.requires_grad_(n < 3) for n, tensor in enumerate(made)]


def run(rank, folder, dtype, schedule):
    from clmgk.torch.distributed import attention
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    own = CUTS[rank]
    *qkv, grad = [tensor.detach()[:, :, own].contiguous() for tensor in whole(dtype)]
    for tensor in qkv:
        tensor.requires_grad_(True)
    slopes = torch.tensor([0.1, 0.2])
    sinks = torch.tensor([0.3, -0.4], requires_grad=True)
    o, lse = attention(*qkv, positions=own[None], schedule=schedule, return_lse=True, slopes=slopes, sinks=sinks, **options_of(schedule))
    torch.autograd.backward([o, lse], [grad, torch.ones_like(lse)])
    dist.all_reduce(sinks.grad)
    torch.save([o.detach(), *[tensor.grad for tensor in qkv], sinks.grad], f"{folder}/{rank}.pt")
    with pytest.raises(ValueError, match="positions"):
        attention(*qkv, causal=True)
    with pytest.raises(ValueError, match="schedule"):
        attention(*qkv, schedule="x")
    with pytest.raises(NotImplementedError, match="lengths"):
        attention(*qkv, lengths=torch.tensor([3]))
    with pytest.raises(NotImplementedError, match="reads h"):
        attention(*qkv, schedule="all-to-all", positions=own[None], mask_mod="i - j < h + 9")
    with pytest.raises(ValueError, match="1 heads"):
        attention(qkv[0], qkv[1][:, :1], qkv[2][:, :1], schedule="all-to-all")
    with pytest.raises(NotImplementedError, match="dropout"):
        attention(*qkv, schedule="all-to-all", positions=own[None], dropout=0.5)
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype,schedule", [(torch.float32, "all-gather"), (torch.bfloat16, "all-gather"), (torch.float32, "ring"),
                                            (torch.bfloat16, "ring"), (torch.float32, "all-to-all")])
def test_two_processes_are_one(tmp_path, dtype, schedule):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.multiprocessing.spawn(run, (str(tmp_path), dtype, schedule), RANKS)
    q, k, v, grad = whole(dtype)
    positions = torch.arange(TOKENS, dtype=torch.int32)[None]
    sinks = torch.tensor([0.3, -0.4], requires_grad=True)
    o, lse = clmgk.torch.attention(q, k, v, positions=positions, positions_k=positions, return_lse=True, slopes=torch.tensor([0.1, 0.2]),
                                   sinks=sinks, **options_of(schedule))
    torch.autograd.backward([o, lse], [grad, torch.ones_like(lse)])
    error = 1e-5 if dtype == torch.float32 else 2e-2
    for rank, own in enumerate(CUTS):
        *parts, grad_sinks = torch.load(f"{tmp_path}/{rank}.pt")
        for part, expected in zip(parts, (o.detach(), q.grad, k.grad, v.grad)):
            assert part.dtype == dtype
            torch.testing.assert_close(part, expected[:, :, own], rtol=error, atol=error)
        torch.testing.assert_close(grad_sinks, sinks.grad, rtol=2 * error, atol=2 * error)
