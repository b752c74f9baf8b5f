/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of tokens that give all ranks about as many visible pairs. */
#include "dist.h"

#include <stdlib.h>

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

/* ---- documents ----------------------------------------------------------------------------------------------------
 */

/* Tokens that stay together, and whose they are. */
typedef struct piece {
    int64_t number;
    double pairs; /* that its queries see */
    int32_t rank;
} piece;

typedef struct share {
    int32_t rank;
    double pairs;
} share;

/* A packed sequence; `next` is the document after that of the token that was asked for last. */
typedef struct packing {
    const int32_t *offsets;
    int64_t next;
} packing;

/* Most first; of equals in the order of tokens. */
static int compare_pieces(const void *left, const void *right)
{
    const piece *const a = left, *const b = right;
    if (a->pairs != b->pairs)
        return a->pairs > b->pairs ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

static int compare_numbers(const void *left, const void *right)
{
    const piece *const a = left, *const b = right;
    return (a->number > b->number) - (a->number < b->number);
}

/* Least first. */
static int compare_shares(const void *left, const void *right)
{
    const share *const a = left, *const b = right;
    if (a->pairs != b->pairs)
        return a->pairs < b->pairs ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* The tokens that a token sees: itself, and those of its document before it. Tokens are asked for in their order. */
static int64_t pairs_of(packing *p, int64_t token)
{
    while (p->offsets[p->next] <= token)
        ++p->next;
    return token - p->offsets[p->next - 1] + 1;
}

/* Deals `count` pieces out, a round of one piece for each rank after the other: the largest piece of a round goes to
 * the rank that has least. */
static void deal(piece *pieces, int64_t count, share *shares, int32_t ranks)
{
    qsort(pieces, (size_t)count, sizeof(*pieces), compare_pieces);
    for (int32_t r = 0; r < ranks; ++r)
        shares[r] = (share){r, 0.0};
    for (int64_t first = 0; first < count; first += ranks) {
        qsort(shares, (size_t)ranks, sizeof(*shares), compare_shares);
        for (int32_t n = 0; n < ranks; ++n) {
            pieces[first + n].rank = shares[n].rank;
            shares[n].pairs += pieces[first + n].pairs;
        }
    }
    qsort(pieces, (size_t)count, sizeof(*pieces), compare_numbers);
}

static bool is_balanced(const share *shares, int32_t ranks)
{
    double sum = 0.0, most = 0.0;
    for (int32_t r = 0; r < ranks; ++r) {
        sum += shares[r].pairs;
        most = shares[r].pairs > most ? shares[r].pairs : most;
    }
    return most * ranks <= 1.01 * sum;
}

/* Writes each rank's tokens behind those of the ranks before. */
static void list_tokens(const piece *pieces, int64_t number, int64_t count, int32_t ranks, int32_t *tokens,
                        int64_t *lengths)
{
    int64_t end = 0;
    for (int32_t r = 0; r < ranks; ++r)
        lengths[r] = 0;
    for (int64_t n = 0; n < number; ++n)
        lengths[pieces[n].rank] += begin_of(count, n + 1, number) - begin_of(count, n, number);
    for (int32_t r = 0; r < ranks; ++r) { /* where a rank's next token goes */
        const int64_t length = lengths[r];
        lengths[r] = end;
        end += length;
    }
    for (int64_t n = 0; n < number; ++n)
        lengths[pieces[n].rank] +=
            append(begin_of(count, n, number), begin_of(count, n + 1, number), 1, tokens + lengths[pieces[n].rank]);
    for (int32_t r = ranks - 1; r > 0; --r)
        lengths[r] -= lengths[r - 1];
}

/* As few pieces as give balance, the same number for each rank. */
static clmgk_status deal_documents(const int32_t *offsets, int64_t count, int32_t ranks, int32_t *tokens,
                                   int64_t *lengths, clmgk_error *error)
{
    share *shares = NULL;
    DIST_TRY(mgk_dist_alloc(ranks * (int64_t)sizeof(*shares), (void **)&shares, error));
    clmgk_status status = CLMGK_OK;
    for (int64_t number = 2 * (int64_t)ranks; status == CLMGK_OK; number *= 2) {
        piece *pieces = NULL;
        packing p = {offsets, 0};
        status = mgk_dist_alloc(number * (int64_t)sizeof(*pieces), (void **)&pieces, error);
        if (status != CLMGK_OK)
            break;
        for (int64_t n = 0; n < number; ++n) {
            pieces[n].number = n;
            for (int64_t token = begin_of(count, n, number); token < begin_of(count, n + 1, number); ++token)
                pieces[n].pairs += (double)pairs_of(&p, token);
        }
        deal(pieces, number, shares, ranks);
        const bool last = number >= count || is_balanced(shares, ranks);
        if (last)
            list_tokens(pieces, number, count, ranks, tokens, lengths);
        free(pieces);
        if (last)
            break;
    }
    free(shares);
    return status;
}

/* ---- the call -----------------------------------------------------------------------------------------------------
 */

static void deal_tokens(clmgk_dist_order order, int64_t count, int32_t ranks, int32_t *tokens, int64_t *lengths)
{
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
}

static clmgk_status check_offsets(const int32_t *offsets, int64_t documents, int64_t count, clmgk_error *error)
{
    if (offsets == NULL || documents < 1 || documents > INT64_C(1) << 30)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "offsets of %lld documents: expected those of 1 to 2^30",
                             (long long)documents);
    for (int64_t n = 0; n <= documents; ++n) {
        const int64_t least = n == 0 ? 0 : offsets[n - 1], most = n == 0 ? 0 : count;
        if (offsets[n] < least || offsets[n] > most || (n == documents && offsets[n] != count))
            return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE,
                                 "offsets[%lld]: %d: expected numbers that rise from 0 to count", (long long)n,
                                 (int)offsets[n]);
    }
    return CLMGK_OK;
}

clmgk_status clmgk_dist_permutation(clmgk_dist_order order, int64_t count, const int32_t *offsets, int64_t documents,
                                    int32_t ranks, int32_t *tokens, int64_t *lengths, clmgk_error *error)
{
    if (tokens == NULL || lengths == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL", tokens == NULL ? "tokens" : "lengths");
    if ((unsigned)order > CLMGK_DIST_DOCUMENTS)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "order: %d: expected a clmgk_dist_order", (int)order);
    if (ranks < 1 || ranks > CLMGK_DIST_MAX_RANKS)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "ranks: %d: expected 1 to %d", (int)ranks,
                             CLMGK_DIST_MAX_RANKS);
    if (count < 0 || count > INT64_C(1) << 30)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "count: %lld: expected 0 to 2^30", (long long)count);
    if (order == CLMGK_DIST_DOCUMENTS) {
        DIST_TRY(check_offsets(offsets, documents, count, error));
        return deal_documents(offsets, count, ranks, tokens, lengths, error);
    }
    deal_tokens(order, count, ranks, tokens, lengths);
    return CLMGK_OK;
}
