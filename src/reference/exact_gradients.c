/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients in double precision, row by row: the part common to all families. */
#include "reference/gradients.h"

#include <stdlib.h>

void exact_add(const exact_backward *back, clmgk_ref_gradient which, int64_t at, int64_t count, double factor,
               const double *x)
{
    double *const sums = back->sizes ? back->floor[which] : back->values[which];
    for (int64_t n = 0; sums && n < count; n++)
        sums[at + n] += back->sizes ? fabs(factor * x[n]) : factor * x[n];
}

void exact_add_one(const exact_backward *back, clmgk_ref_gradient which, int64_t at, double x)
{
    exact_add(back, which, at, 1, 1.0, &x);
}

/* d(c tanh(x/c)) / dx = 1 - tanh^2 = 1 / cosh^2 */
static double cap_slope(const clmgk_attention_desc *desc, double x)
{
    const double t = desc->softcap > 0.0 ? cosh(x / desc->softcap) : 1.0;
    return 1.0 / (t * t);
}

/* dP_ij - delta_i + dL_i; with `sizes` the sum of the three absolute values. */
static double score_gradient(const exact_backward *back, double product)
{
    if (back->sizes)
        return fabs(product) + fabs(back->delta) + fabs(back->grad_lse);
    return product - back->delta + back->grad_lse;
}

/* Weight of a row's terms in the floor: 1 for their own rounding, |L_i| for the rounding of L_i. */
static double floor_weight(const exact_row *row)
{
    return 1.0 + fabs(row->lse);
}

/* Component r of key j; grad_w = dP_ij - delta_i + dL_i, or its size. */
static void add_component(const exact_backward *back, int64_t j, int64_t r, double grad_w)
{
    const exact_row *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const int64_t n = r * desc->length_k + j;
    const double grad_s = exact_share(row, exact_log_weight(row, j, r)) * grad_w;
    if (desc->estep == CLMGK_ESTEP_SOFT)
        exact_add_one(back, CLMGK_REF_GRAD_PRIOR, ref_prior_index(desc, row->at.h, j, r),
                      exact_share(row, row->weight[n]) * grad_w);
    if (desc->use_bias)
        exact_add_one(back, CLMGK_REF_GRAD_BIAS, ref_bias_index(desc, row->at, j), grad_s);
    row->scores->add(back, j, r, grad_s * cap_slope(desc, row->score[n]));
}

/* Adds key j to the gradients, or (`sizes`) to their floors. */
static void add_key(const exact_backward *back, int64_t j)
{
    const exact_row *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const int64_t at = ref_value_index(desc, row->at.b, row->at.h, j);
    const double *const value = row->problem->v + at;
    const double kept = ref_kept(row->problem, row->at.h, &row->span, j);
    double product = 0.0;
    for (int64_t e = 0; e < desc->value_size; e++)
        product += back->grad_o[e] * value[e];
    const double weight = back->sizes ? floor_weight(row) : 1.0;
    exact_add(back, CLMGK_REF_GRAD_V, at, desc->value_size, weight * exact_share(row, row->log_w[j]) * kept,
              back->grad_o);

    const double grad_w = weight * score_gradient(back, kept * product);
    if (desc->estep == CLMGK_ESTEP_HARD) {
        add_component(back, j, exact_arg_max(row, j), grad_w);
        return;
    }
    for (int64_t r = 0; r < ref_components(desc); r++)
        add_component(back, j, r, grad_w);
}

static void add_keys(exact_backward *back, bool sizes)
{
    const exact_row *const row = &back->row;
    const clmgk_ref_problem *const p = row->problem;
    back->sizes = sizes;
    for (int64_t j = row->span.first; j < row->span.end; j++)
        if (row->visible[j])
            add_key(back, j);
    if (p->desc.use_sinks)
        exact_add_one(back, CLMGK_REF_GRAD_SINKS, row->at.h,
                      (sizes ? floor_weight(row) : 1.0) * exact_share(row, (exact_logit){p->sinks[row->at.h], 0.0}) *
                          score_gradient(back, 0.0));
}

static void add_row(exact_backward *back, ref_row at)
{
    exact_row *const row = &back->row;
    const clmgk_ref_problem *const p = row->problem;
    exact_row_solve(row, at);
    if (row->lse == -(double)INFINITY)
        return;
    exact_row_output(row, back->o);
    back->grad_o = p->grad_o ? ref_grad_o(p, at) : back->zero;
    back->grad_lse = ref_grad_lse(p, at);
    back->delta = 0.0;
    for (int64_t e = 0; e < p->desc.value_size; e++)
        back->delta += back->grad_o[e] * back->o[e];
    add_keys(back, false);
    add_keys(back, true);
}

bool exact_gradients(const clmgk_ref_problem *problem, const exact_scores *scores, double *const values[],
                     double *const floor[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t size = (size_t)desc->head_size, value_size = (size_t)desc->value_size;
    exact_backward back = {.values = values, .floor = floor};
    double *const memory = calloc(2 * value_size + 2 * size, sizeof(double));
    if (!memory || !exact_row_create(problem, scores, &back.row)) {
        free(memory);
        return false;
    }
    back.zero = memory;
    back.o = back.zero + value_size;
    back.to_query = back.o + value_size;
    back.to_key = back.to_query + size;
    for (int64_t row = 0; row < desc->batch * desc->heads * desc->length; row++)
        add_row(&back, ref_row_of(desc, row));
    exact_row_free(&back.row);
    free(memory);
    return true;
}
