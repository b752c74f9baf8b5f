/* SPDX-License-Identifier: Apache-2.0 */
/* Scores and masks of a user's own: the values of the parsed texts, in double precision or rounded to f32 at each
 * operation, as the plain formula is. */
#ifndef CLMGK_REFERENCE_TEXTS_H
#define CLMGK_REFERENCE_TEXTS_H

#include "reference/problem.h"

#include "expression/expression.h"

typedef struct ref_texts {
    const clmgk_ref_problem *problem;
    mgk_formulas formulas; /* of a problem without texts: none */
    mgk_inputs inputs;
    mgk_values captures[CLMGK_MAX_CAPTURES];
    double *values; /* room for a value of each operation */
    bool *needed;   /* likewise */
    bool single;    /* rounds to f32 */
} ref_texts;

/* A pair of a row, with a component and its score. */
typedef struct ref_pair {
    ref_row at;
    const ref_span *span;
    int64_t j, r;
    double s;
} ref_pair;

/* False: out of memory, nothing to free. */
bool ref_texts_create(const clmgk_ref_problem *problem, bool single, ref_texts *texts);
void ref_texts_free(ref_texts *texts);

/* Whether the mask, or without one the pair's block, hides the pair; the score that replaces s, and its derivative by
 * s. */
bool ref_text_hides(ref_texts *texts, const ref_pair *pair);
double ref_text_score(ref_texts *texts, const ref_pair *pair);
double ref_text_slope(ref_texts *texts, const ref_pair *pair);

/* Calls add(to, which, element, derivative) for every derivative of the score by a number, or by an element of a
 * captured array, that the descriptor's gradients ask for. */
typedef void ref_text_add(const void *to, clmgk_ref_gradient which, int64_t element, double derivative);
void ref_text_gradients(ref_texts *texts, const ref_pair *pair, ref_text_add *add, const void *to);

/* Reads outside of their arrays, of the mask or of the score. */
int64_t ref_text_reads_outside(ref_texts *texts, const ref_pair *pair, bool mask);

/* Elements of such a gradient; 0: the descriptor has none. */
int64_t ref_text_gradient_count(const clmgk_attention_desc *desc, clmgk_ref_gradient which);

#endif
