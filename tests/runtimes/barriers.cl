/* SPDX-License-Identifier: Apache-2.0 */
/* The two constructs that PoCL's work-item loops take wrongly (docs/engine.md), as small as they show it. */
#include "base/common.clh"

#define ITEMS 32
#define USED  16

/* A condition that is known before the barrier which its branch follows. out[i] = (i + 1) (sums of what was staged) */
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void behind_barrier(__global const float *in,
                                                                                __global float *out, int rounds)
{
    __local float staged[ITEMS];
    const int item = get_local_id(0);
    float a = 0.0f, b = 0.0f;
    for (int round = 0; round < rounds; ++round) {
        LOCAL_BARRIER();
        for (int i = item; i < USED; i += ITEMS)
            staged[i] = in[round + i];
        LOCAL_BARRIER();
        for (int i = 0; i < USED; ++i)
            a += staged[i] * (item + 1);
        LOCAL_BARRIER();
        for (int i = item; i < USED; i += ITEMS)
            staged[i] = in[100 + round + i];
        LOCAL_BARRIER();
        for (int i = 0; i < USED; ++i)
            b += staged[i] * (item + 1);
    }
    out[item] = a + b;
}

/* A branch that ends where a path without barriers joins. out[i], i < limit: in[i + 1] + the last round not skipped */
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
before_join(__global const float *in, __global float *out, int rounds, int skip, int limit)
{
    __local float staged[ITEMS];
    const int item = get_local_id(0);
    for (int round = 0; round < rounds; ++round) {
        if (round == skip)
            continue;
        staged[item] = in[item];
        LOCAL_BARRIER();
        const float x = staged[(item + 1) % ITEMS];
        LOCAL_BARRIER();
        if (item < limit)
            out[item] = x + round;
        KEEP_APART;
    }
}
