/* SPDX-License-Identifier: Apache-2.0 */
/* A case's plan with its arrays, and calls of it. */
#include "cases.h"

#include <math.h>

#define CALLS_MS  5.0 /* a repetition of short calls lasts so long */
#define MAX_CALLS 1000

void bench_runner_close(bench_runner *run)
{
    clmgk_plan_release(run->plan);
    clmgk_context_release(run->library);
    bench_own_release(&run->own);
    *run = (bench_runner){.pass = run->pass};
}

/* Milliseconds between the ends of two events; negative where the driver cannot tell. */
static double event_span_ms(cl_event first, cl_event last)
{
    cl_ulong start = 0, end = 0;
    if (clGetEventProfilingInfo(first, CL_PROFILING_COMMAND_END, sizeof(start), &start, NULL) != CL_SUCCESS ||
        clGetEventProfilingInfo(last, CL_PROFILING_COMMAND_END, sizeof(end), &end, NULL) != CL_SUCCESS || end <= start)
        return -1;
    return 1e-6 * (double)(end - start);
}

tool_exit bench_enqueue(const tool_device *device, const bench_runner *run, cl_event *event, tool_error *error)
{
    return tool_check_library((run->pass == BENCH_MASK       ? clmgk_enqueue_mask
                               : run->pass == BENCH_BACKWARD ? clmgk_enqueue_backward
                                                             : clmgk_enqueue_forward)(
                                  run->plan, device->queue, &run->own.args, 0, NULL, event, &error->library),
                              error);
}

/* A pass may be several kernels, and its event is that of the last: a marker tells when the first could begin. */
static tool_exit enqueue_calls(const tool_device *device, const bench_runner *run, int calls, cl_event *first,
                               cl_event *last, tool_error *error)
{
    TOOL_TRY(tool_check_cl(clEnqueueMarkerWithWaitList(device->queue, 0, NULL, first), "clEnqueueMarkerWithWaitList",
                           error));
    for (int i = 0; i < calls; i++)
        TOOL_TRY(bench_enqueue(device, run, i == calls - 1 ? last : NULL, error));
    return TOOL_DONE;
}

tool_exit bench_time_calls(const tool_device *device, const bench_runner *run, int calls, bench_call_time *time,
                           tool_error *error)
{
    cl_event first = NULL, last = NULL;
    const double start = tool_now_ms();
    tool_exit status = enqueue_calls(device, run, calls, &first, &last, error);
    const cl_int code = clFinish(device->queue);
    const double wall = tool_now_ms() - start;
    if (status == TOOL_DONE)
        status = tool_check_cl(code, "clFinish", error);
    if (status == TOOL_DONE)
        *time = (bench_call_time){wall / calls, event_span_ms(first, last) / calls};
    if (first)
        clReleaseEvent(first);
    if (last)
        clReleaseEvent(last);
    return status;
}

tool_exit bench_runner_plan(const tool_device *device, const bench_manner *manner, const clmgk_attention_desc *desc,
                            bench_runner *run, tool_error *error)
{
    clmgk_context_options context_options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_plan_options plan_options = CLMGK_PLAN_OPTIONS_INIT;
    context_options.cache_dir = manner->cache_dir;
    context_options.tuning_dir = manner->tuning_dir;
    context_options.untuned = manner->untuned;
    plan_options.engine = manner->engine;
    plan_options.parameters = manner->parameters;
    plan_options.backward_parameters = manner->backward_parameters;
    TOOL_TRY(tool_check_library(
        clmgk_context_create(device->context, device->info.device_id, &context_options, &run->library, &error->library),
        error));
    return tool_check_library(clmgk_plan_create(run->library, desc, &plan_options, &run->plan, &error->library), error);
}

tool_exit bench_runner_fill(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                            bench_pass pass, bench_runner *run, tool_error *error)
{
    run->pass = BENCH_FORWARD;
    TOOL_TRY(bench_own_create(device, arrays, desc, clmgk_plan_workspace_size(run->plan), &run->own, error));
    if (pass == BENCH_BACKWARD) { /* O and L */
        bench_call_time time = {0, 0};
        TOOL_TRY(bench_time_calls(device, run, 1, &time, error));
    }
    run->pass = pass;
    return bench_spoil(device, desc, pass, &run->own, error);
}

tool_exit bench_runner_open(const tool_device *device, const bench_manner *manner, const bench_arrays *arrays,
                            const clmgk_attention_desc *desc, bench_pass pass, bench_runner *run, double *plan_ms,
                            tool_error *error)
{
    *run = (bench_runner){.pass = BENCH_FORWARD};
    const double start = tool_now_ms();
    TOOL_TRY(bench_runner_plan(device, manner, desc, run, error));
    *plan_ms = tool_now_ms() - start;
    return bench_runner_fill(device, arrays, desc, pass, run, error);
}

tool_exit bench_runner_info(const bench_runner *run, clmgk_plan_info *plan, bench_pass_info *pass, tool_error *error)
{
    TOOL_TRY(tool_check_library(clmgk_plan_get_info(run->plan, plan, &error->library), error));
    *pass = run->pass == BENCH_BACKWARD
                ? (bench_pass_info){plan->backward_engine,
                                    plan->backward_tuning,
                                    plan->backward_parameters,
                                    plan->backward_options,
                                    plan->backward_kernel,
                                    plan->backward_workspace_bytes,
                                    plan->backward_driver_private_bytes}
                : (bench_pass_info){plan->engine, plan->tuning,          plan->parameters,          plan->options,
                                    plan->kernel, plan->workspace_bytes, plan->driver_private_bytes};
    return TOOL_DONE;
}

tool_exit bench_choose_calls(const tool_device *device, const bench_runner *run, int *calls, bool *event_clock,
                             tool_error *error)
{
    bench_call_time time = {0, 0};
    TOOL_TRY(bench_time_calls(device, run, 1, &time, error));
    *calls = time.host >= CALLS_MS ? 1 : (int)fmin(MAX_CALLS, ceil(CALLS_MS / fmax(time.host, 1e-6)));
    /* A device's clock leaves out the host's share; it is believed where it agrees with the host's otherwise. */
    *event_clock = device->info.device_class == CLMGK_DEVICE_GPU && time.device > 0 && time.device <= time.host &&
                   time.host - time.device < fmax(1, 0.1 * time.host);
    return TOOL_DONE;
}

tool_exit bench_check(const tool_device *device, const bench_manner *manner, const bench_arrays *arrays,
                      const clmgk_attention_desc *desc, bench_pass pass, bench_error_found *found, tool_error *error)
{
    bench_runner run = {0};
    double plan_ms = 0;
    bench_call_time time = {0, 0};
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    bench_pass_info pass_info;
    clmgk_attention_desc computed = *desc; /* with the precision that its products have */
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, bench_runner_open(device, manner, arrays, desc, pass, &run, &plan_ms, error), done);
    TOOL_TRY_GOTO(status, bench_time_calls(device, &run, 1, &time, error), done);
    TOOL_TRY_GOTO(status, bench_runner_info(&run, &info, &pass_info, error), done);
    computed.precision = info.precision;
    status = bench_validate_whole(device, arrays, &computed, pass, &run.own, found, error);
done:
    bench_runner_close(&run);
    return status;
}
