#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoding as a server does it: caches of many lengths, pages, a shared prefix, new tokens.

usage: benchmarks/serving.py [--sequences N] [--heads H] [--kv-heads G] [--head-size D] [--engine NAME] [--repeat N]

A query of each of N sequences (default 64) with 100 to 8,000 keys in f16, in one call: beside equal lengths with as many keys in
all; in pages of 16 keys, in order and shuffled; packed, as a server mixes prompts and tokens; in int8. Then 16 sequences that
share a prefix of 2,048 keys and have 37 of their own, with the prefix computed once and without; and new tokens written to pages,
beside a copy of as many bytes. Each result is first compared with that of the dense cache. Figures are medians of calls that
alternate, in milliseconds; the rate of reading is that of all cores over 256 MB. Use an idle machine.
"""
import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import clmgk

PAGE, ROOM, LEAST, MOST = 16, 8192, 100, 8000
PREFIX, SHARING, OWN = 2048, 16, 37
TOKENS = 4096


def medians(functions, repeat):
    """The median time of each function in seconds, in turns after one that does not count."""
    times = {name: [] for name in functions}
    for turn in range(repeat + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn > 0:
                times[name].append(time.perf_counter() - start)
    return {name: float(np.median(spent)) for name, spent in times.items()}


def read_rate():
    """Bytes a second that all cores read."""
    parts = np.array_split(np.ones(64 << 20, np.float32), os.cpu_count() or 1)
    with ThreadPoolExecutor(len(parts)) as pool:
        spent = medians({"read": lambda: list(pool.map(np.sum, parts))}, 9)["read"]
    return sum(part.nbytes for part in parts) / spent


def pooled(cache, order):
    """A cache [B,G,S,D] as a pool of pages in this order, [pages,G,PAGE,D]."""
    b, g, s, d = cache.shape
    pool = np.empty((b * s // PAGE, g, PAGE, d), cache.dtype)
    pool[order] = cache.reshape(b, g, s // PAGE, PAGE, d).swapaxes(1, 2).reshape(pool.shape)
    return pool


def compare(name, found, expected):
    error = float(np.abs(found.astype(np.float32) - expected.astype(np.float32)).max())
    if not error <= 2e-3 * float(np.abs(expected).max()):
        raise SystemExit(f"{name}: off by {error:g}")


def decoding(options, rng):
    """Calls of a query of each sequence, their bytes of K and V, and the results that they are compared with."""
    b, h, g, d = options.sequences, options.heads, options.kv_heads, options.head_size
    common = {"heads": h, "kv_heads": g, "head_size": d, "dtype": "f16", "engine": options.engine}
    lengths = np.linspace(LEAST, MOST, b).astype(np.int32)
    equal = np.full(b, int(lengths.mean()), np.int32)
    q = rng.standard_normal((b, h, 1, d)).astype(np.float16)
    k, v = (np.tile(rng.standard_normal((1, g, ROOM, d)).astype(np.float16), (b, 1, 1, 1)) for _ in range(2))
    one = {**common, "length": 1, "batch": b, "use_lengths": True}
    dense = clmgk.Plan(**one, length_k=ROOM)
    paged = clmgk.Plan(**one, page_size=PAGE, pages=b * ROOM // PAGE, table_pages=ROOM // PAGE)
    packed = clmgk.Plan(**common, length=b, sequences=b, use_lengths=True, causal=True, page_size=PAGE, pages=b * ROOM // PAGE,
                        table_pages=ROOM // PAGE)
    integers = clmgk.Plan(**one, length_k=ROOM, dtype_k="int8", dtype_v="int8", use_scale_k=True, use_scale_v=True)
    k8, v8 = (np.round(x.astype(np.float32) * 25).clip(-127, 127).astype(np.int8) for x in (k, v))
    scale = np.full((b, g, ROOM), 1 / 25, np.float32)
    offsets, row = np.arange(b + 1, dtype=np.int32), np.ascontiguousarray(q.transpose(2, 1, 0, 3))
    calls = {"equal lengths": lambda: dense.forward(q=q, k=k, v=v, lengths=equal)["o"],
             "lengths": lambda: dense.forward(q=q, k=k, v=v, lengths=lengths)["o"],
             "int8": lambda: integers.forward(q=q, k=k8, v=v8, scale_k=scale, scale_v=scale, lengths=lengths)["o"]}
    for name, order in (("pages in order", np.arange(b * ROOM // PAGE)), ("pages", rng.permutation(b * ROOM // PAGE))):
        arrays = {"k": pooled(k, order), "v": pooled(v, order), "page_table": order.reshape(b, -1).astype(np.int32),
                  "lengths": lengths}
        calls[name] = lambda arrays=arrays: paged.forward(q=q, **arrays)["o"]
    calls["packed pages"] = lambda: packed.forward(q=row, offsets=offsets, **arrays)["o"].transpose(2, 1, 0, 3)
    expected = calls["lengths"]()
    for name in ("pages in order", "pages", "packed pages"):
        compare(name, calls[name](), expected)
    return calls, 2 * int(lengths.sum()) * g * d


def cascade(options, rng):
    """Calls with a shared prefix: computed once, and by each sequence's own table."""
    h, g, d = options.heads, options.kv_heads, options.head_size
    shared, own = PREFIX // PAGE, -(-OWN // PAGE)
    pages = shared + SHARING * own
    k, v = (rng.standard_normal((pages, g, PAGE, d)).astype(np.float16) for _ in range(2))
    q = rng.standard_normal((1, h, SHARING, d)).astype(np.float16)
    prefix = np.arange(shared, dtype=np.int32)
    tables = (shared + np.arange(SHARING * own, dtype=np.int32)).reshape(SHARING, own)
    common = {"heads": h, "kv_heads": g, "head_size": d, "dtype": "f16", "length": SHARING, "sequences": SHARING, "causal": True,
              "use_lengths": True, "page_size": PAGE, "pages": pages, "engine": options.engine}
    once = clmgk.Plan(**common, table_pages=own, prefix_pages=shared)
    each = clmgk.Plan(**common, table_pages=shared + own)
    whole = np.concatenate([np.tile(prefix, (SHARING, 1)), tables], axis=1)
    arrays = {"q": q, "k": k, "v": v, "offsets": np.arange(SHARING + 1, dtype=np.int32)}
    lengths = np.full(SHARING, OWN, np.int32)
    calls = {"no sharing": lambda: each.forward(**arrays, page_table=whole, lengths=lengths + PREFIX)["o"],
             "shared prefix": lambda: once.forward(**arrays, page_table=tables, lengths=lengths, prefix_table=prefix,
                                                   prefix_length=np.array([PREFIX], np.int32))["o"]}
    compare("shared prefix", calls["shared prefix"](), calls["no sharing"]())
    return calls


def append(options, rng):
    """New tokens into pages, and a copy of as many bytes."""
    g, d = options.kv_heads, options.head_size
    pages = 4 * TOKENS // PAGE
    plan = clmgk.Plan(heads=options.heads, kv_heads=g, head_size=d, dtype="f16", page_size=PAGE, pages=pages, table_pages=1,
                      append=TOKENS, engine=options.engine)
    k, v = np.zeros((2, pages, g, PAGE, d), np.float16)
    new = rng.standard_normal((2, TOKENS, g, d)).astype(np.float16)
    room = np.empty_like(new)
    slots = rng.permutation(pages * PAGE)[:TOKENS].astype(np.int32)
    calls = {"copy": lambda: np.copyto(room, new),
             "append": lambda: plan.append(k=k, v=v, append_k=new[0], append_v=new[1], append_slots=slots)}
    calls["append"]()
    compare("append", k[slots // PAGE, :, slots % PAGE], new[0])
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    rate = read_rate()
    print(f"{options.sequences} sequences, {options.heads} heads, {options.kv_heads} of keys, D {options.head_size}; all cores "
          f"read {1e-9 * rate:.1f} GB/s")
    calls, elements = decoding(options, rng)
    spent = medians(calls, options.repeat)
    for name, seconds in spent.items():
        size = elements * (1 if name == "int8" else 2)
        print(f"  {name:16} {1e3 * seconds:8.2f} ms  {spent['lengths'] / seconds:5.2f} of the speed with lengths, "
              f"{size / seconds / rate:5.2f} of the read rate")
    for made in (cascade(options, rng), append(options, rng)):
        spent = medians(made, options.repeat)
        first = next(iter(spent))
        for name, seconds in spent.items():
            print(f"  {name:16} {1e3 * seconds:8.2f} ms  {spent[first] / seconds:5.2f} of the speed: {first}")


if __name__ == "__main__":
    main()
