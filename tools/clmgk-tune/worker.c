/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process in which one candidate is compiled, run in turn with the defaults, and checked. A job has the case (kind,
 * group, index), the candidate (choice, parameters; null: what the library chooses; cached: what a plan finds in the
 * user's cache), and
 *
 *     pairs                   so many runs of both; none: only compile
 *     stop, check_below       ratios of times: no second pair above the one, a check below the other
 *
 * The answer has "ok", and "message" where that is false; choice and parameters of the candidate's plan, and of the
 * defaults' (usual); default_ms, ratio, ratios, slow, wrong.
 */
#include "tune.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MAX_PAIRS 31
/* Workspace beyond this many times the arrays is no fair price for speed. */
#define WORKSPACE_FACTOR 2
#define PRODUCT_MS       40.0 /* a repetition of short products is several calls */

/* One of the two that are compared: a plan of attention, or a product. */
typedef struct contender {
    bench_runner run;
    clmgk_context *library;
    tool_multiplier multiplier;
} contender;

typedef struct worker {
    const char *folder;
    tune_options options;
    tool_device device;
    bench_group *groups;
    const json_t *job;
    tune_kind kind;
    bench_case *item;
    bench_arrays arrays;
    tool_matrices matrices;
    int calls; /* a repetition */
    bool event_clock;
    contender usual, candidate;
} worker;

static const char *text_of(const worker *w, const char *key)
{
    return json_string_value(json_object_get(w->job, key));
}

static double number_of(const worker *w, const char *key)
{
    return json_number_value(json_object_get(w->job, key));
}

/* ---- contenders -------------------------------------------------------------------------------------------------- */

/* How a plan is made: the defaults', or the candidate's. */
static bench_manner manner_of(const worker *w, bool candidate)
{
    const char *parameters = candidate ? text_of(w, "parameters") : NULL;
    if (candidate && json_is_true(json_object_get(w->job, "cached"))) /* as any program would */
        return (bench_manner){.cache_dir = NULL};
    bench_manner manner = {.cache_dir = w->folder,
                           .untuned =
                               w->kind == TUNE_ATTENTION || (w->kind == TUNE_PRODUCT && (!candidate || parameters))};
    if (candidate && w->kind == TUNE_ATTENTION && text_of(w, "choice"))
        (void)clmgk_engine_from_name(text_of(w, "choice"), &manner.engine, NULL); /* from our own process */
    if (w->kind == TUNE_ATTENTION && w->item->pass == BENCH_BACKWARD)
        manner.backward_parameters = parameters;
    else
        manner.parameters = parameters;
    return manner;
}

static tool_exit open_attention(worker *w, const bench_manner *manner, contender *c, tool_error *error)
{
    double plan_ms = 0;
    if (number_of(w, "pairs") < 1) { /* needs no arrays */
        c->run.pass = w->item->pass;
        return bench_runner_plan(&w->device, manner, &w->item->desc, &c->run, error);
    }
    TOOL_TRY(
        bench_runner_open(&w->device, manner, &w->arrays, &w->item->desc, w->item->pass, &c->run, &plan_ms, error));
    const uint64_t workspace = clmgk_plan_workspace_size(c->run.plan);
    if (workspace > WORKSPACE_FACTOR * w->item->array_bytes && w->usual.run.plan &&
        workspace > clmgk_plan_workspace_size(w->usual.run.plan))
        return tool_fail(error, TOOL_NO_DEVICE, "a workspace of %.1f MB, expected at most %.1f",
                         1e-6 * (double)workspace, 1e-6 * WORKSPACE_FACTOR * (double)w->item->array_bytes);
    return TOOL_DONE;
}

static const char *provider_of(const worker *w, bool candidate)
{
    return w->kind == TUNE_CLBLAST ? "clblast" : candidate ? text_of(w, "choice") : NULL;
}

static tool_exit open_contender(worker *w, bool candidate, contender *c, tool_error *error)
{
    const bench_manner manner = manner_of(w, candidate);
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    double ms = 0;
    if (w->kind == TUNE_ATTENTION)
        return open_attention(w, &manner, c, error);
    options.untuned = manner.untuned;
    options.cache_dir = manner.cache_dir;
    TOOL_TRY(tool_check_library(
        clmgk_context_create(w->device.context, w->device.info.device_id, &options, &c->library, &error->library),
        error));
    TOOL_TRY(tool_multiplier_open(&w->device, c->library, &w->matrices, provider_of(w, candidate), manner.parameters,
                                  &c->multiplier, error));
    return tool_multiplier_run(&w->device, &c->multiplier, 1, &ms, error);
}

static void close_contender(contender *c)
{
    bench_runner_close(&c->run);
    tool_multiplier_close(&c->multiplier);
    clmgk_context_release(c->library);
}

/* {"choice", "parameters"} of the plan; NULL: out of memory. */
static json_t *describe(const contender *c, tool_error *error)
{
    clmgk_plan_info plan = CLMGK_PLAN_INFO_INIT;
    clmgk_gemm_info product = CLMGK_GEMM_INFO_INIT;
    bench_pass_info info = {0};
    if (!c->run.plan && clmgk_gemm_plan_get_info(c->multiplier.plan, &product, &error->library) == CLMGK_OK)
        return json_pack("{s:s, s:s}", "choice", product.provider, "parameters", product.parameters);
    if (!c->run.plan || bench_runner_info(&c->run, &plan, &info, error) != TOOL_DONE)
        return NULL;
    return json_pack("{s:s, s:s}", "choice", clmgk_engine_name(info.engine), "parameters", info.parameters);
}

/* ---- timing ---------------------------------------------------------------------------------------------------- */

static tool_exit time_one(const worker *w, const contender *c, double *ms, tool_error *error)
{
    bench_call_time time = {0, 0};
    if (w->kind != TUNE_ATTENTION)
        return tool_multiplier_run(&w->device, &c->multiplier, w->calls, ms, error);
    TOOL_TRY(bench_time_calls(&w->device, &c->run, w->calls, &time, error));
    *ms = w->event_clock ? time.device : time.host;
    return TOOL_DONE;
}

static tool_exit choose_calls(worker *w, tool_error *error)
{
    double ms = 0;
    if (w->kind == TUNE_ATTENTION)
        return bench_choose_calls(&w->device, &w->usual.run, &w->calls, &w->event_clock, error);
    TOOL_TRY(tool_multiplier_run(&w->device, &w->usual.multiplier, 1, &ms, error));
    w->calls = (int)fmax(1, fmin(100, PRODUCT_MS / fmax(ms, 1e-3)));
    return TOOL_DONE;
}

/* Runs in turn: default, candidate, candidate, default, … Stops after the first pair where the candidate takes more
 * than `stop` times as long. A process that has set CLBlast's parameters can't go back to others: one pair. */
static tool_exit time_pairs(worker *w, size_t *count, double *default_ms, double *ratios, tool_error *error)
{
    const size_t most = w->kind == TUNE_CLBLAST ? 1 : (size_t)fmin(MAX_PAIRS, number_of(w, "pairs"));
    for (*count = 0; *count < most && (*count == 0 || ratios[*count - 1] <= number_of(w, "stop")); ++*count) {
        double ms[2] = {0, 0}; /* default, candidate */
        for (size_t k = 0; k < 2; k++) {
            const size_t which = k ^ (*count % 2);
            if (which == 1 && w->kind == TUNE_CLBLAST)
                TOOL_TRY(open_contender(w, true, &w->candidate, error));
            TOOL_TRY(time_one(w, which == 1 ? &w->candidate : &w->usual, &ms[which], error));
        }
        default_ms[*count] = ms[0];
        ratios[*count] = ms[1] / ms[0];
    }
    return TOOL_DONE;
}

/* ---- the check --------------------------------------------------------------------------------------------------- */

/* The case's problem made small and uneven; then, where that can be changed, with rows that see no key and sides
 * shorter than a tile. Each is valid. */
static tool_exit check_attention(const worker *w, bench_error_found *found, tool_error *error)
{
    static const double affordable[] = {BENCH_REDUCED_MULTIPLICATIONS / 2, BENCH_REDUCED_MULTIPLICATIONS / 16,
                                        BENCH_REDUCED_MULTIPLICATIONS / 16};
    const bool changeable = w->item->desc.sequences == 0 && !w->item->desc.use_bias;
    const bench_manner manner = manner_of(w, true);
    for (size_t i = 0; i < (changeable ? 3 : 2) && found->ok; i++) {
        clmgk_attention_desc problem;
        TOOL_TRY(bench_reduce(&w->item->desc, w->item->pass, affordable[i], &problem, error));
        if (changeable && i > 0) {
            problem.causal = 1; /* bottom-right: with more queries than keys the first see none */
            problem.length = i == 1 ? problem.length : 5;
            problem.length_k = i == 1 ? problem.length / 2 + 1 : 3;
            TOOL_TRY(bench_make_dense(&problem, error));
        }
        TOOL_TRY(bench_check(&w->device, &manner, &w->arrays, &problem, w->item->pass, found, error));
    }
    return TOOL_DONE;
}

static tool_exit check_product(const worker *w, const tool_product *shape, bench_error_found *found, tool_error *error)
{
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    tool_matrices matrices;
    tool_multiplier multiplier = {.plan = NULL};
    double ms = 0;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, tool_matrices_create(&w->device, shape, &matrices, error), done);
    TOOL_TRY_GOTO(status,
                  tool_multiplier_open(&w->device, w->candidate.library, &matrices, provider_of(w, true),
                                       manner_of(w, true).parameters, &multiplier, error),
                  done);
    TOOL_TRY_GOTO(status, tool_multiplier_run(&w->device, &multiplier, 1, &ms, error), done);
    TOOL_TRY_GOTO(status, tool_matrices_read(&w->device, &matrices, error), done);
    TOOL_TRY_GOTO(status, tool_check_library(clmgk_gemm_plan_get_info(multiplier.plan, &info, &error->library), error),
                  done);
    found->ok =
        tool_matrices_check(&matrices, info.sums, info.precision, SIZE_MAX, found->message, sizeof(found->message));
done:
    tool_multiplier_close(&multiplier);
    tool_matrices_release(&matrices);
    return status;
}

static tool_exit check_products(const worker *w, bench_error_found *found, tool_error *error)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 129, 5}, {65, 33, 17}, {130, 66, 257}, {257, 191, 129}};
    for (size_t i = 0; i < TOOL_COUNT(sizes) * 4 && found->ok; i++) {
        tool_product shape = w->matrices.product;
        shape.m = sizes[i / 4][0];
        shape.n = sizes[i / 4][1];
        shape.k = sizes[i / 4][2];
        shape.transpose_a = i % 2 == 1;
        shape.transpose_b = i % 4 >= 2;
        TOOL_TRY(check_product(w, &shape, found, error));
    }
    return TOOL_DONE;
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */

/* The case's arrays. CLBlast's parameters are measured with the first shape, B transposed as layers mostly have it. */
static tool_exit open_case(worker *w, tool_error *error)
{
    const size_t group = (size_t)number_of(w, "group"), index = (size_t)number_of(w, "index");
    w->kind = (tune_kind)number_of(w, "kind");
    if (w->kind != TUNE_ATTENTION) {
        tool_product shape = w->options.products[group];
        shape.transpose_a = w->kind == TUNE_PRODUCT && index == 2;
        shape.transpose_b = w->kind == TUNE_CLBLAST || index == 1;
        return tool_matrices_create(&w->device, &shape, &w->matrices, error);
    }
    TOOL_TRY(bench_make_groups(&w->options.request, false, &w->groups, error));
    w->item = &w->groups[group].cases[index];
    bench_group alone = w->groups[group];
    alone.cases = w->item;
    alone.count = 1;
    if (!bench_fits(&w->device.info, &alone))
        return tool_fail(error, TOOL_NO_DEVICE, "%s", w->item->reason);
    return number_of(w, "pairs") < 1 ? TOOL_DONE : bench_arrays_create(&w->device, &alone, &w->arrays, error);
}

/* Times the defaults, alone or with the candidate, which is checked if it is fast. */
static tool_exit compare(worker *w, bool alone, json_t **answer, tool_error *error)
{
    double ratios[MAX_PAIRS] = {1}, default_ms[MAX_PAIRS], copy[MAX_PAIRS];
    size_t count = 1;
    bench_error_found found = {.ok = true};
    json_t *list = json_array();
    TOOL_TRY(choose_calls(w, error));
    TOOL_TRY(alone ? time_one(w, &w->usual, default_ms, error) : time_pairs(w, &count, default_ms, ratios, error));
    memcpy(copy, ratios, sizeof(copy));
    const double ratio = tool_spread_of(copy, count).median;
    if (!alone && ratio < number_of(w, "check_below"))
        TOOL_TRY(w->kind == TUNE_ATTENTION ? check_attention(w, &found, error) : check_products(w, &found, error));
    for (size_t i = 0; i < count; i++)
        tool_json_append(&list, json_real(ratios[i]));
    *answer =
        tool_json_merge(*answer, json_pack("{s:f, s:f, s:o, s:b, s:b, s:s}", "default_ms",
                                           tool_spread_of(default_ms, count).median, "ratio", ratio, "ratios", list,
                                           "slow", (int)(!alone && ratios[count - 1] > number_of(w, "stop")), "wrong",
                                           (int)!found.ok, "message", found.message));
    return TOOL_DONE;
}

static tool_exit do_job(worker *w, json_t **answer, tool_error *error)
{
    bool alone = !text_of(w, "choice") && !json_is_true(json_object_get(w->job, "cached"));
    TOOL_TRY(open_case(w, error));
    if (number_of(w, "pairs") < 1)
        return open_contender(w, true, &w->candidate, error);
    TOOL_TRY(open_contender(w, false, &w->usual, error));
    json_t *usual = describe(&w->usual, error);
    if (!alone && w->kind != TUNE_CLBLAST) { /* which is opened when the defaults have been timed */
        TOOL_TRY(open_contender(w, true, &w->candidate, error));
        json_t *found = describe(&w->candidate, error);
        alone = json_equal(found, usual); /* a plan may take the defaults from a cache, too */
        json_decref(found);
    }
    TOOL_TRY(compare(w, alone, answer, error));
    *answer = tool_json_merge(*answer, describe(alone ? &w->usual : &w->candidate, error));
    return usual && *answer && json_object_set_new(*answer, "usual", usual) == 0 ? TOOL_DONE
                                                                                 : tool_fail_memory(error, "an answer");
}

int tune_worker(int argc, char **argv)
{
    static worker w; /* beyond a usual stack */
    tool_error error = {.message = ""};
    bool finished = false;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that hangs must not outlive its parent */
    w.folder = argv[2];
    json_t *job = json_loads(argv[4], 0, NULL), *answer = json_object();
    char *const selector = argv[3];
    argv[4] = argv[0];
    /* the drivers' own caches: what is compiled for candidates does not fill the user's */
    tool_exit status = setenv("POCL_CACHE_DIR", w.folder, 1) == 0 && setenv("CUDA_CACHE_PATH", w.folder, 1) == 0
                           ? tune_parse_options(argc - 4, argv + 4, &w.options, &finished, &error)
                           : tool_fail_memory(&error, "a process");
    w.job = job;
    if (status == TOOL_DONE)
        status = tool_device_open(selector, &w.device, &error);
    if (status == TOOL_DONE)
        status = do_job(&w, &answer, &error);
    close_contender(&w.candidate); /* which keeps what it compiled for the next process */
    answer = tool_json_merge(answer, status == TOOL_DONE
                                         ? json_pack("{s:b}", "ok", 1)
                                         : json_pack("{s:b, s:o}", "ok", 0, "message", tool_json_text(error.message)));
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    if (text && printf("%s\n", text) > 0)
        (void)fflush(stdout);
    _exit(TOOL_DONE); /* a driver's own end may take long, or fail */
}
