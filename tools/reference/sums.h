/* SPDX-License-Identifier: Apache-2.0 */
/* Sums in f32, in one of several orders. */
#ifndef CLMGK_REFERENCE_SUMS_H
#define CLMGK_REFERENCE_SUMS_H

#include "clmgk/variants.h"

#include <stdint.h>

/* The order of every sum of the plain formula. */
typedef enum ref_order { REF_ORDER_FORWARD, REF_ORDER_BACKWARD, REF_ORDER_BLOCKED, REF_ORDERS } ref_order;

/* The order of dO . O, which is subtracted from dO . V: with one order for both, rows that see one key would be free of
 * errors, and no other formula is. */
static inline ref_order ref_other(ref_order order)
{
    return (ref_order)((order + 1) % REF_ORDERS);
}

typedef enum ref_term {
    REF_TERM_PRODUCT,    /* c x */
    REF_TERM_DIFFERENCE, /* c (x - minus) */
    REF_TERM_SQUARE,     /* (c - x)^2 */
    REF_TERMS
} ref_term;

/* The same of c, x and minus that are rounded to a precision first: kind + REF_TERMS * precision. */
static inline int ref_term_of(ref_term kind, clmgk_precision precision)
{
    return (int)kind + (int)REF_TERMS * (int)precision;
}

/* `count` terms, each of `width` numbers: number w of term n depends on c = coef[n*coef_step], x = rows[n*row_step + w]
 * and minus[w]. */
typedef struct ref_terms {
    int kind; /* a ref_term, or ref_term_of one */
    int64_t count, width;
    const float *coef;
    int64_t coef_step;
    const float *rows;
    int64_t row_step;
    const float *minus; /* REF_TERM_DIFFERENCE */
} ref_terms;

/* out[w] = sum of number w over all terms */
void ref_sum(const ref_terms *terms, ref_order order, float *out);

/* sum_n rows[n*row_step + w] */
void ref_sum_rows(int64_t count, int64_t width, const float *rows, int64_t row_step, ref_order order, float *out);

/* sum_n x[n], and sum_n x[n] y[n] */
float ref_sum_of(int64_t count, const float *x, ref_order order);
float ref_sum_of_products(int64_t count, const float *x, const float *y, ref_order order);

#endif
