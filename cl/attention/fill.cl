/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_reduction_args
#define BUFFERS   MGK_FILL_BUFFERS
#include "base/buffers.clh"

/* Writes zeros, unless results are added to the array's values. */
__kernel void attention_fill(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    if (x < a.outputs && !is_added(&a.bound, SLOT_OUT))
        out[a.out + x] = 0.0f;
}
