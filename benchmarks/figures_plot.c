/* SPDX-License-Identifier: Apache-2.0 */
/* A figure as a script of gnuplot. */
#include "figures_text.h"

#include <inttypes.h>

enum { PANEL_WIDTH = 400, PANEL_HEIGHT = 360, TITLE_HEIGHT = 50, LEGEND_PLACE = 36, LEGEND_HEIGHT = 30 };

static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555"};

static const char *axis_label(figure_axis axis)
{
    static const char *const labels[FIGURE_AXES] = {[FIGURE_LENGTH] = "sequence length N",
                                                    [FIGURE_WIDTH] = "model width D",
                                                    [FIGURE_HEADS] = "heads",
                                                    [FIGURE_COMPONENTS] = "keys or global heads M"};
    return labels[axis];
}

static double scale_of(figure_quantity quantity)
{
    return quantity == FIGURE_INFERENCE || quantity == FIGURE_TRAINING ? 1e-9 : 1e-6;
}

static const char *quantity_label(figure_quantity quantity)
{
    switch (quantity) {
    case FIGURE_INFERENCE:
    case FIGURE_TRAINING:
        return "operations / 10^{9}";
    case FIGURE_PARAMETERS:
    case FIGURE_ALL_PARAMETERS:
        return "parameters / 10^{6}";
    default:
        return "MB";
    }
}

static void write_points(const figure_panel *panel, const figure_point *first, const char *name, size_t number,
                         bool measured, FILE *script)
{
    fprintf(script, "$%s%zu << END\n", name, number);
    for (const figure_point *point = first; point < first + panel->at_count; point++) {
        const double scale = panel->ratio || measured ? 1 : scale_of(point->quantity);
        const double drawn = measured ? figure_drawn_measured(point) : figure_drawn(point);
        if (!measured || drawn > 0)
            fprintf(script, "%" PRId64 " %.9g\n", point->at, scale * drawn);
    }
    fputs("END\n", script);
}

static bool is_measured(const figure_panel *panel, const figure_point *first)
{
    for (const figure_point *point = first; point < first + panel->at_count; point++) {
        if (figure_drawn_measured(point) > 0)
            return true;
    }
    return false;
}

static void write_axes(const figure_panel *panel, bool times, FILE *script)
{
    const bool powers = panel->axis != FIGURE_COMPONENTS; /* the places are near powers of 2 */
    const double first = (double)panel->at[0], last = (double)panel->at[panel->at_count - 1];
    fprintf(script, "set title '%s' noenhanced\nset xlabel '%s' offset 0,0.6\n", panel->title, axis_label(panel->axis));
    fputs(powers ? "set logscale x 2\n" : "unset logscale x\n", script);
    fprintf(script, "set xrange [%g:%g]\n", powers ? 0.95 * first : first - 0.2, powers ? 1.05 * last : last + 0.2);
    fputs("set xtics nomirror (", script);
    for (size_t i = 0; i < panel->at_count; i++)
        fprintf(script, "%s%" PRId64, i ? ", " : "", panel->at[i]);
    fputs(")\n", script);
    if (panel->ratio)
        fprintf(script,
                "set ylabel 'part of %s' noenhanced\nset yrange [*:*]\n"
                "set offsets graph 0, 0, 0.05, 0.05\n",
                clmgk_variant_name(panel->baseline));
    else
        fprintf(script, "set ylabel '%s'\nset yrange [0:*]\nunset offsets\n", quantity_label(panel->quantity));
    fputs(times ? "set y2label 'measured, ms'\nset y2tics\nset y2range [0:*]\n" : "unset y2label\nunset y2tics\n",
          script);
}

/* shared_legend: the legend does not tell measured points of several curves apart. */
static void write_panel(const figure_results *results, const figure_panel *panel, bool shared_legend, FILE *script)
{
    bool measured = false;
    for (size_t c = 0; c < panel->curve_count; c++) {
        const figure_point *const first = figure_points(results, panel, &panel->curves[c]);
        write_points(panel, first, "counted", c, false, script);
        write_points(panel, first, "measured", c, true, script);
        measured = measured || is_measured(panel, first);
    }
    const bool times = measured && !panel->ratio;
    write_axes(panel, times, script);
    for (size_t c = 0; c < panel->curve_count; c++) {
        const figure_curve *const curve = &panel->curves[c];
        const char *const colour = colours[c % TOOL_COUNT(colours)];
        fprintf(script, "%s $counted%zu with lines lw 2 dt %zu lc rgb '%s' title '%s' noenhanced", c ? "," : "plot", c,
                c + 1, colour, curve->label);
        if (!is_measured(panel, figure_points(results, panel, curve)))
            continue;
        fprintf(script, ", $measured%zu with points%s pt 7 ps 0.7 lc rgb '%s'", c, times ? " axes x1y2" : "", colour);
        if (shared_legend)
            fputs(" notitle", script);
        else
            fprintf(script, " title '%s, measured' noenhanced", curve->label);
    }
    fputs(shared_legend ? ", NaN with points pt 7 ps 0.7 lc rgb '#000000' title legend_of_points\n" : "\n", script);
}

/* Whether one legend serves all panels. */
static bool has_shared_legend(const figure *one)
{
    for (size_t p = 1; p < one->panel_count; p++) {
        if (one->panels[p].curves != one->panels[0].curves)
            return false;
    }
    return one->panel_count > 1;
}

static bool any_measured(const figure_results *results, const figure *one)
{
    for (const figure_panel *panel = one->panels; panel < one->panels + one->panel_count; panel++) {
        for (size_t c = 0; c < panel->curve_count; c++) {
            if (is_measured(panel, figure_points(results, panel, &panel->curves[c])))
                return true;
        }
    }
    return false;
}

void figure_write_script(const figure_results *results, const figure *one, const char *device, FILE *script)
{
    const char *const where = device && any_measured(results, one) ? device : NULL;
    const size_t rows = (one->panel_count + one->columns - 1) / one->columns;
    const bool shared = has_shared_legend(one);
    const size_t height = rows * PANEL_HEIGHT + TITLE_HEIGHT + (shared ? LEGEND_HEIGHT : 0);
    fprintf(script,
            "set terminal svg size %zu,%zu dynamic font 'sans-serif,12' background rgb 'white'\n"
            "set multiplot layout %zu,%zu title \"%s%s%s%s\" noenhanced font ',15'\n"
            "set grid lc rgb '#dddddd'\n"
            "set ytics nomirror\n"
            "set border 3\n"
            "set key below horizontal\n",
            one->columns * PANEL_WIDTH, height, rows, one->columns, one->title, where ? "; measured: " : "",
            where ? where : "", shared ? "\\n " : "");
    if (shared)
        fprintf(script, "set key at screen 0.5,%.4f center top vertical maxrows 1\nlegend_of_points = '%s'\n",
                1.0 - (double)LEGEND_PLACE / (double)height, any_measured(results, one) ? "points: measured" : "");
    for (size_t p = 0; p < one->panel_count; p++) {
        write_panel(results, &one->panels[p], shared, script);
        if (shared)
            fputs("unset key\n", script);
    }
}
