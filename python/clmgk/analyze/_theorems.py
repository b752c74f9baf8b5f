# SPDX-License-Identifier: Apache-2.0
"""Theorems 1 and 2 of the low-rank bottleneck paper, as checks (docs/papers.md)."""
from __future__ import annotations

import pathlib
import subprocess
import tempfile
from typing import Any

import numpy as np

from ._session import Failure, Session

_WIDTH, _HEADS, _SMALL, _LARGE = 8, 4, 2, 4  # of Theorem 2: d, h, d / h and d_p
_TOKENS = 4  # likewise

Array = Any


class _Random:
    """Normals by Philox4x32-10, a counter and Box-Muller."""

    def __init__(self, seed: int, stream: int) -> None:
        self._seed, self._stream, self._count = seed, stream, 0

    def normals(self, *shape: int, scale: float = 1.0) -> Array:
        size = int(np.prod(shape))
        words = np.zeros((4, size), np.uint64)
        words[0], words[3] = np.arange(self._count, self._count + size), self._stream
        self._count += size
        low, high = self._seed & 0xFFFFFFFF, self._seed >> 32 & 0xFFFFFFFF
        for n in range(10):
            first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
            keys = [np.uint64(key + n * step & 0xFFFFFFFF) for key, step in ((low, 0x9E3779B9), (high, 0xBB67AE85))]
            words = np.stack([second >> np.uint64(32) ^ words[1] ^ keys[0], second & np.uint64(0xFFFFFFFF),
                              first >> np.uint64(32) ^ words[3] ^ keys[1], first & np.uint64(0xFFFFFFFF)])
        u, v = (words[:2] + 0.5) / 2**32
        return scale * (np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)).reshape(shape)


def _softmax(logits: Array) -> Array:
    """Over columns."""
    p = np.exp(logits - logits.max(0))
    return p / p.sum(0)


# ---- Theorem 1, D >= n: the proof's construction


def _construct(random: _Random, p: Array, size: int) -> tuple[Array, Array, float]:
    """W_k = [I; 0] X^+ and W_q = [sqrt(D) log(P D_0); 0] X^+: Q^T and K^T [n,D], and the largest |logit|. D_0 makes each
    column's logarithms sum to 0."""
    n = len(p)
    while True:
        x = random.normals(size, n)
        if np.linalg.matrix_rank(x) == n:
            break
    inverse = np.linalg.pinv(x)
    logits = np.log(p) - np.log(p).mean(0)
    q, k = np.zeros((2, n, size), np.float32)
    q[:, :n], k[:, :n] = (np.sqrt(size) * logits @ inverse @ x).T, (inverse @ x).T
    return q, k, float(np.abs(logits).max())


def _attend(device: str | None, q: Array, k: Array, v: Array, run: str | None) -> Array:
    """Softmax attention on the device: by the package, or by clmgk-run where there is no other part of the package."""
    if run is None:
        from .. import Error, attention
        try:
            return attention(q, k, v, device=device)
        except Error as error:
            raise Failure(4 if isinstance(error, MemoryError) else 3, str(error).splitlines()[0]) from None
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(pathlib.Path(folder) / f"{name}.npy") for name in ("q", "k", "v", "out")}
        for name, array in (("q", q), ("k", k), ("v", v)):
            np.save(files[name], array)
        words = [word for name, file in files.items() for word in ("--" + name, file)]
        done = subprocess.run([run, "--variant", "softmax", *words, *(["--device", device] if device is not None else [])],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise Failure(done.returncode if done.returncode > 0 else 3, done.stderr.strip().removeprefix("clmgk-run: "))
        return np.load(files["out"])


# ---- Theorem 1, D < n: the best weights


class _Fit:
    """With B [D,n] an orthonormal basis of X's rows, logits are B^T W B for any W [D,D]. The Kullback-Leibler divergence of
    P from their softmax is convex in W: Newton's method finds its least value."""

    def __init__(self, x: Array, target: Array) -> None:
        self.basis = np.linalg.qr(x.T)[0].T
        self.target = target
        self.gradient = self._minimise()
        self.distance = float(np.abs(self.p - target).max())
        self.bound = self._bound()

    def _divergence(self, w: Array) -> float:
        """But for a constant; sets p."""
        self.p = _softmax(self.basis.T @ w @ self.basis)
        return -float((self.target * np.log(self.p.clip(np.finfo(float).tiny))).sum())

    def _hessian(self) -> Array:
        """Sum over queries i of the covariance B (diag p_i - p_i p_i^T) B^T times b_i b_i^T."""
        basis, size = self.basis, len(self.basis)
        means = basis @ self.p  # [D,n]
        covariance = np.einsum("aj,cj,ji->iac", basis, basis, self.p, optimize=True) - np.einsum("ai,ci->iac", means, means)
        outer = np.einsum("bi,di->ibd", basis, basis)
        whole = covariance.reshape(-1, size * size).T @ outer.reshape(-1, size * size)
        whole = whole.reshape((size,) * 4).transpose(0, 2, 1, 3).reshape(size * size, size * size)
        return whole + 1e-12 * np.eye(size * size)  # saturated columns leave it singular

    def _minimise(self) -> float:
        """Returns the largest element of the gradient at the end."""
        w = np.zeros((len(self.basis),) * 2)
        value = self._divergence(w)
        for _ in range(60):
            gradient = self.basis @ (self.p - self.target) @ self.basis.T
            if np.abs(gradient).max() <= 1e-11:
                break
            direction = np.linalg.solve(self._hessian(), gradient.ravel()).reshape(w.shape)
            for halvings in range(30):
                found = self._divergence(w - direction / 2**halvings)
                if found < value:
                    break
            else:
                self._divergence(w)
                break
            w, value = w - direction / 2**halvings, found
        return float(np.abs(self.basis @ (self.p - self.target) @ self.basis.T).max())

    def _bound(self) -> float:
        """What no weights can go below.

        Take z with X z = 0. Logits times z are 0, so sum_i z_i log p_ji is the same for all keys j, whatever the weights. If P
        has g = sum_i z_i (log P_ji - log P_j'i) != 0, and no element of p is further than d from P's, then
            |g| <= sum_i |z_i| (-log(1 - d / P_ji) - log(1 - d / P_j'i)),
        which bounds d from below. The largest bound over pairs of neighbours j, for the parts z of the unit vectors.
        """
        z = np.eye(len(self.target)) - self.basis.T @ self.basis  # a row for each unit vector
        logs = np.log(self.target)
        gap = np.abs(z @ (logs[1:] - logs[:-1]).T)
        low = np.zeros_like(gap)
        high = np.broadcast_to(np.minimum(self.target[1:], self.target[:-1]).min(1), gap.shape)
        for _ in range(60):
            middle = (low + high) / 2
            with np.errstate(divide="ignore"):
                room = sum(np.log1p(-middle[:, :, None] / one) for one in (self.target[1:], self.target[:-1]))
            below = -(np.abs(z)[:, None] * room).sum(2) < gap
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return float(low.max())


# ---- Theorem 2. With C_i = W_o^i W_v^i and M_i = (W_k^i)^T W_q^i / sqrt(size), layers are pairs [h,d,d] of C and M.


def _apply(layer: tuple[Array, Array], x: Array) -> Array:
    return sum(c @ x @ _softmax(x.T @ m @ x) for c, m in zip(*layer))


def _difference(f: tuple[Array, Array], g: tuple[Array, Array], x: Array) -> float:
    """|f - g| / |g|"""
    exact = _apply(g, x)
    return float(np.linalg.norm(_apply(f, x) - exact) / np.linalg.norm(exact))


def _scores(random: _Random, size: int) -> Array:
    a = random.normals(size, _WIDTH, scale=_WIDTH**-0.5)
    return a.T @ random.normals(size, _WIDTH, scale=size**-0.5)


def _values(random: _Random, size: int) -> Array:
    o = random.normals(_WIDTH, size)
    return o @ random.normals(size, _WIDTH)


def _layer(random: _Random, size: int, shared: bool) -> tuple[Array, Array]:
    """Random heads; shared: all have the first one's scores."""
    c, m = np.zeros((2, _HEADS, _WIDTH, _WIDTH))
    for h in range(_HEADS):
        c[h] = _values(random, size)
        m[h] = m[0] if shared and h > 0 else _scores(random, size)
    return c, m


def _column(x: Array, place: int) -> Array:
    whole = np.zeros((_WIDTH, _TOKENS))
    whole[:, place] = x
    return whole


def _solve_cases(random: _Random) -> list[float]:
    """Differences in the proof's cases, then of small heads and the same as large ones."""
    g = _layer(random, _LARGE, True)
    # 1: the sums of C_i differ. X = v 1^T: attention gives v, whatever it attends to.
    f = _layer(random, _SMALL, False)
    found = [_difference(f, g, np.repeat(random.normals(_WIDTH, 1), _TOKENS, 1))]
    # 2: the sums are equal (head i has their columns i r .. i r + r - 1), and some M_i of g and f differ by a matrix that is
    # not skew-symmetric. X = [v 0 ... 0]: the first token attends to itself by exp(v^T M v), which differs.
    f = _layer(random, _SMALL, False)
    whole = g[0].sum(0)
    shared = np.stack([np.where(np.arange(_WIDTH) // _SMALL == h, whole, 0) for h in range(_HEADS)])
    found.append(_difference((shared, f[1]), g, _column(random.normals(_WIDTH), 0)))
    # 3: the sums are equal, and all those differences are skew-symmetric: M of f is A^T B, that of g its symmetric part, of
    # twice its rank. X = [v, alpha w, 0 ...] with w^T M v > 0 for g and < 0 for f: as alpha grows, g attends to the second
    # token and f does not.
    m = _scores(random, _SMALL)
    f, g = (shared, np.stack([m] * _HEADS)), (g[0], np.stack([(m + m.T) / 2] * _HEADS))
    v = random.normals(_WIDTH)
    by_g, by_f = (one[1][0] @ v / np.linalg.norm(one[1][0] @ v) for one in (g, f))
    found.append(max(_difference(f, g, _column(v, 0) + _column((by_g - by_f) * 2**n, 1)) for n in range(8)))
    # Conversely a head of size r is one of size d_p whose other rows are 0, with larger queries against the larger root.
    c, m, wide = np.zeros((3, _HEADS, _WIDTH, _WIDTH))
    for h in range(_HEADS):
        q, k = random.normals(_SMALL, _WIDTH), random.normals(_SMALL, _WIDTH)
        c[h] = _values(random, _SMALL)
        m[h] = k.T @ q / _SMALL**0.5
        rows = ((0, _LARGE - _SMALL), (0, 0))
        wide[h] = np.pad(k, rows).T @ np.pad(q * (_LARGE / _SMALL) ** 0.5, rows) / _LARGE**0.5
    found.append(_difference((c, wide), (c, m), random.normals(_WIDTH, _TOKENS)))
    return found


# ---- both


class Theorems:
    """The checks of one command line."""

    def __init__(self, session: Session, run: str | None) -> None:
        self.session, self.run = session, run
        self.tokens, self.trials = session.header["tokens"], session.header["trials"]
        self.seed = session.header["seed"] % 2**64
        session.announce("theorems")

    def _constructed(self, random: _Random, size: int) -> dict[str, Any]:
        n, trials = self.tokens, self.trials
        p, largest = np.empty((trials, n, n)), 0.0
        q, k = np.empty((2, trials, 1, n, size), np.float32)
        for t in range(trials):
            p[t] = _softmax(random.normals(n, n, scale=0.5 * 2 ** (t % 4)))
            q[t, 0], k[t, 0], logit = _construct(random, p[t], size)
            largest = max(largest, logit)
        v = np.broadcast_to(np.eye(n, dtype=np.float32), (trials, 1, n, n))
        o = _attend(self.session.header["given"].get("device"), q, k, v, self.run)
        error = float(np.abs(o[:, 0] - p.transpose(0, 2, 1)).max())
        # 16 roundings of a logit, and of its exponential, 1 + |logit| units each
        bound = 16 * 0.5 * float(np.finfo(np.float32).eps) * (1 + largest)
        return {"head_size": size, "error": error, "bound": bound, "ok": error <= bound}

    def _below(self, random: _Random, size: int) -> dict[str, Any]:
        fits = []
        for _ in range(self.trials):
            x = random.normals(size, self.tokens)
            fits.append(_Fit(x, _softmax(random.normals(self.tokens, self.tokens))))
        distances, bounds = ([getattr(fit, name) for fit in fits] for name in ("distance", "bound"))
        return {"head_size": size, "distance_min": min(distances), "distance_mean": float(np.mean(distances)),
                "lower_bound_min": min(bounds), "lower_bound_mean": float(np.mean(bounds)),
                "gradient": max(fit.gradient for fit in fits)}

    def _theorem1(self) -> dict[str, Any]:
        n, random = self.tokens, _Random(self.seed, 1)
        above = [self._constructed(random, size) for size in (n, n + (n + 1) // 2, 2 * n)]
        below = [self._below(random, size) for size in range(1, n)]
        # The paper's: the second column of every softmax is (0.5, 0.5).
        paper = _Fit(np.array([[1.0, 0.0]]), np.array([[0.5, 0.75], [0.5, 0.25]]))
        reached = max(case["error"] for case in above)
        for case in below:
            case["ok"] = case["lower_bound_min"] > reached and case["distance_min"] >= case["lower_bound_min"]
        return {"tokens": n, "trials": self.trials, "below": below, "at_least": above,
                "paper_example": {"distance": paper.distance, "lower_bound": paper.bound},
                "ok": all(case["ok"] for case in below + above) and paper.distance >= paper.bound > reached}

    def _theorem2(self) -> dict[str, Any]:
        random = _Random(self.seed, 2)
        cases = np.array([_solve_cases(random) for _ in range(self.trials)])
        least, inclusion = cases[:, :3].min(0), float(cases[:, 3].max())
        return {"width": _WIDTH, "heads": _HEADS, "head_size": _LARGE, "trials": self.trials,
                "least_difference": dict(zip(("values", "symmetric", "skew"), least.tolist())), "inclusion_error": inclusion,
                "ok": bool(least.min() > 1e-6 and inclusion < 1e-12)}

    def solve(self) -> dict[str, Any]:
        self.one, self.two = self._theorem1(), self._theorem2()
        report = {"clmgk": self.session.header["clmgk"], "theorem1": self.one, "theorem2": self.two,
                  "ok": self.one["ok"] and self.two["ok"], "plots": self.session.plots}
        if self.session.plots:
            from ._pictures import draw_theorems
            draw_theorems(self.session, report)
        return report

    def judge(self) -> None:
        if not (self.one["ok"] and self.two["ok"]):
            raise Failure(1, f"--theorems: Theorem {2 if self.one['ok'] else 1} does not hold")

    def words(self, report: dict[str, Any]) -> str:
        one, two = report["theorem1"], report["theorem2"]
        lines = [f"Theorem 1, n = {self.tokens} tokens, {self.trials} random P for each head size D:"]
        for case in one["below"] + one["at_least"]:
            line = ("D = {head_size:2d}: constructed, error in f32 at most {error:.3g}, limit {bound:.3g}" if "bound" in case else
                    "D = {head_size:2d}: best distance {distance_min:.3g} (mean {distance_mean:.3g}), proven to be above "
                    "{lower_bound_min:.3g} (mean {lower_bound_mean:.3g})")
            lines.append("  " + line.format(**case) + (": ok" if case["ok"] else ": FAILED"))
        lines += ["  the paper's example, D = 1, n = 2: best distance {distance:.4g}, proven to be above {lower_bound:.4g}"
                  .format(**one["paper_example"]),
                  f"Theorem 2, width {_WIDTH}, {_HEADS} heads of {_SMALL} against heads of {_LARGE}, {self.trials} layers:",
                  "  least relative difference in the proof's cases {values:.3g}, {symmetric:.3g}, {skew:.3g}; small heads as "
                  "large ones: {0:.2g}: {1}".format(two["inclusion_error"], "ok" if two["ok"] else "FAILED",
                                                    **two["least_difference"])]
        return "".join(line + "\n" for line in lines)
