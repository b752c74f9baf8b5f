/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <stdlib.h>

/* What the plan must be able to do. */
static void describe_passes(const run_arguments *arguments, clmgk_attention_desc *desc)
{
    for (clmgk_array array = 0; array < RUN_FILES; array++) {
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
static tool_exit read_inputs(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    for (clmgk_array array = 0; array < RUN_FILES; array++) {
        const bool opened = problem->file[array].option != NULL;
        if (arguments->file[array] && !run_is_output(array) && !opened)
            TOOL_TRY(input_take(arguments, problem, array, clmgk_array_shape(&problem->desc, array).axes, error));
    }
    return TOOL_DONE;
}

/* The scale of the state in the files, which hold true values: m = 0. */
static tool_exit make_state_scale(run_problem *problem, tool_error *error)
{
    const clmgk_shape shape = clmgk_array_shape(&problem->desc, CLMGK_ARRAY_STATE_M);
    run_slot *const slot = &problem->slot[CLMGK_ARRAY_STATE_M];
    if (shape.rank == 0)
        return TOOL_DONE;
    input_set_shape(slot, shape.rank, shape.size);
    slot->used = true;
    slot->host = calloc(slot->count, sizeof(float));
    return tool_check_memory(slot->host, "the state", error);
}

/* The array whose shape, if it is given, is an output's. */
static clmgk_array model_of(clmgk_array output)
{
#define MODEL(name, ...) [CLMGK_ARRAY_GRAD_##name] = CLMGK_ARRAY_##name,
    static const clmgk_array models[CLMGK_ARRAYS] = {[CLMGK_ARRAY_COUNTS] = CLMGK_ARRAY_PRIOR,
                                                     [CLMGK_ARRAY_NEW_PRIOR] = CLMGK_ARRAY_PRIOR,
                                                     CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, MODEL, CLMGK_ARRAY_NONE)};
#undef MODEL
    return models[output] || output == CLMGK_ARRAY_GRAD_Q ? models[output] : output;
}

static void shape_output(const run_arguments *arguments, run_problem *problem, clmgk_array array)
{
    const clmgk_array model = model_of(array);
    clmgk_shape shape = clmgk_array_shape(&problem->desc, array);
    if (model != array && arguments->file[model]) {
        input_set_shape(&problem->slot[array], problem->slot[model].axes, problem->slot[model].shape);
        return;
    }
    if (array == CLMGK_ARRAY_O && arguments->tokens_first) {
        const int64_t heads = shape.size[1];
        shape.size[1] = shape.size[2];
        shape.size[2] = heads;
    }
    input_set_shape(&problem->slot[array], shape.rank, shape.size);
}

static void choose_outputs(const run_arguments *arguments, run_problem *problem)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    for (clmgk_array array = 0; array < RUN_FILES; array++) {
        const clmgk_array_info *info = clmgk_array_get_info(array);
        if (!run_is_output(array))
            continue;
        problem->slot[array].used = (desc->gradients & info->gradient) || (desc->statistics & info->statistic) ||
                                    clmgk_array_presence(desc, CLMGK_PASS_FORWARD, array) == CLMGK_REQUIRED;
        shape_output(arguments, problem, array);
    }
    const bool linear = (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_LINEAR) != 0;
    problem->slot[CLMGK_ARRAY_LSE].used =
        !linear && (arguments->file[CLMGK_ARRAY_LSE] || arguments->check || desc->gradients != 0);
    problem->slot[CLMGK_ARRAY_DENOMINATOR].used = linear && desc->gradients != 0;
}

tool_exit run_problem_open(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    *problem = (run_problem){.desc = CLMGK_ATTENTION_DESC_INIT};
    clmgk_attention_desc *const desc = &problem->desc;
    desc->variant = arguments->variant;
    desc->score = arguments->score;
    desc->estep = arguments->estep;
    TOOL_TRY(tensors_describe(arguments, problem, error));
    TOOL_TRY(parameters_describe(arguments, problem, error));
    describe_passes(arguments, desc);
    if (desc->length_k == 0) /* of the files: none, not the default */
        desc->length_k = CLMGK_NO_KEYS;
    TOOL_TRY(tool_check_library(clmgk_attention_validate(desc, desc, &error->library), error));
    TOOL_TRY(read_inputs(arguments, problem, error));
    TOOL_TRY(make_state_scale(problem, error));
    choose_outputs(arguments, problem);
    return TOOL_DONE;
}

void run_problem_close(run_problem *problem)
{
    for (size_t array = 0; array < RUN_FILES; array++) {
        npy_close(&problem->file[array]);
        free(problem->slot[array].host);
    }
    *problem = (run_problem){0};
}
