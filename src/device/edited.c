/* SPDX-License-Identifier: Apache-2.0 */
#include "device/edited.h"

#include <string.h>

#define TARGET       "sm_90"
#define TARGET_ADDED "a"

/* A part of a text, without NUL. */
typedef struct span {
    const char *begin, *end;
} span;

static size_t length_of(span text)
{
    return (size_t)(text.end - text.begin);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static span without_blanks(span text)
{
    while (text.begin < text.end && is_blank(*text.begin))
        ++text.begin;
    return text;
}

/* The text up to a blank or a comma. */
static span first_word(span text)
{
    span word = {text.begin, text.begin};
    while (word.end < text.end && !is_blank(*word.end) && *word.end != ',')
        ++word.end;
    return word;
}

static bool is_word(span word, const char *text)
{
    return length_of(word) == strlen(text) && memcmp(word.begin, text, strlen(text)) == 0;
}

/* The first line of a text, with its end. */
static span first_line(span text)
{
    const char *const newline = memchr(text.begin, '\n', length_of(text));
    return (span){text.begin, newline != NULL ? newline + 1 : text.end};
}

/* Begin of a line's comment; the line's end, if it has none. */
static const char *comment_of(span line)
{
    const char *at = line.begin;
    while (at + 1 < line.end && (at[0] != '/' || at[1] != '/'))
        ++at;
    return at + 1 < line.end ? at : line.end;
}

static bool is_marked(const char *comment, const char *end)
{
    const size_t mark = strlen(MGK_PTX_MARK);
    return (size_t)(end - comment) >= mark && memcmp(comment, MGK_PTX_MARK, mark) == 0;
}

static void append(mgk_text *edited, const char *begin, const char *end)
{
    mgk_text_append(edited, begin, (size_t)(end - begin));
}

/* Appends a line; a comment that is an instruction becomes one. */
static void append_line(span line, mgk_text *edited, size_t *marks)
{
    const char *const comment = comment_of(line);
    const bool marked = is_marked(comment, line.end);
    append(edited, line.begin, comment);
    append(edited, marked ? comment + strlen(MGK_PTX_MARK) : comment, line.end);
    *marks += marked;
}

static void append_lines(span text, mgk_text *edited, size_t *marks)
{
    while (length_of(text) > 0) {
        const span line = first_line(text);
        append_line(line, edited, marks);
        text.begin = line.end;
    }
}

/* Reads the value of the directive `name` from the first line that is more than a comment; `text` becomes the rest.
 * False: another word stands there, or none. */
static bool read_directive(span *text, const char *name, span *value)
{
    span word = {text->begin, text->begin};
    while (length_of(*text) > 0 && length_of(word) == 0) {
        const span line = first_line(*text), content = {line.begin, comment_of(line)};
        word = first_word(without_blanks(content));
        *value = first_word(without_blanks((span){word.end, content.end}));
        text->begin = line.end;
    }
    return is_word(word, name);
}

/* Reads a binary that is PTX: its text, and the name of its target within. */
static clmgk_status read_ptx(const char *binary, size_t length, span *text, span *target, clmgk_error *error)
{
    span version;
    *text = (span){binary, binary + length};
    while (length_of(*text) > 0 && text->end[-1] == '\0')
        --text->end;
    if (length_of(*text) == 0 || memchr(text->begin, '\0', length_of(*text)) != NULL)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the driver's binary is not PTX: it is no text");
    span rest = *text;
    if (!read_directive(&rest, ".version", &version) || !read_directive(&rest, ".target", target))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "the driver's binary is not PTX: it does not begin with .version and .target");
    return CLMGK_OK;
}

static clmgk_status check_written(const mgk_text *text, clmgk_error *error)
{
    return text->failed ? mgk_fail_memory(error, "an edited program") : CLMGK_OK;
}

clmgk_status mgk_ptx_edit(const char *binary, size_t length, mgk_text *edited, size_t *marks, clmgk_error *error)
{
    enum { MOST_SHOWN = 32 };
    span text, target;
    *marks = 0;
    MGK_TRY(read_ptx(binary, length, &text, &target, error));
    if (!is_word(target, TARGET))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the driver's PTX is for %.*s, expected " TARGET,
                        (int)(length_of(target) < MOST_SHOWN ? length_of(target) : MOST_SHOWN), target.begin);
    append_lines((span){text.begin, target.end}, edited, marks);
    mgk_text_printf(edited, TARGET_ADDED);
    append_lines((span){target.end, text.end}, edited, marks);
    return check_written(edited, error);
}

/* ---- for CUDA ------------------------------------------------------------------------------------------------ */

/* OpenCL's driver puts the offsets of a launch's work-groups and work-items into these registers; CUDA's does not set
 * them. The first MGK_PTX_OFFSETS of them are 0 in every launch of the library. */
#define REGISTER        "%envreg"
#define MGK_PTX_OFFSETS 6

/* Place of `word` in a text; the text's end: nowhere. */
static const char *find_word(span text, const char *word)
{
    const size_t length = strlen(word);
    while (length_of(text) >= length && memcmp(text.begin, word, length) != 0) {
        const char *const next = memchr(text.begin + 1, word[0], length_of(text) - 1);
        text.begin = next != NULL ? next : text.end;
    }
    return length_of(text) >= length ? text.begin : text.end;
}

static clmgk_status append_without_registers(span text, mgk_text *out, clmgk_error *error)
{
    for (;;) {
        const char *const at = find_word(text, REGISTER);
        append(out, text.begin, at);
        if (at == text.end)
            return CLMGK_OK;
        int number = 0;
        const char *end = at + strlen(REGISTER);
        for (; end < text.end && *end >= '0' && *end <= '9' && number < MGK_PTX_OFFSETS; ++end)
            number = 10 * number + (*end - '0');
        if (number >= MGK_PTX_OFFSETS)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the driver's PTX reads %s%d, which CUDA does not set",
                            REGISTER, number);
        append(out, "0", &"0"[1]);
        text.begin = end;
    }
}

/* Whether a line declares an array of local memory that becomes dynamic: ".shared .align 1024 .b8 name_tiles[16];".
 * `declaration`: the line without blanks, up to the size. */
static bool is_dynamic(span line, span *declaration)
{
    const size_t suffix = strlen(MGK_PTX_DYNAMIC);
    *declaration = without_blanks((span){line.begin, comment_of(line)});
    if (!is_word(first_word(*declaration), ".shared"))
        return false;
    declaration->end = find_word(*declaration, "[");
    return length_of(*declaration) > suffix && memcmp(declaration->end - suffix, MGK_PTX_DYNAMIC, suffix) == 0;
}

/* Appends the lines of `text` that declare dynamic arrays, which only a module may do; returns their number. */
static size_t append_dynamic(span text, mgk_text *out)
{
    size_t count = 0;
    while (length_of(text) > 0) {
        const span line = first_line(text);
        span declaration;
        if (is_dynamic(line, &declaration)) {
            mgk_text_printf(out, ".extern ");
            append(out, declaration.begin, declaration.end);
            mgk_text_printf(out, "[];\n");
            ++count;
        }
        text.begin = line.end;
    }
    return count;
}

/* The next lines of `text` up to a declaration of a dynamic array, which is left out; `text` becomes the rest. */
static span before_dynamic(span *text)
{
    span before = {text->begin, text->begin};
    bool found = false;
    while (length_of(*text) > 0 && !found) {
        const span line = first_line(*text);
        span declaration;
        found = is_dynamic(line, &declaration);
        text->begin = line.end;
        if (!found)
            before.end = line.end;
    }
    return before;
}

/* Appends what follows the target's line. */
static clmgk_status append_rest(span text, bool dynamic, mgk_text *out, clmgk_error *error)
{
    span rest = text, size;
    if (!dynamic)
        return append_without_registers(text, out, error);
    if (!read_directive(&rest, ".address_size", &size))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the driver's PTX has no .address_size behind its target");
    append(out, text.begin, rest.begin);
    if (append_dynamic(rest, out) == 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the driver's PTX declares no array that could be dynamic");
    while (length_of(rest) > 0)
        MGK_TRY(append_without_registers(before_dynamic(&rest), out, error));
    return CLMGK_OK;
}

clmgk_status mgk_ptx_for_cuda(const char *binary, size_t length, bool dynamic, mgk_text *out, clmgk_error *error)
{
    static const char mode[] = ", texmode_independent"; /* OpenCL's textures */
    span text, target;
    MGK_TRY(read_ptx(binary, length, &text, &target, error));
    const span line = first_line((span){target.end, text.end});
    const char *const at = find_word(line, mode);
    append(out, text.begin, at);
    const char *const rest = at == line.end ? at : at + strlen(mode);
    append(out, rest, line.end);
    MGK_TRY(append_rest((span){line.end, text.end}, dynamic, out, error));
    return check_written(out, error);
}
