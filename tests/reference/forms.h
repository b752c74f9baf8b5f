/* SPDX-License-Identifier: Apache-2.0 */
/* Small problems of many forms, which the references of the mixture and the admixture family share. */
#ifndef CLMGK_TEST_FORMS_H
#define CLMGK_TEST_FORMS_H

#include "harness/harness.h"
#include "reference/reference.h"

#include <math.h>

enum { B = 2, N = 4, S = 6, D = 3, E = 2 };

/* Room for any array of a problem here. */
#define MOST 512

/* In the order of clmgk_ref_gradient. */
typedef enum parameter {
    Q,
    K,
    V,
    PRIOR,
    VARIANCE,
    SHIFT,
    BIAS,
    SINKS,
    MIX,
    MIX_WEIGHT,
    MIX_OFFSET,
    NOISE,
    STATE_C, /* the linear family's */
    STATE_Z,
    MIX_HIDDEN_OFFSET,
    MIX_AFTER = CLMGK_REF_GRAD_MIX_AFTER,
    PARAMETERS
} parameter;

/* A problem and its arrays. */
typedef struct fixture {
    clmgk_ref_problem problem;
    double array[PARAMETERS][MOST];
    size_t count[PARAMETERS]; /* elements of the gradient */
    double slopes[MOST];
    double grad_o[MOST];
    double grad_lse[MOST];
} fixture;

static const int32_t lengths[B] = {3, 6};
static const int32_t lengths_q[B] = {4, 2};
static const int32_t no_keys[B] = {0, 5};
static const int32_t offsets[] = {0, 1, 1, 4};
static const int32_t offsets_k[] = {0, 2, 3, 6};

/* A form: the fields of its descriptor that differ from those of all forms. */
typedef struct test_form {
    const char *name;
    clmgk_attention_desc desc;
    const int32_t *lengths;
    int zero_prior; /* one component has the prior 0 */
    int no_sigma;   /* sigma_0 = 0 */
    int no_grad_o;
    int no_grad_lse;
} test_form;

#define ANY_BIAS(b, h, n, s)                                                                                           \
    .use_bias = 1, .bias_batch = (b), .bias_heads = (h), .bias_length = (n), .bias_length_k = (s)

/* Irregular numbers in all arrays that count; the third element of a bias hides a key. */
static inline void fill_irregularly(fixture *f)
{
    const clmgk_attention_desc *const d = &f->problem.desc;
    const size_t heads = (size_t)(d->mix_after_heads > 0 ? d->mix_after_heads : d->heads);
    const size_t rows = (size_t)(d->batch * d->heads) * N;
    double state = 0.0;
    for (int which = 0; which < PARAMETERS; which++) {
        assert_true(f->count[which] <= MOST);
        th_fill_irregularly(f->array[which], f->count[which], &state);
    }
    th_fill_irregularly(f->slopes, heads, &state);
    th_fill_irregularly(f->grad_o, rows * E, &state);
    th_fill_irregularly(f->grad_lse, (size_t)d->batch * heads * N, &state);
    if (f->count[BIAS] > 3)
        f->array[BIAS][2] = -(double)INFINITY;
}

/* The problem's pointers to the arrays that both families have. */
static inline void point_to_arrays(const test_form *form, fixture *f)
{
    f->problem.q = f->array[Q];
    f->problem.k = f->array[K];
    f->problem.v = f->array[V];
    f->problem.bias = f->array[BIAS];
    f->problem.sinks = f->array[SINKS];
    f->problem.slopes = f->slopes;
    f->problem.lengths = form->lengths;
    f->problem.lengths_q = lengths_q;
    f->problem.offsets = offsets;
    f->problem.offsets_k = offsets_k;
    f->problem.seed = UINT64_C(0x123456789);
    f->problem.grad_o = form->no_grad_o ? NULL : f->grad_o;
    f->problem.grad_lse = form->no_grad_lse ? NULL : f->grad_lse;
}

static inline clmgk_ref_arrays solve_gradients(const clmgk_ref_problem *p)
{
    clmgk_ref_arrays gradients;
    assert_true(clmgk_ref_solve_gradients(p, CLMGK_GRADIENT_ALL, &gradients));
    return gradients;
}

/* Makes one form after another, and checks each gradient of it. */
typedef void gradient_check(const test_form *form, fixture *f, const clmgk_ref_arrays *gradients, int which);
static inline void check_forms(const test_form *forms, size_t count, void (*make)(const test_form *form, fixture *f),
                               gradient_check *check)
{
    static fixture f;
    for (size_t n = 0; n < count; n++) {
        make(&forms[n], &f);
        TH_REF_ARRAYS gradients = solve_gradients(&f.problem);
        for (int which = 0; which < PARAMETERS; which++)
            check(&forms[n], &f, &gradients, which);
    }
}

#endif
