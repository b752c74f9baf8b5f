/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/first_use.h"

#include "attention/first_use_values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const clmgk_array outputs[MGK_FIRST_USE_COUNT] = {
#define OUTPUT(name) CLMGK_ARRAY_##name,
    MGK_FIRST_USE_OUTPUTS(OUTPUT)};

/* ---- the problems ----------------------------------------------------------------------------------------------- */

/* Rows and keys cross the edges of blocks and tiles. */
clmgk_attention_desc mgk_first_use_problem(int family)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_MGK, CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_LINEAR};
    _Static_assert(MGK_COUNT(variants) == MGK_FAMILIES, "a problem for each family");
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = variants[family];
    desc.components = desc.variant == CLMGK_VARIANT_LINEAR ? 1 : 2;
    desc.heads = 2;
    desc.length = 40;
    desc.length_k = 75;
    desc.head_size = desc.value_size = 12;
    desc.causal = 1;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return desc;
}

/* Sixteenths, from -31 of them to 31; of the mixing from 1 on. */
void mgk_first_use_fill(clmgk_array array, float *x, int64_t count)
{
    static const clmgk_array inputs[] = {CLMGK_ARRAY_Q, CLMGK_ARRAY_K, CLMGK_ARRAY_V, CLMGK_ARRAY_GRAD_O,
                                         CLMGK_ARRAY_MIX};
    enum { HALF = 31, SHIFT = 33 };
    uint64_t state = 0;
    while (state < MGK_COUNT(inputs) && inputs[state] != array)
        ++state;
    for (int64_t i = 0; i < count; ++i) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const int n = (int)((state >> SHIFT) % (2 * HALF + 1)) - HALF;
        x[i] = (float)(array == CLMGK_ARRAY_MIX ? 1 + (n + HALF) / 2 : n) / 16.0F;
    }
}

int64_t mgk_first_use_index(int64_t count, int sample)
{
    return count * sample / MGK_FIRST_USE_SAMPLES;
}

const float *mgk_first_use_expected(int family, int output)
{
    return expected[family][output];
}

/* ---- a trial ---------------------------------------------------------------------------------------------------- */

typedef struct trial {
    clmgk_plan *plan;
    cl_command_queue queue;
    cl_mem memory[CLMGK_ARRAYS];
    float *host; /* room for the largest array */
} trial;

/* Calls may leave out the other arrays. */
static bool is_used(const clmgk_plan *plan, int array)
{
    const clmgk_presence *const presence = plan->array[array].presence;
    return presence[CLMGK_PASS_FORWARD] == CLMGK_REQUIRED || presence[CLMGK_PASS_BACKWARD] == CLMGK_REQUIRED ||
           array == CLMGK_ARRAY_WORKSPACE;
}

static bool is_input(const clmgk_plan *plan, int array)
{
    return !mgk_array_is_output(&plan->desc, CLMGK_PASS_FORWARD, (clmgk_array)array) &&
           !mgk_array_is_output(&plan->desc, CLMGK_PASS_BACKWARD, (clmgk_array)array) && array != CLMGK_ARRAY_WORKSPACE;
}

static clmgk_status make_buffer(trial *t, int array, clmgk_error *error)
{
    const clmgk_plan *const plan = t->plan;
    const int64_t count = array == CLMGK_ARRAY_WORKSPACE ? (int64_t)(clmgk_plan_workspace_size(plan) / sizeof(float))
                                                         : mgk_array_count(&plan->desc, (clmgk_array)array);
    cl_int code = CL_SUCCESS;
    if (count <= 0 || !is_used(plan, array))
        return CLMGK_OK;
    t->memory[array] =
        clCreateBuffer(plan->context->context, CL_MEM_READ_WRITE, (size_t)count * sizeof(float), NULL, &code);
    MGK_TRY(mgk_check_cl(error, code, "clCreateBuffer"));
    if (!is_input(plan, array))
        return CLMGK_OK;
    mgk_free(&plan->context->allocator, t->host);
    t->host = mgk_alloc(&plan->context->allocator, (size_t)count, sizeof(float));
    if (t->host == NULL)
        return mgk_fail_memory(error, "the first use of a device");
    mgk_first_use_fill((clmgk_array)array, t->host, count);
    code = clEnqueueWriteBuffer(t->queue, t->memory[array], CL_TRUE, 0, (size_t)count * sizeof(float), t->host, 0, NULL,
                                NULL);
    return mgk_check_cl(error, code, "clEnqueueWriteBuffer");
}

static clmgk_status enqueue(trial *t, clmgk_error *error)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        if (t->memory[i] != NULL)
            clmgk_array_buffer(&args, (clmgk_array)i)->memory = t->memory[i];
    clmgk_status status = clmgk_enqueue_forward(t->plan, t->queue, &args, 0, NULL, NULL, error);
    if (status == CLMGK_OK)
        status = clmgk_enqueue_backward(t->plan, t->queue, &args, 0, NULL, NULL, error);
    const cl_int code = clFinish(t->queue);
    MGK_TRY(status);
    return mgk_check_cl(error, code, "clFinish");
}

/* The largest difference of an output's samples from the stored ones, relative to the largest of these. */
static clmgk_status compare(const trial *t, int family, int output, double *worst, clmgk_error *error)
{
    const clmgk_array array = outputs[output];
    const float *const stored = mgk_first_use_expected(family, output);
    const int64_t count = mgk_array_count(&t->plan->desc, array);
    double largest = 0.0;
    double difference = 0.0;
    for (int i = 0; t->memory[array] != NULL && i < MGK_FIRST_USE_SAMPLES; ++i) {
        float x = 0.0F;
        const size_t at = (size_t)mgk_first_use_index(count, i) * sizeof(x);
        const cl_int code = clEnqueueReadBuffer(t->queue, t->memory[array], CL_TRUE, at, sizeof(x), &x, 0, NULL, NULL);
        MGK_TRY(mgk_check_cl(error, code, "clEnqueueReadBuffer"));
        const double apart = fabs((double)x - (double)stored[i]);
        largest = fmax(largest, fabs((double)stored[i]));
        if (!(apart <= difference)) /* also NaN */
            difference = isnan(apart) ? (double)INFINITY : apart;
    }
    *worst = largest > 0.0 ? difference / largest : 0.0;
    return CLMGK_OK;
}

/* Errors of f32 are some millionths; kernels that are wrong are far off. */
#define MOST 1e-3

static clmgk_status judge(trial *t, int family, char *wrong, size_t size, clmgk_error *error)
{
    const clmgk_context *const context = t->plan->context;
    cl_int code = CL_SUCCESS;
    t->queue = clCreateCommandQueue(context->context, context->device, 0, &code);
    MGK_TRY(mgk_check_cl(error, code, "clCreateCommandQueue"));
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        MGK_TRY(make_buffer(t, i, error));
    MGK_TRY(enqueue(t, error));
    for (int output = 0; output < MGK_FIRST_USE_COUNT; ++output) {
        double worst = 0.0;
        MGK_TRY(compare(t, family, output, &worst, error));
        if (worst > MOST && wrong[0] == '\0')
            (void)snprintf(wrong, size, "wrong numbers at the first use: %s of a small problem differs by %.2g",
                           clmgk_array_name(outputs[output]), worst);
    }
    return CLMGK_OK;
}

static void release(trial *t)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        if (t->memory[i] != NULL)
            clReleaseMemObject(t->memory[i]);
    if (t->queue != NULL)
        clReleaseCommandQueue(t->queue);
    if (t->plan != NULL)
        mgk_free(&t->plan->context->allocator, t->host);
    clmgk_plan_release(t->plan);
}

/* Runs the family's problem on the engine. Empty `wrong`: its numbers are right. */
static clmgk_status try_engine(clmgk_context *context, int family, clmgk_engine engine, char *wrong, size_t size)
{
    mgk_attempt attempt = MGK_FIRST_ATTEMPT;
    for (int i = 0; i < CLMGK_PASSES; ++i)
        attempt.parameters[i] = "";
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = engine;
    clmgk_attention_desc desc = mgk_first_use_problem(family);
    clmgk_error error = {.status = CLMGK_OK};
    trial t = {.plan = NULL};
    clmgk_status status = mgk_attention_resolve(&desc, &desc, &error);
    wrong[0] = '\0';
    if (status == CLMGK_OK)
        status = mgk_plan_make(context, &desc, &options, &attempt, &t.plan, &error);
    if (status == CLMGK_OK)
        status = judge(&t, family, wrong, size, &error);
    release(&t);
    return status;
}

/* ---- the verdict ------------------------------------------------------------------------------------------------ */

bool mgk_first_use_passes(const clmgk_plan *plan)
{
    clmgk_context *const context = plan->context;
    /* programs of matrix units have a verdict each (verify.c) */
    if (mgk_device_is_tried(&context->facts) || plan->pass[CLMGK_PASS_FORWARD] == NULL || plan->unit != 0)
        return true;
    const clmgk_engine engine = plan->pass[CLMGK_PASS_FORWARD]->engine;
    const int family = mgk_family_number(plan->family);
    mgk_verdict verdict = mgk_verdict_get(context, family, engine);
    if (verdict.known == MGK_VERDICT_NONE &&
        try_engine(context, family, engine, verdict.wrong, sizeof(verdict.wrong)) == CLMGK_OK) {
        verdict.known = verdict.wrong[0] != '\0' ? MGK_VERDICT_WRONG : MGK_VERDICT_RIGHT;
        mgk_verdict_keep(context, family, engine, &verdict);
    }
    return verdict.known != MGK_VERDICT_WRONG;
}
