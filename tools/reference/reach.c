/* SPDX-License-Identifier: Apache-2.0 */
/* What may reach results though the formula does not take it, as attention.h says: numbers that masks hide, and values
 * so large that sums of them overflow. */
#include "reference/problem.h"

#include <float.h>

enum { REACH = 2048 }; /* positions */

static bool is_finite(const double *values, int64_t count)
{
    bool finite = true;
    for (int64_t n = 0; values && n < count; n++)
        finite = finite && isfinite(values[n]);
    return finite;
}

/* Whether key j has a NaN or an infinity in K or V. */
static bool is_poisoned(const clmgk_ref_problem *p, ref_row at, int64_t j)
{
    const clmgk_attention_desc *const desc = &p->desc;
    bool finite = !p->v || is_finite(p->v + ref_value_index(desc, at.b, at.h, j), desc->value_size);
    for (int64_t r = 0; finite && r < desc->components; r++)
        finite = is_finite(p->k + ref_key_index(desc, at.b, at.h, j, r), desc->head_size);
    return !finite;
}

/* Whether the sum over a row's keys may overflow: weights are at most 2^16 until the sum is divided. */
static bool is_large(const clmgk_ref_problem *p, ref_row at, int64_t j, double keys)
{
    const clmgk_attention_desc *const desc = &p->desc;
    const double *const value = p->v + ref_value_index(desc, at.b, at.h, j);
    bool large = false;
    for (int64_t e = 0; e < desc->value_size; e++)
        large = large || fabs(value[e]) * keys * 0x1p16 > (double)FLT_MAX;
    return large;
}

bool ref_row_may_leave(const clmgk_ref_problem *problem, ref_row at)
{
    const ref_span span = ref_span_of(problem, at.b, at.i);
    bool may = false;
    for (int64_t j = span.origin; !span.absent && !may && j < span.limit; j++) {
        const bool near = span.first - REACH <= j && j < span.end + REACH;
        const bool seen = span.first <= j && j < span.end && !ref_hidden(problem, at, j);
        may = seen ? problem->v && is_large(problem, at, j, (double)(span.end - span.first))
                   : near && is_poisoned(problem, at, j);
    }
    return may;
}

bool ref_gradients_may_leave(const clmgk_ref_problem *problem)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t rows = desc->batch * desc->heads * desc->length, queries = desc->batch * desc->length;
    const bool hides = desc->causal || desc->use_window || desc->use_bias;
    const int64_t of_queries = queries * desc->head_size * (ref_form_of(desc).mixed ? desc->components : desc->heads);
    bool may = hides && !(is_finite(problem->q, of_queries) && is_finite(problem->grad_o, rows * desc->value_size) &&
                          is_finite(problem->grad_lse, rows));
    for (int64_t n = 0; !may && n < rows; n++)
        may = ref_row_may_leave(problem, ref_row_of(desc, n));
    return may;
}
