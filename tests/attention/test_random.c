/* SPDX-License-Identifier: Apache-2.0 */
/* The random numbers that users can draw again on the host: the generator's words, dropout's mask, and the noise. */
#include "attention/normal.h"
#include "base/base.h"
#include "device/device.h"
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 512, CELLS = SIDE * SIDE };

/* ---- the generator ------------------------------------------------------------------------------------------------
 */

TH_HOST_TEST(known_answers)
{
    for (size_t n = 0; n < TH_COUNT(th_philox_answers); n++) {
        const th_philox_answer *const known = &th_philox_answers[n];
        uint32_t words[4] = {0};
        clmgk_philox(known->counter, known->key, words);
        assert_memory_equal(words, known->words, sizeof(words));
        memcpy(words, known->counter, sizeof(words));
        clmgk_philox(words, known->key, words); /* in place */
        assert_memory_equal(words, known->words, sizeof(words));
    }
}

/* ---- the mask, cell by cell ---------------------------------------------------------------------------------------
 */

typedef struct tile {
    double dropout;
    uint64_t seed;
    int64_t heads, b, h, first_row, rows, first_key, keys;
} tile;

/* Tiles at all kinds of places; noise takes no dropout. */
static const tile tiles[] = {
    {0.5, 0, 1, 0, 0, 0, 3, 0, 17},
    {0.1, 0x123456789abcdef0, 4, 3, 2, 5, 4, 1, 9},
    {0.9, UINT64_MAX, 7, 0, 6, 1000, 2, 4094, 6},
    {0.25, 1, 3, 11, 1, (INT64_C(1) << 30) - 2, 3, (INT64_C(1) << 30) - 3, 8},
    {0.7, UINT64_C(1) << 32, INT64_C(1) << 30, INT64_C(1) << 30, 9, 7, 2, 3, 5}, /* b H + h beyond 32 bits */
    {1.0 - 0x1p-40, 42, 2, 1, 1, 0, 5, 0, 40},
    {0.3, 77, 64, 2, 63, 300, 31, 300, 33},
    {0.6, 2026, 8, 2, 3, 0, SIDE, 0, SIDE},
};

/* How the cells of a tile are drawn. */
typedef clmgk_status (*drawing)(const tile *t, void *cells, clmgk_error *error);

static clmgk_status draw_mask(const tile *t, void *cells, clmgk_error *error)
{
    return clmgk_dropout_mask(t->dropout, t->seed, t->heads, t->b, t->h, t->first_row, t->rows, t->first_key, t->keys,
                              cells, error);
}

static clmgk_status draw_noise(const tile *t, void *cells, clmgk_error *error)
{
    return clmgk_noise_tile(t->seed, t->heads, t->b, t->h, t->first_row, t->rows, t->first_key, t->keys, cells, error);
}

static void draw(const tile *t, uint8_t *mask)
{
    th_expect_ok(draw_mask(t, mask, &th_error));
}

static void redraw(const tile *t, float *noise)
{
    th_expect_ok(draw_noise(t, noise, &th_error));
}

/* Each cell follows from its definition: it is dropped if word j mod 4 of counter (j/4, i, b H + h, 0) is below floor(p
 * 2^32). */
TH_HOST_TEST(cells_are_words)
{
    for (size_t n = 0; n < TH_COUNT(tiles); n++) {
        const tile *const t = &tiles[n];
        static uint8_t mask[CELLS + 1];
        assert_true(t->rows * t->keys < (int64_t)sizeof(mask));
        memset(mask, 7, sizeof(mask));
        draw(t, mask);
        for (int64_t cell = 0; cell < t->rows * t->keys; cell++) {
            const uint64_t i = (uint64_t)(t->first_row + cell / t->keys);
            const uint64_t j = (uint64_t)(t->first_key + cell % t->keys);
            const uint64_t head = (uint64_t)t->b * (uint64_t)t->heads + (uint64_t)t->h;
            const uint32_t counter[4] = {(uint32_t)(j / 4), (uint32_t)i, (uint32_t)head, 0};
            const uint32_t key[2] = {(uint32_t)(t->seed & UINT32_MAX), (uint32_t)(t->seed >> 32U)};
            uint32_t words[4];
            clmgk_philox(counter, key, words);
            assert_int_equal(mask[cell], (double)words[j % 4] >= floor(ldexp(t->dropout, 32)));
        }
        for (size_t cell = (size_t)(t->rows * t->keys); cell < sizeof(mask); cell++)
            assert_int_equal(mask[cell], 7);
    }
}

TH_HOST_TEST(extremes)
{
    uint8_t mask[64 * 64];
    static const double keeps_all[] = {0.0, 0x1p-33, 0x1p-1074};
    for (size_t n = 0; n < TH_COUNT(keeps_all); n++) {
        const tile all = {keeps_all[n], 5, 2, 1, 1, 0, 64, 0, 64};
        memset(mask, 0, sizeof(mask));
        draw(&all, mask);
        for (size_t cell = 0; cell < sizeof(mask); cell++)
            assert_int_equal(mask[cell], 1);
    }
    const tile none = {1.0 - 0x1p-53, 5, 2, 1, 1, 0, 64, 0, 64};
    draw(&none, mask);
    for (size_t cell = 0; cell < sizeof(mask); cell++)
        assert_int_equal(mask[cell], 0);
}

/* ---- statistics ---------------------------------------------------------------------------------------------------
 */

/* |count - n p| within 5 standard deviations of n trials with probability p. */
static void expect_rate(const char *what, double count, double n, double p)
{
    const double deviation = (count - n * p) / sqrt(n * p * (1.0 - p));
    if (fabs(deviation) > 5.0)
        fail_msg("%s: %g of %g, expected %g: %g standard deviations", what, count, n, n * p, deviation);
}

/* Cells are dropped in both masks (one is shifted by `shift` cells) as often as independent cells would be. */
static void expect_independent(const char *what, const uint8_t *a, const uint8_t *b, size_t shift, double p)
{
    size_t both = 0;
    for (size_t cell = 0; cell + shift < CELLS; cell++)
        both += !a[cell + shift] && !b[cell];
    expect_rate(what, (double)both, (double)(CELLS - shift), p * p);
}

TH_HOST_TEST(rates_and_independence)
{
    static uint8_t mask[CELLS];
    static uint8_t other[CELLS];
    static const double probabilities[] = {0.1, 0.5, 0.9};
    for (size_t n = 0; n < TH_COUNT(probabilities); n++) {
        const double p = probabilities[n];
        const tile one = {p, 2026, 8, 2, 3, 0, SIDE, 0, SIDE};
        tile next = one;
        size_t dropped = 0;
        draw(&one, mask);
        for (size_t cell = 0; cell < CELLS; cell++)
            dropped += !mask[cell];
        expect_rate("dropped", (double)dropped, CELLS, p);
        for (size_t shift = 1; shift <= 5; shift++)
            expect_independent("keys next to each other", mask, mask, shift, p);
        expect_independent("rows next to each other", mask, mask, SIDE, p);
        next.h++;
        draw(&next, other);
        expect_independent("heads", mask, other, 0, p);
        next = one;
        next.b++;
        draw(&next, other);
        expect_independent("batches", mask, other, 0, p);
        next = one;
        next.seed++;
        draw(&next, other);
        expect_independent("seeds", mask, other, 0, p);
        next.seed = one.seed + (UINT64_C(1) << 32);
        draw(&next, other);
        expect_independent("upper halves of seeds", mask, other, 0, p);
    }
}

/* No row and no column has more dropped cells than others. Chi squared of 2 SIDE rates has mean 2 SIDE and variance 4
 * SIDE; it must lie within 5 standard deviations. */
TH_HOST_TEST(every_row_and_key)
{
    static uint8_t mask[CELLS];
    const double p = 0.3;
    const tile one = {p, 7, 1, 0, 0, 0, SIDE, 0, SIDE};
    double squares = 0.0;
    draw(&one, mask);
    for (size_t line = 0; line < SIDE; line++) {
        double row = -SIDE * p;
        double key = -SIDE * p;
        for (size_t n = 0; n < SIDE; n++) {
            row += !mask[line * SIDE + n];
            key += !mask[n * SIDE + line];
        }
        squares += (row * row + key * key) / (SIDE * p * (1.0 - p));
    }
    assert_true(fabs(squares - 2.0 * SIDE) < 5.0 * sqrt(4.0 * SIDE));
}

/* ---- noise: its values --------------------------------------------------------------------------------------------
 */

/* |x - exact| within 3e-7 max(1, |exact|). */
static void expect_normal(double x, double exact)
{
    if (!(fabs(x - exact) <= 3e-7 * fmax(1.0, fabs(exact))))
        fail_msg("%.9g, expected %.15g", x, exact);
}

/* Every cell equals the reference's, which draws one at a time. */
TH_HOST_TEST(noise_is_that_of_the_reference)
{
    static float noise[CELLS];
    for (size_t n = 0; n < TH_COUNT(tiles); n++) {
        const tile *const t = &tiles[n];
        const clmgk_ref_problem problem = {
            .desc = {.variant = CLMGK_VARIANT_FISH, .batch = t->b + 1, .heads = t->heads}, .seed = t->seed};
        redraw(t, noise);
        for (int64_t cell = 0; cell < t->rows * t->keys; cell++)
            expect_normal(noise[cell], clmgk_ref_noise(&problem, t->b, t->h, t->first_row + cell / t->keys,
                                                       t->first_key + cell % t->keys));
    }
}

/* A tile of a tile is a part of it, bit for bit, and nothing around it is written. */
TH_HOST_TEST(tiles_of_tiles)
{
    enum { ROWS = 9, KEYS = 23 };
    static float all[ROWS * KEYS], part[ROWS * KEYS + 1];
    const tile whole = {0, 31, 5, 2, 4, 100, ROWS, 200, KEYS};
    redraw(&whole, all);
    for (int64_t first = 0; first < KEYS; first++) {
        tile t = whole;
        t.first_row += first % ROWS;
        t.rows -= first % ROWS;
        t.first_key += first;
        t.keys -= first;
        part[t.rows * t.keys] = 7.0F;
        redraw(&t, part);
        for (int64_t row = 0; row < t.rows; row++)
            assert_memory_equal(part + row * t.keys, all + (first % ROWS + row) * KEYS + first,
                                (size_t)t.keys * sizeof(float));
        assert_true(part[t.rows * t.keys] == 7.0F);
    }
}

/* Pairs of words at the edges of the formula's parts, and all over the range, with their complements. Word m of counter
 * n is words[m * COUNTERS + n]. */
enum { ENDS = 33, AROUND = 5, SPREAD = 400, CHOSEN = ENDS * AROUND + SPREAD };
enum { COUNTERS = (CHOSEN * CHOSEN + 15) / 16 * 16, TWO = 2 * COUNTERS, THREE = 3 * COUNTERS, WORDS = 4 * COUNTERS };

static void choose_words(uint32_t *words)
{
    static const uint32_t step = UINT32_MAX / SPREAD;
    uint32_t chosen[CHOSEN];
    for (uint32_t n = 0; n < ENDS * AROUND; n++) /* a power of 2 or 0, and its neighbours */
        chosen[n] = (uint32_t)((UINT64_C(1) << n / AROUND) + n % AROUND - AROUND / 2);
    for (uint32_t n = 0; n < SPREAD; n++)
        chosen[ENDS * AROUND + n] = n * step + n;
    for (size_t n = 0; n < COUNTERS; n++) {
        words[n] = chosen[n / CHOSEN % CHOSEN];
        words[COUNTERS + n] = chosen[n % CHOSEN];
        words[TWO + n] = ~words[n];
        words[THREE + n] = ~words[COUNTERS + n];
    }
}

static void normals_of_counter(const uint32_t *words, size_t counter, float normal[4])
{
    uint32_t own[4];
    for (size_t m = 0; m < 4; m++)
        own[m] = words[m * COUNTERS + counter];
    box_muller(own, normal);
}

/* Within the bound, and finite. */
TH_HOST_TEST(normals_of_all_words)
{
    static uint32_t words[WORDS];
    const double tau = 2.0 * acos(-1.0);
    choose_words(words);
    for (size_t n = 0; n < COUNTERS; n++) {
        float normal[4];
        normals_of_counter(words, n, normal);
        for (size_t pair = 0; pair < 2; pair++) {
            const double radius = sqrt(-2.0 * log(ldexp(words[2 * pair * COUNTERS + n] + 0.5, -32)));
            const double angle = tau * ldexp(words[(2 * pair + 1) * COUNTERS + n] + 0.5, -32);
            expect_normal(normal[2 * pair], radius * cos(angle));
            expect_normal(normal[2 * pair + 1], radius * sin(angle));
        }
    }
}

/* A kernel that draws as the engines do. The engine's types precede it in the program. */
static const char draw_kernel[] =
    "__kernel void draw(__global const uint *words, __global float *normals, int counters)\n"
    "{\n"
    "    const int first = (int)get_global_id(0) * LANES;\n"
    "    ureal word[4];\n"
    "    real normal[4];\n"
    "    for (int m = 0; m < 4; ++m)\n"
    "        word[m] = as_ureal(vload_real(0, (__global const float *)words + m * counters + first));\n"
    "    box_muller(word, normal);\n"
    "    for (int m = 0; m < 4; ++m)\n"
    "        vstore_real(normal[m], 0, normals + m * counters + first);\n"
    "}\n";
static const char one_lane[] = "typedef float real;\n"
                               "typedef int ireal;\n"
                               "typedef uint ureal;\n"
                               "#define as_real as_float\n"
                               "#define as_ireal as_int\n"
                               "#define as_ureal as_uint\n"
                               "#define convert_real convert_float\n"
                               "#define vload_real(i, p) (*(p))\n"
                               "#define vstore_real(x, i, p) (*(p) = (x))\n";

static cl_program build_draw(const th_session *session, int lanes, bool rounded)
{
    static const char *const files[] = {"base/common.clh", "engine/lanes.clh", "base/normal.clh"};
    mgk_text text[TH_COUNT(files)] = {{0}};
    for (size_t n = 0; n < TH_COUNT(files); n++)
        assert_int_equal(mgk_source_expand(NULL, files[n], "", NULL, &text[n], NULL), CLMGK_OK);
    const char *sources[] = {text[0].data, lanes == 1 ? one_lane : text[1].data, text[2].data, draw_kernel};
    char options[128];
    snprintf(options, sizeof(options), "-cl-std=CL1.2 -DLANES=%d%s", lanes,
             rounded ? " -cl-fp32-correctly-rounded-divide-sqrt" : "");
    cl_int code = CL_SUCCESS;
    cl_program program = clCreateProgramWithSource(session->cl, TH_COUNT(sources), sources, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(clBuildProgram(program, 0, NULL, options, NULL, NULL), CL_SUCCESS);
    for (size_t n = 0; n < TH_COUNT(files); n++)
        mgk_text_free(&text[n]);
    return program;
}

static void draw_on_device(const th_session *session, int lanes, bool rounded, uint32_t *words, float *normals)
{
    cl_int code[3] = {CL_SUCCESS};
    const cl_int counters = COUNTERS;
    const size_t bytes = WORDS * sizeof(float), items = (size_t)(COUNTERS / lanes);
    cl_program program = build_draw(session, lanes, rounded);
    cl_kernel kernel = clCreateKernel(program, "draw", &code[0]);
    cl_mem from = clCreateBuffer(session->cl, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, bytes, words, &code[1]);
    cl_mem to = clCreateBuffer(session->cl, CL_MEM_WRITE_ONLY, bytes, NULL, &code[2]);
    for (size_t n = 0; n < TH_COUNT(code); n++)
        assert_int_equal(code[n], CL_SUCCESS);
    assert_int_equal(clSetKernelArg(kernel, 0, sizeof(cl_mem), &from), CL_SUCCESS);
    assert_int_equal(clSetKernelArg(kernel, 1, sizeof(cl_mem), &to), CL_SUCCESS);
    assert_int_equal(clSetKernelArg(kernel, 2, sizeof(counters), &counters), CL_SUCCESS);
    assert_int_equal(clEnqueueNDRangeKernel(session->queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL), CL_SUCCESS);
    assert_int_equal(clEnqueueReadBuffer(session->queue, to, CL_TRUE, 0, bytes, normals, 0, NULL, NULL), CL_SUCCESS);
    clReleaseMemObject(to);
    clReleaseMemObject(from);
    clReleaseKernel(kernel);
    clReleaseProgram(program);
}

/* The device's numbers are the host's: bit for bit with a correctly rounded square root, else within its error. */
TH_TEST_OF(devices_draw_what_the_host_draws, th_session *session, .set_up = th_session_open,
           .tear_down = th_session_close)
{
    static uint32_t words[WORDS];
    static float normals[WORDS];
    static const int widths[] = {1, 8, 16};
    cl_device_fp_config config = 0;
    assert_int_equal(
        clGetDeviceInfo(session->info.device_id, CL_DEVICE_SINGLE_FP_CONFIG, sizeof(config), &config, NULL),
        CL_SUCCESS);
    const bool rounded = (config & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
    choose_words(words);
    for (size_t width = 0; width < TH_COUNT(widths); width++) {
        memset(normals, 0xff, sizeof(normals));
        draw_on_device(session, widths[width], rounded, words, normals);
        for (size_t n = 0; n < WORDS; n++) {
            float normal[4];
            normals_of_counter(words, n % COUNTERS, normal);
            const double expected = normal[n / COUNTERS];
            if (!(fabs(normals[n] - expected) <= (rounded ? 0.0 : 4e-7 * fabs(expected))))
                fail_msg("%d lanes, number %zu: %.9g, the host's %.9g", widths[width], n, normals[n], expected);
        }
    }
}

/* ---- noise: its distribution --------------------------------------------------------------------------------------
 */

/* The mean of CELLS draws is within 5 standard deviations of its expected value; `deviation` is that of one draw. */
static void expect_mean(const char *what, double sum, double expected, double deviation)
{
    const double error = (sum / CELLS - expected) / (deviation / sqrt(CELLS));
    if (!(fabs(error) <= 5.0))
        fail_msg("%s: %g, expected %g: %g standard deviations", what, sum / CELLS, expected, error);
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Kolmogorov and Smirnov: sqrt(n) sup |F_n - F| of a normal distribution. Sorts x. */
static double distance_to_normal(float *x)
{
    double largest = 0.0;
    qsort(x, CELLS, sizeof(*x), ascending);
    for (size_t n = 0; n < CELLS; n++) {
        const double f = 0.5 * erfc(-(double)x[n] / sqrt(2.0));
        largest = fmax(largest, fmax((double)(n + 1) / CELLS - f, f - (double)n / CELLS));
    }
    return largest * sqrt(CELLS);
}

/* One in 1000 samples of a normal distribution exceeds this. */
static const double farthest = 1.95;

TH_HOST_TEST(normal_distribution)
{
    static float noise[CELLS];
    static const uint64_t seeds[] = {0, 7, UINT64_C(1) << 40};
    for (size_t n = 0; n < TH_COUNT(seeds); n++) {
        const tile one = {0, seeds[n], 8, 1, 5, 0, SIDE, 0, SIDE};
        double power[5] = {0}, beyond[5] = {0};
        redraw(&one, noise);
        for (size_t cell = 0; cell < CELLS; cell++)
            for (int k = 1; k <= 4; k++) {
                power[k] += pow(noise[cell], k);
                beyond[k] += fabs((double)noise[cell]) > k;
            }
        expect_mean("mean", power[1], 0.0, 1.0);
        expect_mean("variance", power[2], 1.0, sqrt(2.0));
        expect_mean("third moment", power[3], 0.0, sqrt(15.0));
        expect_mean("fourth moment", power[4], 3.0, sqrt(96.0));
        for (int k = 1; k <= 4; k++)
            expect_rate("beyond so many deviations", beyond[k], CELLS, erfc(k / sqrt(2.0)));
        const double distance = distance_to_normal(noise);
        if (distance > farthest)
            fail_msg("sqrt(n) sup |F_n - F| is %g", distance);
    }
}

/* The test above notices a deviation that is wrong by 2 per cent, a mean by 1 per cent, and uniform numbers of
 * variance 1.
 */
TH_HOST_TEST(distance_tells_what_is_not_normal)
{
    static float noise[CELLS];
    const tile one = {0, 7, 8, 1, 5, 0, SIDE, 0, SIDE};
    for (int wrong = 0; wrong < 3; wrong++) {
        redraw(&one, noise);
        for (size_t cell = 0; cell < CELLS; cell++) {
            if (wrong == 0)
                noise[cell] *= 1.02F;
            else if (wrong == 1)
                noise[cell] += 0.01F;
            else
                noise[cell] = (float)(sqrt(12.0) * ((double)cell / CELLS - 0.5));
        }
        assert_true(distance_to_normal(noise) > farthest);
    }
}

/* Neither the numbers nor their squares are correlated. (A pair of Box and Muller shares a radius.) */
static void expect_uncorrelated(const char *what, const float *a, const float *b, size_t shift)
{
    double products = 0.0, squares = 0.0;
    for (size_t cell = 0; cell < CELLS; cell++) {
        const double x = a[cell], y = b[(cell + shift) % CELLS];
        products += x * y;
        squares += (x * x - 1.0) * (y * y - 1.0);
    }
    expect_mean(what, products, 0.0, 1.0);
    expect_mean(what, squares, 0.0, 2.0);
}

TH_HOST_TEST(noise_is_independent)
{
    static float noise[CELLS], other[CELLS];
    static uint8_t mask[CELLS];
    const tile one = {0.5, 2026, 8, 2, 3, 0, SIDE, 0, SIDE};
    redraw(&one, noise);
    for (size_t shift = 1; shift <= 5; shift++)
        expect_uncorrelated("keys next to each other", noise, noise, shift);
    expect_uncorrelated("rows next to each other", noise, noise, SIDE);
    const struct {
        const char *what;
        tile next;
    } others[] = {
        {"heads next to each other", {0, 2026, 8, 2, 4, 0, SIDE, 0, SIDE}},
        {"first and last head", {0, 2026, 8, 2, 7, 0, SIDE, 0, SIDE}},
        {"batches", {0, 2026, 8, 3, 3, 0, SIDE, 0, SIDE}},
        {"seeds", {0, 2027, 8, 2, 3, 0, SIDE, 0, SIDE}},
        {"upper halves of seeds", {0, 2026 + (UINT64_C(1) << 32), 8, 2, 3, 0, SIDE, 0, SIDE}},
        {"rows far from each other", {0, 2026, 8, 2, 3, SIDE, SIDE, 0, SIDE}},
        {"keys far from each other", {0, 2026, 8, 2, 3, 0, SIDE, SIDE, SIDE}},
    };
    for (size_t n = 0; n < TH_COUNT(others); n++) {
        redraw(&others[n].next, other);
        expect_uncorrelated(others[n].what, noise, other, 0);
    }
    draw(&one, mask);
    for (size_t cell = 0; cell < CELLS; cell++) /* as normal as a coin can be */
        other[cell] = mask[cell] ? 1.0F : -1.0F;
    double sum = 0.0, squares = 0.0;
    for (size_t cell = 0; cell < CELLS; cell++) {
        sum += other[cell] * noise[cell];
        squares += other[cell] * (noise[cell] * noise[cell] - 1.0);
    }
    expect_mean("noise and dropout", sum, 0.0, 1.0);
    expect_mean("squares of noise and dropout", squares, 0.0, sqrt(2.0));
}

/* ---- misuse -------------------------------------------------------------------------------------------------------
 */

TH_HOST_TEST(bad_arguments)
{
    const int64_t beyond = (INT64_C(1) << 30) + 1;
    const tile good = {0.5, 0, 4, 1, 3, 0, 2, 0, 3};
    const struct {
        tile bad;
        const char *name, *value;
    } cases[] = {
        {{-0.1, 0, 4, 1, 3, 0, 2, 0, 3}, "dropout", "-0.1"},
        {{1.0, 0, 4, 1, 3, 0, 2, 0, 3}, "dropout", "1"},
        {{(double)NAN, 0, 4, 1, 3, 0, 2, 0, 3}, "dropout", "nan"},
        {{(double)INFINITY, 0, 4, 1, 3, 0, 2, 0, 3}, "dropout", "inf"},
        {{0.5, 0, 0, 1, 0, 0, 2, 0, 3}, "heads", "0"},
        {{0.5, 0, beyond, 1, 0, 0, 2, 0, 3}, "heads", "1073741825"},
        {{0.5, 0, 4, -1, 3, 0, 2, 0, 3}, "b", "-1"},
        {{0.5, 0, 4, beyond, 3, 0, 2, 0, 3}, "b", "1073741825"},
        {{0.5, 0, 4, 1, -1, 0, 2, 0, 3}, "h", "-1"},
        {{0.5, 0, 4, 1, 4, 0, 2, 0, 3}, "h", "4"},
        {{0.5, 0, 4, 1, 3, -1, 2, 0, 3}, "first_row", "-1"},
        {{0.5, 0, 4, 1, 3, beyond, 2, 0, 3}, "first_row", "1073741825"},
        {{0.5, 0, 4, 1, 3, 0, -2, 0, 3}, "rows", "-2"},
        {{0.5, 0, 4, 1, 3, 0, INT64_MAX, 0, 3}, "rows", "9223372036854775807"},
        {{0.5, 0, 4, 1, 3, 0, 2, -1, 3}, "first_key", "-1"},
        {{0.5, 0, 4, 1, 3, 0, 2, beyond, 3}, "first_key", "1073741825"},
        {{0.5, 0, 4, 1, 3, 0, 2, 0, -3}, "keys", "-3"},
        {{0.5, 0, 4, 1, 3, 0, 2, 0, beyond}, "keys", "1073741825"},
    };
    static const struct {
        drawing drawn;
        const char *cells; /* what the array is called */
        bool has_dropout;
    } drawings[] = {{draw_mask, "mask", true}, {draw_noise, "noise", false}};
    for (size_t d = 0; d < TH_COUNT(drawings); d++) {
        float cells[6], untouched[6];
        memset(cells, 7, sizeof(cells));
        memset(untouched, 7, sizeof(untouched));
        for (size_t n = 0; n < TH_COUNT(cases); n++) {
            clmgk_error error = {0};
            if (!drawings[d].has_dropout && strcmp(cases[n].name, "dropout") == 0)
                continue;
            const clmgk_status status = drawings[d].drawn(&cases[n].bad, cells, &error);
            if (status != CLMGK_ERROR_INVALID_VALUE || !th_has_word(error.message, cases[n].name) ||
                !strstr(error.message, cases[n].value))
                fail_msg("%s \"%s\": expected \"%s\" and \"%s\"", clmgk_status_name(status), error.message,
                         cases[n].name, cases[n].value);
        }
        clmgk_error error = {0};
        assert_int_equal(drawings[d].drawn(&good, NULL, &error), CLMGK_ERROR_INVALID_VALUE);
        assert_true(th_has_word(error.message, drawings[d].cells));
        assert_int_equal(drawings[d].drawn(&cases[TH_COUNT(cases) - 1].bad, cells, NULL), CLMGK_ERROR_INVALID_VALUE);
        const tile empty[] = {{0.5, 5, 2, 1, 1, 0, 0, 0, 64}, {0.5, 5, 2, 1, 1, 0, 64, 0, 0}};
        for (size_t n = 0; n < TH_COUNT(empty); n++)
            assert_int_equal(drawings[d].drawn(&empty[n], cells, NULL), CLMGK_OK);
        assert_memory_equal(cells, untouched, sizeof(cells));
    }
}

/* ---- projections ---------------------------------------------------------------------------------------------------
 */

enum { FEATURES = 21, SIZE = 8 };

/* The length of D of Box and Muller's numbers of counter (d/4, f, 1, 2). */
static double drawn_length(uint64_t seed, uint32_t f, int64_t size)
{
    const double scale = ldexp(1.0, -32);
    double square = 0.0;
    for (uint32_t d = 0; d < size; d++) {
        const uint32_t counter[4] = {d / 4, f, 1, 2}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32U)};
        uint32_t words[4] = {0};
        clmgk_ref_philox(counter, key, words);
        const uint32_t *const pair = d % 4 < 2 ? words : words + 2;
        const double u = ((double)pair[0] + 0.5) * scale;
        const double angle = 6.283185307179586 * ((double)pair[1] + 0.5) * scale;
        square += -2.0 * log(u) * (d % 2 == 0 ? cos(angle) * cos(angle) : sin(angle) * sin(angle));
    }
    return sqrt(square);
}

static double product(const float *a, const float *b, int64_t size)
{
    double sum = 0.0;
    for (int64_t d = 0; d < size; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

/* Rows within a block of D are orthogonal, rows of different blocks are not, and lengths are as drawn. */
TH_HOST_TEST(projections_are_orthogonal)
{
    static const int64_t sizes[] = {1, 3, SIZE, 64};
    for (size_t n = 0; n < TH_COUNT(sizes); n++) {
        const int64_t size = sizes[n];
        const uint64_t seed = 0x123456789abcdef0 + n;
        float w[FEATURES * 64];
        th_expect_ok(clmgk_draw_projection(seed, FEATURES, size, w, &th_error));
        for (int64_t f = 0; f < FEATURES; f++) {
            const float *const row = w + f * size;
            const double length = drawn_length(seed, (uint32_t)f, size);
            assert_true(fabs(sqrt(product(row, row, size)) - length) <= 1e-5 * length);
            for (int64_t g = 0; g < f; g++) {
                const double cosine = product(row, w + g * size, size) /
                                      sqrt(product(row, row, size) * product(w + g * size, w + g * size, size));
                assert_true((fabs(cosine) < 1e-6) == (f / size == g / size));
            }
        }
    }
}

/* The same seed gives the same numbers, and a longer projection begins with the blocks of a shorter one. Row 5 pins the
 * numbers. */
TH_HOST_TEST(projections_are_determined)
{
    static const float pinned[SIZE] = {0.5474157F,   2.2773353F,  -2.0479851F,  0.090884491F,
                                       -0.91734139F, 0.84151849F, -0.52621066F, 0.3247319F};
    float w[FEATURES * SIZE], again[FEATURES * SIZE];
    th_expect_ok(clmgk_draw_projection(7, FEATURES, SIZE, w, &th_error));
    th_expect_ok(clmgk_draw_projection(7, FEATURES, SIZE, again, &th_error));
    assert_memory_equal(w, again, sizeof(w));
    th_expect_ok(clmgk_draw_projection(7, 3, SIZE, again, &th_error));
    assert_memory_equal(w, again, sizeof(float) * 3 * SIZE);
    for (size_t n = 0; n < TH_COUNT(pinned); n++)
        assert_true(fabs((double)w[(size_t)5 * SIZE + n] - (double)pinned[n]) < 1e-6);
    th_expect_ok(clmgk_draw_projection(UINT64_C(7) << 32U, FEATURES, SIZE, again, &th_error));
    assert_memory_not_equal(w, again, sizeof(w));
}

TH_HOST_TEST(bad_projections)
{
    float w[SIZE] = {0.0F};
    th_expect_error(clmgk_draw_projection(0, 1, SIZE, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "projection: NULL");
    th_expect_error(clmgk_draw_projection(0, 0, SIZE, w, &th_error), CLMGK_ERROR_INVALID_VALUE, "features: 0");
    th_expect_error(clmgk_draw_projection(0, CLMGK_MAX_FEATURES + 1, SIZE, w, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "features: 4097");
    th_expect_error(clmgk_draw_projection(0, 1, 0, w, &th_error), CLMGK_ERROR_INVALID_VALUE, "head_size: 0");
    th_expect_error(clmgk_draw_projection(0, 1, CLMGK_MAX_HEAD_SIZE + 1, w, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "head_size: 577");
}
