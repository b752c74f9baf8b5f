/* SPDX-License-Identifier: Apache-2.0 */
/* Reading rows of 64 floats, one after another in memory: each work-item adds up as many vectors as all others. */

#define ROW_VECTORS 16 /* of 4 floats */

/* A work-item reads a row of its own: neighbours are a row apart. */
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

/* The same by vload4, which promises the alignment of an element alone. */
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

/* Sixteen work-items read a row together: neighbours are a vector apart. */
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
