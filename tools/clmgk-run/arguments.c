/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

enum {
    OPTION_VARIANT = TOOL_STANDARD_OPTION_COUNT,
    OPTION_ARRAYS, /* from here in the order of run_array */
    OPTION_LAYOUT = OPTION_ARRAYS + RUN_FILES,
    OPTION_HEADS,
    OPTION_SHARED_NOISE,
    OPTION_SCORE,
    OPTION_ESTEP,
    OPTION_CAUSAL,
    OPTION_CAUSAL_ALIGN,
    OPTION_WINDOW,
    OPTION_SOFTCAP,
    OPTION_DROPOUT,
    OPTION_SEED,
    OPTION_DTYPE,
    OPTION_CHECK,
    OPTION_REPEAT,
    OPTION_ENGINE,
    OPTION_PARAMETERS,
    OPTION_BACKWARD_PARAMETERS,
};

#define ARRAY(name) [OPTION_ARRAYS + RUN_##name]

static const tool_option options[] = {
    TOOL_STANDARD_OPTIONS,
    [OPTION_VARIANT] = {"variant", "NAME",
                        "softmax, gaussian, mgk, smgk; fish, hard-fish, mish, hard-mish, gfish, hard-gfish,\n"
                        "talking-heads (required)"},
    ARRAY(Q) = {"q", "F", "queries [B,H,N,D]; fish and what follows it: [B,M,N,D] (required)"},
    ARRAY(K) = {"k", "F",
                "keys [B,G,S,D] (one component) or [B,G,M,S,D]; G divides H; fish and what follows it:\n"
                "[B,M,S,D] (required)"},
    ARRAY(V) = {"v", "F", "values [B,G,S,E] (required)"},
    ARRAY(GRAD_O) = {"grad-out", "F", "dO [B,H,N,E]: runs the backward pass too"},
    ARRAY(PRIOR) = {"prior", "A", "[M], [H,M] or [H,M,S]: gaussian, mgk, smgk; default 1/M"},
    ARRAY(VARIANCE) = {"variance", "A",
                       "sigma^2: one number, [M] or [H,M]: softmax, gaussian, mgk, smgk; default sqrt(D)"},
    ARRAY(SHIFT) = {"shift", "F", "b [H,M,D]: smgk, required; gives M"},
    ARRAY(LENGTHS) = {"lengths", "F", "key lengths: integers [B] from 0 to S"},
    ARRAY(LENGTHS_Q) = {"lengths-q", "F", "query lengths: integers [B] from 0 to N"},
    ARRAY(OFFSETS) = {"offsets", "F",
                      "packed sequences: integers [T+1], from 0 to N, ascending; B is 1, and the axes N\n"
                      "and S hold T sequences back to back; not with lengths"},
    ARRAY(OFFSETS_K) = {"offsets-k", "F", "the same for the keys, from 0 to S; default those of the queries"},
    ARRAY(BIAS) = {"bias", "F",
                   "added to the scaled scores: [B,H,N,S], of which each axis may be 1, and the first\n"
                   "any divisor of B; -inf hides a key"},
    ARRAY(SLOPES) = {"alibi", "A", "slopes [H]: adds -slope |j - d(i)|, d(i) the diagonal"},
    ARRAY(SINKS) = {"sinks", "A", "[H]: a logit without a key that joins every row"},
    ARRAY(MIX) = {"mix", "A",
                  "p [H,M], in a list row by row: fish, hard-fish, gfish, hard-gfish, talking-heads (H = M);\n"
                  "p [M]: mish, hard-mish; required by all of these"},
    ARRAY(MIX_WEIGHT) = {"mix-weight", "A", "w [H,M]: gfish, hard-gfish; default 1"},
    ARRAY(MIX_OFFSET) = {"mix-offset", "A", "c [H]: gfish, hard-gfish; default 0"},
    ARRAY(NOISE) = {"noise", "A", "sigma [M]: fish, mish, gfish, required"},
    ARRAY(GRAD_LSE) = {"grad-lse", "F", "dL [B,H,N]; default 0"},
    ARRAY(O) = {"out", "F", "writes O [B,H,N,E]"},
    ARRAY(LSE) = {"lse", "F", "writes L [B,H,N], the natural log-sum-exp; -inf for a row without keys"},
    ARRAY(GRAD_Q) = {"dq", "F", "writes dQ; this and the other gradients have the shape of what they belong to"},
    ARRAY(GRAD_K) = {"dk", "F", "writes dK"},
    ARRAY(GRAD_V) = {"dv", "F", "writes dV"},
    ARRAY(GRAD_PRIOR) = {"dprior", "F", "writes the prior's gradient; [M] by default"},
    ARRAY(GRAD_VARIANCE) = {"dvariance", "F", "writes the variance's gradient; [1] by default"},
    ARRAY(GRAD_SHIFT) = {"dshift", "F", "writes the shift's gradient"},
    ARRAY(GRAD_BIAS) = {"dbias", "F", "writes the bias's gradient"},
    ARRAY(GRAD_SINKS) = {"dsinks", "F", "writes the sinks' gradient"},
    ARRAY(GRAD_MIX) = {"dmix", "F", "writes the mixing's gradient"},
    ARRAY(GRAD_MIX_WEIGHT) = {"dmix-weight", "F", "writes the mixing weights' gradient; [H,M] by default"},
    ARRAY(GRAD_MIX_OFFSET) = {"dmix-offset", "F", "writes the mixing offsets' gradient; [H] by default"},
    ARRAY(GRAD_NOISE) = {"dnoise", "F", "writes the gradient of the noise's sigma"},
    ARRAY(RESPONSIBILITIES) = {"responsibilities", "F",
                               "writes gamma [B,H,M,N,S], the part of each component in its key (small N S only)"},
    ARRAY(COUNTS) = {"counts", "F",
                     "writes N_r, the sums of gamma, in the prior's shape ([M] by default): those of\n"
                     "several runs may be added"},
    ARRAY(NEW_PRIOR) = {"new-prior", "F", "writes the M-step's prior, in the prior's shape"},
    ARRAY(NLL) = {"nll", "F", "writes the queries' negative log-likelihood [B,H] (packed: [T,H]): gaussian scores"},
    [OPTION_LAYOUT] = {"layout", "ORDER",
                       "axes of Q, K, V, O and their gradients: bhnd, heads first (default), or bnhd,\n"
                       "tokens first: [B,N,H,D], [B,S,G,D] or [B,S,G,M,D], [B,S,G,E], [B,N,H,E]"},
    [OPTION_HEADS] = {"heads", "H", "mish, hard-mish: local heads; default those of dO, or of V"},
    [OPTION_SHARED_NOISE] = {"shared-noise", NULL, "fish, mish, gfish: the same random numbers for all heads"},
    [OPTION_SCORE] = {"score", "NAME", "dot or gaussian (default): mgk and smgk"},
    [OPTION_ESTEP] = {"estep", "NAME", "soft (default) or hard: softmax, gaussian, mgk, smgk"},
    [OPTION_CAUSAL] = {"causal", NULL, "hide keys beyond the diagonal"},
    [OPTION_CAUSAL_ALIGN] = {"causal-align", "WHERE",
                             "the diagonal: bottom-right (default), top-left, or lengths (the end of\n"
                             "each sequence's keys)"},
    [OPTION_WINDOW] = {"window", "L,R", "hide keys beyond L before and R behind the diagonal; -1 is no limit"},
    [OPTION_SOFTCAP] = {"softcap", "X", "scores s become X tanh(s/X): dot scores, one component or mixed"},
    [OPTION_DROPOUT] = {"dropout", "P", "drops weights with probability P, 0 <= P < 1"},
    [OPTION_SEED] = {"seed", "U64", "of dropout and noise; default 0"},
    [OPTION_DTYPE] = {"dtype", "TYPE",
                      "storage on the device: f32, f16 or bf16; default f16 where Q is float16,\n"
                      "else f32"},
    [OPTION_CHECK] = {"check", NULL,
                      "compare with double precision on the host (slow), print the largest error;\n"
                      "exit status 1 beyond the bound; outputs are written all the same"},
    [OPTION_REPEAT] = {"repeat", "R",
                       "R timed repetitions of each pass after one run; prints the median and the\n"
                       "rate"},
    [OPTION_ENGINE] = {"engine", "NAME", "auto (default), lane or simt: for development"},
    [OPTION_PARAMETERS] = {"parameters", "LIST", "kernel parameters name=value,...: for development"},
    [OPTION_BACKWARD_PARAMETERS] = {"backward-parameters", "LIST", "the same for the backward pass and the statistics"},
    /* The rest of the interface, for later versions: refused in words. */
    {"feature", "NAME", NULL},
    {"feature-order", "N", NULL},
    {"projection", "F", NULL},
    {"state-in", "P", NULL},
    {"state-out", "P", NULL},
};

const tool_program run_program = {
    .name = "clmgk-run",
    .summary =
        "Usage: clmgk-run --variant NAME --q F --k F --v F [--out F] [--lse F] [OPTION...]\n"
        "Attention with one or several Gaussian keys per position, or with scores mixed across heads, on arrays\n"
        "in .npy files.",
    .notes = "F is a .npy file: version 1 to 3, either byte order, C or Fortran order; float16, float32 or float64,\n"
             "lengths and offsets int32 or int64. A is such a file (its name ends in .npy) or numbers separated by\n"
             "commas. Outputs are C-order little-endian float32 files; they appear when all of them are complete, and\n"
             "none may be an input or another output. At least one output, --check or --repeat is given. With\n"
             "--grad-out and no gradient's file, dQ, dK and dV are computed (for --check and --repeat).\n"
             "\n"
             "--json prints: clmgk (version), variant, score, estep, dtype, engine, parameters, device {name,\n"
             "platform, driver, selector}, batch, heads, kv_heads, components, length, length_k, head_size,\n"
             "value_size, causal, workspace_bytes, compile_ms, program (memory, disk or built), flops (executed\n"
             "products over visible pairs), outputs {option: path}, with --repeat time_ms {median, min, max,\n"
             "repeat} and gflops, with --grad-out backward {gradients: [options], flops, with --repeat time_ms and\n"
             "gflops}, with --check check {ok, option: {error, bound, max}}.",
    .options = options,
    .option_count = TOOL_COUNT(options),
};

const char *run_option(run_array array)
{
    return options[OPTION_ARRAYS + (int)array].name;
}

/* ---- which options apply ------------------------------------------------------------------------------------ */

#define VARIANT(name) (1U << CLMGK_VARIANT_##name)
#define MIXTURES      (VARIANT(MGK) | VARIANT(SMGK))
#define WITH_PRIOR    (VARIANT(GAUSSIAN) | MIXTURES)
#define WITH_VARIANCE (VARIANT(SOFTMAX) | WITH_PRIOR) /* what is no admixture */
#define SHARED_MIX    (VARIANT(MISH) | VARIANT(HARD_MISH))
#define GENERALISED   (VARIANT(GFISH) | VARIANT(HARD_GFISH))
#define NOISY         (VARIANT(FISH) | VARIANT(MISH) | VARIANT(GFISH))
#define ADMIXTURES    (NOISY | SHARED_MIX | GENERALISED | VARIANT(HARD_FISH) | VARIANT(TALKING_HEADS))

/* Options that mean nothing to some variants. */
static const struct {
    size_t option;
    unsigned variants;
} variant_rules[] = {
    {OPTION_ARRAYS + RUN_SHIFT, VARIANT(SMGK)},
    {OPTION_ARRAYS + RUN_GRAD_SHIFT, VARIANT(SMGK)},
    {OPTION_ARRAYS + RUN_PRIOR, WITH_PRIOR},
    {OPTION_ARRAYS + RUN_GRAD_PRIOR, WITH_PRIOR},
    {OPTION_ARRAYS + RUN_COUNTS, WITH_PRIOR},
    {OPTION_ARRAYS + RUN_NEW_PRIOR, WITH_PRIOR},
    {OPTION_ARRAYS + RUN_VARIANCE, WITH_VARIANCE},
    {OPTION_ARRAYS + RUN_GRAD_VARIANCE, WITH_VARIANCE},
    {OPTION_ARRAYS + RUN_RESPONSIBILITIES, WITH_VARIANCE},
    {OPTION_ARRAYS + RUN_NLL, WITH_VARIANCE},
    {OPTION_ESTEP, WITH_VARIANCE},
    {OPTION_SCORE, MIXTURES},
    {OPTION_ARRAYS + RUN_MIX, ADMIXTURES},
    {OPTION_ARRAYS + RUN_GRAD_MIX, ADMIXTURES},
    {OPTION_ARRAYS + RUN_MIX_WEIGHT, GENERALISED},
    {OPTION_ARRAYS + RUN_GRAD_MIX_WEIGHT, GENERALISED},
    {OPTION_ARRAYS + RUN_MIX_OFFSET, GENERALISED},
    {OPTION_ARRAYS + RUN_GRAD_MIX_OFFSET, GENERALISED},
    {OPTION_ARRAYS + RUN_NOISE, NOISY},
    {OPTION_ARRAYS + RUN_GRAD_NOISE, NOISY},
    {OPTION_SHARED_NOISE, NOISY},
    {OPTION_HEADS, SHARED_MIX},
};

/* Inputs that some variants can't do without. */
static const struct {
    run_array array;
    unsigned variants;
} required_inputs[] = {
    {RUN_SHIFT, VARIANT(SMGK)},
    {RUN_MIX, ADMIXTURES},
    {RUN_NOISE, NOISY},
};

/* Options that mean nothing with the other score. */
static const struct {
    size_t option;
    clmgk_score score;
} score_rules[] = {
    {OPTION_SOFTCAP, CLMGK_SCORE_DOT},
    {OPTION_ARRAYS + RUN_NLL, CLMGK_SCORE_GAUSSIAN},
};

/* Options that mean nothing without another one. */
static const struct {
    size_t option, needs;
} companion_rules[] = {
    {OPTION_ARRAYS + RUN_GRAD_LSE, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_Q, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_K, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_V, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_PRIOR, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_VARIANCE, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_SHIFT, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_BIAS, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_BIAS, OPTION_ARRAYS + RUN_BIAS},
    {OPTION_ARRAYS + RUN_GRAD_SINKS, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_SINKS, OPTION_ARRAYS + RUN_SINKS},
    {OPTION_ARRAYS + RUN_GRAD_MIX, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_MIX_WEIGHT, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_MIX_OFFSET, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_GRAD_NOISE, OPTION_ARRAYS + RUN_GRAD_O},
    {OPTION_ARRAYS + RUN_OFFSETS_K, OPTION_ARRAYS + RUN_OFFSETS},
};

/* Options that exclude each other. */
static const struct {
    size_t option, other;
} exclusion_rules[] = {
    {OPTION_ARRAYS + RUN_LENGTHS, OPTION_ARRAYS + RUN_OFFSETS},
    {OPTION_ARRAYS + RUN_LENGTHS_Q, OPTION_ARRAYS + RUN_OFFSETS},
};

static tool_exit require(const char *const *values, size_t option, const char *variant, tool_error *error)
{
    if (values[option])
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s is required%s%s", options[option].name, variant ? " with " : "",
                     variant ? variant : "");
}

/* The backward pass and the statistics have parameters of their own. */
static tool_exit check_backward_parameters(const char *const *values, tool_error *error)
{
    bool wanted = !values[OPTION_BACKWARD_PARAMETERS] || values[OPTION_ARRAYS + RUN_GRAD_O];
    for (size_t array = RUN_RESPONSIBILITIES; array < RUN_FILES; array++)
        wanted = wanted || values[OPTION_ARRAYS + array];
    if (wanted)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s needs --grad-out or an output that is a statistic",
                     options[OPTION_BACKWARD_PARAMETERS].name);
}

static tool_exit check_companions(const char *const *values, tool_error *error)
{
    for (size_t i = 0; i < TOOL_COUNT(companion_rules); i++) {
        const size_t option = companion_rules[i].option;
        if (values[option] && !values[companion_rules[i].needs])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s needs --%s", options[option].name,
                             options[companion_rules[i].needs].name);
    }
    if (values[OPTION_SEED] && !values[OPTION_DROPOUT] && !values[OPTION_ARRAYS + RUN_NOISE])
        return tool_fail(error, TOOL_BAD_INPUT, "--seed needs --dropout or --noise");
    for (size_t i = 0; i < TOOL_COUNT(exclusion_rules); i++) {
        const size_t option = exclusion_rules[i].option;
        if (values[option] && values[exclusion_rules[i].other])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to packed sequences (--%s)",
                             options[option].name, options[exclusion_rules[i].other].name);
    }
    return TOOL_DONE;
}

static tool_exit check_something_to_do(const char *const *values, tool_error *error)
{
    bool wanted = values[OPTION_CHECK] || values[OPTION_REPEAT];
    for (size_t array = RUN_INPUTS; array < RUN_FILES; array++)
        wanted = wanted || values[OPTION_ARRAYS + array];
    if (wanted)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "nothing to do: give --out, another output, --check or --repeat");
}

/* What the variant needs, and what means nothing to it. */
static tool_exit check_options(const char *const *values, clmgk_variant variant, tool_error *error)
{
    static const run_array always[] = {RUN_Q, RUN_K, RUN_V};
    const char *const name = clmgk_variant_name(variant);
    for (size_t i = 0; i < TOOL_COUNT(always); i++)
        TOOL_TRY(require(values, OPTION_ARRAYS + always[i], NULL, error));
    for (size_t i = 0; i < TOOL_COUNT(required_inputs); i++)
        if (required_inputs[i].variants >> variant & 1U)
            TOOL_TRY(require(values, OPTION_ARRAYS + required_inputs[i].array, name, error));
    for (size_t i = 0; i < TOOL_COUNT(variant_rules); i++) {
        const size_t option = variant_rules[i].option;
        if (values[option] && !(variant_rules[i].variants >> variant & 1U))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to %s", options[option].name, name);
    }
    TOOL_TRY(check_companions(values, error));
    TOOL_TRY(check_backward_parameters(values, error));
    return check_something_to_do(values, error);
}

static tool_exit check_score(const char *const *values, const run_arguments *arguments, tool_error *error)
{
    clmgk_score score = arguments->score;
    if (score == CLMGK_SCORE_DEFAULT)
        score = WITH_PRIOR >> arguments->variant & 1U ? CLMGK_SCORE_GAUSSIAN : CLMGK_SCORE_DOT;
    for (size_t i = 0; i < TOOL_COUNT(score_rules); i++) {
        const size_t option = score_rules[i].option;
        if (values[option] && score_rules[i].score != score)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to %s scores", options[option].name,
                             score == CLMGK_SCORE_DOT ? "dot" : "gaussian");
    }
    return TOOL_DONE;
}

/* ---- values ------------------------------------------------------------------------------------------------- */

/* The place of the option's value in `names`, or `otherwise`. */
static tool_exit choose(const char *const *values, size_t option, const char *const *names, size_t count,
                        size_t otherwise, size_t *index, tool_error *error)
{
    *index = otherwise;
    if (!values[option])
        return TOOL_DONE;
    return tool_parse_name(options[option].name, values[option], names, count, index, error);
}

static tool_exit parse_choices(const char *const *values, run_arguments *arguments, tool_error *error)
{
    static const char *const layouts[] = {"bhnd", "bnhd"};
    static const char *const scores[] = {"dot", "gaussian"}; /* from CLMGK_SCORE_DOT on */
    static const char *const esteps[] = {[CLMGK_ESTEP_SOFT] = "soft", [CLMGK_ESTEP_HARD] = "hard"};
    static const char *const alignments[] = {[CLMGK_ALIGN_BOTTOM_RIGHT] = "bottom-right",
                                             [CLMGK_ALIGN_TOP_LEFT] = "top-left",
                                             [CLMGK_ALIGN_LENGTHS] = "lengths"};
    size_t index = 0;
    TOOL_TRY(choose(values, OPTION_LAYOUT, layouts, TOOL_COUNT(layouts), 0, &index, error));
    arguments->tokens_first = index == 1;
    TOOL_TRY(choose(values, OPTION_SCORE, scores, TOOL_COUNT(scores), 0, &index, error));
    arguments->score = values[OPTION_SCORE] ? (clmgk_score)(CLMGK_SCORE_DOT + index) : CLMGK_SCORE_DEFAULT;
    TOOL_TRY(choose(values, OPTION_ESTEP, esteps, TOOL_COUNT(esteps), CLMGK_ESTEP_SOFT, &index, error));
    arguments->estep = (clmgk_estep)index;
    TOOL_TRY(choose(values, OPTION_CAUSAL_ALIGN, alignments, TOOL_COUNT(alignments), CLMGK_ALIGN_BOTTOM_RIGHT, &index,
                    error));
    arguments->alignment = (clmgk_alignment)index;
    if (arguments->alignment == CLMGK_ALIGN_LENGTHS && !values[OPTION_ARRAYS + RUN_LENGTHS])
        return tool_fail(error, TOOL_BAD_INPUT, "--causal-align lengths needs --lengths");
    return TOOL_DONE;
}

static tool_exit parse_modifiers(const char *const *values, run_arguments *arguments, tool_error *error)
{
    if (values[OPTION_WINDOW])
        TOOL_TRY(tool_parse_integers("window", values[OPTION_WINDOW], -1, INT64_MAX, TOOL_COUNT(arguments->window),
                                     arguments->window, error));
    if (values[OPTION_SOFTCAP])
        TOOL_TRY(tool_parse_number("softcap", values[OPTION_SOFTCAP], &arguments->softcap, error));
    if (values[OPTION_SOFTCAP] && arguments->softcap <= 0.0)
        return tool_fail(error, TOOL_BAD_INPUT, "--softcap %s: expected a number above 0", values[OPTION_SOFTCAP]);
    if (values[OPTION_DROPOUT])
        TOOL_TRY(tool_parse_number("dropout", values[OPTION_DROPOUT], &arguments->dropout, error));
    if (!(arguments->dropout >= 0.0 && arguments->dropout < 1.0))
        return tool_fail(error, TOOL_BAD_INPUT, "--dropout %s: expected a probability, 0 or more and less than 1",
                         values[OPTION_DROPOUT]);
    if (values[OPTION_SEED])
        TOOL_TRY(tool_parse_u64("seed", values[OPTION_SEED], &arguments->seed, error));
    if (values[OPTION_HEADS])
        TOOL_TRY(tool_parse_integer("heads", values[OPTION_HEADS], 1, INT64_C(1) << 30, &arguments->heads, error));
    return TOOL_DONE;
}

static tool_exit parse_execution(const char *const *values, run_arguments *arguments, tool_error *error)
{
    if (values[OPTION_DTYPE])
        TOOL_TRY(tool_parse_dtype("dtype", values[OPTION_DTYPE], &arguments->dtype, error));
    if (values[OPTION_ENGINE])
        TOOL_TRY(tool_parse_engine("engine", values[OPTION_ENGINE], &arguments->engine, error));
    if (values[OPTION_REPEAT])
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
    for (size_t array = 0; array < RUN_FILES; array++)
        arguments->file[array] = values[OPTION_ARRAYS + array];
    TOOL_TRY(tool_parse_variant("variant", values[OPTION_VARIANT], &arguments->variant, error));
    TOOL_TRY(check_options(values, arguments->variant, error));
    TOOL_TRY(parse_choices(values, arguments, error));
    TOOL_TRY(check_score(values, arguments, error));
    TOOL_TRY(parse_modifiers(values, arguments, error));
    return parse_execution(values, arguments, error);
}
