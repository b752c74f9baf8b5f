/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of a shape: their descriptors, what they cost, and arrays for them. */
#include "bench.h"

#include "reference/reference.h"
#include "work.h"

#include <math.h>
#include <stdlib.h>

/* ---- descriptors -------------------------------------------------------------------------------------------- */

static int64_t heads_of(const bench_shape *shape, const bench_variant *variant)
{
    switch (variant->heads) {
    case BENCH_HEADS_OF_SHAPE:
        return shape->heads;
    case BENCH_HEADS_HALF:
        return (shape->heads + 1) / 2;
    default:
        return variant->heads;
    }
}

static bool has_components(clmgk_variant variant)
{
    return variant == CLMGK_VARIANT_MGK || variant == CLMGK_VARIANT_SMGK;
}

static tool_exit make_case(const bench_shape *shape, const bench_variant *variant, clmgk_dtype dtype, bool causal,
                           bench_case *one, tool_error *error)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = variant->variant;
    desc.dtype = dtype;
    desc.batch = shape->batch;
    desc.heads = heads_of(shape, variant);
    desc.kv_heads = shape->kv_heads;
    desc.components = has_components(variant->variant) ? shape->components : 0;
    desc.length = shape->length;
    desc.length_k = shape->length_k ? shape->length_k : shape->length;
    desc.head_size = shape->head_size;
    desc.value_size = shape->value_size;
    desc.causal = causal;
    if (has_components(variant->variant)) /* learned per head, as the papers' models do */
        desc.prior_shape = CLMGK_PRIOR_HM;
    clmgk_error failure = {0};
    if (clmgk_attention_validate(&desc, &desc, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    *one = (bench_case){.shape = shape, .desc = desc};
    one->flops = tool_forward_flops(&desc, tool_visible_pairs(&desc, NULL));
    one->array_bytes = bench_array_bytes(&desc);
    return TOOL_DONE;
}

/* The cases of a shape, in the order in which they are run. */
static tool_exit make_group(const bench_options *options, const bench_shape *shape, bench_group *group,
                            tool_error *error)
{
    static const bench_variant softmax = {CLMGK_VARIANT_SOFTMAX, BENCH_HEADS_OF_SHAPE};
    static const clmgk_dtype small_types[] = {CLMGK_DTYPE_F16, CLMGK_DTYPE_BF16};
    group->shape = shape;
    group->cases =
        calloc(options->variant_count * options->dtype_count + 1 + TOOL_COUNT(small_types), sizeof(*group->cases));
    if (!group->cases)
        return tool_fail_memory(error, "the list of cases");
    for (size_t t = 0; t < options->dtype_count; t++) {
        for (size_t i = 0; i < options->variant_count; i++)
            TOOL_TRY(make_case(shape, &options->variants[i], options->dtypes[t], shape->causal,
                               &group->cases[group->count++], error));
    }
    if (shape->with & BENCH_WITH_CAUSAL)
        TOOL_TRY(make_case(shape, &softmax, CLMGK_DTYPE_F32, true, &group->cases[group->count++], error));
    for (size_t t = 0; t < TOOL_COUNT(small_types) && (shape->with & BENCH_WITH_STORAGE); t++)
        TOOL_TRY(make_case(shape, &softmax, small_types[t], shape->causal, &group->cases[group->count++], error));
    return TOOL_DONE;
}

tool_exit bench_make_groups(const bench_options *options, bench_group **groups, tool_error *error)
{
    *groups = calloc(options->shape_count, sizeof(**groups));
    if (!*groups)
        return tool_fail_memory(error, "the list of shapes");
    for (size_t i = 0; i < options->shape_count; i++) {
        const tool_exit status = make_group(options, &options->shapes[i], &(*groups)[i], error);
        if (status != TOOL_DONE) {
            bench_free_groups(options, *groups);
            *groups = NULL;
            return status;
        }
    }
    return TOOL_DONE;
}

void bench_free_groups(const bench_options *options, bench_group *groups)
{
    for (size_t i = 0; groups && i < options->shape_count; i++) {
        for (size_t c = 0; c < groups[i].count; c++) {
            free(groups[i].cases[c].parameters);
            free(groups[i].cases[c].compiler_options);
            free(groups[i].cases[c].kernel);
        }
        free(groups[i].cases);
    }
    free(groups);
}

const bench_case *bench_baseline(const bench_group *group, const bench_case *one)
{
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *other = &group->cases[i];
        if (other->desc.variant == CLMGK_VARIANT_SOFTMAX && other->desc.heads == group->shape->heads &&
            other->desc.dtype == one->desc.dtype && other->desc.causal == one->desc.causal && other->repetitions)
            return other;
    }
    return NULL;
}

double bench_gflops(const bench_case *one)
{
    return one->flops / (one->time_ms.median * 1e6);
}

uint64_t bench_memory_bytes(const bench_case *one)
{
    return one->array_bytes + one->workspace_bytes;
}

double bench_fraction_of_peak(const bench_device *device, const bench_case *one)
{
    return bench_gflops(one) / device->peaks.fma_gflops;
}

/* ---- arrays ------------------------------------------------------------------------------------------------- */

bench_elements bench_count_elements(const clmgk_attention_desc *desc)
{
    const size_t b = (size_t)desc->batch, h = (size_t)desc->heads, g = (size_t)desc->kv_heads;
    const size_t n = (size_t)desc->length, s = (size_t)desc->length_k;
    const size_t d = (size_t)desc->head_size, e = (size_t)desc->value_size, m = (size_t)desc->components;
    return (bench_elements){
        .q = b * h * n * d,
        .k = b * g * (desc->variant == CLMGK_VARIANT_MGK ? m : 1) * s * d,
        .v = b * g * s * e,
        .o = b * h * n * e,
        .lse = b * h * n,
        .prior = desc->prior_shape == CLMGK_PRIOR_HM ? h * m : 0,
        .shift = desc->variant == CLMGK_VARIANT_SMGK ? h * m * d : 0,
    };
}

uint64_t bench_array_bytes(const clmgk_attention_desc *desc)
{
    const bench_elements count = bench_count_elements(desc);
    return (uint64_t)(count.q + count.k + count.v + count.o) * clmgk_ref_dtype_size(desc->dtype) +
           (uint64_t)(count.lse + count.prior + count.shift) * sizeof(float);
}

double bench_pattern_at(const bench_arrays *arrays, clmgk_dtype dtype, size_t phase, size_t element)
{
    return arrays->pattern[dtype][(phase + element) % BENCH_PATTERN];
}

float bench_prior(const clmgk_attention_desc *desc, size_t element)
{
    const size_t m = (size_t)desc->components;
    const size_t h = element / m;
    return 2.0F * (float)(1 + (h + element) % m) / (float)(m * (m + 1));
}

float bench_shift(const bench_arrays *arrays, const clmgk_attention_desc *desc, size_t element)
{
    return (float)bench_pattern_at(arrays, desc->dtype, BENCH_PHASE_SHIFT, element);
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

static bench_elements larger_elements(bench_elements a, bench_elements b)
{
    return (bench_elements){.q = larger(a.q, b.q), .k = larger(a.k, b.k), .v = larger(a.v, b.v)};
}

/* Q, K and V of one storage type, as large as its largest case needs. */
static tool_exit make_inputs(const tool_device *device, clmgk_dtype dtype, const bench_elements *count,
                             bench_arrays *arrays, tool_error *error)
{
    const size_t size = clmgk_ref_dtype_size(dtype);
    void *elements = NULL;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, make_pattern(dtype, &arrays->pattern[dtype], &elements, error), done);
    TOOL_TRY_GOTO(status, make_input(device, elements, size, BENCH_PHASE_Q, count->q, &arrays->q[dtype], error), done);
    TOOL_TRY_GOTO(status, make_input(device, elements, size, BENCH_PHASE_K, count->k, &arrays->k[dtype], error), done);
    TOOL_TRY_GOTO(status, make_input(device, elements, size, BENCH_PHASE_V, count->v, &arrays->v[dtype], error), done);
done:
    free(elements);
    return status;
}

tool_exit bench_arrays_create(const tool_device *device, const bench_group *group, bench_arrays *arrays,
                              tool_error *error)
{
    bench_elements count[BENCH_DTYPES] = {{0}};
    size_t o_bytes = 0, lse = 0;
    *arrays = (bench_arrays){0};
    for (size_t i = 0; i < group->count; i++) {
        const clmgk_attention_desc *desc = &group->cases[i].desc;
        const bench_elements needed = bench_count_elements(desc);
        count[desc->dtype] = larger_elements(count[desc->dtype], needed);
        o_bytes = larger(o_bytes, needed.o * clmgk_ref_dtype_size(desc->dtype));
        lse = larger(lse, needed.lse);
    }
    for (int dtype = 0; dtype < BENCH_DTYPES; dtype++) {
        if (count[dtype].q)
            TOOL_TRY(make_inputs(device, (clmgk_dtype)dtype, &count[dtype], arrays, error));
    }
    TOOL_TRY(tool_make_buffer(device, o_bytes, NULL, &arrays->o, error));
    return tool_make_buffer(device, lse * sizeof(float), NULL, &arrays->lse, error);
}

void bench_arrays_release(bench_arrays *arrays)
{
    for (int dtype = 0; dtype < BENCH_DTYPES; dtype++) {
        tool_release_buffer(arrays->q[dtype]);
        tool_release_buffer(arrays->k[dtype]);
        tool_release_buffer(arrays->v[dtype]);
        free(arrays->pattern[dtype]);
    }
    tool_release_buffer(arrays->o);
    tool_release_buffer(arrays->lse);
    *arrays = (bench_arrays){0};
}

/* ---- what a case has of its own ----------------------------------------------------------------------------- */

static tool_exit make_prior_and_shift(const tool_device *device, const bench_arrays *arrays,
                                      const clmgk_attention_desc *desc, bench_own *own, tool_error *error)
{
    const bench_elements count = bench_count_elements(desc);
    float *values = calloc(larger(count.prior, count.shift) + 1, sizeof(*values));
    tool_exit status = TOOL_DONE;
    if (!values)
        return tool_fail_memory(error, "priors and shifts");
    if (count.prior) {
        for (size_t i = 0; i < count.prior; i++)
            values[i] = bench_prior(desc, i);
        TOOL_TRY_GOTO(status, tool_make_buffer(device, count.prior * sizeof(*values), values, &own->prior, error),
                      done);
    }
    if (count.shift) {
        for (size_t i = 0; i < count.shift; i++)
            values[i] = bench_shift(arrays, desc, i);
        TOOL_TRY_GOTO(status, tool_make_buffer(device, count.shift * sizeof(*values), values, &own->shift, error),
                      done);
    }
done:
    free(values);
    return status;
}

tool_exit bench_own_create(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                           size_t workspace_bytes, bench_own *own, tool_error *error)
{
    *own = (bench_own){.args = CLMGK_ATTENTION_ARGS_INIT};
    TOOL_TRY(make_prior_and_shift(device, arrays, desc, own, error));
    if (workspace_bytes)
        TOOL_TRY(tool_make_buffer(device, workspace_bytes, NULL, &own->workspace, error));
    own->args.q.memory = arrays->q[desc->dtype];
    own->args.k.memory = arrays->k[desc->dtype];
    own->args.v.memory = arrays->v[desc->dtype];
    own->args.o.memory = arrays->o;
    own->args.lse.memory = arrays->lse;
    own->args.prior.memory = own->prior;
    own->args.shift.memory = own->shift;
    own->args.workspace.memory = own->workspace;
    return TOOL_DONE;
}

void bench_own_release(bench_own *own)
{
    tool_release_buffer(own->prior);
    tool_release_buffer(own->shift);
    tool_release_buffer(own->workspace);
    *own = (bench_own){0};
}
