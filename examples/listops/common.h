/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all files of the example: failures, the device, output files. */
#ifndef LISTOPS_COMMON_H
#define LISTOPS_COMMON_H

#define CL_TARGET_OPENCL_VERSION 120
#include <clmgk/clmgk.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Statuses of the program's end. */
enum { EXIT_DONE = 0, EXIT_CHECK = 1, EXIT_USAGE = 2, EXIT_DEVICE = 3, EXIT_SYSTEM = 4 };

/* Prints a line on stderr and ends the program. */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A call of libclmgk whose last argument is &error; a call of OpenCL; an allocation. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        clmgk_error error = {0};                                                                                       \
        if ((call) != CLMGK_OK) {                                                                                      \
            fail(status_of(&error), "%s", error.message);                                                              \
        }                                                                                                              \
    } while (0)
#define CL(call) check_opencl((call), #call)

int status_of(const clmgk_error *error);
void check_opencl(cl_int code, const char *call);
void *allocate(size_t count, size_t size); /* zeroed */

double now_seconds(void);

/* ---- device ------------------------------------------------------------------------------------------------------ */

typedef struct device {
    clmgk_device_info info;
    cl_context context;
    cl_command_queue queue; /* in order */
    clmgk_context *clmgk;
    uint64_t bytes; /* of all buffers made so far */
} device;

/* `selector` as clmgk_select_device has it. */
void device_open(device *d, const char *selector);
void device_close(device *d);

clmgk_buffer device_buffer(device *d, size_t bytes); /* zeroed; of 0 bytes: none */
void device_release(clmgk_buffer buffer);
void device_write(const device *d, clmgk_buffer buffer, size_t bytes, const void *data); /* offset in floats */
void device_read(const device *d, clmgk_buffer buffer, size_t bytes, void *data);

/* ---- output files ------------------------------------------------------------------------------------------------ */

/* A file that appears whole or not at all: it is written under another name beside its place, synchronised and renamed.
 * If anything fails (a full disk, say), that other file is removed, the older one stays, and the program ends. */
typedef struct output {
    FILE *stream;
    char *path, *temporary;
} output;

output output_open(const char *path);
void output_write(output *o, const void *data, size_t bytes);
void output_commit(output *o);

#endif
