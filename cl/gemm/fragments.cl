/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C = alpha op(A) op(B) + beta C by matrix units. A work-group makes a block of C, from tiles of A and B in local
 * memory. Sums are f32.
 *
 * SPLIT_DEPTH: K is divided into ranges, each with its own work-groups. Their sums are f32 matrices in the workspace
 * (alpha is 1 and beta 0; strides are of these matrices). gemm/combine.cl adds them up.
 */
#include "gemm/product_args.clh"

#define ARGUMENTS mgk_gemm_product_args
#define BUFFERS   MGK_GEMM_PRODUCT_BUFFERS
#include "base/buffers.clh"
#include "engine/files.clh"

#include ENGINE_FILE(gemm.clh)

/* Rows of blocks in a band. Blocks are numbered band by band, within a band column by column, so that work-groups that
 * run together share rows of A and columns of B. */
#define BAND 16

/* First row and column of block number `at` of a matrix. */
FUNCTION int2 block_start(const mgk_gemm_product_args *a, int at)
{
    const int blocks = BAND * max(a->column_groups, 1), band = at / blocks;
    const int rows = min(BAND, max(a->row_groups - band * BAND, 1));
    return (int2)((band * BAND + at % blocks % rows) * BLOCK_M, at % blocks / rows * BLOCK_N);
}

/* Two neighbouring elements of C. */
#if SPLIT_DEPTH || TYPE_Q == TYPE_F32
typedef float2 pair;

FUNCTION float2 pair_load(const pair x)
{
    return x;
}

FUNCTION pair pair_make(float2 x)
{
    return x;
}
#else
typedef uint pair;

FUNCTION float2 pair_load(const pair x)
{
    return pair_values(x, TYPE_Q);
}

FUNCTION pair pair_make(float2 x)
{
    return pair_of(x.x, x.y, TYPE_Q);
}
#endif

/* Columns from one sum of a work-item to the next of a pair; only neighbours are stored together. */
#define PAIR_STEP SUM_COLUMN(0, 1)

FUNCTION void pair_put(const mgk_gemm_product_args *a, __global PRODUCT_ELEMENT *c, float2 sum, int column,
                       bool aligned)
{
    if (aligned && column + 1 < a->n) {
        __global pair *const to = (__global pair *)(c + column);
        const float2 before = a->beta == 0.0f ? (float2)(0.0f) : a->beta * pair_load(*to);
        *to = pair_make(fma((float2)(a->alpha), sum, before));
        return;
    }
    if (column < a->n)
        store1(c, column, fma(a->alpha, sum.x, a->beta == 0.0f ? 0.0f : a->beta * load1(c, column)));
    const int next = column + PAIR_STEP;
    if (next < a->n)
        store1(c, next, fma(a->alpha, sum.y, a->beta == 0.0f ? 0.0f : a->beta * load1(c, next)));
}

/* Sums of the work-item's row m and columns 2 j and 2 j + 1. */
FUNCTION float2 pair_of_sums(const block *b, int m, int j)
{
    const int v = m % LANE_ROWS;
    return (float2)(b->sum[m / LANE_ROWS][2 * j][v], b->sum[m / LANE_ROWS][2 * j + 1][v]);
}

/* Stores a whole block of aligned pairs, without comparisons, in place of C. */
FUNCTION void whole_block_put(const mgk_gemm_product_args *a, const block *b, __global PRODUCT_ELEMENT *c, int2 start)
{
    SUMS_FOR(m, LANE_ROWS * ROW_TILES) {
        __global PRODUCT_ELEMENT *const row =
            c + (start.x + block_row(b, m / LANE_ROWS, m % LANE_ROWS)) * a->ldc + start.y + block_column(b, 0);
        SUMS_FOR(j, SUM_COLUMNS / 2)
            *(__global pair *)(row + SUM_COLUMN(0, 2 * j)) = pair_make((float2)(a->alpha) * pair_of_sums(b, m, j));
    }
}

FUNCTION void block_put(const mgk_gemm_product_args *a, const block *b, __global PRODUCT_ELEMENT *c, int2 start)
{
    const bool aligned = PAIR_STEP == 1 && ((size_t)c % sizeof(pair) | (size_t)a->ldc % 2) == 0;
    /* where registers are short, a second text would cost more than it saves */
    if (TF32_PRODUCTS < 2 && aligned && a->beta == 0.0f && start.x + BLOCK_M <= a->m && start.y + BLOCK_N <= a->n) {
        whole_block_put(a, b, c, start);
        return;
    }
    SUMS_FOR(m, LANE_ROWS * ROW_TILES) {
        const int row = start.x + block_row(b, m / LANE_ROWS, m % LANE_ROWS);
        SUMS_FOR(j, SUM_COLUMNS / 2)
            if (row < a->m)
                pair_put(a, c + row * a->ldc, pair_of_sums(b, m, j), start.y + block_column(b, 2 * j), aligned);
    }
}

__kernel KERNEL_ATTRIBUTES void gemm_fragments(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    BLOCK_DECLARE(b)
    const int blocks = max(a.row_groups * a.column_groups, 1); /* 0: the plan's first run */
    const long result = get_group_id(0) / (uint)blocks;
    const int2 start = block_start(&a, (int)(get_group_id(0) % (uint)blocks));
#if SPLIT_DEPTH
    const int ranges = max((a.k + a.range - 1) / max(a.range, 1), 1), first = (int)(result % ranges) * a.range;
    const int depth = min(a.k - first, a.range);
    const long matrix = result / ranges;
#else
    const int first = 0, depth = a.k;
    const long matrix = result;
#endif
    const tiles left = {(__global const number_bits *)a_matrix + matrix * a.stride_a + first * a.step_a,
                        TRANSPOSE_A ? a.step_a : a.row_a, a.m, depth};
    const tiles right = {(__global const number_bits *)b_matrix + matrix * a.stride_b +
                             (TRANSPOSE_B ? first : first * a.ldb),
                         a.ldb, a.n, depth};
    block_multiply(&b, &left, start.x, &right, start.y);
    block_put(&a, &b, c_matrix + result * a.stride_c, start);
}
