/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the Python package adds to the C interface: devices opened by name, and passes on arrays in host memory.
 *
 * All functions may run without Python's lock, on several threads at once.
 */
#ifndef BINDING_H
#define BINDING_H

#include <clmgk/clmgk.h>
#include <clmgk/dist.h>

/* A device with the objects that every call on it uses. The queue is in order. */
typedef struct binding_device {
    cl_context context;
    cl_device_id id;
    cl_command_queue queue;
    clmgk_context *clmgk;
    int32_t in_place; /* 1: kernels use the caller's memory; 0: arrays are copied to the device and back */
} binding_device;

/* An array of a pass. */
typedef struct binding_slot {
    clmgk_array array;
    int32_t is_output;
    uint32_t element_bytes;
    uint64_t bytes; /* from the first element to one past the last; 0: no elements */
} binding_slot;

/* A pass of a plan. */
typedef struct binding_pass {
    clmgk_pass number;
    int64_t parts; /* these two as in clmgk_attention_args */
    const clmgk_call_sizes *sizes;
    size_t count;
    const binding_slot *slots;
} binding_pass;

/* Opens the device that `selector` picks (clmgk_select_device). `options` may be NULL. The caller closes it, also after
 * a failure. */
clmgk_status binding_open(const char *selector, const clmgk_context_options *options, binding_device *device,
                          clmgk_error *error);

/* Opens a device of the caller's OpenCL context, which is retained. No queue is made. */
clmgk_status binding_adopt(cl_context context, cl_device_id id, const clmgk_context_options *options,
                           binding_device *device, clmgk_error *error);

void binding_close(binding_device *device);

/* A pass that has begun, and is not over. */
typedef struct binding_pending binding_pending;

/*
 * Runs a pass on host memory and waits for it. arrays[i] is the first element of the array pass->slots[i], NULL if it
 * is not given. Outputs are read too: gradients may be added to them, and gaps between strides keep their values.
 * `workspace`, of clmgk_plan_workspace_size bytes, may be NULL if that is 0; the call uses it alone. `seed` and
 * `accumulate` are as in clmgk_attention_args.
 *
 * The call waits for `patience` milliseconds (less than 0: for the end). If the pass is not over by then, *pending is
 * set (it is NULL before the call), and binding_finish must follow. Until then all that the pass uses stays as it is:
 * the device, the plan, `pass` (but not `arrays` itself), the workspace and the memory of the arrays.
 */
clmgk_status binding_run(const binding_device *device, clmgk_plan *plan, const binding_pass *pass, void *const *arrays,
                         uint64_t seed, uint32_t accumulate, cl_mem workspace, int32_t patience,
                         binding_pending **pending, clmgk_error *error);

/* Waits for this time at most; 1: the pass is over. */
int32_t binding_wait(binding_pending *pending, int32_t milliseconds);

/* Waits for the end, releases *pending and sets it to NULL. Returns the pass's status. */
clmgk_status binding_finish(binding_pending **pending, clmgk_error *error);

/* Runs the forward or the backward pass of a plan over several ranks, with this rank's arrays, and waits for it, and
 * for the other ranks. The other arguments are those of binding_run. */
clmgk_status binding_run_ranks(const binding_device *device, clmgk_dist_plan *plan, const binding_pass *pass,
                               void *const *arrays, uint64_t seed, clmgk_error *error);

clmgk_status binding_create_buffer(const binding_device *device, size_t bytes, cl_mem *memory, clmgk_error *error);
void binding_release_buffer(cl_mem memory);

/* 1: some platform that the OpenCL loader lists has a device, or binding_use_runtime gave one. */
int32_t binding_has_device(void);

/*
 * Loads an OpenCL implementation that the loader does not list: the shared library `path`. Its platform follows those
 * of the loader, for this package alone. It stays loaded until the process ends.
 */
clmgk_status binding_use_runtime(const char *path, clmgk_error *error);

#endif
