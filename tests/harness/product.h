/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products for tests: random matrices with canaries between and around their elements, run through the public
 * API, compared with a product in double precision. Failures fail the test. */
#ifndef CLMGK_TEST_PRODUCT_H
#define CLMGK_TEST_PRODUCT_H

#include "harness/harness.h"

enum { TP_A, TP_B, TP_C, TP_MATRICES };

typedef struct tp_matrix {
    size_t offset; /* of its first element, in elements from the buffer's start */
    size_t count;  /* elements of the buffer */
    double *values;
    unsigned char *image; /* what the buffer is given */
    bool *element;        /* whether it is one */
    cl_mem memory;
} tp_matrix;

typedef struct tp_product {
    clmgk_gemm_desc desc; /* resolved */
    tp_matrix matrix[TP_MATRICES];
    cl_mem workspace;
    clmgk_gemm_args args;
} tp_product;

/* Random matrices for `desc`, each `offset` elements (and its index more) into its buffer. With beta = 0, C is NaN. */
tp_product tp_make(const th_session *session, const clmgk_gemm_desc *desc, size_t offset, uint64_t seed);
void tp_free(tp_product *product);
#define TP_PRODUCT __attribute__((unused, cleanup(tp_free))) tp_product

/* A plan; fails the test if there is none. */
clmgk_gemm_plan *tp_plan(const th_session *session, const clmgk_gemm_desc *desc, const char *provider,
                         const char *parameters);

/* Gives the product a workspace for the plan, `offset` bytes into its buffer. */
void tp_add_workspace(const th_session *session, tp_product *product, const clmgk_gemm_plan *plan, size_t offset);

/* Enqueues; fails the test on an error. */
void tp_enqueue(const clmgk_gemm_plan *plan, cl_command_queue queue, const tp_product *product, cl_uint num_wait,
                const cl_event *wait_list, cl_event *event);

/* Reads everything back. C must be within the documented bound for sums in `sums` and factors of the descriptor's
 * precision, and nothing else may have changed. */
void tp_check(const th_session *session, const tp_product *product, clmgk_dtype sums, const char *what);

/* Makes, plans, runs, checks, by the precision that the plan uses. */
void tp_expect(const th_session *session, const clmgk_gemm_desc *desc, const char *provider, const char *parameters,
               size_t offset, uint64_t seed);

#endif
