/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queries' negative log-likelihood from their log-densities, [B,H,N] in the workspace (mixture/forward.cl):
 * nll[b,h] = - mean of log p(q_i) over the rows that see a key, those that are not +inf; 0 where none does.
 * A work-group is one (b, h), or one packed sequence of h; its sums are made in one fixed order.
 */
#include "mixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_MIXTURE_DENSITY_BUFFERS
#include "base/buffers.clh"

#include "mixture/block.clh"

__kernel __attribute__((reqd_work_group_size(GROUP_SIZE, 1, 1))) void mixture_density(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const int h = (int)(get_group_id(0) % a.heads), b = (int)(get_group_id(0) / a.heads);
    const int thread = get_local_id(0);
    const problem p = problem_of(&a, b, lengths, lengths_q, offsets, offsets_k);
    __global const float *const density = work + a.parts_lse + (p.batch * a.heads + h) * a.length + p.row_base;
    __local float sums[GROUP_SIZE], counts[GROUP_SIZE];
    float sum = 0.0f, count = 0.0f;
    for (int i = thread; i < p.valid; i += GROUP_SIZE) {
        const float l = density[i];
        sum -= l == INFINITY ? 0.0f : l;
        count += l == INFINITY ? 0.0f : 1.0f;
    }
    sums[thread] = sum;
    counts[thread] = count;
    for (int width = GROUP_SIZE / 2; width > 0; width /= 2) {
        LOCAL_BARRIER();
        if (thread < width) {
            sums[thread] += sums[thread + width];
            counts[thread] += counts[thread + width];
        }
    }
    if (thread == 0)
        nll[(long)b * a.heads + h] = counts[0] == 0.0f ? 0.0f : sums[0] / counts[0];
    KEEP_APART;
}
