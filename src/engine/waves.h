/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a launch whose work-groups share compute units, by a model. */
#ifndef MGK_WAVES_H
#define MGK_WAVES_H

#include "device/device.h"

/* What a work-group takes of a compute unit, in cycles. */
typedef struct mgk_pace {
    int64_t resident; /* work-groups of a unit at a time; 0: no model, as on CPUs */
    double work;      /* of the unit for a tile: no other work-group runs meanwhile */
    double latency;   /* that a tile waits for barriers and memory: others may run */
    double ends;      /* for all before the first and after the last tile */
} mgk_pace;

/* A launch of blocks, whose tiles may be shared out among several work-groups. */
typedef struct mgk_waves {
    const mgk_pace *pace;
    int64_t units, blocks; /* number of compute units and of blocks */
    double tiles;          /* of a block, on average */
    bool unequal;          /* blocks of unequal length, of which the longest begin first: units end nearly together */
    int64_t most_splits;   /* work-groups that may share a block's tiles */
    bool tail;             /* those of the blocks behind whole waves only, if there is a whole wave */
    double combine, part;  /* cycles for combining: of any number of parts, and of each */
} mgk_waves;

/* Work-groups of a size that are resident on a unit together: at least 1. */
int64_t mgk_resident_groups(const mgk_unit *unit, int64_t work_items, int64_t registers, uint64_t local_bytes);

/* Number of waves of so many work-groups. */
int64_t mgk_waves_count(const mgk_pace *pace, int64_t units, int64_t groups);

/* Number of blocks that fill whole waves with a work-group each. */
int64_t mgk_waves_whole(const mgk_pace *pace, int64_t units, int64_t blocks);

/* Cycles of the launch with so many work-groups to each block that is split. */
double mgk_waves_time(const mgk_waves *launch, int64_t splits);

/* Times are estimates: a choice must gain 3 % over a simpler one. */
#define MGK_WAVES_GAIN 0.97

enum { MGK_WAVES_MOST = 128 }; /* ranges of a block at most */

/* The number up to most_splits with the least time, of powers of two and numbers that fill a whole wave; of a tail, of
 * all numbers. */
int64_t mgk_waves_splits(const mgk_waves *launch);

#endif
