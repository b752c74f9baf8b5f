/* SPDX-License-Identifier: Apache-2.0 */
/* Cases as the papers count them. */
#include "cases.h"

tool_exit bench_count_layer(bench_case *one, tool_error *error)
{
    const bench_shape *const shape = one->shape;
    clmgk_attention_desc desc = one->desc;
    const bool noise = (clmgk_variant_traits(desc.variant) & CLMGK_TRAIT_NOISE) != 0;
    desc.shared_noise = noise;
    one->width = shape->width ? shape->width : shape->heads * shape->head_size;
    one->counts = (clmgk_counts)CLMGK_COUNTS_INIT;
    const int64_t width_k = desc.length_k != desc.length ? one->width : 0;
    return tool_check_library(
        clmgk_count_attention(&desc, one->width, width_k, one->width, &one->counts, &error->library), error);
}

static clmgk_pass pass_of(const bench_case *one)
{
    return one->pass == BENCH_FORWARD ? CLMGK_PASS_FORWARD : CLMGK_PASS_BACKWARD;
}

static double ratio(const bench_case *one, const bench_case *baseline, uint32_t parts)
{
    return clmgk_sum_operations(&one->counts, pass_of(one), parts) /
           clmgk_sum_operations(&baseline->counts, pass_of(one), parts);
}

bench_operations bench_compare_counts(const bench_group *group, const bench_case *one)
{
    static const uint32_t scores = 1U << CLMGK_PART_SCORES, projections = 1U << CLMGK_PART_QUERY_KEY;
    const uint32_t traits = clmgk_variant_traits(one->desc.variant);
    const bool linear = tool_is_linear(one->desc.variant);
    const bench_case *const baseline = linear ? bench_linear_baseline(group, one) : bench_baseline(group, one);
    if (!baseline)
        return (bench_operations){.counted = false};
    return (bench_operations){.counted = true,
                              .in_paper = (traits & CLMGK_TRAIT_ADMIXTURE) && !linear &&
                                          !(traits & CLMGK_TRAIT_GENERALISED) && one->pass == BENCH_FORWARD,
                              .matrices = ratio(one, baseline, scores),
                              .projections = ratio(one, baseline, scores | projections),
                              .layer = ratio(one, baseline, CLMGK_PART_ALL),
                              .parameters = clmgk_sum_parameters(&one->counts, CLMGK_PART_ALL) /
                                            clmgk_sum_parameters(&baseline->counts, CLMGK_PART_ALL)};
}
