/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls with sizes of their own (desc.sizes_at_call). A plan has the programs that the descriptor's sizes, its limits,
 * lead to, with one range of keys and, where some call takes several, with several. A call is planned by the family as
 * any other, with its own sizes for numbers of work-groups, arguments and workspace, and the limits for all that
 * programs depend on; but its steps run the plan's kernels, and nothing is compiled or allocated.
 */
#include "attention/plan.h"

#include <string.h>

/* ---- plans ------------------------------------------------------------------------------------------------------ */

void mgk_sized_free(const clmgk_context *context, mgk_sized_pass *sized)
{
    if (sized == NULL)
        return;
    mgk_free(&context->allocator, sized->given);
    mgk_free(&context->allocator, sized->followed);
    mgk_free(&context->allocator, sized);
}

static clmgk_status copy(const clmgk_context *context, const char *text, char **own, clmgk_error *error)
{
    *own = text != NULL ? mgk_strdup(&context->allocator, text) : NULL;
    return text == NULL || *own != NULL ? CLMGK_OK : mgk_fail_memory(error, "a plan's parameters");
}

static clmgk_status keep(const clmgk_context *context, const mgk_pass_request *request, mgk_sized_pass **out,
                         clmgk_error *error)
{
    mgk_sized_pass *const sized = mgk_alloc(&context->allocator, 1, sizeof(*sized));
    mgk_sized_free(context, *out);
    *out = sized;
    if (sized == NULL)
        return mgk_fail_memory(error, "a plan's pass");
    sized->facts = *request->facts;
    sized->origin = request->parameters.origin;
    MGK_TRY(copy(context, request->parameters.text, &sized->given, error));
    return copy(context, request->parameters.followed, &sized->followed, error);
}

/* Plans the pass for these sizes, and adds the kernels that the plan lacks. The plan's workspace is that of the sizes
 * that need most. */
static clmgk_status add_kernels(const clmgk_plan *plan, const mgk_pass_request *request, const clmgk_attention_desc *d,
                                mgk_pass_plan *pass, clmgk_error *error)
{
    mgk_pass_request own = *request;
    own.desc = d;
    own.most_splits = 0;
    mgk_pass_plan *const more = mgk_alloc(&plan->context->allocator, 1, sizeof(*more));
    if (more == NULL)
        return mgk_fail_memory(error, "a plan's pass");
    mgk_steps_clear(&more->steps, &plan->context->allocator);
    more->mods = pass->mods;
    clmgk_status status = mgk_family_plan(plan->family, &own, more, error);
    if (status == CLMGK_OK)
        status = mgk_steps_add(&pass->steps, &more->steps, error);
    if (more->steps.workspace_bytes > pass->steps.workspace_bytes)
        pass->steps.workspace_bytes = more->steps.workspace_bytes;
    mgk_steps_clear(&more->steps, NULL);
    mgk_free(&plan->context->allocator, more);
    return status;
}

/* Work-groups are fewest, and ranges of keys most, with the fewest batches and queries. */
clmgk_status mgk_sized_begin(clmgk_plan *plan, clmgk_pass which, const mgk_pass_request *request, clmgk_error *error)
{
    const clmgk_attention_desc *const limits = &plan->desc;
    mgk_compiled_pass *const pass = plan->pass[which];
    MGK_TRY(keep(plan->context, request, &pass->sized, error));
    for (int corner = 0; corner < 4; ++corner) {
        clmgk_call_sizes sizes = {.batch = (corner & 1) != 0 ? 1 : limits->batch,
                                  .length = (corner & 2) != 0 && limits->length > 0 ? 1 : limits->length,
                                  .length_k = limits->length_k > 0 ? limits->length_k : CLMGK_NO_KEYS,
                                  .sequences = limits->sequences > 0 && (corner & 1) != 0 ? 1 : limits->sequences};
        clmgk_attention_desc d;
        if (limits->sequences > 0 && !limits->use_offsets_k && !mgk_has_caches(limits))
            sizes.length_k = sizes.length > 0 ? sizes.length : CLMGK_NO_KEYS;
        if (mgk_attention_resize(limits, &sizes, &d, NULL) == CLMGK_OK) /* else no call has them: of a bias */
            MGK_TRY(add_kernels(plan, request, &d, &pass->plan, error));
    }
    return CLMGK_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* Plans the pass with at most so many ranges of keys. */
static clmgk_status plan_with(const clmgk_plan *plan, clmgk_pass which, int64_t most_splits, mgk_sized_call *call,
                              clmgk_error *error)
{
    mgk_compiled_pass *const pass = plan->pass[which];
    const mgk_sized_pass *const sized = pass->sized;
    const mgk_pass_request request = {
        .desc = &call->desc,
        .limits = &plan->desc,
        .most_splits = most_splits,
        .facts = &sized->facts,
        .engine = pass->engine,
        .parameters = {.text = sized->given, .origin = sized->origin, .followed = sized->followed},
        .pass = which};
    memset(&call->pass, 0, sizeof(call->pass));
    mgk_steps_clear_call(&call->pass.steps);
    call->pass.mods = pass->plan.mods;
    call->pass.of_call = true;
    MGK_TRY(mgk_family_plan(plan->family, &request, &call->pass, error));
    return mgk_steps_borrow(&call->pass.steps, &pass->plan.steps, error);
}

/* Takes fewer ranges of keys while the workspace would be larger than the plan's, or the plan has no kernels for
 * several. */
static clmgk_status plan_pass(const clmgk_plan *plan, clmgk_pass which, mgk_sized_call *call, clmgk_error *error)
{
    const uint64_t most = plan->pass[which]->plan.steps.workspace_bytes;
    for (int64_t splits = MGK_WAVES_MOST; splits > 1; splits /= 2) {
        clmgk_error failure;
        if (plan_with(plan, which, splits, call, &failure) != CLMGK_OK)
            break;
        if (call->pass.steps.workspace_bytes <= most)
            return CLMGK_OK;
    }
    return plan_with(plan, which, 1, call, error);
}

static bool same_layout(const clmgk_layout *a, const clmgk_layout *b)
{
    return a->strided == b->strided && a->batch == b->batch && a->head == b->head && a->component == b->component &&
           a->token == b->token;
}

bool mgk_same_sizes(const clmgk_call_sizes *a, const clmgk_call_sizes *b)
{
    clmgk_call_sizes one = *a, other = *b;
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        const clmgk_layout *const layout = mgk_call_layout(&one, (clmgk_array)i);
        if (layout != NULL && !same_layout(layout, mgk_call_layout(&other, (clmgk_array)i)))
            return false;
    }
    return a->struct_size == b->struct_size && a->batch == b->batch && a->length == b->length &&
           a->length_k == b->length_k && a->sequences == b->sequences && a->table_pages == b->table_pages &&
           a->append == b->append;
}

clmgk_status mgk_call_sizes_read(const clmgk_call_sizes *given, const char *name, clmgk_call_sizes *sizes,
                                 clmgk_error *error)
{
    return mgk_struct_read(given, name, MGK_SIZE_WITH(clmgk_call_sizes, grad_v), sizes, sizeof(*sizes), error);
}

/* Takes the last call if its sizes were equal. Steps point into the plan alone, so a copy is as good. */
static bool take_last(const clmgk_plan *plan, const mgk_sized_pass *sized, const clmgk_call_sizes *sizes,
                      mgk_sized_call *call)
{
    pthread_mutex_t *const mutex = &plan->context->monitor.mutex;
    pthread_mutex_lock(mutex);
    const bool equal = sized->has_last && mgk_same_sizes(&sized->sizes, sizes);
    if (equal)
        *call = sized->last;
    pthread_mutex_unlock(mutex);
    return equal;
}

static void keep_last(const clmgk_plan *plan, mgk_sized_pass *sized, const clmgk_call_sizes *sizes,
                      const mgk_sized_call *call)
{
    pthread_mutex_t *const mutex = &plan->context->monitor.mutex;
    pthread_mutex_lock(mutex);
    sized->has_last = true;
    sized->sizes = *sizes;
    sized->last = *call;
    pthread_mutex_unlock(mutex);
}

clmgk_status mgk_sized_plan(const clmgk_plan *plan, clmgk_pass which, const clmgk_call_sizes *sizes,
                            mgk_sized_call *call, clmgk_error *error)
{
    clmgk_call_sizes own = CLMGK_CALL_SIZES_INIT;
    if (!plan->desc.sizes_at_call)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "sizes: given, but the plan's descriptor has sizes_at_call = 0");
    if (sizes != NULL)
        MGK_TRY(mgk_call_sizes_read(sizes, "sizes", &own, error));
    else
        own.struct_size = 0; /* unlike a caller's sizes of the same numbers: the layouts are the descriptor's, too */
    mgk_sized_pass *const sized = plan->pass[which]->sized;
    if (take_last(plan, sized, &own, call))
        return CLMGK_OK;
    call->desc = plan->desc;
    if (sizes != NULL)
        MGK_TRY(mgk_attention_resize(&plan->desc, &own, &call->desc, error));
    MGK_TRY(plan_pass(plan, which, call, error));
    mgk_plan_list_arrays(&call->desc, call->array);
    keep_last(plan, sized, &own, call);
    return CLMGK_OK;
}
