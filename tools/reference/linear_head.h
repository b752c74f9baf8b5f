/* SPDX-License-Identifier: Apache-2.0 */
/* The linear family's exact formula: a head, its features, and the terms of a row and of the new state (formulas:
 * linear.h). */
#ifndef CLMGK_REFERENCE_LINEAR_HEAD_H
#define CLMGK_REFERENCE_LINEAR_HEAD_H

#include "reference/linear.h"

/* A value, and the sum of its terms' absolute values. */
typedef struct ref_amount {
    double value, size;
} ref_amount;

/*
 * Head (b,h) and a row of it. With x features, or exponents of features, of a query, y of a key and s = sigma eps:
 *     Phi_qf = slope (phi(x) + s)
 * Everything of a row is divided by e^scale: the largest term among its keys and its state, for maps with exponents.
 */
typedef struct ref_linear_head {
    const clmgk_ref_problem *problem;
    ref_map map;
    int64_t b, h;
    int64_t parts, queries; /* components of a key; Q */
    double *memory;
    double *key; /* [M,S,F]: y */
    double *x;   /* [D] */
    ref_row at;
    ref_span span;
    double *query; /* [Q,F]: x */
    double *noise; /* [Q,F]: s */
    double *gate;  /* [Q,F]: derivative of relu, or 1 */
    double *slope; /* [Q,F]: p, generalised w p gate */
    double *phi;   /* [Q,F]: Phi; maps without exponents */
    double scale;
    double den;
    double *weight; /* [S]: w_ij of the row's keys */
    double *o;      /* [E] */
    /* gradients */
    double *const *values; /* by clmgk_ref_gradient */
    double *const *floor;
    double *grad_o;       /* [E]: dO / den */
    double *room;         /* [F], [D] and [D] */
    ref_amount *along;    /* [Q,F]: maps with exponents: sum of e^(x+y) over pairs, with weights dw_ij */
    ref_amount *beside;   /* [Q,F]: of e^y, where there is noise; other maps: of y */
    ref_amount *grad_key; /* [M,S,F] */
} ref_linear_head;

/* Feature f of component r of key j, a term of the new state: pi_r(j) phi(k_jr) = prior unit. */
typedef struct ref_state_term {
    int64_t j, r, f;
    double prior;
    double unit; /* phi_f(k_jr) e^-m */
} ref_state_term;

static inline void ref_add_amount(ref_amount *sum, ref_amount x, double factor)
{
    sum->value += x.value * factor;
    sum->size += x.size * fabs(factor);
}

static inline ref_amount ref_exactly(double x)
{
    return (ref_amount){x, fabs(x)};
}

static inline const clmgk_attention_desc *ref_linear_desc(const ref_linear_head *head)
{
    return &head->problem->desc;
}

static inline double *ref_linear_key(const ref_linear_head *head, int64_t r, int64_t j)
{
    return head->key + (r * ref_linear_desc(head)->length_k + j) * head->map.features;
}

static inline const double *ref_linear_query(const ref_linear_head *head, int64_t q)
{
    return head->problem->q + ref_query_index(ref_linear_desc(head), head->at, q);
}

/* Of maps with exponents, divided by e^scale: phi(x) phi(y), and phi(y) as it stands beside s. n: q F + f. */
static inline double ref_linear_along(const ref_linear_head *head, int64_t n, double y)
{
    return exp(head->query[n] + y - head->scale);
}

static inline double ref_linear_beside(const ref_linear_head *head, double y)
{
    return exp(y - head->scale);
}

/* Phi_n phi(y) */
static inline double ref_linear_term(const ref_linear_head *head, int64_t n, double y)
{
    if (!head->map.shifted)
        return head->phi[n] * y;
    if (head->slope[n] == 0.0)
        return 0.0;
    return head->slope[n] *
           (ref_linear_along(head, n, y) + (head->noise[n] != 0.0 ? head->noise[n] * ref_linear_beside(head, y) : 0.0));
}

/* C's row and z's element of feature n = q F + f; NULL without a state. */
static inline const double *ref_linear_state_c(const ref_linear_head *head, int64_t n)
{
    const clmgk_ref_problem *const p = head->problem;
    const int64_t at = ref_state_c_index(&p->desc, head->b, head->h, n / head->map.features, n % head->map.features);
    return p->desc.use_state ? p->state_c + at : NULL;
}

static inline double ref_linear_state_z(const ref_linear_head *head, int64_t n)
{
    const clmgk_ref_problem *const p = head->problem;
    return p->state_z[ref_state_z_index(&p->desc, head->b, head->h, n / head->map.features, n % head->map.features)];
}

static inline const double *ref_linear_value(const ref_linear_head *head, int64_t j)
{
    return head->problem->v + ref_value_index(ref_linear_desc(head), head->b, head->h, j);
}

/* False: out of memory, nothing to free. `gradients`: with their arrays. */
bool ref_linear_open_head(const clmgk_ref_problem *problem, bool gradients, ref_linear_head *head);
void ref_linear_close_head(ref_linear_head *head);

/* x: key (r,j), shifted where its variant says so. */
void ref_linear_load_key(ref_linear_head *head, int64_t r, int64_t j);

/* Goes to head (b,h): the features of its keys. */
void ref_linear_load_head(ref_linear_head *head, int64_t b, int64_t h);

/* phi of the state: its scale's place among exponents. */
double ref_linear_state_y(const ref_linear_head *head);

/* x[E] += factor y[E] */
void ref_linear_add_values(const ref_linear_head *head, double factor, const double *y, double *x);

/* The row's weights and its denominator, both divided by e^scale. */
void ref_linear_weigh_row(ref_linear_head *head, ref_row at);

/* The same, and the row's O. */
void ref_linear_solve_row(ref_linear_head *head, ref_row at);

/* m of the state after all keys. */
double ref_linear_new_scale(const ref_linear_head *head);

/* Calls `add` for all features of all keys. */
void ref_linear_for_state_terms(const ref_linear_head *head, double scale, void *to,
                                void (*add)(const ref_linear_head *head, const ref_state_term *x, void *to));

#endif
