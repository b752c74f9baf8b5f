/* SPDX-License-Identifier: Apache-2.0 */
#include "layer.h"

#include <stdio.h>
#include <string.h>

cl_icd_dispatch layer_next;
static cl_icd_dispatch table;

cl_int layer_give(const void *value, size_t size, size_t room, void *out, size_t *size_out)
{
    if (out != NULL && room < size)
        return CL_INVALID_VALUE;
    if (out != NULL)
        memcpy(out, value, size);
    if (size_out != NULL)
        *size_out = size;
    return CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info param_name, size_t param_value_size, void *param_value,
                                               size_t *param_value_size_ret)
{
    const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
    switch (param_name) {
    case CL_LAYER_API_VERSION:
        return layer_give(&version, sizeof(version), param_value_size, param_value, param_value_size_ret);
    case CL_LAYER_NAME:
        return layer_give(layer_name, strlen(layer_name) + 1, param_value_size, param_value, param_value_size_ret);
    default:
        return CL_INVALID_VALUE;
    }
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint num_entries, const cl_icd_dispatch *target_dispatch,
                                            cl_uint *num_entries_ret, const cl_icd_dispatch **layer_dispatch_ret)
{
    const cl_uint entries = sizeof(table) / sizeof(void *);
    if (target_dispatch == NULL || num_entries_ret == NULL || layer_dispatch_ret == NULL || num_entries < entries)
        return CL_INVALID_VALUE;
    layer_next = *target_dispatch;
    table = *target_dispatch;
    layer_install(&table);
    *num_entries_ret = entries;
    *layer_dispatch_ret = &table;
    (void)fprintf(stderr, "%s: active\n", layer_name);
    return CL_SUCCESS;
}
