/* SPDX-License-Identifier: Apache-2.0 */
/* Scores and masks of the user's own: their texts, captured arrays and numbers. */
#include "input.h"

#include <stdlib.h>

static tool_exit describe_capture(const tool_problem_arguments *arguments, tool_problem *problem, size_t number,
                                  tool_error *error)
{
    const clmgk_array array = CLMGK_ARRAY_CAPTURE_0 + (clmgk_array)number;
    clmgk_capture *const capture = &problem->desc.captures[number];
    const npy_file *const file = &problem->file[array];
    TOOL_TRY(input_open(arguments, problem, array, error));
    if (file->header.axes < 1 || file->header.axes > CLMGK_MAX_CAPTURE_AXES)
        return input_fail_shape(file, "1 to 4 axes", error);
    for (int axis = 0; axis < file->header.axes; axis++)
        capture->shape[axis] = file->header.shape[axis];
    capture->name = arguments->captures[number].text;
    capture->axes = file->header.axes;
    capture->type = npy_is_float(file->header.type) ? CLMGK_CAPTURE_F32 : CLMGK_CAPTURE_I32;
    return input_read(problem, array, error);
}

static tool_exit describe_numbers(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    tool_slot *const slot = &problem->slot[CLMGK_ARRAY_NUMBERS];
    const int64_t count = (int64_t)arguments->number_count;
    if (count == 0)
        return TOOL_DONE;
    tool_set_shape(slot, 1, &count);
    slot->used = true;
    float *const host = calloc(slot->count, sizeof *host);
    slot->host = host;
    TOOL_TRY(tool_check_memory(host, "the numbers", error));
    for (size_t n = 0; n < slot->count; n++) {
        host[n] = (float)arguments->number[n];
        problem->desc.numbers[n] = arguments->numbers[n].text;
        if (arguments->grad_number[n])
            problem->desc.gradients |= CLMGK_GRADIENT_NUMBERS;
    }
    return TOOL_DONE;
}

tool_exit texts_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    problem->desc.score_mod = arguments->score_mod;
    problem->desc.mask_mod = arguments->mask_mod;
    for (size_t c = 0; c < arguments->capture_count; c++)
        TOOL_TRY(describe_capture(arguments, problem, c, error));
    return describe_numbers(arguments, problem, error);
}
