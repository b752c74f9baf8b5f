/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner's search: the candidates that it may propose, their order, and that it finds fast ones. */
#include "harness/harness.h"
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANE, SIMT, SPACES, LANE_COUNT = 7, SIMT_COUNT = 3 };

static const tune_space fresh[SPACES] = {
    {.name = "lane",
     .parameters = {{.name = "lanes", .values = {8, 16}, .value_count = 2},
                    {.name = "vectors", .values = {1, 2, 4}, .value_count = 3},
                    {.name = "panels", .values = {1, 2, 4, 8}, .value_count = 4},
                    {.name = "tile", .values = {16, 32, 64, 128}, .value_count = 4},
                    {.name = "block", .values = {4, 8, 16}, .value_count = 3},
                    {.name = "unroll", .values = {1, 2, 4, 8}, .value_count = 4},
                    {.name = "splits", .values = {1, 2, 4, 8, 16, 32, 64, 128}, .value_count = 8}},
     .count = LANE_COUNT},
    {.name = "simt",
     .parameters = {{.name = "rows", .values = {1, 2, 4, 8}, .value_count = 4},
                    {.name = "keys", .values = {1, 2, 4, 8}, .value_count = 4},
                    {.name = "features", .values = {4, 8, 16}, .value_count = 3}},
     .count = SIMT_COUNT}};

static const tune_candidate lane_default = {LANE, {16, 2, 4, 64, 8, 4, 1}, 0}, simt_default = {SIMT, {4, 4, 8}, 0};

/* Of 9216 combinations of the first space, 8004 are legal; of 48 of the second, 26. */
static bool is_legal(void *user, const tune_candidate *x)
{
    const int32_t *v = x->values;
    (void)user;
    return x->space == LANE ? v[0] * v[1] * v[2] <= 256 && v[6] * v[3] <= 4096 : v[0] * v[1] >= 4 && v[2] != 16;
}

/* ---- landscapes: time over the defaults' ------------------------------------------------------------------------- */

typedef double (*landscape)(const tune_candidate *x);

/* Every parameter has a best value of its own: 0.4 at {16, 4, 1, 32, 16, 2, 4}. */
static double additive(const tune_candidate *x)
{
    static const double best[LANE_COUNT] = {4, 2, 0, 5, 4, 1, 2}, slope[LANE_COUNT] = {15, 12, 10, 10, 12, 8, 7};
    double sum = 0;
    for (size_t p = 0; p < LANE_COUNT && x->space == LANE; p++)
        sum += 0.01 * slope[p] * fabs(log2(x->values[p]) - best[p]);
    return x->space == LANE ? 0.4 * exp(sum) : 2;
}

/* Models registers: it is fastest, 0.4, if vectors times block is 32, and panels times tile 256. */
static double interacting(const tune_candidate *x)
{
    const int32_t *v = x->values;
    const double registers = fabs(log2(v[1] * v[4]) - 5), cache = fabs(log2(v[2] * v[3]) - 8);
    return x->space == SIMT ? 2
                            : 0.4 * exp(0.15 * registers + 0.12 * cache + 0.1 * (v[0] == 8) +
                                        0.07 * fabs(log2(v[5]) - 1) + 0.05 * log2(v[6]));
}

static double flat(const tune_candidate *x)
{
    return x->space == LANE ? 1 : 2;
}

/* The other engine is faster, the more so the more rows it has. */
static double other_engine(const tune_candidate *x)
{
    return x->space == LANE ? additive(x) : 0.3 - 0.03 * log2(x->values[0]);
}

/* A case whose defaults are measured; with `new_spaces` nothing was learnt of other cases. */
static tune_search begin(tune_space *spaces, bool new_spaces, landscape time)
{
    tune_search search = {.spaces = spaces, .space_count = SPACES, .legal = is_legal};
    tune_candidate lane = lane_default, simt = simt_default;
    lane.ratio = time(&lane);
    simt.ratio = time(&simt);
    if (new_spaces)
        memcpy(spaces, fresh, sizeof(fresh));
    assert_true(tune_add(&search, &lane) && tune_add(&search, &simt));
    return search;
}

/* Measures up to `count` candidates, each of which is legal and new; their number. With `fail` every third fails. */
static size_t measure(tune_search *search, landscape time, size_t count, bool fail)
{
    for (size_t n = 0; n < count; n++) {
        const size_t before = search->count;
        tune_candidate x;
        if (!tune_propose(search, &x))
            return n;
        assert_true(is_legal(NULL, &x));
        assert_int_equal(search->count, before + 1); /* it was not there */
        x.ratio = fail && n % 3 == 2 ? -1 : time(&x);
        assert_true(tune_add(search, &x));
        assert_int_equal(search->count, before + 1);
    }
    return count;
}

TH_HOST_TEST(proposals_are_legal_and_new_and_end)
{
    for (int fail = 0; fail < 2; fail++) {
        tune_space spaces[SPACES];
        tune_search search = begin(spaces, true, interacting);
        const size_t count = measure(&search, interacting, 1000, fail);
        assert_true(count > 64 && count < 1000);
        free(search.list);
    }
}

/* A failure bans a candidate: a later success does not lift the ban. */
TH_HOST_TEST(failures_are_final)
{
    static const double ratios[] = {0.2, -1, 0.1};
    tune_space spaces[SPACES];
    tune_search search = begin(spaces, true, flat);
    for (size_t i = 0; i < TH_COUNT(ratios); i++) {
        const tune_candidate wrong = {LANE, {16, 2, 4, 64, 16, 4, 1}, ratios[i]};
        assert_true(tune_add(&search, &wrong));
    }
    assert_true(tune_same(&search, tune_fastest(&search, SIZE_MAX), &lane_default));
    free(search.list);
}

/* Starts come first, unless they are illegal or known; then what helped in another case. */
TH_HOST_TEST(starts_and_helpful_changes_come_first)
{
    static const tune_candidate helped = {LANE, {16, 2, 4, 64, 16, 4, 1}, 0.8},
                                start = {LANE, {8, 1, 1, 32, 8, 8, 4}, 0}, illegal = {LANE, {16, 4, 8, 32, 8, 8, 4}, 0};
    tune_space spaces[SPACES];
    tune_search other = begin(spaces, true, flat), search = begin(spaces, false, flat);
    tune_candidate x;
    assert_true(tune_add(&other, &helped));
    search.starts[search.start_count++] = lane_default;
    search.starts[search.start_count++] = illegal;
    search.starts[search.start_count++] = start;
    assert_true(tune_propose(&search, &x) && tune_same(&search, &x, &start));
    assert_true(tune_propose(&search, &x) && tune_same(&search, &x, &helped));
    free(other.list);
    free(search.list);
}

/* If nothing is faster than the defaults, each is left for a nearer one first: single changes come before pairs. What
 * has no time yet is not proposed again, and does not attract proposals of its neighbours. */
TH_HOST_TEST(neighbours_come_first_then_pairs)
{
    tune_space spaces[SPACES];
    tune_search search = begin(spaces, true, flat);
    size_t pairs = 0;
    for (size_t n = 0; n < 50; n++) {
        tune_candidate x;
        assert_true(tune_propose(&search, &x));
        assert_int_equal(x.space, LANE);
        size_t changed = 0;
        for (size_t p = 0; p < LANE_COUNT; p++)
            changed += x.values[p] != lane_default.values[p];
        assert_true(changed == 1 || (n > 5 && changed == 2));
        pairs += changed == 2;
    }
    assert_true(pairs > 0);
    free(search.list);
}

/* Among 8004 candidates within 50 measurements. */
TH_HOST_TEST(finds_optima)
{
    static const struct {
        landscape time;
        double fastest;
    } goals[] = {{additive, 0.4}, {interacting, 0.4}, {other_engine, 0.3 - 0.03 * 3}};
    for (size_t i = 0; i < TH_COUNT(goals); i++) {
        tune_space spaces[SPACES];
        tune_search search = begin(spaces, true, goals[i].time);
        (void)measure(&search, goals[i].time, 50, false);
        assert_true(tune_fastest(&search, SIZE_MAX)->ratio <= goals[i].fastest * (1 + 1e-12));
        free(search.list);
    }
}
