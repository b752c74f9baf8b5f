/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound is a multiple of the plain formula's error. In a problem of a few numbers that error may be 0 by luck: then
 * it is also taken from problems whose inputs differ in their last places, or in the last places that factors of
 * products keep.
 */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEIGHBOURS = 24 };

static void jitter(clmgk_precision precision, th_array *array, uint64_t *state)
{
    static const double factors[] = {[CLMGK_PRECISION_TF32] = 0x1p-11, [CLMGK_PRECISION_BF16] = 0x1p-8};
    /* in the last place, relative */
    const double unit = 2.0 * fmax(clmgk_ref_limits_of(array->dtype).unit, factors[precision]);
    unsigned char element[sizeof(float)];
    for (size_t n = 0; n < array->count; n++) {
        array->values[n] *= 1.0 + unit * (double)th_pick(state, -2, 2);
        clmgk_ref_store(array->dtype, &array->values[n], 1, element);
        clmgk_ref_load(array->dtype, element, 1, &array->values[n]);
    }
}

static th_problem neighbour_of(const th_problem *problem, uint64_t *state)
{
    th_problem out = *problem;
    for (th_name name = 0; name < TH_ARRAYS; name++) {
        th_array *const array = &out.array[name];
        array->values = NULL;
        if (!array->used)
            continue;
        array->values = malloc(array->count * sizeof(double) + 1);
        assert_non_null(array->values);
        memcpy(array->values, problem->array[name].values, array->count * sizeof(double));
        if (!array->integer && !th_is_output(name))
            jitter(problem->desc.precision, array, state);
    }
    return out;
}

static void widen(clmgk_ref_bound *bound, const clmgk_ref_bound *other)
{
    bound->plain_error = fmax(bound->plain_error, other->plain_error);
    bound->bound = fmax(bound->bound, other->bound);
}

void th_widen_outputs(const th_problem *problem, clmgk_ref_answer *answer)
{
    uint64_t state = 1;
    for (int n = 0; n < NEIGHBOURS; n++) {
        TH_PROBLEM other = neighbour_of(problem, &state);
        TH_REF_ANSWER near = th_solve(&other);
        widen(&answer->bound_o, &near.bound_o);
        widen(&answer->bound_lse, &near.bound_lse);
    }
}

void th_widen_arrays(const th_problem *problem, bool gradients, clmgk_ref_arrays *arrays)
{
    uint64_t state = 1;
    for (int n = 0; n < NEIGHBOURS; n++) {
        TH_PROBLEM other = neighbour_of(problem, &state);
        TH_REF_ARRAYS near = gradients ? th_solve_gradients(&other) : th_solve_statistics(&other);
        for (unsigned which = 0; which < CLMGK_REF_ARRAYS; which++)
            if ((arrays->set >> which & 1U) != 0)
                widen(&arrays->bound[which], &near.bound[which]);
    }
}
