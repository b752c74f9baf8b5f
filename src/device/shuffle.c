/* SPDX-License-Identifier: Apache-2.0 */
/* Sub-groups. Drivers do not say which work-items share one, so a probe kernel finds out. */
#include "device/device.h"
#include "engine/shuffles.clh"

/* As in cl/engine/shuffle_probe.cl. */
#define PROBE_ITEMS  128
#define PROBE_GROUPS 2

static bool has_extension(cl_device_id device, const char *name)
{
    bool found = false;
    return mgk_device_has_extension(device, name, &found, NULL) == CLMGK_OK && found;
}

/* Compilers may choose the size of a sub-group for each kernel, so an extension counts only where kernels can demand
 * the probe's size. On NVIDIA's and AMD's GPUs the processor fixes the size. */
static bool may_have(const clmgk_context *context, int shuffle)
{
    switch (shuffle) {
    case SHUFFLE_KHR:
    case SHUFFLE_INTEL:
        return has_extension(context->device,
                             shuffle == SHUFFLE_KHR ? "cl_khr_subgroup_shuffle" : "cl_intel_subgroups") &&
               has_extension(context->device, "cl_intel_required_subgroup_size");
    case SHUFFLE_PTX:
        return mgk_gpu_of(&context->facts) == MGK_GPU_NVIDIA;
    default:
        return mgk_gpu_of(&context->facts) == MGK_GPU_AMD;
    }
}

/* The number of neighbours of each work-item. */
static clmgk_status launch(const clmgk_context *context, cl_kernel kernel, cl_mem buffer, cl_int *neighbours,
                           clmgk_error *error)
{
    const mgk_launch launch = {1, {(size_t)PROBE_GROUPS * PROBE_ITEMS, 1, 1}, {PROBE_ITEMS, 1, 1}};
    const mgk_kernel_arg arg = {sizeof(buffer), &buffer};
    cl_int code = CL_SUCCESS;
    cl_command_queue queue = clCreateCommandQueue(context->context, context->device, 0, &code);
    if (queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    clmgk_status status = mgk_launch_kernel(queue, kernel, &launch, 1, &arg, 0, NULL, NULL, error);
    if (status == CLMGK_OK) {
        code = clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, PROBE_ITEMS * sizeof(cl_int), neighbours, 0, NULL, NULL);
        status = mgk_check_cl(error, code, "clEnqueueReadBuffer");
    }
    clReleaseCommandQueue(queue);
    return status;
}

static clmgk_status run(const clmgk_context *context, cl_program program, cl_int *neighbours, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program, "shuffle_probe", &code);
    if (kernel == NULL)
        return mgk_fail_cl(error, code, "clCreateKernel");
    cl_mem buffer = clCreateBuffer(context->context, CL_MEM_WRITE_ONLY, PROBE_ITEMS * sizeof(cl_int), NULL, &code);
    clmgk_status status = buffer != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
    if (status == CLMGK_OK)
        status = launch(context, kernel, buffer, neighbours, error);
    if (buffer != NULL)
        clReleaseMemObject(buffer);
    clReleaseKernel(kernel);
    return status;
}

static clmgk_status build_and_run(clmgk_context *context, int shuffle, cl_int *neighbours, clmgk_error *error)
{
    clmgk_status status;
    mgk_program *program = NULL;
    clmgk_program_origin origin;
    double ms = 0.0;
    mgk_text options = {.allocator = &context->allocator};
    mgk_text_printf(&options, "-cl-std=CL1.2 -DSHUFFLE=%d -DLEAST_SUB_GROUP=%d", shuffle,
                    context->facts.least_sub_group);
    if (options.failed)
        return mgk_fail_memory(error, "compiler options");
    MGK_TRY_GOTO(status,
                 mgk_program_get(context, "engine/shuffle_probe.cl", options.data, &program, &origin, &ms, error),
                 cleanup);
    MGK_TRY_GOTO(status, run(context, program->program, neighbours, error), cleanup);
    mgk_program_save(program);
cleanup:
    mgk_program_release(program);
    mgk_text_free(&options);
    return status;
}

/* The smallest number of neighbours that the probe saw; 1 without any. */
static int probe(clmgk_context *context, int shuffle)
{
    cl_int neighbours[PROBE_ITEMS] = {0};
    int size = PROBE_ITEMS;
    clmgk_error reason;
    if (build_and_run(context, shuffle, neighbours, &reason) != CLMGK_OK)
        return 1;
    for (int i = 0; i < PROBE_ITEMS; ++i)
        size = neighbours[i] < size ? neighbours[i] : size;
    return size;
}

static mgk_sub_group find(clmgk_context *context)
{
    for (int shuffle = SHUFFLE_KHR; shuffle <= SHUFFLE_AMD; ++shuffle) {
        const int size = may_have(context, shuffle) ? probe(context, shuffle) : 1;
        if (size > 1)
            return (mgk_sub_group){.known = true, .shuffle = shuffle, .size = size};
    }
    return (mgk_sub_group){.known = true};
}

mgk_sub_group mgk_context_sub_group(clmgk_context *context)
{
    pthread_mutex_lock(&context->monitor.mutex);
    mgk_sub_group found = context->sub_group;
    pthread_mutex_unlock(&context->monitor.mutex);
    if (found.known)
        return found;
    found = find(context); /* builds programs, which takes the mutex; threads at the same time find the same */
    pthread_mutex_lock(&context->monitor.mutex);
    context->sub_group = found;
    pthread_mutex_unlock(&context->monitor.mutex);
    return found;
}
