/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that a device's matrix unit multiplies rightly, in all the ways of the engine's kernels. One warp rounds small
 * whole numbers to 16 bits, copies them to local memory, loads them as fragments and multiplies them. It computes A B^T
 * and A B for each type, where A and B have 16 rows and columns; all sums are exact. f32 needs no other loads, so its
 * fragments come without copies.
 */
#include "base/common.clh"
#include "engine/files.clh"

#define THREADS WARP_SIZE

#include ENGINE_FILE(fragments.clh)

#define SIZE       16
#define WORDS      (SIZE * SIZE / 2)
#define TILE_WORDS (SIZE * TILE_ROW_WORDS(SIZE))

#include "engine/probe_operands.clh"

FUNCTION void tile_copy(int lane, __local uint *tile, __global const uint *words)
{
    for (int i = lane; i < WORDS / 4; i += WARP_SIZE)
        piece_copy(tile + i / 2 * TILE_ROW_WORDS(SIZE) + i % 2 * 4, words + 4 * i, true);
}

/* Writes a fragment C of columns `column` and the following seven. */
FUNCTION void product_write(int lane, const float *c, int column, __global float *product)
{
    UNROLL
    for (int i = 0; i < 4; ++i)
        product[fragment_row(lane, i / 2) * SIZE + column + fragment_depth(lane, 0) + i % 2] = c[i];
}

FUNCTION void products_write(int lane, __local const uint *left, __local const uint *right, const int type,
                             __global float *products)
{
    uint a[4], columns[2][2], rows[2][2];
    fragment_load_a(a, lane, left, SIZE, 0);
    fragments_load_b(columns, lane, right, SIZE, 0);
    fragments_load_rows(rows, lane, right, SIZE, 0);
    UNROLL
    for (int n = 0; n < 2; ++n) {
        float transposed[4] = {0.0f, 0.0f, 0.0f, 0.0f}, plain[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        fragment_multiply(transposed, a, columns[n], type);
        fragment_multiply(plain, a, rows[n], type);
        product_write(lane, transposed, 8 * n, products);
        product_write(lane, plain, 8 * n, products + SIZE * SIZE);
    }
}

/* Column of A or row of B of a work-item's word: columns t and t + 4 are neighbours. */
FUNCTION int single_depth(int lane, int step, int i)
{
    return 8 * step + fragment_depth(lane, 0) + i;
}

FUNCTION void single_products_write(int lane, __global float *products)
{
    UNROLL
    for (int n = 0; n < 2; ++n) {
        float transposed[4] = {0.0f, 0.0f, 0.0f, 0.0f}, plain[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const int column = 8 * n + lane / 4;
        UNROLL
        for (int step = 0; step < SIZE / 8; ++step) {
            uint a[4], columns[2], rows[2];
            UNROLL
            for (int i = 0; i < 4; ++i)
                a[i] = as_uint((float)left_number(fragment_row(lane, i), single_depth(lane, step, i / 2)));
            UNROLL
            for (int i = 0; i < 2; ++i) {
                columns[i] = as_uint((float)right_number(column, single_depth(lane, step, i)));
                rows[i] = as_uint((float)right_number(single_depth(lane, step, i), column));
            }
            single_multiply(transposed, a, columns);
            single_multiply(plain, a, rows);
        }
        product_write(lane, transposed, 8 * n, products);
        product_write(lane, plain, 8 * n, products + SIZE * SIZE);
    }
}

/* products: f16's A B^T and A B, then bf16's, then those of f32 as tf32. The memory of each 16-bit type's products
 * holds its operands before. */
__kernel __attribute__((reqd_work_group_size(WARP_SIZE, 1, 1))) void unit_probe(__global float *products)
{
    __local uint4 memory[2 * TILE_WORDS / 4];
    __local uint *const tiles = (__local uint *)memory;
    const int lane = get_local_id(0);
    const int types[] = {TYPE_F16, TYPE_BF16};
    UNROLL
    for (int n = 0; n < 2; ++n) {
        __global float *const own = products + n * 2 * SIZE * SIZE;
        __global uint *const words = (__global uint *)own;
        operands_write(lane, words, types[n]);
        barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
        tile_copy(lane, tiles, words);
        tile_copy(lane, tiles + TILE_WORDS, words + WORDS);
        copies_wait();
        barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
        products_write(lane, tiles, tiles + TILE_WORDS, types[n], own);
    }
    single_products_write(lane, products + 2 * 2 * SIZE * SIZE);
}
