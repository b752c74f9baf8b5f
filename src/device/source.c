/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel sources: one text from a file and all its includes, so that the compiler needs no folder and the text
 * completely identifies the program. */
#include "device/device.h"

#include <stdio.h>
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
    const char *engine; /* the engine's name in the program's options, and its length; NULL: the options name none */
    size_t engine_length;
    const char *mods; /* in place of the file MGK_MODS_FILE or MGK_MASK_FILE; NULL: the file */
    mgk_text *out;
    mgk_text seen; /* the names so far, each between newlines */
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
    clmgk_error reason = {0};
    const clmgk_status status =
        mgk_file_read(path.allocator, path.data, MAX_SOURCE_BYTES, &file->owned, &file->length, &reason);
    file->text = file->owned;
    mgk_text_free(&path);
    return status == CLMGK_OK ? CLMGK_OK
                              : mgk_fail(run->error, status, "kernel_dir, or CLMGK_KERNEL_DIR: %s", reason.message);
}

/* The file that an include line names; `engine_file`: a file of the engine. */
typedef struct included {
    const char *name; /* NULL: the line includes nothing */
    size_t length;
    bool engine_file;
} included;

/* Whether `text` comes next in the line at *c, after blanks; if so, moves *c behind it. */
static bool skip(const char **c, const char *end, const char *text)
{
    const size_t size = strlen(text);
    while (*c < end && (**c == ' ' || **c == '\t'))
        ++*c;
    if ((size_t)(end - *c) < size || memcmp(*c, text, size) != 0)
        return false;
    *c += size;
    return true;
}

/* Reads an `#include "name"` or `#include ENGINE_FILE(name)` line. */
static included included_file(const char *line, size_t length)
{
    const char *const end = line + length;
    const char *c = line;
    const included none = {0};
    if (!skip(&c, end, "#") || !skip(&c, end, "include"))
        return none;
    const bool engine_file = skip(&c, end, "ENGINE_FILE(");
    if (!engine_file && !skip(&c, end, "\""))
        return none;
    const char *const close = memchr(c, engine_file ? ')' : '"', (size_t)(end - c));
    return close != NULL && close > c ? (included){c, (size_t)(close - c), engine_file} : none;
}

/* Adds `name` to the names seen; false if it was there already. */
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

/* Writes the file's path below the folder of kernels, truncated if it does not fit. */
static clmgk_status path_of(const expansion *run, const included *include, char *path, size_t size)
{
    const int length = (int)include->length, engine = (int)run->engine_length;
    if (include->engine_file && run->engine == NULL)
        return mgk_fail(run->error, CLMGK_ERROR_COMPILE, "#include ENGINE_FILE(%.*s): no option -DENGINE=<name>",
                        length, include->name);
    int written = 0;
    if (include->engine_file)
        written = snprintf(path, size, "engine/%.*s/%.*s", engine, run->engine, length, include->name);
    else
        written = snprintf(path, size, "%.*s", length, include->name);
    if ((size_t)written >= size || path[0] == '/' || strstr(path, "..") != NULL)
        return mgk_fail(run->error, CLMGK_ERROR_COMPILE,
                        "#include \"%s\": expected the path of a kernel file below the folder of kernels", path);
    return CLMGK_OK;
}

/* Replaces an include line by the file's text, the first time only. */
static clmgk_status expand_include(expansion *run, const included *include)
{
    char path[256];
    MGK_TRY(path_of(run, include, path, sizeof(path)));
    return first_time(&run->seen, path) ? expand_file(run, path) : CLMGK_OK;
}

static clmgk_status expand_lines(expansion *run, const char *name, const source_file *file)
{
    const char *const end = file->text + file->length;
    int number = 1;
    mgk_text_printf(run->out, "#line 1 \"%s\"\n", name);
    for (const char *line = file->text; line < end; ++number) {
        const char *const newline = memchr(line, '\n', (size_t)(end - line));
        const size_t length = (size_t)((newline != NULL ? newline : end) - line);
        const included include = included_file(line, length);
        if (include.name != NULL) {
            MGK_TRY(expand_include(run, &include));
            mgk_text_printf(run->out, "#line %d \"%s\"\n", number + 1, name);
        } else {
            mgk_text_append(run->out, line, length);
            mgk_text_append(run->out, "\n", 1);
        }
        line = newline != NULL ? newline + 1 : end;
    }
    return CLMGK_OK;
}

static clmgk_status open_file(const expansion *run, const char *name, source_file *file)
{
    if (run->mods != NULL && (strcmp(name, MGK_MODS_FILE) == 0 || strcmp(name, MGK_MASK_FILE) == 0)) {
        *file = (source_file){.text = run->mods, .length = strlen(run->mods)};
        return CLMGK_OK;
    }
    return run->kernel_dir != NULL ? open_in_folder(run, name, file) : open_embedded(name, file, run->error);
}

/* Recursive; ends because each file is expanded once. */
static clmgk_status expand_file(expansion *run, const char *name)
{
    source_file file = {0};
    MGK_TRY(open_file(run, name, &file));
    const clmgk_status status = expand_lines(run, name, &file);
    mgk_free(run->out->allocator, file.owned);
    return status;
}

/* Finds the engine that the options name, if they name one. */
static void find_engine(expansion *run, const char *options)
{
    static const char option[] = "-DENGINE=";
    const char *const found = strstr(options, option);
    if (found == NULL)
        return;
    run->engine = found + sizeof(option) - 1;
    run->engine_length = strcspn(run->engine, " ");
}

clmgk_status mgk_source_expand(const char *kernel_dir, const char *name, const char *options, const char *mods,
                               mgk_text *out, clmgk_error *error)
{
    expansion run = {
        .kernel_dir = kernel_dir, .mods = mods, .out = out, .seen = {.allocator = out->allocator}, .error = error};
    find_engine(&run, options);
    clmgk_status status = first_time(&run.seen, name) ? expand_file(&run, name) : CLMGK_OK;
    if (status == CLMGK_OK && (out->failed || run.seen.failed))
        status = mgk_fail_memory(error, "a kernel's source");
    mgk_text_free(&run.seen);
    return status;
}
