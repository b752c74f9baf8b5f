/* SPDX-License-Identifier: Apache-2.0 */
/* Linear family: linear attention, MLK, sMLK and the linear forms of FiSH and its kin (formulas: clmgk/variants.h). */
#include "attention/linear/linear.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- descriptor --------------------------------------------------------------------------------------------- */

static bool has_trait(const clmgk_attention_desc *d, clmgk_variant_trait trait)
{
    return mgk_has_trait(d, trait);
}

/* Refuses scores, and options of a softmax over keys. */
static clmgk_status check_absent(const clmgk_attention_desc *d, clmgk_error *error)
{
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {{"score", d->score},           {"estep", d->estep},           {"variance_shape", d->variance_shape},
                  {"use_window", d->use_window}, {"statistics", d->statistics}, {"combine", d->combine}};
    for (size_t i = 0; i < MGK_COUNT(fields); ++i)
        MGK_TRY(mgk_check_usual(d, fields[i].value, 0, fields[i].name, error));
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"variance", d->variance}, {"softcap", d->softcap}, {"dropout", d->dropout}};
    for (size_t i = 0; i < MGK_COUNT(numbers); ++i)
        if (numbers[i].value != 0.0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %g: expected 0 with variant %s", numbers[i].name,
                            numbers[i].value, clmgk_variant_name(d->variant));
    return CLMGK_OK;
}

static clmgk_status resolve_components(clmgk_attention_desc *d, clmgk_error *error)
{
    if (!has_trait(d, CLMGK_TRAIT_PRIOR))
        MGK_TRY(mgk_check_usual(d, d->prior_shape, CLMGK_PRIOR_UNIFORM, "prior_shape", error));
    if (has_trait(d, CLMGK_TRAIT_ADMIXTURE))
        return mgk_resolve_mixed_heads(d, error);
    if (d->variant == CLMGK_VARIANT_LINEAR)
        MGK_TRY(mgk_check_usual(d, d->components, 1, "components", error));
    if (d->components == 0)
        d->components = d->variant == CLMGK_VARIANT_LINEAR ? 1 : 2;
    return CLMGK_OK;
}

static clmgk_status resolve_order(clmgk_attention_desc *d, clmgk_error *error)
{
    if (d->feature != CLMGK_FEATURE_DPFP)
        return d->feature_order == 0
                   ? CLMGK_OK
                   : mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "feature_order: %d: expected 0 with feature %s",
                              (int)d->feature_order, clmgk_feature_name(d->feature));
    if (d->feature_order == 0)
        d->feature_order = 1;
    if (d->feature_order < 1 || d->feature_order > 3)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "feature_order: %d: expected 1 to 3 with feature dpfp",
                        (int)d->feature_order);
    return CLMGK_OK;
}

static clmgk_status resolve_features(clmgk_attention_desc *d, clmgk_error *error)
{
    MGK_TRY(resolve_order(d, error));
    if (d->feature == CLMGK_FEATURE_FAVOR) {
        if (d->features < 1 || d->features > CLMGK_MAX_FEATURES)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "features: %" PRId64 ": expected 1 to %d with feature favor, the rows of its projection",
                            d->features, CLMGK_MAX_FEATURES);
        return CLMGK_OK;
    }
    const int64_t own = d->feature == CLMGK_FEATURE_DPFP ? 2 * d->head_size * d->feature_order : d->head_size;
    if (d->features != 0 && d->features != own)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "features: %" PRId64 ": expected 0 or %" PRId64 " with feature %s", d->features, own,
                        clmgk_feature_name(d->feature));
    d->features = own;
    return CLMGK_OK;
}

/* The kernels take it as an f32. */
static clmgk_status check_number(const char *name, double x, clmgk_error *error)
{
    const float single = (float)x;
    if (x >= 0.0 && !isinf(single) && (single > 0.0F || x == 0.0))
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %g: expected 0 or more, in the range of f32", name, x);
}

static clmgk_status check_numbers(const clmgk_attention_desc *d, clmgk_error *error)
{
    MGK_TRY(check_number("guard", d->guard, error));
    MGK_TRY(check_number("feature_epsilon", d->feature_epsilon, error));
    if (d->unnormalised && d->guard != 0.0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "guard: %g: expected 0 with unnormalised = 1, which has no denominators", d->guard);
    if (d->feature_epsilon == 0.0 || d->feature == CLMGK_FEATURE_RELU)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "feature_epsilon: %g: expected 0 with feature %s",
                    d->feature_epsilon, clmgk_feature_name(d->feature));
}

/* States of many sequences in a pool, for inference. */
static clmgk_status check_pool(const clmgk_attention_desc *d, clmgk_error *error)
{
    const bool has_states = d->use_state || d->use_new_state;
    MGK_TRY(mgk_check_range("state_pool", d->state_pool, 0, MGK_MAX_AXIS, error));
    if (d->state_pool > 0 && !has_states)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "state_pool: %" PRId64 ": expected 0 without use_state and use_new_state", d->state_pool);
    if (d->state_pool > 0 && d->gradients != 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "gradients: expected 0 with state_pool = %" PRId64 ": pools are for inference", d->state_pool);
    if (d->sequences > 0 && has_states && d->state_pool == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "%s: 1: expected 0 with packed sequences, or a pool of states (state_pool)",
                        d->use_state ? "use_state" : "use_new_state");
    return CLMGK_OK;
}

static clmgk_status linear_resolve(clmgk_attention_desc *d, clmgk_error *error)
{
    MGK_TRY(check_absent(d, error));
    MGK_TRY(resolve_components(d, error));
    MGK_TRY(resolve_features(d, error));
    MGK_TRY(check_numbers(d, error));
    return check_pool(d, error);
}

/* ---- common to all passes ------------------------------------------------------------------------------------- */

static void add_traits(const clmgk_attention_desc *d, mgk_attention_traits *t)
{
    t->shifted = has_trait(d, CLMGK_TRAIT_SHIFT);
    t->has_prior = d->prior_shape != CLMGK_PRIOR_UNIFORM;
    t->noise = has_trait(d, CLMGK_TRAIT_NOISE);
    t->shared_noise = d->shared_noise != 0;
    t->shared_mix = has_trait(d, CLMGK_TRAIT_SHARED_MIX);
    t->generalised = has_trait(d, CLMGK_TRAIT_GENERALISED);
}

static void set_flags(const mgk_attention_request *request, mgk_flags *flags)
{
    const mgk_attention_traits *const t = &request->traits;
    flags->KEYS_SHIFTED = t->shifted;
    flags->SHARED_NOISE = t->shared_noise;
    flags->SHARED_MIX = t->shared_mix;
    flags->GENERALISED = t->generalised;
    flags->FEATURE_MAP = request->desc->feature;
    flags->FEATURE_ORDER = request->desc->feature_order;
    flags->MIXED_HEADS = has_trait(request->desc, CLMGK_TRAIT_ADMIXTURE);
    flags->CAUSAL = request->desc->causal;
}

/* ---- the family ---------------------------------------------------------------------------------------------- */

static const mgk_tunable tunables[] = {MGK_LINEAR_TUNABLES(MGK_TUNABLE_ROW)};
#define TABLE(NAME, value, name) [value] = #name "-linear",
static const char *const tables[] = {CLMGK_ENGINE_LIST(TABLE)};
/* Parameters of engines' softmax blocks, which the family does not have. */
static const char *const unused[] = {"vectors",   "panels",    "tile",       "block",    "unroll",
                                     "rows",      "keys",      "direct",     "features", "values",
                                     "row-tiles", "key-tiles", "split-from", "emulates", NULL};
static const mgk_added_tunables added = {tables, tunables, MGK_COUNT(tunables), unused};

/* The backward pass makes features as the forward pass does, and takes its denominators. */
static mgk_sums sums(const clmgk_attention_desc *desc)
{
    (void)desc;
    return MGK_SUMS_NONE;
}

static void add_to_key(const clmgk_attention_desc *desc, char *exact, size_t size)
{
    snprintf(exact, size, " feature=%s features=%d", clmgk_feature_name(desc->feature),
             mgk_count_class(desc->features));
}

const mgk_family mgk_linear_family = {
    .name = "linear",
    .resolve = linear_resolve,
    .add_traits = add_traits,
    .set_flags = set_flags,
    .plan = {[CLMGK_PASS_FORWARD] = mgk_linear_plan_forward, [CLMGK_PASS_BACKWARD] = mgk_linear_plan_backward},
    .sums = sums,
    .add_to_key = add_to_key,
    .added = &added};
