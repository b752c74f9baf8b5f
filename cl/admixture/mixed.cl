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

/* A block of rows and heads. */
typedef struct mixed_block {
    engine *e;
    const mgk_attention_args *a;
    const problem *p;
    const mod_data *data;
    __global const float *mix, *mix_weight, *mix_offset, *mix_after, *noise, *bias, *slopes;
    __global const float *log_rows, *low_rows; /* L of row 0 before the mixing, and its low part */
    int h0, heads, first;                      /* the first of so many heads, and the first row */
    value_heads groups;
    uint noise_head; /* of shared noise */
} mixed_block;

FUNCTION void block_begin(const mixed_block *b, __global const q_element *q, real (*row_sum)[BLOCK_ROWS])
{
    const mgk_attention_args *const a = b->a;
    for (int n = 0; n < PANELS; ++n) {
        query_load(b->e, n, q, a->q.head, a->q.token, b->first + n * PANEL_ROWS, b->p->valid, a->head_size);
        HEADS_FOR(h)
            acc_clear(b->e, n * HEADS + h);
        ROWS_FOR(i)
            row_sum[n][i] = (real)(0.0f);
    }
}

/* Holds P of a panel's tile, of all heads before the mixing. */
FUNCTION void panel_hold(const mixed_block *b, scorer *x, const tile_view *view, int end, real *row_sum)
{
    const mgk_attention_args *const a = b->a;
    const int first = b->first + view->panel * PANEL_ROWS;
    real log[BLOCK_ROWS], log_low[BLOCK_ROWS];
    const pair_block at = {b->e, x, view, log, log_low};
    /* shared noise and a shared mixing are any head's */
    x->modifiers = modifiers_of(a, b->p, 0, b->slopes, b->data);
    x->mixing = mixing_of(a, 0, b->mix, b->mix_weight, b->noise);
    for (int sub = view->begin; sub < view->end; ++sub)
        hold_scores(&at, b->noise_head, sub);
    for (int head = 0; head < MIX_AFTER; ++head) {
        x->modifiers = modifiers_of(a, b->p, head, b->slopes, b->data);
        x->modifiers.g = 0;
        x->mixing = mixing_of(a, head, b->mix, b->mix_weight, b->noise);
        x->mixing.added = added_of(head, b->mix_offset);
        if (HAS_BIAS)
            bias_stage(b->e, bias_of_block(a, b->p, head, b->bias, first), view->k0, end, view->begin, view->end);
        rows_read(b->e, b->log_rows + (long)head * a->length, first, b->p->valid, -INFINITY, log);
        rows_read(b->e, b->low_rows + (long)head * a->length, first, b->p->valid, 0.0f, log_low);
        for (int sub = view->begin; sub < view->end; ++sub)
            hold_weights(&at, sub, head, row_sum);
        branch_end();
    }
}

/* Their mixed weights times the values. */
FUNCTION void panel_weigh(const mixed_block *b, const scorer *x, const key_walk *walk, const tile_view *view,
                          __global const k_element *k, __global const v_element *v)
{
    const int n = view->panel;
    const pair_block at = {b->e, x, view, 0, 0};
    HEADS_FOR(h) {
        if (h >= b->heads)
            continue;
        const int g = value_head(&b->groups, h);
        if (WEIGHTS_SHARED)
            sync_keys(b->e); /* weights of the head before are done with */
        scales_of_head(b->e, g);
        for (int sub = view->begin; sub < view->end; ++sub) {
            real w[BLOCK_KEYS][BLOCK_ROWS];
            mix_weights(&at, sub, b->mix_after + (long)(b->h0 + h) * MIX_AFTER, w);
            scale_weights(b->e, sub, w);
            weight_put(b->e, sub, w);
        }
        expect_rows(b->a, k, v + g * b->a->v.head, h, b->heads, next_tile(walk, view->k0), walk->end, n);
        tile_accumulate(b->e, n * HEADS + h, g, view->begin, view->end, view->edge);
        branch_end();
    }
    branch_end();
}

/* Results of a panel; 0 in rows that see no key. */
FUNCTION void panel_finish(const mixed_block *b, const row_block *block, __global o_element *o, __global float *work,
                           int n, real *row_sum)
{
    const mgk_attention_args *const a = b->a;
    rows_sum(b->e, row_sum);
    HEADS_FOR(h) {
        if (h >= b->heads)
            continue;
        const results out = mixed_results(a, b->p, block, b->h0 + h, o, work);
        real factor[BLOCK_ROWS];
        ROWS_FOR(i)
            factor[i] = row_sum[i] == (real)(0.0f) ? (real)(0.0f) : (real)(HAS_DROPOUT ? a->keep_scale : 1.0f);
        acc_store(b->e, n * HEADS + h, factor, &out, b->first + n * PANEL_ROWS, b->p->rows, a->value_size);
        branch_end();
    }
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
    const mixed_block b = {&e,         &a,        &p,    &data, mix,    mix_weight,
                           mix_offset, mix_after, noise, bias,  slopes, log_rows,
                           low_rows,   h0,        heads, first, groups, random_batch(&a, block.b)};
    block_begin(&b, q, row_sum);
    key_walk walk = key_walk_of(&a, &p, &block, mask_of_heads(&data, MIX_AFTER));
    for (int k0 = walk.begin; k0 < walk.end; k0 = walk_on(&walk, k0)) {
        tile_view view;
        tile_stage(&e, &walk, &groups, heads, k, v, k0);
        for (int n = 0; n < PANELS; ++n) {
            if (!view_tile(&e, &walk, n, k0, &view))
                continue;
            panel_hold(&b, &x, &view, walk.end, row_sum[n]);
            panel_weigh(&b, &x, &walk, &view, k, v);
        }
    }
    for (int n = 0; n < PANELS; ++n)
        panel_finish(&b, &block, o, work, n, row_sum[n]);
    branch_end();
}
