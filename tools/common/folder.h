/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A temporary folder that is removed when its owner is done, and also when the owner is killed: by a process of its own
 * (a shell), which waits until the owner's end of a pipe is closed. The owner could not do so itself: while it handles
 * a signal, a driver that compiles in another thread makes its folders anew.
 */
#ifndef TOOL_FOLDER_H
#define TOOL_FOLDER_H

#include <sys/types.h>

typedef struct tool_folder {
    char *path; /* NULL: none */
    pid_t keeper;
    int pipe; /* open as long as the folder is needed */
} tool_folder;

/* Makes a folder of its own in $TMPDIR, else /tmp. 0, or a number of errno; then there is no folder. */
int tool_folder_make(tool_folder *folder);

/* Removes it with all that is in it, as far as that works. Links are removed, not followed. */
void tool_folder_remove(tool_folder *folder);

#endif
