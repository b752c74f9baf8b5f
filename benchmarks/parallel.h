/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over several ranks (--parallel): a rank, and all of them. */
#ifndef BENCH_PARALLEL_H
#define BENCH_PARALLEL_H

#include "bench.h"

#include "clmgk/dist.h"

/* What a rank sent, in all rounds. */
typedef struct bench_traffic {
    int64_t bytes;  /* sent */
    double line_ms; /* that the line which delays was busy */
} bench_traffic;

/* A rank's tokens, in ascending order. */
typedef struct bench_part {
    const int32_t *tokens;
    int64_t count, total;
} bench_part;

typedef struct bench_rank {
    clmgk_attention_desc desc; /* of all tokens */
    clmgk_dist_schedule schedule;
    const int64_t *lengths; /* of all ranks */
    const bench_part *part;
    const char *device;
    double seconds;
    double bytes_per_ms[2]; /* of the line, for each pass; 0: no delay */
    float *whole_o;         /* O of all tokens, which one rank alone writes; NULL: not compared */
} bench_rank;

typedef struct bench_rank_times {
    double ms; /* median */
    int32_t rounds;
    bench_traffic traffic;
} bench_rank_times;

typedef struct bench_rank_result {
    bench_rank_times times[2]; /* forward, backward */
    double pairs;              /* visible ones of its queries */
    double error;              /* the largest of O, against one rank's */
} bench_rank_result;

/* Makes a rank's arrays and plan, and times rounds of both passes, which all ranks begin together. */
tool_exit bench_run_rank(const bench_rank *rank, const clmgk_dist_transport *transport, bench_rank_result *result,
                         tool_error *error);

#endif
