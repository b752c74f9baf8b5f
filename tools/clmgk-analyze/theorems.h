/* SPDX-License-Identifier: Apache-2.0 */
/* Theorems 1 and 2 of the low-rank bottleneck paper, as checks. Matrices are dense, row by row. */
#ifndef ANALYZE_THEOREMS_H
#define ANALYZE_THEOREMS_H

#include "analyze.h"

/* ---- cases.c: random numbers, by Philox and a counter, and products --------------------------------------------- */

typedef struct theorem_random {
    uint64_t seed;
    uint32_t stream, count;
} theorem_random;

double theorem_normal(theorem_random *random);
void theorem_normals(theorem_random *random, int64_t count, double scale, double *values);

/* c[rows,columns] = a b with a [rows,inner] and b [inner,columns], of which each may be given transposed. */
void theorem_product(int64_t rows, int64_t inner, int64_t columns, const double *a, bool a_transposed, const double *b,
                     bool b_transposed, double *c);

/* Softmax over each column of [n,n]. */
void theorem_softmax(int64_t n, const double *logits, double *p);

/* ---- theorem1.c ------------------------------------------------------------------------------------------------- */

/* One head size. D >= n: the construction, run on the device in f32. D < n: the best weights that were found, and a
 * lower bound for all weights. Distances are in the maximum norm. */
typedef struct theorem1_case {
    int64_t head_size;
    bool constructed;
    double error;                       /* constructed: the largest over all trials */
    double bound;                       /* its limit */
    double distance_min, distance_mean; /* otherwise */
    double least_min, least_mean;       /* proven */
    double gradient;                    /* the largest at the optimum */
    bool ok;
} theorem1_case;

#define THEOREM1_CASES 36

typedef struct theorem1_result {
    theorem1_case one[THEOREM1_CASES];
    int64_t count;
    double paper_distance, paper_least; /* the paper's own example of D < n */
    bool ok;
} theorem1_result;

tool_exit theorem1_solve(const analyze_arguments *arguments, theorem1_result *result, tool_error *error);

/* ---- theorem2.c ------------------------------------------------------------------------------------------------- */

enum { THEOREM2_WIDTH = 8, THEOREM2_HEADS = 4, THEOREM2_HEAD_SIZE = 4, THEOREM2_CASES = 3 };

typedef struct theorem2_result {
    double difference[THEOREM2_CASES]; /* of the proof's cases: the least |f - g| / |g| of all trials */
    double inclusion;                  /* the largest |f - g| / |f| where g is f with larger heads */
    bool ok;
} theorem2_result;

void theorem2_solve(const analyze_arguments *arguments, theorem2_result *result);

#endif
