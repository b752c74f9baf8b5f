/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that a direct unit (units.clh) multiplies rightly, by the engine's own products: A B^T and A B of matrices of
 * 32 rows and columns, for each type. Small whole numbers make all sums exact. A second and a third round have them in
 * A, then in B, times a number so small that f16 holds it as a subnormal one.
 */
#include "base/common.clh"
#include "engine/files.clh"

#include ENGINE_FILE(fragments.clh)

#define SIZE          32
#define ROW_TILES     (SIZE / UNIT_ROWS)
#define BLOCK_ROWS    (LANE_ROWS * ROW_TILES)
#define SUB_TILE_KEYS SIZE
#define KEY_STEPS     (SIZE / UNIT_DEPTH)
#define COLUMNS       (SIZE / ROW_LANES)
#define THREADS       WARP_SIZE
#define TILE_WORDS    (SIZE * TILE_ROW_WORDS(SIZE))
#define ROUNDS        3

#include "engine/probe_numbers.clh"
#include "engine/shuffle.clh"

typedef float real;

typedef struct engine {
    int tid;
} engine;

FUNCTION int lane_of(const engine *e)
{
    return e->tid;
}

FUNCTION int warp_row(const engine *e)
{
    return 0;
}

#include ENGINE_FILE(products.clh)

FUNCTION void operands_write(const engine *e, __local uint *left, __local uint *right, float left_scale,
                             float right_scale, const int type)
{
    UNROLL_BY(1)
    for (int i = e->tid; i < SIZE * SIZE / 2; i += THREADS) {
        const int row = 2 * i / SIZE, column = 2 * i % SIZE, place = row * TILE_ROW_WORDS(SIZE) + column / 2;
        left[place] = pair_of(left_scale * (float)left_number(row, column),
                              left_scale * (float)left_number(row, column + 1), type);
        right[place] = pair_of(right_scale * (float)right_number(row, column),
                               right_scale * (float)right_number(row, column + 1), type);
    }
}

FUNCTION void product_clear(real (*c)[BLOCK_ROWS])
{
    UNROLL
    for (int u = 0; u < COLUMNS; ++u)
        UNROLL
    for (int v = 0; v < BLOCK_ROWS; ++v)
        c[u][v] = 0.0f;
}

FUNCTION void product_write(const engine *e, real (*c)[BLOCK_ROWS], __global float *product)
{
    UNROLL
    for (int u = 0; u < COLUMNS; ++u)
        UNROLL
    for (int v = 0; v < BLOCK_ROWS; ++v) {
        const int row = v / LANE_ROWS * UNIT_ROWS + SUM_ROW(lane_of(e), v % LANE_ROWS);
        product[row * SIZE + SUM_COLUMN(lane_of(e), u)] = c[u][v];
    }
}

FUNCTION void products_write(const engine *e, __local const uint *left, __local const uint *right, const int type,
                             __global float *products)
{
    uint words[ROW_TILES][KEY_STEPS][STEP_WORDS];
    real c[COLUMNS][BLOCK_ROWS];
    const rows_fragments a = {.words = &words[0][0][0], .steps = KEY_STEPS, .type = type, .chained = true};
    FRAGMENTS_FOR(m, ROW_TILES)
        FRAGMENTS_FOR(step, KEY_STEPS)
            FRAGMENTS_FOR(i, STEP_WORDS) {
                const int row = UNIT_ROWS * m + WORD_ROW(lane_of(e), i);
                const int d = UNIT_DEPTH * step + WORD_DEPTH(lane_of(e), i);
                words[m][step][i] = left[row * TILE_ROW_WORDS(SIZE) + d / 2];
            }
    product_clear(c);
    fragments_product(e, &a, right, SIZE, type, c);
    product_write(e, c, products);
    product_clear(c);
    fragments_accumulate(e, &a, right, SIZE, c);
    product_write(e, c, products + SIZE * SIZE);
}

FUNCTION void round_write(const engine *e, __local uint *tiles, int round, const int type, float small,
                          __global float *products)
{
    LOCAL_BARRIER(); /* the products of the round before are done */
    operands_write(e, tiles, tiles + TILE_WORDS, round == 1 ? small : 1.0f, round == 2 ? small : 1.0f, type);
    LOCAL_BARRIER();
    products_write(e, tiles, tiles + TILE_WORDS, type, products + round * 2 * SIZE * SIZE);
}

/* products: of each round A B^T and A B, of f16, then of bf16. */
__kernel KERNEL_ATTRIBUTES void direct_probe(__global float *products)
{
    __local uint4 memory[2 * TILE_WORDS / 4];
    __local uint *const tiles = (__local uint *)memory;
    const engine e = {(int)get_local_id(0)};
    UNROLL_BY(1)
    for (int round = 0; round < ROUNDS; ++round) {
        round_write(&e, tiles, round, TYPE_F16, SMALL_F16, products);
        round_write(&e, tiles, round, TYPE_BF16, SMALL_BF16, products + ROUNDS * 2 * SIZE * SIZE);
    }
}
