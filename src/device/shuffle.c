/* SPDX-License-Identifier: Apache-2.0 */
/* Sub-groups. Drivers do not say which work-items share one, so a probe kernel finds out. */
#include "device/probe.h"
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

static clmgk_status count_neighbours(clmgk_context *context, int shuffle, cl_int *neighbours, clmgk_error *error)
{
    static const mgk_probe probe = {.file = "engine/shuffle_probe.cl",
                                    .kernel = "shuffle_probe",
                                    .items = (size_t)PROBE_GROUPS * PROBE_ITEMS,
                                    .group = PROBE_ITEMS,
                                    .bytes = PROBE_ITEMS * sizeof(cl_int)};
    mgk_text options = {.allocator = &context->allocator};
    mgk_text_printf(&options, "-cl-std=CL1.2 -DSHUFFLE=%d -DLEAST_SUB_GROUP=%d", shuffle,
                    context->facts.least_sub_group);
    const clmgk_status status = options.failed ? mgk_fail_memory(error, "compiler options")
                                               : mgk_probe_run(context, &probe, options.data, neighbours, error);
    mgk_text_free(&options);
    return status;
}

/* Smallest number of neighbours that the probe saw; 1 without any. */
static int probe(clmgk_context *context, int shuffle)
{
    cl_int neighbours[PROBE_ITEMS] = {0};
    int size = PROBE_ITEMS;
    clmgk_error reason;
    if (count_neighbours(context, shuffle, neighbours, &reason) != CLMGK_OK)
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
    mgk_sub_group found;
    mgk_monitor_copy(&context->monitor, &found, &context->sub_group, sizeof(found));
    if (!found.known) {
        found = find(context); /* builds programs, which takes the mutex; threads at the same time find the same */
        mgk_monitor_copy(&context->monitor, &context->sub_group, &found, sizeof(found));
    }
    return found;
}
