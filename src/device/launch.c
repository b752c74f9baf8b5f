/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled kernels and their launches. */
#include "device/device.h"

/* 0, meaning no limit, if the driver can't answer. */
static uint64_t ask(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info name)
{
    cl_ulong value = 0;
    return clGetKernelWorkGroupInfo(kernel, device, name, sizeof(value), &value, NULL) == CL_SUCCESS ? value : 0;
}

mgk_kernel_needs mgk_kernel_measure(cl_kernel kernel, cl_device_id device)
{
    mgk_kernel_needs needs = {.local_bytes = ask(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE),
                              .private_bytes = ask(kernel, device, CL_KERNEL_PRIVATE_MEM_SIZE)};
    if (clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_WORK_GROUP_SIZE, sizeof(needs.work_group), &needs.work_group,
                                 NULL) != CL_SUCCESS)
        needs.work_group = 0;
    return needs;
}

clmgk_status mgk_launch_kernel(cl_command_queue queue, cl_kernel kernel, const mgk_launch *launch, size_t count,
                               const mgk_kernel_arg *args, cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                               clmgk_error *error)
{
    if (launch->global[0] == 0) { /* an empty problem still orders events */
        const cl_int code = clEnqueueMarkerWithWaitList(queue, num_wait, wait_list, event);
        return mgk_check_cl(error, code, "clEnqueueMarkerWithWaitList");
    }
    for (size_t i = 0; i < count; ++i) {
        const cl_int code = clSetKernelArg(kernel, (cl_uint)i, args[i].size, args[i].value);
        MGK_TRY(mgk_check_cl(error, code, "clSetKernelArg"));
    }
    const cl_int code = clEnqueueNDRangeKernel(queue, kernel, launch->dimensions, NULL, launch->global, launch->local,
                                               num_wait, wait_list, event);
    return mgk_check_cl(error, code, "clEnqueueNDRangeKernel");
}
