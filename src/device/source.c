/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel sources: a single text from a file and all its includes, so that the compiler needs no folder and the text is
 * the complete key of the program. */
#include "device/device.h"

#include <string.h>

enum { MAX_SOURCE_BYTES = 1 << 24 };

/* A file's text: a view of the embedded table, or owned if read from the folder. */
typedef struct source_file {
    const char *text;
    size_t length;
    char *owned;
} source_file;

typedef struct expansion {
    const char *kernel_dir;
    mgk_text *out;
    mgk_text seen; /* names so far, each between newlines */
    clmgk_error *error;
} expansion;

static clmgk_status open_embedded(const char *name, source_file *file, clmgk_error *error)
{
    for (const mgk_embedded_file *entry = mgk_embedded_files; entry->name != NULL; ++entry) {
        if (strcmp(entry->name, name) == 0) {
            *file = (source_file){.text = entry->text, .length = entry->length};
            return CLMGK_OK;
        }
    }
    return mgk_fail(error, CLMGK_ERROR_COMPILE, "kernel file \"%s\" is not in the library", name);
}

static clmgk_status open_in_folder(const expansion *run, const char *name, source_file *file)
{
    mgk_text path = {.allocator = run->out->allocator};
    mgk_text_printf(&path, "%s/%s", run->kernel_dir, name);
    if (path.failed)
        return mgk_fail_memory(run->error, "a kernel file's path");
    const clmgk_status status =
        mgk_file_read(path.allocator, path.data, MAX_SOURCE_BYTES, &file->owned, &file->length, run->error);
    file->text = file->owned;
    mgk_text_free(&path);
    return status;
}

/* The name between the quotes of an `#include "name"` line, and its length; 0 for other lines. */
static size_t included_name(const char *line, size_t length, const char **name)
{
    const char *const end = line + length;
    const char *const words[] = {"#", "include", "\""};
    const char *c = line;
    for (size_t i = 0; i < MGK_COUNT(words); ++i) {
        while (c < end && (*c == ' ' || *c == '\t'))
            ++c;
        const size_t size = strlen(words[i]);
        if ((size_t)(end - c) < size || memcmp(c, words[i], size) != 0)
            return 0;
        c += size;
    }
    const char *const quote = memchr(c, '"', (size_t)(end - c));
    *name = c;
    return quote == NULL ? 0 : (size_t)(quote - c);
}

/* Adds `name` to the names seen; false if it was there. */
static bool first_time(mgk_text *seen, const char *name)
{
    mgk_text pattern = {.allocator = seen->allocator};
    mgk_text_printf(&pattern, "\n%s\n", name);
    const bool first = !pattern.failed && (seen->data == NULL || strstr(seen->data, pattern.data) == NULL);
    if (first)
        mgk_text_append(seen, pattern.data, pattern.length);
    seen->failed = seen->failed || pattern.failed;
    mgk_text_free(&pattern);
    return first;
}

static clmgk_status expand_file(expansion *run, const char *name);

/* Replaces an include line by the file's text, the first time only. */
static clmgk_status expand_include(expansion *run, const char *name, size_t length)
{
    char file[256];
    const size_t kept = length < sizeof(file) ? length : sizeof(file) - 1;
    memcpy(file, name, kept);
    file[kept] = '\0';
    if (kept < length || file[0] == '/' || strstr(file, "..") != NULL)
        return mgk_fail(run->error, CLMGK_ERROR_COMPILE,
                        "#include \"%s\": expected the path of a kernel file below the folder of kernels", file);
    return first_time(&run->seen, file) ? expand_file(run, file) : CLMGK_OK;
}

static clmgk_status expand_lines(expansion *run, const char *name, const source_file *file)
{
    const char *const end = file->text + file->length;
    int number = 1;
    mgk_text_printf(run->out, "#line 1 \"%s\"\n", name);
    for (const char *line = file->text; line < end; ++number) {
        const char *const newline = memchr(line, '\n', (size_t)(end - line));
        const size_t length = (size_t)((newline != NULL ? newline : end) - line);
        const char *include = NULL;
        const size_t include_length = included_name(line, length, &include);
        if (include_length > 0) {
            MGK_TRY(expand_include(run, include, include_length));
            mgk_text_printf(run->out, "#line %d \"%s\"\n", number + 1, name);
        } else {
            mgk_text_append(run->out, line, length);
            mgk_text_append(run->out, "\n", 1);
        }
        line = newline != NULL ? newline + 1 : end;
    }
    return CLMGK_OK;
}

/* Recursive; ends because each file is expanded once. */
static clmgk_status expand_file(expansion *run, const char *name)
{
    source_file file = {0};
    MGK_TRY(run->kernel_dir != NULL ? open_in_folder(run, name, &file) : open_embedded(name, &file, run->error));
    const clmgk_status status = expand_lines(run, name, &file);
    mgk_free(run->out->allocator, file.owned);
    return status;
}

clmgk_status mgk_source_expand(const char *kernel_dir, const char *name, mgk_text *out, clmgk_error *error)
{
    expansion run = {.kernel_dir = kernel_dir, .out = out, .seen = {.allocator = out->allocator}, .error = error};
    clmgk_status status = first_time(&run.seen, name) ? expand_file(&run, name) : CLMGK_OK;
    if (status == CLMGK_OK && (out->failed || run.seen.failed))
        status = mgk_fail_memory(error, "a kernel's source");
    mgk_text_free(&run.seen);
    return status;
}
