# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's fused CPU attention and clmgk-bench in turn, and the MGK paper's formula as plain PyTorch.

Same shape (batch 1, 8 heads or MGK's 4, N = S, f32) and the same threads. The two
programs alternate, so that what disturbs the machine disturbs both; the medians over all rounds are compared.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS = 8
MGK_HEADS = 4
COMPONENTS = 2
BENCH = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin" / "clmgk-bench"


# ---- PyTorch ---------------------------------------------------------------------------------------------------


def normals(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def timed(call, seconds):
    """Milliseconds of runs of `call` for about `seconds`, after two that are not counted."""
    call()
    call()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def fused(length, head_size, seconds):
    q, k, v = (normals(1, HEADS, length, head_size) for _ in range(3))
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return timed(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v), seconds)


def eager_mgk(q, keys, v, prior):
    """Whole matrices: sum_r pi_r exp(-|q - k_r|^2 / (2 sqrt(D))), normalised, times v (MGK paper Eq. 7)."""
    variance = q.shape[-1] ** 0.5
    weights = sum(
        prior[r] * torch.exp(-torch.cdist(q, key).square() / (2 * variance)) for r, key in enumerate(keys)
    )
    return (weights / weights.sum(-1, keepdim=True)) @ v


def eager_softmax(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


def eager_call(name, length, head_size):
    heads = MGK_HEADS if name == "mgk" else HEADS
    q, v = normals(1, heads, length, head_size), normals(1, heads, length, head_size)
    keys = [normals(1, heads, length, head_size) for _ in range(COMPONENTS)]
    if name == "mgk":
        return lambda: eager_mgk(q, keys, v, [1 / COMPONENTS] * COMPONENTS)
    return lambda: eager_softmax(q, keys[0], v)


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def eager_child(name, length, head_size, seconds):
    """Time and growth of the process's peak memory; a process of its own, as that peak never shrinks."""
    call = eager_call(name, length, head_size)
    before = peak_bytes()
    with torch.no_grad():
        times = timed(call, seconds)
    print(json.dumps({"ms": statistics.median(times), "peak_bytes": peak_bytes() - before}))


def eager(name, length, head_size, seconds, threads):
    command = [sys.executable, __file__, "--child", name, "--length", str(length), "--head-sizes", str(head_size)]
    command += ["--seconds", str(seconds), "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# ---- clmgk-bench -----------------------------------------------------------------------------------------------


def bench(arguments, head_size):
    command = [arguments.bench, "--json", "--batch", "1", "--heads", HEADS, "--length", arguments.length]
    command += ["--head-size", head_size, "--seconds", arguments.seconds, "--keep-caches"]
    command += ["--variants", f"softmax:{HEADS},mgk:{MGK_HEADS},smgk:{MGK_HEADS}"]
    if arguments.device:
        command += ["--device", arguments.device]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def cases_by_variant(found):
    return {case["variant"]: case for case in found["cases"]}


# ---- both ------------------------------------------------------------------------------------------------------


def compare(arguments, head_size, threads):
    """Rounds of PyTorch and clmgk-bench in turn."""
    torch_ms, ours = [], {"softmax": [], "mgk": [], "smgk": []}
    memory = {}
    flops = 0
    for _ in range(arguments.rounds):
        torch_ms += fused(arguments.length, head_size, arguments.seconds)
        for variant, case in cases_by_variant(bench(arguments, head_size)).items():
            ours[variant].append(case["time_ms"]["median"])
            memory[variant] = case["memory_bytes"]
            flops = case["flops"] if variant == "softmax" else flops
    size = {
        "head_size": head_size,
        "pytorch_fused_ms": statistics.median(torch_ms),
        "clmgk_ms": {variant: statistics.median(times) for variant, times in ours.items()},
        "clmgk_bytes": memory,
        "eager": {
            name: eager(name, arguments.length, head_size, arguments.seconds, threads) for name in ("softmax", "mgk")
        },
    }
    size["pytorch_fused_gflops"] = flops / (1e6 * size["pytorch_fused_ms"])
    size["clmgk_gflops"] = flops / (1e6 * size["clmgk_ms"]["softmax"])
    size["rate_ratio"] = size["pytorch_fused_ms"] / size["clmgk_ms"]["softmax"]
    return size


def show_row(name, figure, rest=""):
    print(f"  {name:<30}{figure:>10} {rest}")


def show(size):
    print(f"D = {size['head_size']}")
    for name, key in (("PyTorch fused", "pytorch_fused"), ("clmgk", "clmgk")):
        ms = size["clmgk_ms"]["softmax"] if key == "clmgk" else size["pytorch_fused_ms"]
        show_row(f"{name}, softmax {HEADS}", f"{ms:.1f} ms", f"{size[key + '_gflops']:8.1f} GFLOP/s")
    show_row("rate against PyTorch fused", f"{size['rate_ratio']:.2f}")
    for name, heads in (("softmax", HEADS), ("mgk", MGK_HEADS)):
        found = size["eager"][name]
        show_row(f"eager formula, {name} {heads}", f"{found['ms']:.1f} ms", f"{1e-6 * found['peak_bytes']:8.0f} MB")
    for name in ("mgk", "smgk"):
        memory = f"{1e-6 * size['clmgk_bytes'][name]:8.0f} MB"
        show_row(f"clmgk, {name} {MGK_HEADS}", f"{size['clmgk_ms'][name]:.1f} ms", memory)
    show_row("eager MGK / clmgk MGK, time", f"{size['eager']['mgk']['ms'] / size['clmgk_ms']['mgk']:.2f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=str(BENCH), help="the program clmgk-bench (default: of build/)")
    parser.add_argument("--device", help="CPU device for clmgk-bench, as its --device")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--head-sizes", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="of each program in each round")
    parser.add_argument("--json", help="writes all figures to this file too")
    parser.add_argument("--threads", type=int, help="of PyTorch (default: the processors of this machine)")
    parser.add_argument("--child", choices=["softmax", "mgk"], help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    arguments = parse()
    threads = arguments.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    if arguments.child:
        eager_child(arguments.child, arguments.length, arguments.head_sizes[0], arguments.seconds)
        return
    sizes = []
    for head_size in arguments.head_sizes:
        sizes.append(compare(arguments, head_size, threads))
        show(sizes[-1])
    if arguments.json:
        result = {"pytorch": torch.__version__, "threads": threads, "length": arguments.length, "sizes": sizes}
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
