/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* nftw */
#include "folder.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OPEN_FOLDERS 16
#define ATTEMPTS     50
#define PAUSE_NS     10000000

char *tool_make_temporary_folder(void)
{
    static const char name[] = "/clmgk-XXXXXX";
    const char *given = getenv("TMPDIR");
    const char *const parent = given && given[0] == '/' ? given : "/tmp";
    const size_t size = strlen(parent) + sizeof name;
    char *const path = malloc(size);
    if (!path)
        return NULL;
    snprintf(path, size, "%s%s", parent, name);
    if (!mkdtemp(path)) {
        const int code = errno;
        free(path);
        errno = code;
        return NULL;
    }
    return path;
}

static int remove_entry(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)facts;
    (void)kind;
    (void)place;
    (void)remove(path);
    return 0;
}

/* Again where another thread, a driver's that compiles, put something in meanwhile. */
void tool_remove_folder(const char *path)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (int attempt = 0; attempt < ATTEMPTS && access(path, F_OK) == 0; attempt++) {
        if (attempt > 0)
            (void)nanosleep(&pause, NULL);
        (void)nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
    }
}
