# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention on the CPU beside clmgk-bench, in one sitting: forward, and backward apart from it.

- Fused attention (scaled_dot_product_attention) against softmax, with several numbers of heads and head sizes.
- The MGK paper's formula, and softmax, as plain PyTorch with whole matrices: time and peak memory.
- Heads mixed (--mixed, and nothing else): Hard FiSH 2 -> 8 and talking heads 8 -> 8, the same.
- Linear attention (--linear, and nothing else): elu1, full, 8 heads, the same.
- The layer (--layer, and nothing else): nn.MultiheadAttention and LayerNorm, width 512, 8 heads, N = 1024, batch 4,
  against the suite `layer`: forward, and forward with backward; bytes kept between them.
- The papers' sizes (--paper, and nothing else): fused attention, softmax, MGK and sMGK on short sequences and small heads.
- Scores and masks of one's own (--scores, and nothing else): FlexAttention, compiled, beside the suite `scores`; forward,
  which is all that it has on a CPU. Its compilations take minutes, once.
- Swin's windows: thousands of 49 x 49 with a bias.

Same shapes, same number of threads, f32. --dtype bf16 compares the fused attention, here and over the papers' sizes, in bf16,
and libclmgk's times in f32 beside it. The two programs alternate, so that what disturbs the machine disturbs both;
the medians over all rounds are compared, and the shortest times: of a machine with other work these say more.
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
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tables import PASSES, STEPS, show_eager, show_fused, show_layer, show_paper, show_scores, show_whole

HEADS = 8
MGK_HEADS = 4
COMPONENTS = 2
GLOBAL_HEADS = 2
LAYER = {"width": 512, "heads": HEADS, "batch": 4, "length": 1024}
SWIN = {"batch": 4096, "heads": 3, "length": 49, "head_size": 32}
# Of clmgk-bench; sMGK and MGK have half the heads.
PAPER = ("swin", "iwslt", "wmt", "lra-narrow", "lra-listops", "wikitext-small", "wikitext-medium", "lm1b", "bert-128",
         "bert-512", "short-24")
BENCH = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin" / "clmgk-bench"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


# ---- PyTorch ---------------------------------------------------------------------------------------------------


def normals(*shape, dtype="f32"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(DTYPES[dtype])


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


def timed_passes(forward, inputs, seconds):
    """Times of forward(*inputs), and of the gradients of all inputs, whose graph is made once."""
    with torch.no_grad():
        times = {"forward": timed(lambda: forward(*inputs), seconds)}
    wanted = [one.requires_grad_() for one in inputs]
    out = forward(*wanted)
    grad_out = normals(*out.shape).to(out.dtype)
    times["backward"] = timed(lambda: torch.autograd.grad(out, wanted, grad_out, retain_graph=True), seconds)
    return times


def fused(batch, heads, length, head_size, bias, seconds, causal=False, dtype="f32"):
    inputs = [normals(batch, heads, length, head_size, dtype=dtype) for _ in range(3)]

    def forward(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return timed_passes(forward, inputs, seconds)


def eager_softmax(q, v, key):
    return torch.softmax(q @ key.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


def eager_mgk(q, v, *keys):
    """Whole matrices: sum_r pi_r exp(-|q - k_r|^2 / (2 sqrt(D))), normalised, times v (MGK paper Eq. 7).

    The squared distances are expanded, as their gradient by torch.cdist is slow and undefined at 0.
    """
    weights = 0
    for key in keys:
        norms = q.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2)
        distances = norms - 2 * q @ key.transpose(-1, -2)
        weights = weights + torch.exp(-distances / (2 * q.shape[-1] ** 0.5)) / len(keys)
    return (weights / weights.sum(-1, keepdim=True)) @ v


def eager_mixed(q, key, v, mix):
    """The scores of q's heads, mixed into those of v's, as whole matrices (FiSH paper Eq. 10)."""
    scores = q @ key.transpose(-1, -2)
    mixed = (mix @ scores.flatten(2)).unflatten(2, scores.shape[2:])
    return torch.softmax(mixed / q.shape[-1] ** 0.5, -1) @ v


def eager_linear(q, v, key):
    """phi(q) (phi(k)^T v) / (phi(q) sum phi(k)), phi = elu + 1 (MGK paper, section 2.4)."""
    query, key = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(key) + 1
    total = query @ key.sum(-2).unsqueeze(-1)
    return (query @ (key.transpose(-1, -2) @ v)) / total


def plain_inputs(heads, keys):
    """Q, V and the components of K."""
    return lambda length, head_size: [normals(1, heads, length, head_size) for _ in range(2 + keys)]


def mixed_inputs(of_scores):
    """Q, K, V and the mixing."""

    def make(length, head_size):
        arrays = [normals(1, heads, length, head_size) for heads in (of_scores, of_scores, HEADS)]
        return [*arrays, normals(HEADS, of_scores) / of_scores**0.5]

    return make


# Formula, inputs, and the case of clmgk-bench.
EAGER = {
    "softmax": (eager_softmax, plain_inputs(HEADS, 1), f"softmax:{HEADS}"),
    "mgk": (eager_mgk, plain_inputs(MGK_HEADS, COMPONENTS), f"mgk:{MGK_HEADS}"),
}
MIXED = {
    "hard-fish": (eager_mixed, mixed_inputs(GLOBAL_HEADS), f"hard-fish:{GLOBAL_HEADS}x{HEADS}"),
    "talking-heads": (eager_mixed, mixed_inputs(HEADS), f"talking-heads:{HEADS}"),
}
LINEAR = {"linear": (eager_linear, plain_inputs(HEADS, 1), f"linear:{HEADS}")}


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bytes_of(arrays):
    return sum(array.numel() * array.element_size() for array in arrays)


def eager_child(name, pass_name, length, head_size, seconds):
    """Time and growth of the process's peak memory, also without that of the results (O; backward O, dO and the
    gradients); a process of its own, as that peak never shrinks."""
    formula, make_inputs, _ = {**EAGER, **MIXED, **LINEAR}[name]
    inputs = make_inputs(length, head_size)
    with torch.no_grad():  # libraries get their memory before the peak is taken
        out = formula(*make_inputs(8, head_size))
    before = peak_bytes()
    results = bytes_of([out]) // 8 * length
    if pass_name == "forward":
        with torch.no_grad():
            times = timed(lambda: formula(*inputs), seconds)
    else:
        times = timed_passes(formula, inputs, seconds)["backward"]
        results += results + bytes_of(inputs)
    grown = peak_bytes() - before
    print(json.dumps({"ms": statistics.median(times), "peak_bytes": grown, "extra_bytes": grown - results}))


def eager(arguments, name, pass_name, head_size):
    command = [sys.executable, __file__, "--child", name, pass_name, "--length", arguments.length]
    command += ["--head-sizes", head_size, "--seconds", arguments.seconds, "--threads", torch.get_num_threads()]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


# ---- clmgk-bench -----------------------------------------------------------------------------------------------


def bench(arguments, *words):
    """Cases by variant and pass. Beside another type than f32 also those in f32, in turn with it: as the variants
    "softmax f32", ..."""
    dtypes = arguments.dtype + (",f32" if arguments.dtype != "f32" else "")
    found = run_bench(arguments, "--pass", "both", "--seconds", 2 * arguments.seconds, "--dtype", dtypes, *words)
    return {(name_of(case, arguments.dtype), case["pass"]): case for case in found["cases"]}


def run_bench(arguments, *words):
    """The object that clmgk-bench prints."""
    command = [arguments.bench, "--json", "--keep-caches", *words]
    if arguments.device:
        command += ["--device", arguments.device]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def name_of(case, dtype):
    return case["variant"] + ("" if case["dtype"] == dtype else " " + case["dtype"])


def describe(arguments):
    """The library's version and its device, from a run of a tiny case."""
    words = ["--length", 16, "--head-size", 16, "--variants", "softmax", "--seconds", 0.01]
    found = run_bench(arguments, *words)
    named = ("name", "platform", "driver", "compute_units")
    return {"clmgk": found["clmgk"], "device": {key: found["devices"][0][key] for key in named}}


def bench_square(arguments, heads, head_size):
    variants = f"softmax:{heads}" + (f",mgk:{MGK_HEADS},smgk:{MGK_HEADS}" if heads == HEADS else "")
    sizes = ["--heads", heads, "--length", arguments.length, "--head-size", head_size]
    return bench(arguments, *sizes, "--variants", variants)


# ---- both ------------------------------------------------------------------------------------------------------


def in_turn(rounds, theirs, ours):
    """Medians over rounds of clmgk-bench and PyTorch's fused attention, for each pass. theirs(case): of that size."""
    times = {name: [] for name in PASSES}
    cases = {}
    for _ in range(rounds):
        for key, case in ours().items():
            cases.setdefault(key, []).append(case)
        for name, found in theirs(cases["softmax", "forward"][0]).items():
            times[name] += found
    return {name: compare_pass(name, times[name], cases) for name in PASSES}


def compare_pass(name, times, cases):
    torch_ms = statistics.median(times)
    found = {
        variant: {
            "ms": statistics.median(case["time_ms"]["median"] for case in repeated),
            "best_ms": min(case["time_ms"]["min"] for case in repeated),
            "memory_bytes": repeated[0]["memory_bytes"],
            "workspace_bytes": repeated[0]["workspace_bytes"],
            "fraction_of_peak": statistics.median(case["fraction_of_peak"] for case in repeated),
        }
        for (variant, of), repeated in cases.items()
        if of == name
    }
    flops = cases["softmax", name][0]["flops"]
    ms = found["softmax"]["ms"]
    return {
        "pytorch_fused_ms": torch_ms,
        "pytorch_fused_best_ms": min(times),
        "pytorch_fused_gflops": flops / (1e6 * torch_ms),
        "clmgk_gflops": flops / (1e6 * ms),
        "rate_ratio": torch_ms / ms,
        "clmgk": found,
    }


def compare_square(arguments, heads, head_size):
    return {
        "heads": heads,
        "head_size": head_size,
        **in_turn(
            arguments.rounds,
            lambda case: fused(1, heads, arguments.length, head_size, None, arguments.seconds, dtype=arguments.dtype),
            lambda: bench_square(arguments, heads, head_size),
        ),
    }


def compare_swin(arguments):
    heads, length = SWIN["heads"], SWIN["length"]
    bias = normals(1, heads, length, length)
    return {
        **SWIN,
        **in_turn(
            arguments.rounds,
            lambda case: fused(SWIN["batch"], heads, length, SWIN["head_size"], bias, arguments.seconds),
            lambda: bench(arguments, "--shapes", "swin-49", "--variants", f"softmax:{heads}"),
        ),
    }


def compare_paper(arguments, shape):
    """One of the papers' sizes, as clmgk-bench has it: softmax, and MGK and sMGK with half the heads."""
    size = {}

    def theirs(case):
        size.update({key: case[key] for key in ("batch", "heads", "length", "head_size", "causal")})
        return fused(**size, bias=None, seconds=arguments.seconds, dtype=arguments.dtype)

    found = in_turn(arguments.rounds, theirs, lambda: bench(arguments, "--shapes", shape))
    return {"shape": shape, **size, **found}


def compare_eager(arguments, head_size):
    return {
        "head_size": head_size,
        **{name: {variant: eager(arguments, variant, name, head_size) for variant in EAGER} for name in PASSES},
    }


def compare_whole(arguments, head_size, formulas):
    """Rounds in turn, as of the fused attention."""
    theirs, ours = {}, {}
    variants = ",".join(case for _, _, case in formulas.values())
    sizes = ["--length", arguments.length, "--head-size", head_size, "--variants", variants]
    for _ in range(arguments.rounds):
        for variant in formulas:
            for name in PASSES:
                theirs.setdefault((variant, name), []).append(eager(arguments, variant, name, head_size))
        for key, case in bench(arguments, *sizes).items():
            ours.setdefault(key, []).append(case)
    return {
        "head_size": head_size,
        **{name: {one: whole_ratios(theirs[one, name], ours[one, name]) for one in formulas} for name in PASSES},
    }


def whole_ratios(theirs, ours):
    eager_ms = statistics.median(one["ms"] for one in theirs)
    ms = statistics.median(one["time_ms"]["median"] for one in ours)
    extra, workspace = min(one["extra_bytes"] for one in theirs), ours[0]["workspace_bytes"]
    return {
        "eager_ms": eager_ms,
        "clmgk_ms": ms,
        "time_ratio": eager_ms / ms,
        "eager_extra_bytes": extra,
        "clmgk_workspace_bytes": workspace,
        "memory_ratio": workspace / extra if extra > 0 else None,
    }


# ---- the layer -------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """LN(X + attention(X)), as most models have it."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(LAYER["width"], LAYER["heads"], batch_first=True)
        self.norm = torch.nn.LayerNorm(LAYER["width"])

    def forward(self, x):
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])


def kept_bytes(block, x):
    """Bytes that a forward pass keeps for the backward pass, beside parameters and input; each storage once."""
    known = {one.untyped_storage().data_ptr() for one in [x, *block.parameters()]}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = block(x)
    del out
    return sum(kept.values())


def time_block(seconds):
    block = Block()
    x = normals(LAYER["batch"], LAYER["length"], LAYER["width"])
    grad_out = normals(*x.shape)
    with torch.no_grad():
        block.eval()
        times = {"forward": timed(lambda: block(x), seconds)}
    block.train()
    x.requires_grad_()
    wanted = [x, *block.parameters()]
    times["training"] = timed(lambda: torch.autograd.grad(block(x), wanted, grad_out), seconds)
    return times, kept_bytes(block, x)


def bench_layer(arguments):
    return run_bench(arguments, "--suite", "layer", "--seconds", arguments.seconds)["layers"]


def compare_layer(arguments):
    theirs = {step: [] for step in STEPS}
    ours, bytes_kept = {}, 0
    for _ in range(arguments.rounds):
        times, bytes_kept = time_block(arguments.seconds)
        for step in STEPS:
            theirs[step] += times[step]
        for case in bench_layer(arguments):
            ours.setdefault((case["step"], f"{case['variant']}:{case['heads']}"), []).append(case)
    found = {**LAYER, "pytorch_kept_bytes": bytes_kept, "steps": {}, "decoding": {}}
    for step in STEPS:
        ms = statistics.median(theirs[step])
        found["steps"][step] = {"pytorch_ms": ms, "clmgk": {}}
        for (of, variant), cases in ours.items():
            if of == step:
                median = statistics.median(case["time_ms"]["median"] for case in cases)
                found["steps"][step]["clmgk"][variant] = {
                    "ms": median,
                    "rate_ratio": ms / median,
                    "activation_bytes": cases[0]["activation_bytes"],
                }
    for (of, variant), cases in ours.items():
        if of == "decoding":
            found["decoding"][variant] = statistics.median(case["ratio_to_reading"] for case in cases)
    return found


# ---- scores and masks of one's own ------------------------------------------------------------------------------


def flex_texts():
    """The score and the mask of the shapes of clmgk-bench's suite `scores`; of documents known by an array of N = 4096."""
    slope = 0.5 ** (1 + torch.arange(HEADS))
    document = torch.arange(4096) * 8 // 4096
    return {
        "scores-softcap": (lambda s, b, h, i, j: 30 * torch.tanh(s / 30), None),
        "scores-alibi": (lambda s, b, h, i, j: s - slope[h] * (i - j).abs(), None),
        "scores-window": (None, lambda b, h, i, j: (i - j).abs() <= 256),
        "scores-causal": (None, lambda b, h, i, j: j <= i),
        "scores-documents": (None, lambda b, h, i, j: document[i] == document[j]),
    }


class Flex:
    """FlexAttention of a shape, compiled; `name` None: full attention."""

    def __init__(self, length, head_size, name):
        self.score, self.mask = flex_texts()[name] if name else (None, None)
        self.length = length
        self.inputs = [normals(1, HEADS, length, head_size) for _ in range(3)]
        self.make_blocks = torch.compile(create_block_mask, dynamic=False)
        self.attention = torch.compile(flex_attention, dynamic=False)
        self.blocks = self.classify()
        self.check()

    def classify(self):
        return self.make_blocks(self.mask, None, None, self.length, self.length, device="cpu") if self.mask else None

    def call(self):
        return self.attention(*self.inputs, score_mod=self.score, block_mask=self.blocks)

    def check(self):
        """The last rows against the formula."""
        q, k, v = self.inputs
        rows = torch.arange(self.length - 8, self.length)
        scores = q[:, :, rows] @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        at = (torch.tensor(0), torch.arange(HEADS)[:, None, None], rows[:, None], torch.arange(self.length))
        scores = self.score(scores, *at) if self.score else scores
        scores = scores.masked_fill(~self.mask(*at), -torch.inf) if self.mask else scores
        torch.testing.assert_close(self.call()[:, :, rows], torch.softmax(scores, -1) @ v, rtol=1e-3, atol=1e-4)


def time_flex(seconds, length, head_size, name):
    torch.compiler.reset()  # else the shapes' functions are one function with ever more guards
    flex = Flex(length, head_size, name)
    times = timed(flex.call, seconds)
    return times, timed(flex.classify, seconds / 4) if flex.mask else []


def compare_scores(arguments, shape):
    """Rounds in turn. Cases by text: the built-in modifier, or full attention, has none; classes have a pass of their own."""
    theirs, full, classes, ours = [], [], [], {}
    for _ in range(arguments.rounds):
        found = run_bench(arguments, "--shapes", shape, "--variants", "softmax", "--seconds", 2 * arguments.seconds)["cases"]
        for case in found:
            text = case["score_mod"] or case["mask_mod"] or "built in"
            ours.setdefault("classes" if case["pass"] == "mask" else text, []).append(case)
        size = (found[0]["length"], found[0]["head_size"])
        with torch.no_grad():
            times, of_classes = time_flex(arguments.seconds, *size, shape)
            theirs, classes = theirs + times, classes + of_classes
            full += time_flex(arguments.seconds, *size, None)[0]

    def median(times):
        return statistics.median(times) if times else None

    return {
        "shape": shape,
        "length": size[0],
        "flex_ms": median(theirs),
        "flex_full_ms": median(full),
        "flex_classes_ms": median(classes),
        "clmgk_ms": {text: median([case["time_ms"]["median"] for case in cases]) for text, cases in ours.items()},
    }


# ---- the command ------------------------------------------------------------------------------------------------


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=str(BENCH), help="the program clmgk-bench (default: of build/)")
    parser.add_argument("--device", help="CPU device for clmgk-bench, as its --device")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="of fused attention; bf16: nothing else is compared")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--head-sizes", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--heads", type=int, nargs="+", default=[HEADS, 1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="of each pass of each program in each round")
    parser.add_argument("--no-eager", action="store_true", help="leaves the eager formulas out")
    parser.add_argument("--mixed", action="store_true", help="heads mixed, against the eager formula, and nothing else")
    parser.add_argument("--linear", action="store_true", help="linear attention, likewise")
    parser.add_argument("--layer", action="store_true", help="the multi-head layer, and nothing else")
    parser.add_argument("--scores", nargs="*", choices=flex_texts(), help="scores and masks: of these shapes (default: all)")
    parser.add_argument("--paper", action="store_true", help="the papers' sizes, and nothing else")
    parser.add_argument("--shapes", nargs="+", choices=PAPER, default=PAPER, help="of these (default: all)")
    parser.add_argument("--no-swin", action="store_true", help="leaves Swin's windows out")
    parser.add_argument("--json", help="writes all figures to this file too")
    parser.add_argument("--threads", type=int, help="of PyTorch (default: the processors of this machine)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    found = parser.parse_args()
    if found.dtype != "f32" and (found.mixed or found.linear or found.layer or found.scores is not None):
        parser.error("--dtype: the fused attention alone has other types than f32")
    return found


def compare(arguments):
    result = {
        "pytorch": torch.__version__,
        **describe(arguments),
        "threads": torch.get_num_threads(),
        "dtype": arguments.dtype,
        "length": arguments.length,
        "sizes": [],
        "eager": [],
        "swin": None,
        "mixed": [],
        "linear": [],
        "layer": None,
        "paper": [],
        "scores": [],
    }
    if arguments.scores is not None:
        for shape in arguments.scores or flex_texts():
            result["scores"].append(compare_scores(arguments, shape))
            show_scores(result["scores"][-1])
        return result
    if arguments.paper:
        for shape in arguments.shapes:
            result["paper"].append(compare_paper(arguments, shape))
            show_paper(result["paper"][-1])
        return result
    if arguments.layer:
        result["layer"] = compare_layer(arguments)
        show_layer(result["layer"])
        return result
    if arguments.mixed or arguments.linear:
        key, formulas = ("mixed", MIXED) if arguments.mixed else ("linear", LINEAR)
        for head_size in arguments.head_sizes:
            result[key].append(compare_whole(arguments, head_size, formulas))
            show_whole(result[key][-1], arguments.length, formulas)
        return result
    for head_size in arguments.head_sizes:
        for heads in arguments.heads:
            result["sizes"].append(compare_square(arguments, heads, head_size))
            show_fused(f"N = S = {arguments.length}, {heads} heads, D = {head_size}", result["sizes"][-1])
            if heads == HEADS and not arguments.no_eager and arguments.dtype == "f32":
                result["eager"].append(compare_eager(arguments, head_size))
                show_eager(result["eager"][-1], result["sizes"][-1], EAGER)
    if not arguments.no_swin and arguments.dtype == "f32":
        result["swin"] = compare_swin(arguments)
        title = "Swin: {batch} windows of {length}, {heads} heads of {head_size}, bias".format(**SWIN)
        show_fused(title, result["swin"])
    return result


def main():
    arguments = parse()
    torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
    if arguments.child:
        eager_child(*arguments.child, arguments.length, arguments.head_sizes[0], arguments.seconds)
        return
    result = compare(arguments)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
