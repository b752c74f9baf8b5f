/* SPDX-License-Identifier: Apache-2.0 */
#include "device/edited.h"

#include <string.h>

#define TARGET       "sm_90"
#define TARGET_ADDED "a"

/* A part of a text that is not ended by NUL. */
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

/* Where a line's comment begins; its end, if it has none. */
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

/* A comment that is an instruction becomes one. */
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

/* The value of the directive `name`, which must stand in the first line that is more than a comment; the rest of the
 * text follows. False: another word stands there, or none. */
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

/* Where the name of the target ends. */
static clmgk_status find_target(span text, const char **end, clmgk_error *error)
{
    enum { MOST_SHOWN = 32 };
    span version, target;
    if (!read_directive(&text, ".version", &version) || !read_directive(&text, ".target", &target))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "the driver's binary is not PTX: it does not begin with .version and .target");
    if (!is_word(target, TARGET))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the driver's PTX is for %.*s, expected " TARGET,
                        (int)(length_of(target) < MOST_SHOWN ? length_of(target) : MOST_SHOWN), target.begin);
    *end = target.end;
    return CLMGK_OK;
}

clmgk_status mgk_ptx_edit(const char *binary, size_t length, mgk_text *edited, size_t *marks, clmgk_error *error)
{
    span text = {binary, binary + length};
    const char *target_end = NULL;
    *marks = 0;
    while (length_of(text) > 0 && text.end[-1] == '\0')
        --text.end;
    if (length_of(text) == 0 || memchr(text.begin, '\0', length_of(text)) != NULL)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the driver's binary is not PTX: it is no text");
    MGK_TRY(find_target(text, &target_end, error));
    append_lines((span){text.begin, target_end}, edited, marks);
    mgk_text_printf(edited, TARGET_ADDED);
    append_lines((span){target_end, text.end}, edited, marks);
    return edited->failed ? mgk_fail_memory(error, "an edited program") : CLMGK_OK;
}
