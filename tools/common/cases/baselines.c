/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that others are held against. */
#include "cases.h"

#include <string.h>

/* Whether the arrays of two cases have the same storage types. */
static bool same_types(const clmgk_attention_desc *one, const clmgk_attention_desc *other)
{
    return strcmp(tool_dtypes_text(one).text, tool_dtypes_text(other).text) == 0;
}

/* Whether a case has the masks of `one`, whose text, if it has one, stands for those of the shape. */
static bool same_masks(const bench_shape *shape, const clmgk_attention_desc *other, const bench_case *one)
{
    const bool causal = one->text ? shape->causal : one->desc.causal != 0;
    const bool window = one->text ? shape->modifiers.window : one->desc.use_window != 0;
    return (other->causal != 0) == causal && (other->use_window != 0) == window;
}

/* The case of a variant with the shape's number of heads that is otherwise like `one`; NULL: not measured. */
static const bench_case *find_beside(const bench_group *group, clmgk_variant variant, const bench_case *one)
{
    const bench_pass pass = one->pass == BENCH_MASK ? BENCH_FORWARD : one->pass;
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *other = &group->cases[i];
        if (other->desc.variant == variant && other->desc.heads == group->shape->heads && other->pass == pass &&
            same_types(&other->desc, &one->desc) && !other->text && same_masks(group->shape, &other->desc, one) &&
            other->repetitions)
            return other;
    }
    return NULL;
}

const bench_case *bench_baseline(const bench_group *group, const bench_case *one)
{
    return find_beside(group, CLMGK_VARIANT_SOFTMAX, one);
}

const bench_case *bench_linear_baseline(const bench_group *group, const bench_case *one)
{
    return tool_is_linear(one->desc.variant) ? find_beside(group, CLMGK_VARIANT_LINEAR, one) : NULL;
}

const bench_case *bench_windowed(const bench_group *group, const bench_case *full)
{
    if (!group->shape->modifiers.window || full->desc.use_window || full->text || !full->repetitions)
        return NULL;
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *other = &group->cases[i];
        if (other->desc.use_window && other->pass == full->pass && other->desc.variant == full->desc.variant &&
            other->desc.heads == full->desc.heads && same_types(&other->desc, &full->desc) && other->repetitions)
            return other;
    }
    return NULL;
}
