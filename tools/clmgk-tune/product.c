/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in the process for candidates:
 *
 *     {"job": "product", m, n, k, a, b (transposed), provider, parameters, untuned, runs}   ms, provider, parameters
 *     {"job": "product-check", provider, parameters}                     wrong: against double precision
 *
 * `parameters` that are not there are what was tuned, or with untuned the provider's own.
 */
#include "tune.h"

#include "clmgk/gemm.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RUNS 51
#define RUN_MS   40.0 /* a run of short products is several calls */

typedef struct product {
    tune_shape shape;
    float *a, *b, *c;
    cl_mem buffer[4]; /* A, B, C, workspace */
    clmgk_context *library;
    clmgk_gemm_plan *plan;
} product;

static void close_product(product *p)
{
    clmgk_gemm_plan_release(p->plan);
    clmgk_context_release(p->library);
    for (size_t i = 0; i < TOOL_COUNT(p->buffer); i++)
        tool_release_buffer(p->buffer[i]);
    free(p->a);
    free(p->b);
    free(p->c);
}

/* Numbers of [-1, 1] that differ. */
static void fill(float *values, size_t count, uint32_t state)
{
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (float)((double)(state >> 8) / 8388608.0 - 1.0);
    }
}

static tool_exit make_plan(const tool_device *device, const char *folder, const json_t *job, product *p,
                           tool_error *error)
{
    clmgk_context_options context_options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    clmgk_error failure = {0};
    context_options.cache_dir = folder;
    context_options.untuned = json_is_true(json_object_get(job, "untuned"));
    if (!context_options.untuned) {
        context_options.cache_dir = NULL;
        context_options.tuning_dir = json_string_value(json_object_get(job, "tuning_dir"));
    }
    options.provider = json_string_value(json_object_get(job, "provider"));
    options.parameters = json_string_value(json_object_get(job, "parameters"));
    desc.m = p->shape.m;
    desc.n = p->shape.n;
    desc.k = p->shape.k;
    desc.transpose_a = p->shape.transpose_a;
    desc.transpose_b = p->shape.transpose_b;
    if (clmgk_context_create(device->context, device->info.device_id, &context_options, &p->library, &failure) !=
            CLMGK_OK ||
        clmgk_gemm_plan_create(p->library, &desc, &options, &p->plan, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    return TOOL_DONE;
}

/* On failure `p` holds what close_product takes. */
static tool_exit open_product(const tool_device *device, const char *folder, const json_t *job, product *p,
                              tool_error *error)
{
    const size_t a = (size_t)(p->shape.m * p->shape.k), b = (size_t)(p->shape.k * p->shape.n);
    const size_t c = (size_t)(p->shape.m * p->shape.n);
    p->a = calloc(a, sizeof(float));
    p->b = calloc(b, sizeof(float));
    p->c = calloc(c, sizeof(float));
    if (!p->a || !p->b || !p->c)
        return tool_fail_memory(error, "matrices");
    fill(p->a, a, 1);
    fill(p->b, b, 2);
    memset(p->c, 0xff, c * sizeof(float)); /* NaN */
    TOOL_TRY(make_plan(device, folder, job, p, error));
    TOOL_TRY(tool_make_buffer(device, a * sizeof(float), p->a, &p->buffer[0], error));
    TOOL_TRY(tool_make_buffer(device, b * sizeof(float), p->b, &p->buffer[1], error));
    TOOL_TRY(tool_make_buffer(device, c * sizeof(float), p->c, &p->buffer[2], error));
    const size_t workspace = clmgk_gemm_plan_workspace_size(p->plan);
    return workspace ? tool_make_buffer(device, workspace, NULL, &p->buffer[3], error) : TOOL_DONE;
}

static tool_exit run_product(const tool_device *device, const product *p, int calls, double *ms, tool_error *error)
{
    clmgk_gemm_args args = CLMGK_GEMM_ARGS_INIT;
    clmgk_error failure = {0};
    args.a.memory = p->buffer[0];
    args.b.memory = p->buffer[1];
    args.c.memory = p->buffer[2];
    args.workspace.memory = p->buffer[3];
    const double start = tool_now_ms();
    for (int i = 0; i < calls; i++) {
        if (clmgk_enqueue_gemm(p->plan, device->queue, &args, 0, NULL, NULL, &failure) != CLMGK_OK) {
            (void)clFinish(device->queue);
            return tool_fail_library(error, &failure);
        }
    }
    const cl_int code = clFinish(device->queue);
    *ms = (tool_now_ms() - start) / calls;
    return code == CL_SUCCESS ? TOOL_DONE : tool_fail_cl(error, code, "clFinish");
}

static tool_exit do_time(const tool_device *device, const char *folder, const json_t *job, json_t **answer,
                         tool_error *error)
{
    product p = {.shape = {json_integer_value(json_object_get(job, "m")), json_integer_value(json_object_get(job, "n")),
                           json_integer_value(json_object_get(job, "k")), json_is_true(json_object_get(job, "a")),
                           json_is_true(json_object_get(job, "b"))}};
    const json_int_t runs = json_integer_value(json_object_get(job, "runs"));
    double samples[MAX_RUNS];
    double ms = 0;
    clmgk_gemm_info info;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, open_product(device, folder, job, &p, error), done);
    TOOL_TRY_GOTO(status, run_product(device, &p, 1, &ms, error), done);
    const int calls = (int)fmax(1, fmin(100, RUN_MS / fmax(ms, 1e-3)));
    for (json_int_t i = 0; i < runs && i < MAX_RUNS; i++)
        TOOL_TRY_GOTO(status, run_product(device, &p, calls, &samples[i], error), done);
    if (runs < 1 || clmgk_gemm_plan_get_info(p.plan, &info, NULL) != CLMGK_OK) {
        status = tool_fail(error, TOOL_BAD_INPUT, "runs: expected at least 1");
        goto done;
    }
    *answer = json_pack("{s:b, s:f, s:s, s:s}", "ok", 1, "ms",
                        tool_spread_of(samples, (size_t)(runs < MAX_RUNS ? runs : MAX_RUNS)).median, "provider",
                        info.provider, "parameters", info.parameters);
done:
    close_product(&p);
    return status;
}

/* By the bound of clmgk/gemm.h. `message`: what is wrong. */
static bool is_right(const product *p, char *message, size_t size)
{
    const int64_t n = p->shape.n, k = p->shape.k;
    for (int64_t i = 0; i < p->shape.m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double exact = 0, sum = 0;
            for (int64_t l = 0; l < k; l++) {
                const double x = (double)(p->shape.transpose_a ? p->a[l * p->shape.m + i] : p->a[i * k + l]);
                const double y = (double)(p->shape.transpose_b ? p->b[j * k + l] : p->b[l * n + j]);
                exact += x * y;
                sum += fabs(x * y);
            }
            const double bound = ((double)k + 4) * ldexp(sum, -24) + ldexp(fabs(exact), -24) + (double)k * 0x1p-125;
            const double found = (double)p->c[i * n + j];
            if (!(fabs(found - exact) <= bound)) {
                snprintf(message, size,
                         "%" PRId64 " x %" PRId64 " x %" PRId64 "%s%s: element %" PRId64 ", %" PRId64
                         " is %g: expected %g within %g",
                         p->shape.m, n, k, p->shape.transpose_a ? ", A transposed" : "",
                         p->shape.transpose_b ? ", B transposed" : "", i, j, found, exact, bound);
                return false;
            }
        }
    }
    return true;
}

static tool_exit do_check(const tool_device *device, const char *folder, const json_t *job, json_t **answer,
                          tool_error *error)
{
    static const tune_shape shapes[] = {{.m = 1, .n = 1, .k = 1},
                                        {.m = 3, .n = 129, .k = 5},
                                        {.m = 65, .n = 33, .k = 17},
                                        {.m = 130, .n = 66, .k = 257},
                                        {.m = 257, .n = 191, .k = 129}};
    char message[256] = "";
    bool right = true;
    for (size_t i = 0; i < TOOL_COUNT(shapes) * 4 && right; i++) {
        product p = {.shape = shapes[i / 4]};
        p.shape.transpose_a = i % 2 == 1;
        p.shape.transpose_b = i % 4 >= 2;
        double ms = 0;
        tool_exit status = open_product(device, folder, job, &p, error);
        if (status == TOOL_DONE)
            status = run_product(device, &p, 1, &ms, error);
        if (status == TOOL_DONE) {
            const size_t bytes = (size_t)(p.shape.m * p.shape.n) * sizeof(float);
            const cl_int code = clEnqueueReadBuffer(device->queue, p.buffer[2], CL_TRUE, 0, bytes, p.c, 0, NULL, NULL);
            status = code == CL_SUCCESS ? TOOL_DONE : tool_fail_cl(error, code, "clEnqueueReadBuffer");
            right = status == TOOL_DONE && is_right(&p, message, sizeof(message));
        }
        close_product(&p);
        TOOL_TRY(status);
    }
    *answer = json_pack("{s:b, s:b, s:s}", "ok", 1, "wrong", (int)!right, "message", message);
    return TOOL_DONE;
}

tool_exit tune_product_job(const tool_device *device, const char *folder, const json_t *job, json_t **answer,
                           tool_error *error)
{
    const char *name = json_string_value(json_object_get(job, "job"));
    return strcmp(name, "product-check") == 0 ? do_check(device, folder, job, answer, error)
                                              : do_time(device, folder, job, answer, error);
}
