/* SPDX-License-Identifier: Apache-2.0 */
/* The linear family in double precision, row by row over pairs of queries and keys (formulas: linear.h). */
#include "reference/linear.h"

#include "reference/arrays.h"
#include "reference/families.h"
#include "reference/linear_head.h"
#include "reference/linear_plain.h"

#include <stdlib.h>

/* ---- rows ------------------------------------------------------------------------------------------------------ */

bool ref_linear_weights(const clmgk_ref_problem *problem, int64_t rows, const int64_t *row, double *weights)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    ref_linear_head head;
    if (!ref_linear_open_head(problem, false, &head))
        return false;
    for (int64_t n = 0; n < rows; n++) {
        double *const a = weights + n * desc->length_k;
        ref_linear_weigh_row(&head, ref_row_of(desc, row[n]));
        for (int64_t j = 0; j < desc->length_k; j++) {
            const bool seen = !head.span.absent && j >= head.span.first && j < head.span.end;
            a[j] = seen && head.den != 0.0 ? head.weight[j] / head.den : 0.0;
        }
    }
    ref_linear_close_head(&head);
    return true;
}

bool ref_linear_row(const clmgk_ref_problem *problem, int64_t row, double *o)
{
    ref_linear_head head;
    if (!ref_linear_open_head(problem, false, &head))
        return false;
    ref_linear_solve_row(&head, ref_row_of(&problem->desc, row));
    for (int64_t e = 0; e < problem->desc.value_size; e++)
        o[e] = head.o[e];
    ref_linear_close_head(&head);
    return true;
}

/* What kernels leave out of the exponents of a row: favor's |y|^2 / 2, the same for all features of one query, which
 * cancels in a quotient. */
static double left_out(const ref_linear_head *head)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    const double *const q = ref_linear_query(head, 0);
    double sum = 0.0;
    if (head->map.kind != CLMGK_FEATURE_FAVOR || ref_form_of(desc).mixed || desc->unnormalised || head->span.absent)
        return 0.0;
    for (int64_t d = 0; d < head->map.size; d++)
        sum += q[d] * q[d];
    return sum / (2.0 * sqrt((double)head->map.size));
}

static bool exact_rows(const clmgk_ref_problem *problem, const clmgk_ref_answer *answer)
{
    ref_linear_head head;
    if (!ref_linear_open_head(problem, false, &head))
        return false;
    for (int64_t n = 0; n < answer->rows; n++) {
        ref_linear_solve_row(&head, ref_row_of(&problem->desc, answer->row[n]));
        for (int64_t e = 0; e < answer->value_size; e++)
            answer->o[n * answer->value_size + e] = head.o[e];
        answer->lse[n] = 0.0;
        answer->den[n] = head.den;
        answer->scale[n] = head.scale;
        answer->left_out[n] = left_out(&head);
    }
    ref_linear_close_head(&head);
    return true;
}

bool ref_linear_rows(const clmgk_ref_problem *problem, clmgk_ref_answer *answer)
{
    const int64_t count = answer->rows * answer->value_size;
    float *const plain = calloc((size_t)(count + answer->rows) + 1, sizeof(float)); /* + 1: NULL means failure only */
    bool ok = plain && exact_rows(problem, answer);
    for (int order = 0; ok && order < REF_ORDERS; order++) {
        ok = ref_plain_linear_rows(problem, (ref_order)order, answer, plain, plain + count);
        ref_observe(&answer->bound_o, count, answer->o, plain);
        ref_observe(&answer->bound_den, answer->rows, answer->den, plain + count);
    }
    answer->bound_o.scale = answer->bound_o.max_abs;
    free(plain);
    return ok;
}

/* ---- the new state --------------------------------------------------------------------------------------------- */

static void add_to_state(const ref_linear_head *head, const ref_state_term *x, void *to)
{
    const clmgk_attention_desc *const desc = ref_linear_desc(head);
    double *const *const values = to;
    const int64_t q = ref_part_of(desc, x->r);
    if (x->prior == 0.0 || !values[CLMGK_REF_STATE_C])
        return;
    ref_linear_add_values(head, x->prior * x->unit, ref_linear_value(head, x->j),
                          values[CLMGK_REF_STATE_C] + ref_state_c_index(desc, head->b, head->h, q, x->f));
    if (ref_has_z(desc, head->h))
        values[CLMGK_REF_STATE_Z][ref_state_z_index(desc, head->b, head->h, q, x->f)] += x->prior * x->unit;
}

bool ref_linear_state(const clmgk_ref_problem *problem, double *const values[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    ref_linear_head head;
    if (!ref_linear_open_head(problem, false, &head))
        return false;
    for (int64_t bh = 0; bh < desc->batch * desc->heads; bh++) {
        ref_linear_load_head(&head, bh / desc->heads, bh % desc->heads);
        const double scale = ref_linear_new_scale(&head);
        const double carried =
            ref_state_has_keys(problem, head.b, head.h) ? exp(ref_state_scale(problem, head.b, head.h) - scale) : 0.0;
        values[CLMGK_REF_STATE_M][ref_state_m_index(desc, head.b, head.h)] = scale;
        for (int64_t n = 0; values[CLMGK_REF_STATE_C] && desc->use_state && n < head.queries * desc->features; n++) {
            const int64_t q = n / desc->features, f = n % desc->features;
            ref_linear_add_values(&head, carried, ref_linear_state_c(&head, n),
                                  values[CLMGK_REF_STATE_C] + ref_state_c_index(desc, head.b, head.h, q, f));
            if (ref_has_z(desc, head.h))
                values[CLMGK_REF_STATE_Z][ref_state_z_index(desc, head.b, head.h, q, f)] +=
                    carried * ref_linear_state_z(&head, n);
        }
        ref_linear_for_state_terms(&head, scale, (void *)values, add_to_state);
    }
    ref_linear_close_head(&head);
    return true;
}

/* ---- the family ------------------------------------------------------------------------------------------------ */

static int64_t count(const clmgk_attention_desc *d, clmgk_ref_gradient which)
{
    const ref_form form = ref_form_of(d);
    switch (which) {
    case CLMGK_REF_GRAD_STATE_C:
        return d->use_state ? d->batch * d->heads * ref_queries(d) * d->features * d->value_size : 0;
    case CLMGK_REF_GRAD_STATE_Z:
        return d->use_state ? ref_state_z_count(d) : 0;
    case CLMGK_REF_GRAD_VARIANCE:
    case CLMGK_REF_GRAD_MIX_OFFSET:
        return 0;
    default:
        return (form.mixed ? &ref_admixture : &ref_mixture)->count(d, which);
    }
}

const ref_family ref_linear = {NULL, NULL, count};
