/* SPDX-License-Identifier: Apache-2.0 */
/* Validation of a layer's descriptor, and its defaults. */
#include "layer/layer.h"
#include "operation/rows.h"

#include <inttypes.h>
#include <math.h>

enum { INNER_GRADIENTS = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V };

/* ---- fields --------------------------------------------------------------------------------------------------- */

static clmgk_status check_switches(const clmgk_layer_desc *d, clmgk_error *error)
{
#define FIELD(field, count) #field, (int)d->field, count
    const struct {
        const char *field;
        int value, count;
    } fields[] = {{FIELD(cross, 2)},         {FIELD(packed_weights, 2)}, {FIELD(use_bias, 2)}, {FIELD(use_bias_o, 2)},
                  {FIELD(residual, 2)},      {FIELD(qk_norm, 2)},        {FIELD(norm, 3)},     {FIELD(rotary, 3)},
                  {FIELD(use_positions, 2)}, {FIELD(cross_v, 2)}};
#undef FIELD
    for (size_t i = 0; i < MGK_COUNT(fields); ++i)
        MGK_TRY(mgk_check_range(fields[i].field, fields[i].value, 0, fields[i].count - 1, error));
    return CLMGK_OK;
}

static clmgk_status resolve_widths(clmgk_layer_desc *d, clmgk_error *error)
{
    MGK_TRY(mgk_check_axis("width", d->width, 1, error));
    if (d->width_k == 0)
        d->width_k = d->width;
    MGK_TRY(mgk_check_axis("width_k", d->width_k, 1, error));
    if (d->width_v == 0)
        d->width_v = d->width_k;
    MGK_TRY(mgk_check_axis("width_v", d->width_v, 1, error));
    if (d->cross_v && !d->cross)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "cross_v: 1: expected 0 without a second input (cross = 0)");
    const bool free = d->cross && !d->packed_weights;
    if (d->width_k != d->width && !free)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE, "width_k: %" PRId64 ": expected 0 or width = %" PRId64 " %s",
                        d->width_k, d->width,
                        d->cross ? "with packed_weights = 1" : "without a second input (cross = 0)");
    if (d->width_v != d->width_k && !(free && d->cross_v))
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "width_v: %" PRId64 ": expected 0 or width_k = %" PRId64 " %s", d->width_v, d->width_k,
                        d->cross_v ? "with packed_weights = 1" : "without a third input (cross_v = 0)");
    return CLMGK_OK;
}

static clmgk_status check_positions(const clmgk_layer_desc *d, clmgk_error *error)
{
    const struct {
        bool wrong;
        const char *text;
    } rules[] = {{d->rotary == CLMGK_ROTARY_NONE, "without rotary positions (rotary)"},
                 {d->cross != 0, "with a second input (cross)"},
                 {d->cache_capacity > 0, "with a cache, whose lengths say the positions"},
                 {d->attention->sequences > 0, "with packed sequences"}};
    for (size_t i = 0; d->use_positions && i < MGK_COUNT(rules); ++i)
        if (rules[i].wrong)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "use_positions: 1: expected 0 %s", rules[i].text);
    return CLMGK_OK;
}

static clmgk_status resolve_rotary(clmgk_layer_desc *d, clmgk_error *error)
{
    const mgk_rotary_fields fields = {.prefix = "",
                                      .head = "attention.head_size",
                                      .rotary = d->rotary,
                                      .head_size = d->attention->head_size,
                                      .size = &d->rotary_size,
                                      .base = &d->rotary_base};
    MGK_TRY(check_positions(d, error));
    return mgk_resolve_rotary(&fields, error);
}

static clmgk_status resolve_numbers(clmgk_layer_desc *d, clmgk_error *error)
{
    if (d->norm_epsilon == 0.0)
        d->norm_epsilon = 1e-5;
    const float single = (float)d->norm_epsilon; /* the kernels take it as an f32 */
    if (!(single > 0.0F) || isinf(single))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "norm_epsilon: %g: expected a positive number in the range of f32, or 0 for 1e-5",
                        d->norm_epsilon);
    if (!(d->dropout >= 0.0 && d->dropout < 1.0))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "dropout: %g: expected a probability, 0 or more and less than 1", d->dropout);
    return CLMGK_OK;
}

/* ---- the attention inside -------------------------------------------------------------------------------------- */

/* Scales of a cache that the caller gives may have any strides; those that the layer computes are dense. */
static bool is_free(const clmgk_attention_desc *a, clmgk_array array, int64_t cache_capacity)
{
    if (cache_capacity == 0 || (array != CLMGK_ARRAY_SCALE_K && array != CLMGK_ARRAY_SCALE_V))
        return false;
    return mgk_array_dtype(a, array == CLMGK_ARRAY_SCALE_K ? CLMGK_ARRAY_K : CLMGK_ARRAY_V) != CLMGK_DTYPE_INT8;
}

/* One type of all arrays but those of a cache. */
static clmgk_status check_types(const clmgk_attention_desc *a, int64_t cache_capacity, clmgk_error *error)
{
    clmgk_attention_desc others = *a;
    if (cache_capacity > 0)
        others.dtype_k = others.dtype_v = CLMGK_STORAGE_AS_Q;
    return mgk_has_one_type(&others)
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                          "attention.dtype_k, dtype_v, dtype_o, dtype_grad_q, dtype_grad_k, dtype_grad_v: expected 0: a"
                          " layer's arrays have one type, except a cache (dtype_k, dtype_v)");
}

/* Refuses fields of the attention that the layer decides. A resolved descriptor has them already, and gets them
 * again. */
static clmgk_status check_outer_fields(clmgk_attention_desc *a, int64_t cache_capacity, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        clmgk_layout *const layout = mgk_array_layout(a, (clmgk_array)i);
        if (layout == NULL || i == CLMGK_ARRAY_GRAD_LSE || is_free(a, (clmgk_array)i, cache_capacity))
            continue;
        if (layout->strided != 0 && !a->resolved)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "attention.%s.strided: %d: expected 0: the layer chooses the layout",
                            clmgk_array_name((clmgk_array)i), (int)layout->strided);
        *layout = (clmgk_layout){.strided = 0};
    }
    if ((a->gradients & INNER_GRADIENTS) != 0 && !a->resolved)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "attention.gradients: %" PRIu32
                        ": expected a set without Q, K and V, which the layer computes itself",
                        a->gradients);
    a->gradients &= ~(uint32_t)INNER_GRADIENTS;
    MGK_TRY(check_types(a, cache_capacity, error));
    if (a->statistics != 0 || a->combine != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "attention.%s: %" PRIu32 ": expected 0 within a layer",
                        a->statistics != 0 ? "statistics" : "combine",
                        a->statistics != 0 ? a->statistics : (uint32_t)a->combine);
    const struct {
        const char *field;
        int64_t value;
    } others[] = {{"use_positions", a->use_positions},
                  {"page_size", cache_capacity == 0 ? a->page_size : 0}, /* of a cache alone */
                  {"use_page_offsets", a->use_page_offsets},
                  {"use_mask_blocks", a->use_mask_blocks},
                  {"append", a->append},
                  {"sequences", a->use_lengths ? a->sequences : 0}}; /* they have caches of their own */
    for (size_t i = 0; i < MGK_COUNT(others); ++i)
        if (others[i].value != 0)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "attention.%s: %" PRId64 ": expected 0 within a layer",
                            others[i].field, others[i].value);
    return CLMGK_OK;
}

/* The number of keys of self-attention. */
static clmgk_status resolve_keys(const clmgk_layer_desc *d, clmgk_attention_desc *a, clmgk_error *error)
{
    const int64_t keys = d->cache_capacity > 0 ? d->cache_capacity : a->length;
    if (d->cross)
        return CLMGK_OK;
    if (a->length_k != keys && (a->length_k != 0 || a->resolved))
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "attention.length_k: %" PRId64 ": expected 0 or %s = %" PRId64, a->length_k,
                        d->cache_capacity > 0 ? "cache_capacity" : "attention.length", keys);
    a->length_k = keys;
    if (a->use_offsets_k != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "attention.use_offsets_k: %d: expected 0 without a second input (cross = 0)",
                        (int)a->use_offsets_k);
    return CLMGK_OK;
}

static clmgk_status check_cache(const clmgk_layer_desc *d, const clmgk_attention_desc *a, clmgk_error *error)
{
    MGK_TRY(mgk_check_axis("cache_capacity", d->cache_capacity, 0, error));
    if (d->cache_capacity == 0)
        return CLMGK_OK;
    const struct {
        bool wrong;
        const char *text;
    } rules[] = {{d->cross != 0, "cross = 0"},
                 {d->gradients != 0, "gradients = 0: there is no backward pass"},
                 {a->gradients != 0, "attention.gradients = 0: there is no backward pass"},
                 {a->sequences != 0, "attention.sequences = 0"},
                 {mgk_has_trait(a, CLMGK_TRAIT_LINEAR), "another variant: the linear family has a state (use_state)"},
                 {a->use_lengths != 1, "attention.use_lengths = 1"},
                 {a->alignment != CLMGK_ALIGN_LENGTHS, "attention.alignment = LENGTHS"},
                 {a->length > d->cache_capacity, "attention.length of at most that many tokens"}};
    for (size_t i = 0; i < MGK_COUNT(rules); ++i)
        if (rules[i].wrong)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "cache_capacity: %" PRId64 ": expected 0, or %s",
                            d->cache_capacity, rules[i].text);
    return CLMGK_OK;
}

static clmgk_status resolve_attention(clmgk_attention_desc *a, clmgk_error *error)
{
    clmgk_error failure = {.status = CLMGK_OK};
    const clmgk_status status = mgk_attention_resolve(a, a, &failure);
    return status == CLMGK_OK ? CLMGK_OK : mgk_fail(error, status, "attention.%s", failure.message);
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

static clmgk_status check_gradients(const clmgk_layer_desc *d, clmgk_error *error)
{
    static const struct {
        const char *name;
        clmgk_layer_array array;
        uint32_t bit;
    } gradients[] = {
#define GRADIENT(name, field, element, bit, ...) {#name, CLMGK_LAYER_ARRAY_GRAD_##name, bit},
        CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, GRADIENT)};
    if ((d->gradients & ~(uint32_t)CLMGK_LAYER_GRADIENT_ALL) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: %" PRIu32 ": expected a set of flags, at most %d",
                        d->gradients, CLMGK_LAYER_GRADIENT_ALL);
    for (size_t i = 0; i < MGK_COUNT(gradients); ++i)
        if ((d->gradients & gradients[i].bit) != 0 && !mgk_layer_array_exists(d, gradients[i].array))
            return mgk_fail(
                error, CLMGK_ERROR_INVALID_VALUE,
                "gradients: %s: expected only arrays of the layer: it has no such array (see cross, cross_v, "
                "packed_weights, use_bias, use_bias_o, qk_norm and norm)",
                gradients[i].name);
    if ((d->accumulate & ~d->gradients) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "accumulate: %" PRIu32 ": expected a subset of gradients = %" PRIu32, d->accumulate,
                        d->gradients);
    return CLMGK_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------------------------- */

/* Rows and columns of the products. The attention's axes are checked: nothing overflows. */
static clmgk_status check_products(const clmgk_layer_desc *d, clmgk_error *error)
{
    const mgk_layer_sizes s = mgk_layer_measure(d);
    if (s.rows > MGK_MAX_AXIS || s.rows_k > MGK_MAX_AXIS)
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW,
                        "attention.batch: %" PRId64 ": expected at most %" PRId64 " tokens of all batches together",
                        d->attention->batch, MGK_MAX_AXIS);
    if (s.q + s.k + s.v > MGK_MAX_AXIS || s.o > MGK_MAX_AXIS)
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW,
                        "attention.heads: %" PRId64 ": expected at most %" PRId64 " columns of all heads together",
                        d->attention->heads, MGK_MAX_AXIS);
    return CLMGK_OK;
}

/* Products of calls with sizes of their own have a token at least. `where`: the field of the sizes. */
static clmgk_status check_tokens(const clmgk_layer_desc *d, const char *where, clmgk_error *error)
{
    const mgk_layer_sizes s = mgk_layer_measure(d);
    return !d->attention->sizes_at_call || (s.rows > 0 && s.rows_k > 0)
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                          "%s.%s: 0: expected 1 or more within a layer with sizes_at_call = 1", where,
                          s.rows == 0 ? "length" : "length_k");
}

static clmgk_status check_arrays(const clmgk_layer_desc *d, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_LAYER_ARRAYS; ++i) {
        int64_t bytes = 0;
        if (!mgk_layer_array_bytes(d, (clmgk_layer_array)i, &bytes))
            return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its bytes do not fit in 64 bits",
                            mgk_layer_array_get_info((clmgk_layer_array)i)->name);
    }
    return CLMGK_OK;
}

/* ---- layouts --------------------------------------------------------------------------------------------------- */

/* Heads of `width` columns (in MGK and MLK, M components for each head of K) in an array of `ld` columns. */
static clmgk_layout tokens_first(int64_t tokens, int64_t ld, int64_t width, int64_t components)
{
    return (clmgk_layout){.strided = 1,
                          .batch = (tokens == 0 ? 1 : tokens) * ld,
                          .head = components * width,
                          .component = width,
                          .token = ld};
}

/* Heads lie side by side in the rows of the projections, so that nothing is transposed. Caches have the heads first: a
 * step reads each head's keys and values as one stream. */
static void set_layouts(const clmgk_layer_desc *d, clmgk_attention_desc *a)
{
    const clmgk_layout dense = {.strided = 0};
    const mgk_layer_sizes s = mgk_layer_measure(d);
    const bool cached = d->cache_capacity > 0, separate = mgk_layer_separates(d);
    const int64_t keys = mgk_has_trait(a, CLMGK_TRAIT_KEYS) ? a->components : 1;
    a->q = tokens_first(a->length, separate ? s.q : s.ld_q, a->head_size, 1);
    a->k = cached ? dense : tokens_first(a->length_k, separate ? s.k : s.ld_k, a->head_size, keys);
    a->v = cached ? dense : tokens_first(a->length_k, s.ld_k, a->value_size, 1);
    a->grad_q = tokens_first(a->length, s.ld_q, a->head_size, 1);
    a->grad_k = tokens_first(a->length_k, s.ld_k, a->head_size, keys);
    a->grad_v = tokens_first(a->length_k, s.ld_k, a->value_size, 1);
    a->o = a->grad_o = tokens_first(a->length, s.o, a->value_size, 1);
}

/* ---- the descriptor -------------------------------------------------------------------------------------------- */

static clmgk_status read_desc(const clmgk_layer_desc *desc, clmgk_layer_desc *d, clmgk_attention_desc *a,
                              clmgk_error *error)
{
    if (desc == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "desc: NULL: expected a descriptor");
    MGK_TRY(mgk_struct_read(desc, "desc", MGK_SIZE_WITH(clmgk_layer_desc, accumulate), d, sizeof(*d), error));
    if (d->attention == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "attention: NULL: expected a descriptor");
    MGK_TRY(mgk_struct_read(d->attention, "attention", MGK_LEAST_DESC_SIZE, a, sizeof(*a), error));
    d->attention = a;
    return CLMGK_OK;
}

clmgk_status mgk_layer_resolve(const clmgk_layer_desc *desc, clmgk_layer_desc *resolved,
                               clmgk_attention_desc *attention, clmgk_error *error)
{
    clmgk_layer_desc d = CLMGK_LAYER_DESC_INIT;
    clmgk_attention_desc a = CLMGK_ATTENTION_DESC_INIT;
    MGK_TRY(read_desc(desc, &d, &a, error));
    MGK_TRY(check_switches(&d, error));
    MGK_TRY(check_outer_fields(&a, d.cache_capacity, error));
    MGK_TRY(resolve_keys(&d, &a, error));
    MGK_TRY(resolve_attention(&a, error));
    MGK_TRY(check_cache(&d, &a, error));
    MGK_TRY(resolve_widths(&d, error));
    MGK_TRY(resolve_rotary(&d, error));
    MGK_TRY(resolve_numbers(&d, error));
    MGK_TRY(check_products(&d, error));
    MGK_TRY(check_tokens(&d, "attention", error));
    MGK_TRY(check_gradients(&d, error));
    if (mgk_layer_differentiates(&d)) {
        a.gradients |= INNER_GRADIENTS;
        /* a bias that masks makes |L| so large that gradients need the part of L beyond its float */
        a.use_lse_low |= a.use_bias;
    }
    set_layouts(&d, &a);
    MGK_TRY(resolve_attention(&a, error));
    MGK_TRY(check_arrays(&d, error));
    *resolved = d;
    *attention = a;
    resolved->attention = attention;
    return CLMGK_OK;
}

/* ---- sizes of a call ------------------------------------------------------------------------------------------- */

static clmgk_status check_call_layouts(const clmgk_layer_desc *limits, clmgk_call_sizes *sizes, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        const clmgk_layout *const layout = mgk_call_layout(sizes, (clmgk_array)i);
        if (layout != NULL && layout->strided != 0 &&
            !is_free(limits->attention, (clmgk_array)i, limits->cache_capacity))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "attention.sizes.%s.strided: %d: expected 0: the layer chooses the layout",
                            clmgk_array_name((clmgk_array)i), (int)layout->strided);
    }
    return CLMGK_OK;
}

/* The number of keys of self-attention, or of a cache: its capacity in the call. */
static clmgk_status resolve_call_keys(const clmgk_layer_desc *limits, clmgk_call_sizes *sizes, clmgk_error *error)
{
    const clmgk_attention_desc *const a = limits->attention;
    const bool cached = limits->cache_capacity > 0;
    int64_t most = cached ? limits->cache_capacity : sizes->length;
    if (limits->cross)
        return CLMGK_OK;
    if (cached && a->page_size > 0 && sizes->table_pages > 0 && sizes->table_pages < most / a->page_size + 1)
        most = sizes->table_pages * a->page_size < most ? sizes->table_pages * a->page_size : most;
    const int64_t least = cached ? sizes->length : most, keys = sizes->length_k != 0 ? sizes->length_k : most;
    if (keys < least || keys > most)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "attention.sizes.length_k: %" PRId64 ": expected 0, or %" PRId64 " to %" PRId64, keys, least,
                        most);
    sizes->length_k = keys;
    return CLMGK_OK;
}

static clmgk_status resize_attention(const clmgk_attention_desc *limits, const clmgk_call_sizes *sizes,
                                     clmgk_attention_desc *a, clmgk_error *error)
{
    clmgk_error failure = {.status = CLMGK_OK};
    const clmgk_status status = mgk_attention_resize(limits, sizes, a, &failure);
    return status == CLMGK_OK ? CLMGK_OK : mgk_fail(error, status, "attention.%s", failure.message);
}

/* The layouts follow from checked sizes. */
clmgk_status mgk_layer_resize(const clmgk_layer_desc *limits, clmgk_call_sizes *sizes, clmgk_layer_desc *d,
                              clmgk_attention_desc *a, clmgk_error *error)
{
    MGK_TRY(check_call_layouts(limits, sizes, error));
    MGK_TRY(resolve_call_keys(limits, sizes, error));
    MGK_TRY(resize_attention(limits->attention, sizes, a, error));
    *d = *limits;
    d->attention = a;
    d->cache_capacity = limits->cache_capacity > 0 ? a->length_k : 0;
    MGK_TRY(check_tokens(d, "attention.sizes", error));
    set_layouts(d, a);
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        clmgk_layout *const layout = mgk_call_layout(sizes, (clmgk_array)i);
        if (layout != NULL)
            *layout = *mgk_array_layout(a, (clmgk_array)i);
    }
    return resize_attention(limits->attention, sizes, a, error);
}

/* ---- the public call -------------------------------------------------------------------------------------------- */

clmgk_status clmgk_layer_validate(const clmgk_layer_desc *desc, clmgk_layer_desc *resolved,
                                  clmgk_attention_desc *attention, clmgk_error *error)
{
    clmgk_layer_desc d;
    clmgk_attention_desc a;
    if ((resolved == NULL) != (attention == NULL))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected room for both descriptors, or for none",
                        resolved == NULL ? "resolved" : "attention");
    MGK_TRY(mgk_layer_resolve(desc, &d, &a, error));
    if (resolved == NULL)
        return CLMGK_OK;
    const size_t size = desc->attention->struct_size; /* `attention` may be desc->attention */
    resolved->struct_size = desc->struct_size;
    attention->struct_size = size;
    mgk_struct_write(attention, 0, &a, sizeof(a));
    d.attention = attention;
    mgk_struct_write(resolved, 0, &d, sizeof(d));
    return CLMGK_OK;
}
