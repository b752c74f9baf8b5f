/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures by the program gnuplot. */
#ifndef TOOL_GNUPLOT_H
#define TOOL_GNUPLOT_H

#include "tool.h"

#include <stdio.h>

/* Fails at once where there is no gnuplot. */
tool_exit tool_gnuplot_check(tool_error *error);

/* A temporary file for a script, for fclose(). */
tool_exit tool_gnuplot_begin(FILE **script, tool_error *error);

/* Runs the script, and waits. `picture` becomes its standard output. */
tool_exit tool_gnuplot_run(FILE *script, FILE *picture, tool_error *error);

/* Text that is to stand between gnuplot's single quotes. */
void tool_gnuplot_quoted(const char *text, FILE *script);

#endif
