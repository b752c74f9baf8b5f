/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admixture family's forward pass on every engine against the reference: shapes, masks and modifiers, values,
 * noise, layouts, partition of the work; then properties that do not depend on the reference. A program takes seconds
 * to build, so options that are chosen at run time vary over few programs.
 */
#include "attention/admixture.h"

#include <math.h>
#include <string.h>

/* One program serves every number of local heads; the last group of heads need not be full. */
static const char *parameters_of(const th_session *session, size_t n)
{
    static const char panels[] = "panels=2,vectors=2,heads=2,splits=1", smallest[] = "rows=1,keys=1,heads=1,splits=1";
    const bool lane = th_has_parameters(session, n, CLMGK_VARIANT_HARD_FISH, panels);
    if (session->full && (lane || n == 0))
        return NULL;
    if (lane)
        return panels;
    const bool own = session->engine[n] == session->info.engine;
    return !own && th_has_parameters(session, n, CLMGK_VARIANT_HARD_FISH, smallest) ? smallest : NULL;
}

/* Runs on the first `engines` engines, or if 0 on those that th_other_engines chooses. The outputs must be `answer`, or
 * if NULL the reference's answer to the problem. */
static void expect_on(th_session *session, size_t engines, th_problem *problem, const clmgk_ref_answer *answer)
{
    clmgk_ref_answer own = {0};
    for (size_t n = 0; n == 0 || n < engines; n++) {
        th_run_with(session, problem, session->engine[n], parameters_of(session, n));
        if (engines == 0 && th_other_engines(session, problem))
            engines = session->engines;
        if (n == 0 && !answer)
            own = th_solve(problem); /* of the values as the device holds them */
        th_check(session, problem, session->engine[n], answer ? answer : &own);
    }
    clmgk_ref_answer_free(&own);
}

static void expect(th_session *session, th_problem *problem)
{
    expect_on(session, 0, problem, NULL);
}

static void expect_desc(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    TH_PROBLEM problem = th_problem_make(desc, seed);
    expect(session, &problem);
}

/* Number `index` of a sweep over programs. In full every engine runs each, else the other engines run every fourth. */
static void sweep(th_session *session, th_problem *problem, size_t index)
{
    expect_on(session, session->full || index % 4 == 0 ? session->engines : 1, problem, NULL);
}

static void sweep_desc(th_session *session, const clmgk_attention_desc *desc, uint64_t seed, size_t index)
{
    TH_PROBLEM problem = th_problem_make(desc, seed);
    sweep(session, &problem, index);
}

/* Runs with parameters of one engine, if the device offers this engine. */
static void expect_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters)
{
    for (size_t n = 0; n < session->engines; n++)
        if (session->engine[n] == engine)
            th_expect_with(session, problem, engine, parameters);
}

/* ---- shapes ---------------------------------------------------------------------------------------------------- */

TH_TEST(every_variant_and_storage_type)
{
    static const int64_t shape[][2] = {{70, 150}, {1, 90}, {45, 1}, {33, 0}, {0, 20}, {64, 64}, {65, 129}};
    for (size_t n = 0; n < TH_COUNT(th_admixtures) * TH_COUNT(th_dtypes) * TH_COUNT(shape); n++) {
        const size_t kind = n / TH_COUNT(shape), number = n % TH_COUNT(shape);
        if (!th_takes(session, kind, 5)) /* five variants, the types in turn */
            continue;
        clmgk_attention_desc desc = small_desc(th_admixtures[kind / 3], shape[number][0], shape[number][1]);
        desc.dtype = th_dtypes[kind % 3];
        desc.batch = 1 + (int64_t)n % 2;
        desc.causal = n % 3 == 1;
        sweep_desc(session, &desc, n, kind % 3 == 0 ? 0 : 1);
    }
}

/* Around the edges of blocks and tiles. */
TH_TEST(sequence_lengths)
{
    static const int64_t length[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129, 257};
    for (size_t n = 0; n < TH_COUNT(length); n++) {
        for (size_t s = 0; s < TH_COUNT(length); s++) {
            clmgk_attention_desc desc = small_desc(forms[(n + s / 2) % 2], length[n], length[s]);
            desc.causal = (n + s) % 2 == 1;
            desc.heads = 1 + (int64_t)(n + s) % 4;
            if (session->full || (n * 5 + s * 3) % 4 == 0 || n == s)
                expect_desc(session, &desc, n * 100 + s);
        }
    }
}

/* The SIMT engine's form for few rows: heads that share a tile, its edges, several products. */
TH_TEST(few_rows)
{
    static const int64_t shape[][3] = {{1, 129, 5}, {2, 300, 3}, {4, 128, 2}, {1, 5, 8}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(forms) * TH_COUNT(shape) : 2); n++) {
        const size_t s = session->full ? n / TH_COUNT(forms) : n;
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], shape[s][0], shape[s][1]);
        desc.heads = shape[s][2];
        desc.batch = 2;
        desc.use_lengths = 1;
        desc.causal = n % 2 == 0;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t e = 0; e < session->engines; e++)
            if (session->full || session->engine[e] == CLMGK_ENGINE_SIMT)
                th_expect_with(session, &problem, session->engine[e], NULL);
    }
}

/* Parameters that plans choose themselves: for many rows, for few rows and many keys, for many heads. */
TH_TEST(own_parameters)
{
    static const int64_t shape[][3] = {{600, 1100, 3}, {1, 3000, 2}, {5, 2000, 8}, {40, 60, 8}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(shape) : 2); n++) {
        clmgk_attention_desc desc = small_desc(forms[n % 2], shape[n][0], shape[n][1]);
        desc.heads = shape[n][2];
        desc.causal = n % 2 == 0;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t e = 0; e < (session->full ? session->engines : 1); e++)
            th_expect_with(session, &problem, session->engine[e], NULL);
    }
}

/* Run-time shapes share a program; the last shape has more units than registers hold. */
TH_TEST(hidden_layer)
{
    static const int64_t shape[][2] = {{70, 150}, {33, 129}, {1, 90}};
    for (size_t n = 0; n < (session->full ? 4 : 2) * TH_COUNT(shape); n++) {
        const size_t kind = n / TH_COUNT(shape), number = n % TH_COUNT(shape);
        clmgk_attention_desc desc = hidden_desc(kind % 2 == 0, kind < 2 ? 5 : 20, shape[number][0], shape[number][1]);
        desc.causal = number == 1;
        desc.batch = 1 + (int64_t)number;
        desc.shared_noise = kind == 2;
        desc.use_mix_weight = desc.use_mix_offset = desc.use_mix_hidden_offset = kind % 2 == 0;
        sweep_desc(session, &desc, 31 + n, number == 0 ? 0 : 1);
    }
}

/* Every variant, of which each has a program of its own; the number of heads after the mixing does not change it. */
TH_TEST(mixed_after_the_softmax)
{
    static const int64_t shape[][3] = {{70, 150, 3}, {33, 129, 1}, {1, 90, 6}, {5, 0, 2}};
    for (size_t n = 0; n < TH_COUNT(th_admixtures); n++) {
        if (!th_takes(session, n, 3))
            continue;
        for (size_t number = 0; number < TH_COUNT(shape); number++) {
            const int64_t *const size = shape[number];
            clmgk_attention_desc desc = mixed_desc(th_admixtures[n], n % 2 == 0 ? 2 : 5, size[0], size[1]);
            desc.dtype = th_dtypes[n % 3];
            desc.heads = desc.kv_heads = size[2];
            desc.causal = number == 1;
            desc.batch = 1 + (int64_t)number % 2;
            sweep_desc(session, &desc, 41 + n, number == 0 ? 0 : 1);
        }
    }
}

/* Modifiers and masks, with ranges of keys; packed sequences; rows whose L is huge. */
TH_TEST(mixed_with_modifiers)
{
    static const char *const lane[] = {"panels=2,vectors=1,heads=2,splits=2,tile=16", NULL};
    static const char *const simt[] = {"rows=1,keys=1,heads=2,splits=2", "rows=2,keys=2,heads=1,splits=1"};
    static const clmgk_variant kind[] = {CLMGK_VARIANT_GFISH, CLMGK_VARIANT_MISH, CLMGK_VARIANT_HARD_FISH};
    for (size_t n = session->full ? 0 : 1; n < (session->full ? 6 : 3); n++) { /* random problems: all modifiers */
        clmgk_attention_desc desc = mixed_desc(kind[n % 3], 3 + (int64_t)n % 3, 40, 150);
        th_set_split(&desc, n);
        desc.heads = 4;
        desc.kv_heads = 2;
        desc.mix_hidden = n == 3 ? 3 : 0;
        desc.shared_noise = n == 1;
        desc.dropout = n % 3 == 2 ? 0.0 : 0.3;
        desc.softcap = n % 3 == 0 ? 5.0 : 0.0;
        desc.use_alibi = desc.use_sinks = n != 1;
        desc.use_bias = n % 3 != 1;
        desc.bias_heads = desc.use_bias ? (int64_t)n % 2 : 0;
        desc.use_lse_low = n % 2 == 0;
        if (n % 3 == 1) {
            desc.sequences = 3;
            desc.batch = desc.use_offsets_k = 1;
            desc.use_lengths = desc.use_lengths_q = 0;
        }
        TH_PROBLEM problem = th_problem_make(&desc, n);
        if (n == 2)
            th_scale(&problem, TH_BIAS, 1e6);
        for (size_t p = 0; p < (session->full ? 2 : 1); p++) {
            expect_with(session, &problem, CLMGK_ENGINE_LANE, lane[p]);
            expect_with(session, &problem, CLMGK_ENGINE_SIMT, simt[p]);
        }
    }
}

TH_TEST(head_sizes)
{
    static const int64_t size[][2] = {{33, 5}, {1, 40}, {3, 1}, {64, 64}, {72, 33}, {7, 200}, {128, 96}, {511, 300}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(size) * TH_COUNT(forms) : 2); n++) {
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], 37, 141);
        desc.head_size = size[session->full ? n / TH_COUNT(forms) : n][0];
        desc.value_size = size[session->full ? n / TH_COUNT(forms) : n][1];
        sweep_desc(session, &desc, n, n);
        desc.causal = 1;
        desc.length = 100;
        sweep_desc(session, &desc, n, n);
    }
}

TH_TEST(global_and_local_heads)
{
    static const int64_t heads[][2] = {{1, 1}, {1, 7}, {5, 1}, {5, 7}, {7, 4}};
    for (size_t n = 0; n < TH_COUNT(heads) * TH_COUNT(forms); n++) {
        const size_t form = n % TH_COUNT(forms);
        clmgk_attention_desc desc = small_desc(forms[form], 40, 90);
        desc.components = heads[n / TH_COUNT(forms)][0];
        desc.heads = heads[n / TH_COUNT(forms)][1];
        desc.causal = n % 2 == 1;
        desc.batch = 2;
        if (session->full || (form == n / TH_COUNT(forms) % 3 && n / TH_COUNT(forms) % 2 == 1))
            sweep_desc(session, &desc, n, n / TH_COUNT(forms) + 1);
    }
}

/* More heads than fit a block: by default the lane engine takes groups of heads, and the SIMT engine small blocks. The
 * quick tier has them with gradients. */
TH_FULL_TEST(as_many_heads_as_talk)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_TALKING_HEADS, CLMGK_VARIANT_HARD_MISH, CLMGK_VARIANT_GFISH};
    for (size_t n = 0; n < TH_COUNT(variants); n++) {
        clmgk_attention_desc desc = small_desc(variants[n], 20, 70);
        desc.components = desc.heads = 64;
        desc.causal = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t e = 0; e < session->engines; e++)
            th_expect_with(session, &problem, session->engine[e], NULL);
    }
}

/* Whatever of five heads a work-group holds. */
TH_TEST(heads_in_groups)
{
    static const char *const lane[] = {"panels=2,vectors=1,heads=1", "panels=2,vectors=1,heads=2",
                                       "panels=2,vectors=1,heads=4", "panels=2,vectors=1,heads=8"};
    static const char *const simt[] = {"rows=1,keys=1,heads=1", "rows=1,keys=1,heads=2", "rows=1,keys=1,heads=8"};
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc = small_desc(forms[n], 70, 150);
        desc.heads = 5;
        desc.batch = 2;
        desc.use_sinks = desc.use_lengths = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t p = 2 * n; p < TH_COUNT(lane); p++)
            if (th_takes(session, p + n, 3))
                expect_with(session, &problem, CLMGK_ENGINE_LANE, lane[p]);
        for (size_t p = 2 * n; p < TH_COUNT(simt); p++)
            if (session->full || p + n == 2)
                expect_with(session, &problem, CLMGK_ENGINE_SIMT, simt[p]);
    }
}

TH_TEST(grouped_values)
{
    static const int64_t heads[][2] = {{6, 1}, {6, 2}, {6, 3}, {6, 6}, {5, 1}, {4, 2}};
    for (size_t n = 0; n < TH_COUNT(heads) * 2; n++) {
        clmgk_attention_desc desc = small_desc(forms[n % 2], 19, 70);
        desc.batch = 1 + (int64_t)n % 3;
        desc.heads = heads[n / 2][0];
        desc.kv_heads = heads[n / 2][1];
        desc.causal = n % 2 == 1;
        expect_desc(session, &desc, n);
    }
}

/* Sizes of blocks that are not the defaults for problems of this size. */
TH_TEST(engine_parameters)
{
    static const struct {
        th_block block;
        size_t forms;
    } cases[] = {{{CLMGK_ENGINE_LANE, "panels=4"}, 1},
                 {{CLMGK_ENGINE_LANE, "panels=2,vectors=1,tile=32"}, 1},
                 {{CLMGK_ENGINE_LANE, "lanes=8,panels=8,block=4,heads=2"}, 2},
                 {{CLMGK_ENGINE_SIMT, "rows=2,keys=2,heads=1"}, 1},
                 {{CLMGK_ENGINE_SIMT, "row-threads=4,key-threads=8,rows=4,keys=4,heads=1"}, 1},
                 {{CLMGK_ENGINE_SIMT, "rows=1,keys=4,row-threads=16,key-threads=4,features=8,values=8,heads=2"}, 1}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        for (size_t v = 0; th_takes(session, n, 3) && v < (session->full ? TH_COUNT(forms) : cases[n].forms); v++) {
            clmgk_attention_desc desc = small_desc(forms[v], 150, 270);
            th_set_lengths(&desc);
            for (desc.causal = 0; desc.causal < 2; desc.causal++) {
                TH_PROBLEM problem = th_problem_make(&desc, n);
                expect_with(session, &problem, cases[n].block.engine, cases[n].block.parameters);
            }
        }
    }
}

/* ---- masks and modifiers --------------------------------------------------------------------------------------- */

TH_TEST(causal_alignments_and_lengths)
{
    static const int64_t shape[][2] = {{150, 150}, {70, 200}, {200, 70}, {1, 200}, {200, 1}};
    static const int32_t lengths[][4] = {{0, 1, 64, 65}, {200, 0, 0, 129}, {-5, 1000, 230, 199}};
    for (size_t n = 0; n < TH_COUNT(shape) * 3 * 4; n++) {
        if (!th_takes(session, n + n / 12, 2)) /* the forms in turn */
            continue;
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], shape[n / 12][0], shape[n / 12][1]);
        desc.batch = 4;
        desc.causal = n % 7 != 6;
        desc.alignment = (clmgk_alignment)(n / 4 % 3);
        desc.use_lengths = n % 2 == 1 || desc.alignment == CLMGK_ALIGN_LENGTHS;
        desc.use_lengths_q = n / 2 % 2 == 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (int64_t b = 0; b < 4; b++) {
            if (desc.use_lengths)
                th_set(&problem, TH_LENGTHS, b, 0, 0, 0, 0, lengths[n % 3][b]);
            if (desc.use_lengths_q)
                th_set(&problem, TH_LENGTHS_Q, b, 0, 0, 0, 0, lengths[(n + 1) % 3][b]);
        }
        expect(session, &problem);
    }
}

TH_FULL_TEST(windows)
{
    static const int64_t shape[][2] = {{150, 150}, {70, 300}, {200, 70}};
    for (size_t n = 0; n < TH_WINDOWS * TH_COUNT(shape); n++) {
        const int64_t *const lengths = shape[n / TH_WINDOWS];
        clmgk_attention_desc desc = small_desc(forms[(n + n / TH_WINDOWS) % TH_COUNT(forms)], lengths[0], lengths[1]);
        th_set_window(&desc, n);
        desc.causal = n % 2 == 1;
        desc.batch = 2;
        expect_desc(session, &desc, n);
    }
}

TH_FULL_TEST(packed_sequences)
{
    static const int64_t sequences[] = {1, 2, 7, 40};
    for (size_t n = 0; n < TH_COUNT(sequences) * 4; n++) {
        clmgk_attention_desc desc = small_desc(forms[n % 2 * 3], 200, 200);
        th_set_packing(&desc, sequences[n / 4], n % 3 == 1 ? 150 : 0, n);
        desc.alignment = (clmgk_alignment)(n % 5 == 2);
        sweep_desc(session, &desc, n, n % 2);
    }
}

/* Every shape of a bias. With MiSH, all heads have one softmax only if they share the bias. */
TH_FULL_TEST(biases)
{
    static const int64_t batches[] = {1, 2, 3, 6};
    for (size_t n = 0; n < 24; n++) {
        clmgk_attention_desc desc = small_desc(forms[n / 8], 3 * (int64_t)n + 20, n % 4 == 1 ? 64 : 150);
        th_set_bias_axes(&desc, n % 8);
        desc.batch = 6;
        desc.bias_batch = batches[n / 2 % 4];
        desc.causal = n % 5 == 0;
        desc.use_lengths = n % 7 == 2;
        sweep_desc(session, &desc, n, n < 8 ? 0 : 1);
    }
}

/* Biases that the lane engine copies with lane = row (test_modifiers varies their shapes). */
TH_TEST(shared_biases)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        if (!th_takes(session, n, 4))
            continue;
        clmgk_attention_desc desc = small_desc(forms[n], 49, 49);
        desc.batch = 14;
        th_set_bias_axes(&desc, n % 2);
        desc.bias_batch = 1;
        expect_desc(session, &desc, n);
    }
}

/* Rows of which the bias hides all keys, all but the last, or the first two tiles; and enormous biases. */
TH_FULL_TEST(hiding_biases)
{
    for (size_t n = 0; n < 3; n++) {
        clmgk_attention_desc desc = small_desc(forms[n], 40, 300);
        desc.use_bias = 1;
        desc.bias_heads = n == 1 ? 1 : 0;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_hide_keys(&problem);
        sweep(session, &problem, 2 * n);
    }
}

/* ALiBi, sinks, a soft-cap and dropout, each alone. With sinks, some rows have no keys. */
TH_FULL_TEST(one_modifier)
{
    for (size_t n = 0; n < 4 * TH_COUNT(forms); n++) {
        const size_t modifier = n / TH_COUNT(forms), form = n % TH_COUNT(forms);
        clmgk_attention_desc desc = small_desc(forms[form], 90, 130);
        desc.batch = 2;
        desc.use_alibi = modifier == 0;
        desc.use_sinks = modifier == 1;
        desc.softcap = modifier == 2 ? 0.7 : 0.0;
        desc.dropout = modifier == 3 ? 0.3 : 0.0;
        for (desc.causal = 0; desc.causal < 2; desc.causal++) {
            desc.length_k = desc.causal ? 50 : 130;
            if (th_takes(session, form, TH_COUNT(forms)))
                sweep_desc(session, &desc, n, modifier);
        }
    }
}

TH_FULL_TEST(softcaps)
{
    static const double caps[] = {1e-3, 0.5, 30.0, 1e30};
    static const double factors[] = {1e-10, 1.0, 30.0, 1e6};
    for (size_t n = 0; n < TH_COUNT(caps) * TH_COUNT(factors); n++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_HARD_FISH, 37, 150);
        desc.softcap = caps[n / 4];
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_Q, factors[n % 4]);
        expect(session, &problem);
    }
}

/* Sinks below, among and above the logits, and none. */
TH_FULL_TEST(sinks)
{
    for (size_t n = 0; n < 2 * (size_t)TH_SINK_LOGITS; n++) {
        TH_PROBLEM problem = th_sinks_problem(small_desc(forms[n / TH_SINK_LOGITS], 90, 70), 1, n);
        expect(session, &problem);
    }
}

TH_TEST(weight_and_offset_are_optional)
{
    for (size_t n = 0; n < 8; n++) {
        clmgk_attention_desc desc = small_desc(n < 4 ? CLMGK_VARIANT_HARD_GFISH : CLMGK_VARIANT_GFISH, 40, 90);
        desc.use_mix_weight = (int32_t)(n % 2);
        desc.use_mix_offset = (int32_t)(n / 2 % 2);
        if (session->full || n == 1)
            sweep_desc(session, &desc, n, n + 2);
    }
}

/* Modifiers and masks together, in every storage type. */
TH_FULL_TEST(everything)
{
    for (size_t n = 0; n < TH_COUNT(th_admixtures); n++) {
        clmgk_attention_desc desc = small_desc(th_admixtures[n], 150, 150);
        desc.dtype = th_dtypes[n % 3];
        desc.use_bias = desc.use_alibi = desc.use_sinks = 1;
        desc.use_window = 1;
        desc.window_left = 60;
        desc.window_right = n % 2 == 0 ? 10 : -1;
        desc.softcap = 2.0;
        desc.dropout = 0.25;
        desc.sequences = n < 4 ? 3 : 0;
        desc.use_lengths = desc.use_lengths_q = n >= 4;
        if (session->full || n % 3 == 0)
            sweep_desc(session, &desc, n, n);
    }
}

/* What costs a build. */
static clmgk_attention_desc random_program(uint64_t *state)
{
    clmgk_attention_desc desc = small_desc(th_admixtures[th_pick(state, 0, 5)], 0, 0);
    const uint32_t traits = clmgk_variant_traits(desc.variant);
    desc.dtype = th_dtypes[th_pick(state, 0, 2)];
    desc.components = th_pick(state, 1, 5);
    desc.shared_noise = (traits & CLMGK_TRAIT_NOISE) != 0 && th_chance(state, 2);
    if ((traits & CLMGK_TRAIT_GENERALISED) != 0) {
        desc.use_mix_weight = th_chance(state, 2);
        desc.use_mix_offset = th_chance(state, 2);
    }
    desc.use_bias = th_chance(state, 2);
    desc.use_alibi = th_chance(state, 2);
    desc.use_sinks = th_chance(state, 2);
    desc.softcap = th_chance(state, 3) ? 1.5 : 0.0;
    desc.dropout = th_chance(state, 3) ? 0.3 : 0.0;
    desc.sequences = th_chance(state, 3);
    return desc;
}

TH_FULL_TEST(random_combinations)
{
    uint64_t random = 6;
    for (int program = 0; program < (session->full ? 120 : 5); program++) {
        clmgk_attention_desc desc = random_program(&random);
        for (int shape = 0; shape < 8; shape++) {
            th_set_random_masks(&desc, 3, &random);
            sweep_desc(session, &desc, th_random(&random), (size_t)program);
            desc.sequences = desc.sequences > 0; /* part of the program */
        }
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

TH_TEST(huge_and_tiny_logits)
{
    static const double factors[] = {1e-20, 1e-3, 10.0, 30.0, 100.0};
    for (size_t n = 0; n < TH_COUNT(forms) * TH_COUNT(factors) * 2; n++) {
        if (!th_takes(session, n, 3)) /* every factor, every form */
            continue;
        clmgk_attention_desc desc = small_desc(forms[n / 10], 40, 300);
        desc.causal = n % 2 == 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_Q, factors[n / 2 % 5]);
        th_scale(&problem, TH_K, factors[n / 2 % 5]);
        expect(session, &problem);
    }
}

/* Every tile has larger scores than all tiles before it (with the last slope by a factor far above 2^16), or none has,
 * or one in the middle has. */
TH_TEST(growing_maxima)
{
    static const double slopes[] = {0.4, -0.4, 0.05, 4.0};
    for (size_t n = 0; n < TH_COUNT(forms) * (TH_COUNT(slopes) + 1); n++) {
        const size_t number = n % (TH_COUNT(slopes) + 1);
        if (!th_takes(session, n, 3)) /* every slope, every form */
            continue;
        const clmgk_attention_desc desc = small_desc(forms[n / (TH_COUNT(slopes) + 1)], 50, 700);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (int64_t j = 0; j < desc.length_k; j++) {
            const double size = number < TH_COUNT(slopes) ? slopes[number] * (double)j : (j == 333 ? 300.0 : 0.0);
            for (int64_t k = 0; k < desc.components; k++)
                th_set(&problem, TH_K, 0, k, 0, j, 0, size);
        }
        expect(session, &problem);
    }
}

/* Mixing weights that are 0, of both signs, large, and small. */
TH_TEST(any_mixing)
{
    static const double factors[] = {0.0, -1.0, 30.0, 1e-6};
    for (size_t n = 0; n < TH_COUNT(forms) * TH_COUNT(factors); n++) {
        const clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], 40, 150);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_set(&problem, TH_MIX, 0, 0, 1, 0, 0, 0.0);
        th_scale(&problem, TH_MIX, factors[n / TH_COUNT(forms)]);
        expect(session, &problem);
    }
}

/* Queries and keys of 0, and p of 0: relu at its kink. */
TH_TEST(rectified_zeros)
{
    for (size_t n = 0; n < 2; n++) {
        const clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_HARD_GFISH, 40, 150);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (int64_t j = 0; j < 150; j += 3)
            for (int64_t d = 0; d < desc.head_size; d++)
                th_set(&problem, TH_K, 0, j % 2, 0, j, d, j % 2 == 0 ? 0.0 : -0.0);
        th_set(&problem, TH_MIX, 0, 1, 0, 0, 0, n == 0 ? 0.0 : -0.0);
        expect(session, &problem);
    }
}

TH_TEST(nan_reaches_the_rows_that_see_it)
{
    for (size_t n = 0; n < TH_COUNT(forms) * TH_POISONS; n++) {
        const clmgk_attention_desc desc = small_desc(forms[n / TH_POISONS], 40, 200);
        TH_PROBLEM problem = th_poisoned_problem(desc, 1, n % TH_POISONS, n);
        expect(session, &problem);
    }
}

TH_TEST(padding_does_not_leak)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        TH_PROBLEM problem = th_padded_problem(small_desc(forms[n], 70, 130), n);
        expect(session, &problem);
    }
}

/* A NaN in the mixing reaches its own heads, and an infinity in V the heads that share it. */
TH_TEST(what_is_not_a_number)
{
    static const th_name names[] = {TH_MIX, TH_MIX_WEIGHT, TH_MIX_OFFSET, TH_V};
    for (size_t n = 0; n < TH_COUNT(names); n++) {
        clmgk_attention_desc desc = small_desc(n == 3 ? CLMGK_VARIANT_HARD_MISH : CLMGK_VARIANT_HARD_GFISH, 20, 90);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_set(&problem, names[n], 0, 1, 0, 0, 0, n == 3 ? (double)INFINITY : (double)NAN);
        expect(session, &problem);
    }
}

/* ---- noise ----------------------------------------------------------------------------------------------------- */

/* Own and shared, with seeds of one and of two words. */
TH_TEST(noise)
{
    static const uint64_t seeds[] = {0, 1, UINT64_C(1) << 32, UINT64_C(0xfedcba9876543210)};
    for (size_t n = 0; n < 6 * TH_COUNT(seeds); n++) {
        if (!session->full && !is_quick_noise(n))
            continue;
        TH_PROBLEM problem = noisy_problem(n, seeds[n / 6], n < 12 ? 1.0 : 5.0, false);
        sweep(session, &problem, n / 2 % 3);
    }
}

/* Blocks of one, two and four keys draw the numbers in different ways. Tiles and splits begin at various keys. */
TH_TEST(noise_on_other_blocks)
{
    static const th_block blocks[] = {{CLMGK_ENGINE_LANE, "lanes=8,block=4,tile=16,vectors=1,panels=4,heads=1"},
                                      {CLMGK_ENGINE_LANE, "block=16,tile=32,vectors=4,panels=1,heads=2"},
                                      {CLMGK_ENGINE_LANE, "tile=128,vectors=1,panels=2,heads=4,splits=2"},
                                      {CLMGK_ENGINE_SIMT, "rows=2,keys=4,heads=1"},
                                      {CLMGK_ENGINE_SIMT, "rows=1,keys=2,heads=2,splits=2"},
                                      {CLMGK_ENGINE_SIMT, "rows=4,keys=1,heads=1"}};
    expect_noise_on(session, blocks, TH_COUNT(blocks), 3, false, expect_with);
}

/* The only key of row i that is not hidden. L is then its logit, A / sqrt(D). */
static int64_t only_key(int64_t i, int64_t keys)
{
    return (7 * i + 3) % keys;
}

static void hide_other_keys(th_problem *problem)
{
    for (int64_t i = 0; i < problem->desc.length; i++)
        for (int64_t j = 0; j < problem->desc.length_k; j++)
            th_set(problem, TH_BIAS, 0, 0, 0, i, j, j == only_key(i, problem->desc.length_k) ? 0.0 : -INFINITY);
}

/* Without scores L shows the noise itself, which clmgk_noise_tile must reproduce. */
static void expect_noise_in_lse(const th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    for (int64_t row = 0; row < d->batch * d->heads * d->length; row++) {
        const int64_t i = row % d->length, h = row / d->length % d->heads, b = row / d->length / d->heads;
        float eps = 0.0F;
        th_expect_ok(clmgk_noise_tile(problem->seed, d->heads, b, d->shared_noise ? 0 : h, i, 1,
                                      only_key(i, d->length_k), 1, &eps, &th_error));
        const double expected = 2.0 * (double)eps / sqrt((double)d->head_size);
        assert_true(fabs(problem->array[TH_LSE].values[row] - expected) <= 1e-6 * (1.0 + fabs(expected)));
    }
}

TH_TEST(noise_is_that_of_the_host)
{
    for (size_t n = 0; n < 4; n++) {
        if (!th_takes(session, n, 3))
            continue;
        clmgk_attention_desc desc = noisy_desc(n / 2, n % 2 == 1, 60, 130);
        desc.batch = 2;
        desc.use_bias = 1;
        desc.bias_batch = desc.bias_heads = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n + 1);
        th_fill(&problem, TH_Q, 0.0);
        th_fill(&problem, TH_MIX, 2.0);
        th_fill(&problem, TH_NOISE, 0.5); /* of two global heads: 2 eps */
        hide_other_keys(&problem);
        for (size_t e = 0; e < (session->full || n == 0 ? session->engines : 1); e++) {
            th_run_with(session, &problem, session->engine[e], parameters_of(session, e));
            expect_noise_in_lse(&problem);
        }
    }
}

TH_TEST(no_deviation_is_no_noise)
{
    static const clmgk_variant hard[] = {CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_HARD_MISH, CLMGK_VARIANT_HARD_GFISH};
    for (size_t n = 0; n < 6 * session->engines; n++) {
        if (!session->full && (n % 3 != 0 || n > 6))
            continue;
        const clmgk_attention_desc noisy = noisy_desc(n / 2 % 3, n % 2 == 1, 50, 130);
        const clmgk_attention_desc silent = small_desc(hard[n / 2 % 3], 50, 130);
        TH_PROBLEM one = th_problem_make(&noisy, n), other = th_problem_make(&silent, n);
        th_fill(&one, TH_NOISE, n % 3 == 0 ? -0.0 : 0.0);
        th_copy_inputs(&other, &one);
        th_run_with(session, &one, session->engine[n / 6], parameters_of(session, n / 6));
        th_run_with(session, &other, session->engine[n / 6], parameters_of(session, n / 6));
        th_expect_equal_bits(&one, &other, TH_O);
        th_expect_equal_bits(&one, &other, TH_LSE);
    }
}

TH_TEST(bad_deviations)
{
    static const double bad[] = {-0.5, (double)NAN};
    for (size_t n = 0; n < 6 * TH_COUNT(bad); n++) {
        if (!th_takes(session, n % 6, 3))
            continue;
        const clmgk_attention_desc desc = noisy_desc(n / 2 % 3, n % 2 == 1, 20, 70);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_set(&problem, TH_NOISE, 0, 0, 1, 0, 0, bad[n / 6]);
        expect(session, &problem);
        for (size_t i = 0; i < problem.array[TH_LSE].count; i++)
            assert_true(isnan(problem.array[TH_LSE].values[i]));
    }
}

/* ---- layouts --------------------------------------------------------------------------------------------------- */

enum { B = 2, N = 37, S = 70, D = 17, E = 8 };

/* Strides for batch, head and token in the order that permutation `number` (0..5) makes, the last one varying fastest;
 * `gap` elements lie between neighbours of each axis. */
static clmgk_layout permuted(size_t number, int64_t heads, int64_t tokens, int64_t size, int64_t gap)
{
    static const size_t order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int64_t shape[3] = {B, heads, tokens};
    int64_t stride[3] = {0}, next = size + gap;
    for (size_t n = 3; n-- > 0;) {
        const size_t axis = order[number % 6][n];
        stride[axis] = next;
        next = next * shape[axis] + gap;
    }
    return (clmgk_layout){1, stride[0], stride[1], 0, stride[2]};
}

/* Arrays in any order, each at an odd place. */
TH_TEST(strides_and_offsets)
{
    for (size_t n = 0; n < 18; n++) {
        if (n >= 6 && !th_takes(session, n, 7)) /* of the storage types but f32 one form each */
            continue;
        clmgk_attention_desc desc = small_desc(forms[n % 3], N, S);
        const int64_t gap = (int64_t)n % 4;
        desc.dtype = th_dtypes[n / 6];
        desc.batch = B;
        desc.heads = 4;
        desc.kv_heads = 2;
        desc.q = permuted(n, 2, N, D, gap);
        desc.k = permuted(n + 1, 2, S, D, gap);
        desc.v = permuted(n + 2, 2, S, E, gap);
        desc.o = permuted(n + 3, 4, N, E, gap);
        desc.lse = permuted(n + 5, 4, N, 1, gap);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_offset_arrays(&problem, 2, n % 2);
        sweep(session, &problem, n < 6 ? 0 : 1);
    }
}

/* Strides of 0: one token, head or batch for all. */
TH_FULL_TEST(broadcast_inputs)
{
    for (size_t n = 0; n < 9; n++) {
        clmgk_attention_desc desc = small_desc(forms[n % 2], N, S);
        desc.dtype = th_dtypes[session->full ? n % 3 : 0];
        desc.batch = B;
        desc.q = permuted(0, 2, N, D, 0);
        desc.k = permuted(0, 2, S, D, 0);
        desc.v = permuted(0, 3, S, E, 0);
        int64_t *const zero[] = {&desc.k.batch, &desc.k.head,  &desc.k.token, &desc.v.batch, &desc.v.head,
                                 &desc.v.token, &desc.q.batch, &desc.q.head,  &desc.q.token};
        *zero[n] = *zero[(n + 4) % 9] = 0;
        sweep_desc(session, &desc, n, n % 3 == 0 ? 0 : 1);
    }
}

/* Talking heads: Q, K and V interleaved token by token in one buffer [B,N,3,H,D], tokens first in O too. */
TH_FULL_TEST(packed_qkv)
{
    for (size_t n = 0; n < (session->full ? TH_COUNT(th_dtypes) : 1); n++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_TALKING_HEADS, N, N);
        desc.dtype = th_dtypes[n];
        desc.batch = B;
        TH_PROBLEM problem = th_packed_problem(desc, n);
        sweep(session, &problem, n);
    }
}

/* ---- parts ----------------------------------------------------------------------------------------------------- */

TH_TEST(split_keys)
{
    static const int64_t shape[][2] = {{1, 1000}, {16, 700}, {40, 200}, {3, 0}, {100, 10}};
    static const char *const lane[] = {"panels=1,vectors=1,heads=2,splits=2",
                                       "panels=1,vectors=1,heads=2,splits=4,tile=16"};
    static const char *const simt[] = {"rows=1,keys=1,heads=1,splits=2", "rows=1,keys=1,heads=1,splits=4,split-from=1"};
    for (size_t n = 0; n < 15; n++) {
        clmgk_attention_desc desc = small_desc(forms[n / 5], shape[n % 5][0], shape[n % 5][1]);
        th_set_split(&desc, n);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t p = 0; p < 2; p++) {
            if (p == 0 || n < 5)
                expect_with(session, &problem, CLMGK_ENGINE_LANE, lane[p]);
            if (p == 0 ? n < 5 : n == 5 && th_takes(session, n, 2))
                expect_with(session, &problem, CLMGK_ENGINE_SIMT, simt[p]);
        }
    }
}

TH_TEST(parts_make_the_whole)
{
    enum { PARTS = 4 };
    static const int64_t cut[PARTS + 1] = {0, 17, 17, 50, S};
    for (size_t n = 0; n < 3 * session->engines; n++) {
        if (!th_takes(session, n, 2))
            continue;
        clmgk_attention_desc desc = small_desc(forms[n % 3], N, S);
        desc.batch = B;
        desc.dtype = n < 3 ? th_dtypes[n % 3] : CLMGK_DTYPE_F32;
        desc.combine = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        clmgk_plan_options options = th_options(session, n / 3);
        options.parameters = parameters_of(session, n / 3);
        th_expect_combined(session, &problem, &options, PARTS, cut);
    }
}

/* ---- properties ------------------------------------------------------------------------------------------------ */

/* A problem whose values are rounded to their storage types. */
static th_problem rounded_problem(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    th_problem problem = th_problem_make(desc, seed);
    TH_DEVICE device = th_upload(session, &problem, 0);
    return problem;
}

/* Runs `changed`, whose outputs must be those of `original`. */
static void expect_same(th_session *session, const th_problem *original, th_problem *changed)
{
    TH_REF_ANSWER answer = th_solve(original);
    expect_on(session, session->engines, changed, &answer);
}

TH_TEST(unmixed_heads_are_those_of_softmax)
{
    for (size_t n = 0; n < (session->full ? 3 : 2); n++) {
        clmgk_attention_desc plain = th_small_desc(CLMGK_VARIANT_SOFTMAX, N, S);
        clmgk_attention_desc mixed = small_desc(n == 0 ? CLMGK_VARIANT_TALKING_HEADS : CLMGK_VARIANT_HARD_FISH, N, S);
        plain.heads = mixed.heads = mixed.components = n == 2 ? 1 : 3;
        plain.causal = mixed.causal = n == 1;
        TH_PROBLEM original = rounded_problem(session, &plain, n), changed = th_problem_make(&mixed, n);
        th_copy_inputs(&changed, &original);
        for (int64_t h = 0; h < mixed.heads; h++)
            for (int64_t k = 0; k < mixed.heads; k++)
                th_set(&changed, TH_MIX, 0, h, k, 0, 0, h == k ? 1.0 : 0.0);
        expect_same(session, &original, &changed);
    }
}

/* MiSH is FiSH with equal rows of p. All heads have one softmax, or one each if a modifier differs by head (here one
 * that changes nothing). */
TH_TEST(one_mixing_for_all_heads)
{
    for (size_t n = 0; n < 6; n++) {
        if (!th_takes(session, n, 3))
            continue;
        const bool noisy = n % 3 > 0, alibi = n / 3 == 1;
        clmgk_attention_desc full = small_desc(noisy ? CLMGK_VARIANT_FISH : CLMGK_VARIANT_HARD_FISH, N, S);
        full.heads = 5;
        full.batch = B;
        full.shared_noise = n % 3 == 2;
        clmgk_attention_desc one = full;
        one.variant = noisy ? CLMGK_VARIANT_MISH : CLMGK_VARIANT_HARD_MISH;
        one.use_alibi = alibi;
        TH_PROBLEM original = rounded_problem(session, &full, n), changed = th_problem_make(&one, n);
        for (int64_t h = 1; h < full.heads; h++)
            memcpy(original.array[TH_MIX].values + h * full.components, original.array[TH_MIX].values,
                   (size_t)full.components * sizeof(double));
        changed.array[TH_MIX].used = false; /* a shape of its own */
        th_copy_inputs(&changed, &original);
        changed.array[TH_MIX].used = true;
        memcpy(changed.array[TH_MIX].values, original.array[TH_MIX].values, (size_t)full.components * sizeof(double));
        changed.seed = original.seed;
        if (alibi)
            th_fill(&changed, TH_SLOPES, 0.0);
        expect_same(session, &original, &changed);
    }
}

/* Global heads in another order, with their columns of p; keys in another order. */
TH_FULL_TEST(order_does_not_matter)
{
    for (size_t n = 0; n < 3; n++) {
        const clmgk_attention_desc desc = small_desc(forms[n], N, S);
        TH_PROBLEM original = rounded_problem(session, &desc, n), changed = th_problem_make(&desc, n);
        static const th_name global[] = {TH_Q, TH_K, TH_MIX, TH_MIX_WEIGHT};
        th_copy_inputs(&changed, &original);
        th_reverse_tokens(&changed, TH_K);
        th_reverse_tokens(&changed, TH_V);
        for (size_t i = 0; i < TH_COUNT(global); i++) {
            const th_array *const array = &changed.array[global[i]];
            const size_t size = i < 2 ? (size_t)(array->shape[3] * array->shape[4]) : 1; /* of two heads */
            for (size_t at = 0; array->used && at < array->count; at += 2 * size)
                for (size_t x = at; x < at + size; x++) {
                    const double value = array->values[x];
                    array->values[x] = array->values[x + size];
                    array->values[x + size] = value;
                }
        }
        expect_same(session, &original, &changed);
    }
}

/* c is inside A: it moves L by c / sqrt(D), and O not at all. */
TH_TEST(offsets_reach_only_lse)
{
    clmgk_attention_desc with = small_desc(CLMGK_VARIANT_HARD_GFISH, N, S);
    clmgk_attention_desc without = with;
    without.use_mix_offset = 0;
    TH_PROBLEM original = rounded_problem(session, &without, 1), changed = th_problem_make(&with, 1);
    th_copy_inputs(&changed, &original);
    th_fill(&changed, TH_MIX_OFFSET, 3.0);
    TH_REF_ANSWER answer = th_solve(&original);
    for (int64_t n = 0; n < answer.rows; n++)
        answer.lse[n] += 3.0 / sqrt((double)with.head_size);
    expect_on(session, session->engines, &changed, &answer);
}

/* Offsets that are floats in nats, but not in powers of two. */
TH_TEST(huge_offsets)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_HARD_GFISH, N, S);
    desc.head_size = 1;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_fill(&problem, TH_MIX_OFFSET, 3e38);
    th_set(&problem, TH_MIX_OFFSET, 0, 0, 0, 0, 0, -3e38);
    expect(session, &problem);
}

/* Repeated runs give the same bits, and so does O of a plan without L. */
TH_TEST(repeated_runs_are_bit_equal)
{
    for (size_t n = 0; n < session->engines * TH_COUNT(forms); n++) {
        if (n > TH_COUNT(forms) && !session->full)
            break;
        clmgk_attention_desc desc = small_desc(forms[n % TH_COUNT(forms)], 100, 130);
        desc.heads = 8;
        desc.causal = 1;
        const size_t e = n / TH_COUNT(forms);
        TH_PROBLEM one = th_problem_make(&desc, n), again = th_problem_make(&desc, n);
        th_run_with(session, &one, session->engine[e], parameters_of(session, e));
        for (int run = 0; run < 2; run++) {
            th_run_with(session, &again, session->engine[e], parameters_of(session, e));
            th_expect_equal_bits(&one, &again, TH_O);
            th_expect_equal_bits(&one, &again, TH_LSE);
        }
        again.array[TH_LSE].used = false;
        th_run_with(session, &again, session->engine[e], parameters_of(session, e));
        th_expect_equal_bits(&one, &again, TH_O);
    }
}
