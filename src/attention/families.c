/* SPDX-License-Identifier: Apache-2.0 */
/* Which family a variant belongs to, and what all families' arrays look like. */
#include "attention/core/family.h"

#define FAMILY_MIXTURE   &mgk_mixture_family
#define FAMILY_ADMIXTURE &mgk_admixture_family

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

/* A product that saturates: an extent made with it does not fit. */
static int64_t product(int64_t a, int64_t b)
{
    int64_t out = INT64_MAX;
    return mgk_mul_i64(a, b, &out) ? out : INT64_MAX;
}

/* [B,heads,(M,)tokens,width] at `layout`; width 0: the last axis is the tokens'; components 0: no such axis. */
static mgk_shape strided(const clmgk_attention_desc *desc, const clmgk_layout *layout, int64_t heads,
                         int64_t components, int64_t tokens, int64_t width)
{
    mgk_shape shape = {.element = width == 0 ? sizeof(float) : storage_size(desc)};
    axis(&shape, desc->batch, layout->batch);
    axis(&shape, heads, layout->head);
    if (components != 0)
        axis(&shape, components, layout->component);
    axis(&shape, tokens, layout->token);
    if (width != 0)
        axis(&shape, width, 1);
    return shape;
}

/* A dense array with these axes, of which the leading ones may be 1 for "none". */
static mgk_shape dense(size_t element, int64_t a, int64_t b, int64_t c, int64_t d)
{
    mgk_shape shape = {.element = element};
    axis(&shape, a, product(product(b, c), d));
    axis(&shape, b, product(c, d));
    axis(&shape, c, d);
    axis(&shape, d, 1);
    return shape;
}

static bool has_trait(const clmgk_attention_desc *desc, clmgk_variant_trait trait)
{
    return (clmgk_variant_traits(desc->variant) & (uint32_t)trait) != 0;
}

static mgk_shape rows_of(const clmgk_attention_desc *desc, const clmgk_layout *layout, int64_t width)
{
    return strided(desc, layout, desc->heads, 0, desc->length, width);
}

static mgk_shape queries_of(const clmgk_attention_desc *desc, const clmgk_layout *layout)
{
    const int64_t heads = has_trait(desc, CLMGK_TRAIT_ADMIXTURE) ? desc->components : desc->heads;
    return strided(desc, layout, heads, 0, desc->length, desc->head_size);
}

static mgk_shape keys_of(const clmgk_attention_desc *desc, const clmgk_layout *layout)
{
    const int64_t heads = has_trait(desc, CLMGK_TRAIT_ADMIXTURE) ? desc->components : desc->kv_heads;
    const int64_t components = desc->variant == CLMGK_VARIANT_MGK ? desc->components : 0;
    return strided(desc, layout, heads, components, desc->length_k, desc->head_size);
}

static mgk_shape values_of(const clmgk_attention_desc *desc, const clmgk_layout *layout)
{
    return strided(desc, layout, desc->kv_heads, 0, desc->length_k, desc->value_size);
}

/* Of the prior, its gradient and the M-step; a uniform prior counts as [M]. */
static mgk_shape prior_shape(const clmgk_attention_desc *desc)
{
    switch (desc->prior_shape) {
    case CLMGK_PRIOR_HM:
        return dense(sizeof(float), 1, 1, desc->heads, desc->components);
    case CLMGK_PRIOR_HMS:
        return dense(sizeof(float), 1, desc->heads, desc->components, desc->length_k);
    default:
        return dense(sizeof(float), 1, 1, 1, desc->components);
    }
}

/* Of the variance and its gradient; a number counts as [1]. */
static mgk_shape variance_shape(const clmgk_attention_desc *desc)
{
    switch (desc->variance_shape) {
    case CLMGK_VARIANCE_M:
        return dense(sizeof(float), 1, 1, 1, desc->components);
    case CLMGK_VARIANCE_HM:
        return dense(sizeof(float), 1, 1, desc->heads, desc->components);
    default:
        return dense(sizeof(float), 1, 1, 1, 1);
    }
}

/* Of the mixing and its gradient. */
static mgk_shape mix_shape(const clmgk_attention_desc *desc)
{
    return dense(sizeof(float), 1, 1, has_trait(desc, CLMGK_TRAIT_SHARED_MIX) ? 1 : desc->heads, desc->components);
}

static mgk_shape bias_shape(const clmgk_attention_desc *desc)
{
    return dense(sizeof(float), desc->bias_batch, desc->bias_heads, desc->bias_length, desc->bias_length_k);
}

/* [B,H,M,N,S] */
static mgk_shape responsibilities_shape(const clmgk_attention_desc *desc)
{
    mgk_shape shape = {.element = sizeof(float)};
    const int64_t matrix = product(desc->length, desc->length_k);
    axis(&shape, desc->batch, product(product(desc->heads, desc->components), matrix));
    axis(&shape, desc->heads, product(desc->components, matrix));
    axis(&shape, desc->components, matrix);
    axis(&shape, desc->length, desc->length_k);
    axis(&shape, desc->length_k, 1);
    return shape;
}

static mgk_shape shape_of(const clmgk_attention_desc *desc, mgk_array array)
{
    switch (array) {
    case MGK_Q:
        return queries_of(desc, &desc->q);
    case MGK_K:
        return keys_of(desc, &desc->k);
    case MGK_V:
        return values_of(desc, &desc->v);
    case MGK_O:
        return rows_of(desc, &desc->o, desc->value_size);
    case MGK_LSE:
    case MGK_GRAD_LSE:
        return rows_of(desc, &desc->lse, 0);
    case MGK_PRIOR:
    case MGK_GRAD_PRIOR:
    case MGK_COUNTS:
    case MGK_NEW_PRIOR:
        return prior_shape(desc);
    case MGK_VARIANCE:
    case MGK_GRAD_VARIANCE:
        return variance_shape(desc);
    case MGK_SHIFT:
    case MGK_GRAD_SHIFT:
        return dense(sizeof(float), 1, desc->heads, desc->components, desc->head_size);
    case MGK_LENGTHS:
    case MGK_LENGTHS_Q:
        return dense(sizeof(int32_t), 1, 1, 1, desc->batch);
    case MGK_OFFSETS:
    case MGK_OFFSETS_K:
        return dense(sizeof(int32_t), 1, 1, 1, desc->sequences + 1);
    case MGK_BIAS:
    case MGK_GRAD_BIAS:
        return bias_shape(desc);
    case MGK_SLOPES:
    case MGK_SINKS:
    case MGK_GRAD_SINKS:
    case MGK_MIX_OFFSET:
    case MGK_GRAD_MIX_OFFSET:
        return dense(sizeof(float), 1, 1, 1, desc->heads);
    case MGK_MIX:
    case MGK_GRAD_MIX:
        return mix_shape(desc);
    case MGK_MIX_WEIGHT:
    case MGK_GRAD_MIX_WEIGHT:
        return dense(sizeof(float), 1, 1, desc->heads, desc->components);
    case MGK_NOISE:
    case MGK_GRAD_NOISE:
        return dense(sizeof(float), 1, 1, 1, desc->components);
    case MGK_GRAD_O:
        return rows_of(desc, &desc->grad_o, desc->value_size);
    case MGK_GRAD_Q:
        return queries_of(desc, &desc->grad_q);
    case MGK_GRAD_K:
        return keys_of(desc, &desc->grad_k);
    case MGK_GRAD_V:
        return values_of(desc, &desc->grad_v);
    case MGK_RESPONSIBILITIES:
        return responsibilities_shape(desc);
    case MGK_NLL:
        return dense(sizeof(float), 1, 1, desc->sequences > 0 ? desc->sequences : desc->batch, desc->heads);
    case MGK_PARTS_O:
        return dense(storage_size(desc), desc->batch, desc->heads, desc->length, desc->value_size);
    case MGK_PARTS_LSE:
        return dense(sizeof(float), 1, desc->batch, desc->heads, desc->length);
    default:
        return (mgk_shape){0};
    }
}

/* ---- who needs what ----------------------------------------------------------------------------------------- */

static mgk_presence required_if(bool condition)
{
    return condition ? MGK_REQUIRED : MGK_ABSENT;
}

/* Inputs beside Q, K and V: the same in every pass over keys. */
static mgk_presence input_presence(const clmgk_attention_desc *desc, mgk_array array)
{
    switch (array) {
    case MGK_PRIOR:
        return required_if(desc->prior_shape != CLMGK_PRIOR_UNIFORM);
    case MGK_VARIANCE:
        return required_if(desc->variance_shape != CLMGK_VARIANCE_NUMBER);
    case MGK_SHIFT:
        return required_if(desc->variant == CLMGK_VARIANT_SMGK);
    case MGK_LENGTHS:
        return required_if(desc->use_lengths);
    case MGK_LENGTHS_Q:
        return required_if(desc->use_lengths_q);
    case MGK_OFFSETS:
        return required_if(desc->sequences > 0);
    case MGK_OFFSETS_K:
        return required_if(desc->use_offsets_k);
    case MGK_BIAS:
        return required_if(desc->use_bias);
    case MGK_SLOPES:
        return required_if(desc->use_alibi);
    case MGK_SINKS:
        return required_if(desc->use_sinks);
    case MGK_MIX:
        return required_if(has_trait(desc, CLMGK_TRAIT_ADMIXTURE));
    case MGK_MIX_WEIGHT:
        return required_if(desc->use_mix_weight);
    case MGK_MIX_OFFSET:
        return required_if(desc->use_mix_offset);
    case MGK_NOISE:
        return required_if(has_trait(desc, CLMGK_TRAIT_NOISE));
    default:
        return MGK_ABSENT;
    }
}

static mgk_presence forward_presence(const clmgk_attention_desc *desc, mgk_array array)
{
    switch (array) {
    case MGK_Q:
    case MGK_K:
    case MGK_V:
    case MGK_O:
        return MGK_REQUIRED;
    case MGK_LSE:
        return MGK_OPTIONAL;
    default:
        return input_presence(desc, array);
    }
}

/* The gradient that an array of the backward pass is; 0: none. */
static uint32_t gradient_of(mgk_array array)
{
    switch (array) {
    case MGK_GRAD_Q:
        return CLMGK_GRADIENT_Q;
    case MGK_GRAD_K:
        return CLMGK_GRADIENT_K;
    case MGK_GRAD_V:
        return CLMGK_GRADIENT_V;
    case MGK_GRAD_PRIOR:
        return CLMGK_GRADIENT_PRIOR;
    case MGK_GRAD_VARIANCE:
        return CLMGK_GRADIENT_VARIANCE;
    case MGK_GRAD_SHIFT:
        return CLMGK_GRADIENT_SHIFT;
    case MGK_GRAD_BIAS:
        return CLMGK_GRADIENT_BIAS;
    case MGK_GRAD_SINKS:
        return CLMGK_GRADIENT_SINKS;
    case MGK_GRAD_MIX:
        return CLMGK_GRADIENT_MIX;
    case MGK_GRAD_MIX_WEIGHT:
        return CLMGK_GRADIENT_MIX_WEIGHT;
    case MGK_GRAD_MIX_OFFSET:
        return CLMGK_GRADIENT_MIX_OFFSET;
    case MGK_GRAD_NOISE:
        return CLMGK_GRADIENT_NOISE;
    default:
        return 0;
    }
}

static mgk_presence backward_presence(const clmgk_attention_desc *desc, mgk_array array)
{
    if (desc->gradients == 0)
        return MGK_ABSENT;
    switch (array) {
    case MGK_Q:
    case MGK_K:
    case MGK_V:
    case MGK_O:
    case MGK_LSE:
    case MGK_GRAD_O:
        return MGK_REQUIRED;
    case MGK_GRAD_LSE:
        return MGK_OPTIONAL;
    default:
        return gradient_of(array) != 0 ? required_if((desc->gradients & gradient_of(array)) != 0)
                                       : input_presence(desc, array);
    }
}

/* The statistic that an array is; 0: none. */
static uint32_t statistic_of(mgk_array array)
{
    switch (array) {
    case MGK_RESPONSIBILITIES:
        return CLMGK_STATISTIC_RESPONSIBILITIES;
    case MGK_COUNTS:
        return CLMGK_STATISTIC_COUNTS;
    case MGK_NEW_PRIOR:
        return CLMGK_STATISTIC_NEW_PRIOR;
    case MGK_NLL:
        return CLMGK_STATISTIC_NLL;
    default:
        return 0;
    }
}

static mgk_presence statistics_presence(const clmgk_attention_desc *desc, mgk_array array)
{
    if (desc->statistics == 0)
        return MGK_ABSENT;
    if (array == MGK_Q || array == MGK_K)
        return MGK_REQUIRED;
    return statistic_of(array) != 0 ? required_if((desc->statistics & statistic_of(array)) != 0)
                                    : input_presence(desc, array);
}

static mgk_presence combine_presence(const clmgk_attention_desc *desc, mgk_array array)
{
    if (array == MGK_LSE)
        return desc->combine ? MGK_OPTIONAL : MGK_ABSENT;
    return required_if(desc->combine && (array == MGK_PARTS_O || array == MGK_PARTS_LSE || array == MGK_O));
}

mgk_presence mgk_presence_of(const clmgk_attention_desc *desc, mgk_pass pass, mgk_array array)
{
    switch (pass) {
    case MGK_FORWARD:
        return forward_presence(desc, array);
    case MGK_BACKWARD:
        return backward_presence(desc, array);
    case MGK_STATISTICS:
        return statistics_presence(desc, array);
    case MGK_COMBINE:
        return combine_presence(desc, array);
    default:
        return MGK_ABSENT;
    }
}

bool mgk_is_output(mgk_pass pass, mgk_array array)
{
    switch (pass) {
    case MGK_FORWARD:
    case MGK_COMBINE:
        return array == MGK_O || array == MGK_LSE;
    case MGK_BACKWARD:
        return gradient_of(array) != 0;
    default:
        return statistic_of(array) != 0;
    }
}

static bool is_used(const clmgk_attention_desc *desc, mgk_array array)
{
    for (int pass = 0; pass < MGK_PASSES; ++pass)
        if (mgk_presence_of(desc, (mgk_pass)pass, array) != MGK_ABSENT)
            return true;
    return false;
}

mgk_shape mgk_shape_of(const clmgk_attention_desc *desc, mgk_array array)
{
    /* as in the public structures */
    static const char *const names[MGK_ARRAYS] = {
        [MGK_Q] = "q",
        [MGK_K] = "k",
        [MGK_V] = "v",
        [MGK_O] = "o",
        [MGK_LSE] = "lse",
        [MGK_PRIOR] = "prior",
        [MGK_VARIANCE] = "variance",
        [MGK_SHIFT] = "shift",
        [MGK_LENGTHS] = "lengths",
        [MGK_LENGTHS_Q] = "lengths_q",
        [MGK_OFFSETS] = "offsets",
        [MGK_OFFSETS_K] = "offsets_k",
        [MGK_BIAS] = "bias",
        [MGK_SLOPES] = "slopes",
        [MGK_SINKS] = "sinks",
        [MGK_MIX] = "mix",
        [MGK_MIX_WEIGHT] = "mix_weight",
        [MGK_MIX_OFFSET] = "mix_offset",
        [MGK_NOISE] = "noise",
        [MGK_GRAD_O] = "grad_o",
        [MGK_GRAD_LSE] = "grad_lse",
        [MGK_GRAD_Q] = "grad_q",
        [MGK_GRAD_K] = "grad_k",
        [MGK_GRAD_V] = "grad_v",
        [MGK_GRAD_PRIOR] = "grad_prior",
        [MGK_GRAD_VARIANCE] = "grad_variance",
        [MGK_GRAD_SHIFT] = "grad_shift",
        [MGK_GRAD_BIAS] = "grad_bias",
        [MGK_GRAD_SINKS] = "grad_sinks",
        [MGK_GRAD_MIX] = "grad_mix",
        [MGK_GRAD_MIX_WEIGHT] = "grad_mix_weight",
        [MGK_GRAD_MIX_OFFSET] = "grad_mix_offset",
        [MGK_GRAD_NOISE] = "grad_noise",
        [MGK_RESPONSIBILITIES] = "responsibilities",
        [MGK_COUNTS] = "counts",
        [MGK_NEW_PRIOR] = "new_prior",
        [MGK_NLL] = "nll",
        [MGK_PARTS_O] = "parts_o",
        [MGK_PARTS_LSE] = "parts_lse",
        [MGK_WORKSPACE] = "workspace",
    };
    mgk_shape shape = {0};
    if (is_used(desc, array))
        shape = shape_of(desc, array);
    shape.name = names[array];
    return shape;
}

static bool is_empty(const mgk_shape *shape)
{
    for (int i = 0; i < shape->rank; ++i)
        if (shape->size[i] == 0)
            return true;
    return shape->rank == 0;
}

bool mgk_shape_extent(const mgk_shape *shape, int64_t *extent)
{
    int64_t last = 0; /* the last element's place */
    if (is_empty(shape)) {
        *extent = 0;
        return true;
    }
    for (int i = 0; i < shape->rank; ++i) {
        int64_t step = 0;
        if (!mgk_mul_i64(shape->size[i] - 1, shape->stride[i], &step) || !mgk_add_i64(last, step, &last))
            return false;
    }
    int64_t bytes = 0;
    return mgk_add_i64(last, 1, extent) && mgk_mul_i64(*extent, (int64_t)shape->element, &bytes);
}
