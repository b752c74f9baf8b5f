/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layouts that AMD's and Intel's units state (cl/engine/matrix/units/), against the vendors' documents. For each
 * unit a product is computed as its document says, of operands that lanes load as the unit's file says, and the sums
 * are where the file says; then a product of these sums, packed as the engine does.
 *
 * AMD: amd_matrix_instruction_calculator, "matrix element to register mapping" (V_MFMA_F32_32X32X8BF16_1K of CDNA 2,
 * V_WMMA_F32_16X16X16_F16 of RDNA 3 and 4, wave32). Intel: cl_intel_subgroup_matrix_multiply_accumulate, whose sample
 * states the places of A, B and the accumulator.
 */
#include "harness/harness.h"

#include "device/device.h"
#include "engine/engine.h"
#include "engine/units.clh"

#include <stdio.h>

#define FUNCTION static inline
#define EMULATED 1

enum { MOST_LANES = 64, MOST_SIZE = 32, MOST_NUMBERS = 32, MOST_STEPS = 4 };

typedef struct sizes_of_unit {
    int lanes, rows, columns, depth, row_lanes, words, held, most_tiles, widest, most_sums, most_of_several;
} sizes_of_unit;

#define SIZES(unit, name, maker, models, ...) [unit] = {__VA_ARGS__},
static const sizes_of_unit unit_sizes[] = {MATRIX_ENGINE_UNITS(SIZES)};

/* What a unit's file states; cl/engine/matrix/unit.clh. */
typedef struct unit_layout {
    const sizes_of_unit *sizes;
    int first_lane, neighbours;
    bool alternate;
    int (*sum_row)(int lane, int v), (*sum_column)(int lane, int u);
    int (*word_row)(int lane, int i), (*word_depth)(int lane, int i);
    int (*tile_row)(int lane, int n), (*tile_depth)(int lane, int n);
    int (*packed_column)(int i);
    int (*tile_numbers)(void);
} unit_layout;

#define UNIT_COLUMNS unit_sizes[UNIT].columns
#define UNIT_DEPTH   unit_sizes[UNIT].depth
#define WARP_SIZE    unit_sizes[UNIT].lanes

#define UNIT      MATRIX_MFMA
#define UNIT_NAME mfma
#include "unit_layout.h"

#define UNIT      MATRIX_WMMA
#define UNIT_NAME wmma
#include "unit_layout.h"

#define UNIT      MATRIX_WMMA_12
#define UNIT_NAME wmma12
#include "unit_layout.h"

#define UNIT      MATRIX_DPAS
#define UNIT_NAME dpas
#include "unit_layout.h"

#define UNIT      MATRIX_DPAS_8
#define UNIT_NAME dpas8
#include "unit_layout.h"

/* ---- the documented instructions --------------------------------------------------------------------------------- */

/* Where an element is: lane, and number of the lane's 16-bit numbers (A, B) or floats (D). */
typedef struct place {
    int lane, number;
} place;

typedef struct document {
    const char *name;
    const unit_layout *unit;
    int m, n, k; /* D of m rows and n columns, sums of k products */
    place (*a)(int i, int k), (*b)(int k, int j), (*d)(int i, int j);
    int copies; /* lanes that have each element of A and B, `n` lanes apart */
} document;

static place mfma_a(int i, int k)
{
    return (place){32 * (k / 4) + i, 2 * (k / 2 % 2) + k % 2};
}

static place mfma_b(int k, int j)
{
    return (place){32 * (k / 4) + j, 2 * (k / 2 % 2) + k % 2};
}

static place mfma_d(int i, int j)
{
    return (place){32 * (i / 4) % 64 + j, 4 * (i / 8) + i % 4};
}

static place wmma_a(int i, int k)
{
    return (place){i, 2 * (k / 2) + k % 2};
}

static place wmma_b(int k, int j)
{
    return (place){j, 2 * (k / 2) + k % 2};
}

static place wmma_d(int i, int j)
{
    return (place){16 * i % 32 + j, i / 2};
}

static place wmma12_a(int i, int k)
{
    return (place){16 * (k / 4 % 2) + i, 2 * (2 * (k / 8) + k / 2 % 2) + k % 2};
}

static place wmma12_b(int k, int j)
{
    return (place){16 * (k / 4 % 2) + j, 2 * (2 * (k / 8) + k / 2 % 2) + k % 2};
}

static place wmma12_d(int i, int j)
{
    return (place){16 * (i / 8) + j, i % 8};
}

/* Two instructions of eight rows. */
static place dpas_a(int i, int k)
{
    return (place){k, i};
}

static place dpas8_a(int i, int k)
{
    return (place){k / 2, 2 * i + k % 2};
}

static place dpas_b(int k, int j)
{
    return (place){j, k};
}

static place dpas_d(int i, int j)
{
    return (place){j, i};
}

static const document documents[] = {{"mfma", &mfma_layout, 32, 32, 8, mfma_a, mfma_b, mfma_d, 1},
                                     {"wmma, RDNA 3", &wmma_layout, 16, 16, 16, wmma_a, wmma_b, wmma_d, 2},
                                     {"wmma, RDNA 4", &wmma12_layout, 16, 16, 16, wmma12_a, wmma12_b, wmma12_d, 1},
                                     {"dpas of 16", &dpas_layout, 16, 16, 16, dpas_a, dpas_b, dpas_d, 1},
                                     {"dpas of 8", &dpas8_layout, 16, 8, 16, dpas8_a, dpas_b, dpas_d, 1}};

typedef int operand[MOST_LANES][MOST_NUMBERS];

/* D = A B, as documented; both copies of an element must be alike. */
static void multiply(const document *x, operand a, operand b, operand d)
{
    for (int i = 0; i < x->m; i++)
        for (int j = 0; j < x->n; j++) {
            int sum = 0;
            for (int k = 0; k < x->k; k++) {
                const place of_a = x->a(i, k), of_b = x->b(k, j);
                for (int copy = 1; copy < x->copies; copy++) {
                    assert_int_equal(a[of_a.lane + copy * x->n][of_a.number], a[of_a.lane][of_a.number]);
                    assert_int_equal(b[of_b.lane + copy * x->n][of_b.number], b[of_b.lane][of_b.number]);
                }
                sum += a[of_a.lane][of_a.number] * b[of_b.lane][of_b.number];
            }
            const place of_d = x->d(i, j);
            d[of_d.lane][of_d.number] = sum;
        }
}

/* ---- the engine's products --------------------------------------------------------------------------------------- */

static int key_number(int row, int d)
{
    return (row * 7 + d * 5) % 11 - 5;
}

static int own_number(int row, int d)
{
    return (row * 3 + d * 2) % 13 - 6;
}

static int value_number(int key, int d)
{
    return (key * 5 + d * 3 + 1) % 9 - 4;
}

static int score(const document *x, int key, int row)
{
    int sum = 0;
    for (int d = 0; d < x->k; d++)
        sum += key_number(key, d) * own_number(row, d);
    return sum;
}

/* Scores of a tile's keys and the block's rows, in a lane's places. */
static void scores_of(const document *x, operand d)
{
    const unit_layout *const u = x->unit;
    operand a = {{0}}, b = {{0}};
    for (int lane = 0; lane < u->sizes->lanes; lane++) {
        for (int n = 0; n < u->tile_numbers(); n++)
            a[lane][n] = key_number(u->tile_row(lane, n), u->tile_depth(lane, n));
        for (int n = 0; n < 2 * u->sizes->words; n++)
            b[lane][n] = own_number(u->word_row(lane, n / 2), u->word_depth(lane, n / 2) + n % 2);
    }
    multiply(x, a, b, d);
}

TH_TEST(scores_are_where_units_state)
{
    (void)session;
    for (size_t n = 0; n < TH_COUNT(documents); n++) {
        const document *const x = &documents[n];
        const unit_layout *const u = x->unit;
        operand d = {{0}};
        int held[MOST_SIZE][MOST_SIZE] = {{0}};
        assert_int_equal(x->m, u->sizes->columns);
        assert_int_equal(x->n, u->sizes->rows);
        assert_int_equal(x->k, u->sizes->depth);
        assert_int_equal(u->sizes->lanes, x->n * u->sizes->row_lanes);
        scores_of(x, d);
        for (int lane = 0; lane < u->sizes->lanes; lane++)
            for (int i = 0; i < u->sizes->columns / u->sizes->row_lanes; i++) {
                const int key = u->sum_column(lane, i), row = u->sum_row(lane, 0);
                held[key][row]++;
                if (d[lane][i] != score(x, key, row))
                    fail_msg("%s: lane %d, number %d", x->name, lane, i);
            }
        for (int key = 0; key < x->m; key++)
            for (int row = 0; row < x->n; row++)
                assert_int_equal(held[key][row], 1);
    }
}

/* Numbers of a row are in lanes that differ by the stated bits, and neighbours among them are neighbours in a lane. */
TH_TEST(lanes_of_a_row_are_as_stated)
{
    (void)session;
    for (size_t n = 0; n < TH_COUNT(documents); n++) {
        const unit_layout *const u = documents[n].unit;
        const int mask = u->first_lane * (u->sizes->row_lanes - 1);
        for (int lane = 0; lane < u->sizes->lanes; lane++) {
            for (int other = 0; other < u->sizes->lanes; other++)
                assert_int_equal(u->sum_row(lane, 0) == u->sum_row(other, 0), ((lane ^ other) & ~mask) == 0);
            for (int i = 0; i < MOST_NUMBERS; i++)
                if (i % u->neighbours != 0)
                    assert_int_equal(u->sum_column(lane, i), u->sum_column(lane, i - 1) + 1);
            assert_int_equal(u->sum_column(lane, 0) % u->neighbours, 0);
        }
    }
}

/* A lane's sums of a step of columns are its words of the next product's operand, as fragments_pack makes them. */
static int packed(const unit_layout *u, operand d, int lane, int step, int number)
{
    const int columns = u->sizes->depth / u->sizes->row_lanes;
    const int first = columns * step + u->packed_column(number / 2);
    if (!u->alternate)
        return d[lane][first + number % 2];
    const int other = lane ^ u->first_lane, even = lane < other ? lane : other;
    return d[number % 2 == 0 ? even : even ^ u->first_lane][first];
}

/* Products of the scores of a step's keys and their values. */
static void products_of_step(const document *x, operand scores, int step, operand d)
{
    const unit_layout *const u = x->unit;
    operand a = {{0}}, b = {{0}};
    for (int lane = 0; lane < u->sizes->lanes; lane++) {
        for (int i = 0; i < u->tile_numbers(); i++) /* columns of the tile of values, by keys */
            a[lane][i] = value_number(x->k * step + u->tile_depth(lane, i), u->tile_row(lane, i));
        for (int i = 0; i < 2 * u->sizes->words; i++)
            b[lane][i] = packed(u, scores, lane, step, i);
    }
    multiply(x, a, b, d);
}

static int expected_output(const document *x, int row, int d)
{
    int sum = 0;
    for (int key = 0; key < x->m; key++)
        sum += score(x, key, row) * value_number(key, d);
    return sum;
}

TH_TEST(sums_become_the_next_operand)
{
    (void)session;
    for (size_t n = 0; n < TH_COUNT(documents); n++) {
        const document *const x = &documents[n];
        const unit_layout *const u = x->unit;
        operand scores = {{0}}, steps[MOST_STEPS] = {{{0}}};
        scores_of(x, scores);
        for (int step = 0; step < x->m / x->k; step++)
            products_of_step(x, scores, step, steps[step]);
        for (int lane = 0; lane < u->sizes->lanes; lane++)
            for (int i = 0; i < u->sizes->columns / u->sizes->row_lanes; i++) {
                int total = 0;
                for (int step = 0; step < MOST_STEPS; step++)
                    total += steps[step][lane][i];
                if (total != expected_output(x, u->sum_row(lane, 0), u->sum_column(lane, i)))
                    fail_msg("%s: lane %d, number %d", x->name, lane, i);
            }
    }
}

/* ---- the host's order -------------------------------------------------------------------------------------------- */

/* Units follow older ones of their engine and maker alone. */
TH_TEST(no_unit_follows_one_of_another_engine)
{
    (void)session;
    assert_int_equal(mgk_matrix_unit_older(MATRIX_WGMMA), MATRIX_MMA);
    assert_int_equal(mgk_matrix_unit_older(MATRIX_MMA), 0);
    assert_int_equal(mgk_matrix_unit_older(MATRIX_AMX_F16), MATRIX_AMX);
    assert_int_equal(mgk_matrix_unit_older(MATRIX_AMX), 0);
    assert_true(mgk_matrix_unit_includes(MATRIX_WGMMA, MATRIX_MMA));
    assert_true(mgk_matrix_unit_includes(MATRIX_AMX_F16, 0));
    assert_false(mgk_matrix_unit_includes(MATRIX_AMX_F16, MATRIX_WGMMA));
    assert_false(mgk_matrix_unit_includes(MATRIX_MMA, MATRIX_WGMMA));

    mgk_device_facts facts = {.runtime = MGK_RUNTIME_NVIDIA, .info = {.architecture = "sm_90"}};
    assert_int_equal(mgk_matrix_unit_of(&facts, MATRIX_AMX_F16), 0);
    assert_int_equal(mgk_matrix_unit_of(&facts, MATRIX_WGMMA), MATRIX_WGMMA);
    assert_int_equal(mgk_engines_newest_unit(&facts, NULL), MATRIX_WGMMA);
    facts.matrix_unit.unit = MATRIX_WGMMA;
    assert_true(mgk_matrix_unit_allows(&facts, MATRIX_MMA) && mgk_matrix_unit_allows(&facts, 0));
    facts.matrix_unit.alone = true; /* CLMGK_UNIT */
    assert_false(mgk_matrix_unit_allows(&facts, MATRIX_MMA));
    assert_true(mgk_matrix_unit_allows(&facts, MATRIX_WGMMA) && mgk_matrix_unit_allows(&facts, 0));
    assert_int_equal(mgk_engine_facts(&mgk_engine_lane, &facts).matrix_unit.unit, 0);
    assert_int_equal(mgk_engine_facts(&mgk_engine_matrix, &facts).matrix_unit.unit, MATRIX_WGMMA);
    assert_int_equal(mgk_engine_facts(&mgk_engine_simt, &facts).matrix_unit.unit, 0);
}

/* Processors have the units that their makers' documents name, and no others. */
TH_TEST(devices_have_the_units_of_their_maker)
{
    static const struct {
        const char *vendor, *name;
        int least, unit; /* least: sub-group of Intel's */
        bool mad;        /* Intel's extension */
    } devices[] = {{"Advanced Micro Devices, Inc.", "gfx908", 0, 0, false},
                   {"Advanced Micro Devices, Inc.", "gfx90a:sramecc+:xnack-", 0, MATRIX_MFMA, false},
                   {"Advanced Micro Devices, Inc.", "gfx942", 0, MATRIX_MFMA, false},
                   {"Advanced Micro Devices, Inc.", "gfx1030", 0, 0, false},
                   {"Advanced Micro Devices, Inc.", "gfx1100", 0, MATRIX_WMMA, false},
                   {"Advanced Micro Devices, Inc.", "gfx1201", 0, MATRIX_WMMA_12, false},
                   {"Advanced Micro Devices, Inc.", "gfx1250", 0, 0, false},
                   {"Intel(R) Corporation", "Intel(R) Arc(TM) A770 Graphics", 8, MATRIX_DPAS_8, true},
                   {"Intel(R) Corporation", "Intel(R) Data Center GPU Max 1100", 16, MATRIX_DPAS, true},
                   {"Intel(R) Corporation", "Intel(R) UHD Graphics 770", 8, 0, false},
                   {"nobody", "gfx1100", 0, 0, true}};
    (void)session;
    for (size_t n = 0; n < TH_COUNT(devices); n++) {
        mgk_device_facts facts = {.info = {.device_class = CLMGK_DEVICE_GPU},
                                  .least_sub_group = devices[n].least,
                                  .intel_matrix_mad = devices[n].mad};
        (void)snprintf(facts.info.vendor, sizeof(facts.info.vendor), "%s", devices[n].vendor);
        (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "%s", devices[n].name);
        if (mgk_engines_newest_unit(&facts, NULL) != devices[n].unit)
            fail_msg("%s", devices[n].name);
    }
}
