/* SPDX-License-Identifier: Apache-2.0 */
/* Every variant on every engine against the reference: masks, magnitudes, priors of 0, NaN and infinity. */
#include "harness/harness.h"

#include <math.h>

/* ---- masks ----------------------------------------------------------------------------------------------------- */

static const int32_t length_patterns[][4] = {{0, 1, 64, 65}, {200, 0, 0, 129}, {-5, 1000, 230, 199}};

static void mask_problem(th_session *session, const clmgk_attention_desc *desc, size_t pattern)
{
    TH_PROBLEM problem = th_problem_make(desc, pattern);
    for (int64_t b = 0; b < problem.desc.batch; b++) {
        if (problem.desc.use_lengths)
            th_set(&problem, TH_LENGTHS, b, 0, 0, 0, 0, length_patterns[pattern][b]);
        if (problem.desc.use_lengths_q)
            th_set(&problem, TH_LENGTHS_Q, b, 0, 0, 0, 0, length_patterns[(pattern + 1) % 3][b]);
    }
    th_expect(session, &problem);
}

TH_TEST(causal_alignments_and_lengths)
{
    static const int64_t shape[][2] = {{200, 200}, {70, 200}, {200, 70}, {1, 200}, {200, 1}};
    for (size_t v = 0; v < TH_COUNT(th_variants); v++) {
        for (size_t n = 0; n < TH_COUNT(shape) * 3 * 4; n++) {
            const size_t flags = n % 4;
            clmgk_attention_desc desc = th_small_desc(th_variants[v], shape[n / 12][0], shape[n / 12][1]);
            desc.batch = 4;
            desc.causal = 1;
            desc.alignment = (clmgk_alignment)(n / 4 % 3);
            desc.use_lengths = flags % 2 == 1 || desc.alignment == CLMGK_ALIGN_LENGTHS;
            desc.use_lengths_q = flags / 2 == 1;
            if (session->full || n % TH_COUNT(th_variants) == v || v == 2)
                mask_problem(session, &desc, n % TH_COUNT(length_patterns));
        }
    }
}

TH_TEST(lengths_without_causality)
{
    for (size_t n = 0; n < TH_COUNT(th_variants) * TH_COUNT(length_patterns); n++) {
        const size_t pattern = n % TH_COUNT(length_patterns);
        clmgk_attention_desc desc = th_small_desc(th_variants[n / TH_COUNT(length_patterns)], 70, 200);
        desc.batch = 4;
        desc.use_lengths = 1;
        desc.use_lengths_q = pattern != 1;
        mask_problem(session, &desc, pattern);
    }
}

/* ---- magnitudes ------------------------------------------------------------------------------------------------ */

TH_TEST(huge_and_tiny_logits)
{
    static const double factors[] = {1e-20, 1e-3, 10.0, 30.0, 100.0, 3e3, 1e5, 1e9};
    for (size_t v = 0; v < TH_COUNT(th_variants); v++) {
        for (size_t n = 0; n < TH_COUNT(factors) * 2; n++) {
            clmgk_attention_desc desc = th_small_desc(th_variants[v], 40, 300);
            desc.causal = n % 2 == 1;
            TH_PROBLEM problem = th_problem_make(&desc, n);
            th_scale(&problem, TH_Q, factors[n / 2]);
            th_scale(&problem, TH_K, factors[n / 2]);
            th_expect(session, &problem);
        }
    }
}

/* O is the mean of the visible V, every element within rounding. */
static void expect_mean(const th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    for (int64_t e = 0; e < d->value_size; e++) {
        double sum = 0.0;
        for (int64_t j = 0; j < d->length_k; j++)
            sum += problem->array[TH_V].values[j * d->value_size + e] / (double)d->length_k;
        for (int64_t i = 0; i < d->length; i++)
            assert_true(fabs(problem->array[TH_O].values[i * d->value_size + e] - sum) < 2e-6);
    }
}

/* Equal scores have equal weights, whatever their size, in all tiles and ranges of keys. */
TH_TEST(equal_huge_scores)
{
    static const double sizes[] = {1e3, 4e6, 7e7, 2e9, 1e18};
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_MGK, CLMGK_VARIANT_HARD_FISH};
    for (size_t n = 0; n < TH_COUNT(variants) * TH_COUNT(sizes) * 2; n++) {
        const size_t v = n / (2 * TH_COUNT(sizes));
        clmgk_attention_desc desc = th_small_desc(variants[v], 9, n % 2 == 0 ? 33 : 301);
        desc.heads = 1;
        desc.score = v == 1 ? CLMGK_SCORE_DOT : CLMGK_SCORE_DEFAULT;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_fill(&problem, TH_Q, 1.1);
        th_fill(&problem, TH_K, sizes[n / 2 % TH_COUNT(sizes)]);
        for (size_t e = 0; e < session->engines && (e == 0 || session->full || v == 0); e++) {
            th_run(session, &problem, e);
            expect_mean(&problem);
            if (v == 0 && session->engine[e] == CLMGK_ENGINE_SIMT) { /* ranges of keys of different lengths */
                th_run_with(session, &problem, session->engine[e], "rows=1,keys=1,splits=2");
                expect_mean(&problem);
            }
        }
    }
}

/* The same for rows whose keys all have one large bias, in ranges of keys of different lengths. */
TH_TEST(equal_huge_biases)
{
    static const double biases[] = {-1e9, -1e30, 3e38};
    static const char *const parameters[][TH_COUNT(biases)] = {
        [CLMGK_ENGINE_LANE] = {NULL, "panels=1,tile=64,splits=2", NULL},
        [CLMGK_ENGINE_SIMT] = {"splits=2", "rows=1,keys=1,splits=2", "splits=4"}};
    for (size_t n = 0; n < TH_COUNT(biases); n++)
        for (size_t e = 0; e < session->engines && (e == 0 || n == 0); e++) {
            clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 3, 150);
            desc.heads = desc.bias_length = desc.bias_length_k = 1;
            desc.use_bias = 1;
            TH_PROBLEM problem = th_problem_make(&desc, n);
            th_fill(&problem, TH_BIAS, biases[n]);
            th_scale(&problem, TH_Q, 0.0);
            th_run_with(session, &problem, session->engine[e], parameters[session->engine[e]][n]);
            expect_mean(&problem);
        }
}

/* The lane engine's last panel with one row more than half of its rows: equal scores have equal weights, and a plan
 * with gradients computes the same bits. */
TH_TEST(equal_scores_of_a_last_row)
{
    static const struct {
        int64_t length;
        const char *parameters;
    } widths[] = {{5, "lanes=4,vectors=2"}, {9, "lanes=8,vectors=2"}, {17, "lanes=16,vectors=2"}};
    for (size_t n = 0; session->engine[0] == CLMGK_ENGINE_LANE && n < 2 * TH_COUNT(widths); n++) {
        const char *const parameters = widths[n / 2].parameters;
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, widths[n / 2].length, 33);
        desc.heads = 1;
        TH_PROBLEM alone = th_problem_make(&desc, n);
        desc.gradients = CLMGK_GRADIENT_Q;
        TH_PROBLEM trained = th_problem_make(&desc, n);
        if (n % 2 == 1) {
            th_fill(&alone, TH_Q, 1.1);
            th_fill(&alone, TH_K, 7e7);
        }
        th_copy_inputs(&trained, &alone);
        th_run_with(session, &alone, CLMGK_ENGINE_LANE, parameters);
        const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_LANE, parameters);
        th_run_pass(session, &trained, TH_FORWARD, &options);
        th_expect_equal_bits(&alone, &trained, TH_O);
        th_expect_equal_bits(&alone, &trained, TH_LSE);
        if (n % 2 == 1)
            expect_mean(&alone);
    }
}

/* Every tile has larger scores than all tiles before it, or none has, or one in the middle has. */
TH_TEST(growing_maxima)
{
    static const double slopes[] = {0.4, -0.4, 0.05};
    for (size_t v = 0; v < TH_COUNT(th_variants); v++) {
        for (size_t n = 0; n < TH_COUNT(slopes) + 1; n++) {
            clmgk_attention_desc desc = th_small_desc(th_variants[v], 50, 700);
            desc.score = v < 2 ? CLMGK_SCORE_DEFAULT : CLMGK_SCORE_DOT;
            desc.heads = 1;
            desc.value_size = n % 2 == 0 ? 24 : 8; /* the lane engine has two forms of accumulators */
            TH_PROBLEM problem = th_problem_make(&desc, n);
            for (int64_t j = 0; j < desc.length_k; j++) {
                const double size = n < TH_COUNT(slopes) ? slopes[n] * (double)j : (j == 333 ? 300.0 : 0.0);
                for (int64_t r = 0; r < problem.array[TH_K].shape[2]; r++)
                    th_set(&problem, TH_K, 0, 0, r, j, 0, size);
            }
            th_expect(session, &problem);
        }
    }
}

/* Queries so far from all keys that every exponential underflows without a maximum. */
TH_TEST(distant_queries)
{
    for (size_t v = 1; v < TH_COUNT(th_variants); v++) {
        const clmgk_attention_desc desc = th_small_desc(th_variants[v], 33, 100);
        TH_PROBLEM problem = th_problem_make(&desc, v);
        for (int64_t i = 0; i < desc.length; i++)
            th_set(&problem, TH_Q, 0, i % 2, 0, i, 3, 40.0 * (double)i);
        th_expect(session, &problem);
    }
}

/*
 * sMGK: shifts of these sizes, with which some pairs take the factored form of a weight, and others do not. `rows` and
 * `keys`: places of some rows or keys far out, so that one block or several tiles have both forms.
 */
static void spread_problem(th_session *session, clmgk_attention_desc desc, double size, double rows, double keys)
{
    TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)(size * 10.0));
    th_scale(&problem, TH_SHIFT, size);
    for (int64_t i = 0; i < desc.length; i += 7)
        th_set(&problem, TH_Q, 0, i % problem.desc.heads, 0, i, 0, rows);
    for (int64_t j = 0; j < desc.length_k; j += 5)
        if (j / 64 % 2 == 1)
            th_set(&problem, TH_K, 0, 0, 0, j, 0, keys);
    for (int64_t j = 0; desc.prior_shape == CLMGK_PRIOR_HMS && j < desc.length_k; j += 3)
        th_set(&problem, TH_PRIOR, 0, j % problem.desc.heads, j % problem.desc.components, j, 0, 0.0);
    th_expect(session, &problem);
}

TH_TEST(shift_spreads)
{
    static const double sizes[] = {0.0, 0.5, 2.0, 4.0, 6.0, 10.0, 30.0, 100.0};
    for (size_t n = 0; n < TH_COUNT(sizes); n++) {
        for (size_t s = 0; s < TH_COUNT(th_scores) * 2; s++) {
            clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 70, 300);
            desc.score = th_scores[s % 2];
            desc.kv_heads = 1;
            desc.prior_shape = s / 2 == 1 ? CLMGK_PRIOR_HMS : CLMGK_PRIOR_UNIFORM;
            spread_problem(session, desc, sizes[n], 1.0, 1.0);
            spread_problem(session, desc, sizes[n], 60.0, 0.0);
            spread_problem(session, desc, sizes[n], 0.0, 60.0);
        }
    }
}

/*
 * q = 11, b = (10, 0), k = 6 in one dimension and sigma = 1: both components have the same weight, while
 * u = (1, exp(-110)) and w = (exp(-110), 1) multiply to 0 in f32. Every `step`th key has this place.
 */
TH_TEST(opposed_spreads)
{
    for (int64_t step = 1; step <= 3; step++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 40, 200);
        desc.variance = 1.0;
        TH_PROBLEM problem = th_problem_make(&desc, 3);
        th_fill(&problem, TH_SHIFT, 0.0);
        for (int64_t h = 0; h < desc.heads; h++) {
            th_set(&problem, TH_SHIFT, 0, h, 0, 0, 0, 10.0);
            for (int64_t i = 0; i < desc.length; i++)
                th_set(&problem, TH_Q, 0, h, 0, i, 0, i % 3 < 2 ? 11.0 : 0.1 * (double)i);
            for (int64_t j = 0; j < desc.length_k; j += step)
                th_set(&problem, TH_K, 0, h, 0, j, 0, 6.0);
        }
        th_expect(session, &problem);
    }
}

/* ---- priors on the edge ---------------------------------------------------------------------------------------- */

TH_TEST(zero_and_unnormalised_priors)
{
    for (size_t v = 2; v < TH_COUNT(th_variants); v++) {
        for (size_t n = 0; n < 4; n++) {
            clmgk_attention_desc desc = th_small_desc(th_variants[v], 33, 200);
            desc.score = th_scores[n % 2];
            desc.prior_shape = CLMGK_PRIOR_HMS;
            desc.causal = n >= 2;
            TH_PROBLEM problem = th_problem_make(&desc, n);
            th_scale(&problem, TH_PRIOR, n >= 2 ? 1e6 : 1e-6);
            for (int64_t j = 0; j < desc.length_k; j++)
                for (int64_t r = 0; r < problem.desc.components; r++)
                    if (j % 4 == r || j % 7 == 3 || (j >= 64 && j < 130) || j == 0)
                        th_set(&problem, TH_PRIOR, 0, j % 2, r, j, 0, 0.0);
            th_expect(session, &problem);
            th_fill(&problem, TH_PRIOR, 0.0); /* no key is left */
            th_expect(session, &problem);
        }
    }
}

/* ---- what is not a number -------------------------------------------------------------------------------------- */

TH_TEST(padding_does_not_leak)
{
    for (size_t v = 0; v < TH_COUNT(th_variants); v++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[v], 70, 130);
        desc.prior_shape = v < 2 ? CLMGK_PRIOR_UNIFORM : CLMGK_PRIOR_HMS;
        TH_PROBLEM problem = th_padded_problem(desc, v);
        th_expect(session, &problem);
    }
}

TH_TEST(nan_reaches_the_rows_that_see_it)
{
    for (size_t v = 0; v < TH_COUNT(th_variants); v++) {
        for (size_t n = 0; n < TH_POISONS * TH_COUNT(th_esteps); n++) {
            clmgk_attention_desc desc = th_small_desc(th_variants[v], 40, 200);
            desc.estep = th_esteps[n % 2];
            TH_PROBLEM problem = th_poisoned_problem(desc, 0, n / 2, n);
            th_expect(session, &problem);
        }
    }
}

/* What causality, a window or a bias hides may reach rows near by; everything else stays as it is. */
TH_TEST(nan_behind_masks)
{
    for (size_t n = 0; n < 6; n++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[n / 3], 40, 40);
        desc.causal = n % 3 == 0;
        desc.use_window = n % 3 == 1;
        desc.window_left = desc.window_right = desc.use_window ? 3 : 0;
        if (n % 3 == 2)
            th_set_bias_axes(&desc, 0);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (int64_t i = 0; i < desc.length && problem.array[TH_BIAS].used; i += 2)
            th_set(&problem, TH_BIAS, 0, 0, 0, i, 39, -(double)INFINITY);
        th_poison_row(&problem, n < 3 ? TH_V : TH_K, 0, 0, 39);
        th_expect(session, &problem);
    }
}

/* Values whose sums over all keys are beyond f32; values whose sums are not, in scores that grow from tile to tile. */
TH_TEST(large_values)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 20, 150);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_scale(&problem, TH_V, 1e38);
    th_expect(session, &problem);
    th_scale(&problem, TH_V, 1e-7);
    for (int64_t j = 0; j < desc.length_k; j++)
        th_set(&problem, TH_K, 0, 0, 0, j, 0, 0.3 * (double)j);
    th_expect(session, &problem);
}

/* A NaN in one component only, which a maximum that ignores NaN would lose. */
TH_TEST(nan_in_one_component)
{
    for (size_t n = 0; n < TH_COUNT(th_esteps) * 2; n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 20, 150);
        desc.estep = th_esteps[n % 2];
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_set(&problem, TH_K, 0, 0, (int64_t)n / 2, 140, 2, (double)NAN);
        th_expect(session, &problem);
    }
}

TH_TEST(infinite_values)
{
    for (size_t v = 0; v < TH_COUNT(th_variants); v++) {
        const clmgk_attention_desc desc = th_small_desc(th_variants[v], 20, 150);
        TH_PROBLEM problem = th_problem_make(&desc, v);
        th_set(&problem, TH_V, 0, 1, 0, 7, 3, (double)INFINITY);
        th_expect(session, &problem);
    }
}

TH_TEST(bad_priors_and_variances)
{
    static const double bad[] = {-1.0, (double)NAN};
    for (size_t v = 2; v < TH_COUNT(th_variants); v++) {
        for (size_t n = 0; n < 8; n++) {
            const bool prior = n % 2 == 0;
            clmgk_attention_desc desc = th_small_desc(th_variants[v], 33, 150);
            desc.score = th_scores[n / 4];
            desc.prior_shape = prior ? CLMGK_PRIOR_HM : CLMGK_PRIOR_UNIFORM;
            desc.variance_shape = prior ? CLMGK_VARIANCE_NUMBER : CLMGK_VARIANCE_HM;
            TH_PROBLEM problem = th_problem_make(&desc, n);
            th_set(&problem, prior ? TH_PRIOR : TH_VARIANCE, 0, 1, 1, 0, 0, bad[n / 2 % 2]);
            th_sweep(session, &problem, n / 4); /* head 1 alone */
        }
    }
}

/* A bad prior of one key reaches the rows that see that key. */
TH_TEST(bad_prior_of_one_key)
{
    for (size_t v = 2; v < TH_COUNT(th_variants); v++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[v], 33, 150);
        desc.batch = 2;
        desc.prior_shape = CLMGK_PRIOR_HMS;
        desc.use_lengths = 1;
        TH_PROBLEM problem = th_problem_make(&desc, v);
        th_set(&problem, TH_LENGTHS, 0, 0, 0, 0, 0, 150.0);
        th_set(&problem, TH_LENGTHS, 1, 0, 0, 0, 0, 100.0); /* the key is hidden here */
        th_set(&problem, TH_PRIOR, 0, 1, 1, 120, 0, -0.5);
        th_expect(session, &problem);
    }
}
