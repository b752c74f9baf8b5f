/* SPDX-License-Identifier: Apache-2.0 */
#include "base/common.clh"
#include "gemm/scale_args.clh"

/* C = beta C; beta = 0: zeros, and C is not read. */
__kernel void gemm_scale(const mgk_gemm_scale_args a, __global storage *c)
{
    const long x = get_global_id(0);
    if (x >= a.elements)
        return;
    const long row = x / a.columns;
    const long at = a.offset + row / a.rows * a.stride + row % a.rows * a.ld + x % a.columns;
    store1(c, at, a.beta == 0.0f ? 0.0f : a.beta * load1(c, at));
}
