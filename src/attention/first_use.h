/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first use of a device that nobody has tried (docs/gpu.md): before an engine's first plan of a family, a small
 * problem runs, forward and backward, and some numbers of its results are compared with stored ones. A verdict holds
 * for the context, and on disk, where the library keeps programs, for the device, its driver and the library's version.
 */
#ifndef MGK_FIRST_USE_H
#define MGK_FIRST_USE_H

#include "attention/plan.h"
#include "attention/verdicts.h"

/* Outputs that are compared, and how many numbers of each: at equal distances, from the first on. */
#define MGK_FIRST_USE_OUTPUTS(X) X(O) X(LSE) X(GRAD_Q) X(GRAD_K) X(GRAD_V)
enum {
#define MGK_FIRST_USE_OUTPUT(name) MGK_FIRST_USE_##name,
    MGK_FIRST_USE_OUTPUTS(MGK_FIRST_USE_OUTPUT)
#undef MGK_FIRST_USE_OUTPUT
        MGK_FIRST_USE_COUNT
};
enum { MGK_FIRST_USE_SAMPLES = 48 };

/* The problem of the family number `family` of CLMGK_FAMILY_LIST; not resolved. */
clmgk_attention_desc mgk_first_use_problem(int family);

/* Fills an input of the problem, with numbers that all types hold. */
void mgk_first_use_fill(clmgk_array array, float *x, int64_t count);

/* The number of an output that is sample `sample`, of `count`. */
int64_t mgk_first_use_index(int64_t count, int sample);

/* Stored, and all 0 where the family has no such output. */
const float *mgk_first_use_expected(int family, int output);

/* False if the engine of the plan gives wrong numbers. The first call for the plan's family and engine tries it, on a
 * device that nobody has tried. A trial that fails to run gives no verdict. */
bool mgk_first_use_passes(const clmgk_plan *plan);

#endif
