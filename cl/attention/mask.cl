/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classifies blocks of pairs by a user's mask: whether it hides all pairs of a block, or none, as far as the ranges of
 * their positions, and of the elements of captured arrays that they read, tell. A work-item has a block.
 */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_mask_args
#define BUFFERS   MGK_MASK_BUFFERS
#include "base/buffers.clh"

#include "attention/block.clh"
#include "attention/float_ranges.clh"

/* Elements of a captured array: the first and the last place of each axis, in elements, and how many there are. The
 * array's axes are the last ones. */
typedef struct read_box {
    mgk_i64 first[MGK_CAPTURE_AXES], last[MGK_CAPTURE_AXES], stride[MGK_CAPTURE_AXES];
    mgk_i64 count;
} read_box;

/* Those with indices in these ranges, one for each of `axes` axes: an index is clamped to its axis. */
FUNCTION read_box box_of(__global const mgk_capture *array, int axes, mgk_i64 most, const mod_range *index)
{
    read_box box;
    box.count = 1;
    for (int n = 0; n < MGK_CAPTURE_AXES; ++n) {
        const int axis = n - (MGK_CAPTURE_AXES - axes);
        const mgk_i64 end = axis < 0 ? 0 : array->extent[axis] - 1;
        const mgk_i64 low = axis < 0 ? 0 : clamp(index[axis].low, (mgk_i64)0, end);
        const mgk_i64 high = axis < 0 ? 0 : clamp(index[axis].high, (mgk_i64)0, end);
        box.stride[n] = axis < 0 ? 1 : array->stride[axis];
        box.first[n] = low * box.stride[n];
        box.last[n] = high * box.stride[n];
        box.count = min(box.count * (high - low + 1), most + 1); /* counts of three axes may not fit */
        box.stride[n] = max(box.stride[n], (mgk_i64)1);          /* an axis of stride 0 has one element */
    }
    return box;
}

#define BOX_FOR(x, box, n) for (mgk_i64 x = box.first[n]; x <= box.last[n]; x += box.stride[n])

/* read_range_<k>: the range of those elements of captured array k; any, if there are more than `most`. `join` adds the
 * element v to `found`. */
#define READ_RANGE(name, result, any, nothing, join, scalar, element, load)                                            \
    FUNCTION result name(__global const mgk_capture *array, __global const element *p, mgk_i64 most, int axes,         \
                         mod_range i, mod_range j, mod_range k, mod_range l)                                           \
    {                                                                                                                  \
        const mod_range index[MGK_CAPTURE_AXES] = {i, j, k, l};                                                        \
        const read_box box = box_of(array, axes, most, index);                                                         \
        if (box.count > most)                                                                                          \
            return any;                                                                                                \
        result found = nothing;                                                                                        \
        BOX_FOR(w, box, 0)                                                                                             \
        BOX_FOR(x, box, 1)                                                                                             \
        BOX_FOR(y, box, 2)                                                                                             \
        BOX_FOR(z, box, 3)                                                                                             \
        {                                                                                                              \
            const scalar v = load(p + w + x + y + z);                                                                  \
            join;                                                                                                      \
        }                                                                                                              \
        return found;                                                                                                  \
    }

#define JOIN_INT   found = range_of(min(found.low, (mgk_i64)v), max(found.high, (mgk_i64)v))
#define JOIN_FLOAT found = floats_join(found, floats_at(v))
#define NO_INTS    range_of(INT_MAX, INT_MIN)
#define NO_FLOATS                                                                                                      \
    {                                                                                                                  \
        INFINITY, -INFINITY, false                                                                                     \
    }

#define INT_AT(p) *(p)
#define READ_RANGE_0(name)
#define READ_FLOATS(name, element, load)                                                                               \
    READ_RANGE(name, mod_float_range, floats_any(), NO_FLOATS, JOIN_FLOAT, float, element, load)
#define READ_RANGE_1(name)     READ_FLOATS(name, float, LOAD_0)
#define READ_RANGE_2(name)     READ_FLOATS(name, half, LOAD_1)
#define READ_RANGE_3(name)     READ_FLOATS(name, ushort, LOAD_2)
#define READ_RANGE_4(name)     READ_RANGE(name, mod_range, range_any(), NO_INTS, JOIN_INT, int, int, INT_AT)
#define READ_RANGE_OF(k, type) CAT(READ_RANGE_, type)(CAT(read_range_, k))
READ_RANGE_OF(0, CAPTURE_TYPE_0)
READ_RANGE_OF(1, CAPTURE_TYPE_1)
READ_RANGE_OF(2, CAPTURE_TYPE_2)
READ_RANGE_OF(3, CAPTURE_TYPE_3)
READ_RANGE_OF(4, CAPTURE_TYPE_4)
READ_RANGE_OF(5, CAPTURE_TYPE_5)
READ_RANGE_OF(6, CAPTURE_TYPE_6)
READ_RANGE_OF(7, CAPTURE_TYPE_7)

#include "attention/mask_text.clh"

/* The numbers of an axis that block n of 2^shift has. */
FUNCTION mod_range numbers_of(long n, int shift, int length)
{
    return range_of(n << shift, min(((n + 1) << shift), (long)length) - 1);
}

/* Batch, or head, n; all `count` where classes are `shared`. */
FUNCTION mod_range whole_or(bool shared, long n, int count)
{
    return shared ? range_of(0, count - 1) : range_of(n, n);
}

__kernel void attention_mask(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = (long)get_global_id(0);
    const long rows = ((long)a.length + (1L << a.classes.query_shift) - 1) >> a.classes.query_shift;
    if (a.length == 0 || x >= a.batch * (long)a.heads * rows * a.classes.row)
        return;
    const long n = x % a.classes.row, m = x / a.classes.row % rows, bh = x / a.classes.row / rows;
    const mod_range h = whole_or(a.heads < a.query_heads, bh % a.heads, a.query_heads);
    const mod_tile tile = {numbers_of(m, a.classes.query_shift, a.length),
                           numbers_of(n, a.classes.key_shift, a.length_k),
                           whole_or(a.batch < a.batches, bh / a.heads, a.batches),
                           h,
                           range_of(h.low * a.kv_heads / a.query_heads, h.high * a.kv_heads / a.query_heads),
                           range_of(a.length, a.length),
                           range_of(a.length_k, a.length_k)};
    const mod_data data = MOD_DATA;
    const mod_range seen = mask_mod_block(tile, data, a.most);
    out[a.classes.first + x] = seen.high == 0 ? CLASS_HIDDEN : seen.low == 1 ? CLASS_WHOLE : CLASS_MIXED;
}
