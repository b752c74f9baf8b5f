/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of products: checks and defaults. */
#include "gemm/gemm.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

/* ---- shapes --------------------------------------------------------------------------------------------------- */

mgk_gemm_matrix mgk_gemm_a(const clmgk_gemm_desc *desc)
{
    const bool transposed = desc->transpose_a != 0;
    return (mgk_gemm_matrix){transposed ? desc->k : desc->m, transposed ? desc->m : desc->k, desc->lda, desc->stride_a};
}

mgk_gemm_matrix mgk_gemm_b(const clmgk_gemm_desc *desc)
{
    const bool transposed = desc->transpose_b != 0;
    return (mgk_gemm_matrix){transposed ? desc->n : desc->k, transposed ? desc->k : desc->n, desc->ldb, desc->stride_b};
}

mgk_gemm_matrix mgk_gemm_c(const clmgk_gemm_desc *desc)
{
    return (mgk_gemm_matrix){desc->m, desc->n, desc->ldc, desc->stride_c};
}

size_t mgk_gemm_element(clmgk_dtype dtype)
{
    return clmgk_dtype_get_info(dtype).bytes;
}

/* (rows - 1) ld + columns of a matrix with elements. */
static bool matrix_extent(const mgk_gemm_matrix *matrix, int64_t *extent)
{
    int64_t rows = 0;
    return mgk_mul_i64(matrix->rows - 1, matrix->ld, &rows) && mgk_add_i64(rows, matrix->columns, extent);
}

bool mgk_gemm_extent(const mgk_gemm_matrix *matrix, int64_t batch, int64_t *extent)
{
    *extent = 0;
    if (matrix->rows == 0 || matrix->columns == 0)
        return true;
    int64_t single = 0, others = 0;
    return matrix_extent(matrix, &single) && mgk_mul_i64(batch - 1, matrix->stride, &others) &&
           mgk_add_i64(single, others, extent);
}

/* ---- checks --------------------------------------------------------------------------------------------------- */

static clmgk_status check_axis(const char *name, int64_t value, clmgk_error *error)
{
    if (value < 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE, "%s: %" PRId64 ": expected at least 0", name, value);
    if (value > MGK_MAX_AXIS)
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: %" PRId64 ": expected at most 2^30", name, value);
    return CLMGK_OK;
}

static clmgk_status check_flag(const char *name, int32_t value, clmgk_error *error)
{
    return value == 0 || value == 1
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId32 ": expected 0 or 1", name, value);
}

static clmgk_status check_factor(const char *name, double value, clmgk_error *error)
{
    return isfinite(value) && fabs(value) <= (double)FLT_MAX
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %g: expected a finite number in the range of f32",
                          name, value);
}

static clmgk_status check_fields(const clmgk_gemm_desc *desc, clmgk_error *error)
{
    if ((unsigned)desc->dtype >= CLMGK_DTYPES)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "dtype: %d: expected a clmgk_dtype", (int)desc->dtype);
    if (clmgk_precision_name(desc->precision) == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "precision: %d: expected a clmgk_precision",
                        (int)desc->precision);
    MGK_TRY(check_flag("transpose_a", desc->transpose_a, error));
    MGK_TRY(check_flag("transpose_b", desc->transpose_b, error));
    MGK_TRY(check_flag("broadcast_a", desc->broadcast_a, error));
    MGK_TRY(check_flag("broadcast_b", desc->broadcast_b, error));
    MGK_TRY(check_axis("m", desc->m, error));
    MGK_TRY(check_axis("n", desc->n, error));
    MGK_TRY(check_axis("k", desc->k, error));
    MGK_TRY(check_axis("batch", desc->batch, error));
    MGK_TRY(check_factor("alpha", desc->alpha, error));
    return check_factor("beta", desc->beta, error);
}

/* Fills in `ld` and `stride` of a matrix, and checks that its extent in bytes does not overflow. */
static clmgk_status resolve_matrix(const char *name, mgk_gemm_matrix matrix, const clmgk_gemm_desc *desc, int64_t *ld,
                                   int64_t *stride, int32_t broadcast, clmgk_error *error)
{
    const int64_t least = matrix.columns > 0 ? matrix.columns : 1;
    if (*ld != 0 && *ld < least)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "ld%s: %" PRId64 ": expected at least %" PRId64 ", a stored row, or 0", name, *ld, least);
    if (*stride < 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE, "stride_%s: %" PRId64 ": expected at least 0", name, *stride);
    if (broadcast != 0 && *stride != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE, "stride_%s: %" PRId64 ": expected 0 with broadcast_%s = 1",
                        name, *stride, name);
    if (*ld == 0)
        *ld = least;
    matrix.ld = *ld;
    int64_t extent = 0, bytes = 0;
    bool fits = broadcast != 0 || *stride != 0 || mgk_mul_i64(matrix.rows, *ld, stride);
    matrix.stride = *stride;
    fits = fits && mgk_gemm_extent(&matrix, desc->batch, &extent) &&
           mgk_mul_i64(extent, (int64_t)mgk_gemm_element(desc->dtype), &bytes);
    return fits ? CLMGK_OK : mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its bytes do not fit in 64 bits", name);
}

/* Accepts matrices of C one after the other, or with their rows side by side; no other disjoint layouts. */
static clmgk_status check_disjoint(const clmgk_gemm_desc *desc, clmgk_error *error)
{
    const mgk_gemm_matrix c = mgk_gemm_c(desc);
    int64_t single = 0, row = 0;
    if (desc->batch == 1 || c.rows == 0 || c.columns == 0)
        return CLMGK_OK;
    const bool apart = matrix_extent(&c, &single) && c.stride >= single;
    const bool beside = c.stride >= c.columns && mgk_mul_i64(desc->batch - 1, c.stride, &row) &&
                        mgk_add_i64(row, c.columns, &row) && row <= c.ld;
    return apart || beside ? CLMGK_OK
                           : mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                                      "stride_c: %" PRId64 ": the matrices of C overlap: expected at least %" PRId64
                                      ", or rows of all %" PRId64 " within ldc",
                                      c.stride, single, desc->batch);
}

clmgk_status mgk_gemm_resolve(const clmgk_gemm_desc *desc, clmgk_gemm_desc *resolved, clmgk_error *error)
{
    if (desc == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "desc: NULL: expected a descriptor");
    clmgk_gemm_desc full;
    MGK_TRY(mgk_struct_read(desc, "desc", MGK_SIZE_WITH(clmgk_gemm_desc, beta), &full, sizeof(full), error));
    MGK_TRY(check_fields(&full, error));
    full.batch = full.batch == 0 ? 1 : full.batch;
    full.alpha = full.alpha == 0.0 ? 1.0 : full.alpha;
    MGK_TRY(resolve_matrix("a", mgk_gemm_a(&full), &full, &full.lda, &full.stride_a, full.broadcast_a, error));
    MGK_TRY(resolve_matrix("b", mgk_gemm_b(&full), &full, &full.ldb, &full.stride_b, full.broadcast_b, error));
    MGK_TRY(resolve_matrix("c", mgk_gemm_c(&full), &full, &full.ldc, &full.stride_c, 0, error));
    MGK_TRY(check_disjoint(&full, error));
    *resolved = full;
    return CLMGK_OK;
}

clmgk_status clmgk_gemm_validate(const clmgk_gemm_desc *desc, clmgk_gemm_desc *resolved, clmgk_error *error)
{
    clmgk_gemm_desc full;
    MGK_TRY(mgk_gemm_resolve(desc, &full, error));
    if (resolved == NULL)
        return CLMGK_OK;
    resolved->struct_size = desc->struct_size;
    mgk_struct_write(resolved, 0, &full, sizeof(full));
    return CLMGK_OK;
}
