/* SPDX-License-Identifier: Apache-2.0 */
/* Programs made ahead: the cases' plans are made, and their programs written to a folder that an application ships. */
#include "resolve.h"
#include "tune.h"

#include <stdlib.h>

typedef struct maker {
    const char *folder; /* where the programs go: a path without links */
    tool_device device;
    tune_report report; /* its cases */
    size_t plans, refused, programs;
} maker;

static tool_exit make_plan(maker *m, clmgk_context *context, const tune_case *c, clmgk_plan **plan, tool_error *error)
{
    const clmgk_status status = clmgk_plan_create(context, &c->item->desc, NULL, plan, &error->library);
    const bool refused = status == CLMGK_ERROR_UNSUPPORTED;
    m->refused += refused;
    m->plans += status == CLMGK_OK;
    fprintf(stderr, "clmgk-tune: %zu of %zu: %s%s%s\n", (size_t)(c - m->report.cases) + 1, m->report.count, c->name,
            refused ? ": not run here: " : "", refused ? error->library.message : "");
    return refused ? TOOL_DONE : tool_check_library(status, error);
}

static tool_exit save(const maker *m, clmgk_context *context, size_t *count, tool_error *error)
{
    return tool_check_library(clmgk_context_save_programs(context, m->folder, count, &error->library), error);
}

/* With the values of one tuning cache; "": of the library alone. No file of compiled programs is read: it may lack
 * kernels. Plans are held until their programs are written. */
static tool_exit make_all(maker *m, const char *tuning_dir, tool_error *error)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    clmgk_plan **const plans = calloc(m->report.count, sizeof(clmgk_plan *));
    size_t count = 0;
    tool_exit status = tool_check_memory(plans, "the plans", error);
    options.cache_dir = options.program_dir = "";
    options.tuning_dir = tuning_dir;
    if (status == TOOL_DONE)
        status = tool_check_library(
            clmgk_context_create(m->device.context, m->device.info.device_id, &options, &context, &error->library),
            error);
    if (status == TOOL_DONE) /* an empty context: whether the folder can be written, before anything takes time */
        status = save(m, context, &count, error);
    for (size_t i = 0; i < m->report.count && status == TOOL_DONE; i++)
        status = make_plan(m, context, &m->report.cases[i], &plans[i], error);
    if (status == TOOL_DONE)
        status = save(m, context, &count, error);
    m->programs += count;
    for (size_t i = 0; plans && i < m->report.count; i++)
        clmgk_plan_release(plans[i]);
    free(plans);
    clmgk_context_release(context);
    return status;
}

/* For machines that were tuned as this one, and for those that never were; *object tells about them. */
static tool_exit make_for(const tune_options *options, const char *folder, const clmgk_device_info *info,
                          json_t **object, tool_error *error)
{
    maker m = {.folder = folder, .report = {.device = *info}};
    tune_options attention = *options;
    clmgk_tuning_info tuning = CLMGK_TUNING_INFO_INIT;
    tool_exit status = TOOL_DONE;
    attention.product_count = 0;
    TOOL_TRY(tool_check_library(clmgk_tuning_get_info(NULL, &tuning, &error->library), error));
    TOOL_TRY_GOTO(status, tool_device_open_info(info, &m.device, error), done);
    TOOL_TRY_GOTO(status, tune_make_cases(&attention, m.device.library, &m.report, error), done);
    if (tuning.entries > 0)
        TOOL_TRY_GOTO(status, make_all(&m, tuning.path, error), done);
    TOOL_TRY_GOTO(status, make_all(&m, "", error), done);
    *object = json_pack("{s:o, s:o, s:o, s:I, s:I, s:I}", "name", tool_json_text(info->name), "platform",
                        tool_json_text(info->platform), "driver", tool_json_text(info->driver), "plans",
                        (json_int_t)m.plans, "refused", (json_int_t)m.refused, "programs", (json_int_t)m.programs);
    if (!options->json)
        printf("%s: %zu %s of %zu %s in %s\n", info->name, m.programs, tool_plural(m.programs, "program", "programs"),
               m.plans, tool_plural(m.plans, "plan", "plans"), options->programs_path);
done:
    tune_report_free(&m.report);
    tool_device_close(&m.device);
    return status;
}

tool_exit tune_make_programs(const tune_options *options, tool_error *error)
{
    char *folder = NULL;
    clmgk_device_info *infos = NULL;
    size_t count = 0;
    TOOL_TRY(tool_resolve_output("programs", options->programs_path, &folder, error));
    tool_exit status = tool_list_devices(options->device, options->all_devices, &infos, &count, error);
    json_t *list = json_array();
    for (size_t i = 0; i < count && status == TOOL_DONE; i++) {
        json_t *object = NULL;
        status = make_for(options, folder, &infos[i], &object, error);
        tool_json_append(&list, object);
    }
    free(infos);
    free(folder);
    json_t *all = json_pack("{s:s, s:o, s:o}", "clmgk", clmgk_version(), "folder",
                            tool_json_text(options->programs_path), "devices", list);
    if (status == TOOL_DONE && options->json)
        return tool_print_json(all, error);
    json_decref(all);
    return status == TOOL_DONE ? tool_flush_stdout(error) : status;
}
