/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The passes by each schedule; here ALL_GATHER. A rank's keys travel as a shard in host memory (plan.h); dK and dV are
 * added up in the order of the ranks (ALL_GATHER), or in that in which a shard meets them (RING), so results are the
 * same in every run.
 */
#include "plan.h"

#include <string.h>

/* ---- ALL_GATHER -------------------------------------------------------------------------------------------------- */

/* The number of keys of the ranks before one. */
static int64_t keys_before(const clmgk_dist_plan *p, int32_t rank)
{
    int64_t sum = 0;
    for (int32_t r = 0; r < rank; ++r)
        sum += p->lengths_k[r];
    return sum;
}

/* Host memory for a shard of each rank, one after the other: where rank's begins. */
static int64_t place_of(const clmgk_dist_plan *p, const mgk_dist_cargo *cargo, int32_t rank)
{
    return mgk_dist_cargo_bytes(cargo, keys_before(p, rank));
}

/* Every rank's shard comes, and the own one goes to all. */
static clmgk_status gather_shards(const clmgk_dist_plan *p, char *shards, clmgk_error *error)
{
    mgk_dist_flight flight;
    DIST_TRY(mgk_dist_flight_begin(p, p->transport.ranks, &flight, error));
    clmgk_status status = CLMGK_OK;
    for (int32_t n = 1; n < p->transport.ranks && status == CLMGK_OK; ++n) {
        const int32_t from = mgk_dist_neighbour(p, -n);
        const clmgk_dist_exchange x = {.send = shards + place_of(p, &p->keys, p->transport.rank),
                                       .send_bytes = mgk_dist_cargo_bytes(&p->keys, mgk_dist_own_keys(p)),
                                       .to = mgk_dist_neighbour(p, n),
                                       .receive = shards + place_of(p, &p->keys, from),
                                       .receive_bytes = mgk_dist_cargo_bytes(&p->keys, p->lengths_k[from]),
                                       .from = from};
        status = mgk_dist_flight_add(&flight, &x, error);
    }
    return mgk_dist_flight_end(&flight, status, error);
}

/* All keys and values come to the device. */
static clmgk_status gather(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    char *const shards = p->host.keys[0], *const whole = p->host.keys[1];
    DIST_TRY(mgk_dist_read_shard(p, args, shards + place_of(p, &p->keys, p->transport.rank), error));
    DIST_TRY(gather_shards(p, shards, error));
    for (int32_t r = 0; r < p->transport.ranks; ++r)
        mgk_dist_place_tokens(p, &p->keys, r, shards + place_of(p, &p->keys, r), whole, false);
    return mgk_dist_write_shard(p, whole, p->total, mgk_dist_whole(p, DIST_KEYS), error);
}

static clmgk_status gathered_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    clmgk_attention_args a = *args;
    DIST_TRY(gather(p, args, error));
    mgk_dist_set_keys(p, &a);
    return mgk_dist_finish(p, clmgk_enqueue_forward(p->plan[0], p->queue, &a, 0, NULL, NULL, error), error);
}

/* Each rank's part of `mine`, dK and dV of all keys, goes to it; those of the own keys come to theirs[ranks]. */
static clmgk_status scatter_shards(const clmgk_dist_plan *p, char *mine, char *theirs, clmgk_error *error)
{
    const int64_t bytes = mgk_dist_cargo_bytes(&p->gradients, mgk_dist_own_keys(p));
    mgk_dist_flight flight;
    DIST_TRY(mgk_dist_flight_begin(p, p->transport.ranks, &flight, error));
    clmgk_status status = CLMGK_OK;
    for (int32_t n = 1; n < p->transport.ranks && status == CLMGK_OK; ++n) {
        const int32_t to = mgk_dist_neighbour(p, n), from = mgk_dist_neighbour(p, -n);
        const clmgk_dist_exchange x = {.send = mine + place_of(p, &p->gradients, to),
                                       .send_bytes = mgk_dist_cargo_bytes(&p->gradients, p->lengths_k[to]),
                                       .to = to,
                                       .receive = theirs + from * bytes,
                                       .receive_bytes = bytes,
                                       .from = from};
        status = mgk_dist_flight_add(&flight, &x, error);
    }
    memcpy(theirs + p->transport.rank * bytes, mine + place_of(p, &p->gradients, p->transport.rank), (size_t)bytes);
    return mgk_dist_flight_end(&flight, status, error);
}

/* Sums over ranks, of dK and dV of all keys. */
static clmgk_status reduce(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    const int64_t bytes = mgk_dist_cargo_bytes(&p->gradients, mgk_dist_own_keys(p));
    char *const whole = p->host.sums[0], *const mine = p->host.sums[1], *const theirs = p->host.part;
    for (int32_t r = 0; r < p->transport.ranks; ++r)
        mgk_dist_place_tokens(p, &p->gradients, r, mine + place_of(p, &p->gradients, r), whole, true);
    DIST_TRY(scatter_shards(p, mine, theirs, error));
    for (int32_t r = 1; r < p->transport.ranks; ++r)
        mgk_dist_add_shard(p, theirs, theirs + r * bytes, mgk_dist_own_keys(p));
    return mgk_dist_write_gradients(p, args, theirs, error);
}

static clmgk_status gathered_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    DIST_TRY(gather(p, args, error));
    DIST_TRY(mgk_dist_end_backward(p, mgk_dist_begin_backward(p, p->plan[0], args, true, p->total, error), p->total,
                                   p->host.sums[0], error));
    DIST_TRY(reduce(p, args, error));
    return mgk_dist_end_sums(p, args, error);
}

/* ---- the calls -------------------------------------------------------------------------------------------------- */

static clmgk_status check_call(const clmgk_dist_plan *plan, const clmgk_attention_args *args, clmgk_error *error)
{
    if (plan == NULL || args == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL", plan == NULL ? "plan" : "args");
    if (args->struct_size != sizeof(*args))
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "args.struct_size: %zu: expected %zu", args->struct_size,
                             sizeof(*args));
    return CLMGK_OK;
}

/* An error of this rank alone must reach the others. */
static clmgk_status told(const clmgk_dist_plan *plan, clmgk_status status)
{
    if (status != CLMGK_OK)
        plan->transport.cancel(plan->transport.state);
    return status;
}

typedef clmgk_status pass(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);

static clmgk_status run(const clmgk_dist_plan *p, pass *function, const clmgk_attention_args *args, clmgk_error *error)
{
    const clmgk_status status = mgk_dist_share_pieces(p, args, error);
    return told(p, status == CLMGK_OK ? function(p, args, error) : status);
}

clmgk_status clmgk_dist_forward(clmgk_dist_plan *plan, const clmgk_attention_args *args, clmgk_error *error)
{
    static pass *const passes[] = {[CLMGK_DIST_ALL_GATHER] = gathered_forward,
                                   [CLMGK_DIST_RING] = mgk_dist_ring_forward,
                                   [CLMGK_DIST_ALL_TO_ALL] = mgk_dist_heads_forward,
                                   [CLMGK_DIST_SCAN] = mgk_dist_scan_forward};
    DIST_TRY(check_call(plan, args, error));
    return run(plan, passes[plan->schedule], args, error);
}

clmgk_status clmgk_dist_backward(clmgk_dist_plan *plan, const clmgk_attention_args *args, clmgk_error *error)
{
    static pass *const passes[] = {[CLMGK_DIST_ALL_GATHER] = gathered_backward,
                                   [CLMGK_DIST_RING] = mgk_dist_ring_backward,
                                   [CLMGK_DIST_ALL_TO_ALL] = mgk_dist_heads_backward,
                                   [CLMGK_DIST_SCAN] = mgk_dist_scan_backward};
    DIST_TRY(check_call(plan, args, error));
    if (plan->desc.gradients == 0)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: 0: expected a plan with gradients");
    return run(plan, passes[plan->schedule], args, error);
}
