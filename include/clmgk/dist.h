/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention whose tokens lie on several devices or processes: ranks 0 .. ranks - 1, in a library of its own,
 * libclmgk-dist, over libclmgk.
 *
 *     clmgk_dist_plan_create(context, queue, &desc, &transport, NULL, &plan, &error);     on all ranks at once
 *     clmgk_dist_forward(plan, &args, &error);
 *     clmgk_dist_backward(plan, &args, &error);
 *
 * Each rank has its own queries with their O, and its own keys and values; the queries of all ranks see the keys of all
 * ranks, as masks and positions allow. The result is that of one device, within the bounds of clmgk_precision, for any
 * number of ranks; for one number of ranks and one schedule it has the same bits in every run.
 *
 * The calls block, because they communicate, and all ranks make them in the same order. Several ranks of one process
 * have a thread each.
 */
#ifndef CLMGK_DIST_H
#define CLMGK_DIST_H

#include "attention.h"

#define CLMGK_DIST_API CLMGK_API /* functions of libclmgk-dist */

#define CLMGK_DIST_MAX_RANKS 4096

/*
 * ---- transport ---------------------------------------------------------------------------------------------------
 *
 * How ranks exchange bytes of host memory: a table of functions, the caller's own or of one of the transports below.
 */

/* Bytes that go to one rank while others come from one. Both stay as they are, or untouched, until the wait. */
typedef struct clmgk_dist_exchange {
    const void *send;
    int64_t send_bytes; /* 0: nothing is sent */
    int32_t to;
    void *receive;
    int64_t receive_bytes; /* 0: nothing is received */
    int32_t from;
    int32_t tag; /* tells messages between two ranks apart; at most two are under way at once */
} clmgk_dist_exchange;

typedef struct clmgk_dist_transport {
    size_t struct_size; /* sizeof(clmgk_dist_transport) */
    void *state;        /* first argument of the functions */
    int32_t rank, ranks;
    /* Begins an exchange and returns at once; *request is for `wait`. */
    clmgk_status (*begin)(void *state, const clmgk_dist_exchange *exchange, void **request, clmgk_error *error);
    /* Waits for the exchange's end, at most `seconds`, and releases the request in any case. An error if the other rank
     * does not come, gave up, or sends another number of bytes. */
    clmgk_status (*wait)(void *state, void *request, double seconds, clmgk_error *error);
    /* This rank gives up: waits of the others end with an error, now and later. */
    void (*cancel)(void *state);
} clmgk_dist_transport;

#define CLMGK_DIST_TRANSPORT_INIT CLMGK_INIT(clmgk_dist_transport)

/* Ranks of one process: each is a thread's, with a device or a part of one. */
typedef struct clmgk_dist_local clmgk_dist_local;

/* Makes the ranks' common state. INVALID_VALUE for `ranks` outside 1 .. CLMGK_DIST_MAX_RANKS; OUT_OF_HOST_MEMORY. */
CLMGK_DIST_API clmgk_status clmgk_dist_local_create(int32_t ranks, clmgk_dist_local **out, clmgk_error *error);

/* The transport of a rank, which lives as long as `local`. INVALID_VALUE: NULL, or no such rank. */
CLMGK_DIST_API clmgk_status clmgk_dist_local_transport(clmgk_dist_local *local, int32_t rank, clmgk_dist_transport *out,
                                                       clmgk_error *error);

/* Releases the state, when no rank uses it any more. NULL is allowed. */
CLMGK_DIST_API void clmgk_dist_local_release(clmgk_dist_local *local);

/* Ranks of an MPI communicator, if the library was built with MPI. */
typedef struct clmgk_dist_mpi clmgk_dist_mpi;

/*
 * Makes the transport of this rank over a copy of a communicator: `communicator` points to an MPI_Comm; NULL: that of
 * all processes. All ranks call it, after MPI_Init, and afterwards one thread of each makes all calls, unless MPI
 * allows more. Bytes pass through host memory, at most 2^31 - 1 in a message (OVERFLOW). UNSUPPORTED without MPI;
 * INVALID_VALUE before MPI_Init; COMMUNICATION.
 */
CLMGK_DIST_API clmgk_status clmgk_dist_mpi_create(const void *communicator, clmgk_dist_mpi **out,
                                                  clmgk_dist_transport *transport, clmgk_error *error);

/* All ranks release theirs, before MPI_Finalize. NULL is allowed. */
CLMGK_DIST_API void clmgk_dist_mpi_release(clmgk_dist_mpi *mpi);

/*
 * ---- plans -------------------------------------------------------------------------------------------------------
 */

typedef enum clmgk_dist_schedule {
    CLMGK_DIST_AUTO = 0,       /* ALL_GATHER; SCAN for the linear family */
    CLMGK_DIST_ALL_GATHER = 1, /* each rank gets all keys and values, and computes as one device does; dK and dV of a
                                * rank are sums over ranks, in their order */
    CLMGK_DIST_RING = 2,       /* keys and values go from rank to rank while the last ones are computed, and dK and dV
                                * behind them: no rank holds more than two ranks' keys */
    CLMGK_DIST_ALL_TO_ALL = 3, /* each rank gets the tokens of all ranks for some of the heads, and sends the results
                                * back: every element is computed as on one device */
    CLMGK_DIST_SCAN = 4        /* linear family, and it alone: the ranks' states go to all ranks, and no keys do */
} clmgk_dist_schedule;

typedef struct clmgk_dist_desc {
    size_t struct_size; /* sizeof(clmgk_dist_desc) */
    /*
     * The problem of this rank: length is the number of its queries, length_k that of its keys (0 of either: none, with
     * CLMGK_NO_KEYS as there). All else but length is the same on all ranks; K, V, dK and dV are dense. lengths_q
     * count this rank's queries.
     *
     * With more than one rank, use_positions tells where tokens stand in the whole, wherever that matters:
     * INVALID_VALUE without it for causal masks, windows, ALiBi, dropout, noise, score_mod and mask_mod.
     *
     * Packed sequences: each rank has a piece of each, which may be empty, and offsets of its own queries and keys; all
     * have the same number of sequences. The pieces of sequence t are that sequence. Positions count within it.
     *
     * Gradients of arrays that all ranks have alike (all but dQ, dK and dV) are sums over ranks, which every rank gets.
     *
     * The linear family has no positions: with a causal mask a rank's tokens come after those of the ranks before it,
     * and each rank has as many queries as keys.
     *
     * UNSUPPORTED: use_lengths, pages, lists of mask blocks, a bias and a prior [H,M,S], which go by index (a
     * score_mod can read an array by position); statistics, combine, append; dK or dV that is not f32 (dtype_grad_k,
     * dtype_grad_v; ALL_TO_ALL and SCAN take any, as they add up none). RING also: mix_after_heads, and O or dQ that is
     * not f32. ALL_TO_ALL also: the admixture family, kv_heads below ranks, use_lengths_q, any layout that is not
     * dense, texts that read h. SCAN also: noise, packed sequences, use_state and use_new_state.
     */
    const clmgk_attention_desc *attention;
    const int64_t *lengths_k; /* [ranks]: each rank's number of keys; may be 0 */
    clmgk_dist_schedule schedule;
    double timeout; /* seconds that a wait for another rank may take, above 0 */
} clmgk_dist_desc;

#define CLMGK_DIST_DESC_INIT CLMGK_INIT(clmgk_dist_desc)

typedef struct clmgk_dist_plan clmgk_dist_plan;

/*
 * Makes a rank's plan; blocks until all ranks have begun theirs, compares their descriptors, and compiles. `queue` is
 * an in-order queue of the context, which all calls use. `transport` is copied; `options` are those of
 * clmgk_plan_create. Errors: as clmgk_plan_create; INVALID_SHAPE where ranks differ; COMMUNICATION. After an error of
 * one rank the others' calls fail too, at the latest after `timeout`, and the transport is of no more use.
 */
CLMGK_DIST_API clmgk_status clmgk_dist_plan_create(clmgk_context *context, cl_command_queue queue,
                                                   const clmgk_dist_desc *desc, const clmgk_dist_transport *transport,
                                                   const clmgk_plan_options *options, clmgk_dist_plan **out,
                                                   clmgk_error *error);

/* NULL is allowed. */
CLMGK_DIST_API void clmgk_dist_plan_release(clmgk_dist_plan *plan);

/*
 * The forward and the backward pass, with the arrays of this rank: args as those of clmgk_enqueue_forward and
 * clmgk_enqueue_backward for the rank's problem, without a workspace. Offsets are read on the host: INVALID_VALUE on
 * all ranks, unless those of each ascend from 0 to its number of tokens. lse is required (linear family: denominator);
 * `accumulate` is the same on all ranks. The call returns when this rank's results are there. If it fails, all outputs
 * are undefined. Errors: as these; COMMUNICATION, as for plans.
 */
CLMGK_DIST_API clmgk_status clmgk_dist_forward(clmgk_dist_plan *plan, const clmgk_attention_args *args,
                                               clmgk_error *error);
CLMGK_DIST_API clmgk_status clmgk_dist_backward(clmgk_dist_plan *plan, const clmgk_attention_args *args,
                                                clmgk_error *error);

/*
 * ---- balance -----------------------------------------------------------------------------------------------------
 */

typedef enum clmgk_dist_order {
    CLMGK_DIST_ZIGZAG = 0,   /* the tokens in 2 ranks pieces, of which rank r has numbers r and 2 ranks - 1 - r */
    CLMGK_DIST_STRIPES = 1,  /* token i is of rank i mod ranks */
    CLMGK_DIST_DOCUMENTS = 2 /* documents packed back to back, which see no others: as few pieces as bring each rank
                              * within 1 % of the mean, equally many for each rank */
} clmgk_dist_order;

/*
 * Distributes a causal sequence so that all ranks have about as many visible pairs, and tokens. Writes the tokens of
 * rank 0, in ascending order, then those of rank 1, and so on, to tokens[count], and each rank's number of them to
 * lengths[ranks]. A rank's part of `tokens` is also its positions. Only DOCUMENTS reads offsets[documents + 1]: where
 * each document begins, and at last `count`; the plan knows them as packed sequences, or by a mask_mod.
 * INVALID_VALUE: NULL, `ranks` outside 1 .. CLMGK_DIST_MAX_RANKS, `count` outside 0 .. 2^30, offsets that don't rise
 * from 0 to `count`; OUT_OF_HOST_MEMORY.
 */
CLMGK_DIST_API clmgk_status clmgk_dist_permutation(clmgk_dist_order order, int64_t count, const int32_t *offsets,
                                                   int64_t documents, int32_t ranks, int32_t *tokens, int64_t *lengths,
                                                   clmgk_error *error);

#endif
