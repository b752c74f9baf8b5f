# SPDX-License-Identifier: Apache-2.0
"""Pictures of the analyses and of the theorems' checks."""
from __future__ import annotations

import io
from typing import Any, Callable

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ._session import Session

_COLOURS = matplotlib.colormaps["viridis"]
_NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
# Text stays text, and equal pictures are equal files.
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "clmgk", "pdf.fonttype": 42, "axes.grid.axis": "y", "grid.color": "#dddddd",
          "axes.axisbelow": True, "lines.markersize": 3, "legend.frameon": False}

Array = Any


def _send(session: Session, name: str, width: float, height: float, draw: Callable[[Figure], None]) -> None:
    form = session.header["given"].get("plot-format", "svg")
    picture = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
        draw(figure)
        figure.savefig(picture, format=form, metadata=_NO_DATE.get(form))
    session.send(name, picture.getvalue())


def _whole(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator("auto", integer=True))


def _panels(figure: Figure, found: Any, images: list[tuple[str, Array]], title: str, label: str, norm: Any) -> None:
    """Images of queries and keys, side by side, with one colour bar."""
    columns = min(len(images), 4)
    axes = figure.subplots(-(-len(images) // columns), columns, squeeze=False)
    if found.rows < found.queries:
        title += f", {found.rows} of {found.queries} queries"
    if found.height < found.rows or found.width < found.keys:
        title += ", each pixel a mean"
    figure.suptitle(title)
    for place in axes.flat[len(images):]:
        place.set_visible(False)
    for place, (name, pixels) in zip(axes.flat, images):
        image = place.imshow(pixels, _COLOURS, norm, aspect="auto", interpolation="nearest",
                             extent=(-0.5, found.keys - 0.5, found.queries - 0.5, -0.5))
        place.set(title=name, xlabel="key", ylabel="query")
        _whole(place.xaxis)
        _whole(place.yaxis)
    figure.colorbar(image, ax=list(axes.flat), label=label)


def _send_panels(found: Any, kind: str, images: list[tuple[str, Array]], title: str, label: str, norm: Any) -> None:
    columns = min(len(images), 4)
    _send(found.session, kind, 3.1 * columns + 1.2, 2.8 * -(-len(images) // columns) + 0.5,
          lambda figure: _panels(figure, found, images, title, label, norm))


def _means(found: Any, sums: Array) -> Array:
    lines = np.bincount(np.arange(found.rows) * found.height // found.rows)
    columns = np.bincount(np.arange(found.keys) * found.width // found.keys)
    return sums / np.outer(lines, columns)


def _draw_matrices(found: Any, variant: str) -> None:
    """Weights differ by powers of ten: the colours are those of their logarithms, over one to four decades. Smaller weights
    have the darkest colour, weights of 0 none."""
    means = _means(found, found.pixels)
    shown = means[means > 0]
    largest = shown.max() if shown.size else 1.0
    least = max(min(shown.min() if shown.size else 1.0, 0.1 * largest), 1e-4 * largest)
    images = [(f"sequence {batch}, head {head}", np.ma.masked_less_equal(one, 0)) for (batch, head), one in zip(found.members, means)]
    _send_panels(found, "matrices", images, f"Attention matrices, {variant}", "weight (white: 0)", LogNorm(least, largest))


def _draw_responsibilities(found: Any, variant: str) -> None:
    batch, head = found.members[0]
    images = [(f"component {r}", one) for r, one in enumerate(_means(found, found.gamma_pixels)[:16])]
    _send_panels(found, "responsibilities", images, f"Responsibilities, {variant}, sequence {batch}, head {head}",
                 "share of the key's weight", matplotlib.colors.Normalize(0, 1))


def _draw_rank(found: Any, variant: str, ranks: list[int]) -> None:
    size, threshold = min(found.rows, found.keys), found.header["threshold"]

    def draw(figure: Figure) -> None:
        spectrum, histogram, legend = figure.subplots(1, 3, width_ratios=(4, 4, 1))
        figure.suptitle(f"Rank of attention matrices, {variant}, {found.rows} queries x {found.keys} keys")
        for m, values in enumerate(found.singular):
            spectrum.semilogy(np.arange(1, size + 1), values.clip(1e-14), "o-", color=_COLOURS(m / len(found.singular)),
                              label="sequence {}, head {}".format(*found.members[m]))
        spectrum.axhline(threshold, color="#D55E00", linestyle="--", label=f"threshold {threshold:g}")
        spectrum.set(xlabel="number of the singular value", ylabel="singular value", xlim=(0, size + 1))
        histogram.bar(*np.unique(ranks, return_counts=True), width=max(size / 100, 0.5), color="#0072B2")
        histogram.set(xlabel="rank", ylabel="matrices", xlim=(0, size + max(size // 20, 1)))
        for axis in (spectrum.xaxis, histogram.xaxis, histogram.yaxis):
            _whole(axis)
        legend.set_axis_off()
        legend.legend(*spectrum.get_legend_handles_labels(), loc="center")

    _send(found.session, "rank", 12, 4.8, draw)


def _draw_distances(found: Any, variant: str, distances: dict[str, Any]) -> None:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        image = axes.imshow(distances["matrix"], _COLOURS, vmin=0, interpolation="nearest")
        places = range(0, len(found.heads), (len(found.heads) + 15) // 16)
        names = [found.heads[place] for place in places]
        axes.set(xlabel="head", ylabel="head", xticks=places, xticklabels=names, yticks=places, yticklabels=names,
                 title="Squared L2 distances between heads, {}:\nmean {mean:.4g}, variance {variance:.4g}"
                 .format(variant, **distances))
        count = len(found.batches)
        figure.colorbar(image, label=f"squared distance, mean of {count} {'sequence' if count == 1 else 'sequences'}")

    _send(found.session, "distances", 7, 6, draw)


def _draw_components(found: Any, variant: str) -> None:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(True)
        for name, colour, values, count in zip(("as in the paper", "about the mean"), ("#0072B2", "#E69F00"), found.spectra,
                                               found.counts):
            parts = np.concatenate([[0], values.cumsum() / (values.sum() or 1)])
            axes.plot(parts, "o-", color=colour, label=f"{name}: {count}")
        fraction = found.header["fraction"]
        axes.axhline(fraction, color="#D55E00", linestyle="--", label=f"{fraction:g}")
        axes.set(xlabel="components", ylabel="part of the variance", ylim=(0, 1.05),
                 title=f"Principal components of {len(found.members)} attention matrices, {variant}")
        _whole(axes.xaxis)
        axes.legend(loc="lower right")

    _send(found.session, "components", 7, 4.8, draw)


def draw(found: Any, report: dict[str, Any]) -> None:
    """Draws what was announced of the matrices' analyses."""
    variant = report["variant"]
    drawing: dict[str, Callable[[], None]] = {
        "matrices": lambda: _draw_matrices(found, variant),
        "rank": lambda: _draw_rank(found, variant, [one["rank"] for one in report["rank"]["heads"]]),
        "distances": lambda: _draw_distances(found, variant, report["distances"]),
        "components": lambda: _draw_components(found, variant),
        "responsibilities": lambda: _draw_responsibilities(found, variant)}
    for kind in found.session.plots:
        drawing[kind]()


def draw_theorems(session: Session, report: dict[str, Any]) -> None:
    one = report["theorem1"]
    below, above, tokens = one["below"], one["at_least"], one["tokens"]
    lines = ((below, "distance_mean", "#0072B2", "o-", "D < n: best weights, mean"),
             (below, "distance_min", "#56B4E9", "o-", "D < n: best weights, least"),
             (below, "lower_bound_min", "#D55E00", "x-", "D < n: proven bound, least"),
             (above, "error", "#009E73", "o-", "D ≥ n: construction in f32, largest"),
             (above, "bound", "#999999", "+:", "D ≥ n: limit of rounding"))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(True)
        for cases, key, colour, style, name in lines:
            axes.semilogy([case["head_size"] for case in cases], [max(case[key], 1e-12) for case in cases], style, color=colour,
                          markersize=4, label=name)
        axes.axvline(tokens, color="#999999", linestyle="--")
        axes.annotate("D = n", (tokens, 1), (4, -12), ("data", "axes fraction"), "offset points")
        axes.set(xlabel="head size D", ylabel="largest |softmax - P|", ylim=(1e-9, 1), xlim=(0, 2 * tokens + 1),
                 title=f"Low-rank bottleneck, Theorem 1: n = {tokens} tokens, {one['trials']} random P for each D")
        _whole(axes.xaxis)
        axes.legend()

    _send(session, "theorems", 8, 4.8, draw)
