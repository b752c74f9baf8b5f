/* SPDX-License-Identifier: Apache-2.0 */
#include "tuned.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

tool_exit tool_list_tuned(cl_device_id device, clmgk_tuning_entry **entries, size_t *count, tool_error *error)
{
    size_t expected = 0, now = 0;
    TOOL_TRY(tool_check_library(clmgk_tuning_list(NULL, device, NULL, 0, &expected, &error->library), error));
    clmgk_tuning_entry *const list = calloc(expected ? expected : 1, sizeof(*list));
    TOOL_TRY(tool_check_memory(list, "the entries of the tuning cache", error));
    list->struct_size = sizeof(*list);
    const tool_exit status =
        tool_check_library(clmgk_tuning_list(NULL, device, list, expected, &now, &error->library), error);
    if (status != TOOL_DONE)
        free(list);
    else
        *entries = list;
    *count = now < expected ? now : expected;
    return status;
}

void tool_print_passed_over(const clmgk_tuning_info *cache)
{
    if (cache->damaged > 0)
        printf("    %" PRIu64 " damaged %s passed over: %s\n", cache->damaged,
               tool_plural(cache->damaged, "line is", "lines are"), cache->message);
    else if (cache->message[0])
        printf("    it is passed over: %s\n", cache->message);
}
