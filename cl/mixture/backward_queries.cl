/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family, backward pass, the kernel of queries: a work-group owns a block of queries, as in mixture/forward.cl,
 * and visits tiles of keys. It computes the scores once more, and what is summed over keys (formulas, and the gradients
 * that are summed over queries: mixture/backward.cl):
 *
 *     dQ_i = sum_jr dS_ijr (k_jr [gaussian: - q_i]) / sigma_r^2 (mixture/query_gradient.clh)
 *     R_ir = sum_j dS_ijr, for dshift
 *     dbias_i = sum_jr dS_ijr, of a bias without key axis
 *     delta_i = dL_i - sum_j P_ij dP_ij for the kernel of keys (DELTA_SUMMED): as good as dO_i.O_i is for other
 *               gradients where O is rounded, the sum of its errors may be too large for dprior
 *
 * For engines with SCATTERS_QUERIES 0 (engine/engine.clh).
 */
#define PASS_BACKWARD
#define KERNEL_OF_QUERIES
#include "mixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_MIXTURE_QUERIES_BUFFERS
#include "base/buffers.clh"

#include "mixture/block.clh"

#include "mixture/rows.clh"

#define SLOTS             PRODUCTS
#define HAS_KEY_GRADIENTS WANT_Q
#define HAS_KEY_SUMS      0
#define HAS_KEY_REST      0
#define PRIOR_APART       0
/* dQ wants R_ir summed over the components: it multiplies these sums' numbers. */
#define SLOT_SUMS      (SUMS_SLOTS && WANT_Q && SCORE_GAUSSIAN && HAS_ROW_SUMS && !KEYS_SHIFTED && !WANT_SHIFT)
#define KEEPS_ROW_SUMS (HAS_ROW_SUMS && !(SLOT_SUMS))

#include "engine/backward.clh"

#include "mixture/query_gradient.clh"
#include "mixture/terms.clh"

/* The bias' row sums are those of all components, unless a soft-cap or a factor comes between. */
#define BIAS_SUMS_APART (HAS_BIAS_ROW_SUMS && (SCORES_SHAPED || ROW_SUMS_SCALED || !KEEPS_ROW_SUMS))

/* Values of the block's rows. */
typedef struct query_values {
    real log[BLOCK_ROWS], log_low[BLOCK_ROWS], delta[BLOCK_ROWS];
    real sum[KEEPS_ROW_SUMS ? COMPONENTS : 1][BLOCK_ROWS]; /* R_ir */
    real bias[BLOCK_ROWS];                                 /* sum_jr dS_ijr */
    real output[BLOCK_ROWS];                               /* DELTA_SUMMED: sum_j P_ij dP_ij, which is dO_i.O_i */
} query_values;

/* A block of queries and the tile that it is at. */
typedef struct pair_block {
    grad_engine *g;
    const engine *e;
    const mgk_attention_args *a;
    const mixture *x;
    const tile_view *view;
    query_values *query;
} query_block;

#include "mixture/row_pairs.clh"

typedef tile_view pair_tile;

#include "mixture/pair_tile.clh"

FUNCTION void score_product(const query_block *b, const tile_view *view, int sub, int r, real (*s)[BLOCK_ROWS])
{
    tile_product(&b->g->base, view->panel, sub, 0, r, view->edge, s);
}

FUNCTION void grad_product(const query_block *b, const tile_view *view, int sub, real (*d)[BLOCK_ROWS])
{
    grad_out_product(b->g, view->panel, sub, d);
}

FUNCTION void hidden_pairs(const query_block *b, const tile_view *view, const bool masked, int sub, int u,
                           ireal *hidden)
{
    ROWS_FOR(v)
        hidden[v] = (ireal)(0);
    if (masked)
        ROWS_FOR(v)
            hidden[v] = is_hidden(&b->g->base, &b->x->modifiers, view, sub, u, v);
}

FUNCTION pair pair_at(const query_block *b, const tile_view *view, const entry *n)
{
    return pair_of_view(&b->g->base, &b->x->modifiers, view, n->sub, n->u, n->v);
}

FUNCTION entry_terms pair_terms(const query_block *b, const tile_view *view, const entry *n, ireal hidden)
{
    const engine *const e = &b->g->base;
    const real log = b->query->log[n->v];
    entry_terms c =
        terms_of_log(hidden ? (real)(-INFINITY) : log, HAS_LSE_LOW ? b->query->log_low[n->v] : (real)(0.0f));
    add_modifiers(&b->x->modifiers, &n->at, HAS_BIAS ? bias_get(e, n->sub, n->u, n->v) : (real)(0.0f), &c);
    return c;
}

FUNCTION real pair_delta(const query_block *b, const entry *n)
{
    return b->query->delta[n->v];
}

/* The kernel of keys sums over queries. */
FUNCTION void entry_apart(const query_block *b, const entry *n, int r, real bare)
{
}

FUNCTION void entry_variance(const query_block *b, const entry *n, int r, real ds, real own)
{
}

FUNCTION void entry_texts(const query_block *b, const entry *n, int r, real own, real ds)
{
}

/* Gradients of all scores of a sub-tile, from their products d and keep, into the slots, and the sums over its keys;
 * `masked`, `factored`: as the tile, or constants. WEIGHTS_FIRST: the slots have its weights. */
FUNCTION void block_gradients(const query_block *b, const bool masked, const bool factored, int sub,
                              real (*d)[BLOCK_ROWS], real (*keep)[BLOCK_ROWS], real (*sums)[BLOCK_ROWS])
{
    KEYS_FOR(u) {
        ireal hidden[BLOCK_ROWS];
        hidden_pairs(b, b->view, masked, sub, u, hidden);
        ROWS_FOR(v) {
            real row[COMPONENTS];
            COMPONENTS_FOR(r)
                row[r] = (real)(0.0f);
            entry n = entry_at(b->view->panel, sub, u, v);
            n.keep = keep[u][v];
            entry_sums own;
            own.key = 0;
            own.row = row;
            pair_gradients(b, b->view, factored, hidden[v], &n, d[u][v], &own);
            if (KEEPS_ROW_SUMS)
                COMPONENTS_FOR(r)
                    sums[r][v] += row[r];
            if (BIAS_SUMS_APART)
                b->query->bias[v] += own.gradient;
            if (DELTA_SUMMED)
                b->query->output[v] = add_output(&n, &own, d[u][v], b->query->output[v]);
        }
    }
}

/* Scores of a sub-tile, their gradients into the slots, and the sums over its keys. */
FUNCTION void sub_tile_gradients(const query_block *b, int sub, real (*sums)[BLOCK_ROWS])
{
    real d[BLOCK_KEYS][BLOCK_ROWS], keep[BLOCK_KEYS][BLOCK_ROWS];
    block_products(b, b->view, sub, d);
    KEYS_FOR(u)
        ROWS_FOR(v)
            keep[u][v] = (real)(HAS_DROPOUT ? b->a->keep_scale : 1.0f);
    if (HAS_DROPOUT)
        drop_weights(&b->g->base, &b->x->modifiers, b->view, sub, keep);
    const bool masked = sub < b->view->whole_begin || sub >= b->view->whole_end;
    if (WEIGHTS_FIRST)
        weights_first(b, b->view, masked, sub);
    product_end(d, 0);
    values_read(b->g, sub == b->view->end - 1);
    const bool factored = b->view->factored;
    /* as most tiles: they have a text without a branch */
    const bool plain = (!HAS_FACTORED || factored) && (!masked || WEIGHTS_FIRST);
    if (SUMS_BY_SUB_TILE && plain)
        block_gradients(b, false, true, sub, d, keep, sums);
    else
        block_gradients(b, masked, factored, sub, d, keep, sums);
}

/* The products of the slots with keys. */
FUNCTION void slots_accumulate(const query_block *b)
{
#define ACCUMULATE_QUERIES(r) accumulate_queries(b->g, b->view->panel, r, r)
    if (WANT_Q)
        COPIES(ACCUMULATE_QUERIES, PRODUCTS);
    sums_end(b->g);
}

/* A panel's part in the gradients of a tile. */
FUNCTION void tile_gradients(const query_block *b)
{
    real sums[COMPONENTS][BLOCK_ROWS];
    COMPONENTS_FOR(r)
        ROWS_FOR(v)
            sums[r][v] = (real)(0.0f);
    for (int sub = b->view->begin; sub < b->view->end; ++sub) {
        sub_tile_gradients(b, sub, sums);
        if (SUMS_BY_SUB_TILE)
            slots_accumulate(b);
    }
    if (KEEPS_ROW_SUMS)
        COMPONENTS_FOR(r)
            ROWS_FOR(v)
                b->query->sum[r][v] = HAS_FACTORED && b->view->factored
                                          ? fma(b->x->u[b->view->panel][r][v], sums[r][v], b->query->sum[r][v])
                                          : b->query->sum[r][v] + sums[r][v];
    if (!SUMS_BY_SUB_TILE)
        slots_accumulate(b);
}

/* Where the block's (b, h) finds its results: element 0 of its rows. */
typedef struct query_results {
    __global grad_q_element *grad_q;
    __global float *bias, *row_sums, *delta; /* regions; row_sums: of component 0 */
    __global const float *grad_lse, *shift;  /* grad_lse: 0 where it is not given */
} query_results;

/* Completes the sums over keys, 0 in rows that see none, and stores those that other kernels read. */
FUNCTION void finish_sums(const query_block *b, const problem *p, int first, const query_results *out)
{
    engine *const e = &b->g->base;
    query_values *const query = b->query;
#if KEEPS_ROW_SUMS
    COMPONENTS_FOR(r) {
        rows_sum(e, query->sum[r]);
        ROWS_FOR(v) {
            query->sum[r][v] = query->log[v] == (real)(-INFINITY) ? (real)(0.0f) : query->sum[r][v];
            if (!BIAS_SUMS_APART)
                query->bias[v] += query->sum[r][v];
        }
        if (WANT_SHIFT)
            rows_store(e, query->sum[r], out->row_sums + r * (long)b->a->length, 1, first, p->rows);
    }
#endif
    if (BIAS_SUMS_APART)
        rows_sum(e, query->bias);
    if (HAS_BIAS_ROW_SUMS) {
        ROWS_FOR(v)
            query->bias[v] = query->log[v] == (real)(-INFINITY) ? (real)(0.0f) : query->bias[v];
        rows_store(e, query->bias, out->bias, 1, first, p->rows);
    }
    if (!DELTA_SUMMED)
        return;
    rows_sum(e, query->output);
    ROWS_FOR(v) {
        const int row = row_index(e, first, v);
        real delta = -query->output[v];
        if (out->grad_lse && row < p->valid)
            delta += out->grad_lse[row * b->a->lse.token];
        query->output[v] = weighs_exactly(query->log[v]) ? delta : query->delta[v];
    }
    rows_store(e, query->output, out->delta, 1, first, p->rows);
}

/* dQ: the factor of its products, and the terms without a product. */
FUNCTION void finish_queries(const query_block *b, const problem *p, int panel, int first, const query_results *out)
{
    grad_engine *const g = b->g;
    const mgk_attention_args *const a = b->a;
    real own[BLOCK_ROWS], sum[BLOCK_ROWS];
    if (!WANT_Q)
        return;
    if (SLOT_SUMS)
        row_sums_take(g, panel, sum);
    grad_queries_complete(g, panel, 0);
    grad_queries_scale(g, panel, 0, query_factor(a));
    ROWS_FOR(v)
        own[v] = (real)(0.0f);
    ROWS_FOR(v) {
        const int row = row_index(&g->base, first, v);
        if (OWN_OF_GRAD_LSE && out->grad_lse && row < p->valid)
            own[v] = query_own(a, out->grad_lse[row * a->lse.token]);
    }
    if (SLOT_SUMS)
        ROWS_FOR(v)
            own[v] = add_share(own[v], query_share(sum[v], b->x->components.scale[0]));
#if KEEPS_ROW_SUMS
    COMPONENTS_FOR(r) {
        real share[BLOCK_ROWS];
        ROWS_FOR(v) {
            share[v] = query_share(b->query->sum[r][v], b->x->components.scale[r]);
            own[v] = add_share(own[v], share[v]);
        }
        if (KEYS_SHIFTED)
            grad_queries_add_row(g, panel, out->shift + r * a->head_size, a->head_size, share);
    }
#endif
    if (SCORE_GAUSSIAN)
        grad_queries_add_queries(g, panel, own);
    ROWS_FOR(v) /* a row that sees nothing may hold anything */
        own[v] = b->query->log[v] == (real)(-INFINITY) ? (real)(0.0f) : (real)(1.0f);
    grad_queries_store(g, panel, 0, own,
                       array_rows_of(elements_of(out->grad_q), a->grad_q.token, first, p->rows, a->head_size),
                       is_added(&a->bound, SLOT_GRAD_Q));
}

/* Begins a block: its queries, dO and row values, and sums of 0. `row`: number of row 0 in the regions [rows]. */
FUNCTION void block_begin(const query_block *b, mixture *x, const problem *p, const row_arrays *at,
                          __global const o_element *grad_o, __global const float *work, long row, int first)
{
    grad_engine *const g = b->g;
    const mgk_attention_args *const a = b->a;
    query_values *const query = b->query;
    query_load(&g->base, 0, at->q, 0, a->q.token, first, p->valid, a->head_size);
    grad_out_load(g, 0, grad_o, a->grad_o.token, a->value_size);
    grad_queries_clear(g, 0);
    row_terms(&g->base, x, 0, at->shift, a->head_size);
    rows_load(g, work + REGION(a->region[MGK_REGION_LOG]) + row, first, p->valid, -INFINITY, query->log);
    rows_load(g, work + REGION(a->region[MGK_REGION_DELTA]) + row, first, p->valid, 0.0f, query->delta);
    if (HAS_LSE_LOW)
        rows_load(g, work + REGION(a->region[MGK_REGION_LOG_LOW]) + row, first, p->valid, 0.0f, query->log_low);
    ROWS_FOR(i)
        query->bias[i] = query->output[i] = (real)(0.0f);
    COMPONENTS_FOR(r)
        ROWS_FOR(i)
            query->sum[KEEPS_ROW_SUMS ? r : 0][i] = (real)(0.0f);
}

/* All tiles of a walk, for the components of a turn. */
FUNCTION void turn_gradients(const query_block *b, mixture *x, tile_view *view, key_walk *walk, const row_arrays *at,
                             const bias_block *bias)
{
    engine *const e = &b->g->base;
    for (int k0 = walk->begin; k0 < walk->end; k0 = walk_on(walk, k0)) {
        tile_stage(e, x, walk, at, k0);
        view->factored = HAS_FACTORED && !flag_read(e, FLAG_SPREAD);
        if (!view_tile(e, walk, 0, k0, view))
            continue;
        if (HAS_BIAS)
            bias_stage(e, *bias, k0, walk->end, view->begin, view->end);
        tile_gradients(b);
        if (!WANT_Q) /* without products with keys */
            flags_lower(e);
        branch_end();
    }
}

KERNEL(mixture_backward_queries)
{
    BEGIN_BUFFERS
    MAKE_CLASSES()
    if (a.heads == 0)
        return;
    const row_block block = row_block_of(&a, GROUP_ID, a.heads, offsets);
    const int h = block.h, first = block.first;
    const problem p =
        placed(&a, problem_of(&a, block.b, lengths, lengths_q, offsets, offsets_k), positions, positions_k);
    if (first >= p.rows)
        return;
    const long kv_head = (long)h * a.kv_heads / a.heads, bh = p.batch * a.heads + h;
    const long row = bh * a.length + p.row_base; /* number of row 0 in the regions [rows] */
    const long row_lse = p.batch * a.lse.batch + h * a.lse.head + p.row_base * a.lse.token;
    q += p.batch * a.q.batch + h * a.q.head + p.row_base * a.q.token;
    grad_o += p.batch * a.grad_o.batch + h * a.grad_o.head + p.row_base * a.grad_o.token;
    k += p.batch * a.k.batch + kv_head * a.k.head + p.key_base * a.k.token;
    v += p.batch * a.v.batch + kv_head * a.v.head + p.key_base * a.v.token;
    prior += h * a.prior.head + p.key_base * a.prior.token;
    shift += (long)h * COMPONENTS * a.head_size;
    const query_results out = {grad_q + p.batch * a.grad_q.batch + h * a.grad_q.head + p.row_base * a.grad_q.token,
                               work + REGION(a.region[MGK_REGION_BIAS]) + row,
                               work + REGION(a.region[MGK_REGION_ROW_SUMS]) + bh * COMPONENTS * a.length + p.row_base,
                               work + REGION(a.region[MGK_REGION_DELTA]) + row,
                               is_given(&a.bound, SLOT_GRAD_LSE) ? grad_lse + row_lse : 0,
                               shift};

    GRAD_ENGINE_DECLARE(g)
    mixture x;
    KEY_SPACE float beta[HAS_KEY_TERMS ? TERM_TILES * COMPONENTS : 1][TILE_KEYS];
    KEY_SPACE float log_prior[HAS_LOG_PRIOR ? COMPONENTS : 1][TILE_KEYS];
    KEY_SPACE float w[HAS_FACTORED ? COMPONENTS : 1][TILE_KEYS];
    KEY_SPACE float top[TILE_KEYS], spread[TILE_KEYS];
    x.keys = (mixture_keys){beta, log_prior, w, top, spread};
    query_values query;
    tile_view view;
    const query_block b = {&g, &g.base, &a, &x, &view, &query};

    const mod_data data = MOD_DATA;
    const row_arrays first_arrays = {q, k, v, prior, shift};
    mixture_begin(&x, &a, &p, h, &first_arrays, variance, slopes, &data);
    block_begin(&b, &x, &p, &first_arrays, grad_o, work, row, first);

    key_walk walk = key_walk_of(&a, &p, &block, mask_of_head(&data, h));
    const bias_block own_bias = bias_of_block(&a, &p, h, bias, first);
    for (int turn = 0; turn < TURNS; ++turn) {
        const row_arrays at = {q, k + turn * a.k.component, v, prior + turn * a.prior.component, shift};
        if (turn > 0)
            components_begin(&x.components, &a, h, at.prior, variance, shift);
        if (KEY_TERMS_GIVEN)
            betas_begin(&g.base, &x, &a,
                        work + REGION(a.region[MGK_REGION_KEY_TERMS]) + beta_row(&a, p.batch, h, kv_head, turn) +
                            p.key_base);
        turn_gradients(&b, &x, &view, &walk, &at, &own_bias);
    }
    finish_sums(&b, &p, first, &out);
    finish_queries(&b, &p, 0, first, &out);
    branch_end();
}
