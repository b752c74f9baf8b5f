/* SPDX-License-Identifier: Apache-2.0 */
/* The linear family's backward pass, beyond its values (test_linear.c): each gradient alone, the order of sums, memory.
 */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

static const char *const parameters = "chunk=16,feature-block=16,splits=4";

static clmgk_attention_desc desc_of(clmgk_variant variant)
{
    clmgk_attention_desc desc = th_small_desc(variant, 50, 60);
    desc.causal = 1;
    desc.use_state = 1;
    desc.use_new_state = 1;
    return desc;
}

static th_problem make(const clmgk_attention_desc *desc)
{
    th_problem problem = th_problem_make(desc, 3);
    th_keep_sums(&problem);
    return problem;
}

static void run(th_session *session, th_problem *problem)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.parameters = options.backward_parameters = parameters;
    th_run_pass(session, problem, TH_FORWARD, &options);
    th_run_pass(session, problem, TH_BACKWARD, &options);
}

static void expect_equal_bits(const th_problem *one, const th_problem *other)
{
    for (th_name name = TH_GRAD_Q; name <= TH_GRAD_STATE_Z; name++)
        if (other->array[name].used)
            th_expect_equal_bits(one, other, name);
}

/* A gradient has the same bits, whichever others a plan computes; again and again. */
TH_TEST(each_gradient_alone)
{
    static const struct {
        clmgk_variant variant;
        uint32_t quick; /* a program each */
    } cases[] = {{CLMGK_VARIANT_SMLK, CLMGK_GRADIENT_K | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_STATE_C},
                 {CLMGK_VARIANT_LGFISH, CLMGK_GRADIENT_NOISE}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_attention_desc desc = desc_of(cases[n].variant);
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM all = make(&desc);
        run(session, &all);
        for (uint32_t bit = 1; bit <= CLMGK_GRADIENT_STATE_Z; bit *= 2) {
            const uint32_t alone = desc.gradients & bit & (session->full ? bit : cases[n].quick);
            if (alone == 0)
                continue;
            clmgk_attention_desc own = desc;
            own.gradients = alone;
            TH_PROBLEM one = make(&own);
            run(session, &one);
            expect_equal_bits(&all, &one);
        }
        TH_PROBLEM again = make(&desc);
        run(session, &again);
        expect_equal_bits(&all, &again);
    }
}

static uint64_t workspace_of(th_session *session, int64_t length)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SMLK);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    desc.length = desc.length_k = length;
    desc.gradients = th_all_gradients(&desc);
    clmgk_plan *const plan = th_plan(session, &desc, CLMGK_ENGINE_AUTO, parameters);
    assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
    clmgk_plan_release(plan);
    return info.backward_workspace_bytes;
}

TH_TEST(workspace_does_not_grow_with_the_length)
{
    const uint64_t bytes = workspace_of(session, 1 << 14);
    assert_true(bytes > 0);
    assert_int_equal(workspace_of(session, 1 << 20), bytes);
}
