/* SPDX-License-Identifier: Apache-2.0 */
#include "tune.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Measures the devices one after another. */
static tool_exit tune_devices(const tune_options *options, int argc, char **argv, const clmgk_device_info *infos,
                              size_t count, tool_outputs *outputs, const char *folder, tune_report *reports,
                              tool_error *error)
{
    char *const farewell = strdup("clmgk-tune: interrupted: measurements are kept, and --resume goes on from them\n");
    TOOL_TRY(tool_check_memory(farewell, "a message", error));
    TOOL_TRY(tool_outputs_print(outputs, "", stderr, farewell, error));
    for (size_t i = 0; i < count; i++)
        TOOL_TRY(tune_device(options, argc, argv, &infos[i], outputs, folder, &reports[i], error));
    TOOL_TRY(tool_outputs_print(outputs, "", stderr, NULL, error));
    if (!options->json) {
        for (size_t i = 0; i < count; i++)
            tune_print_report(&reports[i], stdout);
        return tool_flush_stdout(error);
    }
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        tool_json_append(&list, tune_report_json(&reports[i]));
    return tool_print_json(json_pack("{s:s, s:o}", "clmgk", clmgk_version(), "devices", list), error);
}

static tool_exit tune(const tune_options *options, int argc, char **argv, tool_outputs *outputs, tool_error *error)
{
    clmgk_device_info *infos = NULL;
    tune_report *reports = NULL;
    size_t count = 0;
    const char *folder = NULL;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, tool_list_devices(options->device, options->all_devices, &infos, &count, error), done);
    TOOL_TRY_GOTO(status, tool_outputs_make_folder(outputs, &folder, error), done);
    reports = calloc(count, sizeof(*reports));
    status = reports ? tune_devices(options, argc, argv, infos, count, outputs, folder, reports, error)
                     : tool_fail_memory(error, "the results");
done:
    for (size_t i = 0; reports && i < count; i++)
        tune_report_free(&reports[i]);
    free(reports);
    free(infos);
    return status;
}

static tool_exit act(const tune_options *options, int argc, char **argv, tool_error *error)
{
    tool_outputs *outputs = NULL;
    if (options->show)
        return tune_show(options, error);
    if (options->reset)
        return tune_reset(options, error);
    if (options->export_path)
        return tune_export(options, error);
    if (options->import_path)
        return tune_import(options, error);
    if (options->programs_path)
        return tune_make_programs(options, error);
    TOOL_TRY(tool_outputs_create(&outputs, error));
    const tool_exit status = tune(options, argc, argv, outputs, error);
    tool_outputs_destroy(outputs);
    return status;
}

int main(int argc, char **argv)
{
    tune_options options;
    tool_error error = {.message = ""};
    bool finished = false;
    if (argc > 3 && strcmp(argv[1], TUNE_WORKER_OPTION) == 0) {
        char *const folder = argv[2], *const selector = argv[3];
        argv[3] = argv[0];
        return tune_worker(folder, selector, argc - 3, argv + 3);
    }
    signal(SIGPIPE, SIG_IGN); /* a process for candidates may end at any time */
    tool_exit status = tune_parse_options(argc, argv, &options, &finished, &error);
    if (status == TOOL_DONE && !finished)
        status = act(&options, argc, argv, &error);
    return tool_report(&tune_program, status, &error);
}
