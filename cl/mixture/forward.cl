/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family, forward: softmax, Gaussian, MGK and sMGK attention with an online softmax over keys and components.
 * In the unit of scores (attention/units.clh), here powers of two, with c_r = log2(e) / sigma_r^2:
 *
 *     s_ijr = c_r q_i.k_jr + beta_jr + alpha_ir + log2 pi_r(j)
 *     beta_jr  = 0             [gaussian: - c_r |k_jr|^2 / 2]
 *     alpha_ir = 0             [gaussian, sigma an array: - c_r |q_i|^2 / 2; else that term only enters L]
 *
 *     sMGK, k_jr = k_j + b_r: one product q_i.k_j, and
 *     alpha_ir += c_r q_i.b_r        beta_jr = 0 [gaussian: - c_r (|k_j|^2/2 + k_j.b_r + |b_r|^2/2)]
 *     one sigma: the sum over components factors
 *
 * The text of scores: mixture/score.clh.
 *
 * A key's weight is sum_r 2^(s_ijr - m), m the row's maximum of s_ijr over keys and components; in the factored form
 * C 2^(E - m) with the exponent E, of which m then is the maximum. Soft-cap, bias and ALiBi change every component
 * alike. The softmax itself: attention/tile.clh.
 *
 * SPLIT_KEYS: a work-group takes one of `splits` ranges of the keys; its O and L are partial results in the workspace,
 * which attention/combine.cl joins. DENSITY: no values; L becomes the log-density of the query,
 *
 *     log p(q_i) = log sum_jr pi_r(j) (2 pi sigma_r^2)^(-D/2) exp(- |q_i - k_jr|^2 / (2 sigma_r^2)) - log (keys seen)
 *
 * in the workspace, +inf in rows that see no key.
 */
#include "mixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_MIXTURE_FORWARD_BUFFERS
#include "base/buffers.clh"

#include "mixture/block.clh"

#define SCORE_SLOTS        (HAS_BIAS ? 3 : 2)
#define LOOKAHEAD_SLOTS    (2 * PRODUCTS + 4) /* slots: see below */
#define WEIGHT_FACTORS     HAS_FACTORED
#define LOOKAHEAD_FEATURES (PRODUCTS * HEAD_SIZE + VALUE_SIZE)

#include "engine/engine.clh"

#include "mixture/terms.clh"

typedef mixture scorer;
#define KEPT_PRODUCTS PRODUCTS
#include "attention/tile.clh"

/* A block of rows and a panel's tile. */
struct pair_block {
    const engine *e;
    const mixture *x;
    const tile_view *view;
};

#include "mixture/row_pairs.clh"

/* A sub-tile's entry, with its terms. */
FUNCTION entry tile_entry(const pair_block *b, int sub, int u, int v, const row_base *base)
{
    entry n = entry_at(b->view->panel, sub, u, v);
    n.common.base = -base_of(base, v);
    n.at = pair_of_view(b->e, &b->x->modifiers, b->view, sub, u, v);
    add_modifiers(&b->x->modifiers, &n.at, HAS_BIAS ? bias_get(b->e, sub, u, v) : (real)(0.0f), &n.common);
    return n;
}

/* The factored form of a sub-tile: lazy, the weights, the power of E_ij times sum_r u_ir w_jr; else E_ij, relative to
 * the base. */
FUNCTION void factored_weights(engine *e, const pair_block *b, const tile_view *view, int sub, const bool lazy,
                               const row_base *base, real (*product)[BLOCK_ROWS], real (*w)[BLOCK_ROWS])
{
    KEYS_FOR(u)
        ROWS_FOR(v) {
            const entry n = tile_entry(b, sub, u, v, base);
            w[u][v] = factored_score(b, &n, product[u][v]);
        }
    if (!lazy)
        return;
    settle_scores(e, b->x, view, sub, base, w);
    KEYS_FOR(u)
        ROWS_FOR(v) {
            const entry n = tile_entry(b, sub, u, v, base);
            w[u][v] = power_of(w[u][v]) * factor_of(b, &n);
        }
}

/* Joins component r's scores: lazy, their weights (hard: the larger score); else the larger. NaN stays in weights. */
FUNCTION void join_component(int r, const bool lazy, real (*s)[BLOCK_ROWS], real (*w)[BLOCK_ROWS])
{
    KEYS_FOR(u)
        ROWS_FOR(v) {
            if (ESTEP_HARD)
                w[u][v] = r == 0 ? s[u][v] : max_or_nan(w[u][v], s[u][v]);
            else if (lazy)
                w[u][v] = r == 0 ? power_of(s[u][v]) : w[u][v] + power_of(s[u][v]);
            else
                w[u][v] = r == 0 ? s[u][v] : max_real(w[u][v], s[u][v]);
        }
}

/* Product r of a sub-tile becomes that of its numbers, not of the stored ones, with its term. */
FUNCTION void product_end(const pair_block *b, int sub, const int r, real (*product)[BLOCK_ROWS])
{
    scale_products(b->e, r, sub, product);
    if (TERMS_JOIN)
        KEYS_FOR(u)
            ROWS_FOR(v) {
                const entry n = entry_at(b->view->panel, sub, u, v);
                product[u][v] = product_whole(b, &n, r, product[u][v]);
            }
}

/* Product r of a sub-tile's rows and keys. */
FUNCTION void score_product(engine *e, const scorer *x, const tile_view *view, int sub, const int r, const bool known,
                            const bool lazy, real (*product)[BLOCK_ROWS])
{
    if (known) {
        score_get(e, r, sub, product);
        return;
    }
    const pair_block b = {e, x, view};
    KEYS_FOR(u)
        ROWS_FOR(v) {
            const entry n = entry_at(view->panel, sub, u, v);
            product[u][v] = product_start(&b, &n, r);
        }
    tile_product(e, view->panel, sub, 0, r, view->edge, product);
    product_end(&b, sub, r, product);
    if (!EXACT_TWICE && !lazy)
        score_put(e, r, sub, product);
    branch_end();
}

FUNCTION void block_product(engine *e, const scorer *x, const tile_view *view, int sub, real (*product)[BLOCK_ROWS])
{
    score_product(e, x, view, sub, 0, false, true, product);
}

/* Component r's part in a sub-tile's scores; `product`: of sMGK's keys, or PRODUCTS_TOGETHER, of all components. */
FUNCTION void component_scores(engine *e, const scorer *x, const tile_view *view, const score_pass *pass, const int r,
                               real (*product)[BLOCK_ROWS], real (*w)[BLOCK_ROWS])
{
    const int sub = pass->sub;
    const bool lazy = pass->lazy;
    const row_base *const base = pass->base;
    real s[BLOCK_KEYS][BLOCK_ROWS];
    if (r > 0) {
        if (!lazy && !ALL_MAXIMA(e))
            return;
        component_next(e);
    }
#if PRODUCTS_TOGETHER
    product += r * BLOCK_KEYS;
#elif !KEYS_SHIFTED
    score_product(e, x, view, sub, r, pass->known, lazy, product);
#endif
    const pair_block b = {e, x, view};
    KEYS_FOR(u)
        ROWS_FOR(v) {
            const entry n = tile_entry(&b, sub, u, v, base);
            s[u][v] = score_of(&b, &n, r, product[u][v]).e;
        }
    if (lazy)
        settle_scores(e, x, view, sub, base, s);
    join_component(r, lazy, s, w);
}

FUNCTION void block_scores(engine *e, const scorer *x, const tile_view *view, const score_pass *pass,
                           real (*product)[BLOCK_ROWS], real (*w)[BLOCK_ROWS])
{
    const int sub = pass->sub;
    const bool lazy = pass->lazy;
    const pair_block b = {e, x, view};
#if PRODUCTS_TOGETHER
    real products[COMPONENTS * BLOCK_KEYS][BLOCK_ROWS];
    for (int r = 0; r < COMPONENTS; ++r)
        KEYS_FOR(u)
            ROWS_FOR(v) {
                const entry n = entry_at(view->panel, sub, u, v);
                products[r * BLOCK_KEYS + u][v] = product_start(&b, &n, r);
            }
    tile_products_together(e, view->panel, sub, view->edge, products);
    UNROLL
    for (int r = 0; r < COMPONENTS; ++r)
        product_end(&b, sub, r, products + r * BLOCK_KEYS);
    product = products;
#elif KEYS_SHIFTED
    score_product(e, x, view, sub, 0, pass->known, lazy, product);
#endif
    if (HAS_FACTORED && view->factored) {
        factored_weights(e, &b, view, sub, lazy, pass->base, product, w);
        return;
    }
#define SCORES(r) component_scores(e, x, view, pass, r, product, w)
    COPIES(SCORES, COMPONENTS);
    if (HAS_FACTORED && x->components.one_scale) {
        real factored[BLOCK_KEYS][BLOCK_ROWS];
        factored_weights(e, &b, view, sub, lazy, pass->base, product, factored);
        KEYS_FOR(u)
            ROWS_FOR(v) {
                const entry n = tile_entry(&b, sub, u, v, pass->base);
                const ireal taken = is_factored(row_spread(&b, &n), key_spread(&b, &n));
                w[u][v] = taken ? factored[u][v] : w[u][v];
            }
    } else if (!HAS_FACTORED && ESTEP_HARD && lazy) {
        KEYS_FOR(u)
            ROWS_FOR(v)
                w[u][v] = power_of(w[u][v]);
    }
}

/* The term that the scores of a panel's rows left out: the logarithm of all weights is y + this. */
FUNCTION void left_out(const engine *e, int panel, real *norm)
{
    ROWS_FOR(v)
        norm[v] = (real)(0.0f);
    if (ROW_NORM_LATER)
        rows_norm(e, panel, norm);
}
FUNCTION real whole_log(const mixture *x, const mgk_attention_args *a, real norm, real y, real *low)
{
    return add_left_out(a, y, norm, x->components.scale[0], low);
}

#if DENSITY
/* log p(q_i); there are no sinks */
FUNCTION void panel_finish(engine *e, const mixture *x, const key_walk *w, int panel, const softmax_rows *rows,
                           float sink, const results *out)
{
    const mgk_attention_args *const a = w->a;
    const problem *const p = w->p;
    const int first = w->first + panel * PANEL_ROWS;
    real *const seen = rows->seen;
    real norm[BLOCK_ROWS], density[BLOCK_ROWS];
    rows_sum(e, rows->sum);
    ireal begin[BLOCK_ROWS], count[BLOCK_ROWS];
    const seen_keys keys = seen_keys_of(a, p);
    if (HAS_SEEN)
        rows_sum(e, seen);
    else
        ROWS_FOR(v) {
            row_sees(&keys, row_index(e, first, v), &begin[v], &count[v]);
            seen[v] = convert_real(count[v]);
        }
    left_out(e, panel, norm);
    ROWS_FOR(v) {
        real low = (real)(0.0f);
        const real l = whole_log(x, a, norm[v], finite_max(rows->max[v]) + exponent_of(rows->sum[v]), &low) +
                       a->density - exponent_of(seen[v]);
        const ireal in_use = row_index(e, first, v) < (ireal)(p->valid);
        density[v] = in_use && seen[v] > (real)(0.0f) ? l * NATS_PER_UNIT : (real)(INFINITY);
    }
    rows_store(e, density, out->lse, out->lse_stride, first, p->rows);
}
#endif

/* Slots of rows_ahead: arrays of the next work-group, then those of the next tile. */
enum { AHEAD_Q, AHEAD_O, AHEAD_V, AHEAD_TILE_V, AHEAD_K, AHEAD_TILE_K = AHEAD_K + PRODUCTS };

/* Sub-tiles of scores that a block computes for `keys` keys from k0 on; causality hides them from half of the rows that
 * are their queries. */
FUNCTION int steps_of(const mgk_attention_args *a, const row_block *block, int k0, int keys)
{
    const int rows = min(a->length - block->first, GROUP_ROWS), panels = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
    const int hidden = a->right < 0 ? 0 : clamp(k0 + keys - block->first - rows / 2, 0, keys);
    return max(panels * ((keys - hidden + SUB_KEYS - 1) / SUB_KEYS), 1);
}

/* Keys and values of the next tile, or of the next work-group's first one. */
FUNCTION void tile_ahead(engine *e, const mgk_attention_args *a, const bool next_tile, __global const k_element *k,
                         __global const v_element *v, int k0, int end, int steps)
{
    const int limit = min(k0 + TILE_KEYS, end);
    const int slot_k = next_tile ? AHEAD_TILE_K : AHEAD_K, slot_v = next_tile ? AHEAD_TILE_V : AHEAD_V;
    for (int r = 0; r < PRODUCTS; ++r)
        rows_ahead(e, slot_k + r, elements_of(k + r * a->k.component), a->k.token, k0, limit, a->head_size, steps);
    rows_ahead(e, slot_v, elements_of(v), a->v.token, k0, limit, a->value_size, steps);
}

/* The rows that the next work-group reads and writes, which the same core probably executes; `at` and o are the
 * block's. */
FUNCTION void block_ahead(engine *e, const mgk_attention_args *a, const row_block *block, const row_block *next,
                          const row_arrays *at, __global const o_element *o, int steps)
{
    const long b = next->b - block->b, h = next->h - block->h;
    const long g = (long)next->h * a->kv_heads / a->heads - (long)block->h * a->kv_heads / a->heads;
    const int end = min(next->first + GROUP_ROWS, a->length);
    rows_ahead(e, AHEAD_Q, elements_of(at->q + b * a->q.batch + h * a->q.head), a->q.token, next->first, end,
               a->head_size, steps);
    rows_ahead(e, AHEAD_O, elements_of(o + b * a->o.batch + h * a->o.head), a->o.token, next->first, end, a->value_size,
               steps);
    if (!HAS_PAGE_TABLE && (b != 0 || g != 0))
        tile_ahead(e, a, false, at->k + b * a->k.batch + g * a->k.head, at->v + b * a->v.batch + g * a->v.head, 0,
                   a->length_k, steps);
    rows_announced(e);
}

/* Row values of a block so far. */
typedef struct block_rows {
    real max[PANELS][BLOCK_ROWS], sum[PANELS][BLOCK_ROWS], seen[PANELS][BLOCK_ROWS];
} block_rows;

/* Begins the block's panels. */
FUNCTION void panels_begin(engine *e, mixture *x, const key_walk *w, const row_arrays *at, block_rows *rows)
{
    const mgk_attention_args *const a = w->a;
    for (int n = 0; n < PANELS; ++n) {
        query_load(e, n, at->q, 0, a->q.token, w->first + n * PANEL_ROWS, w->p->valid, a->head_size);
        if (!DENSITY)
            acc_clear(e, n);
        row_terms(e, x, n, at->shift, a->head_size);
        ROWS_FOR(i) {
            rows->max[n][i] = (real)(-INFINITY);
            rows->sum[n][i] = rows->seen[n][i] = (real)(0.0f);
        }
    }
}

/* Stages a tile, and announces the next one's rows. */
FUNCTION void tile_begin(engine *e, mixture *x, const key_walk *w, const row_arrays *at, const row_block *block, int k0)
{
    tile_stage(e, x, w, at, k0);
    const int next = next_tile(w, k0);
    if (!(DENSITY || HAS_PAGE_TABLE) && next < w->end)
        tile_ahead(e, w->a, true, at->k, at->v, next, w->end, steps_of(w->a, block, k0, TILE_KEYS));
}

/* A panel's weights of the tile at k0, and their values' part of O. `bias`: of the head's row 0. */
FUNCTION void panel_weigh(engine *e, const mixture *x, key_walk *w, tile_view *view, int k0, bias_block bias, int panel,
                          block_rows *values)
{
    if (!view_tile(e, w, panel, k0, view))
        return;
    bias.first = w->first + panel * PANEL_ROWS;
    if (HAS_BIAS)
        bias_stage(e, bias, k0, w->end, view->begin, view->end);
    const softmax_rows rows = {panel, 1, values->max[panel], values->sum[panel], values->seen[panel]};
    tile_weights(e, x, view, &rows);
    if (DENSITY)
        flags_lower(e);
    else
        tile_accumulate(e, panel, 0, view->begin, view->end, view->edge);
    branch_end();
}

KERNEL(mixture_forward)
{
    BEGIN_BUFFERS
    MAKE_CLASSES()
    if (a.length == 0)
        return;
    const row_block block = row_block_of(&a, GROUP_ID, a.heads, offsets);
    const int h = block.h, first = block.first;
    problem p = placed(&a, problem_of(&a, block.b, lengths, lengths_q, offsets, offsets_k), positions, positions_k);
    if (first >= p.rows)
        return;
    const page_map pages = pages_of(&a, &p, page_table, page_offsets, last_page);
    const long g = (long)h * a.kv_heads / a.heads;
    const row_arrays at = {q + p.batch * a.q.batch + h * a.q.head + p.row_base * a.q.token,
                           k + p.cache * a.k.batch + g * a.k.head + p.key_base * a.k.token,
                           DENSITY ? 0 : v + p.cache * a.v.batch + g * a.v.head + p.key_base * a.v.token,
                           prior + h * a.prior.head + p.key_base * a.prior.token,
                           shift + (long)h * COMPONENTS * a.head_size};

    ENGINE_DECLARE(e, PRODUCTS)
#if HAS_PAGE_TABLE
    e.pages = pages;
#endif
    SCALES_DECLARE(e, a, scale_k + p.cache * a.scale_k.batch + g * a.scale_k.head + p.key_base * a.scale_k.token,
                   a.scale_k.component,
                   scale_v + p.cache * a.scale_v.batch + g * a.scale_v.head + p.key_base * a.scale_v.token)
    mixture x;
    KEY_SPACE float beta[HAS_KEY_TERMS ? TERM_TILES * COMPONENTS : 1][TILE_KEYS];
    KEY_SPACE float log_prior[HAS_LOG_PRIOR ? COMPONENTS : 1][TILE_KEYS];
    KEY_SPACE float w[HAS_FACTORED ? COMPONENTS : 1][TILE_KEYS];
    KEY_SPACE float top[TILE_KEYS], spread[TILE_KEYS];
    x.keys = (mixture_keys){beta, log_prior, w, top, spread};
    if (KEY_TERMS_GIVEN)
        betas_begin(&e, &x, &a, work + a.key_terms + beta_row(&a, p.batch, h, g, 0) + p.key_base);
    const mod_data data = MOD_DATA;
    mixture_begin(&x, &a, &p, h, &at, variance, slopes, &data);
    key_walk walk = key_walk_of(&a, &p, &block, mask_of_head(&data, h));
    block_rows values;
    panels_begin(&e, &x, &walk, &at, &values);
#if !HAS_SEQUENCES && !SPLIT_KEYS && !DENSITY
    const row_block next = row_block_of(&a, GROUP_ID + 1, a.heads, offsets);
    block_ahead(&e, &a, &block, &next, &at, results_of(&a, &p, h, &block, o, lse, lse_low, work).o,
                steps_of(&a, &block, walk.begin, walk.end - walk.begin));
#endif
    for (int k0 = walk.begin; k0 < walk.end; k0 = walk_on(&walk, k0)) {
        tile_begin(&e, &x, &walk, &at, &block, k0);
        tile_view view;
        view.factored = HAS_FACTORED && !flag_read(&e, FLAG_SPREAD);
        for (int n = 0; n < PANELS; ++n)
            panel_weigh(&e, &x, &walk, &view, k0, bias_of_block(&a, &p, h, BIAS_ARRAY, 0), n, &values);
    }
    const results out = results_of(&a, &p, h, &block, o, lse, lse_low, work);
    for (int n = 0; n < PANELS; ++n) {
        const softmax_rows rows = {n, 1, values.max[n], values.sum[n], values.seen[n]};
        /* one range of the keys has it */
        const float sink = HAS_SINKS && block.split == 0 ? sinks[h] : -INFINITY;
        panel_finish(&e, &x, &walk, n, &rows, sink, &out);
    }
    branch_end();
}
