/* SPDX-License-Identifier: Apache-2.0 */
/* Files and private folders: the only place that opens, writes and removes files. */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define TEMPORARY_PREFIX ".clmgk-tmp-" /* then three numbers */
#define LOCK_NAME        "lock"

enum {
    MAX_PATH_BYTES = 4096,
    TEMPORARY_ATTEMPTS = 16,
    STALE_SECONDS = 600, /* longer than any write */
    LOCK_PAUSE_NS = 2000000
};

/* ---- reading ---------------------------------------------------------------------------------------------- */

/* Fills `data` from the file; false on an error or if the file became shorter. */
static bool read_all(int file, char *data, size_t length)
{
    size_t done = 0;
    while (done < length) {
        const ssize_t got = read(file, data + done, length - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

static clmgk_status read_open_file(int file, const clmgk_allocator *allocator, const char *path, size_t max_bytes,
                                   char **data, size_t *length, clmgk_error *error)
{
    struct stat facts;
    if (fstat(file, &facts) != 0)
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(facts.st_mode))
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: not a regular file", path);
    if ((uintmax_t)facts.st_size > max_bytes)
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: has %jd bytes, expected at most %zu", path, (intmax_t)facts.st_size,
                        max_bytes);

    const size_t size = (size_t)facts.st_size;
    char *const bytes = mgk_alloc(allocator, size, 1);
    if (bytes == NULL)
        return mgk_fail_memory(error, path);
    if (!read_all(file, bytes, size)) {
        mgk_free(allocator, bytes);
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: could not be read", path);
    }
    *data = bytes;
    *length = size;
    return CLMGK_OK;
}

clmgk_status mgk_file_read(const clmgk_allocator *allocator, const char *path, size_t max_bytes, char **data,
                           size_t *length, clmgk_error *error)
{
    /* Not blocking: opening a FIFO must not wait for its writer. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: %s", path, strerror(errno));
    const clmgk_status status = read_open_file(file, allocator, path, max_bytes, data, length, error);
    close(file);
    return status;
}

/* ---- private folders -------------------------------------------------------------------------------------- */

/* Makes `path` and its missing parents. */
static clmgk_status make_folders(const char *path, mode_t mode, clmgk_error *error)
{
    char partial[MAX_PATH_BYTES];
    const size_t length = strlen(path);
    if (length == 0 || length >= sizeof(partial))
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: has %zu bytes, expected 1 to %zu", path, length,
                        sizeof(partial) - 1);
    memcpy(partial, path, length + 1);
    for (char *slash = strchr(partial + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL)
            *slash = '\0';
        if (mkdir(partial, mode) != 0 && errno != EEXIST)
            return mgk_fail(error, CLMGK_ERROR_IO, "%s: %s can't be made: %s", path, partial, strerror(errno));
        if (slash == NULL)
            return CLMGK_OK;
        *slash = '/';
    }
}

/* True if the file's owner is trusted: the user, or, for shipped folders, root. */
static bool is_trusted_owner(const mgk_folder *folder, const struct stat *facts)
{
    return facts->st_uid == geteuid() || (folder->shipped && facts->st_uid == 0);
}

static clmgk_status check_folder(const mgk_folder *folder, const char *path, clmgk_error *error)
{
    const mode_t refused = folder->shipped ? S_IWGRP | S_IWOTH : S_IRWXG | S_IRWXO;
    struct stat facts;
    if (fstat(folder->handle, &facts) != 0)
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: %s", path, strerror(errno));
    if (!is_trusted_owner(folder, &facts))
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: belongs to user %ju, expected %ju%s", path, (uintmax_t)facts.st_uid,
                        (uintmax_t)geteuid(), folder->shipped ? " or 0" : "");
    if ((facts.st_mode & refused) != 0)
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: has mode %04o, expected %s", path,
                        (unsigned)(facts.st_mode & 07777),
                        folder->shipped ? "0755 or less: only its owner may write" : "0700");
    return CLMGK_OK;
}

static clmgk_status open_folder(const char *path, bool create, mgk_folder *folder, clmgk_error *error)
{
    const int flags = O_RDONLY | O_DIRECTORY | (folder->shipped ? 0 : O_NOFOLLOW) | O_CLOEXEC;
    folder->handle = open(path, flags);
    if (folder->handle < 0 && errno == ENOENT) {
        if (!create)
            return CLMGK_OK;
        MGK_TRY(make_folders(path, folder->shipped ? S_IRWXU | S_IRGRP | S_IXGRP | S_IROTH | S_IXOTH : S_IRWXU, error));
        folder->handle = open(path, flags);
    }
    if (folder->handle < 0)
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: %s", path, strerror(errno));

    const clmgk_status status = check_folder(folder, path, error);
    if (status != CLMGK_OK)
        mgk_folder_close(folder);
    return status;
}

clmgk_status mgk_folder_open(const char *path, bool create, mgk_folder *folder, clmgk_error *error)
{
    *folder = (mgk_folder){.path = path};
    return open_folder(path, create, folder, error);
}

clmgk_status mgk_folder_open_shipped(const char *path, bool create, mgk_folder *folder, clmgk_error *error)
{
    *folder = (mgk_folder){.path = path, .shipped = true};
    return open_folder(path, create, folder, error);
}

void mgk_folder_close(mgk_folder *folder)
{
    if (folder->handle >= 0)
        close(folder->handle);
    folder->handle = -1;
}

/* Cuts off the last part of a path; false: there is nothing above. Above a relative path is ".". */
static bool step_up(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
    if (strcmp(path, "/") == 0 || strcmp(path, ".") == 0)
        return false;
    char *const slash = strrchr(path, '/');
    if (slash == NULL)
        (void)snprintf(path, MAX_PATH_BYTES, ".");
    else
        slash[slash == path] = '\0';
    return true;
}

clmgk_status mgk_folder_check_writable(const char *path, bool make, clmgk_error *error)
{
    char place[MAX_PATH_BYTES];
    (void)snprintf(place, sizeof(place), "%s", path);
    while (access(place, W_OK | X_OK) != 0) {
        const int code = errno;
        if (code == ENOENT && step_up(place))
            continue;
        const bool above = strcmp(place, path) != 0;
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: %s%s%s", path, above ? place : "", above ? ": " : "",
                        strerror(code));
    }
    return make || strcmp(place, path) == 0 ? CLMGK_OK
                                            : mgk_fail(error, CLMGK_ERROR_IO, "%s: %s", path, strerror(ENOENT));
}

clmgk_status mgk_folder_check_room(const char *path, uint64_t bytes, clmgk_error *error)
{
    char place[MAX_PATH_BYTES];
    struct statvfs facts;
    int code;
    (void)snprintf(place, sizeof(place), "%s", path);
    do
        code = statvfs(place, &facts) == 0 ? 0 : errno;
    while (code == ENOENT && step_up(place));
    if (code != 0 || facts.f_blocks == 0) /* unknown */
        return CLMGK_OK;
    const uint64_t left = (geteuid() == 0 ? facts.f_bfree : facts.f_bavail) * (uint64_t)facts.f_frsize;
    return left >= bytes ? CLMGK_OK
                         : mgk_fail(error, CLMGK_ERROR_IO, "%s: %s: %" PRIu64 " KiB left: expected at least %" PRIu64,
                                    path, strerror(ENOSPC), left / 1024, bytes / 1024);
}

static clmgk_status fail_file(const mgk_folder *folder, const char *name, int code, clmgk_error *error)
{
    return mgk_fail(error, CLMGK_ERROR_IO, "%s/%s: %s", folder->path, name, strerror(code));
}

static bool is_trusted_file(const mgk_folder *folder, int file)
{
    struct stat facts;
    return fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && is_trusted_owner(folder, &facts) &&
           (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

clmgk_status mgk_folder_load(const mgk_folder *folder, const clmgk_allocator *allocator, const char *name,
                             size_t max_bytes, bool touch, char **data, size_t *length, clmgk_error *error)
{
    *data = NULL;
    *length = 0;
    if (folder->handle < 0)
        return CLMGK_OK;
    const int file = openat(folder->handle, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return errno == ENOENT ? CLMGK_OK : fail_file(folder, name, errno, error);
    const clmgk_status status =
        is_trusted_file(folder, file)
            ? read_open_file(file, allocator, name, max_bytes, data, length, error)
            : mgk_fail(error, CLMGK_ERROR_IO,
                       "%s/%s: expected a regular file that belongs to the user and that nobody else may write",
                       folder->path, name);
    if (status == CLMGK_OK && touch && !folder->shipped)
        (void)futimens(file, NULL); /* fails on read-only file systems: eviction then follows age */
    close(file);
    return status;
}

static bool write_all(int file, const char *data, size_t length)
{
    size_t done = 0;
    while (done < length) {
        const ssize_t put = write(file, data + done, length - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        done += (size_t)put;
    }
    return true;
}

/* Makes a new file with a name that no other process or thread uses. */
static int create_temporary(const mgk_folder *folder, char *name, size_t size)
{
    const mode_t mode = folder->shipped ? S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH : S_IRUSR | S_IWUSR;
    int file = -1;
    for (int attempt = 0; file < 0 && attempt < TEMPORARY_ATTEMPTS; ++attempt) {
        struct timespec now = {0};
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(name, size, TEMPORARY_PREFIX "%ld-%lld-%09ld", (long)getpid(), (long long)now.tv_sec, now.tv_nsec);
        file = openat(folder->handle, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (file < 0 && errno != EEXIST)
            break;
    }
    return file;
}

clmgk_status mgk_folder_write(const mgk_folder *folder, const char *name, const char *data, size_t length,
                              clmgk_error *error)
{
    char temporary[64];
    const int file = create_temporary(folder, temporary, sizeof(temporary));
    if (file < 0)
        return fail_file(folder, name, errno, error);
    bool done = write_all(file, data, length) && fsync(file) == 0;
    int code = errno;
    if (close(file) != 0 && done) {
        done = false;
        code = errno;
    }
    if (done && renameat(folder->handle, temporary, folder->handle, name) != 0) {
        done = false;
        code = errno;
    }
    if (!done) {
        (void)unlinkat(folder->handle, temporary, 0);
        return fail_file(folder, name, code, error);
    }
    (void)fsync(folder->handle); /* failure is harmless: at worst a crash loses the file, and it is written again */
    return CLMGK_OK;
}

clmgk_status mgk_folder_remove(const mgk_folder *folder, const char *name, clmgk_error *error)
{
    return folder->handle < 0 || unlinkat(folder->handle, name, 0) == 0 || errno == ENOENT
               ? CLMGK_OK
               : fail_file(folder, name, errno, error);
}

/* ---- listing ---------------------------------------------------------------------------------------------- */

/* False if the file vanished, is not a regular file, or has too long a name. */
static bool describe(int handle, const char *name, mgk_folder_entry *entry)
{
    struct stat facts;
    if (strlen(name) >= sizeof(entry->name) || fstatat(handle, name, &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(facts.st_mode))
        return false;
    memcpy(entry->name, name, strlen(name) + 1);
    entry->bytes = (uint64_t)facts.st_size;
    entry->modified_ns = (int64_t)facts.st_mtim.tv_sec * 1000000000 + facts.st_mtim.tv_nsec;
    return true;
}

/* A new stream per reader: reading moves a handle's position, and several threads may use a folder. */
static DIR *open_stream(const mgk_folder *folder)
{
    const int handle = openat(folder->handle, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *const stream = handle < 0 ? NULL : fdopendir(handle);
    if (stream == NULL && handle >= 0)
        close(handle);
    return stream;
}

clmgk_status mgk_folder_list(const mgk_folder *folder, const clmgk_allocator *allocator,
                             bool (*wanted)(const char *name), mgk_folder_entry **entries, size_t *count,
                             clmgk_error *error)
{
    *entries = NULL;
    *count = 0;
    if (folder->handle < 0)
        return CLMGK_OK;

    DIR *const stream = open_stream(folder);
    if (stream == NULL)
        return mgk_fail(error, CLMGK_ERROR_IO, "%s: can't be listed: %s", folder->path, strerror(errno));

    clmgk_status status = CLMGK_OK;
    void *list = NULL;
    size_t capacity = 0, listed = 0;
    errno = 0;
    for (const struct dirent *item = readdir(stream); item != NULL; errno = 0, item = readdir(stream)) {
        mgk_folder_entry entry = {0};
        if (!wanted(item->d_name) || !describe(folder->handle, item->d_name, &entry))
            continue;
        if (!mgk_grow(allocator, &list, &capacity, listed, sizeof(entry))) {
            status = mgk_fail_memory(error, "the list of a folder");
            goto cleanup;
        }
        ((mgk_folder_entry *)list)[listed++] = entry;
    }
    if (errno != 0) {
        status = mgk_fail(error, CLMGK_ERROR_IO, "%s: can't be listed: %s", folder->path, strerror(errno));
        goto cleanup;
    }
    *entries = list;
    *count = listed;
    list = NULL;

cleanup:
    mgk_free(allocator, list);
    closedir(stream);
    return status;
}

/* True if create_temporary may have made the name: a folder may hold other programs' files. */
static bool is_temporary(const char *name)
{
    static const char digits[] = "0123456789";
    if (strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) != 0)
        return false;
    const char *rest = name + strlen(TEMPORARY_PREFIX);
    for (int number = 0; number < 3; ++number) {
        const size_t length = strspn(rest, digits);
        if (length == 0 || rest[length] != (number < 2 ? '-' : '\0'))
            return false;
        rest += length + (number < 2);
    }
    return true;
}

void mgk_folder_remove_stale(const mgk_folder *folder, const clmgk_allocator *allocator)
{
    mgk_folder_entry *entries;
    size_t count;
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (mgk_folder_list(folder, allocator, is_temporary, &entries, &count, NULL) != CLMGK_OK)
        return;
    for (size_t i = 0; i < count; ++i)
        if (entries[i].modified_ns / 1000000000 + STALE_SECONDS < (int64_t)now.tv_sec)
            (void)mgk_folder_remove(folder, entries[i].name, NULL);
    mgk_free(allocator, entries);
}

/* ---- lock ------------------------------------------------------------------------------------------------- */

int mgk_folder_lock(const mgk_folder *folder, int attempts, clmgk_error *error)
{
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    const int lock = openat(folder->handle, LOCK_NAME, flags, S_IRUSR | S_IWUSR);
    if (lock < 0) {
        (void)fail_file(folder, LOCK_NAME, errno, error);
        return -1;
    }
    int code = EWOULDBLOCK;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};
        if (flock(lock, LOCK_EX | LOCK_NB) == 0)
            return lock;
        code = errno;
        if (code != EWOULDBLOCK && code != EINTR)
            break;
        (void)nanosleep(&pause, NULL);
    }
    close(lock);
    (void)(code == EWOULDBLOCK
               ? mgk_fail(error, CLMGK_ERROR_IO, "%s/" LOCK_NAME ": another process holds the lock", folder->path)
               : fail_file(folder, LOCK_NAME, code, error));
    return -1;
}

void mgk_folder_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}
