/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RING: in step s of R a rank computes with the keys of rank - s, while those of the next step come. Backward, the sums
 * of dK and dV follow one step behind, and come home after the last one; so that messages of the first step and of the
 * last way have computing beside them, the own keys are computed in halves, the first in step 0, the other at the end:
 *
 *     computed            own half      rank - 1      rank - 2      ...      rank - R + 1   own half
 *     K and V that come   rank - 1      rank - 2      rank - 3      ...
 *     sums that come                                  rank - 2      ...      rank - R + 1   own keys
 *
 * A rank waits for messages while its device computes, which moves them on where nobody else does (MPI).
 */
#include "plan.h"

#include <string.h>

enum { TAG_KEYS, TAG_GRADIENTS };
enum { FIRST_HALF, LAST_HALF };

/* ---- halves --------------------------------------------------------------------------------------------------------
 */

/* Tokens side by side. */
typedef struct run {
    int64_t first, count;
} run;

/* A half's tokens, which are the outer two or the inner two of four quarters: with a causal mask both see as many
 * pairs, whether the rank's tokens are a piece of the sequence, two or many. */
static void runs_of(const clmgk_dist_plan *p, int half, run runs[2])
{
    const int64_t keys = mgk_dist_own_keys(p), quarter = keys / 4;
    runs[0] = half == FIRST_HALF ? (run){0, quarter} : (run){quarter, keys - 2 * quarter};
    runs[1] = half == FIRST_HALF ? (run){keys - quarter, quarter} : (run){0, 0};
}

int64_t mgk_dist_half_keys(const clmgk_dist_plan *p, int half)
{
    run runs[2];
    runs_of(p, half, runs);
    return runs[0].count + runs[1].count;
}

/* Where sequences begin in a half. */
static const int32_t *half_begins(const clmgk_dist_plan *p, int half)
{
    const int32_t *const begins = mgk_dist_begins(p, DIST_KEYS, p->transport.rank);
    run runs[2];
    runs_of(p, half, runs);
    for (int64_t s = 0; s <= p->sequences; ++s) {
        int64_t before = 0;
        for (int n = 0; n < 2; ++n) {
            const int64_t inside = begins[s] - runs[n].first;
            before += inside < 0 ? 0 : inside < runs[n].count ? inside : runs[n].count;
        }
        p->pieces.half[s] = (int32_t)before;
    }
    return p->pieces.half;
}

/* Copies a half's tokens from a shard of the own keys, or back. */
static void copy_half(const clmgk_dist_plan *p, const mgk_dist_cargo *cargo, int half, const char *from, char *to,
                      bool back)
{
    const int64_t all = mgk_dist_own_keys(p), tokens = mgk_dist_half_keys(p, half);
    run runs[2];
    runs_of(p, half, runs);
    for (int n = 0; n < 2; ++n) {
        const mgk_dist_place whole = {all, runs[n].first}, part = {tokens, n == 0 ? 0 : runs[0].count};
        mgk_dist_copy_tokens(cargo, runs[n].count, from, back ? part : whole, to, back ? whole : part);
    }
}

/* ---- messages ------------------------------------------------------------------------------------------------------
 */

/* The owner of the shard that is computed in a step. */
static int32_t owner_of(const clmgk_dist_plan *p, int32_t step)
{
    return mgk_dist_neighbour(p, -step);
}

static int64_t keys_of(const clmgk_dist_plan *p, int32_t step)
{
    return p->lengths_k[owner_of(p, step)];
}

/* The shard of `step` goes to the next rank, and that of the next step comes. */
static clmgk_status pass_keys_on(const clmgk_dist_plan *p, int32_t step, mgk_dist_flight *flight, clmgk_error *error)
{
    const clmgk_dist_exchange x = {.send = p->host.keys[step % 2],
                                   .send_bytes = mgk_dist_cargo_bytes(&p->keys, keys_of(p, step)),
                                   .to = mgk_dist_neighbour(p, 1),
                                   .receive = p->host.keys[1 - step % 2],
                                   .receive_bytes = mgk_dist_cargo_bytes(&p->keys, keys_of(p, step + 1)),
                                   .from = mgk_dist_neighbour(p, -1),
                                   .tag = TAG_KEYS};
    return step + 1 < p->transport.ranks ? mgk_dist_flight_add(flight, &x, error) : CLMGK_OK;
}

/* The sums of dK and dV of the shard of step - 1 go to the next rank, and those of `step` come. */
static clmgk_status pass_sums_on(const clmgk_dist_plan *p, int32_t step, mgk_dist_flight *flight, clmgk_error *error)
{
    const clmgk_dist_exchange x = {.send = p->host.sums[1 - step % 2],
                                   .send_bytes = mgk_dist_cargo_bytes(&p->gradients, keys_of(p, step - 1)),
                                   .to = mgk_dist_neighbour(p, 1),
                                   .receive = p->host.sums[step % 2],
                                   .receive_bytes = mgk_dist_cargo_bytes(&p->gradients, keys_of(p, step)),
                                   .from = mgk_dist_neighbour(p, -1),
                                   .tag = TAG_GRADIENTS};
    return step > 1 ? mgk_dist_flight_add(flight, &x, error) : CLMGK_OK;
}

/* ---- forward -------------------------------------------------------------------------------------------------------
 */

/* O, L and its low part of a range of keys, as part number `part`. */
static void set_part(const clmgk_dist_plan *p, int64_t part, clmgk_attention_args *a)
{
    const int64_t rows = part * p->desc.batch * p->desc.heads * p->desc.length;
    a->o = (clmgk_buffer){p->parts_o, (uint64_t)(rows * p->desc.value_size)};
    a->lse = (clmgk_buffer){p->parts_lse, (uint64_t)rows};
    a->lse_low = (clmgk_buffer){p->parts_low, p->parts_low != NULL ? (uint64_t)rows : 0};
}

static clmgk_status begin_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, int32_t step,
                                  int64_t *parts, clmgk_error *error)
{
    clmgk_attention_args a = *args;
    if (keys_of(p, step) == 0)
        return CLMGK_OK;
    DIST_TRY(mgk_dist_write_shard(p, p->host.keys[step % 2], keys_of(p, step),
                                  mgk_dist_begins(p, DIST_KEYS, owner_of(p, step)), error));
    mgk_dist_set_keys(p, &a);
    if (*parts > 0 && p->no_sinks != NULL)
        a.sinks = (clmgk_buffer){p->no_sinks, 0};
    set_part(p, (*parts)++, &a);
    return mgk_dist_start(p, clmgk_enqueue_forward(p->plan[owner_of(p, step)], p->queue, &a, 0, NULL, NULL, error),
                          error);
}

static clmgk_status forward_turn(const clmgk_dist_plan *p, const clmgk_attention_args *args, int32_t step,
                                 int64_t *parts, clmgk_error *error)
{
    mgk_dist_flight flight;
    DIST_TRY(mgk_dist_flight_begin(p, 1, &flight, error));
    clmgk_status status = pass_keys_on(p, step, &flight, error);
    if (status == CLMGK_OK)
        status = begin_forward(p, args, step, parts, error);
    return mgk_dist_finish(p, mgk_dist_flight_end(&flight, status, error), error);
}

static clmgk_status combine_parts(const clmgk_dist_plan *p, const clmgk_attention_args *args, int64_t parts,
                                  clmgk_error *error)
{
    clmgk_attention_args a = CLMGK_ATTENTION_ARGS_INIT;
    a.parts = parts;
    a.o = args->o;
    a.lse = args->lse;
    a.lse_low = args->lse_low;
    a.parts_o = (clmgk_buffer){p->parts_o, 0};
    a.parts_lse = (clmgk_buffer){p->parts_lse, 0};
    a.parts_lse_low = (clmgk_buffer){p->parts_low, 0};
    return mgk_dist_finish(p, clmgk_enqueue_combine(p->combine, p->queue, &a, 0, NULL, NULL, error), error);
}

clmgk_status mgk_dist_ring_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    int64_t parts = 0;
    clmgk_status status = mgk_dist_read_shard(p, args, p->host.keys[0], error);
    for (int32_t step = 0; step < p->transport.ranks && status == CLMGK_OK; ++step)
        status = forward_turn(p, args, step, &parts, error);
    return status == CLMGK_OK ? combine_parts(p, args, parts, error) : status;
}

/* ---- backward ------------------------------------------------------------------------------------------------------
 */

/* Keys of a pass: a shard, whose sums are to be added up, or half of the own ones. */
typedef struct work {
    clmgk_plan *plan;
    const char *shard;
    const int32_t *begins;
    int64_t tokens;
    int32_t step; /* number of ranks: the sums of the own keys come home */
} work;

static work work_of(const clmgk_dist_plan *p, int32_t step)
{
    const int32_t ranks = p->transport.ranks;
    const int half = step == 0 ? FIRST_HALF : LAST_HALF;
    if (step > 0 && step < ranks)
        return (work){p->plan[owner_of(p, step)], p->host.keys[step % 2],
                      mgk_dist_begins(p, DIST_KEYS, owner_of(p, step)), keys_of(p, step), step};
    return (work){p->plan[ranks + half], p->host.half, half_begins(p, half), mgk_dist_half_keys(p, half), step};
}

static clmgk_status begin_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, const work *w,
                                   bool first, clmgk_error *error)
{
    if (w->tokens == 0)
        return CLMGK_OK;
    DIST_TRY(mgk_dist_write_shard(p, w->shard, w->tokens, w->begins, error));
    return mgk_dist_begin_backward(p, w->plan, args, first, w->tokens, error);
}

/* dK and dV of a step go to their sums. */
static void take_part(const clmgk_dist_plan *p, const work *w)
{
    const mgk_dist_host *const r = &p->host;
    const bool own = w->step == 0 || w->step == p->transport.ranks;
    if (own)
        copy_half(p, &p->gradients, w->step == 0 ? FIRST_HALF : LAST_HALF, r->part, r->own, true);
    else if (w->step == 1)
        memcpy(r->sums[1], r->part, (size_t)mgk_dist_cargo_bytes(&p->gradients, w->tokens));
    else
        mgk_dist_add_shard(p, r->sums[w->step % 2], r->part, w->tokens);
}

/* A step: the next keys and the sums of this step's come while its own part is computed. */
static clmgk_status backward_turn(const clmgk_dist_plan *p, const clmgk_attention_args *args, int32_t step, bool *first,
                                  clmgk_error *error)
{
    const work w = work_of(p, step);
    mgk_dist_flight flight;
    DIST_TRY(mgk_dist_flight_begin(p, 2, &flight, error));
    clmgk_status status = pass_keys_on(p, step, &flight, error);
    if (status == CLMGK_OK)
        status = pass_sums_on(p, step, &flight, error);
    if (status == CLMGK_OK)
        status = begin_backward(p, args, &w, *first, error);
    status = mgk_dist_flight_end(&flight, status, error);
    DIST_TRY(mgk_dist_end_backward(p, status, w.tokens, p->host.part, error));
    *first = *first && w.tokens == 0;
    take_part(p, &w);
    return CLMGK_OK;
}

clmgk_status mgk_dist_ring_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    const mgk_dist_host *const r = &p->host;
    const int32_t ranks = p->transport.ranks;
    bool first = true;
    DIST_TRY(mgk_dist_read_shard(p, args, r->keys[0], error));
    copy_half(p, &p->keys, FIRST_HALF, r->keys[0], r->half, false);
    for (int32_t step = 0; step <= ranks; ++step) {
        DIST_TRY(backward_turn(p, args, step, &first, error));
        if (step == 0)
            copy_half(p, &p->keys, LAST_HALF, r->keys[0], r->half, false);
    }
    mgk_dist_add_shard(p, r->sums[ranks % 2], r->own, mgk_dist_own_keys(p));
    DIST_TRY(mgk_dist_write_gradients(p, args, r->sums[ranks % 2], error));
    return mgk_dist_end_sums(p, args, error);
}
