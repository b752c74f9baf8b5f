/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in the process for candidates:
 *
 *     {"job": "product", m, n, k, a, b (transposed), dtype, precision, provider, parameters, untuned, runs}
 *                                                                        ms, provider, parameters
 *     {"job": "product-check", dtype, precision, provider, parameters}   wrong: against double precision
 *
 * `parameters` that are not there are what was tuned, or with untuned the provider's own.
 */
#include "tune.h"

#include <math.h>
#include <string.h>

#define MAX_RUNS 51
#define RUN_MS   40.0 /* a run of short products is several calls */

typedef struct product {
    tool_matrices matrices;
    clmgk_context *library;
    tool_multiplier multiplier;
} product;

static void close_product(product *p)
{
    tool_multiplier_close(&p->multiplier);
    clmgk_context_release(p->library);
    tool_matrices_release(&p->matrices);
}

/* On failure `p` holds what close_product takes. */
static tool_exit open_product(const tool_device *device, const char *folder, const json_t *job,
                              const tool_product *shape, product *p, tool_error *error)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    *p = (product){.library = NULL};
    options.untuned = json_is_true(json_object_get(job, "untuned"));
    if (options.untuned)
        options.cache_dir = folder;
    else
        options.tuning_dir = json_string_value(json_object_get(job, "tuning_dir"));
    TOOL_TRY(tool_matrices_create(device, shape, &p->matrices, error));
    TOOL_TRY(tool_check_library(
        clmgk_context_create(device->context, device->info.device_id, &options, &p->library, &error->library), error));
    return tool_multiplier_open(device, p->library, &p->matrices, json_string_value(json_object_get(job, "provider")),
                                json_string_value(json_object_get(job, "parameters")), &p->multiplier, error);
}

/* The type of a job's products. */
static tool_product type_of(const json_t *job)
{
    return (tool_product){.dtype = (clmgk_dtype)json_integer_value(json_object_get(job, "dtype")),
                          .precision = (clmgk_precision)json_integer_value(json_object_get(job, "precision"))};
}

static tool_exit do_time(const tool_device *device, const char *folder, const json_t *job, json_t **answer,
                         tool_error *error)
{
    tool_product shape = type_of(job);
    shape.m = json_integer_value(json_object_get(job, "m"));
    shape.n = json_integer_value(json_object_get(job, "n"));
    shape.k = json_integer_value(json_object_get(job, "k"));
    shape.transpose_a = json_is_true(json_object_get(job, "a"));
    shape.transpose_b = json_is_true(json_object_get(job, "b"));
    product p;
    const json_int_t runs = json_integer_value(json_object_get(job, "runs"));
    double samples[MAX_RUNS];
    double ms = 0;
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, open_product(device, folder, job, &shape, &p, error), done);
    TOOL_TRY_GOTO(status, tool_multiplier_run(device, &p.multiplier, 1, &ms, error), done);
    const int calls = (int)fmax(1, fmin(100, RUN_MS / fmax(ms, 1e-3)));
    for (json_int_t i = 0; i < runs && i < MAX_RUNS; i++)
        TOOL_TRY_GOTO(status, tool_multiplier_run(device, &p.multiplier, calls, &samples[i], error), done);
    if (runs < 1 || clmgk_gemm_plan_get_info(p.multiplier.plan, &info, NULL) != CLMGK_OK) {
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

static tool_exit do_check(const tool_device *device, const char *folder, const json_t *job, json_t **answer,
                          tool_error *error)
{
    static const tool_product shapes[] = {{.m = 1, .n = 1, .k = 1},
                                          {.m = 3, .n = 129, .k = 5},
                                          {.m = 65, .n = 33, .k = 17},
                                          {.m = 130, .n = 66, .k = 257},
                                          {.m = 257, .n = 191, .k = 129}};
    char message[256] = "";
    bool right = true;
    for (size_t i = 0; i < TOOL_COUNT(shapes) * 4 && right; i++) {
        tool_product shape = shapes[i / 4];
        clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
        product p;
        double ms = 0;
        shape.dtype = type_of(job).dtype;
        shape.precision = type_of(job).precision;
        shape.transpose_a = i % 2 == 1;
        shape.transpose_b = i % 4 >= 2;
        tool_exit status = open_product(device, folder, job, &shape, &p, error);
        if (status == TOOL_DONE)
            status = tool_multiplier_run(device, &p.multiplier, 1, &ms, error);
        if (status == TOOL_DONE)
            status = tool_matrices_read(device, &p.matrices, error);
        if (status == TOOL_DONE)
            status = tool_check_library(clmgk_gemm_plan_get_info(p.multiplier.plan, &info, &error->library), error);
        right = status == TOOL_DONE &&
                tool_matrices_check(&p.matrices, info.sums, info.precision, SIZE_MAX, message, sizeof(message));
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
