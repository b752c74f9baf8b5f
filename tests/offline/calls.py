# SPDX-License-Identifier: Apache-2.0
"""Arguments and arrays of a kernel's work-group for bounds.py, and numpy's results, which it must agree with."""
import pathlib
import subprocess

import numpy as np

import compile as offline
import warps

ARGUMENTS = """
#include "linear/buffers.clh"
#include <stdio.h>
int main(void)
{
    KIND a = {0};
    const mgk_place rows = {0, N * D, D}, results = {0, N * E, E}, values = {0, S * E, E};
    const mgk_component_place keys = {0, S * D, S * D, D};
    a.q = rows, a.o = results, a.v = values, a.k = keys;
    a.lse.head = N, a.lse.token = 1;
    a.mix_head = M, a.batch = 1, a.splits = SPLITS, a.heads = a.kv_heads = H;
    a.length = N, a.length_k = S, a.head_size = D, a.value_size = E, a.left = a.right = -1;
    a.keep_scale = 1.0f, a.scale = SCALE;
#if FORWARD
    a.parts_o = PART, a.key_terms = KEY_TERMS * PART;
#else
    a.grad_o = results, a.grad_q = rows, a.grad_v = values, a.grad_k = keys;
    for (unsigned i = 0; i < sizeof(a.region) / sizeof(a.region[0]); ++i)
        a.region[i] = i * PART;
#if LINEAR
    a.features = F, a.uniform_prior = 1.0f / M, a.right = CAUSAL ? 0 : -1;
#else
    a.chunks = 1;
#endif
#endif
    fwrite(&a, 1, sizeof(a), stdout);
}
"""
LOG2_E = 1.44269504
# Numbers of regions of the workspace (cl/attention/args.clh); the keys' terms have theirs in every pass.
LOG, DELTA, KEY_TERMS = 0, 2, 12
SPACE = 1 << 20  # bytes of an array, or of a region of the workspace, which is the last array and has what is left
MEMORY = 1 << 26
RANDOM = ("q", "k", "v", "o", "grad_o", "mix", "shift", "denominator")
# Where numpy has no result: other scores, or arrays that stay zero here.
UNCHECKED = ("HAS_", "HARD", "GENERALISED", "TYPE_", "FEATURE_MAP")


class Problem:
    """What a configuration computes; `rows` and `keys` of a work-group's tile."""

    def __init__(self, source, options):
        def get(name, rest=0):
            return offline.tunable(options, name, rest)

        self.source, self.options = source, options
        self.linear, self.admixture = "linear/" in source, "admixture/" in source
        self.backward, self.few = "backward" in source, get("FEW_ROWS")
        self.size, self.value_size = get("HEAD_SIZE", 64), get("VALUE_SIZE", 64)
        self.components = get("COMPONENTS", 1)
        self.features, self.causal = get("FEATURES"), get("CAUSAL")
        self.mixed = self.admixture or get("MIXED_HEADS") != 0
        self.heads = 8 if self.mixed else 1
        self.gaussian, self.shifted, self.split = get("SCORE_GAUSSIAN"), get("KEYS_SHIFTED"), get("SPLIT_KEYS")
        self.given = get("KEY_TERMS_GIVEN")
        self.rounded = get("TF32_PRODUCTS") == 1  # the matrix engine's products
        self.threads = get("THREADS_ROW", 1) * get("THREADS_KEY", 1) * get("WARPS", 1) * (32 if self.rounded else 1)
        self.rows = self.keys = get("CHUNK", 32)
        if not self.linear:
            self.keys = get("THREADS_KEY", 1) * get("KEYS_PER_THREAD", 1)
            self.rows = get("THREADS_ROW", 1) * get("ROWS_PER_THREAD", 1)
        if self.few:  # all work-items share the keys
            self.rows, self.keys = self.few, max(self.rows, self.keys, self.threads)
        self.checked = not any(x.startswith(f"-D{name}") for x in options for name in UNCHECKED)

    @property
    def kind(self):
        return "linear" if self.linear else "backward" if self.backward else "forward"

    def lengths(self, tiles):
        """Queries and keys, so many tiles of them."""
        step = max(self.rows, self.keys)
        return (self.rows, tiles * self.keys) if self.few else (tiles * step, tiles * step)


class Call:
    """A kernel's arguments and arrays."""

    def __init__(self, problem, names, tiles, folder):
        self.problem, self.names = problem, names
        self.n, self.s = problem.lengths(tiles)
        values = {"N": self.n, "S": self.s, "D": problem.size, "E": problem.value_size, "M": problem.components,
                  "H": problem.heads, "F": problem.features, "CAUSAL": problem.causal,
                  "SCALE": LOG2_E / problem.size ** 0.5, "KIND": f"mgk_{problem.kind}_args",
                  "FORWARD": int(problem.kind == "forward"),
                  "LINEAR": int(problem.linear), "PART": SPACE // 4, "KEY_TERMS": KEY_TERMS,
                  # a work-group of the backward pass has a block of keys
                  "SPLITS": self.s // problem.rows if problem.kind == "backward" else 1}
        (folder / "args.c").write_text(ARGUMENTS)
        offline.run(["cc", f"-I{offline.KERNELS}", *[f"-D{name}={value}" for name, value in values.items()], "args.c",
                     "-o", "args"], folder)
        self.arguments = subprocess.run([folder / "args"], check=True, stdout=subprocess.PIPE).stdout
        self.memory = np.zeros(MEMORY, np.uint8)
        self.place = {name: i * SPACE for i, name in enumerate(names)}
        random = np.random.default_rng(1)
        for name, at in self.place.items():
            if name in RANDOM:
                self.memory[at:at + SPACE].view(np.float32)[:] = random.standard_normal(SPACE // 4)
        self.expected = self.results() if problem.checked else {}
        self.before = self.memory.copy()

    def bank(self):
        """The constant bank."""
        bank = bytearray(1 << 12)
        bank[0:4] = self.problem.threads.to_bytes(4, "little")
        bank[0x28:0x2c] = warps.STACK.to_bytes(4, "little")
        pointers = b"".join((warps.GLOBAL + at).to_bytes(8, "little") for at in self.place.values())
        data = self.arguments + bytes(8 * len(self.names)) + pointers  # each array begins at element 0
        bank[warps.PARAMETERS:warps.PARAMETERS + len(data)] = data
        return bytes(bank)

    def array(self, name, *shape):
        """A view of an array, or of a region of the workspace by its number."""
        at = self.place["work"] + name * SPACE if isinstance(name, int) else self.place[name]
        count = int(np.prod(shape))
        return self.memory[at:at + 4 * count].view(np.float32).reshape(shape)

    def wrong(self):
        """Faults of the arrays that numpy has, in the rows that the work-group wrote."""
        faults = []
        for (name, shape), right in self.expected.items():
            after = self.array(name, *shape).copy()
            self.memory, run = self.before, self.memory
            written = after != self.array(name, *shape)
            self.memory = run
            error = abs(after - right)[written].max(initial=0) / max(1, abs(right).max())
            if written.sum() < 0.9 * shape[-1] * min(self.problem.rows, self.n) or not error < (1e-3 if self.problem.rounded else 1e-5):
                faults.append(f"{name} is wrong by {error:.1e} in {written.sum()} numbers")
        return faults

    def results(self):
        """{(array, shape): numbers} of numpy."""
        x = self.problem
        if x.linear:
            return {} if x.backward or x.mixed else self.linear()
        return self.admixture() if x.admixture else self.mixture()

    def linear(self):
        def positive(y):
            return np.where(y > 0, y + 1, np.exp(y))

        x, shape = self.problem, (self.n, self.problem.value_size)
        keys = self.array("k", x.components, self.s, x.size)
        weights = positive(self.array("q", self.n, x.size)) @ positive(keys).mean(0).T
        weights = np.tril(weights) if x.causal else weights
        return {("o", shape): weights @ self.array("v", self.s, x.value_size) / weights.sum(1, keepdims=True)}

    def admixture(self):
        """Scores are [head][query][key], their gradients' mixtures [component][query][key]."""
        x, scale = self.problem, self.problem.size ** -0.5
        q, k, v = (self.array(name, count, length, size).astype(np.float64) for name, count, length, size in
                   (("q", x.components, self.n, x.size), ("k", x.components, self.s, x.size),
                    ("v", x.heads, self.s, x.value_size)))
        mix = self.array("mix", x.heads, x.components).astype(np.float64)
        score = np.einsum("hr,rnd,rsd->hns", mix, q, k, optimize=True) * scale
        log = log_sum(score, 2)
        p = np.exp(score - log)
        o = p @ v
        if not x.backward:
            return {(1 if x.split else "o", o.shape): o}
        grad_o, delta = self.row_terms(log, o)
        ds = np.einsum("hr,hns->rns", mix, p * (grad_o @ v.transpose(0, 2, 1) - delta)) * scale
        return self.wanted({"grad_q": ds @ k, "grad_k": ds.transpose(0, 2, 1) @ q,
                            "grad_v": p.transpose(0, 2, 1) @ grad_o})

    def mixture(self):
        """Keys are [component][key][feature]; P [component][query][key]."""
        x, scale, shape = self.problem, self.problem.size ** -0.5, (self.n, self.problem.value_size)
        q = self.array("q", self.n, x.size).astype(np.float64)
        v = self.array("v", self.s, x.value_size).astype(np.float64)
        k = self.array("k", 1 if x.shifted else x.components, self.s, x.size).astype(np.float64)
        if x.shifted:
            k = k + self.array("shift", x.components, 1, x.size)
        norms = -(k ** 2).sum(2) / 2 * bool(x.gaussian)
        if x.given:  # as mixture/keys.cl leaves them
            self.array(KEY_TERMS, *norms.shape)[:] = norms * (scale * LOG2_E if x.shifted else 1)
        score = (q @ k.transpose(0, 2, 1) + norms[:, None]) * scale
        log = log_sum(score, (0, 2))[0]
        p = np.exp(score - log)
        o = p.sum(0) @ v
        if not x.backward:
            return {(1 if x.split else "o", shape): o}
        if x.shifted:
            return {}
        grad_o, delta = self.row_terms(log, o)
        ds = p * (grad_o @ v.T - delta) * scale
        return self.wanted({"grad_q": sum(ds @ k), "grad_v": p.sum(0).T @ grad_o,
                            "grad_k": ds.transpose(0, 2, 1) @ q - k * ds.sum(1)[:, :, None] * bool(x.gaussian)})

    def row_terms(self, log, o):
        """What a kernel of rows leaves in the workspace; dO, and dO.O [..., query, 1] as `log` is."""
        grad_o = self.array("grad_o", *o.shape).astype(np.float64)
        delta = (grad_o * o).sum(-1, keepdims=True)
        self.array(LOG, *log.shape)[:] = -log * LOG2_E
        self.array(DELTA, *log.shape)[:] = -delta
        return grad_o, delta

    def wanted(self, results):
        """Those that the kernel makes."""
        return {(name, one.shape): one for name, one in results.items()
                if f"-DWANT_{name[-1].upper()}=1" in self.problem.options}


def log_sum(score, axes):
    top = score.max(axes, keepdims=True)
    return top + np.log(np.exp(score - top).sum(axes, keepdims=True))
