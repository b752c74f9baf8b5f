/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family: FiSH, MiSH, their generalised form and talking heads (formulas: clmgk/variants.h). */
#include "attention/admixture/admixture.h"
#include "admixture/tunables.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- descriptor --------------------------------------------------------------------------------------------- */

static clmgk_status admixture_resolve(clmgk_attention_desc *d, clmgk_error *error)
{
    const uint32_t traits = clmgk_variant_traits(d->variant);
    MGK_TRY(mgk_check_usual(d, d->score, CLMGK_SCORE_DOT, "score", error));
    MGK_TRY(mgk_check_usual(d, d->estep, CLMGK_ESTEP_SOFT, "estep", error));
    MGK_TRY(mgk_check_usual(d, d->prior_shape, CLMGK_PRIOR_UNIFORM, "prior_shape", error));
    MGK_TRY(mgk_check_usual(d, d->variance_shape, CLMGK_VARIANCE_NUMBER, "variance_shape", error));
    MGK_TRY(mgk_check_usual(d, d->statistics, 0, "statistics", error));
    MGK_TRY(mgk_resolve_mixed_heads(d, error));
    if ((traits & CLMGK_TRAIT_SQUARE) != 0 && d->components != mgk_softmax_heads(d))
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "components: %" PRId64 ": expected %s = %" PRId64 " with variant %s", d->components,
                        d->mix_after_heads > 0 ? "mix_after_heads" : "heads", mgk_softmax_heads(d),
                        clmgk_variant_name(d->variant));
    d->score = CLMGK_SCORE_DOT;
    return CLMGK_OK;
}

/* ---- common to all passes ------------------------------------------------------------------------------------- */

static void add_traits(const clmgk_attention_desc *d, mgk_attention_traits *t)
{
    const uint32_t of_variant = clmgk_variant_traits(d->variant);
    t->noise = (of_variant & CLMGK_TRAIT_NOISE) != 0;
    t->shared_noise = d->shared_noise != 0;
    t->shared_mix = (of_variant & CLMGK_TRAIT_SHARED_MIX) != 0;
    t->generalised = (of_variant & CLMGK_TRAIT_GENERALISED) != 0;
    t->hidden = (int)d->mix_hidden;
    t->after = (int)d->mix_after_heads;
    t->head_ratio = (int)(d->heads / d->kv_heads);
}

static void set_flags(const mgk_attention_request *request, mgk_flags *flags)
{
    const mgk_attention_traits *const t = &request->traits;
    flags->SHARED_NOISE = t->shared_noise;
    flags->SHARED_MIX = t->shared_mix;
    flags->GENERALISED = t->generalised && t->hidden == 0;
    flags->HIDDEN = t->hidden;
}

/* ---- the family ---------------------------------------------------------------------------------------------- */

static const mgk_tunable tunables[] = {MGK_ADMIXTURE_TUNABLES(MGK_TUNABLE_ROW)};
#define TABLE(NAME, value, name) [value] = #name "-admixture",
static const char *const tables[] = {CLMGK_ENGINE_LIST(TABLE)};
static const mgk_added_tunables added = {tables, tunables, MGK_COUNT(tunables), NULL};

/* They are mixed over global heads in order. */
static mgk_sums sums(const clmgk_attention_desc *desc)
{
    (void)desc;
    return MGK_SUMS_PRODUCTS;
}

/* The number of heads affects how many heads fit into a work-group. */
static void add_to_key(const clmgk_attention_desc *desc, char *exact, size_t size)
{
    int length = snprintf(exact, size, " heads=%d kv_heads=%d shared_noise=%d", mgk_count_class(desc->heads),
                          mgk_count_class(desc->kv_heads), desc->shared_noise != 0);
    if (desc->mix_hidden > 0 && (size_t)length < size)
        length += snprintf(exact + length, size - (size_t)length, " hidden=%d", mgk_count_class(desc->mix_hidden));
    if (desc->mix_after_heads > 0 && (size_t)length < size)
        snprintf(exact + length, size - (size_t)length, " after=%d", mgk_count_class(desc->mix_after_heads));
}

const mgk_family mgk_admixture_family = {.name = "admixture",
                                         .resolve = admixture_resolve,
                                         .add_traits = add_traits,
                                         .set_flags = set_flags,
                                         .plan = {[CLMGK_PASS_FORWARD] = mgk_admixture_plan_forward,
                                                  [CLMGK_PASS_BACKWARD] = mgk_admixture_plan_backward,
                                                  [CLMGK_PASS_COMBINE] = mgk_attention_plan_combine,
                                                  [CLMGK_PASS_MASK] = mgk_attention_plan_mask,
                                                  [CLMGK_PASS_APPEND] = mgk_attention_plan_append},
                                         .sums = sums,
                                         .add_to_key = add_to_key,
                                         .added = &added,
                                         .grouped_heads = true,
                                         .has_narrow_heads = true};
