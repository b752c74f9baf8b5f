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
#define MGK_PRINTF(format, first) __attribute__((format(printf, format, first)))
#else
#define MGK_PRINTF(format, first)
#endif

#define MGK_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- failure ---------------------------------------------------------------------------------------------- */

/* Records a failure in `error` (may be NULL) and returns `status`. The message names field, value, expectation. */
clmgk_status mgk_fail(clmgk_error *error, clmgk_status status, const char *format, ...) MGK_PRINTF(3, 4);

/* The same for a failed OpenCL call: CL_OUT_OF_* become OUT_OF_*_MEMORY, everything else ERROR_OPENCL.
 * `call` is the function's name. */
clmgk_status mgk_fail_cl(clmgk_error *error, cl_int code, const char *call);

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

/* Zeroed memory from the allocator (all-zero allocator: malloc); NULL when there is none or bytes overflowed. */
void *mgk_alloc(const clmgk_allocator *allocator, size_t count, size_t size);
void mgk_free(const clmgk_allocator *allocator, void *memory);

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

/* A whole file into *data (mgk_free), refusing anything that is not a regular file or is larger than max_bytes. */
clmgk_status mgk_file_read(const clmgk_allocator *allocator, const char *path, size_t max_bytes, char **data,
                           size_t *length, clmgk_error *error);

#endif
