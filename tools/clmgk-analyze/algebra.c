/* SPDX-License-Identifier: Apache-2.0 */
#include "algebra.h"

#include <stdlib.h>

/* Fortran's: column-major, so that a row-major matrix is its own transpose there, and the lower triangle the upper
 * one; a string's length is a hidden argument at the end. */
void dsyrk_(const char *uplo, const char *trans, const int *n, const int *k, const double *alpha, const double *a,
            const int *lda, const double *beta, double *c, const int *ldc, size_t, size_t);
void dgemv_(const char *trans, const int *m, const int *n, const double *alpha, const double *a, const int *lda,
            const double *x, const int *incx, const double *beta, double *y, const int *incy, size_t);
void dger_(const int *m, const int *n, const double *alpha, const double *x, const int *incx, const double *y,
           const int *incy, double *a, const int *lda);
void dsyevd_2stage_(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w,
                    double *work, const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);
void dgesdd_(const char *jobz, const int *m, const int *n, double *a, const int *lda, double *s, double *u,
             const int *ldu, double *vt, const int *ldvt, double *work, const int *lwork, int *iwork, int *info,
             size_t);
void dposv_(const char *uplo, const int *n, const int *nrhs, double *a, const int *lda, double *b, const int *ldb,
            int *info, size_t);

static const int one_step = 1;

void algebra_add_row_products(int64_t n, int64_t k, const double *x, double *gram)
{
    const int size = (int)n, inner = (int)k;
    const double one = 1.0;
    dsyrk_("U", "T", &size, &inner, &one, x, &inner, &one, gram, &size, 1, 1);
}

void algebra_add_column_products(int64_t n, int64_t k, const double *x, double *gram)
{
    const int size = (int)n, inner = (int)k;
    const double one = 1.0;
    dsyrk_("U", "N", &size, &inner, &one, x, &size, &one, gram, &size, 1, 1);
}

void algebra_multiply(int64_t rows, int64_t columns, const double *a, bool transposed, const double *x, double *y)
{
    const int m = (int)columns, n = (int)rows;
    const double one = 1.0, zero = 0.0;
    dgemv_(transposed ? "N" : "T", &m, &n, &one, a, &m, x, &one_step, &zero, y, &one_step, 1);
}

void algebra_subtract_outer(int64_t rows, int64_t columns, const double *x, const double *y, double *a)
{
    const int m = (int)columns, n = (int)rows;
    const double minus_one = -1.0;
    dger_(&m, &n, &minus_one, y, &one_step, x, &one_step, a, &m);
}

static tool_exit check(const char *routine, int info, tool_error *error)
{
    return info == 0 ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "LAPACK: %s failed (%d)", routine, info);
}

tool_exit algebra_eigenvalues(int64_t n, double *matrix, double *values, tool_error *error)
{
    const int size = (int)n, ask = -1;
    double work_size = 1.0;
    int int_size = 1, info = 0;
    dsyevd_2stage_("N", "U", &size, matrix, &size, values, &work_size, &ask, &int_size, &ask, &info, 1, 1);
    TOOL_TRY(check("dsyevd_2stage", info, error));
    const int words = (int)work_size;
    double *const work = malloc((size_t)words * sizeof(double));
    int *const int_work = malloc((size_t)int_size * sizeof(int));
    tool_exit status = work && int_work ? TOOL_DONE : tool_fail_memory(error, "eigenvalues");
    if (status == TOOL_DONE) {
        dsyevd_2stage_("N", "U", &size, matrix, &size, values, work, &words, int_work, &int_size, &info, 1, 1);
        status = check("dsyevd_2stage", info, error);
    }
    free(work);
    free(int_work);
    return status;
}

tool_exit algebra_singular_values(int64_t rows, int64_t columns, double *a, double *values, tool_error *error)
{
    const int m = (int)columns, n = (int)rows, ask = -1;
    const size_t smaller = (size_t)TOOL_MIN(rows, columns);
    double work_size = 1.0;
    int info = 0;
    int *const int_work = calloc(8 * smaller, sizeof(int));
    TOOL_TRY(tool_check_memory(int_work, "singular values", error));
    dgesdd_("N", &m, &n, a, &m, values, NULL, &one_step, NULL, &one_step, &work_size, &ask, int_work, &info, 1);
    const int words = (int)work_size;
    double *const work = info == 0 ? malloc((size_t)words * sizeof(double)) : NULL;
    tool_exit status = check("dgesdd", info, error);
    if (status == TOOL_DONE)
        status = tool_check_memory(work, "singular values", error);
    if (status == TOOL_DONE) {
        dgesdd_("N", &m, &n, a, &m, values, NULL, &one_step, NULL, &one_step, work, &words, int_work, &info, 1);
        status = check("dgesdd", info, error);
    }
    free(work);
    free(int_work);
    return status;
}

void algebra_solve(int64_t n, int64_t right_sides, double *a, double *b, bool *solved)
{
    const int size = (int)n, count = (int)right_sides;
    int info = 0;
    dposv_("U", &size, &count, a, &size, b, &size, &info, 1);
    *solved = info == 0;
}
