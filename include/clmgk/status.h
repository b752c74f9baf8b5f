/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes and error records.
 *
 * Every function that can fail returns a clmgk_status. Its last argument is a clmgk_error record that the caller owns;
 * it may be NULL. Success leaves the record unchanged. Failure writes the status, the OpenCL code (if an OpenCL call
 * failed) and one line that names the field, its value and the expected value. The library never prints, never aborts,
 * and keeps no global "last error".
 */
#ifndef CLMGK_STATUS_H
#define CLMGK_STATUS_H

#include "export.h"

#include <stdint.h>

/* X(NAME, value, "meaning"). Values are pinned: they never change and are never reused. */
#define CLMGK_STATUS_LIST(X)                                                                                           \
    X(OK, 0, "success")                                                                                                \
    X(ERROR_INVALID_VALUE, 1, "a field or argument has a value outside its range")                                     \
    X(ERROR_INVALID_SHAPE, 2, "axes or strides do not fit each other")                                                 \
    X(ERROR_INVALID_BUFFER, 3, "a buffer is missing, too small, of another context, or shares elements of an output")  \
    X(ERROR_UNSUPPORTED, 4, "legal, but not offered on this device or in this version")                                \
    X(ERROR_OVERFLOW, 5, "a product of sizes does not fit")                                                            \
    X(ERROR_NO_DEVICE, 6, "no usable OpenCL device, or none matches")                                                  \
    X(ERROR_OUT_OF_HOST_MEMORY, 7, "out of host memory")                                                               \
    X(ERROR_OUT_OF_DEVICE_MEMORY, 8, "out of device memory or resources")                                              \
    X(ERROR_OPENCL, 9, "an OpenCL call failed")                                                                        \
    X(ERROR_COMPILE, 10, "a kernel failed to compile")                                                                 \
    X(ERROR_IO, 11, "a file could not be read or written")                                                             \
    X(ERROR_INTERNAL, 12, "a bug in the library")                                                                      \
    X(ERROR_CANCELLED, 13, "cancelled before it was begun")                                                            \
    X(ERROR_CUDA, 14, "a call of CUDA's driver failed")                                                                \
    X(ERROR_COMMUNICATION, 15, "another rank did not answer, gave up, or sent something else (clmgk/dist.h)")

typedef enum clmgk_status {
#define CLMGK_STATUS_ENUM(name, value, text) CLMGK_##name = (value),
    CLMGK_STATUS_LIST(CLMGK_STATUS_ENUM)
#undef CLMGK_STATUS_ENUM
} clmgk_status;

#define CLMGK_ERROR_MESSAGE_SIZE 1024

/* An error record, owned by the caller. All zero: no error. */
typedef struct clmgk_error {
    clmgk_status status;
    int32_t opencl_code;                    /* error code of the OpenCL call that failed, else 0 */
    char message[CLMGK_ERROR_MESSAGE_SIZE]; /* one line, NUL-terminated; may be truncated */
} clmgk_error;

/* Name of a status, "ERROR_INVALID_VALUE"; "unknown" for a value not in the list. Never NULL. */
CLMGK_API const char *clmgk_status_name(clmgk_status status);

/* Stores the status that has a name; INVALID_VALUE if there is none. */
CLMGK_API clmgk_status clmgk_status_from_name(const char *name, clmgk_status *status, clmgk_error *error);

/* Meaning of a status, from CLMGK_STATUS_LIST; "unknown status" for a value not in the list. Never NULL. */
CLMGK_API const char *clmgk_status_text(clmgk_status status);

#endif
