/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device starts as many work-groups as its compute units hold, a wave, and then the next for each that ends. With
 * work-groups of equal length a launch takes whole waves: 133 blocks on 132 units take twice as long as 132, if a unit
 * holds one. So blocks and splits are chosen by the time of the waves, and not by comparing their number with the
 * number of units.
 *
 * A wave of g work-groups to a unit (the last wave may have fewer): a tile takes `work` cycles of the unit and waits
 * for `latency` more, in which others run. As in a closed queue of g customers, a tile that arrives finds Q_{g-1}
 * others:
 *
 *     R_g = work (1 + Q_{g-1})     T_g = (R_g + latency) / g     Q_g = R_g / T_g     Q_0 = 0
 *     cycles of the wave = g (tiles T_g + ends)
 *
 * Blocks of unequal length begin longest first, and fill the last wave too.
 *
 * A launch of little more than whole waves ends with a few work-groups that run nearly alone, at little more than the
 * speed of one among many. With a tail several work-groups share each block of that last wave, so that it is short.
 *
 * The engine estimates `work` and `latency`. Only their ratios matter for a choice.
 */
#include "engine/waves.h"

#include <math.h>

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

static int64_t quotient_up(int64_t x, int64_t divisor)
{
    return (x + divisor - 1) / divisor;
}

int64_t mgk_resident_groups(const mgk_unit *unit, int64_t work_items, int64_t registers, uint64_t local_bytes)
{
    const int64_t items = round_up(most(work_items, 1), WARP);
    int64_t groups = least(unit->work_groups, unit->work_items / items);
    groups = least(groups, unit->registers / (items * round_up(most(registers, 1), REGISTERS_AT_ONCE)));
    groups = least(groups, (int64_t)(unit->local_bytes / (local_bytes + unit->local_of_group + 1)));
    return most(groups, 1);
}

int64_t mgk_waves_count(const mgk_pace *pace, int64_t units, int64_t groups)
{
    return quotient_up(groups, most(units, 1) * pace->resident);
}

/* Cycles of a wave with g work-groups to a unit. */
static double wave_time(const mgk_pace *p, int64_t g, double tiles)
{
    double queue = 0.0, response = 0.0;
    for (int64_t n = 1; n <= g; ++n) {
        response = p->work * (1.0 + queue);
        queue = (double)n * response / (response + p->latency);
    }
    return g == 0 ? 0.0 : tiles * (response + p->latency) + (double)g * p->ends;
}

int64_t mgk_waves_whole(const mgk_pace *pace, int64_t units, int64_t blocks)
{
    return blocks - blocks % (most(units, 1) * pace->resident);
}

/* Of the launch, if blocks are split. */
static int64_t whole_of(const mgk_waves *x)
{
    return x->tail ? mgk_waves_whole(x->pace, x->units, x->blocks) : 0;
}

/* Cycles of so many work-groups of `tiles`. */
static double groups_time(const mgk_waves *x, int64_t groups, double tiles)
{
    const int64_t units = most(x->units, 1), resident = x->pace->resident, wave = units * resident;
    const double full = wave_time(x->pace, resident, tiles);
    if (x->unequal && groups > wave)
        return (double)groups / (double)wave * full;
    const int64_t waves = groups / wave, rest = quotient_up(groups % wave, units);
    return (double)waves * full + wave_time(x->pace, rest, tiles);
}

double mgk_waves_time(const mgk_waves *x, int64_t splits)
{
    if (splits <= 1)
        return groups_time(x, x->blocks, fmax(x->tiles, 1.0));
    const int64_t whole = whole_of(x), rest = x->blocks - whole;
    const double tiles = x->tiles / (double)splits, own = whole > 0 ? ceil(tiles) : tiles;
    const double parts = (double)splits * x->part * (double)rest / (double)most(x->blocks, 1);
    return groups_time(x, whole, x->tiles) + groups_time(x, rest * splits, fmax(own, 1.0)) + x->combine + parts;
}

/* Ranges of the last wave's blocks, which are few: their partial results are small. */
static int64_t tail_splits(const mgk_waves *x, int64_t rest)
{
    const int64_t limit = least(MGK_WAVES_MOST, x->most_splits * x->blocks / most(rest, 1));
    const int64_t last = least(limit, (int64_t)x->tiles);
    int64_t best = 1;
    double time = mgk_waves_time(x, 1);
    for (int64_t splits = 2; rest > 0 && splits <= last; ++splits) {
        const double own = mgk_waves_time(x, splits);
        if (own < (best == 1 ? MGK_WAVES_GAIN : 1.0) * time) {
            time = own;
            best = splits;
        }
    }
    return best;
}

int64_t mgk_waves_splits(const mgk_waves *x)
{
    const int64_t whole = whole_of(x);
    if (whole > 0)
        return tail_splits(x, x->blocks - whole);
    int64_t best = 1;
    double time = mgk_waves_time(x, 1);
    for (int64_t splits = 2; splits <= x->most_splits; splits *= 2) {
        const double own = mgk_waves_time(x, splits);
        if (own < MGK_WAVES_GAIN * time) {
            time = own;
            best = splits;
        }
    }
    /* others that fill a whole wave; a range has whole tiles */
    for (int64_t groups = 1; groups <= x->pace->resident; ++groups) {
        const int64_t splits = most(x->units, 1) * groups / most(x->blocks, 1);
        mgk_waves rounded = *x;
        if (splits < 2 || splits > x->most_splits || x->unequal)
            continue;
        rounded.tiles = ceil(x->tiles / (double)splits) * (double)splits;
        const double own = mgk_waves_time(&rounded, splits);
        if (own < MGK_WAVES_GAIN * time) {
            time = own;
            best = splits;
        }
    }
    return best;
}
