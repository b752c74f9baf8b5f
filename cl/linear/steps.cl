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

/* Tiles that only steps have: totals [CHUNK][FEATURE_ROW]; last_factor [FEATURE_BLOCK], to the new state's scale. */
typedef struct step_tiles {
    BLOCK_SPACE float *totals, *last_factor;
} step_tiles;

/* Takes the tokens' steps, of a block of features after the other; C comes from `from`. `last`: to the new state's
 * scale. */
FUNCTION void token_steps(const output_block *x, __global const float *from, bool last, const step_tiles *tiles)
{
    const mgk_linear_args *const a = x->a;
    /* at least one token, of zeros: no step would leave the state where it is */
    const int count = max(max(x->rows.end, x->places.end), 1), tokens = (count + 3) & ~3; /* noise takes four */
    next_chunk coming = {.count = 0};
    next_keys_add(&coming, a, x->u, &x->keys, x->v, x->key_first + CHUNK, STEP_PARTS(VALUE_BLOCK));
    next_queries_add(&coming, a, x->u, &x->queries, x->first + CHUNK, STEP_PARTS(VALUE_BLOCK) * GLOBAL_HEADS);
    next_outputs_add(&coming, a, x->u, x->o, x->first + CHUNK, STEP_PARTS(VALUE_BLOCK));
    values_load(x, VALUE_BLOCK, tokens);
    if (OUTPUTS_ADD)
        tile_clear(x->outputs, tokens * VALUE_BLOCK);
    ITEMS_FOR(t, tokens)
        x->sums[t] = 0.0f;
    query_scales(&x->queries, x->first, &x->rows, tokens, x->query_scale.scale, x->row_scale, x->whole_scale);
    const float top = last ? fmax(x->m, largest_scale(x->scales.next)) : 0.0f;
    state_steps steps = {.c_row = VALUE_BLOCK, .rows = FEATURE_BLOCK, .cols = VALUE_BLOCK, .tokens = count};
    steps.before = SHIFTED ? x->factor : NULL, steps.after = last ? tiles->last_factor : NULL;
    steps.a = x->psi, steps.q = x->phi, steps.a_row = FEATURE_ROW, steps.b = x->values, steps.b_row = VALUE_BLOCK;
    steps.out = x->outputs, steps.out_row = VALUE_BLOCK;
    for (int block = 0; block < STATE_BLOCKS; ++block) {
        const long at = (long)block * FEATURE_BLOCK * VALUE_BLOCK;
        query_features(&x->queries, block, x->first, &x->rows, tokens, &x->query_scale, x->row_scale, x->phi);
        key_features(&x->keys, block, x->key_first, &x->places, tokens, &x->key_scale, NULL, x->psi);
        factors_put(block, &x->scales, x->factor);
        new_factors_put(last, block * FEATURE_BLOCK, x->scales.next, top, tiles->last_factor);
        steps.c = x->own.c + at, steps.from = from + at;
        steps_add(&steps, &coming);
        total_steps(x->own.z + block * FEATURE_BLOCK, steps.before, x->psi, x->phi, tiles->totals, x->sums, count);
    }
    BLOCK_SYNC();
    outputs_put(x);
    scales_advance(&x->scales);
}

KERNEL(linear_steps)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    DECLARE_OUTPUT_BLOCK(1, CHUNK * FEATURE_ROW, CHUNK * VALUE_BLOCK)
    DECLARE_TILE(totals, CHUNK * FEATURE_ROW)
    DECLARE_TILE(last_factor, SHIFTED ? FEATURE_BLOCK : 16)
    const span range = range_of(chunks_of(&u.p, u.offset), a.splits, u.range);
    const bool keep = u.range == a.splits - 1 && u.to >= 0, begins = u.range == 0 && u.from >= 0;
    /* the first chunk reads the state from the array passed in */
    const bool read = begins && is_direct(&a, &u) && !is_empty(&range);
    /* the last chunk leaves C in the new state's form */
    const bool settles = keep && is_direct(&a, &u), settled = settles && !is_empty(&range);
    const step_tiles tiles = {totals, last_factor};
    __global float *const states = work + a.region[MGK_LINEAR_STATES] + u.slot * SLOT_FLOATS;
    __global float *const slot = states + u.range * SLOT_FLOATS;
    output_state(&x, slot, new_state_c);

    const given_state given = {state_c, state_z, state_m};
    if (u.range == 0)
        x.m = state_begin(&a, &u, begins, !read, &given, &x.own, &x.scales);
    if (SHIFTED && u.range > 0) {
        x.m = scales_of(states + STATE_FLOATS).m[0];
        scales_copy(x.scales.sum, x.scales.top);
    }
    __global const float *from = read ? state_c + state_index(&a, u.from, u.h, 0, 0) * VALUE_BLOCK : x.own.c;
    for (int c = range.first, begin = 0; c < range.end;) {
        const int end = tokens_begin(&x, c, begin);
        token_steps(&x, from, SHIFTED && settles && c + 1 == range.end && end == CHUNK, &tiles);
        from = x.own.c;
        begin = end < CHUNK ? end : 0;
        c += end < CHUNK ? 0 : 1;
    }
    BLOCK_SYNC();
    const new_state to = {new_state_c, new_state_z, new_state_m};
    if (keep && a.stores_apart)
        state_leave(slot, x.m);
    else if (keep)
        new_state_put(&a, &u, &x.own, settled, x.scales.sum, x.m, factor, &to);
    branch_end();
}
