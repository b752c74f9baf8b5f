/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of matrix products that are missing, of another version, or fail; and CLBlast's f16, which PoCL lacks, by a
 * function in its place. No kernel is compiled. */
#include "gemm/gemm.h"
#include "harness/harness.h"
#include "harness/product.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what stands in for a library's functions -------------------------------------------------------------------- */

static const char *absent;   /* a function that is not found; "": the whole library */
static const char *replaced; /* by `answer` and `huge` */
static int code;             /* what they return */
static bool has_f16;         /* the device, and CLBlast by the functions below */
static cl_half alpha, beta;  /* of the last product */
static size_t products;

static int answer(void)
{
    return code;
}

/* NOLINTBEGIN(readability-function-size): parameters as CLBlast has them */

/* Temporary memory beyond what CLBlast can count. */
static int huge(int layout, int turn_a, int turn_b, size_t m, size_t n, size_t k, size_t a, size_t lda, size_t b,
                size_t ldb, size_t c, size_t ldc, const cl_command_queue *queue, size_t *bytes)
{
    (void)layout, (void)turn_a, (void)turn_b, (void)m, (void)n, (void)k, (void)a, (void)lda, (void)b, (void)ldb;
    (void)c, (void)ldc, (void)queue;
    *bytes = (size_t)1 << 40;
    return code;
}

static int no_temporary(int layout, int turn_a, int turn_b, size_t m, size_t n, size_t k, size_t a, size_t lda,
                        size_t b, size_t ldb, size_t c, size_t ldc, const cl_command_queue *queue, size_t *bytes)
{
    (void)huge(layout, turn_a, turn_b, m, n, k, a, lda, b, ldb, c, ldc, queue, bytes);
    *bytes = 0;
    return 0;
}

/* C = A B of small whole numbers; A and B as they are. */
static int multiply(int layout, int turn_a, int turn_b, size_t m, size_t n, size_t k, cl_half given_alpha, cl_mem a,
                    size_t a_offset, size_t lda, cl_mem b, size_t b_offset, size_t ldb, cl_half given_beta, cl_mem c,
                    size_t c_offset, size_t ldc, const cl_command_queue *queue, cl_event *event)
{
    const clmgk_dtype_info type = clmgk_dtype_get_info(CLMGK_DTYPE_F16);
    cl_half row[8], column[8], sum;
    (void)layout, (void)turn_a, (void)turn_b;
    assert_true(k <= 8);
    for (size_t i = 0; i < m * n; i++) {
        double exact = 0;
        assert_int_equal(
            clEnqueueReadBuffer(*queue, a, CL_TRUE, 2 * (a_offset + i / n * lda), 2 * k, row, 0, NULL, NULL),
            CL_SUCCESS);
        for (size_t r = 0; r < k; r++) {
            assert_int_equal(
                clEnqueueReadBuffer(*queue, b, CL_TRUE, 2 * (b_offset + r * ldb + i % n), 2, &column[r], 0, NULL, NULL),
                CL_SUCCESS);
            exact += mgk_decode(row[r], &type) * mgk_decode(column[r], &type);
        }
        sum = (cl_half)mgk_encode((float)exact, &type);
        assert_int_equal(clEnqueueWriteBuffer(*queue, c, CL_TRUE, 2 * (c_offset + i / n * ldc + i % n), 2, &sum, 0,
                                              NULL, i + 1 == m * n ? event : NULL),
                         CL_SUCCESS);
    }
    alpha = given_alpha;
    beta = given_beta;
    products++;
    return 0;
}

/* NOLINTEND(readability-function-size) */

clmgk_status __real_mgk_library_load(const char *soname, const char *const *names, size_t count, void *functions,
                                     clmgk_error *error);
clmgk_status __wrap_mgk_library_load(const char *soname, const char *const *names, size_t count, void *functions,
                                     clmgk_error *error);

/* C has no conversion from function to object pointers. */
#define PUT(place, function)                                                                                           \
    do {                                                                                                               \
        __typeof__(function) *const put_ = (function);                                                                 \
        memcpy(place, &put_, sizeof(put_));                                                                            \
    } while (0)

clmgk_status __wrap_mgk_library_load(const char *soname, const char *const *names, size_t count, void *functions,
                                     clmgk_error *error)
{
    const char *asked[64];
    assert_true(count <= TH_COUNT(asked));
    for (size_t i = 0; i < count; i++)
        asked[i] = absent && strcmp(absent, names[i]) == 0 ? "no_such_function" : names[i];
    const clmgk_status status =
        __real_mgk_library_load(absent && !absent[0] ? "libabsent.so.1" : soname, asked, count, functions, error);
    for (size_t i = 0; i < count && status == CLMGK_OK; i++) {
        char *const place = (char *)functions + i * sizeof(void (*)(void));
        if (has_f16 && strcmp(names[i], "CLBlastHGemmTempBufferSize") == 0)
            PUT(place, no_temporary);
        if (has_f16 && strcmp(names[i], "CLBlastHgemm") == 0)
            PUT(place, multiply);
        if (replaced && strcmp(names[i], replaced) == 0 && strstr(replaced, "TempBufferSize") && code == 0)
            PUT(place, huge);
        else if (replaced && strcmp(names[i], replaced) == 0)
            PUT(place, answer);
    }
    return status;
}

clmgk_status __real_mgk_device_has_extension(cl_device_id device, const char *name, bool *found, clmgk_error *error);
clmgk_status __wrap_mgk_device_has_extension(cl_device_id device, const char *name, bool *found, clmgk_error *error);

clmgk_status __wrap_mgk_device_has_extension(cl_device_id device, const char *name, bool *found, clmgk_error *error)
{
    const clmgk_status status = __real_mgk_device_has_extension(device, name, found, error);
    *found = *found || (has_f16 && strcmp(name, "cl_khr_fp16") == 0);
    return status;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static bool offers(const th_session *session, const char *name)
{
    for (size_t i = 0; clmgk_gemm_provider(i); i++) {
        clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
        th_expect_ok(clmgk_gemm_provider_state(session->info.device_id, i, &info, &th_error));
        if (strcmp(info.name, name) == 0)
            return (info.dtypes & 1U) != 0;
    }
    return false;
}

static clmgk_status make_plan(const th_session *session, const char *provider, const char *parameters,
                              clmgk_gemm_plan **plan)
{
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    desc.m = 3;
    desc.n = 4;
    desc.k = 5;
    desc.batch = 2;
    desc.alpha = 2;
    desc.beta = 0.5;
    options.provider = provider;
    options.parameters = parameters;
    return clmgk_gemm_plan_create(session->context, &desc, &options, plan, &th_error);
}

static void expect_refused(const th_session *session, const char *provider, const char *parameters,
                           clmgk_status expected, const char *words)
{
    clmgk_gemm_plan *plan = NULL;
    th_expect_error(make_plan(session, provider, parameters, &plan), expected, words);
    assert_null(plan);
}

TH_TEST(missing_libraries)
{
    static const char *const libraries[][2] = {
        {"clblast", "CLBlastSgemm"}, {"openblas", "cblas_sgemm"}, {"onednn", "dnnl_version"}};
    for (size_t i = 0; i < TH_COUNT(libraries); i++) {
        if (!offers(session, libraries[i][0]))
            continue;
        absent = "";
        expect_refused(session, libraries[i][0], "", CLMGK_ERROR_UNSUPPORTED, "libabsent.so.1 could not be loaded");
        absent = libraries[i][1];
        expect_refused(session, libraries[i][0], "", CLMGK_ERROR_UNSUPPORTED, "is another version: it has no");
        absent = NULL;
    }
}

TH_TEST(failures_of_onednn)
{
    /* oneDNN's dnnl_out_of_memory, dnnl_invalid_arguments, dnnl_unimplemented */
    static const struct {
        int code;
        clmgk_status expected;
    } codes[] = {{1, CLMGK_ERROR_OUT_OF_HOST_MEMORY}, {2, CLMGK_ERROR_INTERNAL}, {3, CLMGK_ERROR_UNSUPPORTED}};
    static const char *const names[] = {
        "engine_create",         "stream_create",       "memory_desc_init_by_strides",
        "matmul_desc_init",      "post_ops_create",     "primitive_attr_set_scratchpad_mode",
        "primitive_attr_create", "primitive_create",    "primitive_attr_set_output_scales",
        "primitive_desc_create", "post_ops_append_sum", "primitive_attr_set_post_ops",
        "primitive_desc_query",  "memory_create",       "memory_set_data_handle"};
    if (!offers(session, "onednn"))
        skip();
    for (size_t i = 0; i < TH_COUNT(names) * TH_COUNT(codes); i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "dnnl_%s", names[i / TH_COUNT(codes)]);
        replaced = name;
        code = codes[i % TH_COUNT(codes)].code;
        expect_refused(session, "onednn", "", codes[i % TH_COUNT(codes)].expected, "");
        replaced = NULL;
    }
}

TH_TEST(failures_of_clblast)
{
    /* CLBlast's codes, as clblast_c.h has them */
    static const struct {
        int code;
        clmgk_status expected;
        const char *words;
    } codes[] = {{-11, CLMGK_ERROR_COMPILE, "did not compile"},
                 {-2046, CLMGK_ERROR_UNSUPPORTED, "more local memory"},
                 {-53, CLMGK_ERROR_UNSUPPORTED, "work-groups"},
                 {-54, CLMGK_ERROR_UNSUPPORTED, "work-groups"},
                 {-55, CLMGK_ERROR_UNSUPPORTED, "work-groups"},
                 {-2045, CLMGK_ERROR_UNSUPPORTED, "cl_khr_fp16"},
                 {-2041, CLMGK_ERROR_UNSUPPORTED, "-2041"},
                 {-2048, CLMGK_ERROR_UNSUPPORTED, "-2048"},
                 {-2047, CLMGK_ERROR_UNSUPPORTED, "-2047"},
                 {-1022, CLMGK_ERROR_OPENCL, "-1022"},
                 {-2039, CLMGK_ERROR_OPENCL, "unexpected failure"},
                 {-36, CLMGK_ERROR_OPENCL, "-36"},
                 {-1024, CLMGK_ERROR_INTERNAL, "CLBlast status -1024"},
                 {7, CLMGK_ERROR_INTERNAL, "CLBlast status 7"}};
    static const char parameters[] = "KWID=2,MDIMAD=8,MDIMCD=8,NDIMBD=8,NDIMCD=8,PADA=1,PADB=0,VWMD=1,VWND=2,WGD=16";
    if (!offers(session, "clblast"))
        skip();
    replaced = "CLBlastSGemmTempBufferSize";
    for (size_t i = 0; i < TH_COUNT(codes); i++) {
        code = codes[i].code;
        expect_refused(session, "clblast", "", codes[i].expected, codes[i].words);
    }
    code = 0;
    expect_refused(session, "clblast", "", CLMGK_ERROR_UNSUPPORTED, "counts its elements in 32 bits");
    replaced = "CLBlastSgemmStridedBatched";
    code = -2046;
    expect_refused(session, "clblast", "", CLMGK_ERROR_UNSUPPORTED, "strided-batched");
    code = 0; /* nothing is multiplied */
    expect_refused(session, "clblast", "", CLMGK_ERROR_UNSUPPORTED, "is wrong on this device");
    replaced = "CLBlastOverrideParameters";
    code = -2048;
    expect_refused(session, "clblast", parameters, CLMGK_ERROR_UNSUPPORTED, "OverrideParameters");
    replaced = NULL;
}

/* ---- CLBlast's f16 ----------------------------------------------------------------------------------------------- */

static void expect_half(const th_session *session, double number, unsigned bits)
{
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    desc.dtype = CLMGK_DTYPE_F16;
    desc.m = desc.n = desc.k = 1;
    desc.alpha = number;
    desc.beta = -number;
    TP_PRODUCT product = tp_make(session, &desc, 0, 1);
    clmgk_gemm_plan *const plan = tp_plan(session, &desc, "clblast", "");
    products = 0;
    th_expect_ok(clmgk_enqueue_gemm(plan, session->queue, &product.args, 0, NULL, NULL, &th_error));
    assert_int_equal(products, 1);
    assert_int_equal(alpha, bits);
    assert_int_equal(beta, bits | 0x8000U);
    clmgk_gemm_plan_release(plan);
}

TH_TEST(factors_in_f16)
{
    static const struct {
        double number;
        unsigned bits;
    } cases[] = {{1, 0x3c00},           {1.0 / 3, 0x3555},           {1 + 0x1p-11, 0x3c00}, {1 + 0x3p-11, 0x3c02},
                 {2 - 0x1p-12, 0x4000}, {65519.99, 0x7bff},          {65520, 0x7c00},       {1e30, 0x7c00},
                 {0x1p-14, 0x0400},     {0x1p-14 - 0x1p-25, 0x0400}, {0x1p-24, 0x0001},     {0x1p-25, 0x0000},
                 {0x1.1p-25, 0x0001},   {0x3p-25, 0x0002},           {0x5p-25, 0x0002}};
    if (!offers(session, "clblast"))
        skip();
    has_f16 = true;
    for (size_t i = 0; i < TH_COUNT(cases); i++)
        expect_half(session, cases[i].number, cases[i].bits);
    has_f16 = false;
}
