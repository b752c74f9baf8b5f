/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference: every variant in double precision, in plain loops that read like the formulas of
 * clmgk/variants.h, and the bound within which outputs of the kernels must lie. For tests and for checking
 * (clmgk-run --check, clmgk-bench); no part of the library, and independent of its algebra.
 *
 * It works row by row, so that callers may sample. Row (b,h,i) has the number (b*H + h)*N + i.
 */
#ifndef CLMGK_REFERENCE_H
#define CLMGK_REFERENCE_H

#include "clmgk/attention.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * One problem. `desc` is resolved by clmgk_attention_validate; its strides are ignored: the arrays here are dense, in
 * axis order, and hold the values that the stored elements have (clmgk_ref_load). NULL: not given.
 * Only Q, K, V and the arrays that the descriptor asks for are read.
 */
typedef struct clmgk_ref_problem {
    clmgk_attention_desc desc;
    const double *q;          /* [B,H,N,D] */
    const double *k;          /* [B,G,S,D], MGK: [B,G,M,S,D] */
    const double *v;          /* [B,G,S,E] */
    const double *prior;      /* [M], [H,M] or [H,M,S] by prior_shape */
    const double *variance;   /* [M] or [H,M] by variance_shape */
    const double *shift;      /* [H,M,D]: SMGK */
    const int32_t *lengths;   /* [B]; values outside the axis are clamped */
    const int32_t *lengths_q; /* [B] */
} clmgk_ref_problem;

/* ---- the formulas, in double precision --------------------------------------------------------------------- */

/* Whether query i of batch b sees key j (lengths, causality). Rows beyond lengths_q see nothing. */
bool clmgk_ref_visible(const clmgk_ref_problem *problem, int64_t b, int64_t i, int64_t j);

/* How many keys query i of batch b sees. */
int64_t clmgk_ref_visible_keys(const clmgk_ref_problem *problem, int64_t b, int64_t i);

/* s_ijr, and s_ijr - log pi_r(j) with the hard E-step, for query head h, whether the key is visible or not. */
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
