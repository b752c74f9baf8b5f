/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Canaries after the last element. With CLMGK_TEST_TIGHT inputs have none, because the guard layer's page follows them.
 */
#define TRAIL_BYTES 320

/* The most products that the reference computes for one problem; beyond that, a sample of the rows is checked. */
#define SOLVE_BUDGET 6e6

/* Fills 16-bit words: a NaN in f32, f16 and bf16, a length far beyond any axis in int32. They reveal a kernel that
 * reads beside the elements of an input, or omits an element of an output. */
static const unsigned char canary[2] = {0xda, 0x7f};

bool th_say(th_message *message, const char *format, ...)
{
    if (message == NULL)
        return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message->text, sizeof(message->text), format, arguments);
    va_end(arguments);
    return false;
}

/* ---- where elements lie ---------------------------------------------------------------------------------------- */

size_t th_place(const th_array *array, size_t flat)
{
    int64_t rest = (int64_t)flat;
    uint64_t at = array->offset;
    for (int axis = TH_RANK - 1; axis >= 0; axis--) {
        const int64_t block = axis == TH_RANK - 1 ? (int64_t)array->block : 1;
        at += (uint64_t)(rest % array->shape[axis] / block * array->stride[axis]);
        rest /= array->shape[axis];
    }
    return (size_t)at;
}

static size_t end_bytes(const th_array *array)
{
    size_t end = (size_t)array->offset;
    for (size_t flat = 0; flat < array->count; flat++) {
        const size_t at = th_place(array, flat) + 1;
        end = at > end ? at : end;
    }
    return end * array->element;
}

void th_put(const th_array *array, unsigned char *image, size_t flat)
{
    unsigned char *const at = image + th_place(array, flat) * array->element;
    if (array->integer) {
        const int32_t value = (int32_t)array->values[flat];
        memcpy(at, &value, sizeof(value));
    } else if (flat % array->block == 0) {
        clmgk_ref_store(array->dtype, &array->values[flat], array->block, at);
    }
}

void th_get(const th_array *array, const unsigned char *image, size_t flat)
{
    const unsigned char *const at = image + th_place(array, flat) * array->element;
    if (array->integer) {
        int32_t value = 0;
        memcpy(&value, at, sizeof(value));
        array->values[flat] = value;
    } else if (flat % array->block == 0) {
        uint32_t aligned[10];
        memcpy(aligned, at, array->element);
        clmgk_ref_load(array->dtype, aligned, array->block, &array->values[flat]);
    }
}

/* ---- upload ------------------------------------------------------------------------------------------------------ */

void th_make_image(th_device_buffer *buffer, size_t bytes)
{
    buffer->bytes = bytes;
    buffer->image = malloc(bytes);
    buffer->output = calloc(bytes, 1);
    assert_true(buffer->image && buffer->output);
    for (size_t n = 0; n < bytes; n++)
        buffer->image[n] = canary[n % sizeof(canary)];
}

void th_make_memory(const th_session *session, th_device_buffer *buffer)
{
    cl_int code = CL_SUCCESS;
    if (buffer->bytes == 0)
        return;
    buffer->memory =
        clCreateBuffer(session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, buffer->bytes, buffer->image, &code);
    assert_int_equal(code, CL_SUCCESS);
}

void th_write_values(const th_array *array, th_device_buffer *buffer)
{
    for (size_t flat = 0; flat < array->count; flat++)
        th_put(array, buffer->image, flat);
    for (size_t flat = 0; flat < array->count; flat++)
        th_get(array, buffer->image, flat); /* rounded; broadcast elements are one */
}

void th_mark_output(const th_array *array, th_device_buffer *buffer)
{
    for (size_t flat = 0; flat < array->count; flat++)
        memset(buffer->output + th_place(array, flat) * array->element, 1, array->element);
}

/* Whether `name` is an array of the pass's arguments. */
static bool takes_part(th_pass pass, size_t name)
{
    switch (pass) {
    case TH_FORWARD:
        return th_is_input(name) || th_is_output(name);
    case TH_BACKWARD:
        return name == TH_LSE_LOW || (name >= TH_CAPTURE_0 && name <= TH_MASK_BLOCKS) ||
               (name <= TH_GRAD_MIX_AFTER && !(name >= TH_NEW_STATE_C && name <= TH_NEW_STATE_M));
    case TH_STATISTICS:
        return (th_is_input(name) && name != TH_V) || (name >= TH_RESPONSIBILITIES && name <= TH_NLL);
    case TH_MASK:
        return name >= TH_CAPTURE_0 && name <= TH_MASK_BLOCKS;
    case TH_APPEND:
        return name == TH_K || name == TH_V || name == TH_SCALE_K || name == TH_SCALE_V ||
               (name >= TH_APPEND_K && name <= TH_APPEND_POSITIONS);
    default:
        return name == TH_O || name == TH_LSE || name == TH_LSE_LOW || (name >= TH_PARTS_O && name <= TH_PARTS_LSE_LOW);
    }
}

static bool is_output(th_pass pass, size_t name)
{
    switch (pass) {
    case TH_BACKWARD:
        return th_is_gradient(name);
    case TH_STATISTICS:
        return name >= TH_RESPONSIBILITIES && name <= TH_NLL;
    case TH_MASK:
        return name == TH_MASK_BLOCKS;
    case TH_APPEND: /* some slots of K and V: tests compare whole buffers */
        return false;
    default:
        return th_is_output(name);
    }
}

static bool in_use(th_pass pass, const th_problem *problem, size_t name)
{
    return problem->array[name].used && takes_part(pass, name);
}

/* Outputs that are added to what is there. */
static bool is_accumulated(uint32_t accumulate, size_t name)
{
    return th_is_gradient(name) && (accumulate >> (name - TH_GRAD_Q) & 1U) != 0;
}

static void set_args(th_device *device, const th_problem *problem)
{
    clmgk_attention_args *const args = &device->args;
    *args = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    for (size_t name = 0; name < TH_ARRAYS; name++) {
        const th_array *const array = &problem->array[name];
        if (in_use(device->pass, problem, name))
            *clmgk_array_buffer(args, (clmgk_array)name) =
                (clmgk_buffer){device->buffer[array->home].memory, array->offset};
    }
    args->seed = problem->seed;
    args->accumulate = problem->accumulate;
    args->parts = problem->parts;
}

/* Room for the workspace, canaries before and after it. */
static void make_workspace(const th_session *session, th_device *device, size_t bytes)
{
    th_device_buffer *const buffer = &device->buffer[TH_WORKSPACE];
    const size_t offset = 252; /* aligned for a float only */
    if (bytes == 0)
        return;
    th_make_image(buffer, offset + bytes + TRAIL_BYTES);
    memset(buffer->output + offset, 1, bytes);
    th_make_memory(session, buffer);
    device->args.workspace = (clmgk_buffer){buffer->memory, offset};
}

th_device th_upload_for(const th_session *session, th_problem *problem, th_pass pass, size_t workspace)
{
    th_device device = {.pass = pass, .accumulate = problem->accumulate};
    size_t bytes[TH_ARRAYS] = {0};
    const bool tight = getenv("CLMGK_TEST_TIGHT") != NULL;
    for (size_t name = 0; name < TH_ARRAYS; name++) {
        const th_array *const array = &problem->array[name];
        if (!in_use(pass, problem, name))
            continue;
        const size_t end = end_bytes(array) + (tight && !is_output(pass, name) ? 0 : TRAIL_BYTES);
        bytes[array->home] = end > bytes[array->home] ? end : bytes[array->home];
    }
    for (size_t name = 0; name < TH_ARRAYS; name++)
        if (bytes[name] > 0)
            th_make_image(&device.buffer[name], bytes[name]);
    for (size_t name = 0; name < TH_ARRAYS; name++) {
        const th_array *const array = &problem->array[name];
        if (!in_use(pass, problem, name))
            continue;
        if (!is_output(pass, name) || is_accumulated(problem->accumulate, name))
            th_write_values(array, &device.buffer[array->home]);
        if (is_output(pass, name))
            th_mark_output(array, &device.buffer[array->home]);
    }
    for (size_t name = 0; name < TH_ARRAYS; name++)
        th_make_memory(session, &device.buffer[name]);
    set_args(&device, problem);
    make_workspace(session, &device, workspace);
    return device;
}

th_device th_upload(const th_session *session, th_problem *problem, size_t workspace)
{
    return th_upload_for(session, problem, TH_FORWARD, workspace);
}

/* ---- download ---------------------------------------------------------------------------------------------------- */

unsigned char *th_read_back(const th_session *session, const th_device_buffer *buffer)
{
    unsigned char *const bytes = malloc(buffer->bytes);
    assert_non_null(bytes);
    assert_int_equal(
        clEnqueueReadBuffer(session->queue, buffer->memory, CL_TRUE, 0, buffer->bytes, bytes, 0, NULL, NULL),
        CL_SUCCESS);
    return bytes;
}

bool th_has_canaries(const th_device_buffer *buffer, const unsigned char *bytes, size_t name, bool whole,
                     th_message *message)
{
    for (size_t n = 0; n < buffer->bytes; n++)
        if (bytes[n] != buffer->image[n] && (whole || !buffer->output[n]))
            return th_say(message, "buffer %zu: byte %zu of %zu was overwritten", name, n, buffer->bytes);
    return true;
}

bool th_take_output(th_array *array, const unsigned char *bytes, size_t name, bool added, th_message *message)
{
    for (size_t flat = 0; flat < array->count; flat++) {
        const unsigned char *const at = bytes + th_place(array, flat) * array->element;
        bool unset = array->element > 1; /* any byte may be the right one */
        for (size_t n = 0; n < array->element; n++)
            unset = unset && at[n] == canary[n % sizeof(canary)];
        if (unset)
            return th_say(message, "output %zu: element %zu of %zu was not written", name, flat, array->count);
        const double before = added ? array->values[flat] : 0.0;
        th_get(array, bytes, flat);
        array->values[flat] -= before;
    }
    return true;
}

/* th_download, but returns false and a message if something is wrong. */
static bool try_download(const th_session *session, th_problem *problem, const th_device *device, th_message *message)
{
    bool ok = true;
    for (size_t home = 0; home < TH_ARRAYS; home++) {
        if (device->buffer[home].bytes == 0)
            continue;
        unsigned char *const bytes = th_read_back(session, &device->buffer[home]);
        ok = ok && th_has_canaries(&device->buffer[home], bytes, home, false, message);
        for (size_t name = 0; name < TH_ARRAYS; name++)
            if (in_use(device->pass, problem, name) && is_output(device->pass, name) &&
                problem->array[name].home == home)
                ok = ok && th_take_output(&problem->array[name], bytes, name, is_accumulated(device->accumulate, name),
                                          message);
        free(bytes);
    }
    return ok;
}

void th_download(const th_session *session, th_problem *problem, const th_device *device)
{
    th_message message;
    if (!try_download(session, problem, device, &message))
        fail_msg("%s", message.text);
}

void th_expect_untouched(const th_session *session, const th_device *device)
{
    for (size_t home = 0; home < TH_ARRAYS; home++) {
        if (device->buffer[home].bytes == 0)
            continue;
        unsigned char *const bytes = th_read_back(session, &device->buffer[home]);
        th_message message;
        if (!th_has_canaries(&device->buffer[home], bytes, home, true, &message))
            fail_msg("%s", message.text);
        free(bytes);
    }
}

void th_device_free(th_device *device)
{
    for (size_t home = 0; home < TH_ARRAYS; home++) {
        th_device_buffer *const buffer = &device->buffer[home];
        free(buffer->image);
        free(buffer->output);
        if (buffer->memory)
            assert_int_equal(clReleaseMemObject(buffer->memory), CL_SUCCESS);
    }
    *device = (th_device){0};
}

/* ---- run and check ----------------------------------------------------------------------------------------------- */

void th_enqueue(clmgk_plan *plan, cl_command_queue queue, const th_device *device, cl_uint num_wait,
                const cl_event *wait_list, cl_event *event)
{
    static clmgk_status (*const enqueue[])(clmgk_plan *, cl_command_queue, const clmgk_attention_args *, cl_uint,
                                           const cl_event *, cl_event *, clmgk_error *) = {
        [TH_FORWARD] = clmgk_enqueue_forward,
        [TH_BACKWARD] = clmgk_enqueue_backward,
        [TH_STATISTICS] = clmgk_enqueue_statistics,
        [TH_COMBINE] = clmgk_enqueue_combine,
        [TH_MASK] = clmgk_enqueue_mask,
        [TH_APPEND] = clmgk_enqueue_append,
    };
    th_expect_ok(enqueue[device->pass](plan, queue, &device->args, num_wait, wait_list, event, &th_error));
}

bool th_try_pass(th_session *session, th_problem *problem, th_pass pass, const clmgk_plan_options *options,
                 th_message *message)
{
    clmgk_plan *const plan = th_plan_of(session, &problem->desc, options);
    th_device device = th_upload_for(session, problem, pass, clmgk_plan_workspace_size(plan));
    th_enqueue(plan, session->queue, &device, 0, NULL, NULL);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    const bool ok = try_download(session, problem, &device, message);
    th_device_free(&device);
    clmgk_plan_release(plan);
    return ok;
}

void th_run_pass(th_session *session, th_problem *problem, th_pass pass, const clmgk_plan_options *options)
{
    th_message message;
    if (!th_try_pass(session, problem, pass, options, &message))
        fail_msg("%s", message.text);
}

void th_run_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = engine;
    options.parameters = parameters;
    th_run_pass(session, problem, TH_FORWARD, &options);
}

void th_run(th_session *session, th_problem *problem, size_t n)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t sequences = desc->sequences > 0 ? desc->sequences : 1;
    /* engines have a form for few rows, which parameters of the usual one would rule out */
    const bool few = desc->length <= 4 * sequences;
    th_run_with(session, problem, session->engine[n], few ? NULL : session->parameters[n]);
}

static int32_t *integers(const th_array *array)
{
    if (!array->used)
        return NULL;
    int32_t *const values = malloc(array->count * sizeof(*values));
    assert_non_null(values);
    for (size_t n = 0; n < array->count; n++)
        values[n] = (int32_t)array->values[n];
    return values;
}

/* How many of `rows` rows the reference may solve. */
static int64_t affordable(const clmgk_attention_desc *desc, int64_t rows)
{
    const double before = desc->mix_after_heads > 0 ? (double)(desc->mix_after_heads * desc->heads) : 1.0;
    const double cost = (double)desc->length_k *
                        ((double)desc->components * (double)desc->head_size + before * (double)desc->value_size);
    const double count = ceil(SOLVE_BUDGET / fmax(cost, 1.0));
    return count < (double)rows ? (int64_t)count : rows;
}

th_reference th_reference_of(const th_problem *problem)
{
    const th_array *const a = problem->array;
    th_reference out = {.problem = {.desc = problem->desc, .seed = problem->seed}};
#define STORAGE(name)                    (a[name].used ? a[name].values : NULL)
#define F32(name)                        STORAGE(name)
#define CAPTURE(name)                    STORAGE(name)
#define I32(name)                        (out.integers[name] = integers(&a[name]))
#define BYTE(name)                       NULL
#define FIELD(name, field, element, ...) out.problem.field = element(TH_##name);
    CLMGK_ARRAY_LIST(FIELD, CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE)
#undef STORAGE
#undef F32
#undef CAPTURE
#undef I32
#undef BYTE
#undef FIELD
    assert_true(clmgk_ref_gather(&out.problem, &out.gathered));
    out.problem = out.gathered.problem;
    return out;
}

void th_reference_free(th_reference *reference)
{
    for (size_t name = 0; name < TH_ARRAYS; name++)
        free(reference->integers[name]);
    clmgk_ref_gathered_free(&reference->gathered);
    *reference = (th_reference){0};
}

clmgk_ref_answer th_solve(const th_problem *problem)
{
    th_reference reference = th_reference_of(problem);
    const int64_t rows = problem->desc.batch * problem->desc.heads * problem->desc.length;
    const int64_t count = affordable(&problem->desc, rows);
    int64_t *const row = malloc(((size_t)count + 1) * sizeof(*row));
    clmgk_ref_answer answer;
    assert_non_null(row);
    for (int64_t n = 0; n < count; n++) /* evenly, the first and the last included */
        row[n] = count > 1 ? n * (rows - 1) / (count - 1) : 0;
    assert_true(clmgk_ref_solve(&reference.problem, count, row, &answer));
    th_reference_free(&reference);
    free(row);
    return answer;
}

bool th_matches(const th_problem *problem, th_name name, const clmgk_ref_answer *answer, th_message *message)
{
    const size_t size = name == TH_O ? (size_t)answer->value_size : 1;
    const clmgk_ref_answer *const rows = name != TH_O && answer->before ? answer->before : answer;
    double *const given = malloc(((size_t)rows->rows * size + 1) * sizeof(*given));
    assert_non_null(given);
    for (int64_t n = 0; n < rows->rows; n++)
        memcpy(given + (size_t)n * size, problem->array[name].values + (size_t)rows->row[n] * size,
               size * sizeof(*given));
    const clmgk_ref_verdict verdict =
        name == TH_O ? clmgk_ref_check(answer, given, NULL) : clmgk_ref_check(answer, answer->o, given);
    free(given);
    return verdict.ok || th_say(message, "%s", verdict.message);
}

/* The denominators, of a problem that has them. */
static bool denominators_match(const th_problem *problem, const clmgk_ref_answer *answer, th_message *message)
{
    if (!problem->array[TH_DENOMINATOR].used)
        return true;
    double *const given = malloc(((size_t)answer->rows + 1) * 2 * sizeof(*given));
    assert_non_null(given);
    for (int64_t n = 0; n < answer->rows; n++)
        memcpy(given + 2 * n, problem->array[TH_DENOMINATOR].values + 2 * answer->row[n], 2 * sizeof(*given));
    const bool ok = clmgk_ref_check_denominators(answer, given, message->text, sizeof(message->text));
    free(given);
    return ok;
}

bool th_matches_state(const th_problem *problem, th_message *message)
{
    const th_array *const state = &problem->array[TH_NEW_STATE_C];
    message->text[0] = '\0';
    if (!problem->desc.use_new_state)
        return true;
    th_reference reference = th_reference_of(problem);
    TH_REF_ARRAYS exact;
    assert_true(clmgk_ref_solve_state(&reference.problem, &exact));
    th_reference_free(&reference);
    for (int which = CLMGK_REF_STATE_C; which <= CLMGK_REF_STATE_Z && message->text[0] == '\0'; which++) {
        const size_t bytes = state[which].count * sizeof(double);
        double *const values = malloc(bytes + 1);
        assert_non_null(values);
        memcpy(values, state[which].values, bytes);
        clmgk_ref_rescale_state(&exact, which, state[CLMGK_REF_STATE_M].used ? state[CLMGK_REF_STATE_M].values : NULL,
                                values);
        clmgk_ref_check_array(&exact, which, values, message->text, sizeof(message->text));
        free(values);
    }
    return message->text[0] == '\0';
}

void th_check(th_session *session, const th_problem *problem, clmgk_engine engine, const clmgk_ref_answer *answer)
{
    char text[512];
    th_message message;
    session->cases++;
    if (th_matches(problem, TH_O, answer, &message) &&
        (!problem->array[TH_LSE].used || th_matches(problem, TH_LSE, answer, &message)) &&
        denominators_match(problem, answer, &message) && th_matches_state(problem, &message))
        return;
    th_describe(problem, engine, text, sizeof(text));
    fail_msg("%s: %s", text, message.text);
}

bool th_is_tenth_program(const th_session *session)
{
    return session->full || session->program % 10 == 0;
}

bool th_other_engines(const th_session *session, const th_problem *problem)
{
    return session->full || (th_is_tenth_program(session) && problem->seed < UINT64_MAX / 3);
}

/* Runs on the first `engines` engines; 0: on those that th_other_engines chooses. */
static void expect_on(th_session *session, th_problem *problem, size_t engines)
{
    TH_REF_ANSWER answer = {0};
    for (size_t n = 0; n == 0 || n < engines; n++) {
        th_run(session, problem, n);
        if (n == 0) {
            answer = th_solve(problem); /* of the values as the device holds them */
            engines = engines == 0 && th_other_engines(session, problem) ? session->engines : engines;
        }
        th_check(session, problem, session->engine[n], &answer);
    }
}

void th_sweep(th_session *session, th_problem *problem, size_t index)
{
    expect_on(session, problem, session->full || index % 4 == 0 ? session->engines : 1);
}

/* Copies all inputs; of keys and values only the part from key `begin` of the whole on. */
static void copy_inputs(th_problem *part, const th_problem *whole, int64_t begin)
{
    for (th_name name = 0; name < TH_ARRAYS; name++) {
        const th_array *const source = &whole->array[name], *const target = &part->array[name];
        const bool keys = name == TH_K || name == TH_V;
        const int64_t size = source->shape[4], row = keys ? target->shape[3] * size : (int64_t)target->count;
        if (!th_is_input(name) || !target->used)
            continue;
        for (int64_t outer = 0; row > 0 && outer < (int64_t)target->count / row; outer++)
            memcpy(target->values + outer * row, source->values + (keys ? outer * source->shape[3] + begin : 0) * size,
                   (size_t)row * sizeof(double));
    }
}

/* Runs part number `part`, the keys begin .. end - 1, and writes its results to their place in the whole. */
static void run_part(th_session *session, th_problem *whole, const clmgk_plan_options *options, int64_t part,
                     int64_t begin, int64_t end)
{
    clmgk_attention_desc desc = whole->desc;
    desc.length_k = end - begin; /* resolved: 0 is none */
    desc.combine = 0;
    desc.q = desc.k = desc.v = desc.o = desc.lse = (clmgk_layout){0};
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    copy_inputs(&problem, whole, begin);
    th_run_pass(session, &problem, TH_FORWARD, options);
    static const th_name outputs[] = {TH_O, TH_LSE, TH_LSE_LOW};
    for (size_t output = 0; output < TH_COUNT(outputs) - (desc.use_lse_low == 0); output++) {
        const th_array *const array = &problem.array[outputs[output]];
        memcpy(whole->array[TH_PARTS_O + output].values + (size_t)part * array->count, array->values,
               array->count * sizeof(double));
    }
}

void th_expect_combined(th_session *session, th_problem *problem, const clmgk_plan_options *options, int64_t parts,
                        const int64_t *cut)
{
    th_run_pass(session, problem, TH_FORWARD, options); /* rounds the values */
    TH_REF_ANSWER answer = th_solve(problem);
    th_add_parts(problem, parts);
    for (int64_t p = 0; p < parts; p++)
        run_part(session, problem, options, p, cut[p], cut[p + 1]);
    th_run_pass(session, problem, TH_COMBINE, options);
    th_check(session, problem, options->engine, &answer);
}

void th_expect_forward(th_session *session, th_problem *problem, const clmgk_plan_options *options)
{
    th_run_pass(session, problem, TH_FORWARD, options);
    TH_REF_ANSWER answer = th_solve(problem);
    th_check(session, problem, options->engine, &answer);
}

void th_expect_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = engine;
    options.parameters = parameters;
    th_expect_forward(session, problem, &options);
}

void th_expect(th_session *session, th_problem *problem)
{
    expect_on(session, problem, 0);
}

void th_sweep_desc(th_session *session, const clmgk_attention_desc *desc, uint64_t seed, size_t index)
{
    th_problem problem = th_problem_make(desc, seed);
    th_sweep(session, &problem, index);
    th_problem_free(&problem);
}

void th_expect_desc(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    th_problem problem = th_problem_make(desc, seed);
    th_expect(session, &problem);
    th_problem_free(&problem);
}
