/* SPDX-License-Identifier: Apache-2.0 */
/* The sentences that end a device's tables: what was fastest, by how much, beside the paper. */
#include "bench.h"

#include <inttypes.h>
#include <math.h>

/* Times of a variant relative to softmax with the baseline number of heads, over the sizes that have both. */
typedef struct ratios {
    size_t count, fastest; /* sizes; and those at which no other variant was faster */
    double logs, least, most;
} ratios;

static bool is_fastest(const bench_options *options, const bench_group *group, size_t pass, const bench_case *one)
{
    for (size_t c = 0; c < options->request.variant_count; c++) {
        const bench_case *other = bench_case_of(&options->request, group, pass, c);
        if (other->repetitions && other->time_ms.median < one->time_ms.median)
            return false;
    }
    return true;
}

static ratios collect(const bench_options *options, const bench_device *device, size_t pass, size_t c)
{
    ratios found = {.least = INFINITY};
    for (size_t i = 0; i < options->request.shape_count; i++) {
        const bench_group *group = &device->groups[i];
        const bench_case *one = bench_case_of(&options->request, group, pass, c);
        const bench_case *baseline = bench_baseline(group, one);
        if (!one->repetitions || !baseline || baseline == one)
            continue;
        const double ratio = one->time_ms.median / baseline->time_ms.median;
        found.logs += log(ratio);
        found.least = fmin(found.least, ratio);
        found.most = fmax(found.most, ratio);
        found.fastest += is_fastest(options, group, pass, one);
        found.count++;
    }
    return found;
}

static void print_name(const bench_options *options, size_t c, FILE *stream)
{
    const bench_variant *variant = &options->request.variants[c];
    fputs(clmgk_variant_name(variant->variant), stream);
    if (variant->heads == BENCH_HEADS_HALF)
        fputs(" with half the heads", stream);
    else if (variant->heads != BENCH_HEADS_OF_SHAPE)
        fprintf(stream, " with %" PRId64 " heads", variant->heads);
}

static void print_variant(const bench_options *options, const bench_device *device, size_t pass, size_t c, bool *begun,
                          FILE *stream)
{
    const ratios found = collect(options, device, pass, c);
    if (found.count == 0)
        return;
    if (!*begun && options->verbose)
        fputs("\nIn short\n", stream);
    *begun = true;
    fprintf(stream, "  %s: ", bench_pass_name(options->request.passes[pass]));
    print_name(options, c, stream);
    fprintf(stream, " takes %.2f of softmax's time", exp(found.logs / (double)found.count));
    if (found.count > 1)
        fprintf(stream, " (%.2f to %.2f), fastest at %zu of %zu sizes", found.least, found.most, found.fastest,
                found.count);
    fputs(".\n", stream);
}

/* Of the forward pass, which the paper's figures are of. */
static void print_paper(const bench_options *options, const bench_group *group, FILE *stream)
{
    const bench_figure *base = bench_find_figure(group->shape, CLMGK_VARIANT_SOFTMAX, group->shape->heads);
    for (size_t c = 0; base && options->request.passes[0] == BENCH_FORWARD && c < options->request.variant_count; c++) {
        const bench_case *one = bench_case_of(&options->request, group, 0, c);
        const bench_case *baseline = bench_baseline(group, one);
        const bench_figure *figure = bench_find_figure(group->shape, one->desc.variant, one->desc.heads);
        if (!figure || !baseline || baseline == one || !one->repetitions || tool_is_linear(one->desc.variant))
            continue;
        fprintf(stream, "  Paper, %s, on its GPU: %s takes %.2f of softmax's time; here %.2f.\n",
                bench_shape_name(group->shape), clmgk_variant_name(one->desc.variant), figure->seconds / base->seconds,
                one->time_ms.median / baseline->time_ms.median);
    }
}

bool bench_was_disturbed(const bench_case *one)
{
    return one->repetitions > 0 &&
           (one->time_ms.median > 1.1 * one->time_ms.min || one->time_ms.max > 2 * one->time_ms.median);
}

/* A disturbed machine in words, and the way out. */
static void print_disturbed(const bench_options *options, const bench_device *device, FILE *stream)
{
    size_t measured = 0, disturbed = 0;
    double above = 1, longest = 1;
    for (size_t i = 0; i < options->request.shape_count; i++) {
        for (size_t c = 0; c < device->groups[i].count; c++) {
            const bench_case *const one = &device->groups[i].cases[c];
            measured += one->repetitions > 0;
            if (!bench_was_disturbed(one))
                continue;
            disturbed++;
            above = fmax(above, one->time_ms.median / one->time_ms.min);
            longest = fmax(longest, one->time_ms.max / one->time_ms.median);
        }
    }
    if (disturbed)
        fprintf(
            stream,
            "  The machine was busy in %zu of %zu %s (median / shortest up to %.1f, longest / median up to %.1f): end"
            " other programs, or take --seconds %g.\n",
            disturbed, measured, tool_plural(measured, "case", "cases"), above, longest, 4 * options->seconds);
}

void bench_print_closing(const bench_options *options, const bench_device *device, FILE *stream)
{
    bool begun = false;
    for (size_t pass = 0; pass < options->request.pass_count; pass++)
        for (size_t c = 0; c < options->request.variant_count; c++)
            print_variant(options, device, pass, c, &begun, stream);
    for (size_t i = 0; options->verbose && i < options->request.shape_count; i++)
        print_paper(options, &device->groups[i], stream);
    print_disturbed(options, device, stream);
}
