/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head layers for tests: a problem made from a descriptor and a seed, and the reference's view of it. */
#ifndef CLMGK_TEST_LAYER_H
#define CLMGK_TEST_LAYER_H

#include "harness/harness.h"
#include "reference/layer.h"

/* Arrays of both are dense values on the host. Those of the attention that the layer keeps to itself are unused. */
typedef struct tl_problem {
    clmgk_layer_desc desc; /* resolved; its field `attention` is NULL */
    th_problem attention;
    th_reference integers; /* what the reference's problem points to */
    double *values[CLMGK_LAYER_ARRAYS];
    size_t count[CLMGK_LAYER_ARRAYS];
} tl_problem;

/* Random arrays: weights of variance 1 / inputs, gains around 1; the attention's as th_problem_make has them. */
tl_problem tl_make(const clmgk_layer_desc *desc, uint64_t seed);
void tl_free(tl_problem *problem);
#define TL_PROBLEM __attribute__((unused, cleanup(tl_free))) tl_problem
#define TL_ANSWER  __attribute__((unused, cleanup(clmgk_ref_layer_answer_free))) clmgk_ref_layer_answer

/* The problem for the reference, which points to the values of this one. */
clmgk_ref_layer tl_reference(tl_problem *problem);

#endif
