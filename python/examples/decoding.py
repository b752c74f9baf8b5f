# SPDX-License-Identifier: Apache-2.0
"""Decoding, a token a step, over a cache of keys and values in float16: one plan for all lengths.

The cache has room for CAPACITY tokens. `lengths` tells how many there are, and the alignment "lengths" makes the new token
the last of them. Two query heads share a head of keys and values. Prints the largest difference to causal attention over
the whole sequence.
"""
import numpy as np

import clmgk

HEADS, KV_HEADS, SIZE, CAPACITY, TOKENS = 4, 2, 32, 64, 40


def main() -> None:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((1, HEADS, TOKENS, SIZE)).astype(np.float32)
    k, v = (rng.standard_normal((1, KV_HEADS, TOKENS, SIZE)).astype(np.float16) for _ in range(2))
    cache_k, cache_v = (np.zeros((1, KV_HEADS, CAPACITY, SIZE), np.float16) for _ in range(2))

    plan = clmgk.Plan(heads=HEADS, kv_heads=KV_HEADS, length=1, length_k=CAPACITY, head_size=SIZE, dtype="f32",
                      dtype_k="f16", dtype_v="f16", causal=True, alignment="lengths", use_lengths=True)
    steps = []
    for token in range(TOKENS):
        cache_k[:, :, token], cache_v[:, :, token] = k[:, :, token], v[:, :, token]
        lengths = np.array([token + 1], np.int32)
        q_now = np.ascontiguousarray(q[:, :, token:token + 1])
        steps.append(plan.forward(q=q_now, k=cache_k, v=cache_v, lengths=lengths)["o"])

    whole = clmgk.attention(q, k, v, causal=True)
    difference = np.abs(np.concatenate(steps, axis=2) - whole).max()
    print(f"{TOKENS} tokens over a cache of {CAPACITY}: largest difference to attention over all tokens {difference:.1e}")
    assert difference < 1e-5


if __name__ == "__main__":
    main()
