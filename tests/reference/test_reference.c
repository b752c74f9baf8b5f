/* SPDX-License-Identifier: Apache-2.0 */
/* The reference against values computed by hand, and against the definitions of rounding. */
#include "harness/harness.h"
#include "reference/reference.h"
#include "reference/sums.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_close(double value, double expected)
{
    assert_true(fabs(value - expected) <= 1e-12 * fmax(1.0, fabs(expected)));
}

/* One query and two keys in one dimension, resolved by hand. */
static clmgk_attention_desc small_desc(clmgk_variant variant, clmgk_score score, int64_t components)
{
    clmgk_attention_desc desc = th_sized_desc(variant, (th_sizes){1, 1, 1, components, 1, 2, 1, 1});
    desc.score = score;
    desc.variance = 1.0;
    return desc;
}

static clmgk_ref_problem problem_of(clmgk_attention_desc desc, const double *q, const double *k, const double *v)
{
    return (clmgk_ref_problem){.desc = desc, .q = q, .k = k, .v = v};
}

/* Requires that row n of both problems agrees; `same`: to the last bit. */
static void expect_same_row(const clmgk_ref_problem *one, const clmgk_ref_problem *other, int64_t n, bool same)
{
    double o[2], lse[2];
    assert_true(clmgk_ref_row(one, n, &o[0], &lse[0]));
    assert_true(clmgk_ref_row(other, n, &o[1], &lse[1]));
    assert_close(o[0], o[1]);
    assert_close(lse[0], lse[1]);
    assert_true(!same || (o[0] == o[1] && lse[0] == lse[1]));
}

/* ---- storage types ------------------------------------------------------------------------------------------ */

/* Formats of the library's types, and others of every kind that CLMGK_DTYPE_LIST can describe. */
static const struct {
    clmgk_ref_format format;
    uint32_t largest; /* pattern of the largest number */
} formats[] = {
    {{5, 10, true}, 0x7bff}, {{8, 7, true}, 0x7f7f}, {{4, 3, false}, 0x7e}, {{5, 2, true}, 0x7b}, {{3, 4, false}, 0x7e},
};

static uint32_t sign_of(clmgk_ref_format format)
{
    return 1U << (unsigned)(format.exponent_bits + format.significand_bits);
}

static float value_of(clmgk_dtype dtype, uint32_t bits)
{
    return clmgk_ref_decode(clmgk_ref_format_of(dtype), bits);
}

static uint32_t bits_of(clmgk_dtype dtype, float value)
{
    return clmgk_ref_encode(clmgk_ref_format_of(dtype), value);
}

TH_HOST_TEST(values_of_bits)
{
    static const clmgk_ref_format e4m3 = {4, 3, false};
    assert_true(value_of(CLMGK_DTYPE_F16, 0x3c00) == 1.0F);
    assert_true(value_of(CLMGK_DTYPE_F16, 0xc000) == -2.0F);
    assert_true(value_of(CLMGK_DTYPE_F16, 0x3555) == 1365.0F / 4096.0F);
    assert_true(value_of(CLMGK_DTYPE_F16, 0x7bff) == 65504.0F);
    assert_true(value_of(CLMGK_DTYPE_F16, 0x0001) == ldexpf(1.0F, -24));
    assert_true(value_of(CLMGK_DTYPE_F16, 0x03ff) == ldexpf(1023.0F, -24));
    assert_true(value_of(CLMGK_DTYPE_F16, 0x8000) == 0.0F && signbit(value_of(CLMGK_DTYPE_F16, 0x8000)));
    assert_true(value_of(CLMGK_DTYPE_BF16, 0x3f80) == 1.0F);
    assert_true(value_of(CLMGK_DTYPE_BF16, 0xc049) == -3.140625F);
    assert_true(value_of(CLMGK_DTYPE_BF16, 0x0001) == ldexpf(1.0F, -133));
    assert_true(clmgk_ref_decode(e4m3, 0x7e) == 448.0F && clmgk_ref_decode(e4m3, 0x38) == 1.0F);
    assert_true(clmgk_ref_decode(e4m3, 0x81) == -ldexpf(1.0F, -9) && isnan(clmgk_ref_decode(e4m3, 0xff)));
}

TH_HOST_TEST(every_value_survives)
{
    for (size_t f = 0; f < TH_COUNT(formats); f++) {
        const clmgk_ref_format format = formats[f].format;
        for (uint32_t bits = 0; bits < 2 * sign_of(format); bits++) {
            const float value = clmgk_ref_decode(format, bits);
            const uint32_t again = clmgk_ref_encode(format, value);
            assert_true(isnan(value) ? isnan(clmgk_ref_decode(format, again)) : again == bits);
        }
    }
}

/* Magnitudes grow with their patterns, from 0 to the largest number; next is infinity, or NaN. */
TH_HOST_TEST(patterns_are_in_order)
{
    for (size_t f = 0; f < TH_COUNT(formats); f++) {
        const clmgk_ref_format format = formats[f].format;
        for (uint32_t bits = 0; bits < formats[f].largest; bits++) {
            assert_true(clmgk_ref_decode(format, bits) < clmgk_ref_decode(format, bits + 1));
            assert_true(clmgk_ref_decode(format, bits | sign_of(format)) == -clmgk_ref_decode(format, bits));
        }
        const float end = clmgk_ref_decode(format, formats[f].largest + 1);
        assert_true(format.has_infinity ? end == INFINITY : isnan(end));
    }
}

/* Numbers between two neighbours: the middle rounds to the even one, all others to the nearer one. */
TH_HOST_TEST(rounding_is_to_nearest_even)
{
    for (size_t f = 0; f < TH_COUNT(formats); f++) {
        const clmgk_ref_format format = formats[f].format;
        for (uint32_t low = 0; low < formats[f].largest; low++) {
            const uint32_t high = low + 1, even = low % 2 == 0 ? low : high;
            const float middle =
                (float)(((double)clmgk_ref_decode(format, low) + (double)clmgk_ref_decode(format, high)) / 2.0);
            assert_int_equal(clmgk_ref_encode(format, middle), even);
            assert_int_equal(clmgk_ref_encode(format, -middle), sign_of(format) | even);
            assert_int_equal(clmgk_ref_encode(format, nextafterf(middle, INFINITY)), high);
            assert_int_equal(clmgk_ref_encode(format, nextafterf(middle, 0.0F)), low);
        }
    }
}

static uint32_t stored_bits(clmgk_dtype dtype, double value)
{
    uint16_t bits = 0;
    clmgk_ref_store(dtype, &value, 1, &bits);
    return bits;
}

/* Doubles so near to the middle of two neighbours, or to 0, that their nearest float is that number. */
TH_HOST_TEST(doubles_are_rounded_once)
{
    static const clmgk_dtype dtypes[] = {CLMGK_DTYPE_F16, CLMGK_DTYPE_BF16};
    static const uint32_t ends[] = {0x7c00, 0x7f80}; /* infinity */
    for (size_t t = 0; t < TH_COUNT(dtypes); t++) {
        const uint32_t end = ends[t];
        for (uint32_t low = 0; low < end; low++) {
            const double last = (double)value_of(dtypes[t], low), lower = (double)value_of(dtypes[t], low - (low > 0));
            const double next = low + 1 < end ? (double)value_of(dtypes[t], low + 1) : 2.0 * last - lower;
            const double middle = (last + next) / 2.0, beyond = nextafter(middle, INFINITY);
            assert_int_equal(stored_bits(dtypes[t], beyond), low + 1);
            assert_int_equal(stored_bits(dtypes[t], -beyond), 0x8000U | (low + 1));
            assert_int_equal(stored_bits(dtypes[t], nextafter(middle, 0.0)), low);
            assert_int_equal(stored_bits(dtypes[t], middle), low + low % 2);
        }
        assert_int_equal(stored_bits(dtypes[t], -1e-300), 0x8000);
        assert_int_equal(stored_bits(dtypes[t], 1e300), end);
        assert_true(isnan((double)value_of(dtypes[t], stored_bits(dtypes[t], (double)NAN))));
    }
}

TH_HOST_TEST(rounding_at_the_ends)
{
    assert_int_equal(bits_of(CLMGK_DTYPE_F16, 65519.99F), 0x7bff);
    assert_int_equal(bits_of(CLMGK_DTYPE_F16, 65520.0F), 0x7c00);
    assert_int_equal(bits_of(CLMGK_DTYPE_F16, -3e38F), 0xfc00);
    assert_int_equal(bits_of(CLMGK_DTYPE_F16, -INFINITY), 0xfc00);
    assert_int_equal(bits_of(CLMGK_DTYPE_BF16, 3.4028235e38F), 0x7f80);
    assert_int_equal(bits_of(CLMGK_DTYPE_BF16, INFINITY), 0x7f80);
    /* without infinity: numbers beyond the largest one become NaN, unless they round to it */
    static const clmgk_ref_format e4m3 = {4, 3, false};
    assert_int_equal(clmgk_ref_encode(e4m3, 464.0F), 0x7e);
    assert_int_equal(clmgk_ref_encode(e4m3, nextafterf(464.0F, INFINITY)), 0x7f);
    assert_int_equal(clmgk_ref_encode(e4m3, -INFINITY), 0xff);
    for (size_t f = 0; f < TH_COUNT(formats); f++) {
        const clmgk_ref_format format = formats[f].format;
        assert_true(isnan(clmgk_ref_decode(format, clmgk_ref_encode(format, NAN))));
    }
}

/* f32 is kept as it is, NaN and subnormal numbers included. */
TH_HOST_TEST(f32_is_kept)
{
    const float values[] = {0.0F, -0.0F, 1.0F / 3.0F, ldexpf(1.0F, -149), -INFINITY, NAN};
    for (size_t n = 0; n < TH_COUNT(values); n++) {
        uint32_t bits = 0;
        memcpy(&bits, &values[n], sizeof(bits));
        const float again = value_of(CLMGK_DTYPE_F32, bits);
        assert_int_equal(bits_of(CLMGK_DTYPE_F32, values[n]), bits);
        assert_memory_equal(&again, &values[n], sizeof(again));
    }
}

/* The reference derives the limits of types by itself; they must equal the library's. */
TH_HOST_TEST(limits_are_those_of_the_library)
{
    for (int t = 0; t < CLMGK_DTYPES; t++) {
        const clmgk_dtype_info info = clmgk_dtype_get_info((clmgk_dtype)t);
        const clmgk_ref_limits limits = clmgk_ref_limits_of((clmgk_dtype)t);
        assert_true(limits.largest == info.largest && limits.least_normal == info.least_normal);
        assert_true(limits.unit == ldexp(1.0, -1 - info.significand_bits));
        assert_true(limits.least == ldexp(info.least_normal, -info.significand_bits));
        assert_int_equal(clmgk_ref_dtype_size((clmgk_dtype)t), info.bytes);
    }
}

TH_HOST_TEST(arrays_of_every_storage_type)
{
    static const double exact[] = {0.0, 1.0, -2.5, 96.0};
    for (int t = 0; t < CLMGK_DTYPES; t++) {
        float stored[TH_COUNT(exact)];
        double loaded[TH_COUNT(exact)];
        clmgk_ref_store((clmgk_dtype)t, exact, TH_COUNT(exact), stored);
        clmgk_ref_load((clmgk_dtype)t, stored, TH_COUNT(exact), loaded);
        assert_memory_equal(loaded, exact, sizeof(exact));
    }
}

/* ---- the formulas ------------------------------------------------------------------------------------------- */

TH_HOST_TEST(softmax_by_hand)
{
    const double q[] = {2.0};
    const double k[] = {0.0, log(3.0)}; /* logits 0 and ln 3 with sigma^2 = 2: weights 1/4 and 3/4 */
    const double v[] = {8.0, -4.0};
    clmgk_ref_problem p = {.desc = small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1), .q = q, .k = k, .v = v};
    p.desc.variance = 2.0;
    double o = 0.0;
    double lse = 0.0;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_close(o, -1.0);
    assert_close(lse, log(4.0));
}

TH_HOST_TEST(gaussian_by_hand)
{
    const double q[] = {1.0};
    const double k[] = {1.0, 1.0 + sqrt(log(9.0))}; /* exponents 0 and -ln 9 / (2 sigma^2) = -ln 3 */
    const double v[] = {8.0, -4.0};
    const clmgk_ref_problem p = {
        .desc = small_desc(CLMGK_VARIANT_GAUSSIAN, CLMGK_SCORE_GAUSSIAN, 1), .q = q, .k = k, .v = v};
    double o = 0.0;
    double lse = 0.0;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_close(o, (3.0 * 8.0 - 4.0) / 4.0);
    assert_close(lse, log(4.0 / 3.0));
}

/* Dot scores with one sigma each: exp(s) = pi_r exp(q k_jr / sigma_r^2). */
TH_HOST_TEST(mgk_by_hand)
{
    const double q[] = {1.0};
    const double k[] = {log(2.0), log(3.0), 3.0 * log(5.0), 3.0 * log(7.0)}; /* [M,S] */
    const double v[] = {1.0, 0.0};
    const double prior[] = {0.5, 2.0};
    const double variance[] = {1.0, 3.0};
    clmgk_ref_problem p = problem_of(small_desc(CLMGK_VARIANT_MGK, CLMGK_SCORE_DOT, 2), q, k, v);
    p.prior = prior;
    p.variance = variance;
    p.desc.prior_shape = CLMGK_PRIOR_M;
    p.desc.variance_shape = CLMGK_VARIANCE_M;
    double o = 0.0;
    double lse = 0.0;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse)); /* keys weigh 0.5*2 + 2*5 = 11 and 0.5*3 + 2*7 = 15.5 */
    assert_close(o, 11.0 / 26.5);
    assert_close(lse, log(26.5));

    p.desc.estep = CLMGK_ESTEP_HARD; /* the larger component: 5 and 7 */
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_close(o, 5.0 / 12.0);
    assert_close(lse, log(12.0));
}

/* A prior of each shape picks the component: with pi = (1, 0) MGK is softmax over the first component's keys. */
TH_HOST_TEST(priors_of_every_shape)
{
    const double q[] = {1.0, 1.0};                               /* [H,N] */
    const double k[] = {log(2.0), log(3.0), log(5.0), log(7.0)}; /* [G,M,S], G = 1 */
    const double v[] = {1.0, 0.0};
    const double of_m[] = {0.0, 1.0};
    const double of_hm[] = {1.0, 0.0, 0.0, 1.0};
    const double of_hms[] = {1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0};
    const struct {
        clmgk_prior_shape shape;
        const double *prior;
        double o[2], mass[2];
    } cases[] = {{CLMGK_PRIOR_UNIFORM, NULL, {7.0 / 17.0, 7.0 / 17.0}, {8.5, 8.5}},
                 {CLMGK_PRIOR_M, of_m, {5.0 / 12.0, 5.0 / 12.0}, {12.0, 12.0}},
                 {CLMGK_PRIOR_HM, of_hm, {2.0 / 5.0, 5.0 / 12.0}, {5.0, 12.0}},
                 {CLMGK_PRIOR_HMS, of_hms, {2.0 / 9.0, 0.0}, {9.0, 0.0}}};
    for (size_t c = 0; c < TH_COUNT(cases); c++) {
        clmgk_ref_problem p = {.desc = small_desc(CLMGK_VARIANT_MGK, CLMGK_SCORE_DOT, 2), .q = q, .k = k, .v = v};
        p.desc.heads = 2;
        p.desc.prior_shape = cases[c].shape;
        p.prior = cases[c].prior;
        for (int64_t h = 0; h < 2; h++) {
            double o = NAN;
            double lse = NAN;
            assert_true(clmgk_ref_row(&p, h, &o, &lse));
            assert_close(o, cases[c].o[h]);
            if (cases[c].mass[h] > 0.0)
                assert_close(lse, log(cases[c].mass[h]));
            else
                assert_true(lse == -(double)INFINITY);
        }
    }
}

/* sMGK is MGK over keys k_j + b_r. */
TH_HOST_TEST(shifts_are_added_to_the_keys)
{
    enum { H = 2, D = 3, S = 2, M = 2, KEYS = S * D };
    const double q[H * D] = {0.3, -1.0, 0.5, 0.2, 0.1, -0.7};
    const double k[KEYS] = {1.0, 0.5, -0.5, -1.5, 0.25, 2.0};
    const double b[H * M * D] = {0.1, 0.2, 0.3, -1.0, 0.0, 2.0, 0.5, -0.5, 0.25, 1.5, -2.0, 0.0};
    const double v[S] = {1.0, -3.0};
    static const clmgk_score scores[] = {CLMGK_SCORE_DOT, CLMGK_SCORE_GAUSSIAN};
    for (size_t s = 0; s < TH_COUNT(scores); s++) {
        clmgk_ref_problem shifted = {
            .desc = small_desc(CLMGK_VARIANT_SMGK, scores[s], M), .q = q, .k = k, .v = v, .shift = b};
        shifted.desc.heads = H;
        shifted.desc.head_size = D;
        double keys[H * M * KEYS];
        double values[H * S];
        for (int64_t h = 0; h < H; h++) {
            memcpy(values + h * S, v, sizeof(v));
            for (int64_t r = 0; r < M; r++)
                for (int64_t n = 0; n < KEYS; n++)
                    keys[(h * M + r) * KEYS + n] = k[n] + b[(h * M + r) * D + n % D];
        }
        clmgk_ref_problem moved = shifted;
        moved.desc.variant = CLMGK_VARIANT_MGK;
        moved.desc.kv_heads = H;
        moved.k = keys;
        moved.v = values;
        for (int64_t h = 0; h < H; h++)
            expect_same_row(&shifted, &moved, h, false);
    }
}

TH_HOST_TEST(visible_keys)
{
    const int32_t lengths[] = {3, 0, 9, -4};
    const int32_t lengths_q[] = {2, 3, 1, 7};
    clmgk_ref_problem p = {
        .desc = small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1), .lengths = lengths, .lengths_q = lengths_q};
    p.desc.batch = 4;
    p.desc.length = 3;
    p.desc.length_k = 5;
    static const struct {
        int causal, use_lengths, use_lengths_q;
        clmgk_alignment alignment;
        int64_t keys[4][3]; /* of query i in batch b */
    } cases[] = {
        {0, 0, 0, CLMGK_ALIGN_BOTTOM_RIGHT, {{5, 5, 5}, {5, 5, 5}, {5, 5, 5}, {5, 5, 5}}},
        {1, 0, 0, CLMGK_ALIGN_BOTTOM_RIGHT, {{3, 4, 5}, {3, 4, 5}, {3, 4, 5}, {3, 4, 5}}},
        {1, 0, 0, CLMGK_ALIGN_TOP_LEFT, {{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}}},
        {0, 1, 1, CLMGK_ALIGN_BOTTOM_RIGHT, {{3, 3, 0}, {0, 0, 0}, {5, 0, 0}, {0, 0, 0}}},
        {1, 1, 0, CLMGK_ALIGN_BOTTOM_RIGHT, {{3, 3, 3}, {0, 0, 0}, {3, 4, 5}, {0, 0, 0}}},
        {1, 1, 0, CLMGK_ALIGN_TOP_LEFT, {{1, 2, 3}, {0, 0, 0}, {1, 2, 3}, {0, 0, 0}}},
        {1, 1, 0, CLMGK_ALIGN_LENGTHS, {{1, 2, 3}, {0, 0, 0}, {5, 5, 5}, {0, 0, 0}}},
    };
    for (size_t c = 0; c < TH_COUNT(cases); c++) {
        p.desc.causal = cases[c].causal;
        p.desc.use_lengths = cases[c].use_lengths;
        p.desc.use_lengths_q = cases[c].use_lengths_q;
        p.desc.alignment = cases[c].alignment;
        for (int64_t n = 0; n < 60; n++) {
            const int64_t b = n / 15;
            const int64_t i = n / 5 % 3;
            assert_int_equal(clmgk_ref_visible_keys(&p, b, i), cases[c].keys[b][i]);
            assert_int_equal(clmgk_ref_visible(&p, b, 0, i, n % 5), n % 5 < cases[c].keys[b][i]);
        }
    }

    p.desc.length = 7; /* more queries than keys: the first ones see nothing */
    p.desc.use_lengths = 0;
    p.desc.alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
    for (int64_t i = 0; i < 7; i++)
        assert_int_equal(clmgk_ref_visible_keys(&p, 0, i), i < 2 ? 0 : i - 1);
}

/* d(i) of spans whose axes have `rows` and `keys` elements. */
static int64_t diagonal(clmgk_alignment alignment, int64_t rows, int64_t keys, int64_t length, int64_t i)
{
    if (alignment == CLMGK_ALIGN_TOP_LEFT)
        return i;
    return alignment == CLMGK_ALIGN_LENGTHS ? i + length - rows : i + keys - rows;
}

TH_HOST_TEST(visible_windows)
{
    enum { N = 3, S = 6 };
    static const int64_t limits[] = {-1, 0, 1, 4, INT64_MAX};
    static const int32_t lengths[] = {4};
    clmgk_ref_problem p = {.desc = small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1), .lengths = lengths};
    p.desc.length = N;
    p.desc.length_k = S;
    p.desc.use_window = 1;
    for (size_t n = 0; n < TH_COUNT(limits) * TH_COUNT(limits) * 12; n++) {
        const int64_t left = limits[n % TH_COUNT(limits)];
        const int64_t right = limits[n / TH_COUNT(limits) % TH_COUNT(limits)];
        const size_t rest = n / TH_COUNT(limits) / TH_COUNT(limits);
        p.desc.window_left = left;
        p.desc.window_right = right;
        p.desc.causal = (int32_t)(rest % 2);
        p.desc.use_lengths = (int32_t)(rest / 2 % 2);
        p.desc.alignment = (clmgk_alignment)(rest / 4);
        const int64_t keys = p.desc.use_lengths ? lengths[0] : S;
        for (int64_t i = 0; i < N; i++) {
            const int64_t d = diagonal(p.desc.alignment, N, S, keys, i);
            int64_t count = 0;
            for (int64_t j = 0; j < S; j++) {
                const bool sees = j < keys && (!p.desc.causal || j <= d) && (left < 0 || d - j <= left) &&
                                  (right < 0 || j - d <= right);
                assert_int_equal(clmgk_ref_visible(&p, 0, 0, i, j), sees);
                count += sees;
            }
            assert_int_equal(clmgk_ref_visible_keys(&p, 0, i), count);
        }
    }
}

/* Sequences of 2, 0, 1 and 2 rows against 1, 2, 0 and 4 keys, without and with a window on their own diagonals. */
TH_HOST_TEST(visible_in_packed_sequences)
{
    static const int32_t offsets[] = {0, 2, 2, 3, 5};
    static const int32_t offsets_k[] = {0, 1, 3, 3, 7};
    static const char *const all[] = {"x......", "x......", ".......", "...xxxx", "...xxxx"};
    static const char *const window[] = {".......", "x......", ".......", "....xx.", ".....xx"};
    clmgk_ref_problem p = {
        .desc = small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1), .offsets = offsets, .offsets_k = offsets_k};
    p.desc.length = 5;
    p.desc.length_k = 7;
    p.desc.sequences = 4;
    p.desc.use_offsets_k = 1;
    p.desc.window_left = 1;
    for (int windowed = 0; windowed < 2; windowed++) {
        p.desc.use_window = windowed;
        for (int64_t n = 0; n < 35; n++)
            assert_int_equal(clmgk_ref_visible(&p, 0, 0, n / 7, n % 7), (windowed ? window : all)[n / 7][n % 7] == 'x');
    }

    p.desc.use_window = 0;
    p.desc.use_offsets_k = 0; /* the keys' offsets are the rows' */
    p.desc.length_k = 5;
    assert_true(clmgk_ref_visible(&p, 0, 0, 2, 2) && !clmgk_ref_visible(&p, 0, 0, 2, 1));
    static const int32_t bad[] = {0, 4, 2, 9, 9}; /* clamped: nothing lies outside the axes */
    p.offsets = bad;
    assert_int_equal(clmgk_ref_visible_keys(&p, 0, 0), 4);
    assert_int_equal(clmgk_ref_visible_keys(&p, 0, 4), 3);
}

/* An axis of the bias may be 1, that of the batch may divide B: b mod n. */
TH_HOST_TEST(bias_hides_along_its_axes)
{
    enum { B = 4, H = 2, N = 3, S = 2, PAIRS = N * S, ALL = B * H * PAIRS };
    static const int64_t axes[][4] = {{4, 2, 3, 2}, {2, 2, 3, 2}, {1, 1, 1, 2}, {2, 1, 3, 1}, {1, 2, 1, 1}};
    double bias[ALL] = {0};
    clmgk_ref_problem p = {.desc = small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1), .bias = bias};
    p.desc.batch = B;
    p.desc.heads = H;
    p.desc.length = N;
    p.desc.length_k = S;
    p.desc.use_bias = 1;
    for (size_t c = 0; c < TH_COUNT(axes); c++) {
        const int64_t *const axis = axes[c];
        p.desc.bias_batch = axis[0];
        p.desc.bias_heads = axis[1];
        p.desc.bias_length = axis[2];
        p.desc.bias_length_k = axis[3];
        const int64_t count = axis[0] * axis[1] * axis[2] * axis[3];
        const int64_t hidden = count - 1; /* the last of every axis */
        bias[hidden] = -(double)INFINITY;
        for (int64_t n = 0; n < ALL; n++) {
            const int64_t at[] = {n / PAIRS / H, n / PAIRS % H, n / S % N, n % S};
            const bool hides = at[0] % axis[0] == axis[0] - 1 && (axis[1] == 1 || at[1] == H - 1) &&
                               (axis[2] == 1 || at[2] == N - 1) && (axis[3] == 1 || at[3] == S - 1);
            assert_int_equal(clmgk_ref_visible(&p, at[0], at[1], at[2], at[3]), !hides);
        }
        bias[hidden] = 0.0;
    }
}

/* Two keys with scores 2 and 0; what is added to them decides. */
TH_HOST_TEST(modifiers_by_hand)
{
    const double q[] = {1.0};
    const double k[] = {2.0, 0.0};
    const double v[] = {8.0, -4.0};
    const double bias[] = {log(3.0) - 2.0, 0.0};
    const double slopes[] = {log(3.0)};
    const double sinks[] = {log(2.0)};
    clmgk_ref_problem plain = problem_of(small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1), q, k, v);
    plain.bias = bias;
    plain.slopes = slopes;
    plain.sinks = sinks;
    double o = 0.0;
    double lse = 0.0;

    clmgk_ref_problem p = plain; /* weights 3 and 1 */
    p.desc.use_bias = 1;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_close(o, 5.0);
    assert_close(lse, log(4.0));

    p.desc.use_sinks = 1; /* and 2 of the sink, which has no value */
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_close(o, 20.0 / 6.0);
    assert_close(lse, log(6.0));

    p = plain; /* key 0 is one away from the diagonal, key 1 on it: e^2 / 3 and 1 */
    p.desc.use_alibi = 1;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_close(o, (8.0 * exp(2.0) / 3.0 - 4.0) / (exp(2.0) / 3.0 + 1.0));
    assert_close(lse, log(exp(2.0) / 3.0 + 1.0));

    p = plain; /* before the bias */
    p.desc.use_bias = 1;
    p.desc.softcap = 0.5;
    const double weight = 3.0 * exp(0.5 * tanh(4.0) - 2.0);
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_close(o, (8.0 * weight - 4.0) / (weight + 1.0));
    assert_close(lse, log(weight + 1.0));
}

/* A row without keys still has its sink; a row beyond lengths_q has nothing. */
TH_HOST_TEST(sinks_without_keys)
{
    static const int32_t lengths[] = {0};
    static const int32_t lengths_q[] = {1};
    const double q[] = {1.0, 1.0};
    const double k[] = {0.0, 1.0};
    const double v[] = {1.0, 2.0};
    const double sinks[] = {-1.25};
    const double grad[] = {0.5, 0.25};
    clmgk_ref_problem p = problem_of(small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1), q, k, v);
    p.sinks = sinks;
    p.lengths = lengths;
    p.lengths_q = lengths_q;
    p.grad_o = p.grad_lse = grad;
    p.desc.length = 2;
    p.desc.use_sinks = 1;
    p.desc.use_lengths = 1;
    p.desc.use_lengths_q = 1;
    double o = NAN;
    double lse = NAN;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_true(o == 0.0);
    assert_close(lse, -1.25);
    assert_true(clmgk_ref_row(&p, 1, &o, &lse));
    assert_true(o == 0.0 && lse == -(double)INFINITY);

    TH_REF_ARRAYS gradients = {0};
    assert_true(clmgk_ref_solve_gradients(&p, CLMGK_GRADIENT_ALL, &gradients));
    assert_close(gradients.exact[CLMGK_REF_GRAD_SINKS][0], 0.5); /* dL of the first row */
    assert_true(gradients.exact[CLMGK_REF_GRAD_Q][0] == 0.0 && gradients.exact[CLMGK_REF_GRAD_V][0] == 0.0);
}

/* Packed sequences of one length are a batch: positions, diagonals and random numbers are each sequence's own. */
TH_HOST_TEST(packed_sequences_are_a_batch)
{
    enum { T = 3, N = 4, S = 5, ROWS = T * N };
    static const int32_t offsets[] = {0, N, 2 * N, 3 * N};
    static const int32_t offsets_k[] = {0, S, 2 * S, 3 * S};
    double q[ROWS];
    double k[T * S];
    const double slopes[] = {0.3};
    for (size_t n = 0; n < TH_COUNT(q); n++)
        q[n] = sin(1.0 + 3.7 * (double)n);
    for (size_t n = 0; n < TH_COUNT(k); n++)
        k[n] = cos(2.0 + 5.3 * (double)n);
    clmgk_ref_problem batch = problem_of(small_desc(CLMGK_VARIANT_GAUSSIAN, CLMGK_SCORE_GAUSSIAN, 1), q, k, k);
    batch.slopes = slopes;
    batch.seed = 7;
    batch.grad_o = batch.grad_lse = q;
    batch.desc.batch = T;
    batch.desc.length = N;
    batch.desc.length_k = S;
    batch.desc.use_window = 1;
    batch.desc.window_left = 2;
    batch.desc.window_right = 1;
    batch.desc.use_alibi = 1;
    batch.desc.dropout = 0.5;
    clmgk_ref_problem packed = batch;
    packed.desc.batch = 1;
    packed.desc.length = TH_COUNT(q);
    packed.desc.length_k = TH_COUNT(k);
    packed.desc.sequences = T;
    packed.desc.use_offsets_k = 1;
    packed.offsets = offsets;
    packed.offsets_k = offsets_k;
    for (int64_t row = 0; row < ROWS; row++)
        expect_same_row(&batch, &packed, row, true);
    clmgk_ref_arrays gradients[2];
    clmgk_ref_arrays statistics[2];
    assert_true(clmgk_ref_solve_gradients(&batch, CLMGK_GRADIENT_K, &gradients[0]));
    assert_true(clmgk_ref_solve_gradients(&packed, CLMGK_GRADIENT_K, &gradients[1]));
    assert_memory_equal(gradients[0].exact[CLMGK_REF_GRAD_K], gradients[1].exact[CLMGK_REF_GRAD_K], sizeof(k));
    assert_true(clmgk_ref_solve_statistics(&batch, CLMGK_STATISTIC_NLL, &statistics[0]));
    assert_true(clmgk_ref_solve_statistics(&packed, CLMGK_STATISTIC_NLL, &statistics[1]));
    assert_memory_equal(statistics[0].exact[CLMGK_REF_STAT_NLL], statistics[1].exact[CLMGK_REF_STAT_NLL],
                        T * sizeof(double));
    for (int n = 0; n < 2; n++) {
        clmgk_ref_arrays_free(&gradients[n]);
        clmgk_ref_arrays_free(&statistics[n]);
    }
}

TH_HOST_TEST(rows_without_keys_and_bad_values)
{
    const double q[] = {1.0};
    const double k[] = {0.0, 1.0};
    const double v[] = {1.0, 2.0};
    const double bad[] = {-1.0, 0.5};
    clmgk_ref_problem p = {.desc = small_desc(CLMGK_VARIANT_MGK, CLMGK_SCORE_GAUSSIAN, 1), .q = q, .k = k, .v = v};
    double o = NAN;
    double lse = NAN;

    p.desc.length_k = 0;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_true(o == 0.0 && lse == -(double)INFINITY);

    p.desc.length_k = 2;
    p.desc.prior_shape = CLMGK_PRIOR_M;
    p.prior = bad;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_true(isnan(o) && isnan(lse));

    p.desc.estep = CLMGK_ESTEP_HARD; /* where the prior plays no role */
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_true(isfinite(o) && isfinite(lse));

    p.desc.variance_shape = CLMGK_VARIANCE_M;
    p.variance = bad;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_true(isnan(o) && isnan(lse));
}

/* ---- random numbers ------------------------------------------------------------------------------------------ */

TH_HOST_TEST(philox_of_its_authors)
{
    for (size_t n = 0; n < TH_COUNT(th_philox_answers); n++) {
        uint32_t words[4];
        clmgk_ref_philox(th_philox_answers[n].counter, th_philox_answers[n].key, words);
        assert_memory_equal(words, th_philox_answers[n].words, sizeof(words));
    }
}

TH_HOST_TEST(dropout_is_drawn_from_philox)
{
    enum { B = 2, H = 3, N = 2, S = 10 };
    const uint32_t key[] = {0x89abcdef, 0x01234567};
    clmgk_ref_problem p = {.desc = small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1),
                           .seed = UINT64_C(0x0123456789abcdef)};
    p.desc.batch = B;
    p.desc.heads = H;
    p.desc.length = N;
    p.desc.length_k = S;
    p.desc.dropout = 0.25; /* words below 2^30 */
    for (uint32_t n = 0; n < B * H * N * S; n++) {
        const uint32_t j = n % S, i = n / S % N, head = n / (S * N);
        const uint32_t counter[] = {j / 4, i, head, 0};
        uint32_t words[4];
        clmgk_ref_philox(counter, key, words);
        assert_true(clmgk_ref_dropout(&p, head / H, head % H, i, j) == (words[j % 4] < 0x40000000U ? 0.0 : 4.0 / 3.0));
    }
    p.desc.dropout = 0.0;
    assert_true(clmgk_ref_dropout(&p, 0, 0, 0, 0) == 1.0);
    p.desc.dropout = ldexp(1.0, -33); /* floor(p 2^32) is 0: nothing is dropped */
    assert_true(clmgk_ref_dropout(&p, 0, 0, 0, 0) > 1.0);
}

/* O from weights kept or dropped, L as without dropout. */
TH_HOST_TEST(dropout_by_hand)
{
    enum { S = 8 };
    const double q[] = {0.0};
    const double k[S] = {0};
    const double v[S] = {1, 2, 4, 8, 16, 32, 64, 128};
    clmgk_ref_problem p = {
        .desc = small_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DOT, 1), .q = q, .k = k, .v = v, .seed = 3};
    p.desc.length_k = S;
    p.desc.dropout = 0.5;
    double expected = 0.0;
    int dropped = 0;
    for (int64_t j = 0; j < S; j++) {
        const double kept = clmgk_ref_dropout(&p, 0, 0, 0, j);
        expected += kept * v[j] / S;
        dropped += kept == 0.0;
    }
    assert_in_range(dropped, 1, S - 1);
    double o = 0.0;
    double lse = 0.0;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    assert_close(o, expected);
    assert_close(lse, log(S));
}

/* ---- the bound ---------------------------------------------------------------------------------------------- */

/* The 1 is lost beside 1e8, unless the terms of 1e8 cancel first. */
TH_HOST_TEST(sums_in_every_order)
{
    enum { TERMS = 17, WIDTH = 100 }; /* more than a chunk */
    static const struct {
        size_t large, small, minus;
        float sums[REF_ORDERS];
    } cases[] = {{0, 2, 1, {1.0F, 0.0F, 0.0F}}, {1, 0, 2, {0.0F, 1.0F, 0.0F}}, {0, 1, 16, {0.0F, 0.0F, 1.0F}}};
    for (size_t c = 0; c < TH_COUNT(cases); c++) {
        float terms[TERMS][WIDTH] = {{0}};
        for (size_t w = 0; w < WIDTH; w++) {
            terms[cases[c].large][w] = 1e8F;
            terms[cases[c].minus][w] = -1e8F;
            terms[cases[c].small][w] = 1.0F;
        }
        for (int order = 0; order < REF_ORDERS; order++) {
            float sums[WIDTH];
            ref_sum_rows(TERMS, WIDTH, terms[0], WIDTH, (ref_order)order, sums);
            for (size_t w = 0; w < WIDTH; w++)
                assert_true(sums[w] == cases[c].sums[order]);
        }
    }
}

/* Every pattern's upper half, and lower halves around the ties; NaN stays one. */
TH_HOST_TEST(sums_of_rounded_numbers)
{
    static const clmgk_ref_format narrow[] = {{8, 10, true}, {8, 7, true}};
    static const clmgk_precision precisions[] = {CLMGK_PRECISION_TF32, CLMGK_PRECISION_BF16};
    static const uint32_t lower[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff};
    static const float one = 1.0F;
    for (uint32_t n = 0; n < TH_COUNT(lower) << 16U; n++)
        for (size_t p = 0; p < TH_COUNT(narrow); p++) {
            const uint32_t bits = n << 16U | lower[n >> 16U];
            float x;
            float sum;
            memcpy(&x, &bits, sizeof(x));
            const ref_terms terms = {
                .kind = ref_term_of(REF_TERM_PRODUCT, precisions[p]), .count = 1, .width = 1, .coef = &one, .rows = &x};
            ref_sum(&terms, REF_ORDER_FORWARD, &sum);
            const float expected = clmgk_ref_decode(narrow[p], clmgk_ref_encode(narrow[p], x));
            assert_true(isnan(expected) ? isnan(sum) : sum == expected);
        }
}

/* Queries i and keys j of [4,8]: any fixed irregular numbers do. */
static clmgk_ref_problem bound_problem(const double *q, const double *k, const double *v)
{
    clmgk_ref_problem p = {.desc = small_desc(CLMGK_VARIANT_GAUSSIAN, CLMGK_SCORE_GAUSSIAN, 1), .q = q, .k = k, .v = v};
    p.desc.length = 4;
    p.desc.length_k = 4;
    p.desc.head_size = 8;
    p.desc.value_size = 8;
    return p;
}

static void irregular(double *values, size_t count)
{
    for (size_t n = 0; n < count; n++)
        values[n] = (float)sin(1.0 + 3.7 * (double)n);
}

TH_HOST_TEST(bound_holds_and_rejects)
{
    static const double c[] = {3e-6, 5e-4, 4e-3};
    double qkv[32];
    irregular(qkv, TH_COUNT(qkv));
    clmgk_ref_problem p = bound_problem(qkv, qkv, qkv);
    for (int dtype = CLMGK_DTYPE_F32; dtype <= CLMGK_DTYPE_BF16; dtype++) {
        const int64_t row[] = {3, 1};
        TH_REF_ANSWER answer = {0};
        p.desc.dtype = (clmgk_dtype)dtype;
        assert_true(clmgk_ref_solve(&p, 2, row, &answer));
        for (size_t n = 0; n < 2; n++) {
            double o[8];
            double lse = 0.0;
            assert_true(clmgk_ref_row(&p, row[n], o, &lse));
            assert_memory_equal(o, answer.o + 8 * n, sizeof(o));
            assert_true(lse == answer.lse[n]);
        }
        const clmgk_ref_bound bound = answer.bound_o;
        assert_true(bound.plain_error > 0.0 && bound.plain_error < 3.0 * c[dtype] * bound.max_abs);
        assert_close(bound.bound, 3.0 * bound.plain_error + c[dtype] * bound.max_abs);

        double o[16];
        double lse[2];
        memcpy(o, answer.o, sizeof(o));
        memcpy(lse, answer.lse, sizeof(lse));
        o[5] += 0.9 * bound.bound;
        clmgk_ref_verdict verdict = clmgk_ref_check(&answer, o, lse);
        assert_true(verdict.ok && verdict.message[0] == '\0');
        assert_true(fabs(verdict.error_o - 0.9 * bound.bound) < 1e-9);
        o[5] += 0.2 * bound.bound;
        verdict = clmgk_ref_check(&answer, o, lse);
        assert_false(verdict.ok);
        assert_non_null(strstr(verdict.message, "O of row 3, element 5"));
        o[5] = answer.o[5];
        lse[1] = NAN;
        verdict = clmgk_ref_check(&answer, o, lse);
        assert_false(verdict.ok);
        assert_non_null(strstr(verdict.message, "L of row 1"));
        assert_true(clmgk_ref_check(&answer, o, NULL).ok);
    }
}

/* O's bound follows O's type; weights of mixed types are not rounded. */
TH_HOST_TEST(bound_follows_the_type_of_o)
{
    double qkv[32];
    irregular(qkv, TH_COUNT(qkv));
    clmgk_ref_problem p = bound_problem(qkv, qkv, qkv);
    TH_REF_ANSWER all_f32 = {0};
    assert_true(clmgk_ref_solve(&p, 4, NULL, &all_f32));
    p.desc.dtype_k = CLMGK_STORAGE_F16;
    p.desc.dtype_v = CLMGK_STORAGE_BF16;
    TH_REF_ANSWER cache = {0};
    assert_true(clmgk_ref_solve(&p, 4, NULL, &cache));
    assert_true(cache.bound_o.bound == all_f32.bound_o.bound && cache.bound_lse.bound == all_f32.bound_lse.bound);
    p.desc.dtype_o = CLMGK_STORAGE_F16;
    TH_REF_ANSWER narrow = {0};
    assert_true(clmgk_ref_solve(&p, 4, NULL, &narrow));
    const clmgk_ref_bound bound = narrow.bound_o;
    assert_close(bound.bound, 3.0 * bound.plain_error + 5e-4 * bound.max_abs);
    assert_true(bound.plain_error > 1e-5 * bound.max_abs);
    assert_true(bound.most == 65504.0 && narrow.bound_lse.bound == all_f32.bound_lse.bound);
}

/* The same for gradients: each has the bound of its own type, whatever the others' types. */
TH_HOST_TEST(bounds_of_gradients_follow_their_types)
{
    double qkv[32];
    irregular(qkv, TH_COUNT(qkv));
    clmgk_ref_problem p = bound_problem(qkv, qkv, qkv);
    p.grad_o = qkv;
    TH_REF_ARRAYS all_f32 = {0}, mixed = {0};
    assert_true(clmgk_ref_solve_gradients(&p, CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V, &all_f32));
    p.desc.dtype_k = CLMGK_STORAGE_F16;
    p.desc.dtype_v = CLMGK_STORAGE_BF16;
    assert_true(clmgk_ref_solve_gradients(&p, CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V, &mixed));
    const double part[] = {1e-5, 1e-3, 8e-3}, most[] = {0.0, 65504.0, 0.0};
    for (int which = CLMGK_REF_GRAD_Q; which <= CLMGK_REF_GRAD_V; which++) {
        const clmgk_ref_bound bound = mixed.bound[which];
        assert_close(bound.bound, 5.0 * bound.plain_error + part[which] * bound.max_abs);
        assert_true(bound.most == most[which]);
    }
    assert_true(mixed.bound[CLMGK_REF_GRAD_Q].bound == all_f32.bound[CLMGK_REF_GRAD_Q].bound);
    assert_true(mixed.bound[CLMGK_REF_GRAD_K].plain_error > all_f32.bound[CLMGK_REF_GRAD_K].plain_error);
}

/* f32 values may average to a number that overflows O's type, which the comparison reports. A number near the
 * largest that the type holds may round to infinity within the bound, a small one may not. */
TH_HOST_TEST(o_beyond_its_type_is_told)
{
    double qkv[32], o[32];
    irregular(qkv, TH_COUNT(qkv));
    clmgk_ref_problem p = bound_problem(qkv, qkv, qkv);
    double v[32];
    for (size_t n = 0; n < TH_COUNT(v); n++)
        v[n] = n % 8 == 0 ? 65500.0 : qkv[n];
    p.v = v;
    p.desc.dtype_o = CLMGK_STORAGE_F16;
    TH_REF_ANSWER answer = {0};
    assert_true(clmgk_ref_solve(&p, 4, NULL, &answer));
    memcpy(o, answer.o, sizeof(o));
    for (size_t n = 0; n < TH_COUNT(o); n += 8)
        o[n] = (double)INFINITY;
    assert_true(clmgk_ref_check(&answer, o, answer.lse).ok);
    o[1] = (double)INFINITY;
    assert_false(clmgk_ref_check(&answer, o, answer.lse).ok);
    o[1] = answer.o[1];
    for (size_t n = 0; n < TH_COUNT(v); n += 8)
        v[n] = 1e6;
    clmgk_ref_answer_free(&answer);
    assert_true(clmgk_ref_solve(&p, 4, NULL, &answer));
    assert_false(clmgk_ref_check(&answer, o, answer.lse).ok);
}

TH_HOST_TEST(bound_wants_nan_and_infinity_in_place)
{
    double q[32];
    double k[32];
    irregular(q, TH_COUNT(q));
    irregular(k, TH_COUNT(k));
    q[9] = NAN; /* row 1 */
    clmgk_ref_problem p = bound_problem(q, k, k);
    p.desc.causal = 1;
    p.desc.length_k = 3; /* row 0 sees no key */
    TH_REF_ANSWER answer = {0};
    assert_true(clmgk_ref_solve(&p, 4, NULL, &answer));
    assert_true(answer.lse[0] == -(double)INFINITY && isnan(answer.lse[1]) && isfinite(answer.lse[2]));
    assert_true(isfinite(answer.bound_o.bound) && isfinite(answer.bound_lse.bound));
    assert_true(clmgk_ref_check(&answer, answer.o, answer.lse).ok);

    const struct {
        size_t row;
        double lse;
    } wrong[] = {{0, NAN}, {0, INFINITY}, {0, -1e30}, {1, 0.0}, {2, -INFINITY}};
    for (size_t n = 0; n < TH_COUNT(wrong); n++) {
        double lse[4];
        memcpy(lse, answer.lse, sizeof(lse));
        lse[wrong[n].row] = wrong[n].lse;
        assert_false(clmgk_ref_check(&answer, answer.o, lse).ok);
    }
}

/* NaN in O where a mask hides a NaN near by, or where values' sums leave f32; nowhere else. */
TH_HOST_TEST(bound_allows_nan_that_attention_h_allows)
{
    enum { KEYS = 2060 };
    static double q[KEYS], k[KEYS], v[KEYS];
    irregular(q, KEYS);
    irregular(k, KEYS);
    irregular(v, KEYS);
    v[KEYS - 1] = NAN;
    clmgk_ref_problem p = {
        .desc = {.variant = CLMGK_VARIANT_SOFTMAX, .batch = 1, .heads = 1, .kv_heads = 1}, .q = q, .k = k, .v = v};
    p.desc.components = p.desc.head_size = p.desc.value_size = 1;
    p.desc.length = p.desc.length_k = KEYS;
    p.desc.variance = 1.0;
    p.desc.causal = 1;
    static const int64_t rows[] = {0, KEYS - 2050, KEYS - 2049, KEYS - 2, KEYS - 1};
    TH_REF_ANSWER answer = {0};
    assert_true(clmgk_ref_solve(&p, TH_COUNT(rows), rows, &answer));
    assert_true(isfinite(answer.o[3]) && isnan(answer.o[4]));
    for (size_t n = 0; n < TH_COUNT(rows); n++) {
        double o[TH_COUNT(rows)];
        memcpy(o, answer.o, sizeof(o));
        o[n] = NAN;
        assert_int_equal(clmgk_ref_check(&answer, o, NULL).ok, rows[n] > KEYS - 2050);
        o[n] = 1.0;
        assert_false(clmgk_ref_check(&answer, o, NULL).ok);
    }
    clmgk_ref_answer_free(&answer);

    p.desc.length = 1;
    p.desc.length_k = 8;
    p.desc.causal = 0;
    for (int64_t n = 0; n < 2; n++) {
        v[0] = (n == 0 ? 0.99 : 1.01) * (double)FLT_MAX / 0x1p19;
        assert_true(clmgk_ref_solve(&p, 1, NULL, &answer));
        assert_true(clmgk_ref_check(&answer, answer.o, NULL).ok);
        assert_int_equal(clmgk_ref_check(&answer, &(double){INFINITY}, NULL).ok, n);
        clmgk_ref_answer_free(&answer);
    }
}

/* Expanded distances of far points cancel; the bound includes this error. */
TH_HOST_TEST(bound_counts_expanded_distances)
{
    double q[32];
    double k[32];
    double v[32];
    irregular(v, TH_COUNT(v));
    for (size_t n = 0; n < TH_COUNT(q); n++) {
        q[n] = 300.0 + v[n];
        k[n] = 300.0 + v[31 - n];
    }
    const clmgk_ref_problem p = bound_problem(q, k, v);
    TH_REF_ANSWER answer = {0};
    assert_true(clmgk_ref_solve(&p, 4, NULL, &answer));
    assert_true(answer.bound_lse.plain_error > 1e-3 && answer.bound_lse.plain_error < 1.0);
}
