/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation as steps: kernels, and commands that a library enqueues, one after the other over the buffers of a call
 * and one workspace. A pass of attention is a list of steps, and so is a matrix product.
 */
#ifndef MGK_STEP_H
#define MGK_STEP_H

#include "base/bound.clh"
#include "device/device.h"

/* Steps of a list, and buffers of a call, at most. */
#define MGK_MAX_STEPS    16
#define MGK_CALL_BUFFERS 64

/* One call: its buffers, in an order that the operation has (never NULL; memory NULL: not given), and numbers. */
typedef struct mgk_call {
    const clmgk_buffer *buffers[MGK_CALL_BUFFERS]; /* offsets in elements; of the workspace in floats */
    uint64_t added;                                /* set of buffers: results are added to what is there */
    uint64_t seed;
    int64_t parts;
} mgk_call;

/* A call without any buffer. */
mgk_call mgk_empty_call(void);

/* Where a call is enqueued, the events that it waits for, and its own. */
typedef struct mgk_queue_place {
    cl_command_queue queue;
    cl_uint num_wait;
    const cl_event *wait_list;
    cl_event *event; /* NULL: not wanted */
} mgk_queue_place;

typedef struct mgk_step {
    /* A library's commands; NULL: the step is a kernel. */
    clmgk_status (*enqueue)(const void *state, const mgk_call *call, const mgk_queue_place *at, clmgk_error *error);
    const void *state;

    const char *file;                       /* of cl/ */
    const char *name;                       /* of the kernel */
    mgk_text options;                       /* of the compiler */
    mgk_launch launch;                      /* global[0] = 0: nothing to do */
    uint64_t local_bytes;                   /* local memory of a work-group */
    uint64_t private_bytes;                 /* private arrays of a work-item */
    unsigned char args[MGK_ARGUMENT_BYTES]; /* the kernel's first argument; its mgk_bound is each call's */
    size_t args_bytes;
    size_t buffers;                  /* its other arguments */
    unsigned char buffer[MGK_SLOTS]; /* in their order, by their numbers in a call */

    mgk_program *program; /* steps may share one */
    cl_kernel kernel;
    mgk_kernel_needs needs;
} mgk_step;

typedef struct mgk_steps {
    mgk_step step[MGK_MAX_STEPS];
    size_t count;
    size_t main; /* the step that does the work: its options, local and private bytes are shown */
    uint64_t workspace_bytes;
    pthread_mutex_t mutex; /* guards the kernels' arguments: clSetKernelArg is not thread-safe */
    bool made;             /* the mutex is initialised */
} mgk_steps;

/* Releases what a list has; then it is empty. */
void mgk_steps_clear(mgk_steps *steps, const clmgk_allocator *allocator);

/* Where the next `floats` of the workspace begin, aligned to 64 bytes. */
mgk_i64 mgk_steps_region(mgk_steps *steps, int64_t floats);

/* Work-items and local memory of a work-group: the device's, or less, where a compiled kernel did not fit (narrowed).
 */
typedef struct mgk_limits {
    uint64_t group, local;
    bool narrowed;
} mgk_limits;

/* Compiles lists and runs each kernel once over nothing, then saves the programs. `origin`: the slowest way by which
 * one of them came. UNSUPPORTED: a kernel takes more of the device than was planned. */
clmgk_status mgk_steps_make(clmgk_context *context, mgk_steps *const *lists, size_t count, mgk_limits *limits,
                            clmgk_program_origin *origin, clmgk_error *error);

/* Enqueues the steps, each to wait for the one before. Compiles, allocates and waits for nothing. */
clmgk_status mgk_steps_enqueue(mgk_steps *steps, const mgk_call *call, const mgk_queue_place *at, clmgk_error *error);

#endif
