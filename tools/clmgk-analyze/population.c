/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze.h"
#include "opencl.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- which matrices --------------------------------------------------------------------------------------------- */

static tool_exit check_sizes(const analyze_population *population, tool_error *error)
{
    const clmgk_attention_desc *const desc = &population->problem.desc;
    if (desc->length == 0 || desc->length_k <= 0)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has %c = 0; expected at least 1, as there are no matrices",
                         desc->length == 0 ? "q" : "k",
                         population->problem.file[desc->length == 0 ? CLMGK_ARRAY_Q : CLMGK_ARRAY_K].path,
                         desc->length == 0 ? 'N' : 'S');
    return TOOL_DONE;
}

/* All rows, or as many as are asked for or wise, evenly spaced. */
static tool_exit choose_rows(int64_t wanted, analyze_population *population, tool_error *error)
{
    const int64_t length = population->problem.desc.length;
    int64_t rows = TOOL_MIN(length, ANALYZE_MAX_ROWS);
    rows = TOOL_MIN(rows, TOOL_MAX(ANALYZE_MAX_ELEMENTS / population->keys, 1));
    if (wanted > length)
        return tool_fail(error, TOOL_BAD_INPUT, "--rows %" PRId64 ": expected at most N = %" PRId64, wanted, length);
    population->rows = wanted > 0 ? wanted : rows;
    population->row = calloc((size_t)population->rows, sizeof *population->row);
    TOOL_TRY(tool_check_memory(population->row, "the rows", error));
    for (int64_t n = 0; n < population->rows; n++)
        population->row[n] = n * length / population->rows;
    return TOOL_DONE;
}

/* Why an analysis does not apply; NULL: it does. */
static const char *reason_against(const analyze_population *population, analyze_kind kind)
{
    const clmgk_attention_desc *const desc = &population->problem.desc;
    const bool mixture = !tool_is_mixed(desc->variant) && !tool_is_linear(desc->variant);
    switch (kind) {
    case ANALYZE_DISTANCES:
        return population->heads < 2 ? "one head alone" : NULL;
    case ANALYZE_COMPONENTS:
        return population->members > ANALYZE_MAX_MEMBERS ? "more than 8192 matrices: choose some by --batch-list"
                                                         : NULL;
    case ANALYZE_NLL:
        return !mixture ? clmgk_variant_name(desc->variant) : desc->score != CLMGK_SCORE_GAUSSIAN ? "dot scores" : NULL;
    case ANALYZE_RESPONSIBILITIES:
        return mixture ? NULL : clmgk_variant_name(desc->variant);
    case ANALYZE_MATRICES:
    case ANALYZE_RANK:
    case ANALYZE_KINDS:
        break;
    }
    return NULL;
}

/* Refuses options of analyses that are not made. */
static tool_exit check_wanted(const analyze_arguments *arguments, const analyze_population *population,
                              tool_error *error)
{
    for (int kind = 0; kind < ANALYZE_KINDS; kind++) {
        if (arguments->only_for[kind] && !population->wanted[kind])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply without the analysis %s",
                             arguments->only_for[kind], analyze_name((analyze_kind)kind));
    }
    return TOOL_DONE;
}

static tool_exit choose_analyses(const analyze_arguments *arguments, analyze_population *population, tool_error *error)
{
    const bool *const chosen = arguments->chosen;
    bool any = false;
    for (int kind = 0; kind < ANALYZE_KINDS; kind++)
        any = any || chosen[kind];
    for (int kind = 0; kind < ANALYZE_KINDS; kind++) {
        const char *const reason = reason_against(population, (analyze_kind)kind);
        if (chosen[kind] && reason)
            return tool_fail(error, TOOL_BAD_INPUT, "--analyses: %s does not apply to %s",
                             analyze_name((analyze_kind)kind), reason);
        population->wanted[kind] = any ? chosen[kind] : !reason;
    }
    /* Of one component they are all 1, of one matrix the component is itself: told on request. */
    if (!any && population->problem.desc.components == 1)
        population->wanted[ANALYZE_RESPONSIBILITIES] = false;
    if (!any && population->members == 1)
        population->wanted[ANALYZE_COMPONENTS] = false;
    return check_wanted(arguments, population, error);
}

static tool_exit load(analyze_population *population, tool_error *error)
{
    tool_problem *const problem = &population->problem;
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        const tool_slot *const slot = &problem->slot[array];
        if (!slot->used || array == CLMGK_ARRAY_V)
            continue;
        if (clmgk_array_get_info(array)->element == CLMGK_ELEMENT_I32) {
            population->values[array] = slot->host;
            continue;
        }
        double *values = NULL;
        const tool_exit status = tool_load_values(problem, array, &values, error);
        population->values[array] = values;
        TOOL_TRY(status);
    }
    population->reference = (clmgk_ref_problem){.desc = problem->desc, .seed = problem->seed};
    clmgk_ref_set_arrays(&population->reference, population->values);
    return TOOL_DONE;
}

tool_exit analyze_population_open(const analyze_arguments *arguments, analyze_population *population, tool_error *error)
{
    *population = (analyze_population){.start_ms = tool_now_ms()};
    TOOL_TRY(tool_problem_open(&arguments->problem, &population->problem, error));
    TOOL_TRY(check_sizes(population, error));
    const clmgk_attention_desc *const desc = &population->problem.desc;
    TOOL_TRY(analyze_parse_indices("batch-list", arguments->batch_list, desc->batch, &population->batch,
                                   &population->batches, error));
    TOOL_TRY(analyze_parse_indices("head-list", arguments->head_list, desc->heads, &population->head,
                                   &population->heads, error));
    population->members = population->batches * population->heads;
    population->keys = desc->length_k;
    TOOL_TRY(choose_rows(arguments->rows, population, error));
    TOOL_TRY(choose_analyses(arguments, population, error));
    return load(population, error);
}

void analyze_population_close(analyze_population *population)
{
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (clmgk_array_get_info(array)->element != CLMGK_ELEMENT_I32)
            free(population->values[array]);
    }
    free(population->batch);
    free(population->head);
    free(population->row);
    tool_problem_close(&population->problem);
    *population = (analyze_population){0};
}

int64_t analyze_batch_of(const analyze_population *population, int64_t member)
{
    return population->batch[member / population->heads];
}

int64_t analyze_head_of(const analyze_population *population, int64_t member)
{
    return population->head[member % population->heads];
}

/* ---- their rows ------------------------------------------------------------------------------------------------- */

#define MAX_THREADS 64

/* A part of some rows, for a thread. */
typedef struct part {
    const clmgk_ref_problem *problem;
    int64_t count;
    const int64_t *row;
    clmgk_ref_weight_rows out;
    bool ok;
} part;

static void *weigh_part(void *user)
{
    part *const own = user;
    own->ok = clmgk_ref_weights(own->problem, own->count, own->row, &own->out);
    return NULL;
}

/* Rows first .. first + count - 1. */
static part part_of(const analyze_population *population, const int64_t *row, int64_t first, int64_t count,
                    const clmgk_ref_weight_rows *out)
{
    const int64_t keys = population->keys, components = population->problem.desc.components;
    return (part){.problem = &population->reference,
                  .count = count,
                  .row = row + first,
                  .out = {out->weights + first * keys,
                          out->responsibilities ? out->responsibilities + first * components * keys : NULL,
                          out->log_likelihood ? out->log_likelihood + first : NULL}};
}

static bool weigh_all(const analyze_population *population, int64_t count, const int64_t *row,
                      const clmgk_ref_weight_rows *out)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const int64_t parts = TOOL_MAX(TOOL_MIN(TOOL_MIN((int64_t)processors, MAX_THREADS), count), 1);
    part all[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    bool started[MAX_THREADS] = {false}, ok = true;
    for (int64_t n = 0; n < parts; n++) {
        const int64_t first = n * count / parts, end = (n + 1) * count / parts;
        all[n] = part_of(population, row, first, end - first, out);
        started[n] = n > 0 && pthread_create(&thread[n], NULL, weigh_part, &all[n]) == 0;
    }
    for (int64_t n = 0; n < parts; n++) { /* without a thread: here */
        if (!started[n])
            weigh_part(&all[n]);
    }
    for (int64_t n = 0; n < parts; n++) {
        if (started[n])
            pthread_join(thread[n], NULL);
        ok = ok && all[n].ok;
    }
    return ok;
}

static void say_progress(analyze_population *population)
{
    static const double first_ms = 3000.0, every_ms = 5000.0;
    const double now = tool_now_ms(), spent = now - population->start_ms;
    if (spent < first_ms || now - population->said_ms < every_ms)
        return;
    population->said_ms = now;
    fprintf(stderr, "clmgk-analyze: %" PRId64 " of %" PRId64 " rows, %.0f s\n", population->done, population->total,
            1e-3 * spent);
}

tool_exit analyze_weigh(analyze_population *population, int64_t count, const int64_t *number,
                        const clmgk_ref_weight_rows *out, tool_error *error)
{
    const clmgk_attention_desc *const desc = &population->problem.desc;
    int64_t *const row = calloc((size_t)count, sizeof *row);
    TOOL_TRY(tool_check_memory(row, "the rows", error));
    for (int64_t n = 0; n < count; n++) {
        const int64_t member = number[n] / population->rows;
        row[n] =
            (analyze_batch_of(population, member) * desc->heads + analyze_head_of(population, member)) * desc->length +
            population->row[number[n] % population->rows];
    }
    const bool ok = weigh_all(population, count, row, out);
    free(row);
    population->done += count;
    say_progress(population);
    return ok ? TOOL_DONE : tool_fail_memory(error, "rows of the attention matrix");
}
