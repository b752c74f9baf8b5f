/* SPDX-License-Identifier: Apache-2.0 */
/* Words of a text. Nothing here depends on the locale. */
#include "expression/words.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool mgk_is_identifier(const char *text)
{
    size_t length = 0;
    while (is_letter(text[length]) || (length > 0 && is_digit(text[length])))
        ++length;
    return length > 0 && length <= MGK_SYMBOL_BYTES && text[length] == '\0';
}

bool mgk_word_is(const mgk_word *word, const char *text)
{
    return word->kind != MGK_WORD_END && strlen(text) == (size_t)word->length &&
           memcmp(word->start, text, (size_t)word->length) == 0;
}

int mgk_word_distance(const mgk_word *word, const char *text)
{
    int row[MGK_SYMBOL_BYTES + 1];
    const int length = (int)strlen(text);
    if (word->length > MGK_SYMBOL_BYTES || length > MGK_SYMBOL_BYTES)
        return MGK_SYMBOL_BYTES;
    for (int t = 0; t <= length; ++t)
        row[t] = t;
    for (int w = 0; w < word->length; ++w) {
        int diagonal = row[0];
        row[0] = w + 1;
        for (int t = 0; t < length; ++t) {
            const int replaced = diagonal + (word->start[w] != text[t]);
            const int shorter = (row[t] < row[t + 1] ? row[t] : row[t + 1]) + 1;
            diagonal = row[t + 1];
            row[t + 1] = replaced < shorter ? replaced : shorter;
        }
    }
    return row[length];
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

int32_t mgk_reader_fail(mgk_reader *reader, const mgk_word *where, const char *format, ...)
{
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    if (reader->status == CLMGK_OK)
        reader->status = mgk_fail(reader->error, CLMGK_ERROR_INVALID_VALUE, "%s: line %d, column %d: %s", reader->field,
                                  where->line, where->column, reason);
    reader->word.kind = MGK_WORD_END;
    return 0;
}

int32_t mgk_reader_expected(mgk_reader *reader, const char *what)
{
    const mgk_word *const found = &reader->word;
    const int shown = found->length < 40 ? found->length : 40;
    if (found->kind == MGK_WORD_END)
        return mgk_reader_fail(reader, found, "expected %s, found the end of the text", what);
    return mgk_reader_fail(reader, found, "expected %s, found '%.*s'", what, shown, found->start);
}

bool mgk_reader_step(mgk_reader *reader)
{
    if (reader->status == CLMGK_OK && ++reader->steps > MGK_TEXT_STEPS)
        mgk_reader_fail(reader, &reader->word, "too long: expected at most %d words and operations", MGK_TEXT_STEPS);
    return reader->status == CLMGK_OK;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Digits at `at`, added to *value as far as it holds them; *exponent grows by those that it does not, or, behind the
 * point, falls. Returns the character after them. */
static const char *read_digits(const char *at, bool behind, uint64_t *value, int *exponent)
{
    for (; is_digit(*at); ++at) {
        const bool room = *value < UINT64_MAX / 10 - 1;
        if (room)
            *value = 10 * *value + (uint64_t)(*at - '0');
        *exponent += (int)!room - (int)behind;
    }
    return at;
}

/* The exponent after 'e'; `at` where there is none. */
static const char *read_exponent(const char *at, int *exponent)
{
    const char *digits = at + 1;
    const bool negative = *at != '\0' && *digits == '-';
    if ((*at != 'e' && *at != 'E') || !is_digit(digits[*digits == '-' || *digits == '+']))
        return at;
    int value = 0;
    for (digits += *digits == '-' || *digits == '+'; is_digit(*digits); ++digits)
        value = value < 100000 ? 10 * value + (*digits - '0') : value;
    *exponent += negative ? -value : value;
    return digits;
}

static const char *read_number(mgk_reader *reader, mgk_word *word)
{
    uint64_t digits = 0;
    int exponent = 0;
    const char *at = read_digits(word->start, false, &digits, &exponent);
    word->kind = MGK_WORD_INT;
    const bool point = *at == '.';
    if (point)
        at = read_digits(at + 1, true, &digits, &exponent);
    const char *const end = read_exponent(at, &exponent);
    if (point || end != at) {
        word->kind = MGK_WORD_FLOAT;
        at = end + (*end == 'f' || *end == 'F');
    }
    word->value = digits == 0 ? 0 : (double)digits * pow(10, exponent);
    const double most = word->kind == MGK_WORD_INT ? (double)INT32_MAX : (double)FLT_MAX;
    if (word->value > most)
        mgk_reader_fail(reader, word, "a number is too large: expected at most %s",
                        word->kind == MGK_WORD_INT ? "2147483647 for an int" : "3.4e38");
    else if (is_letter(*at) || is_digit(*at) || *at == '.')
        mgk_reader_fail(reader, word, "a number ends with '%c': expected digits, as in 12 or 0.5e-3", *at);
    else if (word->kind == MGK_WORD_INT && *word->start == '0' && at - word->start > 1)
        mgk_reader_fail(reader, word, "an int begins with 0: expected a decimal number");
    return at;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static const char *read_sign(mgk_reader *reader, const mgk_word *word)
{
    static const char *const pairs[] = {"&&", "||", "==", "!=", "<=", ">="};
    for (size_t n = 0; n < MGK_COUNT(pairs); ++n) {
        if (strncmp(word->start, pairs[n], 2) == 0)
            return word->start + 2;
    }
    if (strchr("+-*/%<>!?:()[],;=", *word->start))
        return word->start + 1;
    if (*word->start > ' ' && *word->start <= '~')
        mgk_reader_fail(reader, word, "expected an operator or operand of C, found '%c'%s", *word->start,
                        *word->start == '&'   ? "; nearest: '&&'"
                        : *word->start == '|' ? "; nearest: '||'"
                                              : "");
    else
        mgk_reader_fail(reader, word, "expected a character of ASCII, found byte 0x%02x",
                        (unsigned)(unsigned char)*word->start);
    return word->start + 1;
}

static void skip_space(mgk_reader *reader)
{
    for (; *reader->at == ' ' || (*reader->at >= '\t' && *reader->at <= '\r'); ++reader->at) {
        if (*reader->at == '\n') {
            ++reader->line;
            reader->line_start = reader->at + 1;
        }
    }
}

mgk_word mgk_reader_next(mgk_reader *reader)
{
    const mgk_word before = reader->word;
    if (!mgk_reader_step(reader))
        return before;
    skip_space(reader);
    mgk_word word = {.start = reader->at, .line = reader->line, .column = (int)(reader->at - reader->line_start) + 1};
    const char *end = reader->at;
    if (is_digit(*end) || (*end == '.' && is_digit(end[1]))) {
        end = read_number(reader, &word);
    } else if (is_letter(*end)) {
        word.kind = MGK_WORD_NAME;
        while (is_letter(*end) || is_digit(*end))
            ++end;
    } else if (*end != '\0') {
        word.kind = MGK_WORD_SIGN;
        end = read_sign(reader, &word);
    }
    word.length = (int)(end - word.start);
    reader->at = end;
    if (reader->status == CLMGK_OK)
        reader->word = word;
    return before;
}
