/* SPDX-License-Identifier: Apache-2.0 */
#include "tune.h"

#include <stdlib.h>
#include <string.h>

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
    return tool_report(&tune_program, status, &error);
}
