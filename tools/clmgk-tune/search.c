/* SPDX-License-Identifier: Apache-2.0 */
/* Search: the times told, and the choice of the next point. */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE    SIZE_MAX
#define PENDING 0.0
#define FAILED  (-1.0)

enum {
    KNOWN_CASES = 4, /* nearest cases whose fastest points are tried */
    PATIENCE = 64,   /* points without a faster one that end a case's search */
    DRAWS = 16,      /* random points of which a restart takes the most promising */
    TRIES = 512      /* draws until a space counts as hard to hit */
};
#define COUNTED 1e6 /* combinations that are gone through to count or to find a legal one */

/* Logarithms of ratios of times. */
#define FAILED_EFFECT 1.4  /* a failure counts as four times as slow */
#define FAR_EFFECT    1e-3 /* each value that a change leaps over: prefers nearer ones */

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* Places of the values in their parameters' tables; 0 beyond the space's parameters. */
typedef struct point {
    size_t space;
    uint8_t place[TUNE_MOST_PARAMETERS];
} point;

typedef struct measurement {
    size_t number; /* of the case */
    point at;
    double seconds; /* or PENDING: proposed and not told yet; or FAILED */
} measurement;

typedef struct problem {
    double axes[TUNE_AXES];
    size_t default_space;
    point *start; /* of each space; .space is NONE where it is not available */
    size_t climb; /* the first measurement since the last restart */
} problem;

/* log(time with another value / time before), summed over pairs of points of one case that differ in nothing else. */
typedef struct effect {
    double sum, count;
} effect;

struct tune_search {
    const tune_space *spaces;
    size_t space_count;
    tune_mode mode;
    uint64_t random;
    problem *problems;
    size_t problem_count;
    measurement *measured;
    size_t measured_count, measured_room;
    effect change[TUNE_MOST_PARAMETERS][TUNE_MOST_VALUES][TUNE_MOST_VALUES]; /* from one value to another */
    effect rise[TUNE_MOST_PARAMETERS];                                       /* from any value to any higher one */
};

/* ---- random numbers: xorshift64* --------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state)
{
    *state ^= *state >> 12U;
    *state ^= *state << 25U;
    *state ^= *state >> 27U;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

static size_t draw_below(uint64_t *state, size_t bound)
{
    return (size_t)((double)(draw(state) >> 11U) * 0x1p-53 * (double)bound);
}

/* Neighbouring seeds shall not give similar numbers. */
static uint64_t spread_seed(uint64_t seed)
{
    uint64_t z = seed + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30U)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27U)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31U;
    return z != 0 ? z : 1;
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

static bool same_point(const point *a, const point *b)
{
    return a->space == b->space && memcmp(a->place, b->place, sizeof(a->place)) == 0;
}

static bool point_of(const tune_search *search, size_t space, const int32_t *values, point *out)
{
    memset(out, 0, sizeof(*out));
    out->space = space;
    for (size_t p = 0; p < search->spaces[space].count; ++p) {
        const tune_parameter *const parameter = &search->spaces[space].parameters[p];
        size_t i = 0;
        while (i < parameter->value_count && parameter->values[i] != values[p])
            ++i;
        if (i == parameter->value_count)
            return false;
        out->place[p] = (uint8_t)i;
    }
    return true;
}

static void values_of(const tune_space *space, const point *at, int32_t *values)
{
    for (size_t p = 0; p < space->count; ++p)
        values[p] = space->parameters[p].values[at->place[p]];
}

static bool is_legal(const tune_search *search, const point *at)
{
    const tune_space *const space = &search->spaces[at->space];
    int32_t values[TUNE_MOST_PARAMETERS];
    values_of(space, at, values);
    return space->legal == NULL || space->legal(space->user, values);
}

/* Combinations of values, legal or not. */
static double combinations(const tune_space *space)
{
    double product = 1.0;
    for (size_t p = 0; p < space->count; ++p)
        product *= (double)space->parameters[p].value_count;
    return product;
}

/* The next combination; false after the last, when all places are 0 again. */
static bool step(const tune_space *space, point *at)
{
    for (size_t p = 0; p < space->count; ++p) {
        if (++at->place[p] < space->parameters[p].value_count)
            return true;
        at->place[p] = 0;
    }
    return false;
}

static void draw_point(const tune_space *space, uint64_t *random, point *at)
{
    for (size_t p = 0; p < space->count; ++p)
        at->place[p] = (uint8_t)draw_below(random, space->parameters[p].value_count);
}

static size_t find_measurement(const tune_search *search, size_t number, const point *at)
{
    for (size_t i = 0; i < search->measured_count; ++i)
        if (search->measured[i].number == number && same_point(&search->measured[i].at, at))
            return i;
    return NONE;
}

/* Legal, and neither told nor proposed before. */
static bool is_open(const tune_search *search, size_t number, const point *at)
{
    return find_measurement(search, number, at) == NONE && is_legal(search, at);
}

/* The fastest of a case's measurements, from one of all measurements on; NULL: none. */
static const measurement *find_fastest(const tune_search *search, size_t number, size_t first)
{
    const measurement *fastest = NULL;
    for (size_t i = first; i < search->measured_count; ++i) {
        const measurement *const m = &search->measured[i];
        if (m->number == number && m->seconds > 0.0 && (fastest == NULL || m->seconds < fastest->seconds))
            fastest = m;
    }
    return fastest;
}

/* ---- the fastest points of the nearest cases --------------------------------------------------------------------- */

static double distance(const problem *a, const problem *b)
{
    double sum = 0.0;
    for (size_t i = 0; i < TUNE_AXES; ++i)
        sum += fabs(a->axes[i] - b->axes[i]);
    return sum;
}

/* Number of cases with times that are nearer to a case than `other`; of equally near ones the first counts as nearer.
 */
static size_t rank_of(const tune_search *search, size_t number, size_t other)
{
    const problem *const one = &search->problems[number];
    const double limit = distance(one, &search->problems[other]);
    size_t rank = 0;
    for (size_t n = 0; n < search->problem_count; ++n) {
        const double far = distance(one, &search->problems[n]);
        rank += n != number && (far < limit || (far == limit && n < other)) && find_fastest(search, n, 0) != NULL;
    }
    return rank;
}

/* This case's defaults with the changes by which another case's fastest point differs from that case's defaults. */
static bool transfer(const tune_search *search, size_t number, size_t other, point *out)
{
    const measurement *const fastest = find_fastest(search, other, 0);
    if (fastest == NULL)
        return false;
    const point *const before = &search->problems[other].start[fastest->at.space];
    *out = search->problems[number].start[fastest->at.space];
    if (out->space == NONE)
        return false;
    for (size_t p = 0; p < search->spaces[out->space].count; ++p)
        if (fastest->at.place[p] != before->place[p])
            out->place[p] = fastest->at.place[p];
    return is_open(search, number, out);
}

static bool find_known(const tune_search *search, size_t number, point *out)
{
    size_t nearest = KNOWN_CASES;
    for (size_t other = 0; other < search->problem_count; ++other) {
        point at;
        if (other == number || !transfer(search, number, other, &at))
            continue;
        const size_t rank = rank_of(search, number, other);
        if (rank < nearest) {
            nearest = rank;
            *out = at;
        }
    }
    return nearest < KNOWN_CASES;
}

/* ---- neighbours: points that differ in one value ----------------------------------------------------------------- */

/* The parameter in which two points differ; NONE: in none, or in several. */
static size_t find_difference(const tune_space *space, const point *a, const point *b)
{
    size_t found = NONE;
    for (size_t p = 0; p < space->count; ++p) {
        if (a->place[p] == b->place[p])
            continue;
        if (found != NONE)
            return NONE;
        found = p;
    }
    return found;
}

static void add_effect(effect *to, double logarithm)
{
    to->sum += logarithm;
    to->count += 1.0;
}

/* b's time over a's, as a logarithm. */
static double compare(const measurement *a, const measurement *b)
{
    if (a->seconds == FAILED || b->seconds == FAILED)
        return a->seconds == b->seconds ? 0.0 : b->seconds == FAILED ? FAILED_EFFECT : -FAILED_EFFECT;
    return log(b->seconds / a->seconds);
}

static void add_pair(tune_search *search, const measurement *a, const measurement *b)
{
    const size_t p = find_difference(&search->spaces[a->at.space], &a->at, &b->at);
    if (p == NONE)
        return;
    const size_t i = a->at.place[p], j = b->at.place[p];
    const double logarithm = compare(a, b);
    add_effect(&search->change[p][i][j], logarithm);
    add_effect(&search->change[p][j][i], -logarithm);
    add_effect(&search->rise[p], j > i ? logarithm : -logarithm);
}

/* The effects of changes in a space, from the measurements of all cases. */
static void sum_effects(tune_search *search, size_t space)
{
    memset(search->change, 0, sizeof(search->change));
    memset(search->rise, 0, sizeof(search->rise));
    for (size_t i = 0; i < search->measured_count; ++i) {
        const measurement *const a = &search->measured[i];
        for (size_t j = i + 1; j < search->measured_count && a->at.space == space && a->seconds != PENDING; ++j) {
            const measurement *const b = &search->measured[j];
            if (b->number == a->number && b->at.space == space && b->seconds != PENDING)
                add_pair(search, a, b);
        }
    }
}

/* Expected effect of a change: the mean of those known of a change in this direction, where the same change counts
 * twice; drawn towards 0 where little is known. */
static double expect_effect(const tune_search *search, size_t p, size_t from, size_t to)
{
    const effect *const same = &search->change[p][from][to], *const rise = &search->rise[p];
    const double direction = to > from ? rise->sum : -rise->sum;
    const double leapt = to > from ? (double)(to - from - 1) : (double)(from - to - 1);
    return (same->sum + direction) / (same->count + rise->count + 2.0) + FAR_EFFECT * leapt;
}

/* The best neighbour found so far. */
typedef struct neighbour {
    double expected; /* time over the fastest, as a logarithm */
    size_t equals;   /* so many are expected to be as fast */
    point at;
} neighbour;

static void look_around(tune_search *search, const measurement *center, double slower, neighbour *best)
{
    const tune_space *const space = &search->spaces[center->at.space];
    for (size_t p = 0; p < space->count; ++p) {
        point at = center->at;
        for (size_t i = 0; i < space->parameters[p].value_count; ++i) {
            at.place[p] = (uint8_t)i;
            const double expected = slower + expect_effect(search, p, center->at.place[p], i);
            if (i == center->at.place[p] || expected > best->expected || !is_open(search, center->number, &at))
                continue;
            best->equals = expected < best->expected ? 1 : best->equals + 1;
            best->expected = expected;
            if (draw_below(&search->random, best->equals) == 0)
                best->at = at;
        }
    }
}

/* Of all neighbours of the points measured since the last restart the one that is expected to be the fastest, unless
 * that is slower than the fastest of these points. */
static bool find_neighbour(tune_search *search, size_t number, point *out)
{
    const size_t first = search->problems[number].climb;
    const measurement *const fastest = find_fastest(search, number, first);
    neighbour best = {.expected = 0.0, .equals = 0};
    for (size_t s = 0; s < search->space_count && fastest != NULL; ++s) {
        sum_effects(search, s);
        for (size_t i = first; i < search->measured_count; ++i) {
            const measurement *const center = &search->measured[i];
            if (center->number == number && center->at.space == s && center->seconds > 0.0)
                look_around(search, center, compare(fastest, center), &best);
        }
    }
    *out = best.at;
    return best.equals > 0;
}

/* ---- random points ----------------------------------------------------------------------------------------------- */

static bool draw_open(tune_search *search, size_t number, point *out)
{
    for (size_t n = 0; n < TRIES; ++n) {
        *out = search->problems[number].start[draw_below(&search->random, search->space_count)];
        if (out->space == NONE)
            continue;
        draw_point(&search->spaces[out->space], &search->random, out);
        if (is_open(search, number, out))
            return true;
    }
    return false;
}

/* The same where few are left: goes through all of them. */
static bool find_open(tune_search *search, size_t number, point *out)
{
    size_t found = 0;
    for (size_t s = 0; s < search->space_count; ++s) {
        if (search->problems[number].start[s].space == NONE || combinations(&search->spaces[s]) > COUNTED)
            continue;
        point at = {.space = s};
        do
            if (is_open(search, number, &at) && draw_below(&search->random, ++found) == 0)
                *out = at;
        while (step(&search->spaces[s], &at));
    }
    return found > 0;
}

/* Expected time of a point over that of another of its space, as a logarithm: the sum of all changes' effects. */
static double expect_changes(const tune_search *search, const point *from, const point *to)
{
    double sum = 0.0;
    for (size_t p = 0; p < search->spaces[from->space].count; ++p)
        sum += from->place[p] != to->place[p] ? expect_effect(search, p, from->place[p], to->place[p]) : 0.0;
    return sum;
}

/* Of a few random points the one that is expected to be the fastest. Another engine's count as fast as the fastest. */
static bool draw_promising(tune_search *search, size_t number, point *out)
{
    const measurement *const fastest = find_fastest(search, number, 0);
    double least = INFINITY;
    point at;
    if (fastest == NULL)
        return false;
    sum_effects(search, fastest->at.space);
    for (size_t n = 0; n < DRAWS && draw_open(search, number, &at); ++n) {
        const double expected = at.space == fastest->at.space ? expect_changes(search, &fastest->at, &at) : 0.0;
        if (expected >= least)
            continue;
        least = expected;
        *out = at;
    }
    return least < INFINITY;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

/* Points of a case that were told after its fastest. */
static size_t count_since_fastest(const tune_search *search, size_t number)
{
    const measurement *const fastest = find_fastest(search, number, 0);
    size_t count = 0;
    for (size_t i = fastest == NULL ? 0 : (size_t)(fastest - search->measured) + 1; i < search->measured_count; ++i)
        count += search->measured[i].number == number;
    return count;
}

static tune_proposal propose(tune_search *search, size_t number, point *out)
{
    problem *const one = &search->problems[number];
    *out = one->start[one->default_space];
    if (is_open(search, number, out))
        return TUNE_MEASURE;
    if (search->mode == TUNE_NEIGHBOURS) {
        if (find_known(search, number, out) || find_neighbour(search, number, out))
            return TUNE_MEASURE;
        if (count_since_fastest(search, number) >= PATIENCE)
            return TUNE_ENOUGH;
        if (find_fastest(search, number, one->climb) != NULL) /* else the last restart has no time yet */
            one->climb = search->measured_count;
        if (draw_promising(search, number, out))
            return TUNE_MEASURE;
    }
    return draw_open(search, number, out) || find_open(search, number, out) ? TUNE_MEASURE : TUNE_EXHAUSTED;
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

static bool is_space(const tune_space *space)
{
    if (space->count == 0 || space->count > TUNE_MOST_PARAMETERS)
        return false;
    for (size_t p = 0; p < space->count; ++p)
        if (space->parameters[p].value_count == 0 || space->parameters[p].value_count > TUNE_MOST_VALUES)
            return false;
    return true;
}

tune_search *tune_search_create(const tune_space *spaces, size_t space_count, uint64_t seed, tune_mode mode)
{
    for (size_t s = 0; s < space_count; ++s)
        if (!is_space(&spaces[s]))
            return NULL;
    tune_search *const search = space_count > 0 ? calloc(1, sizeof(*search)) : NULL;
    if (search == NULL)
        return NULL;
    search->spaces = spaces;
    search->space_count = space_count;
    search->mode = mode;
    search->random = spread_seed(seed);
    return search;
}

void tune_search_free(tune_search *search)
{
    if (search == NULL)
        return;
    for (size_t n = 0; n < search->problem_count; ++n)
        free(search->problems[n].start);
    free(search->problems);
    free(search->measured);
    free(search);
}

static bool set_starts(const tune_search *search, const tune_case *one, point *start)
{
    for (size_t s = 0; s < search->space_count; ++s) {
        start[s].space = NONE;
        if (one->defaults[s] != NULL && !point_of(search, s, one->defaults[s], &start[s]))
            return false;
    }
    return one->default_space < search->space_count && start[one->default_space].space != NONE;
}

int tune_search_begin(tune_search *search, const tune_case *one)
{
    const size_t number = search->problem_count;
    problem *const grown = realloc(search->problems, (number + 1) * sizeof(problem));
    if (grown == NULL)
        return -1;
    search->problems = grown;
    problem fresh = {.default_space = one->default_space, .start = calloc(search->space_count, sizeof(point))};
    memcpy(fresh.axes, one->axes, sizeof(fresh.axes));
    if (fresh.start == NULL || !set_starts(search, one, fresh.start)) {
        free(fresh.start);
        return -1;
    }
    grown[number] = fresh;
    search->problem_count = number + 1;
    return (int)number;
}

static bool append(tune_search *search, const measurement *m)
{
    if (search->measured_count == search->measured_room) {
        const size_t room = 2 * search->measured_room + 64;
        measurement *const grown = realloc(search->measured, room * sizeof(measurement));
        if (grown == NULL)
            return false;
        search->measured = grown;
        search->measured_room = room;
    }
    search->measured[search->measured_count++] = *m;
    return true;
}

bool tune_search_tell(tune_search *search, int number, size_t space, const int32_t *values, double seconds)
{
    if (number < 0 || (size_t)number >= search->problem_count || space >= search->space_count ||
        search->problems[number].start[space].space == NONE)
        return false;
    measurement m = {.number = (size_t)number, .seconds = seconds > 0.0 && isfinite(seconds) ? seconds : FAILED};
    if (!point_of(search, space, values, &m.at))
        return false;
    const size_t before = find_measurement(search, m.number, &m.at);
    if (before == NONE && !append(search, &m))
        return false;
    if (before != NONE && search->measured[before].seconds != FAILED)
        search->measured[before].seconds = m.seconds;
    return true;
}

tune_proposal tune_search_next(tune_search *search, int number, size_t *space, int32_t *values)
{
    if (number < 0 || (size_t)number >= search->problem_count)
        return TUNE_FAILED;
    measurement m = {.number = (size_t)number, .seconds = PENDING};
    const tune_proposal answer = propose(search, m.number, &m.at);
    if (answer != TUNE_MEASURE)
        return answer;
    if (!append(search, &m))
        return TUNE_FAILED;
    *space = m.at.space;
    values_of(&search->spaces[m.at.space], &m.at, values);
    return answer;
}

double tune_search_space_size(const tune_search *search, size_t space)
{
    enum { SAMPLES = 100000 };
    const tune_space *const table = &search->spaces[space];
    const double all = combinations(table);
    point at = {.space = space};
    double legal = 0.0;
    if (all <= COUNTED) {
        do
            legal += is_legal(search, &at) ? 1.0 : 0.0;
        while (step(table, &at));
        return legal;
    }
    uint64_t random = spread_seed(0);
    for (size_t n = 0; n < SAMPLES; ++n) {
        draw_point(table, &random, &at);
        legal += is_legal(search, &at) ? 1.0 : 0.0;
    }
    return all * legal / SAMPLES;
}
