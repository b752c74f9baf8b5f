/* SPDX-License-Identifier: Apache-2.0 */
/* Validation of descriptors, and their defaults. */
#include "variants/family.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Kernels index rows and keys by 32-bit integers with room for tiles and diagonals. */
#define MAX_AXIS (INT64_C(1) << 30)

static clmgk_status check_enum(const char *field, int value, int count, clmgk_error *error)
{
    if (value >= 0 && value < count)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %d: expected 0 to %d", field, value, count - 1);
}

static clmgk_status check_enums(const clmgk_attention_desc *d, clmgk_error *error)
{
    if (mgk_family_of(d->variant) == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "variant: %d: expected a clmgk_variant", (int)d->variant);
    MGK_TRY(check_enum("dtype", (int)d->dtype, 3, error));
    MGK_TRY(check_enum("score", (int)d->score, 3, error));
    MGK_TRY(check_enum("estep", (int)d->estep, 2, error));
    MGK_TRY(check_enum("prior_shape", (int)d->prior_shape, 4, error));
    MGK_TRY(check_enum("variance_shape", (int)d->variance_shape, 3, error));
    MGK_TRY(check_enum("alignment", (int)d->alignment, 3, error));
    MGK_TRY(check_enum("causal", d->causal, 2, error));
    MGK_TRY(check_enum("use_lengths", d->use_lengths, 2, error));
    return check_enum("use_lengths_q", d->use_lengths_q, 2, error);
}

static clmgk_status check_axis(const char *field, int64_t value, int64_t least, int64_t most, clmgk_error *error)
{
    if (value >= least && value <= most)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected %" PRId64 " to %" PRId64, field, value,
                    least, most);
}

/* An axis of the arrays. */
static clmgk_status check_count(const char *field, int64_t value, int64_t least, clmgk_error *error)
{
    if (value > MAX_AXIS)
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: %" PRId64 ": expected at most %" PRId64, field, value,
                        MAX_AXIS);
    return check_axis(field, value, least, MAX_AXIS, error);
}

static void set_default(int64_t *field, int64_t value)
{
    if (*field == 0)
        *field = value;
}

static clmgk_status resolve_axes(clmgk_attention_desc *d, clmgk_error *error)
{
    set_default(&d->batch, 1);
    set_default(&d->heads, 1);
    set_default(&d->kv_heads, d->heads);
    set_default(&d->value_size, d->head_size);
    MGK_TRY(check_count("batch", d->batch, 1, error));
    MGK_TRY(check_count("heads", d->heads, 1, error));
    MGK_TRY(check_count("kv_heads", d->kv_heads, 1, error));
    MGK_TRY(check_count("length", d->length, 0, error));
    MGK_TRY(check_count("length_k", d->length_k, 0, error));
    MGK_TRY(check_axis("head_size", d->head_size, 1, CLMGK_MAX_HEAD_SIZE, error));
    MGK_TRY(check_axis("value_size", d->value_size, 1, CLMGK_MAX_HEAD_SIZE, error));
    if (d->heads % d->kv_heads != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "kv_heads: %" PRId64 ": expected a divisor of heads = %" PRId64, d->kv_heads, d->heads);
    return CLMGK_OK;
}

static clmgk_status resolve_variance(clmgk_attention_desc *d, clmgk_error *error)
{
    if (d->variance_shape != CLMGK_VARIANCE_NUMBER) {
        if (d->variance != 0.0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "variance: %g: expected 0 where variance_shape is an array", d->variance);
        return CLMGK_OK;
    }
    if (!(d->variance >= 0.0) || isinf(d->variance))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "variance: %g: expected a positive number, or 0 for the square root of head_size", d->variance);
    if (d->variance == 0.0)
        d->variance = sqrt((double)d->head_size);
    /* it reaches the kernels as an f32 */
    const float single = (float)d->variance;
    if (single == 0.0f || isinf(single) || isinf(1.4427f / single))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "variance: %g: expected a number of f32's range",
                        d->variance);
    return CLMGK_OK;
}

/* Strides of a dense array in axis order; false on overflow. */
static bool dense_layout(clmgk_layout *layout, int64_t heads, int64_t components, int64_t tokens, int64_t width)
{
    /* an empty array has the strides of one with one element */
    const int64_t token_count = tokens == 0 ? 1 : tokens;
    layout->strided = 1;
    layout->token = width;
    return mgk_mul_i64(token_count, width, &layout->component) &&
           mgk_mul_i64(layout->component, components, &layout->head) &&
           mgk_mul_i64(layout->head, heads, &layout->batch);
}

static clmgk_status check_strides(const char *name, const clmgk_layout *layout, clmgk_error *error)
{
    const struct {
        const char *axis;
        int64_t stride;
    } strides[] = {
        {"batch", layout->batch}, {"head", layout->head}, {"component", layout->component}, {"token", layout->token}};
    for (size_t i = 0; i < MGK_COUNT(strides); ++i)
        if (strides[i].stride < 0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE, "%s.%s: stride %" PRId64 ": expected 0 or more", name,
                            strides[i].axis, strides[i].stride);
    return CLMGK_OK;
}

/* Sorted by stride, every axis must step over all that the axes before it reach. */
static clmgk_status check_no_overlap(const mgk_shape *shape, clmgk_error *error)
{
    bool done[5] = {false};
    int64_t reach = 0; /* of the axes done: the last element's place */
    for (int step = 0; step < shape->rank; ++step) {
        int next = -1;
        for (int i = 0; i < shape->rank; ++i)
            if (!done[i] && (next < 0 || shape->stride[i] < shape->stride[next]))
                next = i;
        done[next] = true;
        if (shape->size[next] <= 1)
            continue;
        if (shape->stride[next] <= reach)
            return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                            "%s: stride %" PRId64 " of axis %d: expected more than %" PRId64
                            ", so that no two elements share a place",
                            shape->name, shape->stride[next], next, reach);
        reach += (shape->size[next] - 1) * shape->stride[next];
    }
    return CLMGK_OK;
}

/* Fills in and checks one layout. `components` is 1 for arrays without that axis, `width` 1 for L. */
static clmgk_status resolve_layout(const clmgk_attention_desc *d, clmgk_layout *layout, mgk_array array, int64_t heads,
                                   int64_t components, int64_t tokens, int64_t width, clmgk_error *error)
{
    const char *const name = mgk_shape_of(d, array).name;
    if (layout->strided != 0 && layout->strided != 1)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s.strided: %d: expected 0 or 1", name,
                        (int)layout->strided);
    if (layout->strided)
        MGK_TRY(check_strides(name, layout, error));
    else if (!dense_layout(layout, heads, components, tokens, width))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its size in elements does not fit in 64 bits", name);
    const mgk_shape shape = mgk_shape_of(d, array);
    int64_t extent = 0;
    if (!mgk_shape_extent(&shape, &extent))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its extent in bytes does not fit in 64 bits", name);
    return extent > 0 && (array == MGK_O || array == MGK_LSE) ? check_no_overlap(&shape, error) : CLMGK_OK;
}

static clmgk_status resolve_layouts(clmgk_attention_desc *d, clmgk_error *error)
{
    const int64_t k_components = d->variant == CLMGK_VARIANT_MGK ? d->components : 1;
    MGK_TRY(resolve_layout(d, &d->q, MGK_Q, d->heads, 1, d->length, d->head_size, error));
    MGK_TRY(resolve_layout(d, &d->k, MGK_K, d->kv_heads, k_components, d->length_k, d->head_size, error));
    MGK_TRY(resolve_layout(d, &d->v, MGK_V, d->kv_heads, 1, d->length_k, d->value_size, error));
    MGK_TRY(resolve_layout(d, &d->o, MGK_O, d->heads, 1, d->length, d->value_size, error));
    return resolve_layout(d, &d->lse, MGK_LSE, d->heads, 1, d->length, 1, error);
}

/* The dense arrays' sizes. */
static clmgk_status check_extents(const clmgk_attention_desc *d, clmgk_error *error)
{
    int64_t product = 0;
    if (!mgk_mul_i64(d->heads, d->components, &product) || !mgk_mul_i64(product, d->length_k, &product) ||
        !mgk_mul_i64(product, (int64_t)sizeof(float), &product))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "heads * components * length_k does not fit in 64 bits");
    return CLMGK_OK;
}

clmgk_status clmgk_attention_validate(const clmgk_attention_desc *desc, clmgk_attention_desc *resolved,
                                      clmgk_error *error)
{
    if (desc == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "desc: NULL: expected a descriptor");
    clmgk_attention_desc d;
    MGK_TRY(mgk_struct_read(desc, "desc", sizeof(d), &d, sizeof(d), error));
    d.struct_size = sizeof(d);
    MGK_TRY(check_enums(&d, error));
    MGK_TRY(resolve_axes(&d, error));
    MGK_TRY(mgk_family_of(d.variant)->resolve(&d, error));
    MGK_TRY(check_axis("components", d.components, 1, CLMGK_MAX_COMPONENTS, error));
    if (d.alignment == CLMGK_ALIGN_LENGTHS && !d.use_lengths)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "alignment: LENGTHS: expected use_lengths = 1 with it");
    MGK_TRY(resolve_variance(&d, error));
    MGK_TRY(check_extents(&d, error));
    MGK_TRY(resolve_layouts(&d, error));
    if (resolved != NULL)
        *resolved = d;
    return CLMGK_OK;
}
