/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices, for clmgk-bench and clmgk-tune: their sizes, matrices, plans and check. */
#ifndef TOOL_PRODUCT_H
#define TOOL_PRODUCT_H

#include "opencl.h"

#include "clmgk/gemm.h"

/* C[m,n] = A[m,k] B[k,n]; a transposed A is held as [k,m], B as [n,k]. */
typedef struct tool_product {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    clmgk_dtype dtype;
    clmgk_precision precision; /* the least that a plan may use */
} tool_product;

#define TOOL_MAX_PRODUCTS 16

/* "MxNxK,...", or "layer" for the products of layers of width 512. */
tool_exit tool_parse_products(const char *option, const char *text, tool_product products[TOOL_MAX_PRODUCTS],
                              size_t *count, tool_error *error);

clmgk_gemm_desc tool_product_desc(const tool_product *product);

double tool_product_gflops(const tool_product *product, double ms);

/* "33 x 65 x 17, A transposed" */
typedef struct tool_product_text {
    char text[112];
} tool_product_text;
tool_product_text tool_product_name(const tool_product *product);

/* dtype, precision (null: exact), m, n, k, transpose_a and transpose_b. */
json_t *tool_product_json(const tool_product *product);

/* A, B and C on the host, and on the device in the product's type: numbers of [-1, 1], C NaN. On failure it holds what
 * the release takes. */
typedef struct tool_matrices {
    tool_product product;
    float *host[3];
    cl_mem buffer[3];
} tool_matrices;
tool_exit tool_matrices_create(const tool_device *device, const tool_product *product, tool_matrices *matrices,
                               tool_error *error);
void tool_matrices_release(tool_matrices *matrices);

/* Reads C from the device. */
tool_exit tool_matrices_read(const tool_device *device, const tool_matrices *matrices, tool_error *error);

/* Whether C on the host is the product, by the bound of clmgk/gemm.h for the sums and precision of a plan: `samples`
 * elements, the first and the last among them, or all. `message` tells what is wrong. */
bool tool_matrices_check(const tool_matrices *matrices, clmgk_dtype sums, clmgk_precision precision, size_t samples,
                         char *message, size_t size);

/* A plan of a provider (NULL: the library's choice), with its workspace. On failure it holds what the close takes. */
typedef struct tool_multiplier {
    clmgk_gemm_plan *plan;
    clmgk_gemm_args args;
} tool_multiplier;
tool_exit tool_multiplier_open(const tool_device *device, clmgk_context *library, const tool_matrices *matrices,
                               const char *provider, const char *parameters, tool_multiplier *multiplier,
                               tool_error *error);
void tool_multiplier_close(tool_multiplier *multiplier);

/* Milliseconds a call. */
tool_exit tool_multiplier_run(const tool_device *device, const tool_multiplier *multiplier, int calls, double *ms,
                              tool_error *error);

#endif
