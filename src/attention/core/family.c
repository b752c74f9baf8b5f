/* SPDX-License-Identifier: Apache-2.0 */
/* A pass of a family. */
#include "attention/core/mask.h"

#include <inttypes.h>

/* Regions of it are counted in 32 bits. */
#define MOST_WORKSPACE ((uint64_t)UINT32_MAX * MGK_WORKSPACE_ALIGNMENT)

/* One product for each component, unless the family says otherwise. */
static mgk_attention_traits traits_of(const mgk_family *family, const clmgk_attention_desc *d)
{
    mgk_attention_traits t = {.head_size = mgk_size_class(family, d->head_size),
                              .value_size = mgk_size_class(family, d->value_size),
                              .components = (int)d->components,
                              .products = (int)d->components,
                              .modified = mgk_is_modified(d)};
    family->add_traits(d, &t);
    return t;
}

clmgk_status mgk_family_plan(const mgk_family *family, const mgk_pass_request *wanted, mgk_pass_plan *plan,
                             clmgk_error *error)
{
    const clmgk_pass pass = wanted->pass;
    const mgk_attention_request request = {.desc = wanted->desc,
                                           .limits = wanted->limits,
                                           .most_splits = wanted->most_splits,
                                           .facts = wanted->facts,
                                           .engine = mgk_engine_of(wanted->engine),
                                           .parameters = wanted->parameters,
                                           .family = family,
                                           .traits = traits_of(family, wanted->desc)};
    if (family->plan[pass] == NULL)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s: the %s family has no such pass", clmgk_pass_name(pass),
                        family->name);
    mgk_mask_begin(&request, plan);
    MGK_TRY((pass == CLMGK_PASS_FORWARD && wanted->desc->prefix_pages > 0 ? mgk_cascade_plan
                                                                          : family->plan[pass])(&request, plan, error));
    if (plan->steps.workspace_bytes > MOST_WORKSPACE)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "%s: a workspace of %" PRIu64 " bytes: expected at most %" PRIu64, clmgk_pass_name(pass),
                        plan->steps.workspace_bytes, MOST_WORKSPACE);
    for (size_t i = 0; i < plan->steps.count; ++i) {
        if (!plan->of_call && plan->steps.step[i].options.failed)
            return mgk_fail_memory(error, "compiler options");
        MGK_TRY(mgk_step_check(&plan->steps.step[i], error));
    }
    return CLMGK_OK;
}
