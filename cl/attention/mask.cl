/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk_enqueue_mask: classifies blocks of pairs by a user's mask: whether it hides all pairs of a block, or none, as
 * far as the ranges of their positions, and of the elements of captured arrays that they read, tell. A work-item has a
 * block.
 */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_mask_args
#define BUFFERS   MGK_MASK_BUFFERS
#include "base/buffers.clh"

#include "attention/block.clh"
#include "attention/classes.clh"

#include "attention/mask_text.clh"

/* Batch, or head, n; all `count` where classes are `shared`. */
FUNCTION mod_range whole_or(bool shared, long n, int count)
{
    return shared ? range_of(0, count - 1) : range_of(n, n);
}

__kernel void attention_mask(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = (long)get_global_id(0);
    const long rows = ((long)a.length + (1L << a.classes.query_shift) - 1) >> a.classes.query_shift;
    if (a.length == 0 || x >= a.batch * (long)a.heads * rows * a.classes.row)
        return;
    const long n = x % a.classes.row, m = x / a.classes.row % rows, bh = x / a.classes.row / rows;
    const mod_range h = whole_or(a.heads < a.query_heads, bh % a.heads, a.query_heads);
    const mod_tile tile = {numbers_of(m, a.classes.query_shift, a.length),
                           numbers_of(n, a.classes.key_shift, a.length_k),
                           whole_or(a.batch < a.batches, bh / a.heads, a.batches),
                           h,
                           range_of(h.low * a.kv_heads / a.query_heads, h.high * a.kv_heads / a.query_heads),
                           range_of(a.length, a.length),
                           range_of(a.length_k, a.length_k)};
    const mod_data data = MOD_DATA;
    const mod_range seen = mask_mod_block(tile, data, a.most);
    out[a.classes.first + x] = class_of_range(seen);
}
