/* SPDX-License-Identifier: Apache-2.0 */
/* Types of K and V alone: floats of 8 bits, integers with scales, ggml's blocks. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

/* ---- codes ------------------------------------------------------------------------------------------------------ */

/* A float of 8 bits by the definition: 1 sign, 7 - digits exponent bits. */
static double number_of(int code, int digits, bool has_infinity)
{
    const int bias = (1 << (6 - digits)) - 1, exponent = code >> digits & ((1 << (7 - digits)) - 1);
    const int fraction = code & ((1 << digits) - 1), most = (1 << (7 - digits)) - 1;
    const double sign = code & 0x80 ? -1.0 : 1.0;
    if (exponent == most && has_infinity)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    if ((code & 0x7f) == 0x7f)
        return (double)NAN;
    return exponent == 0 ? sign * ldexp(fraction, 1 - bias - digits)
                         : sign * ldexp((1 << digits) + fraction, exponent - bias - digits);
}

static bool is_same(double one, double other)
{
    return isnan(one) ? isnan(other) : one == other && signbit(one) == signbit(other);
}

TH_HOST_TEST(all_codes)
{
    for (int code = 0; code < 256; code++) {
        const unsigned char byte = (unsigned char)code;
        double value = 0.0;
        clmgk_ref_load(CLMGK_DTYPE_E4M3, &byte, 1, &value);
        assert_true(is_same(value, number_of(code, 3, false)));
        clmgk_ref_load(CLMGK_DTYPE_E5M2, &byte, 1, &value);
        assert_true(is_same(value, number_of(code, 2, true)));
        clmgk_ref_load(CLMGK_DTYPE_INT8, &byte, 1, &value);
        assert_true(value == code - (code >= 128 ? 256 : 0));
    }
}

TH_HOST_TEST(properties_of_types)
{
    const clmgk_dtype_info e4m3 = clmgk_dtype_get_info(CLMGK_DTYPE_E4M3), e5m2 = clmgk_dtype_get_info(CLMGK_DTYPE_E5M2);
    const clmgk_dtype_info int8 = clmgk_dtype_get_info(CLMGK_DTYPE_INT8), q4_0 = clmgk_dtype_get_info(CLMGK_DTYPE_Q4_0);
    assert_true(e4m3.largest == 448.0 && e4m3.least_normal == 0x1p-6 && e4m3.bytes == 1 && e4m3.block == 1);
    assert_true(e5m2.largest == 57344.0 && e5m2.least_normal == 0x1p-14 && e5m2.has_infinity);
    assert_true(int8.largest == 127.0 && int8.bytes == 1);
    assert_true(q4_0.largest == 7.0 && q4_0.bytes == 18 && q4_0.block == 32);
    assert_int_equal(clmgk_dtype_get_info(CLMGK_DTYPE_Q8_0).bytes, 34);
    for (int dtype = 0; dtype < CLMGK_ALL_DTYPES; dtype++)
        assert_int_equal(clmgk_dtype_get_info((clmgk_dtype)dtype).bytes, clmgk_ref_dtype_size((clmgk_dtype)dtype));
}

/* ggml's structures and its loops: block_q8_0 and block_q4_0 with dequantize_row. */
typedef struct ggml_q8 {
    uint16_t d;
    int8_t qs[32];
} ggml_q8;
typedef struct ggml_q4 {
    uint16_t d;
    uint8_t qs[16];
} ggml_q4;

TH_HOST_TEST(blocks_as_ggml_reads_them)
{
    uint64_t state = 7;
    for (int n = 0; n < 100; n++) {
        ggml_q8 q8;
        ggml_q4 q4;
        double found[32], d = 0.0;
        q8.d = q4.d = (uint16_t)(th_random(&state) & 0xbbff); /* finite */
        for (size_t i = 0; i < 32; i++)
            q8.qs[i] = (int8_t)th_random(&state);
        for (size_t i = 0; i < 16; i++)
            q4.qs[i] = (uint8_t)th_random(&state);
        clmgk_ref_load(CLMGK_DTYPE_F16, &q8.d, 1, &d);
        clmgk_ref_load(CLMGK_DTYPE_Q8_0, &q8, 32, found);
        for (size_t i = 0; i < 32; i++)
            assert_true(found[i] == q8.qs[i] * d);
        clmgk_ref_load(CLMGK_DTYPE_Q4_0, &q4, 32, found);
        for (size_t i = 0; i < 16; i++) {
            assert_true(found[i] == ((q4.qs[i] & 0x0f) - 8) * d);
            assert_true(found[i + 16] == ((q4.qs[i] >> 4) - 8) * d);
        }
    }
}

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

/* Programs of one size for each pair of types. */
static clmgk_attention_desc desc_of(int64_t queries, int64_t keys, clmgk_storage k, clmgk_storage v)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, queries, keys);
    desc.heads = 4;
    desc.head_size = desc.value_size = 64;
    desc.dtype_k = k;
    desc.dtype_v = v;
    desc.use_scale_k = k >= CLMGK_STORAGE_E4M3 && k <= CLMGK_STORAGE_INT8;
    desc.use_scale_v = v >= CLMGK_STORAGE_E4M3 && v <= CLMGK_STORAGE_INT8;
    return desc;
}

static clmgk_attention_desc in_pages(clmgk_attention_desc desc, int64_t page_size)
{
    desc.batch = 2;
    desc.page_size = page_size;
    desc.table_pages = (desc.length_k + page_size - 1) / page_size;
    desc.pages = desc.table_pages + 3;
    desc.use_lengths = 1;
    return desc;
}

/* The only key, whose score is 0, has the weight 1, so O is V: all codes in the elements of four heads. */
static th_problem problem_of_codes(const clmgk_attention_desc *desc, double scale, int digits, bool has_infinity)
{
    th_problem problem = th_problem_make(desc, 1);
    const th_array *const v = &problem.array[TH_V];
    for (size_t i = 0; i < v->count; i++)
        v->values[i] = number_of((int)(i % 256), digits, has_infinity);
    th_fill(&problem, TH_K, 0.0);
    th_fill(&problem, TH_SCALE_V, scale);
    if (desc->use_lengths)
        th_fill(&problem, TH_LENGTHS, 1.0);
    return problem;
}

/* `lost`: infinities may become NaN. */
static void check_codes(const th_problem *problem, double scale, int digits, bool has_infinity, bool lost)
{
    const th_array *const o = &problem->array[TH_O];
    for (size_t i = 0; i < o->count; i++) {
        const size_t head = i / 64 / (size_t)problem->desc.length % 4;
        const double exact = scale * number_of((int)(head * 64 + i % 64), digits, has_infinity);
        const bool none = isnan(exact) || (lost && isinf(exact) && isnan(o->values[i]));
        if (none ? !isnan(o->values[i]) : o->values[i] != exact)
            fail_msg("element %zu: %g, expected %g", i, o->values[i], exact);
    }
}

static void expect_codes(th_session *session, clmgk_attention_desc desc, int digits, bool has_infinity)
{
    const double scale = desc.page_size > 0 ? -0.5 : 1.0;
    for (size_t n = 0; n < session->engines; n++) {
        TH_PROBLEM problem = problem_of_codes(&desc, scale, digits, has_infinity);
        th_run(session, &problem, n);
        check_codes(&problem, scale, digits, has_infinity, false);
    }
}

/* Few queries in f32: e5m2 and e4m3; scales of keys, heads and arrays. */
TH_TEST(floats_of_8_bits)
{
    static const clmgk_layout per_head = {.strided = 1, .batch = 4, .head = 1}, per_array = {.strided = 1};
    for (int n = 0; n < 3; n++) {
        clmgk_attention_desc desc = desc_of(1, 150, CLMGK_STORAGE_E5M2, CLMGK_STORAGE_E4M3);
        desc.batch = 2;
        desc.causal = n == 0;
        if (n > 0)
            desc.scale_k = desc.scale_v = n == 1 ? per_head : per_array;
        TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)n);
        th_expect(session, &problem);
    }
    expect_codes(session, desc_of(1, 1, CLMGK_STORAGE_E5M2, CLMGK_STORAGE_E4M3), 3, false);
}

/* Tiles of queries in f16, pages: int8 and e5m2. What is not in use has a scale that is no number. */
TH_TEST(integers_with_scales_in_pages)
{
    clmgk_attention_desc desc = in_pages(desc_of(40, 150, CLMGK_STORAGE_INT8, CLMGK_STORAGE_E5M2), 16);
    desc.dtype = CLMGK_DTYPE_F16;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    double *const table = problem.array[TH_PAGE_TABLE].values;
    for (size_t n = 0; n < problem.array[TH_PAGE_TABLE].count; n++)
        table[n] = fmod(table[n], (double)(desc.pages - 1));
    th_poison(&problem, TH_SCALE_K, desc.pages - 1, 0);
    th_poison(&problem, TH_SCALE_V, desc.pages - 1, 0);
    th_poison(&problem, TH_V, desc.pages - 1, 0);
    th_expect(session, &problem);
    desc.page_size = 1; /* each page has one key */
    desc.table_pages = 1;
    desc.pages = 1;
    desc.length_k = 1;
    expect_codes(session, desc, 2, true);
}

/* Few queries: ggml's blocks of both types, with heads first and last. */
TH_TEST(blocks)
{
    for (int n = 0; n < 2; n++) {
        clmgk_attention_desc desc = desc_of(1, 150, CLMGK_STORAGE_Q8_0, CLMGK_STORAGE_Q4_0);
        desc.batch = 2;
        if (n > 0) /* [B,S,G,D / 32] */
            desc.k = desc.v = (clmgk_layout){.strided = 1, .batch = (int64_t)150 * 8, .head = 2, .token = 8};
        TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)n);
        th_expect(session, &problem);
    }
}

/* Tiles of queries, pages: blocks of keys, integers of values. */
TH_TEST(blocks_and_integers)
{
    clmgk_attention_desc desc = in_pages(desc_of(40, 150, CLMGK_STORAGE_Q4_0, CLMGK_STORAGE_INT8), 7);
    desc.dtype = CLMGK_DTYPE_F16;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_expect(session, &problem);
}

/* ---- the matrix engine converts numbers on their way into its tiles ---------------------------------------------- */

/* Numbers of 8 bits become f16, also in pages. Scales of values have both signs, and O is what they alone give. */
TH_TEST(integers_in_tiles_of_fragments)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    for (size_t n = 0; n < 3; n++) {
        clmgk_attention_desc desc = in_pages(desc_of(20, 50, CLMGK_STORAGE_INT8, CLMGK_STORAGE_E5M2), n == 0 ? 16 : 7);
        desc.dtype = CLMGK_DTYPE_F16;
        desc.head_size = n < 2 ? 64 : 39; /* rows that end within a piece */
        desc.value_size = n < 2 ? 64 : 42;
        desc.causal = n == 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_scale(&problem, TH_SCALE_V, n == 0 ? 1e6 : 1e-6); /* weights beyond f16 */
        th_scale(&problem, TH_V, n == 0 ? 0x1p-8 : 0x1p8);
        for (size_t i = 0; i < problem.array[TH_SCALE_V].count; i += 2)
            problem.array[TH_SCALE_V].values[i] *= -1.0;
        th_expect_passes(session, &problem, &options);
    }
}

/* Blocks become slices of f32, under queries in f16. */
TH_TEST(blocks_in_tiles_of_fragments)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    clmgk_attention_desc desc = desc_of(20, 50, CLMGK_STORAGE_Q8_0, CLMGK_STORAGE_Q4_0);
    desc.dtype = CLMGK_DTYPE_F16;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_expect_passes(session, &problem, &options);
}

/* Problem number n: any types, variants and modifiers. */
static clmgk_attention_desc random_desc(size_t n)
{
    uint64_t state = n;
    const clmgk_storage k = (clmgk_storage)th_pick(&state, CLMGK_STORAGE_AS_Q, CLMGK_STORAGE_Q4_0);
    const clmgk_storage v = (clmgk_storage)th_pick(&state, CLMGK_STORAGE_E4M3, CLMGK_STORAGE_Q4_0);
    clmgk_attention_desc desc = desc_of(n % 3 == 0 ? 1 : 40, th_pick(&state, 1, 200), k, v);
    desc.variant =
        n % 2 == 0 ? th_variants[n / 2 % TH_COUNT(th_variants)] : th_admixtures[n / 2 % TH_COUNT(th_admixtures)];
    desc.components = n % 2 == 0 || desc.variant == CLMGK_VARIANT_TALKING_HEADS ? 0 : 3;
    desc.kv_heads = th_chance(&state, 2) ? 2 : 4;
    desc.head_size = th_pick(&state, 1, 2) * 32;
    desc.value_size = th_pick(&state, 1, 3) * 32;
    desc.dtype = th_dtypes[n / 4 % TH_COUNT(th_dtypes)];
    desc.dtype_o = CLMGK_STORAGE_F32;
    desc.use_bias = th_chance(&state, 4);
    desc.use_sinks = th_chance(&state, 4);
    desc.causal = th_chance(&state, 2);
    if (n % 2 == 1 && th_chance(&state, 4) && desc.variant != CLMGK_VARIANT_TALKING_HEADS)
        desc.mix_after_heads = 3;
    if (th_chance(&state, 3) && desc.mix_after_heads == 0)
        desc = in_pages(desc, th_pick(&state, 1, 40));
    return desc;
}

/* Distances, shifted keys and components need the scales before the softmax, mixed heads those of each head. */
TH_FULL_TEST(all_types_of_all_variants)
{
    for (size_t n = 0; n < 30; n++) {
        const clmgk_attention_desc desc = random_desc(n);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect(session, &problem);
    }
}

/* Each type of K, from `first` on, and each of V; blocks of few queries and of many, half of them over pages. */
static void expect_types(th_session *session, clmgk_dtype queries, int first, clmgk_engine engine)
{
    const clmgk_plan_options options = th_options_of(engine, NULL);
    const int types = (int)CLMGK_STORAGE_Q4_0 - first + 1;
    for (int n = 0; n < types; n++) {
        const int k = first + n, v = first + (n + 1 + 2 * (int)queries) % types;
        clmgk_attention_desc desc =
            desc_of((n + (int)queries) % 2 == 0 ? 3 : 40, 70, (clmgk_storage)k, (clmgk_storage)v);
        desc.dtype = queries;
        if (n / 2 % 2 == 1)
            desc = in_pages(desc, 16);
        TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)n);
        th_expect_forward(session, &problem, &options);
    }
}

/* Under queries of each type. */
TH_FULL_TEST(every_type_under_all_queries)
{
    for (size_t q = 0; q < CLMGK_DTYPES; q++) {
        expect_types(session, th_dtypes[q], CLMGK_STORAGE_F32, CLMGK_ENGINE_LANE);
        expect_types(session, th_dtypes[q], CLMGK_STORAGE_F32, CLMGK_ENGINE_SIMT);
        expect_types(session, th_dtypes[q], CLMGK_STORAGE_F32, CLMGK_ENGINE_MATRIX);
    }
}

/* Also in tiles of fragments. */
TH_FULL_TEST(codes_under_all_queries)
{
    static const clmgk_engine engines[] = {CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT, CLMGK_ENGINE_MATRIX};
    for (size_t n = 0; n < TH_COUNT(engines) * CLMGK_DTYPES * 2 * 2; n++) {
        const bool e5m2 = n % 2 == 0;
        const int digits = e5m2 ? 2 : 3;
        clmgk_attention_desc desc =
            desc_of(n / 2 % 2 == 0 ? 1 : 40, 1, CLMGK_STORAGE_E4M3, e5m2 ? CLMGK_STORAGE_E5M2 : CLMGK_STORAGE_E4M3);
        desc.dtype = th_dtypes[n / 4 % CLMGK_DTYPES];
        const clmgk_plan_options options = th_options_of(engines[n / 4 / CLMGK_DTYPES], NULL);
        TH_PROBLEM problem = problem_of_codes(&desc, -0.5, digits, e5m2);
        th_run_pass(session, &problem, TH_FORWARD, &options);
        check_codes(&problem, -0.5, digits, e5m2,
                    options.engine == CLMGK_ENGINE_MATRIX && desc.dtype == CLMGK_DTYPE_F32);
    }
}

/* ggml's sizes of heads: blocks where they are whole, else numbers of 8 bits. */
TH_FULL_TEST(ggml_head_sizes)
{
    static const int64_t sizes[] = {40, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576};
    enum { BLOCK = 32, WIDEST_VALUES = 512 };
    for (size_t n = 0; n < 2 * TH_COUNT(sizes); n++) {
        const int64_t size = sizes[n / 2];
        const bool blocks = size % BLOCK == 0;
        clmgk_attention_desc desc = desc_of(n % 2 == 0 ? 1 : 40, 70, blocks ? CLMGK_STORAGE_Q8_0 : CLMGK_STORAGE_INT8,
                                            blocks ? CLMGK_STORAGE_Q4_0 : CLMGK_STORAGE_E4M3);
        desc.kv_heads = 2;
        desc.head_size = size;
        desc.value_size = size < WIDEST_VALUES ? size : WIDEST_VALUES;
        desc.dtype = n % 3 == 0 ? CLMGK_DTYPE_F16 : CLMGK_DTYPE_F32;
        desc.causal = n % 4 < 2;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect(session, &problem);
    }
}

/* The same on the matrix engine, where it takes them; also 16-bit types in pages. */
TH_FULL_TEST(all_types_in_tiles_of_fragments)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    size_t taken = 0;
    for (size_t n = 0; n < 120 && taken < 20; n++) {
        clmgk_attention_desc desc = random_desc(n);
        if (n % 5 != 0)
            desc.dtype_o = CLMGK_STORAGE_AS_Q;
        if (n % 7 == 0 && desc.page_size > 0) {
            desc.dtype_k = desc.dtype_v = CLMGK_STORAGE_AS_Q;
            desc.use_scale_k = desc.use_scale_v = 0;
        }
        clmgk_plan *const plan = th_try_plan(session, &desc, &options, NULL);
        if (plan) {
            TH_PROBLEM problem = th_problem_make(&desc, n);
            th_expect_passes(session, &problem, &options);
            taken++;
        }
        clmgk_plan_release(plan);
    }
    assert_int_equal(taken, 20);
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(refused_types)
{
    const clmgk_attention_desc good = desc_of(3, 5, CLMGK_STORAGE_INT8, CLMGK_STORAGE_Q4_0);
    clmgk_attention_desc d = good;
#define EXPECT(status, words)                                                                                          \
    th_expect_error(clmgk_attention_validate(&d, NULL, &th_error), CLMGK_ERROR_##status, words)
    th_expect_ok(clmgk_attention_validate(&d, NULL, &th_error));
    d = good, d.dtype = CLMGK_DTYPE_INT8, EXPECT(INVALID_VALUE, "dtype: 5: expected 0 to 2");
    d = good, d.dtype_o = CLMGK_STORAGE_E4M3, EXPECT(INVALID_VALUE, "dtype_o: 4: expected 0 to 3");
    d = good, d.dtype_k = (clmgk_storage)9, EXPECT(INVALID_VALUE, "dtype_k: 9: expected 0 to 8");
    d = good, d.use_scale_v = 1, EXPECT(INVALID_VALUE, "use_scale_v: 1: expected 0 with V in q4_0");
    d = good, d.dtype_k = CLMGK_STORAGE_F16, EXPECT(INVALID_VALUE, "use_scale_k: 1: expected 0 with K in f16");
    d = good, d.value_size = 40, EXPECT(INVALID_SHAPE, "value_size: 40: expected a multiple of 32");
    d = good, d.gradients = CLMGK_GRADIENT_Q, EXPECT(UNSUPPORTED, "dtype_k: int8: expected f32, f16 or bf16");
    d = good, d.variant = CLMGK_VARIANT_GAUSSIAN, d.statistics = CLMGK_STATISTIC_NLL;
    EXPECT(UNSUPPORTED, "dtype_k: int8: expected f32, f16 or bf16 with statistics");
    d = good, d.variant = CLMGK_VARIANT_LINEAR, EXPECT(INVALID_VALUE, "use_scale_k: 1: expected 0 with variant linear");
    d.use_scale_k = 0, EXPECT(UNSUPPORTED, "dtype_k: int8");
#undef EXPECT
}

/* Shapes and sizes count blocks. */
TH_HOST_TEST(arrays_of_blocks)
{
    clmgk_attention_desc d = desc_of(3, 5, CLMGK_STORAGE_INT8, CLMGK_STORAGE_Q4_0);
    th_expect_ok(clmgk_attention_validate(&d, &d, &th_error));
    const clmgk_shape v = clmgk_array_shape(&d, CLMGK_ARRAY_V), scale = clmgk_array_shape(&d, CLMGK_ARRAY_SCALE_K);
    assert_true(v.rank == 4 && v.size[3] == 2 && v.stride[2] == 2 && v.stride[1] == 10);
    assert_int_equal(clmgk_array_count(&d, CLMGK_ARRAY_V), 4 * 5 * 2);
    assert_int_equal(clmgk_array_bytes(&d, CLMGK_ARRAY_V), 4 * 5 * 2 * 18);
    assert_int_equal(clmgk_array_bytes(&d, CLMGK_ARRAY_K), 4 * 5 * 64);
    assert_true(scale.rank == 3 && scale.size[1] == 4 && scale.size[2] == 5 && scale.stride[1] == 5);
}
