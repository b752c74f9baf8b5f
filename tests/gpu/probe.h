/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_probe: the questions of tools/gpu-check.sh about a new device. Each answer is one line of JSON, which is appended
 * to a file at once, because the next question may end the process, or the loan of the device may end.
 */
#ifndef CLMGK_TEST_GPU_PROBE_H
#define CLMGK_TEST_GPU_PROBE_H

#include "opencl.h"

typedef struct probe_context {
    tool_device device;
    const char *output; /* file of the answers */
    const char *folder; /* where binaries are written; NULL: they are not */
    int64_t bytes;      /* size of the buffer that is read; 0: by the device's memory, at most 1 GiB */
} probe_context;

/* Appends `answer` (NULL: out of memory) and takes its reference. Then the line is on the disk. */
tool_exit probe_append(const probe_context *probe, json_t *answer, tool_error *error);

/* A program with its build log (free), the driver's `code` and the time of the build in `seconds`. */
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

/* Builds configurations, lines of offline_plans in the file `list`, one after another. */
tool_exit probe_builds(const probe_context *probe, const char *list, tool_error *error);

/* Rates of reading rows of 64 floats, for several patterns of access. */
tool_exit probe_patterns(const probe_context *probe, tool_error *error);

#endif
