/* SPDX-License-Identifier: Apache-2.0 */
/* States of many sequences in a pool: prompts and single tokens in one call, in place. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 5, PLACES = 8, NOWHERE = 1 << 30 };

/* New and old sequences, one without tokens, one whose state is not kept, and a number that is no place. */
static const int64_t tokens[SEQUENCES] = {1, 37, 0, 18, 2};
static const int32_t places_from[SEQUENCES] = {3, -1, 5, 0, NOWHERE}, places_to[SEQUENCES] = {3, 1, 6, -1, 7};

/* ---- a call ---------------------------------------------------------------------------------------------------- */

static bool is_state(size_t name)
{
    return name >= TH_STATE_C && name <= TH_STATE_M;
}

/* An array's numbers as the device has them: f32 or int32. */
static void *stored(const th_array *array)
{
    int32_t *const ints = calloc(array->count + 1, sizeof(*ints));
    assert_non_null(ints);
    for (size_t n = 0; n < array->count; n++) {
        const float x = (float)array->values[n];
        if (array->integer)
            ints[n] = (int32_t)array->values[n];
        else
            memcpy(&ints[n], &x, sizeof(x));
    }
    return ints;
}

static cl_mem make_buffer(const th_session *session, const th_array *array)
{
    cl_int code = CL_SUCCESS;
    void *const words = stored(array);
    const cl_mem memory = clCreateBuffer(session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                         (array->count + 1) * sizeof(float), words, &code);
    assert_int_equal(code, CL_SUCCESS);
    free(words);
    return memory;
}

static void read_values(const th_session *session, cl_mem memory, th_array *array)
{
    float *const floats = calloc(array->count + 1, sizeof(*floats));
    assert_non_null(floats);
    assert_int_equal(
        clEnqueueReadBuffer(session->queue, memory, CL_TRUE, 0, array->count * sizeof(*floats), floats, 0, NULL, NULL),
        CL_SUCCESS);
    for (size_t n = 0; n < array->count; n++)
        array->values[n] = (double)floats[n];
    free(floats);
}

/* Runs the problem in place: new states go to the pool of the old ones, and are its values afterwards. */
static void run_in_place(th_session *session, th_problem *whole, const clmgk_plan_options *options)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    cl_mem memory[TH_ARRAYS] = {NULL};
    cl_int code = CL_SUCCESS;
    clmgk_plan *const plan = th_plan_of(session, &whole->desc, options);
    for (size_t n = 0; n < TH_ARRAYS; n++) {
        if (!whole->array[n].used)
            continue;
        const bool in_place = n >= TH_NEW_STATE_C && n <= TH_NEW_STATE_M;
        memory[n] = in_place ? NULL : make_buffer(session, &whole->array[n]);
        clmgk_array_buffer(&args, (clmgk_array)n)->memory = in_place ? memory[n - 3] : memory[n];
    }
    const size_t workspace = clmgk_plan_workspace_size(plan);
    args.workspace.memory = clCreateBuffer(session->cl, CL_MEM_READ_WRITE, workspace + 4, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    th_expect_ok(clmgk_enqueue_forward(plan, session->queue, &args, 0, NULL, NULL, &th_error));
    for (size_t n = 0; n < TH_ARRAYS; n++) {
        if (memory[n] == NULL)
            continue;
        if (n == TH_O || n == TH_DENOMINATOR || is_state(n))
            read_values(session, memory[n], &whole->array[n]);
        clReleaseMemObject(memory[n]);
    }
    clReleaseMemObject(args.workspace.memory);
    clmgk_plan_release(plan);
}

/* ---- its sequences --------------------------------------------------------------------------------------------- */

/* Copies the rows of a sequence from an array of all to its own, or back. */
static void copy_rows(const th_array *all, const th_array *own, int64_t first)
{
    const int64_t size = own->shape[4], rows = own->shape[3], of_all = all->shape[3];
    for (int64_t outer = 0; rows > 0 && outer < (int64_t)own->count / (rows * size); outer++)
        memcpy(own->values + outer * rows * size, all->values + (outer * of_all + first) * size,
               (size_t)(rows * size) * sizeof(double));
}

static void copy_place(const th_array *pool, const th_array *own, int32_t place)
{
    if (own->used)
        memcpy(own->values, pool->values + (size_t)place * own->count, own->count * sizeof(double));
}

static bool is_place(int32_t place)
{
    return place >= 0 && place < PLACES;
}

/* Sequence t alone, before the call. */
static th_problem sequence_of(const th_problem *whole, size_t t, int64_t first)
{
    clmgk_attention_desc desc = whole->desc;
    desc.sequences = desc.state_pool = 0;
    desc.batch = 1;
    desc.length = tokens[t];
    desc.length_k = th_keys(tokens[t]);
    desc.use_state = is_place(places_from[t]);
    desc.use_new_state = is_place(places_to[t]);
    desc.resolved = 0;
    desc.q = desc.k = desc.v = desc.o = (clmgk_layout){0};
    th_problem own = th_problem_make(&desc, 1);
    for (size_t n = 0; n < TH_ARRAYS; n++)
        if (own.array[n].used && whole->array[n].used && own.array[n].count == whole->array[n].count)
            memcpy(own.array[n].values, whole->array[n].values, own.array[n].count * sizeof(double));
    for (size_t n = TH_Q; n <= TH_V; n++)
        copy_rows(&whole->array[n], &own.array[n], first);
    for (size_t n = TH_STATE_C; n <= TH_STATE_M && desc.use_state; n++)
        copy_place(&whole->array[n], &own.array[n], places_from[t]);
    return own;
}

/* Each sequence against the reference; other places are as before. */
static void check(th_session *session, const th_problem *before, const th_problem *after, clmgk_engine engine)
{
    for (size_t t = 0, first = 0; t < SEQUENCES; first += (size_t)tokens[t++]) {
        TH_PROBLEM own = sequence_of(before, t, (int64_t)first);
        copy_rows(&after->array[TH_O], &own.array[TH_O], (int64_t)first);
        copy_rows(&after->array[TH_DENOMINATOR], &own.array[TH_DENOMINATOR], (int64_t)first);
        for (size_t n = 0; n < 3 && own.desc.use_new_state; n++)
            copy_place(&after->array[TH_STATE_C + n], &own.array[TH_NEW_STATE_C + n], places_to[t]);
        TH_REF_ANSWER answer = th_solve(&own);
        th_check(session, &own, engine, &answer);
    }
    for (int32_t place = 0; place < PLACES; place++) {
        bool written = false;
        for (size_t t = 0; t < SEQUENCES; t++)
            written = written || places_to[t] == place;
        for (size_t n = TH_STATE_C; !written && n <= TH_STATE_M && before->array[n].used; n++) {
            const size_t size = before->array[n].count / PLACES;
            assert_memory_equal(before->array[n].values + (size_t)place * size,
                                after->array[n].values + (size_t)place * size, size * sizeof(double));
        }
    }
}

static void expect_pool(th_session *session, clmgk_attention_desc desc, size_t engine, const char *parameters)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = session->engine[engine];
    options.parameters = parameters;
    desc.state_pool = PLACES;
    desc.use_state = desc.use_new_state = 1;
    desc.sequences = SEQUENCES;
    desc.length = 0;
    for (size_t t = 0; t < SEQUENCES; t++)
        desc.length += tokens[t];
    desc.length_k = desc.length;
    TH_PROBLEM before = th_problem_make(&desc, 5);
    th_keep_sums(&before);
    double offset = 0.0;
    for (size_t t = 0; t < SEQUENCES; t++) {
        before.array[TH_STATE_SLOTS].values[t] = places_from[t];
        before.array[TH_NEW_STATE_SLOTS].values[t] = places_to[t];
        offset += (double)tokens[t];
        before.array[TH_OFFSETS].values[t + 1] = offset;
    }
    th_round_values(session, &before, TH_FORWARD);
    TH_PROBLEM after = th_problem_make(&desc, 5);
    for (th_name name = 0; name < TH_ARRAYS; name++)
        th_copy_values(&after, &before, name);
    run_in_place(session, &after, &options);
    check(session, &before, &after, options.engine);
}

/* ---- tests ----------------------------------------------------------------------------------------------------- */

/* States that grow in their places; states that several work-groups read, with scales and mixed heads; all keys of a
 * sequence for each of its rows; the other engine. */
TH_TEST(prompts_and_tokens_in_one_call)
{
    static const struct {
        clmgk_variant variant;
        clmgk_feature feature;
        int64_t size;
        int32_t causal;
        const char *parameters;
        size_t engine;
    } cases[] = {{CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_ELU1, 16, 1, "chunk=16,splits=1", 0},
                 {CLMGK_VARIANT_LHARD_FISH, CLMGK_FEATURE_EXP, 0, 1, "chunk=16,feature-block=16,splits=2", 0},
                 {CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_ELU1, 16, 1, "chunk=16,splits=2", 1},
                 {CLMGK_VARIANT_MLK, CLMGK_FEATURE_ELU1, 0, 0, "chunk=16,feature-block=16,splits=2", 0},
                 {CLMGK_VARIANT_SMLK, CLMGK_FEATURE_FAVOR, 0, 1, "chunk=16,feature-block=16,splits=1", 0},
                 {CLMGK_VARIANT_LHARD_FISH, CLMGK_FEATURE_EXP, 0, 1, "chunk=16,feature-block=16,splits=1", 1}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(cases) : 3); n++) {
        clmgk_attention_desc desc = th_small_desc(cases[n].variant, 1, 1);
        if (cases[n].engine >= session->engines)
            continue;
        desc.feature = cases[n].feature;
        desc.features = desc.feature == CLMGK_FEATURE_FAVOR ? 21 : 0;
        desc.causal = cases[n].causal;
        if (cases[n].size > 0)
            desc.head_size = desc.value_size = cases[n].size;
        expect_pool(session, desc, cases[n].engine, cases[n].parameters);
    }
}

TH_HOST_TEST(places_are_checked)
{
    static const struct {
        int32_t from[3], to[3], one_pool;
        const char *field, *value; /* NULL: legal */
    } cases[] = {{{0, -1, 2}, {0, 1, 2}, 1, NULL, NULL},
                 {{0, -1, 1}, {1, 2, -1}, 0, NULL, NULL},
                 {{0, -1, 1}, {1, 2, -1}, 1, "state_slots[2]", "1"},
                 {{0, 0, 0}, {-1, -1, -1}, 1, NULL, NULL},
                 {{0, 3, 1}, {0, 1, 2}, 0, "state_slots[1]", "3"},
                 {{0, -2, 1}, {0, 1, 2}, 0, "state_slots[1]", "-2"},
                 {{0, 1, 2}, {0, 1, NOWHERE}, 0, "new_state_slots[2]", "1073741824"},
                 {{0, 1, 2}, {1, 0, 1}, 0, "new_state_slots[2]", "1"}};
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_LINEAR, 9, 9);
    desc.sequences = desc.state_pool = 3;
    desc.use_state = desc.use_new_state = 1;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        const clmgk_status status =
            clmgk_check_state_slots(&desc, cases[n].from, cases[n].to, cases[n].one_pool, &th_error);
        if (cases[n].field)
            th_expect_refusal(status, CLMGK_ERROR_INVALID_VALUE, cases[n].field, cases[n].value);
        else
            th_expect_ok(status);
    }
    th_expect_refusal(clmgk_check_state_slots(&desc, NULL, cases[0].to, 0, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "state_slots", "NULL");
    desc.use_state = 0;
    th_expect_ok(clmgk_check_state_slots(&desc, NULL, cases[0].to, 1, &th_error));
    desc.state_pool = 0;
    th_expect_error(clmgk_check_state_slots(&desc, NULL, cases[0].to, 0, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "state_pool");
}

TH_HOST_TEST(refused_pools)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_LINEAR, 9, 9);
    desc.state_pool = -1;
    desc.use_state = 1;
    th_expect_refusal(clmgk_attention_validate(&desc, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "state_pool", "-1");
    desc.state_pool = 3;
    desc.gradients = CLMGK_GRADIENT_Q;
    th_expect_error(clmgk_attention_validate(&desc, NULL, &th_error), CLMGK_ERROR_UNSUPPORTED, "gradients");
    desc.gradients = 0;
    th_expect_ok(clmgk_attention_validate(&desc, NULL, &th_error));
    desc.use_state = 0;
    th_expect_refusal(clmgk_attention_validate(&desc, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "state_pool", "3");
    desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 9, 9);
    desc.state_pool = 3;
    th_expect_refusal(clmgk_attention_validate(&desc, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "state_pool", "3");
}
