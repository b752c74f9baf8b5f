/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

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

static void shape_output(const tool_problem_arguments *arguments, tool_problem *problem, clmgk_array array)
{
    const clmgk_array model = model_of(array);
    clmgk_shape shape = clmgk_array_shape(&problem->desc, array);
    if (model != array && arguments->file[model]) {
        tool_set_shape(&problem->slot[array], problem->slot[model].axes, problem->slot[model].shape);
        return;
    }
    if (array == CLMGK_ARRAY_O && arguments->tokens_first) {
        const int64_t heads = shape.size[1];
        shape.size[1] = shape.size[2];
        shape.size[2] = heads;
    }
    tool_set_shape(&problem->slot[array], shape.rank, shape.size);
}

static void choose_outputs(const run_arguments *arguments, tool_problem *problem)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        const clmgk_array_info *info = clmgk_array_get_info(array);
        if (!tool_is_output(array))
            continue;
        problem->slot[array].used = (desc->gradients & info->gradient) || (desc->statistics & info->statistic) ||
                                    clmgk_array_presence(desc, CLMGK_PASS_FORWARD, array) == CLMGK_REQUIRED;
        shape_output(&arguments->problem, problem, array);
    }
    const bool linear = (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_LINEAR) != 0;
    problem->slot[CLMGK_ARRAY_LSE].used =
        !linear && (arguments->problem.file[CLMGK_ARRAY_LSE] || arguments->check || desc->gradients != 0);
    problem->slot[CLMGK_ARRAY_LSE_LOW].used = desc->use_lse_low != 0;
    problem->slot[CLMGK_ARRAY_DENOMINATOR].used = linear && desc->gradients != 0;
}

tool_exit run_problem_open(const run_arguments *arguments, tool_problem *problem, tool_error *error)
{
    TOOL_TRY(tool_problem_open(&arguments->problem, problem, error));
    /* gradients are right for rows of any size */
    const bool linear = (clmgk_variant_traits(problem->desc.variant) & CLMGK_TRAIT_LINEAR) != 0;
    problem->desc.use_lse_low = !linear && problem->desc.gradients != 0;
    choose_outputs(arguments, problem);
    return TOOL_DONE;
}
