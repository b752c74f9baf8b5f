/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that wgmma multiplies rightly, in all the ways of the engine's kernels. Four warps round small whole numbers to
 * 16 bits, copy them to local memory and multiply matrices of 64 rows and columns, of each type: A B^T, then A B, with
 * A in registers, and A B^T with A in local memory; each with all columns at once, and with the narrowest statements.
 * All sums are exact.
 */
#include "base/common.clh"
#include "engine/files.clh"

#define WARPS      4
#define ROW_TILES  1
#define BLOCK_ROWS 2
#define ROWS_FOR(v)                                                                                                    \
    UNROLL                                                                                                             \
    for (int v = 0; v < BLOCK_ROWS; ++v)
typedef float real;

#include ENGINE_FILE(fragments.clh)

#define THREADS (WARPS * WARP_SIZE)
#define SIZE    64
#define NARROW  16
#define STEPS   (SIZE / 16)
#define WORDS   (SIZE * SIZE / 2)
#define COLUMNS (SIZE / 4) /* numbers of a row in a work-item */
#define FORMS   6

#include "engine/probe_operands.clh"

FUNCTION void tile_copy(int tid, __local uint *tile, __global const uint *words)
{
    UNROLL_BY(1)
    for (int i = tid; i < WORDS / 4; i += THREADS) {
        const int row = i / PART_PIECES, d = i % PART_PIECES * TILE_PIECE;
        piece_copy(tile + swizzled_place(row, d, SIZE), words + 4 * i, true);
    }
}

/* Loads A's fragments of this warp's rows. */
FUNCTION void left_load(int tid, uint (*a)[4], __local const uint *left)
{
    const int lane = tid % WARP_SIZE, first = tid / WARP_SIZE * 16;
    UNROLL
    for (int step = 0; step < STEPS; ++step)
        UNROLL
    for (int i = 0; i < 4; ++i) {
        const int row = first + fragment_row(lane, i), d = 16 * step + fragment_depth(lane, i / 2);
        a[step][i] = left[swizzled_place(row, d, SIZE) + d % TILE_PIECE / 2];
    }
}

/* Writes `count` columns from `column` on. */
FUNCTION void product_write(int tid, real (*c)[BLOCK_ROWS], int column, const int count, __global float *product)
{
    const int lane = tid % WARP_SIZE, first = tid / WARP_SIZE * 16;
    UNROLL
    for (int i = 0; i < count / 4; ++i)
        ROWS_FOR(v)
            product[(first + fragment_row(lane, v)) * SIZE + column + i / 2 * 8 + fragment_depth(lane, 0) + i % 2] =
                c[i][v];
}

FUNCTION void columns_clear(real (*c)[BLOCK_ROWS])
{
    UNROLL
    for (int i = 0; i < COLUMNS; ++i)
        ROWS_FOR(v)
            c[i][v] = 0.0f;
}

/* Computes `count` columns of a product with A in registers; by_rows: of A B, from the first column on. */
FUNCTION void product_of_registers(int tid, uint (*a)[4], __local const uint *right, int column, const int count,
                                   const int type, const bool by_rows, __global float *product)
{
    const ulong b = part_descriptor(right) + (ulong)(column / 16 * ROWS_UNITS);
    real c[COLUMNS][BLOCK_ROWS];
    columns_clear(c);
    UNROLL
    for (int step = 0; step < STEPS; ++step)
        UNROLL
    for (int i = 0; i < 4; ++i)
        __asm__ volatile("" : "+r"(a[step][i]) : : "memory"); /* computes it before the products begin */
    group_begin(c, count / 4);
    UNROLL
    for (int step = 0; step < STEPS; ++step)
        group_multiply(c, a[step], by_rows ? b + (ulong)(step * ROWS_UNITS) : step_of_rows(b, step, SIZE), count, type,
                       by_rows, step > 0);
    group_end(c, count / 4);
    product_write(tid, c, column, count, product);
}

/* The same for A B^T with A in local memory. */
FUNCTION void product_of_memory(int tid, __local const uint *left, __local const uint *right, int column,
                                const int count, const int type, __global float *product)
{
    const ulong a = part_descriptor(left), b = part_descriptor(right) + (ulong)(column / 16 * ROWS_UNITS);
    real c[COLUMNS][BLOCK_ROWS];
    columns_clear(c);
    group_begin(c, count / 4);
    UNROLL
    for (int step = 0; step < STEPS; ++step)
        group_multiply_rows(c, step_of_rows(a, step, SIZE), step_of_rows(b, step, SIZE), count, type, step > 0);
    group_end(c, count / 4);
    product_write(tid, c, column, count, product);
}

FUNCTION void products_write(int tid, __local const uint *left, __local const uint *right, const int type,
                             __global float *products)
{
    uint a[STEPS][4];
    left_load(tid, a, left);
    product_of_registers(tid, a, right, 0, SIZE, type, false, products);
    product_of_registers(tid, a, right, 0, SIZE, type, true, products + 2 * SIZE * SIZE);
    product_of_registers(tid, a, right, 0, SIZE, type, true, products + 3 * SIZE * SIZE);
    product_of_registers(tid, a, right, 0, NARROW, type, true, products + 3 * SIZE * SIZE);
    product_of_memory(tid, left, right, 0, SIZE, type, products + 4 * SIZE * SIZE);
    UNROLL
    for (int column = 0; column < SIZE; column += NARROW) {
        product_of_registers(tid, a, right, column, NARROW, type, false, products + SIZE * SIZE);
        product_of_memory(tid, left, right, column, NARROW, type, products + 5 * SIZE * SIZE);
    }
}

/* products: of f16, then of bf16. The memory of each type's products holds its operands before. */
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void group_probe(__global float *products)
{
    __local uint4 memory[2 * WORDS / 4] __attribute__((aligned(PART_ALIGNMENT)));
    __local uint *const tiles = (__local uint *)memory;
    const int tid = get_local_id(0);
    const int types[] = {TYPE_F16, TYPE_BF16};
    UNROLL
    for (int n = 0; n < 2; ++n) {
        __global float *const own = products + n * FORMS * SIZE * SIZE;
        __global uint *const words = (__global uint *)own;
        operands_write(tid, words, types[n]);
        barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
        tile_copy(tid, tiles, words);
        tile_copy(tid, tiles + WORDS, words + WORDS);
        copies_wait();
        copies_show();
        barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
        products_write(tid, tiles, tiles + WORDS, types[n], own);
    }
}
