/* SPDX-License-Identifier: Apache-2.0 */
/* Whether strided arrays share bytes, against a list of all their bytes. */
#include "device/extents.h"
#include "harness/harness.h"

#include <string.h>

enum { AXES = 3, MOST_BYTES = 1024 };

typedef struct strided {
    int rank;
    int64_t size[MGK_EXTENT_AXES], stride[MGK_EXTENT_AXES];
    size_t element;
    int64_t begin;
} strided;

static strided draw(uint64_t *state)
{
    strided a = {.rank = (int)th_pick(state, 0, AXES), .element = (size_t)th_pick(state, 1, 4)};
    a.begin = th_pick(state, 0, 60);
    for (int axis = 0; axis < a.rank; axis++) {
        a.size[axis] = th_chance(state, 12) ? 0 : th_pick(state, 1, 4);
        a.stride[axis] = th_pick(state, 0, th_chance(state, 2) ? 4 : 20);
    }
    return a;
}

/* Marks the array's bytes. Returns one past the last of them, counted from the first element; 0: none. */
static int64_t mark(const strided *a, bool bytes[MOST_BYTES])
{
    int64_t count = 1, end = 0;
    for (int axis = 0; axis < a->rank; axis++)
        count *= a->size[axis];
    for (int64_t n = 0; n < count; n++) {
        int64_t place = 0, rest = n;
        for (int axis = 0; axis < a->rank; axis++, rest /= a->size[axis - 1])
            place += rest % a->size[axis] * a->stride[axis];
        place *= (int64_t)a->element;
        end = place + (int64_t)a->element > end ? place + (int64_t)a->element : end;
        memset(bytes + a->begin + place, 1, a->element);
    }
    return end;
}

TH_HOST_TEST(strided_arrays)
{
    uint64_t state = 1;
    int met = 0, nested = 0;
    for (int n = 0; n < 20000; n++) {
        const strided a = draw(&state), b = draw(&state);
        bool of_a[MOST_BYTES] = {false}, of_b[MOST_BYTES] = {false};
        bool meet = false;
        const mgk_extent x = mgk_extent_of(a.rank, a.size, a.stride, a.element);
        const mgk_extent y = mgk_extent_of(b.rank, b.size, b.stride, b.element);
        assert_int_equal(x.bytes, mark(&a, of_a));
        assert_int_equal(y.bytes, mark(&b, of_b));
        for (int i = 0; i < MOST_BYTES; i++)
            meet = meet || (of_a[i] && of_b[i]);
        assert_int_equal(mgk_extents_meet(&x, a.begin, &y, b.begin), meet);
        assert_int_equal(mgk_extents_meet(&y, b.begin, &x, a.begin), meet);
        met += meet;
        nested += !meet && x.bytes > 0 && y.bytes > 0 && a.begin < b.begin && b.begin < a.begin + x.bytes;
    }
    assert_in_range(met, 3000, 15000);
    assert_in_range(nested, 500, 15000);
}

/* Q, K and V of many long sequences in one array [B,N,3,H,D], and their heads apart [B,N,H,3,D]: an answer at once. */
TH_HOST_TEST(interleaved_arrays)
{
    const int64_t b = 64, n = 100000, h = 32, d = 128;
    const int64_t size[] = {b, h, n, d};
    const int64_t stride[][4] = {{n * 3 * h * d, d, 3 * h * d, 1}, {n * 3 * h * d, 3 * d, 3 * h * d, 1}};
    const int64_t step[] = {h * d * 2, d * 2};
    for (size_t form = 0; form < TH_COUNT(step); form++) {
        const mgk_extent x = mgk_extent_of(4, size, stride[form], 2);
        assert_false(mgk_extents_meet(&x, 0, &x, step[form]));
        assert_false(mgk_extents_meet(&x, step[form] * 2, &x, step[form]));
        assert_true(mgk_extents_meet(&x, 0, &x, step[form] - 1));
        assert_true(mgk_extents_meet(&x, 0, &x, step[form] * 2 + 1));
        assert_true(mgk_extents_meet(&x, 0, &x, step[form] * 3));
        const mgk_extent rest = mgk_extent_dense(x.bytes);
        assert_true(mgk_extents_meet(&x, 0, &rest, step[form] * 3));
    }
}
