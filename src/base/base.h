/* SPDX-License-Identifier: Apache-2.0 */
/* Failure, memory, text, hashing and files, for every part of the library. Only src/base makes operating-system calls.
 * Internal names begin with mgk_. */
#ifndef MGK_BASE_H
#define MGK_BASE_H

#include "clmgk/context.h"
#include "clmgk/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MGK_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define MGK_PRINTF(text, first)
#endif

#define MGK_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- failure ---------------------------------------------------------------------------------------------- */

/* Records a failure in `error` (may be NULL) and returns `status`. The message names field, value and expected
 * value. */
clmgk_status mgk_fail(clmgk_error *error, clmgk_status status, const char *format, ...) MGK_PRINTF(3, 4);

/* The same for a failed OpenCL call of the function `call`: CL_OUT_OF_* become OUT_OF_*_MEMORY, other codes
 * ERROR_OPENCL. mgk_check_cl: OK for CL_SUCCESS. */
clmgk_status mgk_fail_cl(clmgk_error *error, cl_int code, const char *call);
clmgk_status mgk_check_cl(clmgk_error *error, cl_int code, const char *call);

/* The same for any status with an OpenCL code, and for OUT_OF_HOST_MEMORY while allocating `what`. */
clmgk_status mgk_fail_code(clmgk_error *error, clmgk_status status, cl_int code, const char *format, ...)
    MGK_PRINTF(4, 5);
clmgk_status mgk_fail_memory(clmgk_error *error, const char *what);

/* INVALID_VALUE unless least <= value <= most. mgk_check_axis: the length of an axis; OVERFLOW above MGK_MAX_AXIS. */
clmgk_status mgk_check_range(const char *field, int64_t value, int64_t least, int64_t most, clmgk_error *error);
clmgk_status mgk_check_axis(const char *field, int64_t value, int64_t least, clmgk_error *error);

/* Kernels index rows and keys by 32-bit integers with room for tiles and diagonals. */
#define MGK_MAX_AXIS (INT64_C(1) << 30)

/* Name of an OpenCL error code ("CL_INVALID_VALUE"); "unknown OpenCL error" for other numbers. */
const char *mgk_cl_error_name(cl_int code);

/* Appends "name: reason", without a name the reason, to a list of reasons: "...; ...". Truncates it to `size` bytes. */
void mgk_add_reason(char *reasons, size_t size, const char *name, const char *reason);

/* If a call fails: return its status, or set `status` and go to a clean-up label. */
#define MGK_TRY(call)                                                                                                  \
    do {                                                                                                               \
        const clmgk_status try_status_ = (call);                                                                       \
        if (try_status_ != CLMGK_OK)                                                                                   \
            return try_status_;                                                                                        \
    } while (0)
#define MGK_TRY_GOTO(status, call, label)                                                                              \
    do {                                                                                                               \
        (status) = (call);                                                                                             \
        if ((status) != CLMGK_OK)                                                                                      \
            goto label;                                                                                                \
    } while (0)

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* Zeroed memory from the allocator (NULL or all zero: malloc); NULL without memory and on overflow. */
void *mgk_alloc(const clmgk_allocator *allocator, size_t count, size_t size);
void mgk_free(const clmgk_allocator *allocator, void *memory);

/* Makes room for one more item in the array *items (mgk_free), which holds `count` items of `size` bytes and has room
 * for *capacity. False without memory: the array is unchanged. */
bool mgk_grow(const clmgk_allocator *allocator, void **items, size_t *capacity, size_t count, size_t size);

/* Growing text. After a failed allocation `failed` is set and all functions are no-ops. */
typedef struct mgk_text {
    const clmgk_allocator *allocator;
    char *data; /* NUL-terminated; NULL while empty */
    size_t length;
    size_t capacity;
    bool failed;
} mgk_text;

void mgk_text_append(mgk_text *text, const char *bytes, size_t length);
void mgk_text_printf(mgk_text *text, const char *format, ...) MGK_PRINTF(2, 3);
void mgk_text_free(mgk_text *text);

/* A copy of `string`; NULL without memory. */
char *mgk_strdup(const clmgk_allocator *allocator, const char *string);

/* Copies the public structure `source`, whose first member is its struct_size, to `target` of `size` bytes. Fields that
 * an older caller's structure lacks become zero. INVALID_VALUE, with `name` in the message, if struct_size is smaller
 * than `least` (the first version's size) or absurd, or if a newer caller's additional bytes are not all zero. */
clmgk_status mgk_struct_read(const void *source, const char *name, size_t least, void *target, size_t size,
                             clmgk_error *error);

/* The size of a structure that ends with `field`, as an older version did. */
#define MGK_SIZE_WITH(type, field) (offsetof(type, field) + sizeof(((type *)NULL)->field))

/* Checks a caller's output structure, or the first of a list of them: INVALID_VALUE, with `name` in the message, if it
 * is NULL or its struct_size is absurd or smaller than `least` (the first version's size). */
clmgk_status mgk_struct_room(const void *target, const char *name, size_t least, clmgk_error *error);

/* Copies the structure `source` of `size` bytes to element `index` of the caller's list (0 for a single structure), up
 * to the first element's struct_size. Fields that only the caller knows become zero. */
void mgk_struct_write(void *target, size_t index, const void *source, size_t size);

/* ---- arithmetic that reports overflow --------------------------------------------------------------------- */

/* Product and sum of non-negative numbers; false on overflow (then *out is not written). */
bool mgk_mul_i64(int64_t a, int64_t b, int64_t *out);
bool mgk_add_i64(int64_t a, int64_t b, int64_t *out);

/* ---- threads ---------------------------------------------------------------------------------------------- */

/* A mutex, and a condition of the data that it guards; both or none. */
typedef struct mgk_monitor {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} mgk_monitor;

clmgk_status mgk_monitor_init(mgk_monitor *monitor, clmgk_error *error);
void mgk_monitor_destroy(mgk_monitor *monitor);

/* Copies `size` bytes, of which `source` or `target` is guarded by the mutex. */
void mgk_monitor_copy(mgk_monitor *monitor, void *target, const void *source, size_t size);

/* Starts a thread that handles no signals of the process: these are the application's business. */
clmgk_status mgk_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument, clmgk_error *error);

/* ---- hashing ---------------------------------------------------------------------------------------------- */

typedef struct mgk_hash {
    uint64_t low, high;
} mgk_hash;

mgk_hash mgk_hash_bytes(const void *data, size_t length);

/* ---- time, environment, files ----------------------------------------------------------------------------- */

/* Milliseconds on a clock that never goes back. */
double mgk_now_ms(void);

/* The time of day, UTC: "2026-01-31T23:59:59Z"; needs 21 bytes. */
void mgk_utc_date(char *text, size_t size);

/* An environment variable; NULL if it is unset, or if the process has other rights than its caller: then the
 * environment must not choose code to load. */
const char *mgk_environment(const char *name);

/* Whether the type is one of CLMGK_CACHE_DTYPE_LIST. */
static inline bool mgk_is_cache_type(clmgk_dtype dtype)
{
    return (int)dtype >= (int)CLMGK_DTYPES;
}

/* Bits of a number that the type holds exactly, as a normal number or 0; and the number of bits. */
uint32_t mgk_encode(float x, const clmgk_dtype_info *type);
double mgk_decode(uint32_t bits, const clmgk_dtype_info *type);
/* Number i of an array of a type of 16 or 32 bits. */
void mgk_put_number(void *array, size_t i, float x, const clmgk_dtype_info *type);
double mgk_number(const void *array, size_t i, const clmgk_dtype_info *type);

/* Asks the operating system to let this process use the registers of AMX (Linux: arch_prctl). Repeated calls do no
 * harm. */
clmgk_status mgk_permit_tiles(clmgk_error *error);

/* A folder of the library: XDG's variable, its default below HOME, the library's folder in there, and a name for
 * messages. */
typedef struct mgk_root {
    const char *xdg, *home, *folder, *name;
} mgk_root;

/* Stores the folder's path in *path (mgk_free): below `cache_dir`, else below CLMGK_CACHE_DIR, else in XDG's place;
 * NULL: no files. */
clmgk_status mgk_root_path(const clmgk_allocator *allocator, const mgk_root *root, const char *cache_dir, char **path,
                           clmgk_error *error);

/* Loads a shared library by its SONAME and never unloads it. Stores the `count` functions of these names in *functions,
 * an array or structure of function pointers. UNSUPPORTED: there is no such library, or it lacks a function. */
clmgk_status mgk_library_load(const char *soname, const char *const *names, size_t count, void *functions,
                              clmgk_error *error);

/* Reads a whole file into *data (mgk_free). ERROR_IO if it is not a regular file or larger than max_bytes. */
clmgk_status mgk_file_read(const clmgk_allocator *allocator, const char *path, size_t max_bytes, char **data,
                           size_t *length, clmgk_error *error);

/*
 * A private folder is a directory, not a symbolic link, that belongs to the effective user and that nobody else may
 * enter; the same holds for its files. Its contents are as trustworthy as the user. A shipped folder, of an installed
 * application, may be a link, may belong to root, and may be read by everybody; reading changes nothing in it. A folder
 * that does not exist has `handle` -1 and reads as empty.
 */
typedef struct mgk_folder {
    int handle;
    bool shipped;
    const char *path; /* the caller's text, for messages */
} mgk_folder;

/* Opens the folder at `path`; `create` makes a missing folder and its parents (mode 0700; shipped: 0755 less the
 * umask). ERROR_IO, with the reason, if others may change the folder or, unless shipped, enter it. Close after
 * success. */
clmgk_status mgk_folder_open(const char *path, bool create, mgk_folder *folder, clmgk_error *error);
clmgk_status mgk_folder_open_shipped(const char *path, bool create, mgk_folder *folder, clmgk_error *error);
void mgk_folder_close(mgk_folder *folder);

/* Checks that the process can create files in a folder, private or not; with `make`, also in a missing folder that it
 * could make. ERROR_IO with the reason; for a missing folder, the obstacle above it. */
clmgk_status mgk_folder_check_writable(const char *path, bool make, clmgk_error *error);

/* Checks that the file system of the folder, or of the first existing folder above, has so many bytes left for this
 * user. ERROR_IO if not. */
clmgk_status mgk_folder_check_room(const char *path, uint64_t bytes, clmgk_error *error);

/* Reads a file into *data (mgk_free), NULL if there is none; `touch` sets its time to now in a private folder. ERROR_IO
 * if the file can't be read, is larger than max_bytes, or is not a regular file that belongs to the user (shipped: or
 * root) and that nobody else may write. */
clmgk_status mgk_folder_load(const mgk_folder *folder, const clmgk_allocator *allocator, const char *name,
                             size_t max_bytes, bool touch, char **data, size_t *length, clmgk_error *error);

/* Writes a file atomically: readers see all of it or nothing, also after a crash. After a failure (ERROR_IO) no file is
 * left. */
clmgk_status mgk_folder_write(const mgk_folder *folder, const char *name, const char *data, size_t length,
                              clmgk_error *error);

/* Removes a file; ERROR_IO if it still exists. */
clmgk_status mgk_folder_remove(const mgk_folder *folder, const char *name, clmgk_error *error);

typedef struct mgk_folder_entry {
    char name[64]; /* files with longer names are not listed */
    uint64_t bytes;
    int64_t modified_ns; /* since the epoch */
} mgk_folder_entry;

/* Lists, in no order, the folder's regular files for which `wanted` is true, in *entries (mgk_free). */
clmgk_status mgk_folder_list(const mgk_folder *folder, const clmgk_allocator *allocator,
                             bool (*wanted)(const char *name), mgk_folder_entry **entries, size_t *count,
                             clmgk_error *error);

/* Removes temporary files of crashed writers. */
void mgk_folder_remove_stale(const mgk_folder *folder, const clmgk_allocator *allocator);

/* Locks the folder against other processes and threads. Makes up to `attempts` attempts, 2 ms apart. -1: not obtained,
 * with the reason in `error`. */
int mgk_folder_lock(const mgk_folder *folder, int attempts, clmgk_error *error);
void mgk_folder_unlock(int lock);

#endif
