/* SPDX-License-Identifier: Apache-2.0 */
/* Scores and masks of the user's own: their texts, captured arrays and numbers. */
#include "input.h"

#include <inttypes.h>
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

static tool_exit describe_blocks(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    enum { USUAL = 64 };
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[CLMGK_ARRAY_MASK_BLOCKS];
    const int64_t *const shape = file->header.shape;
    const int64_t heads = desc->mix_after_heads > 0 ? desc->mix_after_heads : desc->heads;
    const int64_t queries = desc->mask_block_q > 0 ? desc->mask_block_q : USUAL;
    const int64_t keys = desc->mask_block_k > 0 ? desc->mask_block_k : USUAL;
    const int64_t rows = (desc->length + queries - 1) / queries, columns = (desc->length_k + keys - 1) / keys;
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_MASK_BLOCKS, error));
    if (file->header.axes != 4 || (shape[0] != 1 && shape[0] != desc->batch) || (shape[1] != 1 && shape[1] != heads) ||
        shape[2] != rows || shape[3] != columns)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s %s: has shape %s; expected [B,H,%" PRId64 ",%" PRId64 "], B 1 or %" PRId64
                         ", H 1 or %" PRId64 ", with blocks of %" PRId64 " queries and %" PRId64 " keys",
                         file->option, file->path, npy_shape_text(file->header.axes, shape).text, rows, columns,
                         desc->batch, heads, queries, keys);
    desc->mask_blocks_batch = shape[0];
    desc->mask_blocks_heads = shape[1];
    return input_read(problem, CLMGK_ARRAY_MASK_BLOCKS, error);
}

tool_exit texts_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    problem->desc.score_mod = arguments->score_mod;
    problem->desc.mask_mod = arguments->mask_mod;
    problem->desc.mask_block_q = arguments->mask_block[0];
    problem->desc.mask_block_k = arguments->mask_block[1];
    if (arguments->file[CLMGK_ARRAY_MASK_BLOCKS])
        TOOL_TRY(describe_blocks(arguments, problem, error));
    for (size_t c = 0; c < arguments->capture_count; c++)
        TOOL_TRY(describe_capture(arguments, problem, c, error));
    return describe_numbers(arguments, problem, error);
}
