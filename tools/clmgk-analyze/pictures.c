/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze.h"
#include "gnuplot.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------------------ */

tool_exit analyze_announce(const analyze_arguments *arguments, const char *name, tool_outputs *outputs,
                           analyze_plot *plot, tool_error *error)
{
    const int length =
        snprintf(plot->path, sizeof plot->path, "%s-%s.%s", arguments->plots, name, analyze_formats[arguments->format]);
    if (length < 0 || (size_t)length >= sizeof plot->path)
        return tool_fail(error, TOOL_BAD_INPUT, "--plots: a path of more than %zu bytes", sizeof plot->path - 1);
    return tool_outputs_add(outputs, "plots", plot->path, &plot->place, error);
}

tool_exit analyze_begin_plot(const analyze_arguments *arguments, const analyze_plot *plot, int width, int height,
                             tool_outputs *outputs, FILE **script, FILE **picture, tool_error *error)
{
    TOOL_TRY(tool_outputs_open(outputs, plot->place, picture, error));
    TOOL_TRY(tool_gnuplot_begin(script, error));
    fprintf(*script, "set terminal %s size %d,%d%s\n",
            arguments->format == 0 ? "svg dynamic font 'sans-serif,13' background rgb 'white'"
                                   : "pngcairo font 'sans-serif,10' background rgb 'white'",
            width, height, "");
    fputs("set tics nomirror out\nset border 3\nset style line 1 lc rgb '#0072B2'\n"
          "viridis = '0 \"#440154\", 0.25 \"#3b528b\", 0.5 \"#21918c\", 0.75 \"#5ec962\", 1 \"#fde725\"'\n"
          "eval 'set palette defined ('.viridis.')'\n",
          *script);
    return TOOL_DONE;
}

/* Elements of a heat map that are drawn as rectangles. More are an image, with about a pixel of the screen for each. */
enum { MOST_RECTANGLES = 64 * 64 };

static const char *heat_map(int64_t height, int64_t width)
{
    return height * width <= MOST_RECTANGLES ? "image pixels" : "image";
}

/* Copies an SVG file, and asks viewers for sharp edges: of rectangles, between which the background would show, and of
 * an image's pixels. */
static tool_exit copy_sharp(FILE *from, FILE *to, tool_error *error)
{
    static const char *const edges[][2] = {{"<image ", "style='image-rendering:pixelated' "},
                                           {"<polygon ", "shape-rendering='crispEdges' "}};
    char *line = NULL;
    size_t room = 0;
    rewind(from);
    while (getline(&line, &room, from) >= 0) {
        const char *rest = line + strspn(line, "\t");
        for (int i = 0; i < 2; i++) {
            const size_t length = strlen(edges[i][0]);
            if (strncmp(rest, edges[i][0], length) == 0) {
                fprintf(to, "%s%s", edges[i][0], edges[i][1]);
                rest += length;
            }
        }
        fputs(rest, to);
    }
    free(line);
    return feof(from) ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "the picture cannot be read back");
}

static tool_exit run_sharp(FILE *script, FILE *picture, tool_error *error)
{
    FILE *const raw = tmpfile();
    if (!raw)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "no temporary file: %s", strerror(errno));
    tool_exit status = tool_gnuplot_run(script, raw, error);
    if (status == TOOL_DONE)
        status = copy_sharp(raw, picture, error);
    fclose(raw);
    return status;
}

tool_exit analyze_end_plot(const analyze_arguments *arguments, FILE *script, FILE *picture, tool_error *error)
{
    const tool_exit status =
        arguments->format == 0 ? run_sharp(script, picture, error) : tool_gnuplot_run(script, picture, error);
    fclose(script);
    return status;
}

/* Distance of ticks on an axis of `count` whole numbers: 1, 2 or 5 times a power of 10, for at most eight ticks. */
static int64_t tick_distance(int64_t count)
{
    int64_t power = 1;
    while (count > 80 * power)
        power *= 10;
    return count <= 8 * power ? power : count <= 16 * power ? 2 * power : count <= 40 * power ? 5 * power : 10 * power;
}

/* ---- matrices --------------------------------------------------------------------------------------------------- */

/* The number of items, of `count` in all, that belong to place `n` of `places`. */
static int64_t share_of(int64_t count, int64_t places, int64_t n)
{
    /* place of k: floor(k places / count) */
    return ((n + 1) * count + places - 1) / places - (n * count + places - 1) / places;
}

static double pixel(const analyze_results *results, const double *pixels, int64_t y, int64_t x)
{
    const analyze_observations *const all = &results->observations;
    const int64_t area =
        share_of(results->population->rows, all->height, y) * share_of(results->population->keys, all->width, x);
    return pixels[y * all->width + x] / (double)area;
}

static void write_pixels(const analyze_results *results, const double *pixels, FILE *script)
{
    const analyze_observations *const all = &results->observations;
    for (int64_t y = 0; y < all->height; y++) {
        for (int64_t x = 0; x < all->width; x++)
            fprintf(script, "%s%.4g", x ? " " : "", pixel(results, pixels, y, x));
        fputc('\n', script);
    }
    fputs("END\n", script);
}

/* Extends the range of colours by the pixels that are not 0. */
static void extend_range(const analyze_results *results, const double *pixels, double range[2])
{
    for (int64_t y = 0; y < results->observations.height; y++) {
        for (int64_t x = 0; x < results->observations.width; x++) {
            const double value = pixel(results, pixels, y, x);
            if (value > 0.0) {
                range[0] = fmin(range[0], value);
                range[1] = fmax(range[1], value);
            }
        }
    }
}

/* Panels in rows of at most four. */
static int64_t columns_of(int64_t panels)
{
    return panels < 4 ? panels : 4;
}

static void begin_panels(const analyze_results *results, int64_t panels, const char *title, FILE *script)
{
    const analyze_population *const population = results->population;
    const int64_t columns = columns_of(panels), queries = population->problem.desc.length;
    fprintf(script, "set multiplot layout %" PRId64 ",%" PRId64 " title \"%s", (panels + columns - 1) / columns,
            columns, title);
    if (population->rows < queries)
        fprintf(script, ", %" PRId64 " of %" PRId64 " queries", population->rows, queries);
    if (results->observations.height < population->rows || results->observations.width < population->keys)
        fputs(", each pixel a mean", script);
    fprintf(script,
            "\"\nunset key\nset xlabel 'key'\nset ylabel 'query'\nset border 15\n"
            "set xrange [-0.5:%" PRId64 ".5]\nset yrange [%" PRId64 ".5:-0.5]\nset xtics 0,%" PRId64
            "\nset ytics 0,%" PRId64 "\n",
            population->keys - 1, queries - 1, tick_distance(population->keys), tick_distance(queries));
}

static void draw_panel(const analyze_results *results, const double *pixels, const char *title, FILE *script)
{
    const analyze_observations *const all = &results->observations;
    const double wide = (double)results->population->keys / (double)all->width;
    const double high = (double)results->population->problem.desc.length / (double)all->height;
    fputs("$pixels << END\n", script);
    write_pixels(results, pixels, script);
    fprintf(script, "set title '%s'\nplot $pixels matrix using (($1+0.5)*%g-0.5):(($2+0.5)*%g-0.5):", title, wide,
            high);
    if (all->width > 1 && all->height > 1)
        fprintf(script, "(shown($3)) with %s\n", heat_map(all->height, all->width));
    else /* gnuplot has no images of one row or column */
        fprintf(script, "(%g):(%g):(shown($3)) with boxxyerror fill solid noborder lc palette\n", 0.5 * wide,
                0.5 * high);
}

static int panel_width(int64_t panels)
{
    return (int)(columns_of(panels) * 310 + 40);
}

static int panel_height(int64_t panels)
{
    return (int)((panels + columns_of(panels) - 1) / columns_of(panels) * 280 + 40);
}

/* Weights differ by powers of ten: the colours are those of their logarithms, over at least one and at most four
 * decades. Smaller weights have the darkest colour, weights of 0 none. */
static void write_matrices(const analyze_results *results, int64_t panels, FILE *script)
{
    const analyze_population *const population = results->population;
    double range[2] = {INFINITY, 0.0};
    char title[96];
    for (int64_t m = 0; m < panels; m++)
        extend_range(results, results->observations.member[m].pixels, range);
    snprintf(title, sizeof title, "Attention matrices, %s: weights, white where 0",
             clmgk_variant_name(population->problem.desc.variant));
    begin_panels(results, panels, title, script);
    const double largest = range[1] > 0.0 ? range[1] : 1.0;
    fprintf(script, "shown(x) = x > 0 ? x : NaN\nset logscale cb\nset format cb '10^{%%T}'\nset cbrange [%g:%g]\n",
            fmax(fmin(range[0], 0.1 * largest), 1e-4 * largest), largest);
    for (int64_t m = 0; m < panels; m++) {
        snprintf(title, sizeof title, "sequence %" PRId64 ", head %" PRId64, analyze_batch_of(population, m),
                 analyze_head_of(population, m));
        draw_panel(results, results->observations.member[m].pixels, title, script);
    }
}

static void write_responsibilities(const analyze_results *results, int64_t panels, FILE *script)
{
    const analyze_population *const population = results->population;
    const analyze_observations *const all = &results->observations;
    char title[96];
    snprintf(title, sizeof title, "Responsibilities, %s, sequence %" PRId64 ", head %" PRId64,
             clmgk_variant_name(population->problem.desc.variant), analyze_batch_of(population, 0),
             analyze_head_of(population, 0));
    begin_panels(results, panels, title, script);
    fputs("shown(x) = x\nset cbrange [0:1]\n", script);
    for (int64_t r = 0; r < panels; r++) {
        snprintf(title, sizeof title, "component %" PRId64, r);
        draw_panel(results, all->member[0].gamma_pixels + r * all->height * all->width, title, script);
    }
}

/* ---- ranks ------------------------------------------------------------------------------------------------------ */

static int compare_ranks(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Ranks, and how many matrices have each. *most: the largest of these numbers. */
static bool write_ranks(const analyze_results *results, int64_t *most, FILE *script)
{
    const int64_t members = results->population->members;
    int64_t *const ranks = calloc((size_t)members, sizeof *ranks);
    for (int64_t m = 0; ranks && m < members; m++)
        ranks[m] = results->ranks.member[m].rank;
    if (!ranks)
        return false;
    qsort(ranks, (size_t)members, sizeof *ranks, compare_ranks);
    *most = 1;
    fputs("$ranks << END\n", script);
    for (int64_t m = 0, count = 1; m < members; m++, count++) {
        if (m + 1 < members && ranks[m + 1] == ranks[m])
            continue;
        fprintf(script, "%" PRId64 " %" PRId64 "\n", ranks[m], count);
        *most = TOOL_MAX(*most, count);
        count = 0;
    }
    fputs("END\n", script);
    free(ranks);
    return true;
}

static bool write_spectra(const analyze_arguments *arguments, const analyze_results *results, FILE *script)
{
    const analyze_population *const population = results->population;
    const int64_t n = TOOL_MIN(population->rows, population->keys);
    const int64_t drawn = TOOL_MIN(population->members, ANALYZE_PICTURES);
    int64_t most = 1;
    if (!write_ranks(results, &most, script))
        return false;
    for (int64_t m = 0; m < drawn; m++) {
        fprintf(script, "$values%" PRId64 " << END\n", m);
        for (int64_t i = 0; i < n; i++)
            fprintf(script, "%" PRId64 " %.6g\n", i + 1, fmax(results->ranks.member[m].values[i], 1e-14));
        fputs("END\n", script);
    }
    fprintf(script,
            "set multiplot layout 1,2 title 'Rank of attention matrices, %s, %" PRId64 " queries x %" PRId64 " keys'\n"
            "unset colorbox\nset logscale y\nset format y '10^{%%T}'\nset xlabel 'number of the singular value'\n"
            "set ylabel 'singular value'\nset yrange [1e-14:*]\nset xrange [0:%" PRId64 "]\nset xtics 0,%" PRId64
            "\nset key outside bottom center horizontal\nplot",
            clmgk_variant_name(population->problem.desc.variant), population->rows, population->keys, n + 1,
            tick_distance(n + 1));
    for (int64_t m = 0; m < drawn; m++)
        fprintf(script,
                " $values%" PRId64 " with linespoints pt 7 ps 0.4 lw 1.5 lc palette frac %.3f title 'sequence %" PRId64
                ", head %" PRId64 "',",
                m, (double)m / (double)drawn, analyze_batch_of(population, m), analyze_head_of(population, m));
    fprintf(script, " %g with lines dt 2 lc rgb '#D55E00' title 'threshold %g'\n", arguments->threshold,
            arguments->threshold);
    fprintf(script,
            "unset logscale y\nset format y\nset xlabel 'rank'\nset ylabel 'matrices'\nset yrange [0:*]\n"
            "set xrange [0:%" PRId64 "]\nset xtics 0,%" PRId64 "\nset ytics 0,%" PRId64
            "\nunset key\nset style fill solid 0.9 noborder\n"
            "plot $ranks using 1:2:(%g) with boxes ls 1\n",
            n + TOOL_MAX(n / 20, 1), tick_distance(n), tick_distance(most), fmax((double)n / 100.0, 0.5));
    return true;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

static void write_distances(const analyze_results *results, FILE *script)
{
    const analyze_population *const population = results->population;
    const int64_t heads = population->heads;
    fputs("$distances << END\n", script);
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t other = 0; other < heads; other++)
            fprintf(script, "%s%.6g", other ? " " : "", analyze_mean_distance(population, &results->pairs, h, other));
        fputc('\n', script);
    }
    fprintf(script,
            "END\nset title \"Squared L2 distances between heads, %s: mean %.4g, variance %.4g\"\n"
            "set xlabel 'head'\nset ylabel 'head'\nset cblabel 'squared distance, mean of %" PRId64 " %s'\n"
            "set xrange [-0.5:%" PRId64 ".5]\nset yrange [%" PRId64 ".5:-0.5]\nset border 15\nunset key\n"
            "set cbrange [0:*]\nset size square\nset xtics (",
            clmgk_variant_name(population->problem.desc.variant), results->pairs.mean, results->pairs.variance,
            population->batches, tool_plural((uint64_t)population->batches, "sequence", "sequences"), heads - 1,
            heads - 1);
    const int64_t step = (heads + 15) / 16;
    for (int axis = 0; axis < 2; axis++) {
        for (int64_t h = 0; h < heads; h += step)
            fprintf(script, "%s'%" PRId64 "' %" PRId64, h ? "," : "", population->head[h], h);
        fputs(axis == 0 ? ")\nset ytics (" : ")\n", script);
    }
    fprintf(script, "plot $distances matrix with %s\n", heat_map(heads, heads));
}

static void write_parts(const char *name, int64_t n, const double *values, FILE *script)
{
    double total = 0.0, sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        total += values[i];
    fprintf(script, "$%s << END\n0 0\n", name);
    for (int64_t i = 0; i < n; i++) {
        sum += values[i];
        fprintf(script, "%" PRId64 " %.6g\n", i + 1, total > 0.0 ? sum / total : 0.0);
    }
    fputs("END\n", script);
}

static void write_components(const analyze_arguments *arguments, const analyze_results *results, FILE *script)
{
    const int64_t n = results->population->members;
    write_parts("raw", n, results->pairs.spectrum, script);
    write_parts("centred", n, results->pairs.centred, script);
    fprintf(script,
            "set title \"Principal components of %" PRId64 " attention matrices, %s\"\n"
            "set xlabel 'components'\nset ylabel 'part of the variance'\nset yrange [0:1.05]\nset xrange [0:%" PRId64
            "]\nset xtics 0,%" PRId64 "\nset key bottom right\nset grid ytics lc rgb '#dddddd'\n"
            "plot $raw with linespoints ls 1 lw 2 pt 7 ps 0.5 title 'as in the paper: %" PRId64 "',"
            " $centred with linespoints lc rgb '#E69F00' lw 2 pt 7 ps 0.5 title 'about the mean: %" PRId64 "',"
            " %g with lines dt 2 lc rgb '#D55E00' title '%g'\n",
            n, clmgk_variant_name(results->population->problem.desc.variant), n, tick_distance(n),
            results->pairs.components, results->pairs.centred_components, arguments->fraction, arguments->fraction);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static bool write_picture(const analyze_arguments *arguments, const analyze_results *results, analyze_kind kind,
                          int64_t panels, FILE *script)
{
    switch (kind) {
    case ANALYZE_MATRICES:
        write_matrices(results, panels, script);
        break;
    case ANALYZE_RANK:
        return write_spectra(arguments, results, script);
    case ANALYZE_DISTANCES:
        write_distances(results, script);
        break;
    case ANALYZE_COMPONENTS:
        write_components(arguments, results, script);
        break;
    case ANALYZE_RESPONSIBILITIES:
        write_responsibilities(results, panels, script);
        break;
    case ANALYZE_NLL:
    case ANALYZE_KINDS:
        break;
    }
    return true;
}

static tool_exit draw(const analyze_arguments *arguments, const analyze_results *results, analyze_kind kind,
                      const analyze_plot *plot, tool_outputs *outputs, tool_error *error)
{
    const int64_t most = kind == ANALYZE_MATRICES ? results->population->members : results->observations.components;
    const int64_t panels = TOOL_MIN(most, ANALYZE_PICTURES);
    const bool grid = kind == ANALYZE_MATRICES || kind == ANALYZE_RESPONSIBILITIES;
    const int width = grid ? panel_width(panels) : kind == ANALYZE_RANK ? 1100 : 700;
    const int height = grid ? panel_height(panels) : kind == ANALYZE_DISTANCES ? 600 : 480;
    FILE *script = NULL, *picture = NULL;
    TOOL_TRY(analyze_begin_plot(arguments, plot, width, height, outputs, &script, &picture, error));
    if (!write_picture(arguments, results, kind, panels, script)) {
        fclose(script);
        return tool_fail_memory(error, "a picture");
    }
    return analyze_end_plot(arguments, script, picture, error);
}

tool_exit analyze_draw(const analyze_arguments *arguments, const analyze_results *results,
                       const analyze_plot plots[ANALYZE_KINDS], tool_outputs *outputs, tool_error *error)
{
    for (int kind = 0; kind < ANALYZE_KINDS; kind++) {
        if (plots[kind].path[0])
            TOOL_TRY(draw(arguments, results, (analyze_kind)kind, &plots[kind], outputs, error));
    }
    return TOOL_DONE;
}
