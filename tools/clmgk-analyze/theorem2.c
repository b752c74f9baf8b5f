/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theorem 2: attention with heads of a fixed size d_p > d / h is strictly more than with heads of size r = d / h. With
 * C_i = W_o^i W_v^i and M_i = (W_k^i)^T W_q^i, both are
 *     f(X) = sum_i C_i X softmax(X^T M_i X / sqrt(size)),
 * and g has heads of size d_p, sum_i C_i of full rank and one M_i = U of rank d_p. Each case of the proof says which X
 * tells f from g.
 */
#include "theorems.h"

#include <math.h>

enum {
    WIDTH = THEOREM2_WIDTH,
    HEADS = THEOREM2_HEADS,
    SMALL = WIDTH / HEADS,
    LARGE = THEOREM2_HEAD_SIZE,
    TOKENS = 4,
    SQUARE = WIDTH * WIDTH,
    BLOCK = WIDTH * TOKENS, /* of an X */
    NARROW = SMALL * WIDTH, /* of a small head's projection */
    WIDE = LARGE * WIDTH
};

typedef struct layer {
    double c[HEADS][SQUARE]; /* C_i */
    double m[HEADS][SQUARE]; /* M_i / sqrt(size) */
} layer;

static void apply(const layer *own, const double *x, double *out)
{
    for (int64_t e = 0; e < BLOCK; e++)
        out[e] = 0.0;
    for (int64_t h = 0; h < HEADS; h++) {
        double half[BLOCK], logits[TOKENS * TOKENS], p[TOKENS * TOKENS], mixed[BLOCK], part[BLOCK];
        theorem_product(WIDTH, WIDTH, TOKENS, own->m[h], false, x, false, half);
        theorem_product(TOKENS, WIDTH, TOKENS, x, true, half, false, logits);
        theorem_softmax(TOKENS, logits, p);
        theorem_product(WIDTH, TOKENS, TOKENS, x, false, p, false, mixed);
        theorem_product(WIDTH, WIDTH, TOKENS, own->c[h], false, mixed, false, part);
        for (int64_t e = 0; e < BLOCK; e++)
            out[e] += part[e];
    }
}

/* |f - g| / |g| */
static double difference(const layer *f, const layer *g, const double *x)
{
    double of_f[BLOCK], of_g[BLOCK], squares = 0.0, whole = 0.0;
    apply(f, x, of_f);
    apply(g, x, of_g);
    for (int64_t e = 0; e < BLOCK; e++) {
        squares += (of_f[e] - of_g[e]) * (of_f[e] - of_g[e]);
        whole += of_g[e] * of_g[e];
    }
    return sqrt(squares / whole);
}

/* A^T B / sqrt(size), A and B random [size,WIDTH]. */
static void draw_scores(theorem_random *random, int size, double *m)
{
    double a[WIDE], b[WIDE];
    theorem_normals(random, (int64_t)size * WIDTH, 1.0 / sqrt((double)WIDTH), a);
    theorem_normals(random, (int64_t)size * WIDTH, 1.0 / sqrt((double)size), b);
    theorem_product(WIDTH, size, WIDTH, a, true, b, false, m);
}

/* W_o^i W_v^i with a head of `size`. */
static void draw_values(theorem_random *random, int size, double *c)
{
    double o[WIDE], v[WIDE];
    theorem_normals(random, (int64_t)size * WIDTH, 1.0, o);
    theorem_normals(random, (int64_t)size * WIDTH, 1.0, v);
    theorem_product(WIDTH, size, WIDTH, o, false, v, false, c);
}

static void draw_fixed(theorem_random *random, layer *g)
{
    for (int64_t h = 0; h < HEADS; h++) {
        draw_values(random, LARGE, g->c[h]);
        if (h == 0)
            draw_scores(random, LARGE, g->m[0]);
        for (int64_t e = 0; e < SQUARE; e++)
            g->m[h][e] = g->m[0][e];
    }
}

static void draw_small(theorem_random *random, layer *f)
{
    for (int64_t h = 0; h < HEADS; h++) {
        draw_values(random, SMALL, f->c[h]);
        draw_scores(random, SMALL, f->m[h]);
    }
}

/* Makes sum_i C_i equal to g's: head i gets its columns i r .. i r + r - 1, which fit a head of size r. */
static void share_values(const layer *g, layer *f)
{
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t e = 0; e < SQUARE; e++) {
            double sum = 0.0;
            for (int64_t other = 0; other < HEADS; other++)
                sum += g->c[other][e];
            f->c[h][e] = e % WIDTH / SMALL == h ? sum : 0.0;
        }
}

/* Case 1: the sums of C_i differ. X = v 1^T: attention gives v, whatever it attends to. */
static double solve_values(theorem_random *random, const layer *g, layer *f)
{
    double v[WIDTH], x[BLOCK];
    draw_small(random, f);
    theorem_normals(random, WIDTH, 1.0, v);
    for (int64_t e = 0; e < BLOCK; e++)
        x[e] = v[e / TOKENS];
    return difference(f, g, x);
}

/* Case 2: the sums are equal, and some U / sqrt(d_p) - M_i / sqrt(r) is not skew-symmetric. X = [v 0 ... 0]: the first
 * token attends to itself by exp(v^T M v), which differs. */
static double solve_symmetric(theorem_random *random, const layer *g, layer *f)
{
    double x[BLOCK] = {0.0};
    draw_small(random, f);
    share_values(g, f);
    for (int64_t d = 0; d < WIDTH; d++)
        x[d * TOKENS] = theorem_normal(random);
    return difference(f, g, x);
}

static void multiply(const double *m, const double *v, double *out)
{
    double squares = 0.0;
    theorem_product(WIDTH, WIDTH, 1, m, false, v, false, out);
    for (int64_t d = 0; d < WIDTH; d++)
        squares += out[d] * out[d];
    for (int64_t d = 0; d < WIDTH; d++)
        out[d] /= sqrt(squares);
}

/* Case 3: the sums are equal, and all those differences are skew-symmetric: M_i = A^T B, U its symmetric part, of twice
 * its rank. X = [v, alpha w, 0 ...] with w^T U v > 0 and w^T M v < 0: as alpha grows, g attends to the second token and
 * f does not. */
static double solve_skew(theorem_random *random, layer *g, layer *f)
{
    double v[WIDTH], by_g[WIDTH], by_f[WIDTH], x[BLOCK] = {0.0}, largest = 0.0;
    enum { DOUBLINGS = 8 };
    share_values(g, f);
    draw_scores(random, SMALL, f->m[0]);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t e = 0; e < SQUARE; e++) {
            f->m[h][e] = f->m[0][e];
            g->m[h][e] = 0.5 * (f->m[0][e] + f->m[0][e % WIDTH * WIDTH + e / WIDTH]);
        }
    theorem_normals(random, WIDTH, 1.0, v);
    multiply(g->m[0], v, by_g);
    multiply(f->m[0], v, by_f);
    for (int64_t n = 0; n < DOUBLINGS; n++) {
        for (int64_t d = 0; d < WIDTH; d++) {
            x[d * TOKENS] = v[d];
            x[d * TOKENS + 1] = ldexp(by_g[d] - by_f[d], (int)n);
        }
        largest = fmax(largest, difference(f, g, x));
    }
    return largest;
}

/* Conversely a head of size r is one of size d_p whose other rows are 0, with larger queries against the larger root:
 * C_i and M_i / sqrt(size) are the same. Drawn, widened and applied as both. */
static double solve_inclusion(theorem_random *random, layer *f, layer *g)
{
    double x[BLOCK];
    for (int64_t h = 0; h < HEADS; h++) {
        double q[WIDE] = {0.0}, k[WIDE] = {0.0};
        theorem_normals(random, NARROW, 1.0, q);
        theorem_normals(random, NARROW, 1.0, k);
        draw_values(random, SMALL, f->c[h]);
        theorem_product(WIDTH, SMALL, WIDTH, k, true, q, false, f->m[h]);
        for (int64_t e = 0; e < NARROW; e++)
            q[e] *= sqrt((double)LARGE / (double)SMALL);
        theorem_product(WIDTH, LARGE, WIDTH, k, true, q, false, g->m[h]);
        for (int64_t e = 0; e < SQUARE; e++) {
            g->c[h][e] = f->c[h][e];
            f->m[h][e] /= sqrt((double)SMALL);
            g->m[h][e] /= sqrt((double)LARGE);
        }
    }
    theorem_normals(random, BLOCK, 1.0, x);
    return difference(g, f, x);
}

void theorem2_solve(const analyze_arguments *arguments, theorem2_result *result)
{
    static const double distinct = 1e-6, equal = 1e-12;
    theorem_random random = {.seed = arguments->seed, .stream = 2};
    *result = (theorem2_result){.difference = {INFINITY, INFINITY, INFINITY}};
    for (int64_t t = 0; t < arguments->trials; t++) {
        layer f, g;
        draw_fixed(&random, &g);
        result->difference[0] = fmin(result->difference[0], solve_values(&random, &g, &f));
        result->difference[1] = fmin(result->difference[1], solve_symmetric(&random, &g, &f));
        result->difference[2] = fmin(result->difference[2], solve_skew(&random, &g, &f));
        result->inclusion = fmax(result->inclusion, solve_inclusion(&random, &f, &g));
    }
    result->ok = result->inclusion < equal;
    for (int64_t c = 0; c < THEOREM2_CASES; c++)
        result->ok = result->ok && result->difference[c] > distinct;
}
