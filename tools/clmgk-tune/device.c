/* SPDX-License-Identifier: Apache-2.0 */
/* A device's session from its cache to its results. */
#include "session.h"

#include <stdlib.h>
#include <unistd.h>

#define PRODUCTS_SHARE 0.2 /* of the budget, where products are wanted beside attention */

/* Copies the cache to where candidates are put to the proof: a plan's passes are chosen together. One with values that
 * are not allowed is not taken over: plans pass those over. */
static tool_exit copy_cache(const session *s, tool_error *error)
{
    char *text = NULL;
    size_t length = 0;
    TOOL_TRY(tune_export_text(NULL, &text, &length, error));
    const clmgk_status done = clmgk_tuning_import(s->staging, text, length, NULL, &error->library);
    free(text);
    return done == CLMGK_ERROR_INVALID_VALUE ? TOOL_DONE : tool_check_library(done, error);
}

/* The folder of the cache, which is made if it is not there, and can be written. */
static tool_exit open_cache(clmgk_tuning_info *info, tool_error *error)
{
    static const char empty[] = "clmgk-tuning 1\n";
    TOOL_TRY(tool_check_library(clmgk_tuning_get_info(NULL, info, &error->library), error));
    if (!info->path[0])
        return tool_fail(error, TOOL_BAD_INPUT,
                         "CLMGK_CACHE_DIR is empty, so that no files are used: expected a folder for what is measured");
    return tool_check_library(clmgk_tuning_import(NULL, empty, sizeof(empty) - 1, NULL, &error->library), error);
}

/* As many as there are cores to compile, and at least two (products.c). */
static tool_exit make_children(session *s, int argc, char **argv, tool_outputs *outputs, tool_error *error)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    s->compilers = cores < 2 ? 2 : cores > MAX_COMPILERS ? MAX_COMPILERS : (size_t)cores;
    for (size_t i = 0; i < s->compilers; i++)
        TOOL_TRY(tune_child_create(&s->report->device, outputs, s->folder, argc, argv, &s->children[i], error));
    return TOOL_DONE;
}

tool_exit tune_device(const tune_options *options, int argc, char **argv, const clmgk_device_info *info,
                      tool_outputs *outputs, const char *folder, tune_report *report, tool_error *error)
{
    session s = {.options = options, .folder = folder, .report = report, .start_ms = tool_now_ms()};
    const double products_s = options->product_count ? PRODUCTS_SHARE * options->budget_s : 0;
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    tool_exit status = TOOL_DONE;
    report->device = *info;
    snprintf(s.staging, sizeof(s.staging), "%s/staging", folder);
    TOOL_TRY(open_cache(&cache, error));
    TOOL_TRY_GOTO(status, tune_history_open(cache.path, info, options->resume, &s.history, error), done);
    TOOL_TRY_GOTO(status, copy_cache(&s, error), done);
    TOOL_TRY_GOTO(status, tool_device_open_info(info, &s.device, error), done);
    TOOL_TRY_GOTO(status, make_children(&s, argc, argv, outputs, error), done);
    TOOL_TRY_GOTO(status, tune_attention(&s, s.start_ms + 1e3 * (options->budget_s - products_s), error), done);
    status = tune_products(&s, s.start_ms + 1e3 * options->budget_s, error);
done:
    report->spent_s = session_spent_s(&s);
    for (size_t i = 0; i < MAX_COMPILERS; i++)
        tune_child_destroy(s.children[i]);
    json_decref(s.reply.answer);
    tool_device_close(&s.device);
    tune_history_close(s.history);
    return status;
}
