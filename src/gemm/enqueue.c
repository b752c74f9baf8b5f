/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues a product: checks the call's buffers and calls the provider. */
#include "device/checks.h"
#include "gemm/gemm.h"

static clmgk_status add_matrix(const clmgk_gemm_plan *plan, const clmgk_buffer *buffer, const char *name,
                               const mgk_gemm_matrix *matrix, int access, mgk_extent *extent, mgk_operands *operands,
                               clmgk_error *error)
{
    const size_t element = mgk_gemm_element(plan->desc.dtype);
    const int64_t size[] = {plan->desc.batch, matrix->rows, matrix->columns};
    const int64_t stride[] = {matrix->stride, matrix->ld, 1};
    *extent = mgk_extent_of((int)MGK_COUNT(size), size, stride, element);
    if (buffer->memory != NULL)
        operands->item[operands->count++] = (mgk_operand){name, buffer, extent, element, access, NULL, 0};
    else if (extent->bytes > 0) /* OpenCL has no empty buffers: an array without elements needs none */
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected a buffer", name);
    return CLMGK_OK;
}

int mgk_gemm_host_access(const clmgk_gemm_plan *plan, int buffer)
{
    if (!plan->provider->is_host || buffer == MGK_GEMM_WORKSPACE)
        return 0;
    return buffer == MGK_GEMM_C ? MGK_HOST_READ | MGK_HOST_WRITE : MGK_HOST_READ;
}

static clmgk_status check_arrays(const clmgk_gemm_plan *plan, const clmgk_gemm_args *args, clmgk_error *error)
{
    const mgk_gemm_matrix a = mgk_gemm_a(&plan->desc), b = mgk_gemm_b(&plan->desc), c = mgk_gemm_c(&plan->desc);
    const int input = MGK_READ | mgk_gemm_host_access(plan, MGK_GEMM_A);
    const int output = (plan->desc.beta == 0.0 ? 0 : MGK_READ) | MGK_WRITE | mgk_gemm_host_access(plan, MGK_GEMM_C);
    mgk_extent extents[3];
    mgk_operands operands = {.count = 0};
    MGK_TRY(add_matrix(plan, &args->a, "a", &a, input, &extents[0], &operands, error));
    MGK_TRY(add_matrix(plan, &args->b, "b", &b, input, &extents[1], &operands, error));
    MGK_TRY(add_matrix(plan, &args->c, "c", &c, output, &extents[2], &operands, error));
    MGK_TRY(mgk_operands_add_workspace(&operands, &args->workspace, plan->info.workspace_bytes, error));
    return mgk_check_operands(plan->context, &operands, error);
}

clmgk_status clmgk_enqueue_gemm(const clmgk_gemm_plan *plan, cl_command_queue queue, const clmgk_gemm_args *args,
                                cl_uint num_wait, const cl_event *wait_list, cl_event *event, clmgk_error *error)
{
    if (plan == NULL || args == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", plan == NULL ? "plan" : "args",
                        plan == NULL ? "a plan" : "the call's matrices");
    clmgk_gemm_args given;
    MGK_TRY(mgk_struct_read(args, "args", sizeof(given), &given, sizeof(given), error));
    MGK_TRY(mgk_check_queue(plan->context, queue, error));
    MGK_TRY(mgk_check_wait_list(plan->context, num_wait, wait_list, error));
    MGK_TRY(check_arrays(plan, &given, error));
    if (mgk_gemm_workspace_unit(plan) > 1)
        given.workspace.offset = mgk_aligned_workspace(given.workspace.offset) / mgk_gemm_workspace_unit(plan);
    mgk_call call = mgk_empty_call();
    call.buffers[MGK_GEMM_A] = &given.a;
    call.buffers[MGK_GEMM_B] = &given.b;
    call.buffers[MGK_GEMM_C] = &given.c;
    call.buffers[MGK_GEMM_WORKSPACE] = &given.workspace;
    if (plan->provider->check_offsets != NULL)
        MGK_TRY(plan->provider->check_offsets(plan, &call, error));
    const mgk_queue_place at = {queue, num_wait, wait_list, event};
    return mgk_steps_enqueue(plan->steps, &call, &at, error);
}
