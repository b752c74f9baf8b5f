/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host libraries behind native kernels, which the runtime calls on a thread of its own.
 *
 * The matrices are mapped (no copy on a CPU), multiplied at the mapped addresses, and unmapped, because PoCL mixes up
 * the addresses of a native kernel's memory objects. A native kernel may run, or be cancelled, long after its plan is
 * released. So its data belong to a small memory object that the command refers to: OpenCL keeps the object until the
 * command ends, in whatever way, and reports its release.
 */
#include "gemm/gemm.h"

#include <string.h>

enum { ANCHOR_BYTES = 64, MATRICES = 3 };

/* A native kernel's arguments, copied by OpenCL. */
typedef struct native_args {
    const mgk_gemm_host *host;
    clmgk_gemm_desc desc; /* the call's */
    void *matrix[MATRICES];
    void *anchor;
} native_args;

clmgk_status mgk_gemm_host_device(const mgk_device_facts *facts, clmgk_error *error)
{
    const bool host = facts->info.device_class == CLMGK_DEVICE_CPU &&
                      (facts->runtime == MGK_RUNTIME_POCL || facts->runtime == MGK_RUNTIME_INTEL_CPU);
    cl_device_exec_capabilities can = 0;
    if (!host)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the device is not the host's CPU");
    const cl_int code =
        clGetDeviceInfo(facts->info.device_id, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof(can), &can, NULL);
    MGK_TRY(mgk_check_cl(error, code, "clGetDeviceInfo"));
    if ((can & CL_EXEC_NATIVE_KERNEL) == 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the device runs no native kernels");
    return CLMGK_OK;
}

clmgk_status mgk_gemm_no_parameters(const char *parameters, clmgk_error *error)
{
    return parameters[0] == '\0' ? CLMGK_OK
                                 : mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                                            "parameters: \"%s\": expected none: this provider has none", parameters);
}

static void free_host(mgk_gemm_host *host)
{
    if (host->release != NULL)
        host->release(host);
    const clmgk_allocator allocator = host->allocator;
    mgk_free(&allocator, host);
}

static void CL_CALLBACK anchor_gone(cl_mem anchor, void *host)
{
    (void)anchor;
    free_host(host);
}

clmgk_status mgk_gemm_host_create(clmgk_gemm_plan *plan, mgk_gemm_host_multiply *multiply,
                                  void (*release)(mgk_gemm_host *), void *library, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    const clmgk_allocator *const allocator = &plan->context->allocator;
    mgk_gemm_host *const host = mgk_alloc(allocator, 1, sizeof(*host));
    if (host == NULL)
        return mgk_fail_memory(error, "a plan");
    host->allocator = *allocator;
    host->multiply = multiply;
    host->anchor = clCreateBuffer(plan->context->context, CL_MEM_READ_WRITE, ANCHOR_BYTES, NULL, &code);
    if (host->anchor == NULL) {
        mgk_free(allocator, host);
        return mgk_fail_cl(error, code, "clCreateBuffer");
    }
    code = clSetMemObjectDestructorCallback(host->anchor, anchor_gone, host);
    if (code != CL_SUCCESS) {
        clReleaseMemObject(host->anchor);
        mgk_free(allocator, host);
        return mgk_fail_cl(error, code, "clSetMemObjectDestructorCallback");
    }
    host->release = release;
    host->library = library;
    plan->state = host;
    plan->info.cached = 1;
    return CLMGK_OK;
}

void mgk_gemm_host_release(clmgk_gemm_plan *plan)
{
    const mgk_gemm_host *const host = plan->state;
    if (host != NULL)
        clReleaseMemObject(host->anchor);
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

static void CL_CALLBACK run(void *given)
{
    const native_args *const args = given;
    args->host->multiply(args->host, &args->desc, args->matrix[0], args->matrix[1], args->matrix[2]);
}

/* The commands of a call. Each waits for the previous one, because the queue may be out of order. */
typedef struct chain {
    const mgk_queue_place *at;
    cl_event last; /* the newest command's; NULL: no command yet */
} chain;

static cl_uint waits(const chain *c)
{
    return c->last != NULL ? 1 : c->at->num_wait;
}

static const cl_event *wait_list(const chain *c)
{
    return c->last != NULL ? &c->last : c->at->wait_list;
}

/* Replaces the previous command's event. */
static void advance(chain *c, cl_event event)
{
    if (c->last != NULL)
        clReleaseEvent(c->last);
    c->last = event;
}

static clmgk_status map(chain *c, const clmgk_buffer *buffer, cl_map_flags flags, uint64_t bytes, size_t element,
                        void **address, clmgk_error *error)
{
    cl_event event = NULL;
    cl_int code = CL_SUCCESS;
    *address = clEnqueueMapBuffer(c->at->queue, buffer->memory, CL_FALSE, flags, (size_t)buffer->offset * element,
                                  (size_t)bytes, waits(c), wait_list(c), &event, &code);
    if (code == CL_INVALID_OPERATION)
        return mgk_fail_code(error, CLMGK_ERROR_INVALID_BUFFER, code,
                             "a buffer that the host may not access (CL_MEM_HOST_...): expected access for a host "
                             "library");
    MGK_TRY(mgk_check_cl(error, code, "clEnqueueMapBuffer"));
    advance(c, event);
    return CLMGK_OK;
}

static clmgk_status multiply(chain *c, native_args *args, clmgk_error *error)
{
    const cl_mem anchor = args->host->anchor;
    const void *place = &args->anchor;
    cl_event event = NULL;
    const cl_int code = clEnqueueNativeKernel(c->at->queue, run, args, sizeof(*args), 1, &anchor, &place, waits(c),
                                              wait_list(c), &event);
    MGK_TRY(mgk_check_cl(error, code, "clEnqueueNativeKernel"));
    advance(c, event);
    return CLMGK_OK;
}

/* Unmaps `count` matrices, also after a failure. */
static clmgk_status unmap(chain *c, const cl_mem *memory, void *const *address, size_t count, clmgk_error *error)
{
    clmgk_status status = CLMGK_OK;
    for (size_t i = 0; i < count; ++i) {
        cl_event event = NULL;
        const cl_int code =
            clEnqueueUnmapMemObject(c->at->queue, memory[i], address[i], waits(c), wait_list(c), &event);
        if (code == CL_SUCCESS)
            advance(c, event);
        else if (status == CLMGK_OK)
            status = mgk_fail_cl(error, code, "clEnqueueUnmapMemObject");
    }
    return status;
}

clmgk_status mgk_gemm_host_enqueue(const void *given, const mgk_call *call, const mgk_queue_place *at,
                                   clmgk_error *error)
{
    const clmgk_gemm_plan *const plan = given;
    const clmgk_gemm_desc *const desc = &plan->desc;
    const clmgk_buffer *const *const buffers = &call->buffers[MGK_GEMM_A];
    const mgk_gemm_matrix matrices[MATRICES] = {mgk_gemm_a(desc), mgk_gemm_b(desc), mgk_gemm_c(desc)};
    const cl_mem memory[MATRICES] = {buffers[0]->memory, buffers[1]->memory, buffers[2]->memory};
    const size_t element = mgk_gemm_element(desc->dtype);
    chain c = {.at = at};
    native_args args = {.host = plan->state, .desc = *desc};
    clmgk_status status = CLMGK_OK;
    size_t mapped = 0;
    while (status == CLMGK_OK && mapped < MATRICES) {
        const cl_map_flags flags = mapped + 1 < MATRICES ? CL_MAP_READ : CL_MAP_READ | CL_MAP_WRITE;
        int64_t extent = 0;
        (void)mgk_gemm_extent(&matrices[mapped], desc->batch, &extent); /* checked with the descriptor */
        status = map(&c, buffers[mapped], flags, (uint64_t)extent * element, element, &args.matrix[mapped], error);
        mapped += status == CLMGK_OK ? 1 : 0;
    }
    if (status == CLMGK_OK)
        status = multiply(&c, &args, error);
    const clmgk_status end = unmap(&c, memory, args.matrix, mapped, status == CLMGK_OK ? error : NULL);
    status = status == CLMGK_OK ? end : status;
    if (status == CLMGK_OK && at->event != NULL)
        *at->event = c.last;
    else if (c.last != NULL)
        clReleaseEvent(c.last);
    return status;
}
