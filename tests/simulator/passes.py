# SPDX-License-Identifier: Apache-2.0
"""A pass of the library as its plan launches it on an NVIDIA GPU (offline_plans steps), without a card: arrays in the
simulator's memory (warps.py), and numpy's results in double precision, for run.py.

Each array has gaps between its rows where the problem asks for them, and a guard on both sides that nothing may touch;
only elements of outputs may be written. Whatever is not an element that rows in use may read holds NaN: gaps, keys beyond
a batch's length, packed neighbours (Inf), outputs.
"""
import dataclasses
import pathlib
import struct
import tempfile

import numpy as np

import machine
import warps
from machine import offline

GUARD = 1 << 12  # bytes
VARIANTS = {"softmax": 0, "gaussian": 1, "mgk": 2, "smgk": 3, "hard-fish": 5, "hard-mish": 7}
F32, F16, BF16, E4M3, E5M2, INT8 = range(6)
STORED = ("q", "k", "v", "o", "grad_o", "grad_q", "grad_k", "grad_v")
COUNTS = ("lengths", "lengths_q", "offsets", "offsets_k")
STATISTICS = ("responsibilities", "counts", "new_prior", "nll")
PRIOR_HM = 2
POOLED = {"k": -2, "v": -2, "scale_k": -1, "scale_v": -1}  # arrays that may lie in pages, with their axis of tokens
INTEGERS = 40.0  # int8 of a number near 1, and the inverse of its scale
OUTPUTS = ("grad_q", "grad_k", "grad_v", "grad_prior", "grad_variance", "grad_shift", "grad_mix", *STATISTICS)


def codes_of(dtype):
    """The numbers of all bytes of a type of 8 bits."""
    code = np.arange(256, dtype=np.uint8)
    if dtype == INT8:
        return code.view(np.int8).astype(np.float64)
    if dtype == E5M2:
        return (code.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    exponent, fraction = (code >> 3 & 15).astype(int), code & 7
    number = np.where(exponent == 0, np.ldexp(fraction / 8, -6), np.ldexp(1 + fraction / 8, exponent - 7))
    return np.where(code & 0x7f == 0x7f, np.nan, np.where(code & 0x80, -number, number))


def stored(values, dtype):
    """Bytes of numbers of a storage type, and the numbers that these are."""
    if dtype >= E4M3:
        codes = codes_of(dtype)
        known = np.argsort(codes)[:np.isfinite(codes).sum()]  # numbers that are none are the last
        known = known[np.isfinite(codes[known])]
        nearest = known[abs(np.nan_to_num(values)[..., None] - codes[known]).argmin(-1)]
        pattern = np.where(np.isnan(values), 0x7f, nearest).astype(np.uint8)
    elif dtype == F32:
        pattern = values.astype(np.float32)
    elif dtype == F16:
        pattern = values.astype(np.float16)
    else:
        raw = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        pattern = np.where(np.isnan(values), 0x7fff, (raw + 0x7fff + (raw >> 16 & 1)) >> 16).astype(np.uint16)
    return pattern, loaded(pattern, dtype)


def philox(counter):
    """The four words of Philox4x32-10 (Salmon et al. 2011) with the key 0, of arrays of counters."""
    word, key, half = [np.asarray(part, np.uint64) for part in counter], (0, 0), np.uint64(0xffffffff)
    for _ in range(10):
        first, second = (np.uint64(factor) * word[i] for factor, i in ((0xD2511F53, 0), (0xCD9E8D57, 2)))
        word = [second >> np.uint64(32) ^ word[1] ^ np.uint64(key[0]), second & half,
                first >> np.uint64(32) ^ word[3] ^ np.uint64(key[1]), first & half]
        key = (key[0] + 0x9E3779B9) & 0xffffffff, (key[1] + 0xBB67AE85) & 0xffffffff
    return word


def loaded(pattern, dtype):
    if dtype >= E4M3:
        return codes_of(dtype)[pattern]
    if dtype == F16:
        return pattern.view(np.float16).astype(np.float64)
    if dtype == F32:
        return pattern.view(np.float32).astype(np.float64)
    return (pattern.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@dataclasses.dataclass
class Step:
    source: str
    kernel: str
    items: int
    threads: int
    names: list
    arguments: bytes
    options: list


class Plan:
    """What offline_plans prints for a configuration's name and fields of its problem; `name` None: of a product."""

    def __init__(self, program, name, fields):
        wanted = ["product"] if name is None else ["steps", name]
        offline.Texts.code = None
        text = offline.run([program, *wanted, *(f"{key}={value}" for key, value in fields.items())], None)
        self.steps = []
        for line in text.splitlines():
            kind, *rest = line.split()
            if kind == "problem":
                self.problem = {key: int(value) for key, value in (part.split("=") for part in rest)}
            elif kind == "code":
                offline.Texts.code = bytes.fromhex(rest[0]).decode()
            elif kind == "workspace":
                self.workspace = int(rest[0])
            else:
                self.steps.append(Step(rest[0], rest[1], int(rest[2]), int(rest[3]), rest[4].split(","),
                                       bytes.fromhex(rest[5]), rest[6:]))


class Memory:
    """Arrays with guards."""

    def __init__(self):
        self.parts, self.size, self.place = [], GUARD, {}

    def add(self, name, extent, size, offset):
        """Room for `extent` elements of `size` bytes, the first of them `offset` elements behind a piece's beginning."""
        self.place[name] = self.size, offset * size, extent * size
        self.size += -(-(extent + offset) * size // 256) * 256 + GUARD

    def make(self):
        self.bytes = np.full(self.size, 0xff, np.uint8)
        self.access = np.zeros(self.size, np.uint8)
        for begin, offset, extent in self.place.values():
            self.access[begin + offset:begin + offset + extent] = warps.READ

    def view(self, name, shape, strides, size):
        """An array's elements, and the access to them, of `size` bytes."""
        begin, offset, _ = self.place[name]
        begin += offset
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[size]
        strides = [stride * size for stride in strides]
        return (np.ndarray(shape, kind, self.bytes, begin, strides),
                np.ndarray((*shape, size), np.uint8, self.access, begin, (*strides, 1)))


class Pass:
    """`offsets`: of arrays' first elements, by name; `packed`: lengths of sequences of which all but the one in the
    middle hold Inf; `lengths`: of the keys in use of each batch, else all are; `hidden`: a slice of keys that the problem's mask
    hides."""

    def __init__(self, plan, offsets=None, packed=None, lengths=None, hidden=slice(0)):
        self.plan, self.x, self.hidden = plan, plan.problem, hidden
        self.packed, self.lengths = packed, lengths
        self.gaussian = self.x["variant"] in (VARIANTS["gaussian"], VARIANTS["mgk"], VARIANTS["smgk"])
        self.shifted = self.x["variant"] == VARIANTS["smgk"]
        self.shares_mix = self.x["variant"] == VARIANTS["hard-mish"]
        self.mixed = self.shares_mix or self.x["variant"] == VARIANTS["hard-fish"]  # heads of Q and K: the components
        self.names = sorted({name for step in plan.steps for name in step.names})
        self.memory, self.values = Memory(), {}
        for name in self.names:
            extent = 1 + sum((count - 1) * stride for count, stride in zip(self.shape(name), self.strides(name)))
            self.memory.add(name, max(extent, 1), self.size_of(name), (offsets or {}).get(name, 0))
        self.memory.make()
        self.fill()
        self.starts = {name: (offsets or {}).get(name, 0) for name in self.names}

    # ---- arrays ----

    def dtype(self, name):
        own = {"k": "dtype_k", "v": "dtype_v", "o": "dtype_o"}.get(name.removeprefix("grad_"), "dtype")
        storage = self.x[own] - 1 if own != "dtype" else -1  # a storage type of 0: that of Q
        return F32 if name not in STORED else storage if storage >= 0 else self.x["dtype"]

    def size_of(self, name):
        return 1 if name == "workspace" else {F32: 4, F16: 2, BF16: 2}.get(self.dtype(name), 1)

    def shape(self, name):
        """Of the array: of K, V and their scales that of the pool, if there are pages."""
        if name == "page_table":
            return self.x["batch"], self.x["table_pages"]
        shape = self.whole_shape(name)
        if not self.x["page_size"] or name not in POOLED:
            return shape
        token = POOLED[name] + len(shape)
        return (self.x["pages"], *shape[1:token], self.x["page_size"], *shape[token + 1:])

    def whole_shape(self, name):
        x, m = self.x, self.x["components"]
        n, s, t = x["length"], x["length_k"], x["sequences"]
        axes = {"q": (x["batch"], m if self.mixed else x["heads"], n, x["head_size"]), "o": (x["batch"], x["heads"], n, x["value_size"]),
                "k": (x["batch"], m if self.mixed else x["kv_heads"], 1 if self.shifted or self.mixed else m, s,
                      x["head_size"]), "mix": (m,) if self.shares_mix else (x["heads"], m),
                "v": (x["batch"], x["kv_heads"], s, x["value_size"]), "lse": (x["batch"], x["heads"], n),
                "shift": (x["heads"], m, x["head_size"]), "sinks": (x["heads"],), "workspace": (self.plan.workspace,),
                "offsets": (t + 1,), "offsets_k": (t + 1,), "responsibilities": (x["batch"], x["heads"], m, n, s),
                "prior": (x["heads"], m) if x["prior_shape"] == PRIOR_HM else (m,), "variance": (1,),
                "nll": (x["batch"], x["heads"]), "scale_v": (x["batch"], x["kv_heads"], s)}
        axes["counts"], axes["new_prior"], axes["scale_k"] = axes["prior"], axes["prior"], axes["k"][:-1]
        return axes.get(name.removeprefix("grad_"), (x["batch"],))

    def strides(self, name):
        own = name if f"{name}.token" in self.x else {"grad_lse": "lse"}.get(name)
        if own is None:
            shape = self.shape(name)
            return [int(np.prod(shape[i + 1:])) for i in range(len(shape))]
        batch, head, component, token = (self.x[f"{own}.{axis}"] for axis in ("batch", "head", "component", "token"))
        if own in ("lse", "scale_k", "scale_v"):
            return [batch, head, component, token] if own == "scale_k" else [batch, head, token]
        return [batch, head, component, token, 1] if name in ("k", "grad_k") else [batch, head, token, 1]

    def given(self, name):
        """Whether the call has the array."""
        x = self.x
        switched = {"lengths": x["use_lengths"], "lengths_q": x["use_lengths_q"], "offsets": x["sequences"],
                    "offsets_k": x["use_offsets_k"], "sinks": x["use_sinks"], "grad_lse": False,
                    "prior": x["prior_shape"] == PRIOR_HM, "variance": False, "page_offsets": False, "last_page": False}
        return switched.get(name, True)

    def fill(self):
        """Inputs, and what may be written; numbers of rows that are not in use stay NaN, of packed neighbours Inf."""
        random = np.random.default_rng(1)
        backward = "grad_o" in self.names
        own = [name for name in ("q", "k", "v", "shift", "sinks", "mix", "grad_o", "prior") if name in self.names]
        if self.x["page_size"]:
            self.make_table(random)
        for name in own:
            values = random.standard_normal(self.whole_shape(name)) * (INTEGERS if self.dtype(name) == INT8 else 1)
            self.put(name, self.masked(name, abs(values) if name == "prior" else values))
        for name in ("scale_k", "scale_v"):
            if name in self.names:
                scales, of = random.uniform(-2, 2, self.whole_shape(name)), name.removeprefix("scale_")
                self.put(name, self.masked(name, scales / (INTEGERS if self.dtype(of) == INT8 else 1)))
                self.values[of] = self.values[of] * self.values[name][..., None]
        for name in COUNTS:
            if name in self.names and self.given(name):
                numbers = np.cumsum([0, *self.packed]) if name.startswith("offsets") else np.array(self.lengths)
                self.memory.view(name, self.shape(name), self.strides(name), 4)[0][...] = numbers.astype(np.uint32)
        if backward:
            o, lse = self.forward()
            for name, value in (("o", o), ("lse", lse)):
                if name in self.names:
                    self.put(name, self.masked(name, value))
        for name in self.names:
            if name in OUTPUTS or name == "workspace" or not backward and name in ("o", "lse"):
                self.memory.view(name, self.shape(name), self.strides(name), self.size_of(name))[1][...] |= warps.WRITE

    def put(self, name, values):
        pattern, self.values[name] = stored(values, self.dtype(name))
        view = self.memory.view(name, self.shape(name), self.strides(name), self.size_of(name))[0]
        if self.x["page_size"] and name in POOLED:
            size, token = self.x["page_size"], POOLED[name] + pattern.ndim
            rows, pool = np.moveaxis(pattern.view(view.dtype), token, 1), np.moveaxis(view, token, 1)
            for b, table in enumerate(self.table):
                for j in range(rows.shape[1]):
                    pool[table[j // size], j % size] = rows[b, j]
        else:
            view[...] = pattern.view(view.dtype)

    def make_table(self, random):
        """Pages in any order; entries that no key needs are no pages."""
        count = -(-self.x["length_k"] // self.x["page_size"])
        table = np.full(self.shape("page_table"), -1, np.int32)
        table[:, :count] = random.permutation(self.x["pages"])[:table.shape[0] * count].reshape(-1, count)
        self.table = table
        self.memory.view("page_table", table.shape, self.strides("page_table"), 4)[0][...] = table.view(np.uint32)

    def get(self, name):
        view = self.memory.view(name, self.shape(name), self.strides(name), self.size_of(name))[0]
        return loaded(np.ascontiguousarray(view), self.dtype(name))

    def masked(self, name, values):
        tokens = values.ndim - (1 if name in ("lse", "grad_lse", "scale_k", "scale_v") else 2)
        if name in ("shift", "sinks", "mix", "prior"):
            return values
        values = np.moveaxis(values, tokens, 1).copy()  # batch, token, ...
        if self.packed is not None:
            begin = self.packed[0]
            values[:, :begin], values[:, begin + self.packed[1]:] = np.inf, -np.inf
        elif self.lengths is not None and name.removeprefix("grad_") in POOLED:
            for b, length in enumerate(self.lengths):
                values[b, length:] = np.nan
        return np.moveaxis(values, 1, tokens)

    # ---- numpy's results ----

    def ranges(self):
        """(batch, rows, keys) of the problems that are checked: slices."""
        if self.packed is not None:
            own = slice(self.packed[0], self.packed[0] + self.packed[1])
            return [(0, own, own)]
        keys = self.lengths if self.lengths is not None else [self.x["length_k"]] * self.x["batch"]
        return [(b, slice(0, self.x["length"]), slice(0, count)) for b, count in enumerate(keys)]

    def visible(self, rows, keys):
        """[row, key]"""
        x, n = self.x, rows.stop - rows.start
        whole = keys.stop - keys.start if self.packed is not None else x["length_k"]
        row, key = np.arange(n)[:, None], np.arange(keys.stop - keys.start)[None]
        distance = key - (row + (whole - n if x["alignment"] == 0 else 0))
        seen = np.ones(distance.shape, bool)
        if x["causal"]:
            seen &= distance <= 0
        if x["use_window"]:
            seen &= (x["window_left"] < 0) | (distance >= -x["window_left"])
            seen &= (x["window_right"] < 0) | (distance <= x["window_right"])
        seen[:, self.hidden] = False
        return seen

    def scores(self, b, h, rows, keys):
        """[component, row, key] in nats, with the keys of the components."""
        x, g = self.x, h * self.x["kv_heads"] // self.x["heads"]
        if self.mixed:
            q, k = self.values["q"][b, :, rows], self.values["k"][b, :, 0, keys]
            score = np.einsum("m,mnd,msd->ns", self.mixing(h), q, k)[None] / x["head_size"] ** 0.5
            return np.where(self.visible(rows, keys), score, -np.inf), q, k
        q, k = self.values["q"][b, h, rows], self.values["k"][b, g][:, keys]
        if self.shifted:
            k = k + self.values["shift"][h][:, None]
        score = q @ k.transpose(0, 2, 1)
        if self.gaussian:
            score = score - ((k ** 2).sum(2)[:, None] + (q ** 2).sum(1)[None, :, None]) / 2
        score = score / x["head_size"] ** 0.5 + self.log_prior(h)[:, None, None]
        return np.where(self.visible(rows, keys), score, -np.inf), q, k

    def keep(self, b, h, rows, keys):
        """[row, key]: the factor of dropout, with the seed 0."""
        dropout, = struct.unpack("<d", self.x["dropout"].to_bytes(8, "little"))
        if dropout == 0:
            return 1.0
        row, key = np.ogrid[rows, keys]
        words = np.stack(np.broadcast_arrays(*philox((key // 4, row, b * self.x["heads"] + h, 0))))
        number = np.take_along_axis(words, np.broadcast_to(key % 4, words.shape[1:])[None], 0)[0]
        return np.where(number < int(dropout * 2 ** 32), 0, 1 / (1 - dropout))

    def log_prior(self, h):
        """[component]; components without a prior of their own share 1."""
        m = self.x["components"]
        return np.log(self.values["prior"][h]) if self.x["prior_shape"] == PRIOR_HM else np.full(m, -np.log(m))

    def mixing(self, h):
        return self.values["mix"] if self.shares_mix else self.values["mix"][h]

    def forward(self):
        """O and L, NaN where nothing is checked."""
        o, lse = np.full(self.shape("o"), np.nan), np.full(self.shape("lse"), np.nan)
        for b, rows, keys in self.ranges():
            for h in range(self.x["heads"]):
                score = self.scores(b, h, rows, keys)[0]
                sink = self.values["sinks"][h] if self.x["use_sinks"] else -np.inf
                top = np.maximum(score.max((0, 2), initial=-np.inf), sink)
                top = np.where(np.isfinite(top), top, 0)
                weight = np.exp(score - top[:, None]).sum(0)
                total = weight.sum(1) + np.exp(sink - top)
                v = self.values["v"][b, h * self.x["kv_heads"] // self.x["heads"], keys]
                o[b, h, rows] = weight * self.keep(b, h, rows, keys) @ v / np.where(total > 0, total, 1)[:, None]
                with np.errstate(divide="ignore"):
                    lse[b, h, rows] = top + np.log(total)
        return o, lse

    def statistics(self):
        """{name: values}; the likelihood of rows that see a key."""
        x = self.x
        gamma, nll = np.zeros(self.shape("responsibilities")), np.zeros(self.shape("nll"))
        constant = x["head_size"] / 2 * np.log(2 * np.pi * x["head_size"] ** 0.5)  # the variance is sqrt(D)
        for b, rows, keys in self.ranges():
            for h in range(x["heads"]):
                score = self.scores(b, h, rows, keys)[0]
                seen = np.isfinite(score[0])
                top = np.where(seen, score.max(0, initial=-np.inf), 0)
                weight = np.where(seen, np.exp(score - top), 0)
                if x["estep"]:
                    weight = np.where(seen, score == top, 0)
                total = weight.sum(0)
                gamma[b, h, :, rows, keys] = weight / np.where(seen, total, 1)
                some = seen.any(1)
                if some.any():
                    likelihood = np.log(np.exp(score[:, some]).sum((0, 2)) / seen[some].sum(1)) - constant
                    nll[b, h] = -likelihood.mean()
        counts = gamma.sum((0, 3, 4)) if x["prior_shape"] == PRIOR_HM else gamma.sum((0, 1, 3, 4))
        return {"responsibilities": gamma, "counts": counts, "nll": nll,
                "new_prior": counts / counts.sum(-1, keepdims=True)}

    def backward(self):
        """{name: (gradient, sum of its terms' absolute values)}, of the stored O and L."""
        results = {name: np.zeros((2, *self.shape(name))) for name in OUTPUTS if name in self.names}
        scale = self.x["head_size"] ** -0.5
        for b, rows, keys in self.ranges():
            for h in range(self.x["heads"]):
                g = h * self.x["kv_heads"] // self.x["heads"]
                score, q, k = self.scores(b, h, rows, keys)
                lse = self.values["lse"][b, h, rows]
                grad_o, v = self.values["grad_o"][b, h, rows], self.values["v"][b, g, keys]
                delta = (grad_o * self.values["o"][b, h, rows]).sum(1, keepdims=True)
                p = np.exp(score - np.where(np.isfinite(lse), lse, 0)[:, None])
                keep = self.keep(b, h, rows, keys)
                grad_p = grad_o @ v.T * keep
                ds = p * (grad_p - delta) * scale
                # f32: what cancels in a sum is a term, too; rounded numbers of 16 bits do not cancel
                sizes = p * (abs(grad_p) + abs(delta)) * scale if self.digits() else abs(ds)

                def add(name, at, value):
                    if name in results:
                        results[name][0][at] += value[0]
                        results[name][1][at] += value[1]
                own = self.gaussian
                kept = (p.sum(0) * keep).T
                add("grad_v", (b, g, keys), [kept @ grad_o, kept @ abs(grad_o)])
                if self.mixed:
                    self.add_mixed(add, b, h, rows, keys, (ds[0], sizes[0]), q, k)
                    continue
                add("grad_q", (b, h, rows), [sum(d @ y for d, y in zip(ds, k)) - own * ds.sum((0, 2))[:, None] * q,
                                             sum(d @ abs(y) for d, y in zip(sizes, k)) +
                                             own * sizes.sum((0, 2))[:, None] * abs(q)])
                of_keys = [ds.transpose(0, 2, 1) @ q - own * ds.sum(1)[:, :, None] * k,
                           sizes.transpose(0, 2, 1) @ abs(q) + own * sizes.sum(1)[:, :, None] * abs(k)]
                add("grad_shift", h, [one.sum(1) for one in of_keys])
                self.add_parameters(add, h, score, (ds / scale, sizes / scale))
                of_keys = [one.sum(0, keepdims=True) for one in of_keys] if self.shifted else of_keys
                add("grad_k", (b, g, slice(None), keys), of_keys)
        return results

    def add_parameters(self, add, h, score, gradient):
        """Gradients of the prior, of a head or of all heads, and of the variance, sqrt(D), whose inverse multiplies scores."""
        ds, sizes = gradient
        prior, log_prior = ("grad_prior", h if self.x["prior_shape"] == PRIOR_HM else ...), self.log_prior(h)
        scores = np.where(np.isfinite(score), score - log_prior[:, None, None], 0) / self.x["head_size"] ** 0.5
        add(*prior, [ds.sum((1, 2)) / np.exp(log_prior), sizes.sum((1, 2)) / np.exp(log_prior)])
        add("grad_variance", 0, [-(ds * scores).sum(), (sizes * abs(scores)).sum()])

    def add_mixed(self, add, b, h, rows, keys, gradient, q, k):
        """Gradients of a head whose scores are sums over q [component, row], k [component, key]."""
        mix, (ds, sizes) = self.mixing(h), gradient
        for m, (own, ours) in enumerate(zip(q, k)):
            add("grad_q", (b, m, rows), [mix[m] * (ds @ ours), abs(mix[m]) * (sizes @ abs(ours))])
            add("grad_k", (b, m, 0, keys), [mix[m] * (ds.T @ own), abs(mix[m]) * (sizes.T @ abs(own))])
            add("grad_mix", m if self.shares_mix else (h, m),
                [(ds * (own @ ours.T)).sum(), (sizes * (abs(own) @ abs(ours).T)).sum()])

    # ---- running ----

    def run(self, programs, only=None):
        """Executes the steps; returns [(step, program, counts of the first work-group, of the last one)]. `only`: for each
        step, the place among its work-groups of the one that is executed alone, if the step has products."""
        counts = []
        for place, step in enumerate(self.plan.steps):
            program, bank = programs.get(step.source, step.options), self.bank(step)
            groups = range(-(-step.items // step.threads))
            if only is not None and program.has_products(step.kernel):
                groups = [groups[only[place]]]
            runs = [warps.Group(program.kernels[step.kernel], step.threads, bank, self.memory.bytes, number,
                                program.tables, self.memory.access, program.figures["B local"]).run() for number in groups]
            counts.append((step, program, runs[0], runs[-1]))
        return counts

    def bank(self, step):
        bank = bytearray(1 << 12)
        bank[0:4] = step.threads.to_bytes(4, "little")
        bank[0x28:0x2c] = warps.STACK.to_bytes(4, "little")
        given = sum(1 << i for i, name in enumerate(step.names) if self.given(name))
        aligned = sum(1 << i for i, name in enumerate(step.names) if self.starts[name] % 4 == 0)
        bound = given.to_bytes(4, "little") + bytes(4) + aligned.to_bytes(4, "little")
        data = bound + step.arguments[len(bound):]
        data += b"".join(self.starts[name].to_bytes(8, "little") for name in step.names)
        data += b"".join((warps.GLOBAL + self.memory.place[name][0]).to_bytes(8, "little") for name in step.names)
        bank[warps.PARAMETERS:warps.PARAMETERS + len(data)] = data
        return bytes(bank)

    def digits(self):
        """Binary digits of a product of f32 arrays' factors that an error keeps; None: 16-bit arrays."""
        products, slices = (max(offline.tunable(step.options, name, 0) for step in self.plan.steps)
                            for name in ("TF32_PRODUCTS", "BF16_SLICES"))
        return {(0, 3): 20, (1, 0): 11, (0, 2): 14}.get((products, slices))

    def faults(self):
        """What differs from numpy's results beyond roundings of 16-bit numbers, or of tf32, or of f32."""
        if "grad_o" in self.names:
            return [fault for name, (value, terms) in self.backward().items()
                    for fault in self.compare(name, value, terms)]
        if any(name in self.names for name in STATISTICS):
            return self.wrong_statistics()
        o, lse = self.forward()
        faults = self.compare("o", o, np.full(o.shape, abs(o[np.isfinite(o)]).max(initial=0)))
        given, seen = self.get("lse"), np.isfinite(lse)
        if not (abs(given - lse)[seen] < {None: 1e-4, 11: 4e-3, 14: 5e-4, 20: 4e-6}[self.digits()] * (1 + abs(lse[seen]))).all():
            faults.append("L is wrong")
        if not (given[np.isneginf(lse)] == -np.inf).all():
            faults.append("L of rows without keys is wrong")
        return faults

    def wrong_statistics(self):
        """What differs by more than sums in f32 do; products of 16-bit numbers are exact."""
        faults = []
        for name, value in self.statistics().items():
            if name not in self.names:
                continue
            given, limit = self.get(name), 1e-4 * (1 + abs(value))
            checked = np.zeros(value.shape, bool)
            if name == "responsibilities":
                for b, rows, keys in self.ranges():
                    checked[b, :, :, rows, keys] = True
            else:
                checked[...] = True
            error = np.where(checked, abs(given - value) / limit, 0)
            if not (error <= 1).all():
                faults.append(f"{name} is wrong by {np.nanmax(error):.1f} times its limit"
                              f"{', with NaN' if np.isnan(error).any() else ''}")
        return faults

    def compare(self, name, value, terms):
        single = -(self.digits() or 8)  # sums of 16-bit arrays' products are as rough
        least = 2.0 ** -25 if self.dtype(name) == F16 else 1e-30  # half of its least number
        limit = 3 * 2.0 ** {F16: -11, BF16: -8, F32: single}[self.dtype(name)] * terms + least
        given = self.get(name)
        checked = np.zeros(value.shape, bool)
        for b, rows, keys in self.ranges():
            if name in ("grad_shift", "grad_mix", "grad_prior", "grad_variance"):
                checked[...] = not self.packed  # they are sums over all sequences
            elif name in ("grad_k", "grad_v"):
                checked[b, ..., keys if self.packed else slice(None), :] = True
            else:
                checked[b, ..., rows, :] = True
        error = np.where(checked, abs(given - value) / limit, 0)
        return [] if (error <= 1).all() else [f"{name} is wrong by {np.nanmax(error):.1f} times its limit"
                                              f"{', with NaN' if np.isnan(error).any() else ''}"]


class Programs:
    """Compiles each program once."""

    def __init__(self, architecture, ptxas, nvdisasm, work, with_nvcc=False):
        self.target = offline.Nvidia(architecture, ptxas, with_nvcc)
        self.nvdisasm, self.work, self.known = nvdisasm, work, {}

    def get(self, source, options):
        key = source, tuple(options), offline.Texts.code
        if key not in self.known:
            self.known[key] = Program(self, source, options, pathlib.Path(tempfile.mkdtemp(dir=self.work)))
        return self.known[key]


def configurations(plans):
    """{(file, options): name} of the matrix engine's configurations; of a program with several names the first."""
    lines = [line.split() for line in offline.configuration_lines(plans)]
    return {(words[2], tuple(words[3:])): words[1] for words in reversed(lines) if words[0] == "matrix-nvidia"}


class Program:
    def __init__(self, programs, source, options, folder):
        self.figures = programs.target.compile(offline.KERNELS / source, list(options), folder)
        self.cubin = folder / "k.cubin"
        listing = offline.run([programs.nvdisasm, "-c", self.cubin], folder)
        self.kernels = {kernel.name: kernel for kernel in machine.read_kernels(listing)}
        self.tables = machine.section_of(self.cubin, ".nv.constant3")

    def has_products(self, kernel):
        return any(one.name.startswith(("HMMA", "HGMMA")) for one in self.kernels[kernel].instructions)
