/* SPDX-License-Identifier: Apache-2.0 */
/* The public view of the tuning cache. */
#include "api/tables.h"
#include "attention/plan.h"
#include "engine/engine.h"
#include "tuning/entries.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static clmgk_status fail_null(const char *name, const char *expected, clmgk_error *error)
{
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", name, expected);
}

/* ---- storing ------------------------------------------------------------------------------------------------- */

/* Checks a measurement of a pass, and that the pass can be planned; *key: the bucket that stores it. */
static clmgk_status check_tuned(clmgk_context *context, const clmgk_attention_desc *given, clmgk_tuned_pass tuned_pass,
                                const clmgk_tuned *tuned, mgk_tuning_key *key, clmgk_error *error)
{
    const bool forward = tuned_pass == CLMGK_TUNED_FORWARD;
    clmgk_attention_desc desc;
    mgk_tuning_entry entry;
    if (context == NULL)
        return fail_null("context", "a context", error);
    if (tuned == NULL)
        return fail_null("tuned", "an engine and its parameters", error);
    if (!forward && tuned_pass != CLMGK_TUNED_BACKWARD)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "pass: %d: expected a clmgk_tuned_pass", (int)tuned_pass);
    MGK_TRY(mgk_attention_resolve(given, &desc, error));
    if (!forward && desc.gradients == 0 && desc.statistics == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "pass: backward: expected a descriptor with gradients or statistics");
    if (tuned->choice == NULL)
        return fail_null("tuned.choice", "the name of an engine", error);
    const clmgk_pass pass = forward               ? CLMGK_PASS_FORWARD
                            : desc.gradients != 0 ? CLMGK_PASS_BACKWARD
                                                  : CLMGK_PASS_STATISTICS;
    const clmgk_tuned untimed = {tuned->choice, tuned->parameters, 1.0, 1.0};
    *key = mgk_attention_key(&desc, pass);
    MGK_TRY(mgk_tuning_entry_of(key, &untimed, &entry, error));
    MGK_TRY(mgk_tuning_check(entry.operation, entry.choice, entry.parameters, error));
    return mgk_plan_try(context, &desc, pass, mgk_engine_named(tuned->choice)->value, tuned->parameters, error);
}

clmgk_status clmgk_tuning_check(clmgk_context *context, const clmgk_attention_desc *desc, clmgk_tuned_pass pass,
                                const clmgk_tuned *tuned, clmgk_error *error)
{
    mgk_tuning_key key;
    return check_tuned(context, desc, pass, tuned, &key, error);
}

clmgk_status clmgk_tuning_store(clmgk_context *context, const char *cache_dir, const clmgk_attention_desc *desc,
                                clmgk_tuned_pass pass, const clmgk_tuned *tuned, clmgk_error *error)
{
    mgk_tuning_key key;
    MGK_TRY(check_tuned(context, desc, pass, tuned, &key, error));
    return mgk_tuning_store(context, cache_dir, &key, tuned, error);
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

/* Reads the cache's entries and the library's own; free *path (NULL: no files) and *tuning after success. */
static clmgk_status open_cache(const char *cache_dir, char **path, mgk_tuning **tuning, clmgk_error *error)
{
    MGK_TRY(mgk_tuning_path(NULL, NULL, cache_dir, path, error));
    const clmgk_status status = mgk_tuning_read(NULL, *path, tuning, error);
    if (status != CLMGK_OK)
        mgk_free(NULL, *path);
    return status;
}

static void close_cache(char *path, mgk_tuning *tuning)
{
    mgk_free(NULL, path);
    mgk_tuning_free(NULL, tuning);
}

/* Truncates long texts. */
static void copy_text(char *target, size_t size, const char *source)
{
    const size_t length = strlen(source) < size ? strlen(source) : size - 1;
    memcpy(target, source, length);
    target[length] = '\0';
}

static bool same_name(const mgk_tuning_device *a, const mgk_tuning_device *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->platform, b->platform) == 0;
}

/* Facts of a device, as the file stores them; nothing for NULL. */
static clmgk_status describe_device(cl_device_id id, mgk_tuning_device *device, clmgk_error *error)
{
    mgk_device_facts facts;
    if (id == NULL)
        return CLMGK_OK;
    MGK_TRY(mgk_device_get_facts(id, &facts, error));
    *device = mgk_tuning_device_of(&facts);
    return CLMGK_OK;
}

/* Tells whether and how plans on `facts` use the entry. */
static void judge_entry(const mgk_tuning_set *set, const mgk_tuning_entry *entry, const mgk_tuning_device *facts,
                        clmgk_tuning_entry *shown)
{
    clmgk_error failure = {.status = CLMGK_OK};
    shown->source = mgk_tuning_serves(set, entry, facts);
    shown->defaults = !mgk_tuning_gains(entry);
    if (shown->source == CLMGK_TUNING_CLASS) {
        snprintf(shown->reason, sizeof(shown->reason), "measured on \"%s\", this device is \"%s\"",
                 set->devices[entry->device].architecture, facts->architecture);
    } else if (!shown->defaults &&
               mgk_tuning_check(entry->operation, entry->choice, entry->parameters, &failure) != CLMGK_OK) {
        shown->source = CLMGK_TUNING_CLASS;
        copy_text(shown->reason, sizeof(shown->reason), failure.message);
    }
    shown->allowed = shown->source != CLMGK_TUNING_CLASS;
}

static clmgk_status show_entry(const mgk_tuning_set *set, const mgk_tuning_entry *entry, const mgk_tuning_device *facts,
                               clmgk_tuning_entry *shown, clmgk_error *error)
{
    const mgk_tuning_device *const device = &set->devices[entry->device];
    mgk_text bucket = {0};
    *shown = (clmgk_tuning_entry){.compute_units = device->compute_units, .shipped = entry->shipped};
    mgk_tuning_print_bucket(entry, &bucket);
    if (bucket.failed) {
        mgk_text_free(&bucket);
        return mgk_fail_memory(error, "an entry of the tuning cache");
    }
    copy_text(shown->bucket, sizeof(shown->bucket), bucket.data);
    mgk_text_free(&bucket);
    copy_text(shown->device, sizeof(shown->device), device->name);
    copy_text(shown->platform, sizeof(shown->platform), device->platform);
    copy_text(shown->driver, sizeof(shown->driver), device->driver);
    copy_text(shown->architecture, sizeof(shown->architecture), device->architecture);
    copy_text(shown->operation, sizeof(shown->operation), entry->operation);
    copy_text(shown->choice, sizeof(shown->choice), entry->choice);
    copy_text(shown->parameters, sizeof(shown->parameters), entry->parameters);
    shown->time_ms = 1e-6 * (double)entry->time_ns;
    shown->default_ms = 1e-6 * (double)entry->default_ns;
    judge_entry(set, entry, facts, shown);
    return CLMGK_OK;
}

/* `facts` NULL: entries of all devices. */
static clmgk_status show_entries(const mgk_tuning_set *set, const mgk_tuning_device *facts, clmgk_tuning_entry *entries,
                                 size_t capacity, size_t *count, clmgk_error *error)
{
    *count = 0;
    for (size_t i = 0; i < set->count; ++i) {
        const mgk_tuning_entry *const entry = &set->entries[i];
        const mgk_tuning_device *const other = &set->devices[entry->device];
        /* the library's entries of this name may be for another microarchitecture */
        if (facts != NULL && (entry->shipped || !same_name(other, facts)) &&
            mgk_tuning_serves(set, entry, facts) == CLMGK_TUNING_CLASS)
            continue;
        if (*count < capacity) {
            clmgk_tuning_entry shown;
            MGK_TRY(show_entry(set, entry, facts != NULL ? facts : other, &shown, error));
            mgk_struct_write(entries, *count, &shown, sizeof(shown));
        }
        ++*count;
    }
    return CLMGK_OK;
}

clmgk_status clmgk_tuning_list(const char *cache_dir, cl_device_id device, clmgk_tuning_entry *entries, size_t capacity,
                               size_t *count, clmgk_error *error)
{
    char *path = NULL;
    mgk_tuning *tuning = NULL;
    mgk_tuning_device facts;
    if (count == NULL)
        return fail_null("count", "room for the number", error);
    if (capacity > 0)
        MGK_TRY(mgk_struct_room(entries, "entries", MGK_SIZE_WITH(clmgk_tuning_entry, source), error));
    MGK_TRY(describe_device(device, &facts, error));
    MGK_TRY(open_cache(cache_dir, &path, &tuning, error));
    size_t found = 0;
    const clmgk_status status =
        show_entries(&tuning->set, device != NULL ? &facts : NULL, entries, capacity, &found, error);
    if (status == CLMGK_OK)
        *count = found;
    close_cache(path, tuning);
    return status;
}

clmgk_status clmgk_tuning_get_info(const char *cache_dir, clmgk_tuning_info *info, clmgk_error *error)
{
    char *path = NULL;
    mgk_tuning *tuning = NULL;
    clmgk_tuning_info found;
    MGK_TRY(mgk_struct_room(info, "info", MGK_SIZE_WITH(clmgk_tuning_info, message), error));
    MGK_TRY(open_cache(cache_dir, &path, &tuning, error));
    clmgk_status status = CLMGK_OK;
    if (path != NULL && strlen(path) >= sizeof(found.path)) {
        status = mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "cache_dir: a path of %zu bytes: expected less than %zu",
                          strlen(path), sizeof(found.path));
    } else {
        found = (clmgk_tuning_info){.bytes = tuning->bytes, .damaged = tuning->reading.damaged};
        copy_text(found.path, sizeof(found.path), path != NULL ? path : "");
        copy_text(found.message, sizeof(found.message), tuning->reading.message);
        for (size_t i = 0; i < tuning->set.count; ++i)
            found.entries += !tuning->set.entries[i].shipped;
        mgk_struct_write(info, 0, &found, sizeof(found));
    }
    close_cache(path, tuning);
    return status;
}

static bool is_of_device(const mgk_tuning_device *device, const void *user)
{
    return same_name(device, user);
}

/* ---- changing ------------------------------------------------------------------------------------------------ */

/* `user`: the mgk_tuning_device whose entries to remove; NULL: all. */
static clmgk_status remove_entries(mgk_tuning_set *set, void *user, bool *changed, clmgk_error *error)
{
    size_t kept = 0;
    (void)error;
    for (size_t i = 0; i < set->count; ++i)
        if (user != NULL && !same_name(&set->devices[set->entries[i].device], user))
            set->entries[kept++] = set->entries[i];
    *changed = kept < set->count;
    set->count = kept;
    return CLMGK_OK;
}

clmgk_status clmgk_tuning_reset(const char *cache_dir, cl_device_id device, clmgk_error *error)
{
    char *path = NULL;
    mgk_tuning_device facts;
    MGK_TRY(describe_device(device, &facts, error));
    MGK_TRY(mgk_tuning_path(NULL, NULL, cache_dir, &path, error));
    const clmgk_status status =
        mgk_tuning_change(NULL, path, false, remove_entries, device != NULL ? &facts : NULL, error);
    mgk_free(NULL, path);
    return status;
}

/* Fails if the file exists and its entries are unknown. */
static clmgk_status expect_read(const char *path, const mgk_tuning *tuning, clmgk_error *error)
{
    const mgk_tuning_reading *const reading = &tuning->reading;
    if (reading->message[0] == '\0' || reading->damaged > 0)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_IO, "the tuning cache can't be read: %s%s%s", reading->newer ? path : "",
                    reading->newer ? ": " : "", reading->message);
}

/* Drops the library's entries. Prints the device's entries, or all if it is NULL. */
static void print_own_entries(mgk_tuning_set *set, const mgk_tuning_device *device, mgk_text *text)
{
    size_t kept = 0;
    for (size_t i = 0; i < set->count; ++i)
        if (!set->entries[i].shipped)
            set->entries[kept++] = set->entries[i];
    set->count = kept;
    mgk_tuning_print(set, device != NULL ? is_of_device : NULL, device, text);
}

clmgk_status clmgk_tuning_export(const char *cache_dir, cl_device_id device, char *text, size_t capacity,
                                 size_t *length, clmgk_error *error)
{
    char *path = NULL;
    mgk_tuning *tuning = NULL;
    mgk_tuning_device facts;
    if (length == NULL)
        return fail_null("length", "room for the number", error);
    if (text == NULL && capacity > 0)
        return fail_null("text", "room for the text", error);
    MGK_TRY(describe_device(device, &facts, error));
    MGK_TRY(open_cache(cache_dir, &path, &tuning, error));
    mgk_text printed = {0};
    clmgk_status status;
    MGK_TRY_GOTO(status, expect_read(path, tuning, error), cleanup);
    print_own_entries(&tuning->set, device != NULL ? &facts : NULL, &printed);
    status = printed.failed ? mgk_fail_memory(error, "the tuning cache's text") : CLMGK_OK;
    if (status == CLMGK_OK) {
        *length = printed.length;
        if (capacity > 0)
            memcpy(text, printed.data, printed.length < capacity ? printed.length : capacity);
    }
cleanup:
    mgk_text_free(&printed);
    close_cache(path, tuning);
    return status;
}

typedef struct import_job {
    mgk_tuning_set set;
    size_t taken;
} import_job;

static clmgk_status merge_entries(mgk_tuning_set *set, void *user, bool *changed, clmgk_error *error)
{
    import_job *const job = user;
    for (size_t i = 0; i < job->set.count; ++i) {
        const mgk_tuning_entry *const entry = &job->set.entries[i];
        bool taken = false;
        MGK_TRY(mgk_tuning_set_put(set, &job->set.devices[entry->device], entry, false, &taken, error));
        job->taken += taken;
    }
    *changed = true; /* an import without new entries must report, too, that the file can't be written */
    return CLMGK_OK;
}

/* Refuses a text with any invalid line or value. */
static clmgk_status read_import(const char *text, size_t length, mgk_tuning_set *set, clmgk_error *error)
{
    mgk_tuning_reading reading;
    MGK_TRY(mgk_tuning_parse(set, text, length, false, &reading, error));
    if (reading.newer || reading.damaged > 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "text: %s", reading.message);
    for (size_t i = 0; i < set->count; ++i) {
        const mgk_tuning_entry *const entry = &set->entries[i];
        clmgk_error failure = {.status = CLMGK_OK};
        if (mgk_tuning_check(entry->operation, entry->choice, entry->parameters, &failure) != CLMGK_OK)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "text: line %zu: %s", entry->line, failure.message);
    }
    return CLMGK_OK;
}

clmgk_status clmgk_tuning_import(const char *cache_dir, const char *text, size_t length, size_t *taken,
                                 clmgk_error *error)
{
    char *path = NULL;
    import_job job = {.taken = 0};
    clmgk_status status;
    if (text == NULL)
        return fail_null("text", "the text of clmgk_tuning_export", error);
    if (length == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "length: 0: expected a text");
    MGK_TRY_GOTO(status, read_import(text, length, &job.set, error), cleanup);
    MGK_TRY_GOTO(status, mgk_tuning_path(NULL, NULL, cache_dir, &path, error), cleanup);
    MGK_TRY_GOTO(status, mgk_tuning_change(NULL, path, true, merge_entries, &job, error), cleanup);
    if (taken != NULL)
        *taken = job.taken;
cleanup:
    mgk_free(NULL, path);
    mgk_tuning_set_free(&job.set);
    return status;
}
