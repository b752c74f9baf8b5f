/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output files that appear whole or not at all: each is written to a temporary file in its target's folder; all are
 * renamed when every one is complete. SIGINT, SIGTERM and SIGHUP remove the temporary files, and print what there is to
 * say, before they end the program.
 */
#ifndef TOOL_OUTPUT_H
#define TOOL_OUTPUT_H

#include "tool.h"

#include <stdio.h>
#include <sys/types.h>

#define TOOL_MAX_OUTPUTS 48

typedef struct tool_outputs tool_outputs;

/* Catches those signals, but those that are ignored, and starts the thread that acts on them. Writing beyond the limit
 * of a file's size becomes an error of write(). One at a time in a process. */
tool_exit tool_outputs_create(tool_outputs **out, tool_error *error);

/* Removes temporary files that were not committed. NULL is allowed. */
void tool_outputs_destroy(tool_outputs *outputs);

/* Makes a folder for what the program needs while it runs, at most once. It is removed with all that is in it when
 * `outputs` is destroyed, and soon after the program has ended in another way. *path lives as long as `outputs`. */
tool_exit tool_outputs_make_folder(tool_outputs *outputs, const char **path, tool_error *error);

/* A process of the program's own that writes into that folder, leader of a process group: those signals end the
 * group. At most TOOL_MAX_PROCESSES at a time; more are not ended so. */
#define TOOL_MAX_PROCESSES 16
void tool_outputs_add_process(tool_outputs *outputs, pid_t process);
void tool_outputs_remove_process(tool_outputs *outputs, pid_t process);

/* Prints `text` on standard output. From then on those signals print `farewell` on `stream` (NULL: nothing), which
 * replaces an earlier farewell; no signal is handled between the two. Frees `farewell`, which is from malloc(). */
tool_exit tool_outputs_print(tool_outputs *outputs, const char *text, FILE *stream, char *farewell, tool_error *error);

/* Refuses what names no file: nothing, a folder, "-". For options whose value is the beginning of several names, too.
 */
tool_exit tool_check_output_name(const char *option, const char *name, tool_error *error);

/* Announces that `option` writes `path`, and checks what can be checked now without touching anything: its folder is
 * there, the target, if it exists, is a regular file that may be written, and no other output is the same file.
 * *index is for tool_outputs_open. `option` and `path` must live as long as `outputs`. */
tool_exit tool_outputs_add(tool_outputs *outputs, const char *option, const char *path, size_t *index,
                           tool_error *error);

/* Refuses an input file that is also one of the outputs announced so far. */
tool_exit tool_outputs_refuse_input(const tool_outputs *outputs, const char *option, const char *path,
                                    tool_error *error);

/* Creates an output's temporary file. The stream belongs to `outputs`. */
tool_exit tool_outputs_open(tool_outputs *outputs, size_t index, FILE **stream, tool_error *error);

/* Completes all temporary files that were opened, then gives them their names. */
tool_exit tool_outputs_commit(tool_outputs *outputs, tool_error *error);

#endif
