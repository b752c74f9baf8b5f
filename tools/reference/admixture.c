/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores of the admixture family (FiSH paper, Eqs. 9 to 12):
 *
 *     A_hij = sum_k p_hk (G_kij + sigma_k eps_hij)                        G_kij = q_ki . k_kj
 *     A_hij = sum_k w_hk relu(p_hk (G_kij + sigma_k eps_hij)) + c_h       generalised
 *     A_hij = sum_u w_hu relu(r_uij) + c_h                                with a hidden layer
 *         r_uij = sum_k p_uk (G_kij + sigma_k eps_uij) + b_u
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

/* The global scores of a pair, and the sums of the absolute values of their terms. */
typedef struct pair_products {
    double of[CLMGK_MAX_MIXED_HEADS], size[CLMGK_MAX_MIXED_HEADS];
} pair_products;

static void find_products(const clmgk_ref_problem *p, ref_row at, int64_t j, pair_products *g)
{
    for (int64_t k = 0; k < p->desc.components; k++)
        g->of[k] = product(p, at, j, k, &g->size[k]);
}

/* r_uij; its terms' absolute values are added up. */
static double unit(const clmgk_ref_problem *p, const pair_products *g, int64_t u, double eps, double *size)
{
    double sum = ref_mix_hidden_offset(p, u);
    *size = fabs(sum);
    for (int64_t k = 0; k < p->desc.components; k++) {
        sum += ref_mix(p, u, k) * (g->of[k] + ref_deviation(p, k) * eps);
        *size += fabs(ref_mix(p, u, k)) * (g->size[k] + ref_deviation(p, k) * (1.0 + fabs(eps)));
    }
    return sum;
}

/* The same as `score`, with a hidden layer. */
static double hidden_score(const clmgk_ref_problem *p, ref_row at, const ref_span *span, int64_t j, double *size)
{
    double sum = ref_mix_offset(p, at.h);
    pair_products g;
    find_products(p, at, j, &g);
    *size = fabs(sum);
    for (int64_t u = 0; u < p->desc.mix_hidden; u++) {
        double terms = 0.0;
        sum += ref_mix_weight(p, at.h, u) * relu(unit(p, &g, u, ref_noise(p, u, span, j), &terms));
        *size += fabs(ref_mix_weight(p, at.h, u)) * terms;
    }
    *size /= sqrt((double)p->desc.head_size);
    return sum / sqrt((double)p->desc.head_size);
}

/* A_hij / sqrt(D) */
static double score(const clmgk_ref_problem *p, ref_row at, const ref_span *span, int64_t j, int64_t r, double *size)
{
    if (p->desc.mix_hidden > 0)
        return hidden_score(p, at, span, j, size);
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

/*
 * Unit u's part of dA, with y = relu(r), and dr = dA w where r > 0, else 0:
 *     dw += dA y     db += dr     dp += dr (G + sigma eps)     dq += p dr k     dk += p dr q     dsigma += p dr eps
 */
static void add_unit(const exact_backward *back, const pair_products *g, int64_t j, int64_t u, double grad_a)
{
    const exact_row *const row = &back->row;
    const clmgk_ref_problem *const p = row->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const double eps = ref_noise(p, u, &row->span, j);
    double size = 0.0;
    const double r = unit(p, g, u, eps, &size);
    const double grad_r = r > 0.0 ? grad_a * ref_mix_weight(p, row->at.h, u) : 0.0;
    exact_add_one(back, CLMGK_REF_GRAD_MIX_WEIGHT, ref_mix_weight_index(desc, row->at.h, u), grad_a * relu(r));
    exact_add_one(back, CLMGK_REF_GRAD_MIX_HIDDEN_OFFSET, u, grad_r);
    for (int64_t k = 0; k < desc->components; k++) {
        const double grad_g = ref_mix(p, u, k) * grad_r;
        const int64_t query = ref_query_index(desc, row->at, k);
        const int64_t key = ref_key_index(desc, row->at.b, row->at.h, j, k);
        exact_add(back, CLMGK_REF_GRAD_Q, query, desc->head_size, grad_g, p->k + key);
        exact_add(back, CLMGK_REF_GRAD_K, key, desc->head_size, grad_g, p->q + query);
        exact_add_one(back, CLMGK_REF_GRAD_MIX, ref_mix_index(desc, u, k),
                      grad_r * (g->of[k] + ref_deviation(p, k) * eps));
        exact_add_one(back, CLMGK_REF_GRAD_NOISE, k, grad_g * eps);
    }
}

static void add_units(const exact_backward *back, int64_t j, double grad_a)
{
    pair_products g;
    find_products(back->row.problem, back->row.at, j, &g);
    for (int64_t u = 0; u < back->row.problem->desc.mix_hidden; u++)
        add_unit(back, &g, j, u, grad_a);
}

static void add(const exact_backward *back, int64_t j, int64_t r, double grad_x)
{
    const exact_row *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const double eps = ref_noise(row->problem, row->at.h, &row->span, j);
    const double grad_a = grad_x / sqrt((double)desc->head_size);
    (void)r;
    if (desc->mix_hidden > 0)
        add_units(back, j, grad_a);
    for (int64_t k = 0; desc->mix_hidden == 0 && k < desc->components; k++)
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
    const int64_t first = p->desc.mix_hidden > 0 ? 0 : ref_mix_index(&p->desc, plain->at.h, 0);
    for (int64_t n = 0; n < ref_mixing(&p->desc); n++)
        plain->mix[n] = (float)p->mix[first + n];
    for (int64_t n = 0; n < ref_units(&p->desc); n++)
        plain->mix_weight[n] = (float)ref_mix_weight(p, plain->at.h, n);
}

/* G_kij of every key that the row sees */
static void fill_products(ref_plain *plain, int64_t k)
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
    ref_sum(&products, plain->way.order, plain->global + k * keys + first);
}

/* relu(NaN) is NaN. */
static float plain_relu(float x)
{
    return x <= 0.0F ? 0.0F : x;
}

/* y_kij = G_kij + sigma_k eps_hij, likewise */
static void fill_global(ref_plain *plain, int64_t k)
{
    const int64_t keys = plain->problem->desc.length_k;
    const float deviation = (float)ref_deviation(plain->problem, k);
    float *const y = plain->global + k * keys;
    fill_products(plain, k);
    for (int64_t j = plain->span.first; j < plain->span.end; j++) {
        y[j] += deviation * plain->eps[j];
        plain->rectified[k * keys + j] = plain_relu(plain->mix[k] * y[j]);
    }
}

/* Unit u, relu(r_uij), likewise */
static void fill_unit(ref_plain *plain, int64_t u)
{
    const clmgk_ref_problem *const p = plain->problem;
    const int64_t keys = p->desc.length_k, heads = p->desc.components, first = plain->span.first;
    const float *const mix = plain->mix + u * heads;
    float *const y = plain->rectified + u * keys, *const eps = plain->eps + u * keys;
    const ref_terms terms = {
        REF_TERM_PRODUCT, heads, plain->span.end - first, mix, 1, plain->global + first, keys, NULL};
    float deviation = 0.0F;
    for (int64_t k = 0; k < heads; k++)
        deviation += mix[k] * (float)ref_deviation(p, k);
    ref_sum(&terms, plain->way.order, y + first);
    for (int64_t j = first; j < plain->span.end; j++) {
        eps[j] = ref_plain_noise(p, u, &plain->span, j);
        y[j] = plain_relu(y[j] + deviation * eps[j] + (float)ref_mix_hidden_offset(p, u));
    }
}

/* The rows that a head's score adds up, generalised or not. */
static void fill_rows(ref_plain *plain)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    if (desc->mix_hidden > 0) {
        for (int64_t k = 0; k < desc->components; k++)
            fill_products(plain, k);
        for (int64_t u = 0; u < desc->mix_hidden; u++)
            fill_unit(plain, u);
        return;
    }
    for (int64_t j = plain->span.first; j < plain->span.end; j++)
        plain->eps[j] = ref_plain_noise(plain->problem, plain->at.h, &plain->span, j);
    for (int64_t k = 0; k < desc->components; k++)
        fill_global(plain, k);
}

/* A_hij / sqrt(D) */
static void fill(ref_plain *plain)
{
    const clmgk_ref_problem *const p = plain->problem;
    const int64_t count = ref_units(&p->desc), keys = p->desc.length_k;
    const int64_t first = plain->span.first, width = plain->span.end - first;
    const bool generalised = ref_form_of(&p->desc).generalised;
    fill_rows(plain);
    const float *const coef = generalised ? plain->mix_weight : plain->mix;
    const float *const rows = generalised ? plain->rectified : plain->global;
    const ref_terms terms = {REF_TERM_PRODUCT, count, width, coef, 1, rows + first, keys, NULL};
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
        back->noise[n] = 0.0F;
    for (int64_t n = 0; n < ref_mixing(desc) * desc->length; n++)
        back->mix[n] = 0.0F;
    for (int64_t n = 0; n < ref_units(desc) * desc->length; n++)
        back->mix_weight[n] = 0.0F;
    for (int64_t n = 0; n < desc->mix_hidden * desc->length; n++)
        back->mix_hidden_offset[n] = 0.0F;
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

/* Unit u's, likewise. */
static void plain_add_unit(plain_backward *back, int64_t i, int64_t u)
{
    const ref_plain *const row = &back->row;
    const clmgk_ref_problem *const p = row->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const ref_order order = row->way.order;
    const int64_t keys = desc->length_k, rows = desc->length;
    const int64_t first = row->span.first, width = row->span.end - first;
    const float *const y = row->rectified + u * keys;
    for (int64_t j = first; j < row->span.end; j++)
        back->part[j] = y[j] > 0.0F ? back->grad_a[j] * row->mix_weight[u] : 0.0F;
    const float noise = ref_sum_of_products(width, back->part + first, row->eps + u * keys + first, order);
    back->mix_weight[u * rows + i] = ref_sum_of_products(width, back->grad_a + first, y + first, order);
    back->mix_hidden_offset[u * rows + i] = ref_sum_of(width, back->part + first, order);
    for (int64_t k = 0; k < desc->components; k++) {
        const float mix = row->mix[u * desc->components + k];
        float *const grad_g = back->grad_x + (k * rows + i) * keys;
        for (int64_t j = first; j < row->span.end; j++)
            grad_g[j] += mix * back->part[j];
        back->mix[(u * desc->components + k) * rows + i] =
            ref_sum_of_products(width, back->part + first, row->global + k * keys + first, order) +
            (float)ref_deviation(p, k) * noise;
        back->noise[k * rows + i] += mix * noise;
    }
}

static void add_row(plain_backward *back, int64_t i)
{
    const ref_plain *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const int64_t first = row->span.first;
    for (int64_t j = first; j < row->span.end; j++) {
        const float grad_s = row->p[j] * back->grad_w[j];
        back->grad_s[i * desc->length_k + j] = grad_s;
        back->grad_a[j] = plain_shape_gradient(back, j, 0, grad_s);
    }
    for (int64_t u = 0; u < desc->mix_hidden; u++)
        plain_add_unit(back, i, u);
    for (int64_t k = 0; desc->mix_hidden == 0 && k < desc->components; k++)
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
    const int64_t mix = desc->mix_hidden > 0 ? 0 : ref_mix_index(desc, back->h, 0);
    for (int64_t n = 0; n < ref_mixing(desc); n++)
        end_sum(back, CLMGK_REF_GRAD_MIX, mix + n, back->mix + n * rows);
    for (int64_t n = 0; n < ref_units(desc); n++)
        end_sum(back, CLMGK_REF_GRAD_MIX_WEIGHT, ref_mix_weight_index(desc, back->h, n), back->mix_weight + n * rows);
    for (int64_t u = 0; u < desc->mix_hidden; u++)
        end_sum(back, CLMGK_REF_GRAD_MIX_HIDDEN_OFFSET, u, back->mix_hidden_offset + u * rows);
    for (int64_t k = 0; k < desc->components; k++)
        end_sum(back, CLMGK_REF_GRAD_NOISE, k, back->noise + k * rows);
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
        return form.shared_mix || d->mix_hidden > 0 ? ref_mixing(d) : ref_softmax_heads(d) * d->components;
    case CLMGK_REF_GRAD_MIX_WEIGHT:
        return form.generalised ? ref_softmax_heads(d) * ref_units(d) : 0;
    case CLMGK_REF_GRAD_MIX_HIDDEN_OFFSET:
        return d->mix_hidden;
    case CLMGK_REF_GRAD_MIX_OFFSET:
        return form.generalised ? ref_softmax_heads(d) : 0;
    case CLMGK_REF_GRAD_MIX_AFTER:
        return d->heads * d->mix_after_heads;
    case CLMGK_REF_GRAD_NOISE:
        return form.noisy ? d->components : 0;
    default:
        return 0;
    }
}

const ref_family ref_admixture = {&exact, &plain_formula, count};
