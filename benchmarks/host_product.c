/* SPDX-License-Identifier: Apache-2.0 */
#include "host_product.h"

#include <string.h>

#if CLMGK_OPENBLAS
#include <cblas.h>
#endif
#if CLMGK_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

bool bench_host_product(const char *provider, int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c)
{
#if CLMGK_OPENBLAS
    if (strcmp(provider, "openblas") == 0) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)m, (blasint)n, (blasint)k, 1, a, (blasint)k, b,
                    (blasint)k, 0, c, (blasint)n);
        return true;
    }
#endif
#if CLMGK_ONEDNN
    if (strcmp(provider, "onednn") == 0)
        return dnnl_sgemm('N', 'T', m, n, k, 1, a, k, b, k, 0, c, n) == dnnl_success;
#endif
    (void)provider, (void)m, (void)n, (void)k, (void)a, (void)b, (void)c;
    return false;
}
