/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guard-page layer, for devices that work in host memory: every buffer lies between two inaccessible pages, its end
 * at the second one, and is filled with 0xFF. An overrun of 16 bytes or more is a SIGSEGV at once, smaller ones and
 * underruns are found when the buffer is released (abort), and an element that is never written reads as NaN.
 * A program whose build log holds a warning is an error, too (abort): PoCL prints the number of warnings to stderr.
 */
#include "layer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILL 0xFF
/* Buffers begin at multiples of this, because drivers copy host memory with a smaller alignment. */
#define ALIGNMENT ((size_t)16)

const char layer_name[] = "guard layer";

typedef struct guarded {
    unsigned char *region;
    size_t region_size;
    unsigned char *data;
    size_t size;
    size_t page;
} guarded;

static guarded *guarded_new(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (size > SIZE_MAX / 2)
        return NULL;
    const size_t used = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t room = (used + page - 1) / page * page;
    guarded *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL)
        return NULL;
    buffer->page = page;
    buffer->size = size;
    buffer->region_size = room + 2 * page;
    void *region = mmap(NULL, buffer->region_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED)
        goto no_region;
    buffer->region = region;
    if (mprotect(buffer->region + page, room, PROT_READ | PROT_WRITE) != 0)
        goto no_access;
    buffer->data = buffer->region + page + room - used;
    memset(buffer->region + page, FILL, room);
    return buffer;
no_access:
    (void)munmap(region, buffer->region_size);
no_region:
    free(buffer);
    return NULL;
}

static void require_filled(const unsigned char *begin, const unsigned char *end, const char *side)
{
    for (const unsigned char *byte = begin; byte < end; byte++) {
        if (*byte != FILL) {
            (void)fprintf(stderr, "%s: a byte %s a buffer was written\n", layer_name, side);
            abort();
        }
    }
}

static void guarded_check(const guarded *buffer)
{
    require_filled(buffer->region + buffer->page, buffer->data, "before");
    require_filled(buffer->data + buffer->size, buffer->region + buffer->region_size - buffer->page, "behind");
}

static void guarded_free(guarded *buffer)
{
    (void)munmap(buffer->region, buffer->region_size);
    free(buffer);
}

static void CL_CALLBACK on_release(cl_mem memory, void *user)
{
    (void)memory;
    guarded_check(user);
    guarded_free(user);
}

static cl_mem CL_API_CALL guard_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host_ptr,
                                               cl_int *errcode_ret)
{
    if ((flags & CL_MEM_USE_HOST_PTR) != 0 || size == 0)
        return layer_next.clCreateBuffer(context, flags, size, host_ptr, errcode_ret);
    cl_int code = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    cl_mem memory = NULL;
    guarded *buffer = guarded_new(size);
    if (buffer == NULL)
        goto done;
    if ((flags & CL_MEM_COPY_HOST_PTR) != 0 && host_ptr != NULL)
        memcpy(buffer->data, host_ptr, size);
    const cl_mem_flags kept = flags & ~(cl_mem_flags)(CL_MEM_COPY_HOST_PTR | CL_MEM_ALLOC_HOST_PTR);
    memory = layer_next.clCreateBuffer(context, kept | CL_MEM_USE_HOST_PTR, size, buffer->data, &code);
    if (memory == NULL) {
        guarded_free(buffer);
        goto done;
    }
    code = layer_next.clSetMemObjectDestructorCallback(memory, on_release, buffer);
    if (code != CL_SUCCESS) {
        (void)layer_next.clReleaseMemObject(memory);
        guarded_free(buffer);
        memory = NULL;
    }
done:
    if (errcode_ret != NULL)
        *errcode_ret = code;
    return memory;
}

static void require_no_warning(cl_program program, cl_device_id device)
{
    const cl_program_build_info parameter = CL_PROGRAM_BUILD_LOG;
    size_t size = 0;
    if (layer_next.clGetProgramBuildInfo(program, device, parameter, 0, NULL, &size) != CL_SUCCESS)
        return;
    char *const log = calloc(size + 1, 1);
    if (log != NULL && layer_next.clGetProgramBuildInfo(program, device, parameter, size, log, NULL) == CL_SUCCESS &&
        strstr(log, "warning") != NULL) {
        (void)fprintf(stderr, "%s: a program is compiled with a warning: %s\n", layer_name, log);
        abort();
    }
    free(log);
}

static cl_int CL_API_CALL guard_clBuildProgram(cl_program program, cl_uint devices, const cl_device_id *device_list,
                                               const char *options, void(CL_CALLBACK *on_build)(cl_program, void *),
                                               void *user)
{
    const cl_int code = layer_next.clBuildProgram(program, devices, device_list, options, on_build, user);
    if (code == CL_SUCCESS && devices == 1)
        require_no_warning(program, device_list[0]);
    return code;
}

void layer_install(cl_icd_dispatch *table)
{
    table->clCreateBuffer = guard_clCreateBuffer;
    table->clBuildProgram = guard_clBuildProgram;
}
