/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theorem 1: softmax((W_k X)^T (W_q X) / sqrt(D)), over columns, is any positive column-stochastic P if D >= n, for X
 * [D,n] of full column rank; if D < n, there are X and P that it is not.
 */
#include "algebra.h"
#include "theorems.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define TOKENS 32 /* most */

/* ---- cases ------------------------------------------------------------------------------------------------------ */

/* A positive column-stochastic matrix: columns of exp(scale x), x normal. */
static void draw_matrix(theorem_random *random, int64_t n, double scale, double *p)
{
    double logits[TOKENS * TOKENS];
    theorem_normals(random, n * n, scale, logits);
    theorem_softmax(n, logits, p);
}

/* ---- D >= n: the proof's construction --------------------------------------------------------------------------- */

/* X^+ = (X^T X)^-1 X^T [n,D] of X [D,n]; false: X has no full column rank. */
static bool invert(int64_t n, int64_t size, const double *x, double *inverse)
{
    double gram[TOKENS * TOKENS], right[2 * TOKENS * TOKENS];
    bool solved = false;
    theorem_product(n, size, n, x, true, x, false, gram);
    for (int64_t n_d = 0; n_d < n * size; n_d++)
        right[n_d] = x[n_d];
    /* [D,n] by rows is n x D by columns: one right side for each row of X */
    algebra_solve(n, size, gram, right, &solved);
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < size; d++)
            inverse[j * size + d] = right[d * n + j];
    return solved;
}

/* W_k = [I; 0] X^+ and W_q = [sqrt(D) log(P D_0); 0] X^+, then Q^T and K^T as the device takes them, [n,D] in f32. D_0
 * makes each column's logarithms sum to 0. Returns the largest |logit|. */
static double construct(theorem_random *random, int64_t n, int64_t size, const double *p, float *q, float *k)
{
    double x[2 * TOKENS * TOKENS], inverse[2 * TOKENS * TOKENS], logits[TOKENS * TOKENS], weights[4 * TOKENS * TOKENS],
        projected[2 * TOKENS * TOKENS];
    double largest = 0.0;
    do
        theorem_normals(random, size * n, 1.0, x);
    while (!invert(n, size, x, inverse));
    for (int64_t i = 0; i < n; i++) {
        double mean = 0.0;
        for (int64_t j = 0; j < n; j++)
            mean += log(p[j * n + i]) / (double)n;
        for (int64_t j = 0; j < n; j++) {
            const double logit = log(p[j * n + i]) - mean;
            logits[j * n + i] = sqrt((double)size) * logit;
            largest = fmax(largest, fabs(logit));
        }
    }
    for (int side = 0; side < 2; side++) { /* keys, queries; only the first n rows of W are not 0 */
        float *const to = side ? q : k;
        theorem_product(n, n, size, logits, false, inverse, false, weights);
        theorem_product(n, size, n, side ? weights : inverse, false, x, false, projected);
        for (int64_t t = 0; t < n; t++)
            for (int64_t d = 0; d < size; d++)
                to[t * size + d] = d < n ? (float)projected[d * n + t] : 0.0F;
    }
    return largest;
}

/* Attention with V = I: O[b,i,j] is P_ji. */
static tool_exit run_on_device(const char *device, int64_t trials, int64_t n, int64_t size, const float *q,
                               const float *k, float *o, tool_error *error)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
    float *const v = calloc((size_t)(trials * n * n), sizeof *v);
    TOOL_TRY(tool_check_memory(v, "--theorems", error));
    for (int64_t t = 0; t < trials * n; t++)
        v[t * n + t % n] = 1.0F;
    desc.variant = CLMGK_VARIANT_SOFTMAX;
    desc.batch = trials;
    desc.heads = 1;
    desc.length = n;
    desc.head_size = size;
    desc.value_size = n;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = o;
    const clmgk_status status = clmgk_attention_forward_host(device, &desc, &args, &error->library);
    free(v);
    return tool_check_library(status, error);
}

/* The limit: 16 roundings of a logit, and of its exponential, 1 + |logit| units each. */
static tool_exit solve_constructed(const analyze_arguments *arguments, theorem_random *random, theorem1_case *one,
                                   tool_error *error)
{
    const int64_t n = arguments->tokens, size = one->head_size, trials = arguments->trials;
    const size_t matrix = (size_t)(n * n), heads = (size_t)(n * size);
    static const double scales[] = {0.5, 1.0, 2.0, 4.0};
    float *const q = malloc((size_t)trials * (2 * heads + matrix) * sizeof(float));
    double *const p = malloc((size_t)trials * matrix * sizeof(double));
    double largest = 0.0;
    tool_exit status = q && p ? TOOL_DONE : tool_fail_memory(error, "--theorems");
    if (status != TOOL_DONE)
        goto done;
    float *const k = q + (size_t)trials * heads, *const o = k + (size_t)trials * heads;
    for (int64_t t = 0; t < trials; t++) {
        double *const target = p + (size_t)t * matrix;
        draw_matrix(random, n, scales[(size_t)t % TOOL_COUNT(scales)], target);
        largest = fmax(largest, construct(random, n, size, target, q + (size_t)t * heads, k + (size_t)t * heads));
    }
    TOOL_TRY_GOTO(status, run_on_device(arguments->device, trials, n, size, q, k, o, error), done);
    for (int64_t t = 0; t < trials; t++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                const double found = (double)o[(size_t)t * matrix + (size_t)(i * n + j)];
                one->error = fmax(one->error, fabs(found - p[(size_t)t * matrix + (size_t)(j * n + i)]));
            }
    one->bound = 16.0 * 0.5 * (double)FLT_EPSILON * (1.0 + largest);
    one->ok = one->error <= one->bound;
done:
    free(q);
    free(p);
    return status;
}

/* ---- D < n: the best weights ------------------------------------------------------------------------------------ */

/* With B [D,n] an orthonormal basis of X's rows, logits are B^T W B for any W [D,D]. The Kullback-Leibler divergence of
 * P from their softmax is convex in W: Newton's method finds its least value. */

typedef struct fit {
    int64_t n, size;
    const double *basis, *target;
    double w[TOKENS * TOKENS], p[TOKENS * TOKENS];
} fit;

/* The divergence but for a constant; sets p. */
static double divergence(fit *own, const double *w)
{
    double half[TOKENS * TOKENS], logits[TOKENS * TOKENS], sum = 0.0;
    theorem_product(own->size, own->size, own->n, w, false, own->basis, false, half);
    theorem_product(own->n, own->size, own->n, own->basis, true, half, false, logits);
    theorem_softmax(own->n, logits, own->p);
    for (int64_t e = 0; e < own->n * own->n; e++)
        sum -= own->target[e] * log(fmax(own->p[e], DBL_MIN));
    return sum;
}

/* B (p - P) B^T */
static double fill_gradient(const fit *own, double *gradient)
{
    double difference[TOKENS * TOKENS], half[TOKENS * TOKENS], largest = 0.0;
    for (int64_t e = 0; e < own->n * own->n; e++)
        difference[e] = own->p[e] - own->target[e];
    theorem_product(own->n, own->n, own->size, difference, false, own->basis, true, half);
    theorem_product(own->size, own->n, own->size, own->basis, false, half, false, gradient);
    for (int64_t e = 0; e < own->size * own->size; e++)
        largest = fmax(largest, fabs(gradient[e]));
    return largest;
}

/* B (diag p_i - p_i p_i^T) B^T, of query i */
static void fill_covariance(const fit *own, int64_t i, double *covariance)
{
    const int64_t n = own->n, size = own->size;
    double mean[TOKENS] = {0.0};
    for (int64_t a = 0; a < size; a++)
        for (int64_t j = 0; j < n; j++)
            mean[a] += own->basis[a * n + j] * own->p[j * n + i];
    for (int64_t a = 0; a < size; a++)
        for (int64_t c = 0; c < size; c++) {
            double sum = -mean[a] * mean[c];
            for (int64_t j = 0; j < n; j++)
                sum += own->basis[a * n + j] * own->basis[c * n + j] * own->p[j * n + i];
            covariance[a * size + c] = sum;
        }
}

static void fill_hessian(const fit *own, double *hessian)
{
    const int64_t size = own->size, unknowns = size * size;
    double covariance[TOKENS * TOKENS];
    for (int64_t e = 0; e < unknowns * unknowns; e++)
        hessian[e] = 0.0;
    for (int64_t i = 0; i < own->n; i++) {
        fill_covariance(own, i, covariance);
        for (int64_t row = 0; row < unknowns; row++)
            for (int64_t column = 0; column < unknowns; column++)
                hessian[row * unknowns + column] += covariance[row / size * size + column / size] *
                                                    own->basis[row % size * own->n + i] *
                                                    own->basis[column % size * own->n + i];
    }
    for (int64_t e = 0; e < unknowns; e++) /* where saturated columns leave it singular */
        hessian[e * unknowns + e] += 1e-12;
}

/* A step along -direction that makes the divergence smaller; false: there is none. */
static bool step(fit *own, const double *direction, double *value)
{
    enum { HALVINGS = 30 };
    double next[TOKENS * TOKENS];
    for (int n = 0; n < HALVINGS; n++) {
        const double length = ldexp(1.0, -n);
        for (int64_t e = 0; e < own->size * own->size; e++)
            next[e] = own->w[e] - length * direction[e];
        const double found = divergence(own, next);
        if (found < *value) {
            for (int64_t e = 0; e < own->size * own->size; e++)
                own->w[e] = next[e];
            *value = found;
            return true;
        }
    }
    divergence(own, own->w);
    return false;
}

/* Returns the largest element of the gradient at the end. `hessian`: room for D^4 numbers. */
static double minimise(fit *own, double *hessian)
{
    enum { STEPS = 60 };
    static const double flat = 1e-11;
    double direction[TOKENS * TOKENS] = {0.0};
    bool going = true;
    for (int64_t e = 0; e < own->size * own->size; e++)
        own->w[e] = 0.0;
    double value = divergence(own, own->w), slope = fill_gradient(own, direction);
    for (int n = 0; n < STEPS && going && slope > flat; n++) {
        bool solved = false;
        fill_hessian(own, hessian);
        algebra_solve(own->size * own->size, 1, hessian, direction, &solved);
        going = solved && step(own, direction, &value);
        slope = fill_gradient(own, direction);
    }
    return slope;
}

static double distance_of(const fit *own)
{
    double largest = 0.0;
    for (int64_t e = 0; e < own->n * own->n; e++)
        largest = fmax(largest, fabs(own->p[e] - own->target[e]));
    return largest;
}

/* ---- D < n: what no weights can go below ------------------------------------------------------------------------ */

/*
 * Take z with X z = 0. Logits times z are 0, so sum_i z_i log p_ji is the same for all keys j, whatever the weights. If
 * P has g = sum_i z_i (log P_ji - log P_j'i) != 0, and no element of p is further than d from P's, then
 *     |g| <= sum_i |z_i| (-log(1 - d / P_ji) - log(1 - d / P_j'i)),
 * which bounds d from below.
 */

static double room_for(const fit *own, const double *z, int64_t j, int64_t other, double d)
{
    double sum = 0.0;
    for (int64_t i = 0; i < own->n; i++)
        sum -= fabs(z[i]) * (log1p(-d / own->target[j * own->n + i]) + log1p(-d / own->target[other * own->n + i]));
    return sum;
}

static double least_of_keys(const fit *own, const double *z, int64_t j, int64_t other)
{
    enum { HALVINGS = 60 };
    double gap = 0.0, low = 0.0, high = 1.0;
    for (int64_t i = 0; i < own->n; i++) {
        const double a = own->target[j * own->n + i], b = own->target[other * own->n + i];
        gap += z[i] * (log(a) - log(b));
        high = fmin(high, fmin(a, b));
    }
    for (int n = 0; n < HALVINGS; n++) {
        const double middle = 0.5 * (low + high);
        if (room_for(own, z, j, other, middle) < fabs(gap))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The largest bound over pairs of keys, for the parts of the unit vectors that X maps to 0. */
static double least_distance(const fit *own)
{
    const int64_t n = own->n;
    double best = 0.0;
    for (int64_t unit = 0; unit < n; unit++) {
        double z[TOKENS];
        for (int64_t i = 0; i < n; i++) {
            z[i] = i == unit ? 1.0 : 0.0;
            for (int64_t d = 0; d < own->size; d++)
                z[i] -= own->basis[d * n + i] * own->basis[d * n + unit];
        }
        for (int64_t j = 1; j < n; j++)
            best = fmax(best, least_of_keys(own, z, j, j - 1));
    }
    return best;
}

/* ---- D < n: together -------------------------------------------------------------------------------------------- */

/* Orthonormal rows of the same span, by Gram and Schmidt, twice. */
static void make_basis(int64_t n, int64_t size, double *x)
{
    for (int64_t d = 0; d < size; d++) {
        double *const row = x + d * n;
        for (int64_t before = 0; before < 2 * d; before++) {
            const double *const other = x + before % d * n;
            double product = 0.0;
            for (int64_t i = 0; i < n; i++)
                product += row[i] * other[i];
            for (int64_t i = 0; i < n; i++)
                row[i] -= product * other[i];
        }
        double squares = 0.0;
        for (int64_t i = 0; i < n; i++)
            squares += row[i] * row[i];
        for (int64_t i = 0; i < n; i++)
            row[i] /= sqrt(squares);
    }
}

static tool_exit solve_bounded(const analyze_arguments *arguments, theorem_random *random, theorem1_case *one,
                               tool_error *error)
{
    const int64_t n = arguments->tokens, size = one->head_size, trials = arguments->trials;
    double *const hessian = calloc((size_t)(size * size * size * size), sizeof *hessian);
    TOOL_TRY(tool_check_memory(hessian, "--theorems", error));
    one->distance_min = one->least_min = INFINITY;
    for (int64_t t = 0; t < trials; t++) {
        double basis[TOKENS * TOKENS], target[TOKENS * TOKENS];
        fit own = {.n = n, .size = size, .basis = basis, .target = target};
        theorem_normals(random, size * n, 1.0, basis);
        make_basis(n, size, basis);
        draw_matrix(random, n, 1.0, target);
        one->gradient = fmax(one->gradient, minimise(&own, hessian));
        const double distance = distance_of(&own), least = least_distance(&own);
        one->distance_min = fmin(one->distance_min, distance);
        one->distance_mean += distance / (double)trials;
        one->least_min = fmin(one->least_min, least);
        one->least_mean += least / (double)trials;
    }
    free(hessian);
    return TOOL_DONE;
}

/* D = 1, n = 2, X = [1, 0], P = [0.5 0.75; 0.5 0.25]: the second column of every softmax is (0.5, 0.5). */
static void solve_paper_example(theorem1_result *result)
{
    static const double basis[] = {1.0, 0.0}, target[] = {0.5, 0.75, 0.5, 0.25};
    fit own = {.n = 2, .size = 1, .basis = basis, .target = target};
    double hessian[1];
    minimise(&own, hessian);
    result->paper_distance = distance_of(&own);
    result->paper_least = least_distance(&own);
}

/* Checks that the bound of every D < n is above the distance that every D >= n reaches. */
static void judge(theorem1_result *result)
{
    double reached = 0.0;
    for (int64_t c = 0; c < result->count; c++)
        reached = result->one[c].constructed ? fmax(reached, result->one[c].error) : reached;
    result->ok = result->paper_least > reached && result->paper_distance >= result->paper_least;
    for (int64_t c = 0; c < result->count; c++) {
        theorem1_case *const one = &result->one[c];
        if (!one->constructed)
            one->ok = one->least_min > reached && one->distance_min >= one->least_min;
        result->ok = result->ok && one->ok;
    }
}

tool_exit theorem1_solve(const analyze_arguments *arguments, theorem1_result *result, tool_error *error)
{
    const int64_t n = arguments->tokens;
    const int64_t above[] = {n, n + (n + 1) / 2, 2 * n};
    theorem_random random = {.seed = arguments->seed, .stream = 1};
    *result = (theorem1_result){.count = 0};
    for (size_t c = 0; c < TOOL_COUNT(above); c++) {
        theorem1_case *const one = &result->one[n - 1 + (int64_t)c];
        *one = (theorem1_case){.head_size = above[c], .constructed = true};
        TOOL_TRY(solve_constructed(arguments, &random, one, error));
    }
    for (int64_t size = 1; size < n; size++) {
        theorem1_case *const one = &result->one[size - 1];
        *one = (theorem1_case){.head_size = size};
        TOOL_TRY(solve_bounded(arguments, &random, one, error));
    }
    result->count = n - 1 + (int64_t)TOOL_COUNT(above);
    solve_paper_example(result);
    judge(result);
    return TOOL_DONE;
}
