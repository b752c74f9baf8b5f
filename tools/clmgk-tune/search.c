/* SPDX-License-Identifier: Apache-2.0 */
/* Search: what was measured, the model of it (a Gaussian process over all
 * cases), and the choice of the next point. */
#include "search.h"

#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE SIZE_MAX

/* ---- the model's constants: docs/tuning-search.md
 * ------------------------------------------------------------- */

/* Parts of a point's effect that all cases share, that those of a group share,
 * that is the case's own. */
#define SHARED_PART 0.5
#define GROUP_PART  0.2
#define CASE_PART   0.3
/* Variances relative to that of a single parameter's effect. */
#define PAIR_PART   2.0 /* of all pairs that a parameter is in */
#define ENGINE_PART 4.0 /* of another engine as a whole */
#define NOISE_PART  0.02
/* Scale: before anything was measured, and how many measurements that is worth.
 */
#define SCALE_GUESS  0.02
#define SCALE_WEIGHT 20.0
/* Most that chance adds to a score. */
#define BLUR 0.2
/* What a failure counts as: four times as slow. So does whatever is slower. */
#define SLOWEST 1.3862943611198906

enum {
    MODELLED = 1000,   /* measurements in the model; beyond, the older half is forgotten */
    POOL = 1024,       /* points considered for one proposal */
    SHORT_LIST = 64,   /* of which so many by the model's full variance */
    ENUMERATED = 1024, /* smaller spaces are considered in full */
    DRAWN = 64,        /* random points of a pool */
    PAIRS_DRAWN = 160, /* changes of two values of the fastest point */
    TRIES = 512,       /* draws until a space counts as hard to hit */
    CLIMBS = 8,        /* steps to better neighbours */
    LEARNT = 4         /* measurements after which one more value may be changed at a time */
};
#define COUNTED 1e6 /* combinations that are gone through to count or to find a legal one */

/* ---- what is kept
 * ----------------------------------------------------------------------------------------------
 */

/* Places of the values in their parameters' tables; what is beyond the space's
 * parameters is 0. */
typedef struct point {
    size_t space;
    uint8_t place[TUNE_MOST_PARAMETERS];
} point;

typedef struct measurement {
    size_t number; /* of the case */
    point at;
    double seconds; /* negative: failed */
} measurement;

typedef struct problem {
    char *group_name;
    size_t group; /* number of the first case with this name */
    size_t default_space;
    point *start;         /* of each space; .space is NONE where it is not available */
    size_t default_index; /* the default's measurement, or NONE */
    size_t first, best;   /* measurements that did not fail: the first told, the
                             fastest; or NONE */
} problem;

typedef struct candidate {
    point at;
    double cost;
    double gain;  /* expected, in log time */
    double score; /* what is compared */
} candidate;

struct tune_search {
    const tune_space *spaces;
    size_t space_count;
    tune_mode mode;
    uint64_t random;
    problem *problems;
    size_t problem_count;
    measurement *measured;
    size_t measured_count, measured_room;

    /* Measurements in the model, and the factor R of their covariance matrix R'R,
     * column by column; every measurement that comes adds a column. */
    size_t modelled[MODELLED];
    size_t modelled_count, seen;
    double *factor;
    double *whitened;   /* R'^-1 y */
    double *weights;    /* R^-1 R'^-1 y */
    double *from_start; /* of each measurement in the model: likeness to the
                           case's defaults */
    double *columns;    /* SHORT_LIST columns */
    double scale;       /* variance of a single parameter's effect */
    double incumbent;   /* log time of the fastest point */

    candidate *pool;
    size_t pool_count;
    size_t reach; /* most values in which a point may differ from the fastest or
                     the defaults */
};

/* What `next` was asked. */
typedef struct question {
    const problem *one;
    size_t number;
    tune_cost cost;
    void *user;
    double least_gain;
} question;

/* ---- random numbers: xorshift64*
 * --------------------------------------------------------------------------------
 */

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

/* ---- points
 * ------------------------------------------------------------------------------------------------------
 */

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

static bool is_open(const tune_search *search, size_t number, const point *at)
{
    return find_measurement(search, number, at) == NONE && is_legal(search, at);
}

/* ---- covariance
 * --------------------------------------------------------------------------------------------------
 *
 * f(x), the logarithm of a point's time, is a sum of effects of values and of
 * pairs of values; what is modelled is f(x) - f(default). */

/* Covariance of f at two points of a space. Neighbouring values are half alike,
 * and so on. */
static double likeness(const tune_space *space, const point *a, const point *b)
{
    static const double near[TUNE_MOST_VALUES] = {0x1p-0, 0x1p-1, 0x1p-2,  0x1p-3,  0x1p-4,  0x1p-5,  0x1p-6,  0x1p-7,
                                                  0x1p-8, 0x1p-9, 0x1p-10, 0x1p-11, 0x1p-12, 0x1p-13, 0x1p-14, 0x1p-15};
    double sum = 0.0, squares = 0.0;
    for (size_t p = 0; p < space->count; ++p) {
        const double alike = near[abs((int)a->place[p] - (int)b->place[p])];
        sum += alike;
        squares += alike * alike;
    }
    const double others = space->count > 1 ? (double)(space->count - 1) : 1.0;
    return sum + PAIR_PART / others * 0.5 * (sum * sum - squares);
}

/* Of the engine itself: f has a constant for each. */
static double engine_covariance(size_t a, size_t default_a, size_t b, size_t default_b)
{
    return ENGINE_PART * ((a == b) - (a == default_b) - (default_a == b) + (default_a == default_b));
}

static double common_part(const tune_search *search, size_t a, size_t b)
{
    return SHARED_PART + (search->problems[a].group == search->problems[b].group ? GROUP_PART : 0.0) +
           (a == b ? CASE_PART : 0.0);
}

static double prior_variance(const tune_search *search, size_t number, const point *at)
{
    const problem *const one = &search->problems[number];
    const tune_space *const space = &search->spaces[at->space];
    const point *const start = &one->start[at->space];
    return (SHARED_PART + GROUP_PART + CASE_PART) *
           (2.0 * likeness(space, at, at) - 2.0 * likeness(space, at, start) +
            engine_covariance(at->space, one->default_space, at->space, one->default_space));
}

/* Likeness of each measurement in the model to the defaults of a case: the part
 * of a column that is the same for all the case's points. */
static void compare_with_start(tune_search *search, const problem *one)
{
    for (size_t i = 0; i < search->modelled_count; ++i) {
        const point *const at = &search->measured[search->modelled[i]].at;
        const point *const start = &one->start[at->space];
        search->from_start[i] = start->space == NONE ? 0.0 : likeness(&search->spaces[at->space], start, at);
    }
}

/* Covariance of a point of a case with each measurement in the model.
 * from_start must be of that case. */
static void covariance_column(const tune_search *search, size_t number, const point *at, double *column)
{
    const problem *const one = &search->problems[number];
    const tune_space *const space = &search->spaces[at->space];
    size_t last = NONE;
    double part = 0.0, with_start = 0.0; /* of the case `last` */
    for (size_t i = 0; i < search->modelled_count; ++i) {
        const measurement *const other = &search->measured[search->modelled[i]];
        const problem *const its = &search->problems[other->number];
        if (other->number != last) {
            last = other->number;
            part = common_part(search, number, last);
            const point *const start = &its->start[at->space];
            with_start = start->space == NONE
                             ? 0.0
                             : likeness(space, &one->start[at->space], start) - likeness(space, at, start);
        }
        double covariance = engine_covariance(at->space, one->default_space, other->at.space, its->default_space);
        if (other->at.space == at->space)
            covariance += likeness(space, at, &other->at) - search->from_start[i] + with_start;
        column[i] = part * covariance;
    }
}

/* ---- the model
 * ---------------------------------------------------------------------------------------------------
 */

/* Log time relative to the case's default; if that failed, to the first time
 * told. */
static double log_time(const tune_search *search, const measurement *m)
{
    const problem *const one = &search->problems[m->number];
    if (m->seconds < 0.0)
        return SLOWEST;
    const bool has_default = one->default_index != NONE && search->measured[one->default_index].seconds > 0.0;
    const double unit = search->measured[has_default ? one->default_index : one->first].seconds;
    return fmin(log(m->seconds / unit), SLOWEST);
}

/* columns := R'^-1 columns */
static bool whiten(const tune_search *search, double *columns, size_t count)
{
    const lapack_int n = (lapack_int)search->modelled_count;
    return n == 0 || count == 0 ||
           LAPACKE_dtrtrs(LAPACK_COL_MAJOR, 'U', 'T', 'N', n, (lapack_int)count, search->factor, MODELLED, columns,
                          MODELLED) == 0;
}

static double dot(const double *a, const double *b, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; ++i)
        sum += a[i] * b[i];
    return sum;
}

static bool add_to_model(tune_search *search, size_t index)
{
    const measurement *const m = &search->measured[index];
    const size_t n = search->modelled_count;
    double *const column = search->factor + n * MODELLED;
    compare_with_start(search, &search->problems[m->number]);
    covariance_column(search, m->number, &m->at, column);
    if (!whiten(search, column, 1))
        return false;
    /* the noise alone bounds it from below, but for rounding */
    const double rest = prior_variance(search, m->number, &m->at) + NOISE_PART - dot(column, column, n);
    column[n] = sqrt(fmax(rest, 0.5 * NOISE_PART));
    search->modelled[n] = index;
    search->modelled_count = n + 1;
    return true;
}

static bool forget_older_half(tune_search *search)
{
    size_t kept[MODELLED / 2];
    memcpy(kept, search->modelled + MODELLED - MODELLED / 2, sizeof(kept));
    search->modelled_count = 0;
    for (size_t i = 0; i < MODELLED / 2; ++i)
        if (!add_to_model(search, kept[i]))
            return false;
    return true;
}

/* Brings the model up to what was told, for proposals in a case. */
static bool fit(tune_search *search, const problem *one)
{
    for (; search->seen < search->measured_count; ++search->seen) {
        if (search->modelled_count == MODELLED && !forget_older_half(search))
            return false;
        if (!add_to_model(search, search->seen))
            return false;
    }
    const size_t n = search->modelled_count;
    for (size_t i = 0; i < n; ++i)
        search->whitened[i] = log_time(search, &search->measured[search->modelled[i]]);
    if (!whiten(search, search->whitened, 1))
        return false;
    memcpy(search->weights, search->whitened, n * sizeof(double));
    if (n > 0 && LAPACKE_dtrtrs(LAPACK_COL_MAJOR, 'U', 'N', 'N', (lapack_int)n, 1, search->factor, MODELLED,
                                search->weights, MODELLED) != 0)
        return false;
    search->scale =
        (SCALE_WEIGHT * SCALE_GUESS + dot(search->whitened, search->whitened, n)) / (SCALE_WEIGHT + (double)n);
    search->incumbent = one->best == NONE ? 0.0 : log_time(search, &search->measured[one->best]);
    compare_with_start(search, one);
    return true;
}

/* E max(0, incumbent - y) of a normal y. */
static double expected_improvement(double incumbent, double mean, double variance)
{
    const double deviation = sqrt(variance);
    if (!(deviation > 0.0))
        return fmax(0.0, incumbent - mean);
    const double z = (incumbent - mean) / deviation;
    return deviation * (z * 0.5 * erfc(-z * 0.70710678118654752) + 0.39894228040143268 * exp(-0.5 * z * z));
}

/* Gain by cost; what is not worth a measurement comes after all that is. */
static void set_gain(const question *asked, candidate *c, double gain)
{
    c->gain = gain;
    c->score = gain / c->cost * (gain >= asked->least_gain ? 1.0 : 1e-6);
}

/* Between points of like promise chance decides: searches that begin alike
 * shall not all take the same wrong turn. */
static void blur_score(tune_search *search, candidate *c)
{
    c->score *= 1.0 + BLUR * (double)(draw(&search->random) >> 11U) * 0x1p-53;
}

/* By mean and prior variance: for the choice of a short list. */
static void rate_roughly(const tune_search *search, const question *asked, candidate *c)
{
    covariance_column(search, asked->number, &c->at, search->columns);
    const double mean = dot(search->columns, search->weights, search->modelled_count);
    const double variance = search->scale * prior_variance(search, asked->number, &c->at);
    set_gain(asked, c, expected_improvement(search->incumbent, mean, variance));
}

/* By mean and variance of up to SHORT_LIST candidates. */
static bool rate_some(tune_search *search, const question *asked, candidate *some, size_t count)
{
    const size_t n = search->modelled_count;
    for (size_t i = 0; i < count; ++i)
        covariance_column(search, asked->number, &some[i].at, search->columns + i * MODELLED);
    if (!whiten(search, search->columns, count))
        return false;
    for (size_t i = 0; i < count; ++i) {
        const double *const column = search->columns + i * MODELLED;
        const double prior = prior_variance(search, asked->number, &some[i].at);
        const double variance = search->scale * fmax(0.0, prior - dot(column, column, n));
        set_gain(asked, &some[i], expected_improvement(search->incumbent, dot(column, search->whitened, n), variance));
        blur_score(search, &some[i]);
    }
    return true;
}

static bool rate(tune_search *search, const question *asked, candidate *some, size_t count)
{
    for (size_t done = 0; done < count; done += SHORT_LIST)
        if (!rate_some(search, asked, some + done, count - done < SHORT_LIST ? count - done : SHORT_LIST))
            return false;
    return true;
}

/* ---- the pool
 * ----------------------------------------------------------------------------------------------------
 */

static size_t difference(const point *a, const point *b)
{
    size_t count = 0;
    for (size_t p = 0; p < TUNE_MOST_PARAMETERS; ++p)
        count += a->place[p] != b->place[p];
    return count;
}

static void add_candidate(tune_search *search, const question *asked, const point *at)
{
    if (search->pool_count == POOL || asked->one->start[at->space].space == NONE)
        return;
    for (size_t i = 0; i < search->pool_count; ++i)
        if (same_point(&search->pool[i].at, at))
            return;
    if (!is_open(search, asked->number, at))
        return;
    candidate *const added = &search->pool[search->pool_count++];
    *added = (candidate){.at = *at, .cost = 1.0};
    if (asked->cost != NULL) {
        int32_t values[TUNE_MOST_PARAMETERS];
        values_of(&search->spaces[at->space], at, values);
        added->cost = fmax(asked->cost(asked->user, at->space, values), 1e-6);
    }
}

/* The fastest point of a space in a case; its defaults if none was measured. */
static const point *fastest_of(const tune_search *search, const question *asked, size_t space)
{
    const measurement *fastest = NULL;
    for (size_t i = 0; i < search->measured_count; ++i) {
        const measurement *const m = &search->measured[i];
        if (m->number == asked->number && m->at.space == space && m->seconds > 0.0 &&
            (fastest == NULL || m->seconds < fastest->seconds))
            fastest = m;
    }
    return fastest != NULL ? &fastest->at : &asked->one->start[space];
}

/* Far from what was measured the model only guesses, and a point that is far
 * off in everything is seldom fast. */
static void add_near(tune_search *search, const question *asked, const point *at)
{
    const point *const start = &asked->one->start[at->space];
    if (start->space != NONE && (difference(at, start) <= search->reach ||
                                 difference(at, fastest_of(search, asked, at->space)) <= search->reach))
        add_candidate(search, asked, at);
}

static void add_neighbours(tune_search *search, const question *asked, const point *center)
{
    const tune_space *const space = &search->spaces[center->space];
    for (size_t p = 0; p < space->count; ++p) {
        point at = *center;
        for (size_t i = 0; i < space->parameters[p].value_count; ++i) {
            at.place[p] = (uint8_t)i;
            add_near(search, asked, &at);
        }
    }
}

/* Two values changed at random. */
static void add_pairs(tune_search *search, const question *asked, const point *center)
{
    const tune_space *const space = &search->spaces[center->space];
    for (size_t n = 0; n < PAIRS_DRAWN; ++n) {
        point at = *center;
        for (size_t change = 0; change < 2; ++change) {
            const size_t p = draw_below(&search->random, space->count);
            at.place[p] = (uint8_t)draw_below(&search->random, space->parameters[p].value_count);
        }
        add_near(search, asked, &at);
    }
}

static double available_combinations(const tune_search *search, const problem *one)
{
    double sum = 0.0;
    for (size_t s = 0; s < search->space_count; ++s)
        sum += one->start[s].space == NONE ? 0.0 : combinations(&search->spaces[s]);
    return sum;
}

static void add_all(tune_search *search, const question *asked)
{
    for (size_t s = 0; s < search->space_count; ++s) {
        point at = {.space = s};
        do
            add_near(search, asked, &at);
        while (step(&search->spaces[s], &at));
    }
}

static bool draw_open(tune_search *search, const question *asked, size_t tries, point *out);

static void fill_pool(tune_search *search, const question *asked)
{
    search->pool_count = 0;
    for (size_t n = 0; n < search->problem_count; ++n)
        if (search->problems[n].best != NONE)
            add_candidate(search, asked, &search->measured[search->problems[n].best].at);
    if (available_combinations(search, asked->one) <= ENUMERATED) {
        add_all(search, asked);
        return;
    }
    for (size_t s = 0; s < search->space_count; ++s) {
        if (asked->one->start[s].space == NONE)
            continue;
        const point *const fastest = fastest_of(search, asked, s);
        add_neighbours(search, asked, &asked->one->start[s]);
        add_neighbours(search, asked, fastest);
        add_pairs(search, asked, fastest);
    }
    for (size_t n = 0; n < DRAWN; ++n) {
        point at;
        if (draw_open(search, asked, DRAWN, &at))
            add_near(search, asked, &at);
    }
}

/* ---- the choice
 * --------------------------------------------------------------------------------------------------
 */

/* A legal point that was not tried, all with the same probability. */
static bool draw_open(tune_search *search, const question *asked, size_t tries, point *out)
{
    const double all = available_combinations(search, asked->one);
    for (size_t n = 0; n < tries; ++n) {
        double where = (double)(draw(&search->random) >> 11U) * 0x1p-53 * all;
        memset(out, 0, sizeof(*out));
        for (size_t s = 0; s < search->space_count; ++s) {
            if (asked->one->start[s].space == NONE)
                continue;
            out->space = s;
            where -= combinations(&search->spaces[s]);
            if (where < 0.0)
                break;
        }
        draw_point(&search->spaces[out->space], &search->random, out);
        if (is_open(search, asked->number, out))
            return true;
    }
    return false;
}

/* The same where few are left: goes through all of them. */
static bool find_open(tune_search *search, const question *asked, point *out)
{
    if (available_combinations(search, asked->one) > COUNTED)
        return false;
    size_t found = 0;
    for (size_t s = 0; s < search->space_count; ++s) {
        if (asked->one->start[s].space == NONE)
            continue;
        point at = {.space = s};
        do
            if (is_open(search, asked->number, &at) && draw_below(&search->random, ++found) == 0)
                *out = at;
        while (step(&search->spaces[s], &at));
    }
    return found > 0;
}

static int by_score(const void *left, const void *right)
{
    const candidate *const a = left, *const b = right;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->at.space != b->at.space) /* the order may not depend on the sort's */
        return a->at.space < b->at.space ? -1 : 1;
    return memcmp(a->at.place, b->at.place, sizeof(a->at.place));
}

static const candidate *best_of(const candidate *some, size_t count)
{
    const candidate *best = some;
    for (size_t i = 1; i < count; ++i)
        if (by_score(&some[i], best) < 0)
            best = &some[i];
    return best;
}

/* The best of the pool, or what is found from there by changes of one value.
 * The pool is not empty. */
static bool choose(tune_search *search, const question *asked, candidate *best)
{
    for (size_t i = 0; i < search->pool_count; ++i)
        rate_roughly(search, asked, &search->pool[i]);
    qsort(search->pool, search->pool_count, sizeof(candidate), by_score);
    if (search->pool_count > SHORT_LIST)
        search->pool_count = SHORT_LIST;
    size_t begin = 0;
    for (int climb = 0; climb < CLIMBS && begin < search->pool_count; ++climb) {
        candidate *const fresh = search->pool + begin;
        const size_t count = search->pool_count - begin;
        if (!rate(search, asked, fresh, count))
            return false;
        const candidate *const top = best_of(fresh, count);
        if (climb > 0 && by_score(top, best) >= 0)
            break;
        *best = *top;
        begin = search->pool_count;
        add_neighbours(search, asked, &best->at);
    }
    return true;
}

static size_t most_parameters(const tune_search *search)
{
    size_t most = 0;
    for (size_t s = 0; s < search->space_count; ++s)
        most = search->spaces[s].count > most ? search->spaces[s].count : most;
    return most;
}

static tune_proposal propose(tune_search *search, const question *asked, candidate *best)
{
    const point *const start = &asked->one->start[asked->one->default_space];
    *best = (candidate){.at = *start};
    if (is_open(search, asked->number, start))
        return TUNE_MEASURE;
    if (search->mode == TUNE_RANDOM)
        return draw_open(search, asked, TRIES, &best->at) || find_open(search, asked, &best->at) ? TUNE_MEASURE
                                                                                                 : TUNE_EXHAUSTED;
    if (!fit(search, asked->one))
        return TUNE_FAILED;
    const size_t all = most_parameters(search);
    for (size_t reach = 1 + search->modelled_count / LEARNT;; ++reach) {
        search->reach = reach < all ? reach : all;
        fill_pool(search, asked);
        point at = *start;
        if (search->pool_count == 0 && reach >= all && find_open(search, asked, &at))
            add_candidate(search, asked, &at);
        if (search->pool_count > 0 && !choose(search, asked, best))
            return TUNE_FAILED;
        if (search->pool_count > 0 && best->gain >= asked->least_gain)
            return TUNE_MEASURE;
        if (reach >= all)
            return search->pool_count > 0 ? TUNE_ENOUGH : TUNE_EXHAUSTED;
    }
}

/* ---- the interface
 * -----------------------------------------------------------------------------------------------
 */

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
    tune_search *const search = calloc(1, sizeof(*search));
    if (search == NULL)
        return NULL;
    search->spaces = spaces;
    search->space_count = space_count;
    search->mode = mode;
    search->random = spread_seed(seed);
    search->factor = malloc(sizeof(double) * MODELLED * MODELLED);
    search->whitened = malloc(sizeof(double) * MODELLED);
    search->weights = malloc(sizeof(double) * MODELLED);
    search->from_start = malloc(sizeof(double) * MODELLED);
    search->columns = malloc(sizeof(double) * MODELLED * SHORT_LIST);
    search->pool = malloc(sizeof(candidate) * POOL);
    if (search->factor == NULL || search->whitened == NULL || search->weights == NULL || search->from_start == NULL ||
        search->columns == NULL || search->pool == NULL || space_count == 0) {
        tune_search_free(search);
        return NULL;
    }
    return search;
}

void tune_search_free(tune_search *search)
{
    if (search == NULL)
        return;
    for (size_t n = 0; n < search->problem_count; ++n) {
        free(search->problems[n].group_name);
        free(search->problems[n].start);
    }
    free(search->problems);
    free(search->measured);
    free(search->factor);
    free(search->whitened);
    free(search->weights);
    free(search->from_start);
    free(search->columns);
    free(search->pool);
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
    problem fresh = {.group = number,
                     .default_space = one->default_space,
                     .default_index = NONE,
                     .first = NONE,
                     .best = NONE,
                     .group_name = strdup(one->group),
                     .start = calloc(search->space_count, sizeof(point))};
    if (fresh.group_name == NULL || fresh.start == NULL || !set_starts(search, one, fresh.start)) {
        free(fresh.group_name);
        free(fresh.start);
        return -1;
    }
    for (size_t n = number; n-- > 0;)
        if (strcmp(grown[n].group_name, fresh.group_name) == 0)
            fresh.group = grown[n].group;
    grown[number] = fresh;
    search->problem_count = number + 1;
    return (int)number;
}

/* First and fastest time, and the default's, of a case. */
static void summarise(tune_search *search, size_t number)
{
    problem *const one = &search->problems[number];
    one->first = one->best = one->default_index = NONE;
    for (size_t i = 0; i < search->measured_count; ++i) {
        const measurement *const m = &search->measured[i];
        if (m->number != number)
            continue;
        if (same_point(&m->at, &one->start[one->default_space]))
            one->default_index = i;
        if (m->seconds < 0.0)
            continue;
        if (one->first == NONE)
            one->first = i;
        if (one->best == NONE || m->seconds < search->measured[one->best].seconds)
            one->best = i;
    }
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
    measurement m = {.number = (size_t)number, .seconds = seconds > 0.0 && isfinite(seconds) ? seconds : -1.0};
    if (!point_of(search, space, values, &m.at))
        return false;
    const size_t before = find_measurement(search, m.number, &m.at);
    if (before == NONE && !append(search, &m))
        return false;
    if (before != NONE && search->measured[before].seconds > 0.0)
        search->measured[before].seconds = m.seconds;
    summarise(search, m.number);
    return true;
}

tune_proposal tune_search_next(tune_search *search, int number, tune_cost cost, void *user, double least_gain,
                               size_t *space, int32_t *values, double *expected_gain)
{
    if (number < 0 || (size_t)number >= search->problem_count)
        return TUNE_FAILED;
    const question asked = {.one = &search->problems[number],
                            .number = (size_t)number,
                            .cost = cost,
                            .user = user,
                            .least_gain = least_gain};
    candidate best;
    const tune_proposal answer = propose(search, &asked, &best);
    if (answer != TUNE_MEASURE)
        return answer;
    *space = best.at.space;
    values_of(&search->spaces[best.at.space], &best.at, values);
    if (expected_gain != NULL)
        *expected_gain = -expm1(-best.gain);
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
