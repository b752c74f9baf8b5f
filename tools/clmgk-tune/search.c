/* SPDX-License-Identifier: Apache-2.0 */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRANSFERS = 4, /* nearest cases whose fastest candidates are tried */
    PATIENCE = 64  /* candidates without a faster one that end a case's search */
};

/* Logarithms of ratios of times. */
#define FAILED_EFFECT 1.4  /* a failure counts as four times as slow */
#define FAR_EFFECT    1e-3 /* each value that a change leaps over: prefers nearer ones */
#define PAIR_EFFECT   0.01 /* a second change: prefers single ones */

bool tune_same(const tune_place *place, const tune_candidate *a, const tune_candidate *b)
{
    return a->space == b->space &&
           memcmp(a->values, b->values, place->spaces[a->space].count * sizeof(*a->values)) == 0;
}

static tune_measurement *find(const tune_measured *all, const tune_place *place, const tune_candidate *x)
{
    for (size_t i = 0; i < all->count; ++i)
        if (all->list[i].place == place && tune_same(place, &all->list[i].x, x))
            return &all->list[i];
    return NULL;
}

bool tune_add(tune_measured *all, const tune_place *place, const tune_candidate *x)
{
    tune_measurement *const before = find(all, place, x);
    if (before != NULL) {
        before->x.ratio = before->x.ratio < 0.0 ? before->x.ratio : x->ratio;
        return true;
    }
    if (all->count == all->room) {
        const size_t room = 2 * all->room + 64;
        tune_measurement *const grown = realloc(all->list, room * sizeof(*grown));
        if (grown == NULL)
            return false;
        all->list = grown;
        all->room = room;
    }
    all->list[all->count++] = (tune_measurement){place, *x};
    return true;
}

const tune_candidate *tune_fastest(const tune_measured *all, const tune_place *place, size_t space)
{
    const tune_candidate *fastest = NULL;
    for (size_t i = 0; i < all->count; ++i) {
        const tune_measurement *const m = &all->list[i];
        if (m->place == place && m->x.ratio > 0.0 && (space == SIZE_MAX || m->x.space == space) &&
            (fastest == NULL || m->x.ratio < fastest->ratio))
            fastest = &m->x;
    }
    return fastest;
}

/* Legal, and neither measured nor proposed before. */
static bool is_open(const tune_measured *all, const tune_place *place, const tune_candidate *x)
{
    return find(all, place, x) == NULL && (place->legal == NULL || place->legal(place->user, x));
}

/* ---- the fastest candidates of the nearest cases ------------------------------------------------------------------
 */

static double distance(const tune_place *a, const tune_place *b)
{
    double sum = 0.0;
    for (size_t i = 0; i < TUNE_AXES; ++i)
        sum += fabs(a->axes[i] - b->axes[i]);
    return sum;
}

/* This case's defaults with the changes by which another case's fastest candidate differs from that case's defaults. */
static bool transfer(const tune_measured *all, const tune_place *place, const tune_place *other, tune_candidate *next)
{
    const tune_candidate *const fastest = tune_fastest(all, other, SIZE_MAX);
    if (fastest == NULL || !place->available[fastest->space] || !other->available[fastest->space])
        return false;
    *next = place->defaults[fastest->space];
    for (size_t p = 0; p < place->spaces[fastest->space].count; ++p)
        if (fastest->values[p] != other->defaults[fastest->space].values[p])
            next->values[p] = fastest->values[p];
    return is_open(all, place, next);
}

static bool find_transfer(const tune_measured *all, tune_place *place, tune_candidate *next)
{
    double nearest = INFINITY;
    for (size_t i = 0; i < all->count && place->transferred < TRANSFERS; ++i) {
        const tune_place *const other = all->list[i].place;
        tune_candidate x;
        if (other == place || other->spaces != place->spaces || distance(place, other) >= nearest ||
            !transfer(all, place, other, &x))
            continue;
        nearest = distance(place, other);
        *next = x;
    }
    place->transferred += nearest < INFINITY;
    return nearest < INFINITY;
}

/* ---- neighbours: candidates that differ in one value or two -------------------------------------------------------
 */

/* log(time with a higher value / time with a lower one) of a parameter, summed over pairs of candidates of one case
 * that differ in nothing else. */
typedef struct effect {
    double sum, count;
} effect;

/* b's time over a's, as a logarithm. */
static double compare(const tune_candidate *a, const tune_candidate *b)
{
    if (a->ratio < 0.0 || b->ratio < 0.0)
        return (b->ratio < 0.0 ? FAILED_EFFECT : 0.0) - (a->ratio < 0.0 ? FAILED_EFFECT : 0.0);
    return log(b->ratio / a->ratio);
}

static void add_pair(size_t count, const tune_candidate *a, const tune_candidate *b, effect *effects)
{
    size_t changed = 0, p = 0;
    for (size_t i = 0; i < count; ++i) {
        changed += a->values[i] != b->values[i];
        p = a->values[i] != b->values[i] ? i : p;
    }
    if (changed != 1 || a->ratio == 0.0 || b->ratio == 0.0)
        return;
    effects[p].sum += b->values[p] > a->values[p] ? compare(a, b) : compare(b, a);
    effects[p].count += 1.0;
}

/* The effects of a space's parameters, from all cases. */
static void sum_effects(const tune_measured *all, const tune_space *spaces, size_t space, effect *effects)
{
    memset(effects, 0, TUNE_MOST_PARAMETERS * sizeof(*effects));
    for (size_t i = 0; i < all->count; ++i) {
        const tune_measurement *const a = &all->list[i];
        for (size_t j = i + 1; j < all->count && a->place->spaces == spaces && a->x.space == space; ++j) {
            const tune_measurement *const b = &all->list[j];
            if (b->place == a->place && b->x.space == space)
                add_pair(spaces[space].count, &a->x, &b->x, effects);
        }
    }
}

/* The best neighbour found so far; its ratio is the expected time over the case's fastest, as a logarithm. */
typedef struct neighbours {
    const tune_measured *all;
    const tune_place *place;
    effect effects[TUNE_MOST_PARAMETERS];
    tune_candidate best;
} neighbours;

/* Of all changes of the parameters from `first` on, `more` of them after this one, the best. An effect is the mean of
 * those known, drawn towards none where little is known. */
static void look_around(neighbours *found, const tune_candidate *center, size_t first, int more, double slower)
{
    const tune_space *const space = &found->place->spaces[center->space];
    for (size_t p = first; p < space->count; ++p) {
        const clmgk_tunable *const parameter = &space->parameters[p];
        const double rise = found->effects[p].sum / (found->effects[p].count + 2.0);
        size_t from = 0;
        while (from + 1 < parameter->value_count && parameter->values[from] != center->values[p])
            ++from;
        for (size_t i = 0; i < parameter->value_count; ++i) {
            const double leapt = fabs((double)i - (double)from) - 1.0;
            tune_candidate x = *center;
            x.values[p] = parameter->values[i];
            x.ratio = slower + (i > from ? rise : -rise) + FAR_EFFECT * leapt;
            if (i == from)
                continue;
            if (x.ratio < found->best.ratio && is_open(found->all, found->place, &x))
                found->best = x;
            if (more > 0)
                look_around(found, &x, p + 1, more - 1, x.ratio + PAIR_EFFECT);
        }
    }
}

/* Of the neighbours of each space's fastest candidate the one that is expected to be the fastest. */
static bool find_neighbour(const tune_measured *all, const tune_place *place, tune_candidate *next)
{
    const tune_candidate *const fastest = tune_fastest(all, place, SIZE_MAX);
    neighbours found = {.all = all, .place = place, .best = {.ratio = INFINITY}};
    for (size_t s = 0; s < place->count; ++s) {
        const tune_candidate *const center = tune_fastest(all, place, s);
        if (center == NULL)
            continue;
        sum_effects(all, place->spaces, s, found.effects);
        look_around(&found, center, 0, 1, compare(fastest, center));
    }
    *next = found.best;
    return found.best.ratio < INFINITY;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

/* Candidates of a case that were proposed after its fastest. */
static size_t count_since_fastest(const tune_measured *all, const tune_place *place)
{
    const tune_candidate *const fastest = tune_fastest(all, place, SIZE_MAX);
    size_t count = 0;
    for (size_t i = 0; i < all->count; ++i)
        count = &all->list[i].x == fastest ? 0 : count + (all->list[i].place == place);
    return count;
}

bool tune_propose(tune_measured *all, tune_place *place, tune_candidate *next)
{
    bool found = false;
    for (size_t s = 0; s < place->count && !found; ++s) {
        *next = place->defaults[s];
        found = place->available[s] && is_open(all, place, next);
    }
    found = found || find_transfer(all, place, next) ||
            (count_since_fastest(all, place) < PATIENCE && find_neighbour(all, place, next));
    next->ratio = 0.0;
    return found && tune_add(all, place, next);
}
