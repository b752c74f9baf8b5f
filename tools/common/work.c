/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

#include <stdlib.h>
#include <string.h>

bool tool_is_mixed(clmgk_variant variant)
{
    return (clmgk_variant_traits(variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
}

bool tool_is_linear(clmgk_variant variant)
{
    return (clmgk_variant_traits(variant) & CLMGK_TRAIT_LINEAR) != 0;
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

/* Keys of batch b, or of packed sequence b: in use of its pages or cache, or on the axis. */
static int64_t keys_of(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, int64_t b)
{
    if (desc->use_page_offsets) {
        const int64_t pages = (int64_t)arrays->page_offsets[b + 1] - arrays->page_offsets[b];
        return clamp((pages - 1) * desc->page_size + arrays->last_page[b], 0, desc->length_k);
    }
    if (desc->use_lengths)
        return clamp(arrays->lengths[b], 0, desc->length_k);
    if (desc->sequences == 0 || desc->page_size > 0)
        return desc->length_k;
    const int32_t *const offsets = desc->use_offsets_k ? arrays->offsets_k : arrays->offsets;
    return (int64_t)offsets[b + 1] - offsets[b];
}

/* Where the tokens of batch b end, from which the diagonal is counted; a length may exceed the keys. */
static int64_t end_of(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, int64_t b)
{
    if (desc->alignment != CLMGK_ALIGN_LENGTHS)
        return desc->length_k;
    return desc->use_lengths ? clamp(arrays->lengths[b], 0, INT32_MAX) : keys_of(desc, arrays, b);
}

/* The first key of a packed sequence on the axis. */
static int64_t first_key_of(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, int64_t t)
{
    return (desc->use_offsets_k ? arrays->offsets_k : arrays->offsets)[t];
}

/* Pairs whose distance the window allows, of `rows` queries and `keys` keys at these positions. */
static double placed_pairs(const clmgk_attention_desc *desc, const int32_t *query, int64_t rows, const int32_t *key,
                           int64_t keys)
{
    const int64_t right = desc->causal                                  ? 0
                          : desc->use_window && desc->window_right >= 0 ? desc->window_right
                                                                        : INT32_MAX;
    const int64_t left = desc->use_window && desc->window_left >= 0 ? desc->window_left : INT32_MAX;
    int64_t pairs = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < keys; j++)
            pairs += (int64_t)key[j] - query[i] <= right && (int64_t)query[i] - key[j] <= left;
    return (double)pairs;
}

/* Pairs of a head of batch b; without packing, its sequence is the whole axes. */
static double batch_pairs(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, int64_t b)
{
    double pairs = 0;
    for (int64_t t = 0; t < desc->sequences; t++) {
        const int64_t rows = (int64_t)arrays->offsets[t + 1] - arrays->offsets[t];
        const int64_t keys = keys_of(desc, arrays, t);
        pairs += desc->use_positions
                     ? placed_pairs(desc, arrays->positions + arrays->offsets[t], rows,
                                    arrays->positions_k + first_key_of(desc, arrays, t), keys)
                     : count_pairs(desc, desc->alignment == CLMGK_ALIGN_TOP_LEFT ? 0 : keys - rows, rows, keys);
    }
    if (desc->sequences > 0)
        return pairs;
    const int64_t keys = keys_of(desc, arrays, b);
    const int64_t rows = desc->use_lengths_q ? clamp(arrays->lengths_q[b], 0, desc->length) : desc->length;
    if (desc->use_positions)
        return placed_pairs(desc, arrays->positions + b * desc->length, rows, arrays->positions_k + b * desc->length_k,
                            keys);
    const int64_t last_key = end_of(desc, arrays, b);
    return count_pairs(desc, desc->alignment == CLMGK_ALIGN_TOP_LEFT ? 0 : last_key - desc->length, rows, keys);
}

double tool_visible_pairs(const clmgk_attention_desc *desc, const clmgk_host_args *arrays)
{
    if (!desc->use_lengths && !desc->use_lengths_q && !desc->use_positions && !desc->use_page_offsets)
        return batch_pairs(desc, arrays, 0) * (double)desc->batch * (double)desc->heads;
    double pairs = 0;
    for (int64_t b = 0; b < desc->batch; b++)
        pairs += batch_pairs(desc, arrays, b);
    return pairs * (double)desc->heads;
}

/* ---- operations: scores and values --------------------------------------------------------------------------- */

/* Features of a head: of all global heads, one after the other, where they are mixed. */
static double feature_width(const clmgk_attention_desc *desc)
{
    return (double)desc->features * (tool_is_mixed(desc->variant) ? (double)desc->components : 1.0);
}

double tool_score_products(const clmgk_attention_desc *desc)
{
    const double components = (double)desc->components, heads = (double)desc->heads;
    const bool own_keys = (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_KEYS) != 0;
    if (tool_is_linear(desc->variant))
        return heads * feature_width(desc);
    const double products = tool_is_mixed(desc->variant) ? components : heads * (own_keys ? components : 1.0);
    return products * (double)desc->head_size;
}

double tool_value_products(const clmgk_attention_desc *desc)
{
    return (double)desc->heads * (double)desc->value_size;
}

static double backward_products(const clmgk_attention_desc *desc)
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
    return products;
}

/* ---- operations: linear family -------------------------------------------------------------------------------- */

/* What a head's products go over, summed over the batch. */
typedef struct extent {
    double queries, keys;
    double chunk_pairs; /* of a query and a key that it sees, of the same chunk */
} extent;

/* "…,name=32,…"; 0: not there. */
static int64_t parameter_of(const char *parameters, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = parameters; at != NULL && *at != '\0'; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return strtoll(at + length + 1, NULL, 10);
    }
    return 0;
}

/* Of a sequence whose row i has the diagonal `start` + i: chunk c pairs rows c T ... with keys c T + start ... */
static double pairs_in_chunks(int64_t start, int64_t rows, int64_t keys, int64_t chunk)
{
    double pairs = 0;
    for (int64_t first = 0; chunk > 0 && first < rows; first += chunk) {
        const int64_t now = rows - first < chunk ? rows - first : chunk;
        pairs += sum_clamped(start + first + 1, now, keys) - (double)now * (double)clamp(start + first, 0, keys);
    }
    return pairs;
}

/* Adds a sequence. `shift`: the key on the diagonal of its first row, unless the alignment is top-left. */
static void add_sequence(const clmgk_attention_desc *desc, int64_t shift, int64_t rows, int64_t keys, int64_t chunk,
                         extent *sum)
{
    const int64_t start = desc->alignment == CLMGK_ALIGN_TOP_LEFT ? 0 : shift;
    sum->queries += (double)rows;
    sum->keys += (double)keys;
    sum->chunk_pairs += desc->causal ? pairs_in_chunks(start, rows, keys, chunk) : 0;
}

static extent extent_of(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, int64_t chunk)
{
    extent sum = {0, 0, 0};
    for (int64_t t = 0; t < desc->sequences; t++) {
        const int64_t keys = keys_of(desc, arrays, t);
        const int64_t rows = (int64_t)arrays->offsets[t + 1] - arrays->offsets[t];
        add_sequence(desc, keys - rows, rows, keys, chunk, &sum);
    }
    const bool uneven = desc->use_lengths || desc->use_lengths_q;
    const int64_t batches = desc->sequences > 0 ? 0 : uneven ? desc->batch : 1;
    for (int64_t b = 0; b < batches; b++) {
        const int64_t keys = desc->use_lengths ? clamp(arrays->lengths[b], 0, desc->length_k) : desc->length_k;
        const int64_t last_key = desc->alignment == CLMGK_ALIGN_LENGTHS ? keys : desc->length_k;
        const int64_t rows = desc->use_lengths_q ? clamp(arrays->lengths_q[b], 0, desc->length) : desc->length;
        add_sequence(desc, last_key - desc->length, rows, keys, chunk, &sum);
    }
    const double times = batches == 1 ? (double)desc->batch : 1;
    return (extent){times * sum.queries, times * sum.keys, times * sum.chunk_pairs};
}

/* The products of the map favor with its projection. */
static double projection_products(const clmgk_attention_desc *desc, double queries, double keys)
{
    const uint32_t traits = clmgk_variant_traits(desc->variant);
    const double components = (double)desc->components;
    if (desc->feature != CLMGK_FEATURE_FAVOR)
        return 0;
    const double of_keys = traits & (CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT) ? components : 1;
    const double of_queries = traits & CLMGK_TRAIT_ADMIXTURE ? components : 1;
    return (double)(desc->features * desc->head_size) * (of_queries * queries + of_keys * keys);
}

static double linear_forward_products(const clmgk_attention_desc *desc, const extent *over)
{
    const double width = feature_width(desc), values = (double)desc->value_size;
    return (double)desc->heads *
           ((over->queries + over->keys) * width * (values + 1) + over->chunk_pairs * (width + values) +
            projection_products(desc, over->queries, over->keys));
}

static double linear_backward_products(const clmgk_attention_desc *desc, const extent *over)
{
    static const uint32_t of_queries =
        CLMGK_GRADIENT_Q | CLMGK_GRADIENT_MIX | CLMGK_GRADIENT_MIX_WEIGHT | CLMGK_GRADIENT_NOISE;
    static const uint32_t of_keys = CLMGK_GRADIENT_K | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_SHIFT;
    const uint32_t set = desc->gradients;
    const double width = feature_width(desc), values = (double)desc->value_size;
    const double in_chunk = over->chunk_pairs * (width + values + 1);
    double products = projection_products(desc, over->queries, over->keys);
    if (set & of_queries)
        products += (over->queries + over->keys) * width * (values + 1) + in_chunk +
                    projection_products(desc, over->queries, 0);
    if (set & ~of_queries)
        products += over->queries * width * (values + 1);
    if (set & CLMGK_GRADIENT_V)
        products += over->keys * width * values + over->chunk_pairs * (width + values);
    if (set & of_keys)
        products += over->keys * width * (values + 1) + in_chunk + projection_products(desc, 0, over->keys);
    return (double)desc->heads * products;
}

/* ---- operations ----------------------------------------------------------------------------------------------- */

/* The number of tokens of a chunk in which the forward pass multiplies pairs; 0: it multiplies none. */
static int64_t forward_chunk(const clmgk_plan_info *plan)
{
    return plan != NULL && strcmp(plan->kernel, "linear_steps") != 0 ? parameter_of(plan->parameters, "chunk") : 0;
}

/* The same for the backward pass, which proceeds by steps on the lane engine. */
static int64_t backward_chunk(const clmgk_plan_info *plan)
{
    return plan != NULL && plan->backward_engine != CLMGK_ENGINE_LANE ? parameter_of(plan->backward_parameters, "chunk")
                                                                      : 0;
}

double tool_forward_flops(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, const clmgk_plan_info *plan)
{
    if (tool_is_linear(desc->variant)) {
        const extent over = extent_of(desc, arrays, forward_chunk(plan));
        return 2.0 * linear_forward_products(desc, &over);
    }
    const double scores = (desc->mix_after_heads > 0 ? 2.0 : 1.0) * tool_score_products(desc);
    return 2.0 * (scores + tool_value_products(desc)) * (tool_visible_pairs(desc, arrays) / (double)desc->heads);
}

double tool_backward_flops(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, const clmgk_plan_info *plan)
{
    if (tool_is_linear(desc->variant)) {
        const extent over = extent_of(desc, arrays, backward_chunk(plan));
        return desc->gradients != 0 ? 2.0 * linear_backward_products(desc, &over) : 0.0;
    }
    const bool deltas = desc->mix_after_heads > 0 && desc->gradients & ~(CLMGK_GRADIENT_V | CLMGK_GRADIENT_MIX_AFTER);
    const double more = deltas ? tool_score_products(desc) + tool_value_products(desc) : 0.0;
    return 2.0 * (backward_products(desc) + more) * (tool_visible_pairs(desc, arrays) / (double)desc->heads);
}
