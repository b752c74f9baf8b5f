/* SPDX-License-Identifier: Apache-2.0 */
/* The device a program works on, with its context and queue. */
#ifndef TOOL_OPENCL_H
#define TOOL_OPENCL_H

#include "tool.h"

typedef struct tool_device {
    clmgk_device_info info;
    cl_context context;
    cl_command_queue queue; /* in order, with profiling */
    clmgk_context *library;
} tool_device;

/* Opens the device that `selector` names (NULL: the default). On failure `device` holds nothing. */
tool_exit tool_device_open(const char *selector, tool_device *device, tool_error *error);

/* The same for a device of clmgk_list_devices. */
tool_exit tool_device_open_info(const clmgk_device_info *info, tool_device *device, tool_error *error);

/* The devices of a program's options into *infos (free): the one that `selector` names (NULL: the default), or all. */
tool_exit tool_list_devices(const char *selector, bool all, clmgk_device_info **infos, size_t *count,
                            tool_error *error);

/* Releases what `device` holds, except its OpenCL context; a zeroed one holds nothing. */
void tool_device_close(tool_device *device);

/* A pass of a plan, timed on the host's clock from the enqueue to the end of clFinish. */
tool_exit tool_time_pass(const tool_device *device, clmgk_plan *plan, clmgk_pass pass, const clmgk_attention_args *args,
                         double *milliseconds, tool_error *error);

/* Milliseconds on a clock that never goes back. */
double tool_now_ms(void);

/* Median, smallest and largest of `count` >= 1 numbers, which are sorted in place. */
typedef struct tool_spread {
    double median, min, max;
} tool_spread;
tool_spread tool_spread_of(double *numbers, size_t count);

/* A buffer of `bytes` bytes (at least one) that holds `values`, or whatever there is (NULL). */
tool_exit tool_make_buffer(const tool_device *device, size_t bytes, const void *values, cl_mem *buffer,
                           tool_error *error);

/* NULL is allowed. */
void tool_release_buffer(cl_mem buffer);

/* Bytes of an array in a buffer; OpenCL has no buffers of 0 bytes. */
size_t tool_buffer_bytes(size_t elements, size_t element_size);

#endif
