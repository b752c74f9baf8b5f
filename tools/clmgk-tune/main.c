/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. */
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

static const tool_program program = {
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
    TOOL_TRY(tool_parse_options(&program, argc, argv, values, finished, error));
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

/* Measures the devices one after another; *list gets an object of each. */
static tool_exit measure_devices(const tune_options *options, tune_setup *setup, json_t **list, tool_error *error)
{
    clmgk_device_info *infos = NULL;
    size_t count = 0;
    char *const farewell = strdup("clmgk-tune: interrupted: measurements are kept, and --resume goes on from them\n");
    if (!farewell)
        return tool_fail_memory(error, "a message");
    TOOL_TRY(tool_outputs_print(setup->outputs, "", stderr, farewell, error));
    TOOL_TRY(tool_list_devices(options->device, options->all_devices, &infos, &count, error));
    tool_exit status = tool_outputs_make_folder(setup->outputs, &setup->folder, error);
    for (size_t i = 0; i < count && status == TOOL_DONE; i++) {
        tune_report report = {.device = infos[i]};
        status = tune_device(options, setup, &report, error);
        if (status == TOOL_DONE && options->json)
            tool_json_append(list, tune_report_json(&report));
        else if (status == TOOL_DONE)
            tune_print_report(&report);
        tune_report_free(&report);
    }
    free(infos);
    return status;
}

static tool_exit tune(const tune_options *options, int argc, char **argv, tool_error *error)
{
    tune_setup setup = {.argc = argc, .argv = argv};
    json_t *list = json_array();
    TOOL_TRY(tool_outputs_create(&setup.outputs, error));
    const tool_exit status = measure_devices(options, &setup, &list, error);
    tool_outputs_destroy(setup.outputs);
    json_t *all = json_pack("{s:s, s:o}", "clmgk", clmgk_version(), "devices", list);
    if (status == TOOL_DONE && options->json)
        return tool_print_json(all, error);
    json_decref(all);
    return status == TOOL_DONE ? tool_flush_stdout(error) : status;
}

int main(int argc, char **argv)
{
    tune_options options;
    tool_error error = {.message = ""};
    bool finished = false;
    if (argc > 4 && strcmp(argv[1], TUNE_WORKER_OPTION) == 0)
        return tune_worker(argc, argv);
    tool_exit status = tune_parse_options(argc, argv, &options, &finished, &error);
    if (status == TOOL_DONE && !finished)
        status = options.show            ? tune_show(&options, &error)
                 : options.reset         ? tune_reset(&options, &error)
                 : options.export_path   ? tune_export(&options, &error)
                 : options.import_path   ? tune_import(&options, &error)
                 : options.programs_path ? tune_make_programs(&options, &error)
                                         : tune(&options, argc, argv, &error);
    return tool_report(&program, status, &error);
}
