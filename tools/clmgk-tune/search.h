/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel parameters to measure next: coordinate descent from the defaults, which learns from all cases
 * (docs/tuning.md has the order of proposals). Knows no OpenCL, no clock and no file; the same calls get the same
 * answers.
 */
#ifndef CLMGK_TUNE_SEARCH_H
#define CLMGK_TUNE_SEARCH_H

#include "clmgk/tuning.h"

#include <stdbool.h>

#define TUNE_MOST_PARAMETERS 24
#define TUNE_MOST_SPACES     8
#define TUNE_AXES            11

/* The parameters of an engine, or of a provider of products. */
typedef struct tune_space {
    const char *name;
    clmgk_tunable parameters[TUNE_MOST_PARAMETERS];
    size_t count;
} tune_space;

typedef struct tune_candidate {
    size_t space;
    int32_t values[TUNE_MOST_PARAMETERS];
    double ratio; /* of its time to the defaults'; 0: not known yet; negative: it failed, or was wrong */
} tune_candidate;

/* A case, as the search sees it. */
typedef struct tune_place {
    const tune_space *spaces;
    size_t count;
    double axes[TUNE_AXES]; /* two cases are as far apart as the sum of these numbers' differences */
    tune_candidate defaults[TUNE_MOST_SPACES];
    bool available[TUNE_MOST_SPACES]; /* the space and its defaults */
    size_t transferred;               /* proposals that came from other cases */
    bool (*legal)(void *user, const tune_candidate *x);
    void *user;
} tune_place;

typedef struct tune_measurement {
    const tune_place *place;
    tune_candidate x;
} tune_measurement;

/* Everything that was measured; zeroed: nothing. */
typedef struct tune_measured {
    tune_measurement *list; /* free */
    size_t count, room;
} tune_measured;

/* Adds a measurement, or replaces the same candidate's, unless it failed: that is final. False: no memory. */
bool tune_add(tune_measured *all, const tune_place *place, const tune_candidate *x);

/* The fastest of a case in a space (SIZE_MAX: in any); NULL: none has a time. */
const tune_candidate *tune_fastest(const tune_measured *all, const tune_place *place, size_t space);

bool tune_same(const tune_place *place, const tune_candidate *a, const tune_candidate *b);

/* The candidate to measure next, which is legal and new in this case: it is added without a time. False: nothing is
 * left that promises an improvement, or no memory. */
bool tune_propose(tune_measured *all, tune_place *place, tune_candidate *next);

#endif
