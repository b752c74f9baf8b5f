/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the functions of docs/recipes.md, which check_install.sh writes into recipes.h, and compares their results with
 * the formulas in double precision. */
#define CL_TARGET_OPENCL_VERSION 120
#include "recipes.h"

#include <stdint.h>
#include <stdio.h>

enum { HEADS = 4, N = 100, D = 32, COUNT = 2 * HEADS * N * D, CAPACITY = 128 };

static float q[COUNT], k[COUNT], v[COUNT], o[COUNT], lse[COUNT], grad_o[COUNT], grad_q[COUNT], grad_k[COUNT],
    grad_v[COUNT], bias[HEADS * N * N], table[32 * HEADS], grad_prior[2];
static const float slopes[HEADS] = {0.25F, 0.0625F, 0.015625F, 0.00390625F}, sink[HEADS] = {0, 1, 2, 3};
static int failures;

/* Sizes of a problem; score(b, h, i, j) is added to a score, or -INFINITY. */
typedef struct problem {
    int batch, heads, groups, n, s;
    double divisor;
    double (*score)(int b, int h, int i, int j);
    const float *sinks;
    double cap; /* of scores; 0: none */
} problem;

static const float *vector(const float *array, ptrdiff_t index)
{
    return array + index * D;
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int d = 0; d < D; ++d) {
        sum += (double)a[d] * b[d];
    }
    return sum;
}

/* The largest difference between o and a row's formula. */
static double row_error(const problem *p, int b, int h, int i)
{
    const int row = (b * p->heads + h) * p->n + i, group = b * p->groups + h * p->groups / p->heads;
    double sum = p->sinks ? exp((double)p->sinks[h]) : 0, above[D] = {0}, worst = 0;
    for (int j = 0; j < p->s; ++j) {
        const ptrdiff_t key = (ptrdiff_t)group * p->s + j;
        const double plain = dot(vector(q, row), vector(k, key)) / p->divisor;
        const double weight = exp((p->cap > 0 ? p->cap * tanh(plain / p->cap) : plain) + p->score(b, h, i, j));
        sum += weight;
        for (int d = 0; d < D; ++d) {
            above[d] += weight > 0 ? weight * vector(v, key)[d] : 0;
        }
    }
    for (int d = 0; d < D; ++d) {
        worst = fmax(worst, fabs((sum > 0 ? above[d] / sum : 0) - vector(o, row)[d]));
    }
    return worst;
}

static void expect(const char *name, clmgk_status status, const clmgk_error *error, double worst)
{
    printf("%s: %s, error %.1e\n", name, status == CLMGK_OK ? "ok" : error->message, worst);
    failures += status != CLMGK_OK || !(worst < 1e-5);
}

static void compare(const char *name, clmgk_status status, const clmgk_error *error, problem p)
{
    double worst = 0;
    for (int b = 0; b < p.batch; ++b) {
        for (int h = 0; h < p.heads; ++h) {
            for (int i = 0; i < p.n; ++i) {
                worst = fmax(worst, row_error(&p, b, h, i));
            }
        }
    }
    expect(name, status, error, worst);
}

static double visible(int is_visible, double score)
{
    return is_visible ? score : (double)-INFINITY;
}

static double of_window(int b, int h, int i, int j)
{
    (void)b;
    return visible(j <= i && i - j <= 15, -(double)slopes[h] * (i - j));
}

static int sequence(int i)
{
    return (i >= 30) + (i >= 42);
}

static double of_packed(int b, int h, int i, int j)
{
    (void)b, (void)h;
    return visible(j <= i && sequence(i) == sequence(j), 0);
}

enum { DRAFTS = 8 };
static const int parents[DRAFTS] = {-1, 0, 0, 1, 1, 2, 5, 5};

static double of_drafts(int b, int h, int i, int j)
{
    (void)b, (void)h;
    int draft = i;
    while (draft >= 0 && draft != j - (N - DRAFTS)) {
        draft = parents[draft];
    }
    return visible(j < N - DRAFTS || draft >= 0, 0);
}

static double of_padded(int b, int h, int i, int j)
{
    (void)h;
    return visible(b == 0 || (i < 60 && j < 60), 0);
}

static double of_t5(int b, int h, int i, int j)
{
    (void)b;
    return (double)bias[(h * N + i) * N + j];
}

static double of_swin(int b, int h, int i, int j)
{
    return (double)bias[((b % 4 * HEADS + h) * 16 + i) * 16 + j];
}

static double of_all(int b, int h, int i, int j)
{
    (void)b, (void)h, (void)i, (void)j;
    return 0;
}

static double of_cache(int b, int h, int i, int j)
{
    (void)b, (void)h, (void)i;
    return visible(j < 77, 0);
}

/* dV of each key is the sum of kept weights, as dO is 1. */
static double dropout_error(void)
{
    static double sums[N];
    static uint8_t kept[N * N];
    clmgk_error error = {0};
    double worst = clmgk_dropout_mask(0.1, 7, HEADS, 0, 0, 0, N, 0, N, kept, &error) == CLMGK_OK ? 0 : INFINITY;
    for (int i = 0; i < N; ++i) {
        for (int j = 0; j < N; ++j) {
            sums[j] += kept[i * N + j] * exp(dot(vector(q, i), vector(k, j)) / sqrt(D) - (double)lse[i]) / 0.9;
        }
    }
    for (int j = 0; j < N; ++j) {
        worst = fmax(worst, fabs(sums[j] - (double)*vector(grad_v, j)));
    }
    return worst;
}

/* O of MGK with the prior (1/4, 3/4). A multiple of the prior gives the same O, so that the gradient is orthogonal to
 * it. */
static double half_error(void)
{
    const double first_part = 0.25 * (double)grad_prior[0], second_part = 0.75 * (double)grad_prior[1];
    double worst = fabs(first_part + second_part) / fabs(first_part);
    for (int row = 0; row < 2 * N; ++row) {
        double sum = 0, above = 0;
        for (int j = 0; j < N; ++j) {
            const float *const query = vector(q, row), *const first = vector(k, row / N * 2 * N + j),
                               *const second = vector(first, N);
            const double norm = dot(query, query);
            const double squares[] = {norm + dot(first, first) - 2 * dot(query, first),
                                      norm + dot(second, second) - 2 * dot(query, second)};
            const double weight = 0.25 * exp(-squares[0] / (2 * sqrt(D))) + 0.75 * exp(-squares[1] / (2 * sqrt(D)));
            sum += weight;
            above += weight * *vector(v, row / N * N + j);
        }
        worst = fmax(worst, fabs(above / sum - *vector(o, row)));
    }
    return worst;
}

static double error_without_denominators(void)
{
    double worst = 0;
    for (int row = 0; row < HEADS * N; ++row) {
        double above = 0, size = 1;
        for (int j = 0; j <= row % N; ++j) {
            const int key = row / N * N + j;
            double weight = 0;
            for (int d = 0; d < D; ++d) {
                weight += fmax((double)q[row * D + d], 0) * fmax((double)k[key * D + d], 0);
            }
            above += weight * *vector(v, key);
            size += weight * fabs((double)*vector(v, key));
        }
        worst = fmax(worst, fabs(above - *vector(o, row)) / size);
    }
    return worst;
}

static clmgk_status make_and_release_layer(clmgk_error *error)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    clmgk_status status = clmgk_select_device(NULL, &info, error);
    cl_int code = CL_SUCCESS;
    const cl_context context = status == CLMGK_OK ? clCreateContext(NULL, 1, &info.device_id, NULL, NULL, &code) : NULL;
    clmgk_context *of_library = NULL;
    clmgk_layer *layer = NULL;
    if (context) {
        status = clmgk_context_create(context, info.device_id, NULL, &of_library, error);
        status = status == CLMGK_OK ? make_layer(of_library, &layer, error) : status;
        clmgk_layer_release(layer);
        clmgk_context_release(of_library);
        clReleaseContext(context);
    }
    return context ? status : CLMGK_ERROR_OPENCL;
}

static void fill(float *array, int count, uint32_t seed)
{
    for (int i = 0; i < count; ++i) {
        seed = seed * 1664525U + 1013904223U;
        array[i] = (float)(seed >> 8) / 0x1p23F - 1;
    }
}

int main(void)
{
    clmgk_error error = {0};
    const problem usual = {1, HEADS, HEADS, N, N, sqrt(D), of_all, NULL, 0};
    problem p = usual;
    fill(q, COUNT, 1), fill(k, COUNT, 2), fill(v, COUNT, 3), fill(table, 32 * HEADS, 4);

    p.score = of_window;
    compare("causal_window", causal_window(q, k, v, slopes, o, &error), &error, p);
    p.score = of_packed;
    compare("packed", packed(q, k, v, o, &error), &error, p);
    p = usual, p.batch = 2, p.score = of_padded;
    compare("padded", padded(q, k, v, o, &error), &error, p);
    p = usual, p.score = of_t5, p.divisor = 1;
    compare("t5", t5(q, k, v, table, bias, o, &error), &error, p);
    fill(bias, 4 * HEADS * 16 * 16, 5), bias[3] = -INFINITY;
    p = usual, p.batch = 8, p.n = p.s = 16, p.score = of_swin;
    compare("swin", swin(q, k, v, bias, o, &error), &error, p);
    p = usual, p.groups = 2;
    compare("grouped", grouped(q, k, v, o, &error), &error, p);
    p = usual, p.sinks = sink;
    compare("sinks", sinks(q, k, v, sink, o, &error), &error, p);
    int32_t document[N];
    for (int i = 0; i < N; ++i) {
        document[i] = sequence(i);
    }
    p = usual, p.score = of_packed, p.cap = 0.5;
    compare("own_scores", own_scores(q, k, v, document, 0.5F, o, &error), &error, p);
    int32_t ancestors[DRAFTS];
    for (int i = 0; i < DRAFTS; ++i) {
        ancestors[i] = 1 << i | (i > 0 ? ancestors[parents[i]] : 0);
    }
    p = usual, p.n = DRAFTS, p.score = of_drafts;
    compare("check_drafts", check_drafts(q, k, v, ancestors, o, &error), &error, p);
    p = usual, p.n = 1, p.s = CAPACITY, p.score = of_cache;
    compare("decode", decode(q, k, v, 77, o, &error), &error, p);
    for (int i = 0; i < COUNT; ++i) {
        grad_o[i] = 1;
    }
    clmgk_status status = dropout(q, k, v, grad_o, 7, o, lse, grad_v, &error);
    expect("dropout", status, &error, dropout_error());
    const float prior[] = {0.25F, 0.75F};
    status = half_the_heads(q, k, v, prior, v, o, lse, grad_q, grad_k, grad_v, grad_prior, &error);
    expect("half_the_heads", status, &error, half_error());
    status = without_denominators(q, k, v, o, &error);
    expect("without_denominators", status, &error, error_without_denominators());
    expect("make_layer", make_and_release_layer(&error), &error, 0);
    return failures > 0;
}
