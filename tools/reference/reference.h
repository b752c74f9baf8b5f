/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference: every variant in double precision, in plain loops that read like the formulas of clmgk/variants.h, and
 * error bounds for the kernels' outputs. For tests and checks (clmgk-run --check, clmgk-bench); not a part of the
 * library, and independent of its algebra.
 *
 * O and L are solved row by row, so that callers may sample rows; row (b,h,i) has the number (b*H + h)*N + i. With
 * mixing after the softmax L has other rows, (b,a,i) of A heads, with the numbers (b*A + a)*N + i. Gradients
 * and statistics are solved for a whole problem.
 */
#ifndef CLMGK_REFERENCE_H
#define CLMGK_REFERENCE_H

#include "clmgk/attention.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * A problem. `desc` is resolved by clmgk_attention_validate; its strides are ignored. The arrays, a field for each line
 * A of CLMGK_ARRAY_LIST (clmgk/arrays.h), are dense in axis order and hold the values of the stored elements
 * (clmgk_ref_load). NULL: no array; dO and dL: zero. Lengths and offsets beyond their axis are clamped, as in
 * attention.h. Only Q, K, V, dO, dL and the arrays that the descriptor uses are read.
 */
typedef struct clmgk_ref_problem {
    clmgk_attention_desc desc;
    uint64_t seed; /* of dropout and noise */
#define CLMGK_REF_STORAGE                          const double
#define CLMGK_REF_F32                              const double
#define CLMGK_REF_CAPTURE                          const double
#define CLMGK_REF_I32                              const int32_t
#define CLMGK_REF_BYTE                             const void
#define CLMGK_REF_FIELD(name, field, element, ...) CLMGK_REF_##element *field;
    CLMGK_ARRAY_LIST(CLMGK_REF_FIELD, CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE)
#undef CLMGK_REF_STORAGE
#undef CLMGK_REF_F32
#undef CLMGK_REF_CAPTURE
#undef CLMGK_REF_I32
#undef CLMGK_REF_BYTE
#undef CLMGK_REF_FIELD
} clmgk_ref_problem;

/* Sets the problem's arrays to those of their names. */
void clmgk_ref_set_arrays(clmgk_ref_problem *problem, void *const arrays[CLMGK_ARRAYS]);

/*
 * A problem as the functions below take it: K and V times the scales of their rows; keys and values in pages are
 * gathered, [B,G,S,D], and where each packed sequence has pages or a cache of its own, the keys in use follow one
 * another, with offsets. Its rows are the same. It points to the given arrays, and to memory of its own. False: out of
 * memory, nothing to free.
 */
typedef struct clmgk_ref_gathered {
    clmgk_ref_problem problem;
    void *memory[8];
} clmgk_ref_gathered;
bool clmgk_ref_gather(const clmgk_ref_problem *problem, clmgk_ref_gathered *gathered);
void clmgk_ref_gathered_free(clmgk_ref_gathered *gathered);

/* ---- the formulas, in double precision --------------------------------------------------------------------- */

/*
 * Whether query i of batch b and head h sees key j, by lengths, packing, causality, window, and a bias of -inf. Rows
 * beyond lengths_q see no key. With packed sequences i and j count along the packed axes, and b is 0.
 */
bool clmgk_ref_visible(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j);

/* Number of keys that query i of batch b sees, ignoring the bias. Reads only the arrays of lengths and offsets. */
int64_t clmgk_ref_visible_keys(const clmgk_ref_problem *problem, int64_t b, int64_t i);

/* s_ijr (hard E-step: s_ijr - log pi_r(j)) of query head h, for visible and hidden keys. Admixture family: the logit of
 * key j in local head h, softcap(A_hij / sqrt(D)) + bias - ALiBi; r is 0. */
double clmgk_ref_log_weight(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j, int64_t r);

/* Reads outside of the captured arrays, of the texts of all pairs that lengths, packing, causality and window leave: a
 * mask's, and, where it does not hide the pair, a score's. Reads of a branch that is not taken do not count. -1: out of
 * memory. */
int64_t clmgk_ref_reads_outside(const clmgk_ref_problem *problem);

/* Solves a row: h_i in o[E], L_i in *lse (0 in the linear family, which has none, and where heads are mixed after the
 * softmax). False: out of memory. */
bool clmgk_ref_row(const clmgk_ref_problem *problem, int64_t row, double *o, double *lse);

/* The attention matrix, row by row: [rows,S], 0 for hidden keys. */
typedef struct clmgk_ref_weight_rows {
    double *weights;          /* what values are multiplied by: with dropout, kept weights are larger */
    double *responsibilities; /* [rows,M,S]; NULL: not wanted; mixture family */
    double *log_likelihood;   /* [rows]: log p(q_i), NaN for a row without keys; NULL: not wanted; mixture family */
} clmgk_ref_weight_rows;

/* Fills the rows row[rows]; V is not read. Neighbours of one head share its work. False: out of memory. */
bool clmgk_ref_weights(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row,
                       const clmgk_ref_weight_rows *out);

/* ---- the bound ---------------------------------------------------------------------------------------------- */

/* The type whose bound an array has: its storage type; of f32 outputs, the type of the weights that they come from. */
clmgk_dtype clmgk_ref_type_of(const clmgk_attention_desc *desc, clmgk_array array);

/*
 * error <= 3 plain_error + c max_abs, in the maximum norm over the rows of an answer. plain_error is the worst error of
 * the plain formula (whole rows, maximum subtracted, f32 sums) over summation orders and direct and expanded distances;
 * where Q, K, V and O have one storage type, it rounds weights and O to that type; where their types differ, weights
 * are f32, and only O is rounded, to O's type. c is 1.024 u, with the unit u of the type that O is rounded to, and at
 * least 3e-6: 3e-6 f32, 5e-4 f16, 4e-3 bf16. With a precision of products that is not exact, the factors of products of
 * arrays, and vectors whose distances are taken directly, are rounded to it, and c is at least 1e-3 (tf32), 4e-3
 * (bf16). c of L and of other f32 outputs follows the type of the weights.
 *
 * A bound larger than the values proves nothing: then every comparison fails, with a message that says so. The size of
 * the values is `scale`, the largest sum of the absolute values of an element's terms, so that elements that are 0 by
 * cancellation may have a small bound. Where an answer has no such sums it is max_abs; for logarithms at least 1.
 *
 * Lost rows. In f32 a logit of 1e9 is a multiple of 64. So the plain formula loses the weights of a row that a bias
 * masks as a whole, or whose scores are as large, and a bound from its error would prove nothing for the other rows
 * either. A row is lost if, for a key that may have weight in it, |score| + |bias| + |ALiBi| is beyond 2^18, where f32
 * resolves 2^-6, or the same with the absolute values of all terms of the score (of a distance: in its expanded form)
 * is beyond 2^22. A key has no weight if no rounding of the row's logits brings it within 64 of the largest one: a mask
 * that leaves a key to a row loses nothing. plain_error, max_abs and scale are those of the other rows. A lost row must
 * be what some rounding of its logits leads to. The rounding error of a logit in f32, its `rounding`, is at most
 * (D + M + U + 8) 2^-24 times the sum of the absolute values of its terms. Therefore:
 *
 * - O is an average of the values of keys that may have weight (times dropout's factors; 0 for a sink). Each feature
 *   lies between the least and the largest of them, with room for the rounding of the sum: c of gradients, below. O is
 *   not 0 in all features, unless it is for the plain formula. Where these keys (vectors, bias, prior) are all the
 *   same, they have the same weight, and O is the exact one.
 * - L differs from the exact value by the row's largest rounding at most.
 * - P_ij is at most exp(logit - largest logit + the roundings of both), and at most 1. The row's term of a gradient may
 *   differ by twice the largest size that such a P, and such an average in delta, can give it. Elements without terms
 *   of lost rows, such as those of other heads, have no such room; nor have the terms of a row whose dO and dL are 0.
 * - gamma_ijr of a key beyond these limits, with weight or without, lies between 0 and 1. Counts and new priors have
 * the room of their terms.
 */
typedef struct clmgk_ref_bound {
    double plain_error;
    double max_abs; /* largest finite |exact| */
    double scale;   /* 0: not known, every bound will do */
    double most;    /* largest number of the array's storage type, if that is less than f32's; else 0 */
    double bound;
    bool may_leave; /* whatever is not finite is right: numbers that masks hide, or too large ones, may reach it */
} clmgk_ref_bound;

/* Whether a row of an answer is lost, or may leave the range of f32. */
typedef struct clmgk_ref_lost_row {
    bool is;
    bool may_be_zero; /* the plain formula's O is 0, or dropout may have dropped the key with the weight */
    double rounding;  /* the largest of a logit that may have weight: L's error */
    bool may_leave;   /* of all rows: clmgk_ref_bound's */
} clmgk_ref_lost_row;

/* Exact values of chosen rows, and their bounds. */
typedef struct clmgk_ref_answer {
    int64_t rows;
    int64_t value_size; /* E */
    int64_t *row;       /* [rows]: their numbers */
    double *o;          /* [rows,E] */
    double *lse;        /* [rows]; 0 in the linear family */
    double *den;        /* [rows]: linear family: denominators divided by e^scale */
    double *scale;      /* [rows]: the largest exponent of a row's terms; 0 for maps without exponents */
    double *left_out;   /* [rows]: the exponent that kernels leave out of their denominators: |y|^2 / 2 of favor */
    clmgk_ref_lost_row *lost; /* [rows] */
    double *low, *high;       /* [rows,E]: the range of O in lost rows */
    clmgk_ref_bound bound_o;
    clmgk_ref_bound bound_lse;
    clmgk_ref_bound bound_den;
    struct clmgk_ref_answer *before; /* mixing after the softmax: the rows of the A heads before it, with L, which the
                                        answer itself has not: of each row (b,h,i) of the answer the rows (b,a,i), or of
                                        all rows in order where all were asked for */
} clmgk_ref_answer;

/* Solves the rows row[rows] (NULL: 0, 1, 2, ...). False: out of memory, nothing to free. */
bool clmgk_ref_solve(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, clmgk_ref_answer *answer);
void clmgk_ref_answer_free(clmgk_ref_answer *answer);

typedef struct clmgk_ref_verdict {
    bool ok;           /* within the bounds, and NaN and infinities at the same elements */
    double error_o;    /* largest error of elements that are finite on both sides, in rows that are not lost */
    double error_lse;  /* 0 without lse */
    char message[256]; /* the first error; empty if ok */
} clmgk_ref_verdict;

/* Compares outputs o[rows,E] and lse[rows], or of the rows of `before` (NULL: not checked), with the answer. */
clmgk_ref_verdict clmgk_ref_check(const clmgk_ref_answer *answer, const double *o, const double *lse);

/* The same for denominators [rows,2] of the linear family, each with a scale of its own. False, and a message, if one
 * is wrong. */
bool clmgk_ref_check_denominators(const clmgk_ref_answer *answer, const double *given, char *message, size_t capacity);

/* ---- gradients ---------------------------------------------------------------------------------------------- */

/* In the order of the bits of clmgk_gradient. */
typedef enum clmgk_ref_gradient {
#define CLMGK_REF_GRADIENT(name, ...) CLMGK_REF_GRAD_##name,
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_REF_GRADIENT, CLMGK_ARRAY_NONE)
#undef CLMGK_REF_GRADIENT
        CLMGK_REF_GRADIENTS
} clmgk_ref_gradient;

#define CLMGK_REF_IN_ORDER(name, field, element, bit, ...)                                                             \
    _Static_assert((int)CLMGK_ARRAY_GRAD_##name == (int)CLMGK_ARRAY_GRAD_Q + (int)CLMGK_REF_GRAD_##name &&             \
                       (bit) == 1 << (int)CLMGK_REF_GRAD_##name,                                                       \
                   "gradients follow one another, with the next bits: " #name);
CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_REF_IN_ORDER, CLMGK_ARRAY_NONE)
#undef CLMGK_REF_IN_ORDER

/*
 * Arrays of a whole problem: exact values, dense, and their bounds. Array number n exists if bit n of `set` is set; the
 * others are NULL and have no elements.
 */
#define CLMGK_REF_ARRAYS 25 /* of the largest set, attention's gradients */
typedef struct clmgk_ref_arrays {
    const char *const *names; /* for messages */
    uint32_t set;
    double *exact[CLMGK_REF_ARRAYS];
    double *floor[CLMGK_REF_ARRAYS]; /* added to an element's bound; NULL: 0 everywhere */
    int64_t count[CLMGK_REF_ARRAYS];
    clmgk_ref_bound bound[CLMGK_REF_ARRAYS];
} clmgk_ref_arrays;

/* Error and bound of the element with the largest error relative to its bound, of those whose bound is within the
 * values (clmgk_ref_bound). */
typedef struct clmgk_ref_error {
    double error;
    double bound;
} clmgk_ref_error;

void clmgk_ref_arrays_free(clmgk_ref_arrays *arrays);

/*
 * Compares given[count] with exact array `which`. `message` (`capacity` > 0) names the array and the first element that
 * is out of bound, or not finite on one side only; empty if there is none. For an exact value beyond 2^120 every value
 * that is not finite is right, because its terms may be infinite, of both signs; likewise where numbers within the
 * element's bound are on both sides of the largest number of the array's storage type. Where terms are beyond
 * double precision, of both signs, or those of a lost row whose prior is 0, every value is right.
 */
clmgk_ref_error clmgk_ref_check_array(const clmgk_ref_arrays *arrays, int which, const double *given, char *message,
                                      size_t capacity);

/* Number of elements of a gradient, which is dense in the shape of its array; 0 if the problem has none. */
int64_t clmgk_ref_gradient_count(const clmgk_attention_desc *desc, clmgk_ref_gradient which);

/*
 * The gradients of sum(O dO) + sum(L dL) in `set`, a set of clmgk_gradient (gradients that the problem lacks are
 * ignored), and their bounds: 5 plain_error + c max_abs. c is twice that of outputs, and at least 1e-5: 1e-5 f32, 1e-3
 * f16, 8e-3 bf16, by the type of the gradient's own array (f32 arrays: by the type of the weights). The plain formula
 * rounds weights and their gradient to the type of the weights (the linear family does not), O and all gradients to
 * their own types. With a new state there are also sum(C dC) + sum(z dz), its m held constant. False: out of memory,
 * nothing to free.
 *
 * floor: 2^-22 sum (1 + |L_i|) |term| over the terms of an element, where P (dP - delta + dL) counts as three terms: in
 * rows that are saturated or see one key, dP - delta is exactly 0 but O was rounded, and P depends on a rounded L.
 * A term whose weight is below 2^-126 counts as a whole: f32 arithmetic may make such a weight 0 (OpenCL requires no
 * subnormal numbers, and kernels do so on all devices). Terms of lost rows: see clmgk_ref_bound.
 */
bool clmgk_ref_solve_gradients(const clmgk_ref_problem *problem, uint32_t set, clmgk_ref_arrays *out);

/* ---- the state of the linear family -------------------------------------------------------------------------- */

/* The state after all keys: C and z stand for e^m C and e^m z; m is 0 for maps without exponents. */
typedef enum clmgk_ref_state {
    CLMGK_REF_STATE_C,
    CLMGK_REF_STATE_Z,
    CLMGK_REF_STATE_M,
    CLMGK_REF_STATES
} clmgk_ref_state;

/* All three arrays, bounds as for f32 outputs. False: out of memory, nothing to free. */
bool clmgk_ref_solve_state(const clmgk_ref_problem *problem, clmgk_ref_arrays *out);

/* Other C or z, in units of their own e^m (m NULL: true values), in those of the exact ones, for clmgk_ref_check_array.
 */
void clmgk_ref_rescale_state(const clmgk_ref_arrays *exact, clmgk_ref_state which, const double *m, double *values);

/* ---- expectation and maximisation ---------------------------------------------------------------------------- */

/* In the order of the bits of clmgk_statistic. */
typedef enum clmgk_ref_statistic {
#define CLMGK_REF_STATISTIC(name, ...) CLMGK_REF_STAT_##name,
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE, CLMGK_REF_STATISTIC)
#undef CLMGK_REF_STATISTIC
        CLMGK_REF_STATISTICS
} clmgk_ref_statistic;

#define CLMGK_REF_IN_ORDER(name, field, bit, ...)                                                                      \
    _Static_assert((int)CLMGK_ARRAY_##name == (int)CLMGK_ARRAY_RESPONSIBILITIES + (int)CLMGK_REF_STAT_##name &&        \
                       (bit) == 1 << (int)CLMGK_REF_STAT_##name,                                                       \
                   "statistics follow one another, with the next bits: " #name);
CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE, CLMGK_REF_IN_ORDER)
#undef CLMGK_REF_IN_ORDER

/* As for gradients; `set` is a set of clmgk_statistic; bounds as for outputs, 3 plain_error + c max_abs. */
int64_t clmgk_ref_statistic_count(const clmgk_attention_desc *desc, clmgk_ref_statistic which);
bool clmgk_ref_solve_statistics(const clmgk_ref_problem *problem, uint32_t set, clmgk_ref_arrays *out);

/* ---- random numbers ------------------------------------------------------------------------------------------ */

/* Philox4x32-10 (Salmon et al. 2011), independent of the library's. */
void clmgk_ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

/* Dropout's factor of the weight of (b,h,i,j): 0, or 1/(1-p); i and j count along the packed axes. */
double clmgk_ref_dropout(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j);

/* eps of (b,h,i,j), by Box and Muller in double precision; with shared noise, eps of head 0; without noise, 0. i and j
 * as above. */
double clmgk_ref_noise(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j);

/* ---- storage types ------------------------------------------------------------------------------------------ */

/* The format of a storage type, as its list describes it: all its numbers are numbers of f32. */
typedef struct clmgk_ref_format {
    int exponent_bits;
    int significand_bits; /* after the point */
    bool has_infinity;
} clmgk_ref_format;

clmgk_ref_format clmgk_ref_format_of(clmgk_dtype dtype);

/*
 * The bit pattern of `value` in the format: rounded to nearest, ties to even, with subnormal numbers. NaN stays NaN. A
 * value that rounds beyond the largest number becomes infinity; in a type without infinity it becomes NaN, as infinity
 * does (it is not clamped to the largest number: an overflow must not look like a result).
 */
uint32_t clmgk_ref_encode(clmgk_ref_format format, float value);
float clmgk_ref_decode(clmgk_ref_format format, uint32_t bits);

/* Numbers of a storage type. */
typedef struct clmgk_ref_limits {
    double unit;         /* largest relative rounding error of a normal number */
    double largest;      /* finite number */
    double least_normal; /* positive number with the full significand */
    double least;        /* positive number */
} clmgk_ref_limits;

clmgk_ref_limits clmgk_ref_limits_of(clmgk_dtype dtype);

/* A value rounded to the storage type. */
float clmgk_ref_rounded(clmgk_dtype dtype, float value);

/* Numbers of a block, 1 where there are none; bytes of an element, or of a block. */
size_t clmgk_ref_block(clmgk_dtype dtype);
size_t clmgk_ref_dtype_size(clmgk_dtype dtype);

/* `count` numbers of `dtype` as doubles, and back: rounded to f32, then to `dtype`; integers are rounded to the nearest
 * one in their range; whole blocks get a scale, as ggml quantises. */
void clmgk_ref_load(clmgk_dtype dtype, const void *elements, size_t count, double *values);
void clmgk_ref_store(clmgk_dtype dtype, const double *values, size_t count, void *elements);

#endif
