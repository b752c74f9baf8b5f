/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verdicts on programs. An assembler may miscompile one configuration of a kernel and not the next. So some programs
 * (MGK_EDITED_PTX) are not used until they have given the results of another engine. A small problem with all arrays of
 * the plan runs in the plan's own programs.
 */
#include "attention/trial.h"

#include <stdio.h>

/* ---- the trial's plans ------------------------------------------------------------------------------------------ */

/* Takes the plan's engine and parameters, so that the programs are the same. */
static clmgk_status make_own(const clmgk_plan *plan, const clmgk_attention_desc *small, clmgk_plan **own,
                             clmgk_error *error)
{
    mgk_text parameters[CLMGK_PASSES] = {{0}};
    mgk_attempt attempt = {.newest_unit = plan->attempt.newest_unit, .dynamic_local = plan->attempt.dynamic_local};
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_status status = CLMGK_OK;
    options.engine = plan->pass[CLMGK_PASS_FORWARD]->engine;
    for (int i = 0; i < CLMGK_PASS_COMBINE; ++i) {
        parameters[i].allocator = &plan->context->allocator;
        if (plan->pass[i] != NULL)
            mgk_trial_parameters(plan, (clmgk_pass)i, &parameters[i]);
        if (parameters[i].failed)
            status = mgk_fail_memory(error, "a plan's parameters");
        attempt.parameters[i] = parameters[i].data;
    }
    if (status == CLMGK_OK)
        status = mgk_plan_make(plan->context, small, &options, &attempt, own, error);
    for (int i = 0; i < CLMGK_PASS_COMBINE; ++i)
        mgk_text_free(&parameters[i]);
    return status;
}

/* Takes the best of the other engines, without measured values. */
static clmgk_status make_other(const clmgk_plan *plan, const clmgk_attention_desc *small, clmgk_plan **other,
                               clmgk_error *error)
{
    mgk_attempt attempt = {.newest_unit = plan->attempt.newest_unit,
                           .left_out = mgk_engine_of(plan->pass[CLMGK_PASS_FORWARD]->engine),
                           .parameters = {"", "", "", ""}};
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    return mgk_plan_make(plan->context, small, &options, &attempt, other, error);
}

static bool has_program(const clmgk_plan *plan, int pass, const mgk_program *program)
{
    const mgk_steps *const steps = plan->pass[pass] != NULL ? &plan->pass[pass]->plan.steps : NULL;
    for (size_t i = 0; steps != NULL && i < steps->count; ++i)
        if (steps->step[i].program == program)
            return true;
    return false;
}

/* First program of a pass that needs a verdict and that `trial` (NULL: any) lacks; NULL: there is none. */
static mgk_program *unverified_of(const clmgk_plan *plan, int pass, const clmgk_plan *trial)
{
    const mgk_steps *const steps = plan->pass[pass] != NULL ? &plan->pass[pass]->plan.steps : NULL;
    for (size_t i = 0; steps != NULL && i < steps->count; ++i) {
        mgk_program *const program = steps->step[i].program;
        if (program != NULL && mgk_program_is_unverified(program) &&
            (trial == NULL || !has_program(trial, pass, program)))
            return program;
    }
    return NULL;
}

static bool needs_verdict(const clmgk_plan *plan)
{
    bool needs = false;
    for (int pass = 0; pass < CLMGK_PASSES; ++pass)
        needs = needs || unverified_of(plan, pass, NULL) != NULL;
    return needs;
}

/* ---- the verdict ------------------------------------------------------------------------------------------------ */

static void judge_pass(const clmgk_plan *plan, int pass, const char *wrong)
{
    for (mgk_program *program; (program = unverified_of(plan, pass, NULL)) != NULL;)
        mgk_program_judge(program, wrong);
}

/* Judges the programs of the passes up to the first wrong one, whose results are later passes' inputs. */
static clmgk_status judge(const clmgk_plan *plan, const mgk_trial *trial, clmgk_error *error)
{
    for (int pass = 0; pass < CLMGK_PASSES; ++pass) {
        char reason[CLMGK_ERROR_MESSAGE_SIZE];
        const bool wrong = trial->wrong[pass] != CLMGK_ARRAYS;
        if (wrong)
            (void)snprintf(
                reason, sizeof(reason),
                "the %s pass gives wrong numbers here: %s of a small problem differs by %.3g from engine %s, "
                "expected at most %.3g",
                clmgk_pass_name((clmgk_pass)pass), clmgk_array_name(trial->wrong[pass]), trial->difference[pass],
                clmgk_engine_name(trial->other->pass[CLMGK_PASS_FORWARD]->engine), trial->limit[pass]);
        judge_pass(plan, pass, wrong ? reason : NULL);
        if (wrong)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s", reason);
    }
    return CLMGK_OK;
}

/* `usual`: a plan of the same problem with which to compare; NULL: one on another engine. */
static clmgk_status make_trial(const clmgk_plan *plan, const clmgk_plan *usual, mgk_trial *trial, clmgk_error *error)
{
    clmgk_attention_desc small;
    MGK_TRY(mgk_trial_shrink(plan, &small, error));
    MGK_TRY(make_own(plan, &small, &trial->own, error));
    for (int pass = 0; pass < CLMGK_PASSES; ++pass)
        if (unverified_of(plan, pass, trial->own) != NULL)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "a small problem has other programs of the %s pass",
                            clmgk_pass_name((clmgk_pass)pass));
    return usual != NULL ? make_own(usual, &small, &trial->other, error)
                         : make_other(plan, &small, &trial->other, error);
}

/* Fails if a program of the plan is wrong. */
static clmgk_status check(const clmgk_plan *plan, clmgk_error *error)
{
    for (int pass = 0; pass < CLMGK_PASSES; ++pass) {
        const mgk_steps *const steps = plan->pass[pass] != NULL ? &plan->pass[pass]->plan.steps : NULL;
        for (size_t i = 0; steps != NULL && i < steps->count; ++i)
            if (steps->step[i].program != NULL)
                MGK_TRY(mgk_program_check(steps->step[i].program, error));
    }
    return CLMGK_OK;
}

static clmgk_status verify(const clmgk_plan *plan, const clmgk_plan *usual, mgk_cuda *cuda, clmgk_error *error)
{
    mgk_trial trial = {.own = NULL};
    clmgk_error reason = {.status = CLMGK_OK};
    clmgk_status status = make_trial(plan, usual, &trial, &reason);
    if (status == CLMGK_OK && cuda != NULL)
        status = mgk_plan_load_in_cuda(trial.own, cuda, &reason);
    if (status == CLMGK_OK)
        status = mgk_trial_run(&trial, cuda, &reason);
    if (status == CLMGK_OK)
        status = judge(plan, &trial, error);
    else
        (void)mgk_fail_code(error, status, reason.opencl_code, "its programs could not be verified: %s",
                            reason.message);
    clmgk_plan_release(trial.own);
    clmgk_plan_release(trial.other);
    return status;
}

/* Another thread may end its trial of the same programs at any time, so their verdicts are read last. */
clmgk_status mgk_plan_verify(clmgk_plan *plan, clmgk_error *error)
{
    return mgk_plan_verify_in_cuda(plan, NULL, NULL, error);
}

clmgk_status mgk_plan_verify_in_cuda(const clmgk_plan *plan, const clmgk_plan *usual, mgk_cuda *cuda,
                                     clmgk_error *error)
{
    if (needs_verdict(plan))
        MGK_TRY(verify(plan, usual, cuda, error));
    return check(plan, error);
}
