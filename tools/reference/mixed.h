/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixing after the softmax: O_h = sum_a m_ha P_a V_h of A heads before it. Those heads are a problem of their own,
 * whose heads all read the values of the H heads side by side, V' = (V_1 .. V_H): it has O'_a = P_a V', from which O
 * follows, and with dO'_a = (m_1a dO_1 .. m_Ha dO_H) its gradients are those of the problem, dV but for a sum.
 */
#ifndef CLMGK_REFERENCE_MIXED_H
#define CLMGK_REFERENCE_MIXED_H

#include "reference/gradients.h"

typedef struct ref_mixed {
    const clmgk_ref_problem *problem;
    clmgk_ref_problem heads; /* the problem of the A heads, with values [B,1,S,H E] */
    double *memory;
    exact_row exact;
    ref_plain plain;
    double *o, *size; /* [A,H E]: O' of the rows solved last, and sums of the absolute values of its terms */
    float *plain_o;   /* [A,H E] */
    bool lost;        /* f32 loses one of these rows: reference.h */
    ref_row at, plain_at;
    ref_way way;
} ref_mixed;

/* False: out of memory, nothing to free. */
bool ref_mixed_create(const clmgk_ref_problem *problem, ref_mixed *mixed);
void ref_mixed_free(ref_mixed *mixed);

/* The problem of the A heads, without values. */
clmgk_ref_problem ref_mixed_heads(const clmgk_ref_problem *problem);

/* O of row `at` of the H heads: exact, and by the plain formula. */
void ref_mixed_output(ref_mixed *mixed, ref_row at, double *o);
void ref_mixed_plain(ref_mixed *mixed, ref_row at, ref_way way, float *o);

/* Weights [S] of row `at`. */
void ref_mixed_weights(ref_mixed *mixed, ref_row at, double *weights);

/* The rows of an answer, but for L (`before`); of all rows, in order, if `all`. False: out of memory. */
bool ref_mixed_rows(const clmgk_ref_problem *problem, bool all, clmgk_ref_answer *answer);

/* As exact_gradients and plain_gradients. */
bool ref_mixed_gradients(const clmgk_ref_problem *problem, const exact_scores *scores, const exact_sums *sums);
bool ref_mixed_plain_gradients(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way,
                               const bool *lost, float *const values[]);
bool ref_mixed_may_leave(const clmgk_ref_problem *problem, bool *may);

/* lost.c: the range of O of a lost row, and whether O may be zero. */
void ref_fill_range(const exact_row *row, const double *o, double *low, double *high, bool *may_be_zero);

#endif
