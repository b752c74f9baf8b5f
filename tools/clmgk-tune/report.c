/* SPDX-License-Identifier: Apache-2.0 */
/* What was found, for people and for programs. */
#include "tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

void tune_case_key(const bench_case *item, char *key, size_t size)
{
    const clmgk_attention_desc *d = &item->desc;
    char features[48] = "";
    if (tool_is_linear(d->variant))
        snprintf(features, sizeof(features), " %s-%" PRId64 " state%d", clmgk_feature_name(d->feature), d->features,
                 (int)d->use_state);
    snprintf(key, size,
             "%s %s %s b%" PRId64 " h%" PRId64 " g%" PRId64 " m%" PRId64 " n%" PRId64 " s%" PRId64 " d%" PRId64
             " e%" PRId64 " causal%d window%d,%" PRId64 ",%" PRId64 " packed%" PRId64 " bias%d,%" PRId64 ",%" PRId64
             ",%" PRId64 ",%" PRId64 " alibi%d sinks%d dropout%g gradients%" PRIu32 "%s",
             bench_pass_name(item->pass), clmgk_variant_name(d->variant), tool_dtypes_text(d).text, d->batch, d->heads,
             d->kv_heads, d->components, d->length, d->length_k, d->head_size, d->value_size, (int)d->causal,
             (int)d->use_window, d->window_left, d->window_right, d->sequences, (int)d->use_bias, d->bias_batch,
             d->bias_heads, d->bias_length, d->bias_length_k, (int)d->use_alibi, (int)d->use_sinks, d->dropout,
             d->gradients, features);
}

void tune_case_name(const bench_case *item, char *name, size_t size)
{
    snprintf(name, size, "%s %s", item->shape->name ? item->shape->name : "given", bench_case_label(item).text);
}

void tune_report_free(tune_report *report)
{
    if (report->groups)
        bench_free_groups(&report->request, report->groups);
    free(report->results);
    *report = (tune_report){.results = NULL};
}

/* ---- figures ---------------------------------------------------------------------------------------------------- */

static bool is_measured(const tune_result *result)
{
    return result->outcome != TUNE_UNMEASURED && result->outcome != TUNE_REFUSED;
}

static bool is_faster(tune_outcome outcome)
{
    return outcome == TUNE_FASTER || outcome == TUNE_KNOWN_FASTER;
}

typedef struct summary {
    size_t measured, faster, unmeasured, refused;
    double speedup; /* geometric mean of default / tuned */
    double share;   /* of all legal points of the measured cases, of the engines that were compared */
} summary;

static summary summarise(const tune_report *report)
{
    summary sum = {.speedup = 1};
    double logs = 0, space = 0;
    for (size_t i = 0; i < report->result_count; i++) {
        const tune_result *result = &report->results[i];
        sum.measured += is_measured(result);
        sum.faster += is_faster(result->outcome);
        sum.unmeasured += result->outcome == TUNE_UNMEASURED;
        sum.refused += result->outcome == TUNE_REFUSED;
        if (is_measured(result)) {
            logs -= log(result->ratio);
            space += result->space;
        }
    }
    if (sum.measured) {
        sum.speedup = exp(logs / (double)sum.measured);
        sum.share = (double)(report->counts.tried - report->clblast.tried) / space;
    }
    return sum;
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static const char *outcome_name(tune_outcome outcome)
{
    static const char *const names[] = {"unmeasured", "refused", "default", "faster", "default", "faster"};
    return names[outcome];
}

static void print_result(const tune_result *result, FILE *stream)
{
    char name[96];
    tune_case_name(result->item, name, sizeof(name));
    fprintf(stream, "  %-44s", name);
    if (result->outcome == TUNE_REFUSED)
        fprintf(stream, " not run here: %s\n", result->message);
    else
        fprintf(stream, " %10.3f %10.3f %+7.1f %%  %-5s %s\n", result->default_ms, result->tuned_ms,
                100 * (result->ratio - 1), result->engine,
                is_faster(result->outcome) && result->parameters[0] ? result->parameters : "defaults");
}

static void print_products(const tune_report *report, FILE *stream)
{
    size_t unmeasured = 0;
    for (size_t i = 0; i < report->product_count; i++) {
        const tune_product *product = &report->products[i];
        unmeasured += !product->measured;
        if (!product->measured)
            continue;
        fprintf(stream, "  product %s:", tool_product_name(&product->shape).text);
        for (size_t p = 0; p < product->provider_count; p++) {
            if (product->provider[p].ms > 0)
                fprintf(stream, " %s%s %.3f ms, %.1f GFLOP/s;", p == product->chosen ? "*" : "",
                        product->provider[p].name, product->provider[p].ms,
                        tool_product_gflops(&product->shape, product->provider[p].ms));
        }
        fprintf(stream, " * is taken");
        if (product->tried)
            fprintf(stream, "; matrix: of %zu tried %s", product->tried,
                    product->parameters[0] ? product->parameters : "the defaults are fastest");
        fprintf(stream, "\n");
    }
    if (unmeasured)
        fprintf(stream, "  %zu of %zu products not measured\n", unmeasured, report->product_count);
    if (report->product_count && is_faster(report->clblast.outcome))
        fprintf(stream, "  CLBlast: %+.1f %% with %s\n", 100 * (report->clblast.ratio - 1), report->clblast.parameters);
    else if (report->product_count && report->clblast.outcome != TUNE_UNMEASURED)
        fprintf(stream, "  CLBlast: nothing faster than what is in use, of %zu tried\n", report->clblast.tried);
}

void tune_print_report(const tune_report *report, FILE *stream)
{
    const summary sum = summarise(report);
    const tune_counts *counts = &report->counts;
    fprintf(stream, "%s\n%s, driver %s, %" PRIu32 " compute units\n", report->device.name, report->device.platform,
            report->device.driver, report->device.compute_units);
    if (sum.measured)
        fprintf(stream, "  %-44s %10s %10s %9s  %-5s %s\n", "", "default ms", "tuned ms", "change", "engine",
                "parameters");
    for (size_t i = 0; i < report->result_count; i++)
        if (report->results[i].outcome != TUNE_UNMEASURED)
            print_result(&report->results[i], stream);
    print_products(report, stream);
    fprintf(stream, "%zu %s: %zu faster than the defaults, %zu at the defaults, %zu not run here, %zu not measured\n",
            report->result_count, tool_plural(report->result_count, "case", "cases"), sum.faster,
            sum.measured - sum.faster, sum.refused, sum.unmeasured);
    fprintf(stream, "geometric mean of the gain: %.1f %%\n", 100 * (sum.speedup - 1));
    fprintf(stream,
            "%zu %s in %.0f s, %.2g of all there are: %zu stopped early, %zu failed, %zu hung, %zu crashed, "
            "%zu wrong, %zu not confirmed\n",
            counts->tried, tool_plural(counts->tried, "candidate", "candidates"), report->spent_s, sum.share,
            counts->slow, counts->failed, counts->hung, counts->died, counts->wrong, counts->unconfirmed);
    if (sum.measured && !sum.faster)
        fprintf(stream, "Nothing beat the defaults beyond noise.\n");
    if (sum.unmeasured)
        fprintf(stream, "The budget was spent before all cases had their turn: go on with --resume.\n");
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *result_json(const tune_result *result)
{
    const clmgk_attention_desc *d = &result->item->desc;
    json_t *object = json_pack("{s:s?, s:s, s:s, s:s}", "shape", result->item->shape->name, "variant",
                               clmgk_variant_name(d->variant), "dtype", clmgk_dtype_name(d->dtype), "pass",
                               bench_pass_name(result->item->pass));
    object = tool_json_merge(object, tool_json_own_dtypes(d));
    object = tool_json_merge(object, tool_json_merge(tool_json_sizes(d), tool_json_features(d)));
    json_t *rest =
        is_measured(result)
            ? json_pack("{s:s, s:s, s:f, s:f, s:f}", "engine", result->engine, "parameters", result->parameters,
                        "default_ms", result->default_ms, "tuned_ms", result->tuned_ms, "ratio", result->ratio)
            : json_pack("{s:o}", "message",
                        result->outcome == TUNE_REFUSED ? tool_json_text(result->message) : json_null());
    json_t *state =
        json_pack("{s:s, s:I}", "outcome", outcome_name(result->outcome), "tried", (json_int_t)result->tried);
    return tool_json_merge(tool_json_merge(object, state), rest);
}

static json_t *product_json(const tune_product *product)
{
    json_t *times = json_object();
    for (size_t p = 0; times && p < product->provider_count; p++)
        json_object_set_new(times, product->provider[p].name,
                            product->provider[p].ms > 0 ? json_real(product->provider[p].ms) : json_null());
    const tool_product *const shape = &product->shape;
    return json_pack(
        "{s:s, s:s?, s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:f, s:s?, s:o}", "dtype", clmgk_dtype_name(shape->dtype),
        "precision", shape->precision != CLMGK_PRECISION_EXACT ? clmgk_precision_name(shape->precision) : NULL,
        "parameters", product->parameters, "tried", (json_int_t)product->tried, "m", (json_int_t)product->shape.m, "n",
        (json_int_t)product->shape.n, "k", (json_int_t)product->shape.k, "transpose_a", (int)product->shape.transpose_a,
        "transpose_b", (int)product->shape.transpose_b, "ratio", product->ratio, "provider",
        product->measured ? product->provider[product->chosen].name : NULL, "ms", times);
}

/* null: no products were asked for, or CLBlast does none here. */
static json_t *clblast_json(const tune_report *report)
{
    const tune_clblast *clblast = &report->clblast;
    if (clblast->outcome == TUNE_UNMEASURED || clblast->outcome == TUNE_REFUSED)
        return json_null();
    return json_pack("{s:s, s:s, s:f, s:I}", "outcome", outcome_name(clblast->outcome), "parameters",
                     clblast->parameters, "ratio", clblast->ratio, "tried", (json_int_t)clblast->tried);
}

json_t *tune_report_json(const tune_report *report)
{
    const summary sum = summarise(report);
    const tune_counts *counts = &report->counts;
    json_t *cases = json_array();
    for (size_t i = 0; i < report->result_count; i++)
        tool_json_append(&cases, result_json(&report->results[i]));
    json_t *products = json_array();
    for (size_t i = 0; i < report->product_count; i++)
        tool_json_append(&products, product_json(&report->products[i]));
    return json_pack("{s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:f, s:f, s:f}",
                     "name", tool_json_text(report->device.name), "platform", tool_json_text(report->device.platform),
                     "driver", tool_json_text(report->device.driver), "compute_units",
                     (json_int_t)report->device.compute_units, "cases", cases, "products", products, "clblast",
                     clblast_json(report), "candidates", "tried", (json_int_t)counts->tried, "stopped_early",
                     (json_int_t)counts->slow, "failed", (json_int_t)counts->failed, "hung", (json_int_t)counts->hung,
                     "crashed", (json_int_t)counts->died, "wrong", (json_int_t)counts->wrong, "not_confirmed",
                     (json_int_t)counts->unconfirmed, "share_of_space", sum.share, "geometric_mean_speedup",
                     sum.speedup, "seconds", report->spent_s);
}
