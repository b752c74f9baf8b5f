/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients, exact and by the plain formula: values[clmgk_ref_gradient], NULL if not requested. */
#ifndef CLMGK_REFERENCE_GRADIENTS_H
#define CLMGK_REFERENCE_GRADIENTS_H

#include "reference/exact.h"
#include "reference/plain.h"

/* False: out of memory. */
bool exact_gradients(const clmgk_ref_problem *problem, const exact_scores *scores, const exact_sums *sums);
/* Without the rows where `lost`; NULL: all. */
bool plain_gradients(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way, const bool *lost,
                     float *const values[]);

/* ---- between the exact formula and its families ----------------------------------------------------------------- */

/* The backward pass of a row. */
struct exact_backward {
    exact_row row;
    const exact_sums *sums; /* by clmgk_ref_gradient */
    bool sizes;             /* add absolute values to `floor` and `size`, in place of values */
    double weight;          /* of the row's terms in `floor` */
    const double *grad_o;   /* [E]: dO_i */
    double grad_lse;        /* dL_i */
    double delta;           /* dO_i . O_i; for the sizes of a lost row the largest value that it may have */
    double vanishing;       /* the part of delta whose weights devices may make 0 */
    double *o;              /* [E] */
    double *zero;           /* [E]: in place of a missing dO */
    double *to_query;       /* [D]: room for `scores` */
    double *to_key;         /* [D] */
};

/* values[which][at + n] += factor x[n], if requested (with `sizes`: |factor x[n]| to floor and size); the same of one
 * number. */
void exact_add(const exact_backward *back, clmgk_ref_gradient which, int64_t at, int64_t count, double factor,
               const double *x);
void exact_add_one(const exact_backward *back, clmgk_ref_gradient which, int64_t at, double x);

/* ---- between the plain formula and its families ----------------------------------------------------------------- */

/* Matrices of head (b,h). Zero for keys hidden from a row. */
struct plain_backward {
    ref_plain row;
    const bool *lost; /* [B,H,N], or NULL */
    float *const *values;
    int64_t b, h;
    bool first, last; /* head of its batch */
    float *memory;
    float *query;    /* [N,D]; 0 in rows that see no key; admixture family [M,N,D] */
    float *grad_o;   /* [N,E]; likewise */
    float *keys;     /* [M,S,D] */
    float *values_t; /* [E,S] */
    float *a;        /* [N,S]: weight of dO_i in dV */
    float *grad_x;   /* [M,N,S]: dX, the gradient of the scaled score; admixture family: of all heads of the batch,
                        sqrt(D) dG_kij */
    float *grad_s;   /* [N,S]: of the key's logit, for the bias */
    float *sinks;    /* [N] */
    float *grad_w;   /* [S]: dP_ij - delta_i + dL_i of the current row */
    float *keys_sum; /* [S,D]: of the current component */
    float *sum;      /* [S + D + E] */
    /* mixture family */
    float *prior;    /* [M,N,S]: terms of dprior */
    float *variance; /* [M,N]: sum_j dX x */
    /* admixture family: dA sqrt(D) in place of dA */
    float *grad_a;     /* [S]: of the current row */
    float *part;       /* [S]: its share for a global head */
    float *mix;        /* [M,N]: sums over the keys of a row, for dp, dw, dsigma, dc; with a hidden layer [U,M,N] */
    float *mix_weight; /* [M,N]; with a hidden layer [U,N] */
    float *noise;      /* [M,N] */
    float *mix_offset; /* [N] */
    float *mix_hidden_offset; /* [U,N]: for db */
};

/* sums[at + n] += x[n] / divisor, if requested */
void plain_add(const plain_backward *back, clmgk_ref_gradient which, int64_t at, int64_t count, float divisor,
               const float *x);

/* dQ and dK from grad_x of component r; keys_sum is the divisor times dK, if dK or dshift is requested. */
void plain_sum_queries(plain_backward *back, int64_t r, float divisor);
void plain_sum_keys(plain_backward *back, int64_t r, float divisor);

/* The gradient of the scaled score of key j, component r, from that of its logit; adds the logit's to the gradients of
 * the text's numbers and captured arrays. */
float plain_shape_gradient(plain_backward *back, int64_t j, int64_t r, float grad_s);

#endif
