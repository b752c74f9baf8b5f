/* SPDX-License-Identifier: Apache-2.0 */
/* The range of O of a row whose weights are lost in rounding. */
#include "reference/arrays.h"
#include "reference/mixed.h"

#include <float.h>

/* Widens [low, high] of a lost row by what key j adds to O if it has all the weight. */
static void add_value(const exact_row *row, int64_t j, double *low, double *high)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const double *const value = row->problem->v + ref_value_index(desc, row->at.b, row->at.h, j);
    const double kept = ref_kept(row->problem, row->at.h, &row->span, j);
    for (int64_t e = 0; e < desc->value_size; e++) {
        low[e] = fmin(low[e], kept * value[e]);
        high[e] = fmax(high[e], kept * value[e]);
    }
}

/* Whether key j, whose weight may be all there is, has values of 0. */
static bool has_zeros(const exact_row *row, int64_t j)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const double *const value = row->problem->v + ref_value_index(desc, row->at.b, row->at.h, j);
    bool zero = true;
    for (int64_t e = 0; e < desc->value_size; e++)
        zero = zero && value[e] == 0.0;
    return zero;
}

/* Whether all that makes the logits of keys j and other is the same, so that any rounding leaves them equal. */
static bool are_same(const exact_row *row, int64_t j, int64_t other)
{
    const clmgk_ref_problem *const p = row->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const ref_row at = row->at;
    bool same = exact_minus(row->log_w[j], row->log_w[other]) == 0.0 && ref_bias(p, at, j) == ref_bias(p, at, other) &&
                ref_penalty(p, at.h, &row->span, j) == ref_penalty(p, at.h, &row->span, other);
    for (int64_t n = 0; same && n < desc->components * desc->head_size; n++) {
        const int64_t r = n / desc->head_size, d = n % desc->head_size;
        same = p->k[ref_key_index(desc, at.b, at.h, j, r) + d] == p->k[ref_key_index(desc, at.b, at.h, other, r) + d];
    }
    return same;
}

/* Widens the range by the rounding of the sum, c times the values. A range that leaves O's type has no end there. */
static void add_room(const clmgk_attention_desc *desc, double size, double *low, double *high)
{
    const clmgk_dtype type = clmgk_ref_type_of(desc, CLMGK_ARRAY_O);
    const double underflow = fmax(clmgk_ref_limits_of(type).least, (double)FLT_MIN), most = ref_most(type);
    const ref_tolerance tolerance = ref_tolerance_of_products(ref_tolerance_of_gradients(type), desc->precision, 2.0);
    const double room = tolerance.part * size + underflow;
    *low -= room;
    *high += room;
    if (most > 0.0 && *low < -most)
        *low = -(double)INFINITY;
    if (most > 0.0 && *high > most)
        *high = (double)INFINITY;
}

/* Keys that are all the same have the same weight: O is exact. */
void ref_fill_range(const exact_row *row, const double *o, double *low, double *high, bool *may_be_zero)
{
    const clmgk_ref_problem *const p = row->problem;
    const bool sink = p->desc.use_sinks && exact_sink_reach(row) > 0.0;
    int64_t first = -1;
    bool same = !sink;
    for (int64_t e = 0; e < p->desc.value_size; e++) {
        low[e] = sink ? 0.0 : (double)INFINITY;
        high[e] = sink ? 0.0 : -(double)INFINITY;
    }
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        if (!row->visible[j] || !(exact_key_reach(row, j) > 0.0))
            continue;
        add_value(row, j, low, high);
        *may_be_zero = *may_be_zero || has_zeros(row, j);
        first = first < 0 ? j : first;
        same = same && are_same(row, j, first);
    }
    for (int64_t e = 0; e < p->desc.value_size; e++) {
        const double size = fmax(fabs(low[e]), fabs(high[e]));
        if (same)
            low[e] = high[e] = o[e];
        add_room(&p->desc, size, &low[e], &high[e]);
    }
}
