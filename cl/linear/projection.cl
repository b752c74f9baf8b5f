/* SPDX-License-Identifier: Apache-2.0 */
#include "linear/projection_args.clh"

#define ARGUMENTS mgk_linear_projection_args
#define BUFFERS   MGK_LINEAR_PROJECTION_BUFFERS
#include "base/buffers.clh"

/* The scaled projection, zero beyond F and D: transposed, [HEAD_SIZE][row], and untransposed, [row][HEAD_SIZE]. */
__kernel void linear_projection(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0), count = (long)a.row * HEAD_SIZE;
    if (x >= count)
        return;
    const int f = x / HEAD_SIZE, d = x % HEAD_SIZE;
    const bool within = f < a.features && d < a.head_size;
    const float w = within ? projection[(long)f * a.head_size + d] * a.scale : 0.0f;
    work += a.work;
    work[(long)d * a.row + f] = w;
    work[count + x] = w;
}
