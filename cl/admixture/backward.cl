/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, backward: blocks of keys meet tiles of queries. With the scores A_hij of admixture/block.clh in
 * the unit of scores and log_hi as admixture/rows.cl prepares it:
 *
 *     P_hij  = 2^(A_hij + bias + ALiBi + log_hi)         t_hij = keep_hij dO_hi.v_hj + delta_hi
 *     dA_hij = P_hij t_hij (times the slope of the soft-cap)
 *     dG_kij = sum_h p_hk dA_hij    generalised: sum_h w_hk p_hk [p_hk (G_kij + noise) > 0] dA_hij
 *     dV_j = sum_hi keep P_hij dO_hi     dK_kj = sum_i dG_kij q_ki     dQ_ki = sum_j dG_kij k_kj
 *     MiSH: one dA for all k, sum_h dA_hij; p_k comes later
 *     MIX_AFTER: W for P in dV, and dP for dO.v (admixture/mixed_pairs.clh), before delta
 *     SHARED_SOFTMAX (MiSH where nothing differs by head): dA_ij = P_ij sum_h t_hij, so that heads have products alone
 *     with a hidden layer: dr_uij = [y_uij > 0] sum_h w_hu dA_hij, dG_kij = sum_u p_uk dr_uij
 *
 * M products make the scores of a tile, two for each head follow, and 2 M with dG: 3 M + 2 H in all where softmax has
 * 5 H. A work-group owns every `splits`-th block of the keys of a list of batches, one after the other, with all their
 * heads: dQ is summed in a fixed order, one copy per split, where no kernel of queries makes it
 * (admixture/backward_queries.cl). It holds the values and dV of HEADS heads of values; where there are more, it goes
 * over the tiles again for the next ones.
 */
#define PASS_BACKWARD
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_BACKWARD_BUFFERS
#include "base/buffers.clh"

#include "admixture/block.clh"
#include "admixture/sums.clh"

#define HAS_A_GRADIENTS     (WANT_Q || WANT_K || WANT_BIAS || SUMS > 0 || UNIT_SUMS > 0 || WANT_TEXTS)
#define HAS_SCORE_GRADIENTS (HAS_A_GRADIENTS || WANT_MIX_AFTER || DELTAS)
#define HAS_DG              (WANT_Q || WANT_K)
#define HAS_DR              (HAS_DG || UNIT_SUMS > 0)
#define QUERY_COMPONENTS    COMPONENTS
/* Without dV a work-item has nothing of a head in registers: all heads take their turn in a tile. */
#define ALL_HEADS   (BLOCK_REGISTERS && !WANT_V)
#define VALUE_HEADS (ALL_HEADS ? 1 : HEADS)
#define GRAD_HEADS  (VALUE_HEADS * HEAD_RATIO)

/* While a panel is at a tile: the held scores, their gradients, the weights, and the noise where one serves all heads;
 * with a hidden layer, the products, whose places dG takes. */
#define KEEP_NOISE    (SHARED_NOISE && HAS_NOISE_SUMS)
#define KEEP_PRODUCTS (HIDDEN > 0 && WANT_MIX)
#define SCORE_SLOT    0
#define GRAD_SLOT     SCORES
#define WEIGHT_SLOT   (2 * SCORES)
#define NOISE_SLOT    (WEIGHT_SLOT + 1)
#define PRODUCT_SLOT  (NOISE_SLOT + KEEP_NOISE)
#define AFTER_SLOT    (PRODUCT_SLOT + (HIDDEN > 0 ? COMPONENTS : 0))
#define HAS_DP        (MIX_AFTER > 0 && (HAS_A_GRADIENTS || DELTAS))

#define AFTER_GRAD_SLOT (AFTER_SLOT + MIX_AFTER)
#define SLOTS           (AFTER_GRAD_SLOT + (HAS_DP ? MIX_AFTER : 0))

#define KEEPS_WEIGHTS (WANT_V && MIX_AFTER == 0 && !SHARED_SOFTMAX)
#define KEEPS_SUMS    1

#define BLOCK_SUMS SUMS

#define HEAD_TERMS ((1 + STAGES_AHEAD) * TILE_STREAMED) /* of a head, and of the next one */

#include "engine/backward.clh"

/* ALL_HEADS: their values and dO come with the tile's queries, or while the head before is computed. */
#define HEADS_ANNOUNCED (ALL_HEADS && STAGES_AHEAD)

#include "admixture/keys.clh"

/* ---- scores -------------------------------------------------------------------------------------------------- */

/* log_i and delta_i of the tile's queries and head h, from number `to` on; the head's turn has not come yet. */
FUNCTION void tile_terms(const key_block *b, int i0, int h, int to)
{
    const mgk_attention_args *const a = b->a;
    const int limit = b->p->valid;
    const long row = (b->p->batch * a->heads + h) * a->length + b->p->row_base;
    __global const float *const log_rows = b->at->work + REGION(a->region[MGK_REGION_LOG]) + row;
    __global const float *const low_rows = b->at->work + REGION(a->region[MGK_REGION_LOG_LOW]) + row;
    __global const float *const delta_rows = b->at->work + REGION(a->region[MGK_REGION_DELTA]) + row;
    TILE_STREAMED_FOR(&b->g->base, c, TILE_STREAMED) {
        streamed_copy(b->x->log + to, c, log_rows, i0 + c, limit, -INFINITY);
        streamed_copy(b->x->delta + to, c, delta_rows, i0 + c, limit, 0.0f);
        if (HAS_LSE_LOW)
            streamed_copy(b->x->log_low + to, c, low_rows, i0 + c, limit, 0.0f);
    }
}

/* The terms of head h. STAGES_AHEAD: they have come with its dO, and those of the next head, -1: none, are copied. */
FUNCTION void head_terms(const key_block *b, int i0, int h, int next)
{
    head *const x = b->x;
    const int before = x->first_term;
    if (STAGES_AHEAD) {
        x->first_term = TILE_STREAMED - before;
        if (next >= 0)
            tile_terms(b, i0, next, before);
        return;
    }
    sync_streamed(&b->g->base); /* the head before is done with its own */
    tile_terms(b, i0, h, 0);
    sync_streamed(&b->g->base);
}

/* The held scores of a panel's tile, and dG, which begins with 0. */
FUNCTION void hold_tile(const key_block *b, const panel_tile *m)
{
    const pair_block at = {b->g, &b->x->scorer, b, m, 0, 0};
    for (int sub = 0; sub < m->subs; ++sub) {
        hold_scores(&at, (uint)b->p->b * (uint)b->a->heads, sub);
        if (HAS_DR || SHARED_SOFTMAX)
            clear_gradients(&at, sub);
    }
}

#if HIDDEN > 0
/* Adds the sums of unit n over a panel's tile. */
FUNCTION void add_unit_sums(const key_block *b, const panel_tile *m, const int n)
{
#if UNIT_SUMS > 0
    const pair_block at = {b->g, &b->x->scorer, b, m, 0, 0};
    real sums[UNIT_SUMS];
    COPIES_FOR(i, 0, UNIT_SUMS)
        sums[i] = (real)(0.0f);
    for (int sub = 0; sub < m->subs; ++sub) {
        real eps[BLOCK_STREAMED][BLOCK_HELD];
        if (HAS_UNIT_NOISE)
            pair_noise(&at, random_batch(b->a, b->p->b) + (SHARED_NOISE ? 0u : (uint)n), sub, eps);
        STREAMED_FOR(u)
            HELD_FOR(v) {
                const real part = slot_get(b->g, GRAD_SLOT + n, sub, u, v);
                COPIES_FOR(k, 0, UNIT_OFFSET_SUM)
                    sums[k] = fma(part, slot_get(b->g, PRODUCT_SLOT + k, sub, u, v), sums[k]);
                if (WANT_MIX_HIDDEN_OFFSET)
                    sums[UNIT_OFFSET_SUM] += part;
                if (HAS_UNIT_NOISE)
                    sums[UNIT_NOISE_SUM] = fma(part, eps[u][v], sums[UNIT_NOISE_SUM]);
            }
    }
    block_sums_add(b->g, sums, UNIT_SUMS,
                   b->at->work + REGION(b->a->region[MGK_REGION_UNIT_SUMS]) + (b->at->sums * HIDDEN + n) * UNIT_SUMS);
#endif
}

FUNCTION void finish_unit(const key_block *b, const panel_tile *m, const int n)
{
    const pair_block at = {b->g, &b->x->scorer, b, m, 0, 0};
    for (int sub = 0; sub < m->subs; ++sub)
        pass_unit(&at, n, sub);
    add_unit_sums(b, m, n);
}

FUNCTION void sum_units(const key_block *b, const panel_tile *m, const int k)
{
    const pair_block at = {b->g, &b->x->scorer, b, m, 0, 0};
    for (int sub = 0; sub < m->subs; ++sub)
        unit_products(&at, k, sub);
}

/* All heads are done with a panel's tile: the gradients of units become dG. */
FUNCTION void finish_units(const key_block *b, const panel_tile *m)
{
#define FINISH_UNIT(n) finish_unit(b, m, n)
#define SUM_UNITS(k)   sum_units(b, m, k)
    EACH_SCORE(FINISH_UNIT);
    if (HAS_DG)
        COPIES(SUM_UNITS, COMPONENTS);
}
#endif

/* Sums over queries of the bias's gradients, added to the head's. */
FUNCTION void add_key_sums(const key_block *b, const panel_tile *m, real *key_sums)
{
    real before[BLOCK_HELD];
    held_sum(&b->g->base, key_sums);
    held_load(b->g, b->x->grad_bias, m->k0, b->p->keys, 0.0f, before);
    HELD_FOR(v)
        key_sums[v] += before[v];
    held_store(&b->g->base, key_sums, b->x->grad_bias, 1, m->k0, b->p->keys);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------ */

/* While a panel is at its tile, with head h: a share of what the next tile will copy, dO of that head and a part of the
 * queries. */
FUNCTION void expect_rows(const key_block *b, const panel_tile *m, int h)
{
    const mgk_attention_args *const a = b->a;
    const int i0 = m->i0 + TILE_STREAMED, limit = b->p->valid;
    rows_expect(elements_of(b->at->grad_o + h * a->grad_o.head), a->grad_o.token, i0, limit, a->value_size, m->panel);
    for (int k = h; k < COMPONENTS; k += out_heads(a))
        rows_expect(elements_of(b->at->q + k * a->q.head), a->q.token, i0, limit, a->head_size, m->panel);
}

FUNCTION void head_begin(const key_block *b, int h)
{
    const mgk_attention_args *const a = b->a;
    const problem *const p = b->p;
    const places *const at = b->at;
    head *const x = b->x;
    x->scorer.modifiers = modifiers_of(a, p, h, at->slopes, at->data);
    if (MIX_AFTER > 0)
        x->scorer.modifiers.g = 0;
    x->scorer.mixing = mixing_of(a, h, at->mix, at->mix_weight, at->noise);
    x->scorer.mixing.added = added_of(h, at->mix_offset);
    if (HAS_BIAS)
        x->bias = bias_of(a, p, h, at->bias);
    if (HAS_BIAS_KEY_SUMS)
        x->grad_bias =
            at->work + REGION(a->region[MGK_REGION_BIAS]) + (p->batch * a->heads + h) * a->length_k + p->key_base;
    if (HAS_BIAS_ENTRIES)
        x->grad_bias = at->grad_bias + (p->batch % a->bias_batches) * a->bias.batch + h * a->bias.head +
                       p->row_base * a->bias.component + p->key_base * a->bias.token;
}

#include "admixture/mixed_pairs.clh"

/* Sums of all heads of the work-group's task. */
FUNCTION __global float *head_sums_of(const mgk_attention_args *a, const places *at)
{
    return at->work + REGION(a->region[MGK_REGION_MIX_SUMS]) + at->sums * a->heads * SUMS;
}

/* The gradients of a panel's tile from head h of those with a softmax. `value_head`, `grad_head`: where its values and
 * dO are held; MIX_AFTER: dP is held. */
FUNCTION void score_tile_of(const key_block *b, const panel_tile *m, int h, int value_head, int grad_head)
{
    real sums[SUMS > 0 ? SUMS : 1], key_sums[BLOCK_HELD], numbers[WANT_NUMBERS > 0 ? WANT_NUMBERS : 1];
    const pair_block at = {b->g, &b->x->scorer, b, m, key_sums, numbers};
    for (int i = 0; i < SUMS; ++i)
        sums[i] = (real)(0.0f);
    UNROLL
    for (int i = 0; i < WANT_NUMBERS; ++i)
        numbers[i] = (real)(0.0f);
    HELD_FOR(v)
        key_sums[v] = (real)(0.0f);
    begin_row_sums(b->g);
    for (int sub = 0; sub < m->subs; ++sub) {
        real d[BLOCK_STREAMED][BLOCK_HELD];
        STREAMED_FOR(u)
            HELD_FOR(v)
                d[u][v] = (real)(0.0f);
        if (MIX_AFTER > 0)
            weight_products(&at, h, sub, d);
        else if (SHARED_SOFTMAX)
            take_shared(&at, sub, d);
        else if (HAS_SCORE_GRADIENTS)
            value_product(b->g, m->panel, value_head, grad_head, sub, m->edge, d);
        block_gradients(&at, sub, d, sums);
    }
    if (HAS_BIAS_KEY_SUMS)
        add_key_sums(b, m, key_sums);
    if (KEEPS_WEIGHTS)
        accumulate_values(b->g, m->panel, value_head, grad_head, WEIGHT_SLOT, 0, m->entries, m->edge);
    store_row_sums(b, m, h);
    if (SUMS > 0)
        block_sums_keep(b->g, h * SUMS, sums, SUMS, head_sums_of(b->a, b->at));
    if (WANT_NUMBERS > 0)
        block_sums_add(b->g, numbers, WANT_NUMBERS, b->at->numbers);
}

FUNCTION void score_tile(const key_block *b, const panel_tile *m, int h)
{
    head_begin(b, h);
    head_terms(b, m->i0, h, -1);
    score_tile_of(b, m, h, 0, 0);
}

#include "admixture/mixed_keys.clh"
#include "admixture/shared_keys.clh"

/* A panel's tile and one of the heads whose dO is held, which reads the held values `value_head`. */
FUNCTION void head_tile(const key_block *b, const panel_tile *m, int value_head, int grad_head)
{
    if (MIX_AFTER > 0) {
        mixed_head_tile(b, m, value_head, grad_head);
        return;
    }
    if (SHARED_SOFTMAX) {
        shared_head_tile(b, m, value_head, grad_head);
        return;
    }
    const mgk_attention_args *const a = b->a;
    int h = m->g0 * HEAD_RATIO + grad_head;
    OPAQUE(h);
    head_begin(b, h);
    grad_out_arrive(b->g, grad_head);
    const int end_h = ALL_HEADS ? a->heads : min(m->g0 * HEAD_RATIO + GRAD_HEADS, a->heads);
    head_terms(b, m->i0, h, h + 1 < end_h ? h + 1 : -1);
    expect_rows(b, m, h);
    score_tile_of(b, m, h, value_head, grad_head);
}

/* Product k of a panel's tile with dG. */
FUNCTION void score_product(const key_block *b, const panel_tile *m, int k)
{
    const int slot = product_slot(k);
    if (WANT_K)
        accumulate_keys(b->g, m->panel, k, slot, 0, m->entries, m->edge);
    add_query_gradients(b, m, k, slot);
}

FUNCTION void score_products(const key_block *b, const panel_tile *m)
{
#define SCORE_PRODUCT(k) score_product(b, m, k)
    COPIES(SCORE_PRODUCT, COMPONENTS);
}

/* ---- blocks ----------------------------------------------------------------------------------------------------- */

/* The loops over heads of values and tiles are in few functions: compilers go once more over all that a function
 * inlines. */

/* dO of the heads of g0. */
FUNCTION __global const o_element *grad_out_of(const key_block *b, int g0)
{
    return b->at->grad_o + (long)g0 * HEAD_RATIO * b->a->grad_o.head;
}

/* Stages the queries from i0 on, with dO of the heads of g0; then come those of next_g from `next` on, -1: none. */
FUNCTION void tile_stage(const key_block *b, int g0, int i0, int next_g, int next)
{
    const mgk_attention_args *const a = b->a;
    const elements q = elements_of(b->at->q), grad_o = elements_of(grad_out_of(b, g0));
    queries_stage(b->g, array_rows_of(q, a->q.token, i0, b->p->valid, a->head_size), a->q.head, tile_at(q, next));
    grad_out_stage(b->g, array_rows_of(grad_o, a->grad_o.token, i0, b->p->valid, a->value_size),
                   min(GRAD_HEADS, out_heads(a) - g0 * HEAD_RATIO), a->grad_o.head,
                   tile_at(elements_of(grad_out_of(b, next_g)), next));
}

FUNCTION void load_values(const key_block *b, int g0)
{
    const mgk_attention_args *const a = b->a;
    for (int panel = 0; panel < PANELS; ++panel) {
        panel_clear_values(b->g, panel);
        HEADS_FOR(n)
            if (g0 + n < a->kv_heads)
                panel_load_values(b->g, panel, n, b->at->v + (g0 + n) * a->v.head, a->v.token,
                                  b->k0 + panel * PANEL_HELD, b->p->keys, a->value_size);
    }
}

/* A panel's tile and VALUE_HEADS heads of values from m->g0 on. ALL_HEADS: then come the next heads of this tile, or
 * the first of the tile at `next`. HEADS_ANNOUNCED: the first ones came with the queries, and the next ones are copied
 * when the products with these are there. */
FUNCTION void group_tile(const key_block *b, const panel_tile *m, int next)
{
    const bool ends = m->g0 + VALUE_HEADS >= b->a->kv_heads;
    if (!HEADS_ANNOUNCED && ALL_HEADS)
        load_values(b, m->g0);
    if ((!HEADS_ANNOUNCED || m->g0 > 0) && ALL_HEADS)
        tile_stage(b, m->g0, m->i0, ends ? 0 : m->g0 + VALUE_HEADS, ends ? next : m->i0);
#if HEADS_ANNOUNCED
    heads_announce(b->g, !ends, b->a->v.head, HEAD_RATIO * b->a->grad_o.head);
#endif
    HEADS_FOR(n) {
        if (m->g0 + n >= b->a->kv_heads)
            continue;
        for (int i = 0; i < HEAD_RATIO; ++i)
            head_tile(b, m, n, n * HEAD_RATIO + i);
        branch_end();
    }
}

/* All tiles of queries that meet the block, for the heads of values g0 .. end_g - 1, and the dV of these VALUE_HEADS.
 */
FUNCTION void value_heads(const key_block *b, int g0, int end_g)
{
    grad_engine *const g = b->g;
    const mgk_attention_args *const a = b->a;
    const problem *const p = b->p;
    const row_walk walk = row_walk_of(a, p, b->k0, mask_of_heads(b->at->data, a->heads));
    b->x->later = g0 > 0;
    if (!HEADS_ANNOUNCED)
        load_values(b, g0);
    for (int i0 = walk.begin; i0 < walk.end; i0 += TILE_STREAMED) {
        const int stop = min(i0 + TILE_STREAMED, p->valid), entries = stop - i0;
        const int subs = SUB_TILES == 1 ? 1 : (entries + BLOCK_STREAMED - 1) / BLOCK_STREAMED;
        const int next = next_rows(&walk, i0 + TILE_STREAMED);
        if (!meets_tile(&walk, i0))
            continue;
        if (HEADS_ANNOUNCED)
            load_values(b, g0);
        if (STAGES_AHEAD)
            tile_terms(b, i0, SHARED_SOFTMAX ? 0 : g0 * HEAD_RATIO, TILE_STREAMED - b->x->first_term);
        tile_stage(b, g0, i0, g0, ALL_HEADS ? i0 : next);
        for (int panel = 0; panel < PANELS; ++panel) {
            const int first = b->k0 + panel * PANEL_HELD;
            panel_tile m = {panel, first, g0, i0, entries, subs, edge_of(a, p, i0, first), false};
            const panel_rows rows = rows_of_panel(&walk, panel);
            if (!panel_meets(&walk, &rows, panel, i0, stop, &m.masked))
                continue;
            hold_tile(b, &m);
            hold_weights(b, &m);
            hold_shared(b, &m);
            for (; m.g0 < end_g; m.g0 += VALUE_HEADS)
                group_tile(b, &m, next);
            finish_weights(b, &m);
            finish_shared(b, &m);
#if HIDDEN > 0
            if (HAS_DR)
                finish_units(b, &m);
#endif
            score_products(b, &m);
            branch_end();
        }
        tile_end(g);
    }
    if (WANT_V)
        for (int panel = 0; panel < PANELS; ++panel)
            HEADS_FOR(n)
                if (g0 + n < a->kv_heads)
                    store_values(g, panel, n,
                                 array_rows_of(elements_of(b->at->grad_v + (g0 + n) * a->grad_v.head), a->grad_v.token,
                                               b->k0 + panel * PANEL_HELD, b->keys, a->value_size),
                                 is_added(&a->bound, SLOT_GRAD_V));
}

FUNCTION void load_keys(const key_block *b)
{
    const mgk_attention_args *const a = b->a;
    for (int panel = 0; panel < PANELS; ++panel) {
        panel_clear_keys(b->g, panel);
        panel_load_keys(b->g, panel, b->at->k, a->k.head, a->k.token, b->k0 + panel * PANEL_HELD, b->p->keys,
                        a->head_size);
    }
}

/* dK of component k of the block. */
FUNCTION void finish_component(const key_block *b, int k)
{
    const mgk_attention_args *const a = b->a;
    for (int panel = 0; panel < PANELS; ++panel)
        store_keys(b->g, panel, k, (SHARED_MIX ? b->x->scorer.mixing.p[k] : 1.0f) * a->scale * NATS_PER_UNIT,
                   array_rows_of(elements_of(b->at->grad_k + k * a->grad_k.head), a->grad_k.token,
                                 b->k0 + panel * PANEL_HELD, b->keys, a->head_size),
                   is_added(&a->bound, SLOT_GRAD_K));
}

FUNCTION void finish_keys(const key_block *b)
{
#define FINISH(k) finish_component(b, k)
    if (WANT_K)
        COPIES(FINISH, COMPONENTS);
}

/* Where the work-group's sums over its tasks are. */
FUNCTION void sums_begin(places *at, const mgk_attention_args *a, const key_share *share, __global float *grad_bias)
{
    at->numbers = at->work + REGION(a->region[MGK_REGION_NUMBERS]) + work_group_of(a, share) * WANT_NUMBERS;
    if (WANT_READS > 0)
        at->reads =
            reads_of_group(at->work + REGION(a->region[MGK_REGION_READS]) + work_group_of(a, share) * a->reads_floats,
                           a->reads_floats, BLOCK_STREAMED * BLOCK_HELD);
    at->grad_bias = a->bias_copies == 0 ? grad_bias
                                        : at->work + REGION(a->region[MGK_REGION_BIAS]) +
                                              share->chunk * (a->bias_batches * a->bias.batch);
}

/* Shared noise and a shared mixing, which are any head's. */
FUNCTION void scorer_begin(scorer *x, const mgk_attention_args *a, const problem *p, const places *at,
                           __global const float *mix_hidden_offset)
{
    x->modifiers = modifiers_of(a, p, 0, at->slopes, at->data);
    x->mixing = mixing_of(a, 0, at->mix, at->mix_weight, at->noise);
    x->hidden = mix_hidden_offset;
}

KERNEL(admixture_backward)
{
    BEGIN_BUFFERS
    MAKE_CLASSES()
    if (a.heads == 0)
        return;
    const key_share share = key_share_of(&a, GROUP_ID);
    const int split = share.split, chunk = share.chunk;
    const int task_begin = (int)((long)a.batch * chunk / a.chunks);
    const int task_end = (int)((long)a.batch * (chunk + 1) / a.chunks);
    const int batches = HAS_SEQUENCES ? 1 : a.batch;

    GRAD_ENGINE_DECLARE(g)
    const mod_data data = MOD_DATA;
    STREAMED_SPACE float log_terms[HEAD_TERMS], log_low_terms[HAS_LSE_LOW ? HEAD_TERMS : 1], delta_terms[HEAD_TERMS];
    head x;
    x.log = log_terms;
    x.log_low = log_low_terms;
    x.delta = delta_terms;
    x.first_term = 0;
    places at;
    at.mix = mix;
    at.mix_weight = mix_weight;
    at.mix_offset = mix_offset;
    at.mix_after = mix_after;
    at.noise = noise;
    at.bias = bias;
    at.slopes = slopes;
    at.data = &data;
    at.work = work;
    sums_begin(&at, &a, &share, grad_bias);

    for (int task = task_begin; task < task_end; ++task) {
        const problem p =
            placed(&a, problem_of(&a, task, lengths, lengths_q, offsets, offsets_k), positions, positions_k);
        const int keys = HAS_SEQUENCES ? p.keys : a.length_k;
        at.q = q + p.batch * a.q.batch + p.row_base * a.q.token;
        at.k = k + p.batch * a.k.batch + p.key_base * a.k.token;
        at.v = v + p.batch * a.v.batch + p.key_base * a.v.token;
        at.grad_o = grad_o + p.batch * a.grad_o.batch + p.row_base * a.grad_o.token;
        at.grad_k = grad_k + p.batch * a.grad_k.batch + p.key_base * a.grad_k.token;
        at.grad_v = grad_v + p.batch * a.grad_v.batch + p.key_base * a.grad_v.token;
        at.grad_q = work + REGION(a.region[MGK_REGION_QUERY]) +
                    (((long)split * batches + p.batch) * COMPONENTS * a.length + p.row_base) * HEAD_SIZE;
        at.sums = (long)task * a.splits + split;
        at.deltas = work + REGION(a.region[MGK_REGION_DELTAS]) +
                    ((long)split * batches + p.batch) * a.heads * a.length + p.row_base;
        scorer_begin(&x.scorer, &a, &p, &at, mix_hidden_offset);
        for (int k0 = split * GROUP_HELD; k0 < keys; k0 += a.splits * GROUP_HELD) {
            const key_block b = {&g, &a, &p, &at, &x, k0, keys};
            load_keys(&b);
            for (int g0 = 0; g0 < a.kv_heads; g0 += ALL_HEADS ? a.kv_heads : VALUE_HEADS)
                value_heads(&b, g0, ALL_HEADS ? a.kv_heads : g0 + 1);
            finish_keys(&b);
        }
        if (SUMS > 0)
            block_sums_end(&g, a.heads * SUMS, head_sums_of(&a, &at));
    }
    branch_end();
}
