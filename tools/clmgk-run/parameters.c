/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <inttypes.h>

/* ---- prior, variance, shift --------------------------------------------------------------------------------- */

/* Whether the shape is [M], [H,M] or [H,M,S]. */
static bool has_shape(const npy_header *header, int axes, const clmgk_attention_desc *desc)
{
    if (header->axes != axes)
        return false;
    if (axes == 1)
        return header->shape[0] == desc->components;
    return header->shape[0] == desc->heads && header->shape[1] == desc->components &&
           (axes == 2 || header->shape[2] == desc->length_k);
}

static tool_exit fail_numbers(const npy_file *file, const char *expected, const clmgk_attention_desc *desc,
                              tool_error *error)
{
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: has shape %s; expected %s with H = %" PRId64 ", M = %" PRId64 ", S = %" PRId64,
                     file->option, file->path, npy_shape_text(file->header.axes, file->header.shape).text, expected,
                     desc->heads, desc->components, desc->length_k);
}

/* b [H,M,D], which gives M. */
static tool_exit describe_shift(const char *path, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[RUN_SHIFT];
    TOOL_TRY(input_open_floats(problem, RUN_SHIFT, path, error));
    if (file->header.axes != 3)
        return input_fail_shape(file, "[H,M,D]", error);
    TOOL_TRY(input_expect_heads(problem, file, 0, error));
    TOOL_TRY(input_expect_positive(file, 1, "M", error));
    TOOL_TRY(input_expect_size(file, 2, "D", desc->head_size, RUN_Q, error));
    desc->components = file->header.shape[1];
    return input_read(problem, RUN_SHIFT, error);
}

static tool_exit describe_prior(const char *text, run_problem *problem, tool_error *error)
{
    static const clmgk_prior_shape shapes[] = {CLMGK_PRIOR_M, CLMGK_PRIOR_HM, CLMGK_PRIOR_HMS};
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[RUN_PRIOR];
    TOOL_TRY(input_open_numbers(problem, RUN_PRIOR, text, error));
    const int axes = file->header.axes;
    if (axes < 1 || axes > 3 || !has_shape(&file->header, axes, desc))
        return fail_numbers(file, "[M], [H,M] or [H,M,S]", desc, error);
    desc->prior_shape = shapes[axes - 1];
    return input_read_values(problem, RUN_PRIOR, &input_not_negative, error);
}

static tool_exit describe_variance(const char *text, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[RUN_VARIANCE];
    run_slot *const slot = &problem->slot[RUN_VARIANCE];
    TOOL_TRY(input_open_numbers(problem, RUN_VARIANCE, text, error));
    const int axes = file->header.axes;
    const bool number = axes == 0 || (axes == 1 && file->header.count == 1);
    if (!number && (axes > 2 || !has_shape(&file->header, axes, desc)))
        return fail_numbers(file, "one number, [M] or [H,M]", desc, error);
    TOOL_TRY(input_read_values(problem, RUN_VARIANCE, &input_positive, error));
    desc->variance_shape = number ? CLMGK_VARIANCE_NUMBER : axes == 1 ? CLMGK_VARIANCE_M : CLMGK_VARIANCE_HM;
    if (number) { /* the descriptor has it, and the call no array */
        desc->variance = (double)*(const float *)slot->host;
        slot->used = false;
    }
    return TOOL_DONE;
}

/* ---- bias, slopes, sinks, dL -------------------------------------------------------------------------------- */

static tool_exit expect_full_or_one(const npy_file *file, int axis, const char *symbol, int64_t full, tool_error *error)
{
    const int64_t size = file->header.shape[axis];
    if (size == 1 || size == full)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: has shape %s, where axis %d is %" PRId64 "; expected 1 or %s = %" PRId64, file->option,
                     file->path, npy_shape_text(file->header.axes, file->header.shape).text, axis, size, symbol, full);
}

static tool_exit describe_bias(const char *path, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[RUN_BIAS];
    const int64_t *const shape = file->header.shape;
    TOOL_TRY(input_open_floats(problem, RUN_BIAS, path, error));
    if (file->header.axes != 4)
        return input_fail_shape(file, "[B,H,N,S], where each axis may be 1", error);
    if (shape[0] < 1 || desc->batch % shape[0] != 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s %s: has shape %s, where axis 0 is %" PRId64 "; expected a divisor of B = %" PRId64,
                         file->option, path, npy_shape_text(4, shape).text, shape[0], desc->batch);
    TOOL_TRY(expect_full_or_one(file, 1, "H", desc->heads, error));
    TOOL_TRY(expect_full_or_one(file, 2, "N", desc->length, error));
    TOOL_TRY(expect_full_or_one(file, 3, "S", desc->length_k, error));
    desc->use_bias = 1;
    desc->bias_batch = shape[0];
    desc->bias_heads = shape[1];
    desc->bias_length = shape[2];
    desc->bias_length_k = shape[3];
    return input_read_values(problem, RUN_BIAS, &input_additive, error);
}

/* Numbers [H]. */
static tool_exit describe_per_head(run_array array, const char *text, run_problem *problem, tool_error *error)
{
    const npy_file *const file = &problem->file[array];
    TOOL_TRY(input_open_numbers(problem, array, text, error));
    if (file->header.axes != 1)
        return input_fail_shape(file, "[H]", error);
    TOOL_TRY(input_expect_heads(problem, file, 0, error));
    return input_read_values(problem, array, &input_finite, error);
}

static tool_exit describe_grad_lse(const char *path, run_problem *problem, tool_error *error)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[RUN_GRAD_LSE];
    TOOL_TRY(input_open_floats(problem, RUN_GRAD_LSE, path, error));
    if (file->header.axes != 3)
        return input_fail_shape(file, "[B,H,N]", error);
    TOOL_TRY(input_expect_size(file, 0, "B", desc->batch, RUN_Q, error));
    TOOL_TRY(input_expect_heads(problem, file, 1, error));
    TOOL_TRY(input_expect_size(file, 2, "N", desc->length, RUN_Q, error));
    return input_read(problem, RUN_GRAD_LSE, error);
}

/* ---- lengths and packed sequences --------------------------------------------------------------------------- */

static tool_exit describe_lengths(run_array array, const char *path, int64_t limit, run_problem *problem,
                                  tool_error *error)
{
    const npy_file *const file = &problem->file[array];
    TOOL_TRY(input_open_integers(problem, array, path, "[B]", error));
    TOOL_TRY(input_expect_size(file, 0, "B", problem->desc.batch, RUN_Q, error));
    TOOL_TRY(input_read(problem, array, error));
    const int32_t *const lengths = problem->slot[array].host;
    for (int64_t b = 0; b < problem->desc.batch; b++) {
        if (lengths[b] < 0 || lengths[b] > limit)
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s %s: element %" PRId64 " is %" PRId32 "; expected 0 to %" PRId64, file->option, path,
                             b, lengths[b], limit);
    }
    return TOOL_DONE;
}

/* First 0, then not descending, last the axis. */
static tool_exit check_offsets(const npy_file *file, const int32_t *offsets, int64_t sequences, const char *symbol,
                               int64_t axis, tool_error *error)
{
    if (offsets[0] != 0)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: element 0 is %" PRId32 "; expected 0", file->option,
                         file->path, offsets[0]);
    for (int64_t t = 1; t <= sequences; t++) {
        if (offsets[t] < offsets[t - 1])
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s %s: element %" PRId64 " is %" PRId32 "; expected at least %" PRId32
                             ", the one before it",
                             file->option, file->path, t, offsets[t], offsets[t - 1]);
    }
    if (offsets[sequences] != axis)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: ends with %" PRId32 "; expected %s = %" PRId64, file->option,
                         file->path, offsets[sequences], symbol, axis);
    return TOOL_DONE;
}

static tool_exit describe_offsets(const char *path, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[RUN_OFFSETS];
    if (desc->batch != 1)
        return tool_fail(error, TOOL_BAD_INPUT, "--q %s: has B = %" PRId64 "; expected B = 1 with --%s",
                         problem->file[RUN_Q].path, desc->batch, run_option(RUN_OFFSETS));
    TOOL_TRY(input_open_integers(problem, RUN_OFFSETS, path, "[T+1]", error));
    if (file->header.count < 2)
        return input_fail_shape(file, "[T+1] with at least one sequence", error);
    desc->sequences = file->header.shape[0] - 1;
    TOOL_TRY(input_read(problem, RUN_OFFSETS, error));
    return check_offsets(file, problem->slot[RUN_OFFSETS].host, desc->sequences, "N", desc->length, error);
}

static tool_exit describe_offsets_k(const char *path, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[RUN_OFFSETS_K];
    TOOL_TRY(input_open_integers(problem, RUN_OFFSETS_K, path, "[T+1]", error));
    TOOL_TRY(input_expect_size(file, 0, "T + 1", desc->sequences + 1, RUN_OFFSETS, error));
    desc->use_offsets_k = 1;
    TOOL_TRY(input_read(problem, RUN_OFFSETS_K, error));
    return check_offsets(file, problem->slot[RUN_OFFSETS_K].host, desc->sequences, "S", desc->length_k, error);
}

static tool_exit describe_sequences(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    TOOL_TRY(describe_offsets(arguments->file[RUN_OFFSETS], problem, error));
    if (arguments->file[RUN_OFFSETS_K])
        return describe_offsets_k(arguments->file[RUN_OFFSETS_K], problem, error);
    if (desc->length != desc->length_k)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s: --q has N = %" PRId64 ", --k has S = %" PRId64 "; expected --%s where they differ",
                         run_option(RUN_OFFSETS), desc->length, desc->length_k, run_option(RUN_OFFSETS_K));
    return TOOL_DONE;
}

/* ---- the whole ---------------------------------------------------------------------------------------------- */

static tool_exit describe_modifiers(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    desc->causal = arguments->causal;
    desc->alignment = arguments->alignment;
    desc->use_window = arguments->has_window;
    desc->window_left = arguments->window[0];
    desc->window_right = arguments->window[1];
    desc->softcap = arguments->softcap;
    desc->dropout = arguments->dropout;
    problem->seed = arguments->seed;
    if (desc->softcap > 0.0 && desc->components != 1 && !tool_is_mixed(desc->variant))
        return tool_fail(error, TOOL_BAD_INPUT, "--softcap %g: does not apply to M = %" PRId64 " components",
                         desc->softcap, desc->components);
    return TOOL_DONE;
}

tool_exit parameters_describe(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const char *const *const file = arguments->file;
    TOOL_TRY(mixing_describe(arguments, problem, error));
    if (file[RUN_SHIFT])
        TOOL_TRY(describe_shift(file[RUN_SHIFT], problem, error));
    if (file[RUN_PRIOR])
        TOOL_TRY(describe_prior(file[RUN_PRIOR], problem, error));
    if (file[RUN_VARIANCE])
        TOOL_TRY(describe_variance(file[RUN_VARIANCE], problem, error));
    if (file[RUN_LENGTHS])
        TOOL_TRY(describe_lengths(RUN_LENGTHS, file[RUN_LENGTHS], desc->length_k, problem, error));
    if (file[RUN_LENGTHS_Q])
        TOOL_TRY(describe_lengths(RUN_LENGTHS_Q, file[RUN_LENGTHS_Q], desc->length, problem, error));
    if (file[RUN_OFFSETS])
        TOOL_TRY(describe_sequences(arguments, problem, error));
    if (file[RUN_BIAS])
        TOOL_TRY(describe_bias(file[RUN_BIAS], problem, error));
    if (file[RUN_SLOPES])
        TOOL_TRY(describe_per_head(RUN_SLOPES, file[RUN_SLOPES], problem, error));
    if (file[RUN_SINKS])
        TOOL_TRY(describe_per_head(RUN_SINKS, file[RUN_SINKS], problem, error));
    if (file[RUN_MIX_OFFSET])
        TOOL_TRY(describe_per_head(RUN_MIX_OFFSET, file[RUN_MIX_OFFSET], problem, error));
    if (file[RUN_GRAD_LSE])
        TOOL_TRY(describe_grad_lse(file[RUN_GRAD_LSE], problem, error));
    desc->use_lengths = file[RUN_LENGTHS] != NULL;
    desc->use_lengths_q = file[RUN_LENGTHS_Q] != NULL;
    desc->use_alibi = file[RUN_SLOPES] != NULL;
    desc->use_sinks = file[RUN_SINKS] != NULL;
    return describe_modifiers(arguments, problem, error);
}
