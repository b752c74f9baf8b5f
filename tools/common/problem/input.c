/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include "opencl.h"

#include "reference/reference.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tool_exit input_fail_shape(const npy_file *file, const char *expected, tool_error *error)
{
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has shape %s; expected %s", file->option, file->path,
                     npy_shape_text(file->header.axes, file->header.shape).text, expected);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------ */

int64_t input_size(const tool_problem *problem, char letter)
{
    return problem->size[letter - 'A'].value;
}

void input_set_size(tool_problem *problem, char letter, int64_t value, const char *source)
{
    problem->size[letter - 'A'] = (tool_size){value, source};
}

axes_text input_axes_text(const char *axes)
{
    axes_text list = {"["};
    size_t length = 1;
    for (const char *c = axes; *c != '\0'; c++) {
        list.text[length++] = *c;
        list.text[length++] = ',';
    }
    list.text[length - 1] = ']';
    return list;
}

/* G divides H, and is H where nothing else gives that. */
static tool_exit expect_groups(tool_problem *problem, const npy_file *file, int64_t groups, tool_error *error)
{
    const tool_size *const heads = &problem->size['H' - 'A'];
    if (!heads->source)
        input_set_size(problem, 'H', groups, file->option);
    if (heads->value % groups == 0)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: has G = %" PRId64 " heads; expected a divisor of H = %" PRId64 " as in --%s",
                     file->option, file->path, groups, heads->value, heads->source);
}

static tool_exit expect_axis(tool_problem *problem, const npy_file *file, int axis, char letter, tool_error *error)
{
    const npy_header *const header = &file->header;
    const tool_size *const size = &problem->size[letter - 'A'];
    const int64_t found = header->shape[axis];
    const bool square = letter == 'H' && (clmgk_variant_traits(problem->desc.variant) & CLMGK_TRAIT_SQUARE) != 0;
    if (size->source && found != size->value)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s %s: has shape %s, where axis %d is %" PRId64 "; expected %s%c = %" PRId64 " as in --%s",
                         file->option, file->path, npy_shape_text(header->axes, header->shape).text, axis, found,
                         square ? "H = " : "", square ? 'M' : letter, size->value, size->source);
    if (size->source)
        return TOOL_DONE;
    if (found < 1 && letter != 'N' && letter != 'S')
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has shape %s, where %c = 0; expected at least 1",
                         file->option, file->path, npy_shape_text(header->axes, header->shape).text, letter);
    input_set_size(problem, letter, found, file->option);
    return letter == 'G' ? expect_groups(problem, file, found, error) : TOOL_DONE;
}

/* A list of numbers as a matrix, of which the last axis is known. */
static tool_exit fold_list(tool_problem *problem, clmgk_array array, const char *axes, tool_error *error)
{
    npy_header *const header = &problem->file[array].header;
    const int64_t count = header->shape[0], columns = input_size(problem, axes[1]);
    if (count % columns != 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s: has %" PRId64 " numbers; expected %s, rows of %c = %" PRId64 " as in --%s",
                         tool_array_option(array), count, input_axes_text(axes).text, axes[1], columns,
                         problem->size[axes[1] - 'A'].source);
    header->axes = 2;
    header->shape[0] = count / columns;
    header->shape[1] = columns;
    tool_set_shape(&problem->slot[array], header->axes, header->shape);
    return TOOL_DONE;
}

/* Arrays of a single head or sequence lack axes of 1. */
static tool_exit fail_rank(const npy_file *file, const char *axes, tool_error *error)
{
    const int lacking = (int)strlen(axes) - file->header.axes;
    char expected[128];
    snprintf(expected, sizeof expected, "%s%s", input_axes_text(axes).text,
             strlen(axes) < 4 || lacking < 1 || lacking > 2 ? ""
             : lacking == 1 ? "; with NumPy, x[None] has one more axis, of size 1, in front"
                            : "; with NumPy, x[None, None] has two more axes, of size 1, in front");
    return input_fail_shape(file, expected, error);
}

tool_exit input_expect(tool_problem *problem, clmgk_array array, const char *axes, tool_error *error)
{
    const npy_file *const file = &problem->file[array];
    const int rank = (int)strlen(axes);
    if (!file->stream && rank == 2)
        TOOL_TRY(fold_list(problem, array, axes, error));
    if (file->header.axes != rank)
        return fail_rank(file, axes, error);
    for (int tokens = 0; tokens < 2; tokens++) { /* last, wherever the file has them */
        for (int axis = 0; axis < rank; axis++)
            if ((axes[axis] == 'N' || axes[axis] == 'S') == tokens)
                TOOL_TRY(expect_axis(problem, file, axis, axes[axis], error));
    }
    return TOOL_DONE;
}

bool input_matches(const tool_problem *problem, const npy_header *header, const char *axes)
{
    bool same = header->axes == (int)strlen(axes);
    for (int axis = 0; same && axis < header->axes; axis++)
        same = header->shape[axis] == input_size(problem, axes[axis]);
    return same;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

void tool_set_shape(tool_slot *slot, int axes, const int64_t *shape)
{
    slot->axes = axes;
    slot->count = 1;
    for (int axis = 0; axis < axes; axis++) {
        slot->shape[axis] = shape[axis];
        slot->count *= (size_t)shape[axis];
    }
}

static bool is_file(const char *text)
{
    const size_t length = strlen(text);
    return length >= 4 && strcmp(text + length - 4, ".npy") == 0;
}

static tool_exit make_room(tool_slot *slot, size_t size, const char *what, tool_error *error)
{
    slot->host = malloc(tool_buffer_bytes(slot->count, size));
    return tool_check_memory(slot->host, what, error);
}

static tool_exit take_list(tool_problem *problem, clmgk_array array, const char *text, tool_error *error)
{
    npy_file *const file = &problem->file[array];
    tool_slot *const slot = &problem->slot[array];
    double *numbers = NULL;
    size_t count = 0;
    *file = (npy_file){.option = tool_array_option(array), .path = text};
    TOOL_TRY(tool_parse_numbers(file->option, text, &numbers, &count, error));
    file->header = (npy_header){.axes = 1, .shape = {(int64_t)count}, .count = count};
    tool_set_shape(slot, 1, file->header.shape);
    const tool_exit status = make_room(slot, sizeof(float), text, error);
    if (status == TOOL_DONE)
        clmgk_ref_store(CLMGK_DTYPE_F32, numbers, count, slot->host);
    free(numbers);
    return status;
}

/* Whole numbers where a file is expected, unless there is a file of that name. */
static bool is_list_of_integers(const char *text)
{
    return text[0] != '\0' && strspn(text, "0123456789,-") == strlen(text) && access(text, F_OK) != 0;
}

/* A list of lengths, offsets or positions. */
static tool_exit take_integers(tool_problem *problem, clmgk_array array, const char *text, tool_error *error)
{
    TOOL_TRY(take_list(problem, array, text, error));
    tool_slot *const slot = &problem->slot[array];
    for (size_t i = 0; i < slot->count; i++) { /* in place: a float has as many bytes */
        float number;
        memcpy(&number, (const float *)slot->host + i, sizeof number);
        if (fabsf(number) > 16777216.0f)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: expected numbers up to 2^24; a file takes larger ones",
                             problem->file[array].option, text);
        const int32_t integer = (int32_t)number;
        memcpy((int32_t *)slot->host + i, &integer, sizeof integer);
    }
    return TOOL_DONE;
}

tool_exit input_open(const tool_problem_arguments *arguments, tool_problem *problem, clmgk_array array,
                     tool_error *error)
{
    const char *const text = arguments->file[array];
    npy_file *const file = &problem->file[array];
    const clmgk_element element = clmgk_array_get_info(array)->element;
    const bool integers = element == CLMGK_ELEMENT_I32;
    if (tool_takes_numbers(array) && !is_file(text))
        return take_list(problem, array, text, error);
    if (integers && is_list_of_integers(text))
        return take_integers(problem, array, text, error);
    TOOL_TRY(npy_open(tool_array_option(array), text, file, error));
    if (element != CLMGK_ELEMENT_CAPTURE && npy_is_float(file->header.type) == integers)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: holds %s; expected %s", file->option, text,
                         npy_type_name(file->header.type), integers ? "int32 or int64" : "float16, float32 or float64");
    tool_set_shape(&problem->slot[array], file->header.axes, file->header.shape);
    return TOOL_DONE;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static bool is_allowed(clmgk_values rule, float value)
{
    switch (rule) {
    case CLMGK_VALUES_FINITE:
        return isfinite(value);
    case CLMGK_VALUES_NOT_NEGATIVE:
        return isfinite(value) && value >= 0.0f;
    case CLMGK_VALUES_POSITIVE:
        return isfinite(value) && value > 0.0f;
    case CLMGK_VALUES_NOT_RAISED:
        return value < INFINITY; /* nor is NaN */
    default:
        return true;
    }
}

static tool_exit check_floats(const npy_file *file, const tool_slot *slot, clmgk_values rule, tool_error *error)
{
    static const char *const expected[] = {[CLMGK_VALUES_FINITE] = "a finite number",
                                           [CLMGK_VALUES_NOT_NEGATIVE] = "a finite number not below 0",
                                           [CLMGK_VALUES_POSITIVE] = "a finite number above 0",
                                           [CLMGK_VALUES_NOT_RAISED] = "a finite number or -inf"};
    const float *const values = slot->host;
    for (size_t i = 0; i < slot->count; i++) {
        if (!is_allowed(rule, values[i]))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: element %zu is %g as float32; expected %s", file->option,
                             file->path, i, (double)values[i], expected[rule]);
    }
    return TOOL_DONE;
}

/* Whole numbers from 0 on. */
static tool_exit check_lengths(const npy_file *file, const tool_slot *slot, int64_t limit, tool_error *error)
{
    const int32_t *const lengths = slot->host;
    for (size_t b = 0; b < slot->count; b++) {
        if (lengths[b] < 0 || lengths[b] > limit)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: element %zu is %" PRId32 "; expected 0 to %" PRId64,
                             file->option, file->path, b, lengths[b], limit);
    }
    return TOOL_DONE;
}

/* First 0, then not descending, last the axis. */
static tool_exit check_offsets(const npy_file *file, const tool_slot *slot, char letter, int64_t axis,
                               tool_error *error)
{
    const int32_t *const offsets = slot->host;
    const size_t last = slot->count - 1;
    if (offsets[0] != 0)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: element 0 is %" PRId32 "; expected 0", file->option,
                         file->path, offsets[0]);
    for (size_t t = 1; t <= last; t++) {
        if (offsets[t] < offsets[t - 1])
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s %s: element %zu is %" PRId32 "; expected at least %" PRId32 ", the one before it",
                             file->option, file->path, t, offsets[t], offsets[t - 1]);
    }
    if (offsets[last] != axis)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: ends with %" PRId32 "; expected %c = %" PRId64, file->option,
                         file->path, offsets[last], letter, axis);
    return TOOL_DONE;
}

static tool_exit check_values(const tool_problem *problem, clmgk_array array, tool_error *error)
{
    const npy_file *const file = &problem->file[array];
    const tool_slot *const slot = &problem->slot[array];
    const clmgk_values rule = clmgk_array_get_info(array)->values;
    if (clmgk_array_get_info(array)->element == CLMGK_ELEMENT_CAPTURE) /* ints or floats, of any value */
        return TOOL_DONE;
    const bool queries = array == CLMGK_ARRAY_LENGTHS_Q || array == CLMGK_ARRAY_OFFSETS;
    const char letter = queries ? 'N' : 'S';
    if (rule == CLMGK_VALUES_POSITIONS)
        return check_lengths(file, slot, (INT64_C(1) << 30) - 1, error);
    if (rule == CLMGK_VALUES_LENGTHS)
        return check_lengths(file, slot, input_size(problem, letter), error);
    if (rule == CLMGK_VALUES_OFFSETS)
        return check_offsets(file, slot, letter, input_size(problem, letter), error);
    /* Parameters are finite; what a network computes may be anything. */
    const bool parameter = tool_takes_numbers(array) || array == CLMGK_ARRAY_SHIFT;
    return check_floats(file, slot, rule == CLMGK_VALUES_ANY && parameter ? CLMGK_VALUES_FINITE : rule, error);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

tool_exit input_read(tool_problem *problem, clmgk_array array, tool_error *error)
{
    npy_file *const file = &problem->file[array];
    tool_slot *const slot = &problem->slot[array];
    slot->used = true;
    if (tool_is_streamed(array))
        return TOOL_DONE;
    if (file->stream) { /* a list of numbers is there already */
        const bool is_float = npy_is_float(file->header.type);
        TOOL_TRY(make_room(slot, is_float ? sizeof(float) : sizeof(int32_t), file->path, error));
        TOOL_TRY(is_float ? npy_read(file, CLMGK_DTYPE_F32, slot->host, error) : npy_read_i32(file, slot->host, error));
        npy_close(file);
    }
    return check_values(problem, array, error);
}

tool_exit input_take(const tool_problem_arguments *arguments, tool_problem *problem, clmgk_array array,
                     const char *axes, tool_error *error)
{
    TOOL_TRY(input_open(arguments, problem, array, error));
    TOOL_TRY(input_expect(problem, array, axes, error));
    return input_read(problem, array, error);
}
