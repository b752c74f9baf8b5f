/* SPDX-License-Identifier: Apache-2.0 */
#include "product.h"

#include "reference/reference.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SIZE (1 << 24)

/* Reads "MxNxK" and moves *text behind it. */
static bool parse_product(const char **text, tool_product *product)
{
    int64_t *const sizes[] = {&product->m, &product->n, &product->k};
    *product = (tool_product){0};
    for (size_t i = 0; i < TOOL_COUNT(sizes); i++) {
        char *end = NULL;
        *sizes[i] = strtoll(*text, &end, 10);
        if (**text < '1' || **text > '9' || *sizes[i] > MAX_SIZE || (i < 2 && *end != 'x'))
            return false;
        *text = end + (i < 2 ? 1 : 0);
    }
    return true;
}

tool_exit tool_parse_products(const char *option, const char *text, tool_product products[TOOL_MAX_PRODUCTS],
                              size_t *count, tool_error *error)
{
    /* 4096 tokens: from and to width 512, to one head of 64, into a feed-forward layer */
    const char *rest = strcmp(text, "layer") == 0 ? "4096x512x512,4096x64x512,4096x2048x512" : text;
    *count = 0;
    while (*count < TOOL_MAX_PRODUCTS && parse_product(&rest, &products[*count])) {
        ++*count;
        if (*rest == '\0')
            return TOOL_DONE;
        if (*rest++ != ',')
            break;
    }
    return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected layer, or at most %d of MxNxK, separated by commas",
                     option, text, TOOL_MAX_PRODUCTS);
}

clmgk_gemm_desc tool_product_desc(const tool_product *product)
{
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    desc.m = product->m;
    desc.n = product->n;
    desc.k = product->k;
    desc.transpose_a = product->transpose_a;
    desc.transpose_b = product->transpose_b;
    desc.dtype = product->dtype;
    desc.precision = product->precision;
    return desc;
}

json_t *tool_product_json(const tool_product *product)
{
    const bool exact = product->precision == CLMGK_PRECISION_EXACT;
    return json_pack("{s:s, s:s?, s:I, s:I, s:I, s:b, s:b}", "dtype", clmgk_dtype_name(product->dtype), "precision",
                     exact ? NULL : clmgk_precision_name(product->precision), "m", (json_int_t)product->m, "n",
                     (json_int_t)product->n, "k", (json_int_t)product->k, "transpose_a", (int)product->transpose_a,
                     "transpose_b", (int)product->transpose_b);
}

double tool_product_gflops(const tool_product *product, double ms)
{
    return 2e-6 * (double)product->m * (double)product->n * (double)product->k / ms;
}

tool_product_text tool_product_name(const tool_product *product)
{
    tool_product_text name;
    const bool exact = product->precision == CLMGK_PRECISION_EXACT;
    snprintf(name.text, sizeof(name.text), "%" PRId64 " x %" PRId64 " x %" PRId64 "%s%s%s%s%s%s", product->m,
             product->n, product->k, product->dtype == CLMGK_DTYPE_F32 ? "" : " ",
             product->dtype == CLMGK_DTYPE_F32 ? "" : clmgk_dtype_name(product->dtype),
             exact ? "" : " precision=", exact ? "" : clmgk_precision_name(product->precision),
             product->transpose_a ? ", A transposed" : "", product->transpose_b ? ", B transposed" : "");
    return name;
}

static void fill(float *values, size_t count, uint32_t state)
{
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (float)((double)(state >> 8) / 8388608.0 - 1.0);
    }
}

/* Rounds numbers to the type, and stores them as elements. */
static void store(clmgk_dtype dtype, float *values, size_t count, unsigned char *elements)
{
    const size_t size = clmgk_ref_dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        double value = (double)values[i];
        clmgk_ref_store(dtype, &value, 1, elements + i * size);
        clmgk_ref_load(dtype, elements + i * size, 1, &value);
        values[i] = (float)value;
    }
}

/* The buffer of a matrix. */
static tool_exit make_buffer(const tool_device *device, clmgk_dtype dtype, float *values, size_t count, cl_mem *buffer,
                             tool_error *error)
{
    const size_t bytes = count * clmgk_ref_dtype_size(dtype);
    unsigned char *const elements = calloc(count, clmgk_ref_dtype_size(dtype));
    TOOL_TRY(tool_check_memory(elements, "matrices", error));
    store(dtype, values, count, elements);
    const tool_exit status = tool_make_buffer(device, bytes, elements, buffer, error);
    free(elements);
    return status;
}

tool_exit tool_matrices_create(const tool_device *device, const tool_product *product, tool_matrices *matrices,
                               tool_error *error)
{
    const size_t counts[3] = {(size_t)(product->m * product->k), (size_t)(product->k * product->n),
                              (size_t)(product->m * product->n)};
    *matrices = (tool_matrices){.product = *product};
    for (size_t i = 0; i < TOOL_COUNT(counts); i++) {
        const size_t bytes = counts[i] * sizeof(float);
        float *const values = matrices->host[i] = malloc(bytes);
        TOOL_TRY(tool_check_memory(values, "matrices", error));
        if (i < 2)
            fill(values, counts[i], (uint32_t)i + 1);
        else
            memset(values, 0xff, bytes);
        TOOL_TRY(make_buffer(device, product->dtype, values, counts[i], &matrices->buffer[i], error));
    }
    return TOOL_DONE;
}

void tool_matrices_release(tool_matrices *matrices)
{
    for (size_t i = 0; i < TOOL_COUNT(matrices->host); i++) {
        tool_release_buffer(matrices->buffer[i]);
        free(matrices->host[i]);
    }
    *matrices = (tool_matrices){.host = {NULL}};
}

tool_exit tool_matrices_read(const tool_device *device, const tool_matrices *matrices, tool_error *error)
{
    const clmgk_dtype dtype = matrices->product.dtype;
    const size_t count = (size_t)(matrices->product.m * matrices->product.n), size = clmgk_ref_dtype_size(dtype);
    unsigned char *const elements = calloc(count, size);
    TOOL_TRY(tool_check_memory(elements, "matrices", error));
    const tool_exit status = tool_check_cl(
        clEnqueueReadBuffer(device->queue, matrices->buffer[2], CL_TRUE, 0, count * size, elements, 0, NULL, NULL),
        "clEnqueueReadBuffer", error);
    for (size_t i = 0; status == TOOL_DONE && i < count; i++) {
        double value = 0;
        clmgk_ref_load(dtype, elements + i * size, 1, &value);
        matrices->host[2][i] = (float)value;
    }
    free(elements);
    return status;
}

/* `rounding`: of a factor. */
static bool check_element(const tool_matrices *x, clmgk_dtype sums, double rounding, int64_t row, int64_t column,
                          char *message, size_t size)
{
    const tool_product *const p = &x->product;
    const clmgk_ref_limits limits = clmgk_ref_limits_of(p->dtype);
    double exact = 0, sum = 0;
    for (int64_t l = 0; l < p->k; l++) {
        const double a = (double)x->host[0][p->transpose_a ? l * p->m + row : row * p->k + l];
        const double b = (double)x->host[1][p->transpose_b ? column * p->k + l : l * p->n + column];
        exact += a * b;
        sum += fabs(a * b);
    }
    const double relative = ((double)p->k + 4) * clmgk_ref_limits_of(sums).unit + 2 * rounding * (1 + rounding);
    const double bound = relative * sum + limits.unit * fabs(exact) + (double)p->k * 0x1p-125 + limits.least;
    const double found = (double)x->host[2][row * p->n + column];
    if (fabs(found - exact) <= bound)
        return true;
    snprintf(message, size, "%s: element %" PRId64 ", %" PRId64 " is %g: expected %g within %g",
             tool_product_name(p).text, row, column, found, exact, bound);
    return false;
}

bool tool_matrices_check(const tool_matrices *matrices, clmgk_dtype sums, clmgk_precision precision, size_t samples,
                         char *message, size_t size)
{
    static const double roundings[] = {
        [CLMGK_PRECISION_EXACT] = 0, [CLMGK_PRECISION_TF32] = 0x1p-11, [CLMGK_PRECISION_BF16] = 0x1p-8};
    const size_t total = (size_t)(matrices->product.m * matrices->product.n);
    const size_t count = samples < total ? samples : total;
    bool right = true;
    for (size_t i = 0; i < count && right; i++) {
        const int64_t at = (int64_t)(count > 1 ? (total - 1) * i / (count - 1) : 0);
        right = check_element(matrices, sums, roundings[precision], at / matrices->product.n, at % matrices->product.n,
                              message, size);
    }
    return right;
}

tool_exit tool_multiplier_open(const tool_device *device, clmgk_context *library, const tool_matrices *matrices,
                               const char *provider, const char *parameters, tool_multiplier *multiplier,
                               tool_error *error)
{
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    const clmgk_gemm_desc desc = tool_product_desc(&matrices->product);
    *multiplier = (tool_multiplier){.args = CLMGK_GEMM_ARGS_INIT};
    options.provider = provider;
    options.parameters = parameters;
    TOOL_TRY(tool_check_library(clmgk_gemm_plan_create(library, &desc, &options, &multiplier->plan, &error->library),
                                error));
    multiplier->args.a.memory = matrices->buffer[0];
    multiplier->args.b.memory = matrices->buffer[1];
    multiplier->args.c.memory = matrices->buffer[2];
    const size_t bytes = clmgk_gemm_plan_workspace_size(multiplier->plan);
    return bytes ? tool_make_buffer(device, bytes, NULL, &multiplier->args.workspace.memory, error) : TOOL_DONE;
}

void tool_multiplier_close(tool_multiplier *multiplier)
{
    clmgk_gemm_plan_release(multiplier->plan);
    tool_release_buffer(multiplier->args.workspace.memory);
    *multiplier = (tool_multiplier){.plan = NULL};
}

tool_exit tool_multiplier_run(const tool_device *device, const tool_multiplier *multiplier, int calls, double *ms,
                              tool_error *error)
{
    const double start = tool_now_ms();
    for (int i = 0; i < calls; i++) {
        const tool_exit status = tool_check_library(
            clmgk_enqueue_gemm(multiplier->plan, device->queue, &multiplier->args, 0, NULL, NULL, &error->library),
            error);
        if (status != TOOL_DONE) {
            (void)clFinish(device->queue);
            return status;
        }
    }
    const cl_int code = clFinish(device->queue);
    *ms = (tool_now_ms() - start) / calls;
    return tool_check_cl(code, "clFinish", error);
}
