/* SPDX-License-Identifier: Apache-2.0 */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE 64 /* candidates without a faster one that end a search */

/* Logarithms of ratios of times. */
#define FAILED_EFFECT 1.4  /* a failure counts as four times as slow */
#define FAR_EFFECT    1e-3 /* each value that a change leaps over: prefers nearer ones */
#define PAIR_EFFECT   0.01 /* a second change: prefers single ones */

bool tune_same(const tune_search *search, const tune_candidate *a, const tune_candidate *b)
{
    return a->space == b->space &&
           memcmp(a->values, b->values, search->spaces[a->space].count * sizeof(*a->values)) == 0;
}

tune_candidate *tune_find(const tune_search *search, const tune_candidate *x)
{
    for (size_t i = 0; i < search->count; ++i)
        if (tune_same(search, &search->list[i], x))
            return &search->list[i];
    return NULL;
}

/* b's time over a's, as a logarithm. */
static double compare(const tune_candidate *a, const tune_candidate *b)
{
    if (a->ratio < 0.0 || b->ratio < 0.0)
        return (b->ratio < 0.0 ? FAILED_EFFECT : 0.0) - (a->ratio < 0.0 ? FAILED_EFFECT : 0.0);
    return log(b->ratio / a->ratio);
}

/* Learns from a new time: how it compares with the candidates that differ in one parameter. */
static void learn(const tune_search *search, const tune_candidate *x)
{
    tune_space *const space = &search->spaces[x->space];
    for (size_t i = 0; i < search->count; ++i) {
        const tune_candidate *const other = &search->list[i];
        size_t changed = 0, p = 0;
        for (size_t k = 0; k < space->count && other->space == x->space && other->ratio != 0.0; ++k) {
            changed += other->values[k] != x->values[k];
            p = other->values[k] != x->values[k] ? k : p;
        }
        if (changed != 1)
            continue;
        space->effects[p].sum += x->values[p] > other->values[p] ? compare(other, x) : compare(x, other);
        space->effects[p].count += 1.0;
    }
}

bool tune_add(tune_search *search, const tune_candidate *x)
{
    tune_candidate *const before = tune_find(search, x);
    if (x->ratio != 0.0 && (before == NULL || before->ratio == 0.0))
        learn(search, x);
    if (before != NULL) {
        before->ratio = before->ratio < 0.0 ? before->ratio : x->ratio;
        return true;
    }
    if (search->count == search->room) {
        const size_t room = 2 * search->room + 64;
        tune_candidate *const grown = realloc(search->list, room * sizeof(*grown));
        if (grown == NULL)
            return false;
        search->list = grown;
        search->room = room;
    }
    search->list[search->count++] = *x;
    return true;
}

const tune_candidate *tune_fastest(const tune_search *search, size_t space)
{
    const tune_candidate *fastest = NULL;
    for (const tune_candidate *x = search->list; x < search->list + search->count; ++x)
        if (x->ratio > 0.0 && (space == SIZE_MAX || x->space == space) &&
            (fastest == NULL || x->ratio < fastest->ratio))
            fastest = x;
    return fastest;
}

/* Legal, and neither measured nor proposed before. */
static bool is_open(const tune_search *search, const tune_candidate *x)
{
    return tune_find(search, x) == NULL && (search->legal == NULL || search->legal(search->user, x));
}

/* Of all changes of the parameters from `first` on, `more` of them after this one, the one with the least expected time
 * (`slower`: the center's). An effect is the mean of those known, drawn towards none where little is known. */
static void look_around(const tune_search *search, const tune_candidate *center, size_t first, int more, double slower,
                        tune_candidate *best)
{
    const tune_space *const space = &search->spaces[center->space];
    for (size_t p = first; p < space->count; ++p) {
        const clmgk_tunable *const parameter = &space->parameters[p];
        const double rise = space->effects[p].sum / (space->effects[p].count + 2.0);
        size_t from = 0;
        while (from + 1 < parameter->value_count && parameter->values[from] != center->values[p])
            ++from;
        for (size_t i = 0; i < parameter->value_count; ++i) {
            tune_candidate x = *center;
            x.values[p] = parameter->values[i];
            x.ratio = slower + (i > from ? rise : -rise) + FAR_EFFECT * (fabs((double)i - (double)from) - 1.0);
            if (i == from)
                continue;
            if (x.ratio < best->ratio && is_open(search, &x))
                *best = x;
            if (more > 0)
                look_around(search, &x, p + 1, more - 1, x.ratio + PAIR_EFFECT, best);
        }
    }
}

/* Of the neighbours of each space's fastest candidate the one that is expected to be the fastest. */
static bool find_neighbour(const tune_search *search, tune_candidate *next)
{
    const tune_candidate *const fastest = tune_fastest(search, SIZE_MAX);
    *next = (tune_candidate){.ratio = INFINITY};
    if (fastest == NULL || search->list + search->count - fastest > PATIENCE)
        return false;
    for (size_t s = 0; s < search->space_count; ++s) {
        const tune_candidate *const center = tune_fastest(search, s);
        if (center != NULL)
            look_around(search, center, 0, 1, compare(fastest, center), next);
    }
    return next->ratio < INFINITY;
}

bool tune_propose(tune_search *search, tune_candidate *next)
{
    bool found = false;
    for (size_t i = 0; i < search->start_count && !found; ++i) {
        *next = search->starts[i];
        found = is_open(search, next);
    }
    found = found || find_neighbour(search, next);
    next->ratio = 0.0;
    return found && tune_add(search, next);
}
