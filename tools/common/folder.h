/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOL_FOLDER_H
#define TOOL_FOLDER_H

/* Makes a folder of its own in $TMPDIR, else /tmp. NULL: errno tells. For free(). */
char *tool_make_temporary_folder(void);

/* Removes a folder with all that is in it, as far as that works. Links are removed, not followed. */
void tool_remove_folder(const char *path);

#endif
