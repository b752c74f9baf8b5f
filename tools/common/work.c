/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

#include "reference/reference.h"

bool tool_is_mixed(clmgk_variant variant)
{
    return (clmgk_variant_traits(variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
}

double tool_visible_pairs(const clmgk_attention_desc *desc, const clmgk_host_args *arrays)
{
    clmgk_ref_problem problem = {.desc = *desc};
    if (arrays) {
        problem.lengths = arrays->lengths;
        problem.lengths_q = arrays->lengths_q;
        problem.offsets = arrays->offsets;
        problem.offsets_k = arrays->offsets_k;
    }
    double pairs = 0.0;
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t i = 0; i < desc->length; i++)
            pairs += (double)clmgk_ref_visible_keys(&problem, b, i);
    return pairs * (double)desc->heads;
}

double tool_score_products(const clmgk_attention_desc *desc)
{
    const double components = (double)desc->components, heads = (double)desc->heads;
    const double products =
        tool_is_mixed(desc->variant) ? components : heads * (desc->variant == CLMGK_VARIANT_MGK ? components : 1.0);
    return products * (double)desc->head_size;
}

double tool_value_products(const clmgk_attention_desc *desc)
{
    return (double)desc->heads * (double)desc->value_size;
}

double tool_forward_flops(const clmgk_attention_desc *desc, double visible_pairs)
{
    return 2.0 * (tool_score_products(desc) + tool_value_products(desc)) * (visible_pairs / (double)desc->heads);
}

double tool_backward_flops(const clmgk_attention_desc *desc, double visible_pairs)
{
    const uint32_t set = desc->gradients;
    const double scores = tool_score_products(desc);
    const double values = tool_value_products(desc);
    double products = set != 0 ? scores : 0.0;
    if (set & ~(uint32_t)CLMGK_GRADIENT_V)
        products += values;
    if (set & CLMGK_GRADIENT_V)
        products += values;
    if (set & CLMGK_GRADIENT_Q)
        products += scores;
    if (set & (CLMGK_GRADIENT_K | CLMGK_GRADIENT_SHIFT))
        products += scores;
    return 2.0 * products * (visible_pairs / (double)desc->heads);
}
