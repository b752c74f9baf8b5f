/* SPDX-License-Identifier: Apache-2.0 */
#include "host_product.h"

#include <dlfcn.h>
#include <string.h>

#if CLMGK_OPENBLAS
#include <cblas.h>
#endif
#if CLMGK_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

#if CLMGK_OPENBLAS || CLMGK_ONEDNN
/* The function of a library, which stays in the process: the provider has loaded it too. */
static bool find(const char *library, const char *name, void *function, size_t size)
{
    void *const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    void *const symbol = handle ? dlsym(handle, name) : NULL;
    if (handle)
        (void)dlclose(handle);
    if (!symbol)
        return false;
    memcpy(function, &symbol, size); /* C has no conversion from object to function pointers */
    return true;
}
#endif

bool bench_host_product(const char *provider, int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c)
{
#if CLMGK_OPENBLAS
    if (strcmp(provider, "openblas") == 0) {
        __typeof__(cblas_sgemm) *sgemm = NULL;
        if (!find(CLMGK_OPENBLAS_SONAME, "cblas_sgemm", &sgemm, sizeof(sgemm)))
            return false;
        sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)m, (blasint)n, (blasint)k, 1, a, (blasint)k, b,
              (blasint)k, 0, c, (blasint)n);
        return true;
    }
#endif
#if CLMGK_ONEDNN
    if (strcmp(provider, "onednn") == 0) {
        __typeof__(dnnl_sgemm) *sgemm = NULL;
        return find(CLMGK_ONEDNN_SONAME, "dnnl_sgemm", &sgemm, sizeof(sgemm)) &&
               sgemm('N', 'T', m, n, k, 1, a, k, b, k, 0, c, n) == dnnl_success;
    }
#endif
    (void)provider, (void)m, (void)n, (void)k, (void)a, (void)b, (void)c;
    return false;
}
