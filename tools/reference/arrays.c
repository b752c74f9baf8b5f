/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/arrays.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

void clmgk_ref_set_arrays(clmgk_ref_problem *problem, void *const arrays[CLMGK_ARRAYS])
{
#define SET(name, field, ...) problem->field = arrays[CLMGK_ARRAY_##name];
    CLMGK_ARRAY_LIST(SET, CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE)
#undef SET
}

/* ---- types --------------------------------------------------------------------------------------------------- */

static clmgk_dtype dtype_of(const clmgk_attention_desc *desc, clmgk_storage storage)
{
    return storage == CLMGK_STORAGE_AS_Q ? desc->dtype : (clmgk_dtype)(storage - 1);
}

clmgk_dtype ref_weight_type(const clmgk_attention_desc *desc)
{
    const clmgk_storage others[] = {desc->dtype_k, desc->dtype_v, desc->dtype_o};
    for (size_t n = 0; n < sizeof(others) / sizeof(others[0]); n++)
        if (dtype_of(desc, others[n]) != desc->dtype)
            return CLMGK_DTYPE_F32;
    return desc->dtype;
}

clmgk_dtype clmgk_ref_type_of(const clmgk_attention_desc *desc, clmgk_array array)
{
    switch (array) {
    case CLMGK_ARRAY_Q:
        return desc->dtype;
    case CLMGK_ARRAY_GRAD_Q:
        return dtype_of(desc, desc->dtype_grad_q);
    case CLMGK_ARRAY_K:
        return dtype_of(desc, desc->dtype_k);
    case CLMGK_ARRAY_GRAD_K:
        return dtype_of(desc, desc->dtype_grad_k != CLMGK_STORAGE_AS_Q ? desc->dtype_grad_k : desc->dtype_k);
    case CLMGK_ARRAY_V:
        return dtype_of(desc, desc->dtype_v);
    case CLMGK_ARRAY_GRAD_V:
        return dtype_of(desc, desc->dtype_grad_v != CLMGK_STORAGE_AS_Q ? desc->dtype_grad_v : desc->dtype_v);
    case CLMGK_ARRAY_O:
    case CLMGK_ARRAY_GRAD_O:
        return dtype_of(desc, desc->dtype_o);
    default:
        return ref_weight_type(desc);
    }
}

/* ---- bounds -------------------------------------------------------------------------------------------------- */

ref_tolerance ref_tolerance_of_outputs(clmgk_dtype dtype)
{
    const clmgk_ref_limits limits = clmgk_ref_limits_of(dtype);
    return (ref_tolerance){3.0, fmax(3e-6, 1.024 * limits.unit), limits.least_normal, 0.0};
}

ref_tolerance ref_tolerance_of_gradients(clmgk_dtype dtype)
{
    const ref_tolerance outputs = ref_tolerance_of_outputs(dtype);
    return (ref_tolerance){5.0, fmax(1e-5, 2.0 * outputs.part), outputs.least, 0.0};
}

ref_tolerance ref_tolerance_of_products(ref_tolerance own, clmgk_precision precision, double times)
{
    static const double parts[] = {[CLMGK_PRECISION_TF32] = 1e-3, [CLMGK_PRECISION_BF16] = 4e-3};
    own.part = fmax(own.part, times * parts[precision]);
    return own;
}

double ref_most(clmgk_dtype dtype)
{
    const double largest = clmgk_ref_limits_of(dtype).largest;
    return largest < 0x1p127 ? largest : 0.0;
}

/* Whether f32 can hold x and the partial sums that lead to it. */
static bool fits(double x)
{
    return fabs(x) <= ldexp(1.0, 120);
}

void ref_observe(clmgk_ref_bound *bound, int64_t count, const double *exact, const float *plain)
{
    for (int64_t n = 0; n < count; n++) {
        if (!fits(exact[n]))
            continue;
        bound->max_abs = fmax(bound->max_abs, fabs(exact[n]));
        if (isfinite(plain[n]))
            bound->plain_error = fmax(bound->plain_error, fabs((double)plain[n] - exact[n]));
    }
}

void ref_finish_bound(clmgk_ref_bound *bound, ref_tolerance tolerance)
{
    bound->bound = tolerance.factor * bound->plain_error + tolerance.part * bound->max_abs;
    bound->most = tolerance.most;
    if (bound->scale < tolerance.least)
        bound->scale = 0.0;
}

void ref_expect_proof(const char *name, const clmgk_ref_bound *bound, char *message, size_t capacity)
{
    if (bound->scale > 0.0 && bound->bound > bound->scale)
        snprintf(message, capacity,
                 "%s: the bound, %.3g, is larger than the values, whose terms add up to %.3g: the check proves nothing",
                 name, bound->bound, bound->scale);
}

static bool same_place(double exact, double given)
{
    if (isfinite(exact) && !fits(exact))
        return !isfinite(given);
    if (isnan(exact) || isnan(given))
        return isnan(exact) && isnan(given);
    return exact == given; /* infinities with their signs */
}

/* Whether numbers within `allowed` of the exact one are on both sides of the storage type's largest number. Where all
 * are beyond it, the array overflows, which the comparison tells. */
static bool may_leave(const clmgk_ref_bound *bound, double exact, double allowed)
{
    return bound->most > 0.0 && fabs(exact) - allowed <= bound->most && fabs(exact) + allowed > bound->most;
}

/* Whether terms are so large that `given` may be right though it is not near: they are beyond double precision, or are
 * those of a lost row whose prior is 0. */
static bool overflows(double exact, double floor, double given)
{
    static const double of_lost_row = 1e240;
    if (isinf(floor))
        return isnan(exact) || (isinf(exact) && !isfinite(given));
    return floor > of_lost_row;
}

clmgk_ref_error ref_compare(int64_t count, const double *exact, const double *given, const clmgk_ref_bound *bound,
                            const double *floor, int64_t *wrong)
{
    clmgk_ref_error worst = {0.0, bound->bound};
    *wrong = -1;
    for (int64_t n = 0; n < count; n++) {
        const bool finite = isfinite(exact[n]) && isfinite(given[n]);
        const double allowed = bound->bound + (floor && isfinite(floor[n]) ? floor[n] : 0.0);
        const double error = finite ? fabs(given[n] - exact[n]) : 0.0;
        const bool right = finite ? error <= allowed : same_place(exact[n], given[n]);
        const bool any = (floor && overflows(exact[n], floor[n], given[n])) ||
                         (!isfinite(given[n]) && (bound->may_leave || may_leave(bound, exact[n], allowed)));
        const bool proves = bound->scale == 0.0 || allowed <= bound->scale;
        if (proves && error * worst.bound > worst.error * allowed)
            worst = (clmgk_ref_error){error, allowed};
        if (!right && !any && *wrong < 0)
            *wrong = n;
    }
    return worst;
}

/* ---- sets of arrays ------------------------------------------------------------------------------------------ */

void clmgk_ref_arrays_free(clmgk_ref_arrays *arrays)
{
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++) {
        free(arrays->exact[which]);
        free(arrays->floor[which]);
    }
    *arrays = (clmgk_ref_arrays){0};
}

clmgk_ref_error clmgk_ref_check_array(const clmgk_ref_arrays *arrays, int which, const double *given, char *message,
                                      size_t capacity)
{
    const double *const exact = arrays->exact[which];
    const double *const floor = arrays->floor[which];
    int64_t wrong = -1;
    const clmgk_ref_error worst = ref_compare(arrays->count[which], exact, given, &arrays->bound[which], floor, &wrong);
    message[0] = '\0';
    ref_expect_proof(arrays->names[which], &arrays->bound[which], message, capacity);
    if (wrong >= 0 && message[0] == '\0')
        snprintf(message, capacity, "%s, element %lld: %.9g, expected %.9g within %.3g", arrays->names[which],
                 (long long)wrong, given[wrong], exact[wrong],
                 arrays->bound[which].bound + (floor ? floor[wrong] : 0.0));
    return worst;
}
