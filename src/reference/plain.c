/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/plain.h"

#include <stdlib.h>

bool ref_way_of(const clmgk_attention_desc *desc, int number, ref_way *way)
{
    const int distances = desc->score == CLMGK_SCORE_GAUSSIAN ? REF_DISTANCES : REF_DISTANCE_DIRECT + 1;
    way->order = (ref_order)(number % REF_ORDERS);
    way->distance = (ref_distance)(number / REF_ORDERS);
    return number < REF_ORDERS * distances;
}

bool ref_plain_create(const clmgk_ref_problem *problem, ref_plain *plain)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t size = (size_t)desc->head_size;
    const size_t keys = (size_t)desc->length_k;
    const size_t scores = (size_t)desc->components * keys;
    const size_t values = (size_t)desc->value_size;
    *plain = (ref_plain){.problem = problem, .at = {-1, -1, -1}};
    plain->memory = malloc((size + 4 * scores + 2 * keys + 1 + values + (size + REF_ORDERS) * scores + keys * values) *
                           sizeof(float));
    if (!plain->memory)
        return false;
    plain->query = plain->memory;
    plain->score = plain->query + size;
    plain->weight = plain->score + scores;
    plain->log_term = plain->weight + scores;
    plain->p = plain->log_term + scores;
    plain->a = plain->p + scores;
    plain->kept = plain->a + keys + 1; /* + 1: a sink's share joins the keys' */
    plain->o = plain->kept + keys;
    plain->keys = plain->o + values;
    plain->norms = plain->keys + size * scores;
    plain->values = plain->norms + REF_ORDERS * scores;
    return true;
}

void ref_plain_free(ref_plain *plain)
{
    free(plain->memory);
    *plain = (ref_plain){0};
}

float ref_rounded(clmgk_dtype dtype, float value)
{
    if (dtype == CLMGK_DTYPE_F16)
        return clmgk_ref_f16_to_f32(clmgk_ref_f32_to_f16(value));
    if (dtype == CLMGK_DTYPE_BF16)
        return clmgk_ref_bf16_to_f32(clmgk_ref_f32_to_bf16(value));
    return value;
}

/* ---- keys and values of a head -------------------------------------------------------------------------------- */

void ref_plain_load_key(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t j, int64_t r, int64_t step,
                        float *key)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const double *const source = problem->k + ref_key_index(desc, b, h, j, r);
    const double *const shift = ref_shift(problem, h, r);
    const bool used = j < ref_key_limit(problem, b);
    for (int64_t d = 0; d < desc->head_size; d++)
        key[d * step] = used ? (float)source[d] + (shift ? (float)shift[d] : 0.0F) : 0.0F;
}

static void load_norms(ref_plain *plain, int64_t r)
{
    static const float zero = 0.0F;
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const int64_t keys = desc->length_k;
    const ref_terms squares = {
        REF_TERM_SQUARE, desc->head_size, keys, &zero, 0, plain->keys + r * desc->head_size * keys, keys, NULL};
    for (int order = 0; order < REF_ORDERS; order++)
        ref_sum(&squares, (ref_order)order, plain->norms + (order * desc->components + r) * keys);
}

static void load_head(ref_plain *plain, int64_t b, int64_t h)
{
    const clmgk_ref_problem *const p = plain->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const int64_t keys = desc->length_k;
    for (int64_t r = 0; r < desc->components; r++) {
        for (int64_t j = 0; j < keys; j++)
            ref_plain_load_key(p, b, h, j, r, keys, plain->keys + r * desc->head_size * keys + j);
        load_norms(plain, r);
    }
    for (int64_t j = 0; p->v && j < keys; j++)
        for (int64_t e = 0; e < desc->value_size; e++)
            plain->values[j * desc->value_size + e] = (float)p->v[ref_value_index(desc, b, h, j) + e];
}

/* ---- a row ----------------------------------------------------------------------------------------------------- */

/* The scaled score of every key that the row sees, component r. */
static void fill_scores(ref_plain *plain, int64_t r)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const int64_t keys = desc->length_k;
    const int64_t first = plain->span.first;
    const bool dot = desc->score == CLMGK_SCORE_DOT;
    const bool expanded = plain->way.distance == REF_DISTANCE_EXPANDED;
    const ref_terms terms = {dot || expanded ? REF_TERM_PRODUCT : REF_TERM_SQUARE,
                             desc->head_size,
                             plain->span.end - first,
                             plain->query,
                             1,
                             plain->keys + r * desc->head_size * keys + first,
                             keys,
                             NULL};
    float *const score = plain->score + r * keys;
    ref_sum(&terms, plain->way.order, score + first);

    const float variance = (float)ref_variance(plain->problem, plain->at.h, r);
    const float query = ref_sum_of_products(desc->head_size, plain->query, plain->query, plain->way.order);
    const float *const norms = plain->norms + ((int64_t)plain->way.order * desc->components + r) * keys;
    for (int64_t j = first; j < plain->span.end; j++) {
        if (expanded)
            score[j] = query - 2.0F * score[j] + norms[j];
        score[j] = dot ? score[j] / variance : -score[j] / (2.0F * variance);
    }
}

/* From scores to s_ijr; then their maximum. */
static void fill_weights(ref_plain *plain)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const float cap = (float)desc->softcap;
    float largest = desc->use_sinks ? (float)plain->problem->sinks[plain->at.h] : -INFINITY;
    for (int64_t j = plain->span.first; j < plain->span.end; j++) {
        const bool hidden = ref_hidden(plain->problem, plain->at, j);
        const float bias = (float)ref_bias(plain->problem, plain->at, j);
        const float penalty = (float)ref_penalty(plain->problem, plain->at.h, &plain->span, j);
        for (int64_t r = 0; r < desc->components; r++) {
            const int64_t n = r * desc->length_k + j;
            const float score = cap > 0.0F ? cap * tanhf(plain->score[n] / cap) : plain->score[n];
            plain->weight[n] = hidden ? -INFINITY : score + bias - penalty;
            plain->log_term[n] = plain->weight[n];
            if (desc->estep == CLMGK_ESTEP_SOFT)
                plain->log_term[n] += logf((float)ref_prior(plain->problem, plain->at.h, j, r));
            largest = plain->log_term[n] > largest ? plain->log_term[n] : largest;
        }
    }
    plain->largest = isfinite(largest) ? largest : 0.0F;
}

/* exp(w_ij - largest) of key j, and of each of its components; hard: only the first that is the largest. */
static float fill_terms(ref_plain *plain, int64_t j)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    float sum = 0.0F;
    int64_t best = j;
    for (int64_t n = j; n < desc->components * desc->length_k; n += desc->length_k) {
        plain->p[n] = expf(plain->log_term[n] - plain->largest);
        sum += plain->p[n];
        best = plain->log_term[n] > plain->log_term[best] ? n : best;
    }
    if (desc->estep == CLMGK_ESTEP_SOFT)
        return sum;
    const float term = plain->p[best];
    for (int64_t n = j; n < desc->components * desc->length_k; n += desc->length_k)
        plain->p[n] = n == best ? term : 0.0F;
    return term;
}

static float normalised(const ref_plain *plain, float term)
{
    return plain->total > 0.0F ? ref_rounded(plain->problem->desc.dtype, term / plain->total) : 0.0F;
}

/* L_i, P_ijr and a_ij */
static void normalise(ref_plain *plain)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const int64_t first = plain->span.first;
    int64_t logits = plain->span.end - first;
    for (int64_t j = first; j < plain->span.end; j++)
        plain->a[j] = fill_terms(plain, j);
    if (desc->use_sinks && !plain->span.absent) {
        plain->a[plain->span.end] = expf((float)plain->problem->sinks[plain->at.h] - plain->largest);
        logits++;
    }
    plain->total = ref_sum_of(logits, plain->a + first, plain->way.order);
    plain->lse = plain->largest + logf(plain->total);
    for (int64_t j = first; j < plain->span.end; j++) {
        for (int64_t n = j; n < desc->components * desc->length_k; n += desc->length_k)
            plain->p[n] = normalised(plain, plain->p[n]);
        plain->kept[j] = (float)ref_kept(plain->problem, plain->at.h, &plain->span, j);
        plain->a[j] = ref_rounded(desc->dtype, normalised(plain, plain->a[j]) * plain->kept[j]);
    }
}

/* h_i */
static void fill_output(ref_plain *plain)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const int64_t first = plain->span.first;
    const ref_terms terms = {REF_TERM_PRODUCT,
                             plain->span.end - first,
                             desc->value_size,
                             plain->a + first,
                             1,
                             plain->values + first * desc->value_size,
                             desc->value_size,
                             NULL};
    ref_sum(&terms, plain->way.order, plain->o);
    for (int64_t e = 0; e < desc->value_size; e++)
        plain->o[e] = ref_rounded(desc->dtype, plain->o[e]);
}

void ref_plain_solve(ref_plain *plain, ref_row row, ref_way way)
{
    const clmgk_ref_problem *const p = plain->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    if (plain->at.b != row.b || plain->at.h != row.h)
        load_head(plain, row.b, row.h);
    plain->at = row;
    plain->way = way;
    plain->span = ref_span_of(p, row.b, row.i);
    for (int64_t d = 0; d < desc->head_size; d++)
        plain->query[d] = (float)p->q[ref_query_index(desc, row) + d];
    for (int64_t r = 0; r < desc->components; r++)
        fill_scores(plain, r);
    fill_weights(plain);
    normalise(plain);
    if (p->v)
        fill_output(plain);
}

void ref_plain_sum_prior(const clmgk_attention_desc *desc, int64_t h, const float *matrix, ref_order order, float *room,
                         float *sums)
{
    const int64_t keys = desc->length_k;
    const bool per_key = desc->prior_shape == CLMGK_PRIOR_HMS;
    for (int64_t r = 0; r < desc->components; r++) {
        ref_sum_rows(desc->length, keys, matrix + r * desc->length * keys, keys, order, room);
        if (!per_key)
            room[0] = ref_sum_of(keys, room, order);
        for (int64_t j = 0; j < (per_key ? keys : 1); j++)
            sums[ref_prior_index(desc, h, j, r)] += room[j];
    }
}
