/* SPDX-License-Identifier: Apache-2.0 */
/* Visible pairs and the linear family's products by formula, against the reference's masks, one by one. */
#include "harness/harness.h"
#include "work.h"

#include "reference/reference.h"

static double counted(const clmgk_attention_desc *desc, const clmgk_host_args *arrays)
{
    const clmgk_ref_problem problem = {.desc = *desc,
                                       .lengths = arrays->lengths,
                                       .lengths_q = arrays->lengths_q,
                                       .positions = arrays->positions,
                                       .positions_k = arrays->positions_k,
                                       .offsets = arrays->offsets,
                                       .offsets_k = arrays->offsets_k};
    int64_t pairs = 0;
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t i = 0; i < desc->length; i++)
            pairs += clmgk_ref_visible_keys(&problem, b, i);
    return (double)(pairs * desc->heads);
}

/* All windows of `given`, with and without causality. */
static void check_windows(const clmgk_attention_desc *given, const clmgk_host_args *arrays)
{
    static const int64_t limits[] = {-1, 0, 1, 4, 30, INT64_MAX};
    clmgk_attention_desc desc = *given;
    for (size_t n = 0; n < TH_COUNT(limits) * TH_COUNT(limits) * 4; n++) {
        desc.causal = n % 2 != 0;
        desc.use_window = n / 2 % 2 != 0;
        desc.window_left = limits[n / 4 % TH_COUNT(limits)];
        desc.window_right = limits[n / 4 / TH_COUNT(limits)];
        const double expected = counted(&desc, arrays), pairs = tool_visible_pairs(&desc, arrays);
        if (pairs != expected)
            fail_msg("N %d, S %d, alignment %d, causal %d, window %d %d,%d: %g pairs, expected %g", (int)desc.length,
                     (int)desc.length_k, (int)desc.alignment, desc.causal, desc.use_window, (int)desc.window_left,
                     (int)desc.window_right, pairs, expected);
    }
}

TH_HOST_TEST(pairs_under_masks)
{
    static const int32_t lengths[] = {4, 0, 13}, lengths_q[] = {2, 9, 0};
    static const int64_t sizes[][2] = {{9, 13}, {13, 9}, {1, 20}, {20, 1}};
    const clmgk_host_args arrays = {.struct_size = sizeof(arrays), .lengths = lengths, .lengths_q = lengths_q};
    clmgk_attention_desc desc = th_sized_desc(CLMGK_VARIANT_SOFTMAX, (th_sizes){.batch = 3, .heads = 2});
    for (size_t n = 0; n < TH_COUNT(sizes) * 12; n++) {
        desc.length = sizes[n / 12][0];
        desc.length_k = sizes[n / 12][1];
        desc.alignment = (clmgk_alignment)(n % 3);
        desc.use_lengths = n / 3 % 2 != 0;
        desc.use_lengths_q = n / 6 % 2 != 0;
        check_windows(&desc, &arrays);
    }
}

TH_HOST_TEST(pairs_of_packed_sequences)
{
    static const int32_t offsets[] = {0, 2, 2, 9, 17}, offsets_k[] = {0, 1, 8, 8, 20};
    const clmgk_host_args arrays = {.struct_size = sizeof(arrays), .offsets = offsets, .offsets_k = offsets_k};
    clmgk_attention_desc desc = th_sized_desc(CLMGK_VARIANT_SOFTMAX, (th_sizes){.batch = 1, .heads = 3, .length = 17});
    desc.sequences = 4;
    for (int n = 0; n < 4; n++) {
        desc.use_offsets_k = n % 2;
        desc.length_k = desc.use_offsets_k ? 20 : 17;
        desc.alignment = n / 2 ? CLMGK_ALIGN_TOP_LEFT : CLMGK_ALIGN_BOTTOM_RIGHT;
        check_windows(&desc, &arrays);
    }
}

TH_HOST_TEST(pairs_of_positions)
{
    static const int32_t offsets[] = {0, 2, 9}, positions[] = {8, 0, 3, 1, 7, 4, 2, 6, 20};
    const clmgk_host_args arrays = {
        .struct_size = sizeof(arrays), .offsets = offsets, .positions = positions, .positions_k = positions};
    clmgk_attention_desc desc =
        th_sized_desc(CLMGK_VARIANT_SOFTMAX, (th_sizes){.batch = 1, .heads = 3, .length = 9, .length_k = 9});
    desc.use_positions = 1;
    for (desc.sequences = 0; desc.sequences <= 2; desc.sequences += 2)
        check_windows(&desc, &arrays);
}

/* Counted row by row, this would take a minute. */
TH_HOST_TEST(pairs_of_long_sequences)
{
    const double n = 4e9;
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.batch = INT32_MAX;
    desc.heads = 8;
    desc.length = desc.length_k = (int64_t)n;
    desc.causal = 1;
    assert_true(tool_visible_pairs(&desc, NULL) == 0.5 * n * (n + 1) * 8 * INT32_MAX);
}

/* ---- the linear family's products ------------------------------------------------------------------------------ */

enum { FEATURES = 6, HEAD_SIZE = 4, VALUE_SIZE = 5, CHUNK = 4 };
static const clmgk_plan_info by_chunks = {.kernel = "linear_apply",
                                          .parameters = "lanes=16,chunk=4,chunks=9",
                                          .backward_engine = CLMGK_ENGINE_SIMT,
                                          .backward_parameters = "lanes=16,chunk=4,chunks=9"};
static const clmgk_plan_info by_steps = {.kernel = "linear_steps",
                                         .parameters = "lanes=16,chunk=4,chunks=9",
                                         .backward_engine = CLMGK_ENGINE_LANE,
                                         .backward_parameters = "lanes=16,chunk=4,chunks=9"};
static const clmgk_plan_info no_chunks = {.kernel = "linear_apply",
                                          .parameters = "chunks=4",
                                          .backward_engine = CLMGK_ENGINE_SIMT,
                                          .backward_parameters = "chunks=4"};

/* Multiply-adds of a head, counted one by one: those of keys, of rows and of the pairs of a chunk. */
typedef struct counts {
    double keys, rows, pairs;
} counts;

static int64_t floor_div(int64_t value, int64_t by)
{
    return value / by - (value % by < 0);
}

/* Chunk c pairs rows c T ... with keys c T + off ..., off the diagonal of row 0. */
static counts count_sequence(const clmgk_ref_problem *problem, int64_t b, const int64_t row[2], const int64_t key[2],
                             int64_t off)
{
    counts found = {0};
    for (int64_t j = key[0]; j < key[1]; j++)
        found.keys += 1;
    for (int64_t i = row[0]; i < row[1]; i++) {
        found.rows += 1;
        for (int64_t j = key[0]; j < key[1]; j++)
            found.pairs +=
                clmgk_ref_visible(problem, b, 0, i, j) && floor_div(j - key[0] - off, CHUNK) == (i - row[0]) / CHUNK;
    }
    return found;
}

static void add_counts(counts *sum, counts more)
{
    sum->keys += more.keys;
    sum->rows += more.rows;
    sum->pairs += more.pairs;
}

static counts count_all(const clmgk_attention_desc *desc, const clmgk_host_args *arrays)
{
    const clmgk_ref_problem problem = {
        .desc = *desc, .lengths = arrays->lengths, .offsets = arrays->offsets, .offsets_k = arrays->offsets};
    const bool top = desc->alignment == CLMGK_ALIGN_TOP_LEFT;
    counts sum = {0};
    for (int64_t t = 0; t < desc->sequences; t++) {
        const int64_t ends[2] = {arrays->offsets[t], arrays->offsets[t + 1]};
        add_counts(&sum, count_sequence(&problem, 0, ends, ends, 0));
    }
    for (int64_t b = 0; b < desc->batch && desc->sequences == 0; b++) {
        const int64_t keys = desc->use_lengths ? arrays->lengths[b] : desc->length_k;
        const int64_t last = desc->alignment == CLMGK_ALIGN_LENGTHS ? keys : desc->length_k;
        add_counts(&sum, count_sequence(&problem, b, (int64_t[]){0, desc->length}, (int64_t[]){0, keys},
                                        top ? 0 : last - desc->length));
    }
    if (!desc->causal)
        sum.pairs = 0;
    return sum;
}

static clmgk_attention_desc describe_linear(clmgk_variant variant)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = variant;
    desc.batch = 3;
    desc.heads = 2;
    desc.components = variant == CLMGK_VARIANT_LINEAR ? 1 : 3;
    desc.features = FEATURES;
    desc.head_size = HEAD_SIZE;
    desc.value_size = VALUE_SIZE;
    return desc;
}

/* Each width has another value, and each gradient is alone, so that no two terms can be confused. */
static void check_linear(const clmgk_attention_desc *given, const clmgk_host_args *arrays)
{
    clmgk_attention_desc desc = *given;
    const counts n = count_all(&desc, arrays);
    const clmgk_plan_info *const plans[] = {&by_chunks, &by_steps, &no_chunks, NULL};
    const double w = FEATURES * (tool_is_mixed(desc.variant) ? 3 : 1), e = VALUE_SIZE, h = 2 * 2;
    for (size_t p = 0; p < TH_COUNT(plans); p++) {
        const double pairs = plans[p] == &by_chunks ? n.pairs : 0;
        const double state = (n.rows + n.keys) * w * (e + 1), inside = pairs * (w + e + 1);
        const struct {
            uint32_t set;
            double products;
        } backward[] = {{CLMGK_GRADIENT_Q, state + inside},
                        {CLMGK_GRADIENT_V, n.rows * w * (e + 1) + n.keys * w * e + pairs * (w + e)},
                        {CLMGK_GRADIENT_K, state + inside},
                        {CLMGK_GRADIENT_STATE_C, n.rows * w * (e + 1)},
                        {CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V,
                         2 * (state + inside) + n.keys * w * e + pairs * (w + e)}};
        assert_true(tool_forward_flops(&desc, arrays, plans[p]) == h * (state + pairs * (w + e)));
        for (size_t i = 0; i < TH_COUNT(backward); i++) {
            desc.gradients = backward[i].set;
            assert_true(tool_backward_flops(&desc, arrays, plans[p]) == h * backward[i].products);
        }
        desc.gradients = 0;
        assert_true(tool_backward_flops(&desc, arrays, plans[p]) == 0);
    }
}

TH_HOST_TEST(products_of_the_linear_family)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_LINEAR, CLMGK_VARIANT_MLK, CLMGK_VARIANT_LHARD_FISH};
    static const int64_t sizes[][2] = {{9, 13}, {13, 9}, {1, 20}, {20, 1}, {12, 12}};
    static const int32_t lengths[] = {4, 0, 9};
    clmgk_host_args arrays = CLMGK_HOST_ARGS_INIT;
    arrays.lengths = lengths;
    for (size_t n = 0; n < TH_COUNT(variants) * TH_COUNT(sizes) * 12; n++) {
        clmgk_attention_desc desc = describe_linear(variants[n % TH_COUNT(variants)]);
        const size_t rest = n / TH_COUNT(variants);
        desc.length = sizes[rest % TH_COUNT(sizes)][0];
        desc.length_k = sizes[rest % TH_COUNT(sizes)][1];
        desc.alignment = (clmgk_alignment)(rest / TH_COUNT(sizes) % 3);
        desc.causal = rest / TH_COUNT(sizes) / 3 % 2 != 0;
        desc.use_lengths = rest / TH_COUNT(sizes) / 6 != 0 && desc.length_k >= 9;
        check_linear(&desc, &arrays);
    }
}

TH_HOST_TEST(products_of_packed_linear_sequences)
{
    static const int32_t offsets[] = {0, 2, 2, 9, 22};
    clmgk_host_args arrays = CLMGK_HOST_ARGS_INIT;
    arrays.offsets = offsets;
    for (int causal = 0; causal < 2; causal++) {
        clmgk_attention_desc desc = describe_linear(CLMGK_VARIANT_SMLK);
        desc.batch = 1;
        desc.length = desc.length_k = 22;
        desc.sequences = 4;
        desc.causal = causal;
        check_linear(&desc, &arrays);
    }
}

/* favor's products with its projection, R D for a vector: one for each query and M for each key of MLK. */
TH_HOST_TEST(products_of_projections)
{
    const clmgk_host_args arrays = CLMGK_HOST_ARGS_INIT;
    const struct {
        clmgk_variant variant;
        double of_query, of_key;
    } forms[] = {{CLMGK_VARIANT_LINEAR, 1, 1},
                 {CLMGK_VARIANT_MLK, 1, 3},
                 {CLMGK_VARIANT_SMLK, 1, 3},
                 {CLMGK_VARIANT_LHARD_FISH, 3, 3}};
    for (size_t i = 0; i < TH_COUNT(forms); i++) {
        clmgk_attention_desc desc = describe_linear(forms[i].variant), plain = desc;
        const double heads = 3 * 2, rows = 7, keys = 11, vector = 2 * FEATURES * HEAD_SIZE;
        desc.length = 7;
        desc.length_k = 11;
        plain = desc;
        desc.feature = CLMGK_FEATURE_FAVOR;
        const double of_rows = heads * rows * forms[i].of_query * vector,
                     of_keys = heads * keys * forms[i].of_key * vector;
        assert_true(tool_forward_flops(&desc, &arrays, NULL) - tool_forward_flops(&plain, &arrays, NULL) ==
                    of_rows + of_keys);
        desc.gradients = plain.gradients = CLMGK_GRADIENT_K;
        assert_true(tool_backward_flops(&desc, &arrays, NULL) - tool_backward_flops(&plain, &arrays, NULL) ==
                    of_rows + 2 * of_keys);
        desc.gradients = plain.gradients = CLMGK_GRADIENT_Q;
        assert_true(tool_backward_flops(&desc, &arrays, NULL) - tool_backward_flops(&plain, &arrays, NULL) ==
                    2 * of_rows + of_keys);
    }
}
