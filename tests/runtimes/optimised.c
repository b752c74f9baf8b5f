/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SIMT engine's kernels as PoCL optimises them, of each family and for both passes, mostly with the parameters that
 * plans choose. They run on the guard-page layer, because miscompiled code mostly writes to wrong places. Problems have
 * partial blocks of rows, and full and partial tiles of keys.
 */
#include "harness/harness.h"

static void forward(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    TH_PROBLEM problem = th_problem_make(desc, seed);
    th_expect_with(session, &problem, CLMGK_ENGINE_SIMT, NULL);
}

static void train(th_session *session, const clmgk_attention_desc *desc, const char *parameters, uint64_t seed)
{
    clmgk_attention_desc with = *desc;
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = CLMGK_ENGINE_SIMT;
    options.parameters = options.backward_parameters = parameters;
    with.gradients = th_all_gradients(&with);
    TH_PROBLEM problem = th_problem_make(&with, seed);
    th_expect_training(session, &problem, &options);
}

/* Fewer and more rows than a block; fewer keys than a tile, and several tiles with a partial one. */
static const int64_t shapes[][2] = {{5, 17}, {1, 70}, {37, 131}};

static void training(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    train(session, desc, NULL, seed);
}

/* Small blocks: these two passes take longest to compile. */
static void small_training(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    static const char parameters[] = "rows=1,keys=1";
    train(session, desc, parameters, seed);
}

/* One program for all shapes. */
static void sweep(th_session *session, clmgk_attention_desc desc,
                  void (*run)(th_session *, const clmgk_attention_desc *, uint64_t))
{
    for (size_t n = 0; n < TH_COUNT(shapes); n++) {
        desc.length = shapes[n][0];
        desc.length_k = shapes[n][1];
        desc.causal = n == 2;
        run(session, &desc, n);
    }
}

static clmgk_attention_desc desc_of(clmgk_variant variant, int64_t heads, int64_t components)
{
    return th_sized_desc(variant, (th_sizes){.heads = heads, .components = components, .head_size = 16});
}

TH_TEST(softmax)
{
    sweep(session, desc_of(CLMGK_VARIANT_SOFTMAX, 2, 1), training);
}

TH_TEST(mgk)
{
    sweep(session, desc_of(CLMGK_VARIANT_MGK, 2, 2), forward);
}

TH_TEST(hard_fish)
{
    sweep(session, desc_of(CLMGK_VARIANT_HARD_FISH, 2, 3), training);
}

/* Several heads of a work-group, the last group not full. */
TH_TEST(many_heads)
{
    sweep(session, desc_of(CLMGK_VARIANT_HARD_FISH, 6, 5), forward);
}

TH_TEST(mish)
{
    sweep(session, desc_of(CLMGK_VARIANT_HARD_MISH, 3, 2), forward);
}

TH_TEST(smgk)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SMGK, 2, 2);
    desc.prior_shape = CLMGK_PRIOR_HM;
    sweep(session, desc, small_training);
}

TH_TEST(gfish)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_GFISH, 3, 2);
    desc.use_mix_weight = desc.use_mix_offset = 1;
    sweep(session, desc, training);
}
