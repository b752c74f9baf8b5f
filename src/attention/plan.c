/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: build the programs of the chosen passes, prepare kernels, describe the choice. */
#include "attention/plan.h"
#include "attention/core/formulas.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Most attempts with smaller work-groups if a compiled kernel does not fit. */
#define MOST_AGAIN 4

/* The first version's size. */
enum { LEAST_OPTIONS_SIZE = offsetof(clmgk_plan_options, backward_parameters) };

clmgk_status mgk_plan_read_options(const clmgk_plan_options *options, clmgk_plan_options *read, clmgk_error *error)
{
    *read = (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    if (options == NULL)
        return CLMGK_OK;
    MGK_TRY(mgk_struct_read(options, "options", LEAST_OPTIONS_SIZE, read, sizeof(*read), error));
    if (clmgk_engine_name(read->engine) == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "options.engine: %d: expected a clmgk_engine",
                        (int)read->engine);
    return CLMGK_OK;
}

/* ---- programs ----------------------------------------------------------------------------------------------- */

static clmgk_status compile(clmgk_plan *plan, clmgk_error *error)
{
    const double start = mgk_now_ms();
    mgk_steps *lists[CLMGK_PASSES];
    size_t count = 0;
    for (int i = 0; i < CLMGK_PASSES; ++i)
        if (plan->pass[i] != NULL)
            lists[count++] = &plan->pass[i]->plan.steps;
    const clmgk_status status = mgk_steps_make(plan->context, lists, count, &plan->limits, &plan->info.origin, error);
    plan->info.compile_ms = mgk_now_ms() - start;
    return status;
}

/* Note of the first program that is not kept; programs live as long as the plan. */
static const char *cache_note(const clmgk_plan *plan)
{
    if (plan->context->keeper == CLMGK_KEEPER_NOBODY)
        return "no files are used: cache_dir or CLMGK_CACHE_DIR is empty, or neither HOME nor XDG_CACHE_HOME is a path";
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        const mgk_steps *const steps = plan->pass[i] != NULL ? &plan->pass[i]->plan.steps : NULL;
        for (size_t k = 0; steps != NULL && k < steps->count; ++k)
            if (steps->step[k].program->unsaved.message[0] != '\0')
                return steps->step[k].program->unsaved.message;
    }
    return "";
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

static clmgk_status print_parameters(const clmgk_plan *plan, mgk_compiled_pass *pass, clmgk_error *error)
{
    pass->parameters.allocator = &plan->context->allocator;
    mgk_tunables_print(&pass->plan.tunables, &pass->parameters);
    return pass->parameters.failed ? mgk_fail_memory(error, "a plan's parameters") : CLMGK_OK;
}

/* The first option that a compiler refused, in the plan's programs; NULL: none. */
static const char *refused_option(const clmgk_plan *plan)
{
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        const mgk_steps *const steps = plan->pass[i] != NULL ? &plan->pass[i]->plan.steps : NULL;
        for (size_t k = 0; steps != NULL && k < steps->count; ++k)
            if (steps->step[k].program != NULL && steps->step[k].program->refused != NULL)
                return steps->step[k].program->refused;
    }
    return NULL;
}

/* Appends facts of the forward pass's kernel to the engine's reason: its work-groups on a compute unit, an option that
 * the compiler refused, and why work-groups are smaller than they would be. */
static void explain_block(clmgk_plan *plan, const clmgk_error *narrowed)
{
    const mgk_pass_plan *const forward = &plan->pass[CLMGK_PASS_FORWARD]->plan;
    const mgk_block *const block = &forward->block;
    const char *const refused = refused_option(plan);
    mgk_text text = {.allocator = &plan->context->allocator};
    if (block->resident > 0) {
        const mgk_launch *const launch = &forward->steps.step[forward->steps.main].launch;
        const int64_t groups = (int64_t)(launch->global[0] / launch->local[0]);
        const int64_t units = plan->context->facts.info.compute_units;
        mgk_text_printf(&text, "; %" PRId64 " work-groups of %zu in %" PRId64 " waves, %" PRId64 " on a compute unit",
                        groups, block->threads, mgk_waves_count(block->resident * units, groups), block->resident);
        if (block->registers > 0)
            mgk_text_printf(&text, " with at most %d registers for a work-item", block->registers);
    }
    if (refused != NULL)
        mgk_text_printf(&text, "; the compiler refused %s: built without it", refused);
    if (narrowed->status != CLMGK_OK)
        mgk_text_printf(&text, "; smaller work-groups: %s", narrowed->message);
    const size_t used = strlen(plan->engine_reason);
    (void)snprintf(plan->engine_reason + used, sizeof(plan->engine_reason) - used, "%s",
                   text.data != NULL ? text.data : "");
    mgk_text_free(&text);
}

static clmgk_status describe(clmgk_plan *plan, clmgk_error *error)
{
    clmgk_plan_info *const info = &plan->info;
    info->keeper = plan->context->keeper;
    info->engine_reason = plan->engine_reason;
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        if (plan->pass[i] == NULL)
            continue;
        MGK_TRY(print_parameters(plan, plan->pass[i], error));
        const uint64_t workspace = mgk_steps_workspace_size(&plan->pass[i]->plan.steps);
        if (workspace > info->workspace_bytes)
            info->workspace_bytes = workspace;
    }
    const mgk_compiled_pass *const forward = plan->pass[CLMGK_PASS_FORWARD];
    const mgk_step *const kernel = &forward->plan.steps.step[forward->plan.steps.main];
    info->engine = forward->engine;
    info->precision = forward->plan.block.precision;
    info->tuning = forward->source;
    info->local_bytes = kernel->local_bytes;
    info->private_bytes = kernel->private_bytes;
    info->parameters = forward->parameters.data;
    info->options = kernel->options.data;
    info->kernel = kernel->name;
    info->driver_private_bytes = kernel->needs.private_bytes;

    const mgk_compiled_pass *const backward = plan->pass[CLMGK_PASS_BACKWARD];
    if (backward == NULL)
        return CLMGK_OK;
    const mgk_step *const keys = &backward->plan.steps.step[backward->plan.steps.main];
    info->backward_engine = backward->engine;
    if (backward->plan.block.precision > info->precision) /* the caller's parameters differ */
        info->precision = backward->plan.block.precision;
    info->backward_tuning = backward->source;
    info->backward_workspace_bytes = mgk_steps_workspace_size(&backward->plan.steps);
    info->backward_parameters = backward->parameters.data;
    info->backward_options = keys->options.data;
    info->backward_kernel = keys->name;
    info->backward_driver_private_bytes = keys->needs.private_bytes;
    return CLMGK_OK;
}

static clmgk_status choose_and_compile(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    plan->limits.narrowed = false;
    plan->info = (clmgk_plan_info){.origin = CLMGK_PROGRAM_MEMORY};
    MGK_TRY(mgk_plan_choose(plan, options, error));
    return compile(plan, error);
}

/* Repeats with smaller work-groups while a kernel does not fit. */
static clmgk_status choose_until_it_fits(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    clmgk_error narrowed = {.status = CLMGK_OK}, failure = narrowed;
    clmgk_status status = choose_and_compile(plan, options, &failure);
    for (int again = 0; status != CLMGK_OK && plan->limits.narrowed && again < MOST_AGAIN; ++again) {
        narrowed = failure;
        status = choose_and_compile(plan, options, &failure);
    }
    if (status == CLMGK_OK)
        explain_block(plan, &narrowed);
    else if (error != NULL)
        *error = failure;
    return status;
}

static bool is_tuned(const clmgk_plan *plan)
{
    bool tuned = false;
    for (int i = 0; i < CLMGK_PASSES; ++i)
        tuned = tuned || (plan->pass[i] != NULL && plan->pass[i]->source != CLMGK_TUNING_CLASS &&
                          plan->pass[i]->source != CLMGK_TUNING_CALLER);
    return tuned;
}

/* Takes the defaults if kernels don't compile or run with tuned values, for example after a driver's update. */
static clmgk_status make_passes(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    clmgk_error failure = {.status = CLMGK_OK};
    const clmgk_status status = choose_until_it_fits(plan, options, &failure);
    if (status != CLMGK_OK && status != CLMGK_ERROR_OUT_OF_HOST_MEMORY && is_tuned(plan)) {
        plan->untuned = true;
        return choose_until_it_fits(plan, options, error);
    }
    if (status != CLMGK_OK && error != NULL)
        *error = failure;
    return status;
}

static clmgk_status make_captures(clmgk_plan *plan, clmgk_error *error)
{
    mgk_mod_texts *const mods = &plan->mods;
    return mgk_count_captures(&plan->desc) > 0
               ? mgk_constants_make(plan->context, mods->capture, sizeof(mods->capture), &mods->captures, error)
               : CLMGK_OK;
}

clmgk_status mgk_plan_make(clmgk_context *context, const clmgk_attention_desc *resolved,
                           const clmgk_plan_options *options, mgk_attempt *attempt, clmgk_plan **out,
                           clmgk_error *error)
{
    clmgk_plan *plan = mgk_alloc(&context->allocator, 1, sizeof(*plan));
    if (plan == NULL)
        return mgk_fail_memory(error, "a plan");
    mgk_context_retain(context);
    mgk_plan_begin(plan, context, resolved);
    plan->attempt = *attempt;

    clmgk_status status;
    mgk_plan_list_arrays(&plan->desc, plan->array);
    MGK_TRY_GOTO(status, mgk_plan_read_texts(plan, error), fail);
    MGK_TRY_GOTO(status, make_captures(plan, error), fail);
    status = make_passes(plan, options, error);
    attempt->unit = plan->unit;
    if (status != CLMGK_OK)
        goto fail;
    MGK_TRY_GOTO(status, describe(plan, error), fail);
    *out = plan;
    return CLMGK_OK;
fail:
    clmgk_plan_release(plan);
    return status;
}

clmgk_status mgk_plan_load_in_cuda(clmgk_plan *plan, mgk_cuda *cuda, clmgk_error *error)
{
    if (mgk_count_captures(&plan->desc) > 0)
        MGK_TRY(mgk_constants_prepare_cuda(plan->context, plan->mods.capture, sizeof(plan->mods.capture),
                                           &plan->mods.captures, error));
    for (int i = 0; i < CLMGK_PASSES; ++i)
        if (plan->pass[i] != NULL)
            MGK_TRY(mgk_steps_prepare_cuda(cuda, &plan->pass[i]->plan.steps, error));
    return CLMGK_OK;
}

static void release(clmgk_plan *plan)
{
    if (plan == NULL)
        return;
    clmgk_context *const context = plan->context;
    mgk_plan_end(plan);
    mgk_free(&context->allocator, plan);
    clmgk_context_release(context);
}

const mgk_cuda_form *mgk_cuda_form_of(const clmgk_plan *plan)
{
    mgk_cuda_form *form = NULL;
    mgk_monitor_copy(&plan->context->monitor, (void *)&form, (const void *)&plan->cuda_form, sizeof(form));
    return form;
}

void clmgk_plan_release(clmgk_plan *plan)
{
    mgk_cuda_form *const form = plan != NULL ? plan->cuda_form : NULL;
    if (form != NULL) {
        release(form->plan);
        mgk_free(&plan->context->allocator, form);
    }
    release(plan);
}

clmgk_status clmgk_plan_get_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error)
{
    if (plan == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: NULL: expected a plan");
    MGK_TRY(mgk_struct_room(info, "info", MGK_SIZE_WITH(clmgk_plan_info, backward_driver_private_bytes), error));
    clmgk_plan_info found = plan->info;
    found.cache_note = cache_note(plan); /* programs that need a verdict are saved after the plan is made */
    mgk_struct_write(info, 0, &found, sizeof(found));
    return CLMGK_OK;
}

size_t clmgk_plan_workspace_size(const clmgk_plan *plan)
{
    return plan == NULL ? 0 : (size_t)plan->info.workspace_bytes;
}

/* ---- workspaces of calls ---------------------------------------------------------------------------------------- */

/* Raises `most` to the bytes that a call of any pass needs. */
static clmgk_status add_workspace(const clmgk_plan *plan, const clmgk_call_sizes *sizes, uint64_t *most,
                                  clmgk_error *error)
{
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        mgk_sized_call call;
        if (plan->pass[i] == NULL)
            continue;
        MGK_TRY(mgk_sized_plan(plan, (clmgk_pass)i, sizes, &call, error));
        const uint64_t own = mgk_steps_workspace_size(&call.pass.steps);
        *most = own > *most ? own : *most;
    }
    return CLMGK_OK;
}

clmgk_status clmgk_plan_call_workspace_size(const clmgk_plan *plan, const clmgk_call_sizes *sizes, size_t *bytes,
                                            clmgk_error *error)
{
    uint64_t most = 0;
    if (plan == NULL || sizes == NULL || bytes == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s",
                        plan == NULL    ? "plan"
                        : sizes == NULL ? "sizes"
                                        : "bytes",
                        plan == NULL    ? "a plan"
                        : sizes == NULL ? "the sizes of a call"
                                        : "room for a number");
    const mgk_cuda_form *const form = mgk_cuda_form_of(plan);
    MGK_TRY(add_workspace(plan, sizes, &most, error));
    if (form != NULL && form->plan != NULL)
        MGK_TRY(add_workspace(form->plan, sizes, &most, error));
    *bytes = (size_t)most;
    return CLMGK_OK;
}
