/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: every provider of the build against a product in double precision; events, threads, parameters,
 * misuse. */
#include "gemm/gemm.h"
#include "gemm/product_args.clh"
#include "harness/product.h"
#include "harness/scratch.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROVIDERS = 8 };

/* Both of CLBlast's kernels, in tiles that the sizes below do not fill; the second table's smallest size for the first
 * kernel makes small products large. */
#define REGISTER_TILES                                                                                                 \
    "GEMMK=1,KREG=4,KWG=1,KWI=1,MDIMA=4,MDIMC=4,MWG=32,NDIMB=4,NDIMC=4,NWG=32,SA=0,SB=0,STRM=0,STRN=0,VWM=4,VWN=4"
#define LOCAL_TILES                                                                                                    \
    "GEMMK=0,KREG=1,KWG=16,KWI=2,MDIMA=8,MDIMC=8,MWG=32,NDIMB=8,NDIMC=8,NWG=16,SA=1,SB=1,STRM=0,STRN=1,VWM=2,VWN=2"
#define DIRECT_TILES "KWID=2,MDIMAD=8,MDIMCD=8,NDIMBD=8,NDIMCD=8,PADA=1,PADB=0,VWMD=1,VWND=2,WGD=16"
#define FROM(size)   "XGEMM_MIN_INDIRECT_SIZE=" #size

/* ---- what there is ----------------------------------------------------------------------------------------------- */

static bool offers(const th_session *session, const char *name, clmgk_dtype dtype)
{
    for (size_t i = 0; clmgk_gemm_provider(i); i++) {
        clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
        th_expect_ok(clmgk_gemm_provider_state(session->info.device_id, i, &info, &th_error));
        assert_string_equal(info.name, clmgk_gemm_provider(i));
        if (strcmp(info.name, name) == 0)
            return (info.dtypes >> dtype & 1) != 0;
    }
    return false;
}

/* The providers that can multiply this type here. */
static size_t providers_of(const th_session *session, clmgk_dtype dtype, const char *names[MAX_PROVIDERS])
{
    size_t count = 0;
    for (size_t i = 0; clmgk_gemm_provider(i); i++)
        if (offers(session, clmgk_gemm_provider(i), dtype))
            names[count++] = clmgk_gemm_provider(i);
    return count;
}

static clmgk_gemm_desc desc_of(int64_t m, int64_t n, int64_t k)
{
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    desc.m = m;
    desc.n = n;
    desc.k = k;
    return desc;
}

/* oneDNN refuses a product on CPUs with AMX, where it would end the process (docs/layer.md). */
static bool is_refused(const th_session *session, const clmgk_gemm_desc *desc, const char *provider)
{
    if (strcmp(provider, "onednn") != 0 || desc->dtype != CLMGK_DTYPE_BF16 || desc->k != 63)
        return false;
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_plan *plan = NULL;
    options.provider = provider;
    const clmgk_status status = clmgk_gemm_plan_create(session->context, desc, &options, &plan, NULL);
    clmgk_gemm_plan_release(plan);
    return status == CLMGK_ERROR_UNSUPPORTED;
}

/* Runs on all providers that support the descriptor's type, with their default parameters. */
static void expect_all(const th_session *session, const clmgk_gemm_desc *desc, size_t offset, uint64_t seed)
{
    const char *names[MAX_PROVIDERS];
    const size_t count = providers_of(session, desc->dtype, names);
    for (size_t i = 0; i < count; i++)
        tp_expect(session, desc, is_refused(session, desc, names[i]) ? NULL : names[i], "", offset, seed);
}

TH_TEST(states_have_a_reason)
{
    for (size_t i = 0; clmgk_gemm_provider(i); i++) {
        clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
        assert_int_equal(clmgk_gemm_provider_state(session->info.device_id, i, &info, NULL), CLMGK_OK);
        assert_int_equal(info.dtypes & ~7U, 0);
        assert_int_equal(info.dtypes == 7U, info.reason[0] == '\0');
        print_message("%s: types %u %s\n", info.name, info.dtypes, info.reason);
    }
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static const int64_t sizes[][3] = {{1, 1, 1},    {1, 3, 2},      {3, 1, 17},    {17, 63, 3},
                                   {64, 64, 64}, {65, 1, 129},   {1, 257, 64},  {63, 129, 65},
                                   {128, 64, 5}, {129, 65, 257}, {257, 17, 63}, {96, 160, 128}};

TH_TEST(all_sizes_and_transposes)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (size_t n = 0; n < TH_COUNT(sizes); n++)
            for (int transposed = 0; transposed < 4; transposed++) {
                clmgk_gemm_desc desc = desc_of(sizes[n][0], sizes[n][1], sizes[n][2]);
                desc.dtype = (clmgk_dtype)dtype;
                desc.transpose_a = transposed & 1;
                desc.transpose_b = transposed >> 1;
                expect_all(session, &desc, (n + (size_t)transposed) % 3, n);
            }
}

/* beta = 0 finds NaN in C: they may not be read. */
TH_TEST(all_factors)
{
    static const double factors[][2] = {{1, 1}, {-0.5, 0}, {2, -3}, {1, 0.25}};
    for (int dtype = 0; dtype < 3; dtype++)
        for (size_t n = 0; n < TH_COUNT(factors); n++) {
            clmgk_gemm_desc desc = desc_of(70, 45, 33);
            desc.dtype = (clmgk_dtype)dtype;
            desc.alpha = factors[n][0];
            desc.beta = factors[n][1];
            desc.transpose_b = 1;
            expect_all(session, &desc, 5, n);
        }
}

TH_TEST(all_strides)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (int transposed = 0; transposed < 4; transposed++) {
            clmgk_gemm_desc desc = desc_of(33, 70, 18);
            desc.dtype = (clmgk_dtype)dtype;
            desc.transpose_a = transposed & 1;
            desc.transpose_b = transposed >> 1;
            desc.lda = 77;
            desc.ldb = 90;
            desc.ldc = 128;
            desc.beta = 1;
            expect_all(session, &desc, (size_t)transposed, 3);
        }
}

/* Layouts of a batch of 3: dense, with gaps, interleaved, one A or one B for all. */
static clmgk_gemm_desc batch_desc(int64_t m, int64_t n, int64_t k, int way)
{
    clmgk_gemm_desc desc = desc_of(m, n, k);
    desc.batch = 3;
    desc.broadcast_a = way == 1 || way == 4;
    desc.broadcast_b = way == 2 || way == 4;
    if (way == 3) {
        desc.lda = 3 * k;
        desc.stride_a = k;
        desc.ldc = 3 * n + 1;
        desc.stride_c = n;
    }
    if (way == 5) {
        desc.stride_a = m * k + 5;
        desc.stride_b = n * k + 1;
        desc.stride_c = m * n + 3;
    }
    return desc;
}

enum { WAYS = 6 };

TH_TEST(all_batches)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (int way = 0; way < WAYS; way++) {
            clmgk_gemm_desc desc = batch_desc(37, 21, 19, way);
            desc.dtype = (clmgk_dtype)dtype;
            desc.beta = way % 2;
            desc.transpose_b = way == 5;
            expect_all(session, &desc, (size_t)way, 7);
        }
}

/* The library's own kernels, in the forms for CPUs and GPUs. */
static clmgk_context *context_of_form(const th_session *session, bool gpu, clmgk_dtype dtype)
{
    clmgk_context *context = NULL;
    assert_int_equal(clmgk_context_create(session->cl, session->info.device_id, NULL, &context, NULL), CLMGK_OK);
    context->facts.info.device_class = gpu ? CLMGK_DEVICE_GPU : CLMGK_DEVICE_CPU;
    if (dtype == CLMGK_DTYPE_BF16) /* one of the types in vectors of 8 */
        context->facts.info.native_float_lanes = 8;
    return context;
}

static void expect_few_rows(const th_session *own, clmgk_dtype dtype)
{
    static const int64_t few[][3] = {{1, 1, 1},     {1, 300, 17}, {1, 130, 512}, {2, 33, 7},
                                     {3, 16, 1000}, {4, 70, 33},  {5, 129, 65},  {8, 515, 48}};
    for (size_t n = 0; n < TH_COUNT(few); n++)
        for (int transposed = 0; transposed < 2; transposed++) {
            clmgk_gemm_desc desc = desc_of(few[n][0], few[n][1], few[n][2]);
            desc.dtype = dtype;
            desc.transpose_a = (transposed + (int)n) % 2;
            desc.transpose_b = transposed;
            desc.alpha = n % 2 ? -0.5 : 1;
            desc.beta = n % 3 ? 0 : 2;
            tp_expect(own, &desc, "clmgk", "", n + (size_t)transposed, n);
        }
    for (int way = 0; way < WAYS; way++) {
        clmgk_gemm_desc desc = batch_desc(3, 41, 19, way);
        desc.dtype = dtype;
        desc.transpose_b = way % 2;
        tp_expect(own, &desc, "clmgk", "", 1, 7);
    }
}

/* Single rows, full and partial blocks of rows; columns and sums that fill vectors, blocks and work-groups, or do not.
 */
TH_TEST(few_rows)
{
    for (int form = session->info.device_class == CLMGK_DEVICE_CPU ? 0 : 1; form < 2; form++)
        for (int dtype = 0; dtype < (form ? 1 : 3); dtype++) {
            th_session own = *session;
            own.context = context_of_form(session, form, (clmgk_dtype)dtype);
            expect_few_rows(&own, (clmgk_dtype)dtype);
            clmgk_context_release(own.context);
        }
}

/* This provider comes first if memory is the limit, else last, with a note. */
TH_TEST(few_rows_have_a_provider_of_their_own)
{
    static const int64_t rows[] = {1, 8, 9, 200};
    for (int dtype = 0; dtype < 3; dtype++)
        for (size_t n = 0; n < TH_COUNT(rows); n++) {
            clmgk_gemm_desc desc = desc_of(rows[n], 40, 30);
            clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
            const char *names[MAX_PROVIDERS];
            desc.dtype = (clmgk_dtype)dtype;
            clmgk_gemm_plan *const plan = tp_plan(session, &desc, NULL, "");
            assert_int_equal(clmgk_gemm_plan_get_info(plan, &info, NULL), CLMGK_OK);
            assert_true(providers_of(session, desc.dtype, names) > 0);
            assert_string_equal(info.provider, rows[n] <= 8 ? "clmgk" : names[0]);
            if (strcmp(info.provider, "clmgk") == 0) {
                assert_int_equal(info.sums, CLMGK_DTYPE_F32);
                assert_int_equal(info.workspace_bytes, 0);
                assert_int_equal(strstr(info.note, "slow") == NULL, rows[n] <= 8);
            }
            clmgk_gemm_plan_release(plan);
        }
}

/* ---- matrix units ------------------------------------------------------------------------------------------------ */

/* Blocks of 32 x 32, so that small products have several. */
#define SMALL_BLOCKS "warps=2,column-warps=1,row-tiles=1,column-tiles=4,depth=32,stages=3,unit=0"

static clmgk_gemm_desc fragments_desc(const int64_t size[3], clmgk_dtype dtype, int form)
{
    clmgk_gemm_desc desc = desc_of(size[0], size[1], size[2]);
    desc.dtype = dtype;
    desc.transpose_a = form >> 1;
    desc.transpose_b = form & 1;
    return desc;
}

/* Whole blocks, edges of each axis, offsets and strides that are no multiples of 16 bytes and that are, batches.
 * `more`, a multiple of 8: numbers of k above those of the least product. */
static void expect_longer(const th_session *session, const clmgk_gemm_desc *like, const char *parameters, int64_t more)
{
    static const int64_t some[][3] = {{64, 32, 96}, {65, 1, 129}, {1, 70, 24}, {33, 40, 7}, {31, 33, 64}};
    const int form = like->transpose_a * 2 + like->transpose_b;
    for (size_t n = 0; n < TH_COUNT(some); n++) {
        clmgk_gemm_desc desc = fragments_desc(some[n], like->dtype, form);
        desc.precision = like->precision;
        desc.k += more;
        desc.alpha = n % 2 ? -0.5 : 1;
        desc.beta = n % 3 ? 0.25 : 0;
        tp_expect(session, &desc, "matrix", parameters, n < 3 ? 8 * n : n, n);
        if (n == 0) { /* whole blocks, added to what C is */
            desc.beta = 0.25;
            tp_expect(session, &desc, "matrix", parameters, 0, n);
        }
        desc.lda = desc.ldb = (n % 2 ? 136 : 131) + more;
        desc.ldc = n % 2 ? 72 : 71;
        tp_expect(session, &desc, "matrix", parameters, 0, n);
    }
    for (int way = 0; way < WAYS; way++) {
        clmgk_gemm_desc desc = batch_desc(37, 21, 19 + more, way);
        desc.dtype = like->dtype;
        desc.precision = like->precision;
        desc.transpose_a = like->transpose_a;
        desc.transpose_b = like->transpose_b;
        tp_expect(session, &desc, "matrix", parameters, (size_t)way, 7);
    }
}

static void expect_fragments(const th_session *session, clmgk_dtype dtype, int form, const char *parameters)
{
    const clmgk_gemm_desc like = {.dtype = dtype, .transpose_a = form >> 1, .transpose_b = form & 1};
    expect_longer(session, &like, parameters, 0);
}

/* Slices of f32 numbers, which exact products have where k is more than 64. */
static void expect_slices(const th_session *session, int form, const char *parameters, bool is_exact)
{
    const clmgk_gemm_desc like = {.dtype = CLMGK_DTYPE_F32,
                                  .transpose_a = form >> 1,
                                  .transpose_b = form & 1,
                                  .precision = is_exact ? CLMGK_PRECISION_EXACT : CLMGK_PRECISION_TF32};
    expect_longer(session, &like, parameters, is_exact ? 64 : 0);
}

enum { NN, NT, TN, TT, FORMS };

/* The first two programs have all ways of loading A and B. The last one divides K into ranges. */
TH_TEST(fragments)
{
    expect_fragments(session, CLMGK_DTYPE_BF16, NT, SMALL_BLOCKS);
    expect_fragments(session, CLMGK_DTYPE_F16, TN, SMALL_BLOCKS);
    expect_fragments(session, CLMGK_DTYPE_BF16, NN, SMALL_BLOCKS ",splits=2");
}

/* ---- calls of fewer tokens --------------------------------------------------------------------------------------- */

/* One plan multiplies any number of tokens up to its own: rows of C, or with A transposed the numbers of a sum. */
static void expect_tokens(const th_session *session, const char *provider, clmgk_dtype dtype, int form,
                          const char *parameters)
{
    static const int64_t tokens[] = {1, 7, 33, 64, 130}, most[] = {130, 70, 24}, most_transposed[] = {70, 24, 130};
    clmgk_gemm_desc desc = fragments_desc(form >> 1 ? most_transposed : most, dtype, form);
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_plan *plan = NULL, call = {.steps = calloc(1, sizeof(mgk_steps))};
    desc.beta = 0.25;
    options.provider = provider;
    options.parameters = parameters;
    assert_non_null(call.steps);
    th_expect_ok(mgk_gemm_plan_make(session->context, &desc, &options, true, &plan, &th_error));
    for (size_t n = 0; n < TH_COUNT(tokens); n++) {
        *(form >> 1 ? &desc.k : &desc.m) = tokens[n];
        th_expect_ok(mgk_gemm_resize(plan, tokens[n], &call, &th_error));
        TP_PRODUCT product = tp_make(session, &desc, n, n);
        tp_add_workspace(session, &product, plan, 0);
        tp_enqueue(&call, session->queue, &product, 0, NULL, NULL);
        product.desc.precision = call.info.precision;
        tp_check(session, &product, call.info.sums, provider);
    }
    clmgk_gemm_plan_release(plan);
    free(call.steps);
}

TH_TEST(calls_of_fewer_tokens)
{
    clmgk_gemm_desc desc = desc_of(130, 70, 24);
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_plan *plan = NULL;
    for (int form = NN; form <= TN; form++) {
        expect_tokens(session, "clmgk", CLMGK_DTYPE_F32, form, "");
        if (offers(session, "openblas", CLMGK_DTYPE_F32))
            expect_tokens(session, "openblas", CLMGK_DTYPE_F32, form, "");
    }
    expect_tokens(session, "matrix", CLMGK_DTYPE_BF16, NT, SMALL_BLOCKS);
    expect_tokens(session, "matrix", CLMGK_DTYPE_F16, TN, SMALL_BLOCKS);
    expect_tokens(session, "matrix", CLMGK_DTYPE_BF16, NN, SMALL_BLOCKS ",splits=2");
    options.provider = "onednn";
    th_expect_error(mgk_gemm_plan_make(session->context, &desc, &options, true, &plan, &th_error),
                    CLMGK_ERROR_UNSUPPORTED, "fixed sizes");
}

/* Sums of few numbers are as exact as those of the plan's; also in ranges, of which some are then empty. */
TH_FULL_TEST(calls_of_fewer_numbers)
{
    expect_tokens(session, "matrix", CLMGK_DTYPE_F32, TN, SMALL_BLOCKS);
    expect_tokens(session, "matrix", CLMGK_DTYPE_F32, TN, SMALL_BLOCKS ",splits=4");
    expect_tokens(session, "matrix", CLMGK_DTYPE_F16, TN, SMALL_BLOCKS ",splits=4");
}

/* In the layouts of AMD's and Intel's units, 5 to 9, with as large blocks as their fragments need. */
static void expect_layout(const th_session *session, int unit, clmgk_dtype dtype, int form, const char *more)
{
    char parameters[96];
    (void)snprintf(parameters, sizeof(parameters), "warps=%d,column-warps=1,row-tiles=%d,column-tiles=4,emulates=%d%s",
                   unit == 9 ? 4 : 2, unit == 5 ? 1 : 2, unit, more);
    expect_fragments(session, dtype, form, parameters);
}

/* Lanes of mfma have four neighbouring columns of a row; lanes of RDNA 3's wmma have every second one. */
TH_TEST(fragments_in_other_layouts)
{
    expect_layout(session, 5, CLMGK_DTYPE_F16, NT, "");
    expect_layout(session, 6, CLMGK_DTYPE_BF16, TN, "");
}

TH_FULL_TEST(fragments_in_all_layouts)
{
    for (int unit = 5; unit <= 9; unit++)
        for (int form = 0; form < FORMS; form++)
            expect_layout(session, unit, form % 2 ? CLMGK_DTYPE_F16 : CLMGK_DTYPE_BF16, form,
                          form == TN ? ",splits=2" : "");
}

static void store_singles(const th_session *session, const tp_matrix *matrix)
{
    clmgk_ref_store(CLMGK_DTYPE_F32, matrix->values, matrix->count, matrix->image);
    assert_int_equal(clEnqueueWriteBuffer(session->queue, matrix->memory, CL_TRUE, 0, matrix->count * sizeof(float),
                                          matrix->image, 0, NULL, NULL),
                     CL_SUCCESS);
}

static void multiply_singles(const th_session *session, const tp_product *product, const char *parameters)
{
    clmgk_gemm_plan *const plan = tp_plan(session, &product->desc, "matrix", parameters);
    tp_enqueue(plan, session->queue, product, 0, NULL, NULL);
    clmgk_gemm_plan_release(plan);
}

/* Products of numbers 1 + `low` - 1, 3 or 5 units of the last place. NaN lies around the matrices. */
static void expect_worst_singles(const th_session *session, const clmgk_gemm_desc *desc, const char *parameters,
                                 double low)
{
    TP_PRODUCT product = tp_make(session, desc, 0, 1);
    tp_matrix *const sides[] = {&product.matrix[TP_A], &product.matrix[TP_B]};
    for (size_t i = 0; i < TH_COUNT(sides); i++) {
        for (size_t n = 0; n < sides[i]->count; n++)
            sides[i]->values[n] = sides[i]->element[n] ? 1 + low - (double)(1 + 2 * (n % 3)) * 0x1p-23 : (double)NAN;
        store_singles(session, sides[i]);
    }
    multiply_singles(session, &product, parameters);
    tp_check(session, &product, CLMGK_DTYPE_F32, "parts");
}

/* The largest numbers and the smallest stay what they nearly are, NaN stays NaN, and an infinite factor, whose parts
 * have no sum, gives NaN. */
static void expect_extremes(const th_session *session, const clmgk_gemm_desc *desc, const char *parameters)
{
    static const float special[] = {FLT_MAX, -FLT_MAX, 0x1.8p-126F, NAN, INFINITY};
    enum { LEAST_NAN = 3 };
    TP_PRODUCT product = tp_make(session, desc, 0, 1);
    tp_matrix *const a = &product.matrix[TP_A], *const b = &product.matrix[TP_B];
    const tp_matrix *const c = &product.matrix[TP_C];
    const size_t columns = (size_t)desc->n, depth = (size_t)desc->k;
    float *const results = calloc(c->count, sizeof(*results));
    assert_non_null(results);
    for (size_t n = 0; n < (size_t)desc->m * depth; n++)
        a->values[a->offset + n] = n % depth == depth - 1 ? special[n / depth % TH_COUNT(special)] : 0;
    for (size_t n = 0; n < depth * columns; n++)
        b->values[b->offset + n] = (desc->transpose_b ? n % depth : n / columns) == depth - 1;
    store_singles(session, a);
    store_singles(session, b);
    multiply_singles(session, &product, parameters);
    assert_int_equal(
        clEnqueueReadBuffer(session->queue, c->memory, CL_TRUE, 0, c->count * sizeof(float), results, 0, NULL, NULL),
        CL_SUCCESS);
    for (size_t n = 0; n < (size_t)desc->m * columns; n++) {
        const float result = results[c->offset + n], expected = special[n / columns % TH_COUNT(special)];
        if (n / columns % TH_COUNT(special) < LEAST_NAN ? !(fabsf(result / expected - 1) <= 0x1p-22F)
                                                        : result == result)
            fail_msg("element %zu: %a, expected %a", n, (double)result, (double)expected);
    }
    free(results);
}

/* Low parts that are nearly half of a tf32's last place, and end with a bit that the unit does not read; and slices
 * that are as large as they can be. */
#define LOW_PARTS  0x1p-11
#define LOW_SLICES (0x1p-7 - 0x1p-15 + 0x1p-16)

/* f32 by products of tf32: four of few numbers, for which three are not exact enough, three of more, or one. */
TH_TEST(fragments_of_singles)
{
    static const int64_t few[][3] = {{64, 160, 1}, {100, 96, 2}, {96, 64, 3}, {40, 40, 64}, {40, 40, 65}};
    for (size_t n = 0; n < TH_COUNT(few); n++) {
        const clmgk_gemm_desc desc = fragments_desc(few[n], CLMGK_DTYPE_F32, NN);
        tp_expect(session, &desc, "matrix", SMALL_BLOCKS, 0, n);
        expect_worst_singles(session, &desc, SMALL_BLOCKS, LOW_PARTS);
        expect_extremes(session, &desc, SMALL_BLOCKS);
    }
    expect_fragments(session, CLMGK_DTYPE_F32, NN, SMALL_BLOCKS);
}

#define SLICED(count) SMALL_BLOCKS ",slices=" #count

/* f32 by products of bf16. The programs have all ways of loading A and B. */
TH_TEST(fragments_of_slices)
{
    static const int64_t few[] = {40, 40, 65}, whole_pieces[] = {40, 40, 72}, size[] = {40, 72, 100};
    clmgk_gemm_desc desc = fragments_desc(whole_pieces, CLMGK_DTYPE_F32, NT);
    expect_worst_singles(session, &desc, SLICED(3), LOW_SLICES);
    desc = fragments_desc(few, CLMGK_DTYPE_F32, NT);
    expect_worst_singles(session, &desc, SLICED(3), LOW_SLICES);
    expect_extremes(session, &desc, SLICED(3));
    expect_slices(session, NT, SLICED(3), true);
    desc = fragments_desc(size, CLMGK_DTYPE_F32, TN);
    desc.precision = CLMGK_PRECISION_TF32;
    expect_worst_singles(session, &desc, SLICED(2), LOW_SLICES);
    tp_expect(session, &desc, "matrix", SLICED(2), 0, 1);
}

/* The plan says which precision it uses, and rounds no more than that says. */
TH_TEST(fragments_of_rounded_singles)
{
    static const int64_t size[] = {33, 40, 72};
    for (int precision = CLMGK_PRECISION_EXACT; precision <= CLMGK_PRECISION_BF16; precision++) {
        clmgk_gemm_desc desc = fragments_desc(size, CLMGK_DTYPE_F32, NT);
        clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
        desc.precision = (clmgk_precision)precision;
        tp_expect(session, &desc, "matrix", SMALL_BLOCKS, 0, 1);
        clmgk_gemm_plan *const plan = tp_plan(session, &desc, "matrix", SMALL_BLOCKS);
        assert_int_equal(clmgk_gemm_plan_get_info(plan, &info, NULL), CLMGK_OK);
        assert_int_equal(info.precision,
                         precision == CLMGK_PRECISION_EXACT ? CLMGK_PRECISION_EXACT : CLMGK_PRECISION_TF32);
        clmgk_gemm_plan_release(plan);
        clmgk_gemm_plan *const own = tp_plan(session, &desc, "clmgk", "");
        assert_int_equal(clmgk_gemm_plan_get_info(own, &info, NULL), CLMGK_OK);
        assert_int_equal(info.precision, CLMGK_PRECISION_EXACT);
        clmgk_gemm_plan_release(own);
    }
}

/* A GPU of 132 units with wgmma. */
static mgk_device_facts hopper_of(const th_session *session)
{
    mgk_device_facts facts = session->context->facts;
    facts.info.device_class = CLMGK_DEVICE_GPU;
    facts.info.compute_units = 132;
    facts.info.local_memory_bytes = 49152;
    facts.info.max_work_group = 1024;
    facts.matrix_unit.unit = 2;
    return facts;
}

/* Few blocks of C get ranges of K, and many do not. */
TH_TEST(few_blocks_have_ranges)
{
    static const struct {
        int64_t m, n, k;
        size_t steps;
    } cases[] = {{128, 128, 16384, 2}, {512, 512, 4096, 2}, {128, 128, 1000, 1}, {4096, 4096, 4096, 1}};
    const mgk_device_facts facts = hopper_of(session);
    for (size_t n = 0; n < TH_COUNT(cases); n++)
        for (int dtype = 0; dtype < 3; dtype++) {
            mgk_steps steps;
            clmgk_gemm_plan plan = {.context = session->context, .steps = &steps};
            clmgk_gemm_desc desc = desc_of(cases[n].m, cases[n].n, cases[n].k);
            desc.dtype = (clmgk_dtype)dtype;
            memset(&steps, 0, sizeof(steps));
            th_expect_ok(mgk_gemm_resolve(&desc, &plan.desc, &th_error));
            th_expect_ok(mgk_gemm_fragments_step(&plan, &facts, "", &th_error));
            assert_int_equal(steps.count, cases[n].steps);
            assert_int_equal(clmgk_gemm_plan_workspace_size(&plan) > 0, cases[n].steps == 2);
            /* as many work-groups as units, or nearly */
            const size_t groups = steps.step[0].launch.global[0] / steps.step[0].launch.local[0];
            assert_true(cases[n].steps == 1 || (groups > 32 && groups <= 132));
            mgk_steps_clear(&steps, NULL);
        }
}

TH_FULL_TEST(fragments_of_all_forms)
{
    static const char *const blocks[] = {SMALL_BLOCKS,
                                         "unit=0,warps=1,column-warps=1,row-tiles=2,column-tiles=4,depth=64,stages=2",
                                         "unit=0,warps=4,column-warps=4,row-tiles=4,column-tiles=2,depth=32,stages=4",
                                         "unit=0,warps=8,column-warps=2,row-tiles=1,column-tiles=8,depth=64,stages=2"};
    for (int dtype = 0; dtype <= CLMGK_DTYPE_BF16; dtype++)
        for (int form = 0; form < FORMS; form++)
            for (size_t n = 0; n < TH_COUNT(blocks); n++)
                if (n == 0 || (form + dtype) % 2 == (int)n % 2)
                    expect_fragments(session, (clmgk_dtype)dtype, form, blocks[n]);
}

/* Slices, in blocks of whose tiles some leave work-items idle; ranges of K; sums that are promoted. */
TH_FULL_TEST(slices_of_all_forms)
{
    static const char *const blocks[] = {SMALL_BLOCKS, SMALL_BLOCKS ",splits=2",
                                         "unit=0,warps=8,column-warps=4,row-tiles=1,column-tiles=2,depth=64,stages=2"};
    static const int64_t more[][3] = {{20, 24, 2048}, {17, 9, 2065}, {16, 16, 6200}};
    char parameters[160];
    for (int slices = 2; slices <= 3; slices++)
        for (int form = 0; form < FORMS; form++)
            for (size_t n = 0; n < TH_COUNT(blocks); n++) {
                snprintf(parameters, sizeof(parameters), "%s,slices=%d", blocks[n], slices);
                expect_slices(session, form, parameters, slices == 3);
            }
    for (size_t n = 0; n < TH_COUNT(more); n++) {
        clmgk_gemm_desc desc = fragments_desc(more[n], CLMGK_DTYPE_F32, NN);
        tp_expect(session, &desc, "matrix", SLICED(3), 8 * n, n);
        desc.precision = CLMGK_PRECISION_TF32;
        tp_expect(session, &desc, "matrix", SLICED(2), 8 * n, n);
        expect_worst_singles(session, &desc, SLICED(2), LOW_SLICES);
    }
    expect_fragments(session, CLMGK_DTYPE_F32, TT, SMALL_BLOCKS ",splits=2");
}

/* Blocks as plans choose them, and sums that are longer than the unit adds by itself. */
TH_FULL_TEST(fragments_of_all_sizes)
{
    static const int64_t more[][3] = {{300, 280, 40}, {20, 24, 4096}, {17, 9, 4129}, {16, 16, 12320}};
    for (int form = 0; form < FORMS; form++) {
        for (size_t n = 0; n < TH_COUNT(sizes); n++) {
            const clmgk_gemm_desc desc = fragments_desc(sizes[n], CLMGK_DTYPE_BF16, form);
            tp_expect(session, &desc, "matrix", "", n % 3, n);
        }
        for (size_t n = 0; n < TH_COUNT(more); n++) {
            const clmgk_gemm_desc desc = fragments_desc(more[n], CLMGK_DTYPE_F16, form);
            tp_expect(session, &desc, "matrix", "", 8 * n, n);
        }
    }
}

static clmgk_status plan_status(const th_session *session, const clmgk_gemm_desc *desc, const char *parameters)
{
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_plan *plan = NULL;
    options.provider = "matrix";
    options.parameters = parameters;
    const clmgk_status status = clmgk_gemm_plan_create(session->context, desc, &options, &plan, &th_error);
    clmgk_gemm_plan_release(plan);
    return status;
}

/* Devices without matrix units emulate them for callers that name the provider. No plan chooses that. */
TH_TEST(fragments_have_to_be_named_without_units)
{
    const bool has_units = session->info.matrix_units != 0 && strncmp(session->info.matrix_unit, "amx", 3) != 0 &&
                           strcmp(session->info.matrix_unit, "avx512-bf16") != 0;
    clmgk_gemm_desc desc = desc_of(40, 40, 40);
    assert_int_equal(offers(session, "matrix", CLMGK_DTYPE_BF16), has_units);
    assert_int_equal(offers(session, "matrix", CLMGK_DTYPE_F32), has_units);
    desc.dtype = CLMGK_DTYPE_BF16;
    th_expect_error(plan_status(session, &desc, "warps=3"), CLMGK_ERROR_INVALID_VALUE, "");
    th_expect_error(plan_status(session, &desc, "MWG=64"), CLMGK_ERROR_INVALID_VALUE, "");
    th_expect_error(plan_status(session, &desc, "warps=2,column-warps=4"), CLMGK_ERROR_INVALID_VALUE, "");
    th_expect_error(plan_status(session, &desc, "unit=1,slices=3"), CLMGK_ERROR_INVALID_VALUE, "");
    th_expect_error(plan_status(session, &desc, "unit=1,emulates=5"), CLMGK_ERROR_INVALID_VALUE, "");
    th_expect_error(plan_status(session, &desc, "unit=0,emulates=5,column-tiles=2"), CLMGK_ERROR_UNSUPPORTED,
                    "expected a multiple of 4");
    th_expect_error(plan_status(session, &desc, "unit=0,emulates=9,warps=2,column-warps=1,row-tiles=1"),
                    CLMGK_ERROR_UNSUPPORTED, "a block of 16 rows");
    desc.dtype = CLMGK_DTYPE_F32;
    th_expect_error(plan_status(session, &desc, "unit=0,emulates=5"), CLMGK_ERROR_UNSUPPORTED, "no products of f32");
    desc.dtype = CLMGK_DTYPE_BF16;
    if (has_units)
        return;
    th_expect_error(plan_status(session, &desc, "unit=1"), CLMGK_ERROR_UNSUPPORTED, "matrix unit");
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    clmgk_gemm_plan *const plan = tp_plan(session, &desc, "matrix", SMALL_BLOCKS);
    assert_int_equal(clmgk_gemm_plan_get_info(plan, &info, NULL), CLMGK_OK);
    assert_string_equal(info.provider, "matrix");
    assert_string_equal(info.parameters, SMALL_BLOCKS ",emulates=0,splits=1,slices=0");
    assert_non_null(strstr(info.note, "emulates matrix units"));
    assert_int_equal(info.sums, CLMGK_DTYPE_F32);
    assert_int_equal(info.workspace_bytes, 0);
    clmgk_gemm_plan_release(plan);
}

/* Slices are refused where they are not exact enough, and for other types. */
TH_TEST(slices_have_to_be_exact_enough)
{
    static const struct {
        clmgk_dtype dtype;
        clmgk_precision precision;
        int64_t k;
        const char *parameters;
        const char *words;   /* of the message; NULL: taken */
        const char *options; /* words of them */
    } cases[] = {{CLMGK_DTYPE_F32, CLMGK_PRECISION_EXACT, 64, "slices=3", "3 slices", NULL},
                 {CLMGK_DTYPE_F32, CLMGK_PRECISION_EXACT, 65, "slices=2", "expected 3", NULL},
                 {CLMGK_DTYPE_BF16, CLMGK_PRECISION_EXACT, 65, "slices=3", "3 slices", NULL},
                 {CLMGK_DTYPE_F32, CLMGK_PRECISION_EXACT, 65, "slices=0,unit=2", "expected unit 1", NULL},
                 {CLMGK_DTYPE_F32, CLMGK_PRECISION_TF32, 1, "slices=3", NULL, "-DBF16_SLICES=3"},
                 {CLMGK_DTYPE_F32, CLMGK_PRECISION_TF32, 1, "", NULL, "-DMATRIX_UNIT=2 -DBF16_SLICES=2"},
                 {CLMGK_DTYPE_F32, CLMGK_PRECISION_EXACT, 65, "", NULL, "-DMATRIX_UNIT=2 -DBF16_SLICES=3"},
                 {CLMGK_DTYPE_F32, CLMGK_PRECISION_EXACT, 64, "", NULL, "-DMATRIX_UNIT=1 -DTF32_PRODUCTS=4"},
                 {CLMGK_DTYPE_F32, CLMGK_PRECISION_EXACT, 65, "unit=1", NULL, "-DMATRIX_UNIT=1 -DTF32_PRODUCTS=3"}};
    const mgk_device_facts facts = hopper_of(session);
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        mgk_steps steps;
        clmgk_gemm_plan plan = {.context = session->context, .steps = &steps};
        clmgk_gemm_desc desc = desc_of(128, 128, cases[n].k);
        desc.dtype = cases[n].dtype;
        desc.precision = cases[n].precision;
        memset(&steps, 0, sizeof(steps));
        th_expect_ok(mgk_gemm_resolve(&desc, &plan.desc, &th_error));
        const clmgk_status status = mgk_gemm_fragments_step(&plan, &facts, cases[n].parameters, &th_error);
        if (cases[n].words != NULL) {
            th_expect_error(status, CLMGK_ERROR_UNSUPPORTED, cases[n].words);
        } else {
            th_expect_ok(status);
            assert_non_null(strstr(steps.step[0].options.data, cases[n].options));
        }
        mgk_steps_clear(&steps, NULL);
    }
}

static clmgk_status doubled_step(clmgk_gemm_plan *plan, const mgk_device_facts *facts, const char *parameters,
                                 clmgk_error *error)
{
    const clmgk_status status = mgk_gemm_fragments_step(plan, facts, parameters, error);
    mgk_gemm_product_args args;
    memcpy(&args, plan->steps->step[0].args, sizeof(args));
    args.alpha = 2;
    memcpy(plan->steps->step[0].args, &args, sizeof(args));
    return status;
}

/* As edited programs do: a right one passes, and a wrong one is never used again. */
TH_TEST(fragments_get_a_verdict)
{
    th_session own = *session;
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_gemm_desc desc = desc_of(40, 40, 40);
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.transpose_b = 1;
    options.cache_dir = "";
    if (offers(session, "matrix", CLMGK_DTYPE_BF16)) /* their programs are others */
        skip();
    th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, &options, &own.context, &th_error));
    clmgk_gemm_plan *const plan = tp_plan(&own, &desc, "matrix", SMALL_BLOCKS);
    const mgk_device_facts *const facts = &own.context->facts;
    mgk_program *const program = plan->steps->step[0].program;
    program->unverified = true;
    th_expect_ok(mgk_gemm_verify(plan, facts, SMALL_BLOCKS, mgk_gemm_fragments_step, &th_error));
    assert_false(mgk_program_is_unverified(program));
    program->unverified = true;
    th_expect_error(mgk_gemm_verify(plan, facts, SMALL_BLOCKS, doubled_step, &th_error), CLMGK_ERROR_UNSUPPORTED,
                    "wrong numbers");
    th_expect_error(plan_status(&own, &desc, SMALL_BLOCKS), CLMGK_ERROR_UNSUPPORTED, "wrong numbers");
    clmgk_gemm_plan_release(plan);
    clmgk_context_release(own.context);
}

/* On a GPU with such units it comes before CLBlast. */
TH_TEST(fragments_come_first_with_units)
{
    mgk_device_facts facts = session->context->facts;
    size_t matrix = 0, clblast = 0;
    for (size_t i = 0; i < TH_COUNT(mgk_gemm_providers); i++) {
        matrix = mgk_gemm_providers[i] == &mgk_gemm_fragments ? i : matrix;
        clblast = mgk_gemm_providers[i] == &mgk_gemm_clblast ? i : clblast;
    }
    assert_true(matrix < clblast);
    facts.runtime = MGK_RUNTIME_NVIDIA;
    facts.info.device_class = CLMGK_DEVICE_GPU;
    (void)snprintf(facts.info.vendor, sizeof(facts.info.vendor), "NVIDIA Corporation");
    static const char *const architectures[] = {"sm_75", "sm_80", "sm_90"};
    for (size_t i = 0; i < TH_COUNT(architectures); i++) {
        (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "%s", architectures[i]);
        for (int dtype = 0; dtype < 3; dtype++)
            assert_int_equal(mgk_gemm_may_choose(&mgk_gemm_fragments, &facts, (clmgk_dtype)dtype, NULL),
                             i > 0 ? CLMGK_OK : CLMGK_ERROR_UNSUPPORTED);
    }
}

/* So it does with AMD's and Intel's units, of 16-bit numbers, in blocks of their fragments. */
TH_TEST(other_units_have_blocks_of_their_own)
{
    static const struct {
        const char *vendor, *architecture;
        int sub_group, unit, lanes;
        const char *options; /* words of them */
    } devices[] = {
        {"Advanced Micro Devices, Inc.", "gfx942", 0, 5, 64, "-DROW_TILES=2 -DCOLUMN_TILES=8 -DDEPTH=32 -DSTAGES=2"},
        {"Advanced Micro Devices, Inc.", "gfx1100", 0, 6, 32, "-DROW_TILES=4 -DCOLUMN_TILES=4 -DDEPTH=32 -DSTAGES=2"},
        {"Advanced Micro Devices, Inc.", "gfx1201", 0, 7, 32, "-DUNTRIED_UNIT=1"},
        {"Intel(R) Corporation", "pvc", 16, 8, 16, "-DLEAST_SUB_GROUP=16"},
        {"Intel(R) Corporation", "dg2", 8, 9, 8, "-DROW_TILES=2 -DCOLUMN_TILES=4"}};
    for (size_t n = 0; n < TH_COUNT(devices); n++) {
        mgk_device_facts facts = hopper_of(session);
        mgk_steps steps = {.count = 0};
        clmgk_gemm_plan plan = {.context = session->context, .steps = &steps};
        clmgk_gemm_desc desc = desc_of(4096, 4096, 4096);
        desc.dtype = CLMGK_DTYPE_BF16;
        (void)snprintf(facts.info.vendor, sizeof(facts.info.vendor), "%s", devices[n].vendor);
        (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "%s", devices[n].architecture);
        facts.least_sub_group = devices[n].sub_group;
        facts.intel_matrix_mad = devices[n].sub_group > 0;
        facts.matrix_unit.unit = devices[n].unit;
        assert_int_equal(mgk_gemm_may_choose(&mgk_gemm_fragments, &facts, CLMGK_DTYPE_F16, NULL), CLMGK_OK);
        th_expect_error(mgk_gemm_may_choose(&mgk_gemm_fragments, &facts, CLMGK_DTYPE_F32, &th_error),
                        CLMGK_ERROR_UNSUPPORTED, "multiply f16 and bf16 alone");
        th_expect_ok(mgk_gemm_resolve(&desc, &plan.desc, &th_error));
        th_expect_ok(mgk_gemm_fragments_step(&plan, &facts, "", &th_error));
        assert_int_equal(steps.step[0].launch.local[0], 4 * devices[n].lanes);
        assert_non_null(strstr(steps.step[0].options.data, devices[n].options));
        mgk_steps_clear(&steps, NULL);
        mgk_text_free(&plan.note);
    }
}

TH_TEST(nothing_to_multiply)
{
    static const int64_t empty[][3] = {{0, 5, 6}, {5, 0, 6}, {0, 0, 0}, {5, 6, 0}, {70, 33, 0}};
    for (int dtype = 0; dtype < 3; dtype++)
        for (size_t n = 0; n < TH_COUNT(empty); n++)
            for (int beta = 0; beta < 3; beta++) {
                clmgk_gemm_desc desc = desc_of(empty[n][0], empty[n][1], empty[n][2]);
                desc.dtype = (clmgk_dtype)dtype;
                desc.beta = beta * 0.5;
                desc.batch = 2;
                desc.ldc = 40;
                tp_expect(session, &desc, NULL, NULL, 3, n);
            }
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* All three matrices in one buffer, or in sub-buffers of one. */
static void expect_shared(th_session *session, const char *provider, bool parts)
{
    enum { EDGE = 40, ELEMENTS = EDGE * EDGE, ROOM = 4096 };
    const clmgk_gemm_desc desc = desc_of(EDGE, EDGE, EDGE);
    const size_t size = ELEMENTS * sizeof(float);
    TP_PRODUCT product = tp_make(session, &desc, 0, 11);
    clmgk_gemm_plan *const plan = tp_plan(session, &desc, provider, "");
    cl_mem whole = clCreateBuffer(session->cl, CL_MEM_READ_WRITE, 3 * (size + ROOM), NULL, NULL);
    assert_non_null(whole);
    clmgk_buffer *const places[] = {&product.args.a, &product.args.b, &product.args.c};
    cl_mem part[3] = {NULL};
    for (size_t i = 0; i < 3; i++) {
        const size_t start = i * (size / ROOM + 1) * ROOM;
        const cl_buffer_region region = {start, size + ROOM - size % ROOM};
        assert_int_equal(clEnqueueCopyBuffer(session->queue, places[i]->memory, whole,
                                             places[i]->offset * sizeof(float), start, size, 0, NULL, NULL),
                         CL_SUCCESS);
        if (parts)
            part[i] = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, NULL);
        *places[i] = parts ? (clmgk_buffer){part[i], 0} : (clmgk_buffer){whole, start / sizeof(float)};
    }
    tp_add_workspace(session, &product, plan, 0);
    tp_enqueue(plan, session->queue, &product, 0, NULL, NULL);
    assert_int_equal(clEnqueueCopyBuffer(session->queue, places[2]->memory, product.matrix[TP_C].memory,
                                         places[2]->offset * sizeof(float), product.matrix[TP_C].offset * sizeof(float),
                                         size, 0, NULL, NULL),
                     CL_SUCCESS);
    tp_check(session, &product, CLMGK_DTYPE_F32, parts ? "sub-buffers" : provider);
    for (size_t i = 0; parts && i < 3; i++)
        clReleaseMemObject(part[i]);
    clReleaseMemObject(whole);
    clmgk_gemm_plan_release(plan);
}

/* A times its own transpose. */
static void expect_aliased(th_session *session, const char *provider)
{
    enum { ROWS = 50, COLUMNS = 30, ELEMENTS = ROWS * COLUMNS };
    clmgk_gemm_desc desc = desc_of(ROWS, ROWS, COLUMNS);
    desc.transpose_b = 1;
    TP_PRODUCT product = tp_make(session, &desc, 1, 5);
    tp_matrix *const a = &product.matrix[TP_A], *const b = &product.matrix[TP_B];
    for (size_t n = 0; n < ELEMENTS; n++)
        b->values[b->offset + n] = a->values[a->offset + n];
    clmgk_gemm_plan *const plan = tp_plan(session, &desc, provider, "");
    product.args.b = product.args.a;
    tp_add_workspace(session, &product, plan, 0);
    tp_enqueue(plan, session->queue, &product, 0, NULL, NULL);
    tp_check(session, &product, CLMGK_DTYPE_F32, "aliased");
    clmgk_gemm_plan_release(plan);
}

TH_TEST(shared_buffers)
{
    const char *names[MAX_PROVIDERS];
    const size_t count = providers_of(session, CLMGK_DTYPE_F32, names);
    for (size_t i = 0; i < count; i++) {
        expect_shared(session, names[i], false);
        expect_shared(session, names[i], true);
        expect_aliased(session, names[i]);
    }
}

/* ---- events and threads ------------------------------------------------------------------------------------------ */

/* A gets its values after a user event. The product waits for them. */
static void expect_order(th_session *session, const char *provider, bool out_of_order, const clmgk_gemm_desc *desc)
{
    cl_command_queue queue = th_queue(session, out_of_order);
    TP_PRODUCT product = tp_make(session, desc, 2, 23);
    clmgk_gemm_plan *const plan = tp_plan(session, &product.desc, provider, "");
    tp_add_workspace(session, &product, plan, 0);
    const tp_matrix *const a = &product.matrix[TP_A];
    const float zero = 0;
    const size_t bytes = a->count * sizeof(float);
    cl_event gate = clCreateUserEvent(session->cl, NULL), written = NULL, done = NULL;
    assert_int_equal(clEnqueueFillBuffer(session->queue, a->memory, &zero, sizeof(zero), 0, bytes, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    assert_int_equal(clEnqueueWriteBuffer(queue, a->memory, CL_FALSE, 0, bytes, a->image, 1, &gate, &written),
                     CL_SUCCESS);
    tp_enqueue(plan, queue, &product, 1, &written, &done);
    cl_int status = CL_COMPLETE;
    assert_int_equal(clGetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL),
                     CL_SUCCESS);
    assert_int_not_equal(status, CL_COMPLETE);
    assert_int_equal(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    assert_int_equal(clFlush(queue), CL_SUCCESS);
    assert_int_equal(clWaitForEvents(1, &done), CL_SUCCESS);
    tp_check(session, &product, CLMGK_DTYPE_F32, out_of_order ? "out of order" : "in order");
    clReleaseEvent(gate);
    clReleaseEvent(written);
    clReleaseEvent(done);
    clmgk_gemm_plan_release(plan);
    clReleaseCommandQueue(queue);
}

TH_TEST(wait_lists_and_events)
{
    const char *names[MAX_PROVIDERS];
    const size_t count = providers_of(session, CLMGK_DTYPE_F32, names);
    const clmgk_gemm_desc descs[] = {desc_of(60, 50, 40), batch_desc(30, 20, 10, 5)};
    for (size_t i = 0; i < count; i++)
        for (size_t n = 0; n < TH_COUNT(descs); n++)
            for (int out_of_order = 0; out_of_order < 2; out_of_order++)
                expect_order(session, names[i], out_of_order, &descs[n]);
}

enum { ROUNDS = 6, THREADS = 3 };

typedef struct worker {
    th_chain chain;
    const clmgk_gemm_plan *plan;
    tp_product product;
} worker;

/* No cmocka here: this is not the test's thread. */
static bool enqueue_once(void *user, cl_uint num_wait, const cl_event *wait_list, cl_event *event)
{
    worker *const w = user;
    return clmgk_enqueue_gemm(w->plan, w->chain.queue, &w->product.args, num_wait, wait_list, event, &w->chain.error) ==
           CLMGK_OK;
}

/* Plans of different shapes and, for CLBlast, parameters; the last thread shares the first one's plan. */
static void expect_threads(th_session *session, const char *provider, const char *const parameters[2])
{
    const clmgk_gemm_desc descs[] = {desc_of(64, 65, 66), batch_desc(20, 64, 33, 0)};
    clmgk_gemm_plan *plans[2];
    worker workers[THREADS];
    for (size_t n = 0; n < 2; n++)
        plans[n] = tp_plan(session, &descs[n], provider, parameters[n]);
    for (size_t n = 0; n < THREADS; n++) {
        const th_chain chain = {.queue = th_queue(session, n % 2 == 1), .enqueue = enqueue_once, .rounds = ROUNDS};
        workers[n] = (worker){.chain = chain, .plan = plans[n % 2]};
        workers[n].product = tp_make(session, &descs[n % 2], n, n);
        tp_add_workspace(session, &workers[n].product, plans[n % 2], 0);
    }
    th_run_threads(th_run_chain, workers, sizeof(workers[0]), THREADS);
    for (size_t n = 0; n < THREADS; n++) {
        if (!workers[n].chain.ok)
            fail_msg("%s: %s", provider, workers[n].chain.error.message);
        tp_check(session, &workers[n].product, CLMGK_DTYPE_F32, provider);
        tp_free(&workers[n].product);
        clReleaseCommandQueue(workers[n].chain.queue);
    }
    clmgk_gemm_plan_release(plans[0]);
    clmgk_gemm_plan_release(plans[1]);
}

/* A plan goes while its product waits. */
TH_TEST(release_while_waiting)
{
    const char *names[MAX_PROVIDERS];
    const size_t count = providers_of(session, CLMGK_DTYPE_F32, names);
    const clmgk_gemm_desc desc = desc_of(31, 41, 59);
    for (size_t i = 0; i < count; i++) {
        cl_command_queue queue = th_queue(session, false);
        cl_event gate = clCreateUserEvent(session->cl, NULL), done = NULL;
        TP_PRODUCT product = tp_make(session, &desc, 1, i);
        clmgk_gemm_plan *const plan = tp_plan(session, &desc, names[i], "");
        tp_add_workspace(session, &product, plan, 0);
        tp_enqueue(plan, queue, &product, 1, &gate, &done);
        clmgk_gemm_plan_release(plan);
        assert_int_equal(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
        assert_int_equal(clWaitForEvents(1, &done), CL_SUCCESS);
        tp_check(session, &product, CLMGK_DTYPE_F32, names[i]);
        clReleaseEvent(gate);
        clReleaseEvent(done);
        clReleaseCommandQueue(queue);
    }
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

#define FIELD(name, number, status, word)                                                                              \
    do {                                                                                                               \
        clmgk_gemm_desc wrong = desc_of(6, 7, 8);                                                                      \
        wrong.batch = 2;                                                                                               \
        wrong.name = (number);                                                                                         \
        th_expect_error(clmgk_gemm_validate(&wrong, NULL, &th_error), CLMGK_ERROR_##status, word);                     \
    } while (0)

TH_TEST(wrong_descriptors)
{
    th_expect_error(clmgk_gemm_validate(NULL, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "desc: NULL");
    FIELD(struct_size, 3, INVALID_VALUE, "struct_size");
    FIELD(dtype, (clmgk_dtype)3, INVALID_VALUE, "dtype: 3");
    FIELD(precision, (clmgk_precision)3, INVALID_VALUE, "precision: 3");
    FIELD(transpose_a, 2, INVALID_VALUE, "transpose_a: 2");
    FIELD(transpose_b, -1, INVALID_VALUE, "transpose_b: -1");
    FIELD(broadcast_a, 2, INVALID_VALUE, "broadcast_a: 2");
    FIELD(broadcast_b, 7, INVALID_VALUE, "broadcast_b: 7");
    FIELD(m, -1, INVALID_SHAPE, "m: -1");
    FIELD(n, -2, INVALID_SHAPE, "n: -2");
    FIELD(k, -3, INVALID_SHAPE, "k: -3");
    FIELD(batch, -4, INVALID_SHAPE, "batch: -4");
    FIELD(m, (INT64_C(1) << 30) + 1, OVERFLOW, "m: 1073741825");
    FIELD(lda, 7, INVALID_SHAPE, "lda: 7: expected at least 8");
    FIELD(ldb, -1, INVALID_SHAPE, "ldb: -1");
    FIELD(ldc, 6, INVALID_SHAPE, "ldc: 6: expected at least 7");
    FIELD(stride_a, -1, INVALID_SHAPE, "stride_a: -1");
    FIELD(stride_c, 41, INVALID_SHAPE, "stride_c: 41");
    FIELD(stride_b, INT64_MAX, OVERFLOW, "b: ");
    FIELD(lda, INT64_MAX / 4, OVERFLOW, "a: ");
    FIELD(alpha, (double)NAN, INVALID_VALUE, "alpha: nan");
    FIELD(alpha, 1e39, INVALID_VALUE, "alpha: 1e+39");
    FIELD(beta, -(double)INFINITY, INVALID_VALUE, "beta: -inf");
    clmgk_gemm_desc wrong = desc_of(6, 7, 8);
    wrong.broadcast_a = 1;
    wrong.stride_a = 48;
    th_expect_error(clmgk_gemm_validate(&wrong, NULL, &th_error), CLMGK_ERROR_INVALID_SHAPE, "stride_a: 48");
}

TH_TEST(resolved_descriptors)
{
    clmgk_gemm_desc desc = desc_of(6, 7, 8), again;
    desc.transpose_a = 1;
    desc.broadcast_b = 1;
    assert_int_equal(clmgk_gemm_validate(&desc, &desc, NULL), CLMGK_OK);
    assert_int_equal(desc.batch, 1);
    assert_true(desc.alpha == 1.0 && desc.beta == 0.0);
    assert_int_equal(desc.lda, 6);
    assert_int_equal(desc.ldb, 7);
    assert_int_equal(desc.ldc, 7);
    assert_int_equal(desc.stride_a, 48);
    assert_int_equal(desc.stride_b, 0);
    assert_int_equal(desc.stride_c, 42);
    assert_int_equal(clmgk_gemm_validate(&desc, &again, NULL), CLMGK_OK);
    assert_memory_equal(&desc, &again, sizeof(desc));
}

static void expect_bad_plan(th_session *session, clmgk_dtype dtype, const char *provider, const char *parameters,
                            clmgk_status expected, const char *word)
{
    clmgk_gemm_desc desc = desc_of(3, 4, 5);
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_plan *plan = NULL;
    desc.dtype = dtype;
    options.provider = provider;
    options.parameters = parameters;
    th_expect_error(clmgk_gemm_plan_create(session->context, &desc, &options, &plan, &th_error), expected, word);
    assert_null(plan);
}

TH_TEST(wrong_plans)
{
    const clmgk_gemm_desc desc = desc_of(3, 4, 5);
    clmgk_gemm_plan *plan = NULL;
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    th_expect_error(clmgk_gemm_plan_create(NULL, &desc, NULL, &plan, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "context: NULL");
    th_expect_error(clmgk_gemm_plan_create(session->context, &desc, NULL, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "out: NULL");
    th_expect_error(clmgk_gemm_plan_create(session->context, NULL, NULL, &plan, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "desc: NULL");
    options.struct_size = 1;
    th_expect_error(clmgk_gemm_plan_create(session->context, &desc, &options, &plan, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "options.struct_size");
    expect_bad_plan(session, CLMGK_DTYPE_F32, "cublas", NULL, CLMGK_ERROR_INVALID_VALUE, "\"cublas\"");
    expect_bad_plan(session, CLMGK_DTYPE_F32, NULL, "MWG=64", CLMGK_ERROR_INVALID_VALUE, "\"MWG=64\"");
    if (offers(session, "clblast", CLMGK_DTYPE_F32)) {
        expect_bad_plan(session, CLMGK_DTYPE_BF16, "clblast", NULL, CLMGK_ERROR_UNSUPPORTED, "no bf16");
        expect_bad_plan(session, CLMGK_DTYPE_F32, "clblast", "MWG=64", CLMGK_ERROR_INVALID_VALUE, "clblast-xgemm");
        expect_bad_plan(session, CLMGK_DTYPE_F32, "clblast", "SIZE=64", CLMGK_ERROR_INVALID_VALUE, "SIZE=64");
        expect_bad_plan(session, CLMGK_DTYPE_F32, "clblast", "XGEMM_MIN_INDIRECT_SIZE=5", CLMGK_ERROR_INVALID_VALUE,
                        "XGEMM_MIN_INDIRECT_SIZE=5");
        expect_bad_plan(session, CLMGK_DTYPE_F32, "clblast",
                        "KWID=2,MDIMAD=8,MDIMCD=8,NDIMBD=8,NDIMCD=8,PADA=1,PADB=0,VWMD=4,VWND=2,WGD=16",
                        CLMGK_ERROR_INVALID_VALUE, "WGD % (MDIMCD * VWMD) == 0");
    }
    if (offers(session, "openblas", CLMGK_DTYPE_F32))
        expect_bad_plan(session, CLMGK_DTYPE_F32, "openblas", "threads=2", CLMGK_ERROR_INVALID_VALUE, "threads=2");
    expect_bad_plan(session, CLMGK_DTYPE_F32, "clmgk", "rows=2", CLMGK_ERROR_INVALID_VALUE, "rows=2");
    th_expect_error(clmgk_gemm_plan_get_info(NULL, &info, &th_error), CLMGK_ERROR_INVALID_VALUE, "plan: NULL");
    clmgk_gemm_provider_info provider = CLMGK_GEMM_PROVIDER_INFO_INIT;
    th_expect_error(clmgk_gemm_provider_state(NULL, 0, &provider, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "device: NULL");
    size_t count = 0;
    while (clmgk_gemm_provider(count))
        count++;
    th_expect_error(clmgk_gemm_provider_state(session->info.device_id, count, &provider, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "index: ");
    th_expect_error(clmgk_gemm_provider_state(session->info.device_id, 0, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "info: NULL");
    provider.struct_size = 0;
    th_expect_error(clmgk_gemm_provider_state(session->info.device_id, 0, &provider, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "info.struct_size");
    assert_int_equal(clmgk_gemm_plan_workspace_size(NULL), 0);
    clmgk_gemm_plan_release(NULL);
}

TH_TEST(wrong_calls)
{
    const clmgk_gemm_desc desc = desc_of(30, 40, 50);
    TP_PRODUCT product = tp_make(session, &desc, 3, 1);
    clmgk_gemm_plan *const plan = tp_plan(session, &desc, NULL, NULL);
    tp_add_workspace(session, &product, plan, 0);
    clmgk_gemm_args args = product.args;
    cl_event event = NULL;
#define CALL(plan_, queue_, args_, count, list) clmgk_enqueue_gemm(plan_, queue_, args_, count, list, NULL, &th_error)
    th_expect_error(CALL(NULL, session->queue, &args, 0, NULL), CLMGK_ERROR_INVALID_VALUE, "plan: NULL");
    th_expect_error(CALL(plan, session->queue, NULL, 0, NULL), CLMGK_ERROR_INVALID_VALUE, "args: NULL");
    th_expect_error(CALL(plan, NULL, &args, 0, NULL), CLMGK_ERROR_INVALID_VALUE, "queue");
    th_expect_error(CALL(plan, session->queue, &args, 1, NULL), CLMGK_ERROR_INVALID_VALUE, "wait_list");
    th_expect_error(CALL(plan, session->queue, &args, 1, &event), CLMGK_ERROR_INVALID_VALUE, "wait_list[0]");
    args.struct_size = 2;
    th_expect_error(CALL(plan, session->queue, &args, 0, NULL), CLMGK_ERROR_INVALID_VALUE, "args.struct_size");
    args = product.args;
    args.b.memory = NULL;
    th_expect_error(CALL(plan, session->queue, &args, 0, NULL), CLMGK_ERROR_INVALID_BUFFER, "b: NULL");
    args = product.args;
    args.c.offset += 20;
    th_expect_error(CALL(plan, session->queue, &args, 0, NULL), CLMGK_ERROR_INVALID_BUFFER, "c: a buffer of");
    args = product.args;
    args.a.offset = UINT64_MAX;
    th_expect_error(CALL(plan, session->queue, &args, 0, NULL), CLMGK_ERROR_INVALID_BUFFER, "a: a buffer of");
    args = product.args;
    args.c = args.b;
    th_expect_error(CALL(plan, session->queue, &args, 0, NULL), CLMGK_ERROR_INVALID_BUFFER, "c: shares memory with b");
    clmgk_gemm_plan_release(plan);
}

TH_TEST(wrong_stores)
{
    const clmgk_gemm_desc desc = desc_of(30, 40, 50);
    clmgk_tuned tuned = {"cublas", NULL, 1.0, 1.0};
    th_expect_error(clmgk_gemm_tuning_store(NULL, "", &desc, &tuned, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "context: NULL");
    th_expect_error(clmgk_gemm_tuning_store(session->context, "", &desc, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "tuned: NULL");
    th_expect_error(clmgk_gemm_tuning_store(session->context, "", &desc, &tuned, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "cublas");
    tuned.choice = NULL;
    th_expect_error(clmgk_gemm_tuning_store(session->context, "", &desc, &tuned, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "tuned.choice: NULL");
    if (!offers(session, "clblast", CLMGK_DTYPE_F32))
        return;
    tuned.choice = "clblast";
    tuned.parameters = "MWG=64";
    th_expect_error(clmgk_gemm_tuning_store(session->context, "", &desc, &tuned, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "clblast-xgemm");
    tuned.parameters = "";
    th_expect_error(clmgk_gemm_tuning_store(session->context, "", NULL, &tuned, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "desc: NULL");
    th_expect_error(clmgk_gemm_tuning_store_device(session->context, "", CLMGK_DTYPE_BF16, &tuned, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "no bf16");
    th_expect_error(clmgk_gemm_tuning_store_device(session->context, "", (clmgk_dtype)9, &tuned, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "dtype: 9");
    th_expect_error(clmgk_gemm_tuning_store(session->context, "", &desc, &tuned, &th_error), CLMGK_ERROR_IO, "");
}

/* ---- CLBlast's parameters: last, for once some have been set, there is no way back to its own ------------------- */

/* Large products by both kernels; batches too, whose strided form CLBlast gets wrong there. Sizes that fill the tiles
 * need no copy of B (or of none, for tiles in registers). In full each size in all four transpositions, else in one. */
static void expect_parameters(th_session *session, const char *parameters)
{
    static const int64_t large[][3] = {{64, 96, 32}, {33, 70, 19}, {1, 64, 33}, {64, 32, 20}, {128, 1, 7}};
    for (size_t n = 0; n < TH_COUNT(large); n++)
        for (int transposed = 0; transposed < 4; transposed++) {
            if (!session->full && transposed != (int)n % 4)
                continue;
            clmgk_gemm_desc desc = desc_of(large[n][0], large[n][1], large[n][2]);
            desc.transpose_a = transposed & 1;
            desc.transpose_b = transposed >> 1;
            desc.beta = (int)n % 2;
            tp_expect(session, &desc, "clblast", parameters, (n + (size_t)transposed) % 2 * 3, n);
        }
    for (int way = 0; way < WAYS; way++)
        for (size_t n = 0; n < 2; n++) {
            const clmgk_gemm_desc desc = batch_desc(large[n][0], large[n][1], large[n][2], way);
            tp_expect(session, &desc, "clblast", parameters, n, n);
        }
}

TH_TEST(all_parameters)
{
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    if (!offers(session, "clblast", CLMGK_DTYPE_F32))
        return;
    const clmgk_gemm_desc desc = desc_of(128, 96, 64);
    /* made with CLBlast's own values, enqueued after others have been set */
    clmgk_gemm_plan *const before = tp_plan(session, &desc, "clblast", "");
    expect_parameters(session, LOCAL_TILES "," DIRECT_TILES "," FROM(0));
    expect_parameters(session, REGISTER_TILES "," FROM(32));
    expect_parameters(session, DIRECT_TILES "," FROM(4096));
    clmgk_gemm_plan *const large = tp_plan(session, &desc, "clblast", REGISTER_TILES "," FROM(0));
    assert_int_equal(clmgk_gemm_plan_get_info(large, &info, NULL), CLMGK_OK);
    assert_string_equal(info.parameters, REGISTER_TILES "," FROM(0));
    assert_int_equal(info.tuning, CLMGK_TUNING_CALLER);
    assert_true(info.workspace_bytes > 0);
    clmgk_gemm_plan *const after = tp_plan(session, &desc, "clblast", "");
    assert_int_equal(clmgk_gemm_plan_get_info(after, &info, NULL), CLMGK_OK);
    assert_non_null(strstr(info.note, "its own are lost"));
    clmgk_gemm_plan *const plans[] = {before, large, after, large, before};
    for (size_t n = 0; n < TH_COUNT(plans); n++) {
        TP_PRODUCT product = tp_make(session, &desc, n % 2, n);
        tp_add_workspace(session, &product, plans[n], n * 4);
        tp_enqueue(plans[n], session->queue, &product, 0, NULL, NULL);
        tp_check(session, &product, CLMGK_DTYPE_F32, "turns");
    }
    clmgk_gemm_plan_release(before);
    clmgk_gemm_plan_release(large);
    clmgk_gemm_plan_release(after);
}

TH_TEST(threads_with_plans)
{
    static const char *const own[2] = {"", ""};
    static const char *const set[2] = {LOCAL_TILES "," FROM(0), REGISTER_TILES "," FROM(0)};
    const char *names[MAX_PROVIDERS];
    const size_t count = providers_of(session, CLMGK_DTYPE_F32, names);
    for (size_t i = 0; i < count; i++) {
        const bool has_parameters = strcmp(names[i], "clblast") == 0;
        expect_threads(session, names[i], has_parameters ? set : own);
    }
}

/* ---- tuned values ------------------------------------------------------------------------------------------------ */

static clmgk_context *context_of(const th_session *session, const char *folder)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    options.cache_dir = folder;
    assert_int_equal(clmgk_context_create(session->cl, session->info.device_id, &options, &context, NULL), CLMGK_OK);
    return context;
}

/* The plan of a context that reads this folder; `wanted`: the provider that the caller asks for, NULL: none. */
static void expect_choice(const th_session *session, const char *folder, const clmgk_gemm_desc *desc,
                          const char *wanted, const char *provider, const char *parameters, clmgk_tuning_source source)
{
    clmgk_context *const context = context_of(session, folder);
    clmgk_gemm_plan *plan = NULL;
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    options.provider = wanted;
    th_expect_ok(clmgk_gemm_plan_create(context, desc, &options, &plan, &th_error));
    assert_int_equal(clmgk_gemm_plan_get_info(plan, &info, NULL), CLMGK_OK);
    assert_string_equal(info.provider, provider);
    assert_string_equal(info.parameters, parameters);
    assert_int_equal(info.tuning, source);
    clmgk_gemm_plan_release(plan);
    clmgk_context_release(context);
}

static void store_time(const th_session *session, const char *folder, const clmgk_gemm_desc *desc, const char *choice,
                       const char *parameters, double time_ms)
{
    clmgk_context *const context = context_of(session, folder);
    const clmgk_tuned tuned = {choice, parameters, time_ms, 2.0};
    clmgk_error error;
    const clmgk_status status = desc ? clmgk_gemm_tuning_store(context, folder, desc, &tuned, &error)
                                     : clmgk_gemm_tuning_store_device(context, folder, CLMGK_DTYPE_F32, &tuned, &error);
    if (status != CLMGK_OK)
        fail_msg("%s", error.message);
    clmgk_context_release(context);
}

static void store(const th_session *session, const char *folder, const clmgk_gemm_desc *desc, const char *choice,
                  const char *parameters)
{
    store_time(session, folder, desc, choice, parameters, 1.0);
}

/* Without measurements a product of many rows gets the first provider that can compute it. If this is CLBlast, it takes
 * the values that were measured on the device for any shape. */
static void expect_first(const th_session *session, const char *folder, const clmgk_gemm_desc *desc,
                         const char *clblast_values, clmgk_tuning_source source)
{
    const char *names[MAX_PROVIDERS];
    assert_true(providers_of(session, CLMGK_DTYPE_F32, names) > 0);
    const bool is_clblast = strcmp(names[0], "clblast") == 0;
    if (is_clblast && source == CLMGK_TUNING_CLASS)
        source = CLMGK_TUNING_DEVICE;
    expect_choice(session, folder, desc, NULL, names[0], is_clblast ? clblast_values : "", source);
}

TH_TEST(plans_take_what_was_measured)
{
    char folder[SCRATCH_PATH];
    const clmgk_gemm_desc desc = desc_of(64, 64, 64), near = desc_of(128, 64, 64), other = desc_of(64, 3000, 64);
    const clmgk_gemm_desc few = desc_of(2, 2000, 64);
    const char *names[MAX_PROVIDERS];
    const size_t count = providers_of(session, CLMGK_DTYPE_F32, names);
    static const char values[] = LOCAL_TILES "," FROM(0);
    static const char others[] = REGISTER_TILES "," FROM(0);
    if (!offers(session, "clblast", CLMGK_DTYPE_F32))
        return;
    scratch_create(folder);
    store(session, folder, &desc, "clblast", values);
    expect_choice(session, folder, &desc, NULL, "clblast", values, CLMGK_TUNING_BUCKET);
    expect_choice(session, folder, &near, NULL, "clblast", values, CLMGK_TUNING_NEAREST);
    store(session, folder, NULL, "clblast", others);
    store(session, folder, &desc, "clblast", "");
    expect_choice(session, folder, &desc, NULL, "clblast", others, CLMGK_TUNING_BUCKET);
    expect_choice(session, folder, &other, "clblast", "clblast", others, CLMGK_TUNING_DEVICE);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], "clblast") == 0)
            continue;
        store(session, folder, &desc, names[i], NULL);
        expect_choice(session, folder, &desc, NULL, names[i], "", CLMGK_TUNING_BUCKET);
        expect_first(session, folder, &other, others, CLMGK_TUNING_CLASS);
        store(session, folder, &few, names[i], NULL);
        expect_choice(session, folder, &few, NULL, names[i], "", CLMGK_TUNING_BUCKET);
        /* another that gained too little stands for the first */
        store_time(session, folder, &desc, "clblast", values, 1.95);
        expect_first(session, folder, &desc, others, CLMGK_TUNING_BUCKET);
    }
    scratch_remove(folder);
}
