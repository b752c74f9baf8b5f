/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that a device's sub-groups meet the needs of engine/shuffle.clh. Each work-item of the first work-group counts
 * the neighbours whose numbers it receives: all work-items whose numbers differ from its own in the lowest bits only.
 * Other work-groups return early, as in kernels, because a compiler may handle that branch wrongly. The count is at
 * most 32: AMD's compiler chooses between sub-groups of 32 and 64 for each kernel.
 */
#include "base/common.clh"

#define THREADS 128
#include "engine/shuffle.clh"

#define MOST_NEIGHBOURS 32

__kernel KERNEL_ATTRIBUTES void shuffle_probe(__global int *neighbours)
{
    int tid = get_local_id(0);
    if (get_group_id(0) != 0)
        return;
    OPAQUE(tid);
    OPAQUE_POINTER(neighbours);
    int right = 0;
    for (int mask = 1; mask < MOST_NEIGHBOURS; mask *= 2)
        right |= lane_exchange((float)tid, mask) == (float)(tid ^ mask) ? mask : 0;
    int size = 1;
    while (right & size)
        size *= 2;
    neighbours[tid] = size;
}
