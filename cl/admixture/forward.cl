/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, forward: M products of scores for each tile of keys, then an online softmax over their mixture for
 * each of H heads. A work-group holds the state of HEADS of them; more are other work-groups, with products of their
 * own. Formulas of the scores: admixture/block.clh; the softmax: attention/tile.clh.
 *
 * LOGS_ALONE: no values; ranges of keys leave their parts of L in the workspace (admixture/logs.cl).
 *
 * SHARED_SOFTMAX (MiSH where nothing differs by head): one matrix of weights serves all heads of the work-group.
 */
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_FORWARD_BUFFERS
#include "base/buffers.clh"

#include "admixture/block.clh"

#define SCORE_SLOTS        (1 + HAS_BIAS)
#define BIAS_SLOT          1
#define QUERY_COMPONENTS   COMPONENTS
#define PANEL_ACCUMULATORS HEADS
#define VALUE_HEADS        HEADS

#include "engine/engine.clh"

#include "attention/tile.clh"

/* A panel with its tile and head, as admixture/tile.clh wants it. */
typedef struct pair_block {
    engine *e;
    const scorer *x;
    const tile_view *view;
    const row_base *base; /* what the scores are relative to */
} pair_block;

#include "admixture/tile.clh"
#include "admixture/value_heads.clh"

FUNCTION entry_terms pair_terms(const pair_block *b, const pair *at, int sub, int u, int v)
{
    entry_terms common = terms_of_base(-base_of(b->base, v));
    add_modifiers(&b->x->modifiers, at, HAS_BIAS ? bias_get(b->e, sub, u, v) : (real)(0.0f), &common);
    return common;
}

/* The one product of a row and key here is its mixed score. */
FUNCTION void block_product(engine *e, const scorer *x, const tile_view *view, int sub, real (*product)[BLOCK_ROWS])
{
    real eps[BLOCK_KEYS][BLOCK_ROWS];
    const pair_block b = {e, x, view, 0};
    head_noise(&b, sub, eps);
    mix_scores(&b, sub, eps, product);
}

FUNCTION void block_scores(engine *e, const scorer *x, const tile_view *view, const score_pass *pass,
                           real (*product)[BLOCK_ROWS], real (*w)[BLOCK_ROWS])
{
    const int sub = pass->sub;
    const bool lazy = pass->lazy;
    if (pass->known) {
        score_get(e, 0, sub, product);
    } else {
        block_product(e, x, view, sub, product);
        if (!lazy)
            score_put(e, 0, sub, product);
    }
    const pair_block b = {e, x, view, pass->base};
    real slope[BLOCK_KEYS][BLOCK_ROWS];
    find_exponents(&b, sub, product, w, slope);
    if (!lazy)
        return;
    settle_scores(e, x, view, sub, pass->base, w);
    KEYS_FOR(u)
        ROWS_FOR(v)
            w[u][v] = power_of(w[u][v]);
}

FUNCTION void left_out(const engine *e, int panel, real *norm)
{
    ROWS_FOR(v)
        norm[v] = (real)(0.0f);
}

FUNCTION real whole_log(const scorer *x, const mgk_attention_args *a, real norm, real y, real *low)
{
    return y;
}

/* Row values of all heads so far. `rounded`: sums of rounded weights; else unused. */
typedef struct head_rows {
    real (*max)[BLOCK_ROWS], (*sum)[BLOCK_ROWS], (*rounded)[BLOCK_ROWS];
} head_rows;

/* The heads of a work-group, `count` from h0 on. */
typedef struct head_group {
    const mgk_attention_args *a;
    const problem *p;
    int h0, count;
    value_heads values;
    uint noise_head; /* of shared noise */
    __global const k_element *k;
    __global const v_element *v; /* of the first head's values */
    __global const float *bias;
} head_group;

/* Begins the panels of the rows from `first` on. */
FUNCTION void panels_begin(engine *e, const head_group *b, __global const q_element *q, int first,
                           const head_rows *rows)
{
    const mgk_attention_args *const a = b->a;
    for (int n = 0; n < PANELS; ++n) {
        query_load(e, n, q, a->q.head, a->q.token, first + n * PANEL_ROWS, b->p->valid, a->head_size);
        HEADS_FOR(h) {
            const int acc = n * HEADS + h;
            if (!LOGS_ALONE)
                acc_clear(e, acc);
            ROWS_FOR(i) {
                rows->max[acc][i] = (real)(-INFINITY);
                rows->sum[acc][i] = (real)(0.0f);
                if (SUMS_ROUNDED)
                    rows->rounded[acc][i] = (real)(0.0f);
            }
        }
    }
}

/* Head h's weights of panel n's tile. */
FUNCTION void head_weights(engine *e, const head_group *b, const scorer *x, const key_walk *walk, const tile_view *view,
                           const head_rows *rows, const int n, const int h)
{
    const int acc = n * HEADS + h;
    if (WEIGHTS_SHARED)
        sync_keys(e); /* weights of the head before are done with */
    if (HAS_BIAS)
        bias_stage(e, bias_of_block(b->a, b->p, b->h0 + h, b->bias, walk->first + n * PANEL_ROWS), view->k0, walk->end,
                   view->begin, view->end);
    scales_of_head(e, value_head(&b->values, h));
    const softmax_rows own = {acc, SHARED_SOFTMAX ? b->count : 1, rows->max[acc], rows->sum[acc],
                              rows->rounded[SUMS_ROUNDED ? acc : 0]};
    tile_weights(e, x, view, &own);
}

/* Each head's weights of panel n's tile, and their values' part of O. n is a parameter although `view` has it: clang
 * does not unroll the loop over heads with an index that it reads from memory. */
FUNCTION void panel_weigh(engine *e, const head_group *b, const scorer *x, const key_walk *walk, const tile_view *view,
                          const head_rows *rows, const int n)
{
    const pair_block any_head = {e, x, view, 0};
    for (int sub = view->begin; sub < view->end; ++sub)
        hold_scores(&any_head, b->noise_head, sub);
    HEADS_FOR(h) {
        if (h >= b->count)
            continue;
        const int g = value_head(&b->values, h);
        if (!SHARED_SOFTMAX || h == 0)
            head_weights(e, b, x + h, walk, view, rows, n, h);
#if LOGS_ALONE
        flags_lower(e);
#else
        if (!HAS_PAGE_TABLE)
            expect_rows(b->a, b->k, b->v + g * b->a->v.head, h, b->count, next_tile(walk, view->k0), walk->end, n);
        tile_accumulate(e, n * HEADS + h, g, view->begin, view->end, view->edge);
#endif
        branch_end();
    }
    branch_end();
}

/* O and L of head h, in panel n. */
FUNCTION void head_finish(engine *e, const scorer *x, const key_walk *walk, const head_rows *rows, int n, int h,
                          float sink, const results *out)
{
    const int acc = n * HEADS + h, own = SHARED_SOFTMAX ? n * HEADS : acc;
    real sum[BLOCK_ROWS], rounded[BLOCK_ROWS];
    ROWS_FOR(i) {
        sum[i] = rows->sum[own][i];
        if (SUMS_ROUNDED)
            rounded[i] = rows->rounded[own][i];
    }
    const softmax_rows all = {acc, 1, rows->max[own], sum, rounded};
    panel_finish(e, x, walk, n, &all, sink, out);
    branch_end();
}

KERNEL(admixture_forward)
{
    BEGIN_BUFFERS
    MAKE_CLASSES()
    if (a.length == 0)
        return;
    const row_block block = row_block_of(&a, GROUP_ID, (a.heads + HEADS - 1) / HEADS, offsets);
    const int h0 = block.h * HEADS, heads = min(HEADS, a.heads - h0), first = block.first;
    problem p = placed(&a, problem_of(&a, block.b, lengths, lengths_q, offsets, offsets_k), positions, positions_k);
    if (first >= p.rows)
        return;
    const page_map pages = pages_of(&a, &p, page_table, page_offsets, last_page);
    q += p.batch * a.q.batch + p.row_base * a.q.token;
    k += p.cache * a.k.batch + p.key_base * a.k.token;
    const int readers = a.heads / a.kv_heads, g0 = h0 / readers;
    const value_heads values = {readers, h0 - g0 * readers};
    if (!LOGS_ALONE)
        v += p.cache * a.v.batch + g0 * a.v.head + p.key_base * a.v.token;

    ENGINE_DECLARE(e, PRODUCTS)
#if HAS_PAGE_TABLE
    e.pages = pages;
#endif
    SCALES_DECLARE(e, a, scale_k + p.cache * a.scale_k.batch + p.key_base * a.scale_k.token, a.scale_k.head,
                   scale_v + p.cache * a.scale_v.batch + g0 * a.scale_v.head + p.key_base * a.scale_v.token)
    const mod_data data = MOD_DATA;
    const head_group group = {&a, &p, h0, heads, values, random_batch(&a, block.b), k, v, HAS_BIAS ? BIAS_ARRAY : 0};
    scorer x[HEADS];
    real row_max[PANELS * HEADS][BLOCK_ROWS], row_sum[PANELS * HEADS][BLOCK_ROWS];
    real rounded[SUMS_ROUNDED ? PANELS * HEADS : 1][BLOCK_ROWS];
    const head_rows rows = {row_max, row_sum, rounded};
    HEADS_FOR(h) {
        if (h >= heads)
            continue;
        x[h].modifiers = modifiers_of(&a, &p, h0 + h, slopes, &data);
        x[h].mixing = mixing_of(&a, h0 + h, mix, mix_weight, noise);
        x[h].mixing.added = added_of(h0 + h, mix_offset);
        x[h].hidden = mix_hidden_offset;
    }
    panels_begin(&e, &group, q, first, &rows);
    key_walk walk = key_walk_of(&a, &p, &block, mask_of_heads(&data, a.heads));
    for (int k0 = walk.begin; k0 < walk.end; k0 = walk_on(&walk, k0)) {
        tile_view view;
        tile_stage(&e, &walk, &group.values, heads, k, v, k0);
        for (int n = 0; n < PANELS; ++n)
            if (view_tile(&e, &walk, n, k0, &view))
                panel_weigh(&e, &group, x, &walk, &view, &rows, n);
    }
    accs_complete(&e);
    for (int n = 0; n < PANELS; ++n)
        HEADS_FOR(h) {
            if (h >= heads)
                continue;
            const results out = results_of(&a, &p, h0 + h, &block, o, lse, lse_low, work);
            /* one range of the keys has it */
            head_finish(&e, &x[h], &walk, &rows, n, h, HAS_SINKS && block.split == 0 ? sinks[h0 + h] : -INFINITY, &out);
        }
    branch_end();
}
