/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a plan for a caller, with the newest matrix unit whose programs compile, run, and are right. */
#include "attention/first_use.h"

/* Makes the plan and verifies it. */
static clmgk_status make(clmgk_context *context, const clmgk_attention_desc *resolved,
                         const clmgk_plan_options *options, mgk_attempt *attempt, clmgk_plan **out, clmgk_error *error)
{
    clmgk_plan *plan = NULL;
    MGK_TRY(mgk_plan_make(context, resolved, options, attempt, &plan, error));
    const clmgk_status status = mgk_plan_verify(plan, error);
    if (status == CLMGK_OK)
        *out = plan;
    else
        clmgk_plan_release(plan);
    return status;
}

/* After a failure takes an older unit, or another engine. If no unit is left and the caller named the engine, the
 * failure is the answer: the engine's emulation of a unit would be no help. */
static clmgk_status make_on_some_unit(clmgk_context *context, const clmgk_attention_desc *resolved,
                                      const clmgk_plan_options *options, clmgk_plan **out, clmgk_error *error)
{
    const mgk_engine *const named = mgk_engine_of(options->engine);
    const bool emulates = named != NULL && named->emulates_units;
    mgk_attempt attempt = MGK_FIRST_ATTEMPT;
    for (;;) {
        clmgk_error failure = {.status = CLMGK_OK};
        const clmgk_status status = make(context, resolved, options, &attempt, out, &failure);
        if (status == CLMGK_OK)
            return CLMGK_OK;
        if (status == CLMGK_ERROR_OUT_OF_HOST_MEMORY || attempt.unit == 0 ||
            (emulates && mgk_matrix_unit_older(attempt.unit) == 0)) {
            if (error != NULL)
                *error = failure;
            return status;
        }
        mgk_add_reason(attempt.refused_units, sizeof(attempt.refused_units),
                       mgk_matrix_unit_name(&context->facts, attempt.unit), failure.message);
        attempt.newest_unit = mgk_matrix_unit_older(attempt.unit);
    }
}

static clmgk_status read(const clmgk_context *context, const clmgk_attention_desc *desc,
                         const clmgk_plan_options *options, clmgk_attention_desc *resolved, clmgk_plan_options *chosen,
                         clmgk_error *error)
{
    if (context == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "context: NULL: expected a context");
    MGK_TRY(mgk_attention_resolve(desc, resolved, error));
    return mgk_plan_read_options(options, chosen, error);
}

clmgk_status clmgk_plan_create(clmgk_context *context, const clmgk_attention_desc *desc,
                               const clmgk_plan_options *options, clmgk_plan **out, clmgk_error *error)
{
    clmgk_attention_desc resolved;
    clmgk_plan_options chosen;
    if (context != NULL && out == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "out: NULL: expected room for the plan");
    MGK_TRY(read(context, desc, options, &resolved, &chosen, error));
    MGK_TRY(make_on_some_unit(context, &resolved, &chosen, out, error));
    /* each turn leaves out one engine more */
    while (chosen.engine == CLMGK_ENGINE_AUTO && !mgk_first_use_passes(*out)) {
        clmgk_plan_release(*out);
        *out = NULL;
        MGK_TRY(make_on_some_unit(context, &resolved, &chosen, out, error));
    }
    return CLMGK_OK;
}

clmgk_status clmgk_attention_supported(clmgk_context *context, const clmgk_attention_desc *desc,
                                       const clmgk_plan_options *options, clmgk_error *error)
{
    clmgk_attention_desc resolved;
    clmgk_plan_options chosen;
    MGK_TRY(read(context, desc, options, &resolved, &chosen, error));
    clmgk_plan *const plan = mgk_alloc(&context->allocator, 1, sizeof(*plan));
    if (plan == NULL)
        return mgk_fail_memory(error, "a plan");
    mgk_plan_begin(plan, context, &resolved);
    clmgk_status status = mgk_plan_read_texts(plan, error);
    if (status == CLMGK_OK)
        status = mgk_plan_choose(plan, &chosen, error);
    mgk_plan_end(plan);
    mgk_free(&context->allocator, plan);
    return status;
}
