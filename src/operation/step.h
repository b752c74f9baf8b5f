/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation is a list of steps: kernels, and commands that a library enqueues. They run in order on the buffers of a
 * call and a workspace. Passes of attention and matrix products are lists of steps.
 */
#ifndef MGK_STEP_H
#define MGK_STEP_H

#include "base/bound.clh"
#include "device/cuda.h"

/* The most steps of a list, and the most buffers of a call. */
#define MGK_MAX_STEPS    32
#define MGK_CALL_BUFFERS 92

/* Read-only memory of an operation's own, which its kernels take among a call's buffers, as number MGK_CALL_CONSTANTS.
 */
typedef struct mgk_constants {
    cl_mem memory;
    cl_mem in_cuda; /* NULL: not prepared; guarded by the context's monitor until the steps are prepared */
} mgk_constants;
#define MGK_CALL_CONSTANTS MGK_CALL_BUFFERS

clmgk_status mgk_constants_make(const clmgk_context *context, const void *data, size_t bytes, mgk_constants *constants,
                                clmgk_error *error);

/* Before the steps are prepared; the device is the thread's current one. */
clmgk_status mgk_constants_prepare_cuda(clmgk_context *context, const void *data, size_t bytes,
                                        mgk_constants *constants, clmgk_error *error);

void mgk_constants_free(clmgk_context *context, mgk_constants *constants);

/* A call: its buffers, in the operation's order (never NULL; memory NULL: not given), and its numbers. */
typedef struct mgk_call {
    const clmgk_buffer *buffers[MGK_CALL_BUFFERS]; /* offsets in elements; of the workspace in floats */
    uint64_t added;                                /* set of the first 64 buffers: results are added to their values */
    uint64_t seed;
    int64_t parts;
    const mgk_cuda_place *cuda; /* NULL: an OpenCL call. Else its stream; memory is addresses (mgk_cuda_memory_at) */
} mgk_call;

/* A call without any buffer. */
mgk_call mgk_empty_call(void);

/* A call's queue, the events that it waits for, and its own event. */
typedef struct mgk_queue_place {
    cl_command_queue queue;
    cl_uint num_wait;
    const cl_event *wait_list;
    cl_event *event; /* NULL: none */
} mgk_queue_place;

typedef struct mgk_step {
    /* A library's commands; NULL: the step is a kernel. */
    clmgk_status (*enqueue)(const void *state, const mgk_call *call, const mgk_queue_place *at, clmgk_error *error);
    const void *state;

    const char *file;                       /* of cl/ */
    const char *name;                       /* of the kernel */
    mgk_text options;                       /* of the compiler */
    mgk_hash key;                           /* of the options, if calls may choose among the list's kernels */
    const struct mgk_step *made;            /* the step whose kernel this one runs, of another list; NULL: its own */
    const char *mods;                       /* OpenCL C of a user's score and mask, the plan's; NULL: none */
    mgk_launch launch;                      /* global[0] = 0: nothing to do */
    uint64_t local_bytes;                   /* local memory of a work-group */
    unsigned dynamic_local;                 /* bytes of it that a launch in CUDA gives (MGK_DYNAMIC_LOCAL); 0: none */
    uint64_t private_bytes;                 /* private arrays of a work-item */
    unsigned char args[MGK_ARGUMENT_BYTES]; /* the kernel's first argument; each call sets its mgk_bound */
    size_t args_bytes;
    size_t buffers;                    /* that the kernel takes; mgk_step_check limits them */
    unsigned char buffer[MGK_BUFFERS]; /* their numbers in a call, in the order of the kernel's arguments */
    const mgk_constants *constants;    /* the operation's; NULL: none */

    mgk_program *program; /* steps may share one */
    cl_kernel kernel;
    mgk_kernel_needs needs;
    mgk_cuda_function function; /* the kernel in CUDA; NULL: not prepared; guarded by the mutex */
} mgk_step;

typedef struct mgk_steps {
    mgk_step step[MGK_MAX_STEPS];
    size_t count;
    size_t main; /* the main step: its options, local and private bytes are reported */
    uint64_t workspace_bytes;
    bool any_size;           /* calls launch smaller grids than the steps' */
    struct mgk_steps *owner; /* of the kernels that the steps run; NULL: the list itself */
    pthread_mutex_t mutex;   /* guards the kernels' arguments: clSetKernelArg is not thread-safe */
    bool made;               /* the mutex is initialised */
} mgk_steps;

/* A line of a kernel's list of buffers (cl/base/bound.clh): its number in a call, and whether the kernel takes it. */
typedef struct mgk_step_buffer {
    unsigned char number;
    bool needed;
} mgk_step_buffer;

/* Sets the step's arguments, and those buffers of the kernel's list that the kernel takes. */
void mgk_step_bind(mgk_step *step, const void *args, size_t args_bytes, const mgk_step_buffer *list, size_t count);

/* Appends to the step's arguments, which may then be too many: mgk_step_check. */
void mgk_step_append(mgk_step *step, const void *args, size_t bytes);

/* UNSUPPORTED, with the reason, if the step's arguments exceed what OpenCL guarantees. */
clmgk_status mgk_step_check(const mgk_step *step, clmgk_error *error);

/* Empties a list. */
void mgk_steps_clear(mgk_steps *steps, const clmgk_allocator *allocator);

/* Empties a list whose steps will run another's kernels: they get no options, so no memory is allocated. */
void mgk_steps_clear_call(mgk_steps *steps);

/* Has the list's steps, which nothing has compiled, run kernels of `owner`, which a call then enqueues by them.
 * UNSUPPORTED if a step has none. */
clmgk_status mgk_steps_borrow(mgk_steps *steps, mgk_steps *owner, clmgk_error *error);

/* Moves those steps of `more` to the end of the list whose kernels it lacks, for calls of any size up to the larger
 * grids. UNSUPPORTED if they are too many. */
clmgk_status mgk_steps_add(mgk_steps *steps, mgk_steps *more, clmgk_error *error);

/* Adds `floats` floats to the workspace, which begins at a multiple of MGK_WORKSPACE_ALIGNMENT bytes. Returns their
 * offset from its begin, also a multiple. */
mgk_i64 mgk_steps_region(mgk_steps *steps, int64_t floats);
#define MGK_WORKSPACE_ALIGNMENT 64

/* The bytes of a workspace that may begin at any float; and the first offset in bytes, from `offset` on, where it can
 * begin. */
uint64_t mgk_steps_workspace_size(const mgk_steps *steps);
uint64_t mgk_aligned_workspace(uint64_t offset);

/* Limits of a work-group: the device's, or lower ones after a compiled kernel did not fit (narrowed). */
typedef struct mgk_limits {
    uint64_t group, local;
    bool narrowed;
} mgk_limits;

/* Compiles the lists, runs each kernel once on an empty problem, and saves the programs. `origin`: the slowest of the
 * programs' origins. UNSUPPORTED: a kernel needs more of the device than planned. */
clmgk_status mgk_steps_make(clmgk_context *context, mgk_steps *const *lists, size_t count, mgk_limits *limits,
                            clmgk_program_origin *origin, clmgk_error *error);

/* Loads the steps' programs in CUDA, and runs each kernel once on an empty problem. The device is the thread's current
 * one, as for calls in CUDA. */
clmgk_status mgk_steps_prepare_cuda(mgk_cuda *cuda, mgk_steps *steps, clmgk_error *error);

/* INVALID_VALUE: a call in CUDA before that. */
clmgk_status mgk_fail_unprepared(clmgk_error *error);

/* Enqueues the steps, or those of a list that runs another's kernels; each waits for the previous step. Never compiles,
 * allocates or waits. For a call in CUDA the list must be prepared. */
clmgk_status mgk_steps_enqueue(mgk_steps *steps, const mgk_call *call, const mgk_queue_place *at, clmgk_error *error);

#endif
