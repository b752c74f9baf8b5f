/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family: FiSH, MiSH, their generalised form and talking heads (formulas: clmgk/variants.h). */
#include "variants/family.h"

#include <inttypes.h>

uint32_t clmgk_variant_traits(clmgk_variant variant)
{
    switch (variant) {
    case CLMGK_VARIANT_FISH:
        return CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE;
    case CLMGK_VARIANT_HARD_FISH:
        return CLMGK_TRAIT_ADMIXTURE;
    case CLMGK_VARIANT_MISH:
        return CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE | CLMGK_TRAIT_SHARED_MIX;
    case CLMGK_VARIANT_HARD_MISH:
        return CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_SHARED_MIX;
    case CLMGK_VARIANT_GFISH:
        return CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE | CLMGK_TRAIT_GENERALISED;
    case CLMGK_VARIANT_HARD_GFISH:
        return CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_GENERALISED;
    case CLMGK_VARIANT_TALKING_HEADS:
        return CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_SQUARE;
    case CLMGK_VARIANT_SOFTMAX:
    case CLMGK_VARIANT_GAUSSIAN:
    case CLMGK_VARIANT_MGK:
    case CLMGK_VARIANT_SMGK:
        break;
    }
    return 0;
}

/* ---- descriptor --------------------------------------------------------------------------------------------- */

static clmgk_status check_absent(const clmgk_attention_desc *d, bool absent, const char *what, clmgk_error *error)
{
    if (absent)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: variant %s has none", what, clmgk_variant_name(d->variant));
}

static clmgk_status check_heads(const char *field, int64_t heads, clmgk_error *error)
{
    if (heads >= 1 && heads <= CLMGK_MAX_MIXED_HEADS)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected 1 to %d in the admixture family",
                    field, heads, CLMGK_MAX_MIXED_HEADS);
}

static clmgk_status admixture_resolve(clmgk_attention_desc *d, clmgk_error *error)
{
    const uint32_t traits = clmgk_variant_traits(d->variant);
    const bool generalised = (traits & CLMGK_TRAIT_GENERALISED) != 0;
    MGK_TRY(check_absent(d, d->score == CLMGK_SCORE_DEFAULT || d->score == CLMGK_SCORE_DOT, "score: gaussian", error));
    MGK_TRY(check_absent(d, d->estep == CLMGK_ESTEP_SOFT, "estep: hard", error));
    MGK_TRY(check_absent(d, d->prior_shape == CLMGK_PRIOR_UNIFORM, "prior_shape: an array", error));
    MGK_TRY(check_absent(d, d->variance_shape == CLMGK_VARIANCE_NUMBER, "variance_shape: an array", error));
    MGK_TRY(check_absent(d, d->statistics == 0, "statistics", error));
    MGK_TRY(check_absent(d, !d->use_mix_weight || generalised, "use_mix_weight: 1", error));
    MGK_TRY(check_absent(d, !d->use_mix_offset || generalised, "use_mix_offset: 1", error));
    MGK_TRY(check_absent(d, !d->shared_noise || (traits & CLMGK_TRAIT_NOISE) != 0, "shared_noise: 1", error));
    if (d->components == 0)
        d->components = d->heads;
    MGK_TRY(check_heads("components", d->components, error));
    MGK_TRY(check_heads("heads", d->heads, error));
    if ((traits & CLMGK_TRAIT_SQUARE) != 0 && d->components != d->heads)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "components: %" PRId64 ": expected heads = %" PRId64 " with variant %s", d->components,
                        d->heads, clmgk_variant_name(d->variant));
    d->score = CLMGK_SCORE_DOT;
    return CLMGK_OK;
}

/* ---- the family ---------------------------------------------------------------------------------------------- */

static clmgk_status admixture_plan(const clmgk_attention_desc *desc, const mgk_device_facts *facts, clmgk_engine engine,
                                   mgk_parameters parameters, mgk_pass pass, mgk_pass_plan *plan, clmgk_error *error)
{
    (void)desc, (void)facts, (void)engine, (void)parameters, (void)pass, (void)plan;
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "kernels are not there yet");
}

static const char *const *admixture_score_tunables(const clmgk_attention_desc *desc, clmgk_engine engine)
{
    (void)desc, (void)engine;
    return NULL;
}

static void admixture_bind(const mgk_kernel_plan *step, const mgk_call *call, void *args)
{
    (void)step, (void)call, (void)args;
}

const mgk_family mgk_admixture_family = {"admixture", admixture_resolve, admixture_plan, admixture_score_tunables,
                                         admixture_bind};
