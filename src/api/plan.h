/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's inside, for the functions that make one and those that enqueue it. */
#ifndef MGK_PLAN_H
#define MGK_PLAN_H

#include "variants/family.h"

struct clmgk_plan {
    clmgk_context *context;
    clmgk_attention_desc desc; /* resolved */
    const mgk_family *family;
    mgk_kernel_plan forward;
    mgk_program *program;
    cl_kernel kernel;
    pthread_mutex_t mutex; /* guards the kernel's arguments: clSetKernelArg is not thread-safe */
    mgk_text parameters;
    clmgk_plan_info info;
};

/* Binds one call's arrays (by mgk_array) and enqueues. Takes the plan's lock. */
clmgk_status mgk_plan_launch(clmgk_plan *plan, cl_command_queue queue, const mgk_launch *launch,
                             const clmgk_buffer *const arrays[MGK_ARRAYS], const void *args, cl_uint num_wait,
                             const cl_event *wait_list, cl_event *event, clmgk_error *error);

#endif
