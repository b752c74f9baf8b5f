/* SPDX-License-Identifier: Apache-2.0 */
/* A picture by gnuplot: times relative to softmax beside the paper's, or in milliseconds where no softmax was measured,
 * and parts of the measured peak. Bars are medians; their lines reach from the shortest to the longest time. */
#include "bench.h"

#include "gnuplot.h"

#include <inttypes.h>
#include <string.h>

/* ---- the script --------------------------------------------------------------------------------------------- */

static void write_head(size_t panels, FILE *script)
{
    fprintf(script,
            "set terminal svg size 1000,%zu dynamic font 'sans-serif,13' background rgb 'white'\n"
            "set multiplot layout %zu,1\n"
            "set style data histograms\n"
            "set style histogram errorbars gap 1 lw 1\n"
            "set errorbars small lc rgb '#444444' lw 1\n"
            "set style fill solid 0.9 noborder\n"
            "set datafile missing '-'\n"
            "set grid ytics lc rgb '#dddddd'\n"
            "set xtics nomirror rotate by -20 scale 0\n"
            "set ytics nomirror\n"
            "set border 3\n"
            "set key outside top center horizontal\n",
            panels * 350, panels);
}

/* What times are relative to: softmax, or linear attention where its family is alone. */
static clmgk_variant base_of(const bench_options *options)
{
    for (size_t i = 0; i < options->request.variant_count; i++) {
        if (!tool_is_linear(options->request.variants[i].variant))
            return CLMGK_VARIANT_SOFTMAX;
    }
    return CLMGK_VARIANT_LINEAR;
}

static const bench_case *baseline_of(const bench_options *options, const bench_group *group, const bench_case *one)
{
    return base_of(options) == CLMGK_VARIANT_SOFTMAX ? bench_baseline(group, one) : bench_linear_baseline(group, one);
}

/* Where the bar of a case stands. */
static double place_of(const bench_options *options, size_t shape, size_t variant)
{
    const double series = (double)options->request.variant_count;
    return (double)shape + ((double)variant - (series - 1) / 2) / (series + 1);
}

/* What the height of bars stands for. */
typedef enum bar_scale { BAR_RATIOS, BAR_MILLISECONDS, BAR_RATES } bar_scale;

/* The height of a case's bar that this time gives it; negative: it has no bar. */
static double height_of(const bench_options *options, const bench_device *device, const bench_group *group,
                        const bench_case *one, bar_scale scale, double time_ms)
{
    const bench_case *const baseline = baseline_of(options, group, one);
    if (!one->repetitions || (scale == BAR_RATIOS && !baseline))
        return -1.0;
    switch (scale) {
    case BAR_RATIOS:
        return time_ms / baseline->time_ms.median;
    case BAR_MILLISECONDS:
        return time_ms;
    case BAR_RATES:
        break;
    }
    return bench_fraction_of_peak(&device->peaks, one) * one->time_ms.median / time_ms;
}

/* Whether a pass has bars on this scale. */
static bool has_bars(const bench_options *options, const bench_device *device, size_t pass, bar_scale scale)
{
    for (size_t i = 0; i < options->request.shape_count; i++) {
        const bench_group *const group = &device->groups[i];
        for (size_t c = 0; c < options->request.variant_count; c++) {
            const bench_case *const one = bench_case_of(&options->request, group, pass, c);
            if (height_of(options, device, group, one, scale, one->time_ms.median) >= 0.0)
                return true;
        }
    }
    return false;
}

/* One line a shape: its name, then the height of each case's bar, with its least and its largest. */
static void write_data(const char *name, const bench_options *options, const bench_device *device, size_t pass,
                       bar_scale scale, FILE *script)
{
    const bool rates = scale == BAR_RATES;
    fprintf(script, "$%s << END\n", name);
    for (size_t i = 0; i < options->request.shape_count; i++) {
        const bench_group *group = &device->groups[i];
        fprintf(script, "%s", bench_shape_name(group->shape));
        for (size_t c = 0; c < options->request.variant_count; c++) {
            const bench_case *one = bench_case_of(&options->request, group, pass, c);
            const double times[] = {one->time_ms.median, rates ? one->time_ms.max : one->time_ms.min,
                                    rates ? one->time_ms.min : one->time_ms.max};
            for (size_t t = 0; t < TOOL_COUNT(times); t++) {
                const double height = height_of(options, device, group, one, scale, times[t]);
                fprintf(script, height < 0.0 ? " -" : " %.6g", height);
            }
        }
        fputc('\n', script);
    }
    fputs("END\n", script);
}

/* The paper's ratios, which are of the forward pass, each over the bar of its case; returns how many. */
static size_t write_paper(const bench_options *options, const bench_device *device, size_t pass, FILE *script)
{
    size_t count = 0;
    fputs("$paper << END\n", script);
    for (size_t i = 0; i < options->request.shape_count; i++) {
        const bench_group *group = &device->groups[i];
        const bench_figure *base = bench_find_figure(group->shape, base_of(options), group->shape->heads);
        for (size_t c = 0; base && options->request.passes[pass] == BENCH_FORWARD && c < options->request.variant_count;
             c++) {
            const clmgk_attention_desc *desc = &group->cases[c].desc;
            const bench_figure *figure = bench_find_figure(group->shape, desc->variant, desc->heads);
            if (!figure)
                continue;
            fprintf(script, "%.4f %.4f\n", place_of(options, i, c), figure->seconds / base->seconds);
            count++;
        }
    }
    fputs("END\n", script);
    return count;
}

/* Marks at the bars of noisy cases, and the height of the highest bar; returns how many marks. */
static size_t write_noisy(const bench_options *options, const bench_device *device, size_t pass, bar_scale scale,
                          double *highest, FILE *script)
{
    size_t count = 0;
    fputs("$noisy << END\n", script);
    for (size_t i = 0; i < options->request.shape_count; i++) {
        const bench_group *const group = &device->groups[i];
        for (size_t c = 0; c < options->request.variant_count; c++) {
            const bench_case *const one = bench_case_of(&options->request, group, pass, c);
            const double height = height_of(options, device, group, one, scale, one->time_ms.median);
            *highest = TOOL_MAX(*highest, height);
            if (height < 0.0 || !bench_was_disturbed(one))
                continue;
            fprintf(script, "%.4f %.6g\n", place_of(options, i, c), height);
            count++;
        }
    }
    fputs("END\n", script);
    return count;
}

static void write_series(const char *name, const bench_options *options, FILE *script)
{
    static const char *const colours[] = {"#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"};
    for (size_t c = 0; c < options->request.variant_count; c++) {
        const bench_variant *variant = &options->request.variants[c];
        fprintf(script, "%s $%s using %zu:%zu:%zu%s lc rgb '%s' title '%s", c ? "," : "plot", name, 3 * c + 2,
                3 * c + 3, 3 * c + 4, c ? "" : ":xtic(1)", colours[c % TOOL_COUNT(colours)],
                clmgk_variant_name(variant->variant));
        if (variant->heads == BENCH_HEADS_HALF)
            fputs(", half the heads", script);
        else if (variant->heads != BENCH_HEADS_OF_SHAPE)
            fprintf(script, ", %" PRId64 " heads", variant->heads);
        if (variant->components)
            fprintf(script, ", %" PRId64 " global", variant->components);
        fputc('\'', script);
    }
}

/* The remark on a case of the picture that was faster than the measured peak; NULL: none was. */
static const char *find_note(const bench_options *options, const bench_device *device, size_t pass)
{
    for (size_t i = 0; i < options->request.shape_count; i++) {
        const bench_group *group = &device->groups[i];
        for (size_t c = 0; c < options->request.variant_count; c++) {
            const bench_case *one = bench_case_of(&options->request, group, pass, c);
            const char *note = one->repetitions ? bench_peak_note(&device->peaks, one) : NULL;
            if (note)
                return note;
        }
    }
    return NULL;
}

static void write_pass(const bench_options *options, const bench_device *device, size_t pass, FILE *script)
{
    const bar_scale scale = has_bars(options, device, pass, BAR_RATIOS) ? BAR_RATIOS : BAR_MILLISECONDS;
    const bool ratios = scale == BAR_RATIOS;
    write_data("times", options, device, pass, scale, script);
    write_data("rates", options, device, pass, BAR_RATES, script);
    const size_t points = ratios ? write_paper(options, device, pass, script) : 0;
    double highest = ratios ? 0.5 : 0.0;
    const size_t noisy = write_noisy(options, device, pass, scale, &highest, script);
    fputs("set title '", script);
    tool_gnuplot_quoted(device->tool.info.name, script);
    fprintf(script, ", %s' noenhanced\nset key\nset ylabel '%s%s'\nset yrange [0:*<%.6g]\n",
            bench_pass_name(options->request.passes[pass]), ratios ? "time / " : "milliseconds",
            ratios ? clmgk_variant_name(base_of(options)) : "", 2 * highest);
    fprintf(script, "set xrange [-0.6:%zu.6]\n", options->request.shape_count - 1);
    write_series("times", options, script);
    if (points)
        fputs(", $paper using 1:2 with points pt 4 ps 1.2 lw 2 lc rgb '#D55E00' title 'MGK paper, Table 7'", script);
    if (noisy)
        fputs(", $noisy using 1:2 with points pt 9 ps 1.2 lc rgb '#000000' title 'noisy: median above 1.1 x shortest, "
              "or longest above 2 x median'",
              script);
    const char *const note = find_note(options, device, pass);
    fprintf(script, "\nunset title\nunset key\nset ylabel \"part of %.0f GFLOP/s%s%s\"\nset yrange [0:1<*]\n",
            device->peaks.fma_gflops, note ? ":\\n" : "", note ? note : "");
    write_series("rates", options, script);
    fputc('\n', script);
}

/* Passes of which at least one case was measured. */
static size_t count_drawn(const bench_options *options, const bench_device *devices, size_t device_count)
{
    size_t count = 0;
    for (size_t i = 0; i < device_count; i++) {
        for (size_t pass = 0; pass < options->request.pass_count; pass++)
            count += has_bars(options, &devices[i], pass, BAR_RATES);
    }
    return count;
}

tool_exit bench_plot(const bench_options *options, const bench_device *devices, size_t device_count,
                     tool_outputs *outputs, size_t output, tool_error *error)
{
    FILE *picture = NULL;
    tool_exit status = TOOL_DONE;
    FILE *script = NULL;
    const size_t drawn = count_drawn(options, devices, device_count);
    if (drawn == 0)
        return TOOL_DONE;
    TOOL_TRY(tool_gnuplot_begin(&script, error));
    write_head(2 * drawn, script);
    for (size_t i = 0; i < device_count; i++) {
        for (size_t pass = 0; pass < options->request.pass_count; pass++) {
            if (has_bars(options, &devices[i], pass, BAR_RATES))
                write_pass(options, &devices[i], pass, script);
        }
    }
    TOOL_TRY_GOTO(status, tool_outputs_open(outputs, output, &picture, error), done);
    TOOL_TRY_GOTO(status, tool_gnuplot_run(script, picture, error), done);
    TOOL_TRY_GOTO(status, tool_outputs_commit(outputs, error), done);
done:
    fclose(script);
    return status;
}
