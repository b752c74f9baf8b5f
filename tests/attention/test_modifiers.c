/* SPDX-License-Identifier: Apache-2.0 */
/* Masks and modifiers of the forward pass on every engine against the reference: alone, and together. */
#include "harness/harness.h"

#include <math.h>

static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_MGK, CLMGK_VARIANT_SMGK};

/* ---- windows ----------------------------------------------------------------------------------------------------- */

TH_TEST(windows)
{
    static const int64_t shape[][2] = {{200, 200}, {70, 300}, {300, 70}, {1, 200}};
    for (size_t n = 0; n < TH_WINDOWS * TH_COUNT(shape); n++) {
        const int64_t *const lengths = shape[n / TH_WINDOWS];
        clmgk_attention_desc desc = th_small_desc(variants[n % 3], lengths[0], lengths[1]);
        th_set_window(&desc, n);
        desc.use_lengths_q = n % 5 == 0;
        desc.batch = 2;
        for (desc.causal = 0; desc.causal < 2; desc.causal++)
            if (session->full || (size_t)desc.causal == (n + n / TH_WINDOWS) % 2)
                th_expect_desc(session, &desc, n);
    }
}

/* Sides that would overflow if they were added to a position. */
TH_TEST(far_windows)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 33, 90);
    desc.use_window = 1;
    desc.window_left = desc.window_right = INT64_MAX;
    th_expect_desc(session, &desc, 1);
    desc.window_right = 0;
    th_expect_desc(session, &desc, 2);
}

/* ---- packed sequences -------------------------------------------------------------------------------------------- */

TH_TEST(packed_sequences)
{
    static const int64_t sequences[] = {1, 2, 7, 40};
    for (size_t n = 0; n < TH_COUNT(sequences) * 2 * 3; n++) {
        clmgk_attention_desc desc = th_small_desc(n % 2 == 0 ? CLMGK_VARIANT_SOFTMAX : CLMGK_VARIANT_MGK, 300, 300);
        th_set_packing(&desc, sequences[n / 6], n % 3 == 1 ? 200 : 0, n);
        desc.alignment = (clmgk_alignment)(n % 3 == 2);
        desc.prior_shape = n % 2 == 0 ? CLMGK_PRIOR_UNIFORM : CLMGK_PRIOR_HMS;
        th_expect_desc(session, &desc, n);
    }
}

/* One sequence beside empty ones, and sequences of one row: blocks that hold nothing. */
TH_TEST(odd_sequences)
{
    static const double offsets[][9] = {{0, 0, 0, 100, 100, 100, 100, 100, 100},
                                        {0, 1, 2, 3, 4, 5, 6, 7, 100},
                                        {0, 32, 32, 64, 64, 65, 96, 97, 100},
                                        {0, 100, 100, 100, 100, 100, 100, 100, 100}};
    for (size_t n = 0; n < TH_COUNT(offsets) * 2; n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 100, 100);
        desc.sequences = 8;
        desc.use_offsets_k = n >= TH_COUNT(offsets);
        desc.causal = n % 2 == 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (int64_t t = 0; t < 9; t++) {
            th_set(&problem, TH_OFFSETS, t, 0, 0, 0, 0, offsets[n % 4][t]);
            if (desc.use_offsets_k)
                th_set(&problem, TH_OFFSETS_K, t, 0, 0, 0, 0, offsets[(n + 1) % 4][t]);
        }
        th_expect(session, &problem);
    }
}

/* ---- bias and ALiBi ---------------------------------------------------------------------------------------------- */

TH_TEST(biases)
{
    static const int64_t batches[] = {1, 2, 3, 6};
    for (size_t n = 0; n < 24; n++) {
        if (!th_takes(session, n + n / 4, 2)) /* every shape of a bias */
            continue;
        clmgk_attention_desc desc = th_small_desc(variants[n % 3], 3 * (int64_t)n + 20, n % 4 == 1 ? 64 : 150);
        th_set_bias_axes(&desc, n / 3);
        desc.batch = 6;
        desc.bias_batch = batches[n % 4];
        desc.causal = n % 5 == 0;
        desc.use_lengths = n % 7 == 2;
        th_expect_desc(session, &desc, n);
    }
}

/* Of every third row the first bias hides all keys, or all but every fifth. */
static void hide_third_rows(th_problem *problem, const clmgk_attention_desc *desc)
{
    for (int64_t i = 0; i < desc->length; i += 3)
        for (int64_t j = 0; j < desc->length_k; j++)
            if (i % 2 == 0 || j % 5 != 0)
                th_set(problem, TH_BIAS, 0, 0, 0, i, j, i % 2 == 0 ? -INFINITY : -3.4e38);
}

/* Biases of so many (b, h) that the lane engine makes a copy with lane = row: parts of a vector of rows and of keys, a
 * panel's vectors beyond the last row, and where rows see a range of keys. */
TH_TEST(shared_biases)
{
    static const int64_t shape[][2] = {{49, 49}, {33, 70}, {19, 100}, {80, 90}};
    static const char *const lane[] = {"", "vectors=4,tile=32", "lanes=8,block=4", "splits=2,tile=16"};
    for (size_t n = 0; n < TH_COUNT(shape); n++) {
        if (!th_takes(session, n, 3))
            continue;
        clmgk_attention_desc desc = th_small_desc(variants[n % 3], shape[n][0], shape[n][1]);
        desc.batch = 16;
        th_set_bias_axes(&desc, n % 3 == 2 ? 1 : 0);
        desc.bias_batch = n % 2 == 0 ? 2 : 1;
        desc.use_window = n % 3 == 2;
        desc.window_left = desc.use_window ? 15 : 0;
        desc.window_right = desc.use_window ? 40 : 0;
        desc.use_lengths = desc.use_lengths_q = n % 2 == 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        hide_third_rows(&problem, &desc);
        for (size_t e = 0; e < (session->full ? session->engines : 1); e++) {
            const clmgk_engine engine = session->engine[e];
            th_expect_with(session, &problem, engine, engine == CLMGK_ENGINE_LANE ? lane[n] : "");
        }
    }
}

/* Terms of keys are in the unit of scores, which a bias changes, also where a kernel of their own computes them. */
TH_TEST(biases_beside_variances)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 150, 70);
    desc.score = CLMGK_SCORE_GAUSSIAN;
    desc.variance_shape = CLMGK_VARIANCE_HM;
    th_set_bias_axes(&desc, 1);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    for (size_t e = 0; e < session->engines; e++)
        th_expect_with(session, &problem, session->engine[e], "");
}

/* Rows of which the bias hides all keys, all but the last, or the first two tiles; and enormous biases. */
TH_TEST(hiding_biases)
{
    for (size_t n = 0; n < TH_COUNT(variants); n++) {
        clmgk_attention_desc desc = th_small_desc(variants[n], 40, 300);
        desc.use_bias = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_hide_keys(&problem);
        th_expect(session, &problem);
    }
}

TH_TEST(alibi)
{
    for (size_t n = 0; n < 12; n++) {
        if (!session->full && n % 3 == 1) /* random problems have it */
            continue;
        clmgk_attention_desc desc = th_small_desc(variants[n % 3], n < 6 ? 70 : 200, n < 6 ? 300 : 90);
        desc.use_alibi = 1;
        desc.alignment = (clmgk_alignment)(n % 3);
        desc.use_lengths = desc.alignment == CLMGK_ALIGN_LENGTHS;
        desc.causal = n / 3 % 2 == 1;
        desc.batch = 2;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_SLOPES, n < 9 ? 1.0 : -20.0);
        th_expect(session, &problem);
    }
}

/* With ALiBi's term every score is a float in nats, but not in powers of two. */
TH_TEST(huge_slopes)
{
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 3, n == 0 ? 1 : 3);
        desc.use_alibi = 1;
        desc.alignment = CLMGK_ALIGN_TOP_LEFT;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_fill(&problem, TH_SLOPES, n == 0 ? 1.6e38 : -1.6e38);
        th_expect(session, &problem);
    }
}

/* ---- soft-cap and sinks ------------------------------------------------------------------------------------------ */

TH_TEST(softcaps)
{
    static const double caps[] = {1e-3, 0.5, 30.0, 1e30, 3.4e38};
    static const double factors[] = {1e-10, 1e-2, 1.0, 30.0, 1e6};
    for (size_t n = 0; n < TH_COUNT(caps) * TH_COUNT(factors); n++) {
        if (!th_takes(session, n, 3)) /* every cap, every factor */
            continue;
        clmgk_attention_desc desc = th_small_desc(n % 4 == 3 ? CLMGK_VARIANT_SMGK : CLMGK_VARIANT_SOFTMAX, 37, 150);
        desc.components = 1;
        desc.score = CLMGK_SCORE_DOT;
        desc.softcap = caps[n / 5];
        desc.prior_shape = desc.variant == CLMGK_VARIANT_SMGK ? CLMGK_PRIOR_HM : CLMGK_PRIOR_UNIFORM;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_Q, factors[n % 5]);
        th_expect(session, &problem);
    }
}

/* Sinks below, among and above the logits, and none. Some rows have no keys, others lie beyond the length. */
TH_TEST(sinks)
{
    for (size_t n = 0; n < TH_COUNT(th_variants) * TH_SINK_LOGITS; n++) {
        if (!th_takes(session, n / TH_SINK_LOGITS, 2))
            continue;
        TH_PROBLEM problem = th_sinks_problem(th_small_desc(th_variants[n / TH_SINK_LOGITS], 90, 70), 0, n);
        th_expect(session, &problem);
    }
}

/* Sinks so far above all logits that a key's weight underflows where its share of large values does not. */
TH_TEST(sinks_far_above_large_values)
{
    static const double sinks[] = {80.0, 88.0, 95.0};
    static const clmgk_dtype types[] = {CLMGK_DTYPE_F32, CLMGK_DTYPE_BF16};
    for (size_t n = 0; n < TH_COUNT(sinks) * TH_COUNT(th_variants) * (session->full ? 2 : 1); n++) {
        const size_t variant = n / TH_COUNT(sinks) % TH_COUNT(th_variants);
        if (!th_takes(session, variant, 2))
            continue;
        clmgk_attention_desc desc = th_small_desc(th_variants[variant], 90, 70);
        desc.dtype = types[n / (TH_COUNT(sinks) * TH_COUNT(th_variants))];
        TH_PROBLEM problem = th_sinks_problem(desc, 0, n);
        th_fill(&problem, TH_SINKS, sinks[n % TH_COUNT(sinks)]);
        th_scale(&problem, TH_V, 1e30);
        th_expect(session, &problem);
    }
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

TH_TEST(dropouts)
{
    static const double probabilities[] = {1e-9, 0.1, 0.5, 0.97};
    for (size_t n = 0; n < 12; n++) {
        if (!session->full && n % 3 == 2) /* random problems have it */
            continue;
        clmgk_attention_desc desc = th_small_desc(variants[n % 3], 45, 210);
        desc.dropout = probabilities[n / 3];
        desc.batch = 2;
        desc.causal = n % 2 == 1;
        th_expect_desc(session, &desc, n);
    }
}

/* Blocks of one, two and four keys draw the numbers in different ways. */
TH_TEST(dropout_on_other_blocks)
{
    static const th_block blocks[] = {{CLMGK_ENGINE_LANE, "lanes=8,block=4,tile=32,vectors=1,panels=4"},
                                      {CLMGK_ENGINE_SIMT, "rows=2,keys=4"},
                                      {CLMGK_ENGINE_SIMT, "rows=1,keys=2"}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(blocks) : 2); n++) {
        if (session->engines == 1 && session->engine[0] != blocks[n].engine)
            continue;
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 70, 210);
        desc.dropout = 0.4;
        desc.use_bias = desc.use_sinks = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect_with(session, &problem, blocks[n].engine, blocks[n].parameters);
    }
}

/* ---- split keys -------------------------------------------------------------------------------------------------- */

static void split_problem(th_session *session, const clmgk_attention_desc *desc, size_t n)
{
    static const char *const lane[] = {"panels=1,vectors=1,splits=2", "panels=1,vectors=1,splits=4,tile=16",
                                       "splits=32"};
    static const char *const simt[] = {"rows=1,keys=1,splits=2", "rows=1,keys=1,splits=4,split-from=1",
                                       "rows=1,keys=1,splits=32"};
    TH_PROBLEM problem = th_problem_make(desc, n);
    if (desc->use_sinks)
        th_set(&problem, TH_SINKS, 0, 1, 0, 0, 0, n % 2 == 1 ? 2.5e38 : -2.5e38);
    const size_t cut = session->full ? n % 3 : (n / 5 + n % 2) % 3; /* of each variant two numbers of parts */
    for (size_t e = 0; e < (n == 0 || session->full ? session->engines : 1); e++) {
        const clmgk_engine engine = session->engine[e];
        th_expect_with(session, &problem, engine, engine == CLMGK_ENGINE_LANE ? lane[cut] : simt[cut]);
    }
}

TH_TEST(split_keys)
{
    static const int64_t shape[][2] = {{1, 1000}, {16, 1000}, {40, 200}, {3, 0}, {200, 10}};
    for (size_t n = 0; n < 15; n++) {
        if (!th_takes(session, n, 2))
            continue;
        clmgk_attention_desc desc = th_small_desc(variants[n / 5], shape[n % 5][0], shape[n % 5][1]);
        th_set_split(&desc, n);
        desc.use_window = n % 4 == 3;
        desc.window_left = desc.use_window ? 150 : -1;
        desc.window_right = -1;
        split_problem(session, &desc, n);
    }
}

TH_TEST(split_keys_of_packed_sequences)
{
    for (size_t n = 0; n < (session->full ? 3 : 1); n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 20, 700);
        desc.sequences = 5;
        desc.use_offsets_k = 1;
        desc.use_bias = desc.use_sinks = 1;
        desc.dropout = 0.2;
        split_problem(session, &desc, n);
    }
}

/* Parameters that plans for decoding choose themselves: few rows, many keys. */
TH_TEST(decoding)
{
    static const int64_t rows[] = {1, 2, 5, 16};
    for (size_t n = 0; n < TH_COUNT(rows); n++) {
        if (!th_takes(session, n, 3))
            continue;
        clmgk_attention_desc desc = th_small_desc(variants[n % 3], rows[n], 5000);
        desc.heads = 1;
        desc.causal = 1;
        th_sweep_desc(session, &desc, n, session->full ? n : 1); /* test_forward has few rows on other engines */
    }
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

TH_TEST(everything)
{
    for (size_t n = 0; n < 8; n++) {
        if (!th_takes(session, n, 5))
            continue;
        clmgk_attention_desc desc = th_small_desc(th_variants[n % 4], 150, 150);
        desc.dtype = th_dtypes[n % 3];
        desc.use_bias = desc.use_alibi = desc.use_sinks = 1;
        desc.use_window = 1;
        desc.window_left = 60;
        desc.window_right = n % 2 == 0 ? 10 : -1;
        desc.softcap = desc.variant == CLMGK_VARIANT_SOFTMAX ? 2.0 : 0.0;
        desc.dropout = 0.25;
        desc.sequences = n < 4 ? 3 : 0;
        desc.prior_shape = desc.variant == CLMGK_VARIANT_SOFTMAX ? CLMGK_PRIOR_UNIFORM : CLMGK_PRIOR_HMS;
        desc.variance_shape = n < 4 ? CLMGK_VARIANCE_NUMBER : CLMGK_VARIANCE_HM;
        desc.use_lengths = desc.use_lengths_q = n >= 4;
        th_sweep_desc(session, &desc, n, session->full ? 0 : n);
    }
}

/* What costs a build. */
static clmgk_attention_desc random_program(uint64_t *state)
{
    clmgk_attention_desc desc = th_small_desc(th_variants[th_pick(state, 0, 3)], 0, 0);
    desc.dtype = th_dtypes[th_pick(state, 0, 2)];
    desc.estep = th_esteps[th_pick(state, 0, 1)];
    desc.score = desc.variant >= CLMGK_VARIANT_MGK ? th_scores[th_pick(state, 0, 1)] : CLMGK_SCORE_DEFAULT;
    desc.prior_shape =
        desc.variant == CLMGK_VARIANT_SOFTMAX ? CLMGK_PRIOR_UNIFORM : (clmgk_prior_shape)th_pick(state, 0, 3);
    desc.variance_shape = (clmgk_variance_shape)th_pick(state, 0, 2);
    desc.use_bias = th_pick(state, 0, 1) == 1;
    desc.use_alibi = th_pick(state, 0, 1) == 1;
    desc.use_sinks = th_pick(state, 0, 1) == 1;
    desc.softcap = desc.variant == CLMGK_VARIANT_SOFTMAX && th_pick(state, 0, 1) == 1 ? 1.5 : 0.0;
    desc.dropout = th_pick(state, 0, 1) == 1 ? 0.3 : 0.0;
    desc.sequences = th_pick(state, 0, 1);
    return desc;
}

TH_FULL_TEST(random_combinations)
{
    uint64_t random = 4;
    const int programs = session->full ? 120 : 6;
    for (int program = 0; program < programs; program++) {
        clmgk_attention_desc desc = random_program(&random);
        for (int shape = 0; shape < 10; shape++) {
            th_set_random_masks(&desc, 2, &random);
            th_sweep_desc(session, &desc, th_random(&random), (size_t)program);
            desc.sequences = desc.sequences > 0; /* part of the program */
        }
    }
}
