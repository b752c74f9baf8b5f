/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of queues, events and buffers. */
#include "device/checks.h"

#include <inttypes.h>

clmgk_status mgk_check_memory(const clmgk_context *given, const clmgk_buffer *buffer, const char *name,
                              uint64_t element, uint64_t bytes, clmgk_error *error)
{
    cl_context context = NULL;
    size_t size = 0;
    cl_int code = clGetMemObjectInfo(buffer->memory, CL_MEM_CONTEXT, sizeof(context), &context, NULL);
    if (code == CL_INVALID_MEM_OBJECT)
        return mgk_fail_code(error, CLMGK_ERROR_INVALID_BUFFER, code, "%s: expected a memory object", name);
    MGK_TRY(mgk_check_cl(error, code, "clGetMemObjectInfo"));
    if (context != given->context)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: a buffer of another OpenCL context than the plan's",
                        name);
    code = clGetMemObjectInfo(buffer->memory, CL_MEM_SIZE, sizeof(size), &size, NULL);
    MGK_TRY(mgk_check_cl(error, code, "clGetMemObjectInfo"));
    if (bytes > 0 && (buffer->offset > (UINT64_MAX - bytes) / element || buffer->offset * element + bytes > size))
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: a buffer of %zu bytes: expected %" PRIu64 " bytes from element %" PRIu64 " on", name, size,
                        bytes, buffer->offset);
    return CLMGK_OK;
}

clmgk_status mgk_check_queue(const clmgk_context *given, cl_command_queue queue, clmgk_error *error)
{
    cl_context context = NULL;
    cl_device_id device = NULL;
    cl_int code = queue == NULL ? CL_INVALID_COMMAND_QUEUE
                                : clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(context), &context, NULL);
    if (code == CL_SUCCESS)
        code = clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof(device), &device, NULL);
    if (code == CL_INVALID_COMMAND_QUEUE)
        return mgk_fail_code(error, CLMGK_ERROR_INVALID_VALUE, code, "queue: expected a command queue");
    MGK_TRY(mgk_check_cl(error, code, "clGetCommandQueueInfo"));
    if (context != given->context || device != given->device)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "queue: of another OpenCL context or device than the plan's");
    return CLMGK_OK;
}

clmgk_status mgk_check_wait_list(const clmgk_context *given, cl_uint num_wait, const cl_event *wait_list,
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
        MGK_TRY(mgk_check_cl(error, code, "clGetEventInfo"));
        if (context != given->context)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "wait_list[%u]: an event of another OpenCL context than the plan's", (unsigned)i);
    }
    return CLMGK_OK;
}

clmgk_status mgk_check_workspace(const clmgk_context *given, const clmgk_buffer *workspace, uint64_t bytes,
                                 clmgk_error *error)
{
    if (bytes == 0)
        return CLMGK_OK;
    if (workspace->memory == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "workspace: NULL: expected a buffer of %" PRIu64 " bytes",
                        bytes);
    if (workspace->offset % sizeof(float) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "workspace: offset %" PRIu64 ": expected a multiple of %zu bytes", workspace->offset,
                        sizeof(float));
    return mgk_check_memory(given, workspace, "workspace", 1, bytes, error);
}
