/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family: softmax, Gaussian, MGK and sMGK attention (formulas: clmgk/variants.h, cl/mixture/forward.cl).
 *
 *     s_ijr = log pi_r(j) + score(q_i, k_jr) / sigma_r^2     h_i = sum_j softmax_j(combine_r s_ijr) v_j
 *
 * All share the same kernels. Compile-time: engine, storage type, classes of D and E, M, score, E-step, shifted keys or
 * not, prior and variance as arrays or not, modifiers. Run-time: everything else.
 */
#include "attention/mixture/mixture.h"

#include <inttypes.h>

/* ---- compile-time traits ------------------------------------------------------------------------------------ */

static void add_traits(const clmgk_attention_desc *d, mgk_attention_traits *t)
{
    t->shifted = d->variant == CLMGK_VARIANT_SMGK;
    t->products = t->shifted ? 1 : t->components;
    t->gaussian = d->score == CLMGK_SCORE_GAUSSIAN;
    t->hard = d->estep == CLMGK_ESTEP_HARD;
    t->has_prior = !t->hard && d->prior_shape != CLMGK_PRIOR_UNIFORM;
    t->has_variance = d->variance_shape != CLMGK_VARIANCE_NUMBER;
    t->has_factor = !t->hard && t->components > 1;
}

static void set_flags(const mgk_attention_request *request, mgk_flags *flags)
{
    const mgk_attention_traits *const t = &request->traits;
    flags->SCORE_GAUSSIAN = t->gaussian;
    flags->KEYS_SHIFTED = t->shifted;
    flags->ESTEP_HARD = t->hard;
    flags->HAS_PRIOR = t->has_prior; /* the hard E-step uses none */
}

/* ---- descriptor --------------------------------------------------------------------------------------------- */

static clmgk_status resolve_single(clmgk_attention_desc *d, clmgk_score own, clmgk_error *error)
{
    const char *const name = clmgk_variant_name(d->variant);
    if (d->components > 1 || d->components < 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "components: %" PRId64 ": expected 1 with variant %s",
                        d->components, name);
    if (d->score != CLMGK_SCORE_DEFAULT && d->score != own)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "score: %d: expected 0 or %d with variant %s", (int)d->score,
                        (int)own, name);
    if (d->variant == CLMGK_VARIANT_SOFTMAX && d->prior_shape != CLMGK_PRIOR_UNIFORM)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "prior_shape: %d: expected 0 with variant %s, which has no prior", (int)d->prior_shape, name);
    d->components = 1;
    d->score = own;
    return CLMGK_OK;
}

static clmgk_status mixture_resolve(clmgk_attention_desc *d, clmgk_error *error)
{
    if (d->variant == CLMGK_VARIANT_SOFTMAX)
        return resolve_single(d, CLMGK_SCORE_DOT, error);
    if (d->variant == CLMGK_VARIANT_GAUSSIAN)
        return resolve_single(d, CLMGK_SCORE_GAUSSIAN, error);
    if (d->components == 0)
        d->components = 2;
    if (d->score == CLMGK_SCORE_DEFAULT)
        d->score = CLMGK_SCORE_GAUSSIAN;
    return CLMGK_OK;
}

/* ---- the family ---------------------------------------------------------------------------------------------- */

static mgk_sums sums(const clmgk_attention_desc *desc)
{
    const bool norms = desc->score == CLMGK_SCORE_GAUSSIAN || desc->variant == CLMGK_VARIANT_SMGK;
    return norms ? MGK_SUMS_NORMS : MGK_SUMS_PRODUCTS;
}

const mgk_family mgk_mixture_family = {.name = "mixture",
                                       .resolve = mixture_resolve,
                                       .add_traits = add_traits,
                                       .set_flags = set_flags,
                                       .plan = {[CLMGK_PASS_FORWARD] = mgk_mixture_plan_forward,
                                                [CLMGK_PASS_BACKWARD] = mgk_mixture_plan_backward,
                                                [CLMGK_PASS_STATISTICS] = mgk_mixture_plan_statistics,
                                                [CLMGK_PASS_COMBINE] = mgk_attention_plan_combine,
                                                [CLMGK_PASS_MASK] = mgk_attention_plan_mask,
                                                [CLMGK_PASS_APPEND] = mgk_attention_plan_append},
                                       .sums = sums,
                                       .has_narrow_heads = true,
                                       .has_few_rows = true};
