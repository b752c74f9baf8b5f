/* SPDX-License-Identifier: Apache-2.0 */
#include "host_faults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

fault_state host_memory_faults = {.kind = "allocations"};
fault_state host_file_faults = {.kind = "file operations"};

static bool file_fault(const char *function)
{
    const bool due = fault_due(&host_file_faults, function);
    if (due)
        errno = atomic_load(&host_file_faults.code);
    return due;
}

static bool memory_fault(const char *function)
{
    const bool due = fault_due(&host_memory_faults, function);
    if (due)
        errno = ENOMEM;
    return due;
}

/* X(type, value of a failure, function, parameters, arguments): fail without doing anything. */
#define MEMORY_CALLS(X)                                                                                                \
    X(void *, NULL, malloc, (size_t size), (size))                                                                     \
    X(void *, NULL, calloc, (size_t count, size_t size), (count, size))                                                \
    X(void *, NULL, realloc, (void *memory, size_t size), (memory, size))                                              \
    X(char *, NULL, strdup, (const char *text), (text))

#define FILE_CALLS(X)                                                                                                  \
    X(ssize_t, -1, read, (int file, void *data, size_t size), (file, data, size))                                      \
    X(ssize_t, -1, pread, (int file, void *data, size_t size, off_t offset), (file, data, size, offset))               \
    X(ssize_t, -1, write, (int file, const void *data, size_t size), (file, data, size))                               \
    X(int, -1, fsync, (int file), (file))                                                                              \
    X(int, -1, fstat, (int file, struct stat *facts), (file, facts))                                                   \
    X(int, -1, fstatat, (int folder, const char *path, struct stat *facts, int flags), (folder, path, facts, flags))   \
    X(int, -1, stat, (const char *path, struct stat *facts), (path, facts))                                            \
    X(int, -1, lstat, (const char *path, struct stat *facts), (path, facts))                                           \
    X(int, -1, fchmod, (int file, mode_t mode), (file, mode))                                                          \
    X(int, -1, ftruncate, (int file, off_t length), (file, length))                                                    \
    X(int, -1, access, (const char *path, int mode), (path, mode))                                                     \
    X(char *, NULL, realpath, (const char *path, char *out), (path, out))                                              \
    X(int, -1, mkdir, (const char *path, mode_t mode), (path, mode))                                                   \
    X(int, -1, mkstemp, (char *pattern), (pattern))                                                                    \
    X(int, -1, rename, (const char *from, const char *to), (from, to))                                                 \
    X(int, -1, renameat, (int from_folder, const char *from, int to_folder, const char *to),                           \
      (from_folder, from, to_folder, to))                                                                              \
    X(int, -1, unlink, (const char *path), (path))                                                                     \
    X(int, -1, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))                             \
    X(int, -1, flock, (int file, int operation), (file, operation))                                                    \
    X(int, -1, futimens, (int file, const struct timespec times[2]), (file, times))                                    \
    X(DIR *, NULL, opendir, (const char *path), (path))                                                                \
    X(DIR *, NULL, fdopendir, (int folder), (folder))                                                                  \
    X(struct dirent *, NULL, readdir, (DIR * stream), (stream))                                                        \
    X(FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode))                                         \
    X(FILE *, NULL, fdopen, (int file, const char *mode), (file, mode))                                                \
    X(size_t, 0, fread, (void *data, size_t size, size_t count, FILE *file), (data, size, count, file))                \
    X(size_t, 0, fwrite, (const void *data, size_t size, size_t count, FILE *file), (data, size, count, file))         \
    X(int, EOF, fflush, (FILE * file), (file))                                                                         \
    X(int, -1, fseek, (FILE * file, long offset, int whence), (file, offset, whence))

/* These calls do their work and then report a failure, because the handle is gone either way. */
#define CLOSE_CALLS(X)                                                                                                 \
    X(int, -1, close, (int file), (file))                                                                              \
    X(int, EOF, fclose, (FILE * file), (file))

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): names that the linker's --wrap gives */
#define DECLARE(type, failure, function, parameters, arguments)                                                        \
    type __real_##function parameters;                                                                                 \
    type __wrap_##function parameters;
MEMORY_CALLS(DECLARE)
FILE_CALLS(DECLARE)
CLOSE_CALLS(DECLARE)

#define DEFINE_MEMORY(type, failure, function, parameters, arguments)                                                  \
    type __wrap_##function parameters                                                                                  \
    {                                                                                                                  \
        return memory_fault(#function) ? (failure) : __real_##function arguments;                                      \
    }
#define DEFINE_FILE(type, failure, function, parameters, arguments)                                                    \
    type __wrap_##function parameters                                                                                  \
    {                                                                                                                  \
        return file_fault(#function) ? (failure) : __real_##function arguments;                                        \
    }
#define DEFINE_CLOSE(type, failure, function, parameters, arguments)                                                   \
    type __wrap_##function parameters                                                                                  \
    {                                                                                                                  \
        const type done = __real_##function arguments;                                                                 \
        return file_fault(#function) ? (failure) : done;                                                               \
    }
MEMORY_CALLS(DEFINE_MEMORY)
FILE_CALLS(DEFINE_FILE)
CLOSE_CALLS(DEFINE_CLOSE)

/* The mode is passed only with O_CREAT; reading it where it is absent would be undefined. */
#define MODE_OF(flags, last)                                                                                           \
    mode_t mode = 0;                                                                                                   \
    if (((flags)&O_CREAT) != 0) {                                                                                      \
        va_list list;                                                                                                  \
        va_start(list, last);                                                                                          \
        mode = va_arg(list, mode_t);                                                                                   \
        va_end(list);                                                                                                  \
    }

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return file_fault("open") ? -1 : __real_open(path, flags, mode);
}

int __real_openat(int folder, const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return file_fault("openat") ? -1 : __real_openat(folder, path, flags, mode);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

/* If the environment asks for it, counts and reports the calls of the whole process. */
static void __attribute__((constructor)) arm(void)
{
    fault_arm_from_environment(&host_memory_faults, "FAULT_MEMORY", ENOMEM);
    fault_arm_from_environment(&host_file_faults, "FAULT_FILES", EIO);
}

/* Descriptors of arrays' files that nobody has closed. */
static long open_arrays(void)
{
    static const char suffix[] = ".npy";
    char path[PATH_MAX];
    long count = 0;
    DIR *const folder = __real_opendir("/proc/self/fd");
    for (const struct dirent *entry = folder ? __real_readdir(folder) : NULL; entry; entry = __real_readdir(folder)) {
        const ssize_t size = readlinkat(dirfd(folder), entry->d_name, path, sizeof(path));
        const size_t length = sizeof(suffix) - 1, end = size < 0 ? 0 : (size_t)size;
        count += end >= length && memcmp(path + end - length, suffix, length) == 0;
    }
    if (folder)
        (void)closedir(folder);
    return count;
}

static void __attribute__((destructor)) report(void)
{
    if (getenv("FAULT_MEMORY") != NULL)
        fault_report(&host_memory_faults);
    if (getenv("FAULT_FILES") != NULL) {
        atomic_store(&host_file_faults.live, open_arrays());
        fault_report(&host_file_faults);
    }
}
