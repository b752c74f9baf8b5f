/* SPDX-License-Identifier: Apache-2.0 */
/* The provider openblas: f32 on the host's CPU. */
#include "gemm/gemm.h"

#if CLMGK_OPENBLAS
#include <cblas.h>

/* The library's one function in use. */
typedef struct openblas {
    __typeof__(cblas_sgemm) *sgemm;
} openblas;

static clmgk_status load(openblas *blas, clmgk_error *error)
{
    static const char *const name = "cblas_sgemm";
    return mgk_library_load(CLMGK_OPENBLAS_SONAME, &name, 1, blas, error);
}

static void release_library(mgk_gemm_host *host)
{
    mgk_free(&host->allocator, host->library);
}

static clmgk_status applicable(const mgk_device_facts *facts, clmgk_dtype dtype, clmgk_error *error)
{
    openblas blas;
    MGK_TRY(mgk_gemm_host_device(facts, error));
    if (dtype != CLMGK_DTYPE_F32)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "OpenBLAS multiplies only f32 here, not %s",
                        clmgk_dtype_name(dtype));
    return load(&blas, error);
}

static void multiply(const mgk_gemm_host *host, const clmgk_gemm_desc *desc, const void *a, const void *b, void *c)
{
    const openblas *const blas = host->library;
    const enum CBLAS_TRANSPOSE turn_a = desc->transpose_a != 0 ? CblasTrans : CblasNoTrans;
    const enum CBLAS_TRANSPOSE turn_b = desc->transpose_b != 0 ? CblasTrans : CblasNoTrans;
    for (int64_t i = 0; i < desc->batch; ++i)
        blas->sgemm(CblasRowMajor, turn_a, turn_b, (blasint)desc->m, (blasint)desc->n, (blasint)desc->k,
                    (float)desc->alpha, (const float *)a + i * desc->stride_a, (blasint)desc->lda,
                    (const float *)b + i * desc->stride_b, (blasint)desc->ldb, (float)desc->beta,
                    (float *)c + i * desc->stride_c, (blasint)desc->ldc);
}

static clmgk_status check_ld(const char *name, int64_t ld, clmgk_error *error)
{
    return ld <= INT32_MAX ? CLMGK_OK
                           : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "OpenBLAS takes no %s beyond 2^31 - 1", name);
}

static clmgk_status plan_product(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    (void)parameters;
    MGK_TRY(check_ld("lda", plan->desc.lda, error));
    MGK_TRY(check_ld("ldb", plan->desc.ldb, error));
    MGK_TRY(check_ld("ldc", plan->desc.ldc, error));
    openblas *const blas = mgk_alloc(&plan->context->allocator, 1, sizeof(*blas));
    if (blas == NULL)
        return mgk_fail_memory(error, "a plan");
    clmgk_status status = load(blas, error);
    if (status == CLMGK_OK)
        status = mgk_gemm_host_create(plan, multiply, release_library, blas, error);
    if (status != CLMGK_OK)
        mgk_free(&plan->context->allocator, blas);
    return status;
}

/* The call's copy of the plan has the sizes. */
static clmgk_status resize(clmgk_gemm_plan *plan, clmgk_error *error)
{
    (void)error;
    plan->steps->step[plan->steps->count++] = (mgk_step){.enqueue = mgk_gemm_host_enqueue, .state = plan};
    return CLMGK_OK;
}

const mgk_gemm_provider mgk_gemm_openblas = {.name = "openblas",
                                             .is_host = true,
                                             .applicable = applicable,
                                             .check_parameters = mgk_gemm_no_parameters,
                                             .plan = plan_product,
                                             .enqueue = mgk_gemm_host_enqueue,
                                             .resize = resize,
                                             .release = mgk_gemm_host_release};

#else
MGK_GEMM_ABSENT(openblas, "OpenBLAS", true);
#endif
