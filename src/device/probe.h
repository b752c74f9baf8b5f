/* SPDX-License-Identifier: Apache-2.0 */
/* Probe kernels, which find facts that drivers do not state. */
#ifndef MGK_PROBE_H
#define MGK_PROBE_H

#include "device/device.h"

/* A kernel with one argument, an array of `bytes` bytes that it fills. */
typedef struct mgk_probe {
    const char *file, *kernel;
    size_t items, group; /* work-items, and of a work-group */
    size_t bytes;
    bool (*is_right)(const void *results); /* NULL: the caller looks at them */
} mgk_probe;

/* Builds the kernel with compiler options `options`, runs it, waits for it, and reads its array. Fails, UNSUPPORTED, if
 * the array is wrong. */
clmgk_status mgk_probe_run(clmgk_context *context, const mgk_probe *probe, const char *options, void *out,
                           clmgk_error *error);

#endif
