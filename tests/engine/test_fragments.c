/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix engine's fragments, compiled as C: the layout that NVIDIA documents for mma.sync.m16n8k16 with 16-bit
 * factors ("Parallel Thread Execution ISA", matrix fragments), and the banks of local memory that tiles meet.
 */
#include "harness/harness.h"

#define FUNCTION      static inline
#define MATRIX_UNIT   0
#define EMULATED      1
#define UNIT          MATRIX_MMA
#define TF32_PRODUCTS 0
#define BF16_SLICES   0
#include "engine/units.clh"

#include "engine/matrix/memory.clh"

#include "engine/matrix/layout.clh"
#include "engine/matrix/units/mma.clh"

enum { WARP = 32, ROWS = 16, COLUMNS = 8, DEPTH = 16 };

/* ---- the documented layout: elements of a thread, with groupID = lane / 4, threadID_in_group = lane % 4 ---------- */

typedef struct place {
    int row, column;
} place;

static place documented_a(int lane, int i)
{
    const int group = lane >> 2, thread = lane & 3;
    const bool upper = (0 <= i && i < 2) || (4 <= i && i < 6);
    return (place){upper ? group : group + 8, thread * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}

static place documented_b(int lane, int i)
{
    const int group = lane >> 2, thread = lane & 3;
    return (place){thread * 2 + (i & 1) + (i < 2 ? 0 : 8), group};
}

static place documented_c(int lane, int i)
{
    const int group = lane >> 2, thread = lane & 3;
    return (place){i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}

TH_TEST(fragments_are_as_documented)
{
    (void)session;
    int held_a[ROWS][DEPTH] = {{0}}, held_b[DEPTH][COLUMNS] = {{0}}, held_c[ROWS][COLUMNS] = {{0}};
    for (int lane = 0; lane < WARP; lane++) {
        for (int i = 0; i < 8; i++) { /* number i % 2 of word i / 2 */
            const place a = documented_a(lane, i);
            assert_int_equal(fragment_row(lane, i / 2), a.row);
            assert_int_equal(fragment_depth(lane, i / 4) + i % 2, a.column);
            held_a[a.row][a.column]++;
        }
        for (int i = 0; i < 4; i++) {
            const place b = documented_b(lane, i), c = documented_c(lane, i);
            assert_int_equal(fragment_depth(lane, i / 2) + i % 2, b.row);
            assert_int_equal(lane / 4, b.column);
            assert_int_equal(fragment_row(lane, i / 2), c.row);
            assert_int_equal(fragment_depth(lane, 0) + i % 2, c.column);
            held_b[b.row][b.column]++;
            held_c[c.row][c.column]++;
        }
    }
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < DEPTH; column++) {
            assert_int_equal(held_a[row][column], 1);
            assert_int_equal(held_b[column][row % COLUMNS], 1);
            assert_int_equal(held_c[row][column % COLUMNS], 1);
        }
}

/* ---- banks ------------------------------------------------------------------------------------------------------ */

enum { BANKS = 32, TOGETHER = 8, PIECE_WORDS = 4 };

/* Passes through the banks that eight accesses of 16 bytes take together, each from a word on. */
static int passes(const int words[TOGETHER])
{
    int most = 0, count[BANKS] = {0};
    for (int n = 0; n < TOGETHER; n++)
        for (int i = 0; i < PIECE_WORDS; i++) {
            const int bank = (words[n] + i) % BANKS;
            count[bank]++;
            most = count[bank] > most ? count[bank] : most;
        }
    return most;
}

/* ldmatrix reads eight rows' pieces at a time. */
TH_TEST(loads_of_fragments_have_no_conflicts)
{
    (void)session;
    for (int size = 16; size <= 256; size += 16)
        for (int row = 0; row < ROWS; row++)
            for (int piece = 0; piece < size / TILE_PIECE; piece++) {
                int words[TOGETHER];
                for (int n = 0; n < TOGETHER; n++) {
                    words[n] = (row + n) * TILE_ROW_WORDS(size) + piece * PIECE_WORDS;
                    assert_int_equal(words[n] % PIECE_WORDS, 0); /* aligned */
                }
                assert_int_equal(passes(words), 1);
            }
}

/* Work-items copy pieces in the order of their rows. */
TH_TEST(copies_have_no_conflicts_or_few)
{
    (void)session;
    for (int size = 16; size <= 256; size += 16)
        for (int first = 0; first < ROWS * size / TILE_PIECE; first += TOGETHER) {
            int words[TOGETHER];
            for (int n = 0; n < TOGETHER; n++) {
                const int row = (first + n) / (size / TILE_PIECE), piece = (first + n) % (size / TILE_PIECE);
                words[n] = row * TILE_ROW_WORDS(size) + piece * PIECE_WORDS;
            }
            assert_in_range(passes(words), 1, size % (8 * TILE_PIECE) == 0 ? 1 : 2);
        }
}

/* ---- wgmma's tiles ---------------------------------------------------------------------------------------------- */

/* "Swizzle<3, 4, 3>", as CUTLASS calls the mode of 128 bytes: bits 4 .. 6 of a byte's address are combined with bits
 * 7 .. 9. Rows of a part of 64 numbers are 128 bytes apart. */
static int documented_word(int row, int d, int rows)
{
    const int byte = (d / 64 * rows + row) * 128 + d % 64 * 2;
    return (byte ^ ((byte >> 7 & 7) << 4)) / 4;
}

TH_TEST(tiles_of_groups_are_as_documented)
{
    (void)session;
    for (int size = 16; size <= 256; size += 16)
        for (int rows = 16; rows <= 128; rows *= 2)
            for (int row = 0; row < rows; row++)
                for (int d = 0; d < size; d += TILE_PIECE) {
                    assert_int_equal(swizzled_place(row, d, rows), documented_word(row, d, rows));
                    assert_in_range(swizzled_place(row, d, rows), 0,
                                    rows * PARTS_OF(size) * PART_ROW_WORDS - PIECE_WORDS);
                }
}

/* The unit reads a piece of eight rows at a time; work-items copy the pieces of a row. */
TH_TEST(tiles_of_groups_have_no_conflicts)
{
    (void)session;
    enum { TILE_ROWS = 16 };
    for (int row = 0; row < TILE_ROWS; row += TOGETHER)
        for (int piece = 0; piece < PART_PIECES; piece++) {
            int read[TOGETHER], copied[TOGETHER];
            for (int n = 0; n < TOGETHER; n++) {
                read[n] = swizzled_place(row + n, piece * TILE_PIECE, TILE_ROWS);
                copied[n] = swizzled_place(row + piece, n * TILE_PIECE, TILE_ROWS);
            }
            assert_int_equal(passes(read), 1);
            assert_int_equal(passes(copied), 1);
        }
}
