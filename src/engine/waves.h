/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device starts a wave, as many work-groups as its compute units hold, and then one for each that ends: 133 blocks on
 * 132 units that hold one each take twice as long as 132. So blocks that do not fill a wave are split into ranges of
 * keys that do. Of more blocks, those behind whole waves are split.
 */
#ifndef MGK_WAVES_H
#define MGK_WAVES_H

#include "device/device.h"

/* A launch of blocks, whose tiles may be shared out among several work-groups. */
typedef struct mgk_waves {
    int64_t wave;        /* work-groups that the device holds */
    int64_t blocks;      /* without splits */
    int64_t tiles;       /* of a block, on average */
    int64_t least_tiles; /* of a range */
    int64_t most_splits; /* work-groups that may share a block's tiles */
    bool tail;           /* blocks behind whole waves may be split */
} mgk_waves;

/* Work-groups of a size that are resident on a unit together: at least 1. */
int64_t mgk_resident_groups(const mgk_unit *unit, int64_t work_items, int64_t registers, uint64_t local_bytes);

/* Number of waves of so many work-groups. */
int64_t mgk_waves_count(int64_t wave, int64_t groups);

/* Number of blocks that fill whole waves with a work-group each. */
int64_t mgk_waves_whole(int64_t wave, int64_t blocks);

enum { MGK_WAVES_MOST = 128 }; /* ranges of a block at most */

/* Number of ranges of the blocks, or of those behind whole waves: as many as fit one wave. */
int64_t mgk_waves_splits(const mgk_waves *launch);

#endif
