/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linear family's plain formula: whole sums over keys and rows in f32, matrices of a head. Maps with exponents:
 * with m_n the largest exponent of feature n in the keys and the state that a row sees, keys have e^(y_n - m_n), the
 * row e^(x_n + m_n - scale), whose largest is about 1.
 */
#include "reference/linear_plain.h"

#include "reference/linear.h"

#include <float.h>
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
    float *values;     /* [S,E] */
    float *values_t;   /* [E,S] */
    float *state_c;    /* [K,E] */
    float *state_z;    /* [K] */
    float *state_top;  /* [K]: the largest exponent that a feature of the state can have; -inf without keys */
    float state_m;
    float new_m;
    /* the row */
    ref_row at;
    ref_span span;
    float *query;   /* [Q,D] */
    float *x;       /* [K]: features of the query, or exponents */
    float *m;       /* [K]: 0 for other maps */
    float *psi;     /* [S,K]: e^(y - m), or y */
    float *psi_t;   /* [K,S] */
    float *state_w; /* [K]: what the state's numbers are multiplied by, e^(state_m - m) */
    float *eps;     /* [K]: in units of e^(scale - m) */
    float *base;    /* [K]: phi(x) + sigma eps, likewise */
    float *gate;    /* [K]: derivative of relu, or 1 */
    float *phi;     /* [K]: p base, generalised w p gate base */
    float scale;
    float *weight; /* [S]: w_ij e^-scale */
    float den;     /* likewise */
    float *o;      /* [E] */
    /* gradients: matrices of the head, then of a row, of a key */
    float *const *to;     /* by clmgk_ref_gradient */
    float *grad_o;        /* [N,E]: dO / den */
    float *t;             /* [N]: -dO . O / den */
    float *phis;          /* [N,K] */
    float *ms;            /* [N,K]: m */
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
    float *terms;         /* [max(N, S, K)] */
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
    const size_t longest = rows > keys ? rows : keys;
    const ref_part room[] = {
        {&head->projection, problem->projection ? features * size : 0},
        {&head->keys, parts * keys * size},
        {&head->y, parts * keys * features},
        {&head->values, keys * values},
        {&head->values_t, keys * values},
        {&head->state_c, count * values},
        {&head->state_z, count},
        {&head->state_top, count},
        {&head->query, queries * size},
        {&head->x, count},
        {&head->m, count},
        {&head->psi, keys * count},
        {&head->psi_t, keys * count},
        {&head->state_w, count},
        {&head->eps, count},
        {&head->base, count},
        {&head->gate, count},
        {&head->phi, count},
        {&head->weight, keys},
        {&head->o, values},
        {&head->grad_o, rows * values},
        {&head->t, rows},
        {&head->phis, rows * count},
        {&head->ms, rows * count},
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
        {&head->terms, longest > count ? longest : count},
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

/* x y, and 0 where x is, whatever y is. */
static float times(float x, float y)
{
    return x != 0.0F ? x * y : 0.0F;
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

/* phi of a key's feature in units of e^m */
static float unit(const plain_head *head, float y, float m)
{
    return head->map.shifted ? expf(y - m) : y;
}

static void load_key(plain_head *head, int64_t j)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    for (int64_t r = 0; r < head->parts; r++) {
        float *const key = head->keys + (r * desc->length_k + j) * desc->head_size;
        ref_plain_load_key(head->problem, head->b, head->h, j, r, 1, key);
        ref_plain_map_apply(&head->map, head->projection, head->order, key,
                            head->y + (r * desc->length_k + j) * head->map.features);
    }
}

/* sum_r pi_r phi(k_jr) of feature n in units of e^m */
static float psi_of(const plain_head *head, int64_t j, int64_t n, float m)
{
    float total = 0.0F;
    for (int64_t r = 0; r < head->parts; r++)
        if (ref_part_of(desc_of(head), r) == n / head->map.features && prior_of(head, j, r) != 0.0F)
            total += prior_of(head, j, r) * unit(head, y_of(head, j, r)[n % head->map.features], m);
    return total;
}

/* The largest exponent of feature n in keys first .. end - 1, and `least`. */
static float largest_of(const plain_head *head, int64_t n, int64_t first, int64_t end, float least)
{
    float largest = least;
    for (int64_t r = 0; head->map.shifted && r < head->parts; r++)
        for (int64_t j = first; ref_part_of(desc_of(head), r) == n / head->map.features && j < end; j++)
            if (prior_of(head, j, r) > 0.0F)
                largest = fmaxf(largest, y_of(head, j, r)[n % head->map.features]);
    return largest;
}

/* Of feature n of the incoming state: m and the logarithm of z, where z is less than 1. */
static float top_of_state(const plain_head *head, int64_t n)
{
    const int64_t size = desc_of(head)->value_size;
    const float z = head->state_z[n];
    bool any = z != 0.0F;
    for (int64_t e = 0; e < size; e++)
        any = any || head->state_c[n * size + e] != 0.0F;
    if (!any || !desc_of(head)->use_state)
        return -INFINITY;
    return head->state_m + (z > 0.0F && z < 1.0F ? logf(z) : 0.0F);
}

static void load_state(plain_head *head)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t at = ref_state_c_index(&p->desc, head->b, head->h, 0, 0);
    const int64_t numbers = head->count * p->desc.value_size;
    const bool given = p->desc.use_state, asked = p->desc.use_new_state;
    narrow(given ? p->state_c + at : NULL, numbers, head->state_c);
    narrow(asked && p->grad_new_state_c ? p->grad_new_state_c + at : NULL, numbers, head->new_c);
    head->state_m = given ? (float)ref_state_scale(p, head->b, head->h) : 0.0F;
    float largest = ref_state_has_keys(p, head->b, head->h) ? head->state_m : -INFINITY;
    for (int64_t n = 0; n < head->count; n++) {
        const int64_t q = n / head->map.features, f = n % head->map.features;
        const int64_t z = ref_state_z_index(&p->desc, head->b, head->h, q, f);
        const bool passed = asked && p->grad_new_state_z && ref_has_z(&p->desc, head->h);
        head->state_z[n] = given ? (float)p->state_z[z] : 0.0F;
        head->state_top[n] = top_of_state(head, n);
        head->new_z[n] = passed ? (float)p->grad_new_state_z[z] : 0.0F;
        for (int64_t e = 0; e < p->desc.value_size; e++)
            head->new_c_t[e * head->count + n] = head->new_c[n * p->desc.value_size + e];
        const float of_keys = largest_of(head, n, 0, ref_key_limit(p, head->b), -INFINITY) + (float)head->map.norm;
        largest = fmaxf(largest, of_keys);
    }
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

/* phi(x), or e^(x + m - scale) */
static float feature(const plain_head *head, int64_t n)
{
    return head->map.shifted ? expf(head->x[n] + head->m[n] - head->scale) : head->x[n];
}

/* The row's m, and its keys' features. */
static void fill_psi(plain_head *head)
{
    const int64_t keys = desc_of(head)->length_k;
    for (int64_t n = 0; n < head->count; n++) {
        const float top = largest_of(head, n, head->span.first, head->span.end, head->state_top[n]);
        head->m[n] = head->map.shifted ? finite_or_0(top) : 0.0F;
        head->state_w[n] = !isfinite(head->state_top[n]) ? 0.0F
                           : head->map.shifted           ? expf(head->state_m - head->m[n])
                                                         : 1.0F;
        for (int64_t j = head->span.first; j < head->span.end; j++)
            head->psi[j * head->count + n] = head->psi_t[n * keys + j] = psi_of(head, j, n, head->m[n]);
        head->m[n] = head->map.shifted ? top : 0.0F;
    }
}

/* w p, 0 where relu is */
static float slope(const plain_head *head, int64_t n)
{
    const int64_t q = n / head->map.features;
    return mix_weight_of(head, q) * head->gate[n] * mix_of(head, q);
}

/* The sign of phi(x) + sigma eps, which does not overflow. */
static float sign_of(const plain_head *head, int64_t n, float noise)
{
    const float x = head->x[n], above = fmaxf(x, 0.0F);
    return head->map.shifted ? expf(x - above) + noise * expf(-above) : x + noise;
}

/* The largest of a row's features of keys' ones. */
static float largest_product(const plain_head *head)
{
    float largest = -INFINITY;
    for (int64_t n = 0; n < head->count; n++) {
        const float noise = fabsf((float)ref_deviation(head->problem, n / head->map.features) * head->eps[n]);
        if (slope(head, n) == 0.0F)
            continue;
        largest = fmaxf(largest, head->x[n] + head->m[n] + logf(fabsf(slope(head, n))));
        if (noise > 0.0F)
            largest = fmaxf(largest, logf(noise) + head->m[n] + logf(fabsf(slope(head, n))));
    }
    return largest;
}

static void fill_phi(plain_head *head)
{
    const ref_form form = ref_form_of(desc_of(head));
    for (int64_t n = 0; n < head->count; n++) {
        const int64_t q = n / head->map.features;
        const float noise = form.noisy ? (float)ref_deviation(head->problem, q) * head->eps[n] : 0.0F;
        head->eps[n] = form.noisy ? head->eps[n] : 0.0F;
        head->gate[n] = form.generalised && mix_of(head, q) * sign_of(head, n, noise) <= 0.0F ? 0.0F : 1.0F;
    }
    head->scale = head->map.shifted ? finite_or_0(largest_product(head)) : 0.0F;
    for (int64_t n = 0; n < head->count; n++) {
        const float deviation = form.noisy ? (float)ref_deviation(head->problem, n / head->map.features) : 0.0F;
        head->eps[n] *= head->map.shifted ? expf(head->m[n] - head->scale) : 1.0F;
        head->base[n] = feature(head, n) + (deviation != 0.0F ? deviation * head->eps[n] : 0.0F);
        head->phi[n] = slope(head, n) != 0.0F ? slope(head, n) * head->base[n] : 0.0F;
    }
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
    fill_psi(head);
    fill_phi(head);

    const int64_t first = head->span.first, width = head->span.end - first;
    const ref_terms products = {REF_TERM_PRODUCT,    head->count,    width, head->phi, 1,
                                head->psi_t + first, desc->length_k, NULL};
    ref_sum(&products, head->order, head->weight + first);
    for (int64_t n = 0; n < head->count; n++)
        head->terms[n] = times(head->state_w[n], head->phi[n]);
    head->den = ref_sum_of(width, head->weight + first, head->order);
    head->den += ref_sum_of_products(head->count, head->terms, head->state_z, head->order);
    if (desc->guard != 0.0)
        head->den += (float)desc->guard * expf(-head->scale);
    if (!head->map.shifted && fabsf(head->den) < FLT_MIN)
        head->den = 0.0F;
    sum(head, width, head->weight + first, 1, desc->value_size, head->values + first * desc->value_size, head->o);
    sum(head, head->count, head->terms, 1, desc->value_size, head->state_c, head->out);
    for (int64_t e = 0; e < desc->value_size; e++) {
        const float o = (head->o[e] + head->out[e]) / head->den;
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
static void add_state(plain_head *head, double scale, float *const values[])
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t keys = ref_key_limit(head->problem, head->b), size = desc->value_size;
    const bool any = ref_state_has_keys(head->problem, head->b, head->h);
    const float carried = any ? expf(head->state_m - head->new_m) : 0.0F;
    const float of_scale = (float)exp((double)head->new_m - scale);
    float *const c = values[CLMGK_REF_STATE_C] + ref_state_c_index(desc, head->b, head->h, 0, 0);
    for (int64_t n = 0; n < head->count; n++) {
        const int64_t q = n / head->map.features, f = n % head->map.features;
        for (int64_t j = 0; j < keys; j++)
            head->terms[j] = psi_of(head, j, n, head->new_m);
        sum(head, keys, head->terms, 1, size, head->values, head->out);
        for (int64_t e = 0; e < size; e++)
            c[n * size + e] = (head->out[e] + carried * head->state_c[n * size + e]) * of_scale;
        const float z = ref_sum_of(keys, head->terms, head->order) + carried * head->state_z[n];
        if (ref_has_z(desc, head->h))
            values[CLMGK_REF_STATE_Z][ref_state_z_index(desc, head->b, head->h, q, f)] = z * of_scale;
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
    const int64_t first = head->span.first, width = head->span.end - first, row = head->at.i * head->count;
    float *const grad_w = head->grad_w + head->at.i * desc->length_k + first;
    const ref_terms products = {REF_TERM_PRODUCT,       desc->value_size, width, grad_o, 1,
                                head->values_t + first, desc->length_k,   NULL};
    ref_sum(&products, head->order, grad_w);
    for (int64_t n = 0; n < width; n++)
        grad_w[n] += t;
    sum(head, width, grad_w, 1, head->count, head->psi + first * head->count, head->grad);
    for (int64_t n = 0; n < head->count; n++) {
        const float *const c = head->state_c + n * desc->value_size;
        const float x = ref_sum_of_products(desc->value_size, c, grad_o, head->order) + t * head->state_z[n];
        head->grad[n] += times(head->state_w[n], x);
        head->phis[row + n] = head->phi[n];
        head->ms[row + n] = head->m[n];
        head->carried[row + n] = times(head->phi[n], head->map.shifted ? expf(head->state_m - head->m[n]) : 1.0F);
    }
}

/* sum_f of those */
static float products_of(plain_head *head, const float *x, const float *y)
{
    for (int64_t f = 0; f < head->map.features; f++)
        head->terms[f] = times(x[f], y[f]);
    return ref_sum_of(head->map.features, head->terms, head->order);
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
    const float both = products_of(head, part, head->base + first);
    head->mix[at] = weight * both;
    head->mix_weight[at] = mix * both;
    for (int64_t f = 0; f < features; f++)
        part[f] *= weight * mix;
    head->noise[at] = products_of(head, part, head->eps + first);
    for (int64_t f = 0; f < features; f++)
        out[f] = head->map.shifted ? times(part[f], feature(head, first + f)) : part[f];
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

static bool in_new_state(const plain_head *head, int64_t j)
{
    return desc_of(head)->use_new_state && j < ref_key_limit(head->problem, head->b);
}

static void give_value(plain_head *head, int64_t j)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t size = desc->value_size;
    float *const total = head->out;
    sum(head, desc->length, head->weights + j, desc->length_k, size, head->grad_o, total);
    give(head, CLMGK_REF_GRAD_V, ref_value_index(desc, head->b, head->h, j), size, total);
    if (!in_new_state(head, j))
        return;
    for (int64_t n = 0; n < head->count; n++)
        head->terms[n] = psi_of(head, j, n, head->new_m);
    sum(head, head->count, head->terms, 1, size, head->new_c, total);
    give(head, CLMGK_REF_GRAD_V, ref_value_index(desc, head->b, head->h, j), size, total);
}

/* The gradient of feature n of component r of key j without its prior, for maps with exponents times the feature. */
static float grad_feature(plain_head *head, int64_t j, int64_t r, int64_t n)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const float y = y_of(head, j, r)[n % head->map.features];
    const bool shifted = head->map.shifted;
    const ref_terms terms = {REF_TERM_PRODUCT, desc->length, 1, head->grad_w + j, desc->length_k, head->terms, 1, NULL};
    float total = 0.0F;
    for (int64_t i = 0; i < desc->length; i++) {
        const float phi = head->phis[i * head->count + n];
        const bool seen = head->grad_w[i * desc->length_k + j] != 0.0F;
        head->terms[i] = seen && shifted ? times(phi, unit(head, y, head->ms[i * head->count + n])) : phi;
    }
    ref_sum(&terms, head->order, &total);
    if (in_new_state(head, j))
        total += (head->out[n] + head->new_z[n]) * (shifted ? unit(head, y, head->new_m) : 1.0F);
    return total;
}

/* From the matrices to component r of key j. */
static void give_key(plain_head *head, int64_t j, int64_t r)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t features = head->map.features, size = desc->head_size, first = ref_part_of(desc, r) * features;
    const float prior = prior_of(head, j, r);
    float *const grad = head->grad, *const grad_x = head->grad_x + (r * desc->length_k + j) * size;
    sum(head, desc->value_size, head->values + j * desc->value_size, 1, head->count, head->new_c_t, head->out);
    for (int64_t f = 0; f < features; f++)
        grad[f] = grad_feature(head, j, r, first + f);
    head->prior[r * desc->length_k + j] = head->map.shifted
                                              ? ref_sum_of(features, grad, head->order)
                                              : ref_sum_of_products(features, grad, y_of(head, j, r), head->order);
    for (int64_t f = 0; f < features; f++)
        grad[f] = times(prior, grad[f]);
    ref_plain_map_back(&head->map, head->projection, head->order, head->keys + (r * desc->length_k + j) * size, grad,
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
