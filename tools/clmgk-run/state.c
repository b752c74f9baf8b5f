/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool run_is_new_state(clmgk_array array)
{
    return array == CLMGK_ARRAY_NEW_STATE_C || array == CLMGK_ARRAY_NEW_STATE_Z;
}

/* A copy of what the device holds; of an array that the state has not: NULL. */
static tool_exit copy(const tool_problem *problem, const run_execution *execution, clmgk_array array, float **values,
                      tool_error *error)
{
    const size_t bytes = tool_buffer_bytes(problem->slot[array].count, sizeof(float));
    const void *elements = NULL;
    *values = NULL;
    if (!problem->slot[array].used)
        return TOOL_DONE;
    *values = malloc(bytes);
    TOOL_TRY(tool_check_memory(*values, "the state", error));
    TOOL_TRY(run_map(execution, array, bytes, &elements, error));
    memcpy(*values, elements, bytes);
    run_unmap(execution, array, elements);
    return TOOL_DONE;
}

/* Multiplies by e^m. False: a number becomes too large for float32, or all that are not 0 smaller than `least`. */
static bool scale(float *values, size_t count, double m, double least)
{
    double largest = 0.0;
    bool any = false;
    for (size_t n = 0; n < count; n++) {
        const double value = exp(m) * (double)values[n];
        if (values[n] == 0.0F || !isfinite(values[n]))
            continue;
        any = true;
        largest = fmax(largest, fabs(value));
        values[n] = (float)value;
    }
    return !any || isnan(m) || (largest <= (double)FLT_MAX && largest >= least);
}

/* Products of z and features are divided by: a z that vanishes is no state. */
static tool_exit scale_all(const tool_problem *problem, clmgk_array array, const float *m, float *values,
                           tool_error *error)
{
    const size_t scales = problem->slot[CLMGK_ARRAY_NEW_STATE_M].count;
    const size_t width = scales > 0 ? problem->slot[array].count / scales : 0;
    const double least = array == CLMGK_ARRAY_NEW_STATE_Z ? (double)FLT_MIN : 0.0;
    for (size_t n = 0; n < scales; n++) {
        if (!scale(values + n * width, width, (double)m[n], least))
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s: the state does not fit float32: part %zu of its numbers has the factor e^%g",
                             tool_array_option(array), n, (double)m[n]);
    }
    return TOOL_DONE;
}

tool_exit run_true_state(const tool_problem *problem, const run_execution *execution, clmgk_array array, float **values,
                         tool_error *error)
{
    float *m = NULL;
    tool_exit status = copy(problem, execution, array, values, error);
    if (status == TOOL_DONE)
        status = copy(problem, execution, CLMGK_ARRAY_NEW_STATE_M, &m, error);
    if (status == TOOL_DONE && m)
        status = scale_all(problem, array, m, *values, error);
    free(m);
    return status;
}
