/* SPDX-License-Identifier: Apache-2.0 */
/* Actions on the cache without measuring: list, export, import, clear. */
#include "input_file.h"
#include "tune.h"
#include "tuned.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILE_BYTES ((size_t)16 << 20)
#define FILE_NAME      "tuning.txt" /* in the cache's folder */

/* ---- devices ---------------------------------------------------------------------------------------------------- */

/* The device that was named; NULL in info->device_id with --all-devices. */
static tool_exit chosen_device(const tune_options *options, clmgk_device_info *info, tool_error *error)
{
    return options->all_devices
               ? TOOL_DONE
               : tool_check_library(clmgk_select_device(options->device, info, &error->library), error);
}

static tool_exit get_cache(clmgk_tuning_info *info, tool_error *error)
{
    return tool_check_library(clmgk_tuning_get_info(NULL, info, &error->library), error);
}

/* ---- show ------------------------------------------------------------------------------------------------------- */

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

static json_t *show_json(const clmgk_tuning_info *cache, const clmgk_tuning_entry *entries, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        tool_json_append(&list, entry_json(&entries[i]));
    return json_pack("{s:s, s:s?, s:I, s:o, s:o}", "clmgk", clmgk_version(), "path",
                     cache->path[0] ? cache->path : NULL, "damaged", (json_int_t)cache->damaged, "message",
                     cache->message[0] ? tool_json_text(cache->message) : json_null(), "entries", list);
}

static void print_entry(const clmgk_tuning_entry *entry)
{
    printf("  %-8s %s\n           %s %s", entry->operation, entry->bucket, entry->choice,
           entry->parameters[0] ? entry->parameters : "defaults");
    if (entry->default_ms > 0)
        printf(": %.3f ms, defaults %.3f ms", entry->time_ms, entry->default_ms);
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

static tool_exit print_entries(const clmgk_tuning_info *cache, const clmgk_tuning_entry *entries, size_t count,
                               const clmgk_device_info *info, tool_error *error)
{
    const char *device = "";
    printf("tuning cache: %s\n", cache->path[0] ? cache->path : "no files are used");
    tool_print_passed_over(cache);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(device, entries[i].device) != 0)
            printf("%s, %s\n", entries[i].device, entries[i].platform);
        device = entries[i].device;
        print_entry(&entries[i]);
    }
    if (count == 0)
        printf("no %sentries%s%s: the defaults are used\n", cache->message[0] ? "other " : "",
               info->device_id ? " for " : "", info->name);
    return tool_flush_stdout(error);
}

tool_exit tune_show(const tune_options *options, tool_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    size_t count = 0;
    clmgk_tuning_entry *entries = NULL;
    TOOL_TRY(chosen_device(options, &info, error));
    TOOL_TRY(get_cache(&cache, error));
    TOOL_TRY(tool_list_tuned(info.device_id, &entries, &count, error));
    const tool_exit status = options->json ? tool_print_json(show_json(&cache, entries, count), error)
                                           : print_entries(&cache, entries, count, &info, error);
    free(entries);
    return status;
}

/* ---- reset ------------------------------------------------------------------------------------------------------ */

tool_exit tune_reset(const tune_options *options, tool_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    clmgk_tuning_info before = CLMGK_TUNING_INFO_INIT, after = CLMGK_TUNING_INFO_INIT;
    TOOL_TRY(chosen_device(options, &info, error));
    TOOL_TRY(get_cache(&before, error));
    if (!before.path[0])
        return tool_fail(error, TOOL_BAD_INPUT, "CLMGK_CACHE_DIR is empty: there is no cache to reset");
    TOOL_TRY(tool_check_library(clmgk_tuning_reset(NULL, info.device_id, &error->library), error));
    TOOL_TRY(tune_history_remove(before.path, info.device_id ? &info : NULL, error));
    TOOL_TRY(get_cache(&after, error));
    const uint64_t removed = before.entries - after.entries;
    if (options->json)
        return tool_print_json(
            json_pack("{s:s, s:s, s:I}", "clmgk", clmgk_version(), "path", before.path, "removed", (json_int_t)removed),
            error);
    printf("removed %" PRIu64 " %s from %s\n", removed, tool_plural(removed, "entry", "entries"), before.path);
    return tool_flush_stdout(error);
}

/* ---- export and import ------------------------------------------------------------------------------------------ */

/* The cache's own file holds the entries of other devices, too: an export may not take its place. */
static tool_exit refuse_cache(const char *path, tool_error *error)
{
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    char file[sizeof cache.path + sizeof FILE_NAME];
    struct stat own, target;
    TOOL_TRY(get_cache(&cache, error));
    snprintf(file, sizeof file, "%s/" FILE_NAME, cache.path);
    if (!cache.path[0] || stat(file, &own) != 0 || stat(path, &target) != 0 || own.st_dev != target.st_dev ||
        own.st_ino != target.st_ino)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--export %s: is the tuning cache's own file, %s: expected another", path,
                     file);
}

static tool_exit write_text(const char *path, const char *text, size_t length, tool_error *error)
{
    tool_outputs *outputs = NULL;
    FILE *stream = NULL;
    size_t index = 0;
    tool_exit status = TOOL_DONE;
    TOOL_TRY(tool_outputs_create(&outputs, error));
    TOOL_TRY_GOTO(status, tool_outputs_add(outputs, "export", path, &index, error), done);
    TOOL_TRY_GOTO(status, tool_outputs_open(outputs, index, &stream, error), done);
    if (fwrite(text, 1, length, stream) != length)
        status = tool_fail(error, TOOL_SYSTEM_ERROR, "--export %s: %s", path, strerror(errno));
    else
        status = tool_outputs_commit(outputs, error);
done:
    tool_outputs_destroy(outputs);
    return status;
}

static tool_exit tell_count(const tune_options *options, const char *word, const char *path, size_t count,
                            tool_error *error)
{
    if (options->json)
        return tool_print_json(json_pack("{s:s, s:o, s:I}", "clmgk", clmgk_version(), "file", tool_json_text(path),
                                         word, (json_int_t)count),
                               error);
    printf("%s: %zu %s %s\n", path, count, tool_plural(count, "entry", "entries"), word);
    return tool_flush_stdout(error);
}

static size_t count_entries(const char *text, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        const bool start = i == 0 || text[i - 1] == '\n';
        count += start && length - i > 6 && strncmp(text + i, "entry ", 6) == 0;
    }
    return count;
}

tool_exit tune_export_text(cl_device_id device, char **text, size_t *length, tool_error *error)
{
    tool_exit status = TOOL_DONE;
    size_t room = 0;
    *length = 0;
    do { /* again where the cache has grown meanwhile */
        room = *length;
        *text = malloc(room + 1);
        TOOL_TRY(tool_check_memory(*text, "the cache's entries", error));
        status = tool_check_library(clmgk_tuning_export(NULL, device, *text, room, length, &error->library), error);
        if (status != TOOL_DONE || *length > room)
            free(*text);
    } while (status == TOOL_DONE && *length > room);
    return status;
}

tool_exit tune_export(const tune_options *options, tool_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    char *text = NULL;
    size_t length = 0;
    TOOL_TRY(refuse_cache(options->export_path, error));
    TOOL_TRY(chosen_device(options, &info, error));
    TOOL_TRY(tune_export_text(info.device_id, &text, &length, error));
    tool_exit status = write_text(options->export_path, text, length, error);
    if (status == TOOL_DONE)
        status = tell_count(options, "exported", options->export_path, count_entries(text, length), error);
    free(text);
    return status;
}

tool_exit tune_import(const tune_options *options, tool_error *error)
{
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    char *text = NULL;
    size_t length = 0, taken = 0;
    TOOL_TRY(get_cache(&cache, error));
    if (!cache.path[0])
        return tool_fail(error, TOOL_BAD_INPUT, "CLMGK_CACHE_DIR is empty: there is no cache to import into");
    tool_exit status = tool_read_input("import", options->import_path, MAX_FILE_BYTES, &text, &length, error);
    if (status == TOOL_DONE)
        status = tool_check_library(clmgk_tuning_import(NULL, text, length, &taken, &error->library), error);
    if (error->library.status == CLMGK_ERROR_INVALID_VALUE)
        status = tool_fail(error, TOOL_BAD_INPUT, "--import %s: %s", options->import_path, error->library.message);
    free(text);
    return status == TOOL_DONE ? tell_count(options, "taken", options->import_path, taken, error) : status;
}
