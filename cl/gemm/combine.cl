/* SPDX-License-Identifier: Apache-2.0 */
#include "gemm/combine_args.clh"

#define ARGUMENTS mgk_gemm_combine_args
#define BUFFERS   MGK_GEMM_COMBINE_BUFFERS
#include "base/buffers.clh"

/* C = alpha (the sums of all ranges of K, in their order; without a range 0) + beta C; beta = 0: C is not read. */
__kernel void gemm_combine(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    if (x >= a.elements)
        return;
    const long matrix = (long)a.rows * a.columns, at = x % matrix;
    __global const float *const sums = workspace + a.sums + x / matrix * a.ranges * matrix + at;
    const long place = x / matrix * a.stride + at / a.columns * a.ld + at % a.columns;
    float sum = a.ranges > 0 ? sums[0] : 0.0f;
    for (int range = 1; range < a.ranges; ++range)
        sum += sums[range * matrix];
    store1(c, place, fma(a.alpha, sum, a.beta == 0.0f ? 0.0f : a.beta * load1(c, place)));
}
