/* SPDX-License-Identifier: Apache-2.0 */
/* The simple calls: arrays on the host, device chosen by the library. */
#include "attention/plan.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A call's objects, which host_close releases after success and failure. */
typedef struct host_call {
    clmgk_pass pass;
    clmgk_attention_desc desc;    /* only the fields that the pass needs */
    clmgk_host_args args;         /* the caller's */
    void *pointer[CLMGK_ARRAYS];  /* of `args`; NULL: not given, or not used by the pass */
    bool is_output[CLMGK_ARRAYS]; /* the others are only read */

    cl_context cl;
    cl_command_queue queue;
    clmgk_context *context;
    clmgk_plan *plan;
    clmgk_buffer buffer[CLMGK_ARRAYS]; /* including the workspace */
    size_t bytes[CLMGK_ARRAYS];        /* from the first element to one past the last; 0: not given or empty */
    void *result[CLMGK_ARRAYS];        /* outputs, before they are copied to the caller */
} host_call;

static void host_close(host_call *call)
{
    for (size_t i = 0; i < CLMGK_ARRAYS; ++i) {
        if (call->buffer[i].memory != NULL)
            clReleaseMemObject(call->buffer[i].memory);
        mgk_free(NULL, call->result[i]);
    }
    clmgk_plan_release(call->plan);
    clmgk_context_release(call->context);
    if (call->queue != NULL)
        clReleaseCommandQueue(call->queue);
    if (call->cl != NULL)
        clReleaseContext(call->cl);
}

/* ---- the caller's pointers ---------------------------------------------------------------------------------- */

void *mgk_host_pointer(const clmgk_host_args *args, clmgk_array array)
{
#define FIELD_STORAGE(field) offsetof(clmgk_host_args, field)
#define FIELD_F32(field)     offsetof(clmgk_host_args, field)
#define FIELD_I32(field)     offsetof(clmgk_host_args, field)
#define FIELD_CAPTURE(field) offsetof(clmgk_host_args, field)
#define FIELD_BYTE(field)    0
    static const size_t offsets[] = {
#define FIELD(name, field, element, ...)             FIELD_##element(field),
#define FIELD_OF_GRADIENT(name, field, element, ...) FIELD_##element(grad_##field),
#define FIELD_OF_STATISTIC(name, field, ...)         FIELD_F32(field),
        CLMGK_ARRAY_LIST(FIELD, FIELD_OF_GRADIENT, FIELD_OF_STATISTIC)};
    void *pointer = NULL;
    if (offsets[array] != 0)
        memcpy(&pointer, (const char *)args + offsets[array], sizeof(pointer));
    return pointer;
}

static clmgk_status check_pointer(host_call *call, clmgk_array array, clmgk_error *error)
{
    const clmgk_attention_desc *const desc = &call->desc;
    const clmgk_presence presence = mgk_array_presence(desc, call->pass, array);
    const size_t element = mgk_array_element_size(desc, array);
    void *const pointer = mgk_host_pointer(&call->args, array);
    int64_t extent = 0;
    if (!mgk_array_extent(desc, array, &extent) || (extent > 0 && (uint64_t)extent > SIZE_MAX / element))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its extent does not fit in memory", clmgk_array_name(array));
    if (pointer != NULL && presence == CLMGK_ABSENT && mgk_array_is_of_pass(call->pass, array))
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: given, but the descriptor (variant %s) does not use it",
                        clmgk_array_name(array), clmgk_variant_name(desc->variant));
    if (pointer == NULL && presence == CLMGK_REQUIRED && extent > 0)
        return mgk_fail_missing(desc, call->pass, array, "an array", error);
    if (pointer == NULL || presence == CLMGK_ABSENT)
        return CLMGK_OK;
    call->pointer[array] = pointer;
    call->is_output[array] = mgk_array_is_output(desc, call->pass, array);
    call->bytes[array] = (size_t)extent * element;
    return CLMGK_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------- */

static clmgk_status check_lengths(const char *name, const int32_t *lengths, int64_t batch, int64_t most,
                                  clmgk_error *error)
{
    for (int64_t b = 0; b < batch; ++b)
        if (lengths[b] < 0 || lengths[b] > most)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[%" PRId64 "]: %" PRId32 ": expected 0 to %" PRId64,
                            name, b, lengths[b], most);
    return CLMGK_OK;
}

static clmgk_status check_offsets(const char *name, const int32_t *offsets, int64_t sequences, int64_t end,
                                  clmgk_error *error)
{
    if (offsets[0] != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[0]: %" PRId32 ": expected 0", name, offsets[0]);
    for (int64_t t = 1; t <= sequences; ++t)
        if (offsets[t] < offsets[t - 1])
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "%s[%" PRId64 "]: %" PRId32 ": expected at least the preceding offset, %" PRId32, name, t,
                            offsets[t], offsets[t - 1]);
    if (offsets[sequences] != end)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "%s[%" PRId64 "]: %" PRId32 ": expected the end of the axis, %" PRId64, name, sequences,
                        offsets[sequences], end);
    return CLMGK_OK;
}

static bool holds(clmgk_values values, float value)
{
    switch (values) {
    case CLMGK_VALUES_FINITE:
        return isfinite(value);
    case CLMGK_VALUES_NOT_NEGATIVE:
        return value >= 0.0F && !isinf(value);
    case CLMGK_VALUES_POSITIVE:
        return value > 0.0F && !isinf(value);
    case CLMGK_VALUES_NOT_RAISED: /* -inf hides a key */
        return value < INFINITY;
    default:
        return true;
    }
}

static clmgk_status check_floats(const host_call *call, clmgk_array array, clmgk_error *error)
{
    static const char *const expected[] = {
        [CLMGK_VALUES_FINITE] = "a finite number",
        [CLMGK_VALUES_NOT_NEGATIVE] = "0 or more, finite",
        [CLMGK_VALUES_POSITIVE] = "positive and finite",
        [CLMGK_VALUES_NOT_RAISED] = "a number or -inf",
    };
    const clmgk_values values = clmgk_array_get_info(array)->values;
    const float *const numbers = call->pointer[array];
    const int64_t count = values == CLMGK_VALUES_ANY ? 0 : mgk_array_count(&call->desc, array);
    for (int64_t i = 0; i < count; ++i)
        if (!holds(values, numbers[i]))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[%" PRId64 "]: %g: expected %s",
                            clmgk_array_name(array), i, (double)numbers[i], expected[values]);
    return CLMGK_OK;
}

static clmgk_status check_values(const host_call *call, clmgk_array array, clmgk_error *error)
{
    const clmgk_attention_desc *const desc = &call->desc;
    const bool of_keys = array == CLMGK_ARRAY_LENGTHS || array == CLMGK_ARRAY_OFFSETS_K;
    const int64_t axis = of_keys ? desc->length_k : desc->length;
    if (call->pointer[array] == NULL || call->is_output[array])
        return CLMGK_OK;
    switch (clmgk_array_get_info(array)->values) {
    case CLMGK_VALUES_LENGTHS:
        return check_lengths(clmgk_array_name(array), call->pointer[array], mgk_array_count(desc, array), axis, error);
    case CLMGK_VALUES_OFFSETS:
        return check_offsets(clmgk_array_name(array), call->pointer[array], desc->sequences, axis, error);
    case CLMGK_VALUES_POSITIONS:
        return check_lengths(clmgk_array_name(array), call->pointer[array], mgk_array_count(desc, array),
                             MGK_MOST_POSITION, error);
    case CLMGK_VALUES_PAGES: /* together, by clmgk_check_pages */
    case CLMGK_VALUES_SLOTS: /* by clmgk_check_state_slots; each array has memory of its own on the device */
        return CLMGK_OK;
    default:
        return check_floats(call, array, error);
    }
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

static clmgk_status open_device(host_call *call, const char *selector, clmgk_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    MGK_TRY(clmgk_select_device(selector, &info, error));
    cl_int code = CL_SUCCESS;
    call->cl = clCreateContext(NULL, 1, &info.device_id, NULL, NULL, &code);
    if (call->cl == NULL)
        return mgk_fail_cl(error, code, "clCreateContext");
    call->queue = clCreateCommandQueue(call->cl, info.device_id, 0, &code);
    if (call->queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    return clmgk_context_create(call->cl, info.device_id, NULL, &call->context, error);
}

/* Outputs are copied to the device too: gradients may be added to them, and gaps between strides keep their values. */
static clmgk_status create_buffer(host_call *call, int array, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    const cl_mem_flags access = call->is_output[array] ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
    call->buffer[array].memory =
        clCreateBuffer(call->cl, CL_MEM_COPY_HOST_PTR | access, call->bytes[array], call->pointer[array], &code);
    return call->buffer[array].memory != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
}

static clmgk_status create_buffers(host_call *call, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAY_WORKSPACE; ++i)
        if (call->bytes[i] > 0)
            MGK_TRY(create_buffer(call, i, error));
    const size_t workspace = clmgk_plan_workspace_size(call->plan);
    if (workspace == 0)
        return CLMGK_OK;
    cl_int code = CL_SUCCESS;
    call->buffer[CLMGK_ARRAY_WORKSPACE].memory = clCreateBuffer(call->cl, CL_MEM_READ_WRITE, workspace, NULL, &code);
    return call->buffer[CLMGK_ARRAY_WORKSPACE].memory != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
}

static clmgk_status read_outputs(host_call *call, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAY_WORKSPACE; ++i) {
        if (!call->is_output[i] || call->bytes[i] == 0)
            continue;
        call->result[i] = mgk_alloc(NULL, call->bytes[i], 1);
        if (call->result[i] == NULL)
            return mgk_fail_memory(error, "an output");
        const cl_int code = clEnqueueReadBuffer(call->queue, call->buffer[i].memory, CL_TRUE, 0, call->bytes[i],
                                                call->result[i], 0, NULL, NULL);
        MGK_TRY(mgk_check_cl(error, code, "clEnqueueReadBuffer"));
    }
    return CLMGK_OK;
}

/* Copies only elements: memory between them may belong to another output. */
static void copy_elements(char *to, const char *from, const clmgk_shape *shape, size_t element)
{
    int64_t index[CLMGK_MAX_RANK] = {0};
    int64_t run = 1; /* elements of the last axes, which are contiguous */
    int outer = shape->rank;
    while (outer > 0 && (shape->size[outer - 1] == 1 || shape->stride[outer - 1] == run))
        run *= shape->size[--outer];
    int axis = 0;
    while (axis >= 0) {
        int64_t place = 0;
        for (int i = 0; i < outer; ++i)
            place += index[i] * shape->stride[i];
        memcpy(to + (size_t)place * element, from + (size_t)place * element, (size_t)run * element);
        for (axis = outer - 1; axis >= 0 && ++index[axis] == shape->size[axis]; --axis)
            index[axis] = 0;
    }
}

static void deliver(const host_call *call, clmgk_array array)
{
    const clmgk_shape shape = mgk_array_used_shape(&call->desc, array);
    copy_elements(call->pointer[array], call->result[array], &shape, mgk_array_element_size(&call->desc, array));
}

static clmgk_status enqueue(host_call *call, clmgk_error *error)
{
    clmgk_status (*const enqueues[])(clmgk_plan *, cl_command_queue, const clmgk_attention_args *, cl_uint,
                                     const cl_event *, cl_event *, clmgk_error *) = {
        clmgk_enqueue_forward, clmgk_enqueue_backward, clmgk_enqueue_statistics};
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.seed = call->args.seed;
    args.accumulate = call->args.accumulate;
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        *clmgk_array_buffer(&args, (clmgk_array)i) = call->buffer[i];
    return enqueues[call->pass](call->plan, call->queue, &args, 0, NULL, NULL, error);
}

static clmgk_status run(host_call *call, clmgk_error *error)
{
    const clmgk_status status = enqueue(call, error);
    const cl_int code = clFinish(call->queue);
    return status == CLMGK_OK ? mgk_check_cl(error, code, "clFinish") : status;
}

/* ---- the public calls --------------------------------------------------------------------------------------- */

/* Reads the call, and the pass's part of the descriptor. */
static clmgk_status host_begin(host_call *call, clmgk_pass pass, const clmgk_attention_desc *desc,
                               const clmgk_host_args *args, clmgk_error *error)
{
    if (args == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "args: NULL: expected the call's arrays");
    MGK_TRY(mgk_attention_resolve(desc, &call->desc, error));
    MGK_TRY(mgk_struct_read(args, "args", sizeof(call->args), &call->args, sizeof(call->args), error));
    if (pass == CLMGK_PASS_BACKWARD && call->desc.gradients == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: 0: expected a set of clmgk_gradient");
    if (pass == CLMGK_PASS_STATISTICS && call->desc.statistics == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "statistics: 0: expected a set of clmgk_statistic");
    if (pass == CLMGK_PASS_BACKWARD && (call->args.accumulate & ~(uint32_t)CLMGK_GRADIENT_ALL) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "accumulate: %" PRIu32 ": expected a set of flags, at most %d", call->args.accumulate,
                        CLMGK_GRADIENT_ALL);
    call->pass = pass;
    call->desc.gradients = pass == CLMGK_PASS_BACKWARD ? call->desc.gradients : 0;
    call->desc.statistics = pass == CLMGK_PASS_STATISTICS ? call->desc.statistics : 0;
    call->desc.combine = call->desc.sizes_at_call = 0;
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        MGK_TRY(check_pointer(call, (clmgk_array)i, error));
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        MGK_TRY(check_values(call, (clmgk_array)i, error));
    if (call->desc.page_size > 0 && call->desc.length_k > 0)
        MGK_TRY(clmgk_check_pages(&call->desc, call->pointer[CLMGK_ARRAY_PAGE_TABLE],
                                  call->pointer[CLMGK_ARRAY_PAGE_OFFSETS], call->pointer[CLMGK_ARRAY_LAST_PAGE],
                                  call->pointer[CLMGK_ARRAY_LENGTHS], error));
    if (call->desc.state_pool > 0 && pass == CLMGK_PASS_FORWARD)
        MGK_TRY(clmgk_check_state_slots(&call->desc, call->pointer[CLMGK_ARRAY_STATE_SLOTS],
                                        call->pointer[CLMGK_ARRAY_NEW_STATE_SLOTS], 0, error));
    return CLMGK_OK;
}

/* Checks, before anything is compiled, that the device can allocate each array. */
static clmgk_status check_room(const host_call *call, clmgk_error *error)
{
    const clmgk_device_info *const info = &call->context->facts.info;
    for (int i = 0; i < CLMGK_ARRAY_WORKSPACE; ++i)
        if (call->bytes[i] > info->max_allocation_bytes)
            return mgk_fail(error, CLMGK_ERROR_OUT_OF_DEVICE_MEMORY,
                            "%s: %zu bytes: expected at most %" PRIu64 ", the largest buffer of the device \"%s\"",
                            clmgk_array_name((clmgk_array)i), call->bytes[i], info->max_allocation_bytes, info->name);
    return CLMGK_OK;
}

static clmgk_status host_run(const char *selector, clmgk_pass pass, const clmgk_attention_desc *desc,
                             const clmgk_host_args *args, clmgk_error *error)
{
    host_call call = {.pass = pass};
    clmgk_status status;
    MGK_TRY(host_begin(&call, pass, desc, args, error));
    MGK_TRY_GOTO(status, open_device(&call, selector, error), done);
    MGK_TRY_GOTO(status, check_room(&call, error), done);
    MGK_TRY_GOTO(status, clmgk_plan_create(call.context, &call.desc, NULL, &call.plan, error), done);
    MGK_TRY_GOTO(status, create_buffers(&call, error), done);
    MGK_TRY_GOTO(status, run(&call, error), done);
    MGK_TRY_GOTO(status, read_outputs(&call, error), done);
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        if (call.result[i] != NULL)
            deliver(&call, (clmgk_array)i);
done:
    host_close(&call);
    return status;
}

clmgk_status clmgk_attention_forward_host(const char *selector, const clmgk_attention_desc *desc,
                                          const clmgk_host_args *args, clmgk_error *error)
{
    return host_run(selector, CLMGK_PASS_FORWARD, desc, args, error);
}

clmgk_status clmgk_attention_backward_host(const char *selector, const clmgk_attention_desc *desc,
                                           const clmgk_host_args *args, clmgk_error *error)
{
    return host_run(selector, CLMGK_PASS_BACKWARD, desc, args, error);
}

clmgk_status clmgk_attention_statistics_host(const char *selector, const clmgk_attention_desc *desc,
                                             const clmgk_host_args *args, clmgk_error *error)
{
    return host_run(selector, CLMGK_PASS_STATISTICS, desc, args, error);
}
