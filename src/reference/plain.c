/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/plain.h"

#include <stdlib.h>

/* Partial sums of the blocked order: as many as a wide vector has lanes. */
#define LANES 16

struct ref_plain {
    const clmgk_ref_problem *problem;
    float *query;   /* [D]: q_i */
    float *key;     /* [D]: k_jr, the shift added */
    float *terms;   /* [D + S]: what is summed */
    float *scores;  /* [M,S]: s_ijr, then exp(s_ijr - maximum) */
    float *weights; /* [S]: a_ij */
};

ref_plain *ref_plain_new(const clmgk_ref_problem *problem)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t size = (size_t)desc->head_size;
    const size_t keys = (size_t)desc->length_k;
    const size_t floats = 3 * size + (size_t)(desc->components + 2) * keys;
    ref_plain *const plain = malloc(sizeof(*plain));
    float *const memory = malloc(floats * sizeof(float));
    if (!plain || !memory) {
        free(plain);
        free(memory);
        return NULL;
    }
    plain->problem = problem;
    plain->query = memory;
    plain->key = memory + size;
    plain->terms = memory + 2 * size;
    plain->scores = plain->terms + size + keys;
    plain->weights = plain->scores + (size_t)desc->components * keys;
    return plain;
}

void ref_plain_free(ref_plain *plain)
{
    if (!plain)
        return;
    free(plain->query);
    free(plain);
}

static float sum_blocked(const float *terms, int64_t count)
{
    float lanes[LANES] = {0};
    for (int64_t n = 0; n < count; n++)
        lanes[n % LANES] += terms[n];
    for (int64_t half = LANES / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

static float sum(const float *terms, int64_t count, ref_order order)
{
    float total = 0.0F;
    if (order == REF_ORDER_BLOCKED)
        return sum_blocked(terms, count);
    for (int64_t n = 0; n < count; n++)
        total += terms[order == REF_ORDER_FORWARD ? n : count - 1 - n];
    return total;
}

/* sum_d x_d y_d */
static float product(ref_plain *plain, const float *x, const float *y, ref_order order)
{
    const int64_t size = plain->problem->desc.head_size;
    for (int64_t d = 0; d < size; d++)
        plain->terms[d] = x[d] * y[d];
    return sum(plain->terms, size, order);
}

/* |q - k|^2 */
static float squared_distance(ref_plain *plain, ref_order order, ref_distance distance)
{
    const int64_t size = plain->problem->desc.head_size;
    if (distance == REF_DISTANCE_EXPANDED)
        return product(plain, plain->query, plain->query, order) -
               2.0F * product(plain, plain->query, plain->key, order) + product(plain, plain->key, plain->key, order);
    for (int64_t d = 0; d < size; d++) {
        const float difference = plain->query[d] - plain->key[d];
        plain->terms[d] = difference * difference;
    }
    return sum(plain->terms, size, order);
}

static void load_key(ref_plain *plain, ref_row row, int64_t j, int64_t r)
{
    const clmgk_ref_problem *const p = plain->problem;
    const double *const key = ref_key(p, row.b, row.h, j, r);
    const double *const shift = ref_shift(p, row.h, r);
    for (int64_t d = 0; d < p->desc.head_size; d++)
        plain->key[d] = (float)key[d] + (shift ? (float)shift[d] : 0.0F);
}

/* s_ijr, without log pi_r(j) in the hard E-step. */
static float log_weight(ref_plain *plain, ref_row row, int64_t j, int64_t r, ref_order order, ref_distance distance)
{
    const clmgk_ref_problem *const p = plain->problem;
    const float variance = (float)ref_variance(p, row.h, r);
    load_key(plain, row, j, r);
    const float score = p->desc.score == CLMGK_SCORE_DOT
                            ? product(plain, plain->query, plain->key, order) / variance
                            : -squared_distance(plain, order, distance) / (2.0F * variance);
    return p->desc.estep == CLMGK_ESTEP_HARD ? score : logf((float)ref_prior(p, row.h, j, r)) + score;
}

/* All s_ijr of the row; returns their maximum, 0 where there is none that is finite. */
static float fill_scores(ref_plain *plain, ref_row row, int64_t keys, ref_order order, ref_distance distance)
{
    float largest = -INFINITY;
    for (int64_t r = 0; r < plain->problem->desc.components; r++) {
        for (int64_t j = 0; j < keys; j++) {
            const float s = log_weight(plain, row, j, r, order, distance);
            plain->scores[r * keys + j] = s;
            largest = s > largest ? s : largest;
        }
    }
    return isfinite(largest) ? largest : 0.0F;
}

/* exp(w_ij - largest) of every key: the sum over the components, or the largest of them. */
static void fill_weights(ref_plain *plain, int64_t keys, float largest)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    for (int64_t j = 0; j < keys; j++) {
        plain->weights[j] = 0.0F;
        for (int64_t r = 0; r < desc->components; r++) {
            const float p_ijr = expf(plain->scores[r * keys + j] - largest);
            if (desc->estep == CLMGK_ESTEP_SOFT)
                plain->weights[j] += p_ijr;
            else if (p_ijr > plain->weights[j])
                plain->weights[j] = p_ijr;
        }
    }
}

static float rounded(clmgk_dtype dtype, float value)
{
    if (dtype == CLMGK_DTYPE_F16)
        return clmgk_ref_f16_to_f32(clmgk_ref_f32_to_f16(value));
    if (dtype == CLMGK_DTYPE_BF16)
        return clmgk_ref_bf16_to_f32(clmgk_ref_f32_to_bf16(value));
    return value;
}

void ref_plain_row(ref_plain *plain, ref_row row, ref_order order, ref_distance distance, double *o, double *lse)
{
    const clmgk_ref_problem *const p = plain->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const int64_t keys = clmgk_ref_visible_keys(p, row.b, row.i);
    const double *const query = ref_query(p, row.b, row.h, row.i);
    for (int64_t d = 0; d < desc->head_size; d++)
        plain->query[d] = (float)query[d];

    const float largest = fill_scores(plain, row, keys, order, distance);
    fill_weights(plain, keys, largest);
    const float total = sum(plain->weights, keys, order);
    *lse = largest + logf(total);
    for (int64_t j = 0; j < keys; j++)
        plain->weights[j] = total > 0.0F ? rounded(desc->dtype, plain->weights[j] / total) : 0.0F;
    for (int64_t e = 0; e < desc->value_size; e++) {
        for (int64_t j = 0; j < keys; j++)
            plain->terms[j] = plain->weights[j] * (float)ref_value(p, row.b, row.h, j)[e];
        o[e] = rounded(desc->dtype, sum(plain->terms, keys, order));
    }
}
