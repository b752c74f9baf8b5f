/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference: every variant in double precision, in plain loops that read like the formulas of
 * clmgk/variants.h, and the bound within which outputs of the kernels must lie. For tests and for checking
 * (clmgk-run --check, clmgk-bench); no part of the library, and independent of its algebra.
 *
 * O and L are solved row by row, so that callers may sample; row (b,h,i) has the number (b*H + h)*N + i. Gradients and
 * statistics are those of a whole problem.
 */
#ifndef CLMGK_REFERENCE_H
#define CLMGK_REFERENCE_H

#include "clmgk/attention.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * One problem. `desc` is resolved by clmgk_attention_validate; its strides are ignored: the arrays here are dense, in
 * axis order, and hold the values that the stored elements have (clmgk_ref_load); a field for each line A of
 * CLMGK_ARRAY_LIST (clmgk/arrays.h). NULL: not given; dO and dL: zero. Lengths and offsets beyond their axis are
 * clamped. Only Q, K, V, the gradients of O and L, and the arrays that the descriptor asks for are read.
 */
typedef struct clmgk_ref_problem {
    clmgk_attention_desc desc;
    uint64_t seed; /* of dropout and noise */
#define CLMGK_REF_STORAGE                          const double
#define CLMGK_REF_F32                              const double
#define CLMGK_REF_I32                              const int32_t
#define CLMGK_REF_BYTE                             const void
#define CLMGK_REF_FIELD(name, field, element, ...) CLMGK_REF_##element *field;
    CLMGK_ARRAY_LIST(CLMGK_REF_FIELD, CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE)
#undef CLMGK_REF_STORAGE
#undef CLMGK_REF_F32
#undef CLMGK_REF_I32
#undef CLMGK_REF_BYTE
#undef CLMGK_REF_FIELD
} clmgk_ref_problem;

/* ---- the formulas, in double precision --------------------------------------------------------------------- */

/*
 * Whether query i of batch b and head h sees key j: lengths, packing, causality, window, and a bias of -inf. Rows
 * beyond lengths_q see nothing. With packed sequences i and j count along the packed axes, and b is 0.
 */
bool clmgk_ref_visible(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j);

/* How many keys query i of batch b sees where no bias hides one. Of the arrays only lengths and offsets are read. */
int64_t clmgk_ref_visible_keys(const clmgk_ref_problem *problem, int64_t b, int64_t i);

/* s_ijr, and s_ijr - log pi_r(j) with the hard E-step, for query head h, whether the key is visible or not. Admixture
 * family: the logit of key j in local head h, softcap(A_hij / sqrt(D)) + bias - ALiBi; r is 0. */
double clmgk_ref_log_weight(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j, int64_t r);

/* One row: h_i into o[E] and L_i into *lse. False: out of memory. */
bool clmgk_ref_row(const clmgk_ref_problem *problem, int64_t row, double *o, double *lse);

/* ---- the bound ---------------------------------------------------------------------------------------------- */

/*
 * error <= 3 plain_error + c max_abs, in the maximum norm over the rows of one answer. plain_error is the worst
 * error of the plain formula (whole rows, maximum subtracted, f32 sums) over summation orders and direct and
 * expanded distances; with f16 and bf16 storage it rounds weights and O. c: 3e-6 f32, 5e-4 f16, 4e-3 bf16.
 */
typedef struct clmgk_ref_bound {
    double plain_error;
    double max_abs; /* largest finite |exact| */
    double bound;
} clmgk_ref_bound;

/* The exact values of some rows, and their bounds. */
typedef struct clmgk_ref_answer {
    int64_t rows;
    int64_t value_size; /* E */
    int64_t *row;       /* [rows]: their numbers */
    double *o;          /* [rows,E] */
    double *lse;        /* [rows] */
    clmgk_ref_bound bound_o;
    clmgk_ref_bound bound_lse;
} clmgk_ref_answer;

/* Solves `rows` rows with the numbers `row` (NULL: rows 0, 1, 2, ...). False: out of memory, nothing to free. */
bool clmgk_ref_solve(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, clmgk_ref_answer *answer);
void clmgk_ref_answer_free(clmgk_ref_answer *answer);

typedef struct clmgk_ref_verdict {
    bool ok;           /* within the bounds, NaN and infinities in the same places */
    double error_o;    /* largest error where both are finite */
    double error_lse;  /* 0 without lse */
    char message[256]; /* what is wrong and where; empty if ok */
} clmgk_ref_verdict;

/* Holds outputs of the answer's rows, o[rows,E] and lse[rows] (NULL: not checked), against it. */
clmgk_ref_verdict clmgk_ref_check(const clmgk_ref_answer *answer, const double *o, const double *lse);

/* ---- gradients ---------------------------------------------------------------------------------------------- */

/*
 * Arrays of a whole problem: exact values, dense, and their bounds. Array number n is there if bit n of `set` is set;
 * the others are NULL and have no elements.
 */
#define CLMGK_REF_ARRAYS 12 /* gradients are the most */
typedef struct clmgk_ref_arrays {
    uint32_t set;
    double *exact[CLMGK_REF_ARRAYS];
    double *floor[CLMGK_REF_ARRAYS]; /* added to an element's bound; NULL: 0 everywhere */
    int64_t count[CLMGK_REF_ARRAYS];
    clmgk_ref_bound bound[CLMGK_REF_ARRAYS];
} clmgk_ref_arrays;

/* Of the element that is nearest to its bound, or furthest beyond it: its error and its bound. */
typedef struct clmgk_ref_error {
    double error;
    double bound;
} clmgk_ref_error;

/* In the order of the bits of clmgk_gradient. */
typedef enum clmgk_ref_gradient {
#define CLMGK_REF_GRADIENT(name, ...) CLMGK_REF_GRAD_##name,
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_REF_GRADIENT, CLMGK_ARRAY_NONE)
#undef CLMGK_REF_GRADIENT
        CLMGK_REF_GRADIENTS
} clmgk_ref_gradient;

typedef clmgk_ref_arrays clmgk_ref_gradients;

/* Elements of a gradient, which is dense in the shape of its parameter; 0 where the problem lacks that parameter. */
int64_t clmgk_ref_gradient_count(const clmgk_attention_desc *desc, clmgk_ref_gradient which);

/*
 * The gradients of sum(O dO) + sum(L dL) in `set`, a set of clmgk_gradient (those of parameters that the problem lacks
 * are left out), and their bounds: 5 plain_error + c max_abs with c = 1e-5 f32, 1e-3 f16, 8e-3 bf16. With f16 and bf16
 * the plain formula rounds weights, their gradient, O and all gradients. False: out of memory, nothing to free.
 *
 * floor: 2^-22 sum (1 + |L_i|) |term| over the terms of an element, where P (dP - delta + dL) counts as three terms.
 * In rows that are saturated or see one key dP - delta is exactly 0, but O was rounded; and P comes from a rounded L.
 */
bool clmgk_ref_solve_gradients(const clmgk_ref_problem *problem, uint32_t set, clmgk_ref_gradients *out);
void clmgk_ref_gradients_free(clmgk_ref_gradients *gradients);

/*
 * Holds given[count] against the exact gradient. `message` (`capacity` > 0) names the array and the first element that
 * is out of bound, or whose NaN or infinity is out of place; it is empty if there is none. An exact value beyond
 * 2^120 may be given as anything that is not finite: its terms may be infinite, of both signs.
 */
clmgk_ref_error clmgk_ref_check_gradient(const clmgk_ref_gradients *gradients, clmgk_ref_gradient which,
                                         const double *given, char *message, size_t capacity);

/* ---- expectation and maximisation ---------------------------------------------------------------------------- */

/* In the order of the bits of clmgk_statistic. */
typedef enum clmgk_ref_statistic {
#define CLMGK_REF_STATISTIC(name, ...) CLMGK_REF_STAT_##name,
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE, CLMGK_REF_STATISTIC)
#undef CLMGK_REF_STATISTIC
        CLMGK_REF_STATISTICS
} clmgk_ref_statistic;

typedef clmgk_ref_arrays clmgk_ref_statistics;

/* As for gradients; `set` is one of clmgk_statistic, the bounds are those of outputs: 3 plain_error + c max_abs. */
int64_t clmgk_ref_statistic_count(const clmgk_attention_desc *desc, clmgk_ref_statistic which);
bool clmgk_ref_solve_statistics(const clmgk_ref_problem *problem, uint32_t set, clmgk_ref_statistics *out);
void clmgk_ref_statistics_free(clmgk_ref_statistics *statistics);
clmgk_ref_error clmgk_ref_check_statistic(const clmgk_ref_statistics *statistics, clmgk_ref_statistic which,
                                          const double *given, char *message, size_t capacity);

/* ---- random numbers ------------------------------------------------------------------------------------------ */

/* Philox4x32-10 (Salmon et al. 2011), apart from the library's own. */
void clmgk_ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

/* What dropout multiplies the weight of (b,h,i,j) by: 0, or 1/(1-p); i and j count along the packed axes. */
double clmgk_ref_dropout(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j);

/* eps of (b,h,i,j), by Box and Muller in double precision; with shared noise that of head 0. 0 for variants without
 * noise. i and j as above. */
double clmgk_ref_noise(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j);

/* ---- storage types ------------------------------------------------------------------------------------------ */

/* Round to nearest, ties to even; NaN stays NaN, overflow is infinity. */
uint16_t clmgk_ref_f32_to_f16(float value);
float clmgk_ref_f16_to_f32(uint16_t bits);
uint16_t clmgk_ref_f32_to_bf16(float value);
float clmgk_ref_bf16_to_f32(uint16_t bits);

/* Bytes of an element. */
size_t clmgk_ref_dtype_size(clmgk_dtype dtype);

/* `count` elements of `dtype` as doubles, and back (rounded to f32, then to `dtype`). */
void clmgk_ref_load(clmgk_dtype dtype, const void *elements, size_t count, double *values);
void clmgk_ref_store(clmgk_dtype dtype, const double *values, size_t count, void *elements);

#endif
