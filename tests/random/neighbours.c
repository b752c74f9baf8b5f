/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound is a multiple of the plain formula's error. In a problem of a few numbers that error may be 0 by luck: then
 * it is also taken from problems whose inputs differ in their last places, or in the last places that factors of
 * products keep.
 */
#include "random/random.h"

#include <math.h>
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

static rd_case neighbour_of(const rd_case *c, uint64_t *state)
{
    rd_case out = *c;
    assert_true(rd_make_problem(&out, 1));
    out.problem.seed = c->problem.seed;
    for (th_name name = 0; name < TH_ARRAYS; name++) {
        const th_array *const from = &c->problem.array[name];
        th_array *const to = &out.problem.array[name];
        if (!from->used || th_is_output(name))
            continue;
        memcpy(to->values, from->values, from->count * sizeof(double));
        if (!from->integer)
            jitter(c->problem.desc.precision, to, state);
    }
    return out;
}

static void widen(clmgk_ref_bound *bound, const clmgk_ref_bound *other)
{
    bound->plain_error = fmax(bound->plain_error, other->plain_error);
    bound->bound = fmax(bound->bound, other->bound);
}

void rd_widen_outputs(const rd_case *c, clmgk_ref_answer *answer)
{
    uint64_t state = 1;
    for (int n = 0; n < NEIGHBOURS; n++) {
        rd_case other = neighbour_of(c, &state);
        TH_REF_ANSWER near = th_solve(&other.problem);
        widen(&answer->bound_o, &near.bound_o);
        widen(&answer->bound_lse, &near.bound_lse);
        rd_case_free(&other);
    }
}

void rd_widen_arrays(const rd_case *c, bool gradients, clmgk_ref_arrays *arrays)
{
    uint64_t state = 1;
    for (int n = 0; n < NEIGHBOURS; n++) {
        rd_case other = neighbour_of(c, &state);
        clmgk_ref_arrays near = gradients ? th_solve_gradients(&other.problem) : th_solve_statistics(&other.problem);
        for (unsigned which = 0; which < CLMGK_REF_ARRAYS; which++)
            if ((arrays->set >> which & 1U) != 0)
                widen(&arrays->bound[which], &near.bound[which]);
        clmgk_ref_arrays_free(&near);
        rd_case_free(&other);
    }
}
