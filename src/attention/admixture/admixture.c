/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family: FiSH, MiSH, their generalised form and talking heads (formulas: clmgk/variants.h). */
#include "attention/admixture/admixture.h"

#include <inttypes.h>

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

/* ---- what all passes have ------------------------------------------------------------------------------------- */

static mgk_attention_traits traits_of(const clmgk_attention_desc *d)
{
    const uint32_t of_variant = clmgk_variant_traits(d->variant);
    mgk_attention_traits t = mgk_attention_traits_of(d);
    t.admixture = true;
    t.noise = (of_variant & CLMGK_TRAIT_NOISE) != 0;
    t.shared_noise = d->shared_noise != 0;
    t.shared_mix = (of_variant & CLMGK_TRAIT_SHARED_MIX) != 0;
    t.generalised = (of_variant & CLMGK_TRAIT_GENERALISED) != 0;
    return t;
}

static void set_flags(const mgk_attention_request *request, mgk_flags *flags)
{
    const mgk_attention_traits *const t = &request->traits;
    flags->HAS_NOISE = t->noise;
    flags->SHARED_NOISE = t->shared_noise;
    flags->SHARED_MIX = t->shared_mix;
    flags->GENERALISED = t->generalised;
    flags->HAS_MIX_WEIGHT = request->desc->use_mix_weight;
    flags->HAS_MIX_OFFSET = request->desc->use_mix_offset;
}

mgk_attention_args mgk_admixture_args_of(const mgk_attention_request *request)
{
    mgk_attention_args args = mgk_attention_args_of(request);
    args.mix_head = request->traits.shared_mix ? 0 : request->desc->components;
    return args;
}

int64_t mgk_admixture_held(const mgk_attention_traits *traits)
{
    return traits->shared_mix ? 1 : traits->components;
}

int mgk_admixture_heads(int64_t count)
{
    int heads = 1;
    while (heads < count)
        heads *= 2;
    return heads;
}

clmgk_status mgk_admixture_simt_fit(const mgk_attention_request *request, mgk_tunables *tunables,
                                    int64_t (*local_bytes)(const mgk_attention_traits *, const mgk_tunables *),
                                    clmgk_error *error)
{
    static const char *const order[] = {"keys", "keys", "rows", "rows", "rows", "values", "values", "features"};
    const mgk_device_facts *const facts = request->facts;
    const uint64_t room = facts->info.local_memory_bytes;
    for (size_t i = 0; i < MGK_COUNT(order) && (uint64_t)local_bytes(&request->traits, tunables) > room; ++i)
        if (mgk_tunable_get(tunables, order[i]) > 1)
            mgk_tunable_default(tunables, order[i], mgk_tunable_get(tunables, order[i]) / 2);
    mgk_attention_simt_values(tunables);
    MGK_TRY(mgk_tunables_check(tunables, true, error));
    const uint64_t threads =
        (uint64_t)mgk_tunable_get(tunables, "row-threads") * (uint64_t)mgk_tunable_get(tunables, "key-threads");
    if (threads > facts->info.max_work_group || threads > facts->work_item_limit)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine simt: a work-group of %" PRIu64 ", the device takes %" PRIu64, threads,
                        facts->info.max_work_group);
    const uint64_t bytes = (uint64_t)local_bytes(&request->traits, tunables);
    if (bytes > room)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine simt: value_size needs %" PRIu64 " bytes of local memory, the device has %" PRIu64,
                        bytes, room);
    return CLMGK_OK;
}

/* ---- the family ---------------------------------------------------------------------------------------------- */

static clmgk_status admixture_plan(const clmgk_attention_desc *desc, const mgk_device_facts *facts, clmgk_engine engine,
                                   mgk_parameters parameters, clmgk_pass pass, mgk_pass_plan *plan, clmgk_error *error)
{
    clmgk_status (*const plans[CLMGK_PASSES])(const mgk_attention_request *, mgk_pass_plan *,
                                              clmgk_error *) = {[CLMGK_PASS_FORWARD] = mgk_admixture_plan_forward,
                                                                [CLMGK_PASS_BACKWARD] = mgk_admixture_plan_backward,
                                                                [CLMGK_PASS_COMBINE] = mgk_attention_plan_combine};
    const mgk_attention_request request = {desc, facts, engine, parameters, traits_of(desc), set_flags};
    MGK_TRY(plans[pass](&request, plan, error));
    for (size_t i = 0; i < plan->steps; ++i)
        if (plan->step[i].options.failed)
            return mgk_fail_memory(error, "compiler options");
    return CLMGK_OK;
}

/* Products are summed over features in order, and mixed over global heads in order, whatever the parameters. */
static const char *const *admixture_score_tunables(const clmgk_attention_desc *desc, clmgk_engine engine)
{
    (void)desc, (void)engine;
    return NULL;
}

const mgk_family mgk_admixture_family = {"admixture", admixture_resolve, admixture_plan, admixture_score_tunables,
                                         mgk_attention_bind};
