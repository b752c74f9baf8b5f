/* SPDX-License-Identifier: Apache-2.0 */
/* Properties that relate problems to each other, independently of the reference. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { H = 2, N = 45, S = 150 };

static clmgk_attention_desc base_desc(clmgk_variant variant)
{
    return th_small_desc(variant, N, S);
}

/* Runs `changed`: its outputs must be those of `answer`. Other engines take every tenth program. */
static void expect_answer(th_session *session, th_problem *changed, const clmgk_ref_answer *answer)
{
    for (size_t n = 0; n == 0 || (n < session->engines && th_is_tenth_program(session)); n++) {
        th_run(session, changed, n);
        th_check(session, changed, session->engine[n], answer);
    }
}

/* Its outputs must be those of `original`, within the bound. */
static void expect_same(th_session *session, const th_problem *original, th_problem *changed)
{
    TH_REF_ANSWER answer = th_solve(original);
    expect_answer(session, changed, &answer);
}

/* A problem whose values are rounded to their storage types. */
static th_problem rounded_problem(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    th_problem problem = th_problem_make(desc, seed);
    th_round_values(session, &problem, TH_FORWARD);
    return problem;
}

/* ---- one component ---------------------------------------------------------------------------------------------- */

TH_TEST(mgk_of_one_component_is_plain)
{
    static const clmgk_variant plain[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_GAUSSIAN};
    for (size_t n = 0; n < TH_COUNT(plain) * 2; n++) {
        const clmgk_attention_desc one = base_desc(plain[n / 2]);
        clmgk_attention_desc mixture = base_desc(CLMGK_VARIANT_MGK);
        mixture.components = 1;
        mixture.score = th_scores[n / 2];
        mixture.estep = n % 2 == 0 ? CLMGK_ESTEP_SOFT : CLMGK_ESTEP_HARD;
        TH_PROBLEM original = rounded_problem(session, &one, n);
        TH_PROBLEM changed = th_problem_make(&mixture, n);
        th_copy_inputs(&changed, &original);
        expect_same(session, &original, &changed);
    }
}

/* Every element of component 1 becomes that of component 0. */
static void repeat_component(th_problem *problem, th_name name)
{
    const th_array *const array = &problem->array[name];
    const size_t inner = (size_t)(array->shape[3] * array->shape[4]);
    for (size_t outer = 0; outer < array->count / (2 * inner); outer++)
        memcpy(array->values + (2 * outer + 1) * inner, array->values + 2 * outer * inner, inner * sizeof(double));
}

/* Two components with the same keys and half the prior each are one. */
TH_TEST(equal_components_are_one)
{
    for (size_t n = 0; n < 4; n++) {
        clmgk_attention_desc desc = base_desc(n % 2 == 0 ? CLMGK_VARIANT_MGK : CLMGK_VARIANT_SMGK);
        desc.score = th_scores[n / 2];
        desc.components = 1;
        clmgk_attention_desc two = desc;
        two.components = 2;
        TH_PROBLEM changed = rounded_problem(session, &two, n);
        TH_PROBLEM original = th_problem_make(&desc, n);
        const th_name repeated = n % 2 == 0 ? TH_K : TH_SHIFT;
        repeat_component(&changed, repeated);
        th_copy_values(&original, &changed, TH_Q);
        th_copy_values(&original, &changed, TH_V);
        if (repeated == TH_SHIFT)
            th_copy_values(&original, &changed, TH_K);
        for (int64_t h = 0; h < H; h++) {
            const size_t size = original.array[repeated].count / H;
            memcpy(original.array[repeated].values + (size_t)h * size,
                   changed.array[repeated].values + (size_t)(2 * h) * size, size * sizeof(double));
        }
        expect_same(session, &original, &changed);
    }
}

TH_TEST(hard_estep_ignores_the_prior)
{
    for (size_t n = 0; n < session->engines * 2; n++) {
        clmgk_attention_desc desc = base_desc(n % 2 == 0 ? CLMGK_VARIANT_MGK : CLMGK_VARIANT_SMGK);
        desc.estep = CLMGK_ESTEP_HARD;
        desc.prior_shape = CLMGK_PRIOR_HMS;
        TH_PROBLEM one = th_problem_make(&desc, n);
        TH_PROBLEM other = th_problem_make(&desc, n);
        th_fill(&other, TH_PRIOR, n % 2 == 0 ? 0.0 : -1.0);
        th_run(session, &one, n / 2);
        th_run(session, &other, n / 2);
        for (th_name name = TH_O; name <= TH_LSE; name++)
            assert_memory_equal(one.array[name].values, other.array[name].values,
                                one.array[name].count * sizeof(double));
    }
}

/* ---- invariances ------------------------------------------------------------------------------------------------ */

TH_TEST(order_of_keys_does_not_matter)
{
    for (int variant = CLMGK_VARIANT_SOFTMAX; variant <= CLMGK_VARIANT_SMGK; variant++) {
        clmgk_attention_desc desc = base_desc((clmgk_variant)variant);
        if (variant >= CLMGK_VARIANT_MGK)
            desc.prior_shape = CLMGK_PRIOR_HMS;
        TH_PROBLEM original = rounded_problem(session, &desc, 1);
        TH_PROBLEM changed = th_problem_make(&desc, 1);
        th_copy_inputs(&changed, &original);
        th_reverse_tokens(&changed, TH_K);
        th_reverse_tokens(&changed, TH_V);
        if (variant >= CLMGK_VARIANT_MGK)
            th_reverse_tokens(&changed, TH_PRIOR);
        expect_same(session, &original, &changed);
    }
}

/* Adds `amount` to every element: a power of two that keeps the values exact to a few bits. */
static void add(th_problem *problem, th_name name, double amount)
{
    for (size_t n = 0; n < problem->array[name].count; n++)
        problem->array[name].values[n] += amount;
}

/* Gaussian scores depend only on differences of queries and keys. */
TH_TEST(moving_queries_and_keys_together)
{
    for (int variant = CLMGK_VARIANT_GAUSSIAN; variant <= CLMGK_VARIANT_SMGK; variant++) {
        const clmgk_attention_desc desc = base_desc((clmgk_variant)variant);
        TH_PROBLEM changed = th_problem_make(&desc, 2);
        add(&changed, TH_Q, 2.0);
        add(&changed, TH_K, 2.0);
        TH_DEVICE device = th_upload(session, &changed, 0);
        TH_PROBLEM original = th_problem_make(&desc, 2);
        th_copy_inputs(&original, &changed);
        add(&original, TH_Q, -2.0);
        add(&original, TH_K, -2.0);
        TH_REF_ANSWER moved = th_solve(&changed); /* the bound of the moved problem: its distances cancel more */
        TH_REF_ANSWER answer = th_solve(&original);
        answer.bound_o = moved.bound_o;
        answer.bound_lse = moved.bound_lse;
        expect_answer(session, &changed, &answer);
    }
}

/* Dot scores and one sigma: a key moved by b_r weighs exp(q.b_r / sigma^2) times as much, for all keys alike. */
TH_TEST(shifted_dot_keys_are_softmax)
{
    for (size_t n = 0; n < 3; n++) {
        const clmgk_attention_desc plain = base_desc(CLMGK_VARIANT_SOFTMAX);
        clmgk_attention_desc desc = base_desc(CLMGK_VARIANT_SMGK);
        desc.score = CLMGK_SCORE_DOT;
        desc.prior_shape = n == 0 ? CLMGK_PRIOR_UNIFORM : CLMGK_PRIOR_HM;
        TH_PROBLEM original = rounded_problem(session, &plain, n);
        TH_PROBLEM changed = th_problem_make(&desc, n);
        th_copy_inputs(&changed, &original);
        th_scale(&changed, TH_SHIFT, n == 2 ? 30.0 : 1.0);
        TH_REF_ANSWER answer = th_solve(&original);
        TH_REF_ANSWER shifted = th_solve(&changed);
        memcpy(answer.lse, shifted.lse, (size_t)answer.rows * sizeof(double)); /* L knows the shifts */
        answer.bound_o = shifted.bound_o;
        answer.bound_lse = shifted.bound_lse;
        expect_answer(session, &changed, &answer);
    }
}

/* On a device without denormal numbers c is 0 from a variance of 1e38 on. Weights are then in proportion to the priors.
 */
TH_TEST(infinite_variances_leave_the_priors)
{
    clmgk_attention_desc desc = base_desc(CLMGK_VARIANT_SMGK);
    desc.variance_shape = CLMGK_VARIANCE_HM;
    desc.prior_shape = CLMGK_PRIOR_HMS;
    TH_PROBLEM problem = th_problem_make(&desc, 6);
    th_fill(&problem, TH_VARIANCE, 1e30);
    for (int64_t n = 0; n < 4; n++) /* a key without any prior */
        th_set(&problem, TH_PRIOR, 0, n / 2, n % 2, 3, 0, 0.0);
    TH_REF_ANSWER answer = th_solve(&problem);
    th_fill(&problem, TH_VARIANCE, (double)INFINITY);
    expect_answer(session, &problem, &answer);
}

/* Weights of a row sum to one, so equal values give an equal output. */
TH_TEST(equal_values_come_out)
{
    for (int variant = CLMGK_VARIANT_SOFTMAX; variant <= CLMGK_VARIANT_SMGK; variant++) {
        for (size_t e = 0; e < (th_takes(session, (size_t)variant, 3) ? session->engines : 1); e++) {
            clmgk_attention_desc desc = base_desc((clmgk_variant)variant);
            desc.causal = 1;
            TH_PROBLEM problem = th_problem_make(&desc, 4);
            th_fill(&problem, TH_V, 0.75);
            th_run(session, &problem, e);
            for (size_t n = 0; n < problem.array[TH_O].count; n++)
                assert_true(problem.array[TH_O].values[n] > 0.75 - 1e-6 && problem.array[TH_O].values[n] < 0.75 + 1e-6);
        }
    }
}

/* A plan without L gives the same O. */
TH_TEST(lse_is_optional)
{
    for (size_t e = 0; e < session->engines; e++) {
        const clmgk_attention_desc desc = base_desc(CLMGK_VARIANT_SMGK);
        TH_PROBLEM with = th_problem_make(&desc, 5);
        TH_PROBLEM without = th_problem_make(&desc, 5);
        without.array[TH_LSE].used = false;
        th_run(session, &with, e);
        th_run(session, &without, e);
        assert_memory_equal(with.array[TH_O].values, without.array[TH_O].values,
                            with.array[TH_O].count * sizeof(double));
    }
}

/* ---- bit for bit ------------------------------------------------------------------------------------------------ */

static void run_on_queue(th_session *session, th_problem *problem, size_t engine, cl_command_queue queue)
{
    cl_command_queue own = session->queue;
    session->queue = queue;
    th_run(session, problem, engine);
    session->queue = own;
}

TH_TEST(repeated_runs_are_bit_equal)
{
    cl_int code = CL_SUCCESS;
    cl_command_queue second = clCreateCommandQueue(session->cl, session->info.device_id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    for (size_t n = 0; n < session->engines * 4; n++) {
        if (n >= 4 && !th_takes(session, n % 4, 3))
            continue;
        clmgk_attention_desc desc = base_desc((clmgk_variant)(n % 4));
        desc.heads = 8;
        desc.length = 300;
        desc.causal = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_run(session, &problem, n / 4);
        TH_PROBLEM again = th_problem_make(&desc, n);
        for (int run = 0; run < (session->full ? 6 : 3); run++) {
            run_on_queue(session, &again, n / 4, run % 2 == 0 ? second : session->queue);
            for (th_name name = TH_O; name <= TH_LSE; name++)
                assert_memory_equal(problem.array[name].values, again.array[name].values,
                                    problem.array[name].count * sizeof(double));
        }
    }
    assert_int_equal(clReleaseCommandQueue(second), CL_SUCCESS);
}
