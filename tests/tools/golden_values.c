/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces clmgk-run's execute.c: outputs are the golden values, read from files with the outputs' names in
 * GOLDEN_FOLDER. With --check the program then compares them with the reference, without OpenCL.
 */
#include "run.h"

#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Here "memory" is the host's. */
static void *of(const run_execution *execution, clmgk_array array)
{
    return (void *)execution->memory[array];
}

static tool_exit read_values(npy_file *file, clmgk_dtype dtype, size_t count, cl_mem *memory, tool_error *error)
{
    void *const values = malloc(tool_buffer_bytes(count, clmgk_ref_dtype_size(dtype)));
    if (!values)
        return tool_fail_memory(error, file->path);
    *memory = values;
    return npy_read(file, dtype, values, error);
}

/* Zeros for an array without a file: the scale of a state of true values, and what the reference does not read. */
static tool_exit read_golden(const tool_problem *problem, clmgk_array array, const char *output, cl_mem *memory,
                             tool_error *error)
{
    char path[4096];
    npy_file file = {0};
    const char *const slash = output ? strrchr(output, '/') : NULL;
    const tool_slot *const slot = &problem->slot[array];
    *memory = output ? NULL : calloc(slot->count + 1, sizeof(float));
    if (!output)
        return tool_check_memory(*memory, tool_array_label(array), error);
    snprintf(path, sizeof path, "%s/%s", getenv("GOLDEN_FOLDER"), slash ? slash + 1 : output);
    tool_exit status = npy_open(tool_array_option(array), path, &file, error);
    if (status == TOOL_DONE && file.header.count != slot->count)
        status = tool_fail(error, TOOL_BAD_INPUT, "%s: not of the shape that the problem has", path);
    if (status == TOOL_DONE)
        status = read_values(&file, clmgk_array_dtype(&problem->desc, array), slot->count, memory, error);
    npy_close(&file);
    return status;
}

/* A copy of what the host has. */
static tool_exit copy_values(const tool_problem *problem, clmgk_array array, cl_mem *memory, tool_error *error)
{
    const size_t bytes = problem->slot[array].count * clmgk_array_element_size(&problem->desc, array);
    void *const values = malloc(tool_buffer_bytes(bytes, 1));
    if (!values)
        return tool_fail_memory(error, tool_array_option(array));
    memcpy(values, problem->slot[array].host, bytes);
    *memory = values;
    return TOOL_DONE;
}

tool_exit run_execute(const run_arguments *arguments, const tool_problem *problem, run_execution *execution,
                      tool_error *error)
{
    *execution = (run_execution){.info = {.cache_note = "", .engine_reason = ""}};
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        const tool_slot *const slot = &problem->slot[array];
        cl_mem *const memory = &execution->memory[array];
        npy_file file = tool_is_streamed(array) ? problem->file[array] : (npy_file){0};
        if (!slot->used)
            continue;
        if (tool_is_streamed(array))
            TOOL_TRY(read_values(&file, clmgk_array_dtype(&problem->desc, array), slot->count, memory, error));
        else if (!tool_is_output(array))
            TOOL_TRY(copy_values(problem, array, memory, error));
        else
            TOOL_TRY(read_golden(problem, array, arguments->problem.file[array], memory, error));
    }
    return TOOL_DONE;
}

tool_exit run_time(const tool_problem *problem, int64_t repeat, run_execution *execution, tool_error *error)
{
    (void)problem, (void)repeat, (void)execution;
    return tool_fail(error, TOOL_BAD_INPUT, "--repeat: nothing runs here");
}

tool_exit run_map(const run_execution *execution, clmgk_array array, size_t bytes, const void **elements,
                  tool_error *error)
{
    (void)bytes, (void)error;
    *elements = of(execution, array);
    return TOOL_DONE;
}

void run_unmap(const run_execution *execution, clmgk_array array, const void *elements)
{
    (void)execution, (void)array, (void)elements;
}

void run_close(run_execution *execution)
{
    for (clmgk_array array = 0; array < TOOL_FILES; array++)
        free(of(execution, array));
    *execution = (run_execution){0};
}
