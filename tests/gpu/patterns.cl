/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that read rows of 64 floats, contiguous in memory. All work-items add up equally many vectors. */

#define ROW_VECTORS 16 /* of 4 floats */

/* Each work-item reads its own row, so neighbours are a row apart. */
__kernel void lane_is_row(__global float *restrict sums, __global const float4 *restrict rows, const uint count)
{
    const size_t item = get_global_id(0);
    float4 sum = (float4)(0.0f);
    for (uint n = 0; n < count; n++) {
        const size_t row = n * get_global_size(0) + item;
#pragma unroll
        for (uint i = 0; i < ROW_VECTORS; i++)
            sum += rows[row * ROW_VECTORS + i];
    }
    sums[item] = (sum.x + sum.y) + (sum.z + sum.w);
}

/* The same with vload4, which promises only the alignment of an element. */
__kernel void lane_is_row_vload(__global float *restrict sums, __global const float *restrict rows, const uint count)
{
    const size_t item = get_global_id(0);
    float4 sum = (float4)(0.0f);
    for (uint n = 0; n < count; n++) {
        const size_t row = n * get_global_size(0) + item;
#pragma unroll
        for (uint i = 0; i < ROW_VECTORS; i++)
            sum += vload4(row * ROW_VECTORS + i, rows);
    }
    sums[item] = (sum.x + sum.y) + (sum.z + sum.w);
}

/* Sixteen work-items read a row together, so neighbours are a vector apart. */
__kernel void lane_is_feature(__global float *restrict sums, __global const float4 *restrict rows, const uint count)
{
    const size_t item = get_global_id(0);
    const size_t feature = item % ROW_VECTORS, first = item / ROW_VECTORS, step = get_global_size(0) / ROW_VECTORS;
    float4 sum = (float4)(0.0f);
    for (uint n = 0; n < count; n++) {
#pragma unroll
        for (uint i = 0; i < ROW_VECTORS; i++)
            sum += rows[((n * ROW_VECTORS + i) * step + first) * ROW_VECTORS + feature];
    }
    sums[item] = (sum.x + sum.y) + (sum.z + sum.w);
}
