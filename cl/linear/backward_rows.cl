/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear family, backward, queries: with (g_i, t_i) of linear/backward.clh
 *
 *     dPhi_i = sum_{j vis i} (v_j.g_i + t_i) psi_j          from the state of keys; BY_PAIRS: and within the chunk
 *     R      = sum_i Phi_i (g_i, t_i)^T                     of the range, where a later kernel starts from it
 *
 * and from dPhi the gradients of queries, mixing and noise:
 *
 *     x_k = phi(q_k) + sigma_k eps     Phi_k = w_k relu(p_k x_k), or p_k x_k
 *     d'_k = dPhi_k where p_k x_k > 0, or dPhi_k     dphi_k = w_k p_k d'_k     dsigma_k = sum w_k p_k d'_k.eps
 *     dp_k = sum w_k d'_k.x_k     dw_k = sum p_k d'_k.x_k
 *
 * A work-group takes (b, h, range of chunks), with mixed heads (b, range): heads share their queries, and take turns
 * for each chunk.
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

/* Tiles, and values of a head and a chunk. */
typedef struct row_block {
    const mgk_linear_args *a;
    const feature_place *w;
    query_source queries;
    key_source keys;
    __global float *transposed, *rows;
    BLOCK_SPACE float *g, *values, *pairs, *psi, *phi, *mixed, *eps, *grad, *dx;
    BLOCK_SPACE float *row_scale, *factor, *dot; /* row_scale[i] = M_i */
    state_scales scales;                         /* of the keys' state */
    feature_scales query_scale, key_scale;
    int first; /* the chunk's first row */
    span places, key_places, out_places;
    next_chunk coming;
} row_block;

/* ---- dPhi ---- */

/* pairs[i][j] = v_j.g_i + t_i where row i sees key j of its chunk, else 0 */
FUNCTION void chunk_pairs(const row_block *x)
{
    tile_clear(x->pairs, CHUNK * CHUNK_ROW);
    BLOCK_SYNC();
    add_pairs(x->pairs, CHUNK_ROW, x->g, VALUE_ROW, x->values, VALUE_ROW, CHUNK, CHUNK, VALUE_SIZE + 1);
    BLOCK_SYNC();
    ITEMS_FOR(i, CHUNK) {
        for (int j = 0; j < CHUNK; j += VECTOR) {
            BLOCK_SPACE float *const at = x->pairs + i * CHUNK_ROW + j;
            REAL_PUT(at, real_below(REAL_AT(at), j, i + 1, 0.0f));
        }
    }
    BLOCK_SYNC();
}

/* dPhi of a block of features; BY_STEPS: the chunk's keys join the state. */
FUNCTION void block_gradient(row_block *x, int block)
{
    if (BY_STEPS) {
        state_steps steps = transposed_steps(x->transposed, block);
        steps.a = x->values, steps.q = x->g, steps.a_row = VALUE_ROW;
        steps.b = x->psi, steps.b_row = FEATURE_ROW, steps.out = x->grad, steps.out_row = FEATURE_ROW;
        steps_put(&steps, &x->coming);
        return;
    }
    tile_clear(x->grad, CHUNK * FEATURE_ROW);
    BLOCK_SYNC();
    const state_part part = transposed_block(x->transposed, block);
    add_tile_of_state(x->grad, FEATURE_ROW, x->g, VALUE_ROW, &part, &x->coming);
    BLOCK_SYNC();
    if (BY_PAIRS) {
        add_tiles(x->grad, FEATURE_ROW, x->pairs, CHUNK_ROW, x->psi, FEATURE_ROW, CHUNK, FEATURE_BLOCK, CHUNK);
        BLOCK_SYNC();
    }
}

/* ---- the mixing ---- */

/* dPhi to dphi, and the sums for the mixing's gradients. */
FUNCTION void mixing_chain(const row_block *x, int head, __global float *sums)
{
    if (!MIXED_HEADS)
        return;
    const mgk_linear_args *const a = x->a;
    const query_source *const s = &x->queries;
    const float p = s->mix[head], w = GENERALISED && HAS_MIX_WEIGHT ? s->weight[head] : 1.0f;
    if (GENERALISED) {
        TILE_FOR(t, n, CHUNK, FEATURE_BLOCK) {
            const int at = t * FEATURE_ROW + n;
            const real y = p == 0.0f ? (real)(0.0f) : REAL_AT(x->mixed + at) * p; /* may be inf */
            REAL_PUT(x->grad + at, CHOOSE(y <= (real)(0.0f), (real)(0.0f), REAL_AT(x->grad + at)));
        }
        BLOCK_SYNC();
    }
    if (WANT_MIX || WANT_MIX_WEIGHT) {
        tiles_dot(x->dot, x->grad, x->mixed);
        BLOCK_SYNC();
        if (WANT_MIX)
            chunk_sum_add(sums + a->region[MGK_LINEAR_SUMS], x->dot, w);
        if (WANT_MIX_WEIGHT)
            chunk_sum_add(sums + a->region[MGK_LINEAR_SUMS + 1], x->dot, p);
        BLOCK_SYNC();
    }
    if (KEEP_EPS) {
        tiles_dot(x->dot, x->grad, x->eps);
        BLOCK_SYNC();
        chunk_sum_add(sums + a->region[MGK_LINEAR_SUMS + 2], x->dot, w * p);
        BLOCK_SYNC();
    }
    TILE_FOR(t, n, CHUNK, FEATURE_BLOCK) {
        BLOCK_SPACE float *const at = x->grad + t * FEATURE_ROW + n;
        REAL_PUT(at, REAL_AT(at) * (w * p));
    }
    BLOCK_SYNC();
}

/* ---- a chunk of a head ---- */

/* Place among the heads that share an output. */
typedef struct parts {
    bool first, last;
} parts;

/* The gradient of the queries from a block's dphi. */
FUNCTION void query_chain(const row_block *x, int block, const gradient_rows *out, const parts *of)
{
    const int head = block * FEATURE_BLOCK / FEATURES, f0 = block * FEATURE_BLOCK % FEATURES;
    const feature_tile k = feature_tile_of(x->w, x->a, CHUNK, NULL);
    gradient_rows own = *out;
    own.out = elements_at(own.out, head * x->a->grad_q.head);
    own.part += head * (CHUNK * HEAD_SIZE);
    features_chain(&k, f0, FEATURE_BLOCK, x->phi, x->grad, FEATURE_ROW, x->dx);
    BLOCK_SYNC();
    gradient_put(&own, of->first && f0 == 0, of->last && f0 + FEATURE_BLOCK == FEATURES, x->first, &x->out_places,
                 x->dx, HEAD_SIZE);
    BLOCK_SYNC();
}

/* Makes x->phi, and with mixed heads x->eps and x->mixed, of a block of features; leaves the queries in w->x. */
FUNCTION void row_features(const row_block *x, int block)
{
    plain_features(&x->queries, block, x->first, &x->places, CHUNK, &x->query_scale, x->row_scale, x->phi);
    if (!MIXED_HEADS)
        return;
    TILE_FOR(t, n, CHUNK, FEATURE_BLOCK)
        REAL_PUT(x->mixed + t * FEATURE_ROW + n, REAL_AT(x->phi + t * FEATURE_ROW + n));
    if (KEEP_EPS)
        tile_clear(x->eps, CHUNK * FEATURE_ROW);
    BLOCK_SYNC();
    const float sigma = HAS_NOISE ? sigma_of(&x->queries, block * FEATURE_BLOCK / FEATURES) : 0.0f;
    noise_add(&x->queries, sigma, block, x->first, CHUNK, &x->query_scale, x->mixed);
    if (KEEP_EPS)
        noise_add(&x->queries, 1.0f, block, x->first, CHUNK, &x->query_scale, x->eps);
}

/* Makes features of rows, relative to the keys' scales, relative to the scales of R. */
FUNCTION void range_rescale(const row_block *x, int block, BLOCK_SPACE float *features)
{
    __global const float *const scale = x->rows + STATE_FLOATS + block * FEATURE_BLOCK;
    BLOCK_SYNC();
    VECTORS_FOR(n, FEATURE_BLOCK) {
        const real r = REAL_AT(scale + n), m = CHOOSE(r == (real)(-INFINITY), r, -r);
        REAL_PUT(x->factor + n, rescale_reals(m, REAL_AT(x->scales.next + block * FEATURE_BLOCK + n)));
    }
    BLOCK_SYNC();
    TILE_FOR(t, n, CHUNK, FEATURE_BLOCK) {
        BLOCK_SPACE float *const at = features + t * FEATURE_ROW + n;
        REAL_PUT(at, REAL_AT(at) * REAL_AT(x->factor + n));
    }
    BLOCK_SYNC();
}

/* Gradients of a block of features of a chunk's rows, and their part of R. */
FUNCTION void row_block_gradients(row_block *x, int block, const gradient_rows *out, const parts *of,
                                  __global float *sums)
{
    BLOCK_SPACE float *const features = MIXED_HEADS ? x->mixed : x->phi;
    chunk_prefetch(&x->coming);
    row_features(x, block);
    chunk_prefetch(&x->coming);
    const int head = block * FEATURE_BLOCK / FEATURES;
    if (WANT_DPHI) {
        block_gradient(x, block);
        mixing_chain(x, head, sums + (long)head * x->a->splits);
    }
    if (WANT_Q)
        query_chain(x, block, out, of);
    if (ROW_STATES) {
        features_mix(&x->queries, head, CHUNK, features);
        if (CHUNK_SPANS)
            range_rescale(x, block, features);
        row_state_add(x->rows, block, features, x->g);
        BLOCK_SYNC();
    }
}

/* All blocks of features of a head's chunk, or of its span of tokens from place `begin` on; returns the span's end.
 * `sums`: of the head's first global head and the range. */
FUNCTION int row_chunk(row_block *x, int begin, const gradient_source *source, __global const v_element *v,
                       const unit *u, const gradient_rows *out, const parts *of, __global float *sums)
{
    const mgk_linear_args *const a = x->a;
    x->places = places_of(x->first, u->p.valid), x->out_places = places_of(x->first, u->p.rows);
    x->key_places = places_of(x->first + u->offset, u->p.keys);
    BLOCK_SYNC();
    const int end = span_begin(&x->keys, x->first + u->offset, begin, &x->key_places, CHUNK, &x->scales, x->psi);
    x->places = span_within(&x->places, begin, end), x->out_places = span_within(&x->out_places, begin, end);
    gradients_get(source, x->first, &x->places, x->g, x->row_scale);
    x->coming.count = 0;
    next_gradients_add(&x->coming, source, x->first + CHUNK, u->p.valid, NEXT_PARTS(FEATURE_BLOCK));
    next_queries_add(&x->coming, a, u, &x->queries, x->first + CHUNK, NEXT_PARTS(FEATURE_BLOCK));
    const array_tokens results = {out->out, out->stride, a->grad_q.head, WANT_Q ? GLOBAL_HEADS : 0, out->size};
    next_add(&x->coming, &results, x->first + CHUNK, u->p.rows, NEXT_PARTS(FEATURE_BLOCK));
    if (CAUSAL) {
        next_keys_add(&x->coming, a, u, &x->keys, v, x->first + u->offset + CHUNK, NEXT_PARTS(FEATURE_BLOCK));
        values_get(v, a->v.token, x->first + u->offset, &x->key_places, a->value_size, x->values);
    }
    if (BY_PAIRS)
        chunk_pairs(x);
    for (int block = 0; block < STATE_BLOCKS; ++block) {
        if (CHUNK_SPANS) {
            factors_put(block, &x->scales, x->factor);
            transposed_rescale(x->transposed, block, x->factor);
        }
        if (CAUSAL)
            key_features(&x->keys, block, x->first + u->offset, &x->key_places, CHUNK, &x->key_scale, NULL, x->psi);
        row_block_gradients(x, block, out, of, sums);
        if (BY_PAIRS) {
            transposed_add(x->transposed, block, x->values, x->psi);
            BLOCK_SYNC();
        }
    }
    if (CHUNK_SPANS)
        scales_advance(&x->scales);
    BLOCK_SYNC();
    return end;
}

/* First scales of a head: of the transposed state of keys, from numbers with scales at `sum` and exponents at `top`; of
 * R, the scales of the keys before the range, negative. */
FUNCTION void row_scales_begin(const state_scales *transposed, const state_scales *rows, __global const float *sum,
                               __global const float *top)
{
    if (!SHIFTED)
        return;
    VECTORS_FOR(n, STATE_WIDTH) { /* `sum` and `top` may be the scales of R */
        const real m = REAL_AT(top + n);
        REAL_PUT(transposed->sum + n, REAL_AT(sum + n));
        REAL_PUT(transposed->top + n, m);
        REAL_PUT(transposed->next + n, m);
        REAL_PUT(rows->sum + n, CHOOSE(m == (real)(-INFINITY), m, -m));
        REAL_PUT(rows->top + n, (real)(-INFINITY));
    }
}

/* Begins a head's range: the transposed state of the keys before it, R = 0, the scales of both, and the sums for the
 * mixing's gradients. */
FUNCTION void head_begin(const mgk_linear_args *a, const unit *group, int n, const given_state *given,
                         __global float *work)
{
    const unit u = head_of_group(group, n, a->splits);
    __global float *const first = work + a->region[MGK_LINEAR_STATES] + u.slot * SLOT_FLOATS;
    __global float *const keys = first + (CAUSAL ? u.range : 0) * SLOT_FLOATS;
    __global float *const rows = work + a->region[MGK_LINEAR_ROWS] + (u.slot + u.range) * SLOT_FLOATS;
    __global float *const transposed = work + a->region[MGK_LINEAR_TRANSPOSED] + (u.slot + u.range) * TRANSPOSED_SLOT;
    const state_scales of_keys = scales_of(keys + STATE_FLOATS), of_rows = scales_of(rows + STATE_FLOATS);
    const state_scales own = scales_of(transposed + TRANSPOSED_FLOATS);
    __global const float *from = keys, *sum = of_keys.top, *top = of_keys.top;
    float m = -INFINITY;
    const state_place to = state_of(rows); /* not in use yet */
    if (CAUSAL)
        m = state_begin(a, &u, u.range == 0 && is_given(&a->bound, SLOT_STATE_C), true, given, &to, &of_rows);
    if (CAUSAL && u.range == 0)
        from = rows, sum = of_rows.sum, top = of_rows.top;
    BLOCK_SYNC();
    for (int block = 0; block < STATE_BLOCKS; ++block)
        transposed_put(transposed, from, block);
    BLOCK_SYNC();
    VECTORS_FOR(i, STATE_FLOATS)
        REAL_PUT(rows + i, (real)(0.0f));
    row_scales_begin(&own, &of_rows, sum, top);
    if ((!CAUSAL || u.range > 0) && SHIFTED)
        m = scales_of(first + STATE_FLOATS).m[0];
    if (SHIFTED)
        ITEMS_FOR(only, 1)
            own.m[0] = m;
    for (int kind = 0; kind < 3; ++kind)
        if (MIXED_HEADS && a->region[MGK_LINEAR_SUMS + kind] > 0)
            ITEMS_FOR(k, COMPONENTS)
                work[a->region[MGK_LINEAR_SUMS + kind] + (u.slot * COMPONENTS + k * a->splits) + u.range] = 0.0f;
    BLOCK_SYNC();
}

/* Goes to a head's slots. */
FUNCTION void head_go_to(row_block *x, const unit *u, __global float *work)
{
    const mgk_linear_args *const a = x->a;
    x->transposed = work + a->region[MGK_LINEAR_TRANSPOSED] + (u->slot + u->range) * TRANSPOSED_SLOT;
    x->rows = work + a->region[MGK_LINEAR_ROWS] + (u->slot + u->range) * SLOT_FLOATS;
    x->scales = scales_of(x->transposed + TRANSPOSED_FLOATS);
    x->query_scale.scale = x->key_scale.scale = x->scales.next;
    x->query_scale.sign = 1.0f, x->key_scale.sign = -1.0f;
}

/* SHIFTED: leaves the largest exponent up to the end of a head's range. */
FUNCTION void head_end(const mgk_linear_args *a, const unit *group, int n, __global float *work)
{
    const unit u = head_of_group(group, n, a->splits);
    const state_scales own =
        scales_of(work + a->region[MGK_LINEAR_TRANSPOSED] + (u.slot + u.range) * TRANSPOSED_SLOT + TRANSPOSED_FLOATS);
    BLOCK_SYNC();
    ITEMS_FOR(only, 1)
        own.m[0] = fmax(own.m[0], largest_scale(own.top));
}

/* ---- the kernel ---- */

KERNEL(linear_backward_rows)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const int heads = MIXED_HEADS ? a.heads : 1;
    const unit u = group_unit(&a, GROUP_ID, heads, lengths, lengths_q, offsets, offsets_k);
    const problem *const p = &u.p;
    const span range = range_of(chunks_of(p, u.offset), a.splits, u.range);
    const given_state given = {state_c, state_z, state_m};
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
    DECLARE_TILE(row_scale, SHIFTED ? CHUNK : 16)
    DECLARE_TILE(factor, SHIFTED ? FEATURE_BLOCK : 16)
    DECLARE_TILE(dot, CHUNK)
    row_block x = {.a = &a, .w = &place};
    x.g = g, x.values = tile_v, x.pairs = pairs, x.psi = psi, x.phi = phi, x.mixed = mixed, x.eps = eps;
    x.grad = grad, x.dx = dx, x.dot = dot, x.row_scale = row_scale, x.factor = factor;
    gradient_rows out = {.stride = a.grad_q.token, .size = a.head_size, .added = is_added(&a.bound, SLOT_GRAD_Q)};
    out.part = work + a.region[MGK_LINEAR_PART_Q] + GROUP_ID * (GLOBAL_HEADS * CHUNK * HEAD_SIZE);

    for (int n = 0; n < heads; ++n)
        head_begin(&a, &u, n, &given, work);
    for (int c = range.first; c < range.end; ++c) {
        for (int n = 0; n < heads; ++n) {
            const unit head = head_of_group(&u, n, a.splits);
            const parts of_heads = {n == 0, n == heads - 1};
            __global const v_element *const values =
                v + p->batch * a.v.batch + p->key_base * a.v.token + (long)head.h * a.kv_heads / a.heads * a.v.head;
            const gradient_source source = gradients_of(&a, &head, grad_o, o, denominator);
            x.queries = queries_of(&a, &place, &head, q, mix, mix_weight, noise);
            x.keys = keys_of(&a, &place, &head, k, prior, shift);
            x.first = c * CHUNK;
            head_go_to(&x, &head, work);
            out.out = elements_of(grad_q + p->batch * a.grad_q.batch + (MIXED_HEADS ? 0 : head.h) * a.grad_q.head +
                                  p->row_base * a.grad_q.token);
            for (int begin = 0; begin < CHUNK;) {
                const int end = row_chunk(&x, begin, &source, values, &head, &out, &of_heads,
                                          work + head.slot * COMPONENTS + u.range);
                begin = CHUNK_SPANS ? end : CHUNK;
            }
            branch_end();
        }
    }
    for (int n = 0; n < (SHIFTED ? heads : 0); ++n)
        head_end(&a, &u, n, work);
}
