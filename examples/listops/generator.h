/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ListOps (Nangia and Bowman 2018): nested operations on lists of digits, to be evaluated. The answer is a digit.
 *
 *     [MAX 2 9 [MIN 4 7 ] 0 ]        9
 *
 * MIN, MAX, MED (the median; of an even count the mean of the middle two, rounded down) and SM (the sum modulo 10).
 */
#ifndef LISTOPS_GENERATOR_H
#define LISTOPS_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tokens: digits are their values. */
enum { TOKEN_MIN = 10, TOKEN_MAX, TOKEN_MED, TOKEN_SM, TOKEN_END, TOKEN_PADDING, VOCABULARY };
enum { CLASSES = 10, MAX_ARGUMENTS = 64 };

typedef struct task {
    uint64_t seed;
    int32_t min_length, max_length; /* tokens of an expression */
    int32_t depth;                  /* operations inside each other, at most */
    int32_t arguments;              /* of an operation: 2 .. arguments */
    double nested;                  /* probability that an argument is an operation */
} task;

/* Examples of training and test come from different streams. */
typedef enum stream { STREAM_TRAINING, STREAM_TEST } stream;

/* Writes example number `index`, at most max_length tokens, and its answer; returns its length. It depends on the task,
 * the stream and the index alone. 0: no expression of such lengths was found. */
int32_t generate(const task *t, stream from, uint64_t index, int32_t *tokens, int32_t *answer);

/* The value of an expression; -1: it is none. */
int32_t evaluate(const int32_t *tokens, int32_t length);

/* A random number from a seed and its place in a sequence (SplitMix64). */
uint64_t random_bits(uint64_t seed, uint64_t place);

#endif
