/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ALL_TO_ALL: a rank's tokens go out to all ranks, to each those of its heads, and the results come back. So every head
 * is computed as on one device, with all tokens, by one rank. Groups of heads that read one head of V stay together.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

clmgk_attention_desc mgk_dist_heads_desc(const clmgk_dist_plan *p, const clmgk_attention_desc *given)
{
    const int32_t rank = p->transport.rank;
    const int64_t first = mgk_dist_groups_before(p, rank), ratio = p->desc.heads / p->desc.kv_heads;
    clmgk_attention_desc d = *given;
    d.kv_heads = mgk_dist_groups_before(p, rank + 1) - first;
    d.heads = d.kv_heads * ratio;
    d.first_head = p->desc.first_head + first * ratio;
    d.all_heads = p->desc.all_heads > 0 ? p->desc.all_heads : p->desc.heads;
    d.length = p->total_q;
    d.length_k = p->total > 0 ? p->total : CLMGK_NO_KEYS;
    d.use_offsets_k = d.sequences > 0;
    return d;
}

/* ---- arrays of tokens ------------------------------------------------------------------------------------------- */

/* An array [batch, lists, tokens, row bytes]. */
typedef struct track {
    clmgk_array array;
    bool keys;  /* tokens are keys */
    bool split; /* lists are of heads */
    int64_t lists, row;
} track;

static track track_of(const clmgk_dist_plan *p, clmgk_array array)
{
    const clmgk_shape shape = clmgk_array_shape(&p->desc, array);
    track t = {array, false, false, 1, (int64_t)clmgk_array_element_size(&p->desc, array)};
    int axis = 1;
    for (; axis < shape.rank && shape.axes[axis] != 'N' && shape.axes[axis] != 'S'; ++axis) {
        t.lists *= shape.size[axis];
        t.split = true;
    }
    t.keys = shape.axes[axis] == 'S';
    for (++axis; axis < shape.rank; ++axis)
        t.row *= shape.size[axis];
    return t;
}

/* Lists before those of a rank's heads. */
static int64_t lists_before(const clmgk_dist_plan *p, const track *t, int32_t rank)
{
    return t->lists / p->desc.kv_heads * mgk_dist_groups_before(p, rank);
}

/* A part of an array: some of its lists and tokens, which are of each sequence those from a place on. */
typedef struct block {
    int64_t first_list, lists, all_lists, tokens, all_tokens;
    const int32_t *begins, *places;
} block;

/* The numbers that pass between this rank and another. `own`: in the array of this rank's tokens, the other one's
 * heads; else in the array of this rank's heads, the other one's tokens. */
static block block_of(const clmgk_dist_plan *p, const track *t, bool own, int32_t other)
{
    const int32_t rank = p->transport.rank, heads_of = own ? other : rank, tokens_of = own ? rank : other;
    const int64_t first = t->split ? lists_before(p, t, heads_of) : 0;
    const int64_t lists = t->split ? lists_before(p, t, heads_of + 1) - first : t->lists;
    const mgk_dist_kind kind = t->keys ? DIST_KEYS : DIST_QUERIES;
    const int64_t tokens = (t->keys ? p->lengths_k : p->lengths_q)[tokens_of];
    const int32_t *const begins = mgk_dist_begins(p, kind, tokens_of);
    return own ? (block){first, lists, t->lists, tokens, tokens, begins, begins}
               : (block){0,
                         lists,
                         lists,
                         tokens,
                         t->keys ? p->total : p->total_q,
                         begins,
                         mgk_dist_places(p, kind, tokens_of)};
}

static int64_t array_bytes(const clmgk_dist_plan *p, const track *t, bool own)
{
    const block b = block_of(p, t, own, p->transport.rank);
    return p->desc.batch * b.all_lists * b.all_tokens * t->row;
}

static int64_t message_bytes(const clmgk_dist_plan *p, const track *t, bool own, int32_t other)
{
    const block b = block_of(p, t, own, other);
    return p->desc.batch * b.lists * b.tokens * t->row;
}

/* Copies a block of an array to a message, or back. */
static void copy_block(const clmgk_dist_plan *p, const track *t, const block *b, char *array, char *message, bool back)
{
    for (int64_t batch = 0; batch < p->desc.batch; ++batch)
        for (int64_t list = 0; list < b->lists; ++list) {
            char *const rows = array + (batch * b->all_lists + b->first_list + list) * b->all_tokens * t->row;
            for (int64_t s = 0; s < p->sequences; ++s) {
                const int64_t bytes = (b->begins[s + 1] - b->begins[s]) * t->row;
                char *const place = rows + b->places[s] * t->row;
                memcpy(back ? place : message, back ? message : place, (size_t)bytes);
                message += bytes;
            }
        }
}

int64_t mgk_dist_heads_bytes(const clmgk_dist_plan *p, clmgk_array array)
{
    static const clmgk_array arrays[] = {
        CLMGK_ARRAY_Q,       CLMGK_ARRAY_K,         CLMGK_ARRAY_V,      CLMGK_ARRAY_O,        CLMGK_ARRAY_LSE,
        CLMGK_ARRAY_LSE_LOW, CLMGK_ARRAY_POSITIONS, CLMGK_ARRAY_GRAD_O, CLMGK_ARRAY_GRAD_LSE, CLMGK_ARRAY_POSITIONS_K,
        CLMGK_ARRAY_GRAD_Q,  CLMGK_ARRAY_GRAD_K,    CLMGK_ARRAY_GRAD_V};
    bool found = false;
    for (size_t n = 0; n < DIST_COUNT(arrays); ++n)
        found = found || arrays[n] == array;
    if (!found || clmgk_array_shape(&p->desc, array).rank == 0)
        return 0;
    const track t = track_of(p, array);
    return array_bytes(p, &t, false);
}

/* ---- all to all ------------------------------------------------------------------------------------------------- */

/* Arrays that go together; messages in the order of ranks, each with all arrays. */
typedef struct parcel {
    const clmgk_dist_plan *plan;
    bool home; /* from the ranks of heads to those of tokens; else out */
    track tracks[CLMGK_ARRAYS];
    int count;
    char *out, *in;
    int64_t
        *begins[2]; /* [ranks + 1]: where messages begin, as seen from the ranks of heads, and from those of tokens */
} parcel;

static void add_track(parcel *x, clmgk_array array, bool wanted)
{
    if (wanted && clmgk_array_shape(&x->plan->desc, array).rank > 0)
        x->tracks[x->count++] = track_of(x->plan, array);
}

static clmgk_status find_begins(parcel *x, int own, clmgk_error *error)
{
    const int32_t ranks = x->plan->transport.ranks;
    DIST_TRY(mgk_dist_alloc((ranks + 1) * (int64_t)sizeof(int64_t), (void **)&x->begins[own], error));
    for (int32_t r = 0; r < ranks; ++r) {
        int64_t bytes = 0;
        for (int n = 0; n < x->count; ++n)
            bytes += message_bytes(x->plan, &x->tracks[n], own, r);
        x->begins[own][r + 1] = x->begins[own][r] + bytes;
    }
    return CLMGK_OK;
}

/* Where an array is in the message of a rank. */
static char *place_of(const parcel *x, bool own, int32_t rank, int number, char *messages)
{
    char *place = messages + x->begins[own][rank];
    for (int n = 0; n < number; ++n)
        place += message_bytes(x->plan, &x->tracks[n], own, rank);
    return place;
}

static const clmgk_buffer *buffer_of(const clmgk_dist_plan *p, clmgk_attention_args *args, clmgk_array array, bool own,
                                     clmgk_buffer *local)
{
    *local = (clmgk_buffer){p->heads[array], 0};
    return own ? clmgk_array_buffer(args, array) : local;
}

/* Reads an array and makes its part of each message, or takes it out of each and writes it. */
static clmgk_status move_array(const parcel *x, int number, clmgk_attention_args *args, bool taken, clmgk_error *error)
{
    const clmgk_dist_plan *const p = x->plan;
    const track *const t = &x->tracks[number];
    const bool own = taken == x->home;
    const int64_t bytes = array_bytes(p, t, own), element = (int64_t)clmgk_array_element_size(&p->desc, t->array);
    clmgk_buffer local;
    const clmgk_buffer *const buffer = buffer_of(p, args, t->array, own, &local);
    char *host = NULL;
    /* Arrays that the caller leaves out: L's low part is not written, dL is 0. */
    const bool absent = buffer->memory == NULL && t->array == (taken ? CLMGK_ARRAY_LSE_LOW : CLMGK_ARRAY_GRAD_LSE);
    if (taken && absent)
        return CLMGK_OK;
    DIST_TRY(mgk_dist_alloc(bytes, (void **)&host, error));
    clmgk_status status = taken || absent ? CLMGK_OK : mgk_dist_read(p, buffer, element, bytes, host, error);
    for (int32_t r = 0; r < p->transport.ranks && status == CLMGK_OK; ++r) {
        const block b = block_of(p, t, own, r);
        copy_block(p, t, &b, host, place_of(x, own, r, number, taken ? x->in : x->out), taken);
    }
    if (taken && status == CLMGK_OK)
        status = mgk_dist_write(p, buffer, element, bytes, host, error);
    free(host);
    return status;
}

static clmgk_status exchange_parcels(const parcel *x, clmgk_error *error)
{
    const clmgk_dist_plan *const p = x->plan;
    const bool sent = !x->home; /* the view of what is sent */
    const int32_t rank = p->transport.rank;
    mgk_dist_flight flight;
    DIST_TRY(mgk_dist_flight_begin(p, p->transport.ranks, &flight, error));
    clmgk_status status = CLMGK_OK;
    for (int32_t n = 1; n < p->transport.ranks && status == CLMGK_OK; ++n) {
        const int32_t to = mgk_dist_neighbour(p, n), from = mgk_dist_neighbour(p, -n);
        const clmgk_dist_exchange exchange = {.send = x->out + x->begins[sent][to],
                                              .send_bytes = x->begins[sent][to + 1] - x->begins[sent][to],
                                              .to = to,
                                              .receive = x->in + x->begins[!sent][from],
                                              .receive_bytes = x->begins[!sent][from + 1] - x->begins[!sent][from],
                                              .from = from};
        status = mgk_dist_flight_add(&flight, &exchange, error);
    }
    memcpy(x->in + x->begins[!sent][rank], x->out + x->begins[sent][rank],
           (size_t)(x->begins[sent][rank + 1] - x->begins[sent][rank]));
    return mgk_dist_flight_end(&flight, status, error);
}

static clmgk_status send_parcel(parcel *x, const clmgk_attention_args *args, clmgk_error *error)
{
    const int32_t ranks = x->plan->transport.ranks;
    clmgk_attention_args a = *args;
    clmgk_status status = find_begins(x, 0, error);
    if (status == CLMGK_OK)
        status = find_begins(x, 1, error);
    if (status == CLMGK_OK)
        status = mgk_dist_alloc(x->begins[!x->home][ranks], (void **)&x->out, error);
    if (status == CLMGK_OK)
        status = mgk_dist_alloc(x->begins[x->home][ranks], (void **)&x->in, error);
    for (int n = 0; n < x->count && status == CLMGK_OK; ++n)
        status = move_array(x, n, &a, false, error);
    if (status == CLMGK_OK)
        status = exchange_parcels(x, error);
    for (int n = 0; n < x->count && status == CLMGK_OK; ++n)
        status = move_array(x, n, &a, true, error);
    free(x->out);
    free(x->in);
    free(x->begins[0]);
    free(x->begins[1]);
    return status;
}

/* ---- passes ----------------------------------------------------------------------------------------------------- */

/* The arguments of this rank's heads. */
static clmgk_attention_args heads_args(const clmgk_dist_plan *p, const clmgk_attention_args *args)
{
    clmgk_attention_args a = *args;
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; ++array) {
        clmgk_buffer *const buffer = clmgk_array_buffer(&a, array);
        if (p->heads[array] != NULL)
            *buffer = (clmgk_buffer){p->heads[array], 0};
        else
            buffer->offset += (uint64_t)mgk_dist_head_offset(p, array);
    }
    mgk_dist_set_begins(p, DIST_QUERIES, &a.offsets);
    mgk_dist_set_begins(p, DIST_KEYS, &a.offsets_k);
    a.workspace = (clmgk_buffer){p->workspace, 0};
    return a;
}

/* A pass's offsets are those of all tokens. */
static clmgk_status write_offsets(const clmgk_dist_plan *p, clmgk_error *error)
{
    DIST_TRY(mgk_dist_write_begins(p, DIST_QUERIES, mgk_dist_whole(p, DIST_QUERIES), error));
    return mgk_dist_write_begins(p, DIST_KEYS, mgk_dist_whole(p, DIST_KEYS), error);
}

clmgk_status mgk_dist_heads_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    const clmgk_attention_args a = heads_args(p, args);
    parcel out = {.plan = p}, home = {.plan = p, .home = true};
    static const clmgk_array inputs[] = {CLMGK_ARRAY_Q, CLMGK_ARRAY_K, CLMGK_ARRAY_V, CLMGK_ARRAY_POSITIONS,
                                         CLMGK_ARRAY_POSITIONS_K};
    for (size_t n = 0; n < DIST_COUNT(inputs); ++n)
        add_track(&out, inputs[n], true);
    DIST_TRY(send_parcel(&out, args, error));
    DIST_TRY(write_offsets(p, error));
    DIST_TRY(mgk_dist_finish(p, clmgk_enqueue_forward(p->plan[0], p->queue, &a, 0, NULL, NULL, error), error));
    add_track(&home, CLMGK_ARRAY_O, true);
    add_track(&home, CLMGK_ARRAY_LSE, true);
    add_track(&home, CLMGK_ARRAY_LSE_LOW, true);
    return send_parcel(&home, args, error);
}

clmgk_status mgk_dist_heads_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    static const clmgk_array inputs[] = {
        CLMGK_ARRAY_Q, CLMGK_ARRAY_K,   CLMGK_ARRAY_V,       CLMGK_ARRAY_POSITIONS, CLMGK_ARRAY_POSITIONS_K,
        CLMGK_ARRAY_O, CLMGK_ARRAY_LSE, CLMGK_ARRAY_LSE_LOW, CLMGK_ARRAY_GRAD_O,    CLMGK_ARRAY_GRAD_LSE};
    static const clmgk_array results[] = {CLMGK_ARRAY_GRAD_Q, CLMGK_ARRAY_GRAD_K, CLMGK_ARRAY_GRAD_V};
    const uint32_t own = (uint32_t)(CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V);
    clmgk_attention_args a = heads_args(p, args);
    parcel out = {.plan = p}, home = {.plan = p, .home = true};
    for (size_t n = 0; n < DIST_COUNT(inputs); ++n)
        add_track(&out, inputs[n], true);
    for (size_t n = 0; n < DIST_COUNT(results); ++n) { /* what is added to goes out, and comes back with the sum */
        add_track(&out, results[n], (args->accumulate & clmgk_array_get_info(results[n])->gradient) != 0);
        add_track(&home, results[n], true);
    }
    DIST_TRY(send_parcel(&out, args, error));
    DIST_TRY(write_offsets(p, error));
    a.accumulate &= own;
    DIST_TRY(mgk_dist_begin_sums(p, true, &a, error));
    DIST_TRY(mgk_dist_finish(p, clmgk_enqueue_backward(p->plan[0], p->queue, &a, 0, NULL, NULL, error), error));
    DIST_TRY(send_parcel(&home, args, error));
    return mgk_dist_end_sums(p, args, error);
}
