/* SPDX-License-Identifier: Apache-2.0 */
/* The plain formula, row by row: the part common to all families. */
#include "reference/plain.h"

#include <float.h>
#include <stdlib.h>

bool ref_way_of(const clmgk_attention_desc *desc, int number, ref_way *way)
{
    const int distances = desc->score == CLMGK_SCORE_GAUSSIAN ? REF_DISTANCES : REF_DISTANCE_DIRECT + 1;
    way->order = (ref_order)(number % REF_ORDERS);
    way->distance = (ref_distance)(number / REF_ORDERS);
    return number < REF_ORDERS * distances;
}

bool ref_plain_create(const clmgk_ref_problem *problem, const plain_scores *scores, ref_plain *plain)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const bool mixed = ref_form_of(desc).mixed;
    const size_t size = (size_t)desc->head_size, keys = (size_t)desc->length_k, values = (size_t)desc->value_size;
    const size_t heads = (size_t)desc->components, units = (size_t)ref_units(desc),
                 logits = (size_t)ref_components(desc) * keys;
    const ref_part parts[] = {
        {&plain->query, (size_t)ref_queries(desc) * size},
        {&plain->score, logits},
        {&plain->weight, logits},
        {&plain->log_term, logits},
        {&plain->p, logits},
        {&plain->a, keys + 1}, /* + 1: the sink's share */
        {&plain->kept, keys},
        {&plain->o, values},
        {&plain->keys, heads * size * keys},
        {&plain->values, keys * values},
        {&plain->norms, mixed ? 0 : REF_ORDERS * logits},
        {&plain->global, mixed ? heads * keys : 0},
        {&plain->eps, mixed ? units * keys : 0},
        {&plain->rectified, mixed ? units * keys : 0},
        {&plain->mix, mixed ? (size_t)ref_mixing(desc) : 0},
        {&plain->mix_weight, mixed ? units : 0},
    };
    *plain = (ref_plain){.problem = problem, .scores = scores, .at = {-1, -1, -1}};
    plain->memory = ref_room(parts, sizeof(parts) / sizeof(parts[0]));
    if (plain->memory && ref_texts_create(problem, true, &plain->texts))
        return true;
    free(plain->memory);
    return false;
}

void ref_plain_free(ref_plain *plain)
{
    free(plain->memory);
    ref_texts_free(&plain->texts);
    *plain = (ref_plain){0};
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

static void load_head(ref_plain *plain)
{
    const clmgk_ref_problem *const p = plain->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const ref_row at = plain->at;
    const int64_t keys = desc->length_k;
    for (int64_t r = 0; r < desc->components; r++)
        for (int64_t j = 0; j < keys; j++)
            ref_plain_load_key(p, at.b, at.h, j, r, keys, plain->keys + r * desc->head_size * keys + j);
    for (int64_t j = 0; p->v && j < keys; j++)
        for (int64_t e = 0; e < desc->value_size; e++)
            plain->values[j * desc->value_size + e] = (float)p->v[ref_value_index(desc, at.b, at.h, j) + e];
    plain->scores->load(plain);
}

/* ---- a row ----------------------------------------------------------------------------------------------------- */

/* A sum of finite terms that overflows is the largest float: attention needs differences of logits only. */
static float logit_of(float score, float bias, float penalty)
{
    const float sum = score + bias - penalty;
    return isinf(sum) && isfinite(score) && isfinite(bias) ? copysignf(FLT_MAX, sum) : sum;
}

ref_pair ref_plain_pair(const ref_plain *plain, int64_t j, int64_t r)
{
    const float cap = (float)plain->problem->desc.softcap;
    const float score = plain->score[r * plain->problem->desc.length_k + j];
    return (ref_pair){plain->at, &plain->span, j, r, (double)(cap > 0.0F ? cap * tanhf(score / cap) : score)};
}

/* From scores to s_ijr; then their maximum. */
static void fill_weights(ref_plain *plain)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    float largest = desc->use_sinks ? (float)plain->problem->sinks[plain->at.h] : -INFINITY;
    for (int64_t j = plain->span.first; j < plain->span.end; j++) {
        const ref_pair first = ref_plain_pair(plain, j, 0);
        const bool hidden = ref_hidden(plain->problem, plain->at, j) || ref_text_hides(&plain->texts, &first);
        const float bias = (float)ref_bias(plain->problem, plain->at, j);
        const float penalty = (float)ref_penalty(plain->problem, plain->at.h, &plain->span, j);
        for (int64_t r = 0; r < ref_components(desc); r++) {
            const int64_t n = r * desc->length_k + j;
            const ref_pair pair = ref_plain_pair(plain, j, r);
            const float score = (float)ref_text_score(&plain->texts, &pair);
            plain->weight[n] = hidden ? -INFINITY : logit_of(score, bias, penalty);
            plain->log_term[n] = plain->weight[n];
            if (desc->estep == CLMGK_ESTEP_SOFT)
                plain->log_term[n] += logf((float)ref_prior(plain->problem, plain->at.h, j, r));
            largest = plain->log_term[n] > largest ? plain->log_term[n] : largest;
        }
    }
    plain->largest = isfinite(largest) ? largest : 0.0F;
}

/* exp(w_ij - largest) of key j, and of each of its components; hard: only of the first largest component. */
static float fill_terms(ref_plain *plain, int64_t j)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    float sum = 0.0F;
    int64_t best = j;
    for (int64_t n = j; n < ref_components(desc) * desc->length_k; n += desc->length_k) {
        plain->p[n] = expf(plain->log_term[n] - plain->largest);
        sum += plain->p[n];
        best = plain->log_term[n] > plain->log_term[best] ? n : best;
    }
    if (desc->estep == CLMGK_ESTEP_SOFT)
        return sum;
    const float term = plain->p[best];
    for (int64_t n = j; n < ref_components(desc) * desc->length_k; n += desc->length_k)
        plain->p[n] = n == best ? term : 0.0F;
    return term;
}

static float normalised(const ref_plain *plain, float term)
{
    return plain->total > 0.0F ? clmgk_ref_rounded(ref_weight_type(&plain->problem->desc), term / plain->total) : 0.0F;
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
        for (int64_t n = j; n < ref_components(desc) * desc->length_k; n += desc->length_k)
            plain->p[n] = normalised(plain, plain->p[n]);
        plain->kept[j] = (float)ref_kept(plain->problem, plain->at.h, &plain->span, j);
        plain->a[j] = clmgk_ref_rounded(ref_weight_type(desc), normalised(plain, plain->a[j]) * plain->kept[j]);
    }
}

/* h_i */
static void fill_output(ref_plain *plain)
{
    const clmgk_attention_desc *const desc = &plain->problem->desc;
    const int64_t first = plain->span.first;
    const ref_terms terms = {ref_term_of(REF_TERM_PRODUCT, desc->precision),
                             plain->span.end - first,
                             desc->value_size,
                             plain->a + first,
                             1,
                             plain->values + first * desc->value_size,
                             desc->value_size,
                             NULL};
    ref_sum(&terms, plain->way.order, plain->o);
    const clmgk_dtype type = clmgk_ref_type_of(desc, CLMGK_ARRAY_O);
    for (int64_t e = 0; e < desc->value_size; e++)
        plain->o[e] = clmgk_ref_rounded(type, plain->o[e]);
}

void ref_plain_solve(ref_plain *plain, ref_row row, ref_way way)
{
    const clmgk_ref_problem *const p = plain->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const bool other_head = plain->at.b != row.b || plain->at.h != row.h;
    plain->at = row;
    plain->way = way;
    if (other_head)
        load_head(plain);
    plain->span = ref_span_of(p, row.b, row.i);
    for (int64_t r = 0; r < ref_queries(desc); r++)
        for (int64_t d = 0; d < desc->head_size; d++)
            plain->query[r * desc->head_size + d] = (float)p->q[ref_query_index(desc, row, r) + d];
    plain->scores->fill(plain);
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
