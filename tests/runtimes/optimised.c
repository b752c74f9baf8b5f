/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SIMT engine's kernels as PoCL optimises them, of each family and for both passes, mostly with the parameters
 * that plans choose: below the guard-page layer, since what such code does wrong is mostly where it writes. Problems
 * have more rows in a block than exist, and keys for full and for cut tiles.
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
    th_run_training(session, &problem, &options);
    TH_REF_ARRAYS exact = th_solve_gradients(&problem);
    th_check_gradients(session, &problem, options.engine, &exact);
}

/* Rows below and above a block of them; keys below a tile, and some tiles and a part of one. */
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
static void sweep(th_session *session, const clmgk_attention_desc *desc,
                  void (*run)(th_session *, const clmgk_attention_desc *, uint64_t))
{
    for (size_t n = 0; n < TH_COUNT(shapes); n++) {
        clmgk_attention_desc shaped = *desc;
        shaped.length = shapes[n][0];
        shaped.length_k = shapes[n][1];
        shaped.causal = n == 2;
        run(session, &shaped, n);
    }
}

static clmgk_attention_desc desc_of(clmgk_variant variant, int64_t heads, int64_t components)
{
    return (clmgk_attention_desc){.struct_size = sizeof(clmgk_attention_desc),
                                  .variant = variant,
                                  .heads = heads,
                                  .components = components,
                                  .head_size = 16};
}

TH_TEST(softmax)
{
    const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 2, 1);
    sweep(session, &desc, training);
}

TH_TEST(mgk)
{
    const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_MGK, 2, 2);
    sweep(session, &desc, forward);
}

TH_TEST(smgk)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SMGK, 2, 2);
    desc.prior_shape = CLMGK_PRIOR_HM;
    sweep(session, &desc, small_training);
}

TH_TEST(hard_fish)
{
    const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_HARD_FISH, 2, 3);
    sweep(session, &desc, training);
}

/* Several heads of a work-group, the last group not full. */
TH_TEST(many_heads)
{
    const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_HARD_FISH, 6, 5);
    sweep(session, &desc, forward);
}

TH_TEST(gfish)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_GFISH, 3, 2);
    desc.use_mix_weight = desc.use_mix_offset = 1;
    sweep(session, &desc, training);
}

TH_TEST(mish)
{
    const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_HARD_MISH, 3, 2);
    sweep(session, &desc, forward);
}
