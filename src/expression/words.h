/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a text, one after the other, and messages about them. */
#ifndef MGK_EXPRESSION_WORDS_H
#define MGK_EXPRESSION_WORDS_H

#include "expression/expression.h"

typedef enum mgk_word_kind { MGK_WORD_END, MGK_WORD_INT, MGK_WORD_FLOAT, MGK_WORD_NAME, MGK_WORD_SIGN } mgk_word_kind;

typedef struct mgk_word {
    mgk_word_kind kind;
    const char *start;
    int length;
    int line, column;
    double value; /* of a number */
} mgk_word;

typedef struct mgk_reader {
    const char *at;         /* the rest of the text */
    const char *line_start; /* of the line of `at` */
    int line;
    int steps;     /* words and operations so far */
    mgk_word word; /* the next one; after a failure always MGK_WORD_END */
    const char *field;
    clmgk_status status;
    clmgk_error *error;
} mgk_reader;

/* Records the first failure, at a word. Returns 0. */
int32_t mgk_reader_fail(mgk_reader *reader, const mgk_word *where, const char *format, ...) MGK_PRINTF(3, 4);

/* "expected <what>, found <the next word>". */
int32_t mgk_reader_expected(mgk_reader *reader, const char *what);

/* Counts a step; fails after MGK_TEXT_STEPS. */
bool mgk_reader_step(mgk_reader *reader);

/* Reads the next word; returns the one before. */
mgk_word mgk_reader_next(mgk_reader *reader);

bool mgk_word_is(const mgk_word *word, const char *text);
bool mgk_is_identifier(const char *text);

/* The number of letters to insert, remove or replace to make `text` of the word; MGK_SYMBOL_BYTES at most. */
int mgk_word_distance(const mgk_word *word, const char *text);

#endif
