/* SPDX-License-Identifier: Apache-2.0 */
/* The linear family in double precision, row by row over pairs of queries and keys (formulas: linear.h). */
#include "reference/linear.h"

#include "reference/arrays.h"
#include "reference/families.h"
#include "reference/gradients.h"
#include "reference/linear_plain.h"

#include <float.h>
#include <stdlib.h>

/* A value, and the sum of its terms' absolute values. */
typedef struct amount {
    double value, size;
} amount;

static void add_to(amount *sum, amount x, double factor)
{
    sum->value += x.value * factor;
    sum->size += x.size * fabs(factor);
}

/*
 * Head (b,h) and a row of it. With x features, or exponents of features, of a query, y of a key and s = sigma eps:
 *     Phi_qf = slope (phi(x) + s)
 * Everything of a row is divided by e^scale: the largest term among its keys and its state, for maps with exponents.
 */
typedef struct exact_head {
    const clmgk_ref_problem *problem;
    ref_map map;
    int64_t b, h;
    int64_t parts, queries; /* components of a key; Q */
    double *memory;
    double *key; /* [M,S,F]: y */
    double *x;   /* [D] */
    ref_row at;
    ref_span span;
    double *query; /* [Q,F]: x */
    double *noise; /* [Q,F]: s */
    double *gate;  /* [Q,F]: derivative of relu, or 1 */
    double *slope; /* [Q,F]: p, generalised w p gate */
    double *phi;   /* [Q,F]: Phi; maps without exponents */
    double scale;
    double den;
    double *weight; /* [S]: w_ij of the row's keys */
    double *o;      /* [E] */
    /* gradients */
    double *const *values; /* by clmgk_ref_gradient */
    double *const *floor;
    double *grad_o;   /* [E]: dO / den */
    double *room;     /* [F], [D] and [D] */
    amount *along;    /* [Q,F]: maps with exponents: sum of e^(x+y) over pairs, with weights dw_ij */
    amount *beside;   /* [Q,F]: of e^y, where there is noise; other maps: of y */
    amount *grad_key; /* [M,S,F] */
} exact_head;

static const clmgk_attention_desc *desc_of(const exact_head *head)
{
    return &head->problem->desc;
}

static void close_head(exact_head *head)
{
    free(head->memory);
    free(head->along);
    *head = (exact_head){0};
}

/* False: out of memory, nothing to free. */
static bool open_head(const clmgk_ref_problem *problem, bool gradients, exact_head *head)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t features = (size_t)desc->features, size = (size_t)desc->head_size, values = (size_t)desc->value_size;
    const size_t keys = (size_t)(desc->components * desc->length_k) * features;
    const size_t queries = (size_t)ref_queries(desc) * features;
    *head = (exact_head){.problem = problem, .map = ref_map_of(problem), .b = -1, .h = -1};
    head->parts = desc->components;
    head->queries = ref_queries(desc);
    head->memory =
        calloc(keys + 5 * queries + features + 3 * size + 2 * values + (size_t)desc->length_k, sizeof(double));
    head->along = calloc(gradients ? 2 * queries + keys : 1, sizeof(amount));
    if (!head->memory || !head->along) {
        close_head(head);
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

static double *key_of(const exact_head *head, int64_t r, int64_t j)
{
    return head->key + (r * desc_of(head)->length_k + j) * head->map.features;
}

static void load_key(exact_head *head, int64_t r, int64_t j)
{
    const clmgk_ref_problem *const p = head->problem;
    const double *const key = p->k + ref_key_index(&p->desc, head->b, head->h, j, r);
    const double *const shift = ref_shift(p, head->h, r);
    for (int64_t d = 0; d < head->map.size; d++)
        head->x[d] = key[d] + (shift ? shift[d] : 0.0);
}

static void load_head(exact_head *head, int64_t b, int64_t h)
{
    if (head->b == b && head->h == h)
        return;
    head->b = b;
    head->h = h;
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = 0; j < ref_key_limit(head->problem, b); j++) {
            load_key(head, r, j);
            ref_map_apply(&head->map, head->x, key_of(head, r, j));
        }
}

static const double *query_of(const exact_head *head, int64_t q)
{
    return head->problem->q + ref_query_index(desc_of(head), head->at, q);
}

/* phi(x) + s of feature n = q F + f, in a scale in which nothing overflows. */
static double scaled_query(const exact_head *head, int64_t n)
{
    const double x = head->query[n], base = fmax(x, 0.0);
    return head->map.shifted ? exp(x - base) + head->noise[n] * exp(-base) : x + head->noise[n];
}

/* Features of the row's part q. */
static void load_query(exact_head *head, int64_t q)
{
    const clmgk_ref_problem *const p = head->problem;
    const ref_form form = ref_form_of(&p->desc);
    const double mix = form.mixed ? ref_mix(p, head->h, q) : 1.0;
    const double weight = form.generalised ? ref_mix_weight(p, head->h, q) : 1.0;
    const int64_t first = q * head->map.features;
    ref_map_apply(&head->map, query_of(head, q), head->query + first);
    for (int64_t n = first; n < first + head->map.features; n++) {
        const double eps = ref_noise(p, head->h, &head->span, head->span.origin + n - first);
        head->noise[n] = form.noisy ? ref_deviation(p, q) * eps : 0.0;
        head->gate[n] = form.generalised && mix * scaled_query(head, n) <= 0.0 ? 0.0 : 1.0;
        head->slope[n] = weight * mix * head->gate[n];
        head->phi[n] = head->slope[n] * (head->query[n] + head->noise[n]);
    }
}

/* ---- terms of a row -------------------------------------------------------------------------------------------- */

/* Of maps with exponents, divided by e^scale: phi(x) phi(y), and phi(y) as it stands beside s. n: q F + f. */
static double along(const exact_head *head, int64_t n, double y)
{
    return exp(head->query[n] + y - head->scale);
}

static double beside(const exact_head *head, double y)
{
    return exp(y - head->scale);
}

/* Phi_n phi(y) */
static double term(const exact_head *head, int64_t n, double y)
{
    if (!head->map.shifted)
        return head->phi[n] * y;
    if (head->slope[n] == 0.0)
        return 0.0;
    return head->slope[n] * (along(head, n, y) + (head->noise[n] != 0.0 ? head->noise[n] * beside(head, y) : 0.0));
}

/* phi of the state: its scale's place among exponents. */
static double state_y(const exact_head *head)
{
    return head->map.shifted ? ref_state_scale(head->problem, head->b, head->h) : 1.0;
}

/* Raises the row's scale to the largest part of slope (e^x + s) e^more. */
static void raise_scale(exact_head *head, int64_t n, double more)
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

/* C's row and z's element of feature n = q F + f; NULL without a state. */
static const double *state_c(const exact_head *head, int64_t n)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t at = ref_state_c_index(&p->desc, head->b, head->h, n / head->map.features, n % head->map.features);
    return p->desc.use_state ? p->state_c + at : NULL;
}

static double state_z(const exact_head *head, int64_t n)
{
    const clmgk_ref_problem *const p = head->problem;
    return p->state_z[ref_state_z_index(&p->desc, head->b, head->h, n / head->map.features, n % head->map.features)];
}

/* No smaller than any number in C's row and z's element; NaN if one is. */
static double state_size(const exact_head *head, int64_t n)
{
    double sum = fabs(state_z(head, n));
    for (int64_t e = 0; e < desc_of(head)->value_size; e++)
        sum += fabs(state_c(head, n)[e]);
    return sum;
}

static void find_scale(exact_head *head)
{
    const clmgk_ref_problem *const p = head->problem;
    head->scale = log(fabs(p->desc.guard));
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = head->span.first; j < head->span.end; j++) {
            const double prior = log(fabs(ref_linear_prior(p, head->h, j, r)));
            for (int64_t f = 0; f < head->map.features; f++)
                raise_scale(head, ref_part_of(&p->desc, r) * head->map.features + f, key_of(head, r, j)[f] + prior);
        }
    for (int64_t n = 0; p->desc.use_state && n < head->queries * head->map.features; n++)
        raise_scale(head, n, state_y(head) + log(fabs(state_size(head, n))));
    if (!isfinite(head->scale))
        head->scale = 0.0;
}

/* What C's row and z's element of feature n are multiplied by. */
static double carried_term(const exact_head *head, int64_t n)
{
    return state_size(head, n) != 0.0 ? term(head, n, state_y(head)) : 0.0;
}

/* w_ijr: Phi_i . phi(k_jr) */
static double component(const exact_head *head, int64_t r, int64_t j)
{
    const int64_t first = ref_part_of(desc_of(head), r) * head->map.features;
    double sum = 0.0;
    for (int64_t f = 0; f < head->map.features; f++)
        sum += term(head, first + f, key_of(head, r, j)[f]);
    return sum;
}

/* w_ij */
static double weight(const exact_head *head, int64_t j)
{
    double sum = 0.0;
    for (int64_t r = 0; r < head->parts; r++) {
        const double prior = ref_linear_prior(head->problem, head->h, j, r);
        sum += prior != 0.0 ? prior * component(head, r, j) : 0.0;
    }
    return sum;
}

static const double *value_of(const exact_head *head, int64_t j)
{
    return head->problem->v + ref_value_index(desc_of(head), head->b, head->h, j);
}

/* x[E] += factor y[E] */
static void add_values(const exact_head *head, double factor, const double *y, double *x)
{
    for (int64_t e = 0; e < desc_of(head)->value_size; e++)
        x[e] += factor * y[e];
}

/* The row's weights and its denominator, both divided by e^scale. */
static void weigh_row(exact_head *head, ref_row at)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    load_head(head, at.b, at.h);
    head->at = at;
    head->span = ref_span_of(head->problem, at.b, at.i);
    head->den = head->scale = 0.0;
    if (head->span.absent)
        return;
    for (int64_t q = 0; q < head->queries; q++)
        load_query(head, q);
    if (head->map.shifted)
        find_scale(head);

    for (int64_t j = head->span.first; j < head->span.end; j++) {
        head->weight[j] = weight(head, j);
        head->den += head->weight[j];
    }
    for (int64_t n = 0; desc->use_state && n < head->queries * head->map.features; n++)
        head->den += carried_term(head, n) * state_z(head, n);
    head->den += desc->guard != 0.0 ? desc->guard * exp(-head->scale) : 0.0;
    if (!head->map.shifted && fabs(head->den) < (double)FLT_MIN)
        head->den = 0.0;
}

static void solve_row(exact_head *head, ref_row at)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    weigh_row(head, at);
    for (int64_t e = 0; e < desc->value_size; e++)
        head->o[e] = 0.0;
    if (head->span.absent)
        return;
    for (int64_t j = head->span.first; j < head->span.end; j++)
        add_values(head, head->weight[j], value_of(head, j), head->o);
    for (int64_t n = 0; desc->use_state && n < head->queries * head->map.features; n++)
        add_values(head, carried_term(head, n), state_c(head, n), head->o);
    for (int64_t e = 0; e < desc->value_size; e++)
        head->o[e] = head->den == 0.0 ? 0.0 : head->o[e] / head->den;
}

bool ref_linear_weights(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, double *weights)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    exact_head head;
    if (!open_head(problem, false, &head))
        return false;
    for (int64_t n = 0; n < rows; n++) {
        double *const a = weights + n * desc->length_k;
        weigh_row(&head, ref_row_of(desc, row[n]));
        for (int64_t j = 0; j < desc->length_k; j++) {
            const bool seen = !head.span.absent && j >= head.span.first && j < head.span.end;
            a[j] = seen && head.den != 0.0 ? head.weight[j] / head.den : 0.0;
        }
    }
    close_head(&head);
    return true;
}

bool ref_linear_row(const clmgk_ref_problem *problem, int64_t row, double *o)
{
    exact_head head;
    if (!open_head(problem, false, &head))
        return false;
    solve_row(&head, ref_row_of(&problem->desc, row));
    for (int64_t e = 0; e < problem->desc.value_size; e++)
        o[e] = head.o[e];
    close_head(&head);
    return true;
}

/* Of keys first .. end - 1, and the incoming state's m; -inf without keys. */
static double largest_exponent(const exact_head *head, int64_t first, int64_t end)
{
    const clmgk_ref_problem *const p = head->problem;
    const bool carried = ref_state_has_keys(p, head->b, head->h);
    double largest = carried ? ref_state_scale(p, head->b, head->h) : -(double)INFINITY;
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = first; j < end; j++)
            for (int64_t f = 0; ref_linear_prior(p, head->h, j, r) > 0.0 && f < head->map.features; f++)
                largest = fmax(largest, key_of(head, r, j)[f] + head->map.norm);
    return largest;
}

/* What kernels leave out of the exponents of a row: favor's |y|^2 / 2, the same for all features of one query. */
static double left_out(const exact_head *head)
{
    const double *const q = query_of(head, 0);
    double sum = 0.0;
    if (head->map.kind != CLMGK_FEATURE_FAVOR || ref_form_of(desc_of(head)).mixed || head->span.absent)
        return 0.0;
    for (int64_t d = 0; d < head->map.size; d++)
        sum += q[d] * q[d];
    return sum / (2.0 * sqrt((double)head->map.size));
}

static bool exact_rows(const clmgk_ref_problem *problem, const clmgk_ref_answer *answer)
{
    exact_head head;
    if (!open_head(problem, false, &head))
        return false;
    for (int64_t n = 0; n < answer->rows; n++) {
        solve_row(&head, ref_row_of(&problem->desc, answer->row[n]));
        for (int64_t e = 0; e < answer->value_size; e++)
            answer->o[n * answer->value_size + e] = head.o[e];
        answer->lse[n] = 0.0;
        answer->den[n] = head.den;
        answer->scale[n] = head.scale;
        answer->left_out[n] = left_out(&head);
    }
    close_head(&head);
    return true;
}

bool ref_linear_rows(const clmgk_ref_problem *problem, clmgk_ref_answer *answer)
{
    const int64_t count = answer->rows * answer->value_size;
    float *const plain = calloc((size_t)(count + answer->rows) + 1, sizeof(float)); /* + 1: NULL means failure only */
    bool ok = plain && exact_rows(problem, answer);
    for (int order = 0; ok && order < REF_ORDERS; order++) {
        ok = ref_plain_linear_rows(problem, (ref_order)order, answer, plain, plain + count);
        ref_observe(&answer->bound_o, count, answer->o, plain);
        ref_observe(&answer->bound_den, answer->rows, answer->den, plain + count);
    }
    answer->bound_o.scale = answer->bound_o.max_abs;
    free(plain);
    return ok;
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

static void give(const exact_head *head, clmgk_ref_gradient which, int64_t at, amount x, double factor)
{
    if (!head->values[which])
        return;
    head->values[which][at] += x.value * factor;
    head->floor[which][at] += x.size * fabs(factor);
}

static amount exactly(double x)
{
    return (amount){x, fabs(x)};
}

/* From the gradient of the map's outputs, times factor[F] (NULL: 1), to the gradient of its inputs x. */
static void give_inputs(const exact_head *head, clmgk_ref_gradient which, int64_t at, const double *x,
                        const amount *grad, const double *factor)
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
static void add_pair(const exact_head *head, int64_t n, double y, amount x)
{
    if (head->map.shifted)
        add_to(&head->along[n], x, along(head, n, y));
    if (!head->map.shifted || ref_form_of(desc_of(head)).noisy)
        add_to(&head->beside[n], x, head->map.shifted ? beside(head, y) : y);
}

/* x is the gradient of component r of w_ij. */
static void add_component(const exact_head *head, int64_t r, int64_t j, amount x)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t first = ref_part_of(desc, r) * head->map.features;
    const int64_t value = ref_value_index(desc, head->b, head->h, j);
    const double prior = ref_linear_prior(head->problem, head->h, j, r);
    const double *const y = key_of(head, r, j);
    amount *const grad_key = head->grad_key + (y - head->key);
    amount sum = {0}, weighted = {0};
    add_to(&weighted, x, prior);
    for (int64_t f = 0; f < head->map.features; f++) {
        const int64_t n = first + f;
        const double w_ijrf = term(head, n, y[f]);
        add_to(&sum, exactly(w_ijrf), 1.0);
        if (prior == 0.0)
            continue;
        add_pair(head, n, y[f], weighted);
        add_to(&grad_key[f], weighted, head->map.shifted ? w_ijrf : head->phi[n]);
    }
    give(head, CLMGK_REF_GRAD_PRIOR, ref_prior_index(desc, head->h, j, r),
         (amount){x.value * sum.value, x.size * sum.size}, 1.0);
    for (int64_t e = 0; prior != 0.0 && e < desc->value_size; e++)
        give(head, CLMGK_REF_GRAD_V, value + e, sum, prior * head->grad_o[e]);
}

/* x . dO_i / den_i + factor t, t = -dO_i . O_i / den_i */
static amount through_row(const exact_head *head, const double *x, double factor)
{
    double product = 0.0, t = 0.0;
    for (int64_t e = 0; e < desc_of(head)->value_size; e++) {
        product += x[e] * head->grad_o[e];
        t -= head->o[e] * head->grad_o[e];
    }
    return (amount){product + factor * t, fabs(product) + fabs(factor * t)};
}

static void add_keys(const exact_head *head)
{
    for (int64_t j = head->span.first; j < head->span.end; j++) {
        const amount x = through_row(head, value_of(head, j), 1.0);
        for (int64_t r = 0; r < head->parts; r++)
            add_component(head, r, j, x);
    }
}

/* What the row draws from feature n of the incoming state. */
static void add_state(const exact_head *head, int64_t n)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t q = n / head->map.features, f = n % head->map.features;
    const double y = state_y(head), phi = term(head, n, y);
    const amount x = through_row(head, state_c(head, n), state_z(head, n));
    if (x.size != 0.0)
        add_pair(head, n, y, x);
    for (int64_t e = 0; e < desc->value_size; e++)
        give(head, CLMGK_REF_GRAD_STATE_C, ref_state_c_index(desc, head->b, head->h, q, f) + e,
             exactly(head->grad_o[e]), phi);
    give(head, CLMGK_REF_GRAD_STATE_Z, ref_state_z_index(desc, head->b, head->h, q, f), through_row(head, head->o, 0.0),
         -phi); /* t */
}

/* dp, dw and dsigma of part q, from Phi = p (phi + sigma eps) or w relu(p (phi + sigma eps)). */
static void give_mixing(const exact_head *head, int64_t q)
{
    const clmgk_ref_problem *const p = head->problem;
    const ref_form form = ref_form_of(&p->desc);
    const double weight = form.generalised ? ref_mix_weight(p, head->h, q) : 1.0;
    for (int64_t f = 0; f < head->map.features; f++) {
        const int64_t n = q * head->map.features + f;
        const double eps = ref_noise(p, head->h, &head->span, head->span.origin + f);
        amount x = head->along[n];
        if (!head->map.shifted)
            add_to(&x, head->beside[n], head->query[n]);
        if (head->noise[n] != 0.0)
            add_to(&x, head->beside[n], head->noise[n]);
        give(head, CLMGK_REF_GRAD_MIX, ref_mix_index(&p->desc, head->h, q), x, weight * head->gate[n]);
        give(head, CLMGK_REF_GRAD_MIX_WEIGHT, ref_mix_weight_index(&p->desc, head->h, q), x,
             ref_mix(p, head->h, q) * head->gate[n]);
        if (form.noisy)
            give(head, CLMGK_REF_GRAD_NOISE, q, head->beside[n], head->slope[n] * eps);
    }
}

static void add_row(exact_head *head, ref_row at)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t count = head->queries * head->map.features;
    const double *const grad_o = ref_grad_o(p, at);
    solve_row(head, at);
    if (!grad_o || head->span.absent || head->den == 0.0)
        return;
    for (int64_t e = 0; e < p->desc.value_size; e++)
        head->grad_o[e] = grad_o[e] / head->den;
    for (int64_t n = 0; n < count; n++)
        head->along[n] = head->beside[n] = (amount){0};
    add_keys(head);
    for (int64_t n = 0; p->desc.use_state && n < count; n++)
        add_state(head, n);
    for (int64_t q = 0; q < head->queries; q++) {
        const int64_t first = q * head->map.features;
        give_inputs(head, CLMGK_REF_GRAD_Q, ref_query_index(&p->desc, at, q), query_of(head, q),
                    (head->map.shifted ? head->along : head->beside) + first, head->slope + first);
        if (ref_form_of(&p->desc).mixed)
            give_mixing(head, q);
    }
}

/* ---- the new state --------------------------------------------------------------------------------------------- */

/* m of the state after all keys. */
static double new_scale(const exact_head *head)
{
    const double largest = largest_exponent(head, 0, ref_key_limit(head->problem, head->b));
    return head->map.shifted && isfinite(largest) ? largest : 0.0;
}

/* Calls `add` for all features of all keys: pi_r(j) phi(k_jr) = pi unit. */
typedef struct state_term {
    int64_t j, r, f;
    double prior;
    double unit; /* phi_f(k_jr) e^-m */
} state_term;

static void for_state_terms(const exact_head *head, double scale, void *to,
                            void (*add)(const exact_head *head, const state_term *x, void *to))
{
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = 0; j < ref_key_limit(head->problem, head->b); j++)
            for (int64_t f = 0; f < head->map.features; f++) {
                const double y = key_of(head, r, j)[f];
                const state_term x = {j, r, f, ref_linear_prior(head->problem, head->h, j, r),
                                      head->map.shifted ? exp(y - scale) : y};
                add(head, &x, to);
            }
}

static void add_to_state(const exact_head *head, const state_term *x, void *to)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    double *const *const values = to;
    const int64_t q = ref_part_of(desc, x->r);
    if (x->prior == 0.0 || !values[CLMGK_REF_STATE_C])
        return;
    add_values(head, x->prior * x->unit, value_of(head, x->j),
               values[CLMGK_REF_STATE_C] + ref_state_c_index(desc, head->b, head->h, q, x->f));
    if (ref_has_z(desc, head->h))
        values[CLMGK_REF_STATE_Z][ref_state_z_index(desc, head->b, head->h, q, x->f)] += x->prior * x->unit;
}

bool ref_linear_state(const clmgk_ref_problem *problem, double *const values[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    exact_head head;
    if (!open_head(problem, false, &head))
        return false;
    for (int64_t bh = 0; bh < desc->batch * desc->heads; bh++) {
        load_head(&head, bh / desc->heads, bh % desc->heads);
        const double scale = new_scale(&head);
        const double carried =
            ref_state_has_keys(problem, head.b, head.h) ? exp(ref_state_scale(problem, head.b, head.h) - scale) : 0.0;
        values[CLMGK_REF_STATE_M][ref_state_m_index(desc, head.b, head.h)] = scale;
        for (int64_t n = 0; values[CLMGK_REF_STATE_C] && desc->use_state && n < head.queries * desc->features; n++) {
            const int64_t q = n / desc->features, f = n % desc->features;
            add_values(&head, carried, state_c(&head, n),
                       values[CLMGK_REF_STATE_C] + ref_state_c_index(desc, head.b, head.h, q, f));
            if (ref_has_z(desc, head.h))
                values[CLMGK_REF_STATE_Z][ref_state_z_index(desc, head.b, head.h, q, f)] += carried * state_z(&head, n);
        }
        for_state_terms(&head, scale, (void *)values, add_to_state);
    }
    close_head(&head);
    return true;
}

/* dz of feature n = q F + f, where this head passes it on; dC's row. */
static double grad_new_z(const exact_head *head, int64_t q, int64_t f)
{
    const clmgk_ref_problem *const p = head->problem;
    const bool given = p->grad_new_state_z && ref_has_z(&p->desc, head->h);
    return given ? p->grad_new_state_z[ref_state_z_index(&p->desc, head->b, head->h, q, f)] : 0.0;
}

static double grad_new_c(const exact_head *head, int64_t q, int64_t f, int64_t e)
{
    const clmgk_ref_problem *const p = head->problem;
    return p->grad_new_state_c ? p->grad_new_state_c[ref_state_c_index(&p->desc, head->b, head->h, q, f) + e] : 0.0;
}

static void add_from_new_state(const exact_head *head, const state_term *x, void *to)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const int64_t q = ref_part_of(desc, x->r);
    const int64_t value = ref_value_index(desc, head->b, head->h, x->j);
    amount sum = exactly(grad_new_z(head, q, x->f));
    (void)to;
    for (int64_t e = 0; e < desc->value_size; e++)
        add_to(&sum, exactly(grad_new_c(head, q, x->f, e)), value_of(head, x->j)[e]);
    give(head, CLMGK_REF_GRAD_PRIOR, ref_prior_index(desc, head->h, x->j, x->r), sum, x->unit);
    if (x->prior == 0.0)
        return;
    add_to(&head->grad_key[(key_of(head, x->r, x->j) - head->key) + x->f], sum,
           x->prior * (head->map.shifted ? x->unit : 1.0));
    for (int64_t e = 0; e < desc->value_size; e++)
        give(head, CLMGK_REF_GRAD_V, value + e, exactly(grad_new_c(head, q, x->f, e)), x->prior * x->unit);
}

static void add_new_state(const exact_head *head)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    const double scale = new_scale(head);
    const double carried = exp(ref_state_scale(head->problem, head->b, head->h) - scale);
    for_state_terms(head, scale, NULL, add_from_new_state);
    for (int64_t n = 0; desc->use_state && n < head->queries * desc->features; n++) {
        const int64_t q = n / desc->features, f = n % desc->features;
        for (int64_t e = 0; e < desc->value_size; e++)
            give(head, CLMGK_REF_GRAD_STATE_C, ref_state_c_index(desc, head->b, head->h, q, f) + e,
                 exactly(grad_new_c(head, q, f, e)), carried);
        give(head, CLMGK_REF_GRAD_STATE_Z, ref_state_z_index(desc, head->b, head->h, q, f),
             exactly(grad_new_z(head, q, f)), carried);
    }
}

/* ---- a whole problem ------------------------------------------------------------------------------------------- */

static void give_keys(exact_head *head)
{
    const clmgk_attention_desc *const desc = desc_of(head);
    for (int64_t r = 0; r < head->parts; r++)
        for (int64_t j = 0; j < ref_key_limit(head->problem, head->b); j++) {
            const amount *const grad = head->grad_key + (key_of(head, r, j) - head->key);
            load_key(head, r, j);
            give_inputs(head, CLMGK_REF_GRAD_K, ref_key_index(desc, head->b, head->h, j, r), head->x, grad, NULL);
            give_inputs(head, CLMGK_REF_GRAD_SHIFT, ref_shift_index(desc, head->h, r), head->x, grad, NULL);
        }
}

bool ref_linear_gradients(const clmgk_ref_problem *problem, double *const values[], double *const floor[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    exact_head head;
    if (!open_head(problem, true, &head))
        return false;
    head.values = values;
    head.floor = floor;
    for (int64_t bh = 0; bh < desc->batch * desc->heads; bh++) {
        load_head(&head, bh / desc->heads, bh % desc->heads);
        for (int64_t n = 0; n < head.parts * desc->length_k * desc->features; n++)
            head.grad_key[n] = (amount){0};
        for (int64_t i = 0; i < desc->length; i++)
            add_row(&head, (ref_row){head.b, head.h, i});
        if (desc->use_new_state)
            add_new_state(&head);
        give_keys(&head);
    }
    close_head(&head);
    return true;
}

static int64_t count(const clmgk_attention_desc *d, clmgk_ref_gradient which)
{
    const ref_form form = ref_form_of(d);
    switch (which) {
    case CLMGK_REF_GRAD_STATE_C:
        return d->use_state ? d->batch * d->heads * ref_queries(d) * d->features * d->value_size : 0;
    case CLMGK_REF_GRAD_STATE_Z:
        return d->use_state ? ref_state_z_count(d) : 0;
    case CLMGK_REF_GRAD_VARIANCE:
    case CLMGK_REF_GRAD_MIX_OFFSET:
        return 0;
    default:
        return (form.mixed ? &ref_admixture : &ref_mixture)->count(d, which);
    }
}

const ref_family ref_linear = {NULL, NULL, count};
