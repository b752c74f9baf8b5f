/* SPDX-License-Identifier: Apache-2.0 */
/* Which family a variant belongs to, and what all families' arrays look like. */
#include "variants/family.h"

#define FAMILY_MIXTURE &mgk_mixture_family

const mgk_family *mgk_family_of(clmgk_variant variant)
{
    switch (variant) {
#define FAMILY_CASE(name, value, text, family)                                                                         \
    case CLMGK_VARIANT_##name:                                                                                         \
        return FAMILY_##family;
        CLMGK_VARIANT_LIST(FAMILY_CASE)
#undef FAMILY_CASE
    }
    return NULL;
}

static size_t storage_size(const clmgk_attention_desc *desc)
{
    return desc->dtype == CLMGK_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* Appends an axis. */
static void axis(mgk_shape *shape, int64_t size, int64_t stride)
{
    shape->size[shape->rank] = size;
    shape->stride[shape->rank] = stride;
    ++shape->rank;
}

/* [B,heads,(M,)tokens,width] at `layout`; width 0: the last axis is the tokens'. */
static mgk_shape strided(const clmgk_attention_desc *desc, const clmgk_layout *layout, int64_t heads, int64_t tokens,
                         int64_t width)
{
    mgk_shape shape = {.element = width == 0 ? sizeof(float) : storage_size(desc)};
    axis(&shape, desc->batch, layout->batch);
    axis(&shape, heads, layout->head);
    if (layout == &desc->k && desc->variant == CLMGK_VARIANT_MGK)
        axis(&shape, desc->components, layout->component);
    axis(&shape, tokens, layout->token);
    if (width != 0)
        axis(&shape, width, 1);
    return shape;
}

/* A dense array: the axes of `size` (up to three, 0 ends the list). */
static mgk_shape dense(size_t element, int64_t a, int64_t b, int64_t c)
{
    mgk_shape shape = {.element = element};
    axis(&shape, a, b * c);
    axis(&shape, b, c);
    axis(&shape, c, 1);
    return shape;
}

static mgk_shape prior_shape(const clmgk_attention_desc *desc)
{
    switch (desc->prior_shape) {
    case CLMGK_PRIOR_M:
        return dense(sizeof(float), 1, 1, desc->components);
    case CLMGK_PRIOR_HM:
        return dense(sizeof(float), 1, desc->heads, desc->components);
    case CLMGK_PRIOR_HMS:
        return dense(sizeof(float), desc->heads, desc->components, desc->length_k);
    default:
        return (mgk_shape){0};
    }
}

static mgk_shape variance_shape(const clmgk_attention_desc *desc)
{
    switch (desc->variance_shape) {
    case CLMGK_VARIANCE_M:
        return dense(sizeof(float), 1, 1, desc->components);
    case CLMGK_VARIANCE_HM:
        return dense(sizeof(float), 1, desc->heads, desc->components);
    default:
        return (mgk_shape){0};
    }
}

static mgk_shape shape_of(const clmgk_attention_desc *desc, mgk_array array)
{
    switch (array) {
    case MGK_Q:
        return strided(desc, &desc->q, desc->heads, desc->length, desc->head_size);
    case MGK_K:
        return strided(desc, &desc->k, desc->kv_heads, desc->length_k, desc->head_size);
    case MGK_V:
        return strided(desc, &desc->v, desc->kv_heads, desc->length_k, desc->value_size);
    case MGK_O:
        return strided(desc, &desc->o, desc->heads, desc->length, desc->value_size);
    case MGK_LSE:
        return strided(desc, &desc->lse, desc->heads, desc->length, 0);
    case MGK_PRIOR:
        return prior_shape(desc);
    case MGK_VARIANCE:
        return variance_shape(desc);
    case MGK_SHIFT:
        return dense(sizeof(float), desc->heads, desc->components, desc->head_size);
    default:
        return dense(sizeof(int32_t), 1, 1, desc->batch);
    }
}

mgk_presence mgk_presence_of(const clmgk_attention_desc *desc, mgk_array array)
{
    switch (array) {
    case MGK_LSE:
        return MGK_OPTIONAL;
    case MGK_PRIOR:
        return desc->prior_shape != CLMGK_PRIOR_UNIFORM ? MGK_REQUIRED : MGK_ABSENT;
    case MGK_VARIANCE:
        return desc->variance_shape != CLMGK_VARIANCE_NUMBER ? MGK_REQUIRED : MGK_ABSENT;
    case MGK_SHIFT:
        return desc->variant == CLMGK_VARIANT_SMGK ? MGK_REQUIRED : MGK_ABSENT;
    case MGK_LENGTHS:
        return desc->use_lengths ? MGK_REQUIRED : MGK_ABSENT;
    case MGK_LENGTHS_Q:
        return desc->use_lengths_q ? MGK_REQUIRED : MGK_ABSENT;
    default:
        return MGK_REQUIRED;
    }
}

mgk_shape mgk_shape_of(const clmgk_attention_desc *desc, mgk_array array)
{
    static const char *const names[MGK_ARRAYS] = {"q",     "k",        "v",     "o",       "lse",
                                                  "prior", "variance", "shift", "lengths", "lengths_q"};
    mgk_shape shape = {0};
    if (mgk_presence_of(desc, array) != MGK_ABSENT)
        shape = shape_of(desc, array);
    shape.name = names[array];
    return shape;
}

bool mgk_shape_extent(const mgk_shape *shape, int64_t *extent)
{
    int64_t last = 0; /* the last element's place */
    for (int i = 0; i < shape->rank; ++i) {
        int64_t step = 0;
        if (shape->size[i] == 0) {
            *extent = 0;
            return true;
        }
        if (!mgk_mul_i64(shape->size[i] - 1, shape->stride[i], &step) || !mgk_add_i64(last, step, &last))
            return false;
    }
    if (shape->rank == 0) {
        *extent = 0;
        return true;
    }
    int64_t bytes = 0;
    return mgk_add_i64(last, 1, extent) && mgk_mul_i64(*extent, (int64_t)shape->element, &bytes);
}
