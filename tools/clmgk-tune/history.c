/* SPDX-License-Identifier: Apache-2.0 */
/* history-<device>.jsonl in the tuning cache's folder. What is no JSON, as half a line left by a crash, is skipped. */
#include "tune.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define PATH_SIZE 1200

/* FNV-1a of the device and its state: measurements with another driver say nothing about this one. */
static void make_path(const char *folder, const clmgk_device_info *device, char path[PATH_SIZE])
{
    char text[1024];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    snprintf(text, sizeof(text), "%s, %s, %s, %s, %" PRIu32, device->platform, device->name, device->driver,
             device->architecture, device->compute_units);
    for (const char *letter = text; *letter; letter++)
        hash = (hash ^ (unsigned char)*letter) * UINT64_C(0x100000001b3);
    snprintf(path, PATH_SIZE, "%s/history-%016" PRIx64 ".jsonl", folder, hash);
}

tool_exit tune_history_open(const char *folder, const clmgk_device_info *device, bool resume, FILE **file,
                            json_t **records, tool_error *error)
{
    char path[PATH_SIZE], *line = NULL;
    size_t capacity = 0;
    ssize_t length = 0;
    bool whole = true;
    make_path(folder, device, path);
    *file = fopen(path, "a+e");
    if (*file && flock(fileno(*file), LOCK_EX | LOCK_NB) != 0)
        return tool_fail(error, TOOL_SYSTEM_ERROR,
                         "%s: another clmgk-tune is measuring this device: expected it to end first", path);
    if (!*file || (!resume && ftruncate(fileno(*file), 0) != 0))
        return tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", path, strerror(errno));
    *records = json_array();
    while ((length = getline(&line, &capacity, *file)) > 0) {
        json_array_append_new(*records, json_loadb(line, (size_t)length, 0, NULL));
        whole = line[length - 1] == '\n';
    }
    free(line);
    (void)fseek(*file, 0, SEEK_END); /* from reading to writing */
    if (!whole)
        (void)fputc('\n', *file);
    return tool_check_memory(*records, "the history", error);
}

tool_exit tune_history_add(FILE *file, json_t *record, tool_error *error)
{
    char *const text = record ? json_dumps(record, JSON_COMPACT) : NULL;
    json_decref(record);
    TOOL_TRY(tool_check_memory(text, "a record of the history", error));
    const bool written = fprintf(file, "%s\n", text) > 0 && fflush(file) == 0;
    free(text);
    return written ? TOOL_DONE
                   : tool_fail(error, TOOL_SYSTEM_ERROR, "the history of the tuning cache: %s", strerror(errno));
}

tool_exit tune_history_remove(const char *folder, const clmgk_device_info *device, tool_error *error)
{
    char path[PATH_SIZE];
    make_path(folder, device, path);
    return unlink(path) == 0 || errno == ENOENT ? TOOL_DONE
                                                : tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", path, strerror(errno));
}
