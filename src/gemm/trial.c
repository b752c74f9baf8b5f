/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of products. */
#include "gemm/gemm.h"

#include <math.h>
#include <string.h>

/* Where the numbers of A and of B begin in their sequence; C has none of them. */
enum { OF_C = 0, OF_A = 1, OF_B = 5 };

static int number_at(size_t place)
{
    return (int)(((uint32_t)place * UINT32_C(2654435761) >> 9) % 3) - 1;
}

static clmgk_status make_matrix(const mgk_gemm_trial *t, const mgk_gemm_matrix *matrix, size_t first, cl_mem *memory,
                                clmgk_error *error)
{
    const clmgk_dtype_info type = clmgk_dtype_get_info(t->desc.dtype);
    cl_int code = CL_SUCCESS;
    int64_t extent = 0;
    (void)mgk_gemm_extent(matrix, t->desc.batch, &extent); /* of a resolved descriptor */
    const size_t count = t->offset + (size_t)extent, bytes = count * mgk_gemm_element(t->desc.dtype);
    void *const numbers = mgk_alloc(&t->context->allocator, bytes, 1);
    if (numbers == NULL)
        return mgk_fail_memory(error, "a trial of a product");
    memset(numbers, t->fill, bytes);
    for (size_t i = 0; first != OF_C && i < count; ++i)
        mgk_put_number(numbers, i, t->scale * (float)number_at(first + i), &type);
    *memory = clCreateBuffer(t->context->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, numbers, &code);
    mgk_free(&t->context->allocator, numbers);
    return mgk_check_cl(error, code, "clCreateBuffer");
}

clmgk_status mgk_gemm_trial_begin(mgk_gemm_trial *t, size_t workspace, clmgk_error *error)
{
    const mgk_gemm_matrix a = mgk_gemm_a(&t->desc), b = mgk_gemm_b(&t->desc), c = mgk_gemm_c(&t->desc);
    cl_int code = CL_SUCCESS;
    t->queue = clCreateCommandQueue(t->context->context, t->context->device, 0, &code);
    MGK_TRY(mgk_check_cl(error, code, "clCreateCommandQueue"));
    MGK_TRY(make_matrix(t, &a, OF_A, &t->a, error));
    MGK_TRY(make_matrix(t, &b, OF_B, &t->b, error));
    MGK_TRY(make_matrix(t, &c, OF_C, &t->c, error));
    if (workspace > 0)
        t->workspace = clCreateBuffer(t->context->context, CL_MEM_READ_WRITE, workspace, NULL, &code);
    return mgk_check_cl(error, code, "clCreateBuffer");
}

/* Line number i of `count` that are spread over all of them. */
static int64_t line_at(int64_t lines, int64_t count, int64_t i)
{
    return count > 1 ? (lines - 1) * i / (count - 1) : 0;
}

/* The numbers of some rows of A, or columns of B, [count,k], without their scale. `along`: they are rows of the stored
 * matrix. */
static int8_t *lines_of(const mgk_gemm_trial *t, size_t first, int64_t ld, bool along, int64_t lines, int64_t count)
{
    const int64_t k = t->desc.k;
    int8_t *const numbers = mgk_alloc(&t->context->allocator, (size_t)(count * k), 1);
    for (int64_t i = 0; numbers != NULL && i < count * k; ++i) {
        const int64_t line = line_at(lines, count, i / k), l = i % k;
        numbers[i] = (int8_t)number_at(first + t->offset + (size_t)(along ? line * ld + l : l * ld + line));
    }
    return numbers;
}

static int product_of(const int8_t *x, const int8_t *y, int64_t k)
{
    int sum = 0;
    for (int64_t l = 0; l < k; ++l)
        sum += x[l] * y[l];
    return sum;
}

clmgk_status mgk_gemm_trial_check(mgk_gemm_trial *t, int64_t probes, double bound, clmgk_error *error)
{
    const clmgk_gemm_desc *const d = &t->desc;
    const clmgk_allocator *const allocator = &t->context->allocator;
    const clmgk_dtype_info type = clmgk_dtype_get_info(d->dtype);
    const int64_t rows = d->m < probes ? d->m : probes, columns = d->n < probes ? d->n : probes;
    const size_t last = t->offset + (size_t)((d->batch - 1) * d->stride_c);
    const size_t bytes = (last + (size_t)((d->m - 1) * d->ldc + d->n)) * mgk_gemm_element(d->dtype);
    int8_t *const left = lines_of(t, OF_A, d->lda, d->transpose_a == 0, d->m, rows);
    int8_t *const right = lines_of(t, OF_B, d->ldb, d->transpose_b != 0, d->n, columns);
    void *const c = mgk_alloc(allocator, bytes, 1);
    clmgk_status status =
        left == NULL || right == NULL || c == NULL
            ? mgk_fail_memory(error, "a trial of a product")
            : mgk_check_cl(error, clEnqueueReadBuffer(t->queue, t->c, CL_TRUE, 0, bytes, c, 0, NULL, NULL),
                           "clEnqueueReadBuffer");
    for (int64_t i = 0; status == CLMGK_OK && !t->wrong && i < rows * columns; ++i) {
        const int64_t row = i / columns, column = i % columns;
        const int64_t at = line_at(d->m, rows, row) * d->ldc + line_at(d->n, columns, column);
        t->value = mgk_number(c, last + (size_t)at, &type);
        t->expected = (double)t->scale * (double)t->scale * product_of(left + row * d->k, right + column * d->k, d->k);
        t->wrong = !(fabs(t->value - t->expected) <= bound * fabs(t->expected)); /* also NaN */
    }
    mgk_free(allocator, left);
    mgk_free(allocator, right);
    mgk_free(allocator, c);
    return status;
}

void mgk_gemm_trial_end(mgk_gemm_trial *t)
{
    const cl_mem memory[] = {t->a, t->b, t->c, t->workspace};
    if (t->queue != NULL) {
        (void)clFinish(t->queue);
        clReleaseCommandQueue(t->queue);
    }
    for (size_t i = 0; i < MGK_COUNT(memory); ++i)
        if (memory[i] != NULL)
            clReleaseMemObject(memory[i]);
}
