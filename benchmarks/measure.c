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
#define QUIET_MS         2000.0 /* between two lines of progress */

/* A case's runner and its times. */
typedef struct case_run {
    bench_runner run;
    double samples[MAX_ROUNDS];
    int sample_count;
} case_run;

static bench_manner manner_of(const bench_device *device, const bench_options *options)
{
    return (bench_manner){.cache_dir = device->cache_dir,
                          .tuning_dir = device->tuning_dir,
                          .untuned = options->untuned,
                          .engine = options->engine,
                          .parameters = options->parameters,
                          .backward_parameters = options->backward_parameters};
}

/* Prints the next step of a case on standard error, if the last such line is some seconds old. */
static void progress(bench_device *device, const bench_case *one, const char *step)
{
    const double now = tool_now_ms();
    if (now - device->progress_ms < QUIET_MS)
        return;
    fprintf(stderr, "clmgk-bench: %s: %s: %s\n", bench_shape_name(one->shape), bench_case_label(one).text, step);
    device->progress_ms = now;
}

/* ---- first calls -------------------------------------------------------------------------------------------- */

static tool_exit take_plan_info(const bench_runner *run, bench_case *one, clmgk_plan_info *info, tool_error *error)
{
    bench_pass_info pass;
    TOOL_TRY(bench_runner_info(run, info, &pass, error));
    one->engine = pass.engine;
    one->workspace_bytes = pass.workspace_bytes;
    one->private_bytes = pass.private_bytes;
    one->compile_ms = info->compile_ms;
    one->origin = info->origin;
    one->precision = info->precision;
    one->parameters = strdup(pass.parameters);
    one->compiler_options = strdup(pass.options);
    one->kernel = strdup(pass.kernel);
    one->cache_note = strdup(info->cache_note);
    one->tuning = pass.tuning;
    TOOL_TRY(bench_count_flops(one, info, error));
    if (!one->parameters || !one->compiler_options || !one->kernel || !one->cache_note)
        return tool_fail_memory(error, "a plan's description");
    return TOOL_DONE;
}

/* An earlier case of this run with the same program; NULL: none. */
static const bench_case *earlier_case(const bench_device *device, const bench_options *options, const bench_case *one)
{
    for (size_t i = 0; i < options->request.shape_count; i++) {
        for (size_t c = 0; c < device->groups[i].count; c++) {
            const bench_case *other = &device->groups[i].cases[c];
            if (other != one && other->kernel && other->text == one->text && strcmp(other->kernel, one->kernel) == 0 &&
                strcmp(other->compiler_options, one->compiler_options) == 0)
                return other;
        }
    }
    return NULL;
}

/* Whether the plan's program was compiled for it, whoever keeps programs. In a cache that was there before the run, the
 * driver may have kept any. */
static bool was_compiled(const bench_device *device, const clmgk_plan_info *info, const bench_case *earlier)
{
    if (info->origin != CLMGK_PROGRAM_BUILT)
        return false;
    return info->keeper != CLMGK_KEEPER_DRIVER || (device->cache_dir && !earlier);
}

/* Whether it was kept from one context to the next. */
static bool was_kept(const clmgk_plan_info *info)
{
    return info->origin == CLMGK_PROGRAM_DISK ||
           (info->origin == CLMGK_PROGRAM_BUILT && info->keeper == CLMGK_KEEPER_DRIVER);
}

/* A smaller problem, by the same kernels with the same parameters, against the reference. */
static tool_exit check_reduced(const bench_device *device, const bench_options *options, const bench_arrays *arrays,
                               const clmgk_plan_info *info, bench_case *one, tool_error *error)
{
    bench_manner same = manner_of(device, options);
    clmgk_attention_desc reduced;
    same.engine = one->engine;
    same.parameters = info->parameters;
    same.backward_parameters = info->backward_parameters;
    TOOL_TRY(bench_reduce(&one->desc, one->pass, BENCH_REDUCED_MULTIPLICATIONS, &reduced, error));
    return bench_check(&device->tool, &same, arrays, &reduced, one->pass, &one->error, error);
}

/* Classes of blocks are right if a forward pass that takes them is. */
static tool_exit use_classes(const bench_device *device, const bench_case *one, const bench_runner *run,
                             tool_error *error)
{
    bench_runner forward = *run;
    bench_call_time time = {0, 0};
    forward.pass = BENCH_FORWARD;
    TOOL_TRY(bench_spoil(&device->tool, &one->desc, BENCH_FORWARD, &run->own, error));
    return bench_time_calls(&device->tool, &forward, 1, &time, error);
}

/* Random numbers depend on batch and head, which a slice has not, and a new state on all keys: with dropout, noise or
 * states, too, a smaller problem is checked. */
static tool_exit validate(const bench_device *device, const bench_options *options, const bench_arrays *arrays,
                          const clmgk_plan_info *info, const bench_runner *run, bench_case *one, tool_error *error)
{
    clmgk_attention_desc computed = one->desc; /* with the precision that its products have */
    computed.precision = info->precision;
    const bool random = one->desc.dropout > 0 || (clmgk_variant_traits(one->desc.variant) & CLMGK_TRAIT_NOISE);
    if (one->pass == BENCH_MASK)
        TOOL_TRY(use_classes(device, one, run, error));
    if (one->pass != BENCH_BACKWARD && !random && !one->desc.use_new_state)
        return bench_validate_rows(&device->tool, arrays, &computed, &run->own.args, VALIDATE_SECONDS, &one->error,
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
                             bench_case *one, bench_runner *run, tool_error *error)
{
    const bench_manner manner = manner_of(device, options);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    bench_call_time time = {0, 0};
    double plan_ms = 0;
    one->first_cold_ms = one->first_warm_ms = -1;
    TOOL_TRY(bench_runner_open(&device->tool, &manner, arrays, &one->desc, one->pass, run, &plan_ms, error));
    TOOL_TRY(take_plan_info(run, one, &info, error));
    TOOL_TRY(bench_time_calls(&device->tool, run, 1, &time, error));
    TOOL_TRY(validate(device, options, arrays, &info, run, one, error));
    if (options->programs)
        TOOL_TRY(tool_check_library(clmgk_context_save_programs(run->library, options->programs, NULL, &error->library),
                                    error));
    const bench_case *earlier = earlier_case(device, options, one);
    if (was_compiled(device, &info, earlier)) {
        one->first_cold_ms = plan_ms + time.host;
        bench_runner_close(run);
        TOOL_TRY(bench_runner_open(&device->tool, &manner, arrays, &one->desc, one->pass, run, &plan_ms, error));
        clmgk_plan_get_info(run->plan, &info, NULL);
        TOOL_TRY(bench_time_calls(&device->tool, run, 1, &time, error));
    } else if (earlier) {
        one->compile_ms = earlier->compile_ms;
    }
    if (was_kept(&info))
        one->first_warm_ms = plan_ms + time.host;
    return TOOL_DONE;
}

/* ---- a group ------------------------------------------------------------------------------------------------ */

/* A case that cannot run here is told, and the others go on. Wrong options would be wrong for all of them. */
static tool_exit settle_refusal(tool_exit status, bench_case *one, tool_error *error)
{
    const bool refused =
        error->library.status == CLMGK_ERROR_UNSUPPORTED || error->library.status == CLMGK_ERROR_OUT_OF_DEVICE_MEMORY;
    if (!refused)
        return status;
    one->refused = true;
    snprintf(one->reason, sizeof(one->reason), "%s", error->library.message);
    error->message[0] = '\0';
    return TOOL_DONE;
}

static tool_exit prepare(const bench_device *device, const bench_options *options, const bench_arrays *arrays,
                         bench_case *one, bench_runner *run, tool_error *error)
{
    const tool_exit status = first_calls(device, options, arrays, one, run, error);
    if (status != TOOL_DONE || !one->error.ok) {
        const bool planned = run->plan != NULL;
        bench_runner_close(run);
        return planned ? status : settle_refusal(status, one, error);
    }
    return bench_choose_calls(&device->tool, run, &one->calls, &one->event_clock, error);
}

static uint64_t process_peak_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

static void take_results(bench_group *group, case_run *runs)
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

static tool_exit run_rounds(bench_device *device, double seconds, const bench_listener *listener, bench_group *group,
                            case_run *runs, tool_error *error)
{
    const double end = tool_now_ms() + 1e3 * seconds;
    for (int round = 0; round < MIN_ROUNDS || (round < MAX_ROUNDS && tool_now_ms() < end); round++) {
        for (size_t n = 0; n < group->count; n++) {
            const size_t i = bench_case_of_round((size_t)round, n, group->count);
            const bench_case *one = &group->cases[i];
            bench_call_time time = {0, 0};
            if (!runs[i].run.plan)
                continue;
            progress(device, one, "timing");
            TOOL_TRY(bench_time_calls(&device->tool, &runs[i].run, one->calls, &time, error));
            runs[i].samples[runs[i].sample_count++] = one->event_clock ? time.device : time.host;
            TOOL_TRY(bench_probe_between(device, error));
        }
        take_results(group, runs);
        TOOL_TRY(listener->tell(listener->user, device, group, error));
    }
    return TOOL_DONE;
}

tool_exit bench_measure_group(bench_device *device, const bench_options *options, const bench_listener *listener,
                              bench_group *group, tool_error *error)
{
    bench_arrays arrays = {0};
    tool_exit status = TOOL_DONE;
    if (!bench_fits(&device->tool.info, group))
        return TOOL_DONE;
    case_run *runs = calloc(group->count, sizeof(*runs));
    TOOL_TRY(tool_check_memory(runs, "the cases of a shape", error));
    TOOL_TRY_GOTO(status, bench_arrays_create(&device->tool, group, &arrays, error), done);
    for (size_t i = 0; i < group->count; i++) {
        progress(device, &group->cases[i], "compiling and checking");
        TOOL_TRY_GOTO(status, prepare(device, options, &arrays, &group->cases[i], &runs[i].run, error), done);
        TOOL_TRY_GOTO(status, bench_probe_between(device, error), done);
    }
    status = run_rounds(device, options->seconds, listener, group, runs, error);
done:
    for (size_t i = 0; i < group->count; i++)
        bench_runner_close(&runs[i].run);
    bench_arrays_release(&arrays);
    free(runs);
    return status;
}
