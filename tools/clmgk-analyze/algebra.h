/* SPDX-License-Identifier: Apache-2.0 */
/* BLAS and LAPACK in double precision, on dense row-major matrices. */
#ifndef ANALYZE_ALGEBRA_H
#define ANALYZE_ALGEBRA_H

#include "tool.h"

/* Symmetric matrices [n,n]: the lower triangle is there. */

/* gram += X X^T, X [n,k]. */
void algebra_add_row_products(int64_t n, int64_t k, const double *x, double *gram);
/* gram += X^T X, X [k,n]. */
void algebra_add_column_products(int64_t n, int64_t k, const double *x, double *gram);

/* y[rows] = A x, or y[columns] = A^T x; A [rows,columns]. */
void algebra_multiply(int64_t rows, int64_t columns, const double *a, bool transposed, const double *x, double *y);
/* A -= x y^T */
void algebra_subtract_outer(int64_t rows, int64_t columns, const double *x, const double *y, double *a);

/* Eigenvalues, the smallest first, of a symmetric matrix, which is overwritten. */
tool_exit algebra_eigenvalues(int64_t n, double *matrix, double *values, tool_error *error);

/* Singular values, the largest first, of A [rows,columns], which is overwritten. */
tool_exit algebra_singular_values(int64_t rows, int64_t columns, double *a, double *values, tool_error *error);

/* Solves A x = b, A positive definite; both are overwritten, b by x. *solved: A was positive definite. */
void algebra_solve(int64_t n, int64_t right_sides, double *a, double *b, bool *solved);

#endif
