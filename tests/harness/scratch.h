/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and files that a test makes and removes. Failures fail the test. */
#ifndef MGK_TEST_SCRATCH_H
#define MGK_TEST_SCRATCH_H

#include <stddef.h>

enum { SCRATCH_PATH = 512 };

/* Makes an empty folder; its absolute path into `path`. */
void scratch_create(char path[SCRATCH_PATH]);

/* Removes a file, or a folder and all in it, without following links. A file that does not exist counts as removed. */
void scratch_remove(const char *path);

/* Tear-down of a test whose state, on the heap, begins with the path of such a folder. */
int scratch_tear_down(void **state);

/* "folder/name" into `path`. */
void scratch_join(char path[SCRATCH_PATH], const char *folder, const char *name);

/* The folders on the way are made. */
void scratch_write(const char *path, const void *data, size_t length);

/* The file's bytes (free). */
char *scratch_read(const char *path, size_t *length);

/* The number of entries of a folder whose names contain `part`; the first one's path into `first` unless NULL. */
size_t scratch_count(const char *folder, const char *part, char first[SCRATCH_PATH]);

#endif
