/* SPDX-License-Identifier: Apache-2.0 */
/* A small problem of every variant on every engine. */
#include "info.h"

#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that no tile divides; the admixture family has three global heads where the others have two components. */
enum { BATCH = 1, HEADS = 2, GLOBAL = 3, LENGTH = 37, LENGTH_K = 53, HEAD_SIZE = 24, VALUE_SIZE = 40 };
enum { COMPONENTS = 2 };
enum {
    Q_COUNT = BATCH * GLOBAL * LENGTH * HEAD_SIZE,
    K_COUNT = BATCH * HEADS * COMPONENTS * LENGTH_K * HEAD_SIZE,
    V_COUNT = BATCH * HEADS * LENGTH_K * VALUE_SIZE,
    O_COUNT = BATCH * HEADS * LENGTH * VALUE_SIZE,
    LSE_COUNT = BATCH * HEADS * LENGTH,
    SHIFT_COUNT = HEADS * COMPONENTS * HEAD_SIZE,
    MIX_COUNT = HEADS * GLOBAL
};

static const clmgk_variant variants[] = {
#define VARIANT_VALUE(name, ...) CLMGK_VARIANT_##name,
    CLMGK_VARIANT_LIST(VARIANT_VALUE)
#undef VARIANT_VALUE
};
_Static_assert(GLOBAL <= HEADS * COMPONENTS, "room for keys");
static const clmgk_engine engines[] = {CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT};
_Static_assert(TOOL_COUNT(variants) * TOOL_COUNT(engines) <= INFO_MAX_RESULTS, "room for all results");

/* ---- inputs ------------------------------------------------------------------------------------------------- */

typedef struct inputs {
    float q[Q_COUNT], k[K_COUNT], v[V_COUNT], shift[SHIFT_COUNT];
    float mix[MIX_COUNT], mix_weight[MIX_COUNT], mix_offset[HEADS], noise[GLOBAL];
    double q_values[Q_COUNT], k_values[K_COUNT], v_values[V_COUNT], shift_values[SHIFT_COUNT];
    double mix_values[MIX_COUNT], mix_weight_values[MIX_COUNT], mix_offset_values[HEADS], noise_values[GLOBAL];
} inputs;

/* Evenly spread over -1.5 .. 1.5, without order. */
static void fill(double start, size_t count, float *elements, double *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = 3 * fmod(start + (double)i * (double)i * 0.6180339887498949, 1.0) - 1.5;
    clmgk_ref_store(CLMGK_DTYPE_F32, values, count, elements);
    clmgk_ref_load(CLMGK_DTYPE_F32, elements, count, values);
}

static void fill_inputs(inputs *in)
{
    fill(0.1, Q_COUNT, in->q, in->q_values);
    fill(0.2, K_COUNT, in->k, in->k_values);
    fill(0.3, V_COUNT, in->v, in->v_values);
    fill(0.4, SHIFT_COUNT, in->shift, in->shift_values);
    fill(0.6, MIX_COUNT, in->mix, in->mix_values);
    fill(0.7, MIX_COUNT, in->mix_weight, in->mix_weight_values);
    fill(0.8, HEADS, in->mix_offset, in->mix_offset_values);
    for (size_t r = 0; r < GLOBAL; r++)
        in->noise_values[r] = (double)(in->noise[r] = 0.5F * (float)(1 + r));
}

static tool_exit describe(clmgk_variant variant, clmgk_attention_desc *desc, tool_error *error)
{
    clmgk_error failure = {0};
    *desc = (clmgk_attention_desc)CLMGK_ATTENTION_DESC_INIT;
    desc->variant = variant;
    desc->batch = BATCH;
    desc->heads = HEADS;
    desc->length = LENGTH;
    desc->length_k = LENGTH_K;
    desc->head_size = HEAD_SIZE;
    desc->value_size = VALUE_SIZE;
    desc->causal = 1;
    const uint32_t traits = clmgk_variant_traits(variant);
    if ((traits & CLMGK_TRAIT_ADMIXTURE) && !(traits & CLMGK_TRAIT_SQUARE))
        desc->components = GLOBAL;
    desc->use_mix_weight = desc->use_mix_offset = (traits & CLMGK_TRAIT_GENERALISED) != 0;
    return clmgk_attention_validate(desc, desc, &failure) == CLMGK_OK ? TOOL_DONE : tool_fail_library(error, &failure);
}

/* ---- one run ------------------------------------------------------------------------------------------------ */

typedef struct outputs {
    float o[O_COUNT], lse[LSE_COUNT];
} outputs;

typedef struct buffers {
    cl_mem q, k, v, shift, mix, mix_weight, mix_offset, noise, o, lse, workspace;
} buffers;

static tool_exit make_buffers(const tool_device *device, const inputs *in, size_t workspace, buffers *memory,
                              tool_error *error)
{
    TOOL_TRY(tool_make_buffer(device, sizeof(in->q), in->q, &memory->q, error));
    TOOL_TRY(tool_make_buffer(device, sizeof(in->k), in->k, &memory->k, error));
    TOOL_TRY(tool_make_buffer(device, sizeof(in->v), in->v, &memory->v, error));
    TOOL_TRY(tool_make_buffer(device, sizeof(in->shift), in->shift, &memory->shift, error));
    TOOL_TRY(tool_make_buffer(device, sizeof(in->mix), in->mix, &memory->mix, error));
    TOOL_TRY(tool_make_buffer(device, sizeof(in->mix_weight), in->mix_weight, &memory->mix_weight, error));
    TOOL_TRY(tool_make_buffer(device, sizeof(in->mix_offset), in->mix_offset, &memory->mix_offset, error));
    TOOL_TRY(tool_make_buffer(device, sizeof(in->noise), in->noise, &memory->noise, error));
    TOOL_TRY(tool_make_buffer(device, O_COUNT * sizeof(float), NULL, &memory->o, error));
    TOOL_TRY(tool_make_buffer(device, LSE_COUNT * sizeof(float), NULL, &memory->lse, error));
    return tool_make_buffer(device, workspace, NULL, &memory->workspace, error);
}

static void release_buffers(const buffers *memory)
{
    const cl_mem all[] = {memory->q,   memory->k,          memory->v,          memory->shift,
                          memory->mix, memory->mix_weight, memory->mix_offset, memory->noise,
                          memory->o,   memory->lse,        memory->workspace};
    for (size_t i = 0; i < TOOL_COUNT(all); i++)
        tool_release_buffer(all[i]);
}

static tool_exit read_outputs(const tool_device *device, const buffers *memory, outputs *out, tool_error *error)
{
    cl_int code = clEnqueueReadBuffer(device->queue, memory->o, CL_TRUE, 0, sizeof(out->o), out->o, 0, NULL, NULL);
    if (code == CL_SUCCESS)
        code = clEnqueueReadBuffer(device->queue, memory->lse, CL_TRUE, 0, sizeof(out->lse), out->lse, 0, NULL, NULL);
    return code == CL_SUCCESS ? TOOL_DONE : tool_fail_cl(error, code, "clEnqueueReadBuffer");
}

/* Arrays that a variant has not are not given. */
static clmgk_attention_args args_of(const buffers *memory, clmgk_variant variant)
{
    const uint32_t traits = clmgk_variant_traits(variant);
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.q.memory = memory->q;
    args.k.memory = memory->k;
    args.v.memory = memory->v;
    args.shift.memory = variant == CLMGK_VARIANT_SMGK ? memory->shift : NULL;
    args.mix.memory = traits & CLMGK_TRAIT_ADMIXTURE ? memory->mix : NULL;
    args.mix_weight.memory = traits & CLMGK_TRAIT_GENERALISED ? memory->mix_weight : NULL;
    args.mix_offset.memory = traits & CLMGK_TRAIT_GENERALISED ? memory->mix_offset : NULL;
    args.noise.memory = traits & CLMGK_TRAIT_NOISE ? memory->noise : NULL;
    args.o.memory = memory->o;
    args.lse.memory = memory->lse;
    args.workspace.memory = memory->workspace;
    return args;
}

static tool_exit run_plan(const tool_device *device, clmgk_plan *plan, clmgk_variant variant, const inputs *in,
                          outputs *out, tool_error *error)
{
    buffers memory = {0};
    double milliseconds = 0;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, make_buffers(device, in, clmgk_plan_workspace_size(plan), &memory, error), done);
    const clmgk_attention_args args = args_of(&memory, variant);
    TOOL_TRY_GOTO(status, tool_time_pass(device, plan, CLMGK_PASS_FORWARD, &args, &milliseconds, error), done);
    status = read_outputs(device, &memory, out, error);
done:
    release_buffers(&memory);
    return status;
}

static tool_exit compare(const clmgk_attention_desc *desc, const inputs *in, const outputs *out, info_result *result,
                         tool_error *error)
{
    const clmgk_ref_problem problem = {.desc = *desc,
                                       .q = in->q_values,
                                       .k = in->k_values,
                                       .v = in->v_values,
                                       .shift = in->shift_values,
                                       .mix = in->mix_values,
                                       .mix_weight = in->mix_weight_values,
                                       .mix_offset = in->mix_offset_values,
                                       .noise = in->noise_values};
    double o[O_COUNT], lse[LSE_COUNT];
    clmgk_ref_answer answer;
    clmgk_ref_load(CLMGK_DTYPE_F32, out->o, O_COUNT, o);
    clmgk_ref_load(CLMGK_DTYPE_F32, out->lse, LSE_COUNT, lse);
    if (!clmgk_ref_solve(&problem, LSE_COUNT, NULL, &answer))
        return tool_fail_memory(error, "the reference");
    const clmgk_ref_verdict verdict = clmgk_ref_check(&answer, o, lse);
    result->ok = verdict.ok;
    result->error = verdict.error_o;
    result->bound = answer.bound_o.bound;
    snprintf(result->message, sizeof(result->message), "%s", verdict.message);
    clmgk_ref_answer_free(&answer);
    return TOOL_DONE;
}

static tool_exit test_one(const tool_device *device, const inputs *in, info_result *result, tool_error *error)
{
    clmgk_attention_desc desc;
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan *plan = NULL;
    clmgk_error failure = {0};
    outputs out;
    options.engine = result->engine;
    TOOL_TRY(describe(result->variant, &desc, error));
    const clmgk_status created = clmgk_plan_create(device->library, &desc, &options, &plan, &failure);
    result->offered = created != CLMGK_ERROR_UNSUPPORTED;
    if (!result->offered) {
        result->ok = true;
        snprintf(result->message, sizeof(result->message), "%s", failure.message);
        return TOOL_DONE;
    }
    if (created != CLMGK_OK)
        return tool_fail_library(error, &failure);
    tool_exit status = run_plan(device, plan, desc.variant, in, &out, error);
    if (status == TOOL_DONE)
        status = compare(&desc, in, &out, result, error);
    clmgk_plan_release(plan);
    return status;
}

tool_exit info_run_selftest(const clmgk_device_info *info, info_selftest *test, tool_error *error)
{
    tool_device device = {0};
    tool_exit status = TOOL_DONE;
    *test = (info_selftest){.ok = true};
    inputs *in = malloc(sizeof(*in));
    if (!in)
        return tool_fail_memory(error, "the self-test");
    fill_inputs(in);
    TOOL_TRY_GOTO(status, tool_device_open_info(info, &device, error), done);
    for (size_t v = 0; v < TOOL_COUNT(variants); v++) {
        for (size_t e = 0; e < TOOL_COUNT(engines); e++) {
            info_result *result = &test->results[test->count++];
            *result = (info_result){.variant = variants[v], .engine = engines[e]};
            TOOL_TRY_GOTO(status, test_one(&device, in, result, error), done);
            test->ok = test->ok && result->ok;
        }
    }
done:
    tool_device_close(&device);
    free(in);
    return status;
}
