/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

static double *make_doubles(size_t count)
{
    return malloc(tool_buffer_bytes(count, sizeof(double)));
}

/* An array that has strides: the axes of the reference, [batch, heads, components, tokens, width], and where its
 * elements lie. */
typedef struct array_axes {
    int64_t heads, components, tokens, width;
    const clmgk_layout *layout;
} array_axes;

/* False: the array is dense. */
static bool axes_of(const clmgk_attention_desc *d, run_array array, array_axes *axes)
{
    const bool mixed = tool_is_mixed(d->variant);
    const int64_t q_heads = mixed ? d->components : d->heads;
    const int64_t k_heads = mixed ? d->components : d->kv_heads;
    const int64_t components = d->variant == CLMGK_VARIANT_MGK ? d->components : 1;
    const struct {
        run_array array;
        array_axes axes;
    } strided[] = {
        {RUN_Q, {q_heads, 1, d->length, d->head_size, &d->q}},
        {RUN_K, {k_heads, components, d->length_k, d->head_size, &d->k}},
        {RUN_V, {d->kv_heads, 1, d->length_k, d->value_size, &d->v}},
        {RUN_O, {d->heads, 1, d->length, d->value_size, &d->o}},
        {RUN_GRAD_O, {d->heads, 1, d->length, d->value_size, &d->grad_o}},
        {RUN_GRAD_Q, {q_heads, 1, d->length, d->head_size, &d->grad_q}},
        {RUN_GRAD_K, {k_heads, components, d->length_k, d->head_size, &d->grad_k}},
        {RUN_GRAD_V, {d->kv_heads, 1, d->length_k, d->value_size, &d->grad_v}},
    };
    for (size_t i = 0; i < TOOL_COUNT(strided); i++) {
        if (strided[i].array == array) {
            *axes = strided[i].axes;
            return true;
        }
    }
    return false;
}

static void load_strided(clmgk_dtype dtype, const char *elements, int64_t batch, const array_axes *axes, double *values)
{
    const clmgk_layout *const layout = axes->layout;
    const size_t size = clmgk_ref_dtype_size(dtype);
    double *next = values;
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t h = 0; h < axes->heads; h++) {
            for (int64_t r = 0; r < axes->components; r++) {
                for (int64_t n = 0; n < axes->tokens; n++, next += axes->width) {
                    const int64_t at = b * layout->batch + h * layout->head + r * layout->component + n * layout->token;
                    clmgk_ref_load(dtype, elements + (size_t)at * size, (size_t)axes->width, next);
                }
            }
        }
    }
}

/* The values that the device holds, dense and in axis order. */
static tool_exit gather(const run_problem *problem, const run_execution *execution, run_array array, double *values,
                        tool_error *error)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const clmgk_dtype dtype = run_dtype(desc, array);
    const size_t count = problem->slot[array].count;
    const void *elements = NULL;
    array_axes axes;
    TOOL_TRY(run_map(execution, array, tool_buffer_bytes(count, clmgk_ref_dtype_size(dtype)), &elements, error));
    if (axes_of(desc, array, &axes))
        load_strided(dtype, elements, desc->batch, &axes, values);
    else
        clmgk_ref_load(dtype, elements, count, values);
    run_unmap(execution, array, elements);
    return TOOL_DONE;
}

/* The values of every floating-point array of the call; NULL where it has none. */
typedef struct check_values {
    double *of[RUN_FILES];
} check_values;

static bool is_integer(run_array array)
{
    return array == RUN_LENGTHS || array == RUN_LENGTHS_Q || array == RUN_OFFSETS || array == RUN_OFFSETS_K;
}

static tool_exit gather_all(const run_problem *problem, const run_execution *execution, check_values *values,
                            tool_error *error)
{
    for (run_array array = 0; array < RUN_FILES; array++) {
        if (!problem->slot[array].used || is_integer(array))
            continue;
        values->of[array] = make_doubles(problem->slot[array].count);
        if (!values->of[array])
            return tool_fail_memory(error, "--check");
        TOOL_TRY(gather(problem, execution, array, values->of[array], error));
    }
    return TOOL_DONE;
}

static clmgk_ref_problem make_reference(const run_problem *problem, const check_values *values)
{
    return (clmgk_ref_problem){.desc = problem->desc,
                               .q = values->of[RUN_Q],
                               .k = values->of[RUN_K],
                               .v = values->of[RUN_V],
                               .prior = values->of[RUN_PRIOR],
                               .variance = values->of[RUN_VARIANCE],
                               .shift = values->of[RUN_SHIFT],
                               .lengths = problem->slot[RUN_LENGTHS].host,
                               .lengths_q = problem->slot[RUN_LENGTHS_Q].host,
                               .offsets = problem->slot[RUN_OFFSETS].host,
                               .offsets_k = problem->slot[RUN_OFFSETS_K].host,
                               .bias = values->of[RUN_BIAS],
                               .slopes = values->of[RUN_SLOPES],
                               .sinks = values->of[RUN_SINKS],
                               .mix = values->of[RUN_MIX],
                               .mix_weight = values->of[RUN_MIX_WEIGHT],
                               .mix_offset = values->of[RUN_MIX_OFFSET],
                               .noise = values->of[RUN_NOISE],
                               .seed = problem->seed,
                               .grad_o = values->of[RUN_GRAD_O],
                               .grad_lse = values->of[RUN_GRAD_LSE]};
}

/* ---- the three passes --------------------------------------------------------------------------------------- */

static void note(run_check_result *result, run_array array, clmgk_ref_error worst, double max_abs)
{
    result->checked[array] = true;
    result->worst[array] = worst;
    result->max_abs[array] = max_abs;
}

/* Keeps the first of several messages; empty ones say that all is well. */
static void complain(run_check_result *result, const char *message)
{
    if (message[0] == '\0' || !result->ok)
        return;
    result->ok = false;
    snprintf(result->message, sizeof result->message, "%s", message);
}

static tool_exit check_forward(const run_problem *problem, const clmgk_ref_problem *reference,
                               const check_values *values, run_check_result *result, tool_error *error)
{
    clmgk_ref_answer answer = {0};
    if (!clmgk_ref_solve(reference, (int64_t)problem->slot[RUN_LSE].count, NULL, &answer))
        return tool_fail_memory(error, "--check");
    const clmgk_ref_verdict verdict = clmgk_ref_check(&answer, values->of[RUN_O], values->of[RUN_LSE]);
    note(result, RUN_O, (clmgk_ref_error){verdict.error_o, answer.bound_o.bound}, answer.bound_o.max_abs);
    note(result, RUN_LSE, (clmgk_ref_error){verdict.error_lse, answer.bound_lse.bound}, answer.bound_lse.max_abs);
    complain(result, verdict.message);
    clmgk_ref_answer_free(&answer);
    return TOOL_DONE;
}

static tool_exit check_backward(const run_problem *problem, const clmgk_ref_problem *reference,
                                const check_values *values, run_check_result *result, tool_error *error)
{
    clmgk_ref_gradients gradients = {0};
    char message[sizeof result->message] = "";
    if (problem->desc.gradients == 0)
        return TOOL_DONE;
    if (!clmgk_ref_solve_gradients(reference, problem->desc.gradients, &gradients))
        return tool_fail_memory(error, "--check");
    for (int n = 0; n < RUN_GRADIENTS; n++) {
        const run_array array = RUN_GRAD_Q + n;
        if (!values->of[array])
            continue;
        const clmgk_ref_error worst =
            clmgk_ref_check_gradient(&gradients, (clmgk_ref_gradient)n, values->of[array], message, sizeof message);
        note(result, array, worst, gradients.bound[n].max_abs);
        complain(result, message);
    }
    clmgk_ref_gradients_free(&gradients);
    return TOOL_DONE;
}

static tool_exit check_statistics(const run_problem *problem, const clmgk_ref_problem *reference,
                                  const check_values *values, run_check_result *result, tool_error *error)
{
    clmgk_ref_statistics statistics = {0};
    char message[sizeof result->message] = "";
    if (problem->desc.statistics == 0)
        return TOOL_DONE;
    if (!clmgk_ref_solve_statistics(reference, problem->desc.statistics, &statistics))
        return tool_fail_memory(error, "--check");
    for (int n = 0; n < RUN_STATISTICS; n++) {
        const run_array array = RUN_RESPONSIBILITIES + n;
        if (!values->of[array])
            continue;
        const clmgk_ref_error worst =
            clmgk_ref_check_statistic(&statistics, (clmgk_ref_statistic)n, values->of[array], message, sizeof message);
        note(result, array, worst, statistics.bound[n].max_abs);
        complain(result, message);
    }
    clmgk_ref_statistics_free(&statistics);
    return TOOL_DONE;
}

tool_exit run_check(const run_problem *problem, const run_execution *execution, run_check_result *result,
                    tool_error *error)
{
    check_values values = {{0}};
    tool_exit status = TOOL_DONE;
    *result = (run_check_result){.ok = true};
    TOOL_TRY_GOTO(status, gather_all(problem, execution, &values, error), done);
    const clmgk_ref_problem reference = make_reference(problem, &values);
    TOOL_TRY_GOTO(status, check_forward(problem, &reference, &values, result, error), done);
    TOOL_TRY_GOTO(status, check_backward(problem, &reference, &values, result, error), done);
    status = check_statistics(problem, &reference, &values, result, error);
done:
    for (size_t array = 0; array < RUN_FILES; array++)
        free(values.of[array]);
    return status;
}
