/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference over every form of the mixture family: gradients against central differences of the loss
 * sum(O dO) + sum(L dL), statistics against their definitions, the plain formula against the exact one.
 */
#include "reference/forms.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { H = 2, M = 3, PAIRS = N * S, ALL_PAIRS = B * H * PAIRS, HEAD_KEYS = H * S };

#define SOFTMAX             .variant = CLMGK_VARIANT_SOFTMAX, .score = CLMGK_SCORE_DOT
#define GAUSSIAN            .variant = CLMGK_VARIANT_GAUSSIAN, .score = CLMGK_SCORE_GAUSSIAN
#define MGK                 .variant = CLMGK_VARIANT_MGK, .score = CLMGK_SCORE_GAUSSIAN, .components = M
#define MGK_DOT             .variant = CLMGK_VARIANT_MGK, .score = CLMGK_SCORE_DOT, .components = M
#define SMGK                .variant = CLMGK_VARIANT_SMGK, .score = CLMGK_SCORE_GAUSSIAN, .components = M
#define SMGK_DOT            .variant = CLMGK_VARIANT_SMGK, .score = CLMGK_SCORE_DOT, .components = M
#define HARD                .estep = CLMGK_ESTEP_HARD
#define WINDOW(left, right) .use_window = 1, .window_left = (left), .window_right = (right)

static const test_form forms[] = {
    {.name = "softmax", .desc = {SOFTMAX}},
    {.name = "softmax, no dL", .desc = {SOFTMAX}, .no_grad_lse = 1},
    {.name = "softmax, no dO", .desc = {SOFTMAX}, .no_grad_o = 1},
    {.name = "gaussian", .desc = {GAUSSIAN}},
    {.name = "gaussian, prior [H,M,S]", .desc = {GAUSSIAN, .prior_shape = CLMGK_PRIOR_HMS}},
    {.name = "mgk", .desc = {MGK}},
    {.name = "mgk, dot", .desc = {MGK_DOT}},
    {.name = "mgk, hard", .desc = {MGK, HARD}},
    {.name = "mgk, dot, hard, prior", .desc = {MGK_DOT, HARD, .prior_shape = CLMGK_PRIOR_HM}},
    {.name = "smgk", .desc = {SMGK}},
    {.name = "smgk, dot", .desc = {SMGK_DOT, .variance_shape = CLMGK_VARIANCE_HM}},
    {.name = "smgk, hard", .desc = {SMGK, HARD, .variance_shape = CLMGK_VARIANCE_M}},
    {.name = "smgk, dot, hard", .desc = {SMGK_DOT, HARD}},
    {.name = "prior [M]", .desc = {MGK, .prior_shape = CLMGK_PRIOR_M, .variance_shape = CLMGK_VARIANCE_M}},
    {.name = "prior [H,M]", .desc = {MGK, .prior_shape = CLMGK_PRIOR_HM, .variance_shape = CLMGK_VARIANCE_HM}},
    {.name = "prior [H,M,S]", .desc = {SMGK, .prior_shape = CLMGK_PRIOR_HMS, .variance_shape = CLMGK_VARIANCE_HM}},
    {.name = "prior [M] with 0", .desc = {MGK, .prior_shape = CLMGK_PRIOR_M}, .zero_prior = 1},
    {.name = "prior [H,M,S] with 0", .desc = {SMGK_DOT, .prior_shape = CLMGK_PRIOR_HMS}, .zero_prior = 1},
    {.name = "grouped heads", .desc = {MGK, .kv_heads = 1}},
    {.name = "grouped heads, smgk, dot", .desc = {SMGK_DOT, .kv_heads = 1}},
    {.name = "causal", .desc = {MGK, .causal = 1}},
    {.name = "causal, top-left", .desc = {SOFTMAX, .causal = 1, .alignment = CLMGK_ALIGN_TOP_LEFT}},
    {.name = "window", .desc = {SMGK, WINDOW(1, 0)}},
    {.name = "window, empty rows", .desc = {SOFTMAX, WINDOW(0, 0), .use_lengths = 1}, .lengths = lengths},
    {.name = "lengths", .desc = {MGK, .use_lengths = 1, .use_lengths_q = 1}, .lengths = lengths},
    {.name = "lengths, none", .desc = {MGK_DOT, .use_lengths = 1}, .lengths = no_keys},
    {.name = "lengths, aligned",
     .desc = {SMGK, .causal = 1, .alignment = CLMGK_ALIGN_LENGTHS, .use_lengths = 1},
     .lengths = lengths},
    {.name = "packed", .desc = {MGK, .sequences = 3, .use_offsets_k = 1, .causal = 1}},
    {.name = "packed, everything",
     .desc = {SOFTMAX, WINDOW(1, 1), .sequences = 3, .use_offsets_k = 1, .use_alibi = 1, .use_sinks = 1, .dropout = 0.4,
              ANY_BIAS(1, 2, N, S)}},
    {.name = "packed, prior [H,M,S]",
     .desc = {MGK, .sequences = 3, .use_offsets_k = 1, .prior_shape = CLMGK_PRIOR_HMS}},
    {.name = "bias", .desc = {MGK, .use_bias = 1}},
    {.name = "bias, hard", .desc = {SMGK, HARD, ANY_BIAS(2, 2, N, S)}},
    {.name = "bias [1,H,N,S]", .desc = {SOFTMAX, ANY_BIAS(1, 2, N, S)}},
    {.name = "bias [B,1,1,S]", .desc = {GAUSSIAN, ANY_BIAS(2, 1, 1, S)}},
    {.name = "bias [1,H,N,1]", .desc = {SMGK, ANY_BIAS(1, 2, N, 1), .use_sinks = 1}},
    {.name = "bias [1,1,1,1]", .desc = {MGK_DOT, ANY_BIAS(1, 1, 1, 1), .use_sinks = 1}},
    {.name = "alibi", .desc = {MGK, .use_alibi = 1, .causal = 1}},
    {.name = "sinks", .desc = {SOFTMAX, .use_sinks = 1}},
    {.name = "sinks, rows without keys",
     .desc = {MGK, .use_sinks = 1, .use_lengths = 1, .use_lengths_q = 1},
     .lengths = no_keys},
    {.name = "soft-cap", .desc = {SOFTMAX, .softcap = 0.8, .use_bias = 1}},
    {.name = "soft-cap, mgk with one component",
     .desc = {.variant = CLMGK_VARIANT_MGK,
              .score = CLMGK_SCORE_DOT,
              .components = 1,
              .softcap = 1.5,
              .prior_shape = CLMGK_PRIOR_HM}},
    {.name = "dropout", .desc = {SMGK, .dropout = 0.5}},
    {.name = "dropout, hard", .desc = {MGK, HARD, .dropout = 0.3, .use_sinks = 1}},
};

/* ---- problems --------------------------------------------------------------------------------------------------- */

static void resolve(const test_form *form, clmgk_attention_desc *d)
{
    *d = form->desc;
    d->struct_size = sizeof(*d);
    d->batch = d->sequences > 0 ? 1 : B;
    d->heads = H;
    d->kv_heads = d->kv_heads > 0 ? d->kv_heads : H;
    d->components = d->components > 0 ? d->components : 1;
    d->length = N;
    d->length_k = S;
    d->head_size = D;
    d->value_size = E;
    d->variance = 1.3;
}

static void count_elements(const clmgk_attention_desc *d, size_t count[PARAMETERS])
{
    const size_t b = (size_t)d->batch, m = (size_t)d->components, g = (size_t)d->kv_heads;
    const size_t prior[] = {m, m, H * m, H * m * S};
    const size_t variance[] = {1, m, H * m};
    const int64_t bias[] = {d->bias_batch, d->bias_heads, d->bias_length, d->bias_length_k};
    const size_t full[] = {b, H, N, S};
    memset(count, 0, PARAMETERS * sizeof(count[0]));
    count[Q] = b * H * N * D;
    count[K] = b * g * (d->variant == CLMGK_VARIANT_MGK ? m : 1) * S * D;
    count[V] = b * g * S * E;
    count[PRIOR] = d->variant == CLMGK_VARIANT_SOFTMAX ? 0 : prior[d->prior_shape];
    count[VARIANCE] = variance[d->variance_shape];
    count[SHIFT] = d->variant == CLMGK_VARIANT_SMGK ? H * m * D : 0;
    count[BIAS] = d->use_bias;
    for (size_t axis = 0; axis < TH_COUNT(full); axis++)
        count[BIAS] *= bias[axis] > 0 ? (size_t)bias[axis] : full[axis];
    count[SINKS] = d->use_sinks ? H : 0;
}

static void fill_arrays(fixture *f, const test_form *form)
{
    fill_irregularly(f);
    const double equal = 1.0 / (double)f->problem.desc.components;
    const bool uniform = form->desc.prior_shape == CLMGK_PRIOR_UNIFORM;
    for (size_t n = 0; n < f->count[PRIOR]; n++)
        f->array[PRIOR][n] = uniform ? equal : 1.1 + f->array[PRIOR][n];
    if (form->zero_prior)
        f->array[PRIOR][1] = 0.0;
    for (size_t n = 0; n < f->count[VARIANCE]; n++)
        f->array[VARIANCE][n] = 1.5 + f->array[VARIANCE][n] / 2.0;
}

static void make(const test_form *form, fixture *f)
{
    clmgk_attention_desc desc;
    resolve(form, &desc);
    f->problem = (clmgk_ref_problem){.desc = desc};
    count_elements(&desc, f->count);
    fill_arrays(f, form);
    point_to_arrays(form, f);
    f->problem.prior = f->array[PRIOR];
    f->problem.variance = f->array[VARIANCE];
    f->problem.shift = f->array[SHIFT];
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

/* The loss is differentiated with a uniform prior as an array, too. */
static clmgk_ref_problem with_arrays(const fixture *f)
{
    clmgk_ref_problem p = f->problem;
    if (p.desc.prior_shape == CLMGK_PRIOR_UNIFORM && p.desc.variant != CLMGK_VARIANT_SOFTMAX)
        p.desc.prior_shape = CLMGK_PRIOR_M;
    return p;
}

static void check_gradient(const test_form *form, fixture *f, const clmgk_ref_arrays *gradients, int which)
{
    clmgk_ref_problem p = with_arrays(f);
    const bool number = which == VARIANCE && p.desc.variance_shape == CLMGK_VARIANCE_NUMBER;
    double *const x = number ? &p.desc.variance : f->array[which];
    assert_int_equal(clmgk_ref_gradient_count(&f->problem.desc, (clmgk_ref_gradient)which), f->count[which]);
    if (which == PRIOR && p.desc.estep == CLMGK_ESTEP_HARD)
        assert_true(gradients->bound[which].max_abs == 0.0 && gradients->bound[which].plain_error == 0.0);
    else
        th_expect_derivatives(form->name, &p, gradients, which, x, f->count[which], which == PRIOR);
}

TH_HOST_TEST(gradients_are_those_of_the_loss)
{
    check_forms(forms, TH_COUNT(forms), make, check_gradient);
}

/* The loss depends on every parameter of a form, but for the hard E-step's prior: no gradient is 0 throughout. */
static void check_effect(const test_form *form, fixture *f, const clmgk_ref_arrays *gradients, int which)
{
    const bool nothing = f->count[which] == 0 || (which == V && form->no_grad_o) ||
                         (which == PRIOR && form->desc.estep == CLMGK_ESTEP_HARD);
    assert_int_equal(gradients->bound[which].max_abs > 1e-3, !nothing);
}

TH_HOST_TEST(gradients_are_not_nothing)
{
    check_forms(forms, TH_COUNT(forms), make, check_effect);
}

TH_HOST_TEST(wanted_gradients_only)
{
    static fixture f;
    make(&forms[TH_COUNT(forms) - 1], &f);
    th_expect_wanted_gradients_only(&f.problem);
}

TH_HOST_TEST(gradient_bounds_hold_and_reject)
{
    static const double c[] = {3e-6, 5e-4, 4e-3};
    static const double part[] = {1e-5, 1e-3, 8e-3};
    static fixture f;
    make(&forms[5], &f);
    for (int dtype = CLMGK_DTYPE_F32; dtype <= CLMGK_DTYPE_BF16; dtype++) {
        TH_REF_ARRAYS gradients = {0};
        double given[MOST];
        char message[128] = "";
        f.problem.desc.dtype = (clmgk_dtype)dtype;
        assert_true(clmgk_ref_solve_gradients(&f.problem, CLMGK_GRADIENT_ALL, &gradients));
        const clmgk_ref_bound bound = gradients.bound[K];
        assert_true(bound.plain_error > 0.0 && bound.plain_error < 3.0 * c[dtype] * bound.max_abs);
        assert_true(fabs(bound.bound - 5.0 * bound.plain_error - part[dtype] * bound.max_abs) < 1e-15);

        memcpy(given, gradients.exact[K], f.count[K] * sizeof(double));
        const double allowed = bound.bound + gradients.floor[K][7];
        given[7] += 0.9 * allowed;
        const clmgk_ref_error worst =
            clmgk_ref_check_array(&gradients, CLMGK_REF_GRAD_K, given, message, sizeof(message));
        assert_true(fabs(worst.error - 0.9 * allowed) < 1e-12 && message[0] == '\0');
        assert_true(fabs(worst.bound - allowed) < 1e-15);
        given[7] += 0.2 * allowed;
        clmgk_ref_check_array(&gradients, CLMGK_REF_GRAD_K, given, message, sizeof(message));
        assert_non_null(strstr(message, "dk, element 7"));
        given[7] = gradients.exact[K][7];
        given[9] = NAN;
        clmgk_ref_check_array(&gradients, CLMGK_REF_GRAD_K, given, message, sizeof(message));
        assert_non_null(strstr(message, "dk, element 9"));
    }
}

/* One query, two keys, D = E = 1: the floor by hand. */
TH_HOST_TEST(floor_is_the_size_of_terms)
{
    const double q = 2.0, k[] = {1.5, -0.5}, v[] = {4.0, -1.0}, sink = 0.25, grad_o = -3.0, grad_lse = 0.5;
    const clmgk_ref_problem p = {.desc = {SOFTMAX, .variance = 2.0, .batch = 1, .heads = 1, .kv_heads = 1,
                                          .components = 1, .length = 1, .length_k = 2, .head_size = 1, .value_size = 1,
                                          .use_sinks = 1},
                                 .q = &q,
                                 .k = k,
                                 .v = v,
                                 .sinks = &sink,
                                 .grad_o = &grad_o,
                                 .grad_lse = &grad_lse};
    const double lse = log(exp(q * k[0] / 2.0) + exp(q * k[1] / 2.0) + exp(sink));
    const double weight[] = {exp(q * k[0] / 2.0 - lse), exp(q * k[1] / 2.0 - lse)};
    const double delta = grad_o * (weight[0] * v[0] + weight[1] * v[1]), row = ldexp(1.0 + fabs(lse), -22);
    double expected = 0.0;
    for (int j = 0; j < 2; j++)
        expected += row * weight[j] * (fabs(grad_o * v[j]) + fabs(delta) + grad_lse) * fabs(k[j]) / 2.0;

    TH_REF_ARRAYS gradients = {0};
    assert_true(clmgk_ref_solve_gradients(&p, CLMGK_GRADIENT_ALL, &gradients));
    assert_true(fabs(gradients.floor[Q][0] / expected - 1.0) < 1e-12);
    assert_true(fabs(gradients.floor[V][1] / (row * weight[1] * 3.0) - 1.0) < 1e-12);
    const double of_sink = row * exp(sink - lse) * (fabs(delta) + grad_lse);
    assert_true(fabs(gradients.floor[SINKS][0] / of_sink - 1.0) < 1e-12);
}

/* Weights below 2^-126 may be 0: their terms count as a whole, in dV, dQ and, through delta, in the sink's gradient. */
TH_HOST_TEST(floor_has_vanishing_weights)
{
    const double q = 1.0, k[] = {-90.0, -90.5}, v[] = {4.0, -1.0}, sink = 0.0, grad_o = -3.0;
    const clmgk_ref_problem p = {.desc = {SOFTMAX, .variance = 1.0, .batch = 1, .heads = 1, .kv_heads = 1,
                                          .components = 1, .length = 1, .length_k = 2, .head_size = 1, .value_size = 1,
                                          .use_sinks = 1},
                                 .q = &q,
                                 .k = k,
                                 .v = v,
                                 .sinks = &sink,
                                 .grad_o = &grad_o};
    TH_REF_ARRAYS gradients = {0};
    assert_true(clmgk_ref_solve_gradients(&p, CLMGK_GRADIENT_ALL, &gradients));
    double of_query = 0.0, of_sink = 0.0;
    for (int j = 0; j < 2; j++) {
        const double weight = exp(k[j]);
        assert_true(gradients.floor[V][j] >= 0.999 * weight * 3.0 && gradients.floor[V][j] <= 1.001 * weight * 3.0);
        of_query += weight * fabs(grad_o * v[j] * k[j]);
        of_sink += weight * fabs(grad_o * v[j]);
    }
    assert_true(gradients.floor[Q][0] >= 0.999 * of_query && gradients.floor[Q][0] <= 1.001 * of_query);
    of_sink += fabs(grad_o * (exp(k[0]) * v[0] + exp(k[1]) * v[1])); /* O may be 0, too */
    assert_true(gradients.floor[SINKS][0] >= 0.999 * of_sink && gradients.floor[SINKS][0] <= 1.001 * of_sink);
}

/* A number that f16 cannot hold, known to within its floor: infinite only where it may be. */
TH_HOST_TEST(overflow_within_the_floor)
{
    static const struct {
        double exact, floor, given;
        bool right;
    } cases[] = {{79744.0, 1e5, (double)INFINITY, true},    {-67278.0, 1e5, -(double)INFINITY, true},
                 {79744.0, 100.0, (double)INFINITY, false}, {60000.0, 1e5, (double)INFINITY, true},
                 {60000.0, 100.0, (double)INFINITY, false}, {79744.0, 1e5, 65504.0, true}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        static const char *const names[CLMGK_REF_ARRAYS] = {"dq"};
        char message[128];
        double exact = cases[n].exact, floor = cases[n].floor;
        clmgk_ref_arrays arrays = {.names = names, .set = 1, .exact = {&exact}, .floor = {&floor}, .count = {1}};
        arrays.bound[0].most = 65504.0;
        clmgk_ref_check_array(&arrays, 0, &cases[n].given, message, sizeof(message));
        assert_int_equal(message[0] == '\0', cases[n].right);
    }
}

/* A gradient that overflows f32 becomes infinite, and does not enter the bound of others. */
TH_HOST_TEST(gradients_beyond_f32_are_infinite)
{
    static fixture f;
    TH_REF_ARRAYS gradients = {0};
    double given[MOST];
    char message[128];
    make(&forms[16], &f); /* "prior [M] with 0" */
    for (size_t n = 0; n < f.count[Q]; n++)
        f.array[Q][n] *= 30.0;
    for (size_t n = 0; n < f.count[K]; n++)
        f.array[K][n] *= 30.0;
    f.problem.desc.variance = 2.0;
    assert_true(clmgk_ref_solve_gradients(&f.problem, CLMGK_GRADIENT_PRIOR, &gradients));
    memcpy(given, gradients.exact[PRIOR], f.count[PRIOR] * sizeof(double));
    size_t beyond = 0;
    for (size_t n = 0; n < f.count[PRIOR]; n++) {
        if (fabs(given[n]) <= FLT_MAX)
            continue;
        beyond++;
        given[n] = copysign((double)INFINITY, given[n]);
    }
    assert_true(beyond > 0 && gradients.bound[PRIOR].max_abs <= FLT_MAX);
    clmgk_ref_check_array(&gradients, CLMGK_REF_GRAD_PRIOR, given, message, sizeof(message));
    assert_string_equal(message, "");
    for (size_t n = 0; n < f.count[PRIOR]; n++)
        given[n] = isinf(given[n]) ? 1.0 : given[n];
    clmgk_ref_check_array(&gradients, CLMGK_REF_GRAD_PRIOR, given, message, sizeof(message));
    assert_non_null(strstr(message, "dprior"));
}

/* NaN beyond the lengths has no effect, not even on the bound. */
TH_HOST_TEST(padding_reaches_no_gradient)
{
    enum { MGK_ROWS = M * S, KEYS_BEYOND = (S - 3) * D, FIRST_VALUE = 3 * E, END_VALUE = S * E };
    enum { FIRST_GRAD_O = (H * N + 2) * E, END_GRAD_O = (H * N + N) * E };
    static const test_form padded[] = {
        {.desc = {MGK, .use_lengths = 1, .use_lengths_q = 1}, .lengths = lengths},
        {.desc = {SMGK, .use_lengths = 1, .use_lengths_q = 1}, .lengths = lengths},
    };
    static fixture f;
    for (size_t form = 0; form < TH_COUNT(padded); form++) {
        const size_t rows = padded[form].desc.variant == CLMGK_VARIANT_MGK ? MGK_ROWS : S;
        TH_REF_ARRAYS clean, dirty;
        make(&padded[form], &f);
        assert_true(clmgk_ref_solve_gradients(&f.problem, CLMGK_GRADIENT_ALL, &clean));
        for (size_t row = 3; row < rows; row += S) /* from key 3 on of batch 0, head 0 */
            for (size_t n = 0; n < KEYS_BEYOND; n++)
                f.array[K][row * D + n] = NAN;
        for (size_t n = FIRST_VALUE; n < END_VALUE; n++)
            f.array[V][n] = NAN;
        for (size_t n = FIRST_GRAD_O; n < END_GRAD_O; n++) /* rows 2 and 3 of batch 1, head 0 */
            f.grad_o[n] = NAN;
        assert_true(clmgk_ref_solve_gradients(&f.problem, CLMGK_GRADIENT_ALL, &dirty));
        for (int which = 0; which < PARAMETERS; which++) {
            if (f.count[which] > 0)
                assert_memory_equal(dirty.exact[which], clean.exact[which], f.count[which] * sizeof(double));
            assert_true(dirty.bound[which].bound == clean.bound[which].bound);
        }
    }
}

/* ---- statistics ----------------------------------------------------------------------------------------------- */

/* gamma_ijr by its definition: the responsibilities of key j in row (b,h,i) into gamma[M]. */
static void responsibilities_of(const clmgk_ref_problem *p, int64_t b, int64_t h, int64_t i, int64_t j, double *gamma)
{
    const int64_t components = p->desc.components;
    double s[M];
    double largest = -(double)INFINITY;
    double total = 0.0;
    for (int64_t r = 0; r < components; r++) {
        s[r] = clmgk_ref_log_weight(p, b, h, i, j, r);
        largest = fmax(largest, s[r]);
    }
    for (int64_t r = 0; r < components; r++) {
        gamma[r] = p->desc.estep == CLMGK_ESTEP_SOFT ? exp(s[r] - largest) : (double)(s[r] == largest);
        total += gamma[r];
    }
    for (int64_t r = 0; r < components; r++)
        gamma[r] = clmgk_ref_visible(p, b, h, i, j) ? gamma[r] / total : 0.0;
}

/* Where component r of key j and head h counts. */
static size_t prior_index(const clmgk_attention_desc *d, int64_t h, int64_t j, int64_t r)
{
    if (d->prior_shape == CLMGK_PRIOR_HMS)
        return (size_t)((h * d->components + r) * S + j);
    return (size_t)(d->prior_shape == CLMGK_PRIOR_HM ? h * d->components + r : r);
}

static void check_responsibilities(const fixture *f, const clmgk_ref_arrays *statistics)
{
    const clmgk_attention_desc *const d = &f->problem.desc;
    double counts[H * M * S] = {0};
    for (int64_t n = 0; n < d->batch * H * PAIRS; n++) {
        const int64_t j = n % S, i = n / S % N, head = n / PAIRS;
        double gamma[M];
        responsibilities_of(&f->problem, head / H, head % H, i, j, gamma);
        for (int64_t r = 0; r < d->components; r++) {
            const int64_t at = ((head * d->components + r) * N + i) * S + j;
            assert_true(fabs(statistics->exact[CLMGK_REF_STAT_RESPONSIBILITIES][at] - gamma[r]) < 1e-12);
            counts[prior_index(d, head % H, j, r)] += gamma[r];
        }
    }
    for (int64_t n = 0; n < statistics->count[CLMGK_REF_STAT_COUNTS]; n++)
        assert_true(fabs(statistics->exact[CLMGK_REF_STAT_COUNTS][n] - counts[n]) < 1e-12);
}

/* New priors sum to one over the components, in proportion to the counts. Keys without counts keep their prior. */
static void check_new_prior(const fixture *f, const clmgk_ref_arrays *statistics)
{
    const clmgk_attention_desc *const d = &f->problem.desc;
    const double *const counts = statistics->exact[CLMGK_REF_STAT_COUNTS];
    const double *const prior = statistics->exact[CLMGK_REF_STAT_NEW_PRIOR];
    for (int64_t n = 0; n < HEAD_KEYS; n++) {
        double sum = 0.0;
        double total = 0.0;
        for (int64_t r = 0; r < d->components; r++) {
            sum += prior[prior_index(d, n / S, n % S, r)];
            total += counts[prior_index(d, n / S, n % S, r)];
        }
        if (total > 0.0)
            assert_true(fabs(sum - 1.0) < 1e-12);
        for (int64_t r = 0; r < d->components; r++) {
            const size_t at = prior_index(d, n / S, n % S, r);
            const double given = d->prior_shape ? f->array[PRIOR][at] : 1.0 / (double)d->components;
            assert_true(fabs(prior[at] - (total > 0.0 ? counts[at] / total : given)) < 1e-12);
        }
    }
}

/* -(1/N) sum_i log( 1/S sum_jr pi_r(j) N(q_i; k_jr, sigma_r^2 I) ), over what sees each other */
static double likelihood(const clmgk_ref_problem *p, int64_t b, int64_t h, int64_t first_row, int64_t end_row)
{
    static const double tau = 6.283185307179586;
    double sum = 0.0;
    double rows = 0.0;
    for (int64_t i = first_row; i < end_row; i++) {
        double density = 0.0;
        double keys = 0.0;
        for (int64_t j = 0; j < S; j++) {
            if (!clmgk_ref_visible(p, b, h, i, j))
                continue;
            keys += 1.0;
            clmgk_ref_problem bare = *p; /* neither bias nor ALiBi, and the prior whatever the E-step */
            bare.desc.use_bias = 0;
            bare.desc.use_alibi = 0;
            bare.desc.estep = CLMGK_ESTEP_SOFT;
            for (int64_t r = 0; r < p->desc.components; r++) {
                const double *const per_head = p->variance + h * p->desc.components;
                const double variance[] = {p->desc.variance, p->variance[r], per_head[r]};
                density += exp(clmgk_ref_log_weight(&bare, b, h, i, j, r)) *
                           pow(tau * variance[p->desc.variance_shape], -0.5 * D);
            }
        }
        sum -= keys > 0.0 ? log(density / keys) : 0.0;
        rows += keys > 0.0;
    }
    return rows > 0.0 ? sum / rows : 0.0;
}

static void check_likelihood(const fixture *f, const clmgk_ref_arrays *statistics)
{
    const clmgk_attention_desc *const d = &f->problem.desc;
    for (int64_t n = 0; n < statistics->count[CLMGK_REF_STAT_NLL]; n++) {
        const int64_t t = n / H;
        const bool packed = d->sequences > 0;
        const double expected =
            likelihood(&f->problem, packed ? 0 : t, n % H, packed ? offsets[t] : 0, packed ? offsets[t + 1] : N);
        assert_true(fabs(statistics->exact[CLMGK_REF_STAT_NLL][n] - expected) < 1e-12);
    }
    assert_int_equal(statistics->count[CLMGK_REF_STAT_NLL], H * (d->sequences > 0 ? d->sequences : d->batch));
}

TH_HOST_TEST(statistics_are_as_defined)
{
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        const bool gaussian = forms[n].desc.score == CLMGK_SCORE_GAUSSIAN;
        TH_REF_ARRAYS statistics = {0};
        make(&forms[n], &f);
        assert_true(clmgk_ref_solve_statistics(
            &f.problem, gaussian ? CLMGK_STATISTIC_ALL : CLMGK_STATISTIC_ALL & ~CLMGK_STATISTIC_NLL, &statistics));
        check_responsibilities(&f, &statistics);
        check_new_prior(&f, &statistics);
        if (gaussian)
            check_likelihood(&f, &statistics);
        for (int which = 0; which < CLMGK_REF_STATISTICS; which++) {
            const clmgk_ref_bound bound = statistics.bound[which];
            assert_true(bound.plain_error <= 1e-6 * bound.max_abs);
            assert_true(fabs(bound.bound - 3.0 * bound.plain_error - 3e-6 * bound.max_abs) < 1e-15);
        }
    }
}

TH_HOST_TEST(weights_are_those_of_outputs)
{
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        make(&forms[n], &f);
        th_expect_weights(forms[n].name, &f.problem);
    }
}

/* What the M-step maximises is the sum of w_ij over the pairs that see each other: it never falls. */
static double log_weights(const clmgk_ref_problem *p)
{
    double sum = 0.0;
    for (int64_t n = 0; n < ALL_PAIRS; n++) {
        const int64_t j = n % S, i = n / S % N, head = n / PAIRS;
        double w = 0.0;
        for (int64_t r = 0; r < M; r++)
            w += exp(clmgk_ref_log_weight(p, head / H, head % H, i, j, r));
        sum += clmgk_ref_visible(p, head / H, head % H, i, j) ? log(w) : 0.0;
    }
    return sum;
}

TH_HOST_TEST(maximisation_never_lowers_the_likelihood)
{
    static const test_form learned[] = {
        {.desc = {MGK, .prior_shape = CLMGK_PRIOR_M}},
        {.desc = {SMGK, .prior_shape = CLMGK_PRIOR_HM, .variance_shape = CLMGK_VARIANCE_M}},
        {.desc = {MGK_DOT, .prior_shape = CLMGK_PRIOR_HMS, .causal = 1}},
    };
    static fixture f;
    for (size_t n = 0; n < TH_COUNT(learned); n++) {
        make(&learned[n], &f);
        double before = -(double)INFINITY;
        for (int step = 0; step < 20; step++) {
            TH_REF_ARRAYS statistics = {0};
            assert_true(clmgk_ref_solve_statistics(&f.problem, CLMGK_STATISTIC_NEW_PRIOR, &statistics));
            memcpy(f.array[PRIOR], statistics.exact[CLMGK_REF_STAT_NEW_PRIOR], f.count[PRIOR] * sizeof(double));
            const double now = log_weights(&f.problem);
            assert_true(now >= before - 1e-12);
            before = now;
        }
    }
}

TH_HOST_TEST(statistics_check_names_what_is_wrong)
{
    static fixture f;
    TH_REF_ARRAYS statistics = {0};
    char message[128];
    double given[MOST];
    make(&forms[13], &f);
    assert_true(clmgk_ref_solve_statistics(&f.problem, CLMGK_STATISTIC_NEW_PRIOR, &statistics));
    assert_null(statistics.exact[CLMGK_REF_STAT_COUNTS]);
    memcpy(given, statistics.exact[CLMGK_REF_STAT_NEW_PRIOR], f.count[PRIOR] * sizeof(double));
    assert_true(clmgk_ref_check_array(&statistics, CLMGK_REF_STAT_NEW_PRIOR, given, message, sizeof(message)).error ==
                0.0);
    assert_true(message[0] == '\0');
    given[2] += 1e-4;
    const double error =
        clmgk_ref_check_array(&statistics, CLMGK_REF_STAT_NEW_PRIOR, given, message, sizeof(message)).error;
    assert_true(fabs(error - 1e-4) < 1e-12);
    assert_non_null(strstr(message, "new prior, element 2"));
}
