/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of kernels as the driver builds them: time, registers, spills, memory. */
#include "probe.h"

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUILD_LIMIT_S = 120, MAX_LINE = 4096, MAX_KERNELS = 64 };

/* The sum of the numbers before `words` in NVIDIA's verbose log, or the largest; null where there is none. */
static json_t *figure(const char *log, const char *words, bool largest)
{
    long found = -1;
    for (const char *at = log ? strstr(log, words) : NULL; at; at = strstr(at + 1, words)) {
        const char *digits = at;
        while (digits > log && digits[-1] >= '0' && digits[-1] <= '9')
            digits--;
        const long value = strtol(digits, NULL, 10);
        found = found < 0 || (largest && value > found) ? value : largest ? found : found + value;
    }
    return found < 0 ? json_null() : json_integer(found);
}

/* What clGetKernelWorkGroupInfo says of a kernel. */
static json_t *describe_kernel(cl_kernel kernel, cl_device_id device)
{
    char name[128] = "";
    size_t multiple = 0;
    const mgk_kernel_needs needs = mgk_kernel_measure(kernel, device);
    if (clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof(name), name, NULL) != CL_SUCCESS)
        name[0] = '\0';
    if (clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, sizeof(multiple),
                                 &multiple, NULL) != CL_SUCCESS)
        multiple = 0;
    return json_pack("{s:s, s:I, s:I, s:I, s:I}", "name", name, "max_work_group", (json_int_t)needs.work_group,
                     "work_group_multiple", (json_int_t)multiple, "local_bytes", (json_int_t)needs.local_bytes,
                     "private_bytes", (json_int_t)needs.private_bytes);
}

static json_t *describe_kernels(const probe_context *probe, cl_program program)
{
    cl_kernel kernels[MAX_KERNELS];
    cl_uint count = 0;
    json_t *list = json_array();
    if (clCreateKernelsInProgram(program, MAX_KERNELS, kernels, &count) != CL_SUCCESS)
        return list;
    for (cl_uint i = 0; i < count; i++) {
        tool_json_append(&list, describe_kernel(kernels[i], probe->device.info.device_id));
        clReleaseKernel(kernels[i]);
    }
    return list;
}

/* FNV-1a of the configuration's line: tests/offline/passes.py finds its file so. */
static uint32_t name_of_line(const char *line)
{
    uint32_t hash = 2166136261U;
    for (; *line != '\0'; line++)
        hash = (hash ^ (unsigned char)*line) * 16777619U;
    return hash;
}

/* DIR/HASH.bin. NVIDIA's are PTX. */
static tool_exit write_binary(const probe_context *probe, cl_program program, const char *line, tool_error *error)
{
    char path[4096];
    size_t size = 0;
    char *const binary = probe_binary(program, &size);
    snprintf(path, sizeof(path), "%s/%08x.bin", probe->folder, (unsigned)name_of_line(line));
    FILE *const file = binary ? fopen(path, "wb") : NULL;
    const bool written = file && fwrite(binary, 1, size, file) == size;
    const bool closed = file && fclose(file) == 0;
    free(binary);
    return written && closed ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "'%s': cannot write a binary", path);
}

/* A line of the list, in parts that point into it. */
typedef struct configuration {
    char *engine, *name, *file, *options;
} configuration;

static bool split(char *line, configuration *parts)
{
    char **const part[] = {&parts->engine, &parts->name, &parts->file, &parts->options};
    char *at = line;
    for (size_t i = 0; i < TOOL_COUNT(part); i++) {
        *part[i] = at;
        at = strchr(at, ' ');
        if (i + 1 == TOOL_COUNT(part))
            return true;
        if (!at)
            return false;
        *at++ = '\0';
    }
    return false;
}

/* Options as plans use them on this device, and a verbose log, which alone tells the registers of NVIDIA's kernels. */
static void choose_options(const probe_context *probe, const configuration *parts, char *text, size_t size)
{
    char shuffles[64] = "";
    const bool nvidia = strncmp(probe->device.info.architecture, "sm_", 3) == 0;
    const mgk_sub_group found = mgk_context_sub_group(probe->device.library);
    if (found.size > 1 && strncmp(parts->engine, "simt", 4) == 0)
        snprintf(shuffles, sizeof(shuffles), " -DSHUFFLE=%d -DSUB_GROUP_SIZE=%d", found.shuffle, found.size);
    snprintf(text, size, "%s%s%s", parts->options, shuffles, nvidia ? " -cl-nv-verbose" : "");
}

static tool_exit build(const probe_context *probe, const char *line, configuration *parts, tool_error *error)
{
    char options[MAX_LINE];
    mgk_text source = {0};
    tool_exit status = TOOL_DONE;
    TOOL_TRY(tool_check_library(mgk_source_expand(NULL, parts->file, parts->options, &source, &error->library), error));
    choose_options(probe, parts, options, sizeof(options));
    probe_program made = probe_build(probe, source.data, options);
    mgk_text_free(&source);
    const bool built = made.code == CL_SUCCESS;
    json_t *const answer = json_pack(
        "{s:s, s:o, s:f, s:o, s:o, s:o, s:o, s:o, s:o}", "case", line, "build", probe_code(made.code), "seconds",
        made.seconds, "registers", figure(made.log, " registers", true), "spill_store_bytes",
        figure(made.log, " bytes spill stores", false), "stack_bytes", figure(made.log, " bytes stack frame", false),
        "local_bytes", figure(made.log, " bytes smem", false), "kernels",
        built ? describe_kernels(probe, made.program) : json_null(), "log", tool_json_text(made.log));
    if (built && probe->folder)
        status = write_binary(probe, made.program, line, error);
    probe_release(&made);
    const tool_exit appended = probe_append(probe, answer, error);
    return status != TOOL_DONE ? status : appended;
}

static tool_exit build_lines(const probe_context *probe, FILE *file, const char *list, tool_error *error)
{
    char line[MAX_LINE], copy[MAX_LINE];
    for (size_t number = 1; fgets(line, sizeof(line), file); number++) {
        configuration parts;
        line[strcspn(line, "\n")] = '\0';
        memcpy(copy, line, sizeof(copy));
        if (!split(copy, &parts))
            return tool_fail(error, TOOL_BAD_INPUT, "--builds '%s': line %zu: expected engine, name, file, options",
                             list, number);
        /* If a driver never answers, this process ends, and another one goes on with the next line of the list. */
        (void)alarm(BUILD_LIMIT_S);
        TOOL_TRY(build(probe, line, &parts, error));
    }
    return TOOL_DONE;
}

tool_exit probe_builds(const probe_context *probe, const char *list, tool_error *error)
{
    FILE *const file = fopen(list, "r");
    if (!file)
        return tool_fail(error, TOOL_BAD_INPUT, "--builds '%s': cannot read it", list);
    const tool_exit status = build_lines(probe, file, list, error);
    (void)fclose(file);
    return status;
}
