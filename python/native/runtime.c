/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OpenCL implementation that the loader does not list, for machines without a driver: a shared library from a Python
 * package. The loader finds implementations only in the system's folder and in environment variables, and these belong
 * to the user. So the linker replaces clGetPlatformIDs in this module (--wrap): the replacement adds the platforms of
 * such a library behind those of the loader. The loader passes all other calls on by their handles.
 */
#include "binding.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PLATFORMS = 8 };

typedef cl_int platforms_function(cl_uint, cl_platform_id *, cl_uint *);
typedef void *lookup_function(const char *);

/* Written once, under the lock; read without it once `count` is not 0. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cl_platform_id added[MOST_PLATFORMS];
static atomic_uint added_count;

cl_int __real_clGetPlatformIDs(cl_uint room, cl_platform_id *platforms, cl_uint *count);
cl_int __wrap_clGetPlatformIDs(cl_uint room, cl_platform_id *platforms, cl_uint *count);

cl_int __wrap_clGetPlatformIDs(cl_uint room, cl_platform_id *platforms, cl_uint *count)
{
    const cl_uint more = atomic_load(&added_count);
    if (more == 0)
        return __real_clGetPlatformIDs(room, platforms, count);
    if ((platforms == NULL) != (room == 0))
        return CL_INVALID_VALUE;
    cl_uint listed = 0;
    /* An empty list is an error of the loader's (CL_PLATFORM_NOT_FOUND_KHR). */
    if (__real_clGetPlatformIDs(room, platforms, &listed) != CL_SUCCESS)
        listed = 0;
    for (cl_uint i = 0; i < more && listed + i < room; ++i)
        platforms[listed + i] = added[i];
    if (count != NULL)
        *count = listed + more;
    return CL_SUCCESS;
}

int32_t binding_has_device(void)
{
    cl_platform_id platforms[64];
    cl_uint count = 0;
    if (clGetPlatformIDs(64, platforms, &count) != CL_SUCCESS)
        return 0;
    for (cl_uint i = 0; i < count && i < 64; ++i) {
        cl_uint devices = 0;
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 0, NULL, &devices) == CL_SUCCESS && devices > 0)
            return 1;
    }
    return 0;
}

static clmgk_status fail(clmgk_error *error, const char *path, const char *reason)
{
    error->status = CLMGK_ERROR_NO_DEVICE;
    error->opencl_code = 0;
    (void)snprintf(error->message, sizeof(error->message), "%s: %s", path, reason);
    return error->status;
}

static clmgk_status load(const char *path, clmgk_error *error)
{
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return fail(error, path, dlerror());
    lookup_function *lookup = NULL;
    platforms_function *list = NULL;
    void *symbol = dlsym(library, "clGetExtensionFunctionAddress");
    memcpy(&lookup, &symbol, sizeof(symbol)); /* POSIX's way to make an object pointer a function pointer */
    symbol = lookup != NULL ? lookup("clIcdGetPlatformIDsKHR") : NULL;
    memcpy(&list, &symbol, sizeof(symbol));
    cl_uint count = 0;
    if (list == NULL || list(MOST_PLATFORMS, added, &count) != CL_SUCCESS || count == 0)
        return fail(error, path, "no OpenCL platform in it");
    atomic_store(&added_count, count < MOST_PLATFORMS ? count : MOST_PLATFORMS);
    return CLMGK_OK;
}

clmgk_status binding_use_runtime(const char *path, clmgk_error *error)
{
    (void)pthread_mutex_lock(&lock);
    const clmgk_status status = atomic_load(&added_count) > 0 ? CLMGK_OK : load(path, error);
    (void)pthread_mutex_unlock(&lock);
    return status;
}
