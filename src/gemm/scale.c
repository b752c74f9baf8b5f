/* SPDX-License-Identifier: Apache-2.0 */
/* Products without a sum (k = 0) and empty products: our own kernel scales C by beta. */
#include "gemm/gemm.h"

#include "gemm/scale_args.clh"

enum { GROUP = 64 };

typedef struct scale_state {
    mgk_program *program;
    cl_kernel kernel;
    pthread_mutex_t mutex; /* guards the kernel's arguments */
} scale_state;

/* Elements that change. */
static int64_t elements_of(const clmgk_gemm_desc *desc)
{
    return desc->beta == 1.0 ? 0 : desc->batch * desc->m * desc->n; /* at most C's extent: elements are disjoint */
}

static clmgk_status launch(scale_state *state, const mgk_gemm_scale_args *args, size_t global, const cl_mem *c,
                           cl_command_queue queue, const mgk_gemm_call *call, clmgk_error *error)
{
    const mgk_launch grid = {1, {global}, {GROUP}};
    const mgk_kernel_arg list[] = {{sizeof(*args), args}, {sizeof(*c), c}};
    return mgk_launch_kernel(queue, state->kernel, &grid, MGK_COUNT(list), list, call != NULL ? call->num_wait : 0,
                             call != NULL ? call->wait_list : NULL, call != NULL ? call->event : NULL, error);
}

/* Launches the kernel once, because some drivers finish compiling then. */
static clmgk_status warm_up(const clmgk_gemm_plan *plan, scale_state *state, clmgk_error *error)
{
    static const mgk_gemm_scale_args nothing = {0};
    cl_int code = CL_SUCCESS;
    cl_command_queue queue = clCreateCommandQueue(plan->context->context, plan->context->device, 0, &code);
    if (queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    clmgk_status status = launch(state, &nothing, GROUP, &plan->context->stand_in, queue, NULL, error);
    code = clFinish(queue);
    clReleaseCommandQueue(queue);
    if (status == CLMGK_OK && code != CL_SUCCESS)
        status = mgk_fail_cl(error, code, "clFinish");
    return status;
}

static clmgk_status build(clmgk_gemm_plan *plan, scale_state *state, clmgk_error *error)
{
    static const char *const options[] = {"", "-DSTORAGE_F16=1", "-DSTORAGE_BF16=1"};
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    double ignored = 0.0;
    cl_int code = CL_SUCCESS;
    MGK_TRY(mgk_program_get(plan->context, "gemm/scale.cl", options[plan->desc.dtype], &state->program, &origin,
                            &ignored, error));
    state->kernel = clCreateKernel(state->program->program, "gemm_scale", &code);
    if (state->kernel == NULL)
        return mgk_fail_cl(error, code, "clCreateKernel");
    MGK_TRY(warm_up(plan, state, error));
    mgk_program_save(state->program);
    return CLMGK_OK;
}

static clmgk_status scale_plan(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    (void)parameters;
    if (elements_of(&plan->desc) == 0)
        return CLMGK_OK;
    scale_state *const state = mgk_alloc(&plan->context->allocator, 1, sizeof(*state));
    if (state == NULL)
        return mgk_fail_memory(error, "a plan");
    if (pthread_mutex_init(&state->mutex, NULL) != 0) {
        mgk_free(&plan->context->allocator, state);
        return mgk_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "no mutex for a plan");
    }
    plan->state = state;
    return build(plan, state, error);
}

static clmgk_status scale_enqueue(const clmgk_gemm_plan *plan, const mgk_gemm_call *call, clmgk_error *error)
{
    const clmgk_gemm_desc *const desc = &plan->desc;
    scale_state *const state = plan->state;
    const int64_t elements = elements_of(desc);
    if (elements == 0) {
        static const mgk_launch nothing = {.dimensions = 1};
        return mgk_launch_kernel(call->queue, NULL, &nothing, 0, NULL, call->num_wait, call->wait_list, call->event,
                                 error);
    }
    const mgk_gemm_scale_args args = {.offset = (int64_t)call->args->c.offset,
                                      .stride = desc->stride_c,
                                      .ld = desc->ldc,
                                      .elements = elements,
                                      .rows = (int32_t)desc->m,
                                      .columns = (int32_t)desc->n,
                                      .beta = (float)desc->beta};
    const size_t global = ((size_t)elements + GROUP - 1) / GROUP * GROUP;
    pthread_mutex_lock(&state->mutex);
    const clmgk_status status = launch(state, &args, global, &call->args->c.memory, call->queue, call, error);
    pthread_mutex_unlock(&state->mutex);
    return status;
}

static void scale_release(clmgk_gemm_plan *plan)
{
    scale_state *const state = plan->state;
    if (state == NULL)
        return;
    if (state->kernel != NULL)
        clReleaseKernel(state->kernel);
    mgk_program_release(state->program);
    pthread_mutex_destroy(&state->mutex);
    mgk_free(&plan->context->allocator, state);
}

const mgk_gemm_provider mgk_gemm_scale = {
    "none", false, NULL, NULL, scale_plan, scale_enqueue, scale_release,
};
