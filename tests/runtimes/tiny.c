/* SPDX-License-Identifier: Apache-2.0 */
/* Few and tiny problems that still cross a tile's edge and take every kind of kernel: for implementations that are a
 * thousand times slower (Oclgrind). CLMGK_TEST_FULL=1: all variants with arrays for everything, in every type. */
#include "harness/harness.h"

enum { LENGTH = 9, KEYS = 70, SIZE = 5 };

static clmgk_attention_desc tiny(clmgk_variant variant)
{
    return (clmgk_attention_desc){.variant = variant, .length = LENGTH, .length_k = KEYS, .head_size = SIZE};
}

static void plain(void **state)
{
    for (int variant = CLMGK_VARIANT_SOFTMAX; variant <= CLMGK_VARIANT_SMGK; variant++) {
        const clmgk_attention_desc desc = tiny((clmgk_variant)variant);
        th_sweep_desc(*state, &desc, (uint64_t)variant, 0);
    }
}

static void masked(void **state)
{
    clmgk_attention_desc desc = tiny(CLMGK_VARIANT_MGK);
    desc.dtype = CLMGK_DTYPE_F16;
    desc.batch = 2;
    desc.causal = 1;
    desc.use_lengths = 1;
    desc.use_lengths_q = 1;
    th_sweep_desc(*state, &desc, 1, 0);
}

static void arrays(void **state)
{
    th_session *const session = *state;
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SMGK, CLMGK_VARIANT_MGK};
    for (size_t v = 0; v < (session->full ? TH_COUNT(variants) : 1); v++) {
        for (int dtype = CLMGK_DTYPE_F32; dtype <= (session->full ? CLMGK_DTYPE_BF16 : CLMGK_DTYPE_F32); dtype++) {
            for (int estep = CLMGK_ESTEP_SOFT; estep <= (session->full ? CLMGK_ESTEP_HARD : CLMGK_ESTEP_SOFT);
                 estep++) {
                clmgk_attention_desc desc = tiny(variants[v]);
                desc.dtype = (clmgk_dtype)dtype;
                desc.estep = (clmgk_estep)estep;
                desc.prior_shape = CLMGK_PRIOR_HMS;
                desc.variance_shape = CLMGK_VARIANCE_HM;
                th_sweep_desc(session, &desc, (uint64_t)dtype * 10 + (uint64_t)estep, 0);
            }
        }
    }
}

static void gradients(void **state)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_SMGK};
    for (size_t v = 0; v < TH_COUNT(variants); v++) {
        clmgk_attention_desc desc = tiny(variants[v]);
        desc.causal = 1;
        desc.gradients = th_all_gradients(&desc);
        th_problem problem = th_problem_make(&desc, v);
        th_expect_gradients(*state, &problem, true);
        th_problem_free(&problem);
    }
}

/* Several heads over the same scores, with a softmax each and with one. */
static void mixed_heads(void **state)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_HARD_MISH};
    th_session *const session = *state;
    for (size_t v = 0; v < TH_COUNT(variants); v++) {
        clmgk_attention_desc desc = tiny(variants[v]);
        desc.components = 2;
        desc.heads = 4;
        desc.gradients = v == 0 ? th_all_gradients(&desc) : 0;
        th_problem problem = th_problem_make(&desc, v);
        for (size_t n = 0; n < session->engines; n++)
            th_expect_with(session, &problem, session->engine[n],
                           session->engine[n] == CLMGK_ENGINE_SIMT ? "rows=1,keys=1,heads=4,splits=1" : NULL);
        if (desc.gradients != 0)
            th_expect_gradients(session, &problem, true);
        th_problem_free(&problem);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain), cmocka_unit_test(masked), cmocka_unit_test(arrays),
                                       cmocka_unit_test(gradients), cmocka_unit_test(mixed_heads)};
    return cmocka_run_group_tests_name("tiny", tests, th_session_open, th_session_close);
}
