/* SPDX-License-Identifier: Apache-2.0 */
/* The plain formula's gradients: matrices of a whole head in f32, then sums over their rows and columns. The part
 * common to all families. */
#include "reference/gradients.h"

#include <stdlib.h>

static const clmgk_attention_desc *desc_of(const plain_backward *back)
{
    return &back->row.problem->desc;
}

static bool create(const clmgk_ref_problem *problem, const plain_scores *scores, float *const values[],
                   plain_backward *back)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t rows = (size_t)desc->length, keys = (size_t)desc->length_k, components = (size_t)desc->components;
    const size_t size = (size_t)desc->head_size, value_size = (size_t)desc->value_size;
    const size_t mixture = ref_form_of(desc).mixed ? 0 : 1, admixture = 1 - mixture; /* 0: no arrays */
    const ref_part parts[] = {
        {&back->query, (size_t)ref_queries(desc) * rows * size},
        {&back->grad_o, rows * value_size},
        {&back->keys, components * keys * size},
        {&back->values_t, keys * value_size},
        {&back->a, rows * keys},
        {&back->grad_x, components * rows * keys},
        {&back->grad_s, rows * keys},
        {&back->sinks, rows},
        {&back->grad_w, keys},
        {&back->keys_sum, keys * size},
        {&back->sum, keys + size + value_size},
        {&back->prior, mixture * components * rows * keys},
        {&back->variance, mixture * components * rows},
        {&back->grad_a, admixture * keys},
        {&back->part, admixture * keys},
        {&back->mix, admixture * (size_t)ref_mixing(desc) * rows},
        {&back->mix_weight, admixture * (size_t)ref_units(desc) * rows},
        {&back->noise, admixture * components * rows},
        {&back->mix_offset, admixture * rows},
        {&back->mix_hidden_offset, admixture * (size_t)desc->mix_hidden * rows},
    };
    back->values = values;
    back->memory = ref_room(parts, sizeof(parts) / sizeof(parts[0]));
    if (back->memory && ref_plain_create(problem, scores, &back->row))
        return true;
    free(back->memory);
    return false;
}

static void load_head(plain_backward *back)
{
    const clmgk_ref_problem *const p = back->row.problem;
    const clmgk_attention_desc *const desc = &p->desc;
    for (int64_t r = 0; r < desc->components; r++)
        for (int64_t j = 0; j < desc->length_k; j++)
            ref_plain_load_key(p, back->b, back->h, j, r, 1, back->keys + (r * desc->length_k + j) * desc->head_size);
    for (int64_t j = 0; j < desc->length_k; j++)
        for (int64_t e = 0; e < desc->value_size; e++)
            back->values_t[e * desc->length_k + j] = (float)p->v[ref_value_index(desc, back->b, back->h, j) + e];
}

/* ---- a row: matrices ------------------------------------------------------------------------------------------- */

static bool is_lost(const plain_backward *back, int64_t i)
{
    return back->lost && back->lost[ref_row_number(desc_of(back), (ref_row){back->b, back->h, i})];
}

static void load_row(plain_backward *back, int64_t i)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    const ref_row at = {back->b, back->h, i};
    const double *const grad_o = ref_grad_o(back->row.problem, at);
    const bool used = back->row.span.end > back->row.span.first;
    for (int64_t r = 0; r < ref_queries(desc); r++)
        for (int64_t d = 0; d < desc->head_size; d++)
            back->query[(r * desc->length + i) * desc->head_size + d] =
                used ? back->row.query[r * desc->head_size + d] : 0.0F;
    for (int64_t e = 0; e < desc->value_size; e++)
        back->grad_o[i * desc->value_size + e] = used && grad_o ? (float)grad_o[e] : 0.0F;
}

/* dP_ij - delta_i + dL_i of every key that row i sees; the same without a key for the sink. */
static void fill_grad_w(plain_backward *back, int64_t i)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    const ref_plain *const row = &back->row;
    const int64_t first = row->span.first;
    const float *const grad_o = back->grad_o + i * desc->value_size;
    const float grad_lse = (float)ref_grad_lse(row->problem, row->at);
    const float delta = ref_sum_of_products(desc->value_size, grad_o, row->o, ref_other(row->way.order));
    const ref_terms products = {ref_term_of(REF_TERM_PRODUCT, desc->precision),
                                desc->value_size,
                                row->span.end - first,
                                grad_o,
                                1,
                                back->values_t + first,
                                desc->length_k,
                                NULL};
    ref_sum(&products, row->way.order, back->grad_w + first);
    for (int64_t j = first; j < row->span.end; j++)
        back->grad_w[j] = clmgk_ref_rounded(ref_weight_type(desc), back->grad_w[j] * row->kept[j]) - delta + grad_lse;
    if (desc->use_sinks)
        back->sinks[i] = expf((float)row->problem->sinks[row->at.h] - row->largest) / row->total * (grad_lse - delta);
}

static void fill_row(plain_backward *back, int64_t i, ref_way way)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    ref_plain_solve(&back->row, (ref_row){back->b, back->h, i}, way);
    load_row(back, i);
    if (back->row.lse == -INFINITY || is_lost(back, i))
        return;
    fill_grad_w(back, i);
    for (int64_t j = back->row.span.first; j < back->row.span.end; j++)
        back->a[i * desc->length_k + j] = back->row.a[j];
    back->row.scores->add_row(back, i);
}

/* A derivative of the text, times the gradient of the logit. */
typedef struct text_sum {
    const plain_backward *back;
    float grad_s;
} text_sum;

static void add_text(const void *to, clmgk_ref_gradient which, int64_t element, double derivative)
{
    const text_sum *const sum = to;
    const float term = sum->grad_s * (float)derivative;
    plain_add(sum->back, which, element, 1, 1.0F, &term);
}

float plain_shape_gradient(plain_backward *back, int64_t j, int64_t r, float grad_s)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    const float x = back->row.score[r * desc->length_k + j];
    const float cap = (float)desc->softcap, t = cap > 0.0F ? tanhf(x / cap) : 0.0F;
    const ref_pair pair = ref_plain_pair(&back->row, j, r);
    ref_text_gradients(&back->row.texts, &pair, add_text, &(text_sum){back, grad_s});
    return grad_s * (float)ref_text_slope(&back->row.texts, &pair) * (1.0F - t * t);
}

/* ---- sums over the matrices ------------------------------------------------------------------------------------ */

void plain_add(const plain_backward *back, clmgk_ref_gradient which, int64_t at, int64_t count, float divisor,
               const float *x)
{
    float *const sums = back->values[which];
    for (int64_t n = 0; sums && n < count; n++)
        sums[at + n] += x[n] / divisor;
}

/*
 * The gradient of a point x from dX with `count` other points y: sum_n dX_n (y_n - x) with gaussian scores, from
 * differences or expanded, and sum_n dX_n y_n with dot scores.
 */
static void sum_point(const plain_backward *back, int64_t count, const float *grad_x, int64_t step, const float *others,
                      const float *point, float *sum)
{
    static const float one = 1.0F;
    const clmgk_attention_desc *const desc = desc_of(back);
    const ref_way way = back->row.way;
    const bool gaussian = desc->score == CLMGK_SCORE_GAUSSIAN;
    const bool direct = gaussian && way.distance == REF_DISTANCE_DIRECT;
    const ref_terms terms = {ref_term_of(direct ? REF_TERM_DIFFERENCE : REF_TERM_PRODUCT, desc->precision),
                             count,
                             desc->head_size,
                             grad_x,
                             step,
                             others,
                             desc->head_size,
                             point};
    ref_sum(&terms, way.order, sum);
    if (!gaussian || direct)
        return;
    const ref_terms weights = {REF_TERM_PRODUCT, count, 1, &one, 0, grad_x, step, NULL};
    float total = 0.0F;
    ref_sum(&weights, way.order, &total);
    for (int64_t d = 0; d < desc->head_size; d++)
        sum[d] -= total * point[d];
}

void plain_sum_queries(plain_backward *back, int64_t r, float divisor)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    const int64_t size = desc->head_size;
    const float *const queries = back->query + (ref_form_of(desc).mixed ? r * desc->length * size : 0);
    for (int64_t i = 0; back->values[CLMGK_REF_GRAD_Q] && i < desc->length; i++) {
        const ref_span span = ref_span_of(back->row.problem, back->b, i);
        sum_point(back, span.end - span.first, back->grad_x + (r * desc->length + i) * desc->length_k + span.first, 1,
                  back->keys + (r * desc->length_k + span.first) * size, queries + i * size, back->sum);
        plain_add(back, CLMGK_REF_GRAD_Q, ref_query_index(desc, (ref_row){back->b, back->h, i}, r), size, divisor,
                  back->sum);
    }
}

void plain_sum_keys(plain_backward *back, int64_t r, float divisor)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    const int64_t size = desc->head_size;
    const float *const queries = back->query + (ref_form_of(desc).mixed ? r * desc->length * size : 0);
    if (!back->values[CLMGK_REF_GRAD_K] && !back->values[CLMGK_REF_GRAD_SHIFT])
        return;
    for (int64_t j = 0; j < desc->length_k; j++) {
        float *const sum = back->keys_sum + j * size;
        sum_point(back, desc->length, back->grad_x + r * desc->length * desc->length_k + j, desc->length_k, queries,
                  back->keys + (r * desc->length_k + j) * size, sum);
        plain_add(back, CLMGK_REF_GRAD_K, ref_key_index(desc, back->b, back->h, j, r), size, divisor, sum);
    }
}

static void sum_values(plain_backward *back)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    for (int64_t j = 0; j < desc->length_k; j++) {
        const ref_terms terms = {ref_term_of(REF_TERM_PRODUCT, desc->precision),
                                 desc->length,
                                 desc->value_size,
                                 back->a + j,
                                 desc->length_k,
                                 back->grad_o,
                                 desc->value_size,
                                 NULL};
        ref_sum(&terms, back->row.way.order, back->sum);
        plain_add(back, CLMGK_REF_GRAD_V, ref_value_index(desc, back->b, back->h, j), desc->value_size, 1.0F,
                  back->sum);
    }
}

/* Adds to row n of the head's bias: row n of the matrix, or the sum of its rows if the bias has one; likewise for
 * keys. */
static void sum_bias(plain_backward *back, int64_t n)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    const ref_order order = back->row.way.order;
    const int64_t keys = desc->length_k;
    if (keys == 0) /* an axis of no elements has no index */
        return;
    const int64_t at = ref_bias_index(desc, (ref_row){back->b, back->h, n}, 0);
    const bool one_row = desc->bias_length == 1;
    ref_sum_rows(one_row ? desc->length : 1, keys, back->grad_s + n * keys, keys, order, back->sum);
    if (desc->bias_length_k == 1)
        back->sum[0] = ref_sum_of(keys, back->sum, order);
    plain_add(back, CLMGK_REF_GRAD_BIAS, at, desc->bias_length_k == 1 ? 1 : keys, 1.0F, back->sum);
}

static void sum_head(plain_backward *back)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    back->row.scores->end(back);
    if (back->values[CLMGK_REF_GRAD_V])
        sum_values(back);
    for (int64_t n = 0; back->values[CLMGK_REF_GRAD_BIAS] && n < (desc->bias_length == 1 ? 1 : desc->length); n++)
        sum_bias(back, n);
    const float sinks = ref_sum_of(desc->length, back->sinks, back->row.way.order);
    if (desc->use_sinks)
        plain_add(back, CLMGK_REF_GRAD_SINKS, back->h, 1, 1.0F, &sinks);
}

static void solve_head(plain_backward *back, ref_way way)
{
    const clmgk_attention_desc *const desc = desc_of(back);
    load_head(back);
    for (int64_t n = 0; n < desc->length * desc->length_k; n++)
        back->a[n] = back->grad_s[n] = 0.0F;
    for (int64_t i = 0; i < desc->length; i++)
        back->sinks[i] = 0.0F;
    back->row.scores->begin(back);
    for (int64_t i = 0; i < desc->length; i++)
        fill_row(back, i, way);
    sum_head(back);
}

bool plain_gradients(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way, const bool *lost,
                     float *const values[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t heads = desc->batch * desc->heads;
    plain_backward back;
    if (!create(problem, scores, values, &back))
        return false;
    back.lost = lost;
    for (int64_t n = 0; n < heads; n++) {
        const int64_t number = way.order == REF_ORDER_BACKWARD ? heads - 1 - n : n;
        back.b = number / desc->heads;
        back.h = number % desc->heads;
        back.first = n % desc->heads == 0;
        back.last = n % desc->heads == desc->heads - 1;
        solve_head(&back, way);
    }
    ref_plain_free(&back.row);
    free(back.memory);
    return true;
}
