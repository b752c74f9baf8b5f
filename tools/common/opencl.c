/* SPDX-License-Identifier: Apache-2.0 */
#include "opencl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

tool_exit tool_device_open_info(const clmgk_device_info *info, tool_device *device, tool_error *error)
{
    tool_exit status = TOOL_DONE;
    cl_int code = CL_SUCCESS;
    *device = (tool_device){.info = *info};
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)info->platform_id, 0};
    device->context = clCreateContext(properties, 1, &info->device_id, NULL, NULL, &code);
    TOOL_TRY_GOTO(status, tool_check_cl(code, "clCreateContext", error), fail);
    device->queue = clCreateCommandQueue(device->context, info->device_id, CL_QUEUE_PROFILING_ENABLE, &code);
    TOOL_TRY_GOTO(status, tool_check_cl(code, "clCreateCommandQueue", error), fail);
    TOOL_TRY_GOTO(
        status,
        tool_check_library(
            clmgk_context_create(device->context, info->device_id, NULL, &device->library, &error->library), error),
        fail);
    return TOOL_DONE;
fail:
    tool_device_close(device);
    return status;
}

tool_exit tool_device_open(const char *selector, tool_device *device, tool_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    *device = (tool_device){0};
    TOOL_TRY(tool_check_library(clmgk_select_device(selector, &info, &error->library), error));
    return tool_device_open_info(&info, device, error);
}

tool_exit tool_list_devices(const char *selector, bool all, clmgk_device_info **infos, size_t *count, tool_error *error)
{
    size_t room = 1;
    clmgk_device_info none = CLMGK_DEVICE_INFO_INIT;
    TOOL_TRY(tool_check_library(all ? clmgk_list_devices(NULL, 0, &room, &error->library) : CLMGK_OK, error));
    if (room == 0) /* fails, and says why there is none */
        return tool_check_library(clmgk_select_device(NULL, &none, &error->library), error);
    *infos = calloc(room, sizeof(**infos));
    *count = room;
    TOOL_TRY(tool_check_memory(*infos, "the list of devices", error));
    (*infos)->struct_size = sizeof(**infos);
    const tool_exit status = tool_check_library(all ? clmgk_list_devices(*infos, room, count, &error->library)
                                                    : clmgk_select_device(selector, *infos, &error->library),
                                                error);
    if (status == TOOL_DONE) {
        *count = *count < room ? *count : room;
        return TOOL_DONE;
    }
    free(*infos);
    *infos = NULL;
    return status;
}

/* Leaves the OpenCL context to the process's end: PoCL takes 0.1 s to free its compiler's memory piece by piece. */
void tool_device_close(tool_device *device)
{
    clmgk_context_release(device->library);
    if (device->queue)
        clReleaseCommandQueue(device->queue);
    *device = (tool_device){0};
}

double tool_now_ms(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

tool_exit tool_time_pass(const tool_device *device, clmgk_plan *plan, clmgk_pass pass, const clmgk_attention_args *args,
                         double *milliseconds, tool_error *error)
{
    clmgk_status (*const enqueues[CLMGK_PASSES])(clmgk_plan *, cl_command_queue, const clmgk_attention_args *, cl_uint,
                                                 const cl_event *, cl_event *, clmgk_error *) = {
        clmgk_enqueue_forward, clmgk_enqueue_backward, clmgk_enqueue_statistics,
        clmgk_enqueue_combine, clmgk_enqueue_mask,     clmgk_enqueue_append};
    const double start = tool_now_ms();
    TOOL_TRY(tool_check_library(enqueues[pass](plan, device->queue, args, 0, NULL, NULL, &error->library), error));
    TOOL_TRY(tool_check_cl(clFinish(device->queue), "clFinish", error));
    *milliseconds = tool_now_ms() - start;
    return TOOL_DONE;
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
    return tool_check_cl(code, "clCreateBuffer", error);
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
