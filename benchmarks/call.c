/* SPDX-License-Identifier: Apache-2.0 */
/* One call of a small problem, from the enqueue to the end of clFinish, beside a kernel that does nothing: the two in
 * turn, so that what the driver and the machine's threads take is in both. */
#include "bench.h"

#include <inttypes.h>
#include <stdlib.h>

#define MIN_ROUNDS  100
#define MAX_ROUNDS  20000
#define WARM_ROUNDS 100 /* before the first that counts */

/* Microseconds of a launch. */
typedef struct launch_time {
    double enqueue, finish; /* both from the start */
} launch_time;

typedef struct call_case {
    bench_case *one; /* its variant, sizes, error; refused with its reason */
    tool_spread us, empty_us;
    double enqueue_us, empty_enqueue_us;
    int rounds; /* 0: not measured */
} call_case;

typedef struct call_run {
    bench_device *device;
    const bench_options *options;
    tool_outputs *outputs;
    const bench_group *group;
    call_case *cases;
    cl_program program;
    cl_kernel empty;
    double (*samples)[MAX_ROUNDS]; /* of a case: 4 kinds */
} call_run;

/* ---- a launch -------------------------------------------------------------------------------------------------- */

static tool_exit build_empty(call_run *run, tool_error *error)
{
    static const char *const source = "__kernel void empty(void) {}";
    const tool_device *const tool = &run->device->tool;
    cl_int code = CL_SUCCESS;
    run->program = clCreateProgramWithSource(tool->context, 1, (const char **)&source, NULL, &code);
    TOOL_TRY(tool_check_cl(code, "clCreateProgramWithSource", error));
    TOOL_TRY(
        tool_check_cl(clBuildProgram(run->program, 1, &tool->info.device_id, "", NULL, NULL), "clBuildProgram", error));
    run->empty = clCreateKernel(run->program, "empty", &code);
    return tool_check_cl(code, "clCreateKernel", error);
}

/* `call`: NULL: the empty kernel. */
static tool_exit time_launch(const call_run *run, const bench_runner *call, launch_time *time, tool_error *error)
{
    static const size_t one = 1;
    const tool_device *const tool = &run->device->tool;
    const double start = tool_now_ms();
    if (call)
        TOOL_TRY(bench_enqueue(tool, call, NULL, error));
    else
        TOOL_TRY(tool_check_cl(clEnqueueNDRangeKernel(tool->queue, run->empty, 1, NULL, &one, &one, 0, NULL, NULL),
                               "clEnqueueNDRangeKernel", error));
    time->enqueue = 1e3 * (tool_now_ms() - start);
    const cl_int code = clFinish(tool->queue);
    time->finish = 1e3 * (tool_now_ms() - start);
    return tool_check_cl(code, "clFinish", error);
}

static tool_exit time_rounds(const call_run *run, const bench_runner *call, call_case *one, tool_error *error)
{
    const double stop = tool_now_ms() + 1e3 * run->options->seconds;
    int rounds = -WARM_ROUNDS;
    for (; rounds < MIN_ROUNDS || (rounds < MAX_ROUNDS && tool_now_ms() < stop); rounds++) {
        launch_time own, empty;
        const int n = rounds > 0 ? rounds : 0;
        TOOL_TRY(time_launch(run, NULL, &empty, error));
        TOOL_TRY(time_launch(run, call, &own, error));
        run->samples[0][n] = own.finish;
        run->samples[1][n] = empty.finish;
        run->samples[2][n] = own.enqueue;
        run->samples[3][n] = empty.enqueue;
    }
    one->us = tool_spread_of(run->samples[0], (size_t)rounds);
    one->empty_us = tool_spread_of(run->samples[1], (size_t)rounds);
    one->enqueue_us = tool_spread_of(run->samples[2], (size_t)rounds).median;
    one->empty_enqueue_us = tool_spread_of(run->samples[3], (size_t)rounds).median;
    one->rounds = rounds;
    return TOOL_DONE;
}

/* ---- cases ----------------------------------------------------------------------------------------------------- */

/* What the device cannot do is the case's to say. */
static tool_exit take_refusal(bench_case *one, tool_exit status, tool_error *error)
{
    if (status == TOOL_DONE || error->library.status != CLMGK_ERROR_UNSUPPORTED)
        return status;
    one->refused = true;
    snprintf(one->reason, sizeof(one->reason), "%s", error->library.message);
    error->message[0] = '\0';
    return TOOL_DONE;
}

static tool_exit measure_case(const call_run *run, const bench_arrays *arrays, call_case *call, tool_error *error)
{
    const bench_manner manner = {.cache_dir = run->device->cache_dir, .tuning_dir = run->device->tuning_dir};
    const tool_device *const tool = &run->device->tool;
    bench_case *const one = call->one;
    bench_runner runner = {0};
    double plan_ms = 0;
    tool_exit status = bench_check(tool, &manner, arrays, &one->desc, BENCH_FORWARD, &one->error, error);
    if (status == TOOL_DONE && one->error.ok)
        status = bench_runner_open(tool, &manner, arrays, &one->desc, BENCH_FORWARD, &runner, &plan_ms, error);
    if (status == TOOL_DONE && one->error.ok)
        status = time_rounds(run, &runner, call, error);
    bench_runner_close(&runner);
    return take_refusal(one, status, error);
}

/* ---- results --------------------------------------------------------------------------------------------------- */

static bool is_settled(const call_case *call)
{
    return call->rounds || call->one->refused || call->one->error.message[0] != '\0';
}

static void print_case(const call_case *call, FILE *stream)
{
    const bench_case *const one = call->one;
    fprintf(stream, "  %-22s", bench_case_label(one).text);
    if (!call->rounds)
        fprintf(stream, "  %s: %s\n", one->refused ? "not measured" : "WRONG, not timed",
                one->refused ? one->reason : one->error.message);
    else
        fprintf(stream, " %10.2f %10.2f %10.2f %8.3f %10.2f %10.2f %9.1e %8.1e\n", call->us.median, call->us.min,
                call->empty_us.median, call->us.median / call->empty_us.median, call->enqueue_us,
                call->empty_enqueue_us, one->error.max, one->error.bound);
}

static void print_cases(const void *of, FILE *stream)
{
    const call_run *const run = of;
    const clmgk_attention_desc *const desc = &run->group->cases[0].desc;
    fprintf(stream,
            "one call, enqueue to finish: batch %" PRId64 ", N %" PRId64 ", S %" PRId64 ", D %" PRId64 ", E %" PRId64
            "; beside an empty kernel\n",
            desc->batch, desc->length, desc->length_k, desc->head_size, desc->value_size);
    fprintf(stream, "  %-22s %10s %10s %10s %8s %10s %10s %9s %8s\n", "", "median us", "min us", "empty us", "ratio",
            "enqueue us", "empty's", "error", "bound");
    for (size_t i = 0; i < run->group->count; i++) {
        if (is_settled(&run->cases[i]))
            print_case(&run->cases[i], stream);
    }
}

static json_t *spread_json(const tool_spread *us)
{
    return json_pack("{s:f, s:f, s:f}", "median", us->median, "min", us->min, "max", us->max);
}

static json_t *case_json(const call_case *call)
{
    const bench_case *const one = call->one;
    const clmgk_attention_desc *const desc = &one->desc;
    json_t *const key = json_pack("{s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "device", (json_int_t)0, "variant",
                                  clmgk_variant_name(desc->variant), "batch", (json_int_t)desc->batch, "heads",
                                  (json_int_t)desc->heads, "components", (json_int_t)desc->components, "length",
                                  (json_int_t)desc->length, "length_k", (json_int_t)desc->length_k, "head_size",
                                  (json_int_t)desc->head_size, "value_size", (json_int_t)desc->value_size);
    if (!call->rounds)
        return tool_json_merge(key, json_pack("{s:s}", one->refused ? "refused" : "wrong",
                                              one->refused ? one->reason : one->error.message));
    return tool_json_merge(key,
                           json_pack("{s:o, s:o, s:f, s:f, s:f, s:i, s:{s:f, s:f, s:s}}", "time_us",
                                     spread_json(&call->us), "empty_us", spread_json(&call->empty_us), "ratio",
                                     call->us.median / call->empty_us.median, "enqueue_us", call->enqueue_us,
                                     "empty_enqueue_us", call->empty_enqueue_us, "repetitions", call->rounds, "error",
                                     "max", one->error.max, "bound", one->error.bound, "array", one->error.array));
}

static json_t *make_object(const void *of)
{
    const call_run *const run = of;
    json_t *rows = json_array();
    for (size_t i = 0; i < run->group->count; i++) {
        if (is_settled(&run->cases[i]))
            tool_json_append(&rows, case_json(&run->cases[i]));
    }
    return bench_rows_json(run->device, "calls", rows);
}

/* ---- all of them ----------------------------------------------------------------------------------------------- */

static tool_exit measure(const call_run *run, const bench_arrays *arrays, tool_error *error)
{
    const bench_results results = {run->outputs, run->options->json, make_object, print_cases, run};
    size_t wrong = 0;
    for (size_t i = 0; i < run->group->count; i++) {
        run->cases[i].one = &run->group->cases[i];
        TOOL_TRY(measure_case(run, arrays, &run->cases[i], error));
        wrong += !run->group->cases[i].refused && !run->group->cases[i].error.ok;
        if (i + 1 < run->group->count)
            TOOL_TRY(bench_give_results(&results, true, error));
    }
    TOOL_TRY(bench_give_results(&results, false, error));
    return wrong ? tool_fail(error, TOOL_CHECK_FAILED, "%zu %s wrong by the reference", wrong,
                             tool_plural(wrong, "call is", "calls are"))
                 : TOOL_DONE;
}

tool_exit bench_calls(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error)
{
    call_run run = {.device = device, .options = options, .outputs = outputs};
    bench_group *groups = NULL;
    bench_arrays arrays = {0};
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, bench_make_groups(&options->request, false, &groups, error), done);
    run.group = &groups[0];
    run.cases = calloc(run.group->count, sizeof(*run.cases));
    run.samples = calloc(4, sizeof(*run.samples));
    TOOL_TRY_GOTO(status, tool_check_memory(run.cases && run.samples ? run.cases : NULL, "the calls", error), done);
    TOOL_TRY_GOTO(status, build_empty(&run, error), done);
    TOOL_TRY_GOTO(status, bench_arrays_create(&device->tool, run.group, &arrays, error), done);
    status = measure(&run, &arrays, error);
done:
    bench_arrays_release(&arrays);
    if (run.empty)
        clReleaseKernel(run.empty);
    if (run.program)
        clReleaseProgram(run.program);
    free(run.samples);
    free(run.cases);
    if (groups)
        bench_free_groups(&options->request, groups);
    return status;
}
