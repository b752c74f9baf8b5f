/* SPDX-License-Identifier: Apache-2.0 */
/* Programs made ahead: the cases' plans are made, and their programs written to a folder that an application ships. */
#include "resolve.h"
#include "tune.h"

#include <inttypes.h>
#include <stdlib.h>

/* A device's programs. */
typedef struct maker {
    const tune_options *options;
    const char *folder; /* where the programs go: a path without links */
    tool_device device;
    bench_group *groups;
    clmgk_plan **plans; /* held until their programs are written */
    size_t plan_count;
    size_t cases, refused, done;
    size_t programs;
} maker;

static void release_plans(maker *m)
{
    while (m->plan_count > 0)
        clmgk_plan_release(m->plans[--m->plan_count]);
}

static tool_exit make_plan(maker *m, clmgk_context *context, const bench_case *item, tool_error *error)
{
    clmgk_plan *plan = NULL;
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    char name[96];
    tune_case_name(item, name, sizeof(name));
    const clmgk_status status = clmgk_plan_create(context, &item->desc, NULL, &plan, &error->library);
    fprintf(stderr, "clmgk-tune: %zu of %zu: %s: ", ++m->done, m->cases, name);
    if (status == CLMGK_ERROR_UNSUPPORTED) {
        fprintf(stderr, "not run here: %s\n", error->library.message);
        m->refused++;
        return TOOL_DONE;
    }
    if (status != CLMGK_OK) {
        fprintf(stderr, "failed\n");
        return tool_check_library(status, error);
    }
    m->plans[m->plan_count++] = plan;
    TOOL_TRY(tool_check_library(clmgk_plan_get_info(plan, &info, &error->library), error));
    fprintf(stderr, "%.1f s\n", 1e-3 * info.compile_ms);
    return TOOL_DONE;
}

static tool_exit fill_folder(maker *m, clmgk_context *context, tool_error *error)
{
    size_t count = 0;
    /* an empty context: whether the folder can be written, before anything takes time */
    TOOL_TRY(tool_check_library(clmgk_context_save_programs(context, m->folder, &count, &error->library), error));
    for (size_t g = 0; g < m->options->request.shape_count; g++) {
        for (size_t i = 0; i < m->groups[g].count; i++)
            TOOL_TRY(make_plan(m, context, &m->groups[g].cases[i], error));
    }
    TOOL_TRY(tool_check_library(clmgk_context_save_programs(context, m->folder, &count, &error->library), error));
    m->programs += count;
    return TOOL_DONE;
}

/* With the values of one tuning cache; "": of the library alone. No file of compiled programs is read: it may lack
 * kernels. */
static tool_exit make_with(maker *m, const char *tuning_dir, tool_error *error)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    options.cache_dir = options.program_dir = "";
    options.tuning_dir = tuning_dir;
    TOOL_TRY(tool_check_library(
        clmgk_context_create(m->device.context, m->device.info.device_id, &options, &context, &error->library), error));
    const tool_exit status = fill_folder(m, context, error);
    release_plans(m);
    clmgk_context_release(context);
    return status;
}

/* For machines that were tuned as this one, and for those that never were. */
static tool_exit make_all(maker *m, tool_error *error)
{
    clmgk_tuning_info tuning = CLMGK_TUNING_INFO_INIT;
    TOOL_TRY(tool_check_library(clmgk_tuning_get_info(NULL, &tuning, &error->library), error));
    TOOL_TRY(bench_make_groups(&m->options->request, false, &m->groups, error));
    for (size_t g = 0; g < m->options->request.shape_count; g++)
        m->cases += m->groups[g].count;
    m->plans = calloc(m->cases + 1, sizeof(clmgk_plan *));
    TOOL_TRY(tool_check_memory(m->plans, "the plans", error));
    const size_t times = tuning.entries > 0 ? 2 : 1;
    m->cases *= times;
    if (times > 1)
        TOOL_TRY(make_with(m, tuning.path, error));
    return make_with(m, "", error);
}

static tool_exit make_for(const tune_options *options, const char *folder, const clmgk_device_info *info, json_t **list,
                          tool_error *error)
{
    maker m = {.options = options, .folder = folder};
    tool_exit status = tool_device_open_info(info, &m.device, error);
    if (status == TOOL_DONE)
        status = make_all(&m, error);
    if (status == TOOL_DONE && options->json)
        tool_json_append(list, json_pack("{s:o, s:o, s:o, s:I, s:I, s:I}", "name", tool_json_text(info->name),
                                         "platform", tool_json_text(info->platform), "driver",
                                         tool_json_text(info->driver), "plans", (json_int_t)(m.done - m.refused),
                                         "refused", (json_int_t)m.refused, "programs", (json_int_t)m.programs));
    else if (status == TOOL_DONE)
        printf("%s: %zu %s of %zu %s in %s\n", info->name, m.programs, tool_plural(m.programs, "program", "programs"),
               m.done - m.refused, tool_plural(m.done - m.refused, "plan", "plans"), options->programs_path);
    bench_free_groups(&options->request, m.groups);
    free(m.plans);
    tool_device_close(&m.device);
    return status;
}

/* For all chosen devices; *list gets an object of each. */
static tool_exit make_for_devices(const tune_options *options, const char *folder, json_t **list, tool_error *error)
{
    clmgk_device_info *infos = NULL;
    size_t count = 0;
    TOOL_TRY(tool_list_devices(options->device, options->all_devices, &infos, &count, error));
    tool_exit status = TOOL_DONE;
    for (size_t i = 0; i < count && status == TOOL_DONE; i++)
        status = make_for(options, folder, &infos[i], list, error);
    free(infos);
    return status;
}

tool_exit tune_make_programs(const tune_options *options, tool_error *error)
{
    char *folder = NULL;
    TOOL_TRY(tool_resolve_output("programs", options->programs_path, &folder, error));
    json_t *list = json_array();
    const tool_exit status = make_for_devices(options, folder, &list, error);
    free(folder);
    if (status != TOOL_DONE || !options->json) {
        json_decref(list);
        return status == TOOL_DONE ? tool_flush_stdout(error) : status;
    }
    return tool_print_json(json_pack("{s:s, s:o, s:o}", "clmgk", clmgk_version(), "folder",
                                     tool_json_text(options->programs_path), "devices", list),
                           error);
}
