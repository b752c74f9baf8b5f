/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear family, causal forward pass by steps (formulas: linear/block.clh): token after token joins the state, which
 * then gives the token's row: C += psi_t v_t^T, O_t = Phi_t C. An element of the state stays in registers for several
 * tokens. For decoding, whose states are read and written once, and where vectors make it faster than products inside
 * chunks. Chunks are only the tokens whose features are made together; ranges of them as in linear_apply.
 *
 * SHIFTED: the state before and after each token is relative to the largest n_j so far, M_t of that row.
 */
#include "linear/buffers.clh"

#define ARGUMENTS mgk_linear_args
#define BUFFERS   MGK_LINEAR_FORWARD_BUFFERS
#include "base/buffers.clh"

#include "linear/outputs.clh"
#include "linear/steps.clh"

CHUNK_STEPS(steps_add, OUTPUTS_ADD)

/* z: totals[t] = z after token t, whose products with phi are added to the sums. */
FUNCTION void total_steps(__global float *z, BLOCK_SPACE const float *psi, BLOCK_SPACE const float *phi,
                          BLOCK_SPACE const float *factor, BLOCK_SPACE float *totals, BLOCK_SPACE float *sums,
                          int tokens)
{
    VECTORS_FOR(n, FEATURE_BLOCK) {
        real total = REAL_AT(z + n);
        for (int t = 0; t < tokens; ++t) {
            const real x = REAL_AT(psi + t * FEATURE_ROW + n);
            total = SHIFTED ? fma(total, (real)(factor[t]), x) : total + x;
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
    const unit u = unit_of(&a, GROUP_ID, lengths, lengths_q, offsets, offsets_k);
    const query_source queries = queries_of(&a, &u, q, mix, mix_weight, noise);
    const key_source keys = keys_of(&a, &u, k, prior, shift);
    const span range = range_of(chunks_of(&u.p, u.offset), a.splits, u.range);
    const bool keep = u.range == a.splits - 1 && is_given(&a.bound, SLOT_NEW_STATE_C);
    const bool given = u.range == 0 && is_given(&a.bound, SLOT_STATE_C), read = given && is_direct(&a);
    __global float *const slot = work + a.region[MGK_LINEAR_STATES] + (u.slot + u.range) * SLOT_FLOATS;
    state_place own = state_of(slot);
    const long index = state_index(&a, &u, 0, 0) * VALUE_BLOCK;
    if (is_direct(&a))
        own.c = new_state_c + index;
    __global const float *from = read ? state_c + index : own.c;
    v += u.p.batch * a.v.batch + (long)u.h * a.kv_heads / a.heads * a.v.head + u.p.key_base * a.v.token + u.e0;
    o += u.p.batch * a.o.batch + u.h * a.o.head + u.p.row_base * a.o.token + u.e0;
    DECLARE_FEATURE_PLACE(place, work, &a)
    DECLARE_TILE(phi, CHUNK * FEATURE_ROW)
    DECLARE_TILE(psi, CHUNK * FEATURE_ROW)
    DECLARE_TILE(totals, CHUNK * FEATURE_ROW)
    DECLARE_TILE(values, CHUNK * VALUE_BLOCK)
    DECLARE_TILE(outputs, CHUNK * VALUE_BLOCK)
    DECLARE_TILE(sums, CHUNK)
    DECLARE_TILE(query_scale, SHIFTED ? CHUNK : 16)
    DECLARE_TILE(key_scale, SHIFTED ? CHUNK : 16)
    DECLARE_TILE(row_scale, SHIFTED ? CHUNK : 16)
    DECLARE_TILE(factor, SHIFTED ? CHUNK : 16)
    float m = u.range > 0 ? slot[STATE_FLOATS + 1] : -INFINITY;
    if (u.range == 0)
        m = state_begin(&a, &u, given, !read, state_c, state_z, state_m, &own);

    for (int c = range.first; c < range.end; ++c) {
        const int first = c * CHUNK;
        const span rows = places_of(first, u.p.valid), places = places_of(first + u.offset, u.p.keys);
        const int count = max(rows.end, places.end), tokens = (count + 3) & ~3; /* noise takes four */
        const token_rows value_rows =
            rows_of(v, a.v.token, first + u.offset, &places, a.value_size - u.e0, VALUE_BLOCK);
        next_chunk coming = {.count = 0};
        next_keys_add(&coming, &a, &u, &keys, v, first + u.offset + CHUNK, STEP_PARTS(VALUE_BLOCK));
        next_queries_add(&coming, &a, &u, &queries, first + CHUNK, STEP_PARTS(VALUE_BLOCK) * GLOBAL_HEADS);
        next_outputs_add(&coming, &a, &u, o, first + CHUNK, STEP_PARTS(VALUE_BLOCK));
        BLOCK_SYNC();
        tokens_get(values, VALUE_BLOCK, VALUE_BLOCK, &value_rows, tokens);
        if (OUTPUTS_ADD)
            tile_clear(outputs, tokens * VALUE_BLOCK);
        ITEMS_FOR(t, tokens)
            sums[t] = 0.0f;
#if SHIFTED
        key_scales(&place, &a, &keys, first + u.offset, &places, tokens, key_scale);
        query_scales(&place, &a, &queries, first, &rows, tokens, query_scale);
        ITEMS_FOR(t, tokens) {
            const float before = top_of(m, key_scale, t);
            row_scale[t] = fmax(before, key_scale[t]);
            factor[t] = rescale(before, row_scale[t]);
        }
        m = top_of(m, key_scale, tokens);
#endif
        for (int block = 0; block < STATE_BLOCKS; ++block) {
            const long at = (long)block * FEATURE_BLOCK * VALUE_BLOCK;
            query_features(&place, &a, &queries, block, first, &rows, tokens, query_scale, phi);
            key_features(&place, &a, &keys, block, first + u.offset, &places, tokens, key_scale, NULL, psi);
#if SHIFTED
            rows_rescale_each(psi, tokens, key_scale, row_scale);
            BLOCK_SYNC();
#endif
            steps_add(own.c + at, VALUE_BLOCK, from + at, psi, phi, FEATURE_ROW, values, VALUE_BLOCK, factor, outputs,
                      VALUE_BLOCK, count, FEATURE_BLOCK, VALUE_BLOCK, &coming);
            total_steps(own.z + block * FEATURE_BLOCK, psi, phi, factor, totals, sums, count);
        }
        from = own.c;
        BLOCK_SYNC();
        chunk_put(&a, &u, first, rows.end, outputs, sums, query_scale, row_scale, denominator, o);
    }
    BLOCK_SYNC();
    if (keep)
        new_state_put(&a, &u, &own, m, new_state_c, new_state_z, new_state_m);
    branch_end();
}
