/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of queues, events and buffers. */
#include "device/checks.h"

#include <inttypes.h>

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
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "queue: of another OpenCL context or device: expected the plan's");
    return CLMGK_OK;
}

clmgk_status mgk_check_wait_list(const clmgk_context *given, cl_uint num_wait, const cl_event *wait_list,
                                 clmgk_error *error)
{
    if ((num_wait == 0) != (wait_list == NULL))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "wait_list: %s: expected %s with num_wait = %u",
                        wait_list == NULL ? "NULL" : "given", wait_list == NULL ? "events" : "NULL",
                        (unsigned)num_wait);
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
                            "wait_list[%u]: an event of another OpenCL context: expected the plan's", (unsigned)i);
    }
    return CLMGK_OK;
}

/* ---- arrays --------------------------------------------------------------------------------------------------- */

/* Properties of a memory object. */
typedef struct memory_facts {
    cl_context context;
    cl_mem_object_type type;
    cl_mem_flags flags;
    size_t size, origin;
    cl_mem parent; /* NULL: no sub-buffer */
} memory_facts;

static cl_int ask_memory(cl_mem memory, memory_facts *facts)
{
    const struct {
        cl_mem_info what;
        size_t size;
        void *answer;
    } questions[] = {{CL_MEM_CONTEXT, sizeof(facts->context), &facts->context},
                     {CL_MEM_TYPE, sizeof(facts->type), &facts->type},
                     {CL_MEM_FLAGS, sizeof(facts->flags), &facts->flags},
                     {CL_MEM_SIZE, sizeof(facts->size), &facts->size},
                     {CL_MEM_ASSOCIATED_MEMOBJECT, sizeof(cl_mem), &facts->parent},
                     {CL_MEM_OFFSET, sizeof(facts->origin), &facts->origin}};
    *facts = (memory_facts){.parent = NULL};
    cl_int code = CL_SUCCESS;
    for (size_t i = 0; i < MGK_COUNT(questions) && code == CL_SUCCESS; ++i)
        if (questions[i].what != CL_MEM_OFFSET || facts->parent != NULL)
            code = clGetMemObjectInfo(memory, questions[i].what, questions[i].size, questions[i].answer, NULL);
    return code;
}

static clmgk_status check_access(const mgk_operand *x, cl_mem_flags flags, clmgk_error *error)
{
    if ((x->access & MGK_WRITE) != 0 && (flags & CL_MEM_READ_ONLY) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: a CL_MEM_READ_ONLY buffer: expected one that kernels may write", x->name);
    if ((x->access & MGK_READ) != 0 && (flags & CL_MEM_WRITE_ONLY) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: a CL_MEM_WRITE_ONLY buffer: expected one that kernels may read", x->name);
    const int host = x->access & (MGK_HOST_READ | MGK_HOST_WRITE);
    const cl_mem_flags refused = CL_MEM_HOST_NO_ACCESS | ((host & MGK_HOST_READ) != 0 ? CL_MEM_HOST_WRITE_ONLY : 0) |
                                 ((host & MGK_HOST_WRITE) != 0 ? CL_MEM_HOST_READ_ONLY : 0);
    if (host != 0 && (flags & refused) != 0)
        return mgk_fail(
            error, CLMGK_ERROR_INVALID_BUFFER,
            "%s: a buffer that the host may not access (CL_MEM_HOST_...): expected access for a host library", x->name);
    return CLMGK_OK;
}

static clmgk_status check_operand(const clmgk_context *given, mgk_operand *x, clmgk_error *error)
{
    memory_facts facts;
    const uint64_t offset = x->buffer->offset, bytes = (uint64_t)x->extent->bytes;
    const cl_int code = ask_memory(x->buffer->memory, &facts);
    if (code == CL_INVALID_MEM_OBJECT)
        return mgk_fail_code(error, CLMGK_ERROR_INVALID_BUFFER, code, "%s: expected a memory object", x->name);
    MGK_TRY(mgk_check_cl(error, code, "clGetMemObjectInfo"));
    if (facts.context != given->context)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: a buffer of another OpenCL context: expected the plan's", x->name);
    if (facts.type != CL_MEM_OBJECT_BUFFER)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: a memory object of type 0x%x: expected a buffer",
                        x->name, (unsigned)facts.type);
    if (bytes > 0 && (offset > (UINT64_MAX - bytes) / x->element || offset * x->element + bytes > facts.size))
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: a buffer of %zu bytes: expected %" PRIu64 " bytes from element %" PRIu64 " on", x->name,
                        facts.size, bytes, offset);
    x->whole = facts.parent != NULL ? facts.parent : x->buffer->memory;
    x->begin = bytes > 0 ? (int64_t)(facts.origin + offset * x->element) : 0;
    return check_access(x, facts.flags, error);
}

static clmgk_status check_overlap(const mgk_operand *output, const mgk_operand *other, clmgk_error *error)
{
    if (output->whole != other->whole || !mgk_extents_meet(output->extent, output->begin, other->extent, other->begin))
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                    "%s: shares memory with %s: expected an output whose elements belong to no other array",
                    output->name, other->name);
}

static clmgk_status check_overlaps(const mgk_operands *operands, clmgk_error *error)
{
    for (size_t i = 0; i < operands->count; ++i)
        for (size_t j = 0; (operands->item[i].access & MGK_WRITE) != 0 && j < operands->count; ++j)
            if (j != i)
                MGK_TRY(check_overlap(&operands->item[i], &operands->item[j], error));
    return CLMGK_OK;
}

clmgk_status mgk_operands_add_workspace(mgk_operands *operands, const clmgk_buffer *workspace, uint64_t bytes,
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
    operands->workspace = mgk_extent_dense((int64_t)bytes);
    operands->item[operands->count++] =
        (mgk_operand){"workspace", workspace, &operands->workspace, 1, MGK_READ | MGK_WRITE, NULL, 0};
    return CLMGK_OK;
}

clmgk_status mgk_check_operands(const clmgk_context *given, mgk_operands *operands, clmgk_error *error)
{
    for (size_t i = 0; i < operands->count; ++i)
        MGK_TRY(check_operand(given, &operands->item[i], error));
    return check_overlaps(operands, error);
}

/* All addresses are in one space. */
static clmgk_status check_address(const mgk_cuda *cuda, mgk_operand *x, clmgk_error *error)
{
    const uint64_t address = mgk_cuda_address_of(x->buffer->memory) + x->buffer->offset * x->element;
    x->whole = NULL;
    x->begin = (int64_t)address;
    return x->extent->bytes > 0 ? mgk_cuda_check_memory(cuda, x->name, address, error) : CLMGK_OK;
}

clmgk_status mgk_check_addresses(const mgk_cuda *cuda, mgk_operands *operands, clmgk_error *error)
{
    for (size_t i = 0; i < operands->count; ++i)
        MGK_TRY(check_address(cuda, &operands->item[i], error));
    return check_overlaps(operands, error);
}
