/* SPDX-License-Identifier: Apache-2.0 */
/* Failure, memory, text, hashing and files: what every part of the library stands on. Operating-system calls live
 * in src/base only. Internal names begin with mgk_. */
#ifndef MGK_BASE_H
#define MGK_BASE_H

#include "clmgk/context.h"
#include "clmgk/status.h"

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

/* Records a failure in `error` (may be NULL) and returns `status`. The message names field, value, expectation. */
clmgk_status mgk_fail(clmgk_error *error, clmgk_status status, const char *format, ...) MGK_PRINTF(3, 4);

/* The same for a failed OpenCL call: CL_OUT_OF_* become OUT_OF_*_MEMORY, everything else ERROR_OPENCL.
 * `call` is the function's name. */
clmgk_status mgk_fail_cl(clmgk_error *error, cl_int code, const char *call);

/* Any status with an OpenCL code; and no memory for `what`. */
clmgk_status mgk_fail_code(clmgk_error *error, clmgk_status status, cl_int code, const char *format, ...)
    MGK_PRINTF(4, 5);
clmgk_status mgk_fail_memory(clmgk_error *error, const char *what);

/* Name of an OpenCL error code ("CL_INVALID_VALUE"), "unknown OpenCL error" if not known. */
const char *mgk_cl_error_name(cl_int code);

/* Return at once, or go to a clean-up label with `status` set, when a step fails. */
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

/* Zeroed memory from the allocator (NULL or all zero: malloc); NULL when there is none or bytes overflowed. */
void *mgk_alloc(const clmgk_allocator *allocator, size_t count, size_t size);
void mgk_free(const clmgk_allocator *allocator, void *memory);

/* Makes room for one more item of `size` bytes after `count` of them in the array *items (mgk_free) of *capacity.
 * False without memory: the array is as it was. */
bool mgk_grow(const clmgk_allocator *allocator, void **items, size_t *capacity, size_t count, size_t size);

/* Growing text. All functions are no-ops after a failed allocation, which `failed` tells. */
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

/* A copy of `string`; NULL when there is no memory. */
char *mgk_strdup(const clmgk_allocator *allocator, const char *string);

/* Copies the public structure `source`, whose first member is its struct_size, to `target` of `size` bytes. What an
 * older caller's structure lacks becomes zero. INVALID_VALUE, with `name` in the message, if struct_size is smaller
 * than `least` (the first version's size) or absurd, or if a newer caller's additional bytes are not all zero. */
clmgk_status mgk_struct_read(const void *source, const char *name, size_t least, void *target, size_t size,
                             clmgk_error *error);

/* ---- arithmetic that tells overflow ----------------------------------------------------------------------- */

/* Product and sum of non-negative numbers; false on overflow (then *out is not written). */
bool mgk_mul_i64(int64_t a, int64_t b, int64_t *out);
bool mgk_add_i64(int64_t a, int64_t b, int64_t *out);

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

/* An environment variable; NULL if it is unset, or if the process runs with another user's rights than its caller's
 * (then the environment must not choose which code is loaded). */
const char *mgk_environment(const char *name);

/* A shared library by its SONAME, which stays in the process; NULL if there is none. A handle is closed all the same.
 */
void *mgk_library_open(const char *name);
void mgk_library_close(void *library); /* NULL: nothing */

/* The function `name` of a library into *function, a pointer to a function of `size` bytes. False if there is none. */
bool mgk_library_function(void *library, const char *name, void *function, size_t size);

/* A whole file into *data (mgk_free), refusing anything that is not a regular file or is larger than max_bytes. */
clmgk_status mgk_file_read(const clmgk_allocator *allocator, const char *path, size_t max_bytes, char **data,
                           size_t *length, clmgk_error *error);

/*
 * A private folder: a directory that belongs to the effective user and that nobody else may enter, reached without
 * following a symbolic link in its place, and everything in it likewise. What is read from it can be trusted as far
 * as the user can. `handle` is -1 for a folder that does not exist: it reads as empty.
 */
typedef struct mgk_folder {
    int handle;
} mgk_folder;

/* Opens the folder at `path`; with `create` it is made where absent (0700, its parents too). ERROR_IO with the reason
 * if it is not private. To be closed after success. */
clmgk_status mgk_folder_open(const char *path, bool create, mgk_folder *folder, clmgk_error *error);
void mgk_folder_close(mgk_folder *folder);

/* Whether files can be made in any folder, private or not. */
bool mgk_folder_is_writable(const char *path);

/* The file's bytes into *data (mgk_free), and its time set to now. False if there is none, it is not a regular file
 * of the user's that nobody else may write, or it is larger than max_bytes. */
bool mgk_folder_read(const mgk_folder *folder, const clmgk_allocator *allocator, const char *name, size_t max_bytes,
                     char **data, size_t *length);

/* The file's bytes into *data (mgk_free); NULL if there is none. A file that can't be read, or that somebody else may
 * write, is an error. */
clmgk_status mgk_folder_load(const mgk_folder *folder, const clmgk_allocator *allocator, const char *name,
                             size_t max_bytes, char **data, size_t *length, clmgk_error *error);

/* Writes a file so that readers see all of it or nothing, after a crash too. False if it could not: nothing is left. */
bool mgk_folder_write(const mgk_folder *folder, const char *name, const char *data, size_t length);

/* Removes a file; false if it is still there. */
bool mgk_folder_remove(const mgk_folder *folder, const char *name);

typedef struct mgk_folder_entry {
    char name[64]; /* files with longer names are not listed */
    uint64_t bytes;
    int64_t modified_ns; /* since the epoch */
} mgk_folder_entry;

/* The regular files of the folder for which `wanted` holds, in no order, into *entries (mgk_free). */
clmgk_status mgk_folder_list(const mgk_folder *folder, const clmgk_allocator *allocator,
                             bool (*wanted)(const char *name), mgk_folder_entry **entries, size_t *count,
                             clmgk_error *error);

/* Removes what writers that crashed have left behind. */
void mgk_folder_remove_stale(const mgk_folder *folder, const clmgk_allocator *allocator);

/* A lock among processes and threads on the folder, waited for a tenth of a second at most. -1: not obtained. */
int mgk_folder_lock(const mgk_folder *folder);
void mgk_folder_unlock(int lock);

#endif
