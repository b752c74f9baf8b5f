/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, and the devices. */
#include "tune.h"

#include <stdlib.h>
#include <string.h>

#define OPTIONS_BEFORE_SIZES(X)                                                                                        \
    X(ALL_DEVICES, "all-devices", NULL, "every device, one after another")                                             \
    X(VARIANTS, "variants", "A,B:H,C:MxH,...",                                                                         \
      "as in clmgk-bench; default: softmax, and mgk and smgk with half the heads; for the suite\n"                     \
      "admixture softmax and that family; for the suite linear that family")                                           \
    X(SHAPES, "shapes", "NAME,...", "as in clmgk-bench; default: the suite")                                           \
    X(SUITE, "suite", "NAME", "full (default), paper, short, quick, admixture, linear, gpu or scores (without texts)")

/* From VARIANTS to RESUME the options of measurements, then the actions that go without one. */
#define OPTIONS_BEHIND_SIZES(X)                                                                                        \
    X(PASS, "pass", "NAME", "forward, backward or both (default)")                                                     \
    BENCH_DTYPE_OPTIONS(X)                                                                                             \
    X(PRODUCTS, "products", "MxNxK,...",                                                                               \
      "matrix products to tune, of the first type (provider, and its parameters); none: no products.\n"                \
      "Default: the products of layers of width 512; none if sizes, shapes or variants are given")                     \
    X(BUDGET, "budget", "SECONDS", "time to spend on a device, default 300")                                           \
    X(CANDIDATE_LIMIT, "candidate-limit", "SECONDS", "time limit of a candidate, compiling included; default 60")      \
    X(RESUME, "resume", NULL, "continue an earlier run that ended or was stopped, with its measurements")              \
    X(SHOW, "show", NULL, "only show the cache's entries")                                                             \
    X(RESET, "reset", NULL, "remove the device's entries (--all-devices: all) from the cache")                         \
    X(EXPORT, "export", "F", "write the cache's entries for the device (--all-devices: all) to a file")                \
    X(IMPORT, "import", "F", "merge the entries of an exported file into the cache: the later measurement stays")

BENCH_OPTIONS_TABLE;

static const tool_program program = {
    .name = "clmgk-tune",
    .summary = "Measures a device once: stores kernel parameters and engines that are faster than the defaults in the\n"
               "tuning cache, for every program that uses the library.",
    .notes = "Values are stored only if they are right, checked against double precision on awkward shapes, and if\n"
             "they are faster than the defaults beyond noise. Use an idle machine.",
    .options = options_table,
    .option_count = OPTION_COUNT,
};

/* An action refuses other actions, and options of measurements; an import takes all devices of the file. */
static tool_exit parse_action(const char *const *values, tune_options *options, tool_error *error)
{
    static tool_exit (*const actions[])(const tune_options *, tool_error *) = {tune_show, tune_reset, tune_export,
                                                                               tune_import};
    int action = OPTION_SHOW;
    while (action < OPTION_COUNT && !values[action])
        action++;
    if (action == OPTION_COUNT)
        return TOOL_DONE;
    for (int i = 0; i < OPTION_COUNT; i++)
        if (values[i] && i != action && i != TOOL_OPTION_JSON &&
            (action == OPTION_IMPORT || (i != TOOL_OPTION_DEVICE && i != OPTION_ALL_DEVICES)))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s measures nothing: expected no --%s with it",
                             options_table[action].name, options_table[i].name);
    options->act = actions[action - OPTION_SHOW];
    options->path = values[action];
    return TOOL_DONE;
}

static tool_exit parse_options(int argc, char **argv, tune_options *options, bool *finished, tool_error *error)
{
    const char *values[OPTION_COUNT];
    unsigned suite = 0;
    *options = (tune_options){.argv = argv, .budget_s = 300, .candidate_s = 60};
    TOOL_TRY(tool_parse_options(&program, argc, argv, values, finished, error));
    if (*finished)
        return TOOL_DONE;
    TOOL_TRY(parse_action(values, options, error));
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
    options->json = values[TOOL_OPTION_JSON] != NULL;
    return TOOL_DONE;
}

/* Measures the devices one after another. */
static tool_exit tune(tune_options *options, tool_error *error)
{
    clmgk_device_info *infos = NULL;
    size_t count = 0;
    TOOL_TRY(tool_outputs_create(&options->outputs, error));
    char *const farewell = strdup("clmgk-tune: interrupted: measurements are kept, and --resume goes on from them\n");
    tool_exit status = farewell ? tool_outputs_print(options->outputs, "", stderr, farewell, error)
                                : tool_fail_memory(error, "a message");
    if (status == TOOL_DONE)
        status = tool_outputs_make_folder(options->outputs, &options->folder, error);
    if (status == TOOL_DONE)
        status = tool_list_devices(options->device, options->all_devices, &infos, &count, error);
    json_t *list = json_array();
    for (size_t i = 0; i < count && status == TOOL_DONE; i++) {
        json_t *report = NULL;
        status = tune_device(options, &infos[i], &report, error);
        tool_json_append(&list, report);
    }
    free(infos);
    tool_outputs_destroy(options->outputs);
    json_t *const all = json_pack("{s:s, s:o}", "clmgk", clmgk_version(), "devices", list);
    if (status == TOOL_DONE)
        return tune_print(options, all, error);
    json_decref(all);
    return status;
}

int main(int argc, char **argv)
{
    tune_options options;
    tool_error error = {.message = ""};
    bool finished = false;
    tool_exit status = parse_options(argc, argv, &options, &finished, &error);
    if (status == TOOL_DONE && getenv(TUNE_JOB))
        return tune_worker(&options, getenv(TUNE_JOB));
    if (status == TOOL_DONE && !finished)
        status = options.act ? options.act(&options, &error) : tune(&options, &error);
    return tool_report(&program, status, &error);
}
