/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the user names as inputs: regular files alone, so that no program waits for the writer of a FIFO. */
#ifndef TOOL_INPUT_FILE_H
#define TOOL_INPUT_FILE_H

#include "tool.h"

#include <stdio.h>

/* Opens the file that was given to `option`; *size is its size in bytes. The stream is for fclose(). */
tool_exit tool_open_input(const char *option, const char *path, FILE **stream, uint64_t *size, tool_error *error);

/* Reads a whole file of at most `most` bytes into *data, for free(). */
tool_exit tool_read_input(const char *option, const char *path, size_t most, char **data, size_t *length,
                          tool_error *error);

#endif
