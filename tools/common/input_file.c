/* SPDX-License-Identifier: Apache-2.0 */
#include "input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tool_exit fail_input(tool_error *error, const char *option, const char *path, const char *why)
{
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: %s", option, path, why);
}

tool_exit tool_open_input(const char *option, const char *path, FILE **stream, uint64_t *size, tool_error *error)
{
    struct stat facts;
    const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* opening a FIFO must not wait */
    if (descriptor < 0)
        return fail_input(error, option, path, strerror(errno));
    if (fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        close(descriptor);
        return fail_input(error, option, path, "is not a regular file");
    }
    *stream = fdopen(descriptor, "rb");
    if (!*stream) {
        close(descriptor);
        return tool_fail_memory(error, path);
    }
    *size = (uint64_t)facts.st_size;
    return TOOL_DONE;
}

static tool_exit read_stream(const char *option, const char *path, FILE *stream, size_t size, char **data,
                             tool_error *error)
{
    char *const bytes = malloc(size > 0 ? size : 1);
    TOOL_TRY(tool_check_memory(bytes, path, error));
    if (fread(bytes, 1, size, stream) != size) {
        const int code = errno;
        free(bytes);
        return fail_input(error, option, path, ferror(stream) ? strerror(code) : "became shorter while it was read");
    }
    *data = bytes;
    return TOOL_DONE;
}

tool_exit tool_read_input(const char *option, const char *path, size_t most, char **data, size_t *length,
                          tool_error *error)
{
    FILE *stream = NULL;
    uint64_t size = 0;
    TOOL_TRY(tool_open_input(option, path, &stream, &size, error));
    const tool_exit status =
        size > most ? tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has %" PRIu64 " bytes; expected at most %zu", option,
                                path, size, most)
                    : read_stream(option, path, stream, (size_t)size, data, error);
    (void)fclose(stream);
    *length = (size_t)size;
    return status;
}
