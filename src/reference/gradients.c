/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of the gradients, and their values with their bounds. */
#include "reference/gradients.h"

#include "reference/arrays.h"

/* Heads of Q. */
static int64_t query_heads(const clmgk_attention_desc *d)
{
    return ref_form_of(d).mixed ? d->components : d->heads;
}

/* Keys per batch and position: heads times components. */
static int64_t key_components(const clmgk_attention_desc *d)
{
    if (ref_form_of(d).mixed)
        return d->components;
    return d->kv_heads * (d->variant == CLMGK_VARIANT_MGK ? d->components : 1);
}

int64_t clmgk_ref_gradient_count(const clmgk_attention_desc *desc, clmgk_ref_gradient which)
{
    const clmgk_attention_desc *const d = desc;
    const ref_form form = ref_form_of(d);
    switch (which) {
    case CLMGK_REF_GRAD_Q:
        return d->batch * query_heads(d) * d->length * d->head_size;
    case CLMGK_REF_GRAD_K:
        return d->batch * key_components(d) * d->length_k * d->head_size;
    case CLMGK_REF_GRAD_V:
        return d->batch * d->kv_heads * d->length_k * d->value_size;
    case CLMGK_REF_GRAD_PRIOR:
        return form.mixed || d->variant == CLMGK_VARIANT_SOFTMAX ? 0 : ref_prior_count(d);
    case CLMGK_REF_GRAD_VARIANCE:
        return form.mixed ? 0 : ref_variance_index(d, d->heads - 1, d->components - 1) + 1;
    case CLMGK_REF_GRAD_SHIFT:
        return d->variant == CLMGK_VARIANT_SMGK ? d->heads * d->components * d->head_size : 0;
    case CLMGK_REF_GRAD_BIAS:
        return d->use_bias ? ref_bias_count(d) : 0;
    case CLMGK_REF_GRAD_SINKS:
        return d->use_sinks ? d->heads : 0;
    case CLMGK_REF_GRAD_MIX:
        return form.mixed ? ref_mix_index(d, d->heads - 1, d->components - 1) + 1 : 0;
    case CLMGK_REF_GRAD_MIX_WEIGHT:
        return form.generalised ? d->heads * d->components : 0;
    case CLMGK_REF_GRAD_MIX_OFFSET:
        return form.generalised ? d->heads : 0;
    case CLMGK_REF_GRAD_NOISE:
        return form.noisy ? d->components : 0;
    case CLMGK_REF_GRADIENTS:
        break;
    }
    return 0;
}

/* ---- with their bounds ----------------------------------------------------------------------------------------- */

static int64_t count(const clmgk_attention_desc *desc, int which)
{
    return clmgk_ref_gradient_count(desc, (clmgk_ref_gradient)which);
}

/* The plain formula rounds gradients to the storage type. */
static bool rounded(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way, float *const values[])
{
    if (!plain_gradients(problem, scores, way, values))
        return false;
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++)
        for (int64_t n = values[which] ? count(&problem->desc, which) : 0; n-- > 0;)
            values[which][n] = ref_rounded(problem->desc.dtype, values[which][n]);
    return true;
}

/* The set of gradients of a problem. */
static uint32_t parameters_of(const clmgk_attention_desc *desc)
{
    const ref_form form = ref_form_of(desc);
    uint32_t set = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    set |= form.mixed ? CLMGK_GRADIENT_MIX : CLMGK_GRADIENT_VARIANCE;
    set |= !form.mixed && desc->variant != CLMGK_VARIANT_SOFTMAX ? CLMGK_GRADIENT_PRIOR : 0U;
    set |= desc->variant == CLMGK_VARIANT_SMGK ? CLMGK_GRADIENT_SHIFT : 0U;
    set |= desc->use_bias ? CLMGK_GRADIENT_BIAS : 0U;
    set |= desc->use_sinks ? CLMGK_GRADIENT_SINKS : 0U;
    set |= form.generalised ? CLMGK_GRADIENT_MIX_WEIGHT | CLMGK_GRADIENT_MIX_OFFSET : 0U;
    set |= form.noisy ? CLMGK_GRADIENT_NOISE : 0U;
    return set;
}

bool clmgk_ref_solve_gradients(const clmgk_ref_problem *problem, uint32_t set, clmgk_ref_gradients *out)
{
    static const ref_solver solver = {true, count, exact_gradients, rounded};
    set &= parameters_of(&problem->desc);
    return ref_solve_arrays(problem, set, &solver, ref_tolerance_of_gradients(problem->desc.dtype), out);
}

void clmgk_ref_gradients_free(clmgk_ref_gradients *gradients)
{
    ref_free_arrays(gradients);
}

clmgk_ref_error clmgk_ref_check_gradient(const clmgk_ref_gradients *gradients, clmgk_ref_gradient which,
                                         const double *given, char *message, size_t capacity)
{
    static const char *const names[CLMGK_REF_GRADIENTS] = {"dQ",        "dK",          "dV",          "dprior",
                                                           "dvariance", "dshift",      "dbias",       "dsinks",
                                                           "dmix",      "dmix_weight", "dmix_offset", "dnoise"};
    return ref_check_array(gradients, which, names[which], given, message, capacity);
}
