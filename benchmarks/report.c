/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for people. */
#include "bench.h"

#include <inttypes.h>
#include <string.h>

#define DECODING_QUERIES 16 /* so few that reading K and V is the work */

/* ---- figures ------------------------------------------------------------------------------------------------- */

double bench_gflops(const bench_case *one)
{
    return one->flops / (one->time_ms.median * 1e6);
}

uint64_t bench_memory_bytes(const bench_case *one)
{
    return one->array_bytes + one->workspace_bytes;
}

/* Whether the case multiplies on AMX, or by AVX512-BF16: cl/engine/units.clh. The peak of bf16 stands for f16, too. */
static bool has_tiles(const bench_case *one)
{
    return one->compiler_options && (strstr(one->compiler_options, "-DMATRIX_UNIT=3") != NULL ||
                                     strstr(one->compiler_options, "-DMATRIX_UNIT=4") != NULL);
}

double bench_fraction_of_peak(const bench_peaks *peaks, const bench_case *one)
{
    const bool tiles = peaks->matrix_gflops > 0 && has_tiles(one);
    return bench_gflops(one) / (tiles ? peaks->matrix_gflops : peaks->fma_gflops);
}

bool bench_has_failed(const bench_case *one)
{
    return one->refused || one->error.message[0] != '\0';
}

const char *bench_peak_note(const bench_peaks *peaks, const bench_case *one)
{
    return bench_fraction_of_peak(peaks, one) > 1 ? "peak not reached by its own measurement" : NULL;
}

double bench_kv_fraction_of_read(const bench_peaks *peaks, const bench_case *one)
{
    const bench_elements count = bench_count_elements(&one->desc);
    double bytes = 0;
    if (one->pass == BENCH_MASK)
        return 0;
    for (clmgk_array array = CLMGK_ARRAY_K; array <= CLMGK_ARRAY_V; array++)
        bytes += (double)count.of[array] * (double)clmgk_array_element_size(&one->desc, array);
    return bytes / (1e6 * one->time_ms.median * peaks->read_gbps);
}

double bench_state_fraction_of_copy(const bench_peaks *peaks, const bench_case *one)
{
    return (double)bench_state_bytes(&one->desc) / (1e6 * one->time_ms.median * peaks->copy_gbps);
}

static clmgk_pass pass_of(const bench_case *one)
{
    return one->pass == BENCH_BACKWARD ? CLMGK_PASS_BACKWARD : CLMGK_PASS_FORWARD;
}

static double ratio(const bench_case *one, const bench_case *baseline, uint32_t parts)
{
    return clmgk_sum_operations(&one->counts, pass_of(one), parts) /
           clmgk_sum_operations(&baseline->counts, pass_of(one), parts);
}

bench_operations bench_compare_counts(const bench_group *group, const bench_case *one)
{
    static const uint32_t scores = 1U << CLMGK_PART_SCORES, projections = 1U << CLMGK_PART_QUERY_KEY;
    const uint32_t traits = clmgk_variant_traits(one->desc.variant);
    const bool linear = tool_is_linear(one->desc.variant);
    const bench_case *const baseline = linear ? bench_linear_baseline(group, one) : bench_baseline(group, one);
    if (!baseline)
        return (bench_operations){.counted = false};
    return (bench_operations){.counted = true,
                              .in_paper = (traits & CLMGK_TRAIT_ADMIXTURE) && !linear &&
                                          !(traits & CLMGK_TRAIT_GENERALISED) && one->pass == BENCH_FORWARD,
                              .matrices = ratio(one, baseline, scores),
                              .projections = ratio(one, baseline, scores | projections),
                              .layer = ratio(one, baseline, CLMGK_PART_ALL),
                              .parameters = clmgk_sum_parameters(&one->counts, CLMGK_PART_ALL) /
                                            clmgk_sum_parameters(&baseline->counts, CLMGK_PART_ALL)};
}

/* ---- tables -------------------------------------------------------------------------------------------------- */

static void print_modifiers(const bench_modifiers *modifiers, FILE *stream)
{
    static const char axes[] = "BHNS";
    if (modifiers->window)
        fprintf(stream, ", window %" PRId64 ",%" PRId64, modifiers->window_left, modifiers->window_right);
    if (modifiers->sequences)
        fprintf(stream, ", %" PRId64 " packed sequences", modifiers->sequences);
    if (modifiers->bias) {
        fputs(", bias [", stream);
        for (size_t i = 0; i < TOOL_COUNT(modifiers->bias_axis); i++)
            fprintf(stream, "%s%c", i ? "," : "", modifiers->bias_axis[i] ? axes[i] : '1');
        fputc(']', stream);
    }
    if (modifiers->dropout > 0)
        fprintf(stream, ", dropout %g", modifiers->dropout);
    if (modifiers->softcap > 0)
        fprintf(stream, ", soft-cap %g", modifiers->softcap);
    fprintf(stream, "%s%s%s", modifiers->alibi ? ", ALiBi" : "", modifiers->sinks ? ", sinks" : "",
            modifiers->state ? ", states in and out" : "");
}

static void print_sizes(const bench_group *group, FILE *stream)
{
    const bench_shape *shape = group->shape;
    fprintf(stream, "%s: batch %" PRId64 ", N %" PRId64 ", S %" PRId64 ", D %" PRId64 ", E %" PRId64 "%s",
            bench_shape_name(shape), group->batch, shape->length, shape->length_k ? shape->length_k : shape->length,
            shape->head_size, shape->value_size ? shape->value_size : shape->head_size,
            shape->causal ? ", causal" : "");
    print_modifiers(&shape->modifiers, stream);
}

static void print_shape(const bench_group *group, FILE *stream)
{
    const bench_shape *shape = group->shape;
    fputc('\n', stream);
    print_sizes(group, stream);
    fprintf(stream, "\n%s", shape->what);
    if (group->batch != shape->batch)
        fprintf(stream, "; the paper's batch is %" PRId64 " (--suite paper)", shape->batch);
    fputc('\n', stream);
}

/* A figure that a case may lack. */
static void print_figure(bool known, int width, int digits, double figure, FILE *stream)
{
    if (known)
        fprintf(stream, "%*.*f", width, digits, figure);
    else
        fprintf(stream, "%*s", width, "-");
}

static void print_ratio(const bench_group *group, const bench_case *one, int width, FILE *stream)
{
    const bench_case *baseline = bench_baseline(group, one);
    print_figure(baseline, width, 3, baseline ? one->time_ms.median / baseline->time_ms.median : 0, stream);
}

static void print_times(const bench_group *group, FILE *stream)
{
    fprintf(stream, "  %-20s %9s %19s %7s %7s %8s %7s %7s %6s  %s\n", "variant, heads", "median ms", "min .. max ms",
            "GFLOP", "GFLOP/s", "MB moved", "mem. MB", "wksp MB", "ratio", "tuned by");
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        if (!one->repetitions)
            continue;
        fprintf(stream, "  %-20s %9.3f %9.3f %9.3f %7.2f %7.1f %8.1f %7.1f %7.1f", bench_case_label(one).text,
                one->time_ms.median, one->time_ms.min, one->time_ms.max, 1e-9 * one->flops, bench_gflops(one),
                1e-6 * (double)one->array_bytes, 1e-6 * (double)bench_memory_bytes(one),
                1e-6 * (double)one->workspace_bytes);
        print_ratio(group, one, 7, stream);
        fprintf(stream, "  %s\n", bench_is_tuned(one) ? clmgk_tuning_source_name(one->tuning) : "-");
    }
}

/* What the window saves. */
static void print_windows(const bench_group *group, FILE *stream)
{
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        const bench_case *windowed = bench_windowed(group, one);
        if (windowed)
            fprintf(stream, "  %s: window / full %.3f\n", bench_case_label(windowed).text,
                    windowed->time_ms.median / one->time_ms.median);
    }
}

/* Beside linear attention with the shape's heads. */
static void print_linear(const bench_group *group, FILE *stream)
{
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        const bench_case *baseline = one->repetitions ? bench_linear_baseline(group, one) : NULL;
        if (baseline && baseline != one)
            fprintf(stream, "  %s / linear %" PRId64 ": %.3f\n", bench_case_label(one).text, baseline->desc.heads,
                    one->time_ms.median / baseline->time_ms.median);
    }
}

static void print_checks(const bench_group *group, FILE *stream)
{
    fprintf(stream, "  %-24s %10s %10s %10s %12s %10s %9s %5s\n", "", "compile ms", "first cold", "first warm", "error",
            "bound", "rows", "runs");
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        if (one->error.sampled == 0)
            continue;
        fprintf(stream, "  %-24s %10.1f", bench_case_label(one).text, one->compile_ms);
        print_figure(one->first_cold_ms >= 0, 11, 1, one->first_cold_ms, stream);
        print_figure(one->first_warm_ms >= 0, 11, 1, one->first_warm_ms, stream);
        fprintf(stream, " %12.1e %10.1e %9" PRId64 " %5d\n", one->error.max, one->error.bound, one->error.sampled,
                one->repetitions);
    }
}

/* The paper's figure for a case; NULL: none, or the case was not measured. */
static const bench_figure *figure_of(const bench_group *group, const bench_case *one)
{
    return one->repetitions && one->pass == BENCH_FORWARD
               ? bench_find_figure(group->shape, one->desc.variant, one->desc.heads)
               : NULL;
}

/* The case's row: time and memory of the whole, and the ratio to what the paper compares it with. */
static void print_paper_row(const bench_group *group, const bench_case *one, FILE *stream)
{
    const bool linear = tool_is_linear(one->desc.variant);
    const bench_figure *figure = figure_of(group, one);
    const bench_figure *base =
        bench_find_figure(group->shape, linear ? CLMGK_VARIANT_LINEAR : CLMGK_VARIANT_SOFTMAX, group->shape->heads);
    const bench_case *baseline = linear ? bench_linear_baseline(group, one) : bench_baseline(group, one);
    if (!figure || !base)
        return;
    fprintf(stream, "  %-24s %9.3f %9.3f", bench_case_label(one).text, 1e-3 * one->time_ms.median, figure->seconds);
    print_figure(baseline, 10, 3, baseline ? one->time_ms.median / baseline->time_ms.median : 0, stream);
    fprintf(stream, " %9.3f %11.2f %9.2f\n", figure->seconds / base->seconds, 1e-9 * (double)bench_memory_bytes(one),
            figure->gigabytes);
}

static void print_paper(const bench_group *group, FILE *stream)
{
    const bench_shape *shape = group->shape;
    if (!shape->figures)
        return;
    fprintf(stream, "  Beside the paper, whose figures are for two layers of a network on its GPUs: compare ratios\n"
                    "  (to softmax; in the linear family to linear).\n");
    if (group->batch != shape->batch)
        fprintf(stream, "  Seconds and memory here are of a batch of %" PRId64 ", the paper's of %" PRId64 ".\n",
                group->batch, shape->batch);
    fprintf(stream, "  %-24s %9s %9s %9s %9s %11s %9s\n", "", "seconds", "paper", "ratio", "paper", "memory GB",
            "paper");
    for (size_t i = 0; i < group->count; i++)
        print_paper_row(group, &group->cases[i], stream);
}

/* A case's operations and parameters, and their ratios beside those of its time and of the products that it executes.
 */
static void print_counts_row(const bench_group *group, const bench_case *one, FILE *stream)
{
    const bool linear = tool_is_linear(one->desc.variant);
    const bench_case *const baseline = linear ? bench_linear_baseline(group, one) : bench_baseline(group, one);
    const bench_operations ratio = bench_compare_counts(group, one);
    fprintf(stream, "  %-24s %9.3f %9.3f", bench_case_label(one).text,
            1e-9 * clmgk_sum_operations(&one->counts, pass_of(one), CLMGK_PART_ALL),
            1e-6 * clmgk_sum_parameters(&one->counts, CLMGK_PART_ALL));
    print_figure(baseline, 9, 3, baseline ? one->time_ms.median / baseline->time_ms.median : 0, stream);
    print_figure(baseline, 9, 3, baseline ? one->flops / baseline->flops : 0, stream);
    print_figure(ratio.counted, 9, 3, ratio.layer, stream);
    print_figure(ratio.counted && !linear, 9, 3, ratio.matrices, stream);
    print_figure(ratio.counted && !linear, 17, 3, ratio.projections, stream);
    print_figure(ratio.counted, 11, 3, ratio.parameters, stream);
    fputc('\n', stream);
}

/* Beside the papers' counts: of the papers' sizes, and of mixed heads. */
static void print_counts(const bench_group *group, FILE *stream)
{
    bool head = false;
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        const bool wanted = (group->shape->suites & BENCH_SUITE_PAPER) || tool_is_mixed(one->desc.variant);
        if (!wanted || !one->repetitions)
            continue;
        if (!head)
            fprintf(stream,
                    "  Counted as in the MGK paper, Appendix B, and the FiSH paper, Appendix D, without softmax:\n"
                    "  a layer of width %" PRId64 "; ratios to softmax (linear family: to linear) of time, executed\n"
                    "  products, counted operations, attention matrices.\n  %-24s %9s %9s %8s %8s %8s %8s %16s %10s\n",
                    one->width, "", "10^9 op.", "10^6 par.", "time", "products", "layer", "matrices",
                    "with projections", "parameters");
        head = true;
        print_counts_row(group, one, stream);
    }
}

static void print_failures(const bench_group *group, FILE *stream)
{
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        if (one->refused)
            fprintf(stream, "  %s: not measured: %s\n", bench_case_label(one).text, one->reason);
        else if (bench_has_failed(one))
            fprintf(stream, "  %s: WRONG, not timed: %s\n", bench_case_label(one).text, one->error.message);
    }
}

static bool all_refused(const bench_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        if (!group->cases[i].refused)
            return false;
    }
    return true;
}

void bench_print_device(const bench_device *device, FILE *stream)
{
    const clmgk_device_info *info = &device->tool.info;
    fprintf(stream, "%" PRIu32 ":%" PRIu32 " %s (%s, driver %s, %" PRIu32 " compute units)\n", info->platform_index,
            info->device_index, info->name, info->platform, info->driver, info->compute_units);
}

void bench_print_group(const bench_device *device, const bench_group *group, FILE *stream)
{
    print_shape(group, stream);
    if (!all_refused(group)) {
        print_times(group, stream);
        print_windows(group, stream);
        print_linear(group, stream);
        print_checks(group, stream);
        print_paper(group, stream);
        print_counts(group, stream);
    }
    print_failures(group, stream);
    if (device->tool.info.device_class == CLMGK_DEVICE_CPU && group->cases[0].process_peak_bytes)
        fprintf(stream, "  peak memory of this process so far: %.0f MB\n",
                1e-6 * (double)group->cases[0].process_peak_bytes);
}

/* ---- peaks --------------------------------------------------------------------------------------------------- */

static void print_parts(const bench_peaks *peaks, const bench_group *group, FILE *stream)
{
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        if (!one->repetitions || one->pass == BENCH_MASK) /* no products */
            continue;
        const char *note = bench_peak_note(peaks, one);
        fprintf(stream, "  %-16s %-24s %9.1f %8.3f%s%s\n", bench_shape_name(group->shape), bench_case_label(one).text,
                bench_gflops(one), bench_fraction_of_peak(peaks, one), note ? "  " : "", note ? note : "");
    }
}

/* How near a few queries come to the time of reading their keys and values. */
static void print_decoding(const bench_peaks *peaks, const bench_group *group, FILE *stream)
{
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        const double part = one->repetitions ? bench_kv_fraction_of_read(peaks, one) : 0;
        if (!one->repetitions || one->pass != BENCH_FORWARD || one->desc.length > DECODING_QUERIES)
            continue;
        if (one->desc.use_state) {
            const double touched = bench_state_fraction_of_copy(peaks, one);
            fprintf(stream,
                    "  %-16s %s: states are read and written at %.2f of the rate of copying: %.2f times the least"
                    " time\n",
                    bench_shape_name(group->shape), bench_case_label(one).text, touched, 1 / touched);
            continue;
        }
        fprintf(stream, "  %-16s %s: K and V are read at %.2f of the rate of reading: %.2f times the least time%s\n",
                bench_shape_name(group->shape), bench_case_label(one).text, part, 1 / part,
                part > 1 ? " (from a cache, or the peak was not reached by its own measurement)" : "");
    }
}

static void print_rates_line(const bench_device *device, FILE *stream)
{
    const bench_peaks *const peaks = &device->peaks;
    fprintf(stream, "measured peaks: FMA %.1f GFLOP/s, ", peaks->fma_gflops);
    if (peaks->matrix_gflops > 0)
        fprintf(stream, "%s %.1f GFLOP/s, ", device->tool.info.matrix_unit, peaks->matrix_gflops);
    fprintf(stream, "copy %.1f GB/s, read %.1f GB/s", peaks->copy_gbps, peaks->read_gbps);
}

void bench_print_peaks(const bench_device *device, size_t group_count, FILE *stream)
{
    const bench_peaks *peaks = &device->peaks;
    fputc('\n', stream);
    print_rates_line(device, stream);
    fprintf(stream,
            " (buffers of %.0f MB%s)\n"
            "The best of many short windows before, between and after the cases.\n",
            1e-6 * (double)peaks->buffer_bytes,
            peaks->buffer_bytes < peaks->wanted_bytes ? ", all that the device has room for: caches may have helped"
                                                      : "");
    fprintf(stream, "  %-16s %-24s %9s %8s\n", "", "", "GFLOP/s", "of peak");
    for (size_t i = 0; i < group_count; i++)
        print_parts(peaks, &device->groups[i], stream);
    for (size_t i = 0; i < group_count; i++)
        print_decoding(peaks, &device->groups[i], stream);
}

/* ---- the short table ----------------------------------------------------------------------------------------- */

/* The paper's ratio to softmax, in the linear family to linear; 0: it has none. */
static double ratio_of_paper(const bench_group *group, const bench_case *one)
{
    const clmgk_variant base = tool_is_linear(one->desc.variant) ? CLMGK_VARIANT_LINEAR : CLMGK_VARIANT_SOFTMAX;
    const bench_figure *const figure = figure_of(group, one);
    const bench_figure *const baseline = bench_find_figure(group->shape, base, group->shape->heads);
    return figure && baseline ? figure->seconds / baseline->seconds : 0;
}

static void print_row(const bench_peaks *peaks, const bench_group *group, const bench_case *one, FILE *stream)
{
    const double paper = ratio_of_paper(group, one);
    fprintf(stream, "  %-20s %9.3f", bench_case_label(one).text, one->time_ms.median);
    fprintf(stream, " %6.0f%% %7.2f %7.1f", 100 * (one->time_ms.max - one->time_ms.min) / one->time_ms.median,
            1e-9 * one->flops, bench_gflops(one));
    print_figure(peaks->fma_gflops > 0, 8, 3, bench_fraction_of_peak(peaks, one), stream);
    fprintf(stream, " %7.1f %7.1f", 1e-6 * (double)one->array_bytes, 1e-6 * (double)bench_memory_bytes(one));
    print_ratio(group, one, 7, stream);
    print_figure(paper > 0, 7, 3, paper, stream);
    fprintf(stream, " %10.1f", one->compile_ms);
    print_figure(one->first_cold_ms >= 0, 9, 1, one->first_cold_ms, stream);
    print_figure(one->first_warm_ms >= 0, 9, 1, one->first_warm_ms, stream);
    const char *const note = peaks->fma_gflops > 0 ? bench_peak_note(peaks, one) : NULL;
    fprintf(stream, "%s%s\n", note ? "  " : "", note ? note : "");
}

static bool is_measured(const bench_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        if (group->cases[i].repetitions > 0 || bench_has_failed(&group->cases[i]))
            return true;
    }
    return false;
}

void bench_print_table(const bench_device *device, size_t group_count, FILE *stream)
{
    fprintf(stream, "  %-20s %9s %7s %7s %7s %7s %7s %7s %6s %6s %10s %8s %8s\n", "variant, heads", "median ms",
            "spread", "GFLOP", "GFLOP/s", "of peak", "MB", "mem. MB", "ratio", "paper", "compile ms", "1st cold",
            "1st warm");
    for (size_t i = 0; i < group_count; i++) {
        const bench_group *const group = &device->groups[i];
        if (!is_measured(group))
            continue;
        print_sizes(group, stream);
        if (group->batch != group->shape->batch)
            fprintf(stream, " (the paper's batch: %" PRId64 ")", group->shape->batch);
        fputc('\n', stream);
        for (size_t c = 0; c < group->count; c++) {
            if (group->cases[c].repetitions > 0)
                print_row(&device->peaks, group, &group->cases[c], stream);
        }
        print_failures(group, stream);
    }
    if (device->peaks.fma_gflops > 0) {
        print_rates_line(device, stream);
        fputc('\n', stream);
    }
}
