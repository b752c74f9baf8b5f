/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

enum {
    OPTION_VARIANT = TOOL_STANDARD_OPTION_COUNT,
    OPTION_Q,
    OPTION_K,
    OPTION_V,
    OPTION_LAYOUT,
    OPTION_OUT,
    OPTION_LSE,
    OPTION_SCORE,
    OPTION_ESTEP,
    OPTION_PRIOR,
    OPTION_VARIANCE,
    OPTION_SHIFT,
    OPTION_CAUSAL,
    OPTION_CAUSAL_ALIGN,
    OPTION_LENGTHS,
    OPTION_LENGTHS_Q,
    OPTION_DTYPE,
    OPTION_CHECK,
    OPTION_REPEAT,
    OPTION_ENGINE,
    OPTION_PARAMETERS,
};

static const tool_option options[] = {
    TOOL_STANDARD_OPTIONS,
    [OPTION_VARIANT] = {"variant", "NAME", "softmax, gaussian, mgk or smgk (required)"},
    [OPTION_Q] = {"q", "F", "queries [B,H,N,D] (required)"},
    [OPTION_K] = {"k", "F", "keys [B,G,S,D] (one component) or [B,G,M,S,D]; G divides H (required)"},
    [OPTION_V] = {"v", "F", "values [B,G,S,E] (required)"},
    [OPTION_LAYOUT] = {"layout", "ORDER",
                       "axes of Q, K, V, O: bhnd, heads first (default), or bnhd, tokens first:\n"
                       "[B,N,H,D], [B,S,G,D] or [B,S,G,M,D], [B,S,G,E], [B,N,H,E]"},
    [OPTION_OUT] = {"out", "F", "writes O [B,H,N,E]"},
    [OPTION_LSE] = {"lse", "F", "writes L [B,H,N], the natural log-sum-exp; -inf for a row without keys"},
    [OPTION_SCORE] = {"score", "NAME", "dot or gaussian (default): mgk and smgk"},
    [OPTION_ESTEP] = {"estep", "NAME", "soft (default) or hard"},
    [OPTION_PRIOR] = {"prior", "A", "[M], [H,M] or [H,M,S]; default 1/M; not with softmax"},
    [OPTION_VARIANCE] = {"variance", "A", "sigma^2: one number, [M] or [H,M]; default sqrt(D)"},
    [OPTION_SHIFT] = {"shift", "F", "b [H,M,D]: smgk, required; gives M"},
    [OPTION_CAUSAL] = {"causal", NULL, "hide keys beyond the diagonal"},
    [OPTION_CAUSAL_ALIGN] = {"causal-align", "WHERE",
                             "the diagonal: bottom-right (default), top-left, or lengths (the end of\n"
                             "each sequence's keys)"},
    [OPTION_LENGTHS] = {"lengths", "F", "key lengths: integers [B] from 0 to S"},
    [OPTION_LENGTHS_Q] = {"lengths-q", "F", "query lengths: integers [B] from 0 to N"},
    [OPTION_DTYPE] = {"dtype", "TYPE",
                      "storage on the device: f32, f16 or bf16; default f16 where Q is float16,\n"
                      "else f32"},
    [OPTION_CHECK] = {"check", NULL,
                      "compare with double precision on the host (slow), print the largest error;\n"
                      "exit status 1 beyond the bound; outputs are written all the same"},
    [OPTION_REPEAT] = {"repeat", "R", "R timed repetitions after one run; prints the median and the rate"},
    [OPTION_ENGINE] = {"engine", "NAME", "auto (default), lane or simt: for development"},
    [OPTION_PARAMETERS] = {"parameters", "LIST", "kernel parameters name=value,...: for development"},
    /* The rest of the interface, for later versions: refused in words. */
    {"feature", "NAME", NULL},
    {"feature-order", "N", NULL},
    {"projection", "F", NULL},
    {"state-in", "P", NULL},
    {"state-out", "P", NULL},
    {"mix", "A", NULL},
    {"mix-weight", "A", NULL},
    {"mix-offset", "A", NULL},
    {"noise", "A", NULL},
    {"shared-noise", NULL, NULL},
    {"window", "L,R", NULL},
    {"offsets", "F", NULL},
    {"offsets-k", "F", NULL},
    {"bias", "F", NULL},
    {"alibi", "A", NULL},
    {"sinks", "A", NULL},
    {"softcap", "X", NULL},
    {"dropout", "P", NULL},
    {"seed", "U64", NULL},
    {"grad-out", "F", NULL},
    {"grad-lse", "F", NULL},
    {"dq", "F", NULL},
    {"dk", "F", NULL},
    {"dv", "F", NULL},
    {"dprior", "F", NULL},
    {"dvariance", "F", NULL},
    {"dshift", "F", NULL},
    {"dmix", "F", NULL},
    {"dmix-weight", "F", NULL},
    {"dmix-offset", "F", NULL},
    {"dnoise", "F", NULL},
    {"dbias", "F", NULL},
    {"dsinks", "F", NULL},
    {"new-prior", "F", NULL},
    {"nll", "F", NULL},
    {"responsibilities", "F", NULL},
};

const tool_program run_program = {
    .name = "clmgk-run",
    .summary = "Usage: clmgk-run --variant NAME --q F --k F --v F [--out F] [--lse F] [OPTION...]\n"
               "Attention with one or several Gaussian keys per position, on arrays in .npy files.",
    .notes = "F is a .npy file: version 1 to 3, either byte order, C or Fortran order; float16, float32 or float64,\n"
             "lengths int32 or int64. A is such a file (its name ends in .npy) or numbers separated by commas.\n"
             "Outputs are C-order little-endian float32 files; they appear when all of them are complete, and\n"
             "none may be an input or another output. At least one of --out, --lse, --check, --repeat is given.\n"
             "\n"
             "--json prints: clmgk (version), variant, score, estep, dtype, engine, parameters, device {name,\n"
             "platform, driver, selector}, batch, heads, kv_heads, components, length, length_k, head_size,\n"
             "value_size, causal, workspace_bytes, compile_ms, program (memory, disk or built), flops (executed\n"
             "products over visible pairs), outputs {out, lse: paths}, with --repeat time_ms {median, min, max,\n"
             "repeat} and gflops, with --check check {ok, out and lse: {error, bound, max}}.",
    .options = options,
    .option_count = TOOL_COUNT(options),
};

static tool_exit refuse(const char *const *values, size_t option, const char *variant, tool_error *error)
{
    if (!values[option])
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply to %s", options[option].name, variant);
}

static tool_exit require(const char *const *values, size_t option, const char *variant, tool_error *error)
{
    if (values[option])
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s is required%s%s", options[option].name, variant ? " with " : "",
                     variant ? variant : "");
}

/* What the variant needs, and what means nothing to it. */
static tool_exit check_options(const char *const *values, clmgk_variant variant, tool_error *error)
{
    static const size_t always[] = {OPTION_Q, OPTION_K, OPTION_V};
    const char *const name = clmgk_variant_name(variant);
    for (size_t i = 0; i < TOOL_COUNT(always); i++)
        TOOL_TRY(require(values, always[i], NULL, error));
    if (variant == CLMGK_VARIANT_SMGK)
        TOOL_TRY(require(values, OPTION_SHIFT, name, error));
    else
        TOOL_TRY(refuse(values, OPTION_SHIFT, name, error));
    if (variant == CLMGK_VARIANT_SOFTMAX || variant == CLMGK_VARIANT_GAUSSIAN)
        TOOL_TRY(refuse(values, OPTION_SCORE, name, error));
    if (variant == CLMGK_VARIANT_SOFTMAX)
        TOOL_TRY(refuse(values, OPTION_PRIOR, name, error));
    if (!values[OPTION_OUT] && !values[OPTION_LSE] && !values[OPTION_CHECK] && !values[OPTION_REPEAT])
        return tool_fail(error, TOOL_BAD_INPUT, "nothing to do: give --out, --lse, --check or --repeat");
    return TOOL_DONE;
}

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
    if (arguments->alignment == CLMGK_ALIGN_LENGTHS && !values[OPTION_LENGTHS])
        return tool_fail(error, TOOL_BAD_INPUT, "--causal-align lengths needs --lengths");
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
        .check = values[OPTION_CHECK] != NULL,
        .json = values[TOOL_OPTION_JSON] != NULL,
        .device = values[TOOL_OPTION_DEVICE],
        .parameters = values[OPTION_PARAMETERS],
        .q = values[OPTION_Q],
        .k = values[OPTION_K],
        .v = values[OPTION_V],
        .prior = values[OPTION_PRIOR],
        .variance = values[OPTION_VARIANCE],
        .shift = values[OPTION_SHIFT],
        .lengths = values[OPTION_LENGTHS],
        .lengths_q = values[OPTION_LENGTHS_Q],
        .out = values[OPTION_OUT],
        .lse = values[OPTION_LSE],
    };
    TOOL_TRY(tool_parse_variant("variant", values[OPTION_VARIANT], &arguments->variant, error));
    TOOL_TRY(check_options(values, arguments->variant, error));
    return parse_choices(values, arguments, error);
}
