/* SPDX-License-Identifier: Apache-2.0 */
#include "device/extents.h"

#include <string.h>

mgk_extent mgk_extent_of(int rank, const int64_t *size, const int64_t *stride, size_t element)
{
    mgk_extent extent = {.bytes = (int64_t)element, .run = (int64_t)element};
    for (int axis = 0; axis < rank; ++axis) {
        if (size[axis] == 0)
            return mgk_extent_dense(0);
        if (size[axis] == 1)
            continue;
        const int64_t bytes = stride[axis] * (int64_t)element;
        int at = extent.rank++;
        for (; at > 0 && extent.stride[at - 1] > bytes; --at) {
            extent.stride[at] = extent.stride[at - 1];
            extent.size[at] = extent.size[at - 1];
        }
        extent.stride[at] = bytes;
        extent.size[at] = size[axis];
        extent.bytes += (size[axis] - 1) * bytes;
    }
    int gaps = 0; /* innermost axes whose runs join without a gap */
    while (gaps < extent.rank && extent.stride[gaps] <= extent.run) {
        extent.run += (extent.size[gaps] - 1) * extent.stride[gaps];
        ++gaps;
    }
    extent.rank -= gaps;
    memmove(extent.size, extent.size + gaps, (size_t)extent.rank * sizeof(extent.size[0]));
    memmove(extent.stride, extent.stride + gaps, (size_t)extent.rank * sizeof(extent.stride[0]));
    return extent;
}

mgk_extent mgk_extent_dense(int64_t bytes)
{
    return (mgk_extent){.bytes = bytes, .run = bytes};
}

/* ---- search --------------------------------------------------------------------------------------------------- */

/* Most steps of a search; they take microseconds. */
enum { MOST_STEPS = 500 };

/* The distances of b's runs from a's: begin + sum x_l stride_l over least_l <= x_l <= most_l. Strides descend. */
typedef struct distances {
    int64_t low, high; /* runs at a distance of low .. high share a byte */
    int rank;
    int64_t stride[2 * MGK_EXTENT_AXES], least[2 * MGK_EXTENT_AXES], most[2 * MGK_EXTENT_AXES];
    int64_t reach_down[2 * MGK_EXTENT_AXES + 1], reach_up[2 * MGK_EXTENT_AXES + 1]; /* of the axes from l on */
    int steps;
} distances;

static int64_t div_down(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/* Axes of one stride are one axis: only the difference of their indices counts. */
static distances distances_of(const mgk_extent *a, const mgk_extent *b)
{
    distances d = {.low = 1 - b->run, .high = a->run - 1};
    int i = a->rank - 1, j = b->rank - 1;
    while (i >= 0 || j >= 0) {
        const bool of_a = j < 0 || (i >= 0 && a->stride[i] >= b->stride[j]);
        const bool of_b = i < 0 || (j >= 0 && b->stride[j] >= a->stride[i]);
        d.stride[d.rank] = of_a ? a->stride[i] : b->stride[j];
        d.least[d.rank] = of_a ? 1 - a->size[i--] : 0;
        d.most[d.rank++] = of_b ? b->size[j--] - 1 : 0;
    }
    for (int l = d.rank - 1; l >= 0; --l) {
        d.reach_down[l] = d.reach_down[l + 1] + d.least[l] * d.stride[l];
        d.reach_up[l] = d.reach_up[l + 1] + d.most[l] * d.stride[l];
    }
    return d;
}

/* Tries the indices of axis `l` with which the other axes may still reach low .. high. */
static bool find(distances *d, int l, int64_t begin)
{
    if (l == d->rank)
        return begin >= d->low && begin <= d->high;
    const int64_t lowest = -div_down(begin + d->reach_up[l + 1] - d->low, d->stride[l]);
    const int64_t highest = div_down(d->high - begin - d->reach_down[l + 1], d->stride[l]);
    int64_t x = lowest > d->least[l] ? lowest : d->least[l];
    for (; x <= highest && x <= d->most[l] && ++d->steps <= MOST_STEPS; ++x)
        if (find(d, l + 1, begin + x * d->stride[l]))
            return true;
    return false;
}

bool mgk_extents_meet(const mgk_extent *a, int64_t a_begin, const mgk_extent *b, int64_t b_begin)
{
    if (a->bytes == 0 || b->bytes == 0 || a_begin >= b_begin + b->bytes || b_begin >= a_begin + a->bytes)
        return false;
    distances d = distances_of(a, b);
    return find(&d, 0, b_begin - a_begin);
}
