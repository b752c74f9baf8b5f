/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

/* Rows of Williams' square: places 0, 1, count - 1, 2, count - 2, ..., moved on by one in each round, and read
 * backwards in every other turn of `count` rounds, without which an odd number of cases would not balance. */
size_t bench_case_of_round(size_t round, size_t n, size_t count)
{
    const size_t place = round / count % 2 == 0 ? n : count - 1 - n;
    const size_t step = place % 2 == 1 ? (place + 1) / 2 : count - place / 2;
    return (step + round) % count;
}
