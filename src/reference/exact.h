/* SPDX-License-Identifier: Apache-2.0 */
/* A row in double precision, from which O, gradients and statistics are computed. */
#ifndef CLMGK_REFERENCE_EXACT_H
#define CLMGK_REFERENCE_EXACT_H

#include "reference/problem.h"

typedef struct exact_scores exact_scores;
typedef struct exact_backward exact_backward; /* gradients.h */

/* Row `at` and the keys that it sees. Arrays run over the whole key axis and are filled where `visible`; M: the
 * components of a key's logit (ref_components). */
typedef struct exact_row {
    const clmgk_ref_problem *problem;
    const exact_scores *scores;
    ref_row at;
    ref_span span;
    bool *visible;  /* [S] */
    double *score;  /* [M,S]: the scaled score x_ijr: exact_scores */
    double *weight; /* [M,S]: s_ijr - log pi_r(j) */
    double *log_w;  /* [S]: w_ij */
    double *room;   /* [M] */
    double *terms;  /* [M S] */
    double lse;     /* L_i */
} exact_row;

/* A family's scores: the scaled score x_ijr, and its gradient dX traced back to the inputs. All later steps are common
 * to the families. */
struct exact_scores {
    double (*score)(const clmgk_ref_problem *problem, ref_row at, const ref_span *span, int64_t j, int64_t r);
    void (*add)(const exact_backward *back, int64_t j, int64_t r, double grad_x);
};

/* False: out of memory, nothing to free. */
bool exact_row_create(const clmgk_ref_problem *problem, const exact_scores *scores, exact_row *row);
void exact_row_free(exact_row *row);
void exact_row_solve(exact_row *row, ref_row at);

/* s_ijr - log pi_r(j) of the scaled score x. */
double exact_weight(const clmgk_ref_problem *problem, ref_row at, const ref_span *span, int64_t j, double x);

/* s_ijr; with the hard E-step s_ijr - log pi_r(j). */
double exact_log_weight(const exact_row *row, int64_t j, int64_t r);

/* The largest component of key j; of equals, the first. */
int64_t exact_arg_max(const exact_row *row, int64_t j);

/* gamma_ijr */
double exact_responsibility(const exact_row *row, int64_t j, int64_t r);

/* log p(q_i) = log( 1/S sum_jr pi_r(j) N(q_i; k_jr, sigma_r^2 I) ) over the visible keys; false if there are none. */
bool exact_log_likelihood(exact_row *row, double *result);

/* h_i */
void exact_row_output(const exact_row *row, double *o);

/* log sum_n exp(x_n); -inf if count is 0. */
double exact_log_sum_exp(const double *x, int64_t count);

#endif
