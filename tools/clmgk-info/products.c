/* SPDX-License-Identifier: Apache-2.0 */
/* Who multiplies matrices on a device. */
#include "info.h"

#include <stdio.h>

static bool has_dtype(const clmgk_gemm_provider_info *provider, clmgk_dtype dtype)
{
    return (provider->dtypes & (UINT32_C(1) << (uint32_t)dtype)) != 0;
}

tool_exit info_get_products(const clmgk_device_info *info, info_products *products, tool_error *error)
{
    *products = (info_products){.count = 0};
    for (size_t i = 0; clmgk_gemm_provider(i) && i < INFO_MAX_PROVIDERS; i++) {
        products->providers[i] = (clmgk_gemm_provider_info)CLMGK_GEMM_PROVIDER_INFO_INIT;
        TOOL_TRY(tool_check_library(
            clmgk_gemm_provider_state(info->device_id, i, &products->providers[i], &error->library), error));
        products->count++;
    }
    return TOOL_DONE;
}

void info_print_products(const info_products *products)
{
    for (size_t i = 0; i < products->count; i++) {
        const clmgk_gemm_provider_info *provider = &products->providers[i];
        printf("    products by %s:", provider->name);
        for (int t = 0; t < CLMGK_DTYPES; t++)
            if (has_dtype(provider, (clmgk_dtype)t))
                printf(" %s", clmgk_dtype_name((clmgk_dtype)t));
        printf("%s%s%s%s\n", provider->dtypes ? "" : " none", provider->reason[0] ? " (" : "", provider->reason,
               provider->reason[0] ? ")" : "");
    }
}

static json_t *provider_json(const clmgk_gemm_provider_info *provider)
{
    json_t *list = json_array();
    for (int t = 0; t < CLMGK_DTYPES; t++)
        if (has_dtype(provider, (clmgk_dtype)t))
            tool_json_append(&list, json_string(clmgk_dtype_name((clmgk_dtype)t)));
    return json_pack("{s:s, s:o, s:s}", "provider", provider->name, "dtypes", list, "reason", provider->reason);
}

json_t *info_products_json(const info_products *products)
{
    json_t *list = json_array();
    for (size_t i = 0; i < products->count; i++)
        tool_json_append(&list, provider_json(&products->providers[i]));
    return list;
}
