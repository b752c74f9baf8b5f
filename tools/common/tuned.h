/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of the tuning cache, as the programs show them. */
#ifndef TOOL_TUNED_H
#define TOOL_TUNED_H

#include "tool.h"

#include "clmgk/tuning.h"

/* clmgk_tuning_list of the device (NULL: of all) into *entries, to be freed. */
tool_exit tool_list_tuned(cl_device_id device, clmgk_tuning_entry **entries, size_t *count, tool_error *error);

/* Prints, indented, what of the tuning cache's file is passed over, and why; nothing where all of it was read. */
void tool_print_passed_over(const clmgk_tuning_info *cache);

#endif
