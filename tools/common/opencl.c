/* SPDX-License-Identifier: Apache-2.0 */
#include "opencl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

tool_exit tool_device_open_info(const clmgk_device_info *info, tool_device *device, tool_error *error)
{
    clmgk_error failure = {0};
    tool_exit status = TOOL_DONE;
    cl_int code = CL_SUCCESS;
    *device = (tool_device){.info = *info};
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)info->platform_id, 0};
    device->context = clCreateContext(properties, 1, &info->device_id, NULL, NULL, &code);
    if (!device->context) {
        status = tool_fail_cl(error, code, "clCreateContext");
        goto fail;
    }
    device->queue = clCreateCommandQueue(device->context, info->device_id, CL_QUEUE_PROFILING_ENABLE, &code);
    if (!device->queue) {
        status = tool_fail_cl(error, code, "clCreateCommandQueue");
        goto fail;
    }
    if (clmgk_context_create(device->context, info->device_id, NULL, &device->library, &failure) != CLMGK_OK) {
        status = tool_fail_library(error, &failure);
        goto fail;
    }
    return TOOL_DONE;
fail:
    tool_device_close(device);
    return status;
}

tool_exit tool_device_open(const char *selector, tool_device *device, tool_error *error)
{
    clmgk_error failure = {0};
    clmgk_device_info info;
    *device = (tool_device){0};
    if (clmgk_select_device(selector, &info, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    return tool_device_open_info(&info, device, error);
}

tool_exit tool_list_devices(const char *selector, bool all, clmgk_device_info **infos, size_t *count, tool_error *error)
{
    clmgk_error failure = {0};
    size_t room = 1;
    if (all && clmgk_list_devices(NULL, 0, &room, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    if (room == 0)
        return tool_fail(error, TOOL_NO_DEVICE, "no OpenCL device: expected a driver (such as pocl-opencl-icd)");
    *infos = calloc(room, sizeof(**infos));
    *count = room;
    if (!*infos)
        return tool_fail_memory(error, "the list of devices");
    if ((all ? clmgk_list_devices(*infos, room, count, &failure) : clmgk_select_device(selector, *infos, &failure)) ==
        CLMGK_OK) {
        *count = *count < room ? *count : room;
        return TOOL_DONE;
    }
    free(*infos);
    *infos = NULL;
    return tool_fail_library(error, &failure);
}

void tool_device_close(tool_device *device)
{
    clmgk_context_release(device->library);
    if (device->queue)
        clReleaseCommandQueue(device->queue);
    if (device->context)
        clReleaseContext(device->context);
    *device = (tool_device){0};
}

double tool_now_ms(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* What an enqueue that began at `start` took, or why it failed. */
static tool_exit finish(const tool_device *device, clmgk_status enqueued, const clmgk_error *failure, double start,
                        double *milliseconds, tool_error *error)
{
    if (enqueued != CLMGK_OK)
        return tool_fail_library(error, failure);
    const cl_int code = clFinish(device->queue);
    if (code != CL_SUCCESS)
        return tool_fail_cl(error, code, "clFinish");
    *milliseconds = tool_now_ms() - start;
    return TOOL_DONE;
}

tool_exit tool_time_pass(const tool_device *device, clmgk_plan *plan, clmgk_pass pass, const clmgk_attention_args *args,
                         double *milliseconds, tool_error *error)
{
    clmgk_status (*const enqueues[CLMGK_PASSES])(clmgk_plan *, cl_command_queue, const clmgk_attention_args *, cl_uint,
                                                 const cl_event *, cl_event *, clmgk_error *) = {
        clmgk_enqueue_forward, clmgk_enqueue_backward, clmgk_enqueue_statistics, clmgk_enqueue_combine};
    clmgk_error failure = {0};
    const double start = tool_now_ms();
    const clmgk_status status = enqueues[pass](plan, device->queue, args, 0, NULL, NULL, &failure);
    return finish(device, status, &failure, start, milliseconds, error);
}

static int compare_numbers(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

tool_spread tool_spread_of(double *numbers, size_t count)
{
    qsort(numbers, count, sizeof *numbers, compare_numbers);
    return (tool_spread){
        .median = 0.5 * (numbers[(count - 1) / 2] + numbers[count / 2]), .min = numbers[0], .max = numbers[count - 1]};
}

tool_exit tool_make_buffer(const tool_device *device, size_t bytes, const void *values, cl_mem *buffer,
                           tool_error *error)
{
    const cl_mem_flags flags = CL_MEM_READ_WRITE | (values ? CL_MEM_COPY_HOST_PTR : 0);
    cl_int code = CL_SUCCESS;
    /* The values are only read, whatever OpenCL's prototype says. */
    *buffer = clCreateBuffer(device->context, flags, tool_buffer_bytes(bytes, 1), (void *)(uintptr_t)values, &code);
    return *buffer ? TOOL_DONE : tool_fail_cl(error, code, "clCreateBuffer");
}

void tool_release_buffer(cl_mem buffer)
{
    if (buffer)
        clReleaseMemObject(buffer);
}

size_t tool_buffer_bytes(size_t elements, size_t element_size)
{
    return elements == 0 ? element_size : elements * element_size;
}
