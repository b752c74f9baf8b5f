/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C = alpha A B + beta C, for few rows of C: memory is the limit, so a work-group reads its part of B once for all of
 * its rows. Right for any number of rows. Sums are f32.
 */
#include "gemm/product_args.clh"

#define ARGUMENTS mgk_gemm_product_args
#define BUFFERS   MGK_GEMM_PRODUCT_BUFFERS
#include "engine/rows.clh"

#define ROWS 4 /* rows of a block; a single row is a block alone */

/* A work-group's part: its matrices, and the rows and columns of C. */
typedef struct part {
    __global const storage *a, *b;
    __global storage *c;
    int row, end_row, column, end_column;
} part;

FUNCTION part part_of(const mgk_gemm_product_args *a, long group, __global const storage *left,
                      __global const storage *right, __global storage *c)
{
    const long groups = max((long)a->row_groups * a->column_groups, 1L); /* 0: the plan's first run */
    const long matrix = group / groups, at = group % groups;
    const int row = (int)(at / max(a->column_groups, 1)) * a->rows;
    const int column = (int)(at % max(a->column_groups, 1)) * a->columns;
    return (part){left + matrix * a->stride_a,   right + matrix * a->stride_b,
                  c + matrix * a->stride_c,      row,
                  min(row + a->rows, a->m),      column,
                  min(column + a->columns, a->n)};
}

#define BEGIN_PART                                                                                                     \
    BEGIN_BUFFERS                                                                                                      \
    const part p = part_of(&a, (long)GROUP_ID, a_matrix, b_matrix, c_matrix);

/* Row `row + v` of A; beyond the part, its last row. */
FUNCTION __global const storage *left_row(const mgk_gemm_product_args *a, const part *p, int row, int v)
{
    return p->a + min(row + v, p->end_row - 1) * a->row_a;
}

/* LANES elements of a row of A from l on, zero from k on. */
FUNCTION real left_piece(const mgk_gemm_product_args *a, __global const storage *row, int l)
{
    if (a->step_a == 1)
        return load_piece(row, l, a->k);
    float t[LANES];
    for (int i = 0; i < LANES; ++i)
        t[i] = l + i < a->k ? load1(row, (l + i) * a->step_a) : 0.0f;
    return vload_real(0, t);
}

FUNCTION void put_piece(const mgk_gemm_product_args *a, const part *p, int row, int column, real sum)
{
    __global storage *const c = p->c + row * a->ldc;
    const real before = a->beta == 0.0f ? (real)(0.0f) : a->beta * load_piece(c, column, p->end_column);
    store_piece(c, column, p->end_column, fma((real)(a->alpha), sum, before));
}

FUNCTION void put1(const mgk_gemm_product_args *a, const part *p, int row, int column, float sum)
{
    const long at = row * a->ldc + column;
    store1(p->c, at, fma(a->alpha, sum, a->beta == 0.0f ? 0.0f : a->beta * load1(p->c, at)));
}

#if GROUP_SIZE == 1
/* ---- a work-item makes all: vectors along the contiguous axis of B ---- */

#define COLUMNS (LANES / ROWS) /* columns of a block: a lane for each of its sums */
#define CHAINS  4              /* chains of sums of a single row */

/* A row of A times LANES rows of B from `column` on, one after the other: memory is fastest in order. */
FUNCTION void single_row(const mgk_gemm_product_args *a, const part *p, int row, int column)
{
    __global const storage *const left = left_row(a, p, row, 0);
    const int contiguous = a->step_a == 1 ? a->k : 0;
    real sums[LANES];
    for (int u = 0; u < LANES; ++u) {
        __global const storage *const right = p->b + min(column + u, p->end_column - 1) * a->ldb;
        real s[CHAINS];
        UNROLL
        for (int i = 0; i < CHAINS; ++i)
            s[i] = (real)(0.0f);
        int l = 0;
        for (; l + CHAINS * LANES <= contiguous; l += CHAINS * LANES) {
            UNROLL
            for (int i = 0; i < CHAINS; ++i)
                s[i] = fma(load_lanes(left + l + i * LANES), load_lanes(right + l + i * LANES), s[i]);
        }
        for (; l < a->k; l += LANES)
            s[0] = fma(left_piece(a, left, l), load_piece(right, l, a->k), s[0]);
        sums[u] = (s[0] + s[1]) + (s[2] + s[3]);
    }
    put_piece(a, p, row, column, lane_sums(sums, LANES));
}

/* Takes LANES elements from l on of a block's rows of A and B; sums[v * COLUMNS + u] is of row v and column u. */
FUNCTION void block_step(const mgk_gemm_product_args *a, __global const storage *const *left,
                         __global const storage *const *right, int l, const bool whole, real *sums)
{
    real x[ROWS];
    UNROLL
    for (int v = 0; v < ROWS; ++v)
        x[v] = left_piece(a, left[v], l);
    UNROLL
    for (int u = 0; u < COLUMNS; ++u) {
        const real y = whole ? load_lanes(right[u] + l) : load_piece(right[u], l, a->k);
        UNROLL
        for (int v = 0; v < ROWS; ++v)
            sums[v * COLUMNS + u] = fma(x[v], y, sums[v * COLUMNS + u]);
    }
}

/* COLUMNS columns from `column` on. */
FUNCTION void row_block(const mgk_gemm_product_args *a, const part *p, int row, int column)
{
    const int whole = a->k / LANES * LANES;
    __global const storage *left[ROWS], *right[COLUMNS];
    real sums[LANES];
    UNROLL
    for (int n = 0; n < LANES; ++n)
        sums[n] = (real)(0.0f);
    UNROLL
    for (int v = 0; v < ROWS; ++v)
        left[v] = left_row(a, p, row, v);
    UNROLL
    for (int u = 0; u < COLUMNS; ++u)
        right[u] = p->b + min(column + u, p->end_column - 1) * a->ldb;
    for (int l = 0; l < whole; l += LANES)
        block_step(a, left, right, l, true, sums);
    if (whole < a->k)
        block_step(a, left, right, whole, false, sums);
    float t[LANES];
    vstore_real(lane_sums(sums, LANES), 0, t);
    for (int v = 0; v < min(ROWS, p->end_row - row); ++v)
        for (int u = 0; u < min(COLUMNS, p->end_column - column); ++u)
            put1(a, p, row + v, column + u, t[v * COLUMNS + u]);
}

/* B is stored [n,k]. */
KERNEL(gemm_product_rows)
{
    BEGIN_PART
    if (p.end_row - p.row == 1) {
        for (int column = p.column; column < p.end_column; column += LANES)
            single_row(&a, &p, p.row, column);
        return;
    }
    for (int column = p.column; column < p.end_column; column += COLUMNS)
        for (int row = p.row; row < p.end_row; row += ROWS)
            row_block(&a, &p, row, column);
}

#define AHEAD 8 /* rows of B between a prefetch and its use */

FUNCTION void expect_line(__global const storage *p)
{
#if WIDE_VECTORS
    __asm__ volatile("prefetcht0 %0" : : "m"(*p));
#endif
}

/* `vectors` vectors of columns from `column` on. `whole`: they are full. */
FUNCTION void column_block(const mgk_gemm_product_args *a, const part *p, int row, int column, const int rows,
                           const int vectors, const bool whole)
{
    __global const storage *left[ROWS], *right = p->b;
    real sums[LANES];
    UNROLL
    for (int n = 0; n < rows * vectors; ++n)
        sums[n] = (real)(0.0f);
    UNROLL
    for (int v = 0; v < rows; ++v)
        left[v] = left_row(a, p, row, v);
    for (int l = 0; l < a->k; ++l, right += a->ldb) {
        float x[ROWS];
        UNROLL
        for (int v = 0; v < rows; ++v)
            x[v] = load1(left[v], l * a->step_a);
        UNROLL
        for (int u = 0; u < vectors; ++u) {
            const int at = column + u * LANES;
            const real y = whole ? load_lanes(right + at) : load_piece(right, at, p->end_column);
            expect_line(right + AHEAD * a->ldb + at);
            UNROLL
            for (int v = 0; v < rows; ++v)
                sums[v * vectors + u] = fma((real)(x[v]), y, sums[v * vectors + u]);
        }
    }
    for (int v = 0; v < min(rows, p->end_row - row); ++v)
        for (int u = 0; u < vectors; ++u)
            put_piece(a, p, row + v, column + u * LANES, sums[v * vectors + u]);
}

FUNCTION void column_strip(const mgk_gemm_product_args *a, const part *p, int row, const int rows, const int vectors)
{
    int column = p->column;
    for (; column + vectors * LANES <= p->end_column; column += vectors * LANES)
        column_block(a, p, row, column, rows, vectors, true);
    for (; column < p->end_column; column += LANES)
        column_block(a, p, row, column, rows, 1, false);
}

/* B is stored [k,n]. */
KERNEL(gemm_product_columns)
{
    BEGIN_PART
    if (p.end_row - p.row == 1) {
        column_strip(&a, &p, p.row, 1, LANES / 2);
        return;
    }
    for (int row = p.row; row < p.end_row; row += ROWS)
        column_strip(&a, &p, row, ROWS, LANES / ROWS);
}

#else
/* ---- a work-group's items share the sums over k ---- */

/* B is stored [n,k]: a team makes a column. */
KERNEL(gemm_product_rows)
{
    BEGIN_PART
    SHARED_FLOATS(shared, GROUP_SIZE);
    for (int first = p.column; first < p.end_column; first += GROUP_SIZE / TEAM) {
        const int column = first + ITEM / TEAM;
        const int k = column < p.end_column ? a.k : 0;
        __global const storage *const right = p.b + column * a.ldb;
        for (int row = p.row; row < p.end_row; row += ROWS) {
            real sums[ROWS] = {(real)(0.0f), (real)(0.0f), (real)(0.0f), (real)(0.0f)};
            VECTORS_FOR(l, ITEM % TEAM, TEAM, k) {
                const real y = load_piece(right, l, k);
                UNROLL
                for (int v = 0; v < ROWS; ++v)
                    sums[v] = fma(left_piece(&a, left_row(&a, &p, row, v), l), y, sums[v]);
            }
            UNROLL
            for (int v = 0; v < ROWS; ++v) {
                const float sum = team_sum(sums[v], shared, TEAM);
                if (ITEM % TEAM == 0 && column < p.end_column && row + v < p.end_row)
                    put1(&a, &p, row + v, column, sum);
                KEEP_APART;
            }
        }
    }
}

/* B is stored [k,n]: TEAM vectors of columns, and the sums over k shared by as many items as there are teams. */
KERNEL(gemm_product_columns)
{
    BEGIN_PART
    __local real shared[GROUP_SIZE];
    const int slice = ITEM / TEAM, slices = GROUP_SIZE / TEAM;
    for (int first = p.column; first < p.end_column; first += TEAM * LANES) {
        const int column = first + ITEM % TEAM * LANES;
        const int k = column < p.end_column ? a.k : 0;
        for (int row = p.row; row < p.end_row; row += ROWS) {
            real sums[ROWS] = {(real)(0.0f), (real)(0.0f), (real)(0.0f), (real)(0.0f)};
            for (int l = slice; l < k; l += slices) {
                const real y = load_piece(p.b + l * a.ldb, column, p.end_column);
                UNROLL
                for (int v = 0; v < ROWS; ++v)
                    sums[v] = fma((real)(load1(left_row(&a, &p, row, v), l * a.step_a)), y, sums[v]);
            }
            UNROLL
            for (int v = 0; v < ROWS; ++v) {
                shared[ITEM] = sums[v];
                LOCAL_BARRIER();
                real sum = (real)(0.0f);
                for (int n = 0; n < slices; ++n)
                    sum += shared[n * TEAM + ITEM % TEAM];
                LOCAL_BARRIER();
                if (slice == 0 && column < p.end_column && row + v < p.end_row)
                    put_piece(&a, &p, row + v, column, sum);
                KEEP_APART;
            }
        }
    }
}
#endif
