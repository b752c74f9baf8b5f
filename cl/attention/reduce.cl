/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of partial results in a fixed order. */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_reduction_args
#define BUFFERS   MGK_REDUCE_BUFFERS
#include "base/buffers.clh"

#include "engine/traits.clh"

#include "base/fours.clh"

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

#if ROW_FOURS && !BY_VARIANCE
/* Whether four adjacent sums are over adjacent elements, all aligned. */
FUNCTION bool sums_are_fours(const mgk_reduction_args *a, __global const float *in, __global const float *out)
{
    const long multiples = a->outputs | a->row | a->row_stride | a->outer_stride | a->middle_stride;
    return a->inner == 1 && has_fours(in, multiples, 4) && has_fours(out, multiples, 4);
}

/* Sums x .. x + 3, each in the order of partial_sum. */
FUNCTION float4 sum_of_fours(const mgk_reduction_args *a, __global const float *in, long x)
{
    __global const float *const base = in + x / a->row * a->row_stride + x % a->row;
    float4 sum = (float4)(0.0f);
    for (long n = 0; n < a->outer; ++n)
        for (long m = 0; m < a->middle; ++m)
            sum += load_four(base + n * a->outer_stride + m * a->middle_stride, 0, 4, true);
    return sum;
}

FUNCTION void put_four(const mgk_reduction_args *a, __global float *out, float4 sum)
{
    sum *= a->scale;
    store_four(out, 0, 4, true, is_added(&a->bound, SLOT_OUT) ? load_four(out, 0, 4, true) + sum : sum);
}
#endif

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
    const long x = (long)get_global_id(0) * ITEM_OUTPUTS;
#if ROW_FOURS && !BY_VARIANCE
    if (sums_are_fours(&a, work + a.in, out + a.out)) {
        if (x < a.outputs)
            put_four(&a, out + a.out + x, sum_of_fours(&a, work + a.in, x));
        return;
    }
#endif
    for (int n = 0; n < ITEM_OUTPUTS; ++n)
        if (x + n < a.outputs)
            put(&a, out, x + n, partial_sum(&a, work + a.in, x + n, 0, 1), variance);
#endif
}
