/* SPDX-License-Identifier: Apache-2.0 */
/* Shape and presence of the layer's arrays, by the lines of CLMGK_LAYER_ARRAY_LIST. */
#include "layer/layer.h"

#include <string.h>

/* ---- shapes --------------------------------------------------------------------------------------------------- */

/* Rows and columns fit in 31 bits: the descriptor is checked. */
mgk_layer_sizes mgk_layer_measure(const clmgk_layer_desc *d)
{
    const clmgk_attention_desc *const a = d->attention;
    const bool mixed = mgk_has_trait(a, CLMGK_TRAIT_ADMIXTURE);
    mgk_layer_sizes s = {.rows = a->batch * a->length, .rows_k = a->batch * a->length};
    if (d->cross)
        s.rows_k = a->batch * a->length_k;
    s.heads_q = mixed ? a->components : a->heads;
    s.heads_k = mixed ? a->components : a->kv_heads;
    if (mgk_has_trait(a, CLMGK_TRAIT_KEYS))
        s.heads_k *= a->components;
    s.heads_v = a->kv_heads;
    s.q = s.heads_q * a->head_size;
    s.k = s.heads_k * a->head_size;
    s.v = s.heads_v * a->value_size;
    s.o = a->heads * a->value_size;
    s.at_k = d->cross ? 0 : s.q;
    s.at_v = s.at_k + s.k;
    s.ld_k = s.at_v + s.v;
    s.ld_q = d->cross ? s.q : s.ld_k;
    return s;
}

static int64_t size_of(const clmgk_layer_desc *d, char axis)
{
    const mgk_layer_sizes s = mgk_layer_measure(d);
    const struct {
        char axis;
        int64_t size;
    } sizes[] = {{'B', d->attention->batch},
                 {'N', d->attention->length},
                 {'S', d->attention->length_k},
                 {'D', d->attention->head_size},
                 {'C', d->attention->page_size > 0 ? d->attention->page_size : d->cache_capacity},
                 {'P', d->attention->page_size > 0 ? d->attention->pages : d->attention->batch},
                 {'W', d->width},
                 {'U', d->width_k},
                 {'T', d->width_v},
                 {'q', s.q},
                 {'k', s.k},
                 {'v', s.v},
                 {'o', s.o},
                 {'p', s.q + s.k + s.v}};
    for (size_t i = 0; i < MGK_COUNT(sizes); ++i)
        if (sizes[i].axis == axis)
            return sizes[i].size;
    return 0;
}

static const char *axes_of(clmgk_layer_array array)
{
    static const char *const axes_by_array[] = {
#define AXES(name, field, element, access, passes, axes, has)  axes,
#define AXES_OF_GRADIENT(name, field, element, bit, axes, has) axes,
        CLMGK_LAYER_ARRAY_LIST(AXES, AXES_OF_GRADIENT)};
    return axes_by_array[array];
}

/* ---- lines ---------------------------------------------------------------------------------------------------- */

const mgk_layer_array_info *mgk_layer_array_get_info(clmgk_layer_array array)
{
    static const mgk_layer_array_info infos[] = {
#define INFO_IN                                          false
#define INFO_OUT                                         true
#define INFO(name, field, element, access, ...)          {#field, CLMGK_ELEMENT_##element, 0, INFO_##access},
#define INFO_OF_GRADIENT(name, field, element, bit, ...) {"grad_" #field, CLMGK_ELEMENT_##element, bit, true},
        CLMGK_LAYER_ARRAY_LIST(INFO, INFO_OF_GRADIENT)};
    return (unsigned)array < MGK_COUNT(infos) ? &infos[array] : NULL;
}

bool mgk_layer_array_exists(const clmgk_layer_desc *d, clmgk_layer_array array)
{
    switch (array) {
#define HAS(name, field, element, access, passes, axes, has)                                                           \
    case CLMGK_LAYER_ARRAY_##name:                                                                                     \
        return has;
#define HAS_GRADIENT(name, field, element, bit, axes, has)                                                             \
    case CLMGK_LAYER_ARRAY_GRAD_##name:                                                                                \
        return has;
        CLMGK_LAYER_ARRAY_LIST(HAS, HAS_GRADIENT)
    case CLMGK_LAYER_ARRAYS:
        break;
    }
    return false;
}

clmgk_buffer *clmgk_layer_array_buffer(clmgk_layer_args *args, clmgk_layer_array array)
{
    static const size_t offsets[] = {
#define OFFSET(name, field, ...)             offsetof(clmgk_layer_args, field),
#define OFFSET_OF_GRADIENT(name, field, ...) offsetof(clmgk_layer_args, grad_##field),
        CLMGK_LAYER_ARRAY_LIST(OFFSET, OFFSET_OF_GRADIENT)};
    if (args == NULL || (unsigned)array >= MGK_COUNT(offsets))
        return NULL;
    return (clmgk_buffer *)(void *)((char *)args + offsets[array]);
}

/* ---- passes --------------------------------------------------------------------------------------------------- */

/* A letter for each pass: r required, o optional, - absent. */
static const char *passes_of(clmgk_layer_array array)
{
    static const char *const passes_by_array[] = {
#define PASSES(name, field, element, access, passes, ...) passes,
#define PASSES_OF_GRADIENT(...)                           "-r",
        CLMGK_LAYER_ARRAY_LIST(PASSES, PASSES_OF_GRADIENT)};
    return passes_by_array[array];
}

/* Gradients of the attention's own parameters. */
static uint32_t own_gradients(const clmgk_layer_desc *d)
{
    const uint32_t inner = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return d->attention->gradients & ~inner;
}

bool mgk_layer_has_backward(const clmgk_layer_desc *d)
{
    return d->gradients != 0 || d->attention->gradients != 0;
}

/* Every gradient goes through the attention, except those of W_O, b_O and of a layer normalisation that comes last. */
bool mgk_layer_differentiates(const clmgk_layer_desc *d)
{
    uint32_t before = CLMGK_LAYER_GRADIENT_WEIGHT_O | CLMGK_LAYER_GRADIENT_BIAS_O;
    if (d->norm == CLMGK_NORM_POST)
        before |= CLMGK_LAYER_GRADIENT_NORM_GAIN | CLMGK_LAYER_GRADIENT_NORM_BIAS;
    return (d->gradients & ~before) != 0 || own_gradients(d) != 0;
}

bool mgk_layer_separates(const clmgk_layer_desc *d)
{
    return d->qk_norm && mgk_layer_differentiates(d);
}

clmgk_presence mgk_layer_array_presence(const clmgk_layer_desc *d, clmgk_pass pass, clmgk_layer_array array)
{
    const uint32_t gradient = mgk_layer_array_get_info(array)->gradient;
    const char letter = passes_of(array)[pass];
    if (letter == '-' || (pass == CLMGK_PASS_BACKWARD && !mgk_layer_has_backward(d)))
        return CLMGK_ABSENT;
    if (!(gradient != 0 ? (d->gradients & gradient) != 0 : mgk_layer_array_exists(d, array)))
        return CLMGK_ABSENT;
    return letter == 'r' ? CLMGK_REQUIRED : CLMGK_OPTIONAL;
}

bool mgk_layer_array_is_of_pass(clmgk_pass pass, clmgk_layer_array array)
{
    return passes_of(array)[pass] != '-';
}

/* ---- sizes ---------------------------------------------------------------------------------------------------- */

/* The type of a storage array: caches have the attention's types of K and V. */
static clmgk_dtype_info type_of(const clmgk_layer_desc *d, clmgk_layer_array array)
{
    return clmgk_dtype_get_info(array == CLMGK_LAYER_ARRAY_CACHE_K   ? mgk_array_dtype(d->attention, CLMGK_ARRAY_K)
                                : array == CLMGK_LAYER_ARRAY_CACHE_V ? mgk_array_dtype(d->attention, CLMGK_ARRAY_V)
                                                                     : d->attention->dtype);
}

size_t mgk_layer_element_size(const clmgk_layer_desc *d, clmgk_layer_array array)
{
    const clmgk_element element = mgk_layer_array_get_info(array)->element;
    if (element == CLMGK_ELEMENT_BYTE)
        return 1;
    return element == CLMGK_ELEMENT_STORAGE ? type_of(d, array).bytes : sizeof(float);
}

/* True if some pass uses the array. */
static bool is_used(const clmgk_layer_desc *d, clmgk_layer_array array)
{
    return mgk_layer_array_presence(d, CLMGK_PASS_FORWARD, array) != CLMGK_ABSENT ||
           mgk_layer_array_presence(d, CLMGK_PASS_BACKWARD, array) != CLMGK_ABSENT;
}

bool mgk_layer_array_bytes(const clmgk_layer_desc *d, clmgk_layer_array array, int64_t *bytes)
{
    const char *const axes = axes_of(array);
    *bytes = 0;
    if (axes[0] == '\0' || !is_used(d, array))
        return true;
    for (const char *axis = axes; *axis != '\0'; ++axis)
        if (size_of(d, *axis) == 0)
            return true;
    *bytes = (int64_t)mgk_layer_element_size(d, array);
    for (const char *axis = axes; *axis != '\0'; ++axis)
        if (!mgk_mul_i64(*bytes, size_of(d, *axis), bytes))
            return false;
    if (mgk_layer_array_get_info(array)->element == CLMGK_ELEMENT_STORAGE)
        *bytes /= type_of(d, array).block;
    return true;
}

/* ---- public calls ---------------------------------------------------------------------------------------------- */

/* Reads a resolved descriptor of the caller's version; false if it is not resolved. */
static bool read_resolved(const clmgk_layer_desc *given, clmgk_layer_desc *d, clmgk_attention_desc *attention)
{
    if (given == NULL ||
        mgk_struct_read(given, "resolved", MGK_SIZE_WITH(clmgk_layer_desc, accumulate), d, sizeof(*d), NULL) !=
            CLMGK_OK ||
        !mgk_desc_read(d->attention, attention))
        return false;
    d->attention = attention;
    if (d->width_v == 0) /* the caller's version lacks the field */
        d->width_v = d->width_k;
    return true;
}

int64_t clmgk_layer_array_bytes(const clmgk_layer_desc *resolved, clmgk_layer_array array)
{
    clmgk_layer_desc d;
    clmgk_attention_desc attention;
    int64_t bytes = 0;
    if (mgk_layer_array_get_info(array) == NULL || !read_resolved(resolved, &d, &attention))
        return 0;
    return mgk_layer_array_bytes(&d, array, &bytes) ? bytes : 0;
}

int64_t clmgk_layer_array_count(const clmgk_layer_desc *resolved, clmgk_layer_array array)
{
    clmgk_layer_desc d;
    clmgk_attention_desc attention;
    if (mgk_layer_array_get_info(array) == NULL || !read_resolved(resolved, &d, &attention))
        return 0;
    return clmgk_layer_array_bytes(resolved, array) / (int64_t)mgk_layer_element_size(&d, array);
}
