/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueueing a plan: the call's buffers checked, bound and launched. Nothing here compiles, allocates or waits. */
#include "attention/plan.h"
#include "device/checks.h"

#include <inttypes.h>

/* The first versions' sizes. */
enum {
    LEAST_ARGS_SIZE = offsetof(clmgk_attention_args, offsets),
    LEAST_GRADIENTS_SIZE = offsetof(clmgk_gradient_args, grad_mix)
};

#define MAX_PARTS (INT64_C(1) << 20)

/* ---- a call's arrays in mgk_array's order ------------------------------------------------------------------- */

/* All but V, O and L, which not every pass has. */
static void list_inputs(const clmgk_attention_args *args, mgk_call *call)
{
    call->arrays[MGK_Q] = &args->q;
    call->arrays[MGK_K] = &args->k;
    call->arrays[MGK_PRIOR] = &args->prior;
    call->arrays[MGK_VARIANCE] = &args->variance;
    call->arrays[MGK_SHIFT] = &args->shift;
    call->arrays[MGK_LENGTHS] = &args->lengths;
    call->arrays[MGK_LENGTHS_Q] = &args->lengths_q;
    call->arrays[MGK_OFFSETS] = &args->offsets;
    call->arrays[MGK_OFFSETS_K] = &args->offsets_k;
    call->arrays[MGK_BIAS] = &args->bias;
    call->arrays[MGK_SLOPES] = &args->slopes;
    call->arrays[MGK_SINKS] = &args->sinks;
    call->arrays[MGK_MIX] = &args->mix;
    call->arrays[MGK_MIX_WEIGHT] = &args->mix_weight;
    call->arrays[MGK_MIX_OFFSET] = &args->mix_offset;
    call->arrays[MGK_NOISE] = &args->noise;
    call->arrays[MGK_WORKSPACE] = &args->workspace;
    call->seed = args->seed;
}

static void list_results(const clmgk_attention_args *args, mgk_call *call)
{
    call->arrays[MGK_V] = &args->v;
    call->arrays[MGK_O] = &args->o;
    call->arrays[MGK_LSE] = &args->lse;
}

static void list_gradients(const clmgk_gradient_args *args, mgk_call *call)
{
    call->arrays[MGK_GRAD_O] = &args->grad_o;
    call->arrays[MGK_GRAD_LSE] = &args->grad_lse;
    call->arrays[MGK_GRAD_Q] = &args->grad_q;
    call->arrays[MGK_GRAD_K] = &args->grad_k;
    call->arrays[MGK_GRAD_V] = &args->grad_v;
    call->arrays[MGK_GRAD_PRIOR] = &args->grad_prior;
    call->arrays[MGK_GRAD_VARIANCE] = &args->grad_variance;
    call->arrays[MGK_GRAD_SHIFT] = &args->grad_shift;
    call->arrays[MGK_GRAD_BIAS] = &args->grad_bias;
    call->arrays[MGK_GRAD_SINKS] = &args->grad_sinks;
    call->arrays[MGK_GRAD_MIX] = &args->grad_mix;
    call->arrays[MGK_GRAD_MIX_WEIGHT] = &args->grad_mix_weight;
    call->arrays[MGK_GRAD_MIX_OFFSET] = &args->grad_mix_offset;
    call->arrays[MGK_GRAD_NOISE] = &args->grad_noise;
    call->accumulate = args->accumulate;
}

static void list_statistics(const clmgk_statistic_args *args, mgk_call *call)
{
    call->arrays[MGK_RESPONSIBILITIES] = &args->responsibilities;
    call->arrays[MGK_COUNTS] = &args->counts;
    call->arrays[MGK_NEW_PRIOR] = &args->new_prior;
    call->arrays[MGK_NLL] = &args->nll;
}

static void list_parts(const clmgk_combine_args *args, mgk_call *call)
{
    call->arrays[MGK_PARTS_O] = &args->parts_o;
    call->arrays[MGK_PARTS_LSE] = &args->parts_lse;
    call->arrays[MGK_O] = &args->o;
    call->arrays[MGK_LSE] = &args->lse;
    call->parts = args->parts;
}

/* ---- checks ------------------------------------------------------------------------------------------------- */

/* Bytes from the first element to one past the last. */
static clmgk_status bytes_of(const mgk_shape *shape, mgk_array array, const mgk_call *call, uint64_t *bytes,
                             clmgk_error *error)
{
    const bool of_parts = array == MGK_PARTS_O || array == MGK_PARTS_LSE;
    const int64_t parts = of_parts ? call->parts : 1;
    int64_t extent = 0;
    int64_t total = 0;
    if (!mgk_shape_extent(shape, &extent)) /* checked with the descriptor */
        return mgk_fail(error, CLMGK_ERROR_INTERNAL, "%s: extent", shape->name);
    if (!mgk_mul_i64(extent * (int64_t)shape->element, parts, &total))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: %" PRId64 " parts do not fit in 64 bits", shape->name, parts);
    *bytes = (uint64_t)total;
    return CLMGK_OK;
}

static clmgk_status check_missing(const clmgk_plan *plan, mgk_pass pass, mgk_array array, const char *name,
                                  clmgk_error *error)
{
    if (pass == MGK_BACKWARD && array == MGK_LSE)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "lse: NULL: expected L of the forward pass, which gradients are made from");
    return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected a buffer (variant %s)", name,
                    clmgk_variant_name(plan->desc.variant));
}

static clmgk_status check_array(const clmgk_plan *plan, mgk_pass pass, mgk_array array, const mgk_call *call,
                                clmgk_error *error)
{
    const clmgk_buffer *const buffer = call->arrays[array];
    const mgk_presence presence = mgk_presence_of(&plan->desc, pass, array);
    const mgk_shape shape = mgk_shape_of(&plan->desc, array);
    uint64_t bytes = 0;
    if (presence == MGK_ABSENT && buffer->memory != NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: given, but the plan's descriptor (variant %s) does not use it", shape.name,
                        clmgk_variant_name(plan->desc.variant));
    MGK_TRY(bytes_of(&shape, array, call, &bytes, error));
    if (buffer->memory != NULL)
        return mgk_check_memory(plan->context, buffer, shape.name, shape.element, bytes, error);
    /* OpenCL has no empty buffers: an array without elements needs none */
    return presence == MGK_REQUIRED && bytes > 0 ? check_missing(plan, pass, array, shape.name, error) : CLMGK_OK;
}

/* ---- launches ----------------------------------------------------------------------------------------------- */

/* Where a call is enqueued, and what it waits for and tells. */
typedef struct place {
    cl_command_queue queue;
    cl_uint num_wait;
    const cl_event *wait_list;
    cl_event *event; /* NULL: not wanted */
} place;

/* The next step that has work, from `step` on; the number of steps if there is none. */
static size_t next_step(const mgk_pass_plan *plan, size_t step)
{
    while (step < plan->steps && plan->step[step].launch.global[0] == 0)
        ++step;
    return step;
}

/* An empty problem still orders events. */
static clmgk_status launch_nothing(const place *at, clmgk_error *error)
{
    static const mgk_launch nothing = {.dimensions = 1};
    return mgk_launch_kernel(at->queue, NULL, &nothing, 0, NULL, at->num_wait, at->wait_list, at->event, error);
}

/* The steps one after the other: each waits for the one before, since the queue may be out of order. */
static clmgk_status launch_steps(const clmgk_plan *plan, mgk_pass which, const mgk_call *call, const place *at,
                                 clmgk_error *error)
{
    const mgk_compiled_pass *const pass = plan->pass[which];
    unsigned char args[MGK_ARGS_BYTES];
    clmgk_status status = CLMGK_OK;
    cl_event before = NULL;
    size_t step = next_step(&pass->plan, 0);
    if (step == pass->plan.steps)
        return launch_nothing(at, error);
    while (status == CLMGK_OK && step < pass->plan.steps) {
        const mgk_kernel_plan *const kernel = &pass->plan.step[step];
        const size_t next = next_step(&pass->plan, step + 1);
        cl_event done = NULL;
        plan->family->bind(kernel, call, args);
        status = mgk_launch_step(pass, step, &kernel->launch, args, call, at->queue, before != NULL ? 1 : at->num_wait,
                                 before != NULL ? &before : at->wait_list, next < pass->plan.steps ? &done : at->event,
                                 error);
        if (before != NULL)
            clReleaseEvent(before);
        before = done;
        step = next;
    }
    return status;
}

/* What all passes do with a call whose arrays are listed. */
static clmgk_status enqueue(clmgk_plan *plan, mgk_pass pass, const mgk_call *call, const place *at, clmgk_error *error)
{
    MGK_TRY(mgk_check_queue(plan->context, at->queue, error));
    MGK_TRY(mgk_check_wait_list(plan->context, at->num_wait, at->wait_list, error));
    for (int i = 0; i < MGK_WORKSPACE; ++i)
        MGK_TRY(check_array(plan, pass, (mgk_array)i, call, error));
    MGK_TRY(
        mgk_check_workspace(plan->context, call->arrays[MGK_WORKSPACE], plan->pass[pass]->plan.workspace_bytes, error));
    pthread_mutex_lock(&plan->mutex);
    const clmgk_status status = launch_steps(plan, pass, call, at, error);
    pthread_mutex_unlock(&plan->mutex);
    return status;
}

/* ---- the public calls --------------------------------------------------------------------------------------- */

/* The plan and what a call gives it; `name` is the argument's. */
static clmgk_status check_given(const clmgk_plan *plan, const void *args, const char *name, clmgk_error *error)
{
    if (plan == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: NULL: expected a plan");
    if (args == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected the call's arrays", name);
    return CLMGK_OK;
}

/* Whether the plan's descriptor asked for a pass, by its `field`. */
static clmgk_status check_pass(const clmgk_plan *plan, mgk_pass pass, const char *field, clmgk_error *error)
{
    if (plan->pass[pass] != NULL)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: made from a descriptor with %s = 0", field);
}

clmgk_status clmgk_enqueue_forward(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                   cl_uint num_wait, const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    MGK_TRY(check_given(plan, args, "args", error));
    clmgk_attention_args inputs;
    MGK_TRY(mgk_struct_read(args, "args", LEAST_ARGS_SIZE, &inputs, sizeof(inputs), error));
    mgk_call call = mgk_empty_call();
    list_inputs(&inputs, &call);
    list_results(&inputs, &call);
    const place at = {queue, num_wait, wait_list, event};
    return enqueue(plan, MGK_FORWARD, &call, &at, error);
}

clmgk_status clmgk_enqueue_backward(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                    const clmgk_gradient_args *gradients, cl_uint num_wait, const cl_event *wait_list,
                                    cl_event *event, clmgk_error *error)
{
    MGK_TRY(check_given(plan, args, "args", error));
    MGK_TRY(check_given(plan, gradients, "gradients", error));
    MGK_TRY(check_pass(plan, MGK_BACKWARD, "gradients", error));
    clmgk_attention_args inputs;
    clmgk_gradient_args outputs;
    MGK_TRY(mgk_struct_read(args, "args", LEAST_ARGS_SIZE, &inputs, sizeof(inputs), error));
    MGK_TRY(mgk_struct_read(gradients, "gradients", LEAST_GRADIENTS_SIZE, &outputs, sizeof(outputs), error));
    if ((outputs.accumulate & ~(uint32_t)CLMGK_GRADIENT_ALL) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "accumulate: %" PRIu32 ": expected a set of at most %d",
                        outputs.accumulate, CLMGK_GRADIENT_ALL);
    mgk_call call = mgk_empty_call();
    list_inputs(&inputs, &call);
    list_results(&inputs, &call);
    list_gradients(&outputs, &call);
    const place at = {queue, num_wait, wait_list, event};
    return enqueue(plan, MGK_BACKWARD, &call, &at, error);
}

clmgk_status clmgk_enqueue_statistics(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                      const clmgk_statistic_args *statistics, cl_uint num_wait,
                                      const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    MGK_TRY(check_given(plan, args, "args", error));
    MGK_TRY(check_given(plan, statistics, "statistics", error));
    MGK_TRY(check_pass(plan, MGK_STATISTICS, "statistics", error));
    clmgk_attention_args inputs;
    clmgk_statistic_args outputs;
    MGK_TRY(mgk_struct_read(args, "args", LEAST_ARGS_SIZE, &inputs, sizeof(inputs), error));
    MGK_TRY(mgk_struct_read(statistics, "statistics", sizeof(outputs), &outputs, sizeof(outputs), error));
    mgk_call call = mgk_empty_call();
    list_inputs(&inputs, &call);
    list_statistics(&outputs, &call);
    const place at = {queue, num_wait, wait_list, event};
    return enqueue(plan, MGK_STATISTICS, &call, &at, error);
}

clmgk_status clmgk_enqueue_combine(clmgk_plan *plan, cl_command_queue queue, const clmgk_combine_args *args,
                                   cl_uint num_wait, const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    MGK_TRY(check_given(plan, args, "args", error));
    MGK_TRY(check_pass(plan, MGK_COMBINE, "combine", error));
    clmgk_combine_args given;
    MGK_TRY(mgk_struct_read(args, "args", sizeof(given), &given, sizeof(given), error));
    if (given.parts < 1 || given.parts > MAX_PARTS)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parts: %" PRId64 ": expected 1 to %" PRId64, given.parts,
                        MAX_PARTS);
    mgk_call call = mgk_empty_call();
    list_parts(&given, &call);
    const place at = {queue, num_wait, wait_list, event};
    return enqueue(plan, MGK_COMBINE, &call, &at, error);
}
