/* SPDX-License-Identifier: Apache-2.0 */
/* The plain formula's gradients: matrices of a whole head in f32, then sums over their rows and columns. */
#include "reference/gradients.h"

#include <stdlib.h>

/* Matrices of head (b,h). Keys that a row does not see have zeros. */
typedef struct head_backward {
    ref_plain row;
    float *const *values;
    int64_t b, h;
    float *memory;
    float *query;    /* [N,D]; 0 in rows that see no key */
    float *grad_o;   /* [N,E]; likewise */
    float *keys;     /* [M,S,D] */
    float *values_t; /* [E,S] */
    float *a;        /* [N,S]: what dV weighs dO_i by */
    float *grad_x;   /* [M,N,S]: dX, the gradient of the scaled score */
    float *grad_s;   /* [N,S]: of the key's logit, for the bias */
    float *prior;    /* [M,N,S]: what is summed for dprior */
    float *variance; /* [M,N]: sum_j dX x */
    float *sinks;    /* [N] */
    float *grad_w;   /* [S]: dP_ij - delta_i + dL_i of the row at hand */
    float *keys_sum; /* [S,D]: of the component at hand */
    float *sum;      /* [S + D + E] */
} head_backward;

static const clmgk_attention_desc *desc_of(const head_backward *head)
{
    return &head->row.problem->desc;
}

static bool head_create(const clmgk_ref_problem *problem, float *const values[], head_backward *head)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t rows = (size_t)desc->length, keys = (size_t)desc->length_k, components = (size_t)desc->components;
    const size_t size = (size_t)desc->head_size, value_size = (size_t)desc->value_size;
    const struct {
        float **array;
        size_t count;
    } arrays[] = {
        {&head->query, rows * size},
        {&head->grad_o, rows * value_size},
        {&head->keys, components * keys * size},
        {&head->values_t, keys * value_size},
        {&head->a, rows * keys},
        {&head->grad_x, components * rows * keys},
        {&head->grad_s, rows * keys},
        {&head->prior, components * rows * keys},
        {&head->variance, components * rows},
        {&head->sinks, rows},
        {&head->grad_w, keys},
        {&head->keys_sum, keys * size},
        {&head->sum, keys + size + value_size},
    };
    size_t total = 0;
    for (size_t n = 0; n < sizeof(arrays) / sizeof(arrays[0]); n++)
        total += arrays[n].count;
    head->values = values;
    head->memory = malloc(total * sizeof(float));
    if (!head->memory || !ref_plain_create(problem, &head->row)) {
        free(head->memory);
        return false;
    }
    float *next = head->memory;
    for (size_t n = 0; n < sizeof(arrays) / sizeof(arrays[0]); n++) {
        *arrays[n].array = next;
        next += arrays[n].count;
    }
    return true;
}

static void head_free(head_backward *head)
{
    ref_plain_free(&head->row);
    free(head->memory);
}

static void load_head(head_backward *head)
{
    const clmgk_ref_problem *const p = head->row.problem;
    const clmgk_attention_desc *const desc = &p->desc;
    for (int64_t r = 0; r < desc->components; r++)
        for (int64_t j = 0; j < desc->length_k; j++)
            ref_plain_load_key(p, head->b, head->h, j, r, 1, head->keys + (r * desc->length_k + j) * desc->head_size);
    for (int64_t j = 0; j < desc->length_k; j++)
        for (int64_t e = 0; e < desc->value_size; e++)
            head->values_t[e * desc->length_k + j] = (float)p->v[ref_value_index(desc, head->b, head->h, j) + e];
}

/* ---- a row: matrices ------------------------------------------------------------------------------------------- */

static void load_row(head_backward *head, int64_t i)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_row at = {head->b, head->h, i};
    const double *const grad_o = ref_grad_o(head->row.problem, at);
    const bool used = head->row.span.end > head->row.span.first;
    for (int64_t d = 0; d < desc->head_size; d++)
        head->query[i * desc->head_size + d] = used ? head->row.query[d] : 0.0F;
    for (int64_t e = 0; e < desc->value_size; e++)
        head->grad_o[i * desc->value_size + e] = used && grad_o ? (float)grad_o[e] : 0.0F;
}

static void clear_row(head_backward *head, int64_t i)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t keys = desc->length_k;
    for (int64_t j = 0; j < keys; j++) {
        head->a[i * keys + j] = 0.0F;
        head->grad_s[i * keys + j] = 0.0F;
    }
    for (int64_t r = 0; r < desc->components; r++)
        for (int64_t j = 0; j < keys; j++) {
            head->grad_x[(r * desc->length + i) * keys + j] = 0.0F;
            head->prior[(r * desc->length + i) * keys + j] = 0.0F;
        }
}

/* dP_ij - delta_i + dL_i of every key that row i sees; the same without a key for the sink. */
static void fill_grad_w(head_backward *head, int64_t i)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_plain *const row = &head->row;
    const int64_t first = row->span.first;
    const float *const grad_o = head->grad_o + i * desc->value_size;
    const float grad_lse = (float)ref_grad_lse(row->problem, row->at);
    const float delta = ref_sum_of_products(desc->value_size, grad_o, row->o, row->way.order);
    const ref_terms products = {REF_TERM_PRODUCT,
                                desc->value_size,
                                row->span.end - first,
                                grad_o,
                                1,
                                head->values_t + first,
                                desc->length_k,
                                NULL};
    ref_sum(&products, row->way.order, head->grad_w + first);
    for (int64_t j = first; j < row->span.end; j++)
        head->grad_w[j] = ref_rounded(desc->dtype, head->grad_w[j] * row->kept[j]) - delta + grad_lse;
    if (desc->use_sinks)
        head->sinks[i] = expf((float)row->problem->sinks[row->at.h] - row->largest) / row->total * (grad_lse - delta);
}

static void fill_component(head_backward *head, int64_t i, int64_t r)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_plain *const row = &head->row;
    const int64_t keys = desc->length_k;
    const float *const score = row->score + r * keys;
    const float *const weight = row->weight + r * keys;
    const float *const p = row->p + r * keys;
    const float cap = (float)desc->softcap;
    float *const grad_x = head->grad_x + (r * desc->length + i) * keys;
    float *const prior = head->prior + (r * desc->length + i) * keys;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        const float t = cap > 0.0F ? tanhf(score[j] / cap) : 0.0F;
        const float grad_s = p[j] * head->grad_w[j];
        head->grad_s[i * keys + j] += grad_s;
        grad_x[j] = grad_s * (1.0F - t * t);
        prior[j] = expf(weight[j] - row->largest) / row->total * head->grad_w[j];
    }
    head->variance[r * desc->length + i] = ref_sum_of_products(
        row->span.end - row->span.first, grad_x + row->span.first, score + row->span.first, row->way.order);
}

static void fill_row(head_backward *head, int64_t i, ref_way way)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_row at = {head->b, head->h, i};
    ref_plain_solve(&head->row, at, way);
    load_row(head, i);
    clear_row(head, i);
    head->sinks[i] = 0.0F;
    for (int64_t r = 0; r < desc->components; r++)
        head->variance[r * desc->length + i] = 0.0F;
    if (head->row.lse == -INFINITY)
        return;
    fill_grad_w(head, i);
    for (int64_t j = head->row.span.first; j < head->row.span.end; j++)
        head->a[i * desc->length_k + j] = head->row.a[j];
    for (int64_t r = 0; r < desc->components; r++)
        fill_component(head, i, r);
}

/* ---- sums over the matrices ------------------------------------------------------------------------------------ */

/* sums[at + n] += x[n] / divisor, if wanted */
static void add(const head_backward *head, clmgk_ref_gradient which, int64_t at, int64_t count, float divisor,
                const float *x)
{
    float *const sums = head->values[which];
    for (int64_t n = 0; sums && n < count; n++)
        sums[at + n] += x[n] / divisor;
}

/*
 * What dX of a point with `count` others adds to the point's gradient: sum_n dX_n (y_n - x) with gaussian scores,
 * from differences or expanded, and sum_n dX_n y_n with dot scores.
 */
static void sum_point(const head_backward *head, int64_t count, const float *grad_x, int64_t step, const float *others,
                      const float *point, float *sum)
{
    static const float one = 1.0F;
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_way way = head->row.way;
    const bool gaussian = desc->score == CLMGK_SCORE_GAUSSIAN;
    const bool direct = gaussian && way.distance == REF_DISTANCE_DIRECT;
    const ref_terms terms = {direct ? REF_TERM_DIFFERENCE : REF_TERM_PRODUCT,
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

static void sum_queries(head_backward *head, int64_t i, int64_t r)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_span span = ref_span_of(head->row.problem, head->b, i);
    const int64_t size = desc->head_size;
    sum_point(head, span.end - span.first, head->grad_x + (r * desc->length + i) * desc->length_k + span.first, 1,
              head->keys + (r * desc->length_k + span.first) * size, head->query + i * size, head->sum);
    add(head, CLMGK_REF_GRAD_Q, ref_query_index(desc, (ref_row){head->b, head->h, i}), size,
        (float)ref_variance(head->row.problem, head->h, r), head->sum);
}

/* dK and db of component r */
static void sum_keys(head_backward *head, int64_t r)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t size = desc->head_size;
    const float variance = (float)ref_variance(head->row.problem, head->h, r);
    for (int64_t j = 0; j < desc->length_k; j++) {
        float *const sum = head->keys_sum + j * size;
        sum_point(head, desc->length, head->grad_x + r * desc->length * desc->length_k + j, desc->length_k, head->query,
                  head->keys + (r * desc->length_k + j) * size, sum);
        add(head, CLMGK_REF_GRAD_K, ref_key_index(desc, head->b, head->h, j, r), size, variance, sum);
    }
    if (desc->variant != CLMGK_VARIANT_SMGK)
        return;
    ref_sum_rows(desc->length_k, size, head->keys_sum, size, head->row.way.order, head->sum);
    add(head, CLMGK_REF_GRAD_SHIFT, ref_shift_index(desc, head->h, r), size, variance, head->sum);
}

static void sum_values(head_backward *head)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    for (int64_t j = 0; j < desc->length_k; j++) {
        const ref_terms terms = {REF_TERM_PRODUCT, desc->length, desc->value_size, head->a + j,
                                 desc->length_k,   head->grad_o, desc->value_size, NULL};
        ref_sum(&terms, head->row.way.order, head->sum);
        add(head, CLMGK_REF_GRAD_V, ref_value_index(desc, head->b, head->h, j), desc->value_size, 1.0F, head->sum);
    }
}

static void sum_variance(const head_backward *head, int64_t r)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const float sum = ref_sum_of(desc->length, head->variance + r * desc->length, head->row.way.order);
    add(head, CLMGK_REF_GRAD_VARIANCE, ref_variance_index(desc, head->h, r), 1,
        -(float)ref_variance(head->row.problem, head->h, r), &sum);
}

/* Row n of the bias that batch and head index: row n of the matrix, or the sum of its rows; likewise its keys. */
static void sum_bias(head_backward *head, int64_t n)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_order order = head->row.way.order;
    const int64_t keys = desc->length_k;
    if (keys == 0) /* an axis of no elements has no index */
        return;
    const int64_t at = ref_bias_index(desc, (ref_row){head->b, head->h, n}, 0);
    const bool one_row = desc->bias_length == 1;
    ref_sum_rows(one_row ? desc->length : 1, keys, head->grad_s + n * keys, keys, order, head->sum);
    if (desc->bias_length_k == 1)
        head->sum[0] = ref_sum_of(keys, head->sum, order);
    add(head, CLMGK_REF_GRAD_BIAS, at, desc->bias_length_k == 1 ? 1 : keys, 1.0F, head->sum);
}

static void sum_head(head_backward *head)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_order order = head->row.way.order;
    for (int64_t r = 0; r < desc->components; r++) {
        for (int64_t i = 0; head->values[CLMGK_REF_GRAD_Q] && i < desc->length; i++)
            sum_queries(head, i, r);
        if (head->values[CLMGK_REF_GRAD_K] || head->values[CLMGK_REF_GRAD_SHIFT])
            sum_keys(head, r);
        sum_variance(head, r);
    }
    if (head->values[CLMGK_REF_GRAD_V])
        sum_values(head);
    if (head->values[CLMGK_REF_GRAD_PRIOR] && desc->estep == CLMGK_ESTEP_SOFT)
        ref_plain_sum_prior(desc, head->h, head->prior, order, head->sum, head->values[CLMGK_REF_GRAD_PRIOR]);
    for (int64_t n = 0; head->values[CLMGK_REF_GRAD_BIAS] && n < (desc->bias_length == 1 ? 1 : desc->length); n++)
        sum_bias(head, n);
    const float sinks = ref_sum_of(desc->length, head->sinks, order);
    if (desc->use_sinks)
        add(head, CLMGK_REF_GRAD_SINKS, head->h, 1, 1.0F, &sinks);
}

bool plain_gradients(const clmgk_ref_problem *problem, ref_way way, float *const values[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t heads = desc->batch * desc->heads;
    head_backward head;
    if (!head_create(problem, values, &head))
        return false;
    for (int64_t n = 0; n < heads; n++) {
        const int64_t number = way.order == REF_ORDER_BACKWARD ? heads - 1 - n : n;
        head.b = number / desc->heads;
        head.h = number % desc->heads;
        load_head(&head);
        for (int64_t i = 0; i < desc->length; i++)
            fill_row(&head, i, way);
        sum_head(&head);
    }
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        const int64_t count = values[which] ? clmgk_ref_gradient_count(desc, (clmgk_ref_gradient)which) : 0;
        for (int64_t n = 0; n < count; n++)
            values[which][n] = ref_rounded(desc->dtype, values[which][n]);
    }
    head_free(&head);
    return true;
}
