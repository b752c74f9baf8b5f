/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process in which candidates are compiled and run. A job names a case of the request by its numbers, and an answer
 * has "ok", and "message" where that is false:
 *
 *     {"job": "default", group, case}                       engine, parameters, ms
 *     {"job": "compile", …, engine, parameters}             (none: the defaults)
 *     {"job": "lookup", …, tuning_dir}                      tuning, engine, parameters: what a plan takes now
 *     {"job": "measure", …, engine, parameters, pairs, stop} ratio, ms, default_ms, parameters (all of them)
 *     {"job": "check", …, engine, parameters}               wrong
 *     {"job": "confirm", …, tuning_dir, pairs}              tuning, engine, parameters, ratios, ms, default_ms
 *
 * Ratios are of runs in turn with the defaults.
 */
#include "tune.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PAIRS 31
/* Workspace beyond this many times the arrays is no fair price for speed. */
#define WORKSPACE_FACTOR 2

typedef struct worker {
    const char *folder;
    tune_options options;
    tool_device device;
    bench_group *groups;
    size_t group; /* whose arrays are there; SIZE_MAX: none */
    bench_arrays arrays;
    const bench_case *item; /* whose default plan is there; NULL: none */
    bench_runner usual;     /* the defaults */
    int calls;              /* a repetition */
    bool event_clock;
} worker;

/* ---- state --------------------------------------------------------------------------------------------------- */

static void close_case(worker *w)
{
    bench_runner_close(&w->usual);
    w->item = NULL;
}

static void close_group(worker *w)
{
    close_case(w);
    bench_arrays_release(&w->arrays);
    w->group = SIZE_MAX;
}

static tool_exit use_group(worker *w, size_t index, tool_error *error)
{
    if (w->group == index)
        return TOOL_DONE;
    close_group(w);
    bench_group *group = &w->groups[index];
    if (!bench_fits(&w->device.info, group))
        return tool_fail(error, TOOL_NO_DEVICE, "%s", group->cases[0].reason);
    w->group = index;
    return bench_arrays_create(&w->device, group, &w->arrays, error);
}

/* `engine` and `parameters` of the case's pass; NULL: the defaults. */
static bench_manner manner_of(const worker *w, const bench_case *item, const char *engine, const char *parameters)
{
    bench_manner manner = {.cache_dir = w->folder, .untuned = true};
    if (engine)
        (void)clmgk_engine_from_name(engine, &manner.engine, NULL); /* from our own process */
    if (item->pass == BENCH_BACKWARD)
        manner.backward_parameters = parameters;
    else
        manner.parameters = parameters;
    return manner;
}

static tool_exit open_runner(const worker *w, const bench_manner *manner, bench_runner *run, tool_error *error)
{
    double plan_ms = 0;
    TOOL_TRY(bench_runner_open(&w->device, manner, &w->arrays, &w->item->desc, w->item->pass, run, &plan_ms, error));
    const uint64_t workspace = clmgk_plan_workspace_size(run->plan);
    if (workspace > WORKSPACE_FACTOR * w->item->array_bytes && workspace > clmgk_plan_workspace_size(w->usual.plan) &&
        w->usual.plan)
        return tool_fail(error, TOOL_NO_DEVICE, "a workspace of %.1f MB, expected at most %.1f",
                         1e-6 * (double)workspace, 1e-6 * WORKSPACE_FACTOR * (double)w->item->array_bytes);
    return TOOL_DONE;
}

/* The case's plan with the defaults, ready to be timed. */
static tool_exit use_case(worker *w, size_t group, size_t index, tool_error *error)
{
    TOOL_TRY(use_group(w, group, error));
    const bench_case *item = &w->groups[group].cases[index];
    if (w->item == item)
        return TOOL_DONE;
    close_case(w);
    w->item = item;
    const bench_manner manner = manner_of(w, item, NULL, NULL);
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, open_runner(w, &manner, &w->usual, error), failed);
    TOOL_TRY_GOTO(status, bench_choose_calls(&w->device, &w->usual, &w->calls, &w->event_clock, error), failed);
    return TOOL_DONE;
failed:
    close_case(w);
    return status;
}

/* ---- timing ---------------------------------------------------------------------------------------------------- */

typedef struct pairs {
    size_t count;
    double ratio[MAX_PAIRS], ms[MAX_PAIRS], default_ms[MAX_PAIRS];
} pairs;

static tool_exit time_one(const worker *w, const bench_runner *run, double *ms, tool_error *error)
{
    bench_call_time time = {0, 0};
    TOOL_TRY(bench_time_calls(&w->device, run, w->calls, &time, error));
    *ms = w->event_clock ? time.device : time.host;
    return TOOL_DONE;
}

/* Runs in turn: default, candidate, candidate, default, … Stops after the first pair where the candidate takes more
 * than `stop` times as long. */
static tool_exit time_pairs(const worker *w, const bench_runner *run, size_t count, double stop, pairs *found,
                            tool_error *error)
{
    found->count = 0;
    for (size_t i = 0; i < count && i < MAX_PAIRS; i++) {
        const bool candidate_first = i % 2 == 1;
        double ms[2] = {0, 0};
        for (int k = 0; k < 2; k++) {
            const bool candidate = (k == 0) == candidate_first;
            TOOL_TRY(time_one(w, candidate ? run : &w->usual, &ms[candidate], error));
        }
        found->default_ms[i] = ms[0];
        found->ms[i] = ms[1];
        found->ratio[i] = ms[1] / ms[0];
        found->count++;
        if (found->ratio[i] > stop)
            break;
    }
    return TOOL_DONE;
}

static double median_of(const double *numbers, size_t count)
{
    double copy[MAX_PAIRS];
    memcpy(copy, numbers, count * sizeof(*copy));
    return tool_spread_of(copy, count).median;
}

/* ---- jobs ------------------------------------------------------------------------------------------------------ */

static tool_exit do_default(worker *w, const json_t *job, json_t **answer, tool_error *error)
{
    clmgk_plan_info plan = CLMGK_PLAN_INFO_INIT;
    bench_pass_info info;
    double ms = 0;
    (void)job;
    TOOL_TRY(time_one(w, &w->usual, &ms, error));
    TOOL_TRY(bench_runner_info(&w->usual, &plan, &info, error));
    *answer = json_pack("{s:b, s:s, s:s, s:f}", "ok", 1, "engine", clmgk_engine_name(info.engine), "parameters",
                        info.parameters, "ms", ms);
    return TOOL_DONE;
}

static const char *text_of(const json_t *job, const char *key)
{
    return json_string_value(json_object_get(job, key));
}

/* Compiles it, too. */
static tool_exit do_lookup(worker *w, const json_t *job, json_t **answer, tool_error *error)
{
    const bench_manner manner = {.cache_dir = w->folder, .tuning_dir = text_of(job, "tuning_dir")};
    bench_runner run = {.pass = w->item->pass};
    clmgk_plan_info plan = CLMGK_PLAN_INFO_INIT;
    bench_pass_info info;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, bench_runner_plan(&w->device, &manner, &w->item->desc, &run, error), done);
    TOOL_TRY_GOTO(status, bench_runner_info(&run, &plan, &info, error), done);
    *answer = json_pack("{s:b, s:s, s:s, s:s}", "ok", 1, "tuning", clmgk_tuning_source_name(info.tuning), "engine",
                        clmgk_engine_name(info.engine), "parameters", info.parameters);
done:
    bench_runner_close(&run);
    return status;
}

/* Into the folder of programs, whence the process that measures takes it. */
static tool_exit do_compile(worker *w, const json_t *job, const bench_case *item, json_t **answer, tool_error *error)
{
    const bench_manner manner = manner_of(w, item, text_of(job, "engine"), text_of(job, "parameters"));
    bench_runner run = {.pass = item->pass};
    const tool_exit status = bench_runner_plan(&w->device, &manner, &item->desc, &run, error);
    bench_runner_close(&run);
    if (status == TOOL_DONE)
        *answer = json_pack("{s:b}", "ok", 1);
    return status;
}

static json_t *numbers_json(const double *numbers, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        tool_json_append(&list, json_real(numbers[i]));
    return list;
}

/* A plan made in this manner, in turn with the defaults. */
static tool_exit compare(worker *w, const bench_manner *manner, const json_t *job, double stop, json_t **answer,
                         tool_error *error)
{
    bench_runner run = {0};
    pairs found = {.count = 0};
    clmgk_plan_info plan = CLMGK_PLAN_INFO_INIT;
    bench_pass_info info;
    const size_t count = (size_t)json_integer_value(json_object_get(job, "pairs"));
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, open_runner(w, manner, &run, error), done);
    TOOL_TRY_GOTO(status, bench_runner_info(&run, &plan, &info, error), done);
    TOOL_TRY_GOTO(status, time_pairs(w, &run, count, stop, &found, error), done);
    *answer = json_pack("{s:b, s:s, s:s, s:s, s:f, s:o, s:f, s:f, s:b}", "ok", 1, "tuning",
                        clmgk_tuning_source_name(info.tuning), "engine", clmgk_engine_name(info.engine), "parameters",
                        info.parameters, "ratio", median_of(found.ratio, found.count), "ratios",
                        numbers_json(found.ratio, found.count), "ms", median_of(found.ms, found.count), "default_ms",
                        median_of(found.default_ms, found.count), "slow", (int)(found.ratio[found.count - 1] > stop));
done:
    bench_runner_close(&run);
    return status;
}

static tool_exit do_measure(worker *w, const json_t *job, json_t **answer, tool_error *error)
{
    const bench_manner manner = manner_of(w, w->item, text_of(job, "engine"), text_of(job, "parameters"));
    return compare(w, &manner, job, json_number_value(json_object_get(job, "stop")), answer, error);
}

/* As any program would: the plan finds the stored values by itself, and compiles into the usual cache. */
static tool_exit do_confirm(worker *w, const json_t *job, json_t **answer, tool_error *error)
{
    const bench_manner manner = {.tuning_dir = text_of(job, "tuning_dir")};
    return compare(w, &manner, job, HUGE_VAL, answer, error);
}

/* The case's problem made small and uneven; then, where that can be changed, with rows that see no key and sides
 * shorter than a tile. Each is valid. */
static tool_exit awkward_problems(const worker *w, clmgk_attention_desc problems[3], size_t *count, tool_error *error)
{
    const double affordable[] = {BENCH_REDUCED_MULTIPLICATIONS / 2, BENCH_REDUCED_MULTIPLICATIONS / 16};
    const bool changeable = w->item->desc.sequences == 0 && !w->item->desc.use_bias;
    for (*count = 0; *count < TOOL_COUNT(affordable); ++*count)
        TOOL_TRY(bench_reduce(&w->item->desc, w->item->pass, affordable[*count], &problems[*count], error));
    if (!changeable)
        return TOOL_DONE;
    problems[1].causal = 1; /* bottom-right: with more queries than keys the first see none */
    problems[1].length_k = problems[1].length / 2 + 1;
    problems[2] = problems[1];
    problems[2].length = 5;
    problems[2].length_k = 3;
    *count = 3;
    TOOL_TRY(bench_make_dense(&problems[1], error));
    return bench_make_dense(&problems[2], error);
}

static tool_exit do_check(worker *w, const json_t *job, json_t **answer, tool_error *error)
{
    const bench_manner manner = manner_of(w, w->item, text_of(job, "engine"), text_of(job, "parameters"));
    clmgk_attention_desc problems[3];
    bench_error_found found = {.ok = true};
    size_t count = 0;
    TOOL_TRY(awkward_problems(w, problems, &count, error));
    for (size_t i = 0; i < count && found.ok; i++) {
        TOOL_TRY(bench_check(&w->device, &manner, &w->arrays, &problems[i], w->item->pass, &found, error));
    }
    *answer = json_pack("{s:b, s:b, s:s}", "ok", 1, "wrong", (int)!found.ok, "message", found.message);
    return TOOL_DONE;
}

static tool_exit do_job(worker *w, const json_t *job, json_t **answer, tool_error *error)
{
    static const struct {
        const char *name;
        tool_exit (*run)(worker *w, const json_t *job, json_t **answer, tool_error *error);
    } jobs[] = {{"default", do_default},
                {"lookup", do_lookup},
                {"measure", do_measure},
                {"check", do_check},
                {"confirm", do_confirm}};
    const char *name = text_of(job, "job");
    if (name && strncmp(name, "product", strlen("product")) == 0)
        return tune_product_job(&w->device, w->folder, job, answer, error);
    const size_t group = (size_t)json_integer_value(json_object_get(job, "group"));
    const size_t index = (size_t)json_integer_value(json_object_get(job, "case"));
    if (!name || group >= w->options.request.shape_count || index >= w->groups[group].count)
        return tool_fail(error, TOOL_BAD_INPUT, "not a job of this process");
    if (strcmp(name, "compile") == 0) /* needs no arrays */
        return bench_fits(&w->device.info, &w->groups[group])
                   ? do_compile(w, job, &w->groups[group].cases[index], answer, error)
                   : tool_fail(error, TOOL_NO_DEVICE, "%s", w->groups[group].cases[index].reason);
    for (size_t i = 0; i < TOOL_COUNT(jobs); i++) {
        if (strcmp(name, jobs[i].name) != 0)
            continue;
        TOOL_TRY(use_case(w, group, index, error));
        return jobs[i].run(w, job, answer, error);
    }
    return tool_fail(error, TOOL_BAD_INPUT, "not a job of this process");
}

/* One line in, one line out; false at the end of either. */
static bool serve(worker *w, const char *line)
{
    tool_error error = {.message = ""};
    json_t *job = json_loads(line, 0, NULL);
    json_t *answer = NULL;
    const tool_exit status =
        job ? do_job(w, job, &answer, &error) : tool_fail(&error, TOOL_BAD_INPUT, "a line that is no JSON");
    json_decref(job);
    if (status != TOOL_DONE) {
        json_decref(answer);
        answer = json_pack("{s:b, s:o}", "ok", 0, "message", tool_json_text(error.message));
    }
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    json_decref(answer);
    const bool sent = text && printf("%s\n", text) > 0 && fflush(stdout) == 0;
    free(text);
    return sent;
}

/* A process that hangs in a kernel must not outlive its parent: this thread reads the jobs, and ends the process at the
 * end of the input, whatever the others do. */
typedef struct mailbox {
    pthread_mutex_t mutex;
    pthread_cond_t filled;
    char *line;
} mailbox;

static void *read_jobs(void *user)
{
    mailbox *const box = user;
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        pthread_mutex_lock(&box->mutex);
        free(box->line);
        box->line = line;
        pthread_cond_signal(&box->filled);
        pthread_mutex_unlock(&box->mutex);
        line = NULL;
        capacity = 0;
    }
    _exit(TOOL_DONE);
}

static char *wait_for_job(mailbox *box)
{
    pthread_mutex_lock(&box->mutex);
    while (!box->line)
        pthread_cond_wait(&box->filled, &box->mutex);
    char *const line = box->line;
    box->line = NULL;
    pthread_mutex_unlock(&box->mutex);
    return line;
}

static void serve_all(worker *w)
{
    static mailbox box = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL};
    pthread_t reader;
    if (pthread_create(&reader, NULL, read_jobs, &box) != 0)
        return;
    for (bool more = true; more;) {
        char *const line = wait_for_job(&box);
        more = serve(w, line);
        free(line);
    }
}

int tune_worker(const char *folder, const char *selector, int argc, char **argv)
{
    worker w = {.folder = folder, .group = SIZE_MAX};
    tool_error error = {.message = ""};
    bool finished = false;
    /* the drivers' own caches: what is compiled for candidates does not fill the user's */
    tool_exit status = setenv("POCL_CACHE_DIR", folder, 1) == 0 && setenv("CUDA_CACHE_PATH", folder, 1) == 0
                           ? tune_parse_options(argc, argv, &w.options, &finished, &error)
                           : tool_fail_memory(&error, "a process");
    if (status == TOOL_DONE && !finished)
        status = bench_make_groups(&w.options.request, false, &w.groups, &error);
    if (status == TOOL_DONE && w.groups)
        status = tool_device_open(selector, &w.device, &error);
    if (status == TOOL_DONE && w.groups)
        serve_all(&w);
    return status;
}
