/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- room ------------------------------------------------------------------------------------------------------- */

static tool_exit create_member(const analyze_population *population, const analyze_observations *all, int64_t number,
                               tool_error *error)
{
    analyze_member *const member = &all->member[number];
    const size_t pixels = (size_t)(all->height * all->width), components = (size_t)all->components;
    bool ok = true;
    if (population->wanted[ANALYZE_RESPONSIBILITIES]) {
        member->share = calloc(components, sizeof(double));
        ok = member->share;
        if (number == 0)
            member->gamma_pixels = calloc(components * pixels, sizeof(double));
        ok = ok && (number > 0 || member->gamma_pixels);
    }
    if (population->wanted[ANALYZE_MATRICES] && number < ANALYZE_PICTURES) {
        member->pixels = calloc(pixels, sizeof(double));
        ok = ok && member->pixels;
    }
    return ok ? TOOL_DONE : tool_fail_memory(error, "the observations");
}

tool_exit analyze_observations_create(const analyze_population *population, analyze_observations *observations,
                                      tool_error *error)
{
    const clmgk_attention_desc *const desc = &population->problem.desc;
    const int64_t sequences = desc->sequences > 0 ? desc->sequences : population->batches;
    const size_t cells = (size_t)(sequences * population->heads);
    *observations = (analyze_observations){.components = desc->components,
                                           .height = TOOL_MIN(population->rows, ANALYZE_PIXELS),
                                           .width = TOOL_MIN(population->keys, ANALYZE_PIXELS),
                                           .sequences = sequences};
    observations->member = calloc((size_t)population->members, sizeof(analyze_member));
    observations->nll_sum = calloc(cells, sizeof(double));
    observations->nll_rows = calloc(cells, sizeof(double));
    if (!observations->member || !observations->nll_sum || !observations->nll_rows)
        return tool_fail_memory(error, "the observations");
    for (int64_t m = 0; m < population->members; m++)
        TOOL_TRY(create_member(population, observations, m, error));
    return TOOL_DONE;
}

void analyze_observations_free(const analyze_population *population, analyze_observations *observations)
{
    for (int64_t m = 0; observations->member && m < population->members; m++) {
        free(observations->member[m].share);
        free(observations->member[m].pixels);
        free(observations->member[m].gamma_pixels);
    }
    free(observations->member);
    free(observations->nll_sum);
    free(observations->nll_rows);
    *observations = (analyze_observations){0};
}

tool_exit analyze_make_rows(const analyze_population *population, int64_t count, clmgk_ref_weight_rows *rows,
                            tool_error *error)
{
    const size_t numbers = (size_t)(count * population->problem.desc.components * population->keys);
    bool ok = true;
    if (population->wanted[ANALYZE_RESPONSIBILITIES]) {
        rows->responsibilities = malloc(numbers * sizeof(double));
        ok = rows->responsibilities;
    }
    if (population->wanted[ANALYZE_NLL]) {
        rows->log_likelihood = malloc((size_t)count * sizeof(double));
        ok = ok && rows->log_likelihood;
    }
    return ok ? TOOL_DONE : tool_fail_memory(error, "rows of the attention matrix");
}

void analyze_free_rows(clmgk_ref_weight_rows *rows)
{
    free(rows->responsibilities);
    free(rows->log_likelihood);
    rows->responsibilities = rows->log_likelihood = NULL;
}

/* ---- one row ---------------------------------------------------------------------------------------------------- */

/* -x log x, by its limit at 0. Weights of the linear family may be negative: they have no entropy. */
static double surprise(double x)
{
    return x > 0.0 ? -x * log(x) : 0.0;
}

static tool_exit check_finite(const analyze_population *population, int64_t member, int64_t row, const double *weights,
                              tool_error *error)
{
    for (int64_t j = 0; j < population->keys; j++) {
        if (!isfinite(weights[j]))
            return tool_fail(error, TOOL_BAD_INPUT,
                             "the weight of batch %" PRId64 ", head %" PRId64 ", query %" PRId64 ", key %" PRId64
                             " is %g; expected finite matrices: look for NaN and infinities in --q and --k",
                             analyze_batch_of(population, member), analyze_head_of(population, member),
                             population->row[row], j, weights[j]);
    }
    return TOOL_DONE;
}

/* Adds a row of keys to its line of pixels. */
static void add_pixels(const analyze_population *population, const analyze_observations *all, int64_t row,
                       const double *values, double *pixels)
{
    double *const line = pixels + row * all->height / population->rows * all->width;
    for (int64_t j = 0; j < population->keys; j++)
        line[j * all->width / population->keys] += values[j];
}

static void observe_components(const analyze_population *population, const analyze_observations *all, int64_t row,
                               const double *responsibilities, analyze_member *member)
{
    const int64_t keys = population->keys;
    for (int64_t j = 0; j < keys; j++) {
        double sum = 0.0;
        for (int64_t r = 0; r < all->components; r++) {
            const double gamma = responsibilities[r * keys + j];
            sum += gamma;
            member->share[r] += gamma;
            member->component_entropy += surprise(gamma);
        }
        member->pairs += sum > 0.0 ? 1.0 : 0.0;
    }
    for (int64_t r = 0; member->gamma_pixels && r < all->components; r++)
        add_pixels(population, all, row, responsibilities + r * keys,
                   member->gamma_pixels + r * all->height * all->width);
}

/* The batch's place among the chosen ones, or the packed sequence of the row. */
static int64_t sequence_of(const analyze_population *population, int64_t member, int64_t row)
{
    const int32_t *const offsets = population->reference.offsets;
    int64_t sequence = 0;
    if (population->problem.desc.sequences == 0)
        return member / population->heads;
    while (offsets[sequence + 1] <= population->row[row])
        sequence++;
    return sequence;
}

static void observe_likelihood(const analyze_population *population, int64_t member, int64_t row, double log_p,
                               analyze_observations *all)
{
    const int64_t cell = sequence_of(population, member, row) * population->heads + member % population->heads;
    if (isnan(log_p)) /* a row without keys */
        return;
    all->nll_sum[cell] -= log_p;
    all->nll_rows[cell] += 1.0;
}

tool_exit analyze_observe(const analyze_population *population, int64_t count, const int64_t *number,
                          const clmgk_ref_weight_rows *rows, analyze_observations *observations, tool_error *error)
{
    const int64_t keys = population->keys;
    for (int64_t n = 0; n < count; n++) {
        const int64_t m = number[n] / population->rows, row = number[n] % population->rows;
        const double *const weights = rows->weights + n * keys;
        analyze_member *const member = &observations->member[m];
        TOOL_TRY(check_finite(population, m, row, weights, error));
        for (int64_t j = 0; population->wanted[ANALYZE_MATRICES] && j < keys; j++) {
            member->entropy += surprise(weights[j]);
            member->largest = fmax(member->largest, weights[j]);
        }
        if (member->pixels)
            add_pixels(population, observations, row, weights, member->pixels);
        if (rows->responsibilities)
            observe_components(population, observations, row,
                               rows->responsibilities + n * observations->components * keys, member);
        if (rows->log_likelihood)
            observe_likelihood(population, m, row, rows->log_likelihood[n], observations);
    }
    return TOOL_DONE;
}
