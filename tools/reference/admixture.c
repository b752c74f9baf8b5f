/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores of the admixture family (FiSH paper, Eqs. 9 to 12):
 *
 *     A_hij = sum_k p_hk (G_kij + sigma_k eps_hij)                        G_kij = q_ki . k_kj
 *     A_hij = sum_k w_hk relu(p_hk (G_kij + sigma_k eps_hij)) + c_h       generalised
 */
#include "reference/families.h"
#include "reference/gradients.h"

/* ---- exact ---------------------------------------------------------------------------------------------------- */

/* relu(NaN) is NaN. */
static double relu(double x)
{
    return x <= 0.0 ? 0.0 : x;
}

/* G_kij, and the sum of the absolute values of its terms. */
static double product(const clmgk_ref_problem *p, ref_row at, int64_t j, int64_t k, double *size)
{
    const double *const query = p->q + ref_query_index(&p->desc, at, k);
    const double *const key = p->k + ref_key_index(&p->desc, at.b, at.h, j, k);
    double sum = 0.0;
    *size = 0.0;
    for (int64_t d = 0; d < p->desc.head_size; d++) {
        sum += query[d] * key[d];
        *size += fabs(query[d] * key[d]);
    }
    return sum;
}

/* A_hij / sqrt(D) */
static double score(const clmgk_ref_problem *p, ref_row at, const ref_span *span, int64_t j, int64_t r, double *size)
{
    const bool generalised = ref_form_of(&p->desc).generalised;
    const double eps = ref_noise(p, at.h, span, j);
    double sum = generalised ? ref_mix_offset(p, at.h) : 0.0, sizes = fabs(sum);
    (void)r;
    for (int64_t k = 0; k < p->desc.components; k++) {
        double terms = 0.0;
        const double x = ref_mix(p, at.h, k) * (product(p, at, j, k, &terms) + ref_deviation(p, k) * eps);
        const double weight = generalised ? ref_mix_weight(p, at.h, k) : 1.0;
        sum += generalised ? weight * relu(x) : x;
        sizes += fabs(weight * ref_mix(p, at.h, k)) * (terms + ref_deviation(p, k) * (1.0 + fabs(eps)));
    }
    *size = sizes / sqrt((double)p->desc.head_size);
    return sum / sqrt((double)p->desc.head_size);
}

/*
 * Global head k's part of dA, with y = G + sigma eps, x = p y, and dx = dA, generalised dA w where x > 0, else 0:
 *     dq += p dx k     dk += p dx q     dp += dx y     dw += dA relu(x)     dsigma += p dx eps
 */
static void add_global(const exact_backward *back, int64_t j, int64_t k, double eps, double grad_a)
{
    const clmgk_ref_problem *const p = back->row.problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const ref_form form = ref_form_of(desc);
    const ref_row at = back->row.at;
    const double mix = ref_mix(p, at.h, k);
    double size = 0.0;
    const double y = product(p, at, j, k, &size) + ref_deviation(p, k) * eps;
    const double slope = mix * y > 0.0 ? ref_mix_weight(p, at.h, k) : 0.0;
    const double grad_x = form.generalised ? grad_a * slope : grad_a;
    const int64_t query = ref_query_index(desc, at, k);
    const int64_t key = ref_key_index(desc, at.b, at.h, j, k);
    exact_add(back, CLMGK_REF_GRAD_Q, query, desc->head_size, mix * grad_x, p->k + key);
    exact_add(back, CLMGK_REF_GRAD_K, key, desc->head_size, mix * grad_x, p->q + query);
    exact_add_one(back, CLMGK_REF_GRAD_MIX, ref_mix_index(desc, at.h, k), grad_x * y);
    exact_add_one(back, CLMGK_REF_GRAD_NOISE, k, mix * grad_x * eps);
    exact_add_one(back, CLMGK_REF_GRAD_MIX_WEIGHT, ref_mix_weight_index(desc, at.h, k), grad_a * relu(mix * y));
}

static void add(const exact_backward *back, int64_t j, int64_t r, double grad_x)
{
    const exact_row *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const double eps = ref_noise(row->problem, row->at.h, &row->span, j);
    const double grad_a = grad_x / sqrt((double)desc->head_size);
    (void)r;
    for (int64_t k = 0; k < desc->components; k++)
        add_global(back, j, k, eps, grad_a);
    exact_add_one(back, CLMGK_REF_GRAD_MIX_OFFSET, row->at.h, grad_a);
}

static const exact_scores exact = {score, add};

static float root_of_size(const clmgk_attention_desc *desc)
{
    return sqrtf((float)desc->head_size);
}

/* ---- the plain formula: scores ----------------------------------------------------------------------------------- */

static void load(ref_plain *plain)
{
    const clmgk_ref_problem *const p = plain->problem;
    for (int64_t k = 0; k < p->desc.components; k++) {
        plain->mix[k] = (float)ref_mix(p, plain->at.h, k);
        plain->mix_weight[k] = (float)ref_mix_weight(p, plain->at.h, k);
    }
}

/* y_kij = G_kij + sigma_k eps_hij of every key that the row sees */
static void fill_global(ref_plain *plain, int64_t k)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const int64_t keys = desc->length_k, size = desc->head_size;
    const int64_t first = plain->span.first;
    const ref_terms products = {ref_term_of(REF_TERM_PRODUCT, desc->precision),
                                size,
                                plain->span.end - first,
                                plain->query + k * size,
                                1,
                                plain->keys + k * size * keys + first,
                                keys,
                                NULL};
    const float deviation = (float)ref_deviation(plain->problem, k);
    float *const y = plain->global + k * keys;
    ref_sum(&products, plain->way.order, y + first);
    for (int64_t j = first; j < plain->span.end; j++) {
        const float x = plain->mix[k] * (y[j] += deviation * plain->eps[j]);
        plain->rectified[k * keys + j] = x <= 0.0F ? 0.0F : x; /* keeps NaN */
    }
}

/* A_hij / sqrt(D) */
static void fill(ref_plain *plain)
{
    const clmgk_ref_problem *const p = plain->problem;
    const int64_t heads = p->desc.components, keys = p->desc.length_k;
    const int64_t first = plain->span.first, width = plain->span.end - first;
    const bool generalised = ref_form_of(&p->desc).generalised;
    for (int64_t j = first; j < plain->span.end; j++)
        plain->eps[j] = ref_plain_noise(p, plain->at.h, &plain->span, j);
    for (int64_t k = 0; k < heads; k++)
        fill_global(plain, k);
    const float *const coef = generalised ? plain->mix_weight : plain->mix;
    const float *const rows = generalised ? plain->rectified : plain->global;
    const ref_terms terms = {REF_TERM_PRODUCT, heads, width, coef, 1, rows + first, keys, NULL};
    ref_sum(&terms, plain->way.order, plain->score + first);
    const float offset = generalised ? (float)ref_mix_offset(p, plain->at.h) : 0.0F;
    for (int64_t j = first; j < plain->span.end; j++)
        plain->score[j] = (plain->score[j] + offset) / root_of_size(&p->desc);
}

/* ---- the plain formula: gradients -------------------------------------------------------------------------------- */

static void begin(plain_backward *back)
{
    const clmgk_attention_desc *const desc = &back->row.problem->desc;
    const int64_t rows = desc->components * desc->length;
    for (int64_t n = 0; back->first && n < rows * desc->length_k; n++)
        back->grad_x[n] = 0.0F;
    for (int64_t n = 0; n < rows; n++)
        back->mix[n] = back->mix_weight[n] = back->noise[n] = 0.0F;
    for (int64_t i = 0; i < desc->length; i++)
        back->mix_offset[i] = 0.0F;
}

/* Global head k's gradients of y, p, w and sigma from dA (formulas: above). */
static void plain_add_global(plain_backward *back, int64_t i, int64_t k)
{
    const ref_plain *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const bool generalised = ref_form_of(desc).generalised;
    const ref_order order = row->way.order;
    const int64_t keys = desc->length_k;
    const int64_t first = row->span.first, width = row->span.end - first;
    const float *const y = row->global + k * keys;
    const float *const rectified = row->rectified + k * keys;
    float *const grad_y = back->grad_x + (k * desc->length + i) * keys;
    for (int64_t j = first; j < row->span.end; j++) {
        const float slope = rectified[j] > 0.0F ? row->mix_weight[k] : 0.0F;
        back->part[j] = generalised ? back->grad_a[j] * slope : back->grad_a[j];
        grad_y[j] += row->mix[k] * back->part[j];
    }
    const int64_t n = k * desc->length + i;
    back->mix[n] = ref_sum_of_products(width, back->part + first, y + first, order);
    back->mix_weight[n] = ref_sum_of_products(width, back->grad_a + first, rectified + first, order);
    back->noise[n] = row->mix[k] * ref_sum_of_products(width, back->part + first, row->eps + first, order);
}

static void add_row(plain_backward *back, int64_t i)
{
    const ref_plain *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const int64_t first = row->span.first;
    for (int64_t j = first; j < row->span.end; j++) {
        const float grad_s = row->p[j] * back->grad_w[j];
        back->grad_s[i * desc->length_k + j] = grad_s;
        back->grad_a[j] = grad_s * plain_cap_slope(desc, row->score[j]);
    }
    for (int64_t k = 0; k < desc->components; k++)
        plain_add_global(back, i, k);
    back->mix_offset[i] = ref_sum_of(row->span.end - first, back->grad_a + first, row->way.order);
}

/* The sum of rows[N], over sqrt(D) */
static void end_sum(const plain_backward *back, clmgk_ref_gradient which, int64_t at, const float *rows)
{
    const clmgk_attention_desc *const desc = &back->row.problem->desc;
    const float sum = ref_sum_of(desc->length, rows, back->row.way.order);
    plain_add(back, which, at, 1, root_of_size(desc), &sum);
}

static void end(plain_backward *back)
{
    const clmgk_attention_desc *const desc = &back->row.problem->desc;
    const int64_t rows = desc->length;
    for (int64_t k = 0; k < desc->components; k++) {
        end_sum(back, CLMGK_REF_GRAD_MIX, ref_mix_index(desc, back->h, k), back->mix + k * rows);
        end_sum(back, CLMGK_REF_GRAD_MIX_WEIGHT, ref_mix_weight_index(desc, back->h, k), back->mix_weight + k * rows);
        end_sum(back, CLMGK_REF_GRAD_NOISE, k, back->noise + k * rows);
    }
    end_sum(back, CLMGK_REF_GRAD_MIX_OFFSET, back->h, back->mix_offset);
    for (int64_t k = 0; back->last && k < desc->components; k++) {
        plain_sum_queries(back, k, root_of_size(desc));
        plain_sum_keys(back, k, root_of_size(desc));
    }
}

static const plain_scores plain_formula = {load, fill, begin, add_row, end};

/* ---- gradients ------------------------------------------------------------------------------------------------ */

static int64_t count(const clmgk_attention_desc *d, clmgk_ref_gradient which)
{
    const ref_form form = ref_form_of(d);
    switch (which) {
    case CLMGK_REF_GRAD_Q:
        return d->batch * d->components * d->length * d->head_size;
    case CLMGK_REF_GRAD_K:
        return d->batch * d->components * d->length_k * d->head_size;
    case CLMGK_REF_GRAD_MIX:
        return ref_mix_index(d, d->heads - 1, d->components - 1) + 1;
    case CLMGK_REF_GRAD_MIX_WEIGHT:
        return form.generalised ? d->heads * d->components : 0;
    case CLMGK_REF_GRAD_MIX_OFFSET:
        return form.generalised ? d->heads : 0;
    case CLMGK_REF_GRAD_NOISE:
        return form.noisy ? d->components : 0;
    default:
        return 0;
    }
}

const ref_family ref_admixture = {&exact, &plain_formula, count};
