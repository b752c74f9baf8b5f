/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of partial results in a fixed order. */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_reduction_args
#define BUFFERS   MGK_REDUCE_BUFFERS
#include "base/buffers.clh"

/* Sum number x over every step-th element of its innermost axis from `first` on. */
FUNCTION float partial_sum(const mgk_reduction_args *a, __global const float *in, long x, long first, long step)
{
    const long base = x / a->row * a->row_stride + x % a->row * a->inner;
    float sum = 0.0f;
    for (long n = 0; n < a->outer; ++n)
        for (long m = 0; m < a->middle; ++m)
            for (long s = first; s < a->inner; s += step)
                sum += in[base + n * a->outer_stride + m * a->middle_stride + s];
    return sum;
}

FUNCTION void put(const mgk_reduction_args *a, __global float *out, long x, float sum, __global const float *variance)
{
#if BY_VARIANCE
    sum *= a->scale / variance[x];
#else
    sum *= a->scale;
#endif
    out += a->out + x;
    *out = is_added(&a->bound, SLOT_OUT) ? *out + sum : sum;
}

__kernel __attribute__((reqd_work_group_size(GROUP_SIZE, 1, 1))) void attention_reduce(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
#if GROUPED
    __local float part[GROUP_SIZE];
    const int item = get_local_id(0);
    const long x = get_group_id(0);
    const bool in_use = x < a.outputs;
    part[item] = in_use ? partial_sum(&a, work + a.in, x, item, GROUP_SIZE) : 0.0f;
    for (int width = GROUP_SIZE / 2; width > 0; width /= 2) {
        LOCAL_BARRIER();
        if (item < width)
            part[item] += part[item + width];
    }
    if (item == 0 && in_use)
        put(&a, out, x, part[0], variance);
#else
    const long x = get_global_id(0);
    if (x >= a.outputs)
        return;
    put(&a, out, x, partial_sum(&a, work + a.in, x, 0, 1), variance);
#endif
}
