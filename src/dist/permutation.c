/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of tokens that give all ranks about as many visible pairs. */
#include "dist.h"

/* The first token of piece `piece` of `pieces`. */
static int64_t begin_of(int64_t count, int64_t piece, int64_t pieces)
{
    return count * piece / pieces;
}

static int64_t append(int64_t first, int64_t end, int64_t step, int32_t *tokens)
{
    int64_t n = 0;
    for (int64_t token = first; token < end; token += step)
        tokens[n++] = (int32_t)token;
    return n;
}

clmgk_status clmgk_dist_permutation(clmgk_dist_order order, int64_t count, int32_t ranks, int32_t *tokens,
                                    int64_t *lengths, clmgk_error *error)
{
    if (tokens == NULL || lengths == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL", tokens == NULL ? "tokens" : "lengths");
    if (order != CLMGK_DIST_ZIGZAG && order != CLMGK_DIST_STRIPES)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "order: %d: expected a clmgk_dist_order", (int)order);
    if (ranks < 1 || ranks > CLMGK_DIST_MAX_RANKS)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "ranks: %d: expected 1 to %d", (int)ranks,
                             CLMGK_DIST_MAX_RANKS);
    if (count < 0 || count > INT64_C(1) << 30)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "count: %lld: expected 0 to 2^30", (long long)count);
    const int64_t pieces = 2 * (int64_t)ranks;
    int64_t done = 0;
    for (int32_t r = 0; r < ranks; ++r) {
        const int64_t begin = done, late = pieces - 1 - r;
        if (order == CLMGK_DIST_STRIPES) {
            done += append(r, count, ranks, tokens + done);
        } else {
            done += append(begin_of(count, r, pieces), begin_of(count, r + 1, pieces), 1, tokens + done);
            done += append(begin_of(count, late, pieces), begin_of(count, late + 1, pieces), 1, tokens + done);
        }
        lengths[r] = done - begin;
    }
    return CLMGK_OK;
}
