/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of the mixture family (MGK paper, Eqs. 6 and 7). */
#include "reference/families.h"
#include "reference/gradients.h"

/* ---- exact ---------------------------------------------------------------------------------------------------- */

/* q_i . k_jr / sigma_r^2  or  - |q_i - k_jr|^2 / (2 sigma_r^2), where k_jr = k_j + b_r with SMGK. The size of a
 * distance is that of its expanded form. */
static double score(const clmgk_ref_problem *p, ref_row at, const ref_span *span, int64_t j, int64_t r, double *size)
{
    const double *const query = p->q + ref_query_index(&p->desc, at, r);
    const double *const key = p->k + ref_key_index(&p->desc, at.b, at.h, j, r);
    const double *const shift = ref_shift(p, at.h, r);
    const double variance = ref_variance(p, at.h, r);
    const bool dot = p->desc.score == CLMGK_SCORE_DOT;
    double sum = 0.0, sizes = 0.0;
    (void)span;
    for (int64_t d = 0; d < p->desc.head_size; d++) {
        const double k_jrd = key[d] + (shift ? shift[d] : 0.0);
        const double both = fabs(query[d]) + fabs(k_jrd);
        sum += dot ? query[d] * k_jrd : (query[d] - k_jrd) * (query[d] - k_jrd);
        sizes += dot ? fabs(query[d] * k_jrd) : both * both;
    }
    *size = sizes / (dot ? variance : 2.0 * variance);
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

static const exact_scores exact = {score, add};

/* ---- the plain formula: scores ----------------------------------------------------------------------------------- */

static void load_norms(ref_plain *plain, int64_t r)
{
    static const float zero = 0.0F;
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const int64_t keys = desc->length_k;
    const ref_terms squares = {
        REF_TERM_SQUARE, desc->head_size, keys, &zero, 0, plain->keys + r * desc->head_size * keys, keys, NULL};
    for (int order = 0; order < REF_ORDERS; order++)
        ref_sum(&squares, (ref_order)order, plain->norms + (order * desc->components + r) * keys);
}

static void load(ref_plain *plain)
{
    for (int64_t r = 0; r < plain->problem->desc.components; r++)
        load_norms(plain, r);
}

/* The scaled score of every key that the row sees, component r. */
static void fill_component(ref_plain *plain, int64_t r)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const int64_t keys = desc->length_k, first = plain->span.first;
    const bool dot = desc->score == CLMGK_SCORE_DOT;
    const bool expanded = plain->way.distance == REF_DISTANCE_EXPANDED;
    const ref_terms terms = {ref_term_of(dot || expanded ? REF_TERM_PRODUCT : REF_TERM_SQUARE, desc->precision),
                             desc->head_size,
                             plain->span.end - first,
                             plain->query,
                             1,
                             plain->keys + r * desc->head_size * keys + first,
                             keys,
                             NULL};
    float *const score = plain->score + r * keys;
    ref_sum(&terms, plain->way.order, score + first);

    const float variance = (float)ref_variance(plain->problem, plain->at.h, r);
    const float query = ref_sum_of_products(desc->head_size, plain->query, plain->query, plain->way.order);
    const float *const norms = plain->norms + ((int64_t)plain->way.order * desc->components + r) * keys;
    for (int64_t j = first; j < plain->span.end; j++) {
        if (expanded)
            score[j] = query - 2.0F * score[j] + norms[j];
        score[j] = dot ? score[j] / variance : -score[j] / (2.0F * variance);
    }
}

static void fill(ref_plain *plain)
{
    for (int64_t r = 0; r < plain->problem->desc.components; r++)
        fill_component(plain, r);
}

/* ---- the plain formula: gradients -------------------------------------------------------------------------------- */

static void begin(plain_backward *back)
{
    const clmgk_attention_desc *const desc = &back->row.problem->desc;
    const int64_t rows = desc->components * desc->length;
    for (int64_t n = 0; n < rows * desc->length_k; n++)
        back->grad_x[n] = back->prior[n] = 0.0F;
    for (int64_t n = 0; n < rows; n++)
        back->variance[n] = 0.0F;
}

static void add_component(plain_backward *back, int64_t i, int64_t r)
{
    const ref_plain *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const int64_t keys = desc->length_k;
    const float *const score = row->score + r * keys;
    const float *const weight = row->weight + r * keys;
    const float *const p = row->p + r * keys;
    float *const grad_x = back->grad_x + (r * desc->length + i) * keys;
    float *const prior = back->prior + (r * desc->length + i) * keys;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        const float grad_s = p[j] * back->grad_w[j];
        back->grad_s[i * keys + j] += grad_s;
        grad_x[j] = plain_shape_gradient(back, j, r, grad_s);
        prior[j] = expf(weight[j] - row->largest) / row->total * back->grad_w[j];
    }
    back->variance[r * desc->length + i] = ref_sum_of_products(
        row->span.end - row->span.first, grad_x + row->span.first, score + row->span.first, row->way.order);
}

static void add_row(plain_backward *back, int64_t i)
{
    for (int64_t r = 0; r < back->row.problem->desc.components; r++)
        add_component(back, i, r);
}

static void end_component(plain_backward *back, int64_t r)
{
    const clmgk_attention_desc *const desc = &back->row.problem->desc;
    const ref_order order = back->row.way.order;
    const float variance = (float)ref_variance(back->row.problem, back->h, r);
    plain_sum_queries(back, r, variance);
    plain_sum_keys(back, r, variance);
    if (ref_form_of(desc).shift && back->values[CLMGK_REF_GRAD_SHIFT]) {
        ref_sum_rows(desc->length_k, desc->head_size, back->keys_sum, desc->head_size, order, back->sum);
        plain_add(back, CLMGK_REF_GRAD_SHIFT, ref_shift_index(desc, back->h, r), desc->head_size, variance, back->sum);
    }
    const float sum = ref_sum_of(desc->length, back->variance + r * desc->length, order);
    plain_add(back, CLMGK_REF_GRAD_VARIANCE, ref_variance_index(desc, back->h, r), 1, -variance, &sum);
}

static void end(plain_backward *back)
{
    const clmgk_attention_desc *const desc = &back->row.problem->desc;
    for (int64_t r = 0; r < desc->components; r++)
        end_component(back, r);
    if (back->values[CLMGK_REF_GRAD_PRIOR] && desc->estep == CLMGK_ESTEP_SOFT)
        ref_plain_sum_prior(desc, back->h, back->prior, back->row.way.order, back->sum,
                            back->values[CLMGK_REF_GRAD_PRIOR]);
}

static const plain_scores plain_formula = {load, fill, begin, add_row, end};

/* ---- gradients ------------------------------------------------------------------------------------------------ */

static int64_t count(const clmgk_attention_desc *d, clmgk_ref_gradient which)
{
    const ref_form form = ref_form_of(d);
    switch (which) {
    case CLMGK_REF_GRAD_Q:
        return d->batch * d->heads * d->length * d->head_size;
    case CLMGK_REF_GRAD_K:
        return d->batch * d->kv_heads * (form.keys ? d->components : 1) * d->length_k * d->head_size;
    case CLMGK_REF_GRAD_PRIOR:
        return form.prior ? ref_prior_count(d) : 0;
    case CLMGK_REF_GRAD_VARIANCE:
        return ref_variance_index(d, d->heads - 1, d->components - 1) + 1;
    case CLMGK_REF_GRAD_SHIFT:
        return form.shift ? d->heads * d->components * d->head_size : 0;
    default:
        return 0;
    }
}

const ref_family ref_mixture = {&exact, &plain_formula, count};
