/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuning: kernel parameters, and the cache of measured values.
 *
 * Every kernel parameter ("tunable") is declared once, beside its kernel, with its legal values, its default for each
 * class of device, constraints between parameters, and its meaning. A plan takes its engine and parameters from the
 * first of these sources that has legal values for it (clmgk_tuning_source):
 *
 *     CALLER         clmgk_plan_options
 *     BUCKET         measured on this device in the problem's bucket (below)
 *     NEAREST        measured on this device in the nearest bucket
 *     DEVICE         measured on this device for any shape
 *     ARCHITECTURE   measured on a device of the same architecture (clmgk_device_info.architecture), or on this device
 *                    with another driver version
 *     CLASS          the defaults of the device's class
 *
 * An entry whose values gained less than CLMGK_TUNING_LEAST_GAIN, or lost, means that the defaults are best: plans then
 * use the defaults and do not try the remaining sources.
 *
 * A bucket is a variant with its size classes, and axes rounded to powers of two. Measured values are stored in a text
 * file, tuning.txt, in the tuning cache's folder; values of devices measured before release are also in the library
 * itself. The file has precedence. The library's entries are never used for neighbouring buckets. Tuned values affect
 * speed; results always stay within the documented bound (bits depend on the plan's parameters alone). Entries
 * with values that are not allowed (any more), or whose kernels do not compile, are skipped. A context reads the
 * file once, when it is created. docs/tuning.md describes the file's format and the buckets.
 *
 * `cache_dir` in these functions is as in clmgk_context_options; the folder is cache_dir/tuning. NULL: the environment
 * variable CLMGK_CACHE_DIR, or, if unset, $XDG_DATA_HOME/clmgk/tuning (~/.local/share/clmgk/tuning). An empty string,
 * here or in CLMGK_CACHE_DIR: no file; functions that read see an empty cache, functions that write fail with ERROR_IO.
 * The folder must be private to the user (the library creates it with mode 0700). All functions are thread-safe; they
 * lock the folder while they change it, and replace the file as a whole.
 */
#ifndef CLMGK_TUNING_H
#define CLMGK_TUNING_H

#include "attention.h"

/* Names of the sources (attention.h): "caller", "bucket", "nearest", "device", "architecture", "class"; as in
 * variants.h. */
CLMGK_API const char *clmgk_tuning_source_name(clmgk_tuning_source source);
CLMGK_API clmgk_status clmgk_tuning_source_from_name(const char *name, clmgk_tuning_source *source, clmgk_error *error);

/* ---- tunables ------------------------------------------------------------------------------------------------ */

#define CLMGK_TUNABLE_VALUES 16

typedef struct clmgk_tunable {
    size_t struct_size;                   /* sizeof(clmgk_tunable); CLMGK_TUNABLE_INIT sets it */
    const char *name;                     /* as in clmgk_plan_options.parameters */
    const char *meaning;                  /* short description */
    int32_t values[CLMGK_TUNABLE_VALUES]; /* legal values, ascending */
    size_t value_count;
    int32_t cpu_default; /* default on CPUs; 0: depends on the shape. A plan may reduce a default to fit the problem */
    int32_t gpu_default; /* default on GPUs, likewise */
} clmgk_tunable;

#define CLMGK_TUNABLE_INIT CLMGK_INIT(clmgk_tunable)

/* Name of table number `index`: "lane" and "simt" for attention's engines, "lane-admixture", "lane-linear", ... for the
 * engines in the admixture and linear families, "gemm-matrix" for products of matrices by matrix units, "clblast-..."
 * for kernels of CLBlast; NULL past the last. */
CLMGK_API const char *clmgk_tunable_table(size_t index);

/* Name of the table of an engine's parameters for a variant; NULL: no such variant, or engine AUTO. */
CLMGK_API const char *clmgk_tunable_table_of(clmgk_variant variant, clmgk_engine engine);

/* Writes at most `capacity` of a table's tunables (the caller sets tunables[0].struct_size), and their total number to
 * *count. INVALID_VALUE: no such table. */
CLMGK_API clmgk_status clmgk_tunable_list(const char *table, clmgk_tunable *tunables, size_t capacity, size_t *count,
                                          clmgk_error *error);

/* Constraint number `index` of a table, as an expression of its tunables ("tile % lanes == 0"); NULL past the last. */
CLMGK_API const char *clmgk_tunable_constraint(const char *table, size_t index);

/* Checks a text "name=value,name=value", which must name every tunable of the table. INVALID_VALUE, with the reason, if
 * the values are not allowed. */
CLMGK_API clmgk_status clmgk_tunable_check(const char *table, const char *parameters, clmgk_error *error);

/* ---- the cache ----------------------------------------------------------------------------------------------- */

/* Plans use tuned values only if they save at least this fraction of the defaults' time. */
#define CLMGK_TUNING_LEAST_GAIN 0.03

/* Passes that have their own tuned values. */
typedef enum clmgk_tuned_pass { CLMGK_TUNED_FORWARD = 0, CLMGK_TUNED_BACKWARD = 1 } clmgk_tuned_pass;

/* The result of tuning a bucket. */
typedef struct clmgk_tuned {
    const char *choice;     /* name of the engine (attention) or of the provider (products) */
    const char *parameters; /* "name=value,...": parameters that differ from the defaults; "" or NULL: none */
    double time_ms;         /* with these parameters; above 0 */
    double default_ms;      /* with the defaults, measured in the same run; above 0 */
} clmgk_tuned;

/* Checks whether a plan of the descriptor on the context's device could use an engine and parameters (times are
 * ignored). INVALID_VALUE, with the reason, if not. A backward pass must also match the same plan's forward pass in
 * everything that affects the rounding of scores: the engine, and with Gaussian scores and SMGK the lane engine's
 * `lanes`. If `lanes` is not named, the forward pass's value applies. Statistics use the forward pass's engine. Reads
 * no file and compiles nothing. */
CLMGK_API clmgk_status clmgk_tuning_check(clmgk_context *context, const clmgk_attention_desc *desc,
                                          clmgk_tuned_pass pass, const clmgk_tuned *tuned, clmgk_error *error);

/* Stores a measurement for a descriptor's bucket on the context's device. Replaces an earlier entry of the bucket.
 * Store an entry even if no values gained CLMGK_TUNING_LEAST_GAIN (default engine, no parameters, equal times): without
 * the entry, plans would use the nearest bucket's values. The context itself keeps the values that it read when it was
 * created. INVALID_VALUE: clmgk_tuning_check fails. ERROR_IO: the file could not be written. */
CLMGK_API clmgk_status clmgk_tuning_store(clmgk_context *context, const char *cache_dir,
                                          const clmgk_attention_desc *desc, clmgk_tuned_pass pass,
                                          const clmgk_tuned *tuned, clmgk_error *error);

/* An entry of the cache. */
typedef struct clmgk_tuning_entry {
    size_t struct_size; /* sizeof(clmgk_tuning_entry); CLMGK_TUNING_ENTRY_INIT sets it */
    char device[256];
    char platform[128];
    char driver[128];
    char architecture[64];
    uint32_t compute_units;
    char operation[32]; /* "forward", "backward", "gemm", ... */
    char bucket[256];   /* "variant=mgk dtype=f32 ... rows=12 keys=12 tasks=3": axes as powers of two */
    char choice[32];
    char parameters[512];
    double time_ms;
    double default_ms;
    int32_t shipped;            /* 1: from the library, not from the file */
    int32_t allowed;            /* 0: plans never use it: a value is not allowed, or another architecture measured it */
    char reason[192];           /* why it is not allowed */
    int32_t defaults;           /* 1: it gained less than CLMGK_TUNING_LEAST_GAIN: plans use the defaults instead */
    clmgk_tuning_source source; /* BUCKET (NEAREST for nearby buckets), DEVICE or ARCHITECTURE; CLASS: not allowed */
} clmgk_tuning_entry;

#define CLMGK_TUNING_ENTRY_INIT CLMGK_INIT(clmgk_tuning_entry)

/*
 * Lists entries of the file and of the library. Writes at most `capacity` of them to `entries` (NULL if capacity is 0;
 * else the caller sets entries[0].struct_size), and their total number to *count. With `device` NULL, the list has the
 * entries of all devices, each as its own device would use it. Otherwise it has all entries that plans on the device
 * may use, by the plans' own rule, and the file's entries with the device's name that plans may not use, with the
 * reason.
 */
CLMGK_API clmgk_status clmgk_tuning_list(const char *cache_dir, cl_device_id device, clmgk_tuning_entry *entries,
                                         size_t capacity, size_t *count, clmgk_error *error);

typedef struct clmgk_tuning_info {
    size_t struct_size; /* sizeof(clmgk_tuning_info); CLMGK_TUNING_INFO_INIT sets it */
    char path[1024];    /* the folder; empty: no files */
    uint64_t bytes;     /* size of tuning.txt */
    uint64_t entries;
    uint64_t damaged;  /* number of invalid lines, which are skipped */
    char message[256]; /* damaged > 0: the first invalid line, with the reason. damaged = 0: why the whole file is
                        * skipped (it cannot be read, or has another version); empty if it is not skipped */
} clmgk_tuning_info;

#define CLMGK_TUNING_INFO_INIT CLMGK_INIT(clmgk_tuning_info)

/* Location and contents of the tuning cache's file. A missing file counts as an empty cache, and so does a file that is
 * skipped as a whole; `message` then has the reason. */
CLMGK_API clmgk_status clmgk_tuning_get_info(const char *cache_dir, clmgk_tuning_info *info, clmgk_error *error);

/* Removes a device's entries from the file, for all driver versions; `device` NULL: the entries of all devices. */
CLMGK_API clmgk_status clmgk_tuning_reset(const char *cache_dir, cl_device_id device, clmgk_error *error);

/*
 * Exports the file's entries of a device (NULL: of all devices) in the format that clmgk_tuning_import reads. Writes at
 * most `capacity` bytes (no NUL) to `text` and the total number of bytes to *length. ERROR_IO if the file exists but is
 * skipped as a whole: it cannot be read, or has another version.
 */
CLMGK_API clmgk_status clmgk_tuning_export(const char *cache_dir, cl_device_id device, char *text, size_t capacity,
                                           size_t *length, clmgk_error *error);

/*
 * Merges exported text into the file. Of two entries for the same device and bucket, the later measurement is
 * kept. *taken (`taken` may be NULL) receives the number of entries that are new or replaced an older one. Invalid text
 * (another format version, an invalid line, a value that is not allowed) changes nothing: INVALID_VALUE with line and
 * reason.
 */
CLMGK_API clmgk_status clmgk_tuning_import(const char *cache_dir, const char *text, size_t length, size_t *taken,
                                           clmgk_error *error);

#endif
