/* SPDX-License-Identifier: Apache-2.0 */
#include "random/random.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void note(rd_verdict *verdict, uint64_t bit, const th_message *message)
{
    const size_t used = strlen(verdict->text);
    verdict->wrong |= bit;
    snprintf(verdict->text + used, sizeof(verdict->text) - used, "    %s\n", message->text);
}

static void apply(const rd_fault *fault, th_problem *problem, th_name name)
{
    if (fault && fault->name == name && fault->when(&problem->desc))
        th_scale(problem, name, fault->factor);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static bool run(th_session *session, rd_case *c, th_pass pass, const clmgk_plan_options *options, rd_verdict *verdict)
{
    th_message message;
    if (th_try_pass(session, &c->problem, pass, options, &message))
        return true;
    note(verdict, RD_BROKEN, &message);
    return false;
}

/* f32's least normal number, below which devices may flush to 0, or half of the type's least number if that is larger:
 * the plain formula rounds to it, too. */
static double underflow_of(const rd_case *c, th_name name)
{
    const clmgk_dtype type = clmgk_ref_type_of(&c->problem.desc, (clmgk_array)name);
    return fmax(0.5 * clmgk_ref_limits_of(type).least, (double)FLT_MIN);
}

static bool check_output(const rd_case *c, th_name name, clmgk_ref_answer *answer, th_message *message)
{
    if (th_matches(&c->problem, name, answer, message))
        return true;
    th_widen_outputs(&c->problem, answer);
    (name == TH_O ? &answer->bound_o : &answer->bound_lse)->bound += underflow_of(c, name);
    return th_matches(&c->problem, name, answer, message);
}

static void check_forward(const rd_case *c, rd_verdict *verdict)
{
    TH_REF_ANSWER answer = th_solve(&c->problem);
    th_message message;
    for (th_name name = TH_O; name <= TH_LSE; name++)
        if (c->problem.array[name].used && !check_output(c, name, &answer, &message))
            note(verdict, UINT64_C(1) << name, &message);
    if (!th_matches_state(&c->problem, &message))
        note(verdict, UINT64_C(1) << TH_NEW_STATE_C, &message);
}

/* Compares every array with the exact one, and returns the bits of the wrong ones. */
static uint64_t compare_arrays(const rd_case *c, const clmgk_ref_arrays *exact, th_name first, rd_verdict *verdict)
{
    uint64_t wrong = 0;
    th_message message;
    for (unsigned which = 0; which < CLMGK_REF_ARRAYS; which++) {
        if ((exact->set >> which & 1U) == 0 || th_matches_array(&c->problem, first + which, exact, &message))
            continue;
        wrong |= UINT64_C(1) << (first + which);
        if (verdict)
            note(verdict, UINT64_C(1) << (first + which), &message);
    }
    return wrong;
}

static void check_arrays(const rd_case *c, clmgk_ref_arrays *exact, th_name first, rd_verdict *verdict)
{
    if (compare_arrays(c, exact, first, NULL) == 0 || !rd_is_determined(&c->problem))
        return;
    th_widen_arrays(&c->problem, first == TH_GRAD_Q, exact);
    for (unsigned which = 0; which < CLMGK_REF_ARRAYS; which++) {
        const double underflow = underflow_of(c, first + which);
        for (int64_t n = 0; exact->floor[which] && n < exact->count[which]; n++)
            exact->floor[which][n] += underflow;
    }
    compare_arrays(c, exact, first, verdict);
}

/* Values to which gradients are added. They have the gradients' own size, because the sum is rounded. */
static void fill_accumulated(th_problem *problem, const clmgk_ref_arrays *exact)
{
    uint64_t state = problem->seed;
    for (unsigned which = 0; which < CLMGK_REF_ARRAYS; which++) {
        const th_array *const array = &problem->array[TH_GRAD_Q + which];
        if ((exact->set >> which & 1U) == 0)
            continue;
        const double size = isfinite(exact->bound[which].max_abs) ? 0.0625 * exact->bound[which].max_abs : 0.0;
        for (size_t n = 0; n < array->count; n++)
            array->values[n] = size * th_normal(&state);
    }
}

static void run_backward(th_session *session, rd_case *c, const clmgk_plan_options *options, const rd_fault *fault,
                         rd_verdict *verdict)
{
    th_round_values(session, &c->problem, TH_BACKWARD); /* dO, dL: for the reference as the device holds them */
    TH_REF_ARRAYS exact = th_solve_gradients(&c->problem);
    fill_accumulated(&c->problem, &exact);
    if (run(session, c, TH_BACKWARD, options, verdict)) {
        for (th_name name = TH_GRAD_Q; name <= TH_GRAD_MIX_AFTER; name++)
            apply(fault, &c->problem, name);
        check_arrays(c, &exact, TH_GRAD_Q, verdict);
    }
}

static void run_statistics(th_session *session, rd_case *c, const clmgk_plan_options *options, rd_verdict *verdict)
{
    if (!run(session, c, TH_STATISTICS, options, verdict))
        return;
    TH_REF_ARRAYS exact = th_solve_statistics(&c->problem);
    check_arrays(c, &exact, TH_RESPONSIBILITIES, verdict);
}

/* The host's check of a page table refuses what is no page, and nothing else. */
static void check_table(const rd_case *c, rd_verdict *verdict)
{
    if (!c->problem.array[TH_PAGE_TABLE].used)
        return;
    th_message message;
    th_reference reference = th_reference_of(&c->problem);
    const clmgk_status status =
        clmgk_check_pages(&c->problem.desc, reference.integers[TH_PAGE_TABLE], reference.integers[TH_PAGE_OFFSETS],
                          reference.integers[TH_LAST_PAGE], reference.integers[TH_LENGTHS], NULL);
    if ((status == CLMGK_OK) != th_has_pages(&c->problem)) {
        (void)th_say(&message, "clmgk_check_pages: %s", clmgk_status_name(status));
        note(verdict, RD_BROKEN, &message);
    }
    th_reference_free(&reference);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* The case's engine, or the device's own if the device does not offer that one. The session's list lacks the matrix
 * engine, which is always offered. */
static clmgk_engine engine_of(const th_session *session, const rd_case *c)
{
    if (c->engine == CLMGK_ENGINE_MATRIX && !session->named)
        return c->engine;
    for (size_t n = 0; n < session->engines; n++)
        if (session->engine[n] == c->engine)
            return c->engine;
    return session->engine[0];
}

/* Plans refuse ranges of keys whose copies would need more memory than the arrays. Then there is one range. A plan may
 * be more exact than it must be; then the reference is, too. */
static bool has_plan(th_session *session, rd_case *c, const clmgk_plan_options *options, th_message *message)
{
    clmgk_plan *const plan = th_try_plan(session, &c->problem.desc, options, message);
    clmgk_plan_info info = {.struct_size = sizeof(info)};
    if (plan != NULL && clmgk_plan_get_info(plan, &info, NULL) == CLMGK_OK)
        c->desc.precision = c->problem.desc.precision = info.precision;
    clmgk_plan_release(plan);
    return plan != NULL;
}

static void use_one_range(char parameters[RD_PARAMETERS])
{
    char *const splits = strstr(parameters, "splits=");
    if (splits)
        splits[strlen("splits=")] = '1';
}

static bool make_options(th_session *session, rd_case *c, clmgk_plan_options *options, th_message *message)
{
    *options = (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    options->engine = engine_of(session, c);
    if (options->engine == c->engine) {
        options->parameters = c->parameters;
        options->backward_parameters = c->backward_parameters;
    }
    if (has_plan(session, c, options, message))
        return true;
    use_one_range(c->backward_parameters);
    if (has_plan(session, c, options, message))
        return true;
    use_one_range(c->parameters);
    return has_plan(session, c, options, message);
}

rd_verdict rd_run(th_session *session, rd_case *c, const rd_fault *fault)
{
    rd_verdict verdict = {0};
    clmgk_plan_options options;
    th_message message;
    session->cases++;
    check_table(c, &verdict);
    if (!make_options(session, c, &options, &message)) {
        note(&verdict, RD_BROKEN, &message);
        return verdict;
    }
    if (!run(session, c, TH_FORWARD, &options, &verdict))
        return verdict;
    if (c->desc.gradients != 0)
        run_backward(session, c, &options, fault, &verdict);
    if (c->desc.statistics != 0)
        run_statistics(session, c, &options, &verdict);
    for (th_name name = TH_O; name <= TH_LSE; name++)
        apply(fault, &c->problem, name);
    check_forward(c, &verdict);
    return verdict;
}
