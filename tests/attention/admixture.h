/* SPDX-License-Identifier: Apache-2.0 */
/* Problems that the tests of the admixture family's forward and backward passes share. */
#ifndef CLMGK_TEST_ADMIXTURE_H
#define CLMGK_TEST_ADMIXTURE_H

#include "harness/harness.h"

/* One of each kind: p alone, p for all heads, w and c, noise. */
static const clmgk_variant forms[] = {CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_HARD_MISH, CLMGK_VARIANT_HARD_GFISH,
                                      CLMGK_VARIANT_FISH};

/* Two global heads, three local ones, with w and c where there are any. */
static inline clmgk_attention_desc small_desc(clmgk_variant variant, int64_t length, int64_t length_k)
{
    const uint32_t traits = clmgk_variant_traits(variant);
    clmgk_attention_desc desc = th_small_desc(variant, length, length_k);
    desc.heads = 3;
    desc.components = (traits & CLMGK_TRAIT_SQUARE) != 0 ? 3 : 2;
    desc.use_mix_weight = desc.use_mix_offset = (traits & CLMGK_TRAIT_GENERALISED) != 0;
    return desc;
}

/* GFiSH (`noise`) or Hard GFiSH with a hidden layer of more units than heads. */
static inline clmgk_attention_desc hidden_desc(bool noise, int64_t units, int64_t length, int64_t length_k)
{
    clmgk_attention_desc desc = small_desc(noise ? CLMGK_VARIANT_GFISH : CLMGK_VARIANT_HARD_GFISH, length, length_k);
    desc.mix_hidden = units;
    desc.use_mix_hidden_offset = 1;
    return desc;
}

/* Mixing after the softmax of `after` heads. */
static inline clmgk_attention_desc mixed_desc(clmgk_variant variant, int64_t after, int64_t length, int64_t length_k)
{
    clmgk_attention_desc desc = small_desc(variant, length, length_k);
    desc.mix_after_heads = after;
    desc.components = (clmgk_variant_traits(variant) & CLMGK_TRAIT_SQUARE) != 0 ? after : 2;
    return desc;
}

/* Number 0 .. 2 of the variants with noise. */
static inline clmgk_attention_desc noisy_desc(size_t number, bool shared, int64_t length, int64_t length_k)
{
    static const clmgk_variant noisy[] = {CLMGK_VARIANT_FISH, CLMGK_VARIANT_MISH, CLMGK_VARIANT_GFISH};
    clmgk_attention_desc desc = small_desc(noisy[number], length, length_k);
    desc.shared_noise = shared;
    return desc;
}

/* Of the six kinds of noise the quick tier has FiSH's and GFiSH's own, and MiSH's shared. */
static inline bool is_quick_noise(size_t n)
{
    return n % 6 == 0 || n % 6 == 3 || n % 6 == 4;
}

/* Number n of a sweep over the six kinds of noise, six for every seed. */
static inline th_problem noisy_problem(size_t n, uint64_t seed, double deviation, bool training)
{
    clmgk_attention_desc desc = noisy_desc(n / 2 % 3, n % 2 == 1, 50, 130);
    desc.heads = 4;
    desc.kv_heads = 2;
    desc.batch = 2;
    desc.causal = n / 6 % 2 == 1;
    desc.gradients = training ? th_all_gradients(&desc) : 0;
    th_problem problem = th_problem_make(&desc, n);
    problem.seed = seed;
    th_scale(&problem, TH_NOISE, deviation);
    return problem;
}

/* The six kinds of noise in turn, with dropout, on blocks of several engines. */
static inline void
expect_noise_on(th_session *session, const th_block *blocks, size_t count, size_t step, bool training,
                void (*expect)(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters))
{
    for (size_t n = 0; n < count; n++) {
        if (!th_takes(session, n, step))
            continue;
        clmgk_attention_desc desc = noisy_desc(n % 3, n % 2 == 1, 70, 210);
        desc.gradients = training ? th_all_gradients(&desc) : 0;
        desc.dropout = 0.4;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        expect(session, &problem, blocks[n].engine, blocks[n].parameters);
    }
}

#endif
