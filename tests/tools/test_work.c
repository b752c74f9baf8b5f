/* SPDX-License-Identifier: Apache-2.0 */
/* Visible pairs by formula against the reference's masks, row by row. */
#include "harness/harness.h"
#include "work.h"

#include "reference/reference.h"

static double counted(const clmgk_attention_desc *desc, const clmgk_host_args *arrays)
{
    const clmgk_ref_problem problem = {.desc = *desc,
                                       .lengths = arrays->lengths,
                                       .lengths_q = arrays->lengths_q,
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
    clmgk_host_args arrays = CLMGK_HOST_ARGS_INIT;
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    arrays.lengths = lengths;
    arrays.lengths_q = lengths_q;
    desc.batch = 3;
    desc.heads = 2;
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
    clmgk_host_args arrays = CLMGK_HOST_ARGS_INIT;
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    arrays.offsets = offsets;
    arrays.offsets_k = offsets_k;
    desc.batch = 1;
    desc.heads = 3;
    desc.sequences = 4;
    desc.length = 17;
    for (int n = 0; n < 4; n++) {
        desc.use_offsets_k = n % 2;
        desc.length_k = desc.use_offsets_k ? 20 : 17;
        desc.alignment = n / 2 ? CLMGK_ALIGN_TOP_LEFT : CLMGK_ALIGN_BOTTOM_RIGHT;
        check_windows(&desc, &arrays);
    }
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
