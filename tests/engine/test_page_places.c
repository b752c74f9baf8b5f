/* SPDX-License-Identifier: Apache-2.0 */
/* Where rows of pages lie, in pools of any size: the kernels' functions, compiled as C. */
#include "harness/harness.h"

#define MGK_COMMON_CLH /* OpenCL's own */
#define FUNCTION       static
#define __global
#define HAS_PAGE_TABLE 1
#define UNROLL_BY(n)

typedef uint32_t uint;

static uint mul_hi(uint x, uint y)
{
    return (uint)((uint64_t)x * y >> 32);
}

static int clamp(int x, int low, int high)
{
    return x < low ? low : x > high ? high : x;
}

#include "engine/pages.clh"

/* A pool of more elements than an int counts: 32,768 pages of 16 rows with 8 heads of 128 numbers, whose last one is
 * also where a number beyond all pages leads. */
TH_HOST_TEST(rows_of_large_pools)
{
    enum { PAGES = 32768, SIZE = 16 };
    const int table[] = {0, PAGES - 1, PAGES + 7, -5};
    const int64_t stride = INT64_C(8) * 128 * 16, page = SIZE * stride;
    page_map map = {.table = table, .size = SIZE, .pages = PAGES, .key_page = page, .value_page = page};
    const int64_t last = (PAGES - 1) * page;
    assert_true(last > INT64_C(1) << 32);
    page_divisor(&map);
    assert_int_equal(page_place(&map, page, stride, 15), 15 * stride);
    assert_int_equal(page_place(&map, page, stride, 16 + 3), last + 3 * stride);
    assert_int_equal(page_place(&map, page, stride, 32 + 15), last + 15 * stride);
    assert_int_equal(page_place(&map, page, stride, 48), 0);
}

/* A walk comes to the same places, from any row on, in pages of any size. */
TH_HOST_TEST(walks_over_pages)
{
    enum { ROWS = 60, PAGES = 9 };
    const int table[ROWS] = {3, 8, 0, 12, 5, 5, -1, 7};
    for (int size = 1; size <= 17; size++) {
        page_map map = {.table = table, .size = size, .pages = PAGES, .key_page = 1000, .value_page = 500};
        page_divisor(&map);
        for (int begin = 0; begin < ROWS; begin++) {
            page_walk walk = page_walk_from(&map, begin);
            for (int j = begin; j < ROWS;) {
                const int most = walk.rest < ROWS - j ? walk.rest : ROWS - j, run = most > 5 ? 5 : most;
                assert_in_range(most, 1, page_rest(&map, j));
                const int64_t at = page_walk_on(&map, &walk, run, 1000, 7);
                for (int i = 0; i < run; i++)
                    assert_int_equal(at + INT64_C(7) * i, page_place(&map, 1000, 7, j + i));
                j += run;
            }
        }
    }
}

static void expect_number(const page_map *map, int64_t j)
{
    if (j >= 0 && j <= INT32_MAX && page_number(map, (int)j) != j / map->size)
        fail_msg("row %lld of pages of %d: %d", (long long)j, map->size, page_number(map, (int)j));
}

/* Of small sizes and of any, rows at the borders of pages, the first and the last. */
TH_HOST_TEST(numbers_of_pages)
{
    uint64_t state = 1;
    for (int n = 1; n <= 30000; n++) {
        page_map map = {.size = n <= 3000 ? n : (int)(th_pick(&state, 1, INT32_MAX) >> n % 31)};
        map.size = map.size > 0 ? map.size : 1;
        page_divisor(&map);
        for (int i = 0; i < 40; i++) {
            const int64_t j = th_pick(&state, 0, INT32_MAX >> i % 31);
            const int64_t border = j / map.size * map.size;
            expect_number(&map, j);
            expect_number(&map, border);
            expect_number(&map, border - 1);
        }
        expect_number(&map, INT32_MAX);
        expect_number(&map, map.size);
    }
}
