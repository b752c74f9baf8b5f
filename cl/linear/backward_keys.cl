/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear family, backward, keys and values: with (g_i, t_i) of linear/backward.clh
 *
 *     dv_j   = sum_{i sees j} (psi_j.Phi_i) g_i            dpsi_j = sum_{i sees j} (v_j.g_i + t_i) Phi_i
 *
 * from the state R of rows. CAUSAL: ranges take their last chunk first. R is of the rows behind each key (BY_STEPS), or
 * behind the chunk, whose own rows give pairs (BY_PAIRS). From dpsi the gradients of keys, prior and shifts:
 *
 *     dphi_jr = pi_r(j) dpsi_j     dpi_r(j) = dpsi_j.phi(k_jr)     db_r = sum_j dk_jr
 *
 * A work-group takes (b, head of keys, range of chunks). For each chunk it takes the heads that share keys one after
 * the other.
 */
#include "linear/buffers.clh"

#define ARGUMENTS mgk_linear_args
#define BUFFERS   MGK_LINEAR_KEYS_BUFFERS
#include "base/buffers.clh"

#include "linear/backward.clh"

#define WANT_DPSI (WANT_K || WANT_PRIOR || WANT_SHIFT)
/* 1: features of a chunk's components are kept for their gradients; 0: they are made again. */
#define KEEP_PARTS (KEY_SUM && WANT_DPSI && VECTOR > 1 && COMPONENTS <= MGK_LINEAR_KEPT)

/* Distance from one component's or global head's gradient to the next. */
#define GRAD_COMPONENT(a) (MIXED_HEADS ? (a)->grad_k.head : (a)->grad_k.component)

typedef struct key_chunk {
    const mgk_linear_args *a;
    const feature_place *w;
    query_source queries;
    key_source keys;
    __global float *transposed, *rows; /* R */
    __global float *priors, *shifts;
    BLOCK_SPACE float *g, *values, *weights, *pairs, *psi, *phi, *part, *grad, *dx, *dv;
    BLOCK_SPACE float *row_scale, *factor, *dot; /* row_scale[i] = M_i */
    state_scales scales;                         /* of R */
    feature_scales query_scale, key_scale;
    next_chunk coming;
    int first, key_first; /* the chunk's first row and key */
    span places, key_places, out_places;
    bool first_head, last_head, first_value, last_value; /* among the heads that share keys; among values */
} key_chunk;

/* ---- the pairs of a chunk ---- */

/* x[j][i] = 0 where row i does not see key j */
FUNCTION void pairs_mask(BLOCK_SPACE float *pairs)
{
    TILE_FOR(j, i, CHUNK, CHUNK) {
        BLOCK_SPACE float *const at = pairs + j * CHUNK_ROW + i;
        const real seen = real_below((real)(0.0f), i, j, 1.0f);
        REAL_PUT(at, CHOOSE(seen == (real)(0.0f), (real)(0.0f), REAL_AT(at)));
    }
}

/* pairs[j][i] = v_j.g_i + t_i */
FUNCTION void value_pairs(const key_chunk *x)
{
    tile_clear(x->pairs, CHUNK * CHUNK_ROW);
    tile_clear(x->weights, CHUNK * CHUNK_ROW);
    BLOCK_SYNC();
    add_pairs(x->pairs, CHUNK_ROW, x->values, VALUE_ROW, x->g, VALUE_ROW, CHUNK, CHUNK, VALUE_SIZE + 1);
    BLOCK_SYNC();
    pairs_mask(x->pairs);
    BLOCK_SYNC();
}

/* weights[j][i] += a block's part of psi_j.Phi_i */
FUNCTION void feature_pairs(const key_chunk *x)
{
    add_pairs(x->weights, CHUNK_ROW, x->psi, FEATURE_ROW, x->phi, FEATURE_ROW, CHUNK, CHUNK, FEATURE_BLOCK);
    BLOCK_SYNC();
}

/* ---- gradients of the keys ---- */

/* Adds dpi_r: per key, or the range's sum. */
FUNCTION void prior_add(const key_chunk *x, int r, BLOCK_SPACE const float *phi, bool is_first)
{
    const mgk_linear_args *const a = x->a;
    tiles_dot(x->dot, x->grad, phi);
    BLOCK_SYNC();
    if (a->prior.token != 0) {
        __global float *const out = x->priors + (long)r * a->length_k + x->key_first;
        ITEMS_FOR(j, CHUNK) {
            if (j >= x->out_places.first && j < x->out_places.end) {
                const float y = j >= x->key_places.first && j < x->key_places.end ? x->dot[j] : 0.0f;
                out[j] = is_first ? y : out[j] + y;
            }
        }
    } else {
        ITEMS_FOR(only, 1) {
            float sum = 0.0f;
            for (int j = x->key_places.first; j < x->key_places.end; ++j)
                sum += x->dot[j];
            x->priors[r * a->splits] += sum;
        }
    }
    BLOCK_SYNC();
}

/* Adds db_r: the range's sums. */
FUNCTION void shift_add(const key_chunk *x, int r)
{
    const mgk_linear_args *const a = x->a;
    VECTORS_FOR(d, HEAD_SIZE) {
        real sum = (real)(0.0f);
        for (int j = x->key_places.first; j < x->key_places.end; ++j)
            sum += REAL_AT(x->dx + j * HEAD_SIZE + d);
        float part[VECTOR];
        REAL_PUT(part, sum);
        for (int l = 0; l < VECTOR; ++l)
            if (d + l < a->head_size)
                x->shifts[((long)r * a->head_size + d + l) * a->splits] += part[l];
    }
    BLOCK_SYNC();
}

/* From a block's dpsi to the gradients of component r, with keys in w->x and features in `phi`; `grad` holds the
 * features' gradient. */
FUNCTION void component_chain(const key_chunk *x, int r, int f0, BLOCK_SPACE const float *phi,
                              BLOCK_SPACE const float *grad, const gradient_rows *out)
{
    const feature_tile k = feature_tile_of(x->w, x->a, CHUNK, NULL);
    gradient_rows own = *out;
    if (!KEYS_SHIFTED) {
        own.out = elements_at(own.out, r * GRAD_COMPONENT(x->a));
        own.part += r * (CHUNK * HEAD_SIZE);
    }
    features_chain(&k, f0, FEATURE_BLOCK, phi, grad, FEATURE_ROW, x->dx);
    BLOCK_SYNC();
    if (WANT_SHIFT)
        shift_add(x, r);
    if (WANT_K) {
        const bool first_part = KEYS_SHIFTED == 0 || r == 0, last_part = KEYS_SHIFTED == 0 || r == COMPONENTS - 1;
        gradient_put(&own, x->first_head && first_part && f0 == 0,
                     x->last_head && last_part && f0 + FEATURE_BLOCK == FEATURES, x->key_first, &x->out_places, x->dx,
                     HEAD_SIZE);
        BLOCK_SYNC();
    }
}

/* From a block's dpsi, in `grad`, to all gradients. */
FUNCTION void key_chain(const key_chunk *x, int block, const gradient_rows *out)
{
    const int head = block * FEATURE_BLOCK / FEATURES, f0 = block * FEATURE_BLOCK % FEATURES;
    if (!(KEY_SUM || WANT_PRIOR)) {
        component_chain(x, head, f0, x->psi, x->grad, out);
        return;
    }
    for (int r = 0; r < COMPONENTS; ++r) {
        const feature_tile k =
            with_scales(keys_get(&x->keys, r, x->key_first, &x->key_places, CHUNK), &x->key_scale, block);
        BLOCK_SPACE float *const phi = x->part + (KEEP_PARTS ? r * CHUNK * FEATURE_ROW : 0);
        if (!KEEP_PARTS) {
            shifts_put(x->w, NULL, CHUNK);
            if (SHIFTED)
                BLOCK_SYNC();
            features_put(&k, f0, FEATURE_BLOCK, phi, FEATURE_ROW);
            BLOCK_SYNC();
        }
        if (WANT_PRIOR)
            prior_add(x, r, phi, f0 == 0);
        if (!(WANT_K || WANT_SHIFT))
            continue;
        TILE_FOR(j, n, CHUNK, FEATURE_BLOCK) {
            const int at = j * FEATURE_ROW + n;
            const float pi = x->w->weight[j];
            REAL_PUT(x->psi + at, pi != 0.0f ? REAL_AT(x->grad + at) * pi : (real)(0.0f));
        }
        BLOCK_SYNC();
        component_chain(x, r, f0, phi, x->psi, out);
    }
}

/* ---- a chunk of a head ---- */

/* From the last row on: a row's block of features joins R, which gives dv and dpsi of the same row. */
FUNCTION void row_steps(key_chunk *x, int block)
{
    const int last = CHUNK - 1;
    __global float *const rows = x->rows + (long)block * FEATURE_BLOCK * VALUE_SIZE;
    BLOCK_SPACE const float *const phi = x->phi + last * FEATURE_ROW, *const g = x->g + last * VALUE_ROW;
    state_steps of_values = {.c = rows, .from = rows, .c_row = VALUE_SIZE};
    of_values.rows = FEATURE_BLOCK, of_values.cols = VALUE_SIZE, of_values.tokens = CHUNK;
    of_values.a = phi, of_values.q = x->psi + last * FEATURE_ROW, of_values.a_row = -FEATURE_ROW;
    of_values.b = g, of_values.b_row = -VALUE_ROW;
    of_values.out = x->dv + last * VALUE_SIZE, of_values.out_row = -VALUE_SIZE;
    steps_add(&of_values, &x->coming);
    state_steps of_features = transposed_steps(x->transposed, block);
    of_features.a = g, of_features.q = x->values + last * VALUE_ROW, of_features.a_row = -VALUE_ROW;
    of_features.b = phi, of_features.b_row = -FEATURE_ROW;
    of_features.out = x->grad + last * FEATURE_ROW, of_features.out_row = -FEATURE_ROW;
    steps_put(&of_features, &x->coming);
}

/* A block's part of dv and of the chunk's weights, and its dpsi. */
FUNCTION void state_gradients(key_chunk *x, int block)
{
    if (CAUSAL && WANT_V)
        feature_pairs(x);
    if (WANT_V) {
        const state_part part = {x->rows + (long)block * FEATURE_BLOCK * VALUE_SIZE, VALUE_SIZE, FEATURE_BLOCK,
                                 VALUE_SIZE};
        add_tile_of_state(x->dv, VALUE_SIZE, x->psi, FEATURE_ROW, &part, &x->coming);
    }
    if (WANT_DPSI) {
        const state_part part = transposed_block(x->transposed, block);
        tile_clear(x->grad, CHUNK * FEATURE_ROW);
        BLOCK_SYNC();
        add_tile_of_state(x->grad, FEATURE_ROW, x->values, VALUE_ROW, &part, &x->coming);
        BLOCK_SYNC();
    }
}

/* A block of features: its part of dv, the gradients from its dpsi, and the chunk's part of R. */
FUNCTION void key_block(key_chunk *x, int block, const gradient_rows *out)
{
    if (CHUNK_SPANS) {
        const state_place rows = state_of(x->rows);
        state_advance(&rows, block, &x->scales, x->factor);
        transposed_rescale(x->transposed, block, x->factor);
    }
    if (CAUSAL)
        query_features(&x->queries, block, x->first, &x->places, CHUNK, &x->query_scale, x->row_scale, x->phi);
    chunk_prefetch(&x->coming);
    /* last, so that its keys stay in w.x */
    key_features(&x->keys, block, x->key_first, &x->key_places, CHUNK, &x->key_scale, KEEP_PARTS ? x->part : NULL,
                 x->psi);
    chunk_prefetch(&x->coming);
    if (BY_STEPS)
        row_steps(x, block);
    else
        state_gradients(x, block);
    if (BY_PAIRS && WANT_DPSI) {
        add_tiles(x->grad, FEATURE_ROW, x->pairs, CHUNK_ROW, x->phi, FEATURE_ROW, CHUNK, FEATURE_BLOCK, CHUNK);
        BLOCK_SYNC();
    }
    if (WANT_DPSI)
        key_chain(x, block, out);
    if (BY_PAIRS) {
        BLOCK_SYNC();
        row_state_add(x->rows, block, x->phi, x->g);
        transposed_add(x->transposed, block, x->g, x->phi);
        BLOCK_SYNC();
    }
}

/* Exponents of a block of features of the chunk's rows, with noise, less M_i; -inf for absent ones. */
FUNCTION void row_exponents(const key_chunk *x, int block)
{
    const int head = block * FEATURE_BLOCK / FEATURES;
    const head_part part = part_of_head(&x->queries, head);
    const feature_tile k = queries_get(&x->queries, head, x->first, &x->places, CHUNK);
    ITEMS_FOR(t, CHUNK)
        x->w->weight[t] = part.own ? 1.0f : 0.0f;
    BLOCK_SYNC();
    exponents_put(&k, block * FEATURE_BLOCK % FEATURES, FEATURE_BLOCK, x->w->weight, false, x->phi, FEATURE_ROW);
    BLOCK_SYNC();
    TILE_FOR(t, n, CHUNK, FEATURE_BLOCK) {
        BLOCK_SPACE float *const at = x->phi + t * FEATURE_ROW + n;
        const bool has_part = part.factor != -INFINITY && x->row_scale[t] != -INFINITY;
        const real y = max_real(REAL_AT(at), (real)(part.noise)) - x->row_scale[t];
        REAL_PUT(at, has_part ? y : (real)(-INFINITY));
    }
    BLOCK_SYNC();
}

/* Next scales of R, with the span of the chunk's rows before place `end`; returns the span's first place. Other rows
 * lose their M_i. */
FUNCTION int row_scales(const key_chunk *x, int end)
{
    int begin = 0;
    bool cut = true;
    while (cut) {
        cut_begin(x->w);
        for (int block = 0; block < STATE_BLOCKS; ++block) {
            row_exponents(x, block);
            columns_max(x->w, x->phi + (end - 1) * FEATURE_ROW, -FEATURE_ROW, end - begin,
                        x->scales.top + block * FEATURE_BLOCK, x->scales.next + block * FEATURE_BLOCK);
        }
        const int count = cut_end(x->w);
        cut = count < end - begin;
        if (cut)
            begin = end - count;
    }
    BLOCK_SYNC();
    ITEMS_FOR(t, begin)
        x->row_scale[t] = -INFINITY;
    BLOCK_SYNC();
    return begin;
}

/* All blocks of features of a head's chunk, or of its span of tokens before place `end`; returns the span's first
 * place. */
FUNCTION int key_chunk_gradients(key_chunk *x, int end, const unit *u, const gradient_source *source,
                                 __global const v_element *v, const gradient_rows *out, const gradient_rows *out_v)
{
    const mgk_linear_args *const a = x->a;
    const int parts =
        max((WANT_V || BY_STEPS ? NEXT_PARTS(VALUE_SIZE) : 0) + (WANT_DPSI || BY_STEPS ? NEXT_PARTS(FEATURE_BLOCK) : 0),
            1); /* states' gradients alone */
    int begin = 0;
    x->places = places_of(x->first, u->p.valid);
    x->key_places = places_of(x->key_first, u->p.keys);
    x->out_places = places_of(x->key_first, HAS_SEQUENCES ? u->p.keys : a->length_k);
    x->places = span_within(&x->places, 0, end);
    if (CAUSAL)
        gradients_get(source, x->first, &x->places, x->g, x->row_scale);
    if (CHUNK_SPANS)
        begin = row_scales(x, end);
    x->key_places = span_within(&x->key_places, begin, end), x->out_places = span_within(&x->out_places, begin, end);
    x->coming.count = 0;
    next_keys_add(&x->coming, a, u, &x->keys, v, x->key_first - CHUNK, parts);
    const array_tokens results = {out->out, out->stride, GRAD_COMPONENT(a),
                                  WANT_K ? (KEYS_SHIFTED ? 1 : COMPONENTS) : 0, out->size};
    const array_tokens results_v = {out_v->out, out_v->stride, 0, WANT_V, out_v->size};
    next_add(&x->coming, &results, x->key_first - CHUNK, u->p.keys, parts);
    next_add(&x->coming, &results_v, x->key_first - CHUNK, u->p.keys, parts);
    if (CAUSAL) {
        next_queries_add(&x->coming, a, u, &x->queries, x->first - CHUNK, parts);
        next_gradients_add(&x->coming, source, x->first - CHUNK, u->p.valid, parts);
    }
    BLOCK_SYNC();
    values_get(v, a->v.token, x->key_first, &x->key_places, a->value_size, x->values);
    if (BY_STEPS ? STATE_BLOCKS > 1 : WANT_V)
        tile_clear(x->dv, CHUNK * VALUE_SIZE);
    if (BY_PAIRS)
        value_pairs(x);
    BLOCK_SYNC();
    for (int block = 0; block < STATE_BLOCKS; ++block)
        key_block(x, block, out);
    BLOCK_SYNC();
    if (CHUNK_SPANS)
        scales_advance(&x->scales);
    if (BY_PAIRS && WANT_V) {
        pairs_mask(x->weights);
        BLOCK_SYNC();
        add_tiles(x->dv, VALUE_SIZE, x->weights, CHUNK_ROW, x->g, VALUE_ROW, CHUNK, VALUE_SIZE, CHUNK);
        BLOCK_SYNC();
    }
    if (WANT_V)
        gradient_put(out_v, x->first_value, x->last_value, x->key_first, &x->out_places, x->dv, VALUE_SIZE);
    BLOCK_SYNC();
    return begin;
}

/* ---- the kernel ---- */

/* The range's chunks, with chunks of keys beyond the problem's, whose gradients are 0. */
FUNCTION span key_range(const mgk_linear_args *a, const unit *u, int keys)
{
    span range = range_of(chunks_of(&u->p, u->offset), a->splits, u->range);
    if (keys > 0 && u->range == 0)
        range.first = min(range.first, floor_divide(-u->offset, CHUNK));
    if (keys > 0 && u->range == a->splits - 1)
        range.end = max(range.end, floor_divide(keys - 1 - u->offset, CHUNK) + 1);
    return range;
}

/* Begins a head's range: the transposed state of the rows behind it, and the sums for gradients of priors and shifts.
 */
FUNCTION void head_begin(const mgk_linear_args *a, const unit *group, int n, __global float *work)
{
    const unit u = head_of_group(group, n, a->splits);
    const long row = u.slot / a->splits;
    __global float *const rows = work + a->region[MGK_LINEAR_ROWS] + (u.slot + (CAUSAL ? u.range : 0)) * SLOT_FLOATS;
    __global float *const transposed = work + a->region[MGK_LINEAR_TRANSPOSED] + (u.slot + u.range) * TRANSPOSED_SLOT;
    for (int block = 0; block < STATE_BLOCKS; ++block)
        transposed_put(transposed, rows, block);
    const state_scales scales = scales_of(rows + STATE_FLOATS);
    if (CHUNK_SPANS)
        scales_copy(scales.sum, scales.top);
    if (WANT_PRIOR && a->prior.token == 0)
        ITEMS_FOR(r, COMPONENTS)
            work[a->region[MGK_LINEAR_SUMS] + (row * COMPONENTS + r) * a->splits + u.range] = 0.0f;
    if (WANT_SHIFT)
        ITEMS_FOR(r, COMPONENTS * a->head_size)
            work[a->region[MGK_LINEAR_SUMS + 1] + (row * COMPONENTS * a->head_size + r) * a->splits + u.range] = 0.0f;
    BLOCK_SYNC();
}

/* Goes to a head's slots and sums. */
FUNCTION void head_go_to(key_chunk *x, const unit *u, __global float *work)
{
    const mgk_linear_args *const a = x->a;
    const problem *const p = &u->p;
    const long row = u->slot / a->splits;
    x->transposed = work + a->region[MGK_LINEAR_TRANSPOSED] + (u->slot + u->range) * TRANSPOSED_SLOT;
    x->rows = work + a->region[MGK_LINEAR_ROWS] + (u->slot + (CAUSAL ? u->range : 0)) * SLOT_FLOATS;
    x->priors = work + a->region[MGK_LINEAR_SUMS] +
                (a->prior.token != 0 ? (p->batch * a->heads + u->h) * COMPONENTS * a->length_k + p->key_base
                                     : row * COMPONENTS * a->splits + u->range);
    x->shifts = work + a->region[MGK_LINEAR_SUMS + 1] + row * COMPONENTS * a->head_size * a->splits + u->range;
    x->scales = scales_of(x->rows + STATE_FLOATS);
    x->query_scale.scale = x->key_scale.scale = CAUSAL ? x->scales.next : x->scales.top;
    x->query_scale.sign = -1.0f, x->key_scale.sign = 1.0f;
}

/* BY_STEPS: R's z of a head's range, the last row of its transposed state. */
FUNCTION void head_end(const mgk_linear_args *a, const unit *group, int n, __global float *work)
{
    const unit u = head_of_group(group, n, a->splits);
    const long slot = u.slot + u.range;
    __global float *const z = work + a->region[MGK_LINEAR_ROWS] + slot * SLOT_FLOATS + STATE_WIDTH * VALUE_SIZE;
    __global const float *const last =
        work + a->region[MGK_LINEAR_TRANSPOSED] + slot * TRANSPOSED_SLOT + VALUE_SIZE * STATE_WIDTH;
    VECTORS_FOR(i, STATE_WIDTH)
        REAL_PUT(z + i, REAL_AT(last + i));
}

KERNEL(linear_backward_keys)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const int ratio = a.heads / a.kv_heads, heads = MIXED_HEADS ? a.heads : ratio;
    const unit u = group_unit(&a, GROUP_ID, heads, lengths, lengths_q, offsets, offsets_k);
    const problem *const p = &u.p;
    const span range = key_range(&a, &u, HAS_SEQUENCES ? p->keys : a.length_k);
    const long batch = HAS_SEQUENCES ? 0 : p->b;
    DECLARE_FEATURE_PLACE(place, work, &a)
    DECLARE_TILE(values, CHUNK * VALUE_ROW)
    DECLARE_TILE(psi, CHUNK * FEATURE_ROW)
    DECLARE_TILE(grad, WANT_DPSI || BY_STEPS ? CHUNK * FEATURE_ROW : 16)
    DECLARE_TILE(part, KEY_SUM || WANT_PRIOR ? (KEEP_PARTS ? COMPONENTS : 1) * CHUNK * FEATURE_ROW : 16)
    DECLARE_TILE(dx, WANT_DPSI ? CHUNK * HEAD_SIZE : 16)
    DECLARE_TILE(dv, WANT_V || BY_STEPS ? CHUNK * VALUE_SIZE : 16)
    DECLARE_TILE(g, CAUSAL ? CHUNK * VALUE_ROW : 16)
    DECLARE_TILE(phi, CAUSAL ? CHUNK * FEATURE_ROW : 16)
    DECLARE_TILE(pairs, BY_PAIRS ? CHUNK * CHUNK_ROW : 16)
    DECLARE_TILE(weights, BY_PAIRS ? CHUNK * CHUNK_ROW : 16)
    DECLARE_TILE(row_scale, SHIFTED ? CHUNK : 16)
    DECLARE_TILE(factor, SHIFTED ? FEATURE_BLOCK : 16)
    DECLARE_TILE(dot, CHUNK)
    key_chunk x = {.a = &a, .w = &place};
    x.g = g, x.values = values, x.weights = weights, x.pairs = pairs, x.psi = psi, x.phi = phi;
    x.part = part, x.grad = grad, x.dx = dx, x.dv = dv, x.dot = dot, x.row_scale = row_scale, x.factor = factor;
    gradient_rows out = {.stride = a.grad_k.token, .size = a.head_size, .added = is_added(&a.bound, SLOT_GRAD_K)};
    out.part = work + a.region[MGK_LINEAR_PART_K] + GROUP_ID * (COMPONENTS * CHUNK * HEAD_SIZE);
    gradient_rows out_v = {.stride = a.grad_v.token, .size = a.value_size, .added = is_added(&a.bound, SLOT_GRAD_V)};
    out_v.part = work + a.region[MGK_LINEAR_PART_V] + GROUP_ID * (CHUNK * VALUE_SIZE);

    for (int n = 0; n < heads; ++n)
        head_begin(&a, &u, n, work);
    for (int c = range.end - 1; c >= range.first; --c) {
        for (int n = 0; n < heads; ++n) {
            const unit head = head_of_group(&u, n, a.splits);
            const int kv_head = (int)((long)head.h * a.kv_heads / a.heads);
            const gradient_source source = gradients_of(&a, &head, grad_o, o, denominator);
            x.queries = queries_of(&a, &place, &head, q, mix, mix_weight, noise);
            x.keys = keys_of(&a, &place, &head, k, prior, shift);
            x.first = c * CHUNK, x.key_first = x.first + u.offset;
            x.first_head = n == 0, x.last_head = n == heads - 1;
            x.first_value = head.h % ratio == 0, x.last_value = head.h % ratio == ratio - 1;
            head_go_to(&x, &head, work);
            out.out = elements_of(grad_k + batch * a.grad_k.batch + (MIXED_HEADS ? 0 : kv_head) * a.grad_k.head +
                                  p->key_base * a.grad_k.token);
            out_v.out =
                elements_of(grad_v + batch * a.grad_v.batch + kv_head * a.grad_v.head + p->key_base * a.grad_v.token);
            __global const v_element *const own = v + batch * a.v.batch + kv_head * a.v.head + p->key_base * a.v.token;
            for (int end = CHUNK; end > 0;) {
                const int begin = key_chunk_gradients(&x, end, &head, &source, own, &out, &out_v);
                end = CHUNK_SPANS ? begin : 0;
            }
            branch_end();
        }
    }
    for (int n = 0; n < (BY_STEPS ? heads : 0); ++n)
        head_end(&a, &u, n, work);
}
