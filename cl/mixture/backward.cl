/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family, backward pass and responsibilities: blocks of keys meet tiles of queries. In the unit of scores,
 * here powers of two, with the exponents e_ijr = log2 (P_ijr) of mixture/forward.cl less L, as mixture/rows.cl prepares
 * it per row (log_i):
 *
 *     e_ijr = c_r q_i.k_jr + beta_jr + alpha_ir + log2 pi_r(j) + bias + ALiBi + log_i          P_ijr = 2^e_ijr
 *     t_ij  = keep_ij dO_i.v_j + delta_i          delta_i = dL_i - dO_i.O_i
 *     dS_ijr = P_ijr t_ij                          (hard: only r = arg max_r e_ijr, the first)
 *
 *     dV_j   = sum_i keep_ij sum_r P_ijr dO_i      dK_jr = sum_i dS_ijr (q_i [gaussian: - k_jr]) / sigma_r^2
 *     dQ_i   = sum_jr dS_ijr (k_jr [- q_i]) / sigma_r^2       the product here, the rest in mixture/rows.cl
 *     row sums sum_j dS_ijr, key sums sum_i dS_ijr            for dQ, dshift and dprior (DELTA_MENDED: rows.clh)
 *
 * sMGK with one sigma: 2^e_ijr = E_ij u_ir w_jr with E_ij = 2^(c q.k + B_j + A_i + log_i), so that with T = E t
 * P = E sum_r u w, sum_r dS = T sum_r u w, row sums u_ir sum_j T w_jr, key sums w_jr sum_i T u_ir: five products.
 *
 * A work-group owns every `splits`-th block of the keys of a list of (b, g), one after the other: dQ is summed in a
 * fixed order, one copy per split. QUERIES_APART: dQ and the row sums are mixture/backward_queries.cl's. With
 * ROWS_INSIDE it owns all blocks: the first that meets a tile of queries prepares log_i, delta_i and alpha_ir by the
 * formulas of mixture/rows.cl, the last finishes dQ and adds the rows' part of dshift, and the workspace holds the rows
 * only between the blocks.
 *
 * A block's keys: mixture/key_block.clh; a tile of queries: query_tile.clh; their pairs: key_gradients.clh, pairs.clh;
 * what a head leaves in the keys: key_results.clh; what some kernels of keys do beside: backward_sums_inside.clh,
 * backward_rows_inside.clh.
 */
#define PASS_BACKWARD
#include "mixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_MIXTURE_BACKWARD_BUFFERS
#include "base/buffers.clh"

#include "mixture/block.clh"

#include "mixture/rows.clh"

#define HAS_SCORE_GRADIENTS (WANT_Q || WANT_K || WANT_PRIOR || WANT_VARIANCE || WANT_SHIFT || WANT_BIAS || WANT_TEXTS)
#define HAS_KEY_GRADIENTS   (WANT_Q || WANT_K)
#define HAS_GRAD_KEYS       WANT_K
/* dshift is summed where rows are finished, without a kernel for it. */
#define SHIFT_INSIDE (WANT_SHIFT && ROWS_INSIDE)
/* The part of dprior that delta lacks, likewise. */
#define GAP_INSIDE   (DELTA_MENDED && ROWS_INSIDE)
#define HAS_KEY_ROWS (WANT_Q || (SHIFT_INSIDE && SCORE_GAUSSIAN))
/* dprior must be right where pi is 0, or so small that P is: the sums of such components are made without it. */
#define PRIOR_APART  (WANT_PRIOR && HAS_PRIOR)
#define HAS_KEY_SUMS (WANT_PRIOR || EXPECTATION || (SCORE_GAUSSIAN && (WANT_K || WANT_SHIFT)))
/* dprior may nearly cancel, so it also gets what sums lack of dS by GRADIENT_BITS. Engines with queries apart, which
 * are short of registers, do without, where all arrays have the type that products take. And it wants dS without the
 * slopes of scores. */
#define ALL_AS_QUERIES (TYPE_K == TYPE_Q && TYPE_V == TYPE_Q && TYPE_O == TYPE_Q)
#define HAS_KEY_REST                                                                                                   \
    (WANT_PRIOR && SCORE_GAUSSIAN && ((GRADIENT_BITS > 0 && !(QUERIES_APART && ALL_AS_QUERIES)) || SCORE_MOD))
/* dK multiplies these sums' numbers. Where components take turns, registers have no room. */
#define SLOT_SUMS                                                                                                      \
    (SUMS_SLOTS && TURNS == 1 && WANT_K && SCORE_GAUSSIAN && !KEYS_SHIFTED && !HAS_KEY_REST && !EXPECTATION &&         \
     (!SCORES_SHAPED || SCORE_MOD))
/* Sums over keys are the kernel of queries' where there is one (mixture/backward_queries.cl). */
#define KEEPS_ROW_SUMS (HAS_ROW_SUMS && !QUERIES_APART)
/* The bias' row sums are those of all components, unless a soft-cap or a factor comes between. */
#define BIAS_SUMS_APART (HAS_BIAS_ROW_SUMS && (SCORES_SHAPED || ROW_SUMS_SCALED || !KEEPS_ROW_SUMS))
#define KEPT_SUMS       (QUERIES_APART ? 0 : ROW_SUMS)
#define HAS_ENTRY_SUMS  (KEPT_SUMS > 0 || HAS_BIAS_ROW_SUMS) /* the lane engine's alone */
#define BIAS_SUM        KEPT_SUMS
#define ENTRY_SUMS      (HAS_ENTRY_SUMS ? BIAS_SUM + BIAS_SUMS_APART : 1)
#define VARIANCES       (HAS_VARIANCE ? COMPONENTS : 1)

#if ROWS_INSIDE
#define LOOKAHEAD_SLOTS    (2 * PRODUCTS + 10) /* slots: mixture/backward_rows_inside.clh */
#define LOOKAHEAD_FEATURES ((3 * PRODUCTS * HEAD_SIZE + 2 * VALUE_SIZE) / 2)
#endif

#define KEEP_PLACES (COMPONENTS == 1 || KEYS_SHIFTED) /* SIMT: registers are short with all keys of more */

#include "engine/backward.clh"

#include "mixture/key_gradients.clh"
#include "mixture/key_results.clh"

/* 1: the kernel knows that a work-group has one block of keys: so it is with QUERIES_APART, but for sequences that are
 * longer than the average, and sums of which there are few. It saves registers in NVIDIA's compiler and costs some in
 * AMD's. */
#define ONE_BLOCK (QUERIES_APART && WHOLE_CHUNKS && !HAS_SEQUENCES && WANT_READS == 0)

/* All tiles of queries of head h that meet the block of keys. */
FUNCTION void block_queries(const key_block *b, int h)
{
    grad_engine *const g = b->g;
    const mgk_attention_args *const a = b->a;
    const problem *const p = b->p;
    row_walk walk = row_walk_of(a, p, b->k0, mask_of_head(PAIRS_MASKED ? b->at->modifiers.data : 0, h));
    if (ROWS_INSIDE && b->k0 == 0) { /* queries that see no key have gradients too: 0 */
        walk.begin = 0;
        walk.end = p->rows;
    }
    announce_terms(b);
    panel_rows rows = rows_of_panel(&walk, 0);
    for (int i0 = walk.begin; i0 < walk.end; i0 += TILE_STREAMED) {
        const int stop = min(i0 + TILE_STREAMED, p->valid);
        const int next = next_rows(&walk, i0 + TILE_STREAMED);
        query_tile tile = {i0, min(p->rows - i0, TILE_STREAMED), stop - i0, false, false, next};
        if (!meets_tile(&walk, i0))
            continue;
        tile_place(&walk, b, &tile);
        queries_ahead(b, next);
        queries_stage(g, array_rows_of(elements_of(b->at->q), a->q.token, i0, p->valid, a->head_size), 0,
                      tile_at(elements_of(b->at->q), next));
        grad_out_stage(g, array_rows_of(elements_of(b->at->grad_o), a->grad_o.token, i0, p->valid, a->value_size), 1, 0,
                       tile_at(elements_of(b->at->grad_o), next));
        tile_terms(b, &tile);
        tile_sums_begin(b, &tile);
        const bool factored = HAS_FACTORED && !flag_read(&g->base, FLAG_SPREAD);
        begin_entry_sums(g);
        for (int panel = 0; panel < PANELS; ++panel) {
            const int first = b->k0 + panel * PANEL_HELD;
            panel_tile m = {panel, first, i0, 0, stop - i0, edge_of(a, p, i0, first), factored, false};
            if (PANELS > 1)
                rows = rows_of_panel(&walk, panel);
            const bool meets = panel_meets(&walk, &rows, panel, i0, stop, &m.masked);
            if ((PANELS > 1 || ROWS_INSIDE || PAIRS_MASKED) && !meets) /* else the walk has left out such tiles */
                continue;
            if (SUB_TILES > 1)
                panel_entries(&walk, panel, i0, &m.begin, &m.end);
            tile_gradients(b, &m);
            branch_end();
        }
        store_entry_sums(b, i0, stop - i0, factored);
        tile_leave(b, &tile);
        tile_end(g);
    }
}

/* A task: a problem and its head of keys, with the heads of queries that read it. */
typedef struct key_task {
    const mgk_attention_args *a;
    const problem *p;
    const places *arrays; /* from the first elements of the arrays on */
    key_share share;
    int kv_head;
    int keys; /* those beyond the key length have gradients too: 0 */
} key_task;

/* Where the task's arrays of keys are, in a turn. */
FUNCTION void keys_begin(const key_task *t, int turn, places *at)
{
    const mgk_attention_args *const a = t->a;
    const problem *const p = t->p;
    const places *const x = t->arrays;
    at->turn = turn;
    at->k = x->k + p->batch * a->k.batch + t->kv_head * a->k.head + p->key_base * a->k.token + turn * a->k.component;
    at->v = x->v + p->batch * a->v.batch + t->kv_head * a->v.head + p->key_base * a->v.token;
    at->grad_k = x->grad_k + p->batch * a->grad_k.batch + t->kv_head * a->grad_k.head + p->key_base * a->grad_k.token;
    at->grad_v = x->grad_v + p->batch * a->grad_v.batch + t->kv_head * a->grad_v.head + p->key_base * a->grad_v.token;
}

/* Where the arrays of head h are, after keys_begin. */
FUNCTION void head_begin(const key_task *t, int h, places *at)
{
    const mgk_attention_args *const a = t->a;
    const problem *const p = t->p;
    const places *const x = t->arrays;
    const long rows = (HAS_SEQUENCES ? 1L : a->batch) * a->heads * a->length;
    const long row_lse = p->batch * a->lse.batch + h * a->lse.head + p->row_base * a->lse.token;
    at->bh = p->batch * a->heads + h;
    at->row = at->bh * a->length + p->row_base;
    at->q = x->q + p->batch * a->q.batch + h * a->q.head + p->row_base * a->q.token;
    at->grad_o = x->grad_o + p->batch * a->grad_o.batch + h * a->grad_o.head + p->row_base * a->grad_o.token;
    at->prior = x->prior + h * a->prior.head + at->turn * a->prior.component + (a->prior.token ? p->key_base : 0);
    at->shift = x->shift + (long)h * COMPONENTS * a->head_size;
    at->o = x->o + p->batch * a->o.batch + h * a->o.head + p->row_base * a->o.token;
    at->lse = x->lse + row_lse;
    at->lse_low = x->lse_low + row_lse;
    at->grad_lse = x->grad_lse ? x->grad_lse + row_lse : 0;
    at->grad_q = x->grad_q + p->batch * a->grad_q.batch + h * a->grad_q.head + p->row_base * a->grad_q.token;
    at->work = x->work;
    at->query = x->work + REGION(a->region[MGK_REGION_QUERY]) + (t->share.split * rows + at->row) * HEAD_SIZE;
    at->row_sums = x->work + REGION(a->region[MGK_REGION_ROW_SUMS]) +
                   (t->share.split * rows + at->bh * a->length) * ROW_SUMS + p->row_base;
    at->bias = HAS_BIAS ? bias_of(a, p, h, x->bias) : 0;
    if (KEY_TERMS_GIVEN)
        at->betas = x->work + REGION(a->region[MGK_REGION_KEY_TERMS]) + beta_row(a, p->batch, h, t->kv_head, at->turn) +
                    p->key_base;
    if (HAS_BIAS_ENTRIES) {
        at->grad_bias = a->bias_copies == 0 ? x->grad_bias
                                            : x->work + REGION(a->region[MGK_REGION_BIAS]) +
                                                  t->share.chunk * (a->bias_batches * a->bias.batch);
        at->grad_bias += (p->batch % a->bias_batches) * a->bias.batch + h * a->bias.head +
                         p->row_base * a->bias.component + p->key_base * a->bias.token;
    }
    if (WANT_GAMMA)
        at->gamma =
            x->gamma + at->bh * COMPONENTS * a->length * a->length_k + p->row_base * (long)a->length_k + p->key_base;
}

/* A block of keys and a head of queries; `first`: the first of its task. */
FUNCTION void block_head(const key_block *b, components *x, int h, bool first, __global const float *variance, int keys)
{
    const mgk_attention_args *const a = b->a;
    const places *const at = b->at;
    key_values *const key = b->key;
    components_begin(x, a, h, at->prior, variance, at->shift);
    key->spread = 0.0f;
    key->tiny = false;
    shift_begin(key);
    COPIES_FOR(r, 0, GAP_INSIDE ? COMPONENTS : 0)
        key->gap[r] = 0.0f;
    UNROLL
    for (int i = 0; i < WANT_NUMBERS; ++i)
        key->numbers[i] = (real)(0.0f);
    for (int panel = 0; panel < PANELS; ++panel) {
        if (HAS_VARIANCE || first)
            panel_load_keys(b->g, panel, at->k, a->k.component, a->k.token, b->k0 + panel * PANEL_HELD, b->p->keys,
                            a->head_size);
        panel_begin(b, panel);
    }
    block_queries(b, h);
    for (int panel = 0; panel < PANELS; ++panel)
        panel_finish(b, panel, keys);
    store_shift(b);
    store_gap(b);
    if (WANT_NUMBERS > 0)
        block_sums_add(b->g, key->numbers, WANT_NUMBERS, at->numbers);
}

FUNCTION void block_begin(const key_block *b)
{
    const mgk_attention_args *const a = b->a;
    for (int panel = 0; panel < PANELS; ++panel) {
        panel_clear_keys(b->g, panel);
        if (b->at->turn == 0)
            panel_clear_values(b->g, panel);
        /* loaded for each turn: ptxas 13.0 may lose fragments that live longer */
        panel_load_values(b->g, panel, 0, b->at->v, a->v.token, b->k0 + panel * PANEL_HELD, b->p->keys, a->value_size);
    }
}

FUNCTION void block_store_keys(const key_block *b, int keys)
{
    const mgk_attention_args *const a = b->a;
    const places *const at = b->at;
    for (int panel = 0; panel < PANELS; ++panel)
        if (WANT_K)
            PRODUCTS_FOR(r)
                store_keys(b->g, panel, r, HAS_VARIANCE ? 1.0f : a->scale * NATS_PER_UNIT,
                           array_rows_of(elements_of(at->grad_k + (at->turn + r) * a->grad_k.component),
                                         a->grad_k.token, b->k0 + panel * PANEL_HELD, keys, a->head_size),
                           is_added(&a->bound, SLOT_GRAD_K));
}

FUNCTION void block_store_values(const key_block *b, int keys)
{
    const mgk_attention_args *const a = b->a;
    for (int panel = 0; panel < PANELS; ++panel)
        if (WANT_V)
            store_values(b->g, panel, 0,
                         array_rows_of(elements_of(b->at->grad_v), a->grad_v.token, b->k0 + panel * PANEL_HELD, keys,
                                       a->value_size),
                         is_added(&a->bound, SLOT_GRAD_V));
}

/* A block of keys with all heads of its task, number `number` of the list. */
FUNCTION void block_gradients(const key_block *b, const key_task *task, components *x, places *at, int number,
                              const mod_data *data)
{
    const mgk_attention_args *const a = b->a;
    const places *const arrays = task->arrays;
    const int group = a->heads / a->kv_heads, keys = task->keys;
    for (int turn = 0; turn < TURNS; ++turn) {
        keys_begin(task, turn, at);
        block_begin(b);
        for (int i = 0; i < group; ++i) {
            const int h = task->kv_head * group + i;
            head_begin(task, h, at);
            at->modifiers = modifiers_of(a, b->p, h, arrays->slopes, data);
            if (i == group - 1)
                task_ahead(b, arrays, keys, number, a->batch * a->kv_heads);
            block_head(b, x, h, i == 0, arrays->variance, keys);
        }
        block_store_keys(b, keys);
    }
    block_store_values(b, keys);
    branch_end();
}

/* Where the work-group's sums over its tasks are. */
FUNCTION void sums_begin(places *at, const mgk_attention_args *a, const key_share *share, __global float *work)
{
    at->numbers = work + REGION(a->region[MGK_REGION_NUMBERS]) + work_group_of(a, share) * WANT_NUMBERS;
    if (WANT_READS > 0)
        at->reads =
            reads_of_group(work + REGION(a->region[MGK_REGION_READS]) + work_group_of(a, share) * a->reads_floats,
                           a->reads_floats, READ_ENTRIES);
}

KERNEL(mixture_backward)
{
    BEGIN_BUFFERS
    MAKE_CLASSES()
    if (a.heads == 0)
        return;
    const key_share share = key_share_of(&a, GROUP_ID);
    const int list = a.batch * a.kv_heads;
    const int task_begin = (int)((long)list * share.chunk / a.chunks);
    const int task_end = (int)((long)list * (share.chunk + 1) / a.chunks);

    GRAD_ENGINE_DECLARE(g)
    const mod_data data = MOD_DATA;
    components x;
    key_values key;
    STREAMED_SPACE float log_terms[TERM_STAGES * TILE_STREAMED], delta_terms[TERM_STAGES * TILE_STREAMED];
    STREAMED_SPACE float log_low_terms[HAS_LSE_LOW ? TERM_STAGES * TILE_STREAMED : 1];
    STREAMED_SPACE float top_terms[HAS_FACTORED ? TILE_STREAMED : 1], spread_terms[HAS_FACTORED ? TILE_STREAMED : 1];
    STREAMED_SPACE float alpha_terms[HAS_ROW_TERMS ? ROW_TERMS : 1][TERM_STAGES * TILE_STREAMED];
    STREAMED_SPACE float u_terms[HAS_FACTORED ? COMPONENTS : 1][TILE_STREAMED];
    float row_sums[KEPT_SUMS > 0 ? (ROWS_INSIDE ? KEPT_SUMS : 1) : 1][TILE_STREAMED];
    const query_terms t = {log_terms, log_low_terms, delta_terms,  alpha_terms,
                           u_terms,   top_terms,     spread_terms, row_sums};
    places at;
    sums_begin(&at, &a, &share, work);
    const places arrays = {.q = q,
                           .k = k,
                           .v = v,
                           .grad_o = grad_o,
                           .o = o,
                           .lse = lse,
                           .lse_low = lse_low,
                           .grad_lse = is_given(&a.bound, SLOT_GRAD_LSE) ? grad_lse : 0,
                           .grad_q = grad_q,
                           .grad_k = grad_k,
                           .grad_v = grad_v,
                           .work = work,
                           .prior = prior,
                           .variance = variance,
                           .slopes = slopes,
                           .shift = shift,
                           .bias = bias,
                           .grad_bias = grad_bias,
                           .gamma = gamma};

    for (int number = task_begin; number < task_end; ++number) {
        const problem p = placed(&a, problem_of(&a, number / a.kv_heads, lengths, lengths_q, offsets, offsets_k),
                                 positions, positions_k);
        const int keys = HAS_SEQUENCES ? p.keys : a.length_k;
        const key_task task = {&a, &p, &arrays, share, number % a.kv_heads, keys};
        /* with ROWS_INSIDE the first block finishes queries that see nothing */
        const int end = ROWS_INSIDE ? max(keys, 1) : keys;
        for (int k0 = share.split * GROUP_HELD; k0 < end; k0 = ONE_BLOCK ? end : k0 + a.splits * GROUP_HELD) {
            const key_block b = {&g, &a, &p, &at, &x, &t, &key, k0};
            block_gradients(&b, &task, &x, &at, number, &data);
        }
    }
    branch_end();
}
