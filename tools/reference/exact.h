/* SPDX-License-Identifier: Apache-2.0 */
/* A row in double precision, from which O, gradients and statistics are computed. */
#ifndef CLMGK_REFERENCE_EXACT_H
#define CLMGK_REFERENCE_EXACT_H

#include "reference/texts.h"

typedef struct exact_scores exact_scores;
typedef struct exact_backward exact_backward; /* gradients.h */

/*
 * A logit as the unevaluated sum of two doubles. A bias may be as large as the largest float, and the logit's other
 * terms must survive beside it: the attention of a row whose keys all carry the same huge bias is that of the scores
 * alone.
 */
typedef struct exact_logit {
    double high; /* rounded sum */
    double low;  /* the rounding error of `high`; 0 where `high` is not finite */
} exact_logit;

/* a - b, rounded once where a and b are close. */
static inline double exact_minus(exact_logit a, exact_logit b)
{
    return (a.high - b.high) + (a.low - b.low);
}

/* log sum_n exp(x_n), its two parts kept apart: a huge maximum would swallow the logarithm. */
typedef struct exact_log_sum {
    exact_logit largest; /* 0 if it is not finite */
    double log;          /* log sum_n exp(x_n - largest) */
} exact_log_sum;

/* `log` is -inf if count is 0. */
exact_log_sum exact_log_sum_exp(const exact_logit *x, int64_t count);

/* Row `at` and the keys that it sees. Arrays run over the whole key axis and are filled where `visible`; M: the
 * components of a key's logit (ref_components). */
typedef struct exact_row {
    const clmgk_ref_problem *problem;
    const exact_scores *scores;
    ref_texts texts;
    ref_row at;
    ref_span span;
    bool *visible;       /* [S] */
    double *score;       /* [M,S]: the scaled score x_ijr: exact_scores */
    double *size;        /* [M,S]: sum of the absolute values of the logit's terms */
    bool *huge;          /* [M,S]: too large for f32: reference.h */
    double *slope;       /* [M,S]: of the text of the score */
    exact_logit *weight; /* [M,S]: s_ijr - log pi_r(j) */
    exact_logit *log_w;  /* [S]: w_ij */
    exact_logit *terms;  /* [M S]: room for the terms of a sum */
    exact_log_sum sum;   /* of the row's logits, including the sink's */
    double lse;          /* L_i: `sum` in one number */
    bool lost;           /* f32 loses the row's weights: reference.h */
    double rounding;     /* of a lost row: the largest rounding error of a logit that may have weight */
} exact_row;

/* A family's scores: the scaled score x_ijr with *size, the sum of the absolute values of its terms, and its gradient
 * dX traced back to the inputs. All later steps are common to the families. */
struct exact_scores {
    double (*score)(const clmgk_ref_problem *problem, ref_row at, const ref_span *span, int64_t j, int64_t r,
                    double *size);
    void (*add)(const exact_backward *back, int64_t j, int64_t r, double grad_x);
};

/* False: out of memory, nothing to free. */
bool exact_row_create(const clmgk_ref_problem *problem, const exact_scores *scores, exact_row *row);
void exact_row_free(exact_row *row);
void exact_row_solve(exact_row *row, ref_row at);

/* c tanh(x/c) of the scaled score x; x without a soft-cap. */
double exact_capped(const clmgk_ref_problem *problem, double x);

/* s_ijr - log pi_r(j) of a score that a soft-cap and the text have shaped. */
exact_logit exact_weight(const clmgk_ref_problem *problem, ref_row at, const ref_span *span, int64_t j, double shaped);

/* s_ijr; with the hard E-step s_ijr - log pi_r(j). */
exact_logit exact_log_weight(const exact_row *row, int64_t j, int64_t r);

/* exp(x - L_i) */
double exact_share(const exact_row *row, exact_logit x);

/* The largest value of exp(x - L_i) that rounding in f32 may lead to, in a lost row: at most `limit`. `size`: of x. */
double exact_reach(const exact_row *row, exact_logit x, double size, double limit);

/* The same of key j's part of the row, at most 1, and of the sink's. */
double exact_key_reach(const exact_row *row, int64_t j);
double exact_sink_reach(const exact_row *row);

/* Whether f32 loses the differences between the components of key j. */
bool exact_loses_key(const exact_row *row, int64_t j);

/* The largest component of key j; of equals, the first. */
int64_t exact_arg_max(const exact_row *row, int64_t j);

/* gamma_ijr */
double exact_responsibility(const exact_row *row, int64_t j, int64_t r);

/* log p(q_i) = log( 1/S sum_jr pi_r(j) N(q_i; k_jr, sigma_r^2 I) ) over the visible keys; false if there are none. */
bool exact_log_likelihood(exact_row *row, double *result);

/*
 * Sums over the rows of a problem, array by array: values[n], and the sums of the absolute values of terms with their
 * weights in the bound, floor[n], and without, size[n]. Arrays that are not wanted are NULL.
 */
typedef struct exact_sums {
    double *const *values;
    double *const *floor;
    double *const *size;
    bool *lost;     /* rows, or keys of rows, that f32 loses: becomes true for them; NULL: there are none */
    bool with_lost; /* sum over lost ones too */
} exact_sums;

/* h_i */
void exact_row_output(const exact_row *row, double *o);

/* The weight of v_j */
double exact_value_weight(const exact_row *row, int64_t j);

#endif
