/* SPDX-License-Identifier: Apache-2.0 */
/* Runs two plans of one problem, on two engines, on the same random arrays, and compares their results. */
#ifndef MGK_TRIAL_H
#define MGK_TRIAL_H

#include "attention/plan.h"

typedef struct mgk_trial {
    clmgk_plan *own, *other;         /* all passes of a descriptor with dense arrays */
    clmgk_array wrong[CLMGK_PASSES]; /* the array of each pass that differs most; CLMGK_ARRAYS: none differs */
    double difference[CLMGK_PASSES]; /* of the two plans' results */
    double limit[CLMGK_PASSES];
} mgk_trial;

/* A small problem whose plan, with these parameters of each pass, has the plan's own programs. It has all arrays of the
 * plan's descriptor, dense. */
clmgk_status mgk_trial_shrink(const clmgk_plan *plan, clmgk_attention_desc *small, clmgk_error *error);
void mgk_trial_parameters(const clmgk_plan *plan, clmgk_pass pass, mgk_text *text);

/* Runs all passes but the combination several times, and waits for them. `cuda`: where the own plan, which is prepared,
 * runs; NULL: in OpenCL, as the other. */
clmgk_status mgk_trial_run(mgk_trial *trial, mgk_cuda *cuda, clmgk_error *error);

#endif
