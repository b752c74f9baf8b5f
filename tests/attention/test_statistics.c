/* SPDX-License-Identifier: Apache-2.0 */
/* Responsibilities, counts, new priors and likelihood against the reference; then expectation and maximisation. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All statistics that a problem of this kind has. */
static uint32_t all_statistics(const clmgk_attention_desc *desc)
{
    const bool dot = desc->variant == CLMGK_VARIANT_SOFTMAX ||
                     (desc->variant >= CLMGK_VARIANT_MGK && desc->score == CLMGK_SCORE_DOT);
    return dot ? CLMGK_STATISTIC_ALL & ~(uint32_t)CLMGK_STATISTIC_NLL : CLMGK_STATISTIC_ALL;
}

/* ---- against the reference ------------------------------------------------------------------------------------- */

/* gamma sums to one over the components where a key is seen, and is 0 where not. */
static void check_sums(const th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const th_array *const gamma = &problem->array[TH_RESPONSIBILITIES];
    th_reference reference = th_reference_of(problem);
    const int64_t plane = d->length * d->length_k;
    for (int64_t flat = 0; flat < d->batch * d->heads * plane; flat++) {
        const int64_t bh = flat / plane, i = flat % plane / d->length_k, j = flat % d->length_k;
        double sum = 0.0;
        for (int64_t r = 0; r < d->components; r++)
            sum += gamma->values[(bh * d->components + r) * plane + flat % plane];
        if (clmgk_ref_visible(&reference.problem, bh / d->heads, bh % d->heads, i, j))
            assert_true(fabs(sum - 1.0) <= 1e-6);
        else
            assert_true(sum == 0.0);
    }
    th_reference_free(&reference);
}

static void expect_program(th_session *session, clmgk_attention_desc desc, size_t first, size_t shapes, bool all)
{
    uint64_t random = 100 * (uint64_t)desc.variant + first;
    desc.statistics = all_statistics(&desc);
    for (size_t n = first; n < first + (session->full ? 3 * shapes : shapes); n++) {
        th_set_shape(&desc, n, &random);
        TH_PROBLEM problem = th_problem_make(&desc, th_random(&random));
        th_expect_statistics(session, &problem, all);
        check_sums(&problem);
    }
}

/* Every shape of prior and variance that is an array, each a program; in full every combination. */
TH_TEST(priors_and_variances)
{
    for (size_t n = 0; n < 12; n++) {
        const size_t variant = n / 6, prior = n % 3, variance = n / 3 % 2;
        if (!session->full && variance != (prior + variant) % 2)
            continue;
        clmgk_attention_desc desc = th_small_desc(th_variants[2 + variant], 0, 0);
        desc.prior_shape = (clmgk_prior_shape)(1 + prior);
        desc.variance_shape = (clmgk_variance_shape)(1 + variance);
        expect_program(session, desc, n % 6, 3, n == 0);
    }
}

TH_TEST(without_arrays)
{
    const size_t forms[] = {0, 3, 6, 9}; /* of every_form: a few */
    for (size_t n = 0; n < (session->full ? 16 : TH_COUNT(forms)); n++) {
        const size_t form = session->full ? n : forms[n];
        clmgk_attention_desc desc = th_small_desc(th_variants[form % 4], 0, 0);
        if (form % 4 >= 2)
            desc.score = th_scores[form / 4 % 2];
        desc.estep = th_esteps[form / 8];
        expect_program(session, desc, 4, 5, false);
    }
}

/* The prior affects only the shape of the statistics. */
TH_TEST(hard_estep)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 0, 0);
    desc.estep = CLMGK_ESTEP_HARD;
    desc.components = 3;
    for (size_t n = 0; n < 4; n++) {
        desc.prior_shape = (clmgk_prior_shape)n;
        if (th_takes(session, n, 3))
            expect_program(session, desc, n, 3, false);
    }
}

/* Component 1 has the keys of component 0, and all its responsibility goes to the first. */
TH_TEST(ties_of_the_hard_estep)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 45, 120);
    desc.statistics = all_statistics(&desc);
    TH_PROBLEM problem = th_tied_problem(desc);
    th_expect_statistics(session, &problem, false);
}

/* A bias counts only where it hides; ALiBi and sinks change no gamma. */
TH_TEST(packed_with_modifiers)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 0, 0);
    desc.sequences = 4;
    desc.use_bias = desc.use_sinks = desc.use_alibi = 1;
    desc.prior_shape = CLMGK_PRIOR_HMS;
    expect_program(session, desc, 2, 8, false);
}

TH_TEST(storage_types)
{
    for (size_t n = 1; n < (session->full ? TH_COUNT(th_dtypes) : 2); n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 0, 0);
        desc.dtype = th_dtypes[n];
        desc.prior_shape = CLMGK_PRIOR_HM;
        expect_program(session, desc, 4, 5, false);
    }
}

/* Each statistic alone: nothing of the others is there. */
TH_TEST(one_statistic_alone)
{
    for (uint32_t one = 1; one <= CLMGK_STATISTIC_NLL; one *= 2) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 50, 70);
        desc.prior_shape = CLMGK_PRIOR_HMS;
        desc.variance_shape = CLMGK_VARIANCE_M;
        desc.causal = 1;
        desc.statistics = one;
        TH_PROBLEM problem = th_problem_make(&desc, one);
        th_expect_statistics(session, &problem, false);
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc edge_desc(void)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 40, 90);
    desc.prior_shape = CLMGK_PRIOR_HMS;
    desc.variance_shape = CLMGK_VARIANCE_HM;
    desc.statistics = CLMGK_STATISTIC_ALL;
    return desc;
}

/* Keys that no query sees, or of which no component has weight, keep their prior. */
TH_TEST(unseen_keys_keep_their_prior)
{
    clmgk_attention_desc desc = edge_desc();
    desc.causal = 1;
    desc.alignment = CLMGK_ALIGN_TOP_LEFT; /* keys 40 and up are not seen */
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    for (int64_t h = 0; h < 2; h++)
        for (int64_t j = 0; j < 90; j++)
            for (int64_t r = 0; r < 2; r++)
                if (j % 5 == 0 || j % 3 == r)
                    th_set(&problem, TH_PRIOR, 0, h, r, j, 0, 0.0);
    th_expect_statistics(session, &problem, false);
    const th_array *const given = &problem.array[TH_PRIOR], *const new_prior = &problem.array[TH_NEW_PRIOR];
    for (size_t n = 0; n < given->count; n++)
        if (n % 90 >= 40 || n % 90 % 5 == 0)
            assert_true(given->values[n] == new_prior->values[n]);
}

/* Queries far from all keys: every density underflows without a maximum. */
TH_TEST(distant_queries)
{
    const clmgk_attention_desc desc = edge_desc();
    TH_PROBLEM problem = th_problem_make(&desc, 2);
    for (int64_t i = 0; i < desc.length; i++)
        th_set(&problem, TH_Q, 0, i % 2, 0, i, 3, 40.0 * (double)i);
    th_expect_statistics(session, &problem, false);
}

/* NaN beyond the lengths has no effect. */
TH_TEST(padding_does_not_leak)
{
    clmgk_attention_desc desc = edge_desc();
    desc.use_lengths = desc.use_lengths_q = 1;
    TH_PROBLEM problem = th_problem_make(&desc, 3);
    th_set(&problem, TH_LENGTHS, 0, 0, 0, 0, 0, 33.0);
    th_set(&problem, TH_LENGTHS_Q, 0, 0, 0, 0, 0, 17.0);
    static const struct {
        th_name name;
        int64_t first;
    } padded[] = {{TH_K, 33}, {TH_Q, 17}};
    for (size_t n = 0; n < TH_COUNT(padded); n++) {
        const th_array *const array = &problem.array[padded[n].name];
        for (size_t flat = 0; flat < array->count; flat++)
            if ((int64_t)flat / array->shape[4] % array->shape[3] >= padded[n].first)
                array->values[flat] = (double)NAN;
    }
    th_expect_statistics(session, &problem, false);
}

/* ---- expectation and maximisation ------------------------------------------------------------------------------ */

enum { HEADS = 2, COMPONENTS = 3, MIXTURES = 3, QUERIES = 1500, SIZE = 3, STEPS = 60 };

/* The weight of component r with which queries of head h are drawn around key j. */
static double true_prior(clmgk_prior_shape shape, int64_t h, int64_t r, int64_t j)
{
    const double first =
        0.2 + (shape >= CLMGK_PRIOR_HM ? 0.2 * (double)h : 0.0) + (shape == CLMGK_PRIOR_HMS ? 0.1 * (double)j : 0.0);
    return r == 0 ? first : (1.0 - first) * (r == 1 ? 0.25 : 0.75);
}

static int64_t draw_component(clmgk_prior_shape shape, int64_t h, int64_t j, uint64_t *random)
{
    double rest = th_uniform(random);
    int64_t r = 0;
    while (r + 1 < COMPONENTS && rest >= true_prior(shape, h, r, j))
        rest -= true_prior(shape, h, r++, j);
    return r;
}

/*
 * Packed sequences of one key each, and queries drawn from that key's mixture: normals around components 3 sigma
 * apart. Then the likelihood of the queries is that of MIXTURES separate mixtures, which the steps must not lower.
 */
static th_problem drawn_problem(clmgk_prior_shape shape)
{
    clmgk_attention_desc desc = th_sized_desc(
        CLMGK_VARIANT_MGK, (th_sizes){0, HEADS, 0, COMPONENTS, (int64_t)MIXTURES * QUERIES, MIXTURES, SIZE, 0});
    desc.prior_shape = shape;
    desc.variance = 1.0;
    desc.sequences = MIXTURES;
    desc.use_offsets_k = 1;
    desc.statistics = CLMGK_STATISTIC_NEW_PRIOR | CLMGK_STATISTIC_NLL;
    th_problem problem = th_problem_make(&desc, 1);
    uint64_t random = 11;
    for (int64_t t = 0; t <= MIXTURES; t++) {
        th_set(&problem, TH_OFFSETS, t, 0, 0, 0, 0, (double)(t * QUERIES));
        th_set(&problem, TH_OFFSETS_K, t, 0, 0, 0, 0, (double)t);
    }
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t i = 0; i < desc.length; i++) {
            const int64_t j = i / QUERIES, r = draw_component(shape, h, j, &random);
            for (int64_t d = 0; d < SIZE; d++) {
                const double *const key = problem.array[TH_K].values + ((h * COMPONENTS + r) * MIXTURES + j) * SIZE + d;
                th_set(&problem, TH_Q, 0, h, 0, i, d, (d == r ? 3.0 : 0.0) + *key + th_normal(&random));
            }
        }
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t r = 0; r < COMPONENTS; r++)
            for (int64_t j = 0; j < MIXTURES; j++)
                problem.array[TH_K].values[((h * COMPONENTS + r) * MIXTURES + j) * SIZE + r] += 3.0;
    th_fill(&problem, TH_PRIOR, 1.0 / COMPONENTS);
    return problem;
}

/* As all sequences are equally long, this is the mean over all queries, up to a factor. */
static double sum_of(const th_array *array)
{
    double sum = 0.0;
    for (size_t n = 0; n < array->count; n++)
        sum += array->values[n];
    return sum;
}

TH_TEST(steps_recover_the_prior)
{
    const clmgk_plan_options options = th_options(session, 0);
    for (clmgk_prior_shape shape = CLMGK_PRIOR_M; shape <= CLMGK_PRIOR_HMS; shape++) {
        TH_PROBLEM problem = drawn_problem(shape);
        th_array *const prior = &problem.array[TH_PRIOR];
        double first = 0.0, before = (double)INFINITY;
        for (int step = 0; step < STEPS; step++) {
            th_run_pass(session, &problem, TH_STATISTICS, &options);
            const double nll = sum_of(&problem.array[TH_NLL]);
            assert_true(nll <= before + 1e-6 * fabs(nll)); /* f32 */
            before = nll;
            first = step == 0 ? nll : first;
            memcpy(prior->values, problem.array[TH_NEW_PRIOR].values, prior->count * sizeof(double));
        }
        assert_true(before < first - 0.01 * fabs(first));
        for (int64_t n = 0; n < (int64_t)prior->count; n++) {
            const int64_t keys = prior->shape[3];
            const double exact = true_prior(shape, n / keys / COMPONENTS, n / keys % COMPONENTS, n % keys);
            assert_true(fabs(prior->values[n] - exact) < 0.06); /* 4 standard deviations of QUERIES draws */
        }
    }
}

/* sum log sum_r pi_r(j) exp(-|q_i - k_jr|^2 / 2 sigma^2) over the pairs that see each other, 2 sigma^2 = `spread`: what
 * the M-step maximises for given responsibilities. */
static double pairs_log_likelihood(const th_problem *problem, double spread)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const th_array *const q = &problem->array[TH_Q], *const k = &problem->array[TH_K];
    const double *const prior = problem->array[TH_PRIOR].values;
    double sum = 0.0;
    for (int64_t h = 0; h < d->heads; h++)
        for (int64_t i = 0; i < d->length; i++)
            for (int64_t j = 0; j <= i; j++) {
                double mixture = 0.0;
                for (int64_t r = 0; r < d->components; r++) {
                    const double *const key = k->values + ((h * d->components + r) * d->length_k + j) * d->head_size;
                    const double *const query = q->values + (h * d->length + i) * d->head_size;
                    double distance = 0.0;
                    for (int64_t c = 0; c < d->head_size; c++)
                        distance += (query[c] - key[c]) * (query[c] - key[c]);
                    mixture += prior[(h * d->components + r) * d->length_k + j] * exp(-distance / spread);
                }
                sum += log(mixture);
            }
    return sum;
}

/* Many keys, causal: every pair is a draw from its key's mixture. */
TH_TEST(steps_never_lower_the_likelihood)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 60, 60);
    desc.heads = desc.kv_heads = HEADS;
    desc.components = COMPONENTS;
    desc.head_size = SIZE;
    desc.prior_shape = CLMGK_PRIOR_HMS;
    desc.variance = 2.0;
    desc.causal = 1;
    desc.statistics = CLMGK_STATISTIC_NEW_PRIOR;
    TH_PROBLEM problem = th_problem_make(&desc, 5);
    th_array *const prior = &problem.array[TH_PRIOR];
    th_fill(&problem, TH_PRIOR, 1.0 / COMPONENTS);
    const clmgk_plan_options options = th_options(session, 0);
    double first = 0.0, before = -(double)INFINITY;
    for (int step = 0; step < 20; step++) {
        const double now = pairs_log_likelihood(&problem, 4.0);
        assert_true(now >= before - 1e-7 * fabs(now)); /* f32 */
        before = now;
        first = step == 0 ? now : first;
        th_run_pass(session, &problem, TH_STATISTICS, &options);
        memcpy(prior->values, problem.array[TH_NEW_PRIOR].values, prior->count * sizeof(double));
    }
    assert_true(before > first + 0.01 * fabs(first));
}
