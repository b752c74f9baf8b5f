/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combines attentions over disjoint ranges of keys, always in the same order:
 *
 *     L_i = log sum_p exp(L_i^p)          O_i = sum_p exp(L_i^p - L_i) O_i^p
 *
 * The parts are dense, [parts,B,H,N,E] and [parts,B,H,N]: the caller's, or (SPLIT_KEYS) f32 parts in the workspace with
 * L in units of scores, as a sum of two floats; SPLIT_TAIL: of the rows from `parts_first` on. Adjacent work-items have
 * adjacent elements of O, four each, which a GPU loads at once. Few rows would leave a GPU idle: then teams of
 * work-items, as many as PART_TEAMS says, share a row's parts, and the teams' sums are added in order.
 */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_COMBINE_BUFFERS
#include "base/buffers.clh"

#include "attention/block.clh"
#include "attention/row_place.clh"
#include "attention/units.clh"
#include "engine/traits.clh"

#include "base/fours.clh"

#define COLUMNS   4
#define ROW_ITEMS (VALUE_SIZE / COLUMNS) /* work-items of a team */

/* The rest of element i of a part's L beside its float, and the unit of both in nats; the type of its O. */
#if SPLIT_KEYS
#define PART_LOW(x, i) ((x)->low[i])
#define PART_UNIT      NATS_PER_UNIT
#define PART_UNIT_LOW  NATS_PER_UNIT_LOW
typedef float part_element;
#else
#define PART_LOW(x, i) (HAS_LSE_LOW && (x)->low ? (x)->low[i] : 0.0f)
#define PART_UNIT      1.0f
#define PART_UNIT_LOW  0.0f
typedef o_element part_element;
#endif

/* Parts whose numbers are loaded together: few rows have few work-items, which wait for memory most of the time. */
#define PARTS_AT_ONCE (PART_TEAMS == 1 ? 2 : 4)

/* A row's parts. */
typedef struct row_parts {
    __global const float *lse, *low; /* of part 0; low: SPLIT_KEYS, or HAS_LSE_LOW and given, else NULL */
    __global const part_element *o;  /* of part 0 */
    long row, rows;                  /* in a part, and to the next part */
    int parts, size;
    bool aligned;
} row_parts;

/* The largest L of the parts from `first` on, one of every PART_TEAMS, what its float lacks, and the last part with
 * keys. */
FUNCTION float team_top(const row_parts *x, int first, float *top_low, int *last)
{
    float top = -INFINITY;
    *top_low = 0.0f;
    *last = first;
    for (; first < x->parts; first += PARTS_AT_ONCE * PART_TEAMS) {
        UNROLL
        for (int p = first; p < first + PARTS_AT_ONCE * PART_TEAMS; p += PART_TEAMS) {
            const long at = min(p, x->parts - 1) * x->rows + x->row;
            const float l = p < x->parts ? x->lse[at] : -INFINITY, low = PART_LOW(x, at);
            *top_low = l > top ? low : *top_low;
            *last = l != -INFINITY ? p : *last;
            top = fmax(top, l);
        }
    }
    return top;
}

/* The sum of these parts' weights relative to `top`, and of their weighted O. Nothing is read behind the `last` part.
 */
FUNCTION float team_sum(const row_parts *x, int first, int last, int e, float top, float top_low, const bool aligned,
                        float4 *value)
{
    float sum = 0.0f;
    *value = (float4)(0.0f);
    for (; first < x->parts; first += PARTS_AT_ONCE * PART_TEAMS) {
        UNROLL
        for (int p = first; p < first + PARTS_AT_ONCE * PART_TEAMS; p += PART_TEAMS) {
            const long at = min(p, last) * x->rows + x->row;
            const float l = p <= last ? x->lse[at] : -INFINITY, low = PART_LOW(x, at);
            const float4 o = load_four(x->o + at * x->size, e, x->size, aligned);
            const bool seen = l != -INFINITY; /* else the part has no visible key, and its O may be anything */
            /* its root: the weight of keys far below a sink may underflow before it multiplies large numbers */
            const float root = seen ? exp((l - top + (low - top_low)) * (0.5f * PART_UNIT)) : 0.0f;
            sum = fma(root, root, sum);
            *value = seen ? fma((float4)(root), root * o, *value) : *value;
        }
    }
    return sum;
}

#if PART_TEAMS > 1
/* The results that a team passes on to the first. */
typedef struct team_results {
    float top, top_low, sum;
    float4 value[ROW_ITEMS];
} team_results;

/* The largest L of all teams' parts, from that of each. */
FUNCTION float row_top(__local team_results *results, int team, bool leads, float top, float *top_low)
{
    if (leads) {
        results[team].top = top;
        results[team].top_low = *top_low;
    }
    LOCAL_BARRIER();
    top = -INFINITY;
    UNROLL
    for (int t = 0; t < PART_TEAMS; ++t) {
        *top_low = results[t].top > top ? results[t].top_low : *top_low;
        top = fmax(top, results[t].top);
    }
    return top;
}

/* The first team's sums become those of all teams. */
FUNCTION float row_sum(__local team_results *results, int team, int item, float sum, float4 *value)
{
    results[team].value[item] = *value;
    if (item == 0)
        results[team].sum = sum;
    LOCAL_BARRIER();
    if (team == 0) {
        UNROLL
        for (int t = 1; t < PART_TEAMS; ++t) {
            sum += results[t].sum;
            *value += results[t].value[item];
        }
    }
    return sum;
}
#endif

/* Stores a row's L. */
FUNCTION void lse_put(const mgk_attention_args *a, long at, float top, float top_low, float sum, __global float *lse,
                      __global float *lse_low)
{
    const float nats = top * PART_UNIT, lost = fma(top, PART_UNIT_LOW, fma(top, PART_UNIT, -nats));
    const float log_sum = log(sum) + fma(top_low, PART_UNIT, lost), whole = nats + log_sum;
    if (is_given(&a->bound, SLOT_LSE))
        lse[at] = whole;
    if (HAS_LSE_LOW && is_given(&a->bound, SLOT_LSE_LOW)) {
        const float of_sum = whole - nats;
        lse_low[at] = sum == 0.0f ? 0.0f : (nats - (whole - of_sum)) + (log_sum - of_sum);
    }
}

__kernel void attention_combine(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    if (a.length == 0)
        return;
    const int item = (int)(get_global_id(0) % ROW_ITEMS), e = item * COLUMNS;
    const int team = (int)(get_global_id(0) / ROW_ITEMS % PART_TEAMS);
    const long before = SPLIT_TAIL ? a.parts_first : 0, rows = rows_of(&a) - before;
    const long row = (long)(get_global_id(0) / (ROW_ITEMS * PART_TEAMS)); /* of those that have parts */
    if (row >= rows)
        return;
    if (PART_TEAMS == 1 && e >= a.value_size)
        return;
    /* rows outside every sequence have no parts and are not written */
    if (HAS_SEQUENCES && SPLIT_KEYS && !in_sequence(&a, offsets, (int)row_of(&a, before + row).i))
        return;
    row_parts x = {.row = row, .rows = rows, .size = a.value_size};
#if SPLIT_KEYS
    x.lse = work + a.parts_lse, x.low = work + a.parts_low, x.o = work + a.parts_o;
    x.parts = a.splits;
    x.aligned = e < a.value_size && has_fours(work + a.parts_o, a.value_size, a.value_size);
#else
    x.lse = parts_lse, x.low = is_given(&a.bound, SLOT_PARTS_LSE_LOW) ? parts_lse_low : 0;
    x.o = parts_o;
    x.parts = a.bound.parts;
    x.aligned = e < a.value_size && has_fours(parts_o, a.value_size, a.value_size);
#endif
    int last;
    float top_low, top = team_top(&x, team, &top_low, &last);
#if PART_TEAMS > 1
    __local team_results results[PART_TEAMS];
    top = row_top(results, team, item == 0, top, &top_low);
#endif
    top = top == -INFINITY ? 0.0f : top;
    float4 value;
    last = min(last, x.parts - 1);
    float sum = x.aligned ? team_sum(&x, team, last, e, top, top_low, true, &value)
                          : team_sum(&x, team, last, e, top, top_low, false, &value);
#if PART_TEAMS > 1
    sum = row_sum(results, team, item, sum, &value);
#endif
    const row_place place = row_of(&a, before + row);
    if (team == 0 && e < a.value_size) {
        __global o_element *const out = o + place.b * a.o.batch + place.h * a.o.head + place.i * a.o.token;
        store_four(out, e, a.value_size, has_fours(out, 0, a.value_size), sum == 0.0f ? (float4)(0.0f) : value / sum);
    }
    if (team == 0 && item == 0)
        lse_put(&a, row_lse(&a, &place), top, top_low, sum, lse, lse_low);
    KEEP_APART;
}
