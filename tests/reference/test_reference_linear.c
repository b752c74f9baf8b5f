/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference over every form of the linear family: rows against the definition with whole sums, gradients against
 * central differences of the loss, states against one pass over all keys, the plain formula against the exact one.
 */
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4, S = 5, D = 3, E = 2, RANDOM = 4, MOST_VALUES = 8 };

/* A form: fields of its descriptor. Batch, heads and components are 2 unless given. */
typedef struct test_form {
    const char *name;
    clmgk_attention_desc desc;
} test_form;

#define LINEAR      .variant = CLMGK_VARIANT_LINEAR
#define MLK         .variant = CLMGK_VARIANT_MLK
#define SMLK        .variant = CLMGK_VARIANT_SMLK
#define LFISH       .variant = CLMGK_VARIANT_LFISH
#define LHARD_FISH  .variant = CLMGK_VARIANT_LHARD_FISH
#define LMISH       .variant = CLMGK_VARIANT_LMISH
#define LHARD_MISH  .variant = CLMGK_VARIANT_LHARD_MISH
#define LGFISH      .variant = CLMGK_VARIANT_LGFISH
#define LHARD_GFISH .variant = CLMGK_VARIANT_LHARD_GFISH
#define RELU        .feature = CLMGK_FEATURE_RELU
#define EXP         .feature = CLMGK_FEATURE_EXP
#define DPFP(nu)    .feature = CLMGK_FEATURE_DPFP, .feature_order = (nu)
#define FAVOR       .feature = CLMGK_FEATURE_FAVOR, .features = RANDOM
#define STATES      .use_state = 1, .use_new_state = 1
#define PACKED      .sequences = 3, .use_offsets_k = 1

static const test_form forms[] = {
    {"linear", {LINEAR}},
    {"linear, relu", {LINEAR, RELU, .causal = 1}},
    {"linear, exp", {LINEAR, EXP, STATES}},
    {"linear, dpfp 1", {LINEAR, DPFP(0), .guard = 0.2}},
    {"linear, dpfp 2", {LINEAR, DPFP(2), STATES, .causal = 1}},
    {"linear, dpfp 3", {LINEAR, DPFP(3), .guard = 0.1}},
    {"linear, favor", {LINEAR, FAVOR, STATES, .causal = 1}},
    {"linear, top-left", {LINEAR, .causal = 1, .alignment = CLMGK_ALIGN_TOP_LEFT, .use_state = 1}},
    {"linear, grouped, lengths", {LINEAR, STATES, .heads = 4, .use_lengths = 1, .use_lengths_q = 1}},
    {"linear, packed", {LINEAR, EXP, PACKED, .causal = 1, .guard = 0.5}},
    {"mlk", {MLK, STATES, .components = 3, .causal = 1, .prior_shape = CLMGK_PRIOR_M}},
    {"mlk, uniform, exp", {MLK, EXP, .use_new_state = 1}},
    {"mlk, prior [H,M,S], exp", {MLK, EXP, STATES, .prior_shape = CLMGK_PRIOR_HMS, .use_lengths = 1}},
    {"mlk, packed, favor", {MLK, FAVOR, PACKED, .prior_shape = CLMGK_PRIOR_HM}},
    {"smlk", {SMLK, STATES, .causal = 1, .prior_shape = CLMGK_PRIOR_HM, .heads = 4}},
    {"smlk, favor",
     {SMLK, FAVOR, STATES, .causal = 1, .prior_shape = CLMGK_PRIOR_M, .use_lengths = 1,
      .alignment = CLMGK_ALIGN_LENGTHS}},
    {"smlk, dpfp, prior [H,M,S]", {SMLK, DPFP(2), .prior_shape = CLMGK_PRIOR_HMS}},
    {"lfish", {LFISH, STATES, .components = 3, .causal = 1}},
    {"lfish, exp, shared noise", {LFISH, EXP, STATES, .shared_noise = 1}},
    {"lfish, favor, packed", {LFISH, FAVOR, PACKED}},
    {"lhard-fish", {LHARD_FISH, STATES, .heads = 4, .components = 3}},
    {"lhard-fish, favor", {LHARD_FISH, FAVOR, STATES, .causal = 1, .guard = 0.25}},
    {"lmish", {LMISH, .causal = 1, .components = 3}},
    {"lhard-mish, dpfp", {LHARD_MISH, DPFP(1), STATES, .guard = 0.3}},
    {"lgfish", {LGFISH, STATES, .use_mix_weight = 1, .causal = 1}},
    {"lgfish, exp", {LGFISH, EXP, .use_mix_weight = 1, .components = 3}},
    {"lgfish, w of its own", {LGFISH, .use_lengths_q = 1}},
    {"lhard-gfish, favor", {LHARD_GFISH, FAVOR, STATES, .use_mix_weight = 1}},
    {"lhard-gfish, relu", {LHARD_GFISH, RELU, .guard = 1.0}},
    {"linear, unnormalised", {LINEAR, RELU, STATES, .causal = 1, .unnormalised = 1}},
    {"smlk, favor, unnormalised", {SMLK, FAVOR, STATES, .causal = 1, .prior_shape = CLMGK_PRIOR_M, .unnormalised = 1}},
    {"lgfish, exp, unnormalised", {LGFISH, EXP, STATES, .use_mix_weight = 1, .unnormalised = 1}},
};

/* ---- problems --------------------------------------------------------------------------------------------------- */

/* Problem and reference of a form. */
typedef struct fixture {
    th_problem problem;
    th_reference reference;
} fixture;

static void drop(fixture *f)
{
    th_reference_free(&f->reference);
    th_problem_free(&f->problem);
}

#define FIXTURE __attribute__((unused, cleanup(drop))) fixture

/* Keeps denominators far from 0, as numerical differences of quotients need. One p is negative where this is safe. */
static void tame(th_problem *problem)
{
    const bool generalised = (clmgk_variant_traits(problem->desc.variant) & CLMGK_TRAIT_GENERALISED) != 0;
    const bool either_sign = generalised || problem->desc.feature == CLMGK_FEATURE_ELU1;
    th_array *const mix = &problem->array[TH_MIX];
    for (size_t n = 0; mix->used && n < mix->count; n++)
        mix->values[n] = n == 1 && either_sign ? -0.1 : 0.4 + 0.5 * fabs(mix->values[n]);
    th_array *const weight = &problem->array[TH_MIX_WEIGHT];
    for (size_t n = 0; weight->used && n < weight->count; n++)
        weight->values[n] = 0.5 + fabs(weight->values[n]);
    th_scale(problem, TH_NOISE, 0.2);
}

/* Every sequence has other numbers of rows and keys, one of them no rows. */
static void fix_masks(th_problem *problem)
{
    static const struct {
        th_name name;
        double values[4];
    } of[] = {{TH_LENGTHS, {3, 5}}, {TH_LENGTHS_Q, {4, 2}}, {TH_OFFSETS, {0, 1, 1, 4}}, {TH_OFFSETS_K, {0, 2, 3, 5}}};
    for (size_t at = 0; at < TH_COUNT(of); at++) {
        th_array *const array = &problem->array[of[at].name];
        for (size_t n = 0; array->used && n < array->count && n < TH_COUNT(of[at].values); n++)
            array->values[n] = of[at].values[n];
    }
}

static clmgk_attention_desc desc_of(const test_form *form)
{
    clmgk_attention_desc d = form->desc;
    const bool packed = d.sequences > 0;
    d.batch = packed ? 1 : 2;
    d.heads = d.heads > 0 ? d.heads : 2;
    d.kv_heads = 2;
    d.length = N;
    d.length_k = S;
    d.head_size = D;
    d.value_size = E;
    d.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return d;
}

static fixture make(const test_form *form)
{
    const clmgk_attention_desc desc = desc_of(form);
    fixture f = {.problem = th_problem_make(&desc, 3)};
    tame(&f.problem);
    fix_masks(&f.problem);
    f.reference = th_reference_of(&f.problem);
    return f;
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(gradients_are_those_of_the_loss)
{
    static const struct {
        int which;
        th_name array;
    } of[] = {{CLMGK_REF_GRAD_Q, TH_Q},
              {CLMGK_REF_GRAD_K, TH_K},
              {CLMGK_REF_GRAD_V, TH_V},
              {CLMGK_REF_GRAD_PRIOR, TH_PRIOR},
              {CLMGK_REF_GRAD_SHIFT, TH_SHIFT},
              {CLMGK_REF_GRAD_MIX, TH_MIX},
              {CLMGK_REF_GRAD_MIX_WEIGHT, TH_MIX_WEIGHT},
              {CLMGK_REF_GRAD_NOISE, TH_NOISE},
              {CLMGK_REF_GRAD_STATE_C, TH_STATE_C},
              {CLMGK_REF_GRAD_STATE_Z, TH_STATE_Z}};
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        FIXTURE f = make(&forms[n]);
        TH_REF_ARRAYS gradients = {0};
        assert_true(clmgk_ref_solve_gradients(&f.reference.problem, CLMGK_GRADIENT_ALL, &gradients));
        for (size_t at = 0; at < TH_COUNT(of); at++) {
            const th_array *const array = &f.problem.array[of[at].array];
            if (!array->used)
                continue;
            th_expect_derivatives(forms[n].name, &f.reference.problem, &gradients, of[at].which, array->values,
                                  array->count, of[at].array == TH_NOISE || of[at].array == TH_PRIOR);
            if (gradients.bound[of[at].which].max_abs < 1e-3)
                fail_msg("%s, gradient %d: nothing", forms[n].name, of[at].which);
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static clmgk_ref_answer solve(const clmgk_ref_problem *p)
{
    clmgk_ref_answer answer;
    assert_true(clmgk_ref_solve(p, p->desc.batch * p->desc.heads * p->desc.length, NULL, &answer));
    return answer;
}

static void expect_close(const char *what, int64_t count, const double *values, const double *expected, double within)
{
    for (int64_t n = 0; n < count; n++)
        if (!(values[n] == expected[n] || fabs(values[n] - expected[n]) <= within * fmax(1.0, fabs(expected[n]))))
            fail_msg("%s, element %lld: %.15g, expected %.15g", what, (long long)n, values[n], expected[n]);
}

static void expect_same_answer(const char *what, const clmgk_ref_problem *p, const clmgk_ref_problem *expected,
                               double within)
{
    TH_REF_ANSWER one = solve(p), other = solve(expected);
    expect_close(what, one.rows * E, one.o, other.o, within);
}

TH_HOST_TEST(weights_are_those_of_outputs)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        FIXTURE f = make(&forms[n]);
        th_scale(&f.problem, TH_STATE_C, 0.0);
        th_expect_weights(forms[n].name, &f.reference.problem);
    }
}

/* One query, two keys, two dimensions; the features of each map by hand: phi(q), phi(k_0), phi(k_1). */
TH_HOST_TEST(maps_by_hand)
{
    static const double q[] = {0.5, -1.0}, k[] = {2.0, -0.25, -3.0, 1.5}, v[] = {5.0, 7.0};
    static const double w[] = {1.0, -2.0, 0.5, 3.0, -1.0, 0.0}; /* [3,2] */
    clmgk_ref_problem p = {.desc = {LINEAR, .batch = 1, .heads = 1, .kv_heads = 1, .components = 1, .length = 1,
                                    .length_k = 2, .head_size = 2, .value_size = 1},
                           .q = q,
                           .k = k,
                           .v = v,
                           .projection = w};
    double favor[3][3];
    for (size_t x = 0; x < 3; x++) {
        const double *const in = x == 0 ? q : &k[2 * (x - 1)];
        for (size_t f = 0; f < 3; f++)
            favor[x][f] = exp((w[2 * f] * in[0] + w[2 * f + 1] * in[1]) / pow(2.0, 0.25) -
                              (in[0] * in[0] + in[1] * in[1]) / sqrt(2.0) / 2.0) /
                          sqrt(3.0);
    }
    const struct {
        clmgk_feature feature;
        int32_t order;
        int features;
        double phi[3][12];
    } of[] = {
        {CLMGK_FEATURE_ELU1, 0, 2, {{1.5, exp(-1.0)}, {3.0, exp(-0.25)}, {exp(-3.0), 2.5}}},
        {CLMGK_FEATURE_RELU, 0, 2, {{0.5, 0.0}, {2.0, 0.0}, {0.0, 1.5}}},
        {CLMGK_FEATURE_EXP, 0, 2, {{exp(0.5), exp(-1.0)}, {exp(2.0), exp(-0.25)}, {exp(-3.0), exp(1.5)}}},
        /* r(q) = .5 0 0 1, r(k_0) = 2 0 0 .25, r(k_1) = 0 1.5 3 0; with the one before it, the second before, the third
         */
        {CLMGK_FEATURE_DPFP, 1, 4, {{0.5, 0.0, 0.0, 0.0}, {0.5, 0.0, 0.0, 0.0}, {0.0, 0.0, 4.5, 0.0}}},
        {CLMGK_FEATURE_DPFP,
         3,
         12,
         {{0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5},
          {0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5},
          {0, 0, 4.5, 0, 0, 0, 0, 0, 0, 4.5, 0, 0}}},
        {CLMGK_FEATURE_FAVOR,
         0,
         3,
         {{favor[0][0], favor[0][1], favor[0][2]},
          {favor[1][0], favor[1][1], favor[1][2]},
          {favor[2][0], favor[2][1], favor[2][2]}}},
    };
    for (size_t n = 0; n < TH_COUNT(of); n++) {
        double weight[2] = {0.0, 0.0}, o = 0.0, lse = 1.0;
        for (int f = 0; f < of[n].features; f++)
            for (int j = 0; j < 2; j++)
                weight[j] += of[n].phi[0][f] * of[n].phi[j + 1][f];
        p.desc.feature = of[n].feature;
        p.desc.feature_order = of[n].order;
        p.desc.features = of[n].features;
        TH_REF_ARRAYS state = {0}; /* the order of dpfp's features is seen in a state alone */
        assert_true(clmgk_ref_solve_state(&p, &state));
        for (int f = 0; f < of[n].features; f++)
            expect_close("z", 1, &(double){state.exact[CLMGK_REF_STATE_Z][f] * exp(*state.exact[CLMGK_REF_STATE_M])},
                         &(double){of[n].phi[1][f] + of[n].phi[2][f]}, 1e-14);
        for (int guarded = 0; guarded < 2; guarded++) {
            p.desc.guard = 0.125 * guarded;
            assert_true(clmgk_ref_row(&p, 0, &o, &lse) && lse == 0.0);
            expect_close("O", 1, &o,
                         &(double){(5.0 * weight[0] + 7.0 * weight[1]) / (weight[0] + weight[1] + p.desc.guard)},
                         1e-14);
        }
        p.desc.guard = 0.0;
        p.desc.unnormalised = 1;
        assert_true(clmgk_ref_row(&p, 0, &o, &lse));
        expect_close("O", 1, &o, &(double){5.0 * weight[0] + 7.0 * weight[1]}, 1e-14);
        p.desc.unnormalised = 0;
    }
}

/* A causal row is that of a problem that ends with its last key. */
TH_HOST_TEST(causal_rows_are_those_of_fewer_keys)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        FIXTURE f = make(&forms[n]);
        clmgk_ref_problem full = f.reference.problem;
        if (!full.desc.causal || full.desc.sequences > 0 || full.desc.use_lengths)
            continue;
        TH_REF_ANSWER causal = solve(&f.reference.problem);
        full.desc.causal = 0;
        full.desc.use_lengths = 1;
        for (int32_t i = 0; i < N; i++) {
            const int32_t keys = full.desc.alignment == CLMGK_ALIGN_TOP_LEFT ? i + 1 : i + 1 + S - N;
            const int32_t both[] = {keys, keys};
            full.lengths = both;
            TH_REF_ANSWER answer = solve(&full);
            for (int64_t bh = 0; bh < answer.rows / N; bh++)
                expect_close(forms[n].name, E, causal.o + (bh * N + i) * E, answer.o + (bh * N + i) * E, 1e-14);
        }
    }
}

/* A denominator of 0 gives 0, and no gradient; with a guard O is 0 as well. */
TH_HOST_TEST(denominators_of_0)
{
    static const test_form form_of[] = {{"relu", {LINEAR, RELU}}, {"dpfp", {LINEAR, DPFP(2)}}};
    for (size_t n = 0; n < TH_COUNT(form_of); n++) {
        FIXTURE f = make(&form_of[n]);
        th_array *const q = &f.problem.array[TH_Q];
        for (int64_t x = D; x < (int64_t)2 * D; x++) /* row 1 */
            q->values[x] = n == 0 ? -fabs(q->values[x]) - 0.1 : 0.0;
        TH_REF_ANSWER answer = solve(&f.reference.problem);
        TH_REF_ARRAYS gradients = {0};
        assert_true(clmgk_ref_solve_gradients(&f.reference.problem, CLMGK_GRADIENT_Q, &gradients));
        for (int64_t e = 0; e < E; e++)
            assert_true(answer.o[E + e] == 0.0 && answer.o[e] != 0.0);
        for (int64_t d = 0; d < D; d++)
            assert_true(gradients.exact[CLMGK_REF_GRAD_Q][D + d] == 0.0);
    }
}

/* Adding a number to all exponents of a row or of all keys changes nothing, however large it is. */
TH_HOST_TEST(large_exponents_cancel)
{
    static const test_form form = {"exp", {MLK, EXP, .prior_shape = CLMGK_PRIOR_HM, .causal = 1}};
    static const double offset[] = {-3000.0, 3000.0, 1e6};
    for (size_t n = 0; n < TH_COUNT(offset); n++) {
        FIXTURE f = make(&form), moved = make(&form);
        for (int name = 0; name < 2; name++) {
            th_array *const array = &moved.problem.array[name == 0 ? TH_Q : TH_K];
            for (size_t x = 0; x < array->count; x++)
                array->values[x] += offset[n];
        }
        expect_same_answer("exp", &moved.reference.problem, &f.reference.problem, 1e-8);
        TH_REF_ARRAYS one = {0}, other = {0};
        assert_true(clmgk_ref_solve_gradients(&f.reference.problem, CLMGK_GRADIENT_ALL, &one));
        assert_true(clmgk_ref_solve_gradients(&moved.reference.problem, CLMGK_GRADIENT_ALL, &other));
        for (int which = CLMGK_REF_GRAD_Q; which <= CLMGK_REF_GRAD_PRIOR; which++)
            expect_close("gradient", one.count[which], other.exact[which], one.exact[which], 1e-8);
    }
}

/* Late keys with large exponents do not reduce the accuracy of rows that do not see them. */
TH_HOST_TEST(early_rows_do_not_underflow)
{
    static const test_form form = {"exp", {LINEAR, EXP, .causal = 1}};
    FIXTURE f = make(&form), moved = make(&form);
    th_array *const k = &moved.problem.array[TH_K];
    for (size_t x = 0; x < k->count; x++)
        k->values[x] = x / D % S >= 2 ? (double)(float)(k->values[x] + 2000.0) : k->values[x];
    TH_REF_ANSWER one = solve(&f.reference.problem), other = solve(&moved.reference.problem);
    expect_close("row 0", E, other.o, one.o, 1e-14); /* of keys 0 and 1 */
    assert_true(other.bound_o.plain_error < 1e-5);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* The tokens first .. first + count - 1 of a problem whose arrays are those of all: keys and rows. */
static th_problem part_of(const th_problem *whole, int64_t first, int64_t count)
{
    clmgk_attention_desc desc = whole->desc;
    desc.length = count;
    desc.length_k = count;
    desc.use_state = first > 0;
    desc.use_new_state = 1;
    desc.q = desc.k = desc.v = desc.o = (clmgk_layout){0};
    th_problem part = th_problem_make(&desc, 3);
    for (th_name name = TH_Q; name < TH_ARRAYS; name++) {
        th_array *const to = &part.array[name];
        const th_array *const from = &whole->array[name];
        const bool tokens = name == TH_Q || name == TH_K || name == TH_V || name == TH_PRIOR;
        if (!th_is_input(name) || !to->used || !from->used)
            continue;
        const int64_t width = from->shape[TH_RANK - 1];
        for (size_t n = 0; n < to->count; n++) {
            const int64_t token = (int64_t)n / width % to->shape[TH_RANK - 2];
            const int64_t outer = (int64_t)n / width / to->shape[TH_RANK - 2];
            const int64_t moved = tokens && from->shape[TH_RANK - 2] == whole->desc.length ? token + first : token;
            to->values[n] = from->values[(outer * from->shape[TH_RANK - 2] + moved) * width + (int64_t)n % width];
        }
    }
    return part;
}

static void pass_on(th_problem *to, const clmgk_ref_arrays *state)
{
    for (int which = 0; which < CLMGK_REF_STATES; which++)
        for (size_t n = 0; to->array[TH_STATE_C + which].used && n < to->array[TH_STATE_C + which].count; n++)
            to->array[TH_STATE_C + which].values[n] = state->exact[which][n];
}

/* Rows of the parts, the state handed on, are rows of one pass over all tokens, and the last state is that pass's. */
static void expect_parts(const char *name, const th_problem *whole, const int64_t *count)
{
    th_reference of_whole = th_reference_of(whole);
    TH_REF_ANSWER all = solve(&of_whole.problem);
    TH_REF_ARRAYS state = {0};
    for (int64_t first = 0; first < whole->desc.length; first += *count++) {
        TH_PROBLEM part = part_of(whole, first, *count);
        if (first > 0)
            pass_on(&part, &state);
        th_reference of_part = th_reference_of(&part);
        TH_REF_ANSWER answer = solve(&of_part.problem);
        const int64_t rows = part.desc.length, heads = part.desc.batch * part.desc.heads;
        for (int64_t bh = 0; bh < heads; bh++)
            expect_close(name, rows * E, answer.o + bh * rows * E, all.o + (bh * whole->desc.length + first) * E,
                         1e-13);
        clmgk_ref_arrays_free(&state);
        assert_true(clmgk_ref_solve_state(&of_part.problem, &state));
        th_reference_free(&of_part);
    }
    TH_REF_ARRAYS last = {0};
    assert_true(clmgk_ref_solve_state(&of_whole.problem, &last));
    for (int which = 0; which < CLMGK_REF_STATES; which++)
        expect_close(name, last.count[which], state.exact[which], last.exact[which], 1e-13);
    th_reference_free(&of_whole);
}

TH_HOST_TEST(parts_are_one_pass)
{
    static const int64_t cuts[][4] = {{3, 1, 1, 1}, {1, 4, 1, 0}};
    for (size_t n = 0; n < TH_COUNT(forms) * TH_COUNT(cuts); n++) {
        test_form form = forms[n / TH_COUNT(cuts)];
        form.desc.causal = form.desc.use_new_state = 1;
        form.desc.use_state = form.desc.use_lengths = form.desc.use_lengths_q = 0;
        form.desc.alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
        const bool noisy = (clmgk_variant_traits(form.desc.variant) & CLMGK_TRAIT_NOISE) != 0;
        if (form.desc.sequences > 0 || noisy) /* noise depends on a row's place in its call */
            continue;
        clmgk_attention_desc desc = desc_of(&form);
        desc.length = desc.length_k = 6;
        TH_PROBLEM whole = th_problem_make(&desc, 3);
        tame(&whole);
        expect_parts(form.name, &whole, cuts[n % TH_COUNT(cuts)]);
    }
}

/* A state of zeros is that of no keys, whatever its m. */
TH_HOST_TEST(a_state_of_zeros_is_none)
{
    static const test_form form_of[] = {{"exp", {MLK, EXP, STATES}}, {"favor", {LHARD_FISH, FAVOR, STATES}}};
    for (size_t n = 0; n < TH_COUNT(form_of); n++) {
        FIXTURE f = make(&form_of[n]);
        th_fill(&f.problem, TH_STATE_C, 0.0);
        th_fill(&f.problem, TH_STATE_Z, 0.0);
        th_fill(&f.problem, TH_STATE_M, 2000.0);
        clmgk_ref_problem none = f.reference.problem;
        none.desc.use_state = 0;
        expect_same_answer(form_of[n].name, &f.reference.problem, &none, 0.0);
        TH_REF_ARRAYS one = {0}, other = {0};
        assert_true(clmgk_ref_solve_state(&f.reference.problem, &one) && clmgk_ref_solve_state(&none, &other));
        for (int which = 0; which < CLMGK_REF_STATES; which++) {
            expect_close("state", one.count[which], one.exact[which], other.exact[which], 0.0);
            assert_true(one.bound[which].bound == other.bound[which].bound);
        }
    }
}

/* A state with another scale, and numbers to match, is the same state; with the same scale it is not. */
TH_HOST_TEST(states_in_other_units)
{
    static const test_form form = {"exp", {LHARD_FISH, EXP, STATES, .components = 3}};
    FIXTURE f = make(&form);
    TH_REF_ARRAYS state = {0};
    char message[128];
    assert_true(clmgk_ref_solve_state(&f.reference.problem, &state));
    for (clmgk_ref_state which = CLMGK_REF_STATE_C; which <= CLMGK_REF_STATE_Z; which++) {
        double *const given = calloc((size_t)state.count[which], sizeof(double));
        for (int64_t n = 0; n < state.count[which]; n++) /* m 3 and 5 lower */
            given[n] = state.exact[which][n] * exp(n < state.count[which] / 2 ? 3.0 : 5.0);
        clmgk_ref_check_array(&state, (int)which, given, message, sizeof(message));
        assert_true(message[0] != '\0');
        clmgk_ref_rescale_state(
            &state, which,
            (const double[]){state.exact[CLMGK_REF_STATE_M][0] - 3.0, state.exact[CLMGK_REF_STATE_M][1] - 5.0}, given);
        clmgk_ref_check_array(&state, (int)which, given, message, sizeof(message));
        assert_string_equal(message, "");
        free(given);
    }
}

/* ---- forms within forms ------------------------------------------------------------------------------------------ */

static void expect_same_gradients(const char *name, const clmgk_ref_problem *one, const clmgk_ref_problem *other,
                                  uint32_t set)
{
    TH_REF_ARRAYS a = {0}, b = {0};
    assert_true(clmgk_ref_solve_gradients(one, set, &a) && clmgk_ref_solve_gradients(other, set, &b));
    assert_int_equal(a.set, set);
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        assert_int_equal(a.count[which], b.count[which]);
        expect_close(name, a.count[which], a.exact[which], b.exact[which], 1e-12);
    }
}

enum { QKV = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V };

/* One component of prior 1 is linear attention, and so is one with a shift of 0. */
TH_HOST_TEST(one_component_is_linear)
{
    static const test_form form_of[] = {{"mlk", {MLK, FAVOR, .components = 1, .causal = 1}},
                                        {"smlk", {SMLK, EXP, .components = 1}}};
    for (size_t n = 0; n < TH_COUNT(form_of); n++) {
        FIXTURE f = make(&form_of[n]);
        th_scale(&f.problem, TH_SHIFT, 0.0);
        clmgk_ref_problem linear = f.reference.problem;
        linear.desc.variant = CLMGK_VARIANT_LINEAR;
        expect_same_answer(form_of[n].name, &f.reference.problem, &linear, 1e-14);
        expect_same_gradients(form_of[n].name, &f.reference.problem, &linear, QKV);
    }
}

/* sMLK is MLK whose components are the shifted keys. */
TH_HOST_TEST(smlk_is_mlk_of_shifted_keys)
{
    static const test_form form = {"smlk", {SMLK, DPFP(2), .causal = 1, .prior_shape = CLMGK_PRIOR_HM}};
    FIXTURE f = make(&form);
    clmgk_ref_problem mlk = f.reference.problem;
    double *const keys = calloc((size_t)8 * S * D, sizeof(double)), *next = keys;
    for (int64_t bh = 0; bh < 4; bh++)
        for (int64_t r = 0; r < 2; r++)
            for (int64_t n = 0; n < (int64_t)S * D; n++)
                *next++ = mlk.k[bh * S * D + n] + mlk.shift[(bh % 2 * 2 + r) * D + n % D];
    mlk.desc.variant = CLMGK_VARIANT_MLK;
    mlk.k = keys;
    expect_same_answer("smlk", &f.reference.problem, &mlk, 1e-14);
    expect_same_gradients("smlk", &f.reference.problem, &mlk,
                          CLMGK_GRADIENT_Q | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR);
    free(keys);
}

/* Without deviation a form is its hard one; where p > 0, relu and w = 1 do nothing, but at noise. */
TH_HOST_TEST(mixed_forms_within_forms)
{
    static const struct {
        test_form form;
        clmgk_variant same;
    } of[] = {{{"lfish", {LFISH, STATES, .causal = 1}}, CLMGK_VARIANT_LHARD_FISH},
              {{"lmish", {LMISH, EXP}}, CLMGK_VARIANT_LHARD_MISH},
              {{"lgfish", {LGFISH, FAVOR, .use_mix_weight = 1}}, CLMGK_VARIANT_LHARD_GFISH},
              {{"lhard-gfish", {LHARD_GFISH, EXP}}, CLMGK_VARIANT_LHARD_FISH},
              {{"lhard-gfish, elu1", {LHARD_GFISH, STATES}}, CLMGK_VARIANT_LHARD_FISH}};
    for (size_t n = 0; n < TH_COUNT(of); n++) {
        FIXTURE f = make(&of[n].form);
        th_scale(&f.problem, TH_NOISE, 0.0);
        th_array *const mix = &f.problem.array[TH_MIX];
        for (size_t x = 0; x < mix->count; x++)
            mix->values[x] = fabs(mix->values[x]);
        clmgk_ref_problem other = f.reference.problem;
        other.desc.variant = of[n].same;
        expect_same_answer(of[n].form.name, &f.reference.problem, &other, 1e-14);
        expect_same_gradients(of[n].form.name, &f.reference.problem, &other, QKV | CLMGK_GRADIENT_MIX);
    }
}

/* With the unit matrix for p every local head is linear attention of its global one. */
TH_HOST_TEST(unit_mixing_is_linear)
{
    static const test_form form = {"lhard-fish", {LHARD_FISH, FAVOR, .causal = 1}};
    FIXTURE f = make(&form);
    for (int n = 0; n < 4; n++)
        f.problem.array[TH_MIX].values[n] = n % 3 == 0 ? 1.0 : 0.0;
    clmgk_ref_problem linear = f.reference.problem;
    linear.desc.variant = CLMGK_VARIANT_LINEAR;
    linear.desc.components = 1;
    expect_same_answer("unit", &f.reference.problem, &linear, 1e-13);
    expect_same_gradients("unit", &f.reference.problem, &linear, QKV);
}

/* relu's derivative at 0 is 0: nothing comes back through p = 0. */
TH_HOST_TEST(relu_at_0_has_no_slope)
{
    static const test_form form = {"lhard-gfish", {LHARD_GFISH, EXP, .guard = 1.0, .use_mix_weight = 1}};
    FIXTURE f = make(&form);
    th_fill(&f.problem, TH_MIX, 0.0);
    TH_REF_ARRAYS gradients = {0};
    assert_true(clmgk_ref_solve_gradients(&f.reference.problem, CLMGK_GRADIENT_ALL, &gradients));
    assert_true(gradients.bound[CLMGK_REF_GRAD_MIX].max_abs == 0.0);
    assert_true(gradients.bound[CLMGK_REF_GRAD_K].max_abs == 0.0);
}

/* ---- noise ------------------------------------------------------------------------------------------------------- */

/* phi(q) is 0, but for noise; key j of a sequence has the feature j alone, and the value 1 if j is 1. */
static void show_noise(th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    th_fill(problem, TH_Q, -1.0);
    th_fill(problem, TH_K, 0.0);
    th_fill(problem, TH_V, 0.0);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t place = 0;
        for (int64_t j = 0; j < S; j++, place++) {
            if (d->sequences > 0 && (j == 2 || j == 3))
                place = 0;
            if (place < D)
                th_set(problem, TH_K, b, 0, 0, j, place, 1.0);
            for (int64_t g = 0; g < d->kv_heads && place == 1; g++)
                th_set(problem, TH_V, b, g, 0, j, 0, 1.0);
        }
    }
}

/* Query features have sigma eps of the library's own numbers, feature f in the place of key j. */
TH_HOST_TEST(noise_is_the_library_s)
{
    static const struct {
        test_form form;
        int64_t b, h, i, features; /* of a row, and the keys that it sees */
        int64_t sequence, eps_head, position;
    } of[] = {{{"lmish", {LMISH, RELU, .components = 1}}, 1, 1, 3, 3, 1, 1, 3},
              {{"shared", {LMISH, RELU, .components = 1, .shared_noise = 1}}, 1, 1, 3, 3, 1, 0, 3},
              {{"packed", {LMISH, RELU, .components = 1, PACKED}}, 0, 1, 2, 2, 2, 1, 1}};
    for (size_t n = 0; n < TH_COUNT(of); n++) {
        FIXTURE f = make(&of[n].form);
        const clmgk_attention_desc *const d = &f.problem.desc;
        float eps[D];
        double sum = 0.0;
        show_noise(&f.problem);
        assert_int_equal(clmgk_noise_tile(f.problem.seed, d->heads, of[n].sequence, of[n].eps_head, of[n].position, 1,
                                          0, D, eps, NULL),
                         CLMGK_OK);
        for (int64_t j = 0; j < of[n].features; j++)
            sum += (double)eps[j];
        TH_REF_ANSWER answer = solve(&f.reference.problem);
        const int64_t row = (of[n].b * d->heads + of[n].h) * N + of[n].i;
        expect_close(of[n].form.name, 1, answer.o + row * E, &(double){(double)eps[1] / sum}, 1e-5);
    }
}

/* ---- bounds and bad values --------------------------------------------------------------------------------------- */

/* In every form and storage type the plain formula's error fits its number format, and values out of bound are noticed.
 */
TH_HOST_TEST(bounds_hold_and_reject)
{
    static const double c[] = {3e-6, 5e-4, 4e-3};
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        for (int dtype = CLMGK_DTYPE_F32; dtype <= CLMGK_DTYPE_BF16; dtype++) {
            FIXTURE f = make(&forms[n]);
            f.reference.problem.desc.dtype = (clmgk_dtype)dtype;
            TH_REF_ANSWER answer = solve(&f.reference.problem);
            const clmgk_ref_bound bound = answer.bound_o;
            if (!(bound.plain_error > 0.0 && bound.plain_error < 2.0 * c[dtype] * bound.max_abs))
                fail_msg("%s: the plain formula errs by %g of %g", forms[n].name, bound.plain_error, bound.max_abs);
            assert_true(clmgk_ref_check(&answer, answer.o, NULL).ok);
            answer.o[3] += 1.1 * bound.bound;
            TH_REF_ANSWER right = solve(&f.reference.problem);
            assert_false(clmgk_ref_check(&right, answer.o, NULL).ok);
        }
    }
}

TH_HOST_TEST(bounds_of_states)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        if (!forms[n].desc.use_new_state)
            continue;
        FIXTURE f = make(&forms[n]);
        TH_REF_ARRAYS state = {0};
        assert_true(clmgk_ref_solve_state(&f.reference.problem, &state));
        for (int which = CLMGK_REF_STATE_C; which <= CLMGK_REF_STATE_Z; which++) {
            const clmgk_ref_bound bound = state.bound[which];
            if (!(bound.plain_error > 0.0 && bound.plain_error < 3e-6 * bound.max_abs))
                fail_msg("%s: the plain state errs by %g of %g", forms[n].name, bound.plain_error, bound.max_abs);
        }
    }
}

TH_HOST_TEST(wanted_gradients_only)
{
    static const test_form form_of[] = {{"lgfish", {LGFISH, STATES, .use_mix_weight = 1}},
                                        {"smlk", {SMLK, STATES, .prior_shape = CLMGK_PRIOR_HMS}}};
    for (size_t n = 0; n < TH_COUNT(form_of); n++) {
        FIXTURE f = make(&form_of[n]);
        th_expect_wanted_gradients_only(&f.reference.problem);
    }
}

/* NaN beyond the lengths has no effect, not even on states and bounds. */
TH_HOST_TEST(padding_reaches_nothing)
{
    static const test_form form_of[] = {{"mlk", {MLK, FAVOR, STATES, .use_lengths = 1, .use_lengths_q = 1}},
                                        {"lfish", {LFISH, STATES, .use_lengths = 1, .use_lengths_q = 1}}};
    for (size_t n = 0; n < TH_COUNT(form_of); n++) {
        FIXTURE clean = make(&form_of[n]), dirty = make(&form_of[n]);
        th_poison(&dirty.problem, TH_K, 0, 3);
        th_poison(&dirty.problem, TH_V, 0, 3);
        th_poison(&dirty.problem, TH_Q, 1, 2);
        th_poison(&dirty.problem, TH_GRAD_O, 1, 2);
        expect_same_answer(form_of[n].name, &dirty.reference.problem, &clean.reference.problem, 0.0);
        TH_REF_ARRAYS one = {0}, other = {0};
        assert_true(clmgk_ref_solve_gradients(&clean.reference.problem, CLMGK_GRADIENT_ALL, &one));
        assert_true(clmgk_ref_solve_gradients(&dirty.reference.problem, CLMGK_GRADIENT_ALL, &other));
        for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
            expect_close(form_of[n].name, one.count[which], other.exact[which], one.exact[which], 0.0);
            assert_true(one.bound[which].bound == other.bound[which].bound);
        }
        TH_REF_ARRAYS state = {0}, poisoned = {0};
        assert_true(clmgk_ref_solve_state(&clean.reference.problem, &state));
        assert_true(clmgk_ref_solve_state(&dirty.reference.problem, &poisoned));
        for (int which = 0; which < CLMGK_REF_STATES; which++)
            expect_close(form_of[n].name, state.count[which], poisoned.exact[which], state.exact[which], 0.0);
    }
}

/* An invalid prior or deviation gives NaN in the rows that see it. */
TH_HOST_TEST(bad_values)
{
    static const test_form mlk = {"mlk", {MLK, .prior_shape = CLMGK_PRIOR_HMS, .causal = 1}};
    static const test_form lgfish = {"lgfish", {LGFISH}};
    FIXTURE f = make(&mlk), g = make(&lgfish);
    th_set(&f.problem, TH_PRIOR, 0, 1, 0, 3, 0, -1e-30);
    TH_REF_ANSWER answer = solve(&f.reference.problem);
    for (int64_t row = 0; row < answer.rows; row++)
        assert_int_equal(isnan(answer.o[row * E]) != 0, row / N % 2 == 1 && row % N >= 2);
    g.problem.array[TH_NOISE].values[1] = NAN;
    TH_REF_ANSWER noisy = solve(&g.reference.problem);
    for (int64_t row = 0; row < noisy.rows; row++)
        assert_true(isnan(noisy.o[row * E]));
}

/* Denominators agree with the formula at any scale, and a wrong one is noticed. */
TH_HOST_TEST(denominators_by_hand)
{
    static const test_form form_of[] = {{"elu1", {LINEAR, .causal = 1, .guard = 0.5}},
                                        {"exp", {LINEAR, EXP, .causal = 1, .guard = 0.5}}};
    for (size_t n = 0; n < TH_COUNT(form_of); n++) {
        FIXTURE f = make(&form_of[n]);
        const clmgk_ref_problem *const p = &f.reference.problem;
        TH_REF_ANSWER answer = solve(p);
        double den = 0.5, given[2]; /* row 0 sees keys 0 and 1 */
        char message[128];
        for (int64_t x = 0; x < (int64_t)2 * D; x++) {
            const double q = p->q[x % D], k = p->k[x];
            den += n == 1 ? exp(q + k) : (q > 0.0 ? q + 1.0 : exp(q)) * (k > 0.0 ? k + 1.0 : exp(k));
        }
        expect_close(form_of[n].name, 1, &(double){answer.den[0] * exp(answer.scale[0])}, &den, 1e-14);
        answer.rows = 1;
        given[1] = answer.scale[0] + 2.0;
        given[0] = answer.den[0] * exp(-2.0);
        assert_true(clmgk_ref_check_denominators(&answer, given, message, sizeof(message)));
        given[1] += 1e-4;
        assert_false(clmgk_ref_check_denominators(&answer, given, message, sizeof(message)));
    }
}
