/* SPDX-License-Identifier: Apache-2.0 */
#include "mixture/buffers.clh"

#define ARGUMENTS mgk_reduction_args
#define BUFFERS   MGK_MIXTURE_NEW_PRIOR_BUFFERS
#include "base/buffers.clh"

/*
 * M-step: new pi_r = N_r / sum_r' N_r', the given pi where the sum is 0. Item x is a set of `outer` components' counts,
 * those of one head or position: element r at (x / row) row_stride + x % row + r outer_stride.
 */
__kernel void mixture_new_prior(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    if (x >= a.outputs)
        return;
    __global const float *const counts = work + a.in;
    const long first = x / a.row * a.row_stride + x % a.row;
    float sum = 0.0f;
    for (long r = 0; r < a.outer; ++r)
        sum += counts[first + r * a.outer_stride];
    for (long r = 0; r < a.outer; ++r) {
        const long at = first + r * a.outer_stride;
        const float kept = is_given(&a.bound, SLOT_PRIOR) ? prior[at] : 1.0f / (float)a.outer;
        new_prior[at] = sum > 0.0f ? counts[at] / sum : kept;
    }
}
