/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of products: chooses and prepares a provider. */
#include "gemm/gemm.h"

#include <string.h>

/* ---- trying --------------------------------------------------------------------------------------------------- */

static void clear(clmgk_gemm_plan *plan)
{
    if (plan->state != NULL)
        plan->provider->release(plan);
    plan->state = NULL;
    mgk_steps_clear(plan->steps, &plan->context->allocator);
    plan->provider = NULL;
    mgk_text_free(&plan->parameters);
    mgk_text_free(&plan->note);
    plan->parameters = (mgk_text){.allocator = &plan->context->allocator};
    plan->note = (mgk_text){.allocator = &plan->context->allocator};
    plan->info = (clmgk_gemm_info){0};
}

/* Makes the provider's steps, ready to be enqueued. */
static clmgk_status make(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    mgk_limits ignored = {0};
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    plan->steps->any_size = plan->any_rows;
    MGK_TRY(plan->provider->plan(plan, parameters, error));
    if (plan->provider->enqueue != NULL)
        plan->steps->step[plan->steps->count++] = (mgk_step){.enqueue = plan->provider->enqueue, .state = plan};
    return plan->steps->made ? CLMGK_OK : mgk_steps_make(plan->context, &plan->steps, 1, &ignored, &origin, error);
}

/* Makes the plan with this provider. A failure leaves an empty plan. */
static clmgk_status try_provider(clmgk_gemm_plan *plan, const mgk_gemm_provider *provider, const char *parameters,
                                 clmgk_tuning_source source, clmgk_error *error)
{
    clear(plan);
    if (plan->any_rows && provider->resize == NULL)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "its products have fixed sizes");
    MGK_TRY(provider->applicable(&plan->context->facts, plan->desc.dtype, error));
    MGK_TRY(provider->check_parameters(parameters, error));
    plan->provider = provider;
    plan->info.tuning = source;
    mgk_text_append(&plan->parameters, parameters, strlen(parameters));
    const double start = mgk_now_ms();
    const clmgk_status status = make(plan, parameters, error);
    plan->info.compile_ms = mgk_now_ms() - start;
    if (status != CLMGK_OK)
        clear(plan);
    return status;
}

/* False for failures of kernels of a provider, or with measured parameters: the next provider may succeed. */
static bool ends_search(clmgk_status status)
{
    return status == CLMGK_OK || status == CLMGK_ERROR_OUT_OF_HOST_MEMORY;
}

/* Tries CLBlast with values measured on the device for any shape, else with its own values. */
static clmgk_status try_untuned(clmgk_gemm_plan *plan, const mgk_gemm_provider *provider, bool may_tune,
                                clmgk_error *error)
{
    const clmgk_context *const context = plan->context;
    const mgk_tuning_key key = mgk_gemm_device_key(plan->desc.dtype);
    mgk_tuning_choice entry;
    if (provider == &mgk_gemm_clblast && may_tune)
        for (size_t rank = 0; mgk_tuning_find(context->tuning, &context->facts, &key, rank, &entry); ++rank) {
            const clmgk_status status = try_provider(plan, provider, entry.parameters, entry.source, error);
            if (ends_search(status))
                return status;
        }
    return try_provider(plan, provider, "", CLMGK_TUNING_CLASS, error);
}

/* Takes the best measured provider for the shape, or only `wanted` if that is not NULL. If there is none,
 * plan->provider stays NULL, with the reason in *source, and the caller takes the first provider that can. */
static clmgk_status try_measured(clmgk_gemm_plan *plan, const mgk_gemm_provider *wanted, clmgk_tuning_source *source,
                                 clmgk_error *error)
{
    const clmgk_context *const context = plan->context;
    const mgk_tuning_key key = mgk_gemm_key(&plan->desc);
    mgk_tuning_choice entry;
    for (size_t rank = 0; mgk_tuning_find(context->tuning, &context->facts, &key, rank, &entry); ++rank) {
        if (entry.choice == NULL && wanted == NULL) {
            *source = entry.source;
            return CLMGK_OK;
        }
        const mgk_gemm_provider *const provider = entry.choice != NULL ? mgk_gemm_provider_named(entry.choice) : NULL;
        if (provider == NULL || (wanted != NULL && wanted != provider))
            continue;
        const bool own = provider == &mgk_gemm_clblast && entry.parameters[0] == '\0';
        const clmgk_status status = own ? try_untuned(plan, provider, true, error)
                                        : try_provider(plan, provider, entry.parameters, entry.source, error);
        if (status == CLMGK_OK)
            plan->info.tuning = entry.source;
        if (ends_search(status))
            return status;
    }
    return CLMGK_OK;
}

/* Provider number `rank` in the order of preference for the product; first comes a provider for its number of rows. */
static const mgk_gemm_provider *ranked(const clmgk_gemm_desc *desc, size_t rank)
{
    size_t first = 0;
    while (first < MGK_COUNT(mgk_gemm_providers) && desc->m > mgk_gemm_providers[first]->few_rows)
        ++first;
    if (first == MGK_COUNT(mgk_gemm_providers))
        return mgk_gemm_providers[rank];
    return mgk_gemm_providers[rank == 0 ? first : rank <= first ? rank - 1 : rank];
}

/* Takes the first provider that can. Collects in `reasons` why earlier ones can't, and notes reasons of matrix units.
 * If none can, the plan fails with the first failure that was not a plain UNSUPPORTED. */
static clmgk_status try_all(clmgk_gemm_plan *plan, bool may_tune, mgk_text *reasons, clmgk_error *error)
{
    clmgk_error failure = {.status = CLMGK_OK}, units = failure;
    for (size_t i = 0; i < MGK_COUNT(mgk_gemm_providers); ++i) {
        const mgk_gemm_provider *const provider = ranked(&plan->desc, i);
        clmgk_error reason = {.status = CLMGK_OK};
        clmgk_status status = mgk_gemm_is_eligible(provider, &plan->context->facts, &reason);
        const bool eligible = status == CLMGK_OK;
        if (eligible)
            status = try_untuned(plan, provider, may_tune, &reason);
        if (status == CLMGK_OK && units.status != CLMGK_OK)
            mgk_text_printf(&plan->note, "%sno matrix units: %s", plan->note.length > 0 ? "; " : "", units.message);
        if (status == CLMGK_OK)
            return CLMGK_OK;
        if (ends_search(status))
            return mgk_fail_code(error, status, reason.opencl_code, "%s", reason.message);
        if (failure.status == CLMGK_OK && status != CLMGK_ERROR_UNSUPPORTED)
            failure = reason;
        if (eligible && provider == &mgk_gemm_fragments)
            units = reason;
        mgk_text_printf(reasons, "%s%s: %s", reasons->length > 0 ? "; " : "", provider->name, reason.message);
    }
    if (failure.status != CLMGK_OK)
        return mgk_fail_code(error, failure.status, failure.opencl_code, "%s", failure.message);
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "no provider for this %s product: %s",
                    clmgk_dtype_name(plan->desc.dtype), reasons->data != NULL ? reasons->data : "");
}

/* ---- notes ---------------------------------------------------------------------------------------------------- */

static void append_note(clmgk_gemm_plan *plan, const char *text)
{
    mgk_text_printf(&plan->note, "%s%s", plan->note.length > 0 ? "; " : "", text);
}

/* Notes why no host library serves the product on a device that could use one. */
static void note_slow_path(clmgk_gemm_plan *plan)
{
    clmgk_error reason;
    const bool own = plan->provider == &mgk_gemm_own && plan->desc.m > plan->provider->few_rows;
    if (own)
        append_note(plan, "slow: the library's own kernels, which are made for few rows");
    if ((!own && plan->provider != &mgk_gemm_clblast) || mgk_gemm_host_device(&plan->context->facts, NULL) != CLMGK_OK)
        return;
    if (!own)
        append_note(plan, "slow: CLBlast on a CPU, where a host library is several times faster");
    for (size_t i = 0; i < MGK_COUNT(mgk_gemm_providers); ++i)
        if (mgk_gemm_providers[i]->is_host &&
            mgk_gemm_providers[i]->applicable(&plan->context->facts, plan->desc.dtype, &reason) != CLMGK_OK)
            mgk_text_printf(&plan->note, "; %s: %s", mgk_gemm_providers[i]->name, reason.message);
}

static void note(clmgk_gemm_plan *plan)
{
    note_slow_path(plan);
    if (plan->info.sums == CLMGK_DTYPE_F16)
        append_note(plan, "summed in f16");
    if (plan->provider == &mgk_gemm_clblast && plan->parameters.length == 0)
        append_note(plan, "CLBlast's own parameters: not tuned for this device");
    if (plan->provider == &mgk_gemm_clblast && plan->info.cached == 0)
        append_note(plan, "compiled anew in each process");
}

/* ---- plans ---------------------------------------------------------------------------------------------------- */

static clmgk_status read_options(const clmgk_gemm_options *options, clmgk_gemm_options *read,
                                 const mgk_gemm_provider **provider, clmgk_error *error)
{
    *read = (clmgk_gemm_options)CLMGK_GEMM_OPTIONS_INIT;
    *provider = NULL;
    if (options == NULL)
        return CLMGK_OK;
    MGK_TRY(mgk_struct_read(options, "options", sizeof(*read), read, sizeof(*read), error));
    if (read->provider != NULL) {
        *provider = mgk_gemm_provider_named(read->provider);
        if (*provider == NULL)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "options.provider: \"%s\": expected one of clmgk_gemm_provider", read->provider);
    }
    if (read->parameters != NULL && read->parameters[0] != '\0' && *provider == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "options.parameters: \"%s\": expected options.provider to name their provider",
                        read->parameters);
    return CLMGK_OK;
}

static clmgk_status choose(clmgk_gemm_plan *plan, const clmgk_gemm_options *options, const mgk_gemm_provider *provider,
                           clmgk_error *error)
{
    const clmgk_gemm_desc *const desc = &plan->desc;
    mgk_text reasons = {.allocator = &plan->context->allocator};
    clmgk_tuning_source source = CLMGK_TUNING_CLASS;
    if (desc->m == 0 || desc->n == 0 || desc->k == 0) {
        plan->provider = &mgk_gemm_scale;
        return make(plan, "", error);
    }
    if (provider != NULL && options->parameters != NULL && options->parameters[0] != '\0')
        return try_provider(plan, provider, options->parameters, CLMGK_TUNING_CALLER, error);
    if (options->parameters == NULL)
        MGK_TRY(try_measured(plan, provider, &source, error));
    if (plan->provider != NULL)
        return CLMGK_OK;
    if (provider != NULL)
        return try_untuned(plan, provider, options->parameters == NULL, error);
    const clmgk_status status = try_all(plan, options->parameters == NULL, &reasons, error);
    mgk_text_free(&reasons);
    if (source != CLMGK_TUNING_CLASS)
        plan->info.tuning = source;
    return status;
}

static clmgk_status describe(clmgk_gemm_plan *plan, clmgk_error *error)
{
    note(plan);
    if (plan->note.failed || plan->parameters.failed)
        return mgk_fail_memory(error, "a plan");
    plan->info.provider = plan->provider->name;
    plan->info.parameters = plan->parameters.data != NULL ? plan->parameters.data : "";
    plan->info.note = plan->note.data != NULL ? plan->note.data : "";
    return CLMGK_OK;
}

clmgk_status clmgk_gemm_plan_create(clmgk_context *context, const clmgk_gemm_desc *desc,
                                    const clmgk_gemm_options *options, clmgk_gemm_plan **out, clmgk_error *error)
{
    return mgk_gemm_plan_make(context, desc, options, false, out, error);
}

clmgk_status mgk_gemm_plan_make(clmgk_context *context, const clmgk_gemm_desc *desc, const clmgk_gemm_options *options,
                                bool any_rows, clmgk_gemm_plan **out, clmgk_error *error)
{
    if (context == NULL || out == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", context == NULL ? "context" : "out",
                        context == NULL ? "a context" : "room for the plan");
    clmgk_gemm_desc resolved;
    clmgk_gemm_options chosen;
    const mgk_gemm_provider *provider = NULL;
    MGK_TRY(mgk_gemm_resolve(desc, &resolved, error));
    MGK_TRY(read_options(options, &chosen, &provider, error));

    clmgk_gemm_plan *const plan = mgk_alloc(&context->allocator, 1, sizeof(*plan));
    if (plan == NULL)
        return mgk_fail_memory(error, "a plan");
    plan->steps = mgk_alloc(&context->allocator, 1, sizeof(*plan->steps));
    if (plan->steps == NULL) {
        mgk_free(&context->allocator, plan);
        return mgk_fail_memory(error, "a plan");
    }
    mgk_context_retain(context);
    plan->context = context;
    plan->desc = resolved;
    plan->any_rows = any_rows;
    clear(plan);
    clmgk_error failure; /* the last attempt's; the plan may be another's */
    clmgk_status status;
    MGK_TRY_GOTO(status, choose(plan, &chosen, provider, &failure), fail);
    MGK_TRY_GOTO(status, describe(plan, &failure), fail);
    *out = plan;
    return CLMGK_OK;
fail:
    clmgk_gemm_plan_release(plan);
    return mgk_fail_code(error, status, failure.opencl_code, "%s", failure.message);
}

clmgk_status mgk_gemm_resize(const clmgk_gemm_plan *plan, int64_t tokens, clmgk_gemm_plan *call, clmgk_error *error)
{
    mgk_steps *const steps = call->steps;
    *call = *plan;
    call->steps = steps;
    *(plan->desc.transpose_a != 0 ? &call->desc.k : &call->desc.m) = tokens;
    mgk_steps_clear_call(steps);
    MGK_TRY(plan->provider->resize(call, error));
    return mgk_steps_borrow(steps, plan->steps, error);
}

void clmgk_gemm_plan_release(clmgk_gemm_plan *plan)
{
    if (plan == NULL)
        return;
    clmgk_context *const context = plan->context;
    clear(plan);
    mgk_free(&context->allocator, plan->steps);
    mgk_free(&context->allocator, plan);
    clmgk_context_release(context);
}

clmgk_status clmgk_gemm_plan_get_info(const clmgk_gemm_plan *plan, clmgk_gemm_info *info, clmgk_error *error)
{
    if (plan == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: NULL: expected a plan");
    MGK_TRY(mgk_struct_room(info, "info", MGK_SIZE_WITH(clmgk_gemm_info, cached), error));
    mgk_struct_write(info, 0, &plan->info, sizeof(plan->info));
    return CLMGK_OK;
}

size_t clmgk_gemm_plan_workspace_size(const clmgk_gemm_plan *plan)
{
    return plan == NULL ? 0 : (size_t)plan->info.workspace_bytes;
}
