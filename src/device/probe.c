/* SPDX-License-Identifier: Apache-2.0 */
#include "device/probe.h"

/* Launches the kernel, whose only argument is `buffer`, and reads the buffer. */
static clmgk_status launch(const clmgk_context *context, const mgk_probe *probe, cl_kernel kernel, cl_mem buffer,
                           void *out, clmgk_error *error)
{
    const mgk_launch launch = {1, {probe->items, 1, 1}, {probe->group, 1, 1}};
    const mgk_kernel_arg arg = {sizeof(buffer), &buffer};
    cl_int code = CL_SUCCESS;
    cl_command_queue queue = clCreateCommandQueue(context->context, context->device, 0, &code);
    if (queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    clmgk_status status = mgk_launch_kernel(queue, kernel, &launch, 1, &arg, 0, NULL, NULL, error);
    if (status == CLMGK_OK) {
        code = clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, probe->bytes, out, 0, NULL, NULL);
        status = mgk_check_cl(error, code, "clEnqueueReadBuffer");
    }
    clReleaseCommandQueue(queue);
    return status;
}

static clmgk_status run(const clmgk_context *context, const mgk_probe *probe, cl_program program, void *out,
                        clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program, probe->kernel, &code);
    if (kernel == NULL)
        return mgk_fail_cl(error, code, "clCreateKernel");
    cl_mem buffer = clCreateBuffer(context->context, CL_MEM_READ_WRITE, probe->bytes, NULL, &code);
    clmgk_status status = buffer != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
    if (status == CLMGK_OK)
        status = launch(context, probe, kernel, buffer, out, error);
    if (buffer != NULL)
        clReleaseMemObject(buffer);
    clReleaseKernel(kernel);
    return status;
}

/* Programs of plans may have no marked instruction. A probe has some. */
static clmgk_status check_marks(const mgk_program *program, clmgk_error *error)
{
    return mgk_program_is_unverified(program) && program->edited == NULL && mgk_program_is_edited(program)
               ? mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the compiler drops comments, in which its instructions are")
               : CLMGK_OK;
}

clmgk_status mgk_probe_run(clmgk_context *context, const mgk_probe *probe, const char *options, void *out,
                           clmgk_error *error)
{
    static const char wrong[] = "it gives wrong numbers here";
    clmgk_status status;
    mgk_program *program = NULL;
    clmgk_program_origin origin;
    double ms = 0.0;
    MGK_TRY(mgk_program_get(context, probe->file, options, NULL, &program, &origin, &ms, error));
    MGK_TRY_GOTO(status, check_marks(program, error), cleanup);
    MGK_TRY_GOTO(status, run(context, probe, program->program, out, error), cleanup);
    if (probe->is_right != NULL && !probe->is_right(out)) {
        status = mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, wrong);
        mgk_program_judge(program, wrong);
    } else {
        mgk_program_judge(program, NULL);
    }
cleanup:
    mgk_program_release(program);
    return status;
}
