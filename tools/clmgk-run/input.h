/* SPDX-License-Identifier: Apache-2.0 */
/* Input files: opened, which gives the shape, and read, in two steps. What problem.c is made of. */
#ifndef RUN_INPUT_H
#define RUN_INPUT_H

#include "run.h"

/* ---- input.c: all that they open and read belongs to `problem`, also where they fail ------------------------- */

/* Opens a file of floating-point numbers. */
tool_exit input_open_floats(run_problem *problem, run_array array, const char *path, tool_error *error);

/* The same, or takes a list of numbers. */
tool_exit input_open_numbers(run_problem *problem, run_array array, const char *text, tool_error *error);

/* Opens a file of integers with one axis, which `expected` names. */
tool_exit input_open_integers(run_problem *problem, run_array array, const char *path, const char *expected,
                              tool_error *error);

/* Reads what was opened into the array's slot, as float or int32_t; from now on the call has the array. */
tool_exit input_read(run_problem *problem, run_array array, tool_error *error);

/* What a value may be. */
typedef struct input_rule {
    bool (*holds)(float value);
    const char *text;
} input_rule;
extern const input_rule input_not_negative, input_positive, input_finite, input_additive;

/* Reads an array of f32 numbers, each of which must keep the rule. */
tool_exit input_read_values(run_problem *problem, run_array array, const input_rule *rule, tool_error *error);

/* Gives an array a shape, and counts its elements. */
void input_set_shape(run_slot *slot, int axes, const int64_t *shape);

/* Failures name the option, the file, what was found and what was expected. */
tool_exit input_fail_shape(const npy_file *file, const char *expected, tool_error *error);
tool_exit input_expect_size(const npy_file *file, int axis, const char *symbol, int64_t expected, run_array source,
                            tool_error *error);
tool_exit input_expect_heads(const run_problem *problem, const npy_file *file, int axis, tool_error *error);
tool_exit input_expect_positive(const npy_file *file, int axis, const char *symbol, tool_error *error);

/* ---- tensors.c: Q, K, V and dO; layouts of these and of what is like them ------------------------------------- */

tool_exit tensors_describe(const run_arguments *arguments, run_problem *problem, tool_error *error);

/* Shape of O's file. */
void tensors_shape_o(const run_problem *problem, bool tokens_first, int64_t shape[4]);

/* ---- mixing.c: the admixture family's own inputs ---------------------------------------------------------------- */

/* p, which gives H but to MiSH. */
tool_exit mixing_describe_heads(const run_arguments *arguments, run_problem *problem, tool_error *error);

/* w, c and sigma. */
tool_exit mixing_describe(const run_arguments *arguments, run_problem *problem, tool_error *error);

/* ---- parameters.c: the other inputs, and the numbers of masks and modifiers ----------------------------------- */

tool_exit parameters_describe(const run_arguments *arguments, run_problem *problem, tool_error *error);

#endif
