/* SPDX-License-Identifier: Apache-2.0 */
/* The suite counts: the figures' curves, with layers measured at some of their points. */
#include "bench.h"
#include "figures_text.h"

#include "gnuplot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct counts_run {
    bench_device *device; /* NULL: nothing is measured */
    const bench_options *options;
    tool_outputs *outputs;
    figure_results results;
    char *csv_path, **picture_paths; /* NULL: no folder is given */
    size_t csv, *pictures;           /* numbers of outputs */
} counts_run;

/* ---- measured points --------------------------------------------------------------------------------------------- */

#define MAX_LAYERS 8 /* that are compared: far more than any panel has */

static bool same_sizes(const figure_point *a, const figure_point *b)
{
    return a->own.width == b->own.width && a->own.head_size == b->own.head_size && a->own.length == b->own.length &&
           a->baseline.heads == b->baseline.heads;
}

static bool is_first(const counts_run *run, const figure_point *point)
{
    for (const figure_point *other = run->results.points; other < point; other++) {
        if (other->measurable && same_sizes(other, point))
            return false;
    }
    return true;
}

static bench_layer_time *find_layer(bench_layer_time *layers, size_t count, const figure_setting *setting)
{
    for (bench_layer_time *layer = layers; layer < layers + count; layer++) {
        if (layer->variant.variant == setting->variant && layer->variant.heads == setting->heads)
            return layer;
    }
    return NULL;
}

static double measured_of(figure_quantity quantity, const bench_layer_time *layer)
{
    switch (quantity) {
    case FIGURE_INFERENCE:
        return layer->forward_ms;
    case FIGURE_TRAINING:
        return layer->training_ms;
    case FIGURE_INFERENCE_MEMORY:
        return layer->forward_bytes;
    case FIGURE_TRAINING_MEMORY:
        return layer->training_bytes;
    default:
        return 0;
    }
}

/* The layers of all points with these sizes, in turn. */
static tool_exit measure_sizes(counts_run *run, const figure_point *sizes, tool_error *error)
{
    figure_point *const end = run->results.points + run->results.count;
    bench_layer_time layers[MAX_LAYERS] = {{.forward_ms = 0}};
    size_t count = 0;
    const bench_shape shape = {.batch = 1,
                               .heads = sizes->baseline.heads,
                               .length = sizes->own.length,
                               .head_size = sizes->own.head_size,
                               .width = sizes->own.width};
    for (const figure_point *point = run->results.points; point < end; point++) {
        const figure_setting *const both[] = {&point->baseline, &point->own};
        for (size_t i = 0; i < TOOL_COUNT(both) && point->measurable && same_sizes(point, sizes); i++) {
            if (!find_layer(layers, count, both[i]) && count < MAX_LAYERS)
                layers[count++].variant =
                    (bench_variant){both[i]->variant, both[i]->heads, i == 0 ? 0 : both[i]->components};
        }
    }
    fprintf(stderr, "clmgk-bench: layers of width %" PRId64 ", N %" PRId64 "\n", shape.width, shape.length);
    TOOL_TRY(bench_time_layers(run->device, run->options, &shape, layers, count, error));
    for (figure_point *point = run->results.points; point < end; point++) {
        if (point->measurable && same_sizes(point, sizes)) {
            point->measured = measured_of(point->quantity, find_layer(layers, count, &point->own));
            point->baseline_measured = measured_of(point->quantity, find_layer(layers, count, &point->baseline));
        }
    }
    return TOOL_DONE;
}

/* ---- results ------------------------------------------------------------------------------------------------------
 */

static json_t *make_object(const void *of)
{
    const counts_run *const run = of;
    json_t *const object = figure_json(&run->results);
    return run->device ? tool_json_merge(object, bench_json(0, run->device, 1)) : object;
}

static void print_figures(const void *of, FILE *stream)
{
    const counts_run *const run = of;
    figure_print(&run->results, stream);
    if (run->device)
        fprintf(stream, "\nMeasured on %s\n", run->device->tool.info.name);
}

static tool_exit give(const counts_run *run, bool ended_early, tool_error *error)
{
    const bench_results results = {run->outputs, run->options->json, make_object, print_figures, run};
    return bench_give_results(&results, ended_early, error);
}

static tool_exit measure(counts_run *run, tool_error *error)
{
    for (size_t i = 0; i < run->results.count; i++) {
        const figure_point *const point = &run->results.points[i];
        if (!point->measurable || !is_first(run, point))
            continue;
        TOOL_TRY(measure_sizes(run, point, error));
        TOOL_TRY(give(run, true, error));
    }
    return TOOL_DONE;
}

/* ---- files --------------------------------------------------------------------------------------------------------
 */

/* "FOLDER/NAME.ENDING", for free() */
static tool_exit make_path(const char *folder, const char *name, const char *ending, char **path, tool_error *error)
{
    size_t size = 0;
    FILE *const stream = open_memstream(path, &size);
    TOOL_TRY(tool_check_memory(stream, "a file's name", error));
    fprintf(stream, "%s/%s%s", folder, name, ending);
    return fclose(stream) == 0 ? TOOL_DONE : tool_fail_memory(error, "a file's name");
}

static tool_exit announce_files(counts_run *run, tool_error *error)
{
    const char *const folder = run->options->folder;
    if (!folder)
        return TOOL_DONE;
    TOOL_TRY(tool_gnuplot_check(error));
    run->picture_paths = calloc(bench_figure_count, sizeof(*run->picture_paths));
    run->pictures = calloc(bench_figure_count, sizeof(*run->pictures));
    if (!run->picture_paths || !run->pictures)
        return tool_fail_memory(error, "files' names");
    TOOL_TRY(make_path(folder, "counts", ".csv", &run->csv_path, error));
    TOOL_TRY(tool_outputs_add(run->outputs, "output", run->csv_path, &run->csv, error));
    for (size_t i = 0; i < bench_figure_count; i++) {
        TOOL_TRY(make_path(folder, bench_figures[i].name, ".svg", &run->picture_paths[i], error));
        TOOL_TRY(tool_outputs_add(run->outputs, "output", run->picture_paths[i], &run->pictures[i], error));
    }
    return TOOL_DONE;
}

static tool_exit draw(const counts_run *run, size_t index, tool_error *error)
{
    FILE *picture = NULL;
    FILE *const script = tmpfile();
    if (!script)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "no temporary file: %s", strerror(errno));
    figure_write_script(&run->results, &bench_figures[index], run->device ? run->device->tool.info.name : NULL, script);
    tool_exit status = tool_outputs_open(run->outputs, run->pictures[index], &picture, error);
    if (status == TOOL_DONE)
        status = tool_gnuplot_run(script, picture, error);
    fclose(script);
    return status;
}

static tool_exit write_files(const counts_run *run, tool_error *error)
{
    FILE *csv = NULL;
    if (!run->csv_path)
        return TOOL_DONE;
    TOOL_TRY(tool_outputs_open(run->outputs, run->csv, &csv, error));
    figure_write_csv(&run->results, csv);
    for (size_t i = 0; i < bench_figure_count; i++)
        TOOL_TRY(draw(run, i, error));
    return tool_outputs_commit(run->outputs, error);
}

static void close_run(counts_run *run)
{
    for (size_t i = 0; run->picture_paths && i < bench_figure_count; i++)
        free(run->picture_paths[i]);
    free(run->picture_paths);
    free(run->pictures);
    free(run->csv_path);
    figure_close(&run->results);
}

tool_exit bench_counts(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error)
{
    counts_run run = {.device = device, .options = options, .outputs = outputs};
    tool_exit status = figure_open(&run.results, error);
    if (status == TOOL_DONE)
        status = announce_files(&run, error);
    if (status == TOOL_DONE && device)
        status = tool_device_open(options->device, &device->tool, error);
    if (status == TOOL_DONE && device)
        status = measure(&run, error);
    if (status == TOOL_DONE)
        status = write_files(&run, error);
    if (status == TOOL_DONE)
        status = give(&run, false, error);
    if (device)
        tool_device_close(&device->tool);
    close_run(&run);
    return status;
}
