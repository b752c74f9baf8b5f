/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <inttypes.h>

/* Opens numbers [M], M as in Q. */
static tool_exit open_per_component(run_problem *problem, run_array array, const char *text, tool_error *error)
{
    const npy_file *const file = &problem->file[array];
    TOOL_TRY(input_open_numbers(problem, array, text, error));
    if (file->header.axes != 1)
        return input_fail_shape(file, "[M]", error);
    return input_expect_size(file, 0, "M", problem->desc.components, RUN_Q, error);
}

/* Opens numbers [H,M], M as in Q; a list holds them row by row. */
static tool_exit open_matrix(run_problem *problem, run_array array, const char *text, tool_error *error)
{
    npy_file *const file = &problem->file[array];
    npy_header *const header = &file->header;
    const int64_t components = problem->desc.components;
    TOOL_TRY(input_open_numbers(problem, array, text, error));
    const bool list = !file->stream;
    if (list && header->shape[0] % components != 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s: has %" PRId64 " numbers; expected [H,M], rows of M = %" PRId64 " as in --%s",
                         file->option, header->shape[0], components, run_option(RUN_Q));
    if (list) {
        header->axes = 2;
        header->shape[0] /= components;
        header->shape[1] = components;
        input_set_shape(&problem->slot[array], header->axes, header->shape);
    }
    if (header->axes != 2)
        return input_fail_shape(file, "[H,M]", error);
    return input_expect_size(file, 1, "M", components, RUN_Q, error);
}

tool_exit mixing_describe_heads(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[RUN_MIX];
    const uint32_t traits = clmgk_variant_traits(arguments->variant);
    if ((traits & CLMGK_TRAIT_SHARED_MIX) != 0) {
        TOOL_TRY(open_per_component(problem, RUN_MIX, arguments->file[RUN_MIX], error));
    } else {
        TOOL_TRY(open_matrix(problem, RUN_MIX, arguments->file[RUN_MIX], error));
        TOOL_TRY(input_expect_positive(file, 0, "H", error));
        if ((traits & CLMGK_TRAIT_SQUARE) != 0)
            TOOL_TRY(input_expect_size(file, 0, "H = M", desc->components, RUN_Q, error));
        desc->heads = file->header.shape[0];
        problem->heads_option = run_option(RUN_MIX);
    }
    return input_read_values(problem, RUN_MIX, &input_finite, error);
}

static tool_exit describe_weight(const char *text, run_problem *problem, tool_error *error)
{
    TOOL_TRY(open_matrix(problem, RUN_MIX_WEIGHT, text, error));
    TOOL_TRY(input_expect_heads(problem, &problem->file[RUN_MIX_WEIGHT], 0, error));
    problem->desc.use_mix_weight = 1;
    return input_read_values(problem, RUN_MIX_WEIGHT, &input_finite, error);
}

static tool_exit describe_noise(const char *text, run_problem *problem, tool_error *error)
{
    TOOL_TRY(open_per_component(problem, RUN_NOISE, text, error));
    return input_read_values(problem, RUN_NOISE, &input_not_negative, error);
}

tool_exit mixing_describe(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    const char *const *const file = arguments->file;
    if (file[RUN_MIX_WEIGHT])
        TOOL_TRY(describe_weight(file[RUN_MIX_WEIGHT], problem, error));
    if (file[RUN_NOISE])
        TOOL_TRY(describe_noise(file[RUN_NOISE], problem, error));
    problem->desc.use_mix_offset = file[RUN_MIX_OFFSET] != NULL;
    problem->desc.shared_noise = arguments->shared_noise;
    return TOOL_DONE;
}
