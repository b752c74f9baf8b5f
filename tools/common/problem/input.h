/* SPDX-License-Identifier: Apache-2.0 */
/* Input files: opened, held against the sizes that are known, and read. What problem.c is made of. */
#ifndef TOOL_INPUT_H
#define TOOL_INPUT_H

#include "problem.h"

/* ---- input.c: all that they open and read belongs to `problem`, also where they fail ---------------------------- */

/* Opens the file that is given to the array's option, or takes a list of numbers. */
tool_exit input_open(const tool_problem_arguments *arguments, tool_problem *problem, clmgk_array array,
                     tool_error *error);

/* Holds an open input against axes (letters of clmgk_shape, in the file's order): sizes that are known must be the
 * file's, the others become known. A list of numbers for two axes is a matrix, row by row. */
tool_exit input_expect(tool_problem *problem, clmgk_array array, const char *axes, tool_error *error);

/* Whether a header has axes of known sizes. */
bool input_matches(const tool_problem *problem, const npy_header *header, const char *axes);

/* Reads what was opened into the array's slot, as float or int32_t, and checks its values; streamed arrays stay in
 * their files. From now on the call has the array. */
tool_exit input_read(tool_problem *problem, clmgk_array array, tool_error *error);

/* The three in turn. */
tool_exit input_take(const tool_problem_arguments *arguments, tool_problem *problem, clmgk_array array,
                     const char *axes, tool_error *error);

int64_t input_size(const tool_problem *problem, char letter);
void input_set_size(tool_problem *problem, char letter, int64_t value, const char *source);

/* "[B,H,N,D]" */
typedef struct axes_text {
    char text[2 * CLMGK_MAX_RANK + 2];
} axes_text;
axes_text input_axes_text(const char *axes);

/* Names the option, the file, its shape and what was expected. */
tool_exit input_fail_shape(const npy_file *file, const char *expected, tool_error *error);

/* ---- tensors.c: Q, K, V, dO, the mixing and the shift, which give the sizes ------------------------------------- */

tool_exit tensors_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error);

/* The axes of a tensor in its file's order. */
typedef struct file_axes {
    char text[CLMGK_MAX_RANK + 1];
} file_axes;
file_axes tensors_file_axes(const char *axes, bool tokens_first);

/* ---- pages.c: keys and values in pages: before parameters; the check of tables that are read ----------------------
 */

tool_exit pages_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error);
tool_exit pages_check(const tool_problem *problem, tool_error *error);

/* ---- parameters.c: inputs of which the descriptor has the form, masks and modifiers ----------------------------- */

tool_exit parameters_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error);

/* ---- text_options.c, texts.c: scores and masks of the user's own ------------------------------------------------- */

tool_exit texts_parse(const char *const *values, tool_problem_arguments *arguments, tool_error *error);
tool_exit texts_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error);

#endif
