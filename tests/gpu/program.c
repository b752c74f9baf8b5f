/* SPDX-License-Identifier: Apache-2.0 */
/* Programs as a driver builds them, with its messages. */
#include "probe.h"

#include <stdlib.h>
#include <string.h>

json_t *probe_code(cl_int code)
{
    return code == CL_SUCCESS ? json_string("CL_SUCCESS") : json_sprintf("%d", (int)code);
}

static char *read_log(const probe_context *probe, cl_program program)
{
    const cl_device_id device = probe->device.info.device_id;
    size_t size = 0;
    if (clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size) != CL_SUCCESS)
        return NULL;
    char *const log = calloc(size + 1, 1);
    if (log && clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log, NULL) != CL_SUCCESS)
        log[0] = '\0';
    return log;
}

probe_program probe_build(const probe_context *probe, const char *text, const char *options)
{
    probe_program made = {0};
    const double start = tool_now_ms();
    made.program = clCreateProgramWithSource(probe->device.context, 1, &text, NULL, &made.code);
    if (made.code != CL_SUCCESS)
        return made;
    made.code = clBuildProgram(made.program, 1, &probe->device.info.device_id, options, NULL, NULL);
    made.seconds = (tool_now_ms() - start) / 1000;
    made.log = read_log(probe, made.program);
    return made;
}

void probe_release(probe_program *program)
{
    if (program->program)
        clReleaseProgram(program->program);
    free(program->log);
    *program = (probe_program){0};
}

/* The context, and so the program, has one device. */
char *probe_binary(cl_program program, size_t *size)
{
    *size = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(*size), size, NULL) != CL_SUCCESS || *size == 0)
        return NULL;
    char *binary = calloc(*size + 1, 1);
    if (binary && clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL) != CL_SUCCESS) {
        free(binary);
        return NULL;
    }
    return binary;
}
