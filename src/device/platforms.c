/* SPDX-License-Identifier: Apache-2.0 */
/* Platforms and their devices. */
#include "device/device.h"

enum { PLATFORM_NOT_FOUND = -1001 }; /* CL_PLATFORM_NOT_FOUND_KHR of the ICD loader's extension */

clmgk_status mgk_platform_list(cl_platform_id **out, cl_uint *count, clmgk_error *error)
{
    *out = NULL;
    *count = 0;
    cl_uint found = 0;
    cl_int code = clGetPlatformIDs(0, NULL, &found);
    if (code == PLATFORM_NOT_FOUND || (code == CL_SUCCESS && found == 0))
        return CLMGK_OK;
    if (code != CL_SUCCESS)
        return mgk_fail_cl(error, code, "clGetPlatformIDs");

    cl_platform_id *const platforms = mgk_alloc(NULL, found, sizeof(cl_platform_id));
    if (platforms == NULL)
        return mgk_fail_memory(error, "the list of platforms");
    code = clGetPlatformIDs(found, platforms, NULL);
    if (code != CL_SUCCESS) {
        mgk_free(NULL, platforms);
        return mgk_fail_cl(error, code, "clGetPlatformIDs");
    }
    *out = platforms;
    *count = found;
    return CLMGK_OK;
}

clmgk_status mgk_platform_devices(cl_platform_id platform, cl_device_id **out, cl_uint *count, clmgk_error *error)
{
    *out = NULL;
    *count = 0;
    cl_uint found = 0;
    cl_int code = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &found);
    if (code == CL_DEVICE_NOT_FOUND || (code == CL_SUCCESS && found == 0))
        return CLMGK_OK;
    if (code != CL_SUCCESS)
        return mgk_fail_cl(error, code, "clGetDeviceIDs");

    cl_device_id *const devices = mgk_alloc(NULL, found, sizeof(cl_device_id));
    if (devices == NULL)
        return mgk_fail_memory(error, "the list of devices");
    code = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, found, devices, NULL);
    if (code != CL_SUCCESS) {
        mgk_free(NULL, devices);
        return mgk_fail_cl(error, code, "clGetDeviceIDs");
    }
    *out = devices;
    *count = found;
    return CLMGK_OK;
}
