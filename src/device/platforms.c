/* SPDX-License-Identifier: Apache-2.0 */
/* Platforms and their devices. */
#include "device/device.h"

enum { PLATFORM_NOT_FOUND = -1001 }; /* CL_PLATFORM_NOT_FOUND_KHR of the ICD loader's extension */

/* A platform's devices; NULL: all platforms. */
static cl_int ask(cl_platform_id platform, cl_uint room, void *items, cl_uint *count)
{
    return platform == NULL ? clGetPlatformIDs(room, items, count)
                            : clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, room, items, count);
}

static clmgk_status list(cl_platform_id platform, void **out, cl_uint *count, clmgk_error *error)
{
    const char *const call = platform == NULL ? "clGetPlatformIDs" : "clGetDeviceIDs";
    cl_uint found = 0;
    *out = NULL;
    *count = 0;
    cl_int code = ask(platform, 0, NULL, &found);
    if (code == (platform == NULL ? PLATFORM_NOT_FOUND : CL_DEVICE_NOT_FOUND) || (code == CL_SUCCESS && found == 0))
        return CLMGK_OK;
    MGK_TRY(mgk_check_cl(error, code, call));

    void *const items = mgk_alloc(NULL, found, sizeof(void *));
    if (items == NULL)
        return mgk_fail_memory(error, platform == NULL ? "the list of platforms" : "the list of devices");
    code = ask(platform, found, items, NULL);
    if (code != CL_SUCCESS) {
        mgk_free(NULL, items);
        return mgk_fail_cl(error, code, call);
    }
    *out = items;
    *count = found;
    return CLMGK_OK;
}

clmgk_status mgk_platform_list(cl_platform_id **out, cl_uint *count, clmgk_error *error)
{
    void *items = NULL;
    const clmgk_status status = list(NULL, &items, count, error);
    *out = items;
    return status;
}

clmgk_status mgk_platform_devices(cl_platform_id platform, cl_device_id **out, cl_uint *count, clmgk_error *error)
{
    void *items = NULL;
    const clmgk_status status = list(platform, &items, count, error);
    *out = items;
    return status;
}
