/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <stdlib.h>

static double *make_doubles(size_t count)
{
    return malloc(tool_buffer_bytes(count, sizeof(double)));
}

/* The axes of an array in the order of the reference: [batch, heads, components, tokens, width]. */
typedef struct array_axes {
    int64_t batch, heads, components, tokens, width;
} array_axes;

/* The values that the device holds, dense and in axis order. */
static tool_exit gather(const run_execution *execution, run_array array, clmgk_dtype dtype, array_axes axes,
                        const clmgk_layout *layout, double **values, tool_error *error)
{
    const size_t size = clmgk_ref_dtype_size(dtype);
    const size_t count = (size_t)(axes.batch * axes.heads * axes.components * axes.tokens * axes.width);
    const char *elements = NULL;
    *values = make_doubles(count);
    if (!*values)
        return tool_fail_memory(error, "--check");
    const void *mapped = NULL;
    TOOL_TRY(run_map(execution, array, tool_buffer_bytes(count, size), &mapped, error));
    elements = mapped;
    double *next = *values;
    for (int64_t b = 0; b < axes.batch; b++) {
        for (int64_t h = 0; h < axes.heads; h++) {
            for (int64_t r = 0; r < axes.components; r++) {
                for (int64_t n = 0; n < axes.tokens; n++, next += axes.width) {
                    const int64_t at = b * layout->batch + h * layout->head + r * layout->component + n * layout->token;
                    clmgk_ref_load(dtype, elements + (size_t)at * size, (size_t)axes.width, next);
                }
            }
        }
    }
    run_unmap(execution, array, mapped);
    return TOOL_DONE;
}

static tool_exit widen(const float *values, size_t count, double **doubles, tool_error *error)
{
    if (!values)
        return TOOL_DONE;
    *doubles = make_doubles(count);
    if (!*doubles)
        return tool_fail_memory(error, "--check");
    clmgk_ref_load(CLMGK_DTYPE_F32, values, count, *doubles);
    return TOOL_DONE;
}

typedef struct check_arrays {
    double *q, *k, *v, *prior, *variance, *shift, *o, *lse;
} check_arrays;

static tool_exit gather_all(const run_problem *problem, const run_execution *execution, check_arrays *arrays,
                            tool_error *error)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const int64_t components = d->variant == CLMGK_VARIANT_MGK ? d->components : 1;
    const array_axes q = {d->batch, d->heads, 1, d->length, d->head_size};
    const array_axes k = {d->batch, d->kv_heads, components, d->length_k, d->head_size};
    const array_axes v = {d->batch, d->kv_heads, 1, d->length_k, d->value_size};
    const array_axes o = {d->batch, d->heads, 1, d->length, d->value_size};
    const array_axes lse = {d->batch, d->heads, 1, d->length, 1};
    TOOL_TRY(gather(execution, RUN_Q, d->dtype, q, &d->q, &arrays->q, error));
    TOOL_TRY(gather(execution, RUN_K, d->dtype, k, &d->k, &arrays->k, error));
    TOOL_TRY(gather(execution, RUN_V, d->dtype, v, &d->v, &arrays->v, error));
    TOOL_TRY(gather(execution, RUN_O, d->dtype, o, &d->o, &arrays->o, error));
    TOOL_TRY(gather(execution, RUN_LSE, CLMGK_DTYPE_F32, lse, &d->lse, &arrays->lse, error));
    TOOL_TRY(widen(problem->prior, run_count_prior(d), &arrays->prior, error));
    TOOL_TRY(widen(problem->variance, run_count_variance(d), &arrays->variance, error));
    return widen(problem->shift, run_count_shift(d), &arrays->shift, error);
}

static tool_exit compare(const run_problem *problem, const check_arrays *arrays, run_check_result *result,
                         tool_error *error)
{
    const clmgk_ref_problem reference = {.desc = problem->desc,
                                         .q = arrays->q,
                                         .k = arrays->k,
                                         .v = arrays->v,
                                         .prior = arrays->prior,
                                         .variance = arrays->variance,
                                         .shift = arrays->shift,
                                         .lengths = problem->lengths,
                                         .lengths_q = problem->lengths_q};
    clmgk_ref_answer answer = {0};
    if (!clmgk_ref_solve(&reference, (int64_t)run_count_lse(&problem->desc), NULL, &answer))
        return tool_fail_memory(error, "--check");
    result->bound_o = answer.bound_o;
    result->bound_lse = answer.bound_lse;
    result->verdict = clmgk_ref_check(&answer, arrays->o, arrays->lse);
    clmgk_ref_answer_free(&answer);
    return TOOL_DONE;
}

tool_exit run_check(const run_problem *problem, const run_execution *execution, run_check_result *result,
                    tool_error *error)
{
    check_arrays arrays = {0};
    tool_exit status = gather_all(problem, execution, &arrays, error);
    if (status == TOOL_DONE)
        status = compare(problem, &arrays, result, error);
    double *const all[] = {arrays.q,        arrays.k,     arrays.v, arrays.prior,
                           arrays.variance, arrays.shift, arrays.o, arrays.lse};
    for (size_t i = 0; i < TOOL_COUNT(all); i++)
        free(all[i]);
    return status;
}
