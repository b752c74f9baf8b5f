/* SPDX-License-Identifier: Apache-2.0 */
/* All figures with their values, and the forms in which they are given. */
#ifndef BENCH_FIGURES_TEXT_H
#define BENCH_FIGURES_TEXT_H

#include "figures.h"

#include <stdio.h>

typedef struct figure_results {
    figure_point *points; /* of every curve of every panel of every figure, in this order */
    size_t count;
    figure_claim claims[FIGURE_CLAIMS];
} figure_results;

/* Counts everything. On failure, too, figure_close. */
tool_exit figure_open(figure_results *results, tool_error *error);
void figure_close(figure_results *results);

/* The points of a curve, as many as its panel has places. */
const figure_point *figure_points(const figure_results *results, const figure_panel *panel, const figure_curve *curve);

void figure_print(const figure_results *results, FILE *stream);
void figure_write_csv(const figure_results *results, FILE *stream);
/* NULL: out of memory. */
json_t *figure_json(const figure_results *results);

/* Writes a script of gnuplot that draws a figure. `device`: where it was measured; NULL: it was not. */
void figure_write_script(const figure_results *results, const figure *one, const char *device, FILE *script);

#endif
