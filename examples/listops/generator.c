/* SPDX-License-Identifier: Apache-2.0 */
#include "generator.h"

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

uint64_t random_bits(uint64_t seed, uint64_t place)
{
    uint64_t z = seed + (place + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

/* An expression being written. */
typedef struct writer {
    const task *task;
    uint64_t seed, drawn;
    int32_t *tokens;
    int32_t length; /* above max_length: it became too long */
} writer;

static uint32_t draw(writer *w, uint32_t below)
{
    return (uint32_t)(((random_bits(w->seed, w->drawn++) >> 32) * below) >> 32);
}

static bool draw_nested(writer *w)
{
    return (double)(random_bits(w->seed, w->drawn++) >> 11) * 0x1p-53 < w->task->nested;
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static void put(writer *w, int32_t token)
{
    if (w->length < w->task->max_length) {
        w->tokens[w->length] = token;
    }
    ++w->length;
}

static void write_operation(writer *w, int32_t depth) // NOLINT(misc-no-recursion): as deep as expressions are
{
    put(w, TOKEN_MIN + (int32_t)draw(w, 4));
    const int32_t count = 2 + (int32_t)draw(w, (uint32_t)w->task->arguments - 1);
    for (int32_t i = 0; i < count && w->length <= w->task->max_length; ++i) {
        if (depth < w->task->depth && draw_nested(w)) {
            write_operation(w, depth + 1);
        } else {
            put(w, (int32_t)draw(w, 10));
        }
    }
    put(w, TOKEN_END);
}

int32_t generate(const task *t, stream from, uint64_t index, int32_t *tokens, int32_t *answer)
{
    const uint64_t seed = random_bits(random_bits(t->seed, from), index);
    for (uint64_t attempt = 0; attempt < 100000; ++attempt) {
        writer w = {.task = t, .seed = random_bits(seed, attempt), .tokens = tokens};
        write_operation(&w, 1);
        if (w.length >= t->min_length && w.length <= t->max_length) {
            *answer = evaluate(tokens, w.length);
            return w.length;
        }
    }
    return 0;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static int32_t combine(int32_t operation, const int32_t *digits, int32_t count)
{
    int32_t counts[10] = {0}, sum = 0, sorted[MAX_ARGUMENTS], n = 0;
    for (int32_t i = 0; i < count; ++i) {
        sum += digits[i];
        ++counts[digits[i]];
    }
    for (int32_t digit = 0; digit < 10; ++digit) {
        for (int32_t i = 0; i < counts[digit]; ++i) {
            sorted[n++] = digit;
        }
    }
    switch (operation) {
    case TOKEN_MIN:
        return sorted[0];
    case TOKEN_MAX:
        return sorted[count - 1];
    case TOKEN_MED:
        return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    default:
        return sum % 10;
    }
}

/* Reads the operation at *place, and goes behind it. */
static int32_t read_operation(const int32_t *tokens, int32_t length, int32_t *place) // NOLINT(misc-no-recursion)
{
    int32_t digits[MAX_ARGUMENTS], count = 0;
    const int32_t operation = tokens[(*place)++];
    while (*place < length && tokens[*place] != TOKEN_END) {
        const int32_t token = tokens[*place];
        const int32_t digit = token < 10 ? token : token < TOKEN_END ? read_operation(tokens, length, place) : -1;
        *place += token < 10;
        if (digit < 0 || count == MAX_ARGUMENTS) {
            return -1;
        }
        digits[count++] = digit;
    }
    if (*place == length || count == 0) {
        return -1;
    }
    ++*place;
    return combine(operation, digits, count);
}

int32_t evaluate(const int32_t *tokens, int32_t length)
{
    int32_t place = 0;
    if (length < 1 || tokens[0] < TOKEN_MIN || tokens[0] > TOKEN_SM) {
        return -1;
    }
    const int32_t value = read_operation(tokens, length, &place);
    return place == length ? value : -1;
}
