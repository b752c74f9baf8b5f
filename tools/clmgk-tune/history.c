/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history-<device>.jsonl in the tuning cache's folder: a JSON object a line, each written at once, in one write. An
 * incomplete last line, left by a crash, is cut off.
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
#define NAME_SIZE 64

/* FNV-1a of platform and name. */
static void make_name(const clmgk_device_info *device, char name[NAME_SIZE])
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *text = device->platform; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    for (const char *text = device->name; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    snprintf(name, NAME_SIZE, PREFIX "%016" PRIx64 ".jsonl", hash);
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
        json_array_append_new(history->records, json_loadb(line, (size_t)length, 0, NULL));
        *good += length;
    }
    free(line);
    (void)fclose(stream);
    return TOOL_DONE;
}

tool_exit tune_history_open(const char *folder, const clmgk_device_info *device, bool resume, tune_history *history,
                            tool_error *error)
{
    char name[NAME_SIZE], path[1200];
    off_t good = 0;
    make_name(device, name);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
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

tool_exit tune_history_add(const tune_history *history, json_t *record, tool_error *error)
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

tool_exit tune_history_remove(const char *folder, const clmgk_device_info *device, tool_error *error)
{
    char wanted[NAME_SIZE] = PREFIX;
    tool_exit status = TOOL_DONE;
    if (device)
        make_name(device, wanted);
    DIR *files = opendir(folder);
    if (!files)
        return errno == ENOENT ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", folder, strerror(errno));
    for (const struct dirent *item = readdir(files); item && status == TOOL_DONE; item = readdir(files)) {
        if (strncmp(item->d_name, wanted, strlen(wanted)) == 0 && unlinkat(dirfd(files), item->d_name, 0) != 0)
            status = tool_fail(error, TOOL_SYSTEM_ERROR, "%s/%s: %s", folder, item->d_name, strerror(errno));
    }
    (void)closedir(files);
    return status;
}
