/* SPDX-License-Identifier: Apache-2.0 */
/* Access to the elements of a problem's arrays, for the exact and the plain formula. */
#ifndef CLMGK_REFERENCE_PROBLEM_H
#define CLMGK_REFERENCE_PROBLEM_H

#include "reference/reference.h"

#include <math.h>

/* A part of the room that ref_room makes. */
typedef struct ref_part {
    float **array;
    size_t count;
} ref_part;

/* Room for all parts in a row; NULL: out of memory, nothing is set. */
float *ref_room(const ref_part *parts, size_t count);

/* The axes of row (b,h,i). */
typedef struct ref_row {
    int64_t b, h, i;
} ref_row;

static inline ref_row ref_row_of(const clmgk_attention_desc *desc, int64_t row)
{
    const int64_t head_row = row / desc->length;
    return (ref_row){head_row / desc->heads, head_row % desc->heads, row % desc->length};
}

static inline int64_t ref_row_number(const clmgk_attention_desc *desc, ref_row row)
{
    return (row.b * desc->heads + row.h) * desc->length + row.i;
}

/* ---- variants ------------------------------------------------------------------------------------------------- */

/* What a variant is, by its traits. */
typedef struct ref_form {
    bool mixed; /* scores or features of M global heads are mixed */
    bool noisy;
    bool shared_mix; /* p is [M] */
    bool generalised;
    bool prior;  /* components have a prior */
    bool keys;   /* components have keys of their own */
    bool shift;  /* components are one key shifted */
    bool linear; /* of the linear family */
} ref_form;

static inline ref_form ref_form_of(const clmgk_attention_desc *desc)
{
    static const uint32_t traits_by_variant[] = {
#define REF_TRAITS(name, value, text, family, traits) [value] = (traits),
        CLMGK_VARIANT_LIST(REF_TRAITS)
#undef REF_TRAITS
    };
    const uint32_t traits = traits_by_variant[desc->variant];
    return (ref_form){.mixed = (traits & CLMGK_TRAIT_ADMIXTURE) != 0,
                      .noisy = (traits & CLMGK_TRAIT_NOISE) != 0,
                      .shared_mix = (traits & CLMGK_TRAIT_SHARED_MIX) != 0,
                      .generalised = (traits & CLMGK_TRAIT_GENERALISED) != 0,
                      .prior = (traits & CLMGK_TRAIT_PRIOR) != 0,
                      .keys = (traits & CLMGK_TRAIT_KEYS) != 0,
                      .shift = (traits & CLMGK_TRAIT_SHIFT) != 0,
                      .linear = (traits & CLMGK_TRAIT_LINEAR) != 0};
}

/* ---- storage types -------------------------------------------------------------------------------------------- */

/* The type that the plain formula rounds weights and their gradient to: that of Q, K, V and O, or f32 if these differ,
 * where all arithmetic is in f32. */
clmgk_dtype ref_weight_type(const clmgk_attention_desc *desc);

/* ---- axes ----------------------------------------------------------------------------------------------------- */

/* Heads with a softmax of their own: H, or those that are mixed after it. */
static inline int64_t ref_softmax_heads(const clmgk_attention_desc *desc)
{
    return desc->mix_after_heads > 0 ? desc->mix_after_heads : desc->heads;
}

/* Components of a key's logit. Mixed variants make one of their M scores. */
static inline int64_t ref_components(const clmgk_attention_desc *desc)
{
    return ref_form_of(desc).mixed ? 1 : desc->components;
}

/* Queries of a row: 1, or, in mixed variants, one of every global head. */
static inline int64_t ref_queries(const clmgk_attention_desc *desc)
{
    return ref_form_of(desc).mixed ? desc->components : 1;
}

/* Units of an admixture problem: the arguments of relu that a head's score is made of. */
static inline int64_t ref_units(const clmgk_attention_desc *desc)
{
    return desc->mix_hidden > 0 ? desc->mix_hidden : desc->components;
}

/* Elements of p that a head's score uses. */
static inline int64_t ref_mixing(const clmgk_attention_desc *desc)
{
    return (desc->mix_hidden > 0 ? desc->mix_hidden : 1) * desc->components;
}

/* Index of p_hk (with a hidden layer: p_uk of unit u = h) and w_hk (w_hu, u = k); values of p, w, c and b. */
static inline int64_t ref_mix_index(const clmgk_attention_desc *desc, int64_t h, int64_t k)
{
    return ref_form_of(desc).shared_mix ? k : h * desc->components + k;
}

static inline int64_t ref_mix_weight_index(const clmgk_attention_desc *desc, int64_t h, int64_t k)
{
    return h * ref_units(desc) + k;
}

static inline double ref_mix(const clmgk_ref_problem *p, int64_t h, int64_t k)
{
    return p->mix[ref_mix_index(&p->desc, h, k)];
}

static inline double ref_mix_weight(const clmgk_ref_problem *p, int64_t h, int64_t k)
{
    return p->desc.use_mix_weight ? p->mix_weight[ref_mix_weight_index(&p->desc, h, k)] : 1.0;
}

static inline double ref_mix_offset(const clmgk_ref_problem *p, int64_t h)
{
    return p->desc.use_mix_offset ? p->mix_offset[h] : 0.0;
}

static inline double ref_mix_hidden_offset(const clmgk_ref_problem *p, int64_t u)
{
    return p->desc.use_mix_hidden_offset ? p->mix_hidden_offset[u] : 0.0;
}

/* sigma_k, 0 for a variant without noise; NaN for an illegal value. */
static inline double ref_deviation(const clmgk_ref_problem *p, int64_t k)
{
    if (!ref_form_of(&p->desc).noisy)
        return 0.0;
    return p->noise[k] >= 0.0 ? p->noise[k] : (double)NAN;
}

/* ---- masks (mask.c) ------------------------------------------------------------------------------------------ */

/* The keys that row i of batch b sees, apart from the bias, and the row's position in its sequence. */
typedef struct ref_span {
    bool absent;      /* beyond lengths_q, or in no sequence: L is -inf even with a sink */
    int64_t batch;    /* of the arrays */
    int64_t sequence; /* b of the random numbers: the batch, or the packed sequence */
    int64_t position; /* i from the first row of the sequence, or the row's position */
    int64_t origin;   /* first key of the sequence */
    int64_t queries;  /* N and S of the sequence */
    int64_t keys;
    int64_t diagonal;   /* d(i), counted from the origin */
    int64_t first, end; /* it sees keys first .. end - 1, of which positions and a bias may hide some: ref_hidden */
    int64_t limit;      /* end of the sequence's keys, of which causality and window hide some */
} ref_span;

ref_span ref_span_of(const clmgk_ref_problem *problem, int64_t b, int64_t i);

/* Number of keys of batch b by lengths: values beyond it are never used. */
int64_t ref_key_limit(const clmgk_ref_problem *problem, int64_t b);

/* Whether elements of a row, or of any gradient, may be infinite or NaN though the formula's are finite. */
bool ref_row_may_leave(const clmgk_ref_problem *problem, ref_row row);
bool ref_gradients_may_leave(const clmgk_ref_problem *problem);

/* Elements of the bias. */
int64_t ref_bias_count(const clmgk_attention_desc *desc);

/* Index of the bias of row `row` and key j; its value, 0 without a bias. */
int64_t ref_bias_index(const clmgk_attention_desc *desc, ref_row row, int64_t j);
double ref_bias(const clmgk_ref_problem *problem, ref_row row, int64_t j);

/* Position of key j: from the first of its sequence, or that of its token. */
int64_t ref_key_position(const clmgk_ref_problem *problem, const ref_span *span, int64_t j);

/* Whether positions or the bias hide key j of those of the row's span. */
bool ref_hidden(const clmgk_ref_problem *problem, ref_row row, int64_t j);

/* ALiBi: slope_h |j - d(i)|, or 0. */
double ref_penalty(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j);

/* ---- random numbers (random.c) ---------------------------------------------------------------------------------- */

/* Dropout's factor of the weight of key j. */
double ref_kept(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j);

/* eps_h of key j, in double precision and in f32; 0 for a variant without noise. */
double ref_noise(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j);
float ref_plain_noise(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j);

/* ---- arrays --------------------------------------------------------------------------------------------------- */

/* g: query head h reads key/value head floor(h G / H). */
static inline int64_t ref_kv_head(const clmgk_attention_desc *desc, int64_t h)
{
    return h * desc->kv_heads / desc->heads;
}

/* Index of the first element of q_i, k_jr (shifted components: k_j, without b_r), b_r and v_j in their arrays.
 * Mixed variants: q_ki and k_kj of global head k = r. */
static inline int64_t ref_query_index(const clmgk_attention_desc *desc, ref_row row, int64_t r)
{
    const int64_t head = ref_form_of(desc).mixed ? row.b * desc->components + r : row.b * desc->heads + row.h;
    return (head * desc->length + row.i) * desc->head_size;
}

static inline int64_t ref_key_index(const clmgk_attention_desc *desc, int64_t b, int64_t h, int64_t j, int64_t r)
{
    const ref_form form = ref_form_of(desc);
    if (form.mixed)
        return ((b * desc->components + r) * desc->length_k + j) * desc->head_size;
    const int64_t components = form.keys ? desc->components : 1;
    const int64_t component = form.keys ? r : 0;
    const int64_t head = b * desc->kv_heads + ref_kv_head(desc, h);
    return ((head * components + component) * desc->length_k + j) * desc->head_size;
}

static inline int64_t ref_shift_index(const clmgk_attention_desc *desc, int64_t h, int64_t r)
{
    return (h * desc->components + r) * desc->head_size;
}

static inline int64_t ref_value_index(const clmgk_attention_desc *desc, int64_t b, int64_t h, int64_t j)
{
    return ((b * desc->kv_heads + ref_kv_head(desc, h)) * desc->length_k + j) * desc->value_size;
}

/* b_r of head h; NULL if keys are not shifted. */
static inline const double *ref_shift(const clmgk_ref_problem *p, int64_t h, int64_t r)
{
    return ref_form_of(&p->desc).shift ? p->shift + ref_shift_index(&p->desc, h, r) : NULL;
}

/* Index of pi_r(j) of head h; a uniform prior counts as [M]. */
static inline int64_t ref_prior_index(const clmgk_attention_desc *desc, int64_t h, int64_t j, int64_t r)
{
    switch (desc->prior_shape) {
    case CLMGK_PRIOR_HM:
        return h * desc->components + r;
    case CLMGK_PRIOR_HMS:
        return (h * desc->components + r) * desc->length_k + j;
    case CLMGK_PRIOR_M:
    case CLMGK_PRIOR_UNIFORM:
        break;
    }
    return r;
}

static inline int64_t ref_prior_count(const clmgk_attention_desc *desc)
{
    const int64_t heads = desc->prior_shape >= CLMGK_PRIOR_HM ? desc->heads : 1;
    return heads * desc->components * (desc->prior_shape == CLMGK_PRIOR_HMS ? desc->length_k : 1);
}

static inline double ref_prior(const clmgk_ref_problem *p, int64_t h, int64_t j, int64_t r)
{
    if (p->desc.prior_shape == CLMGK_PRIOR_UNIFORM)
        return 1.0 / (double)ref_components(&p->desc);
    return p->prior[ref_prior_index(&p->desc, h, j, r)];
}

/* Index of sigma_r^2 of head h; a number counts as [1]. */
static inline int64_t ref_variance_index(const clmgk_attention_desc *desc, int64_t h, int64_t r)
{
    if (desc->variance_shape == CLMGK_VARIANCE_NUMBER)
        return 0;
    return desc->variance_shape == CLMGK_VARIANCE_M ? r : h * desc->components + r;
}

/* sigma_r^2 of head h; NaN for an illegal value. */
static inline double ref_variance(const clmgk_ref_problem *p, int64_t h, int64_t r)
{
    const bool is_number = p->desc.variance_shape == CLMGK_VARIANCE_NUMBER;
    const double variance = is_number ? p->desc.variance : p->variance[ref_variance_index(&p->desc, h, r)];
    return variance > 0.0 ? variance : (double)NAN;
}

/* dO_i (NULL: zero) and dL_i. */
static inline const double *ref_grad_o(const clmgk_ref_problem *p, ref_row row)
{
    return p->grad_o ? p->grad_o + ref_row_number(&p->desc, row) * p->desc.value_size : NULL;
}

static inline double ref_grad_lse(const clmgk_ref_problem *p, ref_row row)
{
    return p->grad_lse ? p->grad_lse[ref_row_number(&p->desc, row)] : 0.0;
}

#endif
