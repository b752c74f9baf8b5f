/* SPDX-License-Identifier: Apache-2.0 */
#include "recording.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 30) /* of a file's part */

static tool_exit fail_form(const char *path, const char *what, tool_error *error)
{
    return tool_fail(error, TOOL_BAD_INPUT, "'%s': expected %s", path, what);
}

/* Reads a line without its end. False: there is no line, or it is too long. */
static bool read_line(FILE *file, char *line, size_t size)
{
    if (!fgets(line, (int)size, file))
        return false;
    char *const end = strchr(line, '\n');
    if (end)
        *end = '\0';
    return end != NULL;
}

/* `count` numbers with a space between them, and nothing else. */
static bool parse_sizes(const char *text, size_t count, size_t *sizes)
{
    char *end = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!isdigit((unsigned char)*text))
            return false;
        sizes[i] = strtoull(text, &end, 10);
        text = *end == ' ' ? end + 1 : end;
    }
    return *text == '\0';
}

static bool read_three(FILE *file, unsigned of[3])
{
    char line[128];
    size_t sizes[3];
    if (!read_line(file, line, sizeof(line)) || !parse_sizes(line, 3, sizes))
        return false;
    for (int i = 0; i < 3; i++) {
        if (sizes[i] == 0 || sizes[i] > INT32_MAX)
            return false;
        of[i] = (unsigned)sizes[i];
    }
    return true;
}

static tool_exit read_argument(FILE *file, const char *path, const char *kind, size_t size, replay_recording *recording,
                               tool_error *error)
{
    if (recording->count == REPLAY_ARGUMENTS || size > MOST_BYTES)
        return fail_form(path, "fewer and smaller arguments", error);
    if (strcmp(kind, "local") == 0)
        return fail_form(path, "no argument in local memory", error);
    replay_argument *const one = &recording->arguments[recording->count];
    *one = (replay_argument){.is_buffer = strcmp(kind, "buffer") == 0, .size = size, .bytes = malloc(size + 1)};
    TOOL_TRY(tool_check_memory(one->bytes, "an argument", error));
    recording->count++;
    if (!one->is_buffer && strcmp(kind, "value") != 0)
        return fail_form(path, "arguments of a recording", error);
    return fread(one->bytes, 1, size, file) == size ? TOOL_DONE : fail_form(path, "a whole recording", error);
}

static tool_exit read_launch(FILE *file, const char *path, replay_recording *recording, tool_error *error)
{
    char line[REPLAY_NAME];
    size_t size = 0;
    if (!read_line(file, line, sizeof(line)) || strcmp(line, "clmgk recording 1") != 0 ||
        !read_line(file, recording->kernel, sizeof(recording->kernel)) || !read_three(file, recording->groups) ||
        !read_three(file, recording->items))
        return fail_form(path, "a recording of record_layer", error);
    while (fgets(line, sizeof(line), file)) {
        char *const space = strchr(line, ' '), *const end = strchr(line, '\n');
        if (!space || !end)
            return fail_form(path, "arguments of a recording", error);
        *space = *end = '\0';
        if (!parse_sizes(space + 1, 1, &size))
            return fail_form(path, "arguments of a recording", error);
        TOOL_TRY(read_argument(file, path, line, size, recording, error));
    }
    return TOOL_DONE;
}

static tool_exit read_program(const char *path, replay_recording *recording, tool_error *error)
{
    FILE *const file = fopen(path, "rb");
    if (!file)
        return tool_fail(error, TOOL_BAD_INPUT, "'%s': cannot be read; a recording has its program beside it", path);
    tool_exit status = TOOL_DONE;
    size_t room = 0, got = 0;
    do {
        room += (size_t)1 << 20;
        char *const more = realloc(recording->program, room + 1);
        TOOL_TRY_GOTO(status, tool_check_memory(more, "a program", error), done);
        recording->program = more;
        got = fread(more + recording->program_size, 1, room - recording->program_size, file);
        recording->program_size += got;
    } while (got > 0 && room < MOST_BYTES);
    recording->program[recording->program_size] = '\0';
done:
    (void)fclose(file);
    return status;
}

tool_exit replay_read(const char *path, replay_recording *recording, tool_error *error)
{
    const size_t length = strlen(path);
    *recording = (replay_recording){.count = 0};
    if (length < 4 || strcmp(path + length - 4, ".rec") != 0)
        return fail_form(path, "a file whose name ends in .rec", error);
    FILE *const file = fopen(path, "rb");
    if (!file)
        return tool_fail(error, TOOL_BAD_INPUT, "'%s': cannot be read", path);
    tool_exit status = read_launch(file, path, recording, error);
    (void)fclose(file);
    char *const program = status == TOOL_DONE ? strdup(path) : NULL;
    if (status == TOOL_DONE)
        status = tool_check_memory(program, "a name", error);
    if (status == TOOL_DONE) {
        memcpy(program + length - 4, ".bin", 4);
        status = read_program(program, recording, error);
    }
    free(program);
    return status;
}

void replay_close(replay_recording *recording)
{
    for (size_t i = 0; i < recording->count; i++)
        free(recording->arguments[i].bytes);
    free(recording->program);
    *recording = (replay_recording){.count = 0};
}

/* Replaces each `text`, and digits after it, by `by` and spaces. */
static void replace(char *where, const char *text, const char *by)
{
    for (char *at = where; (at = strstr(at, text)) != NULL;) {
        char *end = at + strlen(text);
        while (isdigit((unsigned char)*end))
            end++;
        memset(at, ' ', (size_t)(end - at));
        memcpy(at, by, strlen(by));
        at = end;
    }
}

tool_exit replay_adapt(replay_recording *recording, tool_error *error)
{
    while (recording->program_size > 0 && recording->program[recording->program_size - 1] == '\0')
        recording->program_size--; /* NVIDIA's driver ends the text by one */
    if (memchr(recording->program, '\0', recording->program_size) || !strstr(recording->program, ".entry") ||
        !strstr(recording->program, ".target"))
        return tool_fail(error, TOOL_BAD_INPUT, "the program of %s is no PTX: its driver is not NVIDIA's",
                         recording->kernel);
    replace(recording->program, ", texmode_independent", "");
    replace(recording->program, "%envreg", "0");
    return TOOL_DONE;
}
