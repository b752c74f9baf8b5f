/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the linear family after all keys, with its bounds. */
#include "reference/arrays.h"
#include "reference/linear.h"
#include "reference/linear_plain.h"

#include <stdlib.h>

int64_t ref_state_count(const clmgk_attention_desc *desc, clmgk_ref_state which)
{
    if (which == CLMGK_REF_STATE_C)
        return desc->batch * desc->heads * ref_queries(desc) * desc->features * desc->value_size;
    if (which == CLMGK_REF_STATE_Z)
        return ref_state_z_count(desc);
    return desc->batch * (ref_form_of(desc).mixed ? 1 : desc->heads);
}

static int64_t count(const clmgk_attention_desc *desc, int which)
{
    return ref_state_count(desc, (clmgk_ref_state)which);
}

static bool exact(const clmgk_ref_problem *problem, const exact_scores *scores, const exact_sums *sums)
{
    (void)scores;
    return ref_linear_state(problem, sums->values);
}

/* In the exact one's units. */
static bool plain(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way, const bool *lost,
                  float *const values[])
{
    const int64_t scales = count(&problem->desc, CLMGK_REF_STATE_M);
    double *const scale = calloc((size_t)scales + 1, sizeof(double)); /* + 1: NULL means failure only */
    double *const only[] = {[CLMGK_REF_STATE_M] = scale};
    const bool ok =
        scale && ref_linear_state(problem, only) && ref_plain_linear_state(problem, way.order, scale, values);
    (void)scores, (void)lost;
    for (int64_t n = 0; ok && n < scales; n++)
        values[CLMGK_REF_STATE_M][n] = (float)scale[n];
    free(scale);
    return ok;
}

static ref_tolerance tolerance_of(const clmgk_attention_desc *desc, int which)
{
    const ref_tolerance own = ref_tolerance_of_outputs(CLMGK_DTYPE_F32);
    return which == CLMGK_REF_STATE_M ? own : ref_tolerance_of_products(own, desc->precision, 1.0);
}

bool clmgk_ref_solve_state(const clmgk_ref_problem *problem, clmgk_ref_arrays *out)
{
    static const char *const names[] = {"new_state_c", "new_state_z", "new_state_m"};
    static const ref_solver solver = {names, false, false, count, tolerance_of, exact, plain};
    return ref_solve_arrays(problem, (1U << (unsigned)CLMGK_REF_STATES) - 1, &solver, out);
}

void clmgk_ref_rescale_state(const clmgk_ref_arrays *exact_state, clmgk_ref_state which, const double *m,
                             double *values)
{
    const double *const scale = exact_state->exact[CLMGK_REF_STATE_M];
    const int64_t scales = exact_state->count[CLMGK_REF_STATE_M], numbers = exact_state->count[which];
    for (int64_t n = 0; n < numbers; n++) {
        const int64_t at = n * scales / numbers;
        values[n] *= exp((m ? m[at] : 0.0) - scale[at]);
    }
}
