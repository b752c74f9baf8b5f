/* SPDX-License-Identifier: Apache-2.0 */
/* Sampled rows against the double-precision reference. The inputs follow a pattern, so only outputs are read back. */
#include "bench.h"

#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>

#define ROWS       8  /* of a slice */
#define MAX_SLICES 32 /* of a case; two are checked however long they take */

/* One (b,h) of a case as a problem of its own, and outputs of some of its rows. */
typedef struct slice {
    clmgk_ref_problem problem;
    double *q, *k, *v, *prior, *shift;
    size_t rows;
    int64_t row[ROWS];
    double *o;
    double lse[ROWS];
    void *elements; /* one row of O, as stored */
} slice;

static void free_slice(slice *one)
{
    free(one->q);
    free(one->k);
    free(one->v);
    free(one->prior);
    free(one->shift);
    free(one->o);
    free(one->elements);
}

/* On failure `one` holds what free_slice takes. */
static tool_exit make_slice(const clmgk_attention_desc *desc, slice *one, tool_error *error)
{
    *one = (slice){.problem = {.desc = *desc}};
    one->problem.desc.batch = one->problem.desc.heads = one->problem.desc.kv_heads = 1;
    const bench_elements count = bench_count_elements(&one->problem.desc);
    one->rows = desc->length < ROWS ? (size_t)desc->length : ROWS;
    one->q = calloc(count.q, sizeof(double));
    one->k = calloc(count.k, sizeof(double));
    one->v = calloc(count.v, sizeof(double));
    one->prior = calloc(count.prior + 1, sizeof(double));
    one->shift = calloc(count.shift + 1, sizeof(double));
    one->o = calloc(one->rows * (size_t)desc->value_size, sizeof(double));
    one->elements = calloc((size_t)desc->value_size, clmgk_ref_dtype_size(desc->dtype));
    if (!one->q || !one->k || !one->v || !one->prior || !one->shift || !one->o || !one->elements)
        return tool_fail_memory(error, "values to check");
    one->problem.q = one->q;
    one->problem.k = one->k;
    one->problem.v = one->v;
    one->problem.prior = count.prior ? one->prior : NULL;
    one->problem.shift = count.shift ? one->shift : NULL;
    return TOOL_DONE;
}

/* The inputs of (b,h): elements of the arrays from that head's first on. */
static void fill_slice(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t b, size_t h, slice *one)
{
    const bench_elements count = bench_count_elements(&one->problem.desc);
    const size_t heads = (size_t)desc->heads, kv_heads = (size_t)desc->kv_heads;
    const size_t bh = b * heads + h, bg = b * kv_heads + h * kv_heads / heads;
    const size_t d = (size_t)desc->head_size;
    for (size_t i = 0; i < one->rows; i++) {
        for (size_t c = 0; c < d; c++) {
            const size_t at = (size_t)one->row[i] * d + c;
            one->q[at] = bench_pattern_at(arrays, desc->dtype, BENCH_PHASE_Q, bh * count.q + at);
        }
    }
    for (size_t i = 0; i < count.k; i++)
        one->k[i] = bench_pattern_at(arrays, desc->dtype, BENCH_PHASE_K, bg * count.k + i);
    for (size_t i = 0; i < count.v; i++)
        one->v[i] = bench_pattern_at(arrays, desc->dtype, BENCH_PHASE_V, bg * count.v + i);
    for (size_t i = 0; i < count.prior; i++)
        one->prior[i] = (double)bench_prior(desc, h * count.prior + i);
    for (size_t i = 0; i < count.shift; i++)
        one->shift[i] = (double)bench_shift(arrays, desc, h * count.shift + i);
}

static tool_exit read_outputs(const tool_device *device, const clmgk_attention_desc *desc,
                              const clmgk_attention_args *args, size_t bh, slice *one, tool_error *error)
{
    const size_t e = (size_t)desc->value_size;
    const size_t row_bytes = e * clmgk_ref_dtype_size(desc->dtype);
    for (size_t i = 0; i < one->rows; i++) {
        const size_t row = bh * (size_t)desc->length + (size_t)one->row[i];
        float lse = 0;
        cl_int code = clEnqueueReadBuffer(device->queue, args->o.memory, CL_TRUE, row * row_bytes, row_bytes,
                                          one->elements, 0, NULL, NULL);
        if (code == CL_SUCCESS)
            code = clEnqueueReadBuffer(device->queue, args->lse.memory, CL_TRUE, row * sizeof(lse), sizeof(lse), &lse,
                                       0, NULL, NULL);
        if (code != CL_SUCCESS)
            return tool_fail_cl(error, code, "clEnqueueReadBuffer");
        clmgk_ref_load(desc->dtype, one->elements, e, one->o + i * e);
        one->lse[i] = (double)lse;
    }
    return TOOL_DONE;
}

static tool_exit check_slice(slice *one, size_t b, size_t h, bench_error_found *found, tool_error *error)
{
    clmgk_ref_answer answer;
    if (!clmgk_ref_solve(&one->problem, (int64_t)one->rows, one->row, &answer))
        return tool_fail_memory(error, "the reference");
    const clmgk_ref_verdict verdict = clmgk_ref_check(&answer, one->o, one->lse);
    if (!verdict.ok && found->ok)
        snprintf(found->message, sizeof(found->message), "batch %zu, head %zu: %s", b, h, verdict.message);
    found->ok = found->ok && verdict.ok;
    if (found->sampled == 0 || verdict.error_o * found->bound >= found->max * answer.bound_o.bound) {
        found->max = verdict.error_o;
        found->bound = answer.bound_o.bound;
    }
    found->sampled += (int64_t)one->rows;
    clmgk_ref_answer_free(&answer);
    return TOOL_DONE;
}

/* The first and the last row, and others between. Multiples of the golden ratio spread evenly. */
static size_t spread(size_t step, size_t count)
{
    const double part = fmod((double)step * 0.6180339887498949, 1.0);
    return (size_t)(part * (double)count);
}

static void choose_rows(size_t step, int64_t length, slice *one)
{
    for (size_t i = 0; i < one->rows; i++)
        one->row[i] = (int64_t)spread(step * ROWS + i, (size_t)length);
    one->row[0] = 0;
    one->row[one->rows - 1] = length - 1;
}

tool_exit bench_validate(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                         const clmgk_attention_args *args, double seconds, bench_error_found *found, tool_error *error)
{
    const size_t slices = (size_t)(desc->batch * desc->heads);
    const double end = tool_now_ms() + 1e3 * seconds;
    slice one;
    tool_exit status = TOOL_DONE;
    *found = (bench_error_found){.ok = true};
    TOOL_TRY_GOTO(status, make_slice(desc, &one, error), done);
    for (size_t step = 0; step < slices && step < MAX_SLICES && (step < 2 || tool_now_ms() < end); step++) {
        /* the last slice first: it lies farthest from the arrays' starts */
        const size_t bh = slices - 1 - (slices <= MAX_SLICES ? step : spread(step, slices));
        const size_t b = bh / (size_t)desc->heads, h = bh % (size_t)desc->heads;
        choose_rows(step, desc->length, &one);
        fill_slice(arrays, desc, b, h, &one);
        TOOL_TRY_GOTO(status, read_outputs(device, desc, args, bh, &one, error), done);
        TOOL_TRY_GOTO(status, check_slice(&one, b, h, found, error), done);
    }
done:
    free_slice(&one);
    return status;
}
