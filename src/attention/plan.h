/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's inside, for the functions that make one and those that enqueue it. */
#ifndef MGK_PLAN_H
#define MGK_PLAN_H

#include "attention/core/family.h"

/* One pass that a plan can do, compiled. */
typedef struct mgk_compiled_pass {
    clmgk_engine engine;
    mgk_pass_plan plan;
    mgk_program *program[MGK_MAX_STEPS]; /* of each step; steps may share one */
    cl_kernel kernel[MGK_MAX_STEPS];
    mgk_kernel_needs needs; /* of the main kernel */
    mgk_text parameters;
    clmgk_tuning_source source; /* of engine and parameters */
} mgk_compiled_pass;

struct clmgk_plan {
    clmgk_context *context;
    clmgk_attention_desc desc; /* resolved */
    const mgk_family *family;
    bool untuned;                          /* what was measured is not to be used: it does not work here */
    bool narrowed;                         /* a compiled kernel did not fit: the limits are lower now */
    uint64_t group_limit, local_limit;     /* work-items and local memory of a work-group: the device's, or less */
    mgk_compiled_pass *pass[CLMGK_PASSES]; /* NULL: the descriptor does not ask for it */
    pthread_mutex_t mutex;                 /* guards the kernels' arguments: clSetKernelArg is not thread-safe */
    clmgk_plan_info info;
};

/* Sets a step's arguments, `args` (its structure) and the call's buffers, and enqueues it as `launch` says. With the
 * plan's lock held, or while nobody else knows the plan. */
clmgk_status mgk_launch_step(const mgk_compiled_pass *pass, size_t step, const mgk_launch *launch, const void *args,
                             const mgk_call *call, cl_command_queue queue, cl_uint num_wait, const cl_event *wait_list,
                             cl_event *event, clmgk_error *error);

/* Whether the pass of a resolved descriptor can be planned with a tuned engine and parameters: INVALID_VALUE, with the
 * reason, if not. Compiles nothing. */
clmgk_status mgk_plan_try(clmgk_context *context, const clmgk_attention_desc *desc, clmgk_pass which,
                          clmgk_engine engine, const char *parameters, clmgk_error *error);

/* A call without any array. */
mgk_call mgk_empty_call(void);

#endif
