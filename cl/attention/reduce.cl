/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of partial results in a fixed order. */
#include "attention/args.clh"
#include "base/common.clh"

/* Sum number x over every step-th of its innermost axis from `first` on. */
FUNCTION float partial_sum(const mgk_attention_args *a, __global const float *in, long x, long first, long step)
{
    const long base = x / a->reduce_row * a->reduce_row_stride + x % a->reduce_row * a->reduce_inner;
    float sum = 0.0f;
    for (long n = 0; n < a->reduce_outer; ++n)
        for (long m = 0; m < a->reduce_middle; ++m)
            for (long s = first; s < a->reduce_inner; s += step)
                sum += in[base + n * a->reduce_outer_stride + m * a->reduce_middle_stride + s];
    return sum;
}

FUNCTION void put(const mgk_attention_args *a, __global float *out, long x, float sum, __global const float *variance)
{
#if BY_VARIANCE
    sum *= a->reduce_scale / variance[a->variance_offset + x];
#else
    sum *= a->reduce_scale;
#endif
    out[a->out_offset + x] = a->out_accumulate ? out[a->out_offset + x] + sum : sum;
}

__kernel __attribute__((reqd_work_group_size(GROUP_SIZE, 1, 1))) void attention_reduce(const mgk_attention_args a,
                                                                                       __global const float *variance,
                                                                                       __global float *out,
                                                                                       __global const float *work)
{
#if GROUPED
    __local float part[GROUP_SIZE];
    const int item = get_local_id(0);
    const long x = get_group_id(0);
    const bool in_use = a.heads != 0 && x < a.reduce_outputs;
    part[item] = in_use ? partial_sum(&a, work + a.work + a.reduce_in, x, item, GROUP_SIZE) : 0.0f;
    for (int width = GROUP_SIZE / 2; width > 0; width /= 2) {
        LOCAL_BARRIER();
        if (item < width)
            part[item] += part[item + width];
    }
    if (item == 0 && in_use)
        put(&a, out, x, part[0], variance);
#else
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= a.reduce_outputs)
        return;
    put(&a, out, x, partial_sum(&a, work + a.work + a.reduce_in, x, 0, 1), variance);
#endif
}
