/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients in double precision, row by row: the part common to all families. */
#include "reference/gradients.h"

#include <float.h>
#include <stdlib.h>

#define WHOLE 0x1p22 /* of a term in the floor, which is multiplied by 2^-22 */

/* The least prior that sums of P are divided by (cl/mixture/block.clh). */
#define PRIOR_LEAST 0x1p-66

void exact_add(const exact_backward *back, clmgk_ref_gradient which, int64_t at, int64_t count, double factor,
               const double *x)
{
    const exact_sums *const sums = back->sums;
    double *const values = sums->values[which];
    for (int64_t n = 0; values && !back->sizes && n < count; n++)
        values[at + n] += factor * x[n];
    for (int64_t n = 0; values && back->sizes && n < count; n++) {
        sums->floor[which][at + n] += back->weight * fabs(factor * x[n]);
        if (sums->size && !back->row.lost)
            sums->size[which][at + n] += fabs(factor * x[n]);
    }
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

/* dP_ij - delta_i + dL_i; with `sizes` the sum of the three absolute values, and what delta_i may lack as a whole. */
static double score_gradient(const exact_backward *back, double product)
{
    if (back->sizes)
        return fabs(product) + fabs(back->delta) + fabs(back->grad_lse) + back->vanishing * WHOLE / back->weight;
    return product - back->delta + back->grad_lse;
}

/* exp(x - L_i). For the sizes of a lost row the largest value that rounding may lead to: at most 1, or 1/pi without the
 * prior. */
static double share(const exact_backward *back, exact_logit x, double size, double limit)
{
    const bool lost = back->sizes && back->row.lost;
    return lost ? exact_reach(&back->row, x, size, limit) : exact_share(&back->row, x);
}

/* Terms with a weight of less than f32's least normal number may be 0, which devices may make of it. */
static bool may_vanish(double weight)
{
    return weight < (double)FLT_MIN;
}

/* How often terms with a weight count in the floor. */
static double count_of(const exact_backward *back, double weight)
{
    return may_vanish(weight) ? fmax(back->weight, WHOLE) : back->weight;
}

/* x y, 0 if x is 0, although y may be infinite: P without a prior of 0. */
static double product_of(double x, double y)
{
    return x == 0.0 ? 0.0 : x * y;
}

/* An element's derivative by the text, times the gradient of the logit. */
typedef struct text_sum {
    const exact_backward *back;
    double grad_s;
} text_sum;

static void add_text(const void *to, clmgk_ref_gradient which, int64_t element, double derivative)
{
    const text_sum *const sum = to;
    exact_add_one(sum->back, which, element, sum->grad_s * derivative);
}

/* The gradient of the prior of component r of key j, whose weight is `weight`. */
static void add_prior(exact_backward *back, int64_t j, int64_t r, double weight, double grad_w)
{
    static const double most = 1e250; /* in place of 1/pi of a prior of 0 */
    const exact_row *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const int64_t n = r * desc->length_k + j;
    const double prior = ref_prior(row->problem, row->at.h, j, r), of_row = back->weight;
    const double bare = share(back, row->weight[n], row->size[n], fmin(1.0 / prior, most));
    back->weight = count_of(back, prior < PRIOR_LEAST ? bare : weight);
    exact_add_one(back, CLMGK_REF_GRAD_PRIOR, ref_prior_index(desc, row->at.h, j, r), product_of(grad_w, bare));
    back->weight = of_row;
}

/* Component r of key j; grad_w = dP_ij - delta_i + dL_i, or its size. */
static void add_component(exact_backward *back, int64_t j, int64_t r, double grad_w)
{
    exact_row *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const int64_t n = r * desc->length_k + j;
    const double weight = share(back, exact_log_weight(row, j, r), row->size[n], 1.0), grad_s = weight * grad_w;
    const double slope = cap_slope(desc, row->score[n]), of_row = back->weight;
    if (desc->estep == CLMGK_ESTEP_SOFT)
        add_prior(back, j, r, weight, grad_w);
    back->weight = count_of(back, weight);
    if (desc->use_bias)
        exact_add_one(back, CLMGK_REF_GRAD_BIAS, ref_bias_index(desc, row->at, j), grad_s);
    const ref_pair pair = {row->at, &row->span, j, r, exact_capped(row->problem, row->score[n])};
    ref_text_gradients(&row->texts, &pair, add_text, &(text_sum){back, grad_s});
    const double grad_capped = grad_s * row->slope[n];
    /* the slope is a difference, 1 - tanh^2: the size is the sum, 2 - slope */
    if (back->sizes)
        back->weight *= (row->lost ? 1.0 : slope) / (2.0 - slope);
    row->scores->add(back, j, r, grad_capped * (back->sizes ? 2.0 - slope : slope));
    back->weight = of_row;
}

/* dP_ij; of the sizes of a lost row the sum of the absolute values of its terms. */
static double value_gradient(const exact_backward *back, int64_t j)
{
    const exact_row *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const double *const value = row->problem->v + ref_value_index(desc, row->at.b, row->at.h, j);
    double product = 0.0;
    for (int64_t e = 0; e < desc->value_size; e++)
        product += back->sizes && row->lost ? fabs(back->grad_o[e] * value[e]) : back->grad_o[e] * value[e];
    return ref_kept(row->problem, row->at.h, &row->span, j) * product;
}

/* Adds key j to the gradients, or (`sizes`) to the sums of absolute values. */
static void add_key(exact_backward *back, int64_t j)
{
    const exact_row *const row = &back->row;
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const bool lost = back->sizes && row->lost;
    const double kept = ref_kept(row->problem, row->at.h, &row->span, j);
    const double weight = lost ? exact_key_reach(row, j) : exact_share(row, row->log_w[j]);
    const double of_row = back->weight;
    back->weight = count_of(back, weight);
    exact_add(back, CLMGK_REF_GRAD_V, ref_value_index(desc, row->at.b, row->at.h, j), desc->value_size, weight * kept,
              back->grad_o);
    back->weight = of_row;

    const double grad_w = score_gradient(back, value_gradient(back, j));
    if (desc->estep == CLMGK_ESTEP_HARD && !lost) {
        add_component(back, j, exact_arg_max(row, j), grad_w);
        return;
    }
    for (int64_t r = 0; r < ref_components(desc); r++) /* rounding may make any component the largest one */
        add_component(back, j, r, grad_w);
}

static void add_keys(exact_backward *back)
{
    const exact_row *const row = &back->row;
    const clmgk_ref_problem *const p = row->problem;
    for (int64_t j = row->span.first; j < row->span.end; j++)
        if (row->visible[j])
            add_key(back, j);
    if (p->desc.use_sinks) {
        const double sink = p->sinks[row->at.h];
        exact_add_one(back, CLMGK_REF_GRAD_SINKS, row->at.h,
                      share(back, (exact_logit){sink, 0.0}, fabs(sink), 1.0) * score_gradient(back, 0.0));
    }
}

/* The largest |delta_i| of any weights that rounding may lead to. */
static double largest_delta(const exact_backward *back)
{
    const exact_row *const row = &back->row;
    double sum = 0.0, largest = 0.0;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        const double size = row->visible[j] ? value_gradient(back, j) : 0.0;
        sum += size > 0.0 ? exact_key_reach(row, j) * size : 0.0;
        largest = fmax(largest, size);
    }
    return fmin(sum, largest);
}

/*
 * A term of a row counts 2^-22 (1 + |L_i|) times in the floor: 1 for its own rounding, |L_i| for the rounding of L_i. A
 * lost row's terms are of the largest size that rounding may give them, and the floor is the distance of two of them.
 * A term whose weight may vanish counts as a whole.
 */
static void add_sizes(exact_backward *back)
{
    back->sizes = true;
    back->weight = back->row.lost ? 0x1p23 : 1.0 + (back->row.problem->desc.use_lse_low ? 0.0 : fabs(back->row.lse));
    if (back->row.lost)
        back->delta = largest_delta(back);
    add_keys(back);
    back->sizes = false;
}

/* The part of delta_i that is made of weights and outputs that may vanish. */
static double vanishing_delta(const exact_backward *back)
{
    const exact_row *const row = &back->row;
    double sum = 0.0;
    for (int64_t e = 0; e < row->problem->desc.value_size; e++)
        sum += may_vanish(fabs(back->o[e])) ? fabs(back->grad_o[e] * back->o[e]) : 0.0;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        const double weight = row->visible[j] ? exact_share(row, row->log_w[j]) : 0.0;
        sum += weight > 0.0 && may_vanish(weight) ? weight * fabs(value_gradient(back, j)) : 0.0;
    }
    return sum;
}

static void add_row(exact_backward *back, int64_t number)
{
    exact_row *const row = &back->row;
    const clmgk_ref_problem *const p = row->problem;
    const ref_row at = ref_row_of(&p->desc, number);
    exact_row_solve(row, at);
    row->lost = row->lost && back->sums->lost;
    if (row->lost)
        back->sums->lost[number] = true;
    if (row->lse == -(double)INFINITY || (row->lost && !back->sums->with_lost))
        return;
    exact_row_output(row, back->o);
    back->grad_o = p->grad_o ? ref_grad_o(p, at) : back->zero;
    back->grad_lse = ref_grad_lse(p, at);
    back->delta = 0.0;
    for (int64_t e = 0; e < p->desc.value_size; e++)
        back->delta += back->grad_o[e] * back->o[e];
    back->vanishing = vanishing_delta(back);
    add_keys(back);
    add_sizes(back);
}

bool exact_gradients(const clmgk_ref_problem *problem, const exact_scores *scores, const exact_sums *sums)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t size = (size_t)desc->head_size, value_size = (size_t)desc->value_size;
    exact_backward back = {.sums = sums};
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
        add_row(&back, row);
    exact_row_free(&back.row);
    free(memory);
    return true;
}
