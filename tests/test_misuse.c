/* SPDX-License-Identifier: Apache-2.0 */
/* Every misuse of every public call of attention.h: the status, a message that names what is wrong and its value,
 * outputs and event untouched. */
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields of a structure, changed by data ---------------------------------------------------------------------- */

typedef struct change {
    size_t offset;
    size_t size; /* 0: no change; a double where `real` is not 0 */
    int64_t value;
    double real;
} change;

#define DESC(field, number)                                                                                            \
    {                                                                                                                  \
        offsetof(clmgk_attention_desc, field), sizeof(((clmgk_attention_desc *)0)->field), (number), 0.0               \
    }
#define DESC_REAL(field, number)                                                                                       \
    {                                                                                                                  \
        offsetof(clmgk_attention_desc, field), sizeof(double), 0, (number)                                             \
    }

static void apply(void *structure, const change *changes, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        unsigned char *const field = (unsigned char *)structure + changes[n].offset;
        const int32_t narrow = (int32_t)changes[n].value;
        if (changes[n].real != 0.0)
            memcpy(field, &changes[n].real, sizeof(double));
        else if (changes[n].size == sizeof(int64_t))
            memcpy(field, &changes[n].value, sizeof(int64_t));
        else if (changes[n].size == sizeof(int32_t))
            memcpy(field, &narrow, sizeof(int32_t));
    }
}

static clmgk_attention_desc good_desc(void)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.heads = 4;
    desc.length = 5;
    desc.length_k = 6;
    desc.head_size = 8;
    return desc;
}

static void expect_error(clmgk_status status, clmgk_status expected, const clmgk_error *error, const char *field,
                         const char *value)
{
    if (status != expected || error->status != expected || !th_has_word(error->message, field) ||
        !strstr(error->message, value) || strchr(error->message, '\n'))
        fail_msg("%s \"%s\": expected %s with \"%s\" and \"%s\"", clmgk_status_name(status), error->message,
                 clmgk_status_name(expected), field, value);
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

typedef struct bad_desc {
    change changes[4];
    clmgk_status status;
    const char *field; /* in the message */
    const char *value;
} bad_desc;

#define VALUE CLMGK_ERROR_INVALID_VALUE
#define SHAPE CLMGK_ERROR_INVALID_SHAPE
#define BIG   ((int64_t)1 << 40)

static const bad_desc bad_descs[] = {
    {{DESC(struct_size, 0)}, VALUE, "struct_size", "0"},
    {{DESC(variant, 4)}, VALUE, "variant", "4"},
    {{DESC(variant, -1)}, VALUE, "variant", "-1"},
    {{DESC(dtype, 3)}, VALUE, "dtype", "3"},
    {{DESC(score, 3)}, VALUE, "score", "3"},
    {{DESC(score, CLMGK_SCORE_GAUSSIAN)}, VALUE, "score", "2"},
    {{DESC(variant, CLMGK_VARIANT_GAUSSIAN), DESC(score, CLMGK_SCORE_DOT)}, VALUE, "score", "1"},
    {{DESC(estep, 2)}, VALUE, "estep", "2"},
    {{DESC(batch, -1)}, VALUE, "batch", "-1"},
    {{DESC(heads, -2)}, VALUE, "heads", "-2"},
    {{DESC(kv_heads, -1)}, VALUE, "kv_heads", "-1"},
    {{DESC(kv_heads, 3)}, SHAPE, "kv_heads", "3"},
    {{DESC(kv_heads, 8)}, SHAPE, "kv_heads", "8"},
    {{DESC(components, -1)}, VALUE, "components", "-1"},
    {{DESC(components, 2)}, VALUE, "components", "2"},
    {{DESC(variant, CLMGK_VARIANT_MGK), DESC(components, 1025)}, VALUE, "components", "1025"},
    {{DESC(length, -1)}, VALUE, "length", "-1"},
    {{DESC(length_k, -7)}, VALUE, "length_k", "-7"},
    {{DESC(head_size, 0)}, VALUE, "head_size", "0"},
    {{DESC(head_size, -1)}, VALUE, "head_size", "-1"},
    {{DESC(head_size, 513)}, VALUE, "head_size", "513"},
    {{DESC(value_size, -1)}, VALUE, "value_size", "-1"},
    {{DESC(value_size, 513)}, VALUE, "value_size", "513"},
    {{DESC(prior_shape, 4)}, VALUE, "prior_shape", "4"},
    {{DESC(prior_shape, CLMGK_PRIOR_M)}, VALUE, "prior_shape", "softmax"},
    {{DESC(variance_shape, 3)}, VALUE, "variance_shape", "3"},
    {{DESC_REAL(variance, -1.5)}, VALUE, "variance", "-1.5"},
    {{DESC_REAL(variance, (double)NAN)}, VALUE, "variance", "nan"},
    {{DESC_REAL(variance, (double)INFINITY)}, VALUE, "variance", "inf"},
    {{DESC_REAL(variance, 1e-50)}, VALUE, "variance", "1e-50"},
    {{DESC(variance_shape, CLMGK_VARIANCE_M), DESC_REAL(variance, 2.0)}, VALUE, "variance", "2"},
    {{DESC(causal, 2)}, VALUE, "causal", "2"},
    {{DESC(causal, -1)}, VALUE, "causal", "-1"},
    {{DESC(alignment, 3)}, VALUE, "alignment", "3"},
    {{DESC(alignment, CLMGK_ALIGN_LENGTHS)}, VALUE, "alignment", "use_lengths"},
    {{DESC(use_lengths, 2)}, VALUE, "use_lengths", "2"},
    {{DESC(use_lengths_q, -1)}, VALUE, "use_lengths_q", "-1"},
    {{DESC(q.strided, 2)}, VALUE, "q.strided", "2"},
    {{DESC(q.strided, 1), DESC(q.token, -8)}, SHAPE, "q.token", "-8"},
    {{DESC(k.strided, 1), DESC(k.head, -1)}, SHAPE, "k.head", "-1"},
    {{DESC(v.strided, 1), DESC(v.batch, -1)}, SHAPE, "v.batch", "-1"},
    {{DESC(o.strided, 1), DESC(o.token, 8), DESC(o.head, 0)}, SHAPE, "o", "0"},
    {{DESC(o.strided, 1), DESC(o.token, 7), DESC(o.head, 64)}, SHAPE, "o", "7"},
    {{DESC(lse.strided, 1), DESC(lse.token, 1), DESC(lse.head, 4)}, SHAPE, "lse", "4"},
    {{DESC(batch, BIG), DESC(heads, BIG)}, CLMGK_ERROR_OVERFLOW, "", ""},
    {{DESC(length, BIG), DESC(batch, BIG)}, CLMGK_ERROR_OVERFLOW, "", ""},
    {{DESC(length, BIG)}, CLMGK_ERROR_OVERFLOW, "length", "1099511627776"},
    {{DESC(length_k, INT64_MAX)}, CLMGK_ERROR_OVERFLOW, "length_k", "9223372036854775807"},
    {{DESC(k.strided, 1), DESC(k.token, INT64_MAX / 2), DESC(length_k, 9)}, CLMGK_ERROR_OVERFLOW, "k", ""},
};

static void bad_descriptors(void **state)
{
    th_session *const session = *state;
    for (size_t n = 0; n < TH_COUNT(bad_descs); n++) {
        const bad_desc *const bad = &bad_descs[n];
        clmgk_attention_desc desc = good_desc();
        clmgk_attention_desc resolved = good_desc();
        clmgk_plan *plan = NULL;
        clmgk_error error = {0};
        apply(&desc, bad->changes, TH_COUNT(bad->changes));
        expect_error(clmgk_attention_validate(&desc, &resolved, &error), bad->status, &error, bad->field, bad->value);
        assert_int_equal(clmgk_attention_validate(&desc, NULL, NULL), bad->status);
        error = (clmgk_error){0};
        expect_error(clmgk_plan_create(session->context, &desc, NULL, &plan, &error), bad->status, &error, bad->field,
                     bad->value);
        assert_null(plan);
    }
}

static void defaults_are_filled_in(void **state)
{
    (void)state;
    const clmgk_attention_desc desc = good_desc();
    clmgk_attention_desc resolved;
    clmgk_error error = {.message = "as it was"};
    assert_int_equal(clmgk_attention_validate(&desc, &resolved, &error), CLMGK_OK);
    assert_string_equal(error.message, "as it was");
    assert_int_equal(resolved.batch, 1);
    assert_int_equal(resolved.kv_heads, 4);
    assert_int_equal(resolved.components, 1);
    assert_int_equal(resolved.value_size, 8);
    assert_int_equal(resolved.score, CLMGK_SCORE_DOT);
    assert_true(resolved.variance == sqrt(8.0));
    assert_true(resolved.q.strided == 1 && resolved.q.token == 8 && resolved.q.head == 40 && resolved.q.batch == 160);
    assert_true(resolved.k.token == 8 && resolved.k.head == 48 && resolved.lse.token == 1 && resolved.lse.head == 5);

    clmgk_attention_desc mixture = good_desc();
    mixture.variant = CLMGK_VARIANT_MGK;
    assert_int_equal(clmgk_attention_validate(&mixture, &mixture, &error), CLMGK_OK); /* in place */
    assert_true(mixture.components == 2 && mixture.score == CLMGK_SCORE_GAUSSIAN);
    assert_true(mixture.k.component == 48 && mixture.k.head == 96);

    assert_int_equal(clmgk_attention_validate(&mixture, &mixture, &error), CLMGK_OK); /* and again */
    expect_error(clmgk_attention_validate(NULL, NULL, &error), VALUE, &error, "desc", "NULL");
}

/* A caller with a newer, longer structure: taken if it asks for nothing that this library does not know. */
static void newer_callers(void **state)
{
    (void)state;
    struct {
        clmgk_attention_desc known;
        int64_t added[2];
    } newer = {good_desc(), {0, 0}};
    clmgk_attention_desc resolved;
    clmgk_error error = {0};
    newer.known.struct_size = sizeof(newer);
    assert_int_equal(clmgk_attention_validate(&newer.known, &resolved, &error), CLMGK_OK);
    assert_int_equal(resolved.struct_size, sizeof(resolved));
    newer.added[1] = 1;
    expect_error(clmgk_attention_validate(&newer.known, &resolved, &error), VALUE, &error, "struct_size", "");
    newer.known.struct_size = sizeof(resolved) - 1; /* there is no older one than the first */
    expect_error(clmgk_attention_validate(&newer.known, &resolved, &error), VALUE, &error, "struct_size", "");
    newer.known.struct_size = SIZE_MAX;
    expect_error(clmgk_attention_validate(&newer.known, &resolved, &error), VALUE, &error, "struct_size", "");
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static void bad_plan_arguments(void **state)
{
    th_session *const session = *state;
    const clmgk_attention_desc desc = good_desc();
    clmgk_plan *plan = NULL;
    clmgk_error error = {0};
    expect_error(clmgk_plan_create(NULL, &desc, NULL, &plan, &error), VALUE, &error, "context", "NULL");
    expect_error(clmgk_plan_create(session->context, NULL, NULL, &plan, &error), VALUE, &error, "desc", "NULL");
    expect_error(clmgk_plan_create(session->context, &desc, NULL, NULL, &error), VALUE, &error, "out", "NULL");
    assert_int_equal(clmgk_plan_create(session->context, NULL, NULL, &plan, NULL), VALUE);

    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.struct_size = 0;
    expect_error(clmgk_plan_create(session->context, &desc, &options, &plan, &error), VALUE, &error, "struct_size",
                 "0");
    options = (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    options.engine = (clmgk_engine)9;
    expect_error(clmgk_plan_create(session->context, &desc, &options, &plan, &error), VALUE, &error, "engine", "9");
    assert_null(plan);
}

/* Each parameter of a plan by its own name with values that cannot be, and text that is no list. */
static void bad_parameters(void **state)
{
    th_session *const session = *state;
    static const char *const texts[] = {"nothing=1", "nothing", "=1", ",", "nothing=", "a=1,b=2"};
    static const char *const values[] = {"0", "-1", "1000000", "x", "1x", "", "99999999999999999999"};
    const clmgk_attention_desc desc = good_desc();
    for (size_t e = 0; e < session->engines; e++) {
        clmgk_plan *const good = th_plan(session, &desc, session->engine[e], NULL);
        clmgk_plan_info info = {0};
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        clmgk_plan *plan = NULL;
        clmgk_error error = {0};
        options.engine = session->engine[e];
        assert_int_equal(clmgk_plan_get_info(good, &info, &error), CLMGK_OK);
        clmgk_plan_release(th_plan(session, &desc, session->engine[e], info.parameters)); /* its own are accepted */
        for (size_t n = 0; n < TH_COUNT(texts); n++) {
            options.parameters = texts[n];
            expect_error(clmgk_plan_create(session->context, &desc, &options, &plan, &error), VALUE, &error,
                         "parameters", "");
            assert_null(plan);
        }
        for (size_t n = 0; n < TH_COUNT(values); n++) {
            char text[128];
            const int name = (int)strcspn(info.parameters, "=");
            assert_in_range(name, 1, 64);
            snprintf(text, sizeof(text), "%.*s=%s", name, info.parameters, values[n]);
            options.parameters = text;
            expect_error(clmgk_plan_create(session->context, &desc, &options, &plan, &error), VALUE, &error,
                         "parameters", values[n]);
            assert_null(plan);
        }
        clmgk_plan_release(good);
    }
}

static void plan_queries(void **state)
{
    th_session *const session = *state;
    const clmgk_attention_desc desc = good_desc();
    clmgk_plan *const plan = th_plan(session, &desc, CLMGK_ENGINE_AUTO, NULL);
    clmgk_plan_info info = {0};
    clmgk_error error = {0};
    expect_error(clmgk_plan_get_info(NULL, &info, &error), VALUE, &error, "plan", "NULL");
    expect_error(clmgk_plan_get_info(plan, NULL, &error), VALUE, &error, "info", "NULL");
    assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
    assert_int_equal(info.engine, session->info.engine);
    assert_int_equal(info.workspace_bytes, clmgk_plan_workspace_size(plan));
    assert_true(info.parameters && strchr(info.parameters, '=') && info.options && info.kernel && info.kernel[0]);
    assert_int_equal(clmgk_plan_workspace_size(NULL), 0);
    clmgk_plan_release(plan);
    clmgk_plan_release(NULL);
}

/* ---- enqueue ----------------------------------------------------------------------------------------------------- */

/* A problem that has every array, its plan, and a second context with its own queue and buffer. */
typedef struct fixture {
    th_session *session;
    th_problem problem;
    th_device device;
    clmgk_plan *plan;
    cl_context other;
    cl_command_queue other_queue;
    cl_mem other_memory;
} fixture;

static fixture open_fixture(th_session *session)
{
    const clmgk_attention_desc desc = th_full_desc();
    fixture f = {.session = session, .problem = th_problem_make(&desc, 1)};
    cl_int code = CL_SUCCESS;
    f.plan = th_plan(session, &f.problem.desc, CLMGK_ENGINE_AUTO, NULL);
    f.device = th_upload(session, &f.problem, clmgk_plan_workspace_size(f.plan));
    f.other = clCreateContext(NULL, 1, &session->info.device_id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    f.other_queue = clCreateCommandQueue(f.other, session->info.device_id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    f.other_memory = clCreateBuffer(f.other, CL_MEM_READ_WRITE, 65536, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    return f;
}

static void close_fixture(fixture *f)
{
    th_device_free(&f->device);
    th_problem_free(&f->problem);
    clmgk_plan_release(f->plan);
    assert_int_equal(clReleaseMemObject(f->other_memory), CL_SUCCESS);
    assert_int_equal(clReleaseCommandQueue(f->other_queue), CL_SUCCESS);
    assert_int_equal(clReleaseContext(f->other), CL_SUCCESS);
}

typedef struct enqueue_call {
    clmgk_plan *plan;
    cl_command_queue queue;
    const clmgk_attention_args *args;
    cl_uint num_wait;
    const cl_event *wait_list;
} enqueue_call;

static void expect_refused(fixture *f, const enqueue_call *call, clmgk_status status, const char *field,
                           const char *value)
{
    clmgk_error error = {0};
    cl_event unset = (cl_event)(uintptr_t)f; /* any pointer that no event has */
    cl_event event = unset;
    expect_error(
        clmgk_enqueue_forward(call->plan, call->queue, call->args, call->num_wait, call->wait_list, &event, &error),
        status, &error, field, value);
    assert_ptr_equal(event, unset);
    assert_int_equal(
        clmgk_enqueue_forward(call->plan, call->queue, call->args, call->num_wait, call->wait_list, NULL, NULL),
        status);
    assert_int_equal(clFinish(f->session->queue), CL_SUCCESS);
    th_expect_untouched(f->session, &f->device);
}

static void bad_enqueue_arguments(void **state)
{
    fixture f = open_fixture(*state);
    cl_event none = NULL;
    const enqueue_call good = {f.plan, f.session->queue, &f.device.args, 0, NULL};
    enqueue_call call = good;
    call.plan = NULL;
    expect_refused(&f, &call, VALUE, "plan", "NULL");
    call = good;
    call.queue = NULL;
    expect_refused(&f, &call, VALUE, "queue", "");
    call.queue = f.other_queue;
    expect_refused(&f, &call, VALUE, "queue", "context");
    call = good;
    call.args = NULL;
    expect_refused(&f, &call, VALUE, "args", "NULL");
    call = good;
    call.num_wait = 1;
    expect_refused(&f, &call, VALUE, "wait_list", "");
    call.wait_list = &none;
    expect_refused(&f, &call, VALUE, "wait_list", "");
    call.num_wait = 0;
    expect_refused(&f, &call, VALUE, "wait_list", "");

    cl_int code = CL_SUCCESS;
    cl_event foreign = clCreateUserEvent(f.other, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(clSetUserEventStatus(foreign, CL_COMPLETE), CL_SUCCESS); /* or an acceptance would never end */
    call.num_wait = 1;
    call.wait_list = &foreign;
    expect_refused(&f, &call, VALUE, "wait_list", "context");
    assert_int_equal(clReleaseEvent(foreign), CL_SUCCESS);

    clmgk_attention_args args = f.device.args;
    args.struct_size = 0;
    call = good;
    call.args = &args;
    expect_refused(&f, &call, VALUE, "struct_size", "0");
    close_fixture(&f);
}

#define BUFFER(field)                                                                                                  \
    {                                                                                                                  \
        offsetof(clmgk_attention_args, field), #field                                                                  \
    }

static const struct {
    size_t offset;
    const char *name;
} buffers[] = {BUFFER(q),        BUFFER(k),     BUFFER(v),       BUFFER(o),         BUFFER(prior),
               BUFFER(variance), BUFFER(shift), BUFFER(lengths), BUFFER(lengths_q), BUFFER(lse)};

/* Each array missing, of another context, one element too short, with an offset that overflows. */
static void bad_buffers(void **state)
{
    fixture f = open_fixture(*state);
    for (size_t n = 0; n < TH_COUNT(buffers); n++) {
        clmgk_attention_args args = f.device.args;
        clmgk_buffer *const buffer = (clmgk_buffer *)(void *)((unsigned char *)&args + buffers[n].offset);
        const clmgk_buffer good = *buffer;
        const enqueue_call call = {f.plan, f.session->queue, &args, 0, NULL};
        size_t bytes = 0;
        assert_int_equal(clGetMemObjectInfo(good.memory, CL_MEM_SIZE, sizeof(bytes), &bytes, NULL), CL_SUCCESS);

        buffer->memory = NULL;
        if (strcmp(buffers[n].name, "lse") != 0)
            expect_refused(&f, &call, CLMGK_ERROR_INVALID_BUFFER, buffers[n].name, "");
        buffer->memory = f.other_memory;
        expect_refused(&f, &call, CLMGK_ERROR_INVALID_BUFFER, buffers[n].name, "context");
        *buffer = good;
        static const uint64_t far[] = {1, 1000, UINT64_MAX / 4, UINT64_MAX};
        for (size_t k = 0; k < TH_COUNT(far); k++) {
            /* 320 bytes of canaries lie behind the last element: 80 elements of 4 bytes are the last good offset */
            buffer->offset = far[k] > 1000 ? far[k] : good.offset + 80 + far[k];
            expect_refused(&f, &call, CLMGK_ERROR_INVALID_BUFFER, buffers[n].name, "");
        }
    }
    /* the largest offset that fits is no error */
    clmgk_attention_args args = f.device.args;
    clmgk_error error = {0};
    args.q.offset += 80;
    assert_int_equal(clmgk_enqueue_forward(f.plan, f.session->queue, &args, 0, NULL, NULL, &error), CLMGK_OK);
    assert_int_equal(clFinish(f.session->queue), CL_SUCCESS);
    close_fixture(&f);
}

/* ---- empty problems ---------------------------------------------------------------------------------------------- */

/* No queries: nothing is written, and the event comes all the same. */
static void no_queries(void **state)
{
    th_session *const session = *state;
    for (size_t e = 0; e < session->engines; e++) {
        const clmgk_attention_desc desc = {.length = 0, .length_k = 6, .head_size = 8};
        th_problem problem = th_problem_make(&desc, 1);
        clmgk_plan *const plan = th_plan(session, &problem.desc, session->engine[e], NULL);
        th_device device = th_upload(session, &problem, clmgk_plan_workspace_size(plan));
        clmgk_error error = {0};
        cl_event event = NULL;
        assert_int_equal(clmgk_enqueue_forward(plan, session->queue, &device.args, 0, NULL, &event, &error), CLMGK_OK);
        assert_non_null(event);
        assert_int_equal(clWaitForEvents(1, &event), CL_SUCCESS);
        th_expect_untouched(session, &device);
        assert_int_equal(clReleaseEvent(event), CL_SUCCESS);
        th_device_free(&device);
        clmgk_plan_release(plan);
        th_problem_free(&problem);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_descriptors),
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(newer_callers),
        cmocka_unit_test(bad_plan_arguments),
        cmocka_unit_test(bad_parameters),
        cmocka_unit_test(plan_queries),
        cmocka_unit_test(bad_enqueue_arguments),
        cmocka_unit_test(bad_buffers),
        cmocka_unit_test(no_queries),
    };
    return cmocka_run_group_tests(tests, th_session_open, th_session_close);
}
