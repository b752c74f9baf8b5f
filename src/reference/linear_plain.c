/* SPDX-License-Identifier: Apache-2.0 */
/* The linear family's plain formula: whole sums over keys and rows in f32, matrices of a head. Features of a row and of
 * a key are divided by e^maximum (maps with exponents), and so is a row by the largest of its keys' maxima. */
#include "reference/linear_plain.h"

#include "reference/linear.h"

#include <stdlib.h>

/* Head (b,h). K: Q F features of a row or a key. */
typedef struct plain_head {
    const clmgk_ref_problem *problem;
    ref_map map;
    ref_order order;
    int64_t b, h;
    int64_t parts, queries, count; /* components of a key; Q; K */
    float *memory;
    float *projection; /* [F,D] */
    float *keys;       /* [M,S,D]: k_jr */
    float *y;          /* [M,S,F]: their features, or exponents of features */
    float *largest;    /* [S]: of a key's exponents; 0 for other maps */
    float *psi;        /* [S,K] */
    float *psi_t;      /* [K,S] */
    float *values;     /* [S,E] */
    float *values_t;   /* [E,S] */
    float *state_c;    /* [K,E] */
    float *state_z;    /* [K] */
    float state_m;
    bool state_keys; /* the state has keys */
    float new_m;
    /* the row */
    ref_row at;
    ref_span span;
    float *query;  /* [Q,D] */
    float *x;      /* [K]: features of the query, or exponents */
    float *eps;    /* [K] */
    float *base;   /* [K]: (phi(x) + sigma eps) e^-above */
    float *gate;   /* [K]: derivative of relu, or 1 */
    float *phi;    /* [K]: p base, generalised w p gate base */
    float above;   /* the row's largest exponent */
    float scale;   /* the largest exponent of its keys and its state */
    float *weight; /* [S]: w_ij e^-(above + scale) */
    float den;     /* likewise */
    float *o;      /* [E] */
    /* gradients: matrices of the head, then of a row, of a key */
    float *const *to;     /* by clmgk_ref_gradient */
    float *grad_o;        /* [N,E]: dO / den */
    float *t;             /* [N]: -dO . O / den */
    float *phis;          /* [N,K] */
    float *carried;       /* [N,K]: the part that meets the state */
    float *weights;       /* [N,S] */
    float *grad_w;        /* [N,S] */
    float *mix;           /* [Q,N]: of rows: dp, dw, dsigma */
    float *mix_weight;    /* [Q,N] */
    float *noise;         /* [Q,N] */
    float *grad;          /* [K]: of phi or psi */
    float *out;           /* [max(K, E)] */
    float *grad_x;        /* [M,S,D] */
    float *prior;         /* [M,S]: dprior */
    float *new_c, *new_z; /* [K,E], [K]: gradients of the new state */
    float *new_c_t;       /* [E,K] */
} plain_head;

static const clmgk_attention_desc *desc_of(const plain_head *head)
{
    return &head->problem->desc;
}

/* NULL: zeros. */
static void narrow(const double *source, int64_t count, float *to)
{
    for (int64_t n = 0; n < count; n++)
        to[n] = source ? (float)source[n] : 0.0F;
}

static void close_head(plain_head *head)
{
    free(head->memory);
    *head = (plain_head){0};
}

/* False: out of memory, nothing to free. */
static bool open_head(const clmgk_ref_problem *problem, ref_order order, float *const *to, plain_head *head)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const size_t features = (size_t)d->features, size = (size_t)d->head_size, values = (size_t)d->value_size;
    const size_t keys = (size_t)d->length_k, parts = (size_t)d->components, queries = (size_t)ref_queries(d);
    const size_t count = queries * features, rows = to ? (size_t)d->length : 0;
    const ref_part room[] = {
        {&head->projection, problem->projection ? features * size : 0},
        {&head->keys, parts * keys * size},
        {&head->y, parts * keys * features},
        {&head->largest, keys},
        {&head->psi, keys * count},
        {&head->psi_t, keys * count},
        {&head->values, keys * values},
        {&head->values_t, keys * values},
        {&head->state_c, count * values},
        {&head->state_z, count},
        {&head->query, queries * size},
        {&head->x, count},
        {&head->eps, count},
        {&head->base, count},
        {&head->gate, count},
        {&head->phi, count},
        {&head->weight, keys},
        {&head->o, values},
        {&head->grad_o, rows * values},
        {&head->t, rows},
        {&head->phis, rows * count},
        {&head->carried, rows * count},
        {&head->weights, rows * keys},
        {&head->grad_w, rows * keys},
        {&head->mix, queries * rows},
        {&head->mix_weight, queries * rows},
        {&head->noise, queries * rows},
        {&head->grad, count},
        {&head->out, count + values},
        {&head->grad_x, (parts * keys + 1) * size}, /* + 1: of a query */
        {&head->prior, parts * keys},
        {&head->new_c, count * values},
        {&head->new_z, count},
        {&head->new_c_t, count * values},
    };
    *head = (plain_head){.problem = problem, .map = ref_map_of(problem), .order = order, .b = -1, .h = -1, .to = to};
    head->parts = d->components;
    head->queries = ref_queries(d);
    head->count = (int64_t)count;
    head->memory = ref_room(room, sizeof(room) / sizeof(room[0]));
    if (head->memory && d->feature == CLMGK_FEATURE_FAVOR)
        narrow(problem->projection, (int64_t)(features * size), head->projection);
    return head->memory != NULL;
}

/* out[width] = sum_n coef[n step] rows[n width + .] */
static void sum(const plain_head *head, int64_t count, const float *coef, int64_t step, int64_t width,
                const float *rows, float *out)
{
    const ref_terms terms = {REF_TERM_PRODUCT, count, width, coef, step, rows, width, NULL};
    ref_sum(&terms, head->order, out);
}

static float finite_or_0(float x)
{
    return isfinite(x) ? x : 0.0F;
}

/* ---- a head ---------------------------------------------------------------------------------------------------- */

static float prior_of(const plain_head *head, int64_t j, int64_t r)
{
    return (float)ref_linear_prior(head->problem, head->h, j, r);
}

static const float *y_of(const plain_head *head, int64_t j, int64_t r)
{
    return head->y + (r * desc_of(head)->length_k + j) * head->map.features;
}

/* phi of the key's feature e^-largest */
static float unit(const plain_head *head, int64_t j, float y)
{
    return head->map.shifted ? expf(y - head->largest[j]) : y;
}

static void load_key(plain_head *head, int64_t j)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t keys = desc->length_k, features = head->map.features;
    const float norm = (float)head->map.norm;
    float largest = -INFINITY;
    for (int64_t r = 0; r < head->parts; r++) {
        float *const key = head->keys + (r * keys + j) * desc->head_size;
        float *const y = head->y + (r * keys + j) * features;
        ref_plain_load_key(head->problem, head->b, head->h, j, r, 1, key);
        ref_plain_map_apply(&head->map, head->projection, head->order, key, y);
        for (int64_t f = 0; f < features; f++)
            largest = y[f] + norm > largest && prior_of(head, j, r) > 0.0F ? y[f] + norm : largest;
    }
    head->largest[j] = head->map.shifted ? finite_or_0(largest) : 0.0F;
    for (int64_t n = 0; n < head->count; n++)
        head->psi[j * head->count + n] = 0.0F;
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t f = 0; f < features; f++)
            head->psi[j * head->count + ref_part_of(desc, r) * features + f] +=
                prior_of(head, j, r) * unit(head, j, y_of(head, j, r)[f]);
    for (int64_t n = 0; n < head->count; n++)
        head->psi_t[n * keys + j] = head->psi[j * head->count + n];
}

static void load_state(plain_head *head)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t at = ref_state_c_index(&p->desc, head->b, head->h, 0, 0);
    const int64_t numbers = head->count * p->desc.value_size;
    const bool given = p->desc.use_state, asked = p->desc.use_new_state;
    narrow(given ? p->state_c + at : NULL, numbers, head->state_c);
    narrow(asked && p->grad_new_state_c ? p->grad_new_state_c + at : NULL, numbers, head->new_c);
    for (int64_t n = 0; n < head->count; n++) {
        const int64_t q = n / head->map.features, f = n % head->map.features;
        const int64_t z = ref_state_z_index(&p->desc, head->b, head->h, q, f);
        const bool passed = asked && p->grad_new_state_z && ref_has_z(&p->desc, head->h);
        head->state_z[n] = given ? (float)p->state_z[z] : 0.0F;
        head->new_z[n] = passed ? (float)p->grad_new_state_z[z] : 0.0F;
        for (int64_t e = 0; e < p->desc.value_size; e++)
            head->new_c_t[e * head->count + n] = head->new_c[n * p->desc.value_size + e];
    }
    head->state_m = given ? (float)ref_state_scale(p, head->b, head->h) : 0.0F;
    head->state_keys = ref_state_has_keys(p, head->b, head->h);
    float largest = head->state_keys ? head->state_m : -INFINITY;
    for (int64_t j = 0; j < ref_key_limit(p, head->b); j++)
        largest = head->largest[j] > largest ? head->largest[j] : largest;
    head->new_m = head->map.shifted ? finite_or_0(largest) : 0.0F;
}

static void load_head(plain_head *head, int64_t b, int64_t h)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t keys = p->desc.length_k, size = p->desc.value_size;
    if (head->b == b && head->h == h)
        return;
    head->b = b;
    head->h = h;
    for (int64_t j = 0; j < keys; j++) {
        const bool used = j < ref_key_limit(p, b);
        load_key(head, j);
        narrow(used ? p->v + ref_value_index(&p->desc, b, h, j) : NULL, size, head->values + j * size);
        for (int64_t e = 0; e < size; e++)
            head->values_t[e * keys + j] = head->values[j * size + e];
    }
    load_state(head);
}

/* ---- a row ----------------------------------------------------------------------------------------------------- */

static float mix_of(const plain_head *head, int64_t q)
{
    return ref_form_of(desc_of(head)).mixed ? (float)ref_mix(head->problem, head->h, q) : 1.0F;
}

static float mix_weight_of(const plain_head *head, int64_t q)
{
    return ref_form_of(desc_of(head)).generalised ? (float)ref_mix_weight(head->problem, head->h, q) : 1.0F;
}

static void load_query(plain_head *head, int64_t q)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t size = p->desc.head_size, first = q * head->map.features;
    const double *const query = p->q + ref_query_index(&p->desc, head->at, q);
    narrow(query, size, head->query + q * size);
    ref_plain_map_apply(&head->map, head->projection, head->order, head->query + q * size, head->x + first);
    for (int64_t n = first; n < first + head->map.features; n++)
        head->eps[n] = ref_plain_noise(p, head->h, &head->span, head->span.origin + n - first);
}

/* phi(x), or e^(x - above) */
static float feature(const plain_head *head, int64_t n)
{
    return head->map.shifted ? expf(head->x[n] - head->above) : head->x[n];
}

static float deviation(const plain_head *head, int64_t q)
{
    return (float)ref_deviation(head->problem, q) * (head->map.shifted ? expf(-head->above) : 1.0F);
}

static void fill_phi(plain_head *head)
{
    const ref_form form = ref_form_of(desc_of(head));
    const float norm = (float)head->map.norm;
    float largest = form.noisy ? 0.0F : -INFINITY;
    for (int64_t n = 0; n < head->count; n++)
        largest = head->x[n] + norm > largest ? head->x[n] + norm : largest;
    head->above = head->map.shifted ? finite_or_0(largest) : 0.0F;
    for (int64_t n = 0; n < head->count; n++) {
        const int64_t q = n / head->map.features;
        head->base[n] = feature(head, n) + (form.noisy ? deviation(head, q) * head->eps[n] : 0.0F);
        head->gate[n] = form.generalised && mix_of(head, q) * head->base[n] <= 0.0F ? 0.0F : 1.0F;
        head->phi[n] = mix_weight_of(head, q) * head->gate[n] * (mix_of(head, q) * head->base[n]);
    }
}

static void fill_weights(plain_head *head)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t first = head->span.first;
    float largest = head->state_keys ? head->state_m : -INFINITY;
    for (int64_t j = first; j < head->span.end; j++)
        largest = head->largest[j] > largest ? head->largest[j] : largest;
    head->scale = head->map.shifted ? finite_or_0(largest) : 0.0F;
    const ref_terms terms = {REF_TERM_PRODUCT, head->count, head->span.end - first, head->phi, 1, head->psi_t + first,
                             desc->length_k,   NULL};
    ref_sum(&terms, head->order, head->weight + first);
    for (int64_t j = first; j < head->span.end; j++)
        head->weight[j] *= expf(head->largest[j] - head->scale);
}

static void solve_row(plain_head *head, ref_row at)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    load_head(head, at.b, at.h);
    head->at = at;
    head->span = ref_span_of(head->problem, at.b, at.i);
    head->den = 0.0F;
    for (int64_t e = 0; e < desc->value_size; e++)
        head->o[e] = 0.0F;
    if (head->span.absent)
        return;
    for (int64_t q = 0; q < head->queries; q++)
        load_query(head, q);
    fill_phi(head);
    fill_weights(head);

    const int64_t first = head->span.first, width = head->span.end - first;
    const float carried = head->state_keys ? expf(head->state_m - head->scale) : 0.0F;
    head->den = ref_sum_of(width, head->weight + first, head->order);
    head->den += carried * ref_sum_of_products(head->count, head->phi, head->state_z, head->order);
    const bool any = width > 0 || head->state_keys; /* else the guard stands alone, as it is */
    if (desc->guard != 0.0)
        head->den += (float)desc->guard * (any ? expf(-head->above - head->scale) : 1.0F);
    sum(head, width, head->weight + first, 1, desc->value_size, head->values + first * desc->value_size, head->o);
    sum(head, head->count, head->phi, 1, desc->value_size, head->state_c, head->out);
    for (int64_t e = 0; e < desc->value_size; e++) {
        const float o = (head->o[e] + carried * head->out[e]) / head->den;
        head->o[e] = head->den == 0.0F ? 0.0F : ref_rounded(desc->dtype, o);
    }
}

bool ref_plain_linear_rows(const clmgk_ref_problem *problem, ref_order order, const clmgk_ref_answer *answer, float *o,
                           float *den)
{
    const int64_t size = problem->desc.value_size;
    plain_head head;
    if (!open_head(problem, order, NULL, &head))
        return false;
    for (int64_t n = 0; n < answer->rows; n++) {
        solve_row(&head, ref_row_of(&problem->desc, answer->row[n]));
        den[n] = (float)((double)head.den * exp((double)head.scale - answer->scale[n]));
        for (int64_t e = 0; e < size; e++)
            o[n * size + e] = head.o[e];
    }
    close_head(&head);
    return true;
}

/* ---- the new state --------------------------------------------------------------------------------------------- */

/* Sums over keys of pi phi(k) and v, and the incoming state, in units of e^scale. */
static void add_state(const plain_head *head, double scale, float *const values[])
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t keys = ref_key_limit(head->problem, head->b), size = desc->value_size;
    const float carried = head->state_keys ? expf(head->state_m - head->new_m) : 0.0F;
    const float unit = (float)exp((double)head->new_m - scale);
    float *const c = values[CLMGK_REF_STATE_C] + ref_state_c_index(desc, head->b, head->h, 0, 0);
    for (int64_t n = 0; n < head->count; n++) {
        const int64_t q = n / head->map.features, f = n % head->map.features;
        float *const room = head->weight;
        for (int64_t j = 0; j < keys; j++)
            room[j] = head->psi_t[n * desc->length_k + j] * expf(head->largest[j] - head->new_m);
        sum(head, keys, room, 1, size, head->values, head->out);
        for (int64_t e = 0; e < size; e++)
            c[n * size + e] = (head->out[e] + carried * head->state_c[n * size + e]) * unit;
        const float z = ref_sum_of(keys, room, head->order) + carried * head->state_z[n];
        if (ref_has_z(desc, head->h))
            values[CLMGK_REF_STATE_Z][ref_state_z_index(desc, head->b, head->h, q, f)] = z * unit;
    }
}

bool ref_plain_linear_state(const clmgk_ref_problem *problem, ref_order order, const double *scale,
                            float *const values[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    plain_head head;
    if (!open_head(problem, order, NULL, &head))
        return false;
    for (int64_t bh = 0; bh < desc->batch * desc->heads; bh++) {
        load_head(&head, bh / desc->heads, bh % desc->heads);
        add_state(&head, scale[ref_state_m_index(desc, head.b, head.h)], values);
    }
    close_head(&head);
    return true;
}

/* ---- gradients: rows ------------------------------------------------------------------------------------------- */

static void give(const plain_head *head, clmgk_ref_gradient which, int64_t at, int64_t count, const float *x)
{
    for (int64_t n = 0; head->to[which] && n < count; n++)
        head->to[which][at + n] += x[n];
}

/* grad = dphi of the row */
static void fill_grad_phi(plain_head *head, const float *grad_o, float t)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t first = head->span.first, width = head->span.end - first;
    float *const grad_w = head->grad_w + head->at.i * desc->length_k + first;
    const ref_terms products = {REF_TERM_PRODUCT,       desc->value_size, width, grad_o, 1,
                                head->values_t + first, desc->length_k,   NULL};
    const float carried = desc->use_state ? expf(head->state_m - head->scale) : 0.0F;
    ref_sum(&products, head->order, grad_w);
    for (int64_t n = 0; n < width; n++)
        grad_w[n] = (grad_w[n] + t) * expf(head->largest[first + n] - head->scale);
    sum(head, width, grad_w, 1, head->count, head->psi + first * head->count, head->grad);
    for (int64_t n = 0; n < head->count; n++) {
        const float *const c = head->state_c + n * desc->value_size;
        const float x = ref_sum_of_products(desc->value_size, c, grad_o, head->order);
        head->grad[n] += head->state_keys ? carried * (x + t * head->state_z[n]) : 0.0F;
        head->phis[head->at.i * head->count + n] = head->phi[n];
        head->carried[head->at.i * head->count + n] = carried * head->phi[n];
    }
}

/* From dphi to dQ and the parameters of part q. */
static void give_query(plain_head *head, int64_t q)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t features = head->map.features, first = q * features, at = q * desc->length + head->at.i;
    const float mix = mix_of(head, q), weight = mix_weight_of(head, q);
    float *const part = head->grad + first, *const out = head->out;
    for (int64_t f = 0; f < features; f++)
        part[f] *= head->gate[first + f];
    const float both = ref_sum_of_products(features, part, head->base + first, head->order);
    head->mix[at] = weight * both;
    head->mix_weight[at] = mix * both;
    for (int64_t f = 0; f < features; f++)
        part[f] *= weight * mix;
    head->noise[at] = ref_sum_of_products(features, part, head->eps + first, head->order);
    head->noise[at] *= head->map.shifted ? expf(-head->above) : 1.0F;
    for (int64_t f = 0; f < features; f++)
        out[f] = head->map.shifted ? part[f] * feature(head, first + f) : part[f];
    ref_plain_map_back(&head->map, head->projection, head->order, head->query + q * desc->head_size, out, head->grad_x);
    give(head, CLMGK_REF_GRAD_Q, ref_query_index(desc, head->at, q), desc->head_size, head->grad_x);
}

static void add_row(plain_head *head, int64_t i)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const ref_row at = {head->b, head->h, i};
    const double *const given = ref_grad_o(head->problem, at);
    float *const grad_o = head->grad_o + i * desc->value_size;
    solve_row(head, at);
    if (!given || head->den == 0.0F)
        return;
    for (int64_t e = 0; e < desc->value_size; e++)
        grad_o[e] = (float)given[e] / head->den;
    head->t[i] = -ref_sum_of_products(desc->value_size, grad_o, head->o, head->order);
    for (int64_t j = head->span.first; j < head->span.end; j++)
        head->weights[i * desc->length_k + j] = head->weight[j];
    fill_grad_phi(head, grad_o, head->t[i]);
    for (int64_t q = 0; q < head->queries; q++)
        give_query(head, q);
}

/* ---- gradients: sums over rows --------------------------------------------------------------------------------- */

/* psi's factor in the new state; 0 for a key that is not in it, or without one. */
static float in_new_state(const plain_head *head, int64_t j)
{
    const bool used = desc_of(head)->use_new_state && j < ref_key_limit(head->problem, head->b);
    return used ? expf(head->largest[j] - head->new_m) : 0.0F;
}

static void give_value(plain_head *head, int64_t j)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t size = desc->value_size;
    float *const total = head->out;
    sum(head, desc->length, head->weights + j, desc->length_k, size, head->grad_o, total);
    give(head, CLMGK_REF_GRAD_V, ref_value_index(desc, head->b, head->h, j), size, total);
    sum(head, head->count, head->psi + j * head->count, 1, size, head->new_c, total);
    for (int64_t e = 0; e < size; e++)
        total[e] *= in_new_state(head, j);
    give(head, CLMGK_REF_GRAD_V, ref_value_index(desc, head->b, head->h, j), size, total);
}

/* grad = dpsi of key j */
static void fill_grad_psi(plain_head *head, int64_t j)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    sum(head, desc->length, head->grad_w + j, desc->length_k, head->count, head->phis, head->grad);
    sum(head, desc->value_size, head->values + j * desc->value_size, 1, head->count, head->new_c_t, head->out);
    for (int64_t n = 0; n < head->count; n++)
        head->grad[n] += in_new_state(head, j) * (head->out[n] + head->new_z[n]);
}

/* From dpsi to component r of key j. */
static void give_key(plain_head *head, int64_t j, int64_t r)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t features = head->map.features, size = desc->head_size;
    const float *const grad = head->grad + ref_part_of(desc, r) * features;
    float *const out = head->out, *const grad_x = head->grad_x + (r * desc->length_k + j) * size;
    for (int64_t f = 0; f < features; f++)
        out[f] = unit(head, j, y_of(head, j, r)[f]);
    head->prior[r * desc->length_k + j] = ref_sum_of_products(features, grad, out, head->order);
    for (int64_t f = 0; f < features; f++)
        out[f] = prior_of(head, j, r) * grad[f] * (head->map.shifted ? out[f] : 1.0F);
    ref_plain_map_back(&head->map, head->projection, head->order, head->keys + (r * desc->length_k + j) * size, out,
                       grad_x);
    give(head, CLMGK_REF_GRAD_K, ref_key_index(desc, head->b, head->h, j, r), size, grad_x);
}

/* Sums over keys: dprior and dshift of component r. */
static void give_component(plain_head *head, int64_t r)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t keys = desc->length_k, size = desc->head_size;
    const float *const prior = head->prior + r * keys;
    const bool per_key = desc->prior_shape == CLMGK_PRIOR_HMS;
    const float total = ref_sum_of(keys, prior, head->order);
    for (int64_t j = 0; per_key && j < keys; j++)
        give(head, CLMGK_REF_GRAD_PRIOR, ref_prior_index(desc, head->h, j, r), 1, &prior[j]);
    if (!per_key)
        give(head, CLMGK_REF_GRAD_PRIOR, ref_prior_index(desc, head->h, 0, r), 1, &total);
    ref_sum_rows(keys, size, head->grad_x + r * keys * size, size, head->order, head->query);
    give(head, CLMGK_REF_GRAD_SHIFT, ref_shift_index(desc, head->h, r), size, head->query);
}

/* Sums over rows: dp, dw and dsigma of part q. */
static void give_mixing(const plain_head *head, int64_t q)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t rows = desc->length;
    const float mix = ref_sum_of(rows, head->mix + q * rows, head->order);
    const float mix_weight = ref_sum_of(rows, head->mix_weight + q * rows, head->order);
    const float noise = ref_sum_of(rows, head->noise + q * rows, head->order);
    give(head, CLMGK_REF_GRAD_MIX, ref_mix_index(desc, head->h, q), 1, &mix);
    give(head, CLMGK_REF_GRAD_MIX_WEIGHT, ref_mix_weight_index(desc, head->h, q), 1, &mix_weight);
    give(head, CLMGK_REF_GRAD_NOISE, q, 1, &noise);
}

/* Sums over rows, and what the new state passes on: the incoming state's gradient of feature n = q F + f. */
static void give_state(plain_head *head, int64_t n)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t q = n / head->map.features, f = n % head->map.features, size = desc->value_size;
    const float passed = desc->use_new_state ? expf(head->state_m - head->new_m) : 0.0F;
    const ref_terms terms = {REF_TERM_PRODUCT, desc->length, 1, head->carried + n, head->count, head->t, 1, NULL};
    float z = 0.0F;
    ref_sum(&terms, head->order, &z);
    z += passed * head->new_z[n];
    sum(head, desc->length, head->carried + n, head->count, size, head->grad_o, head->out);
    for (int64_t e = 0; e < size; e++)
        head->out[e] += passed * head->new_c[n * size + e];
    give(head, CLMGK_REF_GRAD_STATE_C, ref_state_c_index(desc, head->b, head->h, q, f), size, head->out);
    give(head, CLMGK_REF_GRAD_STATE_Z, ref_state_z_index(desc, head->b, head->h, q, f), 1, &z);
}

static void solve_head(plain_head *head)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    for (float *x = head->grad_o; x < head->grad; x++) /* the matrices */
        *x = 0.0F;
    for (int64_t i = 0; i < desc->length; i++)
        add_row(head, i);
    for (int64_t j = 0; j < desc->length_k; j++) {
        give_value(head, j);
        fill_grad_psi(head, j);
        for (int64_t r = 0; r < head->parts; r++)
            give_key(head, j, r);
    }
    for (int64_t r = 0; r < head->parts; r++)
        give_component(head, r);
    for (int64_t q = 0; ref_form_of(desc).mixed && q < head->queries; q++)
        give_mixing(head, q);
    for (int64_t n = 0; desc->use_state && n < head->count; n++)
        give_state(head, n);
}

bool ref_plain_linear_gradients(const clmgk_ref_problem *problem, ref_order order, float *const values[])
{
    const int64_t heads = problem->desc.batch * problem->desc.heads;
    plain_head head;
    if (!open_head(problem, order, values, &head))
        return false;
    for (int64_t n = 0; n < heads; n++) {
        const int64_t bh = order == REF_ORDER_BACKWARD ? heads - 1 - n : n;
        load_head(&head, bh / problem->desc.heads, bh % problem->desc.heads);
        solve_head(&head);
    }
    close_head(&head);
    return true;
}
