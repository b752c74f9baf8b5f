/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Program binaries on disk. A binary is code that runs with the user's rights and that drivers take on trust, so an
 * entry is handed out only if folder and file are private, its length and checksum hold and its full key is the one
 * asked for. Nothing here is an error: what cannot be read is a miss, what cannot be written stays unwritten.
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

/* Where a cache lies: the fields of clmgk_context, without a device. */
typedef struct mgk_cache {
    const clmgk_allocator *allocator;
    const char *path; /* the folder of programs; NULL: every get misses, every put is dropped */
    uint64_t max_bytes;
} mgk_cache;

/* The folder of programs below `cache_dir` (as in clmgk_context_options) into *path (mgk_free); NULL: no files. */
clmgk_status mgk_cache_path(const clmgk_allocator *allocator, const char *cache_dir, char **path, clmgk_error *error);

/* The binary stored for `key`: *entry (mgk_free) holds it between *binary and *binary + *length. False: a miss. */
bool mgk_cache_get(const mgk_cache *cache, const char *key, char **entry, const char **binary, size_t *length);

/* Stores a binary, then removes the oldest entries beyond max_bytes. */
void mgk_cache_put(const mgk_cache *cache, const char *key, const char *binary, size_t length);

/* Removes the entry of `key`. */
void mgk_cache_drop(const mgk_cache *cache, const char *key);

/* All entries and their bytes; all entries removed. ERROR_IO if the folder is there but not private. */
clmgk_status mgk_cache_measure(const mgk_cache *cache, uint64_t *bytes, uint64_t *entries, clmgk_error *error);
clmgk_status mgk_cache_clear(const mgk_cache *cache, clmgk_error *error);

#endif
