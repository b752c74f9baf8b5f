/* SPDX-License-Identifier: Apache-2.0 */
#include "device/binary.h"

/* One value per device of the program, in the order of CL_PROGRAM_DEVICES. */
typedef struct program_devices {
    cl_uint count;
    cl_device_id *devices;
    size_t *sizes;
    unsigned char **binaries;
} program_devices;

static void free_devices(const clmgk_allocator *allocator, program_devices *list)
{
    mgk_free(allocator, list->devices);
    mgk_free(allocator, list->sizes);
    mgk_free(allocator, list->binaries);
}

/* The caller frees the list, also after a failure. */
static clmgk_status query_devices(const clmgk_context *context, cl_program program, program_devices *list,
                                  clmgk_error *error)
{
    static const char call[] = "clGetProgramInfo";
    const clmgk_allocator *const allocator = &context->allocator;
    cl_int code = clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof(list->count), &list->count, NULL);
    MGK_TRY(mgk_check_cl(error, code, call));
    list->devices = mgk_alloc(allocator, list->count, sizeof(cl_device_id));
    list->sizes = mgk_alloc(allocator, list->count, sizeof(size_t));
    list->binaries = mgk_alloc(allocator, list->count, sizeof(unsigned char *));
    if (list->devices == NULL || list->sizes == NULL || list->binaries == NULL)
        return mgk_fail_memory(error, "a program's binary");
    code = clGetProgramInfo(program, CL_PROGRAM_DEVICES, list->count * sizeof(cl_device_id), list->devices, NULL);
    if (code == CL_SUCCESS)
        code = clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, list->count * sizeof(size_t), list->sizes, NULL);
    return mgk_check_cl(error, code, call);
}

/* Reads only the binary for the context's device (mgk_free): the other devices' pointers stay NULL. */
static clmgk_status read_binary(const clmgk_context *context, cl_program program, const program_devices *list,
                                char **binary, size_t *length, clmgk_error *error)
{
    cl_uint position = 0;
    while (position < list->count && list->devices[position] != context->device)
        ++position;
    if (position == list->count || list->sizes[position] == 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "device \"%s\": the driver provides no program binaries",
                        context->facts.info.name);
    unsigned char *const bytes = mgk_alloc(&context->allocator, list->sizes[position], 1);
    if (bytes == NULL)
        return mgk_fail_memory(error, "a program's binary");
    list->binaries[position] = bytes;
    const cl_int code =
        clGetProgramInfo(program, CL_PROGRAM_BINARIES, list->count * sizeof(unsigned char *), list->binaries, NULL);
    if (code != CL_SUCCESS) {
        mgk_free(&context->allocator, bytes);
        return mgk_fail_cl(error, code, "clGetProgramInfo");
    }
    *binary = (char *)bytes;
    *length = list->sizes[position];
    return CLMGK_OK;
}

clmgk_status mgk_binary_get(const clmgk_context *context, cl_program program, char **binary, size_t *length,
                            clmgk_error *error)
{
    program_devices list = {0};
    clmgk_status status = query_devices(context, program, &list, error);
    if (status == CLMGK_OK)
        status = read_binary(context, program, &list, binary, length, error);
    free_devices(&context->allocator, &list);
    return status;
}

clmgk_status mgk_binary_load(const clmgk_context *context, const char *binary, size_t length, cl_program *program,
                             clmgk_error *error)
{
    const unsigned char *bytes = (const unsigned char *)binary;
    cl_int status = CL_SUCCESS, code = CL_SUCCESS;
    *program = clCreateProgramWithBinary(context->context, 1, &context->device, &length, &bytes, &status, &code);
    if (code == CL_SUCCESS && status == CL_SUCCESS)
        return CLMGK_OK;
    if (*program != NULL)
        clReleaseProgram(*program);
    *program = NULL;
    return mgk_fail_cl(error, code != CL_SUCCESS ? code : status, "clCreateProgramWithBinary");
}
