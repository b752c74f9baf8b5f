# SPDX-License-Identifier: Apache-2.0
"""Analyses of attention matrices. A member is the matrix of a chosen batch and head."""
from __future__ import annotations

import sys
import time
from typing import Any, Callable

import numpy as np

from ._session import ROWS, Failure, Session

KINDS = ("matrices", "rank", "distances", "components", "nll", "responsibilities")
PICTURES = 16  # members that are drawn, at most
_PIXELS = 160  # of a side of a picture, at most
_MAX_ROWS = 4096  # of a matrix, unless --rows says otherwise
_MAX_ELEMENTS = 1 << 26  # likewise
_MAX_MEMBERS = 8192  # for the principal components
_BLOCK = 1 << 24  # elements of all members at once
_CHUNK = 256  # rows of a member at once
_DIRECT = 1 << 20  # elements of matrices whose singular values are computed without the Gram matrix

Array = Any


def _indices(option: str, text: str | None, limit: int) -> list[int]:
    found: list[int] = []
    for item in text.split(",") if text is not None else map(str, range(limit)):
        if not (item.isascii() and item.isdigit() and int(item) < limit):
            raise Failure(2, f"--{option} '{text}': expected whole numbers from 0 to {limit - 1}, separated by commas")
        if int(item) in found:
            raise Failure(2, f"--{option} '{text}': {item} is given more than once")
        found.append(int(item))
    return found


def _surprise(x: Array) -> float:
    """-sum x log x, by its limit at 0. Weights of the linear family may be negative: they have no entropy."""
    x = x[x > 0]
    return -float((x * np.log(x)).sum())


def _shrink(values: Array, count: int, axis: int) -> Array:
    """Sums of neighbours, `count` of them."""
    size = values.shape[axis]
    return np.add.reduceat(values, -(-np.arange(count) * size // count), axis=axis)


def _spectrum(gram: Array) -> Array:
    return np.linalg.eigvalsh(gram)[::-1].clip(0)


def _count(values: Array, fraction: float, least: float) -> int:
    """The smallest number of values whose sum is that fraction. Sums up to `least` count as rounding errors."""
    sums = np.concatenate([[0], values.cumsum()])
    return 0 if sums[-1] <= least else int(np.argmax(sums >= fraction * sums[-1] * (1 - 1e-12)))


# ---- rank (MGK paper, section 3.4)


def _deflate(a: Array) -> float:
    """Takes the largest singular value out of A by power iteration and returns it; 0 where that converges slowly.

    Eigenvalues of the Gram matrix have an error of about u sqrt(n) times the largest. A key that all queries attend to
    makes one singular value large; to take it out moves the others by u times it and no more.
    """
    v = np.full(a.shape[1], a.shape[1] ** -0.5)
    for _ in range(60):
        turned = (a @ v) @ a
        length = np.linalg.norm(turned)
        moved = np.linalg.norm(turned / length - v) if length > 0 else 0.0
        v = turned / length if length > 0 else v
        if moved < 1e-14:
            u = a @ v
            for row, factor in zip(a, u):
                row -= factor * v
            return float(np.linalg.norm(u))
    return 0.0


def _by_gram(a: Array) -> tuple[Array, float]:
    """Singular values, and an error of their squares."""
    first = _deflate(a)
    squares = np.linalg.eigvalsh(a @ a.T if a.shape[0] < a.shape[1] else a.T @ a)[::-1]
    values = np.sqrt(squares.clip(0))
    if first > 0:  # what was taken out left a 0
        values = np.concatenate([[first], values[:-1]])
    return values, max(a.shape) ** 0.5 * sys.float_info.epsilon * abs(squares[0])


class Matrices:
    """The chosen matrices, all with the same `rows` of the queries, and what is found about them."""

    def __init__(self, session: Session) -> None:
        header = session.header
        sizes, given = header["report"], header["given"]
        self.session, self.header, self.given = session, header, given
        self.queries, self.keys, self.components = sizes["length"], sizes["length_k"], sizes["components"]
        self.batches = _indices("batch-list", given.get("batch-list"), sizes["batch"])
        self.heads = _indices("head-list", given.get("head-list"), sizes["heads"])
        self.members = [(b, h) for b in self.batches for h in self.heads]
        if header["rows"] > self.queries:
            raise Failure(2, f"--rows {header['rows']}: expected at most N = {self.queries}")
        self.rows = header["rows"] or min(self.queries, _MAX_ROWS, max(_MAX_ELEMENTS // self.keys, 1))
        self.positions = np.arange(self.rows) * self.queries // self.rows
        self.wanted = self._choose()
        for kind in KINDS:
            if kind in self.wanted and kind != "nll":
                session.announce(kind)
        self._create()

    def _choose(self) -> set[str]:
        variant = self.header["report"]["variant"]
        reasons = {"distances": "one head alone" if len(self.heads) < 2 else "",
                   "components": "more than 8192 matrices: choose some by --batch-list"
                                 if len(self.members) > _MAX_MEMBERS else "",
                   "nll": variant if not self.header["mixture"] else "dot scores" if not self.header["gaussian"] else "",
                   "responsibilities": "" if self.header["mixture"] else variant}
        wanted: set[str] = set()
        if "analyses" in self.given:
            for name in self.given["analyses"].split(","):
                if name not in KINDS:
                    raise Failure(2, f"--analyses '{name}': expected one of {', '.join(KINDS)}")
                if name in wanted:
                    raise Failure(2, f"--analyses: '{name}' is given twice")
                if reasons.get(name):
                    raise Failure(2, f"--analyses: {name} does not apply to {reasons[name]}")
                wanted.add(name)
        else:
            wanted = {kind for kind in KINDS if not reasons.get(kind)}
            # Of one component they are all 1, of one matrix the component is itself: told on request.
            wanted -= {"responsibilities"} if self.components == 1 else set()
            wanted -= {"components"} if len(self.members) == 1 else set()
        for option, kind in (("threshold", "rank"), ("full-svd", "rank"), ("fraction", "components")):
            if option in self.given and kind not in wanted:
                raise Failure(2, f"--{option} does not apply without the analysis {kind}")
        return wanted

    def _create(self) -> None:
        members, offsets = len(self.members), self.header["offsets"]
        self.height, self.width = min(self.rows, _PIXELS), min(self.keys, _PIXELS)
        self.entropy, self.largest = np.zeros(members), np.zeros(members)
        self.share, self.component_entropy, self.pairs = np.zeros((members, self.components)), np.zeros(members), np.zeros(members)
        drawn = min(members, PICTURES) if "matrices" in self.session.plots else 0
        self.pixels = np.zeros((drawn, self.height, self.width))
        self.gamma_pixels = np.zeros((self.components, self.height, self.width))
        # Sequences with a likelihood of their own: chosen batches, or packed sequences.
        self.sequences = list(range(len(offsets) - 1)) if offsets else self.batches
        self.packed = np.searchsorted(offsets[1:], self.positions, side="right") if offsets else None
        self.nll = np.zeros((2, len(self.sequences), len(self.heads)))  # sums, rows
        self.distance = np.zeros((len(self.batches), len(self.heads), len(self.heads)))
        self.gram = np.zeros((members, members)) if "components" in self.wanted else None
        self.singular: list[Array] = []
        self.start, self.said, self.done = time.monotonic(), 0.0, 0

    # ---- rows

    def _weigh(self, members: range, rows: range) -> list[Array]:
        """Weights [members,rows,S], responsibilities [members,rows,M,S] and log-likelihoods [members,rows], or None."""
        wanted = [True, "responsibilities" in self.wanted, "nll" in self.wanted]
        heads = self.header["report"]["heads"]
        batch, head = np.array(self.members[members.start:members.stop]).T
        numbers = (batch * heads + head)[:, None] * self.queries + self.positions[rows.start:rows.stop]
        self.session.ask(ROWS, np.ascontiguousarray(numbers, np.int64), numbers.size, *wanted[1:])
        shapes = ((self.keys,), (self.components, self.keys), ())
        found = [self.session.fill(np.empty(numbers.shape + shape)) if one else None for one, shape in zip(wanted, shapes)]
        self._say_progress(numbers.size)
        return found

    def _say_progress(self, rows: int) -> None:
        self.done += rows
        spent = time.monotonic() - self.start
        if spent >= 3 and spent - self.said >= 5:
            self.said = spent
            print(f"clmgk-analyze: {self.done} of {self.total} rows, {spent:.0f} s", file=sys.stderr)

    def _observe(self, members: range, rows: range, found: list[Array], observed: bool = True) -> None:
        weights = found[0]
        if not np.isfinite(weights).all():
            m, i, j = np.argwhere(~np.isfinite(weights))[0]
            batch, head = self.members[members[m]]
            raise Failure(2, f"the weight of batch {batch}, head {head}, query {self.positions[rows[i]]}, key {j} is "
                             f"{weights[m, i, j]:g}; expected finite matrices: look for NaN and infinities in --q and --k")
        for m, own in zip(members, weights) if observed else ():
            self._observe_member(m, rows, *(one if one is None else one[m - members.start] for one in found))

    def _observe_member(self, m: int, rows: range, weights: Array, gamma: Array, likelihood: Array) -> None:
        lines = np.arange(rows.start, rows.stop) * self.height // self.rows
        if "matrices" in self.wanted:
            self.entropy[m] += _surprise(weights)
            self.largest[m] = max(self.largest[m], weights.max())
        if m < len(self.pixels):
            np.add.at(self.pixels[m], lines, _shrink(weights, self.width, 1))
        if gamma is not None:
            self.share[m] += gamma.sum((0, 2))
            self.component_entropy[m] += _surprise(gamma)
            self.pairs[m] += (gamma.sum(1) > 0).sum()
            for r in range(self.components if m == 0 else 0):
                np.add.at(self.gamma_pixels[r], lines, _shrink(gamma[:, r], self.width, 1))
        if likelihood is not None:
            seen = ~np.isnan(likelihood)  # rows with keys
            batch, head = divmod(m, len(self.heads))
            sequence = np.full(len(rows), batch) if self.packed is None else self.packed[rows.start:rows.stop]
            np.add.at(self.nll[0], (sequence[seen], head), -likelihood[seen])
            np.add.at(self.nll[1], (sequence[seen], head), 1)

    # ---- one matrix at a time

    def _solve_alone(self) -> list[dict[str, Any]]:
        ranked = "rank" in self.wanted
        a = np.empty((self.rows, self.keys)) if ranked else None
        ranks = []
        for m, (batch, head) in enumerate(self.members):
            for first in range(0, self.rows, _CHUNK):
                rows = range(first, min(first + _CHUNK, self.rows))
                found = self._weigh(range(m, m + 1), rows)
                self._observe(range(m, m + 1), rows, found)
                if a is not None:
                    a[rows.start:rows.stop] = found[0][0]
            if a is not None:
                ranks.append({"batch": batch, "head": head, **self._rank(m, a)})
        return ranks

    def is_direct(self) -> bool:
        return "full-svd" in self.given or self.rows * self.keys <= _DIRECT

    def _rank(self, m: int, a: Array) -> dict[str, Any]:
        values, uncertain = (np.linalg.svd(a, compute_uv=False), 0.0) if self.is_direct() else _by_gram(a)
        square = self.header["threshold"] ** 2
        rank, low, high = (int((values**2 > square + error).sum()) for error in (0.0, uncertain, -uncertain))
        if m < PICTURES:
            self.singular.append(values)
        return {"rank": rank, "rank_bounds": [low, high if uncertain < square else len(values)],
                "largest_singular_value": float(values[0]), "smallest_singular_value": float(values[-1])}

    # ---- pairs of matrices: distances (FiSH paper, section 5.2), principal components (section 5.3)

    def _solve_pairs(self, observed: bool) -> None:
        everyone = range(len(self.members))
        most = min(self.rows * self.keys, _BLOCK) // (len(self.members) * self.keys)
        most = min(max(most, 1), self.rows)
        for first in range(0, self.rows, most):
            rows = range(first, min(first + most, self.rows))
            found = self._weigh(everyone, rows)
            self._observe(everyone, rows, found, observed)
            x = found[0].reshape(len(self.members), -1)
            if "distances" in self.wanted:
                self._add_distances(x.reshape(len(self.batches), len(self.heads), -1))
            if self.gram is not None:
                self.gram += x @ x.T

    def _add_distances(self, x: Array) -> None:
        for b, h in np.ndindex(x.shape[:2]):
            for other in range(h + 1, x.shape[1]):
                difference = x[b, h] - x[b, other]
                self.distance[b, h, other] += difference @ difference

    def _components(self) -> dict[str, Any]:
        assert self.gram is not None
        gram = self.gram / len(self.members)
        mean = gram.mean(0)
        fraction = self.header["fraction"]
        self.spectra = [_spectrum(gram), _spectrum(gram + mean.mean() - mean[:, None] - mean)]
        self.counts = [_count(self.spectra[0], fraction, 0.0), _count(self.spectra[1], fraction, 1e-13 * gram.trace())]
        return {"fraction": fraction, "matrices": len(self.members), "count": self.counts[0],
                "count_about_mean": self.counts[1], "eigenvalues": self.spectra[0].tolist(),
                "eigenvalues_about_mean": self.spectra[1].tolist()}

    def _distances(self) -> dict[str, Any]:
        self.distance *= self.queries / self.rows  # of sampled rows the estimate for all
        pairs = self.distance[(slice(None), *np.triu_indices(len(self.heads), 1))]
        mean = self.distance.mean(0)
        return {"pairs": pairs.size, "mean": float(pairs.mean()), "variance": float(pairs.var()),
                "matrix": (mean + mean.T).tolist()}

    # ---- all

    def solve(self) -> dict[str, Any]:
        wanted = self.wanted
        pairs = bool(wanted & {"distances", "components"})
        alone = "rank" in wanted or not pairs
        self.total = len(self.members) * self.rows * (pairs + alone)
        ranks = self._solve_alone() if alone else []
        if pairs:
            self._solve_pairs(not alone)
        seen = self.pairs.clip(1)
        names = [{"batch": batch, "head": head} for batch, head in self.members]
        results: dict[str, Callable[[], Any]] = {
            "matrices": lambda: [{**name, "row_entropy": self.entropy[m] / self.rows, "largest": self.largest[m]}
                                 for m, name in enumerate(names)],
            "rank": lambda: {"threshold": self.header["threshold"], "method": "dgesdd" if self.is_direct() else "dsyrk, dsyevd",
                             "mean": float(np.mean([one["rank"] for one in ranks])), "heads": ranks},
            "distances": self._distances,
            "components": self._components,
            "nll": lambda: [{"batch": batch, "head": head, "nll": self.nll[0, s, h] / max(self.nll[1, s, h], 1)}
                            for s, batch in enumerate(self.sequences) for h, head in enumerate(self.heads)],
            "responsibilities": lambda: [{**name, "share": (self.share[m] / seen[m]).tolist(),
                                          "entropy": self.component_entropy[m] / seen[m]} for m, name in enumerate(names)]}
        report = {"clmgk": self.header["clmgk"], **self.header["report"], "batch_list": self.batches,
                  "head_list": self.heads, "rows": self.rows, "sampled": self.rows < self.queries}
        for kind in KINDS:
            if kind in wanted:
                report["components_of_variance" if kind == "components" else kind] = results[kind]()
        report["plots"] = self.session.plots
        if self.session.plots:
            from ._pictures import draw
            draw(self, report)
        return report

    def judge(self) -> None:
        """Analyses have no checks that may fail."""

    def words(self, report: dict[str, Any]) -> str:
        wanted, lines = self.wanted, []
        sizes = ", ".join(f"{name} {report[key]}" for name, key in (
            ("B", "batch"), ("H", "heads"), ("M", "components"), ("N", "length"), ("S", "length_k"), ("D", "head_size")))
        print(f"{report['variant']} {self.header['dtypes']}, {sizes}: {len(self.members)} "
              f"{'matrix' if len(self.members) == 1 else 'matrices'}", file=sys.stderr)
        if report["sampled"]:
            lines.append(f"of each matrix {self.rows} of {self.queries} rows: ranks are of these rows, distances estimates for "
                         "all rows")
        if wanted & {"matrices", "rank"}:
            lines.append("sequence head" + "  row entropy  largest weight" * ("matrices" in wanted)
                         + "   rank  singular values" * ("rank" in wanted))
        for m, (batch, head) in enumerate(self.members if wanted & {"matrices", "rank"} else []):
            line = f"{batch:8d} {head:4d}"
            if "matrices" in wanted:
                line += "  {row_entropy:11.4f}  {largest:14.4g}".format(**report["matrices"][m])
            if "rank" in wanted:
                one = report["rank"]["heads"][m]
                line += "  {rank:5d}  {largest_singular_value:.3g} to {smallest_singular_value:.3g}".format(**one)
                low, high = one["rank_bounds"]
                line += f" (between {low} and {high}: --full-svd tells)" if low != high else ""
            lines.append(line)
        if "distances" in wanted:
            lines.append("squared L2 distances between heads: mean {mean:.6g}, variance {variance:.6g}, of {pairs} pairs"
                         .format(**report["distances"]))
        if "components" in wanted:
            lines.append("principal components for {0:g} % of the variance: {count} (about the mean {count_about_mean}) of "
                         "{matrices} matrices".format(100 * self.header["fraction"], **report["components_of_variance"]))
        for s, batch in enumerate(self.sequences if "nll" in wanted else []):
            values = report["nll"][s * len(self.heads):(s + 1) * len(self.heads)]
            lines.append(f"query negative log-likelihood, sequence {batch}:" + "".join(f" {one['nll']:.6g}" for one in values))
        for one in report.get("responsibilities", []):
            lines.append(f"responsibilities, sequence {one['batch']}, head {one['head']}: shares"
                         + "".join(f" {share:.4f}" for share in one["share"]) + f", entropy {one['entropy']:.4f}")
        return "".join(line + "\n" for line in lines)
