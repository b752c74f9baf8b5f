/* SPDX-License-Identifier: Apache-2.0 */
/* The formulas in double precision. */
#include "reference/problem.h"

#include <stdlib.h>

static int64_t clamp(int64_t value, int64_t limit)
{
    if (value < 0)
        return 0;
    return value < limit ? value : limit;
}

/* d(i): the last key that causality leaves to query i. */
static int64_t diagonal(const clmgk_attention_desc *desc, int64_t keys, int64_t i)
{
    switch (desc->alignment) {
    case CLMGK_ALIGN_TOP_LEFT:
        return i;
    case CLMGK_ALIGN_LENGTHS:
        return i + keys - desc->length;
    case CLMGK_ALIGN_BOTTOM_RIGHT:
        break;
    }
    return i + desc->length_k - desc->length;
}

int64_t clmgk_ref_visible_keys(const clmgk_ref_problem *problem, int64_t b, int64_t i)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    if (desc->use_lengths_q && i >= problem->lengths_q[b])
        return 0;
    const int64_t keys = desc->use_lengths ? clamp(problem->lengths[b], desc->length_k) : desc->length_k;
    return desc->causal ? clamp(diagonal(desc, keys, i) + 1, keys) : keys;
}

bool clmgk_ref_visible(const clmgk_ref_problem *problem, int64_t b, int64_t i, int64_t j)
{
    return j < clmgk_ref_visible_keys(problem, b, i); /* lengths and causality hide the keys from some j on */
}

/*
 * s_ijr - log pi_r(j):
 *     dot        q_i . k_jr / sigma_r^2
 *     gaussian   - |q_i - k_jr|^2 / (2 sigma_r^2)
 * where k_jr = k_j + b_r with SMGK.
 */
static double score(const clmgk_ref_problem *p, int64_t b, int64_t h, int64_t i, int64_t j, int64_t r)
{
    const double *const query = ref_query(p, b, h, i);
    const double *const key = ref_key(p, b, h, j, r);
    const double *const shift = ref_shift(p, h, r);
    const double variance = ref_variance(p, h, r);
    double product = 0.0;
    double distance = 0.0;
    for (int64_t d = 0; d < p->desc.head_size; d++) {
        const double k_jrd = key[d] + (shift ? shift[d] : 0.0);
        product += query[d] * k_jrd;
        distance += (query[d] - k_jrd) * (query[d] - k_jrd);
    }
    return p->desc.score == CLMGK_SCORE_DOT ? product / variance : -distance / (2.0 * variance);
}

double clmgk_ref_log_weight(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j, int64_t r)
{
    const double s = score(problem, b, h, i, j, r);
    return problem->desc.estep == CLMGK_ESTEP_HARD ? s : log(ref_prior(problem, h, j, r)) + s;
}

/* log sum_n exp(x_n); -inf if there is none. */
static double log_sum_exp(const double *x, int64_t count)
{
    double largest = -(double)INFINITY;
    for (int64_t n = 0; n < count; n++)
        largest = x[n] > largest ? x[n] : largest;
    const double base = isfinite(largest) ? largest : 0.0;
    double sum = 0.0;
    for (int64_t n = 0; n < count; n++)
        sum += exp(x[n] - base);
    return base + log(sum);
}

/* The largest of x, NaN if one of them is. */
static double maximum(const double *x, int64_t count)
{
    double largest = x[0];
    for (int64_t n = 1; n < count; n++)
        largest = isnan(x[n]) || x[n] > largest ? x[n] : largest;
    return largest;
}

/* w_ij = logsumexp_r s_ijr (soft) or max_r (s_ijr - log pi_r(j)) (hard). `s` is room for M numbers. */
static double key_weight(const clmgk_ref_problem *p, ref_row row, int64_t j, double *s)
{
    const int64_t components = p->desc.components;
    for (int64_t r = 0; r < components; r++)
        s[r] = clmgk_ref_log_weight(p, row.b, row.h, row.i, j, r);
    return p->desc.estep == CLMGK_ESTEP_HARD ? maximum(s, components) : log_sum_exp(s, components);
}

bool clmgk_ref_row(const clmgk_ref_problem *problem, int64_t row, double *o, double *lse)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const ref_row at = ref_row_of(desc, row);
    const int64_t keys = clmgk_ref_visible_keys(problem, at.b, at.i);
    double *const w = malloc((size_t)(keys + desc->components) * sizeof(double));
    if (!w)
        return false;

    for (int64_t j = 0; j < keys; j++)
        w[j] = key_weight(problem, at, j, w + keys);

    /* L_i = logsumexp_j w_ij,   a_ij = exp(w_ij - L_i),   h_i = sum_j a_ij v_j */
    *lse = log_sum_exp(w, keys);
    const double total = *lse == -(double)INFINITY ? 0.0 : *lse; /* no key: every a_ij is 0 */
    for (int64_t e = 0; e < desc->value_size; e++)
        o[e] = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        const double *const value = ref_value(problem, at.b, at.h, j);
        const double a_ij = exp(w[j] - total);
        for (int64_t e = 0; e < desc->value_size; e++)
            o[e] += a_ij * value[e];
    }
    free(w);
    return true;
}
