/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_probe: what tools/gpu-check.sh asks of a device that nobody has tried. Each answer is one line of JSON, appended
 * to a file at once: the next question may end the process, or the loan of the device.
 */
#ifndef CLMGK_TEST_GPU_PROBE_H
#define CLMGK_TEST_GPU_PROBE_H

#include "opencl.h"

typedef struct probe_context {
    tool_device device;
    const char *output; /* file of the answers */
    const char *folder; /* where binaries are written; NULL: they are not */
    int64_t bytes;      /* of the buffer that is read; 0: as the device has room, 1 GiB at most */
} probe_context;

/* Appends `answer`, takes its reference; NULL: out of memory. The line is on the disk afterwards. */
tool_exit probe_append(const probe_context *probe, json_t *answer, tool_error *error);

/* A program with its build log (free); `code` is what the driver said, `seconds` what it took. */
typedef struct probe_program {
    cl_program program;
    cl_int code;
    double seconds;
    char *log;
} probe_program;
probe_program probe_build(const probe_context *probe, const char *text, const char *options);
void probe_release(probe_program *program);

/* "CL_SUCCESS" or the number of another code. */
json_t *probe_code(cl_int code);

/* The program's binary, zero-terminated (free); NULL: the driver gives none. */
char *probe_binary(cl_program program, size_t *size);

/* One fact, and the names of all. */
tool_exit probe_fact(const probe_context *probe, const char *name, tool_error *error);
void probe_list_facts(void);

/* The lines of tests/offline/configurations.txt in the file `list`, built one after another. */
tool_exit probe_builds(const probe_context *probe, const char *list, tool_error *error);

/* Rates of reading rows of 64 floats, by who reads what. */
tool_exit probe_patterns(const probe_context *probe, tool_error *error);

#endif
