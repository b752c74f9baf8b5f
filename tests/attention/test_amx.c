/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 products on AMX, or by AVX512-BF16, where the CPU has one, and f16 products: all families and passes; arrays of
 * bf16 or f16, and of other types where the descriptor allows the precision. Each case is a program for each pass, of
 * the linear family several. */
#include "harness/harness.h"

#include "device/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The unit of bf16 numbers: 1; with that of f16 numbers: 2. */
static int units_of(const th_session *session)
{
    static const char *const names[] = {"amx", "avx512-bf16", "amx-fp16"};
    clmgk_matrix_unit_info unit = CLMGK_MATRIX_UNIT_INFO_INIT;
    size_t n = 0;
    th_expect_ok(clmgk_context_get_matrix_unit(session->context, &unit, &th_error));
    while (n < TH_COUNT(names) && strcmp(unit.name, names[n]) != 0)
        n++;
    if (getenv("CLMGK_TEST_EMULATE_AMX") != NULL && mgk_cpu_has_amx() && n != (mgk_cpu_has_amx_f16() ? 2 : 0))
        fail_msg("AMX is emulated, and the library does not take it: %s", unit.reason);
    return n == TH_COUNT(names) ? 0 : n < 2 ? 1 : 2;
}

/* Tests that are skipped where units_of is less than `least`. */
#define TEST_WITH_UNIT(name, least, test)                                                                              \
    static void name##_with_unit(th_session *session);                                                                 \
    test(name)                                                                                                         \
    {                                                                                                                  \
        if (units_of(session) < (least))                                                                               \
            skip();                                                                                                    \
        name##_with_unit(session);                                                                                     \
    }                                                                                                                  \
    static void name##_with_unit(th_session *session)
#define UNIT_TEST(name)      TEST_WITH_UNIT(name, 1, TH_TEST)
#define UNIT_FULL_TEST(name) TEST_WITH_UNIT(name, 1, TH_FULL_TEST)
#define F16_TEST(name)       TEST_WITH_UNIT(name, 2, TH_TEST)
#define F16_FULL_TEST(name)  TEST_WITH_UNIT(name, 2, TH_FULL_TEST)

/* `parameters` with "unit=3": the plan fails where it can't use AMX. */
static void expect(th_session *session, th_problem *problem, const char *parameters)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, parameters);
    th_expect_passes(session, problem, &options);
}

/* Lengths around those of panels and tiles, masks, gaps between rows and odd offsets: run-time properties of one
 * program. */
static void expect_shapes(th_session *session, clmgk_attention_desc desc, const char *parameters, size_t first,
                          size_t count)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, parameters);
    if (desc.precision == CLMGK_PRECISION_EXACT && desc.dtype != CLMGK_DTYPE_F16)
        desc.dtype = CLMGK_DTYPE_BF16;
    th_expect_shapes(session, desc, &options, 11 * (uint64_t)desc.variant + first, first, count);
}

UNIT_TEST(softmax)
{
    const clmgk_attention_desc padded = {.head_size = 40, .value_size = 100};
    expect_shapes(session, padded, "unit=3,lanes=16,vectors=2,panels=2,tile=32", 0, 12);
}

static clmgk_attention_desc wide_desc(clmgk_variant variant, clmgk_dtype dtype, int64_t length, int64_t length_k)
{
    clmgk_attention_desc desc = th_small_desc(variant, length, length_k);
    desc.dtype = dtype;
    desc.head_size = desc.value_size = 32;
    return desc;
}

/* Each row's one weight is the sum of its components' powers, which products round; O is V nevertheless. */
UNIT_TEST(rows_that_see_one_key)
{
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc =
            wide_desc(n == 0 ? CLMGK_VARIANT_MGK : CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, 70, 70);
        desc.use_window = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect_with(session, &problem, CLMGK_ENGINE_LANE, "unit=3,lanes=16,vectors=2,panels=2,tile=32");
    }
}

/* Scores so large that weights depend on their last places. */
static void expect_equal_weights(th_session *session, clmgk_dtype dtype, const char *parameters)
{
    for (uint64_t n = 0; n < 8; n++) {
        clmgk_attention_desc desc = {
            .head_size = 40, .value_size = 100, .length = 70, .length_k = n % 2 == 0 ? 70 : 130};
        desc.dtype = dtype;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_make_rivals(&problem, n + 1);
        const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, parameters);
        th_expect_equal_weights(session, &problem, &options);
    }
}

UNIT_TEST(both_passes_weigh_alike)
{
    expect_equal_weights(session, CLMGK_DTYPE_BF16, "unit=3,lanes=16,vectors=2,panels=2,tile=32");
}

/* Whole rows of keys are read in place. */
UNIT_FULL_TEST(keys_in_place)
{
    const clmgk_attention_desc dense = {.head_size = 32, .value_size = 32};
    expect_shapes(session, dense, "unit=3,lanes=16,vectors=1,panels=2,tile=64,block=16", 0, 8);
}

/* Scores whose maxima grow from tile to tile by less and by more than a lazy maximum allows. */
static void expect_growth(th_session *session, clmgk_dtype dtype, const char *parameters)
{
    static const double steps[] = {0.05, 0.3, 1.0};
    for (size_t n = 0; n < TH_COUNT(steps); n++) {
        const clmgk_attention_desc desc = {
            .dtype = dtype, .batch = 1, .heads = 1, .head_size = 40, .value_size = 100, .length = 20, .length_k = 150};
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_array *const q = &problem.array[TH_Q], *const k = &problem.array[TH_K];
        for (size_t i = 0; i < q->count; i += (size_t)desc.head_size)
            q->values[i] = 4.0;
        for (int64_t key = 0; key < desc.length_k; key++)
            k->values[key * desc.head_size] = ldexp(rint(ldexp(steps[n] * (double)key, 4)), -4);
        expect(session, &problem, parameters);
    }
}

UNIT_TEST(growing_scores)
{
    expect_growth(session, CLMGK_DTYPE_BF16, "unit=3,lanes=16,vectors=2,panels=2,tile=32");
}

/* Scores about 0 for the first of 40 keys, 9 to 10 for the 31st, and -90 for all others. */
static void outweigh_the_first(const th_problem *problem)
{
    const size_t size = 32, likely = 30 * size;
    const th_array *const q = &problem->array[TH_Q], *const k = &problem->array[TH_K];
    for (size_t row = 0; row < q->count / size; row++)
        for (size_t d = 0; d < size; d++)
            q->values[row * size + d] = d == 0 ? 1.0 : d == 1 ? ldexp((double)row, -6) : 0.0;
    for (size_t i = 0; i < k->count; i++)
        k->values[i] = i % size == 0 && i > 0 ? -512.0 : 0.0;
    k->values[likely] = 52.0;
    k->values[likely + 1] = 1.0;
}

/* In each row one key has nearly all weight, but the row's maximum is that of an earlier key. So the weight is no power
 * of two, and products round it; O is that key's V nevertheless. */
static void expect_the_likely_key(th_session *session, clmgk_variant variant, clmgk_dtype dtype, const char *parameters)
{
    clmgk_attention_desc desc = wide_desc(variant, dtype, 256, 40);
    desc.heads = desc.components = 1;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    outweigh_the_first(&problem);
    if (variant != CLMGK_VARIANT_SOFTMAX)
        th_fill(&problem, TH_MIX, 1.0);
    expect(session, &problem, parameters);
}

UNIT_TEST(one_key_outweighs_the_first)
{
    expect_the_likely_key(session, CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16,
                          "unit=3,lanes=16,vectors=2,panels=2,tile=32");
    expect_the_likely_key(session, CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_BF16,
                          "unit=3,lanes=16,vectors=2,panels=2,tile=32,heads=1");
}

UNIT_FULL_TEST(components)
{
    const clmgk_attention_desc gaussian = {.variant = CLMGK_VARIANT_MGK,
                                           .components = 3,
                                           .prior_shape = CLMGK_PRIOR_HMS,
                                           .head_size = 32,
                                           .value_size = 64};
    expect_shapes(session, gaussian, "unit=3,lanes=16,vectors=2,panels=2,tile=32", 3, 6);
    const clmgk_attention_desc shifted = {
        .variant = CLMGK_VARIANT_SMGK, .components = 2, .head_size = 64, .value_size = 32};
    expect_shapes(session, shifted, "unit=3,lanes=16,vectors=2,panels=2,tile=32", 5, 6);
}

UNIT_FULL_TEST(modifiers)
{
    const clmgk_attention_desc desc = {.head_size = 64,
                                       .value_size = 32,
                                       .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V |
                                                    CLMGK_GRADIENT_BIAS | CLMGK_GRADIENT_SINKS,
                                       .use_bias = 1,
                                       .use_alibi = 1,
                                       .use_sinks = 1,
                                       .softcap = 3.0,
                                       .dropout = 0.25};
    expect_shapes(session, desc, "unit=3,lanes=16,vectors=2,panels=2,tile=32", 2, 6);
}

/* ---- backward -------------------------------------------------------------------------------------------------- */

#define TRAINING (CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V)

/* Problems of both kinds of numbers. */
static const clmgk_attention_desc with_components = {.variant = CLMGK_VARIANT_MGK,
                                                     .components = 2,
                                                     .variance_shape = CLMGK_VARIANCE_HM,
                                                     .prior_shape = CLMGK_PRIOR_HMS,
                                                     .head_size = 32,
                                                     .value_size = 64,
                                                     .gradients =
                                                         TRAINING | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_VARIANCE};
static const clmgk_attention_desc with_mixed_heads = {.variant = CLMGK_VARIANT_HARD_FISH,
                                                      .components = 2,
                                                      .head_size = 40,
                                                      .value_size = 32,
                                                      .gradients = TRAINING | CLMGK_GRADIENT_MIX};
static const clmgk_attention_desc with_mixed_modifiers = {.variant = CLMGK_VARIANT_GFISH,
                                                          .components = 3,
                                                          .head_size = 32,
                                                          .value_size = 64,
                                                          .use_mix_weight = 1,
                                                          .use_mix_offset = 1,
                                                          .use_alibi = 1,
                                                          .use_sinks = 1,
                                                          .softcap = 3.0,
                                                          .dropout = 0.25,
                                                          .gradients = TRAINING | CLMGK_GRADIENT_MIX};

static clmgk_attention_desc in_f16(clmgk_attention_desc desc)
{
    desc.dtype = CLMGK_DTYPE_F16;
    return desc;
}

/* The products for dQ and dK nearly cancel what rows and keys add themselves. */
static void expect_far(th_session *session, clmgk_attention_desc desc, const char *parameters)
{
    if (desc.dtype != CLMGK_DTYPE_F16)
        desc.dtype = CLMGK_DTYPE_BF16;
    desc.length = 50;
    desc.length_k = 70;
    TH_PROBLEM problem = th_far_problem(desc);
    expect(session, &problem, parameters);
}

/* Rows inside the kernel of keys, and rows apart (splits), where whole tiles are read in place. */
UNIT_TEST(gradients)
{
    const clmgk_attention_desc padded = {.head_size = 40, .value_size = 32, .gradients = TRAINING};
    expect_shapes(session, padded, "unit=3,lanes=16,vectors=2,panels=2,tile=32,splits=1", 0, 8);
    const char *const parameters = "unit=3,lanes=16,vectors=2,panels=2,tile=64,splits=2";
    clmgk_attention_desc dense = {
        .variant = CLMGK_VARIANT_GAUSSIAN, .head_size = 32, .value_size = 32, .gradients = TRAINING};
    expect_shapes(session, dense, parameters, 1, 8);
    expect_far(session, dense, parameters);
    dense.dtype = CLMGK_DTYPE_BF16;
    dense.length = dense.length_k = 96; /* a tile and a half, read in place */
    TH_PROBLEM partial = th_problem_make(&dense, 1);
    expect(session, &partial, parameters);
}

UNIT_TEST(gradients_of_components)
{
    const char *const of_several = "unit=3,lanes=16,vectors=2,panels=2,tile=32,block=16";
    expect_shapes(session, with_components, of_several, 3, 6);
    expect_far(session, with_components, of_several);
    const clmgk_attention_desc shifted = {.variant = CLMGK_VARIANT_SMGK,
                                          .components = 2,
                                          .head_size = 64,
                                          .value_size = 32,
                                          .gradients = TRAINING | CLMGK_GRADIENT_SHIFT};
    const char *const of_shifted = "unit=3,lanes=16,vectors=1,panels=2,tile=32,splits=1";
    expect_shapes(session, shifted, of_shifted, 5, 6);
    expect_far(session, shifted, of_shifted);
}

/* Heads that fill half a register, or a quarter: rows and sums are padded, dQ is not. */
UNIT_TEST(narrow_heads)
{
    const clmgk_attention_desc inside = {
        .variant = CLMGK_VARIANT_GAUSSIAN, .head_size = 8, .value_size = 12, .gradients = TRAINING};
    expect_shapes(session, inside, "unit=3,lanes=16,vectors=2,panels=2,tile=32,splits=1", 0, 8);
    const clmgk_attention_desc apart = {.variant = CLMGK_VARIANT_SMGK,
                                        .components = 2,
                                        .head_size = 16,
                                        .value_size = 5,
                                        .gradients = TRAINING | CLMGK_GRADIENT_SHIFT};
    expect_shapes(session, apart, "unit=3,lanes=16,vectors=2,panels=2,tile=64,splits=2", 1, 8);
}

UNIT_FULL_TEST(narrow_heads_of_components)
{
    const clmgk_attention_desc inside = {.variant = CLMGK_VARIANT_SMGK,
                                         .components = 3,
                                         .head_size = 7,
                                         .value_size = 8,
                                         .gradients = TRAINING | CLMGK_GRADIENT_SHIFT};
    expect_shapes(session, inside, "unit=3,lanes=16,vectors=1,panels=2,tile=32,splits=1", 2, 8);
    const clmgk_attention_desc apart = {.variant = CLMGK_VARIANT_MGK,
                                        .components = 2,
                                        .variance_shape = CLMGK_VARIANCE_HM,
                                        .prior_shape = CLMGK_PRIOR_HMS,
                                        .precision = CLMGK_PRECISION_BF16,
                                        .head_size = 8,
                                        .value_size = 40,
                                        .gradients = TRAINING | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_VARIANCE};
    expect_shapes(session, apart, "unit=3,lanes=16,vectors=2,panels=2,tile=32,splits=2", 3, 8);
    const clmgk_attention_desc mixed = {.variant = CLMGK_VARIANT_HARD_FISH,
                                        .components = 2,
                                        .head_size = 12,
                                        .value_size = 32,
                                        .gradients = TRAINING | CLMGK_GRADIENT_MIX};
    expect_shapes(session, mixed, "unit=3,lanes=16,vectors=2,panels=2,tile=32,heads=2", 0, 8);
}

/* Several heads of a work-group, whose dP differ. */
UNIT_TEST(mixed_heads)
{
    expect_shapes(session, with_mixed_heads, "unit=3,lanes=16,vectors=2,panels=2,tile=32,heads=2", 0, 8);
}

UNIT_FULL_TEST(mixed_heads_with_modifiers)
{
    expect_shapes(session, with_mixed_modifiers, "unit=3,lanes=16,vectors=2,panels=2,tile=32,heads=2", 2, 6);
}

/* ---- the linear family ------------------------------------------------------------------------------------------ */

/* Sequences of parts of a chunk, of one and of several, with states, masks and odd offsets. With fewer rows a gradient
 * may be a single product, which the plain formula rounds to a number that happens to be near. */
static void expect_linear(th_session *session, clmgk_attention_desc desc, const char *parameters)
{
    static const int64_t lengths[][2] = {{50, 18}, {17, 47}, {33, 70}, {64, 64}, {96, 130}, {20, 0}};
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, parameters);
    desc.precision = CLMGK_PRECISION_BF16;
    desc.batch = 2;
    desc.heads = 4;
    desc.kv_heads = 2;
    for (size_t n = 0; n < TH_COUNT(lengths); n++) {
        desc.length = lengths[n][0];
        desc.length_k = lengths[n][1];
        desc.alignment = (clmgk_alignment)(n % 3);
        desc.use_lengths = desc.alignment == CLMGK_ALIGN_LENGTHS || n % 2 == 1;
        desc.use_lengths_q = n % 4 == 3;
        desc.use_new_state = n % 2 == 0;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_keep_sums(&problem);
        for (th_name name = TH_Q; n % 2 == 1 && name <= TH_O; name++)
            problem.array[name].offset = 2 * (uint64_t)name + 1;
        th_expect_passes(session, &problem, &options);
    }
}

/* Pairs of a chunk's tokens, which go by spans where exponents grow; then factors that are packed in several parts, and
 * columns that are no pair of vectors. */
UNIT_TEST(linear_family)
{
    const clmgk_attention_desc pairs = {.variant = CLMGK_VARIANT_MLK,
                                        .components = 2,
                                        .prior_shape = CLMGK_PRIOR_HM,
                                        .feature = CLMGK_FEATURE_FAVOR,
                                        .features = 21,
                                        .head_size = 24,
                                        .value_size = 40,
                                        .causal = 1,
                                        .use_state = 1,
                                        .gradients = TRAINING | CLMGK_GRADIENT_PRIOR};
    expect_linear(session, pairs, "unit=3,chunk=32,feature-block=16,splits=2");
    const clmgk_attention_desc wide = {.variant = CLMGK_VARIANT_LINEAR,
                                       .dtype = CLMGK_DTYPE_BF16,
                                       .feature = CLMGK_FEATURE_RELU,
                                       .guard = 0.5,
                                       .head_size = 64,
                                       .value_size = 140,
                                       .gradients = TRAINING};
    expect_linear(session, wide, "unit=3,chunk=64,feature-block=64,splits=1");
}

/* Mixed heads, and exponents without a causal mask. */
UNIT_FULL_TEST(linear_family_with_exponents)
{
    const clmgk_attention_desc spans = {.variant = CLMGK_VARIANT_LGFISH,
                                        .components = 3,
                                        .feature = CLMGK_FEATURE_DPFP,
                                        .feature_order = 1,
                                        .head_size = 33,
                                        .value_size = 16,
                                        .causal = 1,
                                        .use_mix_weight = 1,
                                        .use_state = 1,
                                        .gradients = TRAINING};
    expect_linear(session, spans, "unit=3,chunk=16,feature-block=16,splits=4");
    const clmgk_attention_desc shifted = {.variant = CLMGK_VARIANT_SMLK,
                                          .components = 2,
                                          .dtype = CLMGK_DTYPE_F16,
                                          .feature = CLMGK_FEATURE_EXP,
                                          .head_size = 48,
                                          .value_size = 20,
                                          .gradients = TRAINING | CLMGK_GRADIENT_SHIFT};
    expect_linear(session, shifted, "unit=3,chunk=32,feature-block=32,splits=2");
}

/* ---- arrays of other types -------------------------------------------------------------------------------------- */

static const clmgk_attention_desc types = {.variant = CLMGK_VARIANT_GAUSSIAN,
                                           .dtype_k = CLMGK_STORAGE_F16,
                                           .dtype_v = CLMGK_STORAGE_BF16,
                                           .precision = CLMGK_PRECISION_BF16,
                                           .head_size = 40,
                                           .value_size = 32,
                                           .use_lse_low = 1,
                                           .gradients = TRAINING};

UNIT_TEST(several_types)
{
    expect_shapes(session, types, "unit=3,lanes=16,vectors=2,panels=2,tile=32,splits=2", 0, 6);
}

/* A plan whose passes have different precisions, by the caller's parameters, tells the lower. */
UNIT_TEST(precision_of_either_pass)
{
    clmgk_attention_desc desc = types;
    desc.struct_size = sizeof(desc);
    desc.batch = desc.heads = 1;
    desc.length = desc.length_k = 40;
    clmgk_plan_options options =
        th_options_of(CLMGK_ENGINE_LANE, "unit=3,lanes=16,vectors=2,panels=2,tile=32,splits=2");
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    options.parameters = "unit=0";
    th_message message;
    clmgk_plan *const plan = th_try_plan(session, &desc, &options, &message);
    assert_non_null(plan);
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    assert_int_equal(info.precision, CLMGK_PRECISION_BF16);
    clmgk_plan_release(plan);
}

/* Queries so large that what rounding takes from their norms would change all weights of a row. */
UNIT_TEST(both_passes_round_queries)
{
    for (uint64_t n = 0; n < 4; n++) {
        clmgk_attention_desc desc = types;
        desc.length = 70;
        desc.length_k = 130;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_make_rivals(&problem, n + 1);
        const clmgk_plan_options options =
            th_options_of(CLMGK_ENGINE_LANE, "unit=3,lanes=16,vectors=2,panels=2,tile=32,splits=2");
        th_expect_equal_weights(session, &problem, &options);
    }
}

/* The bound of the descriptor's precision holds, and that of f32 does not. */
UNIT_TEST(rounded_factors)
{
    clmgk_attention_desc desc = {.length = 37, .length_k = 70, .head_size = 32, .value_size = 32};
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, "unit=3");
    desc.precision = CLMGK_PRECISION_BF16;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_expect_passes(session, &problem, &options);
    problem.desc.precision = CLMGK_PRECISION_EXACT;
    TH_REF_ANSWER exact = th_solve(&problem);
    assert_false(clmgk_ref_check(&exact, problem.array[TH_O].values, NULL).ok);
}

UNIT_FULL_TEST(types_of_components)
{
    clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_MGK,
                                 .components = 2,
                                 .variance_shape = CLMGK_VARIANCE_HM,
                                 .prior_shape = CLMGK_PRIOR_HMS,
                                 .precision = CLMGK_PRECISION_BF16,
                                 .head_size = 32,
                                 .value_size = 64,
                                 .gradients = TRAINING | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_VARIANCE};
    expect_shapes(session, desc, "unit=3,lanes=16,vectors=2,panels=2,tile=32,block=16", 3, 6);
    desc.dtype = CLMGK_DTYPE_F16;
    expect_shapes(session, desc, "unit=3,lanes=16,vectors=2,panels=2,tile=32,splits=2", 5, 6);
    const clmgk_attention_desc shifted = {.variant = CLMGK_VARIANT_SMGK,
                                          .components = 2,
                                          .precision = CLMGK_PRECISION_BF16,
                                          .head_size = 64,
                                          .value_size = 32,
                                          .gradients = TRAINING | CLMGK_GRADIENT_SHIFT};
    expect_shapes(session, shifted, "unit=3,lanes=16,vectors=1,panels=2,tile=32,splits=1", 5, 6);
}

UNIT_FULL_TEST(types_of_mixed_heads)
{
    const clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_HARD_FISH,
                                       .components = 2,
                                       .dtype = CLMGK_DTYPE_BF16,
                                       .dtype_o = CLMGK_STORAGE_F32,
                                       .precision = CLMGK_PRECISION_BF16,
                                       .head_size = 40,
                                       .value_size = 32,
                                       .gradients = TRAINING | CLMGK_GRADIENT_MIX};
    expect_shapes(session, desc, "unit=3,lanes=16,vectors=2,panels=2,tile=32,heads=2", 0, 8);
}

/* ---- arrays of f16 ---------------------------------------------------------------------------------------------- */

F16_TEST(f16_softmax)
{
    const char *const parameters = "unit=4,lanes=16,vectors=2,panels=2,tile=32";
    const clmgk_attention_desc padded = {.dtype = CLMGK_DTYPE_F16, .head_size = 40, .value_size = 100};
    expect_shapes(session, padded, parameters, 0, 12);
    expect_growth(session, CLMGK_DTYPE_F16, parameters);
    expect_equal_weights(session, CLMGK_DTYPE_F16, parameters);
    expect_the_likely_key(session, CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, parameters);
}

/* Numbers of f16's smallest and largest exponents: dO of each row has its own size, and values are large. Of dprior
 * only dL is left where there is one component, so it needs the bits of dS that products do not take. */
static void expect_sizes(th_session *session, clmgk_attention_desc desc, const char *parameters)
{
    desc.length = 70;
    desc.length_k = 50;
    TH_PROBLEM problem = th_problem_make(&desc, 3);
    th_array *const grad_o = &problem.array[TH_GRAD_O];
    th_scale(&problem, TH_V, 64.0);
    for (size_t i = 0; i < grad_o->count; i++)
        grad_o->values[i] = ldexp(grad_o->values[i], 8 - (int)(i / (size_t)desc.value_size % 5) * 5);
    expect(session, &problem, parameters);
}

F16_TEST(f16_gradients)
{
    const clmgk_attention_desc inside = {
        .dtype = CLMGK_DTYPE_F16, .head_size = 40, .value_size = 32, .gradients = TRAINING};
    const char *const of_inside = "unit=4,lanes=16,vectors=2,panels=2,tile=32,splits=1";
    expect_shapes(session, inside, of_inside, 0, 8);
    expect_sizes(session, inside, of_inside);
    const clmgk_attention_desc apart = {.variant = CLMGK_VARIANT_GAUSSIAN,
                                        .dtype = CLMGK_DTYPE_F16,
                                        .head_size = 32,
                                        .value_size = 32,
                                        .gradients = TRAINING | CLMGK_GRADIENT_PRIOR};
    const char *const of_apart = "unit=4,lanes=16,vectors=2,panels=2,tile=64,splits=2";
    expect_shapes(session, apart, of_apart, 1, 8);
    expect_far(session, apart, of_apart);
    expect_sizes(session, apart, of_apart);
}

/* Each row's one weight is the sum of its components' powers; O is V nevertheless, so dS is 0. */
static void expect_one_key(th_session *session, clmgk_attention_desc desc, const char *parameters)
{
    desc.length = desc.length_k = 70;
    desc.use_window = 1;
    TH_PROBLEM problem = th_problem_make(&desc, 4);
    expect(session, &problem, parameters);
}

/* sMGK whose weights all have a small factor, the prior. */
static void expect_small_priors(th_session *session, clmgk_attention_desc desc, const char *parameters)
{
    desc.length = desc.length_k = 50;
    TH_PROBLEM problem = th_problem_make(&desc, 5);
    th_fill(&problem, TH_PRIOR, 0x1p-40);
    expect(session, &problem, parameters);
}

F16_TEST(f16_components)
{
    const clmgk_attention_desc several = in_f16(with_components);
    const char *const of_several = "unit=4,lanes=16,vectors=2,panels=2,tile=32,block=16";
    expect_shapes(session, several, of_several, 3, 6);
    expect_far(session, several, of_several);
    expect_sizes(session, several, of_several);
    expect_one_key(session, several, of_several);
    const clmgk_attention_desc shifted = {.variant = CLMGK_VARIANT_SMGK,
                                          .components = 2,
                                          .prior_shape = CLMGK_PRIOR_HM,
                                          .dtype = CLMGK_DTYPE_F16,
                                          .head_size = 16,
                                          .value_size = 5,
                                          .gradients = TRAINING | CLMGK_GRADIENT_SHIFT};
    const char *const of_shifted = "unit=4,lanes=16,vectors=1,panels=2,tile=32,splits=1";
    expect_shapes(session, shifted, of_shifted, 5, 6);
    expect_far(session, shifted, of_shifted);
    expect_small_priors(session, shifted, of_shifted);
}

F16_TEST(f16_mixed_heads)
{
    const clmgk_attention_desc desc = in_f16(with_mixed_heads);
    const char *const parameters = "unit=4,lanes=16,vectors=2,panels=2,tile=32,heads=2";
    expect_shapes(session, desc, parameters, 0, 8);
    expect_sizes(session, desc, parameters);
}

F16_FULL_TEST(f16_modifiers)
{
    const clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_F16,
                                       .head_size = 64,
                                       .value_size = 32,
                                       .gradients = TRAINING | CLMGK_GRADIENT_BIAS | CLMGK_GRADIENT_SINKS,
                                       .use_bias = 1,
                                       .use_alibi = 1,
                                       .use_sinks = 1,
                                       .softcap = 3.0,
                                       .dropout = 0.25};
    expect_shapes(session, desc, "unit=4,lanes=16,vectors=2,panels=2,tile=32", 2, 6);
    expect_shapes(session, in_f16(with_mixed_modifiers), "unit=4,lanes=16,vectors=2,panels=2,tile=32,heads=2", 2, 6);
}

F16_FULL_TEST(f16_sizes_of_heads)
{
    const clmgk_attention_desc narrow = {.variant = CLMGK_VARIANT_GAUSSIAN,
                                         .dtype = CLMGK_DTYPE_F16,
                                         .head_size = 8,
                                         .value_size = 12,
                                         .gradients = TRAINING};
    expect_shapes(session, narrow, "unit=4,lanes=16,vectors=2,panels=2,tile=32,splits=1", 0, 8);
    const clmgk_attention_desc several = {.variant = CLMGK_VARIANT_SMGK,
                                          .components = 3,
                                          .dtype = CLMGK_DTYPE_F16,
                                          .head_size = 7,
                                          .value_size = 8,
                                          .gradients = TRAINING | CLMGK_GRADIENT_SHIFT};
    expect_shapes(session, several, "unit=4,lanes=16,vectors=2,panels=2,tile=64,splits=2", 2, 8);
    const clmgk_attention_desc mixed = {.variant = CLMGK_VARIANT_HARD_FISH,
                                        .components = 2,
                                        .dtype = CLMGK_DTYPE_F16,
                                        .head_size = 12,
                                        .value_size = 32,
                                        .gradients = TRAINING | CLMGK_GRADIENT_MIX};
    expect_shapes(session, mixed, "unit=4,lanes=16,vectors=2,panels=2,tile=32,heads=2", 0, 8);
    const clmgk_attention_desc wide = {
        .dtype = CLMGK_DTYPE_F16, .head_size = 128, .value_size = 128, .gradients = TRAINING};
    expect_shapes(session, wide, "unit=4,lanes=16,vectors=2,panels=2,tile=64,block=16", 0, 6);
}

/* ---- choice ---------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc plain(void)
{
    return (clmgk_attention_desc){.struct_size = sizeof(clmgk_attention_desc),
                                  .dtype = CLMGK_DTYPE_BF16,
                                  .batch = 1,
                                  .heads = 1,
                                  .length = 40,
                                  .length_k = 40,
                                  .head_size = 40,
                                  .value_size = 100};
}

static void expect_reason(clmgk_context *context, const clmgk_attention_desc *desc, const char *expected)
{
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan *plan = NULL;
    th_expect_ok(clmgk_plan_create(context, desc, &options, &plan, &th_error));
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    if (!strstr(info.engine_reason, expected))
        fail_msg("%s: expected %s", info.engine_reason, expected);
    clmgk_plan_release(plan);
}

/* A device that should have the unit, and a caller, an environment or a system that refuses it: the plan tells. */
TH_TEST(refusals)
{
    const clmgk_attention_desc desc = plain();
    clmgk_attention_desc halves = desc;
    halves.dtype = CLMGK_DTYPE_F16;
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    for (int given = 0; given <= 1; given++) {
        options.no_amx = given;
        (void)setenv("CLMGK_AMX", given ? "1" : "0", 1);
        th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, &options, &context, &th_error));
        (void)unsetenv("CLMGK_AMX");
        if (context->facts.runtime == MGK_RUNTIME_POCL && context->facts.x86_avx512dq) {
            context->facts.x86_amx = true;
            expect_reason(context, &desc, "no matrix units: amx: switched off by the options or CLMGK_AMX");
            context->matrix_unit[MATRIX_AMX] = (mgk_matrix_unit){.known = true, .why = "amx: denied"};
            expect_reason(context, &desc, "no matrix units: amx: denied");
            /* that of bf16 stays */
            context->facts.x86_amx_f16 = true;
            context->matrix_unit[MATRIX_AMX] = (mgk_matrix_unit){.known = true, .unit = MATRIX_AMX};
            context->matrix_unit[MATRIX_AMX_F16] = (mgk_matrix_unit){.known = true, .why = "amx-fp16: denied"};
            expect_reason(context, &halves, "no matrix units: amx-fp16: denied");
        }
        clmgk_context_release(context);
    }
    options.no_amx = 2;
    th_expect_error(clmgk_context_create(session->cl, session->info.device_id, &options, &context, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "options.no_amx: 2: expected 0 or 1");
}

/* The unit of f16 is the default where there is one, and the plan tells; it takes no other types. */
F16_TEST(f16_choice)
{
    clmgk_attention_desc desc = plain();
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, "unit=4");
    th_message message;
    assert_null(th_try_plan(session, &desc, &options, &message));
    desc.dtype = CLMGK_DTYPE_F16;
    expect_reason(session->context, &desc, "matrix units: amx-fp16");
    desc.dtype_o = CLMGK_STORAGE_F32;
    assert_null(th_try_plan(session, &desc, &options, &message));
}

/* Other types without the precision. */
UNIT_TEST(problems_without_it)
{
    clmgk_attention_desc desc = plain();
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, "unit=3");
    th_message message;
    desc.dtype = CLMGK_DTYPE_F16;
    assert_null(th_try_plan(session, &desc, &options, &message));
    desc.precision = CLMGK_PRECISION_TF32;
    assert_null(th_try_plan(session, &desc, &options, &message));
    desc = plain();
    desc.dtype_o = CLMGK_STORAGE_F32; /* the bound is f32's: no weights in bf16 */
    assert_null(th_try_plan(session, &desc, &options, &message));
}
