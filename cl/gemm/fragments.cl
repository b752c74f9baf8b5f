/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C = alpha op(A) op(B) + beta C by matrix units, of 16-bit numbers. A work-group makes a block of C, from tiles of A
 * and B in local memory. Sums are f32.
 */
#include "gemm/product_args.clh"

#define ARGUMENTS mgk_gemm_product_args
#define BUFFERS   MGK_GEMM_PRODUCT_BUFFERS
#include "base/buffers.clh"
#include "engine/files.clh"

#include ENGINE_FILE(gemm.clh)

/* Work-groups that run together should share rows of A and columns of B. Blocks are numbered in bands of so many rows
 * of blocks, within a band column by column. */
#define BAND 16

/* The first row and column of block number `at` of a matrix. */
FUNCTION int2 block_start(const mgk_gemm_product_args *a, int at)
{
    const int blocks = BAND * max(a->column_groups, 1), band = at / blocks;
    const int rows = min(BAND, max(a->row_groups - band * BAND, 1));
    return (int2)((band * BAND + at % blocks % rows) * BLOCK_M, at % blocks / rows * BLOCK_N);
}

FUNCTION void pair_put(const mgk_gemm_product_args *a, __global storage *c, float2 sum, int column, bool aligned)
{
    if (aligned && column + 1 < a->n) {
        __global uint *const pair = (__global uint *)(c + column);
        const float2 before = a->beta == 0.0f ? (float2)(0.0f) : a->beta * pair_values(*pair, TYPE_Q);
        const float2 x = fma((float2)(a->alpha), sum, before);
        *pair = pair_of(x.x, x.y, TYPE_Q);
        return;
    }
    if (column < a->n)
        store1(c, column, fma(a->alpha, sum.x, a->beta == 0.0f ? 0.0f : a->beta * load1(c, column)));
    if (column + 1 < a->n)
        store1(c, column + 1, fma(a->alpha, sum.y, a->beta == 0.0f ? 0.0f : a->beta * load1(c, column + 1)));
}

FUNCTION void block_put(const mgk_gemm_product_args *a, const block *b, __global storage *c, int2 start)
{
    const bool aligned = ((size_t)c % (2 * sizeof(storage)) | (size_t)a->ldc % 2) == 0;
    SUMS_FOR(m, 2 * ROW_TILES)
    {
        const int row = start.x + block_row(b, m / 2, m % 2);
        SUMS_FOR(j, COLUMN_TILES)
        {
            const float2 sum = (float2)(b->sum[m / 2][2 * j][m % 2], b->sum[m / 2][2 * j + 1][m % 2]);
            if (row < a->m)
                pair_put(a, c + row * a->ldc, sum, start.y + block_column(b, j), aligned);
        }
    }
}

__kernel KERNEL_ATTRIBUTES void gemm_fragments(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    BLOCK_DECLARE(b)
    const int blocks = max(a.row_groups * a.column_groups, 1); /* 0: the plan's first run */
    const long matrix = get_group_id(0) / (uint)blocks;
    const int2 start = block_start(&a, (int)(get_group_id(0) % (uint)blocks));
    const tiles left = {(__global const ushort *)a_matrix + matrix * a.stride_a, TRANSPOSE_A ? a.step_a : a.row_a, a.m,
                        a.k};
    const tiles right = {(__global const ushort *)b_matrix + matrix * a.stride_b, a.ldb, a.n, a.k};
    block_multiply(&b, &left, start.x, &right, start.y);
    block_put(&a, &b, c_matrix + matrix * a.stride_c, start);
}
