/* SPDX-License-Identifier: Apache-2.0 */
/* clmgk-bench --gemm: matrix products. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H

#include "opencl.h"
#include "tool.h"

#include <jansson.h>

enum { BENCH_MAX_PRODUCTS = 16 };

typedef struct bench_product {
    int64_t m, n, k;
} bench_product;

/* "layer" or "MxNxK,...". */
tool_exit bench_parse_products(const char *text, bench_product *products, size_t *count, tool_error *error);

/* Measures and prints. TOOL_CHECK_FAILED: a product is wrong. */
tool_exit bench_products(const tool_device *device, const bench_product *products, size_t count, double seconds,
                         bool json, tool_error *error);

#endif
