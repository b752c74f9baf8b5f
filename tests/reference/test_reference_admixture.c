/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference over every form of the admixture family: values by hand, gradients against central differences of the
 * loss sum(O dO) + sum(L dL), forms that are another's special case, the plain formula against the exact one, and the
 * noise against the library's own.
 */
#include "reference/forms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FISH          .variant = CLMGK_VARIANT_FISH
#define HARD_FISH     .variant = CLMGK_VARIANT_HARD_FISH
#define MISH          .variant = CLMGK_VARIANT_MISH
#define HARD_MISH     .variant = CLMGK_VARIANT_HARD_MISH
#define GFISH         .variant = CLMGK_VARIANT_GFISH
#define HARD_GFISH    .variant = CLMGK_VARIANT_HARD_GFISH
#define TALKING_HEADS .variant = CLMGK_VARIANT_TALKING_HEADS
#define W_AND_C       .use_mix_weight = 1, .use_mix_offset = 1
#define HIDDEN(u)     W_AND_C, .mix_hidden = (u), .use_mix_hidden_offset = 1

/* Heads and components are 3 and 2 unless given. */
static const test_form forms[] = {
    {.name = "fish", .desc = {FISH}},
    {.name = "fish, no dL", .desc = {FISH}, .no_grad_lse = 1},
    {.name = "fish, no dO", .desc = {FISH}, .no_grad_o = 1},
    {.name = "fish, shared noise", .desc = {FISH, .shared_noise = 1}},
    {.name = "fish, M > H", .desc = {FISH, .heads = 2, .components = 4}},
    {.name = "fish, M = 1", .desc = {FISH, .components = 1}},
    {.name = "fish, H = 1", .desc = {FISH, .heads = 1}},
    {.name = "fish, M = H = 1", .desc = {FISH, .heads = 1, .components = 1}},
    {.name = "fish, one sigma 0", .desc = {FISH}, .no_sigma = 1},
    {.name = "fish, grouped values", .desc = {FISH, .heads = 4, .kv_heads = 2, .components = 3}},
    {.name = "hard fish", .desc = {HARD_FISH}},
    {.name = "hard fish, one value head", .desc = {HARD_FISH, .kv_heads = 1}},
    {.name = "mish", .desc = {MISH}},
    {.name = "mish, shared noise", .desc = {MISH, .shared_noise = 1}},
    {.name = "hard mish", .desc = {HARD_MISH}},
    {.name = "hard mish, M > H", .desc = {HARD_MISH, .heads = 2, .components = 3, .kv_heads = 1}},
    {.name = "gfish", .desc = {GFISH, W_AND_C}},
    {.name = "gfish, w and c of their own", .desc = {GFISH}},
    {.name = "gfish, w alone", .desc = {GFISH, .use_mix_weight = 1, .shared_noise = 1}},
    {.name = "gfish, c alone, one sigma 0", .desc = {GFISH, .use_mix_offset = 1}, .no_sigma = 1},
    {.name = "hard gfish", .desc = {HARD_GFISH, W_AND_C}},
    {.name = "hard gfish, M > H", .desc = {HARD_GFISH, W_AND_C, .heads = 1, .components = 4}},
    {.name = "hidden layer", .desc = {HARD_GFISH, HIDDEN(5)}},
    {.name = "hidden layer, noise", .desc = {GFISH, HIDDEN(4), .causal = 1, .softcap = 1.5}},
    {.name = "hidden layer, shared noise, one unit", .desc = {GFISH, HIDDEN(1), .shared_noise = 1}},
    {.name = "hidden layer, w and b of their own", .desc = {GFISH, .mix_hidden = 3, .dropout = 0.3}, .no_sigma = 1},
    {.name = "mixed after", .desc = {HARD_FISH, .mix_after_heads = 2}},
    {.name = "mixed after, heads that share values", .desc = {FISH, .mix_after_heads = 4, .kv_heads = 1}},
    {.name = "mixed after, mish", .desc = {MISH, .mix_after_heads = 2, .shared_noise = 1, .causal = 1}},
    {.name = "mixed after, talking heads", .desc = {TALKING_HEADS, .mix_after_heads = 4, .components = 4}},
    {.name = "mixed after a hidden layer",
     .desc = {GFISH, HIDDEN(3), .mix_after_heads = 2, .softcap = 1.5, .dropout = 0.3, .use_alibi = 1}},
    {.name = "mixed after, bias, sinks, rows without keys",
     .desc = {HARD_GFISH, W_AND_C, .mix_after_heads = 2, .use_sinks = 1, .use_lengths = 1, .use_lengths_q = 1,
              ANY_BIAS(2, 2, N, S)},
     .lengths = no_keys},
    {.name = "mixed after, packed, dropout",
     .desc = {GFISH, W_AND_C, .mix_after_heads = 5, .heads = 1, .sequences = 3, .use_offsets_k = 1, .dropout = 0.4,
              ANY_BIAS(1, 5, N, S)}},
    {.name = "talking heads", .desc = {TALKING_HEADS, .heads = 3, .components = 3}},
    {.name = "causal", .desc = {FISH, .causal = 1}},
    {.name = "causal, top-left", .desc = {GFISH, W_AND_C, .causal = 1, .alignment = CLMGK_ALIGN_TOP_LEFT}},
    {.name = "window", .desc = {MISH, .use_window = 1, .window_left = 1, .window_right = 0}},
    {.name = "lengths", .desc = {FISH, .use_lengths = 1, .use_lengths_q = 1}, .lengths = lengths},
    {.name = "lengths, none", .desc = {GFISH, W_AND_C, .use_lengths = 1}, .lengths = no_keys},
    {.name = "lengths, aligned",
     .desc = {MISH, .causal = 1, .alignment = CLMGK_ALIGN_LENGTHS, .use_lengths = 1},
     .lengths = lengths},
    {.name = "packed", .desc = {FISH, .sequences = 3, .use_offsets_k = 1}},
    {.name = "packed, everything",
     .desc = {GFISH, W_AND_C, .sequences = 3, .use_offsets_k = 1, .use_alibi = 1, .use_sinks = 1, .dropout = 0.4,
              .softcap = 1.5, .causal = 1, ANY_BIAS(1, 3, N, S)}},
    {.name = "bias", .desc = {FISH, .use_bias = 1}},
    {.name = "bias [1,H,N,S]", .desc = {HARD_MISH, ANY_BIAS(1, 3, N, S)}},
    {.name = "bias [B,1,1,S]", .desc = {HARD_GFISH, ANY_BIAS(2, 1, 1, S)}},
    {.name = "bias [1,H,N,1]", .desc = {MISH, ANY_BIAS(1, 3, N, 1), .use_sinks = 1}},
    {.name = "alibi", .desc = {TALKING_HEADS, .heads = 2, .components = 2, .use_alibi = 1, .causal = 1}},
    {.name = "sinks", .desc = {FISH, .use_sinks = 1}},
    {.name = "sinks, rows without keys",
     .desc = {HARD_FISH, .use_sinks = 1, .use_lengths = 1, .use_lengths_q = 1},
     .lengths = no_keys},
    {.name = "soft-cap", .desc = {FISH, .softcap = 0.8, .use_bias = 1}},
    {.name = "soft-cap, generalised", .desc = {HARD_GFISH, W_AND_C, .softcap = 1.1}},
    {.name = "dropout", .desc = {FISH, .dropout = 0.5}},
    {.name = "dropout, mish", .desc = {HARD_MISH, .dropout = 0.3, .use_sinks = 1}},
};

/* ---- problems --------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc resolved(const test_form *form)
{
    clmgk_attention_desc d = form->desc;
    d.struct_size = sizeof(d);
    d.batch = d.sequences > 0 ? 1 : B;
    d.heads = d.heads > 0 ? d.heads : 3;
    d.components = d.components > 0 ? d.components : 2;
    d.length = N;
    d.length_k = S;
    d.head_size = D;
    d.value_size = E;
    clmgk_error error = {0};
    if (clmgk_attention_validate(&d, &d, &error) != CLMGK_OK)
        fail_msg("%s: %s", form->name, error.message);
    return d;
}

static void count_elements(const clmgk_attention_desc *d, size_t count[PARAMETERS])
{
    const uint32_t traits = clmgk_variant_traits(d->variant);
    const size_t after = (size_t)d->mix_after_heads;
    const size_t b = (size_t)d->batch, h = after > 0 ? after : (size_t)d->heads, m = (size_t)d->components;
    const bool generalised = (traits & CLMGK_TRAIT_GENERALISED) != 0;
    memset(count, 0, PARAMETERS * sizeof(count[0]));
    count[Q] = b * m * N * D;
    count[K] = b * m * S * D;
    count[V] = b * (size_t)d->kv_heads * S * E;
    count[BIAS] = d->use_bias ? (size_t)(d->bias_batch * d->bias_heads * d->bias_length * d->bias_length_k) : 0;
    count[SINKS] = d->use_sinks ? h : 0;
    const size_t units = (size_t)d->mix_hidden;
    count[MIX] = (traits & CLMGK_TRAIT_SHARED_MIX) != 0 ? m : (units > 0 ? units : h) * m;
    count[MIX_WEIGHT] = generalised ? h * (units > 0 ? units : m) : 0;
    count[MIX_HIDDEN_OFFSET] = units;
    count[MIX_AFTER] = (size_t)d->heads * after;
    count[MIX_OFFSET] = generalised ? h : 0;
    count[NOISE] = (traits & CLMGK_TRAIT_NOISE) != 0 ? m : 0;
}

static void fill_arrays(fixture *f, const test_form *form)
{
    const clmgk_attention_desc *const d = &f->problem.desc;
    fill_irregularly(f);
    for (size_t n = 0; n < f->count[NOISE]; n++)
        f->array[NOISE][n] = form->no_sigma && n == 0 ? 0.0 : 1.1 + f->array[NOISE][n];
    for (size_t n = 0; n < f->count[MIX_WEIGHT]; n++)
        f->array[MIX_WEIGHT][n] = d->use_mix_weight ? f->array[MIX_WEIGHT][n] : 1.0;
    for (size_t n = 0; n < f->count[MIX_OFFSET]; n++)
        f->array[MIX_OFFSET][n] = d->use_mix_offset ? f->array[MIX_OFFSET][n] : 0.0;
    for (size_t n = 0; n < f->count[MIX_HIDDEN_OFFSET]; n++)
        f->array[MIX_HIDDEN_OFFSET][n] = d->use_mix_hidden_offset ? f->array[MIX_HIDDEN_OFFSET][n] : 0.0;
}

static void make(const test_form *form, fixture *f)
{
    f->problem = (clmgk_ref_problem){.desc = resolved(form)};
    count_elements(&f->problem.desc, f->count);
    fill_arrays(f, form);
    point_to_arrays(form, f);
    f->problem.mix = f->array[MIX];
    f->problem.mix_weight = f->problem.desc.use_mix_weight ? f->array[MIX_WEIGHT] : NULL;
    f->problem.mix_offset = f->problem.desc.use_mix_offset ? f->array[MIX_OFFSET] : NULL;
    f->problem.mix_hidden_offset = f->problem.desc.use_mix_hidden_offset ? f->array[MIX_HIDDEN_OFFSET] : NULL;
    f->problem.mix_after = f->count[MIX_AFTER] > 0 ? f->array[MIX_AFTER] : NULL;
    f->problem.noise = f->count[NOISE] > 0 ? f->array[NOISE] : NULL;
}

static int64_t rows_of(const clmgk_ref_problem *p)
{
    return p->desc.batch * p->desc.heads * N;
}

static clmgk_ref_answer solve(const clmgk_ref_problem *p)
{
    clmgk_ref_answer answer;
    assert_true(clmgk_ref_solve(p, rows_of(p), NULL, &answer));
    return answer;
}

static void expect_close(const char *what, size_t count, const double *values, const double *expected, double within)
{
    for (size_t n = 0; n < count; n++)
        if (!(values[n] == expected[n] || fabs(values[n] - expected[n]) <= within))
            fail_msg("%s, element %zu: %.15g, expected %.15g", what, n, values[n], expected[n]);
}

/* L, of the heads that have one. */
static const double *lse_of(const clmgk_ref_answer *answer)
{
    return answer->before ? answer->before->lse : answer->lse;
}

static void expect_same_answer(const char *what, const clmgk_ref_problem *p, const clmgk_ref_problem *expected,
                               double within)
{
    TH_REF_ANSWER one = solve(p), other = solve(expected);
    expect_close(what, (size_t)one.rows * E, one.o, other.o, within);
    expect_close(what, (size_t)one.rows, lse_of(&one), lse_of(&other), within);
}

/* ---- by hand ---------------------------------------------------------------------------------------------------- */

enum { TWO = 2 };

/* One query, two keys, one dimension, two global heads and one local one. */
static clmgk_ref_problem by_hand(clmgk_variant variant)
{
    static const double q[TWO] = {2.0, -3.0};                 /* q_k */
    static const double k[TWO * TWO] = {1.0, 0.5, 2.0, -1.0}; /* k_kj: G = (2, 1), (-6, 3) */
    static const double v[TWO] = {5.0, 7.0};
    static const double mix[TWO] = {3.0, -0.5};
    static const double weight[TWO] = {0.25, -2.0};
    static const double offset[1] = {10.0};
    static const double sigma[TWO] = {0.5, 4.0};
    clmgk_attention_desc desc = th_sized_desc(variant, (th_sizes){1, 1, 1, TWO, 1, TWO, 1, 1});
    desc.score = CLMGK_SCORE_DOT;
    desc.variance = 1.0;
    return (clmgk_ref_problem){.desc = desc,
                               .q = q,
                               .k = k,
                               .v = v,
                               .mix = mix,
                               .mix_weight = weight,
                               .mix_offset = offset,
                               .noise = sigma,
                               .seed = 5};
}

static void expect_row(const clmgk_ref_problem *p, double first, double second)
{
    double o = 0.0, lse = 0.0;
    const double total = exp(first) + exp(second);
    assert_true(clmgk_ref_row(p, 0, &o, &lse));
    expect_close("L", 1, &lse, &(double){log(total)}, 1e-12);
    expect_close("O", 1, &o, &(double){(5.0 * exp(first) + 7.0 * exp(second)) / total}, 1e-12);
    expect_close("first", 1, &(double){clmgk_ref_log_weight(p, 0, 0, 0, 0, 0)}, &first, 1e-12);
    expect_close("second", 1, &(double){clmgk_ref_log_weight(p, 0, 0, 0, 1, 0)}, &second, 1e-12);
}

TH_HOST_TEST(scores_by_hand)
{
    clmgk_ref_problem p = by_hand(CLMGK_VARIANT_HARD_FISH);
    expect_row(&p, 3.0 * 2.0 - 0.5 * -6.0, 3.0 * 1.0 - 0.5 * 3.0);
    p.desc.variant = CLMGK_VARIANT_HARD_MISH;
    expect_row(&p, 9.0, 1.5);

    p.desc.variant = CLMGK_VARIANT_FISH;
    const double eps[TWO] = {clmgk_ref_noise(&p, 0, 0, 0, 0), clmgk_ref_noise(&p, 0, 0, 0, 1)};
    const double spread = 3.0 * 0.5 - 0.5 * 4.0; /* sum_k p_k sigma_k */
    expect_row(&p, 9.0 + spread * eps[0], 1.5 + spread * eps[1]);

    p.desc.variant = CLMGK_VARIANT_HARD_GFISH; /* x = (6, 3), (3, -1.5) */
    expect_row(&p, 6.0 + 3.0, 3.0 + 0.0);
    p.desc.use_mix_weight = 1;
    expect_row(&p, 0.25 * 6.0 - 2.0 * 3.0, 0.25 * 3.0);
    p.desc.use_mix_offset = 1;
    expect_row(&p, 10.0 + 1.5 - 6.0, 10.0 + 0.75);

    p.desc.variant = CLMGK_VARIANT_GFISH;
    const double x[TWO][TWO] = {{3.0 * (2.0 + 0.5 * eps[0]), -0.5 * (-6.0 + 4.0 * eps[0])},
                                {3.0 * (1.0 + 0.5 * eps[1]), -0.5 * (3.0 + 4.0 * eps[1])}};
    expect_row(&p, 10.0 + 0.25 * fmax(x[0][0], 0.0) - 2.0 * fmax(x[0][1], 0.0),
               10.0 + 0.25 * fmax(x[1][0], 0.0) - 2.0 * fmax(x[1][1], 0.0));
}

/* Three units of two global heads; the noise of unit u is that of head u. */
TH_HOST_TEST(hidden_layer_by_hand)
{
    static const double mix[6] = {1.0, 0.5, -2.0, 0.25, 0.5, -1.0}; /* G = (2, -6), (1, 3) */
    static const double weight[3] = {0.5, -1.0, 2.0}, hidden[3] = {0.5, 7.0, 0.25}, offset[1] = {10.0};
    clmgk_ref_problem p = by_hand(CLMGK_VARIANT_HARD_GFISH);
    p.desc.mix_hidden = 3;
    p.mix = mix;
    /* r = (-1, -5.5, 7), (2.5, -1.25, -2.5) */
    expect_row(&p, 7.0, 2.5);
    p.desc.use_mix_hidden_offset = 1; /* r = (-0.5, 1.5, 7.25), (3, 5.75, -2.25) */
    p.mix_hidden_offset = hidden;
    expect_row(&p, 1.5 + 7.25, 3.0 + 5.75);
    p.desc.use_mix_weight = p.desc.use_mix_offset = 1;
    p.mix_weight = weight;
    p.mix_offset = offset;
    expect_row(&p, 10.0 - 1.5 + 14.5, 10.0 + 1.5 - 5.75);

    p.desc.variant = CLMGK_VARIANT_GFISH;
    static const double r[TWO][3] = {{-0.5, 1.5, 7.25}, {3.0, 5.75, -2.25}};
    static const double spread[3] = {0.5 + 2.0, -1.0 + 1.0, 0.25 - 4.0}; /* sum_k p_uk sigma_k */
    double a[TWO] = {10.0, 10.0};
    for (int64_t j = 0; j < TWO; j++)
        for (int64_t u = 0; u < 3; u++)
            a[j] += weight[u] * fmax(r[j][u] + spread[u] * clmgk_ref_noise(&p, 0, u, 0, j), 0.0);
    expect_row(&p, a[0], a[1]);
}

/* Two heads before the mixing, one after it: O is m_1 O_1 + m_2 O_2 of theirs, L is theirs. */
TH_HOST_TEST(mixing_after_the_softmax_by_hand)
{
    static const double mix[TWO * TWO] = {3.0, -0.5, 0.25, 1.0}, after[TWO] = {-2.0, 0.75};
    const double logits[TWO][TWO] = {{9.0, 1.5}, {0.25 * 2.0 - 6.0, 0.25 + 3.0}};
    clmgk_ref_problem p = by_hand(CLMGK_VARIANT_HARD_FISH);
    clmgk_ref_answer answer;
    double expected = 0.0;
    p.desc.mix_after_heads = TWO;
    p.mix = mix;
    p.mix_after = after;
    assert_true(clmgk_ref_solve(&p, 1, NULL, &answer));
    for (int64_t a = 0; a < TWO; a++) {
        const double first = exp(logits[a][0]), second = exp(logits[a][1]);
        expected += after[a] * (5.0 * first + 7.0 * second) / (first + second);
        expect_close("L", 1, &answer.before->lse[a], &(double){log(first + second)}, 1e-12);
    }
    expect_close("O", 1, answer.o, &expected, 1e-12);
    clmgk_ref_answer_free(&answer);
}

/* A row of which one head before the mixing is lost: the other one's part has the rounding of any output. */
TH_HOST_TEST(a_lost_head_leaves_the_others_their_rounding)
{
    static const double mix[TWO * TWO] = {3.0, -0.5, 0.25, 1.0}, after[TWO] = {0.0, 0.75}, bias[2 * TWO] = {1e9, 1e9};
    clmgk_ref_problem p = by_hand(CLMGK_VARIANT_HARD_FISH);
    clmgk_ref_answer answer;
    p.desc.mix_after_heads = TWO;
    p.desc.use_bias = 1;
    p.desc.bias_batch = p.desc.bias_length = 1;
    p.desc.bias_heads = p.desc.bias_length_k = TWO;
    p.mix = mix;
    p.mix_after = after;
    p.bias = bias;
    assert_true(clmgk_ref_solve(&p, 1, NULL, &answer));
    assert_true(answer.lost[0].is);
    assert_true(clmgk_ref_check(&answer, &(double){answer.o[0] * (1.0 + 0x1p-22)}, NULL).ok);
    assert_true(clmgk_ref_check(&answer, &(double){answer.o[0] * (1.0 - 0x1p-22)}, NULL).ok);
    assert_false(clmgk_ref_check(&answer, &(double){answer.o[0] * (1.0 + 1e-5)}, NULL).ok);
    clmgk_ref_answer_free(&answer);
}

/* With m = 1 the heads are those without the mixing. */
TH_HOST_TEST(identity_after_the_softmax_is_none)
{
    static const test_form form = {.desc = {GFISH, W_AND_C, .use_sinks = 1, .dropout = 0.3, .use_alibi = 1}};
    static const double identity[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    static fixture f;
    make(&form, &f);
    clmgk_ref_problem mixed = f.problem;
    mixed.desc.mix_after_heads = 3;
    mixed.mix_after = identity;
    expect_same_answer("identity", &mixed, &f.problem, 1e-13);
    TH_REF_ARRAYS one = solve_gradients(&mixed), other = solve_gradients(&f.problem);
    for (int which = Q; which < MIX_AFTER; which++)
        expect_close("gradient", (size_t)other.count[which], one.exact[which], other.exact[which], 1e-12);
}

/* The score is divided by sqrt(D), c as well; soft-cap comes next, then the bias. */
TH_HOST_TEST(scale_and_softcap_by_hand)
{
    static const double q[4] = {1.0, 2.0, 3.0, 4.0}, k[4] = {0.5, 0.25, -1.0, 1.5}, v[1] = {1.0};
    static const double mix[1] = {0.3}, offset[1] = {7.0}, bias[1] = {0.125};
    clmgk_ref_problem p = by_hand(CLMGK_VARIANT_HARD_GFISH);
    p.desc.components = p.desc.length_k = 1;
    p.desc.head_size = 4;
    p.desc.variance = 2.0;
    p.desc.use_mix_offset = p.desc.use_bias = 1;
    p.desc.bias_batch = p.desc.bias_heads = p.desc.bias_length = p.desc.bias_length_k = 1;
    p.desc.softcap = 1.5;
    p.q = q, p.k = k, p.v = v, p.mix = mix, p.mix_offset = offset, p.bias = bias;
    const double scaled = (0.3 * 4.0 + 7.0) / 2.0;
    double o = 0.0, lse = 0.0;
    assert_true(clmgk_ref_row(&p, 0, &o, &lse));
    expect_close("L", 1, &lse, &(double){1.5 * tanh(scaled / 1.5) + 0.125}, 1e-12);
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

static void check_gradient(const test_form *form, fixture *f, const clmgk_ref_arrays *gradients, int which)
{
    clmgk_ref_problem p = f->problem;
    double *const x = f->array[which];
    if (which == MIX_WEIGHT && f->count[which] > 0) { /* its gradient is there without an array, too */
        p.desc.use_mix_weight = 1;
        p.mix_weight = x;
    }
    if (which == MIX_OFFSET && f->count[which] > 0) {
        p.desc.use_mix_offset = 1;
        p.mix_offset = x;
    }
    if (which == MIX_HIDDEN_OFFSET && f->count[which] > 0) {
        p.desc.use_mix_hidden_offset = 1;
        p.mix_hidden_offset = x;
    }
    assert_int_equal(clmgk_ref_gradient_count(&f->problem.desc, (clmgk_ref_gradient)which), f->count[which]);
    th_expect_derivatives(form->name, &p, gradients, which, x, f->count[which], which == NOISE);
}

TH_HOST_TEST(weights_are_those_of_outputs)
{
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        make(&forms[n], &f);
        th_expect_weights(forms[n].name, &f.problem);
    }
}

TH_HOST_TEST(gradients_are_those_of_the_loss)
{
    check_forms(forms, TH_COUNT(forms), make, check_gradient);
}

/* A parameter affects the loss, unless it has no elements, or is V without dO. */
static void check_effect(const test_form *form, fixture *f, const clmgk_ref_arrays *gradients, int which)
{
    const bool nothing = f->count[which] == 0 || (which == V && form->no_grad_o);
    if ((gradients->bound[which].max_abs > 1e-3) == nothing)
        fail_msg("%s, gradient %d: at most %g", form->name, which, gradients->bound[which].max_abs);
}

/* The loss depends on every parameter of a form, on c through L alone: no other gradient is 0 throughout. */
TH_HOST_TEST(gradients_are_not_nothing)
{
    check_forms(forms, TH_COUNT(forms), make, check_effect);
}

TH_HOST_TEST(wanted_gradients_only)
{
    static const test_form form = {.desc = {GFISH, W_AND_C, .use_sinks = 1, .use_bias = 1}};
    static fixture f;
    make(&form, &f);
    th_expect_wanted_gradients_only(&f.problem);
}

/* At x = 0 relu's derivative is 0, from whichever side p comes; without relu nothing is special about p = 0. */
TH_HOST_TEST(relu_at_0_has_no_slope)
{
    static const test_form rectified = {.desc = {HARD_GFISH, W_AND_C}}, straight = {.desc = {HARD_FISH}};
    static fixture f;
    make(&rectified, &f);
    memset(f.array[MIX], 0, sizeof(f.array[MIX]));
    clmgk_ref_arrays gradients = solve_gradients(&f.problem);
    assert_true(gradients.bound[Q].max_abs == 0.0 && gradients.bound[K].max_abs == 0.0);
    assert_true(gradients.bound[MIX].max_abs == 0.0 && gradients.bound[MIX].plain_error == 0.0);
    assert_true(gradients.bound[MIX_OFFSET].max_abs > 0.0);
    clmgk_ref_arrays_free(&gradients);
    make(&straight, &f);
    memset(f.array[MIX], 0, sizeof(f.array[MIX]));
    gradients = solve_gradients(&f.problem);
    assert_true(gradients.bound[Q].max_abs == 0.0 && gradients.bound[MIX].max_abs > 0.0);
    clmgk_ref_arrays_free(&gradients);
}

/* ---- forms within forms ----------------------------------------------------------------------------------------- */

/* The gradients in `set` are the same, and the plain formula's errors. */
static void expect_same_gradients(const clmgk_ref_arrays *one, const clmgk_ref_arrays *other, uint32_t set)
{
    for (int which = 0; which < PARAMETERS; which++) {
        if ((set >> (unsigned)which & 1U) == 0)
            continue;
        assert_int_equal(one->count[which], other->count[which]);
        assert_memory_equal(one->exact[which], other->exact[which], (size_t)one->count[which] * sizeof(double));
        assert_true(one->bound[which].plain_error == other->bound[which].plain_error);
    }
}

/* Without deviation a form is its hard one, to the last bit. */
TH_HOST_TEST(hard_forms_are_those_without_deviation)
{
    static const test_form noisy[] = {{.desc = {FISH}}, {.desc = {MISH}}, {.desc = {GFISH, W_AND_C}}};
    static const clmgk_variant hard[] = {CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_HARD_MISH, CLMGK_VARIANT_HARD_GFISH};
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(noisy); n++) {
        make(&noisy[n], &f);
        memset(f.array[NOISE], 0, sizeof(f.array[NOISE]));
        clmgk_ref_problem other = f.problem;
        other.desc.variant = hard[n];
        other.noise = NULL;
        expect_same_answer("hard", &f.problem, &other, 0.0);
        TH_REF_ARRAYS one = solve_gradients(&f.problem), two = solve_gradients(&other);
        assert_true(one.bound[NOISE].max_abs > 1e-3 && two.count[NOISE] == 0);
        expect_same_gradients(&one, &two, two.set);
    }
}

/* MiSH is FiSH whose heads have one p: dp is the sum of the heads'. */
TH_HOST_TEST(mish_is_fish_with_equal_rows)
{
    static const test_form form = {.desc = {MISH, .use_alibi = 1}};
    static fixture f;
    static double rows[MOST];
    make(&form, &f);
    const int64_t heads = f.problem.desc.heads, components = f.problem.desc.components;
    for (int64_t n = 0; n < heads * components; n++)
        rows[n] = f.array[MIX][n % components];
    clmgk_ref_problem fish = f.problem;
    fish.desc.variant = CLMGK_VARIANT_FISH;
    fish.mix = rows;
    expect_same_answer("mish", &f.problem, &fish, 0.0);
    TH_REF_ARRAYS one = solve_gradients(&f.problem), other = solve_gradients(&fish);
    expect_same_gradients(&one, &other, one.set & ~(uint32_t)CLMGK_GRADIENT_MIX);
    for (int64_t k = 0; k < components; k++) {
        double sum = 0.0;
        for (int64_t h = 0; h < heads; h++)
            sum += other.exact[MIX][h * components + k];
        expect_close("dmix", 1, &one.exact[MIX][k], &sum, 1e-13);
    }
}

TH_HOST_TEST(talking_heads_are_hard_fish)
{
    static const test_form form = {.desc = {TALKING_HEADS, .heads = 3, .components = 3, .softcap = 2.0}};
    static fixture f;
    make(&form, &f);
    clmgk_ref_problem fish = f.problem;
    fish.desc.variant = CLMGK_VARIANT_HARD_FISH;
    expect_same_answer("talking heads", &f.problem, &fish, 0.0);
    TH_REF_ARRAYS one = solve_gradients(&f.problem), other = solve_gradients(&fish);
    expect_same_gradients(&one, &other, one.set);
}

/* With the unit matrix for p every local head is softmax attention of its global one. */
TH_HOST_TEST(unit_mixing_is_softmax)
{
    static const test_form form_of[] = {
        {.desc = {HARD_FISH, .heads = 3, .components = 3, .causal = 1, .use_bias = 1, .dropout = 0.2}},
        {.desc = {HARD_MISH, .heads = 1, .components = 1, .use_sinks = 1, .softcap = 1.0}},
    };
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(form_of); n++) {
        make(&form_of[n], &f);
        const int64_t heads = f.problem.desc.heads;
        for (int64_t at = 0; at < heads * heads; at++)
            f.array[MIX][at] = at % (heads + 1) == 0 ? 1.0 : 0.0;
        clmgk_ref_problem softmax = f.problem;
        softmax.desc.variant = CLMGK_VARIANT_SOFTMAX;
        softmax.desc.components = 1;
        expect_same_answer("softmax", &f.problem, &softmax, 1e-13);
        TH_REF_ARRAYS one = solve_gradients(&f.problem), other = solve_gradients(&softmax);
        for (int which = Q; which <= V; which++) {
            assert_int_equal(one.count[which], other.count[which]);
            expect_close("gradient", (size_t)one.count[which], one.exact[which], other.exact[which], 1e-13);
        }
    }
}

/* Where all of p G is positive, relu does nothing: the generalised form with w = 1 is the plain one. */
TH_HOST_TEST(generalised_form_of_positive_scores)
{
    static const test_form form = {.desc = {HARD_GFISH}};
    static fixture f;
    make(&form, &f);
    for (int which = 0; which < PARAMETERS; which++)
        for (size_t n = 0; (which == Q || which == K || which == MIX) && n < f.count[which]; n++)
            f.array[which][n] = fabs(f.array[which][n]);
    clmgk_ref_problem fish = f.problem;
    fish.desc.variant = CLMGK_VARIANT_HARD_FISH;
    expect_same_answer("generalised", &f.problem, &fish, 1e-13);
    for (size_t n = 0; n < f.count[MIX]; n++)
        f.array[MIX][n] = -f.array[MIX][n]; /* and all negative: uniform attention */
    TH_REF_ANSWER answer = solve(&f.problem);
    for (int64_t row = 0; row < answer.rows; row++)
        expect_close("uniform", 1, &answer.lse[row], &(double){log((double)S)}, 1e-13);
}

/* The form without a hidden layer is one in which each unit sees one global head and serves one local head. */
TH_HOST_TEST(sparse_hidden_layer_is_the_generalised_form)
{
    static const test_form form = {.desc = {HARD_GFISH, W_AND_C, .use_sinks = 1}};
    static fixture f;
    static double mix[MOST], weight[MOST];
    make(&form, &f);
    const int64_t heads = f.problem.desc.heads, components = f.problem.desc.components, units = heads * components;
    memset(mix, 0, sizeof(mix));
    memset(weight, 0, sizeof(weight));
    for (int64_t u = 0; u < units; u++) {
        mix[u * components + u % components] = f.array[MIX][u];
        weight[u / components * units + u] = f.array[MIX_WEIGHT][u];
    }
    clmgk_ref_problem hidden = f.problem;
    hidden.desc.mix_hidden = units;
    hidden.mix = mix;
    hidden.mix_weight = weight;
    expect_same_answer("sparse", &f.problem, &hidden, 1e-13);
    TH_REF_ARRAYS one = solve_gradients(&f.problem), other = solve_gradients(&hidden);
    for (int which = Q; which <= MIX_OFFSET; which++)
        if (which != MIX && which != MIX_WEIGHT)
            expect_close("gradient", (size_t)one.count[which], one.exact[which], other.exact[which], 1e-13);
    for (int64_t u = 0; u < units; u++) {
        const int64_t k = u % components, h = u / components;
        expect_close("dmix", 1, &one.exact[MIX][u], &other.exact[MIX][u * components + k], 1e-13);
        expect_close("dmix_weight", 1, &one.exact[MIX_WEIGHT][u], &other.exact[MIX_WEIGHT][h * units + u], 1e-13);
    }
}

TH_HOST_TEST(offset_reaches_l_alone)
{
    static const test_form form = {.desc = {GFISH, W_AND_C, .dropout = 0.1}};
    static fixture f;
    make(&form, &f);
    TH_REF_ANSWER before = solve(&f.problem);
    for (size_t h = 0; h < f.count[MIX_OFFSET]; h++)
        f.array[MIX_OFFSET][h] += 0.5 * (double)(h + 1);
    TH_REF_ANSWER after = solve(&f.problem);
    expect_close("O", (size_t)before.rows * E, after.o, before.o, 1e-13);
    for (int64_t row = 0; row < before.rows; row++) {
        const int64_t h = row / N % f.problem.desc.heads;
        expect_close("L", 1, &after.lse[row], &(double){before.lse[row] + 0.5 * (double)(h + 1) / sqrt(D)}, 1e-13);
    }

    f.problem.grad_lse = NULL;
    TH_REF_ARRAYS gradients = solve_gradients(&f.problem);
    assert_true(gradients.bound[MIX_OFFSET].max_abs < 1e-15 && gradients.bound[MIX_WEIGHT].max_abs > 1e-3);
}

/* ---- noise ------------------------------------------------------------------------------------------------------ */

/* The logits of a noisy form are those of its hard one plus sum_k p_k sigma_k eps / sqrt(D), with the eps that the
 * library draws for the head, row and key of the sequence. */
TH_HOST_TEST(logits_have_the_noise_of_the_library)
{
    static const test_form noisy[] = {{.desc = {FISH}},
                                      {.desc = {FISH, .shared_noise = 1}},
                                      {.desc = {MISH}},
                                      {.desc = {FISH, .sequences = 3, .use_offsets_k = 1}}};
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(noisy); n++) {
        make(&noisy[n], &f);
        const clmgk_ref_problem *const p = &f.problem;
        clmgk_ref_problem hard = *p;
        hard.desc.variant = p->desc.variant == CLMGK_VARIANT_MISH ? CLMGK_VARIANT_HARD_MISH : CLMGK_VARIANT_HARD_FISH;
        for (int64_t cell = 0; cell < rows_of(p) * S; cell++) {
            const int64_t j = cell % S, i = cell / S % N, h = cell / S / N % p->desc.heads;
            const int64_t b = cell / S / N / p->desc.heads;
            if (!clmgk_ref_visible(p, b, h, i, j))
                continue;
            const bool packed = p->desc.sequences > 0;
            const int64_t t = packed ? (i >= 1 ? 2 : 0) : b; /* sequence 1 has no rows */
            float eps = 0.0F;
            assert_int_equal(clmgk_noise_tile(p->seed, p->desc.heads, t, p->desc.shared_noise ? 0 : h,
                                              packed ? i - offsets[t] : i, 1, packed ? j - offsets_k[t] : j, 1, &eps,
                                              NULL),
                             CLMGK_OK);
            double spread = 0.0;
            for (int64_t k = 0; k < p->desc.components; k++)
                spread += p->mix[p->desc.variant == CLMGK_VARIANT_MISH ? k : h * p->desc.components + k] * p->noise[k];
            const double difference =
                clmgk_ref_log_weight(p, b, h, i, j, 0) - clmgk_ref_log_weight(&hard, b, h, i, j, 0);
            expect_close("noise", 1, &difference, &(double){spread * (double)eps / sqrt(D)}, 2e-6);
        }
    }
}

TH_HOST_TEST(noise_by_hand)
{
    static const test_form form = {.desc = {FISH}}, shared = {.desc = {FISH, .shared_noise = 1}};
    static const test_form hard = {.desc = {HARD_FISH}};
    static fixture f;
    make(&form, &f);
    const uint32_t counter[4] = {1, 3, 1 * 3 + 2, 1}; /* keys 4 and 5, row 3, batch 1, head 2 of 3, stream 1 */
    const uint32_t key[2] = {0x23456789, 1};
    uint32_t words[4];
    clmgk_ref_philox(counter, key, words);
    const double u = (words[0] + 0.5) / 4294967296.0, angle = 2.0 * acos(-1.0) * (words[1] + 0.5) / 4294967296.0;
    expect_close("key 4", 1, &(double){clmgk_ref_noise(&f.problem, 1, 2, 3, 4)},
                 &(double){sqrt(-2.0 * log(u)) * cos(angle)}, 1e-13);
    expect_close("key 5", 1, &(double){clmgk_ref_noise(&f.problem, 1, 2, 3, 5)},
                 &(double){sqrt(-2.0 * log(u)) * sin(angle)}, 1e-13);
    const double of_head_0 = clmgk_ref_noise(&f.problem, 1, 0, 3, 4);
    make(&shared, &f);
    assert_true(clmgk_ref_noise(&f.problem, 1, 2, 3, 4) == of_head_0);
    make(&hard, &f);
    assert_true(clmgk_ref_noise(&f.problem, 1, 2, 3, 4) == 0.0);
}

/* ---- bounds and bad values -------------------------------------------------------------------------------------- */

/* In every form the plain formula's error fits its number format, and values out of bound are noticed. */
TH_HOST_TEST(bounds_hold_and_reject)
{
    static const double c[] = {3e-6, 5e-4, 4e-3};
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        for (int dtype = CLMGK_DTYPE_F32; dtype <= CLMGK_DTYPE_BF16; dtype++) {
            make(&forms[n], &f);
            f.problem.desc.dtype = (clmgk_dtype)dtype;
            TH_REF_ANSWER answer = solve(&f.problem);
            const clmgk_ref_bound bound = answer.bound_o;
            const double values = answer.before ? bound.scale : bound.max_abs; /* mixed ones may cancel */
            if (!(bound.plain_error > 0.0 && bound.plain_error < 2.0 * c[dtype] * values))
                fail_msg("%s: the plain formula errs by %g of %g", forms[n].name, bound.plain_error, values);
            assert_true(fabs(bound.bound - 3.0 * bound.plain_error - c[dtype] * bound.max_abs) < 1e-15);
            const clmgk_ref_bound of_lse = answer.before ? answer.before->bound_lse : answer.bound_lse;
            assert_true(of_lse.plain_error < 1e-6 * fmax(1.0, of_lse.max_abs));
            assert_true(clmgk_ref_check(&answer, answer.o, lse_of(&answer)).ok);
            double given[MOST];
            memcpy(given, answer.o, (size_t)answer.rows * E * sizeof(double));
            given[3] += 1.1 * bound.bound;
            assert_false(clmgk_ref_check(&answer, given, lse_of(&answer)).ok);
        }
    }
}

/* NaN beyond the lengths has no effect, not even on the bound. */
TH_HOST_TEST(padding_reaches_nothing)
{
    enum { FIRST_KEY = 3 * D, END_KEY = S * D }; /* keys 3 to 5 of batch 0 */
    enum { FIRST_ROW = 2 * D, END_ROW = N * D }; /* rows 2 and 3 of batch 1 */
    static const test_form form = {.desc = {GFISH, W_AND_C, .use_lengths = 1, .use_lengths_q = 1}, .lengths = lengths};
    static fixture f;
    make(&form, &f);
    TH_REF_ARRAYS clean = solve_gradients(&f.problem);
    const int64_t components = f.problem.desc.components, heads = f.problem.desc.heads;
    for (int64_t head = 0; head < components; head++) {
        for (int64_t n = FIRST_KEY; n < END_KEY; n++)
            f.array[K][head * END_KEY + n] = NAN;
        for (int64_t n = FIRST_ROW; n < END_ROW; n++)
            f.array[Q][(components + head) * END_ROW + n] = NAN;
    }
    for (int64_t n = 0; n < heads * S * E; n++)
        if (n / E % S >= 3)
            f.array[V][n] = NAN;
    TH_REF_ARRAYS dirty = solve_gradients(&f.problem);
    expect_same_gradients(&clean, &dirty, clean.set);
    TH_REF_ANSWER answer = solve(&f.problem);
    for (int64_t n = 0; n < answer.rows * E; n++)
        assert_true(isfinite(answer.o[n]));
}

/* An invalid deviation gives NaN in all rows, with relu and without, for any p. Rows without keys are unchanged. */
TH_HOST_TEST(bad_deviations)
{
    static const test_form form_of[] = {{.desc = {FISH, .use_lengths_q = 1}}, {.desc = {GFISH, .use_lengths_q = 1}}};
    static const double bad[] = {-1e-30, (double)NAN};
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(form_of) * TH_COUNT(bad); n++) {
        make(&form_of[n / TH_COUNT(bad)], &f);
        f.array[NOISE][1] = bad[n % TH_COUNT(bad)];
        for (size_t h = 0; h < f.count[MIX] / 2; h++)
            f.array[MIX][2 * h + 1] = 0.0;
        TH_REF_ANSWER answer = solve(&f.problem);
        for (int64_t row = 0; row < answer.rows; row++) {
            const bool absent = row >= answer.rows / B && row % N >= lengths_q[1];
            assert_true(absent ? answer.o[row * E] == 0.0 : isnan(answer.o[row * E]));
            assert_true(absent ? answer.lse[row] == -(double)INFINITY : isnan(answer.lse[row]));
        }
    }
}
