/* SPDX-License-Identifier: Apache-2.0 */
/* The random numbers that users can draw again on the host: the generator's words, and dropout's mask. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

enum { SIDE = 512, CELLS = SIDE * SIDE };

/* ---- the generator ------------------------------------------------------------------------------------------------
 */

/* Of Random123's kat_vectors: philox4x32, 10 rounds. */
static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        uint32_t words[4] = {0};
        clmgk_philox(cases[n].counter, cases[n].key, words);
        assert_memory_equal(words, cases[n].words, sizeof(words));
        memcpy(words, cases[n].counter, sizeof(words));
        clmgk_philox(words, cases[n].key, words); /* in place */
        assert_memory_equal(words, cases[n].words, sizeof(words));
    }
}

/* ---- the mask, cell by cell ---------------------------------------------------------------------------------------
 */

typedef struct tile {
    double dropout;
    uint64_t seed;
    int64_t heads, b, h, first_row, rows, first_key, keys;
} tile;

static void draw(const tile *t, uint8_t *mask)
{
    clmgk_error error = {0};
    if (clmgk_dropout_mask(t->dropout, t->seed, t->heads, t->b, t->h, t->first_row, t->rows, t->first_key, t->keys,
                           mask, &error) != CLMGK_OK)
        fail_msg("%s", error.message);
}

/* Every cell as its definition says: word j mod 4 of counter (j/4, i, b H + h, 0), dropped below floor(p 2^32). */
static void cells_are_words(void **state)
{
    (void)state;
    static const tile tiles[] = {
        {0.5, 0, 1, 0, 0, 0, 3, 0, 17},
        {0.1, 0x123456789abcdef0, 4, 3, 2, 5, 4, 1, 9},
        {0.9, UINT64_MAX, 7, 0, 6, 1000, 2, 4094, 6},
        {0.25, 1, 3, 11, 1, (INT64_C(1) << 30) - 2, 3, (INT64_C(1) << 30) - 3, 8},
        {0.7, UINT64_C(1) << 32, INT64_C(1) << 30, INT64_C(1) << 30, 9, 7, 2, 3, 5}, /* b H + h beyond 32 bits */
        {1.0 - 0x1p-40, 42, 2, 1, 1, 0, 5, 0, 40},
    };
    for (size_t n = 0; n < TH_COUNT(tiles); n++) {
        const tile *const t = &tiles[n];
        uint8_t mask[256];
        assert_true(t->rows * t->keys <= (int64_t)sizeof(mask));
        memset(mask, 7, sizeof(mask));
        draw(t, mask);
        for (int64_t cell = 0; cell < t->rows * t->keys; cell++) {
            const uint64_t i = (uint64_t)(t->first_row + cell / t->keys);
            const uint64_t j = (uint64_t)(t->first_key + cell % t->keys);
            const uint64_t head = (uint64_t)t->b * (uint64_t)t->heads + (uint64_t)t->h;
            const uint32_t counter[4] = {(uint32_t)(j / 4), (uint32_t)i, (uint32_t)head, 0};
            const uint32_t key[2] = {(uint32_t)(t->seed & UINT32_MAX), (uint32_t)(t->seed >> 32U)};
            uint32_t words[4];
            clmgk_philox(counter, key, words);
            assert_int_equal(mask[cell], (double)words[j % 4] >= floor(ldexp(t->dropout, 32)));
        }
        for (size_t cell = (size_t)(t->rows * t->keys); cell < sizeof(mask); cell++)
            assert_int_equal(mask[cell], 7);
    }
}

static void extremes(void **state)
{
    (void)state;
    uint8_t mask[64 * 64];
    static const double keeps_all[] = {0.0, 0x1p-33, 0x1p-1074};
    for (size_t n = 0; n < TH_COUNT(keeps_all); n++) {
        const tile all = {keeps_all[n], 5, 2, 1, 1, 0, 64, 0, 64};
        memset(mask, 0, sizeof(mask));
        draw(&all, mask);
        for (size_t cell = 0; cell < sizeof(mask); cell++)
            assert_int_equal(mask[cell], 1);
    }
    const tile none = {1.0 - 0x1p-53, 5, 2, 1, 1, 0, 64, 0, 64};
    draw(&none, mask);
    for (size_t cell = 0; cell < sizeof(mask); cell++)
        assert_int_equal(mask[cell], 0);
    const tile empty[] = {{0.5, 5, 2, 1, 1, 0, 0, 0, 64}, {0.5, 5, 2, 1, 1, 0, 64, 0, 0}};
    memset(mask, 7, sizeof(mask));
    draw(&empty[0], mask);
    draw(&empty[1], mask);
    assert_int_equal(mask[0], 7);
}

/* ---- statistics ---------------------------------------------------------------------------------------------------
 */

/* |count - n p| within 5 standard deviations of n trials with probability p. */
static void expect_rate(const char *what, double count, double n, double p)
{
    const double deviation = (count - n * p) / sqrt(n * p * (1.0 - p));
    if (fabs(deviation) > 5.0)
        fail_msg("%s: %g of %g, expected %g: %g standard deviations", what, count, n, n * p, deviation);
}

/* Cells dropped in both masks (one shifted by `shift` cells): as often as independence says. */
static void expect_independent(const char *what, const uint8_t *a, const uint8_t *b, size_t shift, double p)
{
    size_t both = 0;
    for (size_t cell = 0; cell + shift < CELLS; cell++)
        both += !a[cell + shift] && !b[cell];
    expect_rate(what, (double)both, (double)(CELLS - shift), p * p);
}

static void rates_and_independence(void **state)
{
    (void)state;
    static uint8_t mask[CELLS];
    static uint8_t other[CELLS];
    static const double probabilities[] = {0.1, 0.5, 0.9};
    for (size_t n = 0; n < TH_COUNT(probabilities); n++) {
        const double p = probabilities[n];
        const tile one = {p, 2026, 8, 2, 3, 0, SIDE, 0, SIDE};
        tile next = one;
        size_t dropped = 0;
        draw(&one, mask);
        for (size_t cell = 0; cell < CELLS; cell++)
            dropped += !mask[cell];
        expect_rate("dropped", (double)dropped, CELLS, p);
        for (size_t shift = 1; shift <= 5; shift++)
            expect_independent("keys next to each other", mask, mask, shift, p);
        expect_independent("rows next to each other", mask, mask, SIDE, p);
        next.h++;
        draw(&next, other);
        expect_independent("heads", mask, other, 0, p);
        next = one;
        next.b++;
        draw(&next, other);
        expect_independent("batches", mask, other, 0, p);
        next = one;
        next.seed++;
        draw(&next, other);
        expect_independent("seeds", mask, other, 0, p);
        next.seed = one.seed + (UINT64_C(1) << 32);
        draw(&next, other);
        expect_independent("upper halves of seeds", mask, other, 0, p);
    }
}

/* Each row and each column on its own: no row or key that is dropped more than the others. Chi squared of 2 SIDE
 * rates has mean 2 SIDE and variance 4 SIDE, within 5 of whose roots it must lie. */
static void every_row_and_key(void **state)
{
    (void)state;
    static uint8_t mask[CELLS];
    const double p = 0.3;
    const tile one = {p, 7, 1, 0, 0, 0, SIDE, 0, SIDE};
    double squares = 0.0;
    draw(&one, mask);
    for (size_t line = 0; line < SIDE; line++) {
        double row = -SIDE * p;
        double key = -SIDE * p;
        for (size_t n = 0; n < SIDE; n++) {
            row += !mask[line * SIDE + n];
            key += !mask[n * SIDE + line];
        }
        squares += (row * row + key * key) / (SIDE * p * (1.0 - p));
    }
    assert_true(fabs(squares - 2.0 * SIDE) < 5.0 * sqrt(4.0 * SIDE));
}

/* ---- misuse -------------------------------------------------------------------------------------------------------
 */

static void bad_arguments(void **state)
{
    (void)state;
    const int64_t beyond = (INT64_C(1) << 30) + 1;
    const tile good = {0.5, 0, 4, 1, 3, 0, 2, 0, 3};
    const struct {
        tile bad;
        const char *name, *value;
    } cases[] = {
        {{-0.1, 0, 4, 1, 3, 0, 2, 0, 3}, "dropout", "-0.1"},
        {{1.0, 0, 4, 1, 3, 0, 2, 0, 3}, "dropout", "1"},
        {{(double)NAN, 0, 4, 1, 3, 0, 2, 0, 3}, "dropout", "nan"},
        {{(double)INFINITY, 0, 4, 1, 3, 0, 2, 0, 3}, "dropout", "inf"},
        {{0.5, 0, 0, 1, 0, 0, 2, 0, 3}, "heads", "0"},
        {{0.5, 0, beyond, 1, 0, 0, 2, 0, 3}, "heads", "1073741825"},
        {{0.5, 0, 4, -1, 3, 0, 2, 0, 3}, "b", "-1"},
        {{0.5, 0, 4, beyond, 3, 0, 2, 0, 3}, "b", "1073741825"},
        {{0.5, 0, 4, 1, -1, 0, 2, 0, 3}, "h", "-1"},
        {{0.5, 0, 4, 1, 4, 0, 2, 0, 3}, "h", "4"},
        {{0.5, 0, 4, 1, 3, -1, 2, 0, 3}, "first_row", "-1"},
        {{0.5, 0, 4, 1, 3, beyond, 2, 0, 3}, "first_row", "1073741825"},
        {{0.5, 0, 4, 1, 3, 0, -2, 0, 3}, "rows", "-2"},
        {{0.5, 0, 4, 1, 3, 0, INT64_MAX, 0, 3}, "rows", "9223372036854775807"},
        {{0.5, 0, 4, 1, 3, 0, 2, -1, 3}, "first_key", "-1"},
        {{0.5, 0, 4, 1, 3, 0, 2, beyond, 3}, "first_key", "1073741825"},
        {{0.5, 0, 4, 1, 3, 0, 2, 0, -3}, "keys", "-3"},
        {{0.5, 0, 4, 1, 3, 0, 2, 0, beyond}, "keys", "1073741825"},
    };
    uint8_t mask[6] = {7, 7, 7, 7, 7, 7};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        const tile *const t = &cases[n].bad;
        clmgk_error error = {0};
        const clmgk_status status = clmgk_dropout_mask(t->dropout, t->seed, t->heads, t->b, t->h, t->first_row, t->rows,
                                                       t->first_key, t->keys, mask, &error);
        if (status != CLMGK_ERROR_INVALID_VALUE || !th_has_word(error.message, cases[n].name) ||
            !strstr(error.message, cases[n].value))
            fail_msg("%s \"%s\": expected \"%s\" and \"%s\"", clmgk_status_name(status), error.message, cases[n].name,
                     cases[n].value);
    }
    for (size_t n = 0; n < TH_COUNT(mask); n++)
        assert_int_equal(mask[n], 7);
    clmgk_error error = {0};
    assert_int_equal(clmgk_dropout_mask(good.dropout, 0, 4, 1, 3, 0, 2, 0, 3, NULL, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_true(th_has_word(error.message, "mask"));
    assert_int_equal(clmgk_dropout_mask(2.0, 0, 4, 1, 3, 0, 2, 0, 3, mask, NULL), CLMGK_ERROR_INVALID_VALUE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),          cmocka_unit_test(cells_are_words),   cmocka_unit_test(extremes),
        cmocka_unit_test(rates_and_independence), cmocka_unit_test(every_row_and_key), cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
