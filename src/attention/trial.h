/* SPDX-License-Identifier: Apache-2.0 */
/* Two plans of one problem, on two engines, run on the same random arrays, and their results compared. */
#ifndef MGK_TRIAL_H
#define MGK_TRIAL_H

#include "attention/plan.h"

typedef struct mgk_trial {
    clmgk_plan *own, *other;         /* all passes of a descriptor with dense arrays */
    clmgk_array wrong[CLMGK_PASSES]; /* the array of each pass that differs most; CLMGK_ARRAYS: none differs */
    double difference[CLMGK_PASSES]; /* of the two plans' results */
    double limit[CLMGK_PASSES];
} mgk_trial;

/* Runs all passes but the combination several times, and waits for them. */
clmgk_status mgk_trial_run(mgk_trial *trial, clmgk_error *error);

#endif
