/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/args.clh"
#include "base/common.clh"

/* Zeros: out_offset .. + reduce_outputs of an output, or of the workspace from reduce_in on. */
__kernel void attention_fill(const mgk_attention_args a, __global float *out, __global float *work)
{
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= a.reduce_outputs)
        return;
    if (a.reduce_in < 0) {
        if (!a.out_accumulate)
            out[a.out_offset + x] = 0.0f;
    } else {
        work[a.work + a.reduce_in + x] = 0.0f;
    }
}
