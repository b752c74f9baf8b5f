/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions that depend on rounding: which component is the largest, and on which side of 0 a rectified score lies. If
 * a sum lies within its rounding error of the edge, there is no right answer: O and L are the same on both sides, but
 * gradients and gamma differ.
 */
#include "random/random.h"

#include <math.h>

/* The rounding error of a score, relative to the sum of its terms' absolute values. */
#define MARGIN 0x1p-18

static const double *row_of(const th_array *array, int64_t b, int64_t h, int64_t r, int64_t n)
{
    const int64_t *const shape = array->shape;
    return array->values + (((b * shape[1] + h) * shape[2] + r) * shape[3] + n) * shape[4];
}

/* Sum of |q_d k_d|, *sum of q_d k_d; of gaussian scores (|q_d| + |k_d|)^2 / 2. */
static double size_of(const clmgk_attention_desc *d, const double *q, const double *k, const double *shift, double *sum)
{
    double size = 0.0;
    *sum = 0.0;
    for (int64_t n = 0; n < d->head_size; n++) {
        const double key = fabs(k[n]) + (shift ? fabs(shift[n]) : 0.0);
        *sum += q[n] * k[n];
        size += d->score == CLMGK_SCORE_GAUSSIAN ? 0.5 * (fabs(q[n]) + key) * (fabs(q[n]) + key) : fabs(q[n]) * key;
    }
    return size;
}

/* ---- hard E-step ------------------------------------------------------------------------------------------------- */

static double score_size(const th_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j, int64_t r)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const th_array *const a = problem->array;
    const int64_t g = h * d->kv_heads / d->heads;
    const double *const shift = a[TH_SHIFT].used ? row_of(&a[TH_SHIFT], 0, h, r, 0) : NULL;
    const double *const k = row_of(&a[TH_K], b, g, d->variant == CLMGK_VARIANT_MGK ? r : 0, j);
    double sum = 0.0, variance = d->variance;
    if (a[TH_VARIANCE].used)
        variance = *row_of(&a[TH_VARIANCE], 0, d->variance_shape == CLMGK_VARIANCE_HM ? h : 0, r, 0);
    return size_of(d, row_of(&a[TH_Q], b, h, 0, i), k, shift, &sum) / variance;
}

/* Whether the two largest components of a key differ, but by less than their rounding errors. */
static bool is_close(const th_problem *problem, const clmgk_ref_problem *reference, const int64_t at[4])
{
    double best = -(double)INFINITY, size = 0.0;
    for (int64_t r = 0; r < problem->desc.components; r++) {
        best = fmax(best, clmgk_ref_log_weight(reference, at[0], at[1], at[2], at[3], r));
        size = fmax(size, score_size(problem, at[0], at[1], at[2], at[3], r));
    }
    for (int64_t r = 0; r < problem->desc.components; r++) {
        const double gap = best - clmgk_ref_log_weight(reference, at[0], at[1], at[2], at[3], r);
        if (gap > 0.0 && gap < MARGIN * (size + fabs(best)))
            return true;
    }
    return false;
}

/* ---- rectified scores -------------------------------------------------------------------------------------------- */

static bool is_on_edge(const th_problem *problem, const clmgk_ref_problem *reference, const int64_t at[4])
{
    const clmgk_attention_desc *const d = &problem->desc;
    const th_array *const a = problem->array;
    for (int64_t k = 0; k < d->components; k++) {
        double sum = 0.0;
        const double size =
            size_of(d, row_of(&a[TH_Q], at[0], k, 0, at[2]), row_of(&a[TH_K], at[0], k, 0, at[3]), NULL, &sum);
        const double noise =
            a[TH_NOISE].used ? a[TH_NOISE].values[k] * clmgk_ref_noise(reference, at[0], at[1], at[2], at[3]) : 0.0;
        const bool is_mixed = *row_of(&a[TH_MIX], 0, at[1], k, 0) != 0.0;
        if (is_mixed && size + fabs(noise) > 0.0 && fabs(sum + noise) < MARGIN * (size + fabs(noise)))
            return true;
    }
    return false;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

bool rd_is_determined(const th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const bool rectified = (clmgk_variant_traits(d->variant) & CLMGK_TRAIT_GENERALISED) != 0;
    const bool hard = d->estep == CLMGK_ESTEP_HARD && d->components > 1;
    if (!rectified && !hard)
        return true;
    th_reference reference = th_reference_of(problem);
    bool clear = true;
    const int64_t count = d->batch * d->heads * d->length * d->length_k;
    for (int64_t flat = 0; clear && flat < count; flat++) {
        const int64_t j = flat % d->length_k, i = flat / d->length_k % d->length;
        const int64_t head = flat / d->length_k / d->length;
        const int64_t at[4] = {head / d->heads, head % d->heads, i, j};
        if (clmgk_ref_visible(&reference.problem, at[0], at[1], i, j))
            clear = !(hard ? is_close(problem, &reference.problem, at) : is_on_edge(problem, &reference.problem, at));
    }
    th_reference_free(&reference);
    return clear;
}
