/* SPDX-License-Identifier: Apache-2.0 */
/* Caches of keys and values: packed queries over one for each sequence, prefill and decoding mixed. */
#include "harness/harness.h"

#include <math.h>

/* Queries and keys of the sequences of a batch: prefill, decoding, a new part of a prompt, none of one or both. */
enum { SEQUENCES = 6, ROOM = 200 };
static const int64_t queries[SEQUENCES] = {1, 40, 0, 17, 3, 1}, keys[SEQUENCES] = {199, 40, 70, 0, 64, 1};

/* A problem of them; what is beyond the lengths is NaN. */
static th_problem mixed_problem(clmgk_attention_desc desc, uint64_t seed)
{
    desc.sequences = SEQUENCES;
    desc.use_lengths = 1;
    desc.length = 0;
    for (size_t t = 0; t < SEQUENCES; t++)
        desc.length += queries[t];
    desc.length_k = ROOM;
    th_problem problem = th_problem_make(&desc, seed);
    double offset = 0.0;
    for (size_t t = 0; t < SEQUENCES; t++) {
        offset += (double)queries[t];
        problem.array[TH_OFFSETS].values[t + 1] = offset;
        problem.array[TH_LENGTHS].values[t] = (double)keys[t];
        th_poison(&problem, TH_K, (int64_t)t, keys[t]);
        th_poison(&problem, TH_V, (int64_t)t, keys[t]);
    }
    return problem;
}

static clmgk_attention_desc desc_of(clmgk_variant variant, size_t n)
{
    clmgk_attention_desc desc = th_small_desc(variant, 1, 1);
    desc.causal = n % 2 == 0;
    desc.use_window = n % 3 == 1;
    desc.window_left = desc.use_window ? 33 : 0;
    desc.window_right = desc.use_window ? 5 : 0;
    desc.alignment = (clmgk_alignment)(n % 3);
    return desc;
}

TH_TEST(caches_of_packed_sequences)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_MGK, CLMGK_VARIANT_HARD_FISH};
    for (size_t n = 0; n < TH_COUNT(variants) * 6; n++) {
        TH_PROBLEM problem = mixed_problem(desc_of(variants[n / 6], n), n);
        th_expect(session, &problem);
    }
}

/* The keys of a sequence are cut into ranges by its own length. */
TH_TEST(caches_in_ranges)
{
    for (size_t n = 0; n < session->engines; n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 0);
        desc.use_sinks = 1; /* a range without keys has it */
        TH_PROBLEM problem = mixed_problem(desc, n);
        th_expect_with(session, &problem, session->engine[n],
                       session->engine[n] == CLMGK_ENGINE_LANE ? "splits=4,panels=1" : "splits=4");
    }
}

/* Bias and prior index a cache's own keys; the last query of every row's sequence sees the last key. */
TH_FULL_TEST(caches_with_terms_of_keys)
{
    for (size_t n = 0; n < 8; n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_MGK, n);
        desc.use_bias = 1;
        th_set_bias_axes(&desc, n);
        desc.use_alibi = desc.use_sinks = 1;
        desc.prior_shape = CLMGK_PRIOR_HMS;
        TH_PROBLEM problem = mixed_problem(desc, n);
        th_expect(session, &problem);
    }
}

/* Random lengths and heads, all variants. */
TH_FULL_TEST(random_caches)
{
    for (size_t n = 0; n < 120; n++) {
        uint64_t state = n;
        const bool mixed = n % 2 == 1;
        clmgk_attention_desc desc = desc_of(
            mixed ? th_admixtures[n / 2 % TH_COUNT(th_admixtures)] : th_variants[n / 2 % TH_COUNT(th_variants)], n);
        desc.sequences = th_pick(&state, 1, 9);
        desc.use_lengths = 1;
        desc.length = th_pick(&state, 0, 200);
        desc.length_k = th_keys(th_pick(&state, 0, 300));
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect(session, &problem);
    }
}

/* A plan serves any lengths: the same one for two calls. */
TH_TEST(lengths_are_the_call_s)
{
    TH_PROBLEM problem = mixed_problem(desc_of(CLMGK_VARIANT_SOFTMAX, 0), 7);
    const size_t built = session->built;
    th_expect(session, &problem);
    for (size_t t = 0; t < SEQUENCES; t++)
        problem.array[TH_LENGTHS].values[t] = (double)(t * 7); /* all of them in use before, or NaN */
    th_fill(&problem, TH_K, 0.25);
    th_fill(&problem, TH_V, 0.5);
    th_expect(session, &problem);
    assert_true(session->built <= built + session->engines);
}

TH_HOST_TEST(refused_caches)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 0);
    desc.sequences = 2;
    desc.length = 5;
    desc.length_k = 9;
    desc.use_lengths = 1;
    th_expect_ok(clmgk_attention_validate(&desc, NULL, &th_error));
    clmgk_attention_desc bad = desc;
    bad.use_offsets_k = 1;
    th_expect_refusal(clmgk_attention_validate(&bad, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "use_offsets_k", "1");
    bad = desc;
    bad.gradients = CLMGK_GRADIENT_Q;
    th_expect_error(clmgk_attention_validate(&bad, NULL, &th_error), CLMGK_ERROR_UNSUPPORTED, "gradients");
    bad = desc;
    bad.use_lengths_q = 1;
    th_expect_refusal(clmgk_attention_validate(&bad, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "use_lengths_q", "1");
    bad = th_small_desc(CLMGK_VARIANT_LINEAR, 5, 9);
    bad.sequences = 2;
    bad.use_lengths = 1;
    th_expect_refusal(clmgk_attention_validate(&bad, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "use_lengths", "1");
}
