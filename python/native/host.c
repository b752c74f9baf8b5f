/* SPDX-License-Identifier: Apache-2.0 */
/* Devices opened by name, and passes on arrays in host memory. */
#include "binding.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* ---- a pass -------------------------------------------------------------------------------------------------- */

typedef clmgk_status enqueue_function(clmgk_plan *, cl_command_queue, const clmgk_attention_args *, cl_uint,
                                      const cl_event *, cl_event *, clmgk_error *);

static enqueue_function *const enqueue_functions[CLMGK_PASSES] = {
    [CLMGK_PASS_FORWARD] = clmgk_enqueue_forward,
    [CLMGK_PASS_BACKWARD] = clmgk_enqueue_backward,
    [CLMGK_PASS_STATISTICS] = clmgk_enqueue_statistics,
    [CLMGK_PASS_COMBINE] = clmgk_enqueue_combine,
    [CLMGK_PASS_MASK] = clmgk_enqueue_mask,
    [CLMGK_PASS_APPEND] = clmgk_enqueue_append,
};

/* A pass, from its buffers to its end. */
struct binding_pending {
    const binding_device *device;
    const binding_pass *pass;
    void *const *arrays; /* while binding_run enqueues */
    clmgk_attention_args args;
    cl_event done; /* of the last command; NULL: nothing to wait for */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_over;
    cl_int code; /* of the end */
};

static clmgk_buffer *buffer_of(binding_pending *p, size_t i)
{
    return clmgk_array_buffer(&p->args, p->pass->slots[i].array);
}

static bool is_same_array(binding_pending *p, size_t i, size_t j)
{
    return p->arrays[i] == p->arrays[j] && p->pass->slots[i].bytes == p->pass->slots[j].bytes;
}

/* A pool of states may be of old and of new ones: one buffer for both. */
static bool is_output_too(binding_pending *p, size_t i)
{
    bool output = false;
    for (size_t j = 0; j < p->pass->count; ++j)
        output = output || (p->pass->slots[j].is_output && is_same_array(p, i, j));
    return output;
}

static bool share_buffer(binding_pending *p, size_t i)
{
    for (size_t j = 0; j < i; ++j)
        if (buffer_of(p, j)->memory != NULL && is_same_array(p, i, j) &&
            clRetainMemObject(buffer_of(p, j)->memory) == CL_SUCCESS) {
            buffer_of(p, i)->memory = buffer_of(p, j)->memory;
            return true;
        }
    return false;
}

static clmgk_status create_buffer(binding_pending *p, size_t i, clmgk_error *error)
{
    const binding_slot *const slot = &p->pass->slots[i];
    const size_t alignment =
        slot->element_bytes & (~slot->element_bytes + 1); /* blocks: of the scale that they begin with */
    if ((uintptr_t)p->arrays[i] % alignment != 0)
        return refuse(error, CLMGK_ERROR_INVALID_BUFFER, clmgk_array_name(slot->array),
                      "its elements are not aligned in memory: copy it");
    const cl_mem_flags host = p->device->in_place ? CL_MEM_USE_HOST_PTR : CL_MEM_COPY_HOST_PTR;
    const cl_mem_flags access = is_output_too(p, i) ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
    if (share_buffer(p, i))
        return CLMGK_OK;
    cl_int code = CL_SUCCESS;
    buffer_of(p, i)->memory = clCreateBuffer(p->device->context, access | host, slot->bytes, p->arrays[i], &code);
    return buffer_of(p, i)->memory != NULL ? CLMGK_OK : fail_cl(error, code, "clCreateBuffer");
}

static clmgk_status create_buffers(binding_pending *p, clmgk_error *error)
{
    clmgk_status status = CLMGK_OK;
    for (size_t i = 0; i < p->pass->count && status == CLMGK_OK; ++i)
        if (p->arrays[i] != NULL && p->pass->slots[i].bytes > 0)
            status = create_buffer(p, i, error);
    return status;
}

/* Mapping makes the device's writes visible in the caller's memory. */
static clmgk_status map_output(binding_pending *p, size_t i, cl_event *unmapped, clmgk_error *error)
{
    const cl_mem memory = buffer_of(p, i)->memory;
    const cl_command_queue queue = p->device->queue;
    cl_int code = CL_SUCCESS;
    void *const mapped =
        clEnqueueMapBuffer(queue, memory, CL_FALSE, CL_MAP_READ, 0, p->pass->slots[i].bytes, 0, NULL, NULL, &code);
    if (mapped == NULL)
        return fail_cl(error, code, "clEnqueueMapBuffer");
    code = clEnqueueUnmapMemObject(queue, memory, mapped, 0, NULL, unmapped);
    return code == CL_SUCCESS ? CLMGK_OK : fail_cl(error, code, "clEnqueueUnmapMemObject");
}

static clmgk_status read_output(binding_pending *p, size_t i, cl_event *done, clmgk_error *error)
{
    if (p->device->in_place)
        return map_output(p, i, done, error);
    const cl_int code = clEnqueueReadBuffer(p->device->queue, buffer_of(p, i)->memory, CL_FALSE, 0,
                                            p->pass->slots[i].bytes, p->arrays[i], 0, NULL, done);
    return code == CL_SUCCESS ? CLMGK_OK : fail_cl(error, code, "clEnqueueReadBuffer");
}

static bool is_written(binding_pending *p, size_t i)
{
    return p->pass->slots[i].is_output && buffer_of(p, i)->memory != NULL;
}

/* The queue is in order: with the last command all are done. */
static clmgk_status read_outputs(binding_pending *p, clmgk_error *error)
{
    const size_t count = p->pass->count;
    size_t last = count;
    for (size_t i = 0; i < count; ++i)
        if (is_written(p, i))
            last = i;
    clmgk_status status = CLMGK_OK;
    for (size_t i = 0; i < count && status == CLMGK_OK; ++i)
        if (is_written(p, i))
            status = read_output(p, i, i == last ? &p->done : NULL, error);
    return status;
}

static clmgk_status enqueue(binding_pending *p, clmgk_plan *plan, clmgk_error *error)
{
    clmgk_status status = create_buffers(p, error);
    if (status == CLMGK_OK)
        status = enqueue_functions[p->pass->number](plan, p->device->queue, &p->args, 0, NULL, NULL, error);
    if (status == CLMGK_OK)
        status = read_outputs(p, error);
    if (status != CLMGK_OK) /* the caller may free the arrays when this call returns */
        (void)clFinish(p->device->queue);
    return status;
}

/* ---- waiting with a time limit, which OpenCL does not have ----------------------------------------------------- */

static void CL_CALLBACK end(cl_event event, cl_int code, void *data)
{
    (void)event;
    binding_pending *const p = data;
    (void)pthread_mutex_lock(&p->lock);
    p->is_over = true;
    p->code = code;
    (void)pthread_cond_signal(&p->ended);
    (void)pthread_mutex_unlock(&p->lock);
}

/* Waits at most this time; less than 0: for the end. */
static bool wait_for(binding_pending *p, int32_t milliseconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t nanoseconds = until.tv_nsec + milliseconds % 1000 * (int64_t)1000000;
    until.tv_sec += milliseconds / 1000 + nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    (void)pthread_mutex_lock(&p->lock);
    int timed_out = 0;
    while (!p->is_over && timed_out == 0)
        timed_out = milliseconds < 0 ? pthread_cond_wait(&p->ended, &p->lock)
                                     : pthread_cond_timedwait(&p->ended, &p->lock, &until);
    const bool is_over = p->is_over;
    (void)pthread_mutex_unlock(&p->lock);
    return is_over;
}

static void watch(binding_pending *p)
{
    pthread_condattr_t clock;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->ended, &clock);
    (void)pthread_condattr_destroy(&clock);
}

static clmgk_status release(binding_pending *p, clmgk_status status)
{
    for (size_t i = 0; i < p->pass->count; ++i)
        if (buffer_of(p, i)->memory != NULL)
            (void)clReleaseMemObject(buffer_of(p, i)->memory);
    if (p->done != NULL)
        (void)clReleaseEvent(p->done);
    (void)pthread_cond_destroy(&p->ended);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
    return status;
}

int32_t binding_wait(binding_pending *pending, int32_t milliseconds)
{
    return wait_for(pending, milliseconds);
}

clmgk_status binding_finish(binding_pending **pending, clmgk_error *error)
{
    binding_pending *const p = *pending;
    (void)wait_for(p, -1);
    *pending = NULL;
    return release(p, p->code == CL_COMPLETE ? CLMGK_OK : fail_cl(error, p->code, "a command of the pass"));
}

static clmgk_status make_pending(const binding_device *device, const binding_pass *pass, void *const *arrays,
                                 uint64_t seed, binding_pending **pending, clmgk_error *error)
{
    if (device->queue == NULL)
        return refuse(error, CLMGK_ERROR_INVALID_VALUE, "device",
                      "an adopted context has no queue of its own: expected a call of clmgk.opencl");
    binding_pending *const p = malloc(sizeof(*p));
    if (p == NULL)
        return refuse(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "pass", "no memory");
    *p = (binding_pending){.device = device, .pass = pass, .arrays = arrays, .args = CLMGK_ATTENTION_ARGS_INIT};
    p->args.seed = seed;
    p->args.parts = pass->parts;
    p->args.sizes = pass->sizes;
    watch(p);
    *pending = p;
    return CLMGK_OK;
}

clmgk_status binding_run_ranks(const binding_device *device, clmgk_dist_plan *plan, const binding_pass *pass,
                               void *const *arrays, uint64_t seed, clmgk_error *error)
{
    binding_pending *p = NULL;
    clmgk_status status = make_pending(device, pass, arrays, seed, &p, error);
    if (status != CLMGK_OK)
        return status;
    status = create_buffers(p, error);
    if (status == CLMGK_OK && pass->number == CLMGK_PASS_FORWARD)
        status = clmgk_dist_forward(plan, &p->args, error);
    else if (status == CLMGK_OK)
        status = clmgk_dist_backward(plan, &p->args, error);
    if (status == CLMGK_OK)
        status = read_outputs(p, error);
    const cl_int code = clFinish(device->queue);
    return release(p, status != CLMGK_OK || code == CL_SUCCESS ? status : fail_cl(error, code, "clFinish"));
}

clmgk_status binding_run(const binding_device *device, clmgk_plan *plan, const binding_pass *pass, void *const *arrays,
                         uint64_t seed, uint32_t accumulate, cl_mem workspace, int32_t patience,
                         binding_pending **pending, clmgk_error *error)
{
    binding_pending *p = NULL;
    const clmgk_status made = make_pending(device, pass, arrays, seed, &p, error);
    if (made != CLMGK_OK)
        return made;
    p->args.accumulate = accumulate;
    p->args.workspace.memory = workspace;
    const clmgk_status status = enqueue(p, plan, error);
    if (status != CLMGK_OK || p->done == NULL)
        return release(p, status);
    /* A thread that nobody interrupts waits in OpenCL. */
    cl_int code = patience < 0 ? CL_INVALID_OPERATION : clSetEventCallback(p->done, CL_COMPLETE, end, p);
    if (code != CL_SUCCESS) {
        code = clWaitForEvents(1, &p->done);
        return release(p, code == CL_SUCCESS ? CLMGK_OK : fail_cl(error, code, "clWaitForEvents"));
    }
    (void)clFlush(device->queue); /* a callback does not start the commands before it */
    *pending = p;
    return wait_for(p, patience) ? binding_finish(pending, error) : CLMGK_OK;
}
