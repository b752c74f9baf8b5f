/* SPDX-License-Identifier: Apache-2.0 */
/* Devices opened by name, and passes on arrays in host memory. */
#include "binding.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static clmgk_status fail_cl(clmgk_error *error, cl_int code, const char *call)
{
    error->status = code == CL_OUT_OF_HOST_MEMORY ? CLMGK_ERROR_OUT_OF_HOST_MEMORY
                    : code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES
                        ? CLMGK_ERROR_OUT_OF_DEVICE_MEMORY
                        : CLMGK_ERROR_OPENCL;
    error->opencl_code = code;
    (void)snprintf(error->message, sizeof(error->message), "%s: OpenCL error %d", call, (int)code);
    return error->status;
}

static clmgk_status refuse(clmgk_error *error, clmgk_status status, const char *argument, const char *reason)
{
    error->status = status;
    error->opencl_code = 0;
    (void)snprintf(error->message, sizeof(error->message), "%s: %s", argument, reason);
    return status;
}

/* ---- devices ------------------------------------------------------------------------------------------------- */

/* Kernels on a device that shares the host's memory use the caller's arrays as they lie. */
static int32_t shares_memory(cl_device_id id)
{
    cl_bool unified = CL_FALSE;
    return clGetDeviceInfo(id, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof(unified), &unified, NULL) == CL_SUCCESS && unified;
}

clmgk_status binding_adopt(cl_context context, cl_device_id id, const clmgk_context_options *options,
                           binding_device *device, clmgk_error *error)
{
    *device = (binding_device){.id = id, .in_place = shares_memory(id)};
    const clmgk_status status = clmgk_context_create(context, id, options, &device->clmgk, error);
    if (status != CLMGK_OK)
        return status;
    device->context = context;
    const cl_int code = clRetainContext(context);
    return code == CL_SUCCESS ? CLMGK_OK : fail_cl(error, code, "clRetainContext");
}

clmgk_status binding_open(const char *selector, const clmgk_context_options *options, binding_device *device,
                          clmgk_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    *device = (binding_device){.in_place = 0};
    clmgk_status status = clmgk_select_device(selector, &info, error);
    if (status != CLMGK_OK)
        return status;
    cl_int code = CL_SUCCESS;
    const cl_context context = clCreateContext(NULL, 1, &info.device_id, NULL, NULL, &code);
    if (context == NULL)
        return fail_cl(error, code, "clCreateContext");
    status = binding_adopt(context, info.device_id, options, device, error);
    (void)clReleaseContext(context);
    if (status != CLMGK_OK)
        return status;
    device->queue = clCreateCommandQueue(device->context, device->id, 0, &code);
    return device->queue != NULL ? CLMGK_OK : fail_cl(error, code, "clCreateCommandQueue");
}

void binding_close(binding_device *device)
{
    clmgk_context_release(device->clmgk);
    if (device->queue != NULL)
        (void)clReleaseCommandQueue(device->queue);
    if (device->context != NULL)
        (void)clReleaseContext(device->context);
    *device = (binding_device){.in_place = 0};
}

/* ---- buffers ------------------------------------------------------------------------------------------------- */

clmgk_status binding_create_buffer(const binding_device *device, size_t bytes, cl_mem *memory, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    *memory = clCreateBuffer(device->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    return *memory != NULL ? CLMGK_OK : fail_cl(error, code, "clCreateBuffer");
}

void binding_release_buffer(cl_mem memory)
{
    (void)clReleaseMemObject(memory);
}

int32_t binding_is_output(clmgk_pass pass, clmgk_array array)
{
    enum { IN = 0, OUT = 1 };
    static const uint8_t written[CLMGK_ARRAYS] = {
#define WRITTEN(name, field, element, access, ...) [CLMGK_ARRAY_##name] = access,
        CLMGK_ARRAY_LIST(WRITTEN, CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE)
#undef WRITTEN
    };
    const clmgk_array_info *const info = clmgk_array_get_info(array);
    if (info == NULL)
        return 0;
    return info->gradient != 0     ? pass == CLMGK_PASS_BACKWARD
           : info->statistic != 0  ? pass == CLMGK_PASS_STATISTICS
           : written[array] == OUT ? pass == CLMGK_PASS_FORWARD || pass == CLMGK_PASS_COMBINE
                                   : 0;
}

/* ---- a pass -------------------------------------------------------------------------------------------------- */

typedef clmgk_status enqueue_function(clmgk_plan *, cl_command_queue, const clmgk_attention_args *, cl_uint,
                                      const cl_event *, cl_event *, clmgk_error *);

static enqueue_function *const enqueue_functions[CLMGK_PASSES] = {
    [CLMGK_PASS_FORWARD] = clmgk_enqueue_forward,
    [CLMGK_PASS_BACKWARD] = clmgk_enqueue_backward,
    [CLMGK_PASS_STATISTICS] = clmgk_enqueue_statistics,
    [CLMGK_PASS_COMBINE] = clmgk_enqueue_combine,
};

typedef struct call {
    const binding_device *device;
    clmgk_attention_args *args;
    const binding_pass *pass;
    void *const *arrays;
} call;

static clmgk_buffer *buffer_of(const call *c, size_t i)
{
    return clmgk_array_buffer(c->args, c->pass->slots[i].array);
}

static clmgk_status create_buffer(const call *c, size_t i, clmgk_error *error)
{
    const binding_slot *const slot = &c->pass->slots[i];
    if ((uintptr_t)c->arrays[i] % slot->element_bytes != 0)
        return refuse(error, CLMGK_ERROR_INVALID_BUFFER, clmgk_array_name(slot->array),
                      "its elements are not aligned in memory: copy it");
    const cl_mem_flags host = c->device->in_place ? CL_MEM_USE_HOST_PTR : CL_MEM_COPY_HOST_PTR;
    const cl_mem_flags access = slot->is_output ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
    cl_int code = CL_SUCCESS;
    buffer_of(c, i)->memory = clCreateBuffer(c->device->context, access | host, slot->bytes, c->arrays[i], &code);
    return buffer_of(c, i)->memory != NULL ? CLMGK_OK : fail_cl(error, code, "clCreateBuffer");
}

static clmgk_status create_buffers(const call *c, clmgk_error *error)
{
    clmgk_status status = CLMGK_OK;
    for (size_t i = 0; i < c->pass->count && status == CLMGK_OK; ++i)
        if (c->arrays[i] != NULL && c->pass->slots[i].bytes > 0)
            status = create_buffer(c, i, error);
    return status;
}

/* Mapping makes the device's writes visible in the caller's memory. */
static clmgk_status map_output(const call *c, size_t i, cl_event *unmapped, clmgk_error *error)
{
    const cl_mem memory = buffer_of(c, i)->memory;
    const cl_command_queue queue = c->device->queue;
    cl_int code = CL_SUCCESS;
    void *const mapped =
        clEnqueueMapBuffer(queue, memory, CL_FALSE, CL_MAP_READ, 0, c->pass->slots[i].bytes, 0, NULL, NULL, &code);
    if (mapped == NULL)
        return fail_cl(error, code, "clEnqueueMapBuffer");
    code = clEnqueueUnmapMemObject(queue, memory, mapped, 0, NULL, unmapped);
    return code == CL_SUCCESS ? CLMGK_OK : fail_cl(error, code, "clEnqueueUnmapMemObject");
}

static clmgk_status read_output(const call *c, size_t i, cl_event *done, clmgk_error *error)
{
    if (c->device->in_place)
        return map_output(c, i, done, error);
    const cl_int code = clEnqueueReadBuffer(c->device->queue, buffer_of(c, i)->memory, CL_FALSE, 0,
                                            c->pass->slots[i].bytes, c->arrays[i], 0, NULL, done);
    return code == CL_SUCCESS ? CLMGK_OK : fail_cl(error, code, "clEnqueueReadBuffer");
}

static bool is_written(const call *c, size_t i)
{
    return c->pass->slots[i].is_output && buffer_of(c, i)->memory != NULL;
}

/* The queue is in order: with the last command all are done. */
static clmgk_status read_outputs(const call *c, clmgk_error *error)
{
    const size_t count = c->pass->count;
    size_t last = count;
    for (size_t i = 0; i < count; ++i)
        if (is_written(c, i))
            last = i;
    cl_event done = NULL;
    clmgk_status status = CLMGK_OK;
    for (size_t i = 0; i < count && status == CLMGK_OK; ++i)
        if (is_written(c, i))
            status = read_output(c, i, i == last ? &done : NULL, error);
    if (done == NULL)
        return status;
    const cl_int code = clWaitForEvents(1, &done);
    (void)clReleaseEvent(done);
    return code == CL_SUCCESS ? CLMGK_OK : fail_cl(error, code, "clWaitForEvents");
}

clmgk_status binding_run(const binding_device *device, clmgk_plan *plan, const binding_pass *pass, void *const *arrays,
                         uint64_t seed, uint32_t accumulate, cl_mem workspace, clmgk_error *error)
{
    if (device->queue == NULL)
        return refuse(error, CLMGK_ERROR_INVALID_VALUE, "device",
                      "an adopted context has no queue of its own: expected a call of clmgk.opencl");
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.seed = seed;
    args.accumulate = accumulate;
    args.parts = pass->parts;
    args.workspace.memory = workspace;
    const call c = {.device = device, .args = &args, .pass = pass, .arrays = arrays};
    clmgk_status status = create_buffers(&c, error);
    if (status == CLMGK_OK)
        status = enqueue_functions[pass->number](plan, device->queue, &args, 0, NULL, NULL, error);
    if (status == CLMGK_OK)
        status = read_outputs(&c, error);
    if (status != CLMGK_OK) /* the caller may free the arrays when this call returns */
        (void)clFinish(device->queue);
    for (size_t i = 0; i < pass->count; ++i)
        if (buffer_of(&c, i)->memory != NULL)
            (void)clReleaseMemObject(buffer_of(&c, i)->memory);
    return status;
}
