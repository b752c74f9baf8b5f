/* SPDX-License-Identifier: Apache-2.0 */
/* The plain formula: a careful computation in f32 without tiles. Its error sets the bound. */
#ifndef CLMGK_REFERENCE_PLAIN_H
#define CLMGK_REFERENCE_PLAIN_H

#include "reference/sums.h"
#include "reference/texts.h"

/* Computation of |q - k|^2: from the difference, or as |q|^2 - 2 q.k + |k|^2. Dot scores use only the first. */
typedef enum ref_distance { REF_DISTANCE_DIRECT, REF_DISTANCE_EXPANDED, REF_DISTANCES } ref_distance;

/* A way to compute the plain formula. */
typedef struct ref_way {
    ref_order order;
    ref_distance distance;
} ref_way;

/* Way number `number` of a problem, from 0. False past the last. */
bool ref_way_of(const clmgk_attention_desc *desc, int number, ref_way *way);

typedef struct plain_scores plain_scores;

/* The row solved last. Arrays run over the whole key axis; elements of hidden keys are undefined. C: components of a
 * key's logit (ref_components): M, or 1 in the admixture family. */
typedef struct ref_plain {
    const clmgk_ref_problem *problem;
    const plain_scores *scores;
    ref_texts texts;
    ref_row at;
    ref_way way;
    ref_span span;
    float *memory;
    float *query;    /* [D]: q_i; admixture family [M,D]: q_ki */
    float *score;    /* [C,S]: the scaled score x_ijr */
    float *weight;   /* [C,S]: s_ijr - log pi_r(j), -inf where a bias hides the key */
    float *log_term; /* [C,S]: s_ijr */
    float *p;        /* [C,S]: P_ijr; hard E-step: 0 but for the arg max */
    float *a;        /* [S + 1]: a_ij, the weight of v_j: after dropout, rounded to the type of the weights */
    float *kept;     /* [S]: dropout's factor of a_ij */
    float *o;        /* [E]; undefined without V */
    float largest;   /* maximum of the logits, 0 if none is finite */
    float total;     /* sum of exp(logit - largest) */
    float lse;
    /* of head (b,h), loaded on demand */
    float *keys;   /* [M,D,S]: k_jr transposed */
    float *values; /* [S,E] */
    /* mixture family */
    float *norms; /* [REF_ORDERS,M,S]: |k_jr|^2 */
    /* admixture family */
    float *global;     /* [M,S]: y_kij = G_kij + sigma_k eps_hij; with a hidden layer G_kij */
    float *eps;        /* [S]: eps_hij; with a hidden layer [U,S] */
    float *rectified;  /* [M,S]: relu(p_hk y_kij), generalised; with a hidden layer [U,S]: units */
    float *mix;        /* [M]: p_h; with a hidden layer [U,M] */
    float *mix_weight; /* [M]: w_h; with a hidden layer [U] */
} ref_plain;

typedef struct plain_backward plain_backward; /* gradients.h */

/* A family's scores, and the way back from the gradient of a logit. All later steps are common to the families. */
struct plain_scores {
    void (*load)(ref_plain *plain); /* loads head (b,h), after its keys */
    void (*fill)(ref_plain *plain); /* scores of the visible keys */
    /* Gradients of a head: before its rows, then from grad_w of each row that sees a key, and after them. */
    void (*begin)(plain_backward *back);
    void (*add_row)(plain_backward *back, int64_t i);
    void (*end)(plain_backward *back);
};

/* False: out of memory, nothing to free. */
bool ref_plain_create(const clmgk_ref_problem *problem, const plain_scores *scores, ref_plain *plain);
void ref_plain_free(ref_plain *plain);
void ref_plain_solve(ref_plain *plain, ref_row row, ref_way way);

/* The pair of key j and component r, with its score after the soft-cap. */
ref_pair ref_plain_pair(const ref_plain *plain, int64_t j, int64_t r);

/* Loads k_jr of head (b,h), shift included, in f32; 0 beyond the lengths. Element n is key[n*step]. */
void ref_plain_load_key(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t j, int64_t r, int64_t step,
                        float *key);

/* Sums a matrix [M,N,S] of head h over rows, and over keys unless the prior has that axis, and adds the sums to an
 * array in the prior's shape. `room`: S numbers. */
void ref_plain_sum_prior(const clmgk_attention_desc *desc, int64_t h, const float *matrix, ref_order order, float *room,
                         float *sums);

#endif
