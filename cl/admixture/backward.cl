/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, backward: blocks of keys meet tiles of queries. With the scores A_hij of admixture/block.clh in
 * base 2 and log_hi as admixture/rows.cl prepares it:
 *
 *     P_hij  = 2^(A_hij + bias + ALiBi + log_hi)         t_hij = keep_hij dO_hi.v_hj + delta_hi
 *     dA_hij = P_hij t_hij (times the slope of the soft-cap)
 *     dG_kij = sum_h p_hk dA_hij    generalised: sum_h w_hk p_hk [p_hk (G_kij + noise) > 0] dA_hij
 *     dV_j = sum_hi keep P_hij dO_hi     dK_kj = sum_i dG_kij q_ki     dQ_ki = sum_j dG_kij k_kj
 *     MiSH: one dA for all k, sum_h dA_hij; p_k comes later
 *
 * M products make the scores of a tile, two for each head follow, and 2 M with dG: 3 M + 2 H in all where softmax has
 * 5 H. A work-group owns every `splits`-th block of the keys of a list of batches, one after the other,
 * with all their heads: dQ is summed in a fixed order, one copy per split. It holds the values and dV of HEADS heads of
 * values; where there are more, it goes over the tiles again for the next ones.
 */
#define PASS_BACKWARD
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_BACKWARD_BUFFERS
#include "base/buffers.clh"

#include "admixture/block.clh"
#include "admixture/sums.clh"

#define HAS_SCORE_GRADIENTS (WANT_Q || WANT_K || WANT_BIAS || SUMS > 0)
#define HAS_DG              (WANT_Q || WANT_K)
#define QUERY_COMPONENTS    COMPONENTS
#define VALUE_HEADS         HEADS
#define GRAD_HEADS          (HEADS * HEAD_RATIO)

/* While a panel is at a tile: the held scores, their gradients, the weights, and the noise where one serves all heads.
 */
#define KEEP_NOISE  (SHARED_NOISE && HAS_NOISE_SUMS)
#define SCORE_SLOT  0
#define GRAD_SLOT   HELD_SCORES
#define WEIGHT_SLOT (2 * HELD_SCORES)
#define NOISE_SLOT  (WEIGHT_SLOT + 1)
#define SLOTS       (NOISE_SLOT + KEEP_NOISE)

#include "engine/backward.clh"

#include "admixture/score.clh"
#include "attention/backward.clh"

/* A head of a tile. */
typedef struct head {
    modifiers modifiers;
    mixing mixing;
    KEY_SPACE float *log;   /* log_i */
    KEY_SPACE float *delta; /* delta_i */
    __global const float *bias;
    __global float *grad_bias; /* (0, 0) of it, or key 0 of the sums over rows */
} head;

/* log_i and delta_i of the tile's queries; `row`: number of the first row of (b, h) in the regions. */
FUNCTION void tile_terms(grad_engine *g, const head *x, const mgk_attention_args *a, __global const float *work,
                         long row, int i0, int limit)
{
    sync_keys(&g->base); /* the head before is done with its own */
    TILE_KEYS_FOR(&g->base, c, TILE_KEYS) {
        key_put(x->log, c, key_load(work + a->region[MGK_REGION_LOG] + row, i0 + c, limit, -INFINITY));
        key_put(x->delta, c, key_load(work + a->region[MGK_REGION_DELTA] + row, i0 + c, limit, 0.0f));
    }
    sync_keys(&g->base);
}

/* The held scores of a panel's tile, by the operations of admixture/forward.cl. `x`: any head. */
FUNCTION void hold_scores(grad_engine *g, const head *x, uint noise_head, int panel, int k0, int i0, int subs)
{
    for (int sub = 0; sub < subs; ++sub) {
        real s[BLOCK_KEYS][BLOCK_ROWS];
#if SHARED_NOISE
        real eps[BLOCK_KEYS][BLOCK_ROWS];
        tile_noise(g, &x->modifiers, noise_head, i0 + sub * BLOCK_KEYS, k0, eps);
#endif
        MIXED_FOR(k, COMPONENTS)
        {
            if (!SHARED_MIX || k == 0)
                KEYS_FOR(u)
                    ROWS_FOR(v)
                        s[u][v] = (real)(0.0f);
            key_product(g, panel, sub, k, s);
            if (SHARED_MIX && k < COMPONENTS - 1)
                continue;
            KEYS_FOR(u)
                ROWS_FOR(v) {
#if SHARED_NOISE
                    s[u][v] = fma(eps[u][v], (real)(held_noise(&x->mixing, k)), s[u][v]);
#endif
                    slot_put(g, SCORE_SLOT + (SHARED_MIX ? 0 : k), sub, u, v, s[u][v]);
#if HAS_DG
                    slot_put(g, GRAD_SLOT + (SHARED_MIX ? 0 : k), sub, u, v, (real)(0.0f));
#endif
                }
        }
#if KEEP_NOISE
        KEYS_FOR(u)
            ROWS_FOR(v)
                slot_put(g, NOISE_SLOT, sub, u, v, eps[u][v]);
#endif
    }
}

/* The noise of a sub-tile's elements for one head. */
FUNCTION void block_eps(grad_engine *g, const head *x, int sub, int k0, int i0, real (*eps)[BLOCK_ROWS])
{
#if OWN_NOISE
    tile_noise(g, &x->modifiers, x->modifiers.head, i0 + sub * BLOCK_KEYS, k0, eps);
#else
    KEYS_FOR(u)
        ROWS_FOR(v)
            eps[u][v] = KEEP_NOISE ? slot_get(g, NOISE_SLOT, sub, u, v) : (real)(0.0f);
#endif
}

/* A_hij, by the operations of admixture/forward.cl. */
FUNCTION void mix_scores(grad_engine *g, const head *x, int sub, real (*eps)[BLOCK_ROWS], real (*s)[BLOCK_ROWS])
{
    KEYS_FOR(u)
        ROWS_FOR(v)
            s[u][v] = mixed_begin(&x->mixing, eps[u][v]);
    MIXED_FOR(k, HELD_SCORES)
    KEYS_FOR(u)
        ROWS_FOR(v)
            s[u][v] = mixed_term(&x->mixing, k, slot_get(g, SCORE_SLOT + k, sub, u, v), eps[u][v], s[u][v]);
}

/* From scores to the logarithms of P. masked: some query does not see some key. */
FUNCTION void mask_scores(grad_engine *g, const head *x, const mgk_attention_args *a, const problem *p, int sub, int k0,
                          int i0, bool masked, real (*s)[BLOCK_ROWS])
{
    KEYS_FOR(u)
        ROWS_FOR(v) {
            const int i = i0 + key_index(&g->base, sub, u);
            const entry_terms common =
                entry_terms_of(g, a, p, x->bias, x->modifiers.slope, k0, i, v, key_get(&g->base, x->log, sub, u));
            s[u][v] = join_terms(&common, s[u][v]);
        }
    if (masked)
        KEYS_FOR(u) {
            const int i = i0 + key_index(&g->base, sub, u);
            const int begin = first_key(a, p, i), end = end_key(a, p, i);
            ROWS_FOR(v) {
                const ireal j = row_index(&g->base, k0, v);
                s[u][v] = j < (ireal)(begin) || j >= (ireal)(end) ? (real)(-INFINITY) : s[u][v];
            }
        }
}

/* What dA of a sub-tile adds to dG and to the head's sums. */
FUNCTION void spread_gradients(grad_engine *g, const head *x, int sub, real (*grad)[BLOCK_ROWS],
                               real (*eps)[BLOCK_ROWS], real *sums)
{
    MIXED_FOR(k, HELD_SCORES)
    {
        real score_sum[BLOCK_ROWS], noise_sum[BLOCK_ROWS];
#if GENERALISED
        const float factor = weight_of(&x->mixing, k) * x->mixing.p[k];
#else
        const float factor = SHARED_MIX ? 1.0f : x->mixing.p[k];
#endif
        ROWS_FOR(v)
            score_sum[v] = noise_sum[v] = (real)(0.0f);
        KEYS_FOR(u)
            ROWS_FOR(v) {
                real part = grad[u][v];
#if GENERALISED || HAS_MIX_SUMS
                real score = slot_get(g, SCORE_SLOT + k, sub, u, v);
#endif
#if GENERALISED
                score = noisy_score(&x->mixing, k, score, eps[u][v]);
                part = rectified(&x->mixing, k, score) == (real)(0.0f) ? (real)(0.0f) : part; /* a NaN score stays */
#endif
#if HAS_DG
                slot_put(g, GRAD_SLOT + k, sub, u, v, fma(part, (real)(factor), slot_get(g, GRAD_SLOT + k, sub, u, v)));
#endif
#if HAS_MIX_SUMS
                score_sum[v] = fma(part, score, score_sum[v]);
#endif
#if HAS_NOISE_SUMS && GENERALISED
                noise_sum[v] = fma(part, eps[u][v], noise_sum[v]);
#endif
            }
#if HAS_MIX_SUMS
        ROWS_FOR(v)
            sums[k] += score_sum[v];
#endif
#if HAS_NOISE_SUMS && GENERALISED
        ROWS_FOR(v)
            sums[MIX_SUMS + k] += noise_sum[v];
#endif
    }
#if HAS_NOISE_SUMS && !GENERALISED
    KEYS_FOR(u)
        ROWS_FOR(v)
            sums[MIX_SUMS] = fma(grad[u][v], eps[u][v], sums[MIX_SUMS]);
#endif
#if WANT_MIX_OFFSET
    KEYS_FOR(u)
        ROWS_FOR(v)
            sums[MIX_SUMS + NOISE_SUMS] += grad[u][v];
#endif
}

/* dS of a sub-tile to the gradient of the bias. */
FUNCTION void bias_gradients(grad_engine *g, const head *x, const mgk_attention_args *a, const problem *p, int sub,
                             int k0, int i0, real (*grad)[BLOCK_ROWS], real *key_sums)
{
#if WANT_BIAS
    KEYS_FOR(u) {
#if HAS_BIAS_ROW_SUMS
        real row_sum = (real)(0.0f);
        ROWS_FOR(v)
            row_sum += grad[u][v];
        entry_sums_add(g, 0, sub, u, row_sum);
#elif HAS_BIAS_KEY_SUMS
        ROWS_FOR(v)
            key_sums[v] += grad[u][v];
#else
        const int i = i0 + key_index(&g->base, sub, u);
        ROWS_FOR(v)
            if (i < p->valid)
                keys_add(g, x->grad_bias + i * a->bias.component + k0, v, grad[u][v], p->keys - k0);
#endif
    }
#endif
}

/* One sub-tile of a panel and a head. */
FUNCTION void block_gradients(grad_engine *g, const head *x, const mgk_attention_args *a, const problem *p, int panel,
                              int value_head, int grad_head, int sub, int k0, int i0, bool masked, real *sums,
                              real *key_sums)
{
    real d[BLOCK_KEYS][BLOCK_ROWS], s[BLOCK_KEYS][BLOCK_ROWS], eps[BLOCK_KEYS][BLOCK_ROWS];
    block_eps(g, x, sub, k0, i0, eps);
    mix_scores(g, x, sub, eps, s);
#if HAS_SOFTCAP
    real slope[BLOCK_KEYS][BLOCK_ROWS];
    KEYS_FOR(u)
        ROWS_FOR(v) {
            slope[u][v] = softcap_slope(s[u][v], x->modifiers.softcap);
            s[u][v] = softcap_real(s[u][v], x->modifiers.softcap);
        }
#endif
    mask_scores(g, x, a, p, sub, k0, i0, masked, s);
    KEYS_FOR(u)
        ROWS_FOR(v) {
            s[u][v] = exp2_real(s[u][v]);
            d[u][v] = (real)(0.0f);
        }
#if HAS_SCORE_GRADIENTS
    value_product(g, panel, value_head, grad_head, sub, d);
#endif
    KEYS_FOR(u)
        ROWS_FOR(v) {
            real keep = (real)(1.0f);
#if HAS_DROPOUT
            keep = keep_of(a, x->modifiers.head, i0 + key_index(&g->base, sub, u), row_index(&g->base, k0, v));
#endif
            d[u][v] = fma(d[u][v], keep, (real)(key_get(&g->base, x->delta, sub, u)));
#if WANT_V
            slot_put(g, WEIGHT_SLOT, sub, u, v, s[u][v] * keep);
#endif
            d[u][v] *= s[u][v];
        }
    bias_gradients(g, x, a, p, sub, k0, i0, d, key_sums);
#if HAS_SOFTCAP
    KEYS_FOR(u)
        ROWS_FOR(v)
            d[u][v] *= slope[u][v];
#endif
#if HAS_DG || SUMS > 0
    spread_gradients(g, x, sub, d, eps, sums);
#endif
}

/* A panel, a tile and a head. */
FUNCTION void panel_head(grad_engine *g, const head *x, const mgk_attention_args *a, const problem *p, int panel,
                         int value_head, int grad_head, int k0, int i0, int entries, int subs, bool masked, real *sums)
{
    real key_sums[BLOCK_ROWS];
    ROWS_FOR(v)
        key_sums[v] = (real)(0.0f);
    for (int sub = 0; sub < subs; ++sub)
        block_gradients(g, x, a, p, panel, value_head, grad_head, sub, k0, i0, masked, sums, key_sums);
#if HAS_BIAS_KEY_SUMS
    real before[BLOCK_ROWS];
    rows_sum(&g->base, key_sums);
    rows_load(g, x->grad_bias, k0, p->keys, 0.0f, before);
    ROWS_FOR(v)
        key_sums[v] += before[v];
    rows_store(&g->base, key_sums, x->grad_bias, 1, k0, p->keys);
#endif
#if WANT_V
    accumulate_values(g, panel, value_head, grad_head, WEIGHT_SLOT, entries);
#endif
}

/* While a panel is at its tile, with head h: a share of what the next tile will copy, dO of that head and a part of the
 * queries. */
FUNCTION void expect_rows(const mgk_attention_args *a, __global const storage *queries, __global const storage *grad_o,
                          const problem *p, int h, int i0, int panel)
{
    grad_o += h * a->grad_o.head + p->row_base * a->grad_o.token;
    rows_expect(grad_o, a->grad_o.token, i0, p->valid, a->value_size, panel);
    for (int i = h; i < COMPONENTS; i += a->heads)
        rows_expect(queries + i * a->q.head, a->q.token, i0, p->valid, a->head_size, panel);
}

FUNCTION void head_begin(head *x, const mgk_attention_args *a, const problem *p, size_t group, int h,
                         __global const float *mix, __global const float *weight, __global const float *added,
                         __global const float *sigma, __global const float *slopes, __global const float *bias,
                         __global float *grad_bias, __global float *work)
{
    x->modifiers = modifiers_of(a, p->b, h, slopes);
    x->mixing = mixing_of(a, h, mix, weight, sigma);
    x->mixing.added = added_of(a, h, added);
#if HAS_BIAS
    x->bias = bias_of(a, p, h, bias);
#endif
#if HAS_BIAS_KEY_SUMS
    x->grad_bias = work + a->region[MGK_REGION_BIAS] + (p->batch * a->heads + h) * a->length_k + p->key_base;
#elif WANT_BIAS && !HAS_BIAS_ROW_SUMS
    x->grad_bias =
        a->bias_copies == 0 ? grad_bias : work + a->region[MGK_REGION_BIAS] + group * (a->bias_batches * a->bias.batch);
    x->grad_bias += (p->batch % a->bias_batches) * a->bias.batch + h * a->bias.head + p->row_base * a->bias.component +
                    p->key_base * a->bias.token;
#endif
}

KERNEL(admixture_backward)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const int split = GROUP_ID % a.splits, chunk = GROUP_ID / a.splits;
    const int task_begin = (int)((long)a.batch * chunk / a.chunks);
    const int task_end = (int)((long)a.batch * (chunk + 1) / a.chunks);
    const int batches = HAS_SEQUENCES ? 1 : a.batch;

    GRAD_ENGINE_DECLARE(g)
    KEY_SPACE float log_terms[TILE_KEYS], delta_terms[TILE_KEYS];
    float scale[COMPONENTS];
    head x;
    x.log = log_terms;
    x.delta = delta_terms;

    for (int task = task_begin; task < task_end; ++task) {
        const problem p = problem_of(&a, task, lengths, lengths_q, offsets, offsets_k);
        /* keys beyond the key length have gradients too: 0 */
        const int keys = HAS_SEQUENCES ? p.keys : a.length_k;
        __global const storage *const queries = q + p.batch * a.q.batch + p.row_base * a.q.token;
        __global const storage *const own_keys = k + p.batch * a.k.batch + p.key_base * a.k.token;
        __global const storage *const values = v + p.batch * a.v.batch + p.key_base * a.v.token;
        __global storage *const dk = grad_k + p.batch * a.grad_k.batch + p.key_base * a.grad_k.token;
        __global storage *const dv = grad_v + p.batch * a.grad_v.batch + p.key_base * a.grad_v.token;
        __global float *const dq = work + a.region[MGK_REGION_QUERY] +
                                   (((long)split * batches + p.batch) * COMPONENTS * a.length + p.row_base) * HEAD_SIZE;
        const uint noise_head = (uint)p.b * (uint)a.heads;

        x.modifiers = modifiers_of(&a, p.b, 0, slopes);
        x.mixing = mixing_of(&a, 0, mix, mix_weight, noise);
        for (int i = 0; i < COMPONENTS; ++i)
            scale[i] = stage_scale(&x.mixing, i);

        for (int k0 = split * GROUP_ROWS; k0 < keys; k0 += a.splits * GROUP_ROWS) {
            for (int panel = 0; panel < PANELS; ++panel) {
                panel_clear_keys(&g, panel);
                panel_load_keys(&g, panel, own_keys, a.k.head, a.k.token, k0 + panel * PANEL_ROWS, p.keys, a.head_size,
                                scale);
            }
            for (int g0 = 0; g0 < a.kv_heads; g0 += HEADS) {
                for (int panel = 0; panel < PANELS; ++panel) {
                    panel_clear_values(&g, panel);
                    for (int n = 0; n < min(HEADS, a.kv_heads - g0); ++n)
                        panel_load_values(&g, panel, n, values + (g0 + n) * a.v.head, a.v.token,
                                          k0 + panel * PANEL_ROWS, p.keys, a.value_size);
                }
                int begin, end;
                block_rows(&a, &p, k0, &begin, &end);
                for (int i0 = begin; i0 < end; i0 += TILE_KEYS) {
                    const int stop = min(i0 + TILE_KEYS, p.valid), entries = stop - i0;
                    const int subs = SUB_TILES == 1 ? 1 : (entries + BLOCK_KEYS - 1) / BLOCK_KEYS;
                    bool masked;
                    queries_stage(&g, queries, a.q.head, a.q.token, i0, p.valid, a.head_size);
                    grad_out_stage(&g, min(GRAD_HEADS, a.heads - g0 * HEAD_RATIO),
                                   grad_o + p.batch * a.grad_o.batch + (long)g0 * HEAD_RATIO * a.grad_o.head +
                                       p.row_base * a.grad_o.token,
                                   a.grad_o.head, a.grad_o.token, i0, p.valid, a.value_size);
                    for (int panel = 0; panel < PANELS; ++panel) {
                        const int first = k0 + panel * PANEL_ROWS;
                        if (!panel_meets(&a, &p, first, i0, stop, &masked))
                            continue;
                        hold_scores(&g, &x, noise_head, panel, first, i0, subs);
                        HEADS_FOR(n)
                        {
                            if (g0 + n >= a.kv_heads)
                                continue;
                            for (int m = 0; m < HEAD_RATIO; ++m) {
                                const int h = (g0 + n) * HEAD_RATIO + m;
                                const long bh = p.batch * a.heads + h;
                                real sums[SUMS > 0 ? SUMS : 1];
                                for (int i = 0; i < SUMS; ++i)
                                    sums[i] = (real)(0.0f);
                                head_begin(&x, &a, &p, GROUP_ID, h, mix, mix_weight, mix_offset, noise, slopes, bias,
                                           grad_bias, work);
                                tile_terms(&g, &x, &a, work, bh * a.length + p.row_base, i0, p.valid);
#if HAS_BIAS_ROW_SUMS
                                entry_sums_clear(&g);
#endif
                                expect_rows(&a, queries, grad_o + p.batch * a.grad_o.batch, &p, h, i0 + TILE_KEYS,
                                            panel);
                                panel_head(&g, &x, &a, &p, panel, n, n * HEAD_RATIO + m, first, i0, entries, subs,
                                           masked, sums);
#if HAS_BIAS_ROW_SUMS
                                entry_sums_store(&g, 0, 0,
                                                 work + a.region[MGK_REGION_BIAS] + bh * a.length + p.row_base + i0,
                                                 entries);
#endif
#if SUMS > 0
                                block_sums_add(&g, sums, SUMS,
                                               work + a.region[MGK_REGION_MIX_SUMS] +
                                                   (((long)task * a.splits + split) * a.heads + h) * SUMS);
#endif
                            }
                            branch_end();
                        }
                        MIXED_FOR(i, COMPONENTS)
                        {
#if WANT_K
                            accumulate_keys(&g, panel, i, GRAD_SLOT + (SHARED_MIX ? 0 : i), entries);
#endif
#if WANT_Q
                            scatter_queries(&g, panel, i, 1, GRAD_SLOT + (SHARED_MIX ? 0 : i),
                                            dq + ((long)i * a.length + i0) * HEAD_SIZE, entries);
#endif
                        }
                        branch_end();
                    }
                    tile_end(&g);
                }
#if WANT_V
                for (int panel = 0; panel < PANELS; ++panel)
                    HEADS_FOR(n)
                if (g0 + n < a.kv_heads)
                    store_values(&g, panel, n, dv + (g0 + n) * a.grad_v.head, a.grad_v.token, k0 + panel * PANEL_ROWS,
                                 keys, a.value_size, is_added(&a.bound, SLOT_GRAD_V));
#endif
            }
#if WANT_K
            for (int panel = 0; panel < PANELS; ++panel)
                MIXED_FOR(i, COMPONENTS)
            store_keys(&g, panel, i, (SHARED_MIX ? x.mixing.p[i] : 1.0f) * a.scale * LN_2, dk + i * a.grad_k.head,
                       a.grad_k.token, k0 + panel * PANEL_ROWS, keys, a.head_size, is_added(&a.bound, SLOT_GRAD_K));
#endif
        }
    }
    branch_end();
}
