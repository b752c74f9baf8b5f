/* SPDX-License-Identifier: Apache-2.0 */
/* Exact values of sampled rows, the bound of their error, and the comparison. */
#include "reference/plain.h"

#include <stdio.h>
#include <stdlib.h>

static double tolerance(clmgk_dtype dtype)
{
    switch (dtype) {
    case CLMGK_DTYPE_F16:
        return 5e-4;
    case CLMGK_DTYPE_BF16:
        return 4e-3;
    case CLMGK_DTYPE_F32:
        break;
    }
    return 3e-6;
}

/* Widens `bound` by the plain formula's error in `count` values; where one side is not finite there is none. */
static void observe(clmgk_ref_bound *bound, int64_t count, const double *exact, const double *plain)
{
    for (int64_t n = 0; n < count; n++) {
        if (!isfinite(exact[n]))
            continue;
        bound->max_abs = fmax(bound->max_abs, fabs(exact[n]));
        if (isfinite(plain[n]))
            bound->plain_error = fmax(bound->plain_error, fabs(plain[n] - exact[n]));
    }
}

/* Row n of the answer: exact values, then the plain formula in each of its ways. `o` is room for E numbers. */
static bool solve_row(const clmgk_ref_problem *problem, ref_plain *plain, clmgk_ref_answer *answer, int64_t n,
                      double *o)
{
    const ref_distance distances =
        problem->desc.score == CLMGK_SCORE_GAUSSIAN ? REF_DISTANCES : REF_DISTANCE_DIRECT + 1;
    double *const exact = answer->o + n * answer->value_size;
    double lse = 0.0;
    if (!clmgk_ref_row(problem, answer->row[n], exact, &answer->lse[n]))
        return false;
    for (ref_distance distance = 0; distance < distances; distance++) {
        for (ref_order order = 0; order < REF_ORDERS; order++) {
            ref_plain_row(plain, ref_row_of(&problem->desc, answer->row[n]), order, distance, o, &lse);
            observe(&answer->bound_o, answer->value_size, exact, o);
            observe(&answer->bound_lse, 1, &answer->lse[n], &lse);
        }
    }
    return true;
}

static void finish_bound(clmgk_ref_bound *bound, clmgk_dtype dtype)
{
    bound->bound = 3.0 * bound->plain_error + tolerance(dtype) * bound->max_abs;
}

bool clmgk_ref_solve(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, clmgk_ref_answer *answer)
{
    const size_t size = (size_t)problem->desc.value_size;
    ref_plain *const plain = ref_plain_new(problem);
    double *const o = malloc(size * sizeof(double));
    *answer = (clmgk_ref_answer){.rows = rows, .value_size = problem->desc.value_size};
    answer->row = malloc(((size_t)rows + 1) * sizeof(int64_t)); /* + 1: no rows is no failure */
    answer->o = malloc(((size_t)rows + 1) * size * sizeof(double));
    answer->lse = malloc(((size_t)rows + 1) * sizeof(double));

    bool ok = plain && o && answer->row && answer->o && answer->lse;
    for (int64_t n = 0; ok && n < rows; n++) {
        answer->row[n] = row ? row[n] : n;
        ok = solve_row(problem, plain, answer, n, o);
    }
    finish_bound(&answer->bound_o, problem->desc.dtype);
    finish_bound(&answer->bound_lse, problem->desc.dtype);

    ref_plain_free(plain);
    free(o);
    if (!ok)
        clmgk_ref_answer_free(answer);
    return ok;
}

void clmgk_ref_answer_free(clmgk_ref_answer *answer)
{
    free(answer->row);
    free(answer->o);
    free(answer->lse);
    *answer = (clmgk_ref_answer){0};
}

/* One output array of the answer beside what was given for it. */
typedef struct comparison {
    const char *name;
    int64_t width; /* elements in a row */
    const double *exact;
    const double *given;
    double bound;
} comparison;

static bool same_place(double exact, double given)
{
    if (isnan(exact) || isnan(given))
        return isnan(exact) && isnan(given);
    return exact == given; /* infinities with their signs */
}

/* The largest error; the first element that is wrong is described in `message` unless something is already. */
static double compare(const clmgk_ref_answer *answer, const comparison *c, char *message, size_t capacity)
{
    double largest = 0.0;
    for (int64_t n = 0; n < answer->rows * c->width; n++) {
        const bool finite = isfinite(c->exact[n]) && isfinite(c->given[n]);
        const double error = finite ? fabs(c->given[n] - c->exact[n]) : 0.0;
        const bool right = finite ? error <= c->bound : same_place(c->exact[n], c->given[n]);
        largest = fmax(largest, error);
        if (!right && message[0] == '\0')
            snprintf(message, capacity, "%s of row %lld, element %lld: %.9g, expected %.9g within %.3g", c->name,
                     (long long)answer->row[n / c->width], (long long)(n % c->width), c->given[n], c->exact[n],
                     c->bound);
    }
    return largest;
}

clmgk_ref_verdict clmgk_ref_check(const clmgk_ref_answer *answer, const double *o, const double *lse)
{
    clmgk_ref_verdict verdict = {0};
    const comparison of_o = {"O", answer->value_size, answer->o, o, answer->bound_o.bound};
    const comparison of_lse = {"L", 1, answer->lse, lse, answer->bound_lse.bound};
    verdict.error_o = compare(answer, &of_o, verdict.message, sizeof(verdict.message));
    if (lse)
        verdict.error_lse = compare(answer, &of_lse, verdict.message, sizeof(verdict.message));
    verdict.ok = verdict.message[0] == '\0';
    return verdict;
}
