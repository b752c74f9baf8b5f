/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/waves.h"

/* NVIDIA's warps have registers by eights for each work-item. Other makers' rules differ little. */
enum { WARP = 32, REGISTERS_AT_ONCE = 8 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t round_up(int64_t x, int64_t unit)
{
    return (x + unit - 1) / unit * unit;
}

int64_t mgk_resident_groups(const mgk_unit *unit, int64_t work_items, int64_t registers, uint64_t local_bytes)
{
    const int64_t items = round_up(most(work_items, 1), WARP);
    int64_t groups = least(unit->work_groups, unit->work_items / items);
    groups = least(groups, unit->registers / (items * round_up(most(registers, 1), REGISTERS_AT_ONCE)));
    groups = least(groups, (int64_t)(unit->local_bytes / (local_bytes + unit->local_of_group + 1)));
    return most(groups, 1);
}

int64_t mgk_waves_count(int64_t wave, int64_t groups)
{
    return (groups + wave - 1) / wave;
}

int64_t mgk_waves_whole(int64_t wave, int64_t blocks)
{
    return blocks - blocks % wave;
}

int64_t mgk_waves_splits(const mgk_waves *x)
{
    const int64_t whole = mgk_waves_whole(x->wave, x->blocks), rest = x->blocks - whole;
    if (rest == 0 || (whole > 0 && !x->tail))
        return 1;
    /* the last wave's blocks are few: their partial results are small */
    const int64_t limit = whole > 0 ? least(MGK_WAVES_MOST, x->most_splits * x->blocks / rest) : x->most_splits;
    return most(least(least(x->wave / rest, limit), x->tiles / x->least_tiles), 1);
}
