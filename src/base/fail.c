/* SPDX-License-Identifier: Apache-2.0 */
/* Failure records and the names of OpenCL's error codes. */
#include "base/base.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A message is one line, even if it quotes a compiler's log. */
static void join_lines(char *message)
{
    for (char *c = message; *c != '\0'; ++c)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

MGK_PRINTF(4, 0)
static clmgk_status record(clmgk_error *error, clmgk_status status, cl_int code, const char *format, va_list args)
{
    if (error != NULL) {
        error->status = status;
        error->opencl_code = code;
        if (vsnprintf(error->message, sizeof(error->message), format, args) < 0)
            error->message[0] = '\0';
        join_lines(error->message);
    }
    return status;
}

clmgk_status mgk_fail(clmgk_error *error, clmgk_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    record(error, status, CL_SUCCESS, format, args);
    va_end(args);
    return status;
}

clmgk_status mgk_fail_code(clmgk_error *error, clmgk_status status, cl_int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    record(error, status, code, format, args);
    va_end(args);
    return status;
}

static clmgk_status status_of_code(cl_int code)
{
    switch (code) {
    case CL_OUT_OF_HOST_MEMORY:
        return CLMGK_ERROR_OUT_OF_HOST_MEMORY;
    case CL_OUT_OF_RESOURCES:
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
        return CLMGK_ERROR_OUT_OF_DEVICE_MEMORY;
    default:
        return CLMGK_ERROR_OPENCL;
    }
}

clmgk_status mgk_fail_cl(clmgk_error *error, cl_int code, const char *call)
{
    return mgk_fail_code(error, status_of_code(code), code, "%s: %s (%d)", call, mgk_cl_error_name(code), (int)code);
}

clmgk_status mgk_check_cl(clmgk_error *error, cl_int code, const char *call)
{
    return code == CL_SUCCESS ? CLMGK_OK : mgk_fail_cl(error, code, call);
}

clmgk_status mgk_fail_memory(clmgk_error *error, const char *what)
{
    return mgk_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "out of host memory for %s", what);
}

const char *mgk_cl_error_name(cl_int code)
{
#define CODE(name) [-(name)] = #name
    static const char *const names[] = {
        /* CL_SUCCESS to CL_KERNEL_ARG_INFO_NOT_AVAILABLE = -19 */
        CODE(CL_SUCCESS), CODE(CL_DEVICE_NOT_FOUND), CODE(CL_DEVICE_NOT_AVAILABLE), CODE(CL_COMPILER_NOT_AVAILABLE),
        CODE(CL_MEM_OBJECT_ALLOCATION_FAILURE), CODE(CL_OUT_OF_RESOURCES), CODE(CL_OUT_OF_HOST_MEMORY),
        CODE(CL_PROFILING_INFO_NOT_AVAILABLE), CODE(CL_MEM_COPY_OVERLAP), CODE(CL_BUILD_PROGRAM_FAILURE),
        CODE(CL_MAP_FAILURE), CODE(CL_MISALIGNED_SUB_BUFFER_OFFSET), CODE(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
        CODE(CL_COMPILE_PROGRAM_FAILURE), CODE(CL_LINKER_NOT_AVAILABLE), CODE(CL_LINK_PROGRAM_FAILURE),
        CODE(CL_DEVICE_PARTITION_FAILED), CODE(CL_KERNEL_ARG_INFO_NOT_AVAILABLE),
        /* from -30 on */
        CODE(CL_INVALID_VALUE), CODE(CL_INVALID_DEVICE_TYPE), CODE(CL_INVALID_PLATFORM), CODE(CL_INVALID_DEVICE),
        CODE(CL_INVALID_CONTEXT), CODE(CL_INVALID_QUEUE_PROPERTIES), CODE(CL_INVALID_COMMAND_QUEUE),
        CODE(CL_INVALID_HOST_PTR), CODE(CL_INVALID_MEM_OBJECT), CODE(CL_INVALID_BINARY), CODE(CL_INVALID_BUILD_OPTIONS),
        CODE(CL_INVALID_PROGRAM), CODE(CL_INVALID_PROGRAM_EXECUTABLE), CODE(CL_INVALID_KERNEL_NAME),
        CODE(CL_INVALID_KERNEL_DEFINITION), CODE(CL_INVALID_KERNEL), CODE(CL_INVALID_ARG_INDEX),
        CODE(CL_INVALID_ARG_VALUE), CODE(CL_INVALID_ARG_SIZE), CODE(CL_INVALID_KERNEL_ARGS),
        CODE(CL_INVALID_WORK_DIMENSION), CODE(CL_INVALID_WORK_GROUP_SIZE), CODE(CL_INVALID_WORK_ITEM_SIZE),
        CODE(CL_INVALID_GLOBAL_OFFSET), CODE(CL_INVALID_EVENT_WAIT_LIST), CODE(CL_INVALID_EVENT),
        CODE(CL_INVALID_OPERATION), CODE(CL_INVALID_BUFFER_SIZE), CODE(CL_INVALID_GLOBAL_WORK_SIZE),
        CODE(CL_INVALID_PROPERTY), CODE(CL_INVALID_COMPILER_OPTIONS), CODE(CL_INVALID_LINKER_OPTIONS),
        CODE(CL_INVALID_DEVICE_PARTITION_COUNT)};
    const bool known = code <= 0 && code > -(cl_int)MGK_COUNT(names) && names[-code] != NULL;
    return known ? names[-code] : "unknown OpenCL error";
}

clmgk_status mgk_check_range(const char *field, int64_t value, int64_t least, int64_t most, clmgk_error *error)
{
    if (value >= least && value <= most)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected %" PRId64 " to %" PRId64, field, value,
                    least, most);
}

clmgk_status mgk_check_axis(const char *field, int64_t value, int64_t least, clmgk_error *error)
{
    if (value > MGK_MAX_AXIS)
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: %" PRId64 ": expected at most %" PRId64, field, value,
                        MGK_MAX_AXIS);
    return mgk_check_range(field, value, least, MGK_MAX_AXIS, error);
}

void mgk_add_reason(char *reasons, size_t size, const char *name, const char *reason)
{
    const char *const parts[] = {reasons[0] != '\0' ? "; " : "", name != NULL ? name : "", name != NULL ? ": " : "",
                                 reason};
    size_t used = strlen(reasons);
    for (size_t i = 0; i < MGK_COUNT(parts); ++i) {
        const size_t length = strlen(parts[i]) < size - 1 - used ? strlen(parts[i]) : size - 1 - used;
        memcpy(reasons + used, parts[i], length);
        used += length;
        reasons[used] = '\0';
    }
}
