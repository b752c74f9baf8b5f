/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the attention matrix itself, of its responsibilities, and the likelihoods of queries. */
#include "reference/families.h"
#include "reference/linear.h"
#include "reference/mixed.h"

/* a_ij: what value v_j is multiplied by. */
static void copy_weights(const exact_row *row, double *weights)
{
    const clmgk_ref_problem *const p = row->problem;
    for (int64_t j = 0; j < p->desc.length_k; j++)
        weights[j] = 0.0;
    for (int64_t j = row->span.first; j < row->span.end && row->lse != -(double)INFINITY; j++)
        if (row->visible[j])
            weights[j] = exact_value_weight(row, j);
}

static void copy_responsibilities(const exact_row *row, double *responsibilities)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    for (int64_t r = 0; r < desc->components; r++)
        for (int64_t j = 0; j < desc->length_k; j++) {
            const bool seen = j >= row->span.first && j < row->span.end;
            responsibilities[r * desc->length_k + j] = seen ? exact_responsibility(row, j, r) : 0.0;
        }
}

static bool mixed_weights(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, double *weights)
{
    ref_mixed mixed;
    if (!ref_mixed_create(problem, &mixed))
        return false;
    for (int64_t n = 0; n < rows; n++)
        ref_mixed_weights(&mixed, ref_row_of(&problem->desc, row[n]), weights + n * problem->desc.length_k);
    ref_mixed_free(&mixed);
    return true;
}

bool clmgk_ref_weights(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row,
                       const clmgk_ref_weight_rows *out)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t keys = desc->length_k;
    exact_row exact;
    if (ref_form_of(desc).linear)
        return ref_linear_weights(problem, rows, row, out->weights);
    if (desc->mix_after_heads > 0)
        return mixed_weights(problem, rows, row, out->weights);
    if (!exact_row_create(problem, ref_family_of(desc->variant)->exact, &exact))
        return false;
    for (int64_t n = 0; n < rows; n++) {
        exact_row_solve(&exact, ref_row_of(desc, row[n]));
        copy_weights(&exact, out->weights + n * keys);
        if (out->responsibilities)
            copy_responsibilities(&exact, out->responsibilities + n * desc->components * keys);
        if (out->log_likelihood && !exact_log_likelihood(&exact, &out->log_likelihood[n]))
            out->log_likelihood[n] = (double)NAN;
    }
    exact_row_free(&exact);
    return true;
}
