/* SPDX-License-Identifier: Apache-2.0 */
/* Where the reference finds what in a problem's arrays: shared by the exact and the plain formula. */
#ifndef CLMGK_REFERENCE_PROBLEM_H
#define CLMGK_REFERENCE_PROBLEM_H

#include "reference/reference.h"

#include <math.h>

/* The axes of row (b,h,i). */
typedef struct ref_row {
    int64_t b, h, i;
} ref_row;

static inline ref_row ref_row_of(const clmgk_attention_desc *desc, int64_t row)
{
    const int64_t head_row = row / desc->length;
    return (ref_row){head_row / desc->heads, head_row % desc->heads, row % desc->length};
}

/* g: query head h reads key/value head floor(h G / H). */
static inline int64_t ref_kv_head(const clmgk_attention_desc *desc, int64_t h)
{
    return h * desc->kv_heads / desc->heads;
}

static inline const double *ref_query(const clmgk_ref_problem *p, int64_t b, int64_t h, int64_t i)
{
    return p->q + ((b * p->desc.heads + h) * p->desc.length + i) * p->desc.head_size;
}

/* k_jr; with SMGK the one key k_j that the shifts b_r are added to. */
static inline const double *ref_key(const clmgk_ref_problem *p, int64_t b, int64_t h, int64_t j, int64_t r)
{
    const clmgk_attention_desc *const d = &p->desc;
    const int64_t components = d->variant == CLMGK_VARIANT_MGK ? d->components : 1;
    const int64_t component = d->variant == CLMGK_VARIANT_MGK ? r : 0;
    const int64_t head = b * d->kv_heads + ref_kv_head(d, h);
    return p->k + ((head * components + component) * d->length_k + j) * d->head_size;
}

/* b_r of head h, or NULL where keys are not shifted. */
static inline const double *ref_shift(const clmgk_ref_problem *p, int64_t h, int64_t r)
{
    if (p->desc.variant != CLMGK_VARIANT_SMGK)
        return NULL;
    return p->shift + (h * p->desc.components + r) * p->desc.head_size;
}

static inline const double *ref_value(const clmgk_ref_problem *p, int64_t b, int64_t h, int64_t j)
{
    const clmgk_attention_desc *const d = &p->desc;
    return p->v + ((b * d->kv_heads + ref_kv_head(d, h)) * d->length_k + j) * d->value_size;
}

/* pi_r(j) of head h. */
static inline double ref_prior(const clmgk_ref_problem *p, int64_t h, int64_t j, int64_t r)
{
    const int64_t components = p->desc.components;
    switch (p->desc.prior_shape) {
    case CLMGK_PRIOR_M:
        return p->prior[r];
    case CLMGK_PRIOR_HM:
        return p->prior[h * components + r];
    case CLMGK_PRIOR_HMS:
        return p->prior[(h * components + r) * p->desc.length_k + j];
    case CLMGK_PRIOR_UNIFORM:
        break;
    }
    return 1.0 / (double)components;
}

/* sigma_r^2 of head h; NaN for a value that is none. */
static inline double ref_variance(const clmgk_ref_problem *p, int64_t h, int64_t r)
{
    double variance = p->desc.variance;
    if (p->desc.variance_shape == CLMGK_VARIANCE_M)
        variance = p->variance[r];
    if (p->desc.variance_shape == CLMGK_VARIANCE_HM)
        variance = p->variance[h * p->desc.components + r];
    return variance > 0.0 ? variance : (double)NAN;
}

#endif
