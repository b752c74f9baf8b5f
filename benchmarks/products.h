/* SPDX-License-Identifier: Apache-2.0 */
/* clmgk-bench --gemm: matrix products. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H

#include "output.h"
#include "product.h"

/* Measures and prints; signals print what has been measured so far. TOOL_CHECK_FAILED: a product is wrong. */
tool_exit bench_products(const tool_device *device, tool_outputs *outputs, const tool_product *products, size_t count,
                         double seconds, bool json, tool_error *error);

#endif
