/* SPDX-License-Identifier: Apache-2.0 */
/* What was found, for people and for programs. */
#include "tune.h"

#include <inttypes.h>
#include <math.h>

#define COUNT_NAME(name, text) text,
static const char *const count_names[TUNE_COUNT_COUNT] = {TUNE_COUNTS(COUNT_NAME)};
static const char *const outcome_names[] = {"unmeasured", "refused", "default", "faster"};

static bool is_measured(const tune_case *c)
{
    return c->outcome == TUNE_DEFAULT || c->outcome == TUNE_FASTER;
}

/* Of the cases of attention: how many there are of each outcome, and the geometric mean of default / tuned. */
static double summarise(const tune_report *report, size_t outcomes[TUNE_FASTER + 1])
{
    double logs = 0;
    for (const tune_case *c = report->cases; c < report->cases + report->count; c++) {
        outcomes[c->outcome] += c->kind == TUNE_ATTENTION;
        logs -= c->kind == TUNE_ATTENTION && is_measured(c) ? log(c->ratio) : 0;
    }
    return exp(logs / fmax(1, (double)(outcomes[TUNE_DEFAULT] + outcomes[TUNE_FASTER])));
}

void tune_print_case(const tune_case *c, FILE *stream)
{
    if (c->outcome == TUNE_REFUSED)
        fprintf(stream, "%s: not run here: %s", c->name, c->message);
    else if (c->outcome == TUNE_UNMEASURED)
        fprintf(stream, "%s: no time to compare the defaults with anything", c->name);
    else if (c->outcome == TUNE_FASTER)
        fprintf(stream, "%s: %.3f -> %.3f ms (%.1f %%) with %s %s", c->name, c->default_ms, c->ratio * c->default_ms,
                100 * (c->ratio - 1), c->choice, c->parameters);
    else
        fprintf(stream, "%s: %.3f ms, nothing faster than the defaults", c->name, c->default_ms);
}

void tune_print_report(const tune_report *report)
{
    size_t n[TUNE_FASTER + 1] = {0};
    const double speedup = summarise(report, n);
    printf("%s\n%s, driver %s, %" PRIu32 " compute units\n", report->device.name, report->device.platform,
           report->device.driver, report->device.compute_units);
    for (const tune_case *c = report->cases; c < report->cases + report->count; c++) {
        printf("  ");
        tune_print_case(c, stdout);
        putchar('\n');
    }
    printf("cases of attention: %zu faster than the defaults, %zu at the defaults, %zu not run here, %zu not measured\n"
           "geometric mean of the gain: %.1f %%\n%.0f s; candidates:",
           n[TUNE_FASTER], n[TUNE_DEFAULT], n[TUNE_REFUSED], n[TUNE_UNMEASURED], 100 * (speedup - 1), report->spent_s);
    for (size_t i = 0; i < TUNE_COUNT_COUNT; i++)
        printf("%s %zu %s", i > 0 ? "," : "", report->counts[i], count_names[i]);
    puts(n[TUNE_UNMEASURED] > 0 ? "\nThe budget was spent before all cases had their turn: go on with --resume." : "");
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *attention_json(const tune_case *c)
{
    json_t *result =
        is_measured(c) ? json_pack("{s:s, s:s, s:f, s:f, s:f}", "engine", c->choice, "parameters", c->parameters,
                                   "default_ms", c->default_ms, "tuned_ms", c->ratio * c->default_ms, "ratio", c->ratio)
                       : json_pack("{s:o}", "message", tool_json_text(c->outcome == TUNE_REFUSED ? c->message : NULL));
    return tool_json_merge(
        tool_json_merge(json_copy(c->what), result),
        json_pack("{s:s, s:I}", "outcome", outcome_names[c->outcome], "tried", (json_int_t)c->tried));
}

static json_t *product_json(const tune_case *c)
{
    json_t *times = json_object();
    for (size_t i = 0; times && i < c->family->count; i++) {
        const tune_candidate *fastest = tune_fastest(&c->search, i);
        json_object_set_new(times, c->family->spaces[i].name,
                            fastest ? json_real(fastest->ratio * c->default_ms) : json_null());
    }
    return tool_json_merge(json_copy(c->what), json_pack("{s:s, s:I, s:f, s:s?, s:o}", "parameters", c->parameters,
                                                         "tried", (json_int_t)c->tried, "ratio", c->ratio, "provider",
                                                         is_measured(c) ? c->choice : NULL, "ms", times));
}

json_t *tune_report_json(const tune_report *report)
{
    json_t *cases = json_array(), *products = json_array(), *clblast = json_null(), *counts = json_object();
    size_t outcomes[TUNE_FASTER + 1] = {0};
    const double speedup = summarise(report, outcomes);
    for (const tune_case *c = report->cases; c < report->cases + report->count; c++) {
        if (c->kind == TUNE_ATTENTION)
            tool_json_append(&cases, attention_json(c));
        else if (c->kind == TUNE_PRODUCT)
            tool_json_append(&products, product_json(c));
        else if (is_measured(c))
            clblast = json_pack("{s:s, s:s, s:f, s:I}", "outcome", outcome_names[c->outcome], "parameters",
                                c->outcome == TUNE_FASTER ? c->parameters : "", "ratio", c->ratio, "tried",
                                (json_int_t)c->tried);
    }
    for (size_t i = 0; counts && i < TUNE_COUNT_COUNT; i++)
        json_object_set_new(counts, count_names[i], json_integer((json_int_t)report->counts[i]));
    return json_pack("{s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:f, s:f}", "name", tool_json_text(report->device.name),
                     "platform", tool_json_text(report->device.platform), "driver",
                     tool_json_text(report->device.driver), "compute_units", (json_int_t)report->device.compute_units,
                     "cases", cases, "products", products, "clblast", clblast, "candidates", counts,
                     "geometric_mean_speedup", speedup, "seconds", report->spent_s);
}
