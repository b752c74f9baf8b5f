/* SPDX-License-Identifier: Apache-2.0 */
/* Measured values in memory and as text (docs/tuning.md): no files, no lookup. */
#ifndef MGK_ENTRIES_H
#define MGK_ENTRIES_H

#include "tuning/database.h"

#define MGK_TUNING_FORMAT 1

/* Stored facts of a measured device. */
typedef struct mgk_tuning_device {
    char name[256];
    char platform[128];
    char driver[128];
    char vendor[128];
    char architecture[64];
    clmgk_device_class device_class;
    uint32_t compute_units;
} mgk_tuning_device;

typedef struct mgk_tuning_entry {
    size_t device; /* index in the set */
    bool shipped;
    char operation[32];
    char exact[216];
    size_t axes; /* 0: for any shape */
    struct {
        char name[16];
        int value;
    } axis[MGK_TUNING_AXES];
    char choice[32];
    char parameters[512];
    char date[24]; /* "2026-01-31T23:59:59Z": ordered as text */
    uint64_t time_ns;
    uint64_t default_ns;
    uint64_t hash; /* of device and bucket */
    size_t line;   /* number in the text */
} mgk_tuning_entry;

/* Entries with their devices. */
typedef struct mgk_tuning_set {
    const clmgk_allocator *allocator;
    mgk_tuning_device *devices;
    size_t device_count;
    size_t device_capacity;
    mgk_tuning_entry *entries;
    size_t count;
    size_t capacity;
} mgk_tuning_set;

void mgk_tuning_set_free(mgk_tuning_set *set);

mgk_tuning_device mgk_tuning_device_of(const mgk_device_facts *facts);
bool mgk_tuning_same_device(const mgk_tuning_device *a, const mgk_tuning_device *b);

/* Makes an entry of a key, without device and date. INVALID_VALUE: a text is too long or has several lines. */
clmgk_status mgk_tuning_entry_of(const mgk_tuning_key *key, const clmgk_tuned *tuned, mgk_tuning_entry *entry,
                                 clmgk_error *error);

/* Adds an entry of `device` to the set. It replaces an entry of the same device and bucket that is not newer; with
 * `replace`, an entry of any date. *taken (may be NULL): whether the set has changed. */
clmgk_status mgk_tuning_set_put(mgk_tuning_set *set, const mgk_tuning_device *device, const mgk_tuning_entry *entry,
                                bool replace, bool *taken, clmgk_error *error);

/* Result of reading a text. */
typedef struct mgk_tuning_reading {
    uint64_t damaged;
    bool newer;        /* a later format, of which nothing was read */
    char message[256]; /* the first invalid line, with the reason; empty: none */
} mgk_tuning_reading;

/* Reads a text into the set. Skips and reports invalid lines; fails only without memory. */
clmgk_status mgk_tuning_parse(mgk_tuning_set *set, const char *text, size_t length, bool shipped,
                              mgk_tuning_reading *reading, clmgk_error *error);

/* Appends the entries of the devices for which `wanted` is true (NULL: all) as text. */
void mgk_tuning_print(const mgk_tuning_set *set, bool (*wanted)(const mgk_tuning_device *device, const void *user),
                      const void *user, mgk_text *text);

/* Appends the entry's bucket: "variant=mgk ... rows=12 keys=12 tasks=3", "... *" for any shape. */
void mgk_tuning_print_bucket(const mgk_tuning_entry *entry, mgk_text *text);

/* ---- the file ------------------------------------------------------------------------------------------------ */

/* A context's measured values. */
struct mgk_tuning {
    clmgk_allocator allocator;
    mgk_tuning_set set; /* entries of the file, then of the library */
    uint64_t bytes;     /* of the file */
    mgk_tuning_reading reading;
};

/* Changes the file's set; *changed: whether to write it. */
typedef clmgk_status (*mgk_tuning_changer)(mgk_tuning_set *set, void *user, bool *changed, clmgk_error *error);

/* Reads the file in the folder `path`, lets `change` change its set, and writes it, all under the folder's lock. A
 * missing folder is created with `create`, and an empty set without. */
clmgk_status mgk_tuning_change(const clmgk_allocator *allocator, const char *path, bool create,
                               mgk_tuning_changer change, void *user, clmgk_error *error);

/* The best source that an entry could be for plans on a device: BUCKET or DEVICE if it was measured on the same device,
 * ARCHITECTURE if on another device of the same architecture, CLASS if it never serves that device. */
clmgk_tuning_source mgk_tuning_serves(const mgk_tuning_set *set, const mgk_tuning_entry *entry,
                                      const mgk_tuning_device *device);

/* True if the entry's values are enough faster; if not, plans use the defaults. */
bool mgk_tuning_gains(const mgk_tuning_entry *entry);

#endif
