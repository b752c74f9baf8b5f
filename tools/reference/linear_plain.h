/* SPDX-License-Identifier: Apache-2.0 */
/* The linear family's plain formula, in f32. False: out of memory. */
#ifndef CLMGK_REFERENCE_LINEAR_PLAIN_H
#define CLMGK_REFERENCE_LINEAR_PLAIN_H

#include "reference/plain.h"

/* O [rows,E] and denominators [rows] of the answer's rows, these in its scales. */
bool ref_plain_linear_rows(const clmgk_ref_problem *problem, ref_order order, const clmgk_ref_answer *answer, float *o,
                           float *den);

/* By clmgk_ref_gradient, as plain_gradients. */
bool ref_plain_linear_gradients(const clmgk_ref_problem *problem, ref_order order, float *const values[]);

/* C and z, which are 0 before, in units of e^scale, by clmgk_ref_state. */
bool ref_plain_linear_state(const clmgk_ref_problem *problem, ref_order order, const double *scale,
                            float *const values[]);

#endif
