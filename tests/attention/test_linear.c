/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linear family on every engine against the reference: variants, feature maps, shapes around the edges of chunks,
 * masks, states, layouts, how the work is cut up; then what must hold whatever the reference says.
 * A program takes a second to build: what is chosen at run time varies over few of them.
 */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

static const clmgk_variant variants[] = {CLMGK_VARIANT_LINEAR,     CLMGK_VARIANT_MLK,        CLMGK_VARIANT_SMLK,
                                         CLMGK_VARIANT_LFISH,      CLMGK_VARIANT_LHARD_FISH, CLMGK_VARIANT_LMISH,
                                         CLMGK_VARIANT_LHARD_MISH, CLMGK_VARIANT_LGFISH,     CLMGK_VARIANT_LHARD_GFISH};

static const struct {
    clmgk_feature feature;
    int32_t order;
} maps[] = {{CLMGK_FEATURE_ELU1, 0}, {CLMGK_FEATURE_RELU, 0}, {CLMGK_FEATURE_EXP, 0},  {CLMGK_FEATURE_DPFP, 1},
            {CLMGK_FEATURE_DPFP, 2}, {CLMGK_FEATURE_DPFP, 3}, {CLMGK_FEATURE_FAVOR, 0}};

enum { MAP_ELU1, MAP_RELU, MAP_EXP, MAP_DPFP, MAP_FAVOR = 6, MAPS };

static bool has_trait(const clmgk_attention_desc *desc, clmgk_variant_trait trait)
{
    return (clmgk_variant_traits(desc->variant) & (uint32_t)trait) != 0;
}

/* Every array that the variant has. */
static clmgk_attention_desc small_desc(clmgk_variant variant, size_t map, int64_t length, int64_t length_k)
{
    clmgk_attention_desc desc = th_small_desc(variant, length, length_k);
    desc.feature = maps[map].feature;
    desc.feature_order = maps[map].order;
    desc.features = map == MAP_FAVOR ? 21 : 0;
    if (has_trait(&desc, CLMGK_TRAIT_PRIOR))
        desc.prior_shape = CLMGK_PRIOR_HM;
    desc.use_mix_weight = has_trait(&desc, CLMGK_TRAIT_GENERALISED);
    return desc;
}

/* Types of Q and O, of K and of V. */
static void set_types(clmgk_attention_desc *desc, clmgk_dtype q, clmgk_storage k, clmgk_storage v)
{
    desc->dtype = q;
    desc->dtype_k = k;
    desc->dtype_v = v;
}

static th_problem make(const clmgk_attention_desc *desc, uint64_t seed)
{
    th_problem problem = th_problem_make(desc, seed);
    th_keep_sums(&problem);
    return problem;
}

/* ---- runs ------------------------------------------------------------------------------------------------------ */

/* Chunks are as short as can be, so that short problems have several. One range of keys or four, each with programs of
 * their own: a variant has one of them with each map and mask, unless the sweep is to be full; both where MLK runs
 * forward on the device's own engine. */
static const char *chunks(const th_session *session, const clmgk_attention_desc *desc, clmgk_engine engine,
                          size_t number)
{
    const bool plain = desc->variant == CLMGK_VARIANT_MLK && desc->feature == CLMGK_FEATURE_ELU1;
    const bool both = session->full || (plain && desc->gradients == 0 && engine == session->engine[0]);
    const int sum = (int)desc->variant + (int)desc->feature + desc->feature_order + desc->causal;
    return (both ? number : (size_t)sum) % 2 == 0 ? "chunk=16,feature-block=16,splits=1"
                                                  : "chunk=16,feature-block=16,splits=4";
}

static void expect_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = engine;
    options.parameters = options.backward_parameters = parameters;
    th_expect_forward(session, problem, &options);
    if (problem->desc.gradients == 0)
        return;
    th_round_values(session, problem, TH_BACKWARD);
    TH_REF_ARRAYS exact = th_solve_gradients(problem);
    for (unsigned which = 0; which < CLMGK_REF_ARRAYS; which++) /* what is added to is of the gradient's size */
        if ((exact.set >> which & 1U) != 0)
            th_scale(problem, TH_GRAD_Q + which, 0.0625 * exact.bound[which].max_abs);
    th_run_pass(session, problem, TH_BACKWARD, &options);
    th_check_gradients(session, problem, engine, &exact);
}

/* On the device's own engine, on all if `all` or in full. */
static void expect(th_session *session, th_problem *problem, size_t number, bool all)
{
    for (size_t n = 0; n < (all || session->full ? session->engines : 1); n++)
        expect_with(session, problem, session->engine[n], chunks(session, &problem->desc, session->engine[n], number));
}

static void expect_desc(th_session *session, const clmgk_attention_desc *desc, size_t number, bool all)
{
    TH_PROBLEM problem = make(desc, number);
    problem.accumulate = number % 2 == 1 ? desc->gradients : 0;
    expect(session, &problem, number, all);
}

/* ---- sweeps ---------------------------------------------------------------------------------------------------- */

/* Chunks of 16: none, one, parts of one, several, more rows than keys and the other way round. */
static const int64_t corner[][2] = {{0, 5},   {5, 0},   {1, 1},   {1, 50},  {33, 1},
                                    {16, 16}, {17, 47}, {50, 18}, {64, 64}, {3, 100}};

static void set_shape(clmgk_attention_desc *desc, size_t number, uint64_t *state)
{
    const bool packed = desc->sequences > 0, mixed = has_trait(desc, CLMGK_TRAIT_ADMIXTURE);
    desc->batch = packed ? 1 : th_pick(state, 1, 3);
    desc->kv_heads = th_pick(state, 1, 2);
    desc->heads = desc->kv_heads * (mixed ? 2 : th_pick(state, 1, 3));
    desc->length = number < TH_COUNT(corner) ? corner[number][0] : th_pick(state, 2, 90);
    desc->length_k = th_keys(number < TH_COUNT(corner) ? corner[number][1] : th_pick(state, 2, 90));
    desc->use_offsets_k = packed;
    desc->use_lengths = !packed && th_chance(state, 3);
    desc->use_lengths_q = !packed && th_chance(state, 4);
    desc->alignment = (clmgk_alignment)th_pick(state, 0, desc->use_lengths ? 2 : 1);
    desc->use_state = !packed && th_chance(state, 2);
    desc->use_new_state = !packed && th_chance(state, 2);
    if (desc->prior_shape != CLMGK_PRIOR_UNIFORM)
        desc->prior_shape = (clmgk_prior_shape)th_pick(state, CLMGK_PRIOR_M, CLMGK_PRIOR_HMS);
}

enum { FULL = 1, CAUSAL = 2 };

/* A program for each of `forms` over `count` shapes together. */
static void expect_program(th_session *session, clmgk_attention_desc desc, int forms, size_t first, size_t count,
                           bool all)
{
    uint64_t random = 100 * (uint64_t)desc.variant + first;
    for (size_t n = first; n < first + (session->full ? 4 * count : count); n++) {
        set_shape(&desc, n, &random);
        if (desc.gradients != 0) {
            desc.use_state = desc.sequences == 0; /* without one, another program */
            desc.gradients = th_all_gradients(&desc);
        }
        desc.causal = forms == CAUSAL || (forms == (FULL | CAUSAL) && n % 3 != 0);
        expect_desc(session, &desc, n, all);
    }
}

/* In full also the forms with noise, which golden cases have. */
TH_TEST(every_variant)
{
    for (size_t n = 0; n < TH_COUNT(variants); n++)
        if (session->full || n <= 2 || n % 2 == 0)
            expect_program(session, small_desc(variants[n], MAP_ELU1, 0, 0),
                           n < 2 || session->full ? FULL | CAUSAL : CAUSAL, 0, n < 2 ? 14 : 8, n == 1);
}

TH_TEST(every_map)
{
    static const clmgk_variant with[] = {CLMGK_VARIANT_LINEAR, CLMGK_VARIANT_MLK, CLMGK_VARIANT_SMLK};
    for (size_t map = 1; map < MAPS; map++)
        if (session->full || map != MAP_DPFP)
            expect_program(session, small_desc(with[map % 3], map, 0, 0),
                           map == MAP_EXP || session->full ? FULL | CAUSAL : CAUSAL, 1, 12, false);
}

TH_TEST(storage_types)
{
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_ELU1, 0, 0);
        desc.dtype = th_dtypes[1 + n];
        expect_program(session, desc, CAUSAL >> n, 2, 8, false);
    }
}

/* Mixed types: head sizes that cut vectors, then, with the same programs, whole and aligned vectors. */
TH_TEST(a_type_for_each_array)
{
    static const struct {
        clmgk_dtype q;
        clmgk_storage k, v;
        clmgk_variant variant;
        size_t map;
        uint32_t gradients;
    } cases[] = {
        {CLMGK_DTYPE_F32, CLMGK_STORAGE_F16, CLMGK_STORAGE_F16, CLMGK_VARIANT_LINEAR, MAP_RELU, 0},
        {CLMGK_DTYPE_BF16, CLMGK_STORAGE_F16, CLMGK_STORAGE_F32, CLMGK_VARIANT_MLK, MAP_ELU1, CLMGK_GRADIENT_ALL}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_attention_desc desc = small_desc(cases[n].variant, cases[n].map, 0, 0);
        set_types(&desc, cases[n].q, cases[n].k, cases[n].v);
        desc.gradients = cases[n].gradients;
        expect_program(session, desc, CAUSAL, 2, 3, n == 1);
        desc.head_size = 32;
        desc.value_size = 16;
        expect_program(session, desc, CAUSAL, 7, 3, false);
    }
}

TH_TEST(head_sizes)
{
    static const int64_t size[][2] = {{33, 5}, {1, 40}, {64, 64}, {128, 96}, {7, 200}, {256, 16}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(size) : 3); n++) {
        clmgk_attention_desc desc = small_desc(variants[n % 3], n % 2 == 0 ? MAP_ELU1 : MAP_DPFP, 0, 0);
        desc.head_size = size[n][0];
        desc.value_size = size[n][1];
        expect_program(session, desc, 1 << n % 2, 5, 4, false);
    }
}

TH_TEST(packed_sequences)
{
    for (size_t n = 0; n < (session->full ? 3 : 2); n++) {
        clmgk_attention_desc desc =
            small_desc(n == 0 ? CLMGK_VARIANT_MLK : variants[2 * n], n == 1 ? MAP_EXP : MAP_ELU1, 0, 0);
        desc.sequences = 5;
        for (size_t shape = 6; shape < 12; shape++) {
            uint64_t random = shape;
            set_shape(&desc, shape, &random);
            desc.causal = n == 0;
            TH_PROBLEM problem = make(&desc, shape);
            /* an empty sequence; one without keys; one without queries */
            if (shape % 2 == 0) {
                double *const q = problem.array[TH_OFFSETS].values, *const k = problem.array[TH_OFFSETS_K].values;
                q[2] = q[1];
                k[2] = k[1];
                k[3] = k[2];
                q[4] = q[3];
            }
            expect(session, &problem, shape, false);
        }
    }
}

/* Chunks of every length, blocks of features, any number of ranges. */
TH_TEST(kernel_parameters)
{
    static const char *const parameters[] = {"chunk=32,splits=1", "chunk=64,splits=2", "chunk=16,splits=64",
                                             "chunk=32,feature-block=16,splits=4"};
    for (size_t n = 0; n < TH_COUNT(parameters) * session->engines; n++) {
        clmgk_attention_desc desc = small_desc(n % 2 == 0 ? CLMGK_VARIANT_MLK : CLMGK_VARIANT_LHARD_FISH,
                                               n % 4 == 1 ? MAP_EXP : MAP_ELU1, 150, 170);
        if (n >= TH_COUNT(parameters) && !th_takes(session, n, 3))
            continue;
        desc.use_state = desc.use_new_state = 1;
        desc.causal = n < 2;
        if (session->engine[n / TH_COUNT(parameters)] == CLMGK_ENGINE_SIMT)
            desc.value_size = 128; /* states by tall blocks */
        TH_PROBLEM problem = make(&desc, n);
        expect_with(session, &problem, session->engine[n / TH_COUNT(parameters)], parameters[n % TH_COUNT(parameters)]);
    }
}

/* Chunks without an edge, of aligned arrays: work-items load several vectors at a time, and in the second case hold the
 * ranges' states in registers. */
TH_TEST(whole_chunks)
{
    static const char *const parameters[] = {"chunk=16,splits=2", "chunk=32,feature-block=64,splits=2"};
    for (size_t n = 0; n < TH_COUNT(parameters) * session->engines; n++) {
        const clmgk_engine engine = session->engine[n / TH_COUNT(parameters)];
        const bool plain = n % TH_COUNT(parameters) == 1;
        if (engine != CLMGK_ENGINE_SIMT)
            continue;
        clmgk_attention_desc desc = small_desc(plain ? CLMGK_VARIANT_LINEAR : CLMGK_VARIANT_MLK, MAP_ELU1, 83, 83);
        desc.head_size = desc.value_size = 64;
        desc.causal = !plain;
        desc.use_new_state = 1;
        desc.gradients = plain ? 0 : th_all_gradients(&desc);
        TH_PROBLEM problem = make(&desc, n);
        expect_with(session, &problem, engine, parameters[n % TH_COUNT(parameters)]);
    }
}

/* ---- products on matrix units ------------------------------------------------------------------------------------ */

/* Small blocks of 16 x 16, whose states are two blocks in registers; in full also wide and large ones. */
TH_TEST(matrix_units)
{
    static const struct {
        clmgk_variant variant;
        size_t map;
        int64_t size, values;
        clmgk_dtype dtype;
        uint32_t gradients;
        int causal;
        const char *parameters;
    } programs[] = {
        {CLMGK_VARIANT_LGFISH, MAP_EXP, 20, 8, CLMGK_DTYPE_F32, CLMGK_GRADIENT_ALL, 1,
         "chunk=16,feature-block=32,warps=1,splits=2"},
        {CLMGK_VARIANT_SMLK, MAP_FAVOR, 17, 20, CLMGK_DTYPE_BF16, CLMGK_GRADIENT_ALL, 0,
         "chunk=32,feature-block=32,warps=2,splits=4"},
        {CLMGK_VARIANT_LINEAR, MAP_RELU, 33, 64, CLMGK_DTYPE_F32, CLMGK_GRADIENT_ALL, 1,
         "chunk=32,feature-block=64,warps=2,splits=1"},
        {CLMGK_VARIANT_MLK, MAP_ELU1, 17, 8, CLMGK_DTYPE_F32, CLMGK_GRADIENT_ALL, 1,
         "chunk=16,feature-block=16,warps=2,splits=1"},
        {CLMGK_VARIANT_LINEAR, MAP_ELU1, 64, 64, CLMGK_DTYPE_F32, 0, 1, "chunk=16,feature-block=64,warps=2,splits=2"},
        {CLMGK_VARIANT_LFISH, MAP_DPFP, 8, 40, CLMGK_DTYPE_F16, 0, 1, "chunk=32,feature-block=16,warps=4,splits=4"},
        {CLMGK_VARIANT_LINEAR, MAP_ELU1, 64, 64, CLMGK_DTYPE_F32, 0, 0, "chunk=32,feature-block=64,warps=4,splits=2"}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(programs) : 1); n++) {
        clmgk_attention_desc desc = small_desc(programs[n].variant, programs[n].map, 0, 0);
        uint64_t random = n;
        desc.precision = CLMGK_PRECISION_TF32;
        desc.dtype = programs[n].dtype;
        desc.head_size = programs[n].size;
        desc.value_size = programs[n].values;
        desc.causal = programs[n].causal;
        for (size_t shape = n; shape < n + (session->full ? 24 : 3); shape++) {
            set_shape(&desc, shape, &random);
            desc.gradients = 0;
            if (programs[n].gradients != 0) {
                desc.use_state = 1; /* without one, another program */
                desc.gradients = th_all_gradients(&desc);
            }
            TH_PROBLEM problem = make(&desc, shape);
            problem.accumulate = shape % 2 == 1 ? desc.gradients : 0;
            expect_with(session, &problem, CLMGK_ENGINE_MATRIX, programs[n].parameters);
        }
    }
}

/* Only where they may round: their bound holds, and that of f32 does not. */
TH_TEST(matrix_units_round)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_LINEAR, MAP_ELU1, 40, 50);
    th_message message;
    assert_null(th_try_plan(session, &desc, &options, &message));
    desc.precision = CLMGK_PRECISION_TF32;
    TH_PROBLEM problem = make(&desc, 1);
    clmgk_plan *const plan = th_try_plan(session, &desc, &options, &message);
    clmgk_plan_info info = {.struct_size = sizeof(info)};
    assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
    assert_int_equal(info.precision, CLMGK_PRECISION_TF32);
    clmgk_plan_release(plan);
    th_run_pass(session, &problem, TH_FORWARD, &options);
    problem.desc.precision = CLMGK_PRECISION_EXACT;
    TH_REF_ANSWER exact = th_solve(&problem);
    assert_false(clmgk_ref_check(&exact, problem.array[TH_O].values, NULL).ok);
}

/* Few tokens join the state one by one, in f32. */
TH_TEST(matrix_units_have_no_part_in_steps)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_ELU1, 3, 3);
    desc.precision = CLMGK_PRECISION_TF32;
    desc.causal = desc.use_state = desc.use_new_state = 1;
    TH_PROBLEM problem = make(&desc, 1);
    expect_with(session, &problem, CLMGK_ENGINE_MATRIX, NULL);
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

/* Every kind of variant; in full all of them with all maps. The random problems have the others. */
static const struct {
    clmgk_variant variant;
    size_t map;
    int forms;
} backward_programs[] = {{CLMGK_VARIANT_MLK, MAP_ELU1, CAUSAL},
                         {CLMGK_VARIANT_SMLK, MAP_EXP, FULL},
                         {CLMGK_VARIANT_LFISH, MAP_FAVOR, CAUSAL},
                         {CLMGK_VARIANT_LGFISH, MAP_EXP, CAUSAL}};

/* In full, all variants with all maps. */
static void expect_gradients(th_session *session, int32_t unnormalised, size_t first, size_t shapes)
{
    const size_t count = session->full ? TH_COUNT(variants) * MAPS : TH_COUNT(backward_programs);
    for (size_t n = 0; n < count; n++) {
        const clmgk_variant variant = session->full ? variants[n / MAPS] : backward_programs[n].variant;
        clmgk_attention_desc desc = small_desc(variant, session->full ? n % MAPS : backward_programs[n].map, 0, 0);
        desc.gradients = CLMGK_GRADIENT_ALL;
        desc.unnormalised = unnormalised;
        expect_program(session, desc, session->full ? FULL | CAUSAL : backward_programs[n].forms, first,
                       n == 0 || session->full ? shapes : (shapes + 1) / 2, n == 0);
    }
}

TH_TEST(gradients)
{
    expect_gradients(session, 0, 0, 10);
}

/* Storage types round what is added to; heads of V for several heads; packed sequences. */
TH_TEST(gradients_of_half_numbers_in_packed_sequences)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_ELU1, 0, 0);
    desc.dtype = CLMGK_DTYPE_F16;
    desc.sequences = 4;
    desc.gradients = CLMGK_GRADIENT_ALL;
    expect_program(session, desc, CAUSAL, 5, 6, false);
}

/* ---- layouts --------------------------------------------------------------------------------------------------- */

enum { B = 2, N = 37, S = 50, D = 17, E = 8 };

/* Tokens before heads, gaps after each axis, every array at an odd place. */
TH_TEST(strides_and_offsets)
{
    for (size_t n = 0; n < 6; n++) {
        clmgk_attention_desc desc =
            small_desc(n % 2 == 0 ? CLMGK_VARIANT_MLK : CLMGK_VARIANT_LHARD_FISH, MAP_ELU1, N, S);
        const bool mixed = n % 2 == 1;
        const int64_t gap = (int64_t)n, m = desc.components, o_token = 4 * (int64_t)E + gap;
        desc.dtype = mixed ? CLMGK_DTYPE_F32 : th_dtypes[n / 2];
        desc.batch = B;
        desc.heads = 4;
        desc.kv_heads = 2;
        desc.causal = mixed || n < 4;
        const int64_t q_heads = mixed ? m : 4, k_heads = mixed ? m : 2, k_parts = mixed ? 1 : m;
        const int64_t k_head = (D + gap) * k_parts, k_token = k_head * k_heads + gap;
        desc.q = (clmgk_layout){1, N * ((D + gap) * q_heads + gap), D + gap, 0, (D + gap) * q_heads + gap};
        desc.k = (clmgk_layout){1, S * k_token, k_head, D + gap, k_token};
        desc.v = (clmgk_layout){1, S * ((E + gap) * 2), E + gap, 0, (E + gap) * 2};
        desc.o = (clmgk_layout){1, N * o_token, E, 0, o_token};
        TH_PROBLEM problem = make(&desc, n);
        th_offset_arrays(&problem, 2, n % 2);
        expect(session, &problem, n, n == 0);
    }
}

/* ---- states ---------------------------------------------------------------------------------------------------- */

/* The tokens of the part, from number `begin` of the whole on, and what has no tokens. */
static void copy_tokens(th_problem *part, const th_problem *whole, int64_t begin)
{
    for (th_name name = 0; name < TH_ARRAYS; name++) {
        const th_array *const from = &whole->array[name], *const to = &part->array[name];
        if (!th_is_input(name) || !to->used || !from->used)
            continue;
        const int64_t size = to->shape[4], tokens = to->shape[3], all = from->shape[3];
        const int64_t first = tokens == all ? 0 : begin;
        for (int64_t outer = 0; outer < (int64_t)to->count / (tokens * size); outer++)
            memcpy(to->values + outer * tokens * size, from->values + (outer * all + first) * size,
                   (size_t)(tokens * size) * sizeof(double));
    }
}

static void copy_values(th_array *to, const th_array *from)
{
    if (!to->used)
        return;
    assert_int_equal(to->count, from->count);
    memcpy(to->values, from->values, to->count * sizeof(double));
}

/* The whole in parts: each takes the state that the one before has left. O of all, and the last state, go to `whole`.
 */
static void run_in_parts(th_session *session, th_problem *whole, const clmgk_plan_options *options, const int64_t *cut,
                         size_t parts)
{
    TH_PROBLEM before = {0};
    for (size_t p = 0; p < parts; p++) {
        clmgk_attention_desc desc = whole->desc;
        desc.length = desc.length_k = cut[p + 1] - cut[p];
        desc.use_state = p > 0 || whole->desc.use_state;
        desc.q = desc.k = desc.v = desc.o = (clmgk_layout){0};
        th_problem part = th_problem_make(&desc, 1);
        copy_tokens(&part, whole, cut[p]);
        for (size_t n = 0; p > 0 && n < 3; n++)
            copy_values(&part.array[TH_STATE_C + n], &before.array[TH_NEW_STATE_C + n]);
        th_run_pass(session, &part, TH_FORWARD, options);
        const th_array *const from = &part.array[TH_O], *const to = &whole->array[TH_O];
        const int64_t size = to->shape[4], tokens = from->shape[3], all = to->shape[3];
        for (int64_t row = 0; row < (int64_t)from->count / size; row++)
            memcpy(to->values + (row / tokens * all + cut[p] + row % tokens) * size, from->values + row * size,
                   (size_t)size * sizeof(double));
        th_problem_free(&before);
        before = part;
    }
    for (size_t n = 0; n < 3; n++)
        copy_values(&whole->array[TH_NEW_STATE_C + n], &before.array[TH_NEW_STATE_C + n]);
}

/* A first part of 0 tokens, a long one, single tokens, a few: together one causal pass, for all variants and maps. */
TH_TEST(decoding_goes_on_where_a_state_was_left)
{
    static const int64_t cut[] = {0, 35, 36, 37, 41, 60};
    for (size_t n = 0; n < TH_COUNT(variants) + MAPS - 1; n++) {
        const size_t map = n < TH_COUNT(variants) ? MAP_ELU1 : n - TH_COUNT(variants) + 1;
        const clmgk_variant variant = n < TH_COUNT(variants) ? variants[n] : variants[map % 3];
        if (!session->full && (variant == CLMGK_VARIANT_LFISH || variant == CLMGK_VARIANT_LMISH ||
                               (maps[map].feature == CLMGK_FEATURE_DPFP && maps[map].order != 2)))
            continue; /* LGFiSH has all that they have, an order of dpfp what the others have */
        if (n > 7 && !th_takes(session, n, 2))
            continue;
        clmgk_attention_desc desc = small_desc(variant, map, 60, 60);
        desc.batch = 2;
        desc.heads = 4;
        desc.kv_heads = 2;
        desc.causal = 1;
        desc.use_new_state = 1;
        desc.use_state = n % 2 == 1;
        if (n == 0) /* the blocks are whole: tokens join the new state in its place */
            desc.head_size = desc.value_size = 16;
        if (n == 7) /* as with a cache of keys and values in fewer bits */
            set_types(&desc, CLMGK_DTYPE_F32, CLMGK_STORAGE_F16, CLMGK_STORAGE_BF16);
        TH_PROBLEM problem = make(&desc, n);
        if (problem.array[TH_NOISE].used)
            th_fill(&problem, TH_NOISE, 0.0); /* its coordinates count from each part's first row */
        for (size_t e = 0; e < (n == 1 || n == 7 || session->full ? session->engines : 1); e++) {
            clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
            options.engine = session->engine[e];
            options.parameters = chunks(session, &desc, options.engine, n);
            th_run_pass(session, &problem, TH_FORWARD, &options); /* rounds the values */
            TH_REF_ANSWER answer = th_solve(&problem);
            run_in_parts(session, &problem, &options, cut, TH_COUNT(cut) - 1);
            th_check(session, &problem, options.engine, &answer);
        }
    }
}

TH_TEST(many_sequences_advance_in_one_call)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_ELU1, 1, 1);
    desc.batch = 64;
    desc.use_state = desc.use_new_state = 1;
    for (desc.causal = 0; desc.causal < 2; desc.causal++)
        expect_desc(session, &desc, 2, true);
}

/* ---- denominators ---------------------------------------------------------------------------------------------- */

static void expect_zero_rows(const th_problem *problem, int64_t every)
{
    const th_array *const o = &problem->array[TH_O];
    for (size_t n = 0; n < o->count; n++) {
        const int64_t i = (int64_t)n / o->shape[4] % o->shape[3];
        if (i % every == 0)
            assert_true(o->values[n] == 0.0);
    }
}

/* Queries without a positive number have no features under relu: O is 0, without a guard and with one. */
TH_TEST(rows_without_features)
{
    for (size_t n = 0; n < 4; n++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_RELU, N, S);
        desc.causal = 1;
        desc.guard = n / 2 == 1 ? 0.5 : 0.0;
        TH_PROBLEM problem = make(&desc, n);
        const th_array *const q = &problem.array[TH_Q];
        for (size_t i = 0; i < q->count; i++)
            if ((int64_t)i / D % N % 4 == 0)
                q->values[i] = -fabs(q->values[i]);
        expect(session, &problem, n, n == 0);
        expect_zero_rows(&problem, 4);
    }
}

/* Features of queries and keys of e^-38 or so: denominators of 1e-33 have gradients as others have. Of e^-50: they are
 * below the least normal number, and count as 0. */
TH_TEST(small_denominators)
{
    static const double exponent[] = {-38.0, -50.0};
    for (size_t n = 0; n < TH_COUNT(exponent); n++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_ELU1, N, S); /* a program of `gradients` */
        desc.causal = desc.use_state = 1;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = make(&desc, n);
        const th_name of[] = {TH_Q, TH_K};
        for (size_t at = 0; at < TH_COUNT(of); at++)
            for (size_t i = 0; i < problem.array[of[at]].count; i++)
                problem.array[of[at]].values[i] = exponent[n] + 0.5 * problem.array[of[at]].values[i];
        th_scale(&problem, TH_STATE_C, exp(exponent[n]));
        th_scale(&problem, TH_STATE_Z, exp(exponent[n]));
        expect(session, &problem, 0, true);
        if (n == 1)
            expect_zero_rows(&problem, 1);
    }
}

TH_TEST(guard)
{
    static const size_t guarded[] = {MAP_ELU1, MAP_EXP, MAP_FAVOR};
    for (size_t n = 0; n < 2 * TH_COUNT(guarded); n++) {
        clmgk_attention_desc desc = small_desc(variants[guarded[n / 2] % 3], guarded[n / 2], N, S);
        desc.guard = n % 2 == 0 ? 3.0 : 1e-3;
        desc.causal = n % 2 == 0;
        if (session->full || desc.causal || guarded[n / 2] == MAP_EXP)
            expect_desc(session, &desc, n, n == 2);
    }
}

/* The programs of `gradients`. */
TH_TEST(unnormalised)
{
    expect_gradients(session, 1, 6, 3);
}

/* The same rows as with denominators, times these: of any size that f32 holds. Forward programs of `guard`. */
TH_TEST(unnormalised_rows_have_their_size)
{
    static const size_t maps_of[] = {MAP_EXP, MAP_FAVOR};
    for (size_t n = 0; n < 2 * TH_COUNT(maps_of); n++) {
        clmgk_attention_desc desc = small_desc(variants[maps_of[n / 2] % 3], maps_of[n / 2], N, S);
        desc.unnormalised = 1;
        desc.causal = 1;
        TH_PROBLEM problem = make(&desc, n);
        th_scale(&problem, TH_Q, n % 2 == 0 ? 8.0 : 1.0);
        th_scale(&problem, TH_K, n % 2 == 0 ? 8.0 : 1.0);
        expect(session, &problem, 0, n == 2);
    }
}

/* No global head has a part in any row: denominators would be 0. The gradient of the mixing is not. A program of
 * `gradients`. */
TH_TEST(unnormalised_rows_of_nothing)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_LFISH, MAP_FAVOR, N, S);
    desc.causal = desc.use_state = desc.unnormalised = 1;
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM problem = make(&desc, 3);
    th_fill(&problem, TH_MIX, 0.0);
    expect(session, &problem, 0, false);
    expect_zero_rows(&problem, 1);
}

/* relu with an epsilon, which absorbs every second input: such inputs have gradients all the same. */
TH_TEST(epsilon)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_RELU, N, S);
    desc.causal = 1;
    desc.feature_epsilon = 0.25;
    TH_PROBLEM problem = make(&desc, 1);
    static const th_name inputs[] = {TH_Q, TH_K};
    for (size_t n = 0; n < TH_COUNT(inputs); n++)
        for (size_t i = 0; i < problem.array[inputs[n]].count; i += 2)
            problem.array[inputs[n]].values[i] *= 0x1p-40;
    expect(session, &problem, 1, true);
}

/* Signed mixing: denominators of either sign, of which none is near 0. */
TH_TEST(negative_mixing)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_LHARD_FISH, MAP_ELU1, N, S);
    desc.causal = 1;
    TH_PROBLEM problem = make(&desc, 1);
    th_scale(&problem, TH_MIX, -1.0);
    th_set(&problem, TH_MIX, 0, 0, 0, 0, 0, 9.0);
    expect(session, &problem, 1, false);
}

/* ---- large exponents ------------------------------------------------------------------------------------------- */

/* Exponents to +-200, with and without one key at the end whose exponent is 80 above all others: rows before it do not
 * see it, and keep their digits. */
TH_TEST(large_exponents)
{
    for (size_t n = 0; n < 8; n++) {
        if (!session->full && n % 4 == 0) /* without a state: favor */
            continue;
        const size_t map = n % 2 == 0 ? MAP_EXP : MAP_FAVOR;
        clmgk_attention_desc desc = small_desc(map == MAP_FAVOR ? CLMGK_VARIANT_LINEAR
                                               : n < 4          ? CLMGK_VARIANT_SMLK
                                                                : CLMGK_VARIANT_LFISH,
                                               map, 70, 70);
        desc.causal = n < 6;
        desc.use_state = desc.use_new_state = n % 4 >= 2;
        TH_PROBLEM problem = make(&desc, n);
        th_scale(&problem, TH_Q, 30.0);
        th_scale(&problem, TH_K, 30.0);
        if (problem.array[TH_STATE_M].used)
            th_scale(&problem, TH_STATE_M, 40.0);
        for (int64_t d = 0; n < 4 && d < D; d++)
            th_set(&problem, TH_K, 0, 0, 0, 61, d, map == MAP_EXP ? 150.0 : 0.0);
        expect(session, &problem, n, n == 1);
    }
}

/* Adds `size` to one feature of each row of an array; the feature changes after every `turn` rows. */
static void raise_features(th_problem *problem, th_name name, int64_t turn, int64_t features, double size)
{
    const th_array *const array = &problem->array[name];
    const int64_t width = array->shape[TH_RANK - 1];
    for (int64_t row = 0; row < (int64_t)array->count / width; row++)
        array->values[row * width + row / turn % features] += size;
}

/*
 * The large exponents of queries and of keys are in different features: their sums are far below the sums of the
 * maxima. Causal, the features of keys grow again and again, also within chunks.
 */
TH_TEST(exponents_in_different_features)
{
    static const struct {
        clmgk_variant variant;
        int32_t causal;
        bool all;
    } cases[] = {{CLMGK_VARIANT_LINEAR, 1, true}, {CLMGK_VARIANT_LGFISH, 1, false}, {CLMGK_VARIANT_SMLK, 0, false}};
    static const double size[] = {30.0, 110.0};
    for (size_t n = 0; n < TH_COUNT(cases) * TH_COUNT(size); n++) {
        clmgk_attention_desc desc = small_desc(cases[n / 2].variant, MAP_EXP, 70, 70);
        desc.causal = cases[n / 2].causal;
        desc.use_state = desc.use_new_state = 1;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = make(&desc, n);
        raise_features(&problem, TH_Q, 1, 3, size[n % 2]);
        raise_features(&problem, TH_K, 7, 5, size[n % 2]);
        expect(session, &problem, 0, cases[n / 2].all);
    }
}

/* Rows that see little but the small features of a state, near the smallest that it can hold, as well as others do. */
TH_TEST(small_features_of_a_state)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_LINEAR, MAP_EXP, 70, 70); /* a program of the test before */
    desc.causal = desc.use_state = desc.use_new_state = 1;
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM problem = make(&desc, 5);
    const th_array *const q = &problem.array[TH_Q], *const k = &problem.array[TH_K];
    const th_array *const z = &problem.array[TH_STATE_Z], *const c = &problem.array[TH_STATE_C];
    th_scale(&problem, TH_GRAD_O, 1e-6); /* the state's gradient is e^84 times as large */
    for (size_t i = 0; i < k->count; i++)
        k->values[i] -= 200.0;
    for (size_t i = 0; i < q->count; i++)
        q->values[i] += i % D == 2 ? 110.0 : i % D == 5 ? 107.0 : 0.0;
    for (size_t i = 0; i < z->count; i++)
        z->values[i] *= i % D % 3 == 2 ? exp(-84.0) : 1.0;
    for (size_t i = 0; i < c->count; i++)
        c->values[i] *= i / (size_t)c->shape[4] % D % 3 == 2 ? exp(-84.0) : 1.0;
    expect(session, &problem, 0, true);
}

/* A token at a time, through states: what they hold is features up to e^-87 of the largest. */
TH_TEST(states_of_different_features)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_SMLK, MAP_EXP, 60, 60);
    static const int64_t cut[] = {0, 35, 36, 37, 41, 60};
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    desc.batch = 2;
    desc.heads = 4;
    desc.kv_heads = 2;
    desc.causal = desc.use_new_state = 1;
    TH_PROBLEM problem = make(&desc, 1);
    raise_features(&problem, TH_Q, 1, 3, 75.0);
    raise_features(&problem, TH_K, 7, 5, 75.0);
    options.parameters = "chunk=16,feature-block=16,splits=1";
    th_run_pass(session, &problem, TH_FORWARD, &options);
    TH_REF_ANSWER answer = th_solve(&problem);
    run_in_parts(session, &problem, &options, cut, TH_COUNT(cut) - 1);
    th_check(session, &problem, CLMGK_ENGINE_AUTO, &answer);
}

/*
 * A global head whose exponents are far above the others', and that has no part in the heads: p is 0, or the
 * generalised form's relu leaves nothing of it. The gradient of p, which is not 0, grows with the distance, and must
 * fit f32.
 */
TH_TEST(heads_without_weight)
{
    static const double gap[] = {60.0, 80.0, 120.0};
    for (size_t n = 0; n < (session->full ? 5 : 4); n++) {
        const bool generalised = n % 2 == 1;
        clmgk_attention_desc desc =
            small_desc(generalised ? CLMGK_VARIANT_LHARD_GFISH : CLMGK_VARIANT_LHARD_FISH, MAP_EXP, 20, 20);
        desc.use_mix_weight = 0;
        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | (n < 4 ? CLMGK_GRADIENT_MIX : 0);
        TH_PROBLEM problem = make(&desc, n);
        const th_array *const q = &problem.array[TH_Q], *const mix = &problem.array[TH_MIX];
        const size_t parts = (size_t)desc.components;
        for (size_t i = 0; i < q->count; i++)
            q->values[i] += i / (size_t)(q->shape[3] * q->shape[4]) % parts == 0 ? gap[n / 2] : 0.0;
        for (size_t i = 0; i < mix->count; i += parts)
            mix->values[i] = generalised ? -0.5 : 0.0;
        expect(session, &problem, 0, false);
    }
}

/* Nothing but the key that a query sees best: features of favor at inputs of 100; at 1e5 exponents in f32 are wrong by
 * thousands, and rows are means of values all the same. */
TH_TEST(large_inputs_of_favor)
{
    static const double size[] = {100.0, 1e5};
    for (size_t n = 0; n < TH_COUNT(size); n++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_LINEAR, MAP_FAVOR, 70, 70);
        desc.causal = 1;
        for (size_t e = 0; e < session->engines; e++) {
            TH_PROBLEM problem = make(&desc, 3);
            clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
            options.engine = session->engine[e];
            options.parameters = chunks(session, &desc, options.engine, 0);
            th_scale(&problem, TH_Q, size[n]);
            th_scale(&problem, TH_K, size[n]);
            th_fill(&problem, TH_V, 1.5);
            th_run_pass(session, &problem, TH_FORWARD, &options);
            const th_array *const o = &problem.array[TH_O];
            for (size_t i = 0; i < o->count; i++)
                assert_true(fabs(o->values[i] - 1.5) < 1e-5);
        }
    }
}

/* The scale belongs to the state if z or any head's C has a number, and to nothing if all of it is 0. */
TH_TEST(states_without_sums)
{
    for (size_t n = 0; n < 4; n++) { /* the programs of large exponents */
        const clmgk_variant variant = n / 2 == 0 ? CLMGK_VARIANT_SMLK : CLMGK_VARIANT_LFISH;
        clmgk_attention_desc desc = small_desc(variant, MAP_EXP, 70, 70);
        desc.causal = variant == CLMGK_VARIANT_SMLK;
        desc.use_state = desc.use_new_state = 1;
        TH_PROBLEM problem = make(&desc, n);
        const th_array *const c = &problem.array[TH_STATE_C];
        th_fill(&problem, TH_STATE_Z, 0.0);
        th_fill(&problem, TH_STATE_M, n % 2 == 0 ? 9.0 : 200.0);
        for (size_t i = 0; i < (n % 2 == 0 ? (size_t)(c->shape[2] * c->shape[3] * c->shape[4]) : c->count); i++)
            c->values[i] = 0.0;
        expect(session, &problem, 2, false);
    }
}

/* ---- what no row sees ------------------------------------------------------------------------------------------ */

TH_TEST(padding_is_not_read)
{
    for (size_t n = 0; n < 6; n++) {
        clmgk_attention_desc desc =
            small_desc(n % 2 == 0 ? CLMGK_VARIANT_MLK : CLMGK_VARIANT_LHARD_FISH, MAP_ELU1, N, S);
        desc.batch = 2;
        desc.use_lengths = desc.use_lengths_q = 1;
        desc.use_new_state = 1;
        desc.causal = n % 2 == 1 || n >= 2;
        desc.alignment = n >= 4 ? CLMGK_ALIGN_LENGTHS : CLMGK_ALIGN_BOTTOM_RIGHT;
        TH_PROBLEM problem = make(&desc, n);
        for (int64_t b = 0; b < 2; b++) {
            const int64_t keys = b == 0 ? 19 : 0, rows = b == 0 ? 20 : 36;
            th_set(&problem, TH_LENGTHS, b, 0, 0, 0, 0, (double)keys);
            th_set(&problem, TH_LENGTHS_Q, b, 0, 0, 0, 0, (double)rows);
            th_poison(&problem, TH_K, b, keys);
            th_poison(&problem, TH_V, b, keys);
            th_poison(&problem, TH_Q, b, rows);
        }
        expect(session, &problem, n, n == 0);
    }
}

/* Tokens that are not among the keys: the diagonal counts them. However many they are, they take no time. */
TH_TEST(lengths_beyond_the_keys)
{
    clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_ELU1, N, S);
    desc.batch = 4;
    desc.use_lengths = desc.use_new_state = desc.causal = 1;
    desc.alignment = CLMGK_ALIGN_LENGTHS;
    TH_PROBLEM problem = make(&desc, 7);
    static const int32_t beyond[] = {1, N - 3, N + 1};
    for (int64_t b = 0; b < 4; b++)
        th_set(&problem, TH_LENGTHS, b, 0, 0, 0, 0, b < 3 ? (double)(S + beyond[b]) : INT32_MAX);
    expect(session, &problem, 0, true);
}

/* The lane engine's kernels have no blocks of rows: whatever their number is, the program is the same. */
TH_TEST(lengths_share_a_program)
{
    static const int64_t lengths[] = {1, 20, 300};
    size_t first = 0;
    for (size_t n = 0; n < TH_COUNT(lengths) * session->engines; n++) {
        clmgk_attention_desc desc =
            small_desc(CLMGK_VARIANT_MLK, MAP_ELU1, lengths[n / session->engines], lengths[n / session->engines]);
        desc.causal = 1;
        if (session->engine[n % session->engines] != CLMGK_ENGINE_LANE)
            continue;
        clmgk_plan_release(th_plan(session, &desc, CLMGK_ENGINE_LANE, chunks(session, &desc, CLMGK_ENGINE_LANE, 0)));
        first = n < session->engines ? session->program : first;
        assert_int_equal(session->program, first);
    }
}

/* ---- properties ------------------------------------------------------------------------------------------------ */

/* Again and again the same bits, with denominators and new states or without. */
TH_TEST(repeated_runs_are_bit_equal)
{
    for (size_t e = 0; e < session->engines; e++) {
        clmgk_attention_desc desc = small_desc(CLMGK_VARIANT_MLK, MAP_ELU1, 150, 150);
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        options.engine = session->engine[e];
        options.parameters = chunks(session, &desc, options.engine, 1);
        desc.causal = 1;
        desc.use_new_state = 1;
        TH_PROBLEM one = make(&desc, 1), again = make(&desc, 1);
        th_run_pass(session, &one, TH_FORWARD, &options);
        for (int run = 0; run < 3; run++) {
            again.array[TH_DENOMINATOR].used = run == 0;
            th_run_pass(session, &again, TH_FORWARD, &options);
            th_expect_equal_bits(&one, &again, TH_O);
            th_expect_equal_bits(&one, &again, TH_NEW_STATE_C);
        }
    }
}
