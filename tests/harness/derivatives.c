/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's gradients against central differences of the loss sum(O dO) + sum(L dL), to which a new state adds
 * sum(C dC) + sum(z dz). */
#include "harness/harness.h"

#include <math.h>

enum { MOST_VALUES = 8 };

/* sum(C dC) + sum(z dz), in the units of another state. */
static double state_loss(const clmgk_ref_problem *p, const clmgk_ref_arrays *units)
{
    TH_REF_ARRAYS state = {0};
    const double *const grad[] = {p->grad_new_state_c, p->grad_new_state_z};
    double sum = 0.0;
    assert_true(clmgk_ref_solve_state(p, &state));
    for (int which = CLMGK_REF_STATE_C; which <= CLMGK_REF_STATE_Z; which++) {
        clmgk_ref_rescale_state(units, which, state.exact[CLMGK_REF_STATE_M], state.exact[which]);
        for (int64_t n = 0; grad[which] && n < state.count[which]; n++)
            sum += grad[which][n] * state.exact[which][n];
    }
    return sum;
}

/* sum(O dO) + sum(L dL) of heads that are mixed after the softmax, whose L have rows of their own. */
static double mixed_loss(const clmgk_ref_problem *p)
{
    const clmgk_attention_desc *const d = &p->desc;
    clmgk_ref_answer answer;
    double sum = 0.0;
    assert_true(clmgk_ref_solve(p, d->batch * d->heads * d->length, NULL, &answer));
    for (int64_t n = 0; p->grad_o && n < answer.rows * d->value_size; n++)
        sum += answer.o[n] * p->grad_o[n];
    for (int64_t n = 0; p->grad_lse && n < answer.before->rows; n++)
        if (isfinite(answer.before->lse[n]))
            sum += answer.before->lse[n] * p->grad_lse[n];
    clmgk_ref_answer_free(&answer);
    return sum;
}

/* Over the rows whose L is finite. `units`: of the new state, NULL without one. */
static double loss(const clmgk_ref_problem *p, const clmgk_ref_arrays *units)
{
    const clmgk_attention_desc *const d = &p->desc;
    double sum = units ? state_loss(p, units) : 0.0;
    assert_true(d->value_size <= MOST_VALUES);
    for (int64_t row = 0; row < d->batch * d->heads * d->length; row++) {
        double o[MOST_VALUES];
        double lse = 0.0;
        assert_true(clmgk_ref_row(p, row, o, &lse));
        for (int64_t e = 0; p->grad_o && e < d->value_size; e++)
            sum += o[e] * p->grad_o[row * d->value_size + e];
        if (p->grad_lse && isfinite(lse))
            sum += lse * p->grad_lse[row];
    }
    return sum;
}

/* dloss / dx by central differences; where x - h would not be legal, from the right. */
static double numeric(const clmgk_ref_problem *p, const clmgk_ref_arrays *units, double *x, bool positive)
{
    static const double h = 1e-5;
    const double x0 = *x;
    const bool right = positive && x0 < h;
    double f[3];
    for (int n = 0; n < 3; n++) {
        *x = x0 + h * (right ? n : n - 1);
        f[n] = p->desc.mix_after_heads > 0 ? mixed_loss(p) : loss(p, units);
    }
    *x = x0;
    return (right ? -3.0 * f[0] + 4.0 * f[1] - f[2] : f[2] - f[0]) / (2.0 * h);
}

void th_expect_derivatives(const char *name, const clmgk_ref_problem *p, const clmgk_ref_arrays *gradients, int which,
                           double *x, size_t count, bool positive)
{
    TH_REF_ARRAYS state = {0};
    const bool has_state = p->desc.use_new_state != 0;
    assert_true(!has_state || clmgk_ref_solve_state(p, &state));
    const double scale = fmax(1.0, gradients->bound[which].max_abs);
    assert_int_equal(gradients->count[which], count);
    for (size_t n = 0; n < count; n++) {
        const double exact = gradients->exact[which][n];
        const double expected = isinf(x[n]) ? 0.0 : numeric(p, has_state ? &state : NULL, &x[n], positive);
        if (fabs(exact - expected) > 1e-7 * scale)
            fail_msg("%s, gradient %d, element %zu: %.12g, differences give %.12g", name, which, n, exact, expected);
    }
    if (gradients->bound[which].plain_error > 2e-6 * scale)
        fail_msg("%s, gradient %d: the plain formula errs by %g", name, which, gradients->bound[which].plain_error);
}

void th_expect_wanted_gradients_only(const clmgk_ref_problem *p)
{
    TH_REF_ARRAYS all = {0};
    assert_true(clmgk_ref_solve_gradients(p, CLMGK_GRADIENT_ALL, &all));
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        const size_t count = (size_t)clmgk_ref_gradient_count(&p->desc, (clmgk_ref_gradient)which);
        TH_REF_ARRAYS one = {0};
        assert_true(clmgk_ref_solve_gradients(p, 1U << (unsigned)which, &one));
        for (int other = 0; other < CLMGK_REF_GRADIENTS; other++)
            assert_int_equal(one.exact[other] != NULL, other == which && count > 0);
        if (count > 0)
            assert_memory_equal(one.exact[which], all.exact[which], count * sizeof(double));
        assert_true(one.bound[which].bound == all.bound[which].bound);
    }
}
