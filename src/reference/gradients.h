/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients, exact and by the plain formula: values[clmgk_ref_gradient], NULL where one is not wanted. */
#ifndef CLMGK_REFERENCE_GRADIENTS_H
#define CLMGK_REFERENCE_GRADIENTS_H

#include "reference/plain.h"

/* False: out of memory. */
bool exact_gradients(const clmgk_ref_problem *problem, double *const values[]);
bool plain_gradients(const clmgk_ref_problem *problem, ref_way way, float *const values[]);

#endif
