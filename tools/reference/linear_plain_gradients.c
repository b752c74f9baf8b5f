/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients by the linear family's plain formula (linear_plain_head.h). */
#include "reference/linear_plain.h"
#include "reference/linear_plain_head.h"

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void give(const ref_plain_head *head, clmgk_ref_gradient which, int64_t at, int64_t count, const float *x)
{
    for (int64_t n = 0; head->to[which] && n < count; n++)
        head->to[which][at + n] += x[n];
}

/* grad = dphi of the row */
static void fill_grad_phi(ref_plain_head *head, const float *grad_o, float t)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const int64_t first = head->span.first, width = head->span.end - first, row = head->at.i * head->count;
    float *const grad_w = head->grad_w + head->at.i * desc->length_k + first;
    const ref_terms products = {ref_plain_linear_product(head), desc->value_size, width, grad_o, 1,
                                head->values_t + first,         desc->length_k,   NULL};
    ref_sum(&products, head->order, grad_w);
    for (int64_t n = 0; n < width; n++)
        grad_w[n] += t;
    ref_plain_linear_sum(head, width, grad_w, 1, head->count, head->psi + first * head->count, head->grad);
    for (int64_t n = 0; n < head->count; n++) {
        const float *const c = head->state_c + n * desc->value_size;
        float x = 0.0F;
        ref_plain_linear_sum(head, desc->value_size, c, 1, 1, grad_o, &x);
        head->grad[n] += ref_plain_times(head->state_w[n], x + t * head->state_z[n]);
        head->phis[row + n] = head->phi[n];
        head->ms[row + n] = head->m[n];
        head->carried[row + n] =
            ref_plain_times(head->phi[n], head->map.shifted ? expf(head->state_m - head->m[n]) : 1.0F);
    }
}

/* sum_f of those */
static float products_of(ref_plain_head *head, const float *x, const float *y)
{
    for (int64_t f = 0; f < head->map.features; f++)
        head->terms[f] = ref_plain_times(x[f], y[f]);
    return ref_sum_of(head->map.features, head->terms, head->order);
}

/* From dphi to dQ and the parameters of part q. */
static void give_query(ref_plain_head *head, int64_t q)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const int64_t features = head->map.features, first = q * features, at = q * desc->length + head->at.i;
    const float mix = ref_plain_linear_mix(head, q), weight = ref_plain_linear_mix_weight(head, q);
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
        out[f] = head->map.shifted ? ref_plain_times(part[f], ref_plain_linear_feature(head, first + f)) : part[f];
    ref_plain_map_back(&head->map, head->projection, head->order, head->query + q * desc->head_size, out, head->grad_x);
    give(head, CLMGK_REF_GRAD_Q, ref_query_index(desc, head->at, q), desc->head_size, head->grad_x);
}

static void add_row(ref_plain_head *head, int64_t i)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const ref_row at = {head->b, head->h, i};
    const double *const given = ref_grad_o(head->problem, at);
    float *const grad_o = head->grad_o + i * desc->value_size;
    ref_plain_linear_solve_row(head, at);
    if (!given || head->den == 0.0F)
        return;
    for (int64_t e = 0; e < desc->value_size; e++)
        grad_o[e] = (float)given[e] / head->den;
    head->t[i] =
        desc->unnormalised ? 0.0F : -ref_sum_of_products(desc->value_size, grad_o, head->o, ref_other(head->order));
    for (int64_t j = head->span.first; j < head->span.end; j++)
        head->weights[i * desc->length_k + j] = head->weight[j];
    fill_grad_phi(head, grad_o, head->t[i]);
    for (int64_t q = 0; q < head->queries; q++)
        give_query(head, q);
}

/* ---- sums over rows -------------------------------------------------------------------------------------------- */

static bool in_new_state(const ref_plain_head *head, int64_t j)
{
    return ref_plain_linear_desc(head)->use_new_state && j < ref_key_limit(head->problem, head->b);
}

static void give_value(ref_plain_head *head, int64_t j)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const int64_t size = desc->value_size;
    float *const total = head->out;
    ref_plain_linear_sum(head, desc->length, head->weights + j, desc->length_k, size, head->grad_o, total);
    give(head, CLMGK_REF_GRAD_V, ref_value_index(desc, head->b, head->h, j), size, total);
    if (!in_new_state(head, j))
        return;
    for (int64_t n = 0; n < head->count; n++)
        head->terms[n] = ref_plain_linear_psi(head, j, n, head->new_m);
    ref_plain_linear_sum(head, head->count, head->terms, 1, size, head->new_c, total);
    give(head, CLMGK_REF_GRAD_V, ref_value_index(desc, head->b, head->h, j), size, total);
}

/* The gradient of feature n of component r of key j without its prior, for maps with exponents times the feature. */
static float grad_feature(ref_plain_head *head, int64_t j, int64_t r, int64_t n)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const float y = ref_plain_linear_y(head, j, r)[n % head->map.features];
    const bool shifted = head->map.shifted;
    float total = 0.0F;
    for (int64_t i = 0; i < desc->length; i++) {
        const float phi = head->phis[i * head->count + n];
        const bool seen = head->grad_w[i * desc->length_k + j] != 0.0F;
        head->terms[i] =
            seen && shifted ? ref_plain_times(phi, ref_plain_linear_unit(head, y, head->ms[i * head->count + n])) : phi;
    }
    ref_plain_linear_sum(head, desc->length, head->grad_w + j, desc->length_k, 1, head->terms, &total);
    if (in_new_state(head, j))
        total += (head->out[n] + head->new_z[n]) * (shifted ? ref_plain_linear_unit(head, y, head->new_m) : 1.0F);
    return total;
}

/* From the matrices to component r of key j. */
static void give_key(ref_plain_head *head, int64_t j, int64_t r)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const int64_t features = head->map.features, size = desc->head_size, first = ref_part_of(desc, r) * features;
    const float prior = ref_plain_linear_prior(head, j, r);
    float *const grad = head->grad, *const grad_x = head->grad_x + (r * desc->length_k + j) * size;
    ref_plain_linear_sum(head, desc->value_size, head->values + j * desc->value_size, 1, head->count, head->new_c_t,
                         head->out);
    for (int64_t f = 0; f < features; f++)
        grad[f] = grad_feature(head, j, r, first + f);
    head->prior[r * desc->length_k + j] =
        head->map.shifted ? ref_sum_of(features, grad, head->order)
                          : ref_sum_of_products(features, grad, ref_plain_linear_y(head, j, r), head->order);
    for (int64_t f = 0; f < features; f++)
        grad[f] = ref_plain_times(prior, grad[f]);
    ref_plain_map_back(&head->map, head->projection, head->order, head->keys + (r * desc->length_k + j) * size, grad,
                       grad_x);
    give(head, CLMGK_REF_GRAD_K, ref_key_index(desc, head->b, head->h, j, r), size, grad_x);
}

/* Sums over keys: dprior and dshift of component r. */
static void give_component(ref_plain_head *head, int64_t r)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
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
static void give_mixing(const ref_plain_head *head, int64_t q)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const int64_t rows = desc->length;
    const float mix = ref_sum_of(rows, head->mix + q * rows, head->order);
    const float mix_weight = ref_sum_of(rows, head->mix_weight + q * rows, head->order);
    const float noise = ref_sum_of(rows, head->noise + q * rows, head->order);
    give(head, CLMGK_REF_GRAD_MIX, ref_mix_index(desc, head->h, q), 1, &mix);
    give(head, CLMGK_REF_GRAD_MIX_WEIGHT, ref_mix_weight_index(desc, head->h, q), 1, &mix_weight);
    give(head, CLMGK_REF_GRAD_NOISE, q, 1, &noise);
}

/* Sums over rows, and what the new state passes on: the incoming state's gradient of feature n = q F + f. */
static void give_state(ref_plain_head *head, int64_t n)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const int64_t q = n / head->map.features, f = n % head->map.features, size = desc->value_size;
    const float passed = desc->use_new_state ? expf(head->state_m - head->new_m) : 0.0F;
    float z = 0.0F;
    ref_plain_linear_sum(head, desc->length, head->carried + n, head->count, 1, head->t, &z);
    z += passed * head->new_z[n];
    ref_plain_linear_sum(head, desc->length, head->carried + n, head->count, size, head->grad_o, head->out);
    for (int64_t e = 0; e < size; e++)
        head->out[e] += passed * head->new_c[n * size + e];
    give(head, CLMGK_REF_GRAD_STATE_C, ref_state_c_index(desc, head->b, head->h, q, f), size, head->out);
    give(head, CLMGK_REF_GRAD_STATE_Z, ref_state_z_index(desc, head->b, head->h, q, f), 1, &z);
}

static void solve_head(ref_plain_head *head)
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
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
    ref_plain_head head;
    if (!ref_plain_linear_open_head(problem, order, values, &head))
        return false;
    for (int64_t n = 0; n < heads; n++) {
        const int64_t bh = order == REF_ORDER_BACKWARD ? heads - 1 - n : n;
        ref_plain_linear_load_head(&head, bh / problem->desc.heads, bh % problem->desc.heads);
        solve_head(&head);
    }
    ref_plain_linear_close_head(&head);
    return true;
}
