/* SPDX-License-Identifier: Apache-2.0 */
/* Distances between heads (FiSH paper, section 5.2), and principal components (section 5.3). */
#include "algebra.h"
#include "analyze.h"

#include <math.h>
#include <stdlib.h>

#define BLOCK_ELEMENTS (INT64_C(1) << 24)

/* Some rows of all members: [members, count rows, keys]. */
typedef struct block {
    int64_t most; /* rows */
    int64_t *number;
    clmgk_ref_weight_rows rows;
} block;

static tool_exit block_create(const analyze_population *population, bool observed, block *out, tool_error *error)
{
    const int64_t row = population->members * population->keys;
    const int64_t most = TOOL_MIN(population->rows * population->keys, BLOCK_ELEMENTS) / row;
    *out = (block){.most = TOOL_MIN(TOOL_MAX(most, 1), population->rows)};
    out->number = calloc((size_t)(population->members * out->most), sizeof(int64_t));
    out->rows.weights = malloc((size_t)(row * out->most) * sizeof(double));
    if (!out->number || !out->rows.weights)
        return tool_fail_memory(error, "rows of the attention matrix");
    return observed ? analyze_make_rows(population, population->members * out->most, &out->rows, error) : TOOL_DONE;
}

static void block_free(block *out)
{
    free(out->number);
    free(out->rows.weights);
    analyze_free_rows(&out->rows);
}

static double squared_distance(int64_t count, const double *x, const double *y)
{
    double sum = 0.0;
    for (int64_t n = 0; n < count; n++)
        sum += (x[n] - y[n]) * (x[n] - y[n]);
    return sum;
}

static void add_distances(const analyze_population *population, int64_t width, const double *x, double *distance)
{
    const int64_t heads = population->heads;
    for (int64_t m = 0; m < population->members; m++)
        for (int64_t other = m % heads + 1; other < heads; other++)
            distance[m * heads + other] +=
                squared_distance(width, x + m * width, x + (m / heads * heads + other) * width);
}

/* Mean and variance over sequences and pairs of heads; of sampled rows the estimate for all. */
static void sum_distances(const analyze_population *population, analyze_pairs *pairs)
{
    const int64_t heads = population->heads;
    const double scale = (double)population->problem.desc.length / (double)population->rows;
    double count = 0.0, sum = 0.0, squares = 0.0;
    for (int64_t m = 0; m < population->members; m++)
        for (int64_t other = m % heads + 1; other < heads; other++) {
            pairs->distance[m * heads + other] *= scale;
            sum += pairs->distance[m * heads + other];
            count += 1.0;
        }
    pairs->mean = sum / count;
    for (int64_t m = 0; m < population->members; m++)
        for (int64_t other = m % heads + 1; other < heads; other++)
            squares += pow(pairs->distance[m * heads + other] - pairs->mean, 2.0);
    pairs->variance = squares / count;
}

/* ---- principal components --------------------------------------------------------------------------------------- */

/* The whole matrix from its lower triangle, divided by n. */
static void complete(int64_t n, double *matrix)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++)
            matrix[j * n + i] = matrix[i * n + j] = matrix[i * n + j] / (double)n;
}

/* The matrix of inner products about the mean: J K J, J = I - 1 1^T / n. */
static tool_exit centre(int64_t n, double *matrix, tool_error *error)
{
    double *const mean = calloc((size_t)n, sizeof *mean);
    double whole = 0.0;
    TOOL_TRY(tool_check_memory(mean, "the principal components", error));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++)
            mean[i] += matrix[i * n + j] / (double)n;
        whole += mean[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            matrix[i * n + j] += whole - mean[i] - mean[j];
    free(mean);
    return TOOL_DONE;
}

/* Eigenvalues, the largest first; rounding leaves none below 0. */
static tool_exit solve_spectrum(int64_t n, double *matrix, double *values, tool_error *error)
{
    TOOL_TRY(algebra_eigenvalues(n, matrix, values, error));
    for (int64_t low = 0, high = n - 1; low < high; low++, high--) {
        const double value = values[low];
        values[low] = values[high];
        values[high] = value;
    }
    for (int64_t i = 0; i < n; i++)
        values[i] = fmax(values[i], 0.0);
    return TOOL_DONE;
}

/* The smallest number of values whose sum is the given part of the total. Values up to `least` count as rounding
 * errors. */
static int64_t count_components(int64_t n, const double *values, double fraction, double least)
{
    static const double slack = 1e-12;
    double total = 0.0, sum = 0.0;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        total += values[i];
    while (total > least && count < n && sum < fraction * total * (1.0 - slack))
        sum += values[count++];
    return count;
}

static tool_exit solve_components(const analyze_population *population, double fraction, analyze_pairs *pairs,
                                  tool_error *error)
{
    static const double rounding = 1e-13;
    const int64_t n = population->members;
    const size_t elements = (size_t)(n * n);
    double trace = 0.0;
    double *const copy = malloc(elements * sizeof(double));
    tool_exit status = tool_check_memory(copy, "the principal components", error);
    if (status != TOOL_DONE)
        return status;
    complete(n, pairs->gram);
    for (int64_t i = 0; i < n; i++)
        trace += pairs->gram[i * n + i];
    for (size_t e = 0; e < elements; e++)
        copy[e] = pairs->gram[e];
    TOOL_TRY_GOTO(status, solve_spectrum(n, copy, pairs->spectrum, error), done);
    TOOL_TRY_GOTO(status, centre(n, pairs->gram, error), done);
    TOOL_TRY_GOTO(status, solve_spectrum(n, pairs->gram, pairs->centred, error), done);
    pairs->components = count_components(n, pairs->spectrum, fraction, 0.0);
    pairs->centred_components = count_components(n, pairs->centred, fraction, rounding * trace);
done:
    free(copy);
    return status;
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

static tool_exit create_pairs(const analyze_population *population, analyze_pairs *pairs, tool_error *error)
{
    const size_t members = (size_t)population->members;
    bool ok = true;
    if (population->wanted[ANALYZE_DISTANCES]) {
        pairs->distance = calloc(members * (size_t)population->heads, sizeof(double));
        ok = pairs->distance;
    }
    if (population->wanted[ANALYZE_COMPONENTS]) {
        pairs->gram = calloc(members * members, sizeof(double));
        pairs->spectrum = calloc(members, sizeof(double));
        pairs->centred = calloc(members, sizeof(double));
        ok = ok && pairs->gram && pairs->spectrum && pairs->centred;
    }
    return ok ? TOOL_DONE : tool_fail_memory(error, "products of matrices");
}

static tool_exit take_block(analyze_population *population, int64_t first, int64_t count, const block *some,
                            analyze_observations *observations, const analyze_pairs *pairs, tool_error *error)
{
    const int64_t members = population->members, width = count * population->keys;
    for (int64_t m = 0; m < members; m++)
        for (int64_t n = 0; n < count; n++)
            some->number[m * count + n] = m * population->rows + first + n;
    TOOL_TRY(analyze_weigh(population, members * count, some->number, &some->rows, error));
    if (observations)
        TOOL_TRY(analyze_observe(population, members * count, some->number, &some->rows, observations, error));
    if (pairs->distance)
        add_distances(population, width, some->rows.weights, pairs->distance);
    if (pairs->gram)
        algebra_add_row_products(members, width, some->rows.weights, pairs->gram);
    return TOOL_DONE;
}

tool_exit analyze_pairs_solve(analyze_population *population, double fraction, analyze_observations *observations,
                              analyze_pairs *pairs, tool_error *error)
{
    block some = {0};
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, create_pairs(population, pairs, error), done);
    TOOL_TRY_GOTO(status, block_create(population, observations != NULL, &some, error), done);
    for (int64_t first = 0; first < population->rows; first += some.most) {
        const int64_t count = TOOL_MIN(some.most, population->rows - first);
        TOOL_TRY_GOTO(status, take_block(population, first, count, &some, observations, pairs, error), done);
    }
    if (pairs->distance)
        sum_distances(population, pairs);
    if (pairs->gram)
        TOOL_TRY_GOTO(status, solve_components(population, fraction, pairs, error), done);
done:
    block_free(&some);
    return status;
}

double analyze_mean_distance(const analyze_population *population, const analyze_pairs *pairs, int64_t head,
                             int64_t other)
{
    const int64_t heads = population->heads;
    double sum = 0.0;
    for (int64_t b = 0; b < population->batches; b++)
        sum += pairs->distance[(b * heads + TOOL_MIN(head, other)) * heads + TOOL_MAX(head, other)];
    return head == other ? 0.0 : sum / (double)population->batches;
}

void analyze_pairs_free(analyze_pairs *pairs)
{
    free(pairs->distance);
    free(pairs->gram);
    free(pairs->spectrum);
    free(pairs->centred);
    *pairs = (analyze_pairs){0};
}
