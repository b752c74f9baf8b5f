/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bias as the lane engine's scores read it, [bias batch, bias head, vector of rows, key, lane = row]: made once,
 * where several (b, h) share it. The last vector's lanes beyond the last row have its biases. Beyond the last key there
 * are zeros: sums of hidden keys use them, and a multiply-add of a denormal number, which memory without a value may
 * hold, takes Intel's CPUs a hundred cycles. A work-item makes a vector of rows.
 */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_bias_args
#define BUFFERS   MGK_BIAS_BUFFERS
#include "base/buffers.clh"

#include "engine/files.clh"
#include "engine/lanes.clh"

#include ENGINE_FILE(bias.clh)

__kernel KERNEL_ATTRIBUTES void attention_bias(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    if (a.length == 0)
        return;
    const long x = get_group_id(0), vectors = (a.length + LANES - 1) / LANES;
    const long n = x / vectors % a.heads, m = x / vectors / a.heads;
    const int row = (int)(x % vectors) * LANES, count = min(a.length - row, LANES);
    bias += m * a.bias.batch + n * a.bias.head + row * a.bias.component;
    __global float *const out = work + a.transposed + m * a.out.batch + n * a.out.head + x % vectors * a.out.component;
    int j = 0;
    for (; j + LANES <= a.length_k; j += LANES) {
        real y[LANES];
        bias_columns(y, bias + j, a.bias.component, count);
        UNROLL
        for (int i = 0; i < LANES; ++i)
            vstore_real(y[i], j + i, out);
    }
    for (; j < a.length_k; ++j)
        vstore_real(bias_rows(bias + j, a.bias.component, count), j, out);
    for (; j * LANES < a.out.component; ++j)
        vstore_real((real)(0.0f), j, out);
}
