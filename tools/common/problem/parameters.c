/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <inttypes.h>

static tool_exit fail_numbers(const npy_file *file, const char *expected, const clmgk_attention_desc *desc,
                              tool_error *error)
{
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: has shape %s; expected %s with H = %" PRId64 ", M = %" PRId64 ", S = %" PRId64,
                     file->option, file->path, npy_shape_text(file->header.axes, file->header.shape).text, expected,
                     desc->heads, desc->components, desc->length_k);
}

static tool_exit describe_prior(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    static const clmgk_prior_shape shapes[] = {CLMGK_PRIOR_M, CLMGK_PRIOR_HM, CLMGK_PRIOR_HMS};
    static const char *const axes[] = {"M", "HM", "HMS"};
    const npy_file *const file = &problem->file[CLMGK_ARRAY_PRIOR];
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_PRIOR, error));
    for (size_t i = 0; i < TOOL_COUNT(axes); i++) {
        if (input_matches(problem, &file->header, axes[i])) {
            problem->desc.prior_shape = shapes[i];
            return input_read(problem, CLMGK_ARRAY_PRIOR, error);
        }
    }
    return fail_numbers(file, "[M], [H,M] or [H,M,S]", &problem->desc, error);
}

static tool_exit describe_variance(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[CLMGK_ARRAY_VARIANCE];
    tool_slot *const slot = &problem->slot[CLMGK_ARRAY_VARIANCE];
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_VARIANCE, error));
    const bool number = file->header.axes <= 1 && file->header.count == 1;
    const bool matrix = input_matches(problem, &file->header, "HM");
    if (!number && !matrix && !input_matches(problem, &file->header, "M"))
        return fail_numbers(file, "one number, [M] or [H,M]", desc, error);
    TOOL_TRY(input_read(problem, CLMGK_ARRAY_VARIANCE, error));
    desc->variance_shape = number ? CLMGK_VARIANCE_NUMBER : matrix ? CLMGK_VARIANCE_HM : CLMGK_VARIANCE_M;
    if (number) { /* the descriptor has it, and the call no array */
        desc->variance = (double)*(const float *)slot->host;
        slot->used = false;
    }
    return TOOL_DONE;
}

static tool_exit expect_full_or_one(const npy_file *file, int axis, const char *symbol, int64_t full, tool_error *error)
{
    const int64_t size = file->header.shape[axis];
    if (size == 1 || size == full)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: has shape %s, where axis %d is %" PRId64 "; expected 1 or %s = %" PRId64, file->option,
                     file->path, npy_shape_text(file->header.axes, file->header.shape).text, axis, size, symbol, full);
}

static tool_exit describe_bias(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[CLMGK_ARRAY_BIAS];
    const int64_t *const shape = file->header.shape;
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_BIAS, error));
    if (file->header.axes != 4)
        return input_fail_shape(file, "[B,H,N,S], where each axis may be 1", error);
    if (shape[0] < 1 || desc->batch % shape[0] != 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s %s: has shape %s, where axis 0 is %" PRId64 "; expected a divisor of B = %" PRId64,
                         file->option, file->path, npy_shape_text(4, shape).text, shape[0], desc->batch);
    const bool after = desc->mix_after_heads > 0;
    TOOL_TRY(expect_full_or_one(file, 1, after ? "A" : "H", after ? desc->mix_after_heads : desc->heads, error));
    TOOL_TRY(expect_full_or_one(file, 2, "N", desc->length, error));
    TOOL_TRY(expect_full_or_one(file, 3, "S", desc->length_k, error));
    desc->bias_batch = shape[0];
    desc->bias_heads = shape[1];
    desc->bias_length = shape[2];
    desc->bias_length_k = shape[3];
    return input_read(problem, CLMGK_ARRAY_BIAS, error);
}

static tool_exit describe_offsets(const tool_problem_arguments *arguments, tool_problem *problem, clmgk_array array,
                                  tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const file = &problem->file[array];
    TOOL_TRY(input_open(arguments, problem, array, error));
    if (file->header.axes != 1)
        return input_fail_shape(file, "[T+1]", error);
    const int64_t sequences = file->header.shape[0] - 1;
    if (array == CLMGK_ARRAY_OFFSETS && sequences < 1)
        return input_fail_shape(file, "[T+1] with at least one sequence", error);
    if (array == CLMGK_ARRAY_OFFSETS_K && sequences != desc->sequences)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has shape %s; expected T + 1 = %" PRId64 " as in --%s",
                         file->option, file->path, npy_shape_text(1, file->header.shape).text, desc->sequences + 1,
                         tool_array_option(CLMGK_ARRAY_OFFSETS));
    const tool_size *const caches = &problem->size['T' - 'A']; /* where keys have caches or pages */
    if (array == CLMGK_ARRAY_OFFSETS && caches->source && sequences != caches->value)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has shape %s; expected T + 1 = %" PRId64 " as in --%s",
                         file->option, file->path, npy_shape_text(1, file->header.shape).text, caches->value + 1,
                         caches->source);
    desc->sequences = sequences;
    return input_read(problem, array, error);
}

static tool_exit describe_sequences(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    if (desc->batch != 1)
        return tool_fail(error, TOOL_BAD_INPUT, "--q %s: has B = %" PRId64 "; expected B = 1 with --%s",
                         problem->file[CLMGK_ARRAY_Q].path, desc->batch, tool_array_option(CLMGK_ARRAY_OFFSETS));
    TOOL_TRY(describe_offsets(arguments, problem, CLMGK_ARRAY_OFFSETS, error));
    desc->use_offsets_k = arguments->file[CLMGK_ARRAY_OFFSETS_K] != NULL;
    if (desc->use_offsets_k)
        return describe_offsets(arguments, problem, CLMGK_ARRAY_OFFSETS_K, error);
    if (desc->length != desc->length_k && !arguments->file[CLMGK_ARRAY_LENGTHS] && desc->page_size == 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s: --q has N = %" PRId64 ", --k has S = %" PRId64 "; expected --%s where they differ",
                         tool_array_option(CLMGK_ARRAY_OFFSETS), desc->length, desc->length_k,
                         tool_array_option(CLMGK_ARRAY_OFFSETS_K));
    return TOOL_DONE;
}

static tool_exit describe_modifiers(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const char *const *const file = arguments->file;
#define TURN_ON(name, field) desc->field = file[CLMGK_ARRAY_##name] != NULL;
    CLMGK_SWITCH_LIST(TURN_ON)
    desc->shared_noise = arguments->shared_noise;
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

/* The map, and F. */
static tool_exit describe_features(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    desc->feature = arguments->feature;
    desc->feature_order = (int32_t)arguments->feature_order;
    desc->guard = arguments->guard;
    desc->unnormalised = arguments->unnormalised;
    desc->feature_epsilon = arguments->feature_epsilon;
    if (desc->feature == CLMGK_FEATURE_FAVOR) {
        TOOL_TRY(input_take(arguments, problem, CLMGK_ARRAY_PROJECTION, "FD", error));
        desc->features = input_size(problem, 'F');
        return TOOL_DONE;
    }
    const int64_t order = desc->feature_order > 0 ? desc->feature_order : 1;
    input_set_size(problem, 'F', desc->head_size * (desc->feature == CLMGK_FEATURE_DPFP ? 2 * order : 1), "feature");
    return TOOL_DONE;
}

tool_exit parameters_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    const char *const *const file = arguments->file;
    if (clmgk_variant_traits(arguments->variant) & CLMGK_TRAIT_LINEAR)
        TOOL_TRY(describe_features(arguments, problem, error));
    if (file[CLMGK_ARRAY_PRIOR])
        TOOL_TRY(describe_prior(arguments, problem, error));
    if (file[CLMGK_ARRAY_VARIANCE])
        TOOL_TRY(describe_variance(arguments, problem, error));
    if (file[CLMGK_ARRAY_OFFSETS])
        TOOL_TRY(describe_sequences(arguments, problem, error));
    if (file[CLMGK_ARRAY_BIAS])
        TOOL_TRY(describe_bias(arguments, problem, error));
    return describe_modifiers(arguments, problem, error);
}
