/* SPDX-License-Identifier: Apache-2.0 */
/* Results against the double-precision reference: sampled rows of a case's own outputs, or all results of a smaller
 * problem. The inputs follow a pattern, so only results are read back. */
#include "cases.h"
#include "work.h"

#include <math.h>
#include <stdlib.h>

static bench_error_found found_in(const clmgk_attention_desc *desc)
{
    return (bench_error_found){
        .ok = true, .batch = desc->batch, .heads = desc->heads, .length = desc->length, .length_k = desc->length_k};
}

/* ---- sampled rows -------------------------------------------------------------------------------------------- */

#define ROWS       8  /* of a slice */
#define MAX_SLICES 32 /* of a case; one is checked however long it takes */
#define PATIENCE   2  /* the second too, if the first takes less than so many times the time */

/* A slice of a case, and outputs of some rows of one head. */
typedef struct slice {
    bench_values values;
    size_t rows;
    int64_t row[ROWS]; /* of the case's head */
    double *o;
    double lse[ROWS];
    void *elements; /* one row of O, as stored */
} slice;

static void free_slice(slice *one)
{
    bench_values_release(&one->values);
    free(one->o);
    free(one->elements);
}

/* On failure `one` holds what free_slice takes. */
static tool_exit make_slice(const clmgk_attention_desc *desc, slice *one, tool_error *error)
{
    const clmgk_attention_desc part = bench_slice(desc);
    *one = (slice){.rows = desc->length < ROWS ? (size_t)desc->length : ROWS};
    TOOL_TRY(bench_values_create(&part, &one->values, error));
    one->o = calloc(one->rows * (size_t)desc->value_size, sizeof(double));
    one->elements = calloc((size_t)desc->value_size, clmgk_array_element_size(desc, CLMGK_ARRAY_O));
    return one->o && one->elements ? TOOL_DONE : tool_fail_memory(error, "values to check");
}

/* Where the arrays of b begin; mixing and sinks are those of all. */
static bench_elements start_of_batch(const clmgk_attention_desc *desc, const bench_elements *count, size_t b)
{
    bench_elements start = {{0}};
    for (clmgk_array array = CLMGK_ARRAY_Q; array <= CLMGK_ARRAY_V; array++)
        start.of[array] = b * count->of[array];
    for (clmgk_array array = CLMGK_ARRAY_STATE_C; array <= CLMGK_ARRAY_STATE_M; array++)
        start.of[array] = b * count->of[array];
    if (desc->use_bias)
        start.of[CLMGK_ARRAY_BIAS] = b % (size_t)desc->bias_batch * count->of[CLMGK_ARRAY_BIAS];
    return start;
}

/* Where the arrays of (b,h) begin. */
static bench_elements start_of(const clmgk_attention_desc *desc, const slice *one, size_t b, size_t h)
{
    const bench_elements count = bench_count_elements(&one->values.problem.desc);
    if (tool_is_mixed(desc->variant))
        return start_of_batch(desc, &count, b);
    const size_t heads = (size_t)desc->heads, kv_heads = (size_t)desc->kv_heads;
    const size_t bh = b * heads + h, bg = b * kv_heads + h * kv_heads / heads;
    const size_t bias =
        desc->use_bias ? b % (size_t)desc->bias_batch * (size_t)desc->bias_heads + h % (size_t)desc->bias_heads : 0;
    bench_elements start = {.of = {[CLMGK_ARRAY_Q] = bh,
                                   [CLMGK_ARRAY_K] = bg,
                                   [CLMGK_ARRAY_V] = bg,
                                   [CLMGK_ARRAY_PRIOR] = h,
                                   [CLMGK_ARRAY_SHIFT] = h,
                                   [CLMGK_ARRAY_STATE_C] = bh,
                                   [CLMGK_ARRAY_STATE_Z] = bh,
                                   [CLMGK_ARRAY_STATE_M] = bh,
                                   [CLMGK_ARRAY_SLOPES] = h,
                                   [CLMGK_ARRAY_CAPTURE_0] = desc->captures[0].type == CLMGK_CAPTURE_I32 ? 0 : h,
                                   [CLMGK_ARRAY_SINKS] = h,
                                   [CLMGK_ARRAY_BIAS] = bias}};
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
        start.of[array] *= count.of[array];
    return start;
}

static tool_exit read_outputs(const tool_device *device, const clmgk_attention_desc *desc,
                              const clmgk_attention_args *args, size_t bh, slice *one, tool_error *error)
{
    const size_t e = (size_t)desc->value_size;
    const size_t row_bytes = e * clmgk_array_element_size(desc, CLMGK_ARRAY_O);
    for (size_t i = 0; i < one->rows; i++) {
        const size_t row = bh * (size_t)desc->length + (size_t)one->row[i];
        float lse = 0;
        cl_int code = clEnqueueReadBuffer(device->queue, args->o.memory, CL_TRUE, row * row_bytes, row_bytes,
                                          one->elements, 0, NULL, NULL);
        if (code == CL_SUCCESS && args->lse.memory)
            code = clEnqueueReadBuffer(device->queue, args->lse.memory, CL_TRUE, row * sizeof(lse), sizeof(lse), &lse,
                                       0, NULL, NULL);
        TOOL_TRY(tool_check_cl(code, "clEnqueueReadBuffer", error));
        clmgk_ref_load(clmgk_array_dtype(desc, CLMGK_ARRAY_O), one->elements, e, one->o + i * e);
        one->lse[i] = (double)lse;
    }
    return TOOL_DONE;
}

static tool_exit check_slice(slice *one, size_t b, size_t h, bench_error_found *found, tool_error *error)
{
    const clmgk_ref_problem *problem = &one->values.problem;
    const int64_t first = problem->desc.heads > 1 ? (int64_t)h * problem->desc.length : 0;
    clmgk_ref_answer answer;
    int64_t row[ROWS];
    for (size_t i = 0; i < one->rows; i++)
        row[i] = first + one->row[i];
    if (!clmgk_ref_solve(problem, (int64_t)one->rows, row, &answer))
        return tool_fail_memory(error, "the reference");
    const clmgk_ref_verdict verdict =
        clmgk_ref_check(&answer, one->o, tool_is_linear(problem->desc.variant) ? NULL : one->lse);
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

tool_exit bench_validate_rows(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                              const clmgk_attention_args *args, double seconds, bench_error_found *found,
                              tool_error *error)
{
    const size_t slices = (size_t)(desc->batch * desc->heads);
    const double start_ms = tool_now_ms(), span_ms = 1e3 * seconds;
    slice one;
    tool_exit status = TOOL_DONE;
    *found = found_in(desc);
    found->array = "o";
    TOOL_TRY_GOTO(status, make_slice(desc, &one, error), done);
    for (size_t step = 0; step < slices && step < MAX_SLICES; step++) {
        const double past_ms = tool_now_ms() - start_ms;
        if (step > 0 && past_ms > (step == 1 ? PATIENCE : 1) * span_ms)
            break;
        /* the last slice first: it lies farthest from the arrays' starts */
        const size_t bh = slices - 1 - (slices <= MAX_SLICES ? step : spread(step, slices));
        const size_t b = bh / (size_t)desc->heads, h = bh % (size_t)desc->heads;
        choose_rows(step, desc->length, &one);
        const bench_elements start = start_of(desc, &one, b, h);
        TOOL_TRY_GOTO(status, bench_values_fill(arrays, desc, &start, &one.values, error), done);
        TOOL_TRY_GOTO(status, read_outputs(device, desc, args, bh, &one, error), done);
        TOOL_TRY_GOTO(status, check_slice(&one, b, h, found, error), done);
    }
done:
    free_slice(&one);
    return status;
}

/* ---- a smaller problem ---------------------------------------------------------------------------------------- */

#define MOST_ROWS 1021

/* An axis of the bias: in full if it was. */
static void reduce_axis(int64_t whole, int64_t part, int64_t *axis)
{
    *axis = *axis == whole ? part : 1;
}

/* Heads: all of one group, or two of their own; all where they are mixed. */
static void reduce_heads(const clmgk_attention_desc *desc, clmgk_attention_desc *part)
{
    const int64_t group = desc->heads / desc->kv_heads;
    part->batch = TOOL_MIN(2, desc->batch);
    part->sequences = TOOL_MIN(3, desc->sequences);
    if (tool_is_mixed(desc->variant))
        return;
    part->kv_heads = group > 2 ? 1 : TOOL_MIN(2, desc->kv_heads);
    part->heads = part->kv_heads * group;
}

/* Multiplications of a pair of a query and a key, over all heads. */
static double products_of(const clmgk_attention_desc *desc, bench_pass pass)
{
    const double scores = tool_score_products(desc), values = tool_value_products(desc);
    return pass == BENCH_BACKWARD ? 3 * scores + 2 * values : scores + values;
}

/* Queries and keys: as many as are affordable, no round numbers. Where one of the two is short, more of the other. A
 * text's mask hides keys far from a query: it has few queries. */
static void reduce_lengths(const clmgk_attention_desc *desc, bench_pass pass, double multiplications,
                           clmgk_attention_desc *part)
{
    const double pairs = multiplications / (products_of(part, pass) * (double)part->batch);
    const int64_t side = (int64_t)fmax(3, fmin(MOST_ROWS, desc->mask_mod ? pairs / MOST_ROWS : sqrt(pairs)));
    part->length = TOOL_MIN(desc->length, side);
    part->length_k = TOOL_MIN(desc->length_k, (int64_t)fmin((double)MOST_ROWS * 16, pairs / (double)part->length));
    if (desc->sequences) /* the offsets are those of both */
        part->length_k = part->length = TOOL_MIN(desc->length, side);
    part->window_left = TOOL_MIN(desc->window_left, part->length_k / 3);
    part->window_right = TOOL_MIN(desc->window_right, part->length_k / 3);
}

tool_exit bench_make_dense(clmgk_attention_desc *desc, tool_error *error)
{
    clmgk_layout *const layouts[] = {&desc->q,      &desc->k,       &desc->v,      &desc->o,
                                     &desc->lse,    &desc->grad_o,  &desc->grad_q, &desc->grad_k,
                                     &desc->grad_v, &desc->scale_k, &desc->scale_v};
    for (size_t i = 0; i < TOOL_COUNT(layouts); i++)
        *layouts[i] = (clmgk_layout){0};
    return tool_check_library(clmgk_attention_validate(desc, desc, &error->library), error);
}

tool_exit bench_reduce(const clmgk_attention_desc *desc, bench_pass pass, double multiplications,
                       clmgk_attention_desc *reduced, tool_error *error)
{
    clmgk_attention_desc part = *desc;
    reduce_heads(desc, &part);
    reduce_lengths(desc, pass, multiplications, &part);
    if (desc->use_bias) {
        reduce_axis(desc->batch, part.batch, &part.bias_batch);
        reduce_axis(desc->heads, part.heads, &part.bias_heads);
        reduce_axis(desc->length, part.length, &part.bias_length);
        reduce_axis(desc->length_k, part.length_k, &part.bias_length_k);
    }
    bench_size_capture(&part);
    *reduced = part;
    return bench_make_dense(reduced, error);
}

static cl_mem memory_of(const bench_own *own, clmgk_array array)
{
    clmgk_attention_args args = own->args;
    return clmgk_array_buffer(&args, array)->memory;
}

/* Reads `count` elements of an array as numbers. */
static tool_exit read_values(const tool_device *device, const clmgk_attention_desc *desc, const bench_own *own,
                             clmgk_array array, size_t start, size_t count, double *values, tool_error *error)
{
    const size_t size = clmgk_array_element_size(desc, array);
    void *elements = calloc(count, size);
    TOOL_TRY(tool_check_memory(elements, "values to check", error));
    const cl_int code = clEnqueueReadBuffer(device->queue, memory_of(own, array), CL_TRUE, start * size, count * size,
                                            elements, 0, NULL, NULL);
    if (code == CL_SUCCESS)
        clmgk_ref_load(clmgk_array_dtype(desc, array), elements, count, values);
    free(elements);
    return tool_check_cl(code, "clEnqueueReadBuffer", error);
}

static void take_verdict(const char *array, double max, double bound, const char *message, bench_error_found *found)
{
    const bool first = found->array == NULL;
    if (message[0] != '\0' && found->ok) {
        snprintf(found->message, sizeof(found->message), "%s", message);
        found->ok = false;
    }
    if (first || max * found->bound >= found->max * bound) {
        found->array = array;
        found->max = max;
        found->bound = bound;
    }
}

static tool_exit check_gradient(const tool_device *device, const clmgk_attention_desc *desc, const bench_own *own,
                                const clmgk_ref_arrays *exact, clmgk_ref_gradient which, bench_error_found *found,
                                tool_error *error)
{
    char message[256];
    const size_t count = (size_t)exact->count[which];
    double *values = calloc(count, sizeof(*values));
    TOOL_TRY(tool_check_memory(values, "gradients to check", error));
    const tool_exit status = read_values(device, desc, own, CLMGK_ARRAY_GRAD_Q + which, 0, count, values, error);
    if (status == TOOL_DONE) {
        const clmgk_ref_error worst = clmgk_ref_check_array(exact, which, values, message, sizeof(message));
        take_verdict(bench_gradient_array((int)which), worst.error, worst.bound, message, found);
    }
    free(values);
    return status;
}

static tool_exit check_gradients(const tool_device *device, const bench_values *values, const bench_own *own,
                                 bench_error_found *found, tool_error *error)
{
    const clmgk_attention_desc *desc = &values->problem.desc;
    clmgk_ref_arrays exact;
    tool_exit status = TOOL_DONE;
    if (!clmgk_ref_solve_gradients(&values->problem, desc->gradients, &exact))
        return tool_fail_memory(error, "the reference");
    for (int i = 0; i < CLMGK_REF_GRADIENTS && status == TOOL_DONE; i++) {
        if (desc->gradients & 1U << i)
            status = check_gradient(device, desc, own, &exact, (clmgk_ref_gradient)i, found, error);
    }
    clmgk_ref_arrays_free(&exact);
    return status;
}

/* C or z, in whatever units of m the device chose; `m` NULL: true values. */
static tool_exit check_state(const tool_device *device, const clmgk_attention_desc *desc, const bench_own *own,
                             const clmgk_ref_arrays *exact, clmgk_ref_state which, const double *m,
                             bench_error_found *found, tool_error *error)
{
    static const clmgk_array arrays[] = {CLMGK_ARRAY_NEW_STATE_C, CLMGK_ARRAY_NEW_STATE_Z};
    char message[256];
    const size_t count = (size_t)exact->count[which];
    double *values = calloc(count, sizeof(*values));
    TOOL_TRY(tool_check_memory(values, "a state to check", error));
    const tool_exit status = read_values(device, desc, own, arrays[which], 0, count, values, error);
    if (status == TOOL_DONE) {
        clmgk_ref_rescale_state(exact, which, m, values);
        const clmgk_ref_error worst = clmgk_ref_check_array(exact, (int)which, values, message, sizeof(message));
        take_verdict(clmgk_array_name(arrays[which]), worst.error, worst.bound, message, found);
    }
    free(values);
    return status;
}

static tool_exit check_states(const tool_device *device, const bench_values *values, const bench_own *own,
                              bench_error_found *found, tool_error *error)
{
    const clmgk_attention_desc *desc = &values->problem.desc;
    const size_t scales = bench_count_elements(desc).of[CLMGK_ARRAY_NEW_STATE_M];
    clmgk_ref_arrays exact;
    tool_exit status = TOOL_DONE;
    if (!clmgk_ref_solve_state(&values->problem, &exact))
        return tool_fail_memory(error, "the reference");
    double *m = calloc(scales + 1, sizeof(*m));
    TOOL_TRY_GOTO(status, tool_check_memory(m, "scales to check", error), done);
    if (scales > 0)
        TOOL_TRY_GOTO(status, read_values(device, desc, own, CLMGK_ARRAY_NEW_STATE_M, 0, scales, m, error), done);
    for (clmgk_ref_state which = CLMGK_REF_STATE_C; which <= CLMGK_REF_STATE_Z; which++)
        TOOL_TRY_GOTO(status, check_state(device, desc, own, &exact, which, scales > 0 ? m : NULL, found, error), done);
done:
    free(m);
    clmgk_ref_arrays_free(&exact);
    return status;
}

static tool_exit check_outputs(const tool_device *device, const bench_values *values, const bench_own *own,
                               bench_error_found *found, tool_error *error)
{
    const clmgk_attention_desc *desc = &values->problem.desc;
    const bench_elements count = bench_count_elements(desc);
    const size_t of_o = count.of[CLMGK_ARRAY_O], of_lse = count.of[CLMGK_ARRAY_LSE];
    clmgk_ref_answer answer = {0};
    tool_exit status = TOOL_DONE;
    double *o = calloc(of_o, sizeof(*o));
    double *lse = calloc(of_lse + 1, sizeof(*lse));
    if (!o || !lse || !clmgk_ref_solve(&values->problem, desc->batch * desc->heads * desc->length, NULL, &answer)) {
        status = tool_fail_memory(error, "the reference");
        goto done;
    }
    TOOL_TRY_GOTO(status, read_values(device, desc, own, CLMGK_ARRAY_O, 0, of_o, o, error), done);
    if (of_lse)
        TOOL_TRY_GOTO(status, read_values(device, desc, own, CLMGK_ARRAY_LSE, 0, of_lse, lse, error), done);
    const clmgk_ref_verdict verdict = clmgk_ref_check(&answer, o, of_lse ? lse : NULL);
    take_verdict("o", verdict.error_o, answer.bound_o.bound, verdict.message, found);
    if (desc->use_new_state)
        status = check_states(device, values, own, found, error);
done:
    clmgk_ref_answer_free(&answer);
    free(o);
    free(lse);
    return status;
}

tool_exit bench_validate_whole(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                               bench_pass pass, const bench_own *own, bench_error_found *found, tool_error *error)
{
    static const bench_elements beginning = {{0}};
    bench_values values;
    tool_exit status = TOOL_DONE;
    *found = found_in(desc);
    found->sampled = desc->batch * desc->heads * desc->length;
    TOOL_TRY_GOTO(status, bench_values_create(desc, &values, error), done);
    TOOL_TRY_GOTO(status, bench_values_fill(arrays, desc, &beginning, &values, error), done);
    status = pass == BENCH_BACKWARD ? check_gradients(device, &values, own, found, error)
                                    : check_outputs(device, &values, own, found, error);
done:
    bench_values_release(&values);
    return status;
}

/* ---- what was not written ------------------------------------------------------------------------------------- */

#define CHUNK ((size_t)1 << 20) /* elements that are read at once */

static tool_exit check_finite(const tool_device *device, const clmgk_attention_desc *desc, const bench_own *own,
                              clmgk_ref_gradient which, size_t count, double *values, bench_error_found *found,
                              tool_error *error)
{
    for (size_t start = 0; start < count && found->ok; start += CHUNK) {
        const size_t now = count - start < CHUNK ? count - start : CHUNK;
        TOOL_TRY(read_values(device, desc, own, CLMGK_ARRAY_GRAD_Q + which, start, now, values, error));
        for (size_t i = 0; i < now && found->ok; i++) {
            found->ok = isfinite(values[i]);
            if (!found->ok)
                snprintf(found->message, sizeof(found->message),
                         "element %zu of the gradient of %s is %g in the case's own size", start + i,
                         bench_gradient_name((int)which), values[i]);
        }
    }
    return TOOL_DONE;
}

tool_exit bench_validate_finite(const tool_device *device, const clmgk_attention_desc *desc, const bench_own *own,
                                bench_error_found *found, tool_error *error)
{
    const bench_elements count = bench_count_elements(desc);
    tool_exit status = TOOL_DONE;
    double *values = calloc(CHUNK, sizeof(*values));
    TOOL_TRY(tool_check_memory(values, "values to check", error));
    for (int i = 0; i < CLMGK_REF_GRADIENTS && status == TOOL_DONE; i++)
        status = check_finite(device, desc, own, (clmgk_ref_gradient)i, count.of[CLMGK_ARRAY_GRAD_Q + i], values, found,
                              error);
    free(values);
    return status;
}

tool_exit bench_spoil(const tool_device *device, const clmgk_attention_desc *desc, bench_pass pass,
                      const bench_own *own, tool_error *error)
{
    static const unsigned char ones = 0xFF, zero = 0; /* NaN; classes of hidden blocks */
    const bench_elements count = bench_count_elements(desc);
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        if (count.of[array] == 0 || !bench_is_output(pass, array))
            continue;
        const size_t bytes = count.of[array] * clmgk_array_element_size(desc, array);
        TOOL_TRY(tool_check_cl(clEnqueueFillBuffer(device->queue, memory_of(own, array),
                                                   array == CLMGK_ARRAY_MASK_BLOCKS ? &zero : &ones, sizeof(ones), 0,
                                                   bytes, 0, NULL, NULL),
                               "clEnqueueFillBuffer", error));
    }
    return tool_check_cl(clFinish(device->queue), "clFinish", error);
}
