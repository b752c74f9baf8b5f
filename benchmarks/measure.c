/* SPDX-License-Identifier: Apache-2.0 */
/* A shape's cases: first calls, check, then runs in turn (A B C A B C ...), so that what disturbs the machine
 * disturbs all of them alike. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define VALIDATE_SECONDS 0.4
#define MIN_ROUNDS       3
#define MAX_ROUNDS       100
#define CALLS_MS         5.0 /* a repetition of short calls lasts so long */
#define MAX_CALLS        1000

/* A case that is ready to run: in the backward pass O and L are there. */
typedef struct runner {
    bench_pass pass;
    clmgk_context *library;
    clmgk_plan *plan;
    bench_own own;
    double samples[MAX_ROUNDS];
    int sample_count;
} runner;

static void close_runner(runner *run)
{
    clmgk_plan_release(run->plan);
    clmgk_context_release(run->library);
    bench_own_release(&run->own);
    *run = (runner){0};
}

/* ---- one repetition ----------------------------------------------------------------------------------------- */

/* Milliseconds between the ends of two events; negative where the driver cannot tell. */
static double event_span_ms(cl_event first, cl_event last)
{
    cl_ulong start = 0, end = 0;
    if (clGetEventProfilingInfo(first, CL_PROFILING_COMMAND_END, sizeof(start), &start, NULL) != CL_SUCCESS ||
        clGetEventProfilingInfo(last, CL_PROFILING_COMMAND_END, sizeof(end), &end, NULL) != CL_SUCCESS || end <= start)
        return -1;
    return 1e-6 * (double)(end - start);
}

/* Milliseconds a call by the host's clock, and by the device's (negative: not known). */
typedef struct call_time {
    double host, device;
} call_time;

static tool_exit enqueue_call(const tool_device *device, const runner *run, cl_event *event, tool_error *error)
{
    clmgk_error failure = {0};
    const clmgk_status status =
        run->pass == BENCH_BACKWARD
            ? clmgk_enqueue_backward(run->plan, device->queue, &run->own.args, &run->own.gradients, 0, NULL, event,
                                     &failure)
            : clmgk_enqueue_forward(run->plan, device->queue, &run->own.args, 0, NULL, event, &failure);
    return status == CLMGK_OK ? TOOL_DONE : tool_fail_library(error, &failure);
}

/* A pass may be several kernels, and its event is that of the last: a marker tells when the first could begin. */
static tool_exit enqueue_calls(const tool_device *device, const runner *run, int calls, cl_event *first, cl_event *last,
                               tool_error *error)
{
    const cl_int code = clEnqueueMarkerWithWaitList(device->queue, 0, NULL, first);
    if (code != CL_SUCCESS)
        return tool_fail_cl(error, code, "clEnqueueMarkerWithWaitList");
    for (int i = 0; i < calls; i++)
        TOOL_TRY(enqueue_call(device, run, i == calls - 1 ? last : NULL, error));
    return TOOL_DONE;
}

static tool_exit time_calls(const tool_device *device, const runner *run, int calls, call_time *time, tool_error *error)
{
    cl_event first = NULL, last = NULL;
    const double start = tool_now_ms();
    tool_exit status = enqueue_calls(device, run, calls, &first, &last, error);
    const cl_int code = clFinish(device->queue);
    const double wall = tool_now_ms() - start;
    if (status == TOOL_DONE && code != CL_SUCCESS)
        status = tool_fail_cl(error, code, "clFinish");
    if (status == TOOL_DONE)
        *time = (call_time){wall / calls, event_span_ms(first, last) / calls};
    if (first)
        clReleaseEvent(first);
    if (last)
        clReleaseEvent(last);
    return status;
}

/* ---- first calls -------------------------------------------------------------------------------------------- */

static tool_exit make_plan(const bench_device *device, const bench_options *options, const clmgk_attention_desc *desc,
                           runner *run, clmgk_error *failure, tool_error *error)
{
    clmgk_context_options context_options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_plan_options plan_options = CLMGK_PLAN_OPTIONS_INIT;
    context_options.cache_dir = device->cache_dir;
    plan_options.engine = options->engine;
    plan_options.parameters = options->parameters;
    plan_options.backward_parameters = options->backward_parameters;
    if (clmgk_context_create(device->tool.context, device->tool.info.device_id, &context_options, &run->library,
                             failure) != CLMGK_OK ||
        clmgk_plan_create(run->library, desc, &plan_options, &run->plan, failure) != CLMGK_OK)
        return tool_fail_library(error, failure);
    return TOOL_DONE;
}

/* A plan with its arrays; *plan_ms is what making the plan took. */
static tool_exit open_runner(const bench_device *device, const bench_options *options, const bench_arrays *arrays,
                             const clmgk_attention_desc *desc, bench_pass pass, runner *run, double *plan_ms,
                             clmgk_error *failure, tool_error *error)
{
    *run = (runner){.pass = BENCH_FORWARD};
    const double start = tool_now_ms();
    TOOL_TRY(make_plan(device, options, desc, run, failure, error));
    *plan_ms = tool_now_ms() - start;
    TOOL_TRY(bench_own_create(&device->tool, arrays, desc, clmgk_plan_workspace_size(run->plan), &run->own, error));
    if (pass == BENCH_BACKWARD) { /* O and L */
        call_time time = {0, 0};
        TOOL_TRY(time_calls(&device->tool, run, 1, &time, error));
    }
    run->pass = pass;
    return bench_spoil(&device->tool, desc, pass, &run->own, error);
}

static tool_exit take_plan_info(const runner *run, bench_case *one, clmgk_plan_info *info, tool_error *error)
{
    clmgk_error failure = {0};
    const bool backward = run->pass == BENCH_BACKWARD;
    if (clmgk_plan_get_info(run->plan, info, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    one->engine = backward ? info->backward_engine : info->engine;
    one->workspace_bytes = backward ? info->backward_workspace_bytes : info->workspace_bytes;
    one->compile_ms = info->compile_ms;
    one->parameters = strdup(backward ? info->backward_parameters : info->parameters);
    one->compiler_options = strdup(backward ? info->backward_options : info->options);
    one->kernel = strdup(backward ? info->backward_kernel : info->kernel);
    if (!one->parameters || !one->compiler_options || !one->kernel)
        return tool_fail_memory(error, "a plan's description");
    return TOOL_DONE;
}

/* The time that an earlier case of this run took to compile the same program. */
static double earlier_compile_ms(const bench_device *device, const bench_options *options, const bench_case *one)
{
    for (size_t i = 0; i < options->shape_count; i++) {
        for (size_t c = 0; c < device->groups[i].count; c++) {
            const bench_case *other = &device->groups[i].cases[c];
            if (other != one && other->kernel && strcmp(other->kernel, one->kernel) == 0 &&
                strcmp(other->compiler_options, one->compiler_options) == 0)
                return other->compile_ms;
        }
    }
    return one->compile_ms;
}

/* A smaller problem, by the same kernels with the same parameters, against the reference. */
static tool_exit check_reduced(const bench_device *device, const bench_options *options, const bench_arrays *arrays,
                               const clmgk_plan_info *info, bench_case *one, tool_error *error)
{
    bench_options same = *options;
    clmgk_attention_desc reduced;
    clmgk_error failure = {0};
    runner run = {0};
    double plan_ms = 0;
    call_time time = {0, 0};
    tool_exit status = TOOL_DONE;
    same.parameters = info->parameters;
    same.backward_parameters = info->backward_parameters;
    TOOL_TRY(bench_reduce(&one->desc, one->pass, &reduced, error));
    TOOL_TRY_GOTO(status, open_runner(device, &same, arrays, &reduced, one->pass, &run, &plan_ms, &failure, error),
                  done);
    TOOL_TRY_GOTO(status, time_calls(&device->tool, &run, 1, &time, error), done);
    status = bench_validate_whole(&device->tool, arrays, &reduced, one->pass, &run.own, &one->error, error);
done:
    close_runner(&run);
    return status;
}

/* Dropout's mask depends on batch and head, which a slice has not: there too a smaller problem is checked. */
static tool_exit validate(const bench_device *device, const bench_options *options, const bench_arrays *arrays,
                          const clmgk_plan_info *info, const runner *run, bench_case *one, tool_error *error)
{
    if (one->pass == BENCH_FORWARD && one->desc.dropout == 0)
        return bench_validate_rows(&device->tool, arrays, &one->desc, &run->own.args, VALIDATE_SECONDS, &one->error,
                                   error);
    bench_error_found written = {.ok = true};
    if (one->pass == BENCH_BACKWARD)
        TOOL_TRY(bench_validate_finite(&device->tool, &one->desc, &run->own, &written, error));
    TOOL_TRY(check_reduced(device, options, arrays, info, one, error));
    if (one->error.ok && !written.ok) {
        one->error.ok = false;
        memcpy(one->error.message, written.message, sizeof(written.message));
    }
    return TOOL_DONE;
}

/* First call with a cold cache, check, first call with a warm one. Leaves `run` ready. */
static tool_exit first_calls(const bench_device *device, const bench_options *options, const bench_arrays *arrays,
                             bench_case *one, runner *run, clmgk_error *failure, tool_error *error)
{
    clmgk_plan_info info = {0};
    call_time time = {0, 0};
    double plan_ms = 0;
    one->first_cold_ms = one->first_warm_ms = -1;
    TOOL_TRY(open_runner(device, options, arrays, &one->desc, one->pass, run, &plan_ms, failure, error));
    TOOL_TRY(take_plan_info(run, one, &info, error));
    TOOL_TRY(time_calls(&device->tool, run, 1, &time, error));
    TOOL_TRY(validate(device, options, arrays, &info, run, one, error));
    if (info.origin == CLMGK_PROGRAM_BUILT) {
        one->first_cold_ms = plan_ms + time.host;
        close_runner(run);
        TOOL_TRY(open_runner(device, options, arrays, &one->desc, one->pass, run, &plan_ms, failure, error));
        clmgk_plan_get_info(run->plan, &info, NULL);
        TOOL_TRY(time_calls(&device->tool, run, 1, &time, error));
    } else {
        one->compile_ms = earlier_compile_ms(device, options, one);
    }
    if (info.origin == CLMGK_PROGRAM_DISK)
        one->first_warm_ms = plan_ms + time.host;
    return TOOL_DONE;
}

/* How many calls a repetition needs, and which clock. */
static tool_exit choose_calls(const bench_device *device, const runner *run, bench_case *one, tool_error *error)
{
    call_time time = {0, 0};
    TOOL_TRY(time_calls(&device->tool, run, 1, &time, error));
    one->calls = time.host >= CALLS_MS ? 1 : (int)fmin(MAX_CALLS, ceil(CALLS_MS / fmax(time.host, 1e-6)));
    /* A device's clock leaves out the host's share; it is believed where it agrees with the host's otherwise. */
    one->event_clock = device->tool.info.device_class == CLMGK_DEVICE_GPU && time.device > 0 &&
                       time.device <= time.host && time.host - time.device < fmax(1, 0.1 * time.host);
    return TOOL_DONE;
}

/* ---- a group ------------------------------------------------------------------------------------------------ */

/* A case that cannot run here is told, and the others go on. Wrong options would be wrong for all of them. */
static tool_exit settle_refusal(const clmgk_error *failure, tool_exit status, bench_case *one, tool_error *error)
{
    const bool refused =
        failure->status == CLMGK_ERROR_UNSUPPORTED || failure->status == CLMGK_ERROR_OUT_OF_DEVICE_MEMORY;
    if (!refused)
        return status;
    one->refused = true;
    snprintf(one->reason, sizeof(one->reason), "%s", failure->message);
    error->message[0] = '\0';
    return TOOL_DONE;
}

static tool_exit prepare(const bench_device *device, const bench_options *options, const bench_arrays *arrays,
                         bench_case *one, runner *run, tool_error *error)
{
    clmgk_error failure = {0};
    const tool_exit status = first_calls(device, options, arrays, one, run, &failure, error);
    if (status != TOOL_DONE || !one->error.ok) {
        close_runner(run);
        return status == TOOL_DONE ? TOOL_DONE : settle_refusal(&failure, status, one, error);
    }
    return choose_calls(device, run, one, error);
}

static tool_exit run_rounds(const bench_device *device, double seconds, bench_group *group, runner *runs,
                            tool_error *error)
{
    const double end = tool_now_ms() + 1e3 * seconds;
    for (int round = 0; round < MIN_ROUNDS || (round < MAX_ROUNDS && tool_now_ms() < end); round++) {
        for (size_t i = 0; i < group->count; i++) {
            const bench_case *one = &group->cases[i];
            call_time time = {0, 0};
            if (!runs[i].plan)
                continue;
            TOOL_TRY(time_calls(&device->tool, &runs[i], one->calls, &time, error));
            runs[i].samples[runs[i].sample_count++] = one->event_clock ? time.device : time.host;
        }
    }
    return TOOL_DONE;
}

static uint64_t process_peak_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

static void take_results(bench_group *group, runner *runs)
{
    const uint64_t peak = process_peak_bytes();
    for (size_t i = 0; i < group->count; i++) {
        if (runs[i].sample_count == 0)
            continue;
        group->cases[i].repetitions = runs[i].sample_count;
        group->cases[i].time_ms = tool_spread_of(runs[i].samples, (size_t)runs[i].sample_count);
        group->cases[i].process_peak_bytes = peak;
    }
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t largest_array_bytes(const clmgk_attention_desc *desc)
{
    const bench_elements count = bench_count_elements(desc);
    return larger(larger(count.q, count.k), larger(count.v, count.o)) * clmgk_ref_dtype_size(desc->dtype);
}

/* Whether the device holds the arrays of a group; the cases' reasons say why not. */
static bool fits(const clmgk_device_info *info, bench_group *group)
{
    uint64_t all = 0, own = 0, one = 0;
    for (size_t i = 0; i < group->count; i++) {
        const clmgk_attention_desc *desc = &group->cases[i].desc;
        all = larger(all, group->cases[i].array_bytes);
        own += desc->gradients ? bench_count_elements(desc).o * clmgk_ref_dtype_size(desc->dtype) : 0;
        one = larger(one, largest_array_bytes(desc));
    }
    all += own;
    if (all <= info->global_memory_bytes && one <= info->max_allocation_bytes)
        return true;
    for (size_t i = 0; i < group->count; i++) {
        group->cases[i].refused = true;
        snprintf(group->cases[i].reason, sizeof(group->cases[i].reason),
                 "arrays of %.0f MB, one of %.0f MB; the device has %.0f MB and buffers of at most %.0f MB",
                 1e-6 * (double)all, 1e-6 * (double)one, 1e-6 * (double)info->global_memory_bytes,
                 1e-6 * (double)info->max_allocation_bytes);
    }
    return false;
}

tool_exit bench_measure_group(bench_device *device, const bench_options *options, bench_group *group, tool_error *error)
{
    bench_arrays arrays = {0};
    tool_exit status = TOOL_DONE;
    if (!fits(&device->tool.info, group))
        return TOOL_DONE;
    runner *runs = calloc(group->count, sizeof(*runs));
    if (!runs)
        return tool_fail_memory(error, "the cases of a shape");
    TOOL_TRY_GOTO(status, bench_measure_peaks(device, error), done);
    TOOL_TRY_GOTO(status, bench_arrays_create(&device->tool, group, &arrays, error), done);
    for (size_t i = 0; i < group->count; i++)
        TOOL_TRY_GOTO(status, prepare(device, options, &arrays, &group->cases[i], &runs[i], error), done);
    TOOL_TRY_GOTO(status, run_rounds(device, options->seconds, group, runs, error), done);
    take_results(group, runs);
done:
    for (size_t i = 0; i < group->count; i++)
        close_runner(&runs[i]);
    bench_arrays_release(&arrays);
    free(runs);
    return status;
}
