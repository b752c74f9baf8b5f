/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's form for CUDA. A launch by CUDA's driver may give a work-group several times the local memory that OpenCL
 * has. So plans on wgmma, with the default parameters, have a second plan of their problem, whose blocks fill that
 * memory (MGK_DYNAMIC_LOCAL). It is compared with the first before use. Where anything fails, CUDA launches the
 * kernels of the first. To measure other blocks, CLMGK_CUDA_PARAMETERS has parameters of its forward pass.
 */
#include "attention/plan.h"

#include <inttypes.h>
#include <stdio.h>

static void destroy(const clmgk_plan *plan, mgk_cuda_form *form)
{
    if (form != NULL)
        clmgk_plan_release(form->plan);
    mgk_free(&plan->context->allocator, form);
}

/* Whether the plan's forward pass has an edited program: it runs on wgmma. */
static bool is_edited(const clmgk_plan *plan)
{
    const mgk_steps *const steps = &plan->pass[CLMGK_PASS_FORWARD]->plan.steps;
    bool edited = false;
    for (size_t i = 0; i < steps->count; ++i)
        edited = edited || (steps->step[i].program != NULL && mgk_program_is_edited(steps->step[i].program));
    return edited;
}

/* Parameters of the caller and measured ones stay. */
static bool may_differ(const clmgk_plan *plan)
{
    bool may = is_edited(plan);
    for (int pass = 0; pass < CLMGK_PASS_COMBINE; ++pass)
        may = may && (plan->pass[pass] == NULL || plan->pass[pass]->source == CLMGK_TUNING_CLASS);
    return may;
}

static bool is_dynamic(const clmgk_plan *plan)
{
    for (int pass = 0; pass < CLMGK_PASSES; ++pass) {
        const mgk_steps *const steps = plan->pass[pass] != NULL ? &plan->pass[pass]->plan.steps : NULL;
        for (size_t i = 0; steps != NULL && i < steps->count; ++i)
            if (steps->step[i].dynamic_local > 0)
                return true;
    }
    return false;
}

static clmgk_status check(clmgk_plan *form, const clmgk_plan *plan, mgk_cuda *cuda, clmgk_error *error)
{
    if (form->info.workspace_bytes > plan->info.workspace_bytes) /* callers know the plan's */
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "a workspace of %" PRIu64 " bytes, the plan's has %" PRIu64,
                        form->info.workspace_bytes, plan->info.workspace_bytes);
    MGK_TRY(mgk_plan_verify_in_cuda(form, plan, cuda, error));
    return mgk_plan_load_in_cuda(form, cuda, error);
}

/* *made: NULL if the plan's own blocks are those with more memory, too. */
static clmgk_status make(const clmgk_plan *plan, uint64_t most, mgk_cuda *cuda, clmgk_plan **made, clmgk_error *error)
{
    const char *const forward = mgk_environment("CLMGK_CUDA_PARAMETERS");
    mgk_attempt attempt = {.newest_unit = plan->attempt.newest_unit,
                           .parameters = {forward != NULL ? forward : "", "", ""},
                           .dynamic_local = most};
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan *form = NULL;
    MGK_TRY(mgk_plan_make(plan->context, &plan->desc, &options, &attempt, &form, error));
    const bool differs = is_dynamic(form);
    const clmgk_status status = differs ? check(form, plan, cuda, error) : CLMGK_OK;
    if (differs && status == CLMGK_OK)
        *made = form;
    else
        clmgk_plan_release(form);
    return status;
}

static clmgk_status fill(const clmgk_plan *plan, mgk_cuda *cuda, mgk_cuda_form *form, clmgk_error *error)
{
    clmgk_error failure = {.status = CLMGK_OK};
    uint64_t most = 0;
    clmgk_status status = may_differ(plan) ? mgk_cuda_most_local(cuda, &most, &failure) : CLMGK_OK;
    if (status == CLMGK_OK && most > plan->context->facts.info.local_memory_bytes)
        status = make(plan, most, cuda, &form->plan, &failure);
    if (status == CLMGK_ERROR_OUT_OF_HOST_MEMORY) {
        if (error != NULL)
            *error = failure;
        return status;
    }
    (void)snprintf(form->reason, sizeof(form->reason), "%s%s%s",
                   form->plan != NULL ? form->plan->engine_reason : plan->engine_reason,
                   status != CLMGK_OK ? "; no more local memory than in OpenCL: " : "", failure.message);
    return CLMGK_OK;
}

clmgk_status mgk_cuda_form_make(clmgk_plan *plan, mgk_cuda *cuda, clmgk_plan **launched, clmgk_error *error)
{
    clmgk_context *const context = plan->context;
    mgk_cuda_form *made = NULL;
    const mgk_cuda_form *form = mgk_cuda_form_of(plan);
    if (form == NULL) {
        made = mgk_alloc(&context->allocator, 1, sizeof(*made));
        if (made == NULL)
            return mgk_fail_memory(error, "a plan's form for CUDA");
        const clmgk_status status = fill(plan, cuda, made, error);
        if (status != CLMGK_OK) {
            destroy(plan, made);
            return status;
        }
        pthread_mutex_lock(&context->monitor.mutex);
        if (plan->cuda_form == NULL)
            plan->cuda_form = made;
        form = plan->cuda_form;
        pthread_mutex_unlock(&context->monitor.mutex);
        if (form != made) /* another thread was faster */
            destroy(plan, made);
    }
    *launched = form->plan != NULL ? form->plan : plan;
    return CLMGK_OK;
}
