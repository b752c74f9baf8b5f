/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, forward, mixing after the softmax: what is done per row between the kernel that finds L of ranges
 * of keys (admixture/forward.cl) and the one that needs L of all keys (admixture/mixed.cl), and per element of O after
 * that.
 */
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_LOGS_BUFFERS
#include "base/buffers.clh"

#include "attention/block.clh"
#include "attention/row_place.clh"

typedef float real; /* as in formulas that all kernels share */

#include "attention/exact.clh"

/* L of a row in the unit of scores, as the sum of two floats. */
typedef struct row_log {
    float high, low;
} row_log;

/* L of all keys from the `splits` parts, `rows` apart. */
FUNCTION row_log joined_log(__global const float *high, __global const float *low, int splits, long rows)
{
    row_log top = {-INFINITY, 0.0f};
    for (int n = 0; n < splits; ++n) {
        const row_log part = {high[n * rows], low[n * rows]};
        top = part.high > top.high || part.high != part.high ? part : top; /* NaN stays */
    }
    if (splits == 1 || !(fabs(top.high) < INFINITY))
        return top;
    float sum = 0.0f;
    for (int n = 0; n < splits; ++n)
        sum += exp((high[n * rows] - top.high + (low[n * rows] - top.low)) * NATS_PER_UNIT);
    top.high = add_exactly(top.high, log(sum) * UNITS_PER_NAT, &top.low);
    return top;
}

/* L in nats to the call's arrays. */
FUNCTION void put_log(const mgk_attention_args *a, const row_place *at, row_log x, __global float *lse,
                      __global float *lse_low)
{
    const bool finite = fabs(x.high) < INFINITY;
    const float scaled = x.high * NATS_PER_UNIT, lost = fma(x.high, NATS_PER_UNIT, -scaled);
    float low = 0.0f;
    const float rest = fma(x.low, NATS_PER_UNIT, fma(x.high, NATS_PER_UNIT_LOW, lost));
    const float nats = finite ? add_exactly(scaled, rest, &low) : x.high;
    if (is_given(&a->bound, SLOT_LSE))
        lse[row_lse(a, at)] = nats;
    if (HAS_LSE_LOW && is_given(&a->bound, SLOT_LSE_LOW))
        lse_low[row_lse(a, at)] = finite ? low : 0.0f;
}

/* A work-item is a row of a head before the mixing. -L takes the place of the first range's part. */
__kernel void admixture_logs(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0), rows = rows_of(&a);
    if (a.length == 0 || x >= rows)
        return;
    const row_place at = row_of(&a, x);
#if HAS_SEQUENCES
    if (!in_sequence(&a, offsets, (int)at.i))
        return;
#endif
    __global float *const high = work + a.parts_lse + x, *const low = work + a.parts_low + x;
    const row_log whole = joined_log(high, low, a.splits, rows);
    put_log(&a, &at, whole, lse, lse_low);
    *high = whole.high == -INFINITY ? -INFINITY : -whole.high;
    *low = -whole.low;
}

/* A work-item is an element of O, the sum of the ranges' parts. */
__kernel void admixture_outputs(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long batches = HAS_SEQUENCES ? 1 : a.batch, heads = (long)a.kv_heads * HEAD_RATIO;
    const long count = batches * heads * a.length * a.value_size, x = get_global_id(0);
    if (a.length == 0 || x >= count)
        return;
    const long row = x / a.value_size, i = row % a.length, h = row / a.length % heads, b = row / a.length / heads;
#if HAS_SEQUENCES
    if (!in_sequence(&a, offsets, (int)i))
        return;
#endif
    float sum = 0.0f;
    for (int n = 0; n < a.splits; ++n)
        sum += work[a.parts_o + n * count + x];
    store1(o + b * a.o.batch + h * a.o.head + i * a.o.token, x % a.value_size, sum);
}
