/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of the admixture family on every engine against the reference: forms, masks and modifiers, shapes, layouts,
 * subsets of the gradients, partition of the work; then properties that do not depend on the reference. A program takes
 * seconds to build, so options that are chosen at run time vary over few programs.
 */
#include "attention/admixture.h"

#include <math.h>
#include <string.h>

/* One program serves every number of heads; the last group need not be full. */
static clmgk_plan_options options_of(const th_session *session, size_t n)
{
    clmgk_plan_options options = th_options(session, n);
    static const char panels[] = "panels=2,vectors=2,heads=2,splits=1", smallest[] = "rows=1,keys=1,heads=1,splits=1";
    const bool lane = th_has_parameters(session, n, CLMGK_VARIANT_HARD_FISH, panels);
    const bool small =
        options.engine != session->info.engine && th_has_parameters(session, n, CLMGK_VARIANT_HARD_FISH, smallest);
    options.parameters = lane ? panels : small ? smallest : NULL;
    options.backward_parameters = lane ? "panels=2,heads=2" : NULL;
    return options;
}

/* Runs and checks: on the device's own engine, on all if `all` or in full. */
static void expect(th_session *session, th_problem *problem, bool all)
{
    for (size_t n = 0; n < (all || session->full ? session->engines : 1); n++) {
        const clmgk_plan_options options = options_of(session, n);
        th_expect_training(session, problem, &options);
    }
}

/* Runs with parameters of one engine, if the device offers this engine. */
static void expect_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters)
{
    for (size_t n = 0; n < session->engines; n++) {
        clmgk_plan_options options = options_of(session, n);
        if (options.engine != engine)
            continue;
        options.backward_parameters = parameters;
        th_expect_training(session, problem, &options);
    }
}

/* ---- sweeps ---------------------------------------------------------------------------------------------------- */

/* H = ratio G; every ratio has programs of its own. */
static void set_heads(clmgk_attention_desc *desc, int64_t ratio)
{
    if ((clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_SQUARE) != 0)
        desc->heads = desc->kv_heads = desc->components; /* the program's */
    else
        desc->heads = desc->kv_heads * ratio;
}

/* Splits the keys every other time, if the engine can. That needs another program, so the quick tier splits in two,
 * always or never (`split`), except for problems that run on all engines. */
static void expect_shape(th_session *session, th_problem *problem, size_t n, bool split, bool all, uint64_t *random)
{
    static const char *const splits[] = {"panels=2,heads=2,splits=1", "panels=2,heads=2,splits=2",
                                         "panels=2,heads=2,splits=4"};
    const bool lane = session->engine[0] == CLMGK_ENGINE_LANE, one = lane && !session->full && !all;
    if (one)
        expect_with(session, problem, CLMGK_ENGINE_LANE, splits[split ? 1 : 0]);
    else if (n % 2 == 1 && lane)
        expect_with(session, problem, CLMGK_ENGINE_LANE, splits[session->full ? th_pick(random, 0, 2) : 1]);
    if (!one && (n % 2 == 0 || !lane || all))
        expect(session, problem, all && th_takes(session, n, 2));
}

/* A program of all gradients over `shapes` shapes. */
static void expect_program(th_session *session, clmgk_attention_desc desc, size_t first, size_t shapes, bool all)
{
    const bool split = (first / 2 + (size_t)desc.variant) % 2 == 1;
    uint64_t random = 100 * (uint64_t)desc.variant + first;
    if (desc.gradients == 0)
        desc.gradients = th_all_gradients(&desc);
    for (size_t n = first; n < first + (session->full ? 3 * shapes : shapes); n++) {
        th_set_shape(&desc, n, &random);
        set_heads(&desc, session->full ? th_pick(&random, 1, 3) : 1 + ((int64_t)desc.variant + (int64_t)first) % 3);
        if (desc.use_bias) /* of the shape before */
            desc.bias_heads = th_chance(&random, 2) ? 1 : th_softmax_heads(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, th_random(&random));
        if (th_chance(&random, 2))
            th_accumulate_some(&problem, &random);
        /* the weight of a single key is 1, and without dL all gradients are rounding errors: one_key_has_no_gradient */
        problem.array[TH_GRAD_LSE].used =
            th_chance(&random, 2) || n < TH_CORNERS || (desc.use_window && desc.window_left == 0);
        expect_shape(session, &problem, n, split, all, &random);
    }
}

/* ---- forms ----------------------------------------------------------------------------------------------------- */

/* The quick tier takes every fourth variant; the random problems cover the gradients of the rest. */
TH_TEST(every_variant)
{
    for (size_t n = 0; n < TH_COUNT(th_admixtures); n++)
        if (th_takes(session, n, 4))
            expect_program(session, small_desc(th_admixtures[n], 0, 0), 0, 8, session->full ? n % 6 == 0 : n == 0);
}

/* The second program sums no gradient of p, so it keeps no products. */
TH_TEST(hidden_layer)
{
    for (size_t n = 0; n < (session->full ? 4 : 2); n++) {
        clmgk_attention_desc desc = hidden_desc(n % 2 == 0, n < 2 ? 5 : 20, 0, 0);
        desc.shared_noise = n == 2;
        desc.gradients = th_all_gradients(&desc) & ~(uint32_t)(n % 2 == 1 ? CLMGK_GRADIENT_MIX : 0);
        expect_program(session, desc, 2 + n, 6, n == 0);
    }
}

/* Of all gradients; of those that need no sum of P dP; of the one that needs only that; with modifiers. */
TH_TEST(mixed_after_the_softmax)
{
    static const clmgk_variant kind[] = {CLMGK_VARIANT_GFISH,      CLMGK_VARIANT_HARD_FISH,
                                         CLMGK_VARIANT_MISH,       CLMGK_VARIANT_HARD_MISH,
                                         CLMGK_VARIANT_HARD_GFISH, CLMGK_VARIANT_TALKING_HEADS};
    for (size_t n = 0; n < (session->full ? TH_COUNT(kind) : 2); n++) {
        clmgk_attention_desc desc = mixed_desc(kind[n], n % 2 == 0 ? 2 : 5, 0, 0);
        desc.mix_hidden = n == 4 ? 5 : 0;
        desc.use_mix_hidden_offset = n == 4;
        desc.use_sinks = desc.use_lse_low = n % 2 == 0;
        desc.dropout = n % 3 == 2 ? 0.3 : 0.0;
        desc.softcap = n == 0 ? 4.0 : 0.0;
        desc.use_alibi = n == 2;
        desc.use_bias = n == 0 || n == 3;
        desc.dtype = th_dtypes[n / 2];
        if (n == 1)
            desc.gradients = CLMGK_GRADIENT_V | CLMGK_GRADIENT_MIX_AFTER;
        expect_program(session, desc, n == 3 ? 5 : n, 6, session->full || n == 0);
    }
}

TH_FULL_TEST(storage_types)
{
    for (size_t n = 0; n < 2 * TH_COUNT(th_admixtures); n++) {
        clmgk_attention_desc desc = small_desc(th_admixtures[n / 2], 0, 0);
        desc.dtype = th_dtypes[1 + n % 2];
        if (th_takes(session, n, 5))
            expect_program(session, desc, 3, 8, false);
    }
}

TH_TEST(head_sizes)
{
    static const int64_t size[][2] = {{33, 5}, {1, 40}, {64, 64}, {7, 200}, {128, 96}, {256, 16}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(size) * TH_COUNT(forms) : 1); n++) {
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], 0, 0);
        desc.head_size = size[session->full ? n / TH_COUNT(forms) : 1][0];
        desc.value_size = size[session->full ? n / TH_COUNT(forms) : 1][1];
        expect_program(session, desc, 5, 4, false);
    }
}

TH_TEST(global_and_local_heads)
{
    static const int64_t heads[][2] = {{1, 1}, {1, 7}, {5, 1}, {5, 7}, {7, 4}};
    for (size_t n = 0; n < TH_COUNT(heads) * TH_COUNT(forms); n++) {
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], 40, 90);
        desc.components = heads[n / TH_COUNT(forms)][0];
        desc.heads = heads[n / TH_COUNT(forms)][1];
        desc.gradients = th_all_gradients(&desc);
        desc.batch = 2;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        if (session->full || (n % TH_COUNT(forms) == n / TH_COUNT(forms) % 3 && n / TH_COUNT(forms) % 4 > 1))
            expect(session, &problem, false);
    }
}

/* More heads than fit a block: by default engines take smaller blocks. */
TH_TEST(as_many_heads_as_talk)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_TALKING_HEADS, 9, 35);
    desc.components = desc.heads = 64;
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    for (size_t n = 0; n < (session->full ? session->engines : 1); n++) {
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        options.engine = session->engine[n];
        th_expect_training(session, &problem, &options);
    }
}

/* Whatever of the values' heads a work-group holds. */
TH_TEST(value_heads_in_groups)
{
    static const char *const lane[] = {"panels=2,heads=1", "panels=1,heads=2,splits=2", "panels=1,heads=4",
                                       "panels=2,heads=8"};
    static const char *const simt[] = {"rows=1,keys=1,heads=1,splits=2", "rows=1,keys=1,heads=2"};
    static const int64_t heads[][2] = {{5, 5}, {6, 1}, {6, 3}, {6, 2}};
    for (size_t n = 0; n < TH_COUNT(heads) - !session->full; n++) {
        clmgk_attention_desc desc = small_desc(forms[n / 2 % 2], 70, 150);
        desc.batch = 2;
        desc.heads = heads[n][0];
        desc.kv_heads = heads[n][1];
        desc.causal = 1;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t p = n / 2; p < TH_COUNT(lane); p += 1 + n / 2)
            if (th_takes(session, p + n, 3))
                expect_with(session, &problem, CLMGK_ENGINE_LANE, lane[p]);
        for (size_t p = n / 2; session->full && p < TH_COUNT(simt); p++)
            expect_with(session, &problem, CLMGK_ENGINE_SIMT, simt[p]);
    }
}

TH_TEST(engine_parameters)
{
    static const struct {
        clmgk_engine engine;
        const char *parameters;
        clmgk_variant variant;
    } blocks[] = {
        {CLMGK_ENGINE_LANE, "panels=8", CLMGK_VARIANT_HARD_FISH},
        {CLMGK_ENGINE_LANE, "panels=4,tile=16,lanes=8", CLMGK_VARIANT_GFISH},
        {CLMGK_ENGINE_LANE, "panels=1,tile=128,vectors=1,splits=2", CLMGK_VARIANT_HARD_MISH},
        {CLMGK_ENGINE_LANE, "panels=2,tile=32,block=4,unroll=1", CLMGK_VARIANT_HARD_GFISH},
        {CLMGK_ENGINE_SIMT, "rows=2,keys=2,splits=2,heads=1", CLMGK_VARIANT_HARD_FISH},
        {CLMGK_ENGINE_SIMT, "row-threads=4,key-threads=8,rows=2,keys=1,features=8,heads=1", CLMGK_VARIANT_HARD_GFISH}};
    for (size_t n = 0; n < TH_COUNT(blocks) * (session->full ? TH_COUNT(forms) : 1); n++) {
        const size_t block = n % TH_COUNT(blocks);
        if (!th_takes(session, n, 2))
            continue;
        clmgk_attention_desc desc =
            small_desc(n < TH_COUNT(blocks) ? blocks[block].variant : forms[n / TH_COUNT(blocks)], 150, 270);
        th_set_lengths(&desc);
        desc.gradients = th_all_gradients(&desc);
        for (desc.causal = session->full ? 0 : 1; desc.causal < 2; desc.causal++) {
            TH_PROBLEM problem = th_problem_make(&desc, n);
            expect_with(session, &problem, blocks[block].engine, blocks[block].parameters);
        }
    }
}

/* ---- masks and modifiers --------------------------------------------------------------------------------------- */

/* Bias of the whole score matrix, shared by batches and heads or not. */
TH_FULL_TEST(whole_bias_with_sinks_and_alibi)
{
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc = small_desc(forms[n], 0, 0);
        desc.use_bias = desc.use_sinks = desc.use_alibi = 1;
        expect_program(session, desc, n, 10, false);
    }
}

/* Bias with one axis or none. */
TH_FULL_TEST(every_bias)
{
    for (size_t n = 0; n < (session->full ? 3 * TH_COUNT(forms) : 3); n++) {
        clmgk_attention_desc desc = small_desc(forms[n / 3], 0, 0);
        desc.use_bias = 1;
        desc.bias_length = n % 3 != 0 ? 1 : 0;
        desc.bias_length_k = n % 3 != 1 ? 1 : 0;
        if (th_takes(session, n, 2))
            expect_program(session, desc, 3, 8, false);
    }
}

TH_FULL_TEST(packed_with_everything)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_GFISH, CLMGK_VARIANT_MISH, CLMGK_VARIANT_FISH};
    for (size_t n = 0; n < (session->full ? TH_COUNT(variants) : 2); n++) {
        clmgk_attention_desc desc = small_desc(variants[n], 0, 0);
        desc.sequences = 4;
        desc.use_bias = desc.use_sinks = desc.use_alibi = 1;
        desc.bias_length = n == 0 ? 1 : 0;
        desc.bias_length_k = n == 1 ? 1 : 0;
        desc.dropout = 0.25;
        desc.shared_noise = n == 1;
        expect_program(session, desc, 2, 8, false);
    }
}

TH_FULL_TEST(softcap_and_dropout)
{
    for (size_t n = 0; n < (session->full ? TH_COUNT(forms) : 2); n++) {
        clmgk_attention_desc desc = small_desc(forms[2 * n % TH_COUNT(forms) + n / 2], 0, 0);
        desc.softcap = 0.7;
        desc.dropout = 0.4;
        expect_program(session, desc, 4, 8, false);
    }
}

/* w and c given or not. */
TH_TEST(weight_and_offset_are_optional)
{
    for (size_t n = session->full ? 0 : 2; n < (session->full ? 6 : 3); n++) {
        clmgk_attention_desc desc = small_desc(n < 3 ? CLMGK_VARIANT_HARD_GFISH : CLMGK_VARIANT_GFISH, 0, 0);
        desc.use_mix_weight = n % 3 == 1;
        desc.use_mix_offset = n % 3 == 2;
        expect_program(session, desc, 5, 4, false);
    }
}

/* Rows without keys: the bias hides all of them by -inf. */
TH_FULL_TEST(rows_without_keys)
{
    TH_PROBLEM problem = th_hidden_rows_problem(small_desc(CLMGK_VARIANT_HARD_FISH, 40, 90));
    expect(session, &problem, true);
    th_fill(&problem, TH_BIAS, -(double)INFINITY);
    expect(session, &problem, true);
}

/* ---- noise ----------------------------------------------------------------------------------------------------- */

/* Own and shared, with seeds of one and of two words. */
TH_TEST(noise)
{
    static const uint64_t seeds[] = {1, UINT64_C(1) << 32, UINT64_C(0xfedcba9876543210)};
    for (size_t n = 0; n < 6 * TH_COUNT(seeds); n++) {
        if (!session->full && !is_quick_noise(n))
            continue;
        TH_PROBLEM problem = noisy_problem(n, seeds[n / 6], n < 12 ? 1.0 : 3.0, true);
        expect(session, &problem, session->full ? n % 2 == 0 : n % 6 == 0);
    }
}

/* The generator serves four keys at a time, which blocks cut in different ways. */
TH_FULL_TEST(noise_on_other_blocks)
{
    static const th_block blocks[] = {{CLMGK_ENGINE_LANE, "lanes=8,block=4,tile=16,vectors=1,panels=4,heads=1"},
                                      {CLMGK_ENGINE_LANE, "block=16,tile=32,vectors=4,panels=1,heads=2"},
                                      {CLMGK_ENGINE_SIMT, "rows=2,keys=4,heads=1"},
                                      {CLMGK_ENGINE_SIMT, "rows=4,keys=2,heads=1,splits=2"}};
    expect_noise_on(session, blocks, TH_COUNT(blocks), 2, true, expect_with);
}

/* A deviation of 0 has a gradient like any other; a negative one makes all of them NaN. */
TH_TEST(deviations_on_the_edge)
{
    for (size_t n = 0; n < 6; n++) {
        if (!th_takes(session, n, 2)) /* the programs of noise */
            continue;
        clmgk_attention_desc desc = noisy_desc(n % 3, n >= 3, 40, 90);
        desc.gradients = th_all_gradients(&desc);
        desc.heads = 4;
        desc.kv_heads = 2;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_set(&problem, TH_NOISE, 0, 0, 0, 0, 0, 0.0);
        expect(session, &problem, false);
        th_fill(&problem, TH_NOISE, 0.0);
        expect(session, &problem, false);
        th_set(&problem, TH_NOISE, 0, 0, 1, 0, 0, -0.5);
        expect(session, &problem, false);
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* No term of dp is below 2^-126, because OpenCL lets devices flush such numbers to 0. */
TH_TEST(huge_and_tiny_logits)
{
    static const double factors[] = {1e-17, 1e-3, 5.0, 10.0, 30.0};
    for (size_t n = 0; n < TH_COUNT(factors) * TH_COUNT(forms); n++) {
        if (!th_takes(session, n, 3)) /* every factor, every form */
            continue;
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], 40, 130);
        const double factor = factors[n / TH_COUNT(forms)];
        desc.gradients = th_all_gradients(&desc);
        desc.causal = n % 3 == 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_Q, factor);
        th_scale(&problem, TH_K, factor);
        expect(session, &problem, false);
    }
}

/* Scores so large that weights depend on their last places. */
TH_TEST(both_passes_weigh_alike)
{
    for (size_t n = 0; n < 2 * TH_COUNT(forms); n++) {
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], 70, 130);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_Q, 10.0);
        th_scale(&problem, TH_K, 10.0);
        const clmgk_plan_options options = options_of(session, 0);
        th_expect_equal_weights(session, &problem, &options);
    }
}

/* Other tests build the programs of the device's own engine, and for the other engine that of the first form. The rest,
 * in full, have dV alone, which is enough to show P. */
TH_TEST(rivals_at_large_scores)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++)
        for (size_t e = 0; e < (session->full || n == 0 ? session->engines : 1); e++) {
            clmgk_attention_desc desc = small_desc(forms[n], 70, 130);
            desc.gradients = e > 0 && n > 0 ? CLMGK_GRADIENT_V : th_all_gradients(&desc);
            TH_PROBLEM problem = th_problem_make(&desc, n);
            th_make_rivals(&problem, n + 1);
            const clmgk_plan_options options = options_of(session, e);
            th_expect_equal_weights(session, &problem, &options);
        }
}

/* Mixing weights that are 0 and of both signs. */
TH_TEST(any_mixing)
{
    for (size_t n = 0; n < 2 * TH_COUNT(forms); n++) {
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], 40, 90);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_set(&problem, TH_MIX, 0, 0, 0, 0, 0, 0.0);
        th_scale(&problem, TH_MIX, n < TH_COUNT(forms) ? -1.0 : 0.0);
        expect(session, &problem, th_takes(session, n, TH_COUNT(forms)));
    }
}

/* relu's gradient at 0 is 0: queries, keys and p have zeros of both signs. */
TH_TEST(rectified_zeros)
{
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_HARD_GFISH, 40, 90);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (int64_t j = 0; j < 90; j += 3)
            for (int64_t d = 0; d < desc.head_size; d++)
                th_set(&problem, TH_K, 0, j % 2, 0, j, d, j % 4 < 2 ? 0.0 : -0.0);
        th_set(&problem, TH_MIX, 0, 1, 0, 0, 0, n == 0 ? 0.0 : -0.0);
        expect(session, &problem, false);
        th_fill(&problem, TH_K, 0.0); /* nothing reaches Q, p, w */
        const clmgk_plan_options options = options_of(session, 0);
        th_run_training(session, &problem, &options);
        static const th_name silent[] = {TH_GRAD_Q, TH_GRAD_K, TH_GRAD_MIX, TH_GRAD_MIX_WEIGHT};
        for (size_t i = 0; i < TH_COUNT(silent); i++)
            for (size_t x = 0; x < problem.array[silent[i]].count; x++)
                assert_true(problem.array[silent[i]].values[x] == 0.0);
    }
}

/* The weight of a single key is always 1, so without dL dQ and dK are 0. */
TH_TEST(one_key_has_no_gradient)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        clmgk_attention_desc desc = small_desc(forms[n], 70, 1);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        problem.array[TH_GRAD_LSE].used = false;
        expect(session, &problem, false);
    }
}

/* NaN beyond the lengths has no effect; gradients are 0 there. */
TH_TEST(padding_does_not_leak)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        clmgk_attention_desc desc = small_desc(forms[n], 70, 130);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_padded_problem(desc, n);
        expect(session, &problem, n == 0);
    }
}

/* ---- layouts --------------------------------------------------------------------------------------------------- */

enum { B = 2, N = 45, S = 70, D = 17 };

/* All arrays have their tokens first and begin at odd offsets; in half of the cases dO is one row for all. */
TH_FULL_TEST(strides_and_offsets)
{
    for (size_t n = 0; n < 6; n++) {
        clmgk_attention_desc desc = small_desc(forms[n % 3], N, S);
        const int64_t gap = (int64_t)n % 2 * 3;
        desc.batch = B;
        desc.heads = 4;
        desc.kv_heads = 2;
        th_put_tokens_first(&desc, 2, 2, 1, gap, n % 2 == 1);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_offset_arrays(&problem, 3, n % 2);
        expect(session, &problem, n < 3);
    }
}

/* Q, K, V of talking heads and their gradients interleaved token by token, [B,N,3,H,D]. */
TH_FULL_TEST(packed_qkv)
{
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_TALKING_HEADS, N, N);
        desc.batch = B;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_packed_problem(desc, n);
        problem.accumulate = n == 1 ? 7 : 0;
        expect(session, &problem, false);
    }
}

/* ---- what is wanted, and how the work is cut up ---------------------------------------------------------------- */

/* Each gradient alone: nothing of the others is there. */
TH_TEST(one_gradient_alone)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_MISH, CLMGK_VARIANT_GFISH, CLMGK_VARIANT_HARD_FISH,
                                             CLMGK_VARIANT_HARD_MISH, CLMGK_VARIANT_FISH};
    for (size_t v = 0; v < TH_COUNT(variants); v++) {
        clmgk_attention_desc desc = small_desc(variants[v], 0, 0);
        desc.use_bias = desc.use_sinks = session->full;
        const uint32_t all = th_all_gradients(&desc);
        for (uint32_t one = 1; one <= CLMGK_GRADIENT_NOISE; one *= 2) {
            desc.gradients = one;
            if ((all & one) != 0 && (session->full || (v == 0 && one == CLMGK_GRADIENT_K) ||
                                     (v == 1 && (one == CLMGK_GRADIENT_MIX || one == CLMGK_GRADIENT_NOISE))))
                expect_program(session, desc, 5, 4, false);
        }
    }
}

/* ---- properties ------------------------------------------------------------------------------------------------ */

/* MiSH is FiSH with equal rows of p. Its dp is the sum of the rows' dp; all other gradients are equal. */
TH_TEST(one_mixing_for_all_heads)
{
    static const th_name same[] = {TH_Q, TH_K, TH_V, TH_NOISE, TH_GRAD_O, TH_GRAD_LSE};
    for (size_t n = 0; n < 4; n++) {
        if (!th_takes(session, n, 3))
            continue;
        const bool noisy = n > 0;
        clmgk_attention_desc full = small_desc(noisy ? CLMGK_VARIANT_FISH : CLMGK_VARIANT_HARD_FISH, N, S);
        full.shared_noise = n == 2;
        full.causal = n == 3;
        full.gradients = th_all_gradients(&full);
        clmgk_attention_desc one = full;
        one.variant = noisy ? CLMGK_VARIANT_MISH : CLMGK_VARIANT_HARD_MISH;
        TH_PROBLEM rows = th_problem_make(&full, n), shared = th_problem_make(&one, n);
        th_round_values(session, &shared, TH_BACKWARD);
        for (size_t i = 0; i < TH_COUNT(same); i++)
            th_copy_values(&rows, &shared, same[i]);
        const size_t row = shared.array[TH_MIX].count;
        for (size_t h = 0; h < 3; h++)
            memcpy(rows.array[TH_MIX].values + h * row, shared.array[TH_MIX].values, row * sizeof(double));
        const clmgk_plan_options options = options_of(session, 0);
        th_run_training(session, &rows, &options);
        TH_REF_ARRAYS exact = th_solve_gradients(&shared);
        for (th_name name = TH_GRAD_Q; name <= TH_GRAD_NOISE; name++)
            if (name != TH_GRAD_MIX)
                th_copy_values(&shared, &rows, name);
        for (size_t k = 0; k < row; k++) {
            const double *const grad = rows.array[TH_GRAD_MIX].values;
            shared.array[TH_GRAD_MIX].values[k] = grad[k] + grad[row + k] + grad[2 * row + k];
        }
        th_check_gradients(session, &shared, options.engine, &exact);
    }
}

/* Unmixed heads: the gradients of softmax. */
TH_TEST(unmixed_heads_are_those_of_softmax)
{
    static const th_name same[] = {TH_Q, TH_K, TH_V, TH_GRAD_O, TH_GRAD_LSE};
    clmgk_attention_desc plain = th_small_desc(CLMGK_VARIANT_SOFTMAX, N, S);
    clmgk_attention_desc mixed = small_desc(CLMGK_VARIANT_TALKING_HEADS, N, S);
    plain.heads = mixed.heads;
    plain.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    mixed.gradients = th_all_gradients(&mixed);
    TH_PROBLEM original = th_problem_make(&plain, 1), changed = th_problem_make(&mixed, 1);
    th_round_values(session, &original, TH_BACKWARD);
    for (size_t i = 0; i < TH_COUNT(same); i++)
        th_copy_values(&changed, &original, same[i]);
    for (int64_t h = 0; h < mixed.heads; h++)
        for (int64_t k = 0; k < mixed.heads; k++)
            th_set(&changed, TH_MIX, 0, h, k, 0, 0, h == k ? 1.0 : 0.0);
    TH_REF_ARRAYS exact = th_solve_gradients(&original);
    for (size_t n = 0; n < (session->full ? session->engines : 1); n++) {
        const clmgk_plan_options options = options_of(session, n);
        th_run_training(session, &changed, &options);
        th_check_gradients(session, &changed, options.engine, &exact);
    }
}

/* A row's weights sum to one, so without dL all of a head's dA sums to 0: dc is 0 but for rounding of sum |dO v|, about
 * 5 in each of 45 rows of two batches. With dL = 1 it is the number of rows over sqrt(D). */
TH_TEST(offsets_reach_only_lse)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_HARD_GFISH, N, S);
    desc.batch = B;
    desc.gradients = th_all_gradients(&desc);
    const clmgk_plan_options options = options_of(session, 0);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    problem.array[TH_GRAD_LSE].used = false;
    th_run_training(session, &problem, &options);
    for (size_t h = 0; h < problem.array[TH_GRAD_MIX_OFFSET].count; h++)
        assert_true(fabs(problem.array[TH_GRAD_MIX_OFFSET].values[h]) <= 2e-5);
    problem.array[TH_GRAD_LSE].used = true;
    th_fill(&problem, TH_GRAD_LSE, 1.0);
    th_run_training(session, &problem, &options);
    for (size_t h = 0; h < problem.array[TH_GRAD_MIX_OFFSET].count; h++)
        assert_true(fabs(problem.array[TH_GRAD_MIX_OFFSET].values[h] - B * N / sqrt((double)D)) <= 1e-4);
}

/* ---- bit for bit ----------------------------------------------------------------------------------------------- */

TH_TEST(repeated_runs_are_bit_equal)
{
    static const cl_command_queue_properties properties[] = {0, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE};
    static const clmgk_variant variants[] = {CLMGK_VARIANT_GFISH, CLMGK_VARIANT_MISH};
    const cl_command_queue own = session->queue;
    for (size_t n = 0; n < TH_COUNT(variants) * session->engines; n++) {
        if (!th_takes(session, n, 4))
            continue;
        clmgk_attention_desc desc = small_desc(variants[n % 2], 50, 130);
        desc.batch = 5;
        desc.use_bias = desc.use_sinks = desc.causal = 1;
        desc.bias_batch = desc.bias_heads = 1; /* its gradient is a sum over work-groups */
        desc.gradients = th_all_gradients(&desc);
        clmgk_plan_options options = options_of(session, n / 2);
        options.backward_parameters = options.engine == CLMGK_ENGINE_LANE ? "panels=2,heads=2,splits=2" : "splits=2";
        TH_PROBLEM first = th_problem_make(&desc, 8);
        th_run_training(session, &first, &options);
        for (size_t run = 0; run < 2; run++) {
            cl_int code = CL_SUCCESS;
            TH_PROBLEM again = th_problem_make(&desc, 8);
            session->queue = clCreateCommandQueue(session->cl, session->info.device_id, properties[run % 2], &code);
            assert_int_equal(code, CL_SUCCESS);
            th_run_training(session, &again, &options);
            assert_int_equal(clReleaseCommandQueue(session->queue), CL_SUCCESS);
            session->queue = own;
            for (th_name name = TH_GRAD_Q; name <= TH_GRAD_NOISE; name++)
                if (first.array[name].used)
                    assert_memory_equal(first.array[name].values, again.array[name].values,
                                        first.array[name].count * sizeof(double));
        }
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static double workspace_ratio(th_session *session, int64_t batch, int64_t length)
{
    enum { HEADS = 8, GLOBAL = 2, SIZE = 32, VALUES = 16 };
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_FISH, length, length);
    desc.batch = batch;
    desc.heads = HEADS;
    desc.components = GLOBAL;
    desc.head_size = SIZE;
    desc.value_size = VALUES;
    desc.gradients = th_all_gradients(&desc);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    const clmgk_plan_options options = options_of(session, 0);
    clmgk_plan *const plan = th_plan_of(session, &desc, &options);
    assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
    clmgk_plan_release(plan);
    const double arrays = 4.0 * (GLOBAL * SIZE + HEADS * VALUES) + HEADS; /* Q, K, V, O, their gradients, L */
    return (double)info.backward_workspace_bytes / ((double)(batch * length) * arrays * sizeof(float));
}

TH_TEST(workspace_is_linear)
{
    static const int64_t shape[][2] = {{1, 4096}, {32, 4096}, {4096, 49}, {1, 65536}};
    for (size_t n = 0; n < TH_COUNT(shape); n++)
        assert_true(workspace_ratio(session, shape[n][0], shape[n][1]) < 2.0);
}
