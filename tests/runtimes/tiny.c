/* SPDX-License-Identifier: Apache-2.0 */
/* Few and tiny problems that still cross a tile's edge and take every kind of kernel: for implementations that are a
 * thousand times slower (Oclgrind). CLMGK_TEST_FULL=1: all variants with arrays for everything, in every type. */
#include "harness/harness.h"

enum { LENGTH = 9, KEYS = 70, SIZE = 5 };

static clmgk_attention_desc tiny(clmgk_variant variant)
{
    return (clmgk_attention_desc){.variant = variant, .length = LENGTH, .length_k = KEYS, .head_size = SIZE};
}

/* Keys of the second tile are larger: maxima grow. */
TH_TEST(plain)
{
    for (int variant = CLMGK_VARIANT_SOFTMAX; variant <= CLMGK_VARIANT_SMGK; variant++) {
        const clmgk_attention_desc desc = tiny((clmgk_variant)variant);
        TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)variant);
        th_array *const keys = &problem.array[TH_K];
        for (size_t i = 0; i < keys->count; i++)
            keys->values[i] *= i / SIZE % KEYS < 64 ? 1.0 : 20.0;
        th_sweep(session, &problem, 0);
    }
}

TH_TEST(masked)
{
    clmgk_attention_desc desc = tiny(CLMGK_VARIANT_MGK);
    desc.dtype = CLMGK_DTYPE_F16;
    desc.batch = 2;
    desc.causal = 1;
    desc.use_lengths = 1;
    desc.use_lengths_q = 1;
    th_sweep_desc(session, &desc, 1, 0);
}

TH_TEST(arrays)
{
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

/* Tiles of the SIMT engine's form have more keys. */
TH_TEST(few_rows)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_GAUSSIAN, CLMGK_VARIANT_SMGK};
    for (size_t v = 0; v < TH_COUNT(variants); v++) {
        clmgk_attention_desc desc = tiny(variants[v]);
        desc.length = 2 - (int64_t)v;
        desc.length_k = 2 * (int64_t)KEYS;
        th_sweep_desc(session, &desc, v, 0);
    }
}

/* Shifts that are too large for a product of exponentials, if the variant has shifts. */
static void spread(th_problem *problem)
{
    th_array *const shift = &problem->array[TH_SHIFT];
    for (size_t i = 0; shift->used && i < shift->count; i++)
        shift->values[i] *= i % 2 == 0 ? 20.0 : 1.0;
}

/* Two tiles of queries and of keys. */
static void expect_gradients(th_session *session, clmgk_variant variant, clmgk_prior_shape prior, uint64_t seed)
{
    clmgk_attention_desc desc = tiny(variant);
    desc.length = desc.length_k = 36;
    desc.causal = 1;
    desc.prior_shape = prior;
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM problem = th_problem_make(&desc, seed);
    spread(&problem);
    th_expect_gradients(session, &problem, true);
}

TH_TEST(plain_gradients)
{
    expect_gradients(session, CLMGK_VARIANT_SOFTMAX, CLMGK_PRIOR_UNIFORM, 0);
}

TH_TEST(shifts_and_their_gradients)
{
    expect_gradients(session, CLMGK_VARIANT_SMGK, CLMGK_PRIOR_HMS, 1);
}

TH_TEST(likelihood)
{
    clmgk_attention_desc desc = tiny(CLMGK_VARIANT_SMGK);
    desc.statistics = CLMGK_STATISTIC_NLL;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    spread(&problem);
    th_expect_statistics(session, &problem, true);
}

/* Several heads over the same scores, with a softmax each and with one. */
TH_TEST(mixed_heads)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_HARD_MISH};
    for (size_t v = 0; v < (session->full ? TH_COUNT(variants) : 1); v++) {
        clmgk_attention_desc desc = tiny(variants[v]);
        desc.components = 2;
        desc.heads = 4;
        desc.use_bias = v == 0; /* one for all keys */
        desc.bias_length = desc.use_bias ? LENGTH : 0;
        desc.bias_length_k = desc.use_bias ? 1 : 0;
        /* dV alone: no product lies between the terms of the queries and their use */
        desc.gradients = v == 0 ? th_all_gradients(&desc) : CLMGK_GRADIENT_V;
        TH_PROBLEM problem = th_problem_make(&desc, v);
        for (size_t n = 0; n < session->engines; n++)
            th_expect_with(session, &problem, session->engine[n],
                           session->engine[n] == CLMGK_ENGINE_SIMT ? "rows=1,keys=1,heads=4,splits=1" : NULL);
        th_expect_gradients(session, &problem, true);
    }
}

/* A state that goes on from chunk to chunk, and back; in full with one for all queries, too. Some denominators are 0.
 */
TH_TEST(linear)
{
    for (int causal = session->full ? 0 : 1; causal <= 1; causal++) {
        clmgk_attention_desc desc = tiny(CLMGK_VARIANT_MLK);
        desc.length = desc.length_k = 40;
        desc.causal = causal;
        desc.feature = CLMGK_FEATURE_RELU;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, 1);
        th_expect_gradients(session, &problem, true);
    }
}
