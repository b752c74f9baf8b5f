/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- failures ----------------------------------------------------------------------------------------------- */

tool_exit input_fail_shape(const npy_file *file, const char *expected, tool_error *error)
{
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has shape %s; expected %s", file->option, file->path,
                     npy_shape_text(file->header.axes, file->header.shape).text, expected);
}

static tool_exit expect_size(const npy_file *file, int axis, const char *symbol, int64_t expected, const char *source,
                             tool_error *error)
{
    const npy_header *const header = &file->header;
    if (header->shape[axis] == expected)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: has shape %s, where axis %d is %" PRId64 "; expected %s = %" PRId64 " as in --%s",
                     file->option, file->path, npy_shape_text(header->axes, header->shape).text, axis,
                     header->shape[axis], symbol, expected, source);
}

tool_exit input_expect_size(const npy_file *file, int axis, const char *symbol, int64_t expected, run_array source,
                            tool_error *error)
{
    return expect_size(file, axis, symbol, expected, run_option(source), error);
}

tool_exit input_expect_heads(const run_problem *problem, const npy_file *file, int axis, tool_error *error)
{
    return expect_size(file, axis, "H", problem->desc.heads, problem->heads_option, error);
}

tool_exit input_expect_positive(const npy_file *file, int axis, const char *symbol, tool_error *error)
{
    if (file->header.shape[axis] > 0)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has shape %s, where %s = 0; expected at least 1", file->option,
                     file->path, npy_shape_text(file->header.axes, file->header.shape).text, symbol);
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

void input_set_shape(run_slot *slot, int axes, const int64_t *shape)
{
    slot->axes = axes;
    slot->count = 1;
    for (int axis = 0; axis < axes; axis++) {
        slot->shape[axis] = shape[axis];
        slot->count *= (size_t)shape[axis];
    }
}

tool_exit input_open_floats(run_problem *problem, run_array array, const char *path, tool_error *error)
{
    npy_file *const file = &problem->file[array];
    TOOL_TRY(npy_open(run_option(array), path, file, error));
    if (!npy_is_float(file->header.type))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: holds %s; expected float16, float32 or float64", file->option,
                         path, npy_type_name(file->header.type));
    input_set_shape(&problem->slot[array], file->header.axes, file->header.shape);
    return TOOL_DONE;
}

static bool is_file(const char *text)
{
    const size_t length = strlen(text);
    return length >= 4 && strcmp(text + length - 4, ".npy") == 0;
}

static tool_exit make_room(run_slot *slot, size_t size, const char *what, tool_error *error)
{
    slot->host = malloc(tool_buffer_bytes(slot->count, size));
    return slot->host ? TOOL_DONE : tool_fail_memory(error, what);
}

tool_exit input_open_numbers(run_problem *problem, run_array array, const char *text, tool_error *error)
{
    if (is_file(text))
        return input_open_floats(problem, array, text, error);
    npy_file *const file = &problem->file[array];
    run_slot *const slot = &problem->slot[array];
    double *numbers = NULL;
    size_t count = 0;
    *file = (npy_file){.option = run_option(array), .path = text};
    TOOL_TRY(tool_parse_numbers(file->option, text, &numbers, &count, error));
    file->header = (npy_header){.axes = 1, .shape = {(int64_t)count}, .count = count};
    input_set_shape(slot, 1, file->header.shape);
    const tool_exit status = make_room(slot, sizeof(float), text, error);
    if (status == TOOL_DONE)
        clmgk_ref_store(CLMGK_DTYPE_F32, numbers, count, slot->host);
    free(numbers);
    return status;
}

tool_exit input_open_integers(run_problem *problem, run_array array, const char *path, const char *expected,
                              tool_error *error)
{
    npy_file *const file = &problem->file[array];
    TOOL_TRY(npy_open(run_option(array), path, file, error));
    if (npy_is_float(file->header.type))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: holds %s; expected int32 or int64", file->option, path,
                         npy_type_name(file->header.type));
    if (file->header.axes != 1)
        return input_fail_shape(file, expected, error);
    input_set_shape(&problem->slot[array], file->header.axes, file->header.shape);
    return TOOL_DONE;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

tool_exit input_read(run_problem *problem, run_array array, tool_error *error)
{
    npy_file *const file = &problem->file[array];
    run_slot *const slot = &problem->slot[array];
    if (file->stream) { /* a list of numbers is there already */
        const bool is_float = npy_is_float(file->header.type);
        TOOL_TRY(make_room(slot, is_float ? sizeof(float) : sizeof(int32_t), file->path, error));
        TOOL_TRY(is_float ? npy_read(file, CLMGK_DTYPE_F32, slot->host, error) : npy_read_i32(file, slot->host, error));
        npy_close(file);
    }
    slot->used = true;
    return TOOL_DONE;
}

/* ---- values ------------------------------------------------------------------------------------------------- */

static bool is_not_negative(float value)
{
    return isfinite(value) && value >= 0.0f;
}

static bool is_positive(float value)
{
    return isfinite(value) && value > 0.0f;
}

static bool is_finite(float value)
{
    return isfinite(value);
}

static bool is_bias(float value)
{
    return value < INFINITY; /* nor is NaN */
}

const input_rule input_not_negative = {is_not_negative, "a finite number not below 0"};
const input_rule input_positive = {is_positive, "a finite number above 0"};
const input_rule input_finite = {is_finite, "a finite number"};
const input_rule input_additive = {is_bias, "a finite number or -inf"};

tool_exit input_read_values(run_problem *problem, run_array array, const input_rule *rule, tool_error *error)
{
    const npy_file *const file = &problem->file[array];
    TOOL_TRY(input_read(problem, array, error));
    const float *const values = problem->slot[array].host;
    for (size_t i = 0; i < problem->slot[array].count; i++) {
        if (!rule->holds(values[i]))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: element %zu is %g as float32; expected %s", file->option,
                             file->path, i, (double)values[i], rule->text);
    }
    return TOOL_DONE;
}
