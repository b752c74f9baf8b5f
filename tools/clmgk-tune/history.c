/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history-<device>.jsonl in the tuning cache's folder: a JSON object a line, the first of them about the file. Each
 * line is written at once, in one write. An incomplete last line, left by a crash, is ignored.
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

#define VERSION     3
#define PREFIX      "history-"
#define SUFFIX      ".jsonl"
#define LOCK        "tune.lock"
#define NAME_SIZE   64
#define MAX_RECORDS 1000000

struct tune_history {
    int folder, lock, file;
    json_t *records; /* array */
};

/* FNV-1a, for a file's name only: the first line tells the device in full. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

static void file_name(const clmgk_device_info *device, char name[NAME_SIZE])
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    hash = hash_text(hash, device->platform);
    hash = hash_text(hash, device->name);
    snprintf(name, NAME_SIZE, PREFIX "%016" PRIx64 SUFFIX, hash);
}

static json_t *header_of(const clmgk_device_info *device)
{
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:I}", "clmgk-tune-history", VERSION, "device",
                     tool_json_text(device->name), "platform", tool_json_text(device->platform), "driver",
                     tool_json_text(device->driver), "architecture", tool_json_text(device->architecture),
                     "compute_units", (json_int_t)device->compute_units);
}

static tool_exit fail_file(const char *path, const char *name, tool_error *error)
{
    return tool_fail(error, TOOL_SYSTEM_ERROR, "%s/%s: %s", path, name, strerror(errno));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The records behind a header that is this device's; the file's length up to the last whole one. Records of another
 * driver say nothing about this one. */
static tool_exit read_records(int file, const clmgk_device_info *device, json_t *records, off_t *good,
                              tool_error *error)
{
    const int copy = dup(file);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "r");
    json_t *header = header_of(device);
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length = 0;
    bool known = false, memory = header != NULL && stream != NULL;
    *good = 0;
    while (memory && json_array_size(records) < MAX_RECORDS && (length = getline(&line, &capacity, stream)) > 0 &&
           line[length - 1] == '\n') {
        json_t *record = json_loadb(line, (size_t)length, 0, NULL);
        if (*good == 0)
            known = record && json_equal(record, header);
        else if (known && json_is_object(record))
            memory = json_array_append(records, record) == 0;
        json_decref(record);
        if (!known)
            break;
        *good += length;
    }
    free(line);
    json_decref(header);
    if (stream)
        (void)fclose(stream);
    else if (copy >= 0)
        close(copy);
    return memory ? TOOL_DONE : tool_fail_memory(error, "what was measured before");
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static tool_exit append(const tune_history *history, const json_t *record, tool_error *error)
{
    char *const text = json_dumps(record, JSON_COMPACT);
    TOOL_TRY(tool_check_memory(text, "a record of the history", error));
    const size_t length = strlen(text);
    text[length] = '\n'; /* in the place of the end of the text */
    const ssize_t put = write(history->file, text, length + 1);
    free(text);
    return put == (ssize_t)length + 1 ? TOOL_DONE
                                      : tool_fail(error, TOOL_SYSTEM_ERROR, "the history of the tuning cache: %s",
                                                  put < 0 ? strerror(errno) : "could not be written whole");
}

tool_exit tune_history_add(tune_history *history, json_t *record, tool_error *error)
{
    if (!record || json_array_append_new(history->records, record) != 0)
        return tool_fail_memory(error, "a record of the history");
    return append(history, json_array_get(history->records, json_array_size(history->records) - 1), error);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tool_exit take_lock(const char *path, tune_history *history, tool_error *error)
{
    history->lock = openat(history->folder, LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (history->lock < 0)
        return fail_file(path, LOCK, error);
    if (flock(history->lock, LOCK_EX | LOCK_NB) == 0)
        return TOOL_DONE;
    if (errno == EWOULDBLOCK)
        return tool_fail(error, TOOL_SYSTEM_ERROR,
                         "%s: another clmgk-tune is measuring with this cache: expected it to end first", path);
    return fail_file(path, LOCK, error);
}

static tool_exit open_file(const char *path, const clmgk_device_info *device, bool resume, tune_history *history,
                           tool_error *error)
{
    char name[NAME_SIZE];
    off_t good = 0;
    file_name(device, name);
    history->file =
        openat(history->folder, name, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (history->file < 0)
        return fail_file(path, name, error);
    if (resume)
        TOOL_TRY(read_records(history->file, device, history->records, &good, error));
    if (ftruncate(history->file, good) != 0)
        return fail_file(path, name, error);
    if (good > 0)
        return TOOL_DONE;
    json_t *header = header_of(device);
    const tool_exit status = header ? append(history, header, error) : tool_fail_memory(error, "the history");
    json_decref(header);
    return status;
}

tool_exit tune_history_open(const char *path, const clmgk_device_info *device, bool resume, tune_history **out,
                            tool_error *error)
{
    tune_history *const history = calloc(1, sizeof(*history));
    tool_exit status = TOOL_DONE;
    TOOL_TRY(tool_check_memory(history, "the history", error));
    history->lock = history->file = -1;
    history->records = json_array();
    history->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (history->folder < 0) {
        status = tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", path, strerror(errno));
        goto failed;
    }
    if (!history->records) {
        status = tool_fail_memory(error, "the history");
        goto failed;
    }
    TOOL_TRY_GOTO(status, take_lock(path, history, error), failed);
    TOOL_TRY_GOTO(status, open_file(path, device, resume, history, error), failed);
    *out = history;
    return TOOL_DONE;
failed:
    tune_history_close(history);
    return status;
}

void tune_history_close(tune_history *history)
{
    if (!history)
        return;
    const int handles[] = {history->file, history->lock, history->folder};
    for (size_t i = 0; i < TOOL_COUNT(handles); i++) {
        if (handles[i] >= 0)
            close(handles[i]);
    }
    json_decref(history->records);
    free(history);
}

const json_t *tune_history_records(const tune_history *history)
{
    return history->records;
}

tool_exit tune_history_remove(const char *path, const clmgk_device_info *device, tool_error *error)
{
    char wanted[NAME_SIZE] = "";
    tool_exit status = TOOL_DONE;
    if (device)
        file_name(device, wanted);
    DIR *folder = opendir(path);
    if (!folder)
        return errno == ENOENT ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", path, strerror(errno));
    for (const struct dirent *item = readdir(folder); item && status == TOOL_DONE; item = readdir(folder)) {
        const bool history = strncmp(item->d_name, PREFIX, strlen(PREFIX)) == 0;
        if (history && (!device || strcmp(item->d_name, wanted) == 0) && unlinkat(dirfd(folder), item->d_name, 0) != 0)
            status = fail_file(path, item->d_name, error);
    }
    (void)closedir(folder);
    return status;
}
