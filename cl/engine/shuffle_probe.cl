/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a device's sub-groups are as engine/shuffle.clh needs them: for each work-item of the first work-group the
 * number of neighbours, from bit 0 of its local number on, whose numbers it receives. Others do not take part, as in
 * kernels: a compiler may get it wrong then. No more than 32: AMD's compiler chooses between 32 and 64 for each kernel.
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
    FORGET(tid);
    FORGET_POINTER(neighbours);
    int right = 0;
    for (int mask = 1; mask < MOST_NEIGHBOURS; mask *= 2)
        right |= lane_exchange((float)tid, mask) == (float)(tid ^ mask) ? mask : 0;
    int size = 1;
    while (right & size)
        size *= 2;
    neighbours[tid] = size;
}
