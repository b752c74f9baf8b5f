/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <inttypes.h>
#include <stdlib.h>

/* Whether the device can allocate an array, known before anything is compiled or loaded. */
static tool_exit check_room(const tool_problem *problem, clmgk_array array, const clmgk_device_info *info,
                            tool_error *error)
{
    const size_t size = clmgk_array_element_size(&problem->desc, array);
    const uint64_t most = info->max_allocation_bytes;
    if (!problem->slot[array].used || tool_element_count(problem, array) <= most / size)
        return TOOL_DONE;
    return tool_fail(error, TOOL_SYSTEM_ERROR,
                     "%s: %zu elements of %zu bytes: expected at most %" PRIu64
                     " bytes in all, the largest buffer of the device \"%s\"",
                     clmgk_array_name(array), tool_element_count(problem, array), size, most, info->name);
}

/* A buffer of `count` elements, at least one, with the values of `host` if that is not NULL. */
static tool_exit create_array(run_execution *execution, clmgk_array array, size_t count, size_t element_size,
                              const void *host, tool_error *error)
{
    return tool_make_buffer(&execution->device, tool_buffer_bytes(count, element_size), count > 0 ? host : NULL,
                            &execution->memory[array], error);
}

static tool_exit map_array(const run_execution *execution, clmgk_array array, cl_map_flags flags, size_t bytes,
                           void **elements, tool_error *error)
{
    cl_int code = CL_SUCCESS;
    *elements = clEnqueueMapBuffer(execution->device.queue, execution->memory[array], CL_TRUE, flags, 0, bytes, 0, NULL,
                                   NULL, &code);
    return tool_check_cl(code, "clEnqueueMapBuffer", error);
}

static cl_int unmap_array(const run_execution *execution, clmgk_array array, void *elements)
{
    const cl_int code =
        clEnqueueUnmapMemObject(execution->device.queue, execution->memory[array], elements, 0, NULL, NULL);
    return code == CL_SUCCESS ? clFinish(execution->device.queue) : code;
}

tool_exit run_map(const run_execution *execution, clmgk_array array, size_t bytes, const void **elements,
                  tool_error *error)
{
    void *mapped = NULL;
    TOOL_TRY(map_array(execution, array, CL_MAP_READ, bytes, &mapped, error));
    *elements = mapped;
    return TOOL_DONE;
}

void run_unmap(const run_execution *execution, clmgk_array array, const void *elements)
{
    (void)unmap_array(execution, array, (void *)elements); /* nothing was changed that could be lost */
}

/* Reads a file straight into memory that the device sees. */
static tool_exit load_file(const tool_problem *problem, clmgk_array array, run_execution *execution, tool_error *error)
{
    npy_file file = problem->file[array]; /* of which the stream alone moves on */
    const clmgk_dtype dtype = clmgk_array_dtype(&problem->desc, array);
    const size_t size = clmgk_ref_dtype_size(dtype);
    const size_t count = tool_element_count(problem, array);
    void *elements = NULL;
    if (count > SIZE_MAX / size)
        return tool_fail_memory(error, file.path);
    TOOL_TRY(create_array(execution, array, count, size, NULL, error));
    TOOL_TRY(
        map_array(execution, array, CL_MAP_WRITE_INVALIDATE_REGION, tool_buffer_bytes(count, size), &elements, error));
    const tool_exit status = npy_read(&file, dtype, elements, error);
    const cl_int code = unmap_array(execution, array, elements);
    return status == TOOL_DONE ? tool_check_cl(code, "clEnqueueUnmapMemObject", error) : status;
}

static tool_exit create_arrays(const tool_problem *problem, run_execution *execution, tool_error *error)
{
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        const tool_slot *const slot = &problem->slot[array];
        if (slot->used && tool_is_streamed(array))
            TOOL_TRY(load_file(problem, array, execution, error));
        else if (slot->used)
            TOOL_TRY(create_array(execution, array, slot->count, clmgk_array_element_size(&problem->desc, array),
                                  slot->host, error));
    }
    const size_t workspace = clmgk_plan_workspace_size(execution->plan);
    return workspace > 0 ? create_array(execution, CLMGK_ARRAY_WORKSPACE, workspace, 1, NULL, error) : TOOL_DONE;
}

static clmgk_attention_args bind(const tool_problem *problem, const run_execution *execution)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    for (int array = 0; array < (int)CLMGK_ARRAYS; array++)
        clmgk_array_buffer(&args, (clmgk_array)array)->memory = execution->memory[array];
    args.seed = problem->seed;
    return args;
}

static tool_exit make_plan(const run_arguments *arguments, const clmgk_attention_desc *desc, run_execution *execution,
                           tool_error *error)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = arguments->engine;
    options.parameters = arguments->parameters;
    options.backward_parameters = arguments->backward_parameters;
    TOOL_TRY(tool_check_library(
        clmgk_plan_create(execution->device.library, desc, &options, &execution->plan, &error->library), error));
    execution->info = (clmgk_plan_info)CLMGK_PLAN_INFO_INIT;
    TOOL_TRY(tool_check_library(clmgk_plan_get_info(execution->plan, &execution->info, &error->library), error));
    return TOOL_DONE;
}

static tool_exit run_once(const run_execution *execution, clmgk_pass pass, const clmgk_attention_args *args,
                          tool_error *error)
{
    double milliseconds = 0.0;
    return tool_time_pass(&execution->device, execution->plan, pass, args, &milliseconds, error);
}

/* After one run more. */
static tool_exit time_runs(const run_execution *execution, clmgk_pass pass, const clmgk_attention_args *args,
                           int64_t repeat, tool_spread *spread, tool_error *error)
{
    double *const times = calloc((size_t)repeat, sizeof *times);
    TOOL_TRY(tool_check_memory(times, "the times", error));
    tool_exit status = run_once(execution, pass, args, error);
    for (int64_t run = 0; run < repeat && status == TOOL_DONE; run++)
        status = tool_time_pass(&execution->device, execution->plan, pass, args, &times[run], error);
    if (status == TOOL_DONE)
        *spread = tool_spread_of(times, (size_t)repeat);
    free(times);
    return status;
}

static void count_work(const tool_problem *problem, run_execution *execution)
{
    clmgk_host_args arrays = CLMGK_HOST_ARGS_INIT;
    arrays.lengths = problem->slot[CLMGK_ARRAY_LENGTHS].host;
    arrays.lengths_q = problem->slot[CLMGK_ARRAY_LENGTHS_Q].host;
    arrays.offsets = problem->slot[CLMGK_ARRAY_OFFSETS].host;
    arrays.offsets_k = problem->slot[CLMGK_ARRAY_OFFSETS_K].host;
    arrays.positions = problem->slot[CLMGK_ARRAY_POSITIONS].host;
    arrays.positions_k = problem->slot[CLMGK_ARRAY_POSITIONS_K].host;
    arrays.page_offsets = problem->slot[CLMGK_ARRAY_PAGE_OFFSETS].host;
    arrays.last_page = problem->slot[CLMGK_ARRAY_LAST_PAGE].host;
    execution->forward_flops = tool_forward_flops(&problem->desc, &arrays, &execution->info);
    execution->backward_flops = tool_backward_flops(&problem->desc, &arrays, &execution->info);
}

tool_exit run_execute(const run_arguments *arguments, const tool_problem *problem, run_execution *execution,
                      tool_error *error)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    *execution = (run_execution){0};
    TOOL_TRY(tool_device_open(arguments->device, &execution->device, error));
    for (clmgk_array array = 0; array < TOOL_FILES; array++)
        TOOL_TRY(check_room(problem, array, &execution->device.info, error));
    TOOL_TRY(make_plan(arguments, desc, execution, error));
    TOOL_TRY(create_arrays(problem, execution, error));
    count_work(problem, execution);
    const clmgk_attention_args args = bind(problem, execution);
    TOOL_TRY(run_once(execution, CLMGK_PASS_FORWARD, &args, error));
    if (desc->gradients != 0)
        TOOL_TRY(run_once(execution, CLMGK_PASS_BACKWARD, &args, error));
    return desc->statistics != 0 ? run_once(execution, CLMGK_PASS_STATISTICS, &args, error) : TOOL_DONE;
}

tool_exit run_time(const tool_problem *problem, int64_t repeat, run_execution *execution, tool_error *error)
{
    const clmgk_attention_args args = bind(problem, execution);
    TOOL_TRY(time_runs(execution, CLMGK_PASS_FORWARD, &args, repeat, &execution->forward_ms, error));
    return problem->desc.gradients != 0
               ? time_runs(execution, CLMGK_PASS_BACKWARD, &args, repeat, &execution->backward_ms, error)
               : TOOL_DONE;
}

void run_close(run_execution *execution)
{
    for (size_t array = 0; array < CLMGK_ARRAYS; array++)
        tool_release_buffer(execution->memory[array]);
    clmgk_plan_release(execution->plan);
    tool_device_close(&execution->device);
    *execution = (run_execution){0};
}
