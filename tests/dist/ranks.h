/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A problem over ranks of one process: its tokens are dealt out to threads, each of which has an OpenCL context of its
 * own and makes both passes through libclmgk-dist.
 */
#ifndef CLMGK_TEST_RANKS_H
#define CLMGK_TEST_RANKS_H

#include "clmgk/dist.h"
#include "harness/harness.h"

enum { TR_RANKS = 4, TR_TOKENS = 4096 }; /* at most */

/* A kind of token. */
typedef enum tr_kind { TR_QUERIES, TR_KEYS, TR_KINDS } tr_kind;

/* Which token is whose: each rank's tokens, one rank after the other. With lengths_q queries are in order; of packed
 * sequences a rank's tokens are. */
typedef struct tr_cut {
    int32_t ranks;
    bool sub_devices; /* each rank has a part of the device, if it has as many compute units as ranks */
    int32_t tokens[TR_KINDS][TR_TOKENS];
    int64_t lengths[TR_KINDS][TR_RANKS];
} tr_cut;

/* How a rank fails: it does nothing; after so many exchanges it is gone, and tells nobody, or its messages are 4 bytes
 * short; it leaves after the forward pass. */
typedef enum tr_fault { TR_SOUND, TR_ABSENT, TR_DIES, TR_SHORTENS, TR_LEAVES } tr_fault;

/* A rank's thread. */
typedef struct tr_rank {
    const th_problem *whole;
    const tr_cut *cut;
    const clmgk_plan_options *options;
    clmgk_dist_local *local;
    clmgk_dist_schedule schedule;
    int32_t rank;
    double timeout; /* 0: ten minutes */
    int64_t heads;  /* 0: the problem's */
    tr_fault fault;
    int exchanges; /* before the fault */
    clmgk_dist_transport inner;
    double *result[TH_ARRAYS]; /* of the rank's tokens */
    clmgk_status status;
    clmgk_error error;
} tr_rank;

/* Runs all ranks of a cut; ranks[cut->ranks] are zero but for what differs from a plain rank. */
void tr_run(const th_problem *whole, const tr_cut *cut, const clmgk_plan_options *options, clmgk_dist_schedule schedule,
            tr_rank *ranks);
void tr_free(tr_rank *ranks, int32_t count);

/* The same, requires that no rank fails, and leaves the results in the problem, whose values must be those of the
 * storage types (tr_round). Gradients that are added up are those of the call alone. */
void tr_run_whole(th_problem *whole, const tr_cut *cut, const clmgk_plan_options *options,
                  clmgk_dist_schedule schedule);
void tr_round(th_problem *problem);

/* A second run has the bits of the results that the problem holds. */
void tr_expect_equal_bits(th_problem *whole, const tr_cut *cut, const clmgk_plan_options *options,
                          clmgk_dist_schedule schedule);

/* O, of the rows that the answer has, dQ, dK and dV. */
enum { TR_RESULTS = 4 };
extern const th_name tr_results[TR_RESULTS];

/* Adds each result's squared error, relative to its squares. */
void tr_add_errors(const th_problem *problem, const clmgk_ref_answer *answer, const clmgk_ref_arrays *exact,
                   double sums[TR_RESULTS]);

#endif
