/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/sums.h"

#include "reference/reference.h"

#include <stddef.h>
#include <string.h>

/* Partial sums of the blocked order: as many as a wide vector has lanes. */
#define LANES 16

/* Numbers of a term that are summed at a time, so that partial sums stay in the first-level cache. */
#define CHUNK 64

/* x[width] rounded to a precision that is not exact: to nearest even, with f32's exponents and fewer bits. */
static void round_row(clmgk_precision precision, const float *x, int64_t width, float *restrict rounded)
{
    static const unsigned dropped[] = {[CLMGK_PRECISION_TF32] = 13, [CLMGK_PRECISION_BF16] = 16};
    const unsigned shift = dropped[precision];
    for (int64_t w = 0; w < width; w++) {
        uint32_t bits;
        memcpy(&bits, &x[w], sizeof(bits));
        const uint32_t up = bits + (1U << (shift - 1U)) - 1U + (bits >> shift & 1U);
        const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
        bits = is_nan ? bits : up >> shift << shift;
        memcpy(&rounded[w], &bits, sizeof(bits));
    }
}

/* Adds the numbers of a term to `sums`. */
static void add_numbers(ref_term kind, float c, const float *x, const float *minus, int64_t width, float *restrict sums)
{
    for (int64_t w = 0; kind == REF_TERM_PRODUCT && w < width; w++)
        sums[w] += c * x[w];
    for (int64_t w = 0; kind == REF_TERM_DIFFERENCE && w < width; w++)
        sums[w] += c * (x[w] - minus[w]);
    for (int64_t w = 0; kind == REF_TERM_SQUARE && w < width; w++)
        sums[w] += (c - x[w]) * (c - x[w]);
}

/* Adds numbers first .. first + width - 1 of term n to `sums`. */
static void add_term(const ref_terms *t, int64_t n, int64_t first, int64_t width, float *restrict sums)
{
    const ref_term kind = (ref_term)(t->kind % REF_TERMS);
    const clmgk_precision precision = (clmgk_precision)(t->kind / REF_TERMS);
    const float c = t->coef[n * t->coef_step];
    const float *const x = t->rows + n * t->row_step + first;
    const float *const minus = kind == REF_TERM_DIFFERENCE ? t->minus + first : x;
    float rounded_c;
    float rounded_x[CHUNK];
    float rounded_minus[CHUNK];
    if (precision == CLMGK_PRECISION_EXACT) {
        add_numbers(kind, c, x, minus, width, sums);
        return;
    }
    round_row(precision, &c, 1, &rounded_c);
    round_row(precision, x, width, rounded_x);
    if (kind == REF_TERM_DIFFERENCE)
        round_row(precision, minus, width, rounded_minus);
    add_numbers(kind, rounded_c, rounded_x, kind == REF_TERM_DIFFERENCE ? rounded_minus : rounded_x, width, sums);
}

static void sum_blocked(const ref_terms *t, int64_t first, int64_t width, float *out)
{
    float lanes[LANES][CHUNK] = {{0}};
    for (int64_t n = 0; n < t->count; n++)
        add_term(t, n, first, width, lanes[n % LANES]);
    for (int64_t half = LANES / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; lane++)
            for (int64_t w = 0; w < width; w++)
                lanes[lane][w] += lanes[lane + half][w];
    for (int64_t w = 0; w < width; w++)
        out[first + w] = lanes[0][w];
}

static void sum_in_turn(const ref_terms *t, ref_order order, int64_t first, int64_t width, float *out)
{
    float sums[CHUNK] = {0};
    for (int64_t n = 0; n < t->count; n++)
        add_term(t, order == REF_ORDER_FORWARD ? n : t->count - 1 - n, first, width, sums);
    for (int64_t w = 0; w < width; w++)
        out[first + w] = sums[w];
}

void ref_sum(const ref_terms *terms, ref_order order, float *out)
{
    for (int64_t first = 0; first < terms->width; first += CHUNK) {
        const int64_t width = terms->width - first < CHUNK ? terms->width - first : CHUNK;
        if (order == REF_ORDER_BLOCKED)
            sum_blocked(terms, first, width, out);
        else
            sum_in_turn(terms, order, first, width, out);
    }
}

void ref_sum_rows(int64_t count, int64_t width, const float *rows, int64_t row_step, ref_order order, float *out)
{
    static const float one = 1.0F;
    const ref_terms terms = {REF_TERM_PRODUCT, count, width, &one, 0, rows, row_step, NULL};
    ref_sum(&terms, order, out);
}

float ref_sum_of(int64_t count, const float *x, ref_order order)
{
    float sum = 0.0F;
    ref_sum_rows(count, 1, x, 1, order, &sum);
    return sum;
}

float ref_sum_of_products(int64_t count, const float *x, const float *y, ref_order order)
{
    const ref_terms terms = {REF_TERM_PRODUCT, count, 1, x, 1, y, 1, NULL};
    float sum = 0.0F;
    ref_sum(&terms, order, &sum);
    return sum;
}
