/* SPDX-License-Identifier: Apache-2.0 */
/* Several objects of --json in one table and one picture: the same work on several devices, or at several times. */
#include "bench.h"

#include "gnuplot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A column: a device of an object. */
typedef struct column {
    const json_t *object;
    json_int_t device;
    char label[512]; /* a line: "DEVICE (PATH)" */
} column;

/* A row: a case as the first object that has it describes it. */
typedef struct side_by_side {
    column *columns;
    const json_t **rows;
    size_t column_count, row_count;
} side_by_side;

static void free_table(side_by_side *table)
{
    free(table->columns);
    free(table->rows);
}

/* The column's case of the same work; NULL: it has none. */
static const json_t *cell_of(const column *c, const json_t *row)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(c->object, "cases"), i, one)
    {
        if (json_integer_value(json_object_get(one, "device")) == c->device && bench_is_same_work(row, one))
            return one;
    }
    return NULL;
}

static bool has_row(const side_by_side *table, const json_t *one)
{
    for (size_t i = 0; i < table->row_count; i++)
        if (bench_is_same_work(table->rows[i], one))
            return true;
    return false;
}

static tool_exit make_table(const json_t *const *objects, const char *const *paths, size_t count, side_by_side *table,
                            tool_error *error)
{
    size_t columns = 1, rows = 1, i;
    const json_t *one;
    for (size_t n = 0; n < count; n++) {
        columns += json_array_size(json_object_get(objects[n], "devices"));
        rows += json_array_size(json_object_get(objects[n], "cases"));
    }
    table->columns = calloc(columns, sizeof *table->columns);
    table->rows = calloc(rows, sizeof *table->rows);
    if (!table->columns || !table->rows)
        return tool_fail_memory(error, "the comparison");
    for (size_t n = 0; n < count; n++) {
        json_array_foreach(json_object_get(objects[n], "devices"), i, one)
        {
            column *const next = &table->columns[table->column_count++];
            *next = (column){.object = objects[n], .device = (json_int_t)i};
            snprintf(next->label, sizeof next->label, "%s (%s)", tool_json_text_of(one, "name"), paths[n]);
            tool_flatten(next->label);
        }
        json_array_foreach(json_object_get(objects[n], "cases"), i, one)
        {
            if (!has_row(table, one))
                table->rows[table->row_count++] = one;
        }
    }
    return TOOL_DONE;
}

/* ---- the table ---------------------------------------------------------------------------------------------- */

static void print_cell(const json_t *one, const json_t *first, FILE *stream)
{
    double time = 0, base = 0, noise = 0, base_noise = 0;
    if (!one) {
        fprintf(stream, " %12s %7s", "-", "");
        return;
    }
    bench_read_time(one, &time, &noise);
    fprintf(stream, " %12.3f", time);
    if (one == first || !first) {
        fprintf(stream, " %7s", "");
        return;
    }
    bench_read_time(first, &base, &base_noise);
    fprintf(stream, " %6.2f%c", time / base, fabs(time / base - 1) <= noise + base_noise ? '~' : ' ');
}

static void print_table(const side_by_side *table, FILE *stream)
{
    fprintf(stream, "\nMilliseconds (median), and the ratio to A; ~: within the noise of both\n");
    for (size_t c = 0; c < table->column_count; c++)
        fprintf(stream, "  %c: %s\n", (char)('A' + (int)(c % 26)), table->columns[c].label);
    fprintf(stream, "%-65s", "");
    for (size_t c = 0; c < table->column_count; c++)
        fprintf(stream, " %12c %7s", (char)('A' + (int)(c % 26)), "");
    fputc('\n', stream);
    for (size_t r = 0; r < table->row_count; r++) {
        char name[128];
        bench_name_case(table->rows[r], name, sizeof name);
        fprintf(stream, "  %-63s", name);
        const json_t *const first = table->column_count ? cell_of(&table->columns[0], table->rows[r]) : NULL;
        for (size_t c = 0; c < table->column_count; c++)
            print_cell(cell_of(&table->columns[c], table->rows[r]), first, stream);
        fputc('\n', stream);
    }
}

tool_exit bench_show_side_by_side(const json_t *const *objects, const char *const *paths, size_t count, FILE *stream,
                                  tool_error *error)
{
    side_by_side table = {0};
    const tool_exit status = make_table(objects, paths, count, &table, error);
    if (status == TOOL_DONE)
        print_table(&table, stream);
    free_table(&table);
    return status;
}

/* ---- the picture -------------------------------------------------------------------------------------------- */

/* A row's name without the spaces that make a table's columns. */
static void write_label(const json_t *row, FILE *script)
{
    char name[128];
    bench_name_case(row, name, sizeof name);
    for (const char *c = name; *c; c++)
        if (*c != ' ' || (c[1] != ' ' && c[1] != '\0'))
            fputc(*c, script);
}

static void write_rows(const side_by_side *table, FILE *script)
{
    fputs("$times << END\n", script);
    for (size_t r = 0; r < table->row_count; r++) {
        for (size_t c = 0; c < table->column_count; c++) {
            const json_t *const one = cell_of(&table->columns[c], table->rows[r]);
            const json_t *const time = json_object_get(one, "time_ms");
            if (one)
                fprintf(script, "%.5g %.5g %.5g ", tool_json_number_of(time, "median"),
                        tool_json_number_of(time, "min"), tool_json_number_of(time, "max"));
            else
                fputs("NaN NaN NaN ", script);
        }
        fputc('\n', script);
    }
    fputs("END\nset ytics nomirror scale 0 (", script);
    for (size_t r = 0; r < table->row_count; r++) {
        fprintf(script, "%s'", r ? "," : "");
        write_label(table->rows[r], script);
        fprintf(script, "' %zu", r);
    }
    fputs(")\n", script);
}

/* Bars from the smallest to the largest time, a point at the median. */
static void write_script(const side_by_side *table, FILE *script)
{
    fprintf(script,
            "set terminal svg size 1000,%zu dynamic font 'sans-serif,13' background rgb 'white'\n"
            "set logscale x\nset format x '%%g'\nset xlabel 'milliseconds'\nset grid lc rgb '#dddddd'\nset border 3\n"
            "set xtics nomirror\nset key at screen 0.98,0.995 top right vertical maxcols 1\nset lmargin 52\nset "
            "tmargin %zu\n"
            "set yrange [%zu.5:-0.5]\n",
            160 + 30 * table->column_count + 26 * table->row_count, 2 * table->column_count + 1, table->row_count - 1);
    write_rows(table, script);
    for (size_t c = 0; c < table->column_count; c++) {
        const double shift = ((double)c - 0.5 * (double)(table->column_count - 1)) * 0.16;
        fprintf(script, "%s $times using %zu:($0%+.3f):%zu:%zu with xerrorbars pt 7 ps 0.7 lc %zu title '",
                c ? "," : "plot", 1 + 3 * c, shift, 2 + 3 * c, 3 + 3 * c, c + 1);
        tool_gnuplot_quoted(table->columns[c].label, script);
        fputs("' noenhanced", script);
    }
    fputc('\n', script);
}

/* A picture in output number `output`. */
static tool_exit plot(const json_t *const *objects, const char *const *paths, size_t count, tool_outputs *outputs,
                      size_t output, tool_error *error)
{
    side_by_side table = {0};
    FILE *script = NULL, *picture = NULL;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, make_table(objects, paths, count, &table, error), done);
    if (table.row_count == 0 || table.column_count == 0) {
        status = tool_fail(error, TOOL_BAD_INPUT, "--plot: the files of --compare have no cases");
        goto done;
    }
    TOOL_TRY_GOTO(status, tool_gnuplot_begin(&script, error), done);
    write_script(&table, script);
    TOOL_TRY_GOTO(status, tool_outputs_open(outputs, output, &picture, error), done);
    TOOL_TRY_GOTO(status, tool_gnuplot_run(script, picture, error), done);
    status = tool_outputs_commit(outputs, error);
done:
    if (script)
        fclose(script);
    free_table(&table);
    return status;
}

/* ---- files -------------------------------------------------------------------------------------------------- */

tool_exit bench_announce_plot(const bench_options *options, tool_outputs *outputs, size_t *output, tool_error *error)
{
    TOOL_TRY(tool_outputs_add(outputs, "plot", options->plot, output, error));
    for (size_t i = 0; i < options->compare_count; i++)
        TOOL_TRY(tool_outputs_refuse_input(outputs, "compare", options->compare[i], error));
    return tool_gnuplot_check(error);
}

static tool_exit show_files(const bench_options *options, const json_t *const *objects, tool_outputs *outputs,
                            tool_error *error)
{
    size_t output = 0;
    if (options->plot) {
        TOOL_TRY(bench_announce_plot(options, outputs, &output, error));
        TOOL_TRY(plot(objects, options->compare, options->compare_count, outputs, output, error));
    }
    TOOL_TRY(bench_show_side_by_side(objects, options->compare, options->compare_count, stdout, error));
    return tool_flush_stdout(error);
}

tool_exit bench_compare_files(const bench_options *options, tool_error *error)
{
    json_t *objects[BENCH_MAX_FILES] = {NULL};
    tool_outputs *outputs = NULL;
    tool_exit status = TOOL_DONE;
    for (size_t i = 0; i < options->compare_count && status == TOOL_DONE; i++)
        status = bench_load_json(options->compare[i], &objects[i], error);
    if (status == TOOL_DONE)
        status = tool_outputs_create(&outputs, error);
    if (status == TOOL_DONE)
        status = show_files(options, (const json_t *const *)objects, outputs, error);
    for (size_t i = 0; i < options->compare_count; i++)
        json_decref(objects[i]);
    tool_outputs_destroy(outputs);
    return status;
}
