/* SPDX-License-Identifier: Apache-2.0 */
#include "tuned.h"

#include <stdlib.h>

tool_exit tool_list_tuned(cl_device_id device, clmgk_tuning_entry **entries, size_t *count, tool_error *error)
{
    clmgk_error failure = {0};
    size_t expected = 0, now = 0;
    if (clmgk_tuning_list(NULL, device, NULL, 0, &expected, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    clmgk_tuning_entry *const list = calloc(expected ? expected : 1, sizeof(*list));
    if (!list)
        return tool_fail_memory(error, "the entries of the tuning cache");
    if (clmgk_tuning_list(NULL, device, list, expected, &now, &failure) != CLMGK_OK) {
        free(list);
        return tool_fail_library(error, &failure);
    }
    *entries = list;
    *count = now < expected ? now : expected;
    return TOOL_DONE;
}
