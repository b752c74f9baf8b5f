/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the examples in C: checks of calls, and the OpenCL objects that a program of yours already has. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#define CL_TARGET_OPENCL_VERSION 120
#include <clmgk/clmgk.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program. A program of yours may rather return the status. */
static inline void check(int passed, const char *file, int line, const char *message)
{
    if (!passed) {
        (void)fprintf(stderr, "%s:%d: %s\n", file, line, message);
        exit(1);
    }
}

/* A call of libclmgk whose last argument is &error; a code of OpenCL; a condition. */
#define TRY(call)         check((call) == CLMGK_OK, __FILE__, __LINE__, error.message)
#define CL(code)          check((code) == CL_SUCCESS, __FILE__, __LINE__, #code)
#define EXPECT(condition) check((condition), __FILE__, __LINE__, #condition)

typedef struct device {
    cl_context context;
    cl_device_id id;
    clmgk_context *clmgk; /* libclmgk's side of the context: facts of the device, compiled programs */
} device;

/* The device that CLMGK_DEVICE names, else the first GPU, else the first CPU. */
static inline device open_device(void)
{
    clmgk_error error = {0};
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    cl_int code;
    TRY(clmgk_select_device(NULL, &info, &error));
    device d = {.id = info.device_id};
    d.context = clCreateContext(NULL, 1, &d.id, NULL, NULL, &code);
    CL(code);
    TRY(clmgk_context_create(d.context, d.id, NULL, &d.clmgk, &error));
    return d;
}

static inline void close_device(device d)
{
    clmgk_context_release(d.clmgk);
    CL(clReleaseContext(d.context));
}

static inline cl_command_queue open_queue(device d)
{
    cl_int code;
    const cl_command_queue queue = clCreateCommandQueue(d.context, d.id, 0, &code);
    CL(code);
    return queue;
}

/* A buffer of bytes > 0; `data`, if not NULL, is copied to it. */
static inline clmgk_buffer new_buffer(device d, size_t bytes, const void *data)
{
    cl_int code;
    const cl_mem_flags flags = CL_MEM_READ_WRITE | (data ? CL_MEM_COPY_HOST_PTR : 0);
    const cl_mem memory = clCreateBuffer(d.context, flags, bytes, (void *)data, &code);
    CL(code);
    return (clmgk_buffer){memory, 0};
}

/* Working memory of one call at a time; plans of some forward passes need none. */
static inline clmgk_buffer new_workspace(device d, const clmgk_plan *plan)
{
    const size_t bytes = clmgk_plan_workspace_size(plan);
    return bytes > 0 ? new_buffer(d, bytes, NULL) : (clmgk_buffer){NULL, 0};
}

static inline void read_buffer(cl_command_queue queue, clmgk_buffer buffer, size_t bytes, void *data)
{
    CL(clEnqueueReadBuffer(queue, buffer.memory, CL_TRUE, 0, bytes, data, 0, NULL, NULL));
}

static inline void write_buffer(cl_command_queue queue, clmgk_buffer buffer, size_t offset, size_t bytes,
                                const void *data)
{
    CL(clEnqueueWriteBuffer(queue, buffer.memory, CL_TRUE, offset, bytes, data, 0, NULL, NULL));
}

/* All arrays of a call. */
static inline void release_buffers(clmgk_attention_args *args)
{
    for (int array = 0; array < CLMGK_ARRAYS; ++array) {
        const clmgk_buffer *const buffer = clmgk_array_buffer(args, (clmgk_array)array);
        if (buffer->memory) {
            CL(clReleaseMemObject(buffer->memory));
        }
    }
}

/* Numbers in -1 .. 1, the same in every run. */
static inline void fill(float *x, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; ++i) {
        seed = seed * 1664525U + 1013904223U;
        x[i] = (float)(seed >> 8) / 8388608.0F - 1.0F;
    }
}

#endif
