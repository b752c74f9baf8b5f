/* SPDX-License-Identifier: Apache-2.0 */
/* The plain formula: what a careful program without tiles computes in f32. Its error sets the bound. */
#ifndef CLMGK_REFERENCE_PLAIN_H
#define CLMGK_REFERENCE_PLAIN_H

#include "reference/problem.h"
#include "reference/sums.h"

/* How |q - k|^2 is computed: from the difference, or as |q|^2 - 2 q.k + |k|^2. Dot scores know only the first. */
typedef enum ref_distance { REF_DISTANCE_DIRECT, REF_DISTANCE_EXPANDED, REF_DISTANCES } ref_distance;

/* One way of computing the plain formula. */
typedef struct ref_way {
    ref_order order;
    ref_distance distance;
} ref_way;

/* The ways of a problem, counted from 0. False: there are no more. */
bool ref_way_of(const clmgk_attention_desc *desc, int number, ref_way *way);

typedef struct plain_scores plain_scores;

/* The row that was solved last. Arrays run over the whole key axis; keys that the row does not see hold nothing. C:
 * components of a key's logit (ref_components), M unless the scores are mixed into one. */
typedef struct ref_plain {
    const clmgk_ref_problem *problem;
    const plain_scores *scores;
    ref_row at;
    ref_way way;
    ref_span span;
    float *memory;
    float *query;    /* [D]: q_i; admixture family [M,D]: q_ki */
    float *score;    /* [C,S]: the scaled score x_ijr */
    float *weight;   /* [C,S]: s_ijr - log pi_r(j), -inf where a bias hides the key */
    float *log_term; /* [C,S]: s_ijr */
    float *p;        /* [C,S]: P_ijr; hard E-step: 0 but for the arg max */
    float *a;        /* [S + 1]: a_ij as it meets v_j: of the storage type, after dropout */
    float *kept;     /* [S]: what dropout multiplies a_ij by */
    float *o;        /* [E]; without V nothing */
    float largest;   /* maximum of the logits, 0 if there is none that is finite */
    float total;     /* sum of exp(logit - largest) */
    float lse;
    /* of head (b,h), loaded when a row needs them */
    float *keys;   /* [M,D,S]: k_jr transposed */
    float *values; /* [S,E] */
    /* mixture family */
    float *norms; /* [REF_ORDERS,M,S]: |k_jr|^2 */
    /* admixture family */
    float *global;     /* [M,S]: y_kij = G_kij + sigma_k eps_hij */
    float *eps;        /* [S]: eps_hij */
    float *rectified;  /* [M,S]: relu(p_hk y_kij), generalised */
    float *mix;        /* [M]: p_h */
    float *mix_weight; /* [M]: w_h */
} ref_plain;

typedef struct plain_backward plain_backward; /* gradients.h */

/* What a family makes logits from, and how the gradient of a logit goes back to it. All that follows is the same for
 * all. */
struct plain_scores {
    void (*load)(ref_plain *plain); /* head (b,h), whose keys are there already */
    void (*fill)(ref_plain *plain); /* score, where the row sees keys */
    /* Gradients of a head: before its rows, then from grad_w of each row that sees a key, and after them. */
    void (*begin)(plain_backward *back);
    void (*add_row)(plain_backward *back, int64_t i);
    void (*end)(plain_backward *back);
};

extern const plain_scores plain_mixture;   /* plain_mixture.c */
extern const plain_scores plain_admixture; /* plain_admixture.c */

/* False: out of memory, nothing to free. */
bool ref_plain_create(const clmgk_ref_problem *problem, ref_plain *plain);
void ref_plain_free(ref_plain *plain);
void ref_plain_solve(ref_plain *plain, ref_row row, ref_way way);

/* A value rounded to the storage type. */
float ref_rounded(clmgk_dtype dtype, float value);

/* k_jr of head (b,h) in f32, the shift added; 0 beyond the lengths. key[n*step] is its element n. */
void ref_plain_load_key(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t j, int64_t r, int64_t step,
                        float *key);

/* A matrix [M,N,S] of head h summed over rows, and over keys unless the prior has that axis, is added to an array in
 * the prior's shape. `room`: S numbers. */
void ref_plain_sum_prior(const clmgk_attention_desc *desc, int64_t h, const float *matrix, ref_order order, float *room,
                         float *sums);

#endif
