/* SPDX-License-Identifier: Apache-2.0 */
#include "resolve.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LINKS 40 /* as in Linux */

/* A walk along a path. */
typedef struct path_walk {
    char done[PATH_MAX]; /* absolute, without links, without a slash at its end: "" is the root */
    char rest[PATH_MAX]; /* still to be walked from there */
    int links;           /* followed so far */
} path_walk;

/* Stores left, middle and right, one after another; ENAMETOOLONG if they do not fit. */
static int join(char target[PATH_MAX], const char *left, const char *middle, const char *right)
{
    const int length = snprintf(target, PATH_MAX, "%s%s%s", left, middle, right);
    return length >= 0 && length < PATH_MAX ? 0 : ENAMETOOLONG;
}

static int start(path_walk *walk, const char *path)
{
    *walk = (path_walk){.links = 0};
    if (path[0] != '/' && !getcwd(walk->done, sizeof walk->done))
        return errno;
    if (strcmp(walk->done, "/") == 0)
        walk->done[0] = '\0';
    return join(walk->rest, path, "", "");
}

/* Takes the first part off the rest of the path. False: nothing is left. */
static bool take_part(path_walk *walk, char part[PATH_MAX])
{
    const char *const first = walk->rest + strspn(walk->rest, "/");
    const size_t length = strcspn(first, "/");
    memcpy(part, first, length);
    part[length] = '\0';
    memmove(walk->rest, first + length, strlen(first + length) + 1);
    return length > 0;
}

/* Puts what the link at `place` holds in front of the rest. */
static int follow(path_walk *walk, const char *place)
{
    char target[PATH_MAX], rest[PATH_MAX];
    const ssize_t length = readlink(place, target, sizeof target - 1);
    if (length < 0)
        return errno;
    if (++walk->links > MAX_LINKS)
        return ELOOP;
    target[length] = '\0';
    if (target[0] == '/')
        walk->done[0] = '\0';
    const int code = join(rest, target, "", walk->rest);
    memcpy(walk->rest, rest, sizeof rest);
    return code;
}

static void step(path_walk *walk, const char *part, const char *place)
{
    char *const slash = strrchr(walk->done, '/');
    if (strcmp(part, "..") == 0 && slash)
        *slash = '\0';
    else if (strcmp(part, ".") != 0 && strcmp(part, "..") != 0)
        memcpy(walk->done, place, strlen(place) + 1);
}

static bool is_trusted(const struct stat *link, const struct stat *folder)
{
    const mode_t shared = S_ISVTX | S_IWOTH;
    return (folder->st_mode & shared) != shared || link->st_uid == geteuid() || link->st_uid == folder->st_uid;
}

static tool_exit fail(const char *option, const char *path, int code, tool_error *error)
{
    return code == 0
               ? TOOL_DONE
               : tool_fail(error, TOOL_SYSTEM_ERROR, "--%s %s: cannot be written: %s", option, path, strerror(code));
}

/* Walks on by one part, which is there. */
static tool_exit pass(path_walk *walk, const char *part, const char *place, const struct stat *facts,
                      const char *option, const char *path, tool_error *error)
{
    struct stat folder;
    if (!S_ISLNK(facts->st_mode)) {
        step(walk, part, place);
        return TOOL_DONE;
    }
    if (stat(walk->done[0] ? walk->done : "/", &folder) != 0)
        return fail(option, path, errno, error);
    if (!is_trusted(facts, &folder))
        return tool_fail(error, TOOL_SYSTEM_ERROR,
                         "--%s %s: cannot be written: %s is a link of user %ju in a folder where every user may create"
                         " links; expected a link of user %ju or of the folder's owner, user %ju",
                         option, path, place, (uintmax_t)facts->st_uid, (uintmax_t)geteuid(), (uintmax_t)folder.st_uid);
    return fail(option, path, follow(walk, place), error);
}

tool_exit tool_resolve_output(const char *option, const char *path, char **resolved, tool_error *error)
{
    path_walk walk;
    char part[PATH_MAX], place[PATH_MAX];
    TOOL_TRY(fail(option, path, start(&walk, path), error));
    while (take_part(&walk, part)) {
        struct stat facts;
        TOOL_TRY(fail(option, path, join(place, walk.done, "/", part), error));
        if (lstat(place, &facts) == 0) {
            TOOL_TRY(pass(&walk, part, place, &facts, option, path, error));
            continue;
        }
        if (errno != ENOENT)
            return fail(option, path, errno, error);
        TOOL_TRY(fail(option, path, join(walk.done, place, "", walk.rest), error));
        break;
    }
    *resolved = strdup(walk.done[0] ? walk.done : "/");
    return tool_check_memory(*resolved, path, error);
}
