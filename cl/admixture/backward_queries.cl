/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, backward pass, the kernel of queries: a work-group owns a block of queries with all its heads, as
 * in admixture/forward.cl, and visits tiles of keys. It computes the scores once more, and what is summed over keys
 * (formulas, and the gradients that are summed over queries: admixture/backward.cl):
 *
 *     dQ_ki = sum_j dG_kij k_kj      MiSH: q_ki . dQ_ki without p_k, for dp
 *     dbias_hi = sum_j dS_hij, of a bias without key axis
 *
 * DELTAS: sum_j P dP of heads that are mixed after the softmax, and nothing else.
 *
 * For engines with SCATTERS_QUERIES 0 (engine/engine.clh).
 */
#define PASS_BACKWARD
#define KERNEL_OF_QUERIES
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_QUERIES_BUFFERS
#include "base/buffers.clh"

#include "admixture/block.clh"

#define HAS_MIX_ROWS     (SHARED_MIX && WANT_MIX)
#define HAS_DG           (WANT_Q || HAS_MIX_ROWS)
#define QUERY_COMPONENTS COMPONENTS
#define QUERY_GRADIENTS  COMPONENTS
#define HAS_DR           HAS_DG
#define GRAD_SLOT        0
#define PRODUCT_SLOT     SCORES
#define AFTER_SLOT       (PRODUCT_SLOT + (HIDDEN > 0 ? COMPONENTS : 0))
#define AFTER_GRAD_SLOT  (AFTER_SLOT + MIX_AFTER)
#define HAS_DP           (MIX_AFTER > 0)
#define SLOTS            (AFTER_GRAD_SLOT + MIX_AFTER)
#define KEEPS_WEIGHTS    0
#define KEEPS_SUMS       0

#include "engine/backward.clh"

#include "attention/view.clh"

/* A block of queries with its tile and head. */
typedef struct pair_block {
    grad_engine *g;
    engine *e;
    const scorer *x;
    const tile_view *view;
    const mgk_attention_args *a;
    const real *log, *log_low, *delta; /* log_i, what its float lacks, and delta_i */
    real *row_sum;                     /* of dS over the keys of the tile */
} pair_block;

#include "admixture/tile.clh"

#include "admixture/gradients.clh"

FUNCTION entry_terms pair_terms(const pair_block *b, const pair *at, int sub, int u, int v)
{
    entry_terms common = terms_of_log(b->log[v], HAS_LSE_LOW ? b->log_low[v] : (real)(0.0f));
    add_modifiers(&b->x->modifiers, at, HAS_BIAS ? bias_get(b->e, sub, u, v) : (real)(0.0f), &common);
    return common;
}

FUNCTION void hide_pairs(const pair_block *b, int sub, real (*s)[BLOCK_ROWS])
{
    if (b->view->whole_begin > 0 || b->view->whole_end < 1)
        KEYS_FOR(u)
            ROWS_FOR(v)
                s[u][v] = is_hidden(b->e, &b->x->modifiers, b->view, sub, u, v) ? (real)(-INFINITY) : s[u][v];
}

FUNCTION real pair_delta(const pair_block *b, int sub, int u, int v)
{
    return b->delta[v];
}

FUNCTION void pair_keep(const pair_block *b, int sub, real (*keep)[BLOCK_ROWS])
{
    KEYS_FOR(u)
        ROWS_FOR(v)
            keep[u][v] = (real)(b->a->keep_scale);
    drop_weights(b->e, &b->x->modifiers, b->view, sub, keep);
}

FUNCTION void bias_gradients(const pair_block *b, int sub, real (*grad)[BLOCK_ROWS])
{
    if (WANT_BIAS)
        KEYS_FOR(u)
            ROWS_FOR(v)
                b->row_sum[v] += grad[u][v];
}

/* The arrays that scores read, and those of the products with dO. */
typedef struct score_arrays {
    const mod_data *data;
    __global const float *mix, *mix_weight, *mix_offset, *mix_hidden_offset, *mix_after, *noise, *bias, *slopes;
    __global const v_element *v;
    __global const o_element *grad_o;
} score_arrays;

/* A block of queries. */
typedef struct query_block {
    grad_engine *g;
    const mgk_attention_args *a;
    const problem *p;
    __global float *work;
    long row; /* number of row 0 of head 0 in the regions [rows] */
    int first;
    real *seen; /* 0 in rows that see no key */
} query_block;

/* log_i and its low part of head h's rows. */
FUNCTION void load_logs(const query_block *b, int h, real *log, real *log_low)
{
    const mgk_attention_args *const a = b->a;
    const long row = b->row + (long)h * a->length;
    rows_load(b->g, b->work + REGION(a->region[MGK_REGION_LOG]) + row, b->first, b->p->valid, -INFINITY, log);
    if (HAS_LSE_LOW)
        rows_load(b->g, b->work + REGION(a->region[MGK_REGION_LOG_LOW]) + row, b->first, b->p->valid, 0.0f, log_low);
}

/* d = dO.v of the head whose dO and values are staged. */
FUNCTION void find_products(grad_engine *g, real (*d)[BLOCK_ROWS])
{
    KEYS_FOR(u)
        ROWS_FOR(v)
            d[u][v] = (real)(0.0f);
    grad_out_product(g, 0, 0, d);
}

#include "admixture/mixed_pairs.clh"

/* The part of head h, of those with a softmax, in the gradients of a tile. */
FUNCTION void head_gradients(const query_block *b, const scorer *x, const tile_view *view, int h)
{
    grad_engine *const g = b->g;
    const mgk_attention_args *const a = b->a;
    const long row = b->row + (long)h * a->length;
    real d[BLOCK_KEYS][BLOCK_ROWS], log[BLOCK_ROWS], log_low[BLOCK_ROWS], delta[BLOCK_ROWS], row_sum[BLOCK_ROWS];
    const pair_block at = {g, &g->base, x, view, a, log, log_low, delta, row_sum};
    load_logs(b, h, log, log_low);
    rows_load(g, b->work + REGION(a->region[MGK_REGION_DELTA]) + row, b->first, b->p->valid, 0.0f, delta);
    if (MIX_AFTER > 0)
        weight_products(&at, h, 0, d);
    else if (SHARED_SOFTMAX)
        take_shared(&at, 0, d);
    else
        find_products(g, d);
    ROWS_FOR(v) {
        b->seen[v] = log[v] == (real)(-INFINITY) ? b->seen[v] : (real)(1.0f);
        row_sum[v] = (real)(0.0f);
    }
    block_gradients(&at, 0, d, 0);
    if (!HAS_BIAS_ROW_SUMS)
        return;
    ROWS_FOR(v)
        row_sum[v] = log[v] == (real)(-INFINITY) ? (real)(0.0f) : row_sum[v];
    rows_sum(&g->base, row_sum);
    rows_add(&g->base, row_sum, b->work + REGION(a->region[MGK_REGION_BIAS]) + row, b->first, b->p->valid);
}

#if HIDDEN > 0
/* All heads are done with a tile: the gradients of units become dG. */
FUNCTION void finish_units(const pair_block *b)
{
    SCORES_FOR(n)
        pass_unit(b, n, 0);
    COPIES_FOR(k, 0, COMPONENTS)
        unit_products(b, k, 0);
}
#endif

/* The values that head h reads, of the batch's, which begin with those of head 0. */
FUNCTION __global const v_element *values_of(const mgk_attention_args *a, __global const v_element *v, int h)
{
    return v + (long)h * a->kv_heads / out_heads(a) * a->v.head;
}

/* Stages for the products of head h with dO: values of the tile at k0, and dO. */
FUNCTION void head_stage(const query_block *b, const key_walk *walk, const score_arrays *at, int h, int k0)
{
    engine *const e = &b->g->base;
    const mgk_attention_args *const a = b->a;
    __global const v_element *const v = at->v;
    const tile_start next =
        h + 1 < out_heads(a) ? tile_at(elements_of(values_of(a, v, h + 1)), k0) : next_keys(walk, elements_of(v), k0);
    const array_rows values = array_rows_of(elements_of(values_of(a, v, h)), a->v.token, k0, walk->end, a->value_size);
    values_stage(e, values, 1, 0, next);
    heads_begin(b->g, values);
    grad_out_load(b->g, 0, at->grad_o + h * a->grad_o.head, a->grad_o.token, a->value_size);
}

/* Announces values and dO of the head after h, or stages those of head h. */
FUNCTION void head_go_ahead(const query_block *b, const key_walk *walk, const score_arrays *at, int h, int k0)
{
    const mgk_attention_args *const a = b->a;
#if STAGES_AHEAD
    heads_announce(b->g, h + 1 < out_heads(a), (h + 1) % HEAD_RATIO == 0 ? a->v.head : 0, a->grad_o.head);
#else
    head_stage(b, walk, at, h, k0);
#endif
}

/* The tile of one head: what its scores need. */
FUNCTION void head_begin(const query_block *b, scorer *x, const key_walk *walk, const score_arrays *at, int h, int k0)
{
    const mgk_attention_args *const a = b->a;
    x->modifiers = modifiers_of(a, b->p, h, at->slopes, at->data);
    if (MIX_AFTER > 0)
        x->modifiers.g = 0;
    x->mixing = mixing_of(a, h, at->mix, at->mix_weight, at->noise);
    x->mixing.added = added_of(h, at->mix_offset);
    if (HAS_BIAS)
        bias_stage(&b->g->base, bias_of_block(a, b->p, h, at->bias, b->first), k0, walk->end, 0, 1);
}

/* Keeps P of head h before the mixing. */
FUNCTION void hold_head(const query_block *b, const scorer *x, const tile_view *view, int h)
{
    real log[BLOCK_ROWS], log_low[BLOCK_ROWS];
    const pair_block at = {b->g, &b->g->base, x, view, b->a, log, log_low, 0, 0};
    load_logs(b, h, log, log_low);
    hold_weight(&at, h, 0);
}

/* dP of all heads before the mixing, from dO.v of the head that is staged. `mix`: its row of m. */
FUNCTION void spread_head(const query_block *b, const scorer *x, const tile_view *view, __global const float *mix)
{
    real d[BLOCK_KEYS][BLOCK_ROWS];
    const pair_block at = {b->g, &b->g->base, x, view, b->a, 0, 0, 0, 0};
    find_products(b->g, d);
    spread_products(&at, 0, mix, d);
}

/* SHARED_SOFTMAX: adds dO.v of the head that is staged to the sum of all heads. */
FUNCTION void add_products(const query_block *b, const scorer *x, const tile_view *view)
{
    real d[BLOCK_KEYS][BLOCK_ROWS];
    const pair_block at = {b->g, &b->g->base, x, view, b->a, 0, 0, 0, 0};
    get_shared(&at, 0, d);
    grad_out_product(b->g, 0, 0, d);
    put_shared(&at, 0, d);
}

/* DELTAS: P dP of head h, summed over the tile's keys. */
FUNCTION void add_deltas(const query_block *b, int h)
{
    real sum[BLOCK_ROWS];
    ROWS_FOR(v)
        sum[v] = (real)(0.0f);
    KEYS_FOR(u)
        ROWS_FOR(v)
            sum[v] = fma(slot_get(b->g, AFTER_SLOT + h, 0, u, v), slot_get(b->g, AFTER_GRAD_SLOT + h, 0, u, v), sum[v]);
    rows_sum(&b->g->base, sum);
    rows_add(&b->g->base, sum, b->work + REGION(b->a->region[MGK_REGION_DELTAS]) + b->row + (long)h * b->a->length,
             b->first, b->p->valid);
}

/* Where the block's batch finds its results: element 0 of its rows. */
typedef struct query_results {
    __global grad_q_element *grad_q;
    __global float *mix_rows; /* of component 0 */
} query_results;

FUNCTION void finish_component(const query_block *b, __global const float *mix, const query_results *out, int k)
{
    grad_engine *const g = b->g;
    const mgk_attention_args *const a = b->a;
    grad_queries_complete(g, 0, k);
#if HAS_MIX_ROWS
    real row[BLOCK_ROWS];
    grad_queries_dot(g, 0, k, row);
    rows_sum(&g->base, row);
    ROWS_FOR(v)
        row[v] = b->seen[v] == (real)(0.0f) ? (real)(0.0f) : row[v];
    rows_store(&g->base, row, out->mix_rows + k * (long)a->length, 1, b->first, b->p->rows);
#endif
    if (!WANT_Q)
        return;
    grad_queries_scale(g, 0, k, a->scale * NATS_PER_UNIT * (SHARED_MIX ? mix[k] : 1.0f));
    grad_queries_store(g, 0, k, b->seen,
                       array_rows_of(elements_of(out->grad_q + k * a->grad_q.head), a->grad_q.token, b->first,
                                     b->p->rows, a->head_size),
                       is_added(&a->bound, SLOT_GRAD_Q));
}

FUNCTION void finish_queries(const query_block *b, __global const float *mix, const query_results *out)
{
#define FINISH(k) finish_component(b, mix, out, k)
    COPIES(FINISH, COMPONENTS);
}

/* The gradients of all heads' scores of a tile. */
FUNCTION void heads_gradients(const query_block *b, scorer *x, const key_walk *walk, const score_arrays *at,
                              const tile_view *view, int k0)
{
    const mgk_attention_args *const a = b->a;
    for (int h = 0; MIX_AFTER > 0 && h < a->heads; ++h) {
        head_begin(b, x, walk, at, h, k0);
        hold_head(b, x, view, h);
        branch_end();
    }
    for (int h = 0; (MIX_AFTER > 0 || SHARED_SOFTMAX) && h < out_heads(a); ++h) {
        head_go_ahead(b, walk, at, h, k0);
        if (MIX_AFTER > 0)
            spread_head(b, x, view, at->mix_after + (long)h * MIX_AFTER);
        else
            add_products(b, x, view);
        branch_end();
    }
    for (int h = 0; h < (SHARED_SOFTMAX ? 1 : a->heads); ++h) {
#if DELTAS
        add_deltas(b, h);
#else
        if (MIX_AFTER == 0 && !SHARED_SOFTMAX)
            head_go_ahead(b, walk, at, h, k0);
        head_begin(b, x, walk, at, h, k0);
        head_gradients(b, x, view, h);
#endif
        branch_end();
    }
}

/* A tile's part of dQ. `noise`: of shared noise. */
FUNCTION void tile_gradients(const query_block *b, scorer *x, const key_walk *walk, const score_arrays *at,
                             const tile_view *view, uint noise, int k0)
{
    const pair_block any_head = {b->g, &b->g->base, x, view, b->a, 0, 0, 0, 0};
    /* shared noise and a shared mixing are any head's */
    x->modifiers = modifiers_of(b->a, b->p, 0, at->slopes, at->data);
    x->mixing = mixing_of(b->a, 0, at->mix, at->mix_weight, at->noise);
    x->hidden = at->mix_hidden_offset;
    hold_scores(&any_head, noise, 0);
    clear_gradients(&any_head, 0);
    heads_gradients(b, x, walk, at, view, k0);
#if HIDDEN > 0
    if (HAS_DG)
        finish_units(&any_head);
#endif
#define ACCUMULATE_QUERIES(r) accumulate_queries(b->g, 0, r, product_slot(r))
    if (HAS_DG)
        COPIES(ACCUMULATE_QUERIES, COMPONENTS);
    branch_end();
}

KERNEL(admixture_backward_queries)
{
    BEGIN_BUFFERS
    MAKE_CLASSES()
    if (a.heads == 0)
        return;
    const row_block block = row_block_of(&a, GROUP_ID, 1, offsets);
    const int first = block.first;
    const problem p =
        placed(&a, problem_of(&a, block.b, lengths, lengths_q, offsets, offsets_k), positions, positions_k);
    if (first >= p.rows)
        return;
    q += p.batch * a.q.batch + p.row_base * a.q.token;
    grad_o += p.batch * a.grad_o.batch + p.row_base * a.grad_o.token;
    k += p.batch * a.k.batch + p.key_base * a.k.token;
    v += p.batch * a.v.batch + p.key_base * a.v.token;
    const query_results out = {grad_q + p.batch * a.grad_q.batch + p.row_base * a.grad_q.token,
                               work + REGION(a.region[MGK_REGION_MIX_ROWS]) + p.batch * COMPONENTS * a.length +
                                   p.row_base};

    GRAD_ENGINE_DECLARE(g)
    engine *const e = &g.base;
    const mod_data data = MOD_DATA;
    scorer x;
    tile_view view;
    real seen[BLOCK_ROWS];
    const query_block b = {&g, &a, &p, work, p.batch * a.heads * a.length + p.row_base, first, seen};
    query_load(e, 0, q, a.q.head, a.q.token, first, p.valid, a.head_size);
    grad_queries_clear(&g, 0);
    ROWS_FOR(i)
        seen[i] = (real)(0.0f);

    const score_arrays scores = {&data, mix,    mix_weight, mix_offset, mix_hidden_offset, mix_after, noise,
                                 bias,  slopes, v,          grad_o};
    key_walk walk = key_walk_of(&a, &p, &block, mask_of_heads(&data, a.heads));
    const int end = walk.end;
    for (int k0 = walk.begin; k0 < end; k0 = walk_on(&walk, k0)) {
        if (STAGES_AHEAD)
            head_stage(&b, &walk, &scores, 0, k0);
        keys_stage(e, array_rows_of(elements_of(k), a.k.token, k0, end, a.head_size), COMPONENTS, a.k.head,
                   next_keys(&walk, elements_of(k), k0));
        if (!view_tile(e, &walk, 0, k0, &view))
            continue;
        tile_gradients(&b, &x, &walk, &scores, &view, random_batch(&a, block.b), k0);
    }
    if (HAS_DG)
        finish_queries(&b, mix, &out);
    branch_end();
}
