/* SPDX-License-Identifier: Apache-2.0 */
#include "gemm/scale_args.clh"

#define ARGUMENTS mgk_gemm_scale_args
#define BUFFERS   MGK_GEMM_SCALE_BUFFERS
#include "base/buffers.clh"

/* C = beta C; beta = 0: zeros, and C is not read. */
__kernel void gemm_scale(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    if (x >= a.elements)
        return;
    const long row = x / a.columns;
    const long at = row / a.rows * a.stride + row % a.rows * a.ld + x % a.columns;
    store1(c, at, a.beta == 0.0f ? 0.0f : a.beta * load1(c, at));
}
