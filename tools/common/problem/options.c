/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <stdio.h>

/* ---- names ------------------------------------------------------------------------------------------------------ */

static const tool_option options[TOOL_PROBLEM_OPTION_COUNT] = {TOOL_PROBLEM_ROWS TOOL_OUTPUT_LIST(TOOL_ARRAY_ROW)
                                                                   TOOL_O_OPTIONS(TOOL_PROBLEM_ROW)};

const char *tool_array_label(clmgk_array array)
{
    return options[TOOL_OPTION_ARRAYS + (int)array].name;
}

const char *tool_array_option(clmgk_array array)
{
    if (array >= CLMGK_ARRAY_STATE_C && array <= CLMGK_ARRAY_STATE_M)
        return options[TOOL_OPTION_STATE_IN].name;
    if (array >= CLMGK_ARRAY_CAPTURE_0 && array <= CLMGK_ARRAY_CAPTURE_7)
        return options[TOOL_OPTION_CAPTURE_0].name;
    if (array >= CLMGK_ARRAY_NEW_STATE_C && array <= CLMGK_ARRAY_NEW_STATE_M)
        return "state-out";
    return tool_array_label(array);
}

bool tool_takes_numbers(clmgk_array array)
{
    return options[TOOL_OPTION_ARRAYS + (int)array].argument[0] == 'A';
}

bool tool_is_output(clmgk_array array)
{
    const clmgk_array_info *info = clmgk_array_get_info(array);
    return array == CLMGK_ARRAY_O || array == CLMGK_ARRAY_LSE || array == CLMGK_ARRAY_LSE_LOW || info->gradient != 0 ||
           info->statistic != 0 || (array >= CLMGK_ARRAY_NEW_STATE_C && array <= CLMGK_ARRAY_DENOMINATOR);
}

bool tool_is_streamed(clmgk_array array)
{
    return clmgk_array_get_info(array)->element == CLMGK_ELEMENT_STORAGE && !tool_is_output(array);
}

/* ---- which options apply ---------------------------------------------------------------------------------------- */

/* An option that means something only to variants with one of the traits `has`, and to none with one of `has_not`.
 * Gradients follow their arrays. */
typedef struct option_rule {
    uint32_t has, has_not;
    bool required; /* by the variants to which it means something */
} option_rule;

#define ARRAY(name)  [TOOL_OPTION_ARRAYS + CLMGK_ARRAY_##name]
#define OPTION(name) [TOOL_OPTION_##name]
static const option_rule rules[TOOL_COUNT(options)] = {
    ARRAY(LSE) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(GRAD_LSE) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(PRIOR) = {.has = CLMGK_TRAIT_PRIOR},
    ARRAY(VARIANCE) = {.has_not = CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR},
    ARRAY(SHIFT) = {.has = CLMGK_TRAIT_SHIFT, .required = true},
    ARRAY(POSITIONS) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(POSITIONS_K) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(BIAS) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(SLOPES) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(SINKS) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(MIX) = {.has = CLMGK_TRAIT_ADMIXTURE, .required = true},
    ARRAY(MIX_WEIGHT) = {.has = CLMGK_TRAIT_GENERALISED},
    ARRAY(MIX_OFFSET) = {.has = CLMGK_TRAIT_GENERALISED, .has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(MIX_HIDDEN_OFFSET) = {.has = CLMGK_TRAIT_GENERALISED, .has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(MIX_AFTER) = {.has = CLMGK_TRAIT_ADMIXTURE, .has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(PAGE_TABLE) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(SCALE_K) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(SCALE_V) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(NOISE) = {.has = CLMGK_TRAIT_NOISE, .required = true},
    ARRAY(PROJECTION) = {.has = CLMGK_TRAIT_LINEAR},
    ARRAY(RESPONSIBILITIES) = {.has_not = CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR},
    ARRAY(COUNTS) = {.has = CLMGK_TRAIT_PRIOR, .has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(NEW_PRIOR) = {.has = CLMGK_TRAIT_PRIOR, .has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(NLL) = {.has_not = CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR},
    OPTION(WINDOW) = {.has_not = CLMGK_TRAIT_LINEAR},
    OPTION(SOFTCAP) = {.has_not = CLMGK_TRAIT_LINEAR},
    OPTION(SCORE_MOD) = {.has_not = CLMGK_TRAIT_LINEAR},
    OPTION(MASK_MOD) = {.has_not = CLMGK_TRAIT_LINEAR},
    OPTION(MASK_BLOCK) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(MASK_BLOCKS) = {.has_not = CLMGK_TRAIT_LINEAR},
    OPTION(DROPOUT) = {.has_not = CLMGK_TRAIT_LINEAR},
    OPTION(FEATURE) = {.has = CLMGK_TRAIT_LINEAR},
    OPTION(FEATURE_ORDER) = {.has = CLMGK_TRAIT_LINEAR},
    OPTION(GUARD) = {.has = CLMGK_TRAIT_LINEAR},
    OPTION(UNNORMALISED) = {.has = CLMGK_TRAIT_LINEAR},
    OPTION(FEATURE_EPSILON) = {.has = CLMGK_TRAIT_LINEAR},
    OPTION(STATE_IN) = {.has = CLMGK_TRAIT_LINEAR},
    OPTION(ESTEP) = {.has_not = CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR},
    OPTION(SCORE) = {.has = CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT, .has_not = CLMGK_TRAIT_LINEAR},
    OPTION(SHARED_NOISE) = {.has = CLMGK_TRAIT_NOISE},
    OPTION(HEADS) = {.has = CLMGK_TRAIT_SHARED_MIX},
};
#undef ARRAY
#undef OPTION

/* The option of the array that a gradient belongs to; others: their own. */
static size_t option_of_base(size_t option)
{
#define BASE(name, ...) [TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_##name] = TOOL_OPTION_ARRAYS + CLMGK_ARRAY_##name,
    static const size_t bases[TOOL_COUNT(options)] = {CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, BASE, CLMGK_ARRAY_NONE)};
#undef BASE
    return bases[option] ? bases[option] : option;
}

static bool applies(const option_rule *rule, clmgk_variant variant)
{
    const uint32_t traits = clmgk_variant_traits(variant);
    return (rule->has == 0 || (traits & rule->has) != 0) && (traits & rule->has_not) == 0;
}

/* Options that mean nothing with the other score. */
static const struct {
    size_t option;
    clmgk_score score;
} score_rules[] = {
    {TOOL_OPTION_SOFTCAP, CLMGK_SCORE_DOT},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_NLL, CLMGK_SCORE_GAUSSIAN},
};

/* Options that mean nothing without another one. */
static const struct {
    size_t option, needs;
} companion_rules[] = {
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_LSE, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O},
    {TOOL_OPTION_DTYPE_GRAD, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_BIAS, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_BIAS},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_SINKS, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_SINKS},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS_K, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_SCALE_K, TOOL_OPTION_DTYPE_K},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_SCALE_V, TOOL_OPTION_DTYPE_V},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_POSITIONS, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_POSITIONS_K},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_POSITIONS_K, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_POSITIONS},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PAGE_OFFSETS, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PAGE_TABLE},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PAGE_OFFSETS, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_LAST_PAGE},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_LAST_PAGE, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PAGE_OFFSETS},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_MIX_HIDDEN_OFFSET, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_MIX_WEIGHT},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_MIX_AFTER, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_MIX_AFTER},
};

/* Options that packed sequences exclude; key lengths give each of them a cache, which the linear family has not. */
static const size_t not_packed[] = {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_LENGTHS_Q, TOOL_OPTION_STATE_IN,
                                    TOOL_OPTION_ARRAYS + CLMGK_ARRAY_MASK_BLOCKS,
                                    TOOL_OPTION_ARRAYS + CLMGK_ARRAY_LENGTHS};

/* Options that mean nothing with another feature map. */
static const struct {
    size_t option;
    clmgk_feature feature;
} feature_rules[] = {
    {TOOL_OPTION_FEATURE_ORDER, CLMGK_FEATURE_DPFP},
    {TOOL_OPTION_FEATURE_EPSILON, CLMGK_FEATURE_RELU},
    {TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PROJECTION, CLMGK_FEATURE_FAVOR},
};

tool_exit tool_require(const char *const *values, size_t option, const char *name, const char *with, tool_error *error)
{
    if (values[option])
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s is required%s%s", name, with ? " with " : "", with ? with : "");
}

static tool_exit require(const char *const *values, size_t option, const char *with, tool_error *error)
{
    return tool_require(values, option, options[option].name, with, error);
}

static tool_exit require_companion(const char *const *values, size_t option, size_t needs, tool_error *error)
{
    return values[option] && !values[needs]
               ? tool_fail(error, TOOL_BAD_INPUT, "--%s needs --%s", options[option].name, options[needs].name)
               : TOOL_DONE;
}

static tool_exit check_companions(const char *const *values, clmgk_variant variant, tool_error *error)
{
    const size_t offsets = TOOL_OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS, lengths = TOOL_OPTION_ARRAYS + CLMGK_ARRAY_LENGTHS;
    const size_t offsets_k = TOOL_OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS_K;
    const bool linear = (clmgk_variant_traits(variant) & CLMGK_TRAIT_LINEAR) != 0;
    for (int array = 0; array < (int)TOOL_FILES; array++) {
        if (clmgk_array_get_info((clmgk_array)array)->gradient)
            TOOL_TRY(require_companion(values, TOOL_OPTION_ARRAYS + (size_t)array,
                                       TOOL_OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O, error));
    }
    for (size_t i = 0; i < TOOL_COUNT(companion_rules); i++)
        TOOL_TRY(require_companion(values, companion_rules[i].option, companion_rules[i].needs, error));
    if (values[TOOL_OPTION_SEED] && !values[TOOL_OPTION_DROPOUT] && !values[TOOL_OPTION_ARRAYS + CLMGK_ARRAY_NOISE])
        return tool_fail(error, TOOL_BAD_INPUT, "--seed needs --dropout or --noise");
    for (size_t i = 0; i < TOOL_COUNT(not_packed) - (linear ? 0 : 1); i++) {
        if (values[not_packed[i]] && values[offsets])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to packed sequences (--%s)",
                             options[not_packed[i]].name, options[offsets].name);
    }
    if (values[offsets_k] && (values[lengths] || values[TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PAGE_TABLE]))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to caches and pages of keys (--%s with --%s)",
                         options[offsets_k].name,
                         options[values[lengths] ? lengths : TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PAGE_TABLE].name,
                         options[offsets].name);
    return TOOL_DONE;
}

/* What the variant needs, and what means nothing to it. */
static tool_exit check_options(const char *const *values, clmgk_variant variant, tool_error *error)
{
    const char *const name = clmgk_variant_name(variant);
    TOOL_TRY(require(values, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_Q, NULL, error));
    TOOL_TRY(require(values, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_K, NULL, error));
    for (size_t option = 0; option < TOOL_COUNT(rules); option++) {
        if (rules[option].required && applies(&rules[option], variant))
            TOOL_TRY(require(values, option, name, error));
    }
    for (size_t option = 0; option < TOOL_COUNT(rules); option++) {
        if (values[option] && !applies(&rules[option_of_base(option)], variant))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to %s", options[option].name, name);
    }
    return check_companions(values, variant, error);
}

static tool_exit check_score(const char *const *values, const tool_problem_arguments *arguments, tool_error *error)
{
    clmgk_score score = arguments->score;
    if (score == CLMGK_SCORE_DEFAULT)
        score = clmgk_variant_traits(arguments->variant) & CLMGK_TRAIT_PRIOR ? CLMGK_SCORE_GAUSSIAN : CLMGK_SCORE_DOT;
    for (size_t i = 0; i < TOOL_COUNT(score_rules); i++) {
        const size_t option = score_rules[i].option;
        if (values[option] && score_rules[i].score != score)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to %s scores", options[option].name,
                             clmgk_score_name(score));
    }
    return TOOL_DONE;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static tool_exit parse_feature(const char *const *values, tool_problem_arguments *arguments, tool_error *error)
{
    TOOL_TRY(tool_parse_feature("feature", values[TOOL_OPTION_FEATURE], &arguments->feature, error));
    TOOL_TRY(
        tool_parse_integer("feature-order", values[TOOL_OPTION_FEATURE_ORDER], 1, 3, &arguments->feature_order, error));
    TOOL_TRY(tool_parse_number("guard", values[TOOL_OPTION_GUARD], &arguments->guard, error));
    if (arguments->guard < 0.0)
        return tool_fail(error, TOOL_BAD_INPUT, "--guard %s: expected 0 or more", values[TOOL_OPTION_GUARD]);
    TOOL_TRY(
        tool_parse_number("feature-epsilon", values[TOOL_OPTION_FEATURE_EPSILON], &arguments->feature_epsilon, error));
    for (size_t i = 0; i < TOOL_COUNT(feature_rules); i++) {
        const size_t option = feature_rules[i].option;
        if (values[option] && feature_rules[i].feature != arguments->feature)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to --feature %s", options[option].name,
                             clmgk_feature_name(arguments->feature));
    }
    return arguments->feature == CLMGK_FEATURE_FAVOR ? require(values, TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PROJECTION,
                                                               clmgk_feature_name(arguments->feature), error)
                                                     : TOOL_DONE;
}

tool_exit tool_name_state(const char *option, const char *prefix, clmgk_array first, char (*paths)[TOOL_MAX_PATH],
                          tool_problem_arguments *arguments, tool_error *error)
{
    for (int i = 0; prefix && i < 2; i++) {
        const int length = snprintf(paths[i], TOOL_MAX_PATH, "%s.%c.npy", prefix, "cz"[i]);
        if (length < 0 || length >= TOOL_MAX_PATH)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s: a path of more than %d bytes", option, TOOL_MAX_PATH - 1);
        arguments->file[(int)first + i] = paths[i];
    }
    return TOOL_DONE;
}

static tool_exit parse_choices(const char *const *values, tool_problem_arguments *arguments, tool_error *error)
{
    static const char *const layouts[] = {"bhnd", "bnhd"};
    size_t layout = 0;
    TOOL_TRY(tool_parse_name("layout", values[TOOL_OPTION_LAYOUT], layouts, TOOL_COUNT(layouts), &layout, error));
    arguments->tokens_first = layout == 1;
    TOOL_TRY(tool_parse_score("score", values[TOOL_OPTION_SCORE], &arguments->score, error));
    TOOL_TRY(tool_parse_estep("estep", values[TOOL_OPTION_ESTEP], &arguments->estep, error));
    TOOL_TRY(tool_parse_alignment("causal-align", values[TOOL_OPTION_CAUSAL_ALIGN], &arguments->alignment, error));
    if (arguments->alignment == CLMGK_ALIGN_LENGTHS && !values[TOOL_OPTION_ARRAYS + CLMGK_ARRAY_LENGTHS] &&
        !values[TOOL_OPTION_ARRAYS + CLMGK_ARRAY_PAGE_OFFSETS])
        return tool_fail(error, TOOL_BAD_INPUT, "--causal-align lengths needs --lengths");
    if (values[TOOL_OPTION_CAUSAL_ALIGN] && !values[TOOL_OPTION_CAUSAL] && !values[TOOL_OPTION_WINDOW] &&
        !values[TOOL_OPTION_ARRAYS + CLMGK_ARRAY_SLOPES])
        return tool_fail(
            error, TOOL_BAD_INPUT,
            "--causal-align %s: expected --causal, --window or --alibi with it: nothing else has a diagonal",
            values[TOOL_OPTION_CAUSAL_ALIGN]);
    return TOOL_DONE;
}

static tool_exit parse_modifiers(const char *const *values, tool_problem_arguments *arguments, tool_error *error)
{
    TOOL_TRY(tool_parse_window(values[TOOL_OPTION_WINDOW], INT64_MAX, arguments->window, error));
    TOOL_TRY(tool_parse_number("softcap", values[TOOL_OPTION_SOFTCAP], &arguments->softcap, error));
    if (values[TOOL_OPTION_SOFTCAP] && arguments->softcap <= 0.0)
        return tool_fail(error, TOOL_BAD_INPUT, "--softcap %s: expected a number above 0", values[TOOL_OPTION_SOFTCAP]);
    TOOL_TRY(tool_parse_number("dropout", values[TOOL_OPTION_DROPOUT], &arguments->dropout, error));
    if (!(arguments->dropout >= 0.0 && arguments->dropout < 1.0))
        return tool_fail(error, TOOL_BAD_INPUT, "--dropout %s: expected a probability, 0 or more and less than 1",
                         values[TOOL_OPTION_DROPOUT]);
    TOOL_TRY(tool_parse_u64("seed", values[TOOL_OPTION_SEED], &arguments->seed, error));
    TOOL_TRY(tool_parse_integer("heads", values[TOOL_OPTION_HEADS], 1, INT64_C(1) << 30, &arguments->heads, error));
    TOOL_TRY(tool_parse_dtype("dtype", values[TOOL_OPTION_DTYPE], &arguments->dtype, error));
    TOOL_TRY(tool_parse_cache_storage("dtype-k", values[TOOL_OPTION_DTYPE_K], &arguments->dtype_k, error));
    TOOL_TRY(tool_parse_cache_storage("dtype-v", values[TOOL_OPTION_DTYPE_V], &arguments->dtype_v, error));
    TOOL_TRY(tool_parse_storage("dtype-o", values[TOOL_OPTION_DTYPE_O], &arguments->dtype_o, error));
    TOOL_TRY(tool_parse_storage("dtype-grad", values[TOOL_OPTION_DTYPE_GRAD], &arguments->dtype_grad, error));
    return tool_parse_precision("precision", values[TOOL_OPTION_PRECISION], &arguments->precision, error);
}

tool_exit tool_parse_problem(const char *const *values, tool_problem_arguments *arguments, tool_error *error)
{
    TOOL_TRY(require(values, TOOL_OPTION_VARIANT, NULL, error));
    *arguments = (tool_problem_arguments){
        .has_dtype = values[TOOL_OPTION_DTYPE] != NULL,
        .causal = values[TOOL_OPTION_CAUSAL] != NULL,
        .has_window = values[TOOL_OPTION_WINDOW] != NULL,
        .shared_noise = values[TOOL_OPTION_SHARED_NOISE] != NULL,
        .unnormalised = values[TOOL_OPTION_UNNORMALISED] != NULL,
    };
    for (int array = 0; array < (int)TOOL_FILES; array++)
        arguments->file[array] = values[TOOL_OPTION_ARRAYS + array];
    TOOL_TRY(tool_name_state(options[TOOL_OPTION_STATE_IN].name, values[TOOL_OPTION_STATE_IN], CLMGK_ARRAY_STATE_C,
                             arguments->state_in_files, arguments, error));
    TOOL_TRY(tool_parse_variant("variant", values[TOOL_OPTION_VARIANT], &arguments->variant, error));
    TOOL_TRY(check_options(values, arguments->variant, error));
    TOOL_TRY(texts_parse(values, arguments, error));
    TOOL_TRY(parse_choices(values, arguments, error));
    TOOL_TRY(parse_feature(values, arguments, error));
    TOOL_TRY(check_score(values, arguments, error));
    return parse_modifiers(values, arguments, error);
}

tool_exit tool_refuse_inputs(const tool_problem_arguments *arguments, const tool_outputs *outputs, tool_error *error)
{
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (arguments->file[array] && !tool_is_output(array)) /* a list of numbers is no file's name */
            TOOL_TRY(tool_outputs_refuse_input(outputs, tool_array_option(array), arguments->file[array], error));
    }
    return TOOL_DONE;
}
