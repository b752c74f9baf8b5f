/* SPDX-License-Identifier: Apache-2.0 */
/* Linear family, backward: the sums of the ranges' states of rows, and the gradient of the incoming state. */
#include "linear/buffers.clh"

#define ARGUMENTS mgk_linear_args
#define BUFFERS   MGK_LINEAR_GRADIENTS_BUFFERS
#include "base/buffers.clh"

#include "linear/backward.clh"

/* Head number x. */
FUNCTION unit head_of(const mgk_linear_args *a, long x)
{
    unit u;
    u.p.b = (int)(x / a->heads);
    u.h = (int)(x % a->heads);
    u.e0 = 0;
    return u;
}

/* Element i of the new state's gradient. */
FUNCTION float new_state_gradient(const mgk_linear_args *a, const unit *u, int i, __global const float *grad_c,
                                  __global const float *grad_z)
{
    const state_number n = state_number_of(a, u, i);
    if (!n.exists)
        return 0.0f;
    if (!n.total)
        return is_given(&a->bound, SLOT_GRAD_NEW_STATE_C) ? grad_c[n.index] : 0.0f;
    /* z is the same for all mixed heads: it counts once */
    return n.own && is_given(&a->bound, SLOT_GRAD_NEW_STATE_Z) ? grad_z[n.index] : 0.0f;
}

/*
 * A work-item is a number of a state and takes the ranges in order from the last. CAUSAL: their slots receive the sums
 * of later ranges and of the new state's gradient; else the first receives the sum of all.
 */
__kernel void linear_backward_prefix(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    if (x >= (long)a.batch * a.heads * STATE_FLOATS)
        return;
    const int i = (int)(x % STATE_FLOATS);
    const long head = x / STATE_FLOATS, last = (head + 1) * a.splits - 1;
    const unit u = head_of(&a, head);
    __global float *const slot = work + a.region[MGK_LINEAR_ROWS] + last * SLOT_FLOATS;
    range_sum sum = {new_state_gradient(&a, &u, i, grad_new_state_c, grad_new_state_z), -INFINITY};
    if (SHIFTED && (is_given(&a.bound, SLOT_GRAD_NEW_STATE_C) || is_given(&a.bound, SLOT_GRAD_NEW_STATE_Z))) {
        const float of_state =
            scales_of(work + a.region[MGK_LINEAR_TRANSPOSED] + last * TRANSPOSED_SLOT + TRANSPOSED_FLOATS).m[0];
        sum.m = of_state == -INFINITY ? 0.0f : -of_state;
    }
    ranges_sum(sum, slot, -(long)SLOT_FLOATS, a.splits, i, slot - (a.splits - 1L) * SLOT_FLOATS);
}

/* R over all rows, relative to the incoming state's log scale, is that state's gradient. A work-item is one of its
 * numbers. */
__kernel void linear_backward_state(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    if (x >= (long)a.batch * a.heads * STATE_FLOATS)
        return;
    const int i = x % STATE_FLOATS;
    const unit u = head_of(&a, x / STATE_FLOATS);
    const state_number n = state_number_of(&a, &u, i);
    if (!n.exists || !n.own)
        return;
    float sum = 0.0f;
    for (int h = 0; h < (n.total && MIXED_HEADS ? a.heads : 1); ++h) {
        __global float *const slot = work + a.region[MGK_LINEAR_ROWS] + (x / STATE_FLOATS + h) * a.splits * SLOT_FLOATS;
        float y = slot[i];
        if (SHIFTED && y != 0.0f) /* the factor may be inf */
            y *= exp(state_m[scale_index(&a, u.p.b, u.h)] + scales_of(slot + STATE_FLOATS).top[feature_of_number(i)]);
        sum += y;
    }
    if (!n.total && is_given(&a.bound, SLOT_GRAD_STATE_C))
        grad_state_c[n.index] = is_added(&a.bound, SLOT_GRAD_STATE_C) ? grad_state_c[n.index] + sum : sum;
    if (n.total && is_given(&a.bound, SLOT_GRAD_STATE_Z))
        grad_state_z[n.index] = is_added(&a.bound, SLOT_GRAD_STATE_Z) ? grad_state_z[n.index] + sum : sum;
}
