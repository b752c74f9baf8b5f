/* SPDX-License-Identifier: Apache-2.0 */
/* The list of providers, and their abilities on a device. */
#include "gemm/gemm.h"

#include <stdio.h>
#include <string.h>

const mgk_gemm_provider *const mgk_gemm_providers[5] = {&mgk_gemm_onednn, &mgk_gemm_openblas, &mgk_gemm_fragments,
                                                        &mgk_gemm_clblast, &mgk_gemm_own};

clmgk_status mgk_gemm_is_eligible(const mgk_gemm_provider *provider, const mgk_device_facts *facts, clmgk_error *error)
{
    const char *const reason = provider->only_named != NULL ? provider->only_named(facts) : NULL;
    return reason != NULL ? mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s", reason) : CLMGK_OK;
}

clmgk_status mgk_gemm_may_choose(const mgk_gemm_provider *provider, const mgk_device_facts *facts, clmgk_dtype dtype,
                                 clmgk_error *error)
{
    MGK_TRY(mgk_gemm_is_eligible(provider, facts, error));
    return provider->applicable(facts, dtype, error);
}

const mgk_gemm_provider *mgk_gemm_provider_named(const char *name)
{
    for (size_t i = 0; i < MGK_COUNT(mgk_gemm_providers); ++i)
        if (strcmp(mgk_gemm_providers[i]->name, name) == 0)
            return mgk_gemm_providers[i];
    return NULL;
}

const char *clmgk_gemm_provider(size_t index)
{
    return index < MGK_COUNT(mgk_gemm_providers) ? mgk_gemm_providers[index]->name : NULL;
}

clmgk_status clmgk_gemm_provider_state(cl_device_id device, size_t index, clmgk_gemm_provider_info *info,
                                       clmgk_error *error)
{
    mgk_device_facts facts;
    MGK_TRY(mgk_struct_room(info, "info", MGK_SIZE_WITH(clmgk_gemm_provider_info, reason), error));
    if (index >= MGK_COUNT(mgk_gemm_providers))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "index: %zu: expected less than %zu", index,
                        MGK_COUNT(mgk_gemm_providers));
    if (device == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "device: NULL: expected a device");
    MGK_TRY(mgk_device_get_facts(device, &facts, error));
    clmgk_gemm_provider_info found = {.name = mgk_gemm_providers[index]->name};
    for (int dtype = 0; dtype < CLMGK_DTYPES; ++dtype) {
        clmgk_error reason;
        const clmgk_status status = mgk_gemm_may_choose(mgk_gemm_providers[index], &facts, (clmgk_dtype)dtype, &reason);
        if (status == CLMGK_OK)
            found.dtypes |= UINT32_C(1) << dtype;
        else if (status != CLMGK_ERROR_UNSUPPORTED)
            return mgk_fail_code(error, status, reason.opencl_code, "%s", reason.message);
        else if (found.reason[0] == '\0') /* the first reason is enough, since the others are similar */
            (void)snprintf(found.reason, sizeof(found.reason), "%.255s", reason.message);
    }
    mgk_struct_write(info, 0, &found, sizeof(found));
    return CLMGK_OK;
}
