# SPDX-License-Identifier: Apache-2.0
"""Attention over two processes of torch.distributed (gloo), against one process that has all tokens."""
import os
import pathlib
import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

import clmgk.torch  # noqa: E402

TOKENS, RANKS = 41, 2
# Which tokens each process has: uneven numbers, in zig-zag.
CUTS = [torch.cat([torch.arange(0, 10), torch.arange(30, TOKENS)]), torch.arange(10, 30)]
PACKED = torch.tensor([0, 7, 7, 28, TOKENS])  # sequences
CASES = {
    "gather": ("all-gather", torch.float32, {}),
    "gather-bf16": ("all-gather", torch.bfloat16, {}),
    "ring": ("ring", torch.float32, {}),
    "ring-bf16": ("ring", torch.bfloat16, {}),
    "heads": ("all-to-all", torch.float32, {}),
    "packed": ("ring", torch.float32, {"offsets": PACKED}),
}


def whole(dtype):
    torch.manual_seed(1)
    made = [torch.randn(1, 2, TOKENS, 16).to(dtype) for _ in range(4)]
    return [tensor.requires_grad_(n < 3) for n, tensor in enumerate(made)]


def call(function, qkv, tokens, sinks, options, **more):
    """A call for some of the tokens."""
    options = {**options, "causal": True, "dropout": 0.25, "seed": 5, "slopes": torch.tensor([0.1, 0.2]), "sinks": sinks}
    positions = tokens
    if "offsets" in options:  # of these tokens; positions count within a sequence
        positions = tokens - PACKED[torch.searchsorted(PACKED, tokens, right=True) - 1]
        options["offsets"] = torch.searchsorted(tokens, PACKED).int()
    return function(*qkv, positions=positions[None], return_lse=True, **options, **more)


def run(rank, folder):
    from clmgk.torch.distributed import attention
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    own = CUTS[rank]
    for name, (schedule, dtype, options) in CASES.items():
        *qkv, grad = [tensor.detach()[:, :, own].contiguous() for tensor in whole(dtype)]
        for tensor in qkv:
            tensor.requires_grad_(True)
        sinks = torch.tensor([0.3, -0.4], requires_grad=True)
        for _ in range(2):  # the second call has the first one's plan
            sinks.grad = None
            for tensor in qkv:
                tensor.grad = None
            o, lse = call(attention, qkv, own, sinks, options, schedule=schedule)
            torch.autograd.backward([o, lse], [grad, torch.ones_like(lse)])
        dist.all_reduce(sinks.grad)
        torch.save([o.detach(), *[tensor.grad for tensor in qkv], sinks.grad], f"{folder}/{name}-{rank}.pt")
    refuse(attention, qkv, own)
    done = pathlib.Path(folder, "done")
    if rank == 0:
        with pytest.raises(RuntimeError, match="(?i)timed? ?out"):
            attention(*qkv, timeout=0.3)
        done.touch()
    while not done.exists():  # does not come
        time.sleep(0.05)
    os._exit(0)  # the group's end would wait for both


def refuse(attention, qkv, own):
    with pytest.raises(ValueError, match="positions"):
        attention(*qkv, causal=True)
    with pytest.raises(ValueError, match="schedule"):
        attention(*qkv, schedule="x")
    with pytest.raises(ValueError, match="timeout"):
        attention(*qkv, timeout=0)
    with pytest.raises(NotImplementedError, match="lengths"):
        attention(*qkv, lengths=torch.tensor([3]))
    with pytest.raises(NotImplementedError, match="reads h"):
        attention(*qkv, schedule="all-to-all", positions=own[None], mask_mod="i - j < h + 9")
    with pytest.raises(NotImplementedError, match="kv_heads"):
        attention(qkv[0], qkv[1][:, :1], qkv[2][:, :1], schedule="all-to-all")
    with pytest.raises(TypeError, match="q: list"):
        attention([1], *qkv[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of all cases, by two processes."""
    made = str(tmp_path_factory.mktemp("ranks"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.multiprocessing.spawn(run, (made,), RANKS)
    return made


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(folder, name):
    _, dtype, options = CASES[name]
    q, k, v, grad = whole(dtype)
    sinks = torch.tensor([0.3, -0.4], requires_grad=True)
    positions = torch.arange(TOKENS)
    o, lse = call(lambda *qkv, positions, **more: clmgk.torch.attention(*qkv, positions=positions, positions_k=positions, **more),
                  (q, k, v), positions, sinks, options)
    torch.autograd.backward([o, lse], [grad, torch.ones_like(lse)])
    error = 1e-5 if dtype == torch.float32 else 2e-2
    for rank, own in enumerate(CUTS):
        *parts, grad_sinks = torch.load(f"{folder}/{name}-{rank}.pt")
        for part, expected in zip(parts, (o.detach(), q.grad, k.grad, v.grad)):
            assert part.dtype == dtype
            torch.testing.assert_close(part, expected[:, :, own], rtol=error, atol=error)
        torch.testing.assert_close(grad_sinks, sinks.grad, rtol=2 * error, atol=2 * error)
