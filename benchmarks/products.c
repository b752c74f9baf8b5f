/* SPDX-License-Identifier: Apache-2.0 */
/* Products C [m,n] = A [m,k] B [n,k]^T, as layers have them: every provider beside CLBlast with its own
 * parameters. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 64, LEAST_RUNS = 3, MAX_RUNS = 1000, WAYS = 8 };

/* ---- one product --------------------------------------------------------------------------------------------- */

/* A way to multiply, with its times. */
typedef struct way {
    const char *name;       /* a provider */
    const char *parameters; /* NULL: tuned; "": the provider's own */
    bool done;
    double plan_ms, first_ms;
    double *times;
    size_t runs;
    tool_spread spread;
    tool_multiplier multiplier;
    char used[512], note[256]; /* of the plan */
    char refused[256];         /* why there is none; empty: there is one */
    clmgk_tuning_source tuning;
    clmgk_dtype sums;
    clmgk_precision precision; /* used */
} way;

typedef struct scene {
    const tool_device *device;
    tool_matrices matrices;
    double seconds;
} scene;

static tool_exit make_plan(const scene *s, way *w, tool_error *error)
{
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    const double start = tool_now_ms();
    TOOL_TRY(tool_multiplier_open(s->device, s->device->library, &s->matrices, w->name, w->parameters, &w->multiplier,
                                  error));
    w->plan_ms = tool_now_ms() - start;
    TOOL_TRY(tool_check_library(clmgk_gemm_plan_get_info(w->multiplier.plan, &info, &error->library), error));
    (void)snprintf(w->used, sizeof(w->used), "%s", info.parameters);
    (void)snprintf(w->note, sizeof(w->note), "%s", info.note);
    w->tuning = info.tuning;
    w->sums = info.sums;
    w->precision = info.precision;
    return TOOL_DONE;
}

/* Makes the plan, or notes why this device has none by this provider. */
static tool_exit try_plan(const scene *s, way *w, tool_error *error)
{
    error->library.status = CLMGK_OK;
    const tool_exit status = make_plan(s, w, error);
    if (error->library.status == CLMGK_OK || error->library.status == CLMGK_ERROR_OUT_OF_HOST_MEMORY)
        return status;
    (void)snprintf(w->refused, sizeof(w->refused), "%.255s", error->library.message);
    return TOOL_DONE;
}

static tool_exit first_run(const scene *s, way *w, tool_error *error)
{
    char message[256];
    w->times = calloc(MAX_RUNS, sizeof(*w->times));
    TOOL_TRY(tool_check_memory(w->times, "times", error));
    TOOL_TRY(try_plan(s, w, error));
    if (w->refused[0] != '\0')
        return TOOL_DONE;
    TOOL_TRY(tool_multiplier_run(s->device, &w->multiplier, 1, &w->first_ms, error));
    TOOL_TRY(tool_matrices_read(s->device, &s->matrices, error));
    return tool_matrices_check(&s->matrices, w->sums, w->precision, SAMPLES, message, sizeof(message))
               ? TOOL_DONE
               : tool_fail(error, TOOL_CHECK_FAILED, "%s: %s", w->name, message);
}

/* All ways in turn: A B C A B C ... */
static tool_exit measure(const scene *s, way *ways, size_t count, tool_error *error)
{
    tool_exit status = TOOL_DONE;
    for (size_t i = 0; i < count; i++)
        TOOL_TRY_GOTO(status, first_run(s, &ways[i], error), done);
    const double end = tool_now_ms() + s->seconds * 1000;
    for (size_t run = 0; run < MAX_RUNS && (run < LEAST_RUNS || tool_now_ms() < end); run++)
        for (size_t i = 0; i < count; i++)
            if (ways[i].refused[0] == '\0')
                TOOL_TRY_GOTO(
                    status,
                    tool_multiplier_run(s->device, &ways[i].multiplier, 1, &ways[i].times[ways[i].runs++], error),
                    done);
    for (size_t i = 0; i < count; i++) {
        ways[i].spread = tool_spread_of(ways[i].times, ways[i].runs);
        ways[i].done = true;
    }
done:
    for (size_t i = 0; i < count; i++)
        tool_multiplier_close(&ways[i].multiplier);
    return status;
}

/* ---- which ways there are ------------------------------------------------------------------------------------ */

static tool_exit can_multiply(const tool_device *device, size_t provider, clmgk_dtype dtype, bool *can,
                              tool_error *error)
{
    clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
    TOOL_TRY(
        tool_check_library(clmgk_gemm_provider_state(device->info.device_id, provider, &info, &error->library), error));
    *can = (info.dtypes & 1U << (unsigned)dtype) != 0;
    return TOOL_DONE;
}

/* Those of the second round: each provider. */
static tool_exit list_ways(const tool_device *device, clmgk_dtype dtype, way *ways, size_t *count, tool_error *error)
{
    for (size_t i = 0; clmgk_gemm_provider(i) && *count < WAYS; i++) {
        bool can = false;
        TOOL_TRY(can_multiply(device, i, dtype, &can, error));
        if (can)
            ways[(*count)++] = (way){.name = clmgk_gemm_provider(i)};
    }
    return TOOL_DONE;
}

typedef struct row {
    tool_product size;
    way ways[WAYS]; /* the first one: CLBlast with its own parameters, where it is there */
    size_t count;
    bool has_untuned;
} row;

static double ratio_to_untuned(const row *r, const way *w)
{
    return r->has_untuned ? r->ways[0].spread.median / w->spread.median : 0;
}

static const char *way_name(const way *w)
{
    return w->parameters ? "own parameters" : clmgk_tuning_source_name(w->tuning);
}

static void print_row(const row *r, FILE *stream)
{
    fprintf(stream, "%s\n", tool_product_name(&r->size).text);
    for (size_t i = 0; i < r->count; i++) {
        const way *const w = &r->ways[i];
        if (w->refused[0] != '\0') {
            fprintf(stream, "  %-9s not measured: %s\n", w->name, w->refused);
            continue;
        }
        fprintf(stream,
                "  %-9s %-15s %9.3f ms  %7.1f GFLOP/s  to untuned CLBlast %5.2f  plan %8.1f ms  first "
                "%8.1f ms\n",
                w->name, way_name(w), w->spread.median, tool_product_gflops(&r->size, w->spread.median),
                ratio_to_untuned(r, w), w->plan_ms, w->first_ms);
    }
}

static json_t *way_json(const row *r, const way *w)
{
    json_t *const key =
        tool_json_merge(tool_product_json(&r->size), json_pack("{s:I, s:s, s:b}", "device", (json_int_t)0, "provider",
                                                               w->name, "untuned", (int)(w->parameters != NULL)));
    if (w->refused[0] != '\0')
        return tool_json_merge(key, json_pack("{s:s}", "refused", w->refused));
    return tool_json_merge(
        key, json_pack("{s:s, s:s, s:s, s:s, s:{s:f, s:f, s:f, s:I}, s:f, s:o, s:f, s:f}", "precision_used",
                       clmgk_precision_name(w->precision), "tuning", clmgk_tuning_source_name(w->tuning), "parameters",
                       w->used, "note", w->note, "time_ms", "median", w->spread.median, "min", w->spread.min, "max",
                       w->spread.max, "repetitions", (json_int_t)w->runs, "gflops",
                       tool_product_gflops(&r->size, w->spread.median), "ratio_to_untuned",
                       tool_json_positive(ratio_to_untuned(r, w)), "plan_ms", w->plan_ms, "first_ms", w->first_ms));
}

/* ---- all of them --------------------------------------------------------------------------------------------- */

typedef struct product_run {
    const bench_device *device;
    const bench_options *options;
    tool_outputs *outputs;
    row *rows;
    size_t count;
} product_run;

static json_t *make_object(const void *of)
{
    const product_run *const run = of;
    json_t *products = json_array();
    for (size_t n = 0; n < run->count; n++)
        for (size_t i = 0; i < run->rows[n].count; i++)
            tool_json_append(&products, way_json(&run->rows[n], &run->rows[n].ways[i]));
    return bench_rows_json(run->device, "products", products);
}

static void print_rows(const void *of, FILE *stream)
{
    const product_run *const run = of;
    for (size_t i = 0; i < run->count; i++)
        print_row(&run->rows[i], stream);
}

static tool_exit give(const product_run *run, bool ended_early, tool_error *error)
{
    const bench_results results = {run->outputs, run->options->json, make_object, print_rows, run};
    return bench_give_results(&results, ended_early, error);
}

static tool_exit measure_row(const product_run *run, row *r, size_t before, tool_error *error)
{
    scene s = {.device = &run->device->tool, .seconds = run->options->seconds};
    tool_exit status = tool_matrices_create(s.device, &r->size, &s.matrices, error);
    if (status == TOOL_DONE)
        status = measure(&s, r->ways + before, r->count - before, error);
    tool_matrices_release(&s.matrices);
    TOOL_TRY(status);
    return give(run, true, error);
}

/* One round over all sizes: the first measures CLBlast's own parameters, which are lost once others are set. */
static tool_exit round_over(const product_run *run, bool untuned, tool_error *error)
{
    for (row *r = run->rows; r < run->rows + run->count; r++) {
        const size_t before = r->count;
        if (untuned) {
            r->ways[r->count++] = (way){.name = "clblast", .parameters = ""};
            r->has_untuned = true;
        } else {
            TOOL_TRY(list_ways(&run->device->tool, r->size.dtype, r->ways, &r->count, error));
        }
        fprintf(stderr, "clmgk-bench: %s: %s%s\n", run->device->tool.info.name, tool_product_name(&r->size).text,
                untuned ? ", CLBlast with its own parameters" : "");
        TOOL_TRY(measure_row(run, r, before, error));
    }
    return TOOL_DONE;
}

static tool_exit measure_rows(const product_run *run, tool_error *error)
{
    for (size_t i = 0; clmgk_gemm_provider(i); i++) {
        bool can = false;
        if (strcmp(clmgk_gemm_provider(i), "clblast") != 0)
            continue;
        TOOL_TRY(can_multiply(&run->device->tool, i, run->options->products[0].dtype, &can, error));
        if (can)
            TOOL_TRY(round_over(run, true, error));
    }
    return round_over(run, false, error);
}

tool_exit bench_products(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error)
{
    const size_t count = options->product_count;
    const product_run run = {device, options, outputs, calloc(count, sizeof(*run.rows)), count};
    tool_exit status = TOOL_DONE;
    TOOL_TRY(tool_check_memory(run.rows, "products", error));
    for (size_t i = 0; i < count; i++)
        run.rows[i].size = options->products[i];
    TOOL_TRY_GOTO(status, measure_rows(&run, error), done);
    status = give(&run, false, error);
done:
    for (size_t i = 0; i < count; i++)
        for (size_t w = 0; w < run.rows[i].count; w++)
            free(run.rows[i].ways[w].times);
    free(run.rows);
    return status;
}
