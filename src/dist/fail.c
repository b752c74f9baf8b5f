/* SPDX-License-Identifier: Apache-2.0 */
#include "dist.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

clmgk_status mgk_dist_fail(clmgk_error *error, clmgk_status status, const char *format, ...)
{
    va_list list;
    if (error == NULL)
        return status;
    *error = (clmgk_error){.status = status};
    va_start(list, format);
    (void)vsnprintf(error->message, sizeof(error->message), format, list);
    va_end(list);
    return status;
}

clmgk_status mgk_dist_check_cl(clmgk_error *error, cl_int code, const char *call)
{
    if (code == CL_SUCCESS)
        return CLMGK_OK;
    const bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES;
    const clmgk_status status = code == CL_OUT_OF_HOST_MEMORY ? CLMGK_ERROR_OUT_OF_HOST_MEMORY
                                : memory                      ? CLMGK_ERROR_OUT_OF_DEVICE_MEMORY
                                                              : CLMGK_ERROR_OPENCL;
    (void)mgk_dist_fail(error, status, "%s: OpenCL error %d", call, (int)code);
    if (error != NULL)
        error->opencl_code = code;
    return status;
}

clmgk_status mgk_dist_alloc(int64_t bytes, void **memory, clmgk_error *error)
{
    *memory = bytes >= 0 ? calloc(1, (size_t)bytes + 1) : NULL; /* + 1: NULL means failure only */
    return *memory != NULL
               ? CLMGK_OK
               : mgk_dist_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "out of memory: %lld bytes", (long long)bytes);
}
