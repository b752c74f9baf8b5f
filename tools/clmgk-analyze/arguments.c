/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze.h"

#include "gnuplot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OWN_OPTIONS(X)                                                                                                 \
    X(ANALYSES, "analyses", "LIST",                                                                                    \
      "some of matrices, rank, distances, components, nll, responsibilities, separated\n"                              \
      "by commas; default: all that apply")                                                                            \
    X(BATCH_LIST, "batch-list", "LIST", "sequences to analyse: indices from 0, separated by commas; default: all")     \
    X(HEAD_LIST, "head-list", "LIST", "heads to analyse: indices from 0, separated by commas; default: all")           \
    X(ROWS, "rows", "R",                                                                                               \
      "number of queries per matrix, evenly spaced; default: all, for long sequences 4096 or\n"                        \
      "fewer")                                                                                                         \
    X(THRESHOLD, "threshold", "X", "singular values above X count for the rank; default 1e-6")                         \
    X(FULL_SVD, "full-svd", NULL, "compute singular values of large matrices without the Gram matrix (slow)")          \
    X(FRACTION, "fraction", "X", "part of the variance that components must explain; default 0.95")                    \
    X(PLOTS, "plots", "P", "draws P-matrices.svg, P-rank.svg, ... with gnuplot")                                       \
    X(PLOT_FORMAT, "plot-format", "NAME", "svg (default) or png")                                                      \
    X(THEOREMS, "theorems", NULL,                                                                                      \
      "checks Theorems 1 and 2 of the low-rank bottleneck paper, without arrays; exit\n"                               \
      "status 1 where one does not hold")                                                                              \
    X(TOKENS, "tokens", "N", "--theorems: sequence length, from 2 to 32; default 12")                                  \
    X(TRIALS, "trials", "T", "--theorems: random cases of each kind; default 16")

enum { OPTION_BEFORE = TOOL_PROBLEM_OPTION_COUNT - 1, OWN_OPTIONS(TOOL_OPTION_NUMBER) };

#define ROW(name, ...) [OPTION_##name] = {__VA_ARGS__},
static const tool_option options[] = {TOOL_STANDARD_OPTIONS, TOOL_PROBLEM_ROWS TOOL_OUTPUT_LIST(TOOL_HIDDEN_ROW)
                                                                 TOOL_O_OPTIONS(TOOL_HIDDEN_OPTION) OWN_OPTIONS(ROW)};
#undef ROW

const tool_program analyze_program = {
    .name = "clmgk-analyze",
    .summary = "Usage: clmgk-analyze --variant NAME --q F --k F [OPTION...]\n"
               "       clmgk-analyze --theorems [OPTION...]\n"
               "Analyses of attention matrices that the papers make, on arrays in .npy files as clmgk-run reads them:\n"
               "pictures, numerical rank, distances between heads, principal components, likelihoods of queries, and\n"
               "responsibilities. Matrices are computed on the host, in double precision.",
    .notes =
        "F is a .npy file: version 1 to 3, either byte order, C or Fortran order; float16, float32 or float64,\n"
        "lengths and offsets int32 or int64. A is such a file (its name ends in .npy) or numbers separated by\n"
        "commas. V is read by nothing but the checks of its shape. Pictures appear when all of them are complete.\n"
        "--device is for --theorems, whose constructions run on it; --seed also draws the theorems' cases.\n"
        "\n"
        "The keys of --json are in docs/clmgk-analyze.md.",
    .options = options,
    .option_count = TOOL_COUNT(options),
};

const char *const analyze_formats[] = {"svg", "png"};

static const char *const names[] = {
#define NAME(name, text, ...) text,
    ANALYZE_LIST(NAME)
#undef NAME
};

const char *analyze_name(analyze_kind kind)
{
    return names[kind];
}

static tool_exit parse_analyses(const char *text, bool *chosen, tool_error *error)
{
    char *const copy = text ? strdup(text) : NULL;
    tool_exit status = text ? tool_check_memory(copy, "the options", error) : TOOL_DONE;
    for (char *at = copy; at && status == TOOL_DONE;) {
        size_t kind = 0;
        char *const comma = strchr(at, ',');
        if (comma)
            *comma = '\0';
        status = tool_parse_name("analyses", at, names, TOOL_COUNT(names), &kind, error);
        if (status == TOOL_DONE && chosen[kind])
            status = tool_fail(error, TOOL_BAD_INPUT, "--analyses: '%s' is given twice", at);
        chosen[kind] = true;
        at = comma ? comma + 1 : NULL;
    }
    free(copy);
    return status;
}

static tool_exit add_index(const char *option, const char *text, const char **at, int64_t limit, int64_t *indices,
                           int64_t *count, tool_error *error)
{
    char *end = NULL;
    const intmax_t index = strtoimax(*at, &end, 10);
    if (end == *at || (*end != ',' && *end != '\0') || index < 0 || index >= limit)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s '%s': expected whole numbers from 0 to %" PRId64 ", separated by commas", option, text,
                         limit - 1);
    for (int64_t n = 0; n < *count; n++) {
        if (indices[n] == (int64_t)index)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': %" PRIdMAX " is given more than once", option, text,
                             index);
    }
    indices[(*count)++] = (int64_t)index;
    *at = *end == ',' ? end + 1 : NULL;
    return TOOL_DONE;
}

tool_exit analyze_parse_indices(const char *option, const char *text, int64_t limit, int64_t **indices, int64_t *count,
                                tool_error *error)
{
    *count = 0;
    *indices = calloc((size_t)limit, sizeof **indices);
    TOOL_TRY(tool_check_memory(*indices, option, error));
    for (const char *at = text; at;)
        TOOL_TRY(add_index(option, text, &at, limit, *indices, count, error));
    for (int64_t n = 0; !text && n < limit; n++)
        (*indices)[(*count)++] = n;
    return TOOL_DONE;
}

/* Refuses options of the other mode. */
static tool_exit check_mode(const char *const *values, tool_error *error)
{
    static const size_t common[] = {TOOL_OPTION_JSON, OPTION_PLOTS, OPTION_PLOT_FORMAT, TOOL_OPTION_SEED};
    static const size_t of_theorems[] = {TOOL_OPTION_DEVICE, OPTION_TOKENS, OPTION_TRIALS};
    const bool theorems = values[OPTION_THEOREMS] != NULL;
    bool allowed[TOOL_COUNT(options)] = {[OPTION_THEOREMS] = true};
    for (size_t option = 0; option < TOOL_COUNT(options); option++)
        allowed[option] = allowed[option] || !theorems;
    for (size_t i = 0; i < TOOL_COUNT(common); i++)
        allowed[common[i]] = true;
    for (size_t i = 0; i < TOOL_COUNT(of_theorems); i++)
        allowed[of_theorems[i]] = theorems;
    for (size_t option = 0; option < TOOL_COUNT(options); option++) {
        if (values[option] && !allowed[option])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s does not apply %s --theorems%s", options[option].name,
                             theorems ? "with" : "without",
                             option == TOOL_OPTION_DEVICE ? ": matrices are computed on the host" : "");
    }
    if (values[OPTION_PLOT_FORMAT] && !values[OPTION_PLOTS])
        return tool_fail(error, TOOL_BAD_INPUT, "--plot-format needs --plots");
    return TOOL_DONE;
}

/* Notes options that only one analysis has. */
static void note_analyses_of_options(const char *const *values, analyze_arguments *arguments)
{
    static const struct {
        size_t option;
        analyze_kind kind;
    } rules[] = {
        {OPTION_THRESHOLD, ANALYZE_RANK}, {OPTION_FULL_SVD, ANALYZE_RANK}, {OPTION_FRACTION, ANALYZE_COMPONENTS}};
    for (size_t i = 0; i < TOOL_COUNT(rules); i++) {
        if (values[rules[i].option])
            arguments->only_for[rules[i].kind] = options[rules[i].option].name;
    }
}

tool_exit analyze_parse(int argc, char **argv, analyze_arguments *arguments, bool *finished, tool_error *error)
{
    const char *values[TOOL_COUNT(options)];
    TOOL_TRY(tool_parse_options(&analyze_program, argc, argv, values, finished, error));
    if (*finished)
        return TOOL_DONE;
    arguments->theorems = values[OPTION_THEOREMS] != NULL;
    TOOL_TRY(check_mode(values, error));
    if (!arguments->theorems)
        TOOL_TRY(tool_parse_problem(values, &arguments->problem, error));
    arguments->json = values[TOOL_OPTION_JSON] != NULL;
    arguments->device = values[TOOL_OPTION_DEVICE];
    arguments->full_svd = values[OPTION_FULL_SVD] != NULL;
    arguments->batch_list = values[OPTION_BATCH_LIST];
    arguments->head_list = values[OPTION_HEAD_LIST];
    arguments->plots = values[OPTION_PLOTS];
    arguments->threshold = 1e-6;
    arguments->fraction = 0.95;
    arguments->tokens = 12;
    arguments->trials = 16;
    TOOL_TRY(parse_analyses(values[OPTION_ANALYSES], arguments->chosen, error));
    note_analyses_of_options(values, arguments);
    TOOL_TRY(tool_parse_integer("rows", values[OPTION_ROWS], 1, INT64_C(1) << 30, &arguments->rows, error));
    TOOL_TRY(tool_parse_positive("threshold", values[OPTION_THRESHOLD], &arguments->threshold, error));
    TOOL_TRY(tool_parse_positive("fraction", values[OPTION_FRACTION], &arguments->fraction, error));
    if (arguments->fraction > 1.0)
        return tool_fail(error, TOOL_BAD_INPUT, "--fraction %s: expected at most 1", values[OPTION_FRACTION]);
    TOOL_TRY(tool_parse_integer("tokens", values[OPTION_TOKENS], 2, 32, &arguments->tokens, error));
    TOOL_TRY(tool_parse_integer("trials", values[OPTION_TRIALS], 1, 10000, &arguments->trials, error));
    TOOL_TRY(tool_parse_u64("seed", values[TOOL_OPTION_SEED], &arguments->seed, error));
    TOOL_TRY(tool_parse_name("plot-format", values[OPTION_PLOT_FORMAT], analyze_formats, TOOL_COUNT(analyze_formats),
                             &arguments->format, error));
    if (!arguments->plots)
        return TOOL_DONE;
    TOOL_TRY(tool_check_output_name("plots", arguments->plots, error));
    return tool_gnuplot_check(error);
}
