/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/linear_plain_head.h"

#include <float.h>
#include <stdlib.h>

/* ---- memory and sums ------------------------------------------------------------------------------------------- */

/* NULL: zeros. */
static void narrow(const double *source, int64_t count, float *to)
{
    for (int64_t n = 0; n < count; n++)
        to[n] = source ? (float)source[n] : 0.0F;
}

void ref_plain_linear_close_head(ref_plain_head *head)
{
    free(head->memory);
    *head = (ref_plain_head){0};
}

bool ref_plain_linear_open_head(const clmgk_ref_problem *problem, ref_order order, float *const *to,
                                ref_plain_head *head)
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
    *head =
        (ref_plain_head){.problem = problem, .map = ref_map_of(problem), .order = order, .b = -1, .h = -1, .to = to};
    head->parts = d->components;
    head->queries = ref_queries(d);
    head->count = (int64_t)count;
    head->memory = ref_room(room, sizeof(room) / sizeof(room[0]));
    if (head->memory && d->feature == CLMGK_FEATURE_FAVOR)
        narrow(problem->projection, (int64_t)(features * size), head->projection);
    return head->memory != NULL;
}

void ref_plain_linear_sum(const ref_plain_head *head, int64_t count, const float *coef, int64_t step, int64_t width,
                          const float *rows, float *out)
{
    const ref_terms terms = {ref_plain_linear_product(head), count, width, coef, step, rows, width, NULL};
    ref_sum(&terms, head->order, out);
}

static float finite_or_0(float x)
{
    return isfinite(x) ? x : 0.0F;
}

/* ---- a head ---------------------------------------------------------------------------------------------------- */

float ref_plain_linear_prior(const ref_plain_head *head, int64_t j, int64_t r)
{
    return (float)ref_linear_prior(head->problem, head->h, j, r);
}

static void load_key(ref_plain_head *head, int64_t j)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    for (int64_t r = 0; r < head->parts; r++) {
        float *const key = head->keys + (r * desc->length_k + j) * desc->head_size;
        ref_plain_load_key(head->problem, head->b, head->h, j, r, 1, key);
        ref_plain_map_apply(&head->map, head->projection, head->order, key,
                            head->y + (r * desc->length_k + j) * head->map.features);
    }
}

float ref_plain_linear_psi(const ref_plain_head *head, int64_t j, int64_t n, float m)
{
    float total = 0.0F;
    for (int64_t r = 0; r < head->parts; r++)
        if (ref_part_of(ref_plain_linear_desc(head), r) == n / head->map.features &&
            ref_plain_linear_prior(head, j, r) != 0.0F)
            total += ref_plain_linear_prior(head, j, r) *
                     ref_plain_linear_unit(head, ref_plain_linear_y(head, j, r)[n % head->map.features], m);
    return total;
}

/* The largest exponent of feature n in keys first .. end - 1, and `least`. */
static float largest_of(const ref_plain_head *head, int64_t n, int64_t first, int64_t end, float least)
{
    float largest = least;
    for (int64_t r = 0; head->map.shifted && r < head->parts; r++)
        for (int64_t j = first; ref_part_of(ref_plain_linear_desc(head), r) == n / head->map.features && j < end; j++)
            if (ref_plain_linear_prior(head, j, r) > 0.0F)
                largest = fmaxf(largest, ref_plain_linear_y(head, j, r)[n % head->map.features]);
    return largest;
}

/* Of feature n of the incoming state: m and the logarithm of z, where z is less than 1. */
static float top_of_state(const ref_plain_head *head, int64_t n)
{
    const int64_t size = ref_plain_linear_desc(head)->value_size;
    const float z = head->state_z[n];
    bool any = z != 0.0F;
    for (int64_t e = 0; e < size; e++)
        any = any || head->state_c[n * size + e] != 0.0F;
    if (!any || !ref_plain_linear_desc(head)->use_state)
        return -INFINITY;
    return head->state_m + (z > 0.0F && z < 1.0F ? logf(z) : 0.0F);
}

static void load_state(ref_plain_head *head)
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

void ref_plain_linear_load_head(ref_plain_head *head, int64_t b, int64_t h)
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

float ref_plain_linear_mix_weight(const ref_plain_head *head, int64_t q)
{
    return ref_form_of(ref_plain_linear_desc(head)).generalised ? (float)ref_mix_weight(head->problem, head->h, q)
                                                                : 1.0F;
}

static void load_query(ref_plain_head *head, int64_t q)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t size = p->desc.head_size, first = q * head->map.features;
    const double *const query = p->q + ref_query_index(&p->desc, head->at, q);
    narrow(query, size, head->query + q * size);
    ref_plain_map_apply(&head->map, head->projection, head->order, head->query + q * size, head->x + first);
    for (int64_t n = first; n < first + head->map.features; n++)
        head->eps[n] = ref_plain_noise(p, head->h, &head->span, head->span.origin + n - first);
}

float ref_plain_linear_feature(const ref_plain_head *head, int64_t n)
{
    return head->map.shifted ? expf(head->x[n] + head->m[n] - head->scale) : head->x[n];
}

/* The row's m, and its keys' features. */
static void fill_psi(ref_plain_head *head)
{
    const int64_t keys = ref_plain_linear_desc(head)->length_k;
    for (int64_t n = 0; n < head->count; n++) {
        const float top = largest_of(head, n, head->span.first, head->span.end, head->state_top[n]);
        head->m[n] = head->map.shifted ? finite_or_0(top) : 0.0F;
        head->state_w[n] = !isfinite(head->state_top[n]) ? 0.0F
                           : head->map.shifted           ? expf(head->state_m - head->m[n])
                                                         : 1.0F;
        for (int64_t j = head->span.first; j < head->span.end; j++)
            head->psi[j * head->count + n] = head->psi_t[n * keys + j] = ref_plain_linear_psi(head, j, n, head->m[n]);
        head->m[n] = head->map.shifted ? top : 0.0F;
    }
}

/* w p, 0 where relu is */
static float slope(const ref_plain_head *head, int64_t n)
{
    const int64_t q = n / head->map.features;
    return ref_plain_linear_mix_weight(head, q) * head->gate[n] * ref_plain_linear_mix(head, q);
}

/* The sign of phi(x) + sigma eps, which does not overflow. */
static float sign_of(const ref_plain_head *head, int64_t n, float noise)
{
    const float x = head->x[n], above = fmaxf(x, 0.0F);
    return head->map.shifted ? expf(x - above) + noise * expf(-above) : x + noise;
}

/* The largest of a row's features of keys' ones. */
static float largest_product(const ref_plain_head *head)
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

static void fill_phi(ref_plain_head *head)
{
    const ref_form form = ref_form_of(ref_plain_linear_desc(head));
    for (int64_t n = 0; n < head->count; n++) {
        const int64_t q = n / head->map.features;
        const float noise = form.noisy ? (float)ref_deviation(head->problem, q) * head->eps[n] : 0.0F;
        head->eps[n] = form.noisy ? head->eps[n] : 0.0F;
        head->gate[n] =
            form.generalised && ref_plain_linear_mix(head, q) * sign_of(head, n, noise) <= 0.0F ? 0.0F : 1.0F;
    }
    head->scale =
        head->map.shifted && !ref_plain_linear_desc(head)->unnormalised ? finite_or_0(largest_product(head)) : 0.0F;
    for (int64_t n = 0; n < head->count; n++) {
        const float deviation = form.noisy ? (float)ref_deviation(head->problem, n / head->map.features) : 0.0F;
        head->eps[n] *= head->map.shifted ? expf(head->m[n] - head->scale) : 1.0F;
        head->base[n] = ref_plain_linear_feature(head, n) + (deviation != 0.0F ? deviation * head->eps[n] : 0.0F);
        head->phi[n] = slope(head, n) != 0.0F ? slope(head, n) * head->base[n] : 0.0F;
    }
}

void ref_plain_linear_solve_row(ref_plain_head *head, ref_row at)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    ref_plain_linear_load_head(head, at.b, at.h);
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
    const ref_terms products = {
        ref_plain_linear_product(head), head->count, width, head->phi, 1, head->psi_t + first, desc->length_k, NULL};
    ref_sum(&products, head->order, head->weight + first);
    for (int64_t n = 0; n < head->count; n++)
        head->terms[n] = ref_plain_times(head->state_w[n], head->phi[n]);
    head->den = ref_sum_of(width, head->weight + first, head->order);
    float of_state = 0.0F;
    ref_plain_linear_sum(head, head->count, head->terms, 1, 1, head->state_z, &of_state);
    head->den += of_state;
    if (desc->guard != 0.0)
        head->den += (float)desc->guard * expf(-head->scale);
    if (!head->map.shifted && fabsf(head->den) < FLT_MIN)
        head->den = 0.0F;
    if (desc->unnormalised)
        head->den = 1.0F;
    ref_plain_linear_sum(head, width, head->weight + first, 1, desc->value_size,
                         head->values + first * desc->value_size, head->o);
    ref_plain_linear_sum(head, head->count, head->terms, 1, desc->value_size, head->state_c, head->out);
    for (int64_t e = 0; e < desc->value_size; e++) {
        const float o = (head->o[e] + head->out[e]) / head->den;
        head->o[e] = head->den == 0.0F ? 0.0F : clmgk_ref_rounded(clmgk_ref_type_of(desc, CLMGK_ARRAY_O), o);
    }
}
