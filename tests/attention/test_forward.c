/* SPDX-License-Identifier: Apache-2.0 */
/* Every variant on every engine against the reference: shapes, modes, storage types, block sizes. */
#include "harness/harness.h"

#include <math.h>

/* ---- shapes ---------------------------------------------------------------------------------------------------- */

/* Around the edges of blocks and tiles. */
static const int64_t sequence[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129, 257, 300};

static void sweep_sequences(th_session *session, clmgk_variant variant)
{
    for (size_t n = 0; n < TH_COUNT(sequence); n++) {
        for (size_t s = 0; s < TH_COUNT(sequence); s++) {
            clmgk_attention_desc desc = th_small_desc(variant, sequence[n], sequence[s]);
            desc.causal = (n + s) % 2 == 1;
            desc.heads = 1 + (int64_t)(n % 2);
            if (session->full || (n * 5 + s * 3) % 8 == 0 || n == s)
                th_expect_desc(session, &desc, n * 100 + s);
        }
    }
}

TH_TEST(sequence_lengths)
{
    sweep_sequences(session, CLMGK_VARIANT_SOFTMAX);
    sweep_sequences(session, CLMGK_VARIANT_MGK);
    sweep_sequences(session, CLMGK_VARIANT_SMGK);
}

TH_TEST(long_sequences)
{
    const clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, session->full ? 1000 : 100, 4100);
    th_expect_desc(session, &desc, 1);
}

TH_TEST(head_sizes)
{
    static const int64_t size[][2] = {{1, 1},     {8, 64},    {3, 17},    {17, 64},   {8, 8},    {40, 72},
                                      {64, 64},   {5, 3},     {100, 40},  {128, 128}, {16, 200}, {200, 33},
                                      {256, 128}, {80, 96},   {7, 31},    {48, 49},   {96, 80},  {160, 192},
                                      {192, 160}, {320, 320}, {511, 300}, {512, 512}, {72, 1},   {33, 16}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(size) : 1) * TH_COUNT(th_variants); n++) {
        const size_t number = session->full ? n / TH_COUNT(th_variants) : 3 * n + 1;
        clmgk_attention_desc desc = {.variant = th_variants[n % TH_COUNT(th_variants)],
                                     .head_size = size[number][0],
                                     .value_size = size[number][1]};
        for (int shape = 0; shape < 3; shape++) {
            desc.length = shape == 0 ? 37 : 130;
            desc.length_k = shape == 1 ? 33 : 141;
            desc.causal = shape == 2;
            th_sweep_desc(session, &desc, n, n);
        }
    }
}

TH_TEST(components)
{
    static const int64_t count[] = {1, 3, 5, 16, 8};
    for (size_t n = 0; n < 2 * TH_COUNT(count); n++) {
        if (!th_takes(session, n, 3))
            continue;
        clmgk_attention_desc desc = th_small_desc(th_variants[2 + n % 2], 35, 150);
        desc.score = th_scores[(n + n / 2) % 2];
        desc.components = count[n / 2];
        th_sweep_desc(session, &desc, n, n + 2);
        desc.causal = 1;
        th_sweep_desc(session, &desc, n, n + 2);
        desc.estep = CLMGK_ESTEP_HARD;
        if (session->full)
            th_sweep_desc(session, &desc, n, n);
    }
}

/* Sizes of blocks that are not the defaults for problems of this size. */
TH_TEST(engine_parameters)
{
    static const struct {
        clmgk_engine engine;
        const char *parameters;
        clmgk_variant variant; /* in full all */
    } blocks[] = {
        {CLMGK_ENGINE_LANE, "panels=4", CLMGK_VARIANT_SOFTMAX},
        {CLMGK_ENGINE_LANE, "panels=2,vectors=1,tile=32", CLMGK_VARIANT_SMGK},
        {CLMGK_ENGINE_LANE, "lanes=8,panels=8,block=4", CLMGK_VARIANT_MGK},
        {CLMGK_ENGINE_SIMT, "rows=2,keys=2", CLMGK_VARIANT_GAUSSIAN},
        {CLMGK_ENGINE_SIMT, "row-threads=4,key-threads=8,rows=4,keys=4", CLMGK_VARIANT_SMGK},
        {CLMGK_ENGINE_SIMT, "rows=1,keys=4,row-threads=16,key-threads=4,features=8,values=8", CLMGK_VARIANT_SOFTMAX}};
    for (size_t n = 0; n < TH_COUNT(blocks); n++) {
        if (session->engines == 1 && session->engine[0] != blocks[n].engine)
            continue;
        for (size_t v = 0; v < (session->full ? TH_COUNT(th_variants) : 1); v++) {
            clmgk_attention_desc desc = th_small_desc(session->full ? th_variants[v] : blocks[n].variant, 150, 270);
            th_set_lengths(&desc);
            for (desc.causal = session->full ? 0 : 1; desc.causal < 2; desc.causal++) {
                TH_PROBLEM problem = th_problem_make(&desc, n);
                th_expect_with(session, &problem, blocks[n].engine, blocks[n].parameters);
            }
        }
    }
}

/* The lane engine's last panel with one row, half of its rows, and one more. */
TH_TEST(short_panels)
{
    static const struct {
        clmgk_variant variant;
        const char *parameters;
    } forms[] = {{CLMGK_VARIANT_SOFTMAX, NULL},
                 {CLMGK_VARIANT_MGK, NULL},
                 {CLMGK_VARIANT_SMGK, "lanes=8,vectors=4,panels=1,block=16"}};
    static const int64_t lengths[] = {49, 17, 48, 81, 65};
    for (size_t n = 0; session->engine[0] == CLMGK_ENGINE_LANE && n < 2 * TH_COUNT(forms) * TH_COUNT(lengths); n++) {
        const size_t form = n / (2 * TH_COUNT(lengths));
        clmgk_attention_desc desc = th_small_desc(forms[form].variant, lengths[n % TH_COUNT(lengths)], 0);
        desc.head_size = 24;
        desc.value_size = 40;
        desc.batch = 2;
        desc.length_k = n % 3 == 1 ? 70 : desc.length;
        desc.causal = n / TH_COUNT(lengths) % 2 == 1;
        desc.alignment = n % 2 == 1 ? CLMGK_ALIGN_TOP_LEFT : CLMGK_ALIGN_BOTTOM_RIGHT;
        desc.use_lengths_q = n % TH_COUNT(lengths) == 3;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect_with(session, &problem, CLMGK_ENGINE_LANE, forms[form].parameters);
    }
}

/* The engines' forms for few rows: around the edges of tiles and ranges of keys, of pieces of rows, and of the rows. */
TH_TEST(few_rows)
{
    static const struct {
        clmgk_variant variant;
        clmgk_dtype dtype;
        int64_t length, head_size, value_size;
    } problems[] = {{CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 60, 96},
                    {CLMGK_VARIANT_GAUSSIAN, CLMGK_DTYPE_F16, 2, 42, 19},
                    {CLMGK_VARIANT_MGK, CLMGK_DTYPE_BF16, 3, 24, 8},
                    {CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 4, 6, 64}};
    static const int64_t keys[] = {0, 1, 127, 128, 129, 700};
    for (size_t n = 0; n < TH_COUNT(problems) * TH_COUNT(keys); n++) {
        const size_t number = n / TH_COUNT(keys);
        if (!session->full && number % 3 != 0)
            continue;
        clmgk_attention_desc desc =
            th_small_desc(problems[number].variant, problems[number].length, keys[n % TH_COUNT(keys)]);
        desc.dtype = problems[number].dtype;
        desc.head_size = problems[number].head_size;
        desc.value_size = problems[number].value_size - (n % 2 == 0 ? 0 : 2); /* in the same program: not aligned */
        desc.batch = 2;
        desc.heads = 4;
        desc.kv_heads = 2;
        desc.use_lengths = n % 2 == 1;
        desc.causal = n % 3 == 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t e = 0; e < session->engines; e++)
            th_expect_with(session, &problem, session->engine[e], NULL);
    }
}

/* The lane engine's form for few rows, whose rows are the queries of heads that share keys, where there are at most
 * four of them; of other groups, of as many heads as divide the group; vectors of all lengths; masks count queries. */
TH_FULL_TEST(few_rows_of_grouped_heads)
{
    static const th_group shapes[] = {{1, 200, 2, false}, {1, 67, 3, true},  {1, 129, 4, false}, {1, 64, 5, false},
                                      {1, 150, 6, true},  {1, 90, 8, false}, {2, 140, 2, false}, {2, 70, 2, true}};
    static const char *const parameters[] = {NULL, "lanes=8", "lanes=4"};
    for (size_t n = 0; n < 4 * TH_COUNT(shapes); n++) {
        clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_F16, .head_size = n % 4 == 3 ? 61 : 64, .value_size = 64};
        th_share_keys(&desc, &shapes[n / 4], n);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t p = 0; p < TH_COUNT(parameters); p++)
            th_expect_with(session, &problem, CLMGK_ENGINE_LANE, parameters[p]);
    }
}

/* The inputs of another problem, which has more queries: its first ones. */
static void copy_first_queries(th_problem *few, const th_problem *many)
{
    for (th_name name = 0; name < TH_ARRAYS; name++) {
        const th_array *const from = &many->array[name], *const to = &few->array[name];
        const size_t row = (size_t)from->shape[4], rows = (size_t)to->shape[3] * row,
                     step = (size_t)from->shape[3] * row;
        for (size_t n = 0; th_is_input(name) && to->used && n < to->count; n++)
            to->values[n] = from->values[n / rows * step + n % rows];
    }
}

/* A plan's workspace must have so many floats, and up to 64 bytes for its alignment. */
static void expect_workspace(th_session *session, const clmgk_attention_desc *desc, clmgk_engine engine,
                             const char *parameters, uint64_t floats)
{
    clmgk_plan *const plan = th_plan(session, desc, engine, parameters);
    assert_in_range(clmgk_plan_workspace_size(plan), floats * sizeof(float),
                    floats * sizeof(float) + (floats > 0 ? 64 : 0));
    clmgk_plan_release(plan);
}

/* One block of rows computes the terms of its keys, several read them from the workspace: the same bits. Heads of
 * queries that share a head of keys are several blocks. */
TH_TEST(terms_of_keys_of_one_block_and_of_several)
{
    enum { FEW = 8, MANY = 40, KEYS = 70, COMPONENTS = 2 };
    static const struct {
        clmgk_variant variant;
        int64_t batch, kv_heads, sequences;
        uint64_t few, many; /* numbers in the workspace, for a key and component */
    } cases[] = {{CLMGK_VARIANT_MGK, 2, 2, 0, 0, 4},
                 {CLMGK_VARIANT_MGK, 2, 1, 0, 2, 2},
                 {CLMGK_VARIANT_MGK, 1, 1, 3, 0, 1},
                 {CLMGK_VARIANT_SMGK, 2, 1, 0, 0, 4}};
    const char *const parameters = "rows=1,keys=1,splits=1";
    for (size_t n = 0; n < TH_COUNT(cases) * session->engines; n++) {
        const clmgk_engine engine = session->engine[n / TH_COUNT(cases)];
        const size_t c = n % TH_COUNT(cases);
        if (engine != CLMGK_ENGINE_SIMT)
            continue;
        clmgk_attention_desc desc = th_small_desc(cases[c].variant, MANY, KEYS);
        desc.batch = cases[c].batch;
        desc.kv_heads = cases[c].kv_heads;
        desc.sequences = cases[c].sequences;
        desc.use_offsets_k = desc.sequences > 0;
        desc.use_lengths = desc.sequences == 0;
        TH_PROBLEM many = th_problem_make(&desc, n);
        expect_workspace(session, &desc, engine, parameters, cases[c].many * COMPONENTS * KEYS);
        th_expect_with(session, &many, engine, parameters);
        if (desc.sequences > 0)
            continue;
        desc.length = FEW;
        TH_PROBLEM few = th_problem_make(&desc, n);
        copy_first_queries(&few, &many);
        expect_workspace(session, &desc, engine, parameters, cases[c].few * COMPONENTS * KEYS);
        th_expect_with(session, &few, engine, parameters);
        const th_array *const o = &few.array[TH_O];
        const size_t rows = (size_t)(o->shape[3] * o->shape[4]);
        for (size_t i = 0; i < o->count; i++)
            assert_true(o->values[i] == many.array[TH_O].values[i / rows * rows / FEW * MANY + i % rows]);
    }
}

TH_TEST(batches_and_heads)
{
    static const int64_t heads[][2] = {{1, 1}, {4, 4}, {4, 2}, {6, 2}, {6, 3}, {5, 1}, {8, 1}};
    for (size_t n = 0; n < TH_COUNT(heads) * TH_COUNT(th_variants); n++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[n % TH_COUNT(th_variants)], 19, 70);
        desc.batch = 1 + (int64_t)n % 3;
        desc.heads = heads[n / TH_COUNT(th_variants)][0];
        desc.kv_heads = heads[n / TH_COUNT(th_variants)][1];
        desc.causal = n % 2 == 1;
        th_expect_desc(session, &desc, n);
    }
}

/* ---- modes ----------------------------------------------------------------------------------------------------- */

/* Every prior and variance shape of one variant, score and E-step; those of one kind share a program: 0 or any of the
 * rest. Unless in full, one kind: any two of variant, score, E-step, prior and variance meet in all ways. */
static void sweep_priors_and_variances(th_session *session, clmgk_attention_desc desc, size_t number)
{
    const size_t score = number % 2, estep = number / 2 % 2, variant = number / 4;
    for (size_t n = 0; n < 12; n++) {
        desc.prior_shape = (clmgk_prior_shape)(n % 4);
        desc.variance_shape = (clmgk_variance_shape)(n / 4);
        desc.variance = desc.variance_shape == CLMGK_VARIANCE_NUMBER ? 2.5 : 0.0;
        desc.causal = (int32_t)(n % 2);
        const size_t prior = n % 4 > 0, variance = n / 4 > 0;
        if (session->full || (prior == (score ^ estep) && variance == (score ^ variant)))
            th_sweep_desc(session, &desc, number * 100 + n, number);
    }
}

TH_TEST(scores_esteps_priors_variances)
{
    for (size_t n = 0; n < 8; n++) {
        clmgk_attention_desc desc = th_small_desc(th_variants[2 + n / 4], 33, 150);
        desc.score = th_scores[n % 2];
        desc.estep = th_esteps[n / 2 % 2];
        desc.batch = 2;
        desc.heads = 4;
        desc.kv_heads = 2;
        sweep_priors_and_variances(session, desc, n);
    }
}

TH_FULL_TEST(priors_and_variances_of_one_component)
{
    for (size_t n = 0; n < 15; n++) {
        clmgk_attention_desc desc = th_small_desc(n < 3 ? CLMGK_VARIANT_SOFTMAX : CLMGK_VARIANT_GAUSSIAN, 20, 90);
        desc.variance_shape = (clmgk_variance_shape)(n % 3);
        desc.prior_shape = (clmgk_prior_shape)(n < 3 ? 0 : n / 3 - 1);
        desc.variance = desc.variance_shape == CLMGK_VARIANCE_NUMBER ? 0.7 : 0.0;
        th_sweep_desc(session, &desc, n, n);
        desc.estep = CLMGK_ESTEP_HARD; /* without a prior: no difference */
        th_sweep_desc(session, &desc, n, n);
    }
}

TH_TEST(storage_types)
{
    for (size_t t = 0; t < 2 * TH_COUNT(th_variants); t++) {
        if (!th_takes(session, t + t / 2 + 1, 2)) /* each variant in one of two types */
            continue;
        for (size_t n = 0; n < (session->full ? 2 * TH_COUNT(sequence) : 6); n++) {
            const int64_t length = sequence[(n * 5 + 1) % TH_COUNT(sequence)];
            const int64_t length_k = sequence[(n * 7 + 2) % TH_COUNT(sequence)];
            clmgk_attention_desc desc = th_small_desc(th_variants[t / 2], length, length_k);
            desc.dtype = th_dtypes[1 + t % 2];
            desc.batch = 2;
            desc.causal = n % 2 == 1;
            th_sweep_desc(session, &desc, n, t + t / 4);
        }
    }
}

/* Rows with gaps between them, heads and batches too. */
static clmgk_layout with_gaps(int64_t heads, int64_t components, int64_t tokens, int64_t size)
{
    clmgk_layout layout = {.strided = 1, .token = size + 3};
    layout.component = tokens * layout.token + 1;
    layout.head = components * layout.component + 2;
    layout.batch = heads * layout.head + 5;
    return layout;
}

/* On every engine, with NaN behind the last key. `gaps`: rows have gaps, and arrays begin at odd elements. */
static void expect_mixed_types(th_session *session, clmgk_attention_desc desc, bool gaps, uint64_t seed)
{
    desc.batch = 2;
    desc.heads = 4;
    desc.kv_heads = 2;
    desc.use_lengths = 1;
    if (gaps) {
        desc.q = with_gaps(desc.heads, 1, desc.length, desc.head_size);
        desc.k = with_gaps(desc.kv_heads, desc.variant == CLMGK_VARIANT_MGK ? 2 : 1, desc.length_k, desc.head_size);
        desc.v = with_gaps(desc.kv_heads, 1, desc.length_k, desc.value_size);
        desc.o = with_gaps(desc.heads, 1, desc.length, desc.value_size);
    }
    TH_PROBLEM problem = th_problem_make(&desc, seed);
    for (th_name name = TH_Q; gaps && name <= TH_O; name++)
        problem.array[name].offset = 2 * (uint64_t)name + 1;
    for (int64_t b = 0; b < problem.desc.batch; b++) {
        th_poison(&problem, TH_K, b, (int64_t)problem.array[TH_LENGTHS].values[b]);
        th_poison(&problem, TH_V, b, (int64_t)problem.array[TH_LENGTHS].values[b]);
    }
    for (size_t e = 0; e < session->engines; e++)
        th_expect_with(session, &problem, session->engine[e], desc.length > 4 ? session->parameters[e] : NULL);
}

/* A type for each array. Engines read rows of f32 in place where they convert others. */
TH_TEST(mixed_storage_types)
{
    static const struct {
        th_mix mix;
        int64_t length; /* up to 4: the form for few rows */
    } mixes[] = {
        {{CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, CLMGK_STORAGE_F16, CLMGK_STORAGE_F16, CLMGK_STORAGE_AS_Q, 64, 64},
         70},
        {{CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, CLMGK_STORAGE_F32, CLMGK_STORAGE_F16, CLMGK_STORAGE_F32, 32, 5}, 37},
        {{CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, CLMGK_STORAGE_BF16, CLMGK_STORAGE_F16, CLMGK_STORAGE_F16, 5, 64}, 3},
        {{CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, CLMGK_STORAGE_F16, CLMGK_STORAGE_F16, CLMGK_STORAGE_F32, 64, 40},
         1}};
    static const int64_t keys[] = {141, 64, 17, 700};
    for (size_t n = 0; n < TH_COUNT(mixes) * TH_COUNT(keys); n++) {
        const size_t number = n / TH_COUNT(keys);
        /* a problem with gaps, and one without; ranges of keys for few rows */
        if (!session->full && (number < 2 ? n % 4 > 1 : n % 4 % 3 != 0))
            continue;
        clmgk_attention_desc desc = th_mix_desc(&mixes[number].mix);
        desc.length = mixes[number].length;
        desc.length_k = keys[n % TH_COUNT(keys)];
        desc.causal = n % 3 == 1;
        expect_mixed_types(session, desc, n % 2 == 0, n);
    }
}

/* The mean of two values of eight bits that lies half-way between two such values: the even one. */
TH_TEST(bf16_rounds_to_nearest_even)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 20, 2);
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.value_size = 16;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    const th_array *const o = &problem.array[TH_O];
    const int64_t size = o->shape[4];
    th_fill(&problem, TH_Q, 0.0);
    for (int64_t n = 0; n < 2 * size; n++)
        for (int64_t key = 0; key < 2; key++)
            th_set(&problem, TH_V, 0, n / size, 0, key, n % size, 1.0 + (double)(n % size + key) / 128.0);
    for (size_t e = 0; e < session->engines; e++) {
        th_run_with(session, &problem, session->engine[e], session->parameters[e]);
        for (size_t n = 0; n < o->count; n++)
            assert_true(o->values[n] == 1.0 + rint((double)((int64_t)n % size) + 0.5) / 128.0);
    }
}

/* ---- anything -------------------------------------------------------------------------------------------------- */

/* What costs a build. */
static clmgk_attention_desc random_program(uint64_t *state, int64_t most_components)
{
    clmgk_attention_desc desc = {.variant = th_variants[th_pick(state, 0, 3)],
                                 .dtype = th_dtypes[th_pick(state, 0, 2)],
                                 .estep = th_esteps[th_pick(state, 0, 1)],
                                 .head_size = th_pick(state, 1, 96),
                                 .value_size = th_pick(state, 1, 96)};
    if (desc.variant >= CLMGK_VARIANT_MGK) {
        desc.score = th_scores[th_pick(state, 0, 1)];
        desc.components = th_pick(state, 1, most_components);
        desc.prior_shape = (clmgk_prior_shape)th_pick(state, 0, 3);
        desc.variance_shape = (clmgk_variance_shape)th_pick(state, 0, 2);
    }
    return desc;
}

static void set_random_shape(clmgk_attention_desc *desc, uint64_t *state)
{
    desc->batch = th_pick(state, 1, 3);
    desc->kv_heads = th_pick(state, 1, 3);
    desc->heads = desc->kv_heads * th_pick(state, 1, 3);
    desc->length = th_pick(state, 0, 150);
    desc->length_k = th_keys(th_pick(state, 0, 300));
    desc->causal = (int32_t)th_pick(state, 0, 1);
    desc->use_lengths = (int32_t)th_pick(state, 0, 1);
    desc->use_lengths_q = (int32_t)th_pick(state, 0, 1);
    desc->alignment = (clmgk_alignment)th_pick(state, 0, desc->use_lengths ? 2 : 1);
}

TH_FULL_TEST(random_problems)
{
    uint64_t random = 2026;
    const int programs = session->full ? 80 : 8;
    for (int program = 0; program < programs; program++) {
        clmgk_attention_desc desc = random_program(&random, session->full ? 6 : 3);
        for (int shape = 0; shape < 8; shape++) {
            set_random_shape(&desc, &random);
            TH_PROBLEM problem = th_problem_make(&desc, th_random(&random));
            th_scale(&problem, TH_Q, ldexp(1.0, (int)th_pick(&random, -6, 5)));
            th_scale(&problem, TH_K, ldexp(1.0, (int)th_pick(&random, -3, 3)));
            th_scale(&problem, TH_SHIFT, ldexp(1.0, (int)th_pick(&random, -3, 5)));
            th_sweep(session, &problem, (size_t)program);
        }
    }
}
