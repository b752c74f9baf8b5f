/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference over every form of the linear family: rows against the definition with whole sums, gradients against
 * central differences of the loss, states against one pass over all keys, the plain formula against the exact one.
 */
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4, S = 5, D = 3, E = 2, RANDOM = 4, MOST_VALUES = 8 };

/* A form: what its descriptor has beyond the sizes (batch 2, heads 2, components 2 unless given). */
typedef struct test_form {
    const char *name;
    clmgk_attention_desc desc;
} test_form;

#define LINEAR      .variant = CLMGK_VARIANT_LINEAR
#define MLK         .variant = CLMGK_VARIANT_MLK
#define SMLK        .variant = CLMGK_VARIANT_SMLK
#define LFISH       .variant = CLMGK_VARIANT_LFISH
#define LHARD_FISH  .variant = CLMGK_VARIANT_LHARD_FISH
#define LMISH       .variant = CLMGK_VARIANT_LMISH
#define LHARD_MISH  .variant = CLMGK_VARIANT_LHARD_MISH
#define LGFISH      .variant = CLMGK_VARIANT_LGFISH
#define LHARD_GFISH .variant = CLMGK_VARIANT_LHARD_GFISH
#define RELU        .feature = CLMGK_FEATURE_RELU
#define EXP         .feature = CLMGK_FEATURE_EXP
#define DPFP(nu)    .feature = CLMGK_FEATURE_DPFP, .feature_order = (nu)
#define FAVOR       .feature = CLMGK_FEATURE_FAVOR, .features = RANDOM
#define STATES      .use_state = 1, .use_new_state = 1
#define PACKED      .sequences = 3, .use_offsets_k = 1

static const test_form forms[] = {
    {"linear", {LINEAR}},
    {"linear, relu", {LINEAR, RELU, .causal = 1}},
    {"linear, exp", {LINEAR, EXP, STATES}},
    {"linear, dpfp 1", {LINEAR, DPFP(0), .guard = 0.2}},
    {"linear, dpfp 2", {LINEAR, DPFP(2), STATES, .causal = 1}},
    {"linear, dpfp 3", {LINEAR, DPFP(3), .guard = 0.1}},
    {"linear, favor", {LINEAR, FAVOR, STATES, .causal = 1}},
    {"linear, top-left", {LINEAR, .causal = 1, .alignment = CLMGK_ALIGN_TOP_LEFT, .use_state = 1}},
    {"linear, grouped, lengths", {LINEAR, STATES, .heads = 4, .use_lengths = 1, .use_lengths_q = 1}},
    {"linear, packed", {LINEAR, EXP, PACKED, .causal = 1, .guard = 0.5}},
    {"mlk", {MLK, STATES, .components = 3, .causal = 1, .prior_shape = CLMGK_PRIOR_M}},
    {"mlk, uniform, exp", {MLK, EXP, .use_new_state = 1}},
    {"mlk, prior [H,M,S], exp", {MLK, EXP, STATES, .prior_shape = CLMGK_PRIOR_HMS, .use_lengths = 1}},
    {"mlk, packed, favor", {MLK, FAVOR, PACKED, .prior_shape = CLMGK_PRIOR_HM}},
    {"smlk", {SMLK, STATES, .causal = 1, .prior_shape = CLMGK_PRIOR_HM, .heads = 4}},
    {"smlk, favor",
     {SMLK, FAVOR, STATES, .causal = 1, .prior_shape = CLMGK_PRIOR_M, .use_lengths = 1,
      .alignment = CLMGK_ALIGN_LENGTHS}},
    {"smlk, dpfp, prior [H,M,S]", {SMLK, DPFP(2), .prior_shape = CLMGK_PRIOR_HMS}},
    {"lfish", {LFISH, STATES, .components = 3, .causal = 1}},
    {"lfish, exp, shared noise", {LFISH, EXP, STATES, .shared_noise = 1}},
    {"lfish, favor, packed", {LFISH, FAVOR, PACKED}},
    {"lhard-fish", {LHARD_FISH, STATES, .heads = 4, .components = 3}},
    {"lhard-fish, favor", {LHARD_FISH, FAVOR, STATES, .causal = 1, .guard = 0.25}},
    {"lmish", {LMISH, .causal = 1, .components = 3}},
    {"lhard-mish, dpfp", {LHARD_MISH, DPFP(1), STATES, .guard = 0.3}},
    {"lgfish", {LGFISH, STATES, .use_mix_weight = 1, .causal = 1}},
    {"lgfish, exp", {LGFISH, EXP, .use_mix_weight = 1, .components = 3}},
    {"lgfish, w of its own", {LGFISH, .use_lengths_q = 1}},
    {"lhard-gfish, favor", {LHARD_GFISH, FAVOR, STATES, .use_mix_weight = 1}},
    {"lhard-gfish, relu", {LHARD_GFISH, RELU, .guard = 1.0}},
};

/* ---- problems --------------------------------------------------------------------------------------------------- */

/* Problem and reference of a form. */
typedef struct fixture {
    th_problem problem;
    th_reference reference;
} fixture;

static void drop(fixture *f)
{
    th_reference_free(&f->reference);
    th_problem_free(&f->problem);
}

#define FIXTURE __attribute__((unused, cleanup(drop))) fixture

/* Denominators far from 0: differences of quotients need them. One p is negative where that is no danger. */
static void tame(th_problem *problem)
{
    const bool generalised = (clmgk_variant_traits(problem->desc.variant) & CLMGK_TRAIT_GENERALISED) != 0;
    const bool either_sign = generalised || problem->desc.feature == CLMGK_FEATURE_ELU1;
    th_array *const mix = &problem->array[TH_MIX];
    for (size_t n = 0; mix->used && n < mix->count; n++)
        mix->values[n] = n == 1 && either_sign ? -0.1 : 0.4 + 0.5 * fabs(mix->values[n]);
    th_array *const weight = &problem->array[TH_MIX_WEIGHT];
    for (size_t n = 0; weight->used && n < weight->count; n++)
        weight->values[n] = 0.5 + fabs(weight->values[n]);
    th_scale(problem, TH_NOISE, 0.2);
}

static void set_integers(th_problem *problem, th_name name, const double *values)
{
    th_array *const array = &problem->array[name];
    for (size_t n = 0; array->used && n < array->count; n++)
        array->values[n] = values[n];
}

static void fix_masks(th_problem *problem)
{
    set_integers(problem, TH_LENGTHS, (const double[]){3, 5});
    set_integers(problem, TH_LENGTHS_Q, (const double[]){4, 2});
    set_integers(problem, TH_OFFSETS, (const double[]){0, 1, 1, 4});
    set_integers(problem, TH_OFFSETS_K, (const double[]){0, 2, 3, 5});
}

static clmgk_attention_desc desc_of(const test_form *form)
{
    clmgk_attention_desc d = form->desc;
    const bool packed = d.sequences > 0;
    d.batch = packed ? 1 : 2;
    d.heads = d.heads > 0 ? d.heads : 2;
    d.kv_heads = 2;
    d.length = N;
    d.length_k = S;
    d.head_size = D;
    d.value_size = E;
    d.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return d;
}

static fixture make(const test_form *form)
{
    const clmgk_attention_desc desc = desc_of(form);
    fixture f = {.problem = th_problem_make(&desc, 3)};
    tame(&f.problem);
    fix_masks(&f.problem);
    f.reference = th_reference_of(&f.problem);
    return f;
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(gradients_are_those_of_the_loss)
{
    static const struct {
        int which;
        th_name array;
    } of[] = {{CLMGK_REF_GRAD_Q, TH_Q},
              {CLMGK_REF_GRAD_K, TH_K},
              {CLMGK_REF_GRAD_V, TH_V},
              {CLMGK_REF_GRAD_PRIOR, TH_PRIOR},
              {CLMGK_REF_GRAD_SHIFT, TH_SHIFT},
              {CLMGK_REF_GRAD_MIX, TH_MIX},
              {CLMGK_REF_GRAD_MIX_WEIGHT, TH_MIX_WEIGHT},
              {CLMGK_REF_GRAD_NOISE, TH_NOISE},
              {CLMGK_REF_GRAD_STATE_C, TH_STATE_C},
              {CLMGK_REF_GRAD_STATE_Z, TH_STATE_Z}};
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        FIXTURE f = make(&forms[n]);
        TH_REF_ARRAYS gradients = {0};
        assert_true(clmgk_ref_solve_gradients(&f.reference.problem, CLMGK_GRADIENT_ALL, &gradients));
        for (size_t at = 0; at < TH_COUNT(of); at++) {
            const th_array *const array = &f.problem.array[of[at].array];
            if (!array->used)
                continue;
            th_expect_derivatives(forms[n].name, &f.reference.problem, &gradients, of[at].which, array->values,
                                  array->count, of[at].array == TH_NOISE || of[at].array == TH_PRIOR);
            if (gradients.bound[of[at].which].max_abs < 1e-3)
                fail_msg("%s, gradient %d: nothing", forms[n].name, of[at].which);
        }
    }
}
