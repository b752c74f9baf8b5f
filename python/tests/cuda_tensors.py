#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks clmgk.torch on a GPU's tensors: cuda_tensors.py [--device DEVICE] [--output FILE]

Each case becomes a line of FILE, JSON: its name, its status (0: right) and seconds, the reason of a failure, and what it
measured. Values and gradients are compared with the formulas in double precision on the CPU (formulas.py), or with PyTorch's
own modules. It is for a card; `--device cpu` rehearses it, without what only CUDA has. It needs torch,
NumPy and cffi. Cases that FILE has already are left out. Exit status: 0 all cases are right, 5 some are not, 3 there is no
such device.
"""
import argparse
import json
import sys
import time

import torch

import clmgk.torch as ct
import formulas

F = torch.nn.functional
BOUNDS = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def close(actual, expected, bound):
    scale = max(1.0, expected.abs().max().item())
    error = (actual.detach().cpu().double() - expected.detach().cpu().double()).abs().max().item()
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}: expected {tuple(expected.shape)}"
    assert error <= bound * scale, f"off by {error:.2e}, bound {bound * scale:.2e}"


class Cases:
    """The methods whose names begin with "case_"; a class of its own for the device."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"

    def normal(self, *shape, dtype=torch.float32):
        return torch.randn(shape, device=self.device).to(dtype).requires_grad_()

    def against_the_formula(self, call, formula, inputs, bound):
        """Outputs and gradients of all inputs."""
        exact = {name: tensor.detach().cpu().double().requires_grad_() for name, tensor in inputs.items()}
        actual, expected = call(**inputs), formula(**exact)
        weights = [torch.randn_like(output) for output in actual]
        for a, e in zip(actual, expected):
            close(a, e, bound)
        found = torch.autograd.grad(actual, list(inputs.values()), weights)
        wanted = torch.autograd.grad(expected, list(exact.values()), [weight.cpu().double() for weight in weights])
        for name, a, e in zip(inputs, found, wanted):
            try:
                close(a, e, 4 * bound)
            except AssertionError as error:
                raise AssertionError(f"gradient of {name}: {error}") from None

    def problem(self, variant, inputs, dtype=torch.float32, **options):
        self.against_the_formula(lambda **x: ct.attention(**x, variant=variant, return_lse=True, **options),
                                 lambda **x: formulas.attention(**x, variant=variant, **options), inputs, BOUNDS[dtype])

    def sizes(self, heads, n, s, d, dtype, keys=()):
        return {"q": self.normal(2, heads, n, d, dtype=dtype), "k": self.normal(2, heads, *keys, s, d, dtype=dtype),
                "v": self.normal(2, heads, s, d, dtype=dtype)}

    # ---- variants and types

    def case_softmax_f32(self):
        self.problem("softmax", self.sizes(2, 70, 90, 64, torch.float32), causal=True)

    def case_softmax_f16(self):
        self.problem("softmax", self.sizes(2, 130, 150, 64, torch.float16), torch.float16, causal=True)

    def case_softmax_bf16(self):
        self.problem("softmax", self.sizes(2, 130, 150, 64, torch.bfloat16), torch.bfloat16, causal=True)

    def case_softmax_bf16_128(self):
        self.problem("softmax", self.sizes(2, 130, 150, 128, torch.bfloat16), torch.bfloat16)

    def case_mgk(self):
        prior = (torch.rand(2, 2, device=self.device) + 0.3).requires_grad_()
        self.problem("mgk", {**self.sizes(2, 40, 50, 32, torch.float32, (2,)), "prior": prior})

    def case_smgk_bf16(self):
        # Shifts are close to each other, so that the gradients of a key's components do not cancel.
        shift = (0.3 * torch.randn(2, 2, 32, device=self.device)).requires_grad_()
        self.problem("smgk", {**self.sizes(2, 40, 50, 32, torch.bfloat16), "shift": shift}, torch.bfloat16)

    def case_hard_fish(self):
        self.problem("hard-fish", {**self.sizes(2, 40, 50, 32, torch.float32), "mix": self.normal(2, 2)}, causal=True)

    def case_bias(self):
        self.problem("softmax", {**self.sizes(2, 20, 30, 32, torch.float32), "bias": self.normal(1, 2, 20, 30)})

    def case_dropout(self):
        """The weights that are left, seen through values that are a unit matrix, are those of the sums and of V's gradient."""
        q, k, v = self.sizes(2, 40, 32, 32, torch.float32).values()
        options = {"dropout": 0.25, "seed": 7}
        weights = ct.attention(q, k, torch.eye(32, device=self.device).expand(2, 2, 32, 32), **options).detach().cpu().double()
        dropped = (weights == 0).double().mean().item()
        assert 0.2 < dropped < 0.3, f"{dropped:.3f} of the weights are dropped"
        o, grad = ct.attention(q, k, v, **options), torch.randn(2, 2, 40, 32, device=self.device)
        close(o, weights @ v.detach().cpu().double(), 1e-4)
        close(torch.autograd.grad(o, v, grad)[0], weights.transpose(-1, -2) @ grad.cpu().double(), 1e-4)

    def case_linear(self):
        self.against_the_formula(lambda **x: [ct.linear_attention(**x, causal=True)],
                                 lambda **x: [formulas.linear_attention(**x, causal=True)[0]],
                                 self.sizes(2, 70, 70, 32, torch.float32), BOUNDS[torch.float32])

    # ---- PyTorch's functions, and its manners

    def case_scaled_dot_product_attention(self):
        q, k, v = (tensor.detach() for tensor in self.sizes(4, 40, 50, 64, torch.float32).values())
        for options in ({}, {"is_causal": True}, {"attn_mask": torch.rand(40, 50, device=self.device) > 0.2}, {"scale": 0.3}):
            close(*(f(q, k, v, **options) for f in (ct.scaled_dot_product_attention, F.scaled_dot_product_attention)), 2e-4)

    def case_module(self):
        theirs = torch.nn.MultiheadAttention(64, 4, batch_first=True, device=self.device)
        ours = ct.MultiheadAttention(64, 4, batch_first=True, device=self.device)
        ours.load_state_dict(theirs.state_dict())
        x = self.normal(2, 30, 64)
        padding = torch.arange(30, device=self.device) >= torch.tensor([[30], [20]], device=self.device)
        for options in ({}, {"key_padding_mask": padding}):
            close(*(module(x, x, x, need_weights=False, **options)[0] for module in (ours, theirs)), 2e-4)

    def case_training(self):
        """MGK's module under autocast, with an optimiser and EM steps: the loss falls."""
        torch.manual_seed(1)
        module = ct.MultiheadAttention(64, 4, batch_first=True, variant="mgk", device=self.device)
        optimiser = torch.optim.Adam(module.parameters(), 3e-3)
        x = self.normal(2, 30, 64).detach()
        losses = []
        for _ in range(20):
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = (module(x, x, x)[0] - x).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        module.update_prior(x, x)
        close(module.prior.sum(-1), torch.ones(4), 1e-4)
        assert losses[-1] < 0.9 * losses[0], f"losses {losses[0]:.3f} to {losses[-1]:.3f}"

    def case_compiled(self):
        compiled = torch.compile(lambda q: ct.attention(q * 2, q, q, causal=True).sin(), fullgraph=True, backend="aot_eager")
        q = self.normal(1, 2, 20, 32)
        expected = ct.attention(q * 2, q, q, causal=True).sin()
        close(compiled(q), expected, 1e-6)
        close(*(torch.autograd.grad(o.sum(), q)[0] for o in (compiled(q), expected)), 1e-5)

    def case_empty(self):
        for shape in ((0, 2, 5, 32), (1, 2, 0, 32)):
            q = self.normal(*shape)
            ct.attention(q, q, q).sum().backward()
            assert q.grad.shape == shape

    def case_steps_keep_no_memory(self):
        q = self.normal(1, 2, 64, 32)
        for step in range(60):
            if step == 20 and self.is_cuda:
                before = torch.cuda.memory_allocated(self.device)
            torch.autograd.grad(ct.attention(q, q, q).sum(), q)
        assert not self.is_cuda or torch.cuda.memory_allocated(self.device) == before

    # ---- what only CUDA has

    def cuda_streams(self):
        """A call waits for the work before it on torch's stream, and work behind it waits for the call."""
        stream, n = torch.cuda.Stream(self.device), 4096
        big = torch.randn(n, n, device=self.device)
        q = torch.randn(1, 4, 256, 64, device=self.device)
        expected = ct.attention(q, q, q)
        torch.cuda.synchronize(self.device)
        for _ in range(5):
            with torch.cuda.stream(stream):
                late = torch.zeros_like(q)
                for _ in range(8):
                    big = torch.tanh(big @ big)
                late.copy_(q)
                o = ct.attention(late, late, late)
                late.zero_()
                copy = o.clone()
            stream.synchronize()
            close(copy, expected, 0)

    def cuda_graph(self):
        """A captured call computes anew with what the arrays hold at each replay."""
        q = torch.randn(1, 4, 64, 64, device=self.device)
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            ct.attention(q, q, q)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            o = ct.attention(q, q, q)
        for _ in range(2):
            q.normal_()
            graph.replay()
            torch.cuda.synchronize(self.device)
            close(o, ct.attention(q, q, q), 0)

    def cuda_other_devices(self):
        """Tensors of two devices are refused; the next call works."""
        q = self.normal(1, 2, 20, 32)
        try:
            ct.attention(q, q.cpu(), q)
        except RuntimeError as error:
            assert "one device" in str(error), error
        else:
            raise AssertionError("a tensor on the CPU was taken")
        ct.attention(q, q, q)

    def cuda_speed(self):
        """Milliseconds beside PyTorch's own attention: bf16, 8 heads, N = 4096, D = 64."""
        q, k, v = (self.normal(1, 8, 4096, 64, dtype=torch.bfloat16) for _ in range(3))
        found = {}
        for name, attend in (("clmgk", ct.attention), ("torch", F.scaled_dot_product_attention)):
            found[f"{name}_forward_ms"] = self.least(lambda: attend(q.detach(), k.detach(), v.detach()))
            o = attend(q, k, v)
            weight = torch.randn_like(o)
            found[f"{name}_backward_ms"] = self.least(lambda: torch.autograd.grad(o, (q, k, v), weight, retain_graph=True))
        return found

    def least(self, call):
        times = []
        for _ in range(12):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize(self.device)
            times.append(start.elapsed_time(end))
        return round(min(times), 4)

    def run(self, record, known):
        """Runs all cases but the known; returns the number of those that failed."""
        failed = 0
        for name in dir(self):
            kind, _, words = name.partition("_")
            if words.replace("_", " ") in known or (kind != "case" and not (kind == "cuda" and self.is_cuda)):
                continue
            torch.manual_seed(3)
            line, start = {"case": words.replace("_", " "), "status": 0}, time.monotonic()
            try:
                measured = getattr(self, name)()
                line |= {"result": measured} if measured else {}
            except Exception as error:  # the next case runs all the same
                line |= {"status": 1, "error": f"{type(error).__name__}: {error}"[:2000]}
                failed += 1
            line["seconds"] = round(time.monotonic() - start, 2)
            record(line)
        return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch finds no CUDA device", file=sys.stderr)
        return 3
    output = open(arguments.output, "a+", encoding="utf-8") if arguments.output else None
    known = set()
    if output:
        output.seek(0)
        known = {json.loads(line)["case"] for line in output}

    def record(line):
        words = line.get("error") or ", ".join(f"{key} {value}" for key, value in line.get("result", {}).items()) or "right"
        print(f"{line['case']:<32}{'' if line['status'] == 0 else 'FAILED: '}{words}", flush=True)
        if output:
            output.write(json.dumps(line, separators=(",", ":")) + "\n")
            output.flush()

    return 5 if Cases(arguments.device).run(record, known) else 0


if __name__ == "__main__":
    sys.exit(main())
