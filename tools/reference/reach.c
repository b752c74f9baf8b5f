/* SPDX-License-Identifier: Apache-2.0 */
/* What may reach results though the formula does not take it, as attention.h says: numbers that masks hide, and values
 * so large that sums of them overflow. */
#include "reference/texts.h"

#include <float.h>

enum { REACH = 2048 }; /* positions */

static bool is_finite(const double *values, int64_t count)
{
    bool finite = true;
    for (int64_t n = 0; n < count; n++)
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
    ref_texts texts;
    bool may = false;
    if (!ref_texts_create(problem, false, &texts))
        return false;
    for (int64_t j = span.origin; !span.absent && !may && j < span.limit; j++) {
        const bool near = problem->desc.use_positions || (span.first - REACH <= j && j < span.end + REACH);
        const bool seen = span.first <= j && j < span.end && !ref_hidden(problem, at, j) &&
                          !ref_text_hides(&texts, &(ref_pair){at, &span, j, 0, 0.0});
        may = seen ? problem->v && is_large(problem, at, j, (double)(span.end - span.first))
                   : near && is_poisoned(problem, at, j);
    }
    ref_texts_free(&texts);
    return may;
}

/* Whether a row has a NaN or an infinity in Q, dO or dL. */
static bool is_poisoned_row(const clmgk_ref_problem *p, ref_row at, int64_t number)
{
    const clmgk_attention_desc *const desc = &p->desc;
    bool finite = !p->grad_o || is_finite(p->grad_o + number * desc->value_size, desc->value_size);
    finite = finite && (!p->grad_lse || isfinite(p->grad_lse[number]));
    for (int64_t r = 0; finite && r < ref_queries(desc); r++)
        finite = is_finite(p->q + ref_query_index(desc, at, r), desc->head_size);
    return !finite;
}

bool ref_gradients_may_leave(const clmgk_ref_problem *problem)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const bool hides = desc->causal || desc->use_window || desc->use_bias || desc->mask_mod || desc->use_mask_blocks;
    bool may = false;
    for (int64_t n = 0; !may && n < desc->batch * desc->heads * desc->length; n++) {
        const ref_row at = ref_row_of(desc, n);
        const bool in_use = !ref_span_of(problem, at.b, at.i).absent;
        may = in_use && ((hides && is_poisoned_row(problem, at, n)) || ref_row_may_leave(problem, at));
    }
    return may;
}
