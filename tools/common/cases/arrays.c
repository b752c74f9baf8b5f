/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays for cases: on the device, and the same numbers for the reference. */
#include "cases.h"

#include <math.h>
#include <stdlib.h>

/* Where in the pattern an array begins. */
enum {
    PHASE_Q = 0,
    PHASE_GRAD_O = 150001,
    PHASE_K = 300007,
    PHASE_BIAS = 450001,
    PHASE_V = 600011,
    PHASE_SINKS = 750019,
    PHASE_MIX = 800011,
    PHASE_MIX_WEIGHT = 850009,
    PHASE_SHIFT = 900001,
    PHASE_MIX_OFFSET = 950009
};

#define SEED 1 /* of dropout and noise */

/* ---- sizes --------------------------------------------------------------------------------------------------- */

bench_elements bench_count_elements(const clmgk_attention_desc *desc)
{
    const size_t b = (size_t)desc->batch, h = (size_t)desc->heads, g = (size_t)desc->kv_heads;
    const size_t n = (size_t)desc->length, s = (size_t)desc->length_k;
    const size_t d = (size_t)desc->head_size, e = (size_t)desc->value_size, m = (size_t)desc->components;
    const uint32_t traits = clmgk_variant_traits(desc->variant);
    const bool mixed = tool_is_mixed(desc->variant);
    bench_elements count = {
        .q = b * (mixed ? m : h) * n * d,
        .k = b * (mixed ? m : g) * (desc->variant == CLMGK_VARIANT_MGK ? m : 1) * s * d,
        .v = b * g * s * e,
        .o = b * h * n * e,
        .lse = b * h * n,
        .prior = desc->prior_shape == CLMGK_PRIOR_HM ? h * m : 0,
        .shift = desc->variant == CLMGK_VARIANT_SMGK ? h * m * d : 0,
        .slopes = desc->use_alibi ? h : 0,
        .sinks = desc->use_sinks ? h : 0,
        .mix = mixed ? (traits & CLMGK_TRAIT_SHARED_MIX ? m : h * m) : 0,
        .mix_weight = desc->use_mix_weight ? h * m : 0,
        .mix_offset = desc->use_mix_offset ? h : 0,
        .noise = traits & CLMGK_TRAIT_NOISE ? m : 0,
        .offsets = desc->sequences ? (size_t)desc->sequences + 1 : 0,
    };
    if (desc->use_bias)
        count.bias = (size_t)desc->bias_batch * (size_t)desc->bias_heads * (size_t)desc->bias_length *
                     (size_t)desc->bias_length_k;
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++) {
        if (desc->gradients & 1U << i)
            count.gradients[i] = (size_t)clmgk_ref_gradient_count(desc, (clmgk_ref_gradient)i);
    }
    return count;
}

size_t bench_gradient_size(const clmgk_attention_desc *desc, clmgk_ref_gradient which)
{
    return which <= CLMGK_REF_GRAD_V ? clmgk_ref_dtype_size(desc->dtype) : sizeof(float);
}

uint64_t bench_array_bytes(const clmgk_attention_desc *desc, bench_pass pass)
{
    const bench_elements count = bench_count_elements(desc);
    const size_t stored = count.q + count.k + count.v + count.o + (pass == BENCH_BACKWARD ? count.o : 0);
    const size_t numbers = count.lse + count.prior + count.shift + count.bias + count.slopes + count.sinks + count.mix +
                           count.mix_weight + count.mix_offset + count.noise;
    uint64_t bytes = (uint64_t)stored * clmgk_ref_dtype_size(desc->dtype) + (uint64_t)numbers * sizeof(float) +
                     (uint64_t)count.offsets * sizeof(int32_t);
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++)
        bytes += (uint64_t)count.gradients[i] * bench_gradient_size(desc, (clmgk_ref_gradient)i);
    return bytes;
}

/* ---- values -------------------------------------------------------------------------------------------------- */

static double pattern_at(const bench_arrays *arrays, clmgk_dtype dtype, size_t phase, size_t element)
{
    return arrays->pattern[dtype][(phase + element) % BENCH_PATTERN];
}

static double prior_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    (void)arrays;
    const size_t m = (size_t)desc->components;
    const size_t h = element / m;
    return (double)(2.0F * (float)(1 + (h + element) % m) / (float)(m * (m + 1)));
}

static double shift_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    return pattern_at(arrays, desc->dtype, PHASE_SHIFT, element);
}

static double bias_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    return pattern_at(arrays, desc->dtype, PHASE_BIAS, element);
}

/* A geometric series, as ALiBi's authors choose it; of eight heads whatever their number, so that a smaller problem
 * has the same. */
static double slope_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    (void)arrays;
    (void)desc;
    return ldexp(1.0, -1 - (int)(element % 8));
}

static double sink_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    return pattern_at(arrays, desc->dtype, PHASE_SINKS, element);
}

/* Of any sign, and so large that a mixture of scores is about as large as one of them. */
static double mix_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    const double scale = 1 / sqrt((double)desc->components);
    return (double)(float)(scale * pattern_at(arrays, desc->dtype, PHASE_MIX, element));
}

static double mix_weight_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    return pattern_at(arrays, desc->dtype, PHASE_MIX_WEIGHT, element);
}

static double mix_offset_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    return pattern_at(arrays, desc->dtype, PHASE_MIX_OFFSET, element);
}

static double noise_at(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    (void)arrays;
    (void)desc;
    return 0.5 * (double)(1 + element % 4);
}

int32_t bench_offset(const clmgk_attention_desc *desc, int64_t t)
{
    const double count = (double)desc->sequences;
    return (int32_t)((double)desc->length * ((double)t / count) * (((double)t + count) / (2 * count)));
}

/* A parameter's value, as f32 holds it. */
typedef double (*value_at)(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element);

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
    *values = calloc(BENCH_PATTERN, sizeof(**values));
    *elements = calloc(BENCH_PATTERN, clmgk_ref_dtype_size(dtype));
    if (!*values || !*elements)
        return tool_fail_memory(error, "a pattern of input values");
    uint64_t state = 1;
    for (size_t i = 0; i < BENCH_PATTERN; i++) { /* normals, by Box and Muller */
        const double radius = sqrt(-2 * log(next_uniform(&state)));
        (*values)[i] = radius * cos(tau * next_uniform(&state));
    }
    clmgk_ref_store(dtype, *values, BENCH_PATTERN, *elements);
    clmgk_ref_load(dtype, *elements, BENCH_PATTERN, *values);
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
        const cl_int code = clEnqueueWriteBuffer(device->queue, *buffer, CL_TRUE, done * size, now * size,
                                                 (const char *)pattern + start * size, 0, NULL, NULL);
        if (code != CL_SUCCESS)
            return tool_fail_cl(error, code, "clEnqueueWriteBuffer");
        done += now;
        start = 0;
    }
    return TOOL_DONE;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What the shared arrays of a group must hold: the largest of its cases. */
typedef struct shared_sizes {
    size_t q[BENCH_DTYPES], k[BENCH_DTYPES], v[BENCH_DTYPES], grad_o[BENCH_DTYPES]; /* elements */
    size_t o, lse, gradients[CLMGK_REF_GRADIENTS];                                  /* bytes */
} shared_sizes;

static void add_size(const clmgk_attention_desc *desc, shared_sizes *sizes)
{
    const bench_elements count = bench_count_elements(desc);
    const clmgk_dtype dtype = desc->dtype;
    sizes->q[dtype] = larger(sizes->q[dtype], count.q);
    sizes->k[dtype] = larger(sizes->k[dtype], count.k);
    sizes->v[dtype] = larger(sizes->v[dtype], count.v);
    if (desc->gradients) {
        sizes->grad_o[dtype] = larger(sizes->grad_o[dtype], count.o);
    } else {
        sizes->o = larger(sizes->o, count.o * clmgk_ref_dtype_size(dtype));
        sizes->lse = larger(sizes->lse, count.lse * sizeof(float));
    }
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++)
        sizes->gradients[i] =
            larger(sizes->gradients[i], count.gradients[i] * bench_gradient_size(desc, (clmgk_ref_gradient)i));
}

/* Q, K, V and dO of one storage type. */
static tool_exit make_inputs(const tool_device *device, clmgk_dtype dtype, const shared_sizes *sizes,
                             bench_arrays *arrays, tool_error *error)
{
    const struct {
        cl_mem *buffer;
        size_t count, phase;
    } inputs[] = {{&arrays->q[dtype], sizes->q[dtype], PHASE_Q},
                  {&arrays->k[dtype], sizes->k[dtype], PHASE_K},
                  {&arrays->v[dtype], sizes->v[dtype], PHASE_V},
                  {&arrays->grad_o[dtype], sizes->grad_o[dtype], PHASE_GRAD_O}};
    void *elements = NULL;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, make_pattern(dtype, &arrays->pattern[dtype], &elements, error), done);
    for (size_t i = 0; i < TOOL_COUNT(inputs); i++) {
        if (inputs[i].count)
            TOOL_TRY_GOTO(status,
                          make_input(device, elements, clmgk_ref_dtype_size(dtype), inputs[i].phase, inputs[i].count,
                                     inputs[i].buffer, error),
                          done);
    }
done:
    free(elements);
    return status;
}

tool_exit bench_arrays_create(const tool_device *device, const bench_group *group, bench_arrays *arrays,
                              tool_error *error)
{
    shared_sizes sizes = {0};
    *arrays = (bench_arrays){0};
    for (size_t i = 0; i < group->count; i++)
        add_size(&group->cases[i].desc, &sizes);
    for (int dtype = 0; dtype < BENCH_DTYPES; dtype++) {
        if (sizes.q[dtype])
            TOOL_TRY(make_inputs(device, (clmgk_dtype)dtype, &sizes, arrays, error));
    }
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++) {
        if (sizes.gradients[i])
            TOOL_TRY(tool_make_buffer(device, sizes.gradients[i], NULL, &arrays->gradients[i], error));
    }
    TOOL_TRY(tool_make_buffer(device, sizes.o, NULL, &arrays->o, error));
    return tool_make_buffer(device, sizes.lse, NULL, &arrays->lse, error);
}

void bench_arrays_release(bench_arrays *arrays)
{
    for (int dtype = 0; dtype < BENCH_DTYPES; dtype++) {
        tool_release_buffer(arrays->q[dtype]);
        tool_release_buffer(arrays->k[dtype]);
        tool_release_buffer(arrays->v[dtype]);
        tool_release_buffer(arrays->grad_o[dtype]);
        free(arrays->pattern[dtype]);
    }
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++)
        tool_release_buffer(arrays->gradients[i]);
    tool_release_buffer(arrays->o);
    tool_release_buffer(arrays->lse);
    *arrays = (bench_arrays){0};
}

/* ---- what a case has of its own ----------------------------------------------------------------------------- */

/* A buffer of f32; none for `count` 0. */
static tool_exit make_parameter(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                                value_at value, size_t count, cl_mem *buffer, tool_error *error)
{
    if (count == 0)
        return TOOL_DONE;
    float *values = calloc(count, sizeof(*values));
    if (!values)
        return tool_fail_memory(error, "a parameter's values");
    for (size_t i = 0; i < count; i++)
        values[i] = (float)value(arrays, desc, i);
    const tool_exit status = tool_make_buffer(device, count * sizeof(*values), values, buffer, error);
    free(values);
    return status;
}

static void fill_offsets(const clmgk_attention_desc *desc, size_t count, int32_t *offsets)
{
    for (size_t t = 0; t < count; t++)
        offsets[t] = bench_offset(desc, (int64_t)t);
}

static tool_exit make_offsets(const tool_device *device, const clmgk_attention_desc *desc, size_t count, cl_mem *buffer,
                              tool_error *error)
{
    if (count == 0)
        return TOOL_DONE;
    int32_t *offsets = calloc(count, sizeof(*offsets));
    if (!offsets)
        return tool_fail_memory(error, "offsets");
    fill_offsets(desc, count, offsets);
    const tool_exit status = tool_make_buffer(device, count * sizeof(*offsets), offsets, buffer, error);
    free(offsets);
    return status;
}

static tool_exit make_own_buffers(const tool_device *device, const bench_arrays *arrays,
                                  const clmgk_attention_desc *desc, size_t workspace_bytes, bench_own *own,
                                  tool_error *error)
{
    const bench_elements count = bench_count_elements(desc);
    TOOL_TRY(make_parameter(device, arrays, desc, prior_at, count.prior, &own->prior, error));
    TOOL_TRY(make_parameter(device, arrays, desc, shift_at, count.shift, &own->shift, error));
    TOOL_TRY(make_parameter(device, arrays, desc, bias_at, count.bias, &own->bias, error));
    TOOL_TRY(make_parameter(device, arrays, desc, slope_at, count.slopes, &own->slopes, error));
    TOOL_TRY(make_parameter(device, arrays, desc, sink_at, count.sinks, &own->sinks, error));
    TOOL_TRY(make_parameter(device, arrays, desc, mix_at, count.mix, &own->mix, error));
    TOOL_TRY(make_parameter(device, arrays, desc, mix_weight_at, count.mix_weight, &own->mix_weight, error));
    TOOL_TRY(make_parameter(device, arrays, desc, mix_offset_at, count.mix_offset, &own->mix_offset, error));
    TOOL_TRY(make_parameter(device, arrays, desc, noise_at, count.noise, &own->noise, error));
    TOOL_TRY(make_offsets(device, desc, count.offsets, &own->offsets, error));
    if (workspace_bytes)
        TOOL_TRY(tool_make_buffer(device, workspace_bytes, NULL, &own->workspace, error));
    if (!desc->gradients)
        return TOOL_DONE;
    TOOL_TRY(tool_make_buffer(device, count.o * clmgk_ref_dtype_size(desc->dtype), NULL, &own->o, error));
    return tool_make_buffer(device, count.lse * sizeof(float), NULL, &own->lse, error);
}

tool_exit bench_own_create(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                           size_t workspace_bytes, bench_own *own, tool_error *error)
{
    *own = (bench_own){.args = CLMGK_ATTENTION_ARGS_INIT};
    TOOL_TRY(make_own_buffers(device, arrays, desc, workspace_bytes, own, error));
    own->args.q.memory = arrays->q[desc->dtype];
    own->args.k.memory = arrays->k[desc->dtype];
    own->args.v.memory = arrays->v[desc->dtype];
    own->args.o.memory = own->o ? own->o : arrays->o;
    own->args.lse.memory = own->lse ? own->lse : arrays->lse;
    own->args.prior.memory = own->prior;
    own->args.shift.memory = own->shift;
    own->args.bias.memory = own->bias;
    own->args.slopes.memory = own->slopes;
    own->args.sinks.memory = own->sinks;
    own->args.mix.memory = own->mix;
    own->args.mix_weight.memory = own->mix_weight;
    own->args.mix_offset.memory = own->mix_offset;
    own->args.noise.memory = own->noise;
    own->args.offsets.memory = own->offsets;
    own->args.workspace.memory = own->workspace;
    own->args.seed = SEED;
    own->args.grad_o.memory = desc->gradients ? arrays->grad_o[desc->dtype] : NULL;
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++) {
        if (desc->gradients & 1U << i)
            clmgk_array_buffer(&own->args, (clmgk_array)(CLMGK_ARRAY_GRAD_Q + i))->memory = arrays->gradients[i];
    }
    return TOOL_DONE;
}

void bench_own_release(bench_own *own)
{
    cl_mem const buffers[] = {own->prior,     own->shift,      own->bias,       own->slopes, own->sinks,
                              own->mix,       own->mix_weight, own->mix_offset, own->noise,  own->offsets,
                              own->workspace, own->o,          own->lse};
    for (size_t i = 0; i < TOOL_COUNT(buffers); i++)
        tool_release_buffer(buffers[i]);
    *own = (bench_own){0};
}

/* ---- for the reference --------------------------------------------------------------------------------------- */

static bool allocate(size_t count, double **values)
{
    *values = count ? calloc(count, sizeof(**values)) : NULL;
    return count == 0 || *values;
}

tool_exit bench_values_create(const clmgk_attention_desc *desc, bench_values *values, tool_error *error)
{
    const bench_elements count = bench_count_elements(desc);
    *values = (bench_values){.problem = {.desc = *desc, .seed = SEED}};
    bool ok = allocate(count.q, &values->q) && allocate(count.k, &values->k) && allocate(count.v, &values->v) &&
              allocate(count.prior, &values->prior) && allocate(count.shift, &values->shift) &&
              allocate(count.bias, &values->bias) && allocate(count.slopes, &values->slopes) &&
              allocate(count.sinks, &values->sinks) && allocate(count.mix, &values->mix) &&
              allocate(count.mix_weight, &values->mix_weight) && allocate(count.mix_offset, &values->mix_offset) &&
              allocate(count.noise, &values->noise) && allocate(desc->gradients ? count.o : 0, &values->grad_o);
    if (ok && count.offsets) {
        values->offsets = calloc(count.offsets, sizeof(*values->offsets));
        ok = values->offsets != NULL;
    }
    if (!ok)
        return tool_fail_memory(error, "values to check");
    values->problem.q = values->q;
    values->problem.k = values->k;
    values->problem.v = values->v;
    values->problem.prior = values->prior;
    values->problem.shift = values->shift;
    values->problem.bias = values->bias;
    values->problem.slopes = values->slopes;
    values->problem.sinks = values->sinks;
    values->problem.mix = values->mix;
    values->problem.mix_weight = values->mix_weight;
    values->problem.mix_offset = values->mix_offset;
    values->problem.noise = values->noise;
    values->problem.offsets = values->offsets;
    values->problem.grad_o = values->grad_o;
    return TOOL_DONE;
}

void bench_values_release(bench_values *values)
{
    double *const lists[] = {values->q,          values->k,      values->v,     values->prior, values->shift,
                             values->bias,       values->slopes, values->sinks, values->mix,   values->mix_weight,
                             values->mix_offset, values->noise,  values->grad_o};
    for (size_t i = 0; i < TOOL_COUNT(lists); i++)
        free(lists[i]);
    free(values->offsets);
    *values = (bench_values){0};
}

static void fill_from_pattern(const bench_arrays *arrays, clmgk_dtype dtype, size_t phase, size_t count, double *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = pattern_at(arrays, dtype, phase, i);
}

static void fill_parameter(const bench_arrays *arrays, const clmgk_attention_desc *desc, value_at value, size_t start,
                           size_t count, double *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = value(arrays, desc, start + i);
}

void bench_values_fill(const bench_arrays *arrays, const clmgk_attention_desc *whole, const bench_elements *start,
                       bench_values *values)
{
    const bench_elements count = bench_count_elements(&values->problem.desc);
    const clmgk_dtype dtype = whole->dtype;
    fill_from_pattern(arrays, dtype, PHASE_Q + start->q, count.q, values->q);
    fill_from_pattern(arrays, dtype, PHASE_K + start->k, count.k, values->k);
    fill_from_pattern(arrays, dtype, PHASE_V + start->v, count.v, values->v);
    if (values->grad_o)
        fill_from_pattern(arrays, dtype, PHASE_GRAD_O + start->o, count.o, values->grad_o);
    fill_parameter(arrays, whole, prior_at, start->prior, count.prior, values->prior);
    fill_parameter(arrays, whole, shift_at, start->shift, count.shift, values->shift);
    fill_parameter(arrays, whole, bias_at, start->bias, count.bias, values->bias);
    fill_parameter(arrays, whole, slope_at, start->slopes, count.slopes, values->slopes);
    fill_parameter(arrays, whole, sink_at, start->sinks, count.sinks, values->sinks);
    fill_parameter(arrays, whole, mix_at, start->mix, count.mix, values->mix);
    fill_parameter(arrays, whole, mix_weight_at, start->mix_weight, count.mix_weight, values->mix_weight);
    fill_parameter(arrays, whole, mix_offset_at, start->mix_offset, count.mix_offset, values->mix_offset);
    fill_parameter(arrays, whole, noise_at, start->noise, count.noise, values->noise);
    if (values->offsets)
        fill_offsets(&values->problem.desc, count.offsets, values->offsets);
}
