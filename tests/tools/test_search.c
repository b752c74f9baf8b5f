/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner's search: the points that it may propose, their order, and that it finds fast ones earlier than chance. */
#include "harness/harness.h"
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

enum { LANE_COUNT = 7, SIMT_COUNT = 3 };

static const int32_t lanes[] = {8, 16}, vectors[] = {1, 2, 4}, panels[] = {1, 2, 4, 8}, tiles[] = {16, 32, 64, 128},
                     blocks[] = {4, 8, 16}, unrolls[] = {1, 2, 4, 8}, splits[] = {1, 2, 4, 8, 16, 32, 64, 128};

#define VALUES(table) table, TH_COUNT(table)

static const tune_parameter lane[LANE_COUNT] = {
    {"lanes", VALUES(lanes)},  {"vectors", VALUES(vectors)}, {"panels", VALUES(panels)}, {"tile", VALUES(tiles)},
    {"block", VALUES(blocks)}, {"unroll", VALUES(unrolls)},  {"splits", VALUES(splits)}};
static const tune_parameter simt[SIMT_COUNT] = {
    {"rows", VALUES(panels)}, {"keys", VALUES(unrolls)}, {"features", VALUES(blocks)}};

static const int32_t lane_default[LANE_COUNT] = {16, 2, 4, 64, 8, 4, 1};
static const int32_t simt_default[SIMT_COUNT] = {4, 4, 8};

/* Of 9216 combinations, 8004 are legal. */
static bool lane_legal(void *user, const int32_t *values)
{
    (void)user;
    return values[0] * values[1] * values[2] <= 256 && values[6] * values[3] <= 4096;
}

static bool simt_legal(void *user, const int32_t *values)
{
    (void)user;
    return values[0] * values[1] >= 4 && values[2] != 16;
}

static const tune_space spaces[] = {{"lane", lane, LANE_COUNT, lane_legal, NULL},
                                    {"simt", simt, SIMT_COUNT, simt_legal, NULL}};

static const int32_t *const both[] = {lane_default, simt_default};
static const int32_t *const lane_only[] = {lane_default, NULL};

static int log_of(int32_t value)
{
    int exponent = 0;
    while (value > 1) {
        value /= 2;
        exponent++;
    }
    return exponent;
}

/* ---- landscapes: seconds of a point -------------------------------------------------------------------------------
 */

typedef double (*landscape)(size_t space, const int32_t *values);

/* Every parameter has a best value of its own; 2.5 times as fast as the default. */
static double additive(size_t space, const int32_t *values)
{
    static const int best[LANE_COUNT] = {4, 2, 0, 5, 4, 1, 2};
    static const double slope[LANE_COUNT] = {0.15, 0.12, 0.1, 0.1, 0.12, 0.08, 0.07};
    double sum = 0.0;
    if (space != 0)
        return 2.0;
    for (size_t p = 0; p < LANE_COUNT; p++)
        sum += slope[p] * abs(log_of(values[p]) - best[p]);
    return 0.4 * exp(sum);
}

/* Models registers: it is fastest if vectors times block is 32, and many panels have small tiles. */
static double interacting(size_t space, const int32_t *values)
{
    if (space != 0)
        return 2.0;
    const double registers = abs(log_of(values[1]) + log_of(values[4]) - 5);
    const double cache = abs(log_of(values[2]) + log_of(values[3]) - 8);
    return 0.4 * exp(0.15 * registers + 0.12 * cache + 0.1 * (values[0] == 8) + 0.07 * abs(log_of(values[5]) - 1) +
                     0.05 * log_of(values[6]));
}

/* The other engine is faster, the more so the more rows it has. */
static double other_engine(size_t space, const int32_t *values)
{
    return space == 0 ? additive(space, values) : 0.3 - 0.03 * log_of(values[0]);
}

/* The defaults are the best of their surroundings; far from them all points are faster. */
static double two_valleys(size_t space, const int32_t *values)
{
    static const int32_t far[LANE_COUNT] = {8, 1, 1, 16, 4, 1, 128};
    int from_default = 0, from_far = 0;
    for (size_t p = 0; p < LANE_COUNT && space == 0; p++) {
        from_default += abs(log_of(values[p]) - log_of(lane_default[p]));
        from_far += abs(log_of(values[p]) - log_of(far[p]));
    }
    return space == 0 ? fmin(exp(0.2 * from_default), 0.3 * exp(0.1 * from_far)) : 2.0;
}

static double fastest_lane(landscape seconds)
{
    double fastest = INFINITY;
    int32_t at[LANE_COUNT];
    for (size_t n = 0; n < 9216; n++) {
        size_t rest = n;
        for (size_t p = 0; p < LANE_COUNT; p++) {
            at[p] = lane[p].values[rest % lane[p].value_count];
            rest /= lane[p].value_count;
        }
        if (lane_legal(NULL, at))
            fastest = fmin(fastest, seconds(0, at));
    }
    return fastest;
}

/* A case at a place of its own. */
static int begin(tune_search *search, double place, const int32_t *const *defaults)
{
    const tune_case one = {.axes = {place}, .default_space = 0, .defaults = defaults};
    const int number = tune_search_begin(search, &one);
    assert_true(number >= 0);
    return number;
}

static tune_search *create(uint64_t seed, tune_mode mode)
{
    tune_search *const search = tune_search_create(spaces, TH_COUNT(spaces), seed, mode);
    assert_non_null(search);
    return search;
}

/* Measures up to `count` proposed points; the least time. */
static double measure(tune_search *search, int number, landscape seconds, size_t count)
{
    double best = INFINITY;
    for (size_t n = 0; n < count; n++) {
        size_t space = 0;
        int32_t values[TUNE_MOST_PARAMETERS];
        if (tune_search_next(search, number, &space, values) != TUNE_MEASURE)
            break;
        best = fmin(best, seconds(space, values));
        assert_true(tune_search_tell(search, number, space, values, seconds(space, values)));
    }
    return best;
}

/* ---- points that may be proposed
 * -----------------------------------------------------------------------------------------
 */

typedef struct trace {
    size_t count;
    size_t space[512];
    int32_t values[512][TUNE_MOST_PARAMETERS];
} trace;

static size_t space_length(size_t space)
{
    return space == 0 ? LANE_COUNT : SIMT_COUNT;
}

static bool traced(const trace *t, size_t space, const int32_t *values)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->space[i] == space && memcmp(t->values[i], values, space_length(space) * sizeof(int32_t)) == 0)
            return true;
    return false;
}

static void append(trace *t, size_t space, const int32_t *values)
{
    assert_true(t->count < TH_COUNT(t->space));
    t->space[t->count] = space;
    memcpy(t->values[t->count++], values, space_length(space) * sizeof(int32_t));
}

/* With `fail` every third point fails. Ends after `most` points or with the answer that ends the search. */
static tune_proposal follow(tune_search *search, int number, size_t most, bool fail, trace *t)
{
    t->count = 0;
    while (t->count < most) {
        size_t space = 0;
        int32_t values[TUNE_MOST_PARAMETERS];
        const tune_proposal answer = tune_search_next(search, number, &space, values);
        if (answer != TUNE_MEASURE)
            return answer;
        assert_true(spaces[space].legal(NULL, values));
        assert_false(traced(t, space, values));
        append(t, space, values);
        const double seconds = fail && t->count % 3 == 2 ? -1.0 : interacting(space, values);
        assert_true(tune_search_tell(search, number, space, values, seconds));
    }
    return TUNE_MEASURE;
}

TH_HOST_TEST(proposals_are_legal_and_new)
{
    static trace t;
    for (tune_mode mode = TUNE_NEIGHBOURS; mode <= TUNE_RANDOM; mode++) {
        tune_search *const search = create(1, mode);
        assert_int_equal(follow(search, begin(search, 0, both), 64, true, &t), TUNE_MEASURE);
        assert_int_equal(t.space[0], 0); /* first the defaults */
        assert_memory_equal(t.values[0], lane_default, sizeof(lane_default));
        assert_int_equal(follow(search, begin(search, 0, lane_only), 64, true, &t), TUNE_MEASURE);
        for (size_t i = 0; i < t.count; i++)
            assert_int_equal(t.space[i], 0);
        tune_search_free(search);
    }
}

/* Every legal point is proposed once, then none. */
TH_HOST_TEST(small_spaces_are_exhausted)
{
    static const int32_t *const defaults[] = {simt_default};
    for (tune_mode mode = TUNE_NEIGHBOURS; mode <= TUNE_RANDOM; mode++) {
        tune_search *const search = tune_search_create(&spaces[1], 1, 1, mode);
        const tune_case one = {.default_space = 0, .defaults = defaults};
        const int number = tune_search_begin(search, &one);
        size_t proposed = 0, space = 0;
        int32_t values[TUNE_MOST_PARAMETERS], seen[64][SIMT_COUNT];
        while (tune_search_next(search, number, &space, values) == TUNE_MEASURE) {
            assert_true(proposed < TH_COUNT(seen) && simt_legal(NULL, values));
            for (size_t i = 0; i < proposed; i++)
                assert_memory_not_equal(seen[i], values, sizeof(seen[i]));
            memcpy(seen[proposed++], values, sizeof(seen[0]));
            assert_true(tune_search_tell(search, number, space, values, proposed % 2 == 0 ? -1.0 : 1.0));
        }
        assert_int_equal(tune_search_next(search, number, &space, values), TUNE_EXHAUSTED);
        assert_true((double)proposed == tune_search_space_size(search, 0));
        tune_search_free(search);
    }
}

TH_HOST_TEST(a_seed_gives_the_same_proposals)
{
    static trace t[3];
    for (tune_mode mode = TUNE_NEIGHBOURS; mode <= TUNE_RANDOM; mode++) {
        for (size_t i = 0; i < TH_COUNT(t); i++) {
            tune_search *const search = create(i == 2 ? 8 : 7, mode);
            follow(search, begin(search, 0, both), 40, true, &t[i]);
            tune_search_free(search);
        }
        assert_memory_equal(&t[0], &t[1], sizeof(trace));
        assert_memory_not_equal(&t[0], &t[2], sizeof(trace));
    }
}

/* A failure bans a point even if it succeeded before; a later success does not lift the ban. */
TH_HOST_TEST(failures_are_banned)
{
    for (tune_mode mode = TUNE_NEIGHBOURS; mode <= TUNE_RANDOM; mode++) {
        tune_search *const search = create(1, mode);
        const int number = begin(search, 0, both);
        size_t space = 0;
        int32_t values[TUNE_MOST_PARAMETERS];
        assert_true(tune_search_tell(search, number, 0, lane_default, -1.0));
        assert_true(tune_search_tell(search, number, 0, lane_default, 1.0));
        assert_true(tune_search_tell(search, number, 1, simt_default, 0.01));
        assert_true(tune_search_tell(search, number, 1, simt_default, NAN));
        for (size_t n = 0; n < 50; n++) {
            assert_int_equal(tune_search_next(search, number, &space, values), TUNE_MEASURE);
            assert_memory_not_equal(values, space == 0 ? lane_default : simt_default,
                                    space_length(space) * sizeof(int32_t));
            assert_true(tune_search_tell(search, number, space, values, additive(space, values)));
        }
        tune_search_free(search);
    }
}

TH_HOST_TEST(bad_calls_are_refused)
{
    static const int32_t wrong[LANE_COUNT] = {16, 3, 4, 64, 8, 4, 1}, many[TUNE_MOST_VALUES + 1] = {0};
    static const int32_t *const no_default[] = {NULL, simt_default}, *const wrong_default[] = {wrong, NULL};
    static const tune_parameter long_table[] = {{"many", VALUES(many)}}, empty_table[] = {{"none", many, 0}};
    const tune_space bad[] = {{"a", long_table, 1, NULL, NULL},
                              {"b", empty_table, 1, NULL, NULL},
                              {"c", lane, 0, NULL, NULL},
                              {"d", lane, TUNE_MOST_PARAMETERS + 1, NULL, NULL}};
    for (size_t i = 0; i < TH_COUNT(bad); i++)
        assert_null(tune_search_create(&bad[i], 1, 0, TUNE_NEIGHBOURS));
    assert_null(tune_search_create(bad, 0, 0, TUNE_NEIGHBOURS));

    tune_search *const search = create(0, TUNE_NEIGHBOURS);
    const tune_case cases[] = {{{0}, 0, no_default}, {{0}, 0, wrong_default}, {{0}, 2, both}};
    for (size_t i = 0; i < TH_COUNT(cases); i++)
        assert_int_equal(tune_search_begin(search, &cases[i]), -1);
    const int number = begin(search, 0, lane_only);
    size_t space = 0;
    int32_t values[TUNE_MOST_PARAMETERS];
    assert_false(tune_search_tell(search, number, 0, wrong, 1.0));
    assert_false(tune_search_tell(search, number, 1, simt_default, 1.0)); /* not available */
    assert_false(tune_search_tell(search, number, 2, lane_default, 1.0));
    assert_false(tune_search_tell(search, number + 1, 0, lane_default, 1.0));
    assert_false(tune_search_tell(search, -1, 0, lane_default, 1.0));
    assert_int_equal(tune_search_next(search, number + 1, &space, values), TUNE_FAILED);
    assert_int_equal(tune_search_next(search, -1, &space, values), TUNE_FAILED);
    tune_search_free(search);
    tune_search_free(NULL);
}

TH_HOST_TEST(sizes)
{
    enum { COUNT = 12 };
    tune_parameter large[COUNT];
    for (size_t p = 0; p < COUNT; p++)
        large[p] = lane[p % LANE_COUNT];
    /* the constraints bind the first parameters only */
    const tune_space three[] = {spaces[0], spaces[1], {"large", large, COUNT, lane_legal, NULL}};
    tune_search *const search = tune_search_create(three, TH_COUNT(three), 0, TUNE_NEIGHBOURS);
    assert_non_null(search);
    double legal = 0.0;
    int32_t at[LANE_COUNT];
    for (size_t n = 0; n < 9216; n++) {
        size_t rest = n;
        for (size_t p = 0; p < LANE_COUNT; rest /= lane[p].value_count, p++)
            at[p] = lane[p].values[rest % lane[p].value_count];
        legal += lane_legal(NULL, at);
    }
    assert_true(legal == 8004.0 && tune_search_space_size(search, 0) == legal);
    assert_true(tune_search_space_size(search, 1) == 26.0);
    const double expected = legal * 2.0 * 3.0 * 4.0 * 4.0 * 3.0;
    assert_true(fabs(tune_search_space_size(search, 2) / expected - 1.0) < 0.02);
    tune_search_free(search);
}

/* A point whose time is not known yet is not proposed again, and does not attract proposals of its neighbours. */
TH_HOST_TEST(proposals_do_not_wait_for_times)
{
    static trace t;
    tune_search *const search = create(1, TUNE_NEIGHBOURS);
    const int number = begin(search, 0, lane_only);
    assert_true(tune_search_tell(search, number, 0, lane_default, 1.0));
    t.count = 0;
    for (size_t n = 0; n < 60; n++) {
        size_t space = 0;
        int32_t values[TUNE_MOST_PARAMETERS];
        assert_int_equal(tune_search_next(search, number, &space, values), TUNE_MEASURE);
        assert_false(traced(&t, space, values));
        append(&t, space, values);
    }
    tune_search_free(search);
}

/* ---- their order ------------------------------------------------------------------------------------------------- */

static size_t difference(const int32_t *a, const int32_t *b)
{
    size_t changed = 0;
    for (size_t p = 0; p < LANE_COUNT; p++)
        changed += a[p] != b[p];
    return changed;
}

/* If nothing is faster than the defaults, their neighbours come first, then random points. */
TH_HOST_TEST(neighbours_come_first_then_restarts)
{
    for (uint64_t seed = 0; seed < 10; seed++) {
        static trace t;
        bool far = false;
        tune_search *const search = create(seed, TUNE_NEIGHBOURS);
        const int number = begin(search, 0, lane_only);
        t.count = 0;
        for (size_t n = 0; n < 60; n++) {
            size_t space = 0;
            int32_t values[TUNE_MOST_PARAMETERS];
            assert_int_equal(tune_search_next(search, number, &space, values), TUNE_MEASURE);
            append(&t, space, values);
            assert_true(tune_search_tell(search, number, space, values, n == 0 ? 1.0 : 3.0));
            far = far || difference(values, lane_default) > 1;
            assert_true(n > 5 || !far);
        }
        assert_true(far);
        tune_search_free(search);
    }
}

/* Gets the next point, which must exist, into `values`, and tells `seconds` for it. */
static void measure_next(tune_search *search, int number, int32_t values[TUNE_MOST_PARAMETERS], double seconds)
{
    size_t space = 0;
    assert_int_equal(tune_search_next(search, number, &space, values), TUNE_MEASURE);
    assert_true(tune_search_tell(search, number, space, values, seconds));
}

/* The first neighbour proposed is the one whose change made another case faster. */
TH_HOST_TEST(helpful_changes_come_first)
{
    static const int32_t fastest[LANE_COUNT] = {16, 1, 4, 64, 8, 4, 1}, helped[LANE_COUNT] = {16, 2, 4, 64, 16, 4, 1},
                         other[LANE_COUNT] = {8, 2, 1, 32, 8, 8, 4},
                         expected[3][LANE_COUNT] = {
                             {8, 2, 1, 32, 8, 8, 4}, {8, 1, 1, 32, 8, 8, 4}, {8, 2, 1, 32, 16, 8, 4}};
    static const int32_t *const defaults[] = {other, NULL};
    for (uint64_t seed = 0; seed < 10; seed++) {
        tune_search *const search = create(seed, TUNE_NEIGHBOURS);
        const int first = begin(search, 0, lane_only), number = begin(search, 1, defaults);
        assert_true(tune_search_tell(search, first, 0, lane_default, 1.0));
        assert_true(tune_search_tell(search, first, 0, fastest, 0.5));
        assert_true(tune_search_tell(search, first, 0, helped, 0.8));
        for (size_t n = 0; n < 3; n++) {
            int32_t values[TUNE_MOST_PARAMETERS];
            measure_next(search, number, values, n == 1 ? 1.5 : 1.0);
            assert_memory_equal(values, expected[n], sizeof(expected[n]));
        }
        tune_search_free(search);
    }
}

/* A point that failed once counts as failed: later times are ignored, and other cases do not try it. */
TH_HOST_TEST(failures_are_final)
{
    static const int32_t wrong[LANE_COUNT] = {16, 2, 4, 64, 16, 4, 1};
    tune_search *const search = create(1, TUNE_NEIGHBOURS);
    const int first = begin(search, 0, lane_only), number = begin(search, 1, lane_only);
    assert_true(tune_search_tell(search, first, 0, lane_default, 1.0));
    assert_true(tune_search_tell(search, first, 0, wrong, -1.0));
    assert_true(tune_search_tell(search, first, 0, wrong, 0.1));
    assert_true(tune_search_tell(search, number, 0, lane_default, 1.0));
    for (size_t n = 0; n < 5; n++) {
        int32_t values[TUNE_MOST_PARAMETERS];
        measure_next(search, number, values, 2.0);
        assert_memory_not_equal(values, wrong, sizeof(wrong));
    }
    tune_search_free(search);
}

/* The changes that were the best in the nearest case come before those of a farther one. */
TH_HOST_TEST(the_nearest_case_comes_first)
{
    static const int32_t near_best[LANE_COUNT] = {16, 1, 4, 32, 8, 4, 1},
                         far_best[LANE_COUNT] = {16, 2, 4, 64, 4, 8, 1}, other[LANE_COUNT] = {8, 4, 1, 64, 8, 4, 2},
                         expected[2][LANE_COUNT] = {{8, 1, 1, 32, 8, 4, 2}, {8, 4, 1, 64, 4, 8, 2}};
    static const int32_t *const defaults[] = {other, NULL};
    for (size_t order = 0; order < 2; order++) {
        tune_search *const search = create(order, TUNE_NEIGHBOURS);
        int32_t values[TUNE_MOST_PARAMETERS];
        for (size_t i = 0; i < 2; i++) {
            const bool near = i == order;
            const int known = begin(search, near ? 4.0 : 9.0, lane_only);
            assert_true(tune_search_tell(search, known, 0, lane_default, 1.0));
            assert_true(tune_search_tell(search, known, 0, near ? near_best : far_best, near ? 0.8 : 0.5));
        }
        const int number = begin(search, 5.0, defaults);
        assert_true(tune_search_tell(search, number, 0, other, 1.0));
        for (size_t i = 0; i < 2; i++) {
            measure_next(search, number, values, 2.0);
            assert_memory_equal(values, expected[i], sizeof(expected[i]));
        }
        tune_search_free(search);
    }
}

/* ---- fast points ------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(finds_optima)
{
    static const landscape all[] = {additive, interacting};
    for (size_t i = 0; i < TH_COUNT(all); i++) {
        const double fastest = fastest_lane(all[i]);
        for (uint64_t seed = 0; seed < 10; seed++) {
            tune_search *const search = create(seed, TUNE_NEIGHBOURS), *const chance = create(seed, TUNE_RANDOM);
            const double found = measure(search, begin(search, 0, both), all[i], 40);
            assert_true(found <= fastest * (1.0 + 1e-12));
            assert_true(measure(chance, begin(chance, 0, both), all[i], 40) > found);
            tune_search_free(search);
            tune_search_free(chance);
        }
    }
}

/* Restarts avoid changes that are known to be bad. */
TH_HOST_TEST(restarts_are_promising)
{
    for (uint64_t seed = 0; seed < 10; seed++) {
        tune_search *const search = create(seed, TUNE_NEIGHBOURS);
        const int number = begin(search, 0, lane_only);
        size_t space = 0;
        int32_t values[TUNE_MOST_PARAMETERS];
        assert_true(tune_search_tell(search, number, 0, lane_default, 1.0));
        for (size_t p = 0; p < LANE_COUNT; p++) {
            for (size_t i = 0; i < lane[p].value_count; i++) {
                memcpy(values, lane_default, sizeof(lane_default));
                values[p] = lane[p].values[i];
                if (values[p] != lane_default[p])
                    assert_true(tune_search_tell(search, number, 0, values, p == 4 ? 3.0 : 1.01));
            }
        }
        assert_int_equal(tune_search_next(search, number, &space, values), TUNE_MEASURE);
        assert_true(difference(values, lane_default) > 1);
        assert_int_equal(values[4], lane_default[4]);
        tune_search_free(search);
    }
}

/* A restart climbs from its own starting point, however slow that is. */
TH_HOST_TEST(restarts_climb)
{
    for (uint64_t seed = 0; seed < 10; seed++) {
        tune_search *const search = create(seed, TUNE_NEIGHBOURS), *const chance = create(seed, TUNE_RANDOM);
        const double found = measure(search, begin(search, 0, lane_only), two_valleys, 100);
        const double drawn = measure(chance, begin(chance, 0, lane_only), two_valleys, 100);
        assert_true(found <= 0.3 * (1.0 + 1e-12) && drawn > found);
        tune_search_free(search);
        tune_search_free(chance);
    }
}

TH_HOST_TEST(finds_the_other_engine)
{
    tune_search *const search = create(3, TUNE_NEIGHBOURS);
    const int number = begin(search, 0, both);
    assert_true(tune_search_tell(search, number, 1, simt_default, other_engine(1, simt_default)));
    assert_true(measure(search, number, other_engine, 30) < 0.3 - 0.03 * 3 + 1e-9);
    tune_search_free(search);
}

/* Times told from an earlier run, in whatever order, make the first proposals of another case good. */
TH_HOST_TEST(history_is_used)
{
    static trace t;
    tune_search *const earlier = create(5, TUNE_NEIGHBOURS), *const search = create(6, TUNE_NEIGHBOURS);
    follow(earlier, begin(earlier, 0, both), 60, false, &t);
    const int old = begin(search, 0, both);
    for (size_t i = t.count; i-- > 0;)
        assert_true(tune_search_tell(search, old, t.space[i], t.values[i], interacting(t.space[i], t.values[i])));
    assert_true(measure(search, begin(search, 1, both), interacting, 2) <= fastest_lane(interacting) * (1.0 + 1e-12));
    tune_search_free(earlier);
    tune_search_free(search);
}

/* A search ends where nothing is faster any more. */
TH_HOST_TEST(enough_is_enough)
{
    static trace t;
    tune_search *const search = create(1, TUNE_NEIGHBOURS);
    assert_int_equal(follow(search, begin(search, 0, both), TH_COUNT(t.space), false, &t), TUNE_ENOUGH);
    assert_true(t.count > 64);
    tune_search_free(search);
}
