/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family, backward pass and responsibilities: blocks of keys meet tiles of queries. In base 2, with the
 * exponents e_ijr = log2 (P_ijr) of mixture/forward.cl less L, as mixture/rows.cl prepares it per row (log_i):
 *
 *     e_ijr = c_r q_i.k_jr + beta_jr + alpha_ir + log2 pi_r(j) + bias + ALiBi + log_i          P_ijr = 2^e_ijr
 *     t_ij  = keep_ij dO_i.v_j + delta_i          delta_i = dL_i - dO_i.O_i
 *     dS_ijr = P_ijr t_ij                          (hard: only r = arg max_r e_ijr, the first)
 *
 *     dV_j   = sum_i keep_ij sum_r P_ijr dO_i      dK_jr = sum_i dS_ijr (q_i [gaussian: - k_jr]) / sigma_r^2
 *     dQ_i   = sum_jr dS_ijr (k_jr [- q_i]) / sigma_r^2       the product here, the rest in mixture/rows.cl
 *     row sums sum_j dS_ijr, key sums sum_i dS_ijr            for dQ, dshift and dprior
 *
 * sMGK with one sigma: 2^e_ijr = E_ij u_ir w_jr with E_ij = 2^(c q.k + B_j + A_i + log_i), so that with T = E t
 * P = E sum_r u w, sum_r dS = T sum_r u w, row sums u_ir sum_j T w_jr, key sums w_jr sum_i T u_ir: five products.
 *
 * A work-group owns every `splits`-th block of the keys of a list of (b, g), one after the other: dQ is summed in a
 * fixed order, one copy per split.
 */
#define PASS_BACKWARD
#include "mixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_MIXTURE_BACKWARD_BUFFERS
#include "base/buffers.clh"

#include "mixture/block.clh"

#include "mixture/rows.clh"

#define HAS_SCORE_GRADIENTS (WANT_Q || WANT_K || WANT_PRIOR || WANT_VARIANCE || WANT_SHIFT || WANT_BIAS)
#define HAS_KEY_GRADIENTS   (WANT_Q || WANT_K)
#define HAS_GRAD_KEYS       WANT_K
#define HAS_FACTORED        (KEYS_SHIFTED && HAS_FACTOR && !EXPECTATION)
/* dprior must be right where pi is 0, or so small that P is: the sums of such components are made without it. */
#define PRIOR_APART  (WANT_PRIOR && HAS_PRIOR)
#define HAS_KEY_SUMS (WANT_PRIOR || EXPECTATION || (SCORE_GAUSSIAN && (WANT_K || WANT_SHIFT)))
/* The bias' row sums are those of all components, unless a soft-cap comes between. */
#define BIAS_SUMS_APART (HAS_BIAS_ROW_SUMS && (HAS_SOFTCAP || !HAS_ROW_SUMS))
#define HAS_ENTRY_SUMS  (HAS_ROW_SUMS || HAS_BIAS_ROW_SUMS)
#define BIAS_SUM        (HAS_ROW_SUMS ? COMPONENTS : 0)
#define ENTRY_SUMS      (HAS_ENTRY_SUMS ? BIAS_SUM + BIAS_SUMS_APART : 1)
#define VARIANCES       (HAS_VARIANCE ? COMPONENTS : 1)

#include "engine/backward.clh"

#include "attention/backward.clh"

#include "mixture/score.clh"

#define HAS_KEY_TERMS (SCORE_GAUSSIAN || KEYS_SHIFTED)
/* log2 of the least prior that sums for dprior are divided by. */
#define PRIOR_TINY -66.0f

#define FLAG_SPREAD 1

/* What a block knows of its components: as in mixture/forward.cl. */
typedef struct components {
    float scale[COMPONENTS];      /* c_r */
    float stage_scale[PRODUCTS];  /* what staged keys are multiplied by: c_r, or 1 where that comes later */
    float prior[COMPONENTS];      /* pi_r, where it does not depend on the key */
    float shift_norm[COMPONENTS]; /* c_r |b_r|^2 / 2 */
    bool one_scale;               /* all components have one sigma: the factored form exists */
} components;

/* Row values of the block's keys. */
typedef struct key_values {
    real beta[HAS_KEY_TERMS ? PANELS : 1][COMPONENTS][BLOCK_ROWS];    /* beta_jr; HAS_FACTORED: - B_j */
    real log_prior[HAS_PRIOR ? PANELS : 1][COMPONENTS][BLOCK_ROWS];   /* log2 pi_r(j) */
    real w[HAS_FACTORED ? PANELS : 1][COMPONENTS][BLOCK_ROWS];        /* w_jr */
    real top[HAS_FACTORED ? PANELS : 1][BLOCK_ROWS];                  /* B_j; 0 where no component has a prior */
    real own[HAS_FACTORED ? PANELS : 1][BLOCK_ROWS];                  /* spread of log2 w_jr, over r and 0 */
    real sum[HAS_KEY_SUMS ? PANELS : 1][COMPONENTS][BLOCK_ROWS];      /* sum_i dS_ijr */
    real apart[PRIOR_APART ? PANELS : 1][COMPONENTS][BLOCK_ROWS];     /* the same without pi_r(j), where it is tiny */
    real variance[WANT_VARIANCE ? PANELS : 1][VARIANCES][BLOCK_ROWS]; /* sum_i dS_ijr score_ijr */
    real bias[HAS_BIAS_KEY_SUMS ? PANELS : 1][BLOCK_ROWS];            /* sum_i sum_r dS_ijr */
    float spread;                                                     /* the largest `own` of the block */
    bool tiny;                                                        /* the block has a tiny prior */
} key_values;

/* Terms of a tile's queries, visible to all keys. */
typedef struct query_terms {
    KEY_SPACE float *log;                /* log_i */
    KEY_SPACE float *delta;              /* delta_i */
    KEY_SPACE float (*alpha)[TILE_KEYS]; /* alpha_ir */
    KEY_SPACE float (*u)[TILE_KEYS];     /* u_ir */
    KEY_SPACE float *top;                /* A_i */
    KEY_SPACE float *spread;             /* of alpha_ir, over r */
} query_terms;

/* Where a (b, h) finds its arrays: element 0 of its rows and keys. */
typedef struct places {
    __global const storage *q, *k, *v, *grad_o;
    __global float *work;     /* the workspace */
    __global float *grad_q;   /* this split's rows of dQ */
    __global float *row_sums; /* and of the row sums, component 0 */
    long bh;                  /* b H + h of the arrays */
    long row;                 /* number of its first row in the regions [rows] */
    __global const float *prior, *shift, *bias;
    __global float *grad_bias;
    __global float *gamma;
    float slope; /* times log2 e */
} places;

FUNCTION void components_begin(components *x, const mgk_attention_args *a, int h, const places *at,
                               __global const float *variance)
{
    for (int r = 0; r < COMPONENTS; ++r) {
        x->scale[r] = component_scale(a, h, r, variance);
#if HAS_PRIOR
        x->prior[r] = a->prior.token ? 0.0f : at->prior[r * a->prior.component];
#endif
#if KEYS_SHIFTED
        x->shift_norm[r] = shift_norm(a, r, at->shift, x->scale[r]);
#endif
    }
    for (int r = 0; r < PRODUCTS; ++r)
        x->stage_scale[r] = SCALE_LATER ? 1.0f : x->scale[r];
    x->one_scale = has_one_scale(x->scale);
}

#if PRIOR_APART
FUNCTION ireal is_tiny(const key_values *key, int panel, int r, int v)
{
    return key->log_prior[panel][r][v] < (real)(PRIOR_TINY);
}

/* Adds 2^e_ijr t_ij, e_ijr without the prior, to the sum for dprior of a tiny one. It may leave the range of a float.
 */
FUNCTION void add_apart(key_values *key, int panel, int r, int v, real e, real t)
{
    const real part = e < (real)(128.0f) ? exp2_real(e - 1.0f) : (e != e ? e : (real)(INFINITY));
    const ireal adds = is_tiny(key, panel, r, v) && t != (real)(0.0f);
    key->apart[panel][r][v] += adds ? part * t * 2.0f : (real)(0.0f);
}
#endif

#if HAS_FACTORED
/* B_j, w_jr and their spread of a panel, from beta_jr, which becomes relative to B_j. */
FUNCTION void panel_factors(grad_engine *g, const components *x, key_values *key, int panel)
{
    real spread = (real)(0.0f);
    ROWS_FOR(v) {
        real top = (real)(-INFINITY), high = (real)(0.0f), low = (real)(0.0f);
        for (int r = 0; r < COMPONENTS; ++r)
            top = top_of(top, key->beta[panel][r][v], HAS_PRIOR ? key->log_prior[panel][r][v] : (real)(0.0f));
        top = x->one_scale ? top : (real)(0.0f);
        key->top[panel][v] = finite_max(top);
        for (int r = 0; r < COMPONENTS; ++r) {
            key->beta[panel][r][v] -= finite_max(top);
            real log_weight = key->beta[panel][r][v];
#if HAS_PRIOR
            log_weight += key->log_prior[panel][r][v];
#endif
            high = max_real(high, log_weight);
            low = lowest_of(low, log_weight);
            key->w[panel][r][v] = exp2_real(log_weight);
        }
        const real own = x->one_scale ? high - low : (real)(INFINITY);
        /* without a prior nothing bounds E_ij */
        key->own[panel][v] = top == (real)(-INFINITY) ? (real)(INFINITY) : own;
        spread = max_real(spread, key->own[panel][v]);
    }
    const float block_spread = rows_max_all(&g->base, spread);
    key->spread = block_spread > key->spread ? block_spread : key->spread;
}
#endif

/* beta_jr of a panel by the operations of mixture/forward.cl; sums begin with 0. */
FUNCTION void panel_values(grad_engine *g, const components *x, key_values *key, int panel, const mgk_attention_args *a,
                           const places *at, int first, int limit)
{
    for (int r = 0; r < COMPONENTS; ++r) {
#if HAS_KEY_TERMS
        real beta[BLOCK_ROWS];
        ROWS_FOR(v)
            beta[v] = (real)(0.0f);
#endif
#if HAS_PRIOR
        real prior[BLOCK_ROWS];
        ROWS_FOR(v)
            prior[v] = (real)(x->prior[r]);
        if (a->prior.token)
            rows_load(g, at->prior + r * a->prior.component, first, limit, 1.0f, prior);
        ROWS_FOR(v)
            key->log_prior[panel][r][v] = log2(prior[v]);
#endif
#if SCORE_GAUSSIAN && KEYS_SHIFTED
        real norm[BLOCK_ROWS], product[BLOCK_ROWS];
        panel_norm(g, panel, 0, x->stage_scale[0], norm);
        panel_dot(g, panel, at->shift + r * a->head_size, a->head_size, product);
        ROWS_FOR(v)
            beta[v] = shifted_key_term(norm[v], product[v], SCALE_LATER ? x->scale[r] : 1.0f, x->shift_norm[r]);
#elif SCORE_GAUSSIAN
        real norm[BLOCK_ROWS];
        panel_norm(g, panel, r, x->stage_scale[r], norm);
        ROWS_FOR(v)
            beta[v] = (real)(-0.5f) * norm[v];
#endif
#if HAS_KEY_TERMS
        ROWS_FOR(v)
            key->beta[panel][r][v] = beta[v];
#endif
#if HAS_KEY_SUMS
        ROWS_FOR(v)
            key->sum[panel][r][v] = (real)(0.0f);
#endif
#if PRIOR_APART
        real tiny = (real)(0.0f);
        ROWS_FOR(v) {
            key->apart[panel][r][v] = (real)(0.0f);
            tiny = is_tiny(key, panel, r, v) ? (real)(1.0f) : tiny;
        }
        key->tiny = rows_max_all(&g->base, tiny) > 0.0f || key->tiny;
#endif
    }
#if HAS_FACTORED
    panel_factors(g, x, key, panel);
#endif
#if WANT_VARIANCE
    for (int r = 0; r < VARIANCES; ++r)
        ROWS_FOR(v)
            key->variance[panel][r][v] = (real)(0.0f);
#endif
#if HAS_BIAS_KEY_SUMS
    ROWS_FOR(v)
        key->bias[panel][v] = (real)(0.0f);
#endif
}

/* Terms of the tile's queries; raises FLAG_SPREAD where the factored form must not be used. */
FUNCTION void tile_terms(grad_engine *g, const query_terms *t, const mgk_attention_args *a, const places *at, int i0,
                         int limit, float key_spread)
{
    __global const float *const log_rows = at->work + a->region[MGK_REGION_LOG] + at->row;
    __global const float *const delta_rows = at->work + a->region[MGK_REGION_DELTA] + at->row;
    TILE_KEYS_FOR(&g->base, c, TILE_KEYS) {
#if EXPECTATION
        key_put(t->log, c, entries_below(i0 + c, limit));
#else
        key_put(t->log, c, key_load(log_rows, i0 + c, limit, -INFINITY));
        key_put(t->delta, c, key_load(delta_rows, i0 + c, limit, 0.0f));
#endif
#if HAS_ROW_TERMS
        __global const float *const alpha =
            at->work + a->region[MGK_REGION_ALPHA] + at->bh * ROW_TERMS * a->length + (at->row - at->bh * a->length);
        for (int r = 0; r < ROW_TERMS; ++r)
            key_put(t->alpha[r], c, key_load(alpha + r * (long)a->length, i0 + c, limit, 0.0f));
#endif
#if HAS_FACTORED
        kreal top = key_vector(t->alpha[0], c), bottom = top;
        for (int r = 1; r < COMPONENTS; ++r) {
            const kreal x = key_vector(t->alpha[r], c);
            top = max_real(top, x);
            bottom = x < bottom ? x : bottom;
        }
        key_put(t->top, c, top);
        key_put(t->spread, c, top - bottom);
        flag_raise(&g->base, FLAG_SPREAD, !is_factored(top - bottom, (kreal)(key_spread)));
        for (int r = 0; r < COMPONENTS; ++r)
            key_put(t->u[r], c, exp2_real(key_vector(t->alpha[r], c) - top));
#endif
    }
    sync_keys(&g->base);
}

/* q.k of every component into the slots, begun as in mixture/forward.cl. */
FUNCTION void block_scores(grad_engine *g, const key_values *key, int panel, int sub)
{
    for (int r = 0; r < PRODUCTS; ++r) {
        real s[BLOCK_KEYS][BLOCK_ROWS];
        KEYS_FOR(u)
            ROWS_FOR(v) {
#if HAS_KEY_TERMS && !KEYS_SHIFTED
                s[u][v] = key->beta[panel][r][v];
#elif HAS_FACTORED && !SCALE_LATER
                s[u][v] = key->top[panel][v];
#else
                s[u][v] = (real)(0.0f);
#endif
            }
        key_product(g, panel, sub, r, s);
        KEYS_FOR(u)
            ROWS_FOR(v)
                slot_put(g, r, sub, u, v, s[u][v]);
    }
}

/* e_ijr by the operations of mixture/forward.cl up to log_i, and the same without the prior; `own`: the score before
 * soft-cap and all that components have in common, in base 2. */
typedef struct exponents {
    real e, bare, own;
} exponents;

FUNCTION exponents exponents_of(const grad_engine *g, const components *x, const key_values *key, const query_terms *t,
                                const mgk_attention_args *a, int panel, int sub, int u, int v, int r,
                                const entry_terms *c)
{
    exponents out;
#if KEYS_SHIFTED
    real s = shifted_score(slot_get(g, 0, sub, u, v), x->scale[r], HAS_FACTORED ? key->top[panel][v] : (real)(0.0f),
                           key_get(&g->base, t->alpha[r], sub, u) + key->beta[panel][r][v]);
#else
    real s = slot_get(g, r, sub, u, v);
#if SCORE_GAUSSIAN && HAS_VARIANCE
    s += key_get(&g->base, t->alpha[r], sub, u);
#endif
#endif
    out.own = s;
#if HAS_SOFTCAP
    s = softcap_real(s, a->softcap);
#endif
    out.bare = join_terms(c, s);
#if HAS_PRIOR
    s += key->log_prior[panel][r][v];
#endif
    out.e = join_terms(c, s);
    return out;
}

/* x_ijr, the scaled score alone. */
FUNCTION real score_of(const grad_engine *g, const query_terms *t, int sub, int u, real own)
{
#if ROW_NORM_TERM
    return own + key_get(&g->base, t->alpha[ALPHA_TERMS], sub, u);
#else
    return own;
#endif
}

#if HAS_FACTORED
/* E_ij, by the operations of mixture/forward.cl up to log_i. */
FUNCTION real factored_exponent(const grad_engine *g, const components *x, const key_values *key, const query_terms *t,
                                int panel, int sub, int u, int v, const entry_terms *c)
{
    return join_terms(c, shifted_score(slot_get(g, 0, sub, u, v), x->scale[0], key->top[panel][v],
                                       (real)(key_get(&g->base, t->top, sub, u))));
}
#endif

/* What a tile gathers per key before the tile's own factors are known. */
typedef struct tile_sums {
    real sum[COMPONENTS][BLOCK_ROWS];
} tile_sums;

/*
 * Entry u, vector v of a sub-tile: from the slots' scores to weights in the slots (r: dS of a product's keys, PRODUCTS:
 * P with dropout), and all sums. `t_ij` as above, `common` -inf where the key is hidden.
 */
FUNCTION void entry_gradients(grad_engine *g, const components *x, key_values *key, const query_terms *t,
                              const mgk_attention_args *a, const places *at, tile_sums *sums, int panel, int sub, int u,
                              int v, const bool factored, const entry_terms *common, real t_ij, real keep,
                              real *row_sums, real *total)
{
    real probability = (real)(0.0f), gradient = (real)(0.0f);
#if KEYS_SHIFTED
    real weight = (real)(0.0f); /* sum_r dS_ijr, of the one product */
#endif
#if HAS_FACTORED
    const real big = exp2_real(factored_exponent(g, x, key, t, panel, sub, u, v, common));
    if (factored) {
        const real big_t = big * t_ij;
        real c = (real)(0.0f);
        COMPONENTS_FOR(r) {
            const float u_ir = key_get(&g->base, t->u[r], sub, u);
            const real w = key->w[panel][r][v];
#if HAS_KEY_SUMS
            sums->sum[r][v] = fma(big_t, (real)(u_ir), sums->sum[r][v]);
#endif
#if HAS_ROW_SUMS
            row_sums[r] = fma(big_t, w, row_sums[r]);
#endif
#if WANT_VARIANCE
            /* hidden: big is 0 and so must be the product, even if a score is not finite */
            const real part = big_t * (u_ir * w);
            const real own = exponents_of(g, x, key, t, a, panel, sub, u, v, r, common).own;
            const real score = score_of(g, t, sub, u, own);
            key->variance[panel][VARIANCES == 1 ? 0 : r][v] += part == (real)(0.0f) ? part : part * score;
#endif
            c = fma(w, (real)(u_ir), c);
        }
        probability = big * c;
        gradient = big_t * c;
        weight = SCALE_LATER ? gradient * (x->scale[0] * LN_2) : gradient;
    } else
#endif
    {
#if ESTEP_HARD
        real best = (real)(-INFINITY);
        ireal arg = (ireal)(0);
        /* before log_i joins, which may hide how they differ */
        COMPONENTS_FOR(r) {
            const real own = exponents_of(g, x, key, t, a, panel, sub, u, v, r, common).own;
            const ireal better = own > best;
            arg = better ? (ireal)(r) : arg;
            best = max_or_nan(best, own);
        }
#elif HAS_FACTORED
        const ireal taken = is_factored((real)(key_get(&g->base, t->spread, sub, u)), key->own[panel][v]);
#endif
        COMPONENTS_FOR(r) {
            const exponents x_ijr = exponents_of(g, x, key, t, a, panel, sub, u, v, r, common);
            const real score = score_of(g, t, sub, u, x_ijr.own);
            real p = exp2_real(x_ijr.e);
#if ESTEP_HARD
            p = arg == (ireal)(r) ? p : (real)(0.0f);
#elif HAS_FACTORED
            p = taken ? big * (key_get(&g->base, t->u[r], sub, u) * key->w[panel][r][v]) : p;
#endif
            const real ds = p * t_ij;
#if HAS_KEY_SUMS
            sums->sum[r][v] += ds;
#endif
#if PRIOR_APART
            if (key->tiny)
                add_apart(key, panel, r, v, x_ijr.bare, t_ij);
#endif
            probability += p;
            gradient += ds;
            real own = ds;
#if HAS_SOFTCAP
            own *= softcap_slope(score, a->softcap);
#endif
#if HAS_ROW_SUMS
            row_sums[r] += own;
#endif
#if WANT_VARIANCE
            key->variance[panel][VARIANCES == 1 ? 0 : r][v] += own == (real)(0.0f) ? own : own * score;
#endif
#if HAS_VARIANCE
            own *= x->scale[r] * LN_2;
#endif
#if KEYS_SHIFTED
            weight += own;
#elif HAS_KEY_GRADIENTS
            slot_put(g, r, sub, u, v, own);
#endif
        }
    }
#if KEYS_SHIFTED && HAS_KEY_GRADIENTS
    slot_put(g, 0, sub, u, v, weight);
#endif
#if WANT_V
    slot_put(g, PRODUCTS, sub, u, v, probability * keep);
#endif
    *total = gradient;
}

/* Responsibilities of entry u, vector v: gamma_ijr = 2^(e_ijr - log2 sum_r 2^e_ijr); hard: one-hot. */
FUNCTION void entry_responsibilities(grad_engine *g, const components *x, const key_values *key, const query_terms *t,
                                     const mgk_attention_args *a, const problem *p, const places *at, tile_sums *sums,
                                     int panel, int sub, int u, int v, int k0, int i, const entry_terms *common)
{
    real best = (real)(-INFINITY), best_own = best, sum = (real)(0.0f);
    ireal arg = (ireal)(0);
    COMPONENTS_FOR(r) {
        const exponents x_ijr = exponents_of(g, x, key, t, a, panel, sub, u, v, r, common);
        const ireal better = x_ijr.own > best_own;
        arg = better ? (ireal)(r) : arg;
        best_own = max_or_nan(best_own, x_ijr.own);
        best = max_or_nan(best, x_ijr.e);
    }
    const real base = finite_max(best);
    COMPONENTS_FOR(r)
        sum += exp2_real(exponents_of(g, x, key, t, a, panel, sub, u, v, r, common).e - base);
    const real seen = best == (real)(-INFINITY) ? (real)(0.0f) : (real)(1.0f);
    COMPONENTS_FOR(r) {
#if ESTEP_HARD
        const real gamma = arg == (ireal)(r) ? seen : (real)(0.0f);
#else
        const real e = exponents_of(g, x, key, t, a, panel, sub, u, v, r, common).e - base;
        const real gamma = seen == (real)(0.0f) ? seen : exp2_real(e) / sum;
#endif
        sums->sum[r][v] += gamma;
#if WANT_GAMMA
        if (i < p->valid)
            keys_add(g, at->gamma + ((long)r * a->length + i) * a->length_k + k0, v, gamma, p->keys - k0);
#endif
    }
}

/* One sub-tile of a panel. masked: some query does not see some key. */
FUNCTION void block_gradients(grad_engine *g, const components *x, key_values *key, const query_terms *t,
                              const mgk_attention_args *a, const problem *p, const places *at, tile_sums *sums,
                              int panel, int sub, int k0, int i0, const bool factored, bool masked)
{
    real d[BLOCK_KEYS][BLOCK_ROWS];
    KEYS_FOR(u)
        ROWS_FOR(v)
            d[u][v] = (real)(0.0f);
#if HAS_SCORE_GRADIENTS
    value_product(g, panel, 0, 0, sub, d);
#endif
    KEYS_FOR(u) {
        const int i = i0 + key_index(&g->base, sub, u);
        int begin = 0, end = 0;
        if (masked) {
            begin = first_key(a, p, i);
            end = end_key(a, p, i);
        }
        real row_sums[COMPONENTS];
        COMPONENTS_FOR(r)
            row_sums[r] = (real)(0.0f);
        real row_total = (real)(0.0f);
        ROWS_FOR(v) {
            const ireal j = row_index(&g->base, k0, v);
            entry_terms common =
                entry_terms_of(g, a, p, at->bias, at->slope, k0, i, v, key_get(&g->base, t->log, sub, u));
            if (masked)
                common.log = j < (ireal)(begin) || j >= (ireal)(end) ? (real)(-INFINITY) : common.log;
#if EXPECTATION
            entry_responsibilities(g, x, key, t, a, p, at, sums, panel, sub, u, v, k0, i, &common);
#else
            real keep = (real)(1.0f), total;
#if HAS_DROPOUT
            keep = keep_of(a, (uint)(p->b * a->heads) + (uint)(at->bh % a->heads), i, j);
#endif
            const real t_ij = fma(d[u][v], keep, (real)(key_get(&g->base, t->delta, sub, u)));
            entry_gradients(g, x, key, t, a, at, sums, panel, sub, u, v, factored, &common, t_ij, keep, row_sums,
                            &total);
            row_total += total;
#if HAS_BIAS_KEY_SUMS
            key->bias[panel][v] += total;
#elif WANT_BIAS && !HAS_BIAS_ROW_SUMS
            if (i < p->valid)
                keys_add(g, at->grad_bias + i * a->bias.component + k0, v, total, p->keys - k0);
#endif
#endif
        }
#if HAS_ROW_SUMS
        COMPONENTS_FOR(r)
            entry_sums_add(g, r, sub, u, row_sums[r]);
#endif
#if BIAS_SUMS_APART
        entry_sums_add(g, BIAS_SUM, sub, u, row_total);
#endif
    }
}

/* A panel and a tile: scores, weights, and the products with them. */
FUNCTION void panel_tile(grad_engine *g, const components *x, key_values *key, const query_terms *t,
                         const mgk_attention_args *a, const problem *p, const places *at, int panel, int k0, int i0,
                         int entries, const bool factored, bool masked)
{
    tile_sums sums;
    COMPONENTS_FOR(r)
        ROWS_FOR(v)
            sums.sum[r][v] = (real)(0.0f);
    const int subs = SUB_TILES == 1 ? 1 : (entries + BLOCK_KEYS - 1) / BLOCK_KEYS;
    for (int sub = 0; sub < subs; ++sub) {
        block_scores(g, key, panel, sub);
        block_gradients(g, x, key, t, a, p, at, &sums, panel, sub, k0, i0, factored, masked);
    }
#if HAS_KEY_SUMS
    COMPONENTS_FOR(r)
        ROWS_FOR(v) {
#if HAS_FACTORED && PRIOR_APART
            if (factored && key->tiny)
                add_apart(key, panel, r, v, key->beta[panel][r][v], sums.sum[r][v]);
#endif
#if HAS_FACTORED
            if (factored)
                sums.sum[r][v] *= key->w[panel][r][v];
#endif
            key->sum[panel][r][v] += sums.sum[r][v];
        }
#endif
#if WANT_V
    accumulate_values(g, panel, 0, 0, PRODUCTS, entries);
#endif
#if HAS_GRAD_KEYS
    for (int r = 0; r < PRODUCTS; ++r)
        accumulate_keys(g, panel, r, r, entries);
#endif
#if WANT_Q
    scatter_queries(g, panel, 0, PRODUCTS, 0, at->grad_q + (long)i0 * HEAD_SIZE, entries);
#endif
}

/* All tiles of queries that meet the block of keys from k0 on, for one head. */
FUNCTION void block_queries(grad_engine *g, const components *x, key_values *key, const query_terms *t,
                            const mgk_attention_args *a, const problem *p, const places *at, int k0)
{
    int begin, end;
    block_rows(a, p, k0, &begin, &end);
    for (int i0 = begin; i0 < end; i0 += TILE_KEYS) {
        const int stop = min(i0 + TILE_KEYS, p->valid);
        queries_stage(g, at->q, 0, a->q.token, i0, p->valid, a->head_size);
        grad_out_stage(g, 1, at->grad_o, 0, a->grad_o.token, i0, p->valid, a->value_size);
        tile_terms(g, t, a, at, i0, p->valid, HAS_FACTORED ? key->spread : 0.0f);
        bool factored = false;
#if HAS_FACTORED
        factored = !flag_read(&g->base, FLAG_SPREAD);
#endif
#if HAS_ENTRY_SUMS
        entry_sums_clear(g);
#endif
        for (int panel = 0; panel < PANELS; ++panel) {
            const int first = k0 + panel * PANEL_ROWS;
            bool masked;
            if (!panel_meets(a, p, first, i0, stop, &masked))
                continue;
            panel_tile(g, x, key, t, a, p, at, panel, first, i0, stop - i0, factored, masked);
            branch_end();
        }
#if HAS_ROW_SUMS
        for (int r = 0; r < COMPONENTS; ++r) {
            KEY_SPACE const float *factor = 0;
#if HAS_FACTORED
            factor = factored ? t->u[r] : 0;
#endif
            entry_sums_store(g, r, factor, at->row_sums + r * (long)a->length + i0, stop - i0);
        }
#endif
#if HAS_BIAS_ROW_SUMS
        __global float *const bias = at->work + a->region[MGK_REGION_BIAS] + at->row + i0;
#if BIAS_SUMS_APART
        entry_sums_store(g, BIAS_SUM, 0, bias, stop - i0);
#else
        for (int r = 0; r < COMPONENTS; ++r)
            entry_sums_store(g, r, HAS_FACTORED && factored ? t->u[r] : 0, bias, stop - i0);
#endif
#endif
        tile_end(g);
    }
}

/* What a head leaves in a panel's keys: the terms of dK without a product, and the regions of key sums. */
FUNCTION void panel_finish(grad_engine *g, const components *x, key_values *key, int panel, const mgk_attention_args *a,
                           const problem *p, const places *at, int first, int keys)
{
#if HAS_KEY_SUMS
    const long row = at->bh * COMPONENTS * (long)a->length_k + p->key_base;
#endif
    for (int r = 0; r < COMPONENTS; ++r) {
#if HAS_KEY_SUMS
        rows_sum(&g->base, key->sum[panel][r]);
#if WANT_PRIOR || EXPECTATION
        real stored[BLOCK_ROWS];
        ROWS_FOR(v)
            stored[v] = key->sum[panel][r][v];
#if PRIOR_APART
        rows_sum(&g->base, key->apart[panel][r]);
        ROWS_FOR(v)
            stored[v] = is_tiny(key, panel, r, v) ? key->apart[panel][r][v]
                                                  : stored[v] * exp2_real(-key->log_prior[panel][r][v]);
#endif
        rows_store(&g->base, stored, at->work + a->region[MGK_REGION_KEY_SUMS] + row + r * (long)a->length_k, 1, first,
                   keys);
#endif
#if WANT_SHIFT && SCORE_GAUSSIAN
        rows_store(&g->base, key->sum[panel][r], at->work + a->region[MGK_REGION_SHIFT] + row + r * (long)a->length_k,
                   1, first, keys);
#endif
#if WANT_K && SCORE_GAUSSIAN
        /* - sum_i dS_ijr k_jr [/ sigma_r^2 where the sums of products have it], staged keys being stage_scale * k */
        real factor[BLOCK_ROWS];
        ROWS_FOR(v)
            factor[v] = -key->sum[panel][r][v] * (HAS_VARIANCE ? x->scale[r] * LN_2 : 1.0f);
#if KEYS_SHIFTED
        grad_keys_add_row(g, panel, at->shift + r * a->head_size, a->head_size, factor);
#endif
        ROWS_FOR(v)
            factor[v] *= 1.0f / x->stage_scale[KEYS_SHIFTED ? 0 : r];
        grad_keys_add_keys(g, panel, KEYS_SHIFTED ? 0 : r, factor);
#endif
#endif
    }
#if WANT_VARIANCE
    for (int r = 0; r < VARIANCES; ++r) {
        rows_sum(&g->base, key->variance[panel][r]);
        rows_store(&g->base, key->variance[panel][r],
                   at->work + a->region[MGK_REGION_VARIANCE] + (at->bh * VARIANCES + r) * a->length_k + p->key_base, 1,
                   first, keys);
    }
#endif
#if HAS_BIAS_KEY_SUMS
    rows_sum(&g->base, key->bias[panel]);
    rows_store(&g->base, key->bias[panel], at->work + a->region[MGK_REGION_BIAS] + at->bh * a->length_k + p->key_base,
               1, first, keys);
#endif
}

KERNEL(mixture_backward)
{
    BEGIN_BUFFERS
    if (a.heads == 0)
        return;
    const int split = GROUP_ID % a.splits, chunk = GROUP_ID / a.splits;
    const int list = a.batch * a.kv_heads;
    const int group = a.heads / a.kv_heads;
    const long rows = (HAS_SEQUENCES ? 1L : a.batch) * a.heads * a.length;
    const int task_begin = (int)((long)list * chunk / a.chunks), task_end = (int)((long)list * (chunk + 1) / a.chunks);

    GRAD_ENGINE_DECLARE(g)
    components x;
    key_values key;
    KEY_SPACE float log_terms[TILE_KEYS], delta_terms[TILE_KEYS], top_terms[TILE_KEYS], spread_terms[TILE_KEYS];
    KEY_SPACE float alpha_terms[HAS_ROW_TERMS ? ROW_TERMS : 1][TILE_KEYS];
    KEY_SPACE float u_terms[HAS_FACTORED ? COMPONENTS : 1][TILE_KEYS];
    const query_terms t = {log_terms, delta_terms, alpha_terms, u_terms, top_terms, spread_terms};
    places at;

    for (int task = task_begin; task < task_end; ++task) {
        const int kv_head = task % a.kv_heads;
        const problem p = problem_of(&a, task / a.kv_heads, lengths, lengths_q, offsets, offsets_k);
        /* keys beyond the key length have gradients too: 0 */
        const int keys = HAS_SEQUENCES ? p.keys : a.length_k;
        at.k = k + p.batch * a.k.batch + kv_head * a.k.head + p.key_base * a.k.token;
        at.v = v + p.batch * a.v.batch + kv_head * a.v.head + p.key_base * a.v.token;
        __global storage *const dk =
            grad_k + p.batch * a.grad_k.batch + kv_head * a.grad_k.head + p.key_base * a.grad_k.token;
        __global storage *const dv =
            grad_v + p.batch * a.grad_v.batch + kv_head * a.grad_v.head + p.key_base * a.grad_v.token;

        for (int k0 = split * GROUP_ROWS; k0 < keys; k0 += a.splits * GROUP_ROWS) {
            for (int panel = 0; panel < PANELS; ++panel) {
                panel_clear_keys(&g, panel);
                panel_clear_values(&g, panel);
                panel_load_values(&g, panel, 0, at.v, a.v.token, k0 + panel * PANEL_ROWS, p.keys, a.value_size);
            }
            for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
                at.bh = p.batch * a.heads + h;
                at.row = at.bh * a.length + p.row_base;
                at.q = q + p.batch * a.q.batch + h * a.q.head + p.row_base * a.q.token;
                at.grad_o = grad_o + p.batch * a.grad_o.batch + h * a.grad_o.head + p.row_base * a.grad_o.token;
                at.prior = prior + h * a.prior.head + (a.prior.token ? p.key_base : 0);
                at.shift = shift + (long)h * COMPONENTS * a.head_size;
                at.work = work;
                at.grad_q = work + a.region[MGK_REGION_QUERY] + (split * rows + at.row) * HEAD_SIZE;
                at.row_sums =
                    work + a.region[MGK_REGION_ROW_SUMS] + (split * rows + at.bh * a.length) * COMPONENTS + p.row_base;
#if HAS_BIAS
                at.bias = bias_of(&a, &p, h, bias);
#endif
#if HAS_ALIBI
                at.slope = slopes[h] * LOG2_E;
#endif
#if WANT_BIAS && !HAS_BIAS_KEY_SUMS && !HAS_BIAS_ROW_SUMS
                at.grad_bias = a.bias_copies == 0
                                   ? grad_bias
                                   : work + a.region[MGK_REGION_BIAS] + GROUP_ID * (a.bias_batches * a.bias.batch);
                at.grad_bias += (p.batch % a.bias_batches) * a.bias.batch + h * a.bias.head +
                                p.row_base * a.bias.component + p.key_base * a.bias.token;
#endif
#if WANT_GAMMA
                at.gamma =
                    gamma + at.bh * COMPONENTS * a.length * a.length_k + p.row_base * (long)a.length_k + p.key_base;
#endif
                components_begin(&x, &a, h, &at, variance);
                key.spread = 0.0f;
                key.tiny = false;
                for (int panel = 0; panel < PANELS; ++panel) {
                    const int first = k0 + panel * PANEL_ROWS;
                    if (HAS_VARIANCE || h == kv_head * group)
                        panel_load_keys(&g, panel, at.k, a.k.component, a.k.token, first, p.keys, a.head_size,
                                        x.stage_scale);
                    panel_values(&g, &x, &key, panel, &a, &at, first, p.keys);
                }
                block_queries(&g, &x, &key, &t, &a, &p, &at, k0);
                for (int panel = 0; panel < PANELS; ++panel)
                    panel_finish(&g, &x, &key, panel, &a, &p, &at, k0 + panel * PANEL_ROWS, keys);
            }
            for (int panel = 0; panel < PANELS; ++panel) {
                const int first = k0 + panel * PANEL_ROWS;
#if WANT_K
                for (int r = 0; r < PRODUCTS; ++r)
                    store_keys(&g, panel, r, HAS_VARIANCE ? 1.0f : a.scale * LN_2, dk + r * a.grad_k.component,
                               a.grad_k.token, first, keys, a.head_size, is_added(&a.bound, SLOT_GRAD_K));
#endif
#if WANT_V
                store_values(&g, panel, 0, dv, a.grad_v.token, first, keys, a.value_size,
                             is_added(&a.bound, SLOT_GRAD_V));
#endif
            }
        }
    }
    branch_end();
}
