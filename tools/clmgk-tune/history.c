/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history-<device>-<driver>.jsonl in the tuning cache's folder: a JSON object a line, each written at once, in one
 * write. An incomplete last line, left by a crash, is cut off.
 */
#include "tune.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX    "history-"
#define PATH_SIZE 1200

/* FNV-1a */
static uint64_t hash_of(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_device(const clmgk_device_info *device)
{
    return hash_of(hash_of(UINT64_C(0xcbf29ce484222325), device->platform), device->name);
}

/* Records of another driver, or of a device that changed, say nothing about this one. */
static void make_path(const char *folder, const clmgk_device_info *device, char path[PATH_SIZE])
{
    char units[16];
    snprintf(units, sizeof(units), "%" PRIu32, device->compute_units);
    const uint64_t device_hash = hash_device(device);
    const uint64_t hash = hash_of(hash_of(hash_of(device_hash, device->driver), device->architecture), units);
    snprintf(path, PATH_SIZE, "%s/" PREFIX "%016" PRIx64 "-%016" PRIx64 ".jsonl", folder, device_hash, hash);
}

/* The length of the file up to its last whole line. */
static tool_exit read_records(const tune_history *history, off_t *good, tool_error *error)
{
    const int copy = dup(history->file);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "r");
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length = 0;
    TOOL_TRY(tool_check_memory(stream, "what was measured before", error));
    while ((length = getline(&line, &capacity, stream)) > 0 && line[length - 1] == '\n') {
        json_t *record = json_loadb(line, (size_t)length, 0, NULL);
        if (json_is_object(record))
            json_array_append(history->records, record);
        json_decref(record);
        *good += length;
    }
    free(line);
    (void)fclose(stream);
    return TOOL_DONE;
}

tool_exit tune_history_open(const char *folder, const clmgk_device_info *device, bool resume, tune_history *history,
                            tool_error *error)
{
    char path[PATH_SIZE];
    off_t good = 0;
    make_path(folder, device, path);
    history->records = json_array();
    TOOL_TRY(tool_check_memory(history->records, "the history", error));
    history->file = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (history->file >= 0 && flock(history->file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return tool_fail(error, TOOL_SYSTEM_ERROR,
                         "%s: another clmgk-tune is measuring this device: expected it to end first", path);
    if (history->file >= 0 && resume)
        TOOL_TRY(read_records(history, &good, error));
    return history->file >= 0 && ftruncate(history->file, good) == 0
               ? TOOL_DONE
               : tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", path, strerror(errno));
}

tool_exit tune_history_add(tune_history *history, json_t *record, tool_error *error)
{
    char *const text = record ? json_dumps(record, JSON_COMPACT) : NULL;
    json_decref(record);
    TOOL_TRY(tool_check_memory(text, "a record of the history", error));
    const size_t length = strlen(text);
    text[length] = '\n'; /* in the place of the end of the text */
    const ssize_t put = write(history->file, text, length + 1);
    free(text);
    return put == (ssize_t)length + 1 ? TOOL_DONE
                                      : tool_fail(error, TOOL_SYSTEM_ERROR, "the history of the tuning cache: %s",
                                                  put < 0 ? strerror(errno) : "could not be written whole");
}

void tune_history_close(tune_history *history)
{
    if (history->file >= 0)
        close(history->file);
    json_decref(history->records);
}

tool_exit tune_history_remove(const char *path, const clmgk_device_info *device, tool_error *error)
{
    char wanted[64] = PREFIX;
    tool_exit status = TOOL_DONE;
    if (device)
        snprintf(wanted, sizeof(wanted), PREFIX "%016" PRIx64, hash_device(device));
    DIR *folder = opendir(path);
    if (!folder)
        return errno == ENOENT ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", path, strerror(errno));
    for (const struct dirent *item = readdir(folder); item && status == TOOL_DONE; item = readdir(folder)) {
        if (strncmp(item->d_name, wanted, strlen(wanted)) == 0 && unlinkat(dirfd(folder), item->d_name, 0) != 0)
            status = tool_fail(error, TOOL_SYSTEM_ERROR, "%s/%s: %s", path, item->d_name, strerror(errno));
    }
    (void)closedir(folder);
    return status;
}
