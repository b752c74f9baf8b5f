/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear family, forward (formulas: linear/block.clh). Work-groups: (problem, block of values, range), ranges of
 * chunks.
 *
 *     linear_states   the state of each range; left out where CAUSAL with one range
 *     linear_prefix   in the slots of the problem's ranges: CAUSAL the states up to each range, else the whole state in
 *                     the first; left out with one range
 *     linear_apply    O and denominators; CAUSAL: the state of a range goes on with its chunks, in its slot
 *
 * The incoming state begins the first range, the last to add to a state writes the new one.
 */
#include "linear/buffers.clh"

#define ARGUMENTS mgk_linear_args
#define BUFFERS   MGK_LINEAR_FORWARD_BUFFERS
#include "base/buffers.clh"

#include "linear/outputs.clh"

PRODUCT_TRANSPOSED(add_states, __global, BLOCK_SPACE, BLOCK_SPACE)
#define HOLDS_STATES (STATE_BLOCKS == 1 && !SHIFTED && HOLDS_PRODUCT(FEATURE_BLOCK, VALUE_BLOCK))
#if HOLDS_STATES
PRODUCT_HELD(held_state, FEATURE_BLOCK, VALUE_BLOCK, __global, BLOCK_SPACE, BLOCK_SPACE)
#endif
PRODUCT_BY(put_outputs, OUTPUTS_ADD, 0, BLOCK_SPACE, BLOCK_SPACE, __global)
#if LOCAL_TILES
PRODUCT_LOWER(add_seen, BLOCK_SPACE, BLOCK_SPACE, BLOCK_SPACE)
#else
PRODUCT(add_tiles, BLOCK_SPACE, BLOCK_SPACE, BLOCK_SPACE)
#endif
PRODUCT_OF_ROWS(add_pairs, BLOCK_SPACE, BLOCK_SPACE, BLOCK_SPACE)

/* Number of parts of products of so many rows with VALUE_BLOCK columns. */
#define PARTS(rows)                                                                                                    \
    (COUNT_OF(rows, PART_HEIGHT(rows)) * COUNT_OF(VALUE_BLOCK, PART_WIDTH(VALUE_BLOCK)) + FEATURE_PARTS * STATE_BLOCKS)

/* ---- states ---- */

/* z += psi; `tokens`: of tiles. */
FUNCTION void totals_add(__global float *z, BLOCK_SPACE const float *psi, int tokens)
{
    VECTORS_FOR(n, FEATURE_BLOCK) {
        real sum[4] = {REAL_AT(z + n), (real)(0.0f), (real)(0.0f), (real)(0.0f)};
        for (int t = 0; t < tokens; t += 4)
            UNROLL
        for (int i = 0; i < 4; ++i)
            sum[i] += PRODUCT_FACTOR(REAL_AT(psi + (t + i) * FEATURE_ROW + n));
        REAL_PUT(z + n, sum[0] + sum[1] + (sum[2] + sum[3]));
    }
}

/* Adds block number `block` of the features of a chunk's keys to a state. */
FUNCTION void state_add(const state_place *to, int block, BLOCK_SPACE const float *psi, BLOCK_SPACE const float *v,
                        int tokens, next_chunk *next)
{
    __global float *const c = to->c + (long)block * FEATURE_BLOCK * VALUE_BLOCK;
    const int height = PART_HEIGHT(FEATURE_BLOCK), width = PART_WIDTH(VALUE_BLOCK);
    for (int f = 0; f < FEATURE_BLOCK; f += height)
        for (int e = 0; e < VALUE_BLOCK; e += width) {
            chunk_prefetch(next);
            add_states(c + f * VALUE_BLOCK + e, VALUE_BLOCK, psi + f, FEATURE_ROW, v + e, COPIED_ROW, height,
                       min(width, VALUE_BLOCK - e), tokens);
        }
    totals_add(to->z + block * FEATURE_BLOCK, psi, tokens);
}

KERNEL(linear_states)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const unit u = forward_unit_of(&a, GROUP_ID, lengths, lengths_q, offsets, offsets_k, state_slots, new_state_slots);
    DECLARE_FEATURE_PLACE(place, work, &a)
    const key_source keys = keys_of(&a, &place, &u, k, prior, shift);
    const span range = range_of(chunks_of(&u.p, u.offset), a.splits, u.range);
    __global float *const slot = work + a.region[MGK_LINEAR_STATES] + (u.slot + u.range) * SLOT_FLOATS;
    v += u.p.batch * a.v.batch + (long)u.h * a.kv_heads / a.heads * a.v.head + u.p.key_base * a.v.token + u.e0;
    DECLARE_TILE(psi, CHUNK * FEATURE_ROW)
    DECLARE_TILE(values, CHUNK * COPIED_ROW)
    DECLARE_TILE(factor, SHIFTED ? FEATURE_BLOCK : 16)

    const state_place own = state_of(slot);
    const state_scales scales = scales_of(slot + STATE_FLOATS);
    const given_state given = {state_c, state_z, state_m};
    const float m = state_begin(&a, &u, u.range == 0 && u.from >= 0, true, &given, &own, &scales);
#if HOLDS_STATES
    real held[HELD_REALS(FEATURE_BLOCK, VALUE_BLOCK)];
    held_state_get(held, own.c);
#endif
    const feature_scales key_scale = {scales.next, -1.0f};
    for (int c = range.first; c < range.end; ++c) {
        const int first = c * CHUNK + u.offset;
        span places = places_of(first, u.p.keys);
        const int tokens = tile_tokens(&places);
        BLOCK_SYNC();
        const token_rows value_rows =
            rows_of(elements_of(v), a.v.token, first, &places, a.value_size - u.e0, VALUE_BLOCK);
        next_chunk coming = {.count = 0};
        next_keys_add(&coming, &a, &u, &keys, v, first + CHUNK, PARTS(STATE_WIDTH));
        tokens_get(values, VALUE_BLOCK, COPIED_ROW, &value_rows, tokens);
        key_scales(&keys, false, first, 0, &places, tokens, &scales, psi);
        for (int block = 0; block < STATE_BLOCKS; ++block) {
            chunk_prefetch(&coming);
            key_features(&keys, block, first, &places, tokens, &key_scale, NULL, psi);
            chunk_prefetch(&coming);
            state_advance(&own, block, &scales, factor);
#if HOLDS_STATES
            held_state_add(held, psi, FEATURE_ROW, values, COPIED_ROW, tokens);
            totals_add(own.z, psi, tokens);
#else
            state_add(&own, block, psi, values, tokens, &coming);
#endif
        }
        scales_advance(&scales);
        branch_end();
    }
    BLOCK_SYNC();
#if HOLDS_STATES
    held_state_put(held, own.c);
#endif
    state_settle(&own, &scales, factor);
    if (SHIFTED)
        ITEMS_FOR(i, 1)
            scales.m[0] = m;
    branch_end();
}

/* A work-item is a number of a state and takes the ranges in order. */
__kernel void linear_prefix(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    const long slots = (long)a.batch * a.heads * (VALUE_SIZE / VALUE_BLOCK);
    if (x >= slots * STATE_FLOATS)
        return;
    const int i = (int)(x % STATE_FLOATS), n = feature_of_number(i);
    __global float *const first = work + a.region[MGK_LINEAR_STATES] + x / STATE_FLOATS * a.splits * SLOT_FLOATS;
    const range_sum own = {first[i], SHIFTED ? scales_of(first + STATE_FLOATS).sum[n] : 0.0f};
    ranges_sum(own, first + SLOT_FLOATS, SLOT_FLOATS, a.splits - 1, i, first);
}

/* ---- outputs ---- */

/* sums[t] += phi_t . z */
FUNCTION void sums_add(BLOCK_SPACE float *sums, BLOCK_SPACE const float *phi, __global const float *z, int tokens)
{
    SUMS_FOR(t, part, tokens) {
        real sum = (real)(0.0f);
        for (int n = part * VECTOR; n < FEATURE_BLOCK; n += SUM_PARTS * VECTOR)
            sum = fma(PRODUCT_FACTOR(REAL_AT(phi + t * FEATURE_ROW + n)), REAL_AT(z + n), sum);
        sums[part * CHUNK + t] += real_sum(sum);
    }
}

/* weights += phi psi^T */
FUNCTION void weights_add(BLOCK_SPACE float *weights, BLOCK_SPACE const float *phi, BLOCK_SPACE const float *psi,
                          BLOCK_SPACE float *columns, int rows, int keys)
{
    BLOCK_SPACE const float *const x = columns_of(columns, CHUNK, psi, FEATURE_ROW, keys, FEATURE_BLOCK);
    add_pairs(weights, CHUNK_ROW, phi, FEATURE_ROW, x, COLUMNS_ROW(CHUNK, FEATURE_ROW), rows, keys, FEATURE_BLOCK);
}

/* Clears weights of keys that a row does not see; sums[t] += the others. */
FUNCTION void weights_mask(BLOCK_SPACE float *weights, BLOCK_SPACE float *sums, int rows, int keys)
{
    SUMS_FOR(t, part, rows) {
        real sum = (real)(0.0f);
        for (int n = part * VECTOR; n < keys; n += SUM_PARTS * VECTOR) {
            const real x = real_below(REAL_AT(weights + t * CHUNK_ROW + n), n, t + 1, 0.0f);
            REAL_PUT(weights + t * CHUNK_ROW + n, x);
            sum += x;
        }
        sums[part * CHUNK + t] += real_sum(sum);
    }
}

/* outputs += weights v; weights of hidden keys are 0. */
FUNCTION void values_add(BLOCK_SPACE float *outputs, BLOCK_SPACE const float *weights, BLOCK_SPACE const float *v,
                         int rows, int keys)
{
#if LOCAL_TILES
    add_seen(outputs, VALUE_BLOCK, weights, CHUNK_ROW, v, COPIED_ROW, rows, VALUE_BLOCK, keys);
#else
    add_tiles(outputs, VALUE_BLOCK, weights, CHUNK_ROW, v, COPIED_ROW, rows, VALUE_BLOCK, keys);
#endif
}

/* outputs += a block's features of a chunk's rows times the state; announces the next chunk's queries and outputs. */
FUNCTION void outputs_add(BLOCK_SPACE float *outputs, BLOCK_SPACE const float *phi, __global const float *c, int rows,
                          next_chunk *next)
{
    const int height = PART_HEIGHT(CHUNK), width = PART_WIDTH(VALUE_BLOCK);
    for (int t = 0; t < rows; t += height)
        for (int e = 0; e < VALUE_BLOCK; e += width) {
            chunk_prefetch(next);
            put_outputs(outputs + t * VALUE_BLOCK + e, VALUE_BLOCK, phi + t * FEATURE_ROW, FEATURE_ROW, c + e,
                        VALUE_BLOCK, min(height, rows - t), min(width, VALUE_BLOCK - e), FEATURE_BLOCK);
        }
}

/* CAUSAL: tiles of a chunk's pairs. */
typedef struct chunk_pairs {
    BLOCK_SPACE float *weights, *columns;
} chunk_pairs;

/* A block of features: its part of the outputs and their sums; CAUSAL: of the pairs, and its keys join the state,
 * unless `tokens_added` is 0. */
FUNCTION void feature_block(const output_block *x, int block, int tokens_added, const chunk_pairs *pairs,
                            next_chunk *next, next_chunk *next_keys)
{
    const int row_tokens = tile_tokens(&x->rows), row_count = product_rows(x->rows.end);
    const int tokens = tile_tokens(&x->places);
    if (CHUNK_SPANS)
        state_advance(&x->own, block, &x->scales, x->factor);
    chunk_prefetch(next);
    query_features(&x->queries, block, x->first, &x->rows, row_tokens, &x->query_scale, x->row_scale, x->phi);
    chunk_prefetch(next);
    outputs_add(x->outputs, x->phi, x->own.c + (long)block * FEATURE_BLOCK * VALUE_BLOCK, row_count, next);
    sums_add(x->sums, x->phi, x->own.z + block * FEATURE_BLOCK, row_tokens);
    if (CAUSAL) {
        key_features(&x->keys, block, x->key_first, &x->places, tokens, &x->key_scale, NULL, x->psi);
        weights_add(pairs->weights, x->phi, x->psi, pairs->columns, row_count, tokens);
        state_add(&x->own, block, x->psi, x->values, tokens_added, next_keys);
    }
}

/* Outputs of the tokens; CAUSAL: the keys join the state if it is `read` later. */
FUNCTION void chunk_outputs(const output_block *x, bool read, const chunk_pairs *pairs)
{
    const mgk_linear_args *const a = x->a;
    const int row_tokens = tile_tokens(&x->rows), row_count = product_rows(x->rows.end);
    const int tokens = tile_tokens(&x->places), count = product_rows(x->places.end);
    next_chunk coming_keys = {.count = 0}, coming = {.count = 0};
    if (CAUSAL) {
        next_keys_add(&coming_keys, a, x->u, &x->keys, x->v, x->key_first + CHUNK, PARTS(STATE_WIDTH));
        values_load(x, COPIED_ROW, tokens);
        tile_clear(pairs->weights, CHUNK * CHUNK_ROW);
    }
    if (OUTPUTS_ADD)
        tile_clear(x->outputs, row_tokens * VALUE_BLOCK);
    sums_clear(x->sums, row_tokens);
    query_scales(&x->queries, x->first, &x->rows, row_tokens, x->query_scale.scale, x->row_scale, x->whole_scale);
    next_queries_add(&coming, a, x->u, &x->queries, x->first + CHUNK, PARTS(CHUNK) * GLOBAL_HEADS);
    next_outputs_add(&coming, a, x->u, x->o, x->first + CHUNK, PARTS(CHUNK));
    for (int block = 0; block < STATE_BLOCKS; ++block)
        feature_block(x, block, read ? tokens : 0, pairs, &coming, &coming_keys);
    BLOCK_SYNC();
    if (CAUSAL) {
        weights_mask(pairs->weights, x->sums, row_count, tokens);
        BLOCK_SYNC();
        values_add(x->outputs, pairs->weights, x->values, row_count, count);
    }
    sums_join(x->sums, row_tokens);
    outputs_put(x);
    if (CHUNK_SPANS)
        scales_advance(&x->scales);
}

KERNEL(linear_apply)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    DECLARE_OUTPUT_BLOCK(SUM_PARTS, CAUSAL ? CHUNK * FEATURE_ROW : 16, CAUSAL ? CHUNK * COPIED_ROW : 16)
    DECLARE_TILE(columns, COLUMNS_FLOATS(CAUSAL ? FEATURE_BLOCK * CHUNK : 16))
    DECLARE_TILE(weights, CAUSAL ? CHUNK * CHUNK_ROW : 16)
    const span all = {0, (u.p.rows + CHUNK - 1) / CHUNK};
    const span range = range_of(CAUSAL ? chunks_of(&u.p, u.offset) : all, a.splits, u.range);
    const bool last = u.range == (CAUSAL ? a.splits - 1 : 0), keep = last && u.to >= 0;
    const chunk_pairs pairs = {weights, columns};
    __global float *const states = work + a.region[MGK_LINEAR_STATES] + u.slot * SLOT_FLOATS;
    __global float *const slot = states + (CAUSAL ? u.range : 0) * SLOT_FLOATS;
    output_state(&x, slot, new_state_c);
    x.query_scale.scale = CAUSAL ? x.scales.next : x.scales.top;

    const given_state given = {state_c, state_z, state_m};
    if (CAUSAL && u.range == 0)
        x.m = state_begin(&a, &u, u.from >= 0, true, &given, &x.own, &x.scales);
    else if (CAUSAL)
        scales_copy(x.scales.sum, x.scales.top);
    if ((!CAUSAL || u.range > 0) && SHIFTED)
        x.m = scales_of(states + STATE_FLOATS).m[0];
    for (int c = range.first, begin = 0; c < range.end;) {
        const int end = tokens_begin(&x, c, begin);
        chunk_outputs(&x, keep || c + 1 < range.end || end < CHUNK, &pairs);
        begin = end < CHUNK ? end : 0;
        c += end < CHUNK ? 0 : 1;
    }
    BLOCK_SYNC();
    const new_state to = {new_state_c, new_state_z, new_state_m};
    if (keep && a.stores_apart)
        state_leave(slot, x.m);
    else if (keep)
        new_state_put(&a, &u, &x.own, !SHIFTED && is_direct(&a, &u), CAUSAL ? x.scales.sum : x.scales.top, x.m, factor,
                      &to);
    branch_end();
}
