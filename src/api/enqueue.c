/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueueing a plan: the call's buffers checked, bound and launched. Nothing here compiles, allocates or waits. */
#include "api/plan.h"

#include <inttypes.h>

/* The arrays of a call in mgk_array's order. */
static void list_arrays(const clmgk_attention_args *args, const clmgk_buffer *arrays[MGK_ARRAYS])
{
    arrays[MGK_Q] = &args->q;
    arrays[MGK_K] = &args->k;
    arrays[MGK_V] = &args->v;
    arrays[MGK_O] = &args->o;
    arrays[MGK_LSE] = &args->lse;
    arrays[MGK_PRIOR] = &args->prior;
    arrays[MGK_VARIANCE] = &args->variance;
    arrays[MGK_SHIFT] = &args->shift;
    arrays[MGK_LENGTHS] = &args->lengths;
    arrays[MGK_LENGTHS_Q] = &args->lengths_q;
}

/* A buffer of the context, with room for `bytes` bytes from `offset` elements of `element` bytes on. */
static clmgk_status check_memory(const clmgk_plan *plan, const clmgk_buffer *buffer, const char *name, uint64_t element,
                                 uint64_t bytes, clmgk_error *error)
{
    cl_context context = NULL;
    size_t size = 0;
    cl_int code = clGetMemObjectInfo(buffer->memory, CL_MEM_CONTEXT, sizeof(context), &context, NULL);
    if (code == CL_INVALID_MEM_OBJECT)
        return mgk_fail_code(error, CLMGK_ERROR_INVALID_BUFFER, code, "%s: expected a memory object", name);
    if (code != CL_SUCCESS)
        return mgk_fail_cl(error, code, "clGetMemObjectInfo");
    if (context != plan->context->context)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: a buffer of another OpenCL context than the plan's",
                        name);
    code = clGetMemObjectInfo(buffer->memory, CL_MEM_SIZE, sizeof(size), &size, NULL);
    if (code != CL_SUCCESS)
        return mgk_fail_cl(error, code, "clGetMemObjectInfo");
    if (bytes > 0 && (buffer->offset > (UINT64_MAX - bytes) / element || buffer->offset * element + bytes > size))
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: a buffer of %zu bytes: expected %" PRIu64 " bytes from element %" PRIu64 " on", name, size,
                        bytes, buffer->offset);
    return CLMGK_OK;
}

static clmgk_status check_array(const clmgk_plan *plan, mgk_array array, const clmgk_buffer *buffer, clmgk_error *error)
{
    const mgk_presence presence = mgk_presence_of(&plan->desc, array);
    const mgk_shape shape = mgk_shape_of(&plan->desc, array);
    int64_t extent = 0;
    if (presence == MGK_ABSENT && buffer->memory != NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: given, but the plan's descriptor does not use it",
                        shape.name);
    if (presence == MGK_REQUIRED && buffer->memory == NULL) {
        /* OpenCL has no empty buffers: an array without elements needs none */
        if (mgk_shape_extent(&shape, &extent) && extent == 0)
            return CLMGK_OK;
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected a buffer", shape.name);
    }
    if (buffer->memory == NULL)
        return CLMGK_OK;
    if (!mgk_shape_extent(&shape, &extent)) /* checked with the descriptor */
        return mgk_fail(error, CLMGK_ERROR_INTERNAL, "%s: extent", shape.name);
    return check_memory(plan, buffer, shape.name, shape.element, (uint64_t)extent * shape.element, error);
}

static clmgk_status check_queue(const clmgk_plan *plan, cl_command_queue queue, clmgk_error *error)
{
    cl_context context = NULL;
    cl_device_id device = NULL;
    cl_int code = queue == NULL ? CL_INVALID_COMMAND_QUEUE
                                : clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(context), &context, NULL);
    if (code == CL_SUCCESS)
        code = clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof(device), &device, NULL);
    if (code == CL_INVALID_COMMAND_QUEUE)
        return mgk_fail_code(error, CLMGK_ERROR_INVALID_VALUE, code, "queue: expected a command queue");
    if (code != CL_SUCCESS)
        return mgk_fail_cl(error, code, "clGetCommandQueueInfo");
    if (context != plan->context->context || device != plan->context->device)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "queue: of another OpenCL context or device than the plan's");
    return CLMGK_OK;
}

static clmgk_status check_wait_list(const clmgk_plan *plan, cl_uint num_wait, const cl_event *wait_list,
                                    clmgk_error *error)
{
    if ((num_wait == 0) != (wait_list == NULL))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "wait_list: %s with num_wait = %u",
                        wait_list == NULL ? "NULL" : "given", (unsigned)num_wait);
    for (cl_uint i = 0; i < num_wait; ++i) {
        cl_context context = NULL;
        const cl_int code = wait_list[i] == NULL
                                ? CL_INVALID_EVENT
                                : clGetEventInfo(wait_list[i], CL_EVENT_CONTEXT, sizeof(cl_context), &context, NULL);
        if (code == CL_INVALID_EVENT)
            return mgk_fail_code(error, CLMGK_ERROR_INVALID_VALUE, code, "wait_list[%u]: expected an event",
                                 (unsigned)i);
        if (code != CL_SUCCESS)
            return mgk_fail_cl(error, code, "clGetEventInfo");
        if (context != plan->context->context)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "wait_list[%u]: an event of another OpenCL context than the plan's", (unsigned)i);
    }
    return CLMGK_OK;
}

static clmgk_status check_workspace(const clmgk_plan *plan, const clmgk_buffer *workspace, clmgk_error *error)
{
    if (plan->info.workspace_bytes == 0)
        return CLMGK_OK;
    if (workspace->memory == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "workspace: NULL: expected a buffer of %" PRIu64 " bytes",
                        plan->info.workspace_bytes);
    return check_memory(plan, workspace, "workspace", 1, plan->info.workspace_bytes, error);
}

clmgk_status clmgk_enqueue_forward(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                   cl_uint num_wait, const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    if (plan == NULL || args == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", plan == NULL ? "plan" : "args",
                        plan == NULL ? "a plan" : "the call's arrays");
    clmgk_attention_args call;
    MGK_TRY(mgk_struct_read(args, "args", sizeof(call), &call, sizeof(call), error));
    MGK_TRY(check_queue(plan, queue, error));
    MGK_TRY(check_wait_list(plan, num_wait, wait_list, error));
    const clmgk_buffer *arrays[MGK_ARRAYS];
    list_arrays(&call, arrays);
    for (int i = 0; i < MGK_ARRAYS; ++i)
        MGK_TRY(check_array(plan, (mgk_array)i, arrays[i], error));
    MGK_TRY(check_workspace(plan, &call.workspace, error));

    unsigned char bound[MGK_ARGS_BYTES];
    plan->family->bind(&plan->forward, arrays, bound);
    return mgk_plan_launch(plan, queue, &plan->forward.launch, arrays, bound, num_wait, wait_list, event, error);
}
