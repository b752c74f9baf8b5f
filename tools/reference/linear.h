/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linear family: its exact formula, and what its plain one (linear_plain.h) has in common with it. With features
 * phi, query features Phi_i and key features psi_j of head h (F features of each of Q parts: Q = 1, or, in the mixed
 * forms, M):
 *
 *     Phi_i = phi(q_i)                           psi_j = sum_r pi_r(j) phi(k_jr)
 *     Phi_ik = p_hk (phi(q_ki) + sigma_k eps)    psi_jk = phi(k_kj)                       mixed
 *     Phi_ik = w_hk relu(p_hk (phi(q_ki) + sigma_k eps))                                  mixed, generalised
 *     w_ij = Phi_i . psi_j      den_i = sum_j w_ij + Phi_i . z + guard      O_i = (sum_j w_ij v_j + Phi_i^T C) / den_i
 *
 * unnormalised: den_i = 1.
 */
#ifndef CLMGK_REFERENCE_LINEAR_H
#define CLMGK_REFERENCE_LINEAR_H

#include "reference/plain.h"

/* ---- feature maps (features.c) -------------------------------------------------------------------------------- */

/* A map R^D -> R^F. `shifted`: the functions below give exponents, phi_f = exp(out_f), so that nothing overflows. */
typedef struct ref_map {
    clmgk_feature kind;
    bool shifted;
    double norm;    /* favor: log sqrt(F). Scales are largest exponents without the factor 1 / sqrt(F) */
    double epsilon; /* relu: added to every feature */
    int64_t size;   /* D */
    int64_t features;
    const double *projection; /* favor: [F,D] */
} ref_map;

ref_map ref_map_of(const clmgk_ref_problem *problem);

/* out[F] of x[D]; grad_x[d] += sum_f grad[f] d out_f / d x_d (`sizes`: the sum of the terms' absolute values). */
void ref_map_apply(const ref_map *map, const double *x, double *out);
void ref_map_add(const ref_map *map, const double *x, const double *grad, bool sizes, double *grad_x);

/* The same in f32, with the projection [F,D] in f32; grad_x is set. */
void ref_plain_map_apply(const ref_map *map, const float *projection, ref_order order, const float *x, float *out);
void ref_plain_map_back(const ref_map *map, const float *projection, ref_order order, const float *x, const float *grad,
                        float *grad_x);

/* ---- indices -------------------------------------------------------------------------------------------------- */

/* Part q of the key's component r. */
static inline int64_t ref_part_of(const clmgk_attention_desc *desc, int64_t r)
{
    return ref_form_of(desc).mixed ? r : 0;
}

/* Weight of component r of key j in psi; NaN for an illegal prior. */
static inline double ref_linear_prior(const clmgk_ref_problem *p, int64_t h, int64_t j, int64_t r)
{
    const double prior = ref_form_of(&p->desc).mixed ? 1.0 : ref_prior(p, h, j, r);
    return prior >= 0.0 ? prior : (double)NAN;
}

/* First element of C's row (part q, feature f): E numbers; z's element; the scale m's. */
static inline int64_t ref_state_c_index(const clmgk_attention_desc *desc, int64_t b, int64_t h, int64_t q, int64_t f)
{
    return (((b * desc->heads + h) * ref_queries(desc) + q) * desc->features + f) * desc->value_size;
}

static inline int64_t ref_state_z_index(const clmgk_attention_desc *desc, int64_t b, int64_t h, int64_t q, int64_t f)
{
    const int64_t head = ref_form_of(desc).mixed ? b * desc->components + q : b * desc->heads + h;
    return head * desc->features + f;
}

static inline int64_t ref_state_m_index(const clmgk_attention_desc *desc, int64_t b, int64_t h)
{
    return ref_form_of(desc).mixed ? b : b * desc->heads + h;
}

static inline int64_t ref_state_z_count(const clmgk_attention_desc *desc)
{
    return ref_state_z_index(desc, desc->batch - 1, desc->heads - 1, ref_queries(desc) - 1, desc->features - 1) + 1;
}

/* Elements of an array of a state. */
int64_t ref_state_count(const clmgk_attention_desc *desc, clmgk_ref_state which);

/* m of the incoming state; 0 for maps without scales, and without a state. */
static inline double ref_state_scale(const clmgk_ref_problem *problem, int64_t b, int64_t h)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const bool scaled = ref_map_of(problem).shifted && desc->use_state && problem->state_m;
    return scaled ? problem->state_m[ref_state_m_index(desc, b, h)] : 0.0;
}

/* Whether the incoming state has keys: if all of z and C that share an m are 0, it is any number and has no part in new
 * scales. */
static inline bool ref_state_has_keys(const clmgk_ref_problem *problem, int64_t b, int64_t h)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const bool mixed = ref_form_of(desc).mixed;
    const int64_t features = desc->use_state ? ref_queries(desc) * desc->features : 0;
    const int64_t first = ref_state_c_index(desc, b, mixed ? 0 : h, 0, 0);
    const int64_t values = (mixed ? desc->heads : 1) * features * desc->value_size;
    bool any = desc->use_state && !ref_map_of(problem).shifted;
    for (int64_t n = 0; n < features; n++)
        any = any || problem->state_z[ref_state_z_index(desc, b, h, n / desc->features, n % desc->features)] != 0.0;
    for (int64_t n = 0; !any && n < values; n++)
        any = problem->state_c[first + n] != 0.0;
    return any;
}

/* z is shared by the heads of a batch: head h adds its gradient, or has its part in the sum. */
static inline bool ref_has_z(const clmgk_attention_desc *desc, int64_t h)
{
    return !ref_form_of(desc).mixed || h == 0;
}

/* ---- rows and gradients ---------------------------------------------------------------------------------------- */

/* O of a row, exact. False: out of memory. */
bool ref_linear_row(const clmgk_ref_problem *problem, int64_t row, double *o);

/* Weights [rows,S] of rows, exact. False: out of memory. */
bool ref_linear_weights(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, double *weights);

/* O of rows, in all ways, with their bounds before ref_finish_bound. False: out of memory. */
bool ref_linear_rows(const clmgk_ref_problem *problem, clmgk_ref_answer *answer);

/* By clmgk_ref_gradient, as exact_gradients. */
bool ref_linear_gradients(const clmgk_ref_problem *problem, double *const values[], double *const floor[]);

/* C and z, which are 0 before, and m, by clmgk_ref_state; without C, m alone. */
bool ref_linear_state(const clmgk_ref_problem *problem, double *const values[]);

#endif
