/* SPDX-License-Identifier: Apache-2.0 */
/* Packed batches. */
#include "network.h"

#include <stdlib.h>
#include <string.h>

void batch_open(batch *b, const settings *s)
{
    *b = (batch){.rows = s->rows, .capacity = s->rows / s->min_length + 1};
    b->tokens = allocate((size_t)b->rows, sizeof(int32_t));
    b->positions = allocate((size_t)b->rows, sizeof(int32_t));
    b->offsets = allocate((size_t)b->capacity + 1, sizeof(int32_t));
    b->answers = allocate((size_t)b->capacity, sizeof(int32_t));
}

void batch_close(batch *b)
{
    free(b->tokens);
    free(b->positions);
    free(b->offsets);
    free(b->answers);
}

/* Empty sequences come first: devices hand out work-groups in their order, half of them to the first of two cores. */
static void put_last(batch *b)
{
    b->first = b->capacity - 1 - b->count;
    (void)memmove(b->offsets + b->first, b->offsets, (size_t)b->count * sizeof(int32_t));
    (void)memmove(b->answers + b->first, b->answers, (size_t)b->count * sizeof(int32_t));
    for (int32_t i = 0; i < b->first; ++i) {
        b->offsets[i] = 0;
        b->answers[i] = -1;
    }
    b->offsets[b->capacity - 1] = b->used;
    b->offsets[b->capacity] = b->rows;
    b->answers[b->capacity - 1] = -1;
}

uint64_t batch_fill(batch *b, const task *t, stream from, uint64_t index, uint64_t end)
{
    int32_t *const tokens = allocate((size_t)t->max_length, sizeof(int32_t)), answer = 0;
    b->count = b->used = 0;
    for (; index < end; ++index) {
        const int32_t length = generate(t, from, index, tokens, &answer);
        if (length == 0) {
            fail(EXIT_USAGE, "no expression of %d to %d tokens was found with these limits", t->min_length,
                 t->max_length);
        }
        if (length > b->rows - b->used) {
            break;
        }
        (void)memcpy(b->tokens + b->used, tokens, (size_t)length * sizeof(int32_t));
        for (int32_t i = 0; i < length; ++i) {
            b->positions[b->used + i] = i;
        }
        b->offsets[b->count] = b->used;
        b->answers[b->count++] = answer;
        b->used += length;
    }
    for (int32_t row = b->used; row < b->rows; ++row) {
        b->tokens[row] = TOKEN_PADDING;
        b->positions[row] = 0;
    }
    put_last(b);
    free(tokens);
    return index;
}
