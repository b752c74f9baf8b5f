/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel parameters to measure next. Knows no OpenCL, no clock and no file: it is told times and proposes points.
 *
 *     search = tune_search_create(spaces, count, seed, TUNE_NEIGHBOURS)
 *     one = tune_search_begin(search, &problem)                             for each case, one after another
 *     tune_search_tell(search, one, space, values, seconds)                 times of an earlier run
 *     while (time is left && tune_search_next(search, one, ...) == TUNE_MEASURE)
 *         measure, tune_search_tell(search, one, space, values, seconds)
 *
 * A *space* is an engine's parameters, a *point* one value for each of them, a *case* a problem with its own defaults.
 * docs/tuning-search.md gives the order of proposals. The same calls with the same seed get the same answers. A search
 * belongs to one thread.
 */
#ifndef CLMGK_TUNE_SEARCH_H
#define CLMGK_TUNE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TUNE_MOST_PARAMETERS 24
#define TUNE_MOST_VALUES     16
#define TUNE_AXES            11

typedef struct tune_parameter {
    const char *name;
    const int32_t *values; /* distinct, ascending */
    size_t value_count;
} tune_parameter;

/* The tables are not copied: they outlive the search. */
typedef struct tune_space {
    const char *engine;
    const tune_parameter *parameters;
    size_t count;
    bool (*legal)(void *user, const int32_t *values); /* in the case that is being asked for; NULL: every point is */
    void *user;
} tune_space;

typedef struct tune_case {
    double axes[TUNE_AXES];         /* two cases are as far apart as the sum of these numbers' differences */
    size_t default_space;           /* the engine that is used without tuning */
    const int32_t *const *defaults; /* each space's defaults in this case; NULL: the space is not available in it */
} tune_case;

typedef enum tune_mode { TUNE_NEIGHBOURS, TUNE_RANDOM } tune_mode;

typedef enum tune_proposal {
    TUNE_MEASURE,   /* a point was proposed */
    TUNE_ENOUGH,    /* nothing faster for a long while */
    TUNE_EXHAUSTED, /* every legal point was tried */
    TUNE_FAILED     /* no such case, or no memory */
} tune_proposal;

typedef struct tune_search tune_search;

/* NULL without memory, or with a table that is empty or beyond the limits above. */
tune_search *tune_search_create(const tune_space *spaces, size_t space_count, uint64_t seed, tune_mode mode);
void tune_search_free(tune_search *search);

/* Begins a case: its number from 0 on, or -1 without memory or if a default is not one of its parameter's values. */
int tune_search_begin(tune_search *search, const tune_case *one);

/*
 * The time of a point in a case. Not positive, or not finite: the point failed (did not compile, hung, was wrong); it
 * then stays banned in that case. A point that is told again takes the new time.
 * False without memory, or if case, space or values do not exist.
 */
bool tune_search_tell(tune_search *search, int number, size_t space, const int32_t *values, double seconds);

/* The point to measure next in a case, first the defaults. Never one that was told or proposed in this case before, nor
 * one that is not legal. */
tune_proposal tune_search_next(tune_search *search, int number, size_t *space, int32_t *values);

/* Number of legal points of a space: counted for up to a million combinations of values, else estimated. */
double tune_search_space_size(const tune_search *search, size_t space);

#endif
