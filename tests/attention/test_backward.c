/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of every variant on every engine against the reference: forms, masks and modifiers, shapes, layouts,
 * subsets of the gradients, partition of the work; then properties that do not depend on the reference. A program takes
 * seconds to build, so options that are chosen at run time vary over few programs.
 */
#include "harness/harness.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs on the device's own engine with these parameters of the backward pass, and checks. */
static void expect_with(th_session *session, th_problem *problem, const char *parameters)
{
    clmgk_plan_options options = th_options(session, 0);
    options.backward_parameters = parameters;
    th_expect_training(session, problem, &options);
}

/* ---- sweeps ---------------------------------------------------------------------------------------------------- */

/* Whether all sequences have so few keys that a bias may leave only one visible. */
static bool may_leave_one_key(const th_problem *problem)
{
    bool few = problem->desc.use_bias && problem->desc.use_lengths;
    for (int64_t b = 0; few && b < problem->desc.batch; b++)
        few = problem->array[TH_LENGTHS].values[b] <= 2.0;
    return few;
}

/* A program of all gradients over `shapes` shapes. Every other time the keys are split, if the engine can. That needs
 * another program, so the quick tier splits in two, always or never, except for problems that run on all engines. */
static void expect_program(th_session *session, clmgk_attention_desc desc, size_t first, size_t shapes, bool all)
{
    static const char *const splits[] = {"panels=2,splits=1", "panels=2,splits=2", "panels=2,splits=4"};
    const bool lane = session->engine[0] == CLMGK_ENGINE_LANE, split = (first / 2 + (size_t)desc.variant) % 2 == 1;
    uint64_t random = 100 * (uint64_t)desc.variant + first;
    if (desc.gradients == 0)
        desc.gradients = th_all_gradients(&desc);
    for (size_t n = first; n < first + (session->full ? 3 * shapes : shapes); n++) {
        th_set_shape(&desc, n, &random);
        TH_PROBLEM problem = th_problem_make(&desc, th_random(&random));
        if (th_chance(&random, 2))
            th_accumulate_some(&problem, &random);
        /* the weight of a single key is 1, and without dL all gradients are rounding errors: one_key_has_no_gradient */
        problem.array[TH_GRAD_LSE].used = th_chance(&random, 2) || n < TH_CORNERS ||
                                          (desc.use_window && desc.window_left == 0) || may_leave_one_key(&problem);
        if (lane && !session->full && !all)
            expect_with(session, &problem, splits[split ? 1 : 0]);
        else if (n % 2 == 1 && lane)
            expect_with(session, &problem, splits[session->full ? th_pick(&random, 0, 2) : 1]);
        else
            th_expect_gradients(session, &problem, all && th_takes(session, n, 4));
    }
}

/* ---- forms ----------------------------------------------------------------------------------------------------- */

TH_TEST(softmax)
{
    const clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 0, 0);
    expect_program(session, desc, 0, session->full ? 20 : 14, true);
}

TH_TEST(gaussian)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_GAUSSIAN, 0, 0);
    desc.prior_shape = CLMGK_PRIOR_HMS;
    expect_program(session, desc, 4, session->full ? 8 : 5, false);
}

/* Every shape of prior and variance that an array has, each pair with a program; the quick tier takes each shape with
 * one of the variants: pairs 0 and 4, or pair 2. */
static void sweep_arrays(th_session *session, clmgk_attention_desc desc, size_t shapes, size_t first)
{
    for (size_t n = 0; n < 6; n++) {
        if (!session->full && n % 4 != first)
            continue;
        desc.prior_shape = (clmgk_prior_shape)(1 + n % 3);
        desc.variance_shape = (clmgk_variance_shape)(1 + n / 3);
        expect_program(session, desc, n, shapes, false);
    }
}

TH_TEST(mgk_with_priors_and_variances)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 0, 0);
    sweep_arrays(session, desc, 3, 0);
}

TH_TEST(smgk_with_priors_and_variances)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 0, 0);
    sweep_arrays(session, desc, 3, 2);
}

TH_TEST(smgk_with_one_variance)
{
    const clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 0, 0);
    expect_program(session, desc, 4, session->full ? 8 : 4, true);
}

/* The other forms: every variant, score, E-step, with and without arrays. */
TH_FULL_TEST(every_form)
{
    for (size_t n = 0; n < 32; n++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[2 + n / 16], 0, 0);
        desc.score = th_scores[n / 8 % 2];
        desc.estep = th_esteps[n / 4 % 2];
        desc.prior_shape = n % 2 == 1 ? (clmgk_prior_shape)(1 + n / 2 % 3) : CLMGK_PRIOR_UNIFORM;
        desc.variance_shape = n / 2 % 2 == 1 ? CLMGK_VARIANCE_HM : CLMGK_VARIANCE_NUMBER;
        desc.components = 1 + (int64_t)(n % 4);
        expect_program(session, desc, n % 8, 4, n % 8 == 0);
    }
}

/* The quick tier has ties (below), and random problems. */
TH_FULL_TEST(hard_estep)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 0, 0);
    desc.estep = CLMGK_ESTEP_HARD;
    desc.prior_shape = CLMGK_PRIOR_HMS; /* plays no role: its gradient is 0 */
    desc.score = CLMGK_SCORE_DOT;
    desc.components = 3;
    expect_program(session, desc, 4, 8, false);
    desc.variant = CLMGK_VARIANT_SMGK;
    expect_program(session, desc, 4, 8, false);
}

/* Component 1 has the keys of component 0: the first takes all of the gradient. */
TH_TEST(ties_of_the_hard_estep)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 45, 120);
    desc.prior_shape = CLMGK_PRIOR_HMS;
    desc.score = CLMGK_SCORE_DOT;
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM problem = th_tied_problem(desc);
    th_expect_gradients(session, &problem, true);
    const th_array *const grad = &problem.array[TH_GRAD_K];
    const size_t size = grad->count / 6; /* of a component of one of two heads */
    for (size_t h = 0; h < 2; h++)
        for (size_t n = 0; n < size; n++)
            assert_true(grad->values[(3 * h + 1) * size + n] == 0.0);
}

/* More numbers than a work-item sums alone. */
TH_TEST(long_sums)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5000, 3);
    desc.heads = 1;
    desc.use_sinks = 1;
    desc.gradients = CLMGK_GRADIENT_SINKS;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_expect_gradients(session, &problem, false);
}

TH_TEST(storage_types)
{
    for (size_t n = 0; n < (session->full ? 2 * TH_COUNT(th_variants) : 1); n++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[session->full ? n / 2 : 2], 0, 0);
        desc.dtype = th_dtypes[1 + n % 2];
        /* arrays, because the bound of a single number would depend on one rounding error of the plain formula */
        if (desc.variant != CLMGK_VARIANT_SOFTMAX) {
            desc.prior_shape = CLMGK_PRIOR_HMS;
            desc.variance_shape = CLMGK_VARIANCE_HM;
        }
        expect_program(session, desc, 2, session->full ? 8 : 5, false);
    }
}

/* Gradients in f32 of arrays in bf16: they have f32's bound beyond the arrays' rounding, unlike gradients in bf16. In
 * the full tier also of f16, with dQ alone in f32, and on every engine. */
TH_TEST(gradients_of_their_own_types)
{
    for (size_t n = 0; n < (session->full ? 8 : 1); n++) {
        clmgk_attention_desc desc = th_small_desc(n / 2 % 2 == 0 ? CLMGK_VARIANT_SOFTMAX : CLMGK_VARIANT_MGK, 50, 70);
        desc.dtype = n % 2 == 0 ? CLMGK_DTYPE_BF16 : CLMGK_DTYPE_F16;
        desc.dtype_grad_q = CLMGK_STORAGE_F32;
        desc.dtype_grad_k = n < 4 ? CLMGK_STORAGE_F32 : CLMGK_STORAGE_AS_Q;
        desc.dtype_grad_v = n < 4 ? CLMGK_STORAGE_F32 : CLMGK_STORAGE_BF16;
        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        uint64_t random = n;
        if (n % 2 == 1)
            th_accumulate_some(&problem, &random);
        th_expect_gradients(session, &problem, session->full);
        bool rounded = true; /* all numbers of dQ are those of bf16 */
        for (size_t i = 0; i < problem.array[TH_GRAD_Q].count; i++) {
            const double x = problem.array[TH_GRAD_Q].values[i];
            rounded = rounded && clmgk_ref_rounded(desc.dtype, (float)x) == (float)x;
        }
        assert_false(rounded);
    }
}

/* Gaussian scores, where the products for dQ and dK nearly cancel what the rows and keys add themselves: f16, bf16. */
TH_FULL_TEST(far_from_the_origin)
{
    for (size_t n = 0; n < 4; n++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[1 + n / 2], 50, 70);
        desc.dtype = th_dtypes[1 + n % 2];
        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
        TH_PROBLEM problem = th_far_problem(desc);
        th_expect_gradients(session, &problem, true);
    }
}

/* A type for each array and its gradient. Every other problem accumulates some gradients; the last one runs on every
 * engine. */
TH_TEST(mixed_storage_types)
{
    static const th_mix mixes[] = {
        {CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, CLMGK_STORAGE_F32, CLMGK_STORAGE_F16, CLMGK_STORAGE_F32, 5, 17},
        {CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, CLMGK_STORAGE_F16, CLMGK_STORAGE_F16, CLMGK_STORAGE_AS_Q, 64, 64}};
    enum { FIRST = 4, SHAPES = 8 };
    for (size_t n = session->full ? 0 : SHAPES / 2; n < (session->full ? TH_COUNT(mixes) : 1) * SHAPES; n++) {
        const size_t mix = n / SHAPES, shape = n % SHAPES;
        clmgk_attention_desc desc = th_mix_desc(&mixes[mix]);
        uint64_t random = n;
        desc.gradients = th_all_gradients(&desc);
        th_set_shape(&desc, FIRST + shape, &random);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (th_name name = TH_Q; shape % 2 == 1 && name <= TH_O; name++)
            problem.array[name].offset = 2 * (uint64_t)name + 1;
        if (shape % 2 == 1)
            th_accumulate_some(&problem, &random);
        th_expect_gradients(session, &problem, shape + 1 == SHAPES);
    }
}

TH_TEST(head_sizes)
{
    static const int64_t size[][2] = {{33, 5}, {8, 8}, {1, 40}, {64, 64}, {128, 96}, {7, 200}, {256, 16}};
    for (size_t n = 0; n < TH_COUNT(size) * TH_COUNT(th_variants); n++) {
        clmgk_attention_desc desc = {.variant = th_variants[n % TH_COUNT(th_variants)],
                                     .head_size = size[n / TH_COUNT(th_variants)][0],
                                     .value_size = size[n / TH_COUNT(th_variants)][1]};
        if (session->full || n == 0 || n == 6) /* softmax, and MGK with narrow heads */
            expect_program(session, desc, 5, 4, false);
    }
}

/* ---- modifiers ------------------------------------------------------------------------------------------------- */

/* Bias of the whole score matrix, shared by batches and heads or not; in the quick tier random problems have these. */
TH_FULL_TEST(whole_bias_with_sinks_and_alibi)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 0, 0);
    desc.use_bias = desc.use_sinks = desc.use_alibi = 1;
    expect_program(session, desc, 0, 14, false);
}

/* Packed sequences with all options of a mixture, and a bias with a single axis: every other of eight forms. */
static void expect_packed(th_session *session, clmgk_variant variant, size_t first)
{
    for (size_t n = first; n < (session->full ? 8 : first + 1); n += 2) {
        clmgk_attention_desc desc = th_small_desc(variant, 0, 0);
        desc.sequences = 4;
        desc.use_bias = desc.use_sinks = desc.use_alibi = 1;
        desc.bias_length = n / 2 % 2 == (n & 1U) ? 1 : 0;
        desc.bias_length_k = n / 4 == 1 || desc.bias_length == 0 ? 1 : 0;
        desc.prior_shape = CLMGK_PRIOR_HMS;
        desc.dropout = 0.25;
        expect_program(session, desc, 2, session->full ? 8 : 5, false);
    }
}

TH_TEST(packed_with_everything)
{
    expect_packed(session, CLMGK_VARIANT_SMGK, 0);
}

TH_FULL_TEST(packed_components_with_everything)
{
    expect_packed(session, CLMGK_VARIANT_MGK, 1);
}

/* Blocks of rows that read terms of keys from the workspace. Each sequence has its own; two heads of queries share
 * them. */
TH_TEST(terms_of_keys_of_packed_sequences)
{
    for (size_t n = 0; n < session->engines; n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 40, 70);
        desc.kv_heads = 1;
        desc.sequences = 3;
        desc.use_offsets_k = 1;
        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
        if (session->engine[n] != CLMGK_ENGINE_SIMT)
            continue;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        clmgk_plan_options options = th_options(session, n);
        options.backward_parameters = "rows=1,keys=1";
        th_expect_training(session, &problem, &options);
    }
}

TH_TEST(softcap_and_dropout)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 0, 0);
    desc.use_bias = 1;
    desc.bias_length = desc.bias_length_k = 1;
    desc.softcap = 1.5;
    desc.dropout = 0.4;
    expect_program(session, desc, 4, session->full ? 8 : 5, false);
}

/* The slope of the soft-cap enters the row sums for dQ and dshift, but not those for a bias without key axis. */
TH_TEST(softcap_of_a_shifted_key)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 0, 0);
    desc.score = CLMGK_SCORE_DOT;
    desc.components = 1;
    desc.prior_shape = CLMGK_PRIOR_HM;
    desc.softcap = 1.5;
    desc.use_bias = 1;
    desc.bias_length_k = 1;
    expect_program(session, desc, 3, 6, false);
}

TH_FULL_TEST(every_bias)
{
    for (size_t n = 0; n < 16; n++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[n / 4], 0, 0);
        desc.use_bias = 1;
        desc.bias_length = (int64_t)(n % 2);
        desc.bias_length_k = (int64_t)(n / 2 % 2);
        expect_program(session, desc, 3, 6, n % 4 == 0);
    }
}

/* Rows without keys: the bias hides all of them by -inf. */
TH_TEST(rows_without_keys)
{
    TH_PROBLEM problem = th_hidden_rows_problem(th_small_desc(CLMGK_VARIANT_SOFTMAX, 40, 90));
    th_expect_gradients(session, &problem, false);
    th_fill(&problem, TH_BIAS, -(double)INFINITY);
    th_expect_gradients(session, &problem, false);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* Scores whose last place is more than 1. Only finite gradients can be required. */
static void expect_finite(th_session *session, th_problem *problem)
{
    const clmgk_plan_options options = th_options(session, 0);
    th_run_training(session, problem, &options);
    for (th_name name = TH_GRAD_Q; name <= TH_GRAD_SINKS; name++)
        for (size_t n = 0; problem->array[name].used && n < problem->array[name].count; n++)
            assert_true(isfinite(problem->array[name].values[n]));
}

/* No term of dvariance is below 2^-126, because OpenCL lets devices flush such numbers to 0. */
TH_TEST(huge_and_tiny_logits)
{
    static const double factors[] = {1e-17, 1e-3, 5.0, 10.0, 30.0, 1e4};
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_SMGK};
    for (size_t n = 0; n < TH_COUNT(factors) * TH_COUNT(variants); n++) {
        clmgk_attention_desc desc = th_small_desc(variants[n % 2], 40, 130);
        desc.gradients = th_all_gradients(&desc);
        desc.causal = n / 2 % 2 == 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_Q, factors[n / 2]);
        th_scale(&problem, TH_K, factors[n / 2]);
        if (factors[n / 2] < 1e4)
            th_expect_gradients(session, &problem, false);
        else
            expect_finite(session, &problem);
    }
}

/* sMGK: shifts with which some pairs take the factored form of a weight, and others do not. */
TH_TEST(shift_spreads)
{
    static const double sizes[] = {0.0, 2.0, 6.0, 10.0, 30.0, 100.0};
    for (size_t n = 0; n < TH_COUNT(sizes) * 2; n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 70, 150);
        desc.kv_heads = 1;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_SHIFT, sizes[n / 2]);
        for (int64_t i = 0; i < desc.length; i += 7) /* the forms mix among the tiles */
            th_set(&problem, TH_Q, 0, i % 2, 0, i, 0, n % 2 == 0 ? 1.0 : 40.0);
        th_expect_gradients(session, &problem, false);
    }
}

/* Scores so large that weights depend on their last places. With sMGK, pairs of one tile take different forms. */
TH_TEST(both_passes_weigh_alike)
{
    static const struct {
        clmgk_variant variant;
        bool arrays; /* this and the next: a prior for each position and a variance for each component */
        double variance;
        double size, shift;
    } cases[] = {
        {CLMGK_VARIANT_SOFTMAX, false, 0.0, 30.0, 0.0}, {CLMGK_VARIANT_GAUSSIAN, false, 0.0, 10.0, 0.0},
        {CLMGK_VARIANT_SMGK, false, 0.0, 10.0, 3.0},    {CLMGK_VARIANT_SMGK, false, 0.0, 3.0, 30.0},
        {CLMGK_VARIANT_SMGK, true, 0.0, 10.0, 3.0},     {CLMGK_VARIANT_SMGK, true, 4.0, 10.0, 3.0},
        {CLMGK_VARIANT_SMGK, true, 4.0, 3.0, 10.0},     {CLMGK_VARIANT_MGK, true, 0.0, 10.0, 0.0},
    };
    for (size_t run = 0; run < 2 * TH_COUNT(cases); run++) {
        const size_t n = run % TH_COUNT(cases);
        clmgk_attention_desc desc = th_small_desc(cases[n].variant, 70, 130);
        desc.heads = 1;
        desc.prior_shape = cases[n].arrays ? CLMGK_PRIOR_HMS : CLMGK_PRIOR_UNIFORM;
        desc.variance_shape = cases[n].arrays ? CLMGK_VARIANCE_HM : CLMGK_VARIANCE_NUMBER;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, run);
        th_scale(&problem, TH_Q, cases[n].size);
        th_scale(&problem, TH_K, 0.3 * cases[n].size);
        th_scale(&problem, TH_SHIFT, cases[n].shift);
        if (cases[n].variance > 0.0)
            th_fill(&problem, TH_VARIANCE, cases[n].variance);
        for (int64_t j = 0; cases[n].arrays && j < 130; j += 3)
            th_set(&problem, TH_PRIOR, 0, 0, j % 2, j, 0, j % 6 == 0 ? 0.0 : 1e-30);
        const clmgk_plan_options options = th_options(session, 0);
        th_expect_equal_weights(session, &problem, &options);
    }
}

/* The first `shared` engines use programs of other tests. The others have programs of dV alone, which is enough to show
 * P; the quick tier has every fourth one of these. */
TH_TEST(rivals_at_large_scores)
{
    static const struct {
        clmgk_variant variant;
        int64_t length;
        int32_t use_lse_low, use_bias;
        size_t shared; /* engines whose programs other tests have */
    } cases[] = {{CLMGK_VARIANT_SOFTMAX, 70, 0, 0, 2},  {CLMGK_VARIANT_SOFTMAX, 49, 0, 0, 2},
                 {CLMGK_VARIANT_SOFTMAX, 70, 1, 1, 2},  {CLMGK_VARIANT_GAUSSIAN, 70, 0, 0, 1},
                 {CLMGK_VARIANT_MGK, 70, 1, 0, 0},      {CLMGK_VARIANT_SMGK, 70, 0, 0, 2},
                 {CLMGK_VARIANT_HARD_FISH, 70, 1, 1, 0}};
    for (size_t n = 0; n < TH_COUNT(cases); n++)
        for (size_t e = 0; e < session->engines && (e == 0 || th_takes(session, n, 4)); e++) {
            clmgk_attention_desc desc = th_small_desc(cases[n].variant, cases[n].length, cases[n].length);
            desc.use_lse_low = cases[n].use_lse_low;
            desc.use_bias = cases[n].use_bias;
            desc.gradients = e < cases[n].shared ? th_all_gradients(&desc) : CLMGK_GRADIENT_V;
            TH_PROBLEM problem = th_problem_make(&desc, n);
            th_make_rivals(&problem, n + 1);
            const clmgk_plan_options options = th_options(session, e);
            th_expect_equal_weights(session, &problem, &options);
        }
}

/* The least float hides all keys: lse_low alone says how many they are. The programs are those of a test above. */
TH_TEST(rows_of_the_least_float)
{
    for (size_t e = 0; e < session->engines && e < 2; e++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 70, 70);
        desc.use_lse_low = desc.use_bias = 1;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, 2);
        th_fill(&problem, TH_BIAS, -FLT_MAX);
        const clmgk_plan_options options = th_options(session, e);
        th_expect_equal_weights(session, &problem, &options);
    }
}

/* Large finite biases as masks. Rows take turns: all keys are masked, which changes no weight; some are; some are, with
 * biases of two sizes; none is. */
static void mask_rows(th_problem *problem)
{
    static const double masks[] = {-1e4, -1e9, -1e10, -1e30, -FLT_MAX, 3e38};
    const clmgk_attention_desc *const d = &problem->desc;
    for (int64_t n = 0; n < d->length * d->length_k; n++) {
        const int64_t i = n / d->length_k, j = n % d->length_k, kind = i % 4;
        const double mask = masks[(size_t)i / 4 % TH_COUNT(masks)];
        const bool masked[] = {true, j % 3 != 0, j < 100, false};
        if (masked[kind])
            th_set(problem, TH_BIAS, 0, 0, 0, i, j, kind == 2 && j % 2 == 0 ? 0.5 * mask : mask);
    }
}

TH_TEST(finite_masks)
{
    static const struct {
        clmgk_variant variant;
        int32_t use_lse_low;
    } cases[] = {{CLMGK_VARIANT_SOFTMAX, 0}, {CLMGK_VARIANT_SOFTMAX, 1}, {CLMGK_VARIANT_GAUSSIAN, 1},
                 {CLMGK_VARIANT_MGK, 0},     {CLMGK_VARIANT_SMGK, 0},    {CLMGK_VARIANT_HARD_FISH, 1}};
    for (size_t n = 0; n < TH_COUNT(cases); n++)
        for (size_t e = 0; e < session->engines && (e == 0 || n == 1 || session->full); e++) {
            if (!session->full && (n == 2 || n == 3)) /* the files of SMGK */
                continue;
            clmgk_attention_desc desc = th_small_desc(cases[n].variant, 40, 150);
            desc.use_bias = 1;
            desc.bias_heads = 1;
            desc.use_lse_low = cases[n].use_lse_low;
            desc.gradients = th_all_gradients(&desc);
            TH_PROBLEM problem = th_problem_make(&desc, n);
            mask_rows(&problem);
            const clmgk_plan_options options = th_options(session, e);
            th_run_training(session, &problem, &options);
            TH_REF_ANSWER answer = th_solve(&problem);
            th_check(session, &problem, options.engine, &answer);
            TH_REF_ARRAYS exact = th_solve_gradients(&problem);
            th_check_gradients(session, &problem, options.engine, &exact);
        }
}

/* Biases that leave nothing of the scores: L is one of them, each component's P is 1, and P of a key is no more. */
TH_TEST(components_without_scores)
{
    for (size_t e = 0; e < (session->full ? session->engines : 1); e++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 3, 2);
        desc.score = CLMGK_SCORE_DOT;
        desc.components = 4;
        desc.use_bias = 1;
        desc.bias_batch = desc.bias_heads = desc.bias_length = desc.bias_length_k = 1;
        desc.gradients = CLMGK_GRADIENT_V;
        TH_PROBLEM problem = th_problem_make(&desc, 1);
        th_fill(&problem, TH_BIAS, 3e38);
        const clmgk_plan_options options = th_options(session, e);
        th_expect_passes(session, &problem, &options);
    }
}

/* A sink that has nearly or quite all the weight, and scores that are much larger than the sink. */
TH_TEST(sinks_and_gaussian_scores)
{
    static const double values[][2] = {{1.0, 0.3},  {1.0, 10.0}, {1.0, 20.0},   {10.0, 0.3},
                                       {30.0, 0.3}, {1e-3, 5.0}, {1.0, 2.5e38}, {1.0, -2.5e38}};
    for (size_t n = 0; n < TH_COUNT(values); n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_GAUSSIAN, 40, 64);
        desc.use_sinks = 1;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_Q, values[n][0]);
        th_fill(&problem, TH_SINKS, values[n][1]);
        th_expect_gradients(session, &problem, false);
        TH_REF_ANSWER answer = th_solve(&problem);
        th_check(session, &problem, session->engine[0], &answer);
    }
}

/* Every value's absolute value times `sign`. */
static void give_sign(th_problem *problem, th_name name, double sign)
{
    th_array *const array = &problem->array[name];
    for (size_t n = 0; array->used && n < array->count; n++)
        array->values[n] = copysign(array->values[n], sign);
}

/* The weight of a single key is always 1, so without dL dQ and dK are 0. The rest is rounding, of dO.v and dO.O. The
 * bound counts k - q as a single term, so signs are chosen that avoid cancellation within it. */
TH_TEST(one_key_has_no_gradient)
{
    for (size_t n = 0; n < (session->full ? 20 : 5) * TH_COUNT(th_variants); n++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[n % TH_COUNT(th_variants)], 70, 1);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        problem.array[TH_GRAD_LSE].used = false;
        give_sign(&problem, TH_K, 1.0);
        give_sign(&problem, TH_SHIFT, 1.0);
        give_sign(&problem, TH_Q, -1.0);
        th_expect_gradients(session, &problem, n == 0);
    }
}

/* MGK (0) or sMGK (1) with a prior for each position and a variance for each component. */
static th_problem with_arrays(size_t variant, uint64_t seed)
{
    clmgk_attention_desc desc = th_small_desc(th_variants[2 + variant], 40, 130);
    desc.prior_shape = CLMGK_PRIOR_HMS;
    desc.variance_shape = CLMGK_VARIANCE_HM;
    desc.gradients = th_all_gradients(&desc);
    return th_problem_make(&desc, seed);
}

/* Components with the prior 0, whose dprior is in general not 0. */
TH_TEST(zero_priors)
{
    for (size_t n = 0; n < 4; n++) {
        TH_PROBLEM problem = with_arrays(n / 2, n);
        if (n % 2 == 1) /* as one variance: sMGK takes the factored form */
            th_fill(&problem, TH_VARIANCE, 4.0);
        for (int64_t j = 0; j < 130; j++)
            for (int64_t r = 0; r < 2; r++)
                if (j % 4 == r || j % 7 == 3 || (j >= 64 && j < 100))
                    th_set(&problem, TH_PRIOR, 0, j % 2, r, j, 0, 0.0);
        th_expect_gradients(session, &problem, false);
    }
}

/* dvariance where the prior's logarithm is much larger than the scores. */
TH_TEST(small_scores_beside_a_prior)
{
    static const double factors[] = {1e-1, 1e-2, 1e-3};
    for (size_t n = 0; n < TH_COUNT(factors) * 2; n++) {
        TH_PROBLEM problem = with_arrays(n % 2, n);
        th_scale(&problem, TH_Q, factors[n / 2]);
        th_scale(&problem, TH_K, factors[n / 2]);
        th_scale(&problem, TH_SHIFT, factors[n / 2]);
        th_expect_gradients(session, &problem, false);
    }
}

/* A component with the prior 0 that would otherwise have all the weight. Its dprior overflows f32; other gradients do
 * not. */
TH_TEST(zero_prior_of_the_nearest_component)
{
    for (size_t n = 0; n < 4; n++) {
        TH_PROBLEM problem = with_arrays(n / 2, n);
        th_scale(&problem, TH_Q, 20.0);
        th_scale(&problem, TH_K, 20.0);
        th_fill(&problem, TH_VARIANCE, 4.0);
        for (int64_t h = 0; h < 2; h++) {
            th_set(&problem, TH_VARIANCE, 0, h, 0, 0, 0, n % 2 == 0 ? 40.0 : 4.0);
            for (int64_t j = 0; j < 130; j++)
                th_set(&problem, TH_PRIOR, 0, h, 0, j, 0, j % 5 == 0 ? 1e-30 : 0.0);
        }
        th_expect_gradients(session, &problem, false);
    }
}

/* sMGK: a component with the prior 0, far from the queries and near the keys. In the sum of its dprior the factors of
 * keys overflow f32, but their products with the factors of queries do not. */
TH_TEST(zero_prior_of_a_far_shift)
{
    static const double sizes[] = {4.0, 8.0, 12.0, 16.0};
    for (size_t n = 0; n < TH_COUNT(sizes) * 2; n++) {
        TH_PROBLEM problem = with_arrays(1, n);
        th_fill(&problem, TH_VARIANCE, 4.0);
        th_scale(&problem, TH_K, sizes[n / 2]);
        th_scale(&problem, TH_SHIFT, sizes[n / 2]);
        for (int64_t j = 0; j < 130; j++)
            for (int64_t h = 0; h < 2; h++)
                th_set(&problem, TH_PRIOR, 0, h, 0, j, 0, n % 2 == 0 ? 0.0 : 1e-30);
        th_expect_gradients(session, &problem, false);
    }
}

/* NaN beyond the lengths has no effect; gradients are 0 there. */
TH_TEST(padding_does_not_leak)
{
    for (size_t v = 0; v < TH_COUNT(th_variants); v++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[v], 70, 130);
        if (v > 0)
            desc.prior_shape = CLMGK_PRIOR_HMS;
        if (v > 1)
            desc.variance_shape = CLMGK_VARIANCE_HM;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_padded_problem(desc, v);
        th_expect_gradients(session, &problem, false);
    }
}

/* NaN that a causal mask hides may reach gradients. */
TH_TEST(nan_behind_masks)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 70, 70);
    desc.causal = 1;
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_poison_row(&problem, TH_V, 0, 0, 69);
    th_expect_gradients(session, &problem, false);
    TH_PROBLEM queries = th_problem_make(&desc, 1);
    th_poison_row(&queries, TH_Q, 0, 0, 0);
    th_expect_gradients(session, &queries, false);
}

/* ---- layouts --------------------------------------------------------------------------------------------------- */

enum { B = 2, H = 4, N = 45, D = 17 };

/* All arrays have their tokens first and begin at odd offsets; in half of the cases dO is one row for all. */
TH_TEST(strides_and_offsets)
{
    for (size_t n = 0; n < 4; n++) {
        clmgk_attention_desc desc = th_small_desc(n < 2 ? CLMGK_VARIANT_SOFTMAX : CLMGK_VARIANT_MGK, N, 70);
        const int64_t components = n < 2 ? 1 : 2, gap = (int64_t)n % 2 * 3;
        desc.batch = B;
        desc.heads = H;
        desc.kv_heads = 2;
        if (n >= 2) {
            desc.prior_shape = CLMGK_PRIOR_HMS;
            desc.variance_shape = CLMGK_VARIANCE_HM;
        }
        th_put_tokens_first(&desc, H, 2, components, gap, n % 2 == 1);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_offset_arrays(&problem, 3, n % 2);
        th_expect_gradients(session, &problem, n == 0);
    }
}

/* Q, K, V and their gradients interleaved token by token, [B,N,3,H,D]. */
TH_TEST(packed_qkv)
{
    clmgk_attention_desc desc = th_sized_desc(CLMGK_VARIANT_SOFTMAX, (th_sizes){B, H, 0, 0, N, N, D, D});
    desc.gradients = 7 | CLMGK_GRADIENT_VARIANCE;
    for (size_t n = 0; n < 2; n++) {
        TH_PROBLEM problem = th_packed_problem(desc, n);
        problem.accumulate = n == 1 ? 7 : 0;
        th_expect_gradients(session, &problem, false);
    }
}

/* ---- what is wanted, and how the work is cut up ---------------------------------------------------------------- */

/* Each gradient alone: nothing of the others is there. */
TH_TEST(one_gradient_alone)
{
    for (size_t v = session->full ? 0 : 3; v < TH_COUNT(th_variants); v++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[v], 0, 0);
        desc.use_bias = desc.use_sinks = session->full;
        if (v > 0)
            desc.prior_shape = CLMGK_PRIOR_HMS;
        if (v > 1)
            desc.variance_shape = CLMGK_VARIANCE_HM;
        const uint32_t all = th_all_gradients(&desc);
        const uint32_t quick = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_V;
        for (uint32_t one = 1; one <= CLMGK_GRADIENT_SINKS; one *= 2) {
            desc.gradients = one;
            if ((all & one) != 0 && (session->full || (quick & one) != 0))
                expect_program(session, desc, 5, 4, false);
        }
    }
}

TH_TEST(engine_parameters)
{
    static const th_block blocks[] = {
        {CLMGK_ENGINE_LANE, "panels=2,vectors=4,tile=16,lanes=8,unroll=8"},
        {CLMGK_ENGINE_LANE, "panels=1,tile=128,vectors=1,splits=2"},
        {CLMGK_ENGINE_LANE, "panels=16,tile=32,block=4,unroll=1"},
        {CLMGK_ENGINE_SIMT, "row-threads=4,key-threads=8,rows=2,keys=2,features=8,splits=2"},
        {CLMGK_ENGINE_SIMT, "rows=2,keys=1"}};
    for (size_t n = 0; n < 2 * TH_COUNT(blocks); n++) {
        const size_t block = n / 2;
        bool offered = false;
        for (size_t e = 0; e < session->engines; e++)
            offered = offered || session->engine[e] == blocks[block].engine;
        if (!offered || (!session->full && (n % 2 == 1 || block == 4)))
            continue;
        clmgk_attention_desc desc = th_small_desc(n % 2 == 0 ? CLMGK_VARIANT_SOFTMAX : CLMGK_VARIANT_SMGK, 150, 270);
        th_set_lengths(&desc);
        desc.gradients = th_all_gradients(&desc);
        for (desc.causal = session->full ? 0 : 1; desc.causal < 2; desc.causal++) {
            TH_PROBLEM problem = th_problem_make(&desc, n);
            clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
            options.engine = blocks[block].engine;
            options.backward_parameters = blocks[block].parameters;
            th_expect_training(session, &problem, &options);
        }
    }
}

/* The lane engine's last panel with one key, half of its keys, and one more. */
TH_TEST(short_panels)
{
    static const struct {
        clmgk_variant variant;
        const char *parameters;
    } forms[] = {{CLMGK_VARIANT_SOFTMAX, NULL},
                 {CLMGK_VARIANT_SOFTMAX, "lanes=8,vectors=4,block=4,unroll=1"},
                 {CLMGK_VARIANT_MGK, NULL}};
    static const int64_t lengths[] = {49, 17, 48, 81, 65};
    for (size_t n = 0; session->engine[0] == CLMGK_ENGINE_LANE && n < 2 * TH_COUNT(forms) * TH_COUNT(lengths); n++) {
        const size_t form = n / (2 * TH_COUNT(lengths)), program = n / TH_COUNT(lengths);
        if (!th_takes(session, program % 3, 3) && program != 1)
            continue;
        clmgk_attention_desc desc = th_small_desc(forms[form].variant, 0, lengths[n % TH_COUNT(lengths)]);
        desc.head_size = 24;
        desc.value_size = 40;
        desc.batch = 2;
        desc.length = n % 3 == 1 ? 70 : desc.length_k;
        desc.causal = n / TH_COUNT(lengths) % 2 == 1;
        desc.use_lengths = n % TH_COUNT(lengths) == 3;
        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        expect_with(session, &problem, forms[form].parameters);
    }
}

/* Every width of the lane engine's vectors, whatever the device's: panels of two vectors with every number of rows and
 * keys, beyond a tile, too; the form for few rows with every number of keys. The backward pass of the first form alone,
 * as its programs take seconds to compile; the quick tier has the width that is no device's own. */
TH_TEST(lane_widths)
{
    static const struct {
        clmgk_variant variant;
        const char *parameters;
    } forms[] = {{CLMGK_VARIANT_SOFTMAX, ",vectors=2,panels=1,tile=32,block=8"},
                 {CLMGK_VARIANT_HARD_FISH, ",vectors=2,panels=1,tile=32,block=8"},
                 {CLMGK_VARIANT_LINEAR, ""},
                 {CLMGK_VARIANT_SOFTMAX, ""}};
    const int64_t widest = session->engine[0] != CLMGK_ENGINE_LANE ? 0 : session->full ? 16 : 4;
    for (int64_t width = 4; width <= widest; width *= 2)
        for (int64_t n = 0; n < 2 * width * (int64_t)TH_COUNT(forms); n++) {
            const int64_t form = n / (2 * width), length = n % (2 * width) + 1;
            const bool few = form == TH_COUNT(forms) - 1;
            const int64_t keys = (5 * length) % (2 * width) + 1 + length % 2 * 32;
            char parameters[64];
            snprintf(parameters, sizeof(parameters), "lanes=%d%s", (int)width, forms[form].parameters);
            clmgk_attention_desc desc = th_small_desc(forms[form].variant, few ? 2 : length, keys);
            if (form == 0)
                desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
            TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)n);
            const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, parameters);
            th_expect_passes(session, &problem, &options);
        }
}

/* ---- properties ------------------------------------------------------------------------------------------------ */

static void add(th_problem *problem, th_name name, double amount)
{
    for (size_t n = 0; n < problem->array[name].count; n++)
        problem->array[name].values[n] += amount;
}

/* Runs `changed`, whose gradients must be those of `original`. */
static void expect_same(th_session *session, const th_problem *original, th_problem *changed)
{
    const clmgk_plan_options options = th_options(session, 0);
    th_run_training(session, changed, &options);
    TH_REF_ARRAYS exact = th_solve_gradients(original);
    th_check_gradients(session, changed, options.engine, &exact);
}

static th_problem softmax_problem(uint64_t seed)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 45, 120);
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_VARIANCE;
    return th_problem_make(&desc, seed);
}

TH_TEST(mgk_of_one_component_is_softmax)
{
    TH_PROBLEM original = softmax_problem(1);
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 45, 120);
    desc.components = 1;
    desc.score = CLMGK_SCORE_DOT;
    desc.gradients = original.desc.gradients;
    TH_PROBLEM changed = th_problem_make(&desc, 2);
    th_round_values(session, &original, TH_BACKWARD);
    for (th_name name = TH_Q; name <= TH_V; name++)
        th_copy_values(&changed, &original, name);
    th_copy_values(&changed, &original, TH_GRAD_O);
    th_copy_values(&changed, &original, TH_GRAD_LSE);
    expect_same(session, &original, &changed);
}

/* Reversed keys: dK and dV are reversed, dQ is unchanged. */
TH_TEST(order_of_keys_is_that_of_their_gradients)
{
    const clmgk_plan_options options = th_options(session, 0);
    TH_PROBLEM problem = softmax_problem(3);
    th_round_values(session, &problem, TH_BACKWARD);
    TH_REF_ARRAYS exact = th_solve_gradients(&problem);
    th_reverse_tokens(&problem, TH_K);
    th_reverse_tokens(&problem, TH_V);
    th_run_training(session, &problem, &options);
    th_reverse_tokens(&problem, TH_GRAD_K);
    th_reverse_tokens(&problem, TH_GRAD_V);
    th_check_gradients(session, &problem, options.engine, &exact);
}

/* The same vector added to every key moves a row's logits together: no weight changes, and without dL no gradient. */
TH_TEST(moving_all_keys_changes_nothing)
{
    TH_PROBLEM original = softmax_problem(4);
    TH_PROBLEM changed = softmax_problem(4);
    original.desc.gradients = 7; /* what is looked at */
    original.array[TH_GRAD_LSE].used = changed.array[TH_GRAD_LSE].used = false;
    th_round_values(session, &original, TH_BACKWARD);
    th_copy_values(&changed, &original, TH_K);
    for (size_t n = 0; n < changed.array[TH_K].count; n++) /* so that the sum is exact */
        original.array[TH_K].values[n] = changed.array[TH_K].values[n] =
            ldexp(rint(ldexp(changed.array[TH_K].values[n], 12)), -12);
    add(&changed, TH_K, 2.0);
    expect_same(session, &original, &changed);
}

/* A row's weights sum to one, so all of its dO arrives in dV. */
TH_TEST(values_receive_all_of_the_gradient)
{
    TH_PROBLEM problem = softmax_problem(5);
    const clmgk_plan_options options = th_options(session, 0);
    th_run_training(session, &problem, &options);
    const th_array *const in = &problem.array[TH_GRAD_O], *const out = &problem.array[TH_GRAD_V];
    for (int64_t column = 0; column < 2 * in->shape[4]; column++) {
        const int64_t h = column / in->shape[4], e = column % in->shape[4];
        double sum_in = 0.0, sum_out = 0.0, size = 0.0;
        for (int64_t i = 0; i < in->shape[3]; i++) {
            const double value = in->values[(h * in->shape[3] + i) * in->shape[4] + e];
            sum_in += value;
            size += fabs(value);
        }
        for (int64_t j = 0; j < out->shape[3]; j++)
            sum_out += out->values[(h * out->shape[3] + j) * out->shape[4] + e];
        assert_true(fabs(sum_in - sum_out) <= 1e-5 * size);
    }
}

/* Two components with equal keys act as one with the sum of their priors: each gets half of its dK; dQ and dV are the
 * same.
 */
TH_TEST(equal_components_are_one)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 45, 120);
    desc.prior_shape = CLMGK_PRIOR_HM;
    desc.variance_shape = CLMGK_VARIANCE_HM;
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM two = th_problem_make(&desc, 6);
    desc.components = 1;
    desc.gradients = 7;
    TH_PROBLEM one = th_problem_make(&desc, 6);
    th_round_values(session, &one, TH_BACKWARD);
    th_fill(&two, TH_PRIOR, 0.25);
    th_fill(&one, TH_PRIOR, 0.5);
    th_fill(&two, TH_VARIANCE, 5.0);
    th_fill(&one, TH_VARIANCE, 5.0);
    static const th_name same[] = {TH_Q, TH_V, TH_GRAD_O, TH_GRAD_LSE};
    for (size_t n = 0; n < TH_COUNT(same); n++)
        th_copy_values(&two, &one, same[n]);
    const size_t half = one.array[TH_K].count / 2; /* of one head */
    for (size_t r = 0; r < 4; r++)
        memcpy(two.array[TH_K].values + r * half, one.array[TH_K].values + r / 2 * half, half * sizeof(double));
    const clmgk_plan_options options = th_options(session, 0);
    th_run_training(session, &two, &options);
    TH_REF_ARRAYS exact = th_solve_gradients(&one);
    th_copy_values(&one, &two, TH_GRAD_Q);
    th_copy_values(&one, &two, TH_GRAD_V);
    for (size_t n = 0; n < 2 * half; n++)
        one.array[TH_GRAD_K].values[n] = two.array[TH_GRAD_K].values[n / half * 2 * half + n % half] +
                                         two.array[TH_GRAD_K].values[(n / half * 2 + 1) * half + n % half];
    th_check_gradients(session, &one, options.engine, &exact);
}

/* ---- bit for bit ----------------------------------------------------------------------------------------------- */

/* A bias that batches share: its gradient is a sum over work-groups. */
static th_problem shared_bias_problem(void)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 50, 130);
    desc.batch = 5;
    desc.heads = 4;
    desc.use_bias = desc.use_sinks = desc.use_alibi = 1;
    desc.bias_batch = desc.bias_heads = 1;
    desc.causal = 1;
    desc.gradients = th_all_gradients(&desc);
    return th_problem_make(&desc, 8);
}

static void run_split(th_session *session, th_problem *problem)
{
    clmgk_plan_options options = th_options(session, 0);
    options.backward_parameters = session->engine[0] == CLMGK_ENGINE_LANE ? "panels=2,splits=2" : "splits=2";
    th_run_training(session, problem, &options);
}

static uint64_t digest(const th_problem *problem)
{
    uint64_t hash = 0xcbf29ce484222325U; /* FNV-1a */
    for (th_name name = TH_GRAD_Q; name <= TH_GRAD_SINKS; name++) {
        const th_array *const array = &problem->array[name];
        const unsigned char *const bytes = (const unsigned char *)array->values;
        for (size_t n = 0; array->used && n < array->count * sizeof(double); n++)
            hash = (hash ^ bytes[n]) * 0x100000001b3U;
    }
    return hash;
}

TH_TEST(repeated_runs_are_bit_equal)
{
    const cl_command_queue own = session->queue;
    static const cl_command_queue_properties properties[] = {0, 0, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE};
    uint64_t first = 0;
    for (size_t n = 0; n < TH_COUNT(properties); n++) {
        cl_int code = CL_SUCCESS;
        TH_PROBLEM problem = shared_bias_problem();
        session->queue = clCreateCommandQueue(session->cl, session->info.device_id, properties[n], &code);
        assert_int_equal(code, CL_SUCCESS);
        run_split(session, &problem);
        assert_int_equal(clReleaseCommandQueue(session->queue), CL_SUCCESS);
        session->queue = own;
        first = n == 0 ? digest(&problem) : first;
        assert_true(first == digest(&problem));
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static uint64_t workspace_bytes(th_session *session, const clmgk_attention_desc *desc, const char *parameters)
{
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan_options options = th_options(session, 0);
    options.backward_parameters = parameters;
    clmgk_plan *const plan = th_plan_of(session, desc, &options);
    assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
    clmgk_plan_release(plan);
    return info.backward_workspace_bytes;
}

static clmgk_attention_desc wide_desc(int64_t batch, int64_t heads, int64_t length)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, length, length);
    desc.batch = batch;
    desc.heads = heads;
    desc.head_size = 32;
    desc.gradients = th_all_gradients(&desc);
    return desc;
}

TH_TEST(workspace_is_linear)
{
    static const int64_t shape[][2] = {{1, 1}, {1, 8}, {32, 8}, {4096, 3}};
    const char *const usual = th_options(session, 0).backward_parameters;
    for (size_t n = 0; n < 2 * TH_COUNT(shape); n++) {
        const int64_t length = (n < 6 ? 4096 : 49) * (int64_t)(n % 2 + 1);
        const clmgk_attention_desc desc = wide_desc(shape[n / 2][0], shape[n / 2][1], length);
        const double floats = 4.0 * (32.0 + 8.0) + 1.0; /* a row of Q, K, V, O, their gradients, L */
        const double arrays = (double)(desc.batch * desc.heads * length) * floats * sizeof(float);
        assert_true((double)workspace_bytes(session, &desc, usual) < 2.0 * arrays);
    }
}

/* By default all keys are in one block, of twice the usual size if they need it: dQ is summed up in private memory. */
TH_TEST(one_block_needs_no_workspace)
{
    if (session->engine[0] != CLMGK_ENGINE_LANE)
        skip();
    clmgk_attention_desc desc =
        wide_desc(4 * (int64_t)session->info.compute_units, 1, session->info.native_float_lanes >= 16 ? 400 : 200);
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    assert_int_equal(workspace_bytes(session, &desc, NULL), 0);
}
