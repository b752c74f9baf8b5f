/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combines attentions over disjoint ranges of keys, always in the same order:
 *
 *     L_i = log sum_p exp(L_i^p)          O_i = sum_p exp(L_i^p - L_i) O_i^p
 *
 * The parts are dense, [parts,B,H,N,E] and [parts,B,H,N]: the caller's, or (SPLIT_KEYS) f32 parts in the workspace with
 * L in units of scores, as a sum of two floats. A work-item computes an element of O; elements of a row are adjacent.
 */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_COMBINE_BUFFERS
#include "base/buffers.clh"

#include "attention/block.clh"
#include "attention/units.clh"

/* What the float of element i of a part's L lacks, and the unit of both in nats. */
#if SPLIT_KEYS
#define PART_LOW(i)   parts_low[i]
#define PART_UNIT     NATS_PER_UNIT
#define PART_UNIT_LOW NATS_PER_UNIT_LOW
#else
#define PART_LOW(i)   0.0f
#define PART_UNIT     1.0f
#define PART_UNIT_LOW 0.0f
#endif

/* Parts whose numbers are loaded together: few rows have few work-items, which wait for memory most of the time. */
#define PARTS_AT_ONCE 8

#if HAS_SEQUENCES && SPLIT_KEYS
/* Whether row i of the axis belongs to a sequence. */
FUNCTION bool in_sequence(const mgk_attention_args *a, __global const int *offsets, int i)
{
    int low = 0, high = a->sequences;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (sequence_begin(offsets, middle, a->length) <= i)
            low = middle;
        else
            high = middle;
    }
    return sequence_begin(offsets, low, a->length) <= i && i < sequence_begin(offsets, low + 1, a->length);
}
#endif

__kernel void attention_combine(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    if (a.length == 0)
        return;
    const int e = (int)(get_global_id(0) % VALUE_SIZE);
    const long row = (long)(get_global_id(0) / VALUE_SIZE);
    const int i = (int)(row % a.length), h = (int)(row / a.length % a.heads);
    const long b = row / a.length / a.heads, rows = (long)(HAS_SEQUENCES ? 1 : a.batch) * a.heads * a.length;
    if (e >= a.value_size)
        return;
#if HAS_SEQUENCES && SPLIT_KEYS
    /* rows outside every sequence have no parts and are not written */
    if (!in_sequence(&a, offsets, i))
        return;
#endif
#if SPLIT_KEYS
    const int parts = a.splits;
    parts_lse = work + a.parts_lse;
    __global const float *const parts_low = work + a.parts_low;
    parts_o = work + a.parts_o;
#else
    const int parts = a.bound.parts;
#endif
    float top = -INFINITY, top_low = 0.0f, sum = 0.0f, value = 0.0f;
    for (int first = 0; first < parts; first += PARTS_AT_ONCE) {
        UNROLL
        for (int p = first; p < first + PARTS_AT_ONCE; ++p) {
            const long at = min(p, parts - 1) * rows + row;
            const float l = p < parts ? parts_lse[at] : -INFINITY, low = PART_LOW(at);
            top_low = l > top ? low : top_low;
            top = fmax(top, l);
        }
    }
    top = top == -INFINITY ? 0.0f : top;
    for (int first = 0; first < parts; first += PARTS_AT_ONCE) {
        UNROLL
        for (int p = first; p < first + PARTS_AT_ONCE; ++p) {
            const long at = min(p, parts - 1) * rows + row;
            const float l = p < parts ? parts_lse[at] : -INFINITY, low = PART_LOW(at);
            const float x = load1(parts_o, at * a.value_size + e);
            const bool seen = l != -INFINITY; /* else the part has no visible key, and its O may be anything */
            const float weight = seen ? exp((l - top + (low - top_low)) * PART_UNIT) : 0.0f;
            sum += weight;
            value = seen ? fma(weight, x, value) : value;
        }
    }
    store1(o, b * a.o.batch + h * a.o.head + i * a.o.token + e, sum == 0.0f ? 0.0f : value / sum);
    const long at = b * a.lse.batch + h * a.lse.head + i * a.lse.token;
    const float nats = top * PART_UNIT, lost = fma(top, PART_UNIT_LOW, fma(top, PART_UNIT, -nats));
    const float log_sum = log(sum) + fma(top_low, PART_UNIT, lost), whole = nats + log_sum;
    if (e == 0 && is_given(&a.bound, SLOT_LSE))
        lse[at] = whole;
#if HAS_LSE_LOW
    if (e == 0 && is_given(&a.bound, SLOT_LSE_LOW)) {
        const float of_sum = whole - nats;
        lse_low[at] = sum == 0.0f ? 0.0f : (nats - (whole - of_sum)) + (log_sum - of_sum);
    }
#endif
}
