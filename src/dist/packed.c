/* SPDX-License-Identifier: Apache-2.0 */
/* Where tokens of packed sequences are: in the shards of ranks, and among the tokens of all ranks. */
#include "plan.h"

#include <string.h>

static int64_t room_of(const clmgk_dist_plan *p)
{
    return p->sequences + 1;
}

const int32_t *mgk_dist_begins(const clmgk_dist_plan *p, mgk_dist_kind kind, int32_t rank)
{
    return p->pieces.begins + ((int64_t)rank * DIST_KINDS + kind) * room_of(p);
}

const int32_t *mgk_dist_places(const clmgk_dist_plan *p, mgk_dist_kind kind, int32_t rank)
{
    return p->pieces.places + ((int64_t)kind * p->transport.ranks + rank) * p->sequences;
}

const int32_t *mgk_dist_whole(const clmgk_dist_plan *p, mgk_dist_kind kind)
{
    return p->pieces.whole + (int64_t)kind * room_of(p);
}

static void find_places(const clmgk_dist_plan *p, mgk_dist_kind kind)
{
    const int32_t ranks = p->transport.ranks;
    int32_t *const whole = p->pieces.whole + (int64_t)kind * room_of(p);
    int32_t *const places = p->pieces.places + (int64_t)kind * ranks * p->sequences;
    int32_t next = 0;
    for (int64_t s = 0; s < p->sequences; ++s) {
        whole[s] = next;
        for (int32_t r = 0; r < ranks; ++r) {
            const int32_t *const begins = mgk_dist_begins(p, kind, r);
            places[r * p->sequences + s] = next;
            next += begins[s + 1] - begins[s];
        }
    }
    whole[p->sequences] = next;
}

static clmgk_status check_begins(const clmgk_dist_plan *p, mgk_dist_kind kind, int32_t rank, clmgk_error *error)
{
    static const char *const names[DIST_KINDS] = {"offsets", "offsets_k"};
    const int32_t *const begins = mgk_dist_begins(p, kind, rank);
    const int64_t count = (kind == DIST_QUERIES ? p->lengths_q : p->lengths_k)[rank];
    bool ascending = begins[0] == 0 && begins[p->sequences] == count;
    for (int64_t s = 0; s < p->sequences; ++s)
        ascending = ascending && begins[s] <= begins[s + 1];
    return ascending ? CLMGK_OK
                     : mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE,
                                     "%s of rank %d: expected them to ascend from 0 to its %lld tokens", names[kind],
                                     (int)rank, (long long)count);
}

clmgk_status mgk_dist_make_pieces(clmgk_dist_plan *p, clmgk_error *error)
{
    const int64_t lists = (int64_t)p->transport.ranks * DIST_KINDS, bytes = room_of(p) * (int64_t)sizeof(int32_t);
    DIST_TRY(mgk_dist_alloc(lists * bytes, (void **)&p->pieces.begins, error));
    DIST_TRY(mgk_dist_alloc(lists * bytes, (void **)&p->pieces.places, error));
    DIST_TRY(mgk_dist_alloc(DIST_KINDS * bytes, (void **)&p->pieces.whole, error));
    DIST_TRY(mgk_dist_alloc(bytes, (void **)&p->pieces.half, error));
    if (p->desc.sequences > 0)
        return mgk_dist_make_memory(p, CL_MEM_READ_WRITE, DIST_KINDS * bytes, &p->pieces.memory, error);
    for (int32_t r = 0; r < p->transport.ranks; ++r) {
        int32_t *const begins = p->pieces.begins + (int64_t)r * DIST_KINDS * room_of(p);
        begins[1] = (int32_t)p->lengths_q[r];
        begins[room_of(p) + 1] = (int32_t)p->lengths_k[r];
    }
    find_places(p, DIST_QUERIES);
    find_places(p, DIST_KEYS);
    return CLMGK_OK;
}

clmgk_status mgk_dist_share_pieces(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    const int64_t bytes = room_of(p) * (int64_t)sizeof(int32_t);
    int32_t *const own = p->pieces.begins + (int64_t)p->transport.rank * DIST_KINDS * room_of(p);
    if (p->desc.sequences == 0)
        return CLMGK_OK;
    DIST_TRY(mgk_dist_read(p, &args->offsets, (int64_t)sizeof(int32_t), bytes, own, error));
    DIST_TRY(mgk_dist_read(p, p->desc.use_offsets_k ? &args->offsets_k : &args->offsets, (int64_t)sizeof(int32_t),
                           bytes, own + room_of(p), error));
    DIST_TRY(mgk_dist_share(p, p->pieces.begins, DIST_KINDS * bytes, error));
    for (mgk_dist_kind kind = 0; kind < DIST_KINDS; ++kind) {
        for (int32_t r = 0; r < p->transport.ranks; ++r)
            DIST_TRY(check_begins(p, kind, r, error));
        find_places(p, kind);
    }
    return CLMGK_OK;
}

clmgk_status mgk_dist_write_begins(const clmgk_dist_plan *p, mgk_dist_kind kind, const int32_t *begins,
                                   clmgk_error *error)
{
    const clmgk_buffer to = {p->pieces.memory, (uint64_t)(kind * room_of(p))};
    return p->desc.sequences == 0
               ? CLMGK_OK
               : mgk_dist_write(p, &to, (int64_t)sizeof(int32_t), room_of(p) * (int64_t)sizeof(int32_t), begins, error);
}

void mgk_dist_set_begins(const clmgk_dist_plan *p, mgk_dist_kind kind, clmgk_buffer *buffer)
{
    if (p->desc.sequences > 0)
        *buffer = (clmgk_buffer){p->pieces.memory, (uint64_t)(kind * room_of(p))};
}

void mgk_dist_place_tokens(const clmgk_dist_plan *p, const mgk_dist_cargo *cargo, int32_t rank, char *shard,
                           char *whole, bool back)
{
    const int32_t *const begins = mgk_dist_begins(p, DIST_KEYS, rank);
    const int32_t *const places = mgk_dist_places(p, DIST_KEYS, rank);
    for (int64_t s = 0; s < p->sequences; ++s) {
        const mgk_dist_place part = {p->lengths_k[rank], begins[s]}, all = {p->total, places[s]};
        mgk_dist_copy_tokens(cargo, begins[s + 1] - begins[s], back ? whole : shard, back ? all : part,
                             back ? shard : whole, back ? part : all);
    }
}
