/* SPDX-License-Identifier: Apache-2.0 */
/* Plans on memory and streams of CUDA. Calls take the same way as OpenCL's, with addresses in the place of buffers. */
#include "clmgk/cuda.h"
#include "attention/plan.h"

#include <inttypes.h>

clmgk_status clmgk_get_cuda_device_info(int32_t number, clmgk_device_info *info, clmgk_error *error)
{
    cl_device_id device = NULL;
    if (info == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "info: NULL: expected room for a device's facts");
    MGK_TRY(mgk_cuda_find_device(number, &device, error));
    return clmgk_get_device_info(device, info, error);
}

clmgk_status clmgk_plan_prepare_cuda(clmgk_plan *plan, clmgk_error *error)
{
    mgk_cuda *cuda = NULL;
    if (plan == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: NULL: expected a plan");
    MGK_TRY(mgk_cuda_open(plan->context, &cuda, error));
    MGK_TRY(mgk_cuda_enter(cuda, error));
    clmgk_plan *launched = NULL;
    clmgk_status status = mgk_cuda_form_make(plan, cuda, &launched, error);
    if (status == CLMGK_OK)
        status = mgk_plan_load_in_cuda(launched, cuda, error);
    mgk_cuda_leave(cuda);
    return status;
}

clmgk_status clmgk_plan_get_cuda_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error)
{
    MGK_TRY(clmgk_plan_get_info(plan, info, error));
    const mgk_cuda_form *const form = mgk_cuda_form_of(plan);
    if (form == NULL)
        return mgk_fail_unprepared(error);
    const size_t size = info->struct_size;
    clmgk_plan_info found = form->plan != NULL ? form->plan->info : plan->info;
    found.struct_size = size;
    found.workspace_bytes = plan->info.workspace_bytes;
    found.backward_workspace_bytes = plan->info.backward_workspace_bytes;
    found.cache_note = info->cache_note;
    found.engine_reason = form->reason;
    mgk_struct_write(info, 0, &found, sizeof(found));
    return CLMGK_OK;
}

/* An address as a memory object, which begins at a multiple of MGK_CUDA_BASE, and an offset. */
static clmgk_status place(clmgk_array array, uint64_t address, size_t element, clmgk_buffer *buffer, clmgk_error *error)
{
    const uint64_t offset = address % MGK_CUDA_BASE;
    if (element == 0) /* not an array of the plan */
        element = 1;
    if (offset % element != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: address 0x%" PRIx64 ": expected a multiple of %zu bytes", clmgk_array_name(array), address,
                        element);
    *buffer = (clmgk_buffer){mgk_cuda_memory_at(address - offset), offset / element};
    return CLMGK_OK;
}

static clmgk_status place_all(const clmgk_plan *plan, const clmgk_cuda_args *given, clmgk_attention_args *args,
                              clmgk_error *error)
{
    const uint64_t addresses[CLMGK_ARRAYS] = {
#define ADDRESS(name, field, ...)  [CLMGK_ARRAY_##name] = given->field,
#define GRADIENT(name, field, ...) [CLMGK_ARRAY_GRAD_##name] = given->grad_##field,
        CLMGK_ARRAY_LIST(ADDRESS, GRADIENT, ADDRESS)
#undef ADDRESS
#undef GRADIENT
    };
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        const clmgk_array array = (clmgk_array)i;
        MGK_TRY(place(array, addresses[i], plan->array[i].element, clmgk_array_buffer(args, array), error));
    }
    return CLMGK_OK;
}

static clmgk_status enqueue(clmgk_plan *plan, clmgk_pass pass, clmgk_cuda_stream stream, const clmgk_cuda_args *given,
                            clmgk_error *error)
{
    static const mgk_queue_place no_queue = {NULL, 0, NULL, NULL};
    clmgk_cuda_args read = CLMGK_CUDA_ARGS_INIT;
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    MGK_TRY(mgk_plan_check_call(plan, pass, given, error));
    MGK_TRY(mgk_struct_read(given, "args", sizeof(read), &read, sizeof(read), error));
    args.seed = read.seed;
    args.accumulate = read.accumulate;
    args.parts = read.parts;
    args.sizes = read.sizes;
    MGK_TRY(place_all(plan, &read, &args, error));
    const mgk_cuda_place at = {mgk_cuda_of(plan->context), stream};
    if (at.cuda == NULL)
        return mgk_fail_unprepared(error);
    MGK_TRY(mgk_cuda_enter(at.cuda, error));
    const mgk_cuda_form *const form = mgk_cuda_form_of(plan);
    clmgk_plan *const launched = form != NULL && form->plan != NULL ? form->plan : plan;
    const clmgk_status status = mgk_plan_enqueue(launched, pass, &args, &no_queue, &at, error);
    mgk_cuda_leave(at.cuda);
    return status;
}

/* The public call of a pass: clmgk_enqueue_forward_cuda and so on. */
#define ENQUEUE(name, PASS)                                                                                            \
    clmgk_status clmgk_enqueue_##name##_cuda(clmgk_plan *plan, clmgk_cuda_stream stream, const clmgk_cuda_args *args,  \
                                             clmgk_error *error)                                                       \
    {                                                                                                                  \
        return enqueue(plan, CLMGK_PASS_##PASS, stream, args, error);                                                  \
    }
ENQUEUE(forward, FORWARD)
ENQUEUE(backward, BACKWARD)
ENQUEUE(statistics, STATISTICS)
ENQUEUE(combine, COMBINE)
ENQUEUE(mask, MASK)
ENQUEUE(append, APPEND)
