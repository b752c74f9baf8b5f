/* SPDX-License-Identifier: Apache-2.0 */
/* Host libraries called directly, on host memory and without OpenCL: what a provider is compared with. */
#ifndef BENCH_HOST_PRODUCT_H
#define BENCH_HOST_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* C [m,n] = A [m,k] B [n,k]^T by the library of this provider, all dense. False: this build has none of that name. */
bool bench_host_product(const char *provider, int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                        float *c);

#endif
