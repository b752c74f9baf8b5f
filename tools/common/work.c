/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

bool tool_is_mixed(clmgk_variant variant)
{
    return (clmgk_variant_traits(variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
}

clmgk_dtype tool_array_dtype(const clmgk_attention_desc *desc, clmgk_array array)
{
    return clmgk_array_get_info(array)->element == CLMGK_ELEMENT_STORAGE ? desc->dtype : CLMGK_DTYPE_F32;
}

/* ---- pairs -------------------------------------------------------------------------------------------------- */

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* The sum of `start` + i, held between 0 and `limit`, over i = 0 .. rows - 1. */
static double sum_clamped(int64_t start, int64_t rows, int64_t limit)
{
    const int64_t low = clamp(-start, 0, rows);
    const int64_t high = clamp(limit - start, low, rows);
    return (double)(high - low) * ((double)start + 0.5 * (double)(low + high - 1)) +
           (double)(rows - high) * (double)limit;
}

/* Pairs of a head of one sequence, whose row i has the diagonal `start` + i. */
static double count_pairs(const clmgk_attention_desc *desc, int64_t start, int64_t rows, int64_t keys)
{
    static const int64_t far = INT64_C(1) << 32; /* beyond every axis */
    const bool left = desc->use_window && desc->window_left >= 0 && desc->window_left < far;
    int64_t right = desc->use_window && desc->window_right >= 0 ? desc->window_right : far;
    if (desc->causal)
        right = 0;
    const double ends = right < far ? sum_clamped(start + right + 1, rows, keys) : (double)rows * (double)keys;
    return ends - (left ? sum_clamped(start - desc->window_left, rows, keys) : 0);
}

/* Pairs of a head of batch b; without packing, its sequence is the whole axes. */
static double batch_pairs(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, int64_t b)
{
    const int32_t *const of_keys = arrays && desc->use_offsets_k ? arrays->offsets_k : arrays ? arrays->offsets : NULL;
    double pairs = 0;
    for (int64_t t = 0; t < desc->sequences; t++) {
        const int64_t rows = (int64_t)arrays->offsets[t + 1] - arrays->offsets[t];
        const int64_t keys = (int64_t)of_keys[t + 1] - of_keys[t];
        pairs += count_pairs(desc, desc->alignment == CLMGK_ALIGN_TOP_LEFT ? 0 : keys - rows, rows, keys);
    }
    if (desc->sequences > 0)
        return pairs;
    const int64_t keys = desc->use_lengths ? clamp(arrays->lengths[b], 0, desc->length_k) : desc->length_k;
    const int64_t rows = desc->use_lengths_q ? clamp(arrays->lengths_q[b], 0, desc->length) : desc->length;
    const int64_t last_key = desc->alignment == CLMGK_ALIGN_LENGTHS ? keys : desc->length_k;
    return count_pairs(desc, desc->alignment == CLMGK_ALIGN_TOP_LEFT ? 0 : last_key - desc->length, rows, keys);
}

double tool_visible_pairs(const clmgk_attention_desc *desc, const clmgk_host_args *arrays)
{
    if (!desc->use_lengths && !desc->use_lengths_q)
        return batch_pairs(desc, arrays, 0) * (double)desc->batch * (double)desc->heads;
    double pairs = 0;
    for (int64_t b = 0; b < desc->batch; b++)
        pairs += batch_pairs(desc, arrays, b);
    return pairs * (double)desc->heads;
}

/* ---- operations --------------------------------------------------------------------------------------------- */

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
