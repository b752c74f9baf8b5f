/* SPDX-License-Identifier: Apache-2.0 */
/* Exact values, their bounds from the plain formula's error, and the comparison, for outputs, gradients and
 * statistics. */
#ifndef CLMGK_REFERENCE_ARRAYS_H
#define CLMGK_REFERENCE_ARRAYS_H

#include "reference/exact.h"
#include "reference/plain.h"

/* A bound: `factor` times the plain formula's error, plus a fraction of the largest value. */
typedef struct ref_tolerance {
    double factor;
    double part;
    double least; /* normal number of the storage type: smaller values have no relative bound */
    double most;  /* largest number of the storage type, if that is less than f32's; else 0 */
} ref_tolerance;

/* By the type of clmgk_ref_type_of. */
ref_tolerance ref_tolerance_of_outputs(clmgk_dtype dtype);
ref_tolerance ref_tolerance_of_gradients(clmgk_dtype dtype);

/* The tolerance of products whose factors are rounded, if that is wider; gradients: twice the part. */
ref_tolerance ref_tolerance_of_products(ref_tolerance own, clmgk_precision precision, double times);

/* The largest number of a storage type, if that is less than f32's; else 0. */
double ref_most(clmgk_dtype dtype);

/* Widens `bound` by the plain formula's error in `count` values, except in values that are not finite on either
 * side. */
void ref_observe(clmgk_ref_bound *bound, int64_t count, const double *exact, const float *plain);
void ref_finish_bound(clmgk_ref_bound *bound, ref_tolerance tolerance);

/* Writes to `message` that the bound is larger than the values, if it is. */
void ref_expect_proof(const char *name, const clmgk_ref_bound *bound, char *message, size_t capacity);

/* The worst error of given[count] where both sides are finite and the limit is within the values; the limit of element
 * n is the bound + floor[n] (floor NULL: the bound). *wrong: the first element beyond its limit, or finite on one side
 * only; -1 if there is none. */
clmgk_ref_error ref_compare(int64_t count, const double *exact, const double *given, const clmgk_ref_bound *bound,
                            const double *floor, int64_t *wrong);

/*
 * Computes the arrays of a kind. `exact` and `plain` add to values[n], initially zero, for every requested array n; the
 * others are NULL. `exact` also adds the sizes of terms to floor[n] and size[n] if has_sizes, and says in lost[B H N],
 * or [B H N S] if lost_keys, what f32 loses: `plain` leaves that out. False: out of memory.
 */
typedef struct ref_solver {
    const char *const *names;
    bool has_sizes; /* else the largest value stands for the largest sum of terms */
    bool lost_keys;
    int64_t (*count)(const clmgk_attention_desc *desc, int which);
    ref_tolerance (*tolerance)(const clmgk_attention_desc *desc, int which);
    bool (*exact)(const clmgk_ref_problem *problem, const exact_scores *scores, const exact_sums *sums);
    bool (*plain)(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way, const bool *lost,
                  float *const values[]);
} ref_solver;

bool ref_solve_arrays(const clmgk_ref_problem *problem, uint32_t set, const ref_solver *solver, clmgk_ref_arrays *out);

#endif
