/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. */
#include "tune.h"

#include <string.h>

#define OPTIONS_BEFORE_SIZES(X)                                                                                        \
    X(ALL_DEVICES, "all-devices", NULL, "every device, one after another")                                             \
    X(VARIANTS, "variants", "A,B:H,C:MxH,...",                                                                         \
      "as in clmgk-bench; default: softmax, and mgk and smgk with half the heads; for the suite\n"                     \
      "admixture softmax and that family; for the suite linear that family")                                           \
    X(SHAPES, "shapes", "NAME,...", "as in clmgk-bench; default: the suite")                                           \
    X(SUITE, "suite", "NAME", "full (default), paper, short, quick, admixture, linear, gpu or scores (without texts)")

/* From VARIANTS to RESUME the options of measurements, from PRESET on those that are not of cases; then the actions
 * that go without one. */
#define OPTIONS_BEHIND_SIZES(X)                                                                                        \
    X(PASS, "pass", "NAME", "forward, backward or both (default)")                                                     \
    BENCH_DTYPE_OPTIONS(X)                                                                                             \
    X(PRESET, "preset", "NAME",                                                                                        \
      "quick: a first minute, for what is used most: the forward pass of softmax and mgk, D = 64, no\n"                \
      "products; the sizes near it profit too. In place of --suite, --shapes and sizes")                               \
    X(PRODUCTS, "products", "MxNxK,...",                                                                               \
      "matrix products to tune, of the first type (provider, and its parameters); none: no products.\n"                \
      "Default: the products of layers of width 512; none if sizes, shapes or variants are given")                     \
    X(BUDGET, "budget", "SECONDS", "time to spend on a device, default 300")                                           \
    X(CANDIDATE_LIMIT, "candidate-limit", "SECONDS", "time limit of a candidate, compiling included; default 60")      \
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
             "they are faster than the defaults beyond noise. Use an idle machine.",
    .options = options_table,
    .option_count = OPTION_COUNT,
};

/* An action refuses other actions, and options of measurements; --programs takes those of cases. */
static tool_exit check_action(const char *const *values, tool_error *error)
{
    int action = OPTION_SHOW;
    while (action < OPTION_COUNT && !values[action])
        action++;
    if (action == OPTION_COUNT)
        return TOOL_DONE;
    const char *const name = options_table[action].name;
    for (int i = action == OPTION_PROGRAMS ? OPTION_PRESET : OPTION_VARIANTS; i < OPTION_COUNT; i++)
        if (values[i] && i != action)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s measures nothing: expected no --%s with it", name,
                             options_table[i].name);
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
    const char *const size = bench_given_size(values + OPTION_SIZES);
    const char *const other = values[OPTION_SUITE] ? "suite" : values[OPTION_SHAPES] ? "shapes" : size;
    size_t preset = 0;
    TOOL_TRY(tool_parse_name("preset", values[OPTION_PRESET], presets, TOOL_COUNT(presets), &preset, error));
    if (!values[OPTION_PRESET])
        return TOOL_DONE;
    if (other)
        return tool_fail(error, TOOL_BAD_INPUT, "--preset chooses the sizes: expected no --%s with it", other);
    values[OPTION_SHAPES] = "quick-64";
    values[OPTION_VARIANTS] = values[OPTION_VARIANTS] ? values[OPTION_VARIANTS] : "softmax,mgk:4";
    values[OPTION_PASS] = values[OPTION_PASS] ? values[OPTION_PASS] : "forward"; /* a minute is enough for two cases */
    options->budget_s = 60;
    return TOOL_DONE;
}

tool_exit tune_parse_options(int argc, char **argv, tune_options *options, bool *finished, tool_error *error)
{
    const char *values[OPTION_COUNT];
    unsigned suite = 0;
    *options = (tune_options){.budget_s = 300, .candidate_s = 60};
    TOOL_TRY(tool_parse_options(&tune_program, argc, argv, values, finished, error));
    if (*finished)
        return TOOL_DONE;
    TOOL_TRY(check_action(values, error));
    TOOL_TRY(parse_preset(values, options, error));
    const bench_choice choice = {BENCH_CHOICE(values), .default_suite = "full"};
    TOOL_TRY(bench_parse_choice(&choice, &options->request, &suite, error));
    options->request.gradients = BENCH_DEFAULT_GRADIENTS;
    TOOL_TRY(bench_parse_pass(values[OPTION_PASS] ? values[OPTION_PASS] : "both", &options->request, error));
    const bool chosen = values[OPTION_SHAPES] || values[OPTION_VARIANTS] || bench_given_size(choice.sizes);
    const char *products = values[OPTION_PRODUCTS] ? values[OPTION_PRODUCTS] : chosen ? "none" : "layer";
    if (strcmp(products, "none") != 0)
        TOOL_TRY(tool_parse_products("products", products, options->products, &options->product_count, error));
    for (size_t i = 0; i < options->product_count; i++) {
        options->products[i].dtype = options->request.dtypes[0];
        options->products[i].precision = options->request.precision;
    }
    TOOL_TRY(tool_parse_positive("budget", values[OPTION_BUDGET], &options->budget_s, error));
    TOOL_TRY(tool_parse_positive("candidate-limit", values[OPTION_CANDIDATE_LIMIT], &options->candidate_s, error));
    options->device = values[TOOL_OPTION_DEVICE];
    options->all_devices = values[OPTION_ALL_DEVICES] != NULL;
    if (options->device && options->all_devices)
        return tool_fail(error, TOOL_BAD_INPUT, "expected one of --device and --all-devices, not both");
    options->resume = values[OPTION_RESUME] != NULL;
    options->show = values[OPTION_SHOW] != NULL;
    options->reset = values[OPTION_RESET] != NULL;
    options->json = values[TOOL_OPTION_JSON] != NULL;
    options->export_path = values[OPTION_EXPORT];
    options->import_path = values[OPTION_IMPORT];
    options->programs_path = values[OPTION_PROGRAMS];
    return TOOL_DONE;
}
