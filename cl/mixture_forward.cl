/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family, forward: softmax, Gaussian, MGK and sMGK attention with an online softmax over keys and components.
 * In base 2, with c_r = log2(e) / sigma_r^2:
 *
 *     s_ijr = c_r q_i.k_jr + beta_jr + alpha_ir
 *     beta_jr  = log2 pi_r(j)  [gaussian: - c_r |k_jr|^2 / 2]
 *     alpha_ir = 0             [gaussian, sigma an array: - c_r |q_i|^2 / 2; else that term only enters L]
 *
 *     sMGK, k_jr = k_j + b_r: one product q_i.k_j, and
 *     alpha_ir += c_r q_i.b_r        beta_jr = log2 pi_r(j) [gaussian: - c_r (|k_j|^2/2 + k_j.b_r + |b_r|^2/2)]
 *     one sigma: sum_r 2^s_ijr = 2^(c q.k + A_i + B_j) sum_r u_ir w_jr,
 *     A_i = max_r alpha_ir, u_ir = 2^(alpha_ir - A_i), B_j = max_r beta_jr, w_jr = 2^(beta_jr - B_j)
 *
 * A score is held as a pair: exponent E and factor C with 2^w_ij = C 2^E; weights are C 2^(E - m), m the row maximum
 * of E. Tiles that all rows see in full take the lazy way: weights against the old maximum while the scores are made,
 * which stands unless some E outgrew it by LAZY_GROWTH; all others make scores, mask, find the maximum, rescale.
 */
#include "engine.clh"
#include "mixture_args.clh"

#ifndef COMPONENTS
#define COMPONENTS 1 /* M */
#endif
#ifndef SCORE_GAUSSIAN
#define SCORE_GAUSSIAN 0
#endif
#ifndef KEYS_SHIFTED
#define KEYS_SHIFTED 0 /* 1: sMGK */
#endif
#ifndef ESTEP_HARD
#define ESTEP_HARD 0
#endif
#ifndef HAS_PRIOR
#define HAS_PRIOR 0 /* 1: pi is an array (soft E-step only: hard does not use it) */
#endif
#ifndef HAS_VARIANCE
#define HAS_VARIANCE 0 /* 1: sigma^2 is an array */
#endif

#if KEYS_SHIFTED
#define PRODUCTS 1
#else
#define PRODUCTS COMPONENTS
#endif
#define HAS_KEY_TERMS (SCORE_GAUSSIAN || HAS_PRIOR || KEYS_SHIFTED)
#define HAS_ROW_TERMS (KEYS_SHIFTED || (SCORE_GAUSSIAN && HAS_VARIANCE))
#define HAS_FACTOR    (!ESTEP_HARD && COMPONENTS > 1)
/* sMGK with one product for all components can't fold c_r into the keys when they may differ. */
#define SCALE_LATER    (KEYS_SHIFTED && HAS_VARIANCE)
#define ROW_NORM_LATER (SCORE_GAUSSIAN && !HAS_VARIANCE)

/* 2^16 keeps weights and their sums far from overflow. */
#define LAZY_GROWTH 16.0f
/* The factored form is used only where u w cannot fall below 2^-FACTOR_RANGE, which leaves 2^-62 for the keys. */
#define FACTOR_RANGE 64.0f

#define FLAG_GREW   0
#define FLAG_SPREAD 1

/* What a block knows of its components. */
typedef struct mixture {
    float scale[COMPONENTS];      /* c_r */
    float stage_scale[PRODUCTS];  /* what staged keys are multiplied by: c_r, or 1 where that comes later */
    float log_prior[COMPONENTS];  /* log2 pi_r, where pi does not depend on the key */
    float shift_norm[COMPONENTS]; /* c_r |b_r|^2 / 2 */
#if HAS_ROW_TERMS
    real alpha[PANELS][COMPONENTS][BLOCK_ROWS]; /* alpha_ir; sMGK: alpha_ir - A_i */
#endif
#if KEYS_SHIFTED
    real alpha_max[PANELS][BLOCK_ROWS]; /* A_i */
#if HAS_FACTOR
    real u[PANELS][COMPONENTS][BLOCK_ROWS]; /* u_ir */
    float row_spread;                       /* largest spread over r of alpha_ir in the block */
#endif
#endif
} mixture;

/* Terms of a tile's keys. */
typedef struct mixture_keys {
    KEY_SPACE float (*beta)[TILE_KEYS]; /* beta_jr */
    KEY_SPACE float (*w)[TILE_KEYS];    /* w_jr */
    KEY_SPACE float *beta_max;          /* B_j */
} mixture_keys;

/* Scales, priors and shift norms of head h. */
FUNCTION void mixture_begin(mixture *x, const mgk_mixture_args *a, int h, __global const float *prior,
                            __global const float *variance, __global const float *shift)
{
    for (int r = 0; r < COMPONENTS; ++r) {
#if HAS_VARIANCE
        const float sigma2 = variance[h * a->variance_head + r];
        x->scale[r] = sigma2 > 0.0f ? LOG2_E / sigma2 : NAN;
#else
        x->scale[r] = a->scale;
#endif
#if HAS_PRIOR
        x->log_prior[r] = a->prior.token ? 0.0f : log2(prior[r * a->prior.component]);
#endif
#if KEYS_SHIFTED
        float norm = 0.0f;
        for (int d = 0; d < a->head_size; ++d)
            norm = fma(shift[r * a->head_size + d], shift[r * a->head_size + d], norm);
        x->shift_norm[r] = 0.5f * x->scale[r] * norm;
#endif
    }
    for (int r = 0; r < PRODUCTS; ++r)
        x->stage_scale[r] = SCALE_LATER ? 1.0f : x->scale[r];
}

/* alpha_ir of a panel, for sMGK with A_i and u_ir. */
FUNCTION void row_terms(engine *e, mixture *x, int panel, __global const float *shift, int size)
{
#if HAS_ROW_TERMS
    real norm[BLOCK_ROWS];
    ROWS_FOR(v)
        norm[v] = (real)(0.0f);
#if SCORE_GAUSSIAN && HAS_VARIANCE
    rows_norm(e, panel, norm);
#endif
    for (int r = 0; r < COMPONENTS; ++r) {
        real product[BLOCK_ROWS];
        ROWS_FOR(v)
            product[v] = (real)(0.0f);
#if KEYS_SHIFTED
        rows_dot(e, panel, shift + r * size, size, product);
#endif
        ROWS_FOR(v)
            x->alpha[panel][r][v] = (product[v] - 0.5f * norm[v]) * x->scale[r];
    }
#endif
#if KEYS_SHIFTED
    real spread = (real)(0.0f);
    ROWS_FOR(v) {
        real top = x->alpha[panel][0][v], bottom = top;
        for (int r = 1; r < COMPONENTS; ++r) {
            const real alpha = x->alpha[panel][r][v];
            top = max_real(top, alpha);
            bottom = alpha < bottom ? alpha : bottom;
        }
        spread = max_real(spread, top - bottom);
        x->alpha_max[panel][v] = top;
        for (int r = 0; r < COMPONENTS; ++r)
            x->alpha[panel][r][v] -= top;
    }
#if HAS_FACTOR
    for (int r = 0; r < COMPONENTS; ++r)
        ROWS_FOR(v)
            x->u[panel][r][v] = exp2_real(x->alpha[panel][r][v]);
    const float block_spread = rows_max_all(e, spread);
    x->row_spread = block_spread > x->row_spread ? block_spread : x->row_spread;
#endif
#endif
}

/* beta_jr of a tile's keys, for sMGK with B_j and w_jr; raises FLAG_SPREAD where the factored form must not be used. */
FUNCTION void key_terms(engine *e, const mixture *x, const mixture_keys *t, const mgk_mixture_args *a, int k0,
                        int limit, __global const float *prior, __global const float *shift)
{
#if HAS_KEY_TERMS
    TILE_KEYS_FOR(e, c) {
#if KEYS_SHIFTED
        kreal top = (kreal)(-INFINITY), bottom = (kreal)(INFINITY);
#if SCORE_GAUSSIAN
        const kreal norm = keys_norm(e, 0, c, x->stage_scale[0]);
#endif
#endif
        for (int r = 0; r < COMPONENTS; ++r) {
            kreal beta = (kreal)(0.0f);
#if HAS_PRIOR
            if (a->prior.token)
                beta = log2(key_load(prior + r * a->prior.component, k0 + c, limit, 0.0f));
            else
                beta = (kreal)(x->log_prior[r]);
#endif
#if SCORE_GAUSSIAN && KEYS_SHIFTED
            const float later = SCALE_LATER ? x->scale[r] : 1.0f;
            const kreal product = keys_dot(e, 0, c, shift + r * a->head_size, a->head_size);
            beta -= later * (0.5f * norm + product) + x->shift_norm[r];
#elif SCORE_GAUSSIAN
            beta -= 0.5f * keys_norm(e, r, c, x->stage_scale[r]);
#endif
            key_put(t->beta[r], c, beta);
#if KEYS_SHIFTED
            top = max_real(top, beta);
            /* a component without weight bounds nothing */
            bottom = beta < bottom && beta > (kreal)(-INFINITY) ? beta : bottom;
#endif
        }
#if KEYS_SHIFTED && HAS_FACTOR
        key_put(t->beta_max, c, top);
        flag_raise(e, FLAG_SPREAD, !(top - bottom + x->row_spread < (kreal)(FACTOR_RANGE)));
        for (int r = 0; r < COMPONENTS; ++r)
            key_put(t->w[r], c, exp2_real(key_vector(t->beta[r], c) - finite_max(top)));
#endif
    }
    sync_keys(e);
#endif
}

/*
 * Scores of one sub-tile, relative to the row values `base` (subtracted from every exponent).
 * lazy: w receives the weights 2^(s - base) summed over components, `growth` the largest exponent so far.
 * else: (w, factor) receive the pair (E, C).
 */
FUNCTION void block_scores(engine *e, const mixture *x, const mixture_keys *t, int panel, int sub, const bool factored,
                           const bool lazy, const real *base, real *growth, real (*w)[BLOCK_ROWS],
                           real (*factor)[BLOCK_ROWS])
{
#if KEYS_SHIFTED
    real product[BLOCK_KEYS][BLOCK_ROWS];
    KEYS_FOR(u)
        ROWS_FOR(v)
            product[u][v] = (real)(0.0f);
    tile_product(e, panel, sub, 0, product);
#if HAS_FACTOR
    if (factored) {
        KEYS_FOR(u)
            ROWS_FOR(v) {
                const real row = x->alpha_max[panel][v] - base[v];
                const real s = (SCALE_LATER ? product[u][v] * x->scale[0] : product[u][v]) +
                               (row + key_get(e, t->beta_max, sub, u));
                real c = x->u[panel][0][v] * key_get(e, t->w[0], sub, u);
                for (int r = 1; r < COMPONENTS; ++r)
                    c = fma(x->u[panel][r][v], (real)(key_get(e, t->w[r], sub, u)), c);
                growth[v] = max_real(growth[v], s);
                w[u][v] = lazy ? exp2_real(s) * c : s;
                factor[u][v] = c;
            }
        return;
    }
#endif
#endif
    for (int r = 0; r < COMPONENTS; ++r) {
        real s[BLOCK_KEYS][BLOCK_ROWS];
        KEYS_FOR(u)
            ROWS_FOR(v) {
                real row = -base[v];
#if KEYS_SHIFTED
                row += x->alpha_max[panel][v];
#endif
#if HAS_ROW_TERMS
                row += x->alpha[panel][r][v];
#endif
#if HAS_KEY_TERMS
                row += key_get(e, t->beta[r], sub, u);
#endif
#if KEYS_SHIFTED
                s[u][v] = fma(product[u][v], (real)(SCALE_LATER ? x->scale[r] : 1.0f), row);
#else
                s[u][v] = row;
#endif
            }
#if !KEYS_SHIFTED
        tile_product(e, panel, sub, r, s);
#endif
        KEYS_FOR(u)
            ROWS_FOR(v) {
                growth[v] = max_real(growth[v], s[u][v]);
#if ESTEP_HARD
                w[u][v] = r == 0 ? s[u][v] : max_or_nan(w[u][v], s[u][v]);
#else
                if (lazy) {
                    w[u][v] = r == 0 ? exp2_real(s[u][v]) : w[u][v] + exp2_real(s[u][v]);
                } else if (r == 0) {
                    w[u][v] = s[u][v];
                    factor[u][v] = (real)(1.0f);
                } else {
                    const real top = max_real(w[u][v], s[u][v]), finite = finite_max(top);
                    factor[u][v] = fma(factor[u][v], exp2_real(w[u][v] - finite), exp2_real(s[u][v] - finite));
                    w[u][v] = top;
                }
#endif
            }
    }
#if ESTEP_HARD
    if (lazy)
        KEYS_FOR(u)
            ROWS_FOR(v)
                w[u][v] = exp2_real(w[u][v]);
#endif
}

/*
 * Weights of a tile, with its maximum, sum and rescaling. Row i sees the keys below row_end[i].
 * lazy: all rows of the panel see all keys; weights are made against the old maximum, and stand unless it is outgrown.
 */
FUNCTION void tile_weights(engine *e, const mixture *x, const mixture_keys *t, int panel, const bool factored,
                           bool lazy, int k0, const ireal *row_end, real *row_max, real *row_sum)
{
    real w[BLOCK_KEYS][BLOCK_ROWS], factor[BLOCK_KEYS][BLOCK_ROWS];
    real base[BLOCK_ROWS], growth[BLOCK_ROWS], sum[BLOCK_ROWS], top[BLOCK_ROWS], change[BLOCK_ROWS];
    for (;;) {
        ROWS_FOR(v) {
            base[v] = lazy ? finite_max(row_max[v]) : (real)(0.0f);
            growth[v] = (real)(-INFINITY);
            sum[v] = (real)(0.0f);
            top[v] = row_max[v];
        }
        for (int sub = 0; sub < SUB_TILES; ++sub) {
            block_scores(e, x, t, panel, sub, factored, lazy, base, growth, w, factor);
            if (lazy) {
                KEYS_FOR(u)
                    ROWS_FOR(v)
                        sum[v] += w[u][v];
                weight_put(e, sub, w);
                continue;
            }
            KEYS_FOR(u)
                ROWS_FOR(v) {
                    w[u][v] = (ireal)(k0 + key_index(e, sub, u)) >= row_end[v] ? (real)(-INFINITY) : w[u][v];
                    top[v] = max_real(top[v], w[u][v]);
                }
            score_put(e, 0, sub, w);
#if HAS_FACTOR
            score_put(e, 1, sub, factor);
#endif
        }
        if (!lazy)
            break;
        ROWS_FOR(v) {
            /* a row without a maximum yet has no base: any finite score is growth */
            const real allowed = row_max[v] == (real)(-INFINITY) ? (real)(-INFINITY) : (real)(LAZY_GROWTH);
            flag_raise(e, FLAG_GREW, growth[v] > allowed);
        }
        if (!flag_read(e, FLAG_GREW)) {
            ROWS_FOR(v)
                row_sum[v] += sum[v];
            return;
        }
        lazy = false;
    }

    rows_max(e, top);
    ROWS_FOR(v) {
        change[v] = exp2_real(row_max[v] - finite_max(top[v]));
        row_max[v] = top[v];
        row_sum[v] *= change[v];
    }
    acc_scale(e, panel, change);
    for (int sub = 0; sub < SUB_TILES; ++sub) {
        score_get(e, 0, sub, w);
#if HAS_FACTOR
        score_get(e, 1, sub, factor);
#endif
        KEYS_FOR(u)
            ROWS_FOR(v) {
                w[u][v] = exp2_real(w[u][v] - finite_max(top[v]));
#if HAS_FACTOR
                w[u][v] = w[u][v] == (real)(0.0f) ? w[u][v] : w[u][v] * factor[u][v];
#endif
                row_sum[v] += w[u][v];
            }
        weight_put(e, sub, w);
    }
}

/* O = acc / sum and L = ln 2 (max + log2 sum + what the exponents left out). */
FUNCTION void panel_finish(engine *e, const mixture *x, int panel, const mgk_mixture_args *a, int first, int valid,
                           const real *row_max, real *row_sum, __global storage *o, __global float *lse)
{
    real factor[BLOCK_ROWS], log_sum[BLOCK_ROWS];
    rows_sum(e, row_sum);
#if ROW_NORM_LATER
    real norm[BLOCK_ROWS];
    rows_norm(e, panel, norm);
#endif
    ROWS_FOR(v) {
        const ireal in_use = row_index(e, first, v) < (ireal)(valid);
        const real sum = row_sum[v];
        factor[v] = in_use && sum != (real)(0.0f) ? (real)(1.0f) / sum : (real)(0.0f);
        real l = finite_max(row_max[v]) + log2(sum) + a->lse_offset;
#if ROW_NORM_LATER
        l -= 0.5f * x->scale[0] * norm[v];
#endif
        log_sum[v] = in_use && sum != (real)(0.0f) ? l * LN_2 : (real)(-INFINITY);
    }
    acc_store(e, panel, factor, o, a->o.token, first, a->length, a->value_size);
    if (a->has_lse)
        rows_store(e, log_sum, lse, a->lse.token, first, a->length);
}

/* A work-group is (b, h, block of GROUP_ROWS rows), blocks fastest, the last rows (the longest when causal) first. */
__kernel KERNEL_ATTRIBUTES void mixture_forward(const mgk_mixture_args a, __global const storage *q,
                                                __global const storage *k, __global const storage *v,
                                                __global storage *o, __global float *lse, __global const float *prior,
                                                __global const float *variance, __global const float *shift,
                                                __global const int *lengths, __global const int *lengths_q)
{
    if (a.length == 0)
        return;
    const int blocks = (a.length + GROUP_ROWS - 1) / GROUP_ROWS;
    const int block = blocks - 1 - (int)(get_group_id(0) % blocks);
    const int h = (int)(get_group_id(0) / blocks % a.heads);
    const long b = (long)(get_group_id(0) / blocks / a.heads);
    const long g = (long)h * a.kv_heads / a.heads;
    const int first = block * GROUP_ROWS;

    q += a.q.offset + b * a.q.batch + h * a.q.head;
    k += a.k.offset + b * a.k.batch + g * a.k.head;
    v += a.v.offset + b * a.v.batch + g * a.v.head;
    o += a.o.offset + b * a.o.batch + h * a.o.head;
    lse += a.lse.offset + b * a.lse.batch + h * a.lse.head;
    prior += a.prior.offset + h * a.prior.head;
    variance += a.variance_offset;
    shift += a.shift_offset + (long)h * COMPONENTS * a.head_size;

    const int keys = a.has_lengths ? clamp(lengths[a.lengths_offset + b], 0, a.length_k) : a.length_k;
    const int valid = a.has_lengths_q ? clamp(lengths_q[a.lengths_q_offset + b], 0, a.length) : a.length;
    /* the diagonal of row i is i + diagonal */
    const int diagonal = a.alignment == 1 ? 0 : (a.alignment == 2 ? keys : a.length_k) - a.length;

    ENGINE_DECLARE(e, PRODUCTS)
    mixture x;
    KEY_SPACE float beta[HAS_KEY_TERMS ? COMPONENTS : 1][TILE_KEYS];
    KEY_SPACE float w[KEYS_SHIFTED && HAS_FACTOR ? COMPONENTS : 1][TILE_KEYS];
    KEY_SPACE float beta_max[TILE_KEYS];
    const mixture_keys t = {beta, w, beta_max};
    real row_max[PANELS][BLOCK_ROWS], row_sum[PANELS][BLOCK_ROWS];

    mixture_begin(&x, &a, h, prior, variance, shift);
#if KEYS_SHIFTED && HAS_FACTOR
    x.row_spread = 0.0f;
#endif
    for (int p = 0; p < PANELS; ++p) {
        query_load(&e, p, q, a.q.token, first + p * PANEL_ROWS, valid, a.head_size);
        acc_clear(&e, p);
        row_terms(&e, &x, p, shift, a.head_size);
        ROWS_FOR(i) {
            row_max[p][i] = (real)(-INFINITY);
            row_sum[p][i] = (real)(0.0f);
        }
    }

    const int last = min(first + GROUP_ROWS, valid) - 1; /* below `first`: no row in use */
    const int end = last < first ? 0 : a.causal ? min(keys, last + diagonal + 1) : keys;
    for (int k0 = 0; k0 < end; k0 += TILE_KEYS) {
        keys_stage(&e, PRODUCTS, k, a.k.component, a.k.token, k0, keys, a.head_size, x.stage_scale);
        values_stage(&e, v, a.v.token, k0, keys, a.value_size);
        key_terms(&e, &x, &t, &a, k0, keys, prior, shift);
        bool factored = false;
#if KEYS_SHIFTED && HAS_FACTOR
        factored = !flag_read(&e, FLAG_SPREAD);
#if HAS_VARIANCE
        for (int r = 1; r < COMPONENTS; ++r)
            factored = factored && x.scale[r] == x.scale[0];
#endif
#endif
        for (int p = 0; p < PANELS; ++p) {
            const int panel_first = first + p * PANEL_ROWS;
            const int panel_last = min(panel_first + PANEL_ROWS, valid) - 1;
            const int sees_all = a.causal ? min(keys, panel_first + diagonal + 1) : keys;
            const int sees_any = a.causal ? min(keys, panel_last + diagonal + 1) : keys;
            if (panel_last < panel_first || k0 >= sees_any)
                continue;
            ireal row_end[BLOCK_ROWS];
            ROWS_FOR(i) {
                const ireal own = row_index(&e, panel_first, i) + (diagonal + 1);
                row_end[i] = a.causal && own < (ireal)(keys) ? own : (ireal)(keys);
            }
            tile_weights(&e, &x, &t, p, factored, k0 > 0 && k0 + TILE_KEYS <= sees_all, k0, row_end, row_max[p],
                         row_sum[p]);
            tile_accumulate(&e, p);
        }
    }
    for (int p = 0; p < PANELS; ++p)
        panel_finish(&e, &x, p, &a, first + p * PANEL_ROWS, valid, row_max[p], row_sum[p], o, lse);
}
