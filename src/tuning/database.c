/* SPDX-License-Identifier: Apache-2.0 */
/* The tuning file, and the order in which entries are tried. */
#include "tuning/entries.h"

#include <stdlib.h>
#include <string.h>

#define FILE_NAME    "tuning.txt"
#define DAMAGED_NAME FILE_NAME ".damaged"

enum {
    MAX_FILE_BYTES = 16 << 20,
    FARTHEST = 2,         /* four-fold */
    LOCK_ATTEMPTS = 5000, /* ten seconds */
    ROUNDING_NS = 1       /* of stored times */
};

extern const mgk_embedded_file mgk_shipped_files[];

/* ---- location ------------------------------------------------------------------------------------------------ */

clmgk_status mgk_tuning_path(const clmgk_allocator *allocator, const char *tuning_dir, const char *cache_dir,
                             char **path, clmgk_error *error)
{
    static const mgk_root root = {"XDG_DATA_HOME", ".local/share", "/tuning", "the tuning cache's path"};
    if (tuning_dir == NULL)
        return mgk_root_path(allocator, &root, cache_dir, path, error);
    *path = tuning_dir[0] != '\0' ? mgk_strdup(allocator, tuning_dir) : NULL;
    return *path == NULL && tuning_dir[0] != '\0' ? mgk_fail_memory(error, root.name) : CLMGK_OK;
}

/* ---- buckets ------------------------------------------------------------------------------------------------- */

int mgk_tuning_bucket(int64_t size)
{
    int power = 0;
    /* rounds up from the geometric mean of two powers: x^2 >= 2^(2p+1), without overflow below 2^31 */
    while (size >= INT64_C(1) << 31) {
        size >>= 1;
        ++power;
    }
    int64_t rest = size;
    int whole = 0;
    while (rest > 1) {
        rest >>= 1;
        ++whole;
    }
    if (size > 0 && size * size >= INT64_C(1) << (2 * whole + 1))
        ++whole;
    return whole + power;
}

void mgk_tuning_key_add(mgk_tuning_key *key, const char *name, int64_t size)
{
    key->axis[key->axes].name = name;
    key->axis[key->axes++].value = mgk_tuning_bucket(size);
}

/* ---- lookup -------------------------------------------------------------------------------------------------- */

clmgk_tuning_source mgk_tuning_serves(const mgk_tuning_set *set, const mgk_tuning_entry *entry,
                                      const mgk_tuning_device *device)
{
    const mgk_tuning_device *const other = &set->devices[entry->device];
    if (mgk_tuning_same_device(other, device))
        return entry->axes == 0 ? CLMGK_TUNING_DEVICE : CLMGK_TUNING_BUCKET;
    /* another platform has another compiler */
    const bool related = strcmp(other->platform, device->platform) == 0 &&
                         other->device_class == device->device_class &&
                         strcmp(other->architecture, device->architecture) == 0;
    return related ? CLMGK_TUNING_ARCHITECTURE : CLMGK_TUNING_CLASS;
}

bool mgk_tuning_gains(const mgk_tuning_entry *entry)
{
    return (double)entry->time_ns < (1.0 - CLMGK_TUNING_LEAST_GAIN) * (double)entry->default_ns + ROUNDING_NS;
}

/* The rank of an entry: lower is better, except where noted, and earlier fields count first. */
typedef struct order {
    int source; /* higher is better */
    bool shipped;
    int distance;
    const mgk_tuning_entry *entry;
} order;

static bool is_better(const order *a, const order *b)
{
    if (a->source != b->source)
        return a->source > b->source;
    if (a->shipped != b->shipped)
        return !a->shipped;
    if (a->distance != b->distance)
        return a->distance < b->distance;
    const int dates = strcmp(a->entry->date, b->entry->date);
    return dates != 0 ? dates > 0 : a->entry < b->entry;
}

/* Sum of the axes' differences; -1: too far. Entries for any shape are farther than all others. */
static int distance_of(const mgk_tuning_entry *entry, const mgk_tuning_key *key)
{
    int sum = 0;
    if (entry->axes == 0)
        return (FARTHEST + 1) * MGK_TUNING_AXES;
    if (entry->axes != key->axes)
        return -1;
    for (size_t i = 0; i < key->axes; ++i) {
        const int difference = abs(entry->axis[i].value - key->axis[i].value);
        if (strcmp(entry->axis[i].name, key->axis[i].name) != 0 || difference > FARTHEST)
            return -1;
        sum += difference;
    }
    return sum;
}

/* True if the entry could be used, with its rank. An entry of the library serves its own bucket only: the library
 * stores no entries for neighbouring buckets in which the defaults won. */
static bool rank_of(const mgk_tuning *tuning, const mgk_tuning_device *device, const mgk_tuning_key *key,
                    const mgk_tuning_entry *entry, order *found)
{
    if (strcmp(entry->operation, key->operation) != 0 || strcmp(entry->exact, key->exact) != 0)
        return false;
    const int distance = distance_of(entry, key);
    const bool near = distance > 0 && entry->axes > 0;
    if (distance < 0 || (near && entry->shipped))
        return false;
    clmgk_tuning_source source = mgk_tuning_serves(&tuning->set, entry, device);
    if (source == CLMGK_TUNING_BUCKET && near)
        source = CLMGK_TUNING_NEAREST;
    *found = (order){(int)source, entry->shipped, distance, entry};
    return source != CLMGK_TUNING_CLASS;
}

/* The best entry after `last` (with entry NULL: the best of all); its entry is NULL if there is none. */
static order next_entry(const mgk_tuning *tuning, const mgk_tuning_device *device, const mgk_tuning_key *key,
                        const order *last)
{
    order best = {0};
    for (size_t i = 0; i < tuning->set.count; ++i) {
        order found;
        if (!rank_of(tuning, device, key, &tuning->set.entries[i], &found))
            continue;
        if ((last->entry == NULL || is_better(last, &found)) && (best.entry == NULL || is_better(&found, &best)))
            best = found;
    }
    return best;
}

bool mgk_tuning_find(const mgk_tuning *tuning, const mgk_device_facts *facts, const mgk_tuning_key *key, size_t rank,
                     mgk_tuning_choice *choice)
{
    if (tuning == NULL || tuning->set.count == 0)
        return false;
    const mgk_tuning_device device = mgk_tuning_device_of(facts);
    order at = {0};
    for (size_t i = 0; i <= rank; ++i) {
        at = next_entry(tuning, &device, key, &at);
        if (at.entry == NULL)
            return false;
    }
    const bool gains = mgk_tuning_gains(at.entry);
    *choice = (mgk_tuning_choice){(clmgk_tuning_source)at.source, gains ? at.entry->choice : NULL,
                                  gains ? at.entry->parameters : ""};
    return true;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

/* Records why the file can't be read; only a lack of memory is an error. */
static clmgk_status note_unreadable(mgk_tuning *tuning, clmgk_status status, const clmgk_error *failure,
                                    clmgk_error *error)
{
    if (status == CLMGK_ERROR_OUT_OF_HOST_MEMORY)
        return mgk_fail_memory(error, "the tuning cache");
    memcpy(tuning->reading.message, failure->message, sizeof(tuning->reading.message) - 1);
    return CLMGK_OK;
}

static clmgk_status read_file(const char *path, mgk_tuning *tuning, clmgk_error *error)
{
    mgk_folder folder;
    clmgk_error failure = {.status = CLMGK_OK};
    clmgk_status status = mgk_folder_open(path, false, &folder, &failure);
    if (status != CLMGK_OK)
        return note_unreadable(tuning, status, &failure, error);
    char *text = NULL;
    size_t length = 0;
    status = mgk_folder_load(&folder, &tuning->allocator, FILE_NAME, MAX_FILE_BYTES, false, &text, &length, &failure);
    mgk_folder_close(&folder);
    if (status != CLMGK_OK)
        return note_unreadable(tuning, status, &failure, error);
    tuning->bytes = length;
    status = mgk_tuning_parse(&tuning->set, text, length, false, &tuning->reading, error);
    mgk_free(&tuning->allocator, text);
    return status;
}

static clmgk_status read_shipped(mgk_tuning *tuning, clmgk_error *error)
{
    mgk_tuning_reading ignored;
    for (const mgk_embedded_file *file = mgk_shipped_files; file->name != NULL; ++file)
        MGK_TRY(mgk_tuning_parse(&tuning->set, file->text, file->length, true, &ignored, error));
    return CLMGK_OK;
}

clmgk_status mgk_tuning_read(const clmgk_allocator *allocator, const char *path, mgk_tuning **out, clmgk_error *error)
{
    mgk_tuning *const tuning = mgk_alloc(allocator, 1, sizeof(*tuning));
    if (tuning == NULL)
        return mgk_fail_memory(error, "the tuning cache");
    if (allocator != NULL)
        tuning->allocator = *allocator;
    tuning->set.allocator = &tuning->allocator;
    clmgk_status status = path != NULL ? read_file(path, tuning, error) : CLMGK_OK;
    if (status == CLMGK_OK)
        status = read_shipped(tuning, error);
    if (status != CLMGK_OK) {
        mgk_tuning_free(allocator, tuning);
        return status;
    }
    *out = tuning;
    return CLMGK_OK;
}

void mgk_tuning_free(const clmgk_allocator *allocator, mgk_tuning *tuning)
{
    if (tuning == NULL)
        return;
    mgk_tuning_set_free(&tuning->set);
    mgk_free(allocator, tuning);
}

/* ---- changing ------------------------------------------------------------------------------------------------ */

static clmgk_status write_set(const clmgk_allocator *allocator, const mgk_folder *folder, const mgk_tuning_set *set,
                              clmgk_error *error)
{
    mgk_text text = {.allocator = allocator};
    clmgk_status status = CLMGK_OK;
    mgk_tuning_print(set, NULL, NULL, &text);
    if (text.failed)
        status = mgk_fail_memory(error, "the tuning cache's text");
    else if (text.length > MAX_FILE_BYTES)
        status = mgk_fail(error, CLMGK_ERROR_IO, "%s/" FILE_NAME ": would have %zu bytes, expected at most %d",
                          folder->path, text.length, (int)MAX_FILE_BYTES);
    else
        status = mgk_folder_write(folder, FILE_NAME, text.data, text.length, error);
    mgk_text_free(&text);
    return status;
}

/* A change of the file in a folder. */
typedef struct change_job {
    const clmgk_allocator *allocator;
    mgk_folder folder;
    mgk_tuning_changer change;
    void *user;
} change_job;

/* The caller holds the lock; `text` is the file's contents. */
static clmgk_status change_text(const change_job *job, const char *text, size_t length, clmgk_error *error)
{
    mgk_tuning_set set = {.allocator = job->allocator};
    mgk_tuning_reading reading;
    bool changed = false;
    clmgk_status status;
    MGK_TRY_GOTO(status, mgk_tuning_parse(&set, text, length, false, &reading, error), cleanup);
    if (reading.newer) {
        status = mgk_fail(error, CLMGK_ERROR_IO, "%s/" FILE_NAME ": %s: the file is left alone", job->folder.path,
                          reading.message);
        goto cleanup;
    }
    MGK_TRY_GOTO(status, job->change(&set, job->user, &changed, error), cleanup);
    /* writing drops invalid lines */
    if (changed && reading.damaged > 0)
        MGK_TRY_GOTO(status, mgk_folder_write(&job->folder, DAMAGED_NAME, text, length, error), cleanup);
    if (changed)
        status = write_set(job->allocator, &job->folder, &set, error);
cleanup:
    mgk_tuning_set_free(&set);
    return status;
}

static clmgk_status change_file(const change_job *job, clmgk_error *error)
{
    char *text = NULL;
    size_t length = 0;
    MGK_TRY(mgk_folder_load(&job->folder, job->allocator, FILE_NAME, MAX_FILE_BYTES, false, &text, &length, error));
    const clmgk_status status = change_text(job, text, length, error);
    mgk_free(job->allocator, text);
    return status;
}

clmgk_status mgk_tuning_change(const clmgk_allocator *allocator, const char *path, bool create,
                               mgk_tuning_changer change, void *user, clmgk_error *error)
{
    change_job job = {.allocator = allocator, .change = change, .user = user};
    if (path == NULL)
        return mgk_fail(error, CLMGK_ERROR_IO, "the tuning cache: no files are used");
    MGK_TRY(mgk_folder_open(path, create, &job.folder, error));
    if (job.folder.handle < 0)
        return CLMGK_OK;
    const int lock = mgk_folder_lock(&job.folder, LOCK_ATTEMPTS, error);
    clmgk_status status = CLMGK_ERROR_IO;
    if (lock >= 0) {
        mgk_folder_remove_stale(&job.folder, allocator);
        status = change_file(&job, error);
    }
    mgk_folder_unlock(lock);
    mgk_folder_close(&job.folder);
    return status;
}

/* ---- one entry ----------------------------------------------------------------------------------------------- */

typedef struct stored_entry {
    mgk_tuning_device device;
    mgk_tuning_entry entry;
} stored_entry;

static clmgk_status put_entry(mgk_tuning_set *set, void *user, bool *changed, clmgk_error *error)
{
    stored_entry *const stored = user;
    *changed = true;
    mgk_utc_date(stored->entry.date, sizeof(stored->entry.date));
    return mgk_tuning_set_put(set, &stored->device, &stored->entry, true, NULL, error);
}

clmgk_status mgk_tuning_write(const clmgk_allocator *allocator, const char *path, const mgk_device_facts *facts,
                              const mgk_tuning_key *key, const clmgk_tuned *tuned, clmgk_error *error)
{
    stored_entry stored = {.device = mgk_tuning_device_of(facts)};
    MGK_TRY(mgk_tuning_entry_of(key, tuned, &stored.entry, error));
    return mgk_tuning_change(allocator, path, true, put_entry, &stored, error);
}

clmgk_status mgk_tuning_store(const clmgk_context *context, const char *cache_dir, const mgk_tuning_key *key,
                              const clmgk_tuned *tuned, clmgk_error *error)
{
    char *path = NULL;
    MGK_TRY(mgk_tuning_path(&context->allocator, NULL, cache_dir, &path, error));
    const clmgk_status status = mgk_tuning_write(&context->allocator, path, &context->facts, key, tuned, error);
    mgk_free(&context->allocator, path);
    return status;
}
