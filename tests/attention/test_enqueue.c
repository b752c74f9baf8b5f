/* SPDX-License-Identifier: Apache-2.0 */
/* Every misuse of the four calls that enqueue: the status, a message that names what is wrong and its value, outputs
 * and event untouched. And the empty problems, where there is little to enqueue. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

/* ---- the calls ---------------------------------------------------------------------------------------------- */

/* The combination first: it writes the forward pass's outputs. */
enum { FORWARD = 1, BACKWARD = 2, STATISTICS = 4, COMBINE = 8 };
static const int calls[] = {COMBINE, FORWARD, BACKWARD, STATISTICS};

typedef struct enqueue_call {
    int which;
    clmgk_plan *plan;
    cl_command_queue queue;
    const clmgk_attention_args *args;
    cl_uint num_wait;
    const cl_event *wait_list;
} enqueue_call;

static clmgk_status enqueue(const enqueue_call *c, cl_event *event, clmgk_error *error)
{
    switch (c->which) {
    case BACKWARD:
        return clmgk_enqueue_backward(c->plan, c->queue, c->args, c->num_wait, c->wait_list, event, error);
    case STATISTICS:
        return clmgk_enqueue_statistics(c->plan, c->queue, c->args, c->num_wait, c->wait_list, event, error);
    case COMBINE:
        return clmgk_enqueue_combine(c->plan, c->queue, c->args, c->num_wait, c->wait_list, event, error);
    default:
        return clmgk_enqueue_forward(c->plan, c->queue, c->args, c->num_wait, c->wait_list, event, error);
    }
}

/* ---- every array of every call ------------------------------------------------------------------------------------
 */

enum { PARTS = 3, SEQUENCES = 4, LEAD = 3 /* elements before an array */ };
#define LEAD_BYTES ((size_t)LEAD * sizeof(float))

/* Sets of problems: SMGK with lengths, the same packed, GFISH with lengths, SMLK with a state. */
typedef enum problem_kind {
    PADDED = 1,
    PACKED = 2,
    MIXED = 4,
    LINEAR = 8,
    MIXTURE = PADDED | PACKED,
    SOFTMAX = MIXTURE | MIXED,
    ALWAYS = SOFTMAX | LINEAR
} problem_kind;
static const problem_kind kinds[] = {PADDED, PACKED, MIXED, LINEAR};

typedef struct slot {
    clmgk_array array;
    const char *axes; /* see size_of_axis */
    int required;     /* calls that can't do without it */
    int optional;     /* calls that can */
    int written;      /* calls whose output it is */
    int kinds;        /* that have it */
} slot;

static const slot slots[] = {
    {CLMGK_ARRAY_Q, "BhND", FORWARD | BACKWARD | STATISTICS, 0, 0, ALWAYS},
    {CLMGK_ARRAY_K, "BgSD", FORWARD | BACKWARD | STATISTICS, 0, 0, ALWAYS},
    {CLMGK_ARRAY_V, "BGSE", FORWARD | BACKWARD, 0, 0, ALWAYS},
    {CLMGK_ARRAY_O, "BHNE", FORWARD | BACKWARD | COMBINE, 0, FORWARD | COMBINE, ALWAYS},
    {CLMGK_ARRAY_LSE, "BHN", BACKWARD, FORWARD | COMBINE, FORWARD | COMBINE, SOFTMAX},
    {CLMGK_ARRAY_PRIOR, "HMS", FORWARD | BACKWARD | STATISTICS, 0, 0, MIXTURE | LINEAR},
    {CLMGK_ARRAY_VARIANCE, "HM", FORWARD | BACKWARD | STATISTICS, 0, 0, MIXTURE},
    {CLMGK_ARRAY_SHIFT, "HMD", FORWARD | BACKWARD | STATISTICS, 0, 0, MIXTURE | LINEAR},
    {CLMGK_ARRAY_LENGTHS, "B", FORWARD | BACKWARD | STATISTICS, 0, 0, PADDED | MIXED | LINEAR},
    {CLMGK_ARRAY_LENGTHS_Q, "B", FORWARD | BACKWARD | STATISTICS, 0, 0, PADDED | MIXED | LINEAR},
    {CLMGK_ARRAY_OFFSETS, "T", FORWARD | BACKWARD | STATISTICS, 0, 0, PACKED},
    {CLMGK_ARRAY_OFFSETS_K, "T", FORWARD | BACKWARD | STATISTICS, 0, 0, PACKED},
    {CLMGK_ARRAY_BIAS, "HS", FORWARD | BACKWARD | STATISTICS, 0, 0, SOFTMAX},
    {CLMGK_ARRAY_SLOPES, "H", FORWARD | BACKWARD | STATISTICS, 0, 0, SOFTMAX},
    {CLMGK_ARRAY_SINKS, "H", FORWARD | BACKWARD | STATISTICS, 0, 0, SOFTMAX},
    {CLMGK_ARRAY_MIX, "UM", FORWARD | BACKWARD, 0, 0, MIXED},
    {CLMGK_ARRAY_MIX_WEIGHT, "HU", FORWARD | BACKWARD, 0, 0, MIXED},
    {CLMGK_ARRAY_MIX_OFFSET, "H", FORWARD | BACKWARD, 0, 0, MIXED},
    {CLMGK_ARRAY_MIX_HIDDEN_OFFSET, "U", FORWARD | BACKWARD, 0, 0, MIXED},
    {CLMGK_ARRAY_NOISE, "M", FORWARD | BACKWARD, 0, 0, MIXED},
    {CLMGK_ARRAY_PROJECTION, "FD", FORWARD | BACKWARD, 0, 0, LINEAR},
    {CLMGK_ARRAY_STATE_C, "BHFE", FORWARD | BACKWARD, 0, 0, LINEAR},
    {CLMGK_ARRAY_STATE_Z, "BHF", FORWARD | BACKWARD, 0, 0, LINEAR},
    {CLMGK_ARRAY_STATE_M, "BH", FORWARD | BACKWARD, 0, 0, LINEAR},
    {CLMGK_ARRAY_NEW_STATE_C, "BHFE", FORWARD, 0, FORWARD, LINEAR},
    {CLMGK_ARRAY_NEW_STATE_Z, "BHF", FORWARD, 0, FORWARD, LINEAR},
    {CLMGK_ARRAY_NEW_STATE_M, "BH", FORWARD, 0, FORWARD, LINEAR},
    {CLMGK_ARRAY_DENOMINATOR, "BHN2", BACKWARD, FORWARD, FORWARD, LINEAR},
    {CLMGK_ARRAY_GRAD_O, "BHNE", BACKWARD, 0, 0, ALWAYS},
    {CLMGK_ARRAY_GRAD_NEW_STATE_C, "BHFE", 0, BACKWARD, 0, LINEAR},
    {CLMGK_ARRAY_GRAD_NEW_STATE_Z, "BHF", 0, BACKWARD, 0, LINEAR},
    {CLMGK_ARRAY_GRAD_LSE, "BHN", 0, BACKWARD, 0, SOFTMAX},
    {CLMGK_ARRAY_GRAD_Q, "BhND", BACKWARD, 0, BACKWARD, ALWAYS},
    {CLMGK_ARRAY_GRAD_K, "BgSD", BACKWARD, 0, BACKWARD, ALWAYS},
    {CLMGK_ARRAY_GRAD_V, "BGSE", BACKWARD, 0, BACKWARD, ALWAYS},
    {CLMGK_ARRAY_GRAD_PRIOR, "HMS", BACKWARD, 0, BACKWARD, MIXTURE | LINEAR},
    {CLMGK_ARRAY_GRAD_VARIANCE, "HM", BACKWARD, 0, BACKWARD, MIXTURE},
    {CLMGK_ARRAY_GRAD_SHIFT, "HMD", BACKWARD, 0, BACKWARD, MIXTURE | LINEAR},
    {CLMGK_ARRAY_GRAD_BIAS, "HS", BACKWARD, 0, BACKWARD, SOFTMAX},
    {CLMGK_ARRAY_GRAD_SINKS, "H", BACKWARD, 0, BACKWARD, SOFTMAX},
    {CLMGK_ARRAY_GRAD_MIX, "UM", BACKWARD, 0, BACKWARD, MIXED},
    {CLMGK_ARRAY_GRAD_MIX_WEIGHT, "HU", BACKWARD, 0, BACKWARD, MIXED},
    {CLMGK_ARRAY_GRAD_MIX_OFFSET, "H", BACKWARD, 0, BACKWARD, MIXED},
    {CLMGK_ARRAY_GRAD_NOISE, "M", BACKWARD, 0, BACKWARD, MIXED},
    {CLMGK_ARRAY_GRAD_STATE_C, "BHFE", BACKWARD, 0, BACKWARD, LINEAR},
    {CLMGK_ARRAY_GRAD_STATE_Z, "BHF", BACKWARD, 0, BACKWARD, LINEAR},
    {CLMGK_ARRAY_GRAD_MIX_HIDDEN_OFFSET, "U", BACKWARD, 0, BACKWARD, MIXED},
    {CLMGK_ARRAY_RESPONSIBILITIES, "BHMNS", STATISTICS, 0, STATISTICS, MIXTURE},
    {CLMGK_ARRAY_COUNTS, "HMS", STATISTICS, 0, STATISTICS, MIXTURE},
    {CLMGK_ARRAY_NEW_PRIOR, "HMS", STATISTICS, 0, STATISTICS, MIXTURE},
    {CLMGK_ARRAY_NLL, "tH", STATISTICS, 0, STATISTICS, MIXTURE},
    {CLMGK_ARRAY_PARTS_O, "PBHNE", COMBINE, 0, 0, SOFTMAX},
    {CLMGK_ARRAY_PARTS_LSE, "PBHN", COMBINE, 0, 0, SOFTMAX},
};

static const char *name_of(const slot *s)
{
    return clmgk_array_get_info(s->array)->name;
}

static bool is_mixed(const clmgk_attention_desc *desc)
{
    return (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
}

static int64_t size_of_axis(const clmgk_attention_desc *d, char axis)
{
    switch (axis) {
    case 'B':
        return d->batch;
    case 'G':
        return d->kv_heads;
    case 'H':
        return d->heads;
    case 'h': /* of queries */
        return is_mixed(d) ? d->components : d->heads;
    case 'g': /* of keys */
        return is_mixed(d) ? d->components : d->kv_heads;
    case 'M':
        return d->components;
    case 'U':
        return d->mix_hidden;
    case 'N':
        return d->length;
    case 'S':
        return d->length_k;
    case 'D':
        return d->head_size;
    case 'E':
        return d->value_size;
    case 'F':
        return d->features;
    case '2':
        return 2;
    case 'P':
        return PARTS;
    case 'T': /* offsets */
        return d->sequences + 1;
    default: /* sequences of their own */
        return d->sequences > 0 ? d->sequences : d->batch;
    }
}

static size_t bytes_of(const clmgk_attention_desc *desc, const slot *s)
{
    size_t count = 1;
    for (const char *axis = s->axes; *axis != '\0'; axis++)
        count *= (size_t)size_of_axis(desc, *axis);
    return count * 4;
}

static clmgk_buffer *buffer_of(clmgk_attention_args *args, const slot *s)
{
    return clmgk_array_buffer(args, s->array);
}

/* ---- a problem that has all of them -------------------------------------------------------------------------------
 */

typedef struct fixture {
    th_session *session;
    problem_kind kind;
    clmgk_attention_desc desc;
    clmgk_plan *plan;
    clmgk_plan_info info;
    clmgk_attention_args good; /* each array in a buffer that ends with it */
    cl_context other;
    cl_command_queue other_queue;
    cl_mem other_memory;
} fixture;

/* The axes and arrays that only the family has. */
static clmgk_attention_desc family_of(problem_kind kind)
{
    clmgk_attention_desc desc = th_full_desc();
    desc.statistics = CLMGK_STATISTIC_ALL;
    if (kind == LINEAR) {
        desc.variant = CLMGK_VARIANT_SMLK;
        desc.variance_shape = CLMGK_VARIANCE_NUMBER;
        desc.statistics = 0;
        desc.feature = CLMGK_FEATURE_FAVOR;
        desc.features = 9;
        desc.use_state = desc.use_new_state = 1;
    }
    if (kind != MIXED)
        return desc;
    desc = th_small_desc(CLMGK_VARIANT_GFISH, desc.length, desc.length_k);
    desc.batch = 2;
    desc.use_lengths = desc.use_lengths_q = 1;
    desc.use_mix_weight = desc.use_mix_offset = desc.use_mix_hidden_offset = 1;
    desc.mix_hidden = 5;
    return desc;
}

static clmgk_attention_desc every_field(problem_kind kind)
{
    clmgk_attention_desc desc = family_of(kind);
    desc.causal = 1;
    desc.gradients = th_all_gradients(&desc);
    if (kind == LINEAR)
        return desc;
    desc.combine = 1;
    desc.use_window = 1;
    desc.window_left = 3;
    desc.use_bias = 1;
    desc.bias_batch = desc.bias_length = 1;
    desc.use_alibi = desc.use_sinks = 1;
    desc.dropout = 0.25;
    if (kind == PACKED) {
        desc.batch = 1;
        desc.use_lengths = desc.use_lengths_q = 0;
        desc.sequences = SEQUENCES;
        desc.use_offsets_k = 1;
    }
    desc.gradients = th_all_gradients(&desc);
    return desc;
}

static bool is_output(const slot *s)
{
    return s->written != 0;
}

/* Lengths are full, sequences of about one size, all else is 1/2. */
static void fill_input(const clmgk_attention_desc *desc, const slot *s, unsigned char *bytes)
{
    const size_t count = bytes_of(desc, s) / 4;
    const int64_t axis =
        strcmp(name_of(s), "lengths") == 0 || strcmp(name_of(s), "offsets_k") == 0 ? desc->length_k : desc->length;
    const bool lengths = strcmp(s->axes, "B") == 0;
    const bool offsets = strcmp(s->axes, "T") == 0;
    for (size_t n = 0; n < count; n++) {
        const float half = 0.5F;
        const int32_t whole = lengths ? (int32_t)axis : (int32_t)axis * (int32_t)n / SEQUENCES;
        memcpy(bytes + n * 4, lengths || offsets ? (const void *)&whole : (const void *)&half, 4);
    }
}

/* Outputs are 0x5a. */
static clmgk_buffer make_buffer(const fixture *f, const slot *s)
{
    const size_t bytes = LEAD_BYTES + bytes_of(&f->desc, s);
    unsigned char *const image = malloc(bytes);
    assert_non_null(image);
    memset(image, 0x5a, bytes);
    if (!is_output(s))
        fill_input(&f->desc, s, image + LEAD_BYTES);
    cl_int code = CL_SUCCESS;
    const cl_mem memory = clCreateBuffer(f->session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, image, &code);
    assert_int_equal(code, CL_SUCCESS);
    free(image);
    return (clmgk_buffer){memory, LEAD};
}

static bool has_slot(const slot *s, problem_kind kind)
{
    return (s->kinds & (int)kind) != 0;
}

/* Scores that are mixed have no statistics; the linear family has no partial results either. */
static bool has_call(problem_kind kind, int which)
{
    return (kind & (MIXED | LINEAR)) == 0 || (which != STATISTICS && (kind == MIXED || which != COMBINE));
}

/* `desc` is that of every_field, or one with other axes. */
static fixture open_fixture_of(th_session *session, problem_kind kind, const clmgk_attention_desc *desc)
{
    fixture f = {.session = session, .kind = kind, .info = CLMGK_PLAN_INFO_INIT};
    cl_int code = CL_SUCCESS;
    f.plan = th_plan(session, desc, CLMGK_ENGINE_AUTO, NULL);
    th_expect_ok(clmgk_attention_validate(desc, &f.desc, &th_error));
    th_expect_ok(clmgk_plan_get_info(f.plan, &f.info, &th_error));
    f.good = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    f.good.parts = PARTS;
    for (size_t n = 0; n < TH_COUNT(slots); n++)
        if (has_slot(&slots[n], kind))
            *buffer_of(&f.good, &slots[n]) = make_buffer(&f, &slots[n]);
    if (clmgk_plan_workspace_size(f.plan) > 0) {
        f.good.workspace.memory =
            clCreateBuffer(session->cl, CL_MEM_READ_WRITE, clmgk_plan_workspace_size(f.plan) + LEAD_BYTES, NULL, &code);
        assert_int_equal(code, CL_SUCCESS);
        f.good.workspace.offset = LEAD_BYTES;
    }
    f.other = clCreateContext(NULL, 1, &session->info.device_id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    f.other_queue = clCreateCommandQueue(f.other, session->info.device_id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    f.other_memory = clCreateBuffer(f.other, CL_MEM_READ_WRITE, 65536, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    return f;
}

static fixture open_fixture(th_session *session, problem_kind kind)
{
    const clmgk_attention_desc desc = every_field(kind);
    return open_fixture_of(session, kind, &desc);
}

static void close_fixture(fixture *f)
{
    for (size_t n = 0; n < TH_COUNT(slots); n++)
        if (buffer_of(&f->good, &slots[n])->memory)
            assert_int_equal(clReleaseMemObject(buffer_of(&f->good, &slots[n])->memory), CL_SUCCESS);
    if (f->good.workspace.memory)
        assert_int_equal(clReleaseMemObject(f->good.workspace.memory), CL_SUCCESS);
    clmgk_plan_release(f->plan);
    assert_int_equal(clReleaseMemObject(f->other_memory), CL_SUCCESS);
    assert_int_equal(clReleaseCommandQueue(f->other_queue), CL_SUCCESS);
    assert_int_equal(clReleaseContext(f->other), CL_SUCCESS);
}

static enqueue_call call_with(const fixture *f, int which, const clmgk_attention_args *a)
{
    return (enqueue_call){.which = which, .plan = f->plan, .queue = f->session->queue, .args = a};
}

/* ---- what a refused call leaves -----------------------------------------------------------------------------------
 */

static bool is_untouched(fixture *f, const slot *s)
{
    const clmgk_buffer buffer = *buffer_of(&f->good, s);
    unsigned char bytes[16384];
    const size_t size = LEAD_BYTES + bytes_of(&f->desc, s);
    bool same = true;
    if (!buffer.memory || !is_output(s))
        return true;
    assert_true(size <= sizeof(bytes));
    assert_int_equal(clEnqueueReadBuffer(f->session->queue, buffer.memory, CL_TRUE, 0, size, bytes, 0, NULL, NULL),
                     CL_SUCCESS);
    for (size_t n = 0; n < size; n++)
        same = same && bytes[n] == 0x5a;
    return same;
}

static void expect_untouched(fixture *f)
{
    assert_int_equal(clFinish(f->session->queue), CL_SUCCESS);
    for (size_t n = 0; n < TH_COUNT(slots); n++)
        if (!is_untouched(f, &slots[n]))
            fail_msg("%s was written", name_of(&slots[n]));
}

static void expect_refused(fixture *f, const enqueue_call *call, clmgk_status expected, const char *field,
                           const char *value)
{
    clmgk_error error = {0};
    const cl_event unset = (cl_event)(uintptr_t)f; /* any pointer that no event has */
    cl_event event = unset;
    const clmgk_status status = enqueue(call, &event, &error);
    if (status != expected || error.status != expected || !th_has_word(error.message, field) ||
        !strstr(error.message, value) || strchr(error.message, '\n'))
        fail_msg("call %d: %s \"%s\": expected %s with \"%s\" and \"%s\"", call->which, clmgk_status_name(status),
                 error.message, clmgk_status_name(expected), field, value);
    assert_ptr_equal(event, unset);
    assert_int_equal(enqueue(call, NULL, NULL), expected);
}

/* ---- arguments ----------------------------------------------------------------------------------------------------
 */

#define VALUE  CLMGK_ERROR_INVALID_VALUE
#define BUFFER CLMGK_ERROR_INVALID_BUFFER

static void bad_queue_and_wait_list(fixture *f, int which)
{
    const enqueue_call good = call_with(f, which, &f->good);
    cl_event none = NULL;
    enqueue_call call = good;
    call.plan = NULL;
    expect_refused(f, &call, VALUE, "plan", "NULL");
    call = good;
    call.queue = NULL;
    expect_refused(f, &call, VALUE, "queue", "");
    call.queue = f->other_queue;
    expect_refused(f, &call, VALUE, "queue", "context");
    call = good;
    call.num_wait = 1;
    expect_refused(f, &call, VALUE, "wait_list", "");
    call.wait_list = &none;
    expect_refused(f, &call, VALUE, "wait_list", "");
    call.num_wait = 0;
    expect_refused(f, &call, VALUE, "wait_list", "");

    cl_int code = CL_SUCCESS;
    cl_event foreign = clCreateUserEvent(f->other, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(clSetUserEventStatus(foreign, CL_COMPLETE), CL_SUCCESS); /* or an acceptance would never end */
    call.num_wait = 1;
    call.wait_list = &foreign;
    expect_refused(f, &call, VALUE, "wait_list", "context");
    assert_int_equal(clReleaseEvent(foreign), CL_SUCCESS);
}

static void bad_structures(fixture *f, int which)
{
    clmgk_attention_args a = f->good;
    enqueue_call call = call_with(f, which, &a);
    a.struct_size = 0;
    expect_refused(f, &call, VALUE, "args.struct_size", "0");
    a.struct_size = sizeof(a) - 1;
    expect_refused(f, &call, VALUE, "args.struct_size", "");
    call.args = NULL;
    expect_refused(f, &call, VALUE, "args", "NULL");
}

static void bad_numbers(fixture *f)
{
    static const int64_t parts[] = {0, -1, (1 << 20) + 1, INT64_MAX};
    static const char *const texts[] = {"0", "-1", "1048577", "9223372036854775807"};
    clmgk_attention_args a = f->good;
    enqueue_call call = call_with(f, COMBINE, &a);
    for (size_t n = 0; n < TH_COUNT(parts); n++) {
        a.parts = parts[n];
        expect_refused(f, &call, VALUE, "parts", texts[n]);
    }
    a.parts = PARTS + 1; /* legal, but there are not as many */
    expect_refused(f, &call, BUFFER, "parts_o", "");
    call.which = BACKWARD;
    a.accumulate = CLMGK_GRADIENT_ALL + 1;
    expect_refused(f, &call, VALUE, "accumulate", "33554432");
}

TH_TEST(bad_enqueue_arguments)
{
    fixture f = open_fixture(session, PADDED);
    for (size_t n = 0; n < TH_COUNT(calls); n++) {
        bad_queue_and_wait_list(&f, calls[n]);
        bad_structures(&f, calls[n]);
    }
    bad_numbers(&f);
    expect_untouched(&f);
    close_fixture(&f);
}

/* ---- arrays -------------------------------------------------------------------------------------------------------
 */

/* One array missing, of another context, one element too short, with an offset that overflows. */
static void bad_buffer(fixture *f, int which, const slot *s)
{
    clmgk_attention_args a = f->good;
    clmgk_buffer *const buffer = buffer_of(&a, s);
    const clmgk_buffer good = *buffer;
    const enqueue_call call = call_with(f, which, &a);
    static const uint64_t far[] = {LEAD + 1, 100000, UINT64_MAX / 4, UINT64_MAX / 4 + 1, UINT64_MAX};
    if (s->required & which) {
        buffer->memory = NULL;
        expect_refused(f, &call, BUFFER, name_of(s), "NULL");
    }
    buffer->memory = f->other_memory;
    expect_refused(f, &call, BUFFER, name_of(s), "context");
    *buffer = good;
    for (size_t n = 0; n < TH_COUNT(far); n++) {
        buffer->offset = far[n];
        expect_refused(f, &call, BUFFER, name_of(s), "bytes");
    }
}

static void bad_workspace(fixture *f)
{
    clmgk_attention_args a = f->good;
    const enqueue_call call = call_with(f, BACKWARD, &a);
    if (f->info.backward_workspace_bytes == 0)
        return;
    const uint64_t slack = clmgk_plan_workspace_size(f->plan) - f->info.backward_workspace_bytes;
    a.workspace.memory = f->other_memory;
    expect_refused(f, &call, BUFFER, "workspace", "context");
    a.workspace = f->good.workspace;
    a.workspace.offset += 4 + (slack + 3) / 4 * 4;
    expect_refused(f, &call, BUFFER, "workspace", "bytes");
    a.workspace.offset = 2;
    expect_refused(f, &call, BUFFER, "workspace", "multiple of 4");
    a.workspace.memory = NULL;
    expect_refused(f, &call, BUFFER, "workspace", "NULL");
}

static void enqueue_passes(fixture *f, const clmgk_attention_args *a)
{
    for (size_t n = 0; n < TH_COUNT(calls); n++) {
        const enqueue_call call = call_with(f, calls[n], a);
        clmgk_error error = {0};
        cl_event event = NULL;
        if (!has_call(f->kind, calls[n]))
            continue;
        if (enqueue(&call, &event, &error) != CLMGK_OK)
            fail_msg("call %d: %s", calls[n], error.message);
        assert_non_null(event);
        assert_int_equal(clWaitForEvents(1, &event), CL_SUCCESS);
        assert_int_equal(clReleaseEvent(event), CL_SUCCESS);
    }
    assert_int_equal(clFinish(f->session->queue), CL_SUCCESS);
}

/* With arrays that end where their buffers do, every call is taken. */
static void expect_taken(fixture *f, const clmgk_attention_args *a)
{
    enqueue_passes(f, a);
    for (size_t n = 0; n < TH_COUNT(slots); n++)
        if (is_output(&slots[n]) && has_slot(&slots[n], f->kind) && is_untouched(f, &slots[n]))
            fail_msg("%s was not written", name_of(&slots[n]));
}

TH_TEST(bad_buffers)
{
    for (size_t i = 0; i < TH_COUNT(kinds); i++) {
        fixture f = open_fixture(session, kinds[i]);
        for (size_t n = 0; n < TH_COUNT(slots); n++)
            for (size_t k = 0; has_slot(&slots[n], kinds[i]) && k < TH_COUNT(calls); k++)
                if (has_call(kinds[i], calls[k]) && (slots[n].required | slots[n].optional) & calls[k])
                    bad_buffer(&f, calls[k], &slots[n]);
        bad_workspace(&f);
        expect_untouched(&f);
        expect_taken(&f, &f.good);
        close_fixture(&f);
    }
}

/* ---- memory of their own ------------------------------------------------------------------------------------------
 */

enum { PARENT_BYTES = 65536, PART_BYTES = 32768 };

static bool is_of_call(const fixture *f, const slot *s, int which)
{
    return has_slot(s, f->kind) && ((s->required | s->optional) & which) != 0;
}

static cl_mem make_memory(const fixture *f, cl_mem_flags flags, size_t bytes)
{
    cl_int code = CL_SUCCESS;
    cl_mem const memory = clCreateBuffer(f->session->cl, flags, bytes, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    return memory;
}

static cl_mem part_of(cl_mem parent, size_t origin)
{
    const cl_buffer_region region = {origin, PART_BYTES};
    cl_int code = CL_SUCCESS;
    cl_mem const part = clCreateSubBuffer(parent, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    assert_int_equal(code, CL_SUCCESS);
    return part;
}

/* An output in the memory of each other array: the same buffer, and parts of one. */
static void shared_output(fixture *f, int which, const slot *s, cl_mem parent, const cl_mem parts[3])
{
    clmgk_attention_args a = f->good;
    const enqueue_call call = call_with(f, which, &a);
    *buffer_of(&a, s) = (clmgk_buffer){parent, PART_BYTES / 4};
    for (size_t n = 0; n < TH_COUNT(slots); n++) {
        if (&slots[n] == s || !is_of_call(f, &slots[n], which))
            continue;
        clmgk_buffer *const other = buffer_of(&a, &slots[n]);
        const clmgk_buffer good = *other;
        *other = *buffer_of(&a, s);
        expect_refused(f, &call, BUFFER, name_of(s), name_of(&slots[n]));
        expect_refused(f, &call, BUFFER, name_of(&slots[n]), name_of(s));
        *other = (clmgk_buffer){parts[1], 0};
        expect_refused(f, &call, BUFFER, name_of(s), name_of(&slots[n]));
        *other = (clmgk_buffer){parts[1], PART_BYTES / 8}; /* other elements of the same part */
        *buffer_of(&a, s) = (clmgk_buffer){parts[2], 0};
        expect_refused(f, &call, BUFFER, name_of(s), name_of(&slots[n]));
        *buffer_of(&a, s) = (clmgk_buffer){parent, PART_BYTES / 4};
        *other = good;
    }
    if (which == BACKWARD && f->info.backward_workspace_bytes > 0) {
        a.workspace.memory = make_memory(f, CL_MEM_READ_WRITE, PARENT_BYTES + clmgk_plan_workspace_size(f->plan));
        *buffer_of(&a, s) = (clmgk_buffer){a.workspace.memory, 4};
        expect_refused(f, &call, BUFFER, name_of(s), "workspace");
        assert_int_equal(clReleaseMemObject(a.workspace.memory), CL_SUCCESS);
    }
}

/* Inputs may share memory, outputs must not. A sub-buffer shares the memory of its buffer. */
TH_TEST(shared_memory)
{
    for (size_t i = 0; i < TH_COUNT(kinds); i++) {
        fixture f = open_fixture(session, kinds[i]);
        cl_mem const parent = make_memory(&f, CL_MEM_READ_WRITE, (size_t)2 * PARENT_BYTES);
        cl_mem const parts[3] = {part_of(parent, 0), part_of(parent, PART_BYTES),
                                 part_of(parent, PART_BYTES + PART_BYTES / 2)};
        for (size_t n = 0; n < TH_COUNT(slots); n++)
            for (size_t k = 0; k < TH_COUNT(calls); k++)
                if (has_call(kinds[i], calls[k]) && has_slot(&slots[n], kinds[i]) && (slots[n].written & calls[k]) != 0)
                    shared_output(&f, calls[k], &slots[n], parent, parts);
        expect_untouched(&f);
        clmgk_attention_args a = f.good; /* side by side in one buffer */
        a.q = (clmgk_buffer){parts[0], 0};
        a.k = a.q;
        a.grad_q = (clmgk_buffer){parent, PART_BYTES / 4};
        a.grad_k = (clmgk_buffer){parts[2], 0};
        enqueue_passes(&f, &a);
        for (size_t n = 0; n < TH_COUNT(parts); n++)
            assert_int_equal(clReleaseMemObject(parts[n]), CL_SUCCESS);
        assert_int_equal(clReleaseMemObject(parent), CL_SUCCESS);
        close_fixture(&f);
    }
}

/* dQ, dK and dV side by side in each token of one buffer: taken as long as no two elements meet. */
TH_TEST(interleaved_gradients)
{
    clmgk_attention_desc desc = every_field(PADDED);
    const int64_t row = 2 * desc.head_size + desc.value_size, token = desc.heads * row;
    const clmgk_layout packed = {.strided = 1, .batch = desc.length_k * token, .head = row, .token = token};
    desc.grad_q = desc.grad_k = desc.grad_v = packed;
    fixture f = open_fixture_of(session, PADDED, &desc);
    cl_mem const memory = make_memory(&f, CL_MEM_READ_WRITE, PARENT_BYTES);
    clmgk_attention_args a = f.good;
    const enqueue_call call = call_with(&f, BACKWARD, &a);
    a.grad_q = (clmgk_buffer){memory, 0};
    a.grad_k = (clmgk_buffer){memory, (uint64_t)desc.head_size};
    a.grad_v = (clmgk_buffer){memory, (uint64_t)desc.head_size * 2};
    enqueue_passes(&f, &a);
    a.grad_k.offset--;
    expect_refused(&f, &call, BUFFER, "grad_q", "grad_k");
    a.grad_k.offset += 2;
    expect_refused(&f, &call, BUFFER, "grad_k", "grad_v");
    assert_int_equal(clReleaseMemObject(memory), CL_SUCCESS);
    close_fixture(&f);
}

/* Buffers that kernels may not read, or not write; an image. */
TH_TEST(memory_of_the_wrong_kind)
{
    fixture f = open_fixture(session, PADDED);
    cl_mem const read_only = make_memory(&f, CL_MEM_READ_ONLY, PARENT_BYTES);
    cl_mem const write_only = make_memory(&f, CL_MEM_WRITE_ONLY, PARENT_BYTES);
    const cl_image_format format = {CL_RGBA, CL_FLOAT};
    const cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 64, .image_height = 64};
    cl_mem const image =
        clCreateImage(session->cl, CL_MEM_READ_WRITE, &format, &shape, NULL, NULL); /* NULL: has none */
    for (size_t n = 0; n < TH_COUNT(slots); n++)
        for (size_t k = 0; k < TH_COUNT(calls); k++) {
            clmgk_attention_args a = f.good;
            const enqueue_call call = call_with(&f, calls[k], &a);
            const bool written = (slots[n].written & calls[k]) != 0;
            if (!is_of_call(&f, &slots[n], calls[k]))
                continue;
            buffer_of(&a, &slots[n])->memory = written ? read_only : write_only;
            expect_refused(&f, &call, BUFFER, name_of(&slots[n]), written ? "CL_MEM_READ_ONLY" : "CL_MEM_WRITE_ONLY");
            buffer_of(&a, &slots[n])->memory = image;
            if (image)
                expect_refused(&f, &call, BUFFER, name_of(&slots[n]), "expected a buffer");
        }
    expect_untouched(&f);
    clmgk_attention_args a = f.good;
    a.q.memory = read_only;
    a.o.memory = a.lse.memory = NULL;
    enqueue_call call = call_with(&f, FORWARD, &a);
    a.o.memory = write_only;
    assert_int_equal(enqueue(&call, NULL, &th_error), CLMGK_OK);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    call.which = BACKWARD;
    a = f.good;
    a.grad_q.memory = write_only; /* gradients may be sums in place */
    expect_refused(&f, &call, BUFFER, "grad_q", "CL_MEM_WRITE_ONLY");
    assert_int_equal(clReleaseMemObject(read_only), CL_SUCCESS);
    assert_int_equal(clReleaseMemObject(write_only), CL_SUCCESS);
    if (image)
        assert_int_equal(clReleaseMemObject(image), CL_SUCCESS);
    close_fixture(&f);
}

/* What gradients are made from: the reason is told. */
TH_TEST(gradients_without_lse)
{
    fixture f = open_fixture(session, PADDED);
    clmgk_attention_args a = f.good;
    const enqueue_call call = call_with(&f, BACKWARD, &a);
    a.lse.memory = NULL;
    expect_refused(&f, &call, BUFFER, "lse", "L of the forward pass");
    expect_untouched(&f);
    close_fixture(&f);
}

/* Each array that a plan's descriptor does not use, given all the same. The statistics ignore V, O and L. */
TH_TEST(arrays_of_other_plans)
{
    fixture f = open_fixture(session, PADDED);
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 6);
    clmgk_error error = {0};
    desc.gradients = CLMGK_GRADIENT_V;
    desc.statistics = CLMGK_STATISTIC_COUNTS;
    desc.combine = 1;
    clmgk_plan *const plan = th_plan(f.session, &desc, CLMGK_ENGINE_AUTO, NULL);
    static const char *const kept[] = {"q", "k", "v", "o", "lse", "grad_o", "grad_lse", "grad_v", "counts"};
    clmgk_attention_args plain = f.good;
    for (size_t n = 0; n < TH_COUNT(slots); n++) {
        bool keep = slots[n].required == COMBINE;
        for (size_t k = 0; k < TH_COUNT(kept); k++)
            keep = keep || strcmp(name_of(&slots[n]), kept[k]) == 0;
        if (!keep)
            *buffer_of(&plain, &slots[n]) = (clmgk_buffer){NULL, 0};
    }
    for (size_t n = 0; n < TH_COUNT(slots); n++)
        for (size_t k = 0; k < TH_COUNT(calls); k++) {
            clmgk_attention_args a = plain;
            enqueue_call call = call_with(&f, calls[k], &a);
            call.plan = plan;
            if (!((slots[n].required | slots[n].optional) & calls[k]) || buffer_of(&plain, &slots[n])->memory)
                continue;
            *buffer_of(&a, &slots[n]) = (clmgk_buffer){f.good.q.memory, 0};
            expect_refused(&f, &call, BUFFER, name_of(&slots[n]), "does not use");
        }
    expect_untouched(&f);
    for (size_t k = 0; k < TH_COUNT(calls); k++) {
        clmgk_attention_args a = plain;
        enqueue_call call = call_with(&f, calls[k], &a);
        call.plan = plan;
        if (calls[k] == STATISTICS)
            a.v.memory = a.o.memory = a.lse.memory = f.other_memory;
        if (enqueue(&call, NULL, &error) != CLMGK_OK)
            fail_msg("%s", error.message);
    }
    assert_int_equal(clFinish(f.session->queue), CL_SUCCESS);
    clmgk_plan_release(plan);
    close_fixture(&f);
}

/* Noise is for those that have it: the reason names the variant. */
TH_TEST(noise_of_a_hard_variant)
{
    fixture f = open_fixture(session, MIXED);
    clmgk_attention_args a = f.good;
    enqueue_call call = call_with(&f, FORWARD, &a);
    a.noise.memory = NULL;
    expect_refused(&f, &call, BUFFER, "noise", "gfish");
    clmgk_attention_desc hard = every_field(MIXED);
    clmgk_error error = {0};
    hard.variant = CLMGK_VARIANT_HARD_GFISH;
    hard.gradients = 0;
    call.plan = th_plan(f.session, &hard, CLMGK_ENGINE_AUTO, NULL);
    a = f.good;
    for (size_t n = 0; n < TH_COUNT(slots); n++) /* the plan has one pass */
        if (!(slots[n].required & FORWARD) && slots[n].array != CLMGK_ARRAY_LSE)
            *buffer_of(&a, &slots[n]) = (clmgk_buffer){NULL, 0};
    expect_refused(&f, &call, BUFFER, "noise", "hard-gfish");
    expect_untouched(&f);
    a.noise.memory = NULL;
    if (enqueue(&call, NULL, &error) != CLMGK_OK)
        fail_msg("%s", error.message);
    assert_int_equal(clFinish(f.session->queue), CL_SUCCESS);
    clmgk_plan_release(call.plan);
    close_fixture(&f);
}

/* A plan is not asked for what its descriptor did not. */
TH_TEST(passes_that_a_plan_lacks)
{
    fixture f = open_fixture(session, PADDED);
    const clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 6);
    clmgk_plan *const plan = th_plan(f.session, &desc, CLMGK_ENGINE_AUTO, NULL);
    static const char *const fields[] = {"combine", NULL, "gradients", "statistics"};
    for (size_t n = 0; n < TH_COUNT(calls); n++) {
        enqueue_call call = call_with(&f, calls[n], &f.good);
        call.plan = plan;
        if (calls[n] != FORWARD)
            expect_refused(&f, &call, VALUE, "plan", fields[n]);
    }
    expect_untouched(&f);
    clmgk_plan_release(plan);
    close_fixture(&f);
}

/* ---- empty problems -----------------------------------------------------------------------------------------------
 */

/* No queries: nothing is written, and the event comes all the same. */
TH_TEST(no_queries)
{
    for (size_t e = 0; e < session->engines; e++) {
        const clmgk_attention_desc desc = {.length = 0, .length_k = 6, .head_size = 8};
        th_problem problem = th_problem_make(&desc, 1);
        clmgk_plan *const plan = th_plan(session, &problem.desc, session->engine[e], NULL);
        th_device device = th_upload(session, &problem, clmgk_plan_workspace_size(plan));
        cl_event event = NULL;
        th_expect_ok(clmgk_enqueue_forward(plan, session->queue, &device.args, 0, NULL, &event, &th_error));
        assert_non_null(event);
        assert_int_equal(clWaitForEvents(1, &event), CL_SUCCESS);
        th_expect_untouched(session, &device);
        assert_int_equal(clReleaseEvent(event), CL_SUCCESS);
        th_device_free(&device);
        clmgk_plan_release(plan);
        th_problem_free(&problem);
    }
}

/* Every element of an output is `value`. */
static void expect_all(fixture *f, const char *name, float value)
{
    float values[1024];
    const slot *s = slots;
    while (strcmp(name_of(s), name) != 0)
        s++;
    const size_t bytes = bytes_of(&f->desc, s);
    assert_in_range(bytes, 1, sizeof(values));
    assert_int_equal(clEnqueueReadBuffer(f->session->queue, buffer_of(&f->good, s)->memory, CL_TRUE, LEAD_BYTES, bytes,
                                         values, 0, NULL, NULL),
                     CL_SUCCESS);
    for (size_t n = 0; n < bytes / sizeof(float); n++)
        if (!(values[n] == value))
            fail_msg("%s[%zu]: %g: expected %g", name, n, (double)values[n], (double)value);
}

/* No queries: gradients of what there is are 0, or what they are added to; a prior stays; no row, no likelihood. */
TH_TEST(training_without_queries)
{
    static const char *const gradients[] = {"grad_k",     "grad_v",    "grad_prior", "grad_variance",
                                            "grad_shift", "grad_bias", "grad_sinks"};
    clmgk_attention_desc desc = every_field(PADDED);
    desc.length = 0;
    fixture f = open_fixture_of(session, PADDED, &desc);
    clmgk_attention_args a = f.good;
    const float half = 0.5F;
    enqueue_passes(&f, &a);
    for (size_t n = 0; n < TH_COUNT(gradients); n++)
        expect_all(&f, gradients[n], 0.0F);
    expect_all(&f, "counts", 0.0F);
    expect_all(&f, "new_prior", half); /* as given */
    expect_all(&f, "nll", 0.0F);
    assert_int_equal(clEnqueueFillBuffer(f.session->queue, f.good.grad_shift.memory, &half, sizeof(half), 0,
                                         LEAD_BYTES + (size_t)f.desc.heads * (size_t)f.desc.components *
                                                          (size_t)f.desc.head_size * 4,
                                         0, NULL, NULL),
                     CL_SUCCESS);
    a.accumulate = CLMGK_GRADIENT_ALL;
    enqueue_passes(&f, &a);
    expect_all(&f, "grad_shift", half);
    expect_all(&f, "grad_k", 0.0F);
    close_fixture(&f);
}

/* The same of mixed scores, and where there are no keys. */
TH_TEST(mixing_of_nothing)
{
    static const char *const gradients[] = {"grad_mix", "grad_mix_weight", "grad_mix_offset", "grad_noise",
                                            "grad_mix_hidden_offset"};
    for (int n = 0; n < 2; n++) {
        clmgk_attention_desc desc = every_field(MIXED);
        desc.length = n == 0 ? 0 : desc.length;
        desc.length_k = n == 0 ? desc.length_k : CLMGK_NO_KEYS;
        fixture f = open_fixture_of(session, MIXED, &desc);
        enqueue_passes(&f, &f.good);
        for (size_t i = 0; i < TH_COUNT(gradients); i++)
            expect_all(&f, gradients[i], 0.0F);
        expect_all(&f, n == 0 ? "grad_k" : "grad_q", 0.0F);
        expect_all(&f, "grad_sinks", n == 0 ? 0.0F : 0.5F * 2.0F * 5.0F);
        close_fixture(&f);
    }
}

/* No keys: only the sinks are left. L is the sink, whose gradient is that of L. */
TH_TEST(training_without_keys)
{
    clmgk_attention_desc desc = every_field(PADDED);
    desc.length_k = CLMGK_NO_KEYS;
    fixture f = open_fixture_of(session, PADDED, &desc);
    enqueue_passes(&f, &f.good);
    static const char *const zeros[] = {"o", "grad_q", "grad_variance", "grad_shift", "nll"};
    for (size_t n = 0; n < TH_COUNT(zeros); n++)
        expect_all(&f, zeros[n], 0.0F);
    expect_all(&f, "lse", 0.5F);
    expect_all(&f, "grad_sinks", 0.5F * 2.0F * 5.0F); /* dL of B N rows */
    close_fixture(&f);
}
