/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: engine and parameters chosen, program built, kernel ready. */
#include "api/plan.h"

#include <string.h>

/* Grids from this size on are compiled apart by PoCL. */
#define LARGE_GRID 65000

static clmgk_status read_options(const clmgk_plan_options *options, clmgk_plan_options *read, clmgk_error *error)
{
    *read = (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    if (options == NULL)
        return CLMGK_OK;
    MGK_TRY(mgk_struct_read(options, "options", sizeof(*read), read, sizeof(*read), error));
    if (clmgk_engine_name(read->engine) == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "options.engine: %d: expected a clmgk_engine",
                        (int)read->engine);
    return CLMGK_OK;
}

static clmgk_status try_engine(clmgk_plan *plan, clmgk_engine engine, const char *parameters, clmgk_error *error)
{
    mgk_text_free(&plan->forward.options);
    memset(&plan->forward, 0, sizeof(plan->forward));
    plan->forward.options.allocator = &plan->context->allocator;
    plan->info.engine = engine;
    return plan->family->plan(&plan->desc, &plan->context->facts, engine, parameters, &plan->forward, error);
}

/* The engine asked for; or the device's own and, where that can't, the other. */
static clmgk_status choose(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    if (options->engine != CLMGK_ENGINE_AUTO)
        return try_engine(plan, options->engine, options->parameters, error);
    const clmgk_engine own = plan->context->facts.info.engine;
    const clmgk_status status = try_engine(plan, own, options->parameters, error);
    if (status != CLMGK_ERROR_UNSUPPORTED)
        return status;
    const clmgk_engine other = own == CLMGK_ENGINE_LANE ? CLMGK_ENGINE_SIMT : CLMGK_ENGINE_LANE;
    clmgk_error ignored;
    if (try_engine(plan, other, options->parameters, &ignored) == CLMGK_OK)
        return CLMGK_OK;
    return try_engine(plan, own, options->parameters, error);
}

clmgk_status mgk_plan_launch(clmgk_plan *plan, cl_command_queue queue, const mgk_launch *launch,
                             const clmgk_buffer *const arrays[MGK_ARRAYS], const void *args, cl_uint num_wait,
                             const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    const mgk_kernel_plan *const forward = &plan->forward;
    mgk_kernel_arg list[1 + MGK_MAX_BUFFERS];
    list[0] = (mgk_kernel_arg){forward->args_bytes, args};
    for (size_t i = 0; i < forward->buffers; ++i)
        list[i + 1] = (mgk_kernel_arg){sizeof(cl_mem), &arrays[forward->buffer[i]]->memory};
    pthread_mutex_lock(&plan->mutex);
    const clmgk_status status =
        mgk_launch_kernel(queue, plan->kernel, launch, forward->buffers + 1, list, num_wait, wait_list, event, error);
    pthread_mutex_unlock(&plan->mutex);
    return status;
}

/* Runs the kernel over nothing (all-zero arguments), so that drivers which finish compiling at the first launch do it
 * here. */
static clmgk_status warm_up(clmgk_plan *plan, clmgk_error *error)
{
    static const clmgk_buffer nothing = {NULL, 0};
    const clmgk_buffer *arrays[MGK_ARRAYS];
    for (size_t i = 0; i < MGK_ARRAYS; ++i)
        arrays[i] = &nothing;
    unsigned char args[MGK_ARGS_BYTES] = {0};
    mgk_launch launch = plan->forward.launch;
    if (launch.global[0] < LARGE_GRID)
        launch.global[0] = launch.local[0];

    cl_int code = CL_SUCCESS;
    cl_command_queue queue = clCreateCommandQueue(plan->context->context, plan->context->device, 0, &code);
    if (queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    clmgk_status status = mgk_plan_launch(plan, queue, &launch, arrays, args, 0, NULL, NULL, error);
    code = clFinish(queue);
    if (status == CLMGK_OK && code != CL_SUCCESS)
        status = mgk_fail_cl(error, code, "clFinish");
    clReleaseCommandQueue(queue);
    return status;
}

static clmgk_status compile(clmgk_plan *plan, clmgk_error *error)
{
    const double start = mgk_now_ms();
    double ignored = 0.0;
    MGK_TRY(mgk_program_get(plan->context, plan->forward.file, plan->forward.options.data, &plan->program,
                            &plan->info.origin, &ignored, error));
    cl_int code = CL_SUCCESS;
    plan->kernel = clCreateKernel(plan->program->program, plan->forward.name, &code);
    if (plan->kernel == NULL)
        return mgk_fail_cl(error, code, "clCreateKernel");
    MGK_TRY(warm_up(plan, error));
    mgk_program_save(plan->program);
    plan->info.compile_ms = mgk_now_ms() - start;
    return CLMGK_OK;
}

static clmgk_status describe(clmgk_plan *plan, clmgk_error *error)
{
    plan->parameters.allocator = &plan->context->allocator;
    mgk_tunables_print(&plan->forward.tunables, &plan->parameters);
    if (plan->parameters.failed)
        return mgk_fail_memory(error, "a plan's parameters");
    plan->info.workspace_bytes = plan->forward.workspace_bytes;
    plan->info.local_bytes = plan->forward.local_bytes;
    plan->info.private_bytes = plan->forward.private_bytes;
    plan->info.parameters = plan->parameters.data;
    plan->info.options = plan->forward.options.data;
    plan->info.kernel = plan->forward.name;
    return CLMGK_OK;
}

clmgk_status clmgk_plan_create(clmgk_context *context, const clmgk_attention_desc *desc,
                               const clmgk_plan_options *options, clmgk_plan **out, clmgk_error *error)
{
    if (context == NULL || out == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", context == NULL ? "context" : "out",
                        context == NULL ? "a context" : "where to put the plan");
    clmgk_attention_desc resolved;
    clmgk_plan_options chosen;
    MGK_TRY(clmgk_attention_validate(desc, &resolved, error));
    MGK_TRY(read_options(options, &chosen, error));

    clmgk_plan *plan = mgk_alloc(&context->allocator, 1, sizeof(*plan));
    if (plan == NULL)
        return mgk_fail_memory(error, "a plan");
    if (pthread_mutex_init(&plan->mutex, NULL) != 0) {
        mgk_free(&context->allocator, plan);
        return mgk_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "no mutex for a plan");
    }
    mgk_context_retain(context);
    plan->context = context;
    plan->desc = resolved;
    plan->family = mgk_family_of(resolved.variant);

    clmgk_status status;
    MGK_TRY_GOTO(status, choose(plan, &chosen, error), fail);
    MGK_TRY_GOTO(status, compile(plan, error), fail);
    MGK_TRY_GOTO(status, describe(plan, error), fail);
    *out = plan;
    return CLMGK_OK;
fail:
    clmgk_plan_release(plan);
    return status;
}

void clmgk_plan_release(clmgk_plan *plan)
{
    if (plan == NULL)
        return;
    clmgk_context *const context = plan->context;
    if (plan->kernel != NULL)
        clReleaseKernel(plan->kernel);
    if (plan->program != NULL)
        mgk_program_release(plan->program);
    mgk_text_free(&plan->forward.options);
    mgk_text_free(&plan->parameters);
    pthread_mutex_destroy(&plan->mutex);
    mgk_free(&context->allocator, plan);
    clmgk_context_release(context);
}

clmgk_status clmgk_plan_get_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error)
{
    if (plan == NULL || info == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", plan == NULL ? "plan" : "info",
                        plan == NULL ? "a plan" : "where to put the information");
    *info = plan->info;
    return CLMGK_OK;
}

size_t clmgk_plan_workspace_size(const clmgk_plan *plan)
{
    return plan == NULL ? 0 : (size_t)plan->info.workspace_bytes;
}
