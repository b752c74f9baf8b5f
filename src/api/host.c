/* SPDX-License-Identifier: Apache-2.0 */
/* The simple call: arrays on the host, a device picked for the caller. */
#include "api/plan.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What one call holds; released by host_close whatever happened. */
typedef struct host_call {
    cl_context cl;
    cl_command_queue queue;
    clmgk_context *context;
    clmgk_plan *plan;
    cl_mem memory[MGK_ARRAYS];
    size_t bytes[MGK_ARRAYS]; /* from the first element to one past the last; 0: not given or empty */
    void *result[MGK_ARRAYS]; /* of outputs, before they are copied to the caller */
} host_call;

static void host_close(host_call *call)
{
    for (size_t i = 0; i < MGK_ARRAYS; ++i) {
        if (call->memory[i] != NULL)
            clReleaseMemObject(call->memory[i]);
        mgk_free(NULL, call->result[i]);
    }
    clmgk_plan_release(call->plan);
    clmgk_context_release(call->context);
    if (call->queue != NULL)
        clReleaseCommandQueue(call->queue);
    if (call->cl != NULL)
        clReleaseContext(call->cl);
}

static void list_pointers(const clmgk_host_args *args, const void *pointers[MGK_ARRAYS])
{
    pointers[MGK_Q] = args->q;
    pointers[MGK_K] = args->k;
    pointers[MGK_V] = args->v;
    pointers[MGK_O] = args->o;
    pointers[MGK_LSE] = args->lse;
    pointers[MGK_PRIOR] = args->prior;
    pointers[MGK_VARIANCE] = args->variance;
    pointers[MGK_SHIFT] = args->shift;
    pointers[MGK_LENGTHS] = args->lengths;
    pointers[MGK_LENGTHS_Q] = args->lengths_q;
}

/* ---- values, which are in reach here ------------------------------------------------------------------------ */

static clmgk_status check_lengths(const char *name, const int32_t *lengths, int64_t batch, int64_t most,
                                  clmgk_error *error)
{
    for (int64_t b = 0; b < batch; ++b)
        if (lengths[b] < 0 || lengths[b] > most)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[%" PRId64 "]: %" PRId32 ": expected 0 to %" PRId64,
                            name, b, lengths[b], most);
    return CLMGK_OK;
}

static int64_t count_of(const clmgk_attention_desc *desc, mgk_array array)
{
    const mgk_shape shape = mgk_shape_of(desc, array);
    int64_t count = 1;
    for (int i = 0; i < shape.rank; ++i)
        count *= shape.size[i];
    return shape.rank == 0 ? 0 : count;
}

static clmgk_status check_values(const clmgk_attention_desc *desc, const clmgk_host_args *args, clmgk_error *error)
{
    if (desc->use_lengths)
        MGK_TRY(check_lengths("lengths", args->lengths, desc->batch, desc->length_k, error));
    if (desc->use_lengths_q)
        MGK_TRY(check_lengths("lengths_q", args->lengths_q, desc->batch, desc->length, error));
    const int64_t priors = count_of(desc, MGK_PRIOR);
    for (int64_t i = 0; i < priors; ++i)
        if (!(args->prior[i] >= 0.0f) || isinf(args->prior[i]))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "prior[%" PRId64 "]: %g: expected 0 or more, finite", i,
                            (double)args->prior[i]);
    const int64_t variances = count_of(desc, MGK_VARIANCE);
    for (int64_t i = 0; i < variances; ++i)
        if (!(args->variance[i] > 0.0f) || isinf(args->variance[i]))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "variance[%" PRId64 "]: %g: expected positive and finite",
                            i, (double)args->variance[i]);
    return CLMGK_OK;
}

static clmgk_status check_pointers(const clmgk_attention_desc *desc, const void *const pointers[MGK_ARRAYS],
                                   size_t bytes[MGK_ARRAYS], clmgk_error *error)
{
    for (int i = 0; i < MGK_ARRAYS; ++i) {
        const mgk_presence presence = mgk_presence_of(desc, (mgk_array)i);
        const mgk_shape shape = mgk_shape_of(desc, (mgk_array)i);
        int64_t extent = 0;
        if (!mgk_shape_extent(&shape, &extent) || (extent > 0 && (uint64_t)extent > SIZE_MAX / shape.element))
            return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its extent does not fit in memory", shape.name);
        if (presence == MGK_ABSENT && pointers[i] != NULL)
            return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: given, but the descriptor does not use it",
                            shape.name);
        if (presence == MGK_REQUIRED && pointers[i] == NULL && extent > 0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected an array", shape.name);
        bytes[i] = pointers[i] != NULL ? (size_t)extent * shape.element : 0;
    }
    return CLMGK_OK;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

static bool is_output(int array)
{
    return array == MGK_O || array == MGK_LSE;
}

static clmgk_status open_device(host_call *call, const char *selector, clmgk_error *error)
{
    clmgk_device_info info;
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

/* Outputs are copied to the device too: what lies between their strides comes back as it was. */
static clmgk_status create_buffers(host_call *call, const void *const pointers[MGK_ARRAYS], clmgk_error *error)
{
    for (int i = 0; i < MGK_ARRAYS; ++i) {
        if (call->bytes[i] == 0)
            continue;
        cl_int code = CL_SUCCESS;
        const cl_mem_flags flags = CL_MEM_COPY_HOST_PTR | (is_output(i) ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY);
        void *host = NULL;
        memcpy(&host, &pointers[i], sizeof(host)); /* OpenCL's signature lacks a const; it only reads */
        call->memory[i] = clCreateBuffer(call->cl, flags, call->bytes[i], host, &code);
        if (call->memory[i] == NULL)
            return mgk_fail_cl(error, code, "clCreateBuffer");
    }
    return CLMGK_OK;
}

static clmgk_status read_outputs(host_call *call, clmgk_error *error)
{
    for (int i = 0; i < MGK_ARRAYS; ++i) {
        if (!is_output(i) || call->bytes[i] == 0)
            continue;
        call->result[i] = mgk_alloc(NULL, call->bytes[i], 1);
        if (call->result[i] == NULL)
            return mgk_fail_memory(error, "an output");
        const cl_int code = clEnqueueReadBuffer(call->queue, call->memory[i], CL_TRUE, 0, call->bytes[i],
                                                call->result[i], 0, NULL, NULL);
        if (code != CL_SUCCESS)
            return mgk_fail_cl(error, code, "clEnqueueReadBuffer");
    }
    return CLMGK_OK;
}

static clmgk_status run(host_call *call, clmgk_error *error)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.q.memory = call->memory[MGK_Q];
    args.k.memory = call->memory[MGK_K];
    args.v.memory = call->memory[MGK_V];
    args.o.memory = call->memory[MGK_O];
    args.lse.memory = call->memory[MGK_LSE];
    args.prior.memory = call->memory[MGK_PRIOR];
    args.variance.memory = call->memory[MGK_VARIANCE];
    args.shift.memory = call->memory[MGK_SHIFT];
    args.lengths.memory = call->memory[MGK_LENGTHS];
    args.lengths_q.memory = call->memory[MGK_LENGTHS_Q];

    cl_int code = CL_SUCCESS;
    cl_mem workspace = NULL;
    const size_t bytes = clmgk_plan_workspace_size(call->plan);
    if (bytes > 0) {
        workspace = clCreateBuffer(call->cl, CL_MEM_READ_WRITE, bytes, NULL, &code);
        if (workspace == NULL)
            return mgk_fail_cl(error, code, "clCreateBuffer");
        args.workspace.memory = workspace;
    }
    clmgk_status status = clmgk_enqueue_forward(call->plan, call->queue, &args, 0, NULL, NULL, error);
    code = clFinish(call->queue);
    if (status == CLMGK_OK && code != CL_SUCCESS)
        status = mgk_fail_cl(error, code, "clFinish");
    if (workspace != NULL)
        clReleaseMemObject(workspace);
    return status;
}

clmgk_status clmgk_attention_forward_host(const char *selector, const clmgk_attention_desc *desc,
                                          const clmgk_host_args *args, clmgk_error *error)
{
    if (args == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "args: NULL: expected the call's arrays");
    clmgk_attention_desc resolved;
    clmgk_host_args given;
    const void *pointers[MGK_ARRAYS];
    host_call call = {0};
    MGK_TRY(clmgk_attention_validate(desc, &resolved, error));
    MGK_TRY(mgk_struct_read(args, "args", sizeof(given), &given, sizeof(given), error));
    list_pointers(&given, pointers);
    MGK_TRY(check_pointers(&resolved, pointers, call.bytes, error));
    MGK_TRY(check_values(&resolved, &given, error));

    clmgk_status status;
    MGK_TRY_GOTO(status, open_device(&call, selector, error), done);
    MGK_TRY_GOTO(status, clmgk_plan_create(call.context, &resolved, NULL, &call.plan, error), done);
    MGK_TRY_GOTO(status, create_buffers(&call, pointers, error), done);
    MGK_TRY_GOTO(status, run(&call, error), done);
    MGK_TRY_GOTO(status, read_outputs(&call, error), done);
    if (call.result[MGK_O] != NULL)
        memcpy(given.o, call.result[MGK_O], call.bytes[MGK_O]);
    if (call.result[MGK_LSE] != NULL)
        memcpy(given.lse, call.result[MGK_LSE], call.bytes[MGK_LSE]);
done:
    host_close(&call);
    return status;
}
