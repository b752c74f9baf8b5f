/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the model's width: layer normalisation, residual, dropout (src/layer/rows.h). A work-group has a.block rows.
 */
#include "layer/args.clh"

#define ARGUMENTS mgk_norm_args
#define BUFFERS   MGK_NORM_BUFFERS
#include "engine/rows.clh"

#include "base/random.clh"

/* ---- dropout ---- */

#define DRAWN (4 * LANES) /* elements drawn at a time */

typedef struct dropout {
    uint token, batch;
#if LANES > 4
    float scale[DRAWN];
#endif
} dropout;

FUNCTION void draw(const mgk_norm_args *a, const dropout *d, ureal counter, real *scale)
{
    ureal word[4] = {counter, (ureal)(d->token), (ureal)(d->batch), (ureal)(STREAM_LAYER)};
    philox(word, a->bound.seed_low, a->bound.seed_high);
    UNROLL
    for (int n = 0; n < 4; ++n)
        scale[n] = word[n] < (ureal)(a->drop_below) ? (real)(0.0f) : (real)(a->keep_scale);
}

/* Factors of LANES elements from c on. With more than four lanes c takes all its values in order. */
FUNCTION real keep(const mgk_norm_args *a, dropout *d, int c)
{
    real scale[4];
#if LANES > 4
    if (c % DRAWN == 0) {
        draw(a, d, as_ureal(lane_numbers()) + (ureal)((uint)c / 4), scale);
        interleave_lanes(scale, 4);
        interleave_lanes(scale, 4);
        UNROLL
        for (int n = 0; n < 4; ++n)
            vstore_real(scale[n], n, d->scale);
    }
    return vload_real(c % DRAWN / LANES, d->scale);
#else
    draw(a, d, (ureal)((uint)c / 4), scale);
    return (real)(scale[0].s0, scale[1].s0, scale[2].s0, scale[3].s0);
#endif
}

FUNCTION void begin_row(const mgk_norm_args *a, dropout *d, long row)
{
    d->batch = (uint)(row / a->length);
    d->token = (uint)(row % a->length);
}

/* ---- forward ---- */

#define GIVEN(slot) is_given(&a.bound, SLOT_##slot)

/* The mean is the first element plus the mean difference from it, so the mean of equal elements is exact. */
KERNEL(layer_norm)
{
    BEGIN_BUFFERS
    SHARED_FLOATS(shared, GROUP_SIZE);
    const bool has_bias = GIVEN(BIAS), has_residual = GIVEN(RESIDUAL), has_sum = GIVEN(SUM), has_gain = GIVEN(GAIN);
    const bool has_statistics = GIVEN(STATISTICS);
    const bool made = has_bias || has_residual || has_sum || a.drop_below != 0 || !has_gain;
    const int width = a.width;
    const long first = (long)GROUP_ID * a.block, end = min(first + a.block, a.rows);
    dropout d;
    for (long row = first; row < end; ++row) {
        const long at = row * width;
        begin_row(&a, &d, row);
        if (made)
            VECTORS_FOR(c, ITEM, GROUP_SIZE, width) {
                real x = load_piece(in + at, c, width);
                if (has_bias)
                    x += key_load(bias, c, width, 0.0f);
                if (a.drop_below != 0)
                    x *= keep(&a, &d, c);
                if (has_residual)
                    x += load_piece(residual + at, c, width);
                if (has_sum)
                    store_piece(sum + at, c, width, x);
                if (!has_sum || !has_gain)
                    store_piece(out + at, c, width, x);
            }
        if (has_gain) {
            __global const storage *const x = (has_sum ? sum : made ? out : in) + at;
            real total = (real)(0.0f), squares = (real)(0.0f);
            if (made)
                GLOBAL_BARRIER(); /* all read one work-item's numbers */
            const float origin = load1(x, 0);
            VECTORS_FOR(c, ITEM, GROUP_SIZE, width)
                total += within(load_piece(x, c, width) - origin, c, width);
            const float mean = origin + team_sum(total, shared, GROUP_SIZE) / width;
            VECTORS_FOR(c, ITEM, GROUP_SIZE, width) {
                const real y = within(load_piece(x, c, width) - mean, c, width);
                squares = fma(y, y, squares);
            }
            const float scale = 1.0f / sqrt(team_sum(squares, shared, GROUP_SIZE) / width + a.epsilon);
            VECTORS_FOR(c, ITEM, GROUP_SIZE, width) {
                const real y = (load_piece(x, c, width) - mean) * scale;
                store_piece(out + at, c, width,
                            fma(y, key_load(gain, c, width, 0.0f), key_load(offset, c, width, 0.0f)));
            }
            if (has_statistics && ITEM == 0) {
                statistics[2 * row] = mean;
                statistics[2 * row + 1] = scale;
            }
            KEEP_APART;
        }
        KEEP_APART;
    }
}

/* ---- backward ---- */

/* With y = (x - mean) scale and h = g gain: dx = scale (h - mean(h) - y mean(h y)). h - mean(h) is computed from
 * differences to the first element's h, which is rounded like all others, so equal h give exactly 0. */
typedef struct row_means {
    float mean, scale, origin, h, hy; /* h is relative to origin */
} row_means;

/* A work-group's sums of its rows. */
typedef struct row_sums {
    __global float *gains, *offsets, *biases;
    bool gain, offset, bias; /* whether they are wanted */
    bool later;              /* the row is not the first */
} row_sums;

/* The means of a row x with the gradient g; adds its parts of the sums with a gain. */
FUNCTION row_means means_of(__global const storage *x, __global const storage *gradient, __global const float *gain,
                            __global const float *statistics, int width, const row_sums *sums, SHARED float *shared)
{
    row_means m = {statistics[0], statistics[1], load1(gradient, 0) * gain[0], 0.0f, 0.0f};
    real sum_h = (real)(0.0f), sum_hy = (real)(0.0f);
    VECTORS_FOR(c, ITEM, GROUP_SIZE, width) {
        const real g = load_piece(gradient, c, width);
        const real y = (load_piece(x, c, width) - m.mean) * m.scale;
        const real h = g * key_load(gain, c, width, 0.0f);
        sum_h += within(h - m.origin, c, width);
        sum_hy = fma(h, y, sum_hy);
        if (sums->gain)
            add_piece(sums->gains, c, width, g * y, sums->later);
        if (sums->offset)
            add_piece(sums->offsets, c, width, g, sums->later);
    }
    m.h = team_sum(sum_h, shared, GROUP_SIZE) / width;
    m.hy = team_sum(sum_hy, shared, GROUP_SIZE) / width;
    return m;
}

KERNEL(layer_norm_backward)
{
    BEGIN_BUFFERS
    SHARED_FLOATS(shared, GROUP_SIZE);
    const bool has_gain = GIVEN(GAIN), has_residual = GIVEN(RESIDUAL), has_out = GIVEN(OUT),
               has_dropped = GIVEN(DROPPED);
    const bool adds = is_added(&a.bound, SLOT_OUT);
    const int width = a.width;
    const long first = (long)GROUP_ID * a.block, end = min(first + a.block, a.rows);
    row_sums sums = {.gain = a.region[0] >= 0, .offset = a.region[1] >= 0, .bias = a.region[2] >= 0};
    sums.gains = work + a.region[0] + (long)GROUP_ID * width;
    sums.offsets = work + a.region[1] + (long)GROUP_ID * width;
    sums.biases = work + a.region[2] + (long)GROUP_ID * width;
    dropout d;
    for (long row = first; row < end; ++row) {
        const long at = row * width;
        row_means m = {0.0f, 1.0f, 0.0f, 0.0f, 0.0f};
        sums.later = row > first;
        begin_row(&a, &d, row);
        if (has_gain) {
            m = means_of(in + at, gradient + at, gain, statistics + 2 * row, width, &sums, shared);
            KEEP_APART;
        }
        VECTORS_FOR(c, ITEM, GROUP_SIZE, has_out || has_dropped || sums.bias ? width : 0) {
            real g = load_piece(gradient + at, c, width);
            if (has_gain) {
                const real y = (load_piece(in + at, c, width) - m.mean) * m.scale;
                const real h = g * key_load(gain, c, width, 0.0f);
                g = m.scale * (h - m.origin - m.h - y * m.hy);
            }
            if (has_residual)
                g += load_piece(residual + at, c, width);
            if (has_out)
                store_piece(out + at, c, width, adds ? g + load_piece(out + at, c, width) : g);
            if (a.drop_below != 0)
                g *= keep(&a, &d, c);
            if (has_dropped)
                store_piece(dropped + at, c, width, g);
            if (sums.bias)
                add_piece(sums.biases, c, width, g, sums.later);
        }
        KEEP_APART;
    }
}

#define SUMS(X) X(0, GRAD_GAIN, grad_gain) X(1, GRAD_OFFSET, grad_offset) X(2, GRAD_BIAS, grad_bias)
#include "layer/sums.clh"
