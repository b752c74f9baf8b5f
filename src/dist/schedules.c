/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The passes by each schedule. A rank's keys travel as a shard in host memory (plan.h); dK and dV are added up in the
 * order of the ranks (ALL_GATHER), or in that in which a shard meets them (RING), so results are the same in every run.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory of the device ------------------------------------------------------------------------------------- */

static int64_t track_bytes(const mgk_dist_cargo *cargo, int track, int64_t tokens)
{
    return cargo->track[track].lists * cargo->track[track].bytes * tokens;
}

static int64_t own_keys(const clmgk_dist_plan *p)
{
    return p->lengths_k[p->transport.rank];
}

/* This rank's shard, of the call's arrays. */
static clmgk_status read_shard(const clmgk_dist_plan *p, const clmgk_attention_args *args, char *shard,
                               clmgk_error *error)
{
    const clmgk_buffer *const from[DIST_TRACKS] = {&args->k, &args->v, &args->positions_k};
    static const clmgk_array array[DIST_TRACKS] = {CLMGK_ARRAY_K, CLMGK_ARRAY_V, CLMGK_ARRAY_POSITIONS_K};
    for (int t = 0; t < DIST_TRACKS; ++t)
        DIST_TRY(mgk_dist_read(p, from[t], (int64_t)clmgk_array_element_size(&p->desc, array[t]),
                               track_bytes(&p->keys, t, own_keys(p)),
                               shard + mgk_dist_track_begin(&p->keys, t, own_keys(p)), error));
    return CLMGK_OK;
}

static clmgk_status write_shard(const clmgk_dist_plan *p, const char *shard, int64_t tokens, clmgk_error *error)
{
    for (int t = 0; t < DIST_TRACKS; ++t) {
        const clmgk_buffer to = {p->memory[t], 0};
        DIST_TRY(mgk_dist_write(p, &to, 1, track_bytes(&p->keys, t, tokens),
                                shard + mgk_dist_track_begin(&p->keys, t, tokens), error));
    }
    return CLMGK_OK;
}

/* dK and dV that a backward pass wrote. */
static clmgk_status read_gradients(const clmgk_dist_plan *p, int64_t tokens, char *shard, clmgk_error *error)
{
    for (int t = 0; t < 2; ++t) {
        const clmgk_buffer from = {p->grad[t], 0};
        DIST_TRY(mgk_dist_read(p, &from, 1, track_bytes(&p->gradients, t, tokens),
                               shard + mgk_dist_track_begin(&p->gradients, t, tokens), error));
    }
    return CLMGK_OK;
}

static void add_shard(const clmgk_dist_plan *p, char *to, const char *from, int64_t tokens)
{
    mgk_dist_add_floats((float *)(void *)to, (const float *)(const void *)from,
                        mgk_dist_cargo_bytes(&p->gradients, tokens) / (int64_t)sizeof(float));
}

/* dK or dV goes to the call's array, or is added to what is there. */
static clmgk_status write_gradient(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_gradient gradient,
                                   int track, char *shard, clmgk_error *error)
{
    return mgk_dist_write_sum(p, track == DIST_K ? &args->grad_k : &args->grad_v,
                              (args->accumulate & (uint32_t)gradient) != 0,
                              shard + mgk_dist_track_begin(&p->gradients, track, own_keys(p)),
                              track_bytes(&p->gradients, track, own_keys(p)), error);
}

static clmgk_status write_gradients(const clmgk_dist_plan *p, const clmgk_attention_args *args, char *shard,
                                    clmgk_error *error)
{
    DIST_TRY(write_gradient(p, args, CLMGK_GRADIENT_K, DIST_K, shard, error));
    return write_gradient(p, args, CLMGK_GRADIENT_V, DIST_V, shard, error);
}

/* ---- a pass over the keys on the device ------------------------------------------------------------------------- */

static void set_keys(const clmgk_dist_plan *p, clmgk_attention_args *a)
{
    a->k = (clmgk_buffer){p->memory[DIST_K], 0};
    a->v = (clmgk_buffer){p->memory[DIST_V], 0};
    a->positions_k = (clmgk_buffer){p->memory[DIST_POSITIONS], 0};
    a->workspace = (clmgk_buffer){p->workspace, 0};
}

/* dQ goes to the call's array, dK and dV of `tokens` keys to `shard`. */
static clmgk_status run_backward(const clmgk_dist_plan *p, clmgk_plan *plan, const clmgk_attention_args *args,
                                 bool first, int64_t tokens, char *shard, clmgk_error *error)
{
    static const cl_uint zero = 0;
    clmgk_attention_args a = *args;
    set_keys(p, &a);
    a.grad_k = (clmgk_buffer){p->grad[DIST_K], 0};
    a.grad_v = (clmgk_buffer){p->grad[DIST_V], 0};
    a.accumulate &= (uint32_t)CLMGK_GRADIENT_Q;
    if (!first)
        a.accumulate |= (uint32_t)CLMGK_GRADIENT_Q;
    DIST_TRY(mgk_dist_begin_sums(p, first, &a, error));
    for (int t = 0; t < 2; ++t) /* without queries nothing may be written */
        if (track_bytes(&p->gradients, t, tokens) > 0)
            DIST_TRY(
                mgk_dist_check_cl(error,
                                  clEnqueueFillBuffer(p->queue, p->grad[t], &zero, sizeof(zero), 0,
                                                      (size_t)track_bytes(&p->gradients, t, tokens), 0, NULL, NULL),
                                  "clEnqueueFillBuffer"));
    DIST_TRY(mgk_dist_finish(p, clmgk_enqueue_backward(plan, p->queue, &a, 0, NULL, NULL, error), error));
    return read_gradients(p, tokens, shard, error);
}

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
                                       .send_bytes = mgk_dist_cargo_bytes(&p->keys, own_keys(p)),
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
    const int64_t bytes = mgk_dist_cargo_bytes(&p->keys, p->total);
    char *shards = NULL, *whole = NULL;
    clmgk_status status = mgk_dist_alloc(bytes, (void **)&shards, error);
    if (status == CLMGK_OK)
        status = mgk_dist_alloc(bytes, (void **)&whole, error);
    if (status == CLMGK_OK)
        status = read_shard(p, args, shards + place_of(p, &p->keys, p->transport.rank), error);
    if (status == CLMGK_OK)
        status = gather_shards(p, shards, error);
    for (int32_t r = 0; r < p->transport.ranks && status == CLMGK_OK; ++r)
        mgk_dist_put_tokens(&p->keys, shards + place_of(p, &p->keys, r), p->lengths_k[r], whole, p->total,
                            keys_before(p, r));
    if (status == CLMGK_OK)
        status = write_shard(p, whole, p->total, error);
    free(shards);
    free(whole);
    return status;
}

static clmgk_status gathered_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    clmgk_attention_args a = *args;
    DIST_TRY(gather(p, args, error));
    set_keys(p, &a);
    return mgk_dist_finish(p, clmgk_enqueue_forward(p->plan[0], p->queue, &a, 0, NULL, NULL, error), error);
}

/* Each rank's part of `mine`, dK and dV of all keys, goes to it; those of the own keys come to theirs[ranks]. */
static clmgk_status scatter_shards(const clmgk_dist_plan *p, char *mine, char *theirs, clmgk_error *error)
{
    const int64_t bytes = mgk_dist_cargo_bytes(&p->gradients, own_keys(p));
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

/* Sums over ranks, of dK and dV of all keys in `whole`; `mine` has as much room. */
static clmgk_status reduce(const clmgk_dist_plan *p, const clmgk_attention_args *args, const char *whole, char *mine,
                           clmgk_error *error)
{
    const int64_t bytes = mgk_dist_cargo_bytes(&p->gradients, own_keys(p));
    char *theirs = NULL;
    for (int32_t r = 0; r < p->transport.ranks; ++r)
        mgk_dist_get_tokens(&p->gradients, mine + place_of(p, &p->gradients, r), p->lengths_k[r], whole, p->total,
                            keys_before(p, r));
    DIST_TRY(mgk_dist_alloc(bytes * p->transport.ranks, (void **)&theirs, error));
    clmgk_status status = scatter_shards(p, mine, theirs, error);
    for (int32_t r = 1; r < p->transport.ranks && status == CLMGK_OK; ++r)
        add_shard(p, theirs, theirs + r * bytes, own_keys(p));
    if (status == CLMGK_OK)
        status = write_gradients(p, args, theirs, error);
    free(theirs);
    return status;
}

static clmgk_status gathered_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    const int64_t bytes = mgk_dist_cargo_bytes(&p->gradients, p->total);
    char *whole = NULL, *mine = NULL;
    clmgk_status status = mgk_dist_alloc(bytes, (void **)&whole, error);
    if (status == CLMGK_OK)
        status = mgk_dist_alloc(bytes, (void **)&mine, error);
    if (status == CLMGK_OK)
        status = gather(p, args, error);
    if (status == CLMGK_OK)
        status = run_backward(p, p->plan[0], args, true, p->total, whole, error);
    if (status == CLMGK_OK)
        status = reduce(p, args, whole, mine, error);
    if (status == CLMGK_OK)
        status = mgk_dist_end_sums(p, args, error);
    free(whole);
    free(mine);
    return status;
}

/* ---- RING -------------------------------------------------------------------------------------------------------- */

enum { TAG_KEYS, TAG_GRADIENTS };

/* Host memory of a turn of the ring: the shard that is computed, and the next one; of dK and dV the sums that are sent,
 * those that come, this step's part, and that of the own keys, which waits until the others' sum comes home. */
typedef struct ring_memory {
    char *keys[2], *sums[2], *part, *own;
} ring_memory;

static void free_ring(ring_memory *m)
{
    free(m->keys[0]);
    free(m->keys[1]);
    free(m->sums[0]);
    free(m->sums[1]);
    free(m->part);
    free(m->own);
}

static clmgk_status make_ring(const clmgk_dist_plan *p, bool backward, ring_memory *m, clmgk_error *error)
{
    const int64_t keys = mgk_dist_cargo_bytes(&p->keys, p->most);
    const int64_t gradients = backward ? mgk_dist_cargo_bytes(&p->gradients, p->most) : 0;
    *m = (ring_memory){{NULL, NULL}, {NULL, NULL}, NULL, NULL};
    for (int n = 0; n < 2; ++n) {
        DIST_TRY(mgk_dist_alloc(keys, (void **)&m->keys[n], error));
        DIST_TRY(mgk_dist_alloc(gradients, (void **)&m->sums[n], error));
    }
    DIST_TRY(mgk_dist_alloc(gradients, (void **)&m->own, error));
    return mgk_dist_alloc(gradients, (void **)&m->part, error);
}

/* The owner of the shard that is computed in a step. */
static int32_t owner_of(const clmgk_dist_plan *p, int32_t step)
{
    return mgk_dist_neighbour(p, -step);
}

/* The shard of `step` goes to the next rank, and that of the next step comes. */
static clmgk_status pass_keys_on(const clmgk_dist_plan *p, ring_memory *m, int32_t step, mgk_dist_flight *flight,
                                 clmgk_error *error)
{
    const clmgk_dist_exchange x = {.send = m->keys[step % 2],
                                   .send_bytes = mgk_dist_cargo_bytes(&p->keys, p->lengths_k[owner_of(p, step)]),
                                   .to = mgk_dist_neighbour(p, 1),
                                   .receive = m->keys[1 - step % 2],
                                   .receive_bytes = mgk_dist_cargo_bytes(&p->keys, p->lengths_k[owner_of(p, step + 1)]),
                                   .from = mgk_dist_neighbour(p, -1),
                                   .tag = TAG_KEYS};
    return step + 1 < p->transport.ranks ? mgk_dist_flight_add(flight, &x, error) : CLMGK_OK;
}

/* The sums of dK and dV of the shard of step - 1 go to the next rank, and those of `step` come. */
static clmgk_status pass_sums_on(const clmgk_dist_plan *p, ring_memory *m, int32_t step, mgk_dist_flight *flight,
                                 clmgk_error *error)
{
    const clmgk_dist_exchange x = {
        .send = m->sums[1 - step % 2],
        .send_bytes = mgk_dist_cargo_bytes(&p->gradients, p->lengths_k[owner_of(p, step - 1)]),
        .to = mgk_dist_neighbour(p, 1),
        .receive = m->sums[step % 2],
        .receive_bytes = mgk_dist_cargo_bytes(&p->gradients, p->lengths_k[owner_of(p, step)]),
        .from = mgk_dist_neighbour(p, -1),
        .tag = TAG_GRADIENTS};
    return mgk_dist_flight_add(flight, &x, error);
}

/* O, L and its low part of a range of keys, as part number `part`. */
static void set_part(const clmgk_dist_plan *p, int64_t part, clmgk_attention_args *a)
{
    const int64_t rows = part * p->desc.batch * p->desc.heads * p->desc.length;
    a->o = (clmgk_buffer){p->parts_o, (uint64_t)(rows * p->desc.value_size)};
    a->lse = (clmgk_buffer){p->parts_lse, (uint64_t)rows};
    a->lse_low = (clmgk_buffer){p->parts_low, p->parts_low != NULL ? (uint64_t)rows : 0};
}

static clmgk_status forward_step(const clmgk_dist_plan *p, const clmgk_attention_args *args, const char *shard,
                                 int32_t owner, int64_t *parts, clmgk_error *error)
{
    clmgk_attention_args a = *args;
    if (p->lengths_k[owner] == 0)
        return CLMGK_OK;
    DIST_TRY(write_shard(p, shard, p->lengths_k[owner], error));
    set_keys(p, &a);
    if (*parts > 0 && p->no_sinks != NULL)
        a.sinks = (clmgk_buffer){p->no_sinks, 0};
    set_part(p, (*parts)++, &a);
    return mgk_dist_finish(p, clmgk_enqueue_forward(p->plan[owner], p->queue, &a, 0, NULL, NULL, error), error);
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

static clmgk_status ring_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    ring_memory m;
    int64_t parts = 0;
    clmgk_status status = make_ring(p, false, &m, error);
    if (status == CLMGK_OK)
        status = read_shard(p, args, m.keys[0], error);
    for (int32_t step = 0; step < p->transport.ranks && status == CLMGK_OK; ++step) {
        mgk_dist_flight flight;
        status = mgk_dist_flight_begin(p, 1, &flight, error);
        if (status != CLMGK_OK)
            break;
        status = pass_keys_on(p, &m, step, &flight, error);
        if (status == CLMGK_OK)
            status = forward_step(p, args, m.keys[step % 2], owner_of(p, step), &parts, error);
        status = mgk_dist_flight_end(&flight, status, error);
    }
    free_ring(&m);
    return status == CLMGK_OK ? combine_parts(p, args, parts, error) : status;
}

static clmgk_status backward_step(const clmgk_dist_plan *p, const clmgk_attention_args *args, const ring_memory *m,
                                  int32_t step, bool *first, clmgk_error *error)
{
    const int32_t owner = owner_of(p, step);
    if (p->lengths_k[owner] == 0)
        return CLMGK_OK;
    DIST_TRY(write_shard(p, m->keys[step % 2], p->lengths_k[owner], error));
    DIST_TRY(run_backward(p, p->plan[owner], args, *first, p->lengths_k[owner], m->part, error));
    *first = false;
    return CLMGK_OK;
}

/* A step: the next keys and the sums of this step's come while its own part is computed. */
static clmgk_status ring_turn(const clmgk_dist_plan *p, const clmgk_attention_args *args, ring_memory *m, int32_t step,
                              bool *first, clmgk_error *error)
{
    mgk_dist_flight flight;
    DIST_TRY(mgk_dist_flight_begin(p, 2, &flight, error));
    clmgk_status status = pass_keys_on(p, m, step, &flight, error);
    if (status == CLMGK_OK && step > 1)
        status = pass_sums_on(p, m, step, &flight, error);
    if (status == CLMGK_OK)
        status = backward_step(p, args, m, step, first, error);
    status = mgk_dist_flight_end(&flight, status, error);
    if (status != CLMGK_OK)
        return status;
    const int64_t tokens = p->lengths_k[owner_of(p, step)];
    if (step > 1)
        add_shard(p, m->sums[step % 2], m->part, tokens);
    else
        memcpy(step == 0 ? m->own : m->sums[1], m->part, (size_t)mgk_dist_cargo_bytes(&p->gradients, tokens));
    return CLMGK_OK;
}

/* The others' sums of the own keys come home. */
static clmgk_status bring_home(const clmgk_dist_plan *p, const clmgk_attention_args *args, ring_memory *m,
                               clmgk_error *error)
{
    const int32_t ranks = p->transport.ranks;
    mgk_dist_flight flight;
    DIST_TRY(mgk_dist_flight_begin(p, 1, &flight, error));
    DIST_TRY(mgk_dist_flight_end(&flight, pass_sums_on(p, m, ranks, &flight, error), error));
    add_shard(p, m->sums[ranks % 2], m->own, own_keys(p));
    return write_gradients(p, args, m->sums[ranks % 2], error);
}

static clmgk_status ring_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    ring_memory m;
    bool first = true;
    clmgk_status status = make_ring(p, true, &m, error);
    if (status == CLMGK_OK)
        status = read_shard(p, args, m.keys[0], error);
    for (int32_t step = 0; step < p->transport.ranks && status == CLMGK_OK; ++step)
        status = ring_turn(p, args, &m, step, &first, error);
    if (status == CLMGK_OK)
        status = bring_home(p, args, &m, error);
    if (status == CLMGK_OK)
        status = mgk_dist_end_sums(p, args, error);
    free_ring(&m);
    return status;
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

clmgk_status clmgk_dist_forward(clmgk_dist_plan *plan, const clmgk_attention_args *args, clmgk_error *error)
{
    static pass *const passes[] = {[CLMGK_DIST_ALL_GATHER] = gathered_forward,
                                   [CLMGK_DIST_RING] = ring_forward,
                                   [CLMGK_DIST_ALL_TO_ALL] = mgk_dist_heads_forward,
                                   [CLMGK_DIST_SCAN] = mgk_dist_scan_forward};
    DIST_TRY(check_call(plan, args, error));
    return told(plan, passes[plan->schedule](plan, args, error));
}

clmgk_status clmgk_dist_backward(clmgk_dist_plan *plan, const clmgk_attention_args *args, clmgk_error *error)
{
    static pass *const passes[] = {[CLMGK_DIST_ALL_GATHER] = gathered_backward,
                                   [CLMGK_DIST_RING] = ring_backward,
                                   [CLMGK_DIST_ALL_TO_ALL] = mgk_dist_heads_backward,
                                   [CLMGK_DIST_SCAN] = mgk_dist_scan_backward};
    DIST_TRY(check_call(plan, args, error));
    if (plan->desc.gradients == 0)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: 0: expected a plan with gradients");
    return told(plan, passes[plan->schedule](plan, args, error));
}
