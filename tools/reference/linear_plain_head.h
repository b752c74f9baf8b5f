/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linear family's plain formula: whole sums over keys and rows in f32, matrices of a head. Maps with exponents:
 * with m_n the largest exponent of feature n in the keys and the state that a row sees, keys have e^(y_n - m_n), the
 * row e^(x_n + m_n - scale), whose largest is about 1.
 */
#ifndef CLMGK_REFERENCE_LINEAR_PLAIN_HEAD_H
#define CLMGK_REFERENCE_LINEAR_PLAIN_HEAD_H

#include "reference/linear.h"
#include "reference/sums.h"

/* Head (b,h). K: Q F features of a row or a key. */
typedef struct ref_plain_head {
    const clmgk_ref_problem *problem;
    ref_map map;
    ref_order order;
    int64_t b, h;
    int64_t parts, queries, count; /* components of a key; Q; K */
    float *memory;
    float *projection; /* [F,D] */
    float *keys;       /* [M,S,D]: k_jr */
    float *y;          /* [M,S,F]: their features, or exponents of features */
    float *values;     /* [S,E] */
    float *values_t;   /* [E,S] */
    float *state_c;    /* [K,E] */
    float *state_z;    /* [K] */
    float *state_top;  /* [K]: the largest exponent that a feature of the state can have; -inf without keys */
    float state_m;
    float new_m;
    /* the row */
    ref_row at;
    ref_span span;
    float *query;   /* [Q,D] */
    float *x;       /* [K]: features of the query, or exponents */
    float *m;       /* [K]: 0 for other maps */
    float *psi;     /* [S,K]: e^(y - m), or y */
    float *psi_t;   /* [K,S] */
    float *state_w; /* [K]: what the state's numbers are multiplied by, e^(state_m - m) */
    float *eps;     /* [K]: in units of e^(scale - m) */
    float *base;    /* [K]: phi(x) + sigma eps, likewise */
    float *gate;    /* [K]: derivative of relu, or 1 */
    float *phi;     /* [K]: p base, generalised w p gate base */
    float scale;
    float *weight; /* [S]: w_ij e^-scale */
    float den;     /* likewise */
    float *o;      /* [E] */
    /* gradients: matrices of the head, then of a row, of a key */
    float *const *to;     /* by clmgk_ref_gradient */
    float *grad_o;        /* [N,E]: dO / den */
    float *t;             /* [N]: -dO . O / den */
    float *phis;          /* [N,K] */
    float *ms;            /* [N,K]: m */
    float *carried;       /* [N,K]: the part that meets the state */
    float *weights;       /* [N,S] */
    float *grad_w;        /* [N,S] */
    float *mix;           /* [Q,N]: of rows: dp, dw, dsigma */
    float *mix_weight;    /* [Q,N] */
    float *noise;         /* [Q,N] */
    float *grad;          /* [K]: of phi or psi */
    float *out;           /* [max(K, E)] */
    float *grad_x;        /* [M,S,D] */
    float *prior;         /* [M,S]: dprior */
    float *terms;         /* [max(N, S, K)] */
    float *new_c, *new_z; /* [K,E], [K]: gradients of the new state */
    float *new_c_t;       /* [E,K] */
} ref_plain_head;

static inline const clmgk_attention_desc *ref_plain_linear_desc(const ref_plain_head *head)
{
    return &head->problem->desc;
}

/* x y, and 0 where x is, whatever y is. */
static inline float ref_plain_times(float x, float y)
{
    return x != 0.0F ? x * y : 0.0F;
}

static inline const float *ref_plain_linear_y(const ref_plain_head *head, int64_t j, int64_t r)
{
    return head->y + (r * ref_plain_linear_desc(head)->length_k + j) * head->map.features;
}

/* phi of a key's feature in units of e^m */
static inline float ref_plain_linear_unit(const ref_plain_head *head, float y, float m)
{
    return head->map.shifted ? expf(y - m) : y;
}

static inline float ref_plain_linear_mix(const ref_plain_head *head, int64_t q)
{
    return ref_form_of(ref_plain_linear_desc(head)).mixed ? (float)ref_mix(head->problem, head->h, q) : 1.0F;
}

/* False: out of memory, nothing to free. `to`: gradients, by clmgk_ref_gradient; NULL: none. */
bool ref_plain_linear_open_head(const clmgk_ref_problem *problem, ref_order order, float *const *to,
                                ref_plain_head *head);
void ref_plain_linear_close_head(ref_plain_head *head);

/* The kind of a product's terms: the descriptor's precision rounds both factors. */
static inline int ref_plain_linear_product(const ref_plain_head *head)
{
    return ref_term_of(REF_TERM_PRODUCT, ref_plain_linear_desc(head)->precision);
}

/* out[width] = sum_n coef[n step] rows[n width + .] */
void ref_plain_linear_sum(const ref_plain_head *head, int64_t count, const float *coef, int64_t step, int64_t width,
                          const float *rows, float *out);

/* pi_r(j), w_hq: 1 where the variant has none. */
float ref_plain_linear_prior(const ref_plain_head *head, int64_t j, int64_t r);
float ref_plain_linear_mix_weight(const ref_plain_head *head, int64_t q);

/* sum_r pi_r phi(k_jr) of feature n in units of e^m */
float ref_plain_linear_psi(const ref_plain_head *head, int64_t j, int64_t n, float m);

/* Goes to head (b,h): its keys, values and state in f32. */
void ref_plain_linear_load_head(ref_plain_head *head, int64_t b, int64_t h);

/* phi(x), or e^(x + m - scale) */
float ref_plain_linear_feature(const ref_plain_head *head, int64_t n);

/* The row's weights, its denominator and O. */
void ref_plain_linear_solve_row(ref_plain_head *head, ref_row at);

#endif
