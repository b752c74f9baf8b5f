/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/linear_head.h"

#include "reference/arrays.h"

#include <float.h>
#include <stdlib.h>

/* ---- a head ---------------------------------------------------------------------------------------------------- */

void ref_linear_close_head(ref_linear_head *head)
{
    free(head->memory);
    free(head->along);
    *head = (ref_linear_head){0};
}

bool ref_linear_open_head(const clmgk_ref_problem *problem, bool gradients, ref_linear_head *head)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t features = (size_t)desc->features, size = (size_t)desc->head_size, values = (size_t)desc->value_size;
    const size_t keys = (size_t)(desc->components * desc->length_k) * features;
    const size_t queries = (size_t)ref_queries(desc) * features;
    *head = (ref_linear_head){.problem = problem, .map = ref_map_of(problem), .b = -1, .h = -1};
    head->parts = desc->components;
    head->queries = ref_queries(desc);
    head->memory =
        calloc(keys + 5 * queries + features + 3 * size + 2 * values + (size_t)desc->length_k, sizeof(double));
    head->along = calloc(gradients ? 2 * queries + keys : 1, sizeof(ref_amount));
    if (!head->memory || !head->along) {
        ref_linear_close_head(head);
        return false;
    }
    head->key = head->memory;
    head->query = head->key + keys;
    head->noise = head->query + queries;
    head->gate = head->noise + queries;
    head->slope = head->gate + queries;
    head->phi = head->slope + queries;
    head->o = head->phi + queries;
    head->grad_o = head->o + values;
    head->x = head->grad_o + values;
    head->weight = head->x + size;
    head->room = head->weight + desc->length_k;
    head->beside = head->along + queries;
    head->grad_key = head->beside + queries;
    return true;
}

/* ---- features -------------------------------------------------------------------------------------------------- */

void ref_linear_load_key(ref_linear_head *head, int64_t r, int64_t j)
{
    const clmgk_ref_problem *const p = head->problem;
    const double *const key = p->k + ref_key_index(&p->desc, head->b, head->h, j, r);
    const double *const shift = ref_shift(p, head->h, r);
    for (int64_t d = 0; d < head->map.size; d++)
        head->x[d] = key[d] + (shift ? shift[d] : 0.0);
}

void ref_linear_load_head(ref_linear_head *head, int64_t b, int64_t h)
{
    if (head->b == b && head->h == h)
        return;
    head->b = b;
    head->h = h;
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = 0; j < ref_key_limit(head->problem, b); j++) {
            ref_linear_load_key(head, r, j);
            ref_map_apply(&head->map, head->x, ref_linear_key(head, r, j));
        }
}

/* phi(x) + s of feature n = q F + f, in a scale in which nothing overflows. */
static double scaled_query(const ref_linear_head *head, int64_t n)
{
    const double x = head->query[n], base = fmax(x, 0.0);
    return head->map.shifted ? exp(x - base) + head->noise[n] * exp(-base) : x + head->noise[n];
}

/* Features of the row's part q. */
static void load_query(ref_linear_head *head, int64_t q)
{
    const clmgk_ref_problem *const p = head->problem;
    const ref_form form = ref_form_of(&p->desc);
    const double mix = form.mixed ? ref_mix(p, head->h, q) : 1.0;
    const double weight = form.generalised ? ref_mix_weight(p, head->h, q) : 1.0;
    const int64_t first = q * head->map.features;
    ref_map_apply(&head->map, ref_linear_query(head, q), head->query + first);
    for (int64_t n = first; n < first + head->map.features; n++) {
        const double eps = ref_noise(p, head->h, &head->span, head->span.origin + n - first);
        head->noise[n] = form.noisy ? ref_deviation(p, q) * eps : 0.0;
        head->gate[n] = form.generalised && mix * scaled_query(head, n) <= 0.0 ? 0.0 : 1.0;
        head->slope[n] = weight * mix * head->gate[n];
        head->phi[n] = head->slope[n] * (head->query[n] + head->noise[n]);
    }
}

/* ---- terms of a row -------------------------------------------------------------------------------------------- */

double ref_linear_state_y(const ref_linear_head *head)
{
    return head->map.shifted ? ref_state_scale(head->problem, head->b, head->h) : 1.0;
}

/* Raises the row's scale to the largest part of slope (e^x + s) e^more. */
static void raise_scale(ref_linear_head *head, int64_t n, double more)
{
    const double up = head->query[n] + more;
    if (head->slope[n] == 0.0)
        return;
    head->scale = up > head->scale ? up : head->scale;
    if (head->noise[n] == 0.0)
        return;
    const double side = log(fabs(head->noise[n])) + more;
    head->scale = side > head->scale ? side : head->scale;
}

/* No smaller than any number in C's row and z's element; NaN if one is. */
static double state_size(const ref_linear_head *head, int64_t n)
{
    double sum = fabs(ref_linear_state_z(head, n));
    for (int64_t e = 0; e < ref_linear_desc(head)->value_size; e++)
        sum += fabs(ref_linear_state_c(head, n)[e]);
    return sum;
}

static void find_scale(ref_linear_head *head)
{
    const clmgk_ref_problem *const p = head->problem;
    head->scale = log(fabs(p->desc.guard));
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = head->span.first; j < head->span.end; j++) {
            const double prior = log(fabs(ref_linear_prior(p, head->h, j, r)));
            for (int64_t f = 0; f < head->map.features; f++)
                raise_scale(head, ref_part_of(&p->desc, r) * head->map.features + f,
                            ref_linear_key(head, r, j)[f] + prior);
        }
    for (int64_t n = 0; p->desc.use_state && n < head->queries * head->map.features; n++)
        raise_scale(head, n, ref_linear_state_y(head) + log(fabs(state_size(head, n))));
    if (!isfinite(head->scale))
        head->scale = 0.0;
}

/* What C's row and z's element of feature n are multiplied by. */
static double carried_term(const ref_linear_head *head, int64_t n)
{
    return state_size(head, n) != 0.0 ? ref_linear_term(head, n, ref_linear_state_y(head)) : 0.0;
}

/* w_ijr: Phi_i . phi(k_jr) */
static double component(const ref_linear_head *head, int64_t r, int64_t j)
{
    const int64_t first = ref_part_of(ref_linear_desc(head), r) * head->map.features;
    double sum = 0.0;
    for (int64_t f = 0; f < head->map.features; f++)
        sum += ref_linear_term(head, first + f, ref_linear_key(head, r, j)[f]);
    return sum;
}

/* w_ij */
static double weight(const ref_linear_head *head, int64_t j)
{
    double sum = 0.0;
    for (int64_t r = 0; r < head->parts; r++) {
        const double prior = ref_linear_prior(head->problem, head->h, j, r);
        sum += prior != 0.0 ? prior * component(head, r, j) : 0.0;
    }
    return sum;
}

void ref_linear_add_values(const ref_linear_head *head, double factor, const double *y, double *x)
{
    for (int64_t e = 0; e < ref_linear_desc(head)->value_size; e++)
        x[e] += factor * y[e];
}

void ref_linear_weigh_row(ref_linear_head *head, ref_row at)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    ref_linear_load_head(head, at.b, at.h);
    head->at = at;
    head->span = ref_span_of(head->problem, at.b, at.i);
    head->den = head->scale = 0.0;
    if (head->span.absent)
        return;
    for (int64_t q = 0; q < head->queries; q++)
        load_query(head, q);
    if (head->map.shifted && !desc->unnormalised)
        find_scale(head);

    for (int64_t j = head->span.first; j < head->span.end; j++) {
        head->weight[j] = weight(head, j);
        head->den += head->weight[j];
    }
    for (int64_t n = 0; desc->use_state && n < head->queries * head->map.features; n++)
        head->den += carried_term(head, n) * ref_linear_state_z(head, n);
    head->den += desc->guard != 0.0 ? desc->guard * exp(-head->scale) : 0.0;
    if (!head->map.shifted && fabs(head->den) < (double)FLT_MIN)
        head->den = 0.0;
    if (desc->unnormalised)
        head->den = 1.0;
}

void ref_linear_solve_row(ref_linear_head *head, ref_row at)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    ref_linear_weigh_row(head, at);
    for (int64_t e = 0; e < desc->value_size; e++)
        head->o[e] = 0.0;
    if (head->span.absent)
        return;
    for (int64_t j = head->span.first; j < head->span.end; j++)
        ref_linear_add_values(head, head->weight[j], ref_linear_value(head, j), head->o);
    for (int64_t n = 0; desc->use_state && n < head->queries * head->map.features; n++)
        ref_linear_add_values(head, carried_term(head, n), ref_linear_state_c(head, n), head->o);
    for (int64_t e = 0; e < desc->value_size; e++)
        head->o[e] = head->den == 0.0 ? 0.0 : head->o[e] / head->den;
}

/* ---- terms of the new state ------------------------------------------------------------------------------------ */

/* Of keys first .. end - 1, and the incoming state's m; -inf without keys. */
static double largest_exponent(const ref_linear_head *head, int64_t first, int64_t end)
{
    const clmgk_ref_problem *const p = head->problem;
    const bool carried = ref_state_has_keys(p, head->b, head->h);
    double largest = carried ? ref_state_scale(p, head->b, head->h) : -(double)INFINITY;
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = first; j < end; j++)
            for (int64_t f = 0; ref_linear_prior(p, head->h, j, r) > 0.0 && f < head->map.features; f++)
                largest = fmax(largest, ref_linear_key(head, r, j)[f] + head->map.norm);
    return largest;
}

double ref_linear_new_scale(const ref_linear_head *head)
{
    const double largest = largest_exponent(head, 0, ref_key_limit(head->problem, head->b));
    return head->map.shifted && isfinite(largest) ? largest : 0.0;
}

void ref_linear_for_state_terms(const ref_linear_head *head, double scale, void *to,
                                void (*add)(const ref_linear_head *head, const ref_state_term *x, void *to))
{
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = 0; j < ref_key_limit(head->problem, head->b); j++)
            for (int64_t f = 0; f < head->map.features; f++) {
                const double y = ref_linear_key(head, r, j)[f];
                const ref_state_term x = {j, r, f, ref_linear_prior(head->problem, head->h, j, r),
                                          head->map.shifted ? exp(y - scale) : y};
                add(head, &x, to);
            }
}
