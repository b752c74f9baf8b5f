/* SPDX-License-Identifier: Apache-2.0 */
#include "tune.h"

#include <string.h>

#define OPTIONS_BEFORE_SIZES(X)                                                                                        \
    X(ALL_DEVICES, "all-devices", NULL, "every device, one after another")                                             \
    X(PRESET, "preset", "NAME",                                                                                        \
      "quick: a first minute, for what is used most: the forward pass of softmax and mgk, D = 64, no\n"                \
      "products; the sizes near it profit too. In place of --suite, --shapes and sizes")                               \
    X(VARIANTS, "variants", "A,B:H,C:MxH,...",                                                                         \
      "as in clmgk-bench; default: softmax, and mgk and smgk with half the heads; for the suite\n"                     \
      "admixture softmax and that family; for the suite linear that family")                                           \
    X(SHAPES, "shapes", "NAME,...", "as in clmgk-bench; default: the suite")                                           \
    X(SUITE, "suite", "NAME", "full (default), paper, short, quick, admixture or linear, of clmgk-bench")

#define OPTIONS_BEHIND_SIZES(X)                                                                                        \
    X(PASS, "pass", "NAME", "forward, backward or both (default)")                                                     \
    BENCH_DTYPE_OPTIONS(X)                                                                                             \
    X(PRODUCTS, "products", "MxNxK,...",                                                                               \
      "matrix products to tune, of the first type (provider, and its parameters); none: no products.\n"                \
      "Default: the products of layers of width 512; none if sizes, shapes or variants are given")                     \
    X(BUDGET, "budget", "SECONDS", "time to spend on a device, default 300")                                           \
    X(CANDIDATE_LIMIT, "candidate-limit", "SECONDS", "time limit of a candidate, compiling included; default 60")      \
    X(SEARCH, "search", "NAME",                                                                                        \
      "neighbours (default): changes of one value that are likely to help; random: for comparison")                    \
    X(RESUME, "resume", NULL, "continue an earlier run that ended or was stopped, with its measurements")              \
    X(SHOW, "show", NULL, "only show the cache's entries")                                                             \
    X(RESET, "reset", NULL, "remove the device's entries (--all-devices: all) from the cache")                         \
    X(EXPORT, "export", "F", "write the cache's entries for the device (--all-devices: all) to a file")                \
    X(IMPORT, "import", "F", "merge the entries of an exported file into the cache: the later measurement stays")      \
    X(PROGRAMS, "programs", "DIR", "only compile the programs of the cases into a folder that an application can ship")

BENCH_OPTIONS_TABLE;

const tool_program tune_program = {
    .name = "clmgk-tune",
    .summary = "Measures a device once: stores kernel parameters and engines that are faster than the defaults in the\n"
               "tuning cache, for every program that uses the library.",
    .notes = "Values are stored only if they are right, checked against double precision on awkward shapes, and if\n"
             "plans that take them from the cache are faster than the defaults beyond noise. Use an idle machine.",
    .options = options_table,
    .option_count = OPTION_COUNT,
};

/* Options of a measurement, and the actions that go without one. */
static tool_exit check_action(const char *const *values, tool_error *error)
{
    static const int actions[] = {OPTION_SHOW, OPTION_RESET, OPTION_EXPORT, OPTION_IMPORT, OPTION_PROGRAMS};
    static const int measuring[] = {
        OPTION_PRESET,   OPTION_BUDGET,  OPTION_CANDIDATE_LIMIT, OPTION_SEARCH,  OPTION_RESUME,        OPTION_PRODUCTS,
        OPTION_VARIANTS, OPTION_SHAPES,  OPTION_SUITE,           OPTION_PASS,    OPTION_DTYPE,         OPTION_DTYPE_K,
        OPTION_DTYPE_V,  OPTION_DTYPE_O, OPTION_PRECISION,       OPTION_FEATURE, OPTION_FEATURE_ORDER, OPTION_FEATURES};
    enum { WITHOUT_CASES = 6 };
    int action = -1;
    for (size_t i = 0; i < TOOL_COUNT(actions); i++) {
        if (!values[actions[i]])
            continue;
        if (action >= 0)
            return tool_fail(error, TOOL_BAD_INPUT, "expected one of --%s and --%s, not both",
                             options_table[action].name, options_table[actions[i]].name);
        action = actions[i];
    }
    const bool has_cases = action < 0 || action == OPTION_PROGRAMS;
    if (!has_cases && bench_given_size(values + OPTION_SIZES))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s measures nothing: expected no --%s with it",
                         options_table[action].name, bench_given_size(values + OPTION_SIZES));
    const size_t refused = has_cases ? WITHOUT_CASES : TOOL_COUNT(measuring);
    for (size_t i = 0; action >= 0 && i < refused; i++) {
        if (values[measuring[i]])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s measures nothing: expected no --%s with it",
                             options_table[action].name, options_table[measuring[i]].name);
    }
    if (action == OPTION_IMPORT && (values[TOOL_OPTION_DEVICE] || values[OPTION_ALL_DEVICES]))
        return tool_fail(error, TOOL_BAD_INPUT, "--import takes all devices of the file: expected no --%s with it",
                         values[TOOL_OPTION_DEVICE] ? "device" : "all-devices");
    if (action == OPTION_PROGRAMS && !values[action][0])
        return tool_fail(error, TOOL_BAD_INPUT, "--programs '': expected a folder");
    return TOOL_DONE;
}

/* A preset stands for what else chooses cases. */
static tool_exit parse_preset(const char **values, tune_options *options, tool_error *error)
{
    static const char *const presets[] = {"quick"};
    static const int others[] = {OPTION_SUITE, OPTION_SHAPES};
    const char *other = bench_given_size(values + OPTION_SIZES);
    size_t preset = 0;
    TOOL_TRY(tool_parse_name("preset", values[OPTION_PRESET], presets, TOOL_COUNT(presets), &preset, error));
    if (!values[OPTION_PRESET])
        return TOOL_DONE;
    for (size_t i = 0; i < TOOL_COUNT(others); i++)
        other = values[others[i]] ? options_table[others[i]].name : other;
    if (other)
        return tool_fail(error, TOOL_BAD_INPUT, "--preset chooses the sizes: expected no --%s with it", other);
    values[OPTION_SHAPES] = "quick-64";
    if (!values[OPTION_VARIANTS])
        values[OPTION_VARIANTS] = "softmax,mgk:4";
    if (!values[OPTION_PASS])
        values[OPTION_PASS] = "forward"; /* a minute is enough for two cases */
    options->budget_s = 60;
    return TOOL_DONE;
}

tool_exit tune_parse_options(int argc, char **argv, tune_options *options, bool *finished, tool_error *error)
{
    static const char *const searches[] = {"neighbours", "random"};
    const char *values[OPTION_COUNT];
    size_t search = 0;
    unsigned suite = 0;
    *options = (tune_options){.budget_s = 300, .candidate_s = 60};
    TOOL_TRY(tool_parse_options(&tune_program, argc, argv, values, finished, error));
    if (*finished)
        return TOOL_DONE;
    TOOL_TRY(check_action(values, error));
    TOOL_TRY(parse_preset(values, options, error));
    const bench_choice choice = {.suite = values[OPTION_SUITE],
                                 .shapes = values[OPTION_SHAPES],
                                 .sizes = values + OPTION_SIZES,
                                 .variants = values[OPTION_VARIANTS],
                                 .feature = values[OPTION_FEATURE],
                                 .feature_order = values[OPTION_FEATURE_ORDER],
                                 .features = values[OPTION_FEATURES],
                                 .dtypes = values[OPTION_DTYPE],
                                 .dtype_k = values[OPTION_DTYPE_K],
                                 .dtype_v = values[OPTION_DTYPE_V],
                                 .dtype_o = values[OPTION_DTYPE_O],
                                 .precision = values[OPTION_PRECISION],
                                 .default_suite = "full"};
    TOOL_TRY(bench_parse_choice(&choice, &options->request, &suite, error));
    options->request.gradients = BENCH_DEFAULT_GRADIENTS;
    TOOL_TRY(bench_parse_pass(values[OPTION_PASS] ? values[OPTION_PASS] : "both", &options->request, error));
    const char *products = values[OPTION_PRODUCTS];
    if (!products)
        products =
            values[OPTION_SHAPES] || values[OPTION_VARIANTS] || bench_given_size(choice.sizes) ? "none" : "layer";
    if (strcmp(products, "none") != 0)
        TOOL_TRY(tool_parse_products("products", products, options->products, &options->product_count, error));
    for (size_t i = 0; i < options->product_count; i++) {
        options->products[i].dtype = options->request.dtypes[0];
        options->products[i].precision = options->request.precision;
    }
    TOOL_TRY(tool_parse_positive("budget", values[OPTION_BUDGET], &options->budget_s, error));
    TOOL_TRY(tool_parse_positive("candidate-limit", values[OPTION_CANDIDATE_LIMIT], &options->candidate_s, error));
    TOOL_TRY(tool_parse_name("search", values[OPTION_SEARCH], searches, TOOL_COUNT(searches), &search, error));
    options->device = values[TOOL_OPTION_DEVICE];
    options->all_devices = values[OPTION_ALL_DEVICES] != NULL;
    if (options->device && options->all_devices)
        return tool_fail(error, TOOL_BAD_INPUT, "expected one of --device and --all-devices, not both");
    options->random = search == 1;
    options->resume = values[OPTION_RESUME] != NULL;
    options->show = values[OPTION_SHOW] != NULL;
    options->reset = values[OPTION_RESET] != NULL;
    options->json = values[TOOL_OPTION_JSON] != NULL;
    options->export_path = values[OPTION_EXPORT];
    options->import_path = values[OPTION_IMPORT];
    options->programs_path = values[OPTION_PROGRAMS];
    return TOOL_DONE;
}
