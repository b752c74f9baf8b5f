/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuning: kernel parameters, and the cache of those that were measured.
 *
 * Every kernel parameter ("tunable") is declared once, beside its kernel, with the values it may take, its default for
 * each class of device, constraints between parameters, and what it means. A plan takes its engine and parameters from
 * the first of these that has something legal for it (clmgk_tuning_source):
 *
 *     the caller's clmgk_plan_options; this very device and bucket of shapes; the nearest bucket measured on this
 *     device; this device whatever the shape; devices of the same architecture (clmgk_device_info.architecture; this
 *     one under another driver version included); the defaults of the device's class
 *
 * An entry whose values gained less than CLMGK_TUNING_LEAST_GAIN, or lost, says that the defaults are the best there:
 * its place in this order is theirs.
 *
 * A bucket is a variant with its classes of sizes, and axes rounded to powers of two. Measured values lie in a text
 * file, tuning.txt, in the tuning cache's folder, and, for devices that the library's makers have measured, in the
 * library itself; the file goes first, and the library's entries serve no neighbouring bucket. Values only change
 * speed: whatever they are, results stay within the documented bound (bits may differ: they are the same for the same
 * parameters of a plan), and a value that is not allowed (any more), or with which the kernels do not compile, is
 * passed over. docs/tuning.md: the file's format, the buckets. A context reads the file once, when it is created.
 *
 * `cache_dir` in these functions is as in clmgk_context_options: the folder is cache_dir/tuning; NULL: the
 * environment's CLMGK_CACHE_DIR, or, where that is unset, $XDG_DATA_HOME/clmgk/tuning (~/.local/share/clmgk/tuning).
 * Empty text, here or in CLMGK_CACHE_DIR: there is no file; reading functions then see an empty cache and writing ones
 * fail with ERROR_IO. The folder must be private to the user (mode 0700; it is made so).
 * All functions lock the folder while they change it, replace the file as a whole, and are thread-safe.
 */
#ifndef CLMGK_TUNING_H
#define CLMGK_TUNING_H

#include "attention.h"

/* Name of a source: "caller", "bucket", "nearest", "device", "architecture", "class"; NULL for a value outside the
 * enumeration (attention.h). */
CLMGK_API const char *clmgk_tuning_source_name(clmgk_tuning_source source);

/* ---- tunables ------------------------------------------------------------------------------------------------ */

#define CLMGK_TUNABLE_VALUES 16

typedef struct clmgk_tunable {
    const char *name;                     /* as in clmgk_plan_options.parameters */
    const char *meaning;                  /* a few words */
    int32_t values[CLMGK_TUNABLE_VALUES]; /* those it may take, ascending */
    size_t value_count;
    int32_t cpu_default; /* by class of device; 0: follows from the shape. A plan may make it smaller to fit */
    int32_t gpu_default;
} clmgk_tunable;

/* Name of the table number `index`: "lane" and "simt" for the engines of attention, "lane-admixture" and
 * "simt-admixture" for them in the admixture family, "clblast-..." for kernels of CLBlast; NULL past the last. */
CLMGK_API const char *clmgk_tunable_table(size_t index);

/* The table of an engine's parameters for a variant; NULL: no such variant, or engine AUTO. */
CLMGK_API const char *clmgk_tunable_table_of(clmgk_variant variant, clmgk_engine engine);

/* The tunables of a table: at most `capacity` of them, the full number in *count. INVALID_VALUE: no such table. */
CLMGK_API clmgk_status clmgk_tunable_list(const char *table, clmgk_tunable *tunables, size_t capacity, size_t *count,
                                          clmgk_error *error);

/* Constraint number `index` of a table, as an expression of its tunables ("tile % lanes == 0"); NULL past the last. */
CLMGK_API const char *clmgk_tunable_constraint(const char *table, size_t index);

/* Whether "name=value,name=value", which names every tunable of the table, is allowed. INVALID_VALUE, with what is
 * wrong, if not. */
CLMGK_API clmgk_status clmgk_tunable_check(const char *table, const char *parameters, clmgk_error *error);

/* ---- the cache ----------------------------------------------------------------------------------------------- */

/* Part of the defaults' time that values must save to be used. */
#define CLMGK_TUNING_LEAST_GAIN 0.03

/* Passes that are tuned apart. */
typedef enum clmgk_tuned_pass { CLMGK_TUNED_FORWARD = 0, CLMGK_TUNED_BACKWARD = 1 } clmgk_tuned_pass;

/* What was measured for a bucket. */
typedef struct clmgk_tuned {
    const char *choice;     /* name of the engine (attention) or of the provider (products) */
    const char *parameters; /* "name=value,...": those that are not left to the defaults; "" or NULL: none */
    double time_ms;         /* with them */
    double default_ms;      /* with the defaults, measured beside it */
} clmgk_tuned;

/* Whether a plan of the descriptor on the context's device could take an engine and parameters (times are not looked
 * at): INVALID_VALUE, with the reason, if not. For the backward pass they must also agree with what the forward pass of
 * the same plan takes, where the rounding of scores depends on it: with Gaussian scores and SMGK on the engine and the
 * lane engine's `lanes`, which a backward pass takes from the forward pass where they are not named. Reads and compiles
 * nothing. */
CLMGK_API clmgk_status clmgk_tuning_check(clmgk_context *context, const clmgk_attention_desc *desc,
                                          clmgk_tuned_pass pass, const clmgk_tuned *tuned, clmgk_error *error);

/* Stores what was measured for the bucket of a descriptor on the context's device, in the place of an earlier
 * entry of that bucket. Where nothing gained CLMGK_TUNING_LEAST_GAIN, that is worth an entry, too, with the default
 * engine, no parameters and equal times: without it plans would take the nearest bucket's values.
 * The context itself goes on with what it has read.
 * INVALID_VALUE: what clmgk_tuning_check does not take; ERROR_IO: the file could not be written. */
CLMGK_API clmgk_status clmgk_tuning_store(clmgk_context *context, const char *cache_dir,
                                          const clmgk_attention_desc *desc, clmgk_tuned_pass pass,
                                          const clmgk_tuned *tuned, clmgk_error *error);

/* An entry of the cache. */
typedef struct clmgk_tuning_entry {
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
    int32_t shipped;  /* 1: from the library, not from the file */
    int32_t allowed;  /* 0: no plan takes it: a value is not allowed, or it was measured on another architecture */
    char reason[192]; /* then: why */
    int32_t defaults; /* 1: it gained less than CLMGK_TUNING_LEAST_GAIN: plans take the defaults in its place */
    clmgk_tuning_source source; /* BUCKET (to buckets near by NEAREST), DEVICE or ARCHITECTURE; CLASS: not allowed */
} clmgk_tuning_entry;

/*
 * The entries of file and library: at most `capacity` of them (NULL if 0), the full number in *count. `device` NULL: of
 * all devices, each as it serves the device that it was measured on. Else all that serve plans on the device, by the
 * rule by which plans find them, and those that bear its name but don't serve it, with the reason.
 */
CLMGK_API clmgk_status clmgk_tuning_list(const char *cache_dir, cl_device_id device, clmgk_tuning_entry *entries,
                                         size_t capacity, size_t *count, clmgk_error *error);

typedef struct clmgk_tuning_info {
    char path[1024]; /* the folder; empty when no files are used */
    uint64_t bytes;  /* of tuning.txt */
    uint64_t entries;
    uint64_t damaged;  /* lines that could not be understood: they are passed over */
    char message[256]; /* the first of them, and why; empty if there is none */
} clmgk_tuning_info;

/* Where the tuning cache lies and what is in its file. A file that is not there is an empty cache. */
CLMGK_API clmgk_status clmgk_tuning_get_info(const char *cache_dir, clmgk_tuning_info *info, clmgk_error *error);

/* Removes the entries of a device, under any driver; NULL: of all devices. */
CLMGK_API clmgk_status clmgk_tuning_reset(const char *cache_dir, cl_device_id device, clmgk_error *error);

/*
 * The file's contents in the format that clmgk_tuning_import reads: writes at most `capacity` bytes (no NUL) to `text`
 * and the full number to *length. `device` NULL: of all devices.
 */
CLMGK_API clmgk_status clmgk_tuning_export(const char *cache_dir, cl_device_id device, char *text, size_t capacity,
                                           size_t *length, clmgk_error *error);

/*
 * Merges such a text into the file: of two entries for one device and bucket the one measured later stays. *taken
 * (may be NULL): entries that are new or replaced one. A text that is not wholly right (another format version, a line
 * that is damaged, a value that is not allowed) changes nothing: INVALID_VALUE with line and reason.
 */
CLMGK_API clmgk_status clmgk_tuning_import(const char *cache_dir, const char *text, size_t length, size_t *taken,
                                           clmgk_error *error);

#endif
