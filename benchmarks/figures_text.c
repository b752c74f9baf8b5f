/* SPDX-License-Identifier: Apache-2.0 */
/* The figures' curves as a table for people, as CSV and as an object. */
#include "figures_text.h"

#include <inttypes.h>
#include <stdlib.h>

static const char *measured_unit(figure_quantity quantity)
{
    return quantity == FIGURE_INFERENCE_MEMORY || quantity == FIGURE_TRAINING_MEMORY ? "bytes" : "ms";
}

static tool_exit count_all(figure_point *points, size_t *count, tool_error *error)
{
    *count = 0;
    for (const figure *one = bench_figures; one < bench_figures + bench_figure_count; one++) {
        for (const figure_panel *panel = one->panels; panel < one->panels + one->panel_count; panel++) {
            for (const figure_curve *curve = panel->curves; curve < panel->curves + panel->curve_count; curve++) {
                for (size_t i = 0; i < panel->at_count; i++, (*count)++) {
                    if (points)
                        TOOL_TRY(figure_count_point(panel, curve, i, &points[*count], error));
                }
            }
        }
    }
    return TOOL_DONE;
}

tool_exit figure_open(figure_results *results, tool_error *error)
{
    size_t count = 0;
    *results = (figure_results){.points = NULL};
    TOOL_TRY(count_all(NULL, &count, error));
    results->points = calloc(count, sizeof(*results->points));
    TOOL_TRY(tool_check_memory(results->points, "the figures", error));
    TOOL_TRY(count_all(results->points, &results->count, error));
    return figure_count_claims(results->claims, error);
}

void figure_close(figure_results *results)
{
    free(results->points);
    *results = (figure_results){.points = NULL};
}

const figure_point *figure_points(const figure_results *results, const figure_panel *panel, const figure_curve *curve)
{
    const figure_point *point = results->points;
    while (point->panel != panel || point->curve != curve)
        point++;
    return point;
}

/* ---- for people ------------------------------------------------------------------------------------------------ */

static void print_curve(const figure_results *results, const figure_panel *panel, const figure_curve *curve,
                        FILE *stream)
{
    const figure_point *const first = figure_points(results, panel, curve), *const last = first + panel->at_count - 1;
    fprintf(stream, "    %-24s %11.4g .. %-11.4g", curve->label, figure_drawn(first), figure_drawn(last));
    for (const figure_point *point = first; point <= last; point++) {
        const double measured = figure_drawn_measured(point);
        if (measured > 0 && panel->ratio)
            fprintf(stream, "  at %" PRId64 ": %.3f, measured %.3f", point->at, figure_drawn(point), measured);
        else if (measured > 0)
            fprintf(stream, "  at %" PRId64 ": %.3g, measured %.3g %s", point->at, figure_drawn(point), measured,
                    measured_unit(point->quantity));
    }
    fputc('\n', stream);
}

static void print_panel(const figure_results *results, const figure_panel *panel, FILE *stream)
{
    fprintf(stream, "  %s (%s, %s)", panel->title, panel->model->name, figure_quantity_name(panel->quantity));
    fprintf(stream, ": %s %" PRId64 " .. %" PRId64, figure_axis_name(panel->axis), panel->at[0],
            panel->at[panel->at_count - 1]);
    if (panel->ratio)
        fprintf(stream, "; parts of %s", clmgk_variant_name(panel->baseline));
    fputc('\n', stream);
    for (size_t c = 0; c < panel->curve_count; c++)
        print_curve(results, panel, &panel->curves[c], stream);
}

void figure_print(const figure_results *results, FILE *stream)
{
    fputs("Operations, parameters and memory, counted as the papers count them (clmgk/counts.h).\n", stream);
    for (const figure *one = bench_figures; one < bench_figures + bench_figure_count; one++) {
        fprintf(stream, "\n%s: %s\n", one->name, one->title);
        for (size_t p = 0; p < one->panel_count; p++)
            print_panel(results, &one->panels[p], stream);
    }
    fputs("\nNumbers that the papers print\n", stream);
    for (const figure_claim *claim = results->claims; claim < results->claims + FIGURE_CLAIMS; claim++)
        fprintf(stream, "  %s: %s: %s%g, counted %.4g %s\n", claim->where, claim->what,
                claim->at_least ? "more than " : "", claim->printed, claim->counted, claim->unit);
}

/* ---- CSV -------------------------------------------------------------------------------------------------------- */

static void write_setting(const figure_setting *own, FILE *stream)
{
    fprintf(stream, "%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64,
            clmgk_variant_name(own->variant), own->heads, own->components, own->width, own->head_size, own->length,
            own->batch * own->model->sequences);
}

static void write_row(const figure *one, const figure_point *point, FILE *stream)
{
    const figure_panel *const panel = point->panel;
    fprintf(stream, "%s,\"%s\",\"%s\",%s,%s,%s,%" PRId64 ",", one->name, panel->title, point->curve->label,
            panel->model->name, figure_quantity_name(point->quantity), figure_axis_name(panel->axis), point->at);
    write_setting(&point->own, stream);
    fprintf(stream, ",%.0f,%s,%" PRId64 ",%.0f,%.9g", point->value, clmgk_variant_name(point->baseline.variant),
            point->baseline.heads, point->baseline_value, point->value / point->baseline_value);
    if (point->measured > 0)
        fprintf(stream, ",%.6g,%.6g,%s\n", point->measured, point->baseline_measured, measured_unit(point->quantity));
    else
        fputs(",,,\n", stream);
}

void figure_write_csv(const figure_results *results, FILE *stream)
{
    const figure_point *point = results->points;
    fputs("figure,panel,curve,model,quantity,axis,at,variant,heads,components,width,head_size,length,batch,value,"
          "baseline_variant,baseline_heads,baseline_value,ratio,measured,baseline_measured,measured_unit\n",
          stream);
    for (const figure *one = bench_figures; one < bench_figures + bench_figure_count; one++) {
        for (const figure_panel *panel = one->panels; panel < one->panels + one->panel_count; panel++) {
            for (size_t i = 0; i < panel->curve_count * panel->at_count; i++)
                write_row(one, point++, stream);
        }
    }
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *point_json(const figure_point *point)
{
    const figure_setting *const own = &point->own;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o}", "at", (json_int_t)point->at, "heads",
                     (json_int_t)own->heads, "components", (json_int_t)own->components, "width", (json_int_t)own->width,
                     "head_size", (json_int_t)own->head_size, "length", (json_int_t)own->length, "value", point->value,
                     "baseline_value", point->baseline_value, "ratio", point->value / point->baseline_value, "measured",
                     tool_json_positive(point->measured), "baseline_measured",
                     tool_json_positive(point->baseline_measured));
}

static json_t *curve_json(const figure_results *results, const figure_panel *panel, const figure_curve *curve)
{
    const figure_point *const first = figure_points(results, panel, curve);
    json_t *points = json_array();
    for (size_t i = 0; i < panel->at_count; i++)
        tool_json_append(&points, point_json(&first[i]));
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "curve", curve->label, "variant", clmgk_variant_name(curve->variant),
                     "quantity", figure_quantity_name(first->quantity), "measured_unit", measured_unit(first->quantity),
                     "points", points);
}

static json_t *panel_json(const figure_results *results, const figure_panel *panel)
{
    json_t *curves = json_array();
    for (size_t c = 0; c < panel->curve_count; c++)
        tool_json_append(&curves, curve_json(results, panel, &panel->curves[c]));
    return json_pack("{s:s, s:s, s:s, s:I, s:s, s:I, s:o}", "panel", panel->title, "model", panel->model->name, "axis",
                     figure_axis_name(panel->axis), "batch", (json_int_t)panel->batch * panel->model->sequences,
                     "baseline", clmgk_variant_name(panel->baseline), "layers", (json_int_t)panel->model->layers,
                     "curves", curves);
}

static json_t *figures_json(const figure_results *results)
{
    json_t *figures = json_array();
    for (const figure *one = bench_figures; one < bench_figures + bench_figure_count; one++) {
        json_t *panels = json_array();
        for (size_t p = 0; p < one->panel_count; p++)
            tool_json_append(&panels, panel_json(results, &one->panels[p]));
        tool_json_append(&figures,
                         json_pack("{s:s, s:s, s:o}", "figure", one->name, "title", one->title, "panels", panels));
    }
    return figures;
}

json_t *figure_json(const figure_results *results)
{
    json_t *claims = json_array();
    for (const figure_claim *claim = results->claims; claim < results->claims + FIGURE_CLAIMS; claim++)
        tool_json_append(&claims, json_pack("{s:s, s:s, s:s, s:f, s:b, s:f}", "where", claim->where, "what",
                                            claim->what, "unit", claim->unit, "printed", claim->printed, "at_least",
                                            (int)claim->at_least, "counted", claim->counted));
    return json_pack("{s:s, s:[], s:[], s:[], s:o, s:o}", "clmgk", clmgk_version(), "devices", "cases", "failures",
                     "figures", figures_json(results), "claims", claims);
}
