/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of the mixture family (MGK paper, Eqs. 6 and 7). */
#include "reference/gradients.h"

/* q_i . k_jr / sigma_r^2  or  - |q_i - k_jr|^2 / (2 sigma_r^2), where k_jr = k_j + b_r with SMGK. */
static double score(const clmgk_ref_problem *p, ref_row at, const ref_span *span, int64_t j, int64_t r)
{
    const double *const query = p->q + ref_query_index(&p->desc, at, r);
    const double *const key = p->k + ref_key_index(&p->desc, at.b, at.h, j, r);
    const double *const shift = ref_shift(p, at.h, r);
    const double variance = ref_variance(p, at.h, r);
    const bool dot = p->desc.score == CLMGK_SCORE_DOT;
    double sum = 0.0;
    (void)span;
    for (int64_t d = 0; d < p->desc.head_size; d++) {
        const double k_jrd = key[d] + (shift ? shift[d] : 0.0);
        sum += dot ? query[d] * k_jrd : (query[d] - k_jrd) * (query[d] - k_jrd);
    }
    return dot ? sum / variance : -sum / (2.0 * variance);
}

/*
 * dX to query, key, shift and variance:
 *     dot        dq += dX k / sigma^2            dk += dX q / sigma^2
 *     gaussian   dq += dX (k - q) / sigma^2      dk += dX (q - k) / sigma^2
 *     both       dsigma^2 -= dX x / sigma^2
 */
static void add(const exact_backward *back, int64_t j, int64_t r, double grad_x)
{
    const clmgk_ref_problem *const p = back->row.problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const ref_row at = back->row.at;
    const double *const query = p->q + ref_query_index(desc, at, r);
    const double *const key = p->k + ref_key_index(desc, at.b, at.h, j, r);
    const double *const shift = ref_shift(p, at.h, r);
    const double variance = ref_variance(p, at.h, r);
    const bool dot = desc->score == CLMGK_SCORE_DOT;
    for (int64_t d = 0; d < desc->head_size; d++) {
        const double k_jrd = key[d] + (shift ? shift[d] : 0.0);
        back->to_query[d] = dot ? k_jrd : k_jrd - query[d];
        back->to_key[d] = dot ? query[d] : query[d] - k_jrd;
    }
    const double factor = grad_x / variance;
    const int64_t size = desc->head_size;
    exact_add(back, CLMGK_REF_GRAD_Q, ref_query_index(desc, at, r), size, factor, back->to_query);
    exact_add(back, CLMGK_REF_GRAD_K, ref_key_index(desc, at.b, at.h, j, r), size, factor, back->to_key);
    if (shift)
        exact_add(back, CLMGK_REF_GRAD_SHIFT, ref_shift_index(desc, at.h, r), size, factor, back->to_key);
    exact_add_one(back, CLMGK_REF_GRAD_VARIANCE, ref_variance_index(desc, at.h, r),
                  -factor * back->row.score[r * desc->length_k + j]);
}

const exact_scores exact_mixture = {score, add};
