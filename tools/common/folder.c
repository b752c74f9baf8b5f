/* SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"

#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Reads until the owner's end is closed. Again where another process still puts something in. */
static const char script[] = "trap '' HUP INT TERM; cat >/dev/null; for pause in 0 0.1 0.1 0.3 0.5 1 1 1 1; do "
                             "sleep $pause; rm -rf -- \"$1\" && ! [ -e \"$1\" ] && break; done";

static char *make_path(void)
{
    static const char name[] = "/clmgk-XXXXXX";
    const char *given = getenv("TMPDIR");
    const char *const parent = given && given[0] == '/' ? given : "/tmp";
    const size_t size = strlen(parent) + sizeof name;
    char *const path = malloc(size);
    if (path)
        snprintf(path, size, "%s%s", parent, name);
    return path;
}

/* In a process group of its own, which signals of the terminal do not reach. */
static int start_keeper(tool_folder *folder, int end)
{
    char *const arguments[] = {"sh", "-c", (char *)script, "sh", folder->path, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int code = posix_spawn_file_actions_init(&actions);
    if (code != 0)
        return code;
    code = posix_spawnattr_init(&attributes);
    if (code == 0) {
        (void)posix_spawnattr_setpgroup(&attributes, 0);
        (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
        code = posix_spawn_file_actions_adddup2(&actions, end, STDIN_FILENO);
        for (int stream = STDOUT_FILENO; stream <= STDERR_FILENO && code == 0; stream++)
            code = posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_WRONLY, 0);
        if (code == 0)
            code = posix_spawnp(&folder->keeper, "sh", &actions, &attributes, arguments, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

static int make(tool_folder *folder, int end)
{
    if (!mkdtemp(folder->path))
        return errno;
    const int code = start_keeper(folder, end);
    if (code != 0)
        (void)rmdir(folder->path);
    return code;
}

int tool_folder_make(tool_folder *folder)
{
    int ends[2];
    *folder = (tool_folder){.path = make_path()};
    int code = folder->path ? tool_make_pipe(ends) : ENOMEM;
    if (code == 0) {
        folder->pipe = ends[1];
        code = make(folder, ends[0]);
        close(ends[0]);
        if (code != 0)
            close(ends[1]);
    }
    if (code != 0) {
        free(folder->path);
        folder->path = NULL;
    }
    return code;
}

void tool_folder_remove(tool_folder *folder)
{
    if (!folder->path)
        return;
    close(folder->pipe);
    while (waitpid(folder->keeper, NULL, 0) < 0 && errno == EINTR) {
    }
    free(folder->path);
    folder->path = NULL;
}
