/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The feature maps, in numbers of type REAL: included once for each. NAME(x) names functions, EXP, SQRT, LOG and FABS
 * are REAL's; DOT(count, x, y) is a sum of products.
 */

/* relu(NaN) is NaN. */
static REAL NAME(relu)(REAL x)
{
    return x <= 0 ? 0 : x;
}

/* dpfp's r_m of x, m = 0 .. 2 D - 1, and where its partner in block i of the features stands. */
static REAL NAME(half)(const ref_map *map, const REAL *x, int64_t m)
{
    return NAME(relu)(m < map->size ? x[m] : -x[m - map->size]);
}

static void NAME(dpfp)(const ref_map *map, const REAL *x, REAL *out)
{
    for (int64_t f = 0; f < map->features; f++)
        out[f] = NAME(half)(map, x, f % (2 * map->size)) * NAME(half)(map, x, partner(map, f));
}

/* d r_m / d x_d, d = m or m - D */
static REAL NAME(half_slope)(const ref_map *map, const REAL *x, int64_t m, bool sizes)
{
    if (NAME(half)(map, x, m) == 0)
        return 0;
    return m < map->size || sizes ? 1 : -1;
}

static void NAME(dpfp_add)(const ref_map *map, const REAL *x, const REAL *grad, bool sizes, REAL *grad_x)
{
    for (int64_t f = 0; f < map->features; f++) {
        const int64_t m = f % (2 * map->size), n = partner(map, f);
        grad_x[m % map->size] += grad[f] * NAME(half)(map, x, n) * NAME(half_slope)(map, x, m, sizes);
        grad_x[n % map->size] += grad[f] * NAME(half)(map, x, m) * NAME(half_slope)(map, x, n, sizes);
    }
}

/* Exponents w_f . y - |y|^2 / 2 - log(R) / 2, y = x / D^(1/4). */
static void NAME(favor)(const ref_map *map, const REAL *projection, ORDER order, const REAL *x, REAL *out)
{
    const REAL root = SQRT((REAL)map->size);
    const REAL less = DOT(map->size, x, x) / root / 2 + LOG((REAL)map->features) / 2;
    (void)order;
    for (int64_t f = 0; f < map->features; f++)
        out[f] = DOT(map->size, projection + f * map->size, x) / SQRT(root) - less;
}

/* The maps but favor. */
static void NAME(apply)(const ref_map *map, const REAL *x, REAL *out)
{
    if (map->kind == CLMGK_FEATURE_DPFP) {
        NAME(dpfp)(map, x, out);
        return;
    }
    for (int64_t f = 0; f < map->features; f++)
        if (map->kind == CLMGK_FEATURE_ELU1)
            out[f] = x[f] > 0 ? x[f] + 1 : EXP(x[f]);
        else
            out[f] = map->kind == CLMGK_FEATURE_RELU ? NAME(relu)(x[f]) + (REAL)map->epsilon : x[f];
}

static void NAME(add)(const ref_map *map, const REAL *x, const REAL *grad, bool sizes, REAL *grad_x)
{
    if (map->kind == CLMGK_FEATURE_DPFP) {
        NAME(dpfp_add)(map, x, grad, sizes, grad_x);
        return;
    }
    for (int64_t f = 0; f < map->features; f++)
        if (map->kind == CLMGK_FEATURE_ELU1)
            grad_x[f] += x[f] > 0 ? grad[f] : grad[f] * EXP(x[f]);
        else
            grad_x[f] += map->kind == CLMGK_FEATURE_RELU && x[f] <= 0 ? 0 : grad[f];
}
