/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path behind an output's name. Links are followed, but not every user's: in a folder like /tmp, where everybody
 * may create files and only their owners remove them (world-writable and sticky), a link must belong to the user or to
 * the folder's owner. Otherwise anybody could choose which of the user's files an output replaces. Linux has the same
 * rule for opening files (protected_symlinks), if it is switched on.
 */
#ifndef TOOL_RESOLVE_H
#define TOOL_RESOLVE_H

#include "tool.h"

/* Stores the absolute path without links in *resolved, for free(). What does not exist is kept as it is written. */
tool_exit tool_resolve_output(const char *option, const char *path, char **resolved, tool_error *error);

#endif
