/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, backward pass, mixing after the softmax: what is done per row of the A heads before it, and the
 * gradient of the mixing:
 *
 *     log_ai = -L_ai in the unit of scores     delta_ai = dL_ai - sum_j P_aij dP_aij     dm_ha = sum_ij P_aij
 * dO_hi.v_hj dsink = sum_i e^(sink - L_ai) delta_ai
 */
#define PASS_BACKWARD
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_MIXED_ROWS_BUFFERS
#include "base/buffers.clh"

#include "attention/block.clh"
#include "attention/row_place.clh"
#include "engine/traits.clh"

typedef float real; /* as in formulas that all kernels share */

#include "attention/exact.clh"

/* A work-item is a row of a head before the mixing. delta_ai is dL_ai until the next kernel. */
__kernel void admixture_mixed_begin(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= rows_of(&a))
        return;
    const row_place at = row_of(&a, x);
    const float l = lse[row_lse(&a, &at)];
    const bool seen = l != -INFINITY;
    float low = 0.0f;
    const float high = log_in_units(seen ? l : 0.0f, HAS_LSE_LOW && seen ? lse_low[row_lse(&a, &at)] : 0.0f, &low);
    work[REGION(a.region[MGK_REGION_LOG]) + x] = seen ? -high - (HAS_LSE_LOW ? 0.0f : low) : -INFINITY;
    if (HAS_LSE_LOW)
        work[REGION(a.region[MGK_REGION_LOG_LOW]) + x] = -low;
    work[REGION(a.region[MGK_REGION_DELTA]) + x] =
        seen && is_given(&a.bound, SLOT_GRAD_LSE) ? grad_lse[row_lse(&a, &at)] : 0.0f;
    if (WANT_BIAS_ROWS)
        work[REGION(a.region[MGK_REGION_BIAS]) + x] = 0.0f;
}

/* Likewise. */
__kernel void admixture_mixed_deltas(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0), rows = rows_of(&a);
    if (!DELTAS || a.heads == 0 || x >= rows)
        return;
    float sum = 0.0f;
    for (int n = 0; n < (SCATTERS_QUERIES ? a.splits : 1); ++n)
        sum += work[REGION(a.region[MGK_REGION_DELTAS]) + n * rows + x];
    const float delta = work[REGION(a.region[MGK_REGION_DELTA]) + x] - sum;
    work[REGION(a.region[MGK_REGION_DELTA]) + x] = delta;
    if (!WANT_SINKS)
        return;
    const row_place at = row_of(&a, x);
    const float l = lse[row_lse(&a, &at)];
    const float low = HAS_LSE_LOW ? lse_low[row_lse(&a, &at)] : 0.0f;
    work[REGION(a.region[MGK_REGION_SINKS]) + x] =
        l == -INFINITY ? 0.0f : exp(fmin(sinks[at.h] - l - low, 0.0f)) * delta;
}

/* dm: a work-item is (h, a). */
__kernel void admixture_after_gradient(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0), count = (long)a.kv_heads * HEAD_RATIO * a.heads;
    if (!WANT_MIX_AFTER || a.heads == 0 || x >= count)
        return;
    float sum = 0.0f;
    for (long n = 0; n < (long)a.batch * a.splits; ++n)
        sum += work[REGION(a.region[MGK_REGION_AFTER_SUMS]) + n * count + x];
    grad_mix_after[x] = is_added(&a.bound, SLOT_GRAD_MIX_AFTER) ? grad_mix_after[x] + sum : sum;
}
