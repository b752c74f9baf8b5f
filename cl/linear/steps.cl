/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear family, causal forward pass by steps (formulas: linear/block.clh): token after token joins the state, which
 * then gives the token's row: C += psi_t v_t^T, O_t = Phi_t C. An element of the state stays in registers for several
 * tokens. It serves decoding, whose states are read and written once, and engines whose vectors are faster than
 * products inside chunks. Chunks only group the tokens whose features are made together. Ranges of them are as in
 * linear_apply.
 *
 * SHIFTED: the state is relative to the scales after the last of the tokens whose features are made together.
 */
#include "linear/buffers.clh"

#define ARGUMENTS mgk_linear_args
#define BUFFERS   MGK_LINEAR_FORWARD_BUFFERS
#include "base/buffers.clh"

#include "linear/outputs.clh"
#include "linear/steps.clh"

CHUNK_STEPS(steps_add, OUTPUTS_ADD)

/* Steps of z: totals[t] = z after token t, whose products with phi join the sums. First multiplies z by `before`,
 * unless NULL. */
FUNCTION void total_steps(__global float *z, BLOCK_SPACE const float *before, BLOCK_SPACE const float *psi,
                          BLOCK_SPACE const float *phi, BLOCK_SPACE float *totals, BLOCK_SPACE float *sums, int tokens)
{
    VECTORS_FOR(n, FEATURE_BLOCK) {
        real total = REAL_AT(z + n);
        if (before)
            total *= REAL_AT(before + n);
        for (int t = 0; t < tokens; ++t) {
            total += REAL_AT(psi + t * FEATURE_ROW + n);
            REAL_PUT(totals + t * FEATURE_ROW + n, total);
        }
        REAL_PUT(z + n, total);
    }
    BLOCK_SYNC();
    ITEMS_FOR(t, tokens) {
        real sum = (real)(0.0f);
        for (int n = 0; n < FEATURE_BLOCK; n += VECTOR)
            sum = fma(REAL_AT(phi + t * FEATURE_ROW + n), REAL_AT(totals + t * FEATURE_ROW + n), sum);
        sums[t] += real_sum(sum);
    }
}

KERNEL(linear_steps)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const unit u = forward_unit_of(&a, GROUP_ID, lengths, lengths_q, offsets, offsets_k, state_slots, new_state_slots);
    DECLARE_FEATURE_PLACE(place, work, &a)
    const query_source queries = queries_of(&a, &place, &u, q, mix, mix_weight, noise);
    const key_source keys = keys_of(&a, &place, &u, k, prior, shift);
    const span range = range_of(chunks_of(&u.p, u.offset), a.splits, u.range);
    const bool keep = u.range == a.splits - 1 && u.to >= 0;
    const bool given = u.range == 0 && u.from >= 0;
    /* the first chunk reads the state from the array passed in */
    const bool read = given && is_direct(&a, &u) && !is_empty(&range);
    /* the last chunk leaves C in the new state's form */
    const bool settles = keep && is_direct(&a, &u), settled = settles && !is_empty(&range);
    __global float *const slot = work + a.region[MGK_LINEAR_STATES] + (u.slot + u.range) * SLOT_FLOATS;
    state_place own = state_of(slot);
    if (is_direct(&a, &u))
        own.c = new_state_c + state_index(&a, u.to, u.h, 0, 0) * VALUE_BLOCK;
    __global const float *from = read ? state_c + state_index(&a, u.from, u.h, 0, 0) * VALUE_BLOCK : own.c;
    v += u.p.batch * a.v.batch + (long)u.h * a.kv_heads / a.heads * a.v.head + u.p.key_base * a.v.token + u.e0;
    o += u.p.batch * a.o.batch + u.h * a.o.head + u.p.row_base * a.o.token + u.e0;
    DECLARE_TILE(phi, CHUNK * FEATURE_ROW)
    DECLARE_TILE(psi, CHUNK * FEATURE_ROW)
    DECLARE_TILE(totals, CHUNK * FEATURE_ROW)
    DECLARE_TILE(values, CHUNK * VALUE_BLOCK)
    DECLARE_TILE(outputs, CHUNK * VALUE_BLOCK)
    DECLARE_TILE(sums, CHUNK)
    DECLARE_TILE(row_scale, SHIFTED ? CHUNK : 16)
    DECLARE_TILE(whole_scale, SHIFTED ? CHUNK : 16)
    DECLARE_TILE(factor, SHIFTED ? FEATURE_BLOCK : 16)
    DECLARE_TILE(last_factor, SHIFTED ? FEATURE_BLOCK : 16)
    const state_scales scales = scales_of(slot + STATE_FLOATS);
    const feature_scales query_scale = {scales.next, 1.0f}, key_scale = {scales.next, -1.0f};
    float m = -INFINITY;
    if (u.range == 0)
        m = state_begin(&a, &u, given, !read, state_c, state_z, state_m, &own, slot + STATE_FLOATS);
    if (SHIFTED && u.range > 0) {
        m = scales_of(work + a.region[MGK_LINEAR_STATES] + u.slot * SLOT_FLOATS + STATE_FLOATS).m[0];
        scales_copy(scales.sum, scales.top);
    }

    for (int c = range.first, begin = 0; c < range.end;) {
        const int first = c * CHUNK;
        span rows = places_of(first, u.p.valid), out_rows = places_of(first, u.p.rows);
        span places = places_of(first + u.offset, u.p.keys);
        BLOCK_SYNC();
        const int end = span_begin(&keys, first + u.offset, begin, &places, tile_tokens(&places), &scales, psi);
        rows = span_within(&rows, begin, end), out_rows = span_within(&out_rows, begin, end);
        /* at least one token, of zeros: no step would leave the state where it is */
        const int count = max(max(rows.end, places.end), 1), tokens = (count + 3) & ~3; /* noise takes four */
        const token_rows value_rows =
            rows_of(elements_of(v), a.v.token, first + u.offset, &places, a.value_size - u.e0, VALUE_BLOCK);
        next_chunk coming = {.count = 0};
        next_keys_add(&coming, &a, &u, &keys, v, first + u.offset + CHUNK, STEP_PARTS(VALUE_BLOCK));
        next_queries_add(&coming, &a, &u, &queries, first + CHUNK, STEP_PARTS(VALUE_BLOCK) * GLOBAL_HEADS);
        next_outputs_add(&coming, &a, &u, o, first + CHUNK, STEP_PARTS(VALUE_BLOCK));
        tokens_get(values, VALUE_BLOCK, VALUE_BLOCK, &value_rows, tokens);
        if (OUTPUTS_ADD)
            tile_clear(outputs, tokens * VALUE_BLOCK);
        ITEMS_FOR(t, tokens)
            sums[t] = 0.0f;
        query_scales(&queries, first, &rows, tokens, query_scale.scale, row_scale, whole_scale);
        const bool last = SHIFTED && settles && c + 1 == range.end && end == CHUNK;
        const float top = last ? fmax(m, largest_scale(scales.next)) : 0.0f;
        BLOCK_SPACE const float *const before = SHIFTED ? factor : NULL, *const after = last ? last_factor : NULL;
        for (int block = 0; block < STATE_BLOCKS; ++block) {
            const long at = (long)block * FEATURE_BLOCK * VALUE_BLOCK;
            query_features(&queries, block, first, &rows, tokens, &query_scale, row_scale, phi);
            key_features(&keys, block, first + u.offset, &places, tokens, &key_scale, NULL, psi);
            factors_put(block, &scales, factor);
            new_factors_put(last, block * FEATURE_BLOCK, scales.next, top, last_factor);
            steps_add(own.c + at, VALUE_BLOCK, from + at, before, after, psi, phi, FEATURE_ROW, values, VALUE_BLOCK,
                      outputs, VALUE_BLOCK, count, FEATURE_BLOCK, VALUE_BLOCK, &coming);
            total_steps(own.z + block * FEATURE_BLOCK, before, psi, phi, totals, sums, count);
        }
        from = own.c;
        BLOCK_SYNC();
        chunk_put(&a, &u, first, &out_rows, outputs, sums, row_scale, whole_scale, denominator, o);
        scales_advance(&scales);
        begin = end < CHUNK ? end : 0;
        c += end < CHUNK ? 0 : 1;
    }
    BLOCK_SYNC();
    if (keep && a.stores_apart)
        state_leave(slot, m);
    else if (keep)
        new_state_put(&a, &u, &own, settled, scales.sum, m, factor, new_state_c, new_state_z, new_state_m);
    branch_end();
}
