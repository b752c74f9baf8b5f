/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues a product: checks the call's buffers and calls the provider. */
#include "device/checks.h"
#include "gemm/gemm.h"

static clmgk_status check_matrix(const clmgk_gemm_plan *plan, const clmgk_buffer *buffer, const char *name,
                                 const mgk_gemm_matrix *matrix, clmgk_error *error)
{
    int64_t extent = 0;
    if (!mgk_gemm_extent(matrix, plan->desc.batch, &extent)) /* checked with the descriptor */
        return mgk_fail(error, CLMGK_ERROR_INTERNAL, "%s: extent", name);
    const size_t element = mgk_gemm_element(plan->desc.dtype);
    if (buffer->memory != NULL)
        return mgk_check_memory(plan->context, buffer, name, element, (uint64_t)extent * element, error);
    /* OpenCL has no empty buffers: an array without elements needs none */
    return extent == 0 ? CLMGK_OK : mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected a buffer", name);
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
    const mgk_gemm_matrix a = mgk_gemm_a(&plan->desc), b = mgk_gemm_b(&plan->desc);
    const mgk_gemm_matrix c = mgk_gemm_c(&plan->desc);
    MGK_TRY(check_matrix(plan, &given.a, "a", &a, error));
    MGK_TRY(check_matrix(plan, &given.b, "b", &b, error));
    MGK_TRY(check_matrix(plan, &given.c, "c", &c, error));
    MGK_TRY(mgk_check_workspace(plan->context, &given.workspace, plan->info.workspace_bytes, error));
    mgk_call call = mgk_empty_call();
    call.buffers[MGK_GEMM_A] = &given.a;
    call.buffers[MGK_GEMM_B] = &given.b;
    call.buffers[MGK_GEMM_C] = &given.c;
    call.buffers[MGK_GEMM_WORKSPACE] = &given.workspace;
    const mgk_queue_place at = {queue, num_wait, wait_list, event};
    return mgk_steps_enqueue(plan->steps, &call, &at, error);
}
