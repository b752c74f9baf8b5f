/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's plan, and tokens on their way between ranks. */
#ifndef DIST_PLAN_H
#define DIST_PLAN_H

#include "dist.h"

/* An array with a row of `bytes` bytes for each token, [lists, tokens, bytes]. */
typedef struct mgk_dist_track {
    int64_t lists, bytes;
} mgk_dist_track;

/* The numbers that travel with a token: rows of K, V and positions, or of dK and dV in f32. A shard has the tracks one
 * after the other, each for all of its tokens. */
enum { DIST_K, DIST_V, DIST_POSITIONS, DIST_TRACKS };
typedef struct mgk_dist_cargo {
    mgk_dist_track track[DIST_TRACKS];
} mgk_dist_cargo;

int64_t mgk_dist_cargo_bytes(const mgk_dist_cargo *cargo, int64_t tokens);
/* Where a track begins in a shard. */
int64_t mgk_dist_track_begin(const mgk_dist_cargo *cargo, int track, int64_t tokens);
/* A token of a shard of `tokens`. */
typedef struct mgk_dist_place {
    int64_t tokens, first;
} mgk_dist_place;

/* Copies `count` tokens of a shard into another. */
void mgk_dist_copy_tokens(const mgk_dist_cargo *cargo, int64_t count, const void *from, mgk_dist_place from_place,
                          void *to, mgk_dist_place to_place);

/* Packed sequences: each rank has a piece of each. All tokens together are the sequences one after the other, each with
 * the ranks' pieces in their order. Without packing the tokens of a batch are one sequence. */
typedef enum mgk_dist_kind { DIST_QUERIES, DIST_KEYS, DIST_KINDS } mgk_dist_kind;
typedef struct mgk_dist_pieces {
    int32_t *begins; /* [ranks, kinds, sequences + 1]: where sequences begin in a rank's tokens; packed: of this call */
    int32_t *places; /* [kinds, ranks, sequences]: where pieces are among all tokens */
    int32_t *whole;  /* [kinds, sequences + 1]: where sequences begin there */
    int32_t *half;   /* [sequences + 1]: RING: in half of the own keys */
    cl_mem memory;   /* [kinds, sequences + 1], of a pass; NULL: not packed */
} mgk_dist_pieces;

/* Host memory of shards on their way, in one buffer that is mapped as long as the plan lives: devices copy to and from
 * such memory at once (it is pinned). */
typedef struct mgk_dist_host {
    cl_mem memory;
    void *mapped;
    /* RING: the shard that is computed, and the next one; ALL_GATHER: all shards, and their tokens in order. */
    char *keys[2];
    char *half; /* of the own keys */
    /* Of dK and dV, RING: the sums that are sent, and those that come; ALL_GATHER: of all keys, and by shards. */
    char *sums[2];
    char *part; /* that was computed last; ALL_GATHER: the ranks' parts of the own keys */
    char *own;  /* RING: of the own keys; it waits until the others' sum comes home */
} mgk_dist_host;

struct clmgk_dist_plan {
    cl_command_queue queue;
    clmgk_attention_desc desc; /* of this rank, resolved */
    clmgk_dist_transport transport;
    double timeout;
    clmgk_dist_schedule schedule;   /* that is used: ALL_GATHER where there is one rank, or no key */
    int64_t *lengths_q, *lengths_k; /* [ranks] */
    int64_t total_q;
    int64_t total, most; /* keys of all ranks, and of the largest one */
    int64_t sequences;   /* 1: not packed */
    mgk_dist_pieces pieces;
    mgk_dist_cargo keys, gradients;
    clmgk_plan **plan; /* [ranks]: of this rank's queries and the keys of a rank; ALL_GATHER: [0], of all keys;
                        * RING: [ranks + 2], at last of the halves of this rank's keys; ALL_TO_ALL: [0], of all
                        * tokens and this rank's heads; SCAN: by the numbers below */
    int32_t plans;
    clmgk_plan *combine;
    cl_mem memory[DIST_TRACKS], grad[2]; /* keys, and dK and dV, of a shard or of all */
    cl_mem parts_o, parts_lse, parts_low, workspace;
    mgk_dist_host host;
    cl_mem no_sinks;            /* RING with sinks: logits -inf, for all parts but a row's first */
    cl_mem sums;                /* gradients of arrays that all ranks have alike, and as much behind them (memory.c) */
    cl_mem heads[CLMGK_ARRAYS]; /* ALL_TO_ALL: all tokens of this rank's heads */
    clmgk_attention_desc part;  /* SCAN: this rank's problem with states, resolved */
    cl_mem state, new_state;    /* SCAN: C, z and m, passed in and made; the latter also for their gradients */
};

/* Plans of SCAN: this rank's tokens with the state passed in; its keys' state; the gradient of the state passed in. */
enum { SCAN_ALL, SCAN_KEYS, SCAN_QUERIES, SCAN_PLANS };

/* ---- shards.c ---- */

int64_t mgk_dist_own_keys(const clmgk_dist_plan *p);
/* This rank's shard, of the call's arrays. */
clmgk_status mgk_dist_read_shard(const clmgk_dist_plan *p, const clmgk_attention_args *args, char *shard,
                                 clmgk_error *error);
/* A shard of `tokens` comes to the plan's memory, which a pass then reads as its keys. `begins`: where sequences begin
 * in it. */
clmgk_status mgk_dist_write_shard(const clmgk_dist_plan *p, const char *shard, int64_t tokens, const int32_t *begins,
                                  clmgk_error *error);
void mgk_dist_set_keys(const clmgk_dist_plan *p, clmgk_attention_args *a);
/* A backward pass over the `tokens` keys there: dQ goes to the call's array, dK and dV, at the end, to `shard`. */
clmgk_status mgk_dist_begin_backward(const clmgk_dist_plan *p, clmgk_plan *plan, const clmgk_attention_args *args,
                                     bool first, int64_t tokens, clmgk_error *error);
clmgk_status mgk_dist_end_backward(const clmgk_dist_plan *p, clmgk_status status, int64_t tokens, char *shard,
                                   clmgk_error *error);
void mgk_dist_add_shard(const clmgk_dist_plan *p, char *to, const char *from, int64_t tokens);
/* dK and dV of this rank's keys go to the call's arrays, or are added to what is there. */
clmgk_status mgk_dist_write_gradients(const clmgk_dist_plan *p, const clmgk_attention_args *args, char *shard,
                                      clmgk_error *error);

/* The plan's host memory, for RING and ALL_GATHER. */
clmgk_status mgk_dist_make_host(clmgk_dist_plan *p, clmgk_error *error);
void mgk_dist_free_host(clmgk_dist_plan *p);

/* ---- packed.c ---- */

const int32_t *mgk_dist_begins(const clmgk_dist_plan *p, mgk_dist_kind kind, int32_t rank);
const int32_t *mgk_dist_places(const clmgk_dist_plan *p, mgk_dist_kind kind, int32_t rank);
const int32_t *mgk_dist_whole(const clmgk_dist_plan *p, mgk_dist_kind kind);
clmgk_status mgk_dist_make_pieces(clmgk_dist_plan *p, clmgk_error *error);
/* Takes the call's offsets, of all ranks. */
clmgk_status mgk_dist_share_pieces(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);
/* Where sequences begin in the tokens of a pass goes to the device; and is the array of its call. */
clmgk_status mgk_dist_write_begins(const clmgk_dist_plan *p, mgk_dist_kind kind, const int32_t *begins,
                                   clmgk_error *error);
void mgk_dist_set_begins(const clmgk_dist_plan *p, mgk_dist_kind kind, clmgk_buffer *buffer);
/* Copies a rank's keys to their places among all, or back. */
void mgk_dist_place_tokens(const clmgk_dist_plan *p, const mgk_dist_cargo *cargo, int32_t rank, char *shard,
                           char *whole, bool back);

/* ---- ring.c: RING ---- */

/* This rank's keys are two halves for the backward pass: their number of keys. */
int64_t mgk_dist_half_keys(const clmgk_dist_plan *p, int half);
clmgk_status mgk_dist_ring_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);
clmgk_status mgk_dist_ring_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);

/* ---- linear.c: SCAN ---- */

clmgk_status mgk_dist_make_scan(clmgk_dist_plan *p, clmgk_context *context, const clmgk_attention_desc *given,
                                const clmgk_plan_options *options, clmgk_error *error);
int64_t mgk_dist_state_bytes(const clmgk_dist_plan *p);
clmgk_status mgk_dist_scan_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);
clmgk_status mgk_dist_scan_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);

/* ---- heads.c: ALL_TO_ALL ---- */

/* This rank's problem: all tokens, its heads. */
clmgk_attention_desc mgk_dist_heads_desc(const clmgk_dist_plan *p, const clmgk_attention_desc *given);
/* Bytes of the memory for an array of the problem; 0: none. */
int64_t mgk_dist_heads_bytes(const clmgk_dist_plan *p, clmgk_array array);
clmgk_status mgk_dist_heads_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);
clmgk_status mgk_dist_heads_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);

/* ---- memory.c ---- */

/* Groups of heads, each with one head of V, before those of a rank; up to `ranks` itself. */
int64_t mgk_dist_groups_before(const clmgk_dist_plan *p, int32_t rank);
/* Elements of an array of heads that all ranks have, before those of this rank's heads; 0 for other arrays. */
int64_t mgk_dist_head_offset(const clmgk_dist_plan *p, clmgk_array array);
/* Begins the commands that were enqueued, with this status; and waits for them. */
clmgk_status mgk_dist_start(const clmgk_dist_plan *p, clmgk_status status, clmgk_error *error);
clmgk_status mgk_dist_finish(const clmgk_dist_plan *p, clmgk_status status, clmgk_error *error);

clmgk_status mgk_dist_make_memory(const clmgk_dist_plan *p, cl_mem_flags flags, int64_t bytes, cl_mem *memory,
                                  clmgk_error *error);

/* Reads or writes `bytes` of an array whose offset counts elements of `element` bytes. */
clmgk_status mgk_dist_read(const clmgk_dist_plan *p, const clmgk_buffer *from, int64_t element, int64_t bytes, void *to,
                           clmgk_error *error);
clmgk_status mgk_dist_write(const clmgk_dist_plan *p, const clmgk_buffer *to, int64_t element, int64_t bytes,
                            const void *from, clmgk_error *error);
/* Writes floats, to which it adds what is there if `added`. */
clmgk_status mgk_dist_write_sum(const clmgk_dist_plan *p, const clmgk_buffer *to, bool added, void *values,
                                int64_t bytes, clmgk_error *error);
void mgk_dist_add_floats(float *to, const float *from, int64_t count);
/* Every rank's `bytes` bytes come to all[ranks, bytes], and the own ones, which are there, go to all. */
clmgk_status mgk_dist_share(const clmgk_dist_plan *p, void *all, int64_t bytes, clmgk_error *error);

/* Gradients of arrays that all ranks have alike: their number of elements; where this rank's backward passes add its
 * part, the first of which begins with zeros; and the sums over ranks, in their order, to the call's arrays. */
int64_t mgk_dist_sums_count(const clmgk_dist_plan *p);
clmgk_status mgk_dist_begin_sums(const clmgk_dist_plan *p, bool first, clmgk_attention_args *args, clmgk_error *error);
clmgk_status mgk_dist_end_sums(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error);

/* Several exchanges under way. */
typedef struct mgk_dist_flight {
    const clmgk_dist_plan *plan;
    void **request; /* [capacity] */
    int32_t count;
} mgk_dist_flight;

clmgk_status mgk_dist_flight_begin(const clmgk_dist_plan *plan, int32_t capacity, mgk_dist_flight *flight,
                                   clmgk_error *error);
clmgk_status mgk_dist_flight_add(mgk_dist_flight *flight, const clmgk_dist_exchange *exchange, clmgk_error *error);
/* Waits for all, and frees the list. `status`: an error of this rank, which then gives up and tells the others. */
clmgk_status mgk_dist_flight_end(mgk_dist_flight *flight, clmgk_status status, clmgk_error *error);

/* Rank number `distance` after or before the own one. */
static inline int32_t mgk_dist_neighbour(const clmgk_dist_plan *plan, int32_t distance)
{
    const int32_t ranks = plan->transport.ranks;
    return ((plan->transport.rank + distance) % ranks + ranks) % ranks;
}

#endif
