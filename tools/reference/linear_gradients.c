/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the linear family's exact formula. */
#include "reference/gradients.h"
#include "reference/linear_head.h"

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void give(const ref_linear_head *head, clmgk_ref_gradient which, int64_t at, ref_amount x, double factor)
{
    if (!head->values[which])
        return;
    head->values[which][at] += x.value * factor;
    head->floor[which][at] += x.size * fabs(factor);
}

/* From the gradient of the map's outputs, times factor[F] (NULL: 1), to the gradient of its inputs x. */
static void give_inputs(const ref_linear_head *head, clmgk_ref_gradient which, int64_t at, const double *x,
                        const ref_amount *grad, const double *factor)
{
    const int64_t features = head->map.features, size = head->map.size;
    double *const outputs = head->room, *const inputs = outputs + features;
    for (int sizes = 0; head->values[which] && sizes < 2; sizes++) {
        double *const to = (sizes == 0 ? head->values : head->floor)[which];
        for (int64_t f = 0; f < features; f++)
            outputs[f] = (sizes == 0 ? grad[f].value : grad[f].size) * (!factor      ? 1.0
                                                                        : sizes == 0 ? factor[f]
                                                                                     : fabs(factor[f]));
        for (int64_t d = 0; d < size; d++)
            inputs[d] = 0.0;
        ref_map_add(&head->map, x, outputs, sizes != 0, inputs);
        for (int64_t d = 0; d < size; d++)
            to[at + d] += sizes == 0 ? inputs[d] : fabs(inputs[d]);
    }
}

/* x is the gradient of Phi_n phi(y), n = q F + f. */
static void add_pair(const ref_linear_head *head, int64_t n, double y, ref_amount x)
{
    if (head->map.shifted)
        ref_add_amount(&head->along[n], x, ref_linear_along(head, n, y));
    if (!head->map.shifted || ref_form_of(ref_linear_desc(head)).noisy)
        ref_add_amount(&head->beside[n], x, head->map.shifted ? ref_linear_beside(head, y) : y);
}

/* x is the gradient of component r of w_ij. */
static void add_component(const ref_linear_head *head, int64_t r, int64_t j, ref_amount x)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    const int64_t first = ref_part_of(desc, r) * head->map.features;
    const int64_t value = ref_value_index(desc, head->b, head->h, j);
    const double prior = ref_linear_prior(head->problem, head->h, j, r);
    const double *const y = ref_linear_key(head, r, j);
    ref_amount *const grad_key = head->grad_key + (y - head->key);
    ref_amount sum = {0}, weighted = {0};
    ref_add_amount(&weighted, x, prior);
    for (int64_t f = 0; f < head->map.features; f++) {
        const int64_t n = first + f;
        const double w_ijrf = ref_linear_term(head, n, y[f]);
        ref_add_amount(&sum, ref_exactly(w_ijrf), 1.0);
        if (prior == 0.0)
            continue;
        add_pair(head, n, y[f], weighted);
        ref_add_amount(&grad_key[f], weighted, head->map.shifted ? w_ijrf : head->phi[n]);
    }
    give(head, CLMGK_REF_GRAD_PRIOR, ref_prior_index(desc, head->h, j, r),
         (ref_amount){x.value * sum.value, x.size * sum.size}, 1.0);
    for (int64_t e = 0; prior != 0.0 && e < desc->value_size; e++)
        give(head, CLMGK_REF_GRAD_V, value + e, sum, prior * head->grad_o[e]);
}

static double product_of(const ref_linear_head *head, const double *x)
{
    double product = 0.0;
    for (int64_t e = 0; e < ref_linear_desc(head)->value_size; e++)
        product += x[e] * head->grad_o[e];
    return product;
}

/* t = -dO_i . O_i / den_i, the gradient of the denominator */
static double through_denominator(const ref_linear_head *head)
{
    return ref_linear_desc(head)->unnormalised ? 0.0 : -product_of(head, head->o);
}

/* x . dO_i / den_i + factor t */
static ref_amount through_row(const ref_linear_head *head, const double *x, double factor)
{
    const double product = product_of(head, x), of_denominator = factor * through_denominator(head);
    return (ref_amount){product + of_denominator, fabs(product) + fabs(of_denominator)};
}

static void add_keys(const ref_linear_head *head)
{
    for (int64_t j = head->span.first; j < head->span.end; j++) {
        const ref_amount x = through_row(head, ref_linear_value(head, j), 1.0);
        for (int64_t r = 0; r < head->parts; r++)
            add_component(head, r, j, x);
    }
}

/* What the row draws from feature n of the incoming state. */
static void add_state(const ref_linear_head *head, int64_t n)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    const int64_t q = n / head->map.features, f = n % head->map.features;
    const double y = ref_linear_state_y(head), phi = ref_linear_term(head, n, y);
    const ref_amount x = through_row(head, ref_linear_state_c(head, n), ref_linear_state_z(head, n));
    if (x.size != 0.0)
        add_pair(head, n, y, x);
    for (int64_t e = 0; e < desc->value_size; e++)
        give(head, CLMGK_REF_GRAD_STATE_C, ref_state_c_index(desc, head->b, head->h, q, f) + e,
             ref_exactly(head->grad_o[e]), phi);
    give(head, CLMGK_REF_GRAD_STATE_Z, ref_state_z_index(desc, head->b, head->h, q, f),
         ref_exactly(through_denominator(head)), phi);
}

/* dp, dw and dsigma of part q, from Phi = p (phi + sigma eps) or w relu(p (phi + sigma eps)). */
static void give_mixing(const ref_linear_head *head, int64_t q)
{
    const clmgk_ref_problem *const p = head->problem;
    const ref_form form = ref_form_of(&p->desc);
    const double weight = form.generalised ? ref_mix_weight(p, head->h, q) : 1.0;
    for (int64_t f = 0; f < head->map.features; f++) {
        const int64_t n = q * head->map.features + f;
        const double eps = ref_noise(p, head->h, &head->span, head->span.origin + f);
        ref_amount x = head->along[n];
        if (!head->map.shifted)
            ref_add_amount(&x, head->beside[n], head->query[n]);
        if (head->noise[n] != 0.0)
            ref_add_amount(&x, head->beside[n], head->noise[n]);
        give(head, CLMGK_REF_GRAD_MIX, ref_mix_index(&p->desc, head->h, q), x, weight * head->gate[n]);
        give(head, CLMGK_REF_GRAD_MIX_WEIGHT, ref_mix_weight_index(&p->desc, head->h, q), x,
             ref_mix(p, head->h, q) * head->gate[n]);
        if (form.noisy)
            give(head, CLMGK_REF_GRAD_NOISE, q, head->beside[n], head->slope[n] * eps);
    }
}

static void add_row(ref_linear_head *head, ref_row at)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t count = head->queries * head->map.features;
    const double *const grad_o = ref_grad_o(p, at);
    ref_linear_solve_row(head, at);
    if (!grad_o || head->span.absent || head->den == 0.0)
        return;
    for (int64_t e = 0; e < p->desc.value_size; e++)
        head->grad_o[e] = grad_o[e] / head->den;
    for (int64_t n = 0; n < count; n++)
        head->along[n] = head->beside[n] = (ref_amount){0};
    add_keys(head);
    for (int64_t n = 0; p->desc.use_state && n < count; n++)
        add_state(head, n);
    for (int64_t q = 0; q < head->queries; q++) {
        const int64_t first = q * head->map.features;
        give_inputs(head, CLMGK_REF_GRAD_Q, ref_query_index(&p->desc, at, q), ref_linear_query(head, q),
                    (head->map.shifted ? head->along : head->beside) + first, head->slope + first);
        if (ref_form_of(&p->desc).mixed)
            give_mixing(head, q);
    }
}

/* ---- the new state --------------------------------------------------------------------------------------------- */

/* dz of feature n = q F + f, where this head passes it on; dC's row. */
static double grad_new_z(const ref_linear_head *head, int64_t q, int64_t f)
{
    const clmgk_ref_problem *const p = head->problem;
    const bool given = p->grad_new_state_z && ref_has_z(&p->desc, head->h);
    return given ? p->grad_new_state_z[ref_state_z_index(&p->desc, head->b, head->h, q, f)] : 0.0;
}

static double grad_new_c(const ref_linear_head *head, int64_t q, int64_t f, int64_t e)
{
    const clmgk_ref_problem *const p = head->problem;
    return p->grad_new_state_c ? p->grad_new_state_c[ref_state_c_index(&p->desc, head->b, head->h, q, f) + e] : 0.0;
}

static void add_from_new_state(const ref_linear_head *head, const ref_state_term *x, void *to)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    const int64_t q = ref_part_of(desc, x->r);
    const int64_t value = ref_value_index(desc, head->b, head->h, x->j);
    ref_amount sum = ref_exactly(grad_new_z(head, q, x->f));
    (void)to;
    for (int64_t e = 0; e < desc->value_size; e++)
        ref_add_amount(&sum, ref_exactly(grad_new_c(head, q, x->f, e)), ref_linear_value(head, x->j)[e]);
    give(head, CLMGK_REF_GRAD_PRIOR, ref_prior_index(desc, head->h, x->j, x->r), sum, x->unit);
    if (x->prior == 0.0)
        return;
    ref_add_amount(&head->grad_key[(ref_linear_key(head, x->r, x->j) - head->key) + x->f], sum,
                   x->prior * (head->map.shifted ? x->unit : 1.0));
    for (int64_t e = 0; e < desc->value_size; e++)
        give(head, CLMGK_REF_GRAD_V, value + e, ref_exactly(grad_new_c(head, q, x->f, e)), x->prior * x->unit);
}

static void add_new_state(const ref_linear_head *head)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    const double scale = ref_linear_new_scale(head);
    const double carried = exp(ref_state_scale(head->problem, head->b, head->h) - scale);
    ref_linear_for_state_terms(head, scale, NULL, add_from_new_state);
    for (int64_t n = 0; desc->use_state && n < head->queries * desc->features; n++) {
        const int64_t q = n / desc->features, f = n % desc->features;
        for (int64_t e = 0; e < desc->value_size; e++)
            give(head, CLMGK_REF_GRAD_STATE_C, ref_state_c_index(desc, head->b, head->h, q, f) + e,
                 ref_exactly(grad_new_c(head, q, f, e)), carried);
        give(head, CLMGK_REF_GRAD_STATE_Z, ref_state_z_index(desc, head->b, head->h, q, f),
             ref_exactly(grad_new_z(head, q, f)), carried);
    }
}

/* ---- a whole problem ------------------------------------------------------------------------------------------- */

static void give_keys(ref_linear_head *head)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = 0; j < ref_key_limit(head->problem, head->b); j++) {
            const ref_amount *const grad = head->grad_key + (ref_linear_key(head, r, j) - head->key);
            ref_linear_load_key(head, r, j);
            give_inputs(head, CLMGK_REF_GRAD_K, ref_key_index(desc, head->b, head->h, j, r), head->x, grad, NULL);
            give_inputs(head, CLMGK_REF_GRAD_SHIFT, ref_shift_index(desc, head->h, r), head->x, grad, NULL);
        }
}

bool ref_linear_gradients(const clmgk_ref_problem *problem, double *const values[], double *const floor[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    ref_linear_head head;
    if (!ref_linear_open_head(problem, true, &head))
        return false;
    head.values = values;
    head.floor = floor;
    for (int64_t bh = 0; bh < desc->batch * desc->heads; bh++) {
        ref_linear_load_head(&head, bh / desc->heads, bh % desc->heads);
        for (int64_t n = 0; n < head.parts * desc->length_k * desc->features; n++)
            head.grad_key[n] = (ref_amount){0};
        for (int64_t i = 0; i < desc->length; i++)
            add_row(&head, (ref_row){head.b, head.h, i});
        if (desc->use_new_state)
            add_new_state(&head);
        give_keys(&head);
    }
    ref_linear_close_head(&head);
    return true;
}
