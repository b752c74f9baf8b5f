/* SPDX-License-Identifier: Apache-2.0 */
#include "device/program_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX ".bin"

enum {
    FORMAT_VERSION = 1,
    VERSION_AT = 8,
    KEY_LENGTH_AT = 12,
    LENGTH_AT = 16,
    KEY_AT = 24,
    CHECKSUM_SIZE = 16,
    LOCK_ATTEMPTS = 50, /* a tenth of a second */
    NAME_DIGITS = 32,
    NAME_SIZE = NAME_DIGITS + sizeof(SUFFIX)
};

static const char magic[8] = {'c', 'l', 'm', 'g', 'k', 'b', 'i', 'n'};

/* ---- location --------------------------------------------------------------------------------------------- */

clmgk_status mgk_cache_path(const clmgk_allocator *allocator, const char *cache_dir, char **path, clmgk_error *error)
{
    static const mgk_root root = {"XDG_CACHE_HOME", ".cache", "/programs", "the cache's path"};
    return mgk_root_path(allocator, &root, cache_dir, path, error);
}

static void entry_name(const char *key, char *name)
{
    const mgk_hash hash = mgk_hash_bytes(key, strlen(key));
    snprintf(name, NAME_SIZE, "%016" PRIx64 "%016" PRIx64 SUFFIX, hash.high, hash.low);
}

static bool is_entry_name(const char *name)
{
    return strlen(name) == NAME_SIZE - 1 && strspn(name, "0123456789abcdef") == NAME_DIGITS &&
           strcmp(name + NAME_DIGITS, SUFFIX) == 0;
}

/* ---- format ------------------------------------------------------------------------------------------------ */

static void put_number(char *bytes, uint64_t number, size_t size)
{
    for (size_t i = 0; i < size; ++i)
        bytes[i] = (char)(unsigned char)(number >> (8 * i));
}

static uint64_t get_number(const char *bytes, size_t size)
{
    uint64_t number = 0;
    for (size_t i = 0; i < size; ++i)
        number |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
    return number;
}

static void put_checksum(char *bytes, mgk_hash hash)
{
    put_number(bytes, hash.low, 8);
    put_number(bytes + 8, hash.high, 8);
}

static bool is_valid(const char *entry, size_t length, const char *key)
{
    const size_t key_length = strlen(key);
    if (length < KEY_AT + CHECKSUM_SIZE || length - KEY_AT - CHECKSUM_SIZE <= key_length)
        return false;
    char checksum[CHECKSUM_SIZE];
    put_checksum(checksum, mgk_hash_bytes(entry, length - CHECKSUM_SIZE));
    return memcmp(entry + length - CHECKSUM_SIZE, checksum, CHECKSUM_SIZE) == 0 &&
           memcmp(entry, magic, sizeof(magic)) == 0 && get_number(entry + VERSION_AT, 4) == FORMAT_VERSION &&
           get_number(entry + LENGTH_AT, 8) == length && get_number(entry + KEY_LENGTH_AT, 4) == key_length &&
           memcmp(entry + KEY_AT, key, key_length) == 0;
}

/* The entry's bytes; NULL without memory. */
static char *encode(const clmgk_allocator *allocator, const char *key, size_t key_length, const char *binary,
                    size_t binary_length, size_t *length)
{
    const size_t total = KEY_AT + key_length + binary_length + CHECKSUM_SIZE;
    char *const entry = total > binary_length && key_length <= UINT32_MAX ? mgk_alloc(allocator, total, 1) : NULL;
    if (entry == NULL)
        return NULL;
    memcpy(entry, magic, sizeof(magic));
    put_number(entry + VERSION_AT, FORMAT_VERSION, 4);
    put_number(entry + KEY_LENGTH_AT, key_length, 4);
    put_number(entry + LENGTH_AT, total, 8);
    memcpy(entry + KEY_AT, key, key_length);
    memcpy(entry + KEY_AT + key_length, binary, binary_length);
    put_checksum(entry + total - CHECKSUM_SIZE, mgk_hash_bytes(entry, total - CHECKSUM_SIZE));
    *length = total;
    return entry;
}

/* ---- get, put, drop ---------------------------------------------------------------------------------------- */

static clmgk_status open_path(const mgk_cache *cache, bool create, mgk_folder *folder, clmgk_error *error)
{
    return cache->shipped ? mgk_folder_open_shipped(cache->path, create, folder, error)
                          : mgk_folder_open(cache->path, create, folder, error);
}

static bool open_folder(const mgk_cache *cache, bool create, mgk_folder *folder)
{
    return cache->path != NULL && open_path(cache, create, folder, NULL) == CLMGK_OK;
}

static size_t as_size(uint64_t bytes)
{
    return bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX;
}

bool mgk_cache_get(const mgk_cache *cache, const char *key, char **entry, const char **binary, size_t *length)
{
    mgk_folder folder;
    if (!open_folder(cache, false, &folder))
        return false;

    char name[NAME_SIZE];
    char *bytes = NULL;
    size_t size = 0;
    entry_name(key, name);
    (void)mgk_folder_load(&folder, cache->allocator, name, as_size(cache->max_bytes), true, &bytes, &size, NULL);
    const bool valid = bytes != NULL && is_valid(bytes, size, key);
    if (bytes != NULL && !valid) {
        mgk_free(cache->allocator, bytes);
        if (!cache->shipped)
            (void)mgk_folder_remove(&folder, name, NULL);
    }
    mgk_folder_close(&folder);
    if (!valid)
        return false;
    *entry = bytes;
    *binary = bytes + KEY_AT + strlen(key);
    *length = size - KEY_AT - strlen(key) - CHECKSUM_SIZE;
    return true;
}

static int by_age(const void *a, const void *b)
{
    const mgk_folder_entry *const x = a;
    const mgk_folder_entry *const y = b;
    if (x->modified_ns != y->modified_ns)
        return x->modified_ns < y->modified_ns ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void remove_oldest(const mgk_cache *cache, const mgk_folder *folder)
{
    mgk_folder_entry *entries;
    size_t count;
    if (mgk_folder_list(folder, cache->allocator, is_entry_name, &entries, &count, NULL) != CLMGK_OK)
        return;
    if (count > 0)
        qsort(entries, count, sizeof(*entries), by_age);
    uint64_t total = 0;
    for (size_t i = 0; i < count; ++i)
        total += entries[i].bytes;
    for (size_t i = 0; i < count && total > cache->max_bytes; ++i)
        if (mgk_folder_remove(folder, entries[i].name, NULL) == CLMGK_OK)
            total -= entries[i].bytes;
    mgk_free(cache->allocator, entries);
}

/* Removes the oldest entries under the lock. A process that does not get the lock leaves the work to its holder. */
static void tidy(const mgk_cache *cache, const mgk_folder *folder)
{
    const int lock = mgk_folder_lock(folder, LOCK_ATTEMPTS, NULL);
    if (lock < 0)
        return;
    mgk_folder_remove_stale(folder, cache->allocator);
    remove_oldest(cache, folder);
    mgk_folder_unlock(lock);
}

clmgk_status mgk_cache_put(const mgk_cache *cache, const char *key, const char *binary, size_t length,
                           clmgk_error *error)
{
    mgk_folder folder;
    char name[NAME_SIZE];
    size_t size = 0;
    if (cache->path == NULL || length == 0)
        return CLMGK_OK;
    entry_name(key, name);
    char *const entry = encode(cache->allocator, key, strlen(key), binary, length, &size);
    if (entry == NULL)
        return mgk_fail_memory(error, "a program");
    clmgk_status status;
    if (!cache->shipped && size > cache->max_bytes) {
        status = mgk_fail(error, CLMGK_ERROR_IO, "%s/%s: would have %zu bytes, expected at most %" PRIu64, cache->path,
                          name, size, cache->max_bytes);
        goto cleanup;
    }
    MGK_TRY_GOTO(status, open_path(cache, true, &folder, error), cleanup);
    status = mgk_folder_write(&folder, name, entry, size, error);
    if (status == CLMGK_OK && !cache->shipped)
        tidy(cache, &folder);
    mgk_folder_close(&folder);
cleanup:
    mgk_free(cache->allocator, entry);
    return status;
}

clmgk_status mgk_cache_make(const mgk_cache *cache, clmgk_error *error)
{
    mgk_folder folder;
    MGK_TRY(open_path(cache, true, &folder, error));
    mgk_folder_remove_stale(&folder, cache->allocator);
    mgk_folder_close(&folder);
    return mgk_folder_check_writable(cache->path, false, error);
}

void mgk_cache_drop(const mgk_cache *cache, const char *key)
{
    mgk_folder folder;
    if (cache->shipped || !open_folder(cache, false, &folder))
        return;
    char name[NAME_SIZE];
    entry_name(key, name);
    (void)mgk_folder_remove(&folder, name, NULL);
    mgk_folder_close(&folder);
}

/* ---- all entries ------------------------------------------------------------------------------------------- */

/* All entries, and the folder that holds them. */
typedef struct cache_listing {
    mgk_folder folder;
    mgk_folder_entry *entries;
    size_t count;
} cache_listing;

static void close_listing(const mgk_cache *cache, cache_listing *listing)
{
    mgk_free(cache->allocator, listing->entries);
    mgk_folder_close(&listing->folder);
}

/* The caller closes the listing after success. */
static clmgk_status open_listing(const mgk_cache *cache, cache_listing *listing, clmgk_error *error)
{
    *listing = (cache_listing){.folder = {.handle = -1}};
    if (cache->path != NULL)
        MGK_TRY(open_path(cache, false, &listing->folder, error));
    const clmgk_status status =
        mgk_folder_list(&listing->folder, cache->allocator, is_entry_name, &listing->entries, &listing->count, error);
    if (status != CLMGK_OK)
        close_listing(cache, listing);
    return status;
}

clmgk_status mgk_cache_measure(const mgk_cache *cache, uint64_t *bytes, uint64_t *entries, clmgk_error *error)
{
    cache_listing listing;
    MGK_TRY(open_listing(cache, &listing, error));
    *bytes = 0;
    *entries = listing.count;
    for (size_t i = 0; i < listing.count; ++i)
        *bytes += listing.entries[i].bytes;
    close_listing(cache, &listing);
    return CLMGK_OK;
}

clmgk_status mgk_cache_clear(const mgk_cache *cache, clmgk_error *error)
{
    cache_listing listing;
    clmgk_status status = CLMGK_OK;
    MGK_TRY(open_listing(cache, &listing, error));
    for (size_t i = 0; i < listing.count; ++i) {
        const clmgk_status removed = mgk_folder_remove(&listing.folder, listing.entries[i].name, error);
        status = removed != CLMGK_OK ? removed : status;
    }
    close_listing(cache, &listing);
    return status;
}
