/* SPDX-License-Identifier: Apache-2.0 */
/* Attentions over ranges of keys, combined: the attention over all keys. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

enum { B = 2, H = 2, N = 21, S = 90, MAX_PARTS = 5 };

static clmgk_attention_desc whole_desc(clmgk_variant variant, clmgk_dtype dtype)
{
    clmgk_attention_desc desc = th_small_desc(variant, N, S);
    desc.batch = B;
    desc.dtype = dtype;
    desc.combine = 1;
    return desc;
}

/* Cuts the keys at `cut`[parts + 1] and holds the combination against the whole. */
static void expect_combined(th_session *session, th_problem *problem, int64_t parts, const int64_t *cut)
{
    for (size_t n = 0; n < (session->full ? session->engines : 1); n++) {
        const clmgk_plan_options options = th_options(session, n);
        th_expect_combined(session, problem, &options, parts, cut);
    }
}

static const int64_t cuts[][MAX_PARTS + 1] = {
    {0, S}, {0, 40, S}, {0, 1, 64, S}, {0, 0, 30, S, S}, {0, 17, 17, 18, 70, S}};

TH_TEST(parts_make_the_whole)
{
    for (size_t n = 0; n < TH_COUNT(cuts) * 2; n++) {
        const clmgk_attention_desc desc =
            whole_desc(n % 2 == 0 ? CLMGK_VARIANT_SOFTMAX : CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        expect_combined(session, &problem, (int64_t)(n / 2) + 1, cuts[n / 2]);
    }
}

TH_TEST(storage_types)
{
    for (size_t n = 1; n < TH_COUNT(th_dtypes); n++) {
        const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX, th_dtypes[n]);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        expect_combined(session, &problem, 5, cuts[4]);
    }
}

/* Logits so far apart that one part has all the weight. */
TH_TEST(distant_parts)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32);
    TH_PROBLEM problem = th_problem_make(&desc, 7);
    th_scale(&problem, TH_K, 60.0);
    expect_combined(session, &problem, 5, cuts[4]);
}

/* L of the whole and of its parts beyond what a float holds: a bias moves all logits by -1e7, where a float's step
 * is 1. The sum of both floats is as exact as that of one pass. */
TH_TEST(low_parts)
{
    clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32);
    desc.use_lse_low = desc.use_bias = 1;
    desc.bias_batch = desc.bias_heads = desc.bias_length = desc.bias_length_k = 1;
    TH_PROBLEM problem = th_problem_make(&desc, 7);
    th_fill(&problem, TH_BIAS, -1e7);
    const clmgk_plan_options options = th_options(session, 0);
    th_run_pass(session, &problem, TH_FORWARD, &options);
    const size_t count = problem.array[TH_LSE].count;
    double whole[2 * B * H * N];
    assert_true(count <= TH_COUNT(whole));
    for (size_t n = 0; n < count; n++)
        whole[n] = problem.array[TH_LSE].values[n] + problem.array[TH_LSE_LOW].values[n];
    th_expect_combined(session, &problem, &options, 5, cuts[4]);
    for (size_t n = 0; n < count; n++) {
        const double combined = problem.array[TH_LSE].values[n] + problem.array[TH_LSE_LOW].values[n];
        assert_true(fabs(combined - whole[n]) < 1e-5);
    }
}

/* O and L tokens first with room between their rows, all arrays at odd offsets. */
TH_TEST(strides_and_offsets)
{
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX, th_dtypes[n]);
        const int64_t row = desc.value_size + 3;
        desc.o = (clmgk_layout){1, (int64_t)N * H * row, row, 0, H * row};
        desc.lse = (clmgk_layout){1, (int64_t)2 * N * H, 1, 0, (int64_t)2 * H};
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t name = 0; name < TH_ARRAYS; name++)
            problem.array[name].offset = 2 * name + 1;
        expect_combined(session, &problem, 3, cuts[2]);
    }
}

/* Combines given parts: o[parts], l[parts] are the same for every row and element. */
static void combine_constants(th_session *session, const clmgk_plan_options *options, int64_t parts, const double *o,
                              const double *l, double expected_o, double expected_l)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_add_parts(&problem, parts);
    for (int output = 0; output < 2; output++) {
        th_array *const array = &problem.array[TH_PARTS_O + output];
        for (size_t n = 0; n < array->count; n++)
            array->values[n] = (output == 0 ? o : l)[n / (array->count / (size_t)parts)];
    }
    th_run_pass(session, &problem, TH_COMBINE, options);
    for (size_t n = 0; n < problem.array[TH_O].count; n++)
        assert_true(fabs(problem.array[TH_O].values[n] - expected_o) <= 1e-6);
    for (size_t n = 0; n < problem.array[TH_LSE].count; n++) {
        const double lse = problem.array[TH_LSE].values[n];
        assert_true(isinf(expected_l) ? lse == expected_l : fabs(lse - expected_l) <= 1e-6 * fmax(fabs(expected_l), 1));
    }
}

/* A part without keys counts nothing, whatever its O holds; no part with keys: O = 0, L = -inf. */
TH_TEST(parts_without_keys)
{
    const double o[] = {(double)NAN, 3.0, -1.0, (double)INFINITY};
    const double none = -(double)INFINITY;
    for (size_t n = 0; n < session->engines; n++) {
        const clmgk_plan_options options = th_options(session, n);
        if (options.engine ==
            CLMGK_ENGINE_MATRIX) /* the combination is the same, and its forward pass takes long to compile */
            continue;
        combine_constants(session, &options, 4, o, (const double[]){none, 2.0, 2.0, none}, 1.0, 2.0 + log(2.0));
        combine_constants(session, &options, 3, o, (const double[]){none, none, none}, 0.0, none);
        combine_constants(session, &options, 2, o + 1, (const double[]){1e30, -1e30}, 3.0, 1e30);
        combine_constants(session, &options, 1, o, (const double[]){none}, 0.0, none);
    }
}

TH_TEST(lse_is_optional)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32);
    const clmgk_plan_options options = th_options(session, 0);
    TH_PROBLEM with = th_problem_make(&desc, 2), without = th_problem_make(&desc, 2);
    for (size_t n = 0; n < 2; n++) {
        th_problem *const problem = n == 0 ? &with : &without;
        th_add_parts(problem, 3);
        for (size_t i = 0; i < problem->array[TH_PARTS_O].count; i++)
            problem->array[TH_PARTS_O].values[i] = (double)(i % 17) - 8.0;
        for (size_t i = 0; i < problem->array[TH_PARTS_LSE].count; i++)
            problem->array[TH_PARTS_LSE].values[i] = (double)(i % 5);
    }
    without.array[TH_LSE].used = false;
    th_run_pass(session, &with, TH_COMBINE, &options);
    th_run_pass(session, &without, TH_COMBINE, &options);
    assert_memory_equal(with.array[TH_O].values, without.array[TH_O].values, with.array[TH_O].count * sizeof(double));
}

/* A plan of both passes: the number of parts plays no role in the forward pass. */
TH_TEST(parts_are_of_no_other_pass)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32);
    TH_PROBLEM problem = th_problem_make(&desc, 2);
    problem.parts = INT64_MAX;
    th_run(session, &problem, 0);
}
