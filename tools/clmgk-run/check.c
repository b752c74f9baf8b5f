/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The values as the device holds them, dense and in axis order. */
static tool_exit gather(const tool_problem *problem, const run_execution *execution, clmgk_array array, double *values,
                        tool_error *error)
{
    const size_t size = clmgk_ref_dtype_size(clmgk_array_dtype(&problem->desc, array));
    const void *elements = NULL;
    TOOL_TRY(run_map(execution, array, tool_buffer_bytes(tool_element_count(problem, array), size), &elements, error));
    tool_gather(problem, array, elements, values);
    run_unmap(execution, array, elements);
    return TOOL_DONE;
}

/* Arrays of double, and those of integers as the host has them; NULL where the call has none. */
typedef struct check_values {
    void *of[CLMGK_ARRAYS]; /* those of combine are never there */
} check_values;

static bool is_integers(clmgk_array array)
{
    return clmgk_array_get_info(array)->element == CLMGK_ELEMENT_I32;
}

static tool_exit gather_all(const tool_problem *problem, const run_execution *execution, check_values *values,
                            tool_error *error)
{
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (is_integers(array))
            values->of[array] = problem->slot[array].host;
        if (!problem->slot[array].used || is_integers(array))
            continue;
        values->of[array] = malloc(tool_buffer_bytes(problem->slot[array].count, sizeof(double)));
        TOOL_TRY(tool_check_memory(values->of[array], "--check", error));
        TOOL_TRY(gather(problem, execution, array, values->of[array], error));
    }
    return TOOL_DONE;
}

/* Values as the device has them, and exact ones, in axis order. */
typedef struct check_pair {
    const double *found, *exact;
} check_pair;

static bool is_nan(check_pair values, size_t n)
{
    return isnan(values.found[n]);
}

static bool is_unexpectedly_infinite(check_pair values, size_t n)
{
    return isinf(values.found[n]) && values.found[n] != values.exact[n];
}

/* The file is dense: its index follows from where the element lies. */
static run_found find(const tool_problem *problem, clmgk_array array, check_pair values,
                      bool (*wanted)(check_pair values, size_t n))
{
    const tool_slot *const slot = &problem->slot[array];
    const clmgk_shape shape = clmgk_array_shape(&problem->desc, array);
    run_found found = {.count = 0};
    size_t first = SIZE_MAX;
    for (size_t n = 0; n < slot->count; n++) {
        if (!wanted(values, n))
            continue;
        const size_t offset = tool_offset_of(&shape, n);
        first = offset < first ? offset : first;
        found.count++;
    }
    for (int axis = slot->axes - 1; found.count > 0 && axis >= 0; axis--) {
        found.first[axis] = (int64_t)first % slot->shape[axis];
        first /= (size_t)slot->shape[axis];
    }
    return found;
}

static void note(const tool_problem *problem, clmgk_array array, check_pair values, clmgk_ref_error worst,
                 double max_abs, run_check_result *result)
{
    result->checked[array] = true;
    result->worst[array] = worst;
    result->max_abs[array] = max_abs;
    result->axes[array] = problem->slot[array].axes;
    result->nan[array] = find(problem, array, values, is_nan);
    result->infinite[array] = find(problem, array, values, is_unexpectedly_infinite);
}

/* Keeps the first of several messages; empty ones say that all is well. */
static void complain(run_check_result *result, const char *message)
{
    if (message[0] == '\0' || !result->ok)
        return;
    result->ok = false;
    snprintf(result->message, sizeof result->message, "%s", message);
}

static tool_exit check_forward(const tool_problem *problem, const clmgk_ref_problem *reference,
                               const check_values *values, run_check_result *result, tool_error *error)
{
    const clmgk_attention_desc *const d = &problem->desc;
    clmgk_ref_answer answer = {0};
    if (!clmgk_ref_solve(reference, d->batch * d->heads * d->length, NULL, &answer))
        return tool_fail_memory(error, "--check");
    const clmgk_ref_verdict verdict = clmgk_ref_check(&answer, values->of[CLMGK_ARRAY_O], values->of[CLMGK_ARRAY_LSE]);
    note(problem, CLMGK_ARRAY_O, (check_pair){values->of[CLMGK_ARRAY_O], answer.o},
         (clmgk_ref_error){verdict.error_o, answer.bound_o.bound}, answer.bound_o.max_abs, result);
    const clmgk_ref_answer *const logs = answer.before ? answer.before : &answer;
    if (values->of[CLMGK_ARRAY_LSE])
        note(problem, CLMGK_ARRAY_LSE, (check_pair){values->of[CLMGK_ARRAY_LSE], logs->lse},
             (clmgk_ref_error){verdict.error_lse, logs->bound_lse.bound}, logs->bound_lse.max_abs, result);
    for (int64_t n = 0; n < answer.rows; n++)
        result->lost_rows += answer.lost[n].is;
    complain(result, verdict.message);
    clmgk_ref_answer_free(&answer);
    return TOOL_DONE;
}

/* The gradients, or the statistics. */
static tool_exit check_set(const tool_problem *problem, const clmgk_ref_problem *reference, const check_values *values,
                           bool gradients, run_check_result *result, tool_error *error)
{
    clmgk_ref_arrays exact = {0};
    char message[sizeof result->message] = "";
    const int count = gradients ? (int)CLMGK_REF_GRADIENTS : (int)CLMGK_REF_STATISTICS;
    if (!(gradients ? clmgk_ref_solve_gradients(reference, problem->desc.gradients, &exact)
                    : clmgk_ref_solve_statistics(reference, problem->desc.statistics, &exact)))
        return tool_fail_memory(error, "--check");
    for (int n = 0; n < count; n++) {
        const clmgk_array array = (gradients ? CLMGK_ARRAY_GRAD_Q : CLMGK_ARRAY_RESPONSIBILITIES) + n;
        const double *const found = values->of[array];
        if (!found)
            continue;
        const clmgk_ref_error worst = clmgk_ref_check_array(&exact, n, found, message, sizeof message);
        note(problem, array, (check_pair){found, exact.exact[n]}, worst, exact.bound[n].max_abs, result);
        complain(result, message);
    }
    clmgk_ref_arrays_free(&exact);
    return TOOL_DONE;
}

/* C and z of the new state, in the units of the exact ones. */
static tool_exit check_state(const tool_problem *problem, const clmgk_ref_problem *reference,
                             const check_values *values, run_check_result *result, tool_error *error)
{
    static const clmgk_array arrays[] = {
        [CLMGK_REF_STATE_C] = CLMGK_ARRAY_NEW_STATE_C, [CLMGK_REF_STATE_Z] = CLMGK_ARRAY_NEW_STATE_Z};
    clmgk_ref_arrays exact = {0};
    char message[sizeof result->message] = "";
    if (!clmgk_ref_solve_state(reference, &exact))
        return tool_fail_memory(error, "--check");
    for (size_t n = 0; n < TOOL_COUNT(arrays); n++) {
        double *const found = values->of[arrays[n]];
        clmgk_ref_rescale_state(&exact, (clmgk_ref_state)n, values->of[CLMGK_ARRAY_NEW_STATE_M], found);
        const clmgk_ref_error worst = clmgk_ref_check_array(&exact, (int)n, found, message, sizeof message);
        note(problem, arrays[n], (check_pair){found, exact.exact[n]}, worst, exact.bound[n].max_abs, result);
        complain(result, message);
    }
    clmgk_ref_arrays_free(&exact);
    return TOOL_DONE;
}

tool_exit run_check(const tool_problem *problem, const run_execution *execution, run_check_result *result,
                    tool_error *error)
{
    check_values values = {{0}};
    clmgk_ref_gathered gathered = {.problem = {.seed = 0}};
    tool_exit status = TOOL_DONE;
    *result = (run_check_result){.ok = true};
    TOOL_TRY_GOTO(status, gather_all(problem, execution, &values, error), done);
    clmgk_ref_problem reference = {.desc = problem->desc, .seed = problem->seed};
    reference.desc.precision = execution->info.precision;
    clmgk_ref_set_arrays(&reference, values.of);
    if (!clmgk_ref_gather(&reference, &gathered))
        TOOL_TRY_GOTO(status, tool_fail_memory(error, "--check"), done);
    reference = gathered.problem;
    result->reads_outside = clmgk_ref_reads_outside(&reference);
    if (result->reads_outside < 0)
        TOOL_TRY_GOTO(status, tool_fail_memory(error, "--check"), done);
    TOOL_TRY_GOTO(status, check_forward(problem, &reference, &values, result, error), done);
    if (problem->desc.use_new_state)
        TOOL_TRY_GOTO(status, check_state(problem, &reference, &values, result, error), done);
    if (problem->desc.gradients != 0)
        TOOL_TRY_GOTO(status, check_set(problem, &reference, &values, true, result, error), done);
    if (problem->desc.statistics != 0)
        TOOL_TRY_GOTO(status, check_set(problem, &reference, &values, false, result, error), done);
done:
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (!is_integers(array))
            free(values.of[array]);
    }
    clmgk_ref_gathered_free(&gathered);
    return status;
}
