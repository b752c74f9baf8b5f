/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Program binaries on disk: the cache, and folders that applications ship. A binary is code that runs with the user's
 * rights and that drivers trust. So an entry is used only if its folder and file are private (shipped: writable for
 * nobody but the user and root), its length and checksum are right, and its full key matches. Failures are no errors:
 * an unreadable entry is a miss, an unwritable entry is dropped.
 *
 * An entry, <hash of the key>.bin, all numbers little-endian:
 *
 *     0   8 bytes   "clmgkbin"
 *     8   u32       format version
 *     12  u32       length of the key
 *     16  u64       length of the file
 *     24            key, binary
 *     -16 2 x u64   XXH3-128 of all bytes before, low half first
 */
#ifndef MGK_PROGRAM_CACHE_H
#define MGK_PROGRAM_CACHE_H

#include "base/base.h"

/* A cache's location and limit: fields of clmgk_context, usable without a device. */
typedef struct mgk_cache {
    const clmgk_allocator *allocator;
    const char *path; /* the folder of programs; NULL: every get misses, every put is dropped */
    uint64_t max_bytes;
    bool shipped; /* programs made ahead: entries are never removed, and get does not touch files */
} mgk_cache;

/* Stores the path of the folder of programs below `cache_dir` (as in clmgk_context_options) in *path (mgk_free); NULL:
 * no files. */
clmgk_status mgk_cache_path(const clmgk_allocator *allocator, const char *cache_dir, char **path, clmgk_error *error);

/* Reads the binary of `key`: *entry (mgk_free) holds it from *binary to *binary + *length. False: a miss. */
bool mgk_cache_get(const mgk_cache *cache, const char *key, char **entry, const char **binary, size_t *length);

/* Stores a binary, and removes the oldest entries beyond max_bytes except among programs made ahead. ERROR_IO or
 * OUT_OF_HOST_MEMORY: the binary is not stored. */
clmgk_status mgk_cache_put(const mgk_cache *cache, const char *key, const char *binary, size_t length,
                           clmgk_error *error);

/* Makes the folder if it is missing. ERROR_IO if it can't be written or is not private. */
clmgk_status mgk_cache_make(const mgk_cache *cache, clmgk_error *error);

/* Removes the entry of `key`. */
void mgk_cache_drop(const mgk_cache *cache, const char *key);

/* Counts, or removes, all entries. ERROR_IO if the folder exists but is not private. */
clmgk_status mgk_cache_measure(const mgk_cache *cache, uint64_t *bytes, uint64_t *entries, clmgk_error *error);
clmgk_status mgk_cache_clear(const mgk_cache *cache, clmgk_error *error);

#endif
