/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/product.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE = 7 }; /* canaries behind a matrix */

typedef struct shape {
    int64_t rows, columns, ld, stride;
} shape;

static shape shape_of(const clmgk_gemm_desc *d, int matrix)
{
    if (matrix == TP_A)
        return (shape){d->transpose_a ? d->k : d->m, d->transpose_a ? d->m : d->k, d->lda, d->stride_a};
    if (matrix == TP_B)
        return (shape){d->transpose_b ? d->n : d->k, d->transpose_b ? d->k : d->n, d->ldb, d->stride_b};
    return (shape){d->m, d->n, d->ldc, d->stride_c};
}

static void *allocate(size_t count, size_t size)
{
    void *const memory = calloc(count > 0 ? count : 1, size);
    assert_non_null(memory);
    return memory;
}

static size_t place(const tp_matrix *matrix, const shape *s, int64_t b, int64_t i, int64_t j)
{
    return matrix->offset + (size_t)(b * s->stride + i * s->ld + j);
}

static tp_matrix make_matrix(const th_session *session, const clmgk_gemm_desc *desc, int index, size_t offset,
                             uint64_t *state)
{
    const shape s = shape_of(desc, index);
    const bool empty = s.rows == 0 || s.columns == 0;
    const int64_t extent = empty ? 0 : (desc->batch - 1) * s.stride + (s.rows - 1) * s.ld + s.columns;
    tp_matrix matrix = {.offset = offset + (size_t)index, .count = offset + (size_t)index + (size_t)extent + SPARE};
    const size_t size = clmgk_ref_dtype_size(desc->dtype);
    cl_int code = CL_SUCCESS;
    matrix.values = allocate(matrix.count, sizeof(double));
    matrix.element = allocate(matrix.count, sizeof(bool));
    matrix.image = allocate(matrix.count, size);
    for (size_t n = 0; n < matrix.count; n++)
        matrix.values[n] = 1234.0;
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t i = 0; i < s.rows; i++)
            for (int64_t j = 0; j < s.columns; j++) {
                const size_t at = place(&matrix, &s, b, i, j);
                matrix.values[at] = index == TP_C && desc->beta == 0.0 ? (double)NAN : th_normal(state);
                matrix.element[at] = true;
            }
    clmgk_ref_store(desc->dtype, matrix.values, matrix.count, matrix.image);
    clmgk_ref_load(desc->dtype, matrix.image, matrix.count, matrix.values);
    matrix.memory =
        clCreateBuffer(session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, matrix.count * size, matrix.image, &code);
    assert_int_equal(code, CL_SUCCESS);
    return matrix;
}

tp_product tp_make(const th_session *session, const clmgk_gemm_desc *desc, size_t offset, uint64_t seed)
{
    tp_product product = {.args = CLMGK_GEMM_ARGS_INIT};
    clmgk_gemm_desc given = *desc;
    uint64_t state = seed;
    given.struct_size = sizeof(given);
    th_expect_ok(clmgk_gemm_validate(&given, &product.desc, &th_error));
    for (int i = 0; i < TP_MATRICES; i++)
        product.matrix[i] = make_matrix(session, &product.desc, i, offset, &state);
    product.args.a = (clmgk_buffer){product.matrix[TP_A].memory, product.matrix[TP_A].offset};
    product.args.b = (clmgk_buffer){product.matrix[TP_B].memory, product.matrix[TP_B].offset};
    product.args.c = (clmgk_buffer){product.matrix[TP_C].memory, product.matrix[TP_C].offset};
    return product;
}

void tp_free(tp_product *product)
{
    for (int i = 0; i < TP_MATRICES; i++) {
        free(product->matrix[i].values);
        free(product->matrix[i].element);
        free(product->matrix[i].image);
        if (product->matrix[i].memory)
            clReleaseMemObject(product->matrix[i].memory);
    }
    if (product->workspace)
        clReleaseMemObject(product->workspace);
}

clmgk_gemm_plan *tp_plan(const th_session *session, const clmgk_gemm_desc *desc, const char *provider,
                         const char *parameters)
{
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_plan *plan = NULL;
    clmgk_error error;
    options.provider = provider;
    options.parameters = parameters;
    if (clmgk_gemm_plan_create(session->context, desc, &options, &plan, &error) != CLMGK_OK)
        fail_msg("%s: %s", provider ? provider : "any", error.message);
    return plan;
}

void tp_add_workspace(const th_session *session, tp_product *product, const clmgk_gemm_plan *plan, size_t offset)
{
    const size_t bytes = clmgk_gemm_plan_workspace_size(plan);
    cl_int code = CL_SUCCESS;
    if (bytes == 0)
        return;
    product->workspace = clCreateBuffer(session->cl, CL_MEM_READ_WRITE, bytes + offset, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    product->args.workspace = (clmgk_buffer){product->workspace, offset};
}

void tp_enqueue(const clmgk_gemm_plan *plan, cl_command_queue queue, const tp_product *product, cl_uint num_wait,
                const cl_event *wait_list, cl_event *event)
{
    th_expect_ok(clmgk_enqueue_gemm(plan, queue, &product->args, num_wait, wait_list, event, &th_error));
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

static unsigned char *read_back(const th_session *session, const tp_product *product, int index)
{
    const tp_matrix *const matrix = &product->matrix[index];
    const size_t bytes = matrix->count * clmgk_ref_dtype_size(product->desc.dtype);
    unsigned char *const image = allocate(bytes, 1);
    assert_int_equal(clEnqueueReadBuffer(session->queue, matrix->memory, CL_TRUE, 0, bytes, image, 0, NULL, NULL),
                     CL_SUCCESS);
    return image;
}

/* The exact element (b, i, j), and the size that its error is measured by. */
static double exact(const tp_product *product, int64_t b, int64_t i, int64_t j, double *size)
{
    const clmgk_gemm_desc *const d = &product->desc;
    const shape sa = shape_of(d, TP_A), sb = shape_of(d, TP_B), sc = shape_of(d, TP_C);
    double sum = 0.0, sizes = 0.0;
    for (int64_t k = 0; k < d->k; k++) {
        const double x = product->matrix[TP_A].values[d->transpose_a ? place(&product->matrix[TP_A], &sa, b, k, i)
                                                                     : place(&product->matrix[TP_A], &sa, b, i, k)];
        const double y = product->matrix[TP_B].values[d->transpose_b ? place(&product->matrix[TP_B], &sb, b, j, k)
                                                                     : place(&product->matrix[TP_B], &sb, b, k, j)];
        sum += x * y;
        sizes += fabs(x * y);
    }
    const double c =
        d->beta == 0.0 ? 0.0 : d->beta * product->matrix[TP_C].values[place(&product->matrix[TP_C], &sc, b, i, j)];
    *size = fabs(d->alpha) * sizes + fabs(c);
    return d->alpha * sum + c;
}

static void check_element(const tp_product *product, const double *c, int64_t b, int64_t i, int64_t j, clmgk_dtype sums,
                          const char *what)
{
    const clmgk_gemm_desc *const d = &product->desc;
    const shape s = shape_of(d, TP_C);
    double size = 0.0;
    const double e = exact(product, b, i, j, &size);
    const double got = c[place(&product->matrix[TP_C], &s, b, i, j)];
    const clmgk_ref_limits limits = clmgk_ref_limits_of(d->dtype);
    static const double factors[] = {
        [CLMGK_PRECISION_EXACT] = 0, [CLMGK_PRECISION_TF32] = 0x1p-11, [CLMGK_PRECISION_BF16] = 0x1p-8};
    const double of_factors = 2 * factors[d->precision] * (1 + factors[d->precision]);
    const double bound = (((double)d->k + 4) * clmgk_ref_limits_of(sums).unit + of_factors) * size +
                         limits.unit * fabs(e) + (double)d->k * 0x1p-125 + limits.least;
    if (!(fabs(got - e) <= bound))
        fail_msg("%s: %s %lldx%lldx%lld%s%s batch %lld lds %lld %lld %lld alpha %g beta %g: C[%lld,%lld,%lld] is %g, "
                 "expected %g within %g",
                 what, clmgk_dtype_name(d->dtype), (long long)d->m, (long long)d->n, (long long)d->k,
                 d->transpose_a ? " At" : "", d->transpose_b ? " Bt" : "", (long long)d->batch, (long long)d->lda,
                 (long long)d->ldb, (long long)d->ldc, d->alpha, d->beta, (long long)b, (long long)i, (long long)j, got,
                 e, bound);
}

void tp_check(const th_session *session, const tp_product *product, clmgk_dtype sums, const char *what)
{
    const clmgk_gemm_desc *const d = &product->desc;
    const size_t size = clmgk_ref_dtype_size(d->dtype);
    for (int index = 0; index < TP_MATRICES; index++) {
        const tp_matrix *const matrix = &product->matrix[index];
        unsigned char *const image = read_back(session, product, index);
        for (size_t n = 0; n < matrix->count; n++)
            if ((index != TP_C || !matrix->element[n]) && memcmp(image + n * size, matrix->image + n * size, size) != 0)
                fail_msg("%s: element %zu of the buffer of matrix %d was written", what, n, index);
        free(image);
    }
    unsigned char *const image = read_back(session, product, TP_C);
    double *const c = allocate(product->matrix[TP_C].count, sizeof(double));
    clmgk_ref_load(d->dtype, image, product->matrix[TP_C].count, c);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t i = 0; i < d->m; i++)
            for (int64_t j = 0; j < d->n; j++)
                check_element(product, c, b, i, j, sums, what);
    free(c);
    free(image);
}

void tp_expect(const th_session *session, const clmgk_gemm_desc *desc, const char *provider, const char *parameters,
               size_t offset, uint64_t seed)
{
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    tp_product product = tp_make(session, desc, offset, seed);
    clmgk_gemm_plan *const plan = tp_plan(session, &product.desc, provider, parameters);
    assert_int_equal(clmgk_gemm_plan_get_info(plan, &info, NULL), CLMGK_OK);
    tp_add_workspace(session, &product, plan, offset * 4);
    tp_enqueue(plan, session->queue, &product, 0, NULL, NULL);
    product.desc.precision = info.precision;
    tp_check(session, &product, info.sums, info.provider);
    clmgk_gemm_plan_release(plan);
    tp_free(&product);
}
