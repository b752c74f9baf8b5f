/* SPDX-License-Identifier: Apache-2.0 */
/* The reference where logits are huge: masks of large finite biases, and scores beyond what f32 resolves. */
#include "harness/harness.h"
#include "reference/families.h"
#include "reference/reference.h"

#include <float.h>
#include <math.h>

enum { ROWS = 5, KEYS = 7 };

/* Biases that mask, and the largest ones. */
static const double biases[] = {-1e9, -1e30, -(double)FLT_MAX, 3e38};

/* Every family's ways to make logits. */
static const struct {
    clmgk_variant variant;
    clmgk_score score;
    clmgk_estep estep;
} kinds[] = {
    {CLMGK_VARIANT_SOFTMAX, CLMGK_SCORE_DEFAULT, CLMGK_ESTEP_SOFT},
    {CLMGK_VARIANT_GAUSSIAN, CLMGK_SCORE_DEFAULT, CLMGK_ESTEP_SOFT},
    {CLMGK_VARIANT_MGK, CLMGK_SCORE_GAUSSIAN, CLMGK_ESTEP_SOFT},
    {CLMGK_VARIANT_MGK, CLMGK_SCORE_DOT, CLMGK_ESTEP_HARD},
    {CLMGK_VARIANT_SMGK, CLMGK_SCORE_GAUSSIAN, CLMGK_ESTEP_HARD},
    {CLMGK_VARIANT_SMGK, CLMGK_SCORE_DOT, CLMGK_ESTEP_SOFT},
    {CLMGK_VARIANT_FISH, CLMGK_SCORE_DEFAULT, CLMGK_ESTEP_SOFT},
    {CLMGK_VARIANT_HARD_FISH, CLMGK_SCORE_DEFAULT, CLMGK_ESTEP_SOFT},
    {CLMGK_VARIANT_HARD_MISH, CLMGK_SCORE_DEFAULT, CLMGK_ESTEP_SOFT},
    {CLMGK_VARIANT_GFISH, CLMGK_SCORE_DEFAULT, CLMGK_ESTEP_SOFT},
    {CLMGK_VARIANT_TALKING_HEADS, CLMGK_SCORE_DEFAULT, CLMGK_ESTEP_SOFT},
};

/* A small problem of kind number `n` with a bias, and all its gradients. */
static clmgk_attention_desc desc_of(size_t n)
{
    clmgk_attention_desc desc = th_small_desc(kinds[n].variant, ROWS, KEYS);
    desc.score = kinds[n].score;
    desc.estep = kinds[n].estep;
    desc.use_bias = 1;
    desc.gradients = th_all_gradients(&desc);
    return desc;
}

/* Modifiers and statistics of the kind. */
static void add_modifiers(clmgk_attention_desc *desc)
{
    const uint32_t traits = clmgk_variant_traits(desc->variant);
    desc->use_alibi = desc->use_sinks = 1;
    desc->dropout = 0.3;
    desc->softcap = desc->variant == CLMGK_VARIANT_SOFTMAX || (traits & CLMGK_TRAIT_ADMIXTURE) != 0 ? 2.0 : 0.0;
    desc->gradients = th_all_gradients(desc);
    if ((traits & CLMGK_TRAIT_PRIOR) == 0)
        return;
    desc->prior_shape = CLMGK_PRIOR_HM;
    desc->statistics = CLMGK_STATISTIC_RESPONSIBILITIES | CLMGK_STATISTIC_COUNTS | CLMGK_STATISTIC_NEW_PRIOR;
    if (desc->score == CLMGK_SCORE_GAUSSIAN)
        desc->statistics |= CLMGK_STATISTIC_NLL;
}

/* Two answers to a problem, before and after a change. */
typedef struct answers {
    clmgk_ref_answer rows;
    clmgk_ref_arrays gradients, statistics;
} answers;

static answers solve(const th_problem *problem)
{
    return (answers){th_solve(problem), th_solve_gradients(problem), th_solve_statistics(problem)};
}

static void answers_free(answers *of)
{
    clmgk_ref_answer_free(&of->rows);
    clmgk_ref_arrays_free(&of->gradients);
    clmgk_ref_arrays_free(&of->statistics);
}

static void expect_equal(size_t kind, const char *what, const double *values, const double *expected, int64_t count)
{
    double largest = 1.0;
    for (int64_t n = 0; n < count; n++)
        largest = fmax(largest, fabs(expected[n]));
    for (int64_t n = 0; n < count; n++)
        if (!(fabs(values[n] - expected[n]) <= 1e-12 * largest)) /* NaN fails */
            fail_msg("kind %zu, %s, element %lld: %.17g, expected %.17g", kind, what, (long long)n, values[n],
                     expected[n]);
}

static void expect_equal_arrays(size_t kind, const clmgk_ref_arrays *values, const clmgk_ref_arrays *expected)
{
    assert_int_equal(values->set, expected->set);
    for (int which = 0; which < CLMGK_REF_ARRAYS; which++)
        if ((values->set >> (unsigned)which & 1U) != 0)
            expect_equal(kind, values->names[which], values->exact[which], expected->exact[which],
                         values->count[which]);
}

/* ---- the exact formula ------------------------------------------------------------------------------------------ */

/* Attention does not depend on what is added to all logits of a row, the sink's included: only L does. */
TH_HOST_TEST(an_equal_bias_changes_l_alone)
{
    for (size_t n = 0; n < TH_COUNT(kinds) * TH_COUNT(biases); n++) {
        const size_t kind = n / TH_COUNT(biases);
        const double bias = biases[n % TH_COUNT(biases)];
        clmgk_attention_desc desc = desc_of(kind);
        add_modifiers(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_fill(&problem, TH_BIAS, 0.0);
        th_fill(&problem, TH_SINKS, 0.0);
        answers without = solve(&problem);
        th_fill(&problem, TH_BIAS, bias);
        th_fill(&problem, TH_SINKS, bias);
        answers with = solve(&problem);
        expect_equal(kind, "O", with.rows.o, without.rows.o, with.rows.rows * with.rows.value_size);
        expect_equal_arrays(kind, &with.gradients, &without.gradients);
        expect_equal_arrays(kind, &with.statistics, &without.statistics);
        for (int64_t row = 0; row < with.rows.rows; row++)
            assert_true(with.rows.lse[row] == bias + without.rows.lse[row]);
        answers_free(&without);
        answers_free(&with);
    }
}

/* Keys whose bias is less by much more than their scores differ are as good as hidden, however large both biases are.
 */
TH_HOST_TEST(the_larger_bias_wins)
{
    static const double pairs[][2] = {
        {0.0, -1e9}, {0.0, -(double)FLT_MAX}, {-1e9, -1.001e9}, {-2.5e38, -(double)FLT_MAX}, {3e38, 0.0}, {3e38, 2e38}};
    for (size_t n = 0; n < TH_COUNT(kinds) * TH_COUNT(pairs); n++) {
        const size_t kind = n / TH_COUNT(pairs), pair = n % TH_COUNT(pairs);
        const clmgk_attention_desc desc = desc_of(kind);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        const th_array *const bias = &problem.array[TH_BIAS];
        for (size_t at = 0; at < bias->count; at++)
            bias->values[at] = at % 3 == 0 ? pairs[pair][0] : -(double)INFINITY;
        answers hidden = solve(&problem);
        for (size_t at = 0; at < bias->count; at++)
            bias->values[at] = pairs[pair][at % 3 == 0 ? 0 : 1];
        answers masked = solve(&problem);
        expect_equal(kind, "O", masked.rows.o, hidden.rows.o, masked.rows.rows * masked.rows.value_size);
        expect_equal(kind, "L", masked.rows.lse, hidden.rows.lse, masked.rows.rows);
        expect_equal_arrays(kind, &masked.gradients, &hidden.gradients);
        answers_free(&hidden);
        answers_free(&masked);
    }
}

/* Two keys have the same largest score: each gets half of every row, and O's gradient in halves. */
TH_HOST_TEST(tied_huge_scores_share_a_row)
{
    static const double sizes[] = {1e2, 1e4, 1e9}; /* scores of 1e6 to 1e19 */
    for (size_t n = 0; n < TH_COUNT(kinds) * TH_COUNT(sizes); n++) {
        const size_t kind = n / TH_COUNT(sizes);
        const double size = sizes[n % TH_COUNT(sizes)];
        const clmgk_attention_desc desc = desc_of(kind);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_fill(&problem, TH_Q, size);
        th_fill(&problem, TH_K, -size);
        for (size_t at = 0; at < problem.array[TH_K].count; at++) {
            const size_t key = at / (size_t)problem.desc.head_size % KEYS;
            problem.array[TH_K].values[at] = key == 2 || key == 5 ? size : -size;
        }
        th_fill(&problem, TH_BIAS, 0.0);
        th_scale(&problem, TH_NOISE, 0.0);
        if (problem.array[TH_MIX].used)
            th_fill(&problem, TH_MIX, 1.0);
        answers answer = solve(&problem);
        const int64_t width = answer.rows.value_size;
        for (int64_t at = 0; at < answer.rows.rows * width; at++) {
            const double *const v = problem.array[TH_V].values + at / (ROWS * width) * KEYS * width + at % width;
            assert_true(fabs(answer.rows.o[at] - 0.5 * (v[2 * width] + v[5 * width])) <= 1e-12);
        }
        for (int64_t at = 0; at < answer.gradients.count[CLMGK_REF_GRAD_V]; at++) {
            const int64_t key = at / width % KEYS;
            const double *const grad_o =
                problem.array[TH_GRAD_O].values + at / (KEYS * width) * ROWS * width + at % width;
            double sum = 0.0;
            for (int64_t i = 0; i < ROWS; i++)
                sum += key == 2 || key == 5 ? 0.5 * grad_o[i * width] : 0.0;
            assert_true(fabs(answer.gradients.exact[CLMGK_REF_GRAD_V][at] - sum) <= 1e-12);
        }
        answers_free(&answer);
    }
}

/* ---- the plain formula ------------------------------------------------------------------------------------------ */

/* Whatever rounding makes of the logits, a row's weights are finite, and their sum is 1. */
TH_HOST_TEST(plain_rows_are_normalised)
{
    static const double signs[] = {-1.0, 1.0};
    for (size_t n = 0; n < TH_COUNT(kinds) * (TH_COUNT(biases) + TH_COUNT(signs)); n++) {
        const size_t kind = n / (TH_COUNT(biases) + TH_COUNT(signs)), at = n % (TH_COUNT(biases) + TH_COUNT(signs));
        clmgk_attention_desc desc = desc_of(kind);
        desc.use_alibi = at >= TH_COUNT(biases);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_fill(&problem, TH_BIAS, at < TH_COUNT(biases) ? biases[at] : signs[at - TH_COUNT(biases)] * FLT_MAX);
        if (desc.use_alibi) /* the sum of bias and ALiBi is beyond f32 */
            th_fill(&problem, TH_SLOPES, signs[at - TH_COUNT(biases)] * -1e38);
        th_reference reference = th_reference_of(&problem);
        ref_plain plain;
        ref_way way;
        assert_true(ref_plain_create(&reference.problem, ref_family_of(desc.variant)->plain, &plain));
        for (int64_t row = 0; row < problem.desc.heads * ROWS; row++) {
            for (int number = 0; ref_way_of(&problem.desc, number, &way); number++) {
                ref_plain_solve(&plain, ref_row_of(&problem.desc, row), way);
                double sum = 0.0;
                for (int64_t j = 0; j < KEYS; j++)
                    sum += plain.a[j];
                assert_true(fabs(sum - 1.0) <= 1e-6);
                assert_true(isfinite(plain.lse));
                for (int64_t e = 0; e < problem.desc.value_size; e++)
                    assert_true(isfinite(plain.o[e]));
            }
        }
        ref_plain_free(&plain);
        th_reference_free(&reference);
    }
}
