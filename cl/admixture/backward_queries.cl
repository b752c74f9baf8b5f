/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, backward pass, the kernel of queries: a work-group owns a block of queries with all its heads, as
 * in admixture/forward.cl, and visits tiles of keys. It computes the scores once more, and what is summed over keys
 * (formulas, and the gradients that are summed over queries: admixture/backward.cl):
 *
 *     dQ_ki = sum_j dG_kij k_kj      MiSH: q_ki . dQ_ki without p_k, for dp
 *     dbias_hi = sum_j dS_hij, of a bias without key axis
 *
 * For engines with SCATTERS_QUERIES 0 (engine/engine.clh).
 */
#define PASS_BACKWARD
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_QUERIES_BUFFERS
#include "base/buffers.clh"

#include "admixture/block.clh"

#define HAS_MIX_ROWS     (SHARED_MIX && WANT_MIX)
#define HAS_DG           (WANT_Q || HAS_MIX_ROWS)
#define QUERY_COMPONENTS COMPONENTS
#define QUERY_GRADIENTS  COMPONENTS
#define SLOTS            HELD_SCORES

#include "engine/backward.clh"

#include "admixture/tile.clh"

/* A block of queries and the tile that it is at. */
typedef struct query_block {
    grad_engine *g;
    const mgk_attention_args *a;
    const problem *p;
    const tile_view *view;
    __global float *work;
    long row; /* number of row 0 of head 0 in the regions [rows] */
    int first;
    real *seen; /* 0 in rows that see no key */
} query_block;

/* Scores of a head to their gradients; `row_sum`: over the keys of the tile. */
FUNCTION void score_gradients(const query_block *b, const scorer *x, int h, real (*eps)[BLOCK_ROWS],
                              real (*d)[BLOCK_ROWS], real *row_sum)
{
    const engine *const e = &b->g->base;
    const mgk_attention_args *const a = b->a;
    const tile_view *const view = b->view;
    const long row = b->row + (long)h * a->length;
    const bool masked = view->whole_begin > 0 || view->whole_end < 1;
    real s[BLOCK_KEYS][BLOCK_ROWS], log[BLOCK_ROWS], log_low[BLOCK_ROWS], delta[BLOCK_ROWS];
    rows_load(b->g, b->work + a->region[MGK_REGION_LOG] + row, b->first, b->p->valid, -INFINITY, log);
    rows_load(b->g, b->work + a->region[MGK_REGION_DELTA] + row, b->first, b->p->valid, 0.0f, delta);
    if (HAS_LSE_LOW)
        rows_load(b->g, b->work + a->region[MGK_REGION_LOG_LOW] + row, b->first, b->p->valid, 0.0f, log_low);
    head_scores(e, x, view, 0, eps, s);
    ROWS_FOR(v) {
        b->seen[v] = log[v] == (real)(-INFINITY) ? b->seen[v] : (real)(1.0f);
        row_sum[v] = (real)(0.0f);
    }
    KEYS_FOR(u)
        ROWS_FOR(v) {
            real y = s[u][v], lacking = (real)(x->mixing.scale);
            const real own = y * lacking;
            if (HAS_SOFTCAP) {
                y = softcap_real(own, x->modifiers.softcap);
                lacking = (real)(1.0f);
            }
            entry_terms common = terms_of_log(log[v], HAS_LSE_LOW ? log_low[v] : (real)(0.0f));
            add_modifiers(e, &x->modifiers, view, 0, u, v, &common);
            y = complete(&common, join_terms(&common, y, lacking));
            if (masked)
                y = is_hidden(e, view, 0, u, v) ? (real)(-INFINITY) : y;
            d[u][v] = (d[u][v] + delta[v]) * probability_of(y);
            row_sum[v] += d[u][v];
            if (HAS_SOFTCAP)
                d[u][v] *= softcap_slope(own, x->modifiers.softcap);
        }
    ROWS_FOR(v)
        row_sum[v] = log[v] == (real)(-INFINITY) ? (real)(0.0f) : row_sum[v];
}

/* dA of a head to dG. */
FUNCTION void spread_gradients(const query_block *b, const scorer *x, real (*eps)[BLOCK_ROWS], real (*d)[BLOCK_ROWS])
{
    COPIES_FOR(k, 0, HELD_SCORES) {
        const float factor = held_factor(&x->mixing, k);
        KEYS_FOR(u)
            ROWS_FOR(v) {
                real part = d[u][v];
                if (GENERALISED)
                    part = passed(&x->mixing, k,
                                  noisy_score(&x->mixing, k, held_get(&b->g->base, k, 0, u, v), eps[u][v]), part);
                slot_put(b->g, k, 0, u, v, fma(part, (real)(factor), slot_get(b->g, k, 0, u, v)));
            }
    }
}

/* A head's part in the gradients of a tile. */
FUNCTION void head_gradients(const query_block *b, const scorer *x, int h)
{
    const mgk_attention_args *const a = b->a;
    engine *const e = &b->g->base;
    real d[BLOCK_KEYS][BLOCK_ROWS], eps[BLOCK_KEYS][BLOCK_ROWS], row_sum[BLOCK_ROWS];
    KEYS_FOR(u)
        ROWS_FOR(v)
            d[u][v] = (real)(0.0f);
    grad_out_product(b->g, 0, 0, d);
#if HAS_DROPOUT
    KEYS_FOR(u)
        ROWS_FOR(v)
            d[u][v] *= a->keep_scale;
    drop_weights(e, &x->modifiers, b->view, 0, d);
#endif
    score_gradients(b, x, h, eps, d, row_sum);
#if HAS_BIAS_ROW_SUMS
    rows_sum(e, row_sum);
    rows_add(e, row_sum, b->work + a->region[MGK_REGION_BIAS] + b->row + (long)h * a->length, b->first, b->p->valid);
#endif
    if (HAS_DG)
        spread_gradients(b, x, eps, d);
}

/* Where the block's batch finds its results: element 0 of its rows. */
typedef struct query_results {
    __global storage *grad_q;
    __global float *mix_rows; /* of component 0 */
} query_results;

FUNCTION void finish_component(const query_block *b, __global const float *mix, const query_results *out, int k)
{
    grad_engine *const g = b->g;
    const mgk_attention_args *const a = b->a;
#if HAS_MIX_ROWS
    real row[BLOCK_ROWS];
    grad_queries_dot(g, 0, k, row);
    rows_sum(&g->base, row);
    ROWS_FOR(v)
        row[v] = b->seen[v] == (real)(0.0f) ? (real)(0.0f) : row[v];
    rows_store(&g->base, row, out->mix_rows + k * (long)a->length, 1, b->first, b->p->rows);
#endif
#if WANT_Q
    grad_queries_scale(g, 0, k, a->scale * NATS_PER_UNIT * (SHARED_MIX ? mix[k] : 1.0f));
    grad_queries_store(g, 0, k, b->seen, out->grad_q + k * a->grad_q.head, a->grad_q.token, b->first, b->p->rows,
                       a->head_size, is_added(&a->bound, SLOT_GRAD_Q));
#endif
}

FUNCTION void finish_queries(const query_block *b, __global const float *mix, const query_results *out)
{
#define FINISH(k) finish_component(b, mix, out, k)
    COPIES(FINISH, COMPONENTS);
}

KERNEL(admixture_backward_queries)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const row_block block = row_block_of(&a, GROUP_ID, 1, offsets);
    const int first = block.first;
    const problem p = problem_of(&a, block.b, lengths, lengths_q, offsets, offsets_k);
    if (first >= p.rows)
        return;
    q += p.batch * a.q.batch + p.row_base * a.q.token;
    grad_o += p.batch * a.grad_o.batch + p.row_base * a.grad_o.token;
    k += p.batch * a.k.batch + p.key_base * a.k.token;
    v += p.batch * a.v.batch + p.key_base * a.v.token;
    const query_results out = {grad_q + p.batch * a.grad_q.batch + p.row_base * a.grad_q.token,
                               work + a.region[MGK_REGION_MIX_ROWS] + p.batch * COMPONENTS * a.length + p.row_base};

    GRAD_ENGINE_DECLARE(g)
    engine *const e = &g.base;
    scorer x;
    tile_view view;
    real seen[BLOCK_ROWS];
    const query_block b = {&g, &a, &p, &view, work, p.batch * a.heads * a.length + p.row_base, first, seen};

    query_load(e, 0, q, a.q.head, a.q.token, first, p.valid, a.head_size);
    grad_queries_clear(&g, 0);
    ROWS_FOR(i)
        seen[i] = (real)(0.0f);

    int range, end;
    key_range(&a, &p, &block, &range, &end);
    for (int k0 = range; k0 < end; k0 += TILE_KEYS) {
        keys_stage(e, COMPONENTS, k, a.k.head, a.k.token, k0, end, a.head_size, 0, tile_after(k, k0, end));
        if (!view_tile(e, &a, &p, first, range, k0, &view))
            continue;
        /* shared noise and a shared mixing are any head's */
        x.modifiers = modifiers_of(&a, block.b, 0, slopes);
        x.mixing = mixing_of(&a, 0, mix, mix_weight, noise);
        hold_scores(e, &x, &view, (uint)block.b * (uint)a.heads, 0);
        COPIES_FOR(i, 0, HELD_SCORES)
            KEYS_FOR(u)
                ROWS_FOR(n)
                    slot_put(&g, i, 0, u, n, (real)(0.0f));
        for (int h = 0; h < a.heads; ++h) {
            x.modifiers = modifiers_of(&a, block.b, h, slopes);
            x.mixing = mixing_of(&a, h, mix, mix_weight, noise);
            x.mixing.added = added_of(h, mix_offset);
            const tile_start next = h + 1 < a.heads ? tile_at(v + (long)(h + 1) * a.kv_heads / a.heads * a.v.head, k0)
                                                    : tile_after(v, k0, end);
            values_stage(e, 1, v + (long)h * a.kv_heads / a.heads * a.v.head, 0, a.v.token, k0, end, a.value_size,
                         next);
            grad_out_load(&g, 0, grad_o + h * a.grad_o.head, a.grad_o.token);
            if (HAS_BIAS)
                bias_stage(e, bias_of(&a, &p, h, bias), a.bias.component, a.bias.token, first, p.rows, k0, end, 0, 1);
            head_gradients(&b, &x, h);
            branch_end();
        }
#define ACCUMULATE_QUERIES(r) accumulate_queries(&g, 0, r, SHARED_MIX ? 0 : (r))
        if (HAS_DG)
            COPIES(ACCUMULATE_QUERIES, COMPONENTS);
        branch_end();
    }
    if (HAS_DG)
        finish_queries(&b, mix, &out);
    branch_end();
}
