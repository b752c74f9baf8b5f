/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel parameters to measure next: coordinate descent (docs/tuning.md). Knows no OpenCL, no clock and no file;
 * the same calls get the same answers.
 */
#ifndef CLMGK_TUNE_SEARCH_H
#define CLMGK_TUNE_SEARCH_H

#include "clmgk/tuning.h"

#include <stdbool.h>

#define TUNE_MOST_PARAMETERS 24
#define TUNE_MOST_SPACES     8
#define TUNE_MOST_STARTS     4

/* log(time with a higher value / time with a lower one) of a parameter, summed over pairs of candidates of one case
 * that differ in nothing else. */
typedef struct tune_effect {
    double sum, count;
} tune_effect;

/* The parameters of an engine, or of a provider of products, and their effects in all cases. */
typedef struct tune_space {
    const char *name;
    clmgk_tunable parameters[TUNE_MOST_PARAMETERS];
    size_t count;
    tune_effect effects[TUNE_MOST_PARAMETERS];
} tune_space;

typedef struct tune_candidate {
    size_t space;
    int32_t values[TUNE_MOST_PARAMETERS];
    double ratio; /* of its time to the defaults'; 0: not known yet; negative: it failed, or was wrong */
} tune_candidate;

/* A case's search. */
typedef struct tune_search {
    tune_space *spaces;
    size_t space_count;
    tune_candidate starts[TUNE_MOST_STARTS]; /* what is measured before neighbours */
    size_t start_count;
    tune_candidate *list; /* what was measured or proposed: free */
    size_t count, room;
    bool (*legal)(void *user, const tune_candidate *x);
    void *user;
} tune_search;

/* Adds a measurement, or replaces the same candidate's, unless it failed: that is final. False: no memory. */
bool tune_add(tune_search *search, const tune_candidate *x);

/* The fastest in a space (SIZE_MAX: in any); NULL: none has a time. */
const tune_candidate *tune_fastest(const tune_search *search, size_t space);

/* What is known of a candidate; NULL: it was not proposed yet. */
tune_candidate *tune_find(const tune_search *search, const tune_candidate *x);

bool tune_same(const tune_search *search, const tune_candidate *a, const tune_candidate *b);

/* The candidate to measure next, which is legal and new: it is added without a time. False: nothing is left that
 * promises an improvement, or no memory. */
bool tune_propose(tune_search *search, tune_candidate *next);

#endif
