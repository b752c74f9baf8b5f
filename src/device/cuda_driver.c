/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_driver.h"

#define SONAME "libcuda.so.1"

clmgk_status mgk_cuda_driver_load(mgk_cuda_driver *driver, clmgk_error *error)
{
    static const char *const names[] = {
#define NAME(name, symbol, parameters) symbol,
        MGK_CUDA_LIST(NAME)
#undef NAME
    };
    _Static_assert(sizeof(*driver) == sizeof(names), "a pointer for each function");
    clmgk_error cause = {.message = ""};
    if (mgk_library_load(SONAME, names, MGK_COUNT(names), driver, &cause) != CLMGK_OK)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "CUDA's driver: %s", cause.message);
    return mgk_cuda_check(driver, driver->init(0), "cuInit", error);
}

clmgk_status mgk_cuda_check(const mgk_cuda_driver *driver, int code, const char *call, clmgk_error *error)
{
    enum { OUT_OF_MEMORY = 2 };
    const char *name = NULL;
    if (code == MGK_CUDA_SUCCESS)
        return CLMGK_OK;
    if (driver->error_name(code, &name) != MGK_CUDA_SUCCESS || name == NULL)
        name = "an unknown error";
    return mgk_fail(error, code == OUT_OF_MEMORY ? CLMGK_ERROR_OUT_OF_DEVICE_MEMORY : CLMGK_ERROR_CUDA, "%s: %s (%d)",
                    call, name, code);
}
