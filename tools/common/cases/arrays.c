/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays for cases: on the device, and the same numbers for the reference. */
#include "cases.h"

#include <math.h>
#include <stdlib.h>

#define SEED  1     /* of dropout and noise */
#define PHASE 49999 /* from where one array begins in the pattern to where the next does */

#define INTEGER_SCALE 0x1p-5 /* of rows of integers */

/* ---- sizes --------------------------------------------------------------------------------------------------- */

static bool is_shared_input(clmgk_array array)
{
    return array == CLMGK_ARRAY_Q || array == CLMGK_ARRAY_K || array == CLMGK_ARRAY_V || array == CLMGK_ARRAY_GRAD_O;
}

/* Outputs of the forward pass that the backward pass reads. */
static bool is_kept(clmgk_array array)
{
    return array == CLMGK_ARRAY_O || array == CLMGK_ARRAY_LSE || array == CLMGK_ARRAY_LSE_LOW ||
           array == CLMGK_ARRAY_DENOMINATOR;
}

static bool is_new_state(clmgk_array array)
{
    return array == CLMGK_ARRAY_NEW_STATE_C || array == CLMGK_ARRAY_NEW_STATE_Z || array == CLMGK_ARRAY_NEW_STATE_M;
}

static bool is_state(clmgk_array array)
{
    return array == CLMGK_ARRAY_STATE_C || array == CLMGK_ARRAY_STATE_Z || array == CLMGK_ARRAY_STATE_M;
}

bool bench_is_output(bench_pass pass, clmgk_array array)
{
    if (pass == BENCH_MASK)
        return array == CLMGK_ARRAY_MASK_BLOCKS;
    return pass == BENCH_BACKWARD ? clmgk_array_get_info(array)->gradient != 0 : is_kept(array) || is_new_state(array);
}

static bool is_output(clmgk_array array)
{
    return bench_is_output(BENCH_FORWARD, array) || bench_is_output(BENCH_BACKWARD, array) ||
           bench_is_output(BENCH_MASK, array);
}

/* Whether calls of a case are given the array. */
static bool is_used(const clmgk_attention_desc *desc, clmgk_array array)
{
    const clmgk_array_info *info = clmgk_array_get_info(array);
    if (array == CLMGK_ARRAY_GRAD_LSE || array == CLMGK_ARRAY_GRAD_NEW_STATE_C ||
        array == CLMGK_ARRAY_GRAD_NEW_STATE_Z || array >= CLMGK_ARRAY_PARTS_O || info->statistic)
        return false;
    if (array == CLMGK_ARRAY_GRAD_O || array == CLMGK_ARRAY_DENOMINATOR)
        return desc->gradients != 0;
    return !info->gradient || (desc->gradients & info->gradient);
}

bench_elements bench_count_elements(const clmgk_attention_desc *desc)
{
    bench_elements count = {{0}};
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
        count.of[array] = is_used(desc, array) ? (size_t)clmgk_array_count(desc, array) : 0;
    return count;
}

static size_t count_bytes(const clmgk_attention_desc *desc, const bench_elements *count, clmgk_array array)
{
    return count->of[array] * clmgk_array_element_size(desc, array);
}

uint64_t bench_array_bytes(const clmgk_attention_desc *desc, bench_pass pass)
{
    const bench_elements count = bench_count_elements(desc);
    uint64_t bytes = 0;
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        if (pass != BENCH_MASK || array == CLMGK_ARRAY_CAPTURE_0 || array == CLMGK_ARRAY_MASK_BLOCKS)
            bytes += count_bytes(desc, &count, array);
    }
    return bytes;
}

uint64_t bench_state_bytes(const clmgk_attention_desc *desc)
{
    const bench_elements count = bench_count_elements(desc);
    uint64_t bytes = 0;
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
        bytes += is_state(array) || is_new_state(array) ? count_bytes(desc, &count, array) : 0;
    return bytes;
}

/* A text's array has an element for each head if it is of floats, for each key if it is of ints. */
static bool is_capture_of(const clmgk_attention_desc *desc, clmgk_array array, bool integers)
{
    return array == CLMGK_ARRAY_CAPTURE_0 && (desc->captures[0].type == CLMGK_CAPTURE_I32) == integers;
}

void bench_size_capture(clmgk_attention_desc *desc)
{
    if (desc->captures[0].name)
        desc->captures[0].shape[0] = is_capture_of(desc, CLMGK_ARRAY_CAPTURE_0, true) ? desc->length_k : desc->heads;
}

clmgk_attention_desc bench_slice(const clmgk_attention_desc *desc)
{
    clmgk_attention_desc part = *desc;
    part.batch = part.bias_batch = 1;
    if (!tool_is_mixed(desc->variant))
        part.heads = part.kv_heads = part.bias_heads = 1;
    bench_size_capture(&part);
    return part;
}

uint64_t bench_slice_bytes(const clmgk_attention_desc *desc)
{
    const clmgk_attention_desc part = bench_slice(desc);
    const bench_elements count = bench_count_elements(&part);
    uint64_t elements = 0;
    for (clmgk_array array = CLMGK_ARRAY_Q; array <= CLMGK_ARRAY_V; array++)
        elements += count.of[array];
    return (elements + count.of[CLMGK_ARRAY_BIAS]) * sizeof(double);
}

/* ---- values -------------------------------------------------------------------------------------------------- */

/* The type of the pattern that an array holds; of f32 parameters Q's, so that they are the same numbers. */
static clmgk_dtype pattern_type(const clmgk_attention_desc *desc, clmgk_array array)
{
    return is_shared_input(array) ? clmgk_array_dtype(desc, array) : desc->dtype;
}

static double pattern_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, clmgk_array array,
                         size_t element)
{
    return arrays->pattern[pattern_type(desc, array)][((size_t)array * PHASE + element) % BENCH_PATTERN];
}

/* Of the linear family: a denominator that comes near 0 would say nothing about a kernel, so mixing is positive, noise
 * small, and a state's z positive. */
static double linear_value_at(clmgk_array array, size_t element, double value)
{
    if (array == CLMGK_ARRAY_STATE_Z)
        return (double)(1 + element % 4);
    if (array == CLMGK_ARRAY_NOISE)
        return 0.03125 * (double)(1 + element % 4);
    return array == CLMGK_ARRAY_MIX || array == CLMGK_ARRAY_MIX_WEIGHT ? (double)(float)(fabs(value) + 0.125) : value;
}

/* A value as the storage type holds it, or f32. Slopes are a geometric series, as ALiBi's authors choose it, of eight
 * heads whatever their number; the mixing is so small that a mixture of scores is about as large as one of them. */
static double value_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, clmgk_array array, size_t element)
{
    const clmgk_values rule = clmgk_array_get_info(array)->values;
    if (is_capture_of(desc, array, true)) {
        const int64_t document = (int64_t)element * BENCH_DOCUMENTS / desc->length_k;
        return (double)document;
    }
    if (array == CLMGK_ARRAY_SCALE_K || array == CLMGK_ARRAY_SCALE_V)
        return INTEGER_SCALE;
    if (array == CLMGK_ARRAY_SLOPES || is_capture_of(desc, array, false))
        return ldexp(1.0, -1 - (int)(element % 8));
    if (tool_is_linear(desc->variant) && array != CLMGK_ARRAY_PRIOR)
        return linear_value_at(array, element, pattern_at(arrays, desc, array, element));
    if (rule == CLMGK_VALUES_NOT_NEGATIVE || rule == CLMGK_VALUES_POSITIVE)
        return 0.5 * (double)(1 + element % 4);
    const double value = pattern_at(arrays, desc, array, element);
    return array == CLMGK_ARRAY_MIX ? (double)(float)(value / sqrt((double)desc->components)) : value;
}

int32_t bench_offset(const clmgk_attention_desc *desc, int64_t t)
{
    const double count = (double)desc->sequences;
    return (int32_t)((double)desc->length * ((double)t / count) * (((double)t + count) / (2 * count)));
}

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15); /* splitmix64 */
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static double next_uniform(uint64_t *state)
{
    return ((double)(next_random(state) >> 11) + 0.5) / 9007199254740992.0;
}

/* The pattern as elements of `dtype`, and as the numbers that those stand for. */
static tool_exit make_pattern(clmgk_dtype dtype, double **values, void **elements, tool_error *error)
{
    static const double tau = 6.283185307179586;
    const double scale = dtype == CLMGK_DTYPE_INT8 ? INTEGER_SCALE : 1.0;
    *values = calloc(BENCH_PATTERN, sizeof(**values));
    *elements = calloc(BENCH_PATTERN, clmgk_ref_dtype_size(dtype));
    if (!*values || !*elements)
        return tool_fail_memory(error, "a pattern of input values");
    uint64_t state = 1;
    for (size_t i = 0; i < BENCH_PATTERN; i++) { /* normals, by Box and Muller */
        const double radius = sqrt(-2 * log(next_uniform(&state)));
        (*values)[i] = radius * cos(tau * next_uniform(&state)) / scale;
    }
    clmgk_ref_store(dtype, *values, BENCH_PATTERN, *elements);
    clmgk_ref_load(dtype, *elements, BENCH_PATTERN, *values);
    for (size_t i = 0; i < BENCH_PATTERN; i++)
        (*values)[i] *= scale;
    return TOOL_DONE;
}

/* ---- on the device ------------------------------------------------------------------------------------------- */

/* A buffer of `count` elements: the pattern from `phase` on, over and over. */
static tool_exit make_input(const tool_device *device, const void *pattern, size_t size, size_t phase, size_t count,
                            cl_mem *buffer, tool_error *error)
{
    TOOL_TRY(tool_make_buffer(device, count * size, NULL, buffer, error));
    size_t start = phase;
    for (size_t done = 0; done < count;) {
        const size_t left = BENCH_PATTERN - start;
        const size_t now = count - done < left ? count - done : left;
        TOOL_TRY(tool_check_cl(clEnqueueWriteBuffer(device->queue, *buffer, CL_TRUE, done * size, now * size,
                                                    (const char *)pattern + start * size, 0, NULL, NULL),
                               "clEnqueueWriteBuffer", error));
        done += now;
        start = 0;
    }
    return TOOL_DONE;
}

/* Q, K, V and dO of one storage type. */
static tool_exit make_inputs(const tool_device *device, clmgk_dtype dtype, const bench_elements *most,
                             bench_arrays *arrays, tool_error *error)
{
    void *elements = NULL;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, make_pattern(dtype, &arrays->pattern[dtype], &elements, error), done);
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        if (is_shared_input(array) && most->of[array])
            TOOL_TRY_GOTO(status,
                          make_input(device, elements, clmgk_ref_dtype_size(dtype),
                                     (size_t)array * PHASE % BENCH_PATTERN, most->of[array],
                                     &arrays->input[dtype][array], error),
                          done);
    }
done:
    free(elements);
    return status;
}

tool_exit bench_arrays_create(const tool_device *device, const bench_group *group, bench_arrays *arrays,
                              tool_error *error)
{
    bench_elements most[CLMGK_ALL_DTYPES] = {{{0}}}; /* elements of shared inputs */
    size_t bytes[CLMGK_ARRAYS] = {0};                /* of shared outputs */
    *arrays = (bench_arrays){.pattern = {NULL}};
    for (size_t i = 0; i < group->count; i++) {
        const clmgk_attention_desc *desc = &group->cases[i].desc;
        const bench_elements count = bench_count_elements(desc);
        for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
            size_t *const largest = &most[pattern_type(desc, array)].of[array];
            *largest = TOOL_MAX(*largest, count.of[array]);
            bytes[array] = TOOL_MAX(bytes[array], count_bytes(desc, &count, array));
        }
    }
    for (int dtype = 0; dtype < CLMGK_ALL_DTYPES; dtype++) {
        bool any = false;
        for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
            any = any || most[dtype].of[array];
        if (any)
            TOOL_TRY(make_inputs(device, (clmgk_dtype)dtype, &most[dtype], arrays, error));
    }
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        if (is_output(array) && bytes[array])
            TOOL_TRY(tool_make_buffer(device, bytes[array], NULL, &arrays->output[array], error));
    }
    return TOOL_DONE;
}

void bench_arrays_release(bench_arrays *arrays)
{
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        for (int dtype = 0; dtype < CLMGK_ALL_DTYPES; dtype++)
            tool_release_buffer(arrays->input[dtype][array]);
        tool_release_buffer(arrays->output[array]);
    }
    for (int dtype = 0; dtype < CLMGK_ALL_DTYPES; dtype++)
        free(arrays->pattern[dtype]);
    *arrays = (bench_arrays){.pattern = {NULL}};
}

/* ---- what a case has of its own ----------------------------------------------------------------------------- */

static tool_exit draw_projection(const clmgk_attention_desc *desc, float *out, tool_error *error)
{
    return tool_check_library(clmgk_draw_projection(SEED, desc->features, desc->head_size, out, &error->library),
                              error);
}

/* A parameter's values as the device holds them: f32, or int32 offsets. */
static tool_exit make_parameter(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                                clmgk_array array, size_t count, cl_mem *buffer, tool_error *error)
{
    const bool offsets = clmgk_array_get_info(array)->element == CLMGK_ELEMENT_I32;
    const bool integers = is_capture_of(desc, array, true);
    void *const values = calloc(count, sizeof(float));
    tool_exit status = TOOL_DONE;
    TOOL_TRY(tool_check_memory(values, "a parameter's values", error));
    if (array == CLMGK_ARRAY_PROJECTION)
        TOOL_TRY_GOTO(status, draw_projection(desc, values, error), done);
    for (size_t i = 0; array != CLMGK_ARRAY_PROJECTION && i < count; i++) {
        if (offsets)
            ((int32_t *)values)[i] = bench_offset(desc, (int64_t)i);
        else if (integers)
            ((int32_t *)values)[i] = (int32_t)value_at(arrays, desc, array, i);
        else
            ((float *)values)[i] = (float)value_at(arrays, desc, array, i);
    }
    status = tool_make_buffer(device, count * sizeof(float), values, buffer, error);
done:
    free(values);
    return status;
}

tool_exit bench_own_create(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                           size_t workspace_bytes, bench_own *own, tool_error *error)
{
    const bench_elements count = bench_count_elements(desc);
    *own = (bench_own){.args = CLMGK_ATTENTION_ARGS_INIT};
    own->args.seed = SEED;
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        cl_mem *const memory = &own->memory[array];
        const bool read = desc->gradients && is_kept(array) && count.of[array];
        if (array == CLMGK_ARRAY_WORKSPACE && workspace_bytes)
            TOOL_TRY(tool_make_buffer(device, workspace_bytes, NULL, memory, error));
        else if (read)
            TOOL_TRY(tool_make_buffer(device, count_bytes(desc, &count, array), NULL, memory, error));
        else if (count.of[array] && !is_shared_input(array) && !is_output(array))
            TOOL_TRY(make_parameter(device, arrays, desc, array, count.of[array], memory, error));
        cl_mem const shared =
            is_output(array) ? arrays->output[array] : arrays->input[pattern_type(desc, array)][array];
        clmgk_array_buffer(&own->args, array)->memory = *memory ? *memory : count.of[array] ? shared : NULL;
    }
    return TOOL_DONE;
}

void bench_own_release(bench_own *own)
{
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
        tool_release_buffer(own->memory[array]);
    *own = (bench_own){.memory = {NULL}};
}

/* ---- for the reference --------------------------------------------------------------------------------------- */

tool_exit bench_values_create(const clmgk_attention_desc *desc, bench_values *values, tool_error *error)
{
    *values = (bench_values){.problem = {.desc = *desc, .seed = SEED}};
    values->problem.desc.use_scale_k = values->problem.desc.use_scale_v = 0; /* in the numbers of the pattern */
    const bench_elements count = bench_count_elements(&values->problem.desc);
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        if (count.of[array] == 0 || is_output(array))
            continue;
        values->of[array] = calloc(count.of[array], sizeof(double)); /* or int32_t */
        TOOL_TRY(tool_check_memory(values->of[array], "values to check", error));
    }
    clmgk_ref_set_arrays(&values->problem, values->of);
    return TOOL_DONE;
}

void bench_values_release(bench_values *values)
{
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
        free(values->of[array]);
    *values = (bench_values){.of = {NULL}};
}

/* The projection is drawn as a whole: it is the same for all parts. */
static tool_exit fill_projection(const clmgk_attention_desc *desc, double *values, size_t count, tool_error *error)
{
    float *const drawn = calloc(count, sizeof(*drawn));
    TOOL_TRY(tool_check_memory(drawn, "a projection", error));
    const tool_exit status = draw_projection(desc, drawn, error);
    for (size_t i = 0; i < count && status == TOOL_DONE; i++)
        values[i] = (double)drawn[i];
    free(drawn);
    return status;
}

tool_exit bench_values_fill(const bench_arrays *arrays, const clmgk_attention_desc *whole, const bench_elements *start,
                            bench_values *values, tool_error *error)
{
    const bench_elements count = bench_count_elements(&values->problem.desc);
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++) {
        const bool integers = clmgk_array_get_info(array)->element == CLMGK_ELEMENT_I32;
        for (size_t i = 0; values->of[array] && i < count.of[array]; i++) {
            if (integers)
                ((int32_t *)values->of[array])[i] = bench_offset(&values->problem.desc, (int64_t)i);
            else
                ((double *)values->of[array])[i] = value_at(arrays, whole, array, start->of[array] + i);
        }
    }
    double *const projection = values->of[CLMGK_ARRAY_PROJECTION];
    return projection ? fill_projection(whole, projection, count.of[CLMGK_ARRAY_PROJECTION], error) : TOOL_DONE;
}
