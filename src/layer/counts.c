/* SPDX-License-Identifier: Apache-2.0 */
/* Operations and parameters, as the papers count them. */
#include "clmgk/counts.h"

#include "attention/core/arrays.h"
#include "attention/plan.h"
#include "base/base.h"

#include <inttypes.h>
#include <math.h>

/* Sizes of a problem as numbers, and of its variant. */
typedef struct problem {
    clmgk_attention_desc desc; /* resolved */
    bool mixed, linear, generalised, noise, own_noise;
    double batch, heads, kv_heads, components, length, length_k, head_size, value_size, features;
    double hidden;              /* U; 0: no hidden layer */
    double softmax_heads;       /* H, or the heads that are mixed after the softmax */
    double mixtures;            /* distinct mixings: 1 if all heads share one, else as many as those */
    double query_heads;         /* of Q: M of mixed heads, else H */
    double key_heads, own_keys; /* heads of K; distinct keys: one for each head and shift, else the heads of K */
} problem;

static bool has(const clmgk_attention_desc *desc, clmgk_variant_trait trait)
{
    return mgk_has_trait(desc, trait);
}

static problem measure(const clmgk_attention_desc *desc)
{
    const bool mixed = has(desc, CLMGK_TRAIT_ADMIXTURE), noise = has(desc, CLMGK_TRAIT_NOISE);
    const double heads = (double)desc->heads, groups = (double)desc->kv_heads, components = (double)desc->components;
    const double softmax_heads = (double)mgk_softmax_heads(desc);
    const bool one_mixture = has(desc, CLMGK_TRAIT_SHARED_MIX) && (!noise || desc->shared_noise);
    const double key_heads = mixed ? components : groups * (has(desc, CLMGK_TRAIT_KEYS) ? components : 1);
    return (problem){.desc = *desc,
                     .mixed = mixed,
                     .linear = has(desc, CLMGK_TRAIT_LINEAR),
                     .generalised = has(desc, CLMGK_TRAIT_GENERALISED),
                     .noise = noise,
                     .own_noise = noise && !desc->shared_noise,
                     .batch = (double)desc->batch,
                     .heads = heads,
                     .kv_heads = groups,
                     .components = components,
                     .length = (double)desc->length,
                     .length_k = (double)desc->length_k,
                     .head_size = (double)desc->head_size,
                     .value_size = (double)desc->value_size,
                     .features = (double)desc->features,
                     .hidden = (double)desc->mix_hidden,
                     .softmax_heads = softmax_heads,
                     .mixtures = one_mixture ? 1 : softmax_heads,
                     .query_heads = mixed ? components : heads,
                     .key_heads = key_heads,
                     .own_keys = has(desc, CLMGK_TRAIT_SHIFT) ? heads * components : key_heads};
}

static double size_of(const problem *p, clmgk_array array)
{
    return (double)mgk_array_count(&p->desc, array);
}

/* `terms` products, summed into `results` numbers; 0: each is added to an existing number. */
static void add_products(clmgk_operations *sum, double terms, double results)
{
    sum->multiplications += terms;
    sum->additions += fmax(terms - results, 0);
}

/* ---- projections ---------------------------------------------------------------------------------------------- */

/* `rows` rows of `columns` columns from an input of a width. The input's gradient has `results` elements; 0: another
 * projection began it. */
static void add_projection(double rows, double columns, double width, double results, clmgk_part part,
                           clmgk_counts *counts)
{
    const double terms = rows * columns * width;
    add_products(&counts->forward[part], terms, rows * columns);
    add_products(&counts->backward[part], terms, columns * width); /* of the weights */
    add_products(&counts->backward[part], terms, results);
    counts->parameters[part] += columns * width;
}

/* Widths of X, X2, X3 and the output; 0: not there. */
typedef struct widths {
    double x, x2, x3, out;
} widths;

/* Values begin the gradient of the input that they share with keys, and with queries. */
static void count_projections(const problem *p, const widths *width, clmgk_counts *counts)
{
    const bool cross = width->x2 > 0, apart = width->x3 > 0;
    const double rows = p->batch * p->length, rows_k = p->batch * (cross ? p->length_k : p->length);
    const double of_keys = cross ? width->x2 : width->x, of_values = apart ? width->x3 : of_keys;
    const double out = p->heads * p->value_size;
    if (width->x > 0)
        add_projection(rows, p->query_heads * p->head_size, width->x, cross ? rows * width->x : 0, CLMGK_PART_QUERY_KEY,
                       counts);
    if (of_keys > 0)
        add_projection(rows_k, p->key_heads * p->head_size, of_keys, apart ? rows_k * of_keys : 0, CLMGK_PART_QUERY_KEY,
                       counts);
    if (of_values > 0)
        add_projection(rows_k, p->kv_heads * p->value_size, of_values, rows_k * of_values, CLMGK_PART_VALUE, counts);
    if (width->out > 0)
        add_projection(rows, width->out, out, rows * out, CLMGK_PART_OUTPUT, counts);
}

/* ---- scores and values ----------------------------------------------------------------------------------------- */

static void count_mixture_scores(const problem *p, clmgk_operations *forward, clmgk_operations *backward)
{
    const bool shifts = has(&p->desc, CLMGK_TRAIT_SHIFT);
    const double rows = p->batch * p->heads * p->length, pairs = rows * p->length_k;
    const double products = pairs * (shifts ? 1 : p->components);
    const double terms = products * p->head_size, queries = rows * p->head_size;
    add_products(forward, terms, products);
    forward->additions += pairs * (p->components - 1);
    add_products(backward, terms, queries);
    add_products(backward, terms, p->batch * p->key_heads * p->length_k * p->head_size);
    if (!shifts)
        return;
    const double of_shifts = rows * p->components; /* q . b_r, which every pair adds to its product */
    add_products(forward, of_shifts * p->head_size, of_shifts);
    forward->additions += pairs * p->components;
    backward->additions += pairs * (p->components - 1) + fmax(pairs - rows, 0) * p->components;
    add_products(backward, of_shifts * p->head_size, 0);
    add_products(backward, of_shifts * p->head_size, size_of(p, CLMGK_ARRAY_SHIFT));
}

/* Mixing of M numbers at each of `pairs` places: of scores, which are summed, or of features, which stay apart. */
static void count_mixing(const problem *p, double pairs, clmgk_operations *forward, clmgk_operations *backward)
{
    const double numbers = pairs * p->components, terms = numbers * p->mixtures;
    const double noises = p->noise ? numbers * (p->own_noise ? p->softmax_heads : 1) : 0;
    const double weights = p->desc.use_mix_weight ? terms : 0;
    const double results = p->linear ? terms : pairs * p->mixtures;
    forward->multiplications += terms + weights;
    forward->additions += noises + terms - results;
    add_products(backward, terms, numbers);
    add_products(backward, terms, size_of(p, CLMGK_ARRAY_MIX));
    add_products(backward, noises, size_of(p, CLMGK_ARRAY_NOISE));
    add_products(backward, weights, size_of(p, CLMGK_ARRAY_MIX_WEIGHT));
    backward->multiplications += weights;
    if (p->desc.use_mix_offset) {
        forward->additions += results;
        backward->additions += fmax(results - size_of(p, CLMGK_ARRAY_MIX_OFFSET), 0);
    }
}

/* Mixing of M scores by U hidden units at each of `pairs` places. */
static void count_hidden(const problem *p, double pairs, clmgk_operations *forward, clmgk_operations *backward)
{
    const double numbers = pairs * p->components, units = pairs * p->hidden, results = pairs * p->softmax_heads;
    const double terms = units * p->components, unit_terms = units * p->softmax_heads;
    const double noises = p->noise ? (p->own_noise ? terms : numbers) : 0;
    const double offsets = p->desc.use_mix_hidden_offset ? units : 0, added = p->desc.use_mix_offset ? results : 0;
    const double weights = p->desc.use_mix_weight ? unit_terms : 0;
    add_products(forward, terms, units);
    forward->multiplications += weights;
    forward->additions += noises + offsets + unit_terms - results + added;
    add_products(backward, terms, numbers);
    add_products(backward, terms, size_of(p, CLMGK_ARRAY_MIX));
    add_products(backward, noises, size_of(p, CLMGK_ARRAY_NOISE));
    add_products(backward, weights, size_of(p, CLMGK_ARRAY_MIX_WEIGHT));
    backward->multiplications += weights;
    backward->additions += unit_terms - units + fmax(offsets - size_of(p, CLMGK_ARRAY_MIX_HIDDEN_OFFSET), 0) +
                           fmax(added - size_of(p, CLMGK_ARRAY_MIX_OFFSET), 0);
}

/* Mixing of weights after the softmax. */
static void count_mixing_after(const problem *p, double pairs, clmgk_operations *forward, clmgk_operations *backward)
{
    const double terms = pairs * p->heads * p->softmax_heads;
    add_products(forward, terms, pairs * p->heads);
    add_products(backward, terms, pairs * p->mixtures);
    add_products(backward, terms, size_of(p, CLMGK_ARRAY_MIX_AFTER));
}

static void count_admixture_scores(const problem *p, clmgk_operations *forward, clmgk_operations *backward)
{
    const double pairs = p->batch * p->length * p->length_k, vector = p->components * p->head_size;
    add_products(forward, pairs * vector, pairs * p->components);
    add_products(backward, pairs * vector, p->batch * p->length * vector);
    add_products(backward, pairs * vector, p->batch * p->length_k * vector);
    if (p->hidden > 0)
        count_hidden(p, pairs, forward, backward);
    else
        count_mixing(p, pairs, forward, backward);
    if (p->desc.mix_after_heads > 0)
        count_mixing_after(p, pairs, forward, backward);
}

static void count_values(const problem *p, clmgk_operations *forward, clmgk_operations *backward)
{
    const double rows = p->batch * p->heads * p->length, terms = rows * p->length_k * p->value_size;
    add_products(forward, terms, rows * p->value_size);
    const double matrices = p->desc.mix_after_heads > 0 ? p->heads : p->mixtures;
    add_products(backward, terms, p->batch * matrices * p->length * p->length_k);
    add_products(backward, terms, p->batch * p->kv_heads * p->length_k * p->value_size);
}

/* ---- linear family ---------------------------------------------------------------------------------------------- */

static void count_features(const problem *p, clmgk_operations *forward, clmgk_operations *backward)
{
    const double vectors = p->batch * (p->query_heads * p->length + p->own_keys * p->length_k);
    const double features = vectors * p->features;
    if (p->desc.feature == CLMGK_FEATURE_FAVOR) {
        add_products(forward, features * p->head_size, features);
        add_products(backward, features * p->head_size, vectors * p->head_size);
    }
    if (p->desc.feature == CLMGK_FEATURE_DPFP) {
        forward->multiplications += features;
        add_products(backward, 2 * features, vectors * p->head_size);
    }
}

/* Features psi_j of keys, and features of mixed queries. */
static void count_linear_scores(const problem *p, clmgk_operations *forward, clmgk_operations *backward)
{
    const double tokens = p->batch * p->length_k, key = tokens * p->features;
    count_features(p, forward, backward);
    if (p->mixed)
        count_mixing(p, p->batch * p->length * p->features, forward, backward);
    if (has(&p->desc, CLMGK_TRAIT_SHIFT)) {
        const double shifted = tokens * p->own_keys * p->head_size;
        forward->additions += shifted;
        backward->additions +=
            fmax(shifted - tokens * p->key_heads * p->head_size, 0) + fmax(shifted - size_of(p, CLMGK_ARRAY_SHIFT), 0);
    }
    if (has(&p->desc, CLMGK_TRAIT_PRIOR)) {
        const double terms = key * p->heads * p->components;
        add_products(forward, terms, key * p->heads);
        add_products(backward, terms, key * p->own_keys);
        if (p->desc.prior_shape != CLMGK_PRIOR_UNIFORM)
            add_products(backward, terms, size_of(p, CLMGK_ARRAY_PRIOR));
    }
}

/* States C and z, and the products of queries with them. */
static void count_states(const problem *p, clmgk_operations *forward, clmgk_operations *backward)
{
    const double width = p->features * (p->mixed ? p->components : 1), outputs = p->heads * p->value_size;
    const double sums = p->mixed ? width : p->heads * width; /* elements of z, of a batch */
    const double psi = has(&p->desc, CLMGK_TRAIT_PRIOR) ? sums : p->key_heads * p->features; /* of a key */
    const double rows = p->batch * p->length, keys = p->batch * p->length_k, state = p->batch * width * outputs;
    const double given = p->desc.use_state ? 0 : 1;
    const double of_keys = keys * width * outputs, of_rows = rows * width * outputs;
    const double totals = rows * p->mixtures * width; /* products of denominators */
    add_products(forward, of_keys, given * state);
    forward->additions += fmax(keys - given * p->batch, 0) * sums;
    add_products(forward, of_rows, rows * outputs);
    add_products(forward, totals, rows * p->mixtures);
    forward->multiplications += rows * outputs; /* ratios */

    backward->multiplications += rows * outputs; /* dO / denominator */
    add_products(backward, rows * outputs, rows * p->mixtures);
    add_products(backward, of_rows + totals, totals); /* features of queries */
    add_products(backward, of_rows, state);
    add_products(backward, totals, p->batch * sums);
    add_products(backward, of_keys, keys * psi);
    backward->additions += keys * sums;
    add_products(backward, of_keys, keys * p->kv_heads * p->value_size);
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

/* Learned arrays of the attention. */
static double count_parameters(const problem *p)
{
    static const clmgk_array learned[] = {CLMGK_ARRAY_PRIOR,    CLMGK_ARRAY_VARIANCE,   CLMGK_ARRAY_SHIFT,
                                          CLMGK_ARRAY_SINKS,    CLMGK_ARRAY_MIX,        CLMGK_ARRAY_MIX_WEIGHT,
                                          CLMGK_ARRAY_NOISE,    CLMGK_ARRAY_MIX_OFFSET, CLMGK_ARRAY_MIX_HIDDEN_OFFSET,
                                          CLMGK_ARRAY_MIX_AFTER};
    double sum = 0;
    for (size_t i = 0; i < MGK_COUNT(learned); i++)
        sum += size_of(p, learned[i]);
    return sum;
}

static void count_attention(const clmgk_attention_desc *resolved, const widths *width, clmgk_counts *counts)
{
    const problem p = measure(resolved);
    clmgk_operations *const forward = counts->forward, *const backward = counts->backward;
    *counts = (clmgk_counts){.struct_size = sizeof(*counts)};
    count_projections(&p, width, counts);
    counts->parameters[CLMGK_PART_SCORES] = count_parameters(&p);
    if (p.linear)
        count_linear_scores(&p, &forward[CLMGK_PART_SCORES], &backward[CLMGK_PART_SCORES]);
    else if (p.mixed)
        count_admixture_scores(&p, &forward[CLMGK_PART_SCORES], &backward[CLMGK_PART_SCORES]);
    else
        count_mixture_scores(&p, &forward[CLMGK_PART_SCORES], &backward[CLMGK_PART_SCORES]);
    if (p.linear)
        count_states(&p, &forward[CLMGK_PART_VALUES], &backward[CLMGK_PART_VALUES]);
    else
        count_values(&p, &forward[CLMGK_PART_VALUES], &backward[CLMGK_PART_VALUES]);
}

clmgk_status clmgk_count_attention(const clmgk_attention_desc *desc, int64_t width, int64_t width_k, int64_t width_out,
                                   clmgk_counts *counts, clmgk_error *error)
{
    const int64_t given[] = {width, width_k, width_out};
    static const char *const names[] = {"width", "width_k", "width_out"};
    clmgk_attention_desc resolved;
    clmgk_counts found;
    MGK_TRY(mgk_struct_room(counts, "counts", sizeof(*counts), error));
    for (size_t i = 0; i < MGK_COUNT(given); i++) {
        if (given[i] < 0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected 0 or more", names[i],
                            given[i]);
    }
    MGK_TRY(mgk_attention_resolve(desc, &resolved, error));
    count_attention(&resolved, &(widths){.x = (double)width, .x2 = (double)width_k, .out = (double)width_out}, &found);
    mgk_struct_write(counts, 0, &found, sizeof(found));
    return CLMGK_OK;
}

clmgk_status clmgk_count_layer(const clmgk_layer_desc *desc, clmgk_counts *counts, clmgk_error *error)
{
    clmgk_layer_desc layer = CLMGK_LAYER_DESC_INIT;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    clmgk_counts found;
    MGK_TRY(mgk_struct_room(counts, "counts", sizeof(*counts), error));
    MGK_TRY(clmgk_layer_validate(desc, &layer, &attention, error));
    const double width = (double)layer.width, width_k = (double)layer.width_k, width_v = (double)layer.width_v;
    count_attention(&attention, &(widths){width, layer.cross ? width_k : 0, layer.cross_v ? width_v : 0, width},
                    &found);
    const problem p = measure(&attention);
    if (layer.use_bias) {
        found.parameters[CLMGK_PART_QUERY_KEY] += (p.query_heads + p.key_heads) * p.head_size;
        found.parameters[CLMGK_PART_VALUE] += p.kv_heads * p.value_size;
    }
    if (layer.qk_norm)
        found.parameters[CLMGK_PART_QUERY_KEY] += 2 * p.head_size;
    if (layer.use_bias_o)
        found.parameters[CLMGK_PART_OUTPUT] += (double)layer.width;
    if (layer.norm != CLMGK_NORM_NONE)
        found.parameters[CLMGK_PART_NORM] += 2 * (double)layer.width;
    mgk_struct_write(counts, 0, &found, sizeof(found));
    return CLMGK_OK;
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */

double clmgk_sum_operations(const clmgk_counts *counts, clmgk_pass pass, uint32_t parts)
{
    double sum = 0;
    if (counts == NULL || (pass != CLMGK_PASS_FORWARD && pass != CLMGK_PASS_BACKWARD))
        return 0;
    const clmgk_operations *const of = pass == CLMGK_PASS_FORWARD ? counts->forward : counts->backward;
    for (unsigned part = 0; part < CLMGK_PARTS; part++)
        sum += (parts & 1U << part) ? of[part].multiplications + of[part].additions : 0;
    return sum;
}

double clmgk_sum_parameters(const clmgk_counts *counts, uint32_t parts)
{
    double sum = 0;
    for (unsigned part = 0; counts != NULL && part < CLMGK_PARTS; part++)
        sum += (parts & 1U << part) ? counts->parameters[part] : 0;
    return sum;
}
