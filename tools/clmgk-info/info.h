/* SPDX-License-Identifier: Apache-2.0 */
/* clmgk-info: devices, what the library would use on each, and whether it computes rightly there. */
#ifndef INFO_H
#define INFO_H

#include "opencl.h"
#include "tool.h"

#include <jansson.h>

#define INFO_MAX_RESULTS 16

/* A variant on an engine of a device. */
typedef struct info_result {
    clmgk_variant variant;
    clmgk_engine engine;
    bool offered; /* the engine is, on this device */
    bool ok;
    double error; /* largest of O */
    double bound;
    char message[CLMGK_ERROR_MESSAGE_SIZE]; /* why it is not offered or not ok */
} info_result;

typedef struct info_selftest {
    info_result results[INFO_MAX_RESULTS];
    size_t count;
    bool ok;
} info_selftest;

/* A small problem of every variant on every engine, against the reference. */
tool_exit info_run_selftest(const clmgk_device_info *info, info_selftest *test, tool_error *error);

#endif
