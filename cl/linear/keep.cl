/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear family, states in a pool: stores the new states that linear_apply or linear_steps left in the workspace. A
 * place may be that of the old state. Work-groups: (problem, block of values).
 */
#include "linear/buffers.clh"

#define ARGUMENTS mgk_linear_args
#define BUFFERS   MGK_LINEAR_FORWARD_BUFFERS
#include "base/buffers.clh"

#include "linear/outputs.clh"

KERNEL(linear_keep)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const size_t last = (size_t)GROUP_ID * a.splits + a.splits - 1;
    const unit u = forward_unit_of(&a, last, lengths, lengths_q, offsets, offsets_k, state_slots, new_state_slots);
    if (u.to < 0)
        return;
    __global float *const slot = work + a.region[MGK_LINEAR_STATES] + (u.slot + u.range) * SLOT_FLOATS;
    const state_place own = state_of(slot);
    DECLARE_TILE(factor, SHIFTED ? FEATURE_BLOCK : 16)
    const state_scales scales = scales_of(slot + STATE_FLOATS);
    const float m = SHIFTED ? scales.m[0] : -INFINITY;
    const new_state to = {new_state_c, new_state_z, new_state_m};
    new_state_put(&a, &u, &own, false, scales.sum, m, factor, &to);
    branch_end();
}
