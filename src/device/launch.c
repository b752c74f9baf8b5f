/* SPDX-License-Identifier: Apache-2.0 */
/* Launches. */
#include "device/device.h"

clmgk_status mgk_launch_kernel(cl_command_queue queue, cl_kernel kernel, const mgk_launch *launch, size_t count,
                               const mgk_kernel_arg *args, cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                               clmgk_error *error)
{
    if (launch->global[0] == 0) { /* an empty problem still orders events */
        const cl_int code = clEnqueueMarkerWithWaitList(queue, num_wait, wait_list, event);
        return code == CL_SUCCESS ? CLMGK_OK : mgk_fail_cl(error, code, "clEnqueueMarkerWithWaitList");
    }
    for (size_t i = 0; i < count; ++i) {
        const cl_int code = clSetKernelArg(kernel, (cl_uint)i, args[i].size, args[i].value);
        if (code != CL_SUCCESS)
            return mgk_fail_cl(error, code, "clSetKernelArg");
    }
    const cl_int code = clEnqueueNDRangeKernel(queue, kernel, launch->dimensions, NULL, launch->global, launch->local,
                                               num_wait, wait_list, event);
    return code == CL_SUCCESS ? CLMGK_OK : mgk_fail_cl(error, code, "clEnqueueNDRangeKernel");
}
