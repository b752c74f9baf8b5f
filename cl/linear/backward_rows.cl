/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear family, backward, queries: with (g_i, t_i) of linear/backward.clh
 *
 *     dPhi_i = sum_{j vis i} (v_j.g_i + t_i) psi_j          from the state of keys; BY_PAIRS: and within the chunk
 *     R      = sum_i Phi_i (g_i, t_i)^T                     of the range, where a later kernel starts from it
 *
 * and from dPhi the gradients of queries, mixing and noise:
 *
 *     x_k = phi(q_k) + sigma_k eps     Phi_k = w_k relu(p_k x_k), or p_k x_k     d'_k = dPhi_k where p_k x_k > 0, or
 * dPhi_k dphi_k = w_k p_k d'_k     dp_k = sum w_k d'_k.x_k     dw_k = sum p_k d'_k.x_k     dsigma_k = sum w_k p_k
 * d'_k.eps
 *
 * A work-group takes (b, h, range of chunks), with mixed heads (b, range): heads share their queries, and are taken one
 * after the other for each chunk.
 */
#include "linear/buffers.clh"

#define ARGUMENTS mgk_linear_args
#define BUFFERS   MGK_LINEAR_ROWS_BUFFERS
#include "base/buffers.clh"

#include "linear/backward.clh"

#define WANT_MIXING (WANT_MIX || WANT_MIX_WEIGHT || WANT_NOISE)
#define WANT_DPHI   (WANT_Q || WANT_MIXING)
#define KEEP_EPS    (HAS_NOISE && WANT_NOISE)
#define KEEP_MIXED  (MIXED_HEADS && (HAS_NOISE || GENERALISED || WANT_MIXING))

/* Tiles, and what a head and a chunk have. */
typedef struct row_block {
    const mgk_linear_args *a;
    feature_place w;
    query_source queries;
    key_source keys;
    __global float *turned, *rows;
    BLOCK_SPACE float *g, *values, *pairs, *psi, *phi, *mixed, *eps, *grad, *dx;
    BLOCK_SPACE float *key_scale, *query_scale, *row_scale, *state_factor, *key_factor, *factor, *dot;
    int first, offset; /* the chunk's first row */
    span places, key_places;
    next_chunk coming;
    float m, next; /* log scale of the keys' state, before and after the chunk */
} row_block;

/* ---- dPhi ---- */

#if BY_PAIRS
/* pairs[i][j] = v_j.g_i + t_i where row i sees key j of its chunk, else 0; SHIFTED: e^(n_j - M_i) times that. */
FUNCTION void chunk_pairs(const row_block *x)
{
    tile_clear(x->pairs, CHUNK * CHUNK_ROW);
    BLOCK_SYNC();
    add_pairs(x->pairs, CHUNK_ROW, x->g, VALUE_ROW, x->values, VALUE_ROW, CHUNK, CHUNK, VALUE_SIZE + 1);
    BLOCK_SYNC();
    ITEMS_FOR(i, CHUNK) {
        for (int j = 0; j < CHUNK; j += VECTOR) {
            BLOCK_SPACE float *const at = x->pairs + i * CHUNK_ROW + j;
            real y = real_below(REAL_AT(at), j, i + 1, 0.0f);
#if SHIFTED
            const float top = x->row_scale[i] == -INFINITY ? INFINITY : x->row_scale[i];
            y *= exp2_real((real_below(REAL_AT(x->key_scale + j), j, i + 1, -INFINITY) - (real)(top)) * LOG2_E);
#endif
            REAL_PUT(at, y);
        }
    }
    BLOCK_SYNC();
}
#endif

/* dPhi of a block of features; BY_STEPS: the chunk's keys join the state. */
FUNCTION void block_gradient(row_block *x, int block)
{
#if BY_STEPS
    __global float *const state = x->turned + block * FEATURE_BLOCK;
#if SHIFTED
    rows_scale(x->psi, FEATURE_BLOCK, FEATURE_ROW, x->key_factor);
#endif
    steps_put(state, STATE_WIDTH, state, x->values, x->g, VALUE_ROW, x->psi, FEATURE_ROW, x->state_factor, x->grad,
              FEATURE_ROW, CHUNK, VALUE_SIZE + 1, FEATURE_BLOCK, &x->coming);
#else
    tile_clear(x->grad, CHUNK * FEATURE_ROW);
    BLOCK_SYNC();
    add_tile_of_state(x->grad, FEATURE_ROW, x->g, VALUE_ROW, x->turned + block * FEATURE_BLOCK, STATE_WIDTH,
                      FEATURE_BLOCK, VALUE_SIZE + 1, &x->coming);
    BLOCK_SYNC();
#if SHIFTED
    rows_scale(x->grad, FEATURE_BLOCK, FEATURE_ROW, x->state_factor);
    BLOCK_SYNC();
#endif
#if BY_PAIRS
    add_tiles(x->grad, FEATURE_ROW, x->pairs, CHUNK_ROW, x->psi, FEATURE_ROW, CHUNK, FEATURE_BLOCK, CHUNK);
    BLOCK_SYNC();
#endif
#endif
}

/* ---- the mixing ---- */

#if MIXED_HEADS
/* dPhi to dphi, and the sums for the mixing's gradients. */
FUNCTION void mixing_chain(const row_block *x, int head, __global float *sums)
{
    const mgk_linear_args *const a = x->a;
    const query_source *const s = &x->queries;
    const float p = s->mix[head], w = GENERALISED && HAS_MIX_WEIGHT ? s->weight[head] : 1.0f;
    if (GENERALISED) {
        TILE_FOR(t, n, CHUNK, FEATURE_BLOCK) {
            const int at = t * FEATURE_ROW + n;
            const real y = REAL_AT(x->mixed + at) * p;
            REAL_PUT(x->grad + at, CHOOSE(y <= (real)(0.0f), (real)(0.0f), REAL_AT(x->grad + at)));
        }
        BLOCK_SYNC();
    }
#if WANT_MIX || WANT_MIX_WEIGHT
    tiles_dot(x->dot, x->grad, x->mixed);
    BLOCK_SYNC();
    if (WANT_MIX)
        chunk_sum_add(sums + a->region[MGK_LINEAR_SUMS], x->dot, w);
    if (WANT_MIX_WEIGHT)
        chunk_sum_add(sums + a->region[MGK_LINEAR_SUMS + 1], x->dot, p);
    BLOCK_SYNC();
#endif
#if KEEP_EPS
    tiles_dot(x->dot, x->grad, x->eps);
    BLOCK_SYNC();
    chunk_sum_add(sums + a->region[MGK_LINEAR_SUMS + 2], x->dot, w * p);
    BLOCK_SYNC();
#endif
    TILE_FOR(t, n, CHUNK, FEATURE_BLOCK) {
        BLOCK_SPACE float *const at = x->grad + t * FEATURE_ROW + n;
        REAL_PUT(at, REAL_AT(at) * (w * p));
    }
    BLOCK_SYNC();
}
#endif

/* ---- a chunk of a head ---- */

/* Which of the heads that share an output this is. */
typedef struct parts {
    bool first, last;
} parts;

/* The gradient of the queries from a block's dphi. */
FUNCTION void query_chain(const row_block *x, int block, const gradient_rows *out, const parts *of, const span *places)
{
    const int head = block * FEATURE_BLOCK / FEATURES, f0 = block * FEATURE_BLOCK % FEATURES;
    const feature_tile k = feature_tile_of(&x->w, x->a, CHUNK, NULL);
    gradient_rows own = *out;
    own.out += head * x->a->grad_q.head;
    own.part += head * (CHUNK * HEAD_SIZE);
    features_chain(&k, f0, FEATURE_BLOCK, x->phi, FEATURE_ROW, x->grad, FEATURE_ROW, x->dx, HEAD_SIZE);
    BLOCK_SYNC();
    gradient_put(&own, of->first && f0 == 0, of->last && f0 + FEATURE_BLOCK == FEATURES, x->first, places, x->dx,
                 HEAD_SIZE);
    BLOCK_SYNC();
}

/* x->phi, and with mixed heads x->eps and x->mixed, of a block of features; leaves the queries in w->x. */
FUNCTION void row_features(const row_block *x, int block)
{
    plain_features(&x->w, x->a, &x->queries, block, x->first, &x->places, CHUNK, x->query_scale, x->phi);
#if MIXED_HEADS
    const int head = block * FEATURE_BLOCK / FEATURES, f0 = block * FEATURE_BLOCK % FEATURES;
    TILE_FOR(t, n, CHUNK, FEATURE_BLOCK)
        REAL_PUT(x->mixed + t * FEATURE_ROW + n, REAL_AT(x->phi + t * FEATURE_ROW + n));
    BLOCK_SYNC();
#if HAS_NOISE
    noise_add(x->a, &x->queries, sigma_of(&x->queries, head), f0, x->first, CHUNK, x->query_scale, x->mixed);
#if WANT_NOISE
    tile_clear(x->eps, CHUNK * FEATURE_ROW);
    BLOCK_SYNC();
    noise_add(x->a, &x->queries, 1.0f, f0, x->first, CHUNK, x->query_scale, x->eps);
#endif
    BLOCK_SYNC();
#endif
#endif
}

/* A block of features of a chunk's rows: their gradients, and their part of R (`state`). */
FUNCTION void row_block_gradients(row_block *x, int block, const gradient_rows *out, const parts *of,
                                  const span *out_places, __global float *sums, float factor)
{
    BLOCK_SPACE float *const features = MIXED_HEADS ? x->mixed : x->phi;
    row_features(x, block);
#if WANT_DPHI
    block_gradient(x, block);
#if MIXED_HEADS
    const int head = block * FEATURE_BLOCK / FEATURES;
    mixing_chain(x, head, sums + (long)head * x->a->splits);
#endif
#if WANT_Q
    query_chain(x, block, out, of, out_places);
#endif
#endif
#if ROW_STATES
#if MIXED_HEADS
    const int mixed_head = block * FEATURE_BLOCK / FEATURES;
    TILE_FOR(t, n, CHUNK, FEATURE_BLOCK) {
        BLOCK_SPACE float *const at = features + t * FEATURE_ROW + n;
        REAL_PUT(at, mixed_feature(&x->queries, mixed_head, REAL_AT(at)));
    }
    BLOCK_SYNC();
#endif
#if SHIFTED
    rows_scale(features, FEATURE_BLOCK, FEATURE_ROW, x->factor);
    BLOCK_SYNC();
#endif
    row_state_add(x->rows, block, factor, features, x->g);
    BLOCK_SYNC();
#endif
}

#if BY_PAIRS
/* Adds a chunk's keys to their state, a block at a time. */
FUNCTION void key_block_add(const row_block *x, int block)
{
    __global float *const to = x->turned + block * FEATURE_BLOCK;
#if SHIFTED
    const float factor = rescale(x->m, x->next);
    TILE_FOR(e, n, VALUE_SIZE + 1, FEATURE_BLOCK) {
        __global float *const at = to + e * STATE_WIDTH + n;
        REAL_PUT(at, REAL_AT(at) * factor);
    }
    rows_rescale(x->psi, CHUNK, x->key_scale, x->next);
    BLOCK_SYNC();
#endif
    add_states(to, STATE_WIDTH, x->values, VALUE_ROW, x->psi, FEATURE_ROW, VALUE_SIZE + 1, FEATURE_BLOCK, CHUNK);
    BLOCK_SYNC();
}
#endif

#if SHIFTED
/* What states and keys are multiplied by, and the state's log scale after the chunk. */
FUNCTION void row_scales(row_block *x)
{
    x->next = x->m;
#if BY_STEPS
    for (int t = 0; t < CHUNK; ++t) {
        const float before = x->next;
        x->next = fmax(before, x->key_scale[t]);
        x->state_factor[t] = rescale(before, x->next);
        x->key_factor[t] = exp_between(x->key_scale[t], x->next);
    }
#else
    if (CAUSAL)
        x->next = top_of(x->m, x->key_scale, CHUNK);
    ITEMS_FOR(i, CHUNK)
        x->state_factor[i] = x->row_scale[i] == -INFINITY ? 0.0f : exp_between(x->m, x->row_scale[i]);
    BLOCK_SYNC();
#endif
}
#endif

/* All blocks of features of a chunk of a head. `sums`: of the head's first global head and the range. */
FUNCTION void row_chunk(row_block *x, const gradient_source *source, __global const storage *v, const unit *u,
                        const gradient_rows *out, const parts *of, __global float *sums)
{
    const mgk_linear_args *const a = x->a;
    const span out_places = places_of(x->first, u->p.rows);
    float factor = 1.0f;
    BLOCK_SYNC();
    gradients_get(source, x->first, &x->places, x->g, x->row_scale);
    x->coming.count = 0;
    next_gradients_add(&x->coming, source, x->first + CHUNK, u->p.valid, NEXT_PARTS(FEATURE_BLOCK));
    next_queries_add(&x->coming, a, u, &x->queries, x->first + CHUNK, NEXT_PARTS(FEATURE_BLOCK));
    next_add(&x->coming, out->out, out->stride, a->grad_q.head, WANT_Q ? GLOBAL_HEADS : 0, x->first + CHUNK, u->p.rows,
             out->size, NEXT_PARTS(FEATURE_BLOCK));
#if CAUSAL
    next_keys_add(&x->coming, a, u, &x->keys, v, x->first + u->offset + CHUNK, NEXT_PARTS(FEATURE_BLOCK));
    values_get(v, a->v.token, x->first + u->offset, &x->key_places, a->value_size, x->values);
#if SHIFTED
    key_scales(&x->w, a, &x->keys, x->first + u->offset, &x->key_places, CHUNK, x->key_scale);
#endif
#if BY_PAIRS
    chunk_pairs(x);
#endif
#endif
#if SHIFTED
    query_scales(&x->w, a, &x->queries, x->first, &x->places, CHUNK, x->query_scale);
    x->m = x->turned[TURNED_FLOATS];
    row_scales(x);
#if ROW_STATES
    const float before = x->rows[STATE_FLOATS], top = row_state_scale(before, x->row_scale, x->factor);
    factor = rescale(before, top);
#endif
#endif
    for (int block = 0; block < STATE_BLOCKS; ++block) {
#if CAUSAL
        key_features(&x->w, a, &x->keys, block, x->first + u->offset, &x->key_places, CHUNK, x->key_scale, NULL,
                     x->psi);
#endif
        row_block_gradients(x, block, out, of, &out_places, sums, factor);
#if BY_PAIRS
        key_block_add(x, block);
#endif
    }
#if SHIFTED
    BLOCK_SYNC();
    ITEMS_FOR(only, 1) {
        x->turned[TURNED_FLOATS] = x->next;
#if ROW_STATES
        x->rows[STATE_FLOATS] = top;
#endif
    }
#endif
    BLOCK_SYNC();
}

/* ---- the kernel ---- */

KERNEL(linear_backward_rows)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const int heads = MIXED_HEADS ? a.heads : 1;
    unit u = group_unit(&a, GROUP_ID, heads, lengths, lengths_q, offsets, offsets_k);
    const problem *const p = &u.p;
    const span range = range_of(chunks_of(p, u.offset), a.splits, u.range);
    __global const storage *const values = v + p->batch * a.v.batch + p->key_base * a.v.token;
    __global float *const part = work + a.region[MGK_LINEAR_PART_Q] + GROUP_ID * (GLOBAL_HEADS * CHUNK * HEAD_SIZE);
    DECLARE_FEATURE_PLACE(place, work, &a)
    DECLARE_TILE(g, CHUNK * VALUE_ROW)
    DECLARE_TILE(phi, CHUNK * FEATURE_ROW)
    DECLARE_TILE(mixed, MIXED_HEADS ? CHUNK * FEATURE_ROW : 16)
    DECLARE_TILE(eps, KEEP_EPS ? CHUNK * FEATURE_ROW : 16)
    DECLARE_TILE(grad, WANT_DPHI ? CHUNK * FEATURE_ROW : 16)
    DECLARE_TILE(dx, WANT_Q ? CHUNK * HEAD_SIZE : 16)
    DECLARE_TILE(tile_v, CAUSAL ? CHUNK * VALUE_ROW : 16)
    DECLARE_TILE(pairs, BY_PAIRS ? CHUNK * CHUNK_ROW : 16)
    DECLARE_TILE(psi, CAUSAL ? CHUNK * FEATURE_ROW : 16)
    DECLARE_TILE(scales, SHIFTED ? 6 * CHUNK : 16)
    DECLARE_TILE(dot, CHUNK)
    row_block x = {.a = &a, .w = place};
    x.g = g, x.values = tile_v, x.pairs = pairs, x.psi = psi, x.phi = phi, x.mixed = mixed, x.eps = eps;
    x.grad = grad, x.dx = dx, x.dot = dot;
    x.key_scale = scales;
    x.query_scale = scales + (SHIFTED ? CHUNK : 0);
    x.row_scale = scales + (SHIFTED ? 2 * CHUNK : 0);
    x.state_factor = scales + (SHIFTED ? 3 * CHUNK : 0);
    x.factor = scales + (SHIFTED ? 4 * CHUNK : 0);
    x.key_factor = scales + (SHIFTED ? 5 * CHUNK : 0);

    for (int n = 0; n < heads; ++n) {
        const long slot = u.slot + (long)n * a.splits;
        __global float *const keys = work + a.region[MGK_LINEAR_STATES] + (slot + (CAUSAL ? u.range : 0)) * SLOT_FLOATS;
        __global float *const rows = work + a.region[MGK_LINEAR_ROWS] + (slot + u.range) * SLOT_FLOATS;
        unit head = u;
        head.h += n;
        float m = keys[STATE_FLOATS + 1];
        __global const float *from = keys;
#if CAUSAL
        const state_place to = state_of(rows); /* not in use yet */
        const float first = state_begin(&a, &head, u.range == 0 && is_given(&a.bound, SLOT_STATE_C), true, state_c,
                                        state_z, state_m, &to);
        if (u.range == 0) {
            m = first;
            from = rows;
        }
#endif
        BLOCK_SYNC();
        __global float *const turned = work + a.region[MGK_LINEAR_TURNED] + (slot + u.range) * TURNED_SLOT;
        for (int block = 0; block < STATE_BLOCKS; ++block)
            turned_put(turned, from, block);
        BLOCK_SYNC();
        VECTORS_FOR(i, STATE_FLOATS)
            REAL_PUT(rows + i, (real)(0.0f));
        ITEMS_FOR(only, 1) {
            rows[STATE_FLOATS] = rows[STATE_FLOATS + 1] = -INFINITY;
            turned[TURNED_FLOATS] = m;
        }
        for (int kind = 0; kind < 3; ++kind)
            if (MIXED_HEADS && a.region[MGK_LINEAR_SUMS + kind] > 0)
                ITEMS_FOR(k, COMPONENTS)
                    work[a.region[MGK_LINEAR_SUMS + kind] + (slot * COMPONENTS + k * a.splits) + u.range] = 0.0f;
        BLOCK_SYNC();
    }
    for (int c = range.first; c < range.end; ++c) {
        for (int n = 0; n < heads; ++n) {
            const long slot = u.slot + (long)n * a.splits + u.range;
            unit head = u;
            head.h += n;
            x.queries = queries_of(&a, &head, q, mix, mix_weight, noise);
            x.keys = keys_of(&a, &head, k, prior, shift);
            x.turned = work + a.region[MGK_LINEAR_TURNED] + slot * TURNED_SLOT;
            x.rows = work + a.region[MGK_LINEAR_ROWS] + slot * SLOT_FLOATS;
            x.first = c * CHUNK;
            x.places = places_of(x.first, p->valid);
            x.key_places = places_of(x.first + u.offset, p->keys);
            const gradient_source source = gradients_of(&a, &head, grad_o, o, denominator);
            const gradient_rows out = {.out = grad_q + p->batch * a.grad_q.batch +
                                              (MIXED_HEADS ? 0 : head.h) * a.grad_q.head + p->row_base * a.grad_q.token,
                                       .stride = a.grad_q.token,
                                       .size = a.head_size,
                                       .added = is_added(&a.bound, SLOT_GRAD_Q),
                                       .part = part};
            const parts of_head = {n == 0, n == heads - 1};
            row_chunk(&x, &source, values + (long)head.h * a.kv_heads / a.heads * a.v.head, &head, &out, &of_head,
                      work + (slot - u.range) * COMPONENTS + u.range);
            branch_end();
        }
    }
}
