/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of the gradients, and their values with their bounds. */
#include "reference/gradients.h"

#include "reference/arrays.h"
#include "reference/families.h"
#include "reference/linear.h"
#include "reference/linear_plain.h"
#include "reference/mixed.h"

int64_t clmgk_ref_gradient_count(const clmgk_attention_desc *desc, clmgk_ref_gradient which)
{
    const clmgk_attention_desc *const d = desc;
    switch (which) {
    case CLMGK_REF_GRAD_V:
        return d->batch * d->kv_heads * d->length_k * d->value_size;
    case CLMGK_REF_GRAD_BIAS:
        return d->use_bias ? ref_bias_count(d) : 0;
    case CLMGK_REF_GRAD_SINKS:
        return d->use_sinks ? ref_softmax_heads(d) : 0;
    default:
        if (which >= CLMGK_REF_GRAD_CAPTURE_0 && which <= CLMGK_REF_GRAD_NUMBERS)
            return ref_text_gradient_count(d, which);
        return ref_family_of(d->variant)->count(d, which);
    }
}

/* ---- with their bounds ----------------------------------------------------------------------------------------- */

static int64_t count(const clmgk_attention_desc *desc, int which)
{
    return clmgk_ref_gradient_count(desc, (clmgk_ref_gradient)which);
}

static bool exact(const clmgk_ref_problem *problem, const exact_scores *scores, const exact_sums *sums)
{
    if (problem->desc.mix_after_heads > 0)
        return ref_mixed_gradients(problem, scores, sums);
    if (!ref_form_of(&problem->desc).linear)
        return exact_gradients(problem, scores, sums);
    if (!ref_linear_gradients(problem, sums->values, sums->floor))
        return false;
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++)
        for (int64_t n = sums->values[which] ? count(&problem->desc, which) : 0; n-- > 0;)
            sums->size[which][n] = sums->floor[which][n];
    return true;
}

static clmgk_dtype type_of(const clmgk_attention_desc *desc, int which)
{
    return clmgk_ref_type_of(desc, (clmgk_array)((int)CLMGK_ARRAY_GRAD_Q + which));
}

static ref_tolerance tolerance_of(const clmgk_attention_desc *desc, int which)
{
    const clmgk_dtype type = type_of(desc, which);
    ref_tolerance tolerance = ref_tolerance_of_products(ref_tolerance_of_gradients(type), desc->precision, 2.0);
    if (which <= CLMGK_REF_GRAD_V) /* the others are f32 arrays */
        tolerance.most = ref_most(type);
    return tolerance;
}

/* The plain formula rounds gradients to their types. */
static bool rounded(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way, const bool *lost,
                    float *const values[])
{
    if (!(ref_form_of(&problem->desc).linear  ? ref_plain_linear_gradients(problem, way.order, values)
          : problem->desc.mix_after_heads > 0 ? ref_mixed_plain_gradients(problem, scores, way, lost, values)
                                              : plain_gradients(problem, scores, way, lost, values)))
        return false;
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++)
        for (int64_t n = values[which] ? count(&problem->desc, which) : 0; n-- > 0;)
            values[which][n] = clmgk_ref_rounded(type_of(&problem->desc, which), values[which][n]);
    return true;
}

bool clmgk_ref_solve_gradients(const clmgk_ref_problem *problem, uint32_t set, clmgk_ref_arrays *out)
{
#define NAME(name, field, ...) "d" #field,
    static const char *const names[] = {CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, NAME, CLMGK_ARRAY_NONE)};
#undef NAME
    static const ref_solver solver = {names, true, false, count, tolerance_of, exact, rounded};
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++)
        set &= count(&problem->desc, which) > 0 ? ~0U : ~(1U << (unsigned)which);
    if (!ref_solve_arrays(problem, set, &solver, out))
        return false;
    bool may_leave = false;
    if (problem->desc.mix_after_heads == 0)
        may_leave = ref_gradients_may_leave(problem);
    else if (!ref_mixed_may_leave(problem, &may_leave)) {
        clmgk_ref_arrays_free(out);
        return false;
    }
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++)
        out->bound[which].may_leave = may_leave;
    return true;
}
