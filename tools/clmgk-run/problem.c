/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <stdlib.h>

/* ---- elements ----------------------------------------------------------------------------------------------- */

clmgk_dtype run_dtype(const clmgk_attention_desc *desc, run_array array)
{
    const bool stored =
        array < RUN_STREAMED || array == RUN_O || array == RUN_GRAD_Q || array == RUN_GRAD_K || array == RUN_GRAD_V;
    return stored ? desc->dtype : CLMGK_DTYPE_F32;
}

size_t run_element_size(const clmgk_attention_desc *desc, run_array array)
{
    return clmgk_ref_dtype_size(run_dtype(desc, array)); /* lengths and offsets: as large as an f32 */
}

/* ---- outputs ------------------------------------------------------------------------------------------------ */

/* Bit n: the output first + n was asked for. */
static uint32_t set_of(const run_arguments *arguments, run_array first, int count)
{
    uint32_t set = 0;
    for (int n = 0; n < count; n++)
        set |= (uint32_t)(arguments->file[first + n] != NULL) << n;
    return set;
}

/* What the plan must be able to do. */
static void describe_passes(const run_arguments *arguments, clmgk_attention_desc *desc)
{
    desc->statistics = set_of(arguments, RUN_RESPONSIBILITIES, RUN_STATISTICS);
    desc->gradients = set_of(arguments, RUN_GRAD_Q, RUN_GRADIENTS);
    if (arguments->file[RUN_GRAD_O] && desc->gradients == 0)
        desc->gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
}

static void choose_outputs(const run_arguments *arguments, run_problem *problem)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    run_slot *const slot = problem->slot;
    slot[RUN_O].used = true;
    slot[RUN_LSE].used = arguments->file[RUN_LSE] || arguments->check || desc->gradients != 0;
    for (int n = 0; n < RUN_GRADIENTS; n++)
        slot[RUN_GRAD_Q + n].used = (desc->gradients >> n & 1U) != 0;
    for (int n = 0; n < RUN_STATISTICS; n++)
        slot[RUN_RESPONSIBILITIES + n].used = (desc->statistics >> n & 1U) != 0;
}

/* The shape of an input, or its default. */
static void shape_like(run_problem *problem, run_array output, run_array input, int64_t otherwise)
{
    const run_slot *const model = &problem->slot[input];
    if (model->host || input < RUN_STREAMED)
        input_set_shape(&problem->slot[output], model->axes, model->shape);
    else
        input_set_shape(&problem->slot[output], 1, &otherwise);
}

static void shape_outputs(const run_arguments *arguments, run_problem *problem)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    run_slot *const slot = problem->slot;
    const int64_t rows[] = {desc->batch, desc->heads, desc->length};
    const int64_t weights[] = {desc->batch, desc->heads, desc->components, desc->length, desc->length_k};
    const int64_t heads[] = {desc->sequences > 0 ? desc->sequences : desc->batch, desc->heads};
    const int64_t mixing[] = {desc->heads, desc->components};
    int64_t o[4];
    tensors_shape_o(problem, arguments->tokens_first, o);
    input_set_shape(&slot[RUN_O], 4, o);
    input_set_shape(&slot[RUN_LSE], 3, rows);
    input_set_shape(&slot[RUN_RESPONSIBILITIES], 5, weights);
    input_set_shape(&slot[RUN_NLL], 2, heads);
    input_set_shape(&slot[RUN_GRAD_MIX_WEIGHT], 2, mixing);
    input_set_shape(&slot[RUN_GRAD_MIX_OFFSET], 1, mixing);
    shape_like(problem, RUN_GRAD_Q, RUN_Q, 0);
    shape_like(problem, RUN_GRAD_K, RUN_K, 0);
    shape_like(problem, RUN_GRAD_V, RUN_V, 0);
    shape_like(problem, RUN_GRAD_PRIOR, RUN_PRIOR, desc->components);
    shape_like(problem, RUN_COUNTS, RUN_PRIOR, desc->components);
    shape_like(problem, RUN_NEW_PRIOR, RUN_PRIOR, desc->components);
    shape_like(problem, RUN_GRAD_VARIANCE, RUN_VARIANCE, 1);
    shape_like(problem, RUN_GRAD_SHIFT, RUN_SHIFT, 0);
    shape_like(problem, RUN_GRAD_BIAS, RUN_BIAS, 0);
    shape_like(problem, RUN_GRAD_SINKS, RUN_SINKS, 0);
    shape_like(problem, RUN_GRAD_MIX, RUN_MIX, 0);
    shape_like(problem, RUN_GRAD_NOISE, RUN_NOISE, 0);
}

/* ---- the whole ---------------------------------------------------------------------------------------------- */

tool_exit run_problem_open(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_error failure = {0};
    *problem = (run_problem){.desc = CLMGK_ATTENTION_DESC_INIT};
    clmgk_attention_desc *const desc = &problem->desc;
    desc->variant = arguments->variant;
    desc->score = arguments->score;
    desc->estep = arguments->estep;
    TOOL_TRY(tensors_describe(arguments, problem, error));
    TOOL_TRY(parameters_describe(arguments, problem, error));
    describe_passes(arguments, desc);
    if (clmgk_attention_validate(desc, desc, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    choose_outputs(arguments, problem);
    shape_outputs(arguments, problem);
    return TOOL_DONE;
}

void run_problem_close(run_problem *problem)
{
    for (size_t array = 0; array < RUN_INPUTS; array++) {
        npy_close(&problem->file[array]);
        free(problem->slot[array].host);
    }
    *problem = (run_problem){0};
}
