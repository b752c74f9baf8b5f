/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_reduction_args
#define BUFFERS   MGK_FILL_BUFFERS
#include "base/buffers.clh"

#include "engine/traits.clh"

#include "base/fours.clh"

/* Writes zeros, unless results are added to the array's values: one for each work-item, or four. */
__kernel void attention_fill(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = (long)get_global_id(0) * ITEM_OUTPUTS;
    if (x >= a.outputs || is_added(&a.bound, SLOT_OUT))
        return;
#if ROW_FOURS
    const int count = (int)min(a.outputs - x, 4L);
    out += a.out + x;
    store_four(out, 0, count, has_fours(out, 0, count), (float4)(0.0f));
#else
    out[a.out + x] = 0.0f;
#endif
}
