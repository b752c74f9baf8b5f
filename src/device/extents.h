/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of strided arrays, and whether two arrays share some. */
#ifndef MGK_EXTENTS_H
#define MGK_EXTENTS_H

#include "base/base.h"

enum { MGK_EXTENT_AXES = 5 };

/* The bytes of an array, counted from its first element: runs of contiguous bytes, repeated along the axes. */
typedef struct mgk_extent {
    int64_t bytes; /* to the end of the last element; 0: no elements */
    int64_t run;   /* bytes of a run */
    int rank;
    int64_t size[MGK_EXTENT_AXES];
    int64_t stride[MGK_EXTENT_AXES]; /* in bytes, ascending */
} mgk_extent;

/* The extent of an array with at most MGK_EXTENT_AXES axes and strides in elements of `element` bytes. The offset of
 * its last byte must fit in 64 bits. */
mgk_extent mgk_extent_of(int rank, const int64_t *size, const int64_t *stride, size_t element);

/* The extent of contiguous bytes. */
mgk_extent mgk_extent_dense(int64_t bytes);

/* True if the arrays that begin at bytes `a_begin` and `b_begin` of a buffer share a byte. Exact, except for arrays
 * interleaved in more ways than their axes nest: there the bounded search may miss a shared byte. */
bool mgk_extents_meet(const mgk_extent *a, int64_t a_begin, const mgk_extent *b, int64_t b_begin);

#endif
