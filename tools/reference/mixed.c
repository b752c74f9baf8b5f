/* SPDX-License-Identifier: Apache-2.0 */
/* Mixing after the softmax, by the problem of the heads before it. */
#include "reference/mixed.h"

#include "reference/arrays.h"
#include "reference/families.h"

#include <stdlib.h>

/* m_ha */
static double mix_of(const clmgk_ref_problem *p, int64_t h, int64_t a)
{
    return p->mix_after[h * p->desc.mix_after_heads + a];
}

/* ---- the problem of the heads before it -------------------------------------------------------------------------- */

static void fill_values(const clmgk_ref_problem *p, double *values)
{
    const clmgk_attention_desc *const d = &p->desc;
    for (int64_t b = 0; p->v && b < d->batch; b++)
        for (int64_t j = 0; j < d->length_k; j++)
            for (int64_t h = 0; h < d->heads; h++)
                for (int64_t e = 0; e < d->value_size; e++)
                    *values++ = p->v[ref_value_index(d, b, h, j) + e];
}

static void fill_grad_o(const clmgk_ref_problem *p, double *grad_o)
{
    const clmgk_attention_desc *const d = &p->desc;
    for (int64_t n = 0; p->grad_o && n < d->batch * d->mix_after_heads * d->length; n++)
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t head = n / d->length, a = head % d->mix_after_heads;
            const ref_row at = {head / d->mix_after_heads, h, n % d->length};
            for (int64_t e = 0; e < d->value_size; e++)
                *grad_o++ = mix_of(p, h, a) * ref_grad_o(p, at)[e];
        }
}

clmgk_ref_problem ref_mixed_heads(const clmgk_ref_problem *problem)
{
    clmgk_ref_problem heads = *problem;
    heads.desc.heads = problem->desc.mix_after_heads;
    heads.desc.mix_after_heads = 0;
    heads.desc.kv_heads = 1;
    heads.v = heads.grad_o = NULL;
    return heads;
}

/* Sets its values and dO; returns the memory that they are in, NULL if there is none. */
static double *add_values(const clmgk_ref_problem *problem, clmgk_ref_problem *heads)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const int64_t width = d->heads * d->value_size;
    const size_t values = (size_t)(d->batch * d->length_k * width);
    const size_t rows = (size_t)(d->batch * d->mix_after_heads * d->length * width);
    double *const memory = calloc(values + rows + 1, sizeof(double)); /* + 1: NULL means failure only */
    heads->desc.value_size = width;
    if (!memory)
        return NULL;
    fill_values(problem, memory);
    fill_grad_o(problem, memory + values);
    heads->v = problem->v ? memory : NULL;
    heads->grad_o = problem->grad_o ? memory + values : NULL;
    return memory;
}

bool ref_mixed_create(const clmgk_ref_problem *problem, ref_mixed *m)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const ref_family *const family = ref_family_of(d->variant);
    const size_t width = (size_t)(d->mix_after_heads * d->heads * d->value_size);
    *m = (ref_mixed){
        .problem = problem, .heads = ref_mixed_heads(problem), .at = {-1, -1, -1}, .plain_at = {-1, -1, -1}};
    m->memory = add_values(problem, &m->heads);
    m->o = calloc(2 * width + 1, sizeof(double));
    m->plain_o = calloc(width + 1, sizeof(float));
    bool ok = m->memory && m->o && m->plain_o && exact_row_create(&m->heads, family->exact, &m->exact);
    ok = ok && ref_plain_create(&m->heads, family->plain, &m->plain);
    m->size = ok ? m->o + width : NULL;
    if (!ok)
        ref_mixed_free(m);
    return ok;
}

void ref_mixed_free(ref_mixed *m)
{
    ref_plain_free(&m->plain);
    exact_row_free(&m->exact);
    free(m->memory);
    free(m->o);
    free(m->plain_o);
    *m = (ref_mixed){0};
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The sums of the absolute values of the terms of O'; of a lost row the largest that rounding may lead to. */
static void fill_sizes(const exact_row *row, double *size)
{
    const clmgk_ref_problem *const p = row->problem;
    for (int64_t e = 0; e < p->desc.value_size; e++)
        size[e] = 0.0;
    for (int64_t j = row->span.first; j < row->span.end && row->lse != -(double)INFINITY; j++) {
        if (!row->visible[j])
            continue;
        const double *const value = p->v + ref_value_index(&p->desc, row->at.b, row->at.h, j);
        const double weight =
            row->lost ? exact_key_reach(row, j) * ref_kept(p, row->at.h, &row->span, j) : exact_value_weight(row, j);
        for (int64_t e = 0; e < p->desc.value_size; e++)
            size[e] += weight * fabs(value[e]);
    }
}

/* Row i of head a before the mixing. */
static void solve_head(ref_mixed *m, ref_row at, int64_t a)
{
    const int64_t width = m->heads.desc.value_size;
    exact_row_solve(&m->exact, (ref_row){at.b, a, at.i});
    exact_row_output(&m->exact, m->o + a * width);
    fill_sizes(&m->exact, m->size + a * width);
}

/* O of the row from O' of all heads before the mixing. */
static void mix_outputs(const ref_mixed *m, ref_row at, double *o)
{
    const clmgk_attention_desc *const d = &m->problem->desc;
    for (int64_t e = 0; e < d->value_size; e++) {
        o[e] = 0.0;
        for (int64_t a = 0; a < d->mix_after_heads; a++)
            o[e] += mix_of(m->problem, at.h, a) * m->o[(a * d->heads + at.h) * d->value_size + e];
    }
}

void ref_mixed_output(ref_mixed *m, ref_row at, double *o)
{
    const bool same = m->at.b == at.b && m->at.i == at.i;
    m->lost = same && m->lost;
    for (int64_t a = 0; !same && a < m->heads.desc.heads; a++) {
        solve_head(m, at, a);
        m->lost = m->lost || m->exact.lost;
    }
    m->at = at;
    mix_outputs(m, at, o);
}

void ref_mixed_plain(ref_mixed *m, ref_row at, ref_way way, float *o)
{
    const clmgk_attention_desc *const d = &m->problem->desc;
    const int64_t width = m->heads.desc.value_size;
    const bool same = m->plain_at.b == at.b && m->plain_at.i == at.i && m->way.order == way.order;
    for (int64_t a = 0; !same && a < d->mix_after_heads; a++) {
        ref_plain_solve(&m->plain, (ref_row){at.b, a, at.i}, way);
        for (int64_t e = 0; e < width; e++)
            m->plain_o[a * width + e] = m->plain.o[e];
    }
    m->plain_at = at;
    m->way = way;
    for (int64_t e = 0; e < d->value_size; e++) {
        float sum = 0.0F;
        for (int64_t a = 0; a < d->mix_after_heads; a++)
            sum += (float)mix_of(m->problem, at.h, a) * m->plain_o[(a * d->heads + at.h) * d->value_size + e];
        o[e] = clmgk_ref_rounded(clmgk_ref_type_of(d, CLMGK_ARRAY_O), sum);
    }
}

void ref_mixed_weights(ref_mixed *m, ref_row at, double *weights)
{
    const clmgk_attention_desc *const d = &m->problem->desc;
    const exact_row *const row = &m->exact;
    for (int64_t j = 0; j < d->length_k; j++)
        weights[j] = 0.0;
    for (int64_t a = 0; a < d->mix_after_heads; a++) {
        exact_row_solve(&m->exact, (ref_row){at.b, a, at.i});
        for (int64_t j = row->span.first; j < row->span.end && row->lse != -(double)INFINITY; j++)
            if (row->visible[j])
                weights[j] += mix_of(m->problem, at.h, a) * exact_value_weight(row, j);
    }
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* x y, 0 if x is 0, although y may be infinite. */
static double product_of(double x, double y)
{
    return x == 0.0 ? 0.0 : x * y;
}

/* What O' of a head that is not lost may be off by: c max|O'| of the values that the row reads. */
static double rounding_of(const clmgk_attention_desc *d, const double *o)
{
    const ref_tolerance outputs = ref_tolerance_of_outputs(clmgk_ref_type_of(d, CLMGK_ARRAY_O));
    double most = 0.0;
    for (int64_t e = 0; e < d->value_size; e++)
        most = isfinite(o[e]) ? fmax(most, fabs(o[e])) : most;
    return ref_tolerance_of_products(outputs, d->precision, 1.0).part * most;
}

/* Adds head a, whose row was solved last, to the range of O of row n of the answer. */
static void add_range(ref_mixed *m, ref_row at, int64_t a, double *room, clmgk_ref_answer *answer, int64_t n)
{
    const clmgk_attention_desc *const d = &m->problem->desc;
    const int64_t width = m->heads.desc.value_size, size = d->value_size, first = at.h * size;
    const double *const o = m->o + a * width;
    const double mix = mix_of(m->problem, at.h, a);
    double *const low = room, *const high = room + width;
    const double rounding = rounding_of(d, o + first);
    for (int64_t e = 0; e < width; e++) {
        low[e] = o[e] - rounding;
        high[e] = o[e] + rounding;
    }
    if (m->exact.lost)
        ref_fill_range(&m->exact, o, low, high, &answer->lost[n].may_be_zero);
    for (int64_t e = 0; e < size; e++) {
        const double one = product_of(mix, low[first + e]), other = product_of(mix, high[first + e]);
        answer->low[n * size + e] += fmin(one, other);
        answer->high[n * size + e] += fmax(one, other);
    }
}

/* A lost row: the mixture of the ranges of the heads before it, of which some are lost. */
static void fill_range(ref_mixed *m, ref_row at, double *room, clmgk_ref_answer *answer, int64_t n)
{
    const int64_t size = answer->value_size;
    for (int64_t e = 0; e < size; e++)
        answer->low[n * size + e] = answer->high[n * size + e] = 0.0;
    for (int64_t a = 0; a < m->heads.desc.heads; a++) {
        solve_head(m, at, a);
        add_range(m, at, a, room, answer, n);
    }
    answer->lost[n].may_be_zero = true; /* averages of opposite signs */
}

/* The largest sum of the absolute values of the terms of an element of O. */
static double output_size(const ref_mixed *m, ref_row at)
{
    const clmgk_attention_desc *const d = &m->problem->desc;
    double largest = 0.0;
    for (int64_t e = 0; e < d->value_size; e++) {
        double sum = 0.0;
        for (int64_t a = 0; a < d->mix_after_heads; a++)
            sum += fabs(mix_of(m->problem, at.h, a)) * m->size[(a * d->heads + at.h) * d->value_size + e];
        largest = fmax(largest, sum);
    }
    return largest;
}

static void solve_row(ref_mixed *m, clmgk_ref_answer *answer, int64_t n, double *room, float *plain)
{
    const int64_t size = answer->value_size;
    const ref_row at = ref_row_of(&m->problem->desc, answer->row[n]);
    ref_mixed_output(m, at, answer->o + n * size);
    answer->lost[n].is = m->lost;
    if (answer->lost[n].is) {
        fill_range(m, at, room, answer, n);
        return;
    }
    answer->bound_o.scale = fmax(answer->bound_o.scale, output_size(m, at));
    ref_way way;
    for (int number = 0; ref_way_of(&m->problem->desc, number, &way); number++) {
        ref_mixed_plain(m, at, way, plain);
        ref_observe(&answer->bound_o, size, answer->o + n * size, plain);
    }
}

bool ref_mixed_rows(const clmgk_ref_problem *problem, bool all, clmgk_ref_answer *answer)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const int64_t lists = d->batch * d->length, heads = d->heads;
    ref_mixed m;
    if (!ref_mixed_create(problem, &m))
        return false;
    double *const room = calloc((size_t)(2 * m.heads.desc.value_size) + 1, sizeof(double));
    float *const plain = calloc((size_t)d->value_size + 1, sizeof(float));
    const bool ok = room && plain;
    for (int64_t n = 0; ok && !all && n < answer->rows; n++)
        solve_row(&m, answer, n, room, plain);
    for (int64_t n = 0; ok && all && n < lists * heads; n++) /* the heads of a row one after the other */
        solve_row(&m, answer, (n / heads / d->length * heads + n % heads) * d->length + n / heads % d->length, room,
                  plain);
    free(room);
    free(plain);
    ref_mixed_free(&m);
    return ok;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Index of element (b,j,h,e) of dV' in dV. */
static int64_t folded_index(const clmgk_attention_desc *d, int64_t n)
{
    const int64_t e = n % d->value_size, h = n / d->value_size % d->heads, j = n / d->value_size / d->heads;
    return ref_value_index(d, j / d->length_k, h, j % d->length_k) + e;
}

static int64_t wide_count(const clmgk_attention_desc *d)
{
    return d->batch * d->length_k * d->heads * d->value_size;
}

/* Row i of head a: its part in dm, or (floor) in the sums of the absolute values of dm's terms. */
static void add_mixing(const ref_mixed *m, ref_row at, int64_t a, const exact_sums *sums)
{
    const clmgk_ref_problem *const p = m->problem;
    const clmgk_attention_desc *const d = &p->desc;
    const bool lost = m->exact.lost && sums->lost;
    const double weight = lost ? 0x1p23 : 1.0 + (d->use_lse_low ? 0.0 : fabs(m->exact.lse));
    for (int64_t h = 0; h < d->heads; h++) {
        const double *const grad_o = ref_grad_o(p, (ref_row){at.b, h, at.i});
        const int64_t n = h * d->mix_after_heads + a, first = (a * d->heads + h) * d->value_size;
        for (int64_t e = 0; grad_o && e < d->value_size; e++) {
            const double size = fabs(grad_o[e]) * m->size[first + e];
            sums->values[CLMGK_REF_GRAD_MIX_AFTER][n] += grad_o[e] * m->o[first + e];
            sums->floor[CLMGK_REF_GRAD_MIX_AFTER][n] += weight * size;
            if (sums->size && !lost)
                sums->size[CLMGK_REF_GRAD_MIX_AFTER][n] += size;
        }
    }
}

static void add_mixings(ref_mixed *m, const exact_sums *sums)
{
    const clmgk_attention_desc *const d = &m->heads.desc;
    for (int64_t n = 0; n < d->batch * d->heads * d->length; n++) {
        const ref_row at = ref_row_of(d, n);
        solve_head(m, at, at.h);
        if (m->exact.lse != -(double)INFINITY && (!m->exact.lost || !sums->lost || sums->with_lost))
            add_mixing(m, at, at.h, sums);
    }
}

/* The gradients of the heads before the mixing, with room [3, B S H E] for dV'. */
static bool exact_heads(ref_mixed *m, const exact_scores *scores, const exact_sums *sums, double *room)
{
    const clmgk_attention_desc *const d = &m->problem->desc;
    const int64_t count = wide_count(d);
    double *lists[3][CLMGK_REF_GRADIENTS];
    double *const *const given[] = {sums->values, sums->floor, sums->size};
    const int kinds = sums->size ? 3 : 2;
    for (int kind = 0; kind < kinds; kind++)
        for (int which = 0; which < CLMGK_REF_GRADIENTS; which++)
            lists[kind][which] =
                which == CLMGK_REF_GRAD_V && given[kind][which] ? room + kind * count : given[kind][which];
    const exact_sums own = {lists[0], lists[1], sums->size ? lists[2] : NULL, sums->lost, sums->with_lost};
    if (!exact_gradients(&m->heads, scores, &own))
        return false;
    for (int kind = 0; kind < kinds; kind++)
        for (int64_t n = 0; given[kind][CLMGK_REF_GRAD_V] && n < count; n++)
            given[kind][CLMGK_REF_GRAD_V][folded_index(d, n)] += room[kind * count + n];
    return true;
}

bool ref_mixed_gradients(const clmgk_ref_problem *problem, const exact_scores *scores, const exact_sums *sums)
{
    ref_mixed m;
    double *const room = calloc((size_t)(3 * wide_count(&problem->desc)) + 1, sizeof(double));
    bool ok = room != NULL;
    if (ok && ref_mixed_create(problem, &m)) {
        ok = exact_heads(&m, scores, sums, room);
        if (sums->values[CLMGK_REF_GRAD_MIX_AFTER])
            add_mixings(&m, sums);
        ref_mixed_free(&m);
    } else {
        ok = false;
    }
    free(room);
    return ok;
}

/* dm_ha of a batch: the sum over rows of dO_h . O'_a. `rows`: [H,N]. */
static void plain_mixing(ref_mixed *m, int64_t b, int64_t a, ref_way way, const bool *lost, float *rows, float *grad)
{
    const clmgk_ref_problem *const p = m->problem;
    const clmgk_attention_desc *const d = &p->desc;
    for (int64_t i = 0; i < d->length; i++) {
        const ref_row before = {b, a, i};
        ref_plain_solve(&m->plain, before, way);
        const bool used = m->plain.lse != -INFINITY && !(lost && lost[ref_row_number(&m->heads.desc, before)]);
        for (int64_t h = 0; h < d->heads; h++) {
            const double *const grad_o = used ? ref_grad_o(p, (ref_row){b, h, i}) : NULL;
            float sum = 0.0F;
            for (int64_t e = 0; grad_o && e < d->value_size; e++)
                sum += (float)grad_o[e] * m->plain.o[h * d->value_size + e];
            rows[h * d->length + i] = sum;
        }
    }
    for (int64_t h = 0; h < d->heads; h++)
        grad[h * d->mix_after_heads + a] += ref_sum_of(d->length, rows + h * d->length, way.order);
}

/* The plain formula's gradients of the heads before the mixing, with room [B S H E] for dV'. */
static bool plain_heads(const ref_mixed *m, const plain_scores *scores, ref_way way, const bool *lost,
                        float *const values[], float *room)
{
    const clmgk_attention_desc *const d = &m->problem->desc;
    float *list[CLMGK_REF_GRADIENTS];
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++)
        list[which] = which == CLMGK_REF_GRAD_V && values[which] ? room : values[which];
    if (!plain_gradients(&m->heads, scores, way, lost, list))
        return false;
    for (int64_t n = 0; values[CLMGK_REF_GRAD_V] && n < wide_count(d); n++)
        values[CLMGK_REF_GRAD_V][folded_index(d, n)] += room[n];
    return true;
}

bool ref_mixed_plain_gradients(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way,
                               const bool *lost, float *const values[])
{
    const clmgk_attention_desc *const d = &problem->desc;
    float *const grad = values[CLMGK_REF_GRAD_MIX_AFTER];
    ref_mixed m;
    float *const room = calloc((size_t)(wide_count(d) + d->heads * d->length) + 1, sizeof(float));
    if (!room || !ref_mixed_create(problem, &m)) {
        free(room);
        return false;
    }
    const bool ok = plain_heads(&m, scores, way, lost, values, room);
    for (int64_t n = 0; grad && n < d->batch * d->mix_after_heads; n++)
        plain_mixing(&m, n / d->mix_after_heads, n % d->mix_after_heads, way, lost, room + wide_count(d), grad);
    ref_mixed_free(&m);
    free(room);
    return ok;
}

bool ref_mixed_may_leave(const clmgk_ref_problem *problem, bool *may)
{
    clmgk_ref_problem heads = ref_mixed_heads(problem);
    double *const memory = add_values(problem, &heads);
    *may = memory && ref_gradients_may_leave(&heads);
    free(memory);
    return memory != NULL;
}
