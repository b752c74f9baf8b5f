/* SPDX-License-Identifier: Apache-2.0 */
/* Numerical rank: singular values above a threshold (MGK paper, section 3.4). */
#include "algebra.h"
#include "analyze.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define DIRECT_ELEMENTS (INT64_C(1) << 20) /* of matrices whose singular values are computed as they are */
#define CHUNK_ROWS      256

static int64_t smaller_side(const analyze_population *population)
{
    return TOOL_MIN(population->rows, population->keys);
}

static bool is_direct(const analyze_population *population, const analyze_arguments *arguments)
{
    return arguments->full_svd || population->rows * population->keys <= DIRECT_ELEMENTS;
}

/* ---- by the Gram matrix --------------------------------------------------------------------------------------------
 * Its eigenvalues, the squares of the singular values, have an error of about u sqrt(n) times the largest one, u the
 * unit roundoff. A key that all queries attend to makes one singular value large, up to sqrt(n); it is taken out first,
 * which moves the others by u times it and no more. */

static double norm(int64_t count, const double *x)
{
    double sum = 0.0;
    for (int64_t n = 0; n < count; n++)
        sum += x[n] * x[n];
    return sqrt(sum);
}

/* v = A^T u / |A^T u|; returns how far it moved. */
static double turn(int64_t rows, int64_t keys, const double *a, const double *u, double *v, double *room)
{
    double moved = 0.0;
    algebra_multiply(rows, keys, a, true, u, room);
    const double length = norm(keys, room);
    for (int64_t j = 0; length > 0.0 && j < keys; j++) {
        moved += (room[j] / length - v[j]) * (room[j] / length - v[j]);
        v[j] = room[j] / length;
    }
    return sqrt(moved);
}

/* Takes the largest singular value out of A by power iteration where that converges fast, else *value is 0. */
static tool_exit deflate(int64_t rows, int64_t keys, double *a, double *value, tool_error *error)
{
    static const double close_enough = 1e-14;
    enum { ITERATIONS = 60 };
    double *const v = malloc((size_t)(2 * keys + rows) * sizeof *v);
    TOOL_TRY(tool_check_memory(v, "singular vectors", error));
    double *const room = v + keys, *const u = room + keys;
    bool converged = false;
    *value = 0.0;
    for (int64_t j = 0; j < keys; j++)
        v[j] = 1.0 / sqrt((double)keys);
    for (int n = 0; n < ITERATIONS && !converged; n++) {
        algebra_multiply(rows, keys, a, false, v, u);
        converged = turn(rows, keys, a, u, v, room) < close_enough;
    }
    if (converged) {
        algebra_multiply(rows, keys, a, false, v, u);
        *value = norm(rows, u);
        algebra_subtract_outer(rows, keys, u, v, a);
    }
    free(v);
    return TOOL_DONE;
}

static tool_exit solve_by_gram(const analyze_population *population, double *a, double *values, double *uncertain,
                               tool_error *error)
{
    const int64_t rows = population->rows, keys = population->keys, n = smaller_side(population);
    double first = 0.0;
    double *const gram = calloc((size_t)(n * n), sizeof *gram);
    double *const squares = calloc((size_t)n, sizeof *squares);
    tool_exit status = gram && squares ? TOOL_DONE : tool_fail_memory(error, "products of a matrix");
    if (status != TOOL_DONE)
        goto done;
    TOOL_TRY_GOTO(status, deflate(rows, keys, a, &first, error), done);
    if (rows < keys)
        algebra_add_row_products(n, keys, a, gram);
    else
        algebra_add_column_products(n, rows, a, gram);
    TOOL_TRY_GOTO(status, algebra_eigenvalues(n, gram, squares, error), done);
    /* What was taken out left a 0, which is the smallest. */
    const int64_t place = first > 0.0 ? 1 : 0;
    values[0] = first;
    for (int64_t i = place; i < n; i++)
        values[i] = sqrt(fmax(squares[n - 1 - (i - place)], 0.0));
    *uncertain = sqrt((double)TOOL_MAX(rows, keys)) * DBL_EPSILON * fabs(squares[n - 1]);
done:
    free(gram);
    free(squares);
    return status;
}

/* ---- one member ------------------------------------------------------------------------------------------------- */

static int64_t count_above(int64_t n, const double *values, double square)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += values[i] * values[i] > square;
    return count;
}

static tool_exit solve_member(const analyze_population *population, const analyze_arguments *arguments, double *a,
                              bool keep, analyze_rank *rank, tool_error *error)
{
    const int64_t n = smaller_side(population);
    const double square = arguments->threshold * arguments->threshold;
    double uncertain = 0.0;
    rank->values = calloc((size_t)n, sizeof(double));
    TOOL_TRY(tool_check_memory(rank->values, "singular values", error));
    if (is_direct(population, arguments))
        TOOL_TRY(algebra_singular_values(population->rows, population->keys, a, rank->values, error));
    else
        TOOL_TRY(solve_by_gram(population, a, rank->values, &uncertain, error));
    rank->rank = count_above(n, rank->values, square);
    rank->low = count_above(n, rank->values, square + uncertain);
    rank->high = uncertain < square ? count_above(n, rank->values, square - uncertain) : n;
    rank->largest = rank->values[0];
    rank->smallest = rank->values[n - 1];
    if (!keep) {
        free(rank->values);
        rank->values = NULL;
    }
    return TOOL_DONE;
}

/* All rows of a member into `a`, by chunks; without ranks each chunk takes the place of the one before. */
static tool_exit weigh_member(analyze_population *population, int64_t member, bool keep, double *a,
                              clmgk_ref_weight_rows *rows, analyze_observations *observations, tool_error *error)
{
    for (int64_t first = 0; first < population->rows; first += CHUNK_ROWS) {
        int64_t number[CHUNK_ROWS];
        const int64_t count = TOOL_MIN(CHUNK_ROWS, population->rows - first);
        for (int64_t n = 0; n < count; n++)
            number[n] = member * population->rows + first + n;
        rows->weights = a + (keep ? first * population->keys : 0);
        TOOL_TRY(analyze_weigh(population, count, number, rows, error));
        TOOL_TRY(analyze_observe(population, count, number, rows, observations, error));
    }
    return TOOL_DONE;
}

tool_exit analyze_ranks_solve(analyze_population *population, const analyze_arguments *arguments,
                              analyze_observations *observations, analyze_ranks *ranks, tool_error *error)
{
    const bool wanted = population->wanted[ANALYZE_RANK];
    const int64_t rows = wanted ? population->rows : TOOL_MIN(CHUNK_ROWS, population->rows);
    clmgk_ref_weight_rows extra = {0};
    tool_exit status = TOOL_DONE;
    double *const a = malloc((size_t)(rows * population->keys) * sizeof *a);
    ranks->member = calloc((size_t)population->members, sizeof *ranks->member);
    ranks->method = is_direct(population, arguments) ? "dgesdd" : "dsyrk, dsyevd_2stage";
    status = a && ranks->member ? TOOL_DONE : tool_fail_memory(error, "an attention matrix");
    if (status != TOOL_DONE)
        goto done;
    TOOL_TRY_GOTO(status, analyze_make_rows(population, TOOL_MIN(CHUNK_ROWS, population->rows), &extra, error), done);
    for (int64_t m = 0; m < population->members; m++) {
        TOOL_TRY_GOTO(status, weigh_member(population, m, wanted, a, &extra, observations, error), done);
        if (wanted)
            TOOL_TRY_GOTO(status,
                          solve_member(population, arguments, a, m < ANALYZE_PICTURES, &ranks->member[m], error), done);
    }
done:
    analyze_free_rows(&extra);
    free(a);
    return status;
}

void analyze_ranks_free(const analyze_population *population, analyze_ranks *ranks)
{
    for (int64_t m = 0; ranks->member && m < population->members; m++)
        free(ranks->member[m].values);
    free(ranks->member);
    *ranks = (analyze_ranks){0};
}
