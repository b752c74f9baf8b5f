/* SPDX-License-Identifier: Apache-2.0 */
#include "layer_held.h"

#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>

#define SMALL_WIDTH  96 /* of the layer that is checked */
#define SMALL_LENGTH 40

/* ---- descriptors ------------------------------------------------------------------------------------------------ */

int64_t bench_layer_width(const bench_shape *shape)
{
    return shape->heads * shape->head_size;
}

static void describe(const layer_wish *wish, const bench_variant *variant, layer_step kind, bool small,
                     held_layer *held)
{
    const bench_shape *const shape = wish->shape;
    const uint32_t traits = clmgk_variant_traits(variant->variant);
    const bool learned = kind == TRAINING;
    clmgk_attention_desc *const attention = &held->attention;
    *attention = (clmgk_attention_desc)CLMGK_ATTENTION_DESC_INIT;
    held->desc = (clmgk_layer_desc)CLMGK_LAYER_DESC_INIT;
    attention->variant = variant->variant;
    attention->dtype = wish->dtype;
    attention->batch = kind == DECODING || small ? 1 : shape->batch;
    attention->heads = variant->heads;
    attention->components = variant->components;
    attention->length = kind == DECODING ? 1 : small ? SMALL_LENGTH : shape->length;
    attention->head_size = shape->head_size;
    if (traits & (CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT))
        attention->prior_shape = CLMGK_PRIOR_HM;
    attention->use_mix_weight = (traits & CLMGK_TRAIT_GENERALISED) != 0;
    attention->use_mix_offset = attention->use_mix_weight && !(traits & CLMGK_TRAIT_LINEAR);
    if (learned)
        attention->gradients = (traits & (CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT) ? CLMGK_GRADIENT_PRIOR : 0) |
                               (traits & CLMGK_TRAIT_SHIFT ? CLMGK_GRADIENT_SHIFT : 0) |
                               (traits & CLMGK_TRAIT_ADMIXTURE ? CLMGK_GRADIENT_MIX : 0) |
                               (attention->use_mix_weight ? CLMGK_GRADIENT_MIX_WEIGHT : 0);
    held->desc.attention = attention;
    held->desc.width = small ? SMALL_WIDTH : bench_layer_width(shape);
    held->desc.packed_weights = held->desc.use_bias = held->desc.use_bias_o = held->desc.residual = 1;
    held->desc.norm = CLMGK_NORM_POST;
    if (learned)
        held->desc.gradients = CLMGK_LAYER_GRADIENT_X | CLMGK_LAYER_GRADIENT_WEIGHT_QKV |
                               CLMGK_LAYER_GRADIENT_WEIGHT_O | CLMGK_LAYER_GRADIENT_BIAS_QKV |
                               CLMGK_LAYER_GRADIENT_BIAS_O | CLMGK_LAYER_GRADIENT_NORM_GAIN |
                               CLMGK_LAYER_GRADIENT_NORM_BIAS;
    if (kind == DECODING && (traits & CLMGK_TRAIT_LINEAR)) {
        attention->causal = attention->use_state = attention->use_new_state = 1;
    } else if (kind == DECODING) {
        held->desc.cache_capacity = small ? SMALL_LENGTH : LAYER_CACHES * shape->length;
        attention->use_lengths = 1;
        attention->alignment = CLMGK_ALIGN_LENGTHS;
    }
}

/* ---- arrays ---------------------------------------------------------------------------------------------------- */

uint32_t bench_layer_gradient(clmgk_layer_array array)
{
    switch (array) {
#define BIT(name, field, element, bit, ...)                                                                            \
    case CLMGK_LAYER_ARRAY_GRAD_##name:                                                                                \
        return bit;
        CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, BIT)
#undef BIT
    default:
        return 0;
    }
}

clmgk_dtype bench_layer_dtype(const held_layer *held, clmgk_layer_array array)
{
    const bool is_wide = clmgk_layer_array_bytes(&held->desc, array) ==
                         (int64_t)sizeof(float) * clmgk_layer_array_count(&held->desc, array);
    return is_wide ? CLMGK_DTYPE_F32 : held->attention.dtype;
}

/* What is random in arrays: `count` numbers from `middle` - `spread` to `middle` + `spread`. */
typedef struct random_numbers {
    size_t count;
    double middle, spread;
    clmgk_dtype dtype;
} random_numbers;

/* Such numbers, in a buffer and for the reference. */
static tool_exit make_numbers(const tool_device *device, const random_numbers *of, uint32_t *random, cl_mem *memory,
                              double **values, tool_error *error)
{
    const size_t bytes = of->count * clmgk_ref_dtype_size(of->dtype);
    void *const elements = malloc(bytes);
    *values = malloc(of->count * sizeof(**values));
    if (!elements || !*values) {
        free(elements);
        return tool_fail_memory(error, "arrays of a layer");
    }
    for (size_t i = 0; i < of->count; i++) {
        *random = *random * 1664525U + 1013904223U;
        (*values)[i] = of->middle + of->spread * ((double)(*random >> 8) / (1 << 23) - 1);
    }
    clmgk_ref_store(of->dtype, *values, of->count, elements);
    clmgk_ref_load(of->dtype, elements, of->count, *values);
    const tool_exit status = tool_make_buffer(device, bytes, elements, memory, error);
    free(elements);
    return status;
}

static double spread_of(const held_layer *held, clmgk_layer_array array)
{
    switch (array) {
    case CLMGK_LAYER_ARRAY_WEIGHT_QKV:
    case CLMGK_LAYER_ARRAY_WEIGHT_O:
        return sqrt(3 / (double)held->desc.width);
    case CLMGK_LAYER_ARRAY_BIAS_QKV:
    case CLMGK_LAYER_ARRAY_BIAS_O:
    case CLMGK_LAYER_ARRAY_NORM_BIAS:
    case CLMGK_LAYER_ARRAY_NORM_GAIN:
        return 0.25;
    default:
        return sqrt(3);
    }
}

static tool_exit make_layer_arrays(const tool_device *device, held_layer *held, uint32_t *random, tool_error *error)
{
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++) {
        const uint32_t bit = bench_layer_gradient(array);
        const size_t count = (size_t)clmgk_layer_array_count(&held->desc, array);
        if (count == 0 || (bit && !(held->desc.gradients & bit)) ||
            (array == CLMGK_LAYER_ARRAY_GRAD_OUT && !held->desc.gradients))
            continue;
        const random_numbers of = {.count = count,
                                   .middle = array == CLMGK_LAYER_ARRAY_NORM_GAIN ? 1 : 0,
                                   .spread = spread_of(held, array),
                                   .dtype = bench_layer_dtype(held, array)};
        TOOL_TRY(make_numbers(device, &of, random, &held->memory[array], &held->values[array], error));
    }
    const uint64_t bytes[] = {held->info.activation_bytes,
                              held->info.workspace_bytes > held->info.backward_workspace_bytes
                                  ? held->info.workspace_bytes
                                  : held->info.backward_workspace_bytes};
    static const clmgk_layer_array scratch[] = {CLMGK_LAYER_ARRAY_ACTIVATIONS, CLMGK_LAYER_ARRAY_WORKSPACE};
    for (size_t i = 0; i < TOOL_COUNT(scratch); i++) {
        if (bytes[i])
            TOOL_TRY(tool_make_buffer(device, bytes[i], NULL, &held->memory[scratch[i]], error));
    }
    return TOOL_DONE;
}

/* Parameters, states and their gradients of the attention inside; the layer makes the other arrays. */
static bool is_own(const clmgk_attention_desc *desc, clmgk_array array)
{
    static const clmgk_array of_layer[] = {CLMGK_ARRAY_Q,
                                           CLMGK_ARRAY_K,
                                           CLMGK_ARRAY_V,
                                           CLMGK_ARRAY_O,
                                           CLMGK_ARRAY_LSE,
                                           CLMGK_ARRAY_LSE_LOW,
                                           CLMGK_ARRAY_GRAD_O,
                                           CLMGK_ARRAY_DENOMINATOR,
                                           CLMGK_ARRAY_GRAD_LSE,
                                           CLMGK_ARRAY_GRAD_Q,
                                           CLMGK_ARRAY_GRAD_K,
                                           CLMGK_ARRAY_GRAD_V,
                                           CLMGK_ARRAY_LENGTHS,
                                           CLMGK_ARRAY_WORKSPACE,
                                           CLMGK_ARRAY_GRAD_NEW_STATE_C,
                                           CLMGK_ARRAY_GRAD_NEW_STATE_Z};
    const clmgk_array_info *const info = clmgk_array_get_info(array);
    for (size_t i = 0; i < TOOL_COUNT(of_layer); i++) {
        if (array == of_layer[i])
            return false;
    }
    return clmgk_array_count(desc, array) > 0 && !info->statistic &&
           (!info->gradient || (desc->gradients & info->gradient));
}

static tool_exit make_own_arrays(const tool_device *device, held_layer *held, uint32_t *random, tool_error *error)
{
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        const random_numbers of = {.count = (size_t)clmgk_array_count(&held->attention, array),
                                   .middle = 0.5,
                                   .spread = 0.25,
                                   .dtype = CLMGK_DTYPE_F32};
        if (is_own(&held->attention, array))
            TOOL_TRY(make_numbers(device, &of, random, &held->own[array], &held->own_values[array], error));
    }
    const int32_t full = (int32_t)held->desc.cache_capacity; /* of a batch of 1 */
    return full ? tool_make_buffer(device, sizeof(full), &full, &held->own[CLMGK_ARRAY_LENGTHS], error) : TOOL_DONE;
}

static void bind_arrays(held_layer *held)
{
    held->args = (clmgk_layer_args)CLMGK_LAYER_ARGS_INIT;
    held->attention_args = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    held->args.attention = &held->attention_args;
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++)
        clmgk_layer_array_buffer(&held->args, array)->memory = held->memory[array];
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
        clmgk_array_buffer(&held->attention_args, array)->memory = held->own[array];
}

void bench_close_layer(held_layer *held)
{
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++) {
        tool_release_buffer(held->memory[array]);
        free(held->values[array]);
    }
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        tool_release_buffer(held->own[array]);
        free(held->own_values[array]);
    }
    clmgk_layer_release(held->layer);
    *held = (held_layer){.layer = NULL};
}

tool_exit bench_open_layer(const layer_wish *wish, const bench_variant *variant, layer_step kind, bool small,
                           held_layer *held, tool_error *error)
{
    uint32_t random = 1;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    clmgk_layer_desc resolved = CLMGK_LAYER_DESC_INIT;
    *held = (held_layer){.info = CLMGK_LAYER_INFO_INIT};
    describe(wish, variant, kind, small, held);
    TOOL_TRY(
        tool_check_library(clmgk_layer_create(wish->library, &held->desc, NULL, &held->layer, &error->library), error));
    TOOL_TRY(tool_check_library(clmgk_layer_validate(&held->desc, &resolved, &attention, &error->library), error));
    held->attention = attention;
    held->desc = resolved;
    held->desc.attention = &held->attention;
    TOOL_TRY(tool_check_library(clmgk_layer_get_info(held->layer, &held->info, &error->library), error));
    TOOL_TRY(make_layer_arrays(&wish->device->tool, held, &random, error));
    TOOL_TRY(make_own_arrays(&wish->device->tool, held, &random, error));
    bind_arrays(held);
    return TOOL_DONE;
}
