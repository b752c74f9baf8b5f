/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues a plan: checks the call's buffers, binds them and launches the kernels. Never compiles, allocates or
 * waits. */
#include "attention/plan.h"
#include "device/checks.h"

#include <inttypes.h>

#define MAX_PARTS (INT64_C(1) << 20)

/* ---- checks ------------------------------------------------------------------------------------------------- */

_Static_assert((int)CLMGK_ARRAYS <= (int)MGK_OPERANDS, "arrays of a call");

/* Arrays of a call, and extents of arrays whose size the call gives. */
typedef struct call_arrays {
    mgk_operands operands;
    mgk_extent parts[3]; /* PARTS_O, PARTS_LSE, PARTS_LSE_LOW */
} call_arrays;

static int access_of(const clmgk_plan *plan, clmgk_pass pass, clmgk_array array)
{
    const bool of_states = array >= CLMGK_ARRAY_NEW_STATE_C && array <= CLMGK_ARRAY_NEW_STATE_M;
    if (!mgk_array_is_output(&plan->desc, pass, array))
        return MGK_READ;
    /* some gradients are sums in place, and a pool may be of old and new states */
    return pass == CLMGK_PASS_BACKWARD || (of_states && plan->desc.state_pool > 0) ? MGK_READ | MGK_WRITE : MGK_WRITE;
}

/* Whether the array is a pool of old states that is also that of new ones, which then stands for both. */
static bool is_pool_of_new_states(const clmgk_plan *plan, clmgk_array array, const mgk_call *call)
{
    enum { TO_NEW = CLMGK_ARRAY_NEW_STATE_C - CLMGK_ARRAY_STATE_C };
    if (plan->desc.state_pool == 0 || array < CLMGK_ARRAY_STATE_C || array > CLMGK_ARRAY_STATE_M)
        return false;
    const clmgk_buffer *const old_states = call->buffers[array], *const new_states = call->buffers[array + TO_NEW];
    return new_states != NULL && new_states->memory == old_states->memory && new_states->offset == old_states->offset;
}

static clmgk_status add_array(const clmgk_plan *plan, const mgk_plan_array *line, clmgk_pass pass, clmgk_array array,
                              const mgk_call *call, call_arrays *arrays, clmgk_error *error)
{
    const clmgk_buffer *const buffer = call->buffers[array];
    const char *const name = clmgk_array_name(array);
    const mgk_extent *extent = &line->extent;
    if (array >= CLMGK_ARRAY_PARTS_O && array <= CLMGK_ARRAY_PARTS_LSE_LOW) {
        mgk_extent *const parts = &arrays->parts[array - CLMGK_ARRAY_PARTS_O];
        int64_t bytes = 0;
        if (!mgk_mul_i64(extent->bytes, call->parts, &bytes))
            return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: %" PRId64 " parts do not fit in 64 bits", name,
                            call->parts);
        *parts = mgk_extent_dense(bytes);
        extent = parts;
    }
    if (buffer->memory != NULL && is_pool_of_new_states(plan, array, call))
        return CLMGK_OK;
    if (buffer->memory != NULL)
        arrays->operands.item[arrays->operands.count++] =
            (mgk_operand){name, buffer, extent, line->element, access_of(plan, pass, array), NULL, 0};
    else if (line->presence[pass] == CLMGK_REQUIRED && extent->bytes > 0) /* OpenCL has no empty buffers */
        return mgk_fail_missing(&plan->desc, pass, array, "a buffer", error);
    return CLMGK_OK;
}

/* `lines`, `steps`: the plan's, or those of the call's sizes. */
static clmgk_status check_arrays(const clmgk_plan *plan, const mgk_plan_array *lines, const mgk_steps *steps,
                                 clmgk_pass pass, const mgk_call *call, const clmgk_buffer *workspace,
                                 clmgk_error *error)
{
    call_arrays arrays;
    arrays.operands.count = 0;
    for (int i = 0; i < CLMGK_ARRAY_WORKSPACE; ++i)
        if (lines[i].presence[pass] != CLMGK_ABSENT)
            MGK_TRY(add_array(plan, &lines[i], pass, (clmgk_array)i, call, &arrays, error));
    const uint64_t bytes = mgk_steps_workspace_size(steps);
    MGK_TRY(mgk_operands_add_workspace(&arrays.operands, workspace, bytes, error));
    return call->cuda != NULL ? mgk_check_addresses(call->cuda->cuda, &arrays.operands, error)
                              : mgk_check_operands(plan->context, &arrays.operands, error);
}

/* The arrays that the pass uses. */
static clmgk_status list_arrays(const clmgk_plan *plan, clmgk_pass pass, clmgk_attention_args *args, mgk_call *call,
                                clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        const clmgk_array array = (clmgk_array)i;
        const clmgk_buffer *const buffer = clmgk_array_buffer(args, array);
        if (plan->array[i].presence[pass] != CLMGK_ABSENT) {
            call->buffers[i] = buffer;
            if ((clmgk_array_get_info(array)->gradient & args->accumulate) != 0)
                call->added |= UINT64_C(1) << i;
        } else if (buffer->memory != NULL && mgk_array_is_of_pass(pass, array)) {
            return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                            "%s: given, but the plan's descriptor (variant %s) does not use it",
                            clmgk_array_name(array), clmgk_variant_name(plan->desc.variant));
        }
    }
    return CLMGK_OK;
}

/* ---- the public calls --------------------------------------------------------------------------------------- */

static clmgk_status check_numbers(const clmgk_plan *plan, clmgk_pass pass, const clmgk_attention_args *args,
                                  clmgk_error *error)
{
    if (pass == CLMGK_PASS_BACKWARD && (args->accumulate & ~(uint32_t)CLMGK_GRADIENT_ALL) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "accumulate: %" PRIu32 ": expected a set of flags, at most %d", args->accumulate,
                        CLMGK_GRADIENT_ALL);
    if (pass == CLMGK_PASS_COMBINE && (args->parts < 1 || args->parts > MAX_PARTS))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parts: %" PRId64 ": expected 1 to %" PRId64, args->parts,
                        MAX_PARTS);
    if (pass == CLMGK_PASS_APPEND && (args->v.memory == NULL) != (args->append_v.memory == NULL))
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected a buffer, or none for %s either",
                        args->v.memory == NULL ? "v" : "append_v", args->v.memory == NULL ? "append_v" : "v");
    if (pass == CLMGK_PASS_APPEND && plan->desc.use_scale_v &&
        (args->v.memory == NULL) != (args->scale_v.memory == NULL))
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected a buffer, or none for %s either",
                        args->v.memory == NULL ? "v" : "scale_v", args->v.memory == NULL ? "scale_v" : "v");
    return CLMGK_OK;
}

clmgk_status mgk_plan_check_call(const clmgk_plan *plan, clmgk_pass pass, const void *args, clmgk_error *error)
{
    static const char *const fields[CLMGK_PASSES] = {
        "", "gradients", "statistics", "combine", "use_mask_blocks and mask_mod", "append"};
    if (plan == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: NULL: expected a plan");
    if (args == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "args: NULL: expected the call's arrays");
    if (plan->pass[pass] == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: expected a plan whose descriptor has %s",
                        fields[pass]);
    return CLMGK_OK;
}

static clmgk_status enqueue_steps(clmgk_plan *plan, const mgk_plan_array *lines, mgk_steps *steps, clmgk_pass pass,
                                  clmgk_attention_args *args, const mgk_queue_place *at, const mgk_cuda_place *cuda,
                                  clmgk_error *error)
{
    mgk_call call = mgk_empty_call();
    call.seed = args->seed;
    call.parts = args->parts;
    call.cuda = cuda;
    MGK_TRY(list_arrays(plan, pass, args, &call, error));
    if (cuda == NULL) {
        MGK_TRY(mgk_check_queue(plan->context, at->queue, error));
        MGK_TRY(mgk_check_wait_list(plan->context, at->num_wait, at->wait_list, error));
    }
    MGK_TRY(check_arrays(plan, lines, steps, pass, &call, &args->workspace, error));
    args->workspace.offset = mgk_aligned_workspace(args->workspace.offset) / sizeof(float); /* call's, too */
    return mgk_steps_enqueue(steps, &call, at, error);
}

static clmgk_status enqueue_sized(clmgk_plan *plan, clmgk_pass pass, clmgk_attention_args *args,
                                  const mgk_queue_place *at, const mgk_cuda_place *cuda, clmgk_error *error)
{
    mgk_sized_call call;
    MGK_TRY(mgk_sized_plan(plan, pass, args->sizes, &call, error));
    return enqueue_steps(plan, call.array, &call.pass.steps, pass, args, at, cuda, error);
}

clmgk_status mgk_plan_enqueue(clmgk_plan *plan, clmgk_pass pass, clmgk_attention_args *args, const mgk_queue_place *at,
                              const mgk_cuda_place *cuda, clmgk_error *error)
{
    MGK_TRY(check_numbers(plan, pass, args, error));
    return plan->desc.sizes_at_call || args->sizes != NULL
               ? enqueue_sized(plan, pass, args, at, cuda, error)
               : enqueue_steps(plan, plan->array, &plan->pass[pass]->plan.steps, pass, args, at, cuda, error);
}

/* The caller's structure is copied, because it may be an older version's. */
static clmgk_status enqueue(clmgk_plan *plan, clmgk_pass pass, const clmgk_attention_args *given,
                            const mgk_queue_place *at, clmgk_error *error)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    MGK_TRY(mgk_plan_check_call(plan, pass, given, error));
    MGK_TRY(mgk_struct_read(given, "args", sizeof(args), &args, sizeof(args), error));
    return mgk_plan_enqueue(plan, pass, &args, at, NULL, error);
}

/* The public call of a pass: clmgk_enqueue_forward and so on. */
#define ENQUEUE(name, PASS)                                                                                            \
    clmgk_status clmgk_enqueue_##name(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,      \
                                      cl_uint num_wait, const cl_event *wait_list, cl_event *event,                    \
                                      clmgk_error *error)                                                              \
    {                                                                                                                  \
        const mgk_queue_place at = {queue, num_wait, wait_list, event};                                                \
        return enqueue(plan, CLMGK_PASS_##PASS, args, &at, error);                                                     \
    }
ENQUEUE(forward, FORWARD)
ENQUEUE(backward, BACKWARD)
ENQUEUE(statistics, STATISTICS)
ENQUEUE(combine, COMBINE)
ENQUEUE(mask, MASK)
ENQUEUE(append, APPEND)
