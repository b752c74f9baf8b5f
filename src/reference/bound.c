/* SPDX-License-Identifier: Apache-2.0 */
/* Exact values of rows, the bound of their error, and the comparison. */
#include "reference/arrays.h"
#include "reference/families.h"
#include "reference/linear.h"

#include <stdio.h>
#include <stdlib.h>

double clmgk_ref_log_weight(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j, int64_t r)
{
    const ref_row at = {b, h, i};
    const ref_span span = ref_span_of(problem, b, i);
    const double x = ref_family_of(problem->desc.variant)->exact->score(problem, at, &span, j, r);
    const double s = exact_weight(problem, at, &span, j, x);
    return problem->desc.estep == CLMGK_ESTEP_HARD ? s : log(ref_prior(problem, h, j, r)) + s;
}

bool clmgk_ref_row(const clmgk_ref_problem *problem, int64_t row, double *o, double *lse)
{
    exact_row exact;
    *lse = 0.0;
    if (ref_form_of(&problem->desc).linear)
        return ref_linear_row(problem, row, o);
    if (!exact_row_create(problem, ref_family_of(problem->desc.variant)->exact, &exact))
        return false;
    exact_row_solve(&exact, ref_row_of(&problem->desc, row));
    exact_row_output(&exact, o);
    *lse = exact.lse;
    exact_row_free(&exact);
    return true;
}

/* Row n of the answer: exact values, then the plain formula in every way. */
static bool solve_row(const clmgk_ref_problem *problem, ref_plain *plain, clmgk_ref_answer *answer, int64_t n)
{
    double *const exact = answer->o + n * answer->value_size;
    if (!clmgk_ref_row(problem, answer->row[n], exact, &answer->lse[n]))
        return false;
    ref_way way;
    for (int number = 0; ref_way_of(&problem->desc, number, &way); number++) {
        ref_plain_solve(plain, ref_row_of(&problem->desc, answer->row[n]), way);
        ref_observe(&answer->bound_o, answer->value_size, exact, plain->o);
        ref_observe(&answer->bound_lse, 1, &answer->lse[n], &plain->lse);
    }
    return true;
}

static bool solve_rows(const clmgk_ref_problem *problem, clmgk_ref_answer *answer)
{
    ref_plain plain;
    bool ok = ref_plain_create(problem, ref_family_of(problem->desc.variant)->plain, &plain);
    for (int64_t n = 0; ok && n < answer->rows; n++)
        ok = solve_row(problem, &plain, answer, n);
    ref_plain_free(&plain);
    return ok;
}

bool clmgk_ref_solve(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, clmgk_ref_answer *answer)
{
    const size_t size = (size_t)problem->desc.value_size;
    const ref_tolerance tolerance = ref_tolerance_of_outputs(problem->desc.dtype);
    *answer = (clmgk_ref_answer){.rows = rows, .value_size = problem->desc.value_size};
    answer->row = calloc((size_t)rows + 1, sizeof(int64_t)); /* + 1: NULL means failure only */
    answer->o = malloc(((size_t)rows + 1) * size * sizeof(double));
    answer->lse = malloc(((size_t)rows + 1) * sizeof(double));
    answer->den = calloc((size_t)rows + 1, sizeof(double));
    answer->scale = calloc((size_t)rows + 1, sizeof(double));
    answer->left_out = calloc((size_t)rows + 1, sizeof(double));

    bool ok = answer->row && answer->o && answer->lse && answer->den && answer->scale && answer->left_out;
    for (int64_t n = 0; ok && n < rows; n++)
        answer->row[n] = row ? row[n] : n;
    ok = ok && (ref_form_of(&problem->desc).linear ? ref_linear_rows(problem, answer) : solve_rows(problem, answer));
    ref_finish_bound(&answer->bound_o, tolerance);
    ref_finish_bound(&answer->bound_lse, tolerance);
    ref_finish_bound(&answer->bound_den, ref_tolerance_of_outputs(CLMGK_DTYPE_F32));

    if (!ok)
        clmgk_ref_answer_free(answer);
    return ok;
}

void clmgk_ref_answer_free(clmgk_ref_answer *answer)
{
    free(answer->row);
    free(answer->o);
    free(answer->lse);
    free(answer->den);
    free(answer->scale);
    free(answer->left_out);
    *answer = (clmgk_ref_answer){0};
}

/* An output array of the answer, and the values to compare. */
typedef struct comparison {
    const char *name;
    int64_t width; /* elements in a row */
    const double *exact;
    const double *given;
    double bound;
} comparison;

/* The largest error; describes the first wrong element in `message`, if that is empty. */
static double compare(const clmgk_ref_answer *answer, const comparison *c, char *message, size_t capacity)
{
    int64_t wrong = -1;
    const double largest = ref_compare(answer->rows * c->width, c->exact, c->given, c->bound, NULL, &wrong).error;
    if (wrong >= 0 && message[0] == '\0')
        snprintf(message, capacity, "%s of row %lld, element %lld: %.9g, expected %.9g within %.3g", c->name,
                 (long long)answer->row[wrong / c->width], (long long)(wrong % c->width), c->given[wrong],
                 c->exact[wrong], c->bound);
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

bool clmgk_ref_check_denominators(const clmgk_ref_answer *answer, const double *given, char *message, size_t capacity)
{
    message[0] = '\0';
    for (int64_t n = 0; n < answer->rows && message[0] == '\0'; n++) {
        const double den = given[2 * n] * exp(given[2 * n + 1] - answer->left_out[n] - answer->scale[n]);
        const comparison of_row = {"the denominator", 1, &answer->den[n], &den, answer->bound_den.bound};
        const clmgk_ref_answer row = {.rows = 1, .row = &answer->row[n]};
        compare(&row, &of_row, message, capacity);
    }
    return message[0] == '\0';
}
