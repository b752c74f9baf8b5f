/* SPDX-License-Identifier: Apache-2.0 */
#include "operation/step.h"

#include <string.h>

clmgk_status mgk_constants_make(const clmgk_context *context, const void *data, size_t bytes, mgk_constants *constants,
                                clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    void *from = NULL;
    memcpy((void *)&from, (const void *)&data, sizeof(from)); /* OpenCL's lacks `const` */
    constants->memory = clCreateBuffer(context->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, bytes, from, &code);
    return mgk_check_cl(error, code, "clCreateBuffer");
}

clmgk_status mgk_constants_prepare_cuda(clmgk_context *context, const void *data, size_t bytes,
                                        mgk_constants *constants, clmgk_error *error)
{
    const mgk_cuda *const cuda = mgk_cuda_of(context);
    cl_mem made = NULL;
    MGK_TRY(mgk_cuda_make_memory(cuda, data, bytes, &made, error));
    pthread_mutex_lock(&context->monitor.mutex);
    const bool first = constants->in_cuda == NULL;
    if (first)
        constants->in_cuda = made;
    pthread_mutex_unlock(&context->monitor.mutex);
    if (!first) /* prepared before */
        mgk_cuda_free_memory(cuda, made);
    return CLMGK_OK;
}

void mgk_constants_free(clmgk_context *context, mgk_constants *constants)
{
    const mgk_cuda *const cuda = mgk_cuda_of(context);
    if (constants->memory != NULL)
        clReleaseMemObject(constants->memory);
    if (constants->in_cuda != NULL && mgk_cuda_enter(cuda, NULL) == CLMGK_OK) {
        mgk_cuda_free_memory(cuda, constants->in_cuda);
        mgk_cuda_leave(cuda);
    }
}
