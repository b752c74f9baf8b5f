/* SPDX-License-Identifier: Apache-2.0 */
/* The reference with huge logits: large finite biases as masks, and scores beyond f32's resolution. */
#include "harness/harness.h"
#include "reference/families.h"
#include "reference/gradients.h"
#include "reference/reference.h"

#include <float.h>
#include <math.h>
#include <string.h>

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

static bool has_softcap(const clmgk_attention_desc *desc)
{
    return desc->variant == CLMGK_VARIANT_SOFTMAX || (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
}

static bool has_prior(const clmgk_attention_desc *desc)
{
    return (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_PRIOR) != 0;
}

/* Modifiers and statistics of the kind. */
static void add_modifiers(clmgk_attention_desc *desc)
{
    desc->use_alibi = desc->use_sinks = 1;
    desc->dropout = 0.3;
    desc->softcap = has_softcap(desc) ? 2.0 : 0.0;
    desc->gradients = th_all_gradients(desc);
    if (!has_prior(desc))
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

/* ---- what the check takes --------------------------------------------------------------------------------------- */

/* Whether the check takes the exact answer with another row of O: row[E], or the exact one if NULL, times `factor`. */
static bool takes_o(const clmgk_ref_answer *answer, int64_t row, const double *other, double factor)
{
    double o[1024];
    const int64_t width = answer->value_size, count = answer->rows * width;
    assert_true((size_t)count <= TH_COUNT(o));
    for (int64_t n = 0; n < count; n++)
        o[n] = n / width != row ? answer->o[n] : (other ? other[n % width] : answer->o[n]) * factor;
    return clmgk_ref_check(answer, o, NULL).ok;
}

/* The same with all elements of the row `value`; with another L. */
static bool takes_value(const clmgk_ref_answer *answer, int64_t row, double value)
{
    double values[64];
    assert_true((size_t)answer->value_size <= TH_COUNT(values));
    for (int64_t e = 0; e < answer->value_size; e++)
        values[e] = value;
    return takes_o(answer, row, values, 1.0);
}

static bool takes_lse(const clmgk_ref_answer *answer, int64_t row, double value)
{
    double lse[64];
    assert_true((size_t)answer->rows <= TH_COUNT(lse));
    for (int64_t n = 0; n < answer->rows; n++)
        lse[n] = n == row ? value : answer->lse[n];
    return clmgk_ref_check(answer, answer->o, lse).ok;
}

/* ---- the exact formula ------------------------------------------------------------------------------------------ */

/* A number that is added to all logits of a row, with the sink, changes only L. */
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
        assert_int_equal(answer.rows.lost[0].is, size > 1e3);
        assert_true(takes_o(&answer.rows, 0, NULL, 1.0));
        assert_false(takes_o(&answer.rows, 0, NULL, 1.07));
        assert_false(takes_o(&answer.rows, 0, problem.array[TH_V].values + 2 * width, 1.0));
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

/* One key, and a prior of 0 of a component that is e^1000 times as likely: nothing depends on the prior. */
TH_HOST_TEST(a_prior_of_zero_multiplies_nothing)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 1, 1);
    desc.score = CLMGK_SCORE_DOT;
    desc.prior_shape = CLMGK_PRIOR_M;
    desc.gradients = CLMGK_GRADIENT_PRIOR;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_fill(&problem, TH_Q, 20.0);
    th_fill(&problem, TH_K, 20.0);
    th_fill(&problem, TH_GRAD_O, 0.0);
    th_fill(&problem, TH_GRAD_LSE, 0.0);
    th_set(&problem, TH_PRIOR, 0, 0, 0, 0, 0, 0.0);
    for (int64_t d = 0; d < problem.desc.head_size; d++)
        th_set(&problem, TH_K, 0, 0, 1, 0, d, 1.0);
    TH_REF_ARRAYS exact = th_solve_gradients(&problem);
    assert_true(exact.exact[CLMGK_REF_GRAD_PRIOR][0] == 0.0);
}

/* ---- the plain formula ------------------------------------------------------------------------------------------ */

/* However the logits are rounded, a row's weights are finite, and their sum is 1. */
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

/* ---- the comparison --------------------------------------------------------------------------------------------- */

/* Head 0's second row is masked as a whole by `bias`, and half of the keys of its third row. */
static th_problem masked_problem(size_t kind, double bias)
{
    clmgk_attention_desc desc = desc_of(kind);
    add_modifiers(&desc);
    desc.dropout = 0.0;
    desc.use_sinks = desc.use_alibi = 0;
    desc.gradients = th_all_gradients(&desc);
    th_problem problem = th_problem_make(&desc, kind + 1);
    th_fill(&problem, TH_BIAS, 0.0);
    for (int64_t j = 0; j < KEYS; j++) {
        th_set(&problem, TH_BIAS, 0, 0, 0, 1, j, bias);
        if (j % 2 == 0)
            th_set(&problem, TH_BIAS, 0, 0, 0, 2, j, bias);
    }
    return problem;
}

/* A masked row does not change the bounds of other rows. It must be an average of V, and its L must be the bias. */
TH_HOST_TEST(a_masked_row_is_judged_apart)
{
    for (size_t n = 0; n < TH_COUNT(kinds) * TH_COUNT(biases); n++) {
        const double bias = biases[n % TH_COUNT(biases)];
        TH_PROBLEM unmasked = masked_problem(n / TH_COUNT(biases), 0.0);
        TH_PROBLEM problem = masked_problem(n / TH_COUNT(biases), bias);
        TH_REF_ANSWER before = th_solve(&unmasked);
        TH_REF_ANSWER answer = th_solve(&problem);
        for (int64_t row = 0; row < answer.rows; row++)
            assert_true(answer.lost[row].is == (row == 1 || (row == 2 && bias > 0.0)));
        assert_true(answer.bound_o.bound <= 2.0 * before.bound_o.bound);
        assert_true(answer.bound_lse.bound <= 2.0 * before.bound_lse.bound);
        assert_true(clmgk_ref_check(&answer, answer.o, answer.lse).ok);
        static const double wrong[] = {0.0, (double)NAN, (double)INFINITY, 100.0, -40.5};
        for (size_t w = 0; w < TH_COUNT(wrong); w++)
            assert_false(takes_value(&answer, 1, wrong[w]));
        assert_false(takes_o(&answer, 4, NULL, 1.01));
        assert_true(takes_lse(&answer, 1, (double)(float)bias));
        assert_false(takes_lse(&answer, 1, 0.99 * bias));
        assert_false(takes_lse(&answer, 1, (double)NAN));
        assert_false(takes_lse(&answer, 1, copysign((double)INFINITY, bias)));
        assert_false(takes_lse(&answer, 4, answer.lse[4] + 0.01));
    }
}

/* Only keys with the larger of two huge biases may have weight. */
TH_HOST_TEST(masked_rows_have_the_values_of_their_largest_bias)
{
    const clmgk_attention_desc desc = desc_of(0);
    TH_PROBLEM problem = th_problem_make(&desc, 3);
    th_fill(&problem, TH_BIAS, -(double)FLT_MAX);
    th_fill(&problem, TH_V, 1.0);
    for (int64_t i = 0; i < ROWS; i++)
        th_set(&problem, TH_BIAS, 0, 1, 0, i, 3, -2.5e38);
    for (int64_t e = 0; e < problem.desc.value_size; e++)
        th_set(&problem, TH_V, 0, 1, 0, 3, e, 5.0);
    TH_REF_ANSWER answer = th_solve(&problem);
    assert_true(takes_value(&answer, ROWS, 5.0));
    assert_false(takes_value(&answer, ROWS, 1.0));
    assert_false(takes_value(&answer, ROWS, 4.9));
    assert_true(takes_value(&answer, 0, 1.0));
}

/* The check notices if element `at` of the exact array is `value`. */
static void expect_refused(const clmgk_ref_arrays *exact, int which, int64_t at, double value)
{
    char message[256];
    double given[4096];
    assert_true((size_t)exact->count[which] <= TH_COUNT(given));
    for (int64_t n = 0; n < exact->count[which]; n++)
        given[n] = n == at ? value : exact->exact[which][n];
    clmgk_ref_check_array(exact, which, given, message, sizeof(message));
    if (message[0] == '\0')
        fail_msg("%s, element %lld: %g is taken for %g", exact->names[which], (long long)at, value,
                 exact->exact[which][at]);
}

/* Where dO and dL of the masked row are 0 it changes no bound; other heads' elements keep theirs in any case. */
TH_HOST_TEST(a_masked_row_widens_its_own_gradients_alone)
{
    for (size_t n = 0; n < TH_COUNT(kinds) * 2; n++) {
        const size_t kind = n / 2;
        TH_PROBLEM unmasked = masked_problem(kind, 0.0);
        TH_PROBLEM problem = masked_problem(kind, -1e30);
        for (int64_t e = 0; n % 2 == 0 && e < problem.desc.value_size; e++) {
            th_set(&problem, TH_GRAD_O, 0, 0, 0, 1, e, 0.0);
            th_set(&problem, TH_GRAD_LSE, 0, 0, 0, 1, 0, 0.0);
        }
        TH_REF_ARRAYS before = th_solve_gradients(&unmasked);
        TH_REF_ARRAYS exact = th_solve_gradients(&problem);
        for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
            const clmgk_ref_bound *const bound = &exact.bound[which];
            if (bound->scale == 0.0) /* not wanted, or 0 */
                continue;
            const bool of_heads = which == CLMGK_REF_GRAD_V || which == CLMGK_REF_GRAD_BIAS;
            assert_true(bound->bound <= 4.0 * before.bound[which].bound);
            for (int64_t at = 0; at < exact.count[which]; at++) {
                if (n % 2 == 0 || (of_heads && at >= exact.count[which] / 2)) {
                    assert_true(exact.floor[which][at] <= 1e-3 * bound->scale);
                    expect_refused(&exact, which, at, exact.exact[which][at] + 0.01 * bound->scale);
                }
                expect_refused(&exact, which, at, (double)NAN);
                expect_refused(&exact, which, at, 1e6 * bound->scale);
            }
        }
    }
}

/* Responsibilities of masked keys lie in 0 .. 1, and those of the other keys keep their bound. */
TH_HOST_TEST(responsibilities_of_masked_keys_are_judged_apart)
{
    for (size_t kind = 0; kind < TH_COUNT(kinds); kind++) {
        TH_PROBLEM problem = masked_problem(kind, -1e9);
        if (problem.desc.statistics == 0)
            continue;
        TH_REF_ARRAYS exact = th_solve_statistics(&problem);
        const clmgk_ref_bound *const bound = &exact.bound[CLMGK_REF_STAT_RESPONSIBILITIES];
        const int64_t keys = KEYS, matrix = ROWS * keys;
        assert_true(bound->bound < 1e-4);
        for (int64_t at = 0; at < exact.count[CLMGK_REF_STAT_RESPONSIBILITIES]; at++) {
            const int64_t i = at % matrix / KEYS, j = at % KEYS;
            const bool first = at < problem.desc.components * matrix;
            const bool masked = first && (i == 1 || (i == 2 && j % 2 == 0));
            assert_true(exact.floor[CLMGK_REF_STAT_RESPONSIBILITIES][at] == (masked ? 1.0 : 0.0));
        }
        expect_refused(&exact, CLMGK_REF_STAT_RESPONSIBILITIES, KEYS, (double)NAN);
        expect_refused(&exact, CLMGK_REF_STAT_RESPONSIBILITIES, KEYS, 3.0);
        expect_refused(&exact, CLMGK_REF_STAT_RESPONSIBILITIES, 0, exact.exact[0][0] + 0.01);
        for (int64_t at = 0; at < exact.count[CLMGK_REF_STAT_NEW_PRIOR]; at++)
            assert_true(exact.floor[CLMGK_REF_STAT_NEW_PRIOR][at] < (at < problem.desc.components ? 0.5 : 1e-30));
    }
}

/* The check reports a bound that is larger than the values, even for exact values. */
TH_HOST_TEST(a_bound_beyond_the_values_is_a_failure)
{
    clmgk_attention_desc desc = desc_of(0);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    TH_REF_ANSWER answer = th_solve(&problem);
    TH_REF_ARRAYS gradients = th_solve_gradients(&problem);
    clmgk_ref_bound *const bounds[] = {&answer.bound_o, &answer.bound_lse, &gradients.bound[CLMGK_REF_GRAD_K]};
    static const char *const names[] = {"O", "L", "dk"};
    for (size_t n = 0; n < TH_COUNT(bounds); n++) {
        char message[256];
        const double bound = bounds[n]->bound;
        for (int larger = 0; larger < 2; larger++) {
            bounds[n]->bound = (larger ? 1.01 : 0.99) * bounds[n]->scale;
            const clmgk_ref_verdict verdict = clmgk_ref_check(&answer, answer.o, answer.lse);
            clmgk_ref_check_array(&gradients, CLMGK_REF_GRAD_K, gradients.exact[CLMGK_REF_GRAD_K], message,
                                  sizeof(message));
            const char *const said = n < 2 ? verdict.message : message;
            assert_int_equal(verdict.ok, !larger || n == 2);
            assert_int_equal(said[0] != '\0', larger);
            assert_true(!larger || (th_has_word(said, names[n]) && th_has_word(said, "proves nothing")));
        }
        bounds[n]->bound = bound;
    }
}

/* ---- the plain formula passes ----------------------------------------------------------------------------------- */

/* A row's biases: ordinary ones, huge ones, or some of each. */
static void fill_biases(th_problem *problem, uint64_t *state)
{
    const th_array *const bias = &problem->array[TH_BIAS];
    for (size_t at = 0; at < bias->count; at += KEYS) {
        const int64_t way = th_pick(state, 0, 3);
        const double all = biases[th_pick(state, 0, TH_COUNT(biases) - 1)];
        for (size_t j = 0; j < KEYS; j++)
            bias->values[at + j] = way == 0                          ? th_normal(state)
                                   : way == 1                        ? all
                                   : way == 2 && th_chance(state, 2) ? th_normal(state)
                                                                     : biases[th_pick(state, 0, TH_COUNT(biases) - 1)];
    }
}

static void expect_plain_rows(const th_reference *reference, const clmgk_ref_answer *answer, ref_way way)
{
    const clmgk_attention_desc *const desc = &reference->problem.desc;
    double o[1024], lse[128];
    ref_plain plain;
    assert_true(ref_plain_create(&reference->problem, ref_family_of(desc->variant)->plain, &plain));
    for (int64_t row = 0; row < answer->rows; row++) {
        ref_plain_solve(&plain, ref_row_of(desc, row), way);
        lse[row] = (double)plain.lse;
        for (int64_t e = 0; e < desc->value_size; e++)
            o[row * desc->value_size + e] = (double)plain.o[e];
    }
    ref_plain_free(&plain);
    const clmgk_ref_verdict verdict = clmgk_ref_check(answer, o, lse);
    if (!verdict.ok)
        fail_msg("%s", verdict.message);
}

static void expect_plain_gradients(const th_reference *reference, const clmgk_ref_arrays *exact, ref_way way)
{
    const clmgk_attention_desc *const desc = &reference->problem.desc;
    static float values[CLMGK_REF_GRADIENTS][4096];
    static double given[4096];
    float *wanted[CLMGK_REF_GRADIENTS] = {0};
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        memset(values[which], 0, sizeof(values[which]));
        if ((exact->set >> (unsigned)which & 1U) != 0)
            wanted[which] = values[which];
    }
    assert_true(plain_gradients(&reference->problem, ref_family_of(desc->variant)->plain, way, NULL, wanted));
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        char message[256];
        if (!wanted[which])
            continue;
        assert_true((size_t)exact->count[which] <= TH_COUNT(given));
        for (int64_t n = 0; n < exact->count[which]; n++)
            given[n] = (double)values[which][n];
        clmgk_ref_check_array(exact, which, given, message, sizeof(message));
        if (message[0] != '\0')
            fail_msg("%s", message);
    }
}

/* Lost rows may be whatever rounding makes of them: the plain formula's own results pass, in any order of its sums. */
TH_HOST_TEST(the_plain_formula_passes)
{
    static const double sizes[] = {1.0, 1.0, 60.0, 1e3, 3e4, 1e8};
    for (size_t n = 0; n < TH_COUNT(kinds) * TH_COUNT(sizes) * 4; n++) {
        uint64_t state = n;
        clmgk_attention_desc desc = desc_of(n % TH_COUNT(kinds));
        desc.use_sinks = th_chance(&state, 2);
        desc.use_alibi = th_chance(&state, 2);
        desc.dropout = th_chance(&state, 3) ? 0.3 : 0.0;
        desc.softcap = has_softcap(&desc) && th_chance(&state, 2) ? 2.0 : 0.0;
        desc.prior_shape = has_prior(&desc) && th_chance(&state, 2) ? CLMGK_PRIOR_HMS : CLMGK_PRIOR_UNIFORM;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t at = 0; at < problem.array[TH_PRIOR].count; at += 3)
            if (problem.array[TH_PRIOR].used)
                problem.array[TH_PRIOR].values[at] = 0.0;
        const double size = sizes[n / TH_COUNT(kinds) % TH_COUNT(sizes)];
        th_scale(&problem, TH_Q, size);
        th_scale(&problem, TH_K, size);
        fill_biases(&problem, &state);
        for (size_t h = 0; desc.use_sinks && th_chance(&state, 3) && h < problem.array[TH_SINKS].count; h++)
            problem.array[TH_SINKS].values[h] = biases[th_pick(&state, 0, TH_COUNT(biases) - 1)];
        TH_REF_ANSWER answer = th_solve(&problem);
        TH_REF_ARRAYS exact = th_solve_gradients(&problem);
        th_reference reference = th_reference_of(&problem);
        ref_way way;
        for (int number = 0; ref_way_of(&problem.desc, number, &way); number++) {
            expect_plain_rows(&reference, &answer, way);
            expect_plain_gradients(&reference, &exact, way);
        }
        th_reference_free(&reference);
    }
}
