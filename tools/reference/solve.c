/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of arrays, exact, with their bounds from the plain formula. */
#include "reference/arrays.h"
#include "reference/families.h"

#include <stdlib.h>

/* Arrays that only the solution needs, by number. */
typedef struct scratch {
    float *plain[CLMGK_REF_ARRAYS];
    double *kept[CLMGK_REF_ARRAYS]; /* exact values without what f32 loses */
    double *size[CLMGK_REF_ARRAYS];
    bool *lost;
} scratch;

static void scratch_free(scratch *room)
{
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++) {
        free(room->plain[which]);
        free(room->kept[which]);
        free(room->size[which]);
    }
    free(room->lost);
}

/* Zeroed room for the arrays of the set. */
static bool make_arrays(const clmgk_ref_problem *problem, uint32_t set, const ref_solver *solver, clmgk_ref_arrays *out,
                        scratch *room)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t rows = (size_t)(desc->batch * ref_softmax_heads(desc) * desc->length);
    *out = (clmgk_ref_arrays){.set = set, .names = solver->names};
    room->lost = calloc(rows * (solver->lost_keys ? (size_t)desc->length_k : 1) + 1, sizeof(bool));
    bool ok = room->lost != NULL;
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++) {
        if ((set >> (unsigned)which & 1U) == 0)
            continue;
        out->count[which] = solver->count(desc, which);
        const size_t count = (size_t)out->count[which] + 1; /* + 1: NULL means failure only */
        out->exact[which] = calloc(count, sizeof(double));
        out->floor[which] = calloc(count, sizeof(double));
        room->plain[which] = calloc(count, sizeof(float));
        room->kept[which] = calloc(count, sizeof(double));
        room->size[which] = calloc(count, sizeof(double));
        ok = ok && out->exact[which] && out->floor[which] && room->plain[which] && room->kept[which] &&
             room->size[which];
    }
    return ok;
}

static bool any_lost(const clmgk_attention_desc *desc, const ref_solver *solver, const bool *lost)
{
    const int64_t rows = desc->batch * ref_softmax_heads(desc) * desc->length;
    bool any = false;
    for (int64_t n = 0; n < rows * (solver->lost_keys ? desc->length_k : 1); n++)
        any = any || lost[n];
    return any;
}

/*
 * Exact values without what f32 loses, which the plain formula is compared with; then, if anything is lost, with it.
 * Only the second pass adds what is lost to the floors.
 */
static bool solve_exact(const clmgk_ref_problem *problem, const ref_solver *solver, clmgk_ref_arrays *out,
                        scratch *room)
{
    const exact_scores *const scores = ref_family_of(problem->desc.variant)->exact;
    exact_sums sums = {.values = out->exact, .floor = out->floor, .size = room->size, .lost = room->lost};
    if (!solver->exact(problem, scores, &sums))
        return false;
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++)
        for (int64_t n = 0; n < out->count[which]; n++) {
            room->kept[which][n] = out->exact[which][n];
            out->bound[which].scale = fmax(out->bound[which].scale, room->size[which][n]);
        }
    if (!any_lost(&problem->desc, solver, room->lost))
        return true;
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++)
        for (int64_t n = 0; n < out->count[which]; n++)
            out->exact[which][n] = out->floor[which][n] = 0.0;
    sums.with_lost = true;
    return solver->exact(problem, scores, &sums);
}

/* Computes the plain formula in a given way and adds its errors to the bounds. */
static bool solve_plain(const clmgk_ref_problem *problem, const ref_solver *solver, ref_way way, clmgk_ref_arrays *out,
                        const scratch *room)
{
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++)
        for (int64_t n = 0; n < out->count[which]; n++)
            room->plain[which][n] = 0.0F;
    if (!solver->plain(problem, ref_family_of(problem->desc.variant)->plain, way, room->lost, room->plain))
        return false;
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++)
        ref_observe(&out->bound[which], out->count[which], room->kept[which], room->plain[which]);
    return true;
}

bool ref_solve_arrays(const clmgk_ref_problem *problem, uint32_t set, const ref_solver *solver, clmgk_ref_arrays *out)
{
    scratch room = {.lost = NULL};
    bool ok = make_arrays(problem, set, solver, out, &room) && solve_exact(problem, solver, out, &room);
    ref_way way;
    for (int number = 0; ok && ref_way_of(&problem->desc, number, &way); number++)
        ok = solve_plain(problem, solver, way, out, &room);
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++) {
        if (!solver->has_sizes)
            out->bound[which].scale = out->bound[which].max_abs;
        ref_finish_bound(&out->bound[which], solver->tolerance(&problem->desc, which));
        for (int64_t n = 0; n < out->count[which] && ok; n++)
            out->floor[which][n] = ldexp(out->floor[which][n], -22);
    }
    scratch_free(&room);
    if (!ok)
        clmgk_ref_arrays_free(out);
    return ok;
}
