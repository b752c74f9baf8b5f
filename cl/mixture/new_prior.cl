/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/args.clh"
#include "base/common.clh"

/*
 * M-step: new pi_r = N_r / sum_r' N_r', the given pi where the sum is 0. Item x is a set of `reduce_inner` components'
 * counts, reduce_row apart... of one head or position: element r at (x / row) row_stride + x % row + r inner.
 */
__kernel void mixture_new_prior(const mgk_attention_args a, __global const float *prior, __global float *out,
                                __global const float *work)
{
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= a.reduce_outputs)
        return;
    __global const float *const counts = work + a.work + a.reduce_in;
    const long first = x / a.reduce_row * a.reduce_row_stride + x % a.reduce_row;
    float sum = 0.0f;
    for (long r = 0; r < a.reduce_outer; ++r)
        sum += counts[first + r * a.reduce_inner];
    for (long r = 0; r < a.reduce_outer; ++r) {
        const long at = first + r * a.reduce_inner;
        const float kept = a.reduce_middle ? prior[a.prior.offset + at] : 1.0f / (float)a.reduce_outer;
        out[a.out_offset + at] = sum > 0.0f ? counts[at] / sum : kept;
    }
}
