/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts of operations and parameters: against the papers' formulas, and against layers computed in plain loops on a
 * tape, where every multiplication and addition is counted, and those of the backward pass by going the tape back. The
 * loops' results are the reference's, so they are the variants' formulas.
 */
#include "clmgk/counts.h"
#include "harness/harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a tape ---------------------------------------------------------------------------------------------------- */

/* FREE: a function of one number, which is not counted. DRAWN: a deviation times a drawn number: only its gradient
 * is counted. */
typedef enum origin { GIVEN, LEARNED, MUL, ADD, FREE, DRAWN } origin;

typedef struct node {
    origin kind;
    clmgk_part part;
    int64_t of[2];
    double value;
    bool active, reached; /* gradients reach it; one has */
} node;

#define ROOM (1 << 16)

typedef struct tape {
    node *nodes; /* [ROOM] */
    int64_t count;
    clmgk_part part; /* of new nodes */
    clmgk_counts counts;
    uint32_t random;
} tape;

static int64_t add_node(tape *t, node one)
{
    assert_in_range(t->count, 0, ROOM - 1);
    one.part = t->part;
    t->nodes[t->count] = one;
    return t->count++;
}

static double value(const tape *t, int64_t a)
{
    return t->nodes[a].value;
}

static int64_t mul(tape *t, int64_t a, int64_t b)
{
    t->counts.forward[t->part].multiplications++;
    return add_node(t, (node){.kind = MUL,
                              .of = {a, b},
                              .value = value(t, a) * value(t, b),
                              .active = t->nodes[a].active || t->nodes[b].active});
}

static int64_t add(tape *t, int64_t a, int64_t b)
{
    t->counts.forward[t->part].additions++;
    return add_node(t, (node){.kind = ADD,
                              .of = {a, b},
                              .value = value(t, a) + value(t, b),
                              .active = t->nodes[a].active || t->nodes[b].active});
}

static int64_t make_free(tape *t, int64_t a, double result)
{
    return add_node(t, (node){.kind = FREE, .of = {a, a}, .value = result, .active = t->nodes[a].active});
}

static int64_t drawn(tape *t, int64_t deviation, double number)
{
    return add_node(
        t, (node){.kind = DRAWN, .of = {deviation, deviation}, .value = value(t, deviation) * number, .active = true});
}

#define NOTHING (-1)

/* A sum's next term. */
static int64_t sum(tape *t, int64_t so_far, int64_t term)
{
    return so_far == NOTHING ? term : add(t, so_far, term);
}

/* Numbers between `low` and 1. */
static int64_t *leaves(tape *t, origin kind, int64_t count, double low)
{
    int64_t *const list = calloc((size_t)count, sizeof(*list));
    assert_non_null(list);
    for (int64_t i = 0; i < count; i++) {
        t->random = t->random * 1664525U + 1013904223U;
        const double number = low + (1 - low) * (double)(t->random >> 8) / (1 << 24);
        list[i] = add_node(t, (node){.kind = kind, .value = number, .active = kind == LEARNED});
    }
    return list;
}

/* Numbers that are learned. */
static int64_t *parameters(tape *t, clmgk_part part, int64_t count, double low)
{
    t->part = part;
    t->counts.parameters[part] += (double)count;
    return leaves(t, LEARNED, count, low);
}

static int64_t *list_of(int64_t count)
{
    int64_t *const list = calloc((size_t)count, sizeof(*list));
    assert_non_null(list);
    return list;
}

/* A gradient reaches `a`, by an operation of `part`. */
static void reach(tape *t, int64_t a, clmgk_part part)
{
    if (!t->nodes[a].active)
        return;
    t->counts.backward[part].additions += t->nodes[a].reached;
    t->nodes[a].reached = true;
}

/* The gradients of results that were reached. */
static void go_back(tape *t)
{
    for (int64_t n = t->count - 1; n >= 0; n--) {
        const node one = t->nodes[n];
        if (!one.reached || one.kind == GIVEN || one.kind == LEARNED)
            continue;
        const int64_t operands = one.kind == MUL || one.kind == ADD ? 2 : 1;
        for (int64_t i = 0; i < operands; i++) {
            const bool product = one.kind == MUL || one.kind == DRAWN;
            t->counts.backward[one.part].multiplications += product && t->nodes[one.of[i]].active;
            reach(t, one.of[i], one.part);
        }
    }
}

/* ---- layers in loops -------------------------------------------------------------------------------------------- */

/* The descriptor's sizes as in the formulas; X is the number of different mixtures. */
typedef struct layer {
    tape *t;
    clmgk_attention_desc desc;
    clmgk_ref_problem problem; /* for its noise */
    int64_t B, H, G, M, N, S, D, E, F, X;
    double root; /* of D */
    uint32_t traits;
    int64_t *q, *k, *v, *o; /* tokens first */
    int64_t *mix, *weight, *offset, *hidden_offset, *after, *noise, *prior, *shift, *projection, *state_c, *state_z;
} layer;

static bool is(const layer *l, uint32_t trait)
{
    return (l->traits & trait) != 0;
}

/* [rows,columns] = x [rows,width] w^T, with new weights w */
static int64_t *project(tape *t, const int64_t *x, int64_t rows, int64_t width, int64_t columns, clmgk_part part)
{
    int64_t *const w = parameters(t, part, columns * width, -1), *const y = list_of(rows * columns);
    for (int64_t n = 0; n < rows * columns; n++) {
        y[n] = NOTHING;
        for (int64_t i = 0; i < width; i++)
            y[n] = sum(t, y[n], mul(t, x[n / columns * width + i], w[n % columns * width + i]));
    }
    free(w);
    return y;
}

static int64_t dot(tape *t, const int64_t *a, const int64_t *b, int64_t count)
{
    int64_t result = NOTHING;
    for (int64_t i = 0; i < count; i++)
        result = sum(t, result, mul(t, a[i], b[i]));
    return result;
}

static int64_t key_head(const layer *l, int64_t h)
{
    return h * l->G / l->H;
}

/* Noise of (b,h,i,j) of global head k. */
static int64_t noise_of(const layer *l, int64_t b, int64_t h, int64_t k, int64_t i, int64_t j)
{
    return drawn(l->t, l->noise[k], clmgk_ref_noise(&l->problem, b, h, i, j));
}

static int64_t times_weight(const layer *l, int64_t h, int64_t k, int64_t mixed)
{
    const double relu = fmax(value(l->t, mixed), 0);
    if (!is(l, CLMGK_TRAIT_GENERALISED))
        return mixed;
    const int64_t passed = make_free(l->t, mixed, relu);
    return l->weight ? mul(l->t, l->weight[h * l->M + k], passed) : passed;
}

static int64_t mix_of(const layer *l, int64_t h, int64_t k)
{
    return l->mix[is(l, CLMGK_TRAIT_SHARED_MIX) ? k : h * l->M + k];
}

/* [M] numbers of a place, with the noise of all heads (h = 0) or of head h. */
static void add_noise(const layer *l, int64_t b, int64_t h, int64_t i, int64_t j, const int64_t *numbers,
                      int64_t *noisy)
{
    for (int64_t k = 0; k < l->M; k++)
        noisy[k] = l->noise ? add(l->t, numbers[k], noise_of(l, b, h, k, i, j)) : numbers[k];
}

/* The softmax's weights a [N,S] of (b,h), of numbers e^w. */
static void make_weights(const layer *l, const int64_t *logits, int64_t *a)
{
    for (int64_t i = 0; i < l->N; i++) {
        double total = 0;
        for (int64_t j = 0; j < l->S; j++)
            total += value(l->t, logits[i * l->S + j]);
        for (int64_t j = 0; j < l->S; j++)
            a[i * l->S + j] = make_free(l->t, logits[i * l->S + j], value(l->t, logits[i * l->S + j]) / total);
    }
}

/* sum_r e^s_ijr with dot scores */
static int64_t mixture_weight(const layer *l, int64_t b, int64_t h, int64_t i, int64_t j, const int64_t *of_shifts)
{
    const bool shifts = is(l, CLMGK_TRAIT_SHIFT), keys = is(l, CLMGK_TRAIT_KEYS);
    const int64_t *const q = l->q + (b * l->N + i) * l->H * l->D + h * l->D;
    const int64_t own = keys ? l->M : 1;
    int64_t base = NOTHING, result = NOTHING;
    for (int64_t r = 0; r < l->M; r++) {
        const int64_t head = key_head(l, h) * own + (keys ? r : 0);
        if (keys || r == 0)
            base = dot(l->t, q, l->k + (b * l->S + j) * l->G * own * l->D + head * l->D, l->D);
        const int64_t score = shifts ? add(l->t, base, of_shifts[r]) : base;
        const double prior = l->prior ? value(l->t, l->prior[h * l->M + r]) : 1 / (double)l->M;
        result = sum(l->t, result, make_free(l->t, score, prior * exp(value(l->t, score) / l->root)));
    }
    return result;
}

/* a [B,H,N,S] */
static int64_t *mixture_matrices(const layer *l)
{
    int64_t *const a = list_of(l->B * l->H * l->N * l->S), *const logits = list_of(l->N * l->S);
    int64_t *const of_shifts = list_of(l->M);
    for (int64_t n = 0; n < l->B * l->H; n++) {
        const int64_t b = n / l->H, h = n % l->H;
        for (int64_t i = 0; i < l->N; i++) {
            for (int64_t r = 0; r < l->M && is(l, CLMGK_TRAIT_SHIFT); r++)
                of_shifts[r] =
                    dot(l->t, l->q + (b * l->N + i) * l->H * l->D + h * l->D, l->shift + (h * l->M + r) * l->D, l->D);
            for (int64_t j = 0; j < l->S; j++)
                logits[i * l->S + j] = mixture_weight(l, b, h, i, j, of_shifts);
        }
        make_weights(l, logits, a + n * l->N * l->S);
    }
    free(logits);
    free(of_shifts);
    return a;
}

/* e^(A_hij / sqrt(D)) */
static int64_t mixed_weight(const layer *l, int64_t h, const int64_t *scores)
{
    int64_t mixed = NOTHING;
    for (int64_t k = 0; k < l->M; k++)
        mixed = sum(l->t, mixed, times_weight(l, h, k, mul(l->t, mix_of(l, h, k), scores[k])));
    if (l->offset)
        mixed = add(l->t, mixed, l->offset[h]);
    return make_free(l->t, mixed, exp(value(l->t, mixed) / l->root));
}

/* r_uij, its relu */
static int64_t hidden_unit(const layer *l, int64_t u, const int64_t *scores)
{
    int64_t mixed = NOTHING;
    for (int64_t k = 0; k < l->M; k++)
        mixed = sum(l->t, mixed, mul(l->t, l->mix[u * l->M + k], scores[k]));
    if (l->hidden_offset)
        mixed = add(l->t, mixed, l->hidden_offset[u]);
    return make_free(l->t, mixed, fmax(value(l->t, mixed), 0));
}

/* e^(A_hij / sqrt(D)) of hidden units */
static int64_t hidden_weight(const layer *l, int64_t h, const int64_t *units)
{
    int64_t mixed = NOTHING;
    for (int64_t u = 0; u < l->desc.mix_hidden; u++)
        mixed = sum(l->t, mixed, l->weight ? mul(l->t, l->weight[h * l->desc.mix_hidden + u], units[u]) : units[u]);
    if (l->offset)
        mixed = add(l->t, mixed, l->offset[h]);
    return make_free(l->t, mixed, exp(value(l->t, mixed) / l->root));
}

/* A pair's logits, `pairs` apart, by hidden units. */
static void mix_hidden(const layer *l, int64_t b, int64_t i, int64_t j, const int64_t *scores, int64_t *logits)
{
    int64_t noisy[8] = {0}, units[8] = {0};
    for (int64_t u = 0; u < l->desc.mix_hidden; u++) {
        if (u == 0 || !l->desc.shared_noise)
            add_noise(l, b, u, i, j, scores, noisy);
        units[u] = hidden_unit(l, u, noisy);
    }
    for (int64_t h = 0; h < l->X; h++)
        logits[h * l->N * l->S] = hidden_weight(l, h, units);
}

/* a [B,X,N,S] */
static int64_t *admixture_matrices(const layer *l)
{
    const int64_t pairs = l->N * l->S;
    int64_t *const a = list_of(l->B * l->X * pairs), *const logits = list_of(l->X * pairs);
    int64_t scores[8] = {0}, noisy[8] = {0};
    for (int64_t b = 0; b < l->B; b++) {
        for (int64_t n = 0; n < pairs; n++) {
            const int64_t i = n / l->S, j = n % l->S;
            for (int64_t k = 0; k < l->M; k++)
                scores[k] = dot(l->t, l->q + ((b * l->N + i) * l->M + k) * l->D,
                                l->k + ((b * l->S + j) * l->M + k) * l->D, l->D);
            if (l->desc.mix_hidden > 0)
                mix_hidden(l, b, i, j, scores, logits + n);
            for (int64_t h = 0; l->desc.mix_hidden == 0 && h < l->X; h++) {
                if (h == 0 || !l->desc.shared_noise)
                    add_noise(l, b, h, i, j, scores, noisy);
                logits[h * pairs + n] = mixed_weight(l, h, noisy);
            }
        }
        for (int64_t h = 0; h < l->X; h++)
            make_weights(l, logits + h * pairs, a + (b * l->X + h) * pairs);
    }
    free(logits);
    return a;
}

/* sum_a m_ha P_a [B,H,N,S], of the X matrices that are mixed after the softmax, as many or one for all */
static int64_t *mix_matrices(const layer *l, const int64_t *a)
{
    const int64_t pairs = l->N * l->S, after = l->desc.mix_after_heads;
    int64_t *const mixed = list_of(l->B * l->H * pairs);
    for (int64_t n = 0; n < l->B * l->H * pairs; n++) {
        const int64_t b = n / (l->H * pairs), h = n / pairs % l->H;
        mixed[n] = NOTHING;
        for (int64_t k = 0; k < after; k++)
            mixed[n] = sum(l->t, mixed[n],
                           mul(l->t, l->after[h * after + k], a[(b * l->X + (l->X == 1 ? 0 : k)) * pairs + n % pairs]));
    }
    return mixed;
}

static void sum_values(layer *l, const int64_t *a)
{
    const int64_t matrices = l->desc.mix_after_heads > 0 ? l->H : l->X;
    l->t->part = CLMGK_PART_VALUES;
    l->o = list_of(l->B * l->N * l->H * l->E);
    for (int64_t n = 0; n < l->B * l->N * l->H * l->E; n++) {
        const int64_t e = n % l->E, h = n / l->E % l->H, i = n / (l->E * l->H) % l->N, b = n / (l->E * l->H * l->N);
        const int64_t *const row = a + ((b * matrices + (matrices == 1 ? 0 : h)) * l->N + i) * l->S;
        l->o[n] = NOTHING;
        for (int64_t j = 0; j < l->S; j++)
            l->o[n] = sum(l->t, l->o[n], mul(l->t, row[j], l->v[((b * l->S + j) * l->G + key_head(l, h)) * l->E + e]));
    }
}

/* ---- linear family in loops */

/* phi [F] of x [D] */
static void map_features(const layer *l, const int64_t *x, int64_t *phi)
{
    const int64_t D = l->D;
    int64_t r[16] = {0};
    double norm = 0;
    for (int64_t d = 0; d < D; d++)
        norm += value(l->t, x[d]) * value(l->t, x[d]);
    for (int64_t m = 0; m < 2 * D; m++)
        r[m] = make_free(l->t, x[m % D], fmax(m < D ? value(l->t, x[m]) : -value(l->t, x[m - D]), 0));
    for (int64_t f = 0; f < l->F; f++) {
        if (l->desc.feature == CLMGK_FEATURE_DPFP) {
            const int64_t i = f / (2 * D) + 1, m = f % (2 * D);
            phi[f] = mul(l->t, r[m], r[(m - i + 2 * D * i) % (2 * D)]);
        } else if (l->desc.feature == CLMGK_FEATURE_FAVOR) {
            const int64_t u = dot(l->t, l->projection + f * D, x, D);
            phi[f] =
                make_free(l->t, u, exp(value(l->t, u) / sqrt(l->root) - norm / (2 * l->root)) / sqrt((double)l->F));
        } else {
            const double at = value(l->t, x[f]);
            phi[f] = make_free(l->t, x[f], at > 0 ? at + 1 : exp(at));
        }
    }
}

static int64_t *map_all(const layer *l, const int64_t *x, int64_t vectors)
{
    int64_t *const phi = list_of(vectors * l->F);
    for (int64_t n = 0; n < vectors; n++)
        map_features(l, x + n * l->D, phi + n * l->F);
    return phi;
}

/* phi [F] of component r of the key of a token and head, shifted if the variant does so */
static void key_component(const layer *l, int64_t token, int64_t h, int64_t r, const int64_t *phi, int64_t *out)
{
    const int64_t own = is(l, CLMGK_TRAIT_KEYS) ? l->M : 1, head = token * l->G + key_head(l, h);
    int64_t shifted[8] = {0};
    if (phi != NULL) {
        memcpy(out, phi + (head * own + (own > 1 ? r : 0)) * l->F, (size_t)l->F * sizeof(*out));
        return;
    }
    for (int64_t d = 0; d < l->D; d++)
        shifted[d] = add(l->t, l->k[head * l->D + d], l->shift[(h * l->M + r) * l->D + d]);
    map_features(l, shifted, out);
}

/* psi [B,S,P,F], P = M of mixed heads, else H */
static int64_t *key_features(const layer *l)
{
    const int64_t tokens = l->B * l->S;
    if (is(l, CLMGK_TRAIT_ADMIXTURE))
        return map_all(l, l->k, tokens * l->M);
    const bool shifts = is(l, CLMGK_TRAIT_SHIFT), prior = is(l, CLMGK_TRAIT_PRIOR);
    int64_t *const phi = shifts ? NULL : map_all(l, l->k, tokens * l->G * (prior ? l->M : 1));
    int64_t *const psi = list_of(tokens * l->H * l->F), *const component = list_of(l->F);
    for (int64_t n = 0; n < tokens * l->H; n++) {
        const int64_t h = n % l->H;
        int64_t *const at = psi + n * l->F;
        for (int64_t r = 0; r < l->M; r++) {
            key_component(l, n / l->H, h, r, phi, component);
            for (int64_t f = 0; f < l->F; f++)
                at[f] = prior ? sum(l->t, r ? at[f] : NOTHING, mul(l->t, l->prior[h * l->M + r], component[f]))
                              : component[f];
        }
    }
    free(component);
    free(phi);
    return psi;
}

/* x [B,N,X,W]: W = M F of mixed heads, else F */
static int64_t *query_features(const layer *l)
{
    if (!is(l, CLMGK_TRAIT_ADMIXTURE))
        return map_all(l, l->q, l->B * l->N * l->H);
    int64_t *const phi = map_all(l, l->q, l->B * l->N * l->M);
    int64_t *const x = list_of(l->B * l->N * l->X * l->M * l->F);
    for (int64_t n = 0; n < l->B * l->N * l->F; n++) {
        const int64_t f = n % l->F, row = n / l->F, b = row / l->N, i = row % l->N;
        int64_t numbers[8] = {0}, noisy[8] = {0};
        for (int64_t k = 0; k < l->M; k++)
            numbers[k] = phi[(row * l->M + k) * l->F + f];
        for (int64_t h = 0; h < l->X; h++) {
            if (h == 0 || !l->desc.shared_noise)
                add_noise(l, b, h, i, f, numbers, noisy);
            for (int64_t k = 0; k < l->M; k++)
                x[((row * l->X + h) * l->M + k) * l->F + f] =
                    times_weight(l, h, k, mul(l->t, mix_of(l, h, k), noisy[k]));
        }
    }
    free(phi);
    return x;
}

/* C [H,W,E] and z [P F] of batch b, P F = W of mixed heads, else H W. */
static void make_states(const layer *l, int64_t b, const int64_t *psi, int64_t *c, int64_t *z)
{
    const bool mixed = is(l, CLMGK_TRAIT_ADMIXTURE);
    const int64_t W = mixed ? l->M * l->F : l->F, sums = mixed ? W : l->H * W;
    for (int64_t n = 0; n < sums; n++) {
        z[n] = l->state_z ? l->state_z[b * sums + n] : NOTHING;
        for (int64_t j = 0; j < l->S; j++)
            z[n] = sum(l->t, z[n], psi[(b * l->S + j) * sums + n]);
    }
    for (int64_t n = 0; n < l->H * W * l->E; n++) {
        const int64_t e = n % l->E, w = n / l->E % W, h = n / (l->E * W);
        c[n] = l->state_c ? l->state_c[b * l->H * W * l->E + n] : NOTHING;
        for (int64_t j = 0; j < l->S; j++) {
            const int64_t token = b * l->S + j;
            c[n] = sum(l->t, c[n],
                       mul(l->t, psi[token * sums + (mixed ? 0 : h * W) + w],
                           l->v[(token * l->G + key_head(l, h)) * l->E + e]));
        }
    }
}

static void apply_states(layer *l, const int64_t *x, const int64_t *psi)
{
    const bool mixed = is(l, CLMGK_TRAIT_ADMIXTURE);
    const int64_t W = mixed ? l->M * l->F : l->F;
    int64_t *const c = list_of(l->H * W * l->E), *const z = list_of(l->H * W);
    int64_t *const inverse = list_of(l->X);
    l->t->part = CLMGK_PART_VALUES;
    l->o = list_of(l->B * l->N * l->H * l->E);
    for (int64_t row = 0; row < l->B * l->N; row++) {
        if (row % l->N == 0)
            make_states(l, row / l->N, psi, c, z);
        for (int64_t h = 0; h < l->X; h++) {
            const int64_t total = dot(l->t, x + (row * l->X + h) * W, z + (mixed ? 0 : h * W), W);
            inverse[h] = make_free(l->t, total, value(l->t, total) != 0 ? 1 / value(l->t, total) : 0);
        }
        for (int64_t n = 0; n < l->H * l->E; n++) {
            const int64_t h = n / l->E, own = l->X == 1 ? 0 : h;
            int64_t up = NOTHING;
            for (int64_t w = 0; w < W; w++)
                up = sum(l->t, up, mul(l->t, x[(row * l->X + own) * W + w], c[(h * W + w) * l->E + n % l->E]));
            l->o[row * l->H * l->E + n] = mul(l->t, up, inverse[own]);
        }
    }
    free(c);
    free(z);
    free(inverse);
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

static void take_parameters(layer *l)
{
    const clmgk_attention_desc *const d = &l->desc;
    const struct {
        clmgk_array array;
        int64_t **list;
        double low;
    } learned[] = {{CLMGK_ARRAY_PRIOR, &l->prior, 0.1},
                   {CLMGK_ARRAY_SHIFT, &l->shift, -1},
                   {CLMGK_ARRAY_MIX, &l->mix, 0.1},
                   {CLMGK_ARRAY_MIX_WEIGHT, &l->weight, 0.1},
                   {CLMGK_ARRAY_MIX_OFFSET, &l->offset, -1},
                   {CLMGK_ARRAY_NOISE, &l->noise, 0.01},
                   {CLMGK_ARRAY_MIX_HIDDEN_OFFSET, &l->hidden_offset, -1},
                   {CLMGK_ARRAY_MIX_AFTER, &l->after, -1}};
    for (size_t i = 0; i < TH_COUNT(learned); i++) {
        const int64_t count = clmgk_array_count(d, learned[i].array);
        *learned[i].list = count ? parameters(l->t, CLMGK_PART_SCORES, count, learned[i].low) : NULL;
    }
    if (!l->prior && is(l, CLMGK_TRAIT_PRIOR) && is(l, CLMGK_TRAIT_LINEAR)) { /* 1/M */
        l->prior = leaves(l->t, GIVEN, l->H * l->M, 1);
        for (int64_t n = 0; n < l->H * l->M; n++)
            l->t->nodes[l->prior[n]].value = 1 / (double)l->M;
    }
    l->projection = leaves(l->t, GIVEN, l->F * l->D, -1);
    l->state_c = d->use_state ? leaves(l->t, GIVEN, clmgk_array_count(d, CLMGK_ARRAY_STATE_C), 0) : NULL;
    l->state_z = d->use_state ? leaves(l->t, GIVEN, clmgk_array_count(d, CLMGK_ARRAY_STATE_Z), 1) : NULL;
}

/* The values of a list, [B,tokens,heads,size] as [B,heads,tokens,size]. */
static double *heads_first(const layer *l, const int64_t *list, int64_t tokens, int64_t heads, int64_t size)
{
    double *const out = malloc((size_t)(l->B * tokens * heads * size) * sizeof(*out));
    assert_non_null(out);
    for (int64_t n = 0; n < l->B * tokens * heads * size; n++) {
        const int64_t b = n / (heads * tokens * size), h = n / (tokens * size) % heads, i = n / size % tokens;
        out[n] = value(l->t, list[((b * tokens + i) * heads + h) * size + n % size]);
    }
    return out;
}

static double *values_of(const layer *l, const int64_t *list, clmgk_array array)
{
    const int64_t count = list ? clmgk_array_count(&l->desc, array) : 0;
    double *const out = malloc((size_t)(count + 1) * sizeof(*out));
    assert_non_null(out);
    for (int64_t n = 0; n < count; n++)
        out[n] = value(l->t, list[n]);
    return out;
}

/* O is the reference's. */
static void check_outputs(const layer *l)
{
    clmgk_ref_problem p = l->problem;
    const bool mixed = is(l, CLMGK_TRAIT_ADMIXTURE);
    const int64_t key_heads = mixed ? l->M : l->G * (is(l, CLMGK_TRAIT_KEYS) ? l->M : 1);
    void *arrays[CLMGK_ARRAYS] = {[CLMGK_ARRAY_Q] = heads_first(l, l->q, l->N, mixed ? l->M : l->H, l->D),
                                  [CLMGK_ARRAY_K] = heads_first(l, l->k, l->S, key_heads, l->D),
                                  [CLMGK_ARRAY_V] = heads_first(l, l->v, l->S, l->G, l->E),
                                  [CLMGK_ARRAY_PRIOR] = values_of(l, l->prior, CLMGK_ARRAY_PRIOR),
                                  [CLMGK_ARRAY_SHIFT] = values_of(l, l->shift, CLMGK_ARRAY_SHIFT),
                                  [CLMGK_ARRAY_MIX] = values_of(l, l->mix, CLMGK_ARRAY_MIX),
                                  [CLMGK_ARRAY_MIX_WEIGHT] = values_of(l, l->weight, CLMGK_ARRAY_MIX_WEIGHT),
                                  [CLMGK_ARRAY_MIX_OFFSET] = values_of(l, l->offset, CLMGK_ARRAY_MIX_OFFSET),
                                  [CLMGK_ARRAY_MIX_HIDDEN_OFFSET] =
                                      values_of(l, l->hidden_offset, CLMGK_ARRAY_MIX_HIDDEN_OFFSET),
                                  [CLMGK_ARRAY_MIX_AFTER] = values_of(l, l->after, CLMGK_ARRAY_MIX_AFTER),
                                  [CLMGK_ARRAY_NOISE] = values_of(l, l->noise, CLMGK_ARRAY_NOISE),
                                  [CLMGK_ARRAY_PROJECTION] = values_of(l, l->projection, CLMGK_ARRAY_PROJECTION),
                                  [CLMGK_ARRAY_STATE_C] = values_of(l, l->state_c, CLMGK_ARRAY_STATE_C),
                                  [CLMGK_ARRAY_STATE_Z] = values_of(l, l->state_z, CLMGK_ARRAY_STATE_Z)};
    double o[8], lse;
    clmgk_ref_set_arrays(&p, arrays);
    for (int64_t row = 0; row < l->B * l->H * l->N; row++) {
        const int64_t b = row / (l->H * l->N), h = row / l->N % l->H, i = row % l->N;
        assert_true(clmgk_ref_row(&p, row, o, &lse));
        for (int64_t e = 0; e < l->E; e++) {
            const double found = value(l->t, l->o[((b * l->N + i) * l->H + h) * l->E + e]);
            if (!(fabs(found - o[e]) <= 1e-9 * (1 + fabs(o[e]))))
                fail_msg("%s: row %" PRId64 ", element %" PRId64 ": %g in loops, %g by the reference",
                         clmgk_variant_name(l->desc.variant), row, e, found, o[e]);
        }
    }
    for (size_t i = 0; i < TH_COUNT(arrays); i++)
        free(arrays[i]);
}

static void compare_operations(const char *what, clmgk_part part, clmgk_operations found, clmgk_operations expected)
{
    if (found.multiplications != expected.multiplications || found.additions != expected.additions)
        fail_msg("%s, part %d: %.0f multiplications and %.0f additions, expected %.0f and %.0f", what, (int)part,
                 found.multiplications, found.additions, expected.multiplications, expected.additions);
}

static void compare_counts(const char *name, const clmgk_counts *found, const clmgk_counts *expected)
{
    char what[64];
    for (clmgk_part part = 0; part < CLMGK_PARTS; part++) {
        snprintf(what, sizeof(what), "%s, forward", name);
        compare_operations(what, part, found->forward[part], expected->forward[part]);
        snprintf(what, sizeof(what), "%s, backward", name);
        compare_operations(what, part, found->backward[part], expected->backward[part]);
        assert_true(found->parameters[part] == expected->parameters[part]);
    }
}

static layer start(tape *t, const clmgk_attention_desc *resolved)
{
    layer l = {.t = t, .desc = *resolved, .problem = {.desc = *resolved, .seed = 7}};
    l.traits = clmgk_variant_traits(resolved->variant);
    l.B = resolved->batch, l.H = resolved->heads, l.G = resolved->kv_heads;
    l.M = resolved->components, l.N = resolved->length, l.S = resolved->length_k;
    l.D = resolved->head_size, l.E = resolved->value_size, l.F = resolved->features;
    l.root = sqrt((double)l.D);
    l.X = is(&l, CLMGK_TRAIT_SHARED_MIX) && (!is(&l, CLMGK_TRAIT_NOISE) || resolved->shared_noise)
              ? 1
              : th_softmax_heads(resolved);
    return l;
}

/* Q, K and V of one input of width 5, or K and V of another of width 3, or V of a third of width 2. */
static void project_inputs(layer *l, bool cross, bool apart)
{
    const int64_t width = 5, width_k = cross ? 3 : width, width_v = apart ? 2 : width_k;
    const int64_t key_heads = is(l, CLMGK_TRAIT_ADMIXTURE) ? l->M : l->G * (is(l, CLMGK_TRAIT_KEYS) ? l->M : 1);
    int64_t *const x = leaves(l->t, LEARNED, l->B * l->N * width, -1);
    int64_t *const x2 = cross ? leaves(l->t, LEARNED, l->B * l->S * width_k, -1) : x;
    int64_t *const x3 = apart ? leaves(l->t, LEARNED, l->B * l->S * width_v, -1) : x2;
    l->q =
        project(l->t, x, l->B * l->N, width, (is(l, CLMGK_TRAIT_ADMIXTURE) ? l->M : l->H) * l->D, CLMGK_PART_QUERY_KEY);
    l->k = project(l->t, x2, l->B * l->S, width_k, key_heads * l->D, CLMGK_PART_QUERY_KEY);
    l->v = project(l->t, x3, l->B * l->S, width_v, l->G * l->E, CLMGK_PART_VALUE);
    if (apart)
        free(x3);
    if (cross)
        free(x2);
    free(x);
}

static void release(layer *l)
{
    int64_t *const lists[] = {l->q,     l->k,     l->v,          l->o,       l->mix,     l->weight, l->offset,
                              l->noise, l->prior, l->projection, l->state_c, l->state_z, l->shift,  l->hidden_offset,
                              l->after};
    for (size_t i = 0; i < TH_COUNT(lists); i++)
        free(lists[i]);
    free(l->t->nodes);
}

/* Counted as attention with projections, or, with inputs `apart` of keys and values, as a layer. */
static void check(const clmgk_attention_desc *desc, bool apart)
{
    const int64_t width_out = apart ? 5 : 4;
    tape t = {.nodes = calloc(ROOM, sizeof(*t.nodes)), .random = 1};
    clmgk_counts found = CLMGK_COUNTS_INIT;
    clmgk_attention_desc resolved = CLMGK_ATTENTION_DESC_INIT;
    if (t.nodes == NULL)
        abort();
    th_expect_ok(clmgk_attention_validate(desc, &resolved, &th_error));
    const bool cross = resolved.length != resolved.length_k;
    const clmgk_layer_desc whole = {.struct_size = sizeof(whole),
                                    .attention = desc,
                                    .width = width_out,
                                    .cross = 1,
                                    .width_k = 3,
                                    .cross_v = 1,
                                    .width_v = 2};
    th_expect_ok(apart ? clmgk_count_layer(&whole, &found, &th_error)
                       : clmgk_count_attention(desc, 5, cross ? 3 : 0, width_out, &found, &th_error));

    layer l = start(&t, &resolved);
    project_inputs(&l, cross, apart);
    take_parameters(&l);
    t.part = CLMGK_PART_SCORES;
    if (is(&l, CLMGK_TRAIT_LINEAR)) {
        int64_t *const x = query_features(&l), *const psi = key_features(&l);
        apply_states(&l, x, psi);
        free(x);
        free(psi);
    } else {
        int64_t *const a = is(&l, CLMGK_TRAIT_ADMIXTURE) ? admixture_matrices(&l) : mixture_matrices(&l);
        int64_t *const mixed = resolved.mix_after_heads > 0 ? mix_matrices(&l, a) : NULL;
        sum_values(&l, mixed ? mixed : a);
        free(mixed);
        free(a);
    }
    check_outputs(&l);
    int64_t *const y = project(&t, l.o, l.B * l.N, l.H * l.E, width_out, CLMGK_PART_OUTPUT);
    for (int64_t n = 0; n < l.B * l.N * width_out; n++)
        reach(&t, y[n], CLMGK_PART_OUTPUT);
    go_back(&t);
    compare_counts(clmgk_variant_name(desc->variant), &found, &t.counts);
    free(y);
    release(&l);
}

static clmgk_attention_desc describe(clmgk_variant variant, int64_t kv_heads, bool cross)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    const uint32_t traits = clmgk_variant_traits(variant);
    desc.variant = variant;
    desc.batch = 2;
    desc.heads = 4;
    desc.kv_heads = kv_heads;
    if (traits & (CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT | CLMGK_TRAIT_ADMIXTURE))
        desc.components = traits & CLMGK_TRAIT_SQUARE ? 4 : 3;
    desc.length = 3;
    desc.length_k = cross ? 5 : 3;
    desc.head_size = 2;
    desc.value_size = 3;
    if (variant == CLMGK_VARIANT_MGK || variant == CLMGK_VARIANT_SMGK)
        desc.score = CLMGK_SCORE_DOT;
    return desc;
}

TH_HOST_TEST(mixture_in_loops)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_MGK, CLMGK_VARIANT_SMGK};
    for (size_t n = 0; n < TH_COUNT(variants) * 8; n++) {
        clmgk_attention_desc desc = describe(variants[n / 8], n & 1 ? 2 : 4, n & 2);
        if (n & 4 && variants[n / 8] != CLMGK_VARIANT_SOFTMAX)
            desc.prior_shape = CLMGK_PRIOR_HM;
        check(&desc, false);
        if (n & 2)
            check(&desc, true);
    }
}

TH_HOST_TEST(admixture_in_loops)
{
    for (size_t n = 0; n < TH_COUNT(th_admixtures) * 8; n++) {
        const clmgk_variant variant = th_admixtures[n / 8];
        const uint32_t traits = clmgk_variant_traits(variant);
        clmgk_attention_desc desc = describe(variant, n & 1 ? 2 : 4, n & 2);
        desc.use_mix_weight = desc.use_mix_offset = traits & CLMGK_TRAIT_GENERALISED && !(n & 1);
        desc.shared_noise = traits & CLMGK_TRAIT_NOISE && n & 4;
        check(&desc, false);
    }
}

TH_HOST_TEST(hidden_layers_in_loops)
{
    for (size_t n = 0; n < 16; n++) {
        clmgk_attention_desc desc =
            describe(n & 8 ? CLMGK_VARIANT_GFISH : CLMGK_VARIANT_HARD_GFISH, n & 1 ? 2 : 4, n & 2);
        desc.mix_hidden = n & 4 ? 5 : 1;
        desc.use_mix_weight = !(n & 1);
        desc.use_mix_offset = !(n & 2);
        desc.use_mix_hidden_offset = !(n & 4);
        desc.shared_noise = n & 8 && n & 1;
        check(&desc, false);
    }
}

/* Three heads before the mixing, two or four after it. */
TH_HOST_TEST(mixing_after_the_softmax_in_loops)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_HARD_MISH, CLMGK_VARIANT_GFISH};
    for (size_t n = 0; n < TH_COUNT(variants) * 4; n++) {
        clmgk_attention_desc desc = describe(variants[n / 4], n & 1 ? 2 : 4, n & 2);
        desc.mix_after_heads = 3;
        desc.mix_hidden = n >= 8 && n & 1 ? 5 : 0;
        desc.use_mix_weight = desc.use_mix_offset = n >= 8;
        check(&desc, false);
    }
}

TH_HOST_TEST(linear_in_loops)
{
    static const clmgk_feature maps[] = {CLMGK_FEATURE_ELU1, CLMGK_FEATURE_DPFP, CLMGK_FEATURE_FAVOR};
    for (size_t n = 0; n < TH_COUNT(th_linears) * TH_COUNT(maps) * 8; n++) {
        const clmgk_variant variant = th_linears[n / 8 / TH_COUNT(maps)];
        const uint32_t traits = clmgk_variant_traits(variant);
        clmgk_attention_desc desc = describe(variant, n & 1 ? 2 : 4, n & 2);
        desc.feature = maps[n / 8 % TH_COUNT(maps)];
        desc.feature_order = desc.feature == CLMGK_FEATURE_DPFP ? 2 : 0;
        desc.features = desc.feature == CLMGK_FEATURE_FAVOR ? 5 : 0;
        desc.use_mix_weight = traits & CLMGK_TRAIT_GENERALISED && !(n & 1);
        desc.shared_noise = traits & CLMGK_TRAIT_NOISE && n & 4;
        if (traits & CLMGK_TRAIT_PRIOR && n & 4)
            desc.prior_shape = n & 1 ? CLMGK_PRIOR_HM : CLMGK_PRIOR_UNIFORM;
        desc.use_state = n & 2 && desc.feature != CLMGK_FEATURE_FAVOR; /* whose state has a scale */
        check(&desc, false);
    }
}

/* ---- the papers' formulas -----------------------------------------------------------------------------------------
 */

#define MATRICES (1U << CLMGK_PART_QUERY_KEY | 1U << CLMGK_PART_SCORES)

static clmgk_counts count(clmgk_variant variant, double heads, double components, double length, double head_size,
                          double width, double width_out)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    clmgk_counts counts = CLMGK_COUNTS_INIT;
    const uint32_t traits = clmgk_variant_traits(variant);
    desc.variant = variant;
    desc.heads = (int64_t)heads;
    desc.components = (int64_t)components;
    desc.length = (int64_t)length;
    desc.head_size = (int64_t)head_size;
    desc.prior_shape = variant == CLMGK_VARIANT_MGK ? CLMGK_PRIOR_HM : CLMGK_PRIOR_UNIFORM;
    desc.shared_noise = (traits & CLMGK_TRAIT_NOISE) != 0; /* as the paper counts it */
    th_expect_ok(clmgk_count_attention(&desc, (int64_t)width, 0, (int64_t)width_out, &counts, &th_error));
    return counts;
}

static double operations(const clmgk_counts *counts, uint32_t parts)
{
    return clmgk_sum_operations(counts, CLMGK_PASS_FORWARD, parts);
}

/* Sizes of the symbols H, M, N, D and D_x: powers of two and odd numbers. */
static const double symbols[][5] = {
    {8, 2, 4096, 64, 512}, {4, 2, 384, 32, 256}, {12, 3, 77, 5, 31}, {16, 4, 2, 1, 1}, {10, 5, 1, 7, 13}};

/* MGK paper, Appendix B: (i) to (iv), and what two keys save. */
TH_HOST_TEST(mgk_paper)
{
    for (size_t i = 0; i < TH_COUNT(symbols); i++) {
        const double H = symbols[i][0], M = symbols[i][1], N = symbols[i][2], D = symbols[i][3], Dx = symbols[i][4];
        const clmgk_counts softmax = count(CLMGK_VARIANT_SOFTMAX, H, 1, N, D, Dx, H * D);
        const clmgk_counts mgk = count(CLMGK_VARIANT_MGK, H / M, M, N, D, Dx, H * D);
        const double of_softmax = operations(&softmax, CLMGK_PART_ALL), of_mgk = operations(&mgk, CLMGK_PART_ALL);
        const double saved =
            clmgk_sum_parameters(&softmax, CLMGK_PART_ALL) - clmgk_sum_parameters(&mgk, CLMGK_PART_ALL);
        assert_true(of_softmax == N * N * H * (4 * D - 1) + N * H * D * (6 * Dx + 2 * H * D - 5));
        /* the line before the paper's last one; its last has (3 M + 2) / M, which is not equal to it */
        assert_true(of_mgk == H / M * (N * N * ((2 * M + 2) * D - 1) + N * D * ((M + 2) * (2 * Dx - 1) - 1)) +
                                  N * H * D * (2 * H / M * D - 1));
        assert_true(clmgk_sum_parameters(&softmax, CLMGK_PART_ALL) == 3 * H * D * Dx + H * D * H * D);
        if (M != 2)
            continue;
        const double printed = N * N * H * (3 * D - 0.5) + N * H * D * (4 * Dx + H * D - 4);
        const double printed_saving = N * N * H * (D - 0.5) + N * H * D * (2 * Dx + H * D - 1);
        assert_true(of_mgk == printed + N * H * D / 2);
        assert_true(of_softmax - of_mgk == printed_saving - N * H * D / 2);
        assert_true(clmgk_sum_parameters(&mgk, CLMGK_PART_ALL) == 2 * H * D * Dx + H * D * H * D / 2 + H);
        assert_true(saved == H * D * Dx + 0.5 * H * D * H * D - H);
    }
}

/* FiSH paper, section 3 and Appendix D. */
TH_HOST_TEST(fish_paper)
{
    for (size_t i = 0; i < TH_COUNT(symbols); i++) {
        const double H = symbols[i][0], M = symbols[i][1], N = symbols[i][2], D = symbols[i][3], Dx = symbols[i][4];
        const clmgk_counts softmax = count(CLMGK_VARIANT_SOFTMAX, H, 1, N, D, Dx, 0);
        const clmgk_counts fish = count(CLMGK_VARIANT_FISH, H, M, N, D, Dx, 0);
        const double of_softmax = operations(&softmax, MATRICES), of_fish = operations(&fish, MATRICES);
        assert_true(of_softmax == N * N * H * (2 * D - 1) + 2 * N * H * D * (2 * Dx - 1));
        assert_true(of_fish == (2 * (D + H) * M - H) * N * N + 2 * N * M * D * (2 * Dx - 1));
        assert_true(of_softmax - of_fish == (2 * (H - M) * D - 2 * M * H) * N * N + 2 * (H - M) * D * (2 * Dx - 1) * N);
        assert_true(clmgk_sum_parameters(&softmax, MATRICES) == 2 * H * D * Dx);
        assert_true(clmgk_sum_parameters(&fish, MATRICES) == 2 * M * D * Dx + H * M + M);
        assert_true(clmgk_sum_parameters(&softmax, MATRICES) - clmgk_sum_parameters(&fish, MATRICES) ==
                    2 * (H - M) * D * Dx - H * M - M);
    }
}

/* LRB paper, table 2: millions of parameters of 24 layers of width 512, by heads of size 128 and by sizes of 8 heads.
 */
TH_HOST_TEST(lrb_paper)
{
    static const struct {
        double heads, size, printed;
    } models[] = {{8, 128, 168}, {12, 128, 193}, {16, 128, 218}, {32, 128, 319},
                  {8, 32, 130},  {8, 64, 142},   {8, 256, 218}};
    double counted[TH_COUNT(models)];
    for (size_t i = 0; i < TH_COUNT(models); i++) {
        const clmgk_counts counts = count(CLMGK_VARIANT_SOFTMAX, models[i].heads, 1, 128, models[i].size, 512, 512);
        counted[i] = clmgk_sum_parameters(&counts, CLMGK_PART_ALL);
        assert_true(counted[i] == 4 * 512 * models[i].heads * models[i].size);
        const double difference = 24e-6 * (counted[i] - counted[0]);
        assert_true(fabs(difference - (models[i].printed - models[0].printed)) <= 1);
    }
}

/* Shares that the papers' designs promise: with more tokens MGK's come near 3/4 of softmax's, FiSH's of 2 and 8 heads
 * near 1/4. */
TH_HOST_TEST(limits)
{
    const double far = 1 << 20;
    const clmgk_counts softmax = count(CLMGK_VARIANT_SOFTMAX, 8, 1, far, 512, 512, 0);
    const clmgk_counts mgk = count(CLMGK_VARIANT_MGK, 4, 2, far, 512, 512, 0);
    const clmgk_counts fish = count(CLMGK_VARIANT_HARD_FISH, 8, 2, far, 512, 512, 0);
    assert_true(fabs(operations(&mgk, CLMGK_PART_ALL) / operations(&softmax, CLMGK_PART_ALL) - 0.75) < 0.002);
    assert_true(fabs(operations(&fish, MATRICES) / operations(&softmax, MATRICES) - 0.25) < 0.005);
}

/* ---- layers
 * ---------------------------------------------------------------------------------------------------------- */

/* Operations are those of its attention with the layer's widths; parameters the elements of all inputs that have
 * gradients. */
TH_HOST_TEST(whole_layers)
{
    static const clmgk_layer_array learned[] = {
        CLMGK_LAYER_ARRAY_WEIGHT_QKV, CLMGK_LAYER_ARRAY_WEIGHT_Q, CLMGK_LAYER_ARRAY_WEIGHT_K,
        CLMGK_LAYER_ARRAY_WEIGHT_V,   CLMGK_LAYER_ARRAY_WEIGHT_O, CLMGK_LAYER_ARRAY_BIAS_QKV,
        CLMGK_LAYER_ARRAY_BIAS_Q,     CLMGK_LAYER_ARRAY_BIAS_K,   CLMGK_LAYER_ARRAY_BIAS_V,
        CLMGK_LAYER_ARRAY_BIAS_O,     CLMGK_LAYER_ARRAY_GAIN_Q,   CLMGK_LAYER_ARRAY_GAIN_K,
        CLMGK_LAYER_ARRAY_NORM_GAIN,  CLMGK_LAYER_ARRAY_NORM_BIAS};
    for (int n = 0; n < 32; n++) {
        const bool cross = n & 1, packed = n & 2, extras = n & 4, apart = cross && n & 16;
        clmgk_attention_desc attention = describe(n & 8 ? CLMGK_VARIANT_MGK : CLMGK_VARIANT_HARD_FISH, 2, cross);
        clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT, resolved = CLMGK_LAYER_DESC_INIT;
        clmgk_counts counts = CLMGK_COUNTS_INIT, inside = CLMGK_COUNTS_INIT;
        desc.attention = &attention;
        desc.width = 6;
        desc.cross = cross;
        desc.cross_v = apart;
        desc.width_k = cross && !packed ? 5 : 0;
        desc.width_v = apart && !packed ? 7 : 0;
        desc.packed_weights = packed;
        desc.use_bias = desc.use_bias_o = desc.qk_norm = extras;
        desc.norm = extras ? CLMGK_NORM_PRE : CLMGK_NORM_NONE;
        th_expect_ok(clmgk_count_layer(&desc, &counts, &th_error));
        th_expect_ok(clmgk_count_attention(&attention, 6, cross ? (packed ? 6 : 5) : 0, 6, &inside, &th_error));
        if (!apart) { /* in loops: mixture_in_loops */
            assert_memory_equal(counts.forward, inside.forward, sizeof(counts.forward));
            assert_memory_equal(counts.backward, inside.backward, sizeof(counts.backward));
        }
        double elements = inside.parameters[CLMGK_PART_SCORES];
        th_expect_ok(clmgk_layer_validate(&desc, &resolved, &attention, &th_error));
        for (size_t i = 0; i < TH_COUNT(learned); i++)
            elements += (double)clmgk_layer_array_count(&resolved, learned[i]);
        assert_true(clmgk_sum_parameters(&counts, CLMGK_PART_ALL) == elements);
        assert_true(counts.parameters[CLMGK_PART_NORM] == (extras ? 12 : 0));
    }
}

/* ---- bad input -----------------------------------------------------------------------------------------------------
 */

TH_HOST_TEST(bad_input)
{
    clmgk_attention_desc desc = describe(CLMGK_VARIANT_MGK, 4, false);
    clmgk_counts counts = CLMGK_COUNTS_INIT;
    th_expect_refusal(clmgk_count_attention(&desc, -1, 0, 0, &counts, &th_error), CLMGK_ERROR_INVALID_VALUE, "width",
                      "-1");
    th_expect_refusal(clmgk_count_attention(&desc, 0, -2, 0, &counts, &th_error), CLMGK_ERROR_INVALID_VALUE, "width_k",
                      "-2");
    th_expect_refusal(clmgk_count_attention(&desc, 0, 0, -3, &counts, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "width_out", "-3");
    th_expect_error(clmgk_count_attention(&desc, 0, 0, 0, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "counts");
    th_expect_error(clmgk_count_attention(NULL, 0, 0, 0, &counts, &th_error), CLMGK_ERROR_INVALID_VALUE, "desc");
    counts.struct_size = 8;
    th_expect_error(clmgk_count_attention(&desc, 0, 0, 0, &counts, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "struct_size");
    desc.head_size = 0;
    counts.struct_size = sizeof(counts);
    th_expect_error(clmgk_count_attention(&desc, 0, 0, 0, &counts, &th_error), CLMGK_ERROR_INVALID_VALUE, "head_size");
    th_expect_error(clmgk_count_layer(NULL, &counts, &th_error), CLMGK_ERROR_INVALID_VALUE, "desc");
    th_expect_error(clmgk_count_layer(&(clmgk_layer_desc)CLMGK_LAYER_DESC_INIT, &counts, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "attention");
    assert_true(clmgk_sum_operations(NULL, CLMGK_PASS_FORWARD, CLMGK_PART_ALL) == 0);
    assert_true(clmgk_sum_operations(&counts, CLMGK_PASS_COMBINE, CLMGK_PART_ALL) == 0);
    assert_true(clmgk_sum_parameters(NULL, CLMGK_PART_ALL) == 0);
}
