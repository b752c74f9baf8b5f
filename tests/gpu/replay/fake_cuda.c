/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver for the test of gpu_replay: memory is the host's; a launch adds its number of work-groups to the first
 * 32-bit word of each buffer and prints its arguments. The environment variable FAKE_CUDA_REFUSES names a function that
 * fails, and a program that holds "refused" is not taken.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { DONE, FAILED = 999, PARAMETERS = 3, MULTIPROCESSORS = 4, RESIDENT = 2 };

static int answer(const char *name)
{
    const char *const refused = getenv("FAKE_CUDA_REFUSES");
    return refused && strcmp(refused, name) == 0 ? FAILED : DONE;
}

#define SIMPLE(name, parameters)                                                                                       \
    EXPORT int name parameters;                                                                                        \
    EXPORT int name parameters                                                                                         \
    {                                                                                                                  \
        return answer(#name);                                                                                          \
    }

SIMPLE(cuInit, (unsigned flags __attribute__((unused))))
SIMPLE(cuDevicePrimaryCtxRelease, (int device __attribute__((unused))))
SIMPLE(cuCtxSetCurrent, (void *context __attribute__((unused))))
SIMPLE(cuCtxSynchronize, (void))
SIMPLE(cuModuleUnload, (void *module __attribute__((unused))))
SIMPLE(cuEventDestroy_v2, (void *event __attribute__((unused))))
SIMPLE(cuEventRecord, (void *event __attribute__((unused)), void *stream __attribute__((unused))))

static int give(const char *name, void **out)
{
    static int object;
    *out = &object;
    return answer(name);
}

static int number(const char *name, int *out, int value)
{
    *out = value;
    return answer(name);
}

EXPORT int cuDeviceGet(int *device, int which);
EXPORT int cuDeviceGet(int *device, int which)
{
    return number("cuDeviceGet", device, which);
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return number("cuDeviceGetAttribute", value, attribute == 16 && device == 0 ? MULTIPROCESSORS : -1);
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    return give("cuDevicePrimaryCtxRetain", context);
}

EXPORT int cuModuleLoadDataEx(void **module, const char *image, unsigned count, const int *options, void **values);
EXPORT int cuModuleLoadDataEx(void **module, const char *image, unsigned count, const int *options, void **values)
{
    size_t size = 0;
    (void)fprintf(stderr, "program: %s\n", image);
    if (!strstr(image, "refused"))
        return give("cuModuleLoadDataEx", module);
    if (count == 2 && options[0] == 5 && options[1] == 6) {
        memcpy(&size, &values[1], sizeof(size));
        (void)snprintf(values[0], size, "ptxas says no");
    }
    return FAILED;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name);
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    (void)fprintf(stderr, "kernel: %s\n", name);
    return give("cuModuleGetFunction", function);
}

/* Registers, bytes of the stack, of local memory: 100 and the attribute's number. */
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function);
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    (void)function;
    return number("cuFuncGetAttribute", value, 100 + attribute);
}

EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *groups, void *function, int items, size_t bytes);
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *groups, void *function, int items, size_t bytes)
{
    (void)function;
    return number("cuOccupancyMaxActiveBlocksPerMultiprocessor", groups, items == 64 && bytes == 0 ? RESIDENT : -1);
}

EXPORT int cuMemAlloc_v2(unsigned long long *memory, size_t size);
EXPORT int cuMemAlloc_v2(unsigned long long *memory, size_t size)
{
    *memory = (unsigned long long)(size_t)malloc(size);
    return answer("cuMemAlloc_v2");
}

EXPORT int cuMemFree_v2(unsigned long long memory);
EXPORT int cuMemFree_v2(unsigned long long memory)
{
    free((void *)(size_t)memory);
    return answer("cuMemFree_v2");
}

EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size);
EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size)
{
    memcpy((void *)(size_t)to, from, size);
    return answer("cuMemcpyHtoD_v2");
}

EXPORT int cuEventCreate(void **event, unsigned flags);
EXPORT int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    return give("cuEventCreate", event);
}

/* Each launch takes half as long as the one before. */
EXPORT int cuEventElapsedTime(float *ms, void *start, void *end);
EXPORT int cuEventElapsedTime(float *ms, void *start, void *end)
{
    static float next = 2.0f;
    (void)start;
    (void)end;
    *ms = next /= 2.0f;
    return answer("cuEventElapsedTime");
}

/* NOLINTBEGIN(readability-function-size): CUDA's parameters */
/* The test's kernel takes a value of eight bytes, a buffer, and a buffer that is NULL. */
EXPORT int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned items_x, unsigned items_y,
                          unsigned items_z, unsigned bytes, void *stream, void **arguments, void **extra);
EXPORT int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned items_x, unsigned items_y,
                          unsigned items_z, unsigned bytes, void *stream, void **arguments, void **extra)
{
    unsigned long long value[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++)
        memcpy(&value[i], arguments[i], sizeof(value[i]));
    unsigned *const buffer = (unsigned *)(size_t)value[1];
    *buffer += x * y * z;
    (void)function;
    (void)stream;
    (void)fprintf(stderr, "launch: %u %u %u of %u %u %u, %u bytes, value %llu, buffer %u, %s %s\n", x, y, z, items_x,
                  items_y, items_z, bytes, value[0], *buffer, value[2] ? "memory" : "NULL", extra ? "extra" : "");
    return answer("cuLaunchKernel");
}
/* NOLINTEND(readability-function-size) */

EXPORT int cuGetErrorString(int code, const char **text);
EXPORT int cuGetErrorString(int code, const char **text)
{
    *text = code == FAILED ? "the fake refuses" : "no error";
    return DONE;
}
