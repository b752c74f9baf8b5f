/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and the new state by the linear family's plain formula (linear_plain_head.h). */
#include "reference/linear_plain.h"

#include "reference/linear_plain_head.h"

#include <stdlib.h>

bool ref_plain_linear_rows(const clmgk_ref_problem *problem, ref_order order, const clmgk_ref_answer *answer, float *o,
                           float *den)
{
    const int64_t size = problem->desc.value_size;
    ref_plain_head head;
    if (!ref_plain_linear_open_head(problem, order, NULL, &head))
        return false;
    for (int64_t n = 0; n < answer->rows; n++) {
        ref_plain_linear_solve_row(&head, ref_row_of(&problem->desc, answer->row[n]));
        den[n] = (float)((double)head.den * exp((double)head.scale - answer->scale[n]));
        for (int64_t e = 0; e < size; e++)
            o[n * size + e] = head.o[e];
    }
    ref_plain_linear_close_head(&head);
    return true;
}

/* Sums over keys of pi phi(k) and v, and the incoming state, in units of e^scale. */
static void add_state(ref_plain_head *head, double scale, float *const values[])
{
    const clmgk_attention_desc *const desc = ref_plain_linear_desc(head);
    const int64_t keys = ref_key_limit(head->problem, head->b), size = desc->value_size;
    const bool any = ref_state_has_keys(head->problem, head->b, head->h);
    const float carried = any ? expf(head->state_m - head->new_m) : 0.0F;
    const float of_scale = (float)exp((double)head->new_m - scale);
    float *const c = values[CLMGK_REF_STATE_C] + ref_state_c_index(desc, head->b, head->h, 0, 0);
    for (int64_t n = 0; n < head->count; n++) {
        const int64_t q = n / head->map.features, f = n % head->map.features;
        for (int64_t j = 0; j < keys; j++)
            head->terms[j] = ref_plain_linear_psi(head, j, n, head->new_m);
        ref_plain_linear_sum(head, keys, head->terms, 1, size, head->values, head->out);
        for (int64_t e = 0; e < size; e++)
            c[n * size + e] = (head->out[e] + carried * head->state_c[n * size + e]) * of_scale;
        const float z = ref_sum_of(keys, head->terms, head->order) + carried * head->state_z[n];
        if (ref_has_z(desc, head->h))
            values[CLMGK_REF_STATE_Z][ref_state_z_index(desc, head->b, head->h, q, f)] = z * of_scale;
    }
}

bool ref_plain_linear_state(const clmgk_ref_problem *problem, ref_order order, const double *scale,
                            float *const values[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    ref_plain_head head;
    if (!ref_plain_linear_open_head(problem, order, NULL, &head))
        return false;
    for (int64_t bh = 0; bh < desc->batch * desc->heads; bh++) {
        ref_plain_linear_load_head(&head, bh / desc->heads, bh % desc->heads);
        add_state(&head, scale[ref_state_m_index(desc, head.b, head.h)], values);
    }
    ref_plain_linear_close_head(&head);
    return true;
}
