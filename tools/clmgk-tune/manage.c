/* SPDX-License-Identifier: Apache-2.0 */
/* Actions on the cache without measuring: show, reset, export, import. */
#include "input_file.h"
#include "tune.h"
#include "tuned.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_FILE_BYTES ((size_t)16 << 20)
#define FILE_NAME      "tuning.txt" /* in the cache's folder */

/* The device that was named; NULL in info->device_id with --all-devices. */
static tool_exit choose_device(const tune_options *options, clmgk_device_info *info, tool_error *error)
{
    const bool all = options->all_devices;
    return all ? TOOL_DONE : tool_check_library(clmgk_select_device(options->device, info, &error->library), error);
}

tool_exit tune_get_cache(clmgk_tuning_info *info, bool to_change, tool_error *error)
{
    TOOL_TRY(tool_check_library(clmgk_tuning_get_info(NULL, info, &error->library), error));
    return info->path[0] || !to_change
               ? TOOL_DONE
               : tool_fail(error, TOOL_BAD_INPUT, "CLMGK_CACHE_DIR is empty: no tuning cache is in use");
}

tool_exit tune_print(const tune_options *options, json_t *object, tool_error *error)
{
    if (options->json)
        return tool_print_json(object, error);
    json_decref(object);
    return tool_flush_stdout(error);
}

static json_t *entry_json(const clmgk_tuning_entry *entry)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:I, s:s, s:s, s:s, s:s, s:o, s:o, s:b, s:b, s:o, s:b, s:s}", "device",
                     tool_json_text(entry->device), "platform", tool_json_text(entry->platform), "driver",
                     tool_json_text(entry->driver), "architecture", tool_json_text(entry->architecture),
                     "compute_units", (json_int_t)entry->compute_units, "operation", entry->operation, "bucket",
                     entry->bucket, "choice", entry->choice, "parameters", entry->parameters, "time_ms",
                     tool_json_number(entry->time_ms), "default_ms", tool_json_number(entry->default_ms), "shipped",
                     (int)entry->shipped, "allowed", (int)entry->allowed, "reason",
                     entry->allowed ? json_null() : tool_json_text(entry->reason), "defaults", (int)entry->defaults,
                     "source", clmgk_tuning_source_name(entry->source));
}

static void print_entry(const clmgk_tuning_entry *entry, bool new_device)
{
    if (new_device)
        printf("%s, %s\n", entry->device, entry->platform);
    printf("  %-8s %s\n           %s %s: %.3f ms, defaults %.3f ms", entry->operation, entry->bucket, entry->choice,
           entry->parameters[0] ? entry->parameters : "defaults", entry->time_ms, entry->default_ms);
    if (entry->shipped)
        printf("; from the library");
    if (entry->source == CLMGK_TUNING_ARCHITECTURE)
        printf("; measured with driver %s, %" PRIu32 " compute units", entry->driver, entry->compute_units);
    if (!entry->allowed)
        printf("; PASSED OVER: %s", entry->reason);
    else if (entry->defaults && entry->parameters[0])
        printf("; GAINS LESS THAN %g %%: the defaults are used", 100 * CLMGK_TUNING_LEAST_GAIN);
    putchar('\n');
}

tool_exit tune_show(const tune_options *options, tool_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    size_t count = 0;
    clmgk_tuning_entry *entries = NULL;
    TOOL_TRY(choose_device(options, &info, error));
    TOOL_TRY(tune_get_cache(&cache, false, error));
    TOOL_TRY(tool_list_tuned(info.device_id, &entries, &count, error));
    json_t *list = json_array();
    const char *const path = cache.path[0] ? cache.path : NULL, *const message =
                                                                    cache.message[0] ? cache.message : NULL;
    if (!options->json) {
        printf("tuning cache: %s\n", path ? path : "no files are used");
        tool_print_passed_over(&cache);
    }
    for (size_t i = 0; i < count; i++) {
        tool_json_append(&list, entry_json(&entries[i]));
        if (!options->json)
            print_entry(&entries[i], i == 0 || strcmp(entries[i - 1].device, entries[i].device) != 0);
    }
    if (!options->json && count == 0)
        printf("no %sentries%s%s: the defaults are used\n", message ? "other " : "", info.device_id ? " for " : "",
               info.name);
    free(entries);
    return tune_print(options,
                      json_pack("{s:s, s:s?, s:I, s:o, s:o}", "clmgk", clmgk_version(), "path", path, "damaged",
                                (json_int_t)cache.damaged, "message", tool_json_text(message), "entries", list),
                      error);
}

/* "`path`: how many entries were `word`." */
static tool_exit tell(const tune_options *options, const char *key, const char *path, const char *word, size_t count,
                      tool_error *error)
{
    if (!options->json)
        printf("%s: %zu %s %s\n", path, count, tool_plural(count, "entry", "entries"), word);
    return tune_print(
        options,
        json_pack("{s:s, s:o, s:I}", "clmgk", clmgk_version(), key, tool_json_text(path), word, (json_int_t)count),
        error);
}

tool_exit tune_reset(const tune_options *options, tool_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    clmgk_tuning_info before = CLMGK_TUNING_INFO_INIT, after = CLMGK_TUNING_INFO_INIT;
    clmgk_device_info *devices = NULL;
    size_t count = 0;
    char path[TUNE_PATH_SIZE];
    TOOL_TRY(choose_device(options, &info, error));
    TOOL_TRY(tune_get_cache(&before, true, error));
    TOOL_TRY(tool_check_library(clmgk_tuning_reset(NULL, info.device_id, &error->library), error));
    TOOL_TRY(tune_get_cache(&after, false, error));
    TOOL_TRY(tool_list_devices(options->device, options->all_devices, &devices, &count, error));
    for (size_t i = 0; i < count; i++) {
        tune_history_name(before.path, &devices[i], path);
        (void)unlink(path);
    }
    free(devices);
    return tell(options, "path", before.path, "removed", before.entries - after.entries, error);
}

/* Writes the text where the option says. The cache's own file holds the entries of other devices, too: an export may
 * not take its place. */
static tool_exit write_text(const char *path, const char *text, tool_outputs *outputs, tool_error *error)
{
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    char own[sizeof(cache.path) + sizeof(FILE_NAME)];
    FILE *stream = NULL;
    size_t index = 0;
    TOOL_TRY(tune_get_cache(&cache, false, error));
    snprintf(own, sizeof(own), "%s/" FILE_NAME, cache.path);
    TOOL_TRY(tool_outputs_add(outputs, "export", path, &index, error));
    if (tool_outputs_refuse_input(outputs, "show", own, error) != TOOL_DONE)
        return tool_fail(error, TOOL_BAD_INPUT, "--export %s: is the tuning cache's own file: expected another", path);
    TOOL_TRY(tool_outputs_open(outputs, index, &stream, error));
    if (fputs(text, stream) < 0)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "--export %s: %s", path, strerror(errno));
    return tool_outputs_commit(outputs, error);
}

tool_exit tune_export(const tune_options *options, tool_error *error)
{
    static char text[MAX_FILE_BYTES + 1];
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    size_t length = 0, count = 0;
    tool_outputs *outputs = NULL;
    TOOL_TRY(choose_device(options, &info, error));
    TOOL_TRY(tool_check_library(
        clmgk_tuning_export(NULL, info.device_id, text, MAX_FILE_BYTES, &length, &error->library), error));
    TOOL_TRY(tool_outputs_create(&outputs, error));
    const tool_exit status = write_text(options->path, text, outputs, error);
    tool_outputs_destroy(outputs);
    for (const char *entry = text; (entry = strstr(entry, "\nentry ")); entry++)
        count++;
    return status == TOOL_DONE ? tell(options, "file", options->path, "exported", count, error) : status;
}

tool_exit tune_import(const tune_options *options, tool_error *error)
{
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    char *text = NULL;
    size_t length = 0, taken = 0;
    TOOL_TRY(tune_get_cache(&cache, true, error));
    TOOL_TRY(tool_read_input("import", options->path, MAX_FILE_BYTES, &text, &length, error));
    tool_exit status = tool_check_library(clmgk_tuning_import(NULL, text, length, &taken, &error->library), error);
    free(text);
    if (error->library.status == CLMGK_ERROR_INVALID_VALUE)
        status = tool_fail(error, TOOL_BAD_INPUT, "--import %s: %s", options->path, error->library.message);
    return status == TOOL_DONE ? tell(options, "file", options->path, "taken", taken, error) : status;
}
