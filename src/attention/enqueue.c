/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues a plan: checks the call's buffers, binds them and launches the kernels. Never compiles, allocates or
 * waits. */
#include "attention/plan.h"
#include "device/checks.h"

#include <inttypes.h>

#define MAX_PARTS (INT64_C(1) << 20)

/* ---- checks ------------------------------------------------------------------------------------------------- */

/* Bytes from the first element to one past the last. */
static clmgk_status bytes_of(const clmgk_plan *plan, clmgk_array array, const mgk_call *call, uint64_t *bytes,
                             clmgk_error *error)
{
    const char *const name = mgk_array_name(array);
    const bool of_parts = array == CLMGK_ARRAY_PARTS_O || array == CLMGK_ARRAY_PARTS_LSE;
    const int64_t parts = of_parts ? call->parts : 1;
    int64_t extent = 0, total = 0;
    if (!mgk_array_extent(&plan->desc, array, &extent)) /* checked with the descriptor */
        return mgk_fail(error, CLMGK_ERROR_INTERNAL, "%s: extent", name);
    if (!mgk_mul_i64(extent * (int64_t)clmgk_array_element_size(&plan->desc, array), parts, &total))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: %" PRId64 " parts do not fit in 64 bits", name, parts);
    *bytes = (uint64_t)total;
    return CLMGK_OK;
}

static clmgk_status check_array(const clmgk_plan *plan, clmgk_pass pass, clmgk_array array, const mgk_call *call,
                                clmgk_error *error)
{
    const clmgk_buffer *const buffer = call->buffers[array];
    const char *const name = mgk_array_name(array);
    uint64_t bytes = 0;
    MGK_TRY(bytes_of(plan, array, call, &bytes, error));
    if (buffer->memory != NULL)
        return mgk_check_memory(plan->context, buffer, name, clmgk_array_element_size(&plan->desc, array), bytes,
                                error);
    /* OpenCL has no empty buffers: an array without elements needs none */
    const bool required = clmgk_array_presence(&plan->desc, pass, array) == CLMGK_REQUIRED;
    return required && bytes > 0 ? mgk_fail_missing(&plan->desc, pass, array, "a buffer", error) : CLMGK_OK;
}

/* The arrays that the pass uses. */
static clmgk_status list_arrays(const clmgk_plan *plan, clmgk_pass pass, clmgk_attention_args *args, mgk_call *call,
                                clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        const clmgk_array array = (clmgk_array)i;
        const clmgk_buffer *const buffer = clmgk_array_buffer(args, array);
        if (clmgk_array_presence(&plan->desc, pass, array) != CLMGK_ABSENT) {
            call->buffers[i] = buffer;
            call->added |= (uint64_t)((clmgk_array_get_info(array)->gradient & args->accumulate) != 0) << i;
        } else if (buffer->memory != NULL && mgk_array_is_of_pass(pass, array)) {
            return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                            "%s: given, but the plan's descriptor (variant %s) does not use it", mgk_array_name(array),
                            clmgk_variant_name(plan->desc.variant));
        }
    }
    return CLMGK_OK;
}

/* ---- the public calls --------------------------------------------------------------------------------------- */

static clmgk_status check_numbers(clmgk_pass pass, const clmgk_attention_args *args, clmgk_error *error)
{
    if (pass == CLMGK_PASS_BACKWARD && (args->accumulate & ~(uint32_t)CLMGK_GRADIENT_ALL) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "accumulate: %" PRIu32 ": expected a set of at most %d",
                        args->accumulate, CLMGK_GRADIENT_ALL);
    if (pass == CLMGK_PASS_COMBINE && (args->parts < 1 || args->parts > MAX_PARTS))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parts: %" PRId64 ": expected 1 to %" PRId64, args->parts,
                        MAX_PARTS);
    return CLMGK_OK;
}

/* The call's numbers and arrays, from a copy of the caller's structure that lives as long as the call. */
static clmgk_status read_call(const clmgk_plan *plan, clmgk_pass pass, const clmgk_attention_args *given,
                              clmgk_attention_args *args, mgk_call *call, clmgk_error *error)
{
    static const char *const fields[CLMGK_PASSES] = {"", "gradients", "statistics", "combine"};
    if (plan == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: NULL: expected a plan");
    if (given == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "args: NULL: expected the call's arrays");
    if (plan->pass[pass] == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: made from a descriptor with %s = 0", fields[pass]);
    MGK_TRY(mgk_struct_read(given, "args", sizeof(*args), args, sizeof(*args), error));
    MGK_TRY(check_numbers(pass, args, error));
    *call = mgk_empty_call();
    call->seed = args->seed;
    call->parts = args->parts;
    return list_arrays(plan, pass, args, call, error);
}

static clmgk_status enqueue(clmgk_plan *plan, clmgk_pass pass, const clmgk_attention_args *given,
                            const mgk_queue_place *at, clmgk_error *error)
{
    clmgk_attention_args args;
    mgk_call call;
    MGK_TRY(read_call(plan, pass, given, &args, &call, error));
    MGK_TRY(mgk_check_queue(plan->context, at->queue, error));
    MGK_TRY(mgk_check_wait_list(plan->context, at->num_wait, at->wait_list, error));
    for (int i = 0; i < CLMGK_ARRAY_WORKSPACE; ++i)
        if (clmgk_array_presence(&plan->desc, pass, (clmgk_array)i) != CLMGK_ABSENT)
            MGK_TRY(check_array(plan, pass, (clmgk_array)i, &call, error));
    mgk_steps *const steps = &plan->pass[pass]->plan.steps;
    MGK_TRY(mgk_check_workspace(plan->context, &args.workspace, steps->workspace_bytes, error));
    args.workspace.offset /= sizeof(float); /* call's, too */
    return mgk_steps_enqueue(steps, &call, at, error);
}

clmgk_status clmgk_enqueue_forward(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                   cl_uint num_wait, const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    return enqueue(plan, CLMGK_PASS_FORWARD, args, &(mgk_queue_place){queue, num_wait, wait_list, event}, error);
}

clmgk_status clmgk_enqueue_backward(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                    cl_uint num_wait, const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    return enqueue(plan, CLMGK_PASS_BACKWARD, args, &(mgk_queue_place){queue, num_wait, wait_list, event}, error);
}

clmgk_status clmgk_enqueue_statistics(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                      cl_uint num_wait, const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    return enqueue(plan, CLMGK_PASS_STATISTICS, args, &(mgk_queue_place){queue, num_wait, wait_list, event}, error);
}

clmgk_status clmgk_enqueue_combine(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                   cl_uint num_wait, const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    return enqueue(plan, CLMGK_PASS_COMBINE, args, &(mgk_queue_place){queue, num_wait, wait_list, event}, error);
}
