/* SPDX-License-Identifier: Apache-2.0 */
/* clmgk-bench: what is asked for, on which devices, in which form. */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* All that a run holds. */
typedef struct bench_run {
    bench_options options;
    clmgk_tuning_info tuning;
    json_t *before; /* of --compare */
    tool_outputs *outputs;
    size_t plot; /* its number in `outputs` */
    const char *cache_dir;
    bench_device *devices;
    size_t device_count;
} bench_run;

static void announce_shape(const bench_run *run, bench_device *device, size_t shape)
{
    fprintf(stderr, "clmgk-bench: %s: %s (%zu of %zu)\n", device->tool.info.name,
            bench_shape_name(&run->options.request.shapes[shape]), shape + 1, run->options.request.shape_count);
    device->progress_ms = tool_now_ms();
}

/* ---- devices ------------------------------------------------------------------------------------------------ */

static tool_exit open_device(bench_run *run, const clmgk_device_info *info, tool_error *error)
{
    bench_device *device = &run->devices[run->device_count];
    TOOL_TRY(tool_device_open_info(info, &device->tool, error));
    run->device_count++;
    device->cache_dir = run->cache_dir;
    if (run->cache_dir)
        device->tuning_dir = run->tuning.path;
    return bench_make_groups(&run->options.request,
                             run->options.short_batches && info->device_class == CLMGK_DEVICE_CPU, &device->groups,
                             error);
}

static tool_exit open_all(bench_run *run, tool_error *error)
{
    clmgk_device_info *infos = NULL;
    size_t count = 0;
    TOOL_TRY(tool_list_devices(NULL, true, &infos, &count, error));
    run->devices = calloc(count, sizeof(*run->devices));
    tool_exit status = run->devices ? TOOL_DONE : tool_fail_memory(error, "the list of devices");
    for (size_t i = 0; i < count && status == TOOL_DONE; i++)
        status = open_device(run, &infos[i], error);
    free(infos);
    return status;
}

/* Each selector's device, which no other one may choose. */
static tool_exit open_devices(bench_run *run, tool_error *error)
{
    if (run->options.all_devices)
        return open_all(run, error);
    run->devices = calloc(run->options.device_count, sizeof(*run->devices));
    TOOL_TRY(tool_check_memory(run->devices, "the list of devices", error));
    for (size_t i = 0; i < run->options.device_count; i++) {
        clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
        TOOL_TRY(tool_check_library(clmgk_select_device(run->options.devices[i], &info, &error->library), error));
        for (size_t d = 0; d < i; d++) {
            if (run->devices[d].tool.info.device_id == info.device_id)
                return tool_fail(error, TOOL_BAD_INPUT, "--device '%s': is the same device as --device '%s'",
                                 run->options.devices[i], run->options.devices[d]);
        }
        TOOL_TRY(open_device(run, &info, error));
    }
    return TOOL_DONE;
}

static tool_exit count_wrong(const bench_run *run, tool_error *error)
{
    size_t wrong = 0, measured = 0;
    for (size_t d = 0; d < run->device_count; d++) {
        for (size_t i = 0; i < run->options.request.shape_count; i++) {
            for (size_t c = 0; c < run->devices[d].groups[i].count; c++) {
                const bench_case *one = &run->devices[d].groups[i].cases[c];
                wrong += !one->refused && !one->error.ok;
                measured += one->repetitions > 0;
            }
        }
    }
    if (wrong)
        return tool_fail(error, TOOL_CHECK_FAILED, "%zu %s wrong by the reference", wrong,
                         tool_plural(wrong, "case is", "cases are"));
    if (!measured)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "no case could be measured on this device: %s",
                         run->devices[0].groups[0].cases[0].reason);
    return TOOL_DONE;
}

/* ---- what is printed ---------------------------------------------------------------------------------------- */

static json_t *results_json(const bench_run *run)
{
    return bench_json(run->options.request.shape_count, run->devices, run->device_count);
}

/* Tables of a group (NULL: none), of a device's peaks (without a device none), or both; for free(). Without --verbose
 * one table stands in the place of both. */
static tool_exit print_tables(const bench_run *run, const bench_device *device, const bench_group *group, bool peaks,
                              bool ended_early, char **text, tool_error *error)
{
    size_t size = 0;
    FILE *const stream = open_memstream(text, &size);
    TOOL_TRY(tool_check_memory(stream, "the tables", error));
    if (peaks && device && !run->options.verbose)
        bench_print_table(device, run->options.request.shape_count, stream);
    if (group && run->options.verbose)
        bench_print_group(device, group, stream);
    if (peaks && device && run->options.verbose && device->peaks.fma_gflops > 0)
        bench_print_peaks(device, run->options.request.shape_count, stream);
    if (ended_early)
        fputs("\nended early\n", stream);
    else if (peaks && device)
        bench_print_closing(&run->options, device, stream);
    return fclose(stream) == 0 ? TOOL_DONE : tool_fail_memory(error, "the tables");
}

/* Prints `text`, then leaves the results so far to signals: the object, or tables that are not printed yet. */
static tool_exit print_and_leave(const bench_run *run, const char *text, const bench_device *device,
                                 const bench_group *group, tool_error *error)
{
    char *farewell = NULL;
    if (run->options.json) {
        farewell = bench_json_lines(results_json(run), true);
        TOOL_TRY(tool_check_memory(farewell, "the results", error));
    } else {
        TOOL_TRY(print_tables(run, device, group, true, true, &farewell, error));
    }
    return tool_outputs_print(run->outputs, text, stdout, farewell, error);
}

static tool_exit tell(void *user, const bench_device *device, const bench_group *group, tool_error *error)
{
    return print_and_leave(user, "", device, group, error);
}

static tool_exit print_group(const bench_run *run, const bench_device *device, const bench_group *group,
                             tool_error *error)
{
    char *text = NULL;
    TOOL_TRY(print_tables(run, device, group, false, false, &text, error));
    const tool_exit status = print_and_leave(run, text, device, NULL, error);
    free(text);
    return status;
}

static tool_exit print_results(const bench_run *run, json_t *now, tool_error *error)
{
    char *const text = run->options.json ? tool_json_lines(json_incref(now)) : strdup("");
    TOOL_TRY(tool_check_memory(text, "the results", error));
    const tool_exit status = tool_outputs_print(run->outputs, text, stdout, NULL, error);
    free(text);
    return status;
}

/* Beside an object, the comparison is for people: it does not belong into it. */
static tool_exit compare(const bench_run *run, const json_t *now, tool_error *error)
{
    const json_t *const objects[] = {run->before, now};
    const char *const paths[] = {run->options.compare[0], "this run"};
    FILE *const stream = run->options.json ? stderr : stdout;
    if (bench_share_a_device(run->before, now))
        return bench_compare(run->before, paths[0], now, run->options.threshold, stream, error);
    return bench_show_side_by_side(objects, paths, TOOL_COUNT(objects), stream, error);
}

/* Gives what was asked for beside the tables, which are printed as they are measured. */
static tool_exit give_results(const bench_run *run, tool_error *error)
{
    static const char *const here = "this run";
    json_t *now = results_json(run);
    tool_exit status = TOOL_DONE;
    TOOL_TRY(tool_check_memory(now, "the results", error));
    TOOL_TRY_GOTO(status, print_results(run, now, error), done);
    if (run->device_count > 1 && !run->options.json)
        TOOL_TRY_GOTO(status, bench_show_side_by_side((const json_t *[]){now}, &here, 1, stdout, error), done);
    if (run->options.plot)
        TOOL_TRY_GOTO(status,
                      bench_plot(&run->options, run->devices, run->device_count, run->outputs, run->plot, error), done);
    if (run->before)
        status = compare(run, now, error);
    if (status == TOOL_DONE)
        status = tool_flush_stdout(error);
    if (status == TOOL_DONE || status == TOOL_CHECK_FAILED) {
        const tool_exit counted = count_wrong(run, error); /* told rather than what follows from it */
        status = counted != TOOL_DONE ? counted : status;
    }
done:
    json_decref(now);
    return status;
}

/* ---- a run -------------------------------------------------------------------------------------------------- */

/* Program caches of this run's own, the library's and those of drivers that have one, so that a first call is a first
 * call. What was tuned is taken from where it always lies.
 * Drivers read these variables when the first platform is asked for. */
static tool_exit make_cold_caches(bench_run *run, tool_error *error)
{
    static const char *const variables[] = {"POCL_CACHE_DIR", "CUDA_CACHE_PATH"};
    TOOL_TRY(tool_outputs_make_folder(run->outputs, &run->cache_dir, error));
    TOOL_TRY(tool_check_library(clmgk_tuning_get_info(NULL, &run->tuning, &error->library), error));
    for (size_t i = 0; i < TOOL_COUNT(variables); i++) {
        if (setenv(variables[i], run->cache_dir, 1) != 0)
            return tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", variables[i], strerror(errno));
    }
    return TOOL_DONE;
}

/* Everything that can be wrong with the command line, before any device is touched. */
static tool_exit check_request(bench_run *run, tool_error *error)
{
    bench_group *groups = NULL;
    TOOL_TRY(bench_make_groups(&run->options.request, run->options.short_batches, &groups, error));
    bench_free_groups(&run->options.request, groups);
    if (run->options.compare_count == 1)
        TOOL_TRY(bench_load_json(run->options.compare[0], &run->before, error));
    TOOL_TRY(tool_outputs_create(&run->outputs, error));
    return run->options.plot ? bench_announce_plot(&run->options, run->outputs, &run->plot, error) : TOOL_DONE;
}

/* Memory is what most shapes lack: peaks are not measured for those alone. */
static bool fits_any(const bench_run *run, const bench_device *device)
{
    size_t fitting = 0;
    for (size_t i = 0; i < run->options.request.shape_count; i++)
        fitting += bench_fits(&device->tool.info, &device->groups[i]);
    return fitting > 0;
}

static tool_exit measure_shape(bench_run *run, bench_device *device, size_t shape, tool_error *error)
{
    const bench_listener listener = {tell, run};
    announce_shape(run, device, shape);
    TOOL_TRY(bench_probe_memory(device, error));
    TOOL_TRY(bench_probe_compute(device, error));
    return bench_measure_group(device, &run->options, &listener, &device->groups[shape], error);
}

/* The last windows, unless no case was measured, and the table that needs them. */
static tool_exit finish_device(const bench_run *run, bench_device *device, tool_error *error)
{
    char *text = NULL;
    if (device->probe) {
        TOOL_TRY(bench_probe_memory(device, error));
        TOOL_TRY(bench_probe_compute(device, error));
        bench_probe_close(device);
    }
    if (run->options.json)
        return print_and_leave(run, "", device, NULL, error);
    TOOL_TRY(print_tables(run, device, NULL, true, false, &text, error));
    const tool_exit status = tool_outputs_print(run->outputs, text, stdout, NULL, error);
    free(text);
    return status;
}

static tool_exit measure_device(bench_run *run, bench_device *device, tool_error *error)
{
    const bool text = !run->options.json, fits = fits_any(run, device);
    if (text)
        bench_print_device(device, stdout);
    TOOL_TRY(print_and_leave(run, "", device, NULL, error));
    if (fits) {
        fprintf(stderr, "clmgk-bench: %s: measuring peaks\n", device->tool.info.name);
        TOOL_TRY(bench_probe_open(device, run->options.seconds, error));
    }
    for (size_t i = 0; i < run->options.request.shape_count; i++) {
        if (fits)
            TOOL_TRY(measure_shape(run, device, i, error));
        if (text)
            TOOL_TRY(print_group(run, device, &device->groups[i], error));
    }
    return finish_device(run, device, error);
}

static void close_run(bench_run *run)
{
    for (size_t i = 0; i < run->device_count; i++) {
        bench_probe_close(&run->devices[i]);
        bench_free_groups(&run->options.request, run->devices[i].groups);
        tool_device_close(&run->devices[i].tool);
    }
    free(run->devices);
    free(run->options.programs);
    json_decref(run->before);
    tool_outputs_destroy(run->outputs);
}

/* What is no list of cases: products, layers, single calls, a server's calls, or ranks. */
static tool_exit measure_others(bench_run *run, tool_error *error)
{
    bench_device device = {.progress_ms = 0};
    TOOL_TRY(tool_outputs_create(&run->outputs, error));
    if (!run->options.keep_caches)
        TOOL_TRY(make_cold_caches(run, error));
    device.cache_dir = run->cache_dir;
    device.tuning_dir = run->cache_dir ? run->tuning.path : NULL;
    TOOL_TRY(tool_device_open(run->options.devices[0], &device.tool, error));
    tool_exit (*const measure)(bench_device *, const bench_options *, tool_outputs *, tool_error *) =
        run->options.product_count > 0 ? bench_products
        : run->options.parallel        ? bench_parallel
        : run->options.layer           ? bench_layers
        : run->options.serving         ? bench_serving
                                       : bench_calls;
    const tool_exit status = measure(&device, &run->options, run->outputs, error);
    tool_device_close(&device.tool);
    return status;
}

static tool_exit bench(bench_run *run, tool_error *error)
{
    const bench_options *const options = &run->options;
    if (options->product_count > 0 || options->layer || options->call || options->serving || options->parallel)
        return measure_others(run, error);
    if (run->options.compare_count > 1)
        return bench_compare_files(&run->options, error);
    TOOL_TRY(check_request(run, error));
    TOOL_TRY(print_and_leave(run, "", NULL, NULL, error)); /* opening devices may take long */
    if (!run->options.keep_caches)
        TOOL_TRY(make_cold_caches(run, error));
    TOOL_TRY(open_devices(run, error));
    for (size_t i = 0; i < run->device_count; i++)
        TOOL_TRY(measure_device(run, &run->devices[i], error));
    return give_results(run, error);
}

int main(int argc, char **argv)
{
    bench_run run = {.tuning = CLMGK_TUNING_INFO_INIT};
    tool_error error = {.message = ""};
    bool finished = false;
    tool_exit status = bench_parse_options(argc, argv, &run.options, &finished, &error);
    if (status == TOOL_DONE && !finished)
        status = bench(&run, &error);
    close_run(&run);
    return tool_report(&bench_program, status, &error);
}
