/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

#include "reference/reference.h"

double tool_visible_pairs(const clmgk_attention_desc *desc, const int32_t *lengths, const int32_t *lengths_q)
{
    const clmgk_ref_problem problem = {.desc = *desc, .lengths = lengths, .lengths_q = lengths_q};
    double pairs = 0.0;
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t i = 0; i < desc->length; i++)
            pairs += (double)clmgk_ref_visible_keys(&problem, b, i);
    return pairs * (double)desc->heads;
}

double tool_forward_flops(const clmgk_attention_desc *desc, double visible_pairs)
{
    const double products = desc->variant == CLMGK_VARIANT_MGK ? (double)desc->components : 1.0;
    return 2.0 * (products * (double)desc->head_size + (double)desc->value_size) * visible_pairs;
}
