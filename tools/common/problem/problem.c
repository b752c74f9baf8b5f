/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <stdlib.h>

/* What the plan must be able to do. */
static void describe_passes(const tool_problem_arguments *arguments, clmgk_attention_desc *desc)
{
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        const clmgk_array_info *info = clmgk_array_get_info(array);
        if (arguments->file[array]) {
            desc->statistics |= info->statistic;
            desc->gradients |= info->gradient;
        }
    }
    if (arguments->file[CLMGK_ARRAY_GRAD_O] && desc->gradients == 0)
        desc->gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
}

/* Inputs whose shape follows from the descriptor. */
static tool_exit read_inputs(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        const bool opened = problem->file[array].option != NULL;
        if (arguments->file[array] && !tool_is_output(array) && !opened)
            TOOL_TRY(input_take(arguments, problem, array, clmgk_array_shape(&problem->desc, array).axes, error));
    }
    return TOOL_DONE;
}

/* The scale of the state in the files, which hold true values: m = 0. */
static tool_exit make_state_scale(tool_problem *problem, tool_error *error)
{
    const clmgk_shape shape = clmgk_array_shape(&problem->desc, CLMGK_ARRAY_STATE_M);
    tool_slot *const slot = &problem->slot[CLMGK_ARRAY_STATE_M];
    if (shape.rank == 0)
        return TOOL_DONE;
    tool_set_shape(slot, shape.rank, shape.size);
    slot->used = true;
    slot->host = calloc(slot->count, sizeof(float));
    return tool_check_memory(slot->host, "the state", error);
}

tool_exit tool_problem_open(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    *problem = (tool_problem){.desc = CLMGK_ATTENTION_DESC_INIT};
    clmgk_attention_desc *const desc = &problem->desc;
    desc->variant = arguments->variant;
    desc->score = arguments->score;
    desc->estep = arguments->estep;
    TOOL_TRY(tensors_describe(arguments, problem, error));
    TOOL_TRY(pages_describe(arguments, problem, error));
    TOOL_TRY(parameters_describe(arguments, problem, error));
    TOOL_TRY(texts_describe(arguments, problem, error));
    describe_passes(arguments, desc);
    if (desc->length_k == 0) /* of the files: none, not the default */
        desc->length_k = CLMGK_NO_KEYS;
    TOOL_TRY(tool_check_library(clmgk_attention_validate(desc, desc, &error->library), error));
    TOOL_TRY(read_inputs(arguments, problem, error));
    TOOL_TRY(pages_check(problem, error));
    TOOL_TRY(make_state_scale(problem, error));
    return TOOL_DONE;
}

void tool_problem_close(tool_problem *problem)
{
    for (size_t array = 0; array < TOOL_FILES; array++) {
        npy_close(&problem->file[array]);
        free(problem->slot[array].host);
    }
    *problem = (tool_problem){0};
}
