/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fputs("listops: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

int status_of(const clmgk_error *error)
{
    switch (error->status) {
    case CLMGK_ERROR_INVALID_VALUE:
    case CLMGK_ERROR_INVALID_SHAPE:
    case CLMGK_ERROR_OVERFLOW:
        return EXIT_USAGE;
    case CLMGK_ERROR_OUT_OF_HOST_MEMORY:
        return EXIT_SYSTEM;
    default:
        return EXIT_DEVICE;
    }
}

void check_opencl(cl_int code, const char *call)
{
    if (code != CL_SUCCESS) {
        fail(EXIT_DEVICE, "%s: OpenCL error %d", call, (int)code);
    }
}

void *allocate(size_t count, size_t size)
{
    void *const memory = calloc(count, size);
    if (memory == NULL) {
        fail(EXIT_SYSTEM, "out of memory");
    }
    return memory;
}

double now_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- device ------------------------------------------------------------------------------------------------------ */

void device_open(device *d, const char *selector)
{
    cl_int code = CL_SUCCESS;
    *d = (device){.info = CLMGK_DEVICE_INFO_INIT};
    TRY(clmgk_select_device(selector, &d->info, &error));
    d->context = clCreateContext(NULL, 1, &d->info.device_id, NULL, NULL, &code);
    check_opencl(code, "clCreateContext");
    d->queue = clCreateCommandQueue(d->context, d->info.device_id, 0, &code);
    check_opencl(code, "clCreateCommandQueue");
    TRY(clmgk_context_create(d->context, d->info.device_id, NULL, &d->clmgk, &error));
}

void device_close(device *d)
{
    clmgk_context_release(d->clmgk);
    CL(clReleaseCommandQueue(d->queue));
    CL(clReleaseContext(d->context));
}

clmgk_buffer device_buffer(device *d, size_t bytes)
{
    const cl_uchar zero = 0;
    cl_int code = CL_SUCCESS;
    if (bytes == 0) {
        return (clmgk_buffer){NULL, 0};
    }
    const cl_mem memory = clCreateBuffer(d->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    check_opencl(code, "clCreateBuffer");
    CL(clEnqueueFillBuffer(d->queue, memory, &zero, 1, 0, bytes, 0, NULL, NULL));
    d->bytes += bytes;
    return (clmgk_buffer){memory, 0};
}

void device_release(clmgk_buffer buffer)
{
    if (buffer.memory) {
        CL(clReleaseMemObject(buffer.memory));
    }
}

void device_write(const device *d, clmgk_buffer buffer, size_t bytes, const void *data)
{
    CL(clEnqueueWriteBuffer(d->queue, buffer.memory, CL_TRUE, buffer.offset * sizeof(float), bytes, data, 0, NULL,
                            NULL));
}

void device_read(const device *d, clmgk_buffer buffer, size_t bytes, void *data)
{
    CL(clEnqueueReadBuffer(d->queue, buffer.memory, CL_TRUE, buffer.offset * sizeof(float), bytes, data, 0, NULL,
                           NULL));
}

/* ---- output files ------------------------------------------------------------------------------------------------ */

static _Noreturn void output_fail(output *o, const char *step)
{
    const int code = errno;
    (void)unlink(o->temporary);
    fail(EXIT_SYSTEM, "%s: cannot %s: %s", o->path, step, strerror(code));
}

output output_open(const char *path)
{
    output o = {.path = allocate(strlen(path) + 1, 1), .temporary = allocate(strlen(path) + 5, 1)};
    (void)strcpy(o.path, path);
    (void)strcat(strcpy(o.temporary, path), ".tmp");
    (void)unlink(o.temporary);            /* of a run that was killed, or somebody's link, which must not be followed */
    o.stream = fopen(o.temporary, "wbx"); /* "x": a new file */
    if (o.stream == NULL) {
        output_fail(&o, "create it");
    }
    return o;
}

void output_write(output *o, const void *data, size_t bytes)
{
    if (fwrite(data, 1, bytes, o->stream) != bytes) {
        output_fail(o, "write it");
    }
}

void output_commit(output *o)
{
    if (ferror(o->stream) || fflush(o->stream) != 0 || fsync(fileno(o->stream)) != 0) {
        output_fail(o, "write it");
    }
    if (fclose(o->stream) != 0 || rename(o->temporary, o->path) != 0) {
        output_fail(o, "put it in its place");
    }
    free(o->path);
    free(o->temporary);
    *o = (output){0};
}
