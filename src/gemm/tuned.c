/* SPDX-License-Identifier: Apache-2.0 */
/* Products in the database of measured values: their buckets and entries. */
#include "gemm/gemm.h"

#include <stdio.h>
#include <string.h>

mgk_tuning_key mgk_gemm_key(const clmgk_gemm_desc *desc)
{
    mgk_tuning_key key = {.operation = "gemm"};
    (void)snprintf(key.exact, sizeof(key.exact), "dtype=%s a=%s b=%s", clmgk_dtype_name(desc->dtype),
                   desc->transpose_a != 0 ? "t" : "n", desc->transpose_b != 0 ? "t" : "n");
    const size_t used = strlen(key.exact);
    if (desc->dtype == CLMGK_DTYPE_F32 && desc->precision != CLMGK_PRECISION_EXACT)
        (void)snprintf(key.exact + used, sizeof(key.exact) - used, " precision=%s",
                       clmgk_precision_name(desc->precision));
    mgk_tuning_key_add(&key, "m", desc->m);
    mgk_tuning_key_add(&key, "n", desc->n);
    mgk_tuning_key_add(&key, "k", desc->k);
    mgk_tuning_key_add(&key, "batch", desc->batch);
    return key;
}

mgk_tuning_key mgk_gemm_device_key(clmgk_dtype dtype)
{
    mgk_tuning_key key = {.operation = "clblast"};
    (void)snprintf(key.exact, sizeof(key.exact), "dtype=%s", clmgk_dtype_name(dtype));
    return key;
}

clmgk_status mgk_gemm_check_tuned(const char *choice, const char *parameters, clmgk_error *error)
{
    const mgk_gemm_provider *const provider = mgk_gemm_provider_named(choice);
    if (provider == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "choice: \"%s\": expected a provider of products", choice);
    return provider->check_parameters(parameters != NULL ? parameters : "", error);
}

static clmgk_status check_given(const clmgk_context *context, const clmgk_tuned *tuned, clmgk_error *error)
{
    if (context == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "context: NULL: expected a context");
    if (tuned == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "tuned: NULL: expected a measurement");
    if (tuned->choice == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "tuned.choice: NULL: expected a provider of products");
    return mgk_gemm_check_tuned(tuned->choice, tuned->parameters, error);
}

/* Checks that the provider supports the dtype on this device. */
static clmgk_status check_device(const clmgk_context *context, clmgk_dtype dtype, const char *choice,
                                 clmgk_error *error)
{
    clmgk_error reason;
    const clmgk_status status = mgk_gemm_provider_named(choice)->applicable(&context->facts, dtype, &reason);
    if (status == CLMGK_ERROR_UNSUPPORTED)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "choice: \"%s\": %s", choice, reason.message);
    return status == CLMGK_OK ? CLMGK_OK : mgk_fail_code(error, status, reason.opencl_code, "%s", reason.message);
}

clmgk_status clmgk_gemm_tuning_store(clmgk_context *context, const char *cache_dir, const clmgk_gemm_desc *desc,
                                     const clmgk_tuned *tuned, clmgk_error *error)
{
    clmgk_gemm_desc resolved;
    MGK_TRY(check_given(context, tuned, error));
    MGK_TRY(mgk_gemm_resolve(desc, &resolved, error));
    MGK_TRY(check_device(context, resolved.dtype, tuned->choice, error));
    const mgk_tuning_key key = mgk_gemm_key(&resolved);
    return mgk_tuning_store(context, cache_dir, &key, tuned, error);
}

clmgk_status clmgk_gemm_tuning_store_device(clmgk_context *context, const char *cache_dir, clmgk_dtype dtype,
                                            const clmgk_tuned *tuned, clmgk_error *error)
{
    MGK_TRY(check_given(context, tuned, error));
    if (clmgk_dtype_name(dtype) == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "dtype: %d: expected a clmgk_dtype", (int)dtype);
    if (strcmp(tuned->choice, mgk_gemm_clblast.name) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "choice: \"%s\": expected \"%s\"", tuned->choice,
                        mgk_gemm_clblast.name);
    MGK_TRY(check_device(context, dtype, tuned->choice, error));
    const mgk_tuning_key key = mgk_gemm_device_key(dtype);
    return mgk_tuning_store(context, cache_dir, &key, tuned, error);
}
