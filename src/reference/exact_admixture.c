/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores of the admixture family (FiSH paper, Eqs. 9 to 12):
 *
 *     A_hij = sum_k p_hk (G_kij + sigma_k eps_hij)                        G_kij = q_ki . k_kj
 *     A_hij = sum_k w_hk relu(p_hk (G_kij + sigma_k eps_hij)) + c_h       generalised
 */
#include "reference/gradients.h"

/* relu(NaN) is NaN. */
static double relu(double x)
{
    return x <= 0.0 ? 0.0 : x;
}

/* G_kij */
static double product(const clmgk_ref_problem *p, ref_row at, int64_t j, int64_t k)
{
    const double *const query = p->q + ref_query_index(&p->desc, at, k);
    const double *const key = p->k + ref_key_index(&p->desc, at.b, at.h, j, k);
    double sum = 0.0;
    for (int64_t d = 0; d < p->desc.head_size; d++)
        sum += query[d] * key[d];
    return sum;
}

/* A_hij / sqrt(D) */
static double score(const clmgk_ref_problem *p, ref_row at, const ref_span *span, int64_t j, int64_t r)
{
    const bool generalised = ref_form_of(&p->desc).generalised;
    const double eps = ref_noise(p, at.h, span, j);
    double sum = generalised ? ref_mix_offset(p, at.h) : 0.0;
    (void)r;
    for (int64_t k = 0; k < p->desc.components; k++) {
        const double x = ref_mix(p, at.h, k) * (product(p, at, j, k) + ref_deviation(p, k) * eps);
        sum += generalised ? ref_mix_weight(p, at.h, k) * relu(x) : x;
    }
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
    const double y = product(p, at, j, k) + ref_deviation(p, k) * eps;
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

const exact_scores exact_admixture = {score, add};
