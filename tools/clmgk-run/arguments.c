/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <stdio.h>

#define OWN_OPTIONS(X)                                                                                                 \
    X(LAYOUT, "layout", "ORDER",                                                                                       \
      "axes of Q, K, V, O and their gradients: bhnd, heads first (default), or bnhd,\n"                                \
      "tokens first: [B,N,H,D], [B,S,G,D] or [B,S,G,M,D], [B,S,G,E], [B,N,H,E]")                                       \
    X(HEADS, "heads", "H", "mish, hard-mish and their linear forms: local heads; default: heads of dO, or of V")       \
    X(SHARED_NOISE, "shared-noise", NULL, "variants with noise: the same random numbers for all heads")                \
    X(FEATURE, "feature", "NAME", "linear family: elu1 (default), relu, exp, dpfp or favor")                           \
    X(FEATURE_ORDER, "feature-order", "NU", "of dpfp: 1 (default), 2 or 3")                                            \
    X(GUARD, "guard", "X", "linear family: added to every denominator; default 0")                                     \
    X(STATE_IN, "state-in", "P",                                                                                       \
      "linear family: the state of earlier keys, which every query sees: P.c.npy\n"                                    \
      "[B,H,F,E] and P.z.npy [B,H,F]; mixed heads: [B,H,M,F,E] and [B,M,F]")                                           \
    X(STATE_OUT, "state-out", "P",                                                                                     \
      "writes the state after all keys, likewise; refused where its numbers don't fit\n"                               \
      "float32")                                                                                                       \
    X(SCORE, "score", "NAME", "dot or gaussian (default): mgk and smgk")                                               \
    X(ESTEP, "estep", "NAME", "soft (default) or hard: softmax, gaussian, mgk, smgk")                                  \
    X(CAUSAL, "causal", NULL, "hide keys beyond the diagonal")                                                         \
    X(CAUSAL_ALIGN, "causal-align", "WHERE",                                                                           \
      "the diagonal: bottom-right (default), top-left, or lengths (the end of\n"                                       \
      "each sequence's keys)")                                                                                         \
    X(WINDOW, "window", "L,R", "hide keys beyond L before and R after the diagonal; -1: no limit")                     \
    X(SOFTCAP, "softcap", "X", "scores s become X tanh(s/X): dot scores of one component, or mixed scores")            \
    X(DROPOUT, "dropout", "P", "drops weights with probability P, 0 <= P < 1")                                         \
    X(SEED, "seed", "U64", "seed of dropout and noise; default 0")                                                     \
    X(DTYPE, "dtype", "TYPE",                                                                                          \
      "storage on the device: f32, f16 or bf16; default f16 if Q is float16, else\n"                                   \
      "f32")                                                                                                           \
    X(CHECK, "check", NULL,                                                                                            \
      "compare with double precision on the host (slow), print the largest error;\n"                                   \
      "exit status 1 beyond the bound; outputs are written in any case")                                               \
    X(REPEAT, "repeat", "R",                                                                                           \
      "R timed repetitions of each pass after one run; prints the median and the\n"                                    \
      "rate")                                                                                                          \
    X(ENGINE, "engine", "NAME", TOOL_ENGINE_NAMES ": for development")                                                 \
    X(PARAMETERS, "parameters", "LIST", "kernel parameters name=value,...: for development")                           \
    X(BACKWARD_PARAMETERS, "backward-parameters", "LIST", "the same for the backward pass and the statistics")

enum {
    OPTION_VARIANT = TOOL_STANDARD_OPTION_COUNT,
    OPTION_ARRAYS, /* from here in the order of clmgk_array */
    OPTION_LAST_ARRAY = OPTION_ARRAYS + (int)RUN_FILES - 1,
    OWN_OPTIONS(TOOL_OPTION_NUMBER)
};

#define ARRAY(name) [OPTION_ARRAYS + CLMGK_ARRAY_##name]

static const tool_option options[] = {
    TOOL_STANDARD_OPTIONS,
    [OPTION_VARIANT] = {"variant", "NAME",
                        "softmax, gaussian, mgk, smgk; mixed heads: fish, hard-fish, mish, hard-mish,\n"
                        "gfish, hard-gfish, talking-heads; linear family: linear, mlk, smlk, lfish,\n"
                        "lhard-fish, lmish, lhard-mish, lgfish, lhard-gfish (required)"},
    ARRAY(Q) = {"q", "F", "queries [B,H,N,D]; mixed heads: [B,M,N,D] (required)"},
    ARRAY(K) = {"k", "F",
                "keys [B,G,S,D] (one component) or [B,G,M,S,D], G divides H; mixed heads:\n"
                "[B,M,S,D] (required)"},
    ARRAY(V) = {"v", "F", "values [B,G,S,E] (required)"},
    ARRAY(GRAD_O) = {"grad-out", "F", "dO [B,H,N,E]: runs the backward pass too"},
    ARRAY(PRIOR) = {"prior", "A", "[M], [H,M] or [H,M,S]: gaussian, mgk, smgk, mlk, smlk; default 1/M"},
    ARRAY(VARIANCE) = {"variance", "A",
                       "sigma^2: one number, [M] or [H,M]: softmax, gaussian, mgk, smgk; default sqrt(D)"},
    ARRAY(SHIFT) = {"shift", "F", "b [H,M,D]: smgk, smlk, required; gives M"},
    ARRAY(LENGTHS) = {"lengths", "F", "key lengths: integers [B] from 0 to S"},
    ARRAY(LENGTHS_Q) = {"lengths-q", "F", "query lengths: integers [B] from 0 to N"},
    ARRAY(OFFSETS) = {"offsets", "F",
                      "packed sequences: integers [T+1], from 0 to N, ascending; B is 1, and the axes N\n"
                      "and S hold T sequences back to back; not with lengths"},
    ARRAY(OFFSETS_K) = {"offsets-k", "F", "offsets of the keys, from 0 to S; default: --offsets"},
    ARRAY(BIAS) = {"bias", "F",
                   "added to the scaled scores: [B,H,N,S]; any axis may be 1, the first any divisor of\n"
                   "B; -inf hides a key"},
    ARRAY(SLOPES) = {"alibi", "A", "slopes [H]: adds -slope |j - d(i)|, d(i) the diagonal"},
    ARRAY(SINKS) = {"sinks", "A", "[H]: adds a logit without a key to every row"},
    ARRAY(MIX) = {"mix", "A",
                  "p [H,M], in a list row by row: fish, hard-fish, gfish, hard-gfish and their linear forms,\n"
                  "talking-heads (H = M); p [M]: mish, hard-mish and theirs; required with mixed heads"},
    ARRAY(MIX_WEIGHT) = {"mix-weight", "A", "w [H,M]: gfish, hard-gfish, lgfish, lhard-gfish; default 1"},
    ARRAY(MIX_OFFSET) = {"mix-offset", "A", "c [H]: gfish, hard-gfish; default 0"},
    ARRAY(NOISE) = {"noise", "A", "sigma [M]: fish, mish, gfish, lfish, lmish, lgfish, required"},
    ARRAY(PROJECTION) = {"projection", "F", "[R,D]: favor, required"},
    ARRAY(GRAD_LSE) = {"grad-lse", "F", "dL [B,H,N]; default 0"}, ARRAY(O) = {"out", "F", "writes O [B,H,N,E]"},
    ARRAY(LSE) = {"lse", "F", "writes L [B,H,N], the natural log-sum-exp; -inf for a row without keys"},
    ARRAY(GRAD_Q) = {"dq", "F", "writes dQ; every gradient has the shape of its array"},
    ARRAY(GRAD_K) = {"dk", "F", "writes dK"}, ARRAY(GRAD_V) = {"dv", "F", "writes dV"},
    ARRAY(GRAD_PRIOR) = {"dprior", "F", "writes the prior's gradient; [M] by default"},
    ARRAY(GRAD_VARIANCE) = {"dvariance", "F", "writes the variance's gradient; [1] by default"},
    ARRAY(GRAD_SHIFT) = {"dshift", "F", "writes the shift's gradient"},
    ARRAY(GRAD_BIAS) = {"dbias", "F", "writes the bias's gradient"},
    ARRAY(GRAD_SINKS) = {"dsinks", "F", "writes the sinks' gradient"},
    ARRAY(GRAD_MIX) = {"dmix", "F", "writes the mixing's gradient"},
    ARRAY(GRAD_MIX_WEIGHT) = {"dmix-weight", "F", "writes the mixing weights' gradient; [H,M] by default"},
    ARRAY(GRAD_MIX_OFFSET) = {"dmix-offset", "F", "writes the mixing offsets' gradient; [H] by default"},
    ARRAY(GRAD_NOISE) = {"dnoise", "F", "writes the gradient of the noise's sigma"},
    /* Arrays that other options stand for, or none does: no options, but labels. */
    ARRAY(STATE_C) = {"state-in.c", "F", NULL}, ARRAY(STATE_Z) = {"state-in.z", "F", NULL},
    ARRAY(STATE_M) = {"state-in.m", "F", NULL}, ARRAY(NEW_STATE_C) = {"state-out.c", "F", NULL},
    ARRAY(NEW_STATE_Z) = {"state-out.z", "F", NULL}, ARRAY(NEW_STATE_M) = {"state-out.m", "F", NULL},
    ARRAY(DENOMINATOR) = {"denominator", "F", NULL}, ARRAY(GRAD_NEW_STATE_C) = {"grad-state-out.c", "F", NULL},
    ARRAY(GRAD_NEW_STATE_Z) = {"grad-state-out.z", "F", NULL}, ARRAY(GRAD_STATE_C) = {"dstate-in.c", "F", NULL},
    ARRAY(GRAD_STATE_Z) = {"dstate-in.z", "F", NULL},
    ARRAY(RESPONSIBILITIES) = {"responsibilities", "F",
                               "writes gamma [B,H,M,N,S], the part of each component in its key (small N S only)"},
    ARRAY(COUNTS) = {"counts", "F",
                     "writes N_r, the sums of gamma, in the prior's shape ([M] by default); counts of\n"
                     "several runs may be added"},
    ARRAY(NEW_PRIOR) = {"new-prior", "F", "writes the M-step's prior, in the prior's shape"},
    ARRAY(NLL) = {"nll", "F", "writes the queries' negative log-likelihood [B,H] (packed: [T,H]): gaussian scores"},
    OWN_OPTIONS(TOOL_OPTION_ROW)};

const tool_program run_program = {
    .name = "clmgk-run",
    .summary =
        "Usage: clmgk-run --variant NAME --q F --k F --v F [--out F] [--lse F] [OPTION...]\n"
        "Attention with one or several Gaussian keys per position, with scores mixed across heads, or with feature\n"
        "maps in linear time, on arrays in .npy files.",
    .notes = "F is a .npy file: version 1 to 3, either byte order, C or Fortran order; float16, float32 or float64,\n"
             "lengths and offsets int32 or int64. A is such a file (its name ends in .npy) or numbers separated by\n"
             "commas. Outputs are C-order little-endian float32 files; they appear when all of them are complete, and\n"
             "none may be an input or another output. At least one output, --check or --repeat is given. With\n"
             "--grad-out and no gradient's file, dQ, dK and dV are computed (for --check and --repeat).\n"
             "\n"
             "--json prints: clmgk (version), variant, score, estep, dtype, engine, parameters, device {name,\n"
             "platform, driver, selector}, batch, heads, kv_heads, components, length, length_k, head_size,\n"
             "value_size, causal, in the linear family feature and features (F), workspace_bytes, compile_ms, program "
             "(memory, shipped, disk, built), flops (executed\n"
             "products over visible pairs), outputs {option: path}, with --repeat time_ms {median, min, max,\n"
             "repeat} and gflops, with --grad-out backward {gradients: [options], flops, with --repeat time_ms and\n"
             "gflops}, with --check check {ok, option: {error, bound, max, nan, first_nan,\n"
             "infinite, first_infinite}}.",
    .options = options,
    .option_count = TOOL_COUNT(options),
};

const char *run_label(clmgk_array array)
{
    return options[OPTION_ARRAYS + (int)array].name;
}

const char *run_option(clmgk_array array)
{
    if (array >= CLMGK_ARRAY_STATE_C && array <= CLMGK_ARRAY_STATE_M)
        return options[OPTION_STATE_IN].name;
    if (array >= CLMGK_ARRAY_NEW_STATE_C && array <= CLMGK_ARRAY_NEW_STATE_M)
        return options[OPTION_STATE_OUT].name;
    return run_label(array);
}

bool run_takes_numbers(clmgk_array array)
{
    return options[OPTION_ARRAYS + (int)array].argument[0] == 'A';
}

bool run_is_output(clmgk_array array)
{
    const clmgk_array_info *info = clmgk_array_get_info(array);
    return array == CLMGK_ARRAY_O || array == CLMGK_ARRAY_LSE || info->gradient != 0 || info->statistic != 0 ||
           (array >= CLMGK_ARRAY_NEW_STATE_C && array <= CLMGK_ARRAY_DENOMINATOR);
}

bool run_is_streamed(clmgk_array array)
{
    return clmgk_array_get_info(array)->element == CLMGK_ELEMENT_STORAGE && !run_is_output(array);
}

/* ---- which options apply ------------------------------------------------------------------------------------ */

/* An option that means something only to variants with one of the traits `has`, and to none with one of `has_not`.
 * Gradients follow their arrays. */
typedef struct option_rule {
    uint32_t has, has_not;
    bool required; /* by the variants to which it means something */
} option_rule;

static const option_rule rules[TOOL_COUNT(options)] = {
    ARRAY(LSE) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(GRAD_LSE) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(PRIOR) = {.has = CLMGK_TRAIT_PRIOR},
    ARRAY(VARIANCE) = {.has_not = CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR},
    ARRAY(SHIFT) = {.has = CLMGK_TRAIT_SHIFT, .required = true},
    ARRAY(BIAS) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(SLOPES) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(SINKS) = {.has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(MIX) = {.has = CLMGK_TRAIT_ADMIXTURE, .required = true},
    ARRAY(MIX_WEIGHT) = {.has = CLMGK_TRAIT_GENERALISED},
    ARRAY(MIX_OFFSET) = {.has = CLMGK_TRAIT_GENERALISED, .has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(NOISE) = {.has = CLMGK_TRAIT_NOISE, .required = true},
    ARRAY(PROJECTION) = {.has = CLMGK_TRAIT_LINEAR},
    ARRAY(RESPONSIBILITIES) = {.has_not = CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR},
    ARRAY(COUNTS) = {.has = CLMGK_TRAIT_PRIOR, .has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(NEW_PRIOR) = {.has = CLMGK_TRAIT_PRIOR, .has_not = CLMGK_TRAIT_LINEAR},
    ARRAY(NLL) = {.has_not = CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR},
    [OPTION_WINDOW] = {.has_not = CLMGK_TRAIT_LINEAR},
    [OPTION_SOFTCAP] = {.has_not = CLMGK_TRAIT_LINEAR},
    [OPTION_DROPOUT] = {.has_not = CLMGK_TRAIT_LINEAR},
    [OPTION_FEATURE] = {.has = CLMGK_TRAIT_LINEAR},
    [OPTION_FEATURE_ORDER] = {.has = CLMGK_TRAIT_LINEAR},
    [OPTION_GUARD] = {.has = CLMGK_TRAIT_LINEAR},
    [OPTION_STATE_IN] = {.has = CLMGK_TRAIT_LINEAR},
    [OPTION_STATE_OUT] = {.has = CLMGK_TRAIT_LINEAR},
    [OPTION_ESTEP] = {.has_not = CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR},
    [OPTION_SCORE] = {.has = CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT, .has_not = CLMGK_TRAIT_LINEAR},
    [OPTION_SHARED_NOISE] = {.has = CLMGK_TRAIT_NOISE},
    [OPTION_HEADS] = {.has = CLMGK_TRAIT_SHARED_MIX},
};

/* The option of the array that a gradient belongs to; others: their own. */
static size_t option_of_base(size_t option)
{
#define BASE(name, ...) [OPTION_ARRAYS + CLMGK_ARRAY_GRAD_##name] = OPTION_ARRAYS + CLMGK_ARRAY_##name,
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
    {OPTION_SOFTCAP, CLMGK_SCORE_DOT},
    {OPTION_ARRAYS + CLMGK_ARRAY_NLL, CLMGK_SCORE_GAUSSIAN},
};

/* Options that mean nothing without another one. */
static const struct {
    size_t option, needs;
} companion_rules[] = {
    {OPTION_ARRAYS + CLMGK_ARRAY_GRAD_LSE, OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O},
    {OPTION_ARRAYS + CLMGK_ARRAY_GRAD_BIAS, OPTION_ARRAYS + CLMGK_ARRAY_BIAS},
    {OPTION_ARRAYS + CLMGK_ARRAY_GRAD_SINKS, OPTION_ARRAYS + CLMGK_ARRAY_SINKS},
    {OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS_K, OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS},
};

/* Options that exclude each other. */
static const struct {
    size_t option, other;
} exclusion_rules[] = {
    {OPTION_ARRAYS + CLMGK_ARRAY_LENGTHS, OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS},
    {OPTION_ARRAYS + CLMGK_ARRAY_LENGTHS_Q, OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS},
    {OPTION_STATE_IN, OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS},
    {OPTION_STATE_OUT, OPTION_ARRAYS + CLMGK_ARRAY_OFFSETS},
};

/* Options that mean nothing with another feature map. */
static const struct {
    size_t option;
    clmgk_feature feature;
} feature_rules[] = {
    {OPTION_FEATURE_ORDER, CLMGK_FEATURE_DPFP},
    {OPTION_ARRAYS + CLMGK_ARRAY_PROJECTION, CLMGK_FEATURE_FAVOR},
};

static tool_exit require(const char *const *values, size_t option, const char *variant, tool_error *error)
{
    if (values[option])
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s is required%s%s", options[option].name, variant ? " with " : "",
                     variant ? variant : "");
}

static tool_exit require_companion(const char *const *values, size_t option, size_t needs, tool_error *error)
{
    return values[option] && !values[needs]
               ? tool_fail(error, TOOL_BAD_INPUT, "--%s needs --%s", options[option].name, options[needs].name)
               : TOOL_DONE;
}

static tool_exit check_companions(const char *const *values, tool_error *error)
{
    for (int array = 0; array < (int)RUN_FILES; array++) {
        if (clmgk_array_get_info((clmgk_array)array)->gradient)
            TOOL_TRY(
                require_companion(values, OPTION_ARRAYS + (size_t)array, OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O, error));
    }
    for (size_t i = 0; i < TOOL_COUNT(companion_rules); i++)
        TOOL_TRY(require_companion(values, companion_rules[i].option, companion_rules[i].needs, error));
    if (values[OPTION_SEED] && !values[OPTION_DROPOUT] && !values[OPTION_ARRAYS + CLMGK_ARRAY_NOISE])
        return tool_fail(error, TOOL_BAD_INPUT, "--seed needs --dropout or --noise");
    for (size_t i = 0; i < TOOL_COUNT(exclusion_rules); i++) {
        const size_t option = exclusion_rules[i].option;
        if (values[option] && values[exclusion_rules[i].other])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to packed sequences (--%s)",
                             options[option].name, options[exclusion_rules[i].other].name);
    }
    return TOOL_DONE;
}

/* Something to do; and the backward pass and the statistics have parameters of their own. */
static tool_exit check_passes(const char *const *values, tool_error *error)
{
    bool any = values[OPTION_CHECK] || values[OPTION_REPEAT] || values[OPTION_STATE_OUT];
    bool backward = values[OPTION_ARRAYS + CLMGK_ARRAY_GRAD_O] != NULL;
    for (int array = 0; array < (int)RUN_FILES; array++) {
        const bool given = values[OPTION_ARRAYS + array] != NULL;
        any = any || (given && run_is_output((clmgk_array)array));
        backward = backward || (given && clmgk_array_get_info((clmgk_array)array)->statistic);
    }
    if (values[OPTION_BACKWARD_PARAMETERS] && !backward)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s needs --grad-out or an output that is a statistic",
                         options[OPTION_BACKWARD_PARAMETERS].name);
    return any ? TOOL_DONE
               : tool_fail(error, TOOL_BAD_INPUT, "nothing to do: give --out, another output, --check or --repeat");
}

/* What the variant needs, and what means nothing to it. */
static tool_exit check_options(const char *const *values, clmgk_variant variant, tool_error *error)
{
    static const clmgk_array always[] = {CLMGK_ARRAY_Q, CLMGK_ARRAY_K, CLMGK_ARRAY_V};
    const char *const name = clmgk_variant_name(variant);
    for (size_t i = 0; i < TOOL_COUNT(always); i++)
        TOOL_TRY(require(values, OPTION_ARRAYS + always[i], NULL, error));
    for (size_t option = 0; option < TOOL_COUNT(rules); option++) {
        if (rules[option].required && applies(&rules[option], variant))
            TOOL_TRY(require(values, option, name, error));
    }
    for (size_t option = 0; option < TOOL_COUNT(rules); option++) {
        if (values[option] && !applies(&rules[option_of_base(option)], variant))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to %s", options[option].name, name);
    }
    TOOL_TRY(check_companions(values, error));
    return check_passes(values, error);
}

static tool_exit check_score(const char *const *values, const run_arguments *arguments, tool_error *error)
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

/* ---- values ------------------------------------------------------------------------------------------------- */

static tool_exit parse_feature(const char *const *values, run_arguments *arguments, tool_error *error)
{
    TOOL_TRY(tool_parse_feature("feature", values[OPTION_FEATURE], &arguments->feature, error));
    TOOL_TRY(tool_parse_integer("feature-order", values[OPTION_FEATURE_ORDER], 1, 3, &arguments->feature_order, error));
    TOOL_TRY(tool_parse_number("guard", values[OPTION_GUARD], &arguments->guard, error));
    if (arguments->guard < 0.0)
        return tool_fail(error, TOOL_BAD_INPUT, "--guard %s: expected 0 or more", values[OPTION_GUARD]);
    for (size_t i = 0; i < TOOL_COUNT(feature_rules); i++) {
        const size_t option = feature_rules[i].option;
        if (values[option] && feature_rules[i].feature != arguments->feature)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to --feature %s", options[option].name,
                             clmgk_feature_name(arguments->feature));
    }
    return arguments->feature == CLMGK_FEATURE_FAVOR
               ? require(values, OPTION_ARRAYS + CLMGK_ARRAY_PROJECTION, clmgk_feature_name(arguments->feature), error)
               : TOOL_DONE;
}

/* P.c.npy and P.z.npy are the files of the arrays from `first` on. */
static tool_exit name_state(const char *const *values, size_t option, clmgk_array first, char (*paths)[RUN_MAX_PATH],
                            run_arguments *arguments, tool_error *error)
{
    for (int i = 0; values[option] && i < 2; i++) {
        const int length = snprintf(paths[i], RUN_MAX_PATH, "%s.%c.npy", values[option], "cz"[i]);
        if (length < 0 || length >= RUN_MAX_PATH)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s: a path of more than %d bytes", options[option].name,
                             RUN_MAX_PATH - 1);
        arguments->file[(int)first + i] = paths[i];
    }
    return TOOL_DONE;
}

static tool_exit parse_choices(const char *const *values, run_arguments *arguments, tool_error *error)
{
    static const char *const layouts[] = {"bhnd", "bnhd"};
    size_t layout = 0;
    TOOL_TRY(tool_parse_name("layout", values[OPTION_LAYOUT], layouts, TOOL_COUNT(layouts), &layout, error));
    arguments->tokens_first = layout == 1;
    TOOL_TRY(tool_parse_score("score", values[OPTION_SCORE], &arguments->score, error));
    TOOL_TRY(tool_parse_estep("estep", values[OPTION_ESTEP], &arguments->estep, error));
    TOOL_TRY(tool_parse_alignment("causal-align", values[OPTION_CAUSAL_ALIGN], &arguments->alignment, error));
    if (arguments->alignment == CLMGK_ALIGN_LENGTHS && !values[OPTION_ARRAYS + CLMGK_ARRAY_LENGTHS])
        return tool_fail(error, TOOL_BAD_INPUT, "--causal-align lengths needs --lengths");
    return TOOL_DONE;
}

static tool_exit parse_modifiers(const char *const *values, run_arguments *arguments, tool_error *error)
{
    TOOL_TRY(tool_parse_integers("window", values[OPTION_WINDOW], -1, INT64_MAX, TOOL_COUNT(arguments->window),
                                 arguments->window, error));
    TOOL_TRY(tool_parse_number("softcap", values[OPTION_SOFTCAP], &arguments->softcap, error));
    if (values[OPTION_SOFTCAP] && arguments->softcap <= 0.0)
        return tool_fail(error, TOOL_BAD_INPUT, "--softcap %s: expected a number above 0", values[OPTION_SOFTCAP]);
    TOOL_TRY(tool_parse_number("dropout", values[OPTION_DROPOUT], &arguments->dropout, error));
    if (!(arguments->dropout >= 0.0 && arguments->dropout < 1.0))
        return tool_fail(error, TOOL_BAD_INPUT, "--dropout %s: expected a probability, 0 or more and less than 1",
                         values[OPTION_DROPOUT]);
    TOOL_TRY(tool_parse_u64("seed", values[OPTION_SEED], &arguments->seed, error));
    TOOL_TRY(tool_parse_integer("heads", values[OPTION_HEADS], 1, INT64_C(1) << 30, &arguments->heads, error));
    return TOOL_DONE;
}

static tool_exit parse_execution(const char *const *values, run_arguments *arguments, tool_error *error)
{
    TOOL_TRY(tool_parse_dtype("dtype", values[OPTION_DTYPE], &arguments->dtype, error));
    TOOL_TRY(tool_parse_engine("engine", values[OPTION_ENGINE], &arguments->engine, error));
    TOOL_TRY(tool_parse_integer("repeat", values[OPTION_REPEAT], 1, 1000000, &arguments->repeat, error));
    return TOOL_DONE;
}

tool_exit run_parse(int argc, char **argv, run_arguments *arguments, bool *finished, tool_error *error)
{
    const char *values[TOOL_COUNT(options)];
    TOOL_TRY(tool_parse_options(&run_program, argc, argv, values, finished, error));
    if (*finished)
        return TOOL_DONE;
    TOOL_TRY(require(values, OPTION_VARIANT, NULL, error));
    *arguments = (run_arguments){
        .has_dtype = values[OPTION_DTYPE] != NULL,
        .causal = values[OPTION_CAUSAL] != NULL,
        .has_window = values[OPTION_WINDOW] != NULL,
        .shared_noise = values[OPTION_SHARED_NOISE] != NULL,
        .check = values[OPTION_CHECK] != NULL,
        .json = values[TOOL_OPTION_JSON] != NULL,
        .device = values[TOOL_OPTION_DEVICE],
        .parameters = values[OPTION_PARAMETERS],
        .backward_parameters = values[OPTION_BACKWARD_PARAMETERS],
    };
    for (int array = 0; array < (int)RUN_FILES; array++)
        arguments->file[array] = values[OPTION_ARRAYS + array];
    arguments->state_out = values[OPTION_STATE_OUT];
    TOOL_TRY(name_state(values, OPTION_STATE_IN, CLMGK_ARRAY_STATE_C, arguments->state_in_files, arguments, error));
    TOOL_TRY(
        name_state(values, OPTION_STATE_OUT, CLMGK_ARRAY_NEW_STATE_C, arguments->state_out_files, arguments, error));
    TOOL_TRY(tool_parse_variant("variant", values[OPTION_VARIANT], &arguments->variant, error));
    TOOL_TRY(check_options(values, arguments->variant, error));
    TOOL_TRY(parse_choices(values, arguments, error));
    TOOL_TRY(parse_feature(values, arguments, error));
    TOOL_TRY(check_score(values, arguments, error));
    TOOL_TRY(parse_modifiers(values, arguments, error));
    return parse_execution(values, arguments, error);
}
