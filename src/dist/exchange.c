/* SPDX-License-Identifier: Apache-2.0 */
/* Shards of tokens in host memory, and their exchanges. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* ---- shards ----------------------------------------------------------------------------------------------------- */

int64_t mgk_dist_track_begin(const mgk_dist_cargo *cargo, int track, int64_t tokens)
{
    int64_t begin = 0;
    for (int t = 0; t < track; ++t)
        begin += cargo->track[t].lists * cargo->track[t].bytes * tokens;
    return begin;
}

int64_t mgk_dist_cargo_bytes(const mgk_dist_cargo *cargo, int64_t tokens)
{
    return mgk_dist_track_begin(cargo, DIST_TRACKS, tokens);
}

/* Where a list's rows are, in a shard of `tokens` tokens, from token `first` on. */
static int64_t row_of(const mgk_dist_cargo *cargo, int track, int64_t list, int64_t tokens, int64_t first)
{
    return mgk_dist_track_begin(cargo, track, tokens) + (list * tokens + first) * cargo->track[track].bytes;
}

void mgk_dist_copy_tokens(const mgk_dist_cargo *cargo, int64_t count, const void *from, mgk_dist_place from_place,
                          void *to, mgk_dist_place to_place)
{
    for (int t = 0; t < DIST_TRACKS; ++t)
        for (int64_t list = 0; list < cargo->track[t].lists; ++list)
            memcpy((char *)to + row_of(cargo, t, list, to_place.tokens, to_place.first),
                   (const char *)from + row_of(cargo, t, list, from_place.tokens, from_place.first),
                   (size_t)(count * cargo->track[t].bytes));
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

clmgk_status mgk_dist_flight_begin(const clmgk_dist_plan *plan, int32_t capacity, mgk_dist_flight *flight,
                                   clmgk_error *error)
{
    *flight = (mgk_dist_flight){.plan = plan};
    return mgk_dist_alloc((int64_t)capacity * (int64_t)sizeof(void *), (void **)&flight->request, error);
}

clmgk_status mgk_dist_flight_add(mgk_dist_flight *flight, const clmgk_dist_exchange *exchange, clmgk_error *error)
{
    const clmgk_dist_transport *const t = &flight->plan->transport;
    if (exchange->send_bytes == 0 && exchange->receive_bytes == 0)
        return CLMGK_OK;
    DIST_TRY(t->begin(t->state, exchange, &flight->request[flight->count], error));
    ++flight->count;
    return CLMGK_OK;
}

clmgk_status mgk_dist_flight_end(mgk_dist_flight *flight, clmgk_status status, clmgk_error *error)
{
    const clmgk_dist_transport *const t = &flight->plan->transport;
    for (int32_t i = 0; i < flight->count; ++i) {
        if (status != CLMGK_OK)
            t->cancel(t->state);
        const clmgk_status own =
            t->wait(t->state, flight->request[i], flight->plan->timeout, status == CLMGK_OK ? error : NULL);
        status = status == CLMGK_OK ? own : status;
    }
    free(flight->request);
    *flight = (mgk_dist_flight){.plan = NULL};
    return status;
}
