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
 *     row sums sum_j dS_ijr, key sums sum_i dS_ijr            for dQ, dshift and dprior
 *
 * sMGK with one sigma: 2^e_ijr = E_ij u_ir w_jr with E_ij = 2^(c q.k + B_j + A_i + log_i), so that with T = E t
 * P = E sum_r u w, sum_r dS = T sum_r u w, row sums u_ir sum_j T w_jr, key sums w_jr sum_i T u_ir: five products.
 *
 * A work-group owns every `splits`-th block of the keys of a list of (b, g), one after the other: dQ is summed in a
 * fixed order, one copy per split. QUERIES_APART: dQ and the row sums are mixture/backward_queries.cl's. With
 * ROWS_INSIDE it owns all blocks: the first that meets a tile of queries prepares log_i, delta_i and alpha_ir by the
 * formulas of mixture/rows.cl, the last finishes dQ and adds the rows' part of dshift, and the workspace holds the rows
 * only between the blocks.
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
/* dshift is summed where rows are finished, without a kernel for it. */
#define SHIFT_INSIDE (WANT_SHIFT && ROWS_INSIDE)
#define HAS_KEY_ROWS (WANT_Q || (SHIFT_INSIDE && SCORE_GAUSSIAN))
/* dprior must be right where pi is 0, or so small that P is: the sums of such components are made without it. */
#define PRIOR_APART  (WANT_PRIOR && HAS_PRIOR)
#define HAS_KEY_SUMS (WANT_PRIOR || EXPECTATION || (SCORE_GAUSSIAN && (WANT_K || WANT_SHIFT)))
/* Sums over keys are the kernel of queries' where there is one (mixture/backward_queries.cl). */
#define KEEPS_ROW_SUMS (HAS_ROW_SUMS && !QUERIES_APART)
/* The bias' row sums are those of all components, unless a soft-cap comes between. */
#define BIAS_SUMS_APART (HAS_BIAS_ROW_SUMS && (HAS_SOFTCAP || !KEEPS_ROW_SUMS))
#define HAS_ENTRY_SUMS  (KEEPS_ROW_SUMS || HAS_BIAS_ROW_SUMS) /* the lane engine's alone */
#define BIAS_SUM        (KEEPS_ROW_SUMS ? COMPONENTS : 0)
#define ENTRY_SUMS      (HAS_ENTRY_SUMS ? BIAS_SUM + BIAS_SUMS_APART : 1)
#define VARIANCES       (HAS_VARIANCE ? COMPONENTS : 1)

#if ROWS_INSIDE
#define SOON          (2 * PRODUCTS + 10) /* slots: see below */
#define SOON_FEATURES ((3 * PRODUCTS * HEAD_SIZE + 2 * VALUE_SIZE) / 2)
#endif

#define KEEP_PLACES (COMPONENTS == 1 || KEYS_SHIFTED) /* SIMT: registers are short with all keys of more */

#include "engine/backward.clh"

#include "attention/backward.clh"

#include "mixture/score.clh"

/* Logarithm of the least prior, 2^-66, that sums for dprior are divided by. */
#define PRIOR_TINY (-66.0f * UNITS_PER_OCTAVE)

/* 1: the kernel knows that a work-group has one block of keys: so it is with QUERIES_APART, but for sequences that are
 * longer than the average. It saves registers in NVIDIA's compiler and costs some in AMD's. */
#define ONE_BLOCK (QUERIES_APART && WHOLE_CHUNKS && !HAS_SEQUENCES)

/* How much of the second-level cache a next task's rows of queries, and with them its other arrays, may take. */
#define AHEAD_BYTES     (512 << 10)
#define AHEAD_ROW_BYTES ((2 * PRODUCTS * HEAD_SIZE + 2 * HEAD_SIZE + 4 * VALUE_SIZE) * (int)sizeof(storage))

/* Row values of the block's keys. */
typedef struct key_values {
    real beta[HAS_KEY_TERMS ? PANELS : 1][COMPONENTS][BLOCK_ROWS];    /* as in mixture/score.clh */
    real log_prior[HAS_PRIOR ? PANELS : 1][COMPONENTS][BLOCK_ROWS];   /* log pi_r(j) */
    real w[HAS_FACTORED ? PANELS : 1][COMPONENTS][BLOCK_ROWS];        /* w_jr */
    real top[HAS_FACTORED ? PANELS : 1][BLOCK_ROWS];                  /* B_j / c; 0 where no component has a prior */
    real own[HAS_FACTORED ? PANELS : 1][BLOCK_ROWS];                  /* spread of log w_jr, over r and 0 */
    real sum[HAS_KEY_SUMS ? PANELS : 1][COMPONENTS][BLOCK_ROWS];      /* sum_i dS_ijr */
    real apart[PRIOR_APART ? PANELS : 1][COMPONENTS][BLOCK_ROWS];     /* the same without pi_r(j), where it is tiny */
    real variance[WANT_VARIANCE ? PANELS : 1][VARIANCES][BLOCK_ROWS]; /* sum_i dS_ijr score_ijr */
    real bias[HAS_BIAS_KEY_SUMS ? PANELS : 1][BLOCK_ROWS];            /* sum_i sum_r dS_ijr */
    float shift[SHIFT_INSIDE ? COMPONENTS : 1][HEAD_SIZE];            /* dshift, but for its factor and b_r's term */
    float shift_weight[COMPONENTS];                                   /* sum_i R_ir of its rows */
    float spread;                                                     /* the largest `own` of the block */
    bool tiny;                                                        /* the block has a tiny prior */
} key_values;

/* Terms of a tile's queries, visible to all keys. */
typedef struct query_terms {
    KEY_SPACE float *log, *log_low;      /* log_i; HAS_LSE_LOW: what its float lacks */
    KEY_SPACE float *delta;              /* delta_i */
    KEY_SPACE float (*alpha)[TILE_KEYS]; /* alpha_ir */
    KEY_SPACE float (*u)[TILE_KEYS];     /* u_ir */
    KEY_SPACE float *top;                /* A_i */
    KEY_SPACE float *spread;             /* of alpha_ir, over r */
#if ROWS_INSIDE
    float (*row_sums)[TILE_KEYS]; /* sum_j dS_ijr of the blocks so far */
#endif
} query_terms;

/* Where a (b, h) finds its arrays: element 0 of its rows and keys. */
typedef struct places {
    __global const storage *q, *k, *v, *grad_o, *o;
    __global const float *lse, *lse_low, *grad_lse; /* grad_lse: 0 where it is not given */
    __global storage *grad_q;
    __global float *work;     /* the workspace */
    __global float *query;    /* this split's rows of dQ */
    __global float *row_sums; /* and of the row sums, component 0 */
    long bh;                  /* b H + h of the arrays */
    long row;                 /* number of its first row in the regions [rows] */
    __global const float *prior, *shift, *bias;
    __global float *grad_bias;
    __global float *gamma;
    float slope; /* in units of scores */
} places;

/* ---- keys ---------------------------------------------------------------------------------------------------- */

/* A block of keys, and the head that it is at. */
typedef struct pair_block {
    grad_engine *g;
    const mgk_attention_args *a;
    const problem *p;
    const places *at;
    const components *x;
    const query_terms *t;
    key_values *key;
    int k0; /* its first key */
} key_block;

#include "mixture/pairs.clh"

FUNCTION ireal is_tiny(const key_values *key, int panel, int r, int v)
{
    return key->log_prior[panel][r][v] < (real)(PRIOR_TINY);
}

/* Adds 2^e_ijr t_ij, e_ijr without the prior, to the sum for dprior of a tiny one. It may leave the range of a float.
 */
FUNCTION void add_apart(key_values *key, int panel, int r, int v, real e, real t)
{
    const real octaves = e * OCTAVES_PER_UNIT;
    const real part = octaves < (real)(128.0f) ? exp2_real(octaves - 1.0f) : (e != e ? e : (real)(INFINITY));
    const ireal adds = is_tiny(key, panel, r, v) && t != (real)(0.0f);
    key->apart[panel][r][v] += adds ? part * t * 2.0f : (real)(0.0f);
}

/* log pi_r(j) of a panel. */
FUNCTION void panel_priors(const key_block *b, int panel, int r)
{
    const mgk_attention_args *const a = b->a;
    real prior[BLOCK_ROWS];
    ROWS_FOR(v)
        b->key->log_prior[panel][r][v] = (real)(b->x->log_prior[r]);
    if (!a->prior.token)
        return;
    rows_load(b->g, b->at->prior + r * a->prior.component, b->k0 + panel * PANEL_ROWS, b->p->keys, 1.0f, prior);
    ROWS_FOR(v)
        b->key->log_prior[panel][r][v] = LOG_PRIOR(prior[v]);
}

/* beta_jr of a panel. */
FUNCTION void panel_betas(const key_block *b, int panel, int r)
{
    const int size = b->a->head_size;
    real norm[BLOCK_ROWS], product[BLOCK_ROWS];
    ROWS_FOR(v)
        norm[v] = product[v] = (real)(0.0f);
    if (SCORE_GAUSSIAN && KEYS_SHIFTED) {
        panel_norm(b->g, panel, 0, norm);
        panel_dot(b->g, panel, b->at->shift + r * size, size, product);
    } else if (SCORE_GAUSSIAN) {
        panel_norm(b->g, panel, r, norm);
    }
    ROWS_FOR(v)
        b->key->beta[panel][r][v] = key_beta(b->x, r, norm[v], product[v]);
}

/* B_j, w_jr and their spread of a panel, from beta_jr, which becomes relative to B_j. */
FUNCTION void panel_factors(const key_block *b, int panel)
{
    key_values *const key = b->key;
    real largest = (real)(0.0f);
    ROWS_FOR(v) {
        real beta[COMPONENTS], log_prior[COMPONENTS], w[COMPONENTS], top, spread;
        COPIES_FOR(r, 0, COMPONENTS) {
            beta[r] = key->beta[panel][r][v];
            log_prior[r] = HAS_PRIOR ? key->log_prior[panel][r][v] : (real)(0.0f);
        }
        key_factors(b->x, beta, log_prior, w, &top, &spread);
        COPIES_FOR(r, 0, COMPONENTS) {
            key->beta[panel][r][v] = beta[r];
            key->w[panel][r][v] = w[r];
            if (PRIOR_APART) /* of a component without a prior: add_apart has it for all queries at once */
                largest = max_real(largest, beta[r]);
        }
        key->top[panel][v] = top_in_product(b->x, finite_max(top));
        /* without a prior nothing bounds E_ij */
        key->own[panel][v] = top == (real)(-INFINITY) ? (real)(INFINITY) : spread;
        largest = max_real(largest, key->own[panel][v]);
    }
    const float block_spread = rows_max_all(&b->g->base, largest);
    key->spread = block_spread > key->spread ? block_spread : key->spread;
}

/* Begins the sum for a tiny prior of component r, and finds whether there are such. */
FUNCTION void apart_clear(const key_block *b, int panel, int r)
{
    key_values *const key = b->key;
    real tiny = (real)(0.0f);
    ROWS_FOR(v) {
        key->apart[panel][r][v] = (real)(0.0f);
        tiny = is_tiny(key, panel, r, v) ? (real)(1.0f) : tiny;
    }
    key->tiny = rows_max_all(&b->g->base, tiny) > 0.0f || key->tiny;
}

/* Begins the sums over queries. */
FUNCTION void panel_sums_clear(const key_block *b, int panel)
{
    key_values *const key = b->key;
    if (HAS_KEY_SUMS)
        COPIES_FOR(r, 0, COMPONENTS)
            ROWS_FOR(v)
                key->sum[panel][r][v] = (real)(0.0f);
#define APART(r) apart_clear(b, panel, r)
    if (PRIOR_APART)
        COPIES(APART, COMPONENTS);
    if (WANT_VARIANCE)
        COPIES_FOR(r, 0, VARIANCES)
            ROWS_FOR(v)
                key->variance[panel][r][v] = (real)(0.0f);
    if (HAS_BIAS_KEY_SUMS)
        ROWS_FOR(v)
            key->bias[panel][v] = (real)(0.0f);
}

FUNCTION void panel_begin(const key_block *b, int panel)
{
#define PRIORS(r) panel_priors(b, panel, r)
    if (HAS_PRIOR)
        COPIES(PRIORS, COMPONENTS);
#define BETAS(r) panel_betas(b, panel, r)
    if (HAS_KEY_TERMS)
        COPIES(BETAS, COMPONENTS);
    panel_sums_clear(b, panel);
    if (HAS_FACTORED)
        panel_factors(b, panel);
}

/* ---- queries ------------------------------------------------------------------------------------------------- */

/* A_i, u_ir and their spread of queries c .. of a tile; raises FLAG_SPREAD where the factored form must not be used. */
FUNCTION void query_factors(const key_block *b, int c)
{
    const query_terms *const t = b->t;
    kreal alpha[COMPONENTS], u[COMPONENTS], top, spread;
    COPIES_FOR(r, 0, COMPONENTS)
        alpha[r] = key_vector(t->alpha[r], c);
    row_factors(b->x, alpha, u, &top, &spread);
    COPIES_FOR(r, 0, COMPONENTS)
        key_put(t->u[r], c, u[r]);
    key_put(t->top, c, top);
    key_put(t->spread, c, spread);
    flag_raise(&b->g->base, FLAG_SPREAD, !is_factored(spread, (kreal)(b->key->spread)));
}

#if ROWS_INSIDE
/* Terms of the queries i0 + c .., lane = query, as mixture/rows.cl makes them. */
FUNCTION void prepare_terms(const key_block *b, int i0, int c)
{
    const mgk_attention_args *const a = b->a;
    const places *const at = b->at;
    const query_terms *const t = b->t;
    const int limit = b->p->valid, first = i0 + c;
    kreal norm = (kreal)(0.0f), product[COMPONENTS];
    if (HAS_ROW_TERMS || ROW_NORM_LATER)
        queries_dot(b->g, c, at->shift, KEYS_SHIFTED ? COMPONENTS : 0, a->head_size, &norm, product);
    for (int r = 0; r < ALPHA_TERMS; ++r)
        key_put(t->alpha[r], c, row_alpha(norm, KEYS_SHIFTED ? product[r] : (kreal)(0.0f), b->x->scale[r]));
    if (ROW_NORM_TERM)
        key_put(t->alpha[ALPHA_TERMS], c, row_norm_term(norm, a->scale));

    const kreal l = entries_load(at->lse, a->lse.token, first, limit, -INFINITY);
    kreal delta = (kreal)(0.0f);
    if (at->grad_lse)
        delta = entries_load(at->grad_lse, a->lse.token, first, limit, 0.0f);
    if (HAS_SCORE_GRADIENTS)
        delta -= grad_out_dot(b->g, c, at->o, a->o.token, first, limit, a->value_size);
    kreal log_low, l_low = (kreal)(0.0f);
    if (HAS_LSE_LOW)
        l_low = entries_load(at->lse_low, a->lse.token, first, limit, 0.0f);
    const kreal high = log_in_units(l, l_low, &log_low);
    log_low = -log_low;
    const kreal log_row = row_log(a, -high, norm, &log_low);
    if (HAS_LSE_LOW)
        key_put(t->log_low, c, l == (kreal)(-INFINITY) ? (kreal)(0.0f) : log_low);
    key_put(t->log, c, l == (kreal)(-INFINITY) ? (kreal)(-INFINITY) : log_row);
    key_put(t->delta, c, l == (kreal)(-INFINITY) ? (kreal)(0.0f) : delta);
}
#endif

/* The workspace's values of the head's rows from i0 on. */
typedef struct row_regions {
    __global float *log, *log_low, *delta, *alpha, *row_sums, *query;
} row_regions;

FUNCTION row_regions row_regions_of(const key_block *b, int i0)
{
    const mgk_attention_args *const a = b->a;
    const places *const at = b->at;
    const row_regions x = {at->work + a->region[MGK_REGION_LOG] + at->row + i0,
                           at->work + a->region[MGK_REGION_LOG_LOW] + at->row + i0,
                           at->work + a->region[MGK_REGION_DELTA] + at->row + i0,
                           at->work + a->region[MGK_REGION_ALPHA] + at->bh * ROW_TERMS * a->length +
                               (at->row - at->bh * a->length) + i0,
                           at->row_sums + i0,
                           at->query + (long)i0 * HEAD_SIZE};
    return x;
}

/* A tile of queries: `rows` of the array, of which `entries` see keys; is this block of keys the first, the last that
 * it meets? Without ROWS_INSIDE it is neither. */
typedef struct query_tile {
    int i0, rows, entries;
    bool first, last;
} query_tile;

/* Terms of the tile's queries. */
FUNCTION void tile_terms(const key_block *b, const query_tile *tile)
{
    const query_terms *const t = b->t;
    const long length = b->a->length;
    const int entries = tile->entries;
    const row_regions rows = row_regions_of(b, tile->i0);
    TILE_KEYS_FOR(&b->g->base, c, ROWS_INSIDE ? tile->rows : TILE_KEYS) {
        if (ROWS_INSIDE && c >= entries) { /* what finishes dQ asks for these alone */
            key_put(t->log, c, (kreal)(-INFINITY));
            continue;
        }
        if (EXPECTATION)
            key_put(t->log, c, entries_below(c, entries));
#if ROWS_INSIDE
        if (tile->first)
            prepare_terms(b, tile->i0, c);
#endif
        if (!EXPECTATION && !tile->first) {
            key_put(t->log, c, key_load(rows.log, c, entries, -INFINITY));
            key_put(t->delta, c, key_load(rows.delta, c, entries, 0.0f));
            if (HAS_LSE_LOW)
                key_put(t->log_low, c, key_load(rows.log_low, c, entries, 0.0f));
        }
        if (!tile->first)
            for (int r = 0; r < ROW_TERMS; ++r)
                key_put(t->alpha[r], c, key_load(rows.alpha + r * length, c, entries, 0.0f));
        if (HAS_FACTORED)
            query_factors(b, c);
    }
    sync_keys(&b->g->base);
}

#if ROWS_INSIDE
/* Begins the sums over keys of the tile's queries. */
FUNCTION void tile_sums_begin(const key_block *b, const query_tile *tile)
{
    const row_regions rows = row_regions_of(b, tile->i0);
    if (WANT_Q)
        grad_queries_begin(b->g, tile->first ? 0 : rows.query, tile->rows);
    if (KEEPS_ROW_SUMS)
        for (int r = 0; r < COMPONENTS; ++r)
            for (int c = 0; c < TILE_KEYS; c += LANES)
                key_put(b->t->row_sums[r], c,
                        tile->first ? (kreal)(0.0f)
                                    : key_load(rows.row_sums + r * (long)b->a->length, c, tile->rows, 0.0f));
}

/* What other blocks read of the tile's queries. */
FUNCTION void tile_keep(const key_block *b, const query_tile *tile)
{
    const query_terms *const t = b->t;
    const long length = b->a->length;
    const row_regions rows = row_regions_of(b, tile->i0);
    if (tile->last)
        return;
    if (KEEPS_ROW_SUMS)
        for (int r = 0; r < COMPONENTS; ++r)
            entries_keep(t->row_sums[r], rows.row_sums + r * length, tile->rows);
    if (tile->first) {
        entries_keep(t->log, rows.log, tile->rows);
        if (HAS_LSE_LOW)
            entries_keep(t->log_low, rows.log_low, tile->rows);
        entries_keep(t->delta, rows.delta, tile->rows);
        for (int r = 0; r < ROW_TERMS; ++r)
            entries_keep(t->alpha[r], rows.alpha + r * length, tile->rows);
    }
    if (WANT_Q)
        grad_queries_keep(b->g, rows.query, tile->rows);
}

/* Rows of dQ, as mixture_rows_finish makes them. */
FUNCTION void tile_finish(const key_block *b, const query_tile *tile)
{
    const mgk_attention_args *const a = b->a;
    const places *const at = b->at;
    const query_terms *const t = b->t;
    const bool add = is_added(&a->bound, SLOT_GRAD_Q);
    for (int c = 0; c < tile->rows; ++c) {
        const int i = tile->i0 + c;
        const bool seen = t->log[c] != -INFINITY;
        float own = 0.0f, component[COMPONENTS]; /* R_ir / sigma_r^2 */
        if (at->grad_lse && seen)
            own = KEEPS_ROW_SUMS ? 0.0f : at->grad_lse[i * a->lse.token] * (-a->scale * NATS_PER_UNIT);
        for (int r = 0; KEEPS_ROW_SUMS && r < COMPONENTS; ++r) {
            component[r] = t->row_sums[r][c] * (b->x->scale[r] * NATS_PER_UNIT);
            own -= SCORE_GAUSSIAN ? component[r] : 0.0f;
        }
        grad_query_store(b->g, c, HAS_VARIANCE ? 1.0f : a->scale * NATS_PER_UNIT, own, component, at->shift,
                         KEYS_SHIFTED && KEEPS_ROW_SUMS ? COMPONENTS : 0, seen, at->grad_q + i * a->grad_q.token,
                         a->head_size, add);
    }
}
#endif

#if SHIFT_INSIDE
FUNCTION void shift_begin(key_values *key)
{
    for (int r = 0; r < COMPONENTS; ++r) {
        key->shift_weight[r] = 0.0f;
        for (int d = 0; d < HEAD_SIZE; ++d)
            key->shift[r][d] = 0.0f;
    }
}

/* sum_i R_ir q_i of a finished tile. What a row holds that sees no key is not looked at. */
FUNCTION void tile_shift(const key_block *b, const query_tile *tile)
{
    const query_terms *const t = b->t;
    float weight[COMPONENTS][TILE_KEYS];
    for (int r = 0; r < COMPONENTS; ++r) {
        kreal sum = (kreal)(0.0f);
        for (int c = 0; c < tile->rows; c += LANES) {
            const ireal unseen = key_vector(t->log, c) == (kreal)(-INFINITY);
            const kreal x = unseen ? (kreal)(0.0f) : key_vector(t->row_sums[r], c);
            key_put(weight[r], c, x);
            sum += x;
        }
        b->key->shift_weight[r] += lanes_total(sum);
    }
    queries_join(b->g, weight[0], tile->rows, b->key->shift);
}

/* - sum_j C_jr k_j of a panel's keys, C their sums. */
FUNCTION void panel_shift(const key_block *b, int panel)
{
    float weight[COMPONENTS][PANEL_ROWS];
    for (int r = 0; r < COMPONENTS; ++r)
        ROWS_FOR(v)
            vstore_real(-b->key->sum[panel][r][v], v, weight[r]);
    keys_join(b->g, panel, weight[0], b->key->shift);
}

/* A head's part of dshift, with what earlier blocks of keys left. */
FUNCTION void store_shift(const key_block *b)
{
    const mgk_attention_args *const a = b->a;
    const key_values *const key = b->key;
    __global float *out = b->at->work + a->region[MGK_REGION_SLICES] + b->at->bh * COMPONENTS * a->head_size;
    for (int r = 0; r < COMPONENTS; ++r) {
        const float scale = b->x->scale[r] * NATS_PER_UNIT, own = SCORE_GAUSSIAN ? -key->shift_weight[r] : 0.0f;
        for (int d = 0; d < a->head_size; ++d) {
            const int i = r * a->head_size + d;
            const float part = fma(own, b->at->shift[i], key->shift[r][d]) * scale;
            out[i] = b->k0 == 0 ? part : out[i] + part;
        }
    }
}
#endif

/* A tile of queries that a panel meets. */
typedef struct panel_tile {
    int panel, k0;  /* the panel, its first key */
    int i0;         /* the tile's first query */
    int begin, end; /* entries that see any of the panel's keys, from a sub-tile's first on */
    int edge;       /* entry c sees none of the panel's keys from edge + c on */
    bool factored;  /* all pairs take the factored form */
    bool masked;    /* some query does not see some key */
} panel_tile;

/* ---- entries: a query and a vector of keys ---------------------------------------------------------------------- */

/* Product r into its slot. */
FUNCTION void product_scores(const key_block *b, const panel_tile *m, int sub, int r)
{
    const int panel = m->panel;
    real s[BLOCK_KEYS][BLOCK_ROWS];
    KEYS_FOR(u)
        ROWS_FOR(v) {
            const entry n = entry_at(panel, sub, u, v);
            s[u][v] = product_start(b, &n, r);
        }
    key_product(b->g, panel, sub, r, m->edge, s);
    KEYS_FOR(u)
        ROWS_FOR(v)
            slot_put(b->g, r, sub, u, v, s[u][v]);
}

FUNCTION void block_scores(const key_block *b, const panel_tile *m, int sub)
{
#define SCORES(r) product_scores(b, m, sub, r)
    COPIES(SCORES, PRODUCTS);
}

FUNCTION const components *components_of(const key_block *b)
{
    return b->x;
}

FUNCTION float softcap_of(const key_block *b)
{
    return b->a->softcap;
}

FUNCTION real alpha_of(const key_block *b, const entry *n, int r)
{
    return (real)(key_get(&b->g->base, b->t->alpha[r], n->sub, n->u));
}

FUNCTION real u_of(const key_block *b, const entry *n, int r)
{
    return (real)(key_get(&b->g->base, b->t->u[r], n->sub, n->u));
}

FUNCTION real row_top(const key_block *b, const entry *n)
{
    return (real)(key_get(&b->g->base, b->t->top, n->sub, n->u));
}

FUNCTION real row_spread(const key_block *b, const entry *n)
{
    return (real)(key_get(&b->g->base, b->t->spread, n->sub, n->u));
}

FUNCTION real beta_of(const key_block *b, const entry *n, int r)
{
    return b->key->beta[n->panel][r][n->v];
}

FUNCTION real log_prior_of(const key_block *b, const entry *n, int r)
{
    return b->key->log_prior[n->panel][r][n->v];
}

FUNCTION real w_of(const key_block *b, const entry *n, int r)
{
    return b->key->w[n->panel][r][n->v];
}

FUNCTION real key_top(const key_block *b, const entry *n)
{
    return b->key->top[n->panel][n->v];
}

FUNCTION real key_spread(const key_block *b, const entry *n)
{
    return b->key->own[n->panel][n->v];
}

#if PRIOR_APART
FUNCTION void entry_apart(const key_block *b, const entry *n, int r, real bare)
{
    if (b->key->tiny)
        /* P <= 1, whatever the rounding of log_i */
        add_apart(b->key, n->panel, r, n->v, min_real(-b->key->log_prior[n->panel][r][n->v], bare), n->t);
}
#endif

#if WANT_VARIANCE
/* Hidden: dS is 0 and so must be the product, even if a score is not finite. */
FUNCTION void entry_variance(const key_block *b, const entry *n, int r, real ds, real own)
{
    real score = own; /* alone */
    if (ROW_NORM_TERM)
        score += key_get(&b->g->base, b->t->alpha[ALPHA_TERMS], n->sub, n->u);
    const real part = ds == (real)(0.0f) ? ds : ds * score;
    b->key->variance[n->panel][VARIANCES == 1 ? 0 : r][n->v] += part;
}
#endif

/* Responsibilities of query i's entry: gamma_ijr = 2^e_ijr / sum_r 2^e_ijr; hard: one-hot. `k0`: the panel's
 * first key. */
FUNCTION void entry_responsibilities(const key_block *b, const entry *n, int k0, int i, real (*key_sums)[BLOCK_ROWS])
{
    const mgk_attention_args *const a = b->a;
    real best = (real)(-INFINITY), best_own = best, sum = (real)(0.0f);
    ireal arg = (ireal)(0);
    COMPONENTS_FOR(r) {
        const score x_ijr = entry_score(b, n, r);
        const ireal better = x_ijr.own > best_own;
        arg = better ? (ireal)(r) : arg;
        best_own = max_or_nan(best_own, x_ijr.own);
        best = max_or_nan(best, x_ijr.e);
    }
    const real base = finite_max(best);
    COMPONENTS_FOR(r)
        sum += power_of(entry_score(b, n, r).e - base);
    const real seen = best == (real)(-INFINITY) ? (real)(0.0f) : (real)(1.0f);
    COMPONENTS_FOR(r) {
        real gamma;
        if (ESTEP_HARD)
            gamma = arg == (ireal)(r) ? seen : (real)(0.0f);
        else
            gamma = seen == (real)(0.0f) ? seen : power_of(entry_score(b, n, r).e - base) / sum;
        key_sums[r][n->v] += gamma;
        if (WANT_GAMMA && i < b->p->valid)
            keys_add(b->g, b->at->gamma + ((long)r * a->length + i) * a->length_k + k0, n->v, gamma, b->p->keys - k0);
    }
}

/* ---- tiles ----------------------------------------------------------------------------------------------------- */

/* An entry's part of dbias, sum_r dS_ijr. */
FUNCTION void add_bias(const key_block *b, const panel_tile *m, int i, int v, real gradient)
{
    if (HAS_BIAS_KEY_SUMS)
        b->key->bias[m->panel][v] += gradient;
    else if (HAS_BIAS_ENTRIES && i < b->p->valid)
        keys_add(b->g, b->at->grad_bias + i * b->a->bias.component + m->k0, v, gradient, b->p->keys - m->k0);
}

/* Query u of a sub-tile and all the panel's keys; `d`: dO_i.v_j. */
FUNCTION void query_gradients(const key_block *b, const panel_tile *m, int sub, int u, const real *d,
                              real (*key_sums)[BLOCK_ROWS])
{
    const engine *const e = &b->g->base;
    const places *const at = b->at;
    const int i = m->i0 + key_index(e, sub, u);
    int begin = 0, count = 0;
    if (m->masked) {
        begin = first_key(b->a, b->p, i);
        count = end_key(b->a, b->p, i) - begin;
    }
    real row_sums[COMPONENTS], total = (real)(0.0f);
    COMPONENTS_FOR(r)
        row_sums[r] = (real)(0.0f);
    ROWS_FOR(v) {
        const ireal j = row_index(e, m->k0, v);
        entry n = entry_at(m->panel, sub, u, v);
        real log = (real)(key_get(e, b->t->log, sub, u));
        if (m->masked)
            log = is_outside(j, (ireal)(begin), (ireal)(count)) ? (real)(-INFINITY) : log;
        n.common = terms_of_log(log, (real)(HAS_LSE_LOW ? key_get(e, b->t->log_low, sub, u) : 0.0f));
        add_entry_modifiers(b->g, b->a, b->p, at->bias, at->slope, m->k0, i, v, &n.common);
        if (EXPECTATION) {
            entry_responsibilities(b, &n, m->k0, i, key_sums);
        } else {
            entry_sums sums;
            sums.key = key_sums;
            sums.row = row_sums;
            n.keep = (real)(1.0f);
            if (HAS_DROPOUT)
                n.keep = keep_of(b->a, (uint)(b->p->b * b->a->heads) + (uint)(at->bh % b->a->heads), i, j);
            n.t = fma(d[v], n.keep, (real)(key_get(e, b->t->delta, sub, u)));
            entry_gradients(b, &n, m->factored, &sums);
            total += sums.gradient;
            add_bias(b, m, i, v, sums.gradient);
        }
    }
#if HAS_ENTRY_SUMS
    if (KEEPS_ROW_SUMS)
        COMPONENTS_FOR(r)
            entry_sums_add(b->g, r, sub, u, row_sums[r]);
    if (BIAS_SUMS_APART)
        entry_sums_add(b->g, BIAS_SUM, sub, u, total);
#endif
}

/* Joins a tile's sums per key to the panel's. */
FUNCTION void add_key_sums(const key_block *b, const panel_tile *m, real (*sums)[BLOCK_ROWS])
{
    key_values *const key = b->key;
    const int panel = m->panel;
    COMPONENTS_FOR(r)
        ROWS_FOR(v) {
            if (HAS_FACTORED && PRIOR_APART && m->factored && key->tiny)
                add_apart(key, panel, r, v, key->beta[panel][r][v], sums[r][v]);
            if (HAS_FACTORED && m->factored)
                sums[r][v] *= key->w[panel][r][v];
            key->sum[panel][r][v] += sums[r][v];
        }
}

/* Scores, weights, and the products with them. */
FUNCTION void tile_gradients(const key_block *b, const panel_tile *m)
{
    grad_engine *const g = b->g;
    const int panel = m->panel;
    real key_sums[COMPONENTS][BLOCK_ROWS];
    COMPONENTS_FOR(r)
        ROWS_FOR(v)
            key_sums[r][v] = (real)(0.0f);
    for (int sub = m->begin / BLOCK_KEYS; SUB_TILES == 1 ? sub < 1 : sub * BLOCK_KEYS < m->end; ++sub) {
        real d[BLOCK_KEYS][BLOCK_ROWS];
#if ROWS_INSIDE
        fetch_soon(&g->base);
#endif
        block_scores(b, m, sub);
        KEYS_FOR(u)
            ROWS_FOR(v)
                d[u][v] = (real)(0.0f);
        if (HAS_SCORE_GRADIENTS)
            value_product(g, panel, 0, 0, sub, m->edge, d);
#if ROWS_INSIDE
        fetch_soon(&g->base);
#endif
        KEYS_FOR(u)
            query_gradients(b, m, sub, u, d[u], key_sums);
    }
    if (HAS_KEY_SUMS)
        add_key_sums(b, m, key_sums);
    if (WANT_V)
        accumulate_values(g, panel, 0, 0, PRODUCTS, m->begin, m->end, m->edge);
#define ACCUMULATE_KEYS(r) accumulate_keys(g, panel, r, r, m->begin, m->end, m->edge)
    if (HAS_GRAD_KEYS)
        COPIES(ACCUMULATE_KEYS, PRODUCTS);
#if WANT_Q && ROWS_INSIDE
    scatter_queries(g, panel, 0, PRODUCTS, 0, g->grad_queries, m->begin, m->end, m->edge);
#elif WANT_Q
    scatter_queries(g, panel, 0, PRODUCTS, 0, b->at->query + (long)m->i0 * HEAD_SIZE, m->begin, m->end, m->edge);
#endif
}

#if HAS_ENTRY_SUMS
/* The sums over the block's keys of a tile's queries to global memory. */
FUNCTION void store_entry_sums(const key_block *b, int i0, int entries, const bool factored)
{
    const places *const at = b->at;
    __global float *const bias = at->work + b->a->region[MGK_REGION_BIAS] + at->row + i0;
#if ROWS_INSIDE
    if (KEEPS_ROW_SUMS)
        COPIES_FOR(r, 0, COMPONENTS)
            entry_sums_join(b->g, r, HAS_FACTORED && factored ? b->t->u[r] : 0, b->t->row_sums[r], entries);
#else
    if (KEEPS_ROW_SUMS)
        for (int r = 0; r < COMPONENTS; ++r)
            entry_sums_store(b->g, r, HAS_FACTORED && factored ? b->t->u[r] : 0,
                             at->row_sums + r * (long)b->a->length + i0, entries);
#endif
    if (BIAS_SUMS_APART)
        entry_sums_store(b->g, BIAS_SUM, 0, bias, entries);
    else if (HAS_BIAS_ROW_SUMS)
        COPIES_FOR(r, 0, COMPONENTS)
            entry_sums_store(b->g, r, HAS_FACTORED && factored ? b->t->u[r] : 0, bias, entries);
}
#endif

#if ROWS_INSIDE
enum {
    SOON_TILE_Q,
    SOON_TILE_O,
    SOON_TILE_GRAD_O,
    SOON_TILE_GRAD_Q,
    SOON_Q,
    SOON_O,
    SOON_GRAD_O,
    SOON_GRAD_Q,
    SOON_V,
    SOON_GRAD_V,
    SOON_K,
    SOON_GRAD_K = SOON_K + PRODUCTS
};

/* So many first rows of the next task are prefetched. */
FUNCTION int rows_of_next(const mgk_attention_args *a)
{
    return min(a->length, AHEAD_BYTES / AHEAD_ROW_BYTES);
}

/* Announces the rows of a tile of queries, for the products of the tile before. */
FUNCTION void tile_soon(const key_block *b, int i0)
{
    engine *const e = &b->g->base;
    const mgk_attention_args *const a = b->a;
    const places *const at = b->at;
    const int keys = min(b->p->keys - b->k0, GROUP_ROWS), end = min(i0 + TILE_KEYS, b->p->valid);
    const int steps = max(2 * ((keys + PANEL_ROWS - 1) / PANEL_ROWS) * SUB_TILES, 1);
    if (b->k0 == 0 && i0 < rows_of_next(a)) /* the task before has had them fetched */
        return;
    rows_ahead(e, SOON_TILE_Q, at->q, a->q.token, i0, end, a->head_size, steps);
    rows_ahead(e, SOON_TILE_GRAD_O, at->grad_o, a->grad_o.token, i0, end, a->value_size, steps);
    if (b->k0 == 0)
        rows_ahead(e, SOON_TILE_O, at->o, a->o.token, i0, end, a->value_size, steps);
    if (WANT_Q && b->k0 + GROUP_ROWS >= b->p->keys)
        rows_ahead(e, SOON_TILE_GRAD_Q, at->grad_q, a->grad_q.token, i0, end, a->head_size, steps);
}
#endif

/* The first of the tiles of queries i0, i0 + TILE_KEYS, ... that the block of keys meets, or -1. Only the first block
 * may pass over tiles: with ROWS_INSIDE it has those whose queries see nothing, too. */
FUNCTION int met_tile(const key_block *b, int i0, int end)
{
#if ROWS_INSIDE
    for (int first, last; i0 < end; i0 += TILE_KEYS) {
        tile_blocks(b->a, b->p, i0, min(i0 + TILE_KEYS, b->p->valid), &first, &last);
        if (first <= b->k0 && b->k0 <= last)
            break;
    }
#endif
    return i0 < end ? i0 : -1;
}

/* All tiles of queries that meet the block of keys. */
FUNCTION void block_queries(const key_block *b)
{
    grad_engine *const g = b->g;
    const mgk_attention_args *const a = b->a;
    const problem *const p = b->p;
    int begin, end;
    block_rows(a, p, b->k0, &begin, &end);
    if (ROWS_INSIDE && b->k0 == 0) { /* queries that see no key have gradients too: 0 */
        begin = 0;
        end = p->rows;
    }
    for (int i0 = begin; i0 < end; i0 += TILE_KEYS) {
        const int stop = min(i0 + TILE_KEYS, p->valid);
        query_tile tile = {i0, min(p->rows - i0, TILE_KEYS), stop - i0, false, false};
#if ROWS_INSIDE
        int first, last;
        tile_blocks(a, p, i0, stop, &first, &last);
        if (b->k0 < first || b->k0 > last)
            continue;
        tile.first = b->k0 == first;
        tile.last = b->k0 == last;
#endif
        const int next = met_tile(b, i0 + TILE_KEYS, end);
#if ROWS_INSIDE
        if (next >= 0)
            tile_soon(b, next);
#endif
        queries_stage(g, b->at->q, 0, a->q.token, i0, p->valid, a->head_size, tile_at(b->at->q, next));
        grad_out_stage(g, 1, b->at->grad_o, 0, a->grad_o.token, i0, p->valid, a->value_size,
                       tile_at(b->at->grad_o, next));
        tile_terms(b, &tile);
#if ROWS_INSIDE
        tile_sums_begin(b, &tile);
#endif
        bool factored = false;
        if (HAS_FACTORED)
            factored = !flag_read(&g->base, FLAG_SPREAD);
#if HAS_ENTRY_SUMS
        entry_sums_clear(g);
#endif
        for (int panel = 0; panel < PANELS; ++panel) {
            const int first = b->k0 + panel * PANEL_ROWS;
            panel_tile m = {panel, first, i0, 0, stop - i0, edge_of(a, p, i0, first), factored, false};
            if (!panel_meets(a, p, m.k0, i0, stop, &m.masked))
                continue;
            if (SUB_TILES > 1)
                panel_entries(a, p, m.k0, i0, &m.begin, &m.end);
            tile_gradients(b, &m);
            branch_end();
        }
#if HAS_ENTRY_SUMS
        store_entry_sums(b, i0, stop - i0, factored);
#endif
#if ROWS_INSIDE
        tile_keep(b, &tile);
        if (WANT_Q && tile.last)
            tile_finish(b, &tile);
#endif
#if SHIFT_INSIDE
        if (tile.last)
            tile_shift(b, &tile);
#endif
        tile_end(g);
    }
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

/* Component r's key sums of a panel, for dprior or the counts, and for dshift. `keys`: of the array. */
FUNCTION void store_key_sums(const key_block *b, int panel, int r, int keys)
{
    const mgk_attention_args *const a = b->a;
    key_values *const key = b->key;
    const int first = b->k0 + panel * PANEL_ROWS;
    const long row = (b->at->bh * COMPONENTS + r) * a->length_k + b->p->key_base;
    rows_sum(&b->g->base, key->sum[panel][r]);
    if (WANT_PRIOR || EXPECTATION) {
        real stored[BLOCK_ROWS];
        ROWS_FOR(v)
            stored[v] = key->sum[panel][r][v];
        if (PRIOR_APART) {
            rows_sum(&b->g->base, key->apart[panel][r]);
            ROWS_FOR(v)
                stored[v] = is_tiny(key, panel, r, v) ? key->apart[panel][r][v]
                                                      : stored[v] * power_of(-key->log_prior[panel][r][v]);
        }
        rows_store(&b->g->base, stored, b->at->work + a->region[MGK_REGION_KEY_SUMS] + row, 1, first, keys);
    }
#if WANT_SHIFT && SCORE_GAUSSIAN && !ROWS_INSIDE
    rows_store(&b->g->base, key->sum[panel][r], b->at->work + a->region[MGK_REGION_SHIFT] + row, 1, first, keys);
#endif
}

/* Gaussian: - sum_i dS_ijr k_jr to dK [/ sigma_r^2 where the sums of products have it]. */
FUNCTION void add_own_keys(const key_block *b, int panel, int r)
{
    const components *const x = b->x;
    const int size = b->a->head_size, product = KEYS_SHIFTED ? 0 : r;
    real factor[BLOCK_ROWS];
    ROWS_FOR(v)
        factor[v] = -b->key->sum[panel][r][v] * (HAS_VARIANCE ? x->scale[r] * NATS_PER_UNIT : 1.0f);
    if (KEYS_SHIFTED)
        grad_keys_add_row(b->g, panel, b->at->shift + r * size, size, factor);
    grad_keys_add_keys(b->g, panel, product, factor);
}

/* What a head leaves in a panel's keys: the terms of dK without a product, and the regions of key sums. */
FUNCTION void panel_finish(const key_block *b, int panel, int keys)
{
    const mgk_attention_args *const a = b->a;
    key_values *const key = b->key;
    const int first = b->k0 + panel * PANEL_ROWS;
    if (HAS_KEY_SUMS)
        COPIES_FOR(r, 0, COMPONENTS) {
            store_key_sums(b, panel, r, keys);
            if (WANT_K && SCORE_GAUSSIAN)
                add_own_keys(b, panel, r);
        }
#if SHIFT_INSIDE && SCORE_GAUSSIAN
    panel_shift(b, panel);
#endif
    if (WANT_VARIANCE)
        COPIES_FOR(r, 0, VARIANCES) {
            const long row = (b->at->bh * VARIANCES + r) * a->length_k + b->p->key_base;
            rows_sum(&b->g->base, key->variance[panel][r]);
            rows_store(&b->g->base, key->variance[panel][r], b->at->work + a->region[MGK_REGION_VARIANCE] + row, 1,
                       first, keys);
        }
    if (HAS_BIAS_KEY_SUMS) {
        rows_sum(&b->g->base, key->bias[panel]);
        rows_store(&b->g->base, key->bias[panel],
                   b->at->work + a->region[MGK_REGION_BIAS] + b->at->bh * a->length_k + b->p->key_base, 1, first, keys);
    }
}

#if ROWS_INSIDE

/* Steps of rows_ahead in a block of keys: two for each sub-tile of a panel; causality hides half of the diagonal's. */
FUNCTION int steps_of(const mgk_attention_args *a, const problem *p, int k0, int keys)
{
    int begin, end;
    block_rows(a, p, k0, &begin, &end);
    const int rows = end - begin, hidden = a->right < 0 ? 0 : min(rows, keys) / 2;
    const int panels = (keys + PANEL_ROWS - 1) / PANEL_ROWS;
    return max(2 * panels * ((rows - hidden + BLOCK_KEYS - 1) / BLOCK_KEYS), 1);
}

/* Arrays of a task, element 0 of the first head. */
typedef struct task_arrays {
    __global const storage *q, *k, *v, *o, *grad_o, *grad_q;
} task_arrays;

/* Announces, for the products of a block of keys, its rows of dK and dV, and keys and values of the next block: if that
 * is the next task's (groups are mostly run in order), first rows of the other arrays too. `x`: of the next task. */
FUNCTION void block_soon(const key_block *b, int keys, bool has_next, const task_arrays *x, __global const storage *dk,
                         __global const storage *dv)
{
    engine *const e = &b->g->base;
    const mgk_attention_args *const a = b->a;
    const int end = min(b->k0 + GROUP_ROWS, keys), steps = steps_of(a, b->p, b->k0, end - b->k0);
    const bool ends = end == keys;
    rows_arrived(e);
    for (int r = 0; WANT_K && r < PRODUCTS; ++r)
        rows_ahead(e, SOON_GRAD_K + r, dk + r * a->grad_k.component, a->grad_k.token, b->k0, end, a->head_size, steps);
    if (WANT_V)
        rows_ahead(e, SOON_GRAD_V, dv, a->grad_v.token, b->k0, end, a->value_size, steps);
    if (!ends || has_next) {
        __global const storage *const k = ends ? x->k : b->at->k, *const v = ends ? x->v : b->at->v;
        const int first = ends ? 0 : end, last = min(first + GROUP_ROWS, ends ? a->length_k : keys);
        for (int r = 0; r < PRODUCTS; ++r)
            rows_ahead(e, SOON_K + r, k + r * a->k.component, a->k.token, first, last, a->head_size, steps);
        rows_ahead(e, SOON_V, v, a->v.token, first, last, a->value_size, steps);
    }
    if (ends && has_next) {
        const int rows = rows_of_next(a);
        rows_ahead(e, SOON_Q, x->q, a->q.token, 0, rows, a->head_size, steps);
        rows_ahead(e, SOON_O, x->o, a->o.token, 0, rows, a->value_size, steps);
        rows_ahead(e, SOON_GRAD_O, x->grad_o, a->grad_o.token, 0, rows, a->value_size, steps);
        if (WANT_Q)
            rows_ahead(e, SOON_GRAD_Q, x->grad_q, a->grad_q.token, 0, rows, a->head_size, steps);
    }
    rows_announced(e);
}
#endif

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
    KEY_SPACE float log_low_terms[HAS_LSE_LOW ? TILE_KEYS : 1];
    KEY_SPACE float alpha_terms[HAS_ROW_TERMS ? ROW_TERMS : 1][TILE_KEYS];
    KEY_SPACE float u_terms[HAS_FACTORED ? COMPONENTS : 1][TILE_KEYS];
#if ROWS_INSIDE
    float row_sums[KEEPS_ROW_SUMS ? COMPONENTS : 1][TILE_KEYS];
    const query_terms t = {log_terms, log_low_terms, delta_terms,  alpha_terms,
                           u_terms,   top_terms,     spread_terms, row_sums};
#else
    const query_terms t = {log_terms, log_low_terms, delta_terms, alpha_terms, u_terms, top_terms, spread_terms};
#endif
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

        /* with ROWS_INSIDE the first block finishes queries that see nothing */
        const int end = ROWS_INSIDE ? max(keys, 1) : keys;
        for (int k0 = split * GROUP_ROWS; k0 < end; k0 = ONE_BLOCK ? end : k0 + a.splits * GROUP_ROWS) {
            key_block b = {&g, &a, &p, &at, &x, &t, &key, k0};
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
                at.o = o + p.batch * a.o.batch + h * a.o.head + p.row_base * a.o.token;
                const long row_lse = p.batch * a.lse.batch + h * a.lse.head + p.row_base * a.lse.token;
                at.lse = lse + row_lse;
                at.lse_low = lse_low + row_lse;
                at.grad_lse = is_given(&a.bound, SLOT_GRAD_LSE) ? grad_lse + row_lse : 0;
                at.grad_q = grad_q + p.batch * a.grad_q.batch + h * a.grad_q.head + p.row_base * a.grad_q.token;
                at.work = work;
                at.query = work + a.region[MGK_REGION_QUERY] + (split * rows + at.row) * HEAD_SIZE;
                at.row_sums =
                    work + a.region[MGK_REGION_ROW_SUMS] + (split * rows + at.bh * a.length) * COMPONENTS + p.row_base;
                at.bias = HAS_BIAS ? bias_of(&a, &p, h, bias) : 0;
                at.slope = HAS_ALIBI ? slopes[h] * UNITS_PER_NAT : 0.0f;
                if (HAS_BIAS_ENTRIES) {
                    at.grad_bias = a.bias_copies == 0
                                       ? grad_bias
                                       : work + a.region[MGK_REGION_BIAS] + chunk * (a.bias_batches * a.bias.batch);
                    at.grad_bias += (p.batch % a.bias_batches) * a.bias.batch + h * a.bias.head +
                                    p.row_base * a.bias.component + p.key_base * a.bias.token;
                }
                if (WANT_GAMMA)
                    at.gamma =
                        gamma + at.bh * COMPONENTS * a.length * a.length_k + p.row_base * (long)a.length_k + p.key_base;
#if ROWS_INSIDE
                if (h == (kv_head + 1) * group - 1) {
                    const long next_b = (task + 1) / a.kv_heads, next_g = (task + 1) % a.kv_heads,
                               next_h = next_g * group;
                    const task_arrays next = {q + next_b * a.q.batch + next_h * a.q.head,
                                              k + next_b * a.k.batch + next_g * a.k.head,
                                              v + next_b * a.v.batch + next_g * a.v.head,
                                              o + next_b * a.o.batch + next_h * a.o.head,
                                              grad_o + next_b * a.grad_o.batch + next_h * a.grad_o.head,
                                              grad_q + next_b * a.grad_q.batch + next_h * a.grad_q.head};
                    block_soon(&b, keys, task + 1 < list, &next, dk, dv);
                }
#endif
                components_begin(&x, &a, h, at.prior, variance, at.shift);
                key.spread = 0.0f;
                key.tiny = false;
#if SHIFT_INSIDE
                shift_begin(&key);
#endif
                for (int panel = 0; panel < PANELS; ++panel) {
                    const int first = k0 + panel * PANEL_ROWS;
                    if (HAS_VARIANCE || h == kv_head * group)
                        panel_load_keys(&g, panel, at.k, a.k.component, a.k.token, first, p.keys, a.head_size, 0);
                    panel_begin(&b, panel);
                }
                block_queries(&b);
                for (int panel = 0; panel < PANELS; ++panel)
                    panel_finish(&b, panel, keys);
#if SHIFT_INSIDE
                store_shift(&b);
#endif
            }
            for (int panel = 0; panel < PANELS; ++panel) {
                const int first = k0 + panel * PANEL_ROWS;
                if (WANT_K)
                    PRODUCTS_FOR(r)
                        store_keys(&g, panel, r, HAS_VARIANCE ? 1.0f : a.scale * NATS_PER_UNIT,
                                   dk + r * a.grad_k.component, a.grad_k.token, first, keys, a.head_size,
                                   is_added(&a.bound, SLOT_GRAD_K));
                if (WANT_V)
                    store_values(&g, panel, 0, dv, a.grad_v.token, first, keys, a.value_size,
                                 is_added(&a.bound, SLOT_GRAD_V));
            }
            branch_end();
        }
    }
    branch_end();
}
