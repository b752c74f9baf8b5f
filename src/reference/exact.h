/* SPDX-License-Identifier: Apache-2.0 */
/* One row in double precision: what O, gradients and statistics are made from. */
#ifndef CLMGK_REFERENCE_EXACT_H
#define CLMGK_REFERENCE_EXACT_H

#include "reference/problem.h"

/* Row `at` and the keys that it sees. Arrays run over the whole key axis and are filled where `visible`. */
typedef struct exact_row {
    const clmgk_ref_problem *problem;
    ref_row at;
    ref_span span;
    bool *visible;  /* [S] */
    double *score;  /* [M,S]: q_i . k_jr / sigma_r^2 or - |q_i - k_jr|^2 / (2 sigma_r^2) */
    double *weight; /* [M,S]: s_ijr - log pi_r(j) */
    double *log_w;  /* [S]: w_ij */
    double *room;   /* [M] */
    double lse;     /* L_i */
} exact_row;

/* False: out of memory, nothing to free. */
bool exact_row_create(const clmgk_ref_problem *problem, exact_row *row);
void exact_row_free(exact_row *row);
void exact_row_solve(exact_row *row, ref_row at);

/* s_ijr; with the hard E-step s_ijr - log pi_r(j). */
double exact_log_weight(const exact_row *row, int64_t j, int64_t r);

/* The first component of key j that is the largest. */
int64_t exact_arg_max(const exact_row *row, int64_t j);

/* gamma_ijr */
double exact_responsibility(const exact_row *row, int64_t j, int64_t r);

/* h_i */
void exact_row_output(const exact_row *row, double *o);

/* log sum_n exp(x_n); -inf if there is none. */
double exact_log_sum_exp(const double *x, int64_t count);

#endif
