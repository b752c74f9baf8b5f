/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner's search: the candidates that it may propose, their order, and that it finds fast ones. */
#include "harness/harness.h"
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANE, SIMT, SPACES, LANE_COUNT = 7, SIMT_COUNT = 3, LEGAL = 8004 };

static const tune_space spaces[SPACES] = {
    {"lane",
     {{.name = "lanes", .values = {8, 16}, .value_count = 2},
      {.name = "vectors", .values = {1, 2, 4}, .value_count = 3},
      {.name = "panels", .values = {1, 2, 4, 8}, .value_count = 4},
      {.name = "tile", .values = {16, 32, 64, 128}, .value_count = 4},
      {.name = "block", .values = {4, 8, 16}, .value_count = 3},
      {.name = "unroll", .values = {1, 2, 4, 8}, .value_count = 4},
      {.name = "splits", .values = {1, 2, 4, 8, 16, 32, 64, 128}, .value_count = 8}},
     LANE_COUNT},
    {"simt",
     {{.name = "rows", .values = {1, 2, 4, 8}, .value_count = 4},
      {.name = "keys", .values = {1, 2, 4, 8}, .value_count = 4},
      {.name = "features", .values = {4, 8, 16}, .value_count = 3}},
     SIMT_COUNT}};

static const tune_candidate lane_default = {LANE, {16, 2, 4, 64, 8, 4, 1}, 0};
static const tune_candidate simt_default = {SIMT, {4, 4, 8}, 0};

/* Of 9216 combinations of the first space, 8004 are legal; of 48 of the second, 26. */
static bool is_legal(void *user, const tune_candidate *x)
{
    const int32_t *v = x->values;
    (void)user;
    return x->space == LANE ? v[0] * v[1] * v[2] <= 256 && v[6] * v[3] <= 4096 : v[0] * v[1] >= 4 && v[2] != 16;
}

static tune_place place_at(double axis, bool lane, bool simt)
{
    return (tune_place){.spaces = spaces,
                        .count = SPACES,
                        .axes = {axis},
                        .defaults = {lane_default, simt_default},
                        .available = {lane, simt},
                        .legal = is_legal};
}

/* ---- landscapes: time over the defaults' ------------------------------------------------------------------------- */

typedef double (*landscape)(const tune_candidate *x);

/* Every parameter has a best value of its own. */
static double additive(const tune_candidate *x)
{
    static const double best[LANE_COUNT] = {4, 2, 0, 5, 4, 1, 2}, slope[LANE_COUNT] = {15, 12, 10, 10, 12, 8, 7};
    double sum = 0;
    for (size_t p = 0; p < LANE_COUNT && x->space == LANE; p++)
        sum += 0.01 * slope[p] * fabs(log2(x->values[p]) - best[p]);
    return x->space == LANE ? 0.4 * exp(sum) : 2;
}

/* Models registers: it is fastest if vectors times block is 32, and many panels have small tiles. */
static double interacting(const tune_candidate *x)
{
    const int32_t *v = x->values;
    const double registers = fabs(log2(v[1] * v[4]) - 5), cache = fabs(log2(v[2] * v[3]) - 8);
    return x->space == SIMT ? 2
                            : 0.4 * exp(0.15 * registers + 0.12 * cache + 0.1 * (v[0] == 8) +
                                        0.07 * fabs(log2(v[5]) - 1) + 0.05 * log2(v[6]));
}

/* The other engine is faster, the more so the more rows it has. */
static double other_engine(const tune_candidate *x)
{
    return x->space == LANE ? additive(x) : 0.3 - 0.03 * log2(x->values[0]);
}

static double fastest_lane(landscape time)
{
    double fastest = INFINITY;
    size_t legal = 0;
    for (size_t n = 0; n < 9216; n++) {
        tune_candidate x = {.space = LANE};
        size_t rest = n;
        for (size_t p = 0; p < LANE_COUNT; rest /= spaces[LANE].parameters[p].value_count, p++)
            x.values[p] = spaces[LANE].parameters[p].values[rest % spaces[LANE].parameters[p].value_count];
        legal += is_legal(NULL, &x);
        fastest = is_legal(NULL, &x) ? fmin(fastest, time(&x)) : fastest;
    }
    assert_int_equal(legal, LEGAL);
    return fastest;
}

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static void tell(tune_measured *all, const tune_place *place, tune_candidate x, double ratio)
{
    x.ratio = ratio;
    assert_true(tune_add(all, place, &x));
}

/* Gets the next candidate, which must exist and be legal, and tells its ratio (0: none). */
static tune_candidate measure_next(tune_measured *all, tune_place *place, double ratio)
{
    tune_candidate x;
    assert_true(tune_propose(all, place, &x));
    assert_true(is_legal(NULL, &x));
    tell(all, place, x, ratio);
    return x;
}

/* Measures up to `count` candidates, each of which is legal and new; their number. With `fail` every third fails. */
static size_t measure(tune_measured *all, tune_place *place, landscape time, size_t count, bool fail)
{
    for (size_t n = 0; n < count; n++) {
        const size_t before = all->count;
        tune_candidate x;
        if (!tune_propose(all, place, &x))
            return n;
        assert_true(is_legal(NULL, &x) && place->available[x.space]);
        assert_int_equal(all->count, before + 1); /* it was not there */
        tell(all, place, x, fail && n % 3 == 2 ? -1 : time(&x));
    }
    return count;
}

static void assert_values(const tune_candidate *x, const int32_t *values)
{
    assert_int_equal(x->space, LANE);
    assert_memory_equal(x->values, values, LANE_COUNT * sizeof(*values));
}

/* ---- candidates that may be proposed ------------------------------------------------------------------------------
 */

TH_HOST_TEST(proposals_are_legal_and_new)
{
    tune_measured all = {NULL, 0, 0};
    tune_place one = place_at(0, true, true), other = place_at(1, true, false);
    assert_int_equal(measure(&all, &one, interacting, 64, true), 64);
    assert_true(tune_same(&one, &all.list[0].x, &lane_default)); /* first the defaults */
    assert_true(tune_same(&one, &all.list[1].x, &simt_default));
    assert_int_equal(measure(&all, &other, interacting, 64, true), 64);
    free(all.list);
}

/* A candidate whose time is not known yet is not proposed again, and does not attract proposals of its neighbours. */
TH_HOST_TEST(proposals_do_not_wait_for_times)
{
    tune_measured all = {NULL, 0, 0};
    tune_place one = place_at(0, true, false);
    tell(&all, &one, lane_default, 1);
    for (size_t n = 0; n < 60; n++) {
        const size_t before = all.count;
        (void)measure_next(&all, &one, 0);
        assert_int_equal(all.count, before + 1);
    }
    free(all.list);
}

/* A search ends where nothing is faster any more, or nothing is left: a space of one candidate. */
TH_HOST_TEST(enough_is_enough)
{
    tune_measured all = {NULL, 0, 0};
    tune_place one = place_at(0, true, true);
    const size_t count = measure(&all, &one, interacting, 1000, false);
    assert_true(count > 64 && count < 1000);
    const tune_space fixed = {.name = "fixed", .count = 0};
    tune_place alone = {.spaces = &fixed, .count = 1, .available = {true}};
    assert_int_equal(measure(&all, &alone, additive, 10, false), 1);
    free(all.list);
}

/* A failure bans a candidate: a later success does not lift the ban, and other cases do not try its change. */
TH_HOST_TEST(failures_are_final)
{
    static const tune_candidate wrong = {LANE, {16, 2, 4, 64, 16, 4, 1}, 0};
    tune_measured all = {NULL, 0, 0};
    tune_place first = place_at(0, true, false), second = place_at(1, true, false);
    tell(&all, &first, lane_default, 1);
    tell(&all, &first, wrong, 0.2);
    tell(&all, &first, wrong, -1);
    tell(&all, &first, wrong, 0.1);
    assert_true(tune_same(&first, tune_fastest(&all, &first, SIZE_MAX), &lane_default));
    tell(&all, &second, lane_default, 1);
    for (size_t n = 0; n < 5; n++) {
        const tune_candidate x = measure_next(&all, &second, 2);
        assert_false(tune_same(&second, &x, &wrong));
    }
    free(all.list);
}

/* ---- their order ------------------------------------------------------------------------------------------------- */

/* If nothing is faster than the defaults, each is left for a nearer one first: single changes come before pairs. */
TH_HOST_TEST(neighbours_come_first_then_pairs)
{
    tune_measured all = {NULL, 0, 0};
    tune_place one = place_at(0, true, false);
    size_t pairs = 0;
    tell(&all, &one, lane_default, 1);
    for (size_t n = 0; n < 60; n++) {
        const tune_candidate x = measure_next(&all, &one, 1.001);
        size_t changed = 0;
        for (size_t p = 0; p < LANE_COUNT; p++)
            changed += x.values[p] != lane_default.values[p];
        assert_true(changed == 1 || changed == 2);
        assert_true(n > 5 || changed == 1);
        pairs += changed == 2;
    }
    assert_true(pairs > 0);
    free(all.list);
}

/* What made another case faster comes first, applied to this case's defaults; then changes that helped there. */
TH_HOST_TEST(helpful_changes_come_first)
{
    static const tune_candidate fastest = {LANE, {16, 1, 4, 64, 8, 4, 1}, 0},
                                helped = {LANE, {16, 2, 4, 64, 16, 4, 1}, 0};
    static const int32_t expected[2][LANE_COUNT] = {{8, 2, 1, 32, 8, 8, 4}, {8, 1, 1, 32, 8, 8, 4}};
    tune_measured all = {NULL, 0, 0};
    tune_place first = place_at(0, true, false), second = place_at(1, true, false);
    memcpy(second.defaults[LANE].values, expected[0], sizeof(expected[0]));
    tell(&all, &first, lane_default, 1);
    tell(&all, &first, fastest, 0.5);
    tell(&all, &first, helped, 0.8);
    for (size_t n = 0; n < 2; n++) {
        const tune_candidate x = measure_next(&all, &second, 1);
        assert_values(&x, expected[n]);
    }
    assert_int_equal(measure_next(&all, &second, 1).values[4], 16);
    free(all.list);
}

/* The changes that were the best in the nearest case come before those of a farther one, whatever their order; cases of
 * other spaces do not count. */
TH_HOST_TEST(the_nearest_case_comes_first)
{
    static const tune_candidate best[2] = {{LANE, {16, 1, 4, 32, 8, 4, 1}, 0}, {LANE, {16, 2, 4, 64, 4, 8, 1}, 0}};
    static const int32_t start[LANE_COUNT] = {8, 4, 1, 64, 8, 4, 2},
                         expected[2][LANE_COUNT] = {{8, 1, 1, 32, 8, 4, 2}, {8, 4, 1, 64, 4, 8, 2}};
    for (size_t order = 0; order < 2; order++) {
        tune_measured all = {NULL, 0, 0};
        tune_place known[2] = {place_at(4, true, false), place_at(9, true, false)}, one = place_at(5, true, false),
                   foreign = place_at(5, true, false);
        tune_space copies[SPACES];
        memcpy(copies, spaces, sizeof(copies));
        foreign.spaces = copies;
        memcpy(one.defaults[LANE].values, start, sizeof(start));
        tell(&all, &foreign, lane_default, 1);
        tell(&all, &foreign, (tune_candidate){LANE, {16, 2, 4, 64, 8, 8, 1}, 0}, 0.1);
        for (size_t i = 0; i < 2; i++) {
            const size_t which = i == order;
            tell(&all, &known[which], lane_default, 1);
            tell(&all, &known[which], best[which], which == 0 ? 0.8 : 0.5);
        }
        tell(&all, &one, one.defaults[LANE], 1);
        for (size_t i = 0; i < 2; i++) {
            const tune_candidate x = measure_next(&all, &one, 2);
            assert_values(&x, expected[i]);
        }
        free(all.list);
    }
}

/* ---- fast candidates --------------------------------------------------------------------------------------------- */

/* Among 8004 candidates within 50 measurements; in the next case the first one that is not the defaults'. */
TH_HOST_TEST(finds_optima)
{
    static const landscape times[] = {additive, interacting};
    for (size_t i = 0; i < TH_COUNT(times); i++) {
        tune_measured all = {NULL, 0, 0};
        tune_place one = place_at(0, true, true), next = place_at(1, true, true);
        const double fastest = fastest_lane(times[i]) * (1 + 1e-12);
        (void)measure(&all, &one, times[i], 50, false);
        assert_true(tune_fastest(&all, &one, SIZE_MAX)->ratio <= fastest);
        (void)measure(&all, &next, times[i], 3, false);
        assert_true(tune_fastest(&all, &next, SIZE_MAX)->ratio <= fastest);
        free(all.list);
    }
}

TH_HOST_TEST(finds_the_other_engine)
{
    tune_measured all = {NULL, 0, 0};
    tune_place one = place_at(0, true, true);
    (void)measure(&all, &one, other_engine, 30, false);
    assert_true(tune_fastest(&all, &one, SIZE_MAX)->ratio < 0.3 - 0.03 * 3 + 1e-9);
    assert_int_equal(tune_fastest(&all, &one, LANE)->space, LANE);
    free(all.list);
}
