/* SPDX-License-Identifier: Apache-2.0 */
/* The feature maps of the linear family (clmgk/variants.h), exact and in f32. */
#include "reference/linear.h"

ref_map ref_map_of(const clmgk_ref_problem *problem)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    return (ref_map){.kind = desc->feature,
                     .shifted = desc->feature == CLMGK_FEATURE_EXP || desc->feature == CLMGK_FEATURE_FAVOR,
                     .norm = desc->feature == CLMGK_FEATURE_FAVOR ? log((double)desc->features) / 2.0 : 0.0,
                     .size = desc->head_size,
                     .epsilon = desc->feature_epsilon,
                     .features = desc->features,
                     .projection = problem->projection};
}

/* dpfp: feature 2 D (i - 1) + m is r_m r_n, n = m - i mod 2 D. */
static int64_t partner(const ref_map *map, int64_t f)
{
    const int64_t halves = 2 * map->size, i = f / halves + 1;
    return (f % halves + 2 * halves - i) % halves;
}

#define REAL    double
#define NAME(x) x##_exact
#define ORDER   int
#define EXP     exp
#define SQRT    sqrt
#define LOG     log
#define DOT     dot_exact

static double dot_exact(int64_t count, const double *x, const double *y)
{
    double sum = 0.0;
    for (int64_t n = 0; n < count; n++)
        sum += x[n] * y[n];
    return sum;
}

#include "reference/feature_maps.h"

#undef REAL
#undef NAME
#undef ORDER
#undef EXP
#undef SQRT
#undef LOG
#undef DOT
#define REAL             float
#define NAME(x)          x##_plain
#define ORDER            ref_order
#define EXP              expf
#define SQRT             sqrtf
#define LOG              logf
#define DOT(count, x, y) ref_sum_of_products(count, x, y, order)

#include "reference/feature_maps.h"

void ref_map_apply(const ref_map *map, const double *x, double *out)
{
    if (map->kind == CLMGK_FEATURE_FAVOR)
        favor_exact(map, map->projection, 0, x, out);
    else
        apply_exact(map, x, out);
}

/* d favor_f / d x_d = w_fd / D^(1/4) - x_d / D^(1/2) */
static void favor_add(const ref_map *map, const double *x, const double *grad, bool sizes, double *grad_x)
{
    const double root = sqrt((double)map->size);
    for (int64_t f = 0; f < map->features; f++)
        for (int64_t d = 0; d < map->size; d++) {
            const double up = map->projection[f * map->size + d] / sqrt(root), down = x[d] / root;
            grad_x[d] += grad[f] * (sizes ? fabs(up) + fabs(down) : up - down);
        }
}

void ref_map_add(const ref_map *map, const double *x, const double *grad, bool sizes, double *grad_x)
{
    if (map->kind == CLMGK_FEATURE_FAVOR)
        favor_add(map, x, grad, sizes, grad_x);
    else
        add_exact(map, x, grad, sizes, grad_x);
}

void ref_plain_map_apply(const ref_map *map, const float *projection, ref_order order, const float *x, float *out)
{
    if (map->kind == CLMGK_FEATURE_FAVOR)
        favor_plain(map, projection, order, x, out);
    else
        apply_plain(map, x, out);
}

void ref_plain_map_back(const ref_map *map, const float *projection, ref_order order, const float *x, const float *grad,
                        float *grad_x)
{
    const float root = sqrtf((float)map->size);
    if (map->kind != CLMGK_FEATURE_FAVOR) {
        for (int64_t d = 0; d < map->size; d++)
            grad_x[d] = 0.0F;
        add_plain(map, x, grad, false, grad_x);
        return;
    }
    const ref_terms terms = {REF_TERM_PRODUCT, map->features, map->size, grad, 1, projection, map->size, NULL};
    const float total = ref_sum_of(map->features, grad, order);
    ref_sum(&terms, order, grad_x);
    for (int64_t d = 0; d < map->size; d++)
        grad_x[d] = grad_x[d] / sqrtf(root) - total * x[d] / root;
}
