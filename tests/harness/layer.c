/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/layer.h"

#include <math.h>
#include <stdlib.h>

/* What the layer makes itself. */
static bool is_kept(th_name name)
{
    static const th_name kept[] = {TH_Q,      TH_K,        TH_V,      TH_O,      TH_LSE,   TH_DENOMINATOR,
                                   TH_GRAD_O, TH_GRAD_LSE, TH_GRAD_Q, TH_GRAD_K, TH_GRAD_V};
    for (size_t n = 0; n < TH_COUNT(kept); n++)
        if (kept[n] == name)
            return true;
    return false;
}

static double random_value(const clmgk_layer_desc *desc, int64_t columns, clmgk_layer_array array, uint64_t *state)
{
    switch (array) {
    case CLMGK_LAYER_ARRAY_WEIGHT_QKV:
    case CLMGK_LAYER_ARRAY_WEIGHT_Q:
        return th_normal(state) / sqrt((double)desc->width);
    case CLMGK_LAYER_ARRAY_WEIGHT_K:
    case CLMGK_LAYER_ARRAY_WEIGHT_V:
        return th_normal(state) / sqrt((double)desc->width_k);
    case CLMGK_LAYER_ARRAY_WEIGHT_O:
        return th_normal(state) / sqrt((double)columns);
    case CLMGK_LAYER_ARRAY_GAIN_Q:
    case CLMGK_LAYER_ARRAY_GAIN_K:
    case CLMGK_LAYER_ARRAY_NORM_GAIN:
        return 1.0 + 0.3 * th_normal(state);
    default:
        return th_normal(state);
    }
}

tl_problem tl_make(const clmgk_layer_desc *desc, uint64_t seed)
{
    tl_problem problem = {.desc = *desc};
    clmgk_layer_desc *const d = &problem.desc;
    clmgk_attention_desc attention = *desc->attention;
    if (d->cache_capacity > 0)
        attention.length_k = d->cache_capacity;
    problem.attention = th_problem_make(&attention, seed);
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (is_kept(name)) {
            free(problem.attention.array[name].values);
            problem.attention.array[name].values = NULL;
            problem.attention.array[name].used = false;
        }
    d->attention = NULL;
    d->width_k = d->width_k > 0 ? d->width_k : d->width;
    d->rotary_size = d->rotary_size > 0 ? d->rotary_size : attention.head_size;
    d->rotary_base = d->rotary_base > 0.0 ? d->rotary_base : 10000.0;
    d->norm_epsilon = d->norm_epsilon > 0.0 ? d->norm_epsilon : 1e-5;
    const clmgk_ref_layer layer = {.desc = *d, .attention = {.desc = problem.attention.desc}};
    uint64_t state = seed;
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++) {
        problem.count[array] = (size_t)clmgk_ref_layer_count(&layer, array);
        problem.values[array] = calloc(problem.count[array] + 1, sizeof(double)); /* + 1: no elements is no failure */
        assert_non_null(problem.values[array]);
        const int64_t columns = problem.attention.desc.heads * problem.attention.desc.value_size;
        for (size_t n = 0; n < problem.count[array]; n++)
            problem.values[array][n] = random_value(d, columns, array, &state);
    }
    return problem;
}

void tl_free(tl_problem *problem)
{
    th_reference_free(&problem->integers);
    th_problem_free(&problem->attention);
    for (size_t array = 0; array < CLMGK_LAYER_ARRAYS; array++)
        free(problem->values[array]);
    *problem = (tl_problem){0};
}

clmgk_ref_layer tl_reference(tl_problem *problem)
{
    th_reference_free(&problem->integers);
    problem->integers = th_reference_of(&problem->attention);
    clmgk_ref_layer layer = {.desc = problem->desc, .attention = problem->integers.problem};
#define SET(name, field, ...) layer.field = problem->values[CLMGK_LAYER_ARRAY_##name];
    CLMGK_LAYER_ARRAY_LIST(SET, CLMGK_ARRAY_NONE)
#undef SET
    return layer;
}
