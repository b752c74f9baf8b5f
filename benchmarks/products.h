/* SPDX-License-Identifier: Apache-2.0 */
/* clmgk-bench --gemm: matrix products. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H

#include "product.h"

/* Measures and prints. TOOL_CHECK_FAILED: a product is wrong. */
tool_exit bench_products(const tool_device *device, const tool_product *products, size_t count, double seconds,
                         bool json, tool_error *error);

#endif
