/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process in which one candidate is compiled, run in turn with the defaults, and checked. Its job has the `folder`
 * of programs, the `device`, the path of the `history`, and the `line` so far: the case, the candidate (choice and
 * parameters; null: the defaults'; cached: what a plan finds in the cache), so many pairs of runs, and the best ratio
 * so far: a slower candidate is stopped, a faster one is checked; 0: a proof. The line gets the plans' choice and
 * parameters (usual: the defaults'), default_ms, ratio, ratios, and "lost" ("failed", "wrong"), with a message, if it
 * is out.
 */
#include "tune.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PAIRS        31
#define STOP_RATIO       1.1  /* of the fastest so far, and STOP_NOISE / n: with a median above that, of n pairs, */
#define STOP_NOISE       0.3  /* a candidate is stopped */
#define WORKSPACE_FACTOR 2    /* more times the arrays is no fair price for speed */
#define PRODUCT_MS       40.0 /* a repetition of short products is several calls */

/* One of the two that are compared: a plan of attention, or a product (run has its context alone). */
typedef struct contender {
    bench_runner run;
    tool_multiplier multiplier;
} contender;

typedef struct worker {
    const tune_options *options;
    tool_device device;
    tune_list list;
    json_t *job;
    const tune_case *c;
    bench_arrays arrays;
    tool_matrices matrices;
    int calls; /* a repetition */
    bool event_clock;
    contender usual, candidate;
} worker;

/* How a plan is made: the defaults', or the candidate's. */
static bench_manner manner_of(const worker *w, bool candidate)
{
    const char *const choice = tool_json_text_of(w->job, "choice"), *const parameters =
                                                                        tool_json_text_of(w->job, "parameters");
    const bool backward = w->c->item && w->c->item->pass == BENCH_BACKWARD;
    bench_manner manner = {.cache_dir = w->options->folder, .untuned = true};
    if (candidate && json_is_true(json_object_get(w->job, "cached"))) /* as any program would */
        return (bench_manner){.cache_dir = NULL};
    if (candidate && choice && w->c->item)
        (void)clmgk_engine_from_name(choice, &manner.engine, NULL); /* from our own process */
    if (candidate)
        *(backward ? &manner.backward_parameters : &manner.parameters) = parameters;
    return manner;
}

static tool_exit open_product(const worker *w, bool candidate, const tool_matrices *matrices, contender *c,
                              tool_error *error)
{
    const bench_manner manner = manner_of(w, candidate);
    const char *const choice = candidate ? tool_json_text_of(w->job, "choice") : NULL;
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    double ms = 0;
    options.untuned = manner.untuned;
    options.cache_dir = manner.cache_dir;
    if (!c->run.library)
        TOOL_TRY(tool_check_library(clmgk_context_create(w->device.context, w->device.info.device_id, &options,
                                                         &c->run.library, &error->library),
                                    error));
    TOOL_TRY(tool_multiplier_open(&w->device, c->run.library, matrices, w->c->kind == TUNE_CLBLAST ? "clblast" : choice,
                                  manner.parameters, &c->multiplier, error));
    return tool_multiplier_run(&w->device, &c->multiplier, 1, &ms, error);
}

/* When the candidate's kernels are compiled, waits until the parent wants them to be run. */
static tool_exit open_attention(worker *w, tool_error *error)
{
    const bench_manner usual = manner_of(w, false), manner = manner_of(w, true);
    bench_case *const item = w->c->item;
    bench_group alone = {item->shape, w->c->group->batch, item, 1};
    double ms = 0;
    if (!bench_fits(&w->device.info, &alone))
        return tool_fail(error, TOOL_NO_DEVICE, "%s", item->reason);
    TOOL_TRY(bench_runner_plan(&w->device, &manner, &item->desc, &w->candidate.run, error));
    (void)raise(SIGSTOP);
    TOOL_TRY(bench_arrays_create(&w->device, &alone, &w->arrays, error));
    TOOL_TRY(bench_runner_open(&w->device, &usual, &w->arrays, &item->desc, item->pass, &w->usual.run, &ms, error));
    const uint64_t workspace = clmgk_plan_workspace_size(w->candidate.run.plan);
    if (workspace > WORKSPACE_FACTOR * item->array_bytes && workspace > clmgk_plan_workspace_size(w->usual.run.plan))
        return tool_fail(error, TOOL_NO_DEVICE, "a workspace of %.1f MB, expected at most %.1f",
                         1e-6 * (double)workspace, 1e-6 * WORKSPACE_FACTOR * (double)item->array_bytes);
    return bench_runner_fill(&w->device, &w->arrays, &item->desc, item->pass, &w->candidate.run, error);
}

/* {"choice", "parameters"} of the plan; NULL: it can't be told. */
static json_t *describe(const contender *c, tool_error *error)
{
    clmgk_plan_info plan = CLMGK_PLAN_INFO_INIT;
    clmgk_gemm_info product = CLMGK_GEMM_INFO_INIT;
    bench_pass_info info = {0};
    if (c->run.plan && bench_runner_info(&c->run, &plan, &info, error) == TOOL_DONE)
        return json_pack("{s:s, s:s}", "choice", clmgk_engine_name(info.engine), "parameters", info.parameters);
    if (!c->multiplier.plan || clmgk_gemm_plan_get_info(c->multiplier.plan, &product, NULL) != CLMGK_OK)
        return NULL;
    return json_pack("{s:s, s:s}", "choice", product.provider, "parameters", product.parameters);
}

static tool_exit time_one(const worker *w, const contender *c, double *ms, tool_error *error)
{
    bench_call_time time = {0, 0};
    if (!w->c->item)
        return tool_multiplier_run(&w->device, &c->multiplier, w->calls, ms, error);
    TOOL_TRY(bench_time_calls(&w->device, &c->run, w->calls, &time, error));
    *ms = w->event_clock ? time.device : time.host;
    return TOOL_DONE;
}

static tool_exit choose_calls(worker *w, tool_error *error)
{
    double ms = 0;
    if (w->c->item) { /* a first run loads the program and touches the arrays */
        TOOL_TRY(bench_choose_calls(&w->device, &w->candidate.run, &w->calls, &w->event_clock, error));
        return bench_choose_calls(&w->device, &w->usual.run, &w->calls, &w->event_clock, error);
    }
    TOOL_TRY(tool_multiplier_run(&w->device, &w->usual.multiplier, 1, &ms, error));
    w->calls = (int)fmax(1, fmin(100, PRODUCT_MS / fmax(ms, 1e-3)));
    return TOOL_DONE;
}

/* Runs in turn: default, candidate, candidate, default, … Stops when the candidate is slow. A process that has set
 * CLBlast's parameters can't go back to others: one pair. */
static tool_exit time_pairs(worker *w, size_t *count, double *default_ms, double *ratios, tool_error *error)
{
    const double best = tool_json_number_of(w->job, "best"), stop = best > 0 ? STOP_RATIO * best : INFINITY;
    const size_t most = w->c->kind == TUNE_CLBLAST ? 1 : (size_t)fmin(MAX_PAIRS, tool_json_number_of(w->job, "pairs"));
    for (*count = 0;
         *count < most && (*count == 0 || tool_spread_of(ratios, *count).min <= stop + STOP_NOISE / (double)*count);
         ++*count) {
        double ms[2] = {0, 0}; /* default, candidate */
        for (size_t k = 0; k < 2; k++) {
            const size_t which = k ^ (*count % 2);
            if (which == 1 && w->c->kind == TUNE_CLBLAST)
                TOOL_TRY(open_product(w, true, &w->matrices, &w->candidate, error));
            TOOL_TRY(time_one(w, which == 1 ? &w->candidate : &w->usual, &ms[which], error));
        }
        default_ms[*count] = ms[0];
        ratios[*count] = ms[1] / ms[0];
    }
    return TOOL_DONE;
}

/* The case's problem made small and uneven; then, where that can be changed, with rows that see no key and sides
 * shorter than a tile. Each is valid. */
static tool_exit check_attention(const worker *w, bench_error_found *found, tool_error *error)
{
    const bench_case *const item = w->c->item;
    const bool changeable = item->desc.sequences == 0 && !item->desc.use_bias;
    const bench_manner manner = manner_of(w, true);
    for (size_t i = 0; i < (changeable ? 3 : 2) && found->ok; i++) {
        clmgk_attention_desc problem;
        TOOL_TRY(
            bench_reduce(&item->desc, item->pass, BENCH_REDUCED_MULTIPLICATIONS / (i > 0 ? 16 : 2), &problem, error));
        if (changeable && i > 0) {
            problem.causal = 1; /* bottom-right: with more queries than keys the first see none */
            problem.length = i == 1 ? problem.length : 5;
            problem.length_k = i == 1 ? problem.length / 2 + 1 : 3;
            TOOL_TRY(bench_make_dense(&problem, error));
        }
        TOOL_TRY(bench_check(&w->device, &manner, &w->arrays, &problem, item->pass, found, error));
    }
    return TOOL_DONE;
}

static tool_exit check_products(const worker *w, bench_error_found *found, tool_error *error)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 129, 5}, {65, 33, 17}, {130, 66, 257}, {257, 191, 129}};
    tool_exit status = TOOL_DONE;
    for (size_t i = 0; i < TOOL_COUNT(sizes) * 4 && found->ok && status == TOOL_DONE; i++) {
        clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
        contender one = {.run.library = w->candidate.run.library};
        tool_matrices matrices;
        tool_product shape = w->c->product;
        shape.m = sizes[i / 4][0];
        shape.n = sizes[i / 4][1];
        shape.k = sizes[i / 4][2];
        shape.transpose_a = i % 2 == 1;
        shape.transpose_b = i % 4 >= 2;
        status = tool_matrices_create(&w->device, &shape, &matrices, error);
        if (status == TOOL_DONE)
            status = open_product(w, true, &matrices, &one, error);
        if (status == TOOL_DONE)
            status = tool_matrices_read(&w->device, &matrices, error);
        if (status == TOOL_DONE)
            status = tool_check_library(clmgk_gemm_plan_get_info(one.multiplier.plan, &info, &error->library), error);
        found->ok = status != TOOL_DONE || tool_matrices_check(&matrices, info.sums, info.precision, SIZE_MAX,
                                                               found->message, sizeof(found->message));
        tool_multiplier_close(&one.multiplier);
        tool_matrices_release(&matrices);
    }
    return status;
}

/* Times the candidate, and checks it if it is fast. A proof follows for what a plan takes already. */
static tool_exit compare(worker *w, tool_error *error)
{
    double ratios[MAX_PAIRS], default_ms[MAX_PAIRS];
    size_t count = 0;
    bench_error_found found = {.ok = true};
    json_t *list = json_array();
    TOOL_TRY(choose_calls(w, error));
    TOOL_TRY(time_pairs(w, &count, default_ms, ratios, error));
    for (size_t i = 0; i < count; i++)
        tool_json_append(&list, json_real(ratios[i]));
    const double ratio = tool_spread_of(ratios, count).median, best = tool_json_number_of(w->job, "best");
    const bool is_new = !json_is_true(json_object_get(w->job, "cached"));
    if (is_new && ratio <= 1 - CLMGK_TUNING_LEAST_GAIN && (best <= 0 || ratio < best)) /* slower ones win nothing */
        TOOL_TRY(w->c->item ? check_attention(w, &found, error) : check_products(w, &found, error));
    w->job = tool_json_merge(w->job,
                             json_pack("{s:f, s:f, s:o, s:s*, s:s*}", "default_ms",
                                       tool_spread_of(default_ms, count).median, "ratio", ratio, "ratios", list, "lost",
                                       found.ok ? NULL : "wrong", "message", found.ok ? NULL : found.message));
    w->job = tool_json_merge(w->job, describe(&w->candidate, error));
    return tool_check_memory(w->job, "a result", error);
}

static tool_exit do_job(worker *w, tool_error *error)
{
    if (w->c->item)
        TOOL_TRY(open_attention(w, error));
    else
        TOOL_TRY(tool_matrices_create(&w->device, &w->c->product, &w->matrices, error));
    if (!w->c->item)
        TOOL_TRY(open_product(w, false, &w->matrices, &w->usual, error));
    if (w->c->kind == TUNE_PRODUCT) /* CLBlast's parameters are set when the defaults have been timed */
        TOOL_TRY(open_product(w, true, &w->matrices, &w->candidate, error));
    (void)json_object_set_new(w->job, "usual", describe(&w->usual, error));
    return compare(w, error);
}

int tune_worker(tune_options *options, const char *job)
{
    static worker w; /* beyond a usual stack */
    tool_error error = {.message = ""};
    json_t *const all = json_loads(job, 0, NULL);
    const char *const folder = tool_json_text_of(all, "folder");
    options->folder = folder;
    w.options = options;
    w.job = json_object_get(all, "line");
    tool_exit status = tune_make_cases(options, &w.list, &error);
    /* the drivers' own caches: what is compiled for candidates does not fill the user's */
    if (!folder || setenv("POCL_CACHE_DIR", folder, 1) != 0 || setenv("CUDA_CACHE_PATH", folder, 1) != 0)
        status = tool_fail_memory(&error, "a job");
    if (status == TOOL_DONE)
        status = tool_device_open(tool_json_text_of(all, "device"), &w.device, &error);
    w.c = tune_find_case(&w.list, json_object_get(w.job, "case"));
    if (status == TOOL_DONE)
        status = w.c ? do_job(&w, &error) : tool_fail_memory(&error, "a job");
    bench_runner_close(&w.candidate.run); /* which keeps what it compiled for the next process */
    if (status != TOOL_DONE)
        w.job =
            tool_json_merge(w.job, json_pack("{s:s, s:o}", "lost", "failed", "message", tool_json_text(error.message)));
    _exit(tune_history_add(tool_json_text_of(all, "history"), w.job,
                           &error)); /* a driver's own end may take long, or fail */
}
