/* SPDX-License-Identifier: Apache-2.0 */
/* The simple call on host arrays: results, strides, and values that only this call checks. */
#include "harness/harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GAP 3 /* elements between the rows of strided arrays */

static void expect_host(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    TH_PROBLEM problem = th_problem_make(desc, seed);
    TH_HOST host = th_host_make(&problem);
    th_expect_ok(clmgk_attention_forward_host(NULL, &problem.desc, &host.args, &th_error));
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (th_is_output(name) && problem.array[name].used)
            th_host_take(&host, &problem, name);
    TH_REF_ANSWER answer = th_solve(&problem);
    th_check(session, &problem, CLMGK_ENGINE_AUTO, &answer);
}

TH_TEST(every_variant_and_type)
{
    for (int n = 0; n < 12; n++) {
        clmgk_attention_desc desc = {.variant = (clmgk_variant)(n / 3),
                                     .dtype = (clmgk_dtype)(n % 3),
                                     .batch = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .length = 21,
                                     .length_k = 34,
                                     .head_size = 17,
                                     .value_size = 8,
                                     .causal = n % 2};
        if (desc.variant >= CLMGK_VARIANT_MGK) {
            desc.prior_shape = CLMGK_PRIOR_HMS;
            desc.variance_shape = CLMGK_VARIANCE_HM;
            desc.use_lengths = desc.use_lengths_q = 1;
        }
        expect_host(session, &desc, (uint64_t)n);
    }
}

/* All that has an array of its own. */
static clmgk_attention_desc mixed_desc(clmgk_variant variant)
{
    clmgk_attention_desc desc = th_small_desc(variant, 5, 6);
    desc.batch = 2;
    desc.use_mix_weight = desc.use_mix_offset = (clmgk_variant_traits(variant) & CLMGK_TRAIT_GENERALISED) != 0;
    return desc;
}

TH_TEST(every_admixture)
{
    for (size_t n = 0; n < TH_COUNT(th_admixtures); n++) {
        clmgk_attention_desc desc = mixed_desc(th_admixtures[n]);
        desc.dtype = (clmgk_dtype)(n % 3);
        desc.length = 21;
        desc.length_k = 34;
        desc.kv_heads = 1;
        desc.causal = (int32_t)(n % 2);
        desc.shared_noise = th_admixtures[n] == CLMGK_VARIANT_MISH;
        expect_host(session, &desc, n);
    }
}

/* Every array that the family has, but gradients. */
static clmgk_attention_desc linear_desc(clmgk_variant variant, clmgk_feature feature)
{
    clmgk_attention_desc desc = th_small_desc(variant, 21, 34);
    desc.batch = 2;
    desc.feature = feature;
    desc.features = feature == CLMGK_FEATURE_FAVOR ? 11 : 0;
    desc.use_state = desc.use_new_state = desc.causal = 1;
    desc.use_mix_weight = (clmgk_variant_traits(variant) & CLMGK_TRAIT_GENERALISED) != 0;
    return desc;
}

TH_TEST(states)
{
    const clmgk_attention_desc descs[] = {linear_desc(CLMGK_VARIANT_MLK, CLMGK_FEATURE_FAVOR),
                                          linear_desc(CLMGK_VARIANT_LHARD_FISH, CLMGK_FEATURE_ELU1)};
    for (size_t n = 0; n < TH_COUNT(descs); n++)
        expect_host(session, &descs[n], 40 + n);
}

TH_TEST(strided_outputs_keep_what_lies_between)
{
    enum { H = 3, N = 11, D = 8, ROW = D + GAP };
    const clmgk_attention_desc desc = {
        .batch = 2,
        .heads = H,
        .length = N,
        .length_k = N,
        .head_size = D,
        .q = {.strided = 1, .batch = (int64_t)N * H * ROW, .head = ROW, .token = (int64_t)H * ROW},
        .o = {.strided = 1, .batch = (int64_t)N * H * ROW, .head = ROW, .token = (int64_t)H * ROW},
        .lse = {.strided = 1, .batch = (int64_t)2 * N * H, .head = 2, .token = (int64_t)2 * H},
    };
    expect_host(session, &desc, 5);
}

TH_TEST(empty_problems)
{
    static const int64_t shape[][2] = {{0, 5}, {5, 0}, {0, 0}};
    for (size_t n = 0; n < TH_COUNT(shape); n++) {
        const clmgk_attention_desc desc = {.length = shape[n][0], .length_k = th_keys(shape[n][1]), .head_size = 8};
        TH_PROBLEM problem = th_problem_make(&desc, n);
        float o[5 * 8];
        float lse[5];
        for (size_t i = 0; i < TH_COUNT(o); i++)
            o[i] = 7.0F;
        clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
        const float input[5 * 8] = {0};
        args.q = args.k = args.v = input;
        args.o = o;
        args.lse = lse;
        th_expect_ok(clmgk_attention_forward_host(NULL, &problem.desc, &args, &th_error));
        for (size_t i = 0; i < TH_COUNT(o); i++)
            assert_true(o[i] == (shape[n][0] > 0 ? 0.0F : 7.0F));
        for (size_t i = 0; i < TH_COUNT(lse) && shape[n][0] > 0; i++)
            assert_true(lse[i] == -INFINITY);
    }
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

static void expect_refused(const char *selector, const clmgk_attention_desc *desc, const th_host *host,
                           const clmgk_host_args *args, clmgk_status expected, const char *field, const char *value)
{
    th_expect_refusal(clmgk_attention_forward_host(selector, desc, args, &th_error), expected, field, value);
    th_host_expect_unwritten(host);
}

typedef struct bad_value {
    th_name name;
    double value;
    const char *field, *text;
} bad_value;

/* The value stands last in its array. */
static void expect_bad_value(const clmgk_attention_desc *desc, const bad_value *bad)
{
    TH_PROBLEM problem = th_problem_make(desc, 1);
    problem.array[bad->name].values[problem.array[bad->name].count - 1] = bad->value;
    TH_HOST host = th_host_make(&problem);
    expect_refused(NULL, &problem.desc, &host, &host.args, CLMGK_ERROR_INVALID_VALUE, bad->field, bad->text);
}

TH_TEST(bad_values)
{
    static const bad_value bad[] = {
        {TH_LENGTHS, -1.0, "lengths", "-1"},           {TH_LENGTHS, 7.0, "lengths", "7"},
        {TH_LENGTHS_Q, -3.0, "lengths_q", "-3"},       {TH_LENGTHS_Q, 6.0, "lengths_q", "6"},
        {TH_PRIOR, -0.25, "prior", "-0.25"},           {TH_PRIOR, (double)NAN, "prior", "nan"},
        {TH_VARIANCE, 0.0, "variance", "0"},           {TH_VARIANCE, -2.0, "variance", "-2"},
        {TH_VARIANCE, (double)NAN, "variance", "nan"}, {TH_VARIANCE, (double)INFINITY, "variance", "inf"},
    };
    static const bad_value bad_mixing[] = {
        {TH_MIX, (double)NAN, "mix", "nan"},
        {TH_MIX, -(double)INFINITY, "mix", "-inf"},
        {TH_MIX_WEIGHT, (double)NAN, "mix_weight", "nan"},
        {TH_MIX_WEIGHT, (double)INFINITY, "mix_weight", "inf"},
        {TH_MIX_OFFSET, (double)NAN, "mix_offset", "nan"},
        {TH_MIX_OFFSET, (double)INFINITY, "mix_offset", "inf"},
        {TH_NOISE, -0.5, "noise", "-0.5"},
        {TH_NOISE, (double)NAN, "noise", "nan"},
        {TH_NOISE, (double)INFINITY, "noise", "inf"},
    };
    static const bad_value bad_linear[] = {
        {TH_PROJECTION, (double)NAN, "projection", "nan"},
        {TH_PROJECTION, -(double)INFINITY, "projection", "-inf"},
    };
    const clmgk_attention_desc full = th_full_desc();
    const clmgk_attention_desc mixed = mixed_desc(CLMGK_VARIANT_GFISH);
    const clmgk_attention_desc linear = linear_desc(CLMGK_VARIANT_MLK, CLMGK_FEATURE_FAVOR);
    for (size_t n = 0; n < TH_COUNT(bad); n++)
        expect_bad_value(&full, &bad[n]);
    for (size_t n = 0; n < TH_COUNT(bad_mixing); n++)
        expect_bad_value(&mixed, &bad_mixing[n]);
    for (size_t n = 0; n < TH_COUNT(bad_linear); n++)
        expect_bad_value(&linear, &bad_linear[n]);
}

static const char *field_of(th_name name)
{
    return clmgk_array_get_info((clmgk_array)name)->name;
}

/* Each of the arrays that a problem has missing, but for L and denominators. */
static void expect_required(const clmgk_attention_desc *desc)
{
    TH_PROBLEM problem = th_problem_make(desc, 1);
    TH_HOST host = th_host_make(&problem);
    for (th_name name = 0; name < TH_ARRAYS; name++) {
        clmgk_host_args args = host.args;
        if (!problem.array[name].used || name == TH_LSE || name == TH_DENOMINATOR)
            continue;
        th_set_host_array(&args, name, NULL);
        expect_refused(NULL, &problem.desc, &host, &args, CLMGK_ERROR_INVALID_BUFFER, field_of(name),
                       clmgk_variant_name(desc->variant));
    }
}

/* Refused before anything is compiled or read: the arrays are not there in this size. */
TH_TEST(arrays_larger_than_a_buffer)
{
    clmgk_attention_desc desc = {.struct_size = sizeof desc, .variant = CLMGK_VARIANT_SOFTMAX, .heads = 1};
    desc.length = INT64_C(1) << 30;
    desc.length_k = 1;
    desc.head_size = CLMGK_MAX_HEAD_SIZE;
    const uint64_t bytes = (uint64_t)desc.length * CLMGK_MAX_HEAD_SIZE * sizeof(float);
    float number = 0.0F;
    clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
    args.q = args.k = args.v = args.o = &number;
    assert_true(session->info.max_allocation_bytes < bytes);
    char limit[64];
    snprintf(limit, sizeof limit, "q: %" PRIu64 " bytes: expected at most %" PRIu64, bytes,
             session->info.max_allocation_bytes);
    th_expect_error(clmgk_attention_forward_host(NULL, &desc, &args, &th_error), CLMGK_ERROR_OUT_OF_DEVICE_MEMORY,
                    limit);
}

/* Arrays that the variant does not know. */
TH_TEST(foreign_arrays)
{
    static const struct {
        clmgk_variant variant;
        th_name array;
    } foreign[] = {
        {CLMGK_VARIANT_HARD_FISH, TH_NOISE},     {CLMGK_VARIANT_HARD_MISH, TH_NOISE},
        {CLMGK_VARIANT_HARD_GFISH, TH_NOISE},    {CLMGK_VARIANT_TALKING_HEADS, TH_NOISE},
        {CLMGK_VARIANT_FISH, TH_MIX_WEIGHT},     {CLMGK_VARIANT_HARD_MISH, TH_MIX_OFFSET},
        {CLMGK_VARIANT_GFISH, TH_PRIOR},         {CLMGK_VARIANT_FISH, TH_VARIANCE},
        {CLMGK_VARIANT_TALKING_HEADS, TH_SHIFT}, {CLMGK_VARIANT_SOFTMAX, TH_MIX},
        {CLMGK_VARIANT_GAUSSIAN, TH_NOISE},      {CLMGK_VARIANT_SOFTMAX, TH_PROJECTION},
        {CLMGK_VARIANT_MGK, TH_STATE_C},         {CLMGK_VARIANT_FISH, TH_DENOMINATOR},
        {CLMGK_VARIANT_LINEAR, TH_LSE},          {CLMGK_VARIANT_LINEAR, TH_NEW_STATE_C},
        {CLMGK_VARIANT_MLK, TH_STATE_M},         {CLMGK_VARIANT_SMLK, TH_VARIANCE},
        {CLMGK_VARIANT_LGFISH, TH_MIX_OFFSET},   {CLMGK_VARIANT_LINEAR, TH_PROJECTION},
    };
    float number = 0.0F;
    for (size_t n = 0; n < TH_COUNT(foreign); n++) {
        const clmgk_attention_desc desc = th_small_desc(foreign[n].variant, 5, 6);
        TH_PROBLEM problem = th_problem_make(&desc, 1);
        TH_HOST host = th_host_make(&problem);
        clmgk_host_args args = host.args;
        th_set_host_array(&args, foreign[n].array, &number);
        expect_refused(NULL, &problem.desc, &host, &args, CLMGK_ERROR_INVALID_BUFFER, field_of(foreign[n].array),
                       "does not use");
    }
}

TH_TEST(bad_arguments)
{
    const clmgk_attention_desc mixed = mixed_desc(CLMGK_VARIANT_GFISH);
    const clmgk_attention_desc desc = th_full_desc();
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    TH_HOST host = th_host_make(&problem);
    const clmgk_attention_desc linear = linear_desc(CLMGK_VARIANT_SMLK, CLMGK_FEATURE_FAVOR);
    expect_required(&desc);
    expect_required(&linear);
    expect_required(&mixed);
    clmgk_host_args args = host.args;
    args.struct_size = 0;
    expect_refused(NULL, &problem.desc, &host, &args, CLMGK_ERROR_INVALID_VALUE, "struct_size", "0");
    expect_refused(NULL, &problem.desc, &host, NULL, CLMGK_ERROR_INVALID_VALUE, "args", "NULL");
    expect_refused(NULL, NULL, &host, &host.args, CLMGK_ERROR_INVALID_VALUE, "desc", "NULL");
    expect_refused("no such device", &problem.desc, &host, &host.args, CLMGK_ERROR_NO_DEVICE, "no such device", "");
    clmgk_attention_desc bad = problem.desc;
    bad.head_size = -1;
    expect_refused(NULL, &bad, &host, &host.args, CLMGK_ERROR_INVALID_VALUE, "head_size", "-1");
}
