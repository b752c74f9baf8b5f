/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLMGK_WARM_UP_H
#define CLMGK_WARM_UP_H

#include "attention.h"

/*
 * Making plans in the background. A thread makes the plans of a list, one after another. Meanwhile the caller may do
 * other work, make other plans (these wait only for a program that they share with the plan being made), and take each
 * plan of the list when it needs it. Programs belong to the context: after a plan was released, an equal one is made
 * quickly as long as any plan with the same programs lives. This thread calls only OpenCL. (Elsewhere the library
 * starts threads only while it makes a plan or a layer on an NVIDIA device: they compile its programs, and end before
 * the call returns.) All functions are thread-safe except release, which must be the last call.
 */
typedef struct clmgk_warm_up clmgk_warm_up;

/*
 * Starts the thread for `count` descriptors. Validates and copies them in this call; the thread processes them in
 * order. `options` apply to every plan; they are copied and may be NULL. The job retains the context. The caller
 * releases the job.
 * Errors: those of clmgk_attention_validate (the message names descs[i]), INVALID_VALUE (NULL, options),
 * OUT_OF_HOST_MEMORY (also: no thread).
 */
CLMGK_API clmgk_status clmgk_warm_up_start(clmgk_context *context, const clmgk_attention_desc *const *descs,
                                           size_t count, const clmgk_plan_options *options, clmgk_warm_up **out,
                                           clmgk_error *error);

/* Progress: *done of *count descriptors have a plan, have failed or were cancelled. Either pointer may be NULL. Does
 * not wait. */
CLMGK_API clmgk_status clmgk_warm_up_progress(clmgk_warm_up *job, size_t *done, size_t *count, clmgk_error *error);

/* Waits until descriptor `index` is done, and passes the ownership of its plan to the caller, who releases it. Errors:
 * those of clmgk_plan_create with its message, CANCELLED, INVALID_VALUE (NULL, index, plan taken before). */
CLMGK_API clmgk_status clmgk_warm_up_take(clmgk_warm_up *job, size_t index, clmgk_plan **out, clmgk_error *error);

/* Waits until all descriptors are done. Returns OK, or the error of the first descriptor that failed; the plans of the
 * other descriptors can still be taken. */
CLMGK_API clmgk_status clmgk_warm_up_wait(clmgk_warm_up *job, clmgk_error *error);

/* Makes no further plans. The plan being made is completed; this call does not wait for it. NULL is allowed. */
CLMGK_API void clmgk_warm_up_cancel(clmgk_warm_up *job);

/* Cancels, waits for the plan being made, and releases the plans that were not taken. NULL is allowed. */
CLMGK_API void clmgk_warm_up_release(clmgk_warm_up *job);

#endif
