/* SPDX-License-Identifier: Apache-2.0 */
/* Measured values: entries of the tuning file and of the library's own table, and the order in which a plan tries them.
 * Independent of operations: attention and matrix products describe their buckets by a key. */
#ifndef MGK_DATABASE_H
#define MGK_DATABASE_H

#include "clmgk/tuning.h"
#include "device/device.h"

#define MGK_TUNING_AXES 4

/* A bucket: words that must match exactly, and axes for which the nearest value counts. A key without axes has values
 * for any shape; their source is the device, never a bucket. */
typedef struct mgk_tuning_key {
    const char *operation; /* "forward", "backward", "gemm", ... */
    char exact[216];       /* "variant=mgk dtype=f32 ...": words without spaces, in a fixed order */
    size_t axes;
    struct {
        const char *name;
        int value; /* a size's mgk_tuning_bucket */
    } axis[MGK_TUNING_AXES];
} mgk_tuning_key;

/* round(log2 size); 0 for sizes below 1. */
int mgk_tuning_bucket(int64_t size);

/* A context's measured values: read once, then immutable. NULL: none. */
typedef struct mgk_tuning mgk_tuning;

/* An entry that a plan could use. The strings live as long as the mgk_tuning. */
typedef struct mgk_tuning_choice {
    clmgk_tuning_source source;
    const char *choice;     /* engine or provider; NULL: the defaults, because no values were enough faster */
    const char *parameters; /* "name=value,..." or "" */
} mgk_tuning_choice;

/* Entry number `rank` (0: the best) for the key on the device; false past the last. */
bool mgk_tuning_find(const mgk_tuning *tuning, const mgk_device_facts *facts, const mgk_tuning_key *key, size_t rank,
                     mgk_tuning_choice *choice);

/* Adds an axis of this size. */
void mgk_tuning_key_add(mgk_tuning_key *key, const char *name, int64_t size);

/* Stores the folder of the tuning file in *path (mgk_free): `tuning_dir`, else the folder below `cache_dir`, else the
 * environment's (clmgk/tuning.h); NULL: no files. */
clmgk_status mgk_tuning_path(const clmgk_allocator *allocator, const char *tuning_dir, const char *cache_dir,
                             char **path, clmgk_error *error);

/* Reads the file in the folder `path` (NULL: none) and the library's own table. Skips invalid lines; fails only without
 * memory. */
clmgk_status mgk_tuning_read(const clmgk_allocator *allocator, const char *path, mgk_tuning **out, clmgk_error *error);
void mgk_tuning_free(const clmgk_allocator *allocator, mgk_tuning *tuning);

/* mgk_tuning_write to the context's device in the folder below `cache_dir`. */
clmgk_status mgk_tuning_store(const clmgk_context *context, const char *cache_dir, const mgk_tuning_key *key,
                              const clmgk_tuned *tuned, clmgk_error *error);

/* Adds an entry to the file in the folder `path`; replaces an entry with the same device and key. */
clmgk_status mgk_tuning_write(const clmgk_allocator *allocator, const char *path, const mgk_device_facts *facts,
                              const mgk_tuning_key *key, const clmgk_tuned *tuned, clmgk_error *error);

#endif
