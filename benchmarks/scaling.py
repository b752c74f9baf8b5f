#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits a model to `clmgk-bench --parallel all-gather --json`, and extrapolates both it and the ring's to 1,024 devices.

    scaling.py FILE... [--pass backward] [--tokens N] [--rate TIMES] [--line GBPS] [--latency US]

A device computes c pairs a second. A message of b bytes, one rank's keys and values (backward also their gradients), takes
l + b / w. Of P pairs over R devices gathering takes P / (R c) + (R - 1) (l + b / w), and a ring R max(P / (R R c), l + b / w).
The fit is that of least squares of relative errors, of c, l and w. The options after --pass give the tokens of a device, a
device that is TIMES as fast, and another line."""
import argparse
import json

import numpy as np

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Model:
    """Seconds: `pair` of a pair, `latency` of a message, `byte` of a byte; `token_bytes` travel with a token."""

    def __init__(self, pair, latency, byte, token_bytes):
        self.pair, self.latency, self.byte, self.token_bytes = pair, latency, byte, token_bytes

    def message(self, tokens):
        return self.latency + self.byte * self.token_bytes * tokens

    def step(self, tokens):
        """A device's queries and as many keys of one rank, half of which a causal mask hides."""
        return self.pair * tokens * tokens / 2

    def ring(self, ranks, tokens):
        return ranks * max(self.step(tokens), self.message(tokens) if ranks > 1 else 0)

    def gather(self, ranks, tokens):
        return ranks * self.step(tokens) + (ranks - 1) * self.message(tokens)

    def balance(self):
        """The tokens of a device with which a step takes as long as its message."""
        line = self.byte * self.token_bytes
        return (line + (line * line + 2 * self.pair * self.latency) ** 0.5) / self.pair


def terms(row):
    """What a row's time has of the unknowns: pairs, messages and bytes."""
    ranks = row["ranks"]
    return [row["pairs"] / ranks, ranks - 1, row["bytes"] / ranks]


def fit(rows):
    """The model, and each row's time by it, relative to the measured one. An unknown below 0 is left out."""
    times = np.array([row["time_ms"] for row in rows]) * 1e-3
    matrix = np.array([terms(row) for row in rows], dtype=float) / times[:, None]
    kept = [0, 1, 2]
    while True:
        found = np.linalg.lstsq(matrix[:, kept], np.ones(len(rows)), rcond=None)[0]
        if (found >= 0).all():
            break
        kept.pop(int(found.argmin()))
    unknowns = np.zeros(3)
    unknowns[kept] = found
    several = next(row for row in rows if row["ranks"] > 1)
    token_bytes = several["bytes"] / (several["ranks"] - 1) / several["tokens"]
    return Model(*unknowns, token_bytes), matrix @ unknowns


def load(paths, which):
    rows = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows += [row for row in json.load(file)["parallel"] if row["pass"] == which and row["schedule"] == "all-gather"]
    if {row["ranks"] == 1 for row in rows} != {True, False}:
        raise SystemExit("expected rows of --parallel all-gather, of one rank and of several")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="of clmgk-bench --parallel all-gather --json")
    parser.add_argument("--pass", dest="which", choices=("forward", "backward"), default="forward")
    parser.add_argument("--tokens", type=int, default=4096, help="of a device; default 4096")
    parser.add_argument("--rate", type=float, default=1, metavar="TIMES", help="a device that is so many times as fast")
    parser.add_argument("--line", type=float, metavar="GBPS", help="a line of so many GB/s")
    parser.add_argument("--latency", type=float, metavar="US", help="microseconds of a message")
    options = parser.parse_args()
    rows = load(options.files, options.which)
    model, relative = fit(rows)
    print(f"{len(rows)} rows: {1e-6 / model.pair:.4g} Mpair/s, {1e6 * model.latency:.4g} us and {model.byte * 1e9:.4g} ns/byte of a "
          f"message, {model.token_bytes:.6g} bytes of a token; by the model {relative.min():.2f} to {relative.max():.2f} of the times")
    model.pair /= options.rate
    model.byte = model.byte if options.line is None else 1e-9 / options.line
    model.latency = model.latency if options.latency is None else 1e-6 * options.latency
    print(f"messages take longer than computing below {model.balance():.0f} tokens of a device\n")
    print(f"| devices | tokens | ring, s | efficiency | gathering, s | efficiency | {options.tokens} tokens in all: ring, gathering |")
    print("|---|---|---|---|---|---|---|")
    for ranks in RANKS:
        tokens, own = options.tokens, options.tokens / ranks
        least = ranks * model.step(tokens)
        weak = [(time, least / time) for time in (model.ring(ranks, tokens), model.gather(ranks, tokens))]
        strong = [model.step(tokens) / ranks / time for time in (model.ring(ranks, own), model.gather(ranks, own))]
        print(f"| {ranks} | {ranks * tokens} | " + " | ".join(f"{time:.3g} | {part:.2g}" for time, part in weak) +
              f" | {strong[0]:.2g}, {strong[1]:.2g} |")


if __name__ == "__main__":
    main()
