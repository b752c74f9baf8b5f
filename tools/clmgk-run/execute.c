/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include "work.h"

#include <stdlib.h>

/* ---- memory on the device ----------------------------------------------------------------------------------- */

/* A buffer of `count` elements, at least one, with the values of `host` if that is not NULL. */
static tool_exit create_array(run_execution *execution, run_array array, cl_mem_flags flags, size_t count,
                              size_t element_size, const void *host, tool_error *error)
{
    cl_int code = CL_SUCCESS;
    const bool copy = host && count > 0;
    /* The copy is only read, whatever OpenCL's prototype says. */
    execution->memory[array] =
        clCreateBuffer(execution->device.context, flags | (copy ? CL_MEM_COPY_HOST_PTR : 0),
                       tool_buffer_bytes(count, element_size), copy ? (void *)host : NULL, &code);
    return execution->memory[array] ? TOOL_DONE : tool_fail_cl(error, code, "clCreateBuffer");
}

static tool_exit map_array(const run_execution *execution, run_array array, cl_map_flags flags, size_t bytes,
                           void **elements, tool_error *error)
{
    cl_int code = CL_SUCCESS;
    *elements = clEnqueueMapBuffer(execution->device.queue, execution->memory[array], CL_TRUE, flags, 0, bytes, 0, NULL,
                                   NULL, &code);
    return *elements ? TOOL_DONE : tool_fail_cl(error, code, "clEnqueueMapBuffer");
}

static cl_int unmap_array(const run_execution *execution, run_array array, void *elements)
{
    const cl_int code =
        clEnqueueUnmapMemObject(execution->device.queue, execution->memory[array], elements, 0, NULL, NULL);
    return code == CL_SUCCESS ? clFinish(execution->device.queue) : code;
}

tool_exit run_map(const run_execution *execution, run_array array, size_t bytes, const void **elements,
                  tool_error *error)
{
    void *mapped = NULL;
    TOOL_TRY(map_array(execution, array, CL_MAP_READ, bytes, &mapped, error));
    *elements = mapped;
    return TOOL_DONE;
}

void run_unmap(const run_execution *execution, run_array array, const void *elements)
{
    (void)unmap_array(execution, array, (void *)elements); /* nothing was changed that could be lost */
}

/* Reads a file straight into memory that the device sees. */
static tool_exit load_file(run_execution *execution, run_array array, npy_file *file, clmgk_dtype dtype,
                           tool_error *error)
{
    const size_t size = clmgk_ref_dtype_size(dtype);
    const size_t count = (size_t)file->header.count;
    void *elements = NULL;
    if (count > SIZE_MAX / size)
        return tool_fail_memory(error, file->path);
    TOOL_TRY(create_array(execution, array, CL_MEM_READ_ONLY, count, size, NULL, error));
    TOOL_TRY(
        map_array(execution, array, CL_MAP_WRITE_INVALIDATE_REGION, tool_buffer_bytes(count, size), &elements, error));
    const tool_exit status = npy_read(file, dtype, elements, error);
    const cl_int code = unmap_array(execution, array, elements);
    if (status == TOOL_DONE && code != CL_SUCCESS)
        return tool_fail_cl(error, code, "clEnqueueUnmapMemObject");
    return status;
}

static tool_exit load_inputs(run_problem *problem, run_execution *execution, tool_error *error)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    TOOL_TRY(load_file(execution, RUN_Q, &problem->q, desc->dtype, error));
    TOOL_TRY(load_file(execution, RUN_K, &problem->k, desc->dtype, error));
    TOOL_TRY(load_file(execution, RUN_V, &problem->v, desc->dtype, error));
    const size_t batch = (size_t)desc->batch;
    const struct {
        run_array array;
        const void *host;
        size_t count;
        size_t size;
    } small[] = {
        {RUN_PRIOR, problem->prior, run_count_prior(desc), sizeof(float)},
        {RUN_VARIANCE, problem->variance, run_count_variance(desc), sizeof(float)},
        {RUN_SHIFT, problem->shift, run_count_shift(desc), sizeof(float)},
        {RUN_LENGTHS, problem->lengths, batch, sizeof(int32_t)},
        {RUN_LENGTHS_Q, problem->lengths_q, batch, sizeof(int32_t)},
    };
    for (size_t i = 0; i < TOOL_COUNT(small); i++) {
        if (small[i].host)
            TOOL_TRY(create_array(execution, small[i].array, CL_MEM_READ_ONLY, small[i].count, small[i].size,
                                  small[i].host, error));
    }
    return TOOL_DONE;
}

static tool_exit create_outputs(const run_arguments *arguments, const clmgk_attention_desc *desc,
                                run_execution *execution, tool_error *error)
{
    const size_t size = clmgk_ref_dtype_size(desc->dtype);
    TOOL_TRY(create_array(execution, RUN_O, CL_MEM_READ_WRITE, run_count_o(desc), size, NULL, error));
    if (arguments->lse || arguments->check)
        TOOL_TRY(create_array(execution, RUN_LSE, CL_MEM_READ_WRITE, run_count_lse(desc), sizeof(float), NULL, error));
    const size_t workspace = clmgk_plan_workspace_size(execution->plan);
    if (workspace > 0)
        TOOL_TRY(create_array(execution, RUN_WORKSPACE, CL_MEM_READ_WRITE, workspace, 1, NULL, error));
    return TOOL_DONE;
}

/* ---- running ------------------------------------------------------------------------------------------------ */

static clmgk_attention_args bind(const run_execution *execution)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.q.memory = execution->memory[RUN_Q];
    args.k.memory = execution->memory[RUN_K];
    args.v.memory = execution->memory[RUN_V];
    args.o.memory = execution->memory[RUN_O];
    args.lse.memory = execution->memory[RUN_LSE];
    args.prior.memory = execution->memory[RUN_PRIOR];
    args.variance.memory = execution->memory[RUN_VARIANCE];
    args.shift.memory = execution->memory[RUN_SHIFT];
    args.lengths.memory = execution->memory[RUN_LENGTHS];
    args.lengths_q.memory = execution->memory[RUN_LENGTHS_Q];
    args.workspace.memory = execution->memory[RUN_WORKSPACE];
    return args;
}

static tool_exit make_plan(const run_arguments *arguments, const clmgk_attention_desc *desc, run_execution *execution,
                           tool_error *error)
{
    clmgk_error failure = {0};
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = arguments->engine;
    options.parameters = arguments->parameters;
    if (clmgk_plan_create(execution->device.library, desc, &options, &execution->plan, &failure) != CLMGK_OK ||
        clmgk_plan_get_info(execution->plan, &execution->info, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    return TOOL_DONE;
}

static tool_exit time_runs(run_execution *execution, const clmgk_attention_args *args, int64_t repeat,
                           tool_error *error)
{
    double *const times = calloc((size_t)repeat, sizeof *times);
    if (!times)
        return tool_fail_memory(error, "the times");
    tool_exit status = TOOL_DONE;
    for (int64_t run = 0; run < repeat && status == TOOL_DONE; run++)
        status = tool_time_forward(&execution->device, execution->plan, args, &times[run], error);
    if (status == TOOL_DONE)
        execution->time_ms = tool_spread_of(times, (size_t)repeat);
    free(times);
    return status;
}

tool_exit run_execute(const run_arguments *arguments, run_problem *problem, run_execution *execution, tool_error *error)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    double first = 0.0;
    *execution = (run_execution){0};
    TOOL_TRY(tool_device_open(arguments->device, &execution->device, error));
    TOOL_TRY(make_plan(arguments, desc, execution, error));
    TOOL_TRY(load_inputs(problem, execution, error));
    TOOL_TRY(create_outputs(arguments, desc, execution, error));
    const clmgk_attention_args args = bind(execution);
    TOOL_TRY(tool_time_forward(&execution->device, execution->plan, &args, &first, error));
    execution->flops = tool_forward_flops(desc, tool_visible_pairs(desc, problem->lengths, problem->lengths_q));
    return arguments->repeat > 0 ? time_runs(execution, &args, arguments->repeat, error) : TOOL_DONE;
}

void run_close(run_execution *execution)
{
    for (size_t array = 0; array < RUN_ARRAY_COUNT; array++) {
        if (execution->memory[array])
            clReleaseMemObject(execution->memory[array]);
    }
    clmgk_plan_release(execution->plan);
    tool_device_close(&execution->device);
    *execution = (run_execution){0};
}
