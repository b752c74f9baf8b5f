/* SPDX-License-Identifier: Apache-2.0 */
/* What was found, for people and for programs. */
#include "tune.h"

#include <inttypes.h>
#include <math.h>

static const char *outcome_name(tune_outcome outcome)
{
    static const char *const names[] = {"unmeasured", "refused", "default", "faster"};
    return names[outcome];
}

static bool is_measured(const tune_case *c)
{
    return c->outcome == TUNE_DEFAULT || c->outcome == TUNE_FASTER;
}

typedef struct summary {
    size_t cases, outcomes[TUNE_FASTER + 1];
    double speedup; /* geometric mean of default / tuned */
} summary;

/* Of attention. */
static summary summarise(const tune_report *report)
{
    summary sum = {.speedup = 1};
    double logs = 0;
    for (size_t i = 0; i < report->count; i++) {
        const tune_case *c = &report->cases[i];
        if (c->kind != TUNE_ATTENTION)
            continue;
        sum.cases++;
        sum.outcomes[c->outcome]++;
        logs -= is_measured(c) ? log(c->ratio) : 0;
    }
    const size_t measured = sum.outcomes[TUNE_DEFAULT] + sum.outcomes[TUNE_FASTER];
    sum.speedup = measured > 0 ? exp(logs / (double)measured) : 1;
    return sum;
}

void tune_print_report(const tune_report *report, FILE *stream)
{
    const summary sum = summarise(report);
    fprintf(stream, "%s\n%s, driver %s, %" PRIu32 " compute units\n", report->device.name, report->device.platform,
            report->device.driver, report->device.compute_units);
    fprintf(stream, "  %-44s %10s %10s %9s  %-8s %s\n", "", "default ms", "tuned ms", "change", "choice", "parameters");
    for (size_t i = 0; i < report->count; i++) {
        const tune_case *c = &report->cases[i];
        if (is_measured(c))
            fprintf(stream, "  %-44s %10.3f %10.3f %+7.1f %%  %-8s %s\n", c->name, c->default_ms, c->tuned_ms,
                    100 * (c->ratio - 1), c->choice,
                    c->outcome == TUNE_FASTER && c->parameters[0] ? c->parameters : "defaults");
        else if (c->outcome == TUNE_REFUSED)
            fprintf(stream, "  %-44s not run here: %s\n", c->name, c->message);
    }
    fprintf(stream,
            "%zu %s of attention: %zu faster than the defaults, %zu at the defaults, %zu not run here, %zu not "
            "measured\n",
            sum.cases, tool_plural(sum.cases, "case", "cases"), sum.outcomes[TUNE_FASTER], sum.outcomes[TUNE_DEFAULT],
            sum.outcomes[TUNE_REFUSED], sum.outcomes[TUNE_UNMEASURED]);
    fprintf(stream, "geometric mean of the gain: %.1f %%\n", 100 * (sum.speedup - 1));
    fprintf(stream,
            "%zu %s in %.0f s: %zu stopped early, %zu failed, %zu hung, %zu crashed, %zu wrong, %zu not "
            "confirmed\n",
            report->counts.tried, tool_plural(report->counts.tried, "candidate", "candidates"), report->spent_s,
            report->counts.slow, report->counts.failed, report->counts.hung, report->counts.died, report->counts.wrong,
            report->counts.unconfirmed);
    if (sum.outcomes[TUNE_UNMEASURED] > 0)
        fprintf(stream, "The budget was spent before all cases had their turn: go on with --resume.\n");
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *attention_json(const tune_case *c)
{
    const clmgk_attention_desc *d = &c->item->desc;
    json_t *object =
        json_pack("{s:s?, s:s, s:s, s:s, s:s, s:I}", "shape", c->item->shape->name, "variant",
                  clmgk_variant_name(d->variant), "dtype", clmgk_dtype_name(d->dtype), "pass",
                  bench_pass_name(c->item->pass), "outcome", outcome_name(c->outcome), "tried", (json_int_t)c->tried);
    object = tool_json_merge(object, tool_json_own_dtypes(d));
    object = tool_json_merge(object, tool_json_merge(tool_json_sizes(d), tool_json_features(d)));
    if (!is_measured(c))
        return tool_json_merge(
            object,
            json_pack("{s:o}", "message", c->outcome == TUNE_REFUSED ? tool_json_text(c->message) : json_null()));
    return tool_json_merge(object,
                           json_pack("{s:s, s:s, s:f, s:f, s:f}", "engine", c->choice, "parameters", c->parameters,
                                     "default_ms", c->default_ms, "tuned_ms", c->tuned_ms, "ratio", c->ratio));
}

static json_t *product_json(const tune_report *report, const tune_case *c)
{
    const tool_product *p = &c->product;
    json_t *times = json_object();
    for (size_t i = 0; times && i < c->place.count; i++) {
        const tune_candidate *fastest = tune_fastest(&report->measured, &c->place, i);
        json_object_set_new(times, c->place.spaces[i].name,
                            fastest ? json_real(fastest->ratio * c->default_ms) : json_null());
    }
    return json_pack("{s:s, s:s?, s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:f, s:s?, s:o}", "dtype",
                     clmgk_dtype_name(p->dtype), "precision",
                     p->precision != CLMGK_PRECISION_EXACT ? clmgk_precision_name(p->precision) : NULL, "parameters",
                     c->parameters, "tried", (json_int_t)c->tried, "m", (json_int_t)p->m, "n", (json_int_t)p->n, "k",
                     (json_int_t)p->k, "transpose_a", (int)p->transpose_a, "transpose_b", (int)p->transpose_b, "ratio",
                     c->ratio, "provider", is_measured(c) ? c->choice : NULL, "ms", times);
}

json_t *tune_report_json(const tune_report *report)
{
    json_t *cases = json_array(), *products = json_array(), *clblast = json_null();
    for (size_t i = 0; i < report->count; i++) {
        const tune_case *c = &report->cases[i];
        if (c->kind == TUNE_ATTENTION)
            tool_json_append(&cases, attention_json(c));
        else if (c->kind == TUNE_PRODUCT)
            tool_json_append(&products, product_json(report, c));
        else if (is_measured(c))
            clblast = json_pack("{s:s, s:s, s:f, s:I}", "outcome", outcome_name(c->outcome), "parameters",
                                c->outcome == TUNE_FASTER ? c->parameters : "", "ratio", c->ratio, "tried",
                                (json_int_t)c->tried);
    }
    return json_pack("{s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:f, s:f}", "name",
                     tool_json_text(report->device.name), "platform", tool_json_text(report->device.platform), "driver",
                     tool_json_text(report->device.driver), "compute_units", (json_int_t)report->device.compute_units,
                     "cases", cases, "products", products, "clblast", clblast, "candidates", "tried",
                     (json_int_t)report->counts.tried, "stopped_early", (json_int_t)report->counts.slow, "failed",
                     (json_int_t)report->counts.failed, "hung", (json_int_t)report->counts.hung, "crashed",
                     (json_int_t)report->counts.died, "wrong", (json_int_t)report->counts.wrong, "not_confirmed",
                     (json_int_t)report->counts.unconfirmed, "geometric_mean_speedup", summarise(report).speedup,
                     "seconds", report->spent_s);
}
