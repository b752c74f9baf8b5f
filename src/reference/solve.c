/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of arrays, exact, with their bounds from the plain formula. */
#include "reference/arrays.h"
#include "reference/families.h"

#include <stdlib.h>

/* Zeroed room for the arrays of the set, exact and plain. */
static bool make_arrays(const clmgk_ref_problem *problem, uint32_t set, const ref_solver *solver, clmgk_ref_arrays *out,
                        float *plain[CLMGK_REF_ARRAYS])
{
    bool ok = true;
    *out = (clmgk_ref_arrays){.set = set, .names = solver->names};
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++) {
        plain[which] = NULL;
        if ((set >> (unsigned)which & 1U) == 0)
            continue;
        out->count[which] = solver->count(&problem->desc, which);
        const size_t count = (size_t)out->count[which] + 1; /* + 1: NULL means failure only */
        out->exact[which] = calloc(count, sizeof(double));
        plain[which] = calloc(count, sizeof(float));
        out->floor[which] = solver->has_floor ? calloc(count, sizeof(double)) : NULL;
        ok = ok && out->exact[which] && plain[which] && (out->floor[which] || !solver->has_floor);
    }
    return ok;
}

/* Computes the plain formula in a given way and adds its errors to the bounds. */
static bool solve_plain(const clmgk_ref_problem *problem, const ref_solver *solver, ref_way way, clmgk_ref_arrays *out,
                        float *const plain[CLMGK_REF_ARRAYS])
{
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++)
        for (int64_t n = 0; n < out->count[which]; n++)
            plain[which][n] = 0.0F;
    if (!solver->plain(problem, ref_family_of(problem->desc.variant)->plain, way, plain))
        return false;
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++)
        ref_observe(&out->bound[which], out->count[which], out->exact[which], plain[which]);
    return true;
}

bool ref_solve_arrays(const clmgk_ref_problem *problem, uint32_t set, const ref_solver *solver, ref_tolerance tolerance,
                      clmgk_ref_arrays *out)
{
    float *plain[CLMGK_REF_ARRAYS];
    bool ok = make_arrays(problem, set, solver, out, plain) &&
              solver->exact(problem, ref_family_of(problem->desc.variant)->exact, out->exact, out->floor);
    ref_way way;
    for (int number = 0; ok && ref_way_of(&problem->desc, number, &way); number++)
        ok = solve_plain(problem, solver, way, out, plain);
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++) {
        ref_finish_bound(&out->bound[which], tolerance);
        for (int64_t n = 0; out->floor[which] && n < out->count[which]; n++)
            out->floor[which][n] = ldexp(out->floor[which][n], -22);
        free(plain[which]);
    }
    if (!ok)
        clmgk_ref_arrays_free(out);
    return ok;
}
