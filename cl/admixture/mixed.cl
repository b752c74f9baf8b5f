/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, forward, mixing after the softmax: with L of the A = MIX_AFTER heads before it, whose negative
 * admixture/logs.cl left in the workspace,
 *
 *     P_aij = keep_aij 2^(A_aij + bias + ALiBi - L_ai)     W_hij = sum_a m_ha P_aij     O_hi = sum_j W_hij v_hj
 *
 * A tile's scores are computed once more, and its P are held for the HEADS of the H heads whose sums a work-group has.
 * There is no maximum and no rescaling: the sums of ranges of keys add up to O.
 */
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_MIXED_BUFFERS
#include "base/buffers.clh"

#define HELD_WEIGHTS MIX_AFTER

#include "admixture/block.clh"

#define SCORE_SLOTS        (1 + HAS_BIAS)
#define BIAS_SLOT          1
#define QUERY_COMPONENTS   COMPONENTS
#define PANEL_ACCUMULATORS HEADS
#define VALUE_HEADS        HEADS

#include "engine/engine.clh"

#include "attention/view.clh"

/* A panel with its tile and head, as admixture/tile.clh wants it. */
typedef struct pair_block {
    engine *e;
    const scorer *x;
    const tile_view *view;
    const real *log, *log_low; /* -L_i, and what its float lacks */
} pair_block;

#include "admixture/tile.clh"
#include "admixture/value_heads.clh"

FUNCTION entry_terms pair_terms(const pair_block *b, const pair *at, int sub, int u, int v)
{
    entry_terms common = terms_of_log(b->log[v], b->log_low[v]);
    add_modifiers(&b->x->modifiers, at, HAS_BIAS ? bias_get(b->e, sub, u, v) : (real)(0.0f), &common);
    return common;
}

FUNCTION void hide_pairs(const pair_block *b, int sub, real (*s)[BLOCK_ROWS])
{
    if (sub >= b->view->whole_begin && sub < b->view->whole_end)
        return;
    KEYS_FOR(u)
        ROWS_FOR(v)
            s[u][v] = is_hidden(b->e, &b->x->modifiers, b->view, sub, u, v) ? (real)(-INFINITY) : s[u][v];
}

/* P of a sub-tile and head number `head`, to be held; their sums over keys are added to row_sum. */
FUNCTION void hold_weights(const pair_block *b, int sub, int head, real *row_sum)
{
    real s[BLOCK_KEYS][BLOCK_ROWS], eps[BLOCK_KEYS][BLOCK_ROWS], slope[BLOCK_KEYS][BLOCK_ROWS];
    head_noise(b, sub, eps);
    mix_scores(b, sub, eps, s);
    find_weights(b, sub, s, slope);
    KEYS_FOR(u)
        ROWS_FOR(v)
            row_sum[v] += s[u][v];
    if (HAS_DROPOUT)
        drop_weights(b->e, &b->x->modifiers, b->view, sub, s);
    pair_hold(b, SCORES + head, sub, s);
}

/* W of a sub-tile, with row `mix` of m. */
FUNCTION void mix_weights(const pair_block *b, int sub, __global const float *mix, real (*w)[BLOCK_ROWS])
{
    KEYS_FOR(u)
        ROWS_FOR(v)
            w[u][v] = (real)(0.0f);
    for (int n = 0; n < MIX_AFTER; ++n) {
        const real m = (real)(mix[n]);
        KEYS_FOR(u)
            ROWS_FOR(v)
                w[u][v] = fma(m, pair_held(b, SCORES + n, sub, u, v), w[u][v]);
    }
}

/* Where the sums of head h go: O, or (SPLIT_KEYS) the range's part of it, dense. */
FUNCTION results mixed_results(const mgk_attention_args *a, const problem *p, const row_block *block, int h,
                               __global o_element *o, __global float *work)
{
    results out;
    out.part = false;
#if SPLIT_KEYS
    const long batches = HAS_SEQUENCES ? 1 : a->batch, heads = out_heads(a);
    const long row = ((block->split * batches + p->batch) * heads + h) * a->length + p->row_base;
    out.o = work + a->parts_o + row * a->value_size;
    out.o_stride = a->value_size;
#else
    out.o = o + p->batch * a->o.batch + h * a->o.head + p->row_base * a->o.token;
    out.o_stride = a->o.token;
#endif
    return out;
}

KERNEL(admixture_mixed)
{
    BEGIN_BUFFERS
    MAKE_CLASSES()
    if (a.length == 0)
        return;
    const int all = out_heads(&a);
    const row_block block = row_block_of(&a, GROUP_ID, (all + HEADS - 1) / HEADS, offsets);
    const int h0 = block.h * HEADS, heads = min(HEADS, all - h0), first = block.first;
    const problem p =
        placed(&a, problem_of(&a, block.b, lengths, lengths_q, offsets, offsets_k), positions, positions_k);
    if (first >= p.rows)
        return;
    q += p.batch * a.q.batch + p.row_base * a.q.token;
    k += p.cache * a.k.batch + p.key_base * a.k.token;
    const int g0 = h0 / HEAD_RATIO;
    const value_heads groups = {HEAD_RATIO, h0 - g0 * HEAD_RATIO};
    v += p.cache * a.v.batch + g0 * a.v.head + p.key_base * a.v.token;
    __global const float *const log_rows = work + a.parts_lse + p.batch * MIX_AFTER * a.length + p.row_base;
    __global const float *const low_rows = work + a.parts_low + p.batch * MIX_AFTER * a.length + p.row_base;

    ENGINE_DECLARE(e, PRODUCTS)
    SCALES_DECLARE(e, a, scale_k + p.cache * a.scale_k.batch + p.key_base * a.scale_k.token, a.scale_k.head,
                   scale_v + p.cache * a.scale_v.batch + g0 * a.scale_v.head + p.key_base * a.scale_v.token)
    const mod_data data = MOD_DATA;
    scorer x;
    real row_sum[PANELS][BLOCK_ROWS]; /* of P, over keys and heads: 0 where none is seen */
    x.hidden = mix_hidden_offset;
    for (int n = 0; n < PANELS; ++n) {
        query_load(&e, n, q, a.q.head, a.q.token, first + n * PANEL_ROWS, p.valid, a.head_size);
        HEADS_FOR(h)
            acc_clear(&e, n * HEADS + h);
        ROWS_FOR(i)
            row_sum[n][i] = (real)(0.0f);
    }

    key_walk walk = key_walk_of(&a, &p, &block, mask_of_heads(&data, MIX_AFTER));
    const int end = walk.end;
    for (int k0 = walk.begin; k0 < end; k0 = walk_on(&walk, k0)) {
        tile_view view;
        keys_stage(&e, array_rows_of(elements_of(k), a.k.token, k0, end, a.head_size), COMPONENTS, a.k.head,
                   next_keys(&walk, elements_of(k), k0));
        values_stage(&e, array_rows_of(elements_of(v), a.v.token, k0, end, a.value_size),
                     value_head(&groups, heads - 1) + 1, a.v.head, next_keys(&walk, elements_of(v), k0));
        scales_stage(&e, value_head(&groups, heads - 1) + 1, k0, end);
        for (int n = 0; n < PANELS; ++n) {
            const int panel_first = first + n * PANEL_ROWS;
            real log[BLOCK_ROWS], log_low[BLOCK_ROWS];
            const pair_block at = {&e, &x, &view, log, log_low};
            if (!view_tile(&e, &walk, n, k0, &view))
                continue;
            /* shared noise and a shared mixing are any head's */
            x.modifiers = modifiers_of(&a, &p, 0, slopes, &data);
            x.mixing = mixing_of(&a, 0, mix, mix_weight, noise);
            for (int sub = view.begin; sub < view.end; ++sub)
                hold_scores(&at, random_batch(&a, block.b), sub);
            for (int head = 0; head < MIX_AFTER; ++head) {
                x.modifiers = modifiers_of(&a, &p, head, slopes, &data);
                x.modifiers.g = 0;
                x.mixing = mixing_of(&a, head, mix, mix_weight, noise);
                x.mixing.added = added_of(head, mix_offset);
                if (HAS_BIAS)
                    bias_stage(&e, bias_of_block(&a, &p, head, bias, panel_first), k0, end, view.begin, view.end);
                rows_read(&e, log_rows + (long)head * a.length, panel_first, p.valid, -INFINITY, log);
                rows_read(&e, low_rows + (long)head * a.length, panel_first, p.valid, 0.0f, log_low);
                for (int sub = view.begin; sub < view.end; ++sub)
                    hold_weights(&at, sub, head, row_sum[n]);
                branch_end();
            }
            HEADS_FOR(h) {
                if (h >= heads)
                    continue;
                const int g = value_head(&groups, h);
                if (WEIGHTS_SHARED)
                    sync_keys(&e); /* weights of the head before are done with */
                scales_of_head(&e, g);
                for (int sub = view.begin; sub < view.end; ++sub) {
                    real w[BLOCK_KEYS][BLOCK_ROWS];
                    mix_weights(&at, sub, mix_after + (long)(h0 + h) * MIX_AFTER, w);
                    scale_weights(&e, sub, w);
                    weight_put(&e, sub, w);
                }
                expect_rows(&a, k, v + g * a.v.head, h, heads, next_tile(&walk, k0), end, n);
                tile_accumulate(&e, n * HEADS + h, g, view.begin, view.end, view.edge);
                branch_end();
            }
            branch_end();
        }
    }
    for (int n = 0; n < PANELS; ++n) {
        rows_sum(&e, row_sum[n]);
        HEADS_FOR(h) {
            if (h >= heads)
                continue;
            const results out = mixed_results(&a, &p, &block, h0 + h, o, work);
            real factor[BLOCK_ROWS];
            ROWS_FOR(i)
                factor[i] = row_sum[n][i] == (real)(0.0f) ? (real)(0.0f) : (real)(HAS_DROPOUT ? a.keep_scale : 1.0f);
            acc_store(&e, n * HEADS + h, factor, &out, first + n * PANEL_ROWS, p.rows, a.value_size);
            branch_end();
        }
    }
    branch_end();
}
