/* SPDX-License-Identifier: Apache-2.0 */
/* Exact values of rows, the bound of their error, and the comparison. */
#include "reference/arrays.h"
#include "reference/families.h"
#include "reference/linear.h"
#include "reference/mixed.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

double clmgk_ref_log_weight(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j, int64_t r)
{
    const ref_row at = {b, h, i};
    const ref_span span = ref_span_of(problem, b, i);
    double size = 0.0;
    const double x = ref_family_of(problem->desc.variant)->exact->score(problem, at, &span, j, r, &size);
    ref_texts texts;
    if (!ref_texts_create(problem, false, &texts))
        return (double)NAN;
    const double shaped = ref_text_score(&texts, &(ref_pair){at, &span, j, r, exact_capped(problem, x)});
    const double s = exact_weight(problem, at, &span, j, shaped).high;
    ref_texts_free(&texts);
    return problem->desc.estep == CLMGK_ESTEP_HARD ? s : log(ref_prior(problem, h, j, r)) + s;
}

/* Of the row that was solved. */
static int64_t reads_outside(exact_row *row)
{
    const clmgk_ref_problem *const p = row->problem;
    int64_t outside = 0;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        ref_pair pair = {row->at, &row->span, j, 0, 0.0};
        outside += ref_text_reads_outside(&row->texts, &pair, true);
        for (pair.r = 0; row->visible[j] && pair.r < ref_components(&p->desc); pair.r++) {
            pair.s = exact_capped(p, row->score[pair.r * p->desc.length_k + j]);
            outside += ref_text_reads_outside(&row->texts, &pair, false);
        }
    }
    return outside;
}

int64_t clmgk_ref_reads_outside(const clmgk_ref_problem *problem)
{
    const clmgk_ref_problem heads = problem->desc.mix_after_heads > 0 ? ref_mixed_heads(problem) : *problem;
    const clmgk_attention_desc *const desc = &heads.desc;
    exact_row row;
    int64_t outside = 0;
    if (!desc->captures[0].name)
        return 0;
    if (!exact_row_create(&heads, ref_family_of(desc->variant)->exact, &row))
        return -1;
    for (int64_t n = 0; n < desc->batch * desc->heads * desc->length; n++) {
        exact_row_solve(&row, ref_row_of(desc, n));
        outside += reads_outside(&row);
    }
    exact_row_free(&row);
    return outside;
}

static bool mixed_row(const clmgk_ref_problem *problem, int64_t row, double *o)
{
    ref_mixed mixed;
    if (!ref_mixed_create(problem, &mixed))
        return false;
    ref_mixed_output(&mixed, ref_row_of(&problem->desc, row), o);
    ref_mixed_free(&mixed);
    return true;
}

bool clmgk_ref_row(const clmgk_ref_problem *problem, int64_t row, double *o, double *lse)
{
    exact_row exact;
    *lse = 0.0;
    if (ref_form_of(&problem->desc).linear)
        return ref_linear_row(problem, row, o);
    if (problem->desc.mix_after_heads > 0)
        return mixed_row(problem, row, o);
    if (!exact_row_create(problem, ref_family_of(problem->desc.variant)->exact, &exact))
        return false;
    exact_row_solve(&exact, ref_row_of(&problem->desc, row));
    exact_row_output(&exact, o);
    *lse = exact.lse;
    exact_row_free(&exact);
    return true;
}

static bool is_zero(int64_t count, const float *values)
{
    bool zero = true;
    for (int64_t n = 0; n < count; n++)
        zero = zero && values[n] == 0.0F;
    return zero;
}

/* The largest sum of the absolute values of the terms of an element of O. */
static double output_size(const exact_row *row)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    double largest = 0.0;
    for (int64_t e = 0; e < desc->value_size; e++) {
        double sum = 0.0;
        for (int64_t j = row->span.first; j < row->span.end && row->lse != -(double)INFINITY; j++)
            if (row->visible[j])
                sum += exact_value_weight(row, j) *
                       fabs(row->problem->v[ref_value_index(desc, row->at.b, row->at.h, j) + e]);
        largest = fmax(largest, sum);
    }
    return largest;
}

/* Row n of the answer: exact values, then the plain formula in every way. */
static void solve_row(exact_row *exact, ref_plain *plain, clmgk_ref_answer *answer, int64_t n)
{
    const clmgk_attention_desc *const desc = &exact->problem->desc;
    const int64_t size = answer->value_size;
    double *const o = answer->o + n * size;
    const ref_row at = ref_row_of(desc, answer->row[n]);
    exact_row_solve(exact, at);
    exact_row_output(exact, o);
    answer->lse[n] = exact->lse;
    answer->lost[n] =
        (clmgk_ref_lost_row){.is = exact->lost, .may_be_zero = desc->dropout > 0.0, .rounding = exact->rounding};
    if (exact->lost)
        ref_fill_range(exact, o, answer->low + n * size, answer->high + n * size, &answer->lost[n].may_be_zero);
    else
        answer->bound_o.scale = fmax(answer->bound_o.scale, output_size(exact));
    ref_way way;
    for (int number = 0; ref_way_of(desc, number, &way); number++) {
        ref_plain_solve(plain, at, way);
        if (exact->lost) {
            answer->lost[n].may_be_zero = answer->lost[n].may_be_zero || is_zero(size, plain->o);
            continue;
        }
        ref_observe(&answer->bound_o, size, o, plain->o);
        ref_observe(&answer->bound_lse, 1, &answer->lse[n], &plain->lse);
    }
}

static bool solve_rows(const clmgk_ref_problem *problem, clmgk_ref_answer *answer)
{
    const ref_family *const family = ref_family_of(problem->desc.variant);
    exact_row exact;
    ref_plain plain;
    if (!exact_row_create(problem, family->exact, &exact))
        return false;
    const bool ok = ref_plain_create(problem, family->plain, &plain);
    for (int64_t n = 0; ok && n < answer->rows; n++)
        solve_row(&exact, &plain, answer, n);
    answer->bound_lse.scale = fmax(1.0, answer->bound_lse.max_abs);
    ref_plain_free(&plain);
    exact_row_free(&exact);
    return ok;
}

/* L of the heads before the mixing, with values of one feature, 0. */
static bool solve_logs(const clmgk_ref_problem *problem, bool all, clmgk_ref_answer *answer)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const int64_t heads = d->mix_after_heads, rows = all ? d->batch * heads * d->length : answer->rows * heads;
    clmgk_ref_problem logs = ref_mixed_heads(problem);
    logs.desc.value_size = 1;
    int64_t *const row = calloc((size_t)rows + 1, sizeof(int64_t));
    double *const zeros = calloc((size_t)(d->batch * d->length_k) + 1, sizeof(double));
    answer->before = calloc(1, sizeof(*answer->before));
    for (int64_t n = 0; row && n < rows; n++) {
        const ref_row at = ref_row_of(d, all ? 0 : answer->row[n / heads]);
        row[n] = all ? n : (at.b * heads + n % heads) * d->length + at.i;
    }
    logs.v = zeros;
    const bool ok = row && zeros && answer->before && clmgk_ref_solve(&logs, rows, row, answer->before);
    free(row);
    free(zeros);
    return ok;
}

bool clmgk_ref_solve(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, clmgk_ref_answer *answer)
{
    const size_t size = (size_t)problem->desc.value_size;
    const clmgk_dtype type = clmgk_ref_type_of(&problem->desc, CLMGK_ARRAY_O);
    const clmgk_precision precision = problem->desc.precision;
    ref_tolerance tolerance = ref_tolerance_of_products(ref_tolerance_of_outputs(type), precision, 1.0);
    tolerance.most = ref_most(type);
    *answer = (clmgk_ref_answer){.rows = rows, .value_size = problem->desc.value_size};
    answer->row = calloc((size_t)rows + 1, sizeof(int64_t)); /* + 1: NULL means failure only */
    answer->o = malloc(((size_t)rows + 1) * size * sizeof(double));
    answer->lse = malloc(((size_t)rows + 1) * sizeof(double));
    answer->den = calloc((size_t)rows + 1, sizeof(double));
    answer->scale = calloc((size_t)rows + 1, sizeof(double));
    answer->left_out = calloc((size_t)rows + 1, sizeof(double));
    answer->lost = calloc((size_t)rows + 1, sizeof(clmgk_ref_lost_row));
    answer->low = malloc(((size_t)rows + 1) * size * sizeof(double));
    answer->high = malloc(((size_t)rows + 1) * size * sizeof(double));

    bool ok = answer->row && answer->o && answer->lse && answer->den && answer->scale && answer->left_out &&
              answer->lost && answer->low && answer->high;
    for (int64_t n = 0; ok && n < rows; n++)
        answer->row[n] = row ? row[n] : n;
    ok = ok && (ref_form_of(&problem->desc).linear ? ref_linear_rows(problem, answer)
                : problem->desc.mix_after_heads > 0
                    ? solve_logs(problem, row == NULL, answer) && ref_mixed_rows(problem, row == NULL, answer)
                    : solve_rows(problem, answer));
    for (int64_t n = 0; ok && n < rows; n++)
        answer->lost[n].may_leave = ref_row_may_leave(problem, ref_row_of(&problem->desc, answer->row[n]));
    ref_finish_bound(&answer->bound_o, tolerance);
    const ref_tolerance of_lse = ref_tolerance_of_outputs(ref_weight_type(&problem->desc));
    ref_finish_bound(&answer->bound_lse, ref_tolerance_of_products(of_lse, precision, 1.0));
    const ref_tolerance of_den = ref_tolerance_of_outputs(CLMGK_DTYPE_F32);
    ref_finish_bound(&answer->bound_den, ref_tolerance_of_products(of_den, precision, 1.0));

    if (!ok)
        clmgk_ref_answer_free(answer);
    return ok;
}

void clmgk_ref_answer_free(clmgk_ref_answer *answer)
{
    if (answer->before)
        clmgk_ref_answer_free(answer->before);
    free(answer->before);
    free(answer->row);
    free(answer->o);
    free(answer->lse);
    free(answer->den);
    free(answer->scale);
    free(answer->left_out);
    free(answer->lost);
    free(answer->low);
    free(answer->high);
    *answer = (clmgk_ref_answer){0};
}

/* An output array of the answer, and the values to compare. */
typedef struct comparison {
    const char *name;
    int64_t width; /* elements in a row */
    const double *exact;
    const double *given;
    const clmgk_ref_bound *bound;
} comparison;

/* Describes element `wrong` of row n. */
static void complain(const clmgk_ref_answer *answer, const comparison *c, int64_t n, int64_t wrong, double room,
                     char *message, size_t capacity)
{
    const int64_t at = n * c->width + wrong;
    snprintf(message, capacity, "%s of row %lld, element %lld: %.9g, expected %.9g within %.3g", c->name,
             (long long)answer->row[n], (long long)wrong, c->given[at], c->exact[at], room);
}

/* The largest error of the rows that are not lost; describes the first wrong element in `message`, if that is empty. */
static double compare(const clmgk_ref_answer *answer, const comparison *c, char *message, size_t capacity)
{
    double largest = 0.0;
    if (message[0] == '\0')
        ref_expect_proof(c->name, c->bound, message, capacity);
    for (int64_t n = 0; n < answer->rows; n++) {
        if (answer->lost[n].is)
            continue;
        int64_t wrong = -1;
        const int64_t at = n * c->width;
        clmgk_ref_bound bound = *c->bound;
        bound.may_leave = answer->lost[n].may_leave;
        const double error = ref_compare(c->width, c->exact + at, c->given + at, &bound, NULL, &wrong).error;
        largest = fmax(largest, error);
        if (wrong >= 0 && message[0] == '\0')
            complain(answer, c, n, wrong, c->bound->bound, message, capacity);
    }
    return largest;
}

/* Whether O of a lost row is an average of values that may have weight. */
static bool is_average(const clmgk_ref_answer *answer, int64_t n, const double *given, int64_t *wrong)
{
    const int64_t first = n * answer->value_size;
    bool zero = !answer->lost[n].may_be_zero;
    *wrong = -1;
    for (int64_t e = answer->value_size - 1; e >= 0; e--) {
        const double low = answer->low[first + e], high = answer->high[first + e];
        const bool may_leave = answer->lost[n].may_leave || isinf(low) || isinf(high);
        const bool overflow = !isfinite(given[e]) && may_leave; /* NaN in types without infinity */
        const bool right =
            isfinite(answer->o[first + e]) ? (low <= given[e] && given[e] <= high) || overflow : !isfinite(given[e]);
        zero = zero && given[e] == 0.0;
        *wrong = right ? *wrong : e;
    }
    if (zero && *wrong < 0)
        *wrong = 0;
    return *wrong < 0;
}

/* Holds O of the lost rows against the values that they see; describes the first wrong element. */
static void check_lost_rows(const clmgk_ref_answer *answer, const double *o, char *message, size_t capacity)
{
    int64_t wrong = -1;
    for (int64_t n = 0; n < answer->rows && message[0] == '\0'; n++) {
        const int64_t at = n * answer->value_size;
        if (!answer->lost[n].is || is_average(answer, n, o + at, &wrong))
            continue;
        snprintf(message, capacity, "O of row %lld, element %lld: %.9g, no average of the values there, %.9g to %.9g",
                 (long long)answer->row[n], (long long)wrong, o[at + wrong], answer->low[at + wrong],
                 answer->high[at + wrong]);
    }
}

/* The same for L, which has the rounding of the largest logit. */
static void check_lost_sums(const clmgk_ref_answer *answer, const comparison *c, char *message, size_t capacity)
{
    for (int64_t n = 0; n < answer->rows && message[0] == '\0'; n++) {
        const double error = fabs(c->given[n] - c->exact[n]), room = answer->lost[n].rounding;
        const bool overflows = (fabs(c->exact[n]) > (double)FLT_MAX && isinf(c->given[n])) ||
                               (answer->lost[n].may_leave && !isfinite(c->given[n]));
        if (answer->lost[n].is && !(error <= room) && !overflows) /* NaN is wrong */
            complain(answer, c, n, 0, room, message, capacity);
    }
}

clmgk_ref_verdict clmgk_ref_check(const clmgk_ref_answer *answer, const double *o, const double *lse)
{
    clmgk_ref_verdict verdict = {0};
    const size_t capacity = sizeof(verdict.message);
    const comparison of_o = {"O", answer->value_size, answer->o, o, &answer->bound_o};
    const clmgk_ref_answer *const logs = answer->before ? answer->before : answer;
    const comparison of_lse = {"L", 1, logs->lse, lse, &logs->bound_lse};
    verdict.error_o = compare(answer, &of_o, verdict.message, capacity);
    check_lost_rows(answer, o, verdict.message, capacity);
    if (lse) {
        verdict.error_lse = compare(logs, &of_lse, verdict.message, capacity);
        check_lost_sums(logs, &of_lse, verdict.message, capacity);
    }
    verdict.ok = verdict.message[0] == '\0';
    return verdict;
}

bool clmgk_ref_check_denominators(const clmgk_ref_answer *answer, const double *given, char *message, size_t capacity)
{
    message[0] = '\0';
    for (int64_t n = 0; n < answer->rows && message[0] == '\0'; n++) {
        const double den = given[2 * n] * exp(given[2 * n + 1] - answer->left_out[n] - answer->scale[n]);
        const comparison of_row = {"the denominator", 1, &answer->den[n], &den, &answer->bound_den};
        const clmgk_ref_answer row = {.rows = 1, .row = &answer->row[n], .lost = &answer->lost[n]};
        compare(&row, &of_row, message, capacity);
    }
    return message[0] == '\0';
}
